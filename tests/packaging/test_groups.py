"""The environment of tests holds what the groups of ``pyproject.toml`` name, and the groups name what tests use."""

from __future__ import annotations

import ast
import json
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.helpers.machine import ROOT
from tools.setup_env import inputs_of

tomllib = pytest.importorskip("tomllib", reason="needs Python 3.11 or newer, whose library reads TOML")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
GROUPS = PROJECT["dependency-groups"]
INSTALLER = ("pip", "setuptools", "wheel", "gnnkit", "hatchling", "editables")  # what makes an environment and installs a checkout
# Interpreters of other environments, and tools of whoever has them: no test of this environment imports these.
ELSEWHERE = {"dgl", "graphbolt", "checkov", "torch_sparse", "torch_scatter", "playwright", "jupyterlab", "notebook"}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def named(group: str) -> Iterator[Requirement]:
    """The requirements of a group and of those that it includes."""
    for line in GROUPS[group]:
        if isinstance(line, dict):
            yield from named(line["include-group"])
        else:
            yield Requirement(line)


def brought_by(requirements: Iterable[Requirement], found: dict[str, metadata.Distribution]) -> set[str]:
    """The names of all distributions that these need, directly or through others."""
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(one, {""}) for one in requirements]
    while waiting:
        requirement, extras = waiting.pop()
        if requirement.marker is not None and not any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            continue
        key = (canonical(requirement.name), frozenset(requirement.extras))
        if key not in seen and key[0] in found:
            seen.add(key)
            waiting += [(Requirement(line), {"", *requirement.extras}) for line in found[key[0]].requires or ()]
    return {name for name, _ in seen}


def of_project(groups: Iterable[str]) -> list[Requirement]:
    """What the package needs, and what these groups name."""
    return [*map(Requirement, PROJECT["project"]["dependencies"]), *(one for group in groups for one in named(group))]


def test_the_environment_holds_nothing_that_its_groups_do_not_name() -> None:
    """Another package that is there hides that a group lacks it."""
    stamp = Path(sys.prefix, "gnnkit-stamp.json")
    made = json.loads(stamp.read_text()) if stamp.exists() else {}
    if made.get("inputs") != inputs_of(["constraints.txt"]):
        pytest.skip("needs an environment that tools/setup_env.py has made from today's pyproject.toml and constraints.txt")
    groups = made["groups"]
    every = {canonical(one.metadata["Name"]): one for one in metadata.distributions()}
    own = {canonical(one.metadata["Name"]) for one in metadata.distributions(path=[sysconfig.get_path("purelib")])}
    unnamed = own - brought_by(of_project(groups), every) - {*INSTALLER}
    assert not unnamed, f"no group of {', '.join(groups)} names them: name them, or make the environment anew (make clean)"


def used_by(path: Path) -> Iterator[str]:
    """The modules that a file imports, at its top or later, or runs with ``python -m``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module
        elif isinstance(node, (ast.List, ast.Tuple)):
            words = [one.value if isinstance(one, ast.Constant) else None for one in node.elts]
            yield from (str(word) for flag, word in zip(words, words[1:], strict=False) if flag == "-m" and isinstance(word, str))


def test_what_tests_import_or_run_is_named_by_a_group() -> None:
    """Without the help of ``make lint``, ``make docs`` and whoever else has installed something."""
    here = metadata.packages_distributions()
    found = {canonical(one.metadata["Name"]): one for one in metadata.distributions()}
    allowed = brought_by(of_project(["test-all", "package"]), found)
    unnamed: dict[str, str] = {}
    for path in (ROOT / "tests").rglob("*.py"):
        for module in used_by(path):
            top = module.partition(".")[0]
            owners = {canonical(name) for name in here.get(top, ())}
            if owners and not owners & (allowed | {*INSTALLER}) and top not in ELSEWHERE:
                unnamed[f"{path.relative_to(ROOT)}: {module}"] = ", ".join(sorted(owners))
    assert not unnamed


def test_each_package_that_is_named_has_its_pin() -> None:
    """So that tests run with the same versions everywhere."""
    pins = {canonical(Requirement(line).name) for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"}
    wanted = {canonical(one.name) for group in GROUPS for one in named(group)}
    wanted |= {canonical(one.name) for one in map(Requirement, PROJECT["project"]["dependencies"])}
    assert not wanted - pins

"""Imports point down: packages only know packages below them, read from the source with ``ast``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.machine import ROOT

# From the top to the bottom: a package knows only packages that stand further down in this list.
ORDER = (
    *("__main__", "cli", "demo", "bench"),
    *("__init__", "ray", "jobs", "capacity", "partitioning", "pyg"),
    "graph_loader",
    *("export", "distributed", "serving", "ui", "loader", "splitters"),
    *("backends", "cluster", "runtime"),
    *("sampling", "datasets", "storage", "kernels"),
    *(
        "vendor",
        "samplers",
        "plan",
        "splits",
        "user_arrays",
        "urls",
        "source",
        "schema",
        "events",
        "host",
        "files",
        "callers",
        "arguments",
        "unpickling",
        "bounds",
        "waiting",
        "shipped",
        "plugins",
        "errors",
        "rendering",
        "stubs",
        "printable",
        "units",
        "version",
    ),
)
# What sampling and storage may not import, beside what stands above them.
PROCESS_MODULES = ("multiprocessing", "subprocess", "torch.distributed", "torch.multiprocessing")
VENDORS = {"ogb", "graphlearn_torch"}
# Names that graphlearn-torch has for something else, and that its scripts use.
GLTS_NAMES = {"NegativeSampling", "Split"}
MODULES = sorted(ROOT.glob("gnnkit/**/*.py"))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yields line and absolute name of everything that a module imports, at any depth of the code."""
    package = path.relative_to(ROOT).with_suffix("").parts
    package = package[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def package_of(name: str) -> str:
    """``"gnnkit.storage.build.Builder"`` as ``"storage"``; names of the package itself as ``"__init__"``."""
    parts = name.split(".")
    path = ROOT / "gnnkit" / (parts[1] if len(parts) > 1 else "")
    return parts[1] if len(parts) > 1 and (path.is_dir() or path.with_suffix(".py").exists()) else "__init__"


def violations(path: Path) -> list[str]:
    """Every import of a module that breaks a rule, as lines to read."""
    own = path.relative_to(ROOT / "gnnkit").with_suffix("").parts[0]
    found = []
    for line, name in imports(path):
        top = name.split(".")[0]
        place = f"{path.relative_to(ROOT)}:{line} imports {name}"
        if top == "gnnkit":
            package = package_of(name)
            if package != own and ORDER.index(package) < ORDER.index(own):
                found.append(f"{place}: {own} stands below {package}")
        elif top in VENDORS and own != "vendor":
            found.append(f"{place}: only vendor/ names {top}")
        elif own in ("sampling", "storage") and name.startswith(PROCESS_MODULES):
            found.append(f"{place}: {own}/ knows nothing of processes and networks")
    return found


def test_every_package_has_its_place() -> None:
    packages = {path.relative_to(ROOT / "gnnkit").with_suffix("").parts[0] for path in MODULES}
    assert packages <= set(ORDER), f"packages without a place: {packages - set(ORDER)}"


def test_a_name_is_one_class() -> None:
    named: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                named.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: files for name, files in named.items() if len(files) > 1 and name not in GLTS_NAMES} == {}


def test_imports_point_down() -> None:
    found = [line for path in MODULES for line in violations(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("own", "line"),
    [
        ("storage", "from gnnkit.graph_loader import GraphLoader"),
        ("sampling", "def f():\n    import gnnkit.runtime.ring"),
        ("storage", "from gnnkit import GraphLoader"),
        ("storage", "from ..ui import cards"),
        ("loader", "import graphlearn_torch.distributed"),
        ("datasets", "from ogb.nodeproppred import Evaluator"),
        ("sampling", "import multiprocessing.shared_memory"),
    ],
)
def test_an_arrow_that_points_up_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, line: str) -> None:
    for package in ORDER:
        (tmp_path / "gnnkit" / package).mkdir(parents=True)
    module = tmp_path / "gnnkit" / own / "module.py"
    module.write_text(line + "\n")
    monkeypatch.setattr("tests.packaging.test_layers.ROOT", tmp_path)
    assert len(violations(module)) == 1

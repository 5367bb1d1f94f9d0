"""The requirements of a job's environment: this one's versions of gnnkit, of its dependencies, and of what ``train.py`` imports."""

from __future__ import annotations

import ast
import json
import platform
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gnnkit.export.names import distributions_of

_OWN = "gnnkit"
# What gnnkit uses in notebooks alone: a job is not pinned to it, nor to what it brings along.
_OF_NOTEBOOKS = "ipywidgets"
_WHEEL = "build it there with `python -m build --wheel`, and install with `pip install --find-links FOLDER -r requirements.txt`"


@dataclass(frozen=True)
class _Pin:
    """One line of the file, with what has to be said above it."""

    line: str
    note: str | None = None


def requirements_text(source: str, more: Iterable[str] = ()) -> str:
    """The text of ``requirements.txt``.

    Args:
        source: That of ``train.py``.
        more: What the job needs beside it, as far as it is installed here.
    """
    found: dict[str, Requirement | None] = {}
    waiting: list[tuple[str, frozenset[str]]] = [(_OWN, frozenset()), *((name, frozenset()) for name in more if _version(name) is not None)]
    waiting += [(name, frozenset()) for name in imported_distributions(source)]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        found.setdefault(name, None)
        for needed in _needs(name, extras):
            key = canonicalize_name(needed.name)
            if (name, key) == (_OWN, _OF_NOTEBOOKS):
                continue
            if _version(key) is not None:
                # Where it is needed on some systems only, others must be able to go without it.
                found[key] = needed if key not in found and needed.marker is not None and name == _OWN else found.get(key)
                waiting.append((key, frozenset(needed.extras)))
    lines = [f"# The versions that gnnkit and train.py had where this was exported: Python {platform.python_version()} on {sys.platform}."]
    for name in sorted(found):
        pin = _pin(name, found[name])
        lines += [f"# {pin.note}"] if pin.note else []
        lines.append(pin.line)
    return "\n".join(lines) + "\n"


def imported_distributions(source: str) -> list[str]:
    """The distributions that a program imports, by their normalised names; Python's own modules have none."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module.partition(".")[0])
    found = {str(canonicalize_name(name)) for module in modules for name in distributions_of().get(module, [])[:1]}
    return sorted(found)


def _needs(name: str, extras: frozenset[str]) -> list[Requirement]:
    environments: list[dict[str, str]] = [{**default_environment(), "extra": extra} for extra in extras or {""}]  # type: ignore[dict-item]
    needs = [Requirement(text) for text in metadata.distribution(name).requires or []]
    return [need for need in needs if need.marker is None or any(need.marker.evaluate(each) for each in environments)]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _pin(name: str, needed: Requirement | None) -> _Pin:
    version = _version(name) or ""
    public, _, local = version.partition("+")
    marker = f"; {needed.marker}" if needed is not None and needed.marker is not None else ""
    line = f"{name}=={public}{marker}"
    origin = metadata.distribution(name).read_text("direct_url.json")
    if origin is not None and "url" in (told := json.loads(origin)):
        what = "a checkout" if told.get("dir_info", {}).get("editable") else "a file or repository"
        return _Pin(line, f"{name} was installed from {what}: {_WHEEL}")
    if local:
        return _Pin(line, f"{name} was {version}; an index of such builds is chosen with pip's --extra-index-url")
    return _Pin(line)

"""Graphs that stores are built from: OGB's datasets, PyG objects, generated graphs and what ships with the package."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from gnnkit.errors import near_matches
from gnnkit.stubs import homes_of

# Public names and the modules they live in; importing the package imports none of them.
_HOMES = homes_of(__file__)

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gnnkit.datasets' has no attribute {name!r}{near_matches(name, [*_HOMES])}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]

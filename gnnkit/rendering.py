"""Who draws the objects of the rooms below ``gnnkit.ui``: told by the package itself, so that no import points up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

_PLACES: dict[str, str] = {}


def drawn_by(places: Mapping[str, str]) -> None:
    """Says where the functions are that draw.

    Args:
        places: ``{what is drawn: "module:function"}``; a module is imported when its first drawing is asked for.
    """
    _PLACES.update(places)


def drawer(what: str) -> Callable[..., Any]:
    """The function that draws ``what``, from its module, which is imported now."""
    module, _, name = _PLACES[what].partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function

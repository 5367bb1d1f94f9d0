"""The registry of what objects of lower packages have done by packages above them: show themselves, and move files to and from URLs."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

_RENDERERS: dict[str, str] = {}


def register(**renderers: str) -> None:
    """Registers functions that draw, and those for URLs, as "module:function"; a module is imported when it is first needed.

    Args:
        **renderers: ``card`` makes the card of a ``Shown`` object, ``traceback`` the lines that IPython shows of an error, ``store_plot`` a
            store's picture. ``open_url`` opens the store at a URL, ``push`` puts a store there, ``fetch_tables`` fetches the files of a
            table, ``append`` writes a store with further rows. ``load_magic`` makes ``%gnnkit`` known to a shell.
    """
    _RENDERERS.update(renderers)


def renderer(what: str) -> Callable[..., Any]:
    """The function that draws or does ``what``; ``gnnkit/__init__.py`` registers them all."""
    module, _, function = _RENDERERS[what].partition(":")
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found


class Shown:
    """Shows an object by its card: as a line, as a block of text, and as a picture in a notebook. A card is made when it is looked at."""

    def __repr__(self) -> str:
        return str(self._card().to_text())

    def __str__(self) -> str:
        return str(self._card().to_block())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        bundle: dict[str, str] = self._card()._repr_mimebundle_()
        return bundle

    def _card(self) -> Any:
        """The card (``gnnkit.ui.cards.Card``) of what the object is now."""
        return renderer("card")(self)

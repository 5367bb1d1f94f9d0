"""Objects that show themselves by a card: as a line, as a block of text, and as a picture in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnnkit.ui.cards import Card


class Shown:
    """Gives a class that says what its card is everything that shows it. The card is made when somebody looks."""

    def __repr__(self) -> str:
        return self._card().to_text()

    def __str__(self) -> str:
        return self._card().to_block()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self._card().mimebundle()

    def _card(self) -> Card:
        """What the object says of itself now."""
        raise NotImplementedError

"""Foreign text made fit for a line, a card or a terminal."""

from __future__ import annotations


def clean(text: str, limit: int = 200) -> str:
    """Makes foreign text safe to show: one line, no control characters or lone surrogates, at most ``limit`` characters."""
    line = "".join(character if character.isprintable() else " " for character in text[: 4 * limit])
    line = " ".join(line.split())
    return line if len(line) <= limit else line[: limit - 1] + "\N{HORIZONTAL ELLIPSIS}"


def encodable(text: str, encoding: str | None) -> str:
    """Replaces by "?" what a stream of this encoding cannot take; an unknown encoding is taken for ASCII."""
    try:
        name = encoding or "ascii"
        return text.encode(name, "replace").decode(name)
    except LookupError:
        return text.encode("ascii", "replace").decode("ascii")

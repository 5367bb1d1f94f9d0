"""Foreign text made fit for a line, a card or a terminal."""

from __future__ import annotations

_LAYOUT = "\n\t"


def printable(text: str) -> str:
    r"""Foreign text as it may be written to a terminal: line ends and tabs stay, other control characters and lone surrogates are escapes.

    What is written raw can colour, move, rename and erase, and in some terminals type; ``\x1b`` in its place says what is there.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _LAYOUT else c.encode("unicode_escape").decode("ascii") for c in text)


def printable_line(text: str) -> str:
    """``printable`` on one line."""
    return printable(" ".join(text.split("\n")))


def clean(text: str, limit: int = 200) -> str:
    """Makes foreign text safe to show: one line, no control characters or lone surrogates, at most ``limit`` characters."""
    line = "".join(character if character.isprintable() else " " for character in text[: 4 * limit])
    line = " ".join(line.split())
    return line if len(line) <= limit else line[: limit - 1] + "\N{HORIZONTAL ELLIPSIS}"


def clean_block(text: str, limit: int = 4000) -> str:
    """Makes foreign text of several lines safe to show: no control characters but line ends, at most about ``limit`` characters.

    What is left out comes from the middle, in whole lines: traces and logs say the most at their ends.
    """
    lines = ["".join(c if c.isprintable() else " " for c in line.expandtabs(4)).rstrip() for line in text.splitlines()]
    head, tail = lines[: len(lines) // 3], lines[len(lines) // 3 :]
    left_out, size = 0, len("\n".join(lines))
    while size > limit and len(head) + len(tail) > 1:
        size -= 1 + len(head.pop() if len(head) > len(tail) // 2 else tail.pop(0))
        left_out += 1
    note = [f"\N{HORIZONTAL ELLIPSIS} {left_out} lines left out"] if left_out else []
    return "\n".join(line if len(line) <= limit else line[: limit - 1] + "\N{HORIZONTAL ELLIPSIS}" for line in [*head, *note, *tail])


def encodable(text: str, encoding: str | None) -> str:
    """Replaces by "?" what a stream of this encoding cannot take; an unknown encoding is taken for ASCII."""
    try:
        name = encoding or "ascii"
        return text.encode(name, "replace").decode(name)
    except LookupError:
        return text.encode("ascii", "replace").decode("ascii")

"""The bounds of values that come from users, plans and other processes: each is looked at once, where it comes in."""

from __future__ import annotations

import math
import re
from typing import Any, TypeGuard, get_args

import numpy as np

from gnnkit.errors import PlanError

# The largest of int64, which kernels work with.
LARGEST = (1 << 63) - 1
# More epochs, and batches of one, than are ever reached.
MOST_BATCHES = (1 << 48) - 1
# More threads or processes of one kind than any host has processors.
MOST_THREADS = 1 << 12
# Ten years: more than is ever waited for, and less than the system's own timers overflow at.
MOST_SECONDS = 10 * 365.25 * 86400
# Units of sizes, as graphlearn-torch reads them.
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def plain_value(value: Any) -> Any:
    """Python's number or text for one of NumPy's, also in an array without dimensions; other values, spans of time too, as they are."""
    is_one = isinstance(value, (np.generic, np.ndarray)) and not value.ndim and value.dtype.kind in "biufU"
    return value.item() if is_one else value


def is_whole(value: Any, least: float = 0, most: float = LARGEST) -> TypeGuard[int]:
    """Whether a value is a whole number from ``least`` to ``most``: NumPy's are like Python's, and true and false are none."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.timedelta64)) and least <= int(value) <= most


def is_real(value: Any) -> TypeGuard[float]:
    """Whether a value is a finite number; NumPy's are like Python's, and true and false are none."""
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, (bool, np.timedelta64))
    return is_number and bool(abs(value) < math.inf)


def whole_number(name: str, value: Any, least: int = 0, most: int = LARGEST, hint: str | None = None, *, instead: str = "") -> int:
    """A whole number as Python's own; see ``is_whole``.

    Args:
        name: What it is called.
        value: The value.
        least: The smallest that it may be.
        most: The largest.
        hint: What to do about another one.
        instead: What else may be given, for the message: "'auto' or ".

    Raises:
        PlanError: It is none of these.
    """
    value = plain_value(value)
    if not is_whole(value, least, most):
        limit = f", and at most {most}" if most != LARGEST else ""
        raise PlanError(f"{name} must be {instead}a whole number of at least {least}{limit}, got {shown(value)}", hint)
    return int(value)


def keep_whole_number(
    options: object, name: str, least: int = 0, most: int = LARGEST, hint: str | None = None, *, instead: str = ""
) -> None:
    """The same for a field of a frozen dataclass, which holds Python's own from then on.

    Raises:
        PlanError: It is none of these.
    """
    object.__setattr__(options, name, whole_number(name, getattr(options, name), least, most, hint, instead=instead))


def size_in_bytes(name: str, size: Any, hint: str = "None takes what is needed", *, least: int = 1) -> int | None:
    """A number of bytes, or a size such as "4GB", whose units are powers of 1024, in bytes; None as it is. A text has a unit.

    Args:
        name: What it is the size of, for messages.
        size: What the user said.
        hint: What to do about another value.
        least: The smallest size.

    Raises:
        PlanError: It is no size.
    """
    if size is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(I?B)?\s*", size.upper()) if isinstance(size, str) else None
    if match is not None and not (match[2] or match[3]):
        raise PlanError(f"{name}={size!r} has no unit", f"'{match[1]}GB', or '{match[1]}B' for so many bytes")
    nbytes = size if match is None else int(float(match[1]) * _UNITS[match[2]])
    if not is_whole(nbytes, least):
        raise PlanError(f"{name} must be a number of bytes or a size such as '4GB', got {shown(size)}", hint)
    return int(nbytes)


def check_flag(name: str, value: Any, *, or_none: bool = False) -> None:
    """Refuses what is neither True nor False; a text such as "no" would count as True.

    Args:
        name: The option.
        value: What the user said.
        or_none: Whether None is a value, too.

    Raises:
        PlanError: It is something else.
    """
    if not isinstance(value, (bool, np.bool_)) and not (or_none and value is None):
        raise PlanError(f"{name} must be True{', False or None' if or_none else ' or False'}, got {shown(value)}")


def check_choice(name: str, value: Any, choices: Any) -> None:
    """Refuses what is none of the texts of a ``Literal``.

    Raises:
        PlanError: It is none of them.
    """
    import difflib

    known = get_args(choices)
    *others, last = map(repr, known)
    if not isinstance(value, str) or value not in known:
        near = (difflib.get_close_matches(str(value), known, 1, 0.5) or known)[0]
        raise PlanError(f"{name} must be {', '.join(others)} or {last}, got {shown(value)}", f"for example {name}={near!r}")


def check_seconds(name: str, value: Any, least: float = 0.0) -> None:
    """Refuses what is no number of seconds from ``least`` to ten years.

    Raises:
        PlanError: It is none.
    """
    if not is_real(value) or not least <= value <= MOST_SECONDS:
        raise PlanError(f"{name} must be a number of seconds of at least {least:g}, and at most {MOST_SECONDS:g}, got {shown(value)}")


def check_text(name: str, value: Any) -> None:
    """Refuses what is no text, or one that cannot be written to a file.

    Raises:
        PlanError: It is none.
    """
    if not isinstance(value, str) or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise PlanError(f"{name} must be a text that can be written, got {shown(value)}")


def shown(value: object) -> str:
    """A value in a message: cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # a number of more digits than Python writes
        text = f"a {type(value).__name__} that is too long to be written"
    return text if len(text) <= 100 else f"{text[:97]}..."

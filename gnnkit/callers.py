"""The code that calls gnnkit: warnings point at its line, and advice speaks of its variables."""

from __future__ import annotations

import contextlib
import dis
import functools
import itertools
import os
import sys
import warnings
from collections.abc import Mapping
from concurrent import futures
from pathlib import Path
from types import FrameType
from typing import Any

from gnnkit.printable import printable

# Files of frames that are not a user's own: gnnkit's, and those of Python that stand between a user and decorated functions or mappings.
_OF_PYTHON = contextlib.__file__, functools.__file__, str(Path(futures.__file__).parent), Mapping.get.__code__.co_filename
_PASSED = (str(Path(__file__).resolve().parent) + os.sep, *_OF_PYTHON)


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Gives a warning that points at the line of a user's own code from which gnnkit was called.

    Args:
        text: What happened; control characters in it, of names in data for example, are shown as escapes.
        category: As for ``warnings.warn``.
    """
    warnings.warn(printable(text), category, stacklevel=_users_frame(sys._getframe())[1])


def name_of(value: object) -> str | None:
    """The name of a variable that holds an object in the code that called gnnkit; None where it has none there."""
    frame, _ = _users_frame(sys._getframe())
    variables: dict[str, Any] = {**frame.f_globals, **frame.f_locals}
    return next((name for name, held in variables.items() if held is value and not name.startswith("_")), None)


def unpacks_items() -> bool:
    """Whether the iterator that is made is that of a loop such as ``for x, y in loader``: the operations that follow say so."""
    frame, _ = _users_frame(sys._getframe())
    # A byte of operation and a byte of argument each; room for prefixes and caches, and no walk through all of a long file.
    operations = (dis.opname[code] for code in frame.f_code.co_code[frame.f_lasti : frame.f_lasti + 32 : 2])
    follow = itertools.islice((name for name in operations if name not in ("CACHE", "EXTENDED_ARG")), 3)
    return [*follow] == ["GET_ITER", "FOR_ITER", "UNPACK_SEQUENCE"]


def _users_frame(frame: FrameType) -> tuple[FrameType, int]:
    """The nearest frame that is not gnnkit's, else the outermost one, and how many levels it is above ``frame``, which counts as 1."""
    level = 1
    while frame.f_code.co_filename.startswith(_PASSED) and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    return frame, level

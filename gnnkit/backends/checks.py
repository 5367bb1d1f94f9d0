"""What options of backends have in common: numbers, seconds, sizes and folders that a user wrote."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from gnnkit.errors import PlanError

# Batches that one process may be given at a time.
MOST_CONCURRENT = 32
# As graphlearn-torch reads them.
_UNITS = {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}


def check_count(name: str, value: Any, least: int, *, or_auto: bool = False) -> None:
    """Refuses what is no whole number of at least ``least``.

    Raises:
        PlanError: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        auto = "'auto' or " if or_auto else ""
        raise PlanError(f"{name} must be {auto}a whole number of at least {least}, got {value!r}")


def check_seconds(name: str, value: Any, least: float) -> None:
    """Refuses what is no finite number of at least ``least``.

    Raises:
        PlanError: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < least:
        raise PlanError(f"{name} must be a number of seconds of at least {least:g}, got {value!r}")


def check_concurrency(value: Any) -> None:
    """Refuses a ``worker_concurrency`` that makes no sense.

    Raises:
        PlanError: It does not.
    """
    check_count("worker_concurrency", value, 1)
    if value > MOST_CONCURRENT:
        raise PlanError(f"worker_concurrency must be at most {MOST_CONCURRENT}, got {value}", "2 is enough for most")


def folder_or_none(name: str, value: Any) -> str | None:
    """A folder's path as text; None as it is.

    Raises:
        PlanError: It is no path.
    """
    if value is None:
        return None
    if not isinstance(value, (str, Path)) or not str(value):
        raise PlanError(f"{name} must be a folder's path, got {value!r}")
    return str(value)


def size_in_bytes(name: str, size: Any, hint: str = "None takes what is needed") -> int | None:
    """A number of bytes, or a size such as "4GB", in bytes; None as it is.

    Raises:
        PlanError: It is no size.
    """
    if size is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?B?)\s*", size.upper()) if isinstance(size, str) else None
    if match is not None and (match[2] in _UNITS or match[2] + "B" in _UNITS):
        nbytes = int(float(match[1]) * _UNITS.get(match[2], _UNITS.get(match[2] + "B", 1)))
    elif isinstance(size, int) and not isinstance(size, bool):
        nbytes = size
    else:
        nbytes = 0
    if nbytes < 1:
        raise PlanError(f"{name} must be a number of bytes or a size such as '4GB', got {size!r}", hint)
    return nbytes

"""What this machine has left, asked before a build starts rather than found out in its middle."""

from __future__ import annotations

import shutil
from pathlib import Path

from gnnkit.errors import MemoryLimitError, StoreError
from gnnkit.host import available_memory
from gnnkit.units import format_bytes

_MIN_BUDGET, _MAX_BUDGET = 64 << 20, 1 << 30
# Disk that is left alone: other programs' temporary files, and the file system's own tables.
_DISK_MARGIN = 64 << 20


def memory_budget() -> int:
    """Bytes for buffers of edges during a build: a small share of what is available, so that a build disturbs nobody."""
    return max(_MIN_BUDGET, min(_MAX_BUDGET, available_memory() // 64))


def check_memory(needed: int, what: str) -> None:
    """Refuses work that would not fit.

    Raises:
        MemoryLimitError: Says both sizes.
    """
    available = available_memory()
    if needed > available:
        raise MemoryLimitError(
            f"{what} needs about {format_bytes(needed)} of memory, {format_bytes(available)} are available",
            "close other programs, or raise the memory limit of this container",
        )


def check_disk(folder: Path, needed: int, what: str) -> None:
    """Refuses work that would fill the disk.

    Args:
        folder: An existing folder on the disk in question.
        needed: Bytes to be written.
        what: What is to be written, for the error.

    Raises:
        StoreError: Says both sizes.
    """
    free = shutil.disk_usage(folder).free
    if needed + _DISK_MARGIN > free:
        raise StoreError(
            f"{what} needs {format_bytes(needed)} of disk at {folder}, {format_bytes(free)} are free",
            "free some space, or choose another folder with store_dir=... or GNNKIT_HOME",
        )

"""What there is room for on the disk, asked before a download begins rather than found out in its middle."""

from __future__ import annotations

import shutil
from pathlib import Path

from gnnkit.errors import DatasetError
from gnnkit.units import format_bytes


def free_disk(folder: Path) -> int:
    """Bytes that may be written into ``folder``, or into the nearest one above it that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def require_disk(folder: Path, needs: dict[str, int], what: str) -> None:
    """Refuses to begin what would fill the disk.

    Args:
        folder: Where it would be written.
        needs: Bytes, by what they are for.
        what: What would be written, for the error's text.

    Raises:
        DatasetError: There is less space than all needs together.
    """
    free, total = free_disk(folder), sum(needs.values())
    if free < total:
        parts = ", ".join(f"{format_bytes(count)} {name}" for name, count in needs.items())
        raise DatasetError(
            f"{what} needs {format_bytes(total)} of disk in {folder} ({parts}), where {format_bytes(free)} are free",
            f"free {format_bytes(total - free)}, or pass root= with a folder on a larger disk",
        )

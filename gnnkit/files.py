"""Small files that are there whole or not at all."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Puts text into a file, all at once: nobody reads half of it, and a full disk or a kill leaves what was there.

    Args:
        path: The file; its folder exists.
        text: What it is to hold, as UTF-8.

    Raises:
        OSError: It cannot be written.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with beside.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise

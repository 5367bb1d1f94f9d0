"""What sampling processes wrote, for the messages of errors."""

from __future__ import annotations

from pathlib import Path

# Enough for the stacks of every thread, which a crash leaves.
_TAIL_LINES = 60
_TAIL_BYTES = 16 << 10


def tail(path: Path, lines: int = _TAIL_LINES) -> str:
    """The last lines of a log; empty where there is none.

    Args:
        path: The log.
        lines: How many at most.
    """
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - max(1, lines // _TAIL_LINES) * _TAIL_BYTES))
            text = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(text[-lines:])


def with_tail(message: str, path: Path) -> str:
    """A message, followed by the end of a log and where it lies."""
    end = tail(path)
    if not end:
        return f"{message}; its log {path} is empty"
    indented = "\n".join(f"    {line}" for line in end.splitlines())
    return f"{message}; the end of its log {path}:\n{indented}"

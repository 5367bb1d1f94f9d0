"""Writing to streams that may be terminals, pipes without a reader, or closed."""

from __future__ import annotations

import io
from typing import IO


def is_terminal(stream: IO[str]) -> bool:
    """Whether the stream is a terminal; one that is closed, detached or half-built is none."""
    try:
        return stream.isatty()
    except (ValueError, OSError, AttributeError):
        return False


def write_now(stream: IO[str], text: str) -> None:
    """Writes at once and leaves nothing in the stream's buffers.

    What stays in a buffer of ``sys.stderr`` after its reader has gone would be tried again when the interpreter ends, and
    turn a successful run into exit status 120.

    Raises:
        ValueError: The stream is closed.
        OSError: Nobody reads the stream, or it takes no more.
    """
    if type(stream) is io.TextIOWrapper and isinstance(raw := getattr(stream.buffer, "raw", None), io.RawIOBase):
        stream.flush()
        rest = memoryview(text.encode(stream.encoding, "replace"))
        while rest:
            written = raw.write(rest)
            if not written:
                raise BlockingIOError("the stream takes no more")
            rest = rest[written:]
    else:
        stream.write(text)
        stream.flush()

"""Progress on streams as plain lines, for logs; rich, which draws random numbers when it is imported, is left to ``terminal``."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable
from typing import IO

from gnnkit.printable import encodable
from gnnkit.ui.progress_model import Bar, Frame, bar_details, name_of, sentence


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


# A line is due when a stage enters a new tenth, but not more often than the first of these, and at the latest after the second.
_LEAST_GAP_S = 1.0
_LONGEST_GAP_S = 30.0


class PlainRenderer:
    """Writes a line when a stage shows up, at every tenth of it or every 30 s, and when it ends.

    Args:
        write: Takes whole lines, ending in a newline.
        encoding: What the lines must be encodable in.
        clock: Seconds; decides when a line is due.
        place: Called on the thread that begins a stage.
    """

    interval_s = 0.125

    def __init__(
        self,
        write: Callable[[str], None],
        *,
        encoding: str | None = "utf-8",
        clock: Callable[[], float] = time.monotonic,
        place: Callable[[], None] = lambda: None,
    ) -> None:
        self._write, self._encoding, self._clock = write, encoding, clock
        self._written: dict[tuple[str, str], tuple[int, float]] = {}
        self.settle = place

    def draw(self, frame: Frame) -> None:
        """Writes the lines that are due."""
        lines = [sentence(line) for line in frame.lines]
        now = self._clock()
        shown = {(bar.stage, bar.label) for bar in frame.bars}
        self._written = {key: value for key, value in self._written.items() if key in shown}
        lines += [f"{name_of(bar)}: {', '.join(bar_details(bar))}" for bar in frame.bars if self._is_due(bar, now)]
        if lines:
            self._write(encodable("".join(f"gnnkit: {line}\n" for line in lines), self._encoding))

    def close(self) -> None:
        """Forgets which stages were open."""
        self._written.clear()

    def _is_due(self, bar: Bar, now: float) -> bool:
        tenth = -1 if bar.fraction is None else math.floor(bar.fraction * 10 + 1e-9)
        before, written_at = self._written.get((bar.stage, bar.label), (-2, -math.inf))
        gap = now - written_at
        if gap < _LEAST_GAP_S or (tenth == before and gap < _LONGEST_GAP_S):
            return False
        self._written[bar.stage, bar.label] = (tenth, now)
        return True

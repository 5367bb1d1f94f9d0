"""The places where tqdm draws progress: bars on a terminal or in a notebook's cell, lines in a log."""

from __future__ import annotations

import importlib.util
import io
import math
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Protocol

from tqdm.std import tqdm

from gnnkit.events import StageState
from gnnkit.printable import clean, encodable
from gnnkit.ui.kernel import CellPort, close_widget, widget_view

# Larger counts are written as "61.9M".
_LARGE = 100_000
# Lines of a log about one stage are so far apart.
_LOGGED_EVERY_S = 5.0
# Without the bar itself: a log has no use for it.
_LOGGED = "{desc}: {percentage:.0f}% {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"
# What stands in a line: a bar of the user's that ends above ours moves all others down by one, and leaves theirs behind.
_ERASED = "\x1b[2K"
_UNCOUNTED = "{desc}: [{elapsed}{postfix}]"

Key = tuple[str, str]
Line = StageState | str


def meter(bar: StageState, encoding: str | None = "utf-8") -> dict[str, Any]:
    """The state of a stage as the arguments of tqdm's ``format_meter``, in texts that a stream of this encoding takes."""
    unit = encodable(clean(bar.unit, 20), encoding)
    return {
        "n": _whole(bar.done),
        "total": None if bar.total is None else _whole(bar.total),
        "elapsed": bar.elapsed_s,
        "rate": bar.rate,
        "prefix": encodable(clean(f"{bar.stage} {bar.label}", 80), encoding),
        "postfix": encodable(clean(bar.note, 300), encoding),
        "unit": unit if unit == "B" else f" {unit}",
        "unit_scale": unit == "B" or max(bar.done, bar.total or 0) >= _LARGE,
        "bar_format": None if bar.total is not None or bar.done else _UNCOUNTED,
        "ascii": not (encoding or "").lower().startswith("utf"),
    }


def _text(*args: Any, **facts: Any) -> str:
    """Formats a state as tqdm does, but for the blank that its "1.50s/ batches" would have with units of several letters."""
    return str(tqdm.format_meter(*args, **facts)).replace("s/ ", "s/")


def _whole(count: float) -> float:
    return int(count) if count == int(count) else count


def line_of(line: Line, encoding: str | None = "utf-8", columns: int | None = None, **options: Any) -> str:
    """A line that stays: a message, or the last state of a stage.

    Args:
        line: Either of them.
        encoding: The encoding of what takes it.
        columns: Room for a stage; its bar shrinks to fit.
        **options: For ``format_meter``, of stages with a total.
    """
    if isinstance(line, str):
        return encodable(clean(line, 400), encoding)
    facts = {**meter(line, encoding), **(options if line.total is not None else {})}
    text = _text(**facts)
    return text if columns is None or len(text) <= columns else _text(**facts, ncols=columns)


class Place(Protocol):
    """Somewhere to draw. It is used by one thread."""

    def draw(self, bars: Mapping[Key, StageState], lines: Sequence[Line]) -> None:
        """Draws.

        Args:
            bars: The stages that are open.
            lines: Messages, and stages that have ended since the last time.

        Raises:
            Exception: It cannot be drawn there any more.
        """
        ...


class StageLines:
    """Writes a line about a stage when it shows up, every few seconds, and when it ends.

    Args:
        write: Takes whole lines, ending in a newline.
        encoding: The encoding of what takes them.
    """

    def __init__(self, write: Callable[[str], None], encoding: str | None = "utf-8") -> None:
        self._write, self._encoding = write, encoding
        self._due: dict[Key, float] = {}

    def draw(self, bars: Mapping[Key, StageState], lines: Sequence[Line]) -> None:
        """Writes the lines that are due."""
        now = time.monotonic()
        due = [key for key in bars if now >= self._due.get(key, -math.inf)]
        self._due = {key: now + _LOGGED_EVERY_S if key in due else self._due[key] for key in bars}
        if lines or due:
            texts = (line_of(line, self._encoding, bar_format=_LOGGED) for line in (*lines, *(bars[key] for key in due)))
            self._write("".join(f"gnnkit: {text}\n" for text in texts))


class TerminalBars:
    """A bar for each stage at the bottom of a terminal, and the lines of those that have ended above them.

    Args:
        stream: The terminal.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream, self._encoding, self._class = stream, getattr(stream, "encoding", None), _ours(tqdm)
        self._bars: dict[Key, Any] = {}

    def draw(self, bars: Mapping[Key, StageState], lines: Sequence[Line]) -> None:
        """Takes away the bars of stages that have ended, writes the lines, and draws the other bars anew."""
        with tqdm.get_lock():  # between two of these steps, the cursor is not where others expect it
            for key in self._bars.keys() - bars.keys():
                self._bars.pop(key).close()
                self._stream.write("\r")  # from the end of a bar that was not the first
            for line in lines:
                columns = os.get_terminal_size(self._stream.fileno()).columns
                tqdm.write(_ERASED + line_of(line, self._encoding, columns), file=self._stream)
            for key, bar in bars.items():
                if key in self._bars:
                    self._bars[key].show(bar)
                else:
                    self._bars[key] = self._class(bar, self._encoding, file=self._stream, dynamic_ncols=True)


class NotebookBars:
    """A widget for each stage, in the cell in which it began; it becomes a line of text once the stage has ended.

    Args:
        port: The way to the front end.
        base: tqdm's class of widgets.
    """

    def __init__(self, port: CellPort, base: Any) -> None:
        self._port, self._class = port, _ours(base)
        self._bars: dict[Key, tuple[Any, str]] = {}

    def draw(self, bars: Mapping[Key, StageState], lines: Sequence[Line]) -> None:
        """Puts lines in the place of widgets whose stages have ended, and changes the other widgets."""
        with tqdm.get_lock():
            for line in lines:
                shown = None if isinstance(line, str) else self._bars.pop((line.stage, line.label), None)
                if shown is None:
                    self._port.write(f"{line_of(line)}\n")
                else:
                    # First the text, which a saved notebook keeps: the view of a widget that is gone is an error message.
                    self._port.display({"text/plain": line_of(line)}, shown[1], update=True)
                    tqdm.close(shown[0])
                    close_widget(shown[0].container)  # with all models of it, which tqdm's own leaves in the kernel
            for key, bar in bars.items():
                if key in self._bars:
                    self._bars[key][0].show(bar)
                else:
                    widget, place = self._class(bar, display=False), uuid.uuid4().hex
                    self._port.display(widget_view(widget.container) | {"text/plain": line_of(bar)}, place, update=False)
                    self._bars[key] = widget, place


def widget_bars() -> Any:
    """Tqdm's class of widgets; None where the front end has none (qtconsole, Spyder) or ipywidgets is missing."""
    if importlib.util.find_spec("ipywidgets") is None:  # of which tqdm would warn
        return None
    from tqdm.auto import tqdm as auto  # looks for the kernel

    return None if auto.display is tqdm.display else auto


def _ours(base: Any) -> Any:
    """A class of bars, drawn beside the user's own."""
    tqdm.get_lock()  # of the class that all bars have: one that a class below it makes would not be that of the user's bars

    class OwnBar(base):  # type: ignore[misc]
        monitor_interval = 0  # redrawn by the reporter's thread, which ends; tqdm's own would stay
        format_meter = staticmethod(_text)

        def __init__(self, bar: StageState, encoding: str | None = "utf-8", **options: Any) -> None:
            self._encoding, self._facts = encoding, meter(bar, encoding)
            super().__init__(total=bar.total, leave=False, **options)

        def show(self, bar: StageState) -> None:
            """Draws a later state of the stage."""
            self._facts = meter(bar, self._encoding)
            if bar.total is not None and bar.total != self.total:
                self.reset(bar.total)
            self.n = bar.done
            self.refresh()

        def refresh(self, nolock: bool = False, lock_args: Any = None) -> None:
            """Draws, for callers that hold the lock of all bars; tqdm's own takes it, and keeps it where drawing fails."""
            self.display()

        @property
        def format_dict(self) -> dict[str, Any]:
            """The figures of the stage, and what tqdm draws beside them."""
            return {**super().format_dict, **self._facts}

    return OwnBar


def write_now(stream: IO[str], text: str) -> None:
    """Writes at once and leaves nothing in the stream's buffers.

    What stays in a buffer of ``sys.stderr`` after its reader has gone would be tried again when the interpreter ends, and
    turn a successful run into exit status 120.

    Raises:
        ValueError: The stream is closed.
        OSError: The stream has no reader, or takes no more.
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

"""Progress as bars on a terminal, drawn by rich at the bottom of what was printed so far."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import IO

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gnnkit.printable import encodable
from gnnkit.ui.progress import Bar, Frame, ProgressLine, fitting_details, name_of, outcome, write_now

_MARKS = {"done": ("\N{CHECK MARK}", "+", "green"), "failed": ("\N{BALLOT X}", "x", "red"), "stopped": ("\N{EN DASH}", "-", "dim")}
# rich paints bars red by default, which here means an error.
_RUNNING = "cyan"
_BAR_WIDTH = 24
# A name may take this much of the line; what is below the last width shows no bar.
_NAME_SHARE = 0.4
_NO_BAR_BELOW = 48
# An error's text needs room more than its bar does.
_FAILED_BAR_FROM = 90


class Screen:
    """The last lines of one terminal, shared by every renderer that draws there.

    Writes go to the stream in one piece each. ``sys.stdout`` and ``sys.stderr`` are left as they are.

    Args:
        stream: A terminal that understands ANSI control codes.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        # rich only lays out: into its own buffer, with this stream's width, encoding and colours.
        self._console = Console(file=stream, force_terminal=True, force_jupyter=False, highlight=False, markup=False, emoji=False)
        self._lock = threading.Lock()
        self._blocks: dict[int, Sequence[RenderableType]] = {}
        self._height = 0

    @property
    def width(self) -> int:
        """Columns to draw in; the last one stays empty, where some terminals wrap."""
        return max(self._console.width - 1, 8)

    @property
    def encoding(self) -> str:
        """Encoding of the stream."""
        return self._console.encoding

    def show(self, owner: int, block: Sequence[RenderableType], lines: Sequence[RenderableType]) -> None:
        """Replaces the owner's block, one row per item; ``lines`` stay above it for good."""
        with self._lock:
            if block:
                self._blocks[owner] = block
            else:
                self._blocks.pop(owner, None)
            erase = "\r\x1b[2K" + "\x1b[1A\x1b[2K" * (self._height - 1) if self._height else ""
            rows = [row for rows in self._blocks.values() for row in rows]
            above = self._render(lines)
            below = self._render(rows).rstrip("\n")
            self._height = below.count("\n") + 1 if below else 0
            write_now(self._stream, erase + above + below)

    def _render(self, rows: Sequence[RenderableType]) -> str:
        if not rows:
            return ""
        with self._console.capture() as capture:
            self._console.print(Group(*rows), width=self.width, no_wrap=True, overflow="ellipsis", crop=True)
        return encodable(capture.get(), self.encoding)


class TerminalRenderer:
    """A bar per open stage, and a line for each that ended.

    Args:
        stream: A terminal that understands ANSI control codes; ``COLUMNS`` and ``NO_COLOR`` are respected.
    """

    interval_s = 0.125

    def __init__(self, stream: IO[str]) -> None:
        self._screen = _screen_of(stream)
        self._plain = not self._screen.encoding.lower().startswith("utf")

    def settle(self) -> None:
        """A terminal has one place only."""

    def draw(self, frame: Frame) -> None:
        """Prints the lines, and the bars below them."""
        rows: list[RenderableType] = [self._bar(bar) for bar in frame.bars]
        if frame.hidden:
            rows.append(Text(f"  and {frame.hidden} more", style="dim"))
        self._screen.show(id(self), rows, [self._line(line) for line in frame.lines])

    def close(self) -> None:
        """Takes the bars away."""
        self._screen.show(id(self), [], [])

    def _bar(self, bar: Bar) -> RenderableType:
        width = self._screen.width
        has_bar = width >= _NO_BAR_BELOW
        name = Text(name_of(bar), style="bold", no_wrap=True, overflow="ellipsis")
        name.truncate(int(width * _NAME_SHARE), overflow="ellipsis")
        bar_width = min(_BAR_WIDTH, width // 4) if has_bar else 0
        details = fitting_details(bar, width - name.cell_len - bar_width - 4, ", " if self._plain else " \N{MIDDLE DOT} ")
        row = Table.grid(padding=(0, 1))
        for _ in range(3):
            row.add_column(no_wrap=True, overflow="ellipsis")
        row.add_row(name, self._track(bar, bar_width, _RUNNING) if has_bar else "", details)
        return row

    def _track(self, bar: Bar, width: int, style: str) -> RenderableType:
        return ProgressBar(
            total=None if bar.fraction is None else 1.0,
            completed=bar.fraction or 0.0,
            width=width,
            complete_style=style,
            finished_style="green" if style == _RUNNING else style,
            pulse_style=style,
            animation_time=bar.elapsed_s,
        )

    def _line(self, line: ProgressLine) -> RenderableType:
        if line.kind == "message":
            return Text(outcome(line), no_wrap=False, overflow="fold")
        mark, ascii_mark, colour = _MARKS[line.kind]
        text = Text(no_wrap=False, overflow="fold")
        text.append(f"{ascii_mark if self._plain else mark} ", style=colour).append(name_of(line), style="bold").append(" ")
        if line.kind != "failed" or line.bar is None:
            return text.append(f"{'stopped ' if line.kind == 'stopped' else ''}{outcome(line)}", style="dim")
        error = Text(outcome(line), style="red", no_wrap=False, overflow="fold")
        if line.bar.fraction is None or self._screen.width < _FAILED_BAR_FROM:
            return text.append_text(error)
        row = Table.grid(padding=(0, 1))
        for _ in range(3):
            row.add_column()
        row.add_row(text, self._track(line.bar, _BAR_WIDTH // 2, "red"), error)
        return row


_screens: weakref.WeakValueDictionary[int, Screen] = weakref.WeakValueDictionary()
_screens_lock = threading.Lock()


def _screen_of(stream: IO[str]) -> Screen:
    """The stream's one screen: two loaders that draw at once share it. A screen keeps its stream, so ids are not reused."""
    with _screens_lock:
        screen = _screens.get(id(stream))
        if screen is None:
            screen = _screens[id(stream)] = Screen(stream)
        return screen

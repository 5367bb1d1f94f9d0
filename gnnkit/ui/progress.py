"""Progress: what follows the stages that events tell of, and has them drawn in the notebook's cell, on the terminal, or into a log."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import IO, TYPE_CHECKING

from gnnkit.events import Event, StageProgress, rank_of_stage
from gnnkit.ui.kernel import CellPort, renders_live, running_shell
from gnnkit.ui.options import resolve_progress

if TYPE_CHECKING:
    from gnnkit.ui.bars import Key, Line, Place

logger = logging.getLogger(__name__)
# Stages shorter than this are not worth a reader's eye, unless they fail.
SHOWN_AFTER_S = 0.5
_DRAWN_EVERY_S = 0.125
_MAX_BARS = 8
_MAX_WAITING_LINES = 1000
# Who has the last word waits so long for it to be drawn, since a notebook's cell may end with it.
_LAST_WORD_S = 10.0


class ProgressReporter:
    """An ``EventSink`` that draws: call it with events, from any thread of this process, and ``close()`` it at the end.

    All drawing happens on a thread that lives while stages are open. So a slow terminal does not slow down who reports, and an interrupt
    of the main thread never breaks into tqdm, which would keep its lock. Only a last word (a message, or the end of the last open stage)
    is waited for. Where drawing fails (a closed stream, a vanished terminal) it ends and the run goes on. Events in forked children are
    ignored: the screen is the parent's.

    Args:
        make_place: Makes the place to draw in, once there is something to draw; None draws nothing.
        settle: Called on the thread in which a stage begins: that is where its drawing belongs.
        epochs: Whether to draw the stage "epoch".
    """

    def __init__(self, make_place: Callable[[], Place] | None, settle: Callable[[], None] = lambda: None, *, epochs: bool = False) -> None:
        self._make_place, self._settle, self._epochs = make_place, settle, epochs
        self._place: Place | None = None
        self._process = os.getpid()
        # Of what is below. Reentrant, because the garbage collector may end a stage on a thread that holds it.
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._open: dict[Key, StageProgress] = {}
        self._lines: deque[Line] = deque(maxlen=_MAX_WAITING_LINES)
        self._last_failure = ""
        self._is_slow, self._is_over = False, make_place is None
        _reporters.add(self)

    def __call__(self, event: Event) -> None:
        """Takes note of an event."""
        if self._is_over or os.getpid() != self._process or (event.stage == "epoch" and event.kind != "message" and not self._epochs):
            return
        if event.kind in ("start", "message"):
            self._settle()
        with self._changed:
            self._take(event)
            self._have_drawn()

    def close(self) -> None:
        """Draws the final state and stops; later events are ignored. May be called again."""
        if self._is_over or os.getpid() != self._process:
            return
        with self._changed:
            now = time.monotonic()
            for stage in [*self._open.values()]:
                if now - stage.first.time_s >= SHOWN_AFTER_S:
                    self._ended(stage, now, "stopped")
            self._open.clear()
            self._have_drawn()
            self._is_over = True

    def __enter__(self) -> ProgressReporter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _take(self, event: Event) -> None:
        key = (event.stage, event.label)
        if event.kind == "message":
            self._lines.append(event.text)
        elif event.kind == "start":
            if not self._open:
                self._last_failure = ""
            self._open[key] = StageProgress(event)
        elif event.kind == "progress":
            # A reporter that is made during a stage sees the stage from here on.
            self._open.setdefault(key, StageProgress(event)).advance(event)
        else:
            stage = self._open.pop(key, StageProgress(event))
            if event.done or event.total is not None:
                stage.advance(event)
            # Epochs are only drawn where they were asked for, and then each leaves its line.
            is_short = event.time_s - stage.first.time_s < SHOWN_AFTER_S and event.stage != "epoch"
            name = event.text.partition(":")[0]
            if event.kind == "end" or name == "GeneratorExit":
                # Leaving a loop early closes its generator: the reader's own doing, and no news.
                if not is_short:
                    self._ended(stage, event.time_s, event.text if event.kind == "end" else "stopped")
            else:
                # The error itself follows and has the whole text. It passes through every stage around it: one line names its class.
                named = f"failed: {name}" if event.text != self._last_failure else "failed"
                self._last_failure = event.text
                self._ended(stage, event.time_s, "interrupted" if name == "KeyboardInterrupt" else named)

    def _ended(self, stage: StageProgress, now: float, note: str) -> None:
        self._lines.append(replace(stage.state(now, final=True), note=note))

    def _have_drawn(self) -> None:
        """Has the thread draw, and waits for it where nothing else may follow."""
        if self._thread is None and (self._open or self._lines):
            self._thread = threading.Thread(target=self._run, name="gnnkit-progress", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # no new threads while the interpreter ends, or beyond a limit: draw from here
                self._thread = None
                self._draw()
        if self._thread is not None and not self._open:
            self._changed.notify_all()
            if self._lines and threading.current_thread() is not self._thread and not self._is_slow:
                self._is_slow = not self._changed.wait_for(lambda: self._thread is None or bool(self._open), _LAST_WORD_S)

    def _run(self) -> None:
        while self._draw():
            with self._changed:
                self._changed.wait_for(lambda: not self._open, _DRAWN_EVERY_S)

    def _draw(self) -> bool:
        """Draws what there is; whether there is anything left to draw."""
        now = time.monotonic()
        with self._changed:
            lines = [*self._lines]
            self._lines.clear()
            shown = [(key, stage) for key, stage in [*self._open.items()] if now - stage.first.time_s >= SHOWN_AFTER_S]
            shown.sort(key=lambda item: (rank_of_stage(item[0][0]), item[1].first.time_s))
            bars = {key: stage.state(now) for key, stage in shown[:_MAX_BARS]}
        try:
            if lines or bars:
                self._place = self._place or self._make_place()  # type: ignore[misc]
                self._place.draw(bars, lines)
        except Exception:  # whatever a stream, terminal or front end raises: progress is not worth a run
            self._is_over = True
            logger.debug("progress is no longer drawn", exc_info=True)
        with self._changed:
            if self._is_over or not (self._open or self._lines or bars):
                self._thread = None
            self._changed.notify_all()
            return self._thread is not None


_reporters: weakref.WeakSet[ProgressReporter] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Ends all drawing before the interpreter takes the streams away."""
    for reporter in [*_reporters]:
        reporter.close()


def make_sink(progress: bool | str = "auto") -> ProgressReporter:
    """Makes an ``EventSink`` that draws where it is called: in the notebook's cell, on the terminal, or into a log.

    Args:
        progress: "auto" draws all stages but "epoch", True draws that one too, False nothing. ``gnnkit.set_options(progress=...)`` and the
            environment variable ``GNNKIT_PROGRESS`` say the same: see ``resolve_progress``.

    Raises:
        PlanError: A value is something else.
    """
    choice = resolve_progress(progress)
    shell = running_shell()
    # A process without a console (pythonw, some services) has no stderr at all.
    if choice is False or (shell is None and sys.stderr is None):
        return ProgressReporter(None)
    if shell is None:
        return ProgressReporter(partial(_on_stream, sys.stderr), epochs=choice is True)
    port = CellPort(shell)
    return ProgressReporter(partial(_in_notebook, port, is_watched=renders_live(shell)), port.settle, epochs=choice is True)


def _on_stream(stream: IO[str]) -> Place:
    from gnnkit.ui.bars import StageLines, TerminalBars, write_now  # tqdm

    try:
        # A terminal that cannot move its cursor gets lines.
        bars = stream.isatty() and os.environ.get("TERM", "").lower() not in ("", "dumb", "unknown")
    except (ValueError, OSError, AttributeError):  # closed, detached or half-built
        bars = False
    return TerminalBars(stream) if bars else StageLines(partial(write_now, stream), getattr(stream, "encoding", None))


def _in_notebook(port: CellPort, *, is_watched: bool) -> Place:
    from gnnkit.ui.bars import NotebookBars, StageLines, widget_bars  # tqdm

    bars = widget_bars() if is_watched else None
    return StageLines(port.write) if bars is None else NotebookBars(port, bars)

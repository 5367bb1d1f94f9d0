"""The drawing of progress: how it is drawn where it is called, and the sink between those who report often and what draws seldom."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import IO, Any, Protocol

from gnnkit.events import Event
from gnnkit.ui.kernel import CellPort, renders_live, renders_widgets, running_shell
from gnnkit.ui.options import RendererName, resolve_progress
from gnnkit.ui.progress_model import Frame, ProgressModel
from gnnkit.ui.streams import PlainRenderer, is_terminal, write_now

logger = logging.getLogger(__name__)
# Without news, open stages are drawn again this often: the time they have taken goes on.
_REDRAW_EVERY_S = 1.0
_MAX_PER_SECOND = 10


class Renderer(Protocol):
    """Draws frames somewhere. Calls never overlap; they come from any thread.

    Attributes:
        interval_s: Least time between two frames; 0.1 or more.
    """

    interval_s: float

    def settle(self) -> None:
        """A stage begins in the calling thread: the place to look where its drawing belongs."""
        ...

    def draw(self, frame: Frame) -> None:
        """Draws a frame; raising anything ends all drawing, and nothing else."""
        ...

    def close(self) -> None:
        """Releases what was taken; the last frame stays as it is."""
        ...


class ProgressReporter:
    """An ``EventSink`` that draws: call it with events, from any thread of this process, and ``close()`` it at the end.

    Drawing happens on a background thread that lives while stages are open, so that a slow terminal does not slow down who
    reports; only a last word (a message, or the end of the last open stage) is drawn by whoever has it. A renderer that
    fails (a closed stream, a vanished terminal) is dropped and the run goes on. Events in forked children are ignored: the
    screen is the parent's.

    Args:
        renderer: Draws the frames.
        epochs: Whether to draw the stage "epoch".
        clock: Seconds, as ``Event.time_s`` counts them.
        background: Whether to draw on a thread; without one, frames are drawn only when events come.
    """

    def __init__(
        self, renderer: Renderer, *, epochs: bool = False, clock: Callable[[], float] = time.monotonic, background: bool = True
    ) -> None:
        self.renderer = renderer
        self._drawing_thread = _RenderThread(renderer, ProgressModel(epochs=epochs), clock, background=background)
        # Also runs when the interpreter ends, so that lines still waiting are not lost.
        self._finalizer = weakref.finalize(self, self._drawing_thread.close)

    def __call__(self, event: Event) -> None:
        """Takes note of an event; returns at once."""
        self._drawing_thread.feed(event)

    def close(self) -> None:
        """Draws the final state and stops; later events are ignored. May be called again."""
        self._finalizer()

    def __enter__(self) -> ProgressReporter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class _RenderThread:
    """The working half of a sink, without a reference to it, so that a forgotten sink can be collected."""

    def __init__(self, renderer: Renderer, model: ProgressModel, clock: Callable[[], float], *, background: bool) -> None:
        self._renderer, self._model, self._clock, self._background = renderer, model, clock, background
        self._owner_pid = os.getpid()
        # Two locks: reporting needs the model only and never waits for a terminal. Reentrant, because the garbage collector
        # may finish a stage, or a whole sink, on a thread that holds them.
        self._model_lock = threading.RLock()
        self._draw_lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._woken = threading.Event()
        self._drawing = False
        self._broken = False
        self._closed = False
        self._dirty = False
        self._drawn_at: deque[float] = deque(maxlen=_MAX_PER_SECOND)
        self._shown: frozenset[tuple[str, str]] = frozenset()

    def feed(self, event: Event) -> None:
        if self._closed or self._broken or os.getpid() != self._owner_pid:
            return
        if event.kind in ("start", "message"):
            self._guard(self._renderer.settle)
        with self._model_lock:
            if not self._model.feed(event):
                return
            self._dirty = True
            settled = self._model.idle and self._model.has_lines
            waits = not self._model.idle or self._model.has_lines
        if settled or not self._background:
            # The last word is drawn before the caller goes on: a notebook cell may end with this very line.
            self.tick(settled=settled)
        if waits and self._background:
            self._start_thread()

    def tick(self, *, settled: bool = False, force: bool = False) -> float | None:
        """Draws if it is time to, and if there is anything new.

        Args:
            settled: Nothing runs, so this may be the last word: draw at once, as far as ten frames a second allow.
            force: Draw at once in any case.

        Returns:
            Seconds until the next frame may be drawn, or None if nothing is left to draw.
        """
        with self._draw_lock:
            if self._broken or self._drawing:
                return None
            now = self._clock()
            wait = self._wait(now, 0.0 if settled else self._renderer.interval_s)
            if wait > 0 and not force:
                return wait
            with self._model_lock:
                if self._model.idle and not self._dirty and not self._shown:
                    return None
                dirty, self._dirty = self._dirty, False
                frame = self._model.frame(now)
            shown = frozenset((bar.stage, bar.label) for bar in frame.bars)
            aged = bool(shown) and self._wait(now, _REDRAW_EVERY_S) <= 0
            if frame.lines or shown != self._shown or (shown and dirty) or aged:
                self._draw(frame, shown, now)
            return self._renderer.interval_s

    def _wait(self, now: float, gap: float) -> float:
        """Seconds to go until there is a gap after the last frame, and ten frames do not come within a second."""
        if not self._drawn_at:
            return 0.0
        crowded = self._drawn_at[0] + 1.0 - now if len(self._drawn_at) == _MAX_PER_SECOND else 0.0
        return max(self._drawn_at[-1] + gap - now, crowded)

    def _draw(self, frame: Frame, shown: frozenset[tuple[str, str]], now: float) -> None:
        self._drawn_at.append(now)
        self._shown = shown
        self._drawing = True
        try:
            self._guard(lambda: self._renderer.draw(frame))
        finally:
            self._drawing = False

    def close(self) -> None:
        if os.getpid() != self._owner_pid:
            return
        with self._model_lock:
            if self._closed:
                return
            self._closed = True
            self._model.stop(self._clock())
            self._dirty = True
        self._woken.set()
        self.tick(force=True)
        if not self._broken:
            self._guard(self._renderer.close)

    def _start_thread(self) -> None:
        with self._model_lock:
            if self._thread is not None or self._closed:
                return
            self._thread = threading.Thread(target=self._run, name="gnnkit-progress", daemon=True)
            thread = self._thread
        try:
            thread.start()
        except RuntimeError:  # no new threads while the interpreter ends, or beyond a limit: draw from here
            with self._model_lock:
                self._thread = None
            self.tick()

    def _run(self) -> None:
        while True:
            wait = self.tick()
            with self._model_lock:
                if self._closed or self._broken or (wait is None and not self._dirty and self._model.idle):
                    self._thread = None
                    return
            self._woken.wait(self._renderer.interval_s if wait is None else wait)

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:  # whatever a stream, terminal or front end raises: progress is not worth a run
            self._broken = True
            logger.debug("progress is no longer drawn", exc_info=True)


class SilentSink:
    """An ``EventSink`` that draws nothing, for ``progress=False``."""

    def __call__(self, event: Event) -> None:
        """Ignores the event."""

    def close(self) -> None:
        """Does nothing."""

    def __enter__(self) -> SilentSink:
        return self

    def __exit__(self, *exc_info: object) -> None:
        return None


def make_sink(progress: bool | str = "auto", *, stream: IO[str] | None = None) -> ProgressReporter | SilentSink:
    """Makes an ``EventSink`` that draws where it is called: in the notebook cell, on the terminal, or into a log.

    Args:
        progress: True or "auto" draws all stages but "epoch"; "epoch" draws that one too; False or "off" draws nothing;
            "widget", "html", "text" (bars) and "plain" (lines) choose how. ``gnnkit.set_options(progress=...)`` and the
            environment variable ``GNNKIT_PROGRESS`` take the same words: "off" in any of the three is off, and the
            environment's renderer comes first.
        stream: Draw there, as bars if it is a terminal; None is the notebook, or ``sys.stderr`` outside of one.

    Raises:
        PlanError: A value is none of these words.
    """
    choice = resolve_progress(progress)
    shell = running_shell() if stream is None else None
    target = stream if stream is not None else sys.stderr
    # A process without a console (pythonw, some services) has no stderr at all.
    if not choice.enabled or (shell is None and target is None):
        return SilentSink()
    renderer = _notebook_renderer(shell, choice.renderer) if shell is not None else _stream_renderer(target, choice.renderer)
    return ProgressReporter(renderer, epochs=choice.epochs)


def _notebook_renderer(shell: Any, wanted: RendererName | None) -> Renderer:
    from gnnkit.ui.notebook import HtmlRenderer, WidgetRenderer

    port = CellPort(shell)
    if wanted is None:
        wanted = "plain" if not renders_live(shell) else "widget" if renders_widgets(shell) else "html"
    if wanted == "widget" and importlib.util.find_spec("ipywidgets") is not None:
        return WidgetRenderer(port)
    # A notebook has no cursor to move: bars of text become HTML.
    return PlainRenderer(port.write, place=port.settle) if wanted == "plain" else HtmlRenderer(port)


def _stream_renderer(stream: IO[str], wanted: RendererName | None) -> Renderer:
    terminal = is_terminal(stream)
    # A terminal that cannot move its cursor gets lines, whatever was wished for.
    capable = not terminal or os.environ.get("TERM", "").lower() not in ("", "dumb", "unknown")
    if capable and wanted != "plain" and (terminal or wanted == "text"):
        from gnnkit.ui.terminal import TerminalRenderer  # rich

        return TerminalRenderer(stream)

    return PlainRenderer(partial(write_now, stream), encoding=getattr(stream, "encoding", None) or "utf-8")

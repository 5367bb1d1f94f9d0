"""Progress: the stages that events tell of, the sink between those who report often and what draws seldom, and plain lines for logs."""

from __future__ import annotations

import importlib.util
import io
import logging
import math
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, Literal, Protocol

from gnnkit.events import STAGES, Event, StageProgress, StageState
from gnnkit.printable import clean, encodable
from gnnkit.ui.kernel import CellPort, renders_live, renders_widgets, running_shell
from gnnkit.ui.options import RendererName, resolve_progress
from gnnkit.units import format_duration, format_percent, format_quantity, format_rate, format_short


def name_of(item: Bar | ProgressLine) -> str:
    """The stage and what it works on: "ingest ogbn-products"."""
    return clean(f"{item.stage} {item.label}", 80)


def percent_of(bar: Bar) -> str | None:
    """The finished share of a stage in percent, as a page has it; None where no total is known."""
    return None if bar.fraction is None else f"{bar.fraction * 100:.1f}"


def bar_details(bar: Bar) -> list[str]:
    """Facts about an open stage, in the order in which they are printed.

    With a total: percent, amounts, rate and time left; without one: amount, rate and time spent. What else was said of it comes last.
    """
    if bar.fraction is None or bar.total is None:
        amounts = [format_quantity(bar.done, clean(bar.unit, 20))] if bar.done > 0 else []
        return [*amounts, *_rate(bar), format_duration(bar.elapsed_s), *_note(bar)]
    return [
        format_percent(bar.fraction),
        _amounts(bar.done, bar.total, bar.unit),
        *_rate(bar),
        *([f"{format_duration(max(math.ceil(bar.eta_s), 1))} left"] if bar.eta_s is not None else []),
        *_note(bar),
    ]


def fitting_details(bar: Bar, width: int, separator: str) -> str:
    """As much of ``bar_details`` as fits: the amounts go first, then the rate, and the percentage last."""
    details = bar_details(bar)
    # Who watches a narrow bar wants to know how far it is and how long it takes.
    for drop in (None, 1, 1):
        if drop is not None and len(details) > drop:
            details.pop(drop)
        if len(joined := separator.join(details)) <= width:
            return joined
    return details[0] if details and len(details[0]) <= width else ""


def outcome(line: ProgressLine) -> str:
    """Describes a finished stage: "61.9M edges in 14 s, 4.42M edges/s", its own summary, or how far it got."""
    bar = line.bar
    if bar is None:
        return clean(line.text, 400)
    spent = format_duration(bar.elapsed_s)
    amount = format_quantity(bar.done, clean(bar.unit, 20)) if bar.done > 0 else ""
    if line.kind == "done":
        amount = clean(line.text, 200) or amount
        return ", ".join([f"{amount} in {spent}" if amount else spent, *([] if line.text else _rate(bar))])
    reached = amount if bar.fraction is None else format_percent(bar.fraction)
    where = f"at {reached} after {spent}" if reached else f"after {spent}"
    return f"{where}: {clean(line.text, 300)}" if line.text else where


def sentence(line: ProgressLine) -> str:
    """A line that stands alone, in plain text: "ingest ogbn-products: failed at 45 % after 6.3 s: DatasetError"."""
    if line.kind == "message":
        return outcome(line)
    if line.kind == "done":
        return f"{name_of(line)}: {outcome(line)}"
    return f"{name_of(line)}: {line.kind} {outcome(line)}"


def _amounts(done: float, total: float, unit: str) -> str:
    whole = format_quantity(total, clean(unit, 20))
    part = format_quantity(min(done, total), "B") if unit == "B" else format_short(min(done, total))
    # "0.31 GB of 1.48 GB" repeats its unit unless it is the same one.
    if unit == "B" and part.split()[-1:] == whole.split()[-1:]:
        part = part.split()[0]
    return f"{part} of {whole}"


def _note(bar: Bar) -> list[str]:
    return [clean(bar.note, 80)] if bar.note else []


def _rate(bar: Bar) -> list[str]:
    few = bar.unit != "B" and (bar.done if bar.total is None else bar.total) < _FEW
    return [] if bar.rate is None or few else [format_rate(bar.rate, clean(bar.unit, 20))]


# Of fewer things than this (kernels, processes, parts) it says more how many are done than how many are done in a second.
_FEW = 100


# Stages shorter than this are not worth a reader's eye, unless they fail.
SHOWN_AFTER_S = 0.5
# Without news for this long, a rate begins to fall.
_STALLED_AFTER_S = 3.0
_MAX_BARS = 8
_MAX_WAITING_LINES = 1000

LineKind = Literal["done", "failed", "stopped", "message"]


@dataclass(frozen=True, slots=True)
class Bar:
    """An open stage at one instant.

    Attributes:
        stage: As in the event.
        label: As in the event.
        unit: As in the event.
        done: Units finished.
        total: Units expected, or None.
        fraction: Finished share within [0, 1], or None where no total is known.
        rate: Units per second of late, or None where too little is known.
        eta_s: Seconds to go at that rate, or None.
        elapsed_s: Seconds since the stage began.
        note: What else was last said of it, such as a loss.
    """

    stage: str
    label: str
    unit: str
    done: float
    total: float | None
    fraction: float | None
    rate: float | None
    eta_s: float | None
    elapsed_s: float
    note: str = ""

    @classmethod
    def of(cls, stage: StageState, now: float, *, final: bool = False) -> Bar:
        """The stage at ``now`` (``time.monotonic()``); ``final`` is its last state, whose rate is that of the whole stage."""
        done = max(stage.done, 0.0) if math.isfinite(stage.done) else 0.0
        total = stage.total if stage.total is not None and math.isfinite(stage.total) and stage.total > 0 else None
        until = now if final or now - stage.heard_s > _STALLED_AFTER_S else stage.heard_s
        span, gain = until - stage.since[0], done - stage.since[1]
        rate = gain / span if span >= SHOWN_AFTER_S and gain > 0 else None
        rate = rate or None  # of a gain so small that nothing is left of it
        remaining = None if total is None or final else max(total - done, 0.0)
        return cls(
            stage=stage.stage,
            label=stage.label,
            unit=stage.unit,
            done=done,
            total=total,
            fraction=None if total is None else min(done / total, 1.0),
            rate=rate,
            eta_s=None if rate is None or remaining is None or remaining == 0 else remaining / rate,
            elapsed_s=max(now - stage.started_s, 0.0),
            note=stage.note,
        )


@dataclass(frozen=True, slots=True)
class ProgressLine:
    """Something that stays: a finished stage or a message.

    Attributes:
        kind: "done", "failed", "stopped" (abandoned by its owner, which is no error) or "message".
        stage: The stage; messages have one too.
        label: As in the event.
        text: A message's line, the class of a failure's error, or an optional summary of what was done.
        bar: The stage's last state; None for messages.
    """

    kind: LineKind
    stage: str
    label: str
    text: str
    bar: Bar | None


@dataclass(frozen=True, slots=True)
class Frame:
    """The bars and lines to draw at one moment.

    Attributes:
        bars: Open stages that are worth showing, in the order of ``STAGES``.
        hidden: How many more are open than ``bars`` holds.
        lines: Lines that came since the frame before.
    """

    bars: tuple[Bar, ...]
    hidden: int
    lines: tuple[ProgressLine, ...]


class ProgressModel:
    """Follows the events of any number of stages that are open at once. Not thread-safe: its owner locks.

    Args:
        epochs: Whether to follow the stage "epoch".
    """

    def __init__(self, *, epochs: bool = False) -> None:
        self._epochs = epochs
        self._open: dict[tuple[str, str], StageProgress] = {}
        self._lines: deque[ProgressLine] = deque(maxlen=_MAX_WAITING_LINES)
        self._last_failure = ""

    @property
    def idle(self) -> bool:
        """Whether no stage is open."""
        return not self._open

    @property
    def has_lines(self) -> bool:
        """Whether lines wait for the next frame."""
        return bool(self._lines)

    def feed(self, event: Event) -> bool:
        """Takes one event; returns whether it may change what there is to draw."""
        if event.kind == "message":
            self._lines.append(ProgressLine("message", event.stage, event.label, event.text, None))
            return True
        if event.stage == "epoch" and not self._epochs:
            return False
        key = (event.stage, event.label)
        if event.kind == "start":
            if not self._open:
                self._last_failure = ""
            self._open[key] = StageProgress(event)
        elif event.kind == "progress":
            # A sink that is made during a stage sees the stage from here on.
            self._open.setdefault(key, StageProgress(event)).advance(event)
        else:
            self._end(self._open.pop(key, StageProgress(event)), event)
        return True

    def stop(self, now: float) -> None:
        """Ends every open stage as abandoned."""
        for stage in [*self._open.values()]:
            if now - stage.first.time_s >= SHOWN_AFTER_S:
                self._add("stopped", stage, now, "")
        self._open.clear()

    def frame(self, now: float) -> Frame:
        """Returns the bars and lines to draw at ``now`` (``time.monotonic()``); each line is returned once."""
        shown = [stage for stage in self._open.values() if now - stage.first.time_s >= SHOWN_AFTER_S]
        shown.sort(key=lambda stage: (rank_of_stage(stage.first.stage), stage.first.time_s))
        lines = tuple(self._lines)
        self._lines.clear()
        return Frame(tuple(Bar.of(stage.state(), now) for stage in shown[:_MAX_BARS]), max(len(shown) - _MAX_BARS, 0), lines)

    def _end(self, stage: StageProgress, event: Event) -> None:
        if event.done or event.total is not None:
            stage.advance(event)
        # Epochs are only followed where they were asked for, and then each leaves its line.
        short = event.time_s - stage.first.time_s < SHOWN_AFTER_S and event.stage != "epoch"
        if event.kind == "end":
            if not short:
                self._add("done", stage, event.time_s, event.text)
        elif event.text.startswith("GeneratorExit"):
            # Leaving a loop early closes its generator: the reader's own doing, and no news.
            if not short:
                self._add("stopped", stage, event.time_s, "")
        else:
            # The error itself follows and has the whole text. It passes through every stage around it: one line names its class.
            name = "" if event.text == self._last_failure else event.text.partition(":")[0]
            self._last_failure = event.text
            self._add("failed", stage, event.time_s, "interrupted" if name == "KeyboardInterrupt" else name)

    def _add(self, kind: LineKind, stage: StageProgress, now: float, text: str) -> None:
        self._lines.append(ProgressLine(kind, stage.first.stage, stage.first.label, text, Bar.of(stage.state(final=True), now, final=True)))


def rank_of_stage(stage: str) -> int:
    """Returns the position of a stage in the order of a run."""
    return STAGES.index(stage) if stage in STAGES else len(STAGES)


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
    reports; only a last word (a message, or the end of the last open stage) is drawn by the thread that has it. A renderer that
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
    from gnnkit.ui.notebook import HtmlRenderer, WidgetRenderer  # jinja2

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

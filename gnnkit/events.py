"""The one stream of events that every long operation reports to, and that ``gnnkit.ui`` draws.

A producer opens a stage, advances it and lets the ``with`` block end it::

    with Stage(events, "ingest", total=num_edges, unit="edges") as stage:
        for chunk in chunks:
            ...
            stage.advance(len(chunk))

Producers report as often as they like: renderers decide how often to draw. Events are plain values: they are compared,
pickled and sent between processes as they are.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from gnnkit.errors import note_interrupt

EventKind = Literal["start", "progress", "end", "fail", "message"]
# Stages in the order in which a run meets them; renderers list them in this order.
STAGES = ("download", "ingest", "quantize", "partition", "compile", "start", "import", "epoch", "train")


def rank_of_stage(stage: str) -> int:
    """Returns the position of a stage in the order of a run."""
    return STAGES.index(stage) if stage in STAGES else len(STAGES)


@dataclass(slots=True, unsafe_hash=True)  # not frozen: one is made for every batch, in a third of the time; it does not change
class Event:
    """Something that happened in a stage.

    Attributes:
        kind: "start", "progress", "end" and "fail" bracket a stage; "message" is a line for the reader.
        stage: A name of ``STAGES``, or any other short word.
        label: What the stage works on ("ogbn-products", "part 1 of 4").
        done: Units finished so far.
        total: Units expected, or None where that is unknown.
        unit: "B" for bytes, otherwise a plural noun ("edges", "batches").
        text: For "message", the line; for "progress" what else there is to say, such as a loss; for "end" an optional summary; for "fail",
            the error's first line.
        time_s: ``time.monotonic()`` when the event was made.
    """

    kind: EventKind
    stage: str
    label: str = ""
    done: float = 0.0
    total: float | None = None
    unit: str = ""
    text: str = ""
    time_s: float = field(default_factory=time.monotonic)


EventSink = Callable[[Event], None]


def ignore_events(event: Event) -> None:
    """An ``EventSink`` that draws nothing."""


class Stage:
    """A bracket around one stage: emits "start" on entry, then "progress", then "end" or "fail".

    Args:
        events: Where events go.
        stage: See ``Event.stage``.
        label: See ``Event.label``.
        total: See ``Event.total``.
        unit: See ``Event.unit``.
    """

    def __init__(self, events: EventSink, stage: str, *, label: str = "", total: float | None = None, unit: str = "") -> None:
        self._events = events
        self._stage, self._label, self._unit = stage, label, unit
        self.total = total
        self.done = 0.0
        self.summary = ""

    def __enter__(self) -> Stage:
        try:
            self._emit("start")
        except BaseException as error:  # an interrupt while it was drawn; without a block nothing else ends the stage
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: object) -> None:
        if exc is None:
            self._emit("end", self.summary)
        else:
            note_interrupt(exc, self._progress())
            name = exc_type.__name__ if exc_type else "error"
            self._emit("fail", f"{name}: {exc}".splitlines()[0])

    def advance(self, count: float = 1.0, text: str = "") -> None:
        """Reports ``count`` more finished units, and what else there is to say of the stage."""
        self.done += count
        self._emit("progress", text)

    def update(self, done: float, total: float | None = None) -> None:
        """Reports ``done`` finished units in all, and a new ``total`` if one is given."""
        self.done = done
        self.total = self.total if total is None else total
        self._emit("progress")

    def message(self, text: str) -> None:
        """Shows one line to the reader."""
        self._emit("message", text)

    def _progress(self) -> str:
        """Returns the stage's progress in words: "epoch 3 at 12 of 193 batches"."""
        amount = f"{self.done:,.0f}" + (f" of {self.total:,.0f}" if self.total is not None else "")
        return f"{self._stage} {self._label}".rstrip() + (f" at {amount} {self._unit}".rstrip() if self.done else "")

    def _emit(self, kind: EventKind, text: str = "") -> None:
        self._events(Event(kind, self._stage, self._label, self.done, self.total, self._unit, text))


# The rate of a stage is the mean over this much of the past: long enough to be calm, short enough to follow a change.
_RATE_WINDOW_S = 15.0
_SAMPLE_EVERY_S = 0.2
# Of a shorter time nothing is said.
_LEAST_S = 0.5
# Without news for this long, a rate begins to fall.
_STALLED_AFTER_S = 3.0
_ENDS: dict[str, Literal["done", "failed"]] = {"end": "done", "fail": "failed"}


@dataclass(frozen=True)
class StageState:
    """A stage at one moment.

    Attributes:
        stage: "download", "ingest", "partition", "compile", "start", "epoch" and the like.
        label: What it works on.
        state: "running", "done" or "failed".
        done: Units finished.
        total: Units expected; None where that is unknown.
        unit: "B" for bytes, otherwise a plural noun.
        text: A summary of its end ("abandoned", "stopped"), or its error's first line; often "".
        note: What else was last said of it while it runs, such as a loss.
        started_s: ``time.monotonic()`` when it began.
        elapsed_s: Seconds since then, or until it ended.
        rate: Units per second of late, and of all of it once it has ended; None where too little is known.
    """

    stage: str
    label: str
    state: Literal["running", "done", "failed"]
    done: float
    total: float | None
    unit: str
    text: str
    note: str
    started_s: float
    elapsed_s: float
    rate: float | None

    @property
    def fraction(self) -> float | None:
        """The finished share of it, 0 to 1; None where that is unknown."""
        if self.total is None:
            return 1.0 if self.state == "done" else None
        return min(1.0, self.done / self.total)

    @property
    def eta_s(self) -> float | None:
        """Seconds to go at its rate; None where that is unknown, or nothing is left."""
        left = 0.0 if self.total is None else self.total - self.done
        return left / self.rate if self.rate is not None and left > 0 else None


class StageProgress:
    """Follows the events of one stage. Not thread-safe: its owner locks.

    Args:
        event: The first of them.

    Attributes:
        first: The first.
        last: The last.
    """

    def __init__(self, event: Event) -> None:
        self.first = self.last = event
        self._samples = deque([_sample(event)])
        self._began = self._samples[0]

    def advance(self, event: Event) -> None:
        """Takes the next event."""
        if event.done < self.last.done:  # another epoch: its rate is its own
            self._samples.clear()
        self.last = event
        if not self._samples or event.time_s - self._samples[-1][0] >= _SAMPLE_EVERY_S:
            self._samples.append(_sample(event))
        # The oldest sample is the last one before the window, so that a pause does not empty it.
        while len(self._samples) > 1 and self._samples[1][0] <= event.time_s - _RATE_WINDOW_S:
            self._samples.popleft()

    def state(self, now: float | None = None, *, final: bool = False) -> StageState:
        """Returns the state.

        Args:
            now: ``time.monotonic()``; of a stage that has ended, the state is that of its end.
            final: Whether it is the last state, whose rate is that of the whole stage.
        """
        first, last, end = self.first, self.last, _ENDS.get(self.last.kind)
        now = last.time_s if end else time.monotonic() if now is None else now
        is_over = final or end is not None
        done = max(_finite(last.done), 0.0)
        total = max(_finite(last.total or 0.0), 0.0) or None
        since = self._began if is_over else self._samples[0]
        until = now if is_over or now - last.time_s > _STALLED_AFTER_S else last.time_s
        rate = max(done - since[1], 0.0) / (until - since[0]) if until - since[0] >= _LEAST_S else 0.0
        text, note = last.text if end else "", last.text if last.kind == "progress" else ""
        elapsed_s = max(now - first.time_s, 0.0)
        return StageState(
            last.stage, last.label, end or "running", done, total, last.unit, text, note, first.time_s, elapsed_s, rate or None
        )


def _sample(event: Event) -> tuple[float, float]:
    return event.time_s, _finite(event.done)


def _finite(count: float) -> float:
    return count if math.isfinite(count) else 0.0

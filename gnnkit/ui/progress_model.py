"""The progress that events tell of: open stages, lines of finished ones, and their words. Draws nothing."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal

from gnnkit.events import STAGES, Event, StageProgress, StageState
from gnnkit.printable import clean
from gnnkit.units import format_duration, format_percent, format_quantity, format_rate, format_short


def name_of(item: Bar | ProgressLine) -> str:
    """The stage and what it works on: "ingest ogbn-products"."""
    return clean(f"{item.stage} {item.label}", 80)


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
        idle: Whether no stage is open, shown or not.
    """

    bars: tuple[Bar, ...]
    hidden: int
    lines: tuple[ProgressLine, ...]
    idle: bool


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
            # Whoever comes to a stage late sees it from here on.
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
        return Frame(
            tuple(Bar.of(stage.state(), now) for stage in shown[:_MAX_BARS]), max(len(shown) - _MAX_BARS, 0), lines, not self._open
        )

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

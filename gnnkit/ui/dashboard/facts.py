"""The facts that a dashboard shows at one moment: plain facts, the last minute in bins of a second, and small pictures as numbers."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gnnkit.ui.progress_model import Bar

if TYPE_CHECKING:
    from gnnkit.loader.history import BatchRecord

# Units of the drawing: wide enough that neighbouring points differ, whole numbers so that they are short.
WIDTH, HEIGHT = 236, 40
_BLOCKS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"


def line_points(values: Sequence[float], top: float) -> str:
    """Points of an SVG polyline from left to right, zero at the bottom: "0,40 4,12 ...".

    Args:
        values: What to draw.
        top: The value at the upper edge.
    """
    step = WIDTH / max(len(values) - 1, 1)
    return " ".join(f"{round(i * step)},{_height(value, top)}" for i, value in enumerate(values))


def area_path(values: Sequence[float], top: float) -> str:
    """The SVG path of what lies below that line."""
    return f"M0,{HEIGHT}L{line_points(values, top)} {WIDTH},{HEIGHT}z"


def blocks(values: Sequence[float], top: float, width: int = 30) -> str:
    """The last ``width`` values as a row of block characters; "" where there is nothing above zero."""
    if not top > 0:
        return ""
    levels = [min(len(_BLOCKS) - 1, math.floor(max(value, 0.0) / top * len(_BLOCKS))) for value in values[-width:]]
    return "".join(_BLOCKS[level] for level in levels)


def whole_percents(fractions: Sequence[float]) -> list[int]:
    """Fractions as whole percents that sum to what the fractions sum to, by largest remainders (Hamilton's method)."""
    exact = [max(fraction, 0.0) * 100 for fraction in fractions]
    floors = [math.floor(value + 1e-9) for value in exact]
    missing = round(sum(exact)) - sum(floors)
    for index in sorted(range(len(exact)), key=lambda i: floors[i] - exact[i])[: max(missing, 0)]:
        floors[index] += 1
    return floors


def _height(value: float, top: float) -> int:
    # The line is drawn with a width: at the very edges it would be cut.
    share = min(max(value / top, 0.0), 1.0) if top > 0 else 0.0
    return round(HEIGHT - 1 - share * (HEIGHT - 3))


@dataclass(frozen=True, slots=True)
class StageRow:
    """A stage of the loader: one that runs, or the last of its name that has ended.

    Attributes:
        bar: How far it is, or was when it ended.
        state: "running", "done" or "failed".
        text: What it came to, or why it failed; "" while it runs.
    """

    bar: Bar
    state: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Share:
    """A part of somebody's time.

    Attributes:
        name: "waiting", "sampling" and the like.
        fraction: Within [0, 1].
    """

    name: str
    fraction: float


@dataclass(frozen=True, slots=True)
class Series:
    """A quantity over the last minute, oldest first.

    Attributes:
        values: One value per second.
        now: What to write beside it; nan where it is not known.
    """

    values: Sequence[float] = ()
    now: float = float("nan")


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """A process of the loader.

    Attributes:
        name: "trainer", "process 0", "server 0" and the like.
        pid: Its pid.
        state: "running", "stopped (SIGSTOP)", "gone" and the like.
        cpu: Processors that it has used lately (1.0 is one of them); nan where it has only just been looked at.
        busy: Share of its time within [0, 1] that it sampled batches; nan where it samples none.
        private: Bytes of memory that are its own.
        shared: Bytes that it shares with others: the mapped store, the ring.
        log: The file that it writes to, or None.
        tail: The last lines of that file.
    """

    name: str
    pid: int
    state: str
    cpu: float
    busy: float
    private: int
    shared: int
    log: str | None
    tail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A loader at one moment.

    Attributes:
        title: What it reads: "ogbn-products".
        where: Where it samples: "Colocated, 2 processes".
        state: "sampling", "paused", "idle", "ready", "closed" and the like.
        stages: See ``StageRow``.
        batches: Batches per second.
        seeds: Seeds per second.
        ready: Batches that were sampled and waiting.
        slots: The most that can be; 0 where that is not known.
        consumer: Where this process spent its time.
        workers: Where those who sample spent theirs.
        split_of: What these shares are of: "last 10 s" or "epoch 3".
        processes: See ``ProcessRow``.
        buffers: Bytes of the batches' blocks.
        graph: Bytes of the graph's copy in memory.
        advice: Who is the bottleneck and what to change, in a sentence; "" before it is known.
        error: The last error, in a line; "" where there is none.
        live: Whether it may change.
    """

    title: str
    where: str
    state: str
    stages: tuple[StageRow, ...] = ()
    batches: Series = field(default_factory=Series)
    seeds: Series = field(default_factory=Series)
    ready: Series = field(default_factory=Series)
    slots: int = 0
    consumer: tuple[Share, ...] = ()
    workers: tuple[Share, ...] = ()
    split_of: str = ""
    processes: tuple[ProcessRow, ...] = ()
    buffers: int = 0
    graph: int = 0
    advice: str = ""
    error: str = ""
    live: bool = True

    def lasting(self) -> Snapshot:
        """The snapshot without what differs from look to look although nothing has happened: processor shares and amounts of memory."""
        processes = tuple(replace(p, cpu=0.0, busy=0.0, private=0, shared=0) for p in self.processes)
        still = Series(self.batches.values)  # nan is not itself
        return replace(self, processes=processes, buffers=0, graph=0, batches=still, seeds=Series(), ready=Series())


SECONDS = 60


@dataclass(slots=True)
class _Second:
    """The batches and times within one second of the monotonic clock.

    Batches and seeds are spread over the time that it took to get them, so that one batch in three seconds is a third of a batch in
    each of them. Times and waiting batches are booked where the batch was delivered.
    """

    number: int
    batches: float = 0.0
    seeds: float = 0.0
    times: dict[str, float] = field(default_factory=dict)
    busy: dict[str, float] = field(default_factory=dict)
    delivered: int = 0
    ready: float = 0.0


class ThroughputWindow:
    """Sums over the last ``SECONDS`` whole seconds; costs what is new since the last look, not what there is.

    Attributes:
        until_s: When the newest batch that was added was delivered; -inf before the first.
    """

    def __init__(self) -> None:
        self._seconds: deque[_Second] = deque(maxlen=SECONDS + 1)
        self._seen_s = self.until_s = -math.inf

    @property
    def seen_s(self) -> float:
        """When the newest batch that was added had been asked for."""
        return self._seen_s

    def add(self, records: Iterable[BatchRecord]) -> None:
        """Adds those that are newer than all before."""
        for record in records:
            if record.asked_s > self._seen_s:
                self._seen_s, self.until_s = record.asked_s, record.delivered_s
                self._book(record)

    def rates(self, now: float) -> tuple[list[float], list[float]]:
        """Batches and seeds in each of the last ``SECONDS`` whole seconds, oldest first."""
        seconds = self._last(now, SECONDS)
        return [s.batches if s else 0.0 for s in seconds], [s.seeds if s else 0.0 for s in seconds]

    def occupancy(self, now: float) -> list[float]:
        """Batches that waited on average when one was asked for; where none was, what was seen last."""
        values, last = [], 0.0
        for second in self._last(now, SECONDS):
            last = last if second is None or not second.delivered else second.ready / second.delivered
            values.append(last)
        return values

    def times(self, now: float, seconds: int) -> dict[str, float]:
        """Seconds that the consumer spent in each stage, within the last ``seconds`` and the one that runs."""
        return _total(second.times for second in self._recent(now, seconds))

    def busy(self, now: float, seconds: int) -> dict[str, float]:
        """Seconds that each worker was sampling and gathering, by its name."""
        return _total(second.busy for second in self._recent(now, seconds))

    def _book(self, record: BatchRecord) -> None:
        delivered = record.delivered_s
        # A pause is nobody's work: the batch belongs to what came after it.
        began = record.asked_s + record.paused_s if record.paused_s else record.asked_s - record.consumer_s
        self._spread(max(began, delivered - SECONDS), delivered, record.seeds)
        second = self._at(math.floor(delivered))
        if second is None:
            return
        second.delivered += 1
        second.ready += record.ready
        times = second.times
        for name in ("wait", "collate", "transform", "transfer", "consumer", "sample", "gather"):
            times[name] = times.get(name, 0.0) + getattr(record, f"{name}_s")
        second.busy[record.worker] = second.busy.get(record.worker, 0.0) + record.sample_s + record.gather_s

    def _spread(self, began: float, ended: float, seeds: int) -> None:
        span = ended - began
        first, last = math.floor(began), math.floor(ended)
        for number in range(first, last + 1):
            second = self._at(number)
            if second is not None:
                inside = min(ended, number + 1) - max(began, number)
                share = inside / span if span > 0 else 1.0 if number == last else 0.0
                second.batches += share
                second.seeds += share * seeds

    def _at(self, number: int) -> _Second | None:
        """The second of that number, made if it is newer than all; None where it has been forgotten."""
        if not self._seconds or number > self._seconds[-1].number:
            # A long silence leaves no more than fits.
            start = max(number - SECONDS, self._seconds[-1].number + 1 if self._seconds else number)
            self._seconds.extend(_Second(missing) for missing in range(start, number + 1))
        index = len(self._seconds) - 1 - (self._seconds[-1].number - number)
        return self._seconds[index] if index >= 0 else None

    def _last(self, now: float, count: int) -> list[_Second | None]:
        """The ``count`` whole seconds before the one that runs; None for those that are not known."""
        known = {second.number: second for second in self._seconds}
        current = math.floor(now)
        return [known.get(number) for number in range(current - count, current)]

    def _recent(self, now: float, count: int) -> list[_Second]:
        since = math.floor(now) - count
        return [second for second in self._seconds if second.number >= since]


def _total(parts: Iterable[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0.0) + value
    return total

"""Looks at a loader now and then and says what there is to show: facts of one moment, and the last minute in bins of a second."""

from __future__ import annotations

import math
import os
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gnnkit.events import StageState, rank_of_stage
from gnnkit.loader.advice import PARTS, advise, measure
from gnnkit.printable import clean
from gnnkit.runtime.runs import tail
from gnnkit.ui.objects import sampled_on
from gnnkit.ui.progress import SHOWN_AFTER_S
from gnnkit.units import format_duration

if TYPE_CHECKING:
    from gnnkit.backends.base import StreamStatus
    from gnnkit.loader.history import BatchRecord
    from gnnkit.loader.pipeline import Pipeline
    from gnnkit.runtime.process_status import ProcessStatus


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
    shares = [min(max(value / top, 0.0), 1.0) if top > 0 else 0.0 for value in values]
    # The line is drawn with a width: at the very edges it would be cut.
    return " ".join(f"{round(i * step)},{round(HEIGHT - 1 - share * (HEIGHT - 3))}" for i, share in enumerate(shares))


def area_path(values: Sequence[float], top: float) -> str:
    """The SVG path of what lies below that line."""
    return f"M0,{HEIGHT}L{line_points(values, top)} {WIDTH},{HEIGHT}z"


def blocks(values: Sequence[float], top: float, width: int = 30) -> str:
    """The last ``width`` values as a row of block characters; "" where there is nothing above zero."""
    if not top > 0:
        return ""
    levels = [min(len(_BLOCKS) - 1, math.floor(max(value, 0.0) / top * len(_BLOCKS))) for value in values[-width:]]
    return "".join(_BLOCKS[level] for level in levels)


def whole_percents(parts: Mapping[str, float]) -> list[tuple[str, int]]:
    """Names and whole percents that sum to what the fractions sum to, by largest remainders (Hamilton's method)."""
    exact = {name: max(fraction, 0.0) * 100 for name, fraction in parts.items()}
    percents = {name: math.floor(value + 1e-9) for name, value in exact.items()}
    missing = round(sum(exact.values())) - sum(percents.values())
    for name in sorted(exact, key=lambda name: percents[name] - exact[name])[: max(missing, 0)]:
        percents[name] += 1
    return list(percents.items())


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
        stages: The last stage of each name, with the words of its end.
        batches: Batches per second.
        seeds: Seeds per second.
        ready: Batches that were sampled and waiting.
        slots: The most that can be; 0 where that is not known.
        consumer: ``{"waiting": fraction, ...}``: where this process spent its time.
        workers: ``{"sampling": fraction, ...}``: where those who sample spent theirs.
        split_of: What these shares are of: "last 10 s" or "epoch 3".
        processes: See ``ProcessRow``.
        buffers: Bytes of the batches' blocks.
        on_device: Bytes of the graph on a device that samples.
        graph: Bytes of the graph's copy in memory.
        advice: Who is the bottleneck and what to change, in a sentence; "" before it is known.
        error: The last error, in a line; "" where there is none.
        live: Whether it may change.
    """

    title: str
    where: str
    state: str
    stages: tuple[StageState, ...] = ()
    batches: Series = field(default_factory=Series)
    seeds: Series = field(default_factory=Series)
    ready: Series = field(default_factory=Series)
    slots: int = 0
    consumer: Mapping[str, float] = field(default_factory=dict)
    workers: Mapping[str, float] = field(default_factory=dict)
    split_of: str = ""
    processes: tuple[ProcessRow, ...] = ()
    buffers: int = 0
    on_device: int = 0
    graph: int = 0
    advice: str = ""
    error: str = ""
    live: bool = True

    def lasting(self) -> Snapshot:
        """The snapshot without what differs from look to look although nothing has happened: processor shares and amounts of memory."""
        processes = tuple(replace(p, cpu=0.0, busy=0.0, private=0, shared=0) for p in self.processes)
        still = Series(self.batches.values)  # nan is not itself
        return replace(self, processes=processes, buffers=0, graph=0, on_device=0, batches=still, seeds=Series(), ready=Series())


SECONDS = 60


# What a batch adds to the second of its delivery, beside its worker's time; each is a field of ``BatchRecord``.
_TIMES = (*PARTS, "sample", "gather")
_Seconds = defaultdict[int, defaultdict[str, float]]


class ThroughputWindow:
    """Sums over the last ``SECONDS`` whole seconds of the monotonic clock; costs what is new since the last look, not what there is.

    Batches and seeds are spread over the time that it took to get them, so that one batch in three seconds is a third of a batch in
    each of them. Times and waiting batches are booked where the batch was delivered.

    Attributes:
        seen_s: When the newest batch that was added had been asked for; -inf before the first.
        until_s: When it was delivered; likewise.
    """

    def __init__(self) -> None:
        # By the second's number: sums by name, and the time that each worker was sampling and gathering.
        self._sums: _Seconds = defaultdict(lambda: defaultdict(float))
        self._busy: _Seconds = defaultdict(lambda: defaultdict(float))
        self.seen_s = self.until_s = -math.inf

    def add(self, records: Iterable[BatchRecord]) -> None:
        """Adds those that are newer than all before."""
        for record in records:
            if record.asked_s > self.seen_s:
                self.seen_s, self.until_s = record.asked_s, record.delivered_s
                self._book(record)
        newest = max(self._sums, default=0)
        for seconds in self._sums, self._busy:
            for number in [number for number in seconds if number < newest - SECONDS]:
                del seconds[number]

    def rates(self, now: float) -> tuple[list[float], list[float]]:
        """Batches and seeds in each of the last ``SECONDS`` whole seconds, oldest first."""
        seconds: list[Mapping[str, float]] = [self._sums.get(number, {}) for number in _whole_seconds(now)]
        return [sums.get("batches", 0.0) for sums in seconds], [sums.get("seeds", 0.0) for sums in seconds]

    def occupancy(self, now: float) -> list[float]:
        """Batches that waited on average when one was asked for; where none was, what was seen last."""
        values, last = [], 0.0
        for number in _whole_seconds(now):
            sums: Mapping[str, float] = self._sums.get(number, {})
            last = sums["ready"] / sums["delivered"] if "delivered" in sums else last
            values.append(last)
        return values

    def times(self, now: float, seconds: int) -> dict[str, float]:
        """Seconds that the consumer spent in each stage, within the last ``seconds`` and the one that runs."""
        return {name: value for name, value in _since(self._sums, now, seconds).items() if name in _TIMES}

    def busy(self, now: float, seconds: int) -> dict[str, float]:
        """Seconds that each worker was sampling and gathering, by its name."""
        return _since(self._busy, now, seconds)

    def _book(self, record: BatchRecord) -> None:
        delivered = record.delivered_s
        # A pause is not work: the batch belongs to what came after it.
        asked = record.asked_s + record.paused_s if record.paused_s else record.asked_s - record.consumer_s
        began, number = max(asked, delivered - SECONDS), math.floor(delivered)
        for second in range(math.floor(began), number + 1):
            inside = min(delivered, second + 1) - max(began, second)
            share = inside / (delivered - began) if delivered > began else float(second == number)
            self._sums[second]["batches"] += share
            self._sums[second]["seeds"] += share * record.seeds
        sums = self._sums[number]
        sums["delivered"] += 1
        sums["ready"] += record.ready
        for name in _TIMES:
            sums[name] += getattr(record, f"{name}_s")
        self._busy[number][record.worker] += record.sample_s + record.gather_s


def _whole_seconds(now: float) -> range:
    """The numbers of the whole seconds before the one that runs."""
    return range(math.floor(now) - SECONDS, math.floor(now))


def _since(sums: _Seconds, now: float, seconds: int) -> dict[str, float]:
    """Sums of the last ``seconds`` and of the one that runs."""
    total: defaultdict[str, float] = defaultdict(float)
    for number, own in sums.items():
        if number >= math.floor(now) - seconds:
            for name, value in own.items():
                total[name] += value
    return dict(total)


# Shares are of the recent past, rates of the last seconds: long enough to be calm, short enough to follow a change.
_SHARES_OF_S = 10
_RATE_OF_S = 3
# Processor time counts in hundredths of a second: a share of it needs a longer look, and of a very short one nothing can be said.
_CPU_OVER_S, _CPU_LEAST_S = 2.0, 0.1
# Advice on the first batches of an epoch is on its start.
_ADVICE_EVERY_S, _ADVICE_AFTER_S = 2.0, 2.0
_TAIL_LINES, _TAIL_WIDTH = 8, 160
_MAX_STAGES = 7
# Whose time is shown, under which name, in which colour's order.
_CONSUMER = {"waiting": ("wait",), "building": ("collate", "transform"), "transfer": ("transfer",), "your loop": ("consumer",)}

# Whose time went where: this process's and the workers', and what it is a share of.
_Split = tuple[Mapping[str, float], Mapping[str, float], str]


class Observer:
    """Makes snapshots of one loader; remembers what rates and processor shares need.

    Args:
        title: What the loader reads.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._window = ThroughputWindow()
        self._cpu: dict[int, deque[tuple[float, float]]] = {}
        self._tails: dict[str, tuple[int, tuple[str, ...]]] = {}
        self._advice, self._advised_s, self._advised_of_s = "", -math.inf, -math.inf
        self._split: _Split = {}, {}, ""
        self.last = Snapshot(title, "", "ready")

    def look(self, loader: Pipeline, *, still: bool = False) -> Snapshot:
        """Returns the facts to show now. Takes time in proportion to what has happened since the last look.

        Args:
            loader: The loader.
            still: The epoch that is open was left: its time ends with its last batch.
        """
        now, before = time.monotonic(), self.last
        window = self._window
        window.add(loader.records.window(min(now - window.seen_s, 3600.0)))
        status, stages, error = loader.status(), loader.history.stages, loader.history.last_error
        running = next((s for s in reversed(stages) if s.stage == "epoch" and s.state == "running"), None)
        # What is over keeps its last minute, up to the end of its last second: a still picture is looked at long after.
        is_over = (still or running is None) and window.until_s > 0
        ended = window.until_s if is_over else now
        until = ended + 1.0 if is_over else now
        elapsed = math.inf if running is None else ended - running.started_s
        consumer, workers, split_of = self._shares(loader, status, until, elapsed)
        batches, seeds = self._rates(loader, until, elapsed)
        self.last = Snapshot(
            title=self._title,
            where=sampled_on(loader.plan, status),
            state=status.state,
            stages=_shown_stages(loader.history.stages_at(ended) if still else stages),
            batches=batches,
            seeds=seeds,
            ready=Series(window.occupancy(until), float(status.batches_ready)),
            slots=status.slots,
            consumer=consumer,
            workers=workers,
            split_of=split_of,
            processes=tuple(self._process(process, now, sampling=running is not None and not still) for process in status.processes),
            buffers=status.buffer_bytes,
            graph=status.graph_bytes,
            on_device=int(status.details.get("device_bytes", 0)),
            advice=self._advice if status.state == "closed" else self._advise(loader, now, math.inf if is_over else elapsed),
            error="" if error is None else clean(error.line, 240),
            live=status.state != "closed",
        )
        if not self.last.live:
            self.last = _as_it_was(self.last, before)
        return self.last

    def closed(self) -> Snapshot:
        """The last look at a loader that is gone."""
        ended = replace(self.last, state="closed", live=False, ready=Series(self.last.ready.values, 0.0))
        self.last = _as_it_was(ended, self.last)
        return self.last

    def failed(self, error: Exception) -> Snapshot:
        """The last look of an observer that can no longer look."""
        self.last = replace(self.last, error=clean(f"the dashboard is no longer updated: {type(error).__name__}: {error}", 240), live=False)
        return self.last

    @property
    def asked_s(self) -> float:
        """When the newest batch that was seen had been asked for, as ``time.monotonic()`` counts; -inf before the first."""
        return self._window.seen_s

    def _rates(self, loader: Pipeline, until: float, elapsed: float) -> tuple[Series, Series]:
        """Batches and seeds per second; ``elapsed`` as in ``_shares``."""
        batches, seeds = self._window.rates(until)
        # A young epoch has no whole seconds of its own, and one that is over counts as a whole.
        if elapsed == math.inf or elapsed < _RATE_OF_S + 1:
            stats = loader.stats()
            span = min(stats.wall_s, elapsed)
            return Series(batches, stats.batches / max(span, 1e-9)), Series(seeds, stats.seeds / max(span, 1e-9))
        return Series(batches, sum(batches[-_RATE_OF_S:]) / _RATE_OF_S), Series(seeds, sum(seeds[-_RATE_OF_S:]) / _RATE_OF_S)

    def _shares(self, loader: Pipeline, status: StreamStatus, until: float, elapsed: float) -> _Split:
        """Whose time went where.

        Args:
            loader: The loader.
            status: Its status.
            until: The end of what is looked at.
            elapsed: Seconds of the epoch that is open; inf where none is.
        """
        stats = loader.stats()
        if elapsed == math.inf:
            times = {name: float(getattr(stats, f"{name}_s")) for name in _TIMES}
            split_of = f"epoch {stats.epoch}"
        else:
            times = self._window.times(until, _SHARES_OF_S)
            split_of = f"last {min(_SHARES_OF_S, max(1, math.ceil(elapsed)))} s"
        own = {label: sum(times.get(name, 0.0) for name in names) for label, names in _CONSUMER.items()}
        wall = sum(own.values())
        if not stats.batches or wall <= 0:
            # Nothing came lately: what was known last still says more than nothing.
            return self._split
        consumer = {label: spent / wall for label, spent in own.items()}
        sample, gather = times.get("sample", 0.0), times.get("gather", 0.0)
        threads = max(len(self._window.busy(until, _SHARES_OF_S)), status.workers, 1)
        # Batches that were sampled ahead of the window are booked in it: the parts may be more than the whole.
        capacity = max(threads * wall, sample + gather, 1e-9)
        workers = {"sampling": sample / capacity, "gathering": gather / capacity, "idle": 1 - (sample + gather) / capacity}
        self._split = consumer, workers, split_of
        return self._split

    def _process(self, process: ProcessStatus, now: float, *, sampling: bool) -> ProcessRow:
        return ProcessRow(
            name=process.name,
            pid=process.pid,
            state=process.state,
            cpu=self._cpu_share(process, now),
            busy=self._busy_share(process.name, now) if sampling else math.nan,
            private=process.private,
            shared=process.rss - process.private,
            log=process.log,
            tail=() if process.log is None else self._tail(process.log),
        )

    def _tail(self, log: str) -> tuple[str, ...]:
        """The last lines of a log, read again when it has changed."""
        try:
            changed = os.stat(log).st_mtime_ns
        except OSError:
            return ()
        before = self._tails.get(log)
        if before is None or before[0] != changed:
            lines = tail(Path(log)).splitlines()[-_TAIL_LINES:]
            before = self._tails[log] = changed, tuple(clean(line, _TAIL_WIDTH) for line in lines)
        return before[1]

    def _cpu_share(self, process: ProcessStatus, now: float) -> float:
        """Processors that a process has used over the last seconds."""
        seen = self._cpu.setdefault(process.pid, deque())
        seen.append((now, process.cpu_s))
        while len(seen) > 2 and now - seen[1][0] >= _CPU_OVER_S:
            seen.popleft()
        used, span = seen[0][1], now - seen[0][0]
        return max(0.0, process.cpu_s - used) / span if span >= _CPU_LEAST_S else math.nan

    def _busy_share(self, name: str, now: float) -> float:
        """Share of the last seconds that a process's threads sampled; nan where none of them does."""
        window = self._window
        times = window.times(now, _SHARES_OF_S)
        wall = sum(times.get(part, 0.0) for part in PARTS)
        own = [busy for worker, busy in window.busy(now, _SHARES_OF_S).items() if _process_of(worker) == name]
        return min(1.0, sum(own) / (wall * len(own))) if own and wall > 0 else math.nan

    def _advise(self, loader: Pipeline, now: float, elapsed: float) -> str:
        """The sentence, thought over now and then while an epoch runs and once when it is over; ``elapsed`` as in ``_shares``."""
        running, seen_s = elapsed != math.inf, self._window.seen_s
        due = elapsed >= _ADVICE_AFTER_S and now - self._advised_s >= _ADVICE_EVERY_S if running else seen_s > self._advised_of_s
        if due and len(loader.records):
            self._advised_s, self._advised_of_s = now, seen_s
            self._advice = advise(measure(loader, float(_SHARES_OF_S))).sentence
        return self._advice


def _process_of(worker: str) -> str:
    """The process that a batch's worker belongs to: "process 1, thread 0" is of "process 1", "thread 0" and "loop" of this one."""
    if worker == "loop":
        return "trainer"
    owner, _, thread = worker.rpartition("thread ")
    return worker if not thread.isdigit() else owner.rstrip(", ") or "trainer"


def _as_it_was(closed: Snapshot, before: Snapshot) -> Snapshot:
    """A closed loader with the processes and the memory that it had: what it cost is worth keeping."""
    if not before.processes:
        return closed
    processes = tuple(p if p.name == "trainer" else replace(p, state="ended", cpu=math.nan, busy=math.nan) for p in before.processes)
    return replace(closed, processes=processes, buffers=before.buffers, graph=before.graph, on_device=before.on_device, slots=before.slots)


def _shown_stages(stages: Sequence[StageState]) -> tuple[StageState, ...]:
    """The last stage of each name, in the order of a run; short ones that went well are not worth a row, epochs are."""
    latest = {stage.stage: stage for stage in stages}
    rows = [
        replace(stage, text=_ending(stage))
        for stage in sorted(latest.values(), key=lambda stage: (rank_of_stage(stage.stage), stage.started_s))
        if stage.elapsed_s >= SHOWN_AFTER_S or stage.stage == "epoch" or stage.state == "failed"
    ]
    return tuple(rows[-_MAX_STAGES:])


def _ending(stage: StageState) -> str:
    """Describes the end of a stage; empty while it runs."""
    if stage.state == "running":
        return ""
    spent = format_duration(stage.elapsed_s)
    if stage.state == "done":
        return f"{stage.text}, {spent}" if stage.text else spent
    # Leaving a loop early closes its generator, and ■ is the reader's own doing.
    why = {"GeneratorExit": "stopped", "KeyboardInterrupt": "interrupted"}.get(stage.text.split(":")[0], clean(stage.text, 120))
    return f"{why} after {spent}"

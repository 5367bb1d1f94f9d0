"""Looks at a loader now and then and says what there is to show. Reads its public face only."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gnnkit.events import StageState
from gnnkit.printable import clean
from gnnkit.runtime.runs import tail
from gnnkit.ui.dashboard.facts import ProcessRow, Series, Share, Snapshot, StageRow, ThroughputWindow
from gnnkit.ui.progress_model import SHOWN_AFTER_S, Bar, rank_of_stage
from gnnkit.units import format_duration

if TYPE_CHECKING:
    from gnnkit.backends.base import StreamStatus
    from gnnkit.loader.pipeline import Pipeline
    from gnnkit.runtime.process_status import ProcessStatus

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
_CONSUMER = (("wait", "waiting"), ("build", "building"), ("transfer", "transfer"), ("consumer", "your loop"))

# Whose time went where: this process's and the workers', and what it is a share of.
_Split = tuple[tuple[Share, ...], tuple[Share, ...], str]


class Observer:
    """Makes snapshots of one loader; remembers what rates and processor shares need.

    Args:
        title: What the loader reads.
        clock: ``time.monotonic``, as records have it.
    """

    def __init__(self, title: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._title, self._clock = title, clock
        self._window = ThroughputWindow()
        self._cpu: dict[int, deque[tuple[float, float]]] = {}
        self._tails: dict[str, tuple[int, tuple[str, ...]]] = {}
        self._advice, self._advised_s, self._advised_of_s = "", -math.inf, -math.inf
        self._split: _Split = (), (), ""
        self.last = Snapshot(title, "", "ready")

    def look(self, loader: Pipeline, *, still: bool = False) -> Snapshot:
        """Returns the facts to show now. Takes time in proportion to what has happened since the last look.

        Args:
            loader: The loader.
            still: The epoch that is open was left: its time ends with its last batch.
        """
        now, before = self._clock(), self.last
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
        waiting = float(status.batches_ready)
        self.last = Snapshot(
            title=self._title,
            where=_where(loader, status),
            state=status.state,
            stages=_stage_rows(stages, ended if still else now),
            batches=batches,
            seeds=seeds,
            ready=Series(window.occupancy(until), waiting),
            slots=status.slots,
            consumer=consumer,
            workers=workers,
            split_of=split_of,
            processes=tuple(self._process(process, now, sampling=running is not None and not still) for process in status.processes),
            buffers=status.buffer_bytes,
            graph=status.graph_bytes,
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
        own = {
            "wait": times.get("wait", 0.0),
            "build": times.get("collate", 0.0) + times.get("transform", 0.0),
            "transfer": times.get("transfer", 0.0),
            "consumer": times.get("consumer", 0.0),
        }
        wall = sum(own.values())
        if not stats.batches or wall <= 0:
            # Nothing came lately: what was known last still says more than nothing.
            return self._split
        consumer = tuple(Share(label, own[name] / wall) for name, label in _CONSUMER)
        sample, gather = times.get("sample", 0.0), times.get("gather", 0.0)
        threads = max(len(self._window.busy(until, _SHARES_OF_S)), status.workers, 1)
        # Batches that were sampled ahead of the window are booked in it: the parts may be more than the whole.
        capacity = max(threads * wall, sample + gather, 1e-9)
        workers = (
            Share("sampling", sample / capacity),
            Share("gathering", gather / capacity),
            Share("idle", 1 - (sample + gather) / capacity),
        )
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
        wall = sum(value for part, value in window.times(now, _SHARES_OF_S).items() if part not in ("sample", "gather"))
        own = [busy for worker, busy in window.busy(now, _SHARES_OF_S).items() if _process_of(worker) == name]
        return min(1.0, sum(own) / (wall * len(own))) if own and wall > 0 else math.nan

    def _advise(self, loader: Pipeline, now: float, elapsed: float) -> str:
        """The sentence, thought over now and then while an epoch runs and once when it is over; ``elapsed`` as in ``_shares``."""
        running, seen_s = elapsed != math.inf, self._window.seen_s
        due = elapsed >= _ADVICE_AFTER_S and now - self._advised_s >= _ADVICE_EVERY_S if running else seen_s > self._advised_of_s
        if due and len(loader.records):
            from gnnkit.loader.advice import advise, measure

            self._advised_s, self._advised_of_s = now, seen_s
            self._advice = advise(measure(loader, float(_SHARES_OF_S))).sentence
        return self._advice


_TIMES = ("wait", "collate", "transform", "transfer", "consumer", "sample", "gather")


def _process_of(worker: str) -> str:
    """The process that a batch's worker belongs to: "process 1, thread 0" is of "process 1", "thread 0" and "loop" of this one."""
    if worker == "loop":
        return "trainer"
    owner, _, thread = worker.rpartition("thread ")
    return worker if not thread.isdigit() else owner.rstrip(", ") or "trainer"


def _where(loader: Pipeline, status: StreamStatus) -> str:
    kind = str(loader.plan.backend["kind"])
    one, many = ("thread", "threads") if kind == "InProcess" else ("process", "processes")
    return f"{kind}, {status.workers} {one if status.workers == 1 else many}"


def _as_it_was(closed: Snapshot, before: Snapshot) -> Snapshot:
    """A closed loader with the processes and the memory that it had: what it cost is worth keeping."""
    if not before.processes:
        return closed
    processes = tuple(p if p.name == "trainer" else replace(p, state="ended", cpu=math.nan, busy=math.nan) for p in before.processes)
    return replace(closed, processes=processes, buffers=before.buffers, graph=before.graph, slots=before.slots)


def _stage_rows(stages: Sequence[StageState], now: float) -> tuple[StageRow, ...]:
    """The last stage of each name, in the order of a run; short ones that went well are not worth a row, epochs are."""
    latest = {stage.stage: stage for stage in stages}
    rows = []
    for stage in sorted(latest.values(), key=lambda stage: (rank_of_stage(stage.stage), stage.started_s)):
        elapsed = (now if stage.ended_s is None else stage.ended_s) - stage.started_s
        if elapsed >= SHOWN_AFTER_S or stage.stage == "epoch" or stage.state == "failed":
            bar = Bar.of(stage, stage.started_s + elapsed, final=stage.state != "running")
            rows.append(StageRow(replace(bar, fraction=stage.fraction), stage.state, _ending(stage, elapsed)))
    return tuple(rows[-_MAX_STAGES:])


def _ending(stage: StageState, elapsed: float) -> str:
    """Describes the end of a stage; empty while it runs."""
    if stage.state == "running":
        return ""
    spent = format_duration(float(elapsed))
    if stage.state == "done":
        return f"{stage.text}, {spent}" if stage.text else spent
    # Leaving a loop early closes its generator, and ■ is the reader's own doing.
    why = {"GeneratorExit": "stopped", "KeyboardInterrupt": "interrupted"}.get(stage.text.split(":")[0], clean(stage.text, 120))
    return f"{why} after {spent}"

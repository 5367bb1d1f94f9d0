"""One pass over the batches of a loader."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from gnnkit.backends.base import BatchStream, EndOfEpoch
from gnnkit.errors import BatchTimeout, LoaderClosed
from gnnkit.events import EventSink, Stage
from gnnkit.loader.stats import EpochStats
from gnnkit.loader.transfer import DeviceTransfer
from gnnkit.sampling.schedule import Schedule
from gnnkit.sampling.subgraph import SampledSubgraph


@dataclass
class EpochState:
    """How far an epoch is; the loader and the iterator share it, and only the iterator holds the loader.

    Attributes:
        epoch: The epoch's number.
        schedule: This rank's steps.
        stage: The stage "epoch" of the progress.
        steps_done: Batches handed out.
        ended: Whether nothing more will come.
        exhausted: Whether that is because every batch has come.
        abandoned: Whether a newer iteration ended this one.
    """

    epoch: int
    schedule: Schedule
    stage: Stage
    steps_done: int = 0
    ended: bool = False
    exhausted: bool = False
    abandoned: bool = False
    counters: EpochStats = field(default_factory=EpochStats)
    started: float = field(default_factory=time.perf_counter)
    left: float = field(default_factory=time.perf_counter)

    @classmethod
    def begin(cls, epoch: int, schedule: Schedule, events: EventSink) -> EpochState:
        """The state before the first batch."""
        stage = Stage(events, "epoch", label=str(epoch), total=len(schedule), unit="batches")
        stage.__enter__()
        return cls(epoch, schedule, stage, counters=EpochStats(epoch))

    @property
    def finished(self) -> bool:
        """Whether the epoch is over, for every rank that has come as far as this one."""
        if self.schedule.batching.remainder == "uneven":  # a rank without a last step waits for those that have one
            return self.exhausted or self.schedule.next_batch(self.steps_done) >= self.schedule.num_batches
        return self.steps_done >= len(self.schedule)

    def count(self, subgraph: SampledSubgraph) -> None:
        """Books a batch as handed out."""
        layout, counters = subgraph.layout, self.counters
        counters.batches += 1
        counters.seeds += layout.num_seeds
        counters.nodes += layout.num_nodes
        counters.edges += layout.num_edges
        counters.nbytes += layout.nbytes
        counters.sample_s += subgraph.sample_s
        counters.gather_s += subgraph.gather_s
        self.steps_done += 1
        self.stage.advance()

    def end(self, error: BaseException | None = None) -> None:
        """Ends the epoch, once."""
        if not self.ended:
            self.ended = True
            self.stage.__exit__(type(error) if error else None, error, None)

    def abandon(self) -> None:
        """Ends the epoch because a newer one begins."""
        if not self.ended:
            self.abandoned = True
            self.stage.summary = "abandoned"
            self.end()

    def stats(self) -> EpochStats:
        """Counters up to now; the time since the last batch counts as the consumer's until the epoch has ended."""
        stats = replace(self.counters)
        if not self.ended:
            now = time.perf_counter()
            stats.consumer_s += now - self.left
            stats.wall_s = now - self.started
        return stats


@dataclass(frozen=True)
class BatchSteps:
    """What happens to a sampled batch on its way to the user.

    Attributes:
        build: Makes a PyG object of it.
        transform: The user's function, or None.
        transfer: Copies it to a device, or None.
    """

    build: Callable[[SampledSubgraph], Any]
    transform: Callable[[Any], Any] | None
    transfer: DeviceTransfer | None

    def all(self, subgraph: SampledSubgraph) -> Any:
        """Every step at once, for a batch outside an epoch."""
        data = self.build(subgraph)
        data = data if self.transform is None else self.transform(data)
        return data if self.transfer is None else self.transfer.finish(*self.transfer.start(data, subgraph))


class EpochIterator(Iterator[Any]):
    """Yields the rest of an epoch's batches.

    Args:
        owner: Kept alive as long as the iterator is: the loader, which closes its stream when it goes.
        stream: Where batches come from; its epoch has been started.
        state: How far the epoch is.
        steps: What happens to each batch.
        batch_timeout_s: Longest single wait.
    """

    def __init__(self, owner: object, stream: BatchStream, state: EpochState, steps: BatchSteps, batch_timeout_s: float) -> None:
        self._owner, self._stream, self._state, self._steps = owner, stream, state, steps
        self._timeout_s = batch_timeout_s
        self._pending: tuple[SampledSubgraph, Any, Any] | None = None
        self._failure: Exception | None = None

    def __len__(self) -> int:
        """Batches of this rank in the epoch."""
        return len(self._state.schedule)

    def __next__(self) -> Any:
        """The next batch."""
        return self.within(self._timeout_s)

    def within(self, timeout_s: float) -> Any:
        """The next batch, if it comes within ``timeout_s`` seconds; 0 waits for nothing.

        Raises:
            BatchTimeout: It did not; the epoch goes on.
        """
        state = self._state
        self._check_current()
        if state.ended:
            raise StopIteration
        state.counters.consumer_s += time.perf_counter() - state.left
        try:
            return self._advance(timeout_s)
        except BaseException as error:
            if not isinstance(error, (StopIteration, BatchTimeout)):
                state.end(error)
            raise
        finally:
            state.left = time.perf_counter()
            state.counters.wall_s = state.left - state.started

    def _check_current(self) -> None:
        if self._state.abandoned:
            self._pending = None
            raise LoaderClosed(
                f"this iteration (epoch {self._state.epoch}) ended when a newer one of the same loader began",
                "iterate one at a time, or use loader.for_split() for a second stream of batches",
            )

    def _advance(self, timeout_s: float) -> Any:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        pending = self._pending or self._receive(timeout_s)
        self._pending = None
        if pending is None:
            self._state.exhausted = True
            self._state.end()
            raise StopIteration
        subgraph, data, event = pending
        transfer = self._steps.transfer
        if transfer is not None:
            with self._timed("transfer_s"):
                data = transfer.finish(data, event)
            if transfer.looks_ahead:
                self._pending = self._receive_if_ready()
        self._state.count(subgraph)
        return data

    def _receive_if_ready(self) -> tuple[SampledSubgraph, Any, Any] | None:
        try:
            return self._receive(0.0)
        except BatchTimeout:
            return None
        except Exception as error:  # the next batch's: the one that is ready comes first
            self._failure = error
            return None

    def _receive(self, timeout_s: float) -> tuple[SampledSubgraph, Any, Any] | None:
        steps = self._steps
        with self._timed("wait_s"):
            subgraph = self._stream.recv(timeout_s, self._check_current)
        if isinstance(subgraph, EndOfEpoch):
            return None
        with self._timed("collate_s"):
            data = steps.build(subgraph)
        if steps.transform is not None:
            with self._timed("transform_s"):
                data = steps.transform(data)
        event = None
        if steps.transfer is not None:
            with self._timed("transfer_s"):
                data, event = steps.transfer.start(data, subgraph)
        return subgraph, data, event

    def _timed(self, name: str) -> _Timer:
        return _Timer(self._state.counters, name)


class _Timer:
    """Adds the time spent in a ``with`` block to a counter."""

    def __init__(self, counters: EpochStats, name: str) -> None:
        self._counters, self._name = counters, name

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *exc: object) -> None:
        setattr(self._counters, self._name, getattr(self._counters, self._name) + time.perf_counter() - self._started)

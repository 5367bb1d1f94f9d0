"""Epochs: iterators over batches, their statistics, and copies to devices."""

from __future__ import annotations

import hashlib
import json
import math
import operator
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn, SupportsIndex, TypeVar

from gnnkit.backends.base import BatchStream, EndOfEpoch, check_owner
from gnnkit.backends.devices import resolve_device
from gnnkit.errors import BatchTimeout, LoaderClosed, PlanError, SamplingError
from gnnkit.events import Stage
from gnnkit.loader.history import BatchRecord, Gate, History, Records
from gnnkit.plan import LoaderPlan
from gnnkit.sampling.schedule import Schedule
from gnnkit.sampling.subgraph import SampledSubgraph

if TYPE_CHECKING:
    import torch

    from gnnkit.loader.feature_cache import FeatureCache


# Streams and events of torch.cuda have no type hints.
# mypy: disable-error-code="no-untyped-call"


class DeviceTransfer:
    """Moves batches to one device.

    On CUDA, copies run on a stream of their own from page-locked blocks. A block must not be reused while it is being read, so
    what is copied from is kept until the event behind its copy has happened, also when this object is forgotten before.

    Args:
        device: The target.
    """

    def __init__(self, device: torch.device) -> None:
        import torch

        self._device = device
        self._cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self._cuda else None
        self._in_flight: deque[tuple[torch.cuda.Event, object]] = deque()
        if self._cuda:
            weakref.finalize(self, _settle, self._in_flight).atexit = False

    @property
    def looks_ahead(self) -> bool:
        """Whether starting the next copy early overlaps it with the consumer's work."""
        return self._cuda

    def start(self, data: Any, subgraph: SampledSubgraph, then: Callable[[Any], Any] | None = None) -> tuple[Any, Any]:
        """Starts copying a batch; ``finish`` makes it usable.

        Args:
            data: The batch.
            subgraph: What it was made of.
            then: Called with the copy, on the stream of copies; what it returns is the batch.

        Returns:
            The batch on the device, and what ``finish`` needs.
        """

        def make() -> Any:
            moved = data.to(self._device, non_blocking=self._cuda)
            return moved if then is None else then(moved)

        # PyG moves a batch's tensors within the same object, so those that are copied from are kept by themselves: some lie in blocks that
        # the sampled batch knows nothing of, and that would be written to again.
        source = _held(data) if self._cuda else None
        return self.run(make, (subgraph, source))

    def run(self, make: Callable[[], Any], source: object) -> tuple[Any, Any]:
        """Calls ``make``, which copies to the device, on the stream of copies; ``finish`` makes what it returns usable.

        Args:
            make: Makes the batch on the device, by copies that need not have happened when it returns.
            source: What is copied from: kept until the copies have happened.
        """
        if self._stream is None:
            return make(), None
        import torch

        while self._in_flight and self._in_flight[0][0].query():
            self._in_flight.popleft()
        with torch.cuda.stream(self._stream):
            moved = make()
            event = torch.cuda.Event()
            event.record(self._stream)
        self._in_flight.append((event, source))
        return moved, event

    def finish(self, moved: Any, event: Any) -> Any:
        """Makes the consumer's stream wait for the copy, and tells the allocator who uses its memory."""
        if event is None:
            return moved
        import torch

        current = torch.cuda.current_stream(self._device)
        current.wait_event(event)
        moved.record_stream(current)
        return moved


def _held(data: Any) -> object:
    """Returns the values that a batch is copied from; a ``transform`` may have made something else of it than a PyG object."""
    stores = getattr(data, "stores", None)
    return data if stores is None else [list(store.values()) for store in stores]


def _settle(in_flight: deque[tuple[Any, object]]) -> None:
    """Waits for the copies that no consumer waits for any more, and gives up what they are made from."""
    while in_flight:
        in_flight[0][0].synchronize()
        in_flight.popleft()


@dataclass
class EpochStats:
    """Counters of one epoch, as the consumer sees it.

    ``paused_s + wait_s + collate_s + transform_s + transfer_s + consumer_s`` is ``wall_s``; ``sample_s`` and ``gather_s`` are spent by the
    sampling threads or processes beside them, summed over all of them.

    Attributes:
        epoch: Which epoch.
        batches: Batches delivered.
        seeds: Seeds in them.
        nodes: Nodes in them, seeds included.
        edges: Edges in them.
        nbytes: Bytes of their tensors as they were sampled.
        cached_nbytes: Bytes of features that they came without, because they were on the device: see ``feature_cache``.
        padding: Rows and edges of padding that were added to them: see ``pad``.
        oversized: Batches that fit none of the planned shapes and were padded to a larger one.
        wall_s: From the start of the epoch to the last look.
        paused_s: Held back by ``pause()``.
        wait_s: Waiting for a sampled batch.
        collate_s: Building PyG objects.
        transform_s: The user's ``transform``.
        transfer_s: Starting copies to the device.
        consumer_s: Everything that happened between batches: the training step.
        sample_s: Choosing neighbours.
        gather_s: Copying features and ids.
    """

    epoch: int = 0
    batches: int = 0
    seeds: int = 0
    nodes: int = 0
    edges: int = 0
    nbytes: int = 0
    cached_nbytes: int = 0
    padding: int = 0
    oversized: int = 0
    wall_s: float = 0.0
    paused_s: float = 0.0
    wait_s: float = 0.0
    collate_s: float = 0.0
    transform_s: float = 0.0
    transfer_s: float = 0.0
    consumer_s: float = 0.0
    sample_s: float = 0.0
    gather_s: float = 0.0

    @property
    def batches_per_s(self) -> float:
        """Batches delivered per second of wall time."""
        return self.batches / self.wall_s if self.wall_s else 0.0

    @property
    def seeds_per_s(self) -> float:
        """Seeds delivered per second of wall time."""
        return self.seeds / self.wall_s if self.wall_s else 0.0


# How many iterations each plan has begun in this process: ranks compare their n-th iterations with each other.
_iterations: dict[str, int] = {}


def check_same_epoch(plan: LoaderPlan, epoch: int) -> None:
    """Compares this rank's epoch with those that the other ranks have announced so far; it does not wait.

    Every rank writes the epoch of its n-th iteration to the process group's key-value store and reads what is there already,
    so a rank that comes later sees the difference.

    Raises:
        PlanError: Another rank's n-th iteration of the same plan runs another epoch.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    batching = plan.batching
    if batching.world_size != distributed.get_world_size():
        return  # the ranks of this plan are not those of the process group
    # What differs between hosts, and changes no batch, does not tell plans apart.
    store = None if plan.store is None else replace(plan.store, path="")
    shared = json.dumps(replace(plan, store=store, backend={}, batching=replace(batching, rank=0)).to_json(), sort_keys=True)
    name = hashlib.sha256(shared.encode()).hexdigest()[:16]
    iteration = _iterations[name] = _iterations.get(name, -1) + 1
    announced = distributed.distributed_c10d._get_default_store()
    prefix = f"gnnkit/{name}/{iteration}"
    announced.set(f"{prefix}/{batching.rank}", str(epoch))
    for rank in range(batching.world_size):
        key = f"{prefix}/{rank}"
        if rank != batching.rank and announced.check([key]) and int(announced.get(key)) != epoch:
            raise PlanError(
                f"rank {batching.rank} begins epoch {epoch}, rank {rank} epoch {int(announced.get(key))}",
                "call set_epoch() with the same number on every rank, and iterate equally often",
            )


R = TypeVar("R")


@dataclass
class EpochState:
    """The progress of an epoch; the loader and the iterator share it, and only the iterator holds the loader.

    Attributes:
        epoch: The epoch's number.
        schedule: This rank's steps.
        stage: The stage "epoch" of the progress.
        steps_done: Batches handed out.
        ended: Whether nothing more will come.
        exhausted: Whether that is because every batch has come.
        given_up: Why its batches are not handed out any more: "newer", where a newer iteration has begun, or "closed"; "" while they are.
        records: Where its batches are booked.
    """

    epoch: int
    schedule: Schedule
    stage: Stage
    steps_done: int = 0
    ended: bool = False
    exhausted: bool = False
    given_up: Literal["", "newer", "closed"] = ""
    records: Records = field(default_factory=Records)
    counters: EpochStats = field(default_factory=EpochStats)
    started: float = field(default_factory=time.monotonic)
    left: float = field(default_factory=time.monotonic)
    _booked: tuple[float, ...] = (0.0,) * 6
    _booking: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def begin(cls, epoch: int, schedule: Schedule, history: History) -> EpochState:
        """The state before the first batch."""
        now = time.monotonic()
        stage = Stage(history, "epoch", label=str(epoch), total=len(schedule), unit="batches")
        stage.__enter__()
        return cls(epoch, schedule, stage, records=history.records, counters=EpochStats(epoch), started=now, left=now)

    @property
    def finished(self) -> bool:
        """Whether the epoch is over, for every rank that has come as far as this one."""
        if self.schedule.batching.remainder == "uneven":  # a rank without a last step waits for those that have one
            return self.exhausted or self.schedule.next_batch(self.steps_done) >= self.schedule.num_batches
        return self.steps_done >= len(self.schedule)

    def count(self, subgraph: SampledSubgraph, asked_s: float) -> None:
        """Books a batch as handed out.

        Args:
            subgraph: The batch.
            asked_s: See ``BatchRecord``.
        """
        with self._booking:  # several threads may share an iterator
            layout, counters = subgraph.layout, self.counters
            nodes, edges, cached_nbytes = layout.sizes()
            counters.batches += 1
            counters.seeds += layout.num_seeds
            counters.nodes += nodes
            counters.edges += edges
            counters.nbytes += layout.nbytes
            counters.cached_nbytes += cached_nbytes
            counters.padding += subgraph.padding
            counters.oversized += subgraph.is_oversized
            counters.sample_s += subgraph.sample_s
            counters.gather_s += subgraph.gather_s
            # The consumer's time, in the order of ``BatchRecord``.
            own = counters.paused_s, counters.wait_s, counters.collate_s, counters.transform_s, counters.transfer_s, counters.consumer_s
            before, self._booked = self._booked, own
            paused_s, wait_s, collate_s, transform_s, transfer_s, consumer_s = map(operator.sub, own, before)
            consumed = asked_s, paused_s, wait_s, collate_s, transform_s, transfer_s, consumer_s
            sampled = subgraph.worker, subgraph.began_s, subgraph.sample_s, subgraph.gather_s
            size = layout.num_seeds, nodes, edges, layout.nbytes, subgraph.ready, cached_nbytes
            self.records.add(BatchRecord(self.epoch, subgraph.batch_index, *sampled, *consumed, *size))
            self.steps_done += 1
            if not self.ended:  # another thread may have closed the loader since the batch came
                self.stage.advance()

    def leave(self) -> None:
        """Books that the consumer has the processor again."""
        self.left = time.monotonic()
        self.counters.wall_s = self.left - self.started

    def end(self, error: BaseException | None = None) -> None:
        """Ends the epoch, once."""
        if not self.ended:
            self.ended = True
            if self.given_up:  # which the iteration may notice before the thread that has given it up gets here
                self.stage.summary = "abandoned" if self.given_up == "newer" else "stopped"
                error = None
            self.stage.__exit__(type(error) if error else None, error, None)

    def give_up(self, why: Literal["newer", "closed"]) -> None:
        """Ends the epoch because a newer one begins, or the loader is closed."""
        if not self.ended:
            self.given_up = why
            self.end()

    def stats(self) -> EpochStats:
        """Counters up to now; the time since the last batch counts as the consumer's until the epoch has ended."""
        stats = replace(self.counters)
        if not self.ended:
            now = time.monotonic()
            stats.consumer_s += now - self.left
            stats.wall_s = now - self.started
        return stats


@dataclass(frozen=True)
class BatchSteps:
    """The steps of a sampled batch on its way to the user.

    Attributes:
        build: Makes a PyG object of it.
        transform: The user's function, or None.
        transfer: Copies it to a device, or None.
        finish: Completes it there, before it is handed out; None where it is whole.
    """

    build: Callable[[SampledSubgraph], Any]
    transform: Callable[[Any], Any] | None
    transfer: DeviceTransfer | None
    finish: Callable[[Any], Any] | None = None

    @classmethod
    def of(
        cls, build: Callable[[SampledSubgraph], Any], transform: Callable[[Any], Any] | None, device: Any, cache: FeatureCache | None
    ) -> BatchSteps:
        """Makes the steps that a loader's options ask for.

        Args:
            build: Makes a PyG object.
            transform: The user's function; where features are cached, batches are whole, and it is called, on the device.
            device: The device that batches are copied to.
            cache: The features there; None where none are.
        """
        if cache is None:
            target = resolve_device(device)
            return cls(build, transform, None if target is None else DeviceTransfer(target))
        complete = cache.complete
        finish = complete if transform is None else lambda data: transformed(transform, complete(data))
        return cls(build, None, DeviceTransfer(cache.device), finish)

    def all(self, subgraph: SampledSubgraph) -> Any:
        """Every step at once, for a batch outside an epoch."""
        data = self.build(subgraph)
        data = data if self.transform is None else transformed(self.transform, data)
        return data if self.transfer is None else self.transfer.finish(*self.transfer.start(data, subgraph, self.finish))


def transformed(transform: Callable[[Any], Any], data: Any) -> Any:
    """Calls a user's function on a batch.

    Raises:
        SamplingError: It has raised StopIteration, which would end the epoch without a word.
    """
    try:
        return transform(data)
    except StopIteration as error:
        hint = "it is called once for each batch, and returns what is to be handed out"
        raise SamplingError("transform raised StopIteration", hint) from error


class ProcessBound:
    """Base of what is made of threads, processes and memory of the process that made it, and is nothing without them."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuses to be pickled and to be copied.

        Raises:
            PlanError: Always.
        """
        raise PlanError(
            f"a {type(self).__name__} can be neither pickled nor copied: its threads, processes and memory are this process's",
            "send the GraphLoader, which travels as its plan and is opened at the other end",
        )


class EpochIterator(ProcessBound, Iterator[Any]):
    """Yields the rest of an epoch's batches.

    Args:
        owner: Kept alive as long as the iterator is: the loader, which closes its stream when it goes.
        stream: Where batches come from; its epoch has been started.
        state: How far the epoch is.
        steps: What happens to each batch.
        history: The loader's.
        gate: Holds batches back while the loader is paused.
        batch_timeout_s: Longest single wait.
        check: Raises where batches are not to be handed out any more.
    """

    def __init__(
        self,
        owner: object,
        stream: BatchStream,
        state: EpochState,
        steps: BatchSteps,
        history: History,
        gate: Gate,
        batch_timeout_s: float,
        check: Callable[[], None],
    ) -> None:
        self._owner, self._stream, self._state, self._steps = owner, stream, state, steps
        self._history, self._gate, self._timeout_s, self._check = history, gate, batch_timeout_s, check
        self._process = os.getpid()
        # Batches that were looked ahead for, or what that ended in; several threads may share the iterator, and each entry goes to one.
        self._ahead: deque[tuple[SampledSubgraph, Any, Any] | Exception] = deque()

    def __len__(self) -> int:
        """Batches of this rank in the epoch."""
        return len(self._state.schedule)

    @property
    def is_over(self) -> bool:
        """Whether no batch comes from it any more."""
        state = self._state
        return state.ended or state.finished or bool(state.given_up)

    def __next__(self) -> Any:
        """The next batch; a paused loader's comes once it goes on."""
        try:
            return self._next(self._timeout_s, math.inf)
        except Exception as error:
            if not isinstance(error, StopIteration):
                self._history.note(error)
            raise

    def within(self, timeout_s: float) -> Any:
        """The next batch, if it comes within ``timeout_s`` seconds; 0 waits for nothing.

        Raises:
            BatchTimeout: It did not; the epoch goes on.
        """
        return self._next(timeout_s, timeout_s)

    def _next(self, timeout_s: float, paused_s: float) -> Any:
        """The next batch; ``timeout_s`` and ``paused_s`` are the longest waits for it and for a paused loader to go on."""
        state = self._state
        self._check_current()
        if state.ended and not self._ahead:
            raise StopIteration
        asked_s = time.monotonic()
        state.counters.consumer_s += asked_s - state.left
        try:
            if self._gate.is_shut:
                with _Timer(state.counters, "paused_s"):
                    if not self._gate.wait(paused_s, self._check_current):
                        raise BatchTimeout(f"no batch within {paused_s:g} s: the loader is paused", "call loader.unpause()")
            self._check()
            subgraph, data = self._advance(timeout_s)
            state.leave()  # booking it is counted with what comes next
            state.count(subgraph, asked_s)
            return data
        except BaseException as error:
            state.leave()
            if not isinstance(error, (StopIteration, BatchTimeout)):
                state.end(error)
            raise

    def _check_current(self) -> None:
        check_owner(self._process)
        self._check_wanted()

    def _check_wanted(self) -> None:
        if self._state.given_up:
            self._ahead.clear()
            if self._state.given_up == "closed":
                raise LoaderClosed("the loader is closed", "create a new one")
            if self._state.finished:  # nothing was left of it
                raise StopIteration
            raise LoaderClosed(
                f"this iteration (epoch {self._state.epoch}) ended when a newer one of the same loader began",
                "iterate one at a time, or use loader.for_split() for a second stream of batches",
            )

    def _advance(self, timeout_s: float) -> tuple[SampledSubgraph, Any]:
        pending = _popped(self._ahead) or self._receive(timeout_s)
        if isinstance(pending, Exception):
            raise pending
        if pending is None:
            self._state.exhausted = True
            with _Timer(self._state.counters, "wait_s"):  # listeners are told; it belongs to no batch
                self._state.end()
            raise StopIteration
        subgraph, data, event = pending
        transfer = self._steps.transfer
        if transfer is not None:
            with _Timer(self._state.counters, "transfer_s"):
                data = transfer.finish(data, event)
            if transfer.looks_ahead:
                self._look_ahead()
        return subgraph, data

    def _look_ahead(self) -> None:
        try:
            found = self._receive(0.0)
        except BatchTimeout:
            return
        except Exception as error:  # the next batch's: the one that is ready comes first
            self._ahead.append(error)
            return
        if found is not None:
            self._ahead.append(found)

    def _receive(self, timeout_s: float) -> tuple[SampledSubgraph, Any, Any] | None:
        steps = self._steps
        with _Timer(self._state.counters, "wait_s"):
            subgraph = self._stream.recv(timeout_s, self._check_wanted)  # which looks at the process itself
        if isinstance(subgraph, EndOfEpoch):
            self._check_current()  # it may be a newer one's: no check was made while it was there already
            return None
        with _Timer(self._state.counters, "collate_s"):
            data = steps.build(subgraph)
        if steps.transform is not None:
            with _Timer(self._state.counters, "transform_s"):
                data = transformed(steps.transform, data)
        event = None
        if steps.transfer is not None:
            with _Timer(self._state.counters, "transfer_s"):
                data, event = steps.transfer.start(data, subgraph, steps.finish)
        return subgraph, data, event


def _popped(ahead: deque[R]) -> R | None:
    try:
        return ahead.popleft()
    except IndexError:
        return None


class _Timer:
    """Adds the time spent in a ``with`` block to a counter."""

    __slots__ = ("_counters", "_name", "_started")

    def __init__(self, counters: EpochStats, name: str) -> None:
        self._counters, self._name = counters, name

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(self, *exc: object) -> None:
        setattr(self._counters, self._name, getattr(self._counters, self._name) + time.monotonic() - self._started)

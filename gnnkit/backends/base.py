"""Backends: options objects that open streams of batches; and the backend that a process has joined."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gnnkit.arguments import check_fields, checks_calls
from gnnkit.bounds import MOST_THREADS, check_seconds, keep_whole_number, size_in_bytes
from gnnkit.errors import LoaderClosed, PlanError
from gnnkit.events import EventSink
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.batches import BatchList
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.runtime.process_status import ProcessStatus
from gnnkit.runtime.scheduler import MOST_CONCURRENT
from gnnkit.sampling.schedule import Schedule
from gnnkit.sampling.subgraph import SampledSubgraph

if TYPE_CHECKING:
    from gnnkit.runtime.pool import WorkerPool


def folder_or_none(name: str, value: Any) -> str | None:
    """A folder's path as text; None as it is.

    Raises:
        PlanError: It is no path.
    """
    if value is None:
        return None
    if not isinstance(value, (str, Path)) or not str(value):
        raise PlanError(f"{name} must be a folder's path, got {value!r}")
    return str(value)


def check_owner(owner: int, *, is_closed: bool = False) -> None:
    """Refuses what belongs to another process than this one, before any of its locks is taken: a thread that is gone may hold them.

    Args:
        owner: Pid of the process that made it; a forked child is another one.
        is_closed: Whether it is closed.

    Raises:
        LoaderClosed: This process is another one, or it is closed.
    """
    if os.getpid() != owner:
        raise LoaderClosed(
            "the loader belongs to the process that this one was forked from",
            "use the GraphLoader itself, which this process opens again: for batch in loader; an iteration stays where it began",
        )
    if is_closed:
        raise LoaderClosed("the loader is closed", "create a new one")


class EndOfEpoch:
    """The answer of ``recv`` once every batch of the epoch has been delivered."""


END_OF_EPOCH = EndOfEpoch()


@dataclass(frozen=True)
class StreamStatus:
    """A stream's state, counts and memory at one moment.

    Attributes:
        state: "ready", "sampling", "idle" (unused for so long that it has given up what it held) or "closed".
        workers: Threads or processes that sample.
        batches_ready: Batches that are sampled and wait for the consumer; where processes sample, as it was when a batch was last taken.
        buffer_bytes: Memory of the batches' blocks, held ones included.
        graph_bytes: Memory of the graph's copy in huge pages.
        slots: The most batches that can be under way or wait for the consumer at once.
        processes: This process and those that work for the loader on this host, as far as they are known.
        details: Further facts, for people.
    """

    state: str
    workers: int
    batches_ready: int
    buffer_bytes: int
    graph_bytes: int
    slots: int
    processes: tuple[ProcessStatus, ...]
    details: Mapping[str, Any] = field(default_factory=dict)


class BatchStream(Protocol):
    """A loader's connection to where its batches are sampled."""

    @property
    def batches(self) -> BatchList:
        """The plan's list of batches, and its inputs."""

    def start_epoch(self, epoch: int, schedule: Schedule) -> None:
        """Starts (or abandons and starts) an epoch, or what ``schedule`` has of it."""

    def recv(self, timeout_s: float, check: Callable[[], None]) -> SampledSubgraph | EndOfEpoch:
        """The next batch of this rank, in order.

        Args:
            timeout_s: Longest wait.
            check: Raises once the caller's epoch has given way to a newer one; called where no other thread can begin one, so that
                no caller takes a batch of an epoch that is not its own.

        Raises:
            BatchTimeout: None came within ``timeout_s`` seconds.
            WorkerDied: The process that was sampling it is gone.
            SamplingError: Sampling it raised.
            MemoryLimitError: There is no memory for it.
        """

    def sample_now(self, epoch: int, batch_index: int, seeds: NDArray[np.int64] | None = None) -> SampledSubgraph:
        """One batch outside the running epoch: of this loader's list, or around ``seeds`` (dataset ids) where they are given."""

    def status(self) -> StreamStatus:
        """Returns the stream's state, counts and memory. May be called from any thread, at any moment."""

    def restart(self, timeout_s: float) -> None:
        """Ends the processes or threads that sample and starts others; the epoch goes on with the same batches. Callable from any thread.

        Args:
            timeout_s: Longest wait for the new ones.

        Raises:
            PlanError: They are not this process's to restart.
            StartTimeout: They are not there in time.
        """

    def close(self) -> None:
        """Stops everything; safe to call twice."""


class Backend(Protocol):
    """The options of one place of sampling: a frozen dataclass that opens streams."""

    def open(self, plan: LoaderPlan, graph: GraphHandle, events: EventSink) -> BatchStream:
        """Starts what it takes to sample ``plan``."""

    def to_json(self) -> dict[str, Any]:
        """``{"kind": class name, option: value, ...}``; no token."""
        return {"kind": type(self).__name__, **asdict(self)}  # type: ignore[call-overload]  # of its own classes, which are dataclasses


@checks_calls()
class PoolBackend(Backend):
    """Base of backends whose batches a pool of processes samples; frozen dataclasses, of which equal ones share their pools.

    Attributes:
        threads_per_worker: Sampling threads of a process.
        worker_concurrency: Batches that a process is given at a time.
        channel_size: The most memory for batches under way, as the user said it.
        max_restarts: The number of exits that are followed by a restart instead of an error.
        idle_timeout_s: Seconds after which a loader that is not used gives its place up; None: never.
        log_dir: Folder for logs; None: see ``runs_root``.
    """

    threads_per_worker: int
    worker_concurrency: int
    channel_size: int | str | None
    max_restarts: int
    idle_timeout_s: float | None
    log_dir: str | None

    def keep_pool_options(self) -> None:
        """Refuses options that make no sense; see ``keep_whole_number``.

        Raises:
            PlanError: One does not.
        """
        object.__setattr__(self, "log_dir", folder_or_none("log_dir", self.log_dir))
        check_fields(self)
        keep_whole_number(self, "threads_per_worker", 1, MOST_THREADS)
        keep_whole_number(self, "worker_concurrency", 1)
        if self.worker_concurrency > MOST_CONCURRENT:
            raise PlanError(f"worker_concurrency must be at most {MOST_CONCURRENT}, got {self.worker_concurrency}", "2 is enough for most")
        keep_whole_number(self, "max_restarts")
        if self.idle_timeout_s is not None:
            check_seconds("idle_timeout_s", self.idle_timeout_s, 0.1)
        _ = self.channel_bytes

    @property
    def channel_bytes(self) -> int | None:
        """``channel_size`` in bytes."""
        return size_in_bytes("channel_size", self.channel_size)

    def _open(
        self, plan: LoaderPlan, graph: GraphHandle, events: EventSink, least: int, *, samples_here: bool, has_other_hosts: bool
    ) -> BatchStream:
        """Starts or joins the processes, and waits until they are ready.

        Args:
            plan: The plan.
            graph: The graph.
            events: Receives progress.
            least: Batches that a process is given at a time, at least.
            samples_here: Whether processes of this host sample, with kernels that are compiled first.
            has_other_hosts: Whether hosts ask each other for what they hold, or for batches.
        """
        if sys.platform != "linux":
            raise PlanError(f"{type(self).__name__}() needs Linux, this is {sys.platform}", "use InProcess()")
        from gnnkit.backends.pool_stream import PoolStream  # heavy
        from gnnkit.sampling.kinds import compile_ahead  # heavy

        if samples_here:
            compile_ahead(plan.inputs, plan.sampling, events, has_other_hosts=has_other_hosts)
        options = self if self.worker_concurrency >= least else replace(self, worker_concurrency=least)  # type: ignore[type-var]
        return PoolStream(options, plan, graph, events)

    def open_pool(self, plan: LoaderPlan, graph: GraphHandle, events: EventSink) -> WorkerPool:
        """Finds the processes for a pool, which may take a while.

        Args:
            plan: The plan of the pool's first loader.
            graph: The graph.
            events: Receives progress.

        Raises:
            PlanError: The system's limits do not allow it, there is no folder for logs, or hosts or servers are not clear.
            MemoryLimitError: There is no memory for it.
            StartTimeout: Another host, or a server, was not there in time.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class JoinedBackend:
    """A decision.

    Attributes:
        backend: What ``"auto"`` and plan files mean.
        plan: The plan file that was named, which ``GraphLoader.from_plan()`` opens; None if none was.
    """

    backend: Backend
    plan: Path | None


_lock = threading.Lock()
_joined: JoinedBackend | None = None
_loaders: weakref.WeakSet[Any] = weakref.WeakSet()


def joined() -> JoinedBackend | None:
    """The decision that holds; None where none was made."""
    return _joined


def join(decision: JoinedBackend) -> None:
    """Makes a decision hold until ``part``."""
    global _joined
    with _lock:
        _joined = decision


def remember(loader: Any) -> None:
    """Notes a loader that was made while a decision holds: ``part`` closes it. Does not keep it alive."""
    with _lock:
        if _joined is not None:
            _loaders.add(loader)


def part() -> None:
    """Ends the decision and closes the loaders that were made under it and are still there."""
    global _joined
    with _lock:
        _joined, loaders = None, list(_loaders)
        _loaders.clear()
    for loader in loaders:
        loader.close()

"""Sampling in threads of this process: the kernels release the GIL, so the threads run beside the training loop."""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from gnnkit.arguments import check_fields, checks_calls
from gnnkit.backends.base import END_OF_EPOCH, Backend, BatchStream, EndOfEpoch, StreamStatus, check_owner
from gnnkit.bounds import MOST_THREADS, keep_whole_number
from gnnkit.callers import warn
from gnnkit.errors import BatchTimeout, GnnkitError, PlanError, SamplingError, StartTimeout, WorkerDied
from gnnkit.events import EventSink
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.batches import BatchList
from gnnkit.runtime.beats import SIGN_SILENCE_S
from gnnkit.runtime.graph_memory import GraphHandle, graph_nbytes
from gnnkit.runtime.limits import auto_disk_threads, auto_threads, own_cpus
from gnnkit.runtime.process_status import look_at
from gnnkit.runtime.ring import BlockPool
from gnnkit.runtime.scheduler import BatchTimes, Scheduler
from gnnkit.sampling.kinds import BatchSource, local_sampler, prepare, warm
from gnnkit.sampling.schedule import Schedule, Step
from gnnkit.sampling.subgraph import SampledSubgraph, SampleRequest
from gnnkit.sampling.tables import GraphTables
from gnnkit.storage.files import Guarded, watch
from gnnkit.waiting import Deadline

# Longest time a waiting thread goes without looking at who it waits for.
_SLICE_S = 0.1
# Waking up for a batch takes less processor time than this, and sampling one that is late takes more.
_WAKING_NS = 1_000_000
# Longest time that close waits for a thread to finish the batch it is sampling.
_JOIN_S = 30.0
# A consumer that has come back at once so often leaves threads nothing to work beside. A time that takes longer halves the count.
_TIMES_AT_ONCE = 8
# A first batch of a graph in memory is walked in less time; and the most bytes that its block is given meanwhile.
_PREPARING_S, _MOST_AHEAD = 0.2, 256 << 20
# Batches that are sampled together, at most.
_LARGEST_GROUP = 32


@dataclass(frozen=True)
class LoopSampling:
    """When a loop samples batches itself: each hand-over between threads costs as much as a batch of a few seeds.

    Attributes:
        back_s: A loop that is back within this time has come back at once.
        small_s: A batch that takes less than this is small.
        group_s: As many small batches are sampled together as take so long: what is done once for all of them costs as much as one of them.
            A thread that runs free would wait for the interpreter, which the loop has, so it samples a group when the loop does.
    """

    back_s: float = 250e-6
    small_s: float = 0.5e-3
    group_s: float = 3e-3


@checks_calls()
@dataclass(frozen=True)
class InProcess(Backend):
    """Samples in threads of this process; every part of the graph must be on this host.

    A loop that comes back for the next batch at once samples small batches itself, several at a time, while a thread samples as many beside
    it: handing over each of them would take longer.

    Attributes:
        num_threads: Sampling threads, or "auto": the processors this process may use, less one, at most 16; at least 4 for a store that is
            larger than memory, where threads wait for the disk.
        loop_sampling: What is at once, and what is small; of all objects of a class.

    Example:
        >>> import gnnkit
        >>> data = gnnkit.datasets.cora()
        >>> backend = gnnkit.InProcess(num_threads=2)
        >>> with gnnkit.GraphLoader.from_pyg(data, input_nodes="train", num_neighbors=[5, 5], backend=backend) as loader:
        ...     print(loader.peek().batch_size)
        140
    """

    num_threads: int | Literal["auto"] = "auto"
    loop_sampling: ClassVar[LoopSampling] = LoopSampling()

    def __post_init__(self) -> None:
        check_fields(self)
        if self.num_threads != "auto":
            keep_whole_number(self, "num_threads", 1, MOST_THREADS, instead="'auto' or ")

    def open(self, plan: LoaderPlan, graph: GraphHandle, events: EventSink) -> BatchStream:
        """Starts the threads.

        Raises:
            PlanError: Hosts hold parts of the graph only.
        """
        if plan.placement is not None and not plan.placement.is_replicated:
            raise PlanError(
                f"InProcess() needs the whole graph on every host, and the plan places parts as {[list(p) for p in plan.placement.hosts]}",
                "backend='colocated' asks other hosts for their parts; placement='replicate' has the whole graph everywhere",
            )
        if isinstance(self.num_threads, int):
            threads = self.num_threads
        else:
            threads = auto_disk_threads(graph.arrays.schema) if graph.comes_from_disk else auto_threads()
        return InProcessStream(plan, graph, threads, events, self.loop_sampling)


@dataclass(frozen=True)
class _Claim:
    """Batches that a thread has taken on."""

    generation: int
    epoch: int
    steps: list[Step]


class _Shared:
    """The state that the threads and the stream share; it has no reference to the stream, so that a dropped stream ends its threads."""

    def __init__(
        self, plan: LoaderPlan, graph: GraphHandle, num_threads: int, loop: LoopSampling, make: Callable[[GraphTables], BatchSource] | None
    ) -> None:
        self.plan, self.loop, self._make = plan, loop, make
        self.owner = os.getpid()
        self.batches = BatchList(plan, graph)
        self._graph, self.memory, self._wants_copy = graph, graph.memory(0), True
        self._wants_block = make is None  # others' batches lie elsewhere
        self.window = num_threads + plan.runtime.prefetch
        most_ahead = min(_MOST_AHEAD, graph_nbytes(graph.arrays))  # a batch is hardly larger than its graph
        self.pool = BlockPool(self.window + 1, pinned_for=plan.runtime.pin_device, most_ahead=most_ahead)
        # One lock. Threads wait for something to do, consumers for batches.
        self.lock = threading.Lock()
        self.work, self.ready = threading.Condition(self.lock), threading.Condition(self.lock)
        self.closed = False
        self.shift = 0  # of threads: those of an older one end
        self.scheduler: Scheduler[SampledSubgraph | BaseException] = Scheduler(self.window)
        self.schedule: Schedule | None = None
        self.times_at_once, self.left_s = 0, -math.inf  # that the consumer has come back at once; and when it left last
        self._beside = 0  # batches that a thread is to sample while the consumer samples its own
        self.has_cpus = own_cpus() > 1  # else the two would take the one from each other
        self._batch_times = BatchTimes()
        self._tables: GraphTables | None = None
        self._tables_lock = threading.Lock()

    def tables(self) -> GraphTables:
        """The tables of the graph as it lies in memory now."""
        with self._tables_lock:
            if self._tables is None or self._tables.graph is not self.memory.graph:
                self._tables = GraphTables(self.memory.graph, weighted=self.plan.sampling.weight is not None)
            return self._tables

    def want_copy(self) -> None:
        """Has the graph copied into huge pages, if it may be: called with the first batch, which would wait for a processor beside it."""
        if self._wants_copy:
            self._wants_copy = False
            self._graph.memory(self.plan.runtime.memory_budget)

    def prepare_block(self, timeout_s: float = _PREPARING_S) -> None:
        """Gets pages for the first batch while another thread samples it."""
        if self._wants_block:
            self._wants_block = False
            self.pool.prepare(min(timeout_s, _PREPARING_S))

    def sampler(self) -> BatchSource:
        """Returns a sampler for one thread."""
        if self._make is not None:
            return self._make(self.tables())
        return local_sampler(self.tables(), self.plan.inputs, self.plan.sampling, cached=self.plan.cached, unpacks=True)

    # For holders of the lock.

    @property
    def consumer_samples(self) -> bool:
        """Whether the consumer samples batches itself, and threads are at rest but for one, where the consumer asks it."""
        return self.times_at_once >= _TIMES_AT_ONCE and self._batch_times.least_s < self.loop.small_s

    def claimed_together(self) -> _Claim | None:
        """The next batches, for the consumer to sample, and as many for a thread beside it: few at first, so that the first is no later."""
        group = max(1, min(self._batch_times.batches_in(self.loop.group_s), _LARGEST_GROUP, 1 + self.scheduler.delivered))
        self.scheduler.window = max(self.window, 2 * group)
        self.pool.keep = max(self.pool.keep, self.scheduler.window + 1)  # a smaller group's blocks are too few for the next larger one
        claim = self.claimed(group)
        if self.has_cpus:
            self._beside = group
            self.work.notify()
        return claim

    def claimed(self, most: int = 1) -> _Claim | None:
        """The next batches, at most so many, for the calling thread to sample; None where there are none now."""
        scheduler = self.scheduler
        steps: list[Step] = []
        while self.schedule is not None and len(steps) < most and scheduler.next_step() is not None:
            steps.append(self.schedule.step(scheduler.assign(threading.get_ident())[1]))
        return _Claim(scheduler.generation, scheduler.epoch, steps) if steps else None

    def wake_threads(self) -> None:
        """Wakes the threads if there is something for them to do."""
        if not self.consumer_samples and self.scheduler.next_step() is not None:
            self.work.notify_all()

    def wake_all(self) -> None:
        """Wakes all waiting threads to look again."""
        self.work.notify_all()
        self.ready.notify_all()

    # For all other threads.

    def claim(self, shift: int) -> _Claim | None:
        """Waits for a batch to sample; None when closed, and for threads that others take the place of."""
        with self.lock:
            while True:
                if self.closed or shift != self.shift:
                    return None
                claim, self._beside = self.claimed(self._beside if self.consumer_samples else 1), 0
                if claim is not None:
                    return claim
                self.pool.reclaim()
                self.work.wait(_SLICE_S if self.consumer_samples else _SLICE_S * 10)
                if self.consumer_samples and time.perf_counter() - self.left_s > _SLICE_S:
                    self.times_at_once = 0  # it has gone without a word: batches are to be ready when it comes back

    def put(self, claim: _Claim, results: Sequence[SampledSubgraph | BaseException]) -> None:
        """Hands batches, or the errors that they ended in, to the consumer."""
        with self.lock:
            first, wanted = results[0], self.scheduler.delivered
            self._batch_times.add(first.sample_s + first.gather_s if isinstance(first, SampledSubgraph) else math.inf)
            for step, result in zip(claim.steps, results, strict=True):
                self.scheduler.complete(claim.generation, step.step, result)
            if wanted in self.scheduler.results:
                self.ready.notify_all()

    def unclaim(self) -> None:
        """Gives up what the calling thread has claimed and not put: another thread samples it. Does nothing in a forked child."""
        if os.getpid() != self.owner:
            return
        with self.lock:
            if self.scheduler.lost(threading.get_ident()):
                self.wake_all()

    def close(self) -> None:
        """Ends the threads once they have finished the batch they are at. Does nothing in a forked child."""
        if os.getpid() != self.owner:
            return
        with self.lock:
            self.closed = True
            self.scheduler.results.clear()
            self.wake_all()
        self.pool.clear()


def _sample(
    shared: _Shared, sampler: BatchSource, requests: Sequence[SampleRequest], epoch: int, steps: Sequence[Step], worker: str = ""
) -> list[SampledSubgraph]:
    tables = shared.tables()
    if sampler.tables is not tables:
        sampler.use(tables)
    return [
        SampledSubgraph(epoch, step.batch_index, step.is_padding, *own[:4], worker, own.began_s, tensors=own.tensors)
        for step, own in zip(steps, sampler.sample_all(requests, shared.pool.lease), strict=True)
    ]


def _sampled(
    shared: _Shared, sampler: BatchSource, epoch: int, steps: Sequence[Step], worker: str
) -> list[SampledSubgraph | BaseException]:
    """Samples batches together, or one by one where that fails, so that an error is its own batch's alone."""
    try:
        with Guarded(lambda: sampler.tables.graph.each()):
            requests = [shared.batches.request(epoch, step.batch_index) for step in steps]
            return [*_sample(shared, sampler, requests, epoch, steps, worker)]
    except Exception as error:
        if len(steps) == 1:
            return [error]
        return [found for step in steps for found in _sampled(shared, sampler, epoch, [step], worker)]


def _run(shared: _Shared, shift: int, name: str) -> None:
    """A sampling thread."""
    sampler: BatchSource | None = None
    while (claim := shared.claim(shift)) is not None:
        try:
            if sampler is None:
                sampler = shared.sampler()
            if claim.steps[0].step == 1:  # the first batch comes first
                shared.prepare_block()
            shared.put(claim, _sampled(shared, sampler, claim.epoch, claim.steps, name))
        except BaseException as error:  # everything goes to the consumer, who raises it
            shared.put(claim, [error] * len(claim.steps))


class _ThreadSigns:
    """Signs of life of sampling threads, as ``BatchWait`` looks for those of processes: the processor time that a thread has used.

    Args:
        threads: The threads; below, the identifier of the one that samples what is waited for, or None where none does.
    """

    def __init__(self, threads: Sequence[threading.Thread]) -> None:
        self._threads, self._began, self._warned = threads, Deadline(None), False
        self.look()

    def look(self) -> None:
        """Takes the processor times of the threads, which later looks are held against."""
        self._since, self._seen_ns = Deadline(SIGN_SILENCE_S), {thread.ident: self._cpu_ns(thread.ident) for thread in self._threads}

    def is_sampling(self, thread: int | None) -> bool:
        """Whether a thread has used its processor since the last look: one that waits for a hung disk has not."""
        return self._cpu_ns(thread) > self._seen_ns.get(thread, 0) + _WAKING_NS

    def may_show(self, thread: int | None) -> bool:
        """Whether a thread is alive, and on a busy machine may not have had its turn since the last look."""
        return self._cpu_ns(thread) > 0 and not self._since.has_passed

    def is_warning_due(self, thread: int | None, timeout_s: float) -> bool:
        """Whether half of a timeout has passed while a thread samples; True once."""
        if timeout_s <= 0 or self._warned or self._began.elapsed_s < timeout_s / 2 or not self.is_sampling(thread):
            return False
        self._warned = True
        return True

    def _cpu_ns(self, ident: int | None) -> int:
        """Returns the processor time of one of the threads, in nanoseconds; 0 where it is none of them, or has ended."""
        if not any(thread.ident == ident and thread.is_alive() for thread in self._threads):
            return 0
        clock_of = getattr(time, "pthread_getcpuclockid", None)  # macOS has none: the process's stands in
        return time.process_time_ns() if clock_of is None else time.clock_gettime_ns(clock_of(ident))


class InProcessStream:
    """Batches sampled by threads, delivered in order.

    Args:
        plan: The plan.
        graph: The graph.
        num_threads: Sampling threads, at least 1.
        events: Receives the stage "compile".
        loop: When the consumer samples batches itself.
        make: Makes samplers of others than processors; None samples with the kernels.

    Attributes:
        batches: See ``BatchStream.batches``.
    """

    def __init__(
        self,
        plan: LoaderPlan,
        graph: GraphHandle,
        num_threads: int,
        events: EventSink,
        loop: LoopSampling,
        make: Callable[[GraphTables], BatchSource] | None = None,
    ) -> None:
        if make is None:  # others have few kernels to run, which are loaded where they run
            prepare(plan.inputs, plan.sampling, caches=bool(plan.cached))
            warm(events)
        if graph.store is not None:
            watch()
        self._shared = shared = _Shared(plan, graph, num_threads, loop, make)
        self.batches = shared.batches
        weakref.finalize(self, shared.close).atexit = False  # also of one that an interrupt keeps from being made
        self._threads = _start_threads(shared, num_threads)
        self._idle: deque[BatchSource] = deque()
        self._now_lock = threading.Lock()
        self._restarting = threading.Lock()

    def start_epoch(self, epoch: int, schedule: Schedule) -> None:
        """Starts an epoch; what is left of the one before is dropped."""
        shared = self._shared
        self._check_open()
        with shared.lock:
            self._check_open()
            shared.schedule, shared.scheduler.window = schedule, shared.window
            shared.scheduler.begin(epoch, len(schedule))
            shared.wake_all()

    def recv(self, timeout_s: float, check: Callable[[], None]) -> SampledSubgraph | EndOfEpoch:
        """The next batch, in order; see ``BatchStream.recv``."""
        shared = self._shared
        is_at_once = time.perf_counter() - shared.left_s < shared.loop.back_s
        shared.times_at_once = min(shared.times_at_once + 1, 4 * _TIMES_AT_ONCE) if is_at_once else shared.times_at_once // 2
        if len(self._threads) == 1 and shared.has_cpus:
            shared.prepare_block(timeout_s / 4)
        try:
            while isinstance(found := self._wait(timeout_s, check), _Claim):
                self._sample_here(found)
        except BaseException:
            shared.unclaim()
            raise
        shared.want_copy()
        shared.left_s = time.perf_counter()
        return found

    def _wait(self, timeout_s: float, check: Callable[[], None]) -> SampledSubgraph | EndOfEpoch | _Claim:
        """Waits for the next batch, or gives it to the caller to sample; see ``_Shared.consumer_samples``."""
        shared, scheduler = self._shared, self._shared.scheduler
        signs: _ThreadSigns | None = None
        step = ready = -1
        self._check_open()
        with shared.lock:
            while True:
                if shared.closed:  # meanwhile
                    self._check_open()
                check()
                if scheduler.is_over:
                    return END_OF_EPOCH
                if scheduler.delivered != step:  # another thread may have had the one before: this is a new wait
                    step, deadline = scheduler.delivered, Deadline(timeout_s)
                    ready = len(scheduler.results)
                    signs = None
                if step in scheduler.results:
                    break
                if shared.consumer_samples and scheduler.next_step() == step and timeout_s > shared.loop.small_s:
                    claim = shared.claimed_together()
                    assert claim is not None, "there is a next step"
                    return claim
                shared.wake_threads()
                if not all(thread.is_alive() for thread in self._threads):
                    raise WorkerDied("a sampling thread ended unexpectedly", "create the loader again")
                what, thread = f"epoch {scheduler.epoch}, step {step}", scheduler.worker_of(step)
                signs = signs or _ThreadSigns(self._threads)
                if signs.is_warning_due(thread, timeout_s):
                    shared.lock.release()  # a filter of warnings is a user's code
                    try:
                        warn(f"waiting for {what} for {timeout_s / 2:.1f} s; a thread is sampling it", RuntimeWarning)
                    finally:
                        shared.lock.acquire()
                    continue
                if deadline.has_passed and timeout_s > 0 and signs.is_sampling(thread):
                    signs.look()
                    deadline = Deadline(timeout_s)
                elif deadline.has_passed and (timeout_s <= 0 or not signs.may_show(thread)):
                    raise BatchTimeout(
                        f"no batch within {timeout_s:g} s ({what})", "raise batch_timeout_s, or lower num_neighbors or batch_size"
                    )
                shared.ready.wait(deadline.within(_SLICE_S) or _SLICE_S)
            result = scheduler.hand_out()
            shared.wake_threads()
        subgraph = _raise_or_return(result)
        subgraph.ready = ready
        return subgraph

    def _sample_here(self, claim: _Claim) -> None:
        """Samples batches of the epoch in the calling thread."""
        shared = self._shared
        try:
            sampler = self._idle_sampler()
            shared.put(claim, _sampled(shared, sampler, claim.epoch, claim.steps, "loop"))
        except Exception as error:
            shared.put(claim, [error] * len(claim.steps))
        else:
            self._idle.append(sampler)

    def sample_now(self, epoch: int, batch_index: int, seeds: NDArray[np.int64] | None = None) -> SampledSubgraph:
        """Samples one batch in the calling thread; see ``BatchStream.sample_now``."""
        self._check_open()
        return self.sample_request(epoch, batch_index, self._shared.batches.request(epoch, batch_index, seeds))

    def sample_request(self, epoch: int, batch_index: int, request: SampleRequest) -> SampledSubgraph:
        """Samples a batch that the caller has put together, in the calling thread."""
        shared = self._shared
        self._check_open()
        with self._now_lock:  # side by side, callers take the interpreter from each other in the middle of their batches
            try:
                sampler = self._idle_sampler()
                with Guarded(lambda: sampler.tables.graph.each()):
                    result = _sample(shared, sampler, [request], epoch, [Step(0, batch_index, None)])[0]
            except Exception as error:
                return _raise_or_return(error)
            self._idle.append(sampler)
        shared.want_copy()
        return result

    def _idle_sampler(self) -> BatchSource:
        """Returns a sampler for the calling thread. It is put back once its batch is complete: an interrupt leaves its memory unusable."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._shared.sampler()

    def status(self) -> StreamStatus:
        """Returns the stream's state, counts and memory. Takes no lock: may be called at any moment, also in a forked child."""
        shared = self._shared
        is_open = not shared.closed and os.getpid() == shared.owner
        state = "closed" if not is_open else "ready" if shared.scheduler.is_over else "sampling"
        ready = len(shared.scheduler.results)
        buffers = shared.pool.num_leased_bytes + shared.pool.free_bytes
        processes = (look_at("trainer", os.getpid()),)
        return StreamStatus(state, len(self._threads), ready, buffers, shared.memory.copied_bytes, shared.scheduler.window, processes)

    def restart(self, timeout_s: float) -> None:
        """Has other threads take the place of those that sample; these finish the batches that they are at."""
        shared = self._shared
        self._check_open()
        with self._restarting:
            with shared.lock:
                self._check_open()
                shared.shift += 1
                try:
                    before, self._threads = self._threads, _start_threads(shared, len(self._threads))
                except BaseException:  # an interrupt; no thread has seen the new shift yet
                    shared.shift -= 1
                    raise
                shared.wake_all()
            deadline = Deadline(timeout_s)
            for thread in before:
                thread.join(deadline.left_s)
                if thread.is_alive():
                    raise StartTimeout(f"a sampling thread is still at its batch after {timeout_s:g} s", "raise start_timeout_s")

    def close(self) -> None:
        """Ends the threads; batches that were handed out stay valid. Does nothing in a forked child."""
        if os.getpid() != self._shared.owner:
            return
        self._shared.close()
        deadline = Deadline(_JOIN_S)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(deadline.left_s)

    def _check_open(self) -> None:
        check_owner(self._shared.owner, is_closed=self._shared.closed)


def _start_threads(shared: _Shared, count: int) -> list[threading.Thread]:
    threads = [
        threading.Thread(target=_run, args=(shared, shared.shift, f"thread {i}"), name=f"gnnkit-sampler-{i}", daemon=True)
        for i in range(count)
    ]
    for started, thread in enumerate(threads):
        try:
            thread.start()
        except RuntimeError as error:
            what = f"the system starts {started} of {count} sampling threads and no more"
            raise PlanError(what, "take fewer: backend=InProcess(num_threads=...)") from error
    return threads


def _raise_or_return(result: SampledSubgraph | BaseException) -> SampledSubgraph:
    if isinstance(result, GnnkitError):
        raise result
    if isinstance(result, BaseException):
        raise SamplingError(f"sampling a batch failed: {type(result).__name__}: {result}") from result
    return result

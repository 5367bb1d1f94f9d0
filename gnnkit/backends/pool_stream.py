"""A loader's connection to its sampling processes."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gnnkit.backends.base import END_OF_EPOCH, EndOfEpoch, PoolBackend, StreamStatus, check_owner
from gnnkit.backends.loader_pool import LoaderPool, Session, pool_registry
from gnnkit.backends.stored_graph import GraphOrder
from gnnkit.errors import BatchTimeout, GnnkitError, StartTimeout, on_error
from gnnkit.events import EventSink
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.beats import SIGN_SILENCE_S
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.runtime.pool import BatchRequest, Sampled, WorkerPool
from gnnkit.runtime.process_status import look_at
from gnnkit.runtime.remote import fresh, layout_from_json
from gnnkit.runtime.ring import BlockPool
from gnnkit.runtime.scheduler import Scheduler
from gnnkit.sampling.schedule import Schedule
from gnnkit.sampling.subgraph import SampledSubgraph
from gnnkit.waiting import Deadline

R = TypeVar("R")


# Blocks that are kept for batches that are copied out of their slots.
_KEPT_BLOCKS = 3


class _PlaceLost(Exception):
    """The loader has lost its place, to a newer one or because it was not used; it takes another one."""


class BatchWait:
    """One wait.

    Args:
        workers: The processes.
        timeout_s: The deadline; 0 waits for nothing.
        what: What is waited for, for the error.
    """

    def __init__(self, workers: WorkerPool, timeout_s: float, what: str) -> None:
        self._workers, self._timeout_s, self._what = workers, timeout_s, what
        self._started = self._since = time.monotonic()
        self._deadline = self._started + timeout_s
        self._clocks: dict[int, int] = {}
        self._warned = False

    def _look(self) -> dict[int, int]:
        return {rank: self._workers.signs(rank).cpu_ns for rank in self._workers.pids}

    @property
    def left_s(self) -> float:
        """Seconds to the deadline."""
        return max(0.0, self._deadline - time.monotonic())

    def check(self, ranks: list[int]) -> str | None:
        """Looks at the processes that could bring what is waited for; to be called once it has been waited for a while.

        Args:
            ranks: Their numbers.

        Returns:
            A warning that is due now, or None.

        Raises:
            BatchTimeout: The deadline has passed and none of them is sampling.
        """
        now = time.monotonic()
        if not self._clocks:
            self._clocks = self._look()
        if self._timeout_s > 0 and not self._warned and now - self._started >= self._timeout_s / 2 and self._is_sampling(ranks):
            self._warned = True
            return f"waiting for {self._what} for {now - self._started:.1f} s; {self._whereabouts(ranks)}"
        if now < self._deadline:
            return None
        # A process on a busy machine must have had time to show what it is doing.
        if self._timeout_s > 0 and now - self._since < SIGN_SILENCE_S and any(self._workers.signs(rank).is_fresh for rank in ranks):
            self._deadline = self._since + SIGN_SILENCE_S
            return None
        if self._timeout_s > 0 and (self._is_sampling(ranks) or self._workers.is_starting):  # which has a deadline of its own
            self._since, self._deadline, self._clocks = now, now + self._timeout_s, self._look()
            return None
        raise BatchTimeout(
            f"no batch within {self._timeout_s:g} s ({self._what}); {self._whereabouts(ranks)}",
            "raise batch_timeout_s, lower num_neighbors or batch_size, or close the loader and make it again",
        )

    def _is_sampling(self, ranks: list[int]) -> bool:
        """Whether one of them is alive, at a batch, and has used its processor since the last look: a hung disk does not count."""
        for rank in ranks:
            signs = self._workers.signs(rank)
            if signs.is_fresh and signs.step >= 0 and signs.cpu_ns > self._clocks.get(rank, 0):
                return True
        return False

    def _whereabouts(self, ranks: list[int]) -> str:
        said = []
        for rank in ranks:
            who, signs = self._workers.describe(rank), self._workers.signs(rank)
            if who is None:
                continue
            seen = "was never seen" if signs.seen_s == float("inf") else f"was last seen {signs.seen_s:.1f} s ago"
            doing = f", sampling step {signs.step} for {signs.busy_s:.1f} s" if signs.step >= 0 else ""
            said.append(f"{who} and {seen}{doing}")
        return "; ".join(said) or "no sampling process has it"


class PoolStream:
    """Batches sampled by processes, delivered in order.

    Every message is handled by a thread that waits for a batch, whichever loader it is for: there is no thread of the stream's own.

    Args:
        options: The backend's options.
        plan: The plan.
        graph: The graph.
        events: Receives the stages "start" and "compile".

    Attributes:
        batches: See ``BatchStream.batches``.

    Raises:
        StartTimeout: A process did not become ready in time, or ended.
        PlanError: The system's limits or an option do not allow it.
        MemoryLimitError: There is no memory for it.
    """

    def __init__(self, options: PoolBackend, plan: LoaderPlan, graph: GraphHandle, events: EventSink) -> None:
        self._timeout_s = plan.runtime.batch_timeout_s
        self._pools = pool_registry()
        self._blocks = BlockPool(_KEPT_BLOCKS, pinned_for=plan.runtime.pin_device)
        self._session = Session(options, plan, graph, events)
        self.batches = self._session.batches
        # The processes that sample a graph in memory may read it from a store of their own.
        self._graph_order = GraphOrder(graph.arrays) if graph.store is None else None
        self._end = weakref.finalize(self, self._pools.forget, self._session)  # also when the interpreter ends
        with on_error(self._end):
            self._pools.open(self._session)

    def start_epoch(self, epoch: int, schedule: Schedule) -> None:
        """Starts an epoch; what is left of the one before is dropped. Processes that have died are started again."""

        def begin(pool: LoaderPool, scheduler: Scheduler[Any]) -> None:
            self._pools.tidy()
            pool.begin(self._session, epoch, schedule)

        self._until(begin, self._session.has_news)

    def recv(self, timeout_s: float, check: Callable[[], None]) -> SampledSubgraph | EndOfEpoch:
        """The next batch, in order; see ``BatchStream.recv``."""
        session = self._session
        if session.scheduler is None and session.is_over:  # it does not come back for nothing
            self._check_open()
            return END_OF_EPOCH
        wait: BatchWait | None = None
        ready, waited_for = -1, -1

        def look(pool: LoaderPool, scheduler: Scheduler[Any]) -> SampledSubgraph | float | None:
            nonlocal wait, ready, waited_for
            if scheduler.is_over:
                return None
            check()
            # What else has arrived can wait while there are batches that came together with the one before.
            if scheduler.delivered % session.group == 0 or session.failure is not None or scheduler.delivered not in scheduler.results:
                pool.hear(revive=session.failure is None)
            ready = len(scheduler.results) if ready < 0 else ready
            if scheduler.delivered in scheduler.results and (session.failure is None or scheduler.is_sampled):
                return self._deliver(pool, scheduler, ready)
            pool.assign()
            if session.failure is not None:
                raise fresh(session.failure)
            if wait is None or waited_for != scheduler.delivered:  # another thread may have had the one before
                waited_for = scheduler.delivered
                wait = BatchWait(pool.workers, timeout_s, f"epoch {scheduler.epoch}, step {waited_for}")
                return float(timeout_s)
            sampling = scheduler.worker_of(scheduler.delivered)
            return self._look(wait, list(pool.workers.pids) if sampling is None else [sampling])

        return self._until(look, session.has_news) or END_OF_EPOCH

    def sample_now(self, epoch: int, batch_index: int, seeds: NDArray[np.int64] | None = None) -> SampledSubgraph:
        """One batch outside the epoch, sampled by the process that has least to do; see ``BatchStream.sample_now``."""
        session = self._session
        wait: BatchWait | None = None
        answers: list[Sampled] = []
        request = BatchRequest(epoch, batch_index, seeds, answers.append)

        def look(pool: LoaderPool, scheduler: Scheduler[Any]) -> list[Sampled] | float:
            nonlocal wait
            is_first = wait is None
            if wait is None:
                wait = BatchWait(pool.workers, self._timeout_s, "a batch outside the epoch")
                pool.workers.settle()
                session.ask(request)
            pool.pump(revive=False)
            if request.rank < 0 and not pool.workers.pids:
                pool.pump(revive=True)
            if answers:
                return answers
            return float(self._timeout_s) if is_first else self._look(wait, [request.rank])

        try:
            sampled = self._until(look, lambda: bool(answers))[0]
        finally:
            if wait is not None:  # it was asked for
                with self._pools.lock:
                    session.forget(request)
        if isinstance(sampled, GnnkitError):
            raise sampled
        body, block = sampled
        return self._subgraph(body, block, epoch, batch_index, is_padding=None)

    def _until(self, look: Callable[[LoaderPool, Scheduler[Any]], R | float], is_due: Callable[[], bool]) -> R:
        """Calls ``look`` whenever something has come, until it has a result. A session that was evicted is admitted again first.

        Args:
            look: Called under the lock; returns the result, or the most seconds to wait for it. See ``Waiters.until``.
            is_due: Whether a call of ``look`` is due, for threads that handle this one's messages.
        """
        session, pools = self._session, self._pools

        def look_there(pool: LoaderPool) -> R | float:
            scheduler = session.scheduler
            if session.is_closed or scheduler is None or pools.places.get(session) is not pool:
                raise _PlaceLost
            session.used = time.monotonic()
            return look(pool, scheduler)

        try:
            while True:
                if session.is_closed or os.getpid() != pools.owner:
                    self._check_open()
                pool = pools.places.get(session)
                if pool is None:
                    pools.enter(session)
                    continue
                try:
                    return pool.waiters.until(partial(look_there, pool), is_due, pool.workers.poller, self._settle)
                except _PlaceLost:  # in this moment
                    continue
        finally:
            if pools.forgotten or session.notices:
                self._settle()

    def _deliver(self, pool: LoaderPool, scheduler: Scheduler[Any], ready: int) -> SampledSubgraph:
        """Hands the next batch out; where the user holds so many that slots run short, in memory of its own."""
        session, (job, result) = self._session, scheduler.results[scheduler.delivered]
        if isinstance(result, BaseException):
            scheduler.hand_out()
            session.withdraw(job)
            pool.assign()
            raise result
        body, block = result
        if block is None:
            nbytes, ring = body["layout"]["nbytes"], session.ring
            assert ring is not None, "it has a place"
            if ring.num_leased < ring.num_slots - scheduler.window:
                block = job.ring.lease(job.slot, nbytes)
            else:
                block = self._blocks.lease(nbytes)
                block[:nbytes] = job.ring.bytes_of(job.slot)[:nbytes]
                session.withdraw(job)
        scheduler.hand_out()
        pool.assign()
        subgraph = self._subgraph(body, block, job.epoch, job.batch, is_padding=job.is_padding)
        lane, thread = pool.workers.lane(job.rank), body["thread"]
        subgraph.worker, subgraph.ready = lane if thread is None else f"{lane}, thread {thread}", ready
        return subgraph

    def _subgraph(
        self, body: Mapping[str, Any], block: NDArray[np.uint8], epoch: int, batch_index: int, *, is_padding: bool | None
    ) -> SampledSubgraph:
        layout = layout_from_json(body["layout"])
        if self._graph_order is not None:
            layout = self._graph_order(layout)
        times = body["sample_s"], body["gather_s"], "", body["began_s"]
        return SampledSubgraph(epoch, batch_index, is_padding, layout, block, *times)

    def status(self) -> StreamStatus:
        """Returns the stream's state, counts and memory. Takes no lock: may be called at any moment, by a signal handler for example."""
        session, pool, scheduler = self._session, self._pools.places.get(self._session), self._session.scheduler
        buffers = self._blocks.num_leased_bytes + self._blocks.free_bytes
        shared = session.graph.shared
        ring, trainer = session.ring, look_at("trainer", os.getpid())
        details: dict[str, Any] = {"pids": {}, "logs": "", "restarts": 0, "slots": 0, "slot_bytes": 0}
        if pool is None or scheduler is None or ring is None:
            state, graph_bytes = "closed" if session.is_closed else "idle", 0 if shared is None else shared.nbytes
            return StreamStatus(state, session.num_workers, 0, buffers, graph_bytes, 0, (trainer,), details)
        state, workers = "ready" if scheduler.is_over else "sampling", pool.workers
        details |= {"pids": dict(workers.pids), "restarts": pool.restarts, **workers.details()}
        details |= {"slots": ring.num_slots, "slot_bytes": ring.slot_bytes}
        buffers += ring.block.touched_bytes
        processes, ready = (trainer, *workers.statuses()), len(scheduler.results)
        return StreamStatus(state, session.num_workers, ready, buffers, workers.graph_bytes, scheduler.window, processes, details)

    def restart(self, timeout_s: float) -> None:
        """Has other processes take the place of those that sample, for all loaders that share them; see ``BatchStream.restart``."""
        session, deadline = self._session, Deadline(timeout_s)
        before: set[int] | None = None

        def look(pool: LoaderPool, scheduler: Scheduler[Any]) -> float | None:
            nonlocal before
            if before is None:
                before = set(pool.workers.pids.values())
                pool.restart()
            pool.pump(revive=True)
            if session.failure is not None:
                raise fresh(session.failure)
            are_new = before.isdisjoint(pool.workers.pids.values())
            if are_new and len(pool.workers.ready) >= session.num_workers:
                return None
            if deadline.has_passed:
                there = len(pool.workers.ready) if are_new else 0
                text = f"{there} of {session.num_workers} sampling processes were there again after {timeout_s:g} s"
                raise StartTimeout(text, "raise start_timeout_s, or look at the logs")
            return deadline.left_s

        self._until(look, session.has_news)

    def close(self) -> None:
        """Gives the place in the workers up, whose processes end with their last loader; batches that were handed out stay valid.

        Does nothing in a forked child.
        """
        if os.getpid() == self._pools.owner:
            self._session.is_closed = True
            self._pools.forget(self._session)
            self._end.detach()
            self._blocks.clear()

    def _settle(self) -> None:
        """Frees the places of forgotten loaders and reports events: the work that must not be done under the lock."""
        self._pools.collect()
        self._session.tell()

    def _look(self, wait: BatchWait, ranks: list[int]) -> float:
        """Looks at the processes that could bring what is waited for; the most seconds to wait on. See ``BatchWait.check``."""
        if (warning := wait.check(ranks)) is not None:
            self._session.notices.append(warning)
        return wait.left_s

    def _check_open(self) -> None:
        check_owner(self._pools.owner, is_closed=self._session.is_closed)

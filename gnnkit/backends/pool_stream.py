"""A loader's connection to its sampling processes."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.backends.base import END_OF_EPOCH, EndOfEpoch, StreamStatus
from gnnkit.backends.ring_scheduler import RingScheduler
from gnnkit.backends.session import NOBODY, SLICE_S, BatchWait, Session
from gnnkit.backends.shared_pool import SharedPool, crews
from gnnkit.backends.stored_graph import in_order
from gnnkit.errors import LoaderClosed, StartTimeout
from gnnkit.events import EventSink
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.buffers import BlockPool
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.runtime.process_status import look_at
from gnnkit.runtime.remote import error_from_json, fresh, layout_from_json
from gnnkit.runtime.shared_block import mapped
from gnnkit.runtime.wire import Message, in_memory
from gnnkit.sampling.subgraph import SampledSubgraph

if TYPE_CHECKING:
    from gnnkit.backends.worker_pool import PoolOptions

# Blocks that are kept for batches that are copied out of their slots.
_KEPT_BLOCKS = 3


class PoolStream:
    """Batches sampled by processes, delivered in order.

    Every message is handled by a thread that waits for a batch, whichever loader it is for: there is no thread of the stream's own.

    Args:
        options: The backend's options.
        plan: The plan.
        graph: The graph.
        events: Receives the stages "start" and "compile".

    Raises:
        StartTimeout: A process did not become ready in time, or ended.
        PlanError: The system's limits or an option do not allow it.
        MemoryLimitError: There is no memory for it.
    """

    def __init__(self, options: PoolOptions, plan: LoaderPlan, graph: GraphHandle, events: EventSink) -> None:
        self._timeout_s = plan.runtime.batch_timeout_s
        self._crews = crews()
        self._pool = BlockPool(_KEPT_BLOCKS, pinned_for=plan.runtime.pin_device)
        self._channel = Session(options, plan, graph, events)
        self._end = weakref.finalize(self, self._crews.forget, self._channel)  # also when the interpreter ends
        try:
            self._crews.open(self._channel)
        except BaseException:
            self._end()
            raise

    def start_epoch(self, epoch: int, first_batch: int = 0) -> None:
        """Starts an epoch; what is left of the one before is dropped. Processes that have died are started again."""
        while True:
            self._check_open()
            self._crews.enter(self._channel)
            with self._crews.lock:
                self._check_open()
                hub = self._crews.hub_of(self._channel)
                if hub is not None:  # it has not lost its place in this moment
                    self._crews.tidy()
                    hub.begin(self._channel, epoch, self._channel.batches.schedule(first_batch))
            self._settle()
            if hub is not None:
                return

    def recv(self, timeout_s: float, check: Callable[[], None]) -> SampledSubgraph | EndOfEpoch:
        """The next batch, in order; see ``BatchStream.recv``."""
        channel, patience, ready, waited_for = self._channel, None, None, -1
        try:
            while True:
                self._check_open()
                if channel.is_over:
                    return END_OF_EPOCH
                self._crews.enter(channel)
                with self._crews.lock:
                    self._check_open()
                    check()
                    hub, dealer = self._crews.hub_of(channel), channel.dealer
                    if hub is None or dealer is None:  # it has lost its place in this moment
                        continue
                    hub.pump(revive=channel.failure is None)
                    ready = len(dealer.results) if ready is None else ready
                    if channel.failure is not None and not dealer.is_sampled:
                        raise fresh(channel.failure)
                    if dealer.delivered in dealer.results:
                        return self._deliver(hub, dealer, ready)
                    if patience is None or waited_for != dealer.delivered:  # another thread may have had the one before
                        waited_for = dealer.delivered
                        patience = BatchWait(hub.crew, timeout_s, f"epoch {dealer.epoch}, step {waited_for}")
                    sampling = dealer.worker_of(dealer.delivered)
                    self._look(patience, list(hub.crew.pids) if sampling is None else [sampling])
                    poller = hub.crew.poller()
                self._settle()
                poller.poll(min(SLICE_S, patience.left_s) * 1000)
        finally:
            self._settle()

    def sample_now(self, epoch: int, batch_index: int, seeds: NDArray[np.int64] | None = None) -> SampledSubgraph:
        """One batch outside the epoch, sampled by the process that has least to do; see ``BatchStream.sample_now``."""
        while True:
            answer = self._ask(epoch, batch_index, seeds)
            if answer is not None:
                return self._now_batch(answer, epoch, batch_index)

    def _ask(self, epoch: int, batch_index: int, seeds: NDArray[np.int64] | None) -> Message | None:
        """Asks a process for a batch; None where it went before it could answer."""
        channel, patience = self._channel, None
        requests, number = channel.requests, channel.requests.begin()
        try:
            while True:
                self._check_open()
                self._crews.enter(channel)
                with self._crews.lock:
                    self._check_open()
                    hub, dealer = self._crews.hub_of(channel), channel.dealer
                    if hub is None or dealer is None:  # it has lost its place in this moment
                        return None
                    if patience is None:
                        hub.crew.settle()
                    hub.pump(revive=False)
                    if requests.rank_of(number) == NOBODY and requests.result(number) is None:
                        hub.pump(revive=not hub.crew.pids)
                        if hub.crew.pids:
                            requests.ask(number, _least_busy(hub, dealer))
                            _send_request(hub, channel, requests.rank_of(number), seeds, number=number, epoch=epoch, batch=batch_index)
                    answer = requests.result(number)
                    if answer is not None:
                        return None if answer == "again" else answer
                    if patience is None:
                        patience = BatchWait(hub.crew, self._timeout_s, "a batch outside the epoch")
                    self._look(patience, [requests.rank_of(number)])
                    poller = hub.crew.poller()
                self._settle()
                poller.poll(min(SLICE_S, patience.left_s) * 1000)
        finally:
            requests.end(number)
            self._settle()

    def _deliver(self, hub: SharedPool, dealer: RingScheduler, ready: int) -> SampledSubgraph:
        """Hands the next batch out; where the user holds so many that slots run short, in memory of its own."""
        job, result = dealer.results[dealer.delivered]
        if isinstance(result, BaseException):
            dealer.hand_out()
            dealer.drop(job)
            raise result
        body, block = result
        if block is None:
            nbytes = body["layout"]["nbytes"]
            if dealer.ring.num_leased < dealer.ring.num_slots - dealer.window:
                block = dealer.ring.lease(job.slot)
                job.state = "held"
            else:
                block = self._pool.lease(nbytes)
                block[:nbytes] = dealer.ring.bytes_of(job.slot)[:nbytes]
                dealer.drop(job)
        dealer.hand_out()
        hub.deal()
        subgraph = self._subgraph(body, block, job.epoch, job.step.batch_index, is_padding=job.step.is_padding)
        subgraph.worker, subgraph.ready = hub.crew.lane(job.rank, body["thread"]), ready
        return subgraph

    def _now_batch(self, answer: Message, epoch: int, batch_index: int) -> SampledSubgraph:
        if "error" in answer.body:
            raise error_from_json(answer.body["error"], "sampling a batch")
        return self._subgraph(answer.body, mapped(answer.fds[0]), epoch, batch_index, is_padding=False)

    def _subgraph(
        self, body: Mapping[str, Any], block: NDArray[np.uint8], epoch: int, batch_index: int, *, is_padding: bool
    ) -> SampledSubgraph:
        layout, graph = layout_from_json(body["layout"]), self._channel.graph
        if graph.store is None:  # whoever samples it may have read it from a store of its own
            layout = in_order(layout, graph.arrays)
        times = body["sample_s"], body["gather_s"], "", body["began_s"]
        return SampledSubgraph(epoch, batch_index, is_padding, layout, block, *times)

    def status(self) -> StreamStatus:
        """What the stream is doing. Takes no lock: it may be asked for in the middle of anything, by a signal handler for example."""
        channel, hub, dealer = self._channel, self._crews.hub_of(self._channel), self._channel.dealer
        buffers = self._pool.num_leased_bytes + self._pool.free_bytes
        shared = channel.graph.shared
        if hub is None or dealer is None:
            state, details = "closed" if channel.is_closed else "idle", {"pids": {}, "logs": "", "restarts": 0, "slots": 0, "slot_bytes": 0}
            trainer = (look_at("trainer", os.getpid()),)
            return StreamStatus(state, channel.num_workers, 0, buffers, 0 if shared is None else shared.nbytes, 0, trainer, details)
        state = "ready" if dealer.is_over else "sampling"
        details = {
            "pids": dict(hub.crew.pids),
            "logs": hub.crew.logs,
            "restarts": hub.restarts,
            "slots": dealer.ring.num_slots,
            "slot_bytes": dealer.ring.slot_bytes,
            **hub.crew.details(),
        }
        buffers += dealer.ring.block.touched_bytes
        processes = look_at("trainer", os.getpid()), *hub.crew.statuses()
        ready, slots = len(dealer.results), dealer.window
        return StreamStatus(state, channel.num_workers, ready, buffers, hub.crew.graph_bytes, slots, processes, details)

    def restart(self, timeout_s: float) -> None:
        """Has other processes take the place of those that sample, for all loaders that share them; see ``BatchStream.restart``."""
        channel, deadline = self._channel, time.monotonic() + timeout_s
        before: set[int] | None = None
        while True:
            self._check_open()
            self._crews.enter(channel)
            with self._crews.lock:
                self._check_open()
                hub = self._crews.hub_of(channel)
                if hub is None:  # it has lost its place in this moment
                    continue
                if before is None:
                    before = set(hub.crew.pids.values())
                    hub.restart()
                hub.pump(revive=True)
                if channel.failure is not None:
                    raise fresh(channel.failure)
                are_new = before.isdisjoint(hub.crew.pids.values())
                if are_new and len(hub.crew.ready) >= channel.num_workers:
                    return
                if time.monotonic() >= deadline:
                    there = len(hub.crew.ready) if are_new else 0
                    text = f"{there} of {channel.num_workers} sampling processes were there again after {timeout_s:g} s"
                    raise StartTimeout(text, "raise start_timeout_s, or look at the logs")
                poller = hub.crew.poller()
            self._settle()
            poller.poll(SLICE_S * 1000)

    def close(self) -> None:
        """Gives the place in the crew up, whose processes end with their last loader; batches that were handed out stay valid.

        Does nothing in a forked child.
        """
        if os.getpid() == self._crews.owner:
            self._channel.is_closed = True
            self._crews.forget(self._channel)
            self._end.detach()
            self._pool.clear()

    def _settle(self) -> None:
        """What must not be done under the lock."""
        self._crews.collect()
        self._channel.tell()

    def _look(self, patience: BatchWait, ranks: list[int]) -> None:
        warning = patience.check(ranks)
        if warning is not None:
            self._channel.note(warning)

    def _check_open(self) -> None:
        if self._channel.is_closed:
            raise LoaderClosed("the loader is closed", "create a new one")
        if os.getpid() != self._crews.owner:
            raise LoaderClosed("the loader belongs to the process that this one was forked from", "create one in this process")


def _least_busy(hub: SharedPool, dealer: RingScheduler) -> int:
    return min(hub.crew.ready or hub.crew.pids, key=lambda rank: len(dealer.assigned_to(rank)))


def _send_request(hub: SharedPool, channel: Session, rank: int, seeds: NDArray[np.int64] | None, **request: int) -> None:
    fds = () if seeds is None else (in_memory(np.ascontiguousarray(seeds).data),)
    try:
        hub.crew.send(rank, "now", fds, c=channel.number, **request)
    finally:
        for fd in fds:
            os.close(fd)

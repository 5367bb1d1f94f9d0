"""A loader's connection to its sampling processes."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.backends.base import END_OF_EPOCH, EndOfEpoch, StreamStatus
from gnnkit.backends.channel import Channel
from gnnkit.backends.crews import crews
from gnnkit.backends.dealing import Dealer
from gnnkit.backends.hub import Hub
from gnnkit.backends.patience import SLICE_S, Patience
from gnnkit.errors import LoaderClosed
from gnnkit.events import EventSink
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.buffers import BlockPool
from gnnkit.runtime.graph_handle import GraphHandle
from gnnkit.runtime.remote import error_from_json, fresh, layout_from_json
from gnnkit.runtime.shared_block import mapped
from gnnkit.runtime.wire import Message, in_memory
from gnnkit.sampling.subgraph import SampledSubgraph

if TYPE_CHECKING:
    from gnnkit.backends.colocated import Colocated

# Blocks that are kept for batches that are copied out of their slots.
_KEPT_BLOCKS = 3


class ColocatedStream:
    """Batches sampled by processes, delivered in order.

    Every message is handled by a thread that waits for a batch, whichever loader it is for: there is no thread of the stream's own.

    Args:
        options: The backend's options.
        num_workers: Processes.
        plan: The plan.
        graph: The graph.
        events: Receives the stages "start" and "compile".

    Raises:
        StartTimeout: A process did not become ready in time, or ended.
        PlanError: The system's limits or an option do not allow it.
        MemoryLimitError: There is no memory for it.
    """

    def __init__(self, options: Colocated, num_workers: int, plan: LoaderPlan, graph: GraphHandle, events: EventSink) -> None:
        self._timeout_s = plan.runtime.batch_timeout_s
        self._crews = crews()
        self._pool = BlockPool(_KEPT_BLOCKS, pinned=plan.runtime.pin_memory)
        self._channel = Channel(options, num_workers, plan, graph, events)
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
        channel, patience = self._channel, None
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
                    if channel.failure is not None and not dealer.is_sampled:
                        raise fresh(channel.failure)
                    if dealer.delivered in dealer.results:
                        return self._deliver(hub, dealer)
                    if patience is None:
                        patience = Patience(hub.crew, timeout_s, f"epoch {dealer.epoch}, step {dealer.delivered}")
                    job = dealer.job_at(dealer.delivered)
                    self._look(patience, list(hub.crew.alive) if job is None else [job.rank])
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
                return _now_batch(answer, epoch, batch_index)

    def _ask(self, epoch: int, batch_index: int, seeds: NDArray[np.int64] | None) -> Message | None:
        """Asks a process for a batch; None where it went before it could answer."""
        channel, patience, number, rank = self._channel, None, None, -1
        try:
            while True:
                self._check_open()
                self._crews.enter(channel)
                with self._crews.lock:
                    self._check_open()
                    hub, dealer = self._crews.hub_of(channel), channel.dealer
                    if hub is None or dealer is None:  # it has lost its place in this moment
                        return None
                    hub.pump(revive=False)
                    if number is None:
                        hub.pump(revive=not hub.crew.alive)
                        rank = _least_busy(hub, dealer)
                        number = channel.requests.begin(rank)
                        _send_request(hub, channel, rank, seeds, number=number, epoch=epoch, batch=batch_index)
                    answer = channel.requests.result(number)
                    if answer is not None:
                        return None if answer == "again" else answer
                    if patience is None:
                        patience = Patience(hub.crew, self._timeout_s, "a batch outside the epoch")
                    self._look(patience, [rank])
                    poller = hub.crew.poller()
                self._settle()
                poller.poll(min(SLICE_S, patience.left_s) * 1000)
        finally:
            if number is not None:
                channel.requests.end(number)
            self._settle()

    def _deliver(self, hub: Hub, dealer: Dealer) -> SampledSubgraph:
        """Hands the next batch out; where the user holds so many that slots run short, in memory of its own."""
        job, result = dealer.results[dealer.delivered]
        if isinstance(result, BaseException):
            dealer.handed_out()
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
        dealer.handed_out()
        hub.deal()
        return _subgraph(body, block, job.epoch, job.turn.batch_index, is_padding=job.turn.is_padding)

    def status(self) -> StreamStatus:
        """What the stream is doing. Takes no lock: it may be asked for in the middle of anything, by a signal handler for example."""
        channel, hub, dealer = self._channel, self._crews.hub_of(self._channel), self._channel.dealer
        buffers = self._pool.num_leased_bytes + self._pool.free_bytes
        shared = channel.graph.shared
        if hub is None or dealer is None:
            state, details = "closed" if channel.is_closed else "idle", {"pids": {}, "logs": "", "restarts": 0, "slots": 0, "slot_bytes": 0}
            return StreamStatus(state, channel.num_workers, 0, buffers, 0 if shared is None else shared.nbytes, details)
        state = "ready" if dealer.is_over else "sampling"
        details = {
            "pids": {rank: child.pid for rank, child in hub.crew.alive.items()},
            "logs": str(hub.crew.folder.path),
            "restarts": hub.restarts,
            "slots": dealer.ring.num_slots,
            "slot_bytes": dealer.ring.slot_bytes,
            **({} if hub.link is None else hub.link.details()),
        }
        buffers += dealer.ring.block.touched_bytes
        return StreamStatus(state, channel.num_workers, len(dealer.results), buffers, hub.sharing.nbytes, details)

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

    def _look(self, patience: Patience, ranks: list[int]) -> None:
        warning = patience.check(ranks)
        if warning is not None:
            self._channel.note(warning)

    def _check_open(self) -> None:
        if self._channel.is_closed:
            raise LoaderClosed("the loader is closed", "create a new one")
        if os.getpid() != self._crews.owner:
            raise LoaderClosed("the loader belongs to the process that this one was forked from", "create one in this process")


def _least_busy(hub: Hub, dealer: Dealer) -> int:
    return min(hub.crew.ready or hub.crew.alive, key=lambda rank: len(dealer.jobs_of(rank)))


def _send_request(hub: Hub, channel: Channel, rank: int, seeds: NDArray[np.int64] | None, **request: int) -> None:
    fds = () if seeds is None else (in_memory(np.ascontiguousarray(seeds).data),)
    try:
        hub.crew.send(rank, "now", fds, c=channel.number, **request)
    finally:
        for fd in fds:
            os.close(fd)


def _now_batch(answer: Message, epoch: int, batch_index: int) -> SampledSubgraph:
    if "error" in answer.body:
        raise error_from_json(answer.body["error"], "sampling a batch")
    return _subgraph(answer.body, mapped(answer.fds[0]), epoch, batch_index, is_padding=False)


def _subgraph(body: Mapping[str, Any], block: NDArray[np.uint8], epoch: int, batch_index: int, *, is_padding: bool) -> SampledSubgraph:
    layout = layout_from_json(body["layout"])
    return SampledSubgraph(epoch, batch_index, is_padding, layout, block, body["sample_s"], body["gather_s"])

"""A loader's connection to its sampling processes."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.backends.base import END_OF_EPOCH, EndOfEpoch, StreamStatus
from gnnkit.backends.hub import SLICE_S, Hub, mapped
from gnnkit.backends.patience import Patience
from gnnkit.errors import LoaderClosed
from gnnkit.events import EventSink
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.buffers import BlockPool
from gnnkit.runtime.graph_handle import GraphHandle
from gnnkit.runtime.remote import error_from_json, fresh, layout_from_json
from gnnkit.runtime.wire import Message, in_memory
from gnnkit.sampling.subgraph import SampledSubgraph

if TYPE_CHECKING:
    from gnnkit.backends.colocated import Colocated

# Blocks that are kept for batches that are copied out of their slots.
_KEPT_BLOCKS = 3


class ColocatedStream:
    """Batches sampled by processes, delivered in order.

    Every message is handled by the thread that waits for a batch: there is no thread of the stream's own.

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
        self._lock = threading.RLock()
        self._closed, self._owner = False, os.getpid()
        self._pool = BlockPool(_KEPT_BLOCKS, pinned=plan.runtime.pin_memory)
        self._hub = hub = Hub(options, num_workers, plan, graph, events)
        self._end = weakref.finalize(self, hub.close)  # also when the interpreter ends
        try:
            hub.start()
        except BaseException:
            self._end()
            raise

    def start_epoch(self, epoch: int, first_batch: int = 0) -> None:
        """Starts an epoch; what is left of the one before is dropped. Processes that have died are started again."""
        with self._lock:
            self._check_open()
            self._hub.begin(epoch, self._hub.batches.schedule(first_batch))

    def recv(self, timeout_s: float) -> SampledSubgraph | EndOfEpoch:
        """The next batch, in order; see ``BatchStream.recv``."""
        hub, patience = self._hub, None
        while True:
            with self._lock:
                self._check_open()
                dealer = hub.dealer
                if dealer.is_over:
                    return END_OF_EPOCH
                hub.pump()
                hub.warn()
                if hub.failure is not None and not dealer.is_sampled:
                    raise fresh(hub.failure)
                if dealer.delivered in dealer.results:
                    return self._deliver()
                if patience is None:
                    patience = Patience(hub.crew, timeout_s, f"epoch {dealer.epoch}, step {dealer.delivered}")
                job = dealer.job_at(dealer.delivered)
                _look(patience, list(hub.crew.alive) if job is None else [job.rank])
            hub.crew.wait(min(SLICE_S, patience.left_s))

    def sample_now(self, epoch: int, batch_index: int, seeds: NDArray[np.int64] | None = None) -> SampledSubgraph:
        """One batch outside the epoch, sampled by the process that has least to do; see ``BatchStream.sample_now``."""
        hub = self._hub
        with self._lock:
            self._check_open()
            hub.pump(revive=True)
            rank = min(hub.crew.ready or hub.crew.alive, key=lambda r: len(hub.dealer.jobs_of(r)))
            number = hub.requests.begin(rank)
            fds = () if seeds is None else (in_memory(np.ascontiguousarray(seeds).data),)
            try:
                hub.crew.send(rank, "now", fds, number=number, epoch=epoch, batch=batch_index)
            finally:
                for fd in fds:
                    os.close(fd)
        patience = Patience(hub.crew, self._timeout_s, "a batch outside the epoch")
        try:
            while True:
                with self._lock:
                    self._check_open()
                    hub.pump()
                    hub.warn()
                    answer = hub.requests.result(number)
                    if answer is not None:
                        return _now_batch(answer, epoch, batch_index)
                    _look(patience, [rank])
                hub.crew.wait(min(SLICE_S, patience.left_s))
        finally:
            with self._lock:
                hub.requests.end(number)

    def _deliver(self) -> SampledSubgraph:
        """Hands the next batch out; where the user holds so many that slots run short, in memory of its own."""
        dealer = self._hub.dealer
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
        self._hub.deal()
        return _subgraph(body, block, job.epoch, job.turn.batch_index, is_padding=job.turn.is_padding)

    def status(self) -> StreamStatus:
        """What the stream is doing."""
        with self._lock:
            dealer, crew = self._hub.dealer, self._hub.crew
            state = "closed" if self._closed else "ready" if dealer.is_over else "sampling"
            buffers = dealer.ring.block.touched_bytes + self._pool.num_leased_bytes + self._pool.free_bytes
            details = {
                "pids": {rank: child.pid for rank, child in crew.alive.items()},
                "logs": str(crew.folder.path),
                "restarts": self._hub.restarts,
                "slots": dealer.ring.num_slots,
                "slot_bytes": dealer.ring.slot_bytes,
            }
            return StreamStatus(state, crew.options.num_workers, len(dealer.results), buffers, self._hub.sharing.nbytes, details)

    def close(self) -> None:
        """Ends the processes; batches that were handed out stay valid. Does nothing in a forked child."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            self._closed = True
            self._end()
            self._hub.dealer.results.clear()
            self._pool.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise LoaderClosed("the loader is closed", "create a new one")
        if os.getpid() != self._owner:
            raise LoaderClosed("the loader belongs to the process that this one was forked from", "create one in this process")


def _look(patience: Patience, ranks: list[int]) -> None:
    warning = patience.check(ranks)
    if warning is not None:
        warnings.warn(warning, RuntimeWarning, stacklevel=3)


def _now_batch(answer: Message, epoch: int, batch_index: int) -> SampledSubgraph:
    if "error" in answer.body:
        raise error_from_json(answer.body["error"], "sampling a batch")
    return _subgraph(answer.body, mapped(answer.fds[0]), epoch, batch_index, is_padding=False)


def _subgraph(body: Mapping[str, Any], block: NDArray[np.uint8], epoch: int, batch_index: int, *, is_padding: bool) -> SampledSubgraph:
    layout = layout_from_json(body["layout"])
    return SampledSubgraph(epoch, batch_index, is_padding, layout, block, body["sample_s"], body["gather_s"])

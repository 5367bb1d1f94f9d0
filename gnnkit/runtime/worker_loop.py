"""What a sampling process does: opens the graph, takes jobs from its loader and samples them into shared memory."""

from __future__ import annotations

import logging
import mmap
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.backends.batches import BatchList
from gnnkit.errors import MemoryLimitError, StoreError
from gnnkit.events import Event
from gnnkit.host import available_memory
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.graph_handle import GraphHandle
from gnnkit.runtime.remote import error_to_json, layout_to_json
from gnnkit.runtime.shared_block import SharedBlock
from gnnkit.runtime.shared_graph import CopyStopped, SharedGraph, share
from gnnkit.runtime.watch import Watch
from gnnkit.runtime.wire import Message, Wire, from_memory
from gnnkit.runtime.worker_jobs import JobQueue, NowJob, SampleJob
from gnnkit.sampling.jit import warm
from gnnkit.sampling.sampler import NeighborSampler, SampleRequest
from gnnkit.sampling.subgraph import BatchLayout
from gnnkit.sampling.tables import GraphTables
from gnnkit.storage.store import Store

logger = logging.getLogger(__name__)

# A loader that reads nothing for so long has been stopped or is in one long step; the batch waits in its slot meanwhile.
_PATIENCE_S = 3600.0
# At most so many reports of progress a second.
_EVENT_GAP_S = 0.1


class Sampling:
    """The graph as it lies in memory now, and the plan's batches; shared by the sampling threads.

    Args:
        setup: The loader's first message.
    """

    def __init__(self, setup: Message) -> None:
        self.plan = LoaderPlan.from_json(setup.body["plan"])
        self._lock = threading.Lock()
        description = setup.body["graph"]
        if self.plan.store is None:
            shared = SharedGraph.attach(setup.fds[0], description)
            self.graph = shared.graph
            handle = GraphHandle(shared.graph, {})
        else:
            store = Store.open(self.plan.store.path)
            if store.fingerprint != self.plan.store.fingerprint:
                raise StoreError(f"the store {str(store.path)!r} was replaced while it was in use", "make the loader again")
            handle = GraphHandle(store.arrays(), store.splits, self.plan.store)
            self.graph = handle.arrays
            if description is not None:
                self.graph = SharedGraph.attach(setup.fds[0], description, handle.arrays).graph
        self.mapped = handle.arrays
        self._batches = BatchList(self.plan, handle)
        self._tables: GraphTables | None = None

    def tables(self) -> GraphTables:
        """The tables of the graph as it lies in memory now."""
        with self._lock:
            if self._tables is None or self._tables.graph is not self.graph:
                self._tables = GraphTables(self.graph, weighted=self.plan.sampling.weight is not None)
            return self._tables

    def request(self, job: SampleJob | NowJob) -> SampleRequest:
        """What a job is sampled from."""
        with self._lock:
            if isinstance(job, NowJob) and job.seeds is not None:
                return self._batches.request_for(job.epoch, job.batch_index, job.seeds)
            return self._batches.request(job.epoch, job.batch_index)

    def sampler(self, max_seeds: int = 0) -> NeighborSampler:
        """Scratch for one thread."""
        return NeighborSampler(self.tables(), self.plan.sampling, max(max_seeds, self.plan.batching.batch_size))

    def trial_nbytes(self, batch_index: int) -> int:
        """Bytes of one batch of the first epoch; 0 where it cannot be sampled, which whoever asks for it later will hear."""
        try:
            return self.sampler().sample(self.request(NowJob(0, 0, batch_index, None))).nbytes
        except Exception:
            logger.info("the trial batch failed", exc_info=True)
            return 0


class WorkerLoop:
    """Obeys the loader.

    Args:
        wire: The connection to it.
        watch: The process's watchman.
    """

    def __init__(self, wire: Wire, watch: Watch) -> None:
        self._wire, self._watch = wire, watch
        self._jobs = JobQueue(lambda generation: self._tell("cancelled", g=generation))
        self._slots: Callable[[int], NDArray[np.uint8]] | None = None
        self._last_event = 0.0

    def run(self) -> None:
        """Works until the loader goes away or says stop."""
        try:
            setup = self._next()
            warm(self._forward)
            self._sampling = Sampling(setup)
            trial = setup.body["trial"]
            nbytes = 0 if trial is None else self._sampling.trial_nbytes(trial)
            for _ in range(setup.body["threads"]):
                threading.Thread(target=self._sample, name="gnnkit-sampler", daemon=True).start()
        except EOFError:
            return
        except BaseException as error:  # the loader raises it
            self._tell("failed", error=error_to_json(error))
            raise
        self._tell("ready", nbytes=nbytes)
        handlers = {"ring": self._use_ring, "sample": self._queue, "now": self._queue_now, "copy": self._copy, "graph": self._use_graph}
        while True:
            try:
                message = self._next()
            except EOFError:
                return
            if message.kind == "stop":
                return
            if message.kind == "cancel":
                self._jobs.cancel(message.body["g"])
            else:
                handlers[message.kind](message)

    def _next(self) -> Message:
        while (message := self._wire.receive()) is None:
            self._wire.wait(_PATIENCE_S)
        return message

    def _tell(self, kind: str, fds: tuple[int, ...] = (), /, **body: Any) -> None:
        self._wire.send(kind, fds, **body)
        self._wire.send_all(_PATIENCE_S)

    def _forward(self, event: Event) -> None:
        """Sends progress on; the loader draws it."""
        if event.kind != "progress" or event.time_s - self._last_event >= _EVENT_GAP_S:
            self._last_event = event.time_s
            body = {name: getattr(event, name) for name in ("stage", "label", "done", "total", "unit", "text", "time_s")}
            self._tell("event", what=event.kind, **body)

    def _use_ring(self, message: Message) -> None:
        block, size = SharedBlock.attach(message.fds[0], writable=True), message.body["slot_bytes"]
        self._slots = lambda slot: block.bytes[slot * size : (slot + 1) * size]

    def _queue(self, message: Message) -> None:
        body = message.body
        assert self._slots is not None, "the ring comes before the first job"
        target = self._slots(body["slot"])
        self._jobs.put(SampleJob(body["g"], body["epoch"], body["step"], body["batch"], body["slot"], target))

    def _queue_now(self, message: Message) -> None:
        body = message.body
        seeds = np.frombuffer(from_memory(message.fds[0]), np.int64) if message.fds else None
        self._jobs.put(NowJob(body["number"], body["epoch"], body["batch"], seeds))

    def _copy(self, message: Message) -> None:
        threading.Thread(target=self._share_graph, name="gnnkit-graph-memory", daemon=True).start()

    def _share_graph(self) -> None:
        try:
            shared = share(self._sampling.mapped, threading.Event())
        except (CopyStopped, OSError, MemoryError) as error:
            logger.info("no copy of the graph in huge pages: %s", error)
            self._tell("graph", description=None)
            return
        self._sampling.graph = shared.graph
        self._tell("graph", (shared.block.fd,), description=dict(shared.description))

    def _use_graph(self, message: Message) -> None:
        self._sampling.graph = SharedGraph.attach(message.fds[0], message.body["description"], self._sampling.mapped).graph

    def _sample(self) -> None:
        """A sampling thread."""
        number, sampler = self._watch.add_sampler(), None
        while True:
            job = self._jobs.take()
            self._watch.busy(number, job.step if isinstance(job, SampleJob) else 0)
            try:
                request = self._sampling.request(job)
                if sampler is None or sampler.max_seeds < len(request.seeds):
                    sampler = self._sampling.sampler(len(request.seeds))
                self._sample_one(sampler, job, request)
            except BaseException as error:  # everything goes to the loader, who raises it
                self._tell("error", error=error_to_json(error), **_name(job))
            self._watch.idle(number)
            self._jobs.done(job)

    def _sample_one(self, sampler: NeighborSampler, job: SampleJob | NowJob, request: SampleRequest) -> None:
        tables = self._sampling.tables()
        if sampler.tables is not tables:
            sampler.use(tables)
        own: list[int] = []

        def acquire(nbytes: int) -> NDArray[np.uint8]:
            if isinstance(job, SampleJob) and nbytes <= len(job.target):
                return job.target
            fd, block = _own_memory(nbytes)
            own.append(fd)
            return block

        try:
            layout, _, sample_s, gather_s = sampler.sample_into(request, acquire)
            self._report(job, layout, own, sample_s, gather_s)
        finally:
            for fd in own:
                os.close(fd)

    def _report(self, job: SampleJob | NowJob, layout: BatchLayout, own: list[int], sample_s: float, gather_s: float) -> None:
        self._tell("done", tuple(own), layout=layout_to_json(layout), sample_s=sample_s, gather_s=gather_s, **_name(job))


def _name(job: SampleJob | NowJob) -> dict[str, Any]:
    if isinstance(job, NowJob):
        return {"number": job.number}
    return {"g": job.generation, "step": job.step}


def _own_memory(nbytes: int) -> tuple[int, NDArray[np.uint8]]:
    """Memory for a batch that no slot is for: outside an epoch, or larger than those that the slots were made for.

    Raises:
        MemoryLimitError: There is none.
    """
    free = available_memory()
    if nbytes > free:
        raise MemoryLimitError(
            f"the next batch needs {nbytes / 1e6:.0f} MB, {free / 1e6:.0f} MB are free", "lower batch_size or num_neighbors"
        )
    fd = os.memfd_create("gnnkit-batch", os.MFD_CLOEXEC)
    os.ftruncate(fd, max(1, nbytes))
    return fd, np.frombuffer(mmap.mmap(fd, max(1, nbytes)), np.uint8)

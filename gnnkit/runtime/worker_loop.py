"""What a sampling process does: opens the graph, takes jobs from its loaders and samples them into shared memory."""

from __future__ import annotations

import logging
import mmap
import os
import threading
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import MemoryLimitError
from gnnkit.events import Event
from gnnkit.host import available_memory
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.remote import error_to_json, layout_to_json
from gnnkit.runtime.shared_block import SharedBlock
from gnnkit.runtime.shared_graph import CopyStopped, SharedGraph, share
from gnnkit.runtime.watch import Watch
from gnnkit.runtime.wire import Message, Wire, from_memory
from gnnkit.runtime.worker_jobs import JobQueue, NowJob, SampleJob, TrialJob
from gnnkit.runtime.worker_sampling import WorkerChannel, WorkerGraph, name_of
from gnnkit.sampling.jit import warm
from gnnkit.sampling.sampler import NeighborSampler, NodeScratch, SampleRequest

logger = logging.getLogger(__name__)

# A process of loaders that reads nothing for so long has been stopped or is in one long step; the batch waits in its slot meanwhile.
_PATIENCE_S = 3600.0
# At most so many reports of progress a second.
_EVENT_GAP_S = 0.1


class _Idle(Exception):
    """Nobody has asked for anything for as long as the user allows."""


class WorkerLoop:
    """Obeys the process that its loaders live in.

    Args:
        wire: The connection to it.
        watch: This process's watchman.
    """

    def __init__(self, wire: Wire, watch: Watch) -> None:
        self._wire, self._watch = wire, watch
        self._jobs = JobQueue(lambda channel, generation: self._tell("cancelled", c=channel, g=generation))
        self._channels: dict[int, WorkerChannel] = {}
        self._scratches: dict[int, NodeScratch] = {}
        self._copying: threading.Thread | None = None
        self._idle_s: float | None = None
        self._last_event = 0.0

    def run(self) -> None:
        """Works until the loaders' process goes away or says stop, or nobody has wanted anything for long."""
        try:
            setup = self._next()
            warm(self._forward)
            self._graph = WorkerGraph(setup)
            for _ in range(self._graph.threads):
                threading.Thread(target=self._sample, name="gnnkit-sampler", daemon=True).start()
        except EOFError:
            return
        except BaseException as error:  # the loader raises it
            self._tell("failed", error=error_to_json(error))
            raise
        self._idle_s = setup.body["idle_s"]
        self._tell("ready")
        handlers = {
            "open": self._open,
            "ring": self._use_ring,
            "sample": self._queue,
            "now": self._queue_now,
            "cancel": lambda message: self._jobs.cancel(message.body["c"], message.body["g"]),
            "close": self._close,
            "copy": self._copy,
            "graph": self._use_graph,
        }
        while True:
            try:
                message = self._next()
            except EOFError:
                return
            except _Idle:
                self._tell("idle")
                return
            if message.kind == "stop":
                self._graph.leave()
                return
            handlers[message.kind](message)

    def _next(self) -> Message:
        since = time.monotonic()
        while (message := self._wire.receive()) is None:
            idle_s = self._idle_s
            if idle_s is None or self._is_busy():
                self._wire.wait(_PATIENCE_S if idle_s is None else idle_s)
                since = time.monotonic()
            elif time.monotonic() - since >= idle_s:
                raise _Idle
            else:
                self._wire.wait(since + idle_s - time.monotonic() + 0.001)
        return message

    def _is_busy(self) -> bool:
        return not self._jobs.is_idle or (self._copying is not None and self._copying.is_alive())

    def _tell(self, kind: str, fds: tuple[int, ...] = (), /, **body: Any) -> None:
        self._wire.send(kind, fds, **body)
        self._wire.send_all(_PATIENCE_S)

    def _forward(self, event: Event) -> None:
        """Sends progress on; the loader draws it."""
        if event.kind != "progress" or event.time_s - self._last_event >= _EVENT_GAP_S:
            self._last_event = event.time_s
            body = {name: getattr(event, name) for name in ("stage", "label", "done", "total", "unit", "text", "time_s")}
            self._tell("event", what=event.kind, **body)

    def _open(self, message: Message) -> None:
        """A loader comes in; a batch is tried where it does not know how large they are."""
        number, trial = message.body["c"], message.body["trial"]
        self._channels[number] = WorkerChannel(self._graph, LoaderPlan.from_json(message.body["plan"]))
        if trial is None:
            self._tell("opened", c=number, nbytes=0)
        else:
            self._jobs.put(TrialJob(number, trial))

    def _close(self, message: Message) -> None:
        """A loader has left; its ring goes with the last batch that is being sampled into it."""
        self._jobs.forget(message.body["c"])
        del self._channels[message.body["c"]]

    def _use_ring(self, message: Message) -> None:
        block = SharedBlock.attach(message.fds[0], writable=True)
        self._channels[message.body["c"]].use_ring(block, message.body["slot_bytes"])

    def _queue(self, message: Message) -> None:
        body = message.body
        target = self._channels[body["c"]].slot(body["slot"])
        self._jobs.put(SampleJob(body["c"], body["g"], body["epoch"], body["step"], body["batch"], target))

    def _queue_now(self, message: Message) -> None:
        body = message.body
        seeds = np.frombuffer(from_memory(message.fds[0]), np.int64) if message.fds else None
        self._jobs.put(NowJob(body["c"], body["number"], body["epoch"], body["batch"], seeds))

    def _copy(self, message: Message) -> None:
        self._copying = threading.Thread(target=self._share_graph, name="gnnkit-graph-memory", daemon=True)
        self._copying.start()

    def _share_graph(self) -> None:
        try:
            shared = share(self._graph.handle.arrays, threading.Event())
        except (CopyStopped, OSError, MemoryError) as error:
            logger.info("no copy of the graph in huge pages: %s", error)
            self._tell("graph", description=None)
            return
        self._graph.graph = shared.graph
        self._tell("graph", (shared.block.fd,), description=dict(shared.description))

    def _use_graph(self, message: Message) -> None:
        mapped = self._graph.handle.arrays
        self._graph.graph = SharedGraph.attach(message.fds[0], message.body["description"], mapped).graph

    def _sample(self) -> None:
        """A sampling thread."""
        number = self._watch.add_sampler()
        while True:
            job = self._jobs.take()
            channel = self._channels.get(job.channel)
            if channel is not None:  # it has not left meanwhile
                self._watch.busy(number, job.step if isinstance(job, SampleJob) else 0)
                self._sample_for(channel, job, number)
                self._watch.idle(number)
            self._jobs.done(job)

    def _sample_for(self, channel: WorkerChannel, job: SampleJob | NowJob | TrialJob, thread: int) -> None:
        try:
            request = channel.request(job)
            sampler = channel.sampler(thread, len(request.seeds), self._scratches)
            if isinstance(job, TrialJob):
                self._tell("opened", c=job.channel, nbytes=sampler.sample(request).nbytes)
            else:
                self._sample_one(sampler, job, request)
        except BaseException as error:  # everything goes to the loader, who raises it
            if isinstance(job, TrialJob):  # whoever asks for that batch later will hear of it
                logger.info("the trial batch failed", exc_info=True)
                self._tell("opened", c=job.channel, nbytes=0)
            else:
                self._tell("error", error=error_to_json(error), **name_of(job))

    def _sample_one(self, sampler: NeighborSampler, job: SampleJob | NowJob, request: SampleRequest) -> None:
        own: list[int] = []

        def acquire(nbytes: int) -> NDArray[np.uint8]:
            if isinstance(job, SampleJob) and (slot := job.target.take(nbytes)) is not None:
                return slot
            fd, block = _own_memory(nbytes)
            own.append(fd)
            return block

        try:
            layout, _, sample_s, gather_s = sampler.sample_into(request, acquire)
            self._tell("done", tuple(own), layout=layout_to_json(layout), sample_s=sample_s, gather_s=gather_s, **name_of(job))
        finally:
            for fd in own:
                os.close(fd)


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

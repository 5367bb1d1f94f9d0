"""What a sampling process does: opens the graph, takes jobs from loaders and samples them into shared memory."""

from __future__ import annotations

import logging
import mmap
import os
import threading
import time
from collections.abc import Callable

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
from gnnkit.runtime.wire import PATIENCE_S, Message, Wire, from_memory
from gnnkit.runtime.worker_clients import STARTER, Clients
from gnnkit.runtime.worker_jobs import ChannelKey, Job, JobQueue, NowJob, SampleJob, TrialJob
from gnnkit.runtime.worker_sampling import ConnectHosts, WorkerChannel, WorkerGraph, name_of
from gnnkit.sampling.kinds import warm
from gnnkit.sampling.sampler import BatchSampler
from gnnkit.sampling.scratch import NodeScratch
from gnnkit.sampling.walked import SampleRequest

logger = logging.getLogger(__name__)

# At most so many reports of progress a second.
_EVENT_GAP_S = 0.1
# What comes with descriptors that are of use here.
_WITH_MEMORY = ("ring", "now")


class _Idle(Exception):
    """Nobody has asked for anything for as long as the user allows."""


class WorkerLoop:
    """Obeys the process that has started this one, and those that it lets in.

    Args:
        wire: The connection to it.
        watch: This process's watchman.
        connect: Makes the way to other hosts.
    """

    def __init__(self, wire: Wire, watch: Watch, connect: ConnectHosts) -> None:
        self._wire, self._watch, self._connect = wire, watch, connect
        self._clients = Clients(wire)
        self._jobs = JobQueue(lambda key, generation: self._clients.send(key[0], "cancelled", c=key[1], g=generation))
        self._channels: dict[ChannelKey, WorkerChannel] = {}
        self._scratches: dict[int, NodeScratch] = {}
        self._copying: threading.Thread | None = None
        self._idle_s: float | None = None
        self._last_event = 0.0
        # What loaders say, wherever they are.
        self._obey: dict[str, Callable[[int, Message], None]] = {
            "open": self._open,
            "ring": self._use_ring,
            "sample": self._queue,
            "now": self._queue_now,
            "cancel": lambda client, message: self._jobs.cancel(_key(client, message), message.body["g"]),
            "close": self._close,
        }
        # What only the process that has started this one may say.
        self._obey_starter: dict[str, Callable[[int, Message], None]] = {
            **self._obey,
            "copy": self._copy,
            "graph": self._use_graph,
            "client": lambda _, message: self._clients.admit(message.body["client"], message.fds[0]),
            "dismiss": lambda _, message: self._dismiss(message.body["client"]),
        }

    def run(self) -> None:
        """Works until whoever has started it goes away or says stop, or nobody has wanted anything for long."""
        try:
            setup = self._wire.next()
            warm(self._forward)
            self._graph = WorkerGraph(setup, self._connect)
            for _ in range(self._graph.threads):
                threading.Thread(target=self._sample, name="gnnkit-sampler", daemon=True).start()
        except EOFError:
            return
        except BaseException as error:  # the loader raises it
            self._wire.tell("failed", error=error_to_json(error))
            raise
        self._idle_s = setup.body["idle_s"]
        self._wire.tell("ready")
        try:
            self._serve()
        except _Idle:
            self._wire.tell("idle")

    def _serve(self) -> None:
        since = time.monotonic()
        while True:
            left_s = PATIENCE_S if self._idle_s is None else max(0.0, since + self._idle_s - time.monotonic())
            was_busy = self._is_busy()
            for client, message in self._clients.listen(left_s + 0.001):
                since = time.monotonic()
                if client != STARTER:
                    self._serve_client(client, message)
                elif message is None:
                    return
                elif message.kind == "stop":
                    self._graph.leave()
                    return
                else:
                    self._obey_starter[message.kind](client, message)
            if was_busy or self._is_busy():
                since = time.monotonic()
            elif self._idle_s is not None and time.monotonic() - since >= self._idle_s:
                raise _Idle

    def _serve_client(self, client: int, message: Message | None) -> None:
        """Does what another process asks; one that is gone, or asks for what cannot be, is let go with everything that it has here."""
        try:
            if message is not None:
                if message.kind not in _WITH_MEMORY:
                    message.close()
                self._obey[message.kind](client, message)
                return
        except Exception as error:
            logger.warning("process %d asks for what cannot be done", client, exc_info=True)
            self._clients.send(client, "failed", error=error_to_json(error))
        self._dismiss(client)

    def _dismiss(self, client: int) -> None:
        self._clients.dismiss(client)
        for key in [key for key in self._channels if key[0] == client]:
            self._jobs.forget(key)
            self._channels.pop(key).close()

    def _is_busy(self) -> bool:
        return not self._jobs.is_idle or (self._copying is not None and self._copying.is_alive())

    def _forward(self, event: Event) -> None:
        """Sends progress on; the loader draws it."""
        if event.kind != "progress" or event.time_s - self._last_event >= _EVENT_GAP_S:
            self._last_event = event.time_s
            body = {name: getattr(event, name) for name in ("stage", "label", "done", "total", "unit", "text", "time_s")}
            self._wire.tell("event", what=event.kind, **body)

    def _open(self, client: int, message: Message) -> None:
        """A loader comes in; a batch is tried where it does not know how large they are."""
        key, trial = _key(client, message), message.body["trial"]
        self._channels[key] = self._graph.channel(LoaderPlan.from_json(message.body["plan"]), message.body.get("mode", "batch"))
        if trial is None:
            self._clients.send(client, "opened", c=key[1], nbytes=0)
        else:
            self._jobs.put(TrialJob(key, trial))

    def _close(self, client: int, message: Message) -> None:
        """A loader has left; its ring goes with the last batch that is being sampled into it."""
        self._jobs.forget(_key(client, message))
        self._channels.pop(_key(client, message)).close()

    def _use_ring(self, client: int, message: Message) -> None:
        block = SharedBlock.attach(message.fds[0], writable=True)
        self._channels[_key(client, message)].use_ring(block, message.body["slot_bytes"])

    def _queue(self, client: int, message: Message) -> None:
        body, key = message.body, _key(client, message)
        target = self._channels[key].slot(body["slot"])
        self._jobs.put(SampleJob(key, body["g"], body["epoch"], body["step"], body["batch"], target))

    def _queue_now(self, client: int, message: Message) -> None:
        body = message.body
        seeds = np.frombuffer(from_memory(message.fds[0]), np.int64) if message.fds else None
        self._jobs.put(NowJob(_key(client, message), body["number"], body["epoch"], body["batch"], seeds))

    def _copy(self, _: int, message: Message) -> None:
        self._copying = threading.Thread(target=self._share_graph, name="gnnkit-graph-memory", daemon=True)
        self._copying.start()

    def _share_graph(self) -> None:
        try:
            shared = share(self._graph.handle.arrays, threading.Event())
        except (CopyStopped, OSError, MemoryError) as error:
            logger.info("no copy of the graph in huge pages: %s", error)
            self._clients.send(STARTER, "graph", description=None)
            return
        self._graph.graph = shared.graph
        self._clients.send(STARTER, "graph", (shared.block.fd,), description=dict(shared.description))

    def _use_graph(self, _: int, message: Message) -> None:
        mapped = self._graph.handle.arrays
        self._graph.graph = SharedGraph.attach(message.fds[0], message.body["description"], mapped).graph

    def _sample(self) -> None:
        """A sampling thread."""
        number = self._watch.add_sampler()
        while True:
            self._do(self._jobs.take(), number)  # in a function of its own: this thread keeps no ring while it waits

    def _do(self, job: Job, number: int) -> None:
        channel = self._channels.get(job.channel)
        if channel is not None:  # it has not left meanwhile
            self._watch.busy(number, job.step if isinstance(job, SampleJob) else 0)
            self._sample_for(channel, job, number)
            self._watch.idle(number)
        self._jobs.done(job)

    def _sample_for(self, channel: WorkerChannel, job: Job, thread: int) -> None:
        client, number = job.channel
        try:
            request = channel.request(job)
            sampler = channel.sampler(thread, self._scratches)
            if isinstance(job, TrialJob):
                self._clients.send(client, "opened", c=number, nbytes=sampler.sample(request).nbytes)
            else:
                self._sample_one(sampler, job, request, thread)
        except BaseException as error:  # everything goes to the loader, who raises it
            if isinstance(job, TrialJob):  # whoever asks for that batch later will hear of it
                logger.info("the trial batch failed", exc_info=True)
                self._clients.send(client, "opened", c=number, nbytes=0)
            else:
                self._clients.send(client, "error", error=error_to_json(error), **name_of(job))

    def _sample_one(self, sampler: BatchSampler, job: SampleJob | NowJob, request: SampleRequest, thread: int) -> None:
        own: list[int] = []
        began_s = time.monotonic() - request.waited_s  # one clock for all processes of a host

        def acquire(nbytes: int) -> NDArray[np.uint8]:
            if isinstance(job, SampleJob) and (slot := job.target.take(nbytes)) is not None:
                return slot
            fd, block = _own_memory(nbytes)
            own.append(fd)
            return block

        try:
            layout, _, sample_s, gather_s = sampler.sample_into(request, acquire)
            times = {"began_s": began_s, "sample_s": sample_s, "gather_s": gather_s, "thread": thread if self._graph.threads > 1 else None}
            self._clients.send(
                job.channel[0], "done", tuple(own), layout=layout_to_json(layout), **times, **self._graph.report(), **name_of(job)
            )
        finally:
            for fd in own:
                os.close(fd)


def _key(client: int, message: Message) -> ChannelKey:
    return client, message.body["c"]


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

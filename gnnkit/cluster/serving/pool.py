"""A server's sampling processes: one supervisor for all clients, introduced to them, and the channels of the server's own service."""

from __future__ import annotations

import itertools
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gnnkit.cluster import worker
from gnnkit.errors import GnnkitError, MemoryLimitError, WorkerStopped
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.graph_memory import GraphHandle, GraphSharing
from gnnkit.runtime.limits import check_descriptors, check_start_memory
from gnnkit.runtime.remote import error_from_json, fresh
from gnnkit.runtime.ring import Ring, mapped
from gnnkit.runtime.runs import new_run
from gnnkit.runtime.supervisor import ChildProcess, Exit, Supervisor, SupervisorOptions
from gnnkit.runtime.wire import Message, Wire, in_memory
from gnnkit.storage.store import Store

logger = logging.getLogger(__name__)

_ADVICE = "iterate again, or let the server restart it by itself with max_restarts=..."


class ServedWorkers(Supervisor):
    """The workers. Only for the server's main thread.

    The server itself is a client of its workers, number 0: it has them sample over channels.

    Args:
        setup: What the server was told; see ``ServerSpec.setup``.
        store: What they sample from.
        hosts: The message about other hosts, see ``gnnkit.cluster.parts``; None where every part is here.
        forward: Called with each report of progress.

    Attributes:
        count: How many there are once all are there.
        parts: The parts that they sample from themselves.
        sharing: The graph's copy.
        watchers: Called with a worker that is there, for the first time or again; or that has ended, and with its error.
        restarts: How often one was started again without being asked to.
        failures: ``{worker: why it is not there}``.

    Raises:
        PlanError: The system's limits do not allow it, or there is no folder for logs.
        MemoryLimitError: There is no memory for them.
    """

    def __init__(self, setup: Mapping[str, Any], store: Store, hosts: dict[str, Any] | None, forward: Callable[[Message], None]) -> None:
        self._forward, self._hosts = forward, hosts
        self._max_restarts, self._start_timeout_s = int(setup["max_restarts"]), float(setup["start_timeout_s"])
        self.count, server, threads = setup["workers"], setup["rank"], setup["threads"]
        self._store, self.parts = store.reference, store.local_parts
        graph = GraphHandle(store.arrays(), store.splits, self._store, link_splits=store.link_splits)
        self.sharing = GraphSharing(graph, setup["memory_budget"])
        self.watchers: list[Callable[[int, GnnkitError | None], None]] = []
        self.restarts = 0
        self.failures: dict[int, GnnkitError] = {}
        self._channels: dict[int, Channel] = {}
        self._numbers = itertools.count(1)
        self._was_complete = self._may_copy = False
        check_descriptors(self.count)
        check_start_memory(self.count, threads, graph.arrays.schema, graph.mapped_nbytes, trains=False)
        title = f"sampling process {{rank}} of server {server}"
        super().__init__(
            SupervisorOptions(self.count, threads, worker.__name__, title=title, advice=_ADVICE),
            new_run(setup["log_root"], {"store": str(store.path), "server": server}),
            self._tell_setup,
            self.sharing,
        )

    @property
    def starts_again(self) -> bool:
        """Whether the next worker that dies is started again without being asked to."""
        return self.restarts < self._max_restarts

    @property
    def is_over(self) -> bool:
        """Whether no worker is there or starting, and none will be unless ``start`` is called."""
        return not self.alive

    @property
    def state(self) -> str:
        """Says "joining" until all are there for the first time; then "ready", or "degraded" where one is not."""
        if len(self.ready) == self.count:
            return "ready"
        return "degraded" if self._was_complete or self.failures else "joining"

    def details(self) -> list[dict[str, Any]]:
        """Returns the state of each worker, as JSON values."""
        alive = self.alive
        return [
            {
                "worker": rank,
                "pid": alive[rank].pid if rank in alive else None,
                "state": "ready" if rank in self.ready else "starting" if rank in alive else "gone",
                "log": str(self.folder.log(rank)),
                "error": self.failures[rank].message if rank in self.failures else None,
            }
            for rank in self.options.ranks
        ]

    # Work for them --------------------------------------------------------------------------------------------------------

    def enter(self, channel: Channel) -> int:
        """Takes a channel in, which hears from the workers from now on; returns what they know it by."""
        number = next(self._numbers)
        self._channels[number] = channel
        return number

    def leave(self, channel: Channel) -> None:
        """Lets a channel go; what workers still say about it is thrown away."""
        self._channels.pop(channel.number, None)

    def introduce(self, rank: int, client: int, wire: Wire) -> None:
        """Connects a client with a worker that is ready.

        Args:
            rank: The worker.
            client: The client's number.
            wire: The client's connection to this server.

        Raises:
            OSError: The system has no descriptor left.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            self.send(rank, "client", (ours.fileno(),), client=client)
            child = self.alive[rank]
            wire.send("worker", (theirs.fileno(), self.vitals.block.fd), worker=rank, pid=child.pid, log=str(child.log))

    def remove_client(self, client: int) -> None:
        """Has every worker let a client go."""
        for rank in self.ready:
            self.send(rank, "left", client=client)

    # What arrives ---------------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Handles what workers have said, and their deaths."""
        for rank, what in self.listen():
            if isinstance(what, Exit):
                self._on_exit(rank, what.error)
            else:
                self._take(rank, what)
        overdue = self.overdue(self._start_timeout_s)
        if overdue is not None:
            self._on_exit(*overdue)
        self.sharing.spread(self.ready, self.send, ask=self._may_copy)

    def copy(self) -> bool:
        """Has a worker make the graph's copy, if it is to be made at all; whether it is being made or there."""
        self._may_copy = True
        self.sharing.spread(self.ready, self.send, ask=True)
        return self.sharing.is_copying or self.sharing.shared is not None

    def _take(self, rank: int, message: Message) -> None:
        if message.kind == "ready":
            self.failures.pop(rank, None)
            self._was_complete = self._was_complete or len(self.ready) == self.count
            for channel in list(self._channels.values()):
                channel.on_ready(rank)
            self._tell_watchers(rank, None)
        elif message.kind == "event":
            self._forward(message)
        else:
            addressee = self._channels.get(message.body.get("c", 0))
            if addressee is None:
                message.close()
            else:
                addressee.on_message(rank, message)

    def _on_exit(self, rank: int, error: GnnkitError) -> None:
        logger.warning("%s", error)
        self.failures[rank] = error
        if self.starts_again and not isinstance(error, WorkerStopped):
            self.restarts += 1
            self.start_missing()
        for channel in list(self._channels.values()):
            channel.on_lost(rank, error)
        self._tell_watchers(rank, error)

    def _tell_watchers(self, rank: int, error: GnnkitError | None) -> None:
        for watcher in list(self.watchers):
            watcher(rank, error)

    def _tell_setup(self, child: ChildProcess) -> None:
        """Tells a worker that has just been started what it is there for."""
        fds, description = self.sharing.setup_message(child.rank)
        store = asdict(self._store)
        child.wire.send("setup", fds, store=store, graph=description, threads=self.options.threads, idle_s=None, hosts=self._hosts)


# The layout of a batch as JSON and its bytes, or why there are none.
Sampled: TypeAlias = "tuple[dict[str, Any], NDArray[np.uint8]] | GnnkitError"


@dataclass(eq=False)
class ServedJob:
    """A batch that a client of a channel waits for.

    Attributes:
        epoch: The epoch.
        batch: Index in its list of batches.
        answer: Called by ``settle``; None after that.
        what: What is done, for errors.
        seeds: int64 ``[k]`` dataset ids of a batch outside the epoch, or None.
        is_wanted: Whether the client still waits.
        rank: The worker that it was given to; -1 while there is none.
        slot: Where the worker writes it.
        ring: What the slot belongs to; None: the worker answers with memory of its own.
    """

    epoch: int
    batch: int
    answer: Callable[[Sampled], None] | None
    what: str = "sampling a batch"
    seeds: NDArray[np.int64] | None = None
    is_wanted: bool = True
    rank: int = -1
    slot: int = -1
    ring: Ring[ServedJob] | None = None

    def settle(self, sampled: Sampled) -> None:
        """Answers, once. What has the answer now is not held on to: its slot is this job's until the answer is gone."""
        answer, self.answer = self.answer, None
        if answer is not None:
            answer(sampled)

    def give_back(self) -> None:
        """Frees its slot, whose content is not needed."""
        if self.ring is not None:
            self.ring.free(self.slot, self)
        self.rank, self.ring = -1, None


class Channel:
    """A loader in the workers of a server: introduces it to each, and gives them its jobs. Only for the server's main thread.

    What a worker that is gone has not answered is given to another one.

    Args:
        pool: The workers.
        plan: The loader's plan.
        most_each: Jobs that a worker is given at a time.

    Attributes:
        number: What workers know it by.
        is_closed: Whether it was given up.
    """

    def __init__(self, pool: ServedWorkers, plan: LoaderPlan, most_each: int) -> None:
        self._pool, self._plan, self._most_each = pool, plan.to_json(), most_each
        self._told: set[int] = set()
        self._waiting: deque[ServedJob] = deque()
        self._given: dict[int, ServedJob] = {}
        self._jobs = itertools.count(1)
        self.is_closed = False
        self.number = pool.enter(self)
        for rank in pool.ready:
            self._introduce(rank)

    def give(self, job: ServedJob) -> None:
        """Has a batch sampled."""
        self._waiting.append(job)
        self.deal()

    def forget(self, job: ServedJob) -> None:
        """Ends a job whose answer nothing waits for any more."""
        job.is_wanted = False
        if job in self._waiting:
            self._waiting.remove(job)

    def deal(self) -> None:
        """Gives the workers as many jobs as there is room for, each to the one with least to do."""
        loads = dict.fromkeys(sorted(self._told & self._pool.ready), 0)
        for job in self._given.values():
            if job.rank in loads:
                loads[job.rank] += 1
        while self._waiting and loads:
            rank = min(loads, key=loads.__getitem__)
            if loads[rank] >= self._most_each or not self._place(self._waiting[0]):
                return
            loads[rank] += 1
            self._send(rank, self._waiting.popleft())

    def _send(self, rank: int, job: ServedJob) -> None:
        number = next(self._jobs)
        job.rank, self._given[number] = rank, job
        place = {"c": self.number, "epoch": job.epoch}
        if job.ring is not None:
            self._pool.send(rank, "sample", g=0, steps=[[number, job.batch, job.slot]], **place)
            return
        fds = () if job.seeds is None else (in_memory(np.ascontiguousarray(job.seeds).data),)
        try:
            self._pool.send(rank, "now", fds, number=number, batch=job.batch, **place)
        finally:
            for fd in fds:
                os.close(fd)

    def close(self) -> None:
        """Gives the loader up at every worker."""
        if self.is_closed:
            return
        self.is_closed = True
        for rank in self._told & self._pool.ready:
            self._pool.send(rank, "close", c=self.number)
        self._pool.leave(self)

    # What the workers do -----------------------------------------------------------------------------------------------------

    def on_message(self, rank: int, message: Message) -> None:
        """Handles what a worker says about the loader; the message's descriptors are the channel's."""
        (batch,) = message.body.get("batches", [message.body])  # a job is a message of its own
        job = self._given.pop(message.body.get("number", batch.get("step", 0)), None)
        if job is not None and job.is_wanted:
            job.settle(self._read(job, batch, message))
        else:
            if job is not None:
                job.give_back()
            message.close()
        self.deal()

    def on_ready(self, rank: int) -> None:
        """A worker is there, for the first time or again; it knows of no loader yet."""
        self._introduce(rank)
        self.deal()

    def on_lost(self, rank: int, error: GnnkitError) -> None:
        """A worker has ended, with everything that it had to do."""
        self._told.discard(rank)
        gone = [number for number, job in self._given.items() if job.rank == rank]
        lost = [job for job in map(self._given.pop, gone) if job.is_wanted]
        for job in lost:
            job.give_back()
        if self._goes_on_without(rank):
            self._waiting.extendleft(reversed(lost))
        else:
            for job in lost:
                job.settle(fresh(error))
        if self._pool.is_over:
            self.fail(error)
        self.deal()

    def fail(self, error: GnnkitError) -> None:
        """No worker is left."""
        raise NotImplementedError

    def _introduction(self, rank: int) -> dict[str, Any]:
        """Returns what a worker is told of the loader beside its plan."""
        return {"trial": None}

    def _introduce(self, rank: int) -> None:
        self._told.add(rank)
        self._pool.send(rank, "open", c=self.number, plan=self._plan, **self._introduction(rank))

    def _place(self, job: ServedJob) -> bool:
        """Whether there is room for what a worker answers."""
        return True

    def _goes_on_without(self, rank: int) -> bool:
        """Whether what a worker had to do is given to others, after it has ended."""
        return True

    def _read(self, job: ServedJob, batch: Mapping[str, Any], message: Message) -> Sampled:
        """Returns a worker's answer to a job; what is mapped takes no descriptor."""
        if job.ring is None or message.fds or "error" in batch:
            job.give_back()
        if "error" in batch:
            return error_from_json(batch["error"], job.what)
        layout, ring = batch["layout"], job.ring
        nbytes = layout["nbytes"]
        if ring is not None:
            return layout, ring.lease(job.slot, nbytes, self._freed)[:nbytes]
        try:
            return layout, mapped(message.fds.pop(0))[:nbytes]
        except OSError as error:
            return MemoryLimitError(f"a batch of {nbytes / 1e6:.0f} MB cannot be mapped: {error}", "lower batch_size")

    def _freed(self) -> None:
        """A slot is free again; called from anywhere."""

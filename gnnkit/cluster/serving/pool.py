"""A server's sampling processes: one supervisor for all clients, introduced to them, and at the server's own service."""

from __future__ import annotations

import itertools
import logging
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from gnnkit.cluster import worker
from gnnkit.errors import GnnkitError, WorkerStopped
from gnnkit.runtime.graph_memory import GraphHandle, GraphSharing
from gnnkit.runtime.limits import check_descriptors, check_start_memory
from gnnkit.runtime.runs import new_run
from gnnkit.runtime.supervisor import ChildProcess, Exit, Supervisor, SupervisorOptions
from gnnkit.runtime.wire import Message, Wire
from gnnkit.storage.store import Store

logger = logging.getLogger(__name__)

_ADVICE = "iterate again, or let the server restart it by itself with max_restarts=..."


class Handler(Protocol):
    """A part of the server that has the workers sample, or tells clients of them. Everything is called in the main thread."""

    def on_message(self, rank: int, message: Message) -> None:
        """A worker says something about a channel of this handler's; its descriptors are the handler's."""

    def on_ready(self, rank: int) -> None:
        """A worker is there, for the first time or again; it knows of no channel yet."""

    def on_lost(self, rank: int, error: GnnkitError) -> None:
        """A worker has ended, with everything that it had to do."""


@dataclass(frozen=True)
class ServedWorkersOptions:
    """The options that the workers are started with.

    Attributes:
        server: The server's number.
        workers: How many.
        threads: Sampling threads in each.
        max_restarts: How often, in all, one that has died is started again without being asked to.
        start_timeout_s: Seconds that starting may take; while kernels are compiled, each of them.
        log_root: The folder of runs.
        memory_budget: See ``GraphSharing``.
    """

    server: int
    workers: int
    threads: int
    max_restarts: int
    start_timeout_s: float
    log_root: str
    memory_budget: int | None


class ServedWorkers:
    """The workers. Only for the server's main thread.

    The server itself is a client of its workers, number 0: a handler has them sample over ``send``, on channels with numbers from
    ``open_channel``.

    Args:
        options: How they are started.
        store: What they sample from.
        hosts: The message about other hosts, see ``gnnkit.cluster.parts``; None where every part is here.
        forward: Called with each report of progress.

    Attributes:
        options: How they are started.
        parts: The parts that they sample from themselves.
        supervisor: The processes.
        sharing: The graph's copy.
        handlers: Who is told when workers come and go.
        restarts: How often one was started again without being asked to.
        failures: ``{worker: why it is not there}``.

    Raises:
        PlanError: The system's limits do not allow it, or there is no folder for logs.
        MemoryLimitError: There is no memory for them.
    """

    def __init__(
        self, options: ServedWorkersOptions, store: Store, hosts: dict[str, Any] | None, forward: Callable[[Message], None]
    ) -> None:
        self.options, self._forward, self._hosts = options, forward, hosts
        self._store, self.parts = store.reference, store.local_parts
        graph = GraphHandle(store.arrays(), store.splits, self._store, link_splits=store.link_splits)
        self.sharing = GraphSharing(graph, options.memory_budget)
        self.handlers: list[Handler] = []
        self.restarts = 0
        self.failures: dict[int, GnnkitError] = {}
        self._channels: dict[int, Handler] = {}
        self._numbers = itertools.count(1)
        self._was_complete = self._may_copy = False
        check_descriptors(options.workers)
        check_start_memory(options.workers, options.threads, graph.arrays.schema, graph.mapped_nbytes, trains=False)
        title = f"sampling process {{rank}} of server {options.server}"
        supervisor_options = SupervisorOptions(options.workers, options.threads, worker.__name__, title=title, advice=_ADVICE)
        self.supervisor = Supervisor(
            supervisor_options, new_run(options.log_root, {"store": str(store.path), "server": options.server}), self._set_up
        )

    def start(self) -> None:
        """Starts the workers that are not there; one that has died is given another chance."""
        self.supervisor.start_missing()

    @property
    def ready(self) -> frozenset[int]:
        """Workers that can be given something to do."""
        return frozenset(self.supervisor.ready)

    @property
    def starts_again(self) -> bool:
        """Whether the next worker that dies is started again without being asked to."""
        return self.restarts < self.options.max_restarts

    @property
    def is_over(self) -> bool:
        """Whether no worker is there or starting, and none will be unless ``start`` is called."""
        return not self.supervisor.alive

    @property
    def state(self) -> str:
        """Says "joining" until all are there for the first time; then "ready", or "degraded" where one is not."""
        if len(self.supervisor.ready) == self.options.workers:
            return "ready"
        return "degraded" if self._was_complete or self.failures else "joining"

    def details(self) -> list[dict[str, Any]]:
        """Returns the state of each worker, as JSON values."""
        alive = self.supervisor.alive
        return [
            {
                "worker": rank,
                "pid": alive[rank].pid if rank in alive else None,
                "state": "ready" if rank in self.supervisor.ready else "starting" if rank in alive else "gone",
                "log": str(self.supervisor.folder.log(rank)),
                "error": self.failures[rank].message if rank in self.failures else None,
            }
            for rank in self.supervisor.options.ranks
        ]

    # Work for them --------------------------------------------------------------------------------------------------------

    def open_channel(self, handler: Handler) -> int:
        """A number for a loader of the server's own; what workers say about it goes to ``handler``."""
        number = next(self._numbers)
        self._channels[number] = handler
        return number

    def close_channel(self, number: int) -> None:
        """Takes a number back; what workers still say about it is thrown away."""
        self._channels.pop(number, None)

    def send(self, rank: int, kind: str, fds: tuple[int, ...] = (), /, **body: object) -> None:
        """Sends a message to a worker; one that is gone gets nothing."""
        self.supervisor.send(rank, kind, fds, **body)

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
            self.supervisor.send(rank, "client", (ours.fileno(),), client=client)
            child = self.supervisor.alive[rank]
            wire.send("worker", (theirs.fileno(), self.supervisor.vitals.block.fd), worker=rank, pid=child.pid, log=str(child.log))

    def remove_client(self, client: int) -> None:
        """Has every worker let a client go."""
        for rank in self.supervisor.ready:
            self.supervisor.send(rank, "left", client=client)

    # What arrives ---------------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Handles what workers have said, and their deaths."""
        for rank, what in self.supervisor.listen():
            if isinstance(what, Exit):
                self._on_exit(rank, what.error)
            else:
                self._take(rank, what)
        overdue = self.supervisor.overdue(self.options.start_timeout_s)
        if overdue is not None:
            self._on_exit(*overdue)
        self.sharing.spread(self.supervisor, ask=self._may_copy)

    def copy(self) -> bool:
        """Has a worker make the graph's copy, if it is to be made at all; whether it is being made or there."""
        self._may_copy = True
        self.sharing.spread(self.supervisor, ask=True)
        return self.sharing.is_copying or self.sharing.shared is not None

    def _take(self, rank: int, message: Message) -> None:
        if message.kind == "ready":
            self.failures.pop(rank, None)
            self._was_complete = self._was_complete or len(self.supervisor.ready) == self.options.workers
            for handler in list(self.handlers):
                handler.on_ready(rank)
        elif message.kind == "graph":
            self.sharing.take(rank, message)
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
        self.sharing.lost(rank)
        self.failures[rank] = error
        if self.starts_again and not isinstance(error, WorkerStopped):
            self.restarts += 1
            self.supervisor.start_missing()
        for handler in list(self.handlers):
            handler.on_lost(rank, error)

    def _set_up(self, child: ChildProcess) -> None:
        """Tells a worker that has just been started what it is there for."""
        fds, description = self.sharing.setup_message(child.rank)
        store = asdict(self._store)
        child.wire.send("setup", fds, store=store, graph=description, threads=self.options.threads, idle_s=None, hosts=self._hosts)

    def stop(self) -> None:
        """Ends the workers."""
        self.supervisor.stop()

"""A server's sampling processes: one pool for all clients, introduced to those of this host."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from gnnkit.cluster import worker
from gnnkit.cluster.serving.spec import ServerSpec
from gnnkit.errors import GnnkitError
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.runtime.pool import LocalWorkerPool, PoolSession, SharedPool
from gnnkit.runtime.supervisor import Exit, SupervisorOptions
from gnnkit.runtime.wire import Message, Wire
from gnnkit.storage.store import Store

logger = logging.getLogger(__name__)

_ADVICE = "iterate again, or let the server restart it by itself with max_restarts=..."


class ServedPool(SharedPool[PoolSession, LocalWorkerPool]):
    """The workers, and the loaders that they sample for through the server. Only for the server's main thread.

    Clients of this host are introduced to the workers, and are loaders of other pools: their own.

    Args:
        spec: What the server is.
        server: Its number.
        store: What they sample from.
        hosts: The message about other hosts, see ``gnnkit.cluster.parts``; None where every part is here.
        forward: Called with each report of progress.

    Attributes:
        count: How many there are once all are there.
        parts: The parts that they sample from themselves.
        watchers: Called with a worker that is there, for the first time or again; or that has ended, and with its error.
        failures: ``{worker: why it is not there}``.

    Raises:
        PlanError: The system's limits do not allow it, or there is no folder for logs.
        MemoryLimitError: There is no memory for them.
    """

    def __init__(
        self, spec: ServerSpec, server: int, store: Store, hosts: dict[str, Any] | None, forward: Callable[[Message], None]
    ) -> None:
        self._forward = forward
        self.count, self.parts = spec.workers_per_server, store.local_parts
        self.watchers: list[Callable[[int, GnnkitError | None], None]] = []
        self.failures: dict[int, GnnkitError] = {}
        self._was_complete = False
        title = f"sampling process {{rank}} of server {server}"
        options = SupervisorOptions(self.count, spec.threads_per_worker, worker.__name__, title=title, advice=_ADVICE)
        facts, setup = {"store": str(store.path), "server": server}, {"store": asdict(store.reference), "idle_s": None, "hosts": hosts}
        workers = LocalWorkerPool(options, spec.log_dir, facts, GraphHandle.of(store), spec.memory_budget, setup, trains=False)
        super().__init__(workers, spec.max_restarts, spec.start_timeout_s)

    @property
    def is_over(self) -> bool:
        """Whether no worker is there or starting, and none will be unless they are started."""
        return not self.workers.alive

    @property
    def state(self) -> str:
        """Says "joining" until all are there for the first time; then "ready", or "degraded" where one is not."""
        if len(self.workers.ready) == self.count:
            return "ready"
        return "degraded" if self._was_complete or self.failures else "joining"

    def details(self) -> list[dict[str, Any]]:
        """Returns the state of each worker, as JSON values."""
        alive, ready = self.workers.alive, self.workers.ready
        return [
            {
                "worker": rank,
                "pid": alive[rank].pid if rank in alive else None,
                "state": "ready" if rank in ready else "starting" if rank in alive else "gone",
                "log": str(self.workers.folder.log(rank)),
                "error": self.failures[rank].message if rank in self.failures else None,
            }
            for rank in self.workers.options.ranks
        ]

    # Clients of this host -----------------------------------------------------------------------------------------------------

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
            self.workers.send(rank, "client", (ours.fileno(),), client=client)
            child = self.workers.alive[rank]
            wire.send("worker", (theirs.fileno(), self.workers.vitals.block.fd), worker=rank, pid=child.pid, log=str(child.log))

    def remove_client(self, client: int) -> None:
        """Has every worker let a client go."""
        for rank in self.workers.ready:
            self.workers.send(rank, "left", client=client)

    # What arrives -------------------------------------------------------------------------------------------------------------

    def copy(self) -> bool:
        """Has a worker make the graph's copy, if it is to be made at all; whether it is being made or there."""
        sharing = self.workers.sharing
        sharing.spread(self.workers.ready, self.workers.send, ask=True)
        return sharing.copier is not None or sharing.shared is not None

    def _handle(self, rank: int, message: Message) -> None:
        if message.kind == "ready":
            self.failures.pop(rank, None)
            self._was_complete = self._was_complete or len(self.workers.ready) == self.count
            self._tell_watchers(rank, None)
        elif message.kind == "event":
            self._forward(message)
        else:  # the loader has left
            message.close()

    def _on_exit(self, rank: int, exit_: Exit) -> None:
        logger.warning("%s", exit_.error)
        self.failures[rank] = exit_.error
        super()._on_exit(rank, exit_)
        self._tell_watchers(rank, exit_.error)

    def _on_harmless(self, exit_: Exit) -> None:
        self.workers.start_missing()

    def _on_overdue(self, rank: int, error: GnnkitError) -> None:
        self._on_exit(rank, Exit(error, error.message))

    def _tell_watchers(self, rank: int, error: GnnkitError | None) -> None:
        for watcher in list(self.watchers):
            watcher(rank, error)

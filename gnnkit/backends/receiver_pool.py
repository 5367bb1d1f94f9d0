"""Servers of other hosts as a pool sees them: a process of this trainer's own that receives what they sample."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gnnkit.backends.local_pool import LocalWorkerPool
from gnnkit.backends.server_pool import OwnServers
from gnnkit.cluster import network_child
from gnnkit.cluster.network_child import Servers, join, read_ca
from gnnkit.cluster.serving.connection import client_id
from gnnkit.cluster.serving.membership import JoinedServers
from gnnkit.cluster.serving.spec import required, split_place, threads_for
from gnnkit.errors import PlanError, StoreError, WorkerStopped
from gnnkit.events import EventSink
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.graph_memory import GraphHandle, GraphSharing
from gnnkit.runtime.limits import check_descriptors, check_start_memory
from gnnkit.runtime.process_status import ProcessStatus
from gnnkit.runtime.runs import RunFolder, new_run
from gnnkit.runtime.supervisor import ChildProcess, Exit, SupervisorOptions
from gnnkit.runtime.wire import Message
from gnnkit.storage.store import Store

if TYPE_CHECKING:
    from gnnkit.backends.graph_store import GraphStore
    from gnnkit.backends.worker_pool import OnStarted


class ReceiverPool(LocalWorkerPool):
    """One network child that samples; see ``WorkerPool``.

    Args:
        options: How it is started.
        folder: Where its log goes.
        graph: The graph's outline.
        on_started: Called when it has been started.
        joined: The servers.
        own: Those of them that this process has started, which end with it; None where all are somebody else's.

    Attributes:
        servers: What the process is told of the servers, before ``setup``; see ``gnnkit.cluster.network_child``.
    """

    def __init__(
        self,
        options: SupervisorOptions,
        folder: RunFolder,
        graph: GraphHandle,
        on_started: OnStarted,
        joined: JoinedServers,
        own: OwnServers | None,
    ) -> None:
        super().__init__(options, folder, GraphSharing(graph, 0), on_started)
        self.servers: dict[str, Any] = {}
        self._joined, self._own = joined, own
        self._traffic = [0, 0]
        self._leaving: frozenset[int] = frozenset()  # pids of servers of this process's own, until others have taken their places

    def _set_up(self, child: ChildProcess) -> None:
        child.wire.send("servers", **self.servers)
        super()._set_up(child)

    def start_missing(self) -> None:
        """Has the process come back, and servers of this process's own that have died; those that somebody has had ended stay away."""
        if self._own is not None and self._leaving:
            if self._own.error is None and not self._own.are_there_without(self._leaving):
                return  # it would ask servers that do not listen yet
            self._leaving = frozenset()
        super().start_missing()
        error = None if self._own is None else self._own.error
        if self._own is not None and error is not None and not isinstance(error, WorkerStopped):
            self._own.revive()

    def check(self) -> None:
        """See ``LocalWorkerPool.check``. An epoch begins: whichever servers of this process's own are not there come back."""
        super().check()
        if self._own is not None and self._own.error is not None:
            self._own.revive()

    def restart(self) -> None:
        """Has the process end and come again, and the servers with it.

        Raises:
            PlanError: They are not this process's own.
        """
        if self._own is None:
            where = ", ".join(server.address for server in self._joined.servers)
            raise PlanError(f"the servers at {where} are not this process's to restart", "restart them where they were started")
        self._leaving = self._own.pids
        super().restart()
        self._own.restart()

    @property
    def is_starting(self) -> bool:
        """See ``LocalWorkerPool.is_starting``; the process waits for the servers."""
        return bool(self._leaving) or super().is_starting

    def statuses(self) -> Iterator[ProcessStatus]:
        """See ``WorkerPool.statuses``; servers of other hosts are not among them."""
        yield from super().statuses()
        if self._own is not None:
            yield from self._own.statuses()

    def listen(self) -> Iterator[tuple[int, Message | Exit]]:
        """See ``Supervisor.listen``; bytes on the wire are noted."""
        for rank, what in super().listen():
            if isinstance(what, Message):
                self._traffic = what.body.get("traffic", self._traffic)
            yield rank, what

    def details(self) -> Mapping[str, Any]:
        """Facts about the servers, and bytes on the wire since the process was started."""
        servers = {server.rank: server.address for server in self._joined.servers}
        text, (received, sent) = ", ".join(f"server {rank} at {address}" for rank, address in servers.items()), self._traffic
        return {"servers": text, "addresses": servers, "wire": {"received": received, "sent": sent}}

    def stop(self) -> None:
        """Ends what is this process's own; does nothing in a forked child."""
        super().stop()
        if self._own is not None and os.getpid() == self._owner:
            self._own.stop()


def servers_of(options: GraphStore) -> Servers:
    """Returns the addresses and secrets for joining the servers that a backend names by their addresses.

    Raises:
        PlanError: There is no token, or a file cannot be read.
    """
    assert options.address is not None
    _, addresses = split_place(options.address)
    return _servers(options, addresses, required(options.address))


def _servers(options: GraphStore, addresses: tuple[str, ...], token: str) -> Servers:
    return Servers(addresses, token, read_ca(options.tls_ca), client_id(), options.join_timeout_s, options.log_dir)


def open_receiver(
    options: GraphStore,
    servers: Servers,
    plan: LoaderPlan,
    fingerprint: str,
    events: EventSink,
    on_started: OnStarted,
    own: OwnServers | None = None,
) -> ReceiverPool:
    """Joins servers by their addresses, and starts the process that receives from them; see ``PoolOptions.open_pool``.

    Args:
        options: The backend's options.
        servers: See ``servers_of``.
        plan: See ``PoolOptions.open_pool``.
        fingerprint: Of the store that they must have.
        events: See ``PoolOptions.open_pool``.
        on_started: See ``PoolOptions.open_pool``.
        own: Servers of this process's own, which the pool takes over.

    Raises:
        StoreError: They have another store.
        StartTimeout: They were not there in time.
        PlanError: They expect another token, or the system's limits do not allow it.
    """
    joined = join(servers, events)
    if joined.fingerprint != fingerprint:
        raise StoreError(
            f"the servers' store is another one: its fingerprint is {joined.fingerprint}, and {fingerprint} is wanted",
            "join servers of the same store, or make the plan again",
        )
    outline = Store.open(joined.outline, ())
    graph = GraphHandle(outline.arrays(), outline.splits, outline.reference, link_splits=outline.link_splits)
    threads = threads_for(len(joined.servers))
    check_descriptors(1)
    check_start_memory(1, threads, outline.schema)
    folder = new_run(options.log_dir, {"store": str(outline.path), "servers": list(servers.addresses)})
    workers = ReceiverPool(
        SupervisorOptions(1, threads, network_child.__name__, title="receiving process {rank}", lane="receiver"),
        folder,
        graph,
        on_started,
        joined,
        own,
    )
    workers.servers = servers.message(joined)
    workers.setup = {
        "store": asdict(outline.reference),
        "idle_s": options.idle_timeout_s,
        "hosts": {"parts": []},
        "again": options.max_restarts > 0,
    }
    return workers


def open_own_receiver(options: GraphStore, plan: LoaderPlan, graph: GraphHandle, events: EventSink, on_started: OnStarted) -> ReceiverPool:
    """Starts servers on addresses of this host, and joins them as if they were on another; see ``PoolOptions.open_pool``."""
    own = OwnServers(options, plan, graph, events)
    try:
        servers = _servers(options, (own.fleet.address,), own.fleet.token)
        return open_receiver(options, servers, plan, own.store.fingerprint, events, on_started, own)
    except BaseException:
        own.stop()
        raise

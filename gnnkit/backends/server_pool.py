"""Pools of servers' workers: of servers of this host over their sockets, and of others through the network child."""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, astuple
from typing import TYPE_CHECKING, Any

from gnnkit.backends.loader_pool import pool_registry
from gnnkit.backends.stored_graph import temporary_store
from gnnkit.cluster import network_child
from gnnkit.cluster.membership import JoinedServers
from gnnkit.cluster.network_child.client import Servers, join, read_ca
from gnnkit.cluster.serving.connection import EXIT_WAIT_S, ServerConnection, UnixServers, client_id, join_folder
from gnnkit.cluster.serving.fleet import ServerFleet, processes_of
from gnnkit.cluster.serving.spec import ServerSpec, required, split_place, threads_for
from gnnkit.errors import GnnkitError, PlanError, StartTimeout, StoreError, WorkerDied, WorkerStopped, on_error
from gnnkit.events import EventSink
from gnnkit.plan import LoaderPlan, StoreRef
from gnnkit.runtime.entry import UNSEEN, Signs
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.runtime.limits import check_descriptors, check_start_memory
from gnnkit.runtime.pool import LocalWorkerPool, WorkerPool
from gnnkit.runtime.process_status import ProcessStatus
from gnnkit.runtime.supervisor import ChildProcess, Exit, SupervisorOptions
from gnnkit.runtime.waiters import SLICE_S
from gnnkit.runtime.wire import Handed, Message
from gnnkit.storage.store import Store
from gnnkit.waiting import Deadline

if TYPE_CHECKING:
    from gnnkit.backends.graph_store import GraphStore


# Between two looks at loaders that may not be used.
_LEAST_GAP_S, _MOST_GAP_S = 0.05, 30.0


class OwnServers:
    """Servers of this process.

    Args:
        options: The backend's options.
        plan: The plan of the first loader.
        graph: The graph.
        events: Receives the stages of a build, where the graph is only in memory.

    Attributes:
        store: What they serve.
        fleet: The servers.

    Raises:
        PlanError: The system's limits do not allow it, or there is no folder for logs or for a graph in memory.
        MemoryLimitError: There is no memory for it.
        StoreError: A graph in memory cannot be written.
    """

    def __init__(self, options: GraphStore, plan: LoaderPlan, graph: GraphHandle, events: EventSink) -> None:
        workers = options.num_servers * options.workers_per_server
        check_descriptors(options.num_servers + workers)
        processes = options.num_servers + workers
        check_start_memory(processes, options.threads_per_worker, graph.arrays.schema, graph.mapped_nbytes)
        self._temporary = temporary_store(graph, events) if plan.store is None else None
        self.store: StoreRef = plan.store if self._temporary is None else self._temporary.reference  # type: ignore[assignment]
        spec = ServerSpec(
            self.store.path,
            self.store.fingerprint,
            options.num_servers,
            options.workers_per_server,
            options.threads_per_worker,
            addresses=() if options.address is None else (str(options.address),),
            join_timeout_s=options.join_timeout_s,
            start_timeout_s=plan.runtime.start_timeout_s,
            log_dir=options.log_dir,
            memory_budget=plan.runtime.memory_budget,
        )
        self.fleet = ServerFleet(spec)
        self._stopped = threading.Event()
        if options.idle_timeout_s is None:
            return
        with on_error(self.stop):  # an interrupt
            threading.Thread(target=_tidy, args=(self._stopped, options.idle_timeout_s), name="gnnkit-idle", daemon=True).start()

    @property
    def error(self) -> GnnkitError | None:
        """The error that ended one of the servers and was followed by no restart; that of a server that was stopped comes first."""
        errors = [error for rank in self.fleet.spec.ranks if (error := self.fleet.error_of(rank)) is not None]
        return next((error for error in errors if isinstance(error, WorkerStopped)), errors[0] if errors else None)

    def check(self) -> None:
        """Raises what keeps them from coming."""
        if (error := self.error) is not None:
            raise error

    @property
    def pids(self) -> frozenset[int]:
        """Of those that are there."""
        return frozenset(server["pid"] for server in self.fleet.status()["servers"] if server["pid"] is not None)

    def are_there_without(self, pids: frozenset[int]) -> bool:
        """Whether all are ready, and none of them is one of ``pids``."""
        return self.fleet.state == "ready" and len(self.pids) == len(self.fleet.spec.ranks) and self.pids.isdisjoint(pids)

    def statuses(self) -> Iterator[ProcessStatus]:
        """Yields the process status of each server and of its sampling processes."""
        return processes_of(self.fleet.status())

    def stop(self) -> None:
        """Ends them."""
        self._stopped.set()
        self.fleet.stop()
        self._temporary = None


def _tidy(stopped: threading.Event, idle_timeout_s: float) -> None:
    """A thread: takes the places of loaders that are not used, also while nothing else of gnnkit's runs; the last one's servers end."""
    gap_s = max(_LEAST_GAP_S, min(idle_timeout_s / 4, _MOST_GAP_S))
    while not stopped.wait(gap_s):
        with pool_registry().lock:
            pool_registry().tidy()


def open_local_servers(options: GraphStore, plan: LoaderPlan, graph: GraphHandle, events: EventSink) -> ServerWorkerPool:
    """Joins servers of this host, which it starts where it names none; see ``PoolBackend.open_pool``."""
    if options.folder is not None:
        assert plan.store is not None, "servers that are joined have a store"
        return ServerWorkerPool(join_folder(options.folder, "trainer", options.join_timeout_s, events, plan.store.fingerprint), None)
    own = OwnServers(options, plan, graph, events)
    with on_error(own.stop):
        servers = join_folder(own.fleet.folder, "starter", plan.runtime.start_timeout_s, events, own.store.fingerprint, own.check)
    return ServerWorkerPool(servers, own)


# Servers that have gone are looked for so often.
_LOOK_S = 0.1
# A waiting thread looks more often than this; a longer time between two looks does not count as waiting.
_PAUSE_S = 1.0


class ServerWorkerPool(WorkerPool):
    """Processes of servers; see ``WorkerPool``. Process ``w`` of server ``s`` has the number ``s * width + w``.

    Args:
        servers: The connections to the servers, all of which are there.
        own: The servers where they are this process's own; None where they were joined.
    """

    def __init__(self, servers: UnixServers, own: OwnServers | None) -> None:
        self._servers, self._own, self.on_started = servers, own, lambda rank: None
        self._owner = os.getpid()
        self.ready = set()  # servers introduce a process when it is ready
        self._heard: deque[tuple[int, Message | Exit]] = deque()
        self._waiting: float | None = None
        self._awaited = 0.0
        self._looked, self._is_revived, self._is_reporting = 0.0, True, True
        self._restarting: set[int] = set()
        self._width = max((connection.most_workers for connection in servers.connections.values()), default=1)
        for connection in servers.connections.values():
            connection.enlist(self._width)

    @property
    def _connections(self) -> dict[int, ServerConnection]:
        """A copy: others look at the pids while servers come and go."""
        return dict(self._servers.connections)

    def _find(self, rank: int) -> tuple[ServerConnection, int] | None:
        server, worker = divmod(rank, self._width)
        connection = self._servers.connections.get(server)
        return None if connection is None or worker not in connection.members else (connection, worker)

    # What they are ----------------------------------------------------------------------------------------------------------

    @property
    def expected(self) -> int:
        """The number of processes once all those of the connected servers have joined."""
        return sum(connection.expected for connection in self._connections.values())

    @property
    def pids(self) -> Mapping[int, int]:
        """Pids by number."""
        return {
            server * self._width + worker: member.pid
            for server, connection in self._connections.items()
            for worker, member in list(connection.members.items())
        }

    @property
    def is_starting(self) -> bool:
        """Whether no process is there, and a server is awaited."""
        return self._waiting is not None and not any(connection.members for connection in self._connections.values())

    @property
    def is_reporting(self) -> bool:
        """Whether servers of this process's own have yet to say that they are ready: they do so after all else of their start."""
        self._is_reporting = self._is_reporting and self._own is not None and self._own.fleet.state == "joining"
        return self._is_reporting

    @property
    def graph_bytes(self) -> int:
        """Bytes of the graph's copy, which servers of one host share; as of the last epoch's start."""
        return max((connection.graph_bytes for connection in self._connections.values()), default=0)

    def lane(self, rank: int) -> str:
        """Returns the name of a server's process."""
        server, worker = divmod(rank, self._width)
        return f"server {server}, process {worker}"

    def statuses(self) -> Iterator[ProcessStatus]:
        """Yields the status of each server and of its processes."""
        for _, connection in sorted(self._connections.items()):
            yield from connection.statuses()

    def describe(self, rank: int) -> str | None:
        """Returns a process's name, its state and its server's in the system, for messages; None where there is no such process."""
        found = self._find(rank)
        return None if found is None else found[0].describe(found[1])

    def signs(self, rank: int) -> Signs:
        """Returns the last signs of life of a process."""
        found = self._find(rank)
        return UNSEEN if found is None else found[0].signs(found[1])

    def details(self) -> Mapping[str, Any]:
        """Returns the folder of their logs, the number of servers, their place and their pids."""
        connections, count = self._connections, self._servers.num_servers
        there = "" if len(connections) == count else f"{len(connections)} of "
        where = "of its own" if self._own is not None else f"at {self._servers.address}"
        text = f"{there}{count} server{'' if count == 1 else 's'} {where}"
        logs = next((str(connection.log.parent) for connection in connections.values()), "")
        return {"logs": logs, "servers": text, "server_pids": {rank: connection.pid for rank, connection in connections.items()}}

    # What they say ----------------------------------------------------------------------------------------------------------

    def send(self, rank: int, kind: str, fds: Handed = (), /, **body: object) -> None:
        """Sends a message to a process; one that is gone gets nothing."""
        if (found := self._find(rank)) is not None:
            found[0].members[found[1]].wire.send(kind, fds, **body)

    def listen(self) -> Iterator[tuple[int, Message | Exit]]:
        """Yields what has arrived since the last call, and exits after all that the dead had sent."""
        self._advance()
        for event in [] if self._own is None else self._own.fleet.take_events():
            yield 0, Message("event", {"fields": astuple(event)})
        while self._heard:
            yield self._heard.popleft()

    def _advance(self) -> None:
        for server, connection in list(self._servers.connections.items()):
            connection.hear()
            for worker, member in list(connection.members.items()):
                for message in member.hear():
                    self._heard.append((server * self._width + worker, message))
                if member.ended is not None:
                    self.ready.discard(server * self._width + worker)
            if connection.is_steady:
                continue
            if connection.is_gone:
                self._lose(server, connection)
                continue
            for worker, exit_ in connection.exits():
                self._heard.append((server * self._width + worker, exit_))
            for worker in connection.started():
                self._waiting = None
                self.ready.add(server * self._width + worker)
                self.on_started(server * self._width + worker)

    def _lose(self, server: int, connection: ServerConnection) -> None:
        if server in self._restarting:
            self._restarting.discard(server)
            self._heard.extend((server * self._width + worker, Message("retired", {})) for worker in connection.members)
            self._servers.drop(server)
            return
        if self._awaits_cause(server, connection):
            return
        known = None if self._own is None else self._own.fleet.error_of(server)
        ranks = [server * self._width + worker for worker in connection.members] or [server * self._width]
        self._is_revived = False
        self._heard.append((ranks[0], connection.end_of_server(known, frozenset(ranks[1:]))))
        self._servers.drop(server)

    def _awaits_cause(self, server: int, connection: ServerConnection) -> bool:
        """Whether a server of this process's own has gone, and its exit status is about to be known."""
        if self._own is None or not connection.is_gone or server in self._restarting:
            return False
        return self._own.fleet.error_of(server) is None and (connection.ended_s or 0.0) < EXIT_WAIT_S

    def poller(self) -> select.poll:
        """Returns a poll object that wakes when something arrives or a process ends."""
        poller = select.poll()
        for connection in self._servers.connections.values():
            connection.register(poller)
        self._servers.register(poller)
        return poller

    def settle(self) -> None:
        """Waits for processes that have begun to end, so that the next ``listen`` finds all who died together."""
        deadline = Deadline(EXIT_WAIT_S)
        while not deadline.has_passed and any(c.is_ending or self._awaits_cause(rank, c) for rank, c in self._connections.items()):
            self.poller().poll(SLICE_S * 1000)
            self._advance()

    # Coming back ------------------------------------------------------------------------------------------------------------

    def attend(self, start_timeout_s: float, *, revive: bool) -> tuple[int, GnnkitError] | None:
        """Has servers and processes come back; returns the error where no server has, within the time that a thread has been waiting."""
        found = self._overdue(start_timeout_s)
        if revive:
            self._start_missing()
        return found

    def _start_missing(self) -> None:
        """Connects to servers that have come back, and asks those that are there for processes that are not."""
        for connection in self._servers.connections.values():
            if len(connection.members) < connection.workers:
                connection.enlist(self._width)
        now = time.monotonic()
        if self._servers.is_complete or now - self._looked < _LOOK_S:
            return
        self._looked = now
        if self._own is not None and not self._is_revived and not any(connection.is_ending for connection in self._connections.values()):
            self._is_revived = True
            self._own.fleet.revive()
        for connection in self._servers.advance():
            connection.enlist(self._width)

    def restart(self) -> None:
        """Has the servers end and come again, and with them their processes.

        Raises:
            PlanError: They are not this process's own.
        """
        if self._own is None:
            raise PlanError(
                f"the servers at {self._servers.address} are not this process's to restart", "restart them where they were started"
            )
        self._restarting = set(self._connections)
        self._own.fleet.restart()

    def _overdue(self, timeout_s: float) -> tuple[int, GnnkitError] | None:
        now, before = time.monotonic(), self._awaited
        self._awaited = now
        for connection in self._servers.connections.values():
            if connection.members:
                self._waiting = None
                return None
        if self._waiting is None or now - before > _PAUSE_S:
            self._waiting = now
        error = self._end_of_own()
        if error is None and self._own is None and self._servers.were_stopped:
            error = WorkerDied(
                f"the servers at {self._servers.address} were stopped", "start servers again, and make the loader with their address"
            )
        if error is None and now - self._waiting > timeout_s:
            who = self._servers.whereabouts() if not self._servers.is_complete else "they have no sampling process"
            error = StartTimeout(f"no server came back within {timeout_s:g} s; {who}", "start them again, or raise start_timeout_s")
        if error is None:
            return None
        self._waiting, self._is_revived = None, False
        return 0, error

    def _end_of_own(self) -> GnnkitError | None:
        """Why servers of this process's own do not come back although they were started again."""
        if self._own is None or not self._is_revived:
            return None
        errors = (self._own.fleet.error_of(rank) for rank in self._own.fleet.spec.ranks if rank not in self._connections)
        return next((error for error in errors if error is not None), None)

    def check(self) -> None:
        """Asks the servers what they are doing, for ``graph_bytes``."""
        for connection in self._connections.values():
            connection.ask_status()

    def stop(self) -> None:
        """Leaves the servers, and stops them where they are this process's own; does nothing in a forked child."""
        if os.getpid() != self._owner:
            return
        while self._heard:
            what = self._heard.popleft()[1]
            if isinstance(what, Message):
                what.close()
        self._servers.close()
        if self._own is not None:
            self._own.stop()


class ReceiverPool(LocalWorkerPool):
    """One network child that samples; see ``WorkerPool``.

    Args:
        options: How it is started.
        log_dir: See ``LocalWorkerPool``.
        facts: See ``RunFolder``.
        graph: The graph's outline.
        setup: See ``LocalWorkerPool``.
        servers: What the process is told of the servers, before ``setup``; see ``gnnkit.cluster.network_child``.
        joined: The servers.
        own: Those of them that this process has started, which end with it; None where this process has started none.
    """

    def __init__(
        self,
        options: SupervisorOptions,
        log_dir: str | None,
        facts: dict[str, Any],
        graph: GraphHandle,
        setup: dict[str, Any],
        servers: dict[str, Any],
        joined: JoinedServers,
        own: OwnServers | None,
    ) -> None:
        super().__init__(options, log_dir, facts, graph, 0, setup)
        self._servers, self._joined, self._own = servers, joined, own
        self._leaving: frozenset[int] = frozenset()  # pids of servers of this process's own, until others have taken their places

    def _set_up(self, child: ChildProcess) -> None:
        child.wire.send("servers", **self._servers)
        super()._set_up(child)

    def start_missing(self) -> None:
        """Has the process come back, and servers of this process's own that have died; those that were stopped stay away."""
        if self._own is not None and self._leaving:
            if self._own.error is None and not self._own.are_there_without(self._leaving):
                return  # it would ask servers that do not listen yet
            self._leaving = frozenset()
        super().start_missing()
        error = None if self._own is None else self._own.error
        if self._own is not None and error is not None and not isinstance(error, WorkerStopped):
            self._own.fleet.revive()

    def check(self) -> None:
        """Starts missing servers of this process's own when an epoch begins."""
        super().check()
        if self._own is not None and self._own.error is not None:
            self._own.fleet.revive()

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
        self._own.fleet.restart()

    @property
    def is_starting(self) -> bool:
        """Whether the process is not ready yet; it waits for the servers."""
        return bool(self._leaving) or super().is_starting

    def statuses(self) -> Iterator[ProcessStatus]:
        """Yields the status of each process on this host; servers of other hosts are not among them."""
        yield from super().statuses()
        if self._own is not None:
            yield from self._own.statuses()

    def listen(self) -> Iterator[tuple[int, Message | Exit]]:
        """Yields what has arrived. What a restart interrupts is sampled again and no error."""
        for rank, what in super().listen():
            # Of the process that ends with its servers, a moment after one of them.
            if isinstance(what, Message) and self._leaving and what.kind == "error":
                what.close()
                continue
            yield rank, what

    def details(self) -> dict[str, Any]:
        """Facts about the servers, and bytes on the wire since the process was started."""
        servers = {server.rank: server.address for server in self._joined.servers}
        text = ", ".join(f"server {rank} at {address}" for rank, address in servers.items())
        return {**super().details(), "servers": text, "addresses": servers, "wire": self.wire}

    def stop(self) -> None:
        """Ends what is this process's own; does nothing in a forked child."""
        super().stop()
        if self._own is not None and os.getpid() == self._owner:
            self._own.stop()


def servers_of(options: GraphStore, own: ServerFleet | None = None) -> Servers:
    """Returns the addresses and secrets for joining the servers that a backend names by their addresses, or its own.

    Raises:
        PlanError: There is no token, or a file cannot be read.
    """
    addresses, token = (split_place(options.address)[1], required(str(options.address))) if own is None else ((own.address,), own.token)
    return Servers(addresses, token, read_ca(options.tls_ca), client_id(), options.join_timeout_s, options.log_dir)


def open_receiver(options: GraphStore, plan: LoaderPlan, graph: GraphHandle, events: EventSink) -> ReceiverPool:
    """Joins servers by their addresses, and starts the process that receives from them; see ``PoolBackend.open_pool``.

    Where it is to start them itself, it joins them as if they were on another host.

    Raises:
        StoreError: They have another store.
    """
    own = OwnServers(options, plan, graph, events) if options.starts_servers else None
    with ExitStack() as undo:
        if own is not None:
            undo.callback(own.stop)
        store, servers = (plan.store, servers_of(options)) if own is None else (own.store, servers_of(options, own.fleet))
        joined = join(servers, events)
        assert store is not None, "servers that are joined have a store"
        if joined.fingerprint != store.fingerprint:
            raise StoreError(
                f"the servers' store is another one: its fingerprint is {joined.fingerprint}, and {store.fingerprint} is wanted",
                "join servers of the same store, or make the plan again",
            )
        outline = Store.open(joined.outline, ())
        child, threads = network_child.__name__, threads_for(len(joined.servers))
        supervisor_options = SupervisorOptions(1, threads, child, title="receiving process {rank}", lane="receiver")
        facts, idle_s = {"store": str(outline.path), "servers": list(servers.addresses)}, options.idle_timeout_s
        setup: dict[str, Any] = {
            "store": asdict(outline.reference),
            "idle_s": idle_s,
            "hosts": {"held": {"parts": []}},
            "again": options.max_restarts > 0,
        }
        told, handle = servers.message(joined), GraphHandle.of(outline)
        workers = ReceiverPool(supervisor_options, options.log_dir, facts, handle, setup, told, joined, own)
        undo.pop_all()
        return workers

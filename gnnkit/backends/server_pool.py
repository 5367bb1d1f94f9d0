"""The workers of servers on this host as a pool: servers of this process's own or joined ones, and the links to them."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit.backends.stored_graph import TemporaryStore, temporary_store
from gnnkit.cluster.serving.connection import ServerConnection, UnixJoin, Welcome, join_folder
from gnnkit.cluster.serving.fleet import ServerFleet, processes_of
from gnnkit.cluster.serving.spec import ServerSpec
from gnnkit.errors import GnnkitError, PlanError, StartTimeout, WorkerDied, WorkerStopped
from gnnkit.events import EventSink
from gnnkit.plan import LoaderPlan, StoreRef
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.runtime.limits import check_descriptors, check_start_memory
from gnnkit.runtime.process_status import ProcessStatus, lane_of, look_at, process_state
from gnnkit.runtime.remote import error_from_json
from gnnkit.runtime.runs import with_tail
from gnnkit.runtime.shared_block import SharedBlock
from gnnkit.runtime.supervisor import Exit
from gnnkit.runtime.vitals import UNSEEN, Signs, Vitals
from gnnkit.runtime.wire import Message, Wire
from gnnkit.waiting import Deadline

if TYPE_CHECKING:
    from gnnkit.backends.graph_store import GraphStore
    from gnnkit.backends.worker_pool import OnStarted

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
        self._temporary: TemporaryStore | None = None
        if plan.store is None:
            self._temporary = temporary_store(graph, events)
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
        try:
            threading.Thread(target=_tidy, args=(self._stopped, options.idle_timeout_s), name="gnnkit-idle", daemon=True).start()
        except BaseException:  # an interrupt
            self.stop()
            raise

    @property
    def ranks(self) -> range:
        """Their numbers."""
        return self.fleet.spec.ranks

    @property
    def error(self) -> GnnkitError | None:
        """The error that ended one of the servers and was followed by no restart; that of a server that was stopped comes first."""
        errors = [error for rank in self.ranks if (error := self.error_of(rank)) is not None]
        return next((error for error in errors if isinstance(error, WorkerStopped)), errors[0] if errors else None)

    def check(self) -> None:
        """Raises what keeps them from coming."""
        error = self.error
        if error is not None:
            raise error

    def error_of(self, rank: int) -> GnnkitError | None:
        """Returns the error that ended a server, where no restart followed."""
        return self.fleet.error_of(rank)

    def revive(self) -> None:
        """Starts those again that are not there."""
        self.fleet.revive()

    def restart(self) -> None:
        """Ends them and starts them again."""
        self.fleet.restart()

    @property
    def pids(self) -> frozenset[int]:
        """Of those that are there."""
        return frozenset(server["pid"] for server in self.fleet.status()["servers"] if server["pid"] is not None)

    def are_there_without(self, pids: frozenset[int]) -> bool:
        """Whether all are ready, and none of them is one of ``pids``."""
        return self.fleet.state == "ready" and len(self.pids) == len(self.ranks) and self.pids.isdisjoint(pids)

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
    from gnnkit.backends.shared_pool import pool_registry

    gap_s = max(_LEAST_GAP_S, min(idle_timeout_s / 4, _MOST_GAP_S))
    while not stopped.wait(gap_s):
        with pool_registry().lock:
            pool_registry().tidy()


def open_own_servers(
    options: GraphStore, plan: LoaderPlan, graph: GraphHandle, events: EventSink, on_started: OnStarted
) -> ServerWorkerPool:
    """Starts servers and joins them; see ``PoolOptions.open_pool``."""
    own = OwnServers(options, plan, graph, events)
    try:
        servers = join_folder(own.fleet.folder, "starter", plan.runtime.start_timeout_s, events, own.store.fingerprint, own.check)
    except BaseException:
        own.stop()
        raise
    return ServerWorkerPool(servers, on_started, own)


# The most messages taken from one process before the others have their turn.
_TURN = 64
# After a connection has ended, the explanation takes no longer than this.
EXIT_WAIT_S = 2.0
_ENDED = ("ended", "gone")
_HINT = "go on with loader.resume(), or have it wait for another one by itself with GraphStore(max_restarts=...)"


@dataclass(eq=False)
class ServedProcess:
    """A sampling process of a server.

    Attributes:
        worker: Its number at its server.
        pid: Its process.
        log: Its log.
        wire: The connection to it.
        ended: ``time.monotonic()`` when the connection was found to have ended; None while it lasts.
    """

    worker: int
    pid: int
    log: Path
    wire: Wire
    ended: float | None = None

    def hear(self) -> Iterator[Message]:
        """Yields what it has said, up to a limit."""
        self.wire.flush()
        try:
            for _ in range(_TURN):
                message = self.wire.receive()
                if message is None:
                    return
                yield message
        except EOFError:
            self.ended = self.ended or time.monotonic()


@dataclass(frozen=True)
class _Loss:
    """A server's report of the end of one of its processes.

    Attributes:
        error: Why it ended.
        again: Whether the server starts another one by itself.
    """

    error: GnnkitError
    again: bool


class ServerLink:
    """A server that has welcomed this process.

    Args:
        connection: The connection to it.
        welcome: What it has said of itself.
        most: Processes that are wanted of it.

    Attributes:
        welcome: What it has said of itself.
        workers: Processes that it is to have.
        members: Its sampling processes that this process is connected with, by their numbers at the server.
        asked: Whether it has been asked for processes that are not there.
        graph_bytes: Bytes of its copy of the graph, when it was last asked.
    """

    def __init__(self, connection: ServerConnection, welcome: Welcome, most: int) -> None:
        self.connection, self.welcome = connection, welcome
        self.workers = min(welcome.workers, most)
        self.members: dict[int, ServedProcess] = {}
        self.asked, self.graph_bytes = False, 0
        self._vitals: Vitals | None = None
        self._losses: dict[int, _Loss] = {}
        self._announced: list[Message] = []
        self._failure: GnnkitError | None = None
        self._ended: float | None = None
        self.ask()

    @property
    def name(self) -> str:
        """The server's name in messages."""
        return f"server {self.welcome.rank} (pid {self.welcome.pid})"

    @property
    def expected(self) -> int:
        """Its processes that are there or will be: all but those that have died and that nobody starts again."""
        gone = sum(not loss.again for worker, loss in self._losses.items() if worker not in self.members)
        return self.workers - (0 if self.asked else gone)

    def ask(self) -> None:
        """Asks for the processes, and for those that have died once more."""
        if not self.asked:
            self.asked = True
            self._losses = {worker: loss for worker, loss in self._losses.items() if worker in self.members}
            self.connection.enlist()

    def hear(self) -> None:
        """Takes what the server has said."""
        try:
            self.connection.flush()
            for message in self.connection.listen():
                if message.kind == "worker":
                    self._announced.append(message)
                elif message.kind == "lost":
                    worker = int(message.body["worker"])
                    error = error_from_json(message.body["error"], f"sampling process {worker} of {self.name}", WorkerDied)
                    self._losses[worker] = _Loss(error, bool(message.body["again"]))
                elif message.kind == "failed":
                    self._failure = error_from_json(message.body["error"], self.name, WorkerDied)
                elif message.kind == "answer":  # to ``ask_status``
                    self.graph_bytes = int(message.body["value"]["graph_bytes"])
        except EOFError:
            self._ended = self._ended or time.monotonic()

    def started(self) -> list[int]:
        """Meets the processes that the server has introduced, once those whose places they take are off the books; their numbers."""
        waiting, came = self._announced, []
        self._announced = []
        for message in waiting:
            worker = int(message.body["worker"])
            if worker in self.members:
                self._announced.append(message)
            elif worker >= self.workers:
                message.close()
            else:
                self._meet(worker, message)
                came.append(worker)
        if len(self.members) == self.workers:
            self.asked = False
        return came

    def _meet(self, worker: int, message: Message) -> None:
        body, (wire_fd, vitals_fd) = message.body, message.fds
        if self._vitals is None:
            self._vitals = Vitals(SharedBlock.attach(vitals_fd, writable=False))
        else:
            os.close(vitals_fd)
        self._losses.pop(worker, None)
        self.members[worker] = ServedProcess(worker, int(body["pid"]), Path(body["log"]), Wire(socket.socket(fileno=wire_fd)))

    def signs(self, worker: int) -> Signs:
        """Returns the last signs of life of one of its processes."""
        return UNSEEN if self._vitals is None else self._vitals.signs(worker)

    def statuses(self) -> Iterator[ProcessStatus]:
        """Yields the process status of its sampling processes."""
        for worker, member in sorted(dict(self.members).items()):
            yield look_at(f"server {self.welcome.rank}, process {worker}", member.pid, member.log, self.signs(worker).busy_s)

    def describe(self, worker: int) -> str | None:
        """Returns a process's name, its state and its server's in the system, for messages; None where there is no such process."""
        member = self.members.get(worker)
        if member is None:
            return None
        own, its = process_state(member.pid), process_state(self.welcome.pid)
        beside = "" if its == "running" else f", which is {its}"
        return f"sampling process {worker} (pid {member.pid}) of {self.name}{beside} is {own}"

    # Ends -----------------------------------------------------------------------------------------------------------------

    @property
    def ended_s(self) -> float | None:
        """Seconds since the server was found to have ended; None while it lasts."""
        return None if self._ended is None else time.monotonic() - self._ended

    @property
    def is_gone(self) -> bool:
        """Whether the server has gone, and its processes with it: they may write to this process's memory until they end."""
        return self._ended is not None and all(member.ended is not None for member in self.members.values())

    @property
    def is_ending(self) -> bool:
        """Whether something has begun to end, and it is not clear yet what came of it."""
        if self._ended is not None or process_state(self.welcome.pid) in _ENDED:
            return not self.is_gone
        return any(process_state(member.pid) in _ENDED for member in self.members.values())

    def end_of_server(self, known: GnnkitError | None, others: frozenset[int]) -> Exit:
        """The exit of the server, and of all its processes.

        Args:
            known: What its starter knows of it, if that is this process.
            others: See ``Exit``.
        """
        what = f"{self.name} at {self.connection.folder} is gone"
        if isinstance(known, WorkerDied):
            known = type(known)(known.message, _HINT)
        error = self._failure or known or WorkerDied(with_tail(what, self.welcome.log), _HINT)
        return Exit(error, what, others, remedy="it is waited for")

    def exits(self) -> Iterator[tuple[int, Exit]]:
        """Yields the processes that have ended while the server lasts, once it has said why or has had the time to."""
        if self._ended is not None:
            return
        for worker, member in list(self.members.items()):
            loss = self._losses.get(worker)
            if member.ended is None or (loss is None and time.monotonic() - member.ended < EXIT_WAIT_S):
                continue
            what = f"sampling process {worker} (pid {member.pid}) of {self.name} is gone"
            error = WorkerDied(with_tail(what, member.log), _HINT) if loss is None else loss.error
            self.members.pop(worker).wire.close()
            yield worker, _death(error, is_replaced=loss is not None and loss.again)
        for worker, loss in list(self._losses.items()):
            if worker not in self.members and self.asked and not loss.again:  # it did not even start
                yield worker, _death(loss.error)
                self.asked = False

    def close(self) -> None:
        """Leaves the server."""
        for message in self._announced:
            message.close()
        for member in self.members.values():
            member.wire.close()
        self.connection.close()


def _death(error: GnnkitError, *, is_replaced: bool = False) -> Exit:
    summary = error.message.splitlines()[0].partition(";")[0]
    return Exit(error, summary, remedy="its server is asked for another one", is_replaced=is_replaced)


_SLICE_S = 0.05
# Servers that have gone are looked for so often.
_LOOK_S = 0.1
# Whoever waits looks more often than this; a longer time between two looks is none that somebody has waited.
_PAUSE_S = 1.0


class ServerWorkerPool:
    """Processes of servers; see ``WorkerPool``. Process ``w`` of server ``s`` has the number ``s * width + w``.

    Args:
        servers: The connections to the servers, all of which are there.
        on_started: Called with each process that servers have introduced.
        own: The servers where they are this process's own; None where they were joined.
    """

    def __init__(self, servers: UnixJoin, on_started: OnStarted, own: OwnServers | None) -> None:
        self._servers, self._on_started, self._own = servers, on_started, own
        self._owner = os.getpid()
        self._heard: deque[tuple[int, Message | Exit]] = deque()
        self._links: dict[int, ServerLink] = {}
        self._waiting: float | None = None
        self._awaited = 0.0
        self._looked, self._is_revived, self._is_reporting = 0.0, True, True
        self._restarting: set[int] = set()
        self._width = max((c.welcome.workers for c in servers.connections.values() if c.welcome is not None), default=1)
        for connection in servers.connections.values():
            self._link(connection)

    def _link(self, connection: ServerConnection) -> None:
        assert connection.welcome is not None, "the server has said welcome"
        self._links[connection.rank] = ServerLink(connection, connection.welcome, self._width)

    def _members(self) -> Iterator[tuple[int, ServerLink, ServedProcess]]:
        for server, link in dict(self._links).items():  # copies: others look at the pids while servers come and go
            for worker, member in dict(link.members).items():
                yield server * self._width + worker, link, member

    def _find(self, rank: int) -> tuple[ServerLink, int] | None:
        server, worker = divmod(rank, self._width)
        link = self._links.get(server)
        return None if link is None or worker not in link.members else (link, worker)

    # What they are ----------------------------------------------------------------------------------------------------------

    @property
    def expected(self) -> int:
        """The number of processes once all those of the connected servers have joined."""
        return sum(link.expected for link in self._links.values())

    @property
    def pids(self) -> Mapping[int, int]:
        """Pids by number."""
        return {rank: member.pid for rank, _, member in self._members()}

    @property
    def ready(self) -> Set[int]:
        """All of them: servers introduce nobody who is not ready."""
        return {rank for rank, _, member in self._members() if member.ended is None}

    @property
    def is_starting(self) -> bool:
        """Whether nobody is there, and somebody is awaited."""
        return self._waiting is not None and not self._has_members

    @property
    def is_reporting(self) -> bool:
        """Whether servers of this process's own have yet to say that they are ready: they do so after all else of their start."""
        self._is_reporting = self._is_reporting and self._own is not None and self._own.fleet.state == "joining"
        return self._is_reporting

    @property
    def _has_members(self) -> bool:
        return any(link.members for link in self._links.values())

    @property
    def logs(self) -> str:
        """The folder of the servers' logs."""
        return next((str(link.welcome.log.parent) for link in list(self._links.values())), "")

    @property
    def graph_bytes(self) -> int:
        """Bytes of the graph's copy, which servers of one host share; as of the last epoch's start."""
        return max((link.graph_bytes for link in list(self._links.values())), default=0)

    @property
    def can_idle(self) -> bool:
        """Whether loaders that are not used may give their places up."""
        return True

    def lane(self, rank: int, thread: int | None) -> str:
        """See ``WorkerPool.lane``."""
        server, worker = divmod(rank, self._width)
        return lane_of(f"server {server}, process {worker}", thread)

    def statuses(self) -> Iterator[ProcessStatus]:
        """See ``WorkerPool.statuses``."""
        for server, link in sorted(dict(self._links).items()):
            yield look_at(f"server {server}", link.welcome.pid, link.welcome.log)
            yield from link.statuses()

    def describe(self, rank: int) -> str | None:
        """Returns a process's name, its state and its server's in the system, for messages; None where there is no such process."""
        found = self._find(rank)
        return None if found is None else found[0].describe(found[1])

    def signs(self, rank: int) -> Signs:
        """Returns the last signs of life of a process."""
        found = self._find(rank)
        return UNSEEN if found is None else found[0].signs(found[1])

    def details(self) -> Mapping[str, Any]:
        """Returns the number of servers, their place and their pids."""
        links, count = dict(self._links), self._servers.num_servers
        there = "" if len(links) == count else f"{len(links)} of "
        where = "of its own" if self._own is not None else f"at {self._servers.address}"
        text = f"{there}{count} server{'' if count == 1 else 's'} {where}"
        return {"servers": text, "server_pids": {rank: link.welcome.pid for rank, link in links.items()}}

    # What they say ----------------------------------------------------------------------------------------------------------

    def send(self, rank: int, kind: str, fds: tuple[int, ...] = (), /, **body: object) -> None:
        """Sends a message to a process; one that is gone gets nothing."""
        found = self._find(rank)
        if found is not None:
            found[0].members[found[1]].wire.send(kind, fds, **body)

    def listen(self) -> Iterator[tuple[int, Message | Exit]]:
        """Yields what has arrived since the last call, and exits after all that the dead had sent."""
        self._advance()
        for event in [] if self._own is None else self._own.fleet.take_events():
            facts = asdict(event)
            yield 0, Message("event", {"what": facts.pop("kind"), **facts})
        while self._heard:
            yield self._heard.popleft()

    def _advance(self) -> None:
        for server, link in list(self._links.items()):
            link.hear()
            for worker, member in list(link.members.items()):
                self._heard.extend((server * self._width + worker, message) for message in member.hear())
            if link.is_gone:
                self._lose(server, link)
                continue
            self._heard.extend((server * self._width + worker, exit_) for worker, exit_ in link.exits())
            for worker in link.started():
                self._waiting = None
                self._on_started(server * self._width + worker)

    def _lose(self, server: int, link: ServerLink) -> None:
        if server in self._restarting:
            self._restarting.discard(server)
            self._heard.extend((server * self._width + worker, Message("retired", {})) for worker in link.members)
            self._drop(server, link)
            return
        if self._awaits_cause(server, link):
            return
        known = None if self._own is None else self._own.error_of(server)
        ranks = [server * self._width + worker for worker in link.members] or [server * self._width]
        self._is_revived = False
        self._heard.append((ranks[0], link.end_of_server(known, frozenset(ranks[1:]))))
        self._drop(server, link)

    def _awaits_cause(self, server: int, link: ServerLink) -> bool:
        """Whether a server of this process's own has gone, and its exit status is about to be known."""
        if self._own is None or not link.is_gone or server in self._restarting:
            return False
        return self._own.error_of(server) is None and (link.ended_s or 0.0) < EXIT_WAIT_S

    def _drop(self, server: int, link: ServerLink) -> None:
        link.close()
        del self._links[server]
        self._servers.drop(server)

    def poller(self) -> select.poll:
        """Returns a poll object that wakes when something arrives or a process ends."""
        poller = select.poll()
        wires: list[Any] = [member.wire for _, _, member in self._members() if member.ended is None]
        wires += [link.connection for link in self._links.values() if link.ended_s is None]
        for wire in wires:
            poller.register(wire.fileno(), select.POLLIN | (0 if wire.flush() else select.POLLOUT))
        for fd in self._servers.filenos():
            poller.register(fd, select.POLLIN)
        return poller

    def settle(self) -> None:
        """Waits for processes that have begun to end, so that the next ``listen`` finds all who died together."""
        deadline = Deadline(EXIT_WAIT_S)
        while not deadline.has_passed and any(link.is_ending or self._awaits_cause(rank, link) for rank, link in self._links.items()):
            self.poller().poll(_SLICE_S * 1000)
            self._advance()

    # Coming back ------------------------------------------------------------------------------------------------------------

    def start_missing(self) -> None:
        """Connects to servers that have come back, and asks those that are there for processes that are not."""
        for link in self._links.values():
            if len(link.members) < link.workers:
                link.ask()
        now = time.monotonic()
        if self._servers.is_complete or now - self._looked < _LOOK_S:
            return
        self._looked = now
        if self._own is not None and not self._is_revived and not any(link.is_ending for link in self._links.values()):
            self._is_revived = True
            self._own.revive()
        for connection in self._servers.advance():
            self._link(connection)

    def restart(self) -> None:
        """Has the servers end and come again, and with them their processes.

        Raises:
            PlanError: They are not this process's own.
        """
        if self._own is None:
            raise PlanError(
                f"the servers at {self._servers.address} are not this process's to restart", "restart them where they were started"
            )
        self._restarting = set(self._links)
        self._own.restart()

    def attend(self, *, ask: bool) -> None:
        """Nothing: servers look after the graph's copy themselves."""

    def overdue(self, timeout_s: float) -> tuple[int, GnnkitError] | None:
        """The error where no server has come back in the time that somebody has been waiting."""
        now, before = time.monotonic(), self._awaited
        self._awaited = now
        if self._has_members:
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
        errors = (self._own.error_of(rank) for rank in self._own.ranks if rank not in self._links)
        return next((error for error in errors if error is not None), None)

    def check(self) -> None:
        """Asks the servers what they are doing, for ``graph_bytes``."""
        for link in self._links.values():
            link.connection.ask_status()

    def stop(self) -> None:
        """Leaves the servers, and stops them where they are this process's own; does nothing in a forked child."""
        if os.getpid() != self._owner:
            return
        while self._heard:
            what = self._heard.popleft()[1]
            if isinstance(what, Message):
                what.close()
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._servers.close()
        if self._own is not None:
            self._own.stop()


def open_joined_servers(folder: Path, timeout_s: float, fingerprint: str, events: EventSink, on_started: OnStarted) -> ServerWorkerPool:
    """Joins the servers of a folder; see ``PoolOptions.open_pool``.

    Args:
        folder: Their folder.
        timeout_s: Seconds to wait for all of them.
        fingerprint: Of the store that they are to serve.
        events: See ``PoolOptions.open_pool``.
        on_started: See ``PoolOptions.open_pool``.
    """
    return ServerWorkerPool(join_folder(folder, "trainer", timeout_s, events, fingerprint), on_started, None)

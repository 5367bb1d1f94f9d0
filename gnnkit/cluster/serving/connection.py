"""A client's end of servers on this host: connecting to one by its Unix socket, and joining all servers of a folder."""

from __future__ import annotations

import os
import re
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnkit.cluster.network.calls import Calls
from gnnkit.cluster.network.client import Unreachable
from gnnkit.cluster.network.codec import PROTOCOL_VERSION
from gnnkit.cluster.network.requests import Requests
from gnnkit.cluster.serving.listener import socket_name
from gnnkit.cluster.serving.spec import TOKEN_NAME, UNIX_PREFIX, token_for
from gnnkit.errors import GnnkitError, LoaderClosed, PlanError, StartTimeout, StoreError, WorkerDied, on_error
from gnnkit.events import EventSink, Stage
from gnnkit.runtime.entry import UNSEEN, Signs, Vitals
from gnnkit.runtime.process_status import ProcessStatus, look_at, process_state
from gnnkit.runtime.remote import error_from_json
from gnnkit.runtime.ring import SharedBlock
from gnnkit.runtime.runs import with_tail
from gnnkit.runtime.supervisor import Exit
from gnnkit.runtime.waiters import SLICE_S
from gnnkit.runtime.wire import Handed, Message, Wire
from gnnkit.waiting import Deadline

# The most messages taken from one process before the others have their turn.
_TURN = 64
# After a connection has ended, the explanation takes no longer than this.
EXIT_WAIT_S = 2.0
_ENDED = ("ended", "gone")
_HINT = "go on with loader.resume(), or have it wait for another one by itself with GraphStore(max_restarts=...)"
_own_id: tuple[int, str] = (0, "")


def client_id() -> str:
    """Returns the name of this process at servers, on all of its connections, until ``end_visit``."""
    global _own_id
    if _own_id[0] != os.getpid():  # a forked child is a client of its own
        _own_id = os.getpid(), f"{os.getpid()}-{secrets.token_hex(6)}"
    return _own_id[1]


def end_visit() -> None:
    """From here on this process is another client: servers that count how many have come count it again when it comes back."""
    global _own_id
    _own_id = 0, ""


@dataclass(eq=False)
class ServedProcess:
    """A sampling process of a server.

    Attributes:
        pid: Its process.
        log: Its log.
        wire: The connection to it.
        ended: ``time.monotonic()`` when the connection was found to have ended; None while it lasts.
    """

    pid: int
    log: Path
    wire: Wire
    ended: float | None = None

    def hear(self) -> Iterator[Message]:
        """Yields what it has said, up to a limit."""
        try:
            yield from self.wire.messages(_TURN)
        except EOFError:
            self.ended = self.ended or time.monotonic()


class ServerConnection(Calls):
    """One connection to one server, which has welcomed this client.

    Args:
        folder: The servers' folder.
        wire: The connection.
        welcome: What the server has said of itself.

    Attributes:
        folder: The servers' folder.
        rank: The server's number.
        pid: Its process.
        log: Its log.
        most_workers: Its sampling processes, those that are not there yet included.
        workers: Sampling processes that it is to have; 0 before ``enlist``.
        members: Those that this process is connected with, by their numbers at the server.
        asked: Whether it has been asked for processes that are not there.
        graph_bytes: Bytes of its copy of the graph, when it was last asked.
    """

    def __init__(self, folder: Path, wire: Wire, welcome: Mapping[str, Any]) -> None:
        super().__init__()
        self.rank, self.pid, self.most_workers = (int(welcome[name]) for name in ("rank", "pid", "workers"))
        self.folder, self.log = folder, Path(welcome["log"])
        self.workers = self.graph_bytes = 0
        self.members: dict[int, ServedProcess] = {}
        self.asked = False
        self._vitals: Vitals | None = None
        self._exits: dict[int, Exit] = {}
        self._announced: list[Message] = []
        self._failure: GnnkitError | None = None
        self._gone: float | None = None
        self._wire = wire

    def register(self, poller: select.poll) -> None:
        """Has a poll object wake when the server or one of its processes says something; see ``Wire.register``."""
        if self._gone is None:
            self._wire.register(poller)
        for member in self.members.values():
            if member.ended is None:
                member.wire.register(poller)

    # Calls -------------------------------------------------------------------------------------------------------------------

    def call(self, name: str, args: Any, timeout_s: float) -> Any:
        """Has the server answer a call; several threads may ask at a time.

        Args:
            name: What is called; see ``gnnkit.cluster.serving.server_api``.
            args: A value of ``gnnkit.cluster.network.codec``.
            timeout_s: Most seconds that it may take.

        Raises:
            BatchTimeout: It was not answered in time.
            WorkerDied: The server is gone.
            GnnkitError: What the call ended with.
        """

        def late() -> str:
            state = process_state(self.pid)
            return f"server {self.rank} did not answer the call {name!r} within {timeout_s:g} s; {self.name} is {state}"

        return self._ask(self.rank, name, args, Deadline(timeout_s), late)

    def _send(self, kind: str, fds: Handed = (), /, **body: Any) -> None:
        self._wire.send(kind, fds, **body)

    def _poller(self) -> select.poll:
        poller = select.poll()
        self._wire.register(poller)
        return poller

    def _arrived(self) -> Iterator[Message]:
        try:
            while (message := self._wire.receive()) is not None:
                yield message
        except EOFError:
            hint = "iterate again, or loader.resume(), once it is back; GraphStore(max_restarts=...) waits for it by itself"
            self._end(WorkerDied(with_tail(f"{self.name} at {self.folder} is gone", self.log), hint))

    # Sampling processes ---------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The server's name in messages."""
        return f"server {self.rank} (pid {self.pid})"

    @property
    def expected(self) -> int:
        """Its processes that are there or will be: all but those that have died and are not started again."""
        gone = sum(not exit_.is_replaced for worker, exit_ in self._exits.items() if worker not in self.members)
        return self.workers - (0 if self.asked else gone)

    def enlist(self, most: int) -> None:
        """Asks for the sampling processes, at most so many, for those that come later too, and for those that have died once more.

        From then on ``hear`` takes what the server says, and no call is made over this connection.
        """
        self.workers = min(self.most_workers, most)
        if not self.asked:
            self.asked = True
            self._exits = {worker: exit_ for worker, exit_ in self._exits.items() if worker in self.members}
            self._wire.send("enlist")

    def ask_status(self) -> None:
        """Has the server say what it is doing; ``hear`` takes its answer."""
        self._wire.send("call", number=0, name=Requests.status.name, args={})

    def hear(self) -> None:
        """Takes what the server has said of its processes."""
        try:
            while (message := self._wire.receive()) is not None:
                if message.kind == "worker":
                    self._announced.append(message)
                elif message.kind == "lost":
                    worker = int(message.body["worker"])
                    error = error_from_json(message.body["error"], f"sampling process {worker} of {self.name}", WorkerDied)
                    self._exits[worker] = _exit_of_process(error, is_replaced=bool(message.body["again"]))
                elif message.kind == "failed":
                    self._failure = error_from_json(message.body["error"], self.name, WorkerDied)
                elif message.kind == "answer":  # to ``ask_status``
                    self.graph_bytes = int(message.body["value"]["graph_bytes"])
        except EOFError:
            self._gone = self._gone or time.monotonic()

    def started(self) -> list[int]:
        """Meets the processes that the server has introduced, once those whose places they take are gone; returns their numbers."""
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
        self._exits.pop(worker, None)
        self.members[worker] = ServedProcess(int(body["pid"]), Path(body["log"]), Wire(socket.socket(fileno=wire_fd)))

    def signs(self, worker: int) -> Signs:
        """Returns the last signs of life of one of its processes."""
        return UNSEEN if self._vitals is None else self._vitals.signs(worker)

    def statuses(self) -> Iterator[ProcessStatus]:
        """Yields the process status of the server and of its sampling processes."""
        yield look_at(f"server {self.rank}", self.pid, self.log)
        for worker, member in sorted(dict(self.members).items()):
            yield look_at(f"server {self.rank}, process {worker}", member.pid, member.log, self.signs(worker).busy_s)

    def describe(self, worker: int) -> str | None:
        """Returns a process's name, its state and its server's in the system, for messages; None where there is no such process."""
        member = self.members.get(worker)
        if member is None:
            return None
        own, its = process_state(member.pid), process_state(self.pid)
        beside = "" if its == "running" else f", which is {its}"
        return f"sampling process {worker} (pid {member.pid}) of {self.name}{beside} is {own}"

    # Ends -----------------------------------------------------------------------------------------------------------------

    @property
    def ended_s(self) -> float | None:
        """Seconds since the server was found to have ended; None while it lasts."""
        return None if self._gone is None else time.monotonic() - self._gone

    @property
    def is_steady(self) -> bool:
        """Whether nothing has ended or come that has not been handled."""
        if self._gone is not None or self._announced or self._exits:
            return False
        for member in self.members.values():
            if member.ended is not None:
                return False
        return len(self.members) == self.workers and not self.asked

    @property
    def is_gone(self) -> bool:
        """Whether the server has gone, and its processes with it: they may write to this process's memory until they end."""
        return self._gone is not None and all(member.ended is not None for member in self.members.values())

    @property
    def is_ending(self) -> bool:
        """Whether something has begun to end, and it is not clear yet what came of it."""
        if self._gone is not None or process_state(self.pid) in _ENDED:
            return not self.is_gone
        return any(process_state(member.pid) in _ENDED for member in self.members.values())

    def end_of_server(self, known: GnnkitError | None, others: frozenset[int]) -> Exit:
        """The exit of the server, and of all its processes.

        Args:
            known: What its starter knows of it, if that is this process.
            others: See ``Exit``.
        """
        what = f"{self.name} at {self.folder} is gone"
        if isinstance(known, WorkerDied):
            known = type(known)(known.message, _HINT)
        error = self._failure or known or WorkerDied(with_tail(what, self.log), _HINT)
        return Exit(error, what, others, remedy="it is waited for")

    def exits(self) -> Iterator[tuple[int, Exit]]:
        """Yields the processes that have ended while the server lasts, once it has said why or has had the time to."""
        if self._gone is not None:
            return
        for worker, member in list(self.members.items()):
            exit_ = self._exits.get(worker)
            if member.ended is None or (exit_ is None and time.monotonic() - member.ended < EXIT_WAIT_S):
                continue
            if exit_ is None:
                what = f"sampling process {worker} (pid {member.pid}) of {self.name} is gone"
                exit_ = _exit_of_process(WorkerDied(with_tail(what, member.log), _HINT))
            self.members.pop(worker).wire.close()
            yield worker, exit_
        for worker, exit_ in list(self._exits.items()):
            if worker not in self.members and self.asked and not exit_.is_replaced:  # it did not even start
                yield worker, exit_
                self.asked = False

    def close(self) -> None:
        """Leaves the server; closing twice is fine."""
        self._end(LoaderClosed(f"the connection to server {self.rank} is closed", "join it again"))
        for message in self._announced:
            message.close()
        for member in self.members.values():
            member.wire.close()
        self._wire.close()


def _exit_of_process(error: GnnkitError, *, is_replaced: bool = False) -> Exit:
    summary = error.message.splitlines()[0].partition(";")[0]
    return Exit(error, summary, remedy="its server is asked for another one", is_replaced=is_replaced)


def _asked(folder: Path, rank: int, token: str, name: str) -> Wire:
    """A connection to a server that has been asked to let this client in, which it answers later; see ``_welcome_in``.

    Args:
        folder: The servers' folder.
        rank: The server's number.
        token: What it expects.
        name: What the client calls itself, for the server's log.

    Raises:
        Unreachable: No server listens there.
        PlanError: A process of another user listens there.
    """
    wire = Wire(_connected(folder, rank))
    wire.send("join", version=PROTOCOL_VERSION, token=token, client=client_id(), pid=os.getpid(), name=name)
    return wire


def _welcome_in(wire: Wire, folder: Path, rank: int) -> Mapping[str, Any] | None:
    """Takes the server's answer, if it has come.

    Raises:
        PlanError: The server refuses this client.
        Unreachable: The server has gone.
    """
    try:
        message = wire.receive()
    except EOFError as error:
        raise Unreachable(f"it has closed the connection at {folder / socket_name(rank)}") from error
    if message is None:
        return None
    message.close()
    if message.kind == "refused":
        raise error_from_json(message.body["error"], f"joining server {rank}", PlanError)
    return message.body


def _connected(folder: Path, rank: int) -> socket.socket:
    path = folder / socket_name(rank)
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        folder_fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:  # through a descriptor of its folder: the path itself may be longer than an address can be
            end.connect(f"/proc/self/fd/{folder_fd}/{path.name}")
        finally:
            os.close(folder_fd)
        _, uid, _ = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    except PermissionError as error:
        end.close()
        raise _another_users(folder) from error
    except OSError as error:
        end.close()
        why = {FileNotFoundError: "there is no socket", ConnectionRefusedError: "no server listens"}.get(
            type(error), str(error.strerror or error)
        )
        raise Unreachable(f"{why} at {path}") from error
    if uid != os.geteuid():
        end.close()
        raise PlanError(f"a process of user {uid} listens at {path}, and not one of yours", _OF_OTHERS)
    return end


_OF_OTHERS = (
    "servers in a folder are for the user who has started them; have those of another user listen on the network"
    " (gnnkit serve --address HOST:PORT), and take their token with GNNKIT_TOKEN"
)


def _another_users(folder: Path) -> PlanError:
    """The error for a folder of servers that this user may not enter."""
    there = next(place for place in (folder, *folder.parents) if os.path.exists(place))
    whose = there.stat().st_uid
    why = "its mode does not let you in" if whose == os.geteuid() else f"{there} belongs to user {whose}, and you are user {os.geteuid()}"
    return PlanError(f"the servers' folder {str(folder)!r} is closed to you: {why}", _OF_OTHERS)


# Servers that are not there are looked for so often.
_LOOK_S = 0.1
# Nothing is said of servers that come within this time.
_SILENT_S = 1.0
_SOCKET = re.compile(r"server-([0-9]{1,6})\.sock")
_DIGITS = 16


class UnixServers:
    """The servers of a folder: connections to them, as far as they are there. ``advance`` until ``is_complete``.

    Args:
        folder: The servers' folder.
        name: What the client calls itself.
        fingerprint: Of the store that they are to serve; None: of any, but all of the same.

    Attributes:
        connections: The servers that have welcomed this client, by rank.
        num_servers: How many there are; None while it is not known.

    Raises:
        PlanError: There can be no servers in this folder.
    """

    def __init__(self, folder: Path, name: str, fingerprint: str | None = None) -> None:
        self._folder, self._name, self._fingerprint = folder, name, fingerprint
        self._format: int | None = None
        self._pending: dict[int, Wire] = {}  # connections to servers that have yet to answer
        self._reasons: dict[int, str] = {}
        self.connections: dict[int, ServerConnection] = {}
        self.num_servers: int | None = None
        self._had_token = self._is_closed = False
        self._lock = threading.Lock()
        try:
            folder.stat()
        except PermissionError as error:
            raise _another_users(folder) from error
        except OSError:
            pass
        if not folder.parent.is_dir() or (folder.exists() and not folder.is_dir()):
            raise PlanError(f"there is no folder {str(folder)!r}", "give the address that the servers' handle or `gnnkit serve` shows")

    @property
    def address(self) -> str:
        """The folder as an address."""
        return f"{UNIX_PREFIX}{self._folder}"

    @property
    def is_complete(self) -> bool:
        """Whether every server has welcomed this client."""
        return self.num_servers is not None and len(self.connections) == self.num_servers

    @property
    def were_stopped(self) -> bool:
        """Whether servers that were here have ended for good: they take their token along, and those that die leave it to the next ones."""
        return self.num_servers is not None and self._had_token and not os.path.exists(self._folder / TOKEN_NAME)

    def advance(self) -> list[ServerConnection]:
        """Connects to servers that have come, without waiting; those that have welcomed this client since the last call.

        Raises:
            PlanError: A server refuses this client, or is of other servers than the rest.
            StoreError: A server has another store.
        """
        for rank in self._missing():
            if rank not in self._pending:
                self._connect(rank)
        welcomed = []
        for rank, wire in list(self._pending.items()):
            try:
                welcome = _welcome_in(wire, self._folder, rank)
                if welcome is None:
                    continue
                self._check(welcome)
            except BaseException as error:
                self._pending.pop(rank).close()
                if not isinstance(error, Unreachable):
                    raise
                self._reasons[rank] = str(error)
                continue
            del self._pending[rank]
            self.connections[rank] = ServerConnection(self._folder, wire, welcome)
            welcomed.append(self.connections[rank])
        return welcomed

    def call(self, rank: int, name: str, args: Any, timeout_s: float) -> Any:
        """Has a server answer a call, as ``ServerConnection.call``; one that was gone is connected to again. From any thread.

        Raises:
            StartTimeout: It is not there.
            LoaderClosed: These servers were left.
            GnnkitError: See ``ServerConnection.call``.
        """
        with self._lock:
            if self._is_closed:
                raise LoaderClosed(f"the connection to the servers at {self.address} is closed", "join them again")
            connection = self._connection(rank, timeout_s)
        try:
            return connection.call(name, args, timeout_s)
        except WorkerDied:
            with self._lock:
                if self.connections.get(rank) is connection:
                    self.drop(rank)
            raise

    def _connection(self, rank: int, timeout_s: float) -> ServerConnection:
        """Returns the connection to a server, made anew where it was gone."""
        deadline = Deadline(timeout_s)
        while rank not in self.connections:
            self.advance()
            if rank in self._pending and deadline.has_passed:
                raise StartTimeout(f"server {rank} at {self._folder} does not answer for {timeout_s:g} s", "is it stopped? look at its log")
            if rank in self._pending:
                self._pending[rank].wait(deadline.within(SLICE_S))
            elif rank not in self.connections:
                raise StartTimeout(f"server {rank} is not there: {self._reasons[rank]}", "start it with gnnkit.serve() or `gnnkit serve`")
        return self.connections[rank]

    def drop(self, rank: int) -> None:
        """Forgets a server that has gone, so that ``advance`` looks for it again."""
        self.connections.pop(rank).close()
        self._reasons[rank] = "it is gone"

    def register(self, poller: select.poll) -> None:
        """Has a poll object wake when a server sends its welcome."""
        for wire in self._pending.values():
            wire.register(poller)

    def whereabouts(self) -> str:
        """Which servers are missing, and why."""
        missing = self._missing()
        if self.num_servers is None and not missing:
            there = "there is no folder" if not self._folder.is_dir() else "no server has made a socket in"
            return f"{there} {self._folder}"
        not_there = {rank: f"is not there ({self._reasons.get(rank, 'not yet')})" for rank in missing}
        said = [f"server {rank} {'does not answer' if rank in self._pending else text}" for rank, text in not_there.items()]
        count = "" if self.num_servers is None else f" of {self.num_servers}"
        return f"{len(said)}{count} missing: {'; '.join(said)}"

    def _missing(self) -> list[int]:
        if self.num_servers is not None:
            known = list(range(self.num_servers))
        else:
            try:
                found = [_SOCKET.fullmatch(name) for name in os.listdir(self._folder)]
            except PermissionError as error:
                raise _another_users(self._folder) from error
            except OSError:
                return []
            known = sorted(int(match[1]) for match in found if match is not None)
        return [rank for rank in known if rank not in self.connections]

    def _connect(self, rank: int) -> None:
        token = token_for(self.address)
        if token is None:
            self._reasons[rank] = "there is no token in its folder"
            return
        try:
            self._pending[rank] = _asked(self._folder, rank, token, self._name)
        except Unreachable as error:
            self._reasons[rank] = str(error)

    def _check(self, welcome: Mapping[str, Any]) -> None:
        """Refuses servers that do not belong together, or hold another graph."""
        place, count, store = f"server {welcome['rank']} at {self._folder}", int(welcome["num_servers"]), welcome["store"]
        fingerprint, version = str(store["fingerprint"]), int(store["format"])
        if self.num_servers not in (None, count):
            raise PlanError(f"{place} is one of {count} servers, and another there is one of {self.num_servers}", "end the others")
        if self._fingerprint not in (None, fingerprint):
            wanted = str(self._fingerprint)[:_DIGITS]
            raise StoreError(
                f"{place} has the store {fingerprint[:_DIGITS]}, and {wanted} is wanted",
                "join the servers of that store, or open theirs",
            )
        if self._format not in (None, version):
            raise StoreError(f"{place} has a store of format {version}, and another server there one of {self._format}", "update gnnkit")
        self.num_servers, self._fingerprint, self._format = count, fingerprint, version
        self._had_token = self._had_token or os.path.exists(self._folder / TOKEN_NAME)

    def close(self) -> None:
        """Leaves all of them."""
        with self._lock:
            self._is_closed = True
            open_ends: list[Wire | ServerConnection] = [*self._pending.values(), *self.connections.values()]
            self._pending.clear()
            self.connections.clear()
        for end in open_ends:
            end.close()


def join_folder(
    folder: Path, name: str, timeout_s: float, events: EventSink, fingerprint: str | None = None, check: Callable[[], None] = lambda: None
) -> UnixServers:
    """Waits until every server of a folder has welcomed this client.

    Args:
        folder: The servers' folder.
        name: What the client calls itself.
        timeout_s: Seconds to wait.
        events: Receives the stage "start", with who is missing.
        fingerprint: See ``UnixServers``.
        check: Raises once it is clear that they will not come.

    Raises:
        StartTimeout: Not all of them were there in time; names the missing ones.
        PlanError: See ``UnixServers``.
        StoreError: See ``UnixServers.advance``.
    """
    servers, deadline, told = UnixServers(folder, name, fingerprint), Deadline(timeout_s), ""
    with on_error(servers.close), Stage(events, "start", label=f"servers at {folder}", unit="servers") as stage:
        while True:
            check()
            servers.advance()
            if len(servers.connections) > stage.done:
                stage.update(len(servers.connections), servers.num_servers)
            if servers.is_complete:
                return servers
            text = servers.whereabouts()
            if deadline.has_passed:
                raise StartTimeout(
                    f"not all servers at {servers.address} were there within {timeout_s:g} s; {text}",
                    "start them with gnnkit.serve() or `gnnkit serve`, or raise join_timeout_s",
                )
            if text != told and deadline.elapsed_s >= _SILENT_S:
                told = text
                stage.message(f"waiting for servers; {text}")
            poller = select.poll()
            servers.register(poller)
            poller.poll(deadline.within(_LOOK_S) * 1000)

"""A server's Unix socket: pending connections, and the sessions of clients that were let in."""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import itertools
import json
import logging
import os
import socket
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gnnkit.cluster.membership import SERVING_VERSION
from gnnkit.cluster.parts.gate import BACKLOG, MOST_PENDING, MOST_SAID, PAUSE_S, PENDING_S, next_connection
from gnnkit.cluster.serving.codec import decode, send_value
from gnnkit.cluster.serving.pool import ServedPool
from gnnkit.errors import GnnkitError, PlanError
from gnnkit.files import user_path, why_unwritable
from gnnkit.runtime.remote import error_to_json
from gnnkit.runtime.runs import checked_folder
from gnnkit.runtime.wire import Message, Wire
from gnnkit.waiting import Deadline

logger = logging.getLogger(__name__)


def socket_name(rank: int) -> str:
    """The name of a server's socket in its folder."""
    return f"server-{rank}.sock"


def own_folder(folder: str) -> Path:
    """Makes a folder for sockets that a user has named, or takes the one that is there.

    Raises:
        PlanError: It cannot be made or written, or is not this user's alone.
    """
    path = user_path(folder)
    try:
        path = checked_folder(path)
    except OSError as error:
        raise PlanError(f"the folder {folder!r} cannot be used for sockets: {why_unwritable(error, path)}", "give another one") from error
    if path.stat().st_mode & 0o077:
        raise PlanError(f"the folder {folder!r} is open to other users", f"chmod 700 {path}")
    return path


def take_place(folder: Path, rank: int) -> int | None:
    """Takes a server's place in a folder: its owner makes and removes the socket.

    Returns:
        A descriptor that holds the place until it is closed; None where another process has it.

    Raises:
        OSError: The folder cannot be written.
    """
    fd = os.open(folder / f"server-{rank}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def remove_sockets(folder: Path, ranks: Iterable[int]) -> None:
    """Removes what servers that were killed have left; those that live keep theirs."""
    for rank in ranks:
        with contextlib.suppress(OSError):
            fd = take_place(folder, rank)
            if fd is not None:
                (folder / socket_name(rank)).unlink(missing_ok=True)
                os.close(fd)


@dataclass(frozen=True)
class PendingConnection:
    """A connection whose client has not identified itself.

    Attributes:
        end: The connection.
        deadline: He is sent away then.
    """

    end: socket.socket
    deadline: Deadline


class ClientListener:
    """Listens at ``<folder>/server-<rank>.sock``.

    Args:
        folder: A folder of this user's own.
        rank: The server's number.
        token: What pending connections have to know.
        enter: Called with the connection of a client that may come in, and with its first message.

    Raises:
        PlanError: Another process serves there, or the socket cannot be made.
    """

    def __init__(self, folder: Path, rank: int, token: str, enter: Callable[[Wire, Mapping[str, Any]], None]) -> None:
        self._rank, self._token, self._enter = rank, token.encode(), enter
        self._pending: dict[int, PendingConnection] = {}
        self._pause = Deadline(0.0)  # in which no client is let in
        self.path = folder / socket_name(rank)
        try:
            place = take_place(folder, rank)
            if place is None:
                raise PlanError(f"another process is server {rank} at {folder}", "give another folder or rank, or end it")
            self._lock_fd = place
            # Through a descriptor of its folder: the path itself may be longer than an address can be.
            self._folder_fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)
            self._listener = self._listen()
        except OSError as error:
            raise PlanError(
                f"server {rank} cannot listen at {self.path}: {why_unwritable(error, self.path)}", "give another folder"
            ) from error

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
            listener.bind(f"/proc/self/fd/{self._folder_fd}/{self.path.name}")
            self.path.chmod(0o600)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
        return listener

    def filenos(self) -> list[int]:
        """Returns the descriptors to wait on for new connections and for messages of pending ones."""
        listening = [self._listener.fileno()] if self._pause.has_passed else []
        return [*listening, *self._pending]

    @property
    def wait_s(self) -> float | None:
        """Seconds until a connection times out or one may be accepted again; None while there is none."""
        deadlines = [pending.deadline for pending in self._pending.values()] + ([] if self._pause.has_passed else [self._pause])
        return min((deadline.left_s for deadline in deadlines), default=None)

    def attend(self, ready: set[int]) -> None:
        """Accepts clients, and refuses clients.

        Args:
            ready: Descriptors of ``filenos`` on which something has happened.
        """
        for fd in ready & set(self._pending):
            self._hear(self._pending.pop(fd).end)
        for fd in [fd for fd, pending in self._pending.items() if pending.deadline.has_passed]:
            self._pending.pop(fd).end.close()
        if self._listener.fileno() in ready:
            self._accept()

    def _accept(self) -> None:
        for _ in range(MOST_PENDING):
            try:
                end = next_connection(self._listener)
            except OSError:
                self._pause = Deadline(PAUSE_S)
                return
            if end is None:
                return
            _, uid, _ = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
            if uid != os.geteuid():
                logger.warning("a process of user %d was sent away", uid)
                end.close()
                continue
            if len(self._pending) >= MOST_PENDING:
                self._pending.pop(next(iter(self._pending))).end.close()
            self._pending[end.fileno()] = PendingConnection(end, Deadline(PENDING_S))

    def _hear(self, end: socket.socket) -> None:
        """Reads a pending connection's first message, and accepts, refuses or closes the connection by it."""
        try:
            said = end.recv(MOST_SAID)  # without room for descriptors, which the system then closes
        except BlockingIOError:  # nothing but a wink
            self._pending[end.fileno()] = PendingConnection(end, Deadline(PENDING_S))
            return
        except OSError:
            end.close()
            return
        body = _understood(said)
        if body is None:
            end.close()
            return
        wire = Wire(end)
        try:
            # Half of a surrogate pair is text to JSON.
            if not hmac.compare_digest(str(body.get("token", "")).encode("utf-8", "surrogatepass"), self._token):
                raise PlanError(
                    f"server {self._rank} refused the token", "give the servers' token: it is in the file 'token' in their folder"
                )
            if body.get("version") != SERVING_VERSION:
                raise PlanError(
                    f"server {self._rank} speaks version {SERVING_VERSION} to its clients, and this one {body.get('version')!r}",
                    "install the same version of gnnkit on both sides",
                )
        except GnnkitError as error:
            logger.warning("a client was refused: %s", error.message)
            wire.send("refused", error=error_to_json(error))
            wire.close()
            return
        self._enter(wire, body)

    def close(self) -> None:
        """Accepts no more clients."""
        for pending in self._pending.values():
            pending.end.close()
        self._pending.clear()
        self._listener.close()
        with contextlib.suppress(OSError):
            self.path.unlink()
        os.close(self._lock_fd)
        os.close(self._folder_fd)


def _understood(said: bytes) -> dict[str, Any] | None:
    """Returns the body of a pending connection's first message; None where it is no request to join."""
    try:
        body = json.loads(said)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) and body.get("kind") == "join" else None


# The most messages taken from one client before the others have their turn.
_TURN = 16


class Host(Protocol):
    """The part of a server that sessions use."""

    pool: ServedPool | None

    def answer(self, client: str, name: str, args: Any, reply: Callable[[Any], None]) -> None:
        """Answers a call, now or later."""
        ...

    def came(self, client: str) -> None:
        """A client is there."""
        ...

    def left(self, client: str) -> None:
        """A client has gone."""
        ...


@dataclass(eq=False)
class ClientSession:
    """A connection of a client's.

    Attributes:
        number: What workers know it by.
        client: What the client calls itself; several connections may be of one client.
        wire: The connection.
        enlisted: Whether it wants to know the workers.
        introduced: Pids of workers that it has been introduced to.
    """

    number: int
    client: str
    wire: Wire
    enlisted: bool = False
    introduced: dict[int, int] = field(default_factory=dict)


class ClientSessions:
    """All of them. Only for the server's main thread.

    Args:
        host: The server.
        welcome: What a client is told first.
    """

    def __init__(self, host: Host, welcome: Callable[[], Mapping[str, Any]]) -> None:
        self._host, self._welcome = host, welcome
        self._numbers = itertools.count(1)
        self._sessions: dict[int, ClientSession] = {}

    def enter(self, wire: Wire, body: Mapping[str, Any]) -> None:
        """Takes a pending in.

        Args:
            wire: The connection.
            body: The client's first message.
        """
        session = ClientSession(next(self._numbers), str(body.get("client")), wire)
        self._sessions[wire.fileno()] = session
        logger.info("client %s (pid %s, %s) has come", session.client, body.get("pid"), body.get("name"))
        wire.send("welcome", **self._welcome())
        self._host.came(session.client)

    def filenos(self) -> dict[int, bool]:
        """``{descriptor: whether something waits to be sent there}``."""
        return {fd: not session.wire.flush() for fd, session in self._sessions.items()}

    def attend(self, ready: set[int]) -> None:
        """Does what clients ask.

        Args:
            ready: Descriptors of ``filenos`` on which something has happened.
        """
        for fd in ready & set(self._sessions):
            session = self._sessions[fd]
            try:
                for _ in range(_TURN):
                    message = session.wire.receive()
                    if message is None:
                        break
                    self._hear(session, message)
            except EOFError:
                self._leave(session)
            except Exception:
                logger.warning("client %s sent a message that cannot be read, and is disconnected", session.client, exc_info=True)
                self._leave(session)

    def _hear(self, session: ClientSession, message: Message) -> None:
        if message.kind == "call":
            self._call(session, message)
            return
        message.close()
        if message.kind != "enlist":
            raise PlanError(f"there is no message {message.kind!r}")
        self._enlist(session)

    def _leave(self, session: ClientSession) -> None:
        """Gives up everything of a client's connection."""
        self._sessions.pop(session.wire.fileno(), None)
        session.wire.close()
        if self._host.pool is not None:
            self._host.pool.remove_client(session.number)
        logger.info("client %s has left", session.client)
        if all(other.client != session.client for other in self._sessions.values()):
            self._host.left(session.client)

    # What they are told -----------------------------------------------------------------------------------------------------

    def fail(self, error: BaseException) -> None:
        """Tells all clients that the server has to end."""
        for session in self._sessions.values():
            session.wire.send("failed", error=error_to_json(error))

    def workers_are_there(self) -> None:
        """Begins to tell of workers, once the server has some."""
        assert self._host.pool is not None
        self._host.pool.watchers.append(self._on_worker)

    def _on_worker(self, rank: int, error: GnnkitError | None) -> None:
        """Introduces a worker to clients that have enlisted, or tells of its death, and whether the server starts another one by itself."""
        again = self._host.pool is not None and self._host.pool.may_restart
        for session in list(self._sessions.values()):
            if error is None:
                self._introduce(session, rank)
            elif session.enlisted:
                session.introduced.pop(rank, None)
                session.wire.send("lost", worker=rank, error=error_to_json(error), again=again)

    def _enlist(self, session: ClientSession) -> None:
        session.enlisted, pool = True, self._host.pool
        if pool is None:  # the other servers are still awaited
            return
        pool.workers.start_missing()
        for rank in pool.workers.ready:
            self._introduce(session, rank)

    def _introduce(self, session: ClientSession, rank: int) -> None:
        pool = self._host.pool
        if pool is None or not session.enlisted:
            return
        pid = pool.workers.alive[rank].pid
        if session.introduced.get(rank) != pid:
            session.introduced[rank] = pid
            try:
                pool.introduce(rank, session.number, session.wire)
            except OSError as error:  # no descriptor is left for this one
                logger.warning("client %s cannot be introduced to a worker, and is sent away: %s", session.client, error)
                self._leave(session)

    def _call(self, session: ClientSession, message: Message) -> None:
        try:
            number, name, tree = int(message.body["number"]), str(message.body["name"]), message.body["args"]
        except BaseException:
            message.close()
            raise

        def reply(value: Any) -> None:
            if not isinstance(value, BaseException):
                try:
                    send_value(session.wire.send, "answer", "value", value, number=number)
                    return
                except (GnnkitError, OSError, MemoryError) as error:  # it cannot be sent: one client's trouble, not the server's
                    value = error
            session.wire.send("answer", number=number, error=error_to_json(value))

        try:
            self._host.answer(session.client, name, decode(tree, message.fds), reply)
        except Exception as error:
            reply(error)

    def close(self) -> None:
        """Ends all connections."""
        for session in self._sessions.values():
            session.wire.close()
        self._sessions.clear()

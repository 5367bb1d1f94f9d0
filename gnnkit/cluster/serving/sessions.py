"""The clients that have come in through a server's Unix door: what they say, and what they are told."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from gnnkit.cluster.serving.codec import decode, encode
from gnnkit.cluster.serving.pool import ServedWorkers
from gnnkit.errors import GnnkitError, PlanError
from gnnkit.runtime.remote import error_to_json
from gnnkit.runtime.wire import Message, Wire

logger = logging.getLogger(__name__)

# The most messages taken from one client before the others have their turn.
_TURN = 16


class Host(Protocol):
    """What sessions need of the server."""

    pool: ServedWorkers | None

    @property
    def desk(self) -> Any:
        """What answers calls; None before the server has workers."""
        ...

    def details(self) -> dict[str, Any]:
        """What the server is doing."""
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
        self._obey: dict[str, Callable[[ClientSession, Message], None]] = {
            "enlist": self._enlist,
            "status": self._status,
            "call": self._call,
        }

    def enter(self, wire: Wire, body: Mapping[str, Any]) -> None:
        """Takes a visitor in.

        Args:
            wire: The connection.
            body: What he has said.
        """
        session = ClientSession(next(self._numbers), str(body.get("client")), wire)
        self._sessions[wire.fileno()] = session
        logger.info("client %s (pid %s, %s) has come", session.client, body.get("pid"), body.get("name"))
        self._tell(session, "welcome", **self._welcome())
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
                logger.warning("client %s says what nobody understands, and is sent away", session.client, exc_info=True)
                self._leave(session)

    def _hear(self, session: ClientSession, message: Message) -> None:
        obey = self._obey.get(message.kind)
        if obey is None:
            message.close()
            raise PlanError(f"there is no message {message.kind!r}")
        obey(session, message)

    def _leave(self, session: ClientSession) -> None:
        """Gives up everything of a client's connection."""
        self._sessions.pop(session.wire.fileno(), None)
        session.wire.close()
        if self._host.pool is not None:
            self._host.pool.dismiss(session.number)
        logger.info("client %s has left", session.client)
        if all(other.client != session.client for other in self._sessions.values()):
            self._host.left(session.client)

    # What they are told -----------------------------------------------------------------------------------------------------

    def _tell(self, session: ClientSession, kind: str, **body: Any) -> None:
        session.wire.send(kind, **body)

    def fail(self, error: BaseException) -> None:
        """Tells everybody that the server has to end."""
        for session in self._sessions.values():
            session.wire.send("failed", error=error_to_json(error))

    def on_ready(self, rank: int) -> None:
        """Introduces whoever wants to a worker."""
        for session in list(self._sessions.values()):
            self._introduce(session, rank)

    def on_lost(self, rank: int, error: GnnkitError) -> None:
        """Tells of a worker's death, and whether the server starts another one by itself."""
        again = self._host.pool is not None and self._host.pool.starts_again
        for session in self._sessions.values():
            if session.enlisted:
                session.introduced.pop(rank, None)
                session.wire.send("lost", worker=rank, error=error_to_json(error), again=again)

    def on_message(self, rank: int, message: Message) -> None:
        """ClientSessions have no channels of their own."""
        message.close()

    def workers_are_there(self) -> None:
        """Begins to tell of workers, once the server has some."""
        assert self._host.pool is not None
        self._host.pool.handlers.append(self)

    def _enlist(self, session: ClientSession, message: Message) -> None:
        message.close()
        session.enlisted, pool = True, self._host.pool
        if pool is None:  # the other servers are still awaited
            return
        pool.start()
        for rank in pool.ready:
            self._introduce(session, rank)

    def _status(self, session: ClientSession, message: Message) -> None:
        message.close()
        self._tell(session, "status", **self._host.details())

    def _introduce(self, session: ClientSession, rank: int) -> None:
        pool = self._host.pool
        if pool is None or not session.enlisted:
            return
        pid = pool.crew.alive[rank].pid
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
                    _answer(session.wire, number, value)
                    return
                except (GnnkitError, OSError, MemoryError) as error:  # it cannot be sent: one client's trouble, not the server's
                    value = error
            session.wire.send("answer", number=number, error=error_to_json(value))

        try:
            args = decode(tree, message.fds)
            desk = self._host.desk
            if desk is None:
                raise PlanError("the server is not ready to be asked", "wait until every server is there")
            desk.call(session.client, name, args, reply)
        except Exception as error:
            reply(error)

    def close(self) -> None:
        """Ends all connections."""
        for session in self._sessions.values():
            session.wire.close()
        self._sessions.clear()


def _answer(wire: Wire, number: int, value: Any) -> None:
    """Sends a call's value.

    Raises:
        PlanError: There is something in it that cannot be sent.
        OSError: There is no memory or no descriptor for it.
    """
    tree, fds = encode(value)
    try:
        wire.send("answer", tuple(fds), number=number, value=tree)
    finally:
        for fd in fds:
            os.close(fd)

"""One server as a hub sees it: the connection to it, and those to its sampling processes."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gnnkit.cluster.serving.connection import Connection, Welcome
from gnnkit.errors import GnnkitError, WorkerDied
from gnnkit.runtime.logs import with_tail
from gnnkit.runtime.process_status import ProcessStatus, look_at, process_state
from gnnkit.runtime.remote import error_from_json
from gnnkit.runtime.shared_block import SharedBlock
from gnnkit.runtime.supervisor import Death
from gnnkit.runtime.vitals import UNSEEN, Signs, Vitals
from gnnkit.runtime.wire import Message, Wire

# The most messages taken from one process before the others have their turn.
_TURN = 64
# After a connection has ended, the explanation takes no longer than this.
LAST_BREATH_S = 2.0
_ENDED = ("ended", "gone")
_HINT = "go on with loader.resume(), or have it wait for another one by itself with GraphStore(max_restarts=...)"


@dataclass(eq=False)
class Member:
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
    """What a server has said about the end of one of its processes.

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

    def __init__(self, connection: Connection, welcome: Welcome, most: int) -> None:
        self.connection, self.welcome = connection, welcome
        self.workers = min(welcome.workers, most)
        self.members: dict[int, Member] = {}
        self.asked, self.graph_bytes = False, 0
        self._vitals: Vitals | None = None
        self._losses: dict[int, _Loss] = {}
        self._introductions: list[Message] = []
        self._failure: GnnkitError | None = None
        self._ended: float | None = None
        self.ask()

    @property
    def name(self) -> str:
        """What messages call it."""
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
                    self._introductions.append(message)
                elif message.kind == "lost":
                    worker = int(message.body["worker"])
                    error = error_from_json(message.body["error"], f"sampling process {worker} of {self.name}", WorkerDied)
                    self._losses[worker] = _Loss(error, bool(message.body["again"]))
                elif message.kind == "failed":
                    self._failure = error_from_json(message.body["error"], self.name, WorkerDied)
                elif message.kind == "status":
                    self.graph_bytes = int(message.body["graph_bytes"])
        except EOFError:
            self._ended = self._ended or time.monotonic()

    def newcomers(self) -> list[int]:
        """Meets the processes that the server has introduced, once those whose places they take are off the books; their numbers."""
        waiting, came = self._introductions, []
        self._introductions = []
        for message in waiting:
            worker = int(message.body["worker"])
            if worker in self.members:
                self._introductions.append(message)
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
        self.members[worker] = Member(worker, int(body["pid"]), Path(body["log"]), Wire(socket.socket(fileno=wire_fd)))

    def signs(self, worker: int) -> Signs:
        """What one of its processes last showed of itself."""
        return UNSEEN if self._vitals is None else self._vitals.signs(worker)

    def statuses(self) -> Iterator[ProcessStatus]:
        """What the system says of its sampling processes."""
        for worker, member in sorted(dict(self.members).items()):
            yield look_at(f"server {self.welcome.rank}, process {worker}", member.pid, member.log, self.signs(worker).busy_s)

    def describe(self, worker: int) -> str | None:
        """Who a process is, and what the system says it and the server are doing."""
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

    def end_of_server(self, known: GnnkitError | None, others: frozenset[int]) -> Death:
        """The death of the server, and of all its processes.

        Args:
            known: What its starter knows of it, if that is this process.
            others: See ``Death``.
        """
        what = f"{self.name} at {self.connection.folder} is gone"
        if isinstance(known, WorkerDied):
            known = type(known)(known.message, _HINT)
        error = self._failure or known or WorkerDied(with_tail(what, self.welcome.log), _HINT)
        return Death(error, what, others, remedy="it is waited for")

    def deaths(self) -> Iterator[tuple[int, Death]]:
        """Yields the processes that have ended while the server lasts, once it has said why or has had the time to."""
        if self._ended is not None:
            return
        for worker, member in list(self.members.items()):
            loss = self._losses.get(worker)
            if member.ended is None or (loss is None and time.monotonic() - member.ended < LAST_BREATH_S):
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
        for message in self._introductions:
            message.close()
        for member in self.members.values():
            member.wire.close()
        self.connection.close()


def _death(error: GnnkitError, *, is_replaced: bool = False) -> Death:
    summary = error.message.splitlines()[0].partition(";")[0]
    return Death(error, summary, remedy="its server is asked for another one", is_replaced=is_replaced)

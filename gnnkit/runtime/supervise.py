"""A crew of sampling processes: started, listened to, started again, ended."""

from __future__ import annotations

import logging
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from gnnkit.errors import GnnkitError, StartTimeout, WorkerDied
from gnnkit.host import memory_kills
from gnnkit.runtime.children import WORKER, ChildProcess, end_all
from gnnkit.runtime.logs import with_tail
from gnnkit.runtime.obituary import describe_end, explain_end
from gnnkit.runtime.registry import RunFolder
from gnnkit.runtime.remote import error_from_json
from gnnkit.runtime.vitals import Signs, Vitals
from gnnkit.runtime.wire import Message

logger = logging.getLogger(__name__)

# A process whose connection is closed is ending; collecting its exit status takes no longer than this.
_LAST_BREATH_S = 2.0
# The most messages taken from one process before the others have their turn.
_TURN = 64


@dataclass(frozen=True)
class Death:
    """A process has ended without being asked to.

    Attributes:
        error: What to raise where nobody restarts it.
        summary: What happened, on one line.
    """

    error: GnnkitError
    summary: str


@dataclass(frozen=True)
class CrewOptions:
    """How processes are started.

    Attributes:
        num_workers: How many.
        threads: Sampling threads in each.
        most_starting: How many may be starting at the same time; None: all.
        module: What they run.
        environment: Their own variables; see ``ChildProcess``.
    """

    num_workers: int
    threads: int
    most_starting: int | None = None
    module: str = WORKER
    environment: Mapping[str, str] | None = None


class Crew:
    """Keeps the processes.

    Args:
        options: How they are started.
        folder: Where their logs go.
        greet: Sends a process that has just been started its first message.
    """

    def __init__(self, options: CrewOptions, folder: RunFolder, greet: Callable[[ChildProcess], None]) -> None:
        self.options, self.folder = options, folder
        self.vitals = Vitals.create(options.num_workers)
        self.ready: set[int] = set()
        self._greet = greet
        self._children: dict[int, ChildProcess] = {}
        self._kills_before: dict[int, int | None] = {}
        self._failures: dict[int, GnnkitError] = {}
        self._retiring: set[int] = set()
        self._owner = os.getpid()
        self._stopped = False

    def start_missing(self) -> None:
        """Starts the processes that are not there, as many at a time as the options allow."""
        for rank in range(self.options.num_workers):
            starting = len(self._children) - len(self.ready)
            if self._stopped or (self.options.most_starting is not None and starting >= self.options.most_starting):
                return
            if rank not in self._children:
                self.vitals.forget(rank)
                self._kills_before[rank] = memory_kills()
                options = self.options
                child = ChildProcess(
                    rank, self.folder.log(rank), self.vitals.block.fd, options.threads, options.module, options.environment
                )
                self._children[rank] = child
                logger.debug("started sampling process %d (pid %d)", rank, child.pid)
                self._greet(child)
                self.folder.add(rank, child.pid)

    @property
    def alive(self) -> dict[int, ChildProcess]:
        """The processes by rank, those that are starting included."""
        return dict(self._children)

    @property
    def starting(self) -> list[ChildProcess]:
        """Those that are not ready yet."""
        return [child for rank, child in self._children.items() if rank not in self.ready]

    def signs(self, rank: int) -> Signs:
        """What a process last showed of itself."""
        return self.vitals.signs(rank)

    def listen(self) -> Iterator[tuple[int, Message | Death]]:
        """Yields what has arrived from each process since the last call, and the deaths, after all that the dead had sent.

        A process that ends because nobody has asked it for anything for long says "retired": what it was sent since is to be sent again.
        """
        for rank, child in list(self._children.items()):
            child.wire.flush()
            for _ in range(_TURN):
                message, ended = _hear(child)
                if message is not None and message.kind == "failed":
                    self._failures[rank] = error_from_json(message.body["error"], f"starting sampling process {rank}", StartTimeout)
                elif message is not None and message.kind == "idle":
                    self._retiring.add(rank)
                elif message is not None:
                    if message.kind != "event":
                        self.ready.add(rank)
                    yield rank, message
                elif ended:
                    yield rank, self._retire(rank) if rank in self._retiring else self._bury(rank)
                if message is None:
                    break

    def send(self, rank: int, kind: str, fds: tuple[int, ...] = (), /, **body: object) -> None:
        """Sends a message to a process; one that is gone gets nothing."""
        if rank in self._children:
            self._children[rank].wire.send(kind, fds, **body)

    def poller(self) -> select.poll:
        """What to wait on until something arrives or a process ends."""
        poller = select.poll()
        for child in self._children.values():
            fd = child.wire.fileno()
            if fd >= 0:
                poller.register(fd, select.POLLIN | (0 if child.wire.flush() else select.POLLOUT))
        return poller

    def settle(self) -> None:
        """Waits for processes that have begun to end, so that the next ``listen`` finds all who died together."""
        for child in list(self._children.values()):
            if child.is_ending():
                child.wait(_LAST_BREATH_S)

    def _remove(self, rank: int) -> int | None:
        """Takes a process that has ended off the books; its exit status."""
        child = self._children[rank]
        returncode = child.wait(_LAST_BREATH_S)
        if returncode is None:  # it closed its connection, but lives on
            child.signal(signal.SIGKILL)
            child.wait(_LAST_BREATH_S)
        child.wire.close()
        self.ready.discard(rank)
        self._retiring.discard(rank)
        del self._children[rank]
        return returncode

    def _retire(self, rank: int) -> Message:
        self._remove(rank)
        return Message("retired", {})

    def _bury(self, rank: int) -> Death:
        child, while_starting = self._children[rank], rank not in self.ready
        returncode = self._remove(rank)
        why, hint = explain_end(returncode, self.signs(rank), self._kills_before[rank])
        self.folder.keep()
        what = f"sampling process {rank} (pid {child.pid}) {describe_end(returncode)}"
        if rank in self._failures:
            return Death(self._failures.pop(rank), what)
        if while_starting:
            error: GnnkitError = StartTimeout(with_tail(f"{what} while it was starting; {why}", child.log), hint)
        else:
            error = WorkerDied(with_tail(f"{what}; {why}", child.log), hint)
        return Death(error, what)

    def overdue(self, timeout_s: float) -> tuple[int, StartTimeout] | None:
        """A process that has been starting for longer than ``timeout_s``, and the error for it; it is ended."""
        for child in self.starting:
            waited = time.monotonic() - child.started
            if waited > timeout_s:
                text = f"sampling process {child.rank} (pid {child.pid}) was not ready after {waited:.0f} s and is {child.state()}"
                error = StartTimeout(with_tail(text, child.log), "raise start_timeout_s, or look at the log")
                child.signal(signal.SIGKILL)
                self._bury(child.rank)
                return child.rank, error
        return None

    def stop(self) -> None:
        """Ends every process; safe to call twice, and in a forked child, where it does nothing."""
        if self._stopped or os.getpid() != self._owner:
            return
        self._stopped = True
        children = list(self._children.values())
        try:
            end_all(children)
        finally:
            for child in children:
                child.wire.close()
            self.ready.clear()
            self._children.clear()
            self.folder.close()


def _hear(child: ChildProcess) -> tuple[Message | None, bool]:
    """The next message of a process, and whether it is gone and has left no more."""
    try:
        message = child.wire.receive()
        if message is not None or not child.has_ended():
            return message, False
        message = child.wire.receive()  # what it sent between the two looks
        return message, message is None
    except EOFError:
        return None, True

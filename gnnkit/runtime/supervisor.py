"""A crew of sampling processes: started, listened to, started again, ended."""

from __future__ import annotations

import logging
import math
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from gnnkit.errors import GnnkitError, StartTimeout, WorkerDied, WorkerStopped
from gnnkit.host import memory_kills
from gnnkit.runtime.children import ChildProcess, end_all
from gnnkit.runtime.exit_reason import describe_end, explain_end
from gnnkit.runtime.logs import with_tail
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
        others: Numbers of processes that ended with it, of the same cause.
        remedy: What happens where the user allows it, for his warning.
        is_replaced: Whether somebody takes its place in any case, so that it is an error for nobody.
        returncode: Its exit status as ``Popen`` gives it; None where that is not known.
    """

    error: GnnkitError
    summary: str
    others: frozenset[int] = frozenset()
    remedy: str = "it is started again"
    is_replaced: bool = False
    returncode: int | None = None


@dataclass(frozen=True)
class SupervisorOptions:
    """How processes are started.

    Attributes:
        num_workers: How many.
        threads: Sampling threads in each.
        module: The module that they run; they are started with ``python -m``.
        most_starting: How many may be starting at the same time; None: all.
        environment: Their own variables; see ``ChildProcess``.
        first: The first one's number; the others follow.
        title: What messages call one of them.
        lane: What tables and pictures call it.
        advice: What to do when one has died.
        farewell_s: Seconds that they have to end by themselves once they are told to.
    """

    num_workers: int
    threads: int
    module: str
    most_starting: int | None = None
    environment: Mapping[str, str] | None = None
    first: int = 0
    title: str = "sampling process {rank}"
    lane: str = "process {rank}"
    advice: str = "go on with loader.resume(), or let it restart workers by itself with Colocated(max_restarts=...)"
    farewell_s: float = 0.2

    @property
    def ranks(self) -> range:
        """Their numbers."""
        return range(self.first, self.first + self.num_workers)


class Supervisor:
    """Keeps the processes.

    Args:
        options: How they are started.
        folder: Where their logs go.
        greet: Sends a process that has just been started its first message.
    """

    def __init__(self, options: SupervisorOptions, folder: RunFolder, greet: Callable[[ChildProcess], None]) -> None:
        self.options, self.folder = options, folder
        self.vitals = Vitals.create(options.ranks.stop)
        self.ready: set[int] = set()
        self._greet = greet
        self._children: dict[int, ChildProcess] = {}
        self._kills_before: dict[int, int | None] = {}
        self._failures: dict[int, GnnkitError] = {}
        self._retiring: set[int] = set()
        self._deadlines: dict[int, float] = {}  # of processes that were told to end
        self._owner = os.getpid()
        self._stopped = False

    def start_missing(self) -> None:
        """Starts the processes that are not there, as many at a time as the options allow."""
        for rank in self.options.ranks:
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
                logger.debug("started %s", self.name(rank))
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

    def name(self, rank: int) -> str:
        """What messages call a process that is there: "sampling process 0 (pid 12)"."""
        return f"{self.options.title.format(rank=rank)} (pid {self._children[rank].pid})"

    def signs(self, rank: int) -> Signs:
        """What a process last showed of itself."""
        return self.vitals.signs(rank)

    def listen(self) -> Iterator[tuple[int, Message | Death]]:
        """Yields what has arrived from each process since the last call, and the deaths, after all that the dead had sent.

        A process that ends because nobody has asked it for anything for long says "retired": what it was sent since is to be sent again.
        """
        for rank, child in list(self._children.items()):
            child.wire.flush()
            if time.monotonic() > self._deadlines.get(rank, math.inf):
                child.signal(signal.SIGKILL)
            for _ in range(_TURN):
                message, ended = _hear(child)
                if message is not None and message.kind == "failed":
                    self._failures[rank] = error_from_json(message.body["error"], f"starting {self.name(rank)}", StartTimeout)
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
        self._deadlines.pop(rank, None)
        del self._children[rank]
        return returncode

    def _retire(self, rank: int) -> Message:
        self._remove(rank)
        return Message("retired", {})

    def _bury(self, rank: int) -> Death:
        child, name, while_starting = self._children[rank], self.name(rank), rank not in self.ready
        returncode = self._remove(rank)
        why, hint = explain_end(returncode, self.signs(rank), self._kills_before[rank], self.options.advice)
        what = f"{name} {describe_end(returncode)}"
        if self.folder.was_stopped(child.pid):
            return Death(WorkerStopped(f"{what}: gnnkit stop has ended it", hint), what, returncode=returncode)
        self.folder.keep()
        if rank in self._failures:
            return Death(self._failures.pop(rank), what, returncode=returncode)
        if while_starting:
            error: GnnkitError = StartTimeout(with_tail(f"{what} while it was starting; {why}", child.log), hint)
        else:
            error = WorkerDied(with_tail(f"{what}; {why}", child.log), hint)
        return Death(error, what, returncode=returncode)

    def restart(self) -> None:
        """Tells every process to end, for ``start_missing`` to start others; until they have, ``listen`` is to be called."""
        for rank, child in self._children.items():
            self._retiring.add(rank)
            self._deadlines.setdefault(rank, time.monotonic() + self.options.farewell_s)
            child.wire.send("stop")

    def overdue(self, timeout_s: float) -> tuple[int, StartTimeout] | None:
        """A process that has been starting for longer than ``timeout_s``, and the error for it; it is ended."""
        for child in self.starting:
            waited = time.monotonic() - child.started
            if waited > timeout_s:
                text = f"{self.name(child.rank)} was not ready after {waited:.0f} s and is {child.state()}"
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
            # Those that are starting have nobody to take leave of, and somebody who has interrupted their start waits.
            end_all(self.starting)
            end_all([child for child in children if child.rank in self.ready], self.options.farewell_s)
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

"""Background processes: starting them, watching them, the reason of their exit, restarting and ending them."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gnnkit.errors import GnnkitError, PlanError, StartTimeout, WorkerDied, WorkerStopped, on_error
from gnnkit.host import memory_kills
from gnnkit.runtime.entry import Signs, Vitals
from gnnkit.runtime.fork_server import ANSWER_S, Forked, ForkServer, Process, fork_server
from gnnkit.runtime.process_status import process_state
from gnnkit.runtime.remote import error_from_json
from gnnkit.runtime.runs import RunFolder, opened_log, with_tail
from gnnkit.runtime.wire import Handed, Message, Waker, Wire
from gnnkit.waiting import Deadline

if TYPE_CHECKING:
    from gnnkit.runtime.graph_memory import GraphSharing


def describe_end(returncode: int | None) -> str:
    """An exit status in words: "was killed by SIGSEGV"."""
    if returncode is None:
        return "closed its connection"
    if returncode >= 0:
        return f"ended with status {returncode}"
    name = str(-returncode)
    with contextlib.suppress(ValueError):
        name = signal.Signals(-returncode).name
    return f"was killed by {name}"


def explain_end(returncode: int | None, signs: Signs, kills_before: int | None, advice: str) -> tuple[str, str]:
    """Explains the end of a process: its cause as far as it is known, and what to do.

    Args:
        returncode: The exit status as ``Popen`` gives it.
        signs: The last signs of life of the process.
        kills_before: ``memory_kills`` when the process was started.
        advice: What to do where the cause is not known.
    """
    memory = f"it occupied {signs.rss / 1e6:.0f} MB when it was last seen" if signs.rss else "its memory is not known"
    if returncode == -signal.SIGKILL:
        kills = memory_kills()
        if kills is not None and kills_before is not None and kills > kills_before:
            text = f"the kernel killed {kills - kills_before} process(es) of this memory group meanwhile because memory ran out; {memory}"
            return text, "lower num_workers, batch_size, num_neighbors or memory_budget, or raise the memory limit of this container"
        return f"no kill for lack of memory was counted meanwhile, so another process killed it; {memory}", advice
    if returncode == -signal.SIGBUS:
        return f"mapped memory was gone: a store's file was cut, a disk failed, or shared memory is full; {memory}", (
            "gnnkit info --verify names damaged files; a container's limit of memory counts shared memory, too"
        )
    return memory, advice


# Libraries in the child count threads by these; a sampling thread is one thread, and there are as many as the user said.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
)
# What would make an interpreter do something else than sample.
_DROPPED_VARIABLES = ("PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONBREAKPOINT", "PYTHONPROFILEIMPORTTIME")
# Secrets reach children over the socket, not the environment.
_SECRETS = ("GNNKIT_TOKEN", "GNNKIT_TOKEN_FILE")


def child_environment(threads: int) -> dict[str, str]:
    """The environment of a sampling process: this process's, with the same import path, few threads and no GPU."""
    environment = {name: value for name, value in os.environ.items() if name not in (*_DROPPED_VARIABLES, *_SECRETS)}
    path = [os.getcwd() if entry == "" else entry for entry in sys.path]
    environment |= dict.fromkeys(_THREAD_VARIABLES, str(threads))
    environment |= {
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    return environment


@dataclass(frozen=True)
class SupervisorOptions:
    """The options that processes are started with.

    Attributes:
        num_workers: How many.
        threads: Sampling threads in each.
        module: The module that they run; it has the ``WORK`` of ``gnnkit.runtime.entry``.
        most_starting: How many may be starting at the same time; None: all.
        environment: Variables that they have beside those of ``child_environment``, or instead of them; such processes are not forked.
        first: The first one's number; the others follow.
        is_forked: Whether they are forked from a process that has loaded what they need, where that can be; see
            ``gnnkit.runtime.fork_server``. Otherwise they are started with ``python -m``.
        starts_others: Whether they start processes themselves.
        title: The name of one of them in messages.
        lane: The same in tables and pictures.
        advice: What to do when one has died.
        stop_timeout_s: Seconds that they have to end by themselves after the request.
    """

    num_workers: int
    threads: int
    module: str
    most_starting: int | None = None
    environment: Mapping[str, str] | None = None
    first: int = 0
    title: str = "sampling process {rank}"
    lane: str = "process {rank}"
    is_forked: bool = True
    starts_others: bool = False
    advice: str = "go on with loader.resume(), or let it restart workers by itself with Colocated(max_restarts=...)"
    stop_timeout_s: float = 0.2

    @property
    def ranks(self) -> range:
        """Their numbers."""
        return range(self.first, self.first + self.num_workers)


class ChildProcess:
    """A sampling process, or another that ``gnnkit.runtime.entry`` runs.

    Args:
        rank: Its number.
        log: The file that its output is appended to.
        vitals_fd: Descriptor of the block of ``Vitals``.
        options: How it is started.

    Attributes:
        rank: Its number.
        log: The file that its output is appended to.
        wire: The connection to it.
        since: ``time.monotonic()`` when it was started, or last told of what it does to start: kernels that it compiles take as long as the
            machine's other work lets them.

    Raises:
        OSError: The system does not start it.
        PlanError: There is no Python interpreter to start.
    """

    def __init__(self, rank: int, log: Path, vitals_fd: int, options: SupervisorOptions) -> None:
        if not sys.executable:
            raise PlanError("sampling processes need a Python interpreter, and this program does not say which", "use InProcess()")
        self.rank, self.log, self.since = rank, log, time.monotonic()
        self._vitals_fd, self._options = vitals_fd, options
        self._process: Process | None = None
        self._asked: tuple[ForkServer, int, Deadline] | None = None
        self._asking = threading.Lock()
        self.wire, self._theirs = Wire.pair()
        with on_error(self.wire.close), on_error(self._theirs.close):
            self._start()

    def _start(self) -> None:
        """Has it forked, or starts it."""
        options, parent_fd = self._options, _own_pidfd()
        try:
            environment = {**child_environment(options.threads), **(options.environment or {})}
            server = fork_server(child_environment(1)) if options.is_forked and options.environment is None else None
            from_main_thread = threading.current_thread() is threading.main_thread() if server is None else server.from_main_thread
            numbers = (self._theirs.fileno(), self._vitals_fd, parent_fd, os.getpid(), self.rank, int(from_main_thread))
            with opened_log(self.log, "ab") as output, opened_log(self.log, "a+b") as errors:
                if server is not None:
                    ends = output.fileno(), errors.fileno()
                    asked = server.ask(options.module, numbers, environment, *ends, starts_others=options.starts_others)
                    self._asked = server, asked, Deadline(ANSWER_S)
                    return
                self._process = subprocess.Popen(
                    [sys.executable, "-m", options.module, *map(str, numbers)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=errors,
                    env=environment,
                    pass_fds=[fd for fd in numbers[:3] if fd >= 0],
                    start_new_session=True,
                )
                self._theirs.close()
        finally:
            if parent_fd >= 0:
                os.close(parent_fd)

    def is_there(self, timeout_s: float = 0.0) -> bool:
        """Whether it has been started, as the fork server says, which is given so long; where that is gone it is started again."""
        if self._process is not None:
            return True
        with self._asking:
            while self._process is None:
                if self._asked is None:
                    self._start()
                    continue
                server, number, deadline = self._asked
                try:
                    pid = server.answer(number, timeout_s)
                    if pid is None and deadline.has_passed:
                        server.give_up()
                        pid = server.answer(number, 0.0)  # its last words
                except EOFError as error:
                    logger.info("process %d is started anew: %s", self.rank, error)
                    server.give_up()
                    self._asked = None
                    continue
                if pid is None:
                    return False
                self._theirs.close()
                self._asked, self._process = None, Forked(pid)
                server.forget(number)
            return True

    @property
    def pid(self) -> int:
        """Its pid; that of the fork server until it is there."""
        self.is_there()
        with self._asking:
            if self._process is not None:
                return self._process.pid
            assert self._asked is not None, "it is there, or was asked for"
            return self._asked[0].pid

    @property
    def starter_fd(self) -> int | None:
        """A descriptor that something can be read from when it is there; None where it is already."""
        asked = self._asked
        return None if asked is None else asked[0].fileno()

    def has_ended(self) -> bool:
        """Whether the process is gone; its exit status has been collected then."""
        if self._process is None and not self.is_there():
            return False
        return self._process is not None and self._process.poll() is not None

    def wait(self, timeout_s: float) -> int | None:
        """Waits for its end; the exit status as ``Popen`` gives it, or None."""
        deadline = Deadline(timeout_s)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(deadline.left_s) if self.is_there(timeout_s) and self._process is not None else None
        return None

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal, if it still runs; one that is not there yet does not come any more."""
        if self.is_there() and self._process is not None:
            self._process.send_signal(number)
            return
        with self._asking:
            if self._asked is not None:
                server = self._asked[0]
                server.kill()
                server.give_up()
                self._theirs.close()
                self._asked, self._process = None, Forked(server.pid, returncode=-signal.SIGKILL)

    def state(self) -> str:
        """Returns the process's state in the system, in words."""
        return process_state(self.pid)


def children_of(pid: int) -> list[int]:
    """Pids of the processes that a process has started and that still run."""
    import psutil

    with contextlib.suppress(psutil.Error):
        return [child.pid for child in psutil.Process(pid).children()]
    return []


def _own_pidfd() -> int:
    """A descriptor that becomes readable when this process ends; -1 where the system has none."""
    with contextlib.suppress(OSError):  # a kernel before 5.3, or a sandbox that refuses: the child then only watches its parent's pid
        return os.pidfd_open(os.getpid())
    return -1


def end_all(children: list[ChildProcess], stop_timeout_s: float = 0.2) -> None:
    """Ends processes: asks, then insists, then kills; none of them is left, and all exit statuses are collected.

    Args:
        children: The processes.
        stop_timeout_s: Seconds between asking and insisting.
    """
    for child in children:
        child.wire.send("stop")
    for insist, patience_s in ((signal.SIGTERM, stop_timeout_s), (signal.SIGKILL, 0.1), (None, 10.0)):
        deadline = Deadline(patience_s)
        children = [child for child in children if not _ended_by(child, deadline)]
        for child in children:
            if insist is not None:
                child.signal(insist)


def _ended_by(child: ChildProcess, deadline: Deadline) -> bool:
    """Waits for the other end of the connection to close, which is when the process ends, and then for its exit status."""
    if child.is_there(deadline.left_s) and not child.wire.wait(deadline.left_s, 0):  # only POLLHUP
        return child.has_ended()
    return child.wait(max(0.05, deadline.left_s)) is not None


logger = logging.getLogger(__name__)

# A process whose connection is closed is ending; collecting its exit status takes no longer than this.
_EXIT_WAIT_S = 2.0
# The most messages taken from one process before the others have their turn.
_TURN = 64


@dataclass(frozen=True)
class Exit:
    """A process has ended without being asked to.

    Attributes:
        error: What to raise where it is not restarted.
        summary: What happened, on one line.
        others: Numbers of processes that ended with it, of the same cause.
        remedy: What happens where the user allows it, for the warning.
        is_replaced: Whether another process takes its place in any case, so that its end is no error.
        returncode: Its exit status as ``Popen`` gives it; None where that is not known.
    """

    error: GnnkitError
    summary: str
    others: frozenset[int] = frozenset()
    remedy: str = "it is started again"
    is_replaced: bool = False
    returncode: int | None = None


class Supervisor:
    """Keeps the processes.

    Args:
        options: How they are started.
        folder: Where their logs go.
        set_up: Sends a process that has just been started its first message.
        sharing: The graph's copy that they share, which is told of what they say of it; None where they share none.

    Attributes:
        options: See above.
        folder: See above.
        vitals: Their signs of life.
        ready: Those that can be given something to do.
    """

    def __init__(
        self, options: SupervisorOptions, folder: RunFolder, set_up: Callable[[ChildProcess], None], sharing: GraphSharing | None = None
    ) -> None:
        self.options, self.folder, self._sharing = options, folder, sharing
        self.vitals = Vitals.create(options.ranks.stop)
        self.ready: set[int] = set()
        self._set_up = set_up
        self._children: dict[int, ChildProcess] = {}
        self._unlisted: set[int] = set()  # of which it is not written down yet which process they are
        self._kills_before: dict[int, int | None] = {}
        self._failures: dict[int, GnnkitError] = {}
        self._retiring: set[int] = set()
        self._deadlines: dict[int, Deadline] = {}  # of processes that were told to end
        self._owner = os.getpid()
        self._stopped = False

    def start_missing(self) -> None:
        """Starts the processes that are not there, as many at a time as the options allow."""
        if len(self._children) == self.options.num_workers:  # asked for each batch
            return
        for rank in self.options.ranks:
            starting = len(self._children) - len(self.ready)
            if self._stopped or (self.options.most_starting is not None and starting >= self.options.most_starting):
                return
            if rank not in self._children:
                self.vitals.forget(rank)
                self._kills_before[rank] = memory_kills()
                child = ChildProcess(rank, self.folder.log(rank), self.vitals.block.fd, self.options)
                self._children[rank] = child
                self._unlisted.add(rank)
                self._set_up(child)
                self._list(child)

    def _list(self, child: ChildProcess) -> None:
        """Writes down which process it is, once it is there."""
        if child.is_there():
            self._unlisted.remove(child.rank)
            logger.debug("started %s", self.name(child.rank))
            self.folder.add(child.rank, child.pid)

    @property
    def alive(self) -> dict[int, ChildProcess]:
        """The processes by rank, those that are starting included."""
        return dict(self._children)

    @property
    def starting(self) -> list[ChildProcess]:
        """Those that are not ready yet."""
        return [child for rank, child in self._children.items() if rank not in self.ready]

    def name(self, rank: int) -> str:
        """Returns the name of a running process for messages: "sampling process 0 (pid 12)"."""
        return f"{self.options.title.format(rank=rank)} (pid {self._children[rank].pid})"

    def signs(self, rank: int) -> Signs:
        """Returns the last signs of life of a process."""
        return self.vitals.signs(rank)

    def listen(self) -> Iterator[tuple[int, Message | Exit]]:
        """Yields what has arrived from each process since the last call, and the deaths, after all that the dead had sent.

        A process that ends because it was idle for long says "retired": what it was sent since is to be sent again.
        """
        for rank, child in list(self._children.items()):
            if self._unlisted or self._deadlines:
                self._look_at(child)
            for _ in range(_TURN):
                try:
                    message, ended = child.wire.receive(), False
                    if message is None and child.has_ended():
                        message = child.wire.receive()  # what it sent between the two looks
                        ended = message is None
                except EOFError:
                    message, ended = None, True
                if message is None:
                    if ended:
                        yield rank, self._retire(rank) if rank in self._retiring else self._exited(rank)
                    break
                if message.kind == "failed":
                    self._failures[rank] = error_from_json(message.body["error"], f"starting {self.name(rank)}", StartTimeout)
                elif message.kind == "idle":
                    self._retiring.add(rank)
                elif message.kind == "graph" and self._sharing is not None:
                    self._sharing.take(rank, message)
                else:
                    if message.kind == "event":
                        child.since = time.monotonic()
                    else:
                        self.ready.add(rank)
                    yield rank, message

    def _look_at(self, child: ChildProcess) -> None:
        """Lists a process that has come, and kills one that has not ended in time."""
        if child.rank in self._unlisted:
            self._list(child)
        if child.rank in self._deadlines and self._deadlines[child.rank].has_passed:
            child.signal(signal.SIGKILL)

    def send(self, rank: int, kind: str, fds: Handed = (), /, **body: object) -> None:
        """Sends a message to a process; one that is gone gets nothing."""
        if rank in self._children:
            self._children[rank].wire.send(kind, fds, **body)

    def poller(self) -> select.poll:
        """Returns a poll object that wakes when something arrives or a process ends."""
        poller = select.poll()
        for child in self._children.values():
            child.wire.register(poller)
            if (starter_fd := child.starter_fd) is not None and starter_fd >= 0:
                poller.register(starter_fd, select.POLLIN)
        return poller

    def settle(self) -> None:
        """Waits for processes that have begun to end, so that the next ``listen`` finds all who died together."""
        for child in list(self._children.values()):
            if child.state() in ("ended", "gone"):  # its main thread has ended, and the others are about to
                child.wait(_EXIT_WAIT_S)

    def _remove(self, rank: int) -> int | None:
        """Forgets a process that has ended; returns its exit status."""
        child = self._children[rank]
        returncode = child.wait(_EXIT_WAIT_S)
        if returncode is None:  # it closed its connection, but lives on
            child.signal(signal.SIGKILL)
            child.wait(_EXIT_WAIT_S)
        child.wire.close()
        self.ready.discard(rank)
        self._unlisted.discard(rank)
        self._retiring.discard(rank)
        self._deadlines.pop(rank, None)
        del self._children[rank]
        if self._sharing is not None:
            self._sharing.lost(rank)
        return returncode

    def _retire(self, rank: int) -> Message:
        self._remove(rank)
        self._failures.pop(rank, None)
        return Message("retired", {})

    def _exited(self, rank: int) -> Exit:
        child, name, while_starting = self._children[rank], self.name(rank), rank not in self.ready
        returncode = self._remove(rank)
        why, hint = explain_end(returncode, self.signs(rank), self._kills_before[rank], self.options.advice)
        what = f"{name} {describe_end(returncode)}"
        if self.folder.was_stopped(child.pid):
            return Exit(WorkerStopped(f"{what}: gnnkit stop has ended it", hint), what, returncode=returncode)
        self.folder.keep()
        if rank in self._failures:
            return Exit(self._failures.pop(rank), what, returncode=returncode)
        if while_starting:
            error: GnnkitError = StartTimeout(with_tail(f"{what} while it was starting; {why}", child.log), hint)
        else:
            error = WorkerDied(with_tail(f"{what}; {why}", child.log), hint)
        return Exit(error, what, returncode=returncode)

    def restart(self) -> None:
        """Tells every process to end, for ``start_missing`` to start others; until they have, ``listen`` is to be called."""
        for rank, child in self._children.items():
            self._retiring.add(rank)
            self._deadlines.setdefault(rank, Deadline(self.options.stop_timeout_s))
            child.wire.send("stop")

    def overdue(self, timeout_s: float) -> tuple[int, StartTimeout] | None:
        """A process that has been starting for longer than ``timeout_s``, with nothing to tell of it, and the error; it is ended."""
        for rank, child in list(self._children.items()):
            if rank in self.ready:
                continue
            waited = time.monotonic() - child.since
            if waited > timeout_s:
                text = f"{self.name(child.rank)} was not ready after {waited:.0f} s and is {child.state()}"
                error = StartTimeout(with_tail(text, child.log), "raise start_timeout_s, or look at the log")
                child.signal(signal.SIGKILL)
                self._exited(child.rank)
                return child.rank, error
        return None

    def stop(self) -> None:
        """Ends every process; safe to call twice, and in a forked child, where it does nothing."""
        if self._stopped or os.getpid() != self._owner:
            return
        self._stopped = True
        children = list(self._children.values())
        try:
            # Those that are starting have no peers to say goodbye to, and a user who has interrupted their start waits.
            end_all(self.starting)
            end_all([child for child in children if child.rank in self.ready], self.options.stop_timeout_s)
        finally:
            for child in children:
                child.wire.close()
            self.ready.clear()
            self._children.clear()
            self.folder.close()


# Longest time between two looks around.
_LOOK_S = 0.5


def supervise(
    supervisor: Supervisor,
    waker: Waker,
    changed: threading.Condition,
    what: str,
    *,
    has_ended: Callable[[], bool],
    look: Callable[[], None],
    give_up: Callable[[str], None],
) -> None:
    """Looks after a supervisor until it has ended.

    Args:
        supervisor: The supervisor.
        waker: Has this look around at once.
        changed: Held whenever one of the following is called; notified after each look.
        what: What the supervisor is, for errors: "the ranks".
        has_ended: Whether there is nothing to look after any more.
        look: Takes what has been said, and does what is to be done.
        give_up: Ends everything, because ``look`` has raised; called with what to say of that.
    """
    while True:
        with changed:
            if has_ended():
                return
            poller = supervisor.poller()
        waker.wait(poller, _LOOK_S)
        with changed:
            try:
                if not has_ended():
                    look()
            except Exception as error:
                logger.exception("%s cannot be looked after", what)
                give_up(f"{what} cannot be looked after: {type(error).__name__}: {error}")
            changed.notify_all()

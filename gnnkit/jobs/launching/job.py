"""The ranks of one launch: started, listened to, started again, ended; by a thread, beside whatever the user does."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import asdict

from gnnkit.errors import GnnkitError, PlanError, StoreError, TrainingFailed, WorkerDied, WorkerStopped
from gnnkit.events import EventSink
from gnnkit.jobs.environment import Place
from gnnkit.jobs.launching.inputs import LaunchInputs
from gnnkit.jobs.launching.rank_state import ENDED, RankState, RunState, RunStatus
from gnnkit.jobs.launching.reporter import LaunchReporter
from gnnkit.jobs.launching.spec import LaunchSpec
from gnnkit.runtime.children import ChildProcess
from gnnkit.runtime.process_status import look_at
from gnnkit.runtime.registry import new_run, sweep
from gnnkit.runtime.remote import error_from_json, fresh
from gnnkit.runtime.supervisor import Death, Supervisor, SupervisorOptions
from gnnkit.runtime.tending import look_after
from gnnkit.runtime.waker import Waker
from gnnkit.runtime.wire import Message, in_memory

_MODULE = "gnnkit.jobs.launching"
_ADVICE = "launch(..., max_restarts=...) starts all ranks again, and ctx.restore(...) goes on from their last checkpoint"
# Nobody from elsewhere can reach the ranks.
LOOPBACK = "127.0.0.1"
# That a thread may take to end.
_JOIN_S = 10.0
# What a rank has to end by itself: it has nothing to tidy up.
_FAREWELL_S = 0.2


class Job:
    """Starts the ranks, and returns at once. They run until they are done, ``stop``, or the end of this process, however that comes.

    Args:
        spec: What they are to do.
        provisions: The graph that they sample.
        events: Shows how far they are.

    Attributes:
        spec: What they are to do.
        changed: Held for every look at what follows; notified of every change.
        books: What is known of the ranks.
        results: ``{rank: what it returned, packed}``, once the run is done.

    Raises:
        PlanError: There is no folder for logs.
        OSError: The system does not start processes.
    """

    def __init__(self, spec: LaunchSpec, provisions: LaunchInputs, events: EventSink) -> None:
        self.spec, self._provisions = spec, provisions
        self.changed = threading.Condition(threading.RLock())
        self.books = RankState(spec.num_procs)
        self.results: dict[int, bytes] = {}
        self._state: RunState = "starting"
        self._error: GnnkitError | None = None
        self._last_error: str | None = None
        self._restarts, self._began, self._ended_s = 0, time.monotonic(), 0.0
        self._logs: dict[int, str] = {}
        self._has_begun = False
        self._owner = os.getpid()
        self._provided: dict[str, object] | None = None
        self.folder = new_run(spec.log_dir, {"store": provisions.title, "job": spec.title, "directory": spec.directory}, "rank")
        self.directory = spec.directory or str(self.folder.path / "job")
        self._meeting = _MeetingPoint(spec.num_procs)
        self._code_fd = in_memory(spec.code)
        weakref.finalize(self, os.close, self._code_fd).atexit = False
        self._waker = Waker()
        self._telling = LaunchReporter(events, spec)
        options = SupervisorOptions(
            spec.num_procs, spec.threads, module=_MODULE, title="rank {rank}", lane="rank {rank}", advice=_ADVICE, farewell_s=_FAREWELL_S
        )
        self._crew = Supervisor(options, self.folder, self._greet)
        self._thread = threading.Thread(target=self._run, name="gnnkit-launch", daemon=True)
        try:
            atexit.register(self.stop)
            self._crew.start_missing()
            self.books.begin({rank: child.pid for rank, child in self._crew.alive.items()})
            self._thread.start()
        except BaseException:
            self.stop()
            raise

    # What it is doing ---------------------------------------------------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        """Whether nothing runs any more."""
        return self._state in ENDED

    @property
    def error(self) -> GnnkitError | None:
        """What it has failed of; None where it has not."""
        return None if self._error is None else fresh(self._error)

    def status(self) -> RunStatus:
        """What is known now."""
        with self.changed:
            spec, alive = self.spec, self._crew.alive
            seen = tuple(look_at(f"rank {rank}", child.pid, child.log) for rank, child in alive.items())
            until = self._ended_s or time.monotonic()
            error = str(self._error).splitlines()[0] if self._error is not None else self._last_error
            restarts, ranks = (self._restarts, spec.max_restarts), tuple(self.books.ranks)
            return RunStatus(self._state, ranks, *restarts, error, until - self._began, self.folder.path.name, self.directory, seen)

    def log(self, rank: int) -> str:
        """What a rank has written so far; of what is very long, the end."""
        with self.changed:
            return self._logs[rank] if rank in self._logs else _text(self.folder.log(rank))

    # The thread ---------------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            provided = self._provisions.make(self.folder.path, self._telling.events)
        except Exception as error:
            self._provisions.remove()
            self._fail(error if isinstance(error, GnnkitError) else StoreError(f"the graph cannot be made ready: {error}"))
            return
        with self.changed:
            if self.has_ended:  # meanwhile, and what was just made has nobody else to remove it
                self._provisions.remove()
                return
            self._provided = provided
            for rank, child in self._crew.alive.items():
                child.started = time.monotonic()  # however long the graph has taken
                self._crew.send(rank, "plan", **provided)
        self._watch()

    def _watch(self) -> None:
        def give_up(text: str) -> None:
            self._fail(WorkerDied(text, "launch them again"))

        look_after(self._crew, self._waker, self.changed, "the ranks", has_ended=lambda: self.has_ended, look=self._pump, give_up=give_up)

    def _pump(self) -> None:
        if self._state == "restarting":
            self._listen(_nothing)
            if not self._crew.alive:
                self._begin_again()
            return
        self._listen(self._take)
        overdue = self._crew.overdue(self.spec.start_timeout_s)
        if overdue is not None:
            self.books.fail(overdue[0], time.monotonic(), overdue[1])
        if self.books.failures:
            # Those that have begun to end may be the reason, and those that complain first need not be.
            self._crew.settle()
            self._listen(self._take)
            self._mourn()
        elif self.books.are_done:
            self._finish("done")
        elif self._state == "starting" and self.books.are_training:
            self._state = "running"
            self._telling.started()
        if self._state in ("starting", "running"):
            self._telling.show(self.books.ranks)

    def _listen(self, take: Callable[[int, Message], None]) -> None:
        for rank, what in self._crew.listen():
            if isinstance(what, Death):
                self.books.fail(rank, self._time_of(rank, what), what.error)
            else:
                take(rank, what)

    def _time_of(self, rank: int, death: Death) -> float:
        """When a rank has died: killed from outside, right after it was last seen, before anybody could complain about it."""
        killed = death.returncode is not None and death.returncode < 0 and death.returncode != -signal.SIGABRT
        seen_s = self._crew.signs(rank).seen_s
        return time.monotonic() - (seen_s if killed and seen_s < _JOIN_S else 0.0)

    def _take(self, rank: int, message: Message) -> None:
        body = message.body
        if message.kind == "ready":
            self._has_begun = True
            self.books.change(rank, state="training", device=body["device"])
        elif message.kind == "steps":
            self.books.change(rank, **body)
        elif message.kind == "raised":
            error = error_from_json(body["error"], f"rank {rank}", TrainingFailed)
            self.books.fail(rank, body["at"], _named(error, rank))
        elif message.kind == "result":
            self.books.change(rank, state="done")
            self.books.results[rank] = message.fds.pop()
        message.close()

    # What becomes of it -------------------------------------------------------------------------------------------------------

    def _greet(self, child: ChildProcess) -> None:
        """Tells a rank that has just been started what it is, and, where that is known, what it samples."""
        spec, rank = self.spec, child.rank
        place = Place(rank, rank, 0, spec.num_procs, spec.num_procs, 1, self._restarts, LOOPBACK, self._meeting.port)
        body = spec.setup() | {"place": asdict(place), "directory": self.directory}
        fds = (self._code_fd, *(self._meeting.fds if rank == 0 else ()))
        child.wire.send("setup", fds, **body)
        if self._provided is not None:
            child.wire.send("plan", **self._provided)

    def _mourn(self) -> None:
        """A rank has failed: all start again where that is allowed and of use, or the run has failed."""
        error = self.books.first_failure
        assert error is not None
        # Nothing that was wrong before any function was called, or that the user has to change, gets better by another try.
        is_worth_it = self._has_begun and not isinstance(error, (WorkerStopped, PlanError))
        if not is_worth_it or self._restarts >= self.spec.max_restarts:
            self._fail(error)
            return
        self._restarts += 1
        self._last_error = str(error).splitlines()[0]
        self._state = "restarting"
        self._telling.restarting(self._last_error, self._restarts)
        self._crew.restart()
        if not self._crew.alive:
            self._begin_again()

    def _begin_again(self) -> None:
        self._meeting.close()
        self._meeting = _MeetingPoint(self.spec.num_procs)
        self._drop_results()
        self._state = "starting"
        self._crew.start_missing()
        self.books.begin({rank: child.pid for rank, child in self._crew.alive.items()})

    def _fail(self, error: GnnkitError) -> None:
        with self.changed:
            if not self.has_ended:
                self._error = error
                self.folder.keep()
                self._finish("failed")
            self.changed.notify_all()

    def stop(self) -> None:
        """Ends the ranks; safe to call twice, and in a forked child, where it does nothing."""
        if os.getpid() != self._owner:
            return
        with self.changed:
            if not self.has_ended:
                self._error = WorkerStopped("the run was stopped before it was done", "launch it again")
                self._finish("stopped")
            self.changed.notify_all()
        self._waker.wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_S)

    def _finish(self, state: RunState) -> None:
        """Ends every process; what they have handed over and written stays with this object."""
        atexit.unregister(self.stop)
        self._state, self._ended_s = state, time.monotonic()
        try:
            self._logs = {rank: _text(self.folder.log(rank)) for rank in range(self.spec.num_procs)}
            self.results = {rank: _read(fd) for rank, fd in self.books.results.items()} if state == "done" else {}
            self._crew.stop()
        finally:
            self._drop_results()
            self.books.close()
            self._meeting.close()
            self._telling.ended(state, self._error, self.books.ranks)
            if self._provided is not None:
                self._provisions.remove()
            sweep(self.folder.path.parent)  # ranks were ended in the midst of runs of their own

    def _drop_results(self) -> None:
        for fd in self.books.results.values():
            os.close(fd)
        self.books.results.clear()


def _nothing(rank: int, message: Message) -> None:
    message.close()


def _named(error: GnnkitError, rank: int) -> GnnkitError:
    """An error of gnnkit's own that says which rank had it."""
    if error.message.startswith(f"rank {rank}"):
        return error
    named = type(error)(f"rank {rank}: {error.message}", error.hint)
    named.__cause__ = error.__cause__
    return named


class _MeetingPoint:
    """Where ranks will meet: a port that is open before any of them looks for it, and that nobody else can take.

    One rank meets nobody. Then nobody listens, and the port is one that was free: for a function that makes a process group of its own.
    """

    def __init__(self, num_procs: int) -> None:
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listener.getsockname()[1]
        self.fds = (self._listener.fileno(),) if num_procs > 1 else ()
        if not self.fds:
            self._listener.close()

    def close(self) -> None:
        """Gives the port back."""
        self._listener.close()


def _read(fd: int) -> bytes:
    with open(os.dup(fd), "rb") as file:
        file.seek(0)
        return file.read()


def _text(path: os.PathLike[str]) -> str:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read().decode(errors="replace")
    return ""

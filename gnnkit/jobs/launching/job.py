"""The ranks of one launch: their options, state and progress; started, listened to, started again, ended."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gnnkit.backends import backend_from_json
from gnnkit.backends.graph_store import GraphStore
from gnnkit.backends.server_pool import OwnServers
from gnnkit.backends.stored_graph import TemporaryStore, temporary_store
from gnnkit.bounds import MOST_THREADS, check_seconds, keep_whole_number, whole_number
from gnnkit.cluster.serving.spec import UNIX_PREFIX, token_for
from gnnkit.errors import GnnkitError, PlanError, StoreError, TrainingFailed, WorkerDied, WorkerStopped, on_error
from gnnkit.events import Event, EventKind, EventSink
from gnnkit.files import open_regular
from gnnkit.host import available_cpus
from gnnkit.jobs.environment import VISIBLE, JobPlace, check_device
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.process_status import ProcessStatus, look_at
from gnnkit.runtime.remote import error_from_json, fresh
from gnnkit.runtime.runs import new_run, sweep
from gnnkit.runtime.supervisor import ChildProcess, Exit, Supervisor, SupervisorOptions, supervise
from gnnkit.runtime.wire import Message, Waker, from_memory, in_memory

if TYPE_CHECKING:
    from gnnkit.graph_loader import GraphLoader

RunState = Literal["starting", "running", "restarting", "done", "failed", "stopped"]
ENDED = ("done", "failed", "stopped")


@dataclass(frozen=True)
class RankStatus:
    """A rank, as it was last heard of.

    Attributes:
        rank: Its number.
        pid: Its process; 0 where there is none.
        state: "starting", "training", "done", "failed", or "ended" where it was ended with the others.
        device: Where it trains; "" before it does.
        epoch: The epoch it is in, -1 before the first.
        step: Batches of that epoch that it has had.
        num_steps: Batches of its epochs; 0 where that is not known yet.
        numbers: What it last gave to ``ctx.log``.
    """

    rank: int
    pid: int = 0
    state: str = "starting"
    device: str = ""
    epoch: int = -1
    step: int = 0
    num_steps: int = 0
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RunStatus:
    """A launch at one moment.

    Attributes:
        state: "starting", "running", "restarting", "done", "failed" or "stopped".
        ranks: Its ranks.
        restarts: How often all of them were started again.
        max_restarts: How often they may be.
        error: What it failed of, or what the last restart was for; None where nothing has failed.
        elapsed_s: Seconds from ``launch`` to now, or to the end.
        run: Its name in ``gnnkit ps``.
        directory: ``ctx.directory``.
        processes: What the system says of the ranks' processes.
        waits_for: What the engine has no room for yet; "" where ranks wait for nothing.
    """

    state: RunState
    ranks: tuple[RankStatus, ...]
    restarts: int
    max_restarts: int
    error: str | None
    elapsed_s: float
    run: str
    directory: str
    processes: tuple[ProcessStatus, ...] = ()
    waits_for: str = ""


class RankState:
    """The ranks of one launch.

    Args:
        count: How many.
    """

    def __init__(self, count: int) -> None:
        self.ranks = [RankStatus(rank) for rank in range(count)]
        self.results: dict[int, bytes] = {}
        self.failures: list[tuple[float, GnnkitError]] = []

    def begin(self, pids: Mapping[int, int]) -> None:
        """All ranks have been started, or started again."""
        self.ranks = [RankStatus(rank, pids.get(rank, 0)) for rank in range(len(self.ranks))]
        self.failures.clear()

    def change(self, rank: int, **facts: Any) -> None:
        """Notes facts about a rank."""
        self.ranks[rank] = replace(self.ranks[rank], **facts)

    def fail(self, rank: int | None, at: float, error: GnnkitError) -> None:
        """Notes that a rank has failed, or under None what starts ranks, and when."""
        if rank is not None:
            self.change(rank, state="failed")
        self.failures.append((at, error))

    @property
    def first_failure(self) -> GnnkitError | None:
        """The earliest failure: errors of other ranks about the one that is gone come after it."""
        return min(self.failures, key=lambda failure: failure[0])[1] if self.failures else None

    @property
    def are_done(self) -> bool:
        """Whether every rank has handed over what its function returned."""
        return len(self.results) == len(self.ranks)

    @property
    def are_training(self) -> bool:
        """Whether every rank is in its function, or through with it."""
        return all(rank.state in ("training", "done") for rank in self.ranks)

    def close(self) -> None:
        """Marks the ranks that were still there as ended."""
        self.ranks = [replace(rank, pid=0, state="ended" if rank.state in ("starting", "training") else rank.state) for rank in self.ranks]


@dataclass(frozen=True)
class LaunchSpec:
    """The function of the ranks, their number, and how they are started.

    Attributes:
        title: The train function's name.
        code: The train function, packed; it is in no record.
        num_procs: How many ranks.
        device: "auto", "cpu", "cuda" or "cuda:<index>".
        directory: The job's folder; None is one that goes with the run.
        max_restarts: How often all ranks may be started again.
        threads: Threads that torch and NumPy use in each rank.
        start_timeout_s: Seconds that ranks have from their start to the call of their function.
        log_dir: Folder for logs; None: the usual one.

    Raises:
        PlanError: A value is unusable.
    """

    title: str
    code: bytes
    num_procs: int
    device: str = "auto"
    directory: str | None = None
    max_restarts: int = 0
    threads: int = 1
    start_timeout_s: float = 120.0
    log_dir: str | None = None

    def __post_init__(self) -> None:
        keep_whole_number(self, "max_restarts")
        object.__setattr__(self, "threads", whole_number("threads_per_proc", self.threads, 1, MOST_THREADS))
        check_seconds("start_timeout_s", self.start_timeout_s, 0.1)
        check_device(self.device)

    def setup(self) -> dict[str, Any]:
        """Returns the settings that every rank receives, as JSON values."""
        # WorkerPool are shown no GPU, and ranks are started as they are; libraries that look for an interface are to stay on this host.
        visible = "" if self.device == "cpu" else os.environ.get(VISIBLE)
        variables = {VISIBLE: visible, "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
        return {"device": self.device, "variables": variables, "timeout_s": self.start_timeout_s}


def fair_threads(num_procs: int) -> int:
    """Threads of each rank: this process's processors, divided by the ranks, at least 1."""
    return max(1, available_cpus() // num_procs)


_STAGE = "train"
_MOST_NUMBERS = 4


class LaunchReporter:
    """Turns what is known of ranks into events. Called by one thread at a time, which is never the one that runs cells.

    Args:
        events: Where they go.
        spec: What was launched.
    """

    def __init__(self, events: EventSink, spec: LaunchSpec) -> None:
        self.events, self._spec = events, spec
        self._shown: dict[int, RankStatus] = {}
        self.waits_for = ""
        self._starts()

    def show(self, ranks: Sequence[RankStatus]) -> None:
        """Moves the bars of those who have got on."""
        for rank in ranks:
            before = self._shown.get(rank.rank)
            if rank == before or rank.state not in ("training", "done"):
                continue
            if before is None:
                self._rank("start", rank, summary(rank), "batches")
            self._rank("progress", rank, summary(rank), "batches")
            self._shown[rank.rank] = rank

    def started(self) -> None:
        """All ranks are in their function."""
        count = self._spec.num_procs
        self.events(Event("end", "start", self._label, done=count, total=count))

    def wait_for(self, text: str) -> None:
        """Shows what the ranks' start waits for; "" is nothing any more."""
        if text != self.waits_for:
            self.waits_for = text
            if text:
                self.events(Event("message", _STAGE, text=f"{self._label}: waits for {text}"))

    def restarting(self, error: str, restarts: int) -> None:
        """A rank has failed, and all start again."""
        self._close("stopped")
        text = f"{error}; all ranks start again ({restarts} of {self._spec.max_restarts} times)"
        self.events(Event("message", _STAGE, text=text))
        self._starts()

    def ended(self, state: RunState, error: GnnkitError | None, ranks: Sequence[RankStatus]) -> None:
        """Nothing runs any more."""
        if state == "done":
            self.show(ranks)
        self.events(Event("end", "start", self._label) if state == "done" else Event("fail", "start", self._label, text="GeneratorExit"))
        self._close(state)
        if state == "failed" and error is not None:
            self.events(Event("message", _STAGE, text=str(error).splitlines()[0]))
        elif state == "stopped":
            self.events(Event("message", _STAGE, text=f"{self._spec.title} was stopped"))
        if (close := getattr(self.events, "close", None)) is not None:
            close()

    @property
    def _label(self) -> str:
        return f"{self._spec.title}, {self._spec.num_procs} rank{'s' if self._spec.num_procs > 1 else ''}"

    def _starts(self) -> None:
        self.events(Event("start", "start", self._label, total=self._spec.num_procs))

    def _close(self, state: str) -> None:
        for rank in self._shown.values():
            if state == "done":
                self._rank("end", rank, summary(rank))
            else:  # an abandoned stage is no failure of its own: the run's error is told once
                self._rank("fail", rank, "GeneratorExit")
        self._shown.clear()

    def _rank(self, kind: EventKind, rank: RankStatus, text: str, unit: str = "") -> None:
        self.events(Event(kind, _STAGE, f"rank {rank.rank}", done=rank.step, total=rank.num_steps or None, unit=unit, text=text))


def summary(rank: RankStatus) -> str:
    """Describes the progress of a rank in a few words: "epoch 3, loss 0.312"."""
    epoch = [f"epoch {rank.epoch}"] if rank.epoch >= 0 else []
    return ", ".join([*epoch, *numbers_in_words(rank.numbers)])


def numbers_in_words(numbers: Mapping[str, float]) -> list[str]:
    """The first of the numbers, with their names."""
    return [f"{name} {value:.4g}" for name, value in list(numbers.items())[:_MOST_NUMBERS]]


_PLAN = "plan.json"


class PlanInputs:
    """The plan and the graph of ranks: here those of a plan file whose store all hosts find at the same place.

    Args:
        path: The plan's file.

    Attributes:
        title: The graph's name, or its store.
        is_of_this_host: Whether no other host could have the graph.

    Raises:
        PlanError: It is no plan of a stored graph.
    """

    def __init__(self, path: Path) -> None:
        store = LoaderPlan.load(path).store
        if store is None:
            raise PlanError("the plan's graph was only in memory", "build a store with gnnkit.partition() and a loader with from_store()")
        self._path, self.title, self.is_of_this_host = path, store.path, False

    def make(self, folder: Path, events: EventSink) -> dict[str, Any]:
        """Makes what ranks need, and returns what they are told as JSON values: the plan file's path, the store's, and servers' tokens."""
        return {"path": str(self._path), "store": self.title, "tokens": {}}

    def remove(self) -> None:
        """Removes what ``make`` has made."""


class LaunchInputs(PlanInputs):
    """Those of a loader, for the ranks of one launch.

    Args:
        loader: The loader whose batches they are to have.
        num_procs: How many ranks there are.

    Raises:
        PlanError: Its graph is spread over several hosts.
    """

    def __init__(self, loader: GraphLoader, num_procs: int) -> None:
        plan, self._graph = loader.plan, loader.pipeline.graph
        if plan.placement is not None and plan.placement.num_hosts > 1:
            raise PlanError(
                f"the loader's graph is spread over {plan.placement.num_hosts} hosts, and launch() starts ranks on this one",
                "loader.export(...) writes the job for several hosts",
            )
        backend = backend_from_json(plan.backend)
        self.title = self._graph.name if plan.store is None else plan.store.path
        self.is_of_this_host = plan.store is None or (isinstance(backend, GraphStore) and backend.address is None)
        # Loaders of ranks belong to their process group, whatever this one belonged to.
        self._plan = replace(plan, batching=replace(plan.batching, rank=0, world_size=num_procs), placement=None)
        self._store: TemporaryStore | None = None
        self._servers: OwnServers | None = None

    def make(self, folder: Path, events: EventSink) -> dict[str, Any]:
        """Makes it; may take as long as writing a graph takes.

        A graph that is only in memory is stored for the run's lifetime. Servers that a loader would start for itself are started once for
        all ranks, apart from those of the notebook's own loaders, which go when these are closed or idle.

        Args:
            folder: Where the plan file goes.
            events: Receives the stages of a build.

        Returns:
            What ranks are told, as JSON values.

        Raises:
            PlanError: The system's limits do not allow it.
            MemoryLimitError: There is no memory for it.
            StoreError: The graph cannot be written.
        """
        plan, backend = self._plan, backend_from_json(self._plan.backend)
        if plan.store is None:
            self._store = temporary_store(self._graph, events)
            plan = replace(plan, store=self._store.reference)
        tokens = {}
        if isinstance(backend, GraphStore) and backend.address is None:
            self._servers = OwnServers(replace(backend, idle_timeout_s=None), plan, self._graph, events)
            backend = replace(backend, address=f"{UNIX_PREFIX}{self._servers.fleet.folder}")
        elif isinstance(backend, GraphStore):
            token = token_for(str(backend.address))
            tokens = {} if token is None else {str(backend.address): token}
        assert plan.store is not None
        replace(plan, backend=backend.to_json()).save(folder / _PLAN)
        return {"path": str(folder / _PLAN), "store": plan.store.path, "tokens": tokens}

    def remove(self) -> None:
        """Ends what was started, and removes what was written, unless another object uses it."""
        servers, self._servers, self._store = self._servers, None, None
        if servers is not None:
            servers.stop()


def extra_of(loader: GraphLoader) -> Any:
    """Returns the attributes that batches of a graph in memory carry beside those of a store; None for a graph that is stored."""
    graph = loader.pipeline.graph
    return None if graph.store is not None else (dict(graph.extra), dict(graph.type_extra), graph.name)


_MODULE = "gnnkit.jobs.launching"
_ADVICE = "launch(..., max_restarts=...) starts all ranks again, and ctx.restore(...) goes on from their last checkpoint"
# The ranks cannot be reached from other hosts.
LOOPBACK = "127.0.0.1"
# That a thread may take to end.
_JOIN_S = 10.0
# What a rank has to end by itself: it has nothing to tidy up.
_STOP_TIMEOUT_S = 0.2


class Job:
    """Starts the ranks, and returns at once. They run until they are done, ``stop``, or the end of this process, however that comes.

    Args:
        spec: What they are to do.
        inputs: The graph that they sample.
        events: Shows how far they are.

    Attributes:
        spec: What they are to do.
        changed: Held for every look at what follows; notified of every change.
        states: The states of the ranks, and what they have returned.

    Raises:
        PlanError: There is no folder for logs.
        OSError: The system does not start processes.
    """

    def __init__(self, spec: LaunchSpec, inputs: PlanInputs, events: EventSink) -> None:
        self.spec, self._inputs = spec, inputs
        self.changed = threading.Condition(threading.RLock())
        self.states = RankState(spec.num_procs)
        self._state: RunState = "starting"
        self._error: GnnkitError | None = None
        self._last_error: str | None = None
        self._restarts, self._began, self._ended_s = 0, time.monotonic(), 0.0
        self._logs: dict[int, str] = {}
        self._has_begun = False
        self._owner = os.getpid()
        self._provided: dict[str, object] | None = None
        self.folder = new_run(spec.log_dir, {"store": inputs.title, "job": spec.title, "directory": spec.directory}, "rank")
        self.directory = spec.directory or str(self.folder.path / "job")
        self._meeting: socket.socket | None = None
        self._code_fd = in_memory(spec.code)
        weakref.finalize(self, os.close, self._code_fd).atexit = False
        self._waker = Waker()
        self._reporter = LaunchReporter(events, spec)
        self._supervisor = Supervisor(self._options(), self.folder, self._set_up)
        self._thread = threading.Thread(target=self._run, name="gnnkit-launch", daemon=True)
        with on_error(self.stop):
            atexit.register(self.stop)
            self._begin()
            self._thread.start()

    def _options(self) -> SupervisorOptions:
        """Returns the options of the processes of this host: the ranks themselves, or what starts them elsewhere."""
        return SupervisorOptions(
            self.spec.num_procs,
            self.spec.threads,
            module=_MODULE,
            is_forked=False,  # a rank's libraries count threads while they are loaded
            title="rank {rank}",
            lane="rank {rank}",
            advice=_ADVICE,
            stop_timeout_s=_STOP_TIMEOUT_S,
        )

    def _begin(self) -> None:
        """Starts the processes."""
        # The port at which ranks will meet is open before any of them looks for it, so that no other program can take it. A single rank
        # meets no other: its port is one that was free, for a function that makes its own process group.
        self._meeting = socket.create_server((LOOPBACK, 0))
        self._port: int = self._meeting.getsockname()[1]
        if self.spec.num_procs == 1:
            self._meeting.close()
        self._supervisor.start_missing()
        self.states.begin({rank: child.pid for rank, child in self._supervisor.alive.items()})

    # What it is doing ---------------------------------------------------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        """Whether nothing runs any more."""
        return self._state in ENDED

    @property
    def error(self) -> GnnkitError | None:
        """The error that it has failed with; None where it has not failed."""
        return None if self._error is None else fresh(self._error)

    def status(self) -> RunStatus:
        """Returns the state of the run and its ranks."""
        with self.changed:
            spec, alive = self.spec, self._supervisor.alive
            lane = self._supervisor.options.lane
            seen = tuple(look_at(lane.format(rank=rank), child.pid, child.log) for rank, child in alive.items())
            until = self._ended_s or time.monotonic()
            error = str(self._error).splitlines()[0] if self._error is not None else self._last_error
            restarts, ranks = (self._restarts, spec.max_restarts), tuple(self.states.ranks)
            where, waits_for = (self.folder.path.name, self.directory), "" if self.has_ended else self._reporter.waits_for
            return RunStatus(self._state, ranks, *restarts, error, until - self._began, *where, seen, waits_for)

    def log(self, rank: int) -> str:
        """Returns a rank's output so far; only the end where it is very long."""
        with self.changed:
            return self._logs[rank] if rank in self._logs else self._output(rank)

    def _output(self, rank: int) -> str:
        with contextlib.suppress(OSError), open(open_regular(Path(self.folder.log(rank))), "rb") as file:
            return file.read().decode(errors="replace")
        return ""

    # The thread ---------------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            provided = self._inputs.make(self.folder.path, self._reporter.events)
        except Exception as error:
            self._inputs.remove()
            self._fail(error if isinstance(error, GnnkitError) else StoreError(f"the graph cannot be made ready: {error}"))
            return
        with self.changed:
            if self.has_ended:  # meanwhile: what was just made is removed here or never
                self._inputs.remove()
                return
            self._provided = provided
            for rank, child in self._supervisor.alive.items():
                child.since = time.monotonic()  # however long the graph has taken
                self._supervisor.send(rank, "plan", **provided)
        self._watch()

    def _watch(self) -> None:
        def give_up(text: str) -> None:
            self._fail(WorkerDied(text, "launch them again"))

        supervise(
            self._supervisor, self._waker, self.changed, "the ranks", has_ended=lambda: self.has_ended, look=self._pump, give_up=give_up
        )

    def _pump(self) -> None:
        if self._state == "restarting":
            self._listen(lambda rank, message: message.close())
            if not self._supervisor.alive:
                self._begin_again()
            return
        self._listen(self._take)
        if (overdue := self._supervisor.overdue(self.spec.start_timeout_s)) is not None:
            self.states.fail(overdue[0], time.monotonic(), overdue[1])
        if self.states.failures:
            # Those that have begun to end may be the reason, and those that complain first need not be.
            self._supervisor.settle()
            self._listen(self._take)
            self._restart_or_fail()
        elif self.states.are_done:
            self._finish("done")
        elif self._state == "starting" and self.states.are_training:
            self._state = "running"
            self._reporter.started()
        if self._state in ("starting", "running"):
            self._reporter.show(self.states.ranks)

    def _listen(self, take: Callable[[int, Message], None]) -> None:
        for rank, what in self._supervisor.listen():
            if isinstance(what, Exit):
                self.states.fail(rank, self._time_of(rank, what), what.error)
            else:
                take(rank, what)

    def _time_of(self, rank: int, death: Exit) -> float:
        """When a rank has died: killed from outside, right after it was last seen, before other ranks could complain about it."""
        killed = death.returncode is not None and death.returncode < 0 and death.returncode != -signal.SIGABRT
        seen_s = self._supervisor.signs(rank).seen_s
        return time.monotonic() - (seen_s if killed and seen_s < _JOIN_S else 0.0)

    def _take(self, rank: int, message: Message) -> None:
        body = message.body
        if message.kind == "ready":
            self._has_begun = True
            self.states.change(rank, state="training", device=body["device"])
        elif message.kind == "steps":
            self.states.change(rank, **body)
        elif message.kind == "raised":
            self.states.fail(rank, body["at"], named(error_from_json(body["error"], f"rank {rank}", TrainingFailed), rank))
        elif message.kind == "result":
            self.states.change(rank, state="done")
            self.states.results[rank] = from_memory(message.fds.pop())
        message.close()

    # What becomes of it -------------------------------------------------------------------------------------------------------

    def _set_up(self, child: ChildProcess) -> None:
        """Tells a rank that has just been started what it is, and, where that is known, what it samples."""
        spec, rank = self.spec, child.rank
        assert self._meeting is not None, "ranks start once they have a place to meet"
        place = JobPlace(rank, rank, 0, spec.num_procs, spec.num_procs, 1, self._restarts, LOOPBACK, self._port)
        body = spec.setup() | {"place": asdict(place), "directory": self.directory}
        fds = (self._code_fd, *([self._meeting.fileno()] if rank == 0 and spec.num_procs > 1 else ()))
        child.wire.send("setup", fds, **body)
        if self._provided is not None:
            child.wire.send("plan", **self._provided)

    def _restart_or_fail(self) -> None:
        """A rank has failed: all start again where that is allowed and of use, or the run has failed."""
        error = self.states.first_failure
        assert error is not None
        # Nothing that was wrong before any function was called, or that the user has to change, gets better by another try.
        is_worth_it = self._has_begun and not isinstance(error, (WorkerStopped, PlanError))
        if not is_worth_it or self._restarts >= self.spec.max_restarts:
            self._fail(error)
            return
        self._restarts += 1
        self._last_error = str(error).splitlines()[0]
        self._state = "restarting"
        self._reporter.restarting(self._last_error, self._restarts)
        self._supervisor.restart()
        if not self._supervisor.alive:
            self._begin_again()

    def _begin_again(self) -> None:
        if self._meeting is not None:
            self._meeting.close()
        self.states.results.clear()
        self._state = "starting"
        self._begin()

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
            self._logs = {rank: self._output(rank) for rank in range(self.spec.num_procs)}
            self._supervisor.stop()
        finally:
            if state != "done":
                self.states.results.clear()
            self.states.close()
            if self._meeting is not None:
                self._meeting.close()
            self._reporter.ended(state, self._error, self.states.ranks)
            if self._provided is not None:
                self._inputs.remove()
            sweep(self.folder.path.parent)  # ranks were ended in the midst of runs of their own


def named(error: GnnkitError, rank: int) -> GnnkitError:
    """An error of gnnkit's own that says which rank had it.

    Args:
        error: The error.
        rank: The rank.
    """
    if error.message.startswith(f"rank {rank}"):
        return error
    named = type(error)(f"rank {rank}: {error.message}", error.hint)
    named.__cause__ = error.__cause__
    return named

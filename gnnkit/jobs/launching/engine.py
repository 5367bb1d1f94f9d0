"""``gnnkit.launch``, the engines that start ranks, and the handle of the run that it returns."""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gnnkit.arguments import check_takes, checks_calls
from gnnkit.bounds import MOST_THREADS, is_whole, shown, whole_number
from gnnkit.errors import GnnkitError, PlanError, WorkerStopped, interruptible
from gnnkit.events import EventSink
from gnnkit.graph_loader import GraphLoader
from gnnkit.jobs.environment import check_present
from gnnkit.jobs.launching.card import launch_card
from gnnkit.jobs.launching.job import ENDED, Job, LaunchInputs, LaunchSpec, RunState, RunStatus, extra_of, fair_threads
from gnnkit.jobs.launching.packing import pack_code, unpack_result
from gnnkit.jobs.ownership import made_directory
from gnnkit.plan.config import check_config
from gnnkit.plugins import find_plugin
from gnnkit.rendering import Shown
from gnnkit.runtime.runs import find_runs
from gnnkit.ui.cards import Card
from gnnkit.ui.progress import make_sink
from gnnkit.waiting import Deadline

if TYPE_CHECKING:
    from gnnkit.jobs.context import TrainContext


class Engine(ABC):
    """A way to start ranks: ``launch(engine=)`` takes an object of it, or the name of an entry point of ``gnnkit.launchers``."""

    @property
    def num_procs(self) -> int | None:
        """The number of ranks that it starts; None where ``launch`` says it."""
        return None

    def directory(self, given: str | Path | None) -> str | None:
        """Returns the job's folder, made where it is not there, as ``start`` is to get it; None is one that goes with the run.

        Args:
            given: What ``launch`` was given.

        Raises:
            PlanError: It cannot be made.
        """
        return None if given is None else made_directory(given)

    @abstractmethod
    def start(self, spec: LaunchSpec, inputs: LaunchInputs, events: EventSink) -> Job:
        """Starts ranks, and returns at once.

        Args:
            spec: The function, packed, the number of ranks, and how they are to run.
            inputs: Their plan and graph: ``inputs.make(folder, events)`` writes them, ``inputs.remove()`` removes them.
            events: Shows how far they are.

        Raises:
            PlanError: A value is unusable here.
        """


class LocalEngine(Engine):
    """The ranks as processes of this machine, children of this process: what ``launch`` does by itself."""

    def start(self, spec: LaunchSpec, inputs: LaunchInputs, events: EventSink) -> Job:
        """Starts a process for each rank."""
        check_present(spec.device)
        return Job(spec, inputs, events)


# Between two looks: whatever changes wakes at once.
_SLICE_S = 0.2
_NUM_PROCS = 2
# Runs whose end nothing has looked at: one that has failed decides the exit status of this process.
_unseen: set[Job] = set()
os.register_at_fork(after_in_child=_unseen.clear)


class _ExitStatus:
    """Ends this process with status 1 when it goes, which is after everything else in it has been tidied up."""

    def __del__(self, end: Callable[[int], Any] = os._exit) -> None:
        end(1)


@atexit.register
def _tell_failures() -> None:
    """A script that only waits for its run ends as a command that has failed, where the run has failed."""
    for job in _unseen:
        error = job.error if job.has_ended else None
        if error is not None and not isinstance(error, WorkerStopped):
            sys.stderr.write(f"error: the run of {job.spec.title} has failed: {error.message.splitlines()[0]}; run.result() raises it\n")
            sys.__dict__["_gnnkit_exit_status"] = _ExitStatus()  # handlers of the end cannot change the status; sys is the last to go


@checks_calls()
class RunHandle(Shown):
    """A run of ranks; made by ``gnnkit.launch``. All methods may be called from any thread.

    Nothing depends on it: the run goes on when it is dropped, until it is done or this process ends.

    Args:
        job: The ranks.

    Example:
        >>> import gnnkit
        >>> store = gnnkit.partition(gnnkit.datasets.products_like(0.0005), 2, out="store", overwrite=True)
        >>> loader = gnnkit.GraphLoader.from_store(store.path, num_neighbors=[5], progress=False)
        >>> def train(loader, ctx):
        ...     return sum(batch.batch_size for batch in loader), ctx.world_size
        >>> with gnnkit.launch(train, loader, 1, progress=False) as run:
        ...     print(run.results())
        [(98, 1)]
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._values: dict[int, Any] = {}
        _unseen.add(job)

    @property
    def status(self) -> RunStatus:
        """The state of the run and of each rank."""
        status = self._job.status()
        if status.state in ENDED:
            _unseen.discard(self._job)
        return status

    @property
    def state(self) -> RunState:
        """Says "starting", "running", "restarting", "done", "failed" or "stopped"."""
        return self.status.state

    @property
    def error(self) -> GnnkitError | None:
        """The error that it has failed with; None where it has not failed."""
        with self._job.changed:
            if self._job.has_ended:
                _unseen.discard(self._job)
            return self._job.error

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until the run has ended, well or not. An interrupt ends the wait, and the run goes on.

        A script whose run has failed, and that asks for neither its result nor its state or error, ends with exit status 1.

        Args:
            timeout_s: Most seconds to wait; None waits for as long as it runs.

        Returns:
            Whether it has ended.
        """
        deadline = Deadline(timeout_s)
        job = self._job
        with interruptible(f"the wait for the run {job.status().run}"), job.changed:
            while not job.has_ended:
                if deadline.has_passed:
                    return False
                job.changed.wait(deadline.within(_SLICE_S))
            if job.error is None:
                _unseen.discard(job)
        return True

    def result(self) -> Any:
        """Waits for the function's result on rank 0 and returns it. An interrupt ends the wait, and the run goes on.

        Raises:
            TrainingFailed: The function has raised; the rank's traceback is ``__cause__``.
            WorkerDied: A rank has died.
            WorkerStopped: The run was stopped.
            StartTimeout: A rank did not come to its function in time, or could not be started.
            GnnkitError: Another error of gnnkit, the first that a rank has raised.
        """
        return self._value(0)

    def results(self) -> list[Any]:
        """Waits for the function's results on all ranks and returns them by rank; see ``result``."""
        return [self._value(rank) for rank in range(self._job.spec.num_procs)]

    def logs(self, rank: int) -> str:
        """Returns a rank's output: that of its function, and its error.

        Args:
            rank: The rank.

        Raises:
            PlanError: There is no such rank.
        """
        count = self._job.spec.num_procs
        if not is_whole(rank, 0, count - 1):
            raise PlanError(f"there is no rank {shown(rank)}", f"ranks are 0 to {count - 1}")
        return self._job.log(rank)

    def stop(self) -> None:
        """Ends all ranks, and what they have started; returns once they are gone. Safe to call twice."""
        self._job.stop()

    def __enter__(self) -> RunHandle:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()

    def _value(self, rank: int) -> Any:
        self.wait()
        job = self._job
        with job.changed:
            error, packed = self.error, job.states.results.get(rank)
        if error is not None:
            raise error
        if rank not in self._values:  # unpacking may take long: it holds no lock
            assert packed is not None, "a run that has ended well has every rank's result"
            self._values.setdefault(rank, unpack_result(packed))
        return self._values[rank]

    def _card(self) -> Card:
        trace = None if self.error is None else "".join(traceback.format_exception(self.error))
        return launch_card(self._job.spec.title, self.status, trace)


@checks_calls()
def launch(  # noqa: PLR0913 - every one is a word of the user's
    train_fn: Callable[[GraphLoader, TrainContext], Any],
    loader: GraphLoader,
    num_procs: int | None = None,
    *,
    engine: Engine | str | None = None,
    device: Any = None,
    directory: str | Path | None = None,
    max_restarts: int = 0,
    threads_per_proc: int | None = None,
    start_timeout_s: float = 120.0,
    log_dir: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    progress: bool | str = "auto",
) -> RunHandle:
    """Runs ``train_fn(loader, ctx)`` in several ranks on this machine, and returns at once. ``docs/launching.md`` describes it.

    Each rank is a fresh process with a loader of its own, which gives the rank's share of the same batches as the loader here, sampled as
    its plan says; the ranks are in one process group. They run until they are done, ``stop()``, or the end of this process, however that
    comes.

    Args:
        train_fn: The function; it and what it uses may be defined in a notebook's cell.
        loader: Whose batches the ranks have. It stays as it is, and may go on being used.
        num_procs: Ranks; None is as many as the engine says, or 2.
        engine: What starts the ranks: an engine, or the name of one that an installed package adds (``docs/launchers.md``). None starts
            them on this machine.
        device: Where ranks compute: "cpu", "cuda" (a GPU for each, or all on the one there is), "cuda:<index>" (all on this one); None is
            "cuda" where there are GPUs.
        directory: ``ctx.directory``, for checkpoints; None is one that is removed when the run has ended well.
        max_restarts: How often, in all, a rank that dies or raises has all ranks started again; ``ctx.restore(...)`` then goes on.
        threads_per_proc: Threads of torch in each rank; None: the processors divided by the ranks.
        start_timeout_s: Seconds that a rank may take until its function is called.
        log_dir: Folder for logs; None: ``$GNNKIT_HOME``, the user's runtime or state folder, or the temporary one.
        config: ``ctx.config``, hyper-parameters for example: ``{"lr": 0.01}``.
        progress: How progress is shown; False shows nothing.

    Raises:
        PlanError: A value is unusable, the function cannot be sent to another process, or another launch runs in ``directory``.
        LoaderClosed: The loader is closed.
    """
    if not callable(train_fn):
        raise PlanError(f"train_fn must be a function of a loader and a context, got {train_fn!r}", "def train(loader, ctx): ...")
    check_takes(train_fn, 2, "with a loader and a context", "def train(loader, ctx): ...")
    if not isinstance(loader, GraphLoader):
        raise PlanError(f"loader must be a GraphLoader, got {type(loader).__name__}", "launch(train, loader, num_procs=2)")
    loader.pipeline.check_open()
    starter = LocalEngine() if engine is None else engine
    if not isinstance(starter, Engine):
        starter = find_plugin(starter, Engine, "engine")  # type: ignore[type-abstract]
    num_procs = _count(num_procs, starter)
    sink, code = make_sink(progress), pack_code(train_fn, loader.pipeline.transform, extra_of(loader), check_config(config or {}))
    inputs = LaunchInputs(loader, num_procs)
    folder = starter.directory(directory)
    if folder is not None:
        _check_unused(folder)
    spec = LaunchSpec(
        title=str(getattr(train_fn, "__name__", type(train_fn).__name__)),
        code=code,
        num_procs=num_procs,
        device="auto" if device is None else str(device),
        directory=folder,
        max_restarts=max_restarts,
        threads=fair_threads(num_procs) if threads_per_proc is None else threads_per_proc,
        start_timeout_s=start_timeout_s,
        log_dir=None if log_dir is None else str(log_dir),
    )
    return RunHandle(starter.start(spec, inputs, sink))


def _count(num_procs: int | None, engine: Engine) -> int:
    """Returns how many ranks there are to be.

    Raises:
        PlanError: It is no such number, or the engine says another.
    """
    said = engine.num_procs
    if num_procs is None:
        num_procs = _NUM_PROCS if said is None else said
    num_procs = whole_number("num_procs", num_procs, 1, MOST_THREADS)
    if said is not None and num_procs != said:
        raise PlanError(f"num_procs={num_procs}, and {engine!r} starts {said}", "say it once")
    return num_procs


def _check_unused(folder: str) -> None:
    """Refuses a folder that living ranks write their checkpoints to.

    Raises:
        PlanError: Another launch runs there.
    """
    for run in find_runs():
        if run.state == "running" and run.alive and run.folders[0][1].get("directory") == folder:
            raise PlanError(
                f"another launch, {run.id} of {run.program} (pid {run.owner.pid}), runs in {folder!r}",
                f"stop it: run.stop() or gnnkit stop {run.id}; or give another directory",
            )

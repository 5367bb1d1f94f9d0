"""Options tried out beside a loader, and the profile of an epoch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from gnnkit.backends import backend_from_json
from gnnkit.bounds import MOST_SECONDS, is_real
from gnnkit.errors import PlanError
from gnnkit.events import Event, ignore_events
from gnnkit.host import available_cpus, available_memory
from gnnkit.loader.advice.measuring import Advice, LoopMeasurement, advise, backend_options, in_words, last_records, measure
from gnnkit.plan import LoaderPlan
from gnnkit.rendering import Shown
from gnnkit.units import format_duration, format_rate

if TYPE_CHECKING:
    from gnnkit.loader.pipeline import Pipeline


# More sampling threads than this are more than one host's memory is fast; batches ahead cost their memory.
_MOST_THREADS = 16
_AHEAD = (0, 1, 2, 4, 8, 16)
_CONCURRENCY = (1, 2, 4)
# Slots of a ring that batches of the user's lie in.
_LEASED = 3

Point = Mapping[str, Any]


@dataclass(frozen=True)
class Axis:
    """An option with the values that are tried.

    Attributes:
        name: An option of the backend, or "prefetch".
        values: Its values, the cheapest first.
        kind: Whether it is about who samples, or about how many batches may be under way.
    """

    name: str
    values: tuple[Any, ...]
    kind: Literal["workers", "slots"]


@dataclass(frozen=True)
class Space:
    """All combinations of some options.

    Attributes:
        axes: The options, in the order in which they are tried.
        allowed: Whether a combination can be had.
    """

    axes: tuple[Axis, ...]
    allowed: Callable[[Point], bool] = lambda point: True

    def grid(self) -> list[dict[str, Any]]:
        """Every combination that can be had, the cheapest first."""
        names = [axis.name for axis in self.axes]
        points = (dict(zip(names, values, strict=True)) for values in product(*(axis.values for axis in self.axes)))
        return sorted(filter(self.allowed, points), key=self.cost)

    def beside(self, point: Point, axis: Axis, *, up: bool) -> Iterator[dict[str, Any]]:
        """Combinations that differ from ``point`` in one option, the nearest first; of slots, one at a time is too little to tell."""
        at = axis.values.index(point[axis.name])
        values = axis.values[at + 1 :] if up else axis.values[:at][::-1]
        if axis.kind == "slots" and up and len(values) > 1:
            values = values[1::2]
        yield from filter(self.allowed, ({**point, axis.name: value} for value in values))

    def cost(self, point: Point) -> int:
        """Returns the cost of a combination, to compare it with others: the sum of its positions on all axes."""
        return sum(axis.values.index(point[axis.name]) for axis in self.axes)


def space_of(plan: LoaderPlan, *, workers: int, cpus: int, most_slots: int) -> tuple[Space, dict[str, Any]]:
    """Returns the options that may be tried for a loader, and those that it has now.

    Args:
        plan: Its plan.
        workers: Threads or processes that sample for it now.
        cpus: Processors that it may use.
        most_slots: Batches that may be under way, for the memory that they take.

    Raises:
        PlanError: The loader's backend has nothing to try.
    """
    backend = plan.backend
    kind, prefetch = backend["kind"], plan.runtime.prefetch
    if kind == "Glt":
        raise PlanError(
            "autotune() tries gnnkit's own workers, and Glt() samples with graphlearn-torch's", "use InProcess() or Colocated()"
        )
    if kind == "OnDevice":
        raise PlanError("autotune() tries numbers of workers, and OnDevice() has none to choose", "use InProcess() or Colocated()")
    if plan.batching.world_size > 1:
        raise PlanError(
            f"autotune() tries one trainer's options, and this is one of {plan.batching.world_size}, who would wait for each other",
            "tune a loader with rank=0, world_size=1, and give all ranks its options",
        )
    if kind == "InProcess":
        start = {"num_threads": workers, "prefetch": prefetch}
    else:
        start = {**_processes(backend, workers), **_ring_options(backend), "prefetch": prefetch}
    return Space(tuple(_axis(name, value, cpus) for name, value in start.items()), _limits(backend, cpus, most_slots, start)), start


def _processes(backend: Mapping[str, Any], workers: int) -> dict[str, Any]:
    """Returns the options of the sampling processes; none where the servers were started elsewhere."""
    threads = {"threads_per_worker": backend["threads_per_worker"]}
    if backend["kind"] == "Colocated":
        return {"num_workers": workers, **threads}
    return {} if backend["address"] is not None else {"workers_per_server": backend["workers_per_server"], **threads}


def _ring_options(backend: Mapping[str, Any]) -> dict[str, Any]:
    size = {} if backend["channel_size"] is None else {"channel_size": backend["channel_size"]}
    return {"worker_concurrency": backend["worker_concurrency"], **size}


def _axis(name: str, now: Any, cpus: int) -> Axis:
    """The values of an option: the usual ones, and what it is now."""
    if name == "channel_size":
        return Axis(name, (now, None), "slots")
    if name in ("prefetch", "worker_concurrency"):
        return Axis(name, tuple(sorted({now, *(_AHEAD if name == "prefetch" else _CONCURRENCY)})), "slots")
    counts = {1, 2, 4, 8, 16, cpus - 1, cpus, cpus + 1}
    return Axis(name, tuple(sorted({now, *(count for count in counts if 1 <= count <= min(_MOST_THREADS, 2 * cpus))})), "workers")


def _limits(backend: Mapping[str, Any], cpus: int, most_slots: int, start: Point) -> Callable[[Point], bool]:
    """Keeps to about as many threads as there are processors, and to the memory for batches; what there is now is allowed."""
    servers = int(backend.get("num_servers", 1))

    def allowed(point: Point) -> bool:
        processes = point.get("num_workers", point.get("workers_per_server", 1) * servers)
        each = point.get("threads_per_worker", 1)
        threads = point.get("num_threads", processes * each)
        slots = threads if "num_threads" in point else processes * max(each, point["worker_concurrency"]) + _LEASED
        fits = threads <= min(_MOST_THREADS, max(2 * cpus, servers)) and slots + point["prefetch"] <= most_slots
        return fits or all(point[name] == value for name, value in start.items())

    return allowed


# Two speeds that differ by less than this part are as good as each other: the cheaper one wins.
AS_GOOD = 0.05
# Options that came within this part of the best are tried once more, because single trials err.
_CLOSE = 0.1
# What more or fewer workers, or more slots, do not help against.
_OF_THE_LOOP = ("consumer", "collate", "transform", "transfer")


@dataclass(frozen=True)
class SearchTrial:
    """The result of some options.

    Attributes:
        options: Options of the backend, and ``prefetch``.
        seeds: Seeds that were handed out.
        seconds: In which time.
        bottleneck: See ``Advice``.
        is_full: Whether it had as many sampling threads as there are processors, or more.
    """

    options: Point
    seeds: float
    seconds: float
    bottleneck: str = "none"
    is_full: bool = False

    @property
    def seeds_per_s(self) -> float:
        """Speed."""
        return self.seeds / self.seconds if self.seconds else 0.0


class Search:
    """Tries options until nothing promises more, or there are enough trials.

    Args:
        space: What may be tried.
        run: Tries some options; None where there is no time left.
        most: The most trials, at least 1.

    Attributes:
        trials: All of them, in their order; the first one is of the options that were there before.
    """

    def __init__(self, space: Space, run: Callable[[Point], SearchTrial | None], most: int) -> None:
        self._space, self._run, self._most = space, run, most
        self.trials: list[SearchTrial] = []

    def go(self, start: Point) -> None:
        """Searches from ``start``."""
        self._try(start)
        while self._may_go_on and any([self._climb(axis) for axis in self._space.axes]):
            pass
        self._confirm()

    @property
    def best(self) -> Point:
        """The options to use: the cheapest of those that are about as good as the best."""
        fastest = max(map(self.speed, self._points()))
        good = [point for point in self._points() if self.speed(point) >= fastest * (1 - AS_GOOD)]
        return min(good, key=self._space.cost)

    def speed(self, point: Point) -> float:
        """Seeds per second in all trials of some options; 0 where there is none."""
        trials = [trial for trial in self.trials if trial.options == point]
        seconds = sum(trial.seconds for trial in trials)
        return sum(trial.seeds for trial in trials) / seconds if seconds else 0.0

    @property
    def _may_go_on(self) -> bool:
        return len(self.trials) < self._most

    def _points(self) -> list[Point]:
        """Returns the combinations that were tried, each once, in the order of the first trials."""
        found: list[Point] = []
        for trial in self.trials:
            if trial.options not in found:
                found.append(trial.options)
        return found

    def _top(self) -> Point:
        return max(self._points(), key=self.speed)

    def _try(self, point: Point) -> SearchTrial | None:
        trial = self._run(point) if self._may_go_on else None
        if trial is None:
            self._most = len(self.trials)
        else:
            self.trials.append(trial)
        return trial

    def _climb(self, axis: Axis) -> bool:
        """Goes along an option for as long as it gets faster; whether it did."""
        if not self.trials:
            return False
        before = self._top()
        for up in self._directions(axis, self._trial_of(before)):
            for point in self._space.beside(before, axis, up=up):
                fastest = self.speed(self._top())
                if point in self._points():
                    continue
                trial = self._try(point)
                if trial is None or trial.seeds_per_s <= fastest * (1 + AS_GOOD):
                    break
            if self._top() != before:
                return True
        return False

    def _trial_of(self, point: Point) -> SearchTrial:
        return next(trial for trial in reversed(self.trials) if trial.options == point)

    @staticmethod
    def _directions(axis: Axis, trial: SearchTrial) -> tuple[bool, ...]:
        """Returns the directions in which a better value may lie: up (True) or down. Fewer slots are never faster."""
        if trial.bottleneck in _OF_THE_LOOP:
            return ()
        if axis.kind == "slots":
            return (True,)
        if trial.bottleneck == "processors":
            return (False,) if trial.is_full else (True, False)
        return (True,)

    def _confirm(self) -> None:
        """Tries the best ones again, in turn with what there was before."""
        if not self.trials or len(self._points()) < 2:
            return
        fastest = self.speed(self._top())
        close = [point for point in self._points() if self.speed(point) >= fastest * (1 - _CLOSE)]
        close.sort(key=self.speed, reverse=True)
        first = self.trials[0].options
        for point in [*close, *([] if first in close else [first])]:
            if self._try(point) is None:
                return


# Batches that a speed is made of, at least.
_LEAST_BATCHES = 4

TrainStep = Callable[[Any], Any]


def check_seconds(seconds: Any) -> None:
    """Checks how long something is to be looked at.

    Raises:
        PlanError: It is no positive number of seconds.
    """
    if not is_real(seconds) or not 0 < seconds <= MOST_SECONDS:
        raise PlanError(f"seconds must be a positive number, got {seconds!r}")


def beside(loader: Pipeline, options: Point) -> Pipeline:
    """A loader of like batches with other options, which reports nothing to the reader.

    Args:
        loader: The loader.
        options: Options of its backend, and ``prefetch``.
    """
    own = backend_options(loader.plan.backend, options)
    rest = {name: value for name, value in options.items() if name not in own}
    backend = {name: value for name, value in {**loader.plan.backend, **own}.items() if name != "token"}
    # Of another seed: a loader of the same plan would take this one's place in its processes, as a cell that is run again does.
    return loader.with_backend(backend_from_json(backend), {"seed": loader.plan.batching.seed ^ 1, **rest}, ignore_events)


def batches_for(loader: Pipeline, seconds: float, train_step: TrainStep | None, warm_up: int = 0) -> Iterator[float]:
    """Goes through the batches of epoch after epoch, for some time and at least so many that there is something to tell.

    Args:
        loader: The loader.
        seconds: How long.
        train_step: Called with each batch.
        warm_up: Batches that come before that time begins.

    Yields:
        ``time.monotonic()`` after the last batch of the warm-up, and after each one that counts.

    Raises:
        PlanError: An epoch has no batches.
    """
    if not len(loader):
        raise PlanError("there is nothing to measure: an epoch of this loader has no batches", "see len(loader) and input_nodes")
    began_s, count = time.monotonic(), -warm_up
    if not warm_up:
        yield began_s
    while True:
        for batch in loader:
            if train_step is not None:
                train_step(batch)
            del batch
            count, now_s = count + 1, time.monotonic()
            if count == 0:
                began_s = now_s
            if count >= 0:
                yield now_s
            if count >= _LEAST_BATCHES and now_s >= began_s + seconds:
                return


def run_trial(loader: Pipeline, options: Point, seconds: float, train_step: TrainStep | None, cpus: int) -> SearchTrial:
    """Measures how fast batches come with some options.

    Args:
        loader: The loader whose batches they are.
        options: See ``beside``.
        seconds: How long, the first batches of all threads not included.
        train_step: What the loop does with a batch; None: nothing.
        cpus: Processors that there are.
    """
    with beside(loader, options) as tried:
        times = list(batches_for(tried, seconds, train_step, warm_up=max(2, tried.status().slots)))
        span_s = times[-1] - times[0]
        # Not all may be known any more: their mean is.
        seeds = fmean(record.seeds for record in last_records(tried.records, span_s)) * (len(times) - 1)
        measured = measure(tried, span_s)
        return SearchTrial(dict(options), seeds, span_s, advise(measured).bottleneck, measured.threads >= cpus)


# Trials are a quarter of all combinations at most.
_PART_OF_GRID, _LEAST_TRIALS = 4, 3
# Batches under way may take this part of the memory that is free.
_MOST_OF_MEMORY = 0.25


@dataclass(frozen=True)
class TrialLimits:
    """Limits of the trials: their number and their time.

    Attributes:
        most: The most trials.
        shortest_s, longest_s: Seconds of one trial.
        warm_s: Seconds that a loader runs before the first one: its copy of the graph in memory is made then.
    """

    most: int = 16
    shortest_s: float = 0.2
    longest_s: float = 4.0
    warm_s: float = 3.0


@dataclass(frozen=True, repr=False)
class AutotuneResult(Shown):
    """The result of ``autotune``.

    Attributes:
        trials: The trials in their order; the first one is of the options that the loader has.
        best: The options to use: those of the backend, and ``prefetch``.
        seeds_per_s: Seeds per second with them.
        gain: How many times as fast that is as before.
        took_s: Seconds that it took.
        grid_size: How many combinations there are.
        options: What to give to ``loader.with_backend``, or to the constructor: "backend" and "prefetch".
    """

    trials: tuple[SearchTrial, ...]
    best: Point
    seeds_per_s: float
    gain: float
    took_s: float
    grid_size: int
    options: Mapping[str, Any] = field(default_factory=dict)
    _call: str = ""

    @property
    def sentence(self) -> str:
        """The recommendation."""
        if self.best == self.trials[0].options:
            why = (
                " Your loop is what takes the time."
                if self.trials[0].bottleneck in ("consumer", "collate", "transform", "transfer")
                else ""
            )
            return f"Nothing that was tried is faster than what the loader has: {self.words}.{why}"
        return f"{self.gain:.2f} times as fast as before: {self._call}"

    @property
    def words(self) -> str:
        """The options to use, as arguments: "InProcess(num_threads=2), prefetch=8"."""
        return self._call.partition("(")[2].removesuffix(")")


def autotune(
    loader: Pipeline,
    seconds: float,
    train_step: TrainStep | None,
    say: Callable[[str], None],
    name: str,
    limits: TrialLimits = TrialLimits(),
) -> AutotuneResult:
    """Tries options on the loader's own batches and says a line for each; the loader itself stays as it is, and its epoch too.

    It goes from where the loader stands to more workers, threads and slots for as long as that is faster, leaves out what the measured
    times say cannot help, and tries the best ones again in turn. Measure on a machine that does nothing else meanwhile, in a loop that
    does what the real one does: ``train_step``.

    Args:
        loader: The loader.
        seconds: How long it may take, about; it often needs less.
        train_step: Called with each batch, as the loop would; None: batches are dropped, and what comes out is the fastest sampling.
        say: Receives the lines; the last one is the advice.
        name: How the caller's code calls the loader.
        limits: How often and for how long options are tried.

    Raises:
        PlanError: ``seconds`` is no positive number, or the backend or the number of ranks leaves nothing to try.
        LoaderClosed: The loader is closed.
    """
    check_seconds(seconds)
    loader.check_open()
    return _Tuner(loader, float(seconds), train_step, say, name, limits).run()


class _Tuner:
    """One run of ``autotune``."""

    def __init__(
        self,
        loader: Pipeline,
        seconds: float,
        train_step: TrainStep | None,
        say: Callable[[str], None],
        name: str,
        limits: TrialLimits,
    ) -> None:
        self._loader, self._train_step, self._say, self._name = loader, train_step, say, name
        self._began_s = time.monotonic()
        self._deadline_s = self._began_s + seconds
        self._cpus, self._longest_s, self._number = available_cpus(), 0.0, 0
        space_of(loader.plan, workers=1, cpus=1, most_slots=1)  # what cannot be tuned is found out before anything runs
        self._space, self._start = self._look_around(min(limits.warm_s, seconds / 10))
        self._most = max(_LEAST_TRIALS, min(limits.most, len(self._space.grid()) // _PART_OF_GRID))
        left_s = self._deadline_s - time.monotonic()
        self._trial_s = min(limits.longest_s, max(limits.shortest_s, left_s / self._most * 0.8))

    def _look_around(self, seconds: float) -> tuple[Space, dict[str, Any]]:
        """Runs the loader's batches for a while, which also brings the graph into memory; what may be tried, and what there is."""
        with beside(self._loader, {}) as tried:
            for _ in batches_for(tried, seconds, self._train_step):
                pass
            measured, workers = measure(tried), tried.status().workers
        most_slots = int(available_memory() * _MOST_OF_MEMORY / max(1.0, measured.batch_bytes))
        return space_of(self._loader.plan, workers=workers, cpus=self._cpus, most_slots=most_slots)

    def run(self) -> AutotuneResult:
        """Searches, and says what it tries."""
        body = "an empty loop" if self._train_step is None else "your train_step"
        self._say(
            f"autotune: up to {self._most} of {len(self._space.grid())} combinations, {format_duration(self._trial_s)} each, with {body}"
        )
        search = Search(self._space, self._try, self._most)
        search.go(self._start)
        best, backend = search.best, self._loader.plan.backend
        own = backend_options(backend, best)
        options = {"backend": backend_from_json({**backend, **own}), **{name: best[name] for name in best if name not in own}}
        result = AutotuneResult(
            trials=tuple(search.trials),
            best=best,
            seeds_per_s=search.speed(best),
            gain=search.speed(best) / max(search.speed(self._start), 1e-9),
            took_s=time.monotonic() - self._began_s,
            grid_size=len(self._space.grid()),
            options=options,
            _call=f"{self._name}.with_backend({self._arguments(best)})",
        )
        self._say(f"autotune: {result.sentence}")
        return result

    def _arguments(self, best: Point) -> str:
        """Those of ``with_backend``: what was found, and what the backend has been given beside it."""
        backend = self._loader.plan.backend
        usual = backend_from_json({"kind": backend["kind"]}).to_json()
        given = {name: value for name, value in backend.items() if name not in best and value != usual.get(name)}
        return in_words(backend, {**given, **best}).removeprefix("backend=")

    def _try(self, point: Point) -> SearchTrial | None:
        began_s = time.monotonic()
        if self._number and began_s + self._longest_s > self._deadline_s:
            return None
        trial = run_trial(self._loader, point, self._trial_s, self._train_step, self._cpus)
        self._longest_s = max(self._longest_s, time.monotonic() - began_s)
        self._number += 1
        words = ", ".join(f"{name}={value!r}" for name, value in point.items())
        speed, why = format_rate(trial.seeds_per_s, "seeds"), _HOLDS_BACK.get(trial.bottleneck, "")
        self._say(f"{self._number:>4}  {words:<60}  {speed:>16}  {why}".rstrip())
        return trial


_HOLDS_BACK = {
    "consumer": "the loop takes the time",
    "collate": "making PyG objects takes the time",
    "transform": "the transform takes the time",
    "transfer": "copying to the device takes the time",
    "workers": "whoever samples is too slow",
    "processors": "no processor is left",
    "slots": "room for too few batches",
    "disk": "waits for the disk",
    "network": "waits for other hosts",
    "handover": "batches are small",
    "start": "epochs are short",
}


# A loop that hands out no batch for so long is not running in another thread.
_STILL_S = 1.0


@dataclass(frozen=True, repr=False)
class Profile(Shown):
    """The division of a loop's time, and advice on it.

    Attributes:
        title: The loader, in words.
        source: The measured loop: one that was "running" in another thread, the one that had run "last", or epochs of its "own".
        measurement: The figures.
        advice: What limits the loop, and what to change.
    """

    title: str
    source: Literal["running", "last", "own"]
    measurement: LoopMeasurement
    advice: Advice


def profile(loader: Pipeline, seconds: float = 10.0) -> Profile:
    """Looks at a loader.

    While another thread iterates over it, the profile is of that loop in the ``seconds`` to come. Otherwise it is of the last ``seconds``
    of the last loop, which takes no time. Where nothing has run yet, batches are sampled for ``seconds`` and dropped; the loader's epoch
    stays as it is.

    Args:
        loader: The loader.
        seconds: How much of a loop is looked at.

    Raises:
        PlanError: ``seconds`` is no positive number, an epoch has no batches, or nothing has run yet and there are several ranks, whose
            epochs of their own would not fit together.
        LoaderClosed: The loader is closed, and nothing has run.
    """
    check_seconds(seconds)
    title = f"GraphLoader {loader.graph.name}"
    if _is_running(loader, min(_STILL_S, seconds)):
        _watch(loader, seconds)
        measured = measure(loader, seconds)
        return Profile(title, "running", measured, advise(measured))
    if len(last_records(loader.records, seconds)) >= min(_LEAST_BATCHES, len(loader)) > 0:
        measured = measure(loader, seconds)
        return Profile(title, "last", measured, advise(measured))
    ranks = loader.plan.batching.world_size
    if ranks > 1:
        raise PlanError(f"nothing has run yet that could be profiled, and this is one of {ranks} trainers", "iterate over the loader first")
    with beside(loader, {}) as own:
        for _ in batches_for(own, seconds, None):
            pass
        measured = measure(own, seconds)
    return Profile(title, "own", measured, advise(measured))


def _is_running(loader: Pipeline, limit_s: float) -> bool:
    """Whether an epoch hands out a batch within ``limit_s``; none does that nobody iterates over."""
    if not any(stage.stage == "epoch" and stage.state == "running" for stage in loader.history.stages):
        return False
    moved = threading.Event()
    stop = loader.history.listen(lambda event: moved.set() if event.stage == "epoch" else None)
    try:
        return moved.wait(limit_s)
    finally:
        stop()


def _watch(loader: Pipeline, seconds: float) -> None:
    """Waits until ``seconds`` are over, or nobody iterates any more."""
    over = threading.Event()
    stop = loader.history.listen(lambda event: over.set() if event.stage == "epoch" and _is_end(event) else None)
    try:
        over.wait(seconds)
    finally:
        stop()


def _is_end(event: Event) -> bool:
    """Whether an epoch broke off; one that is complete has another one after it, as a rule."""
    return event.kind == "fail" or (event.kind == "end" and event.text == "stopped")

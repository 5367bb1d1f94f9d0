"""Options tried out beside a loader, and the profile of an epoch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from gnnkit.runtime.ring import LEASED
from gnnkit.units import format_duration, format_rate

if TYPE_CHECKING:
    from gnnkit.loader.pipeline import Pipeline


# More sampling threads than this are more than one host's memory is fast; batches ahead cost their memory.
_MOST_THREADS = 16
_USUAL_SLOTS = {"prefetch": (0, 1, 2, 4, 8, 16), "worker_concurrency": (1, 2, 4)}
# Options of who samples, by backend, and of how many batches may be under way.
_WORKERS = {
    "InProcess": ("num_threads",),
    "Colocated": ("num_workers", "threads_per_worker"),
    "GraphStore": ("workers_per_server", "threads_per_worker"),
}
_SLOTS = ("worker_concurrency", "channel_size", "prefetch")

Point = Mapping[str, Any]


@dataclass(frozen=True)
class Space:
    """All combinations of some options.

    Attributes:
        values: ``{option: its values, the cheapest first}``, in the order in which they are tried.
        allowed: Whether a combination can be had.
    """

    values: Mapping[str, tuple[Any, ...]]
    allowed: Callable[[Point], bool]

    def grid(self) -> list[dict[str, Any]]:
        """Every combination that can be had, the cheapest first."""
        points = (dict(zip(self.values, values, strict=True)) for values in product(*self.values.values()))
        return sorted(filter(self.allowed, points), key=self.cost)

    def cost(self, point: Point) -> int:
        """Returns the cost of a combination, to compare it with others: the sum of its positions among each option's values."""
        return sum(values.index(point[name]) for name, values in self.values.items())


def space_of(plan: LoaderPlan, *, workers: int, cpus: int, most_slots: int) -> tuple[Space, dict[str, Any]]:
    """Returns the options that may be tried for a loader, and those that it has now.

    Combinations keep to about as many threads as there are processors, and to the memory for batches; what there is now is allowed.

    Args:
        plan: Its plan.
        workers: Threads or processes that sample for it now.
        cpus: Processors that it may use.
        most_slots: Batches that may be under way, for the memory that they take.

    Raises:
        PlanError: The loader's backend has nothing to try.
    """
    backend = plan.backend
    if backend["kind"] == "Glt":
        raise PlanError(
            "autotune() tries gnnkit's own workers, and Glt() samples with graphlearn-torch's", "use InProcess() or Colocated()"
        )
    if backend["kind"] == "OnDevice":
        raise PlanError("autotune() tries numbers of workers, and OnDevice() has none to choose", "use InProcess() or Colocated()")
    if plan.batching.world_size > 1:
        raise PlanError(
            f"autotune() tries one trainer's options, and this is one of {plan.batching.world_size}, who would wait for each other",
            "tune a loader with rank=0, world_size=1, and give all ranks its options",
        )
    now = {**backend, "num_threads": workers, "num_workers": workers, "prefetch": plan.runtime.prefetch}
    names = [*_WORKERS[backend["kind"]], *_SLOTS]
    if backend.get("address") is not None:  # servers that were started elsewhere
        names = list(_SLOTS)
    start = {name: now[name] for name in names if now.get(name) is not None}
    servers = int(backend.get("num_servers", 1))

    def allowed(point: Point) -> bool:
        processes = point.get("num_workers", point.get("workers_per_server", 1) * servers)
        each = point.get("threads_per_worker", 1)
        threads = point.get("num_threads", processes * each)
        slots = threads if "num_threads" in point else processes * max(each, point["worker_concurrency"]) + LEASED
        fits = threads <= min(_MOST_THREADS, max(2 * cpus, servers)) and slots + point["prefetch"] <= most_slots
        return fits or all(point[name] == value for name, value in start.items())

    return Space({name: _values(name, value, cpus) for name, value in start.items()}, allowed), start


def _values(name: str, now: Any, cpus: int) -> tuple[Any, ...]:
    """The values of an option: the usual ones, and what it is now."""
    if name == "channel_size":
        return now, None
    counts = {1, 2, 4, 8, 16, cpus - 1, cpus, cpus + 1}
    usual = _USUAL_SLOTS.get(name) or tuple(count for count in counts if 1 <= count <= min(_MOST_THREADS, 2 * cpus))
    return tuple(sorted({now, *usual}))


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


def speed_of(trials: Sequence[SearchTrial], point: Point) -> float:
    """Seeds per second in all trials of some options; 0 where there is none."""
    own = [trial for trial in trials if trial.options == point]
    seconds = sum(trial.seconds for trial in own)
    return sum(trial.seeds for trial in own) / seconds if seconds else 0.0


def fastest(trials: Sequence[SearchTrial], part: float = 0.0) -> list[Point]:
    """The combinations whose speed in all of their trials is within this part of the best, each once, the fastest first."""
    points: list[Point] = []
    for trial in trials:
        if trial.options not in points:
            points.append(trial.options)
    points.sort(key=lambda point: speed_of(trials, point), reverse=True)
    return [point for point in points if speed_of(trials, point) >= speed_of(trials, points[0]) * (1 - part)]


def worth_trying(space: Space, start: Point, trials: Sequence[SearchTrial]) -> Iterator[Point]:
    """Goes uphill from ``start`` for as long as something gets faster, then once more to the best ones, in turn with ``start``.

    Args:
        space: What may be tried.
        start: The options that there are before.
        trials: The results so far: the caller adds one to them before it asks for the next combination.

    Yields:
        The next combination to try.
    """
    yield start
    is_faster = True
    while is_faster:
        before = fastest(trials)[0]
        for name in space.values:
            yield from _uphill(space, name, trials)
        is_faster = fastest(trials)[0] != before
    close = fastest(trials, _CLOSE)
    if any(trial.options != start for trial in trials):
        yield from close
        if start not in close:
            yield start


def _uphill(space: Space, name: str, trials: Sequence[SearchTrial]) -> Iterator[Point]:
    """Goes from the best combination along one option for as long as that is faster."""
    best = fastest(trials)[0]
    last = next(trial for trial in reversed(trials) if trial.options == best)
    for values in _directions(space.values[name], best[name], name in _SLOTS, last):
        for point in ({**best, name: value} for value in values):
            if not space.allowed(point) or any(trial.options == point for trial in trials):
                continue
            best_speed = speed_of(trials, fastest(trials)[0])
            yield point
            if trials[-1].seeds_per_s <= best_speed * (1 + AS_GOOD):
                break
        if fastest(trials)[0] != best:
            return


def _directions(values: Sequence[Any], now: Any, is_slots: bool, trial: SearchTrial) -> list[Sequence[Any]]:
    """The values of an option among which a better one may lie, the nearest first, in each direction that the trial leaves open."""
    at = values.index(now)
    more, fewer = values[at + 1 :], values[:at][::-1]
    if trial.bottleneck in _OF_THE_LOOP:
        return []
    if is_slots:  # fewer are never faster, and one more at a time is too little to tell
        return [more[1::2] if len(more) > 1 else more]
    if trial.bottleneck != "processors":
        return [more]
    return [fewer] if trial.is_full else [more, fewer]


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


def batches_for(loader: Pipeline, seconds: float, train_step: TrainStep | None, warm_up: int = 0) -> list[float]:
    """Goes through the batches of epoch after epoch, for some time and at least so many that there is something to tell.

    Args:
        loader: The loader.
        seconds: How long.
        train_step: Called with each batch.
        warm_up: Batches that come before that time begins.

    Returns:
        ``time.monotonic()`` after the last batch of the warm-up, and after each one that counts.

    Raises:
        PlanError: An epoch has no batches.
    """
    if not len(loader):
        raise PlanError("there is nothing to measure: an epoch of this loader has no batches", "see len(loader) and input_nodes")
    times = [time.monotonic()]
    while True:
        for batch in loader:
            if train_step is not None:
                train_step(batch)
            del batch
            times.append(time.monotonic())
            if len(times) > warm_up + _LEAST_BATCHES and times[-1] >= times[warm_up] + seconds:
                return times[warm_up:]


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
        times = batches_for(tried, seconds, train_step, warm_up=max(2, tried.status().slots))
        span_s = times[-1] - times[0]
        # Not all may be known any more: their mean is.
        seeds = fmean(record.seeds for record in last_records(tried.records, span_s)) * (len(times) - 1)
        measured = measure(tried, span_s)
        return SearchTrial(dict(options), seeds, span_s, advise(measured).bottleneck, measured.threads >= cpus)


# Trials are a quarter of all combinations at most.
_PART_OF_GRID, _LEAST_TRIALS, _SHORTEST_S = 4, 3, 0.2
# Batches under way may take this part of the memory that is free.
_MOST_OF_MEMORY = 0.25


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
            why = " Your loop is what takes the time." if self.trials[0].bottleneck in _OF_THE_LOOP else ""
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
    *,
    most: int = 16,
    longest_s: float = 4.0,
    warm_s: float = 3.0,
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
        most: The most trials.
        longest_s: Seconds of one trial, at most.
        warm_s: Seconds that batches are sampled before the first one, at most: the graph is brought into memory then.

    Raises:
        PlanError: ``seconds`` is no positive number, or the backend or the number of ranks leaves nothing to try.
        LoaderClosed: The loader is closed.
    """
    check_seconds(seconds)
    loader.check_open()
    plan, cpus, began_s = loader.plan, available_cpus(), time.monotonic()
    deadline_s = began_s + seconds
    space_of(plan, workers=1, cpus=1, most_slots=1)  # what cannot be tuned is found out before anything runs
    with beside(loader, {}) as tried:
        batches_for(tried, min(warm_s, seconds / 10), train_step)
        measured, workers = measure(tried), tried.status().workers
    most_slots = int(available_memory() * _MOST_OF_MEMORY / max(1.0, measured.batch_bytes))
    space, start = space_of(plan, workers=workers, cpus=cpus, most_slots=most_slots)
    grid_size = len(space.grid())
    most = max(_LEAST_TRIALS, min(most, grid_size // _PART_OF_GRID))
    trial_s = min(longest_s, max(_SHORTEST_S, (deadline_s - time.monotonic()) / most * 0.8))

    body = "an empty loop" if train_step is None else "your train_step"
    say(f"autotune: up to {most} of {grid_size} combinations, {format_duration(trial_s)} each, with {body}")
    trials: list[SearchTrial] = []
    slowest_s = 0.0
    for point in worth_trying(space, start, trials):
        trial_began_s = time.monotonic()
        if len(trials) == most or (trials and trial_began_s + slowest_s > deadline_s):
            break
        trial = run_trial(loader, point, trial_s, train_step, cpus)
        trials.append(trial)
        words = ", ".join(f"{option}={value!r}" for option, value in point.items())
        speed, why = format_rate(trial.seeds_per_s, "seeds"), _HOLDS_BACK.get(trial.bottleneck, "")
        say(f"{len(trials):>4}  {words:<60}  {speed:>16}  {why}".rstrip())
        slowest_s = max(slowest_s, time.monotonic() - trial_began_s)
    # The cheapest of those that are about as good as the best.
    best = min(fastest(trials, AS_GOOD), key=space.cost)
    own = backend_options(plan.backend, best)
    # Arguments of with_backend: what was found, and what the backend has been given beside it.
    usual = backend_from_json({"kind": plan.backend["kind"]}).to_json()
    given = {option: value for option, value in plan.backend.items() if option not in best and value != usual.get(option)}
    result = AutotuneResult(
        trials=tuple(trials),
        best=best,
        seeds_per_s=speed_of(trials, best),
        gain=speed_of(trials, best) / max(speed_of(trials, start), 1e-9),
        took_s=time.monotonic() - began_s,
        grid_size=grid_size,
        options={"backend": backend_from_json({**plan.backend, **own}), **{option: best[option] for option in best if option not in own}},
        _call=f"{name}.with_backend({in_words(plan.backend, {**given, **best}).removeprefix('backend=')})",
    )
    say(f"autotune: {result.sentence}")
    return result


_HOLDS_BACK = {
    "consumer": "the loop takes the time",
    "collate": "making PyG objects takes the time",
    "transform": "the transform takes the time",
    "transfer": "copying to the device takes the time",
    "workers": "the workers that sample are too slow",
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
    has_begun = any(stage.stage == "epoch" and stage.state == "running" for stage in loader.history.stages)
    if has_begun and _heard(loader, min(_STILL_S, seconds), lambda _: True):
        # Until the loop breaks off; an epoch that is complete has another one after it, as a rule.
        _heard(loader, seconds, lambda event: event.kind == "fail" or (event.kind == "end" and event.text == "stopped"))
        measured = measure(loader, seconds)
        return Profile(title, "running", measured, advise(measured))
    if len(last_records(loader.records, seconds)) >= min(_LEAST_BATCHES, len(loader)) > 0:
        measured = measure(loader, seconds)
        return Profile(title, "last", measured, advise(measured))
    ranks = loader.plan.batching.world_size
    if ranks > 1:
        raise PlanError(f"nothing has run yet that could be profiled, and this is one of {ranks} trainers", "iterate over the loader first")
    with beside(loader, {}) as own:
        batches_for(own, seconds, None)
        measured = measure(own, seconds)
    return Profile(title, "own", measured, advise(measured))


def _heard(loader: Pipeline, limit_s: float, is_it: Callable[[Event], bool]) -> bool:
    """Waits for an event of the loader's epochs; whether it came in time."""
    heard = threading.Event()
    stop = loader.history.listen(lambda event: heard.set() if event.stage == "epoch" and is_it(event) else None)
    try:
        return heard.wait(limit_s)
    finally:
        stop()

"""``loader.autotune()``: tries numbers of workers, threads and slots on the loader's own batches, and says which to use."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gnnkit.backends import backend_from_json
from gnnkit.host import available_cpus, available_memory
from gnnkit.loader.advice.measuring import measure
from gnnkit.loader.advice.rules import backend_options, in_words
from gnnkit.loader.advice.search import (
    Point,
    Search,
    SearchTrial,
    Space,
    TrainStep,
    batches_for,
    beside,
    check_seconds,
    run_trial,
    space_of,
)
from gnnkit.rendering import Shown
from gnnkit.units import format_duration, format_rate

if TYPE_CHECKING:
    from gnnkit.loader.pipeline import Pipeline

# Trials are a quarter of all combinations at most, and never more than this.
_PART_OF_GRID, _MOST_TRIALS, _LEAST_TRIALS = 4, 16, 3
# Seconds of one trial, and how long a loader runs before the first one: its copy of the graph in memory is made then.
_SHORTEST_S, _LONGEST_S, _WARM_S = 0.2, 4.0, 3.0
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


def autotune(loader: Pipeline, seconds: float, train_step: TrainStep | None, say: Callable[[str], None], name: str) -> AutotuneResult:
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

    Raises:
        PlanError: ``seconds`` is no positive number, or the backend or the number of ranks leaves nothing to try.
        LoaderClosed: The loader is closed.
    """
    check_seconds(seconds)
    loader.check_open()
    return _Tuner(loader, float(seconds), train_step, say, name).run()


class _Tuner:
    """One run of ``autotune``."""

    def __init__(self, loader: Pipeline, seconds: float, train_step: TrainStep | None, say: Callable[[str], None], name: str) -> None:
        self._loader, self._train_step, self._say, self._name = loader, train_step, say, name
        self._began_s = time.monotonic()
        self._deadline_s = self._began_s + seconds
        self._cpus, self._longest_s, self._number = available_cpus(), 0.0, 0
        space_of(loader.plan, workers=1, cpus=1, most_slots=1)  # what cannot be tuned is found out before anything runs
        self._space, self._start = self._look_around(min(_WARM_S, seconds / 10))
        self._most = max(_LEAST_TRIALS, min(_MOST_TRIALS, len(self._space.grid()) // _PART_OF_GRID))
        left_s = self._deadline_s - time.monotonic()
        self._trial_s = min(_LONGEST_S, max(_SHORTEST_S, left_s / self._most * 0.8))

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

"""Tries a loader with other options: a loader beside it that samples the same batches for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from statistics import fmean
from typing import TYPE_CHECKING, Any

from gnnkit.backends import backend_from_json
from gnnkit.errors import PlanError
from gnnkit.events import ignore_events
from gnnkit.loader.advice.measuring import last_records, measure
from gnnkit.loader.advice.rules import advise
from gnnkit.loader.advice.search import Trial
from gnnkit.loader.advice.space import Point
from gnnkit.loader.advice.wording import backend_options

if TYPE_CHECKING:
    from gnnkit.loader.pipeline import Pipeline

# Batches that a speed is made of, at least.
_LEAST_BATCHES = 4

TrainStep = Callable[[Any], Any]


def check_seconds(seconds: Any) -> None:
    """Checks how long something is to be looked at.

    Raises:
        PlanError: It is no positive number of seconds.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < threading.TIMEOUT_MAX:
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


def run_trial(loader: Pipeline, options: Point, seconds: float, train_step: TrainStep | None, cpus: int) -> Trial:
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
        return Trial(dict(options), seeds, span_s, advise(measured).bottleneck, measured.threads >= cpus)

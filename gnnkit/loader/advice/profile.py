"""``loader.profile()``: where the time of a loop goes, who holds it back, and what to change."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gnnkit.errors import PlanError
from gnnkit.events import Event
from gnnkit.loader.advice.autotune import batches_for, beside, check_seconds
from gnnkit.loader.advice.measuring import LoopMeasurement, last_records, measure
from gnnkit.loader.advice.rules import Advice, advise
from gnnkit.rendering import Shown

if TYPE_CHECKING:
    from gnnkit.loader.pipeline import Pipeline

# A loop that hands out no batch for so long is not running in another thread.
_STILL_S = 1.0
# Fewer batches than this tell nothing about a loop.
_LEAST_BATCHES = 4


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

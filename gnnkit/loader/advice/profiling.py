"""The profile of a loop, and the call that follows its advice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from gnnkit.backends import backend_from_json
from gnnkit.bounds import MOST_SECONDS, is_real
from gnnkit.errors import PlanError
from gnnkit.events import Event, ignore_events
from gnnkit.loader.advice.measuring import Advice, LoopMeasurement, advise, arguments, backend_options, last_records, measure
from gnnkit.rendering import Shown

if TYPE_CHECKING:
    from gnnkit.loader.pipeline import Pipeline


# Batches that a profile is made of, at least.
_LEAST_BATCHES = 4


def beside(loader: Pipeline, change: Mapping[str, Any]) -> Pipeline:
    """A loader of like batches with other options, which reports nothing to the reader.

    Args:
        loader: The loader.
        change: Options of its backend and keywords of the loader; see ``Advice.change``.
    """
    own = backend_options(loader.plan.backend, change)
    rest = {name: value for name, value in change.items() if name not in own}
    # Of another seed: a loader of the same plan would take this one's place in its processes, as a cell that is run again does.
    seed = loader.plan.batching.seed ^ 1
    return loader.with_backend(backend_from_json({**loader.plan.backend, **own}), {"seed": seed, **rest}, ignore_events)


def _sample_for(loader: Pipeline, seconds: float) -> None:
    """Goes through the batches of epoch after epoch for some time, and at least for a few."""
    if not len(loader):
        raise PlanError("there is nothing to measure: an epoch of this loader has no batches", "see len(loader) and input_nodes")
    count, until_s = 0, time.monotonic() + seconds
    while True:
        for batch in loader:
            del batch
            count += 1
            if count >= _LEAST_BATCHES and time.monotonic() >= until_s:
                return


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
        call: The call that makes the loader with that change, ready to be copied; "" where the loader cannot help.
    """

    title: str
    source: Literal["running", "last", "own"]
    measurement: LoopMeasurement
    advice: Advice
    call: str = ""


def profile(loader: Pipeline, seconds: float = 10.0, name: str = "loader") -> Profile:
    """Looks at a loader.

    While another thread iterates over it, the profile is of that loop in the ``seconds`` to come. Otherwise it is of the last ``seconds``
    of the last loop, which takes no time. Where nothing has run yet, batches are sampled for ``seconds`` and dropped; the loader's epoch
    stays as it is.

    Args:
        loader: The loader.
        seconds: How much of a loop is looked at.
        name: How the caller's code calls the loader.

    Raises:
        PlanError: ``seconds`` is no positive number, an epoch has no batches, or nothing has run yet and there are several ranks, whose
            epochs of their own would not fit together.
        LoaderClosed: The loader is closed, and nothing has run.
    """
    if not is_real(seconds) or not 0 < seconds <= MOST_SECONDS:
        raise PlanError(f"seconds must be a positive number, got {seconds!r}")
    source, measured = _measured(loader, seconds)
    advice = advise(measured)
    return Profile(f"GraphLoader {loader.graph.name}", source, measured, advice, call_for(name, loader.plan.backend, advice.change))


def _measured(loader: Pipeline, seconds: float) -> tuple[Literal["running", "last", "own"], LoopMeasurement]:
    has_begun = any(stage.stage == "epoch" and stage.state == "running" for stage in loader.history.stages)
    if has_begun and _heard(loader, min(_STILL_S, seconds), lambda _: True):
        # Until the loop breaks off; an epoch that is complete has another one after it, as a rule.
        _heard(loader, seconds, lambda event: event.kind == "fail" or (event.kind == "end" and event.text == "stopped"))
        return "running", measure(loader, seconds)
    if len(last_records(loader.records, seconds)) >= min(_LEAST_BATCHES, len(loader)) > 0:
        return "last", measure(loader, seconds)
    ranks = loader.plan.batching.world_size
    if ranks > 1:
        raise PlanError(f"nothing has run yet that could be profiled, and this is one of {ranks} trainers", "iterate over the loader first")
    with beside(loader, {}) as own:
        _sample_for(own, seconds)
        return "own", measure(own, seconds)


def call_for(name: str, backend: Mapping[str, Any], change: Mapping[str, Any]) -> str:
    """The call that follows an advice: "loader.with_backend(InProcess(num_threads=2), prefetch=8)"; "" where there is nothing to change.

    Args:
        name: How the caller's code calls the loader.
        backend: The backend's options, as in a plan; those that were given stay.
        change: See ``Advice.change``.
    """
    if not change:
        return ""
    if "backend" in change:
        return f"{name}.with_backend({change['backend']!r})"
    usual = backend_from_json({"kind": backend["kind"]}).to_json()
    kept = {option: value for option, value in backend.items() if value != usual.get(option)}
    own = backend_options(backend, change)
    rest = {option: value for option, value in change.items() if option not in own}
    words = [f"{backend['kind']}({arguments({**kept, **own})})", *([arguments(rest)] if rest else [])]
    return f"{name}.with_backend({', '.join(words)})"


def _heard(loader: Pipeline, limit_s: float, is_it: Callable[[Event], bool]) -> bool:
    """Waits for an event of the loader's epochs; whether it came in time."""
    heard = threading.Event()
    stop = loader.history.listen(lambda event: heard.set() if event.stage == "epoch" and is_it(event) else None)
    try:
        return heard.wait(limit_s)
    finally:
        stop()

"""``loader.profile()``: where the time of a loop goes, who holds it back, and what to change."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gnnkit.errors import PlanError
from gnnkit.events import Event
from gnnkit.loader.advice.measurement import Measurement
from gnnkit.loader.advice.measuring import last_records, measure
from gnnkit.loader.advice.rules import Advice, advise
from gnnkit.loader.advice.trial import batches_for, beside, check_seconds
from gnnkit.loader.advice.wording import workers
from gnnkit.ui.cards import Card, Table
from gnnkit.ui.shown import Shown
from gnnkit.units import format_bytes, format_duration, format_percent, format_rate

if TYPE_CHECKING:
    from gnnkit.loader.facade import GraphLoader

# A loop that hands out no batch for so long is not running in another thread.
_STILL_S = 1.0
# Fewer batches than this tell nothing about a loop.
_LEAST_BATCHES = 4
_PARTS = {
    "wait": "waiting for batches",
    "collate": "making PyG objects",
    "transform": "your transform",
    "transfer": "copies to the device",
    "consumer": "your loop",
}
_SOURCES = {
    "running": "your loop, while it ran",
    "last": "your loop's last batches",
    "own": "batches sampled for this, with an empty loop: nothing had run before",
}


@dataclass(frozen=True, repr=False)
class Profile(Shown):
    """Where the time of a loop went.

    Attributes:
        title: The loader, in words.
        source: What was looked at: a loop that was "running" in another thread, what had run "last", or epochs of its "own".
        measurement: The figures.
        advice: What limits the loop, and what to change.
    """

    title: str
    source: Literal["running", "last", "own"]
    measurement: Measurement
    advice: Advice

    def _card(self) -> Card:
        sections = [("time of the loop", _times(self.measurement)), ("who samples", _workers(self.measurement))]
        rows = [("looked at", _SOURCES[self.source]), *_facts(self.measurement)]
        return Card(f"Profile of {self.title}", self.advice.bottleneck, rows, sections=sections, lead=self.advice.sentence)


def _facts(measured: Measurement) -> list[tuple[str, str]]:
    """What is known, by name."""
    rates = f"{format_rate(measured.seeds_per_s, 'seeds')}, {format_rate(measured.batches_per_s, 'batches')}"
    rows = [
        ("speed", f"{rates}, over {measured.batches} batches in {format_duration(measured.seconds)}"),
        ("who samples", f"{workers(measured.kind, measured.workers)}{_share(measured.busy, ', busy {} of the time')}"),
        ("slots", f"{measured.slots}{'' if math.isnan(measured.ready) else f', {measured.ready:.1f} batches ready when one is asked for'}"),
        ("batch", "?" if math.isnan(measured.batch_bytes) else format_bytes(measured.batch_bytes)),
        ("graph", f"{format_bytes(measured.graph_bytes)}, {'a copy in memory' if measured.copied_bytes else 'read where it lies'}"),
    ]
    if not math.isnan(measured.idle_cpus):
        rows.append(("processors", f"{measured.cpus}, of which {measured.idle_cpus:.1f} idle"))
    if not math.isnan(measured.blocked):
        reads = f", {format_rate(measured.read_bytes_per_s, 'B')} from the disk" if measured.read_bytes_per_s else ""
        rows.append(
            (
                "sampling waits",
                f"{_share(measured.blocked, '{} for disk, network or locks')}, {_share(measured.starved, '{} for a processor')}{reads}",
            )
        )
    return rows


def _share(value: float, text: str) -> str:
    return "" if math.isnan(value) else text.format(format_percent(value))


def _times(measured: Measurement) -> Table:
    each_s = measured.seconds / max(1, measured.batches)
    rows = [
        (words, format_percent(measured.shares[name]), f"{measured.shares[name] * each_s * 1e3:.1f} ms") for name, words in _PARTS.items()
    ]
    return Table(("", "share", "per batch"), rows)


def _workers(measured: Measurement) -> Table:
    return Table(("worker", "busy"), [(name or "?", format_percent(busy)) for name, busy in measured.busy_of.items()])


def profile(loader: GraphLoader, seconds: float = 10.0) -> Profile:
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
    title = f"GraphLoader {loader._graph.name}"
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


def _is_running(loader: GraphLoader, limit_s: float) -> bool:
    """Whether an epoch hands out a batch within ``limit_s``; none does that nobody iterates over."""
    if not any(stage.stage == "epoch" and stage.state == "running" for stage in loader.history.stages):
        return False
    moved = threading.Event()
    stop = loader.history.listen(lambda event: moved.set() if event.stage == "epoch" else None)
    try:
        return moved.wait(limit_s)
    finally:
        stop()


def _watch(loader: GraphLoader, seconds: float) -> None:
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

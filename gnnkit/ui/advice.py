"""Cards of advice: a loop's profile, and the trials of ``autotune``."""

from __future__ import annotations

import math

from gnnkit.loader.advice.autotune import AutotuneResult
from gnnkit.loader.advice.measuring import LoopMeasurement
from gnnkit.loader.advice.profile import Profile
from gnnkit.loader.advice.rules import workers
from gnnkit.loader.advice.search import SearchTrial
from gnnkit.ui.cards import Card, Table
from gnnkit.units import format_bytes, format_duration, format_percent, format_rate

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


def profile_card(profile: Profile) -> Card:
    """Makes the card of a profile: the division of a loop's time, and what to change."""
    sections = [("time of the loop", _times(profile.measurement)), ("who samples", _workers(profile.measurement))]
    rows = [("looked at", _SOURCES[profile.source]), *_facts(profile.measurement)]
    return Card(f"Profile of {profile.title}", profile.advice.bottleneck, rows, sections=sections, lead=profile.advice.sentence)


def autotune_card(result: AutotuneResult) -> Card:
    """The options that were tried, and the best of them."""
    names = list(result.best)
    rows = [
        (*(str(trial.options[name]) for name in names), format_rate(trial.seeds_per_s, "seeds"), _mark(result, trial))
        for trial in result.trials
    ]
    facts = [
        ("best", result.words),
        ("speed", f"{format_rate(result.seeds_per_s, 'seeds')}, {result.gain:.2f} times as before"),
        ("tried", f"{len(result.trials)} trials in {format_duration(result.took_s)}; there are {result.grid_size} combinations"),
    ]
    return Card("autotune", "done", facts, sections=[("what was tried", Table((*names, "speed", ""), rows))])


def _mark(result: AutotuneResult, trial: SearchTrial) -> str:
    return "best" if trial.options == result.best else "before" if trial is result.trials[0] else ""


def _facts(measured: LoopMeasurement) -> list[tuple[str, str]]:
    """Returns the known figures of a loop, by name."""
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


def _times(measured: LoopMeasurement) -> Table:
    each_s = measured.seconds / max(1, measured.batches)
    rows = [
        (words, format_percent(measured.shares[name]), f"{measured.shares[name] * each_s * 1e3:.1f} ms") for name, words in _PARTS.items()
    ]
    return Table(("", "share", "per batch"), rows)


def _workers(measured: LoopMeasurement) -> Table:
    return Table(("worker", "busy"), [(name or "?", format_percent(busy)) for name, busy in measured.busy_of.items()])

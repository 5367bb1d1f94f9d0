"""Who is the bottleneck, and what to change: a pure function of what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gnnkit.loader.advice.measurement import Measurement
from gnnkit.loader.advice.more import slots_change, worker_room, workers_change
from gnnkit.loader.advice.wording import batches, in_words, workers
from gnnkit.units import format_bytes, format_percent, format_rate

# A loop that waits for less than this part of its time cannot gain a fifth of its speed from faster batches, whatever is done.
LITTLE = 1 / 6
# Sampling that has nothing to compute for this part of its time waits for something else.
_MUCH = 0.3
# Sampling processes that read this much a second do not have the store in memory; nor do those that read this part of what they deliver.
_READS, _READS_AGAIN = 1e6, 0.5
# A copy of the graph may take this part of the memory that is free.
_MOST_OF_MEMORY = 0.5
# More of something is advised where the recorded batches would have come faster by this factor.
_WORTHWHILE = 1.1


@dataclass(frozen=True)
class Advice:
    """Who holds the loop back and what to do about it.

    Attributes:
        bottleneck: "consumer", "collate", "transform", "transfer", "workers", "processors", "slots", "disk", "network", "handover",
            "start", or "none" where nothing stands out or nothing was measured yet.
        sentence: The same for people, with what to change.
        change: Options of the backend and keywords of the loader to use instead; ``{}`` where the loader cannot help.
    """

    bottleneck: str
    sentence: str
    change: Mapping[str, Any] = field(default_factory=dict)


def advise(measured: Measurement) -> Advice:
    """Names the bottleneck.

    Args:
        measured: What was measured.
    """
    if measured.starting:
        return Advice("start", f"Batches come once the stage {measured.starting!r} is over.")
    if not measured.batches:
        return Advice("none", "Nothing is known yet: no batch was taken.")
    if measured.shares["wait"] < LITTLE:
        return _of_the_loop(measured)
    return _disk(measured) or _start(measured) or _network(measured) or _more(measured) or _handover(measured)


def _of_the_loop(measured: Measurement) -> Advice:
    """Batches come fast enough: which part of the loop takes the most."""
    part = max(("consumer", "collate", "transform", "transfer"), key=lambda name: measured.shares[name])
    takes = f"takes {format_percent(measured.shares[part])} of the time"
    remedy = {
        "consumer": f"The loop's own code {takes}, and batches wait for it: make the training step faster; more workers gain nothing.",
        "collate": f"Making PyG objects of batches {takes}: a larger batch_size makes fewer of them.",
        "transform": f"Your transform {takes}: do its work once beforehand, or less of it.",
        "transfer": f"Copying batches to the device {takes}: a store with feature_dtype='float16' halves what is copied.",
    }
    return Advice(part, remedy[part])


def _waits(measured: Measurement) -> str:
    return f"The loop waits for batches {format_percent(measured.shares['wait'])} of the time"


def _disk(measured: Measurement) -> Advice | None:
    """Sampling that waits for pages of the store."""
    reads = measured.faults_per_s * measured.seconds >= measured.batches or measured.read_bytes_per_s >= _READS
    is_waiting = measured.blocked >= _MUCH and reads
    if not (is_waiting or measured.read_bytes_per_s >= _READS_AGAIN * measured.batch_bytes * measured.batches_per_s):
        return None
    rate = format_rate(measured.read_bytes_per_s, "B")
    how = f"waits for the disk ({format_percent(measured.blocked)} of its time, {rate})" if is_waiting else f"reads the disk ({rate})"
    what = f"{_waits(measured)}, because sampling {how}"
    size, free = format_bytes(measured.graph_bytes), format_bytes(measured.free_bytes)
    if measured.copied_bytes:
        return Advice("disk", f"{what}; the graph's copy in memory has just been made, so this is over.")
    if measured.will_copy:
        return Advice("disk", f"{what}; the graph ({size}) is being copied into memory, and then this is over.")
    if measured.is_joined:
        remedy = "it takes more memory there, or a store with feature_dtype='float16'"
        return Advice("disk", f"{what}: servers copy the graph ({size}) into memory where four times as much is free; {remedy}.")
    if measured.graph_bytes > measured.free_bytes * _MOST_OF_MEMORY:
        remedy = "more memory, a store with feature_dtype='float16', or placement='partition' on several hosts"
        return Advice("disk", f"{what}: the graph is {size}, and {free} are free; it takes {remedy}.")
    change = {"memory_budget": _rounded_up(measured.graph_bytes)}
    return Advice("disk", f"{what}: have a copy of the graph ({size}) made in memory: {in_words(measured.backend, change)}.", change)


def _rounded_up(count: int) -> int:
    """A count that is easy to read: two digits and zeros."""
    unit = int(10 ** max(0, len(str(count)) - 2))
    return -(-count // unit) * unit


def _start(measured: Measurement) -> Advice | None:
    """Epochs that are over before the workers have got going."""
    if measured.start_share < max(LITTLE, measured.shares["wait"] / 2):
        return None
    sentence = f"{_waits(measured)}, most of it for the first batches of each epoch: epochs are short; longer ones wait less."
    return Advice("start", sentence)


def _network(measured: Measurement) -> Advice | None:
    """Batches, or parts of the graph, that are on their way most of the time."""
    if not (measured.is_remote and measured.blocked >= _MUCH):
        return None
    what = f"{_waits(measured)}, because sampling waits for other hosts ({format_percent(measured.blocked)} of its time)"
    concurrency = min(32, 2 * int(measured.backend["worker_concurrency"]))
    if concurrency <= measured.backend["worker_concurrency"]:
        return Advice("network", f"{what}: the network is too slow; placement='replicate' does without it where the graph fits.")
    change = {"worker_concurrency": concurrency}
    return Advice("network", f"{what}: have more batches on their way: {in_words(measured.backend, change)}.", change)


def _more(measured: Measurement) -> Advice | None:
    """More slots or more workers, whichever would have been faster with the batches as they were."""
    slots_gain, slots = slots_change(measured)
    workers_gain, more = workers_change(measured)
    if max(slots_gain, workers_gain) < _WORTHWHILE:
        return None
    who = workers(measured.kind, measured.workers)
    if slots_gain >= workers_gain:
        what = f"{_waits(measured)} although {who} could sample more: room for {batches(measured.slots)} is too little"
        return Advice("slots", f"{what}; use {in_words(measured.backend, slots)}.", slots)
    what = f"{_waits(measured)} while {who} cannot sample faster"
    if worker_room(measured) < 1:
        return _processors(what)
    if measured.is_joined:
        return Advice("workers", f"{what}: give its servers more: gnnkit serve --workers-per-server.")
    return Advice("workers", f"{what}; use {in_words(measured.backend, more)}.", more)


def _processors(what: str) -> Advice:
    remedy = "fewer neighbours, a store with feature_dtype='float16', or servers on another machine"
    return Advice("processors", f"{what}, and no processor is left for more of them: it takes {remedy}.")


def _handover(measured: Measurement) -> Advice:
    """What is left: everybody has time, or nobody."""
    who = workers(measured.kind, measured.workers)
    if measured.starved >= _MUCH:
        return _processors(f"{_waits(measured)} while {who} {'waits' if measured.workers == 1 else 'wait'} for a processor")
    if measured.busy < 0.5:
        return Advice(
            "handover",
            f"{_waits(measured)} although {who} {'samples' if measured.workers == 1 else 'sample'} only {format_percent(measured.busy)} "
            "of it: batches are so small that handing them over costs more than sampling them; raise batch_size.",
        )
    return Advice("none", f"{_waits(measured)}; sampling and the loop take about as long as each other, and nothing stands out.")

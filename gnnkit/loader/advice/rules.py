"""The bottleneck and what to change, as a pure function of what was measured; and what more workers or slots would gain."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gnnkit.loader.advice.measuring import LoopMeasurement, Work
from gnnkit.runtime.limits import DISK_THREADS
from gnnkit.units import format_bytes, format_percent, format_rate

# Times that differ by less than this factor are equal.
_AS_GOOD = 1.03


def replay_s(work: Sequence[Work], threads: int, slots: int) -> float:
    """Seconds from the first sampled batch to the last step of the loop.

    Batches are taken up in order by whoever is free, at most ``slots`` of them beyond the one that the loop has taken last, and are
    handed out in order; nothing else takes time. That is how every backend deals its batches.

    Args:
        work: What the batches take, in their order.
        threads: How many are sampled at once, at least 1.
        slots: How many can be under way or waiting, at least 1.
    """
    free = [0.0] * threads
    taken: list[float] = []
    asked = 0.0
    for step, batch in enumerate(work):
        room = taken[step - slots] if step >= slots else 0.0
        done = max(heapq.heappop(free), room) + batch.sampling_s
        heapq.heappush(free, done)
        taken.append(max(asked, done))
        asked = taken[-1] + batch.loop_s
    return asked


def fewest(work: Sequence[Work], counts: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], float]:
    """The first of several numbers of threads and slots that is about as good as the best.

    Args:
        work: What the batches take.
        counts: Threads and slots, the fewest first.

    Returns:
        The pair, and its seconds.
    """
    times = [replay_s(work, *count) for count in counts]
    chosen = next(i for i, time in enumerate(times) if time <= min(times) * _AS_GOOD)
    return counts[chosen], times[chosen]


# A processor that is idle for this part of the time has room for another thread.
_ROOM = 0.5
# Threads that have nothing to compute for this part of their time need no processor of their own.
_WAITING = 0.5
# The most sampling threads, and batches under way, that are advised.
_MOST_THREADS, _MOST_SLOTS = 16, 64
# Batches under way may take this part of the memory that is free.
_MOST_OF_MEMORY = 0.1


def slots_change(measured: LoopMeasurement) -> tuple[float, dict[str, Any]]:
    """Returns the speed-up that as many slots as are useful would have given, and the options for that."""
    work, threads, now = measured.work, measured.threads, max(1, measured.slots)
    if not work or math.isnan(measured.busy):
        return 1.0, {}
    room = int(measured.free_bytes * _MOST_OF_MEMORY / max(1.0, measured.batch_bytes))
    sizes = [now] + [size for size in (4, 8, 16, 32, _MOST_SLOTS) if now < size <= room]
    chosen, seconds = fewest(work, [(threads, size) for size in sizes])
    gain = _gain(measured, replay_s(work, threads, now), seconds)
    change: dict[str, Any] = {"channel_size": None} if measured.is_bounded else {}
    return gain, {**change, "prefetch": max(measured.prefetch, 0 if change else measured.prefetch + chosen[1] - now, chosen[1] - threads)}


def workers_change(measured: LoopMeasurement) -> tuple[float, dict[str, Any]]:
    """Returns the speed-up that more workers would have given, and the options for as many as there is room for."""
    work, threads, slots = measured.work, measured.threads, max(1, measured.slots)
    each = max(1, threads // max(1, measured.workers))
    if not work or math.isnan(measured.busy):  # nobody knows how long its batches take
        return 2.0, _of_workers(measured, measured.workers + 1)
    most = min(_MOST_THREADS, threads + max(each, worker_room(measured) // each * each))
    # Each brings a slot with it, unless the memory for them is bounded.
    counts = [(count, slots if measured.is_bounded else slots + count - threads) for count in range(threads, most + 1, each)]
    chosen, seconds = fewest(work, counts)
    return _gain(measured, replay_s(work, threads, slots), seconds), _of_workers(measured, chosen[0] // each)


def _gain(measured: LoopMeasurement, now_s: float, then_s: float) -> float:
    """Returns the speed-up of the loop, by its replays as it was and as it would be; the time that these do not explain stays."""
    took_s = measured.seconds / max(1, measured.batches) * len(measured.work)
    rest_s = max(0.0, took_s - now_s)
    return (now_s + rest_s) / max(then_s + rest_s, 1e-9)


def worker_room(measured: LoopMeasurement) -> int:
    """Returns the number of further threads with room: on processors of this trainer's share that it leaves idle, or on any idle ones.

    Other programs count where they use processors beyond this trainer's share, and not within it: so does "auto" of the backends.
    """
    if measured.blocked >= _WAITING:
        return measured.threads
    loop = 0.0 if math.isnan(measured.loop_cpus) else measured.loop_cpus
    own = math.floor(measured.cpus - measured.threads - loop + _ROOM)
    idle = 0 if math.isnan(measured.idle_cpus) else math.floor(measured.idle_cpus + 1 - _ROOM)
    return max(0, own, idle)


def _of_workers(measured: LoopMeasurement, count: int) -> dict[str, Any]:
    """The option that makes so many workers."""
    if measured.kind == "InProcess":
        return {"num_threads": count}
    if measured.kind == "GraphStore":
        return {"workers_per_server": -(-count // int(measured.backend["num_servers"]))}
    return {"num_workers": count}


def backend_options(backend: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Those of some options that belong to a backend; the others are keywords of the loader.

    Args:
        backend: The backend's options, as in a plan.
        change: Names and values.
    """
    return {name: value for name, value in change.items() if name in backend}


def in_words(backend: Mapping[str, Any], change: Mapping[str, Any]) -> str:
    """Options as arguments of a loader: ``backend=InProcess(num_threads=4), prefetch=8``.

    Args:
        backend: The backend's options, as in a plan.
        change: Options of the backend and keywords of the loader.
    """
    own = backend_options(backend, change)
    words = [f"backend={backend['kind']}({_arguments(own)})"] if own else []
    rest = {name: value for name, value in change.items() if name not in own}
    return ", ".join([*words, *([_arguments(rest)] if rest else [])])


def _arguments(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={f'{value:_}' if isinstance(value, int) else repr(value)}" for name, value in options.items())


def workers(kind: str, count: int) -> str:
    """Formats the number of threads or workers of a backend: "1 thread", "3 workers"."""
    one, many = ("thread", "threads") if kind == "InProcess" else ("worker", "workers")
    return f"{count} {one if count == 1 else many}"


def batches(count: int) -> str:
    """Formats a number of batches: "1 batch", "3 batches"."""
    return f"{count} {'batch' if count == 1 else 'batches'}"


# A loop that waits for less than this part of its time cannot gain a fifth of its speed from faster batches, whatever is done.
LITTLE = 1 / 6
# Sampling that has nothing to compute for this part of its time waits for something else.
_MUCH = 0.3
# Sampling processes that read this much a second do not have the store in memory; nor do those that read this part of what they deliver.
_READS, _READS_AGAIN = 1e6, 0.5
# A copy of the graph may take this part of the memory that is free.
_RULES_MOST_OF_MEMORY = 0.5
# More of something is advised where the recorded batches would have come faster by this factor.
_WORTHWHILE = 1.1


@dataclass(frozen=True)
class Advice:
    """The limit of a loop, and what to do about it.

    Attributes:
        bottleneck: "consumer", "collate", "transform", "transfer", "workers", "processors", "slots", "disk", "network", "handover",
            "start", or "none" where nothing stands out or nothing was measured yet.
        sentence: The same for people, with what to change.
        change: Options of the backend and keywords of the loader to use instead; ``{}`` where the loader cannot help.
    """

    bottleneck: str
    sentence: str
    change: Mapping[str, Any] = field(default_factory=dict)


def advise(measured: LoopMeasurement) -> Advice:
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


def _of_the_loop(measured: LoopMeasurement) -> Advice:
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


def _waits(measured: LoopMeasurement) -> str:
    return f"The loop waits for batches {format_percent(measured.shares['wait'])} of the time"


def _disk(measured: LoopMeasurement) -> Advice | None:
    """Sampling that waits for pages of the store."""
    reads = measured.faults_per_s * measured.seconds >= measured.batches or measured.read_bytes_per_s >= _READS
    is_waiting = measured.blocked >= _MUCH and reads
    if not (is_waiting or measured.read_bytes_per_s >= _READS_AGAIN * measured.batch_bytes * measured.batches_per_s):
        return None
    rate = format_rate(measured.read_bytes_per_s, "B")
    how = f"waits for the disk ({format_percent(measured.blocked)} of its time, {rate})" if is_waiting else f"reads the disk ({rate})"
    if measured.disk and not math.isnan(measured.disk_busy):
        how += f", {measured.disk}, which is busy {format_percent(measured.disk_busy)} of the time"
    what = f"{_waits(measured)}, because sampling {how}"
    size, free = format_bytes(measured.graph_bytes), format_bytes(measured.free_bytes)
    if measured.copied_bytes and measured.copied_bytes >= measured.graph_bytes:
        return Advice("disk", f"{what}; the graph's copy in memory has just been made, so this is over.")
    if measured.will_copy:
        return Advice("disk", f"{what}; the graph ({size}) is being copied into memory, and then this is over.")
    if measured.is_joined:
        remedy = "it takes more memory there, or a store with feature_dtype='float16'"
        return Advice("disk", f"{what}: servers copy the graph ({size}) into memory where four times as much is free; {remedy}.")
    if measured.graph_bytes > measured.free_bytes * _RULES_MOST_OF_MEMORY:
        does_not_fit = f"{what}: the graph is {size}, and {free} are free"
        if measured.kind == "InProcess" and is_waiting and measured.threads < DISK_THREADS:
            more = {"num_threads": DISK_THREADS}
            return Advice("disk", f"{does_not_fit}; threads that wait need no processor: use {in_words(measured.backend, more)}.", more)
        remedy = (
            "a faster disk, more memory, a store with order='hotness' or feature_dtype='float16', or placement='partition' on several hosts"
        )
        return Advice("disk", f"{does_not_fit}; it takes {remedy}.")
    change = {"memory_budget": _rounded_up(measured.graph_bytes)}
    return Advice("disk", f"{what}: have a copy of the graph ({size}) made in memory: {in_words(measured.backend, change)}.", change)


def _rounded_up(count: int) -> int:
    """A count that is easy to read: two digits and zeros."""
    unit = int(10 ** max(0, len(str(count)) - 2))
    return -(-count // unit) * unit


def _start(measured: LoopMeasurement) -> Advice | None:
    """Epochs that are over before the workers have got going."""
    if measured.start_share < max(LITTLE, measured.shares["wait"] / 2):
        return None
    sentence = f"{_waits(measured)}, most of it for the first batches of each epoch: epochs are short; longer ones wait less."
    return Advice("start", sentence)


def _network(measured: LoopMeasurement) -> Advice | None:
    """Batches, or parts of the graph, that are on their way most of the time."""
    if not (measured.is_remote and measured.blocked >= _MUCH):
        return None
    what = f"{_waits(measured)}, because sampling waits for other hosts ({format_percent(measured.blocked)} of its time)"
    concurrency = min(32, 2 * int(measured.backend["worker_concurrency"]))
    if concurrency <= measured.backend["worker_concurrency"]:
        return Advice("network", f"{what}: the network is too slow; placement='replicate' does without it where the graph fits.")
    change = {"worker_concurrency": concurrency}
    return Advice("network", f"{what}: have more batches on their way: {in_words(measured.backend, change)}.", change)


def _more(measured: LoopMeasurement) -> Advice | None:
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


def _handover(measured: LoopMeasurement) -> Advice:
    """Returns the advice for the remaining case: neither the loop nor sampling alone is the limit."""
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

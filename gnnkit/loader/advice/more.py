"""What more workers or more slots would have gained, from the batches as they were."""

from __future__ import annotations

import math
from typing import Any

from gnnkit.loader.advice.measurement import Measurement
from gnnkit.loader.advice.queueing import fewest, replay_s

# A processor that is idle for this part of the time has room for another thread.
_ROOM = 0.5
# Threads that have nothing to compute for this part of their time need no processor of their own.
_WAITING = 0.5
# The most sampling threads, and batches under way, that are advised.
_MOST_THREADS, _MOST_SLOTS = 16, 64
# Batches under way may take this part of the memory that is free.
_MOST_OF_MEMORY = 0.1


def slots_change(measured: Measurement) -> tuple[float, dict[str, Any]]:
    """How much faster the batches would have come with as many slots as it takes, and the options for that."""
    work, threads, now = measured.work, measured.threads, max(1, measured.slots)
    if not work or math.isnan(measured.busy):
        return 1.0, {}
    room = int(measured.free_bytes * _MOST_OF_MEMORY / max(1.0, measured.batch_bytes))
    sizes = [now] + [size for size in (4, 8, 16, 32, _MOST_SLOTS) if now < size <= room]
    chosen, seconds = fewest(work, [(threads, size) for size in sizes])
    gain = _gain(measured, replay_s(work, threads, now), seconds)
    change: dict[str, Any] = {"channel_size": None} if measured.is_bounded else {}
    return gain, {**change, "prefetch": max(measured.prefetch, 0 if change else measured.prefetch + chosen[1] - now, chosen[1] - threads)}


def workers_change(measured: Measurement) -> tuple[float, dict[str, Any]]:
    """How much faster the batches would have come with more workers, and the options for as many as there is room for."""
    work, threads, slots = measured.work, measured.threads, max(1, measured.slots)
    each = max(1, threads // max(1, measured.workers))
    if not work or math.isnan(measured.busy):  # nobody knows how long its batches take
        return 2.0, _of_workers(measured, measured.workers + 1)
    most = min(_MOST_THREADS, threads + max(each, worker_room(measured) // each * each))
    # Each brings a slot with it, unless the memory for them is bounded.
    counts = [(count, slots if measured.is_bounded else slots + count - threads) for count in range(threads, most + 1, each)]
    chosen, seconds = fewest(work, counts)
    return _gain(measured, replay_s(work, threads, slots), seconds), _of_workers(measured, chosen[0] // each)


def _gain(measured: Measurement, now_s: float, then_s: float) -> float:
    """How much faster the loop would have been, by the replays of it as it was and as it would be; what these do not explain stays."""
    took_s = measured.seconds / max(1, measured.batches) * len(measured.work)
    rest_s = max(0.0, took_s - now_s)
    return (now_s + rest_s) / max(then_s + rest_s, 1e-9)


def worker_room(measured: Measurement) -> int:
    """How many more threads there are processors for: those of this trainer's share that it does not use, or those that nobody uses.

    Other programs count where they use processors beyond this trainer's share, and not within it: so does "auto" of the backends.
    """
    if measured.blocked >= _WAITING:
        return measured.threads
    loop = 0.0 if math.isnan(measured.loop_cpus) else measured.loop_cpus
    own = math.floor(measured.cpus - measured.threads - loop + _ROOM)
    idle = 0 if math.isnan(measured.idle_cpus) else math.floor(measured.idle_cpus + 1 - _ROOM)
    return max(0, own, idle)


def _of_workers(measured: Measurement, count: int) -> dict[str, Any]:
    """The option that makes so many workers."""
    if measured.kind == "InProcess":
        return {"num_threads": count}
    if measured.kind == "GraphStore":
        return {"workers_per_server": -(-count // int(measured.backend["num_servers"]))}
    return {"num_workers": count}

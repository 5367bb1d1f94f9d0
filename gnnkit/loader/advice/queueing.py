"""How long recorded batches would have taken with other numbers of workers and slots."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from gnnkit.loader.advice.measurement import Work

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

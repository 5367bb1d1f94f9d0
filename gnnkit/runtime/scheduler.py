"""The scheduler of an epoch's batches: which step is sampled next and by which worker, and in which order results are handed out."""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import Generic, TypeVar

R = TypeVar("R")
_TIMES_KEPT = 4
# Batches that one process may be given at a time.
MOST_CONCURRENT = 32


class BatchTimes:
    """Times that the last few batches took to sample; the least of them counts, because a thread that is interrupted takes longer.

    Attributes:
        least_s: Seconds; ``math.inf`` before the first batch.
    """

    def __init__(self) -> None:
        self._last_s, self.least_s = deque([math.inf], _TIMES_KEPT), math.inf

    def add(self, seconds: float) -> None:
        """Notes a batch; ``math.inf`` where it failed."""
        self._last_s.append(seconds)
        self.least_s = min(self._last_s)

    def batches_in(self, seconds: float) -> int:
        """Counts the batches that are sampled in so many seconds; 0 where one takes longer."""
        return int(seconds / max(self.least_s, 1e-6))


class Scheduler(Generic[R]):
    """The steps of one stream's epochs. It has no lock and does no I/O: its owner does.

    The result of a step is kept as it came until it is that step's turn. Epochs are told apart by their generation: a result of an older
    one is not wanted any more. A step whose worker is lost is assigned again, before new ones.

    Args:
        window: Steps that may be assigned, or wait to be handed out, at a time.

    Attributes:
        window: See above; may be changed at any time.
        generation: Counts the epochs that have begun.
        epoch: The epoch that runs; -1 before the first.
        num_steps: Its steps.
        delivered: Steps of it that were handed out.
        results: ``{step: result}`` of those that wait for their turn.
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self.generation, self.epoch, self.num_steps, self.delivered = 0, -1, 0, 0
        self.results: dict[int, R] = {}
        self._next = 0
        self._again: list[int] = []
        self._workers: dict[tuple[int, int], int] = {}

    @property
    def is_over(self) -> bool:
        """Whether every step was handed out."""
        return self.delivered >= self.num_steps

    @property
    def is_sampled(self) -> bool:
        """Whether every step that was not handed out waits for that."""
        return self.delivered + len(self.results) >= self.num_steps

    def begin(self, epoch: int, num_steps: int, delivered: int = 0) -> None:
        """Starts an epoch; what is left of the one before is dropped.

        Args:
            epoch: Its number.
            num_steps: Its steps.
            delivered: Steps that were handed out before.
        """
        self.generation += 1
        self.epoch, self.num_steps = epoch, num_steps
        self._next = self.delivered = delivered
        self.results.clear()
        self._again.clear()

    def has_room_for(self, count: int) -> bool:
        """Whether so many steps, or all that are left, may be assigned now; or one that has to be assigned again."""
        return bool(self._again) or self.delivered + self.window >= min(self._next + count, self.num_steps)

    def next_step(self) -> int | None:
        """The step to assign next; None where there is none, or no room in the window."""
        if self._again:
            return self._again[0]
        return self._next if self._next < min(self.num_steps, self.delivered + self.window) else None

    def assign(self, worker: int) -> tuple[int, int]:
        """Gives a worker the next step, which ``next_step`` has said that there is.

        Returns:
            The generation and the step, which name the assignment.
        """
        if self._again:
            step = heapq.heappop(self._again)
        else:
            step = self._next
            self._next += 1
        key = self.generation, step
        self._workers[key] = worker
        return key

    def worker_of(self, step: int) -> int | None:
        """The worker that samples a step of this epoch; None where none does."""
        return self._workers.get((self.generation, step))

    def assigned_to(self, worker: int) -> list[tuple[int, int]]:
        """The assignments of a worker that have no result yet, the oldest first, those of older epochs included."""
        return [key for key, own in self._workers.items() if own == worker]

    def complete(self, generation: int, step: int, result: R) -> bool:
        """Keeps the result of an assignment until it is its turn; whether it is wanted."""
        known = self._workers.pop((generation, step), None) is not None
        if not known or generation != self.generation:
            return False
        self.results[step] = result
        return True

    def forget(self, generation: int, step: int) -> None:
        """Takes an assignment of an older epoch off, of which no result comes."""
        self._workers.pop((generation, step), None)

    def lost(self, worker: int) -> list[tuple[int, int]]:
        """Takes a worker's assignments off, which is gone; those of this epoch are assigned again.

        Returns:
            All that were taken off.
        """
        gone = self.assigned_to(worker)
        for key in gone:
            del self._workers[key]
            if key[0] == self.generation:
                heapq.heappush(self._again, key[1])
        return gone

    def hand_out(self) -> R:
        """Hands out the next step's result, which must have come."""
        result = self.results.pop(self.delivered)
        self.delivered += 1
        return result

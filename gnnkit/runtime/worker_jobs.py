"""What a sampling process has been asked to do, in order, for its sampling threads to take."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class SampleJob:
    """A batch of an epoch, for a slot of the ring.

    Attributes:
        generation: Counts the epochs that the loader has begun; a job of an older one is dropped.
        epoch: The epoch.
        step: The loader's step.
        batch_index: Index in the epoch's list of batches.
        slot: The slot's number.
        target: uint8 ``[slot_bytes]``, the slot.
    """

    generation: int
    epoch: int
    step: int
    batch_index: int
    slot: int
    target: NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class NowJob:
    """A batch outside the epoch, for which somebody is waiting.

    Attributes:
        number: The request's number.
        epoch: First half of the batch's key.
        batch_index: Second half.
        seeds: int64 ``[k]`` dataset ids; None for a batch of the loader's list.
    """

    number: int
    epoch: int
    batch_index: int
    seeds: NDArray[np.int64] | None


class JobQueue:
    """Jobs that wait and jobs that run.

    Args:
        cancelled: Called with a generation once nothing older than it waits or runs any more.
    """

    def __init__(self, cancelled: Callable[[int], None]) -> None:
        self._cancelled = cancelled
        self._changed = threading.Condition()
        self._waiting: deque[SampleJob] = deque()
        self._urgent: deque[NowJob] = deque()
        self._running: list[SampleJob | NowJob] = []
        self._wanted: int | None = None  # the generation that somebody waits for

    def put(self, job: SampleJob | NowJob) -> None:
        """Adds a job; those that somebody waits for go first."""
        with self._changed:
            if isinstance(job, NowJob):
                self._urgent.append(job)
            else:
                self._waiting.append(job)
            self._changed.notify()

    def take(self) -> SampleJob | NowJob:
        """Waits for a job."""
        with self._changed:
            self._changed.wait_for(lambda: self._urgent or self._waiting)
            job: SampleJob | NowJob = self._urgent.popleft() if self._urgent else self._waiting.popleft()
            self._running.append(job)
            return job

    def done(self, job: SampleJob | NowJob) -> None:
        """Says that a job's outcome has been sent."""
        with self._changed:
            self._running.remove(job)
            self._answer()

    def cancel(self, generation: int) -> None:
        """Drops the jobs that are older than ``generation``."""
        with self._changed:
            self._waiting = deque(job for job in self._waiting if job.generation >= generation)
            self._wanted = generation
            self._answer()

    def _answer(self) -> None:
        wanted = self._wanted
        if wanted is None or any(isinstance(job, SampleJob) and job.generation < wanted for job in self._running):
            return
        self._wanted = None
        self._cancelled(wanted)

"""What a sampling process has been asked to do, by which loader, and in which order its sampling threads take it."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gnnkit.runtime.worker_ring import WorkerSlot

# A loader: the number of the process that it lives in, 0 for the one that has started this one, and its own number there.
ChannelKey = tuple[int, int]


@dataclass(frozen=True, eq=False)
class SampleJob:
    """A batch of an epoch, for a slot of the ring.

    Attributes:
        channel: The loader.
        generation: Counts the epochs that the loader has begun; a job of an older one is dropped.
        epoch: The epoch.
        step: The loader's step.
        batch_index: Index in the epoch's list of batches.
        target: The slot.
    """

    channel: ChannelKey
    generation: int
    epoch: int
    step: int
    batch_index: int
    target: WorkerSlot


@dataclass(frozen=True, eq=False)
class NowJob:
    """A batch outside the epoch, for which somebody is waiting.

    Attributes:
        channel: The loader.
        number: The request's number.
        epoch: First half of the batch's key.
        batch_index: Second half.
        seeds: int64 ``[k]`` dataset ids; None for a batch of the loader's list.
    """

    channel: ChannelKey
    number: int
    epoch: int
    batch_index: int
    seeds: NDArray[np.int64] | None


@dataclass(frozen=True, eq=False)
class TrialJob:
    """A batch of a new loader's that only says how large its batches are.

    Attributes:
        channel: The loader.
        batch_index: Index in the list of batches of the first epoch.
    """

    channel: ChannelKey
    batch_index: int


Job = SampleJob | NowJob | TrialJob
J = TypeVar("J")


@dataclass(eq=False)
class JobQueue:
    """Jobs that wait and jobs that run. Loaders take turns: one that has much to do does not keep another one waiting.

    Attributes:
        cancelled: Called with a loader and a generation once nothing older than that waits or runs any more.
    """

    cancelled: Callable[[ChannelKey, int], None]
    _changed: threading.Condition = field(default_factory=threading.Condition)
    # By loader, the one whose turn is next first; a loader that has nothing waiting is not there.
    _waiting: OrderedDict[ChannelKey, deque[SampleJob]] = field(default_factory=OrderedDict)
    _urgent: OrderedDict[ChannelKey, deque[NowJob | TrialJob]] = field(default_factory=OrderedDict)
    _favoured: set[ChannelKey] = field(default_factory=set)  # had an urgent job done since the last turn of an epoch
    _running: list[Job] = field(default_factory=list)
    _wanted: dict[ChannelKey, int] = field(default_factory=dict)  # the generations that somebody waits for

    def put(self, job: Job) -> None:
        """Adds a job; those that somebody waits for go first, one of each loader before an epoch has its turn."""
        with self._changed:
            if isinstance(job, SampleJob):
                self._waiting.setdefault(job.channel, deque()).append(job)
            else:
                self._urgent.setdefault(job.channel, deque()).append(job)
            self._changed.notify()

    def take(self) -> Job:
        """Waits for a job."""
        with self._changed:
            self._changed.wait_for(lambda: self._urgent or self._waiting)
            job = self._take_urgent() or self._take_turn()
            self._running.append(job)
            return job

    def _take_urgent(self) -> NowJob | TrialJob | None:
        for channel in self._urgent:
            if channel not in self._favoured or not self._waiting:
                self._favoured.add(channel)
                return _next_of(self._urgent, channel)
        return None

    def _take_turn(self) -> SampleJob:
        self._favoured.clear()
        return _next_of(self._waiting, next(iter(self._waiting)))

    def done(self, job: Job) -> None:
        """Says that a job's outcome has been sent."""
        with self._changed:
            self._running.remove(job)
            self._answer(job.channel)

    def cancel(self, channel: ChannelKey, generation: int) -> None:
        """Drops a loader's jobs that are older than ``generation``."""
        with self._changed:
            self._keep(channel, generation)
            self._wanted[channel] = generation
            self._answer(channel)

    def forget(self, channel: ChannelKey) -> None:
        """Drops everything of a loader that has left; what is running comes to its end."""
        with self._changed:
            self._waiting.pop(channel, None)
            self._wanted.pop(channel, None)
            self._urgent.pop(channel, None)
            self._favoured.discard(channel)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits or runs."""
        with self._changed:
            return not (self._urgent or self._waiting or self._running)

    def _keep(self, channel: ChannelKey, generation: int) -> None:
        kept = deque(job for job in self._waiting.get(channel, ()) if job.generation >= generation)
        if kept:
            self._waiting[channel] = kept
        else:
            self._waiting.pop(channel, None)

    def _answer(self, channel: ChannelKey) -> None:
        wanted = self._wanted.get(channel)
        running = (job for job in self._running if isinstance(job, SampleJob) and job.channel == channel)
        if wanted is not None and all(job.generation >= wanted for job in running):
            del self._wanted[channel]
            self.cancelled(channel, wanted)


def _next_of(jobs: OrderedDict[ChannelKey, deque[J]], channel: ChannelKey) -> J:
    """Takes a loader's next job; what else it has waits behind the others."""
    own = jobs.pop(channel)
    job = own.popleft()
    if own:
        jobs[channel] = own
    return job

"""Which step of an epoch is sampled by whom and into which slot, and in which order batches are handed out."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import Any, Literal

from gnnkit.runtime.ring import Ring
from gnnkit.sampling.schedule import Schedule, Step


@dataclass(eq=False)
class Job:
    """A step that has been given to a sampling process; it owns its slot until its batch is handed out or dropped.

    Attributes:
        generation: Counts the epochs that have been begun.
        epoch: The epoch.
        turn: The step.
        rank: The process.
        ring_number: Which ring its slot belongs to.
        slot: The slot, -1 before it has one.
        state: "sampling" until an answer has come, then "ready", and "held" while the user has a batch in its slot.
    """

    generation: int
    epoch: int
    turn: Step
    rank: int
    ring_number: int
    slot: int = -1
    state: Literal["sampling", "ready", "held"] = "sampling"


@dataclass
class Scheduler:
    """The books of one loader. Only its lock's holder may use it.

    A step's answer is kept as it came until it is that step's turn. Epochs are told apart by their generation: answers of an older one
    only give their slots back.

    Attributes:
        ring: The slots.
        in_flight_each: Steps that one process may have at a time.
        window: Steps that may be under way or wait to be handed out.
        generation: Counts the epochs that have been begun.
        epoch: The epoch that runs.
        schedule: Its steps; None before the first.
        delivered: Steps handed out.
        results: ``{step: (job, what came back)}`` that wait for their turn.
    """

    ring: Ring[Job]
    in_flight_each: int
    window: int
    generation: int = 0
    epoch: int = 0
    schedule: Schedule | None = None
    delivered: int = 0
    results: dict[int, tuple[Job, Any]] = field(default_factory=dict)
    _ring_number: int = 0
    _claimed: int = 0
    _again: list[int] = field(default_factory=list)
    _jobs: dict[tuple[int, int], Job] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether every step has been handed out."""
        return self.schedule is None or self.delivered >= len(self.schedule)

    @property
    def is_dealt(self) -> bool:
        """Whether every step has been given to a process."""
        return self.schedule is None or (not self._again and self._claimed >= len(self.schedule))

    @property
    def is_sampled(self) -> bool:
        """Whether everything that has not been handed out waits for it."""
        return self.schedule is None or self.delivered + len(self.results) >= len(self.schedule)

    def begin(self, epoch: int, schedule: Schedule, delivered: int = 0) -> None:
        """Starts an epoch; what is left of the one before is dropped, now or when its answers come.

        Args:
            epoch: Its number.
            schedule: Its steps.
            delivered: Steps that have been handed out before.
        """
        self.generation += 1
        self.epoch, self.schedule = epoch, schedule
        self.results.clear()
        self._again.clear()
        self._claimed = self.delivered = delivered
        for slot in range(self.ring.num_slots):  # rather than by the results: an interrupt may have lost one
            job = self.ring.owner(slot)
            if job is not None and job.state == "ready" and job.generation < self.generation:
                self.drop(job)

    def use_ring(self, ring: Ring[Job], window: int) -> None:
        """Goes on with another ring; jobs under way keep their slots in the old one, which nobody waits for."""
        self.ring, self.window = ring, window
        self._ring_number += 1

    def drop(self, job: Job) -> None:
        """Takes a job's slot back."""
        if job.ring_number == self._ring_number and job.slot >= 0:
            self.ring.free(job.slot, job)

    def jobs_of(self, rank: int) -> list[Job]:
        """What a process has been given and not answered."""
        return [job for job in self._jobs.values() if job.rank == rank]

    def job_at(self, step: int) -> Job | None:
        """The job of a step of this epoch that is being sampled."""
        return self._jobs.get((self.generation, step))

    def deal(self, ranks: Set[int]) -> Iterator[Job]:
        """Yields new jobs, to be sent, for the processes ``ranks``: as many as they and the ring have room for."""
        if self.is_dealt:
            return
        load = [(count, rank) for rank in ranks if (count := len(self.jobs_of(rank))) < self.in_flight_each]
        heapq.heapify(load)
        while load and self.schedule is not None:
            step = self._next_step(len(self.schedule))
            if step is None:
                return
            count, rank = heapq.heappop(load)
            job = Job(self.generation, self.epoch, self.schedule.turn(step), rank, self._ring_number)
            slot = self.ring.take(job)
            if slot is None:
                return
            job.slot = slot
            self._jobs[self.generation, step] = job
            if self._again and self._again[0] == step:
                heapq.heappop(self._again)
            else:
                self._claimed += 1
            yield job
            if count + 1 < self.in_flight_each:
                heapq.heappush(load, (count + 1, rank))

    def _next_step(self, num_steps: int) -> int | None:
        if self._again:
            return self._again[0]
        return self._claimed if self._claimed < min(num_steps, self.delivered + self.window) else None

    def answer(self, generation: int, step: int, result: Any) -> Job | None:
        """Books what came back for a job; the job, if anybody still wants it."""
        job = self._jobs.pop((generation, step), None)
        if job is None or generation != self.generation:
            if job is not None:
                self.drop(job)
            return None
        job.state = "ready"
        self.results[step] = (job, result)
        return job

    def cancelled(self, rank: int, generation: int) -> None:
        """Books that a process has nothing older than ``generation`` any more, whatever became of its answers."""
        for job in self.jobs_of(rank):
            if job.generation < generation:
                del self._jobs[job.generation, job.turn.step]
                self.drop(job)

    def lost(self, rank: int) -> None:
        """Books that a process is gone: its steps are to be dealt again."""
        for job in self.jobs_of(rank):
            del self._jobs[job.generation, job.turn.step]
            self.drop(job)
            if job.generation == self.generation:
                heapq.heappush(self._again, job.turn.step)

    def handed_out(self) -> None:
        """Books that the next step's result has been handed out."""
        del self.results[self.delivered]
        self.delivered += 1

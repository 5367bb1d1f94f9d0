"""The scheduler of a session: each assigned step has a slot of the session's ring, which its batch is sampled into."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Any, Literal

from gnnkit.runtime.ring import Ring
from gnnkit.runtime.scheduler import Scheduler
from gnnkit.sampling.schedule import Schedule, Step


@dataclass(eq=False)
class Assignment:
    """A step that was given to a worker; it owns its slot until its batch is handed out or dropped.

    Attributes:
        generation: Counts the epochs that have begun.
        epoch: The epoch.
        step: The step.
        rank: The worker.
        ring_number: The number of the ring that its slot belongs to.
        slot: The slot.
        state: "sampling" until an answer has come, then "ready", and "held" while the user has a batch in its slot.
    """

    generation: int
    epoch: int
    step: Step
    rank: int
    ring_number: int
    slot: int
    state: Literal["sampling", "ready", "held"] = "sampling"


class RingScheduler(Scheduler[tuple[Assignment, Any]]):
    """A ``Scheduler`` whose results are assignments with what came back for them. Only the holder of its pool's lock may use it.

    Args:
        ring: The slots.
        in_flight_each: Steps that one worker may have at a time.
        window: Steps that may be under way or wait to be handed out.

    Attributes:
        ring: See above.
        in_flight_each: See above.
        schedule: The steps of the epoch that runs; None before the first.
    """

    def __init__(self, ring: Ring[Assignment], in_flight_each: int, window: int) -> None:
        super().__init__(window)
        self.ring, self.in_flight_each = ring, in_flight_each
        self.schedule: Schedule | None = None
        self._ring_number = 0
        self._old_rings: list[Ring[Assignment]] = []
        self._assignments: dict[tuple[int, int], Assignment] = {}

    def begin_schedule(self, epoch: int, schedule: Schedule, delivered: int = 0) -> None:
        """Starts an epoch; what is left of the one before is dropped, now or when its answers come.

        Args:
            epoch: Its number.
            schedule: Its steps.
            delivered: Steps that were handed out before.
        """
        self.schedule = schedule
        self.begin(epoch, len(schedule), delivered)
        for ring in self._old_rings:  # nothing that lies in them is wanted any more
            ring.give_up()
        self._old_rings.clear()
        for slot in range(self.ring.num_slots):  # rather than by the results: an interrupt may have lost one
            own = self.ring.owner(slot)
            if own is not None and own.state == "ready" and own.generation < self.generation:
                self.drop(own)

    def use_ring(self, ring: Ring[Assignment], window: int) -> None:
        """Goes on with another ring; assignments under way keep their slots in the old one, which nobody waits for."""
        self._old_rings.append(self.ring)
        self.ring, self.window = ring, window
        self._ring_number += 1

    def give_up_rings(self) -> None:
        """Ends the use of all rings; see ``Ring.give_up``."""
        for ring in (*self._old_rings, self.ring):
            ring.give_up()

    def drop(self, assignment: Assignment) -> None:
        """Takes an assignment's slot back."""
        if assignment.ring_number == self._ring_number:
            self.ring.free(assignment.slot, assignment)

    def assign_all(self, ranks: Set[int]) -> Iterator[Assignment]:
        """Yields new assignments, to be sent, for the workers ``ranks``: as many as they and the ring have room for."""
        if self.is_assigned:
            return
        load = [(count, rank) for rank in ranks if (count := len(self.assigned_to(rank))) < self.in_flight_each]
        heapq.heapify(load)
        while load and self.schedule is not None:
            step = self.next_step()
            if step is None:
                return
            count, rank = heapq.heappop(load)
            new = Assignment(self.generation, self.epoch, self.schedule.step(step), rank, self._ring_number, -1)
            slot = self.ring.take(new)
            if slot is None:
                return
            new.slot = slot
            self._assignments[self.assign(rank)] = new
            yield new
            if count + 1 < self.in_flight_each:
                heapq.heappush(load, (count + 1, rank))

    def answer(self, generation: int, step: int, result: Any) -> Assignment | None:
        """Keeps what came back for an assignment; the assignment, if its result is wanted."""
        own = self._assignments.pop((generation, step), None)
        if own is None:
            return None
        own.state = "ready"  # before it is kept: an interrupt in between leaves a slot that the next epoch takes back
        if self.complete(generation, step, (own, result)):
            return own
        self.drop(own)
        return None

    def cancelled(self, rank: int, generation: int) -> None:
        """Takes off what a worker has of epochs before ``generation``, whatever became of its answers."""
        for key in self.assigned_to(rank):
            if key[0] < generation:
                self.forget(*key)
                self.drop(self._assignments.pop(key))

    def lost(self, worker: int) -> list[tuple[int, int]]:
        """Takes a worker's assignments and their slots back; see ``Scheduler.lost``."""
        gone = super().lost(worker)
        for key in gone:
            self.drop(self._assignments.pop(key))
        return gone

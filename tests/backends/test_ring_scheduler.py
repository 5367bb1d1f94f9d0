"""The scheduler of steps and slots, tried against a model of the processes."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gnnkit.backends.session import Assignment, RingScheduler
from gnnkit.plan import Batching
from gnnkit.runtime.ring import Ring
from gnnkit.sampling.schedule import Schedule


class Processes(RuleBasedStateMachine):
    """Each process works through what it was told in order, and dies at any time; epochs are begun and batches held at any time."""

    @initialize(workers=st.integers(1, 4), steps=st.integers(0, 12), slots=st.integers(2, 10), each=st.integers(1, 3))
    def open(self, workers: int, steps: int, slots: int, each: int) -> None:
        self.scheduler = RingScheduler(Ring[Assignment](slots, 4096), each, max(1, slots - min(3, slots // 2)))
        self.told: dict[int, list[Assignment | int]] = {rank: [] for rank in range(workers)}
        self.schedule = Schedule(steps * 2, Batching(2))
        self.held: list[Assignment] = []
        self.grouped = False
        self.begin()

    @rule()
    def begin(self) -> None:
        self.scheduler.begin_schedule(self.scheduler.generation + 10, self.schedule)
        for rank, told in self.told.items():
            if self.scheduler.assigned_to(rank):
                told.append(self.scheduler.generation)  # the word to drop what is older
        self.assign()

    def assign(self) -> None:
        for jobs in self.scheduler.assign_all(set(self.told)):
            assert 1 <= len(jobs) <= self.scheduler.group and len({job.rank for job in jobs}) == 1
            for job in jobs:
                assert not any(job.slot == other.slot for other in self.held)
                self.told[job.rank].append(job)
        for rank in self.told:
            assert len(self.scheduler.assigned_to(rank)) <= self.scheduler.group * self.scheduler.in_flight_each or self.grouped

    @rule(count=st.integers(1, 5))
    def group(self, count: int) -> None:
        """Batches have become smaller or larger; what was given before may be more than is given now."""
        self.scheduler.group, self.grouped = count, True

    @rule(number=st.integers(0, 3), times=st.integers(1, 3))
    def work(self, number: int, times: int) -> None:
        told = self.told[number % len(self.told)]
        for _ in range(min(times, len(told))):
            job = told.pop(0)
            if isinstance(job, int):
                self.scheduler.cancelled(number % len(self.told), job)
            else:
                self.scheduler.answer(job.generation, job.step.step, f"result {job.step.step}")

    @rule(number=st.integers(0, 3))
    def lose_answers(self, number: int) -> None:
        """As an interrupt does that comes between receiving and booking, and ends the epoch."""
        self.told[number % len(self.told)] = [job for job in self.told[number % len(self.told)] if isinstance(job, int)]
        self.begin()

    @rule(keep=st.booleans())
    def take(self, keep: bool) -> None:
        scheduler = self.scheduler
        while scheduler.delivered in scheduler.results:
            job, result = scheduler.results[scheduler.delivered]
            assert result == f"result {scheduler.delivered}" and job.epoch == scheduler.epoch and scheduler.ring.owner(job.slot) is job
            if keep and len(self.held) < scheduler.ring.num_slots - scheduler.window:
                job.state = "held"
                self.held.append(job)
            else:
                scheduler.drop(job)
            scheduler.hand_out()
        self.assign()

    @precondition(lambda self: self.held)
    @rule()
    def release(self) -> None:
        job = self.held.pop()
        self.scheduler.ring.free(job.slot, job)

    @rule(number=st.integers(0, 3))
    def die(self, number: int) -> None:
        rank = number % len(self.told)
        self.told[rank].clear()
        self.scheduler.lost(rank)
        self.assign()

    @invariant()
    def held_slots_belong_to_their_batches(self) -> None:
        assert all(self.scheduler.ring.owner(job.slot) is job for job in getattr(self, "held", []))

    def teardown(self) -> None:
        """Left alone, the epoch comes to its end, and every slot that nobody holds is free."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(200):
            for rank in self.told:
                self.work(rank, 3)
            self.take(False)
        assert self.scheduler.is_over and self.scheduler.delivered == len(self.schedule)
        owned = [slot for slot in range(self.scheduler.ring.num_slots) if self.scheduler.ring.owner(slot) is not None]
        assert len(owned) == len(self.held)


TestProcesses = Processes.TestCase
TestProcesses.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

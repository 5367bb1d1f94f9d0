"""In which order a sampling process does what several loaders ask of it."""

from __future__ import annotations

from typing import Any

from gnnkit.runtime.worker import JobQueue, NowJob, SampleJob, SlotStep, TrialJob

RING: Any = None  # nobody writes to it


def job(channel: int, step: int, generation: int = 1) -> SampleJob:
    return SampleJob((0, channel), generation, 0, (SlotStep(step, step, RING, 0),))


def order(queue: JobQueue) -> list[tuple[int, int]]:
    found = []
    while not queue.is_idle:
        taken = queue.take()
        found.append((taken.channel[1], taken.steps[0].step if isinstance(taken, SampleJob) else -1))
        queue.done(taken)
    return found


def test_loaders_take_turns() -> None:
    queue = JobQueue(lambda channel, generation: None)
    for step in range(4):
        queue.put(job(1, step))
    for step in range(2):
        queue.put(job(2, step))
    queue.put(job(3, 0))
    assert order(queue) == [(1, 0), (2, 0), (3, 0), (1, 1), (2, 1), (1, 2), (1, 3)]


def test_whoever_waits_for_one_batch_goes_first() -> None:
    queue = JobQueue(lambda channel, generation: None)
    queue.put(job(1, 0))
    queue.put(NowJob((0, 2), 1, 0, 0, None))
    queue.put(TrialJob((0, 3), 0))
    assert order(queue) == [(2, -1), (3, -1), (1, 0)]


def test_many_single_batches_of_one_loader_leave_room_for_epochs_and_for_others() -> None:
    queue = JobQueue(lambda channel, generation: None)
    for number in range(3):
        queue.put(NowJob((1, 1), number, 0, 0, None))
    queue.put(NowJob((2, 2), 0, 0, 0, None))
    for step in range(2):
        queue.put(job(3, step))
    assert order(queue) == [(1, -1), (2, -1), (3, 0), (1, -1), (3, 1), (1, -1)]


def test_loaders_of_the_same_number_in_two_processes_are_two() -> None:
    queue = JobQueue(lambda channel, generation: None)
    for client in (1, 2):
        queue.put(SampleJob((client, 7), 1, 0, (SlotStep(client, client, RING, 0),)))
    queue.forget((1, 7))
    assert queue.take().channel == (2, 7)


def test_cancelling_waits_for_what_runs_and_leaves_other_loaders_alone() -> None:
    said: list[tuple[int, int]] = []
    queue = JobQueue(lambda channel, generation: said.append((channel[1], generation)))
    for channel in (1, 2):
        for step in range(2):
            queue.put(job(channel, step))
    running = queue.take()
    queue.cancel((0, 1), 2)
    queue.put(job(1, 0, generation=2))
    assert said == []
    queue.done(running)
    assert said == [(1, 2)]
    queue.cancel((0, 3), 1)
    assert said == [(1, 2), (3, 1)]
    assert order(queue) == [(2, 0), (1, 0), (2, 1)]


def test_a_loader_that_has_left_is_forgotten() -> None:
    said: list[tuple[int, int]] = []
    queue = JobQueue(lambda channel, generation: said.append((channel[1], generation)))
    queue.put(job(1, 0))
    running = queue.take()
    queue.cancel((0, 1), 2)
    queue.put(job(1, 0, generation=2))
    queue.put(NowJob((0, 1), 1, 0, 0, None))
    queue.forget((0, 1))
    assert not queue.is_idle
    queue.done(running)
    assert queue.is_idle and said == []

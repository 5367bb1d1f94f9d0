"""In which order a sampling process does what several loaders ask of it."""

from __future__ import annotations

from gnnkit.runtime.worker import JobQueue, JobStep, SamplingJob


def job(channel: int, step: int, generation: int = 1, client: int = 0) -> SamplingJob:
    return SamplingJob((client, channel), "sample", generation, 0, (JobStep(step, step),))


def now(client: int, channel: int, number: int) -> SamplingJob:
    return SamplingJob((client, channel), "now", number, 0, (JobStep(0, 0),))


def order(queue: JobQueue) -> list[tuple[int, int]]:
    found = []
    while not queue.is_idle:
        taken = queue.take()
        found.append((taken.channel[1], taken.steps[0].step if taken.kind == "sample" else -1))
        queue.done(taken)
    return found


def test_loaders_take_turns() -> None:
    queue = JobQueue()
    for step in range(4):
        queue.put(job(1, step))
    for step in range(2):
        queue.put(job(2, step))
    queue.put(job(3, 0))
    assert order(queue) == [(1, 0), (2, 0), (3, 0), (1, 1), (2, 1), (1, 2), (1, 3)]


def test_whoever_waits_for_one_batch_goes_first() -> None:
    queue = JobQueue()
    queue.put(job(1, 0))
    queue.put(now(0, 2, 1))
    queue.put(SamplingJob((0, 3), "trial", 0, 0, (JobStep(0, 0),)))
    assert order(queue) == [(2, -1), (3, -1), (1, 0)]


def test_many_single_batches_of_one_loader_leave_room_for_epochs_and_for_others() -> None:
    queue = JobQueue()
    for number in range(3):
        queue.put(now(1, 1, number))
    queue.put(now(2, 2, 0))
    for step in range(2):
        queue.put(job(3, step))
    assert order(queue) == [(1, -1), (2, -1), (3, 0), (1, -1), (3, 1), (1, -1)]


def test_loaders_of_the_same_number_in_two_processes_are_two() -> None:
    queue = JobQueue()
    for client in (1, 2):
        queue.put(job(7, client, client=client))
    queue.forget((1, 7))
    assert queue.take().channel == (2, 7)


def test_cancelling_tells_what_runs_and_leaves_other_loaders_alone() -> None:
    queue = JobQueue()
    for channel in (1, 2):
        for step in range(2):
            queue.put(job(channel, step))
    running = queue.take()
    assert queue.cancel((0, 1), 2) == [(1, 0)]
    queue.put(job(1, 0, generation=2))
    queue.done(running)
    assert queue.cancel((0, 1), 2) == queue.cancel((0, 3), 1) == []
    assert order(queue) == [(2, 0), (1, 0), (2, 1)]


def test_a_loader_that_has_left_is_forgotten() -> None:
    queue = JobQueue()
    queue.put(job(1, 0))
    running = queue.take()
    queue.put(job(1, 0, generation=2))
    queue.put(now(0, 1, 1))
    queue.forget((0, 1))
    assert not queue.is_idle
    queue.done(running)
    assert queue.is_idle

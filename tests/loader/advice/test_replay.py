"""Replaying recorded batches with other numbers of threads and slots."""

from __future__ import annotations

import random

from gnnkit.loader.advice import Work, fewest, replay_s


def simulated_s(work: list[Work], threads: int, slots: int) -> float:
    """What ``replay_s`` says, found by stepping through time in whole units."""
    now, taken, busy_until, done = 0, 0, 0, {}
    working: dict[int, int] = {}
    claimed = 0
    while taken < len(work) or now < busy_until:
        for step, left in list(working.items()):
            if left == 0:
                done[step] = True
                del working[step]
        if now >= busy_until and done.pop(taken, None):
            busy_until = now + int(work[taken].loop_s)
            taken += 1
        while len(working) < threads and claimed < min(len(work), taken + slots):
            working[claimed] = int(work[claimed].sampling_s)
            claimed += 1
        for step in working:
            working[step] -= 1
        now += 1
    return float(now)


def test_a_replay_is_a_simulation() -> None:
    assert replay_s([Work(2, 1)] * 10, 1, 1) == 2 + 9 * 2 + 1, "one at a time: sampling goes on as soon as a batch is taken"
    assert replay_s([Work(2, 5)] * 10, 1, 2) == 2 + 10 * 5, "a slow loop is all that counts"
    assert replay_s([Work(4, 0)] * 8, 4, 4) == 8, "four at a time"
    assert replay_s([Work(4, 0)] * 8, 4, 2) == 16, "as many as there are slots for"
    rng = random.Random(0)
    for _ in range(30):
        work = [Work(rng.randint(1, 9), rng.randint(1, 9)) for _ in range(20)]
        threads, slots = rng.randint(1, 4), rng.randint(1, 6)
        assert replay_s(work, threads, slots) == simulated_s(work, threads, slots), (work, threads, slots)


def test_fewest_takes_the_first_that_is_good_enough() -> None:
    assert fewest([Work(4, 1)] * 100, [(threads, 99) for threads in range(1, 9)])[0] == (4, 99)
    assert fewest([Work(1, 4)] * 100, [(1, 2), (8, 64)])[0] == (1, 2)

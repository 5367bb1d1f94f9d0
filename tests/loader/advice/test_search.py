"""Replaying recorded batches, the options that may be tried, and the search among them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gnnkit import LoaderPlan
from gnnkit.errors import PlanError
from gnnkit.loader.advice.autotune import SearchTrial, fastest, space_of, speed_of, worth_trying
from gnnkit.loader.advice.measuring import Work, fewest, replay_s
from tests.loader.advice.measurements import COLOCATED, SERVERS
from tests.loader.graphs import make

# Replaying ---------------------------------------------------------------------------------------------------------------


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


# What may be tried -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plan() -> LoaderPlan:
    with make() as loader:
        return loader.plan


def space(plan: LoaderPlan, *, cpus: int = 2, most_slots: int = 1000, workers: int = 1, **backend: Any) -> tuple[Any, dict[str, Any]]:
    return space_of(replace(plan, backend={**plan.backend, **backend}), workers=workers, cpus=cpus, most_slots=most_slots)


def test_what_may_be_tried(plan: LoaderPlan) -> None:
    threads, start = space(plan)
    assert start == {"num_threads": 1, "prefetch": 2} and len(threads.grid()) == 4 * 6
    assert {point["num_threads"] for point in threads.grid()} == {1, 2, 3, 4}
    assert threads.grid()[0] == {"num_threads": 1, "prefetch": 0}, "the cheapest first"
    assert {point["num_threads"] for point in space(plan, cpus=64)[0].grid()} == {1, 2, 4, 8, 16}
    assert space(plan, workers=7)[1] in space(plan, workers=7)[0].grid(), "what there is now may always be had"
    few = space(plan, most_slots=4)[0].grid()
    assert max(point["num_threads"] + point["prefetch"] for point in few) == 4

    workers, start = space(plan, **COLOCATED)
    assert start == {"num_workers": 1, "threads_per_worker": 1, "worker_concurrency": 2, "prefetch": 2}
    assert max(point["num_workers"] * point["threads_per_worker"] for point in workers.grid()) == 4
    assert space(plan, **{**COLOCATED, "channel_size": "1GB"})[0].values["channel_size"] == ("1GB", None)

    servers, start = space(plan, workers=2, **SERVERS)
    assert start == {"workers_per_server": 1, "threads_per_worker": 1, "worker_concurrency": 2, "prefetch": 2}
    assert max(2 * point["workers_per_server"] * point["threads_per_worker"] for point in servers.grid()) == 4
    joined, start = space(plan, **{**SERVERS, "address": "unix:/servers"})
    assert start == {"worker_concurrency": 2, "prefetch": 2} and len(joined.grid()) == 3 * 6


def test_what_cannot_be_tuned_is_refused(plan: LoaderPlan) -> None:
    with pytest.raises(PlanError, match="graphlearn-torch"):
        space(plan, kind="Glt")
    ranks = replace(plan, batching=replace(plan.batching, rank=0, world_size=2))
    with pytest.raises(PlanError, match="one of 2, who would wait") as error:
        space_of(ranks, workers=1, cpus=2, most_slots=9)
    assert "world_size=1" in str(error.value)


# The search --------------------------------------------------------------------------------------------------------------


def tried(space: Any, start: Any, run: Callable[[Any], SearchTrial], most: int) -> list[SearchTrial]:
    """All trials of a search that may make so many."""
    trials: list[SearchTrial] = []
    for point in worth_trying(space, start, trials):
        if len(trials) == most:
            break
        trials.append(run(point))
    return trials


def chosen(space: Any, trials: list[SearchTrial]) -> Any:
    return min(fastest(trials, 0.05), key=space.cost)


def test_the_order_of_trials(plan: LoaderPlan) -> None:
    found, start = space(plan)
    trials = tried(found, start, lambda point: SearchTrial(point, 2.0 ** (point["num_threads"] + point["prefetch"]), 1.0, "workers"), 5)
    assert [(trial.options["num_threads"], trial.options["prefetch"]) for trial in trials] == [(1, 2), (2, 2), (3, 2), (4, 2), (4, 8)]
    is_slower = tried(found, start, lambda point: SearchTrial(point, 1.0 / (point["num_threads"] + point["prefetch"]), 1.0, "workers"), 3)
    assert [(trial.options["num_threads"], trial.options["prefetch"]) for trial in is_slower] == [(1, 2), (2, 2), (1, 8)]


def threads_of(point: Any) -> int:
    return int(point.get("num_threads", point.get("num_workers", 1) * point.get("threads_per_worker", 1)))


def slots_of(point: Any) -> int:
    if "num_threads" in point:
        return int(point["num_threads"] + point["prefetch"])
    return int(point["num_workers"] * max(point["worker_concurrency"], point["threads_per_worker"]) + point["prefetch"])


def machine(cpus: int, loop_s: float, spread: float, each_process: float = 1.0) -> Callable[[Any], float]:
    """Seeds per second of a made-up machine: the replay of batches that vary, with threads that share its processors."""
    rng = random.Random(1)
    varying = [math.exp(rng.gauss(0, spread)) for _ in range(300)]

    def speed(point: Any) -> float:
        threads = threads_of(point)
        slower = max(1.0, threads / cpus) * (1 + 0.02 * max(0, threads - cpus))
        slower *= each_process if point.get("threads_per_worker", 1) > 1 else 1.0
        return 300 / replay_s([Work(0.1 * factor * slower, loop_s) for factor in varying], threads, slots_of(point))

    return speed


MACHINES = {
    "sampling": machine(2, 0.0, 0.1),
    "sampling-4": machine(4, 0.0, 0.1),
    "balanced": machine(2, 0.045, 0.1),
    "bursts": machine(2, 0.05, 0.9),
    "loop": machine(2, 0.3, 0.1),
    "threads-lose": machine(2, 0.0, 0.2, each_process=1.4),
}


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("noise", [0.0, 0.03])
@pytest.mark.parametrize("backend", ["InProcess", "Colocated"])
def test_a_quarter_of_the_grid_is_enough(plan: LoaderPlan, name: str, noise: float, backend: str) -> None:
    speed, cpus = MACHINES[name], 4 if name == "sampling-4" else 2
    found, start = space(plan, cpus=cpus, **(COLOCATED if backend == "Colocated" else {}))
    rng, grid = random.Random(7), found.grid()

    def run(point: Any) -> SearchTrial:
        bottleneck = "consumer" if name == "loop" else "processors" if threads_of(point) >= cpus else "workers"
        return SearchTrial(point, speed(point) * rng.uniform(1 - noise, 1 + noise), 1.0, bottleneck, threads_of(point) >= cpus)

    most = max(3, min(16, len(grid) // 4))
    trials = tried(found, start, run, most)
    best = chosen(found, trials)
    assert len(trials) <= most <= len(grid) / 4
    assert speed(best) >= 0.9 * max(map(speed, grid)), (best, max(grid, key=speed))
    if name == "loop":
        assert [trial.options for trial in trials] == [start], "nothing that could be tried helps a slow loop"


def test_the_cheapest_of_equals_wins_and_outliers_are_tried_again(plan: LoaderPlan) -> None:
    found, start = space(plan)
    two = {**start, "num_threads": 2}
    flat = tried(found, two, lambda point: SearchTrial(point, 1000.0, 1.0, "workers"), 6)
    assert chosen(found, flat) == two and speed_of(flat, {"num_threads": 9}) == 0.0
    assert len({str(trial.options) for trial in flat}) < len(flat) <= 6

    lucky = iter([1000.0, 1400.0])  # the second trial was lucky, and that does not happen again
    outlier = tried(found, start, lambda point: SearchTrial(point, next(lucky, 1000.0), 1.0, "workers"), 24)
    first_two = [trial.options for trial in outlier[:2]]
    assert all(sum(trial.options == point for trial in outlier) > 1 for point in first_two)
    assert SearchTrial(start, 5.0, 0.0).seeds_per_s == 0.0

"""Loaders on the same graph share their processes: each with its own ring and epoch, coming and going at any time."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from gnnkit import Colocated, GraphLoader, InProcess
from gnnkit.errors import LoaderClosed, MemoryLimitError, PlanError, StartTimeout, WorkerDied
from tests.backends.setups import descendants, is_gone, loader_of, workers
from tests.helpers.batches import same
from tests.helpers.machine import in_time
from tests.helpers.system import pretend_free_memory
from tests.helpers.waiting import wait_until
from tests.loader.graphs import NUM_NODES, make, plain, seeds

pytestmark = pytest.mark.slow

EVERYTHING = list(range(NUM_NODES))
# What idle processes may take to go, on a busy machine.
IDLE_S = 30.0


@contextmanager
def two_of_a_kind() -> Iterator[tuple[GraphLoader, GraphLoader]]:
    """Two loaders of different plans on the same graph and processes."""
    with loader_of("Colocated-2") as train, train.for_split("valid", batch_size=1, num_neighbors=[-1]) as valid:
        yield train, valid


@pytest.fixture
def pair() -> Iterator[tuple[GraphLoader, GraphLoader]]:
    with two_of_a_kind() as loaders:
        yield loaders


def assert_whole(loader: GraphLoader, epoch: int, found: list[Any]) -> None:
    """Compares an epoch with one that a thread of this process samples."""
    plan = replace(loader.plan, backend=InProcess(1).to_json())
    with GraphLoader(plan, loader.pipeline.graph, [].append) as reference:
        reference.set_epoch(epoch)
        for batch, wanted in zip(found, reference, strict=True):
            same(batch, wanted)


@pytest.mark.core
def test_siblings_share_processes_and_the_last_one_out_ends_them(pair: tuple[GraphLoader, GraphLoader]) -> None:
    train, valid = pair
    pids = workers(train)
    assert workers(valid) == pids and descendants() == set(pids.values()) and len(pids) == 2
    for epoch in range(2):
        held = [batch for both in zip(train, valid, strict=False) for batch in both]
        assert_whole(train, epoch, held[::2])
        assert len(held) == 30
    train.close()
    assert workers(valid) == pids
    assert_whole(valid, 2, list(valid))
    third = valid.for_split("test")
    valid.close()
    assert workers(third) == pids
    del third
    gc.collect()
    assert not descendants()


@pytest.fixture(scope="class")
def opened() -> Iterator[tuple[GraphLoader, GraphLoader]]:
    with two_of_a_kind() as loaders:
        yield loaders


class TestOfOnePair:
    """The same two loaders for all of them; no process dies or ends."""

    @pytest.fixture
    def pair(self, opened: tuple[GraphLoader, GraphLoader]) -> tuple[GraphLoader, GraphLoader]:
        for loader in opened:
            loader.set_epoch(0)
        return opened

    def test_other_options_or_graphs_have_processes_of_their_own(self, pair: tuple[GraphLoader, GraphLoader]) -> None:
        train, _ = pair
        with train.for_split("valid", backend=Colocated(1)) as other, loader_of("Colocated-1", seed=3) as third:
            assert not set(workers(train).values()) & (set(workers(other).values()) | set(workers(third).values()))
            assert len(descendants()) == 4

    def test_a_paused_consumer_does_not_stall_the_others(self, pair: tuple[GraphLoader, GraphLoader]) -> None:
        train, valid = pair
        paused = iter(valid)
        first = next(paused)
        for epoch in range(3):
            assert_whole(train, epoch, list(train))
        assert_whole(valid, 0, [first, *paused])

    def test_loaders_in_several_threads(self, pair: tuple[GraphLoader, GraphLoader]) -> None:
        found: dict[int, list[Any]] = {}

        def iterate(number: int, loader: GraphLoader) -> None:
            found[number] = [list(loader) for _ in range(3)]

        third = pair[0].for_split("test", batch_size=3)
        loaders = [*pair, third]
        threads = [threading.Thread(target=iterate, args=item) for item in enumerate(loaders)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number, loader in enumerate(loaders):
            for epoch in range(3):
                assert_whole(loader, epoch, found[number][epoch])
        third.close()


def num_rings() -> int:
    """The rings that this process maps."""
    return sum("memfd:gnnkit-ring" in line for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.fixture
def by_hand() -> Iterator[None]:
    """Keeps the garbage collector away; what earlier tests have left is gone."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.core
def test_loaders_come_and_go_while_others_work(by_hand: None) -> None:
    before = num_rings()
    with loader_of("Colocated-2") as steady:
        iterator, found = iter(steady), []
        for number in range(6):
            guest = steady.for_split("valid", seed=number, batch_size=4)
            found += [next(iterator), next(iterator)]
            visit = iter(guest)
            next(visit)
            if number % 2:
                guest.close()
            del guest, visit
        found += list(iterator)
        assert num_rings() == before + 1, "its own; none of its guests' waits for the garbage collector"
        assert_whole(steady, 0, found)


def test_a_death_is_an_error_for_everybody_who_was_waiting(pair: tuple[GraphLoader, GraphLoader]) -> None:
    train, valid = pair
    idle = train.for_split("test")
    iterators = [iter(train), iter(valid)]
    starts = [[next(iterator)] for iterator in iterators]
    for pid in workers(train).values():
        os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda pid=pid: is_gone(pid))
    for loader, iterator, found in zip(pair, iterators, starts, strict=True):
        with pytest.raises(WorkerDied):
            for batch in iterator:
                found.append(batch)
        found += list(loader.resume())
        assert_whole(loader, 0, found)
    assert_whole(idle, 0, list(idle))
    idle.close()


# Taken over -------------------------------------------------------------------------------------------------------------------


def test_a_newer_loader_takes_an_older_ones_place() -> None:
    data = plain()
    old = make(data, backend=Colocated(1))
    list(old)
    iterator = iter(old)
    found = [next(iterator) for _ in range(4)]
    pids = descendants()
    new = make(data, backend=Colocated(1))
    assert old.status().state == "idle" and not workers(old)
    assert len(descendants()) == 1 and not descendants() & pids  # from_pyg() makes a graph of its own each time
    assert_whole(new, 0, list(new))
    found += [next(iterator)]  # takes a place of its own again, and goes on
    assert new.status().state == "ready" and len(descendants()) == 2
    found += list(iterator)
    assert_whole(old, 1, found)
    assert_whole(new, 1, list(new))
    new.close()
    old.close()
    assert not descendants()


def test_loaders_that_differ_keep_their_places() -> None:
    data = plain()
    with make(data, backend=Colocated(1)) as one, make(data, backend=Colocated(1), seed=1) as other:
        assert len(descendants()) == 2 and workers(one) and workers(other)


def test_what_was_taken_over_may_be_forgotten_or_closed() -> None:
    data = plain()
    old, older = make(data, backend=Colocated(1)), make(data, backend=Colocated(1))
    iterator = iter(old)
    next(iterator)
    new = make(data, backend=Colocated(1))
    old.close()
    with pytest.raises(LoaderClosed):
        next(iterator)
    with pytest.raises(LoaderClosed):
        old.peek()
    del old, older, iterator
    gc.collect()
    assert sorted(seeds(new)) == EVERYTHING and len(descendants()) == 1
    new.close()


# Idle -------------------------------------------------------------------------------------------------------------------------


def test_processes_that_nobody_uses_end_and_come_back() -> None:
    """They end by themselves: nothing of ours runs in this process meanwhile."""
    with loader_of("", backend=Colocated(1, idle_timeout_s=0.5)) as loader:
        held = list(loader)
        threads = threading.active_count()
        assert wait_until(lambda: not descendants(), IDLE_S) and threading.active_count() == threads
        assert len(loader.peek().input_id) == 7
        assert wait_until(lambda: not descendants(), IDLE_S)
        assert_whole(loader, 1, list(loader))
        iterator = iter(loader)
        found = [next(iterator)]
        assert wait_until(lambda: not descendants(), IDLE_S)  # in the middle of an epoch
        found += list(iterator)
        assert_whole(loader, 2, found)
        assert loader.status().details["restarts"] == 0
        assert_whole(loader, 0, held)


def test_a_loader_that_nobody_uses_gives_its_ring_up() -> None:
    with loader_of("", backend=Colocated(1, idle_timeout_s=0.3)) as idle, idle.for_split("valid") as busy:
        iterator = iter(idle)
        found = [next(iterator), next(iterator)]
        deadline = time.monotonic() + IDLE_S
        while idle.status().state != "idle" and time.monotonic() < deadline:
            list(busy)
        assert idle.status().state == "idle"
        found += list(iterator)
        assert_whole(idle, 0, found)


def test_a_process_that_does_not_come_back_is_an_error_for_whoever_waits_for_its_batch() -> None:
    options: dict[str, Any] = {"start_timeout_s": 15.0, "batch_timeout_s": 120.0}
    with loader_of("", backend=Colocated(1, idle_timeout_s=0.3), **options) as loader:
        assert wait_until(lambda: not descendants(), IDLE_S)

        def stop() -> None:
            # Before it is a program of its own, this process stands still with it.
            assert wait_until(lambda: any("gnnkit.cluster.worker" in psutil.Process(pid).cmdline() for pid in descendants()), IDLE_S)
            for pid in descendants():
                os.kill(pid, signal.SIGSTOP)

        stopper = threading.Thread(target=stop)
        stopper.start()
        started = time.monotonic()
        with pytest.raises(StartTimeout, match="was not ready after"):
            loader.peek()
        stopper.join()
        assert in_time(time.monotonic() - started, 60.0)  # of its start, not of the batch
        assert len(loader.peek().input_id) == 7


def test_a_loader_that_finds_no_memory_to_come_back_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with loader_of("", backend=Colocated(1, idle_timeout_s=0.3)) as idle, idle.for_split("valid") as busy:
        iterator = iter(idle)
        found = [next(iterator)]
        deadline = time.monotonic() + IDLE_S
        while idle.status().state != "idle" and time.monotonic() < deadline:
            list(busy)
        with monkeypatch.context() as short:
            pretend_free_memory(short, 0)
            for wanted in (lambda: next(iterator), idle.resume, idle.peek):
                with pytest.raises(MemoryLimitError, match="batches under way"):
                    wanted()
        assert_whole(idle, 0, found + list(idle.resume()))


def test_a_process_that_works_for_long_is_not_idle() -> None:
    with loader_of("", backend=Colocated(1, idle_timeout_s=3.0), batch_size=1) as loader:
        pids = workers(loader)
        for _ in loader:
            time.sleep(0.045)
        assert workers(loader) == pids


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), "600", True])
def test_idle_timeouts_that_make_no_sense(value: Any) -> None:
    with pytest.raises(PlanError, match="idle_timeout_s"):
        Colocated(idle_timeout_s=value)


# Taken up -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["InProcess-2", "Colocated-2"])
def test_resuming_whatever_broke_the_epoch(name: str) -> None:
    with loader_of(name) as loader:
        found: list[Any] = list(loader.resume())  # the first epoch: nothing has broken
        assert_whole(loader, 0, found)
        assert list(loader.resume()) == [] and loader.epoch == 0  # it is complete
        found = []
        for batch in loader:
            found.append(batch)
            if len(found) == 3:
                break
        for error in (ZeroDivisionError, KeyboardInterrupt):
            with pytest.raises(error):
                for number, batch in enumerate(loader.resume()):
                    found.append(batch)
                    if number == 2:
                        raise error
        loader.peek()
        found += list(loader.resume())
        assert loader.epoch == 1
        assert_whole(loader, 1, found)
        assert_whole(loader, 2, list(loader))


def test_resuming_from_a_state() -> None:
    with loader_of("Colocated-1") as loader:
        iterator = iter(loader)
        found = [next(iterator) for _ in range(4)]
        state = loader.state_dict()
        list(iterator)
        loader.load_state_dict(state)
        assert_whole(loader, 0, found + list(loader.resume()))


def test_resuming_after_an_error_of_the_users() -> None:
    """The batch on which ``transform`` failed was not handed out."""
    calls: list[int] = []

    def transform(batch: Any) -> Any:
        calls.append(1)
        if len(calls) == 5:
            raise ValueError("not this one")
        return batch

    with loader_of("Colocated-1", transform=transform) as loader:
        found = []
        with pytest.raises(ValueError, match="not this one"):
            for batch in loader:
                found.append(batch)
        assert len(found) == 4
        found += list(loader.resume())
        assert_whole(loader, 0, found)

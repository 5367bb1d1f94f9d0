"""Measuring a real loader, without touching what it does."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gnnkit
from gnnkit import Colocated, GraphLoader, InProcess
from gnnkit.loader.advice import Gauge, advise, last_records, measure, read_counters
from gnnkit.loader.history import BatchRecord
from tests.helpers.waiting import HANG_S, wait_until
from tests.loader.graphs import make, plain, seeds


def record(**values: Any) -> BatchRecord:
    usual: dict[str, Any] = dict.fromkeys(BatchRecord._fields, 0) | {"worker": "thread 0", "began_s": math.nan}
    return BatchRecord(**{**usual, **values})


def test_how_far_to_look_back() -> None:
    records = [record(index=i, asked_s=float(i), wait_s=0.5) for i in range(10)]
    assert [r.index for r in last_records(iter(records), 3.0)] == [6, 7, 8, 9]
    assert len(last_records(records, 1e9)) == 10 and last_records([], 1.0) == []
    assert [r.index for r in last_records(records, 0.0)] == [9]


def test_what_is_measured_is_what_has_happened() -> None:
    with make(prefetch=3, backend=InProcess(num_threads=2), batch_size=5) as loader:
        before = measure(loader.pipeline)
        assert (before.batches, before.threads, before.slots, before.prefetch) == (0, 2, 5, 3)
        assert advise(before).bottleneck == "none"
        expected = [seeds([batch]) for _ in range(2) for batch in loader]
        loader.set_epoch(0)
        again = []
        for _ in range(2):
            for batch in loader:
                again.append(seeds([batch]))
                measure(loader.pipeline)
        assert again == expected, "looking changes nothing"
        found = measure(loader.pipeline, 1e9)
        records = list(loader.records)
        assert (found.batches, found.seeds) == (len(records), sum(map(len, expected)) * 2)
        assert sum(found.shares.values()) == pytest.approx(1.0)
        assert found.seconds == pytest.approx(sum(r.wait_s + r.collate_s + r.transform_s + r.transfer_s + r.consumer_s for r in records))
        assert found.seeds_per_s == pytest.approx(found.seeds / found.seconds)
        assert set(found.busy_of) <= {"thread 0", "thread 1", "loop"} and 0 < found.busy <= 1
        assert len(found.work) == min(128, len(records))
        assert 0 < found.start_share < 1 and found.cpus >= 1
        assert found.graph_bytes > 0 and found.batch_bytes > 0 and not found.will_copy and not found.is_remote


def test_a_slow_loop_and_a_slow_transform_are_named() -> None:
    pause = threading.Event()
    with make(batch_size=20) as loader:
        for _ in range(4):
            for _batch in loader:
                pause.wait(0.03)
        assert advise(measure(loader.pipeline)).bottleneck == "consumer"
    with make(batch_size=20, transform=lambda batch: pause.wait(0.03) or batch) as loader:
        for _ in range(4):
            for _batch in loader:
                pass
        assert advise(measure(loader.pipeline)).bottleneck == "transform"


def test_counters_are_those_of_the_threads_that_sample() -> None:
    pid, stop, ids = os.getpid(), threading.Event(), {}

    def spin() -> None:
        ids["spin"] = threading.get_native_id()
        while not stop.is_set():
            sum(range(1000))

    def rest() -> None:
        ids["rest"] = threading.get_native_id()
        stop.wait()

    def cpu_s(name: str) -> float:
        return read_counters([(pid, [ids[name]])]).samplers[pid].cpu_s

    threads = [threading.Thread(target=target) for target in (spin, rest)]
    for thread in threads:
        thread.start()
    try:
        assert wait_until(lambda: len(ids) == 2)
        first = read_counters([(pid, [])])
        before = {name: cpu_s(name) for name in ids}
        assert wait_until(lambda: cpu_s("spin") > before["spin"] + 0.05, timeout_s=30.0)
        used = {name: cpu_s(name) - before[name] for name in ids}
        last = read_counters([(pid, [])])
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert used["spin"] >= 0.05 > 0.02 > used["rest"] >= 0
    assert last.samplers[pid].cpu_s - first.samplers[pid].cpu_s >= 0.05, "all threads"
    assert last.process_s - first.process_s >= 0.05
    assert last.time_s > first.time_s and (last.idle_s >= first.idle_s or math.isnan(last.idle_s))
    assert read_counters([(1 << 30, [])]).samplers == {}, "a process that is gone counts nothing"


def test_readings_are_taken_now_and_then_while_an_epoch_runs() -> None:
    with make(batch_size=20) as loader:
        gauge, busy = (Gauge(loader.pipeline, loader.pipeline.graph, gap_s) for gap_s in (1e9, 0.0))
        assert gauge.around(0.0, 1e12) is None, "there is none yet"
        list(loader)
        assert len(gauge.readings) == 2, "its beginning, its end, and not one for every batch"
        first, last = gauge.readings
        assert gauge.around(0.0, math.inf) == (first, last) == gauge.around(first.time_s, last.time_s)
        assert len(busy.readings) >= 2 + len(loader)
        assert os.getpid() in busy.readings[-1].samplers


def test_what_the_system_does_not_say_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")  # as on systems that do not say which processors are whose
    with make() as loader:
        list(loader)
        found = measure(loader.pipeline)
        assert math.isnan(found.idle_cpus) and found.loop_cpus >= 0


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("stores") / "plain"
    gnnkit.partition(plain(), 1, "contiguous", path)
    yield path


def test_a_copy_in_memory_can_be_had_while_older_loaders_are_there(store: Path) -> None:
    options: dict[str, Any] = {"num_neighbors": [3, 2], "batch_size": 7, "progress": False, "backend": InProcess(num_threads=1)}
    with GraphLoader.from_store(store, memory_budget=0, **options) as old:
        expected = [seeds([batch]) for batch in old]
        assert not measure(old.pipeline).will_copy and old.status().graph_bytes == 0
        with GraphLoader.from_store(store, memory_budget=1 << 30, **options) as new:
            assert not new.pipeline.graph.memory(0).is_copying, "it is made with the first batch"
            assert [seeds([new.peek()])] == expected[:1] and new.pipeline.graph.memory(0).wait(HANG_S)
            assert new.status().graph_bytes == old.status().graph_bytes > 0, "one copy for both"
            assert measure(new.pipeline).copied_bytes > 0 and not measure(new.pipeline).will_copy
            old.set_epoch(0)
            assert [seeds([batch]) for batch in old] == [seeds([batch]) for batch in new] == expected


def test_processes_are_measured_too(store: Path) -> None:
    options: dict[str, Any] = {"num_neighbors": [3, 2], "batch_size": 7, "progress": False}
    own: dict[str, Any] = {"memory_budget": 0, "backend": InProcess(num_threads=1), **options}
    with (
        GraphLoader.from_store(store, **own) as old,
        GraphLoader.from_store(store, backend=Colocated(num_workers=1, threads_per_worker=2), **options) as loader,
    ):
        assert wait_until(lambda: list(loader) and loader.status().graph_bytes > 0, timeout_s=30.0)
        assert old.status().graph_bytes == 0
        with GraphLoader.from_store(store, **own) as new:
            assert new.status().graph_bytes == old.status().graph_bytes > 0, "a copy that is there is used"
            assert [seeds([batch]) for batch in old] == [seeds([batch]) for batch in new]
        found = measure(loader.pipeline)
        assert (found.kind, found.workers, found.threads) == ("Colocated", 1, 2)
        assert found.slots == loader.status().slots > 2
        assert set(found.busy_of) <= {"process 0, thread 0", "process 0, thread 1"} and found.busy > 0
        pids = {process.pid for process in loader.status().processes} - {os.getpid()}
        assert set(loader.pipeline.gauge.readings[-1].samplers) == pids
        assert 0 <= found.loop_cpus < 64 and 0 <= found.blocked <= 1 and 0 <= found.starved <= 1
        assert advise(found).sentence

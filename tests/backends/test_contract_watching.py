"""What every backend shows of itself while it works, and how it is held, restarted and closed."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from gnnkit import Colocated, GraphLoader, GraphStore, InProcess
from gnnkit.errors import BatchTimeout, LoaderClosed
from gnnkit.runtime.supervisor import Exit, Supervisor
from gnnkit.runtime.wire import Message
from gnnkit.waiting import begin_apart
from tests.backends.setups import FAULT_S, is_gone, loader_of
from tests.helpers.batches import same
from tests.helpers.interrupted_starts import interrupt_the_start_of
from tests.helpers.waiting import HANG_S, wait_until
from tests.helpers.watched import Watched

pytestmark = pytest.mark.slow

# What may sample for each, and the processes that it has beside this one.
WHO: dict[str, tuple[Any, set[str], set[str]]] = {
    "InProcess": (InProcess(2), {"thread 0", "thread 1", "loop"}, set()),
    "Colocated": (Colocated(1, threads_per_worker=2), {"process 0, thread 0", "process 0, thread 1"}, {"process 0"}),
    "GraphStore": (
        GraphStore(2),
        {"server 0, process 0", "server 1, process 0"},
        {"server 0", "server 1", "server 0, process 0", "server 1, process 0"},
    ),
    "GraphStore by its address": (
        GraphStore(1, address="127.0.0.1:0"),
        {"receiver, thread 0", "receiver, thread 1", "receiver, thread 2", "receiver, thread 3", "receiver"},
        {"receiver", "server 0", "server 0, process 0"},
    ),
}


@pytest.fixture(params=WHO)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def loader(kind: str) -> Iterator[GraphLoader]:
    with loader_of("", backend=WHO[kind][0]) as loader:
        yield loader


def reference(epoch: int) -> list[Any]:
    with loader_of("inprocess", backend=InProcess(1)) as loader:
        loader.set_epoch(epoch)
        return list(loader)


def begun(function: Callable[[], Any]) -> Future[Any]:
    """What becomes of a function in a thread of its own."""
    return begin_apart(function, "test", daemon=False)


def others(loader: GraphLoader) -> dict[str, int]:
    """Pids of a loader's processes beside this one, by name."""
    return {process.name: process.pid for process in loader.status().processes if process.pid != os.getpid()}


def test_watched_held_restarted_and_closed(loader: GraphLoader, kind: str) -> None:
    """One loader for all of it: processes take seconds to start."""
    _, lanes, names = WHO[kind]
    assert set(others(loader)) == names
    _epochs_are_booked(loader, lanes)
    _a_pause_holds_batches_back(loader)
    _new_samplers_go_on_with_the_epoch(loader, names)
    _closing_wakes_whoever_waits(loader, names)


def _epochs_are_booked(loader: GraphLoader, lanes: set[str]) -> None:
    iterator = iter(loader)
    first = next(iterator)
    during = loader.status()
    assert (during.state, loader.history.stages[-1].state) == ("sampling", "running") and 0 <= during.batches_ready <= during.slots
    rest, began = [], time.perf_counter()
    for batch in iterator:
        rest.append(batch)
        began = time.perf_counter()
    end_s = time.perf_counter() - began  # that asking for the end of the epoch took, which no batch is booked for
    batches = [first, *rest]
    records, stats = list(loader.records), loader.stats()
    slots = max(during.slots, loader.status().slots)  # batches that are sampled together in the loop take more
    assert [record.index for record in records] == [loader.pipeline.batches.schedule().step(step).batch_index for step in range(15)]
    assert {record.epoch for record in records} == {0} and loader.records.of_epoch(0) == records == loader.records.window(600)
    assert {record.worker for record in records} <= lanes and "" not in lanes
    for record, batch in zip(records, batches, strict=True):
        assert (record.seeds, record.nodes, record.edges) == (batch.batch_size, batch.num_nodes, batch.num_edges)
        assert record.sample_s > 0 and record.gather_s > 0 and not math.isnan(record.began_s)
        # Sampled before it was handed out; all processes of a host have one clock.
        assert record.began_s + record.sample_s <= record.delivered_s + 0.001 and 0 <= record.ready <= slots
    assert all(one.delivered_s <= other.asked_s + 0.001 for one, other in zip(records, records[1:], strict=False))
    for name in ("seeds", "nodes", "edges", "nbytes", "collate_s", "consumer_s", "sample_s", "gather_s"):
        assert sum(getattr(record, name) for record in records) == pytest.approx(getattr(stats, name), rel=1e-6, abs=0.05), name
    waited_s = sum(record.wait_s for record in records)
    assert 0 < waited_s <= stats.wait_s + 1e-6 and stats.wait_s <= waited_s + end_s + 1e-6
    after = loader.status()
    assert after.state == "ready" and after.slots >= 2 and after.processes[0].name == "trainer" and after.processes[0].pid == os.getpid()
    for process in after.processes:
        assert process.state == "running" and process.cpu_s > 0 and process.rss >= process.private > 0 and process.threads >= 1, process
        assert (process.log is None) == (process.name == "trainer") and (process.log is None or os.path.exists(process.log))
    assert len(after.processes) - 1 == len(others(loader))
    epoch = loader.history.stages[-1]
    assert (epoch.stage, epoch.label, epoch.done, epoch.fraction) == ("epoch", "0", 15, 1.0)
    assert all(stage.state == "done" for stage in loader.history.stages), "nothing goes on"


def _a_pause_holds_batches_back(loader: GraphLoader) -> None:
    iterator: Any = iter(loader)
    got = [next(iterator)]
    loader.pause()
    loader.pause()
    assert loader.is_paused and loader.status().state == "paused" and "(paused)" in repr(loader)
    with pytest.raises(BatchTimeout, match="paused"):
        iterator.within(0.01)
    rest = begun(lambda: list(iterator))
    if len(loader.status().processes) == 1:  # what processes have sampled is seen once somebody takes a batch
        assert wait_until(lambda: loader.status().batches_ready == loader.status().slots, FAULT_S), "workers fill their slots"
    assert not rest.done() and loader.stats().batches == 1
    loader.peek()  # is no batch of the epoch
    loader.unpause()
    loader.unpause()
    got += rest.result(HANG_S)
    for batch, wanted in zip(got, reference(1), strict=True):
        same(batch, wanted)
    records = loader.records.of_epoch(1)
    assert records[1].paused_s > 0 and not any(record.paused_s for record in records[2:]) and not loader.is_paused
    assert loader.stats().paused_s >= records[1].paused_s and loader.history.last_error is None


def _new_samplers_go_on_with_the_epoch(loader: GraphLoader, names: set[str]) -> None:
    before, iterator = others(loader), iter(loader)
    got = [next(iterator), next(iterator)]
    waiting = begun(lambda: [next(iterator) for _ in range(12)])  # the loop goes on meanwhile
    loader.restart_workers()
    got += waiting.result(HANG_S)
    now = others(loader)
    assert set(now) == names and not set(now.values()) & set(before.values())
    assert wait_until(lambda: all(map(is_gone, before.values())), FAULT_S)
    loader.restart_workers()  # and once more, between two batches of one thread
    got += list(iterator)
    for batch, wanted in zip(got, reference(2), strict=True):
        same(batch, wanted)
    assert len(loader.sample([1, 2]).input_id) == 2
    stages: tuple[Any, ...] = loader.history.stages
    assert loader.history.last_error is None and all(stage.state == "done" for stage in stages), stages


def _closing_wakes_whoever_waits(loader: GraphLoader, names: set[str]) -> None:
    pids, iterator = others(loader), iter(loader)
    got = [next(iterator)]
    if names == {"process 0"}:
        os.kill(pids["process 0"], signal.SIGSTOP)
    else:
        loader.pause()
    waiting = begun(lambda: list(iterator))
    assert not waiting.done()
    begun(loader.close).result(HANG_S)
    with pytest.raises(LoaderClosed):
        waiting.result(HANG_S)
    for call in (loader.pause, loader.restart_workers, loader.peek, lambda: next(iterator)):
        with pytest.raises(LoaderClosed):
            call()
    loader.unpause()
    status = loader.status()
    assert status.state == "closed" and [process.name for process in status.processes] == ["trainer"] and "closed" in repr(loader)
    assert wait_until(lambda: all(map(is_gone, pids.values())), FAULT_S)
    assert loader.history.last_error is None and (loader.history.stages[-1].state, loader.history.stages[-1].text) == ("done", "stopped")
    assert len(loader.records) >= 46
    same(got[0], reference(3)[0])


def test_closing_wakes_whoever_waits_for_a_batch_that_is_being_sampled() -> None:
    begins, goes_on, blocks = threading.Event(), threading.Event(), threading.Event()

    def sample() -> None:
        if blocks.is_set():
            begins.set()
            goes_on.wait(HANG_S)
            raise AssertionError("nobody wants it")

    with loader_of("", backend=Watched(1, sample)) as loader:
        iterator = iter(loader)
        same(next(iterator), reference(0)[0])
        blocks.set()
        waiting = begun(lambda: list(iterator))
        assert begins.wait(HANG_S)
        closing = begun(loader.close)
        with pytest.raises(LoaderClosed):
            waiting.result(HANG_S)
        goes_on.set()
        closing.result(HANG_S)
        assert loader.history.last_error is None


def test_threads_go_on_where_an_interrupt_keeps_others_from_taking_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    with loader_of("inprocess", backend=InProcess(2)) as loader:
        batches = [next(iterator := iter(loader))]
        interrupt_the_start_of("gnnkit-sampler", monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            loader.restart_workers()
        for batch, wanted in zip([*batches, *iterator], reference(0), strict=True):
            same(batch, wanted)
        loader.restart_workers()
        assert len(list(loader)) == 15


def test_what_servers_report_last_of_their_start_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes on another way than that their processes are there, and here a second later."""
    listen, late = Supervisor.listen, list[tuple[int, Message | Exit]]()
    until: list[float] = []

    def listen_later(supervisor: Supervisor) -> Iterator[tuple[int, Message | Exit]]:
        for rank, message in listen(supervisor):
            if supervisor.options.title == "server {rank}" and isinstance(message, Message):
                if message.kind == "event" and not until:
                    until.append(time.monotonic() + 1.0)
                late.append((rank, message))
            else:
                yield rank, message
        while late and (not until or time.monotonic() >= until[0]):
            yield late.pop(0)

    # A server speaks in two ways, and nothing from outside holds one of them up without the other.
    monkeypatch.setattr(Supervisor, "listen", listen_later)
    with loader_of("", backend=GraphStore(1)) as loader:
        assert until and ("compile", "done") in {(stage.stage, stage.state) for stage in loader.history.stages}
        assert all(stage.state == "done" for stage in loader.history.stages)

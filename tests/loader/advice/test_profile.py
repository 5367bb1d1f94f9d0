"""``loader.profile()``: what it looks at, and how it shows itself."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from gnnkit import Colocated, GraphLoader, GraphStore, InProcess, OnDevice, partition, set_options
from gnnkit.backends.base import Backend
from gnnkit.errors import LoaderClosed, PlanError
from gnnkit.host import available_cpus
from gnnkit.loader.advice import Profile, advise, call_for, divided, profile
from tests.helpers.machine import in_time
from tests.helpers.waiting import wait_until
from tests.loader.advice.measurements import measured, shares
from tests.loader.graphs import make, plain, seeds


def test_a_loader_that_has_not_run_is_tried_and_left_as_it_is() -> None:
    calls: list[int] = []
    with make(batch_size=10, transform=lambda batch: calls.append(1) or batch) as loader, make(batch_size=10) as other:
        found = loader.profile(0.2)
        assert found.source == "own" and found.measurement.batches >= 4 and found.measurement.seeds_per_s > 0
        assert calls and found.measurement.shares["transform"] > 0, "its transform is part of it"
        assert loader.epoch == -1 and len(loader.records) == 0
        assert not [stage for stage in loader.history.stages if stage.stage == "epoch"], "it reports nothing to the reader"
        assert seeds(loader) == seeds(other)


def test_the_last_loop_is_looked_at_without_waiting() -> None:
    pause = threading.Event()
    with make(batch_size=10, backend=InProcess(num_threads=2)) as loader:
        for _ in range(2):
            for _batch in loader:
                pause.wait(0.1)  # many times what a busy machine takes to start threads
        found = loader.profile()
        assert (found.source, found.advice.bottleneck) == ("last", "consumer")
        assert found.measurement.batches == len(loader.records) == 2 * len(loader)
        iterator = iter(loader)  # an iteration that nobody goes on with
        next(iterator)
        assert loader.profile(1.5).source == "last"
    assert loader.profile().source == "last", "also of one that is closed"
    with pytest.raises(LoaderClosed):
        closed = make()
        closed.close()
        closed.profile(0.1)


def test_a_loop_that_runs_in_another_thread_is_watched() -> None:
    over, pause = threading.Event(), threading.Event()
    with make(batch_size=10) as loader:

        def loop() -> None:
            while not over.is_set():
                for _batch in loader:
                    pause.wait(0.005)

        thread = threading.Thread(target=loop)
        thread.start()
        try:
            assert wait_until(lambda: len(loader.records) > 2)
            before = len(loader.records)
            found = loader.profile(0.5)
            assert found.source == "running" and len(loader.records) > before
            assert found.measurement.seconds > 0 and in_time(found.measurement.seconds, 5)
        finally:
            over.set()
            thread.join()


def test_how_it_shows_itself() -> None:
    facts = measured(busy_of={"thread <0>": 0.97}, read_bytes_per_s=2e6, shares=shares(wait=0.9, consumer=0.1))
    found = Profile("GraphLoader <b>x</b>", "last", facts, advise(facts))
    text, html = str(replace(found, call="my.with_backend(InProcess(num_threads=4))")), found._repr_mimebundle_()["text/html"]
    assert repr(found).startswith("<Profile of GraphLoader <b>x</b> (workers)") and len(repr(found).splitlines()) == 1
    for part in (found.advice.sentence, "10.2k seeds/s", "1 thread, busy 100 % of the time", "4, of which 3.0 idle", "5 % for disk"):
        assert part in text, part
    assert "waiting for batches" in text and "90 %" in text and "90.0 ms" in text and "thread <0>" in text
    assert len(html.encode()) < 20_000 and "<script" not in html and "<b>x" not in html and "thread &lt;0&gt;" in html
    unknown = Profile("GraphLoader", "own", measured(blocked=float("nan"), idle_cpus=float("nan"), busy=float("nan")), found.advice)
    assert "nan" not in str(unknown) and "to copy" not in str(unknown)
    assert "  to copy         my.with_backend(InProcess(num_threads=4))\n" in text
    set_options(display="text")
    try:
        assert set(found._repr_mimebundle_()) == {"text/plain"}
    finally:
        set_options(display="auto")


@pytest.mark.parametrize(
    ("backend", "change", "call"),
    [
        (InProcess(1), {}, ""),
        (InProcess(1), {"num_threads": 4}, "mine.with_backend(InProcess(num_threads=4))"),
        (InProcess(), {"prefetch": 14}, "mine.with_backend(InProcess(), prefetch=14)"),
        (InProcess(3), {"memory_budget": 15_000_000}, "mine.with_backend(InProcess(num_threads=3), memory_budget=15_000_000)"),
        (
            Colocated(1, log_dir="/tmp", channel_size="40MB"),
            {"channel_size": None, "prefetch": 2},
            "mine.with_backend(Colocated(num_workers=1, channel_size=None, log_dir='/tmp'), prefetch=2)",
        ),
        (GraphStore(3), {"workers_per_server": 2}, "mine.with_backend(GraphStore(num_servers=3, workers_per_server=2))"),
        (InProcess(1), {"backend": OnDevice("cpu")}, "mine.with_backend(OnDevice(device='cpu'))"),
    ],
)
def test_an_advice_becomes_a_call_that_loaders_take(backend: Backend, change: dict[str, Any], call: str, tmp_path: Path) -> None:
    assert call_for("mine", backend.to_json(), change) == call
    partition(plain(), 1, "contiguous", tmp_path / "store")
    mine = GraphLoader.from_store(tmp_path / "store", num_neighbors=[2], backend=InProcess(1), progress=False)
    names = {made.__name__: made for made in (InProcess, Colocated, GraphStore, OnDevice)}
    with mine, eval(call or "mine", {"mine": mine, **names}) as made:
        assert made.plan.backend == (change.get("backend") or replace(backend, **divided(backend.to_json(), change)[0])).to_json()
        assert made.plan.runtime.prefetch == change.get("prefetch", 2)


@pytest.mark.skipif(available_cpus() < 2, reason="another thread needs a processor")
def test_the_call_has_the_name_that_the_users_code_has() -> None:
    edge_index = torch.randint(0, 20_000, (2, 400_000))
    data = Data(x=torch.rand(20_000, 100), edge_index=edge_index)
    with GraphLoader.from_pyg(data, num_neighbors=[15, 10, 5], batch_size=512, backend=InProcess(1), progress=False) as my_loader:
        for _batch in my_loader:
            pass
        found = my_loader.profile()
    assert found.advice.bottleneck == "workers", found
    assert found.call.startswith("my_loader.with_backend(InProcess(num_threads=")


def test_autotune_says_what_is_there_instead() -> None:
    with make() as loader, pytest.raises(PlanError, match=r"autotune\(\) is not there any more.*\n.*print\(loader.profile\(\)\)"):
        loader.autotune(seconds=60, train_step=print)


@pytest.mark.parametrize("seconds", [0, -1, True, "10", None, float("nan"), float("inf")])
def test_a_span_must_be_a_time(seconds: Any) -> None:
    with make() as loader, pytest.raises(PlanError, match="seconds must be a positive number"):
        profile(loader, seconds)


def test_an_epoch_without_batches_has_no_profile() -> None:
    with make(batch_size=1000, drop_last=True) as loader, pytest.raises(PlanError, match="nothing to measure"):
        loader.profile(0.1)


def test_one_of_several_ranks_runs_no_epochs_of_its_own() -> None:
    """Those of the others would not fit: each takes as many as there is time for."""
    with make(rank=0, world_size=2) as loader:
        with pytest.raises(PlanError, match="one of 2 trainers"):
            loader.profile(0.1)
        assert len(loader.records) == 0
        list(loader)
        assert loader.profile(0.1).source == "last"

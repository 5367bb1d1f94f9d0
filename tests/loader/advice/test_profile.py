"""``loader.profile()``: what it looks at, and how it shows itself."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from gnnkit import InProcess, set_options
from gnnkit.errors import LoaderClosed, PlanError
from gnnkit.loader.advice import advise
from gnnkit.loader.advice.autotune import Profile, profile
from tests.helpers.machine import in_time
from tests.helpers.waiting import wait_until
from tests.loader.advice.measurements import measured, shares
from tests.loader.graphs import make, seeds


def test_a_loader_that_has_not_run_is_tried_and_left_as_it_is() -> None:
    calls: list[int] = []
    with make(batch_size=10, transform=lambda batch: calls.append(1) or batch) as loader, make(batch_size=10) as other:
        found = loader.profile(0.2)
        assert found.source == "own" and found.measurement.batches >= 4 and found.measurement.seeds_per_s > 0
        assert calls and found.measurement.shares["transform"] > 0, "its transform is part of it"
        assert loader.epoch == -1 and len(loader.records) == 0
        assert seeds(loader) == seeds(other)
        assert not [stage for stage in loader.history.stages if stage.stage == "autotune"]


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
    text, html = str(found), found._repr_mimebundle_()["text/html"]
    assert repr(found).startswith("<Profile of GraphLoader <b>x</b> (workers)") and len(repr(found).splitlines()) == 1
    for part in (found.advice.sentence, "10.2k seeds/s", "1 thread, busy 100 % of the time", "4, of which 3.0 idle", "5 % for disk"):
        assert part in text, part
    assert "waiting for batches" in text and "90 %" in text and "90.0 ms" in text and "thread <0>" in text
    assert len(html.encode()) < 20_000 and "<script" not in html and "<b>x" not in html and "thread &lt;0&gt;" in html
    unknown = Profile("GraphLoader", "own", measured(blocked=float("nan"), idle_cpus=float("nan"), busy=float("nan")), found.advice)
    assert "nan" not in str(unknown)
    set_options(display="text")
    try:
        assert set(found._repr_mimebundle_()) == {"text/plain"}
    finally:
        set_options(display="auto")


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

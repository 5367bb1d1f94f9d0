"""``loader.autotune()`` on real loaders: what it prints, what it gives back, and what it leaves alone."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gnnkit
from gnnkit import Colocated, GraphLoader, InProcess
from gnnkit.errors import LoaderClosed, PlanError
from gnnkit.loader.advice.autotune import autotune
from tests.helpers.machine import in_time
from tests.loader.graphs import make, plain, seeds

# Of a tiny graph nothing is learnt from long trials; a busy machine needs time for two.
SECONDS = 4.0


def test_it_tries_prints_and_tells(capsys: pytest.CaptureFixture[str]) -> None:
    with make(batch_size=5, backend=InProcess(num_threads=1)) as loader, make(batch_size=5) as other:
        plan, found = loader.plan, loader.autotune(SECONDS)
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("autotune: up to") and "with an empty loop" in lines[0]
        assert lines[-1] == f"autotune: {found.sentence}"
        assert len(lines) == len(found.trials) + 2
        for number, (line, trial) in enumerate(zip(lines[1:-1], found.trials, strict=True), 1):
            assert line.split()[0] == str(number)
            assert f"num_threads={trial.options['num_threads']}, prefetch={trial.options['prefetch']}" in line and "seeds/s" in line
        assert found.trials[0].options == {"num_threads": 1, "prefetch": 2}
        assert 2 <= len(found.trials) <= max(3, found.grid_size // 4) and in_time(found.took_s, 20)
        assert found.best in [trial.options for trial in found.trials] and found.gain > 0 and found.seeds_per_s > 0
        # The loader is as it was.
        assert loader.epoch == -1 and len(loader.records) == 0 and loader.plan == plan
        # What it says can be pasted, and what it gives back can be used.
        if found.best != found.trials[0].options:
            call = lines[-1].split(": ")[2]
            with eval(call, {"loader": loader, "InProcess": InProcess}) as pasted:
                assert pasted.plan.runtime.prefetch == found.best["prefetch"]
        with loader.with_backend(**found.options) as tuned:
            assert tuned.plan.runtime.prefetch == found.best["prefetch"]
            assert tuned.plan.backend == {"kind": "InProcess", "num_threads": found.best["num_threads"]}
            assert seeds(tuned) == seeds(loader) == seeds(other)

    assert repr(found).startswith("<autotune (done): best InProcess(num_threads=")
    assert (
        found.sentence not in str(found)
        and found.words in str(found)
        and "before" in str(found)
        and f"there are {found.grid_size} combinations" in str(found)
    )
    assert len(found._repr_mimebundle_()["text/html"].encode()) < 20_000
    same = replace(found, best=found.trials[0].options, trials=(replace(found.trials[0], bottleneck="consumer"), *found.trials[1:]))
    assert "Your loop is what takes the time" in same.sentence


def test_a_slow_training_step_is_found_out_in_one_trial(capsys: pytest.CaptureFixture[str]) -> None:
    pause, given = threading.Event(), []

    def train_step(batch: Any) -> None:
        given.append(batch.batch_size)
        pause.wait(0.02)

    with make(batch_size=20, backend=InProcess(num_threads=2)) as loader:
        found = loader.autotune(SECONDS, train_step)
    out = capsys.readouterr().out
    assert "with your train_step" in out and "the loop takes the time" in out
    assert len(found.trials) == 1 and found.gain == 1.0 and set(given) == {20}
    assert found.sentence.startswith("Nothing that was tried is faster than what the loader has: InProcess(num_threads=2), prefetch=2.")


@pytest.mark.slow
def test_processes_are_tuned_and_gone_afterwards(tmp_path: Path) -> None:
    gnnkit.partition(plain(), 1, "contiguous", tmp_path / "store")
    backend = Colocated(num_workers=1, channel_size="40MB", log_dir=str(tmp_path))
    with GraphLoader.from_store(tmp_path / "store", num_neighbors=[3, 2], batch_size=7, progress=False, backend=backend) as loader:
        before = {process.pid for process in loader.status().processes}
        found = autotune(loader.pipeline, 30.0, None, print, "loader", most=3, longest_s=0.2, warm_s=0.2)
        assert found.words.startswith("Colocated(") and f"log_dir={str(tmp_path)!r}" in found.words
        assert {"num_workers", "threads_per_worker", "worker_concurrency", "channel_size", "prefetch"} == set(found.best)
        assert len(found.trials) == 3
        assert isinstance(found.options["backend"], Colocated) and found.options["prefetch"] == found.best["prefetch"]
        assert {process.pid for process in loader.status().processes} == before, "the loader keeps its own"


def test_the_advice_has_the_name_that_the_users_code_has(capsys: pytest.CaptureFixture[str]) -> None:
    with make(batch_size=5, backend=InProcess(num_threads=1)) as my_loader:
        found = my_loader.autotune(1.0)
    assert ": my_loader.with_backend(InProcess(" in replace(found, best={}).sentence, "where something else is faster"


def test_an_interrupt_ends_it_and_leaves_nothing() -> None:
    calls = []

    def train_step(batch: Any) -> None:
        calls.append(batch)
        if len(calls) == 5:
            raise KeyboardInterrupt

    with make(batch_size=20) as loader:
        with pytest.raises(KeyboardInterrupt):
            loader.autotune(60.0, train_step)
        calls.clear()
        assert len(list(loader)) == len(loader)


def test_what_cannot_be_tuned() -> None:
    with make(rank=0, world_size=2) as loader, pytest.raises(PlanError, match="one trainer's options"):
        loader.autotune(1.0)
    with make() as loader, pytest.raises(PlanError, match="seconds must be a positive number, got 0"):
        loader.autotune(0)
    with pytest.raises(LoaderClosed):
        loader.autotune(1.0)
    with make(batch_size=1000, drop_last=True) as loader, pytest.raises(PlanError, match="nothing to measure"):
        loader.autotune(1.0)

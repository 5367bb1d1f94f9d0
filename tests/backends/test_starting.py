"""How processes are started: when, how many at a time, and what is reported meanwhile."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gnnkit
from gnnkit import Colocated, GraphLoader
from gnnkit.backends import resolve_backend
from gnnkit.errors import PlanError
from gnnkit.runtime.limits import auto_threads
from tests.backends.setups import loader_of, workers
from tests.loader.graphs import plain

pytestmark = pytest.mark.slow


def birth_s(pid: int) -> float:
    """``time.monotonic()`` when a process was started, to a hundredth of a second."""
    since_boot = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return since_boot - time.clock_gettime(time.CLOCK_BOOTTIME) + time.monotonic()


def leads(backend: Colocated) -> float:
    """Seconds from the second process's start until the first one was ready."""
    events: list[Any] = []
    with loader_of("inprocess") as loader:
        plan, graph = loader.plan, loader.pipeline.graph
    with GraphLoader(replace(plan, backend=backend.to_json()), graph, events.append) as loader:
        ready_s = next(event.time_s for event in events if event.stage == "start" and event.kind == "progress" and event.done)
        return ready_s - max(map(birth_s, workers(loader).values()))


def test_processes_start_together_or_one_after_another() -> None:
    # Clocks are sure of a hundredth of a second, and on a busy machine word of the first comes later: once of several times will do.
    assert any(leads(Colocated(2, max_concurrent_producer_inits=1)) < 0.06 for _ in range(5))
    assert any(leads(Colocated(2)) > 0.06 for _ in range(5))


def test_the_gap_between_trainers_of_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    started = time.monotonic()
    monkeypatch.setenv("LOCAL_RANK", "1")
    with loader_of("", backend=Colocated(1, process_start_gap_seconds=2.5)):
        assert time.monotonic() - started >= 2.5
    monkeypatch.setenv("LOCAL_RANK", "0")
    with loader_of("", backend=Colocated(1, process_start_gap_seconds=1000.0)) as loader:
        assert len(workers(loader)) == 1


def test_progress_is_reported() -> None:
    events: list[Any] = []
    with loader_of("inprocess") as loader:
        plan, graph = loader.plan, loader.pipeline.graph
    with GraphLoader(replace(plan, backend=Colocated(2).to_json()), graph, events.append) as loader:
        assert "2 processes" in repr(loader)
    stages = [event for event in events if event.stage == "start"]
    assert [event.kind for event in stages][0] == "start" and stages[-1].kind == "end"
    assert [event.done for event in stages if event.kind == "progress"][-1] == stages[0].total == 2


def test_words_for_the_backend() -> None:
    assert resolve_backend("colocated") == Colocated() == resolve_backend("Colocated")
    with pytest.raises(PlanError, match="did you mean 'colocated'"):
        resolve_backend("collocated")


def test_auto_is_the_same_as_for_threads() -> None:
    with loader_of("", backend=Colocated()) as loader:
        assert len(workers(loader)) == auto_threads()


def test_ranks_get_what_they_get_everywhere(tmp_path: Path) -> None:
    data, backend = plain(), Colocated(1)
    path = gnnkit.partition(data, 1, out=tmp_path / "store").path
    common: dict[str, Any] = {"num_neighbors": [2], "progress": False, "input_nodes": None}
    with GraphLoader.from_store(path, backend=backend, **common):  # keeps the process for all of them
        for remainder in ("drop", "pad", "uneven"):
            options = {"batch_size": 7, "shuffle": True, "remainder": remainder, "world_size": 2, **common}
            found = []
            for rank in range(2):
                with (
                    GraphLoader.from_store(path, backend=backend, rank=rank, **options) as loader,
                    GraphLoader.from_pyg(data, rank=rank, **options) as reference,
                ):
                    pairs = list(zip(loader, reference, strict=True))
                    assert all(a.n_id.equal(b.n_id) for a, b in pairs)
                    found += [int(i) for a, _ in pairs for i in a.input_id]
            assert remainder != "uneven" or sorted(found) == list(range(100))

"""How processes are started: when, how many at a time, and what is reported meanwhile."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

import gnnkit
from gnnkit import Colocated, GraphLoader
from gnnkit.backends import resolve_backend
from gnnkit.errors import PlanError
from gnnkit.runtime.limits import auto_threads
from tests.backends.setups import descendants, loader_of, workers
from tests.helpers.waiting import HANG_S, wait_until
from tests.loader.graphs import plain

pytestmark = pytest.mark.slow


# There is no fork server, and each process stops itself when it begins; it starts once somebody lets it go on.
_STOPS = """
import os, signal, sys

os._exit(3) if "gnnkit.runtime.fork_server" in sys.orig_argv else os.kill(os.getpid(), signal.SIGSTOP)
"""


def stopped() -> list[psutil.Process]:
    """Processes of ours that have stopped themselves."""
    found = []
    for pid in descendants():
        with contextlib.suppress(psutil.NoSuchProcess):
            if (process := psutil.Process(pid)).status() == psutil.STATUS_STOPPED:
                found.append(process)
    return found


def have_stopped(count: int, timeout_s: float = HANG_S) -> bool:
    """Whether at least so many have, by then."""
    return wait_until(lambda: len(stopped()) >= count, timeout_s)


@pytest.mark.parametrize(("most", "groups"), [(None, [2]), (1, [1, 1])])
def test_processes_start_together_or_one_after_another(
    most: int | None, groups: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(_STOPS)
    monkeypatch.syspath_prepend(tmp_path)
    started: set[int] = set()
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(loader_of, "", backend=Colocated(2, max_concurrent_producer_inits=most))
        for size in groups:
            assert have_stopped(size) and not have_stopped(size + 1, 0.5)
            for process in stopped():
                process.resume()
                started.add(process.pid)
        with opening.result() as loader:
            assert {*workers(loader).values()} == started


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

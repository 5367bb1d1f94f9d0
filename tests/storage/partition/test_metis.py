"""METIS in a process of its own: the same parts as here, and an error when it ends."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from gnnkit import BuildOptions
from gnnkit.errors import WorkerDied
from gnnkit.storage.partition import metis
from gnnkit.vendor.metis import HERE_ENTRIES
from tests.helpers.waiting import wait_until
from tests.storage.partition.build import clustered_edges, graph_arrays

pytestmark = pytest.mark.packages("pymetis")
OPTIONS = BuildOptions(num_parts=3, partition="metis")


NUM_NODES = 20_000


def typed_graph():
    """So large that METIS gets a process of its own."""
    rng = np.random.default_rng(3)
    edges = clustered_edges(rng, NUM_NODES, 6, 10, 0.8)
    graph = graph_arrays({"a": NUM_NODES, "b": NUM_NODES}, {("a", "to", "a"): edges, ("a", "of", "b"): edges[:, ::3]})
    assert edges.shape[1] * (1 + 2 / 3) * 0.9 > HERE_ENTRIES
    return graph


def children() -> list[psutil.Process]:
    """The processes that METIS runs in."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # a zombie has no command line
            if "gnnkit.vendor.metis" in " ".join(child.cmdline()):
                found.append(child)
    return found


@contextlib.contextmanager
def watching(seen: list[psutil.Process]) -> Iterator[None]:
    """Looks for processes that METIS runs in."""
    over = threading.Event()

    def look() -> None:
        while not seen and not over.wait(0.01):
            seen.extend(children())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(60)


def test_a_process_of_its_own_cuts_as_this_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, seen = typed_graph(), []
    with watching(seen):
        apart = metis.assign(graph, OPTIONS.num_parts, 5)
    assert seen
    monkeypatch.setattr(sys, "executable", "")  # as where Python is embedded in another program
    with watching(seen := []):
        here = metis.assign(graph, OPTIONS.num_parts, 5)
    assert not seen
    assert all(np.array_equal(apart[name], here[name]) for name in ("a", "b"))
    assert np.ptp(np.bincount(here["a"])) < NUM_NODES // 10 and not children()


def test_the_end_of_the_process_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    graph, errors = typed_graph(), []

    def cut() -> None:
        try:
            metis.assign(graph, OPTIONS.num_parts, 5)
        except WorkerDied as error:
            errors.append(str(error))

    thread = threading.Thread(target=cut)
    thread.start()
    assert wait_until(lambda: bool(children()) or not thread.is_alive())
    for child in children():
        child.kill()
    thread.join(60)
    assert len(errors) == 1 and "was killed by SIGKILL" in errors[0] and "ldg" in errors[0]

    (tmp_path / "pymetis.py").write_text("raise OSError('no such library')\n")
    monkeypatch.syspath_prepend(str(tmp_path))  # this process has imported the right one
    with pytest.raises(WorkerDied, match="(?s)ended with status 1\n.*no such library"):
        metis.assign(graph, OPTIONS.num_parts, 5)

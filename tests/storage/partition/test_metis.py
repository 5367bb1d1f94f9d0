"""METIS in a process of its own: the same parts as here, and an error when it ends."""

from __future__ import annotations

import threading

import numpy as np
import psutil
import pytest

from gnnkit.errors import WorkerDied
from gnnkit.storage.options import BuildOptions
from gnnkit.storage.partition import metis
from gnnkit.vendor import metis as process
from tests.helpers.waiting import wait_until
from tests.storage.partition.build import clustered_edges, graph_arrays

pytest.importorskip("pymetis")

OPTIONS = BuildOptions(num_parts=3, partition="metis")


def typed_graph():
    rng = np.random.default_rng(3)
    edges = clustered_edges(rng, 600, 6, 10, 0.8)
    return graph_arrays({"a": 600, "b": 600}, {("a", "to", "a"): edges, ("a", "of", "b"): edges[:, ::3]})


def children() -> list[psutil.Process]:
    """The processes that METIS runs in."""
    return [child for child in psutil.Process().children() if process.__name__ in " ".join(child.cmdline())]


def test_a_process_of_its_own_cuts_as_this_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = typed_graph()
    here = metis.assign(graph, OPTIONS.num_parts, 5)
    monkeypatch.setattr(process, "HERE_ENTRIES", 0)
    apart = metis.assign(graph, OPTIONS.num_parts, 5)
    assert all(np.array_equal(apart[name], here[name]) for name in ("a", "b"))
    assert np.ptp(np.bincount(here["a"])) < 60 and not children()


def test_the_end_of_the_process_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, errors = typed_graph(), []
    monkeypatch.setattr(process, "HERE_ENTRIES", 0)

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

    monkeypatch.setenv("PYTHONWARNINGS", "error")
    monkeypatch.setattr(process, "import_pymetis", lambda: None)
    monkeypatch.setattr(process, "__name__", "gnnkit.no_such_module")
    with pytest.raises(WorkerDied, match="ended with status 1\n.*no_such_module"):
        metis.assign(graph, OPTIONS.num_parts, 5)

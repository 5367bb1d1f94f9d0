"""A copy of the hottest part of a store: the same arrays, half of them in memory and half on the disk."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from gnnkit import BuildOptions, Colocated, GraphLoader, InProcess, Store
from gnnkit.datasets import products_like
from gnnkit.errors import StoreError
from gnnkit.runtime.graph_memory import graph_nbytes
from gnnkit.storage.files import Guarded, watch
from tests.helpers.batches import digest
from tests.helpers.shared_graphs import attached, shared
from tests.helpers.system import pretend_free_memory

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the system has no shared memory without a name")
WORDS = {"num_neighbors": [4, 3], "batch_size": 256, "progress": False}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    options = BuildOptions(2, "random", with_edge=True, num_neighbors=(4, 3), order="hotness")
    return products_like(0.02, out=tmp_path_factory.mktemp("hottest") / "store", options=options)


@pytest.mark.parametrize("most", [3 << 20, 8 << 20, 24 << 20])
def test_every_array_is_as_it_is_on_the_disk(store: Store, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    pretend_free_memory(monkeypatch, 1 << 20)
    mapped = Store.open(store.path).arrays()
    assert most < graph_nbytes(mapped)
    made = shared(mapped, most)
    found = attached(made, Store.open(store.path).arrays())
    assert most / 2 < made.nbytes <= most and not made.is_whole and not found.is_whole
    for graph in (made.graph, found.graph):
        for array, wanted in zip(graph.each(), mapped.each(), strict=True):
            assert (array.dtype, array.shape) == (wanted.dtype, wanted.shape)
            np.testing.assert_array_equal(array, wanted)
        assert graph.read_ahead.is_on, "what is on the disk is still asked for"


def test_a_file_that_is_cut_short_is_an_error(tmp_path: Path) -> None:
    cut = products_like(0.01, out=tmp_path / "store", options=BuildOptions(order="hotness")).arrays()
    graph = shared(cut, 3 << 20).graph
    (features,) = (part.arrays["x"] for part in graph.nodes["node"])
    hot, cold = features[:2000].copy(), len(features) - 1
    watch()
    os.truncate(tmp_path / "store/part0/nodes/node/x.npy", 0)
    with Guarded(graph.each):  # these are in memory
        np.testing.assert_array_equal(features[:2000], hot)
    with pytest.raises(StoreError, match="x.npy was cut short"), Guarded(graph.each):
        features[cold].copy()


@pytest.mark.parametrize("backend", [InProcess(2), pytest.param(Colocated(1), marks=pytest.mark.slow)])
def test_batches_are_the_same_and_the_budget_holds(store: Store, backend: InProcess | Colocated) -> None:
    with GraphLoader.from_store(store.path, backend=InProcess(1), memory_budget=0, **WORDS) as loader:
        wanted = [digest([batch]) for batch in loader]
        assert not loader.status().graph_bytes
    with GraphLoader.from_store(store.path, backend=backend, memory_budget=8 << 20, **WORDS) as loader:
        while not loader.status().graph_bytes:
            loader.set_epoch(0)
            assert [digest([batch]) for batch in loader] == wanted
        loader.set_epoch(0)
        assert [digest([batch]) for batch in loader] == wanted
        assert loader.status().graph_bytes <= 8 << 20

"""``GraphLoader.dist_loader``: the same connection under graphlearn-torch's names."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnkit import Colocated, GraphLoader, InProcess
from gnnkit.errors import LoaderClosed
from tests.distributed.loading import NUM_NODES, labelled, pygs_own, ring, seeds_of, stored, typed_ring
from tests.helpers.batches import same
from tests.loader.graphs import make


@pytest.mark.parametrize("backend", [InProcess(1), Colocated(1)], ids=["here", "processes"])
def test_it_is_the_same_loader(backend: Any, tmp_path: Path) -> None:
    from gnnkit.distributed import DistLoader

    path = stored(ring(), tmp_path, 2).path
    options: dict[str, Any] = {"num_neighbors": [2, 2], "batch_size": 7, "input_nodes": None, "shuffle": True, "progress": False}
    with GraphLoader.from_store(path, backend=backend, **options) as loader, GraphLoader.from_store(path, **options) as reference:
        lent = loader.dist_loader
        assert isinstance(lent, DistLoader) and loader.dist_loader is lent
        assert lent._is_mp_worker == isinstance(backend, Colocated) and lent.data.store.path == path
        for batch, wanted in zip(lent, reference, strict=True):
            same(pygs_own(batch), wanted)
        assert loader.epoch == 0 and loader.stats().batches == len(lent) == len(loader)
        for batch, wanted in zip(loader, reference, strict=True):
            same(batch, wanted)
        first = iter(lent)
        next(first)
        assert loader.state_dict()["next_batch"] == 1
        assert sorted(int(i) for batch in loader for i in batch.input_id) == list(range(NUM_NODES))
        with pytest.raises(LoaderClosed, match="newer one"):
            next(first)
        assert loader.epoch == 3
        del lent, first
        gc.collect()
        assert sorted(seeds_of(loader.dist_loader)) == list(range(NUM_NODES))
        lent = loader.dist_loader
        lent.shutdown()
        lent.shutdown()
        for use in (lambda: iter(loader), lambda: iter(lent), lambda: loader.dist_loader):
            with pytest.raises(LoaderClosed):
                use()


def test_closing_the_loader_closes_what_it_lent() -> None:
    loader = make(ring())
    lent = loader.dist_loader
    iterator = iter(lent)
    next(iterator)
    loader.close()
    with pytest.raises(LoaderClosed):
        next(iterator)
    lent.shutdown()


def test_what_was_lent_does_not_keep_the_loader_nor_the_other_way_round() -> None:
    loader = make(ring())
    ended = weakref.ref(loader)
    assert len(list(loader.dist_loader)) == len(loader)
    gc.disable()
    try:
        del loader
        assert ended() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("remainder", ["pad", "drop", "uneven"])
def test_ranks_transforms_and_whatever_the_graph_carries(remainder: str) -> None:
    data = ring()
    data.title = "a ring"

    def double(batch: Any) -> Any:
        batch.twice = 2 * batch.x
        return batch

    for rank in range(3):
        common: dict[str, Any] = {"rank": rank, "world_size": 3, "remainder": remainder, "batch_size": 9, "transform": double}
        with make(data, **common) as loader, make(data, **common) as reference:
            lent = loader.dist_loader
            assert len(lent) == lent._num_expected == len(reference)
            for batch, wanted in zip(lent, reference, strict=True):
                assert ("seed_mask" in batch) == (remainder == "pad") and batch.title == "a ring"
                same(pygs_own(batch), wanted, any_order=True)
            assert lent.data is None and loader.state_dict()["epoch"] == 1


def test_label_edges_are_shown_as_the_loader_shows_them(tmp_path: Path) -> None:
    options: dict[str, Any] = {"num_neighbors": [2, 1], "input_nodes": ("node", torch.arange(NUM_NODES)), "batch_size": 11}
    for data in (labelled(), typed_ring()):
        options["input_nodes"] = (data.node_types[0], torch.arange(NUM_NODES))
        with make(data, **options) as loader, make(data, **options) as reference:
            for batch, wanted in zip(loader.dist_loader, reference, strict=True):
                same(pygs_own(batch), wanted)

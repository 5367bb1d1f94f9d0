"""A sampler that is added as docs/development/architecture.md says works wherever those of gnnkit do."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from gnnkit import GraphLoader, InProcess, partition
from gnnkit.datasets import GraphSchema
from gnnkit.errors import PlanError
from gnnkit.plan import NeighborSampling, Sampling
from gnnkit.plan.sampling import EdgeUse
from gnnkit.sampling.kinds import NeighborWalker
from tests.helpers.batches import same
from tests.helpers.graphs import EdgeType


@dataclass(frozen=True)
class FirstHop(Sampling):
    """The plan's form: some neighbours of each seed."""

    kind = "first_hop"
    walker = f"{__name__}:FirstHopWalker"
    num_hops = 1

    edge_types: tuple[EdgeType, ...]
    count: int
    edge_dir: Literal["in", "out"] = "in"
    with_edge: bool = False


class FirstHopWalker(NeighborWalker):
    """Draws them."""

    def __init__(self, sampling: FirstHop) -> None:
        fan_outs = dict.fromkeys(sampling.edge_types, (sampling.count,))
        super().__init__(NeighborSampling(fan_outs, edge_dir=sampling.edge_dir, with_edge=sampling.with_edge))


class First:
    """The user's words."""

    def sampling(self, schema: GraphSchema, edges: EdgeUse) -> FirstHop:
        return FirstHop(tuple(schema.edge_types), 3, edges.edge_dir, edges.with_edge)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = torch.Generator().manual_seed(0)
    masks = {"train_mask": torch.arange(100) < 60, "val_mask": torch.arange(100) >= 60}
    labels = torch.arange(100) % 3
    edges = torch.randint(0, 100, (2, 600), generator=draw)
    data = Data(x=torch.arange(100.0).view(-1, 1), y=labels, edge_index=edges, num_nodes=100, **masks)
    folder = tmp_path_factory.mktemp("added") / "store"
    partition(data, 1, out=folder)
    return folder


def test_it_samples_like_the_walker_that_it_names(store: Path) -> None:
    assert sys.modules[__name__].FirstHopWalker is FirstHopWalker
    with GraphLoader.from_store(store, sampler=First(), batch_size=20, progress=False) as loader:
        with GraphLoader.from_store(store, num_neighbors=[3], batch_size=20, progress=False) as plain:
            batches = list(loader)
            assert len(batches) == 3
            for left, right in zip(batches, plain, strict=True):
                same(left, right)
        with loader.for_split("valid") as other:
            assert len(list(other)) == 2 and other.plan.sampling == loader.plan.sampling
        with loader.with_backend(InProcess(1)) as other:
            for left, right in zip(batches, other, strict=True):
                same(left, right)


def test_its_plan_is_read_from_a_file(store: Path, tmp_path: Path) -> None:
    with GraphLoader.from_store(store, sampler=First(), batch_size=20, progress=False) as loader:
        assert loader.plan.to_json()["sampling"]["kind"] == "first_hop"
        loader.plan.save(tmp_path / "plan.json")
        with GraphLoader.from_plan(tmp_path / "plan.json", progress=False) as again:
            assert again.plan.sampling == loader.plan.sampling
            same(again.peek(), loader.peek())
            with again.for_split(np.arange(5)) as other:
                assert len(list(other)) == 1
        # A part of a folder that is not installed: tests/sampling/test_own_sampler.py exports a module of its own.
        with pytest.raises(PlanError, match="which other machines do not have"):
            loader.export(tmp_path / "job")

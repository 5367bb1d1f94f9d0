"""Whole neighbourhoods, and graphs so regular that every batch can be checked by arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import k_hop_subgraph

from gnnkit import GraphLoader
from gnnkit.datasets import cora
from tests.helpers.graphs import ArraySource, homogeneous_source, random_edges, typed_source

RING = 40


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.integers(0, 1 << 30),
    st.integers(1, 50),
    st.integers(0, 300),
    st.integers(1, 3),
    st.lists(st.integers(0, 1 << 20), min_size=1, max_size=6),
    st.sampled_from(["in", "out"]),
)
def test_all_neighbours_are_the_k_hop_subgraph(
    rng: int, num_nodes: int, num_edges: int, hops: int, seeds: list[int], edge_dir: Any
) -> None:
    edge_index = torch.from_numpy(random_edges(np.random.default_rng(rng), num_nodes, num_nodes, num_edges))
    ids = torch.tensor(seeds) % num_nodes
    flow = "source_to_target" if edge_dir == "in" else "target_to_source"
    subset, _, _, edge_mask = k_hop_subgraph(ids, hops, edge_index, num_nodes=num_nodes, flow=flow, directed=True)
    data = Data(edge_index=edge_index, num_nodes=num_nodes)
    options: dict[str, Any] = {"num_neighbors": [-1] * hops, "batch_size": len(ids), "edge_dir": edge_dir, "with_edge": True}
    with GraphLoader.from_pyg(data, input_nodes=ids, progress=False, **options) as loader:
        (batch,) = loader
    assert batch.n_id[: len(ids)].equal(ids)
    assert batch.n_id.unique().equal(subset)
    assert batch.n_id[len(ids) :].numel() == len(subset) - len(ids.unique())
    shown = edge_index[:, batch.e_id] if edge_dir == "in" else edge_index[:, batch.e_id].flip(0)
    assert batch.n_id[batch.edge_index].equal(shown)
    if len(ids.unique()) == len(ids):  # a seed given twice draws its edges twice
        assert batch.e_id.sort().values.equal(edge_mask.nonzero().view(-1))
    else:
        assert batch.e_id.unique().equal(edge_mask.nonzero().view(-1))


def ring(**edge_arrays: Any) -> ArraySource:
    """v -> v + 1 and v -> v + 2; ``x`` is the node's id and ``edge_attr`` the edge's."""
    v = np.arange(RING)
    edge_index = np.stack([np.repeat(v, 2), np.stack([v + 1, v + 2], 1).ravel() % RING])
    edge_arrays = {"edge_attr": np.arange(2 * RING, dtype=np.float32)[:, None], **edge_arrays}
    return homogeneous_source(edge_index, RING, edge_arrays=edge_arrays, x=np.repeat(v[:, None], 5, 1).astype(np.float32), y=v % 2)


def steps(batch: Any) -> torch.Tensor:
    """How far around the ring each edge's neighbour is from its seed side."""
    source, target = batch.n_id[batch.edge_index]
    return (source - target) % RING


@pytest.mark.parametrize("partition", ["contiguous", "random"])
@pytest.mark.parametrize(("edge_dir", "allowed"), [("out", {1, 2}), ("in", {RING - 1, RING - 2})])
def test_ring(tmp_path: Path, partition: str, edge_dir: str, allowed: set[int]) -> None:
    options: dict[str, Any] = {"num_neighbors": [2, 2], "batch_size": 5, "num_parts": 2, "input_nodes": None}
    seen = []
    with GraphLoader.from_source(ring(), store_dir=tmp_path, partition=partition, edge_dir=edge_dir, progress=False, **options) as loader:
        assert len(loader) == 8
        for batch in loader:
            assert set(steps(batch).tolist()) == allowed
            assert batch.x.equal(batch.n_id[:, None].expand(-1, 5).float())
            assert batch.edge_attr.equal(batch.e_id[:, None].float())
            assert batch.y.equal(batch.n_id % 2)
            assert batch.num_sampled_nodes[0] == 5 and batch.num_sampled_edges[0] == 10
            assert sum(batch.num_sampled_nodes) == batch.num_nodes and sum(batch.num_sampled_edges) == batch.num_edges
            seen.append(batch.n_id[:5])
    assert torch.cat(seen).tolist() == list(range(RING))


@pytest.mark.parametrize("partition", ["contiguous", "random"])
def test_ring_with_weights_on_odd_edges(tmp_path: Path, partition: str) -> None:
    """Edge v -> v + 2 has weight 1, edge v -> v + 1 none: only the first is ever taken."""
    source = ring(weight=(np.arange(2 * RING) % 2).astype(np.float32))
    options: dict[str, Any] = {"num_neighbors": [1, 2], "batch_size": 5, "num_parts": 2, "input_nodes": None, "edge_dir": "out"}
    with GraphLoader.from_source(source, store_dir=tmp_path, partition=partition, weight="weight", progress=False, **options) as loader:
        for batch in loader:
            assert (batch.e_id % 2 == 1).all() and (steps(batch) == 2).all()
            assert batch.num_sampled_nodes == [5, 2, 2] and batch.num_sampled_edges == [5, 2]


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("num_parts", [1, 2])
def test_typed_ring(tmp_path: Path, num_parts: int, edge_dir: str) -> None:
    """user v -> items v + 1, v + 2; item v -> items v + 2, v + 3; features of another width for each type hold the id."""
    v = np.arange(RING)
    u2i, i2i = ("user", "u2i", "item"), ("item", "i2i", "item")
    edges = {t: np.stack([np.repeat(v, 2), np.stack([v + a, v + a + 1], 1).ravel() % RING]) for t, a in ((u2i, 1), (i2i, 2))}
    nodes = {t: {"x": np.repeat(v[:, None], width, 1).astype(np.float32)} for t, width in (("user", 512), ("item", 256))}
    attrs = {t: {"edge_attr": np.repeat(np.arange(2 * RING)[:, None], width, 1).astype(np.float32)} for t, width in ((u2i, 10), (i2i, 5))}
    source = typed_source(dict.fromkeys(nodes, RING), edges, nodes, attrs)
    given = ("item" if edge_dir == "in" else "user", None)
    options: dict[str, Any] = {
        "num_neighbors": [2, 2],
        "batch_size": 5,
        "num_parts": num_parts,
        "partition": "random",
        "edge_dir": edge_dir,
    }
    with GraphLoader.from_source(source, store_dir=tmp_path, input_nodes=given, progress=False, **options) as loader:
        for batch in loader:
            for node_type, width in (("user", 512), ("item", 256)):
                assert batch[node_type].x.equal(batch[node_type].n_id[:, None].expand(-1, width).float())
            for edge_type, first, width in ((u2i, 1, 10), (i2i, 2, 5)):
                shown = edge_type if edge_dir == "in" or edge_type == i2i else ("item", "rev_u2i", "user")
                store = batch[shown]
                source_id, target_id = (batch[shown[0]].n_id[store.edge_index[0]], batch[shown[2]].n_id[store.edge_index[1]])
                ahead = (target_id - source_id if edge_dir == "in" else source_id - target_id) % RING
                assert set(ahead.tolist()) == {first, first + 1}
                assert store.edge_attr.equal(store.e_id[:, None].expand(-1, width).float())
            if edge_dir == "in":
                assert batch[u2i].num_sampled_edges[0] == batch[i2i].num_sampled_edges[0] == 10
            else:
                assert batch["item", "rev_u2i", "user"].num_sampled_edges == [10, 0]
                assert batch[i2i].num_sampled_edges[0] == 0


def test_isolated_nodes() -> None:
    data = Data(x=torch.arange(18.0).view(-1, 1), edge_index=torch.empty(2, 0, dtype=torch.long))
    with GraphLoader.from_pyg(data, input_nodes=None, num_neighbors=[2, 2], batch_size=1, progress=False) as loader:
        batches = list(loader)
    assert len(batches) == 18
    for i, batch in enumerate(batches):
        assert batch.edge_index.shape == (2, 0) and batch.edge_index.dtype == torch.int64
        assert batch.x.tolist() == [[i]] and batch.n_id.tolist() == [i]
        assert batch.num_sampled_nodes == [1, 0, 0] and batch.num_sampled_edges == [0, 0]


def test_isolated_nodes_of_two_types() -> None:
    data = HeteroData()
    data["user"].x, data["item"].x = torch.ones(5, 2), torch.ones(3, 4)
    for edge_type in (("user", "to", "item"), ("item", "to", "user")):
        data[edge_type].edge_index = torch.empty(2, 0, dtype=torch.long)
    with GraphLoader.from_pyg(data, input_nodes=("user", None), num_neighbors=[2, 2], batch_size=1, progress=False) as loader:
        batches = list(loader)
    assert len(batches) == 5
    for batch in batches:
        assert batch["user"].x.shape == (1, 2) and batch["item"].x.shape == (0, 4)
        assert all(batch[t].edge_index.shape == (2, 0) for t in batch.edge_types)


@pytest.mark.slow
def test_cora_node_by_node() -> None:
    data = cora()
    with GraphLoader.from_pyg(data, input_nodes=None, num_neighbors=[2, 2], batch_size=1, progress=False) as loader:
        assert len(loader) == 2708
        count = 0
        for i, batch in enumerate(loader):
            assert batch.n_id[0] == i and batch.batch_size == 1
            count += 1
    assert count == 2708
    with GraphLoader.from_pyg(data, num_neighbors=[2, 2], batch_size=64, input_nodes="train", progress=False) as loader:
        assert len(loader) == 3
        seeds = torch.cat([batch.n_id[: batch.batch_size] for batch in loader])
    assert seeds.sort().values.equal(data.train_mask.nonzero().view(-1))

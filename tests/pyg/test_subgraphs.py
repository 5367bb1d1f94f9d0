"""Loaders of clusters and of GraphSAINT under PyG's names: PyG's own cases, and PyG's own batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric import loader as theirs
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import ToUndirected

from gnnkit.errors import PlanError
from gnnkit.pyg import (
    ClusterData,
    ClusterLoader,
    GraphSAINTEdgeSampler,
    GraphSAINTNodeSampler,
    GraphSAINTRandomWalkSampler,
    GraphSAINTSampler,
)

# Nodes 0, 2, 4 and nodes 1, 3, 5, with one edge between the two groups, both ways.
ADJACENCY = torch.tensor(
    [[1, 1, 1, 0, 1, 0], [1, 1, 0, 1, 0, 1], [1, 0, 1, 0, 1, 0], [0, 1, 0, 1, 0, 1], [1, 0, 1, 0, 1, 0], [0, 1, 0, 1, 0, 1]]
)


def six() -> Data:
    edge_index = ADJACENCY.nonzero().t().contiguous()
    x = torch.arange(6).repeat(2, 1).t().contiguous().float()
    return Data(x=x, edge_index=edge_index, edge_attr=torch.arange(edge_index.shape[1]), n_id=torch.arange(6), num_nodes=6, name="six")


def larger() -> Data:
    pairs = torch.randperm(80 * 80, generator=torch.Generator().manual_seed(1))[:300]  # no edge twice, whose order PyG leaves open
    edge_index = torch.stack([pairs // 80, pairs % 80])
    return Data(x=torch.arange(80.0).view(-1, 1), edge_index=edge_index, train_mask=torch.arange(80) < 9, edge_attr=torch.arange(300))


def contents(batch: Data) -> Any:
    """A batch of nodes whose ``x`` are their ids, whatever their order: PyG leaves that within a cluster open."""
    ids = batch.x[:, 0].long()
    assert batch.edge_index.shape[1] == len(batch.edge_attr)
    nodes = sorted(zip(ids.tolist(), *([batch.train_mask.tolist()] if "train_mask" in batch else []), strict=True))
    return sorted(batch.keys()), nodes, sorted(zip(*ids[batch.edge_index].tolist(), batch.edge_attr.tolist(), strict=True))


@pytest.mark.parametrize("sparse_format", ["csr", "csc"])
@pytest.mark.parametrize("data", [six(), larger(), ToUndirected()(larger())], ids=["six", "directed", "undirected"])
def test_batches_are_those_of_pygs_loader(data: Data, sparse_format: Any) -> None:
    clusters = ClusterData(data, num_parts=2, log=False, sparse_format=sparse_format)
    assert len(clusters) == 2 and str(clusters) == "ClusterData(2)" and isinstance(clusters, theirs.ClusterData)
    for batch_size in (1, 2):
        loader = ClusterLoader(clusters, batch_size=batch_size)
        assert isinstance(loader, theirs.ClusterLoader) and len(loader) == 2 // batch_size
        for batch, wanted in zip(loader, theirs.ClusterLoader(clusters, batch_size=batch_size), strict=True):
            assert contents(batch) == contents(wanted)
            ends = batch.edge_index[0 if sparse_format == "csr" else 1]
            assert torch.equal(ends, ends.sort().values)


def test_clusters_of_two_groups() -> None:
    """PyG's case: each group is a cluster; alone it shows nine edges, and with the other group all of them."""
    clusters = ClusterData(six(), num_parts=2, log=False)
    groups = sorted(sorted(batch.n_id.tolist()) for batch in ClusterLoader(clusters, batch_size=1))
    assert groups == [[0, 2, 4], [1, 3, 5]] and [part.num_edges for part in clusters] == [9, 9]
    (batch,) = ClusterLoader(clusters, batch_size=2, shuffle=True)
    assert batch.num_nodes == 6 and batch.num_edges == 20 and batch.name == "six"
    dense = torch.zeros(6, 6, dtype=torch.long)
    dense[batch.edge_index[0], batch.edge_index[1]] = 1
    assert torch.equal(dense, ADJACENCY[batch.n_id][:, batch.n_id])
    assert torch.equal(six().edge_index[:, batch.edge_attr], batch.n_id[batch.edge_index])
    assert torch.equal(batch.x, six().x[batch.n_id])


def test_edges_to_other_clusters() -> None:
    """PyG's case: a cluster by itself keeps them where that is asked for."""
    clusters = ClusterData(six(), num_parts=2, log=False, keep_inter_cluster_edges=True)
    assert sorted(part.num_edges for part in clusters) == [10, 10]


@pytest.mark.slow
def test_clusters_in_processes_shuffled() -> None:
    clusters = ClusterData(larger(), num_parts=10, log=False)
    loader = ClusterLoader(clusters, batch_size=3, shuffle=True, num_workers=2, drop_last=True)
    assert len(loader) == 3 and len(list(loader)) == 3
    first, second = ([batch.x.view(-1).tolist() for batch in loader] for _ in range(2))
    assert first != second


def test_saint_of_six() -> None:
    """PyG's case: the number of batches, and what they have."""
    torch.manual_seed(12345)
    samplers = (
        GraphSAINTNodeSampler(six(), batch_size=3, num_steps=4, sample_coverage=10, log=False),
        GraphSAINTEdgeSampler(six(), batch_size=2, num_steps=4, sample_coverage=10, log=False),
        GraphSAINTRandomWalkSampler(six(), batch_size=1, walk_length=2, num_steps=4, sample_coverage=10, log=False),
    )
    for loader in samplers:
        assert isinstance(loader, (theirs.GraphSAINTSampler, GraphSAINTSampler)) and len(loader) == 4
        batches = list(loader)
        assert len(batches) == 4
        for batch in batches:
            assert sorted(batch.keys()) == sorted([*six().keys(), "node_norm", "edge_norm"])
            assert 1 <= batch.num_nodes <= 4 and batch.node_norm.numel() == batch.num_nodes
            assert batch.num_edges == batch.edge_norm.numel() == batch.edge_attr.numel()
            assert torch.equal(batch.edge_index, torch.stack([(batch.n_id == end[:, None]).nonzero()[:, 1] for end in ends(batch)]))
            dense = ADJACENCY[batch.n_id][:, batch.n_id]
            assert batch.num_edges == int(dense.sum())


def ends(batch: Data) -> Any:
    return six().edge_index[:, batch.edge_attr]


def test_saint_without_norms_and_with_processes() -> None:
    loader = GraphSAINTRandomWalkSampler(larger(), 5, 3, num_steps=2, num_workers=1)
    assert [sorted(batch.keys()) for batch in loader] == [sorted([*larger().keys(), "num_nodes"])] * 2


def typed() -> HeteroData:
    data = HeteroData()
    data["a"].num_nodes = data["b"].num_nodes = 3
    data["a", "to", "b"].edge_index = torch.zeros(2, 2, dtype=torch.long)
    return data


WRONG = [
    (lambda: ClusterData(typed(), 2), "data must be a Data"),
    (lambda: ClusterData(six(), 2, recursive=True), "recursive=True cannot be followed"),
    (lambda: ClusterData(six(), 7, log=False), "num_clusters=7, and the graph has 6 nodes"),
    (lambda: ClusterLoader(six()), "give gnnkit.pyg.ClusterData"),
    (lambda: ClusterLoader(ClusterData(six(), 2, log=False), sampler=[1]), "sampler=.* cannot be followed"),
    (lambda: GraphSAINTNodeSampler(typed(), 2), "data must be a Data"),
    (lambda: GraphSAINTNodeSampler(six(), 0), "batch_size must be at least 1"),
    (lambda: GraphSAINTRandomWalkSampler(six(), 2, 0), "walk_length"),
]


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_what_cannot_be_followed_is_refused(make: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make()

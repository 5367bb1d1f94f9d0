"""``DistSubGraphLoader``: graphlearn-torch's fixture, and on random graphs every edge among the nodes, in both modes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import gnnkit
from gnnkit import GraphLoader, Store
from gnnkit.distributed import DistDataset, DistNeighborLoader, GraphStoreInfo, RemoteDistDataset, init_client, shutdown_client
from gnnkit.errors import PlanError
from tests.distributed.loading import POSITIVE, TO, dataset_of, labelled, stored
from tests.helpers.batches import same
from tests.helpers.graphs import random_edges

# graphlearn-torch's test graph: row v has a 1 in column u for an edge from v to u.
MATRIX = """
    1 1 0 0 0 0 0 1
    0 1 0 1 0 0 1 0
    0 0 1 0 1 0 1 0
    0 0 0 0 0 1 0 0
    0 1 0 1 0 0 0 0
    1 0 0 0 0 1 0 0
    1 0 0 0 1 0 0 0
    0 0 0 0 0 0 0 1
"""
NODES, EDGES = [0, 1, 3, 5, 6, 7], [0, 1, 2, 3, 4, 5, 9, 12, 13, 14, 16]


def fixture_graph() -> Data:
    matrix = torch.tensor([[int(cell) for cell in row.split()] for row in MATRIX.strip().splitlines()])
    edge_index = matrix.nonzero().T.contiguous()
    return Data(x=torch.arange(8.0)[:, None], edge_index=edge_index, edge_attr=torch.arange(17.0)[:, None], num_nodes=8)


def make(dataset: Any, input_nodes: Any, num_neighbors: Any = (-1, -1), **options: Any) -> Any:
    from gnnkit.distributed import DistSubGraphLoader

    fan_outs = list(num_neighbors) if isinstance(num_neighbors, tuple) else num_neighbors
    return DistSubGraphLoader(dataset, input_nodes, fan_outs, **{"batch_size": 3, "num_workers": 0, **options})


def batches_of(*args: Any, **options: Any) -> list[Any]:
    loader = make(*args, **options)
    try:
        return list(loader)
    finally:
        loader.shutdown()


def check_fixture(batch: Any) -> None:
    assert batch.node.tolist() == batch.n_id.tolist() == NODES
    assert batch.edge_index.tolist() == [[0, 1, 5, 1, 2, 4, 3, 0, 3, 0, 5], [0, 0, 0, 1, 1, 1, 2, 3, 3, 4, 5]]
    assert batch.edge.tolist() == EDGES and batch.edge_attr[:, 0].tolist() == EDGES
    assert batch.mapping.tolist() == [0, 2, 5] and batch.batch.tolist() == [0, 3, 7]
    assert batch.x[:, 0].tolist() == NODES and batch.batch_size == 3 and batch.input_id.tolist() == [0, 1, 2]
    assert "num_sampled_nodes" not in batch and "num_sampled_edges" not in batch


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return stored(fixture_graph(), tmp_path_factory.mktemp("fixture"), 2, edge_dir="out")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_graphlearn_torchs_fixture(store: Store, num_workers: int) -> None:
    """Whichever part asks, edges have one order."""
    loader = make(DistDataset.from_store(store, num_workers), torch.tensor([0, 3, 7]), with_edge=True, num_workers=num_workers)
    for _ in range(2):
        (batch,) = list(loader)
        check_fixture(batch)
    loader.shutdown()


def test_seeds_alone(store: Store) -> None:
    """Without fan-outs, only edges among the seeds; their order and repetitions show in the mapping."""
    (batch,) = batches_of(DistDataset.from_store(store), torch.tensor([7, 0, 7, 1]), None, batch_size=4)
    assert batch.n_id.tolist() == [0, 1, 7] and batch.mapping.tolist() == [2, 0, 2, 1] and batch.batch.tolist() == [7, 0, 7, 1]
    assert batch.edge.tolist() == [0, 1, 2, 3, 16] and batch.edge_index.tolist() == [[0, 1, 2, 1, 2], [0, 0, 0, 1, 2]]


def test_servers_sample_the_same(store: Store) -> None:
    with gnnkit.serve(store, 1, progress=False) as servers:
        servers.wait(60)
        init_client(1, 1, 0, servers.address, 0)
        try:
            (batch,) = batches_of(RemoteDistDataset(GraphStoreInfo(1, 1), 0), {0: torch.tensor([0, 3, 7])}, num_workers=1, with_edge=True)
        finally:
            shutdown_client()
    check_fixture(batch)
    (here,) = batches_of(DistDataset.from_store(store), torch.tensor([0, 3, 7]), with_edge=True)
    same(batch, here)


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_batches_are_those_of_graph_loader_sorted(tmp_path: Path, edge_dir: Any) -> None:
    rng = np.random.default_rng(2)
    data = Data(
        edge_index=torch.from_numpy(random_edges(rng, 50, 50, 400)), x=torch.rand(50, 3), edge_attr=torch.rand(400, 2), num_nodes=50
    )
    store, seeds = stored(data, tmp_path, 2, partition="random", edge_dir=edge_dir), torch.tensor([4, 9, 4, 49, 30, 0, 11])
    options: dict[str, Any] = {"num_neighbors": [2, 2], "batch_size": 3, "seed": 5, "with_edge": True}
    with GraphLoader.from_store(store.path, input_nodes=seeds, subgraph_type="induced", progress=False, **options) as loader:
        wanted = list(loader)
    found = batches_of(DistDataset.from_store(store), seeds, (2, 2), seed=5, with_edge=True)
    assert len(found) == len(wanted) == 3
    for batch, other in zip(found, wanted, strict=True):
        assert batch.n_id.tolist() == sorted(set(other.n_id.tolist()))
        assert batch.n_id[batch.mapping].tolist() == other.n_id[: other.batch_size].tolist()
        assert batch.x.equal(data.x[batch.n_id]) and batch.edge_attr.equal(data.edge_attr[batch.e_id])
        assert sorted(set(other.e_id.tolist())) == sorted(batch.e_id.tolist()), "each edge once, also that of a repeated seed"
        near, far = (1, 0) if edge_dir == "in" else (0, 1)
        assert batch.n_id[batch.edge_index[1]].equal(data.edge_index[near][batch.e_id])
        assert batch.n_id[batch.edge_index[0]].equal(data.edge_index[far][batch.e_id])
        assert batch.edge_index[1].diff().min() >= 0


def typed_graph() -> HeteroData:
    rng, data = np.random.default_rng(6), HeteroData()
    data["user"].x, data["item"].x = torch.arange(20.0)[:, None], torch.arange(30.0)[:, None]
    for edge_type in (("user", "buys", "item"), ("item", "rev_buys", "user"), ("item", "like", "item")):
        sizes = [data[edge_type[end]].num_nodes for end in (0, 2)]
        data[edge_type].edge_index = torch.from_numpy(random_edges(rng, *sizes, 90))
        data[edge_type].edge_attr = torch.arange(90.0)[:, None]
    return data


def test_typed_graphs(tmp_path: Path) -> None:
    data = typed_graph()
    seeds = torch.tensor([7, 19, 0, 7])
    (batch,) = batches_of(dataset_of(data, tmp_path, 2), ("user", seeds), (3, 2), batch_size=4, with_edge=True)
    assert batch["user"].n_id[batch["user"].mapping].equal(seeds) and "mapping" not in batch["item"]
    for node_type in data.node_types:
        ids = batch[node_type].n_id
        assert (ids.diff() > 0).all() and batch[node_type].x[:, 0].equal(ids.float())
    for edge_type, edges in data.edge_items():
        source, target = (torch.isin(edges.edge_index[end], batch[edge_type[2 * end]].n_id) for end in (0, 1))
        found = batch[edge_type]
        assert sorted(found.e_id.tolist()) == (source & target).nonzero().view(-1).tolist()
        assert found.edge_attr[:, 0].equal(found.e_id.float())
        for end in (0, 1):
            assert batch[edge_type[2 * end]].n_id[found.edge_index[end]].equal(edges.edge_index[end][found.e_id])


@pytest.mark.parametrize("num_neighbors", [(2, 2), None], ids=str)
def test_label_edges_stay_out(tmp_path: Path, num_neighbors: Any) -> None:
    (batch,) = batches_of(dataset_of(labelled(), tmp_path), torch.arange(40), num_neighbors, batch_size=40, with_edge=True)
    assert isinstance(batch, Data) and sorted(batch.e_id.tolist()) == list(range(80)) and batch.mapping.tolist() == list(range(40))
    (typed,) = batches_of(dataset_of(labelled(), tmp_path / "typed"), ("node", torch.arange(40)), num_neighbors, batch_size=40)
    assert typed[TO].num_edges == 80 and POSITIVE not in typed.edge_types


def test_rooted_batches_are_not_lent() -> None:
    with GraphLoader.from_pyg(fixture_graph(), num_neighbors=[2], disjoint=True, progress=False) as loader, pytest.raises(PlanError):
        _ = loader.dist_loader


def test_induced_batches_are_lent(store: Store) -> None:
    options: dict[str, Any] = {"num_neighbors": [2], "subgraph_type": "induced", "batch_size": 3, "input_nodes": None}
    with GraphLoader.from_store(store.path, progress=False, **options) as loader, loader.with_backend("inprocess") as other:
        for batch, wanted in zip(loader.dist_loader, other, strict=True):
            assert batch.edge_index.equal(wanted.edge_index) and batch.n_id.equal(wanted.n_id) and "num_sampled_nodes" not in batch


def test_wrong_arguments(store: Store) -> None:
    dataset = DistDataset.from_store(store)
    with pytest.raises(PlanError, match="edge_dir='in'"):
        make(dataset, torch.tensor([0]), edge_dir="in")
    with pytest.raises(PlanError):
        make(dataset, torch.tensor([8]))
    with pytest.raises(PlanError, match="two words for the same thing"):
        make(dataset, torch.tensor([0]), seed=1, random_seed=2)
    with pytest.raises(TypeError, match="num_neighbours"):
        make(dataset, torch.tensor([0]), num_neighbours=[2])
    assert issubclass(type(make(dataset, torch.tensor([0]))), DistNeighborLoader)

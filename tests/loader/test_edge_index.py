"""Batches with PyG's ``EdgeIndex``: the same edges, with what is known of their order, which message passing uses."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric import EdgeIndex
from torch_geometric.nn import GraphConv, SAGEConv
from torch_geometric.utils import trim_to_layer

from gnnkit import GraphLoader, InProcess
from gnnkit.errors import PlanError
from tests.backends.kinds import EDGE_DIRS, GRAPHS, KINDS, WHOLE_KINDS, built, kind_loader, source_of
from tests.helpers.batches import digest
from tests.loader.graphs import make


def edge_indices(batch: Any) -> list[Any]:
    return [store.edge_index for store in batch.stores if "edge_index" in store]


@pytest.mark.parametrize(("graph", "edge_dir"), list(zip(GRAPHS, EDGE_DIRS, strict=True)))
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_said_of_edges_holds(kind: str, graph: str, edge_dir: Any, tmp_path: Path) -> None:
    if kind in WHOLE_KINDS and graph == "typed":
        return  # refused
    path = built(tmp_path, source_of(graph, kind, edge_dir), 1, edge_dir).path
    with kind_loader(kind, graph, path, InProcess(1)) as loader, loader.with_backend(InProcess(1), is_edge_index=True) as other:
        plain, typed = list(loader), list(other)
    assert digest(plain) == digest(typed)
    orders = set()
    for batch in typed:
        for edge_index in edge_indices(batch):
            assert isinstance(edge_index, EdgeIndex)
            edge_index.validate()
            orders.add(edge_index.sort_order)
        sizes = {store._key: store.num_nodes for store in batch.node_stores}
        for store in batch.edge_stores:
            ends = (None, None) if store._key is None else (store._key[0], store._key[2])
            if "edge_index" in store:
                assert store.edge_index.sparse_size() == tuple(sizes[end] for end in ends)
    assert "row" in orders if kind == "ppr" else orders == (set() if kind == "walks" else {"col"})


def test_an_edge_index_is_kept_by_copies_plans_and_devices(tmp_path: Path) -> None:
    store = built(tmp_path / "store", source_of("homogeneous", "node", "in"), 1, "in")
    with kind_loader("node", "homogeneous", store.path, InProcess(1), is_edge_index=True, device="cpu", feature_cache=150) as loader:
        loader.plan.save(tmp_path / "plan.json")
        batch = loader.peek()
    copied = pickle.loads(pickle.dumps(batch))
    assert copied.edge_index.sort_order == "col" and torch.equal(copied.edge_index.as_tensor(), batch.edge_index.as_tensor())
    with GraphLoader.from_plan(tmp_path / "plan.json", progress=False) as again, again.for_split(None, batch_size=3) as other:
        assert isinstance(again.peek().edge_index, EdgeIndex) and isinstance(other.peek().edge_index, EdgeIndex)


@pytest.mark.filterwarnings("ignore:Sparse")  # torch says that CSC tensors are in beta, and what it does not check
def test_layers_that_fuse_have_the_same_outputs_and_gradients() -> None:
    """PyG's ``GraphConv`` with means is ``SAGEConv`` under another name, and multiplies by a sparse matrix."""
    torch.manual_seed(0)
    first, second = GraphConv(8, 16, aggr="mean"), GraphConv(16, 4, aggr="mean")
    sage = SAGEConv(8, 16)
    sage.lin_l.load_state_dict(first.lin_rel.state_dict())
    sage.lin_r.load_state_dict(first.lin_root.state_dict())

    def trained(batch: Any, edge_index: Any) -> list[torch.Tensor]:
        x = first(batch.x, edge_index)
        x, edges, _ = trim_to_layer(1, batch.num_sampled_nodes, batch.num_sampled_edges, x, edge_index)
        out = second(x.relu(), edges)[: batch.batch_size]
        return [out, *torch.autograd.grad(out.sum(), [*first.parameters(), *second.parameters()])]

    with make(is_edge_index=True) as loader:
        for batch in loader:
            plain = batch.edge_index.as_tensor()
            torch.testing.assert_close(first(batch.x, batch.edge_index), sage(batch.x, plain))
            for fused, usual in zip(trained(batch, batch.edge_index), trained(batch, plain), strict=True):
                torch.testing.assert_close(fused, usual)


def test_what_is_no_truth_value_is_refused() -> None:
    with pytest.raises(PlanError, match="is_edge_index must be True or False, got 'yes'"):
        make(is_edge_index="yes")

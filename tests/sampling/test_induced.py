"""Induced and bidirectional batches: which edges they hold, by brute force and by PyG's own code."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from gnnkit import GraphLoader
from gnnkit.errors import PlanError
from tests.helpers.batches import to_pyg
from tests.helpers.graphs import homogeneous_source, random_edges, random_source
from tests.reference_sampler import shown
from tests.sampling.test_disjoint_reference import pairs_of_types


def epoch_of(data: Any, **options: Any) -> list[Any]:
    with GraphLoader.from_pyg(data, with_edge=True, progress=False, **options) as loader:
        return list(loader)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.data())
def test_every_edge_among_the_nodes_and_no_other(data: st.DataObject) -> None:
    """Also with fan-outs below the degree: each edge of the graph is there once for each root that both ends belong to."""
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    source, disjoint = random_source(rng), data.draw(st.booleans())
    edge_dir = data.draw(st.sampled_from(["in", "out"]))
    input_type = next(t for t, s in source.schema.node_types.items() if s.num_nodes)
    seeds = rng.permutation(source.schema.node_types[input_type].num_nodes)[:6]
    homogeneous = source.schema.is_homogeneous
    options = {"num_neighbors": [2, 2], "batch_size": 6, "input_nodes": seeds if homogeneous else (input_type, seeds)}
    (batch,) = epoch_of(to_pyg(source), subgraph_type="induced", disjoint=disjoint, edge_dir=edge_dir, **options)
    (drawn,) = epoch_of(to_pyg(source), disjoint=disjoint, edge_dir=edge_dir, **options)
    for edge_type, (sources, targets) in source.edges.items():
        near, far = (1, 0) if edge_dir == "in" else (0, 1)
        stores = (batch, batch) if homogeneous else (batch[edge_type[2 * near]], batch[edge_type[2 * far]])
        members = [
            {(int(root), int(v)) for root, v in zip(s.batch if disjoint else torch.zeros_like(s.n_id), s.n_id, strict=True)} for s in stores
        ]
        ends = (sources, targets)
        wanted = Counter(
            (root, edge)
            for root, v in members[0]
            for edge in np.flatnonzero(ends[near] == v).tolist()
            if (root, ends[far][edge]) in members[1]
        )
        edges = batch if homogeneous else batch[shown(edge_type, edge_dir)]
        row, col = edges.edge_index
        roots = stores[0].batch[col].tolist() if disjoint else [0] * len(col)
        assert Counter(zip(roots, edges.e_id.tolist(), strict=True)) == wanted
        assert stores[1].n_id[row].tolist() == ends[far][edges.e_id.numpy()].tolist()
        assert stores[0].n_id[col].tolist() == ends[near][edges.e_id.numpy()].tolist()
    for left, right in zip(batch.node_stores, drawn.node_stores, strict=True):
        assert left.n_id.equal(right.n_id), "the nodes are those of the batch that shows what was drawn"
        assert "num_sampled_nodes" not in left
    assert all("num_sampled_edges" not in store for store in batch.edge_stores)


@pytest.mark.parametrize("disjoint", [False, True])
def test_nodes_of_many_edges_and_batches_of_many_nodes(disjoint: bool) -> None:
    """More edges of a node than are looked up at a time, more members than a small batch has, and more edges than there is room for."""
    rng = np.random.default_rng(7)
    edges = rng.integers(0, 4000, (2, 40_000))
    edges[1, :9000] = rng.integers(0, 3, 9000)  # three nodes of thousands of edges
    data = to_pyg(homogeneous_source(edges, 4000))
    options = {"num_neighbors": [8, 8] if disjoint else [2], "batch_size": 20 if disjoint else 2500, "input_nodes": np.arange(2500)}
    batch = epoch_of(data, subgraph_type="induced", disjoint=disjoint, **options)[0]
    roots = batch.batch.numpy() if disjoint else np.zeros(batch.num_nodes, np.int64)
    assert disjoint or batch.num_nodes > 2048
    wanted = []
    for root in np.unique(roots):
        is_member = np.zeros(4000, bool)
        is_member[batch.n_id[roots == root]] = True
        wanted.append(np.flatnonzero(is_member[edges[0]] & is_member[edges[1]]))
    assert sorted(batch.e_id.tolist()) == sorted(np.concatenate(wanted).tolist())
    assert batch.n_id[batch.edge_index].numpy().tolist() == edges[:, batch.e_id].tolist()
    assert (roots[batch.edge_index[0]] == roots[batch.edge_index[1]]).all()


def test_types_that_are_not_walked_along_are_not_shown() -> None:
    source = pairs_of_types()
    to, back = ("a", "to", "b"), ("b", "rev_to", "a")
    options = {"batch_size": 4, "input_nodes": ("a", None), "subgraph_type": "induced"}
    fan_outs = dict.fromkeys(source.edges, [0, 0])
    for batch in epoch_of(to_pyg(source), num_neighbors={**fan_outs, to: [0, 3], back: [3, 0]}, **options):
        assert {t for t in batch.edge_types if batch[t].num_edges} <= {to, back}
        assert batch["a", "knows", "a"].edge_index.shape == (2, 0)
    alone = epoch_of(to_pyg(source), num_neighbors=fan_outs, **{**options, "batch_size": 15})
    assert alone[0]["a", "knows", "a"].num_edges == 40 and alone[0]["b"].num_nodes == 0


def sampler_output(batch: Data) -> SamplerOutput:
    return SamplerOutput(batch.n_id, *batch.edge_index, batch.e_id)


@pytest.mark.parametrize("seed", range(5))
def test_bidirectional_is_what_pyg_makes_of_what_was_drawn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    # No two edges join the same nodes, also in turn: of such edges PyG keeps any.
    ends = np.stack(np.triu_indices(40, 1))[:, rng.permutation(780)[:250]]
    ends = np.where(rng.random(250) < 0.5, ends, ends[::-1])
    data = to_pyg(homogeneous_source(ends, 40, edge_arrays={"edge_attr": np.arange(250.0)}))
    options = {"num_neighbors": [3, 3], "batch_size": 7, "seed": seed}
    for mine, drawn in zip(epoch_of(data, subgraph_type="bidirectional", **options), epoch_of(data, **options), strict=True):
        theirs = sampler_output(drawn).to_bidirectional()
        assert mine.edge_index.equal(torch.stack([theirs.row, theirs.col]))
        assert mine.e_id.equal(theirs.edge) and mine.edge_attr.tolist() == mine.e_id.tolist()
        assert mine.n_id.equal(drawn.n_id) and mine.is_undirected()
        assert theirs.num_sampled_nodes is None and "num_sampled_nodes" not in mine and "num_sampled_edges" not in mine


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_typed_bidirectional_is_what_pyg_makes_of_what_was_drawn(edge_dir: str) -> None:
    source = pairs_of_types(3)
    options = {"num_neighbors": [2, 2], "batch_size": 5, "input_nodes": ("b", None), "edge_dir": edge_dir}
    batches = epoch_of(to_pyg(source), subgraph_type="bidirectional", **options)
    for mine, drawn in zip(batches, epoch_of(to_pyg(source), **options), strict=True):
        rows, cols = ({t: drawn[t].edge_index[end] for t in drawn.edge_types} for end in (0, 1))
        output = HeteroSamplerOutput({t: drawn[t].n_id for t in drawn.node_types}, rows, cols, {t: drawn[t].e_id for t in drawn.edge_types})
        theirs = output.to_bidirectional()  # warns, which is an error here, where a type has no reverse
        for edge_type in mine.edge_types:
            if edge_type[1] in ("rev_has", "rev_of"):
                continue  # PyG leaves types alone whose name says that they are the reverse of one that is not there
            left = sorted(map(tuple, mine[edge_type].edge_index.T.tolist()))
            assert left == sorted(zip(theirs.row[edge_type].tolist(), theirs.col[edge_type].tolist(), strict=True))
            merged = edge_type != ("a", "knows", "a")
            assert ("e_id" in mine[edge_type]) != merged and ("edge_attr" in mine[edge_type]) == (not merged)


def test_a_type_without_a_reverse_cannot_be_bidirectional() -> None:
    source = pairs_of_types()
    del source.edges["b", "rev_to", "a"]
    data = to_pyg(source)
    with pytest.raises(PlanError, match="needs a reverse type of every edge type"):
        GraphLoader.from_pyg(data, num_neighbors=[2], batch_size=2, input_nodes=("a", None), subgraph_type="bidirectional")


@pytest.mark.parametrize("value", ["undirected", "", None, 3, True])
def test_wrong_subgraph_types(value: Any) -> None:
    data = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2)
    with pytest.raises(PlanError, match="subgraph_type must be 'directional', 'bidirectional' or 'induced'"):
        GraphLoader.from_pyg(data, num_neighbors=[2], batch_size=2, subgraph_type=value)


@pytest.mark.parametrize("value", ["yes", 1, None, torch.tensor(True)])
def test_disjoint_is_true_or_false(value: Any) -> None:
    data = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2)
    with pytest.raises(PlanError, match="disjoint must be True or False"):
        GraphLoader.from_pyg(data, num_neighbors=[2], batch_size=2, disjoint=value)


def test_a_graph_without_edges() -> None:
    data = Data(edge_index=torch.empty((2, 0), dtype=torch.long), num_nodes=4)
    for options in ({"disjoint": True}, {"subgraph_type": "induced"}, {"subgraph_type": "bidirectional", "disjoint": True}):
        (batch,) = epoch_of(data, num_neighbors=[2, 2], batch_size=4, **options)
        assert batch.n_id.tolist() == [0, 1, 2, 3] and batch.edge_index.shape == (2, 0) and batch.e_id.shape == (0,)


def test_no_seeds() -> None:
    edges = random_edges(np.random.default_rng(0), 9, 9, 30)
    with GraphLoader.from_pyg(
        to_pyg(homogeneous_source(edges, 9)), num_neighbors=[2], disjoint=True, batch_size=2, progress=False
    ) as loader:
        assert loader.sample(torch.empty(0, dtype=torch.long)).batch.shape == (0,)

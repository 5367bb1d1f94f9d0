"""A PyG graph as arrays: nothing is copied but edges, which keep the dataset's order within each node."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData

from gnnkit.datasets import PyGSource, cora, graph_from_pyg
from gnnkit.errors import DatasetError, PlanError
from gnnkit.source import CHUNK_ROWS

EDGES = ("node", "to", "node")

BUYS = ("user", "buys", "item")


def check_edges(graph: Any, edge_type: tuple[str, str, str], edge_index: np.ndarray) -> None:
    """Rebuilds the edge list from the compressed edges."""
    (part,) = graph.edges[edge_type]
    owner_row = 1 if graph.edge_dir == "in" else 0
    order = np.argsort(edge_index[owner_row], kind="stable")
    owners = np.repeat(np.arange(len(part.indptr) - 1), np.diff(part.indptr))
    assert part.indptr[0] == 0
    assert part.indptr.dtype == part.indices.dtype == np.int32
    np.testing.assert_array_equal(owners, edge_index[owner_row][order])
    np.testing.assert_array_equal(part.indices, edge_index[1 - owner_row][order])
    if part.edge_id is not None:
        np.testing.assert_array_equal(part.edge_id, order)


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_cora(edge_dir: Literal["in", "out"]) -> None:
    data = cora()
    graph = graph_from_pyg(data, edge_dir=edge_dir)
    assert graph.num_parts == 1 and graph.edge_dir == edge_dir
    check_edges(graph, EDGES, data.edge_index.numpy())
    assert graph.edges[EDGES][0].edge_id is None, "without edge arrays no ids are asked for"
    (nodes,) = graph.nodes["node"]
    for name in ("x", "y", "train_mask", "val_mask", "test_mask"):
        assert nodes.arrays[name].ctypes.data == data[name].data_ptr(), "the user's own memory"
    np.testing.assert_array_equal(graph.node_bounds["node"], [0, 2708])
    assert graph.store_id["node"] is None and nodes.global_id is None


@st.composite
def typed_graphs(draw: st.DrawFn) -> HeteroData:
    """Random typed graphs with duplicate edges, self loops, isolated nodes, empty types."""
    data = HeteroData()
    seed = draw(st.integers(0, 2**32))
    generator = torch.Generator().manual_seed(seed)
    sizes = {"user": draw(st.integers(0, 9)), "item": draw(st.integers(0, 9))}
    for node_type, size in sizes.items():
        data[node_type].x = torch.rand(size, 3, generator=generator)
    for source, relation, target in (BUYS, ("item", "like", "item"), ("item", "bought_by", "user")):
        count = draw(st.integers(0, 40)) if sizes[source] and sizes[target] else 0
        ends = [torch.randint(0, max(sizes[end], 1), (count,), generator=generator) for end in (source, target)]
        data[source, relation, target].edge_index = torch.stack(ends)
        data[source, relation, target].edge_attr = torch.rand(count, 2, generator=generator)
        data[source, relation, target].weight = torch.rand(count, generator=generator)
    return data


@settings(max_examples=60, deadline=None)
@given(data=typed_graphs(), edge_dir=st.sampled_from(["in", "out"]), with_edge=st.sampled_from([None, True, False]))
def test_every_edge_and_its_arrays(data: HeteroData, edge_dir: Literal["in", "out"], with_edge: bool | None) -> None:
    graph = graph_from_pyg(data, edge_dir=edge_dir, with_edge=with_edge, weight="weight")
    for edge_type in data.edge_types:
        edge_index = data[edge_type].edge_index.numpy()
        check_edges(graph, edge_type, edge_index)
        (part,) = graph.edges[edge_type]
        assert (part.edge_id is None) == (with_edge is False)
        order = np.argsort(edge_index[1 if edge_dir == "in" else 0], kind="stable")
        np.testing.assert_array_equal(part.arrays["edge_attr"], data[edge_type].edge_attr.numpy()[order])
        assert part.weight_prefix is not None
        check_prefix(part.indptr, part.weight_prefix, part.arrays["weight"])


def check_prefix(indptr: np.ndarray, prefix: np.ndarray, weights: np.ndarray) -> None:
    for first, last in zip(indptr[:-1], indptr[1:], strict=True):
        own = np.diff(prefix[first:last].astype(np.float64), prepend=0.0)
        if last > first and weights.max() > 0:
            np.testing.assert_allclose(
                own / own.max() if own.max() else own, weights[first:last] / max(weights[first:last].max(), 1e-30), atol=1e-6
            )


def test_weights_are_exact_and_zero_stays_zero() -> None:
    edges = torch.tensor([[0, 1, 2, 0], [3, 3, 3, 1]])
    data = Data(edge_index=edges, num_nodes=4, edge_weight=torch.tensor([1.0, 0.0, 3.0, 2.0]))
    (part,) = graph_from_pyg(data, weight="edge_weight").edges[EDGES]
    assert part.weight_prefix is not None and part.weight_prefix.dtype == np.uint64
    unit = 1 << 30  # 3.0 becomes 3 * 2**30, in [2**31, 2**32)
    assert part.weight_prefix.tolist() == [2 * unit, unit, unit, 4 * unit]
    assert part.edge_id is not None, "edges with arrays carry their ids"
    integers = Data(edge_index=edges, num_nodes=4, edge_weight=torch.tensor([1, 0, 3, 2]))
    (other,) = graph_from_pyg(integers, weight="edge_weight").edges[EDGES]
    np.testing.assert_array_equal(other.weight_prefix, part.weight_prefix)


def test_edge_types_without_the_weight_are_uniform() -> None:
    data = HeteroData()
    data["user"].num_nodes = data["item"].num_nodes = 2
    data[BUYS].edge_index = torch.tensor([[0, 1], [1, 1]])
    data[BUYS].price = torch.tensor([1.0, 2.0])
    data["item", "like", "item"].edge_index = torch.tensor([[0], [1]])
    graph = graph_from_pyg(data, weight="price")
    assert graph.edges[BUYS][0].weight_prefix is not None
    assert graph.edges["item", "like", "item"][0].weight_prefix is None


@pytest.mark.parametrize(
    ("weight", "value", "message"),
    [
        ("edge_wieght", torch.ones(2), "unknown weight 'edge_wieght'; did you mean 'edge_weight'"),
        ("edge_weight", torch.tensor([1.0, -0.5]), "edge 1 of"),
        ("edge_weight", torch.tensor([float("nan"), 1.0]), "edge 0 of"),
        ("edge_weight", torch.tensor([float("inf"), 1.0]), "edge 0 of"),
        ("edge_weight", torch.ones(2, 1), r"float32 \[num_edges, 1\]"),
        ("edge_weight", torch.ones(2, dtype=torch.bool), "bool"),
        ("edge_weight", torch.ones(2, dtype=torch.bfloat16), "bfloat16"),
        ("x", torch.ones(2), "unknown weight 'x'"),
    ],
)
def test_bad_weights(weight: str, value: torch.Tensor, message: str) -> None:
    data = Data(edge_index=torch.tensor([[0, 1], [1, 2]]), x=torch.rand(3, 1), edge_weight=value)
    with pytest.raises(PlanError, match=message):
        graph_from_pyg(data, weight=weight)


def test_ids_out_of_range() -> None:
    with pytest.raises(DatasetError, match=r"edge_index\[0, 1\].*is 7"):
        graph_from_pyg(Data(edge_index=torch.tensor([[0, 7], [1, 2]]), num_nodes=7))


def test_bad_direction() -> None:
    with pytest.raises(PlanError, match="'both'"):
        graph_from_pyg(cora(), edge_dir="both")  # type: ignore[arg-type]


def test_a_source_is_not_looked_at_twice() -> None:
    source = PyGSource(cora())
    graph = graph_from_pyg(source)
    assert graph.schema is source.schema


def test_many_chunks() -> None:
    data = Data(edge_index=torch.randint(0, 1000, (2, 2 * CHUNK_ROWS + 7)), num_nodes=1000)
    data.edge_attr = torch.rand(data.num_edges, 1)
    graph = graph_from_pyg(data)
    check_edges(graph, EDGES, data.edge_index.numpy())
    order = np.argsort(data.edge_index[1].numpy(), kind="stable")
    np.testing.assert_array_equal(graph.edges[EDGES][0].arrays["edge_attr"], data.edge_attr.numpy()[order])

"""Streaming ``undirected=True`` equals PyG's ``ToUndirected``."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gnnkit.datasets import ArraySpec, EdgeTypeSchema, GraphSchema, GraphSource, NodeTypeSchema, open_ogb
from gnnkit.datasets.derived import UndirectedSource
from gnnkit.errors import DatasetError, PlanError
from tests.datasets.reading import read_edge_array, read_edges, read_node_array
from tests.helpers.graphs import ArraySource, homogeneous_source, typed_source
from tests.helpers.ogb_trees import write_tree

EDGES = ("node", "to", "node")


def pyg_undirected(source: GraphSource) -> Any:
    """The same graph through ``torch_geometric.transforms.ToUndirected``."""
    import torch
    from torch_geometric.data import Data, HeteroData
    from torch_geometric.transforms import ToUndirected

    data = Data() if source.schema.is_homogeneous else HeteroData()
    for node_type, table in source.schema.node_types.items():
        (data if source.schema.is_homogeneous else data[node_type]).num_nodes = table.num_nodes
    for edge_type, edges in source.schema.edge_types.items():
        place = data if source.schema.is_homogeneous else data[edge_type]
        place.edge_index = torch.from_numpy(read_edges(source, edge_type))
        for name in edges.arrays:
            place[name] = torch.from_numpy(read_edge_array(source, edge_type, name))
    return ToUndirected()(data)


def assert_equals_pyg(mine: GraphSource, original: GraphSource) -> None:
    theirs = pyg_undirected(original)
    homogeneous = original.schema.is_homogeneous
    assert set(mine.schema.edge_types) == ({EDGES} if homogeneous else set(theirs.edge_types))
    for edge_type, edges in mine.schema.edge_types.items():
        place = theirs if homogeneous else theirs[edge_type]
        np.testing.assert_array_equal(read_edges(mine, edge_type), place.edge_index.numpy())
        for name in edges.arrays:
            # PyG sorts equal edges in no particular order, so three or more of them add up with other rounding.
            np.testing.assert_allclose(read_edge_array(mine, edge_type, name), place[name].numpy(), rtol=1e-6)


@pytest.mark.parametrize("name", ["ogbn-arxiv", "ogbn-proteins", "ogbn-mag", "ogbn-papers100M"])
def test_ogb_graphs(name: str, tmp_path: Path) -> None:
    write_tree(name, tmp_path)
    before = open_ogb(name, root=tmp_path, download=False)
    after = open_ogb(name, root=tmp_path, download=False, undirected=True)
    assert_equals_pyg(after, before)
    assert after.schema.node_types == before.schema.node_types
    assert after.metadata == {**before.metadata, "undirected": True}
    assert after.fingerprint() != before.fingerprint()
    node_type = "paper" if name == "ogbn-mag" else "node"
    np.testing.assert_array_equal(read_node_array(after, node_type, "y"), read_node_array(before, node_type, "y"))
    np.testing.assert_array_equal(after.splits[node_type]["train"], before.splits[node_type]["train"])


def random_edges(rng: np.random.Generator, num_nodes: int, count: int, *, hub: bool) -> NDArray[np.int64]:
    edges = rng.integers(0, num_nodes, (2, count))
    if hub:
        # Most edges end in one node, and many are the same edge.
        edges[:, : count // 2] = num_nodes - 1
        edges[0, count // 2 :] = 0
    return edges


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    num_nodes=st.integers(1, 40),
    count=st.integers(0, 300),
    chunk_rows=st.sampled_from([1, 7, 1000]),
    memory=st.sampled_from([1, 60, 600, 1 << 28]),
    hub=st.booleans(),
    typed=st.booleans(),
)
def test_random_graphs_in_any_memory(
    seed: int, num_nodes: int, count: int, chunk_rows: int, memory: int, hub: bool, typed: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng = np.random.default_rng(seed)
    edges = random_edges(rng, num_nodes, count, hub=hub)
    # Eighths add up without rounding, so that the order of additions does not show.
    attr = rng.integers(0, 64, (count, 3)).astype(np.float32) / 8
    kind = rng.integers(0, 5, (count, 1))
    source: GraphSource
    if typed:
        same, other = ("a", "likes", "a"), ("a", "has", "b")
        half = count // 2
        bipartite = np.stack([edges[0, :half] % num_nodes, edges[1, :half] % 5])
        arrays = {same: {"edge_attr": attr, "edge_kind": kind}, other: {"edge_attr": attr[:half], "edge_kind": kind[:half]}}
        source = typed_source({"a": num_nodes, "b": 5}, {same: edges, other: bipartite}, {}, arrays, chunk_rows=chunk_rows)
    else:
        source = homogeneous_source(edges, num_nodes, edge_arrays={"edge_attr": attr, "edge_kind": kind}, chunk_rows=chunk_rows)
    folder = tmp_path_factory.mktemp("scratch")
    mine = UndirectedSource(source, scratch_dir=folder, memory_bytes=memory)
    assert_equals_pyg(mine, source)
    assert not any(folder.iterdir())


def test_edges_are_merged_once_and_only_when_asked_for(tmp_path: Path) -> None:
    source = homogeneous_source(np.array([[0, 1, 1], [1, 0, 2]]), 3, edges_are_cheap=False)
    events: list[Any] = []
    mine = UndirectedSource(source, scratch_dir=tmp_path, events=events.append)
    assert mine.fingerprint() == UndirectedSource(source).fingerprint()
    assert source.passes == {EDGES: 0}
    assert mine.edges_are_cheap
    for _ in range(2):
        assert read_edges(mine, EDGES).tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert source.passes == {EDGES: 1}
    assert [event.kind for event in events if event.kind != "progress"] == ["start", "end"]
    assert events[-1].done == events[-1].total == 12


def test_sorting_stays_within_its_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    count, most = 400_000, dict[int, int]()
    edges = rng.integers(0, 1000, (2, count)) ** 2 // 1000  # skewed towards small ids
    source = homogeneous_source(edges, 1000, chunk_rows=10_000)
    for memory in (1 << 20, 4 << 20, 100 << 20):
        tracemalloc.start()
        mine = UndirectedSource(source, scratch_dir=tmp_path, memory_bytes=memory)
        num_edges = mine.schema.num_edges
        most[memory] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert num_edges == len(np.unique(np.concatenate([edges[0] * 1000 + edges[1], edges[1] * 1000 + edges[0]])))
    # And what is read and written meanwhile. All in memory, they take more than twice the limits.
    assert most[1 << 20] <= 4 << 20 and most[4 << 20] <= 8 << 20 and most[100 << 20] > 16 << 20, most


def test_a_reverse_type_that_exists_already_is_refused() -> None:
    types = {("a", "has", "b"): EdgeTypeSchema(0), ("b", "rev_has", "a"): EdgeTypeSchema(0)}
    source = ArraySource(GraphSchema({"a": NodeTypeSchema(1), "b": NodeTypeSchema(1)}, types), {})
    with pytest.raises(PlanError, match="has both") as caught:
        UndirectedSource(source)
    assert "undirected=False" in str(caught.value.hint)


def test_bfloat16_edge_features_are_refused() -> None:
    types = {("a", "to", "a"): EdgeTypeSchema(0, {"w": ArraySpec("bfloat16", (2,))})}
    with pytest.raises(PlanError, match="bfloat16, which cannot be added up"):
        UndirectedSource(ArraySource(GraphSchema({"a": NodeTypeSchema(1)}, types), {}))


def test_a_scratch_folder_that_cannot_be_written_is_an_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    mine = UndirectedSource(homogeneous_source(np.array([[0], [1]]), 2), scratch_dir=tmp_path / "file")
    with pytest.raises(DatasetError, match="cannot keep the undirected edges") as caught:
        _ = mine.schema
    assert "GNNKIT_HOME" in str(caught.value.hint)


def test_nothing_stays_on_disk_or_open(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()
    mine = UndirectedSource(homogeneous_source(np.array([[0], [1]]), 2), scratch_dir=tmp_path)
    assert mine.schema.num_edges == 2
    del mine
    if before:
        assert len(os.listdir("/proc/self/fd")) == len(before)
    assert not any(tmp_path.iterdir())

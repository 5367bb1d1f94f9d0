"""Times of edges: read from edges or nodes, sorted by within each node, the same however a graph is brought into memory."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import gnnkit
from gnnkit import BuildOptions, Store
from gnnkit.datasets import ArraySpec
from gnnkit.errors import PlanError, StoreError
from tests.helpers.graphs import ArraySource, homogeneous_source, random_edges, typed_source
from tests.helpers.shared_graphs import attached, shared
from tests.helpers.stores import write_manifest
from tests.storage.checks import assert_holds, build_store, effective_times, fast_folder, files_of

EDGES = ("node", "to", "node")

WRITES, CITES, HAS = ("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "has", "venue")


def timed_source(seed: int, *, chunk_rows: int = 7, edges_are_cheap: bool = True, num_times: int = 4) -> ArraySource:
    """Edges with times (``WRITES``), edges between nodes with times (``CITES``), edges with times on one side only (``HAS``)."""
    rng = np.random.default_rng(seed)
    sizes = {"author": 9, "paper": 21, "venue": 4}
    edges = {WRITES: random_edges(rng, 9, 21, 60), CITES: random_edges(rng, 21, 21, 90), HAS: random_edges(rng, 21, 4, 30)}
    nodes: dict[str, dict[str, Any]] = {
        "author": {"x": rng.random((9, 3)).astype(np.float32)},
        "paper": {"year": rng.integers(-num_times, num_times, (21, 1)).astype(np.int32), "y": rng.integers(0, 3, 21)},
        "venue": {},
    }
    edge_arrays = {
        WRITES: {"year": rng.integers(0, num_times, 60), "weight": rng.random(60).astype(np.float32)},
        CITES: {"edge_attr": rng.random((90, 2)).astype(np.float32), "weight": rng.random(90)},
        HAS: {},
    }
    splits = {"paper": {"train": np.arange(10)}}
    return typed_source(sizes, edges, nodes, edge_arrays, splits=splits, chunk_rows=chunk_rows, edges_are_cheap=edges_are_cheap)


def as_pyg(source: ArraySource) -> Any:
    from torch_geometric.data import HeteroData

    data = HeteroData()
    for node_type, nodes in source.schema.node_types.items():
        data[node_type].num_nodes = nodes.num_nodes
        for name, values in source.node_arrays[node_type].items():
            data[node_type][name] = torch.from_numpy(values)
    for edge_type, edge_index in source.edges.items():
        data[edge_type].edge_index = torch.from_numpy(edge_index)
        for name, values in source.edge_arrays[edge_type].items():
            data[edge_type][name] = torch.from_numpy(values)
    return data


@pytest.mark.slow
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow], phases=[Phase.explicit, Phase.generate])
@given(
    seed=st.integers(0, 2**32 - 1),
    edge_dir=st.sampled_from(["in", "out"]),
    weight=st.sampled_from([None, "weight"]),
    cheap=st.booleans(),
    memory=st.sampled_from([1, 600, 1 << 26]),
    partition=st.sampled_from(["contiguous", "random"]),
    turned=st.booleans(),
    first_time_attr=st.sampled_from([None, "year"]),
)
def test_builds_and_repartitions_are_in_the_order_of_times(
    seed: int, edge_dir: Any, weight: str | None, cheap: bool, memory: int, partition: Any, turned: bool, first_time_attr: str | None
) -> None:
    source = timed_source(seed, edges_are_cheap=cheap)
    options = BuildOptions(3, partition, edge_dir, with_edge=True, weight=weight, time_attr="year")
    with fast_folder() as folder:
        store = build_store(source, Path(folder) / "store", options, memory_bytes=memory)
        assert_holds(store, source)
        store.verify()
        assert store.arrays().edges[WRITES][0].time is not None and store.arrays().edges[CITES][0].time is not None
        assert (store.arrays().edges[HAS][0].time is None) == (edge_dir == "out"), "papers have times, venues have none"
        other_dir: Any = "in" if (edge_dir == "out") == turned else "out"
        first = BuildOptions(2, "random", other_dir, with_edge=True, weight="weight", time_attr=first_time_attr)
        made = build_store(build_store(source, Path(folder) / "first", first), Path(folder) / "made", options, memory_bytes=memory)
        assert files_of(made.path) == files_of(store.path)


@pytest.mark.parametrize("partition", ["ldg", "metis", "frequency"])
def test_partitioners_that_look_at_the_topology(partition: Any, tmp_path: Path) -> None:
    if partition == "metis":
        pytest.importorskip("pymetis")
    source = timed_source(3)
    options = BuildOptions(3, partition, "in", time_attr="year", weight="weight", cache_ratio=0.2)
    store = build_store(source, tmp_path / "store", options)
    assert_holds(store, source)
    store.verify()
    again = build_store(
        build_store(source, tmp_path / "other", BuildOptions(time_attr="year", weight="weight")), tmp_path / "again", options
    )
    assert files_of(again.path) == files_of(store.path), "edges that are in the order of these times already need no ids"


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_a_graph_in_memory_has_the_same_edges_as_a_store(edge_dir: Any, tmp_path: Path) -> None:
    from gnnkit.datasets import graph_from_pyg

    source = timed_source(5)
    data = as_pyg(source)
    options = BuildOptions(edge_dir=edge_dir, with_edge=True, weight="weight", time_attr="year")
    stored = build_store(source, tmp_path / "store", options).arrays()
    graph = graph_from_pyg(data, edge_dir=edge_dir, weight="weight", time_attr="year", with_edge=True)
    for edge_type in source.edges:
        (ours,), (theirs,) = graph.edges[edge_type], stored.edges[edge_type]
        for name in ("indptr", "indices", "edge_id", "weight_prefix", "time"):
            a, b = getattr(ours, name), getattr(theirs, name)
            assert (a is None) == (b is None), name
            np.testing.assert_array_equal(a, b)
        for name, rows in theirs.arrays.items():
            np.testing.assert_array_equal(ours.arrays[name], rows)
    assert data[WRITES].year.tolist() == source.edge_arrays[WRITES]["year"].tolist(), "the user's own tensors stay as they are"


def test_batches_of_a_graph_in_memory_and_of_its_store_are_the_same(tmp_path: Path) -> None:
    from gnnkit import GraphLoader

    source = timed_source(7)
    options: dict[str, Any] = {"num_neighbors": [4, 3], "batch_size": 6, "input_nodes": ("paper", None), "backend": "inprocess"}
    options |= {"time_attr": "year", "with_edge": True, "progress": False}
    with (
        GraphLoader.from_pyg(as_pyg(source), **options) as memory,
        GraphLoader.from_source(source, store_dir=tmp_path, num_parts=3, partition="random", **options) as stored,
    ):
        assert stored.store.options.time_attr == "year" and len(memory) == 4
        for ours, theirs in zip(memory, stored, strict=True):
            for part in ours.stores:
                other = theirs if part._key is None else theirs[part._key]
                for name, value in part.items():
                    assert value.equal(other[name]) if isinstance(value, torch.Tensor) else value == other[name], (part._key, name)
        with pytest.raises(PlanError, match="time_attr='age', but the store .* was built for the times 'year'"):
            GraphLoader.from_store(stored.store.path, **{**options, "time_attr": "age"})


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3), max_size=40), st.integers(1, 4))
def test_any_times_and_ties(times: list[int], num_owners: int) -> None:
    """Extreme values, ties, ascending and descending runs of every length, and one hub."""
    owners = [edge * edge % num_owners for edge in range(len(times))]
    edge_index = np.array([[0] * len(times), owners], np.int64).reshape(2, -1)
    source = homogeneous_source(edge_index, num_owners, edge_arrays={"at": np.array(times, np.int64)})
    with fast_folder() as folder:
        store = build_store(source, Path(folder) / "store", BuildOptions(with_edge=True, time_attr="at"))
        assert_holds(store, source)


def test_the_shared_copy_has_the_times(tmp_path: Path) -> None:
    store = build_store(timed_source(1), tmp_path / "store", BuildOptions(2, "random", time_attr="year"))
    copy = shared(store.arrays())
    there = attached(copy)
    for part in range(2):
        for edge_type in (WRITES, HAS):
            ours, theirs = store.arrays().edges[edge_type][part].time, there.graph.edges[edge_type][part].time
            assert ours is not None
            np.testing.assert_array_equal(ours, theirs)


def test_a_part_elsewhere_has_times_that_cannot_be_read(tmp_path: Path) -> None:
    build_store(timed_source(1), tmp_path / "store", BuildOptions(2, "random", time_attr="year"))
    here, elsewhere = Store.open(tmp_path / "store", (1,)).arrays().edges[WRITES][::-1]
    assert here.time is not None and elsewhere.time is not None and len(elsewhere.time) == len(elsewhere.indices)
    assert not any(elsewhere.time.strides), "a placeholder takes no memory"


def test_graphlearn_torch_directories_keep_times(tmp_path: Path) -> None:
    from gnnkit.datasets import GltPartitionSource, write_glt_partitions

    source = timed_source(2)
    options = BuildOptions(2, "random", with_edge=True, time_attr="year")
    store = build_store(source, tmp_path / "store", options)
    write_glt_partitions(store, tmp_path / "glt", lambda event: None)
    again = build_store(GltPartitionSource(tmp_path / "glt"), tmp_path / "again", options)
    assert_holds(again, _renamed(source, again.name))


def _renamed(source: ArraySource, name: str) -> ArraySource:
    source.name = name
    return source


def test_partition_takes_over_times_and_needs_ids_to_leave_their_order(tmp_path: Path) -> None:
    source = timed_source(4)
    store = gnnkit.partition(source, 2, "random", tmp_path / "timed", time_attr="year", with_edge=False)
    again = gnnkit.partition(store, 3, "random", tmp_path / "again")
    assert again.options.time_attr == "year" and again.fingerprint != store.fingerprint
    assert_holds(again, source)
    with pytest.raises(PlanError, match="in the order of 'year', and time_attr=None needs edge ids"):
        build_store(store, tmp_path / "without", BuildOptions(2), memory_bytes=1 << 20)
    with_ids = gnnkit.partition(source, 2, "random", tmp_path / "ids", time_attr="year", with_edge=True)
    assert_holds(build_store(with_ids, tmp_path / "without", BuildOptions(2), memory_bytes=1 << 20), source)


@pytest.mark.parametrize(
    ("arrays", "time_attr", "text"),
    [
        ({"year": np.zeros(5, np.int64)}, "yaer", "time_attr='yaer' names no array .* did you mean 'year'"),
        ({"x": np.zeros((5, 2), np.float32)}, "time", "no arrays of one integer a row"),
        ({"time": np.zeros(5, np.float32)}, "time", r"time_attr='time' of node has rows of shape \(\) and dtype float32"),
        ({"time": np.zeros((5, 2), np.int64)}, "time", r"rows of shape \(2,\) and dtype int64"),
        ({"time": np.zeros(5, np.bool_)}, "time", "dtype bool"),
        ({"time": np.zeros(5, np.uint64)}, "time", "dtype uint64"),
    ],
)
def test_what_is_no_time_is_refused(arrays: dict[str, Any], time_attr: str, text: str, tmp_path: Path) -> None:
    from torch_geometric.data import Data

    from gnnkit.datasets import graph_from_pyg

    edges = np.array([[0, 1, 2], [1, 2, 3]])
    source = homogeneous_source(edges, 5, **arrays)
    with pytest.raises(PlanError, match=text):
        build_store(source, tmp_path / "store", BuildOptions(time_attr=time_attr))
    values = {name: torch.from_numpy(rows) for name, rows in arrays.items()}
    if arrays.get("time", np.zeros(0)).dtype != np.uint64:
        with pytest.raises(PlanError, match=text):
            graph_from_pyg(Data(edge_index=torch.from_numpy(edges), num_nodes=5, **values), time_attr=time_attr)


def test_a_name_that_the_store_uses_is_refused(tmp_path: Path) -> None:
    source = homogeneous_source(np.zeros((2, 3), np.int64), 5, edge_arrays={"effective_time": np.zeros(3, np.int64)})
    with pytest.raises(PlanError, match="a name that the store uses itself"):
        build_store(source, tmp_path / "store", BuildOptions())


def test_times_in_another_order_are_damage(tmp_path: Path) -> None:
    edges = np.array([[0, 1, 2], [4, 4, 4]])
    source = homogeneous_source(edges, 5, edge_arrays={"time": np.array([3, 1, 2])})
    store = build_store(source, tmp_path / "store", BuildOptions(time_attr="time"))
    name = "part0/edges/node__to__node/effective_time.npy"
    stored = np.load(store.path / name)
    assert stored.tolist() == [1, 2, 3] and store.arrays().edges[EDGES][0].indices.tolist() == [1, 2, 0]
    content = (store.path / name).read_bytes()
    (store.path / name).write_bytes(content[: -stored.nbytes] + stored[::-1].tobytes())
    with pytest.raises(StoreError, match=r"effective_time.npy was changed"):
        Store.open(store.path).verify()
    manifest = json.loads((store.path / "manifest.json").read_text())
    manifest["files"][name]["crc32"] = zlib.crc32((store.path / name).read_bytes())
    write_manifest(store.path, manifest)
    with pytest.raises(StoreError, match=r"effective_time.npy decreases within a node"):
        Store.open(store.path).verify()


def test_the_reference_tells_edges_from_nodes() -> None:
    """The judge of these tests: an edge's own time goes before that of the node at its far end, which depends on the direction."""
    source = timed_source(0)
    assert effective_times(source, WRITES, "in", "year") == source.edge_arrays[WRITES]["year"].tolist()
    years = source.node_arrays["paper"]["year"].reshape(-1)
    assert effective_times(source, CITES, "in", "year") == years[source.edges[CITES][0]].tolist()
    assert effective_times(source, CITES, "out", "year") == years[source.edges[CITES][1]].tolist()
    assert (
        effective_times(source, HAS, "out", "year") is None and ArraySpec("int32", (1,)) == source.schema.node_types["paper"].arrays["year"]
    )

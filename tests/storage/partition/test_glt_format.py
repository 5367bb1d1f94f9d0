"""Partition directories: what is written is read back whole, and foreign or damaged directories are refused without running them."""

from __future__ import annotations

import os
import pickle
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnkit import BuildOptions
from gnnkit.datasets import ArraySpec, GltPartitionSource, write_glt_partitions
from gnnkit.errors import DatasetError, PlanError
from gnnkit.storage.arrays import GraphArrays
from gnnkit.storage.partition import assign_parts
from gnnkit.storage.store import ReplicatedFeatures
from tests.helpers.graphs import ArraySource, homogeneous_source, random_source
from tests.storage.checks import build_store
from tests.storage.partition.build import graph_arrays

NODE, EDGE = "node", ("node", "to", "node")


@dataclass
class PartedGraph:
    """What the writer needs of a store."""

    graph: GraphArrays
    splits: dict = field(default_factory=dict)
    name: str = "tiny"
    notice: str | None = None
    metadata: dict = field(default_factory=dict)
    caches: dict = field(default_factory=dict)
    options: BuildOptions = BuildOptions()

    def arrays(self):
        return self.graph

    def checked(self, names=None, events=None):
        return self

    def require(self):
        return self

    def cache(self, part):
        return self.caches.get(part, {})


def parted(source: ArraySource, num_parts: int, *, edge_dir="in", with_edge=True, method="random", seed=0) -> PartedGraph:
    sizes = {name: t.num_nodes for name, t in source.schema.node_types.items()}
    options = BuildOptions(num_parts=min(num_parts, max(sizes.values())), partition=method, seed=seed)
    parts = assign_parts(source.schema, None, options)
    graph = graph_arrays(
        sizes, source.edges, edge_dir=edge_dir, assignment=parts, num_parts=options.num_parts, source=source, with_edge=with_edge
    )
    return PartedGraph(graph, source.splits, source.name, source.notice, source.metadata)


def whole(chunks, axis=0):
    return np.concatenate(list(chunks), axis=axis)


def assert_same_graph(got, want):
    assert got.schema.to_json() == want.schema.to_json()
    for edge_type, edges in want.edges.items():
        if edges.shape[1]:
            np.testing.assert_array_equal(whole(got.edge_chunks(edge_type), axis=1), edges)
        else:
            assert list(got.edge_chunks(edge_type)) == []
        for name, values in want.edge_arrays[edge_type].items():
            if len(values):
                read = whole(got.edge_array_chunks(edge_type, name))
                assert read.dtype == values.dtype
                np.testing.assert_array_equal(read, values)
    for node_type, arrays in want.node_arrays.items():
        for name, values in arrays.items():
            if len(values):
                read = whole(got.node_array_chunks(node_type, name))
                assert read.dtype == values.dtype
                np.testing.assert_array_equal(read, values)


def sample_source(rng=None, num_nodes=30, num_edges=100):
    rng = rng or np.random.default_rng(0)
    return homogeneous_source(
        rng.integers(0, num_nodes, (2, num_edges)),
        num_nodes,
        x=rng.standard_normal((num_nodes, 4)).astype(np.float32),
        y=rng.integers(0, 5, num_nodes),
        edge_arrays={
            "edge_attr": rng.standard_normal((num_edges, 2)).astype(np.float32),
            "weight": rng.random(num_edges).astype(np.float32),
        },
        splits={"train": rng.permutation(num_nodes)[:10], "test": np.arange(3)},
    )


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), num_parts=st.integers(1, 4), edge_dir=st.sampled_from(["in", "out"]))
def test_typed_graphs_come_back_whole(tmp_path_factory, seed, num_parts, edge_dir):
    source = random_source(np.random.default_rng(seed))
    out = tmp_path_factory.mktemp("glt") / "parts"
    write_glt_partitions(parted(source, num_parts, edge_dir=edge_dir, seed=seed), out)
    read = GltPartitionSource(out)
    assert_same_graph(read, source)
    assert (read.name, read.notice, read.metadata) == (source.name, source.notice, source.metadata)
    assert {t: set(s) for t, s in read.splits.items()} == {t: set(s) for t, s in source.splits.items()}
    for node_type, splits in source.splits.items():
        for name, ids in splits.items():
            np.testing.assert_array_equal(read.splits[node_type][name], ids)
    shutil.rmtree(out.parent)


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_the_layout_is_that_of_graphlearn_torch(tmp_path, edge_dir):
    source, out = sample_source(), tmp_path / "parts"
    store = parted(source, 2, edge_dir=edge_dir)
    events: list[Any] = []
    write_glt_partitions(store, out, events.append)
    assert pickle.loads((out / "META").read_bytes()) == {"num_parts": 2, "data_cls": "homo", "node_types": None, "edge_types": None}
    node_pb, edge_pb = torch.load(out / "node_pb.pt"), torch.load(out / "edge_pb.pt")
    assert node_pb.dtype == edge_pb.dtype == torch.int64
    assert torch.equal(torch.load(out / "node_label.pt"), torch.from_numpy(source.node_arrays[NODE]["y"]))
    for part in range(2):
        graph = out / f"part{part}" / "graph"
        rows, cols, eids, weights = (torch.load(graph / f"{name}.pt") for name in ("rows", "cols", "eids", "weights"))
        np.testing.assert_array_equal(torch.stack([rows, cols]).numpy(), source.edges[EDGE][:, eids])
        assert (edge_pb[eids] == part).all()
        assert (node_pb[cols if edge_dir == "in" else rows] == part).all()
        assert weights.dtype == torch.float32
        np.testing.assert_array_equal(weights.numpy(), source.edge_arrays[EDGE]["weight"][eids])
        for folder, values, book in (
            ("node_feat", source.node_arrays[NODE]["x"], node_pb),
            ("edge_feat", source.edge_arrays[EDGE]["edge_attr"], edge_pb),
        ):
            with (out / f"part{part}" / folder / "feats.pkl").open("rb") as file:
                feats = pickle.load(file)
            with (out / f"part{part}" / folder / "ids.pkl").open("rb") as file:
                ids = pickle.load(file)
            assert ids.tolist() == torch.where(book == part)[0].tolist()
            np.testing.assert_array_equal(feats.numpy(), values[ids])
    assert (events[0].kind, events[-1].kind, events[-1].done) == ("start", "end", 130)


def test_pickled_chunks_hold_their_own_rows_only(tmp_path):
    source = homogeneous_source(np.zeros((2, 1), np.int64), 25_000, x=np.arange(50_000, dtype=np.float32).reshape(-1, 2))
    write_glt_partitions(parted(source, 1), tmp_path / "parts")
    feats = tmp_path / "parts" / "part0" / "node_feat" / "feats.pkl"
    assert feats.stat().st_size < 1.05 * source.node_arrays[NODE]["x"].nbytes
    assert_same_graph(GltPartitionSource(tmp_path / "parts"), source)


def test_without_edge_ids_edges_are_numbered_by_their_place(tmp_path):
    source = sample_source()
    events: list[Any] = []
    write_glt_partitions(parted(source, 2, with_edge=False), tmp_path / "parts", events.append)
    assert [e.text for e in events if e.kind == "message"] == ["the store has no edge ids: edges are numbered by their place in it"]
    read = GltPartitionSource(tmp_path / "parts")
    edges, weight = whole(read.edge_chunks(EDGE), axis=1), whole(read.edge_array_chunks(EDGE, "weight"))
    attr = whole(read.edge_array_chunks(EDGE, "edge_attr"))
    want = source.edge_arrays[EDGE]
    got = sorted(zip(*edges.tolist(), weight.tolist(), attr.tolist(), strict=True))
    assert got == sorted(zip(*source.edges[EDGE].tolist(), want["weight"].tolist(), want["edge_attr"].tolist(), strict=True))


def test_the_weight_of_the_store_is_the_weight_of_the_layout(tmp_path):
    weights = {"weight": np.arange(3, dtype=np.float32), "trust": np.arange(3, 6, dtype=np.float32)}
    source = homogeneous_source(np.array([[0, 5, 9], [1, 5, 0]]), 10, edge_arrays=weights)
    store = parted(source, 1)
    store.options = BuildOptions(weight="trust")
    write_glt_partitions(store, tmp_path / "parts")
    assert torch.load(tmp_path / "parts" / "part0" / "graph" / "weights.pt").tolist() == [3, 4, 5]
    assert_same_graph(GltPartitionSource(tmp_path / "parts"), source)


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "uint8"])
def test_dtypes_are_kept(tmp_path, dtype):
    values = np.arange(20).reshape(10, 2).astype(dtype)
    source = homogeneous_source(
        np.array([[0, 5, 9], [1, 5, 0]]), 10, x=values, edge_arrays={"weight": np.arange(3).astype(dtype), "edge_attr": values[:3]}
    )
    write_glt_partitions(parted(source, 3), tmp_path / "parts")
    assert_same_graph(GltPartitionSource(tmp_path / "parts"), source)


def test_bfloat16_features_are_bfloat16_tensors(tmp_path):
    bits = torch.arange(20.0).reshape(10, 2).bfloat16()
    source = homogeneous_source(np.zeros((2, 1), np.int64), 10, x=bits.view(torch.int16).numpy().view(np.uint16))
    source.schema = type(source.schema).homogeneous(10, 1, {"x": ArraySpec("bfloat16", (2,))})
    write_glt_partitions(parted(source, 2), tmp_path / "parts")
    with (tmp_path / "parts" / "part0" / "node_feat" / "feats.pkl").open("rb") as file:
        assert pickle.load(file).dtype == torch.bfloat16
    assert_same_graph(GltPartitionSource(tmp_path / "parts"), source)


def test_caches_are_written_and_not_read_as_rows(tmp_path):
    source = sample_source()
    store = parted(source, 2)
    x = source.node_arrays[NODE]["x"]
    hot = store.graph.nodes[NODE][1].global_id[:4]
    store.caches[0] = {NODE: ReplicatedFeatures(hot, x[hot])}
    write_glt_partitions(store, tmp_path / "parts")
    folder = tmp_path / "parts" / "part0" / "node_feat"
    assert torch.load(folder / "cache_ids.pt").tolist() == hot.tolist()
    np.testing.assert_array_equal(torch.load(folder / "cache_feats.pt").numpy(), x[hot])
    assert not (tmp_path / "parts" / "part1" / "node_feat" / "cache_ids.pt").exists()
    assert_same_graph(GltPartitionSource(tmp_path / "parts"), source)


@pytest.mark.parametrize("seed", range(4))
def test_a_store_survives_the_journey(tmp_path, seed):
    source = random_source(np.random.default_rng(seed), num_node_types=2)
    largest = max(t.num_nodes for t in source.schema.node_types.values())
    options = BuildOptions(num_parts=min(3, largest), partition="ldg", with_edge=True, weight="weight", cache_ratio=0.3)
    store = build_store(source, tmp_path / "store", options)
    write_glt_partitions(store, tmp_path / "glt")
    read = GltPartitionSource(tmp_path / "glt")
    assert_same_graph(read, source)
    for part in range(store.num_parts):
        for node_type, cache in store.cache(part).items():
            ids = tmp_path / "glt" / f"part{part}" / "node_feat" / node_type / "cache_ids.pt"
            assert (torch.load(ids).tolist() if ids.exists() else []) == cache.global_id.tolist()
    again = build_store(read, tmp_path / "again", options)
    first, second = ({n: e for n, e in s.manifest.files.items()} for s in (store, again))
    assert first == second


def test_an_existing_folder_is_left_alone_and_a_failed_export_leaves_nothing(tmp_path):
    store = parted(sample_source(), 2)
    (tmp_path / "parts").mkdir()
    with pytest.raises(PlanError, match="exists already"):
        write_glt_partitions(store, tmp_path / "parts")

    def fail(event: Any) -> None:
        if event.kind == "progress":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_glt_partitions(store, tmp_path / "other", fail)
    assert os.listdir(tmp_path) == ["parts"]


# --- directories as graphlearn-torch's own partitioners leave them -------------------------------------------------------


def save(path: Path, values) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(torch.as_tensor(values), path)


def append(path: Path, values) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        pickle.dump(torch.as_tensor(values), file)


def foreign_directory(root: Path, source: ArraySource, *, cached_graph=False, blob=10) -> None:
    """Two parts by parity; features in blobs whose rows are shuffled, edges of a part in reverse, no labels."""
    rng = np.random.default_rng(5)
    sizes = source.schema.node_types[NODE].num_nodes
    edges, x = source.edges[EDGE], source.node_arrays[NODE]["x"]
    root.mkdir(parents=True)
    (root / "META").write_bytes(pickle.dumps({"num_parts": 2, "data_cls": "homo", "node_types": None, "edge_types": None}, 5))
    save(root / "node_pb.pt", np.arange(sizes) % 2)
    save(root / "edge_pb.pt", edges[0] % 2)
    for part in range(2):
        (root / f"part{part}").mkdir()
        eids = np.flatnonzero(edges[0] % 2 == part)[::-1].copy()
        graph = root / f"part{part}" / "graph"
        if not cached_graph:
            for name, values in (("rows", edges[0][eids]), ("cols", edges[1][eids]), ("eids", eids)):
                save(graph / f"{name}.pt", values)
        for first in range(0, sizes, blob):
            ids = np.arange(first, min(first + blob, sizes))
            ids = rng.permutation(ids[ids % 2 == part])
            append(root / f"part{part}" / "node_feat" / "feats.pkl", x[ids])
            append(root / f"part{part}" / "node_feat" / "ids.pkl", ids)
    if cached_graph:
        save(root / "graph" / "rows.pt", edges[0])
        save(root / "graph" / "cols.pt", edges[1])


@pytest.mark.parametrize("cached_graph", [False, True])
def test_foreign_directories_are_put_together(tmp_path, cached_graph):
    rng = np.random.default_rng(1)
    x = rng.random((50, 3)).astype(np.float32)
    source = homogeneous_source(rng.integers(0, 50, (2, 80)), 50, x=x)
    foreign_directory(tmp_path / "parts", source, cached_graph=cached_graph)
    read = GltPartitionSource(tmp_path / "parts")
    assert_same_graph(read, source)
    assert (read.name, read.splits, read.num_parts) == ("parts", {}, 2)


def test_labels_are_given_as_a_file(tmp_path):
    source = sample_source()
    del source.edge_arrays[EDGE]["weight"], source.edge_arrays[EDGE]["edge_attr"]
    foreign_directory(tmp_path / "parts", source)
    save(tmp_path / "label.pt", source.node_arrays[NODE]["y"])
    read = GltPartitionSource(tmp_path / "parts", labels=tmp_path / "label.pt", name="mine")
    assert read.name == "mine"
    np.testing.assert_array_equal(whole(read.node_array_chunks(NODE, "y")), source.node_arrays[NODE]["y"])
    save(tmp_path / "label.pt", np.arange(7))
    with pytest.raises(DatasetError, match=r"labels of shape \[7\] for 30 nodes"):
        GltPartitionSource(tmp_path / "parts", labels=tmp_path / "label.pt")
    with pytest.raises(DatasetError, match="unknown node types"):
        GltPartitionSource(tmp_path / "parts", labels={"user": tmp_path / "label.pt"})


def test_rows_that_come_late_are_waited_for(tmp_path):
    """They are read a window of 2**20 at a time, and lie in two blobs, in any order."""
    num_nodes = (1 << 20) + 100_000
    x = np.random.default_rng(2).random((num_nodes, 1)).astype(np.float32)
    source = homogeneous_source(np.random.default_rng(1).integers(0, num_nodes, (2, 80)), num_nodes, x=x)
    foreign_directory(tmp_path / "parts", source, blob=num_nodes)
    assert_same_graph(GltPartitionSource(tmp_path / "parts"), source)


def test_the_fingerprint_follows_the_content(tmp_path):
    source = sample_source()
    foreign_directory(tmp_path / "a", source)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    first = GltPartitionSource(tmp_path / "a").fingerprint()
    assert GltPartitionSource(tmp_path / "b").fingerprint() == first
    save(tmp_path / "b" / "part0" / "graph" / "rows.pt", torch.zeros_like(torch.load(tmp_path / "b" / "part0" / "graph" / "rows.pt")))
    assert GltPartitionSource(tmp_path / "b").fingerprint() != first


class Payload:
    """Runs a function when it is unpickled by an ordinary unpickler."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("victim", ["META", "node_pb.pt", "part1/graph/rows.pt", "part0/node_feat/feats.pkl", "part1/node_feat/ids.pkl"])
def test_nothing_that_is_read_is_run(tmp_path, victim):
    foreign_directory(tmp_path / "parts", sample_source())
    path = tmp_path / "parts" / victim
    if victim.endswith(".pt"):
        torch.save(Payload(tmp_path / "ran"), path)
    else:
        path.write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
    with pytest.raises(DatasetError, match="cannot be read as graphlearn-torch wrote it"):
        list(GltPartitionSource(tmp_path / "parts").node_array_chunks(NODE, "x"))
    assert not (tmp_path / "ran").exists()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


DAMAGE = {
    "no META": (lambda root: (root / "META").unlink(), "META does not exist"),
    "META of something else": (lambda root: (root / "META").write_bytes(pickle.dumps([1, 2])), "cannot be read"),
    "META without parts": (lambda root: (root / "META").write_bytes(pickle.dumps({"data_cls": "homo", "num_parts": 0})), "cannot be read"),
    "no part": (lambda root: shutil.rmtree(root / "part1"), "rows.pt does not exist"),
    "truncated tensor": (lambda root: truncate(root / "part1" / "graph" / "rows.pt"), "rows.pt cannot be read"),
    "truncated pickle": (lambda root: truncate(root / "part1" / "node_feat" / "feats.pkl"), "feats.pkl cannot be read"),
    "other lengths": (lambda root: save(root / "part0" / "graph" / "eids.pt", np.arange(3)), "different lengths"),
    "no tensor": (lambda root: torch.save({"a": 1}, root / "node_pb.pt"), "holds a dict instead of a tensor"),
    "floating ids": (lambda root: save(root / "part0" / "graph" / "rows.pt", np.zeros(9)), "instead of ids"),
    "partitioned twice": (
        lambda root: [(p := root / "part0" / "node_feat" / n).write_bytes(p.read_bytes() * 2) for n in ("ids.pkl", "feats.pkl")],
        "id 0 occurs more than once",
    ),
    "rows missing": (lambda root: shutil.rmtree(root / "part1" / "node_feat"), "nothing for id 1"),
    "too few features": (
        lambda root: append(root / "part1" / "node_feat" / "ids.pkl", np.array([30])),
        "ends after 15 of 16 rows",
    ),
    "too many features": (
        lambda root: append(root / "part1" / "node_feat" / "feats.pkl", np.zeros((2, 4), np.float32)),
        "holds more rows than the 15 of ids.pkl",
    ),
    "feature of no node": (
        lambda root: [
            append(root / "part1" / "node_feat" / "ids.pkl", np.array([30])),
            append(root / "part1" / "node_feat" / "feats.pkl", np.zeros((1, 4), np.float32)),
        ],
        "30 is no valid id",
    ),
    "other width": (
        lambda root: [
            shutil.rmtree(root / "part1" / "node_feat"),
            append(root / "part1" / "node_feat" / "ids.pkl", np.arange(1, 30, 2)),
            append(root / "part1" / "node_feat" / "feats.pkl", np.zeros((15, 5), np.float32)),
        ],
        "rows of float32",
    ),
    "edge ids twice": (
        lambda root: save(root / "part0" / "graph" / "eids.pt", np.zeros(len(torch.load(root / "part0" / "graph" / "eids.pt")), np.int64)),
        r"id 0 occurs more than once|nothing for id",
    ),
    "nodes out of range": (
        lambda root: save(
            root / "part0" / "graph" / "cols.pt", np.full(len(torch.load(root / "part0" / "graph" / "cols.pt")), 30, np.int64)
        ),
        "names node 30 of 'node', which has 30 nodes",
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_directories_are_refused(tmp_path, case):
    damage, message = DAMAGE[case]
    foreign_directory(tmp_path / "parts", sample_source())
    damage(tmp_path / "parts")
    with pytest.raises(DatasetError, match=message):
        source = GltPartitionSource(tmp_path / "parts")
        list(source.node_array_chunks(NODE, "x"))
        list(source.edge_chunks(EDGE))


@settings(max_examples=60, deadline=None)
@given(victim=st.integers(0, 10**6), position=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_flipped_bytes_never_crash(tmp_path_factory, victim, position, flip):
    root = tmp_path_factory.mktemp("glt") / "parts"
    foreign_directory(root, sample_source(num_nodes=6, num_edges=8))
    files = sorted(p for p in root.rglob("*") if p.is_file())
    content = bytearray(files[victim % len(files)].read_bytes())
    content[int(position * len(content))] ^= flip
    files[victim % len(files)].write_bytes(content)
    try:
        source = GltPartitionSource(root)
        assert sum(len(rows) for rows in source.node_array_chunks(NODE, "x")) == source.schema.node_types[NODE].num_nodes
        assert sum(pairs.shape[1] for pairs in source.edge_chunks(EDGE)) == source.schema.edge_types[EDGE].num_edges
    except DatasetError:
        pass
    shutil.rmtree(root.parent)

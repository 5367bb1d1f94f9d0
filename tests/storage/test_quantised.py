"""Features in 8 bits: against plain Python that rounds as the specification says, and through every way that rows leave a store."""

from __future__ import annotations

import importlib.util
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gnnkit.errors import PlanError, StoreError
from gnnkit.events import Event
from gnnkit.schema import (
    HOMOGENEOUS_EDGE_TYPE,
    HOMOGENEOUS_NODE_TYPE,
    ArraySpec,
    EdgeTypeSchema,
    GraphSchema,
    NodeTypeSchema,
    Quantization,
    reverse_edge_type,
)
from gnnkit.storage.build import build_store, repartition
from gnnkit.storage.convert import dequantize_rows, float32_to_bfloat16
from gnnkit.storage.layout import BuildOptions
from gnnkit.storage.manifest import write_manifest
from gnnkit.storage.store import Store
from tests.helpers.graphs import ArraySource, homogeneous_source, random_edges, spec_of
from tests.storage.checks import fast_folder, files_of

needs_glt = pytest.mark.skipif(
    importlib.util.find_spec("graphlearn_torch") is None, reason="graphlearn-torch is not installed; to enable: Python 3.10 or 3.11"
)
RING = np.array([[0, 1, 2, 3], [1, 2, 3, 0]], np.int64)
QUINT8 = BuildOptions(feature_dtype="quint8")
FINITE = st.floats(-(2.0**126), 2.0**126, width=32)


def single(value: float) -> float:
    """The nearest float32."""
    return struct.unpack("f", struct.pack("f", value))[0]  # type: ignore[no-any-return]


def reference(values: list[float]) -> tuple[float, float, list[int], list[float]]:
    """Scale, offset, what is stored and what it stands for, of one column."""
    low, high = min(values), max(values)
    offset, scale = single(low), single((high - low) / 255)
    if scale == 0 and high > low:
        scale = 2.0**-149
    # round() of Python takes ties to even, as rint does.
    stored = [min(255, max(0, round((value - offset) / scale))) if scale else 0 for value in values]
    return scale, offset, stored, [single(single(q * scale) + offset) for q in stored]


def column(store: Store, name: str = "x") -> tuple[np.ndarray, Quantization]:
    spec = store.schema.node_types[HOMOGENEOUS_NODE_TYPE].arrays[name]
    assert spec.dtype == "quint8" and spec.quantization is not None
    return np.concatenate([part.arrays[name] for part in store.arrays().nodes[HOMOGENEOUS_NODE_TYPE]]), spec.quantization


@settings(max_examples=30, deadline=None)
@given(hnp.arrays(np.float32, st.tuples(st.integers(4, 20), st.integers(1, 4)), elements=FINITE | st.sampled_from([0.0, -0.0, 1e-45, 1.0])))
def test_every_bit_is_as_specified(x: np.ndarray) -> None:
    with fast_folder() as folder:
        stored, quantization = column(build_store(homogeneous_source(RING, len(x), x=x, chunk_rows=3), Path(folder) / "store", QUINT8))
    assert stored.dtype == np.uint8
    values = dequantize_rows(stored, quantization)
    for c in range(x.shape[1]):
        scale, offset, expected, numbers = reference(x[:, c].tolist())
        assert (quantization.scale[c], quantization.offset[c]) == (scale, offset)
        assert stored[:, c].tolist() == expected
        assert values[:, c].tolist() == numbers
        # Half a step, and what rounding scale, products and sums to float32 may add.
        largest = max(map(abs, x[:, c].tolist()))
        error = np.abs(values[:, c].astype(np.float64) - x[:, c]).max()
        assert error <= scale / 2 * (1 + 1e-4) + largest * 2.0**-21 + 2.0**-148
        if scale == 0:
            assert values[:, c].tolist() == x[:, c].tolist(), "a column of one value is exact"


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_features_of_every_width(dtype: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    plain = (rng.standard_normal((40, 3)) * [1, 100, 0]).astype(np.float32)
    x: np.ndarray = float32_to_bfloat16(plain) if dtype == "bfloat16" else plain.astype(dtype)
    source = homogeneous_source(RING, 40, x=x)
    source.schema = GraphSchema.homogeneous(40, 4, {"x": ArraySpec(dtype, (3,))})
    stored, quantization = column(build_store(source, tmp_path / "store", QUINT8))
    values = (x.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else x
    for c in range(3):
        assert stored[:, c].tolist() == reference(values[:, c].astype(float).tolist())[2]
    assert (np.abs(dequantize_rows(stored, quantization) - values) <= np.array(quantization.scale) * 0.5001).all()


def graph(num_nodes: int = 60, num_edges: int = 300) -> ArraySource:
    """Features of nodes and edges, and what is not quantised: labels, weights, whole numbers, rows of more dimensions."""
    rng = np.random.default_rng(3)
    edges = random_edges(rng, num_nodes, num_nodes, num_edges)
    y, grid = rng.random((num_nodes, 3)).astype(np.float32), rng.random((num_nodes, 2, 2)).astype(np.float16)
    y[::4] = np.nan
    x = (rng.standard_normal((num_nodes, 7)) * 10).astype(np.float32)
    edge_arrays = {
        "edge_attr": rng.random((num_edges, 2)),
        "weight": rng.random(num_edges).astype(np.float32),
        "kind": rng.integers(0, 200, (num_edges, 2)).astype(np.uint8),
    }
    splits = {"train": np.arange(0, num_nodes, 2)}
    return homogeneous_source(edges, num_nodes, edge_arrays=edge_arrays, splits=splits, chunk_rows=17, x=x, y=y, grid=grid)


def test_what_is_no_feature_keeps_every_bit_and_parts_agree(tmp_path: Path) -> None:
    source, events = graph(), list[Event]()
    options = BuildOptions(3, "random", feature_dtype="quint8", with_edge=True, weight="weight", cache_ratio=0.2)
    store = build_store(source, tmp_path / "store", options, events.append)
    store.verify()
    nodes, edges = store.schema.node_types[HOMOGENEOUS_NODE_TYPE].arrays, store.schema.edge_types[HOMOGENEOUS_EDGE_TYPE].arrays
    assert {name: spec.dtype for name, spec in nodes.items()} == {"x": "quint8", "y": "float32", "grid": "float16"}
    assert {name: s.dtype for name, s in edges.items()} == {"edge_attr": "quint8", "weight": "float32", "kind": "uint8"}
    whole = build_store(source, tmp_path / "whole", BuildOptions(feature_dtype="quint8", with_edge=True, weight="weight"))
    assert whole.schema.to_json() == store.schema.to_json(), "scales do not depend on the parts"
    (one,) = whole.arrays().nodes[HOMOGENEOUS_NODE_TYPE]
    for number, part in enumerate(store.arrays().nodes[HOMOGENEOUS_NODE_TYPE]):
        for name in nodes:
            np.testing.assert_array_equal(part.arrays[name], one.arrays[name][part.global_id])
        np.testing.assert_array_equal(part.arrays["y"], source.node_arrays[HOMOGENEOUS_NODE_TYPE]["y"][part.global_id])
        cached = store.cache(number)[HOMOGENEOUS_NODE_TYPE]
        assert cached.x.dtype == np.uint8 and len(cached.x)
        np.testing.assert_array_equal(cached.x, one.arrays["x"][cached.global_id])
    (edge_part,) = whole.arrays().edges[HOMOGENEOUS_EDGE_TYPE]
    attr = source.edge_arrays[HOMOGENEOUS_EDGE_TYPE]["edge_attr"]
    for c in range(2):
        assert edge_part.arrays["edge_attr"][:, c].tolist() == np.array(reference(attr[:, c].tolist())[2])[edge_part.edge_id].tolist()
    stages = [event.stage for event in events if event.kind == "start"]
    assert stages[-2:] == ["quantize", "partition"], stages
    assert files_of(repartition(whole, tmp_path / "again", options).path) == files_of(store.path)


def test_a_store_stays_quantised(tmp_path: Path) -> None:
    store = build_store(graph(), tmp_path / "store", QUINT8)
    held = repartition(store, tmp_path / "again", BuildOptions(2))
    assert held.options.feature_dtype == "quint8" and held.schema.to_json() == store.schema.to_json()
    with pytest.raises(PlanError, match="were reduced to quint8 and cannot become float32"):
        repartition(store, tmp_path / "wide", BuildOptions(2, feature_dtype="float32"))
    narrow = build_store(graph(), tmp_path / "narrow", BuildOptions(feature_dtype="float16"))
    with pytest.raises(PlanError, match="were reduced to float16 and cannot become quint8"):
        repartition(narrow, tmp_path / "narrower", QUINT8)
    full = build_store(graph(), tmp_path / "full", BuildOptions())
    assert files_of(repartition(full, tmp_path / "cut", QUINT8).path) == files_of(store.path)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.nan, r"column 1 of 'x' of node goes from nan to nan, which 8 bits cannot stand for"),
        (np.inf, r"column 1 of 'x' of node goes from 1\.0 to inf"),
        (-np.inf, r"column 1 of 'x' of node goes from -inf to 2\.0"),
        (1e39, r"column 1 of 'x' of node goes from 1\.0 to 1e\+39"),
    ],
)
def test_what_8_bits_cannot_hold_is_refused(value: float, text: str, tmp_path: Path) -> None:
    source = homogeneous_source(RING, 4, x=np.array([[1.0, 1.0], [np.float64(0), value], [2.0, 2.0], [3.0, 1.0]]))
    with pytest.raises(PlanError, match=text):
        build_store(source, tmp_path / "store", QUINT8)
    assert not (tmp_path / "store").exists()


def test_edge_features_that_cannot_be_held_are_refused(tmp_path: Path) -> None:
    attr = np.array([[-3e38], [3.4e38], [0.0], [0.0]], np.float32)
    with pytest.raises(PlanError, match=r"column 0 of 'edge_attr' of \('node', 'to', 'node'\) goes from -3"):
        build_store(homogeneous_source(RING, 4, edge_arrays={"edge_attr": attr}), tmp_path / "store", QUINT8)


def test_empty_arrays(tmp_path: Path) -> None:
    empty = homogeneous_source(np.empty((2, 0), np.int64), 3, edge_arrays={"edge_attr": np.empty((0, 2))}, x=np.empty((3, 0), np.float32))
    store = build_store(empty, tmp_path / "store", QUINT8)
    store.verify()
    spec = store.schema.edge_types[HOMOGENEOUS_EDGE_TYPE].arrays["edge_attr"]
    assert spec == ArraySpec("quint8", (2,), Quantization((0.0, 0.0), (0.0, 0.0)))
    assert store.schema.node_types[HOMOGENEOUS_NODE_TYPE].arrays["x"].quantization == Quantization((), ())
    assert dequantize_rows(np.empty((3, 0), np.uint8), Quantization((), ())).shape == (3, 0)


@pytest.mark.parametrize(
    "change",
    [
        lambda q: q["scale"].pop(),
        lambda q: q["scale"].__setitem__(0, -1.0),
        lambda q: q["offset"].__setitem__(0, 0.1),
        lambda q: q["offset"].__setitem__(0, float("inf")),
        lambda q: (q["scale"].pop(), q["offset"].pop()),
        dict.clear,
    ],
)
def test_scales_that_make_no_sense_are_damage(change: Any, tmp_path: Path) -> None:
    store = build_store(graph(), tmp_path / "store", QUINT8)
    value = json.loads((store.path / "manifest.json").read_text())
    change(value["schema"]["node_types"][0]["arrays"]["x"]["quantization"])

    class Written:
        def to_json(self) -> dict[str, Any]:
            return {name: entry for name, entry in value.items() if name != "checksum"}

    write_manifest(store.path, Written())  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="does not describe a store"):
        Store.open(store.path)


def test_a_source_of_quantised_rows_must_say_what_they_are(tmp_path: Path) -> None:
    source = homogeneous_source(RING, 4, x=np.zeros((4, 2), np.uint8))
    source.schema = GraphSchema.homogeneous(4, 4, {"x": ArraySpec("quint8", (2,))})
    with pytest.raises(PlanError, match=r"'x' of node type 'node' has dtype 'quint8', rows of shape \(2,\) and scales None"):
        build_store(source, tmp_path / "store", BuildOptions())
    for spec in (ArraySpec("uint8", (2,), Quantization((1.0, 1.0), (0.0, 0.0))), ArraySpec("quint8", (2,), Quantization((1.0,), (0.0,)))):
        source.schema = GraphSchema.homogeneous(4, 4, {"x": spec})
        with pytest.raises(PlanError, match="scales"):
            build_store(source, tmp_path / "store", BuildOptions())


def typed_graph() -> ArraySource:
    """Two node types and two edge types; "tag" has 16-bit rows of two dimensions beside, and no features."""
    rng = np.random.default_rng(4)
    on, cites = ("tag", "on", "paper"), ("paper", "cites", "paper")
    nodes: dict[str, dict[str, Any]] = {
        "paper": {"x": rng.standard_normal((50, 5)).astype(np.float32), "y": np.arange(50)},
        "tag": {"grid": rng.random((20, 2, 2)).astype(np.float16)},
    }
    edges = {on: random_edges(rng, 20, 50, 150), cites: random_edges(rng, 50, 50, 200)}
    edge_arrays: dict[Any, dict[str, Any]] = {
        on: {"edge_attr": rng.standard_normal((150, 3)).astype(np.float32)},
        cites: {"pos": rng.random((200, 2)), "y": rng.random((200, 2)).astype(np.float32)},
    }
    schema = GraphSchema(
        {t: NodeTypeSchema(n, {k: spec_of(v) for k, v in nodes[t].items()}) for t, n in (("paper", 50), ("tag", 20))},
        {t: EdgeTypeSchema(e.shape[1], {k: spec_of(v) for k, v in edge_arrays[t].items()}) for t, e in edges.items()},
    )
    return ArraySource(schema, edges, nodes, edge_arrays, splits={"paper": {"train": np.arange(0, 50, 2)}})


def expected_rows(values: np.ndarray, name: str, feature_dtype: str = "quint8") -> Any:
    """What batches should show of an array, row by row of the dataset."""
    import torch

    if name == "y" or values.ndim != 2 or values.dtype.kind != "f":
        return torch.from_numpy(values)
    if feature_dtype != "quint8":
        return torch.from_numpy(values.astype(np.float32)).to(getattr(torch, feature_dtype))
    return torch.tensor([reference(column.tolist())[3] for column in values.T], dtype=torch.float32).T


def check_batch(batch: Any, source: ArraySource, edge_dir: str, feature_dtype: str = "quint8") -> int:
    """Compares every array of a batch; returns how many values there were."""
    seen = 0
    homogeneous = source.schema.is_homogeneous
    for node_type, arrays in source.node_arrays.items():
        store = batch if homogeneous else batch[node_type]
        for name, values in arrays.items():
            rows = expected_rows(values, name, feature_dtype)[store.n_id]
            assert store[name].dtype == rows.dtype and raw(store[name]) == raw(rows), (node_type, name)
            seen += rows.numel()
    for edge_type, arrays in source.edge_arrays.items():
        store = batch if homogeneous else batch[edge_type if edge_dir == "in" else reverse_edge_type(edge_type)]
        for name, values in arrays.items():
            rows = expected_rows(values, name, feature_dtype)[store.e_id]
            assert store[name].dtype == rows.dtype and raw(store[name]) == raw(rows), (edge_type, name)
            seen += rows.numel()
    return seen


def raw(tensor: Any) -> bytes:
    import torch

    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "edge_dir", "feature_dtype", "names"),
    [
        (graph, "in", "quint8", ("Colocated", "GraphStore")),
        (typed_graph, "out", "quint8", ("Colocated", "GraphStore")),
        (typed_graph, "in", "bfloat16", ("GraphStore",)),
        (graph, "out", "float16", ("Colocated",)),
    ],
    ids=["homogeneous", "typed", "bfloat16", "float16"],
)
def test_batches_have_the_numbers_in_every_backend(make: Any, edge_dir: Any, feature_dtype: Any, names: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    import gnnkit

    source = make()
    node_type = next(iter(source.splits))
    store = build_store(source, tmp_path / "store", BuildOptions(3, "random", edge_dir, with_edge=True, feature_dtype=feature_dtype))
    options: dict[str, Any] = {"num_neighbors": [4, 3], "batch_size": 12, "input_nodes": (node_type, "train"), "progress": False}
    with gnnkit.GraphLoader.from_store(store.path, backend="inprocess", **options) as loader:
        held = list(loader)  # each on memory of its own, however many there are
        assert sum(check_batch(batch, source, edge_dir, feature_dtype) for batch in held) > 500
        for name in names:
            with loader.for_split((node_type, "train"), backend=getattr(gnnkit, name)(1)) as other:
                count = 0
                for batch in other:
                    check_batch(batch, source, edge_dir, feature_dtype)
                    count += 1
                assert count == len(other) > 0


@needs_glt
@pytest.mark.parametrize("make", [graph, typed_graph], ids=["homogeneous", "typed"])
def test_the_face_of_graphlearn_torch(make: Any, tmp_path: Path) -> None:
    import torch

    from gnnkit.distributed import DistDataset, DistFeature, DistNeighborLoader, DistServer, FeatureInfo

    source = make()
    homogeneous, node_type = source.schema.is_homogeneous, next(iter(source.splits))
    store = build_store(source, tmp_path / "store", BuildOptions(2, "random", "out", with_edge=True, feature_dtype="quint8"))
    x = expected_rows(source.node_arrays[node_type]["x"], "x")
    ids = torch.arange(0, len(x), 3)
    server = DistServer(DistDataset.from_store(store, 1))
    assert raw(server.get_node_feature(None if homogeneous else node_type, ids)) == raw(x[ids])
    info, scales = server.get_node_feature_info(), server.get_node_quantization()
    assert (info if homogeneous else info[node_type]) == FeatureInfo(x.shape[1], torch.float32)  # type: ignore[index]
    of_nodes = store.schema.node_types[node_type].arrays["x"].quantization
    assert scales == ({"x": of_nodes} if homogeneous else {node_type: {"x": of_nodes}})
    assert server.get_dataset_schema().edge_quantization is not None
    feature = DistFeature.from_store(store)
    assert raw(feature[ids] if homogeneous else feature[node_type, ids]) == raw(x[ids])
    edge_type = next(t for t, arrays in source.edge_arrays.items() if "edge_attr" in arrays)
    attr = expected_rows(source.edge_arrays[edge_type]["edge_attr"], "edge_attr")
    of_edges = DistFeature.from_store(store, of="edge")
    some = torch.tensor([5, 0, 17])
    assert raw(of_edges[some] if homogeneous else of_edges[edge_type, some]) == raw(attr[some])

    dataset = DistDataset.from_store(store)
    loader = DistNeighborLoader(dataset, [4, 2], input_nodes=None if homogeneous else (node_type, torch.arange(30)), batch_size=16)
    try:
        assert sum(check_batch(batch, source, "out") for batch in loader) > 300
    finally:
        loader.shutdown()


@needs_glt
def test_lent_loaders(tmp_path: Path) -> None:
    from gnnkit import GraphLoader

    source = graph()
    options: dict[str, Any] = {"num_neighbors": [3], "batch_size": 20, "progress": False, "store_dir": tmp_path}
    with GraphLoader.from_source(source, feature_dtype="quint8", **options) as loader:
        assert sum(check_batch(batch, source, "in") for batch in loader.dist_loader) > 300


def test_graphlearn_torch_directories_have_floats(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from gnnkit.storage.glt_format import GltPartitionSource, write_glt_partitions

    source = graph()
    store = build_store(source, tmp_path / "store", BuildOptions(2, "random", with_edge=True, feature_dtype="quint8", cache_ratio=0.2))
    write_glt_partitions(store, tmp_path / "glt", lambda event: None)
    read = GltPartitionSource(tmp_path / "glt")
    for name in ("x", "y"):
        rows = np.concatenate(list(read.node_array_chunks(HOMOGENEOUS_NODE_TYPE, name)))
        assert raw(torch.from_numpy(rows)) == raw(expected_rows(source.node_arrays[HOMOGENEOUS_NODE_TYPE][name], name))
    rows = np.concatenate(list(read.edge_array_chunks(HOMOGENEOUS_EDGE_TYPE, "edge_attr")))
    assert raw(torch.from_numpy(rows)) == raw(expected_rows(source.edge_arrays[HOMOGENEOUS_EDGE_TYPE]["edge_attr"], "edge_attr"))

"""Features in 8, 4 and 2 bits: against plain Python that rounds and packs as the specification says, and through every way that rows leave
a store; and numbers that a narrower type cannot hold."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gnnkit import BuildOptions, Store
from gnnkit.datasets import ArraySpec, GraphSchema
from gnnkit.errors import DatasetError, PlanError, StoreError
from gnnkit.schema import ELEMENT_TYPES, Quantization, reverse_edge_type
from gnnkit.storage.convert import dequantize_rows
from tests.helpers.graphs import ArraySource, homogeneous_source, random_edges, typed_source
from tests.helpers.stores import write_manifest
from tests.storage.checks import build_store, fast_folder, files_of

EDGES = ("node", "to", "node")

RING = np.array([[0, 1, 2, 3], [1, 2, 3, 0]], np.int64)
QUINT8 = BuildOptions(feature_dtype="quint8")
FINITE = st.floats(-(2.0**126), 2.0**126, width=32)


def single(value: float) -> float:
    """The nearest float32."""
    return struct.unpack("f", struct.pack("f", value))[0]  # type: ignore[no-any-return]


BITS = {"quint8": 8, "quint4x2": 4, "quint2x4": 2}


def reference(values: list[float], bits: int = 8) -> tuple[float, float, list[int], list[float]]:
    """Scale, offset, what is stored and what it stands for, of one column."""
    low, high, most = min(values), max(values), 2**bits - 1
    offset, scale = single(low), single((high - low) / most)
    if scale == 0 and high > low:
        scale = 2.0**-149
    # round() of Python takes ties to even, as rint does.
    stored = [min(most, max(0, round((value - offset) / scale))) if scale else 0 for value in values]
    return scale, offset, stored, [single(single(q * scale) + offset) for q in stored]


def packed(columns: list[list[int]], bits: int) -> list[list[int]]:
    """The bytes of rows whose numbers are given column by column: column j is in byte j % width, from bit j // width * bits on."""
    width = -(-len(columns) * bits // 8)
    rows = [[0] * width for _ in columns[0]]
    for j, column in enumerate(columns):
        for row, number in zip(rows, column, strict=True):
            row[j % width] += number << (j // width * bits)
    return rows


def column(store: Store, name: str = "x", dtype: str = "quint8") -> tuple[np.ndarray, Quantization]:
    spec = store.schema.node_types["node"].arrays[name]
    assert spec.dtype == dtype and spec.quantization is not None and spec.quantization.bits == BITS[dtype]
    return np.concatenate([part.arrays[name] for part in store.arrays().nodes["node"]]), spec.quantization


@pytest.mark.parametrize("dtype", BITS)
@settings(max_examples=30, deadline=None)
@given(
    x=hnp.arrays(np.float32, st.tuples(st.integers(4, 20), st.integers(1, 9)), elements=FINITE | st.sampled_from([0.0, -0.0, 1e-45, 1.0]))
)
def test_every_bit_is_as_specified(dtype: Any, x: np.ndarray) -> None:
    bits = BITS[dtype]
    with fast_folder() as folder:
        source, options = homogeneous_source(RING, len(x), x=x, chunk_rows=3), BuildOptions(feature_dtype=dtype)
        stored, quantization = column(build_store(source, Path(folder) / "store", options), "x", dtype)
    assert stored.dtype == np.uint8
    values = dequantize_rows(stored, quantization)
    assert stored.tolist() == packed([reference(column.tolist(), bits)[2] for column in x.T], bits)
    for c in range(x.shape[1]):
        scale, offset, _, numbers = reference(x[:, c].tolist(), bits)
        assert (quantization.scale[c], quantization.offset[c]) == (scale, offset)
        assert values[:, c].tolist() == numbers
        # Half a step, and what rounding scale, products and sums to float32 may add.
        largest = max(map(abs, x[:, c].tolist()))
        error = np.abs(values[:, c].astype(np.float64) - x[:, c]).max()
        assert error <= scale / 2 * (1 + 1e-4) + largest * 2.0**-21 + 2.0**-148
        if scale == 0:
            assert values[:, c].tolist() == x[:, c].tolist(), "a column of one value is exact"


@settings(max_examples=20, deadline=None)
@given(
    dtype=st.sampled_from(sorted(BITS)),
    x=hnp.arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 9)), elements=st.floats(width=32)),
    data=st.data(),
)
def test_columns_that_are_kept_whole(dtype: str, x: np.ndarray, data: st.DataObject) -> None:
    """They have every bit of a float32, NaN and infinite values too; the others are as they would be beside none."""
    narrow = [c for c in range(x.shape[1]) if np.isfinite(x[:, c]).all() and np.ptp(x[:, c]) < 1e38]
    whole = sorted(set(range(x.shape[1])) - set(narrow) | (data.draw(st.sets(st.sampled_from(narrow))) if narrow else set()))
    said: Any = {"node": {"dtype": dtype, "whole": whole}}
    with fast_folder() as folder:
        store = build_store(
            homogeneous_source(np.zeros((2, 1), np.int64), len(x), x=x), Path(folder) / "store", BuildOptions(feature_dtype=said)
        )
        stored, quantization = column(store, "x", dtype)
        assert Store.open(store.path).options == store.options
    bits = BITS[dtype]
    assert stored.shape[1] == -(-x.shape[1] * bits // 8) + 4 * len(whole)
    values = dequantize_rows(stored, quantization)
    for c in range(x.shape[1]):
        wanted = x[:, c].astype(np.float32) if c in whole else np.array(reference(x[:, c].tolist(), bits)[3], np.float32)
        np.testing.assert_array_equal(values[:, c], wanted)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_features_of_every_width(dtype: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    plain = (rng.standard_normal((40, 3)) * [1, 100, 0]).astype(np.float32)
    x: np.ndarray = ELEMENT_TYPES["bfloat16"].encode(plain) if dtype == "bfloat16" else plain.astype(dtype)
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
    source, events = graph(), list[Any]()
    options = BuildOptions(3, "random", feature_dtype="quint8", with_edge=True, weight="weight", cache_ratio=0.2)
    store = build_store(source, tmp_path / "store", options, events.append)
    store.verify()
    nodes, edges = store.schema.node_types["node"].arrays, store.schema.edge_types[EDGES].arrays
    assert {name: spec.dtype for name, spec in nodes.items()} == {"x": "quint8", "y": "float32", "grid": "float16"}
    assert {name: s.dtype for name, s in edges.items()} == {"edge_attr": "quint8", "weight": "float32", "kind": "uint8"}
    whole = build_store(source, tmp_path / "whole", BuildOptions(feature_dtype="quint8", with_edge=True, weight="weight"))
    assert whole.schema.to_json() == store.schema.to_json(), "scales do not depend on the parts"
    (one,) = whole.arrays().nodes["node"]
    for number, part in enumerate(store.arrays().nodes["node"]):
        for name in nodes:
            np.testing.assert_array_equal(part.arrays[name], one.arrays[name][part.global_id])
        np.testing.assert_array_equal(part.arrays["y"], source.node_arrays["node"]["y"][part.global_id])
        cached = store.cache(number)["node"]
        assert cached.x.dtype == np.uint8 and len(cached.x)
        np.testing.assert_array_equal(cached.x, one.arrays["x"][cached.global_id])
    (edge_part,) = whole.arrays().edges[EDGES]
    attr = source.edge_arrays[EDGES]["edge_attr"]
    for c in range(2):
        assert edge_part.arrays["edge_attr"][:, c].tolist() == np.array(reference(attr[:, c].tolist())[2])[edge_part.edge_id].tolist()
    stages = [event.stage for event in events if event.kind == "start"]
    assert stages[-2:] == ["quantize", "partition"], stages
    assert files_of(build_store(whole, tmp_path / "again", options).path) == files_of(store.path)


def test_a_store_stays_quantised(tmp_path: Path) -> None:
    store = build_store(graph(), tmp_path / "store", QUINT8)
    held = build_store(store, tmp_path / "again", BuildOptions(2))
    assert held.options.feature_dtype == "quint8" and held.schema.to_json() == store.schema.to_json()
    with pytest.raises(PlanError, match="were reduced to quint8 and cannot become float32"):
        build_store(store, tmp_path / "wide", BuildOptions(2, feature_dtype="float32"))
    narrow = build_store(graph(), tmp_path / "narrow", BuildOptions(feature_dtype="float16"))
    with pytest.raises(PlanError, match="were reduced to float16 and cannot become quint8"):
        build_store(narrow, tmp_path / "narrower", QUINT8)
    full = build_store(graph(), tmp_path / "full", BuildOptions())
    assert files_of(build_store(full, tmp_path / "cut", QUINT8).path) == files_of(store.path)


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
    for dtype, bits in BITS.items():
        with pytest.raises(PlanError, match=text.replace("8 bits", f"{bits} bits")):
            build_store(source, tmp_path / "store", BuildOptions(feature_dtype=dtype))  # type: ignore[arg-type]
    assert not (tmp_path / "store").exists()


LARGEST = {"float16": 65504.0, "bfloat16": float.fromhex("0x1.fep127"), "float32": float(np.finfo(np.float32).max)}


@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("of_edges", [False, True])
def test_a_float_that_is_too_large_is_refused(dtype: Any, sign: int, of_edges: bool, tmp_path: Path) -> None:
    """Wherever it stands; what is infinite already stays so, and what the error advises helps."""
    options, name = BuildOptions(feature_dtype=dtype), "edge_attr" if of_edges else "x"

    def rows(value: float) -> Any:
        return np.array([[1.0, 2.0], [0.0, np.inf], [sign * value, -np.inf], [np.nan, 1.0]])

    def source(value: float) -> ArraySource:
        return homogeneous_source(RING, 4, **{"edge_arrays": {name: rows(value)}} if of_edges else {"x": rows(value)})

    def held(store: Store) -> Any:
        arrays = store.arrays()
        part = arrays.edges[EDGES][0] if of_edges else arrays.nodes["node"][0]
        return part.arrays[name]

    for value in (LARGEST[dtype] * 1.01, 1e39, 1e300):
        with pytest.raises(PlanError, match=rf"{name}' of .* holds {re.escape(repr(sign * value))}, which {dtype} cannot hold") as found:
            build_store(source(value), tmp_path / "store", options)
        assert found.value.hint and "feature_dtype=None" in found.value.hint
        kept = build_store(source(value), tmp_path / "kept", BuildOptions(with_edge=True))
        np.testing.assert_array_equal(np.sort(held(kept), 0), np.sort(rows(value), 0))
    with pytest.raises(PlanError, match=f"which {dtype} cannot hold"):
        build_store(kept, tmp_path / "store", options)
    assert not (tmp_path / "store").exists()
    largest = held(build_store(source(LARGEST[dtype]), tmp_path / "store", options))
    largest = (largest.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else largest
    np.testing.assert_array_equal(np.sort(largest, 0), np.sort(rows(LARGEST[dtype]), 0))


@pytest.mark.parametrize("value", [1e39, -1e39])
@pytest.mark.parametrize("types", [None, {"age": "float"}, {"age": "halffloat"}])
@pytest.mark.parametrize("is_csv", [False, True])
def test_a_number_of_a_table_that_is_too_large_is_refused(value: float, types: Any, is_csv: bool, tmp_path: Path) -> None:
    import gnnkit

    nodes: Any = {"who": ["a", "b", "c"], "age": np.array([1.0, np.inf, value])}
    if is_csv:
        (tmp_path / "nodes.csv").write_text(f"who,age\na,1\nb,inf\nc,{value}\n")
        nodes = tmp_path / "nodes.csv"
    with pytest.raises(DatasetError, match=rf"column 'age' has {re.escape(repr(value))} in row 2, which float(32|16) cannot hold"):
        gnnkit.partition(gnnkit.tables({"s": ["a"], "d": ["b"]}, nodes, keys="who", features="age", types=types), 1, out=tmp_path / "store")


def test_edge_features_that_cannot_be_held_are_refused(tmp_path: Path) -> None:
    attr = np.array([[-3e38], [3.4e38], [0.0], [0.0]], np.float32)
    with pytest.raises(PlanError, match=r"column 0 of 'edge_attr' of \('node', 'to', 'node'\) goes from -3"):
        build_store(homogeneous_source(RING, 4, edge_arrays={"edge_attr": attr}), tmp_path / "store", QUINT8)


def test_empty_arrays(tmp_path: Path) -> None:
    empty = homogeneous_source(np.empty((2, 0), np.int64), 3, edge_arrays={"edge_attr": np.empty((0, 2))}, x=np.empty((3, 0), np.float32))
    store = build_store(empty, tmp_path / "store", QUINT8)
    store.verify()
    spec = store.schema.edge_types[EDGES].arrays["edge_attr"]
    assert spec == ArraySpec("quint8", (2,), Quantization((0.0, 0.0), (0.0, 0.0)))
    assert store.schema.node_types["node"].arrays["x"].quantization == Quantization((), ())
    assert dequantize_rows(np.empty((3, 0), np.uint8), Quantization((), ())).shape == (3, 0)
    with pytest.raises(StoreError, match="have 1 bytes and must have 2"):
        dequantize_rows(np.zeros((3, 1), np.uint8), Quantization((1.0,) * 3, (0.0,) * 3, 4))


@pytest.mark.parametrize(
    "change",
    [
        lambda q: q["scale"].pop(),
        lambda q: q["scale"].__setitem__(0, -1.0),
        lambda q: q["offset"].__setitem__(0, 0.1),
        lambda q: q["offset"].__setitem__(0, float("inf")),
        lambda q: (q["scale"].pop(), q["offset"].pop()),
        lambda q: q.__setitem__("whole", [7]),
        lambda q: q.__setitem__("whole", [-1]),
        lambda q: q.__setitem__("whole", [1, 0]),
        dict.clear,
    ],
)
def test_scales_that_make_no_sense_are_damage(change: Any, tmp_path: Path) -> None:
    store = build_store(graph(), tmp_path / "store", QUINT8)
    value = json.loads((store.path / "manifest.json").read_text())
    change(value["schema"]["node_types"][0]["arrays"]["x"]["quantization"])
    write_manifest(store.path, value)
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
    return typed_source({"paper": 50, "tag": 20}, edges, nodes, edge_arrays, splits={"paper": {"train": np.arange(0, 50, 2)}})


def test_each_type_has_its_own(tmp_path: Path) -> None:
    """Types that are not named keep theirs; a name of a column is that of its table."""
    import gnnkit

    source, on = typed_graph(), ("tag", "on", "paper")
    said: Any = {"paper": {"dtype": "quint4x2", "whole": [4, 1]}, on: "bfloat16"}
    store = gnnkit.partition(source, 2, "random", feature_dtype=said, out=tmp_path / "store")
    nodes, edges = store.schema.node_types, store.schema.edge_types
    assert {t: {k: s.dtype for k, s in own.arrays.items()} for t, own in nodes.items()} == {
        "paper": {"x": "quint4x2", "y": "int64"},
        "tag": {"grid": "float16"},
    }
    assert edges[on].arrays["edge_attr"].dtype == "bfloat16" and edges["paper", "cites", "paper"].arrays["pos"].dtype == "float64"
    assert nodes["paper"].arrays["x"].stored_shape == (3 + 8,)
    held = gnnkit.partition(store, 3, out=tmp_path / "again")
    assert held.schema.to_json() == store.schema.to_json() and held.options.feature_dtype == store.options.feature_dtype
    with pytest.raises(PlanError, match="cannot become quint8"):
        gnnkit.partition(store, 3, out=tmp_path / "other", feature_dtype="quint8")

    rng = np.random.default_rng(5)
    columns: Any = {"who": list("abcd"), "age": rng.random(4), "at": rng.random((4, 2)).tolist(), "sort": list("uvuw"), "h": rng.random(4)}
    table = gnnkit.tables({"s": ["a"], "d": ["b"]}, columns, keys="who", features=["age", "at", "h"], one_hot="sort")
    named: Any = {"node": {"dtype": "quint2x4", "whole": ["sort", "at", 0]}}
    made = gnnkit.partition(table, 1, out=tmp_path / "table", feature_dtype=named)
    stored, quantization = column(made, "x", "quint2x4")
    (wanted,) = table.node_array_chunks("node", "x")
    assert quantization.whole == (0, 1, 2, 4, 5, 6)
    np.testing.assert_array_equal(np.delete(dequantize_rows(stored, quantization), 3, 1), np.delete(wanted, 3, 1))
    more = made.append(
        edges={"s": ["e"], "d": ["a"]}, nodes={"who": ["e"], "age": [9.0], "at": [[8.0, -8.0]], "sort": ["v"], "h": [columns["h"][0]]}
    )
    assert column(more, "x", "quint2x4")[1] == quantization
    with pytest.raises(PlanError, match="stored in 2 bits, .* and new rows go beyond"):
        made.append(edges={"s": ["e"], "d": ["a"]}, nodes={"who": ["e"], "age": [9.0], "at": [[8.0, -8.0]], "sort": ["v"], "h": [9.0]})


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("quint4", "feature_dtype must be one of .*; did you mean 'quint4x2'"),
        (["quint8"], "feature_dtype must be one of"),
        ({"papre": "quint8"}, "unknown type 'papre'; did you mean 'paper'"),
        ({("tag", "paper"): "quint8"}, "unknown type 'tag__paper'"),
        ({"paper": "int8"}, r"feature_dtype\['paper'\] must be one of"),
        ({"paper": None}, r"feature_dtype\['paper'\] must be one of"),
        ({"paper": {"whole": [1]}}, r"feature_dtype\['paper'\] must be one of"),
        ({"paper": {"dtype": "float16", "whole": [1]}}, "keeps columns whole"),
        ({"paper": {"dtype": "quint8", "columns": [1]}}, "says something of 'columns'"),
        ({"paper": {"dtype": "quint8", "whole": "x"}}, "must be a list of columns, got 'x'"),
        ({"paper": {"dtype": "quint8", "whole": [True]}}, "must be a list of columns"),
        ({"paper": {"dtype": "quint8", "whole": [5]}}, "keeps column 5 of 'paper' whole, which has 5 columns"),
        ({"paper": {"dtype": "quint8", "whole": [-1]}}, "keeps column -1"),
        ({"paper": {"dtype": "quint8", "whole": ["age"]}}, "keeps column 'age' of 'paper' whole"),
        ({"tag": {"dtype": "quint8", "whole": [0]}}, "keeps column 0 of 'tag' whole, which has 0 columns"),
    ],
)
def test_what_says_no_type_is_refused(said: Any, text: str, tmp_path: Path) -> None:
    import gnnkit

    with pytest.raises(PlanError, match=text):
        gnnkit.partition(typed_graph(), 2, out=tmp_path / "store", feature_dtype=said)
    assert not list(tmp_path.iterdir())


def expected_rows(values: np.ndarray, name: str, feature_dtype: str = "quint8") -> Any:
    """What batches should show of an array, row by row of the dataset."""
    import torch

    if name == "y" or values.ndim != 2 or values.dtype.kind != "f":
        return torch.from_numpy(values)
    if feature_dtype not in BITS:
        return torch.from_numpy(values.astype(np.float32)).to(getattr(torch, feature_dtype))
    bits = BITS[feature_dtype]
    return torch.tensor([reference(column.tolist(), bits)[3] for column in values.T], dtype=torch.float32).T


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
        (typed_graph, "in", "quint4x2", ("Colocated", "GraphStore")),
        (graph, "out", "quint2x4", ("Colocated", "GraphStore")),
        (typed_graph, "in", "bfloat16", ("GraphStore",)),
        (graph, "out", "float16", ("Colocated",)),
    ],
    ids=["homogeneous", "typed", "4-bits", "2-bits", "bfloat16", "float16"],
)
def test_batches_have_the_numbers_in_every_backend(make: Any, edge_dir: Any, feature_dtype: Any, names: Any, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("make", "feature_dtype"), [(graph, "quint8"), (typed_graph, "quint8"), (graph, "quint2x4")], ids=["homogeneous", "typed", "2-bits"]
)
def test_the_face_of_graphlearn_torch(make: Any, feature_dtype: Any, tmp_path: Path) -> None:
    import torch

    from gnnkit.distributed import DistDataset, DistFeature, DistNeighborLoader, DistServer, FeatureInfo

    source = make()
    homogeneous, node_type = source.schema.is_homogeneous, next(iter(source.splits))
    store = build_store(source, tmp_path / "store", BuildOptions(2, "random", "out", with_edge=True, feature_dtype=feature_dtype))
    x = expected_rows(source.node_arrays[node_type]["x"], "x", feature_dtype)
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
    attr = expected_rows(source.edge_arrays[edge_type]["edge_attr"], "edge_attr", feature_dtype)
    of_edges = DistFeature.from_store(store, of="edge")
    some = torch.tensor([5, 0, 17])
    assert raw(of_edges[some] if homogeneous else of_edges[edge_type, some]) == raw(attr[some])

    dataset = DistDataset.from_store(store)
    loader = DistNeighborLoader(dataset, [4, 2], input_nodes=None if homogeneous else (node_type, torch.arange(30)), batch_size=16)
    try:
        assert sum(check_batch(batch, source, "out", feature_dtype) for batch in loader) > 300
    finally:
        loader.shutdown()


def test_lent_loaders(tmp_path: Path) -> None:
    from gnnkit import GraphLoader

    source = graph()
    options: dict[str, Any] = {"num_neighbors": [3], "batch_size": 20, "progress": False, "store_dir": tmp_path}
    with GraphLoader.from_source(source, feature_dtype="quint8", **options) as loader:
        assert sum(check_batch(batch, source, "in") for batch in loader.dist_loader) > 300


@pytest.mark.parametrize("feature_dtype", BITS)
def test_graphlearn_torch_directories_have_floats(tmp_path: Path, feature_dtype: Any) -> None:
    from gnnkit.datasets import GltPartitionSource, write_glt_partitions

    source = graph()
    store = build_store(source, tmp_path / "store", BuildOptions(2, "random", with_edge=True, feature_dtype=feature_dtype, cache_ratio=0.2))
    write_glt_partitions(store, tmp_path / "glt", lambda event: None)
    read = GltPartitionSource(tmp_path / "glt")
    for name in ("x", "y"):
        rows = np.concatenate(list(read.node_array_chunks("node", name)))
        assert raw(torch.from_numpy(rows)) == raw(expected_rows(source.node_arrays["node"][name], name, feature_dtype))
    rows = np.concatenate(list(read.edge_array_chunks(EDGES, "edge_attr")))
    assert raw(torch.from_numpy(rows)) == raw(expected_rows(source.edge_arrays[EDGES]["edge_attr"], "edge_attr", feature_dtype))

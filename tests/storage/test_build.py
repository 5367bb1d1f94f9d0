"""Building: any graph in, the same graph out, however it is cut and however little memory there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gnnkit import BuildOptions, Store
from gnnkit.datasets import ArraySpec, GraphSchema
from gnnkit.errors import DatasetError, PlanError
from gnnkit.schema import ELEMENT_TYPES
from tests.helpers.graphs import ArraySource, homogeneous_source, random_edges, random_source, typed_source
from tests.storage.checks import assert_holds, build_store, fast_folder, files_of

EDGES = ("node", "to", "node")

RING = np.array([[0, 1, 2, 3], [1, 2, 3, 0]], np.int64)


def options_for(source: ArraySource, draw: np.random.Generator, **fixed: object) -> BuildOptions:
    most = min(5, max(t.num_nodes for t in source.schema.node_types.values()))
    values = {
        "num_parts": int(draw.integers(1, most + 1)),
        "partition": str(draw.choice(["contiguous", "random", "ldg"])),
        "edge_dir": str(draw.choice(["in", "out"])),
        "with_edge": bool(draw.random() < 0.5),
        "weight": "weight" if draw.random() < 0.5 else None,
        "time_attr": "time" if has_times(source) and draw.random() < 0.5 else None,
        "seed": int(draw.integers(0, 100)),
    }
    return BuildOptions(**{**values, **fixed})  # type: ignore[arg-type]


def has_times(source: ArraySource) -> bool:
    return any("time" in t.arrays for t in (*source.schema.node_types.values(), *source.schema.edge_types.values()))


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32 - 1), cheap=st.booleans(), memory=st.sampled_from([1, 400, 1 << 26]))
@pytest.mark.core
def test_a_store_holds_its_source(seed: int, cheap: bool, memory: int) -> None:
    rng = np.random.default_rng(seed)
    source = random_source(rng, edges_are_cheap=cheap)
    with fast_folder() as folder:
        store = build_store(source, Path(folder) / "store", options_for(source, rng), memory_bytes=memory)
        assert_holds(store, source)
        store.verify()
        assert {path.name for path in Path(folder).iterdir()} == {"store"}
        assert not [path for path in store.path.rglob("*") if path.name.startswith(".")]


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_bytes_do_not_depend_on_memory_chunks_or_passes(seed: int) -> None:
    stores = []
    with fast_folder() as folder:
        for number, (memory, rows, cheap) in enumerate([(1, 5, True), (1 << 26, 64, True), (300, 1000, False)]):
            source = random_source(np.random.default_rng(seed), chunk_rows=rows, edges_are_cheap=cheap)
            options = options_for(source, np.random.default_rng(seed))
            stores.append(files_of(build_store(source, Path(folder) / str(number), options, memory_bytes=memory).path))
    assert stores[0] == stores[1] == stores[2]


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), memory=st.sampled_from([1, 1 << 26]))
def test_repartitioning_gives_what_building_gives(seed: int, memory: int) -> None:
    rng = np.random.default_rng(seed)
    source = random_source(rng)
    first = options_for(source, rng, with_edge=True)
    second = options_for(source, rng)
    with fast_folder() as folder:
        root = Path(folder)
        built = build_store(source, root / "built", second)
        again = build_store(build_store(source, root / "first", first), root / "again", second, memory_bytes=memory)
        assert_holds(again, source)
        if second.partition == "contiguous" or second.num_parts == 1:
            assert files_of(again.path) == files_of(built.path)
        assert again.fingerprint == built.fingerprint


def test_neighbours_keep_the_dataset_order_when_edge_dir_is_turned(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    source = homogeneous_source(random_edges(rng, 30, 30, 500), 30)
    store = build_store(source, tmp_path / "in", BuildOptions(3, with_edge=True))
    turned = build_store(store, tmp_path / "out", BuildOptions(2, edge_dir="out"))
    assert_holds(turned, source)
    without = build_store(store, tmp_path / "without", BuildOptions(2))
    assert without.arrays().edges[EDGES][0].edge_id is None
    with pytest.raises(PlanError, match="needs edge ids"):
        build_store(without, tmp_path / "x", BuildOptions(2, edge_dir="out"))
    with pytest.raises(PlanError, match="without edge ids"):
        build_store(without, tmp_path / "x", BuildOptions(2, with_edge=True))
    with pytest.raises(PlanError, match="onto itself"):
        build_store(without, without.path, BuildOptions(3))


def test_slow_sources_are_parsed_once(tmp_path: Path) -> None:
    for name, options in {"plain": BuildOptions(2), "cut": BuildOptions(2, "ldg"), "weighted": BuildOptions(1, weight="weight")}.items():
        source = random_source(np.random.default_rng(5), edges_are_cheap=False, max_edges=400)
        build_store(source, tmp_path / name, options, memory_bytes=64)
        assert set(source.passes.values()) == {1}


@pytest.mark.parametrize("method", ["random", "ldg", "frequency", "metis"])
def test_every_partitioner_makes_a_valid_store(method: str, tmp_path: Path) -> None:
    if method == "metis":
        pytest.importorskip("pymetis")
    source = random_source(np.random.default_rng(11), max_nodes=60, max_edges=300, num_node_types=2)
    store = build_store(source, tmp_path / "store", BuildOptions(3, method, with_edge=True))  # type: ignore[arg-type]
    assert_holds(store, source)
    store.verify()
    assert store.options.partition == method


def test_hot_features_of_other_parts_are_replicated(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((200, 7)).astype(np.float32)
    edges = random_edges(rng, 200, 200, 2000)
    source = homogeneous_source(edges, 200, x=x, splits={"train": np.arange(0, 200, 3)})
    store = build_store(source, tmp_path / "store", BuildOptions(4, "random", cache_ratio=0.1))
    store.verify()
    total = 0
    for part in range(4):
        cached = store.cache(part)["node"]
        own = store.arrays().nodes["node"][part].global_id
        assert 0 < len(cached.global_id) <= 20 and not np.isin(cached.global_id, own).any()
        np.testing.assert_array_equal(cached.x, x[cached.global_id])
        total += store.report().parts[part].num_cached["node"]
    assert total == sum(len(store.cache(part)["node"].x) for part in range(4))
    assert build_store(source, tmp_path / "none", BuildOptions(4)).cache(0) == {}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn"])
def test_features_are_stored_narrow_and_labels_are_not(dtype: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((50, 8)).astype(np.float32)
    y = rng.random((50, 3)).astype(np.float32)
    x[0, 0], y[1, 1] = np.nan, np.nan
    edge_arrays = {"edge_attr": rng.random((4, 2)), "weight": rng.random(4)}
    source = homogeneous_source(RING, 50, x=x, y=y, edge_arrays=edge_arrays)
    store = build_store(source, tmp_path / "store", BuildOptions(2, feature_dtype=dtype))  # type: ignore[arg-type]
    arrays = store.schema.node_types["node"].arrays
    assert arrays == {"x": ArraySpec(dtype, (8,)), "y": ArraySpec("float32", (3,))}
    assert {k: s.dtype for k, s in store.schema.edge_types[EDGES].arrays.items()} == {
        "edge_attr": dtype,
        "weight": "float64",
    }
    stored = np.concatenate([part.arrays["x"] for part in store.arrays().nodes["node"]])
    if dtype == "float16":
        np.testing.assert_array_equal(stored, x.astype(np.float16))
    else:
        signed = torch.from_numpy(stored.view(f"i{stored.itemsize}"))
        values = signed.view(getattr(torch, dtype)).float().numpy()
        np.testing.assert_array_equal(values, torch.from_numpy(x).to(getattr(torch, dtype)).float().numpy())
    held = build_store(store, tmp_path / "again", BuildOptions(3))
    assert held.options.feature_dtype == dtype
    with pytest.raises(PlanError, match="cannot become float32"):
        build_store(store, tmp_path / "wide", BuildOptions(3, feature_dtype="float32"))


@settings(deadline=None)
@given(st.lists(st.one_of(st.floats(width=32), st.floats(-464, 464, width=32)), min_size=1))
def test_narrow_types_are_what_torch_rounds_to(values: list[float]) -> None:
    array = np.array(values, np.float32)
    for name, largest in (("bfloat16", np.inf), ("float8_e4m3fn", 464)):  # beyond which torch saturates, and gnnkit refuses
        fitting = array[(np.abs(array) <= largest) | np.isnan(array)]
        theirs = torch.from_numpy(fitting).to(getattr(torch, name))
        bits = ELEMENT_TYPES[name].encode(fitting)
        np.testing.assert_array_equal(ELEMENT_TYPES[name].decode(bits), theirs.float().numpy())


def test_numbers_beyond_float8_are_refused(tmp_path: Path) -> None:
    source = homogeneous_source(RING, 4, x=np.array([[1.0], [448.0], [np.nan], [500.0]], np.float32))
    with pytest.raises(PlanError, match="500.0, which float8_e4m3fn cannot hold"):
        build_store(source, tmp_path / "store", BuildOptions(1, feature_dtype="float8_e4m3fn"))


def test_features_beyond_float16_are_refused(tmp_path: Path) -> None:
    source = homogeneous_source(RING, 4, x=np.array([[1.0], [70000.0], [np.inf], [0.0]], np.float32))
    with pytest.raises(PlanError, match="70000") as caught:
        build_store(source, tmp_path / "store", BuildOptions(feature_dtype="float16"))
    assert "feature_dtype=None" in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("edge", "text"),
    [((4, 0), "edge 2 .* goes from 4 to 0"), ((0, -1), "edge 2 .* goes from 0 to -1"), ((2**40, 1), "edge 2 .*1099511627776")],
)
@pytest.mark.parametrize("cheap", [True, False])
def test_edges_out_of_range_are_refused(edge: tuple[int, int], text: str, cheap: bool, tmp_path: Path) -> None:
    source = homogeneous_source(np.array([[0, 1, edge[0], 2], [1, 2, edge[1], 3]], np.int64), 4, edges_are_cheap=cheap)
    for edge_dir in ("in", "out"):
        with pytest.raises(DatasetError, match=text):
            build_store(source, tmp_path / edge_dir, BuildOptions(2, edge_dir=edge_dir))  # type: ignore[arg-type]
        assert not (tmp_path / edge_dir).exists()


@pytest.mark.parametrize(("value", "text"), [(-0.5, "-0.5"), (np.nan, "nan"), (np.inf, "inf")])
def test_unusable_weights_are_refused(value: float, text: str, tmp_path: Path) -> None:
    weight = np.array([1, 0, value, 2], np.float32)
    source = homogeneous_source(RING, 4, edge_arrays={"w": weight}, chunk_rows=2)
    with pytest.raises(PlanError, match=f"'w' of edge 2 of .* is {text}"):
        build_store(source, tmp_path / "store", BuildOptions(weight="w"))
    assert not (tmp_path / "store").exists()


class Broken(ArraySource):
    """A source that does not yield what it announces."""

    def __init__(self, inner: ArraySource, schema: GraphSchema) -> None:
        super().__init__(schema, inner.edges, inner.node_arrays, inner.edge_arrays, chunk_rows=3)


def test_sources_that_break_their_word_are_refused(tmp_path: Path) -> None:
    inner = homogeneous_source(RING, 4, x=np.zeros((4, 2), np.float32), edge_arrays={"w": np.ones(4, np.float32)})
    x, w = {"x": ArraySpec("float32", (2,))}, {"w": ArraySpec("float32")}
    cases = [
        (GraphSchema.homogeneous(4, 5, x, w), "edge list .* ends early"),
        (GraphSchema.homogeneous(4, 3, x, w), "edge list .* has more than the 3 rows"),
        (GraphSchema.homogeneous(5, 4, x, w), "'x' of 'node' ends early"),
        (GraphSchema.homogeneous(4, 4, {"x": ArraySpec("float64", (2,))}, w), "'x' .* float32 rows"),
        (GraphSchema.homogeneous(4, 4, {"x": ArraySpec("float32", (3,))}, w), "'x' .* instead of float32 rows of shape \\(3,\\)"),
        (GraphSchema.homogeneous(4, 4, x, {"w": ArraySpec("int64")}), "'w' .* instead of int64"),
    ]
    for number, (schema, text) in enumerate(cases):
        with pytest.raises(DatasetError, match=text):
            build_store(Broken(inner, schema), tmp_path / str(number), BuildOptions())
        assert not list(tmp_path.glob(f"{number}*"))
    fewer = homogeneous_source(RING, 4, x=np.zeros((4, 2), np.float32), splits={"train": np.array([0, 4])})
    with pytest.raises(DatasetError, match="split 'train' .* holds node 4"):
        build_store(fewer, tmp_path / "split", BuildOptions())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_parts": 5}, "num_parts=5 is more than"),
        ({"weight": "wheight"}, "did you mean 'weight'"),
        ({"weight": "edge_attr"}, "one number per edge"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, object], text: str, tmp_path: Path) -> None:
    arrays = {"weight": np.ones(4, np.float32), "edge_attr": np.ones((4, 2), np.float32)}
    with pytest.raises(PlanError, match=text):
        build_store(homogeneous_source(RING, 4, edge_arrays=arrays), tmp_path / "store", BuildOptions(**options))  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "../../up", "a\\b", "a\x00b", "x\ty", "con", "x" * 300, "http://example.org/ns#Person", "Größe 名前", "名" * 40],
)
def test_types_arrays_and_splits_may_have_any_name(name: str, tmp_path: Path) -> None:
    rng, edge_type = np.random.default_rng(0), (name, name, name)
    rows = {"plain": rng.random((30, 2)), name: rng.integers(0, 9, 30)}
    links = {name: {"edge_label_index": rng.integers(0, 30, (2, 5))}}
    source = typed_source(
        {name: 30},
        {edge_type: random_edges(rng, 30, 30, 80)},
        {name: rows},
        {edge_type: {name: rng.random(80).astype(np.float32)}},
        splits={name: {name: np.arange(7)}},
        link_splits={edge_type: links},
        edges_are_cheap=False,
    )
    store = build_store(source, tmp_path / "store", BuildOptions(2, "random", with_edge=True, weight=name))
    assert_holds(Store.open(store.path), source)
    turned = build_store(store, tmp_path / "turned", BuildOptions(3, "ldg", edge_dir="out", with_edge=True))
    turned.verify()
    assert_holds(Store.open(turned.path), source)
    for folder in (store.path, turned.path):  # nothing lies elsewhere, and a name that can be a folder's is one
        files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        assert files == {*Store.open(folder).files, "manifest.json"}
    assert {path.name for path in tmp_path.iterdir()} == {"store", "turned"}
    assert name not in ("con", "Größe 名前") or (store.path / "part0" / "nodes" / name).is_dir()


def test_names_that_collide_are_refused(tmp_path: Path) -> None:
    edge_types = ("a", "b__c", "a"), ("a__b", "c", "a")
    source = typed_source({"a": 1, "a__b": 1}, {t: np.empty((2, 0), np.int64) for t in edge_types})
    with pytest.raises(PlanError, match="share the folder"):
        build_store(source, tmp_path / "store", BuildOptions())
    with pytest.raises(PlanError, match="name that the store uses itself"):
        build_store(homogeneous_source(RING, 4, global_id=np.zeros(4)), tmp_path / "store", BuildOptions())


def test_the_same_store_is_opened_and_another_is_replaced(tmp_path: Path) -> None:
    source = homogeneous_source(RING, 4, x=np.ones((4, 2), np.float32))
    path = tmp_path / "store"
    first = build_store(source, path, BuildOptions(2))
    stamp = path.stat().st_ino
    assert build_store(source, path, BuildOptions(2)).fingerprint == first.fingerprint and path.stat().st_ino == stamp
    held = first.arrays().nodes["node"][0].arrays["x"]
    second = build_store(source, path, BuildOptions(1))
    assert second.num_parts == 1 and path.stat().st_ino != stamp
    assert (held == 1).all()
    next(iter(path.rglob("x.npy"))).unlink()
    assert_holds(build_store(source, path, BuildOptions(1)), source)


def test_events_tell_how_far_a_build_is(tmp_path: Path) -> None:
    source = random_source(np.random.default_rng(1), max_edges=500, chunk_rows=16)
    events: list[Any] = []
    store = build_store(source, tmp_path / "store", BuildOptions(), events.append)
    assert [e.kind for e in events if e.kind != "progress"] == ["start", "end"]
    assert {(e.stage, e.label, e.unit) for e in events} == {("ingest", source.name, "B")}
    done = [e.done for e in events]
    assert done == sorted(done) and done[-1] == pytest.approx(events[-1].total)
    events.clear()
    build_store(Store.open(store.path), tmp_path / "again", BuildOptions(1, feature_dtype="float16"), events.append)
    assert list(dict.fromkeys(e.stage for e in events)) == ["verify", "partition"]

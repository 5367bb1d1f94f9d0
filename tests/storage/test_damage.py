"""Stores that are not as they were written: an error that says so, never a crash, never other data."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnkit.errors import StoreError
from gnnkit.events import Event
from gnnkit.storage.build import build_store
from gnnkit.storage.layout import FORMAT_VERSION, BuildOptions
from gnnkit.storage.store import Store
from tests.helpers.graphs import homogeneous_source, random_edges, random_source
from tests.storage.checks import assert_holds, fast_folder

SOURCE = random_source(np.random.default_rng(4), max_nodes=30, max_edges=120, num_node_types=2, num_edge_types=2)
OPTIONS = BuildOptions(3, "random", with_edge=True, weight="weight", cache_ratio=0.2)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from([0, 1, -1, 2**31, "int32", "../x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@pytest.fixture(scope="module")
def whole() -> Iterator[Path]:
    with fast_folder() as folder:
        build_store(SOURCE, Path(folder) / "store", OPTIONS)
        yield Path(folder) / "store"


def write_manifest(folder: Path, value: Any) -> None:
    """Writes a manifest with the checksum that belongs to it."""
    if isinstance(value, dict):
        value.pop("checksum", None)
        value["checksum"] = f"{zlib.crc32(json.dumps(value, sort_keys=True, separators=(',', ':')).encode()):08x}"
    (folder / "manifest.json").write_text(json.dumps(value))


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a JSON value."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [(value, key) for key in keys] + [place for key in keys for place in places(value[key])]


def read_all(folder: Path) -> Store | None:
    """The store, if nothing at all is found to be wrong with it."""
    try:
        store = Store.open(folder)
        store.verify()
    except StoreError as error:
        assert str(folder) in str(error)
        return None
    repr(store), str(store.report()), store.report().to_json()
    return store


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(data=st.data(), honest=st.booleans())
def test_fuzzed_manifests_are_errors_or_harmless(whole: Path, data: st.DataObject, honest: bool) -> None:
    value = json.loads((whole / "manifest.json").read_text())
    for _ in range(data.draw(st.integers(1, 2))):
        container, key = data.draw(st.sampled_from(places(value)))
        if data.draw(st.booleans()):
            container[key] = data.draw(JSON)
        else:
            del container[key]
    with fast_folder() as folder:
        copy = Path(folder) / "store"
        shutil.copytree(whole, copy)
        if honest:
            write_manifest(copy, value)
        else:
            (copy / "manifest.json").write_text(json.dumps(value))
        store = read_all(copy)
        if store is not None:
            assert_bounded(store)
            assert honest or value == json.loads((whole / "manifest.json").read_text())


@settings(max_examples=30, deadline=None)
@given(text=st.binary(max_size=40) | st.just(b"[" * 100_000), cut=st.integers(0, 2000))
def test_manifests_of_any_bytes_are_errors(whole: Path, text: bytes, cut: int) -> None:
    good = (whole / "manifest.json").read_bytes()
    with fast_folder() as folder:
        for bad in (text, good[:-cut] if cut > 1 else b"", good[:cut] + text + good[cut + len(text) + 1 :]):
            (Path(folder) / "manifest.json").write_bytes(bad)
            with pytest.raises(StoreError):
                Store.open(folder)


@pytest.mark.parametrize(
    ("version", "text"), [(FORMAT_VERSION + 1, "reads up to"), (0, "no format version"), ("1", "no format"), (True, "no format")]
)
def test_other_formats_are_refused(whole: Path, version: object, text: str, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "store")
    value = json.loads((whole / "manifest.json").read_text())
    value["format_version"] = version
    write_manifest(tmp_path / "store", value)
    with pytest.raises(StoreError, match=text):
        Store.open(tmp_path / "store")


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "missing", tmp_path / "file"):
        with pytest.raises(StoreError, match="there is no store"):
            Store.open(path)


@pytest.mark.slow
def test_every_truncated_or_missing_file_is_found_at_once(whole: Path, tmp_path: Path) -> None:
    copy = tmp_path / "store"
    shutil.copytree(whole, copy)
    for name in Store.open(copy).manifest.files:
        good = (copy / name).read_bytes()
        for bad in (good[:-1], b"", good + b"\0"):
            (copy / name).write_bytes(bad)
            with pytest.raises(StoreError, match=name):
                Store.open(copy)
        (copy / name).unlink()
        with pytest.raises(StoreError, match=f"{name} is missing"):
            Store.open(copy)
        (copy / name).write_bytes(good)
    assert_holds(Store.open(copy), SOURCE)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(data=st.data(), recompute=st.booleans())
def test_a_flipped_bit_anywhere_is_found_or_cannot_lead_astray(whole: Path, data: st.DataObject, recompute: bool) -> None:
    with fast_folder() as folder:
        copy = Path(folder) / "store"
        shutil.copytree(whole, copy)
        manifest = json.loads((copy / "manifest.json").read_text())
        name = data.draw(st.sampled_from(sorted(manifest["files"])))
        content = bytearray((copy / name).read_bytes())
        bit = data.draw(st.integers(0, 8 * len(content) - 1))
        content[bit // 8] ^= 1 << bit % 8
        (copy / name).write_bytes(content)
        if not recompute:
            assert read_all(copy) is None
            return
        manifest["files"][name]["crc32"] = zlib.crc32(content)
        write_manifest(copy, manifest)
        store = read_all(copy)
        if store is not None:
            assert_bounded(store)


def assert_bounded(store: Store) -> None:
    """Nothing in the store leads a reader out of an array."""
    arrays = store.arrays()
    for edge_type, parts in arrays.edges.items():
        limit = arrays.schema.node_types[arrays.neighbor_type(edge_type)].num_nodes
        owners = np.diff(arrays.node_bounds[arrays.frontier_type(edge_type)])
        for owned, part in zip(owners, parts, strict=True):
            assert len(part.indptr) == owned + 1 and part.indptr[0] == 0 and (np.diff(part.indptr.astype(np.int64)) >= 0).all()
            assert part.indptr[-1] == len(part.indices)
            assert not len(part.indices) or 0 <= part.indices.min() <= part.indices.max() < limit
            for values in (part.edge_id, part.weight_prefix, *part.arrays.values()):
                assert values is None or len(values) == len(part.indices)
            if part.weight_prefix is not None:
                for low, high in zip(part.indptr[:-1], part.indptr[1:], strict=True):
                    assert (part.weight_prefix[low:high][1:] >= part.weight_prefix[low:high][:-1]).all()
    for node_type, nodes in arrays.schema.node_types.items():
        ids = np.arange(nodes.num_nodes)
        mapped = store.to_store_ids(node_type, ids)
        assert sorted(mapped.tolist()) == ids.tolist()
        for size, node_part in zip(np.diff(arrays.node_bounds[node_type]), arrays.nodes[node_type], strict=True):
            assert all(len(values) == size for values in node_part.arrays.values())


def test_verify_tells_how_far_it_is(whole: Path) -> None:
    events: list[Event] = []
    store = Store.open(whole)
    store.verify(events.append)
    assert {e.stage for e in events} == {"verify"} and events[-1].kind == "end" and events[-1].done == store.nbytes


def test_an_indptr_that_ends_elsewhere_is_found_at_open(tmp_path: Path) -> None:
    source = homogeneous_source(random_edges(np.random.default_rng(0), 9, 9, 30), 9)
    store = build_store(source, tmp_path / "store", BuildOptions())
    name = next(name for name in store.manifest.files if name.endswith("indptr.npy"))
    values = np.load(store.path / name)
    values[-1] += 1
    content = (store.path / name).read_bytes()[: -values.nbytes] + values.tobytes()
    (store.path / name).write_bytes(content)
    with pytest.raises(StoreError, match="goes from 0 to 31 instead of 0 to 30"):
        Store.open(store.path)


def test_a_changed_manifest_is_found_even_where_it_stays_plausible(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "store")
    value = json.loads((whole / "manifest.json").read_text())
    value["metadata"]["num_classes"] = 8
    (tmp_path / "store" / "manifest.json").write_text(json.dumps(value))
    with pytest.raises(StoreError, match="checksum differs"):
        Store.open(tmp_path / "store")


def swap(values: np.ndarray) -> None:
    """Exchanges two neighbouring values that differ, in the middle of an array."""
    at = next(k for k in range(len(values) // 3, len(values) - 2) if values[k] < values[k + 1])
    values[[at, at + 1]] = values[[at + 1, at]]


def set_last(value: int) -> Callable[[np.ndarray], None]:
    def change(values: np.ndarray) -> None:
        values[-1] = value

    return change


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("part0/edges/node__to__node/indptr.npy", swap, "indptr.npy decreases"),
        ("part1/edges/node__to__node/indices.npy", set_last(60), "holds 60, which is not from 0 to 59"),
        ("part1/edges/node__to__node/indices.npy", set_last(-1), "holds -1"),
        ("part2/edges/node__to__node/edge_id.npy", set_last(400), "edge_id.npy holds 400"),
        ("part2/edges/node__to__node/weight_prefix.npy", set_last(0), "decreases within a node"),
        ("part0/nodes/node/global_id.npy", swap, "global_id.npy does not ascend"),
        ("part0/nodes/node/global_id.npy", set_last(60), "global_id.npy holds 60"),
        ("book/node/store_id.npy", swap, "contradict each other"),
        ("book/node/store_id.npy", set_last(-1), "store_id.npy holds -1"),
        ("splits/node/train.npy", set_last(60), "train.npy holds 60"),
        ("part0/cache/node/global_id.npy", set_last(60), "global_id.npy holds 60"),
        ("part0/cache/node/global_id.npy", swap, "global_id.npy does not ascend"),
    ],
)
def test_lies_with_the_right_checksum_are_found(name: str, change: Callable[[np.ndarray], None], text: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    source = homogeneous_source(
        random_edges(rng, 60, 60, 400),
        60,
        edge_arrays={"weight": np.ones(400, np.float32)},
        splits={"train": np.arange(20)},
        x=np.zeros((60, 2), np.float32),
    )
    options = BuildOptions(3, "random", with_edge=True, weight="weight", cache_ratio=0.3)
    store = build_store(source, tmp_path / "store", options)
    values = np.load(store.path / name)
    content = (store.path / name).read_bytes()
    header = content[: len(content) - values.nbytes]
    change(values)
    (store.path / name).write_bytes(header + values.tobytes())
    manifest = json.loads((store.path / "manifest.json").read_text())
    manifest["files"][name]["crc32"] = zlib.crc32(header + values.tobytes())
    write_manifest(store.path, manifest)
    with pytest.raises(StoreError, match=text):
        Store.open(store.path).verify()

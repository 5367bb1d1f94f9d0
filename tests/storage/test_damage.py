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

import gnnkit
from gnnkit import BuildOptions, Store
from gnnkit.datasets import GltPartitionSource, write_glt_partitions
from gnnkit.errors import StoreError
from gnnkit.runtime.batches import edges_in_order
from gnnkit.storage.arrays import node_values
from gnnkit.storage.layout import part_of
from tests.helpers.graphs import homogeneous_source, random_edges, random_source
from tests.helpers.stores import write_manifest
from tests.storage.checks import assert_holds, build_store, fast_folder

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


@pytest.mark.parametrize(("version", "text"), [(10**6, "reads up to"), (0, "no format version"), ("1", "no format"), (True, "no format")])
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
    events: list[Any] = []
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


NAMES = [f"ключ {number}" for number in range(60)]


@pytest.fixture(scope="module")
def of_tables() -> Iterator[Path]:
    """A store of tables, with every kind of file that a store may have."""
    rng = np.random.default_rng(0)
    people = {"id": NAMES, "age": rng.random(60), "fold": ["train"] * 30 + ["valid"] * 30}
    ends = {end: [NAMES[k] for k in rng.integers(0, 60, 300)] for end in ("src", "dst")}
    edges = {**ends, "often": rng.random(300), "at": rng.integers(0, 50, 300)}
    with fast_folder() as folder:
        names = {"keys": "id", "src": "src", "dst": "dst"}
        columns = {"features": ["age"], "split": "fold", "edge_weight": "often", "time": "at"}
        source = gnnkit.tables(edges, people, **names, **columns, scratch_dir=Path(folder) / "scratch")
        options = {"with_edge": True, "weight": "edge_weight", "time_attr": "time", "cache_ratio": 0.3, "order": "hotness"}
        yield gnnkit.partition(source, 3, "random", out=Path(folder) / "store", **options).path


def content(store: Store) -> list[bytes]:
    """All that a store says of the graph, by the dataset's ids."""
    graph, schema, (ids,) = store.arrays(), store.schema, store.splits.values()
    rows = [node_values(graph, t, name) for t, nodes in schema.node_types.items() for name in nodes.arrays]
    edges = [edges_in_order(graph, edge_type) for edge_type in schema.edge_types]
    keys = store.keys()[np.arange(60)].tolist()
    return [repr(keys).encode(), *(array.tobytes() for array in (*rows, *edges, *ids.values()))]


def parted(method: Any, **options: Any) -> Callable[[Store, Path], Any]:
    def read(store: Store, out: Path) -> list[bytes]:
        made = gnnkit.partition(store, 2, method, out=out, **{"with_edge": True, "weight": "edge_weight", "time_attr": "time", **options})
        made.verify()
        return content(made)

    return read


def appended(store: Store, out: Path) -> list[bytes] | None:
    new = {"src": [NAMES[0], "new"], "dst": ["new", NAMES[1]], "often": [1.0, 0.5], "at": [1, 100]}
    made = store.append(new, {"id": ["new"], "age": [0.5], "fold": ["train"]}, out=out)
    try:
        made.verify()
    except StoreError:  # a file that is the same in both is linked, with its checksum: whoever reads it sees the damage
        return None
    return content(made)


def glt_folder(store: Store, out: Path) -> list[bytes]:
    write_glt_partitions(store, out)
    source, (edge_type,) = GltPartitionSource(out), store.schema.edge_types
    edges, rows = source.edge_chunks(edge_type), source.node_array_chunks("node", "x")
    arrays = np.concatenate(list(edges), axis=1), np.concatenate(list(rows)), *source.parts.values()
    return [array.tobytes() for array in arrays]


READERS: dict[str, Callable[[Store, Path], Any]] = {
    "contiguous": parted("contiguous"),
    "random": parted("random"),
    "ldg": parted("ldg"),
    "metis": parted("metis"),
    "frequency": parted("frequency"),
    "order": parted("contiguous", order="hotness"),
    "edge_dir": parted("contiguous", edge_dir="out"),
    "cache_ratio": parted("random", cache_ratio=0.2),
    "append": appended,
    "glt": glt_folder,
    "keys": lambda store, out: [store.keys()[np.arange(60)].tolist(), store.keys().ids(NAMES).tolist()],
    "cache": lambda store, out: [store.cache(part)["node"].global_id.tolist() for part in range(3)],
    "edges": lambda store, out: [edges_in_order(store.arrays(), t).tobytes() for t in store.schema.edge_types],
    "book": lambda store, out: store.to_store_ids("node", np.arange(60)).tolist(),
}
SAMPLERS: dict[str, dict[str, Any]] = {
    "plain": {"num_neighbors": [3, 3]},
    "all": {"num_neighbors": [-1]},
    "weighted": {"num_neighbors": [3, 3], "weight": "edge_weight"},
    "disjoint": {"num_neighbors": [3, 3], "disjoint": True},
    "induced": {"num_neighbors": [3, 3], "subgraph_type": "induced"},
    "hgt": {"sampler": gnnkit.HGT([5, 5])},
    "layer-wise": {"sampler": gnnkit.LayerWise([5, 5])},
    "walks": {"sampler": gnnkit.Walks(4, 2, 50, 0.5), "weight": "edge_weight"},
    "labor": {"sampler": gnnkit.Labor([3, 3])},
    "ppr": {"sampler": gnnkit.PPR()},
    "links": {"num_neighbors": [3], "edge_label_index": np.arange(60).reshape(2, 30), "neg_sampling": "binary"},
}
INDEX_FILES = ("indptr", "indices", "edge_id", "global_id", "store_id", "0.end", "row")


def changed(values: np.ndarray, rng: np.random.Generator, how: str) -> np.ndarray:
    """Another content of the same size; the first and the last value of offsets stay."""
    values = values.copy()
    flat = values.reshape(-1)
    if how == "a bit":
        flat.view(np.uint8)[int(rng.integers(flat.nbytes))] ^= 1
    elif how == "noise":
        limits = np.iinfo(values.dtype)
        flat[1:-1] = rng.integers(limits.min, limits.max, len(flat) - 2, dtype=values.dtype)
    else:
        flat[len(flat) // 2] = {"far": np.iinfo(values.dtype).max, "negative": np.iinfo(values.dtype).min}[how]
    return values


def damage(folder: Path, name: str, values: np.ndarray, *, honest: bool) -> None:
    """Puts values into a file, and where this is to be ``honest`` its checksum into the manifest."""
    old = (folder / name).read_bytes()
    content = old[: len(old) - values.nbytes] + values.tobytes()
    (folder / name).write_bytes(content)
    if honest:
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["files"][name]["crc32"] = zlib.crc32(content)
        write_manifest(folder, manifest)


@pytest.mark.slow(seconds=20)
@pytest.mark.parametrize("reader", READERS)
def test_no_reader_makes_another_graph_of_damage(reader: str, of_tables: Path, tmp_path: Path) -> None:
    """One bit changed anywhere: the right result, or an error that names the file."""
    read, rng = READERS[reader], np.random.default_rng(5)
    right, found = read(Store.open(of_tables), tmp_path / "right"), 0
    for number, name in enumerate(Store.open(of_tables).files):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(of_tables, copy)
        damage(copy, name, changed(np.load(copy / name), rng, "a bit"), honest=False)
        try:
            assert read(Store.open(copy), tmp_path / f"out{number}") in (right, None), name
        except StoreError as error:
            assert name in str(error)
            found += 1
        assert not (tmp_path / f"out{number}.incomplete").exists()
        shutil.rmtree(copy)
    assert found


@pytest.mark.slow(seconds=20)
@pytest.mark.parametrize("reader", READERS)
def test_no_reader_follows_a_number_out_of_the_graph(reader: str, of_tables: Path, tmp_path: Path) -> None:
    """Offsets and ids that are none, with the right checksum: the right result, or an error that names the file; never a crash."""
    read, rng = READERS[reader], np.random.default_rng(6)
    right = read(Store.open(of_tables), tmp_path / "right")
    for number, name in enumerate(name for name in Store.open(of_tables).files if Path(name).stem in INDEX_FILES):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(of_tables, copy)
        how = ("noise", "far", "negative")[number % 3]  # each of the three parts has a file of most kinds
        damage(copy, name, changed(np.load(copy / name), rng, how), honest=True)
        try:
            assert read(Store.open(copy), tmp_path / f"out{number}") in (right, None), name
        except StoreError as error:
            assert name in str(error)
        shutil.rmtree(copy)


@pytest.mark.slow(seconds=20)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler_says_the_same_of_damage(sampler: str, of_tables: Path, tmp_path: Path) -> None:
    options = {"batch_size": 20, "backend": gnnkit.InProcess(1), "progress": False, **SAMPLERS[sampler]}
    if "edge_label_index" not in options:
        options["input_nodes"] = np.arange(60)
    refused = set()
    for name in Store.open(of_tables).files:
        values = np.load(of_tables / name)
        if values.dtype.kind not in "iu" or part_of(name) not in (None, 1):
            continue
        values[1:-1] = 1 << 20 if values.itemsize > 1 else 9
        shutil.copytree(of_tables, tmp_path / "copy")
        damage(tmp_path / "copy", name, values, honest=True)
        with gnnkit.GraphLoader.from_store(tmp_path / "copy", **options) as loader:
            try:
                assert len(list(loader)) >= 3
            except StoreError as error:
                assert "the graph is damaged: " in str(error) and "gnnkit info --verify names the file" in str(error) or name in str(error)
                refused.add(Path(name).stem)
        shutil.rmtree(tmp_path / "copy")
    assert refused >= {"store_id", "indptr", "indices"}


def test_a_file_that_was_looked_through_is_not_read_again_and_a_changed_one_is(of_tables: Path, tmp_path: Path) -> None:
    shutil.copytree(of_tables, tmp_path / "store")
    store, events = Store.open(tmp_path / "store"), list[Any]()
    store.checked(events=events.append)
    assert {event.stage for event in events} == {"verify"} and events[-1].done == store.nbytes
    events.clear()
    Store.open(store.path).checked(events=events.append)
    assert not events
    name = "part1/edges/node__to__node/indices.npy"
    damage(store.path, name, np.load(store.path / name)[::-1].copy(), honest=False)
    with pytest.raises(StoreError, match=f"{name} was changed"):
        Store.open(store.path).checked(events=events.append)
    assert events[-1].kind == "fail"

"""Official splits of links: kept as they are by every way of making a store, and refused where they do not fit the graph."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnkit import BuildOptions, Store
from gnnkit.errors import DatasetError, StoreError
from gnnkit.storage.manifest import keep_outline, outline_files
from tests.helpers.command import run
from tests.helpers.graphs import ArraySource, random_source
from tests.storage.checks import assert_holds, build_store, fast_folder, files_of
from tests.storage.test_damage import write_manifest


def linked_source(seed: int, **options: Any) -> ArraySource:
    """A random typed graph with splits of links of some of its edge types."""
    rng = np.random.default_rng(seed)
    source = random_source(rng, **options)
    for edge_type in source.schema.edge_types:
        sources, targets = (source.schema.node_types[t].num_nodes for t in (edge_type[0], edge_type[2]))
        if not sources or not targets:
            continue
        source.link_splits[edge_type] = {}
        for split in ("train", "valid"):
            n, k = int(rng.integers(0, 20)), int(rng.integers(0, 4))
            links: dict[str, Any] = {"edge_label_index": np.stack([rng.integers(0, sources, n), rng.integers(0, targets, n)])}
            if rng.random() < 0.7:
                links["edge_label"] = rng.choice([rng.random(n).astype(np.float32), rng.integers(0, 9, n)][: int(rng.integers(1, 3))])
            if rng.random() < 0.5:
                links["edge_label_time"] = rng.integers(-5, 100, n)
            if rng.random() < 0.5:
                links["neg_edge_index"] = np.stack([rng.integers(0, sources, 2 * n), rng.integers(0, targets, 2 * n)])
            if rng.random() < 0.5:
                links |= {"src_neg_index": rng.integers(0, sources, (n, k)), "dst_neg_index": rng.integers(0, targets, (n, k))}
            source.link_splits[edge_type][split] = links
    return source


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    num_parts=st.integers(1, 3),
    partition=st.sampled_from(["contiguous", "random"]),
    edge_dir=st.sampled_from(["in", "out"]),
    cheap=st.booleans(),
)
def test_every_build_keeps_the_links(seed: int, num_parts: int, partition: Any, edge_dir: Any, cheap: bool) -> None:
    source = linked_source(seed, edges_are_cheap=cheap)
    largest = max(t.num_nodes for t in source.schema.node_types.values())
    options = BuildOptions(min(num_parts, largest), partition, edge_dir=edge_dir, with_edge=True)
    with fast_folder() as folder:
        store = build_store(source, Path(folder) / "store", options)
        store.verify()
        assert_holds(Store.open(store.path), source)
        other = build_store(store, Path(folder) / "other", BuildOptions(min(2, largest), "random", edge_dir=edge_dir, with_edge=True))
        other.verify()
        assert_holds(other, source)


@pytest.mark.parametrize("partition", ["ldg", "frequency"])
def test_partitioners_that_see_the_edges_keep_the_links(partition: Any, tmp_path: Path) -> None:
    source = linked_source(3, edges_are_cheap=False)
    assert source.link_splits
    assert_holds(build_store(source, tmp_path / "store", BuildOptions(2, partition, with_edge=True, num_neighbors=(2,))), source)


def test_an_outline_and_a_host_of_one_part_have_the_links(tmp_path: Path) -> None:
    source = linked_source(5, num_node_types=2, num_edge_types=2)
    store = build_store(source, tmp_path / "store", BuildOptions(2, "random"))
    files = {
        name: content for name, content in files_of(store.path).items() if name == "manifest.json" or name in outline_files(store.manifest)
    }
    outline = Store.open(keep_outline(tmp_path / "outlines", store.fingerprint, lambda name: [files[name]]), ())
    for found in (outline, Store.open(store.path, (1,))):
        for edge_type, by_split in source.link_splits.items():
            for split, links in by_split.items():
                for name, values in links.items():
                    np.testing.assert_array_equal(found.link_splits[edge_type][split][name], values)
                    assert not found.link_splits[edge_type][split][name].flags.writeable or not values.size


LINKS = {"edge_label_index": np.array([[0, 1], [1, 2]]), "edge_label": np.array([0.5, 1.5]), "neg_edge_index": np.zeros((2, 3), np.int64)}


def three_nodes(links: dict[str, Any], split: str = "train") -> ArraySource:
    source = random_source(np.random.default_rng(0), num_node_types=1, num_edge_types=1)
    (edge_type,) = source.schema.edge_types
    num_nodes = source.schema.num_nodes
    assert num_nodes > 3
    source.link_splits = {edge_type: {split: links}}
    return source


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"edge_label_index": None}, "has no 'edge_label_index', it has \\['edge_label', 'neg_edge_index'\\]"),
        (
            {"edge_label_index": np.zeros((2, 2), np.int32)},
            r"'edge_label_index' of split 'train' of .* is int32 \[2, 2\] where int64 \[2, k\] must be",
        ),
        ({"edge_label_index": np.zeros((3, 2), np.int64)}, r"is int64 \[3, 2\] where int64 \[2, k\]"),
        ({"edge_label_index": np.array([[0, 1], [-1, 2]])}, "holds node -1, but there are"),
        ({"neg_edge_index": np.array([[0], [10**6]])}, "'neg_edge_index' of split 'train' of .* holds node 1000000, but there are"),
        ({"edge_label": np.zeros(3)}, r"'edge_label' of .* is float64 \[3\] where numbers \[2\] must be"),
        ({"edge_label": np.array(["a", "b"])}, "where numbers"),
        ({"edge_label": [1, 2]}, "is no array but list"),
        ({"edge_label_time": np.zeros(2)}, r"'edge_label_time' .* is float64 \[2\] where int64 \[2\] must be"),
        ({"dst_neg_index": np.zeros((3, 4), np.int64)}, r"'dst_neg_index' .* where int64 \[2, k\] must be"),
        ({"src_neg_index": np.full((2, 1), 10**6)}, "'src_neg_index' .* holds node 1000000"),
        ({"weights": np.zeros(2)}, "has an array 'weights', which is none of"),
    ],
)
def test_links_that_do_not_fit_are_refused_and_nothing_is_left(change: dict[str, Any], expected: str, tmp_path: Path) -> None:
    links = {name: values for name, values in {**LINKS, **change}.items() if values is not None}
    with pytest.raises(DatasetError, match=expected):
        build_store(three_nodes(links), tmp_path / "store", BuildOptions(1))
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_damage_is_found(tmp_path: Path) -> None:
    store = build_store(three_nodes(LINKS), tmp_path / "store", BuildOptions(1))
    (name,) = (name for name in store.files if name.endswith("train.neg_edge_index.npy"))
    content = bytearray((store.path / name).read_bytes())
    content[-1] ^= 0x40
    (store.path / name).write_bytes(content)
    with pytest.raises(StoreError, match="train.neg_edge_index.npy was changed"):
        Store.open(store.path).verify()
    # As if somebody had recomputed the checksum.
    value = json.loads((store.path / "manifest.json").read_text())
    value["files"][name]["crc32"] = zlib.crc32(bytes(content))
    write_manifest(store.path, value)
    with pytest.raises(StoreError, match="train.neg_edge_index.npy holds .* which is not from 0 to"):
        Store.open(store.path).verify()
    (shapes,) = value["link_splits"].values()
    shapes["train"]["edge_label"]["shape"] = [3]
    write_manifest(store.path, value)
    with pytest.raises(StoreError, match="does not describe a store"):
        Store.open(store.path)
    (store.path / name).unlink()


def test_info_says_how_many_links_there_are(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store = build_store(three_nodes(LINKS), tmp_path / "store", BuildOptions(1))
    assert run(["info", str(store.path)]) == 0
    assert ": train 2" in " ".join(capfd.readouterr().out.split()).partition("links of ")[2]
    assert run(["info", str(store.path), "--json"]) == 0
    assert list(json.loads(capfd.readouterr().out)["link_splits"].values()) == [{"train": 2}]
    assert run(["info", "ogbl-citation2", "--root", str(tmp_path)]) == 0
    out = capfd.readouterr().out
    assert "link prediction" in out and "classes" not in out and "citation-v2.zip" in out

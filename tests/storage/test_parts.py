"""Stores of which a host has some parts only."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gnnkit import BuildOptions, Store
from gnnkit.errors import PlanError, StoreError
from gnnkit.runtime.graph_memory import graph_nbytes
from tests.helpers.graphs import random_source
from tests.helpers.machine import ROOT
from tests.helpers.shared_graphs import attached, shared
from tests.storage.checks import build_store


@pytest.fixture
def whole(tmp_path: Path) -> Store:
    source = random_source(np.random.default_rng(5), num_node_types=2, num_edge_types=3)
    return build_store(source, tmp_path / "store", BuildOptions(num_parts=3, partition="random", cache_ratio=0.2))


def staged(whole: Store, folder: Path, *parts: int) -> Path:
    """A copy as a host has it: what everybody needs, and its own parts."""
    others = [f"part{part}" for part in range(whole.num_parts) if part not in parts]
    return shutil.copytree(whole.path, folder, ignore=lambda _, names: [name for name in names if name in others])


def test_a_part_opens_without_the_files_of_the_others(whole: Store, tmp_path: Path) -> None:
    store = Store.open(staged(whole, tmp_path / "host", 1), parts=(1,))
    every, here = whole.arrays(), store.arrays()
    assert store.fingerprint == whole.fingerprint and here.local_parts == (1,) and not here.is_whole and every.is_whole
    for node_type in every.schema.node_types:
        for part in range(3):
            for name, values in every.nodes[node_type][part].arrays.items():
                found = here.nodes[node_type][part].arrays[name]
                assert (found.dtype, found.shape) == (values.dtype, values.shape)
                assert part != 1 or np.array_equal(found, values)
                assert part == 1 or not any(found.strides[:1]), "a placeholder takes no memory"
        np.testing.assert_array_equal(store.to_store_ids(node_type, np.arange(3)), whole.to_store_ids(node_type, np.arange(3)))
    for edge_type in every.schema.edge_types:
        np.testing.assert_array_equal(here.edge_bounds[edge_type], every.edge_bounds[edge_type])
        np.testing.assert_array_equal(here.edges[edge_type][1].indices, every.edges[edge_type][1].indices)
    assert str(store.report()) == str(whole.report()).replace(str(whole.path), str(store.path))
    assert "[1] open" in repr(store)
    assert pickle.loads(pickle.dumps(store)).local_parts == (1,)


def test_the_shared_copy_holds_only_what_is_here(whole: Store, tmp_path: Path) -> None:
    store = Store.open(staged(whole, tmp_path / "host", 0, 2), parts=(0, 2))
    copy = shared(store.arrays())
    there = attached(copy, store.arrays())
    assert graph_nbytes(store.arrays()) < graph_nbytes(whole.arrays()) and there.graph.local_parts == (0, 2)
    for node_type in whole.schema.node_types:
        for part in (0, 2):
            for name, values in whole.arrays().nodes[node_type][part].arrays.items():
                np.testing.assert_array_equal(there.graph.nodes[node_type][part].arrays[name], values)
    for edge_type in whole.schema.edge_types:
        for part in (0, 2):
            np.testing.assert_array_equal(there.graph.edges[edge_type][part].indices, whole.arrays().edges[edge_type][part].indices)


def test_damage_is_found_in_the_parts_that_are_here(whole: Store, tmp_path: Path) -> None:
    store = Store.open(staged(whole, tmp_path / "host", 2), parts=(2,))
    store.verify()
    path = next((store.path / "part2").glob("nodes/*/*.npy"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoreError, match="part2"):
        Store.open(store.path, parts=(2,)).verify()


def test_what_is_not_here_cannot_be_read(whole: Store, tmp_path: Path) -> None:
    path = staged(whole, tmp_path / "host", 1)
    with pytest.raises(StoreError, match=r"part 0 of the store .* is not on this host; of 3 parts, \[1\] are") as missing:
        Store.open(path)
    assert "copy the folder part0 here" in str(missing.value) and "parts=[1]" in str(missing.value)
    with pytest.raises(PlanError, match="has no part 3"):
        Store.open(path, parts=(3,))
    store = Store.open(path, parts=(1,))
    elsewhere = next(name for name in whole.manifest.files if name.startswith("part2/"))
    for attempt in (
        lambda: store.cache(0),
        lambda: store.file(elsewhere),
        lambda: build_store(store, tmp_path / "other", BuildOptions(num_parts=2)),
    ):
        with pytest.raises(StoreError, match="is not open here"):
            attempt()


# In a process of its own: only root may raise a hard limit again.
MAPPED = """
import os, resource, sys
from gnnkit import Store
from gnnkit.errors import StoreError

few = 64
resource.setrlimit(resource.RLIMIT_NOFILE, (few, few if sys.argv[2] == "hard" else resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
try:
    store = Store.open(sys.argv[1])
    arrays = store.arrays()
    print("maps", len(os.listdir("/proc/self/fd")) > few)
except StoreError as error:
    print(error)
"""


@pytest.mark.parametrize(("limit", "outcome"), [("soft", "maps True"), ("hard", "ulimit")])
def test_more_parts_than_files_may_be_open(limit: str, outcome: str, tmp_path: Path) -> None:
    """Of the limits of open files the soft one is raised; what the system does not allow is an error."""
    source = random_source(np.random.default_rng(5), num_node_types=2, num_edge_types=3)
    build_store(source, tmp_path / "store", BuildOptions(num_parts=30, partition="random"))
    words = [sys.executable, "-W", "error", "-c", MAPPED, str(tmp_path / "store"), limit]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert outcome in done.stdout, done

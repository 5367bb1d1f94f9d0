"""Run as a program: damages arrays of stores in many ways, and samples from each without verifying it first."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from gnnkit import BuildOptions, GraphLoader, InProcess, Store
from gnnkit.errors import StoreError
from tests.helpers.graphs import random_source
from tests.storage.checks import FAST_FOLDER, build_store

SOURCE = random_source(np.random.default_rng(12), num_node_types=2, num_edge_types=3, max_nodes=60, max_edges=400)
STORES = [BuildOptions(1, with_edge=True, weight="weight"), BuildOptions(3, "random", with_edge=True, weight="weight")]
SAMPLINGS: list[dict[str, Any]] = [
    {"num_neighbors": [3, 2]},
    {"num_neighbors": [-1, 40]},
    {"num_neighbors": [4, 4], "replace": True},
    {"num_neighbors": [3, 3], "weight": "weight"},
    {"num_neighbors": [40, -1], "weight": "weight"},
    {"num_neighbors": [5, 3], "weight": "weight", "replace": True},
]


def damage(path: Path, rng: np.random.Generator) -> None:
    """Changes some of an array's values: bits of them, or all of their bytes."""
    content = bytearray(path.read_bytes())
    start = len(content) - np.load(path).nbytes
    if start == len(content):
        return
    kind = rng.integers(3)
    for _ in range(rng.integers(1, 4)):
        place = int(rng.integers(start, len(content)))
        if kind == 0:
            content[place] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            content[place : place + 8] = rng.bytes(min(8, len(content) - place))
        else:
            # The highest byte of a value: negative, or far out of range.
            content[-1 - int(rng.integers(0, (len(content) - start) // 4)) * 4] ^= int(rng.integers(1, 256))
    path.write_bytes(content)


def check(batch: Any) -> None:
    """What a model would read of a batch lies inside of it."""
    for node_type in batch.node_types:
        store = batch[node_type]
        count = sum(store.num_sampled_nodes)
        assert len(store.n_id) == count and ("x" not in store or len(store.x) == count)
        assert not count or 0 <= store.n_id.min() <= store.n_id.max() < SOURCE.schema.node_types[node_type].num_nodes
    for edge_type in batch.edge_types:
        store = batch[edge_type]
        source, target = store.edge_index
        assert len(source) == len(store.e_id) == len(store.weight) == sum(store.num_sampled_edges)
        if len(source):
            assert 0 <= source.min() <= source.max() < len(batch[edge_type[0]].n_id)
            assert 0 <= target.min() <= target.max() < len(batch[edge_type[2]].n_id)
            assert 0 <= store.e_id.min() <= store.e_id.max() < SOURCE.schema.edge_types[edge_type].num_edges


def attempt(store: Path, sampling: dict[str, Any]) -> str:
    """Samples two epochs; "sampled", or the name of the error."""
    try:
        with GraphLoader.from_store(store, batch_size=6, progress=False, backend=InProcess(num_threads=1), **sampling) as loader:
            loader.peek()
            for _ in range(2):
                for batch in loader:
                    check(batch)
    except StoreError:
        return "StoreError"
    return "sampled"


def main(rounds: int) -> None:
    """Goes through every array of every store ``rounds`` times, and writes how often each outcome came up."""
    rng, outcomes = np.random.default_rng(5), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="damaged-", dir=FAST_FOLDER) as folder:
        for number, options in enumerate(STORES):
            whole = build_store(SOURCE, Path(folder) / f"whole-{number}", options).path
            assert all(attempt(whole, sampling) == "sampled" for sampling in SAMPLINGS)
            for name in sorted(Store.open(whole).manifest.files):
                for i in range(rounds):
                    copy = Path(folder) / f"{number}-{name.replace('/', '-')}-{i}"
                    shutil.copytree(whole, copy)
                    damage(copy / name, rng)
                    sampling = SAMPLINGS[int(rng.integers(len(SAMPLINGS)))]
                    sys.stderr.write(f"{options} {name} {i} {sampling}\n")  # the last line names what crashed
                    sys.stderr.flush()
                    outcomes[f"{Path(name).name} {attempt(copy, sampling)}"] += 1
                    shutil.rmtree(copy)
    for outcome, count in sorted(outcomes.items()):
        sys.stdout.write(f"{outcome} {count}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))

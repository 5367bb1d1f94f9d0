"""Loaders on stores: narrow features, weights, edge ids, and stores that were damaged after they had been built."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnnkit
from gnnkit import GraphLoader
from gnnkit.datasets import open_ogb, sample_root
from gnnkit.errors import PlanError, StoreError
from tests.helpers.batches import digest, same
from tests.helpers.graphs import ArraySource, homogeneous_source, random_edges
from tests.helpers.machine import ROOT

NUM_NODES, NUM_EDGES = 80, 600
OPTIONS: dict[str, Any] = {"num_neighbors": [4, 4], "batch_size": 16, "progress": False}


@pytest.fixture(scope="module")
def source() -> ArraySource:
    rng = np.random.default_rng(2)
    weight = rng.integers(0, 3, NUM_EDGES).astype(np.float32)
    return homogeneous_source(
        random_edges(rng, NUM_NODES, NUM_NODES, NUM_EDGES),
        NUM_NODES,
        edge_arrays={"weight": weight, "edge_attr": rng.standard_normal((NUM_EDGES, 3)).astype(np.float32)},
        splits={"train": np.arange(0, 80, 2), "valid": np.arange(1, 80, 4)},
        x=rng.standard_normal((NUM_NODES, 9)).astype(np.float32),
        y=rng.integers(0, 5, NUM_NODES),
    )


def epoch_of_store(path: Path, **options: Any) -> list[Any]:
    with GraphLoader.from_store(path, **{**OPTIONS, **options}) as loader:
        return list(loader)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("num_parts", [1, 3])
def test_narrow_features_are_the_rounded_ones_and_nothing_else_changes(
    source: ArraySource, dtype: str, num_parts: int, tmp_path: Path
) -> None:
    wide = gnnkit.partition(source, num_parts, "random", tmp_path / "wide")
    narrow = gnnkit.partition(source, num_parts, "random", tmp_path / "narrow", feature_dtype=dtype)  # type: ignore[arg-type]
    again = gnnkit.partition(wide, num_parts, "random", tmp_path / "again", feature_dtype=dtype)  # type: ignore[arg-type]
    assert narrow.nbytes < wide.nbytes
    for big, small in zip(epoch_of_store(wide.path), epoch_of_store(narrow.path), strict=True):
        assert small.x.dtype == small.edge_attr.dtype == getattr(torch, dtype)
        big.x, big.edge_attr = big.x.to(small.x.dtype), big.edge_attr.to(small.x.dtype)
        same(big, small)
        assert torch.nn.Linear(9, 2, dtype=small.x.dtype)(small.x).isfinite().all()
    assert digest(epoch_of_store(again.path)) == digest(epoch_of_store(narrow.path))


def test_the_loader_builds_narrow_stores_itself(source: ArraySource, tmp_path: Path) -> None:
    with GraphLoader.from_source(source, store_dir=tmp_path, feature_dtype="float16", **OPTIONS) as loader:
        assert loader.peek().x.dtype == torch.float16


@pytest.mark.parametrize("num_parts", [1, 3])
def test_edges_of_weight_zero_are_never_taken(source: ArraySource, num_parts: int, tmp_path: Path) -> None:
    (weights,) = (rows["weight"] for rows in source.edge_arrays.values())
    store = gnnkit.partition(source, num_parts, "ldg", tmp_path / "store", weight="weight")
    taken = torch.cat([batch.e_id for batch in epoch_of_store(store.path, weight="weight", num_neighbors=[-1])]).numpy()
    assert (weights == 0).any() and (weights[taken] > 0).all()
    (edge_index,) = source.edges.values()
    assert np.array_equal(np.sort(taken), np.flatnonzero((weights > 0) & (edge_index[1] % 2 == 0)))
    unweighted = torch.cat([batch.e_id for batch in epoch_of_store(store.path, num_neighbors=[-1])]).numpy()
    assert (weights[unweighted] == 0).any()  # the store serves both


def test_what_a_store_does_not_hold_is_an_error_before_anything_starts(source: ArraySource, tmp_path: Path) -> None:
    bare = gnnkit.partition(source, 1, out=tmp_path / "bare", with_edge=False)
    weighted = gnnkit.partition(source, 1, out=tmp_path / "weighted", weight="weight")
    with pytest.raises(PlanError, match=r"bare.*no edge ids") as caught:
        epoch_of_store(bare.path, with_edge=True)
    assert "with_edge=True" in str(caught.value.hint)
    with pytest.raises(PlanError, match=r"bare.*without weights"):
        epoch_of_store(bare.path, weight="weight")
    with pytest.raises(PlanError, match=r"'edge_attr'.*for the weights 'weight'"):
        epoch_of_store(weighted.path, weight="edge_attr")
    for batch in epoch_of_store(bare.path):  # edge features need no ids
        assert "e_id" not in batch and len(batch.edge_attr) == batch.edge_index.shape[1]
    for batch in epoch_of_store(weighted.path, with_edge=False):
        assert "e_id" not in batch
    with pytest.raises(StoreError, match="there is no store"):
        epoch_of_store(tmp_path)
    with pytest.raises(PlanError, match="unknown option 'batchsize'.*did you mean 'batch_size'"):
        epoch_of_store(bare.path, batchsize=2)


@pytest.mark.slow
def test_damaged_stores_end_in_an_error_or_in_sound_batches() -> None:
    """Nobody has verified the store: whatever its arrays hold, sampling stays inside of them."""
    done = subprocess.run([sys.executable, "-m", "tests.e2e.damaged_stores", "1"], cwd=ROOT, capture_output=True, text=True, timeout=240)
    last = "\n".join(done.stderr.splitlines()[-25:])
    assert done.returncode == 0, f"exit status {done.returncode} after\n{last}"
    outcomes = done.stdout
    for name in ("indices", "indptr", "edge_id", "global_id", "store_id"):
        assert f"{name}.npy StoreError" in outcomes, outcomes
    for name in ("x", "y", "weight_prefix", "edge_attr"):
        assert f"{name}.npy sampled" in outcomes, outcomes


class ReadOnce:
    """A dataset whose edges cannot be read any more."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def edge_chunks(self, edge_type: Any) -> Any:
        raise AssertionError("the dataset's edges are read again")


def test_other_parts_of_a_dataset_are_cut_without_reading_it_again(tmp_path: Path) -> None:
    options = {**OPTIONS, "store_dir": tmp_path}
    with GraphLoader.from_ogb("ogbn-products", root=sample_root(), **options) as whole:
        expected = digest(list(whole))
    read: Any = ReadOnce(open_ogb("ogbn-products", root=sample_root(), download=False))
    with GraphLoader.from_source(read, num_parts=3, partition="random", **options) as cut:
        assert cut.store.num_parts == 3 and digest(list(cut)) == expected
    with pytest.raises(AssertionError, match="read again"):
        GraphLoader.from_source(read, edge_dir="out", **options)

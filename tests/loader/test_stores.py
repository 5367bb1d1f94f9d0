"""Loaders on stores: opened by path, by plan, shared, and moved into memory while they run."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnkit import BuildOptions, GraphLoader, InProcess
from gnnkit.errors import PlanError, StoreError
from tests.helpers.batches import same
from tests.helpers.graphs import ArraySource, homogeneous_source, random_edges, stored

OPTIONS: dict[str, Any] = {"num_neighbors": [4, 3], "batch_size": 16, "progress": False}


def source(num_nodes: int = 200, seed: int = 0) -> ArraySource:
    rng = np.random.default_rng(seed)
    weight = rng.random(1500).astype(np.float32)
    x = rng.standard_normal((num_nodes, 7)).astype(np.float32)
    splits = {"train": rng.permutation(num_nodes)[:120].astype(np.int64), "valid": np.arange(5)}
    edges = random_edges(rng, num_nodes, num_nodes, 1500)
    return homogeneous_source(edges, num_nodes, edge_arrays={"weight": weight}, splits=splits, x=x, y=np.arange(num_nodes))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores") / "store"
    stored(source(), folder, BuildOptions(num_parts=2, partition="random", with_edge=True, weight="weight"))
    return folder


def test_every_way_to_a_store_gives_the_same_batches(path: Path, tmp_path: Path) -> None:
    with (
        GraphLoader.from_store(path, weight="weight", **OPTIONS) as by_path,
        GraphLoader.from_source(source(), store_dir=tmp_path / "stores", weight="weight", with_edge=True, **OPTIONS) as by_source,
    ):
        assert by_path.plan.inputs.split == "train" and by_path.plan.batching.shuffle
        by_path.plan.save(tmp_path / "plan.json")
        with GraphLoader.from_plan(tmp_path / "plan.json", progress=False) as by_plan:
            assert by_plan.plan == by_path.plan
            count = 0
            for first, second, third in zip(by_path, by_source, by_plan, strict=True):
                same(first, second)
                same(first, third)
                count += 1
            assert count == 8


def test_an_opened_store_is_its_folder(path: Path) -> None:
    with GraphLoader.from_store(path, **OPTIONS) as first, GraphLoader.from_store(first.store, **OPTIONS) as second:
        assert second.plan == first.plan
    with pytest.raises(PlanError, match="was given a dict"):
        GraphLoader.from_store({}, **OPTIONS)  # type: ignore[arg-type]


def test_loaders_of_one_store_share_it(path: Path) -> None:
    with (
        GraphLoader.from_store(path, **OPTIONS) as first,
        GraphLoader.from_store(path, **OPTIONS) as second,
        first.for_split("valid") as third,
    ):
        assert first.pipeline.graph is second.pipeline.graph is third.pipeline.graph
        assert sum(batch.batch_size for batch in third) == 5
        assert first.store.path == path


def test_a_store_in_a_moved_folder(path: Path, tmp_path: Path) -> None:
    with GraphLoader.from_store(path, **OPTIONS) as loader:
        plan, expected = loader.plan, loader.peek()
    assert plan.store is not None
    shutil.copytree(path, tmp_path / "moved")
    replace(plan, store=replace(plan.store, path="moved")).save(tmp_path / "plan.json")
    with GraphLoader.from_plan(tmp_path / "plan.json", progress=False) as loader:
        same(loader.peek(), expected)


def test_a_plan_of_another_store_is_refused(path: Path, tmp_path: Path) -> None:
    with GraphLoader.from_store(path, **OPTIONS) as loader:
        plan = loader.plan
    other = stored(source(seed=1), tmp_path / "other", BuildOptions())
    assert plan.store is not None
    replace(plan, store=replace(plan.store, path=str(other.path))).save(tmp_path / "plan.json")
    with pytest.raises(StoreError, match="the plan was made for") as caught:
        GraphLoader.from_plan(tmp_path / "plan.json", progress=False)
    assert caught.value.hint


def test_what_a_store_was_not_built_with(tmp_path: Path) -> None:
    bare = stored(source(), tmp_path / "bare", BuildOptions()).path
    for options, got in (({"weight": "weight"}, "weight='weight'"), ({"with_edge": True}, "no edge ids")):
        with pytest.raises(PlanError, match=got) as caught:
            GraphLoader.from_store(bare, **options, **OPTIONS)
        assert caught.value.hint and "build it with" in caught.value.hint
    with GraphLoader.from_store(bare, **OPTIONS) as loader:
        batch = loader.peek()
    assert "e_id" not in batch and batch.weight.shape == (batch.num_edges,)  # rows of edges do not need the ids


def test_batches_are_the_same_before_while_and_after_the_graph_moves_into_memory(path: Path) -> None:
    with GraphLoader.from_store(path, weight="weight", memory_budget=0, seed=3, **OPTIONS) as loader:
        assert loader.status().graph_bytes == 0
        expected = [list(loader) for _ in range(40)]
    del loader
    options: dict[str, Any] = {"weight": "weight", "memory_budget": 1 << 28, "seed": 3, "backend": InProcess(num_threads=2), **OPTIONS}
    with GraphLoader.from_store(path, **options) as loader:
        for epoch in expected:
            for batch, wanted in zip(loader, epoch, strict=True):
                same(batch, wanted)
        assert loader.pipeline.graph.memory(None).wait(60)
        assert loader.status().graph_bytes > 0
        loader.set_epoch(0)
        for batch, wanted in zip(loader, expected[0], strict=True):
            same(batch, wanted)
        same(loader.sample([3]), loader.sample([3]))
    assert not any(thread.name.startswith("gnnkit-sampler") for thread in threading.enumerate())

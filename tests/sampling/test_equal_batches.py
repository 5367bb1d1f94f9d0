"""A batch is a function of the graph, the options and its key: not of threads, parts, partitioners or ranks."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from torch_geometric.data import Data, HeteroData

from gnnkit import GraphLoader, InProcess
from gnnkit.storage.layout import Partitioner
from tests.helpers.batches import expected_epoch, same, to_pyg
from tests.helpers.graphs import ArraySource, homogeneous_source, random_edges, random_source

OPTIONS: dict[str, Any] = {"num_neighbors": [4, 3], "batch_size": 7, "shuffle": True, "seed": 5}
COMMON: dict[str, Any] = {"with_edge": True, "weight": "weight", "progress": False, "memory_budget": 0}


def typed_source() -> ArraySource:
    """The first random graph whose seed type has enough nodes for several batches, and one type without any."""
    for seed in itertools.count():
        source = random_source(np.random.default_rng(seed), max_nodes=60, max_edges=400, num_node_types=3, num_edge_types=5)
        first = next(iter(source.splits))
        sizes = [t.num_nodes for t in source.schema.node_types.values()]
        if source.schema.node_types[first].num_nodes >= 45 and 0 in sizes and source.schema.num_edges > 300:
            return source
    raise AssertionError


def plain_source() -> ArraySource:
    rng = np.random.default_rng(3)
    weight = rng.integers(0, 4, 900).astype(np.float32)
    x = rng.standard_normal((120, 4)).astype(np.float32)
    splits = {"train": rng.permutation(120)[:70].astype(np.int64)}
    edge_index = random_edges(rng, 100, 100, 900)
    return homogeneous_source(edge_index, 120, edge_arrays={"weight": weight}, splits=splits, x=x, y=rng.integers(0, 5, 120))


SOURCES = {"typed": typed_source, "homogeneous": plain_source}


def seeds_of(source: ArraySource) -> tuple[str, list[int]]:
    (node_type, splits), *_ = source.splits.items()
    return node_type, splits["train"].tolist()


def reference(source: ArraySource, **options: Any) -> list[Data | HeteroData]:
    input_type, ids = seeds_of(source)
    return expected_epoch(source, input_type=input_type, input_nodes=ids, stream="train", weight="weight", **{**OPTIONS, **options})


def same_up_to_order(left: Data | HeteroData, right: Data | HeteroData) -> None:
    """A store lists arrays by name, a PyG object in the order in which they were set."""
    same(left, right, any_order=True)


@pytest.mark.parametrize("partition", get_args(Partitioner))
@pytest.mark.parametrize("num_parts", [1, 2, 3])
@pytest.mark.parametrize("kind", SOURCES)
def test_parts_and_partitioners(tmp_path: Path, kind: str, num_parts: int, partition: str) -> None:
    source = SOURCES[kind]()
    expected = reference(source)
    for threads in (1, 2, 4):
        with GraphLoader.from_source(
            source,
            store_dir=tmp_path,
            num_parts=num_parts,
            partition=partition,
            backend=InProcess(num_threads=threads),
            **OPTIONS,
            **COMMON,
        ) as loader:
            got = list(loader)
        assert len(got) == len(expected)
        for batch, wanted in zip(got, expected, strict=True):
            same_up_to_order(batch, wanted)


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_both_directions_over_parts(tmp_path: Path, edge_dir: str) -> None:
    source = typed_source()
    expected = reference(source, edge_dir=edge_dir)
    with GraphLoader.from_source(
        source, store_dir=tmp_path, num_parts=3, partition="random", edge_dir=edge_dir, **OPTIONS, **COMMON
    ) as loader:
        for batch, wanted in zip(loader, expected, strict=True):
            same_up_to_order(batch, wanted)


@pytest.mark.slow
def test_more_parts_than_some_types_have_nodes(tmp_path: Path) -> None:
    """Parts without nodes and edges of a type are found past, whichever node is asked for."""
    source = typed_source()
    expected = reference(source)
    with GraphLoader.from_source(source, store_dir=tmp_path, num_parts=40, partition="random", **OPTIONS, **COMMON) as loader:
        for batch, wanted in zip(loader, expected, strict=True):
            same_up_to_order(batch, wanted)


@pytest.mark.parametrize("kind", SOURCES)
def test_a_store_gives_what_the_object_in_memory_gives(tmp_path: Path, kind: str) -> None:
    source = SOURCES[kind]()
    input_type, ids = seeds_of(source)
    given = np.array(ids) if source.schema.is_homogeneous else (input_type, np.array(ids))
    with (
        GraphLoader.from_source(
            source, store_dir=tmp_path, num_parts=2, partition="random", input_nodes=given, **OPTIONS, **COMMON
        ) as stored,
        GraphLoader.from_pyg(to_pyg(source), input_nodes=given, **OPTIONS, **COMMON) as in_memory,
    ):
        for left, right in zip(stored, in_memory, strict=True):
            same_up_to_order(left, right)


def test_edge_ids_are_the_same_choice_for_a_store_and_for_memory(tmp_path: Path) -> None:
    """``with_edge=None`` asks one question of the whole graph: does anything in it have edge features?"""
    source = typed_source()
    input_type, ids = seeds_of(source)
    some, *others = source.edges
    for edge_type in others:
        source.edge_arrays[edge_type] = {}
    source.schema = type(source.schema)(
        source.schema.node_types,
        {t: type(e)(e.num_edges, e.arrays if t == some else {}) for t, e in source.schema.edge_types.items()},
    )
    options = {**OPTIONS, "progress": False, "input_nodes": (input_type, np.array(ids))}
    with (
        GraphLoader.from_source(source, store_dir=tmp_path, **options) as stored,
        GraphLoader.from_pyg(to_pyg(source), **options) as in_memory,
    ):
        left, right = stored.peek(), in_memory.peek()
    assert all("e_id" in left[edge_type] for edge_type in left.edge_types)
    same_up_to_order(left, right)


@pytest.mark.parametrize("remainder", ["drop", "pad", "uneven"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 30])
def test_ranks_are_dealt_the_same_batches(world_size: int, remainder: str) -> None:
    source = plain_source()
    expected = reference(source)
    input_type, ids = seeds_of(source)
    data: Any = to_pyg(source)
    total = len(expected)
    lengths = {
        "drop": [total // world_size] * world_size,
        "pad": [-(-total // world_size)] * world_size,
        "uneven": [len(range(rank, total, world_size)) for rank in range(world_size)],
    }[remainder]
    dealt = []
    with GraphLoader.from_pyg(data, input_nodes=np.array(ids), **OPTIONS, **COMMON) as loader:
        ids_epoch = list(loader)
        for rank in range(world_size):
            with loader.for_split(np.array(ids), shuffle=True, remainder=remainder, rank=rank, world_size=world_size) as part:
                got = list(part)
                assert len(part) == len(got) == lengths[rank]
            dealt.append(got)
    for rank, got in enumerate(dealt):
        for step, batch in enumerate(got):
            index = step * world_size + rank
            wanted = ids_epoch[index % total]
            if world_size > 1 and remainder == "pad":
                assert batch.seed_mask.tolist() == [index < total] * batch.batch_size
                del batch.seed_mask
            assert "seed_mask" not in batch
            same(batch, wanted)

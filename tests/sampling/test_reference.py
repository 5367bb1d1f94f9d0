"""Every tensor of every batch, bit for bit as the program written from the specification says."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData

from gnnkit import GraphLoader, InProcess, OnDevice
from gnnkit.datasets import GraphSchema
from tests import reference_sampler
from tests.helpers.batches import digest, expected_batch, expected_epoch, same, to_pyg, to_reference
from tests.helpers.golden import GOLDEN_CASES, GOLDEN_INPUT_NODES, GOLDEN_OPTIONS, as_options, golden_source
from tests.helpers.graphs import ArraySource, homogeneous_source, random_edges, random_source, spec_of, typed_source
from tests.helpers.machine import SEARCH_PATH

FAN_OUTS = ([3, 2], [1], [-1, -1], [4, 0, 3], [-1, 2, 1], [40, 2], [0, 0])


def epoch_of(
    source: ArraySource, *, batches: int | None = None, threads: int = 1, epoch: int = 0, **options: Any
) -> list[Data | HeteroData]:
    options = {"with_edge": True, "progress": False, "backend": InProcess(num_threads=threads), **options}
    with GraphLoader.from_pyg(to_pyg(source), **options) as loader:
        loader.set_epoch(epoch)
        return list(loader)[:batches]


def check(
    source: ArraySource, input_type: str, ids: list[int], *, num_neighbors: Any, threads: int = 1, epoch: int = 0, **options: Any
) -> list[Data | HeteroData]:
    """Compares an epoch of a loader, sampled by processors and with a device's operations, with the reference; returns its batches."""
    input_nodes = np.array(ids, np.int64) if source.schema.is_homogeneous else (input_type, np.array(ids, np.int64))
    words = as_options({"num_neighbors": num_neighbors, **options})
    got = epoch_of(source, threads=threads, epoch=epoch, input_nodes=input_nodes, **words)
    made = epoch_of(source, epoch=epoch, input_nodes=input_nodes, backend=OnDevice("cpu"), **words)
    expected = expected_epoch(source, num_neighbors=num_neighbors, input_type=input_type, input_nodes=ids, epoch=epoch, **options)
    for batch, other, wanted in zip(got, made, expected, strict=True):
        same(batch, wanted)
        same(other, wanted)
    return got


def homogeneous(rng: np.random.Generator) -> ArraySource:
    num_nodes, num_edges = int(rng.integers(1, 40)), int(rng.integers(41, 150))
    x, weight = rng.standard_normal((num_nodes, 2)), rng.integers(0, 5, num_edges)
    return homogeneous_source(random_edges(rng, num_nodes, num_nodes, num_edges), num_nodes, edge_arrays={"weight": weight}, x=x)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """A random graph and random options for it."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    source = random_source(rng) if draw(st.integers(0, 4)) else homogeneous(rng)
    input_type = draw(st.sampled_from([t for t, s in source.schema.node_types.items() if s.num_nodes]))
    num_nodes = source.schema.node_types[input_type].num_nodes
    hops = draw(st.integers(1, 3))
    fan_out = st.lists(st.integers(-1, 6) | st.just(45), min_size=hops, max_size=hops)
    num_neighbors = draw(fan_out) if draw(st.booleans()) else {edge_type: draw(fan_out) for edge_type in source.edges}
    dependency = {"layer_dependency": draw(st.booleans()), "batch_dependency": draw(st.integers(1, 5))}
    labor = draw(st.none() | st.just(dependency))
    return {
        "labor": labor,
        "source": source,
        "input_type": input_type,
        "ids": draw(st.lists(st.integers(0, num_nodes - 1), max_size=24)),
        "num_neighbors": num_neighbors,
        "batch_size": draw(st.integers(1, 9)),
        "edge_dir": draw(st.sampled_from(["in", "out"])),
        "replace": labor is None and draw(st.booleans()),
        "weight": draw(st.sampled_from([None, "weight"])),
        "shuffle": draw(st.booleans()),
        "drop_last": draw(st.booleans()),
        "seed": draw(st.integers(0, (1 << 64) - 1)),
        "epoch": draw(st.integers(0, 1 << 40)),
    }


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True)
@given(cases())
@pytest.mark.core
def test_random_typed_graphs(case: dict[str, Any]) -> None:
    check(**case)


def hub_source(num_nodes: int = 60, num_edges: int = 700) -> ArraySource:
    """Homogeneous: two hubs, duplicate edges, self loops, and the last ten nodes isolated."""
    rng = np.random.default_rng(5)
    edge_index = random_edges(rng, num_nodes - 10, num_nodes - 10, num_edges)
    weight = rng.random(num_edges)
    weight[::5] = 0.0
    edge_arrays = {"edge_attr": rng.standard_normal((num_edges, 3)).astype(np.float32), "weight": weight}
    x, y = rng.standard_normal((num_nodes, 5)).astype(np.float32), rng.integers(0, 9, num_nodes)
    return homogeneous_source(edge_index, num_nodes, edge_arrays=edge_arrays, x=x, y=y)


@pytest.mark.parametrize("dependency", [1, 3])
@pytest.mark.parametrize("weight", [None, "weight"])
@pytest.mark.parametrize("fan_out", [1, 3, 10, 40, 64, 300])
def test_labor_at_hubs(fan_out: int, weight: str | None, dependency: int) -> None:
    """Nodes with many neighbours, some of them many times: below the bound are too few, or more than there is room for."""
    rng = np.random.default_rng(fan_out)
    degrees = [30, 64, 65, 70_000 if weight is None else 900, 200, 41, 700, 3000, 50]
    target = np.repeat(np.arange(len(degrees)), degrees)
    source = np.where(target % 2 == 0, rng.integers(9, 2000, len(target)), rng.integers(9, 15, len(target)))
    weights = rng.pareto(0.5, len(target)) * (rng.random(len(target)) < 0.8)
    graph = homogeneous_source(np.stack([source, target]), 2000, edge_arrays={"weight": weights})
    labor = {"batch_dependency": dependency}
    check(graph, "node", list(range(len(degrees))), num_neighbors=[fan_out, 2], batch_size=5, weight=weight, labor=labor)


@pytest.mark.parametrize("weight", [None, "weight"])
@pytest.mark.parametrize("replace", [False, True], ids=["distinct", "replace"])
@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("num_neighbors", FAN_OUTS, ids=str)
def test_hubs_duplicates_loops_and_isolated_nodes(num_neighbors: list[int], edge_dir: str, replace: bool, weight: str | None) -> None:
    source, ids = hub_source(), [59, 3, 3, 25, 49, 0, 25, 11]
    check(
        source, "node", ids, num_neighbors=num_neighbors, batch_size=5, edge_dir=edge_dir, replace=replace, weight=weight, seed=3, epoch=2
    )  # fmt: skip


def test_a_fan_out_above_what_is_compared_one_by_one() -> None:
    """Large fan-outs look repeats up in a table; degree must exceed them for a draw to happen at all."""
    source = homogeneous_source(np.stack([np.arange(1000) % 200, np.zeros(1000, np.int64)]), 200)
    for fan_out in (31, 32, 33, 64, 65, 500, 999):
        check(source, "node", [0, 1], num_neighbors=[fan_out, 2], batch_size=2)


@pytest.mark.parametrize("replace", [False, True], ids=["distinct", "replace"])
def test_weights_over_a_huge_range(replace: bool) -> None:
    """One edge holds nearly all the weight: the others are reached only after 32 redraws."""
    weight = np.full(40, 1e-30, np.float64)
    weight[[3, 17, 20]] = 1e30, 1e-5, 0.0
    weight[30:] = np.float64(2.0) ** -np.arange(10, 20)
    source = homogeneous_source(np.stack([np.arange(40), np.full(40, 2)]), 50, edge_arrays={"weight": weight})
    for fan_out in (1, 2, 5, 38, 39, 40):
        check(source, "node", [2] * 3, num_neighbors=[fan_out, 1], batch_size=2, weight="weight", replace=replace)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32, np.int64, np.uint8])
def test_weights_of_every_dtype(dtype: Any) -> None:
    rng = np.random.default_rng(1)
    weight = (rng.random(300) * 50).astype(dtype)
    source = homogeneous_source(np.stack([rng.integers(0, 20, 300), rng.integers(0, 20, 300)]), 20, edge_arrays={"weight": weight})
    check(source, "node", list(range(20)), num_neighbors=[3, 2], batch_size=8, weight="weight")


def test_all_weights_zero() -> None:
    source = homogeneous_source(np.array([[1, 2, 0], [0, 0, 1]]), 4, edge_arrays={"weight": np.zeros(3, np.float32)})
    for replace in (False, True):
        (batch,) = check(source, "node", [0, 1], num_neighbors=[2, -1], batch_size=2, weight="weight", replace=replace)
        assert batch.edge_index.shape == (2, 0)


def test_prefixes_of_prefixes_stay_apart() -> None:
    # Along out-edges every type is shown as its reverse, and these are four different ones.
    edges = {("a", f"{'rev_' * count}x", "b"): np.array([[0, 1, count % 2], [0, 1, 2]]) for count in range(4)}
    source = typed_source({"a": 2, "b": 3}, edges)
    for batch in check(source, "a", [1, 0], num_neighbors=[2], batch_size=1, edge_dir="out"):
        assert {t[1] for t in batch.edge_types} == {"rev_x", "x", "rev_rev_rev_x", "rev_rev_x"}


def test_types_without_nodes_and_edges() -> None:
    user, item, none = "user", "item", "none"
    edges = {
        (user, "to", item): np.array([[0, 1, 1], [0, 0, 1]]),
        (item, "rev_to", user): np.array([[0, 0, 1], [0, 1, 1]]),
        (none, "to", user): np.empty((2, 0), np.int64),
        (user, "knows", user): np.empty((2, 0), np.int64),
    }
    x = np.arange(2, dtype=np.float32).reshape(2, 1)
    source = typed_source({user: 2, item: 3, none: 0}, edges, {user: {"x": x}, none: {"x": x[:0]}})
    for edge_dir in ("in", "out"):
        batches = check(source, item, [2, 0, 1], num_neighbors=[2, 2], batch_size=2, edge_dir=edge_dir)
        assert batches[0][none].n_id.shape == (0,) and batches[0][none].x.shape == (0, 1)


def test_no_input_nodes_give_no_batches() -> None:
    assert check(hub_source(), "node", [], num_neighbors=[2], batch_size=4) == []


@pytest.mark.parametrize("what", ["ids", "mask", "all", "split"])
def test_the_name_of_the_stream(what: str) -> None:
    """The same nodes, asked for in different words, are different loaders; each is what the page says."""
    source = hub_source()
    mask = np.zeros(60, bool)
    mask[::2] = True
    data: Any = to_pyg(source)
    data.train_mask = torch.tensor(mask)
    source.schema = GraphSchema.homogeneous(
        60,
        700,
        {**source.schema.node_types["node"].arrays, "train_mask": spec_of(mask)},
        source.schema.edge_types["node", "to", "node"].arrays,
    )
    source.node_arrays["node"]["train_mask"] = mask
    ids = np.flatnonzero(mask)
    given: Any = {"ids": ids, "mask": mask, "all": None, "split": "train"}[what]
    stream = {"ids": "ids", "mask": "ids", "all": "all", "split": "train"}[what]
    options: dict[str, Any] = {"num_neighbors": [2, 2], "batch_size": 16, "seed": 8}
    with GraphLoader.from_pyg(data, input_nodes=given, with_edge=True, progress=False, **options) as loader:
        got = list(loader)
    nodes = list(range(60)) if what == "all" else ids.tolist()
    expected = expected_epoch(source, input_type="node", input_nodes=nodes, stream=stream, shuffle=what == "split", **options)
    for batch, wanted in zip(got, expected, strict=True):
        if what == "mask":  # as with PyG, the node behind each place of the mask
            wanted.input_id = torch.tensor(ids)[wanted.input_id]
        same(batch, wanted)


def test_sample_has_a_stream_of_its_own() -> None:
    source = hub_source()
    with GraphLoader.from_pyg(to_pyg(source), num_neighbors=[3, 2], batch_size=4, seed=9, with_edge=True, progress=False) as loader:
        got = loader.sample([25, 3, 25], epoch=4, index=7)
    stream = reference_sampler.fold(reference_sampler.fold(reference_sampler.fold(0, 1), 9), reference_sampler.text("node/node/all/sample"))
    key = reference_sampler.fold(reference_sampler.fold(reference_sampler.fold(stream, 4), 1), 7)
    fan_outs = {("node", "to", "node"): [3, 2]}
    sampled = reference_sampler.sample(to_reference(source), key, "node", [25, 3, 25], range(3), fan_outs)
    same(got, expected_batch(source, sampled, "node", "in", True))


def test_the_reference_is_plain_python() -> None:
    """It judges because it shares nothing with what it judges."""
    text = inspect.getsource(reference_sampler)
    assert [line for line in text.splitlines() if line.startswith(("import ", "from "))] == ["import math"]


@pytest.mark.parametrize("name", GOLDEN_CASES)
def test_golden_digest(name: str) -> None:
    """Batches do not change from one version to the next, nor from one machine to another.

    If the stream's version was raised on purpose, write the digests that this test shows into ``golden.json``.
    """
    batches = check(golden_source(), "user", GOLDEN_INPUT_NODES, **GOLDEN_OPTIONS, **GOLDEN_CASES[name])
    assert len(batches) == 10
    assert {name: digest(batches)} == {name: json.loads((Path(__file__).parent / "golden.json").read_text()).get(name)}


_DIGESTS = """
import json
from tests.helpers.batches import digest
from tests.helpers.golden import GOLDEN_CASES, as_options, golden_epoch
print(json.dumps({name: digest(golden_epoch(as_options(case))) for name, case in GOLDEN_CASES.items()}))
"""


@pytest.mark.slow(40)
def test_golden_digests_of_any_processor() -> None:
    """Kernels that use nothing but what each processor of a kind has give the same batches as those for the one at hand."""
    processor = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    environment = {**os.environ, **processor, "PYTHONPATH": SEARCH_PATH, "GNNKIT_PROGRESS": "off"}
    found = subprocess.run([sys.executable, "-c", _DIGESTS], env=environment, capture_output=True, text=True, timeout=280, check=True)
    golden = json.loads((Path(__file__).parent / "golden.json").read_text())
    assert json.loads(found.stdout) == {name: golden[name] for name in GOLDEN_CASES}

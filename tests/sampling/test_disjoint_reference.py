"""Disjoint, temporal, bidirectional and induced batches, number for number as the program written from the specification says."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnkit.datasets import EdgeTypeSchema, GraphSchema, NodeTypeSchema
from tests import reference_rooted
from tests.helpers.chi_square import check_counts
from tests.helpers.graphs import ArraySource, homogeneous_source, random_edges, random_source, spec_of, typed_source
from tests.sampling.rooted import check, epoch_of


def with_times(source: ArraySource, rng: np.random.Generator, level: str) -> ArraySource:
    """Times with many ties, some below 0: on every node type with nodes but one, or on every edge type but one."""
    types = list(source.schema.node_types if level == "nodes" else source.schema.edge_types)
    left_out = types[int(rng.integers(len(types)))] if len(types) > 1 else None
    for arrays in (*source.node_arrays.values(), *source.edge_arrays.values()):
        arrays.pop("time", None)
    for t in types:
        if t != left_out:
            count = source.schema.node_types[t].num_nodes if level == "nodes" else source.schema.edge_types[t].num_edges
            owner = source.node_arrays if level == "nodes" else source.edge_arrays
            owner.setdefault(t, {})["time"] = rng.integers(-3, 4, count)
    schema = source.schema
    source.schema = GraphSchema(
        {t: NodeTypeSchema(s.num_nodes, _specs(source.node_arrays.get(t, {}))) for t, s in schema.node_types.items()},
        {t: EdgeTypeSchema(s.num_edges, _specs(source.edge_arrays.get(t, {}))) for t, s in schema.edge_types.items()},
        schema.is_homogeneous,
    )
    return source


def _specs(arrays: dict[str, Any]) -> dict[str, Any]:
    return {name: spec_of(values) for name, values in arrays.items()}


def homogeneous(rng: np.random.Generator) -> ArraySource:
    num_nodes, num_edges = int(rng.integers(1, 30)), int(rng.integers(20, 120))
    weight = rng.integers(0, 4, num_edges)
    return homogeneous_source(
        random_edges(rng, num_nodes, num_nodes, num_edges), num_nodes, edge_arrays={"weight": weight}, x=rng.standard_normal((num_nodes, 2))
    )


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """A random graph and random options for it."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    source = random_source(rng) if draw(st.integers(0, 3)) else homogeneous(rng)
    input_type = draw(st.sampled_from([t for t, s in source.schema.node_types.items() if s.num_nodes]))
    num_nodes, hops = source.schema.node_types[input_type].num_nodes, draw(st.integers(1, 3))
    fan_out = st.lists(st.integers(-1, 5) | st.just(0), min_size=hops, max_size=hops)
    ids = draw(st.lists(st.integers(0, num_nodes - 1), max_size=12))
    case: dict[str, Any] = {
        "source": source,
        "input_type": input_type,
        "ids": ids,
        "num_neighbors": {edge_type: draw(fan_out) for edge_type in source.edges} if draw(st.booleans()) else draw(fan_out),
        "batch_size": draw(st.integers(1, 5)),
        "edge_dir": draw(st.sampled_from(["in", "out"])),
        "replace": draw(st.booleans()),
        "weight": draw(st.sampled_from([None, "weight"])),
        "seed": draw(st.integers(0, (1 << 64) - 1)),
    }
    level = draw(st.sampled_from([None, "nodes", "edges"]))
    if level is None:
        return {**case, "disjoint": draw(st.booleans()), "subgraph_type": draw(st.sampled_from(["directional", "induced"]))}
    with_times(source, rng, level)
    if not any("time" in arrays for arrays in (*source.node_arrays.values(), *source.edge_arrays.values())):
        return {**case, "disjoint": True}
    case |= {"time_attr": "time", "temporal_comparison": draw(st.sampled_from(["<=", "<"]))}
    window = draw(st.none() | st.integers(1, 6) | st.lists(st.integers(0, 6), min_size=len(ids), max_size=len(ids)))
    case["time_window"] = torch.tensor(window, dtype=torch.int64) if isinstance(window, list) else window
    if draw(st.booleans()):
        case |= {"temporal_strategy": "last", "replace": False, "weight": None}
    if "time" not in source.node_arrays.get(input_type, {}) or draw(st.booleans()):
        case["input_time"] = torch.tensor(draw(st.lists(st.integers(-5, 5), min_size=len(ids), max_size=len(ids))), dtype=torch.int64)
    return case


@pytest.mark.slow
@settings(max_examples=120, deadline=None, derandomize=True)
@given(cases())
def test_random_graphs(case: dict[str, Any]) -> None:
    check(**case)


def pairs_of_types(seed: int = 0, **sizes: int) -> ArraySource:
    """Types that have a reverse type by name, by being of one type, and by being the only ones that lead back."""
    rng, sizes = np.random.default_rng(seed), {"a": 15, "b": 12, "c": 9, **sizes}
    types = [
        ("a", "to", "b"),
        ("b", "rev_to", "a"),
        ("a", "knows", "a"),
        ("b", "has", "c"),
        ("c", "of", "b"),
        ("c", "x", "c"),
        ("c", "rev_x", "c"),
    ]
    edges = {t: random_edges(rng, sizes[t[0]], sizes[t[2]], 40) for t in types}
    edge_arrays = {t: {"edge_attr": rng.standard_normal((40, 2))} for t in types[:3]}
    return typed_source(sizes, edges, {}, edge_arrays)


@pytest.mark.parametrize("disjoint", [False, True], ids=["shared", "disjoint"])
@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("num_neighbors", [[3, 2], [-1], [0, 0]], ids=str)
def test_bidirectional(num_neighbors: list[int], edge_dir: str, disjoint: bool) -> None:
    options: dict[str, Any] = {"num_neighbors": num_neighbors, "edge_dir": edge_dir, "disjoint": disjoint, "subgraph_type": "bidirectional"}
    for input_type in ("a", "b", "c"):
        check(pairs_of_types(), input_type, [3, 0, 3, 8, 5], batch_size=4, **options)
    check(homogeneous(np.random.default_rng(4)), "node", [0, 0, 1, 2], batch_size=3, replace=True, **options)


def test_each_root_has_the_neighbourhood_that_its_seed_has_alone() -> None:
    """With every neighbour taken nothing is drawn, so the batch of many seeds holds what batches of one seed each hold."""
    rng = np.random.default_rng(9)
    source = homogeneous_source(random_edges(rng, 60, 60, 150), 60)
    ids, options = rng.integers(0, 60, 40).tolist(), {"num_neighbors": [-1, -1]}
    (batch,) = epoch_of(source, "node", ids, batch_size=40, disjoint=True, **options)
    alone = epoch_of(source, "node", ids, batch_size=1, **options)
    row, col = batch.edge_index
    assert batch.batch[row].equal(batch.batch[col]), "no edge leads from one root to another"
    assert batch.n_id[:40].tolist() == ids and batch.batch[:40].tolist() == list(range(40))
    for root, one in enumerate(alone):
        mine = batch.batch == root
        assert batch.n_id[mine].tolist() == one.n_id.tolist()
        assert batch.e_id[mine[row]].tolist() == one.e_id.tolist()


def test_every_root_draws_for_itself() -> None:
    """Copies of one seed draw independently, each neighbour equally often."""
    count, degree = 5000, 10
    source = homogeneous_source(np.stack([np.arange(1, degree + 1), np.zeros(degree, np.int64)]), degree + 1)
    (batch,) = epoch_of(source, "node", [0] * count, num_neighbors=[1], batch_size=count, disjoint=True)
    drawn = batch.n_id[batch.edge_index[0]].numpy() - 1
    check_counts(np.bincount(drawn, minlength=degree))
    check_counts(np.bincount(drawn[:-1] * degree + drawn[1:], minlength=degree * degree))
    (shared,) = epoch_of(source, "node", [0] * count, num_neighbors=[1], batch_size=count)
    assert len(set(shared.n_id[shared.edge_index[0]].tolist())) == 1, "in a shared neighbourhood a node draws the same each time"


def test_one_root_with_nearly_all_nodes() -> None:
    """A root may have many times the nodes of the others, and more than its share of any table."""
    leaves = 20_000
    source = homogeneous_source(np.stack([np.arange(1, leaves + 1), np.zeros(leaves, np.int64)]), leaves + 1)
    (batch,) = epoch_of(source, "node", [*range(5000, 5999), 0], num_neighbors=[-1, -1], batch_size=1000, disjoint=True)
    assert batch.n_id[1000:].tolist() == list(range(1, leaves + 1)) and set(batch.batch[1000:].tolist()) == {999}
    assert batch.edge_index.tolist() == [list(range(1000, 1000 + leaves)), [999] * leaves]


def test_the_reference_is_plain_python() -> None:
    text = inspect.getsource(reference_rooted)
    imports = [line for line in text.splitlines() if line.startswith(("import ", "from "))]
    assert imports == ["from tests.reference_sampler import choose, fold, integer_weights, shown, text"]

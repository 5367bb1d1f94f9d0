"""Expected visits against brute force, and the nodes that parts replicate."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gnnkit import BuildOptions, Store
from gnnkit.errors import PlanError
from gnnkit.storage.arrays import dataset_ids
from gnnkit.storage.partition import assign_parts
from gnnkit.storage.partition.hotness import expected_visits, hot_nodes
from tests.helpers.graphs import homogeneous_source, random_source
from tests.storage.checks import assert_holds, build_store
from tests.storage.partition.build import graph_arrays

NODE, EDGE = "node", ("node", "to", "node")


def exact_visits(source, edge_dir, seeds, num_neighbors):
    """The same expectation with fractions, edge by edge."""
    sizes = {name: t.num_nodes for name, t in source.schema.node_types.items()}
    frontier = {name: [Fraction(0)] * n for name, n in sizes.items()}
    for name, ids in seeds.items():
        for i in ids:
            frontier[name][i] = Fraction(1)
    total = {name: list(values) for name, values in frontier.items()}
    for fan_out in num_neighbors:
        reached = {name: [Fraction(0)] * n for name, n in sizes.items()}
        for (start, _, end), edges in source.edges.items():
            own, other = (end, start) if edge_dir == "in" else (start, end)
            own_ids, other_ids = (edges[1], edges[0]) if edge_dir == "in" else (edges[0], edges[1])
            degree = np.bincount(own_ids, minlength=sizes[own])
            for i, j in zip(own_ids, other_ids, strict=True):
                share = 1 if fan_out < 0 else Fraction(min(fan_out, int(degree[i])), int(degree[i]))
                reached[other][j] += frontier[own][i] * share
        for name in sizes:
            total[name] = [a + b for a, b in zip(total[name], reached[name], strict=True)]
        frontier = reached
    return total


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), edge_dir=st.sampled_from(["in", "out"]), num_neighbors=st.lists(st.integers(-1, 4), max_size=3))
def test_visits_are_those_of_the_exact_expectation(seed, edge_dir, num_neighbors):
    source = random_source(np.random.default_rng(seed), max_nodes=15, max_edges=40)
    sizes = {name: t.num_nodes for name, t in source.schema.node_types.items()}
    seeds = {name: np.unique(np.random.default_rng(seed).integers(0, n, max(n // 2, 1))) for name, n in sizes.items() if n}
    graph = graph_arrays(sizes, source.edges, edge_dir=edge_dir)
    exact = exact_visits(source, edge_dir, seeds, num_neighbors)
    visits = expected_visits(graph, seeds, num_neighbors)
    first = next(name for name in seeds)
    unit = Fraction(int(visits[first][seeds[first][0]])) / exact[first][seeds[first][0]]
    for name in sizes:
        for got, want in zip(visits[name].tolist(), exact[name], strict=True):
            assert abs(got - want * unit) <= max(want, 1) * unit / 10**6


@pytest.mark.parametrize(
    ("num_parts", "edge_dir", "input_nodes"), [(1, "in", "train"), (3, "out", "train"), (1, "in", "valid"), (2, "in", None)]
)
def test_the_hottest_come_first_and_a_level_has_twice_the_visits_of_the_next(tmp_path, num_parts, edge_dir, input_nodes):
    source = random_source(np.random.default_rng(3), max_nodes=40, max_edges=300)
    sizes = {name: t.num_nodes for name, t in source.schema.node_types.items()}
    source.splits = {name: {"train": np.arange(n // 2), "valid": np.arange(n // 2, n, 2)} for name, n in sizes.items()}
    seeds = {name: np.arange(n) if input_nodes is None else source.splits[name][input_nodes] for name, n in sizes.items()}
    options = BuildOptions(num_parts, "random", edge_dir, num_neighbors=(3, 2), order="hotness", input_nodes=input_nodes)
    store = build_store(source, tmp_path / "store", options)
    store.verify()
    assert Store.open(store.path).options.input_nodes == input_nodes
    assert_holds(store, source)
    exact = exact_visits(source, edge_dir, seeds, (3, 2))
    several = 0
    for name in sizes:
        by_level = {}
        for part, counts in enumerate(store.manifest.hotness[name]):
            ids = dataset_ids(store.arrays(), name, part)
            for level, own in enumerate(np.split(ids, np.cumsum(counts)[:-1])):
                by_level.setdefault(level, []).extend(exact[name][i] for i in own)
        found = [values for values in by_level.values() if values]
        several += len(found) > 2
        # Of a node's visits less than a millionth is lost in rounding.
        assert all(max(values) <= 2 * min(values) * (1 + Fraction(1, 10**6)) for values in found)
        assert all(min(first) * (1 + Fraction(1, 10**6)) >= max(second) for first, second in itertools.pairwise(found))
    assert several


def test_a_split_that_no_type_has_is_an_error_with_those_there_are(tmp_path):
    source = homogeneous_source(np.array([[0], [1]]), 2, splits={"train": np.array([0])})
    with pytest.raises(PlanError, match=r"input_nodes='fold3'.*(?s:.*)\['train'\]"):
        build_store(source, tmp_path / "store", BuildOptions(order="hotness", input_nodes="fold3"))
    with pytest.raises(PlanError, match="input_nodes must be a text or None, got 3"):
        BuildOptions(input_nodes=3)


def test_shares_are_rounded_down_once():
    graph = graph_arrays({NODE: 8}, {EDGE: np.stack([np.arange(1, 8), np.zeros(7, np.int64)])})
    visits = expected_visits(graph, {NODE: np.array([0])}, (3,))[NODE].tolist()
    assert visits[1:] == [visits[0] * 3 // 7] * 7


def test_hot_nodes_are_the_hottest_of_other_parts():
    # Part 1 owns 10..19. Node 10 + k is read by k of part 0's nodes: 19 is hottest, 10 is never read.
    source = np.concatenate([np.full(k, 10 + k) for k in range(10)])
    target = np.concatenate([np.arange(k) for k in range(10)])
    graph = graph_arrays({NODE: 20}, {EDGE: np.stack([source, target])})
    assignment = {NODE: np.repeat([0, 1], 10).astype(np.int32)}
    options = BuildOptions(num_parts=2, cache_ratio=0.15, num_neighbors=(-1,))
    (first, second) = hot_nodes(graph, assignment, options)
    assert first[NODE].tolist() == [17, 18, 19]
    assert first[NODE].dtype == np.int64
    assert second[NODE].tolist() == []
    everything = hot_nodes(graph, assignment, BuildOptions(num_parts=2, cache_ratio=1.0, num_neighbors=(-1,)))
    assert everything[0][NODE].tolist() == list(range(11, 20))
    # Only node 2 is trained on: it reads the nodes that have more than two readers.
    trained = hot_nodes(
        graph, assignment, BuildOptions(num_parts=2, cache_ratio=1.0, num_neighbors=(-1,)), {NODE: {"train": np.array([2])}}
    )
    assert trained[0][NODE].tolist() == list(range(13, 20))


@pytest.mark.parametrize(("num_parts", "cache_ratio"), [(1, 0.5), (3, 0.0)])
def test_nothing_is_hot_without_other_parts_or_room(num_parts, cache_ratio):
    graph = graph_arrays({NODE: 9}, {EDGE: np.stack([np.arange(9), np.roll(np.arange(9), 4)])})
    options = BuildOptions(num_parts=num_parts, cache_ratio=cache_ratio)
    assignment = assign_parts(graph.schema, graph, options)
    assert [part[NODE].tolist() for part in hot_nodes(graph, assignment, options)] == [[]] * num_parts


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
@example(seed=3362)  # a split of training without nodes: every node is a seed
def test_hot_nodes_do_not_depend_on_how_the_graph_is_laid_out(seed):
    source = random_source(np.random.default_rng(seed))
    sizes = {name: t.num_nodes for name, t in source.schema.node_types.items()}
    options = BuildOptions(num_parts=min(3, max(sizes.values())), partition="random", seed=seed, cache_ratio=0.4, num_neighbors=(2, 2))
    assignment = assign_parts(source.schema, None, options)
    whole = graph_arrays(sizes, source.edges)
    parted = graph_arrays(sizes, source.edges, assignment=assignment, num_parts=options.num_parts)
    results = [hot_nodes(graph, assignment, options, source.splits) for graph in (whole, parted)]
    for part, (a, b) in enumerate(zip(*results, strict=True)):
        for name, count in sizes.items():
            np.testing.assert_array_equal(a[name], b[name])
            assert len(a[name]) <= 0.4 * count
            assert (np.diff(a[name]) > 0).all()
            assert (assignment[name][a[name]] != part).all()

"""Every partitioner: a valid, balanced, repeatable assignment, whatever the graph looks like."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnkit import BuildOptions
from gnnkit.datasets import GraphSchema, NodeTypeSchema, products_like
from gnnkit.errors import PlanError
from gnnkit.storage.partition import assign_parts, needs_topology
from gnnkit.storage.partition.balance import shuffled_parts
from tests.helpers.graphs import random_source
from tests.storage.partition.build import clustered_edges, graph_arrays

METHODS = ("contiguous", "random", "ldg", "metis", "frequency")
EXACT = ("contiguous", "random", "frequency")
NODE, EDGE = "node", ("node", "to", "node")


def random_graph(seed: int, **keywords):
    source = random_source(np.random.default_rng(seed))
    sizes = {name: t.num_nodes for name, t in source.schema.node_types.items()}
    return source, graph_arrays(sizes, source.edges, **keywords)


def test_which_methods_need_the_edges():
    assert [m for m in METHODS if needs_topology(m)] == ["ldg", "metis", "frequency"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("edge_dir", ["in", "out"])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), num_parts=st.integers(1, 9))
def test_every_node_gets_a_part_and_parts_are_balanced(method, edge_dir, seed, num_parts):
    source, graph = random_graph(seed, edge_dir=edge_dir)
    largest = max(t.num_nodes for t in source.schema.node_types.values())
    options = BuildOptions(num_parts=min(num_parts, largest), partition=method, edge_dir=edge_dir, num_neighbors=(3, -1, 0))
    parts = assign_parts(source.schema, graph, options, splits=source.splits)
    again = assign_parts(source.schema, graph, options, splits=source.splits)
    assert set(parts) == set(source.schema.node_types)
    for name, values in parts.items():
        count = source.schema.node_types[name].num_nodes
        assert values.dtype == np.int32
        assert values.shape == (count,)
        np.testing.assert_array_equal(values, again[name])
        if not count:
            continue
        assert values.min() >= 0
        assert values.max() < options.num_parts
        sizes = np.bincount(values, minlength=options.num_parts)
        if method in EXACT:
            assert sizes.max() - sizes.min() <= 1
        else:
            assert sizes.max() <= max(-(-count // options.num_parts), 1.05 * count / options.num_parts)


@pytest.mark.parametrize("method", ["contiguous", "random"])
def test_methods_without_edges_work_without_a_graph(method):
    schema = GraphSchema({"a": NodeTypeSchema(11), "b": NodeTypeSchema(2), "c": NodeTypeSchema(0)}, {})
    parts = assign_parts(schema, None, BuildOptions(num_parts=4, partition=method))
    assert sorted(parts["a"].tolist()) == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3]
    assert sorted(parts["b"].tolist()) == [0, 1]
    assert parts["c"].shape == (0,)


def test_contiguous_parts_are_ranges():
    schema = GraphSchema.homogeneous(10, 0)
    parts = assign_parts(schema, None, BuildOptions(num_parts=3))[NODE]
    assert parts.tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_random_depends_on_the_seed_and_on_nothing_else():
    def run(seed, **types):
        schema = GraphSchema({name: NodeTypeSchema(n) for name, n in types.items()}, {})
        return assign_parts(schema, None, BuildOptions(num_parts=5, partition="random", seed=seed))

    alone, together = run(7, user=1000), run(7, item=300, user=1000)
    np.testing.assert_array_equal(alone["user"], together["user"])
    assert (run(8, user=1000)["user"] != alone["user"]).mean() > 0.7
    # Stores carry fingerprints of their options: the same options must give the same parts for ever.
    assert hashlib.sha256(alone["user"].tobytes()).hexdigest()[:16] == "26d94ccd468afbfe"


def test_random_is_fisher_and_yates_over_splitmix64():
    mask, golden = 2**64 - 1, 0x9E3779B97F4A7C15

    def mix(z):
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    def plain(key, count, num_parts):
        order = list(range(count))
        for step, last in enumerate(range(count - 1, 0, -1)):
            draw = mix((key + (step + 1) * golden) & mask)
            other = draw * (last + 1) >> 64
            order[last], order[other] = order[other], order[last]
        parts = [0] * count
        base, extra = divmod(count, num_parts)
        sizes = [base + (part < extra) for part in range(num_parts)]
        for node, part in zip(order, np.repeat(range(num_parts), sizes).tolist(), strict=True):
            parts[node] = part
        return parts

    for key, count, num_parts in [(0, 1, 1), (12345, 97, 5), (2**64 - 1, 1000, 7)]:
        assert shuffled_parts(key, count, num_parts).tolist() == plain(key, count, num_parts)


def test_random_parts_are_independent_of_ids():
    parts = assign_parts(GraphSchema.homogeneous(40_000, 0), None, BuildOptions(num_parts=4, partition="random"))[NODE]
    # Neighbouring ids share a part as often as chance has it: 10 000 of 40 000, standard deviation 87.
    assert abs(int((parts[1:] == parts[:-1]).sum()) - 10_000) < 5 * 87
    # Each quarter of the ids has a quarter of each part: standard deviation 37.
    assert np.abs(np.bincount(parts[:10_000]) - 2500).max() < 5 * 38


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("num_nodes", [0, 1, 6])
def test_graphs_without_edges(method, num_nodes):
    graph = graph_arrays({NODE: num_nodes}, {EDGE: np.empty((2, 0), np.int64)})
    num_parts = min(3, max(num_nodes, 1))
    parts = assign_parts(graph.schema, graph, BuildOptions(num_parts=num_parts, partition=method))[NODE]
    assert np.bincount(parts, minlength=num_parts).tolist() == [num_nodes // num_parts] * num_parts


@pytest.mark.parametrize("method", METHODS)
def test_the_stage_is_reported_from_start_to_end(method):
    graph = graph_arrays({NODE: 200}, {EDGE: clustered_edges(np.random.default_rng(0), 200, 4, 6, 0.9)})
    events: list[Any] = []
    assign_parts(graph.schema, graph, BuildOptions(num_parts=2, partition=method), events.append)
    assert [events[0].kind, events[-1].kind] == ["start", "end"]
    assert {(e.stage, e.label) for e in events} == {("partition", f"{method}, 2 parts")}
    done = [e.done for e in events]
    assert done == sorted(done)
    assert events[-1].done == events[-1].total


@pytest.mark.parametrize("method", ["ldg", "metis", "frequency"])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_graph_in_parts_can_be_partitioned_again(method, seed):
    source, whole = random_graph(seed)
    largest = max(t.num_nodes for t in source.schema.node_types.values())
    random = BuildOptions(num_parts=min(3, largest), partition="random", seed=seed)
    old = assign_parts(source.schema, None, random)
    _, parted = random_graph(seed, assignment=old, num_parts=random.num_parts)
    options = BuildOptions(num_parts=min(2, largest), partition=method, num_neighbors=(2, 2))
    parts = assign_parts(source.schema, parted, options)
    for name, t in source.schema.node_types.items():
        assert parts[name].shape == (t.num_nodes,)
        if t.num_nodes:
            assert np.bincount(parts[name]).max() <= max(-(-t.num_nodes // options.num_parts), 1.05 * t.num_nodes / options.num_parts)
    if method == "frequency":
        # Hotness knows dataset ids only: where the nodes were before makes no difference.
        expected = assign_parts(source.schema, whole, options)
        for name in expected:
            np.testing.assert_array_equal(parts[name], expected[name])


@pytest.mark.parametrize("method", ["ldg", "metis", "frequency"])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_reading_in_chunks_makes_no_difference(method, seed):
    source, graph = random_graph(seed)
    largest = max(t.num_nodes for t in source.schema.node_types.values())
    options = BuildOptions(num_parts=min(3, largest), partition=method, num_neighbors=(2, 2))
    at_once = assign_parts(source.schema, graph, options)
    in_chunks = assign_parts(source.schema, replace(graph, chunk_edges=5), options)
    for name in at_once:
        np.testing.assert_array_equal(at_once[name], in_chunks[name])


def cut_share(graph, method, num_parts, **keywords):
    options = BuildOptions(num_parts=num_parts, partition=method, **keywords)
    parts = assign_parts(graph.schema, graph, options)
    ends = [
        (parts[graph.frontier_type(t)].repeat(np.diff(edges.indptr)), parts[graph.neighbor_type(t)][edges.indices])
        for t, (edges,) in graph.edges.items()
    ]
    return sum(np.count_nonzero(own != other) for own, other in ends) / sum(len(own) for own, _ in ends)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("num_parts", [2, 8])
def test_locality_aware_methods_find_hidden_clusters(directed, num_parts):
    rng = np.random.default_rng(1)
    edges = clustered_edges(rng, 8000, 80, 20, 0.8)
    graph = graph_arrays({NODE: 8000}, {EDGE: edges[:, : edges.shape[1] // 2] if directed else edges})
    cuts = {method: cut_share(graph, method, num_parts) for method in ("random", "ldg", "metis")}
    # A fifth of the edges go anywhere: no assignment that keeps the clusters whole cuts less than 0.2 * (1 - 1 / num_parts).
    floor = 0.2 * (1 - 1 / num_parts)
    assert abs(cuts["random"] - (1 - 1 / num_parts)) < 0.02
    assert cuts["ldg"] < 1.5 * floor
    assert cuts["ldg"] < 1.2 * cuts["metis"]
    assert cuts["metis"] < 0.5 * cuts["random"]


def test_ldg_keeps_a_ring_in_arcs():
    ids = np.arange(1000)
    graph = graph_arrays({NODE: 1000}, {EDGE: np.stack([ids, (ids + 1) % 1000])})
    assert cut_share(graph, "ldg", 4) < 0.02


# The share of this graph's edges that is cut where ldg goes through its nodes in the order of their ids alone.
BY_ID = 0.304


def test_ldg_sees_through_a_numbering_with_locality():
    source = products_like(0.004)
    graph = graph_arrays({NODE: source.num_nodes}, {EDGE: np.concatenate(list(source.edge_chunks(EDGE)), axis=1)})
    both = cut_share(graph, "ldg", 4)
    assert both < 0.95 * BY_ID
    assert both < cut_share(graph, "contiguous", 4) < cut_share(graph, "random", 4)


@pytest.mark.parametrize("method", ["ldg", "metis"])
def test_typed_graphs_are_cut_along_their_communities_and_each_type_is_balanced(method):
    # 40 communities of users, items and a rare type, that meet in two bipartite relations only.
    rng = np.random.default_rng(2)
    sizes = {"item": 4000, "shop": 80, "user": 2000}
    community = {name: rng.integers(0, 40, n) for name, n in sizes.items()}
    members = {name: [np.flatnonzero(c == k) for k in range(40)] for name, c in community.items()}

    def relation(source, target, count):
        ends = rng.integers(0, sizes[source], count)
        near = np.array([rng.choice(members[target][k]) if len(members[target][k]) else 0 for k in community[source][ends]])
        return np.stack([ends, np.where(rng.random(count) < 0.85, near, rng.integers(0, sizes[target], count))])

    edges = {("user", "buys", "item"): relation("user", "item", 30_000), ("shop", "sells", "item"): relation("shop", "item", 8000)}
    graph = graph_arrays(sizes, edges)
    options = BuildOptions(num_parts=4, partition=method)
    parts = assign_parts(graph.schema, graph, options)
    for name, count in sizes.items():
        assert np.bincount(parts[name], minlength=4).max() <= max(-(-count // 4), 1.05 * count / 4)
    assert cut_share(graph, method, 4) < 0.5 * cut_share(graph, "random", 4)


def test_frequency_places_nodes_with_the_seeds_that_visit_them():
    # Two stars: seeds 0..9 all read from nodes 20..29, seeds 10..19 from 30..39, with the numbering against it.
    order = np.random.default_rng(3).permutation(20) + 20
    source = np.concatenate([np.repeat(order[:10], 10), np.repeat(order[10:], 10)])
    target = np.concatenate([np.tile(np.arange(10), 10), np.tile(np.arange(10, 20), 10)])
    graph = graph_arrays({NODE: 40}, {EDGE: np.stack([source, target])})
    options = BuildOptions(num_parts=2, partition="frequency", num_neighbors=(5,))
    parts = assign_parts(graph.schema, graph, options, splits={NODE: {"train": np.arange(20)}})[NODE]
    assert parts[:20].tolist() == [0] * 10 + [1] * 10
    assert set(parts[order[:10]].tolist()) == {0}
    assert set(parts[order[10:]].tolist()) == {1}


def test_frequency_gives_contested_room_to_those_who_need_it_most():
    # Seeds 0 and 1 train in part 0, 2 and 3 in part 1. Part 0 has room for two of 4 to 7, all of which it visits most:
    # 4 and 5 twice against once by part 1, 6 and 7 three times against never.
    reads = {4: [0, 0, 2], 5: [1, 1, 3], 6: [0, 1, 1], 7: [0, 0, 1]}
    edges = np.array([[node for node, seeds in reads.items() for _ in seeds], [seed for seeds in reads.values() for seed in seeds]])
    graph = graph_arrays({NODE: 8}, {EDGE: edges})
    options = BuildOptions(num_parts=2, partition="frequency", num_neighbors=(-1,))
    parts = assign_parts(graph.schema, graph, options, splits={NODE: {"train": np.arange(4)}})[NODE]
    assert parts.tolist() == [0, 0, 1, 1, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("splits", "message"),
    [({"nodes": {"train": [0]}}, "unknown node type 'nodes'"), ({NODE: {"train": [3, 12]}}, "ids from 3 to 12, but it has 10 nodes")],
)
def test_splits_that_do_not_fit_are_refused(splits, message):
    graph = graph_arrays({NODE: 10}, {EDGE: np.empty((2, 0), np.int64)})
    with pytest.raises(PlanError, match=message):
        assign_parts(graph.schema, graph, BuildOptions(num_parts=2, partition="frequency"), splits=splits)


def test_metis_without_pymetis_names_the_command(monkeypatch):
    graph = graph_arrays({NODE: 10}, {EDGE: np.array([[0, 1], [1, 2]])})
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(PlanError, match="pip install pymetis"):
        assign_parts(graph.schema, graph, BuildOptions(num_parts=2, partition="metis"))

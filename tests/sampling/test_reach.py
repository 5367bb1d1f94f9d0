"""What kinds of batches ask of a graph: the answers are those of plain Python, wherever the parts are."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gnnkit import BuildOptions, Store
from gnnkit.errors import StoreError
from gnnkit.plan import NeighborSampling
from gnnkit.sampling.graph_access import LocalGraphAccess
from gnnkit.sampling.owners import BadRequest, Expansion, Question
from gnnkit.sampling.remote import PartMap, RemoteGraphAccess
from gnnkit.sampling.tables import GraphTables
from gnnkit.schema import find_reverse
from tests import reference_rooted, reference_sampler
from tests.cluster.parts.several_hosts import (
    OwnersHere,
    host_of,
    inputs_of,
    part_of_graph,
    received,
    receiver,
    request_of,
    sampled,
    sampler_on,
    spread_samplers,
    walked,
)
from tests.helpers.batches import to_reference
from tests.helpers.graphs import ArraySource, homogeneous_source, random_source, stored

numbers = itertools.count()


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    source = random_source(rng, max_nodes=25, max_edges=80)
    for arrays in (*source.node_arrays.values(), *source.edge_arrays.values()):
        if "time" in arrays:
            arrays["time"] //= 200  # many ties
    timed = any("time" in arrays for arrays in (*source.node_arrays.values(), *source.edge_arrays.values()))
    num_parts = draw(st.integers(1, min(4, max(s.num_nodes for s in source.schema.node_types.values()))))
    hosts = draw(st.lists(st.integers(0, 2), min_size=num_parts, max_size=num_parts))
    options = BuildOptions(
        num_parts,
        draw(st.sampled_from(["contiguous", "random"])),
        draw(st.sampled_from(["in", "out"])),
        with_edge=True,
        weight=draw(st.sampled_from([None, "weight"])),
        time_attr="time" if timed and draw(st.booleans()) else None,
    )
    placement = {host: tuple(part for part in range(num_parts) if hosts[part] == host) for host in range(3)}
    return {"source": source, "options": options, "placement": placement, "seed": draw(st.integers(0, 1 << 32))}


def reaches(store: Store, placement: dict[int, tuple[int, ...]], *, weighted: bool) -> list[LocalGraphAccess | RemoteGraphAccess]:
    """One for the whole graph on one host, and one for each of several hosts."""
    graph = store.arrays()
    tables = {host: GraphTables(part_of_graph(graph, parts), weighted) for host, parts in placement.items()}
    found: list[LocalGraphAccess | RemoteGraphAccess] = [LocalGraphAccess(GraphTables(graph, weighted), True)]
    for here, parts in placement.items():
        owners = OwnersHere(graph, {host: placement[host] for host in placement if host != here}, weighted=weighted)
        where = PartMap.of(graph.num_parts, here, parts, {host: placement[host] for host in placement if host != here})
        found.append(RemoteGraphAccess(tables[here], True, where, owners))
    return found


class Truth:
    """The graph in plain lists; nodes by the dataset's ids."""

    def __init__(self, source: ArraySource, options: BuildOptions) -> None:
        self.graph, self.options = to_reference(source), options
        self.near, self.far = (1, 0) if options.edge_dir == "in" else (0, 1)
        self.types, self.edge_types = sorted(source.schema.node_types), sorted(source.edges)
        self.sizes = {t: source.schema.node_types[t].num_nodes for t in self.types}
        self.listed = {
            t: reference_rooted.listed(self.graph, t, self.near, self.far, options.time_attr) for t in self.edge_types
        }  # fmt: skip

    def other(self, edge_type: Any, edge: int) -> int:
        end: int = self.graph["edges"][edge_type]["ends"][edge][self.far]
        return end

    def drawn(self, edge_type: Any, root: int, v: int, limits: tuple[int, int] | None, expansion: Expansion) -> list[int]:
        """The edges that a node draws."""
        edges, k = self.listed[edge_type].get(v, []), int(expansion.fan_outs[self.edge_types.index(edge_type)])
        times = {edge: reference_rooted.time_of(self.graph, edge_type, edge, self.far, self.options.time_attr) for edge in edges}
        has_times = self.options.time_attr is not None and None not in times.values()
        if limits is not None and has_times:
            edges = [edge for edge in edges if limits[0] <= times[edge] <= limits[1]]
        if expansion.last and has_times and k >= 0:
            return edges[max(0, len(edges) - k) :]
        rows, weights = self.graph["edges"][edge_type]["rows"], None
        if self.options.weight is not None:
            whole = reference_sampler.integer_weights(rows["weight"])
            weights = [whole[edge] for edge in edges]
        key = reference_sampler.fold(reference_sampler.fold(expansion.key, expansion.hop), reference_sampler.text("__".join(edge_type)))
        key = reference_sampler.fold(reference_sampler.fold(key, root), v)
        return [edges[pick] for pick in reference_sampler.choose(key, len(edges), k, expansion.replace, weights)]


def dataset_ids(store: Store, node_type: str, ids: Any) -> list[int]:
    """Store ids as the dataset's."""
    count = store.schema.node_types[node_type].num_nodes
    back = np.empty(count, np.int64)
    back[store.to_store_ids(node_type, np.arange(count))] = np.arange(count)
    found: list[int] = back[np.asarray(ids, np.int64)].tolist()
    return found


def edge_ids(store: Store, edge_type: Any, positions: Any) -> list[int]:
    ids = np.concatenate([np.asarray(part.edge_id, np.int64) for part in store.arrays().edges[edge_type]])
    found: list[int] = ids[np.asarray(positions, np.int64)].tolist()
    return found


@pytest.mark.slow
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cases())
def test_random_graphs_on_random_hosts(tmp_path: Path, case: dict[str, Any]) -> None:
    source, options = case["source"], case["options"]
    store, truth = stored(source, tmp_path / str(next(numbers)), options), Truth(source, options)
    rng = np.random.default_rng(case["seed"])
    asked = {t: rng.integers(0, truth.sizes[t], 9) for t in truth.types if truth.sizes[t]}
    roots = {t: rng.integers(0, 4, 9) for t in asked}
    times = {t: rng.integers(-1, 6, 9) for t in asked} if options.time_attr else None
    for reach in reaches(store, case["placement"], weighted=options.weight is not None):
        check_expand(reach, store, truth, asked, roots, times, np.random.default_rng(case["seed"]))
        check_questions(reach, store, truth, asked, roots)
    check_batches(store, case["placement"], asked, rng)


def check_batches(store: Store, placement: dict[int, tuple[int, ...]], asked: Any, rng: np.random.Generator) -> None:
    """Batches of the kinds that ask: the same on one host, on several, and where only their structure travels."""
    options, node_type = store.options, inputs_of(store.arrays()).node_type
    for shape in ("directional", "bidirectional", "induced"):
        timed = options.time_attr is not None and shape != "induced"
        if shape == "bidirectional" and any(find_reverse(t, store.schema.edge_types) is None for t in store.schema.edge_types):
            continue
        sampling = NeighborSampling(
            {t: tuple(rng.integers(-1, 4, 2).tolist()) for t in store.schema.edge_types},
            edge_dir=options.edge_dir,
            weight=options.weight,
            with_edge=True,
            disjoint=bool(rng.random() < 0.7),
            subgraph_type=shape,
            time_attr=options.time_attr if timed else None,
        )
        request = request_of(int(rng.integers(1 << 62)), asked[node_type], **({"time": rng.integers(-1, 6, 9)} if timed else {}))
        want = sampled(sampler_on(store.arrays(), sampling), request)
        for sampler, _ in spread_samplers(store.arrays(), sampling, placement).values():
            assert sampled(sampler, request) == want
        walker = sampler_on(store.arrays(), sampling, walks_only=True)
        assert sampled(receiver(store.arrays(), sampling), received(walked(walker, request), 0.0)) == want


def check_expand(reach: Any, store: Store, truth: Truth, asked: Any, roots: Any, times: Any, rng: np.random.Generator) -> None:
    ids = {t: store.to_store_ids(name, asked[name]).astype(np.int64) for t, name in enumerate(truth.types) if name in asked}
    last = times is not None and truth.options.weight is None and bool(rng.random() < 0.5)
    since = {} if times is None else {name: values - rng.integers(-1, 9, len(values)) for name, values in times.items()}
    by_index = {t: name for t, name in enumerate(truth.types) if name in asked}
    expansion = Expansion(
        int(rng.integers(1 << 62)),
        int(rng.integers(3)),
        rng.integers(-1, 5, len(truth.edge_types)),
        ids,
        not last and bool(rng.random() < 0.5),
        truth.options.weight is not None,
        last,
        {t: roots[name] for t, name in by_index.items()},
        None if times is None else {t: times[name] for t, name in by_index.items()},
        None if times is None else {t: since[name] for t, name in by_index.items()},
    )
    answer = reach.expand(expansion)
    for r, edge_type in enumerate(truth.edge_types):
        frontier = edge_type[2 * truth.near]
        if frontier not in asked or expansion.fan_outs[r] == 0:
            assert r not in answer
            continue
        wanted = [
            truth.drawn(
                edge_type, int(root), int(v), None if times is None else (int(since[frontier][i]), int(times[frontier][i])), expansion
            )
            for i, (root, v) in enumerate(zip(roots[frontier], asked[frontier], strict=True))
        ]
        picks = answer[r]
        assert picks.counts.tolist() == list(map(len, wanted))
        assert edge_ids(store, edge_type, picks.positions) == [edge for edges in wanted for edge in edges]
        others = [truth.other(edge_type, edge) for edges in wanted for edge in edges]
        assert dataset_ids(store, edge_type[2 * truth.far], picks.neighbors) == others


def check_questions(reach: Any, store: Store, truth: Truth, asked: Any, roots: Any) -> None:
    """Degrees, single edges, edges among members, weights and rows."""
    for r, edge_type in enumerate(truth.edge_types):
        near, far = edge_type[2 * truth.near], edge_type[2 * truth.far]
        if near not in asked or far not in asked:
            continue
        nodes, members = (store.to_store_ids(t, asked[t]).astype(np.int64) for t in (near, far))
        ends = {tuple(ends) for ends in truth.graph["edges"][edge_type]["ends"]}
        pairs = [(v, u) if truth.near == 0 else (u, v) for v, u in zip(asked[near], asked[far], strict=True)]
        assert reach.has_edges(r, nodes, members).tolist() == [pair in ends for pair in pairs]
        same_end = [q for q, other in enumerate(truth.edge_types) if other[2 * truth.near] == near]
        degrees = [sum(len(truth.listed[truth.edge_types[q]].get(v, [])) for q in same_end) for v in asked[near].tolist()]
        assert reach.degrees(truth.types.index(near), nodes, same_end).tolist() == degrees
        assert reach.degrees(truth.types.index(near), nodes, []).tolist() == [0] * len(nodes)
        for of_nodes, of_members in ((roots[near], roots[far]), (None, None)):
            places, wanted = {}, []
            for place, u in enumerate(asked[far].tolist()):
                places.setdefault((0 if of_members is None else int(of_members[place]), u), place)
            for i, v in enumerate(asked[near].tolist()):
                root = 0 if of_nodes is None else int(of_nodes[i])
                found = [(edge, places.get((root, truth.other(edge_type, edge)))) for edge in truth.listed[edge_type].get(v, [])]
                wanted.append([(edge, place) for edge, place in found if place is not None])
            picks = reach.induce(r, nodes, members, of_nodes, of_members)
            assert picks.counts.tolist() == list(map(len, wanted))
            assert picks.neighbors.tolist() == [place for edges in wanted for _, place in edges]
            assert edge_ids(store, edge_type, picks.positions) == [edge for edges in wanted for edge, _ in edges]
        if truth.options.weight is not None:
            whole = reference_sampler.integer_weights(truth.graph["edges"][edge_type]["rows"]["weight"])
            weights = [whole[edge] for v in asked[near].tolist() for edge in truth.listed[edge_type].get(v, []) if whole[edge]]
            assert reach.weights(r, nodes).tolist() == weights
        for name, values in truth.graph["nodes"][near]["rows"].items():
            assert reach.rows(truth.types.index(near), name, nodes).tolist() == [values[v] for v in asked[near].tolist()]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    ring = np.stack([np.arange(30), (np.arange(30) + 1) % 30])
    return stored(homogeneous_source(ring, 30, x=np.arange(30.0)), tmp_path_factory.mktemp("reach") / "ring", BuildOptions(3))


@pytest.mark.parametrize("rooted", [False, True], ids=["shared", "rooted"])
def test_edges_among_more_nodes_than_there_was_room_for(store: Store, rooted: bool) -> None:
    """Room for edges grows as they are found, and what was found before stays."""
    hub = np.stack([np.tile(np.arange(400), 3), np.zeros(1200, np.int64)])
    tree = stored(homogeneous_source(hub, 400), store.path.parent / f"hub-{rooted}", BuildOptions(1))
    reach, nodes = LocalGraphAccess(GraphTables(tree.arrays(), False), True), np.array([5, 0, 7, 0])
    members, roots = np.arange(400), np.zeros(4, np.int64)
    picks = reach.induce(0, nodes, members, *((roots, np.zeros(400, np.int64)) if rooted else (None, None)))
    assert picks.counts.tolist() == [0, 1200, 0, 1200]
    assert picks.neighbors.tolist() == np.tile(np.arange(400), 6).tolist()


def test_edges_among_many_nodes_come_in_pieces(store: Store) -> None:
    """Others have their turn between two pieces, and the answer is that of one piece."""
    pauses: list[int] = []
    owner = host_of(store.arrays(), (0, 1, 2), lambda: pauses.append(1))
    nodes, members = np.random.default_rng(0).permutation(np.arange(150_000) % 30), np.arange(30)
    roots, of_members = np.arange(len(nodes)) % 2, np.arange(30) % 2
    answer = owner.answer(Question("induce", (0,), nodes, members, roots, of_members, wants_position=True))
    assert len(pauses) == 2
    answer = {name: values.copy() for name, values in answer.items()}
    one = []
    for v, root in ((v, root) for v in range(30) for root in range(2)):
        found = owner.answer(Question("induce", (0,), np.array([v]), members, np.array([root]), of_members, wants_position=True))
        one.append({name: values.copy() for name, values in found.items()})
    picked = [one[2 * v + root] for v, root in zip(nodes.tolist(), roots.tolist(), strict=True)]
    for name in ("counts", "neighbors", "positions"):
        assert np.array_equal(answer[name], np.concatenate([each[name] for each in picked]))


@pytest.mark.parametrize(
    "question",
    [
        Question("induce", (0,), np.array([1, 2]), np.array([3]), np.array([0]), np.array([0])),
        Question("induce", (0,), np.array([1, 2]), np.array([3]), np.array([0, 1])),
        Question("induce", (0,), np.array([1]), np.array([3]), other_roots=np.array([0])),
        Question("induce", (1,), np.array([1]), np.array([3])),
        Question("induce", (), np.array([1]), np.array([3])),
        Question("has_edges", (0,), np.array([1, 2]), np.array([3])),
        Question("degrees", (0,), np.array([-1])),
        Question("degrees", (0,), np.array([30])),
    ],
    ids=str,
)
def test_a_question_that_does_not_fit_the_graph(store: Store, question: Question) -> None:
    owner = host_of(store.arrays(), (0, 1, 2))
    with pytest.raises(BadRequest):
        owner.answer(question)


def test_a_question_about_parts_that_are_elsewhere(store: Store) -> None:
    owner = host_of(store.arrays(), (1,))
    with pytest.raises(BadRequest):
        owner.answer(Question("degrees", (0,), np.array([0])))
    assert owner.answer(Question("degrees", (0,), np.array([10, 19])))["degrees"].tolist() == [1, 1]


def test_rows_of_a_node_that_does_not_exist(store: Store) -> None:
    for node in (-1, 30):
        with pytest.raises(StoreError, match="damaged"):
            LocalGraphAccess(GraphTables(store.arrays(), False), False).rows(0, "x", np.array([node]))

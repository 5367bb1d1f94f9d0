"""Personalised PageRank: the values that others compute, the fixtures of GiGL's typed one, and wrong input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import networkx
import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gnnkit import PPR, GraphLoader, LoaderPlan
from gnnkit.datasets import EdgeTypeSchema, GraphSchema, NodeTypeSchema
from gnnkit.errors import PlanError
from gnnkit.plan.sampling import EdgeUse
from tests.helpers.batches import to_pyg
from tests.helpers.graphs import homogeneous_source

USER, STORY = "user", "story"
VIEWS, SEEN = (USER, "views", STORY), (STORY, "seen_by", USER)
# GiGL's example: three users and three stories.
VIEWED = {0: [0, 1], 1: [1, 2], 2: [0, 2]}
SEEN_BY = {0: [0, 2], 1: [0, 1], 2: [1, 2]}
# GiGL's tolerance for eps=1e-6.
TOLERANCE = 2e-6


def edges_of(neighbors: Mapping[int, list[int]]) -> torch.Tensor:
    return torch.tensor([(u, v) for u, targets in neighbors.items() for v in targets]).T


def typed(**more: torch.Tensor) -> HeteroData:
    """The example; ``more`` are further edge types from users to stories."""
    data = HeteroData()
    data[USER].num_nodes = data[STORY].num_nodes = 3
    data[VIEWS].edge_index, data[SEEN].edge_index = edges_of(VIEWED), edges_of(SEEN_BY)
    for relation, edge_index in more.items():
        data[USER, relation, STORY].edge_index = edge_index
    return data


def batches(data: Data | HeteroData, ppr: PPR, **options: Any) -> list[Any]:
    with GraphLoader.from_pyg(data, sampler=ppr, progress=False, **options) as loader:
        return list(loader)


def scores(batch: Any, store: Any, ids: torch.Tensor) -> list[dict[int, float]]:
    """{node: score} of each seed."""
    found: list[dict[int, float]] = [{} for _ in range(len(batch.input_id if isinstance(batch, Data) else ids))]
    for (seed, node), attribute in zip(store.edge_index.T.tolist(), store.edge_attr.tolist(), strict=True):
        found[seed][int(ids[node])] = attribute[0]
    return found


def pagerank(edges: Any, seed: Any, alpha: float) -> dict[Any, float]:
    """NetworkX's, which calls the probability of going on ``alpha``; parallel edges count each."""
    graph = networkx.MultiDiGraph()
    graph.add_edges_from(edges)
    found: dict[Any, float] = networkx.pagerank(graph, 1 - alpha, {seed: 1.0}, max_iter=1000, tol=1e-12)
    return found


# Against NetworkX ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_the_pagerank_of_networkx(edge_dir: str) -> None:
    rng = np.random.default_rng(1)
    # Everybody has an edge in and one out; parallel edges and self loops among the others.
    edge_index = np.concatenate([np.stack([np.arange(30), (np.arange(30) + 1) % 30]), rng.integers(0, 30, (2, 90))], axis=1)
    ppr = PPR(alpha=0.25, eps=1e-7, max_ppr_nodes=30)
    (batch,) = batches(to_pyg(homogeneous_source(edge_index, 30)), ppr, batch_size=30, edge_dir=edge_dir)
    walked = edge_index.T if edge_dir == "out" else edge_index[::-1].T
    for seed, found in enumerate(scores(batch, batch, batch.n_id)):
        expected = pagerank(map(tuple, walked.tolist()), seed, 0.25)
        assert found.keys() == expected.keys()
        assert found == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("topup", [False, True])
def test_the_pagerank_of_networkx_in_a_typed_graph(edge_dir: str, topup: bool) -> None:
    ppr = PPR(alpha=0.5, eps=1e-6, max_ppr_nodes=10, enable_residual_topup=topup)
    (batch,) = batches(typed(), ppr, input_nodes=USER, batch_size=3, edge_dir=edge_dir)
    edges = [((USER, u), (STORY, v)) for u, found in VIEWED.items() for v in found]
    edges += [((STORY, u), (USER, v)) for u, found in SEEN_BY.items() for v in found]
    if edge_dir == "in":
        edges = [(v, u) for u, v in edges]
    for node_type in (USER, STORY):
        store = batch[USER, "ppr", node_type]
        for seed, found in enumerate(scores(batch, store, batch[node_type].n_id)):
            expected = {v: p for (t, v), p in pagerank(edges, (USER, seed), 0.5).items() if t == node_type}
            assert found == pytest.approx(expected, abs=TOLERANCE)


# What a seed keeps -----------------------------------------------------------------------------------------------------------


def star(num_leaves: int) -> Data:
    """Node 0 draws from nodes 1, 2, ..., which draw from nobody."""
    return Data(
        edge_index=torch.stack([torch.arange(1, num_leaves + 1), torch.zeros(num_leaves, dtype=torch.int64)]), num_nodes=num_leaves + 1
    )


def test_sinks_absorb_mass() -> None:
    """Half of the mass stays at the seed, and what its neighbours get comes back to nobody: each keeps all of alpha * (1 - alpha) / 4."""
    (batch,) = batches(star(4), PPR(alpha=0.5), input_nodes=torch.tensor([0]), batch_size=1)
    assert batch.n_id.tolist() == [0, 1, 2, 3, 4] and batch.edge_index.tolist() == [[0] * 5, list(range(5))]
    assert batch.edge_attr.tolist() == [[0.5, 1.0]] + [[0.0625, 0.5]] * 4
    assert batch.num_sampled_nodes == [1, 4] and batch.num_sampled_edges == [5]


def test_hops_and_scores_along_a_path() -> None:
    # 0 <- 1 <- 2 <- 3: each passes half on.
    data = Data(edge_index=torch.tensor([[1, 2, 3], [0, 1, 2]]), num_nodes=4)
    (batch,) = batches(data, PPR(alpha=0.5), input_nodes=torch.tensor([0]), batch_size=1)
    assert batch.edge_attr.tolist() == [[0.5, 1.0], [0.25, 0.5], [0.125, pytest.approx(1 / 3)], [0.0625, 0.25]]


def test_hubs_draw_without_replacement_and_share_with_whom_they_drew() -> None:
    ppr = PPR(alpha=0.5, num_neighbors_per_hop=8, max_ppr_nodes=99)
    first, second = batches(star(60), ppr, input_nodes=torch.tensor([0, 0, 0]), batch_size=2)
    nodes = first.n_id[2:].tolist()
    assert len(nodes) == len(set(nodes)) == 8 and first.edge_attr[:, 0].tolist() == ([0.5] + [0.5 * 0.5 / 8] * 8) * 2
    # The same node draws the same in a batch, and anew in the next.
    assert first.edge_index[1, 1:9].equal(first.edge_index[1, 10:]) and set(second.n_id.tolist()) != set(first.n_id.tolist())


def test_residuals_fill_up_where_scores_do_not() -> None:
    """With a large eps only the seed is followed: its neighbours have residuals and no score."""
    words: dict[str, Any] = {"input_nodes": torch.tensor([0]), "batch_size": 1}
    data = Data(edge_index=torch.tensor([[1, 2, 3, 0, 0, 0], [0, 0, 0, 1, 2, 3]]), num_nodes=4)
    (batch,) = batches(data, PPR(alpha=0.5, eps=0.9, enable_residual_topup=False), **words)
    assert batch.n_id.tolist() == [0] and batch.edge_attr.tolist() == [[0.5, 1.0]]
    (batch,) = batches(data, PPR(alpha=0.5, eps=0.9, max_ppr_nodes=3), **words)
    assert batch.n_id.tolist() == [0, 1, 2]
    assert batch.edge_attr.flatten().tolist() == pytest.approx([0.5, 1.0, 0.25 / 3, 0.5, 0.25 / 3, 0.5])
    (batch,) = batches(data, PPR(max_ppr_nodes=0), **words)
    assert batch.n_id.tolist() == [0] and batch.edge_attr.shape == (0, 2) and batch.edge_index.shape == (2, 0)


def test_rounds_are_counted() -> None:
    data = Data(edge_index=torch.tensor([[1, 2, 3, 4], [0, 1, 2, 3]]), num_nodes=5)
    for rounds, reached in ((1, 2), (2, 3), (None, 5)):
        (batch,) = batches(data, PPR(max_fetch_iterations=rounds), input_nodes=torch.tensor([0]), batch_size=1)
        assert batch.n_id.tolist() == list(range(reached))


# Types -----------------------------------------------------------------------------------------------------------------------


def test_labels_are_never_walked_along() -> None:
    """The only way from user 2 to story 7 is a label."""
    data = typed(views_gigl_positive=torch.tensor([[2], [7]]))
    data[STORY].num_nodes = 8
    (batch,) = batches(data, PPR(eps=1e-6), input_nodes=USER, batch_size=3, edge_dir="out")
    assert 7 not in batch[STORY].n_id.tolist() and set(batch.edge_types) == {(USER, "ppr", STORY), (USER, "ppr", USER)}
    with pytest.raises(PlanError, match="non-traversable edge types.*views_gigl_positive"):
        batches(data, PPR(edge_types=[(USER, "views_gigl_positive", STORY)]))


def test_types_that_walks_only_come_to_and_types_that_they_do_not() -> None:
    data = HeteroData()
    data[USER].num_nodes, data[STORY].num_nodes, data["tag"].num_nodes = 2, 3, 4
    data[VIEWS].edge_index = torch.tensor([[0, 0], [1, 2]])
    data["tag", "of", USER].edge_index = torch.tensor([[0], [1]])
    (batch,) = batches(data, PPR(), input_nodes=(USER, torch.tensor([1, 0])), batch_size=2, edge_dir="out")
    assert set(batch.edge_types) == {(USER, "ppr", STORY), (USER, "ppr", USER)}
    assert batch[STORY].n_id.tolist() == [1, 2] and batch["tag"].n_id.tolist() == []
    assert batch[USER, "ppr", STORY].edge_index.tolist() == [[1, 1], [0, 1]]
    (batch,) = batches(data, PPR(), input_nodes=(USER, torch.tensor([1])), batch_size=2, edge_dir="out")
    assert batch[USER, "ppr", STORY].edge_index.shape == (2, 0) and batch[USER, "ppr", STORY].edge_attr.shape == (0, 2)


def test_channels_without_nodes_keep_their_width() -> None:
    data = typed(likes=torch.empty((2, 0), dtype=torch.int64))
    data[USER].num_nodes = 4
    ppr = PPR(typed_channel_ratios={VIEWS: 0.5, (USER, "likes", STORY): 0.5}, max_ppr_nodes=4)
    batch, nothing = batches(data, ppr, input_nodes=(USER, torch.tensor([0, 3])), batch_size=1, edge_dir="out")
    assert nothing[USER, "ppr", STORY].edge_attr.shape == (0, 8)
    # Neither channel comes back from a story, but users can be reached in the graph: the type is there.
    assert nothing[USER, "ppr", USER].edge_attr.tolist() == [[0.5, 1.0, 0.5, 1.0, 1.0, 0.5, 1.0, 1.0]]
    assert batch[USER, "ppr", STORY].edge_attr.tolist() == [[0.125, 0.5, 0.125, 0.5, 1.0, 0.0, 0.0, 0.0]] * 2


@pytest.mark.parametrize(
    ("ratios", "most", "targets"),
    [([0.6, 0.4], 7, [4, 3]), ([0.8, 0.1, 0.1], 158, [126, 16, 16]), ([0.5, 0.5], 5, [3, 2]), ([1.0], 9, [9]), ([0.5, 0.5], 0, [0, 0])],
)
def test_targets_are_shared_out_by_largest_remainders(ratios: list[float], most: int, targets: list[int]) -> None:
    types = [VIEWS, SEEN, (VIEWS, SEEN)][: len(ratios)]
    schema = GraphSchema({USER: NodeTypeSchema(3), STORY: NodeTypeSchema(3)}, {VIEWS: EdgeTypeSchema(6), SEEN: EdgeTypeSchema(6)})
    ppr = PPR(max_ppr_nodes=most, typed_channel_ratios=dict(zip(types, ratios, strict=True)))
    sampling = ppr.sampling(schema, EdgeUse())
    assert [channel.target for channel in sampling.channels] == targets


def test_what_a_channel_cannot_fill_goes_to_the_best_of_the_others() -> None:
    data = HeteroData()
    data[USER].num_nodes, data[STORY].num_nodes = 1, 9
    likes = (USER, "likes", STORY)
    data[VIEWS].edge_index = torch.tensor([[0] * 6, [0, 1, 2, 3, 4, 5]])
    data[likes].edge_index = torch.tensor([[0] * 2, [2, 6]])
    words: dict[str, Any] = {"input_nodes": USER, "batch_size": 1, "edge_dir": "out"}
    (batch,) = batches(data, PPR(max_ppr_nodes=4, typed_channel_ratios={VIEWS: 0.5, likes: 0.5}), **words)
    # Story 2 is of both channels, and scores more with two likes than with six views.
    assert batch[STORY].n_id.tolist() == [2, 6, 0, 1]
    view, like = 0.25 / 6, 0.25 / 2
    rows = [[like, 0.5, view, 0.5, 1, like, 0.5, 1], [like, 0.5, 0, 0, 0, like, 0.5, 1], *[[view, 0.5, view, 0.5, 1, 0, 0, 0]] * 2]
    assert np.allclose(batch[USER, "ppr", STORY].edge_attr.numpy(), rows, rtol=1e-6)
    # Three for likes, which has but two: the third goes to a view.
    (batch,) = batches(data, PPR(max_ppr_nodes=4, typed_channel_ratios={VIEWS: 0.25, likes: 0.75}), **words)
    assert batch[STORY].n_id.tolist() == [2, 6, 0, 1]


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_walked_edges_are_kept(edge_dir: str) -> None:
    data = typed(views_twice=torch.tensor([[0, 0, 1], [1, 1, 2]]))
    data[USER, "views_twice", STORY].edge_attr = torch.arange(3.0)
    ppr = PPR(max_ppr_nodes=2, eps=1e-3, include_sampled_edges=True)
    (batch,) = batches(data, ppr, input_nodes=(USER, torch.tensor([0])), batch_size=1, edge_dir=edge_dir, with_edge=True)
    met = 0
    for stored in data.edge_types:
        shown = stored if edge_dir == "in" else (stored[2], f"rev_{stored[1]}", stored[0])
        row, col = batch[shown].edge_index
        ends = [(batch[shown[0]].n_id[row], batch[shown[2]].n_id[col])]
        source, target = ends[0] if edge_dir == "in" else ends[0][::-1]
        assert data[stored].edge_index[:, batch[shown].e_id].equal(torch.stack([source, target])), "an edge between nodes of the batch"
        assert len(set(zip(row.tolist(), col.tolist(), strict=True))) == len(row), "one of several between two nodes"
        met += len(row)
    twice = (USER, "views_twice", STORY) if edge_dir == "in" else (STORY, "rev_views_twice", USER)
    assert met > 3 and batch[twice].edge_attr.equal(batch[twice].e_id.float())


# Plans and wrong input -------------------------------------------------------------------------------------------------------


def test_a_plan_can_be_written_down() -> None:
    ppr = PPR(typed_channel_ratios={(VIEWS, SEEN): 0.3, VIEWS: 0.7}, max_fetch_iterations=4, include_sampled_edges=True)
    with GraphLoader.from_pyg(typed(), sampler=ppr, input_nodes=USER, batch_size=2, progress=False) as loader:
        plan = LoaderPlan.from_json(loader.plan.to_json())
        assert plan == loader.plan
        assert [(channel.edge_types, channel.target) for channel in plan.sampling.channels] == [((SEEN, VIEWS), 15), ((VIEWS,), 35)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"alpha": 0}, "alpha must be a number between 0 and 1, both excluded, got 0"),
        ({"alpha": 1.0}, "got 1.0"),
        ({"alpha": float("nan")}, "got nan"),
        ({"alpha": True}, "got True"),
        ({"alpha": "0.5"}, "got '0.5'"),
        ({"eps": 0.0}, "eps must be a number above 0, got 0.0"),
        ({"eps": -1e-4}, "eps"),
        ({"eps": float("inf")}, "got inf"),
        ({"max_ppr_nodes": True}, "max_ppr_nodes must be a whole number, got True"),
        ({"max_ppr_nodes": -1}, "got -1"),
        ({"max_ppr_nodes": 2.5}, "got 2.5"),
        ({"num_neighbors_per_hop": 0}, "num_neighbors_per_hop must be a whole number of at least 1, and of 64 bits, got 0"),
        ({"num_neighbors_per_hop": -2}, "got -2"),
        ({"max_fetch_iterations": 0}, "max_fetch_iterations"),
        ({"max_fetch_iterations": True}, "got True"),
        ({"enable_residual_topup": 1}, "enable_residual_topup must be True or False"),
        ({"include_sampled_edges": "yes"}, "include_sampled_edges must be True or False"),
        ({"max_ppr_nodes": 1 << 63}, "of 64 bits, got 9223372036854775808"),
        ({"edge_types": 5}, "edge_types must be a list or None"),
        ({"edge_types": VIEWS}, "edge_types must be a list of edge types"),
        ({"typed_channel_ratios": {}}, "with a share for each channel"),
        ({"typed_channel_ratios": [0.5, 0.5]}, "typed_channel_ratios must be a dict or None"),
        ({"typed_channel_ratios": {"views": 1.0}}, "canonical edge type"),
        ({"typed_channel_ratios": {(): 1.0}}, "canonical edge type"),
        ({"typed_channel_ratios": {(VIEWS, "views"): 1.0}}, "canonical edge type"),
        ({"typed_channel_ratios": {VIEWS: 0.6, SEEN: 0.3}}, "sum to 1.0"),
        ({"typed_channel_ratios": {VIEWS: 1.5, SEEN: -0.5}}, "is 1.5"),
        ({"typed_channel_ratios": {VIEWS: True}}, "is True"),
    ],
)
def test_wrong_numbers(words: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        PPR(**words)


def test_what_does_not_go_with_the_graph() -> None:
    one, ours = star(3), typed(ppr=torch.zeros((2, 1), dtype=torch.int64))
    one.weight = torch.ones(3)
    unknown = (USER, "viewss", STORY)
    labels = HeteroData()
    labels[USER].num_nodes = 2
    labels[USER, "knows_gigl_positive", USER].edge_index = torch.zeros((2, 1), dtype=torch.int64)
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (one, {"sampler": PPR(typed_channel_ratios={("node", "to", "node"): 1.0})}, "homogeneous"),
        (one, {"sampler": PPR(include_sampled_edges=True)}, "homogeneous"),
        (one, {"sampler": PPR(), "weight": "weight"}, "weight"),
        (one, {"sampler": PPR(), "num_neighbors": [1]}, "sampler"),
        (typed(), {"sampler": PPR(typed_channel_ratios={unknown: 1.0}), "input_nodes": USER}, "non-traversable edge types"),
        (
            typed(),
            {"sampler": PPR(typed_channel_ratios={SEEN: 1.0}, edge_types=[VIEWS]), "input_nodes": USER},
            "non-traversable edge types",
        ),
        (typed(), {"sampler": PPR(edge_types=[unknown]), "input_nodes": USER}, "non-traversable edge types"),
        (typed(), {"sampler": PPR(edge_types=[]), "input_nodes": USER}, "no edge type to walk along"),
        (labels, {"sampler": PPR(), "input_nodes": USER}, "no edge type to walk along"),
        (ours, {"sampler": PPR(include_sampled_edges=True), "input_nodes": USER}, "under the name of PPR's own"),
    ]
    for data, options, message in cases:
        with pytest.raises(PlanError, match=message):
            GraphLoader.from_pyg(data, batch_size=1, progress=False, **options)

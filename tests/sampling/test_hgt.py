"""HGT batches: bit for bit as specified, node for node as PyG's HGTLoader where that does not draw, and alike where it does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnkit import HGT, GraphLoader, LoaderPlan
from gnnkit.errors import PlanError
from tests import reference_hgt
from tests.helpers.batches import items, same, to_pyg
from tests.helpers.chi_square import check_counts, check_statistic
from tests.helpers.graphs import ArraySource, homogeneous_source, random_edges, random_source
from tests.helpers.kind_batches import epoch_of, expected_kind, pyg_epochs

AUTHOR, PAPER = "author", "paper"


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """A random graph, with nodes of more than 50 edges in some, and options for it."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    if draw(st.integers(0, 3)):
        source = random_source(rng, max_edges=400)
    else:
        num_nodes = int(rng.integers(1, 90))
        source = homogeneous_source(random_edges(rng, num_nodes, num_nodes, int(rng.integers(4, 600))), num_nodes)
    input_type = draw(st.sampled_from([t for t, s in source.schema.node_types.items() if s.num_nodes]))
    hops = draw(st.integers(1, 3))
    counts = st.lists(st.integers(0, 12), min_size=hops, max_size=hops)
    types = draw(st.sets(st.sampled_from(list(source.schema.node_types)), min_size=1))
    return {
        "source": source,
        "input_type": input_type,
        "ids": draw(st.lists(st.integers(0, source.schema.node_types[input_type].num_nodes - 1), min_size=1, max_size=12)),
        "num_samples": {t: draw(counts) for t in sorted(types)},
        "batch_size": draw(st.integers(1, 9)),
        "edge_dir": draw(st.sampled_from(["in", "out"])),
        "seed": draw(st.integers(0, (1 << 64) - 1)),
    }


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True)
@given(cases())
def test_random_graphs(case: dict[str, Any]) -> None:
    source, ids = case["source"], case["ids"]
    input_nodes = np.array(ids) if source.schema.is_homogeneous else (case["input_type"], np.array(ids))
    options = {name: case[name] for name in ("batch_size", "edge_dir", "seed")}
    got = epoch_of(to_pyg(source), sampler=HGT(case["num_samples"]), input_nodes=input_nodes, **options)
    expected = expected_kind(reference_hgt.sample, source, case["input_type"], ids, num_samples=case["num_samples"], **options)
    for batch, wanted in zip(got, expected, strict=True):
        same(batch, wanted, any_order=True)


def star(num_leaves: int, shares: list[int]) -> ArraySource:
    """Node 0 has ``num_leaves`` neighbours; beside, nodes whose neighbours are the first ``shares[i]`` of these."""
    edges = [(leaf, 0) for leaf in range(1, num_leaves + 1)]
    edges += [(leaf, num_leaves + 1 + i) for i, share in enumerate(shares) for leaf in range(1, share + 1)]
    return homogeneous_source(np.array(edges).T, num_leaves + 1 + len(shares))


@pytest.mark.slow
def test_nodes_are_drawn_in_proportion_to_their_squared_budgets() -> None:
    """Budgets are 1/5 for each of five leaves, and more for those with further seeds: 1/4 for four of them, 1/3 for three."""
    source = star(5, [4, 3])
    budget = np.array([1 / 5 + 1 / 4 + 1 / 3] * 3 + [1 / 5 + 1 / 4, 1 / 5])
    weight = budget**2
    seeds = np.tile([0, 6, 7], 3000)
    counts = np.zeros((5, 5))
    for batch in epoch_of(to_pyg(source), sampler=HGT([2]), input_nodes=seeds, batch_size=3):
        first, second = batch.n_id[3:].tolist()
        counts[first - 1, second - 1] += 1
    # One after the other, without replacement: the second draw is among the weights that are left.
    pairs = weight[:, None] / weight.sum() * weight[None] / (weight.sum() - weight[:, None])
    pairs[np.diag_indices(5)] = 0
    check_counts(counts, pairs)


def test_what_was_taken_is_not_a_candidate_again_and_gets_no_more() -> None:
    # 0 <- 1 <- 2, 0 <- 2 and 1 <- 0: in the second iteration only node 3, a neighbour of 2, is left.
    source = homogeneous_source(np.array([[1, 2, 2, 0, 3], [0, 1, 0, 1, 2]]), 5)
    (batch,) = epoch_of(to_pyg(source), sampler=HGT([2, 2]), input_nodes=np.array([0]), batch_size=1)
    assert batch.n_id.tolist() == [0, 1, 2, 3]
    assert batch.num_sampled_nodes == [1, 2, 1] and "num_sampled_edges" not in batch
    assert batch.edge_index.tolist() == [[1, 2, 2, 0, 3], [0, 0, 1, 1, 2]]


def test_a_hub_draws_fifty_edges() -> None:
    (batch,) = epoch_of(to_pyg(star(200, [])), sampler=HGT([300]), input_nodes=np.array([0]), batch_size=1)
    assert batch.num_sampled_nodes == [1, 50]
    assert batch.edge_index[0].tolist() == list(range(1, 51)) and set(batch.edge_index[1].tolist()) == {0}
    assert len(set(batch.e_id.tolist())) == 50
    everybody = epoch_of(to_pyg(star(200, [])), sampler=HGT([300]), input_nodes=np.array([0]), batch_size=1, seed=1)
    assert set(everybody[0].n_id.tolist()) != set(batch.n_id.tolist())


# Against PyG -----------------------------------------------------------------------------------------------------------------


def typed_case(num_edges: int, **options: Any) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    sizes = {AUTHOR: 60, PAPER: 80}
    types = [(AUTHOR, "writes", PAPER), (PAPER, "rev_writes", AUTHOR), (PAPER, "cites", PAPER)]
    edges = {
        t: torch.from_numpy(np.stack([rng.integers(0, sizes[t[0]], num_edges), rng.integers(0, sizes[t[2]], num_edges)])) for t in types
    }
    nodes = {AUTHOR: {"x": torch.arange(60.0).view(-1, 1)}, PAPER: {"x": torch.rand(80, 4), "y": torch.arange(80)}}
    options = {"input_nodes": (PAPER, torch.arange(0, 80, 7)), "batch_size": 4, **options}
    return {"edges": edges, "nodes": nodes, "edge_arrays": {}, "options": options, "loader": "HGTLoader"}


def counted_case() -> dict[str, Any]:
    """Few candidates, drawn many times, in two iterations; hubs aside, whose edges torch-sparse draws with a bias."""
    case = typed_case(150, input_nodes=(PAPER, torch.tensor([0, 1, 2]).repeat(1200)), batch_size=3)
    case["options"]["num_samples"] = {AUTHOR: [2, 1], PAPER: [1, 2]}
    return case


CASES = {
    "all": typed_case(300, num_samples={AUTHOR: [100, 100], PAPER: [100, 100]}),
    "all, one iteration": typed_case(200, num_samples={AUTHOR: [100], PAPER: [100]}),
    "drawn": counted_case(),
}


@pytest.fixture(scope="module")
def pyg_batches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Every case's batches, from PyG in the second environment."""
    return pyg_epochs(CASES, tmp_path_factory.mktemp("pyg"))


def ours(name: str) -> list[dict[str, Any]]:
    from tests.helpers.pyg_batches import graph_of

    options = dict(CASES[name]["options"])
    return [dict(items(batch)) for batch in epoch_of(graph_of(CASES[name]), sampler=HGT(options.pop("num_samples")), **options)]


@pytest.mark.glt
@pytest.mark.parametrize("name", ["all", "all, one iteration"])
def test_the_batches_of_pyg_where_budgets_take_everything(pyg_batches: dict[str, list[dict[str, Any]]], name: str) -> None:
    for mine, theirs in zip(ours(name), pyg_batches[name], strict=True):
        # PyG has no counts; the nodes of an iteration come in the order of a hash table.
        missing = {key for key in mine if key not in theirs}
        assert {key.rpartition(".")[2] for key in missing} == {"num_sampled_nodes"} and set(theirs) <= set(mine)
        for t in (AUTHOR, PAPER):
            assert_same_hops(mine[f"{t}.n_id"], theirs[f"{t}.n_id"], mine[f"{t}.num_sampled_nodes"])
            for batch in (mine, theirs):
                assert (batch[f"{t}.x"][:, 0].equal(batch[f"{t}.n_id"].float())) or t == PAPER
        assert mine["paper.y"].equal(mine["paper.n_id"]) and mine["paper.batch_size"] == theirs["paper.batch_size"]
        assert mine["paper.input_id"].equal(theirs["paper.input_id"])
        for edge_type in CASES[name]["edges"]:
            where = "__".join(edge_type)
            assert sorted(edges_of(mine, where)) == sorted(edges_of(theirs, where)), where
            assert (np.diff(mine[f"{where}.edge_index"][1]) >= 0).all(), "node after node, as PyG lists them"


def assert_same_hops(mine: torch.Tensor, theirs: torch.Tensor, counts: list[int]) -> None:
    ends = np.cumsum([0, *counts])
    assert len(mine) == len(theirs) == ends[-1]
    for start, end in zip(ends[:-1], ends[1:], strict=True):
        assert sorted(mine[start:end].tolist()) == sorted(theirs[start:end].tolist())


def edges_of(batch: dict[str, Any], where: str) -> list[tuple[int, int, int]]:
    source, _, target = where.split("__")
    row, col = batch[f"{where}.edge_index"]
    ends = batch[f"{source}.n_id"][row].tolist(), batch[f"{target}.n_id"][col].tolist()
    return list(zip(*ends, batch[f"{where}.e_id"].tolist(), strict=True))


@pytest.mark.glt
def test_the_draws_of_pyg_have_the_same_distribution(pyg_batches: dict[str, list[dict[str, Any]]]) -> None:
    """What was drawn of each type together, and how many edges that gives."""
    mine, theirs = ours("drawn"), pyg_batches["drawn"]
    for look in (drawn_of("author", 0), drawn_of("paper", 3), num_edges):
        seen = sorted({look(batch) for batch in (*mine, *theirs)})
        left, right = (counts_of(batches, look, seen) for batches in (mine, theirs))
        two_samples(left, right)


def drawn_of(node_type: str, first: int) -> Any:
    return lambda batch: tuple(sorted(batch[f"{node_type}.n_id"][first:].tolist()))


def counts_of(batches: list[dict[str, Any]], look: Any, seen: list[Any]) -> np.ndarray:
    place = {key: i for i, key in enumerate(seen)}
    return np.bincount([place[look(batch)] for batch in batches], minlength=len(seen))


def num_edges(batch: dict[str, Any]) -> int:
    return sum(value.shape[1] for key, value in batch.items() if key.endswith("edge_index"))


def two_samples(left: np.ndarray, right: np.ndarray) -> None:
    """Pearson's test that two lists of counts are of one distribution; rare outcomes are taken together."""
    rare = left + right < 20
    left, right = (np.append(counts[~rare], counts[rare].sum()).astype(float) for counts in (left, right))
    kept = left + right > 0
    left, right = left[kept], right[kept]
    assert len(left) > 3, "too few different outcomes for this test to say anything"
    check_statistic(float(((left - right) ** 2 / (left + right)).sum()), len(left) - 1)


# Plans and wrong input -------------------------------------------------------------------------------------------------------


def test_a_plan_can_be_written_down() -> None:
    data = to_pyg(star(5, []))
    with GraphLoader.from_pyg(data, sampler=HGT([3, 2]), batch_size=2, progress=False) as loader:
        plan = LoaderPlan.from_json(loader.plan.to_json())
        assert plan == loader.plan
        assert plan.sampling.num_samples == {"node": (3, 2)} and plan.sampling.num_hops == 2


@pytest.mark.parametrize(
    ("num_samples", "message"),
    [
        ([], "one number per hop"),
        (512, "one number per hop"),
        ("512", "one number per hop"),
        ([1, -1], "holds -1"),
        ([True], "holds True"),
        ([1.5], "holds 1.5"),
        ({}, "is empty"),
        ({AUTHOR: [1], PAPER: [1, 2]}, "different numbers of hops"),
        ({AUTHOR: []}, "one number per hop"),
    ],
)
def test_wrong_numbers(num_samples: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        HGT(num_samples)


def test_what_does_not_go_with_the_graph() -> None:
    rng = np.random.default_rng(0)
    typed, one = to_pyg(random_source(rng, num_node_types=2)), to_pyg(star(3, []))
    one.weight = torch.ones(one.num_edges)
    for data, options, message in (
        (typed, {"sampler": HGT({"paperr": [1]})}, "unknown node type 'paperr'"),
        (one, {"sampler": HGT({"paper": [1]})}, "homogeneous"),
        (one, {"sampler": HGT([1]), "weight": "weight"}, "weight"),
        (one, {"sampler": HGT([1]), "num_neighbors": [1]}, "sampler"),
        (one, {"sampler": HGT([1]), "disjoint": True}, "disjoint"),
        (one, {"sampler": HGT([1]), "replace": True}, "replace"),
        (one, {"sampler": "hgt"}, "sampler"),
    ):
        with pytest.raises(PlanError, match=message):
            GraphLoader.from_pyg(data, progress=False, **options)

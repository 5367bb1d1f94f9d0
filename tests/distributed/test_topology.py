"""Which ranks share a node, from what they say about themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnkit.cluster.hosts import RankFacts, group_ranks
from gnnkit.errors import PlanError


def hosts(*names: str) -> list[RankFacts]:
    return [RankFacts(name) for name in names]


@pytest.mark.parametrize(
    ("facts", "nodes"),
    [
        (hosts("a"), [[0]]),
        (hosts("a", "a", "b", "b"), [[0, 1], [2, 3]]),
        (hosts("b", "a", "b", "a"), [[0, 2], [1, 3]]),
        (hosts("a", "b", "c"), [[0], [1], [2]]),
        ([RankFacts("a", local, 2) for local in (0, 1, 0, 1)], [[0, 1], [2, 3]]),
        ([RankFacts("a", local, 2) for local in (0, 0, 1, 1)], [[0, 2], [1, 3]]),
        ([RankFacts("a", 1), RankFacts("a", 0)], [[1, 0]]),
        ([RankFacts("a", 0, 1, 1), RankFacts("a", 0, 1, 0)], [[1], [0]]),
        ([RankFacts("", local, 2, 0) for local in (0, 1)], [[0, 1]]),
    ],
    ids=[
        "alone",
        "two hosts",
        "interleaved hosts",
        "one each",
        "two launches",
        "interleaved launches",
        "reversed",
        "node ranks",
        "no boot id",
    ],
)
def test_ranks_are_grouped(facts: list[RankFacts], nodes: list[list[int]]) -> None:
    assert group_ranks(facts) == nodes


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (hosts("a", "a", "b"), r"node 0 has 2 \(ranks 0, 1\), node 1 has 1 \(ranks 2\)"),
        (hosts("a", ""), "rank 1 runs on a system without a boot id"),
        ([RankFacts("a", 0), RankFacts("a")], r"ranks \[1\] do not know"),
        ([RankFacts("a", 0, None, 0), RankFacts("a", 0, None, 0)], "ranks 0 and 1 are both local rank 0 of node 0"),
        ([RankFacts("a", 0, None, 0), RankFacts("a", 2, None, 0)], r"node 0 has the local ranks \[0, 2\]"),
        ([RankFacts("a", 0, 4, 0), RankFacts("a", 1, 4, 0)], r"rank 0 was told that its node has 4 processes, but 2 are there"),
    ],
)
def test_what_does_not_add_up_is_refused(facts: list[RankFacts], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        group_ranks(facts)


@given(st.integers(1, 4), st.integers(1, 4), st.randoms(use_true_random=False), st.sampled_from(["hosts", "nodes", "launches"]))
def test_any_order_of_ranks_is_found_out(num_nodes: int, per_node: int, random, how: str) -> None:
    places = [(node, local) for node in range(num_nodes) for local in range(per_node)]
    random.shuffle(places)
    if how == "hosts":
        facts = [RankFacts(f"host {node}") for node, _ in places]
    elif how == "nodes":
        facts = [RankFacts("one host", local, per_node, node) for node, local in places]
    else:
        facts = [RankFacts(f"host {node}", local, per_node) for node, local in places]
    nodes = group_ranks(facts)
    assert sorted(rank for ranks in nodes for rank in ranks) == list(range(len(places)))
    for ranks in nodes:
        assert len({places[rank][0] for rank in ranks}) == 1
        if how == "hosts":
            assert ranks == sorted(ranks)
        else:
            assert [places[rank][1] for rank in ranks] == list(range(per_node))
    if how == "nodes":
        assert [places[ranks[0]][0] for ranks in nodes] == list(range(num_nodes))

"""``split_nodes`` and ``split_links``: exact numbers, nothing in two sets, and the same for the same seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData

import gnnkit
from gnnkit import Store, split_links, split_nodes
from gnnkit.errors import PlanError, StoreError
from tests import reference_sampler

ENDS = torch.tensor([[0, 1, 2, 3, 1, 4, 4, 0, 5, 2], [1, 0, 3, 2, 2, 4, 5, 1, 4, 0]])


def lists(split: Any) -> list[list[int]]:
    assert all(part.dtype == torch.int64 and part.tolist() == sorted(part.tolist()) for part in split)
    return [part.tolist() for part in split]


def size_of(count: int, share: Any) -> int:
    return share if isinstance(share, int) else int(count * share + 0.5)


@settings(max_examples=80, deadline=None)
@given(st.sets(st.integers(0, 1 << 40), max_size=60), st.data())
def test_exact_and_disjoint(chosen: set[int], data: st.DataObject) -> None:
    share = st.integers(0, len(chosen) // 2) | st.floats(0, 0.49)
    valid, test, seed = data.draw(share), data.draw(share), data.draw(st.integers(0, (1 << 64) - 1))
    if size_of(len(chosen), valid) + size_of(len(chosen), test) > len(chosen):
        return
    ids = data.draw(st.permutations(sorted(chosen)))
    found = lists(split_nodes(torch.tensor(ids, dtype=torch.int64), valid=valid, test=test, seed=seed))
    assert [len(part) for part in found[1:]] == [size_of(len(ids), valid), size_of(len(ids), test)]
    assert sorted(sum(found, [])) == sorted(chosen)
    # From the set of ids alone, whatever their order and kind.
    assert lists(split_nodes(np.array(sorted(chosen), np.int64), valid=valid, test=test, seed=seed)) == found
    # As the specification says: in the order of a keyed permutation of the ascending ids.
    stream = reference_sampler.fold(reference_sampler.fold(reference_sampler.fold(0, 1), seed), reference_sampler.text("split/nodes"))
    key, order = reference_sampler.fold(reference_sampler.fold(stream, 0), 0), list(range(len(ids)))
    for i in range(len(ids) - 1, 0, -1):
        j = reference_sampler.bounded(reference_sampler.draw(key, len(ids) - 1 - i), i + 1)
        order[i], order[j] = order[j], order[i]
    drawn = [sorted(chosen)[place] for place in order]
    assert sorted(drawn[: len(found[0])]) == found[0] and sorted(drawn[len(drawn) - len(found[2]) :]) == found[2]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-1, 3), min_size=1, max_size=50), st.integers(0, 9), st.integers(0, 9))
def test_stratified(classes: list[int], valid: int, test: int) -> None:
    count = len(classes)
    valid, test = min(valid, count // 2), min(test, count // 2)
    found = lists(split_nodes(count, valid=valid, test=test, stratify=classes))
    assert [len(part) for part in found] == [count - valid - test, valid, test] and sorted(sum(found, [])) == list(range(count))
    for label in set(classes):
        size = classes.count(label)
        taken = [sum(classes[node] == label for node in part) for part in found]
        # Held out together, a class has its share to within one; so has what is held out, of the test set.
        assert abs(taken[1] + taken[2] - size * (valid + test) / count) < 1
        assert abs(taken[2] - size * test / count) < 2


def test_seeds_differ_and_repeat() -> None:
    found = [lists(split_nodes(200, seed=seed)) for seed in (0, 1, 0)]
    assert found[0] == found[2] != found[1] and [len(part) for part in found[0]] == [160, 20, 20]
    assert [len(part) for part in split_nodes(2708)] == [2166, 271, 271]
    assert lists(split_nodes(1)) == [[0], [], []] and lists(split_nodes(0)) == [[], [], []]
    mask = torch.tensor([True, False, True, True])
    assert sorted(sum(lists(split_nodes(mask, valid=1, test=1)), [])) == [0, 2, 3]


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    typed, plain = HeteroData(), Data(edge_index=ENDS, y=torch.tensor([0, 1, 0, 1, 0, 1]), num_nodes=6)
    typed["user"].num_nodes, typed["item"].num_nodes = 6, 4
    typed["user"].y = torch.tensor([0.0, 1, 0, 1, float("nan"), float("nan")])
    typed["user", "knows", "user"].edge_index = ENDS
    typed["user", "buys", "item"].edge_index = torch.tensor([[0, 5], [3, 0]])
    folder = tmp_path_factory.mktemp("split")
    stored = gnnkit.partition(typed, 2, "random", out=folder / "store", with_edge=True)
    return {
        "plain": plain,
        "typed": typed,
        "store": stored,
        "bare": gnnkit.partition(plain, 2, "random", out=folder / "bare", with_edge=False),
    }


def test_nodes_of_graphs(graphs: dict[str, Any]) -> None:
    assert (
        lists(split_nodes(graphs["plain"], valid=2, test=1))
        == lists(split_nodes(6, valid=2, test=1))
        == lists(split_nodes(graphs["bare"], valid=2, test=1))
    )
    expected = lists(split_nodes(6, valid=2, test=2, stratify=[0, 1, 0, 1, 9, 9]))
    for graph in ("typed", "store"):
        found = lists(split_nodes(graphs[graph], valid=2, test=2, node_type="user", stratify="y"))
        assert found == expected
    assert lists(split_nodes(str(graphs["store"].path), node_type="item", valid=1)) == lists(split_nodes(4, valid=1))


def test_links_of_graphs(graphs: dict[str, Any]) -> None:
    knows = ("user", "knows", "user")
    expected = lists(split_links(ENDS, valid=0.2, test=3, seed=5))
    assert [len(part) for part in expected] == [5, 2, 3] and sorted(sum(expected, [])) == list(range(10))
    both = lists(split_links(ENDS, valid=1, test=2, seed=5, undirected=True))
    pairs = [{frozenset(ENDS[:, edge].tolist()) for edge in part} for part in both]
    assert [len(part) for part in pairs] == [3, 1, 2] and not pairs[0] & pairs[1] and not pairs[0] & pairs[2] and not pairs[1] & pairs[2]
    assert sorted(sum(both, [])) == list(range(10))
    assert lists(split_links(graphs["plain"], valid=1, test=2, seed=5, undirected=True)) == both
    for graph in ("typed", "store"):
        assert lists(split_links(graphs[graph], valid=0.2, test=3, seed=5, edge_type=knows)) == expected
        assert lists(split_links(graphs[graph], valid=1, test=2, seed=5, edge_type=knows, undirected=True)) == both
    assert lists(split_links(graphs["bare"], valid=0.2, test=3, seed=5)) == expected  # ids alone need no edges
    assert lists(split_links(torch.empty((2, 0), dtype=torch.int64), undirected=True)) == [[], [], []]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda g: split_nodes(10, valid=-1), "valid must be a share of at least 0 and below 1, or a whole number, got -1"),
        (lambda g: split_nodes(10, test=1.0), "test must be a share"),
        (lambda g: split_nodes(10, test=True), "test must be a share"),
        (lambda g: split_nodes(10, valid=0.5, test=0.5), "leave nothing for training"),
        (lambda g: split_nodes(10, valid=6, test=5), "and there are only 10"),
        (lambda g: split_nodes(10, seed=-1), "seed must be a whole number"),
        (lambda g: split_nodes([3, 1, 3]), "hold 3 more than once"),
        (lambda g: split_nodes([[3], [1]]), "of shape"),
        (lambda g: split_nodes([0.5]), "must hold whole numbers"),
        (lambda g: split_nodes([-4]), "holds the id -4"),
        (lambda g: split_nodes(-4), "is no number of nodes"),
        (lambda g: split_nodes([1], node_type="user"), "is given with ids"),
        (lambda g: split_nodes(3, stratify=[1, 2]), "one class for each of 3 nodes"),
        (lambda g: split_nodes(g["typed"]), "several node types"),
        (lambda g: split_nodes(g["typed"], node_type="usr"), "did you mean 'user'"),
        (lambda g: split_nodes(g["typed"], node_type="user", stratify="label"), "have no array 'label'"),
        (lambda g: split_nodes(g["store"], node_type="user", stratify="label"), "have no array 'label'"),
        (lambda g: split_links(torch.zeros(3, 2, dtype=torch.int64)), r"of shape \[2, e\]"),
        (lambda g: split_links(ENDS.float()), "must hold whole numbers"),
        (lambda g: split_links(torch.eye(2).to_sparse()), "sparse tensor"),
        (lambda g: split_links(ENDS, edge_type=("a", "b", "c")), "is given with an edge_index"),
        (lambda g: split_links(g["typed"], edge_type=("a", "b", "c")), "there is no edge type"),
        (lambda g: split_links(g["typed"], edge_type=("user", "buys", "item"), undirected=True), "from one node type to another"),
        (lambda g: split_links(g["bare"], undirected=True), "without the edges' ids"),
    ],
)
def test_what_is_refused(graphs: dict[str, Any], call: Any, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        call(graphs)


def test_parts_that_are_not_here(graphs: dict[str, Any], tmp_path: Path) -> None:
    half = Store.open(graphs["store"].path, (0,))
    with pytest.raises(StoreError, match="part 1 of the store .* is not open here"):
        split_nodes(half, node_type="user", stratify="y")
    assert lists(split_nodes(half, node_type="user")) == lists(split_nodes(6))
    with pytest.raises(StoreError):
        split_nodes(tmp_path / "nothing")

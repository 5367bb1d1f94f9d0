"""Draws are uniform, or follow their weights, and know nothing of each other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data, HeteroData

from gnnkit import GraphLoader, Labor
from tests.helpers.chi_square import check_counts, check_independent, check_statistic, check_subsets

NUM_ROOTS = 6000
DEGREE = 12


def star(num_roots: int, degree: int, weight: NDArray[Any] | None = None) -> Data:
    """``num_roots`` nodes that all have the same ``degree`` neighbours, which are nodes 0, 1, 2, ...; then a head for each root,
    whose only neighbour the root is."""
    roots, leaves, heads = degree + torch.arange(num_roots), torch.arange(degree), degree + num_roots + torch.arange(num_roots)
    edge_index = torch.stack([leaves.repeat(num_roots), roots.repeat_interleave(degree)])
    data = Data(edge_index=torch.cat([edge_index, torch.stack([roots, heads])], 1), num_nodes=degree + 2 * num_roots)
    if weight is not None:
        weights = torch.tensor(weight)
        data.edge_weight = torch.cat([weights.repeat(num_roots), weights.max().repeat(num_roots)])
    data.train_mask = (torch.arange(data.num_nodes) >= degree) & (torch.arange(data.num_nodes) < degree + num_roots)
    data.val_mask = data.train_mask
    return data


def roots_of(num_roots: int, degree: int) -> NDArray[np.int64]:
    return np.arange(degree, degree + num_roots)


def picks(batch: Any, nodes: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """int64 ``[len(nodes), count]``: the neighbours of each node of ``nodes``, in the order in which they were drawn."""
    source, target = batch.n_id[batch.edge_index].numpy()
    kept = np.isin(target, nodes)
    source, target = source[kept], target[kept]
    order = np.argsort(target, kind="stable")
    assert (target[order].reshape(len(nodes), count) == nodes[:, None]).all()
    return source[order].reshape(len(nodes), count)


def sample_roots(
    num_roots: int, degree: int, fan_out: int, *, weight: NDArray[Any] | None = None, draws: int = 1, **options: Any
) -> NDArray[np.int64]:
    """int64 ``[draws * num_roots, fan_out]``: positions among each root's edges."""
    roots = roots_of(num_roots, degree)
    name = None if weight is None else "edge_weight"
    if "sampler" not in options:
        options["num_neighbors"] = [fan_out]
    with GraphLoader.from_pyg(star(num_roots, degree, weight), weight=name, progress=False, **options) as loader:
        return np.concatenate([picks(loader.sample(roots, index=index), roots, fan_out) for index in range(draws)])


@pytest.mark.parametrize(("degree", "fan_out"), [(6, 3), (7, 1), (7, 6), (9, 4), (40, 2)])
def test_every_subset_is_equally_likely(degree: int, fan_out: int) -> None:
    """The strongest statement about draws without replacement: single draws, pairs and everything else follow from it."""
    subsets = {subset: i for i, subset in enumerate(itertools.combinations(range(degree), fan_out))}
    drawn = np.sort(sample_roots(NUM_ROOTS, degree, fan_out, draws=2), axis=1)
    check_counts(np.bincount([subsets[tuple(row)] for row in drawn.tolist()], minlength=len(subsets)))


@pytest.mark.parametrize("fan_out", [10, 50])
def test_degrees_far_above_the_fan_out(fan_out: int) -> None:
    degree, num_roots = 10_000, 60
    drawn = sample_roots(num_roots, degree, fan_out, draws=40)
    assert all(len(set(row)) == fan_out for row in drawn.tolist())
    check_counts(np.bincount(drawn.ravel() // 100, minlength=100))
    pairs = np.random.default_rng(0).permuted(drawn, axis=1)[:, :2] // 1250  # drawn positions are no random order of the subset
    check_independent(pairs[:, 0], pairs[:, 1], 8)


@pytest.mark.parametrize("fan_out", [33, 50, 90])
def test_large_fan_outs(fan_out: int) -> None:
    degree = 100
    drawn = sample_roots(1500, degree, fan_out)
    chosen = np.zeros((len(drawn), degree), bool)
    np.put_along_axis(chosen, drawn, True, axis=1)
    assert (chosen.sum(axis=1) == fan_out).all()
    check_subsets(chosen)


def test_with_replacement() -> None:
    drawn = sample_roots(NUM_ROOTS, DEGREE, 3, replace=True)
    for i in range(3):
        check_counts(np.bincount(drawn[:, i], minlength=DEGREE))
    for i, j in itertools.combinations(range(3), 2):
        check_independent(drawn[:, i], drawn[:, j], DEGREE)


class Variants:
    """One draw at each of the same roots, under keys that differ in one thing at a time."""

    def __init__(self) -> None:
        self.data = star(NUM_ROOTS, DEGREE)
        self.roots = roots_of(NUM_ROOTS, DEGREE)
        self.options: dict[str, Any] = {"num_neighbors": [1], "batch_size": NUM_ROOTS, "progress": False, "shuffle": False}

    def loader(self, **options: Any) -> GraphLoader:
        return GraphLoader.from_pyg(self.data, **{**self.options, "input_nodes": self.roots, **options})

    def first(self, **options: Any) -> NDArray[np.int64]:
        with self.loader(**options) as loader:
            return picks(loader.peek(), self.roots, 1)[:, 0]

    def sampled(self, **key: int) -> NDArray[np.int64]:
        with self.loader() as loader:
            return picks(loader.sample(self.roots, **key), self.roots, 1)[:, 0]

    def second_epoch(self) -> NDArray[np.int64]:
        with self.loader() as loader:
            _, batch = list(loader), next(iter(loader))
            return picks(batch, self.roots, 1)[:, 0]

    def second_hop(self) -> NDArray[np.int64]:
        """The roots are drawn for as neighbours of their heads, one hop later and in the same batch key."""
        with self.loader(input_nodes=self.roots + NUM_ROOTS, num_neighbors=[1, 1]) as loader:
            return picks(loader.peek(), self.roots, 1)[:, 0]


VARIANTS: dict[str, Callable[[Variants], NDArray[np.int64]]] = {
    "next epoch": Variants.second_epoch,
    "next hop": Variants.second_hop,
    "next seed": lambda v: v.first(seed=1),
    "seed of another word": lambda v: v.first(seed=1 << 63),
    "train": lambda v: v.first(input_nodes="train"),
    "valid": lambda v: v.first(input_nodes="valid"),
    "sample()": Variants.sampled,
    "sample(), next index": lambda v: v.sampled(index=1),
    "sample(), next epoch": lambda v: v.sampled(epoch=1),
}


@pytest.fixture(scope="module")
def drawn_variants() -> dict[str, NDArray[np.int64]]:
    variants = Variants()
    return {"as it is": variants.first(), **{name: draw(variants) for name, draw in VARIANTS.items()}}


@pytest.mark.parametrize(("left", "right"), list(itertools.combinations(["as it is", *VARIANTS], 2)))
def test_keys_that_differ_draw_independently(drawn_variants: dict[str, NDArray[np.int64]], left: str, right: str) -> None:
    check_independent(drawn_variants[left], drawn_variants[right], DEGREE)


def test_neighbouring_nodes_draw_independently(drawn_variants: dict[str, NDArray[np.int64]]) -> None:
    for drawn in drawn_variants.values():
        for step in (1, 2, 64):
            check_independent(drawn[:-step], drawn[step:], DEGREE)


def test_consecutive_batches_of_one_node_draw_independently() -> None:
    with GraphLoader.from_pyg(star(1, 8), input_nodes=np.full(4000, 8), num_neighbors=[1], batch_size=1, progress=False) as loader:
        drawn = np.array([int(batch.n_id[1]) for batch in loader])
    check_counts(np.bincount(drawn))
    for step in (1, 2, 7):
        check_independent(drawn[:-step], drawn[step:], 8)


def test_a_path_draws_independently_at_each_hop() -> None:
    """Layers of eight nodes, each node with the whole next layer as neighbours: paths are uniform."""
    width, hops = 8, 3
    layers = torch.arange(width * (hops + 1)).view(hops + 1, width)
    edge_index = torch.cat([torch.cartesian_prod(layers[h + 1], layers[h]).T for h in range(hops)], 1)
    data = Data(edge_index=edge_index, num_nodes=layers.numel())
    options: dict[str, Any] = {"input_nodes": np.zeros(6000, int), "num_neighbors": [1] * hops, "batch_size": 1}
    with GraphLoader.from_pyg(data, progress=False, **options) as loader:
        paths = np.array([batch.n_id.tolist() for batch in loader])[:, 1:] % width
    check_counts(np.bincount(paths @ np.array([64, 8, 1]), minlength=width**hops))


def test_edge_types_draw_independently() -> None:
    plain, typed = star(NUM_ROOTS, DEGREE), HeteroData()
    typed["node"].num_nodes = plain.num_nodes
    relations = ("a", "b", "ab")
    for relation in relations:
        typed["node", relation, "node"].edge_index = plain.edge_index
    roots = roots_of(NUM_ROOTS, DEGREE)
    with GraphLoader.from_pyg(typed, input_nodes=("node", roots), num_neighbors=[1], batch_size=NUM_ROOTS, progress=False) as loader:
        batch = loader.peek()
    drawn = []
    for relation in relations:
        source, target = batch["node"].n_id[batch["node", relation, "node"].edge_index].numpy()
        assert (target == roots).all()
        drawn.append(source)
    for left, right in itertools.combinations(drawn, 2):
        check_independent(left, right, DEGREE)


WEIGHTS = {
    "ordinary": [1.0, 2.0, 0.0, 4.0, 3.0],
    "integers": [3, 0, 1, 7],
    "one heavy": [1.0, 2.0, 2.0**30, 3.0, 4.0],  # after the heavy one, draws hit it again until the redraws are spent
    "two heavy": [2.0**31, 1.0, 2.0**30, 2.0, 5.0, 0.0],
    "tiny": [1e-20, 2e-20, 3e-20],
}


def exact(weights: list[float], outcome: tuple[int, ...], replace: bool) -> float:
    """The probability of an ordered outcome of successive draws in proportion to weight."""
    probability, left = 1.0, math.fsum(weights)
    for i in outcome:
        probability *= weights[i] / left
        left -= 0.0 if replace else weights[i]
    return probability


@pytest.mark.parametrize("replace", [False, True], ids=["distinct", "replace"])
@pytest.mark.parametrize("fan_out", [1, 2, 3])
@pytest.mark.parametrize("name", WEIGHTS)
def test_weighted_draws_have_their_exact_probabilities(name: str, fan_out: int, replace: bool) -> None:
    weights = WEIGHTS[name]
    degree, num_positive = len(weights), sum(weight > 0 for weight in weights)
    drawn = sample_roots(20_000, degree, fan_out, weight=np.array(weights), replace=replace, seed=2)
    assert all(weights[i] > 0 for i in np.unique(drawn))
    if not replace:
        assert (np.diff(np.sort(drawn, axis=1), axis=1) > 0).all()
        if num_positive <= fan_out:
            return
    outcomes = list(itertools.product(range(degree), repeat=fan_out))
    share = np.array([0.0 if not replace and len(set(o)) < fan_out else exact(weights, o, replace) for o in outcomes])
    counts = np.bincount(drawn @ degree ** np.arange(fan_out)[::-1], minlength=len(outcomes)).astype(float)
    assert not counts[share == 0].any()
    rare = share * len(drawn) < 5  # counted as one outcome, or not at all where even that one would be rare
    pooled = np.append(share[~rare], share[rare].sum()), np.append(counts[~rare], counts[rare].sum())
    if pooled[0][-1] * len(drawn) < 5:
        assert pooled[1][-1] <= 20
        pooled = pooled[0][:-1] / pooled[0][:-1].sum(), pooled[1][:-1]
    if len(pooled[0]) > 1:
        check_counts(pooled[1], pooled[0])


def test_weights_are_exact_over_redraws() -> None:
    """With one edge 2**30 times as heavy, the second draw always ends in the fallback, and still follows the other weights."""
    weights = [5.0, 2.0**30, 1.0, 3.0, 2.0]
    drawn = sample_roots(30_000, 5, 3, weight=np.array(weights))
    assert (drawn[:, 0] == 1).all()
    rest = [5.0, 0.0, 1.0, 3.0, 2.0]
    share = [0.0 if i == j else exact(rest, (i, j), False) if 1 not in (i, j) else 0.0 for i in range(5) for j in range(5)]
    check_counts(np.bincount(drawn[:, 1] * 5 + drawn[:, 2], minlength=25), share)


def test_types_without_the_weight_are_uniform() -> None:
    """A hub with edges of weight 0 in one type, and a type that has no weights beside it."""
    hub = HeteroData()
    hub["node"].num_nodes = 3000 + DEGREE
    edge_index = star(3000, DEGREE).edge_index[:, : 3000 * DEGREE]
    hub["node", "weighted", "node"].edge_index = hub["node", "plain", "node"].edge_index = edge_index
    hub["node", "weighted", "node"].w = (torch.arange(DEGREE) % 2).float().repeat(3000)
    roots = roots_of(3000, DEGREE)
    with GraphLoader.from_pyg(hub, input_nodes=("node", roots), num_neighbors=[2], batch_size=3000, weight="w", progress=False) as loader:
        batch = loader.peek()
    for relation, first, step in (("weighted", 1, 2), ("plain", 0, 1)):
        source = batch["node"].n_id[batch["node", relation, "node"].edge_index[0]].numpy().reshape(-1, 2)
        chosen = np.zeros((len(source), DEGREE), bool)
        np.put_along_axis(chosen, source, True, axis=1)
        assert not chosen[:, [i for i in range(DEGREE) if (i - first) % step]].any()
        check_subsets(chosen[:, first::step])


def orders(num_seeds: int, num_epochs: int, **options: Any) -> NDArray[np.int64]:
    """int64 ``[num_epochs, num_seeds]``: the order in which each epoch visits the seeds."""
    data = Data(edge_index=torch.empty(2, 0, dtype=torch.long), num_nodes=num_seeds)
    with GraphLoader.from_pyg(data, num_neighbors=[1], batch_size=num_seeds, shuffle=True, progress=False, **options) as loader:
        return np.array([next(iter(loader)).input_id.tolist() for _ in range(num_epochs)])


@pytest.mark.parametrize("num_seeds", [2, 3, 4, 5])
def test_every_order_of_few_seeds_is_equally_likely(num_seeds: int) -> None:
    index = {order: i for i, order in enumerate(itertools.permutations(range(num_seeds)))}
    check_counts(np.bincount([index[tuple(row)] for row in orders(num_seeds, 2000).tolist()], minlength=len(index)))


@pytest.mark.slow
def test_orders_of_many_seeds() -> None:
    num_seeds, num_epochs = 40, 1500
    drawn = orders(num_seeds, num_epochs, seed=1)
    assert (np.sort(drawn, axis=1) == np.arange(num_seeds)).all()
    positions = np.zeros((num_seeds, num_seeds))
    for place in range(num_seeds):
        positions[place] = np.bincount(drawn[:, place], minlength=num_seeds)
    expected = num_epochs / num_seeds
    # Rows and columns of a sum of permutation matrices are fixed, hence (n - 1)**2 degrees of freedom and the factor.
    check_statistic(float(((positions - expected) ** 2 / expected).sum() * (num_seeds - 1) / num_seeds), (num_seeds - 1) ** 2)
    few = orders(9, 3000, seed=2)
    for left, right in ((0, 1), (0, 8), (4, 5), (7, 8)):
        table = np.bincount(few[:, left] * 9 + few[:, right], minlength=81)
        check_counts(table, (1 - np.eye(9)) / 72)


@pytest.mark.slow
def test_orders_of_consecutive_epochs_and_of_other_seeds_are_independent() -> None:
    first, other = orders(8, 3000, seed=4), orders(8, 3000, seed=5)
    check_independent(first[:-1, 0], first[1:, 0], 8)
    check_independent(first[:, 0], other[:, 0], 8)
    assert (first != other).any(axis=1).mean() > 0.99


def test_the_test_would_notice() -> None:
    """Bias of one draw in twenty, dependence of one draw in twenty, and counts that are too even are all found."""
    rng = np.random.default_rng(0)
    biased = rng.integers(0, DEGREE, NUM_ROOTS)
    biased[: NUM_ROOTS // 20] = 0
    with pytest.raises(AssertionError, match="chi-square"):
        check_counts(np.bincount(biased))
    left, right = rng.integers(0, DEGREE, (2, NUM_ROOTS))
    right[::20] = left[::20]
    with pytest.raises(AssertionError, match="chi-square"):
        check_independent(left, right, DEGREE)
    with pytest.raises(AssertionError, match="chi-square"):
        check_counts(np.full(100, 50) + np.tile([1, -1], 50))


# LABOR: nodes that have neighbours in common draw the same ones, so a batch's roots have neighbours of their own here.


def bouquet(num_roots: int, degree: int, weight: NDArray[Any] | None = None) -> Data:
    """Nodes 0, 1, ..., each with ``degree`` neighbours of its own; then heads, each with a root as its only neighbour."""
    roots, leaves = torch.arange(num_roots), num_roots + torch.arange(num_roots * degree)
    heads = num_roots * (degree + 1) + roots
    edge_index = torch.cat([torch.stack([leaves, roots.repeat_interleave(degree)]), torch.stack([roots, heads])], 1)
    data = Data(edge_index=edge_index, num_nodes=num_roots * (degree + 2))
    if weight is not None:
        data.edge_weight = torch.tensor(np.concatenate([np.tile(weight, num_roots), np.full(num_roots, weight.max())]))
    return data


def labor_picks(
    num_roots: int, degree: int, fan_out: int, index: int = 0, *, hop: int = 0, weight: NDArray[Any] | None = None, **options: Any
) -> NDArray[np.int64]:
    """int64 ``[num_roots, fan_out]``: the places of the neighbours that each root takes, in the first hop or in the second."""
    sampler, name = Labor([1] * hop + [fan_out], **options), None if weight is None else "edge_weight"
    with GraphLoader.from_pyg(bouquet(num_roots, degree, weight), sampler=sampler, weight=name, progress=False) as loader:
        seeds = np.arange(num_roots) + hop * num_roots * (degree + 1)
        return (picks(loader.sample(seeds, index=index), np.arange(num_roots), fan_out) - num_roots) % degree


@pytest.mark.parametrize(("degree", "fan_out"), [(6, 3), (7, 1), (7, 6), (9, 4), (40, 2)])
def test_labor_every_subset_is_equally_likely(degree: int, fan_out: int) -> None:
    subsets = {subset: i for i, subset in enumerate(itertools.combinations(range(degree), fan_out))}
    drawn = labor_picks(2 * NUM_ROOTS, degree, fan_out)
    check_counts(np.bincount([subsets[tuple(row)] for row in drawn.tolist()], minlength=len(subsets)))


def test_labor_nodes_with_the_same_neighbours_take_the_same() -> None:
    drawn = sample_roots(200, 30, 4, sampler=Labor([4]))
    assert (drawn == drawn[0]).all() and len(set(sample_roots(1, 30, 4, draws=50, sampler=Labor([4])).ravel())) == 30


def test_labor_weights() -> None:
    """A neighbour wins with the probability that a number between 0 and 1/w is the smallest; twice the weight is not twice that."""
    weight = np.array([1.0, 2.0, 0.0, 4.0, 3.0])
    probabilities = []
    for i in range(len(weight)):
        density = np.polynomial.Polynomial([weight[i]])
        for j in range(len(weight)):
            density *= np.polynomial.Polynomial([1.0, -weight[j]]) if j != i else 1.0
        probabilities.append(float(density.integ()(1 / weight.max())))
    check_counts(np.bincount(labor_picks(NUM_ROOTS, 5, 1, weight=weight).ravel(), minlength=5), probabilities)
    assert (labor_picks(50, 5, 4, weight=weight) == [0, 1, 3, 4]).all()


def test_labor_hops_are_independent_unless_they_are_to_depend() -> None:
    first, second = labor_picks(NUM_ROOTS, 4, 1), labor_picks(NUM_ROOTS, 4, 1, hop=1)
    check_independent(first[:, 0], second[:, 0], 4)
    options: dict[str, Any] = {"layer_dependency": True}
    assert (labor_picks(300, 4, 1, **options) == labor_picks(300, 4, 1, hop=1, **options)).all()


def test_labor_batches_change_slowly_and_then_wholly() -> None:
    """A quarter of the variates changes with each batch: of two neighbours none, one or both; and after four batches all have."""
    same = 9 / 16 + 6 / 16 * 2 / 3 + 1 / 16 / 2
    drawn = [labor_picks(NUM_ROOTS, 2, 1, index, batch_dependency=4)[:, 0] for index in (5, 6, 9)]
    check_counts(np.bincount(drawn[0] == drawn[1], minlength=2), [1 - same, same])
    check_independent(drawn[0], drawn[2], 2)
    alone = [labor_picks(NUM_ROOTS, 2, 1, index)[:, 0] for index in (5, 6)]
    check_independent(*alone, 2)

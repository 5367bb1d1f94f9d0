"""Where nodes of a neighbourhood are drawn."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from gnnkit.ui.plots import GAP, place, thinned


def random_tree(rng: np.random.Generator, num_roots: int, num_nodes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Parents and hops, in the order of hops."""
    parent, hop = [-1] * num_roots, [0] * num_roots
    while len(parent) < num_nodes:
        above = int(rng.integers(max(0, len(parent) - 12), len(parent)))
        parent.append(above)
        hop.append(hop[above] + 1)
    order = np.argsort(hop, kind="stable")
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    above = np.array(parent)[order]
    return np.where(above < 0, -1, number[above]), np.array(hop)[order]


@pytest.mark.parametrize("num_roots", [1, 2, 5])
def test_rings_and_sectors(num_roots: int) -> None:
    """Nobody stands on another, the top is free, and those who hang below one node stand together."""
    for number in range(20):
        parent, hop = random_tree(np.random.default_rng(number), num_roots, 60)
        spots = place(parent, hop)
        radius = np.hypot(*spots.T)
        np.testing.assert_allclose(radius[hop > 0], hop[hop > 0])
        assert (radius[hop == 0] == 0).all() if num_roots == 1 else (radius[hop == 0] < 0.5).all()
        from_top = np.mod(np.arctan2(*spots.T[::-1]) - np.pi / 2, 2 * np.pi)
        assert (from_top[hop > 0] > GAP / 2).all() and (from_top[hop > 0] < 2 * np.pi - GAP / 2).all()
        for depth in range(1, int(hop.max()) + 1):
            here = np.flatnonzero(hop == depth)
            here = here[np.argsort(from_top[here])]
            assert (np.diff(from_top[here]) > 1e-9).all()
            families = parent[here]
            assert len(set(families.tolist())) == 1 + int((np.diff(families) != 0).sum())  # each family in one piece


def test_two_roots_stand_beside_each_other() -> None:
    (left, right) = place(np.array([-1, -1, 0, 1]), np.array([0, 0, 1, 1]))[:2]
    assert left[0] == pytest.approx(-right[0]) and left[0] < 0 and left[1] == pytest.approx(right[1])


def test_too_many_nodes() -> None:
    for number in range(20):
        rng = np.random.default_rng(number)
        parent, hop = random_tree(rng, 2, 500)
        limit = int(rng.integers(2 + 2 * int(hop.max()), 500))
        kept = thinned(parent, hop, limit)
        assert kept[:2].all() and kept[parent[kept & (parent >= 0)]].all()
        most = max(int(np.bincount(parent[kept & (parent >= 0)]).max()), 1)
        assert kept.sum() <= limit or most == 1
        rank = [int((parent[:node] == parent[node]).sum()) for node in range(500)]
        for node in np.flatnonzero(kept & (parent >= 0)):  # the first children of each
            siblings = np.flatnonzero(parent == parent[node])
            assert kept[siblings[: rank[node] + 1]].all()
    assert thinned(parent, hop, 500).all()

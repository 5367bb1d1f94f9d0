"""Where the nodes of a neighbourhood are drawn: hop by hop on rings, each below the node through which it was met first."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Roots that share the middle stand this far from it, in rings.
_ROOT_RADIUS = 0.3
# What stays free at the top, in radians, for the names of the rings.
GAP = 0.42


def thinned(parent: NDArray[np.int64], hop: NDArray[np.int64], limit: int) -> NDArray[np.bool_]:
    """Chooses nodes to draw where there are too many: of every node the same number of children, the first ones, and theirs.

    Args:
        parent: int64 ``[n]``, parents come before their children; -1 for roots.
        hop: int64 ``[n]``, ascending; 0 for roots.
        limit: The most nodes, if roots and one child of each are not more.

    Returns:
        ``[n]``, whether a node is drawn.
    """
    order = _rank_among_siblings(parent)
    kept = np.ones(len(parent), np.bool_)
    most = int(order.max(initial=0)) + 1
    while kept.sum() > limit and most > 1:
        # Halved while far too many, then one by one: what is left is close to the limit.
        most = max(1, min(most - 1, most // 2 if kept.sum() > 2 * limit else most - 1))
        kept = (order < most) | (parent < 0)
        for depth in range(1, int(hop.max(initial=0)) + 1):
            here = (hop == depth) & (parent >= 0)
            kept[here] &= kept[parent[here]]
    return kept


def _rank_among_siblings(parent: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of earlier children of the same parent: int64 ``[n]``."""
    by_parent = np.argsort(parent, kind="stable")
    grouped = parent[by_parent]
    first = np.searchsorted(grouped, grouped, side="left")
    rank = np.empty(len(parent), np.int64)
    rank[by_parent] = np.arange(len(parent)) - first
    return rank


def place(parent: NDArray[np.int64], hop: NDArray[np.int64]) -> NDArray[np.float64]:
    """Places nodes on rings: hop ``h`` at radius ``h``, each in the middle of a sector as wide as its descendants need; the top stays free.

    Args:
        parent: int64 ``[n]``, parents come before their children; -1 for roots, which come first.
        hop: int64 ``[n]``, ascending; 0 for roots.

    Returns:
        float64 ``[n, 2]``, x and y.
    """
    count = len(parent)
    leaves = np.ones(count, np.float64)
    has_children = np.zeros(count, np.bool_)
    has_children[parent[parent >= 0]] = True
    leaves[has_children] = 0.0
    for node in range(count - 1, -1, -1):
        if parent[node] >= 0:
            leaves[parent[node]] += leaves[node]
    width = (2 * np.pi - GAP) * leaves / max(float(leaves[parent < 0].sum()), 1.0)
    begin, taken = np.zeros(count), np.zeros(count)
    turn = (np.pi + GAP) / 2  # from the top, so that two roots stand beside each other
    for node in range(count):
        above = parent[node]
        if above < 0:
            begin[node] = turn
            turn += width[node]
        else:
            begin[node] = begin[above] + taken[above]
            taken[above] += width[node]
    angle = begin + width / 2
    num_roots = int((parent < 0).sum())
    radius = np.where(hop == 0, _ROOT_RADIUS if num_roots > 1 else 0.0, hop)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)

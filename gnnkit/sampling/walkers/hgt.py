"""HGT sampling: a fixed number of nodes of each type in each iteration, drawn by budgets of integers."""

from __future__ import annotations

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from gnnkit.kernels.jit import helper, kernel
from gnnkit.kernels.keys import PURPOSE_BUDGETS, fold, text_key
from gnnkit.kernels.stream import bit_length, bounded, draw_u64
from gnnkit.plan import HGTSampling
from gnnkit.sampling.graph_access import GraphAccess
from gnnkit.sampling.owners import Expansion
from gnnkit.sampling.passes import FRONTIER, NEIGHBOR
from gnnkit.sampling.subgraph import Walked, WalkedEdges, WalkSeeds
from gnnkit.sampling.walkers.layer_seen import FrontierEdges, SeenNodes, extended, seen_nodes
from gnnkit.schema import is_label_edge_type

# Intrinsics have no type hints, so what they return is Any to mypy.
# mypy: disable-error-code="no-any-return"


# A node hands out this much through each edge type; what its neighbours get of it is a whole number.
SHARE = 1 << 32
# The sum of all squares stays below 2 to this power.
_SUM_BITS = 62


@kernel("void(int64[::1], int64[::1], int64[::1], int64[::1])")
def add_shares(counts: NDArray[np.int64], slots: NDArray[np.int64], number: NDArray[np.int64], budget: NDArray[np.int64]) -> None:
    """Divides what each node hands out evenly among its neighbours; those with a number get none of theirs.

    Args:
        counts: int64 ``[n]``, neighbours of each node.
        slots: int64 ``[sum of counts]``.
        number: int64 ``[slots]``, -1 for nodes that are not in the batch.
        budget: int64 ``[slots]``, added to.
    """
    q = 0
    for i in range(counts.size):
        share = SHARE // max(1, counts[i])
        for _ in range(counts[i]):
            if number[slots[q]] < 0:
                budget[slots[q]] += share
            q += 1


@helper
def _squares(budget: NDArray[np.int64], slots: NDArray[np.int64], weight: NDArray[np.int64]) -> int:
    """Squared budgets, scaled down so that they can be added up; returns their sum."""
    most = 0
    for slot in slots:
        most = max(most, budget[slot])
    shift = max(0, bit_length(most) - (_SUM_BITS - bit_length(slots.size)) // 2)
    total = 0
    for i in range(slots.size):
        root = max(1, budget[slots[i]] >> shift)
        weight[i] = root * root
        total += weight[i]
    return total


@kernel("int64[::1](uint64, int64, int64[::1], int64[::1])")
def draw_nodes(key: int, count: int, number: NDArray[np.int64], budget: NDArray[np.int64]) -> NDArray[np.int64]:
    """Draws nodes without replacement, each in proportion to its squared budget; all of them, in order, if they are not more.

    Args:
        key: Of batch, purpose, iteration and node type.
        count: How many to draw.
        number: int64 ``[slots]``, -1 for those that may be drawn.
        budget: int64 ``[slots]``.

    Returns:
        int64 ``[at most count]``, slots in the order in which they were drawn.
    """
    slots = np.empty(number.size, np.int64)
    size = 0
    for slot in range(number.size):
        if number[slot] < 0:
            slots[size] = slot
            size += 1
    slots = slots[:size]
    if size <= count:
        return slots.copy()
    weight = np.empty(size, np.int64)
    total = _squares(budget, slots, weight)
    # Running sums from which weights can be taken again: a binary indexed tree (Fenwick, Software 24(3), 1994).
    tree = np.empty(size + 1, np.int64)
    tree[0] = 0
    tree[1:] = weight
    for i in range(1, size + 1):
        above = i + (i & -i)
        if above <= size:
            tree[above] += tree[i]
    top = 1
    while 2 * top <= size:
        top *= 2
    drawn = np.empty(count, np.int64)
    for i in range(count):
        target = bounded(draw_u64(uint64(key), i), total)
        position, step = 0, top
        while step > 0:
            if position + step <= size and tree[position + step] <= target:
                position += step
                target -= tree[position]
            step >>= 1
        drawn[i] = slots[position]
        total -= weight[position]
        node = position + 1
        while node <= size:
            tree[node] -= weight[position]
            node += node & -node
    return drawn


@kernel("int64(int64[::1], int64[::1], int64[::1], int64, int64[::1], int64[::1], int64[::1], int64[::1])")
def keep_edges(
    counts: NDArray[np.int64],
    slots: NDArray[np.int64],
    number: NDArray[np.int64],
    first: int,
    position: NDArray[np.int64],
    row: NDArray[np.int64],
    col: NDArray[np.int64],
    kept_position: NDArray[np.int64],
) -> int:
    """The edges whose neighbour is in the batch.

    Args:
        counts: int64 ``[n]``, edges of each node; the nodes have consecutive numbers.
        slots: int64 ``[sum of counts]``, the neighbours' slots, -1 for one that was never met.
        number: int64 ``[slots]``.
        first: The first node's number.
        position: int64 ``[sum of counts]``, or empty where positions are not wanted.
        row: Filled: numbers of neighbours.
        col: Filled: numbers of nodes.
        kept_position: Filled where ``position`` is not empty.

    Returns:
        How many there are.
    """
    q = kept = 0
    for i in range(counts.size):
        for _ in range(counts[i]):
            slot = slots[q]
            if slot >= 0 and number[slot] >= 0:
                row[kept], col[kept] = number[slot], first + i
                if position.size:
                    kept_position[kept] = position[q]
                kept += 1
            q += 1
    return kept


# The most edges that a node draws of one type: torch-sparse's MAX_NEIGHBORS, so that budgets do not fill with neighbours of hubs.
MAX_NEIGHBORS = 50

_NO_POSITIONS = np.empty(0, np.int64)


class HGTWalker:
    """Walks with budgets; one object per thread.

    Args:
        sampling: How many nodes of each type are drawn in each iteration.
    """

    def __init__(self, sampling: HGTSampling) -> None:
        self._sampling, self._num_hops = sampling, sampling.num_hops
        self._seen: list[SeenNodes] = []

    def walk(self, seeds: WalkSeeds, key: int, reach: GraphAccess) -> Walked:
        """Chooses the nodes of a batch, and those of their edges that lead to one another.

        Raises:
            GnnkitError: The graph is damaged, or a host did not answer.
        """
        node_types, none = reach.tables.node_types, (0,) * self._num_hops
        self._seen = self._seen or seen_nodes(reach.tables)
        for t, nodes in enumerate(self._seen):
            nodes.begin(seeds.nodes.get(t))
        self._budgets = [np.zeros(nodes.size, np.int64) for nodes in self._seen]
        self._drawn: list[list[FrontierEdges]] = [[] for _ in reach.tables.edge_types]
        num_sampled = [[nodes.count] for nodes in self._seen]
        new = dict(seeds.nodes)
        purpose = fold(key, PURPOSE_BUDGETS)
        for iteration in range(self._num_hops):
            self._expand(new, key, iteration, reach)
            new = {}
            for t, nodes in enumerate(self._seen):
                walk, before = fold(fold(purpose, iteration), text_key(node_types[t])), nodes.count
                count = self._sampling.num_samples.get(node_types[t], none)[iteration]
                nodes.enter(draw_nodes(np.uint64(walk), count, nodes.number, self._budgets[t]))
                new[t] = nodes.nodes()[before:]
                num_sampled[t].append(len(new[t]))
        self._expand(new, key, self._num_hops, reach)
        edges = [self._edges(r, reach) for r in range(len(self._drawn))]
        return Walked([nodes.nodes() for nodes in self._seen], num_sampled, edges, seeds)

    def _expand(self, new: dict[int, NDArray[np.int64]], key: int, iteration: int, reach: GraphAccess) -> None:
        """Draws the edges of the nodes that are new, and adds to their neighbours' budgets; there is no more use for those at last."""
        relations, is_last = reach.tables.relations, iteration == self._num_hops
        fan_outs = np.array([0 if is_label_edge_type(edge_type) else MAX_NEIGHBORS for edge_type in reach.tables.edge_types], np.int64)
        drawing = {t: nodes for t, nodes in new.items() if len(nodes)}
        for r, picks in reach.expand(Expansion(key, iteration, fan_outs, drawing)).items():
            t, n = relations[r, FRONTIER], relations[r, NEIGHBOR]
            seen, counts = self._seen[n], np.ascontiguousarray(picks.counts, np.int64).copy()
            slots = seen.slots(picks.neighbors, insert=not is_last)
            position = np.array(picks.positions, np.int64) if reach.wants_position[r] else _NO_POSITIONS
            self._drawn[r].append(FrontierEdges(self._seen[t].count - len(new[t]), counts, slots, position))
            if not is_last:
                self._budgets[n] = extended(self._budgets[n], seen.size)
                add_shares(counts, slots, seen.number, self._budgets[n])

    def _edges(self, r: int, reach: GraphAccess) -> WalkedEdges:
        """The edges of one type among the batch's nodes, node after node. They belong to no hop: both ends may be of any."""
        n, wanted = reach.tables.relations[r, NEIGHBOR], reach.wants_position[r]
        size, count = sum(len(drawn.slots) for drawn in self._drawn[r]), 0
        row, col, position = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size if wanted else 0, np.int64)
        for drawn in self._drawn[r]:
            count += keep_edges(
                drawn.counts, drawn.slots, self._seen[n].number, drawn.first, drawn.position, row[count:], col[count:], position[count:]
            )  # fmt: skip
        shown = reach.shown_type(reach.tables.edge_types[r])
        return WalkedEdges(shown, r, row[:count], col[:count], position[:count] if wanted else None, [])

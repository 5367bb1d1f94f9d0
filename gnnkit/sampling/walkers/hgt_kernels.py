"""Budgets of an HGT walk: shares added up in integers, and draws in proportion to their squares."""

# Intrinsics have no type hints, so what they return is Any to mypy.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from gnnkit.kernels.jit import helper, kernel
from gnnkit.kernels.stream import bit_length, bounded, draw_u64

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

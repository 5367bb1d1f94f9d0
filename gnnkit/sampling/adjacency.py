"""Kernels that look into stored edges without drawing: degrees, single edges, and the edges among given nodes."""

# Intrinsics have no type hints, so what they return is Any to mypy.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from gnnkit.sampling.jit import helper, kernel
from gnnkit.sampling.native import load_i32, load_i64
from gnnkit.sampling.passes import (
    DAMAGED,
    FIRST_POSITION,
    INDICES,
    INDICES_WIDTH,
    INDPTR,
    INDPTR_WIDTH,
    NUM_EDGES,
    WEIGHT_PREFIX,
    find_part,
    load_id,
)
from gnnkit.sampling.stream import GOLDEN

FULL = -1
# In a table of members: nothing is here.
EMPTY = -1
# Up to so many members a sparser table still lies in the fastest caches, and looks up nearly twice as fast.
_FEW = 1 << 11


@helper
def edge_range(relation: NDArray[np.int64], parts: NDArray[np.int64], bounds: NDArray[np.int64], node: int) -> tuple[int, int, int]:
    """A node's part, and the first of its edges there and one more than the last; the latter is DAMAGED where they make no sense."""
    p = 0 if bounds.size == 2 else find_part(bounds, node)
    width = relation[INDPTR_WIDTH]
    start = load_id(parts[p, INDPTR], node - bounds[p], width)
    stop = load_id(parts[p, INDPTR], node - bounds[p] + 1, width)
    if start < 0 or stop < start or stop > parts[p, NUM_EDGES]:
        return p, 0, DAMAGED
    return p, start, stop


@kernel("boolean(int64[::1], int64[:, ::1], int64[::1], int64[::1], int64[::1])")
def add_degrees(
    relation: NDArray[np.int64], parts: NDArray[np.int64], bounds: NDArray[np.int64], nodes: NDArray[np.int64], degrees: NDArray[np.int64]
) -> bool:
    """Adds the number of edges of one type that each node owns to ``degrees``; False where the graph is damaged.

    Args:
        relation: int64 ``[6]``, see ``walk.walk``, and so for the next two.
        parts: int64 ``[P, 6]``.
        bounds: int64 ``[P + 1]``.
        nodes: int64 ``[n]``, store ids of parts that are here.
        degrees: int64 ``[n]``.
    """
    for i in range(nodes.size):
        _, start, stop = edge_range(relation, parts, bounds, nodes[i])
        if stop == DAMAGED:
            return False
        degrees[i] += stop - start
    return True


@kernel("boolean(int64[::1], int64[:, ::1], int64[::1], int64[::1], int64[::1], uint8[::1])")
def find_edges(
    relation: NDArray[np.int64],
    parts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    nodes: NDArray[np.int64],
    others: NDArray[np.int64],
    found: NDArray[np.uint8],
) -> bool:
    """Whether each node has an edge whose other end is the other node at its place; returns False where the graph is damaged.

    Args:
        relation: See ``add_degrees``, and so for those that are not described here.
        parts: int64 ``[P, 6]``.
        bounds: int64 ``[P + 1]``.
        nodes: int64 ``[n]``.
        others: int64 ``[n]``.
        found: uint8 ``[n]``, filled.
    """
    width = relation[INDICES_WIDTH]
    for i in range(nodes.size):
        p, start, stop = edge_range(relation, parts, bounds, nodes[i])
        if stop == DAMAGED:
            return False
        found[i] = 0
        for q in range(start, stop):
            if load_id(parts[p, INDICES], q, width) == others[i]:
                found[i] = 1
                break
    return True


@helper
def _enter(members: NDArray[np.int64], order: NDArray[np.int64], begin: int, end: int, table: NDArray[np.int32]) -> int:
    """Enters the members of a root into a table of their own; returns the base-2 logarithm of its length.

    The table is small enough for the fastest cache where the root has few members, and sparse, so that most neighbours, which are no
    members, meet an empty place at once.
    """
    bits, share = 3, 16 if end - begin <= _FEW else 4
    while (1 << bits) < share * (end - begin):
        bits += 1
    mask = uint64((1 << bits) - 1)
    table[: 1 << bits] = EMPTY
    for q in range(begin, end):
        slot = (uint64(members[order[q]]) * uint64(GOLDEN)) >> uint64(64 - bits)
        while table[slot] != EMPTY and members[table[slot]] != members[order[q]]:
            slot = (slot + uint64(1)) & mask
        if table[slot] == EMPTY:
            table[slot] = order[q]
    return bits


@kernel(
    "UniTuple(int64, 2)(int64[::1], int64[:, ::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1],"
    " int32[::1], int64, int64, int64[::1], int64[::1], int64[::1])"
)
def induce(
    relation: NDArray[np.int64],
    parts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    nodes: NDArray[np.int64],
    node_roots: NDArray[np.int64],
    node_order: NDArray[np.int64],
    members: NDArray[np.int64],
    member_roots: NDArray[np.int64],
    member_order: NDArray[np.int64],
    table: NDArray[np.int32],
    first: int,
    num_edges: int,
    counts: NDArray[np.int64],
    places: NDArray[np.int64],
    positions: NDArray[np.int64],
) -> tuple[int, int]:
    """Lists nodes' edges to members of their root, root after root, and in the stored order.

    Args:
        relation: See ``add_degrees``, and so for those that are not described here.
        parts: int64 ``[P, 6]``.
        bounds: int64 ``[P + 1]``.
        nodes: int64 ``[n]``.
        node_roots: int64 ``[n]``.
        node_order: int64 ``[n]``, sorts the nodes stably by root.
        members: int64 ``[m]``.
        member_roots: int64 ``[m]``.
        member_order: int64 ``[m]``, sorts the members stably by root.
        table: int32, scratch; as long as the first power of two that is 8 and ``16 * m`` at least.
        first: Where in ``node_order`` to begin, 0 unless a call before has left off.
        num_edges: Edges that are there already.
        counts: int64 ``[n]``, filled: edges of each node.
        places: int64, filled: where the edges' other ends are in ``members``; of equal ones the first.
        positions: int64, as long as ``places``, filled; empty where they are not wanted.

    Returns:
        Where in ``node_order`` it has left off because there is no room for all edges of a node, ``n`` where it has not, and DAMAGED; and
        the number of edges.
    """
    width, bits, begin, end = relation[INDICES_WIDTH], 0, 0, 0
    for q in range(first, nodes.size):
        i = node_order[q]
        if q == first or node_roots[i] != node_roots[node_order[q - 1]]:
            begin = end
            while begin < members.size and member_roots[member_order[begin]] < node_roots[i]:
                begin += 1
            end = begin
            while end < members.size and member_roots[member_order[end]] == node_roots[i]:
                end += 1
            bits = _enter(members, member_order, begin, end, table)
        p, start, stop = edge_range(relation, parts, bounds, nodes[i])
        if stop == DAMAGED:
            return DAMAGED, num_edges
        before, mask, shift = num_edges, uint64((1 << bits) - 1), uint64(64 - bits)
        indices = parts[p, INDICES]
        for edge in range(start, stop):
            u = load_i32(indices + edge * 4) if width == 4 else load_i64(indices + edge * 8)
            slot = (uint64(u) * uint64(GOLDEN)) >> shift
            place = table[slot]
            while place != EMPTY and members[uint64(place)] != u:
                slot = (slot + uint64(1)) & mask
                place = table[slot]
            if place == EMPTY:
                continue
            if num_edges == places.size:
                return q, before
            places[num_edges] = place
            if positions.size:
                positions[num_edges] = parts[p, FIRST_POSITION] + edge
            num_edges += 1
        counts[i] = num_edges - before
    return nodes.size, num_edges


@kernel("void(int64[::1], int64[::1], int64[::1], int64[::1])")
def in_order(counts: NDArray[np.int64], order: NDArray[np.int64], values: NDArray[np.int64], sorted_values: NDArray[np.int64]) -> None:
    """Puts nodes' values, which lie node after node in another order, into the order of the nodes.

    Args:
        counts: int64 ``[n]``, values of each node.
        order: int64 ``[n]``, the nodes in the order in which their values lie.
        values: int64 ``[sum of counts]``.
        sorted_values: int64 ``[sum of counts]``, filled.
    """
    starts, total = np.empty(counts.size, np.int64), 0
    for i in range(counts.size):
        starts[i] = total
        total += counts[i]
    taken = 0
    for i in order:
        for q in range(counts[i]):
            sorted_values[starts[i] + q] = values[taken + q]
        taken += counts[i]


@kernel("int64(int64[::1], int64[:, ::1], int64[::1], int64[::1], int64[::1], int64[::1])")
def list_weights(
    relation: NDArray[np.int64],
    parts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    nodes: NDArray[np.int64],
    counts: NDArray[np.int64],
    weights: NDArray[np.int64],
) -> int:
    """Lists the integer weights of nodes' edges, those of weight 0 left out.

    Args:
        relation: See ``add_degrees``, and so for those that are not described here.
        parts: int64 ``[P, 6]``.
        bounds: int64 ``[P + 1]``.
        nodes: int64 ``[n]``.
        counts: int64 ``[n]``, filled: weights of each node.
        weights: int64, filled, node after node.

    Returns:
        The number of weights, or FULL where there is no room for all, or DAMAGED.
    """
    total = 0
    for i in range(nodes.size):
        p, start, stop = edge_range(relation, parts, bounds, nodes[i])
        if stop == DAMAGED:
            return DAMAGED
        before, running = total, np.int64(0)
        for position in range(start, stop):
            until = load_i64(parts[p, WEIGHT_PREFIX] + position * 8)
            if until == running:
                continue
            if total == weights.size:
                return FULL
            weights[total] = until - running
            running = until
            total += 1
        counts[i] = total - before
    return total

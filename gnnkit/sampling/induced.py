"""The kernel that lists the edges among given nodes; ``docs/sampling.md`` specifies them.

Most edges lead to nodes that are not among them, and every edge costs. So a node's edges are first looked up in marks, a bit for each hash
value, which lie in the fastest caches and take no branch; those that pass are looked up in a table of the members. Memory is asked for the
rows of nodes ahead. ``docs/performance.md`` has what each is worth.
"""

# Intrinsics have no type hints, so what they return is Any to mypy.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from gnnkit.kernels.jit import helper, kernel
from gnnkit.kernels.keys import GOLDEN
from gnnkit.kernels.native import asks, prefetch
from gnnkit.sampling.adjacency import ask_edges, edge_range
from gnnkit.sampling.passes import DAMAGED, FIRST_POSITION, INDICES, INDICES_WIDTH, INDPTR, INDPTR_WIDTH, find_part, load_id, nodes_ahead

# In a table of members: nothing is here.
_EMPTY = -1
# Places of the table for a member, at least.
_SPARSE = 4
# Marks for a member, at least: of few members more lie in the fastest cache, and fewer of the others pass.
_FEW, _MARKS_OF_FEW, _MARKS = 1 << 11, 64, 32
# Edges of a node that are looked up at a time.
_CHUNK = 1024
# How many nodes ahead memory is asked for the bounds of a row, and for the row, of which the first lines.
_BOUNDS_AHEAD, _ROW_AHEAD, _LINES, _LINE = 16, 4, 8, 64


def scratch_for(num_members: int) -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
    """A table and marks for ``induce``, large enough for so many members."""
    # Both are as long as a power of two that may be nearly twice as much as what is wanted.
    table = np.empty(max(8, 2 * _SPARSE * num_members), np.int32)
    return table, np.empty(max(_FEW * _MARKS_OF_FEW, 2 * _MARKS * num_members) // 64 + 1, np.uint64)


@helper
def _enter(members: NDArray[np.int64], order: NDArray[np.int64], begin: int, end: int, table: NDArray[np.int32]) -> int:
    """Enters the members of a root into a table of their own; returns the base-2 logarithm of its length."""
    bits = 3
    while (1 << bits) < _SPARSE * (end - begin):
        bits += 1
    mask = uint64((1 << bits) - 1)
    table[: 1 << bits] = _EMPTY
    for q in range(begin, end):
        slot = (uint64(members[order[q]]) * uint64(GOLDEN)) >> uint64(64 - bits)
        while table[slot] != _EMPTY and members[table[slot]] != members[order[q]]:
            slot = (slot + uint64(1)) & mask
        if table[slot] == _EMPTY:
            table[slot] = order[q]
    return bits


@helper
def _mark(members: NDArray[np.int64], order: NDArray[np.int64], begin: int, end: int, marks: NDArray[np.uint64]) -> int:
    """Marks the members of a root; returns the base-2 logarithm of the number of marks."""
    bits, share = 6, _MARKS_OF_FEW if end - begin <= _FEW else _MARKS
    while (1 << bits) < share * (end - begin):
        bits += 1
    marks[: 1 << (bits - 6)] = uint64(0)
    for q in range(begin, end):
        mark = (uint64(members[order[q]]) * uint64(GOLDEN)) >> uint64(64 - bits)
        marks[mark >> uint64(6)] |= uint64(1) << (mark & uint64(63))
    return bits


@helper
def _candidates(indices: int, width: int, start: int, stop: int, marks: NDArray[np.uint64], bits: int, found: NDArray[np.int64]) -> int:
    """Lists the edges whose other ends have a mark, as every member has; returns how many. A loop without a branch."""
    count, shift = uint64(0), uint64(64 - bits)
    for edge in range(start, stop):
        mark = (uint64(load_id(indices, edge, width)) * uint64(GOLDEN)) >> shift
        found[count] = edge
        count += (marks[mark >> uint64(6)] >> (mark & uint64(63))) & uint64(1)
    return np.int64(count)


@helper
def _ask_ahead(
    relation: NDArray[np.int64],
    parts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    nodes: NDArray[np.int64],
    order: NDArray[np.int64],
    q: int,
) -> None:
    """Asks memory for the bounds of a row that comes later, and for the row of a node that comes sooner."""
    if q + _BOUNDS_AHEAD < nodes.size:
        v = nodes[order[q + _BOUNDS_AHEAD]]
        p = find_part(bounds, v)
        prefetch(parts[p, INDPTR] + (v - bounds[p]) * relation[INDPTR_WIDTH])
    if q + _ROW_AHEAD < nodes.size:
        v = nodes[order[q + _ROW_AHEAD]]
        p = find_part(bounds, v)
        row = parts[p, INDICES] + load_id(parts[p, INDPTR], v - bounds[p], relation[INDPTR_WIDTH]) * relation[INDICES_WIDTH]
        for line in range(_LINES):
            prefetch(row + line * _LINE)


@helper
def _look_up(
    relation: NDArray[np.int64],
    parts: NDArray[np.int64],
    p: int,
    found: NDArray[np.int64],
    count: int,
    members: NDArray[np.int64],
    table: NDArray[np.int32],
    bits: int,
    num_edges: int,
    places: NDArray[np.int64],
    positions: NDArray[np.int64],
) -> int:
    """Keeps the candidates whose other ends are members; returns the number of edges. There is room for all."""
    mask, shift, indices, width = uint64((1 << bits) - 1), uint64(64 - bits), parts[p, INDICES], relation[INDICES_WIDTH]
    for c in range(count):
        u = load_id(indices, found[c], width)
        slot = (uint64(u) * uint64(GOLDEN)) >> shift
        place = table[slot]
        while place != _EMPTY and members[uint64(place)] != u:
            slot = (slot + uint64(1)) & mask
            place = table[slot]
        places[num_edges] = place
        if positions.size:
            positions[num_edges] = parts[p, FIRST_POSITION] + found[c]
        num_edges += place != _EMPTY
    return num_edges


@kernel(
    "UniTuple(int64, 2)(int64[::1], int64[::1], int64[:, ::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1],"
    " int64[::1], int32[::1], uint64[::1], int64, int64, int64[::1], int64[::1], int64[::1])"
)
def induce(
    ahead: NDArray[np.int64],
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
    marks: NDArray[np.uint64],
    first: int,
    num_edges: int,
    counts: NDArray[np.int64],
    places: NDArray[np.int64],
    positions: NDArray[np.int64],
) -> tuple[int, int]:
    """Lists nodes' edges to members of their root, root after root, and in the stored order.

    Args:
        ahead: See ``adjacency.add_degrees``, and so for those that are not described here.
        relation: int64 ``[6]``.
        parts: int64 ``[P, 6]``.
        bounds: int64 ``[P + 1]``.
        nodes: int64 ``[n]``.
        node_roots: int64 ``[n]``.
        node_order: int64, sorts the nodes stably by root; or its first part, where the rest is for a later call.
        members: int64 ``[m]``.
        member_roots: int64 ``[m]``.
        member_order: int64 ``[m]``, sorts the members stably by root.
        table: int32, of ``scratch_for``.
        marks: uint64, likewise.
        first: Where in ``node_order`` to begin, 0 unless a call before has left off.
        num_edges: Edges that are there already.
        counts: int64 ``[n]``, filled: edges of each node.
        places: int64, filled: where the edges' other ends are in ``members``; of equal ones the first.
        positions: int64, as long as ``places``, filled; empty where they are not wanted.

    Returns:
        Where in ``node_order`` it has left off because there is no room for all edges of a node, its length where it has not, and DAMAGED;
        and the number of edges.
    """
    bits, mark_bits, begin, end = 0, 0, 0, 0
    found = np.empty(_CHUNK + 1, np.int64)
    together = nodes_ahead(ahead, node_order.size)
    for q in range(first, node_order.size):
        i = node_order[q]
        if asks(ahead) and (q - first) % together == 0:
            next_nodes = nodes[node_order[q : q + together]]
            ask_edges(ahead, relation, parts, bounds, next_nodes, INDICES, relation[INDICES_WIDTH])
        _ask_ahead(relation, parts, bounds, nodes, node_order, q)
        if q == first or node_roots[i] != node_roots[node_order[q - 1]]:
            begin = end
            while begin < members.size and member_roots[member_order[begin]] < node_roots[i]:
                begin += 1
            end = begin
            while end < members.size and member_roots[member_order[end]] == node_roots[i]:
                end += 1
            bits = _enter(members, member_order, begin, end, table)
            mark_bits = _mark(members, member_order, begin, end, marks)
        p, start, stop = edge_range(relation, parts, bounds, nodes[i])
        if stop == DAMAGED:
            return DAMAGED, num_edges
        before = num_edges
        for chunk in range(start, stop, _CHUNK):
            count = _candidates(parts[p, INDICES], relation[INDICES_WIDTH], chunk, min(stop, chunk + _CHUNK), marks, mark_bits, found)
            if count > places.size - num_edges:
                return q, before
            num_edges = _look_up(relation, parts, p, found, count, members, table, bits, num_edges, places, positions)
        counts[i] = num_edges - before
    return node_order.size, num_edges


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

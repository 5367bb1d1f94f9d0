"""Kernels that look into stored edges without drawing: degrees, single edges, and weights."""

# Intrinsics have no type hints, so what they return is Any to mypy.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gnnkit.kernels.jit import helper, kernel
from gnnkit.kernels.native import ask, asks, load_i64, use
from gnnkit.sampling.passes import (
    DAMAGED,
    INDICES,
    INDICES_WIDTH,
    INDPTR,
    INDPTR_WIDTH,
    NUM_EDGES,
    WEIGHT_PREFIX,
    find_part,
    load_id,
    nodes_ahead,
)

FULL = -1


@helper
def edge_range(relation: NDArray[np.int64], parts: NDArray[np.int64], bounds: NDArray[np.int64], node: int) -> tuple[int, int, int]:
    """A node's part, and the first of its edges there and one more than the last; the latter is DAMAGED where they make no sense."""
    p = find_part(bounds, node)
    width = relation[INDPTR_WIDTH]
    start = load_id(parts[p, INDPTR], node - bounds[p], width)
    stop = load_id(parts[p, INDPTR], node - bounds[p] + 1, width)
    if start < 0 or stop < start or stop > parts[p, NUM_EDGES]:
        return p, 0, DAMAGED
    return p, start, stop


@helper
def ask_edges(
    ahead: NDArray[np.int64],
    relation: NDArray[np.int64],
    parts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    nodes: NDArray[np.int64],
    column: int,
    width: int,
) -> None:
    """Asks the disk for the row bounds of nodes, and for an array of their edges.

    Args:
        ahead: int64 ``[4 + 2 K]``, ``ReadAhead.table``.
        relation: See ``add_degrees``, and so for the next three.
        parts: int64 ``[P, 6]``.
        bounds: int64 ``[P + 1]``.
        nodes: int64 ``[n]``.
        column: Column of ``parts`` that has the array's address; ``INDPTR``: the bounds are all.
        width: Bytes of an element of the array.
    """
    for node in nodes:
        p = find_part(bounds, node)
        ask(ahead, parts[p, INDPTR] + (node - bounds[p]) * relation[INDPTR_WIDTH], 2 * relation[INDPTR_WIDTH])
    for node in nodes:
        p = find_part(bounds, node)
        use(ahead, parts[p, INDPTR] + (node - bounds[p]) * relation[INDPTR_WIDTH], 2 * relation[INDPTR_WIDTH])
    if column != INDPTR:
        for node in nodes:
            p, start, stop = edge_range(relation, parts, bounds, node)
            if start < stop:
                ask(ahead, parts[p, column] + start * width, (stop - start) * width)


@kernel("boolean(int64[::1], int64[::1], int64[:, ::1], int64[::1], int64[::1], int64[::1])")
def add_degrees(
    ahead: NDArray[np.int64],
    relation: NDArray[np.int64],
    parts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    nodes: NDArray[np.int64],
    degrees: NDArray[np.int64],
) -> bool:
    """Adds the number of edges of one type that each node owns to ``degrees``; False where the graph is damaged.

    Args:
        ahead: int64 ``[4 + 2 K]``, ``ReadAhead.table``.
        relation: int64 ``[6]``, see ``walk.walk``, and so for the next two.
        parts: int64 ``[P, 6]``.
        bounds: int64 ``[P + 1]``.
        nodes: int64 ``[n]``, store ids of parts that are here.
        degrees: int64 ``[n]``.
    """
    together = nodes_ahead(ahead, nodes.size)
    for i in range(nodes.size):
        if asks(ahead) and i % together == 0:
            ask_edges(ahead, relation, parts, bounds, nodes[i : i + together], INDPTR, 0)
        _, start, stop = edge_range(relation, parts, bounds, nodes[i])
        if stop == DAMAGED:
            return False
        degrees[i] += stop - start
    return True


@kernel("boolean(int64[::1], int64[::1], int64[:, ::1], int64[::1], int64[::1], int64[::1], uint8[::1])")
def find_edges(
    ahead: NDArray[np.int64],
    relation: NDArray[np.int64],
    parts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    nodes: NDArray[np.int64],
    others: NDArray[np.int64],
    found: NDArray[np.uint8],
) -> bool:
    """Whether each node has an edge whose other end is the other node at its place; returns False where the graph is damaged.

    Args:
        ahead: See ``add_degrees``, and so for those that are not described here.
        relation: int64 ``[6]``.
        parts: int64 ``[P, 6]``.
        bounds: int64 ``[P + 1]``.
        nodes: int64 ``[n]``.
        others: int64 ``[n]``.
        found: uint8 ``[n]``, filled.
    """
    width = relation[INDICES_WIDTH]
    together = nodes_ahead(ahead, nodes.size)
    for i in range(nodes.size):
        if asks(ahead) and i % together == 0:
            ask_edges(ahead, relation, parts, bounds, nodes[i : i + together], INDICES, width)
        p, start, stop = edge_range(relation, parts, bounds, nodes[i])
        if stop == DAMAGED:
            return False
        found[i] = 0
        for q in range(start, stop):
            if load_id(parts[p, INDICES], q, width) == others[i]:
                found[i] = 1
                break
    return True


@kernel("int64(int64[::1], int64[::1], int64[:, ::1], int64[::1], int64[::1], int64[::1], int64[::1])")
def list_weights(
    ahead: NDArray[np.int64],
    relation: NDArray[np.int64],
    parts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    nodes: NDArray[np.int64],
    counts: NDArray[np.int64],
    weights: NDArray[np.int64],
) -> int:
    """Lists the integer weights of nodes' edges, those of weight 0 left out.

    Args:
        ahead: See ``add_degrees``, and so for those that are not described here.
        relation: int64 ``[6]``.
        parts: int64 ``[P, 6]``.
        bounds: int64 ``[P + 1]``.
        nodes: int64 ``[n]``.
        counts: int64 ``[n]``, filled: weights of each node.
        weights: int64, filled, node after node.

    Returns:
        The number of weights, or FULL where there is no room for all, or DAMAGED.
    """
    together = nodes_ahead(ahead, nodes.size)
    total = 0
    for i in range(nodes.size):
        if asks(ahead) and i % together == 0:
            ask_edges(ahead, relation, parts, bounds, nodes[i : i + together], WEIGHT_PREFIX, 8)
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

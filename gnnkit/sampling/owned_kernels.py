"""Kernels that draw the edges of given nodes, and look whose nodes they are."""

# Intrinsics have no type hints, so what they return is Any to mypy.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from gnnkit.kernels.jit import kernel
from gnnkit.kernels.native import load_i64, store_i64
from gnnkit.sampling.passes import (
    BLOCK,
    CAPACITY,
    COUNT,
    DAMAGED,
    INDICES_WIDTH,
    NUM_NEIGHBOR_NODES,
    ROW,
    choose,
    find_part,
    load_id,
    measure,
)
from gnnkit.sampling.picks import takes_all

FULL = -1


@kernel(
    "int64(int64[::1], int64[:, ::1], int64[::1], int64[:, ::1], int64, boolean, boolean, uint64, int64, int64, int64, int64, int64[::1],"
    " int64[::1], int64[::1], int64[::1])"
)
def expand_owned(
    relation: NDArray[np.int64],
    parts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    global_id: NDArray[np.int64],
    fan_out: int,
    replace: bool,
    latest: bool,
    key: int,
    nodes: int,
    num_nodes: int,
    roots: int,
    times: int,
    counts: NDArray[np.int64],
    buffers: NDArray[np.int64],
    picks: NDArray[np.int64],
    table: NDArray[np.int64],
) -> int:
    """Draws the edges of nodes, one edge type, in the passes of ``walk.walk``.

    Args:
        relation: int64 ``[6]``, see ``walk.walk``, and so for those that are not described here.
        parts: int64 ``[P, 6]``.
        bounds: int64 ``[P + 1]``.
        global_id: int64 ``[P, 2]``.
        fan_out: -1 for all edges.
        replace: Whether an edge may be drawn more than once.
        latest: Whether a node's last edges are taken, where they have times, instead of some that are drawn.
        key: Of batch, hop and edge type; and of the root, where ``roots`` is 0.
        nodes: Address of int64 ``[num_nodes]`` store ids, all of local parts.
        num_nodes: How many.
        roots: Address of int64 ``[num_nodes]``, or 0.
        times: Address of int64 ``[num_nodes]``: later edges do not count; or 0.
        counts: int64 ``[num_nodes]``, filled: edges of each node.
        buffers: int64 ``[4]``; rows receive the neighbours' store ids, columns are scratch.
        picks: int64, as long as the most edges that a node draws.
        table: int64, scratch of ``picks.pick_uniform``.

    Returns:
        The number of edges, or FULL where the buffers are too small, or DAMAGED where an index leads out of the graph.
    """
    work = np.empty((4, BLOCK), np.int64)
    row, width, num_edges = buffers[ROW], relation[INDICES_WIDTH], 0
    for first in range(0, num_nodes, BLOCK):
        last = min(num_nodes, first + BLOCK)
        needed = measure(relation, parts, bounds, fan_out, replace, nodes, first, last, num_nodes, times, work)
        if needed < 0:
            return DAMAGED
        if num_edges + needed > buffers[CAPACITY]:
            return FULL
        end = choose(
            relation, parts, bounds, global_id, fan_out, replace, latest, uint64(key), nodes, roots, first, last, buffers, num_edges, work,
            picks, table,
        )  # fmt: skip
        for i in range(first, last):
            count = work[COUNT, i - first]
            counts[i] = count if count == 0 or takes_all(count, fan_out, replace) else fan_out
        damaged = False
        for q in range(num_edges, end):
            u = load_id(load_i64(row + q * 8), 0, width)
            damaged |= uint64(u) >= uint64(relation[NUM_NEIGHBOR_NODES])
            store_i64(row + q * 8, u)
        if damaged:
            return DAMAGED
        num_edges = end
    return num_edges


@kernel("boolean(int64, int64, int64[::1], int64[::1])")
def all_local(ids: int, count: int, bounds: NDArray[np.int64], is_local: NDArray[np.int64]) -> bool:
    """Whether every id is one of a local part.

    Args:
        ids: Address of int64 ``[count]``.
        count: How many.
        bounds: int64 ``[P + 1]``.
        is_local: int64 ``[P]``, 1 for local parts.
    """
    local = True
    for i in range(count):
        v = load_i64(ids + i * 8)
        inside = 0 <= v < bounds[bounds.size - 1]
        local &= inside and is_local[find_part(bounds, v if inside else 0)] == 1
    return local

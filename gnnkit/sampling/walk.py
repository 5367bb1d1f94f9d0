"""The sampling kernel: a whole multi-hop walk over a typed graph in one call, without the GIL.

It works through the frontier in blocks of ``BLOCK`` nodes, and through each block in passes, so that every random access was
asked of memory a pass earlier: row bounds, then draws, then neighbour ids, then the relabelling table. Four things carry its
speed, each measured alone: a direct-address table for relabelling instead of a hash map, prefetching, scratch that is
reused, and tables of addresses, so that parts and dtypes cost a branch and not a copy of the code.
"""

# Intrinsics have no type hints, so what they return is Any to mypy.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from gnnkit.kernels.jit import helper, kernel
from gnnkit.kernels.stream import fold_u64
from gnnkit.sampling.passes import (
    BLOCK,
    CAPACITY,
    DAMAGED,
    DONE,
    FRONTIER,
    INDICES_WIDTH,
    NEIGHBOR,
    NODES,
    ROW,
    WEIGHTED,
    WORK_ROWS,
    ask_draws,
    choose,
    mark_seeds,
    measure,
    nodes_ahead,
    number,
    use_draws,
)
from gnnkit.sampling.picks import LINEAR_FAN_OUT


@helper
def _expand(
    ahead: NDArray[np.int64],
    relation: NDArray[np.int64],
    parts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    global_id: NDArray[np.int64],
    fan_out: int,
    replace: bool,
    key: np.uint64,
    variates: NDArray[np.uint64],
    ids: NDArray[np.int64],
    nodes: int,
    begin: int,
    end: int,
    neighbor: NDArray[np.int64],
    num_neighbors: int,
    buffers: NDArray[np.int64],
    num_edges: int,
    work: NDArray[np.int64],
    picks: NDArray[np.int64],
    table: NDArray[np.int64],
) -> tuple[int, int]:
    """Samples one edge type for the frontier nodes ``[begin, end)``.

    Returns the new number of neighbour nodes and of edges; -1 edges say that the buffers are full, DAMAGED what it says.
    """
    together = nodes_ahead(ahead, end - begin)
    for first in range(begin, end, BLOCK):
        last = min(end, first + BLOCK)
        if (first - begin) % together == 0:
            ask_draws(
                ahead, relation, parts, bounds, global_id, fan_out, replace, False, key, variates, ids, nodes, 0, 0, 0, first,
                min(end, first + together), buffers, num_edges, work, picks, table,
            )  # fmt: skip
        needed = measure(relation, parts, bounds, fan_out, replace, nodes, first, last, end, 0, 0, work)
        if needed < 0:
            return num_neighbors, DAMAGED
        if num_edges + needed > buffers[CAPACITY]:
            return num_neighbors, -1
        e = choose(
            relation, parts, bounds, global_id, fan_out, replace, False, key, variates, ids, nodes, 0, first, last, buffers, num_edges,
            work, picks, table,
        )  # fmt: skip
        use_draws(ahead, buffers[ROW], num_edges, e, relation[INDICES_WIDTH])
        numbered = number(relation, buffers[ROW], num_edges, e, neighbor, num_neighbors)
        if numbered < 0:
            return num_neighbors, DAMAGED
        num_neighbors, num_edges = numbered, e
    return num_neighbors, num_edges


@helper
def _most_picks(relations: NDArray[np.int64], fan_outs: NDArray[np.int64], edge_buffers: NDArray[np.int64]) -> int:
    """The most edges that one node may draw or, with weights, take."""
    most = 1
    for r in range(fan_outs.shape[0]):
        for fan_out in fan_outs[r]:
            most = max(most, fan_out)
            if fan_out < 0 and relations[r, WEIGHTED] == 1:
                most = max(most, edge_buffers[r, CAPACITY])
    return most


@kernel(
    "int64(int64[::1], int64[:, ::1], int64[:, :, ::1], int64[:, ::1], int64[:, :, ::1], uint64[::1], int64[:, ::1], boolean, uint64,"
    " uint64[:, :, ::1], int64[:, ::1], int64[:, ::1], int64[:, ::1], int64[::1], int64[:, ::1], int64[:, ::1])"
)
def walk(
    ahead: NDArray[np.int64],
    relations: NDArray[np.int64],
    parts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    global_ids: NDArray[np.int64],
    relation_keys: NDArray[np.uint64],
    fan_outs: NDArray[np.int64],
    replace: bool,
    key: int,
    variates: NDArray[np.uint64],
    ids: NDArray[np.int64],
    node_buffers: NDArray[np.int64],
    edge_buffers: NDArray[np.int64],
    num_nodes: NDArray[np.int64],
    num_sampled_nodes: NDArray[np.int64],
    num_sampled_edges: NDArray[np.int64],
) -> int:
    """Samples a batch's neighbourhood.

    Args:
        ahead: int64 ``[4 + 2 K]``, ``ReadAhead.table``.
        relations: int64 ``[R, 6]``, see the column names above; edge types in canonical order.
        parts: int64 ``[R, P, 6]``.
        bounds: int64 ``[T, P + 1]``, store ids at which each part starts.
        global_ids: int64 ``[T, P, 2]``: address of a part's dataset ids (0 for the identity) and their width in bytes.
        relation_keys: uint64 ``[R]``, ``text_key`` of each edge type.
        fan_outs: int64 ``[R, H]``, -1 for all neighbours.
        replace: Whether a neighbour may be drawn more than once.
        key: ``batch_key``.
        variates: uint64 ``[H, R, 4]``, see ``picks``; ``[H, R, 0]`` where edges are drawn by who draws.
        ids: int64 ``[T, 2]``, likewise; the dataset's ids are read with ``variates`` alone.
        node_buffers: int64 ``[T, 3]``, see the column names above: an int32 relabelling table ``[number of nodes]``, an int64 array
            of nodes in the order of their numbers, long enough for every node and seed, and the base: entries up to it are of
            earlier calls, and ``base + 1 + number`` stands for a number of this one.
        edge_buffers: int64 ``[R, 4]``, see the column names above.
        num_nodes: int64 ``[T]``; on entry the number of seeds, whose store ids are in the node arrays; on return all nodes.
        num_sampled_nodes: int64 ``[T, H + 1]``, filled.
        num_sampled_edges: int64 ``[R, H]``, filled.

    Returns:
        DONE; or DAMAGED where an index leads out of the graph; or the index of the edge type whose buffers were too small, and the
        call is to be repeated. In each case ``num_nodes`` says how many numbers were given out.
    """
    num_relations, num_hops = fan_outs.shape
    most = _most_picks(relations, fan_outs, edge_buffers)
    size = 2
    while size < 2 * most and most > LINEAR_FAN_OUT:
        size *= 2
    picks, table, work = np.empty(most + 1, np.int64), np.empty(size, np.int64), np.empty((WORK_ROWS, BLOCK), np.int64)
    begin, end = np.zeros_like(num_nodes), num_nodes.copy()
    num_edges = np.zeros(num_relations, np.int64)
    num_sampled_nodes[:, 0] = num_nodes
    mark_seeds(node_buffers, num_nodes)
    outcome = DONE
    for hop in range(num_hops):
        hop_key = fold_u64(uint64(key), uint64(hop))
        for r in range(num_relations):
            f, n, before = relations[r, FRONTIER], relations[r, NEIGHBOR], num_edges[r]
            if outcome == DONE and fan_outs[r, hop] != 0:
                relation_key = fold_u64(fold_u64(hop_key, relation_keys[r]), uint64(0))  # the root is 0: batches are not disjoint
                num_nodes[n], num_edges[r] = _expand(
                    ahead, relations[r], parts[r], bounds[f], global_ids[f], fan_outs[r, hop], replace, relation_key,
                    variates[hop, r], ids[n], node_buffers[f, NODES], begin[f], end[f], node_buffers[n], num_nodes[n], edge_buffers[r],
                    num_edges[r], work, picks, table,
                )  # fmt: skip
                if num_edges[r] < 0:
                    outcome = DAMAGED if num_edges[r] == DAMAGED else r
            num_sampled_edges[r, hop] = num_edges[r] - before
        for t in range(num_nodes.size):
            num_sampled_nodes[t, hop + 1] = num_nodes[t] - end[t]
            begin[t], end[t] = end[t], num_nodes[t]
    return outcome

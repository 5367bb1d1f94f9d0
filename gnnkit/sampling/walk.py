"""The sampling kernel: whole multi-hop walks over a typed graph, of one batch or of several, in one call without the GIL.

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
from gnnkit.kernels.native import store_i32, store_i64
from gnnkit.kernels.stream import fold_u64
from gnnkit.sampling.passes import (
    BASE,
    BLOCK,
    CAPACITY,
    COL,
    DAMAGED,
    DONE,
    FRONTIER,
    INDICES_WIDTH,
    LOCAL_OF,
    NEIGHBOR,
    NODES,
    POSITION,
    ROW,
    STRANGE,
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

_LARGEST_INT32 = (1 << 31) - 1


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


@helper
def _enter(
    bounds: NDArray[np.int64],
    seeds: NDArray[np.int64],
    seed_starts: NDArray[np.int64],
    node_buffers: NDArray[np.int64],
    room: NDArray[np.int64],
    num_nodes: NDArray[np.int64],
) -> bool:
    """Begins a batch with its seeds; False where one is no node of the graph. ``num_nodes``, of the batch before, become its own."""
    parts = bounds.shape[1] - 1
    for t in range(num_nodes.size):
        size, base = bounds[t, parts], node_buffers[t, BASE] + num_nodes[t]
        if base + 2 * (size + room[t]) > _LARGEST_INT32:  # numbers run out: the table is cleared
            for v in range(size):
                store_i32(node_buffers[t, LOCAL_OF] + v * 4, 0)
            base = 0
        node_buffers[t, BASE], num_nodes[t] = base, 0
    for t in range(num_nodes.size):
        first, count = seed_starts[t], seed_starts[t + 1] - seed_starts[t]
        for i in range(count):
            seed = seeds[first + i]
            if uint64(seed) >= uint64(bounds[t, parts]):
                return False
            store_i64(node_buffers[t, NODES] + i * 8, seed)
        num_nodes[t] = count
    mark_seeds(node_buffers, num_nodes)
    return True


@helper
def _walk_one(
    ahead: NDArray[np.int64],
    relations: NDArray[np.int64],
    parts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    global_ids: NDArray[np.int64],
    relation_keys: NDArray[np.uint64],
    fan_outs: NDArray[np.int64],
    replace: bool,
    key: np.uint64,
    variates: NDArray[np.uint64],
    ids: NDArray[np.int64],
    node_buffers: NDArray[np.int64],
    edge_buffers: NDArray[np.int64],
    num_nodes: NDArray[np.int64],
    num_edges: NDArray[np.int64],
    num_sampled_nodes: NDArray[np.int64],
    num_sampled_edges: NDArray[np.int64],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    work: NDArray[np.int64],
    picks: NDArray[np.int64],
    table: NDArray[np.int64],
) -> int:
    """Walks from the seeds that ``_enter`` has entered; DONE, DAMAGED, or the index of the edge type whose buffers are full."""
    num_relations, num_hops = fan_outs.shape
    for t in range(num_nodes.size):
        begin[t], end[t], num_sampled_nodes[t, 0] = 0, num_nodes[t], num_nodes[t]
    num_edges[:] = 0
    for hop in range(num_hops):
        hop_key = fold_u64(key, uint64(hop))
        for r in range(num_relations):
            f, n, before = relations[r, FRONTIER], relations[r, NEIGHBOR], num_edges[r]
            if fan_outs[r, hop] != 0:
                relation_key = fold_u64(fold_u64(hop_key, relation_keys[r]), uint64(0))  # the root is 0: batches are not disjoint
                num_nodes[n], found = _expand(
                    ahead, relations[r], parts[r], bounds[f], global_ids[f], fan_outs[r, hop], replace, relation_key,
                    variates[hop, r], ids[n], node_buffers[f, NODES], begin[f], end[f], node_buffers[n], num_nodes[n], edge_buffers[r],
                    num_edges[r], work, picks, table,
                )  # fmt: skip
                if found < 0:
                    return DAMAGED if found == DAMAGED else r
                num_edges[r] = found
            num_sampled_edges[r, hop] = num_edges[r] - before
        for t in range(num_nodes.size):
            num_sampled_nodes[t, hop + 1] = num_nodes[t] - end[t]
            begin[t], end[t] = end[t], num_nodes[t]
    return DONE


@kernel(
    "UniTuple(int64, 2)(int64[::1], int64[:, ::1], int64[:, :, ::1], int64[:, ::1], int64[:, :, ::1], uint64[::1], int64[:, ::1], boolean,"
    " uint64[::1], uint64[:, :, :, ::1], int64[:, ::1], int64[::1], int64[:, ::1], int64[:, ::1], int64[::1], int64[:, ::1], int64[::1],"
    " int64[:, :, ::1], int64[:, :, ::1])"
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
    keys: NDArray[np.uint64],
    variates: NDArray[np.uint64],
    ids: NDArray[np.int64],
    seeds: NDArray[np.int64],
    seed_starts: NDArray[np.int64],
    node_buffers: NDArray[np.int64],
    room: NDArray[np.int64],
    edge_buffers: NDArray[np.int64],
    num_nodes: NDArray[np.int64],
    num_sampled_nodes: NDArray[np.int64],
    num_sampled_edges: NDArray[np.int64],
) -> tuple[int, int]:
    """Samples the neighbourhoods of batches, one after the other: their nodes and edges lie behind each other in the buffers.

    Args:
        ahead: int64 ``[4 + 2 K]``, ``ReadAhead.table``.
        relations: int64 ``[R, 6]``, see the column names above; edge types in canonical order.
        parts: int64 ``[R, P, 6]``.
        bounds: int64 ``[T, P + 1]``, store ids at which each part starts.
        global_ids: int64 ``[T, P, 2]``: address of a part's dataset ids (0 for the identity) and their width in bytes.
        relation_keys: uint64 ``[R]``, ``text_key`` of each edge type.
        fan_outs: int64 ``[R, H]``, -1 for all neighbours.
        replace: Whether a neighbour may be drawn more than once.
        keys: uint64 ``[B]``, ``batch_key`` of each batch.
        variates: uint64 ``[B, H, R, 4]``, see ``picks``; ``[B, H, R, 0]`` where edges are drawn by who draws.
        ids: int64 ``[T, 2]``, likewise; the dataset's ids are read with ``variates`` alone.
        seeds: int64 ``[S]``, store ids.
        seed_starts: int64 ``[B, T + 1]``: the seeds of a batch and a node type are those between two neighbouring ones.
        node_buffers: int64 ``[T, 3]``, see the column names above: an int32 relabelling table ``[number of nodes]``, an int64 array
            of nodes in the order of their numbers, and the base: entries up to it are of earlier batches, and ``base + 1 + number``
            stands for a number of this one.
        room: int64 ``[T]``, the lengths of the arrays of nodes: more than all nodes of the type and the seeds of a batch together.
        edge_buffers: int64 ``[R, 4]``, see the column names above.
        num_nodes: int64 ``[T]``: how many numbers the last batch has given out, on entry that of the call before.
        num_sampled_nodes: int64 ``[B, T, H + 1]``, filled.
        num_sampled_edges: int64 ``[B, R, H]``, filled.

    Returns:
        How many batches there are, and DONE; those that the buffers had no room for are left to another call. Where there is none, as
        the second number DAMAGED where an index leads out of the graph, STRANGE where a seed does, or the index of the edge type whose
        buffers are too small.
    """
    num_relations, num_types = fan_outs.shape[0], num_nodes.size
    most = _most_picks(relations, fan_outs, edge_buffers)
    size = 2
    while size < 2 * most and most > LINEAR_FAN_OUT:
        size *= 2
    picks, table, work = np.empty(most + 1, np.int64), np.empty(size, np.int64), np.empty((WORK_ROWS, BLOCK), np.int64)
    begin, end, num_edges = np.empty(num_types, np.int64), np.empty(num_types, np.int64), np.empty(num_relations, np.int64)
    # The buffers of one batch: those of all, from the end of the batch before on.
    own_nodes, own_edges, left = node_buffers.copy(), edge_buffers.copy(), room.copy()
    for b in range(keys.size):
        for t in range(num_types):
            if bounds[t, bounds.shape[1] - 1] + seed_starts[b, t + 1] - seed_starts[b, t] >= left[t]:
                return b, DONE
        if not _enter(bounds, seeds, seed_starts[b], own_nodes, room, num_nodes):
            outcome = STRANGE
        else:
            outcome = _walk_one(
                ahead, relations, parts, bounds, global_ids, relation_keys, fan_outs, replace, keys[b], variates[b], ids, own_nodes,
                own_edges, num_nodes, num_edges, num_sampled_nodes[b], num_sampled_edges[b], begin, end, work, picks, table,
            )  # fmt: skip
        node_buffers[:, BASE] = own_nodes[:, BASE]
        if outcome != DONE:
            return b, DONE if b > 0 else outcome
        for t in range(num_types):
            own_nodes[t, NODES] += 8 * num_nodes[t]
            left[t] -= num_nodes[t]
        for r in range(num_relations):
            for column in (ROW, COL, POSITION):
                if own_edges[r, column] != 0:
                    own_edges[r, column] += 8 * num_edges[r]
            own_edges[r, CAPACITY] -= num_edges[r]
    return keys.size, DONE

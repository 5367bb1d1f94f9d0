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

from gnnkit.sampling.jit import helper, kernel
from gnnkit.sampling.native import load_i32, load_i64, prefetch, store_i32, store_i64
from gnnkit.sampling.picks import LINEAR_FAN_OUT, num_taken, pick, take_positive, takes_all
from gnnkit.sampling.stream import fold_u64

# Columns of ``relations`` [num_edge_types, 6].
FRONTIER, NEIGHBOR, INDPTR_WIDTH, INDICES_WIDTH, WEIGHTED, NUM_NEIGHBOR_NODES = range(6)
# Columns of ``parts`` [num_edge_types, num_parts, 5]: three addresses, the part's first edge position and its number of edges.
INDPTR, INDICES, WEIGHT_PREFIX, FIRST_POSITION, NUM_EDGES = range(5)
# Columns of ``edge_buffers`` [num_edge_types, 4]: three addresses of int64 arrays (0 where not wanted) and their capacity.
ROW, COL, POSITION, CAPACITY = range(4)
# Columns of ``node_buffers`` [num_node_types, 3]: two addresses and a number.
LOCAL_OF, NODES, BASE = range(3)

# Rows of ``work`` [4, BLOCK]: of each node of a block, its part, first edge, degree and number of edges to take.
PART, START, DEGREE, COUNT = range(4)

BLOCK = 64

# What ``walk`` returns when it is done, and when an index led out of the graph; 0 and above is an edge type whose buffers are full.
DONE, DAMAGED = -1, -2


@helper
def load_id(address: int, index: int, width: int) -> int:
    """Element ``index`` of an int32 (``width`` 4) or int64 array."""
    if width == 4:
        return load_i32(address + index * 4)
    return load_i64(address + index * 8)


@helper
def find_part(bounds: NDArray[np.int64], value: int) -> int:
    """The part ``p`` with ``bounds[p] <= value < bounds[p + 1]``."""
    low, high = 0, bounds.size - 1
    while high - low > 1:
        middle = (low + high) >> 1
        if value >= bounds[middle]:
            low = middle
        else:
            high = middle
    return low


@helper
def measure(
    relation: NDArray[np.int64],
    parts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    fan_out: int,
    replace: bool,
    nodes: int,
    first: int,
    last: int,
    end: int,
    work: NDArray[np.int64],
) -> int:
    """First pass over a block: each node's part, first edge, degree and number of edges to take; returns how many at most, or DAMAGED.

    Asks memory for the next block's row bounds and for this block's first neighbour ids.
    """
    indptr_width, width, weighted = relation[INDPTR_WIDTH], relation[INDICES_WIDTH], relation[WEIGHTED] == 1
    single = bounds.size == 2
    for i in range(last, min(end, last + BLOCK)):
        v = load_i64(nodes + i * 8)
        p = 0 if single else find_part(bounds, v)
        prefetch(parts[p, INDPTR] + (v - bounds[p]) * indptr_width)
    needed = 0
    for i in range(first, last):
        v = load_i64(nodes + i * 8)
        p = 0 if single else find_part(bounds, v)
        start = load_id(parts[p, INDPTR], v - bounds[p], indptr_width)
        stop = load_id(parts[p, INDPTR], v - bounds[p] + 1, indptr_width)
        if start < 0 or stop < start or stop > parts[p, NUM_EDGES]:
            return DAMAGED
        degree = stop - start
        count = num_taken(degree, fan_out, replace, weighted, parts[p, WEIGHT_PREFIX] + start * 8)
        b = i - first
        work[PART, b], work[START, b], work[DEGREE, b], work[COUNT, b] = p, start, degree, count
        prefetch(parts[p, INDICES] + start * width)
        needed += min(count, fan_out) if fan_out >= 0 else count
    return needed


@helper
def choose(
    relation: NDArray[np.int64],
    parts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    global_id: NDArray[np.int64],
    fan_out: int,
    replace: bool,
    key: np.uint64,
    nodes: int,
    first: int,
    last: int,
    buffers: NDArray[np.int64],
    e: int,
    work: NDArray[np.int64],
    picks: NDArray[np.int64],
    table: NDArray[np.int64],
) -> int:
    """Second pass: which edges, as addresses of their neighbour ids, asked of memory; returns the new number of edges."""
    row, col, position = buffers[ROW], buffers[COL], buffers[POSITION]
    width, weighted = relation[INDICES_WIDTH], relation[WEIGHTED] == 1
    for i in range(first, last):
        b = i - first
        p, start, degree, count = work[PART, b], work[START, b], work[DEGREE, b], work[COUNT, b]
        if count == 0:
            continue
        base, prefix = parts[p, INDICES] + start * width, parts[p, WEIGHT_PREFIX] + start * 8
        everything = takes_all(count, fan_out, replace)
        taken = count if everything else fan_out
        if everything and not weighted:
            for q in range(taken):
                store_i64(row + (e + q) * 8, base + q * width)
            for q in range(16, taken, 16):
                prefetch(base + q * width)
        else:
            if everything:
                take_positive(prefix, degree, taken, picks)
            else:
                node = load_i64(nodes + i * 8)
                if global_id[p, 0] != 0:
                    node = load_id(global_id[p, 0], node - bounds[p], global_id[p, 1])
                pick(fold_u64(key, uint64(node)), prefix, degree, taken, replace, weighted, picks, table)
            for q in range(taken):
                address = base + picks[q] * width
                prefetch(address)
                store_i64(row + (e + q) * 8, address)
        for q in range(e, e + taken):
            store_i64(col + q * 8, i)
        if position != 0:
            shift = 2 if width == 4 else 3
            for q in range(e, e + taken):
                store_i64(position + q * 8, parts[p, FIRST_POSITION] + ((load_i64(row + q * 8) - parts[p, INDICES]) >> shift))
        e += taken
    return e


@helper
def number(relation: NDArray[np.int64], row: int, begin: int, end: int, neighbor: NDArray[np.int64], num_neighbors: int) -> int:
    """Third pass: the neighbours' ids, and then their numbers; returns the new number of neighbour nodes, or DAMAGED."""
    local_of, width, damaged = neighbor[LOCAL_OF], relation[INDICES_WIDTH], False
    for q in range(begin, end):
        u = load_id(load_i64(row + q * 8), 0, width)
        damaged |= uint64(u) >= uint64(relation[NUM_NEIGHBOR_NODES])
        store_i64(row + q * 8, u)
        prefetch(local_of + u * 4)
    if damaged:
        return DAMAGED
    return relabel(row, begin, end, neighbor, num_neighbors)


@helper
def relabel(row: int, begin: int, end: int, neighbor: NDArray[np.int64], num_neighbors: int) -> int:
    """Fourth pass: writes numbers over the neighbours' ids; returns the new number of neighbour nodes."""
    local_of, nodes, base = neighbor[LOCAL_OF], neighbor[NODES], neighbor[BASE]
    for q in range(begin, end):
        u = load_i64(row + q * 8)
        local = load_i32(local_of + u * 4) - base
        if local <= 0:
            store_i64(nodes + num_neighbors * 8, u)
            num_neighbors += 1
            local = num_neighbors
            store_i32(local_of + u * 4, base + local)
        store_i64(row + q * 8, local - 1)
    return num_neighbors


@helper
def _expand(
    relation: NDArray[np.int64],
    parts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    global_id: NDArray[np.int64],
    fan_out: int,
    replace: bool,
    key: np.uint64,
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
    for first in range(begin, end, BLOCK):
        last = min(end, first + BLOCK)
        needed = measure(relation, parts, bounds, fan_out, replace, nodes, first, last, end, work)
        if needed < 0:
            return num_neighbors, DAMAGED
        if num_edges + needed > buffers[CAPACITY]:
            return num_neighbors, -1
        e = choose(relation, parts, bounds, global_id, fan_out, replace, key, nodes, first, last, buffers, num_edges, work, picks, table)
        numbered = number(relation, buffers[ROW], num_edges, e, neighbor, num_neighbors)
        if numbered < 0:
            return num_neighbors, DAMAGED
        num_neighbors, num_edges = numbered, e
    return num_neighbors, num_edges


@helper
def mark_seeds(node_buffers: NDArray[np.int64], num_nodes: NDArray[np.int64]) -> None:
    """Enters the seeds into the relabelling tables; a repeated seed keeps a number of its own, and neighbours find the first."""
    for t in range(num_nodes.size):
        for i in range(num_nodes[t]):
            slot = node_buffers[t, LOCAL_OF] + load_i64(node_buffers[t, NODES] + i * 8) * 4
            if load_i32(slot) <= node_buffers[t, BASE]:
                store_i32(slot, node_buffers[t, BASE] + i + 1)


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
    "int64(int64[:, ::1], int64[:, :, ::1], int64[:, ::1], int64[:, :, ::1], uint64[::1], int64[:, ::1], boolean, uint64,"
    " int64[:, ::1], int64[:, ::1], int64[::1], int64[:, ::1], int64[:, ::1])"
)
def walk(
    relations: NDArray[np.int64],
    parts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    global_ids: NDArray[np.int64],
    relation_keys: NDArray[np.uint64],
    fan_outs: NDArray[np.int64],
    replace: bool,
    key: int,
    node_buffers: NDArray[np.int64],
    edge_buffers: NDArray[np.int64],
    num_nodes: NDArray[np.int64],
    num_sampled_nodes: NDArray[np.int64],
    num_sampled_edges: NDArray[np.int64],
) -> int:
    """Samples a batch's neighbourhood.

    Args:
        relations: int64 ``[R, 6]``, see the column names above; edge types in canonical order.
        parts: int64 ``[R, P, 5]``.
        bounds: int64 ``[T, P + 1]``, store ids at which each part starts.
        global_ids: int64 ``[T, P, 2]``: address of a part's dataset ids (0 for the identity) and their width in bytes.
        relation_keys: uint64 ``[R]``, ``text_key`` of each edge type.
        fan_outs: int64 ``[R, H]``, -1 for all neighbours.
        replace: Whether a neighbour may be drawn more than once.
        key: ``batch_key``.
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
    picks, table, work = np.empty(most, np.int64), np.empty(size, np.int64), np.empty((4, BLOCK), np.int64)
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
                    relations[r], parts[r], bounds[f], global_ids[f], fan_outs[r, hop], replace, relation_key, node_buffers[f, NODES],
                    begin[f], end[f], node_buffers[n], num_nodes[n], edge_buffers[r], num_edges[r], work, picks, table,
                )  # fmt: skip
                if num_edges[r] < 0:
                    outcome = DAMAGED if num_edges[r] == DAMAGED else r
            num_sampled_edges[r, hop] = num_edges[r] - before
        for t in range(num_nodes.size):
            num_sampled_nodes[t, hop + 1] = num_nodes[t] - end[t]
            begin[t], end[t] = end[t], num_nodes[t]
    return outcome

"""Kernels of a walk over several hosts: nodes sorted by owner, answers merged in the order of the walk, rows put in their places."""

# Intrinsics have no type hints, so what they return is Any to mypy.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from gnnkit.kernels.jit import helper, kernel
from gnnkit.kernels.native import copy_bytes, load_i32, load_i64, prefetch, store_i64
from gnnkit.sampling.passes import (
    BASE,
    BLOCK,
    CAPACITY,
    COL,
    DAMAGED,
    LOCAL_OF,
    NODES,
    NUM_NEIGHBOR_NODES,
    POSITION,
    ROW,
    find_part,
    load_id,
    relabel,
)

# Columns of ``sources`` [number of hosts, 5], a host's answer about one edge type: address of int64 ``[n + 1]`` offsets of the
# nodes' edges, of the neighbours and their width, of the edges' positions and their width.
OFFSETS, NEIGHBORS, NEIGHBOR_WIDTH, POSITIONS, POSITION_WIDTH = range(5)

_LINE = 64
_AHEAD = 16


@kernel("void(int64[::1], int64, int64, boolean, int64[::1], int64[::1], int64[::1], int64[::1], int64[:, ::1], int64[::1])")
def sort_by_owner(
    node_buffer: NDArray[np.int64],
    begin: int,
    end: int,
    are_seeds: bool,
    bounds: NDArray[np.int64],
    host_of_part: NDArray[np.int64],
    owner: NDArray[np.int64],
    slot: NDArray[np.int64],
    lists: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> None:
    """Sorts the nodes ``[begin, end)`` of one type by the host that owns them, each node once.

    Args:
        node_buffer: int64 ``[3]``, see ``walk.walk``.
        begin: Number of the first node.
        end: One more than the last's.
        are_seeds: Whether a node may come twice.
        bounds: int64 ``[P + 1]``.
        host_of_part: int64 ``[P]``.
        owner: int64 ``[end - begin]``, filled: each node's host.
        slot: int64 ``[end - begin]``, filled: its index in the host's list.
        lists: int64 ``[number of hosts, end - begin]``, filled: store ids.
        counts: int64 ``[number of hosts]``, filled: lengths of the lists.
    """
    counts[:] = 0
    for i in range(begin, end):
        v = load_i64(node_buffer[NODES] + i * 8)
        if are_seeds:
            first = load_i32(node_buffer[LOCAL_OF] + v * 4) - node_buffer[BASE] - 1
            if first != i:
                owner[i - begin], slot[i - begin] = owner[first - begin], slot[first - begin]
                continue
        host = host_of_part[find_part(bounds, v)]
        owner[i - begin], slot[i - begin] = host, counts[host]
        lists[host, counts[host]] = v
        counts[host] += 1


@kernel("UniTuple(int64, 2)(int64[::1], int64, int64[::1], int64[::1], int64, int64[:, ::1], int64[::1], int64, int64[::1], int64)")
def merge(
    relation: NDArray[np.int64],
    begin: int,
    owner: NDArray[np.int64],
    slot: NDArray[np.int64],
    count: int,
    sources: NDArray[np.int64],
    neighbor: NDArray[np.int64],
    num_neighbors: int,
    buffers: NDArray[np.int64],
    num_edges: int,
) -> tuple[int, int]:
    """Takes one edge type's edges of a hop from the hosts' answers, in the order of the frontier, and numbers their neighbours.

    Args:
        relation: int64 ``[6]``, see ``walk.walk``.
        begin: Number of the first frontier node.
        owner: int64 ``[count]``, see ``sort_by_owner``.
        slot: int64 ``[count]``.
        count: Frontier nodes.
        sources: int64 ``[number of hosts, 5]``, see the column names above.
        neighbor: int64 ``[3]``, the neighbours' node buffer.
        num_neighbors: Nodes that it holds.
        buffers: int64 ``[4]``, the edge type's buffers.
        num_edges: Edges that they hold.

    Returns:
        The new numbers of neighbour nodes and of edges. In the place of the edges, DAMAGED where a neighbour is none of the graph's,
        and ``DAMAGED - n`` where nothing was done because the buffers must hold ``n`` edges.
    """
    needed = num_edges
    for i in range(count):
        offset = sources[owner[i], OFFSETS] + slot[i] * 8
        needed += load_i64(offset + 8) - load_i64(offset)
    if needed > buffers[CAPACITY]:
        return num_neighbors, DAMAGED - needed
    row, col, position, e = buffers[ROW], buffers[COL], buffers[POSITION], num_edges
    for first in range(0, count, BLOCK):
        start, damaged = e, False
        for i in range(first, min(count, first + BLOCK)):
            source = sources[owner[i]]
            begins, ends = load_i64(source[OFFSETS] + slot[i] * 8), load_i64(source[OFFSETS] + slot[i] * 8 + 8)
            for q in range(begins, ends):
                u = load_id(source[NEIGHBORS], q, source[NEIGHBOR_WIDTH])
                damaged |= uint64(u) >= uint64(relation[NUM_NEIGHBOR_NODES])
                prefetch(neighbor[LOCAL_OF] + u * 4)
                store_i64(row + e * 8, u)
                store_i64(col + e * 8, begin + i)
                if position != 0:
                    store_i64(position + e * 8, load_id(source[POSITIONS], q, source[POSITION_WIDTH]))
                e += 1
        if damaged:
            return num_neighbors, DAMAGED
        num_neighbors = relabel(row, start, e, neighbor, num_neighbors)
    return num_neighbors, e


@kernel("void(int64, int64, int64[::1], int64[::1], int64, int64, int64[:, ::1], int64[:, ::1], int64[::1])")
def list_rows(
    ids: int,
    count: int,
    bounds: NDArray[np.int64],
    host_of_part: NDArray[np.int64],
    here: int,
    hot: int,
    lists: NDArray[np.int64],
    places: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> None:
    """Lists the rows of a batch by the host that they come from.

    Args:
        ids: Address of int64 ``[count]``.
        count: Rows of the batch.
        bounds: int64 ``[P + 1]``.
        host_of_part: int64 ``[P]``.
        here: This host.
        hot: Address of int32 ``[number of ids]``: rows that are not negative there are replicated here; 0 for none.
        lists: int64 ``[number of hosts, count]``, filled: ids.
        places: int64 ``[number of hosts, count]``, filled: the rows of the batch that they are for.
        counts: int64 ``[number of hosts]``, filled: lengths of the lists.
    """
    counts[:] = 0
    for i in range(count):
        v = load_i64(ids + i * 8)
        host = host_of_part[find_part(bounds, v)]
        if hot != 0 and host != here and load_i32(hot + v * 4) >= 0:
            host = here
        lists[host, counts[host]], places[host, counts[host]] = v, i
        counts[host] += 1


@helper
def _local_row(
    v: int,
    bounds: NDArray[np.int64],
    addresses: NDArray[np.int64],
    width: int,
    hot: int,
    hot_bounds: NDArray[np.int64],
    hot_addresses: NDArray[np.int64],
) -> int:
    """The address of a row that is here, or replicated here."""
    p = find_part(bounds, v)
    if addresses[p] != 0:
        return addresses[p] + (v - bounds[p]) * width
    row = load_i32(hot + v * 4)
    k = find_part(hot_bounds, row)
    return hot_addresses[k] + (row - hot_bounds[k]) * width


@kernel("boolean(int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, boolean, int64, int64[::1], int64[::1])")
def copy_local(
    ids: NDArray[np.int64],
    places: NDArray[np.int64],
    bounds: NDArray[np.int64],
    addresses: NDArray[np.int64],
    width: int,
    target: int,
    widen: bool,
    hot: int,
    hot_bounds: NDArray[np.int64],
    hot_addresses: NDArray[np.int64],
) -> bool:
    """Copies the rows that are here into their places.

    Args:
        ids: int64 ``[count]``.
        places: int64 ``[count]``, rows of the batch.
        bounds: int64 ``[P + 1]``.
        addresses: int64 ``[P]``, of each part's rows; 0 for parts of other hosts.
        width: Bytes of one row.
        target: Address of the batch's rows.
        widen: Whether rows are ids, to be widened to int64.
        hot: See ``list_rows``.
        hot_bounds: int64 ``[K + 1]``: the replicated rows at which each array of them starts.
        hot_addresses: int64 ``[K]``: addresses of these arrays.

    Returns:
        Whether every id that was widened is one that its type has.
    """
    inside = True
    for i in range(ids.size):
        if i + _AHEAD < ids.size:  # asked of memory long before it is copied
            ahead = _local_row(ids[i + _AHEAD], bounds, addresses, width, hot, hot_bounds, hot_addresses)
            for offset in range(0, width, _LINE):
                prefetch(ahead + offset)
            prefetch(ahead + width - 1)
        source = _local_row(ids[i], bounds, addresses, width, hot, hot_bounds, hot_addresses)
        if widen:
            value = load_id(source, 0, width)
            inside &= 0 <= value < bounds[bounds.size - 1]
            store_i64(target + places[i] * 8, value)
        elif width == 8:
            store_i64(target + places[i] * 8, load_i64(source))
        else:
            copy_bytes(target + places[i] * width, source, width)
    return inside


@kernel("boolean(int64, int64, int64[::1], int64, int64, boolean, int64)")
def place_rows(source: int, count: int, places: NDArray[np.int64], width: int, target: int, widen: bool, limit: int) -> bool:
    """Copies rows that came from elsewhere into their places.

    Args:
        source: Address of the rows, one after the other; of any alignment.
        count: How many.
        places: int64 ``[count]``, rows of the batch.
        width: Bytes of one row.
        target: Address of the batch's rows.
        widen: Whether rows are ids, to be widened to int64.
        limit: What ids stay below.

    Returns:
        Whether every id that was widened is one that its type has.
    """
    inside = True
    for i in range(count):
        if widen:
            value = load_id(source, i, width)
            inside &= 0 <= value < limit
            store_i64(target + places[i] * 8, value)
        else:
            copy_bytes(target + places[i] * width, source + i * width, width)
    return inside

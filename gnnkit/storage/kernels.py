"""The machine code of the builder: counting, bucketing, placing and sorting edges, and running sums of weights.

All of them release the GIL; several threads work on disjoint ranges of owners (the nodes whose part stores an edge). Edges come in
no order that a CPU could foresee, so counting and placing work through blocks in passes: first which edges are ours, without a
branch, then what they will touch, asked of memory a pass ahead.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.kernels.jit import kernel, lazy_kernel
from gnnkit.kernels.native import begin_of, call_system, prefetch

Ids = NDArray[np.int64]
_FEW_PARTS = 16
_BLOCK = 4096


@kernel("int64(int64[::1], int64[::1], int32[::1], int64, int64, int64, int64, int64[::1])")
def count_degrees(
    owner: Ids, other: Ids, owner_map: NDArray[Any], num_owners: int, num_others: int, low: int, high: int, degree: Ids
) -> int:
    """Adds the edges whose owner has a store id in ``[low, high)`` to ``degree[store id]``.

    Returns:
        The position of the first edge seen with an id out of range, or -1.
    """
    mapped, table = len(owner_map) > 0, begin_of(degree)
    mine = np.empty(_BLOCK, np.int64)
    for first in range(0, len(owner), _BLOCK):
        last = min(len(owner), first + _BLOCK)
        inside = True
        for k in range(first, last):
            inside &= 0 <= owner[k] < num_owners and 0 <= other[k] < num_others
        if not inside:
            for k in range(first, last):
                if not (0 <= owner[k] < num_owners and 0 <= other[k] < num_others):
                    return k
        count = 0
        for k in range(first, last):
            node = np.int64(owner_map[owner[k]]) if mapped else owner[k]
            mine[count] = node
            count += low <= node < high
        for i in range(count):
            prefetch(table + mine[i] * 8)
        for i in range(count):
            degree[mine[i]] += 1
    return -1


@kernel(
    "void(int64[::1], int64[::1], int64[::1], int64, int32[::1], int32[::1], int64, int64, int64[::1], int64,"
    " int32[::1], int32[::1], int64[::1])"
)
def place_edges(  # noqa: PLR0913
    owner: Ids,
    other: Ids,
    edge_id: Ids,
    first_id: int,
    owner_map: NDArray[Any],
    other_map: NDArray[Any],
    low: int,
    high: int,
    cursor: Ids,
    base: int,
    out_indices: NDArray[Any],
    out_edge_id: NDArray[Any],
    out_place: Ids,
) -> None:
    """Places the edges whose owner has a store id in ``[low, high)``, in the order in which they come.

    Empty ``edge_id`` means consecutive ids from ``first_id``, empty maps the identity, and empty outputs are not written.
    ``cursor[node]`` is the next free position of a node, and position ``base`` is the first of the outputs. ``out_place[k]``
    becomes the place of edge ``k``, or -1 where it is another range's.
    """
    owner_mapped, other_mapped = len(owner_map) > 0, len(other_map) > 0
    with_id, with_place, given_id = len(out_edge_id) > 0, len(out_place) > 0, len(edge_id) > 0
    cursors, indices = begin_of(cursor), begin_of(out_indices)
    mine, edges = np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int64)
    for first in range(0, len(owner), _BLOCK):
        last = min(len(owner), first + _BLOCK)
        count = 0
        for k in range(first, last):
            node = np.int64(owner_map[owner[k]]) if owner_mapped else owner[k]
            mine[count], edges[count] = node, k
            count += low <= node < high
        if with_place:
            out_place[first:last] = -1
        for i in range(count):
            prefetch(cursors + mine[i] * 8)
        for i in range(count):  # ``mine`` turns from nodes into places
            node = mine[i]
            mine[i] = cursor[node] - base
            cursor[node] += 1
            prefetch(indices + mine[i] * 4)
        for i in range(count):
            k, place = edges[i], mine[i]
            out_indices[place] = other_map[other[k]] if other_mapped else other[k]
            if with_id:
                out_edge_id[place] = edge_id[k] if given_id else first_id + k
            if with_place:
                out_place[k] = place


@kernel("void(int64[::1], int64[::1], int64[::1], int64[::1])")
def bucket_order(owner: Ids, bounds: Ids, order: Ids, starts: Ids) -> None:
    """A stable order of edges by bucket: bucket ``b`` holds the owners ``[bounds[b], bounds[b + 1])``.

    ``order[starts[b]:starts[b + 1]]`` become the positions of bucket ``b``'s edges, ascending.
    """
    num_buckets = len(bounds) - 1
    bucket = np.empty(len(owner), np.int32)
    starts[:] = 0
    for k in range(len(owner)):
        left, right = 0, num_buckets
        while right - left > 1:
            middle = (left + right) >> 1
            if owner[k] >= bounds[middle]:
                left = middle
            else:
                right = middle
        bucket[k] = left
        starts[left + 1] += 1
    for b in range(num_buckets):
        starts[b + 1] += starts[b]
    cursor = starts.copy()
    for k in range(len(owner)):
        order[cursor[bucket[k]]] = k
        cursor[bucket[k]] += 1


@kernel("void(int32[::1], int64[::1], int64[::1])")
def count_parts(node: NDArray[Any], bounds: Ids, counts: Ids) -> None:
    """Adds to ``counts[p]`` the nodes that lie in part ``p``: store ids in ``[bounds[p], bounds[p + 1])``."""
    num_parts = len(counts)
    if num_parts <= _FEW_PARTS:
        # Counting the nodes at or above each bound has no branches, and the compiler makes vector instructions of it.
        for first in range(0, len(node), _BLOCK):
            last = min(first + _BLOCK, len(node))
            above = last - first
            for part in range(num_parts):
                next_above = 0
                if part + 1 < num_parts:
                    for k in range(first, last):
                        next_above += node[k] >= bounds[part + 1]
                counts[part] += above - next_above
                above = next_above
        return
    for k in range(len(node)):
        left, right = 0, num_parts
        while right - left > 1:
            middle = (left + right) >> 1
            if node[k] >= bounds[middle]:
                left = middle
            else:
                right = middle
        counts[left] += 1


@kernel("void(int64[::1], float32[::1], int64, uint64[::1])")
def prefix_weights(indptr: Ids, weights: NDArray[Any], exponent: int, prefix: NDArray[np.uint64]) -> None:
    """Running sums of integer weights, restarting at each node; see ``gnnkit.storage.edge_values``."""
    for node in range(len(indptr) - 1):
        total = np.uint64(0)
        for k in range(indptr[node], indptr[node + 1]):
            weight = float(weights[k])
            if weight > 0.0:
                scaled = np.rint(math.ldexp(weight, exponent))
                total += np.uint64(1) if scaled < 1.0 else np.uint64(scaled)
            prefix[k] = total


@lazy_kernel
def sort_within_nodes(indptr: Ids, keys: Ids, order: Ids) -> bool:
    """Sorts ``order`` by ``keys`` within each node, stably: by merging runs of 1, 2, 4, ... edges.

    Args:
        indptr: int64 ``[num_nodes + 1]``, from 0.
        keys: int64 ``[num_edges]``.
        order: int64 ``[num_edges]``, ``0, 1, ...`` when it comes; ``keys[order]`` ascends within each node when it goes.

    Returns:
        Whether anything was out of order.
    """
    moved, longest = False, 0
    for node in range(len(indptr) - 1):
        longest = max(longest, indptr[node + 1] - indptr[node])
    spare = np.empty(longest, np.int64)
    for node in range(len(indptr) - 1):
        low, high = indptr[node], indptr[node + 1]
        ascends = True
        for k in range(low + 1, high):
            ascends &= keys[k - 1] <= keys[k]
        if ascends:
            continue
        moved = True
        run = 1
        while run < high - low:
            for left in range(low, high - run, 2 * run):
                middle, right = left + run, min(left + 2 * run, high)
                for k in range(left, middle):
                    spare[k - left] = order[k]
                a, b, out = 0, middle, left
                while a < run and b < right:
                    if keys[order[b]] < keys[spare[a]]:
                        order[out] = order[b]
                        b += 1
                    else:
                        order[out] = spare[a]
                        a += 1
                    out += 1
                while a < run:
                    order[out] = spare[a]
                    a, out = a + 1, out + 1
            run *= 2
    return moved


@lazy_kernel
def read_pages(pread: int, fd: int, buffer: NDArray[np.uint8], pages: Ids) -> int:
    """Reads pages of a file into one buffer, one after the other, with the system's ``pread`` at an address.

    Returns:
        How many came whole, up to the first that did not.
    """
    size = buffer.size
    for k in range(len(pages)):
        if call_system(pread, fd, begin_of(buffer), size, pages[k] * size, 0, 0) != size:
            return k
    return len(pages)


@lazy_kernel
def insert_rows(old: NDArray[Any], places: Ids, rows: NDArray[Any], out: NDArray[Any]) -> None:
    """Writes rows with others put in between to ``out``.

    Args:
        old: Rows ``[n, width]``.
        places: int64 ``[k]``, ascending: row ``k`` of ``rows`` comes before row ``places[k]`` of ``old``.
        rows: Rows ``[k, width]``.
        out: Rows ``[n + k, width]``.
    """
    first, at, width = 0, 0, old.shape[1]
    for k in range(len(places) + 1):
        last = len(old) if k == len(places) else places[k]
        for row in range(first, last):
            for column in range(width):
                out[at, column] = old[row, column]
            at += 1
        first = last
        if k < len(places):
            for column in range(width):
                out[at, column] = rows[k, column]
            at += 1


@lazy_kernel
def places_by_time(indptr: Ids, times: Ids, owner: Ids, time: Ids, out: Ids) -> None:
    """Writes where edges belong among the edges of their owners, which are in the order of their times: after those of the same time.

    Args:
        indptr: int64 ``[n + 1]``.
        times: int64, of the edges that are there.
        owner: int64 ``[k]``, of the edges to be put in between.
        time: int64 ``[k]``, their times.
        out: int64 ``[k]``: positions in ``times``.
    """
    for k in range(len(owner)):
        low, high = indptr[owner[k]], indptr[owner[k] + 1]
        while low < high:
            middle = (low + high) // 2
            if times[middle] <= time[k]:
                low = middle + 1
            else:
                high = middle
        out[k] = low

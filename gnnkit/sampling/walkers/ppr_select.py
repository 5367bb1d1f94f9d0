"""Kernels of personalised PageRank after the push: which nodes each seed keeps, their numbers, and the edges among them."""

# Intrinsics have no type hints, so what they return is Any to mypy.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gnnkit.kernels.jit import helper, kernel
from gnnkit.sampling.walkers.ppr_push import COUNT, HOP, KEY, NO_EDGES, NODES, RANK, RESIDUAL

# Columns of an edge attribute before those of the channels, and columns of each channel.
SCORE, PROXIMITY, NUM_COMMON, NUM_PER_CHANNEL = 0, 1, 2, 3
# Ties go to the lower channel, then to the node that its state reached first.
_CHANNEL_SHIFT = 40


@helper
def _is_worse(a: float, a_tie: int, b: float, b_tie: int) -> bool:
    """Whether candidate ``a`` ranks behind candidate ``b``."""
    return a < b or (a == b and a_tie > b_tie)


@helper
def _sink(values: NDArray[np.float64], ties: NDArray[np.int64], items: NDArray[np.int64], size: int) -> None:
    """Restores a heap, worst candidate first, whose root was replaced."""
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            return
        if child + 1 < size and _is_worse(values[child + 1], ties[child + 1], values[child], ties[child]):
            child += 1
        if not _is_worse(values[child], ties[child], values[i], ties[i]):
            return
        values[i], values[child] = values[child], values[i]
        ties[i], ties[child] = ties[child], ties[i]
        items[i], items[child] = items[child], items[i]
        i = child


@helper
def _offer(
    values: NDArray[np.float64], ties: NDArray[np.int64], items: NDArray[np.int64], size: int, limit: int, value: float, tie: int, item: int
) -> int:
    """Offers a candidate to a heap of the best ``limit``; returns the heap's size."""
    if size == limit:
        if limit > 0 and _is_worse(values[0], ties[0], value, tie):
            values[0], ties[0], items[0] = value, tie, item
            _sink(values, ties, items, size)
        return size
    i = size
    values[i], ties[i], items[i] = value, tie, item
    while i > 0:
        parent = (i - 1) >> 1
        if not _is_worse(values[i], ties[i], values[parent], ties[parent]):
            break
        values[i], values[parent] = values[parent], values[i]
        ties[i], ties[parent] = ties[parent], ties[i]
        items[i], items[parent] = items[parent], items[i]
        i = parent
    return size + 1


@helper
def _sort(values: NDArray[np.float64], ties: NDArray[np.int64], items: NDArray[np.int64], size: int) -> None:
    """Sorts a heap in place, best candidate first."""
    for last in range(size - 1, 0, -1):
        values[0], values[last] = values[last], values[0]
        ties[0], ties[last] = ties[last], ties[0]
        items[0], items[last] = items[last], items[0]
        _sink(values, ties, items, last)


@helper
def _best_of_state(
    state: NDArray[np.int64],
    t: int,
    num_types: int,
    limit: int,
    topup: bool,
    links: NDArray[np.int32],
    mass: NDArray[np.float64],
    values: NDArray[np.float64],
    ties: NDArray[np.int64],
    items: NDArray[np.int64],
) -> int:
    """The best nodes of one type in one state, by score, and behind them the best that have none, by residual; returns how many."""
    nodes, size = state[NODES], 0
    if limit == 0:
        return 0
    for i in range(nodes, nodes + state[COUNT]):
        rank = mass[i, RANK]
        # A node comes later than those in the heap: an equal score is not enough to replace one.
        if rank > 0.0 and (size < limit or rank > values[0]) and links[i, KEY] % num_types == t:
            size = _offer(values, ties, items, size, limit, rank, i - nodes, i)
    if not topup or size == limit:
        return size
    values, ties, items, left, more = values[size:], ties[size:], items[size:], limit - size, 0
    for i in range(nodes, nodes + state[COUNT]):
        residual = mass[i, RESIDUAL]
        if residual > 0.0 and (more < left or residual > values[0]) and mass[i, RANK] == 0.0 and links[i, KEY] % num_types == t:
            more = _offer(values, ties, items, more, left, residual, i - nodes, i)
    return size + more


@helper
def _choose(
    order: NDArray[np.int64], channels: NDArray[np.int64], size: int, targets: NDArray[np.int64], limit: int, kept: NDArray[np.bool_]
) -> None:
    """Marks the candidates to keep: up to each channel's target, then the best of the others up to ``limit``; ``order`` is best first."""
    taken, total = np.zeros(targets.size, np.int64), 0
    kept[:size] = False
    for e in order[:size]:
        if taken[channels[e]] < targets[channels[e]]:
            taken[channels[e]] += 1
            total += 1
            kept[e] = True
    for e in order[:size]:
        if total < limit and not kept[e]:
            total += 1
            kept[e] = True


@kernel(
    "int64(int64[:, ::1], int64, int64, boolean, int64[::1], int32[:, ::1], float64[:, ::1], int32[::1], int64[::1], int64[::1],"
    " float32[:, ::1])"
)
def select(
    states: NDArray[np.int64],
    t: int,
    num_types: int,
    topup: bool,
    targets: NDArray[np.int64],
    links: NDArray[np.int32],
    mass: NDArray[np.float64],
    mark: NDArray[np.int32],
    seeds: NDArray[np.int64],
    keys: NDArray[np.int64],
    attributes: NDArray[np.float32],
) -> int:
    """Chooses the nodes of one type that each seed keeps, best first.

    Args:
        states: int64 ``[n * C, 10]``, see ``ppr_push.push``: C states of each of n seeds, one for each channel.
        t: Index of the node type.
        num_types: T.
        topup: Whether nodes without a score fill what is left, and residuals count.
        targets: int64 ``[C]``, nodes of each channel; their sum is what a seed keeps at most.
        links: See ``ppr_push.push``.
        mass: See ``ppr_push.push``.
        mark: int32 ``[keys]``, all -1, and so again on return.
        seeds: int64, filled: index of the seed of each row.
        keys: int64, filled: the node.
        attributes: float32 ``[rows, 2 or 2 + 3C]``, filled: the edge attributes, of a width that says whether there are channels.

    Returns:
        The number of rows.
    """
    num_channels, limit, width = targets.size, targets.sum(), attributes.shape[1]
    most = 0
    for s in range(states.shape[0]):
        most = max(most, states[s, COUNT])
    most = min(most, limit)
    values, ties, items = np.empty(most, np.float64), np.empty(most, np.int64), np.empty(most, np.int64)
    room = most * num_channels
    best, rank, order = np.empty(room, np.float64), np.empty(room, np.int64), np.empty(room, np.int64)
    top, tie, found, channels = np.empty(room, np.float64), np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
    features, kept, rows = np.empty((room, width), np.float64), np.empty(room, np.bool_), 0
    for s in range(states.shape[0] // num_channels):
        size = 0
        for c in range(num_channels):
            state = states[s * num_channels + c]
            count = _best_of_state(state, t, num_types, most, topup, links, mass, values, ties, items)
            for q in range(count):
                i = items[q]
                key, proximity = links[i, KEY], 1.0 / (1.0 + links[i, HOP])
                e, value = mark[key], mass[i, RANK] + (mass[i, RESIDUAL] if topup else 0.0)
                if e < 0:
                    e = size
                    mark[key] = e
                    size += 1
                    found[e] = key
                    features[e] = 0.0
                if features[e, SCORE] < value:
                    features[e, SCORE] = top[e] = value
                    tie[e], channels[e] = (c << _CHANNEL_SHIFT) + i - state[NODES], c
                features[e, PROXIMITY] = max(features[e, PROXIMITY], proximity)
                if width > NUM_COMMON:
                    column = NUM_COMMON + NUM_PER_CHANNEL * c
                    features[e, column], features[e, column + 1], features[e, column + 2] = value, proximity, 1.0
        for e in range(size):
            mark[found[e]] = -1
            _offer(best, rank, order, e, room, top[e], tie[e], e)
        _sort(best, rank, order, size)
        _choose(order, channels, size, targets, limit, kept)
        for e in order[:size]:
            if kept[e]:
                seeds[rows], keys[rows] = s, found[e]
                for column in range(width):
                    attributes[rows, column] = features[e, column]
                rows += 1
    return rows


@kernel("int64(int64[::1], int32[::1], int64, int64[::1])")
def number(keys: NDArray[np.int64], number_of: NDArray[np.int32], count: int, fresh: NDArray[np.int64]) -> int:
    """Gives nodes numbers as they are first met.

    Args:
        keys: int64 ``[rows]``, nodes of one type; overwritten by their numbers.
        number_of: int32 ``[keys]``: -1 for a node that has none; filled.
        count: Numbers of the type that are given out.
        fresh: int64 ``[rows]``, filled: keys of the nodes that were new.

    Returns:
        How many were new.
    """
    new = 0
    for q in range(keys.size):
        key = keys[q]
        if number_of[key] < 0:
            number_of[key] = count + new
            fresh[new] = key
            new += 1
        keys[q] = number_of[key]
    return new


@kernel(
    "int64(int64[::1], int64, int64[::1], int64[::1], int32[::1], int64[::1], int32[::1], int64[::1], int64[::1], int64[::1], int64[::1])"
)
def edges_among(
    nodes: NDArray[np.int64],
    segment: int,
    row: NDArray[np.int64],
    segments: NDArray[np.int64],
    neighbors: NDArray[np.int32],
    positions: NDArray[np.int64],
    number_of: NDArray[np.int32],
    seen: NDArray[np.int64],
    rows: NDArray[np.int64],
    cols: NDArray[np.int64],
    places: NDArray[np.int64],
) -> int:
    """The edges of one type that were walked along and have both ends in the batch, one for each pair of nodes.

    Args:
        nodes: int64 ``[n]``, keys of the batch's nodes of the type that sampling starts from, in the order of their numbers.
        segment: The edge type among those that lead on from that node type.
        row: See ``ppr_push.push``, and so for the next two.
        segments: int64.
        neighbors: int32.
        positions: int64, store positions of the edges beside ``neighbors``; empty where not wanted.
        number_of: int32 ``[keys]``, -1 for nodes that are not in the batch.
        seen: int64 ``[keys]``, all -1.
        rows: int64, filled: numbers of the neighbours.
        cols: int64, filled: numbers of the nodes that drew them.
        places: int64, filled where positions are wanted.

    Returns:
        The number of edges.
    """
    count = 0
    for i in range(nodes.size):
        key = nodes[i]
        if number_of[key] != i or row[key] <= NO_EDGES:
            continue
        start = segments[row[key] + 2 * segment]
        for q in range(start, start + segments[row[key] + 2 * segment + 1]):
            neighbor = neighbors[q]
            if number_of[neighbor] < 0 or seen[neighbor] == i:
                continue
            seen[neighbor] = i
            rows[count], cols[count] = number_of[neighbor], i
            if positions.size:
                places[count] = positions[q]
            count += 1
    return count

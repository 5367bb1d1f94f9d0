"""Personalised PageRank: the nodes with the largest rank of each seed, by forward push. ``docs/development/sampling.md`` specifies it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from gnnkit.errors import MemoryLimitError
from gnnkit.host import available_memory
from gnnkit.kernels.jit import allocating_helper, helper, kernel
from gnnkit.kernels.keys import GOLDEN
from gnnkit.plan import PPRSampling
from gnnkit.plan.sampling import PPR_RELATION
from gnnkit.sampling.exclusion import mark_kept
from gnnkit.sampling.graph_access import GraphAccess
from gnnkit.sampling.owners import Expansion, Picks
from gnnkit.sampling.passes import FRONTIER, NEIGHBOR
from gnnkit.sampling.subgraph import BatchKey, EdgeKey, ExcludedEdges, Walked, WalkedEdges, WalkSeeds
from gnnkit.sampling.tables import GraphTables
from gnnkit.schema import EdgeType

# Intrinsics have no type hints, so what they return is Any to mypy.
# mypy: disable-error-code="no-any-return"


# Columns of ``states`` [S, 10]: the seed's key and channel; where its table begins and the logarithm of its size; where its nodes begin
# and how many there are; its queue's first and last node; how many of the queue belong to this round, and the rounds begun.
SEED, CHANNEL, TABLE, LOG, NODES, COUNT, HEAD, TAIL, LEFT, ROUND = range(10)
NUM_COLUMNS = 10
# Columns of ``links`` [.., 3], what a state holds of a node: its key, the hop at which it was reached, and the node behind it in the queue.
KEY, HOP, NEXT = range(3)
# Columns of ``mass`` [.., 2]: of the same node, what is still to be pushed, and its score.
RESIDUAL, RANK = range(2)
# Entries of ``used`` [3]: the arenas' ends, for tables and for nodes, and the nodes that are wanted.
TABLES_END, NODES_END, NUM_WANTED = range(3)
# In ``row``: a node whose neighbours are not here, and one for which they are asked. ``NO_EDGES`` is the row of nodes that have none.
UNKNOWN, WANTED, NO_EDGES = -1, -2, 0
# What ``push`` returns when the arenas must grow; otherwise the number of states that wait for neighbours.
FULL = -1

_SMALLEST_LOG = 6
_END, _IDLE = -1, -2


@helper
def _slot(key: int, log: int) -> int:
    """Returns the first slot for a key in a table of ``2**log`` slots (Fibonacci hashing: Knuth, TAOCP 3, 6.4)."""
    return np.int64((uint64(key) * uint64(GOLDEN)) >> uint64(64 - log))


@helper
def _move(
    state: NDArray[np.int64],
    needed: int,
    used: NDArray[np.int64],
    table: NDArray[np.int32],
    links: NDArray[np.int32],
    mass: NDArray[np.float64],
) -> bool:
    """Moves a state to where it has room for ``needed`` nodes; False where the arenas have none."""
    log = _SMALLEST_LOG
    while (1 << log) < 2 * needed:
        log += 1
    size = 1 << log
    begin, nodes, old = used[TABLES_END], used[NODES_END], state[NODES]
    if begin + size > table.size or nodes + size // 2 > links.shape[0]:
        return False
    used[TABLES_END] += size
    used[NODES_END] += size // 2
    table[begin : begin + size] = 0
    for i in range(state[COUNT]):
        links[nodes + i, KEY], links[nodes + i, HOP], links[nodes + i, NEXT] = (
            links[old + i, KEY],
            links[old + i, HOP],
            links[old + i, NEXT],
        )
        mass[nodes + i, RESIDUAL], mass[nodes + i, RANK] = mass[old + i, RESIDUAL], mass[old + i, RANK]
        slot = _slot(links[nodes + i, KEY], log)
        while table[begin + slot] != 0:
            slot = (slot + 1) & (size - 1)
        table[begin + slot] = i + 1
    state[TABLE], state[LOG], state[NODES] = begin, log, nodes
    return True


@helper
def _reach(
    state: NDArray[np.int64],
    key: int,
    table: NDArray[np.int32],
    links: NDArray[np.int32],
    mass: NDArray[np.float64],
) -> int:
    """The position of a node among those of a state, which has room for it."""
    begin, nodes, mask = state[TABLE], state[NODES], (1 << state[LOG]) - 1
    slot = _slot(key, state[LOG])
    while True:
        i = table[begin + slot] - 1
        if i < 0:
            break
        if links[nodes + i, KEY] == key:
            return i
        slot = (slot + 1) & mask
    i = state[COUNT]
    table[begin + slot] = i + 1
    state[COUNT] += 1
    links[nodes + i, KEY], links[nodes + i, HOP], links[nodes + i, NEXT] = key, np.int32((1 << 31) - 1), _IDLE
    mass[nodes + i, RESIDUAL], mass[nodes + i, RANK] = 0.0, 0.0
    return i


@helper
def _enqueue(state: NDArray[np.int64], i: int, links: NDArray[np.int32]) -> None:
    """Puts a node at the end of a state's queue."""
    if state[HEAD] == _END:
        state[HEAD] = i
    else:
        links[state[NODES] + state[TAIL], NEXT] = i
    state[TAIL] = i
    links[state[NODES] + i, NEXT] = _END


@helper
def _want(
    state: NDArray[np.int64],
    used: NDArray[np.int64],
    links: NDArray[np.int32],
    row: NDArray[np.int64],
    wanted: NDArray[np.int64],
) -> None:
    """Lists the nodes of a state's round whose neighbours are neither here nor asked for."""
    i = state[HEAD]
    for _ in range(state[LEFT]):
        key = links[state[NODES] + i, KEY]
        if row[key] == UNKNOWN:
            row[key] = WANTED
            wanted[used[NUM_WANTED]] = key
            used[NUM_WANTED] += 1
        i = links[state[NODES] + i, NEXT]


@helper
def _begin(
    state: NDArray[np.int64],
    alpha: float,
    used: NDArray[np.int64],
    table: NDArray[np.int32],
    links: NDArray[np.int32],
    mass: NDArray[np.float64],
) -> bool:
    """Begins a state with its seed; False where the arenas have no room."""
    if not _move(state, 1, used, table, links, mass):
        return False
    state[HEAD] = _END
    i = _reach(state, state[SEED], table, links, mass)
    links[state[NODES] + i, HOP], mass[state[NODES] + i, RESIDUAL] = 0, alpha
    _enqueue(state, i, links)
    return True


@helper
def _begin_round(state: NDArray[np.int64], links: NDArray[np.int32]) -> None:
    """Begins a round with everything that is in a state's queue."""
    state[ROUND] += 1
    i = state[HEAD]
    while i != _END:
        state[LEFT] += 1
        i = links[state[NODES] + i, NEXT]


@helper
def _push_first(
    state: NDArray[np.int64],
    spread: float,
    table: NDArray[np.int32],
    links: NDArray[np.int32],
    mass: NDArray[np.float64],
    segments: NDArray[np.int64],
    begin: int,
    first: int,
    last: int,
    in_channel: NDArray[np.bool_],
    total: int,
    neighbors: NDArray[np.int32],
    threshold: NDArray[np.float64],
) -> None:
    """Takes the first node out of a state's queue and pushes it."""
    nodes, i = state[NODES], state[HEAD]
    state[HEAD] = links[nodes + i, NEXT]
    state[LEFT] -= 1
    pushed, hop = mass[nodes + i, RESIDUAL], links[nodes + i, HOP] + 1
    links[nodes + i, NEXT], mass[nodes + i, RESIDUAL] = _IDLE, 0.0
    mass[nodes + i, RANK] += pushed
    if total == 0:
        return
    share = spread * pushed / total
    for j in range(first, last):
        if not in_channel[j]:
            continue
        start = segments[begin + 2 * (j - first)]
        for q in range(start, start + segments[begin + 2 * (j - first) + 1]):
            key = neighbors[q]
            k = _reach(state, key, table, links, mass)
            links[nodes + k, HOP] = min(links[nodes + k, HOP], hop)
            mass[nodes + k, RESIDUAL] += share
            if links[nodes + k, NEXT] == _IDLE and mass[nodes + k, RESIDUAL] >= threshold[key]:
                _enqueue(state, k, links)


@kernel(
    "int64(int64[:, ::1], float64, int64, int64[::1], int32[::1], int32[:, ::1], float64[:, ::1], int64[::1], int64[::1], int32[::1],"
    " float64[::1], int64[::1], boolean[:, ::1], int64[::1])"
)
def push(
    states: NDArray[np.int64],
    alpha: float,
    max_rounds: int,
    used: NDArray[np.int64],
    table: NDArray[np.int32],
    links: NDArray[np.int32],
    mass: NDArray[np.float64],
    row: NDArray[np.int64],
    segments: NDArray[np.int64],
    neighbors: NDArray[np.int32],
    threshold: NDArray[np.float64],
    first: NDArray[np.int64],
    in_channel: NDArray[np.bool_],
    wanted: NDArray[np.int64],
) -> int:
    """Pushes every state until its queue is empty, its rounds are over, or neighbours are missing.

    A node's key is ``number in its type * T + index of its type``, T node types.

    Args:
        states: int64 ``[S, 10]``, see the column names above; ``COUNT`` is 0 for a state that has not begun.
        alpha: The probability of going back to the seed.
        max_rounds: Rounds of a state; below 0 for any number.
        used: int64 ``[3]``, see the names above.
        table: int32 arena: positions of nodes in their state, plus one; 0 for a free slot.
        links: int32 arena, see the column names above.
        mass: float64 arena, likewise.
        row: int64 ``[keys]``: where a node's segments begin, or UNKNOWN or WANTED.
        segments: int64: of a node, for each edge type that leads on from its type, where its neighbours begin and how many they are.
        neighbors: int32, keys.
        threshold: float64 ``[keys]``: the residual at which a node is pushed.
        first: int64 ``[T + 1]``: the first edge type of each node type.
        in_channel: bool ``[C, edge types]``.
        wanted: int64 ``[keys]``, filled: keys of the nodes whose neighbours are missing.

    Returns:
        The number of states that wait; or FULL, and the call is to be repeated with larger arenas.
    """
    waiting, num_types, spread = 0, first.size - 1, 1.0 - alpha
    for s in range(states.shape[0]):
        state = states[s]
        if state[COUNT] == 0 and not _begin(state, alpha, used, table, links, mass):
            return FULL
        while state[HEAD] != _END:
            if state[LEFT] == 0:
                if state[ROUND] == max_rounds:
                    break
                _begin_round(state, links)
            key = links[state[NODES] + state[HEAD], KEY]
            if row[key] < 0:
                _want(state, used, links, row, wanted)
                waiting += 1
                break
            t, total = key % num_types, 0
            for j in range(first[t], first[t + 1]):
                if in_channel[state[CHANNEL], j]:
                    total += segments[row[key] + 2 * (j - first[t]) + 1]
            room = state[COUNT] + total
            if 2 * room > 1 << state[LOG] and not _move(state, room, used, table, links, mass):
                return FULL
            _push_first(
                state, spread, table, links, mass, segments, row[key], first[t], first[t + 1],
                in_channel[state[CHANNEL]], total, neighbors, threshold,
            )  # fmt: skip
    return waiting


# Intrinsics have no type hints, so what they return is Any to mypy.
# mypy: disable-error-code="no-any-return"


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


@allocating_helper
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
        states: int64 ``[n * C, 10]``, see ``push``: C states of each of n seeds, one for each channel.
        t: Index of the node type.
        num_types: T.
        topup: Whether nodes without a score fill what is left, and residuals count.
        targets: int64 ``[C]``, nodes of each channel; their sum is what a seed keeps at most.
        links: See ``push``.
        mass: See ``push``.
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
        row: See ``push``, and so for the next two.
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


_LARGEST_INT32 = (1 << 31) - 1


def larger(array: NDArray[Any], used: int, needed: int) -> NDArray[Any]:
    """An array with room for ``needed`` elements that begins with the first ``used`` ones of ``array``; itself where it has room.

    Raises:
        MemoryLimitError: There is no memory for it.
    """
    if needed <= len(array):
        return array
    size = max(needed, 2 * len(array))
    nbytes = size * array.itemsize * int(np.prod(array.shape[1:]))
    if nbytes > available_memory():
        raise MemoryLimitError(
            f"personalised PageRank needs {nbytes / 1e6:.0f} MB more for a batch", "lower batch_size, or raise eps or alpha"
        )
    grown = np.empty((size, *array.shape[1:]), array.dtype)
    grown[:used] = array[:used]
    return grown


class NeighborCache:
    """Nodes by key, ``number in its type * T + index of its type``, and their neighbours; one batch at a time.

    Args:
        sampling: What is walked along.
        tables: The graph.

    Attributes:
        num_types: T.
        relations: Indices of the edge types that are walked along, by the node type that they lead on from.
        frontier_types: Indices of the node types that these lead on from.
        first: int64 ``[T + 1]``, the first of ``relations`` of each node type.
        row: See ``push``, and so for the next three.
        segments: int64.
        neighbors: int32.
        threshold: float64 ``[keys]``.
        positions: int64, store positions of the edges beside ``neighbors``; empty where no batch holds them.
    """

    def __init__(self, sampling: PPRSampling, tables: GraphTables) -> None:
        walked, self.num_types = set(sampling.edge_types), len(tables.node_types)
        frontier = tables.relations[:, FRONTIER].tolist()
        order = sorted((t, r) for r, t in enumerate(frontier) if tables.edge_types[r] in walked)
        self.frontier_types, self.relations = [t for t, _ in order], [r for _, r in order]
        self.first = np.searchsorted(self.frontier_types, np.arange(self.num_types + 1)).astype(np.int64)
        self.neighbor_types = [int(tables.relations[r, NEIGHBOR]) for r in self.relations]
        self._fan_outs = np.zeros(len(tables.edge_types), np.int64)
        self._fan_outs[self.relations] = sampling.num_neighbors_per_hop
        self._keeps_positions, self._inward = sampling.include_sampled_edges, sampling.edge_dir == "in"
        self._factor = sampling.alpha * sampling.eps
        self.row, self.threshold = np.empty(0, np.int64), np.empty(0, np.float64)
        self.segments, self.neighbors, self.positions = np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int64)

    def leads_to(self, t: int) -> list[int]:
        """Indices of the node types that walks from type ``t`` can come to, itself included, sorted."""
        found, fresh = {t}, [t]
        while fresh:
            u = fresh.pop()
            fresh += (reached := set(self.neighbor_types[self.first[u] : self.first[u + 1]]) - found)
            found |= reached
        return sorted(found)

    def begin(self, seeds: WalkSeeds, key: int, reach: GraphAccess) -> list[NDArray[np.int64]]:
        """Begins a batch.

        Returns:
            int64 ``[n]`` for each node type in ``seeds.nodes``, in the order of their indices: the seeds' keys.
        """
        self._reach, self._key, self._excluded = reach, key, seeds.excluded
        self._known = [0] * self.num_types
        # Nodes without edges share the first row, which is as long as any.
        self._num_segments, self._num_neighbors = 2 * int(np.diff(self.first).max()), 0
        self.segments = larger(self.segments, 0, self._num_segments)
        self.segments[: self._num_segments] = 0
        keys = [reach.numbering.number(t, ids) * self.num_types + t for t, ids in sorted(seeds.nodes.items())]
        self._meet()
        return keys

    @property
    def num_keys(self) -> int:
        """One more than the largest key."""
        return max(self._known) * self.num_types

    def store_ids(self, t: int, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 ``[n]``, store ids of nodes of type ``t``."""
        return self._reach.numbering.nodes(t)[keys // self.num_types]

    def _meet(self) -> None:
        """Looks up the degrees of the nodes that got their numbers since the last call."""
        numbering, before, num_types = self._reach.numbering, self.num_keys, self.num_types
        counts = [numbering.count(t) for t in range(num_types)]
        if max(counts) * num_types > _LARGEST_INT32:
            raise MemoryLimitError("a batch reaches more nodes than personalised PageRank can number", "lower batch_size, or raise eps")
        self.row = larger(self.row, before, max(counts) * num_types)
        self.threshold = larger(self.threshold, before, max(counts) * num_types)
        for t, count in enumerate(counts):
            if count == self._known[t]:
                continue
            degrees = self._reach.degrees(t, numbering.nodes(t)[self._known[t] :], self.relations[self.first[t] : self.first[t + 1]])
            keys = slice(self._known[t] * num_types + t, count * num_types, num_types)
            self.row[keys] = np.where(degrees == 0, NO_EDGES, UNKNOWN)
            self.threshold[keys] = self._factor * degrees
            self._known[t] = count

    def fetch(self, wanted: NDArray[np.int64]) -> None:
        """Gets the neighbours of nodes.

        Args:
            wanted: int64 ``[n]``, keys.

        Raises:
            GnnkitError: The graph is damaged, a host did not answer, or memory is short.
        """
        by_type = {t: keys for t in range(self.num_types) if len(keys := wanted[wanted % self.num_types == t])}
        nodes = {t: self.store_ids(t, keys) for t, keys in by_type.items()}
        for t, keys in by_type.items():
            width = 2 * int(self.first[t + 1] - self.first[t])
            end = self._num_segments + width * len(keys)
            self.segments = larger(self.segments, self._num_segments, end)
            self.row[keys] = np.arange(self._num_segments, end, width)
            self._num_segments = end
        picks = self._reach.expand(Expansion(self._key, 0, self._fan_outs, nodes))
        for t, keys in by_type.items():
            for j in range(self.first[t], self.first[t + 1]):
                self._keep(j, self.row[keys] + 2 * (j - self.first[t]), _without(picks[self.relations[j]], nodes[t], self._hidden(j)))
        self._meet()

    def _hidden(self, j: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Edges of a type that are to be left out, as nodes and the neighbours that they must not draw."""
        excluded: Sequence[ExcludedEdges] = [edges for edges in self._excluded if edges.relation == self.relations[j]]
        return [(edges.target, edges.source) if self._inward else (edges.source, edges.target) for edges in excluded]

    def _keep(self, j: int, segments: NDArray[np.int64], picks: Picks) -> None:
        """Appends nodes' neighbours of one edge type, and writes where they begin."""
        start, end, t = self._num_neighbors, self._num_neighbors + len(picks.neighbors), self.neighbor_types[j]
        self.neighbors = larger(self.neighbors, start, end)
        self.neighbors[start:end] = self._reach.numbering.number(t, picks.neighbors) * self.num_types + t
        if self._keeps_positions and picks.positions is not None:
            self.positions = larger(self.positions, start, end)
            self.positions[start:end] = picks.positions
        self.segments[segments] = start + np.cumsum(picks.counts) - picks.counts
        self.segments[segments + 1] = picks.counts
        self._num_neighbors = end


def _without(picks: Picks, nodes: NDArray[np.int64], hidden: list[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> Picks:
    """Picks without some pairs of node and neighbour."""
    if not hidden:
        return picks
    first, second = (np.concatenate([pair[end] for pair in hidden]) for end in (0, 1))
    owner = np.repeat(np.arange(len(nodes)), picks.counts)
    edges, kept = np.arange(len(owner)), np.empty(len(owner), np.uint8)
    limits = np.array([len(nodes), len(owner)], np.int64)
    if not mark_kept(owner, edges, nodes, np.ascontiguousarray(picks.neighbors, np.int64), limits, first, second, kept):
        return picks
    chosen = kept.view(np.bool_)
    counts = np.bincount(owner[chosen], minlength=len(nodes)).astype(np.int64)
    return Picks(counts, picks.neighbors[chosen], None if picks.positions is None else picks.positions[chosen])


# Neighbours are asked for once for all states that are pushed together. There are so many of these that they take about so many
# places in the arenas, going by those before them: with fewer one asks more often, and more need more memory (36 bytes a place).
_PLACES = 1 << 20
_FIRST_STATES, _FEWEST_STATES, _MOST_STATES = 64, 8, 1024
_FIRST_ARENA = 1 << 16
_NO_INTS = np.empty(0, np.int64)


class _Arenas:
    """Room for the states that are pushed together, see ``push``."""

    def __init__(self) -> None:
        self.table, self.links = np.empty(2 * _FIRST_ARENA, np.int32), np.empty((_FIRST_ARENA, 3), np.int32)
        self.mass, self.used = np.empty((_FIRST_ARENA, 2), np.float64), np.zeros(3, np.int64)

    def grow(self) -> None:
        """Doubles the room; what is there stays."""
        self.table = larger(self.table, int(self.used[TABLES_END]), len(self.table) + 1)
        used, needed = int(self.used[NODES_END]), len(self.links) + 1
        self.links, self.mass = larger(self.links, used, needed), larger(self.mass, used, needed)


# The nodes of one type that some seeds keep: the seeds' indices among all, the nodes' keys, and the edges' attributes.
_KeptNodes: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]


class PPRWalker:
    """Chooses nodes by personalised PageRank; one object per thread.

    Args:
        sampling: How.
    """

    def __init__(self, sampling: PPRSampling) -> None:
        self._sampling = sampling
        self._targets = np.array([channel.target for channel in sampling.channels] or [sampling.max_ppr_nodes], np.int64)
        self._width = NUM_COMMON + NUM_PER_CHANNEL * len(sampling.channels)
        self._at_once, self._arenas = _FIRST_STATES, _Arenas()
        self._wanted, self._mark, self._number_of = _NO_INTS, np.empty(0, np.int32), np.empty(0, np.int32)
        self._leads_to: list[list[int]] = []

    def _begin(self, tables: GraphTables) -> None:
        """Learns the graph's types."""
        # Not the tables themselves, which may be those of a copy that is given up for another.
        sampling, self._node_types, self._edge_types = self._sampling, tables.node_types, tables.edge_types
        self._is_homogeneous = tables.graph.schema.is_homogeneous
        self._cache = NeighborCache(sampling, tables)
        channels = [channel.edge_types for channel in sampling.channels] or [sampling.edge_types]
        self._in_channel = np.array([[tables.edge_types[r] in types for r in self._cache.relations] for types in channels], np.bool_)
        self._in_channel = self._in_channel.reshape(len(channels), len(self._cache.relations))
        self._leads_to = [self._cache.leads_to(t) for t in range(len(tables.node_types))]

    def walk(self, seeds: WalkSeeds, key: int, reach: GraphAccess) -> Walked:
        """Chooses the nodes of a batch; its edges lead from seeds to the nodes that they keep.

        Raises:
            GnnkitError: The graph is damaged, a host did not answer, or memory is short.
        """
        if not self._leads_to:
            self._begin(reach.tables)
        cache, num_types = self._cache, self._cache.num_types
        reach.numbering.begin(replace(seeds, roots=None))  # every seed has a walk of its own in any case
        seed_keys = cache.begin(seeds, key, reach)
        every, none = np.concatenate([_NO_INTS, *seed_keys]), (_NO_INTS, _NO_INTS, np.empty((0, self._width), np.float32))
        rows: list[list[_KeptNodes]] = [[none] for _ in range(num_types)]
        start = 0
        while start < len(every):
            states = self._push(every[start : start + max(1, self._at_once // len(self._targets))])
            self._select(states, start, rows)
            start += len(states) // len(self._targets)
            places = int(self._arenas.used[NODES_END]) / len(states)
            self._at_once = max(_FEWEST_STATES, min(_MOST_STATES, int(_PLACES / places)))
        joined = [[np.concatenate(column) for column in zip(*of_type, strict=True)] for of_type in rows]
        nodes = self._number(seeds, seed_keys, [keys for _, keys, _ in joined])
        edges, arrays = self._kept(seeds, joined)
        if self._sampling.include_sampled_edges:
            edges += self._walked(nodes, reach)
        num_seeds = [len(seeds.nodes.get(t, _NO_INTS)) for t in range(num_types)]
        num_sampled = [[count, len(of_type) - count] for count, of_type in zip(num_seeds, nodes, strict=True)]
        stored = [cache.store_ids(t, of_type) for t, of_type in enumerate(nodes)]
        # What the seeds exclude was never walked along, and edges from seeds to nodes are none of the graph's.
        return Walked(stored, num_sampled, sorted(edges, key=lambda edges: edges.type), replace(seeds, excluded=()), arrays)

    def _push(self, seed_keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Pushes the states of seeds until they are done; int64 ``[n * C, 10]``, see ``push``."""
        cache, arenas, sampling, num_channels = self._cache, self._arenas, self._sampling, len(self._targets)
        states = np.zeros((len(seed_keys) * num_channels, NUM_COLUMNS), np.int64)
        states[:, SEED], states[:, CHANNEL] = np.repeat(seed_keys, num_channels), np.tile(np.arange(num_channels), len(seed_keys))
        max_rounds = -1 if sampling.max_fetch_iterations is None else sampling.max_fetch_iterations
        arenas.used[:] = 0
        while True:
            self._wanted = larger(self._wanted, int(arenas.used[NUM_WANTED]), cache.num_keys)
            waiting = push(
                states, sampling.alpha, max_rounds, arenas.used, arenas.table, arenas.links, arenas.mass, cache.row, cache.segments,
                cache.neighbors, cache.threshold, cache.first, self._in_channel, self._wanted,
            )  # fmt: skip
            if waiting == 0:
                return states
            if waiting == FULL:
                arenas.grow()
                continue
            cache.fetch(self._wanted[: arenas.used[NUM_WANTED]])
            arenas.used[NUM_WANTED] = 0

    def _select(self, states: NDArray[np.int64], start: int, rows: list[list[_KeptNodes]]) -> None:
        """Adds what seeds keep to ``rows``; they are numbered from ``start``."""
        num_types, arenas = self._cache.num_types, self._arenas
        self._mark = _fitting(self._mark, self._cache.num_keys)
        most = np.minimum(states[:, COUNT].reshape(-1, len(self._targets)).sum(1), self._targets.sum()).sum()
        for t in range(num_types):
            seeds, keys = np.empty(most, np.int64), np.empty(most, np.int64)
            attributes = np.empty((most, self._width), np.float32)
            count = select(
                states, t, num_types, self._sampling.enable_residual_topup, self._targets, arenas.links, arenas.mass, self._mark, seeds,
                keys, attributes,
            )  # fmt: skip
            rows[t].append((seeds[:count] + start, keys[:count].copy(), attributes[:count].copy()))

    def _number(self, seeds: WalkSeeds, seed_keys: list[NDArray[np.int64]], kept: list[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
        """Gives the nodes that seeds keep their numbers, which replace their keys; int64 ``[n]`` keys by number, for each node type."""
        self._number_of = _fitting(self._number_of, self._cache.num_keys)
        self._number_of[:] = -1
        of_type = dict(zip(sorted(seeds.nodes), seed_keys, strict=True))
        nodes = []
        for t, keys in enumerate(kept):
            first = of_type.get(t, _NO_INTS)
            self._number_of[first] = first // self._cache.num_types  # the seeds were met first
            fresh = np.empty(len(keys), np.int64)
            count = number(keys, self._number_of, len(first), fresh)
            nodes.append(np.concatenate([first, fresh[:count]]))
        return nodes

    def _kept(self, seeds: WalkSeeds, rows: list[list[NDArray[Any]]]) -> tuple[list[WalkedEdges], dict[BatchKey, NDArray[Any]]]:
        """The edges from seeds to nodes, for every type that they may lead to, and their attributes."""
        edges, arrays, begin = [], dict[BatchKey, NDArray[Any]](), 0
        for s, ids in sorted(seeds.nodes.items()):
            for t in self._leads_to[s]:
                own = slice(*np.searchsorted(rows[t][0], (begin, begin + len(ids))).tolist())
                edge_type = self._edge_type(s, t)
                edges.append(WalkedEdges(edge_type, None, rows[t][0][own] - begin, rows[t][1][own], None, [own.stop - own.start]))
                arrays[EdgeKey(edge_type, "edge_attr")] = rows[t][2][own]
            begin += len(ids)
        return edges, arrays

    def _edge_type(self, s: int, t: int) -> EdgeType:
        return self._edge_types[0] if self._is_homogeneous else (self._node_types[s], PPR_RELATION, self._node_types[t])

    def _walked(self, nodes: list[NDArray[np.int64]], reach: GraphAccess) -> list[WalkedEdges]:
        """The edges that were walked along and lie among the batch's nodes."""
        cache, edges = self._cache, []
        for j, r in enumerate(cache.relations):
            t = cache.frontier_types[j]
            segment, keys = j - int(cache.first[t]), nodes[t]
            begins = np.unique(cache.row[keys])
            most = cache.segments[begins[begins > 0] + 2 * segment + 1].sum()
            wants_position = reach.wants_position[r]
            row, col, position = (np.empty(size, np.int64) for size in (most, most, most if wants_position else 0))
            count = edges_among(
                keys, segment, cache.row, cache.segments, cache.neighbors, cache.positions if wants_position else _NO_INTS,
                self._number_of, np.full(cache.num_keys, -1, np.int64), row, col, position,
            )  # fmt: skip
            shown = reach.shown_type(self._edge_types[r])
            edges.append(WalkedEdges(shown, r, row[:count], col[:count], position[:count] if wants_position else None, [count]))
        return edges


def _fitting(array: NDArray[np.int32], size: int) -> NDArray[np.int32]:
    """int32 ``[at least size]``; a new one is filled with -1."""
    return array if len(array) >= size else np.full(2 * size, -1, np.int32)

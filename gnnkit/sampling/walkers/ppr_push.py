"""Kernel of personalised PageRank by forward push: the states of several seeds, pushed until a node's neighbours are missing.

A state is what one seed (in one channel) knows: the nodes that it reached, in the order in which it did, and an open-addressing table
that finds them. States grow in arenas: a larger place is taken at the end, and the old one is left behind until the arenas are
emptied. All arithmetic is in doubles and in the order that ``docs/sampling.md`` gives.

R. Andersen, F. Chung and K. Lang, "Local graph partitioning using PageRank vectors", FOCS 2006.
"""

# Intrinsics have no type hints, so what they return is Any to mypy.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from gnnkit.kernels.jit import helper, kernel
from gnnkit.kernels.stream import GOLDEN

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
    """Where a table of ``2**log`` slots looks for a key first (Fibonacci hashing: Knuth, TAOCP 3, 6.4)."""
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

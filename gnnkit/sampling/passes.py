"""Passes over the edges and the nodes of a hop, and the picks among a node's neighbours.

Work goes through blocks of ``BLOCK`` nodes, and through each block in passes, so that every random access was asked of memory a pass
earlier. Tables of addresses stand for the graph, so that parts and dtypes cost a branch and not a copy of the code.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from gnnkit.kernels.jit import allocating_helper, helper
from gnnkit.kernels.native import (
    LINE,
    LINES_INTO_FIRST,
    WINDOW,
    ask,
    asks,
    begin_of,
    either,
    fill_line,
    first_bit,
    floyd_16,
    fold_16,
    hash_16,
    int32_at,
    keep_below,
    load_i64,
    mask_below,
    num_bits,
    prefetch,
    prefetch_into,
    smallest_16,
    store_addresses,
    store_chosen,
    store_i32,
    store_i64,
    uint32_at,
    use,
)
from gnnkit.kernels.stream import bounded, draw_u64, float_bits, fold_u64, variate_u32

# Intrinsics have no type hints, so what they return is Any to mypy.
# mypy: disable-error-code="no-any-return"

Ints: TypeAlias = NDArray[np.int64]
UInts: TypeAlias = NDArray[np.uint64]

# Above this fan-out, repeats among a node's picks are looked up in a table instead of compared one by one, for many nodes together.
LINEAR_FAN_OUT = 32
# Redraws of one weighted pick before it is drawn from the remaining weight directly.
MAX_REDRAWS = 32


@helper
def pick_uniform(key: np.uint64, degree: int, count: int, picks: Ints, table: Ints) -> None:
    """Floyd's sample of ``count`` of ``degree`` positions without replacement (Bentley and Floyd, CACM 30(9), 1987).

    ``_draw_together`` draws samples of up to ``LINEAR_FAN_OUT``.
    """
    mask = table.size - 1
    for i in range(table.size):
        table[i] = -1
    for i in range(count):
        j = degree - count + i
        pick = bounded(draw_u64(key, i), j + 1)
        for _ in range(2):
            slot = np.int64(fold_u64(uint64(0), uint64(pick)) & uint64(mask))
            while table[slot] >= 0 and table[slot] != pick:
                slot = (slot + 1) & mask
            if table[slot] < 0:
                break
            pick = j
        table[slot] = pick
        picks[i] = pick


@helper
def _first_above(prefix: int, degree: int, target: np.uint64) -> int:
    """The first position whose running weight exceeds ``target``; positions of weight zero are never it."""
    low, high = 0, degree - 1
    while low < high:
        middle = (low + high) >> 1
        if uint64(load_i64(prefix + middle * 8)) > target:
            high = middle
        else:
            low = middle + 1
    return low


@helper
def _weight(prefix: int, base: int, position: int) -> np.uint64:
    """The weight of one position, from its running sums, which begin at ``base``."""
    before = load_i64(prefix + (position - 1) * 8) if position > 0 else base
    return uint64(load_i64(prefix + position * 8) - before)


@helper
def _remaining(prefix: int, base: int, degree: int, picks: Ints, picked: int, draw: np.uint64) -> int:
    """Draws from the weight that ``picks[:picked]`` left over, by one pass over the node's edges."""
    total = uint64(load_i64(prefix + (degree - 1) * 8) - base)
    for q in range(picked):
        total -= _weight(prefix, base, picks[q])
    target = uint64(bounded(draw, np.int64(total)))
    for position in range(degree):
        taken = False
        for q in range(picked):
            taken |= picks[q] == position
        if not taken:
            weight = _weight(prefix, base, position)
            if target < weight:
                return position
            target -= weight
    return degree - 1


@helper
def pick_weighted(key: np.uint64, prefix: int, base: int, degree: int, count: int, replace: bool, picks: Ints) -> None:
    """Draws ``count`` positions with probability proportional to weight; without replacement by redrawing repeats."""
    total = load_i64(prefix + (degree - 1) * 8) - base
    draw = 0
    for i in range(count):
        pick, tries = -1, 0
        while pick < 0:
            if not replace and tries == MAX_REDRAWS:
                pick = _remaining(prefix, base, degree, picks, i, draw_u64(key, draw))
                draw += 1
                break
            pick = _first_above(prefix, degree, uint64(bounded(draw_u64(key, draw), total) + base))
            draw += 1
            tries += 1
            if not replace:
                for q in range(i):
                    if picks[q] == pick:
                        pick = -1
                        break
        picks[i] = pick


@helper
def _count_positive(prefix: int, base: int, degree: int, stop: int) -> int:
    """Counts positions with a positive weight, no further than ``stop``."""
    count = 0
    for position in range(degree):
        if _weight(prefix, base, position) > uint64(0):
            count += 1
            if count == stop:
                break
    return count


@helper
def take_positive(prefix: int, base: int, degree: int, count: int, picks: Ints) -> None:
    """The first ``count`` positions of positive weight, in order."""
    taken = 0
    for position in range(degree):
        if taken == count:
            break
        if _weight(prefix, base, position) > uint64(0):
            picks[taken] = position
            taken += 1


@helper
def num_taken(degree: int, fan_out: int, replace: bool, weighted: bool, prefix: int, base: int) -> int:
    """Returns the number of edges that a node of ``degree`` contributes; ``base`` is the running sum of weights before the first."""
    if degree == 0 or fan_out == 0:
        return 0
    if weighted:
        if replace and fan_out > 0:
            return fan_out if load_i64(prefix + (degree - 1) * 8) > base else 0
        return _count_positive(prefix, base, degree, degree if fan_out < 0 else fan_out + 1)
    if fan_out < 0:
        return degree
    return fan_out if replace else degree


@helper
def takes_all(count: int, fan_out: int, replace: bool) -> bool:
    """Whether a node contributes all of the ``count`` edges that it has, so that nothing is drawn."""
    return fan_out < 0 or (not replace and count <= fan_out)


@helper
def pick(key: np.uint64, prefix: int, base: int, degree: int, count: int, replace: bool, weighted: bool, picks: Ints, table: Ints) -> None:
    """Draws ``count`` of a node's ``degree`` edges into ``picks``."""
    if weighted:
        pick_weighted(key, prefix, base, degree, count, replace, picks)
    elif replace:
        for i in range(count):
            picks[i] = bounded(draw_u64(key, i), degree)
    else:
        pick_uniform(key, degree, count, picks, table)


# Columns of ``variates`` [R, 4] of an edge type: the key of its neighbours' variates, that of those which have changed to the next period
# already, the largest hash of those which have not, and the key of hashes. Without columns edges are drawn by who draws.
KEY, NEXT_KEY, LAST_HASH, HASH_KEY = range(4)
# The largest of the ranks by which neighbours compete, which have 32 bits.
NO_RANK = (1 << 32) - 1
# Above this number that is taken of a node's edges, ranks are not compared with each other: those looked at would mostly be more than 64.
MOST_COMPARED = 32
# Mostly that many limits are enough, and where ranks lie in heaps no number of them would be.
MOST_GUESSES = 6
# Columns of ``ids`` [T, 2]: the address of the dataset's ids by store id, 0 where they are the same, and their width.
IDS, IDS_WIDTH = range(2)


@helper
def load_id(address: int, index: int, width: int) -> int:
    """Element ``index`` of an int32 (``width`` 4) or int64 array."""
    if width == 4:
        return int32_at(address, index)
    return load_i64(address + index * 8)


@helper
def are_narrow(ids: Ints, width: int) -> bool:
    """Whether the dataset's ids have 32 bits, of neighbours whose ids are ``width`` bytes wide: variates of 16 are made at once then."""
    return width == 4 if ids[IDS] == 0 else ids[IDS_WIDTH] == 4


@helper
def _own_id(ids: Ints, num_ids: int, node: int) -> int:
    """The dataset's id of a neighbour; of an id that is none, which is found where it is numbered, that of another."""
    return node if ids[IDS] == 0 else load_id(ids[IDS], node if uint64(node) < uint64(num_ids) else 0, ids[IDS_WIDTH])


@helper
def _keys(variates: UInts) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """The keys of variates, as values."""
    return variates[KEY], variates[NEXT_KEY], variates[LAST_HASH], variates[HASH_KEY]


@helper
def _rank(
    variates: UInts, ids: Ints, num_ids: int, neighbors: int, width: int, prefix: int, base: int, weighted: bool, degree: int, ranks: int
) -> None:
    """Writes the uint32 by which neighbours compete, of which the smallest win; the largest without weight, and up to a multiple of 16."""
    together = are_narrow(ids, width)
    for i in range(degree):
        node = _own_id(ids, num_ids, load_id(neighbors, i, width))
        if not together:
            is_here = fold_u64(variates[HASH_KEY], uint64(node)) <= variates[LAST_HASH]
            node = np.int64(variate_u32(variates[KEY] if is_here else variates[NEXT_KEY], uint64(node)))
        store_i32(ranks + i * 4, node)
    if together:
        for i in range(0, degree, 16):
            hash_16(_keys(variates), ranks + i * 4)
    if weighted:
        for i in range(degree):
            weight = _weight(prefix, base, i)
            quotient = np.float32(uint32_at(ranks, i)) / np.float32(weight)
            store_i32(ranks + i * 4, np.int64(float_bits(quotient)) if weight > uint64(0) else NO_RANK)
    for i in range(degree, -(-degree // 16) * 16):
        store_i32(ranks + i * 4, NO_RANK)


@helper
def _smallest(ranks: int, found: int, count: int) -> np.uint64:
    """A bit for each of ``found`` ranks, at most 64, that is one of the ``count`` smallest; of equal ones the first is the smaller.

    Ranks are compared with each other, by vectors, which takes no branch that depends on them. Behind them are 16 times ``NO_RANK``.
    """
    chosen, groups = uint64(0), (found + 15) >> 4
    for g in range(groups):
        chosen |= smallest_16(ranks + g * LINE, ranks, groups, count) << uint64(g * 16)
    for _ in range(num_bits(chosen) - count):
        last, bits = first_bit(chosen), chosen
        while bits != uint64(0):
            last = either(uint32_at(ranks, first_bit(bits)) >= uint32_at(ranks, last), first_bit(bits), last)
            bits &= bits - uint64(1)
        chosen &= ~(uint64(1) << uint64(last))
    return chosen


@allocating_helper
def pick_smallest(
    variates: UInts,
    ids: Ints,
    num_ids: int,
    neighbors: int,
    width: int,
    prefix: int,
    base: int,
    degree: int,
    count: int,
    weighted: bool,
    picks: NDArray[np.int32],
) -> None:
    """Takes the ``count`` edges whose neighbours have the smallest variates, relative to the edges' weights, in order.

    It looks for a limit that ``count`` ranks are below: where it would be if all ranks were as far from each other as those below the last
    one, a few times, and then in the middle of what is left.

    Args:
        variates: uint64 ``[4]``, see the column names above.
        ids: int64 ``[2]``, likewise, of the neighbours' type.
        num_ids: Nodes of this type.
        neighbors: Address of the node's neighbour ids, of ``width`` bytes each.
        width: See ``neighbors``.
        prefix: Address of the running sums of weights, from ``base`` on; only where ``weighted``.
        base: See ``prefix``.
        degree: Edges of the node; more than ``count`` of them have a weight.
        count: How many are taken.
        weighted: Whether edges have weights.
        picks: int32 ``[count or more]``, filled: positions, ascending.
    """
    ranks = np.empty(degree + 16, np.uint32)
    total = np.float64(load_i64(prefix + (degree - 1) * 8) - base) if weighted else np.float64(degree)
    _rank(variates, ids, num_ids, neighbors, width, prefix, base, weighted, degree, begin_of(ranks))
    low, high, below_low, guess, steps = uint64(0), uint64(NO_RANK + 1), 0, (count + 0.5) / total * 4294967296.0, 0
    while below_low != count and high - low > uint64(1):
        guess, steps = min(guess, 4294967295.0), steps + 1
        limit, below = float_bits(np.float32(guess)) if weighted else uint64(guess), 0
        if not low < limit < high or steps > MOST_GUESSES:
            limit = low + (high - low) // uint64(2)
        for first in range(0, degree, 16):
            below += num_bits(mask_below(begin_of(ranks) + first * 4, limit))
        if below > count:
            high = limit
        else:
            low, below_low = limit, below
        guess *= (count + 0.5) / (below + 0.5)
    taken, equal = 0, count - below_low  # ranks of ``low`` that are taken, the first ones, where ranks are equal
    for first in range(0, degree, 16):
        at = begin_of(ranks) + first * 4
        below = mask_below(at, low)
        same = (mask_below(at, low + uint64(1)) if low < uint64(NO_RANK) else uint64(0xFFFF)) & ~below
        while same != uint64(0) and equal > 0:
            below |= uint64(1) << uint64(first_bit(same))
            same &= same - uint64(1)
            equal -= 1
        while below != uint64(0):
            picks[taken] = first + first_bit(below)
            below &= below - uint64(1)
            taken += 1


# Columns of ``relations`` [num_edge_types, 6].
FRONTIER, NEIGHBOR, INDPTR_WIDTH, INDICES_WIDTH, WEIGHTED, NUM_NEIGHBOR_NODES = range(6)
# Columns of ``parts`` [num_edge_types, num_parts, 6]: three addresses, the part's first edge position, its number of edges, and the
# address of the edges' times.
INDPTR, INDICES, WEIGHT_PREFIX, FIRST_POSITION, NUM_EDGES, TIME = range(6)
# Columns of ``edge_buffers`` [num_edge_types, 4]: three addresses of int64 arrays (0 where not wanted) and their capacity.
ROW, COL, POSITION, CAPACITY = range(4)
# Numbers behind the last one that is an edge's, for which there is room: they are written by vectors of 8.
SPARE_EDGES = 7
# Columns of ``node_buffers`` [num_node_types, 3]: two addresses and a number.
LOCAL_OF, NODES, BASE = range(3)

# Rows of ``work`` [38, BLOCK]: of each node of a block, its part, first edge that counts, number of those, number to take, the running sum
# of weights before them, the key of its draws, and what was drawn, where that is done for many nodes together.
PART, START, DEGREE, COUNT, WEIGHT_BASE, DRAW_KEY, DRAWN = range(7)
WORK_ROWS = DRAWN + LINEAR_FAN_OUT
# Instead of what was drawn, where neighbours have variates: the variate below which they are looked at, and how many there are.
LIMIT, FOUND = DRAWN, DRAWN + 1

BLOCK = 64
# Groups of 16 neighbours of a block that are looked at together, at most; how far ahead they are asked for, and into the first cache.
MOST_GROUPS, GROUPS_AHEAD, NEXT_GROUPS = 4096, 40, 4
_EARLIEST = -(1 << 63)
# Bytes of a node's weights or times that are asked of the disk: a search in more of them reads few of their pages.
_MOST_VALUES = 1 << 14

# What ``walk`` returns when it is done, and when an index or a seed led out of the graph; 0 and above is an edge type whose buffers are
# full.
DONE, DAMAGED, STRANGE = -1, -2, -3


@helper
def find_part(bounds: Ints, value: int) -> int:
    """The part ``p`` with ``bounds[p] <= value < bounds[p + 1]``."""
    low, count = 0, bounds.size - 1
    while count > 1:
        half = count >> 1
        low += either(value >= bounds[low + half], half, 0)
        count -= half
    return low


@helper
def num_until(times: int, count: int, limit: int) -> int:
    """Counts those of ``count`` ascending times that are not later than ``limit``."""
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if load_i64(times + middle * 8) <= limit:
            low = middle + 1
        else:
            high = middle
    return low


@helper
def num_before(times: int, count: int, limit: int) -> int:
    """Counts those of ``count`` ascending times that are earlier than ``limit``."""
    return 0 if limit == _EARLIEST else num_until(times, count, limit - 1)


@helper
def measure(
    ahead: Ints,
    relation: Ints,
    parts: Ints,
    bounds: Ints,
    fan_out: int,
    replace: bool,
    nodes: int,
    first: int,
    last: int,
    end: int,
    times: int,
    since: int,
    work: Ints,
) -> int:
    """First pass over a block: each node's part, first edge, degree and number of edges to take; returns how many at most, or DAMAGED.

    Asks memory for the next block's row bounds and for this block's first neighbour ids. ``times`` is the address of an int64 for each
    node: edges that are later do not count; 0 where time plays no part. ``since`` is that of another: edges that are earlier do not
    count; 0 where none is too early.
    """
    indptr_width, width, weighted = relation[INDPTR_WIDTH], relation[INDICES_WIDTH], relation[WEIGHTED] == 1
    single, near = bounds.size == 2, ahead[LINES_INTO_FIRST] != 0
    for i in range(last, min(end, last + BLOCK)):
        v = load_i64(nodes + i * 8)
        p = 0 if single else find_part(bounds, v)
        prefetch_into(near, parts[p, INDPTR] + (v - bounds[p]) * indptr_width)
    needed = 0
    for i in range(first, last):
        v = load_i64(nodes + i * 8)
        p = 0 if single else find_part(bounds, v)
        start = load_id(parts[p, INDPTR], v - bounds[p], indptr_width)
        stop = load_id(parts[p, INDPTR], v - bounds[p] + 1, indptr_width)
        if start < 0 or stop < start or stop > parts[p, NUM_EDGES]:
            return DAMAGED
        degree, base = stop - start, 0
        if times != 0 and parts[p, TIME] != 0:
            until = num_until(parts[p, TIME] + start * 8, degree, load_i64(times + i * 8))
            before = 0 if since == 0 else min(until, num_before(parts[p, TIME] + start * 8, degree, load_i64(since + i * 8)))
            if weighted and before > 0:
                base = load_i64(parts[p, WEIGHT_PREFIX] + (start + before - 1) * 8)
            start, degree = start + before, until - before
        count = num_taken(degree, fan_out, replace, weighted, parts[p, WEIGHT_PREFIX] + start * 8, base)
        b = i - first
        work[PART, b], work[START, b], work[DEGREE, b], work[COUNT, b], work[WEIGHT_BASE, b] = p, start, degree, count, base
        needed += min(count, fan_out) if fan_out >= 0 else count
    # In a loop of their own: a processor looks up the pages of several requests at a time, where little stands between them.
    for b in range(last - first):
        prefetch_into(near, parts[work[PART, b], INDICES] + work[START, b] * width)
    return needed


@helper
def _dataset_id(bounds: Ints, global_id: Ints, p: int, node: int) -> int:
    """The id in the dataset of a node of part ``p``."""
    return node if global_id[p, 0] == 0 else load_id(global_id[p, 0], node - bounds[p], global_id[p, 1])


@helper
def pick_some(
    parts: Ints,
    bounds: Ints,
    global_id: Ints,
    replace: bool,
    weighted: bool,
    latest: bool,
    key: np.uint64,
    nodes: int,
    roots: int,
    i: int,
    p: int,
    prefix: int,
    base: int,
    degree: int,
    taken: int,
    picks: Ints,
    table: Ints,
) -> None:
    """Which ``taken`` of a node's edges: the latest of them, or some that are drawn; see ``choose``."""
    if latest and parts[p, TIME] != 0:
        for q in range(taken):
            picks[q] = degree - taken + q
        return
    rooted = key if roots == 0 else fold_u64(key, uint64(load_i64(roots + i * 8)))
    node = _dataset_id(bounds, global_id, p, load_i64(nodes + i * 8))
    pick(fold_u64(rooted, uint64(node)), prefix, base, degree, taken, replace, weighted, picks, table)


@helper
def _draw_together(
    bounds: Ints, global_id: Ints, fan_out: int, key: np.uint64, nodes: int, roots: int, first: int, last: int, work: Ints
) -> None:
    """Draws Floyd's samples of all nodes of a block, as if each had more edges than are taken.

    See ``pick_uniform``; a draw of 16 nodes takes as many instructions as one of one node.
    """
    for i in range(first, last):
        work[DRAW_KEY, i - first] = _dataset_id(bounds, global_id, work[PART, i - first], load_i64(nodes + i * 8))
    if roots == 0:
        for b in range(0, last - first, 16):
            fold_16(key, begin_of(work) + (DRAW_KEY * BLOCK + b) * 8)
    else:
        for i in range(first, last):
            rooted = fold_u64(key, uint64(load_i64(roots + i * 8)))
            work[DRAW_KEY, i - first] = np.int64(fold_u64(rooted, uint64(work[DRAW_KEY, i - first])))
    for b in range(0, last - first, 16):
        at = begin_of(work) + b * 8
        keys, degrees, drawn = at + DRAW_KEY * BLOCK * 8, at + DEGREE * BLOCK * 8, at + DRAWN * BLOCK * 8
        for i in range(fan_out):
            floyd_16(drawn, BLOCK * 8, keys, degrees, i, fan_out)


@helper
def ask_for_all(neighbors: int, num_bytes: int) -> None:
    """Asks memory for a node's neighbour ids, of which all are read; but for the first ones, and no more than it does by itself in time."""
    for offset in range(64, min(num_bytes, 1024), 64):
        prefetch(neighbors + offset)


@helper
def _list_groups(near: bool, parts: Ints, fan_out: int, num_nodes: int, work: Ints, groups: Ints) -> int:
    """Lists the neighbours, 16 at a time, of those nodes of a block of which too few are ``FOUND``, and asks memory for the first groups.

    See ``_look_together``.
    """
    num_groups = 0
    for b in range(num_nodes):
        p, start, count = work[PART, b], work[START, b], -(-work[DEGREE, b] // 16)
        if work[FOUND, b] >= fan_out or takes_all(work[COUNT, b], fan_out, False):
            continue
        # What stands behind a node's last neighbours is read, too.
        if num_groups + count > MOST_GROUPS or start + 16 * count > parts[p, NUM_EDGES]:
            continue
        begin = parts[p, INDICES] + start * 4
        for g in range(0, count, 8):  # eight at a time, so that mostly no jump depends on how many there are
            for i in range(8):
                groups[uint64(num_groups + g + i)] = (begin + (g + i) * LINE) * BLOCK + b
        num_groups += count
    for g in range(min(GROUPS_AHEAD, num_groups)):
        prefetch_into(near, groups[g] // BLOCK + LINE - 1)
        groups[uint64(num_groups + g)] = groups[g]  # for the last ones, behind which nothing has to be asked for
    return num_groups


@allocating_helper
def _look_together(
    near: bool,
    parts: Ints,
    keys: tuple[np.uint64, np.uint64, np.uint64, np.uint64],
    ids: Ints,
    num_ids: int,
    fan_out: int,
    mean: float,
    num_nodes: int,
    work: Ints,
    ranks: int,
    places: int,
    room: int,
) -> None:
    """Finds neighbours of all nodes of a block whose variates are below a limit, so that there are mostly enough of each node's.

    A loop over 16 neighbours at a time, of one node after another, has no jump that depends on how many each has. Each of these groups is a
    number: its address and which node's it is. Places are uint64, which need no test for those that are counted from an end.

    Args:
        near: Whether memory is asked for into the first cache.
        parts: int64 ``[P, 6]``.
        keys: Those of ``variates``, see ``pick_smallest``, as values: of an array the compiler cannot tell that no loop writes to it.
        ids: See there, too.
        num_ids: Likewise.
        fan_out: Neighbours that are taken of a node's.
        mean: A few more than that: how many are below the limit, on average.
        num_nodes: Nodes of the block.
        work: int64 ``[38, BLOCK]``; of each node it is written how many were ``FOUND``, 0 for one that was not looked at.
        ranks: Address of uint32 ``[BLOCK, room]``, filled: the variates that were found, and 16 times ``NO_RANK``.
        places: Address of int32 ``[BLOCK, room]``, filled: their positions among the node's edges.
        room: More than are to be found of a node's, by 17: where there is no room for more, others are not counted.
    """
    table, groups, chunk = ids[IDS], np.empty(MOST_GROUPS + GROUPS_AHEAD, np.int64), np.empty(16, np.uint32)
    work[FOUND, :num_nodes] = 0
    for share in (mean, 2.0 * mean):  # once more for the nodes of which too few were found, 1 % of them
        place, found, last = 0, 0, -1
        for b in range(num_nodes):
            work[LIMIT, b] = np.int64(min(share / max(work[DEGREE, b], 1) * 4294967296.0, np.float64(NO_RANK)))
        num_groups = _list_groups(near, parts, fan_out, num_nodes, work, groups)
        for g in range(num_groups):
            source, b = groups[uint64(g)] // BLOCK, groups[uint64(g)] & (BLOCK - 1)
            prefetch_into(near, groups[uint64(g + GROUPS_AHEAD)] // BLOCK + LINE - 1)
            prefetch(groups[uint64(g + NEXT_GROUPS)] // BLOCK + LINE - 1)
            place, found, last = either(b == last, place + 16, 0), either(b == last, found, 0), b
            if table != 0:
                for i in range(16):
                    chunk[i] = _own_id(ids, num_ids, int32_at(source, i))
                source = begin_of(chunk)
            at, of_node = (b * room + found) * 4, begin_of(work) + b * 8
            kept = keep_below(keys, source, of_node + LIMIT * BLOCK * 8, of_node + DEGREE * BLOCK * 8, place, ranks + at, places + at)
            found = min(found + kept, room - 17)
            store_i64(of_node + FOUND * BLOCK * 8, found)
    for b in range(num_nodes):
        fill_line(-1, ranks + (b * room + work[FOUND, b]) * 4)


@allocating_helper
def _draw_shared(
    near: bool, relation: Ints, parts: Ints, variates: UInts, ids: Ints, fan_out: int, num_nodes: int, work: Ints, drawn: NDArray[np.int32]
) -> None:
    """Draws the neighbours with the smallest variates, of all nodes of a block, into ``drawn`` int32 ``[BLOCK, fan_out + 16]``."""
    width, weighted, num_ids = relation[INDICES_WIDTH], relation[WEIGHTED] == 1, relation[NUM_NEIGHBOR_NODES]
    mean = fan_out + 2.0 * np.sqrt(np.float64(max(fan_out, 0))) + 1.5  # 1 % of nodes have too few of these
    together = width == 4 and are_narrow(ids, width) and not weighted and 0 < fan_out <= MOST_COMPARED
    room = min((2 * np.int64(mean) + 32) // 16 * 16, 80) if together else 0  # for fewer than 64
    ranks, places = np.empty(BLOCK * room, np.uint32), np.empty(BLOCK * room, np.int32)
    if together:
        _look_together(near, parts, _keys(variates), ids, num_ids, fan_out, mean, num_nodes, work, begin_of(ranks), begin_of(places), room)
    for b in range(num_nodes):
        p, start, degree = work[PART, b], work[START, b], work[DEGREE, b]
        if takes_all(work[COUNT, b], fan_out, False):
            continue
        at, found = b * room * 4, work[FOUND, b] if together else 0
        if fan_out <= found < room - 17:
            chosen, target = _smallest(begin_of(ranks) + at, found, fan_out), begin_of(drawn[b])
            for g in range((found + 15) >> 4):
                bits = chosen >> uint64(16 * g)
                store_chosen(bits, begin_of(places) + at + g * LINE, target)
                target += num_bits(bits & uint64(0xFFFF)) * 4
            continue
        neighbors, prefix = parts[p, INDICES] + start * width, parts[p, WEIGHT_PREFIX] + start * 8
        ask_for_all(neighbors, degree * width)
        pick_smallest(variates, ids, num_ids, neighbors, width, prefix, work[WEIGHT_BASE, b], degree, fan_out, weighted, drawn[b])


@helper
def note_positions(parts: Ints, p: int, width: int, row: int, position: int, begin: int, end: int) -> None:
    """Writes the positions of edges of part ``p`` whose neighbours' addresses are in the rows; not where ``position`` is 0."""
    shift = 2 if width == 4 else 3
    for q in range(begin, end if position != 0 else begin):
        store_i64(position + q * 8, parts[p, FIRST_POSITION] + ((load_i64(row + q * 8) - parts[p, INDICES]) >> shift))


@helper
def _take_all(neighbors: int, count: int, width: int, row: int) -> None:
    """Writes the addresses of all of a node's neighbour ids, and asks memory for these."""
    for q in range(count):
        store_i64(row + q * 8, neighbors + q * width)
    ask_for_all(neighbors, count * width)


@helper
def _take(neighbors: int, count: int, width: int, places: int, row: int) -> None:
    """Writes the addresses of those ids whose positions are int32 at ``places``, and up to ``SPARE_EDGES`` more."""
    for q in range(0, count, 8):
        store_addresses(neighbors, 2 if width == 4 else 3, places + q * 4, row + q * 8)


@allocating_helper
def choose(
    ahead: Ints,
    relation: Ints,
    parts: Ints,
    bounds: Ints,
    global_id: Ints,
    fan_out: int,
    replace: bool,
    latest: bool,
    key: np.uint64,
    variates: UInts,
    ids: Ints,
    nodes: int,
    roots: int,
    first: int,
    last: int,
    buffers: Ints,
    e: int,
    work: Ints,
    picks: Ints,
    table: Ints,
) -> int:
    """Second pass: which edges, as addresses of their neighbour ids, asked of memory; returns the new number of edges.

    ``latest`` takes a node's last edges, where they have times, instead of drawing some. ``roots`` is the address of an int64 for each
    node; where it is 0 the root, 0, is part of ``key``. With ``variates`` edges are those of the smallest, see ``pick_smallest``.
    """
    shared = variates.size > 0
    width, weighted, near = relation[INDICES_WIDTH], relation[WEIGHTED] == 1, ahead[LINES_INTO_FIRST] != 0
    drawn = np.empty((BLOCK, max(fan_out, 0) + 16 if shared else 1), np.int32)
    row, col, position = buffers[ROW], buffers[COL], buffers[POSITION]
    together = not (shared or weighted or latest or replace) and 0 < fan_out <= LINEAR_FAN_OUT
    if together:
        _draw_together(bounds, global_id, fan_out, key, nodes, roots, first, last, work)
    elif shared:
        _draw_shared(near, relation, parts, variates, ids, fan_out, last - first, work, drawn)
    for i in range(first, last):
        b = i - first
        p, start, degree, count = work[PART, b], work[START, b], work[DEGREE, b], work[COUNT, b]
        if count == 0:
            continue
        neighbors, prefix, base = parts[p, INDICES] + start * width, parts[p, WEIGHT_PREFIX] + start * 8, work[WEIGHT_BASE, b]
        everything = takes_all(count, fan_out, replace)
        taken = count if everything else fan_out
        if everything and not weighted:
            _take_all(neighbors, taken, width, row + e * 8)
        elif shared and not everything:
            _take(neighbors, taken, width, begin_of(drawn[b]), row + e * 8)
        else:
            picked, step = begin_of(picks), 8
            if everything:
                take_positive(prefix, base, degree, taken, picks)
            elif together:
                picked, step = begin_of(work) + (DRAWN * BLOCK + b) * 8, BLOCK * 8
            else:
                pick_some(
                    parts, bounds, global_id, replace, weighted, latest, key, nodes, roots, i, p, prefix, base, degree, taken, picks, table
                )  # fmt: skip
            for q in range(taken):
                address = neighbors + load_i64(picked + q * step) * width
                prefetch_into(near, address)
                store_i64(row + (e + q) * 8, address)
        for q in range(e, e + taken, 8):
            fill_line(i, col + q * 8)
        note_positions(parts, p, width, row, position, e, e + taken)
        e += taken
    return e


@helper
def ask_bounds(ahead: Ints, relation: Ints, parts: Ints, bounds: Ints, global_id: Ints, nodes: int, first: int, last: int) -> None:
    """Asks the disk for the row bounds of nodes, and for their ids in the dataset."""
    for i in range(first, last):
        v = load_i64(nodes + i * 8)
        p = find_part(bounds, v)
        ask(ahead, parts[p, INDPTR] + (v - bounds[p]) * relation[INDPTR_WIDTH], 2 * relation[INDPTR_WIDTH])
        if global_id[p, 0] != 0:
            ask(ahead, global_id[p, 0] + (v - bounds[p]) * global_id[p, 1], global_id[p, 1])
    for i in range(first, last):
        v = load_i64(nodes + i * 8)
        p = find_part(bounds, v)
        use(ahead, parts[p, INDPTR] + (v - bounds[p]) * relation[INDPTR_WIDTH], 2 * relation[INDPTR_WIDTH])


@helper
def use_draws(ahead: Ints, row: int, begin: int, end: int, width: int) -> None:
    """Waits for the drawn edges ``[begin, end)``, whose addresses are in ``row``."""
    if asks(ahead):
        for q in range(begin, end):
            use(ahead, load_i64(row + q * 8), width)


@helper
def _ask_values(
    ahead: Ints, relation: Ints, parts: Ints, bounds: Ints, column: int, width: int, most: int, nodes: int, first: int, last: int
) -> None:
    """Asks the disk for values of nodes' edges, ``width`` bytes each: the first ``most`` bytes of a node's, and the last value."""
    for i in range(first, last):
        v = load_i64(nodes + i * 8)
        p = find_part(bounds, v)
        start = load_id(parts[p, INDPTR], v - bounds[p], relation[INDPTR_WIDTH])
        stop = load_id(parts[p, INDPTR], v - bounds[p] + 1, relation[INDPTR_WIDTH])
        if parts[p, column] != 0 and 0 <= start < stop <= parts[p, NUM_EDGES]:
            ask(ahead, parts[p, column] + start * width, min(most, (stop - start) * width))
            ask(ahead, parts[p, column] + (stop - 1) * width, width)


@helper
def ask_draws(
    ahead: Ints,
    relation: Ints,
    parts: Ints,
    bounds: Ints,
    global_id: Ints,
    fan_out: int,
    replace: bool,
    latest: bool,
    key: np.uint64,
    variates: UInts,
    ids: Ints,
    nodes: int,
    roots: int,
    times: int,
    since: int,
    first: int,
    last: int,
    buffers: Ints,
    num_edges: int,
    work: Ints,
    picks: Ints,
    table: Ints,
) -> None:
    """Asks the disk for all that the draws of nodes read, by drawing their edges once before; for the arguments see ``choose``.

    Where neighbours have variates, all of a node's are read, and asked for. What is written behind the first ``num_edges`` of the buffers
    is of no use. Where there is no room for the edges, or the graph is damaged, it ends: the draw itself finds out.
    """
    if not asks(ahead):
        return
    ask_bounds(ahead, relation, parts, bounds, global_id, nodes, first, last)
    if relation[WEIGHTED] == 1:
        _ask_values(ahead, relation, parts, bounds, WEIGHT_PREFIX, 8, _MOST_VALUES, nodes, first, last)
    if times != 0:
        _ask_values(ahead, relation, parts, bounds, TIME, 8, _MOST_VALUES, nodes, first, last)
    if variates.size > 0:
        width = relation[INDICES_WIDTH]
        _ask_values(ahead, relation, parts, bounds, INDICES, width, width * relation[NUM_NEIGHBOR_NODES], nodes, first, last)
        return
    for begin in range(first, last, BLOCK):
        end = min(last, begin + BLOCK)
        needed = measure(ahead, relation, parts, bounds, fan_out, replace, nodes, begin, end, last, times, since, work)
        if needed < 0 or num_edges + needed > buffers[CAPACITY]:
            break
        drawn = choose(
            ahead, relation, parts, bounds, global_id, fan_out, replace, latest, key, variates, ids, nodes, roots, begin, end, buffers,
            num_edges, work, picks, table,
        )  # fmt: skip
        for q in range(num_edges, drawn):
            ask(ahead, load_i64(buffers[ROW] + q * 8), relation[INDICES_WIDTH])


@helper
def nodes_ahead(ahead: Ints, count: int) -> int:
    """Counts those of ``count`` nodes that are asked for at a time: whole blocks."""
    return max(BLOCK, ahead[WINDOW] // BLOCK * BLOCK) if asks(ahead) else max(BLOCK, count)


@helper
def number(ahead: Ints, relation: Ints, row: int, begin: int, end: int, neighbor: Ints, num_neighbors: int) -> int:
    """Third pass: the neighbours' ids, and then their numbers; returns the new number of neighbour nodes, or DAMAGED."""
    local_of, width, damaged, near = neighbor[LOCAL_OF], relation[INDICES_WIDTH], False, ahead[LINES_INTO_FIRST] != 0
    for q in range(begin, end):
        u = load_id(load_i64(row + q * 8), 0, width)
        damaged |= uint64(u) >= uint64(relation[NUM_NEIGHBOR_NODES])
        store_i64(row + q * 8, u)
        prefetch_into(near, local_of + u * 4)
    if damaged:
        return DAMAGED
    return relabel(row, begin, end, neighbor, num_neighbors)


@helper
def number_one(node: int, local_of: int, nodes: int, base: int, num_nodes: int) -> tuple[int, int]:
    """Returns a node's number, the next one if it has none, and the new count of numbers; without a jump, which would be unpredictable.

    There is room for one more node than there are numbers.
    """
    local = int32_at(local_of, node) - base
    store_i64(nodes + num_nodes * 8, node)
    is_new = local <= 0
    local = either(is_new, num_nodes + 1, local)
    store_i32(local_of + node * 4, base + local)
    return local - 1, num_nodes + is_new


@helper
def relabel(row: int, begin: int, end: int, neighbor: Ints, num_neighbors: int) -> int:
    """Fourth pass: writes numbers over the neighbours' ids; returns the new number of neighbour nodes."""
    local_of, nodes, base = neighbor[LOCAL_OF], neighbor[NODES], neighbor[BASE]
    for q in range(begin, end):
        local, num_neighbors = number_one(load_i64(row + q * 8), local_of, nodes, base, num_neighbors)
        store_i64(row + q * 8, local)
    return num_neighbors


@helper
def mark_seeds(node_buffers: Ints, num_nodes: Ints) -> None:
    """Enters the seeds into the relabelling tables; a repeated seed keeps a number of its own, and neighbours find the first."""
    for t in range(num_nodes.size):
        for i in range(num_nodes[t]):
            slot = node_buffers[t, LOCAL_OF] + load_i64(node_buffers[t, NODES] + i * 8) * 4
            if int32_at(slot, 0) <= node_buffers[t, BASE]:
                store_i32(slot, node_buffers[t, BASE] + i + 1)

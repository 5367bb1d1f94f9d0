"""Choosing edges of one node: uniformly or by weight, with or without replacement. ``docs/sampling.md`` specifies every draw."""

# Intrinsics have no type hints, so what they return is Any to mypy.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from gnnkit.kernels.jit import allocating_helper, helper
from gnnkit.kernels.native import load_i32, load_i64
from gnnkit.kernels.stream import bounded, draw_u64, fold_u64
from gnnkit.sampling.variates import NO_CHANGE

# Above this fan-out, repeats among a node's picks are looked up in a table instead of compared one by one.
LINEAR_FAN_OUT = 32
# Redraws of one weighted pick before it is drawn from the remaining weight directly.
MAX_REDRAWS = 32


@helper
def pick_uniform(key: np.uint64, degree: int, count: int, picks: NDArray[np.int64], table: NDArray[np.int64]) -> None:
    """Floyd's sample of ``count`` of ``degree`` positions without replacement (Bentley and Floyd, CACM 30(9), 1987)."""
    if count <= LINEAR_FAN_OUT:
        for i in range(count):
            j = degree - count + i
            pick = bounded(draw_u64(key, i), j + 1)
            repeated = False
            for q in range(i):
                repeated |= picks[q] == pick
            picks[i] = j if repeated else pick
        return
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
def _remaining(prefix: int, base: int, degree: int, picks: NDArray[np.int64], picked: int, draw: np.uint64) -> int:
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
def pick_weighted(key: np.uint64, prefix: int, base: int, degree: int, count: int, replace: bool, picks: NDArray[np.int64]) -> None:
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
def take_positive(prefix: int, base: int, degree: int, count: int, picks: NDArray[np.int64]) -> None:
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
def pick(
    key: np.uint64,
    prefix: int,
    base: int,
    degree: int,
    count: int,
    replace: bool,
    weighted: bool,
    picks: NDArray[np.int64],
    table: NDArray[np.int64],
) -> None:
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
# Steps by the average distance of ranks before what is left is halved: they may be spread unevenly.
_STEPS = 12
# Columns of ``ids`` [T, 2]: the address of the dataset's ids by store id, 0 where they are the same, and their width.
IDS, IDS_WIDTH = range(2)


@helper
def load_id(address: int, index: int, width: int) -> int:
    """Element ``index`` of an int32 (``width`` 4) or int64 array."""
    if width == 4:
        return load_i32(address + index * 4)
    return load_i64(address + index * 8)


@helper
def _rank_chunk(
    variates: NDArray[np.uint64],
    ids: NDArray[np.int64],
    num_ids: int,
    neighbors: int,
    width: int,
    prefix: int,
    base: int,
    first: int,
    last: int,
    weighted: bool,
    chunk: NDArray[np.uint64],
) -> None:
    """Writes the numbers by which neighbours ``first``, ..., ``last - 1`` compete, of which the smallest win; the largest without weight.

    Three loops, so that the second one, which multiplies, becomes one of vector instructions.
    """
    count, table, table_width = last - first, ids[IDS], ids[IDS_WIDTH]
    for i in range(count):
        node = load_id(neighbors, first + i, width)
        if table != 0:  # an id that is none is found where it is numbered
            node = load_id(table, node if uint64(node) < uint64(num_ids) else 0, table_width)
        chunk[i] = uint64(node)
    key, next_key, last_hash, hash_key = variates[KEY], variates[NEXT_KEY], variates[LAST_HASH], variates[HASH_KEY]
    if last_hash == uint64(NO_CHANGE):
        for i in range(count):
            chunk[i] = fold_u64(key, chunk[i])
    else:
        for i in range(count):
            chunk[i] = fold_u64(key if fold_u64(hash_key, chunk[i]) <= last_hash else next_key, chunk[i])
    if weighted:
        for i in range(count):
            weight = _weight(prefix, base, first + i)
            chunk[i] = chunk[i] // weight if weight > uint64(0) else uint64(NO_CHANGE)


@helper
def _take_smallest(ranks: NDArray[np.uint64], found: int, count: int, bound: np.uint64, picks: NDArray[np.int64]) -> None:
    """Takes the places of the ``count`` smallest of ``found`` ranks, in order; of equal ones the first.

    It looks for a limit that as many ranks are below, at first by their average distance, because they are spread evenly: a few passes of
    vector instructions. One more pass takes them without a branch, for which ``picks`` has a place to spare. At least ``count`` ranks are
    below ``bound``.
    """
    low, high, limit, below_low, below, passes = uint64(0), bound, bound, 0, found, 0
    step = max(bound // uint64(found), uint64(1))  # from one rank to the next, on average
    while below != count and high - low > uint64(1):
        # Towards where the limit is by that distance; halfway where that is out of the range, or where it took too many passes.
        away = step * uint64(abs(count - below)) if passes else step * uint64(found - count) - step // uint64(2)
        room = limit - low if below > count else high - limit
        near = limit - away if below > count else limit + away
        limit = low + (high - low) // uint64(2) if away >= room or passes >= _STEPS else near
        below = 0
        for i in range(found):
            below += 1 if ranks[i] < limit else 0
        if below > count:
            high = limit
        else:
            low, below_low = limit, below
        passes += 1
    taken, equal = 0, count - below_low  # ranks of ``low`` that are taken where ranks are equal
    if below == count:
        for i in range(found):
            picks[taken] = i
            taken += 1 if ranks[i] < limit else 0
        return
    for i in range(found):
        if ranks[i] < low or (ranks[i] == low and equal > 0):
            equal -= 1 if ranks[i] == low else 0
            picks[taken] = i
            taken += 1


@helper
def _insert(ranks: NDArray[np.uint64], places: NDArray[np.int64], last: int, rank: np.uint64, position: int) -> None:
    """Puts a place behind those that are not larger; what is at ``last`` goes."""
    place = last
    while place > 0 and ranks[place - 1] > rank:
        ranks[place], places[place] = ranks[place - 1], places[place - 1]
        place -= 1
    ranks[place], places[place] = rank, position


@allocating_helper
def _sort(values: NDArray[np.int64], count: int) -> None:
    """Sorts the first ``count`` values."""
    values[:count].sort()


@helper
def _pick_of_many(
    variates: NDArray[np.uint64],
    ids: NDArray[np.int64],
    num_ids: int,
    neighbors: int,
    width: int,
    prefix: int,
    base: int,
    degree: int,
    count: int,
    weighted: bool,
    picks: NDArray[np.int64],
    ranks: NDArray[np.uint64],
    places: NDArray[np.int64],
    chunk: NDArray[np.uint64],
) -> None:
    """Does for more neighbours than fit ``chunk`` as ``pick_smallest`` says.

    Those below a bound are noted first, under which a few more than ``count`` are expected. Where they are too few or too many, an exact
    pass begins again.
    """
    total = np.float64(load_i64(prefix + (degree - 1) * 8) - base) if weighted else np.float64(degree)
    share = (count + 2.5 * np.sqrt(np.float64(count)) + 2.0) / total
    bound = uint64(NO_CHANGE) if share >= 0.999 else uint64(share * 18446744073709551616.0)
    found = 0
    for first in range(0, degree, chunk.size):
        last = min(degree, first + chunk.size)
        if found > ranks.size - chunk.size:
            break
        _rank_chunk(variates, ids, num_ids, neighbors, width, prefix, base, first, last, weighted, chunk)
        for i in range(last - first):
            ranks[found], places[found] = chunk[i], first + i
            found += 1 if chunk[i] < bound else 0
    if count <= found <= ranks.size - chunk.size:
        _take_smallest(ranks, found, count, bound, picks)
        for i in range(count):
            picks[i] = places[picks[i]]
        return
    found = 0
    for first in range(0, degree, chunk.size):
        last = min(degree, first + chunk.size)
        _rank_chunk(variates, ids, num_ids, neighbors, width, prefix, base, first, last, weighted, chunk)
        for i in range(last - first):
            has_weight = not weighted or _weight(prefix, base, first + i) > uint64(0)
            if has_weight and (found < count or chunk[i] < ranks[found - 1]):
                found = min(found + 1, count)
                _insert(ranks, places, found - 1, chunk[i], first + i)
    _sort(places, count)
    for i in range(count):
        picks[i] = places[i]


@helper
def pick_smallest(
    variates: NDArray[np.uint64],
    ids: NDArray[np.int64],
    num_ids: int,
    neighbors: int,
    width: int,
    prefix: int,
    base: int,
    degree: int,
    count: int,
    weighted: bool,
    picks: NDArray[np.int64],
    ranks: NDArray[np.uint64],
    places: NDArray[np.int64],
    chunk: NDArray[np.uint64],
) -> None:
    """Takes the ``count`` edges whose neighbours have the smallest variates, relative to the edges' weights, in order.

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
        picks: int64, longer than ``count``, filled: positions, ascending.
        ranks: uint64 scratch, of ``count`` and more than two chunks.
        places: int64 scratch, as long.
        chunk: uint64 scratch, of any length.
    """
    if degree <= chunk.size:
        _rank_chunk(variates, ids, num_ids, neighbors, width, prefix, base, 0, degree, weighted, chunk)
        _take_smallest(chunk, degree, count, uint64(NO_CHANGE), picks)
        return
    _pick_of_many(
        variates, ids, num_ids, neighbors, width, prefix, base, degree, count, weighted, picks, ranks, places, chunk
    )  # fmt: skip

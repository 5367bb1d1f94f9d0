"""Choosing edges of one node: uniformly or by weight, with or without replacement. ``docs/sampling.md`` specifies every draw."""

# Intrinsics have no type hints, so what they return is Any to mypy.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from gnnkit.kernels.jit import helper
from gnnkit.kernels.native import load_i64
from gnnkit.kernels.stream import bounded, draw_u64, fold_u64

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

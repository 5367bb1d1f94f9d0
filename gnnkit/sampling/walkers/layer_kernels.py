"""Scores of a layer's candidates, and a systematic sample of them with exactly known probabilities."""

# Intrinsics have no type hints, so what they return is Any to mypy.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from gnnkit.kernels.jit import helper, kernel
from gnnkit.kernels.stream import bit_length, bounded, draw_u64

# Products of a sum of weights and a count stay below 2 to this power; a single weight below 2 to the second.
_PRODUCT_BITS, _WEIGHT_BITS = 62, 40


@kernel("int64(int64[::1], int64[::1], int64[::1], float64[::1], int64[::1], float64[::1], int64[::1], int64)")
def add_scores(
    counts: NDArray[np.int64],
    weights: NDArray[np.int64],
    slots: NDArray[np.int64],
    entries: NDArray[np.float64],
    seen: NDArray[np.int64],
    scores: NDArray[np.float64],
    candidates: NDArray[np.int64],
    num_candidates: int,
) -> int:
    """Works out the normalised adjacency of a frontier's edges, and adds its squares up for each neighbour.

    Args:
        counts: int64 ``[n]``, edges of each node.
        weights: int64 ``[sum of counts]``, or empty where all edges count alike.
        slots: int64 ``[sum of counts]``, the neighbours'.
        entries: float64 ``[sum of counts]``, filled: an edge's share of its node's edges.
        seen: int64 ``[slots]``: 1 for those that are candidates already.
        scores: float64 ``[slots]``, added to.
        candidates: int64, filled: slots in the order in which they came up.
        num_candidates: How many there are.

    Returns:
        The new number of candidates.
    """
    q = 0
    for i in range(counts.size):
        total = float(counts[i])
        if weights.size:
            whole = 0
            for k in range(q, q + counts[i]):
                whole += weights[k]
            total = float(whole)
        for _ in range(counts[i]):
            entry, slot = (float(weights[q]) if weights.size else 1.0) / total, slots[q]
            entries[q] = entry
            scores[slot] += entry * entry
            if seen[slot] == 0:
                seen[slot] = 1
                candidates[num_candidates] = slot
                num_candidates += 1
            q += 1
    return num_candidates


@helper
def _integers(scores: NDArray[np.float64], candidates: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Scores as whole numbers: the largest is 2**40, or less where a product with their sum would overflow."""
    most = 0.0
    for slot in candidates:
        most = max(most, scores[slot])
    bits = min(_WEIGHT_BITS, _PRODUCT_BITS - bit_length(count) - bit_length(candidates.size))
    scale, weight = float(1 << bits), np.empty(candidates.size, np.int64)
    for i in range(candidates.size):
        weight[i] = max(1, int(scores[candidates[i]] / most * scale))
    return weight


@kernel("void(uint64, int64, int64[::1], float64[::1], float64[::1])")
def choose_nodes(key: int, count: int, candidates: NDArray[np.int64], scores: NDArray[np.float64], inclusion: NDArray[np.float64]) -> None:
    """Chooses ``count`` candidates, or all of them if they are not more, with probabilities in proportion to their scores.

    A systematic sample (Madow, Annals of Mathematical Statistics 20(3), 1949) in random order (Hartley and Rao, ibid. 33(2), 1962), of
    those whose probability would not reach 1; the others are chosen for certain.

    Args:
        key: Of batch, purpose, hop and node type.
        count: How many to choose, at least 1.
        candidates: int64 ``[m]``, slots.
        scores: float64 ``[slots]``.
        inclusion: float64 ``[slots]``, filled for all candidates: the probability of each one that was chosen, 0 for the others.
    """
    if candidates.size <= count:
        for slot in candidates:
            inclusion[slot] = 1.0
        return
    weight = _integers(scores, candidates, count)
    order, total = np.arange(candidates.size), 0
    for value in weight:
        total += value
    while True:
        kept, certain, rest = 0, 0, total
        for i in order:
            if weight[i] * count >= total:
                inclusion[candidates[i]] = 1.0
                certain += 1
                rest -= weight[i]
            else:
                order[kept] = i
                kept += 1
        order, count, total = order[:kept], count - certain, rest
        if certain == 0:
            break
    for last in range(order.size - 1, 0, -1):
        j = bounded(draw_u64(uint64(key), order.size - 1 - last), last + 1)
        order[last], order[j] = order[j], order[last]
    threshold, running = bounded(draw_u64(uint64(key), order.size - 1), total), 0
    for i in order:
        running += weight[i]
        chosen = running * count > threshold
        inclusion[candidates[i]] = float(weight[i] * count) / float(total) if chosen else 0.0
        if chosen:
            threshold += total

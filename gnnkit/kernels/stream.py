"""The random stream: every draw is a pure function of what it is for. ``docs/development/sampling.md`` specifies it.

A key of ``gnnkit.kernels.keys`` seeds a SplitMix64 generator (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014), whose ``i``-th output is the ``i``-th draw.
"""

# Intrinsics have no type hints, so what they return is Any to mypy.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from gnnkit.kernels.jit import helper, kernel
from gnnkit.kernels.keys import GOLDEN, HASH_FACTORS
from gnnkit.kernels.native import multiply_high


@helper
def mix_u64(value: np.uint64) -> np.uint64:
    """``keys.mix`` in a kernel."""
    value = (value ^ (value >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> uint64(27))) * uint64(0x94D049BB133111EB)
    return value ^ (value >> uint64(31))


@helper
def fold_u64(key: np.uint64, value: np.uint64) -> np.uint64:
    """``keys.fold`` in a kernel."""
    return mix_u64((key ^ (value * uint64(GOLDEN))) + uint64(GOLDEN))


@helper
def variate_u32(key: np.uint64, node: np.uint64) -> np.uint64:
    """The variate of a node, below 2^32; ``native.hash_16`` makes 16 of ids that have 32 bits."""
    low, half = uint64(0xFFFFFFFF), node >> uint64(32)
    own = key if half == uint64(0) else fold_u64(key, half)
    value = (node ^ own) & low
    value = ((value ^ (value >> uint64(16))) * uint64(HASH_FACTORS[0]) + (own >> uint64(32))) & low
    value = ((value ^ (value >> uint64(15))) * uint64(HASH_FACTORS[1])) & low
    return value ^ (value >> uint64(16))


@helper
def float_bits(value: np.float32) -> np.uint64:
    """The bits of a float32. Those of numbers that are not negative are in the order of the numbers."""
    return uint64(np.float32(value).view(np.uint32))


@helper
def draw_u64(key: np.uint64, index: int) -> np.uint64:
    """Draw ``index`` (from 0) of the SplitMix64 generator that ``key`` seeds."""
    return mix_u64(key + uint64(index + 1) * uint64(GOLDEN))


@helper
def bounded(draw: np.uint64, count: int) -> int:
    """Maps a draw to ``[0, count)`` by a multiplication (Lemire 2019), with a bias below ``count / 2**64``."""
    return np.int64(multiply_high(draw, uint64(count)))


@helper
def bit_length(value: int) -> int:
    """Counts the bits of a whole number; 0 for 0."""
    bits = 0
    while value > 0:
        value >>= 1
        bits += 1
    return bits


@kernel("void(uint64, int64[::1])")
def _shuffle(key: np.uint64, values: NDArray[np.int64]) -> None:
    """Fisher and Yates' shuffle, from the last position down."""
    count = values.size
    for i in range(count - 1, 0, -1):
        j = bounded(draw_u64(key, count - 1 - i), i + 1)
        values[i], values[j] = values[j], values[i]


@kernel("void(uint64, int64, int64[::1])")
def _draw_below(key: np.uint64, count: int, out: NDArray[np.int64]) -> None:
    for i in range(out.size):
        out[i] = bounded(draw_u64(key, i), count)


def draws_below(key: int, count: int, size: int) -> NDArray[np.int64]:
    """The first draws of the generator that ``key`` seeds, each a number below ``count``.

    Args:
        key: The key.
        count: At least 1, below 2**63.
        size: How many.

    Returns:
        int64 ``[size]``.
    """
    found = np.empty(size, np.int64)
    _draw_below(np.uint64(key), count, found)
    return found


def permutation(key: int, count: int) -> NDArray[np.int64]:
    """The permutation of ``range(count)`` that ``key`` stands for.

    Returns:
        int64 ``[count]``.
    """
    values = np.arange(count, dtype=np.int64)
    _shuffle(np.uint64(key), values)
    return values

"""The machine code of keys: digests of texts, and a table that finds the row of a key.

A key is one or two unsigned 64-bit words: an integer itself, or 128 bits of a digest of a text or of several columns.
The digest is SipHash-1-3 with 128 bits of output (J.-P. Aumasson, D. J. Bernstein, SipHash: a fast short-input PRF, 2012).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from gnnkit.kernels.jit import helper, lazy_kernel

_K0, _K1 = np.uint64(0x676E6E6B69742D6B), np.uint64(0x6579732D76657231)
_EMPTY = -1


@helper
def _rotated(value: np.uint64, count: int) -> np.uint64:
    rotated: np.uint64 = (value << uint64(count)) | (value >> uint64(64 - count))
    return rotated


@helper
def _round(v0: np.uint64, v1: np.uint64, v2: np.uint64, v3: np.uint64) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    v0 += v1
    v1 = _rotated(v1, 13) ^ v0
    v0 = _rotated(v0, 32)
    v2 += v3
    v3 = _rotated(v3, 16) ^ v2
    v0 += v3
    v3 = _rotated(v3, 21) ^ v0
    v2 += v1
    v1 = _rotated(v1, 17) ^ v2
    v2 = _rotated(v2, 32)
    return v0, v1, v2, v3


@lazy_kernel
def digest_texts(end: NDArray[np.int64], text: NDArray[np.uint8], out: NDArray[np.uint64]) -> None:
    """Writes the digests of texts.

    Args:
        end: int64 ``[n + 1]``: text ``i`` is ``text[end[i]:end[i + 1]]``.
        text: uint8, UTF-8.
        out: uint64 ``[n, 2]``.
    """
    for row in range(len(end) - 1):
        first, last = end[row], end[row + 1]
        v0 = _K0 ^ uint64(0x736F6D6570736575)
        v1 = _K1 ^ uint64(0x646F72616E646F6D) ^ uint64(0xEE)
        v2 = _K0 ^ uint64(0x6C7967656E657261)
        v3 = _K1 ^ uint64(0x7465646279746573)
        at = first
        while at + 8 <= last:
            word = uint64(0)
            for k in range(8):
                word |= uint64(text[at + k]) << uint64(8 * k)
            v3 ^= word
            v0, v1, v2, v3 = _round(v0, v1, v2, v3)
            v0 ^= word
            at += 8
        word = uint64(last - first) << uint64(56)
        shift = 0
        while at < last:
            word |= uint64(text[at]) << uint64(shift)
            shift += 8
            at += 1
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
        v2 ^= uint64(0xEE)
        for _ in range(3):
            v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        out[row, 0] = v0 ^ v1 ^ v2 ^ v3
        v1 ^= uint64(0xDD)
        for _ in range(3):
            v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        out[row, 1] = v0 ^ v1 ^ v2 ^ v3


@lazy_kernel
def mix_into(words: NDArray[np.uint64], out: NDArray[np.uint64]) -> None:
    """Mixes the words of one more column ``[n, 1 or 2]`` into digests ``[n, 2]``; columns that change places change the digest."""
    for row in range(len(out)):
        v0, v1, v2, v3 = out[row, 0] ^ _K0, out[row, 1] ^ _K1, out[row, 0] + uint64(0x6C7967656E657261), out[row, 1] + uint64(0xFF)
        for k in range(words.shape[1]):
            v3 ^= words[row, k]
            v0, v1, v2, v3 = _round(v0, v1, v2, v3)
            v0 ^= words[row, k]
        v2 ^= uint64(0xFF)
        for _ in range(3):
            v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        out[row, 0] = v0 ^ v1
        out[row, 1] = v2 ^ v3


@helper
def _spread(key: np.uint64) -> np.uint64:
    """SplitMix64's finaliser: a one-to-one map under which neighbouring integers lie far from each other."""
    key = (key ^ (key >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> uint64(27))) * uint64(0x94D049BB133111EB)
    spread: np.uint64 = key ^ (key >> uint64(31))
    return spread


@lazy_kernel
def insert_keys(
    words: NDArray[np.uint64],
    first: int,
    parts: int,
    part: int,
    slots: NDArray[np.uint64],
    rows: NDArray[Any],
    counts: NDArray[np.int64],
    doubles: NDArray[np.int64],
) -> bool:
    """Enters the keys of one part of ``parts`` into a table.

    Args:
        words: uint64 ``[n, 1 or 2]``.
        first: Row number of the first key.
        parts: Number of parts that keys are divided into.
        part: The part that is entered; other keys are passed by.
        slots: uint64 ``[size, 1 or 2]``; the size is a power of two.
        rows: Integers ``[size]``, -1 where a slot is empty.
        counts: int64 ``[2]``: keys in the table, and keys that were there already; both are added to.
        doubles: int64 ``[k, 2]``: receives rows of the first keys that were there already, with the rows that have them.

    Returns:
        Whether there was room for all of them.
    """
    mask, wide = uint64(len(rows) - 1), words.shape[1] > 1
    for k in range(len(words)):
        place = _spread(words[k, 0])
        if parts > 1 and (place >> uint64(40)) % uint64(parts) != uint64(part):
            continue
        at = place & mask
        while rows[at] != _EMPTY and not (slots[at, 0] == words[k, 0] and (not wide or slots[at, 1] == words[k, 1])):
            at = (at + uint64(1)) & mask
        if rows[at] != _EMPTY:
            if counts[1] < len(doubles):
                doubles[counts[1], 0] = first + k
                doubles[counts[1], 1] = rows[at]
            counts[1] += 1
            continue
        if counts[0] + 1 >= len(rows):
            return False
        counts[0] += 1
        rows[at] = first + k
        slots[at, 0] = words[k, 0]
        if wide:
            slots[at, 1] = words[k, 1]
    return True


@lazy_kernel
def find_keys(words: NDArray[np.uint64], parts: int, part: int, slots: NDArray[np.uint64], rows: NDArray[Any], out: NDArray[Any]) -> None:
    """Writes the rows of the keys of one part to ``out``, integers ``[n]``; -1 where there is none. Others stay as they are."""
    mask, wide = uint64(len(rows) - 1), words.shape[1] > 1
    for k in range(len(words)):
        place = _spread(words[k, 0])
        if parts > 1 and (place >> uint64(40)) % uint64(parts) != uint64(part):
            continue
        at = place & mask
        while rows[at] != _EMPTY and not (slots[at, 0] == words[k, 0] and (not wide or slots[at, 1] == words[k, 1])):
            at = (at + uint64(1)) & mask
        out[k] = rows[at]

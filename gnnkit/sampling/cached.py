"""Nodes whose features lie on a trainer's device already: batches come without them, and say where they are.

Which nodes those are is a bit for each node, by store id. A row's place in the cache is the number of set bits before its own, so the
rows lie in the order of their store ids and no table of places is needed: a node takes a bit and a half of memory.
"""

# Intrinsics have no type hints, so what they return is Any to mypy.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from gnnkit.kernels.jit import helper, kernel
from gnnkit.kernels.native import load_i64

_WORD = 64


@helper
def _count_bits(word: np.uint64) -> int:
    word = word - ((word >> uint64(1)) & uint64(0x5555555555555555))
    word = (word & uint64(0x3333333333333333)) + ((word >> uint64(2)) & uint64(0x3333333333333333))
    word = (word + (word >> uint64(4))) & uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * uint64(0x0101010101010101)) >> uint64(56))


@kernel("void(uint64[::1], int32[::1])")
def _rank_words(words: NDArray[np.uint64], ranks: NDArray[np.int32]) -> None:
    """Counts the set bits before each word."""
    count = 0
    for i in range(words.size):
        ranks[i] = count
        count += _count_bits(words[i])


@kernel("int64(int64, int64, uint64[::1], int32[::1], int32[::1], int32[::1], int64[::1])")
def _split(
    ids: int,
    count: int,
    words: NDArray[np.uint64],
    ranks: NDArray[np.int32],
    slots: NDArray[np.int32],
    places: NDArray[np.int32],
    missing: NDArray[np.int64],
) -> int:
    """Finds each node's row in the cache, and lists those that have none: their places in the batch and their ids."""
    found = 0
    for i in range(count):
        v = load_i64(ids + i * 8)
        word, bit = words[v >> 6], uint64(1) << uint64(v & 63)
        if word & bit:
            slots[i] = ranks[v >> 6] + _count_bits(word & (bit - uint64(1)))
        else:
            slots[i] = 0
            places[found] = i
            missing[found] = v
            found += 1
    return found


def as_words(store_ids: NDArray[np.int64], num_nodes: int) -> NDArray[np.uint64]:
    """A bit for each node.

    Args:
        store_ids: int64 ``[k]``: those whose bit is set.
        num_nodes: Nodes of the type.

    Returns:
        uint64 ``[ceil(num_nodes / 64)]``.
    """
    chosen = np.zeros(-(-num_nodes // _WORD) * _WORD, np.bool_)
    chosen[store_ids] = True
    # The first node is the lowest bit of the first word, on hosts of either byte order.
    return np.packbits(chosen, bitorder="little").view("<u8").astype(np.uint64)


@dataclass(frozen=True)
class CachedNodes:
    """The nodes of one type whose features are cached. May be shared by threads.

    Attributes:
        words: uint64, see ``as_words``.
    """

    words: NDArray[np.uint64]

    @cached_property
    def _ranks(self) -> NDArray[np.int32]:
        ranks = np.empty(len(self.words), np.int32)
        _rank_words(self.words, ranks)
        return ranks

    def split(self, ids: int, count: int) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
        """Divides the nodes of a batch by where their features come from.

        Args:
            ids: Address of int64 ``[count]``, store ids.
            count: How many.

        Returns:
            int32 ``[count]``, see ``subgraph.SLOT``; int32 ``[m]``, see ``subgraph.MISSING``; int64 ``[m]``, the store ids of those.
        """
        slots, places, missing = np.empty(count, np.int32), np.empty(count, np.int32), np.empty(count, np.int64)
        found = int(_split(ids, count, self.words, self._ranks, slots, places, missing))
        return slots, places[:found], missing[:found]

"""The keys of the random stream, in plain Python, without Numba, for code that draws nothing.

``docs/development/sampling.md`` specifies them.

A key is folded from the version, the seed, the loader's stream, the epoch, the batch, the purpose, the hop, the edge type, the
root and the node. Python integers here and uint64 in the kernels of ``gnnkit.kernels.stream`` agree.
"""

from __future__ import annotations

from functools import lru_cache

# Changes whenever the same key would give different batches: results of different versions are never mixed up silently.
STREAM_VERSION = 1
GOLDEN = 0x9E3779B97F4A7C15
# Of lowbias32 (Wellons, "Prospecting for Hash Functions", 2018).
HASH_FACTORS = (0x7FEB352D, 0x846CA68B)
_MASK = (1 << 64) - 1

PURPOSE_ORDER = 0
PURPOSE_NEIGHBORS = 1
# 2 was that of variates of 64 bits.
PURPOSE_VARIATES = 3
# Folded into a batch's key, where hops are folded too: above every hop.
PURPOSE_NEGATIVES = 1 << 32
PURPOSE_BIAS = (1 << 32) + 16
PURPOSE_BUDGETS = (1 << 32) + 1
PURPOSE_LAYERS = (1 << 32) + 2


def mix(value: int) -> int:
    """SplitMix64's output function, a bijection of the 64-bit integers."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def fold(key: int, value: int) -> int:
    """Derives a key from ``key`` and one more 64-bit value."""
    return mix(((key ^ (value * GOLDEN)) + GOLDEN) & _MASK)


def text_key(text: str) -> int:
    """A 64-bit digest of a name: its length in bytes, then its UTF-8 bytes as little-endian words, folded one by one."""
    data = text.encode()
    key = fold(0, len(data))
    for start in range(0, len(data), 8):
        key = fold(key, int.from_bytes(data[start : start + 8], "little"))
    return key


def stream_key(seed: int, stream: str) -> int:
    """The key of a loader's stream, e.g. ``"node/train"``."""
    return fold(fold(fold(0, STREAM_VERSION), seed & _MASK), text_key(stream))


def order_key(stream: int, epoch: int) -> int:
    """The key of an epoch's order of seeds."""
    return fold(fold(stream, epoch), PURPOSE_ORDER)


@lru_cache(maxsize=64)
def _neighbors_key(stream: int, epoch: int) -> int:
    return fold(fold(stream, epoch), PURPOSE_NEIGHBORS)


def batch_key(stream: int, epoch: int, batch_index: int) -> int:
    """The key from which every neighbour in a batch is drawn."""
    return fold(_neighbors_key(stream, epoch), batch_index)


def variates_key(stream: int, epoch: int, period: int) -> int:
    """The key from which the variates of nodes are made, of batches whose number, divided by their dependency, is ``period``."""
    return fold(fold(fold(stream, epoch), PURPOSE_VARIATES), period)

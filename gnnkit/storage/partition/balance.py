"""Parts of equal sizes: the bounds that methods keep, and the assignments that need no edges, contiguous and random."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gnnkit.kernels.stream import permutation

# Percent by which a part may exceed the mean where locality decides; METIS' own default is 3.
SLACK_PERCENT = 5


def equal_sizes(num_nodes: int, num_parts: int) -> NDArray[np.int64]:
    """Sizes that differ by at most one; the first parts get the extra nodes.

    Returns:
        int64 ``[num_parts]``, which sums to ``num_nodes``.
    """
    sizes = np.full(num_parts, num_nodes // num_parts, dtype=np.int64)
    sizes[: num_nodes % num_parts] += 1
    return sizes


def capacity(num_nodes: int, num_parts: int) -> int:
    """The most nodes of one type that a locality-aware partitioner gives to a part."""
    mean_up = -(-num_nodes // num_parts)
    return max(mean_up, num_nodes * (100 + SLACK_PERCENT) // (100 * num_parts))


def contiguous_parts(num_nodes: int, num_parts: int) -> NDArray[np.int32]:
    """Consecutive ranges of ids, as equal as they can be.

    Returns:
        int32 ``[num_nodes]``, ascending.
    """
    return np.repeat(np.arange(num_parts, dtype=np.int32), equal_sizes(num_nodes, num_parts))


def shuffled_parts(key: int, num_nodes: int, num_parts: int) -> NDArray[np.int32]:
    """A random assignment with equal sizes.

    Fisher and Yates' shuffle over SplitMix64 (``gnnkit.kernels.stream``): the same on every machine and for every version of
    NumPy, which promises no stable streams.

    Args:
        key: Decides the permutation.
        num_nodes: Nodes to assign.
        num_parts: Parts to assign them to.

    Returns:
        int32 ``[num_nodes]``.
    """
    parts = np.empty(num_nodes, dtype=np.int32)
    parts[permutation(key, num_nodes)] = contiguous_parts(num_nodes, num_parts)
    return parts

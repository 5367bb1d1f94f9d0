"""Edge weights as integers, so that weighted draws come out the same on every CPU.

A weight ``w`` becomes ``q = 0`` if ``w == 0``, else ``max(1, rint(w * 2**s))``. One exponent ``s`` serves a whole edge type: the
one that brings its largest weight into ``[2**31, 2**32)``. Scaling by a power of two is exact, and rounding to the nearest
integer, ties to even, is what IEEE 754 demands of every CPU. Sampling reads the running sums of ``q`` within each node.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError
from gnnkit.schema import EdgeType

_LARGEST_BITS = 32


def weight_exponent(max_weight: float) -> int:
    """The exponent ``s`` with ``2**31 <= max_weight * 2**s < 2**32``; 0 where all weights are zero."""
    return 0 if max_weight == 0 else _LARGEST_BITS - math.frexp(max_weight)[1]


def weight_prefix(indptr: NDArray[Any], weights: NDArray[Any], exponent: int) -> NDArray[np.uint64]:
    """Running sums of integer weights, restarting at each node.

    Args:
        indptr: int32 or int64 ``[num_nodes + 1]``, from 0.
        weights: Numbers ``[num_edges]``, each finite and not negative (see ``check_weights``).
        exponent: What ``weight_exponent`` says for the largest weight of the edge type.

    Returns:
        uint64 ``[num_edges]``; entry ``k`` of a node is the sum of its first ``k + 1`` integer weights.
    """
    from gnnkit.storage.kernels import prefix_weights

    dtype = np.float32 if weights.dtype in (np.float16, np.float32) else np.float64
    prefix = np.empty(len(weights), np.uint64)
    # require() copies what is read-only: kernels are compiled for arrays that may be written.
    prefix_weights(np.require(indptr, np.int64, ["C", "W"]), np.require(weights, dtype, ["C", "W"]), exponent, prefix)
    return prefix


def check_weights(weights: NDArray[Any], edge_type: EdgeType, name: str, first_edge: int = 0) -> float:
    """The largest of ``weights`` (0.0 if there are none), once all of them have been found usable.

    Args:
        weights: Numbers ``[k]`` in the dataset's edge order.
        edge_type: Whose weights they are, for the error.
        name: The array's name, for the error.
        first_edge: The dataset's id of the first edge.

    Raises:
        PlanError: A weight is negative, infinite or NaN; names the edge and the value.
    """
    if not len(weights):
        return 0.0
    largest, smallest = float(weights.max()), float(weights.min())
    if smallest >= 0.0 and math.isfinite(largest):
        return largest
    bad = int(np.flatnonzero(~((weights >= 0) & np.isfinite(weights)))[0])
    raise PlanError(
        f"{name!r} of edge {first_edge + bad} of {edge_type} is {weights[bad].item()!r}", "weights must be finite and at least 0"
    )

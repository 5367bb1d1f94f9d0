"""Edge weights as integers, so that weighted draws are the same on every processor, and times with the order that follows from them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError, near_matches
from gnnkit.schema import ArraySpec, EdgeDir, EdgeType, GraphSchema, NodeType

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
    from gnnkit.storage.kernels import prefix_weights  # numba

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


TIME_NAME = "effective_time"
# Every value of these is one of int64.
_TIME_DTYPES = frozenset(["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"])


def timed_edge_types(schema: GraphSchema, edge_dir: EdgeDir, time_attr: str | None) -> dict[EdgeType, NodeType | None]:
    """Returns the sources of the effective times of edge types.

    Args:
        schema: The graph's schema.
        edge_dir: The end that owns edges.
        time_attr: Name of the arrays with times; None where there are none.

    Returns:
        ``{edge type: None, for its own array, or the node type whose array it is}``, edge types without times left out.
    """
    found: dict[EdgeType, NodeType | None] = {}
    for edge_type, edges in schema.edge_types.items():
        neighbor = edge_type[0] if edge_dir == "in" else edge_type[2]
        if time_attr in edges.arrays:
            found[edge_type] = None
        elif time_attr in schema.node_types[neighbor].arrays:
            found[edge_type] = neighbor
    return found


def check_time_attr(schema: GraphSchema, time_attr: str | None) -> None:
    """Refuses a name that stands for no times.

    Raises:
        PlanError: No node type and no edge type has such an array, or one that has holds something else than one integer a row.
    """
    if time_attr is None:
        return
    owners: list[NodeType | EdgeType] = [*schema.node_types, *schema.edge_types]
    found = [(owner, schema.arrays_of(owner)[time_attr]) for owner in owners if time_attr in schema.arrays_of(owner)]
    if not found:
        known = sorted({name for owner in owners for name, spec in schema.arrays_of(owner).items() if _is_time(spec)})
        raise PlanError(
            f"time_attr={time_attr!r} names no array of nodes or edges{near_matches(time_attr, known)}",
            f"arrays of one integer a row: {known}" if known else "this graph has no arrays of one integer a row",
        )
    for owner, spec in found:
        if not _is_time(spec):
            raise PlanError(
                f"time_attr={time_attr!r} of {owner} has rows of shape {spec.row_shape} and dtype {spec.dtype}",
                "times are integers [n] or [n, 1], for example seconds or years",
            )


def as_times(rows: NDArray[Any]) -> NDArray[np.int64]:
    """Integers ``[n]`` or ``[n, 1]`` as int64 ``[n]``."""
    return rows.reshape(len(rows)).astype(np.int64, copy=False)


def time_order(indptr: NDArray[Any], times: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """The order by time within each node, stable.

    Args:
        indptr: int32 or int64 ``[num_nodes + 1]``, from 0.
        times: int64 ``[num_edges]`` in the order of ``indptr``.

    Returns:
        int64 ``[num_edges]``: ``times[order]`` does not decrease within a node; None where it does not already.
    """
    from gnnkit.storage.kernels import sort_within_nodes  # numba

    order = np.arange(len(times))
    # require() copies what is read-only: kernels are compiled for arrays that may be written.
    moved = sort_within_nodes(np.require(indptr, np.int64, ["C", "W"]), np.require(times, np.int64, ["C", "W"]), order)
    return order if moved else None


def _is_time(spec: ArraySpec) -> bool:
    return spec.dtype in _TIME_DTYPES and spec.row_shape in ((), (1,))

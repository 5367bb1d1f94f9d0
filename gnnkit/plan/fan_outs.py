"""Numbers of neighbours for each hop, as users say them and as plans hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from gnnkit.errors import PlanError, near_matches
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE, EdgeType, GraphSchema, is_label_edge_type

FanOuts: TypeAlias = Sequence[int] | Mapping[EdgeType, Sequence[int]]
# Room is made for as many edges as may be drawn: from here on there would be none.
_TOO_MANY = 1 << 31


def _fan_out(value: Any, where: str) -> tuple[int, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, np.ndarray)):
        raise PlanError(f"num_neighbors{where} must be a list with one number per hop, got {value!r}", "for example [15, 10, 5]")
    for number in value:
        if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or not -1 <= number < _TOO_MANY:
            raise PlanError(
                f"num_neighbors{where} holds {number!r}", "a fan-out is a whole number below 2**31; -1 takes all neighbours, 0 none"
            )
    return tuple(int(number) for number in value)


def check_fan_outs(num_neighbors: FanOuts) -> None:
    """Checks what can be checked without a schema.

    Raises:
        PlanError: A fan-out is empty or no list, hop counts differ, or a number is below -1 or no whole number.
    """
    if not isinstance(num_neighbors, Mapping):
        if not _fan_out(num_neighbors, ""):
            raise PlanError("num_neighbors is empty", "give one number per hop, for example [15, 10, 5]")
        return
    fan_outs = {edge_type: _fan_out(value, f"[{edge_type}]") for edge_type, value in num_neighbors.items()}
    if len({len(fan_out) for fan_out in fan_outs.values()}) != 1 or not all(fan_outs.values()):
        raise PlanError(f"num_neighbors has different numbers of hops: { {str(t): len(f) for t, f in fan_outs.items()} }", "pad with 0")


def resolve_fan_outs(num_neighbors: FanOuts, schema: GraphSchema) -> dict[EdgeType, tuple[int, ...]]:
    """``{edge type: fan-out per hop}`` for every edge type.

    Args:
        num_neighbors: One list for all edge types, or a list for each.
        schema: The graph's schema.

    Raises:
        PlanError: A type is unknown or missing, hop counts differ, or a number is below -1 or no whole number.
    """
    check_fan_outs(num_neighbors)
    if not isinstance(num_neighbors, Mapping):
        fan_out = _fan_out(num_neighbors, "")
        # Labels are for supervision: messages pass along them only where somebody says so of their type.
        return {t: (0,) * len(fan_out) if is_label_edge_type(t) else fan_out for t in schema.edge_types}
    if schema.is_homogeneous and set(num_neighbors) != {HOMOGENEOUS_EDGE_TYPE}:
        raise PlanError("num_neighbors is a dict, but the graph is homogeneous", "give a list, for example [15, 10, 5]")
    names = [str(edge_type) for edge_type in schema.edge_types]
    for edge_type in num_neighbors:
        if edge_type not in schema.edge_types:
            raise PlanError(
                f"num_neighbors names the unknown edge type {edge_type!r}{near_matches(str(edge_type), names)}", f"known: {names}"
            )
    missing = [edge_type for edge_type in schema.edge_types if edge_type not in num_neighbors]
    if missing:
        raise PlanError(f"num_neighbors says nothing about the edge types {missing}", "give [0, ...] to leave a type out")
    return {edge_type: _fan_out(value, f"[{edge_type}]") for edge_type, value in num_neighbors.items()}

"""Small helpers for values that exist once for a homogeneous graph and once per type for a typed one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from gnnkit.errors import PlanError
from gnnkit.schema import EdgeType, NodeType

GraphType: TypeAlias = NodeType | EdgeType


def check_part(partition_idx: int, num_partitions: int) -> None:
    """Makes sure that there is such a part.

    Raises:
        PlanError: There is not.
    """
    if isinstance(partition_idx, bool) or num_partitions < 1 or not 0 <= partition_idx < num_partitions:
        raise PlanError(f"there is no part {partition_idx} of {num_partitions}", f"parts go from 0 to {num_partitions - 1}")


def by_type(value: Any, graph_type: GraphType | None, what: str) -> Any:
    """The value of a type in a dict by type; ``value`` itself where it is no dict.

    Args:
        value: A dict by type, or the only value of a homogeneous graph.
        graph_type: The type; None will do for a homogeneous graph.
        what: What is looked for, for the error.

    Raises:
        PlanError: There is none for the type, or no type is given and there are several.
    """
    if not isinstance(value, Mapping):
        return value
    if graph_type is None or graph_type not in value:
        wanted = "no type is given" if graph_type is None else f"none for {graph_type!r}"
        raise PlanError(f"there is {what} for each of the types {list(value)}, and {wanted}", "name one of these types")
    return value[graph_type]

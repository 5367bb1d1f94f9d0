"""Fan-outs of a dataset with label edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from gnnkit.distributed.label_edges import is_label_edge_type
from gnnkit.errors import PlanError, near_matches
from gnnkit.loader.words import check_fan_outs
from gnnkit.schema import EdgeType

NumNeighbors: TypeAlias = list[int] | dict[EdgeType, list[int]]


def patch_fanout_for_sampling(
    edge_types: Sequence[EdgeType] | None, num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]]
) -> NumNeighbors:
    """Fan-outs for everything that sampling walks along, and nothing else: label edge types have none.

    Args:
        edge_types: The dataset's edge types; None for a homogeneous graph.
        num_neighbors: A list with a number per hop, or a list for each message-passing type. -1 takes all neighbours, 0 none.

    Returns:
        A list for a homogeneous graph, else a dict of the message-passing types; never the caller's own object.

    Raises:
        PlanError: A type is unknown, missing or a label type, hop counts differ, a number is below -1 or no whole number, a
            homogeneous graph is given a dict, or there is no message-passing type.
    """
    check_fan_outs(num_neighbors)
    if edge_types is None:
        if isinstance(num_neighbors, Mapping):
            raise PlanError("num_neighbors is a dict, but the graph is homogeneous", "give a list, for example [15, 10, 5]")
        return [int(number) for number in num_neighbors]
    passing = [edge_type for edge_type in edge_types if not is_label_edge_type(edge_type)]
    if not passing:
        raise PlanError(f"the edge types {list(edge_types)} are all labels: there is nothing to sample along")
    if not isinstance(num_neighbors, Mapping):
        return {edge_type: [int(number) for number in num_neighbors] for edge_type in passing}
    labels = [edge_type for edge_type in num_neighbors if is_label_edge_type(edge_type)]
    if labels:
        raise PlanError(f"num_neighbors names the label edge types {labels}", "labels are never walked along: leave them out")
    names = [str(edge_type) for edge_type in passing]
    for edge_type in num_neighbors:
        if edge_type not in passing:
            raise PlanError(
                f"num_neighbors names the unknown edge type {edge_type}{near_matches(str(edge_type), names)}", f"known: {names}"
            )
    missing = [edge_type for edge_type in passing if edge_type not in num_neighbors]
    if missing:
        raise PlanError(f"num_neighbors says nothing about the edge types {missing}", "give [0, ...] to leave a type out")
    return {edge_type: [int(number) for number in num_neighbors[edge_type]] for edge_type in passing}

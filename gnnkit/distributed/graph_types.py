"""Edge types with and without labels, the fan-outs that go with them, and even shares of numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from gnnkit.errors import PlanError, near_matches
from gnnkit.plan.sampling import check_fan_outs
from gnnkit.schema import (
    HOMOGENEOUS_EDGE_TYPE,
    HOMOGENEOUS_NODE_TYPE,
    NEGATIVE_LABELS,
    POSITIVE_LABELS,
    EdgeType,
)
from gnnkit.schema import is_label_edge_type as is_label_edge_type
from gnnkit.schema import reverse_edge_type as reverse_edge_type

if TYPE_CHECKING:
    import torch


def worker_seed_ranges(num_seeds: int, batch_size: int, num_workers: int) -> list[tuple[int, int]]:
    """The half-open range of seeds of each worker.

    Whole batches are dealt evenly, one more to the first workers where they do not come out even; the last worker also has the
    seeds that fill no batch. Ranges are contiguous and may be empty.

    Args:
        num_seeds: Seeds in all.
        batch_size: Seeds per batch, at least 1.
        num_workers: Workers, at least 1.

    Raises:
        PlanError: A number is too small.
    """
    if num_seeds < 0 or batch_size < 1 or num_workers < 1:
        raise PlanError(f"cannot deal {num_seeds} seeds in batches of {batch_size} to {num_workers} workers")
    bounds = [batch * batch_size for batch in even_bounds(num_seeds // batch_size, num_workers)[:-1]] + [num_seeds]
    return list(zip(bounds[:-1], bounds[1:], strict=True))


def shard_nodes_by_process(input_nodes: torch.Tensor, local_process_rank: int, local_process_world_size: int) -> torch.Tensor:
    """The share of one of several processes of a host.

    Shares are contiguous and as long as each other; the last one also has what is left.

    Args:
        input_nodes: ``[n]`` ids, the same for every process.
        local_process_rank: The process.
        local_process_world_size: Number of processes.

    Raises:
        PlanError: There is no such process.
    """
    if not 0 <= local_process_rank < local_process_world_size:
        raise PlanError(f"there is no process {local_process_rank} of {local_process_world_size}")
    size = len(input_nodes) // local_process_world_size
    last = local_process_rank == local_process_world_size - 1
    return input_nodes[local_process_rank * size : None if last else (local_process_rank + 1) * size]


def even_bounds(count: int, shares: int) -> list[int]:
    """The bounds of contiguous shares whose sizes differ by at most 1, larger ones first: ``shares + 1`` numbers from 0 to ``count``."""
    least, more = divmod(count, shares)
    return [share * least + min(share, more) for share in range(shares + 1)]


DEFAULT_HOMOGENEOUS_NODE_TYPE = HOMOGENEOUS_NODE_TYPE


DEFAULT_HOMOGENEOUS_EDGE_TYPE = HOMOGENEOUS_EDGE_TYPE


def message_passing_to_positive_label(message_passing_edge_type: EdgeType) -> EdgeType:
    """The type of the positive labels that belong to a message-passing type.

    Raises:
        PlanError: The type is a label type itself.
    """
    return _labelled(message_passing_edge_type, POSITIVE_LABELS)


def message_passing_to_negative_label(message_passing_edge_type: EdgeType) -> EdgeType:
    """The type of the negative labels that belong to a message-passing type.

    Raises:
        PlanError: The type is a label type itself.
    """
    return _labelled(message_passing_edge_type, NEGATIVE_LABELS)


def label_edge_type_to_message_passing_edge_type(label_edge_type: EdgeType) -> EdgeType:
    """The message-passing type that a label type belongs to.

    Raises:
        PlanError: The type is no label type.
    """
    source, relation, target = label_edge_type
    for suffix in (POSITIVE_LABELS, NEGATIVE_LABELS):
        if relation.endswith(suffix):
            return (source, relation.removesuffix(suffix), target)
    raise PlanError(f"{label_edge_type} is no label edge type", f"its relation would end in {POSITIVE_LABELS!r} or {NEGATIVE_LABELS!r}")


def select_label_edge_types(message_passing_edge_type: EdgeType, edge_entities: Iterable[EdgeType]) -> tuple[EdgeType, EdgeType | None]:
    """The label types of a message-passing type among those of a graph.

    Args:
        message_passing_edge_type: The type that is supervised.
        edge_entities: The graph's edge types.

    Returns:
        The positive and the negative label type; None for the latter where the graph has none.

    Raises:
        PlanError: The graph has no positive labels for the type.
    """
    known = list(edge_entities)
    positive, negative = _labelled(message_passing_edge_type, POSITIVE_LABELS), _labelled(message_passing_edge_type, NEGATIVE_LABELS)
    if positive not in known:
        labels = [edge_type for edge_type in known if is_label_edge_type(edge_type)]
        raise PlanError(
            f"the graph has no positive labels for {message_passing_edge_type}: {positive} is missing", f"label types: {labels}"
        )
    return positive, negative if negative in known else None


def is_labeled_homogeneous(edge_types: Iterable[EdgeType]) -> bool:
    """Whether a typed graph is a homogeneous one with labels: the default edge type, and label types beside it, no others."""
    types = list(edge_types)
    passing = [edge_type for edge_type in types if not is_label_edge_type(edge_type)]
    return passing == [DEFAULT_HOMOGENEOUS_EDGE_TYPE] and len(types) > 1


def _labelled(edge_type: EdgeType, suffix: str) -> EdgeType:
    if is_label_edge_type(edge_type):
        raise PlanError(f"{edge_type} is a label edge type already", "give the message-passing type")
    return (edge_type[0], edge_type[1] + suffix, edge_type[2])


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
    if labels := [edge_type for edge_type in num_neighbors if is_label_edge_type(edge_type)]:
        raise PlanError(f"num_neighbors names the label edge types {labels}", "labels are never walked along: leave them out")
    names = [str(edge_type) for edge_type in passing]
    for edge_type in num_neighbors:
        if edge_type not in passing:
            raise PlanError(
                f"num_neighbors names the unknown edge type {edge_type}{near_matches(str(edge_type), names)}", f"known: {names}"
            )
    if missing := [edge_type for edge_type in passing if edge_type not in num_neighbors]:
        raise PlanError(f"num_neighbors says nothing about the edge types {missing}", "give [0, ...] to leave a type out")
    return {edge_type: [int(number) for number in num_neighbors[edge_type]] for edge_type in passing}

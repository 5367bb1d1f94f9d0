"""Label edge types: supervision edges that a graph stores beside the edges along which messages pass.

The relation of a label edge type is that of a message-passing type with ``_gigl_positive`` or ``_gigl_negative`` at its end. Label
edges are never walked when neighbourhoods are sampled.
"""

from __future__ import annotations

from collections.abc import Iterable

from gnnkit.errors import PlanError
from gnnkit.schema import (
    HOMOGENEOUS_EDGE_TYPE,
    HOMOGENEOUS_NODE_TYPE,
    NEGATIVE_LABELS,
    POSITIVE_LABELS,
    EdgeType,
    is_label_edge_type,
    reverse_edge_type,
)

__all__ = [
    "DEFAULT_HOMOGENEOUS_EDGE_TYPE",
    "DEFAULT_HOMOGENEOUS_NODE_TYPE",
    "is_label_edge_type",
    "is_labeled_homogeneous",
    "label_edge_type_to_message_passing_edge_type",
    "message_passing_to_negative_label",
    "message_passing_to_positive_label",
    "reverse_edge_type",
    "select_label_edge_types",
]

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

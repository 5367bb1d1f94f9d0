"""Arrays that users give with links, or with nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError
from gnnkit.schema import EdgeType, GraphSchema

LINK_FORMS = "give a tensor [2, n], a split's name, (edge type, either of these), or an edge type for all its edges"


def to_array(value: Any, what: str) -> NDArray[Any]:
    """An array of numbers from a tensor, array or list.

    Raises:
        PlanError: It is none.
    """
    try:
        array = np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise PlanError(f"{what} cannot be read as an array: {error}", LINK_FORMS if what == "edge_label_index" else None) from error
    if array.dtype.kind not in "biuf":
        raise PlanError(f"{what} must hold numbers, got dtype {array.dtype}", LINK_FORMS if what == "edge_label_index" else None)
    return array


def to_links(value: Any, edge_type: EdgeType, schema: GraphSchema) -> NDArray[np.int64]:
    """Links from a tensor, array or list ``[2, n]``: int64, dataset ids of sources and targets.

    Raises:
        PlanError: Wrong dtype or shape, or an id out of range.
    """
    array = to_array(value, "edge_label_index")
    if array.ndim != 2 or array.shape[0] != 2:
        raise PlanError(f"edge_label_index must be [2, n], sources and targets, got shape {list(array.shape)}", LINK_FORMS)
    if array.size and array.dtype.kind not in "iu":
        raise PlanError(f"edge_label_index must hold whole numbers, got dtype {array.dtype}", "for example edge_label_index.long()")
    for row, node_type, end in zip(array, (edge_type[0], edge_type[2]), ("source", "target"), strict=True):
        num_nodes = schema.node_types[node_type].num_nodes
        if row.size and not 0 <= row.min() <= row.max() < num_nodes:
            wrong = int(row[(row < 0) | (row >= num_nodes)][0])
            raise PlanError(f"edge_label_index holds the {end} {wrong}, but ids of {node_type!r} go from 0 to {num_nodes - 1}")
    return np.array(array, np.int64, order="C")


def to_rows(value: Any, what: str, count: int) -> NDArray[Any]:
    """Numbers ``[count, ...]`` that go with links; a copy.

    Raises:
        PlanError: They are none, or of another length.
    """
    array = to_array(value, what)
    if array.ndim == 0 or len(array) != count:
        raise PlanError(f"{what} must have a row for each of {count} links, got shape {list(array.shape)}")
    return np.array(array, order="C")


def to_times(value: Any, count: int) -> NDArray[np.int64]:
    """Times of links: int64 ``[count]``.

    Raises:
        PlanError: They are no whole numbers, or of another shape.
    """
    array = to_rows(value, "edge_label_time", count)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise PlanError(
            f"edge_label_time must be whole numbers [{count}], got {array.dtype} {list(array.shape)}", "for example time.long()"
        )
    return array.astype(np.int64)


def to_weight(value: Any, what: str) -> NDArray[np.float64] | None:
    """Weights of nodes: float64, or None where there are none.

    Raises:
        PlanError: They are no numbers.
    """
    return None if value is None else to_array(value, what).astype(np.float64)

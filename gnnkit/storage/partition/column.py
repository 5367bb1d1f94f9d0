"""Parts that a column says: the value of a node is its part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError
from gnnkit.schema import GraphSchema, NodeType


class NodeRows(Protocol):
    """The nodes of a graph; a ``GraphSource`` and a ``BuildInput`` are such.

    Attributes:
        metadata: See ``GraphSource``. It says of columns of tables what their codes stand for.
    """

    metadata: Mapping[str, Any]

    @property
    def schema(self) -> GraphSchema:
        """Types and sizes."""

    def node_array_chunks(self, node_type: NodeType, name: str) -> Iterator[NDArray[Any]]:
        """Yields rows of a node array in the dataset's node order."""


def assign(nodes: NodeRows, name: str, num_parts: int) -> dict[NodeType, NDArray[np.int32]]:
    """Takes each node's part from an array.

    Whole numbers are parts themselves. Texts of a table (``categories``) are parts in the ascending order of those of all node types, so
    that nodes of different types with the same text share a part.

    Args:
        nodes: The graph.
        name: The array.
        num_parts: Parts.

    Returns:
        ``{node type: int32 [num_nodes]}``.

    Raises:
        PlanError: A node has no value, or one that is no part; names the first.
    """
    values = {node_type: _values(nodes.metadata, node_type, name) for node_type in nodes.schema.node_types}
    texts = _texts(values, name)
    if len(texts) > num_parts:
        raise PlanError(
            f"{name!r} has {len(texts)} different values, and there are {num_parts} parts: {texts[num_parts]!r} has none",
            f"num_parts={len(texts)}, or a column with fewer values",
        )
    parts = {}
    for node_type, schema in nodes.schema.node_types.items():
        own = values[node_type]
        meanings = None if own is None else np.array([texts.index(value) if texts else value for value in own], np.int64)
        found, first = np.empty(schema.num_nodes, np.int32), 0
        for rows in nodes.node_array_chunks(node_type, name):
            found[first : first + len(rows)] = _parts(rows.reshape(-1), meanings, num_parts, node_type, name, first)
            first += len(rows)
        parts[node_type] = found
    return parts


def _values(metadata: Mapping[str, Any], node_type: NodeType, name: str) -> list[Any] | None:
    """The values that the codes of a column of a table stand for; None where they are no codes."""
    found: Any = metadata
    for key in ("tables", node_type, name, "values"):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, list) else None


def _texts(values: Mapping[NodeType, list[Any] | None], name: str) -> list[str]:
    """The texts of all node types, ascending; none where the values are numbers.

    Raises:
        PlanError: Some types have numbers, others texts.
    """
    kinds = {t: "text" if own and isinstance(own[0], str) else "numbers" for t, own in values.items() if own is None or own}
    if len(set(kinds.values())) > 1:
        raise PlanError(f"{name!r} holds {kinds}, and nodes of all types share the parts", "give all tables a column of one type")
    return sorted({value for own in values.values() for value in own or () if isinstance(value, str)})


def _parts(
    rows: NDArray[Any], meanings: NDArray[np.int64] | None, num_parts: int, node_type: NodeType, name: str, first: int
) -> NDArray[np.integer[Any]]:
    """The parts of some nodes.

    Raises:
        PlanError: See ``assign``.
    """
    if meanings is not None:
        if (missing := np.flatnonzero(rows < 0)).size:
            raise PlanError(
                f"node {first + int(missing[0])} of type {node_type!r} has no {name!r}, which says its part",
                f"fill={{{name!r}: value}} of gnnkit.tables gives nodes without a value one",
            )
        rows = meanings[rows]
    if (wrong := np.flatnonzero((rows < 0) | (rows >= num_parts))).size:
        k = int(wrong[0])
        raise PlanError(
            f"node {first + k} of type {node_type!r} has {name}={int(rows[k])}, and parts count from 0 to {num_parts - 1}",
            "num_parts=... is one more than the largest value",
        )
    return rows

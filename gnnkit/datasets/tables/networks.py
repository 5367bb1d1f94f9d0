"""A NetworkX graph as two tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from gnnkit.errors import PlanError


def is_networkx(form: Any) -> bool:
    """Whether this is a NetworkX graph; NetworkX is not imported."""
    return hasattr(form, "is_directed") and hasattr(form, "adj") and hasattr(form, "nodes")


def tables_of_networkx(graph: Any) -> tuple[pa.Table, pa.Table, str]:
    """The tables of a NetworkX graph, nodes and edges in its own order; an undirected graph has each edge in both directions.

    Args:
        graph: The graph; its nodes are whole numbers or texts.

    Returns:
        The table of nodes, with the column "node" and their attributes; that of edges, with "src", "dst" and theirs; and "node".

    Raises:
        PlanError: Nodes are something else, or an attribute is no column.
    """
    nodes = {"node": list(graph.nodes), **_attributes(data for _, data in graph.nodes(data=True))}
    listed = list(graph.edges(data=True))
    if not graph.is_directed():
        # As PyG's from_networkx: edges of the directed graph that has both directions, each a loop once.
        listed = list(graph.to_directed(as_view=True).edges(data=True))
    edges = {"src": [edge[0] for edge in listed], "dst": [edge[1] for edge in listed], **_attributes(edge[2] for edge in listed)}
    return _table(nodes, "nodes"), _table(edges, "edges"), "node"


def _attributes(found: Iterable[dict[str, Any]]) -> dict[str, list[Any]]:
    rows = list(found)
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {str(name): [row.get(name) for row in rows] for name in names}


def _table(columns: dict[str, list[Any]], what: str) -> pa.Table:
    arrays = {}
    for name, values in columns.items():
        try:
            arrays[name] = pa.array(values) if values else pa.array([], pa.int64())
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise PlanError(
                f"{name!r} of the {what} of a NetworkX graph is no column: {error}",
                "nodes are whole numbers or texts, attributes of one type",
            ) from error
    return pa.table(arrays)

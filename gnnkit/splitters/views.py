"""A graph that a user hands over for a look at it: in PyG's objects, or in a store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError, near_matches
from gnnkit.runtime.link_inputs import edges_in_order
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE, HOMOGENEOUS_NODE_TYPE, EdgeType, NodeType
from gnnkit.storage.part_ids import dataset_ids
from gnnkit.storage.store import Store


def view_of(value: Any) -> GraphView | None:
    """A view of a PyG ``Data`` or ``HeteroData``, a ``Store`` or the path of one; None for what is no graph.

    Raises:
        StoreError: There is no store at the path, or it is damaged.
    """
    if isinstance(value, (str, Path)) or hasattr(value, "node_bounds"):
        return _StoreView(value if isinstance(value, Store) else Store.open(value))
    return _PyGView(value) if hasattr(value, "stores") else None


class GraphView:
    """What may be asked of a graph, whatever it is kept in.

    Attributes:
        node_types: Its node types.
        edge_types: Its edge types.
    """

    node_types: Sequence[NodeType]
    edge_types: Sequence[EdgeType]

    def node_type(self, given: NodeType | None) -> NodeType:
        """The type that is meant; None means the only one.

        Raises:
            PlanError: There is no such type, or several.
        """
        return _one_of(given, list(self.node_types), "node")  # type: ignore[no-any-return]

    def edge_type(self, given: EdgeType | None) -> EdgeType:
        """The type that is meant; see ``node_type``."""
        return _one_of(given if given is None else tuple(given), list(self.edge_types), "edge")  # type: ignore[no-any-return]

    def num_nodes(self, node_type: NodeType) -> int:
        """Nodes of a type."""
        raise NotImplementedError

    def num_edges(self, edge_type: EdgeType) -> int:
        """Edges of a type."""
        raise NotImplementedError

    def node_array(self, node_type: NodeType, name: str) -> NDArray[Any]:
        """``[num_nodes, ...]``: an array of the nodes of a type, by id.

        Raises:
            PlanError: There is none of the name.
            StoreError: A part is not here.
        """
        raise NotImplementedError

    def edge_ends(self, edge_type: EdgeType) -> NDArray[Any]:
        """Whole numbers ``[2, num_edges]``: sources and targets, by id.

        Raises:
            PlanError: A graph has no edge_index, or a store no edge ids.
            StoreError: A part is not here.
        """
        raise NotImplementedError


def _one_of(given: Any, known: list[Any], what: str) -> Any:
    if given is None and len(known) == 1:
        return known[0]
    if given is None:
        raise PlanError(f"the graph has several {what} types, and {what}_type does not say which one is meant", f"known: {known}")
    if given not in known:
        raise PlanError(f"there is no {what} type {given!r}{near_matches(str(given), list(map(str, known)))}", f"known: {known}")
    return given


class _PyGView(GraphView):
    """A ``Data`` or ``HeteroData``."""

    def __init__(self, data: Any) -> None:
        typed = hasattr(data, "node_types")
        self.node_types = data.node_types if typed else [HOMOGENEOUS_NODE_TYPE]
        self.edge_types = data.edge_types if typed else [HOMOGENEOUS_EDGE_TYPE]
        self._data, self._typed = data, typed

    def _of(self, owner: Any) -> Any:
        return self._data[owner] if self._typed else self._data

    def num_nodes(self, node_type: NodeType) -> int:
        return int(self._of(node_type).num_nodes)

    def num_edges(self, edge_type: EdgeType) -> int:
        return int(self._of(edge_type).num_edges)

    def node_array(self, node_type: NodeType, name: str) -> NDArray[Any]:
        values = self._of(node_type)
        if name not in values:
            raise PlanError(f"{node_type!r} nodes have no array {name!r}", f"they have {sorted(values.keys())}")
        return np.asarray(values[name].detach().cpu().numpy())

    def edge_ends(self, edge_type: EdgeType) -> NDArray[Any]:
        if "edge_index" not in self._of(edge_type):
            raise PlanError(f"the edges of {edge_type} are no edge_index", "give the graph with edge_index")
        return np.asarray(self._of(edge_type).edge_index.detach().cpu().numpy(), np.int64)


class _StoreView(GraphView):
    """A store."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.node_types, self.edge_types = list(store.schema.node_types), list(store.schema.edge_types)

    def num_nodes(self, node_type: NodeType) -> int:
        return int(self._store.schema.node_types[node_type].num_nodes)

    def num_edges(self, edge_type: EdgeType) -> int:
        return int(self._store.schema.edge_types[edge_type].num_edges)

    def node_array(self, node_type: NodeType, name: str) -> NDArray[Any]:
        known = self._store.schema.node_types[node_type].arrays
        if name not in known:
            raise PlanError(f"{node_type!r} nodes have no array {name!r}", f"they have {list(known)}")
        graph = self._store.require().arrays()
        found = np.empty((self.num_nodes(node_type), *known[name].row_shape), known[name].numpy_dtype)
        for part in range(graph.num_parts):
            found[dataset_ids(graph, node_type, part)] = graph.nodes[node_type][part].arrays[name]
        return found

    def edge_ends(self, edge_type: EdgeType) -> NDArray[Any]:
        return edges_in_order(self._store.require().arrays(), edge_type)

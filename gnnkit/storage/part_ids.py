"""Between the dataset's ids and the rows of a store's parts."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.schema import EdgeType, NodeType
from gnnkit.storage.arrays import GraphArrays


def dataset_ids(graph: GraphArrays, node_type: NodeType, part: int) -> NDArray[np.int64]:
    """int64 ``[num_local_nodes]``: the dataset's ids of a part's nodes; ascending unless the hottest come first."""
    ids = graph.nodes[node_type][part].global_id
    bounds = graph.node_bounds[node_type]
    return np.arange(bounds[part], bounds[part + 1]) if ids is None else np.asarray(ids, np.int64)


def all_dataset_ids(graph: GraphArrays, node_type: NodeType) -> NDArray[np.int64]:
    """int64 ``[num_nodes]``: the dataset's id of every store id, also of parts that are not open."""
    table, num_nodes = graph.store_id[node_type], graph.schema.node_types[node_type].num_nodes
    ids = np.arange(num_nodes, dtype=np.int64)
    if table is None:
        return ids
    found = np.empty(num_nodes, np.int64)
    found[table] = ids
    return found


def node_values(graph: GraphArrays, node_type: NodeType, name: str) -> NDArray[Any]:
    """``[num_nodes, ...]``: one array of all nodes of a type, by the dataset's ids; every part must be open."""
    spec = graph.schema.node_types[node_type].arrays[name]
    found = np.empty((graph.schema.node_types[node_type].num_nodes, *spec.row_shape), spec.numpy_dtype)
    for part, nodes in enumerate(graph.nodes[node_type]):
        found[dataset_ids(graph, node_type, part)] = nodes.arrays[name]
    return found


def part_edge_ids(graph: GraphArrays, edge_type: EdgeType, part: int) -> NDArray[np.int64]:
    """int64 ``[num_local_edges]``: the dataset's ids of a part's edges, or their places in the store where it has no ids."""
    ids = graph.edges[edge_type][part].edge_id
    bounds = graph.edge_bounds[edge_type]
    return np.arange(bounds[part], bounds[part + 1]) if ids is None else np.asarray(ids, np.int64)


def edge_order(graph: GraphArrays, edge_type: EdgeType, part: int) -> NDArray[np.int64] | None:
    """int64 ``[num_local_edges]``: a part's edges by the dataset's ids of their owners; None where they lie in this order."""
    owners = dataset_ids(graph, graph.frontier_type(edge_type), part)
    if (owners[1:] > owners[:-1]).all():
        return None
    return np.argsort(np.repeat(owners, np.diff(graph.edges[edge_type][part].indptr)), kind="stable")


class PartNodeRows:
    """Finds a part's rows of nodes."""

    def __init__(self, graph: GraphArrays, node_type: NodeType, part: int) -> None:
        self._table = graph.store_id[node_type]
        self._first, self._end = (int(bound) for bound in graph.node_bounds[node_type][part : part + 2])
        self._num_nodes = graph.schema.node_types[node_type].num_nodes

    def rows(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        """Rows ``[k]`` of the dataset's ids ``[k]``; -1 for ids that the part does not have."""
        known = (ids >= 0) & (ids < self._num_nodes)
        numbers = ids if self._table is None else self._table[np.where(known, ids, 0)] if self._num_nodes else ids
        return np.where(known & (numbers >= self._first) & (numbers < self._end), numbers - self._first, -1)


class PartEdgeRows:
    """Finds a part's rows of edges; sorts their ids when it is first asked."""

    def __init__(self, graph: GraphArrays, edge_type: EdgeType, part: int) -> None:
        self._edge_ids = part_edge_ids(graph, edge_type, part)

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        return np.argsort(self._edge_ids, kind="stable")

    def rows(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        """Rows ``[k]`` of the dataset's ids ``[k]``; -1 for ids that the part does not have."""
        if not len(self._edge_ids):
            return np.full(len(ids), -1)
        places = np.searchsorted(self._edge_ids, ids, sorter=self._order)
        rows = self._order[np.minimum(places, len(self._order) - 1)]
        return np.where(self._edge_ids[rows] == ids, rows, -1)

"""Counts the edges that an assignment cuts, for reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.kernels.jit import lazy_kernel
from gnnkit.schema import EdgeType, NodeType
from gnnkit.storage.arrays import GraphArrays
from gnnkit.storage.partition.topology import edge_rows, to_store_order


def edge_cut(
    graph: GraphArrays, assignment: Mapping[NodeType, NDArray[Any]] | None = None, num_parts: int | None = None
) -> dict[EdgeType, NDArray[np.int64]]:
    """Counts the edges between every two parts, in one pass over the graph.

    Args:
        graph: The graph, in any number of parts.
        assignment: ``{node type: [num_nodes]}``, each node's part by dataset id; None takes the parts of ``graph`` itself.
        num_parts: Parts of the assignment; None takes those of ``graph``, or as many as the assignment uses.

    Returns:
        ``{edge type: int64 [num_parts, num_parts]}``: the edges from a source in part ``row`` to a target in part ``column``.
        The share of the diagonal is what stays local.
    """
    parts: dict[NodeType, NDArray[np.int32]]
    if assignment is None:
        num_parts = graph.num_parts
        ids = np.arange(num_parts, dtype=np.int32)
        parts = {name: np.repeat(ids, np.diff(bounds)) for name, bounds in graph.node_bounds.items()}
    else:
        parts = {name: np.array(to_store_order(graph, name, values), dtype=np.int32) for name, values in assignment.items()}
        num_parts = num_parts or 1 + max((int(values.max()) for values in parts.values() if len(values)), default=0)
    result = {}
    for edge_type in graph.edges:
        matrix = np.zeros((num_parts, num_parts), dtype=np.int64)
        frontier, neighbor = parts[graph.frontier_type(edge_type)], parts[graph.neighbor_type(edge_type)]
        for rows in edge_rows(graph, edge_type):
            _count_rows(rows.first, rows.indptr, rows.indices, frontier, neighbor, matrix)
        # Counted from the frontier's side: that is the target along in-edges.
        result[edge_type] = matrix.T.copy() if graph.edge_dir == "in" else matrix
    return result


def edge_cut_of_chunks(
    edge_chunks: Iterable[NDArray[np.int64]], source_parts: NDArray[Any], target_parts: NDArray[Any], num_parts: int
) -> NDArray[np.int64]:
    """``edge_cut`` of one edge type from its edges as a ``GraphSource`` yields them.

    Args:
        edge_chunks: Arrays ``[2, k]`` of dataset ids (source row, target row).
        source_parts: ``[num_sources]``, each source's part.
        target_parts: ``[num_targets]``, each target's part.
        num_parts: Parts of the assignment.

    Returns:
        int64 ``[num_parts, num_parts]``.
    """
    matrix = np.zeros((num_parts, num_parts), dtype=np.int64)
    sources, targets = np.array(source_parts, dtype=np.int32), np.array(target_parts, dtype=np.int32)
    for chunk in edge_chunks:
        pairs = np.array(chunk, dtype=np.int64, order="C")
        _count_pairs(pairs[0], pairs[1], sources, targets, matrix)
    return matrix


@lazy_kernel
def _count_rows(
    first: int,
    indptr: NDArray[np.int64],
    indices: NDArray[np.int64],
    frontier: NDArray[np.int32],
    neighbor: NDArray[np.int32],
    matrix: NDArray[np.int64],
) -> None:
    for row in range(indptr.size - 1):
        part = frontier[first + row]
        for j in range(indptr[row], indptr[row + 1]):
            matrix[part, neighbor[indices[j]]] += 1


@lazy_kernel
def _count_pairs(
    source_ids: NDArray[np.int64],
    target_ids: NDArray[np.int64],
    sources: NDArray[np.int32],
    targets: NDArray[np.int32],
    matrix: NDArray[np.int64],
) -> None:
    for i in range(source_ids.size):
        matrix[sources[source_ids[i]], targets[target_ids[i]]] += 1

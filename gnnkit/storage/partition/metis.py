"""METIS (Karypis and Kumar, SIAM J. Sci. Comput. 1998) through pymetis: the best cut, for graphs that fit in memory several times.

METIS draws its own random numbers: the same build of it repeats itself for the same seed, another build may not.
pymetis passes one weight per vertex, so that a typed graph is first balanced over all types together, a rare type's nodes
weighing more; whatever is then left to even out within a type is moved at the least loss.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError
from gnnkit.kernels.jit import lazy_kernel
from gnnkit.schema import GraphSchema, NodeType
from gnnkit.storage.arrays import GraphArrays
from gnnkit.storage.partition.balance import capacity, contiguous_parts
from gnnkit.storage.partition.topology import Adjacency, first_vertices, merged_adjacency, to_dataset_order
from gnnkit.vendor.metis import MetisGraph, SharedInts, import_pymetis, part_graph

# A node may weigh at most this much: a type with fewer nodes than parts cannot be balanced by weight.
_MAX_VERTEX_WEIGHT = 64


def assign(graph: GraphArrays, num_parts: int, seed: int) -> dict[NodeType, NDArray[np.int32]]:
    """Assigns nodes by multilevel k-way partitioning; each type's parts stay within ``capacity``.

    Returns:
        ``{node type: int32 [num_nodes]}`` by dataset id.

    Raises:
        PlanError: pymetis is missing, or its index type is too narrow for this graph.
        WorkerDied: METIS has ended, for lack of memory as a rule.
    """
    pymetis = import_pymetis()
    simple = _simple_graph(merged_adjacency(graph, exact=True), _vertex_weights(graph.schema))
    count = simple.num_entries
    adjacency = Adjacency(simple.indptr.values, simple.indices.values[:count], graph.chunk_edges)
    weights = simple.weights.values[:count]
    if count >= 2**31 and _index_bits(pymetis) < 64:
        raise PlanError(f"the graph has {count} entries, more than this build of pymetis can index", 'take partition="ldg" instead')
    parts = part_graph(simple, num_parts, seed) if count else contiguous_parts(adjacency.num_vertices, num_parts)
    result = {}
    first_vertex = first_vertices(graph.schema)
    for name, node_type in graph.schema.node_types.items():
        first, last = first_vertex[name], first_vertex[name] + node_type.num_nodes
        _even_out(adjacency, weights, parts, first, last, num_parts)
        result[name] = to_dataset_order(graph, name, parts[first:last])
    return result


def _index_bits(pymetis: Any) -> int:
    width = getattr(getattr(pymetis, "_internal", None), "_idx_type_width", None)
    return int(width()) if width is not None else 32


def _vertex_weights(schema: GraphSchema) -> SharedInts | None:
    """Weights with which every type weighs about as much as the largest; None where all would be equal."""
    counts = np.array([t.num_nodes for t in schema.node_types.values()], dtype=np.int64)
    if len(counts) == 1:
        return None
    weights = SharedInts(int(counts.sum()))
    weights.values[:] = np.repeat(np.clip(counts.max() // np.maximum(counts, 1), 1, _MAX_VERTEX_WEIGHT), counts)
    return weights


def _simple_graph(adjacency: Adjacency, vertex_weights: SharedInts | None) -> MetisGraph:
    """METIS wants neither loops nor parallel edges: parallel ones become an edge of their number's weight."""
    indptr, indices, weights = SharedInts(len(adjacency.indptr)), SharedInts(len(adjacency.indices)), SharedInts(len(adjacency.indices))
    indptr.values[:] = adjacency.indptr
    kept, begin = 0, int(adjacency.indptr[0])
    # Some rows at a time: an interrupt comes through in between.
    for first, last in adjacency.ranges(0, adjacency.num_vertices):
        end = int(adjacency.indptr[last])
        indices.values[begin:end] = adjacency.indices[begin:end]
        kept = int(_simplify(indptr.values, indices.values, weights.values, first, last, begin, kept))
        begin = end
    return MetisGraph(indptr, indices, weights, kept, vertex_weights)


@lazy_kernel
def _simplify(
    indptr: NDArray[np.int64], indices: NDArray[np.int64], weights: NDArray[np.int64], first: int, last: int, begin: int, kept: int
) -> int:
    """Sorts rows ``[first, last)``, drops loops and merges repeats, in place; returns the entries left up to there.

    ``begin`` is where their entries begin, and ``kept`` what was left of all before.
    """
    for row in range(first, last):
        end = indptr[row + 1]
        neighbors = np.sort(indices[begin:end])
        row_start = kept
        for neighbor in neighbors:
            if neighbor == row:
                continue
            if kept > row_start and indices[kept - 1] == neighbor:
                weights[kept - 1] += 1
            else:
                indices[kept] = neighbor
                weights[kept] = 1
                kept += 1
        begin = end
        indptr[row + 1] = kept
    return kept


def _even_out(adjacency: Adjacency, weights: NDArray[np.int64], parts: NDArray[np.int32], first: int, last: int, num_parts: int) -> None:
    """Moves vertices of ``[first, last)`` out of parts beyond ``capacity``, those that lose least first."""
    limit = capacity(last - first, num_parts)
    sizes = np.bincount(parts[first:last], minlength=num_parts).astype(np.int64)
    if (sizes <= limit).all():
        return
    candidates = first + np.flatnonzero((sizes > limit)[parts[first:last]])
    counts = np.zeros(num_parts, dtype=np.int64)
    losses = np.empty(len(candidates), dtype=np.int64)
    _losses(adjacency.indptr, adjacency.indices, weights, parts, candidates, counts, losses)
    order = candidates[np.argsort(losses, kind="stable")]
    _move_out(adjacency.indptr, adjacency.indices, weights, parts, order, sizes, limit, counts)


@lazy_kernel
def _losses(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int64],
    weights: NDArray[np.int64],
    parts: NDArray[np.int32],
    candidates: NDArray[np.int64],
    counts: NDArray[np.int64],
    losses: NDArray[np.int64],
) -> None:
    for i in range(candidates.size):
        vertex = candidates[i]
        counts[:] = 0
        for j in range(indptr[vertex], indptr[vertex + 1]):
            counts[parts[indices[j]]] += weights[j]
        own = counts[parts[vertex]]
        counts[parts[vertex]] = -1
        losses[i] = own - counts.max()


@lazy_kernel
def _move_out(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int64],
    weights: NDArray[np.int64],
    parts: NDArray[np.int32],
    order: NDArray[np.int64],
    sizes: NDArray[np.int64],
    limit: int,
    counts: NDArray[np.int64],
) -> None:
    for i in range(order.size):
        vertex = order[i]
        own = parts[vertex]
        if sizes[own] <= limit:
            continue
        counts[:] = 0
        for j in range(indptr[vertex], indptr[vertex + 1]):
            counts[parts[indices[j]]] += weights[j]
        best = -1
        for part in range(sizes.size):
            if sizes[part] < limit and (best < 0 or counts[part] > counts[best]):
                best = part
        parts[vertex] = best
        sizes[own] -= 1
        sizes[best] += 1

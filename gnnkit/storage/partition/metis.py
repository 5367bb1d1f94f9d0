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
from gnnkit.sampling.jit import lazy_kernel
from gnnkit.schema import GraphSchema, NodeType
from gnnkit.storage.arrays import GraphArrays
from gnnkit.storage.partition.balance import capacity, contiguous_parts
from gnnkit.storage.partition.topology import Adjacency, first_vertices, merged_adjacency, to_dataset_order

# A node may weigh at most this much: a type with fewer nodes than parts cannot be balanced by weight.
_MAX_VERTEX_WEIGHT = 64


def import_pymetis() -> Any:
    """Returns the module.

    Raises:
        PlanError: pymetis is not installed.
    """
    try:
        import pymetis
    except ImportError as exc:
        raise PlanError("partition='metis' needs pymetis, which is not installed", 'pip install pymetis, or take partition="ldg"') from exc
    return pymetis


def assign(graph: GraphArrays, num_parts: int, seed: int) -> dict[NodeType, NDArray[np.int32]]:
    """Assigns nodes by multilevel k-way partitioning; each type's parts stay within ``capacity``.

    Returns:
        ``{node type: int32 [num_nodes]}`` by dataset id.

    Raises:
        PlanError: pymetis is missing, or its index type is too narrow for this graph.
    """
    pymetis = import_pymetis()
    adjacency, weights = _simple_graph(merged_adjacency(graph, exact=True))
    if len(adjacency.indices) >= 2**31 and _index_bits(pymetis) < 64:
        raise PlanError(
            f"the graph has {len(adjacency.indices)} entries, more than this build of pymetis can index", 'take partition="ldg" instead'
        )
    if len(adjacency.indices):
        parts = _run_metis(pymetis, adjacency, weights, _vertex_weights(graph.schema), num_parts, seed)
    else:
        parts = contiguous_parts(adjacency.num_vertices, num_parts)
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


def _run_metis(
    pymetis: Any,
    adjacency: Adjacency,
    edge_weights: NDArray[np.int64],
    vertex_weights: NDArray[np.int64] | None,
    num_parts: int,
    seed: int,
) -> NDArray[np.int32]:
    keywords: dict[str, Any] = {"eweights": edge_weights, "recursive": False, "options": pymetis.Options(seed=seed & 0x7FFFFFFF)}
    if vertex_weights is not None:
        keywords["vweights"] = vertex_weights
    if hasattr(pymetis, "CSRAdjacency"):
        keywords["adjacency"] = pymetis.CSRAdjacency(adjacency.indptr, adjacency.indices)
    else:  # before 2025.2
        keywords["xadj"], keywords["adjncy"] = adjacency.indptr, adjacency.indices
    _, parts = pymetis.part_graph(num_parts, **keywords)
    return np.asarray(parts, dtype=np.int32)


def _vertex_weights(schema: GraphSchema) -> NDArray[np.int64] | None:
    """Weights with which every type weighs about as much as the largest; None where all would be equal."""
    counts = np.array([t.num_nodes for t in schema.node_types.values()], dtype=np.int64)
    if len(counts) == 1:
        return None
    weights = np.clip(counts.max() // np.maximum(counts, 1), 1, _MAX_VERTEX_WEIGHT)
    return np.repeat(weights, counts)


def _simple_graph(adjacency: Adjacency) -> tuple[Adjacency, NDArray[np.int64]]:
    """METIS wants neither loops nor parallel edges: parallel ones become an edge of their number's weight."""
    indices = adjacency.indices.astype(np.int64)
    indptr = np.array(adjacency.indptr, dtype=np.int64)
    weights = np.empty(len(indices), dtype=np.int64)
    kept = int(_simplify(indptr, indices, weights))
    return Adjacency(indptr, indices[:kept]), weights[:kept]


@lazy_kernel
def _simplify(indptr: NDArray[np.int64], indices: NDArray[np.int64], weights: NDArray[np.int64]) -> int:
    """Sorts each row, drops loops and merges repeats, in place; returns the entries left."""
    kept = 0
    begin = indptr[0]
    for row in range(indptr.size - 1):
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

"""A PyG graph as the arrays that sampling reads: features where they are, edges compressed by their owning end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.datasets.pyg import PyGSource
from gnnkit.errors import PlanError, near_matches
from gnnkit.schema import EdgeDir, EdgeType
from gnnkit.storage.arrays import EdgePart, GraphArrays, NodePart
from gnnkit.storage.kernels import count_degrees, place_edges
from gnnkit.storage.times import as_times, check_time_attr, time_order, timed_edge_types
from gnnkit.storage.weights import check_weights, weight_exponent, weight_prefix

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

_INT32_END = 1 << 31
_NO_IDS = np.empty(0, np.int64)
_NO_IDS_32 = np.empty(0, np.int32)


def graph_from_pyg(
    data: Data | HeteroData | PyGSource,
    *,
    edge_dir: EdgeDir = "in",
    weight: str | None = None,
    time_attr: str | None = None,
    with_edge: bool | None = None,
) -> GraphArrays:
    """A graph of one part on a user's own tensors.

    Node arrays are the tensors' memory. New are the compressed edges (4 bytes an edge and 4 or 8 a node), their ids if wanted,
    and edge arrays, which are copied into the order of the compressed edges.

    Args:
        data: The graph; a ``PyGSource`` spares looking at it twice.
        edge_dir: "in" compresses edges by target, "out" by source.
        weight: Name of the edge-level attribute ``[num_edges]`` to sample by; edge types without it are sampled uniformly.
        time_attr: Name of the attributes ``[n]`` or ``[n, 1]`` with the times of nodes or edges, by which each node's edges are then sorted
            (see ``gnnkit.storage.times``); None leaves them in the graph's order.
        with_edge: Whether to keep edge ids; None keeps those of edge types that carry arrays.

    Returns:
        One part; store ids are the dataset's ids.

    Raises:
        PlanError: See ``PyGSource``; or ``edge_dir``, ``weight`` or ``time_attr`` is unknown, a weight is negative or not finite, or
            times are no integers.
        DatasetError: See ``PyGSource``; or an id in ``edge_index`` is out of range.
    """
    source = data if isinstance(data, PyGSource) else PyGSource(data)
    schema = source.schema
    if edge_dir not in ("in", "out"):
        raise PlanError(f"edge_dir must be 'in' or 'out', got {edge_dir!r}")
    if weight is not None:
        _check_weight_name(source, weight)
    check_time_attr(schema, time_attr)
    for node_type, node_schema in schema.node_types.items():
        if node_schema.num_nodes >= _INT32_END:
            raise PlanError(f"{node_type!r} has {node_schema.num_nodes} nodes; a type may have up to {_INT32_END - 1}")
    nodes = {
        node_type: (NodePart({name: source.node_array(node_type, name) for name in node_schema.arrays}),)
        for node_type, node_schema in schema.node_types.items()
    }
    edges = {edge_type: (_compress(source, edge_type, edge_dir, weight, time_attr, with_edge),) for edge_type in schema.edge_types}
    bounds = {node_type: np.array([0, node_schema.num_nodes], np.int64) for node_type, node_schema in schema.node_types.items()}
    return GraphArrays(schema, edge_dir, nodes, edges, bounds, dict.fromkeys(schema.node_types), (0,))


def _compress(
    source: PyGSource, edge_type: EdgeType, edge_dir: EdgeDir, weight: str | None, time_attr: str | None, with_edge: bool | None
) -> EdgePart:
    """Sorts edges by their owner, stably: one pass counts, one places; then those of each owner by their times."""
    edge_schema = source.schema.edge_types[edge_type]
    owner_end, other_end = (1, 0) if edge_dir == "in" else (0, 1)
    num_owners = source.schema.node_types[edge_type[2 * owner_end]].num_nodes
    num_others = source.schema.node_types[edge_type[2 * other_end]].num_nodes
    indptr = np.zeros(num_owners + 1, np.int64)
    for chunk in source.edge_chunks(edge_type):
        bad = count_degrees(chunk[owner_end], chunk[other_end], _NO_IDS_32, num_owners, num_others, 0, num_owners, indptr[1:])
        assert bad < 0, "edge_chunks has checked the ids"
    np.cumsum(indptr, out=indptr)

    keep_ids = bool(edge_schema.arrays) if with_edge is None else with_edge
    indices = np.empty(edge_schema.num_edges, np.int32)
    edge_id = np.empty(edge_schema.num_edges, _id_dtype(edge_schema.num_edges)) if keep_ids else None
    arrays = {name: np.empty((edge_schema.num_edges, *spec.row_shape), spec.numpy_dtype) for name, spec in edge_schema.arrays.items()}
    cursor, first = indptr[:-1].copy(), 0
    for chunk in source.edge_chunks(edge_type):
        count = chunk.shape[1]
        place = np.empty(count, np.int64) if keep_ids or arrays else _NO_IDS
        place_edges(
            chunk[owner_end], chunk[other_end], _NO_IDS, first, _NO_IDS_32, _NO_IDS_32, 0, num_owners, cursor, 0, indices, _NO_IDS_32, place
        )  # fmt: skip
        if edge_id is not None:
            edge_id[place] = np.arange(first, first + count)
        for name, rows in arrays.items():
            rows[place] = source.edge_array(edge_type, name)[first : first + count]
        first += count
    timed = timed_edge_types(source.schema, edge_dir, time_attr)
    times = None
    if time_attr is not None and edge_type in timed:
        own = timed[edge_type] is None
        times = as_times(arrays[time_attr]) if own else as_times(source.node_array(edge_type[2 * other_end], time_attr))[indices]
        if (order := time_order(indptr, times)) is not None:
            times, indices = times[order], indices[order]
            edge_id = None if edge_id is None else edge_id[order]
            arrays = {name: rows[order] for name, rows in arrays.items()}
        elif own:
            times = times.copy()  # an array of its own, as everywhere
    prefix = _weight_prefix(source, edge_type, weight, indptr, arrays) if weight in arrays else None
    return EdgePart(indptr.astype(_id_dtype(edge_schema.num_edges), copy=False), indices, edge_id, prefix, arrays, times)


def _weight_prefix(
    source: PyGSource, edge_type: EdgeType, weight: str, indptr: NDArray[np.int64], arrays: dict[str, NDArray[Any]]
) -> NDArray[np.uint64]:
    largest = check_weights(source.edge_array(edge_type, weight), edge_type, weight)
    return weight_prefix(indptr, arrays[weight], weight_exponent(largest))


def _check_weight_name(source: PyGSource, weight: str) -> None:
    known = {name: spec for edge_schema in source.schema.edge_types.values() for name, spec in edge_schema.arrays.items()}
    if weight not in known:
        raise PlanError(f"unknown weight {weight!r}{near_matches(weight, list(known))}", f"edge-level attributes: {sorted(known)}")
    for edge_type, edge_schema in source.schema.edge_types.items():
        spec = edge_schema.arrays.get(weight)
        if spec is not None and (spec.row_shape or spec.dtype == "bfloat16" or np.dtype(spec.dtype).kind not in "fiu"):
            got = f"{spec.dtype} [num_edges{''.join(f', {size}' for size in spec.row_shape)}]"
            raise PlanError(f"the weight {weight!r} of {edge_type} is {got}; weights are numbers [num_edges]", "use .view(-1).float()")


def _id_dtype(end: int) -> type[np.int32 | np.int64]:
    return np.int32 if end < _INT32_END else np.int64

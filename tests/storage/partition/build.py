"""Graphs for the partitioners' tests: arrays compressed by NumPy alone, so that no store has to be built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gnnkit.datasets import EdgeTypeSchema, GraphSchema, NodeTypeSchema
from gnnkit.storage.arrays import EdgePart, GraphArrays, NodePart
from tests.helpers.graphs import ArraySource


def graph_arrays(
    sizes: Mapping[str, int],
    edges: Mapping[tuple[str, str, str], NDArray[np.int64]],
    *,
    edge_dir: Literal["in", "out"] = "in",
    assignment: Mapping[str, NDArray[np.int32]] | None = None,
    num_parts: int = 1,
    source: ArraySource | None = None,
    with_edge: bool = True,
) -> GraphArrays:
    """The graph in ``num_parts`` parts as ``assignment`` says; without one, in one part; with the arrays of ``source``."""
    schema = GraphSchema({t: NodeTypeSchema(n) for t, n in sizes.items()}, {t: EdgeTypeSchema(e.shape[1]) for t, e in edges.items()})
    schema = schema if source is None else source.schema
    node_arrays, edge_arrays = ({}, {}) if source is None else (source.node_arrays, source.edge_arrays)
    parts = {t: np.zeros(n, np.int32) if assignment is None else assignment[t] for t, n in sizes.items()}
    nodes, bounds, store_id = {}, {}, {}
    for node_type, part in parts.items():
        order = np.argsort(part, kind="stable")
        bounds[node_type] = np.searchsorted(part[order], np.arange(num_parts + 1)).astype(np.int64)
        store_id[node_type] = np.argsort(order, kind="stable") if assignment is not None else None
        ranges = [order[bounds[node_type][p] : bounds[node_type][p + 1]] for p in range(num_parts)]
        columns = node_arrays.get(node_type, {})
        nodes[node_type] = tuple(
            NodePart({name: values[ids] for name, values in columns.items()}, ids if assignment is not None else None) for ids in ranges
        )
    edge_parts = {}
    for edge_type, (source, target) in edges.items():
        numbers = [store_id[t] if store_id[t] is not None else np.arange(sizes[t]) for t in (edge_type[0], edge_type[2])]
        own, other = (numbers[1][target], numbers[0][source]) if edge_dir == "in" else (numbers[0][source], numbers[1][target])
        own_bounds = bounds[edge_type[2] if edge_dir == "in" else edge_type[0]]
        columns = edge_arrays.get(edge_type, {})
        edge_parts[edge_type] = tuple(
            _compress(own, other, own_bounds[p], own_bounds[p + 1], columns, with_edge=with_edge) for p in range(num_parts)
        )
    return GraphArrays(schema, edge_dir, nodes, edge_parts, bounds, store_id, tuple(range(num_parts)))


def _compress(
    own: NDArray[np.int64], other: NDArray[np.int64], first: int, last: int, columns: Mapping[str, NDArray[Any]], *, with_edge: bool
) -> EdgePart:
    edge_id = np.flatnonzero((own >= first) & (own < last))
    edge_id = edge_id[np.argsort(own[edge_id], kind="stable")]
    indptr = np.searchsorted(own[edge_id], np.arange(first, last + 1)).astype(np.int32)
    arrays = {name: values[edge_id] for name, values in columns.items()}
    return EdgePart(indptr, other[edge_id].astype(np.int32), edge_id if with_edge else None, arrays=arrays)


def clustered_edges(rng: np.random.Generator, num_nodes: int, num_clusters: int, degree: int, inside: float) -> NDArray[np.int64]:
    """Undirected edges ``[2, num_nodes * degree]`` with skewed degrees, a share ``inside`` of them within hidden clusters."""
    cluster = rng.integers(0, num_clusters, num_nodes)
    order = np.argsort(cluster, kind="stable")
    start = np.searchsorted(cluster[order], np.arange(num_clusters + 1))
    num_pairs = num_nodes * degree // 2
    popularity = np.cumsum(rng.random(num_nodes) ** -0.5)
    source = np.minimum(np.searchsorted(popularity / popularity[-1], rng.random(num_pairs)), num_nodes - 1)
    low, high = start[cluster[source]], start[cluster[source] + 1]
    friend = order[np.minimum(low + (rng.random(num_pairs) * (high - low)).astype(np.int64), high - 1)]
    target = np.where(rng.random(num_pairs) < inside, friend, rng.integers(0, num_nodes, num_pairs))
    return np.stack([np.concatenate([source, target]), np.concatenate([target, source])])

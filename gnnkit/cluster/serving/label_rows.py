"""The nodes at the other end of edges, as rows of equal length: the labels of anchors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError
from gnnkit.schema import EdgeType
from gnnkit.storage.part_ids import all_dataset_ids
from gnnkit.storage.store import Store

PADDING = -1


def padded_neighbors(
    store: Store, edge_type: EdgeType, ids: NDArray[Any], *, from_source: bool, most: int | None = None
) -> NDArray[np.int64]:
    """Neighbours along one edge type, whichever way the store is compressed.

    Args:
        store: The store.
        edge_type: The type.
        ids: Integers ``[k]``, the dataset's ids of nodes at one end.
        from_source: Whether that is the source end.
        most: Neighbours per node, at most: those of the lowest ids.

    Returns:
        int64 ``[k, m]``: dataset ids, ascending, as often as there are edges, and -1 behind them; ``m`` is the longest row's length.

    Raises:
        PlanError: An id is out of range, or ``most`` is less than 1.
        StoreError: A part that has some of the edges is not open here.
    """
    if most is not None and most < 1:
        raise PlanError(f"max_labels_per_anchor_node must be at least 1, got {most}", "None takes all")
    graph = store.arrays()
    here, there = (edge_type[0], edge_type[2]) if from_source else (edge_type[2], edge_type[0])
    # A node that is asked for twice gets its row twice.
    numbers, places = np.unique(np.asarray(store.to_store_ids(here, ids), np.int64), return_inverse=True)
    compressed_here = (graph.edge_dir == "out") == from_source
    rows, others = _along_rows(store, edge_type, numbers, here) if compressed_here else _across_rows(store, edge_type, numbers)
    others = all_dataset_ids(graph, there)[others]
    order = np.lexsort((others, rows))
    rows, others = rows[order], others[order]
    counts = np.bincount(rows, minlength=len(numbers))
    within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    if most is not None:
        rows, others, within = rows[within < most], others[within < most], within[within < most]
    found = np.full((len(numbers), int(within.max()) + 1 if len(within) else 0), PADDING, np.int64)
    found[rows, within] = others
    return found[places]


def _along_rows(store: Store, edge_type: EdgeType, numbers: NDArray[np.int64], here: str) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Index in ``numbers`` and store id of the other end, of the edges of nodes that own their edges."""
    graph = store.arrays()
    bounds = graph.node_bounds[here]
    rows, others = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    parts = np.searchsorted(bounds[1:], numbers, side="right")
    for part in np.unique(parts).tolist():
        store.require((part,))
        edges, chosen = graph.edges[edge_type][part], np.flatnonzero(parts == part)
        local = numbers[chosen] - bounds[part]
        first, last = np.asarray(edges.indptr[local], np.int64), np.asarray(edges.indptr[local + 1], np.int64)
        counts = last - first
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        rows.append(np.repeat(chosen, counts))
        others.append(edges.indices[np.repeat(first, counts) + within])
    return np.concatenate(rows), np.concatenate(others)


def _across_rows(store: Store, edge_type: EdgeType, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The same where the other end owns the edges: every edge of the type is looked at."""
    store.require()
    graph = store.arrays()
    owner = graph.frontier_type(edge_type)
    rows, others = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for part, edges in enumerate(graph.edges[edge_type]):
        places = np.minimum(np.searchsorted(numbers, edges.indices), max(len(numbers) - 1, 0))
        wanted = np.flatnonzero(numbers[places] == edges.indices) if len(numbers) else np.empty(0, np.int64)
        first, degrees = int(graph.node_bounds[owner][part]), np.diff(np.asarray(edges.indptr)).astype(np.int64)
        owners = np.repeat(np.arange(first, first + len(edges.indptr) - 1), degrees)
        rows.append(places[wanted])
        others.append(owners[wanted])
    return np.concatenate(rows), np.concatenate(others)

"""Leaves edges out of a batch that a model is to predict."""

# Intrinsics have no type hints, so what they return is Any to mypy.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.kernels.jit import kernel
from gnnkit.sampling.graph_access import GraphAccess
from gnnkit.sampling.numbering import EMPTY, find_pair
from gnnkit.sampling.passes import FRONTIER, NEIGHBOR
from gnnkit.sampling.subgraph import BatchKey, EdgeKey, ExcludedEdges, Walked, WalkedEdges
from gnnkit.schema import EdgeType


@kernel("int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], uint8[::1])")
def mark_kept(
    row: NDArray[np.int64],
    col: NDArray[np.int64],
    row_nodes: NDArray[np.int64],
    col_nodes: NDArray[np.int64],
    limits: NDArray[np.int64],
    first: NDArray[np.int64],
    second: NDArray[np.int64],
    kept: NDArray[np.uint8],
) -> int:
    """Marks the edges that are none of the pairs ``(first[i], second[i])``; returns how many are.

    Args:
        row: int64 ``[e]``, numbers of nodes.
        col: int64 ``[e]``.
        row_nodes: int64, what nodes the numbers in ``row`` stand for.
        col_nodes: int64, the same for ``col``.
        limits: int64 ``[2]``: in ``row`` and in ``col``, numbers from here on are of nodes that are in no pair.
        first: int64 ``[n]``, nodes of rows.
        second: int64 ``[n]``, nodes of columns.
        kept: uint8 ``[e]``, filled: 1 where the edge is kept.
    """
    size = 2
    while size < 2 * first.size:
        size *= 2
    table = np.full(size, EMPTY, np.int64)
    for i in range(first.size):
        table[find_pair(table, first, second, first[i], second[i])] = i
    left = 0
    for e in range(row.size):
        kept[e] = 1
        if row[e] >= limits[0] or col[e] >= limits[1]:
            continue
        if table[find_pair(table, first, second, row_nodes[row[e]], col_nodes[col[e]])] != EMPTY:
            kept[e] = 0
            left += 1
    return left


def exclude(walked: Walked, reach: GraphAccess) -> Walked:
    """The same batch without the edges that its seeds exclude; nodes stay, and so do their numbers.

    Args:
        walked: What has been chosen.
        reach: The graph.
    """
    by_type: dict[EdgeType, list[ExcludedEdges]] = {}
    for group in walked.seeds.excluded:
        # By the type that is shown: edges may have been added whose rows are none of the graph's.
        by_type.setdefault(reach.shown_type(reach.tables.edge_types[group.relation]), []).append(group)
    arrays = dict(walked.arrays)
    edges = [_without(edges, by_type.get(edges.type, []), walked, reach, arrays) for edges in walked.edges]
    return replace(walked, edges=edges, arrays=arrays)


def _without(
    edges: WalkedEdges, excluded: list[ExcludedEdges], walked: Walked, reach: GraphAccess, arrays: dict[BatchKey, NDArray[Any]]
) -> WalkedEdges:
    """The edges that stay; what was worked out for them stays with them, in ``arrays``."""
    if not excluded or not len(edges.row):
        return edges
    # Rows are the ends that sampling arrives at: sources of edges that are walked against their direction.
    against = reach.tables.graph.edge_dir == "in"
    first, second = (
        np.concatenate([group.source if is_source else group.target for group in excluded]) for is_source in (against, not against)
    )
    relation = reach.tables.relations[excluded[0].relation]
    ends = int(relation[NEIGHBOR]), int(relation[FRONTIER])
    # Without roots a node that is a seed has no other number.
    limits = [len(walked.nodes[t] if walked.seeds.roots is not None else walked.seeds.nodes.get(t, ())) for t in ends]
    row, col, row_nodes, col_nodes = (np.ascontiguousarray(a, np.int64) for a in (edges.row, edges.col, *(walked.nodes[t] for t in ends)))
    kept = np.empty(len(row), np.uint8)
    if not mark_kept(row, col, row_nodes, col_nodes, np.array(limits, np.int64), first, second, kept):
        return edges
    chosen = kept.view(np.bool_)
    position = None if edges.position is None else edges.position[chosen]
    for key in [key for key in arrays if isinstance(key, EdgeKey) and key.type == edges.type]:
        arrays[key] = arrays[key][chosen]
    hops = np.cumsum([0, *edges.num_sampled])
    counts = [int(chosen[begin:end].sum()) for begin, end in zip(hops[:-1], hops[1:], strict=True)]
    return replace(edges, row=row[chosen], col=col[chosen], position=position, num_sampled=counts)

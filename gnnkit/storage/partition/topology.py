"""A typed graph's edges as the partitioners read them: in chunks, or merged into one adjacency over all types.

Inside this package a node is known by its store id, or as a *vertex*: the store id plus the number of nodes of all types
that come before its own in canonical order. ``to_dataset_order`` leads back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnnkit.kernels.jit import lazy_kernel
from gnnkit.schema import EdgeType, GraphSchema, NodeType
from gnnkit.storage.arrays import GraphArrays, place_of

# Above this many edges only the stored direction is looked at: the other one would cost another 2 to 4 GB of memory.
BOTH_DIRECTIONS_LIMIT = 1 << 29


class AdjacencyRows(NamedTuple):
    """Consecutive rows of an adjacency, copied: ``indptr`` int64 ``[k + 1]`` from 0 and ``indices`` int64 ``[indptr[-1]]``."""

    first: int
    indptr: NDArray[np.int64]
    indices: NDArray[np.int64]


def row_ranges(indptr: NDArray[Any], first: int, last: int, most: int) -> Iterator[tuple[int, int]]:
    """Cuts the rows ``[first, last)`` into ranges of at most ``most`` edges and rows, or of one row where that has more."""
    while first < last:
        stop = place_of(indptr, int(indptr[first]) + most, "right") - 1
        stop = min(max(stop, first + 1), first + most, last)
        yield first, stop
        first = stop


def read_rows(indptr: NDArray[Any], indices: NDArray[Any], first: int, last: int) -> AdjacencyRows:
    """Copies rows ``[first, last)``, so that kernels are compiled for one dtype and never see a read-only mapping."""
    bounds = np.array(indptr[first : last + 1], dtype=np.int64)
    begin, end = int(bounds[0]), int(bounds[-1])
    bounds -= begin
    return AdjacencyRows(first, bounds, np.array(indices[begin:end], dtype=np.int64))


def edge_rows(graph: GraphArrays, edge_type: EdgeType) -> Iterator[AdjacencyRows]:
    """Yields every row of an edge type; ``first`` and ``indices`` are store ids of its frontier's and neighbours' type."""
    bounds = graph.node_bounds[graph.frontier_type(edge_type)]
    for part, edges in enumerate(graph.checked(edge_type).edges[edge_type]):
        for first, last in row_ranges(edges.indptr, 0, len(edges.indptr) - 1, graph.chunk_edges):
            yield read_rows(edges.indptr, edges.indices, first, last)._replace(first=int(bounds[part]) + first)


@dataclass(frozen=True)
class DegreeCounts:
    """The number of nodes of each degree.

    Attributes:
        degree: int64 ``[k]``, the degrees that occur, ascending.
        num_nodes: int64 ``[k]``, nodes of each.
    """

    degree: NDArray[np.int64]
    num_nodes: NDArray[np.int64]

    @classmethod
    def of(cls, degrees: NDArray[Any]) -> DegreeCounts:
        """Counts the degrees ``[num_nodes]`` of nodes."""
        values, counts = np.unique(degrees, return_counts=True)
        return cls(values.astype(np.int64), counts.astype(np.int64))

    def at_least(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The degrees from 1 on, and how many nodes have at least as many edges: int64 ``[k]`` each."""
        reaching = np.cumsum(self.num_nodes[::-1])[::-1]
        some = self.degree > 0
        return self.degree[some], reaching[some]

    @property
    def num_edges(self) -> int:
        """Edges of all nodes together."""
        return int((self.degree * self.num_nodes).sum())

    @property
    def without(self) -> int:
        """Nodes without any edge."""
        return int(self.num_nodes[self.degree == 0].sum())


@dataclass(frozen=True)
class EdgeDegrees:
    """Degrees along one edge type.

    Attributes:
        outgoing: Of the nodes of the sources' type: edges that leave them.
        incoming: Of the nodes of the targets' type: edges that arrive at them.
    """

    outgoing: DegreeCounts
    incoming: DegreeCounts


def edge_degrees(graph: GraphArrays) -> dict[EdgeType, EdgeDegrees]:
    """Counts the edges of every node, type by type, in chunks of edges.

    Args:
        graph: The graph, with all of its parts open.
    """
    result = {}
    for edge_type in graph.edges:
        ends = graph.frontier_type(edge_type), graph.neighbor_type(edge_type)
        owner, other = (np.zeros(graph.schema.node_types[end].num_nodes, np.int64) for end in ends)
        for rows in edge_rows(graph, edge_type):
            owner[rows.first : rows.first + len(rows.indptr) - 1] = np.diff(rows.indptr)
            np.add.at(other, rows.indices, 1)
        counts = DegreeCounts.of(owner), DegreeCounts.of(other)
        result[edge_type] = EdgeDegrees(*(counts[::-1] if graph.edge_dir == "in" else counts))
    return result


def to_dataset_order(graph: GraphArrays, node_type: NodeType, values: NDArray[Any]) -> NDArray[Any]:
    """Rearranges ``values`` ``[num_nodes, ...]`` from the order of store ids to that of dataset ids."""
    store_id = graph.checked(node_type).store_id[node_type]
    return values if store_id is None else values[store_id]


def first_vertices(schema: GraphSchema) -> dict[NodeType, int]:
    """The vertex of each type's first node."""
    counts = (node_type.num_nodes for node_type in schema.node_types.values())
    return dict(zip(schema.node_types, accumulate(counts, initial=0), strict=False))


@dataclass(frozen=True)
class Adjacency:
    """The edges of all types in one adjacency over vertices.

    Attributes:
        indptr: int32 or int64 ``[num_vertices + 1]``.
        indices: int32 or int64 ``[num_entries]``, vertices.
        chunk_edges: See ``GraphArrays``.
    """

    indptr: NDArray[Any]
    indices: NDArray[Any]
    chunk_edges: int

    @property
    def num_vertices(self) -> int:
        """Nodes of all types."""
        return len(self.indptr) - 1

    def ranges(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Cuts the vertices ``[first, last)`` into ranges that are read at once."""
        return row_ranges(self.indptr, first, last, self.chunk_edges)

    def rows(self, first: int, last: int) -> Iterator[AdjacencyRows]:
        """Yields the rows of vertices ``[first, last)``."""
        for start, stop in self.ranges(first, last):
            yield read_rows(self.indptr, self.indices, start, stop)


def merged_adjacency(graph: GraphArrays, *, exact: bool = False) -> Adjacency:
    """Merges all edge types, each edge seen from both of its ends.

    Where every vertex has as many edges in as out, both directions are taken to be stored already, and a homogeneous graph's
    arrays are then used as they are. That is a guess, good enough for a heuristic; ``exact`` makes sure instead.

    Args:
        graph: The graph to merge, in any number of parts.
        exact: Whether the result must be symmetric, at twice the memory for a graph that stores both directions.

    Returns:
        An adjacency that is symmetric, or of the stored direction alone above ``BOTH_DIRECTIONS_LIMIT`` edges.
    """
    first_vertex = first_vertices(graph.schema)
    stored = np.zeros(graph.schema.num_nodes, dtype=np.int64)
    reverse = np.zeros_like(stored)
    for edge_type, frontier, neighbor in _ends(graph, first_vertex):
        for rows in edge_rows(graph, edge_type):
            _count(rows.first + frontier, rows.indptr, rows.indices, neighbor, stored, reverse)
    both = exact or (graph.schema.num_edges <= BOTH_DIRECTIONS_LIMIT and not np.array_equal(stored, reverse))
    if not both and len(graph.edges) == 1 and graph.num_parts == 1 and len(graph.schema.node_types) == 1:
        (edges,) = next(iter(graph.edges.values()))
        return Adjacency(edges.indptr, edges.indices, graph.chunk_edges)
    degree = stored + reverse if both else stored
    indptr = np.zeros(len(degree) + 1, dtype=np.int64)
    np.cumsum(degree, out=indptr[1:])
    indices = np.empty(int(indptr[-1]), dtype=np.int32 if len(degree) < 2**31 else np.int64)
    cursor = indptr[:-1].copy()
    for edge_type, frontier, neighbor in _ends(graph, first_vertex):
        for rows in edge_rows(graph, edge_type):
            _fill(rows.first + frontier, rows.indptr, rows.indices, neighbor, cursor, indices, both)
    return Adjacency(indptr, indices, graph.chunk_edges)


def _ends(graph: GraphArrays, first_vertex: Mapping[NodeType, int]) -> Iterator[tuple[EdgeType, int, int]]:
    for edge_type in graph.edges:
        yield edge_type, first_vertex[graph.frontier_type(edge_type)], first_vertex[graph.neighbor_type(edge_type)]


@lazy_kernel
def _count(
    first: int,
    indptr: NDArray[np.int64],
    indices: NDArray[np.int64],
    neighbor: int,
    stored: NDArray[np.int64],
    reverse: NDArray[np.int64],
) -> None:
    for row in range(indptr.size - 1):
        stored[first + row] += indptr[row + 1] - indptr[row]
    for j in range(indices.size):
        reverse[neighbor + indices[j]] += 1


@lazy_kernel
def _fill(
    first: int,
    indptr: NDArray[np.int64],
    indices: NDArray[np.int64],
    neighbor: int,
    cursor: NDArray[np.int64],
    merged: NDArray[Any],
    both: bool,
) -> None:
    for row in range(indptr.size - 1):
        vertex = first + row
        for j in range(indptr[row], indptr[row + 1]):
            other = neighbor + indices[j]
            merged[cursor[vertex]] = other
            cursor[vertex] += 1
            if both:
                merged[cursor[other]] = vertex
                cursor[other] += 1

"""How many edges nodes have, counted in one pass over a graph's edges with a counter per node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.schema import EdgeType
from gnnkit.storage.arrays import GraphArrays
from gnnkit.storage.partition.topology import edge_rows


@dataclass(frozen=True)
class DegreeCounts:
    """How many nodes have how many edges.

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

"""Which edges a batch shows of the nodes that were sampled: those that were drawn, also their reverses, or all among the nodes."""

# Intrinsics have no type hints, so what they return is Any to mypy.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from gnnkit.kernels.jit import allocating_helper, kernel
from gnnkit.plan import NeighborSampling, Sampling
from gnnkit.sampling.graph_access import GraphAccess
from gnnkit.sampling.passes import FRONTIER, NEIGHBOR
from gnnkit.sampling.subgraph import Walked, WalkedEdges, WalkSeeds
from gnnkit.schema import EdgeType, find_reverse, is_label_edge_type

if TYPE_CHECKING:
    from gnnkit.sampling.kinds import Walker


class ShapedWalker:
    """A walker whose batches show other edges than those that it has drawn; ``docs/development/sampling.md`` specifies them.

    Hops mean nothing for such edges: their batches have no counts by hop.

    Args:
        sampling: Its ``subgraph_type`` is not "directional".
        walker: Chooses the nodes.
    """

    def __init__(self, sampling: NeighborSampling, walker: Walker) -> None:
        assert sampling.subgraph_type != "directional"
        self._sampling, self._walker = sampling, walker

    def walk(self, seeds: WalkSeeds, key: int, reach: GraphAccess) -> Walked:
        """Walks, and adds the edges that the shape asks for."""
        walked = self._walker.walk(seeds, key, reach)
        if self._sampling.subgraph_type == "induced":
            edges = _induced(walked, reach, followed_types(self._sampling, reach.tables.edge_types))
        else:
            edges = _bidirectional(walked)
        return replace(walked, num_sampled_nodes=[[] for _ in walked.nodes], edges=edges)


class InducedWalker(ShapedWalker):
    """Chooses no nodes beside the seeds, and shows every edge among them.

    Args:
        sampling: The direction of the edges, and whether their ids are wanted.
    """

    def __init__(self, sampling: Sampling) -> None:
        from gnnkit.sampling.kinds import NeighborWalker  # which imports this package

        still = NeighborSampling({}, edge_dir=sampling.edge_dir, with_edge=sampling.with_edge, subgraph_type="induced")
        super().__init__(still, NeighborWalker(still))


def followed_types(sampling: NeighborSampling, edge_types: Sequence[EdgeType]) -> set[int]:
    """Indices of the types whose edges are shown: those that are walked along, or all but labels where none is."""
    walked = {r for r, edge_type in enumerate(edge_types) if any(sampling.num_neighbors.get(edge_type, ()))}
    return walked or {r for r, edge_type in enumerate(edge_types) if not is_label_edge_type(edge_type)}


def _induced(walked: Walked, reach: GraphAccess, followed: Collection[int]) -> list[WalkedEdges]:
    """Every edge among the nodes of a root, node after node and in the stored order."""
    found, numbering = [], reach.numbering
    for r, edges in enumerate(walked.edges):
        t, n = (int(reach.tables.relations[r, end]) for end in (FRONTIER, NEIGHBOR))
        if r not in followed or not len(walked.nodes[t]) or not len(walked.nodes[n]):
            empty = np.empty(0, np.int64)
            found.append(replace(edges, row=empty, col=empty, position=empty if reach.wants_position[r] else None, num_sampled=[]))
            continue
        picks = reach.induce(r, walked.nodes[t], walked.nodes[n], numbering.roots(t), numbering.roots(n))
        col = np.repeat(np.arange(len(walked.nodes[t])), picks.counts)
        row = picks.neighbors.astype(np.int64)  # places in the list of all nodes are numbers
        position = None if picks.positions is None else picks.positions.astype(np.int64)
        found.append(replace(edges, row=row, col=col, position=position, num_sampled=[]))
    return found


class _HasEdgeType(Protocol):
    @property
    def type(self) -> EdgeType:
        """The edges' type."""
        ...


E = TypeVar("E", bound=_HasEdgeType)


def with_reverses(walked: Sequence[E]) -> Iterator[tuple[E, E | None]]:
    """Yields the edges of each type with those of its reverse type; with None where the type holds labels."""
    of_type = {edges.type: edges for edges in walked if not is_label_edge_type(edges.type)}
    for edges in walked:
        if edges.type not in of_type:
            yield edges, None
            continue
        reverse = find_reverse(edges.type, of_type)
        assert reverse is not None, "plans make sure of it"
        yield edges, of_type[reverse]


def _bidirectional(walked: Walked) -> list[WalkedEdges]:
    """The edges and their reverses, each pair of nodes once; types that have a reverse type are merged with it."""
    found = []
    for edges, other in with_reverses(walked.edges):
        if other is None:
            found.append(replace(edges, num_sampled=[]))
            continue
        row, col = np.concatenate([edges.row, other.col]), np.concatenate([edges.col, other.row])
        kept = coalesce(row, col)
        relation, position = edges.relation, edges.position
        if other is not edges:  # an edge of the reverse type has no row among this type's
            relation = position = None
        elif position is not None:
            position = np.concatenate([position, position])[kept]
        found.append(replace(edges, row=row[kept], col=col[kept], relation=relation, position=position, num_sampled=[]))
    return found


@allocating_helper
def _counting_sort(keys: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sorts places stably by their keys."""
    most = np.int64(0)
    for key in keys:
        most = max(most, key)
    starts = np.zeros(most + 2, np.int64)
    for key in keys:
        starts[key + 1] += 1
    for key in range(most + 1):
        starts[key + 1] += starts[key]
    found = np.empty_like(order)
    for place in order:
        found[starts[keys[place]]] = place
        starts[keys[place]] += 1
    return found


@kernel("int64[::1](int64[::1], int64[::1])")
def coalesce(row: NDArray[np.int64], col: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sorts edges by ``col`` and then ``row``, and keeps the first of several that agree in both.

    Args:
        row: int64 ``[n]``, not negative and small: a counting sort takes memory for the largest.
        col: int64 ``[n]``, likewise.

    Returns:
        int64 ``[at most n]``, the places of the edges that are kept, in the order of the edges.
    """
    by_row = _counting_sort(row, np.arange(row.size))
    order = _counting_sort(col, by_row)
    kept = 0
    for i in range(order.size):
        if i == 0 or row[order[i]] != row[order[i - 1]] or col[order[i]] != col[order[i - 1]]:
            by_row[kept] = order[i]
            kept += 1
    return by_row[:kept].copy()

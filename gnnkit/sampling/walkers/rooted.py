"""Neighbourhoods that are kept apart: each seed is the root of one of its own, which no other seed's nodes take part in.

So a node can be in a batch once for each root, and what it draws differs from root to root. With times, nothing later than its root's
time is drawn. ``docs/development/sampling.md`` specifies it; node for node it is what pyg-lib's ``neighbor_sample(disjoint=True)`` does.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gnnkit.kernels.jit import kernel
from gnnkit.plan import NeighborSampling
from gnnkit.sampling.graph_access import GraphAccess
from gnnkit.sampling.numbering import BatchNumbering
from gnnkit.sampling.owners import Expansion, Picks
from gnnkit.sampling.passes import FRONTIER, NEIGHBOR
from gnnkit.sampling.subgraph import BatchKey, NodeKey, Walked, WalkedEdges, WalkSeeds
from gnnkit.sampling.tables import GraphTables
from gnnkit.schema import EdgeType


class RootedWalker:
    """Walks from hop to hop with roots; one object per thread.

    Args:
        sampling: Fan-outs and options.
    """

    def __init__(self, sampling: NeighborSampling) -> None:
        self._sampling = sampling
        self._taken: list[_TakenEdges] = []

    def walk(self, seeds: WalkSeeds, key: int, reach: GraphAccess) -> Walked:
        """Chooses the nodes and edges of a batch.

        Args:
            seeds: They have roots, and times if the sampling is temporal.
            key: ``keys.batch_key`` of the batch.
            reach: The graph.

        Raises:
            GnnkitError: The graph is damaged, or a host did not answer.
        """
        assert seeds.roots is not None
        numbering, tables = reach.numbering, reach.tables
        numbering.begin(seeds)
        types, limits = range(len(tables.node_types)), (_by_root(seeds, seeds.times), _by_root(seeds, seeds.since))
        begin, end = [0 for _ in types], [numbering.count(t) for t in types]
        num_sampled = [[count] for count in end]
        taken = self._taken = self._taken or [_TakenEdges() for _ in tables.edge_types]
        for edges in taken:
            edges.begin()
        for hop, fan_outs in enumerate(self._fan_outs(tables)):
            expansion = self._expansion(key, hop, fan_outs, numbering, begin, end, *limits)
            answers = reach.expand(expansion) if expansion.nodes else {}
            for r, edges in enumerate(taken):
                t, n = (int(tables.relations[r, column]) for column in (FRONTIER, NEIGHBOR))
                edges.num_sampled.append(0)
                if r in answers and expansion.roots is not None:
                    edges.add(answers[r], expansion.roots[t], begin[t], n, numbering)
            begin, end = end, [numbering.count(t) for t in types]
            for t in types:
                num_sampled[t].append(end[t] - begin[t])
        shown = [
            edges.walked(reach.shown_type(edge_type), r, has_position=reach.wants_position[r])
            for r, (edge_type, edges) in enumerate(zip(tables.edge_types, taken, strict=True))
        ]
        return Walked([numbering.nodes(t) for t in types], num_sampled, shown, seeds, self._batches(seeds, numbering, tables))

    def _fan_outs(self, tables: GraphTables) -> NDArray[np.int64]:
        """int64 ``[H, R]``, edge types in canonical order."""
        none = (0,) * self._sampling.num_hops
        by_type = [self._sampling.num_neighbors.get(edge_type, none) for edge_type in tables.edge_types]
        return np.ascontiguousarray(np.array(by_type, np.int64).reshape(len(by_type), len(none)).T)

    def _expansion(
        self,
        key: int,
        hop: int,
        fan_outs: NDArray[np.int64],
        numbering: BatchNumbering,
        begin: list[int],
        end: list[int],
        root_times: NDArray[np.int64] | None,
        root_since: NDArray[np.int64] | None,
    ) -> Expansion:
        """Returns the request for the neighbours of the nodes that are new since the last hop."""
        nodes, roots = {}, {}
        for t, (first, last) in enumerate(zip(begin, end, strict=True)):
            of_type = numbering.roots(t)
            if last > first and of_type is not None:
                nodes[t], roots[t] = numbering.nodes(t)[first:last], of_type[first:last]
        times, since = (
            None if limit is None else {t: limit[of_type] for t, of_type in roots.items()} for limit in (root_times, root_since)
        )
        sampling = self._sampling
        return Expansion(
            key,
            hop,
            fan_outs,
            nodes,
            sampling.replace,
            sampling.weight is not None,
            sampling.temporal_strategy == "last",
            roots,
            times,
            since,
        )

    @staticmethod
    def _batches(seeds: WalkSeeds, numbering: BatchNumbering, tables: GraphTables) -> dict[BatchKey, NDArray[np.int64]]:
        """``batch`` of every node type."""
        found: dict[BatchKey, NDArray[np.int64]] = {}
        for t, node_type in enumerate(tables.node_types):
            roots = numbering.roots(t)
            assert roots is not None
            found[NodeKey(node_type, "batch")] = roots if seeds.batch_of_root is None else seeds.batch_of_root[roots]
        return found


@kernel("void(int64[::1], int64[::1], int64, int64[::1], int64[::1])")
def repeat(counts: NDArray[np.int64], roots: NDArray[np.int64], first: int, col: NDArray[np.int64], edge_roots: NDArray[np.int64]) -> None:
    """Says of each edge which node has drawn it, and of which root.

    Args:
        counts: int64 ``[n]``, edges of each node.
        roots: int64 ``[n]``, the nodes' roots.
        first: Number of the first node.
        col: int64 ``[sum of counts]``, filled: the nodes' numbers.
        edge_roots: int64, likewise: their roots.
    """
    e = 0
    for i in range(counts.size):
        for _ in range(counts[i]):
            col[e], edge_roots[e] = first + i, roots[i]
            e += 1


class _TakenEdges:
    """The edges of one type that were drawn so far, hop after hop; memory that is kept from batch to batch."""

    def __init__(self) -> None:
        self.num_sampled: list[int] = []
        self._count = 0
        self._columns = np.empty((4, 0), np.int64)

    def begin(self) -> None:
        """Begins a batch."""
        self.num_sampled, self._count = [], 0

    def add(self, picks: Picks, roots: NDArray[np.int64], first: int, t: int, numbering: BatchNumbering) -> None:
        """Adds the edges that nodes have drawn in the current hop.

        Args:
            picks: The edges.
            roots: int64 ``[n]``, the nodes' roots.
            first: Number of the first node.
            t: Index of the neighbours' type.
            numbering: Numbers the neighbours.
        """
        begin, end = self._count, self._count + len(picks.neighbors)
        if self._columns.shape[1] < end:
            columns = np.empty((4, 2 * end), np.int64)
            columns[:, :begin] = self._columns[:, :begin]
            self._columns = columns
        row, col, position, edge_roots = self._columns[:, begin:end]
        repeat(np.ascontiguousarray(picks.counts, np.int64), roots, first, col, edge_roots)
        numbering.number(t, picks.neighbors, edge_roots, row)
        if picks.positions is not None:
            position[:] = picks.positions
        self._count = end
        self.num_sampled[-1] += end - begin

    def walked(self, shown: EdgeType, relation: int, *, has_position: bool) -> WalkedEdges:
        """All of them, until the next batch begins."""
        row, col, position, _ = self._columns[:, : self._count]
        return WalkedEdges(shown, relation, row, col, position if has_position else None, self.num_sampled)


def _by_root(seeds: WalkSeeds, times: Mapping[int, NDArray[np.int64]] | None) -> NDArray[np.int64] | None:
    """int64 ``[number of roots]``: a root's time, which its seeds share."""
    if times is None or seeds.roots is None:
        return None
    found = np.zeros(1 + max((int(roots.max()) for roots in seeds.roots.values() if len(roots)), default=-1), np.int64)
    for t, roots in seeds.roots.items():
        found[roots] = times[t]
    return found

"""What a batch knows of the graph while mass is pushed: degrees of the nodes that it met, and neighbours of those it followed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import MemoryLimitError
from gnnkit.host import available_memory
from gnnkit.plan import PPRSampling
from gnnkit.sampling.exclusion import mark_kept
from gnnkit.sampling.graph_access import GraphAccess
from gnnkit.sampling.owners import Expansion, Picks
from gnnkit.sampling.passes import FRONTIER, NEIGHBOR
from gnnkit.sampling.tables import GraphTables
from gnnkit.sampling.walked import ExcludedEdges, Seeds
from gnnkit.sampling.walkers.ppr_push import NO_EDGES, UNKNOWN

_LARGEST_INT32 = (1 << 31) - 1


def larger(array: NDArray[Any], used: int, needed: int) -> NDArray[Any]:
    """An array with room for ``needed`` elements that begins with the first ``used`` ones of ``array``; itself where it has room.

    Raises:
        MemoryLimitError: There is no memory for it.
    """
    if needed <= len(array):
        return array
    size = max(needed, 2 * len(array))
    nbytes = size * array.itemsize * int(np.prod(array.shape[1:]))
    if nbytes > available_memory():
        raise MemoryLimitError(
            f"personalised PageRank needs {nbytes / 1e6:.0f} MB more for a batch", "lower batch_size, or raise eps or alpha"
        )
    grown = np.empty((size, *array.shape[1:]), array.dtype)
    grown[:used] = array[:used]
    return grown


class NeighborCache:
    """Nodes by key, ``number in its type * T + index of its type``, and their neighbours; one batch at a time.

    Args:
        sampling: What is walked along.
        tables: The graph.

    Attributes:
        num_types: T.
        relations: Indices of the edge types that are walked along, by the node type that they lead on from.
        frontier_types: Indices of the node types that these lead on from.
        first: int64 ``[T + 1]``, the first of ``relations`` of each node type.
        row: See ``ppr_push.push``, and so for the next three.
        segments: int64.
        neighbors: int32.
        threshold: float64 ``[keys]``.
        positions: int64, store positions of the edges beside ``neighbors``; empty where no batch holds them.
    """

    def __init__(self, sampling: PPRSampling, tables: GraphTables) -> None:
        walked, self.num_types = set(sampling.edge_types), len(tables.node_types)
        frontier = tables.relations[:, FRONTIER].tolist()
        order = sorted((t, r) for r, t in enumerate(frontier) if tables.edge_types[r] in walked)
        self.frontier_types, self.relations = [t for t, _ in order], [r for _, r in order]
        self.first = np.searchsorted(self.frontier_types, np.arange(self.num_types + 1)).astype(np.int64)
        self.neighbor_types = [int(tables.relations[r, NEIGHBOR]) for r in self.relations]
        self._fan_outs = np.zeros(len(tables.edge_types), np.int64)
        self._fan_outs[self.relations] = sampling.num_neighbors_per_hop
        self._keeps_positions, self._inward = sampling.include_sampled_edges, sampling.edge_dir == "in"
        self._factor = sampling.alpha * sampling.eps
        self.row, self.threshold = np.empty(0, np.int64), np.empty(0, np.float64)
        self.segments, self.neighbors, self.positions = np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int64)

    def leads_to(self, t: int) -> list[int]:
        """Indices of the node types that walks from type ``t`` can come to, itself included, sorted."""
        found, fresh = {t}, [t]
        while fresh:
            u = fresh.pop()
            fresh += (reached := set(self.neighbor_types[self.first[u] : self.first[u + 1]]) - found)
            found |= reached
        return sorted(found)

    def begin(self, seeds: Seeds, key: int, reach: GraphAccess) -> list[NDArray[np.int64]]:
        """Begins a batch.

        Returns:
            int64 ``[n]`` for each node type in ``seeds.nodes``, in the order of their indices: the seeds' keys.
        """
        self._reach, self._key, self._excluded = reach, key, seeds.excluded
        self._known = [0] * self.num_types
        # Nodes without edges share the first row, which is as long as any.
        self._num_segments, self._num_neighbors = 2 * int(np.diff(self.first).max()), 0
        self.segments = larger(self.segments, 0, self._num_segments)
        self.segments[: self._num_segments] = 0
        keys = [reach.numbering.number(t, ids) * self.num_types + t for t, ids in sorted(seeds.nodes.items())]
        self._meet()
        return keys

    @property
    def num_keys(self) -> int:
        """One more than the largest key."""
        return max(self._known) * self.num_types

    def store_ids(self, t: int, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 ``[n]``, store ids of nodes of type ``t``."""
        return self._reach.numbering.nodes(t)[keys // self.num_types]

    def _meet(self) -> None:
        """Looks up the degrees of the nodes that got their numbers since the last call."""
        numbering, before, num_types = self._reach.numbering, self.num_keys, self.num_types
        counts = [numbering.count(t) for t in range(num_types)]
        if max(counts) * num_types > _LARGEST_INT32:
            raise MemoryLimitError("a batch reaches more nodes than personalised PageRank can number", "lower batch_size, or raise eps")
        self.row = larger(self.row, before, max(counts) * num_types)
        self.threshold = larger(self.threshold, before, max(counts) * num_types)
        for t, count in enumerate(counts):
            if count == self._known[t]:
                continue
            degrees = self._reach.degrees(t, numbering.nodes(t)[self._known[t] :], self.relations[self.first[t] : self.first[t + 1]])
            keys = slice(self._known[t] * num_types + t, count * num_types, num_types)
            self.row[keys] = np.where(degrees == 0, NO_EDGES, UNKNOWN)
            self.threshold[keys] = self._factor * degrees
            self._known[t] = count

    def fetch(self, wanted: NDArray[np.int64]) -> None:
        """Gets the neighbours of nodes.

        Args:
            wanted: int64 ``[n]``, keys.

        Raises:
            GnnkitError: The graph is damaged, a host did not answer, or memory is short.
        """
        by_type = {t: keys for t in range(self.num_types) if len(keys := wanted[wanted % self.num_types == t])}
        nodes = {t: self.store_ids(t, keys) for t, keys in by_type.items()}
        for t, keys in by_type.items():
            width = 2 * int(self.first[t + 1] - self.first[t])
            end = self._num_segments + width * len(keys)
            self.segments = larger(self.segments, self._num_segments, end)
            self.row[keys] = np.arange(self._num_segments, end, width)
            self._num_segments = end
        picks = self._reach.expand(Expansion(self._key, 0, self._fan_outs, nodes))
        for t, keys in by_type.items():
            for j in range(self.first[t], self.first[t + 1]):
                self._keep(j, self.row[keys] + 2 * (j - self.first[t]), _without(picks[self.relations[j]], nodes[t], self._hidden(j)))
        self._meet()

    def _hidden(self, j: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Edges of a type that are to be left out, as nodes and the neighbours that they must not draw."""
        excluded: Sequence[ExcludedEdges] = [edges for edges in self._excluded if edges.relation == self.relations[j]]
        return [(edges.target, edges.source) if self._inward else (edges.source, edges.target) for edges in excluded]

    def _keep(self, j: int, segments: NDArray[np.int64], picks: Picks) -> None:
        """Appends nodes' neighbours of one edge type, and writes where they begin."""
        start, end, t = self._num_neighbors, self._num_neighbors + len(picks.neighbors), self.neighbor_types[j]
        self.neighbors = larger(self.neighbors, start, end)
        self.neighbors[start:end] = self._reach.numbering.number(t, picks.neighbors) * self.num_types + t
        if self._keeps_positions and picks.positions is not None:
            self.positions = larger(self.positions, start, end)
            self.positions[start:end] = picks.positions
        self.segments[segments] = start + np.cumsum(picks.counts) - picks.counts
        self.segments[segments + 1] = picks.counts
        self._num_neighbors = end


def _without(picks: Picks, nodes: NDArray[np.int64], hidden: list[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> Picks:
    """Picks without some pairs of node and neighbour."""
    if not hidden:
        return picks
    first, second = (np.concatenate([pair[end] for pair in hidden]) for end in (0, 1))
    owner = np.repeat(np.arange(len(nodes)), picks.counts)
    edges, kept = np.arange(len(owner)), np.empty(len(owner), np.uint8)
    limits = np.array([len(nodes), len(owner)], np.int64)
    if not mark_kept(owner, edges, nodes, np.ascontiguousarray(picks.neighbors, np.int64), limits, first, second, kept):
        return picks
    chosen = kept.view(np.bool_)
    counts = np.bincount(owner[chosen], minlength=len(nodes)).astype(np.int64)
    return Picks(counts, picks.neighbors[chosen], None if picks.positions is None else picks.positions[chosen])

"""Chooses the nodes with the largest personalised PageRank of each seed, by forward push. ``docs/sampling.md`` specifies it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.plan import PPRSampling
from gnnkit.plan.ppr import PPR_RELATION
from gnnkit.sampling.graph_access import GraphAccess
from gnnkit.sampling.subgraph import BatchKey, EdgeKey
from gnnkit.sampling.tables import GraphTables
from gnnkit.sampling.walked import Seeds, Walked, WalkedEdges
from gnnkit.sampling.walkers.ppr_cache import NeighborCache, larger
from gnnkit.sampling.walkers.ppr_push import CHANNEL, COUNT, FULL, NODES_END, NUM_COLUMNS, NUM_WANTED, SEED, TABLES_END, push
from gnnkit.sampling.walkers.ppr_select import NUM_COMMON, NUM_PER_CHANNEL, edges_among, number, select
from gnnkit.schema import EdgeType

# Neighbours are asked for once for all states that are pushed together. There are so many of these that they take about so many
# places in the arenas, going by those before them: with fewer one asks more often, and more need more memory (36 bytes a place).
_PLACES = 1 << 20
_FIRST_STATES, _FEWEST_STATES, _MOST_STATES = 64, 8, 1024
_FIRST_ARENA = 1 << 16
_NO_INTS = np.empty(0, np.int64)


class _Arenas:
    """Room for the states that are pushed together, see ``ppr_push.push``."""

    def __init__(self) -> None:
        self.table, self.links = np.empty(2 * _FIRST_ARENA, np.int32), np.empty((_FIRST_ARENA, 3), np.int32)
        self.mass, self.used = np.empty((_FIRST_ARENA, 2), np.float64), np.zeros(3, np.int64)

    def grow(self) -> None:
        """Doubles the room; what is there stays."""
        self.table = larger(self.table, int(self.used[TABLES_END]), len(self.table) + 1)
        used, needed = int(self.used[NODES_END]), len(self.links) + 1
        self.links, self.mass = larger(self.links, used, needed), larger(self.mass, used, needed)


class _Rows:
    """What seeds keep of one node type, chunk by chunk: the seed's index among all, the node's key, and the edge's attributes."""

    def __init__(self, width: int) -> None:
        self._parts: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]] = []
        self._none = _NO_INTS, _NO_INTS, np.empty((0, width), np.float32)

    def add(self, seeds: NDArray[np.int64], keys: NDArray[np.int64], attributes: NDArray[np.float32]) -> None:
        self._parts.append((seeds, keys, attributes))

    def joined(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        seeds, keys, attributes = zip(self._none, *self._parts, strict=True)
        return np.concatenate(seeds), np.concatenate(keys), np.concatenate(attributes)


class PPRWalker:
    """Chooses nodes by personalised PageRank; one object per thread.

    Args:
        sampling: How.
    """

    def __init__(self, sampling: PPRSampling) -> None:
        self._sampling = sampling
        self._of_graph: _GraphWalker | None = None

    def walk(self, seeds: Seeds, key: int, reach: GraphAccess) -> Walked:
        """Chooses the nodes of a batch; its edges lead from seeds to the nodes that they keep.

        Raises:
            GnnkitError: The graph is damaged, a host did not answer, or memory is short.
        """
        if self._of_graph is None:
            self._of_graph = _GraphWalker(self._sampling, reach.tables)
        return self._of_graph.walk(seeds, key, reach)


class _GraphWalker:
    """A ``PPRWalker`` that knows the graph's types."""

    def __init__(self, sampling: PPRSampling, tables: GraphTables) -> None:
        # Not the tables themselves, which may be those of a copy that is given up for another.
        self._sampling, self._node_types, self._edge_types = sampling, tables.node_types, tables.edge_types
        self._is_homogeneous = tables.graph.schema.is_homogeneous
        self._cache, self._arenas = NeighborCache(sampling, tables), _Arenas()
        channels = [channel.edge_types for channel in sampling.channels] or [sampling.edge_types]
        self._in_channel = np.array([[tables.edge_types[r] in types for r in self._cache.relations] for types in channels], np.bool_)
        self._in_channel = self._in_channel.reshape(len(channels), len(self._cache.relations))
        self._targets = np.array([channel.target for channel in sampling.channels] or [sampling.max_ppr_nodes], np.int64)
        self._width = NUM_COMMON + NUM_PER_CHANNEL * len(sampling.channels)
        self._leads_to = [self._cache.leads_to(t) for t in range(len(tables.node_types))]
        self._at_once = _FIRST_STATES
        self._wanted, self._mark, self._number_of = _NO_INTS, np.empty(0, np.int32), np.empty(0, np.int32)

    def walk(self, seeds: Seeds, key: int, reach: GraphAccess) -> Walked:
        cache, num_types = self._cache, self._cache.num_types
        reach.numbering.begin(replace(seeds, roots=None))  # every seed has a walk of its own in any case
        seed_keys = cache.begin(seeds, key, reach)
        every, rows = np.concatenate([_NO_INTS, *seed_keys]), [_Rows(self._width) for _ in range(num_types)]
        start = 0
        while start < len(every):
            states = self._push(every[start : start + max(1, self._at_once // len(self._targets))])
            self._select(states, start, rows)
            start += len(states) // len(self._targets)
            places = int(self._arenas.used[NODES_END]) / len(states)
            self._at_once = max(_FEWEST_STATES, min(_MOST_STATES, int(_PLACES / places)))
        joined = [of_type.joined() for of_type in rows]
        nodes = self._number(seeds, seed_keys, [keys for _, keys, _ in joined])
        edges, arrays = self._kept(seeds, joined)
        if self._sampling.include_sampled_edges:
            edges += self._walked(nodes, reach)
        num_seeds = [len(seeds.nodes.get(t, _NO_INTS)) for t in range(num_types)]
        num_sampled = [[count, len(of_type) - count] for count, of_type in zip(num_seeds, nodes, strict=True)]
        stored = [cache.store_ids(t, of_type) for t, of_type in enumerate(nodes)]
        # What the seeds exclude was never walked along, and edges from seeds to nodes are none of the graph's.
        return Walked(stored, num_sampled, sorted(edges, key=lambda edges: edges.type), replace(seeds, excluded=()), arrays)

    def _push(self, seed_keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Pushes the states of seeds until they are done; int64 ``[n * C, 10]``, see ``ppr_push.push``."""
        cache, arenas, sampling, num_channels = self._cache, self._arenas, self._sampling, len(self._targets)
        states = np.zeros((len(seed_keys) * num_channels, NUM_COLUMNS), np.int64)
        states[:, SEED], states[:, CHANNEL] = np.repeat(seed_keys, num_channels), np.tile(np.arange(num_channels), len(seed_keys))
        max_rounds = -1 if sampling.max_fetch_iterations is None else sampling.max_fetch_iterations
        arenas.used[:] = 0
        while True:
            self._wanted = larger(self._wanted, int(arenas.used[NUM_WANTED]), cache.num_keys)
            waiting = push(
                states, sampling.alpha, max_rounds, arenas.used, arenas.table, arenas.links, arenas.mass, cache.row, cache.segments,
                cache.neighbors, cache.threshold, cache.first, self._in_channel, self._wanted,
            )  # fmt: skip
            if waiting == 0:
                return states
            if waiting == FULL:
                arenas.grow()
                continue
            cache.fetch(self._wanted[: arenas.used[NUM_WANTED]])
            arenas.used[NUM_WANTED] = 0

    def _select(self, states: NDArray[np.int64], start: int, rows: list[_Rows]) -> None:
        """Adds what seeds keep to ``rows``; they are numbered from ``start``."""
        num_types, arenas = self._cache.num_types, self._arenas
        self._mark = _fitting(self._mark, self._cache.num_keys)
        most = np.minimum(states[:, COUNT].reshape(-1, len(self._targets)).sum(1), self._targets.sum()).sum()
        for t in range(num_types):
            seeds, keys = np.empty(most, np.int64), np.empty(most, np.int64)
            attributes = np.empty((most, self._width), np.float32)
            count = select(
                states, t, num_types, self._sampling.enable_residual_topup, self._targets, arenas.links, arenas.mass, self._mark, seeds,
                keys, attributes,
            )  # fmt: skip
            rows[t].add(seeds[:count] + start, keys[:count].copy(), attributes[:count].copy())

    def _number(self, seeds: Seeds, seed_keys: list[NDArray[np.int64]], kept: list[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
        """Gives the nodes that seeds keep their numbers, which replace their keys; int64 ``[n]`` keys by number, for each node type."""
        self._number_of = _fitting(self._number_of, self._cache.num_keys)
        self._number_of[:] = -1
        of_type = dict(zip(sorted(seeds.nodes), seed_keys, strict=True))
        nodes = []
        for t, keys in enumerate(kept):
            first = of_type.get(t, _NO_INTS)
            self._number_of[first] = first // self._cache.num_types  # the seeds were met first
            fresh = np.empty(len(keys), np.int64)
            count = number(keys, self._number_of, len(first), fresh)
            nodes.append(np.concatenate([first, fresh[:count]]))
        return nodes

    def _kept(
        self, seeds: Seeds, rows: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]]
    ) -> tuple[list[WalkedEdges], dict[BatchKey, NDArray[Any]]]:
        """The edges from seeds to nodes, for every type that they may lead to, and their attributes."""
        edges, arrays, begin = [], dict[BatchKey, NDArray[Any]](), 0
        for s, ids in sorted(seeds.nodes.items()):
            for t in self._leads_to[s]:
                own = slice(*np.searchsorted(rows[t][0], (begin, begin + len(ids))).tolist())
                edge_type = self._edge_type(s, t)
                edges.append(WalkedEdges(edge_type, None, rows[t][0][own] - begin, rows[t][1][own], None, [own.stop - own.start]))
                arrays[EdgeKey(edge_type, "edge_attr")] = rows[t][2][own]
            begin += len(ids)
        return edges, arrays

    def _edge_type(self, s: int, t: int) -> EdgeType:
        return self._edge_types[0] if self._is_homogeneous else (self._node_types[s], PPR_RELATION, self._node_types[t])

    def _walked(self, nodes: list[NDArray[np.int64]], reach: GraphAccess) -> list[WalkedEdges]:
        """The edges that were walked along and lie among the batch's nodes."""
        cache, edges = self._cache, []
        for j, r in enumerate(cache.relations):
            t = cache.frontier_types[j]
            segment, keys = j - int(cache.first[t]), nodes[t]
            begins = np.unique(cache.row[keys])
            most = cache.segments[begins[begins > 0] + 2 * segment + 1].sum()
            wants_position = reach.wants_position[r]
            row, col, position = (np.empty(size, np.int64) for size in (most, most, most if wants_position else 0))
            count = edges_among(
                keys, segment, cache.row, cache.segments, cache.neighbors, cache.positions if wants_position else _NO_INTS,
                self._number_of, np.full(cache.num_keys, -1, np.int64), row, col, position,
            )  # fmt: skip
            shown = reach.shown_type(self._edge_types[r])
            edges.append(WalkedEdges(shown, r, row[:count], col[:count], position[:count] if wants_position else None, [count]))
        return edges


def _fitting(array: NDArray[np.int32], size: int) -> NDArray[np.int32]:
    """int32 ``[at least size]``; a new one is filled with -1."""
    return array if len(array) >= size else np.full(2 * size, -1, np.int32)

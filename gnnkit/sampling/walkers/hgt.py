"""Samples a fixed number of nodes of each type in each iteration, as the Heterogeneous Graph Transformer does.

Hu, Dong, Wang and Sun, "Heterogeneous Graph Transformer" (WWW 2020), algorithms 1 and 2, with the choices of torch-sparse's
``hgt_sample``, which PyG's ``HGTLoader`` calls. ``docs/sampling.md`` specifies every draw.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gnnkit.kernels.stream import PURPOSE_BUDGETS, fold, text_key
from gnnkit.plan import HGTSampling
from gnnkit.sampling.graph_access import GraphAccess
from gnnkit.sampling.owners import Expansion
from gnnkit.sampling.passes import FRONTIER, NEIGHBOR
from gnnkit.sampling.walked import Seeds, Walked, WalkedEdges
from gnnkit.sampling.walkers.hgt_kernels import add_shares, draw_nodes, keep_edges
from gnnkit.sampling.walkers.layer_seen import SeenNodes, extended, seen_nodes
from gnnkit.schema import is_label_edge_type

# The most edges that a node draws of one type: torch-sparse's MAX_NEIGHBORS, so that budgets do not fill with neighbours of hubs.
MAX_NEIGHBORS = 50

_NO_POSITIONS = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class _Drawn:
    """What nodes with consecutive numbers have drawn of one edge type.

    Attributes:
        first: The first node's number.
        counts: int64 ``[n]``, edges of each node.
        slots: int64 ``[sum of counts]``, the neighbours among the nodes that the walk has met.
        position: int64 ``[sum of counts]``, or empty where it is not wanted.
    """

    first: int
    counts: NDArray[np.int64]
    slots: NDArray[np.int64]
    position: NDArray[np.int64]


class HGTWalker:
    """Walks with budgets; one object per thread.

    Args:
        sampling: How many nodes of each type are drawn in each iteration.
    """

    def __init__(self, sampling: HGTSampling) -> None:
        self._sampling, self._num_hops = sampling, sampling.num_hops
        self._seen: list[SeenNodes] = []

    def walk(self, seeds: Seeds, key: int, reach: GraphAccess) -> Walked:
        """Chooses the nodes of a batch, and those of their edges that lead to one another.

        Raises:
            GnnkitError: The graph is damaged, or a host did not answer.
        """
        node_types, none = reach.tables.node_types, (0,) * self._num_hops
        self._seen = self._seen or seen_nodes(reach.tables)
        for t, nodes in enumerate(self._seen):
            nodes.begin(seeds.nodes.get(t))
        self._budgets = [np.zeros(nodes.size, np.int64) for nodes in self._seen]
        self._drawn: list[list[_Drawn]] = [[] for _ in reach.tables.edge_types]
        num_sampled = [[nodes.count] for nodes in self._seen]
        new = dict(seeds.nodes)
        purpose = fold(key, PURPOSE_BUDGETS)
        for iteration in range(self._num_hops):
            self._expand(new, key, iteration, reach)
            new = {}
            for t, nodes in enumerate(self._seen):
                walk, before = fold(fold(purpose, iteration), text_key(node_types[t])), nodes.count
                count = self._sampling.num_samples.get(node_types[t], none)[iteration]
                nodes.enter(draw_nodes(np.uint64(walk), count, nodes.number, self._budgets[t]))
                new[t] = nodes.nodes()[before:]
                num_sampled[t].append(len(new[t]))
        self._expand(new, key, self._num_hops, reach)
        edges = [self._edges(r, reach) for r in range(len(self._drawn))]
        return Walked([nodes.nodes() for nodes in self._seen], num_sampled, edges, seeds)

    def _expand(self, new: dict[int, NDArray[np.int64]], key: int, iteration: int, reach: GraphAccess) -> None:
        """Draws the edges of the nodes that are new, and adds to their neighbours' budgets; there is no more use for those at last."""
        relations, is_last = reach.tables.relations, iteration == self._num_hops
        fan_outs = np.array([0 if is_label_edge_type(edge_type) else MAX_NEIGHBORS for edge_type in reach.tables.edge_types], np.int64)
        drawing = {t: nodes for t, nodes in new.items() if len(nodes)}
        for r, picks in reach.expand(Expansion(key, iteration, fan_outs, drawing)).items():
            t, n = relations[r, FRONTIER], relations[r, NEIGHBOR]
            seen, counts = self._seen[n], np.ascontiguousarray(picks.counts, np.int64).copy()
            slots = seen.slots(picks.neighbors, insert=not is_last)
            position = np.array(picks.positions, np.int64) if reach.wants_position[r] else _NO_POSITIONS
            self._drawn[r].append(_Drawn(self._seen[t].count - len(new[t]), counts, slots, position))
            if not is_last:
                self._budgets[n] = extended(self._budgets[n], seen.size)
                add_shares(counts, slots, seen.number, self._budgets[n])

    def _edges(self, r: int, reach: GraphAccess) -> WalkedEdges:
        """The edges of one type among the batch's nodes, node after node. They belong to no hop: both ends may be of any."""
        n, wanted = reach.tables.relations[r, NEIGHBOR], reach.wants_position[r]
        size, count = sum(len(drawn.slots) for drawn in self._drawn[r]), 0
        row, col, position = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size if wanted else 0, np.int64)
        for drawn in self._drawn[r]:
            count += keep_edges(
                drawn.counts, drawn.slots, self._seen[n].number, drawn.first, drawn.position, row[count:], col[count:], position[count:]
            )  # fmt: skip
        shown = reach.shown_type(reach.tables.edge_types[r])
        return WalkedEdges(shown, r, row[:count], col[:count], position[:count] if wanted else None, [])

"""Layer-wise sampling: a fixed number of nodes for a whole frontier, each drawn with an exactly known probability."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from gnnkit.errors import SamplingError
from gnnkit.kernels.jit import allocating_helper, kernel
from gnnkit.kernels.keys import PURPOSE_LAYERS, fold, text_key
from gnnkit.kernels.stream import bit_length, bounded, draw_u64
from gnnkit.plan import LayerWiseSampling
from gnnkit.sampling.graph_access import GraphAccess
from gnnkit.sampling.owners import Expansion
from gnnkit.sampling.passes import FRONTIER, NEIGHBOR, WEIGHTED
from gnnkit.sampling.subgraph import BatchKey, EdgeKey, Walked, WalkedEdges, WalkSeeds
from gnnkit.sampling.walkers.layer_seen import FrontierEdges, SeenNodes, seen_nodes
from gnnkit.schema import is_label_edge_type

# Intrinsics have no type hints, so what they return is Any to mypy.
# mypy: disable-error-code="no-any-return"


# Products of a sum of weights and a count stay below 2 to this power; a single weight below 2 to the second.
_PRODUCT_BITS, _WEIGHT_BITS = 62, 40


@kernel("int64(int64[::1], int64[::1], int64[::1], float64[::1], int64[::1], float64[::1], int64[::1], int64)")
def add_scores(
    counts: NDArray[np.int64],
    weights: NDArray[np.int64],
    slots: NDArray[np.int64],
    entries: NDArray[np.float64],
    seen: NDArray[np.int64],
    scores: NDArray[np.float64],
    candidates: NDArray[np.int64],
    num_candidates: int,
) -> int:
    """Works out the normalised adjacency of a frontier's edges, and adds its squares up for each neighbour.

    Args:
        counts: int64 ``[n]``, edges of each node.
        weights: int64 ``[sum of counts]``, or empty where all edges count alike.
        slots: int64 ``[sum of counts]``, the neighbours'.
        entries: float64 ``[sum of counts]``, filled: an edge's share of its node's edges.
        seen: int64 ``[slots]``: 1 for those that are candidates already.
        scores: float64 ``[slots]``, added to.
        candidates: int64, filled: slots in the order in which they came up.
        num_candidates: How many there are.

    Returns:
        The new number of candidates.
    """
    q = 0
    for i in range(counts.size):
        total = float(counts[i])
        if weights.size:
            whole = 0
            for k in range(q, q + counts[i]):
                whole += weights[k]
            total = float(whole)
        for _ in range(counts[i]):
            entry, slot = (float(weights[q]) if weights.size else 1.0) / total, slots[q]
            entries[q] = entry
            scores[slot] += entry * entry
            if seen[slot] == 0:
                seen[slot] = 1
                candidates[num_candidates] = slot
                num_candidates += 1
            q += 1
    return num_candidates


@allocating_helper
def _integers(scores: NDArray[np.float64], candidates: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Scores as whole numbers: the largest is 2**40, or less where a product with their sum would overflow."""
    most = 0.0
    for slot in candidates:
        most = max(most, scores[slot])
    bits = min(_WEIGHT_BITS, _PRODUCT_BITS - bit_length(count) - bit_length(candidates.size))
    scale, weight = float(1 << bits), np.empty(candidates.size, np.int64)
    for i in range(candidates.size):
        weight[i] = max(1, int(scores[candidates[i]] / most * scale))
    return weight


@kernel("void(uint64, int64, int64[::1], float64[::1], float64[::1])")
def choose_nodes(key: int, count: int, candidates: NDArray[np.int64], scores: NDArray[np.float64], inclusion: NDArray[np.float64]) -> None:
    """Chooses ``count`` candidates, or all of them if they are not more, with probabilities in proportion to their scores.

    A systematic sample (Madow, Annals of Mathematical Statistics 20(3), 1949) in random order (Hartley and Rao, ibid. 33(2), 1962), of
    those whose probability would not reach 1; the others are chosen for certain.

    Args:
        key: Of batch, purpose, hop and node type.
        count: How many to choose, at least 1.
        candidates: int64 ``[m]``, slots.
        scores: float64 ``[slots]``.
        inclusion: float64 ``[slots]``, filled for all candidates: the probability of each one that was chosen, 0 for the others.
    """
    if candidates.size <= count:
        for slot in candidates:
            inclusion[slot] = 1.0
        return
    weight = _integers(scores, candidates, count)
    order, total = np.arange(candidates.size), 0
    for value in weight:
        total += value
    while True:
        kept, certain, rest = 0, 0, total
        for i in order:
            if weight[i] * count >= total:
                inclusion[candidates[i]] = 1.0
                certain += 1
                rest -= weight[i]
            else:
                order[kept] = i
                kept += 1
        order, count, total = order[:kept], count - certain, rest
        if certain == 0:
            break
    for last in range(order.size - 1, 0, -1):
        j = bounded(draw_u64(uint64(key), order.size - 1 - last), last + 1)
        order[last], order[j] = order[j], order[last]
    threshold, running = bounded(draw_u64(uint64(key), order.size - 1), total), 0
    for i in order:
        running += weight[i]
        chosen = running * count > threshold
        inclusion[candidates[i]] = float(weight[i] * count) / float(total) if chosen else 0.0
        if chosen:
            threshold += total


_NO_INTS = np.empty(0, np.int64)
EDGE_WEIGHT = "edge_weight"


@dataclass(frozen=True, eq=False)
class _Kept:
    """The chosen edges as a batch shows them: int64 ``[n]`` each, ``edge_weight`` float32 ``[n]``."""

    row: NDArray[np.int64]
    col: NDArray[np.int64]
    position: NDArray[np.int64]
    edge_weight: NDArray[np.float32]


_NOTHING = _Kept(_NO_INTS, _NO_INTS, _NO_INTS, np.empty(0, np.float32))


class LayerWalker:
    """Walks layer by layer; one object per thread.

    Args:
        sampling: How many nodes of each type are chosen in each hop.
    """

    def __init__(self, sampling: LayerWiseSampling) -> None:
        self._sampling = sampling
        self._seen: list[SeenNodes] = []

    def walk(self, seeds: WalkSeeds, key: int, reach: GraphAccess) -> Walked:
        """Chooses the nodes of a batch, and their edges to those of the hop before.

        Raises:
            GnnkitError: The graph is damaged, or a host did not answer.
        """
        self._seen = self._seen or seen_nodes(reach.tables)
        for t, seen in enumerate(self._seen):
            seen.begin(seeds.nodes.get(t))
        num_sampled = [[seen.count] for seen in self._seen]
        kept: list[list[_Kept]] = [[] for _ in reach.tables.edge_types]
        begin, purpose = [0] * len(self._seen), fold(key, PURPOSE_LAYERS)
        for hop in range(self._sampling.num_hops):
            end = [seen.count for seen in self._seen]
            chosen = self._choose(begin, fold(purpose, hop), hop, key, reach)
            for r, hops in enumerate(kept):
                hops.append(chosen.get(r, _NOTHING))
            for t, seen in enumerate(self._seen):
                num_sampled[t].append(seen.count - end[t])
            begin = end
        arrays: dict[BatchKey, NDArray[np.float32]] = {}
        walked = [self._joined(r, kept[r], reach, arrays) for r in range(len(kept))]
        return Walked([seen.nodes() for seen in self._seen], num_sampled, walked, seeds, dict(arrays))

    def _choose(self, begin: list[int], purpose: int, hop: int, key: int, reach: GraphAccess) -> dict[int, _Kept]:
        """One hop: the edges from chosen nodes to those numbered from ``begin`` on, for each edge type."""
        relations, node_types = reach.tables.relations, reach.tables.node_types
        scores: dict[int, NDArray[np.float64]] = {}
        edges, candidates = self._edges(begin, hop, key, reach, scores)
        inclusion = {n: np.zeros(len(scores[n])) for n in scores}
        for n, found in candidates.items():
            draws = np.uint64(fold(purpose, text_key(node_types[n])))
            choose_nodes(draws, self._sampling.num_nodes[node_types[n]][hop], found, scores[n], inclusion[n])
        return {r: self._keep(of_type, int(relations[r, NEIGHBOR]), inclusion) for r, of_type in edges.items()}

    def _edges(
        self, begin: list[int], hop: int, key: int, reach: GraphAccess, scores: dict[int, NDArray[np.float64]]
    ) -> tuple[dict[int, FrontierEdges], dict[int, NDArray[np.int64]]]:
        """All edges of the frontier by type, and the candidates by node type; fills ``scores``, float64 ``[slots]`` by node type."""
        relations, num_nodes = reach.tables.relations, self._sampling.num_nodes
        wide = [t in num_nodes and num_nodes[t][hop] > 0 for t in reach.tables.node_types]
        frontier = {t: seen.nodes()[begin[t] :] for t, seen in enumerate(self._seen) if seen.count > begin[t]}
        followed = [wide[n] and not is_label_edge_type(t) for t, n in zip(reach.tables.edge_types, relations[:, NEIGHBOR], strict=True)]
        fan_outs = np.where(followed, -1, 0)
        wanted = [r for r in range(len(fan_outs)) if fan_outs[r] and relations[r, FRONTIER] in frontier]
        weights = {r: reach.weights(r, frontier[relations[r, FRONTIER]]).copy() for r in wanted if relations[r, WEIGHTED]}
        picks = reach.expand(Expansion(key, hop, fan_outs, frontier, weighted=self._sampling.weight is not None))
        if any(len(weights[r]) != len(picks[r].neighbors) for r in weights):
            raise SamplingError("a host sent weights that do not fit its edges", "all hosts must run the same gnnkit")
        slots = {r: self._seen[relations[r, NEIGHBOR]].slots(picks[r].neighbors, insert=True) for r in wanted}
        edges, candidates = {}, {}
        for n in sorted({int(relations[r, NEIGHBOR]) for r in wanted}):
            size = self._seen[n].size
            scores[n], met, found, count = np.zeros(size), np.zeros(size, np.int64), np.empty(size, np.int64), 0
            for r in (r for r in wanted if relations[r, NEIGHBOR] == n):
                counts, entries = np.array(picks[r].counts, np.int64), np.empty(len(slots[r]))
                count = add_scores(counts, weights.get(r, _NO_INTS), slots[r], entries, met, scores[n], found, count)
                position = np.array(picks[r].positions, np.int64) if reach.wants_position[r] else _NO_INTS
                edges[r] = FrontierEdges(begin[relations[r, FRONTIER]], counts, slots[r], position, entries)
            candidates[n] = found[:count]
        return dict(sorted(edges.items())), candidates

    def _keep(self, edges: FrontierEdges, n: int, inclusion: dict[int, NDArray[np.float64]]) -> _Kept:
        """The edges from chosen nodes, which get their numbers."""
        chance = inclusion[n][edges.slots]
        kept = np.flatnonzero(chance)
        col = np.repeat(np.arange(edges.first, edges.first + len(edges.counts)), edges.counts)[kept]
        position = edges.position[kept] if len(edges.position) else _NO_INTS
        edge_weight = (edges.entries[kept] / chance[kept]).astype(np.float32)
        return _Kept(self._seen[n].enter(edges.slots[kept]), col, position, edge_weight)

    def _joined(self, r: int, kept: list[_Kept], reach: GraphAccess, arrays: dict[BatchKey, NDArray[np.float32]]) -> WalkedEdges:
        """The edges of one type, hop after hop; their weights go to ``arrays``."""
        shown = reach.shown_type(reach.tables.edge_types[r])
        arrays[EdgeKey(shown, EDGE_WEIGHT)] = np.concatenate([edges.edge_weight for edges in kept])
        row, col = np.concatenate([edges.row for edges in kept]), np.concatenate([edges.col for edges in kept])
        position = np.concatenate([edges.position for edges in kept]) if reach.wants_position[r] else None
        return WalkedEdges(shown, r, row, col, position, [len(edges.row) for edges in kept])

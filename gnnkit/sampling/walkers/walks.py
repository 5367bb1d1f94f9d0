"""Random walks: node2vec's, which know where they come from, and metapath2vec's, which follow edge types in turn."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import MemoryLimitError, SamplingError
from gnnkit.host import FreeMemory
from gnnkit.kernels.keys import PURPOSE_BIAS, PURPOSE_NEGATIVES, fold
from gnnkit.plan import WalkSampling
from gnnkit.sampling.graph_access import GraphAccess
from gnnkit.sampling.owners import Expansion, Picks
from gnnkit.sampling.passes import FRONTIER, NEIGHBOR, NUM_NEIGHBOR_NODES, WEIGHTED
from gnnkit.sampling.seeders.links import draw_at
from gnnkit.sampling.subgraph import BatchKey, NodeKey, Walked, WalkSeeds

# The largest bias as a whole number is at most 2 to this power: its product with a weight of an edge has 62 bits.
_BIAS_BITS = 30
# Edges of a step that are tried, in rounds: the first of them nearly always do, and each round asks other hosts anew.
_TRIES = (4, 16, 64)
# Edges of nodes, and of those before them, that are looked at together where all tries of a step have failed.
_CHUNK_EDGES = 1 << 20
# What one place of a walk takes until the batch is made: its number, its node, and their copies on the way.
_PLACE_BYTES = 32
_free_memory = FreeMemory()


class RandomWalker:
    """Walks from each seed so many times; one object per thread.

    Args:
        sampling: How.
    """

    def __init__(self, sampling: WalkSampling) -> None:
        self._sampling = sampling
        biases = [1.0 / sampling.p, 1.0, 1.0 / sampling.q]
        shift = _BIAS_BITS - math.frexp(max(biases))[1]
        self._biases = _Biases(*(max(1, round(math.ldexp(bias, shift))) for bias in biases))

    def walk(self, seeds: WalkSeeds, key: int, reach: GraphAccess) -> Walked:
        """Walks from the seeds of a batch, and draws its negatives.

        Raises:
            GnnkitError: The graph is damaged, a host did not answer, or memory is short.
        """
        sampling, numbering, tables = self._sampling, reach.numbering, reach.tables
        numbering.begin(seeds)
        (ids,) = seeds.nodes.values()
        count, width = sampling.per_node * len(ids), sampling.length + 1
        needed = count * width * (1 + sampling.num_negatives) * _PLACE_BYTES
        if needed > (free := _free_memory.take(needed)):
            raise MemoryLimitError(
                f"a batch's walks need {needed / 1e6:.0f} MB, {free / 1e6:.0f} MB are free",
                "lower batch_size, per_node, length or num_negatives",
            )
        walks = np.full((count, width), -1, np.int64)
        walks[:, 0] = np.arange(count) % max(1, len(ids))
        relations = [tables.edge_types.index(edge_type) for edge_type in sampling.metapath]
        rows, nodes, before = np.arange(count), np.tile(ids, sampling.per_node), np.empty(0, np.int64)
        for number in range(sampling.length):
            if not len(rows):
                break
            r = relations[number % len(relations)]
            step = _Step(reach, key, number, r, sampling.weight is not None and bool(tables.relations[r, WEIGHTED]), self._biases)
            found = step.next_nodes(rows, nodes, before)
            goes_on = found >= 0
            rows, before, nodes = rows[goes_on], nodes[goes_on], found[goes_on]
            walks[rows, number + 1] = numbering.number(int(tables.relations[r, NEIGHBOR]), nodes)
        arrays: dict[BatchKey, NDArray[np.int64]] = {NodeKey(sampling.start, "walks"): walks}
        if sampling.num_negatives:
            arrays[NodeKey(sampling.start, "neg_walks")] = self._negatives(walks, relations, key, reach)
        nodes_by_type = [numbering.nodes(t) for t in range(len(tables.node_types))]
        return Walked(nodes_by_type, [[] for _ in nodes_by_type], [], seeds, dict(arrays))

    def _negatives(self, walks: NDArray[np.int64], relations: list[int], key: int, reach: GraphAccess) -> NDArray[np.int64]:
        """Walks to nodes that are drawn evenly from all of the type that each step leads to."""
        tables, own = reach.tables, np.uint64(fold(key, PURPOSE_NEGATIVES))
        found = np.tile(walks, (self._sampling.num_negatives, 1))
        drawn = np.empty(len(found), np.int64)
        for number in range(self._sampling.length if len(found) else 0):
            t = int(tables.relations[relations[number % len(relations)], NEIGHBOR])
            if not (num_nodes := int(tables.bounds[t, -1])):
                raise SamplingError(f"there is no {tables.node_types[t]!r} node that a negative could be drawn from", "num_negatives=0")
            draw_at(own, np.arange(len(found)), number, np.array([num_nodes]), drawn)
            found[:, number + 1] = reach.numbering.number(t, reach.store_ids(t, drawn))
        return found


@dataclass(frozen=True)
class _Biases:
    """The chances of neighbours as whole numbers, up to a factor.

    Attributes:
        back: Of the node before.
        near: Of a node that the node before has an edge to.
        far: Of any other.
    """

    back: int
    near: int
    far: int

    @property
    def most(self) -> int:
        """The largest."""
        return max(self.back, self.near, self.far)


@dataclass(frozen=True)
class _Step:
    """A step of a batch's walks.

    Attributes:
        reach: The graph.
        key: ``keys.batch_key`` of the batch.
        number: The step's number, from 0.
        r: Index of the edge type that is walked along.
        is_weighted: Whether its weights are followed.
        biases: How a neighbour's chance depends on the node before.
    """

    reach: GraphAccess
    key: int
    number: int
    r: int
    is_weighted: bool
    biases: _Biases

    def next_nodes(self, rows: NDArray[np.int64], nodes: NDArray[np.int64], before: NDArray[np.int64]) -> NDArray[np.int64]:
        """The next node of each walk.

        Args:
            rows: int64 ``[n]``, the walks.
            nodes: int64 ``[n]``, store ids: where they are.
            before: int64 ``[n]``, where they come from; of no account in the first step.

        Returns:
            int64 ``[n]`` store ids; -1 for those that end, as no edge leads on.
        """
        found = np.full(len(rows), -1, np.int64)
        if self.number == 0 or self.biases.back == self.biases.near == self.biases.far:
            picks = self._drawn(rows, nodes, 1)
            found[picks.counts > 0] = picks.neighbors
            return found
        left = np.arange(len(rows))
        for first, tries in zip((0, *_TRIES), _TRIES, strict=False):
            picks = self._drawn(rows[left], nodes[left], tries)
            left = left[picks.counts > 0]
            tried = picks.neighbors.astype(np.int64).reshape(len(left), tries)[:, first:]
            is_taken = self._are_taken(tried, first, rows[left], before[left])
            done = is_taken.any(axis=1)
            found[left[done]] = tried[done, is_taken[done].argmax(axis=1)]
            left = left[~done]
        for chunk in self._chunks(nodes[left], before[left]):
            some = left[chunk]
            found[some] = self._among_all(rows[some], nodes[some], before[some])
        return found

    @property
    def _bias_key(self) -> np.uint64:
        key: np.uint64 = np.uint64(fold(fold(self.key, PURPOSE_BIAS), self.number))
        return key

    def _expanded(self, nodes: NDArray[np.int64], fan_out: int, *, is_weighted: bool, rows: NDArray[np.int64] | None = None) -> Picks:
        if not len(nodes):
            return Picks(nodes, nodes, None)
        t, fan_outs = int(self.reach.tables.relations[self.r, FRONTIER]), np.zeros(len(self.reach.tables.edge_types), np.int64)
        fan_outs[self.r], roots = fan_out, None if rows is None else {t: rows}
        expansion = Expansion(self.key, self.number, fan_outs, {t: nodes}, replace=True, weighted=is_weighted, roots=roots)
        return self.reach.expand(expansion)[self.r]

    def _drawn(self, rows: NDArray[np.int64], nodes: NDArray[np.int64], count: int) -> Picks:
        """So many edges, with replacement, for each walk at its node; none where it has none.

        Raises:
            SamplingError: Another host sent others.
        """
        picks = self._expanded(nodes, count, is_weighted=self.is_weighted, rows=rows)
        if not np.isin(picks.counts, (0, count)).all():
            raise _strange_answer()
        return picks

    def _are_taken(self, tried: NDArray[np.int64], first: int, rows: NDArray[np.int64], before: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Bool, of the shape of ``tried``: whether a candidate is taken if none before it is; they count from ``first``."""
        draws, biases = np.empty(tried.shape[::-1], np.int64), self.biases
        for number, of_try in enumerate(draws, first):
            draw_at(self._bias_key, rows, number, np.array([biases.most]), of_try)
        draws = draws.T
        is_back = tried == before[:, None]
        # Only of these does it matter whether the node before has an edge to them.
        low, high = sorted((biases.near, biases.far))
        row, column = np.nonzero(~is_back & (draws >= low) & (draws < high))
        is_near = self.reach.has_edges(self.r, before[row], tried[row, column])
        is_taken: NDArray[np.bool_] = draws < np.where(is_back, biases.back, low)
        is_taken[row, column] = is_near == (biases.near > biases.far)
        return is_taken

    def _chunks(self, nodes: NDArray[np.int64], before: NDArray[np.int64]) -> Iterator[slice]:
        """Slices of walks whose edges are looked at together."""
        t, first = int(self.reach.tables.relations[self.r, FRONTIER]), 0
        ends = np.cumsum(self.reach.degrees(t, nodes, [self.r]) + self.reach.degrees(t, before, [self.r]))
        while first < len(nodes):
            last = int(np.searchsorted(ends, (ends[first - 1] if first else 0) + _CHUNK_EDGES, side="right"))
            yield slice(first, last := max(first + 1, last))
            first = last

    def _among_all(self, rows: NDArray[np.int64], nodes: NDArray[np.int64], before: NDArray[np.int64]) -> NDArray[np.int64]:
        """One more draw among all edges of each node, of which each has one at least."""
        biases, walks = self.biases, np.arange(len(rows))
        size = int(self.reach.tables.relations[self.r, NUM_NEIGHBOR_NODES])
        of_before = self._expanded(before, -1, is_weighted=False)
        near = np.repeat(walks, of_before.counts) * size + of_before.neighbors
        weights = self.reach.weights(self.r, nodes).copy() if self.is_weighted else None
        picks = self._expanded(nodes, -1, is_weighted=self.is_weighted)
        owner, others = np.repeat(walks, picks.counts), picks.neighbors.astype(np.int64)
        if not picks.counts.all() or (weights is not None and len(weights) != len(others)):
            raise _strange_answer()
        chances = np.where(np.isin(owner * size + others, near), biases.near, biases.far)
        chances[others == before[owner]] = biases.back
        if weights is not None:
            chances = np.maximum(1, chances * weights >> _BIAS_BITS)
        sums = np.concatenate([[0], np.cumsum(chances)])
        ends = np.cumsum(picks.counts)
        first, draws = sums[ends - picks.counts], np.empty(len(rows), np.int64)
        draw_at(self._bias_key, rows, _TRIES[-1], sums[ends] - first, draws)
        chosen: NDArray[np.int64] = others[np.searchsorted(sums[1:], first + draws, side="right")]
        return chosen


def _strange_answer() -> SamplingError:
    return SamplingError("a host sent edges that do not fit what it was asked", "all hosts must run the same gnnkit")

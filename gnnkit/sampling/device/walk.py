"""Walks on a device: ``docs/development/sampling.md``, from "Neighbours" to "Which edges a batch shows".

Sizes come back to the host once a hop: neighbours lie where there is room for all that a node may draw, and what is taken of it is picked
out once the batch is walked. A hop that takes all neighbours asks for their number first, and draws by weight ask whether they are done.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnnkit.kernels.keys import fold as fold_key
from gnnkit.plan import NeighborSampling
from gnnkit.sampling.device import draws
from gnnkit.sampling.device.graph import DeviceAdjacency, DeviceGraph
from gnnkit.sampling.device.numbering import Counted, Numbering, RootedNumbering, TableNumbering
from gnnkit.sampling.graph_access import positions_wanted
from gnnkit.sampling.owners import NO_CHANGE
from gnnkit.sampling.subgraph import ExcludedEdges, WalkSeeds
from gnnkit.sampling.tables import GraphTables
from gnnkit.sampling.walkers.shape import followed_types, with_reverses
from gnnkit.schema import EdgeType


@dataclass
class DeviceEdges:
    """The counterpart of ``WalkedEdges``; tensors are int64 on the device."""

    type: EdgeType
    relation: int | None
    row: Tensor
    col: Tensor
    position: Tensor | None
    num_sampled: list[int]


@dataclass
class DeviceWalked:
    """The counterpart of ``Walked``; ``batch`` has the roots as batches show them, by node type, where seeds have some."""

    nodes: list[Tensor]
    num_sampled_nodes: list[list[int]]
    edges: list[DeviceEdges]
    batch: list[Tensor] | None


class _TakenByNodes(NamedTuple):
    """Edges of one type that nodes take in a hop, node after node.

    Attributes:
        place: int64 ``[e]``, their positions; ``DeviceAdjacency.count`` where there is none.
        owner: int64 ``[e]``, the numbers of the nodes.
        missing: int64, at how many places there is none; None where there is one everywhere.
    """

    place: Tensor
    owner: Tensor
    missing: Tensor | None


class _Along(NamedTuple):
    """The finds of a hop along one edge type; see ``_TakenByNodes`` and ``Numbering.meet``."""

    taken: _TakenByNodes
    ids: Tensor
    met: Tensor

    @property
    def counts(self) -> list[Tensor]:
        """The number of new nodes, and that of places without an edge."""
        return [self.met[-1]] if self.taken.missing is None else [self.met[-1], self.taken.missing]


class _HopNodes(NamedTuple):
    """The nodes of a type that draw in a hop.

    Attributes:
        first: The number of the first one.
        nodes: int64 ``[n]``, store ids.
        ids: int64 ``[n]``, the dataset's.
        roots: int64 ``[n]``; None where seeds have none.
    """

    first: int
    nodes: Tensor
    ids: Tensor
    roots: Tensor | None


class DeviceWalker:
    """Chooses the nodes and edges of batches; one batch at a time.

    Args:
        graph: The graph's copy.
        tables: The graph on the host.
        sampling: Fan-outs and options.
    """

    def __init__(self, graph: DeviceGraph, tables: GraphTables, sampling: NeighborSampling) -> None:
        self._graph, self.tables, self._sampling = graph, tables, sampling
        self._device = graph.device
        self.wants_position = positions_wanted(tables, sampling.with_edge)
        self._sizes = [tables.graph.schema.node_types[t].num_nodes for t in tables.node_types]
        self.counted = Counted(self._device)
        self._numbering: list[Numbering] = [
            RootedNumbering(size) if sampling.has_roots else TableNumbering(size, self.counted) for size in self._sizes
        ]
        self._steps: dict[int, draws.Steps] = {}
        none = (0,) * sampling.num_hops
        self._fan_outs = [sampling.num_neighbors.get(edge_type, none) for edge_type in tables.edge_types]

    @property
    def tensors(self) -> list[Tensor]:
        """Its memory between batches, but for a few numbers."""
        return [own.table for own in self._numbering if isinstance(own, TableNumbering)]

    def walk(self, seeds: WalkSeeds, key: int) -> DeviceWalked:
        """Chooses the nodes and edges of a batch.

        Args:
            seeds: What it starts from.
            key: ``keys.batch_key`` of the batch.
        """
        batch = _Batch(self, seeds)
        for hop in range(self._sampling.num_hops):
            batch.hop([self._expand(r, hop, key, batch) for r in range(len(self._fan_outs))])
        walked = self._shaped(batch, batch.walked())
        batch.end(walked.nodes)
        return self._without(walked, seeds) if seeds.excluded else walked

    def to_device(self, array: NDArray[np.int64]) -> Tensor:
        """A short array of the host's, there."""
        if not len(array):  # NumPy's have strides of 0, which not every operation takes
            return torch.empty(0, dtype=torch.int64, device=self._device)
        return torch.from_numpy(np.array(array, np.int64)).to(self._device, non_blocking=True)

    # One hop along one type.

    def adjacency(self, r: int) -> DeviceAdjacency:
        """The edges of a type."""
        return self._graph.adjacency(self.tables.edge_types[r], self._sampling)

    def _expand(self, r: int, hop: int, key: int, batch: _Batch) -> _Along | None:
        """The edges that a hop takes along a type; None where there are none."""
        fan_out, edges = self._fan_outs[r][hop], self.adjacency(r)
        frontier = batch.frontiers[self.tables.frontier_types[r]]
        if fan_out == 0 or not len(frontier.nodes) or not edges.count:
            return None
        walk = fold_key(fold_key(key, hop), int(self.tables.relation_keys[r]))
        taken = self._take(r, hop, edges, frontier, fan_out, walk, batch)
        if not len(taken.place):
            return None
        n = self.tables.neighbor_types[r]
        ids = edges.indices[taken.place].long()
        return _Along(taken, ids, self._numbering[n].meet(ids, batch.roots_of(r, taken.owner)))

    def _take(self, r: int, hop: int, edges: DeviceAdjacency, frontier: _HopNodes, fan_out: int, walk: int, batch: _Batch) -> _TakenByNodes:
        begin, end = edges.ranges(frontier.nodes)
        base = None
        if edges.time is not None and batch.last is not None and frontier.roots is not None:
            starts = begin
            begin, end = batch.within(edges, begin, end, frontier.roots)
            if edges.prefix is not None:
                base = torch.where(begin > starts, edges.prefix[(begin - 1).clamp(min=0)], 0)
        if batch.seeds.variates is not None and fan_out > 0:
            return self._smallest(r, hop, edges, frontier, begin, end, fan_out, batch)
        if edges.prefix is not None:
            return self._by_weight(edges, frontier, begin, end, base, fan_out, walk)
        if fan_out < 0:
            return _all(begin, end, frontier.first)
        return self._uniform(edges, frontier, begin, end, fan_out, walk)

    def _steps_of(self, count: int) -> draws.Steps:
        if count not in self._steps:
            self._steps[count] = draws.Steps.of(count, self._device)
        return self._steps[count]

    def _generators(self, frontier: _HopNodes, walk: int) -> Tensor:
        """int64 ``[n]``: the key of each node's draws."""
        own = fold_key(walk, 0) if frontier.roots is None else draws.fold(walk, frontier.roots)
        return draws.fold(own, frontier.ids)

    def _is_latest(self, edges: DeviceAdjacency) -> bool:
        return self._sampling.temporal_strategy == "last" and edges.time is not None

    def _uniform(self, edges: DeviceAdjacency, frontier: _HopNodes, begin: Tensor, end: Tensor, fan_out: int, walk: int) -> _TakenByNodes:
        steps = self._steps_of(fan_out)
        if self._sampling.replace:
            picks = draws.pick_any(self._generators(frontier, walk), end - begin, steps, is_wide=edges.is_wide)
            return self._table(edges, frontier, begin, end, picks)
        start = torch.maximum(end - fan_out, begin)
        if self._is_latest(edges):
            return self._table(edges, frontier, start, end, steps.numbers)
        picks = draws.pick_distinct(self._generators(frontier, walk), start - begin, steps, is_wide=edges.is_wide)
        return self._table(edges, frontier, start, end, picks)

    def _table(self, edges: DeviceAdjacency, frontier: _HopNodes, start: Tensor, end: Tensor, picks: Tensor) -> _TakenByNodes:
        """Picks ``[n, k]`` of nodes' edges, counted from ``start``; those that are not before ``end`` are none."""
        place = start[:, None] + picks
        is_none = place >= end[:, None]
        owner = self.counted(frontier.first, frontier.first + len(place))[:, None].expand_as(place)
        return _TakenByNodes(place.masked_fill_(is_none, edges.count).reshape(-1), owner.reshape(-1), is_none.sum(dtype=torch.int32))

    def _by_weight(
        self, edges: DeviceAdjacency, frontier: _HopNodes, begin: Tensor, end: Tensor, base: Tensor | None, fan_out: int, walk: int
    ) -> _TakenByNodes:
        assert edges.prefix is not None
        base = torch.zeros_like(begin) if base is None else base
        weighted = draws.WeightedEdges(edges.prefix, begin, end, base, edges.rounds)
        if fan_out > 0 and self._sampling.replace:
            picks = draws.pick_weighted(self._generators(frontier, walk), weighted, self._steps_of(fan_out))
            return self._table(edges, frontier, begin, end, picks)
        if not edges.has_zeros and fan_out < 0:
            return _all(begin, end, frontier.first)
        count, steps = end - begin, torch.arange(max(fan_out, 0), device=self._device)
        picks = (count[:, None] if edges.has_zeros else steps).expand(len(begin), len(steps)).clone()
        if edges.has_zeros:
            starts = edges.ranges(frontier.nodes)[0]
            place, owner, _ = _all(begin, end)
            kept = (edges.weights(place, starts[owner]) > 0).nonzero()[:, 0]
            place, owner = place[kept], owner[kept]
            if fan_out < 0:
                return _TakenByNodes(place, owner + frontier.first, None)
            count = torch.bincount(owner, minlength=len(begin))
            within = torch.arange(len(owner), device=self._device) - (count.cumsum(0) - count)[owner]
            few = (within < fan_out).nonzero()[:, 0]
            picks[owner[few], within[few]] = (place - begin[owner])[few]
        drawing = (count > fan_out).nonzero()[:, 0]
        if self._is_latest(edges):
            picks[drawing] = (end - begin - fan_out)[drawing][:, None] + steps
        elif len(drawing):
            keys = self._generators(frontier, walk)[drawing]
            picks[drawing] = draws.pick_weighted_distinct(keys, weighted.rows(drawing), fan_out)
        return self._table(edges, frontier, begin, end, picks)

    def _smallest(
        self, r: int, hop: int, edges: DeviceAdjacency, frontier: _HopNodes, begin: Tensor, end: Tensor, fan_out: int, batch: _Batch
    ) -> _TakenByNodes:
        """LABOR: the edges whose neighbours have the smallest variates."""
        assert batch.seeds.variates is not None
        place, owner, _ = _all(begin, end)
        weights = None
        if edges.prefix is not None:
            weights = edges.weights(place, begin[owner])
            kept = (weights > 0).nonzero()[:, 0]
            place, owner, weights = place[kept], owner[kept], weights[kept]
        key, next_key, last_hash, hash_key = batch.seeds.variates.table(self.tables, hop)[r].tolist()
        ids = self.dataset_ids(self.tables.neighbor_types[r], edges.indices[place].long())
        own: Tensor | int = key
        if last_hash != NO_CHANGE:
            is_here = draws.ascending(draws.fold(hash_key, ids)) <= draws.signed(last_hash ^ (1 << 63))
            own = torch.where(is_here, draws.signed(key), draws.signed(next_key))
        ranks = draws.fold(own, ids)
        if weights is not None:
            ranks = draws.quotients(ranks, weights)
        count = torch.bincount(owner, minlength=len(begin))
        is_none = ~draws.smallest(ranks, owner, count.cumsum(0) - count, fan_out)
        return _TakenByNodes(place.masked_fill_(is_none, edges.count), owner + frontier.first, is_none.sum(dtype=torch.int32))

    def dataset_ids(self, t: int, nodes: Tensor) -> Tensor:
        """The dataset's ids of store ids."""
        table = self._graph.ids(self.tables.node_types[t])
        return nodes if table is None else table[nodes].long()

    # The edges that a batch shows.

    def _shaped(self, batch: _Batch, walked: DeviceWalked) -> DeviceWalked:
        """``docs/development/sampling.md``, "Which edges a batch shows"."""
        if self._sampling.subgraph_type == "directional":
            return walked
        edges = self._induced(batch, walked) if self._sampling.subgraph_type == "induced" else _bidirectional(walked)
        return replace(walked, num_sampled_nodes=[[] for _ in walked.nodes], edges=edges)

    def _induced(self, batch: _Batch, walked: DeviceWalked) -> list[DeviceEdges]:
        followed, found = followed_types(self._sampling, self.tables.edge_types), []
        for r, own in enumerate(walked.edges):
            edges, t, n = self.adjacency(r), self.tables.frontier_types[r], self.tables.neighbor_types[r]
            place = row = col = torch.empty(0, dtype=torch.int64, device=self._device)
            if r in followed and len(walked.nodes[t]) and len(walked.nodes[n]) and edges.count:
                taken = _all(*edges.ranges(walked.nodes[t]))
                number = self._numbering[n].find(edges.indices[taken.place].long(), batch.roots_of(r, taken.owner))
                kept = (number >= 0).nonzero()[:, 0]
                place, row, col = taken.place[kept], number[kept], taken.owner[kept]
            found.append(replace(own, row=row, col=col, position=place if self.wants_position[r] else None, num_sampled=[]))
        return found

    def _without(self, walked: DeviceWalked, seeds: WalkSeeds) -> DeviceWalked:
        """``docs/development/sampling.md``, "Edges left out"."""
        by_type: dict[EdgeType, list[ExcludedEdges]] = {}
        for group in seeds.excluded:
            by_type.setdefault(self.tables.shown_type(self.tables.edge_types[group.relation]), []).append(group)
        edges = [self._left(own, by_type.get(own.type, []), walked, seeds) for own in walked.edges]
        return replace(walked, edges=edges)

    def _left(self, edges: DeviceEdges, excluded: Sequence[ExcludedEdges], walked: DeviceWalked, seeds: WalkSeeds) -> DeviceEdges:
        if not excluded or not len(edges.row):
            return edges
        against = self.tables.graph.edge_dir == "in"
        sources, targets = (self.to_device(np.concatenate([getattr(own, end) for own in excluded])) for end in ("source", "target"))
        first, second = (sources, targets) if against else (targets, sources)
        ends = self.tables.neighbor_types[excluded[0].relation], self.tables.frontier_types[excluded[0].relation]
        size = self._sizes[ends[1]]
        pairs = walked.nodes[ends[0]][edges.row] * size + walked.nodes[ends[1]][edges.col]
        is_out = torch.isin(pairs, first * size + second)
        if seeds.roots is None:  # then a node that is a seed has no other number
            limits = [len(seeds.nodes.get(t, ())) for t in ends]
            is_out &= (edges.row < limits[0]) & (edges.col < limits[1])
        kept = (~is_out).nonzero()[:, 0]
        counts = _kept_by_hop(~is_out, edges.num_sampled)
        position = None if edges.position is None else edges.position[kept]
        return replace(edges, row=edges.row[kept], col=edges.col[kept], position=position, num_sampled=counts)


def _kept_by_hop(kept: Tensor, num_sampled: Sequence[int]) -> list[int]:
    """Counts the edges of each hop that are kept."""
    ends = torch.tensor([0, *itertools.accumulate(num_sampled)], device=kept.device)
    before = torch.cat([torch.zeros(1, dtype=torch.int64, device=kept.device), kept.cumsum(0)])
    return before[ends].diff().tolist()


def _all(begin: Tensor, end: Tensor, first: int = 0) -> _TakenByNodes:
    """Every edge of nodes; ``first`` is the number of the first one."""
    degree = end - begin
    total = int(degree.sum())
    owner = torch.repeat_interleave(degree, output_size=total)
    shift = begin - (degree.cumsum(0) - degree)
    return _TakenByNodes(torch.arange(total, device=begin.device) + shift[owner], owner + first if first else owner, None)


def _bidirectional(walked: DeviceWalked) -> list[DeviceEdges]:
    found = []
    for edges, other in with_reverses(walked.edges):
        if other is None:
            found.append(replace(edges, num_sampled=[]))
            continue
        row, col = torch.cat([edges.row, other.col]), torch.cat([edges.col, other.row])
        order = row.argsort(stable=True)
        order = order[col[order].argsort(stable=True)]
        is_new = torch.ones_like(order, dtype=torch.bool)
        rows, cols = row[order], col[order]
        is_new[1:] = (rows[1:] != rows[:-1]) | (cols[1:] != cols[:-1])
        kept = order[is_new]
        relation, position = edges.relation, edges.position
        if other is not edges:  # an edge of the reverse type has no row among this type's
            relation = position = None
        elif position is not None:
            position = torch.cat([position, position])[kept]
        found.append(replace(edges, row=row[kept], col=col[kept], relation=relation, position=position, num_sampled=[]))
    return found


class _Batch:
    """One batch while it is walked."""

    def __init__(self, walker: DeviceWalker, seeds: WalkSeeds) -> None:
        self._walker, self.seeds, self._numbering = walker, seeds, walker._numbering
        tables = walker.tables
        types = range(len(tables.node_types))
        empty = np.empty(0, np.int64)
        self._nodes = [[walker.to_device(seeds.nodes.get(t, empty))] for t in types]
        self._roots = None if seeds.roots is None else [walker.to_device(seeds.roots.get(t, empty)) for t in types]
        self.num_sampled = [[len(nodes[0])] for nodes in self._nodes]
        self._totals = [len(nodes[0]) for nodes in self._nodes]
        self.last, self.since = (self._by_root(limits) for limits in (seeds.times, seeds.since))
        self._found: list[list[tuple[Tensor, Tensor, Tensor]]] = [[] for _ in tables.edge_types]
        self._counts: list[list[int]] = [[] for _ in tables.edge_types]
        self.frontiers = [self._frontier(t, 0) for t in types]
        for t in types:
            self._numbering[t].begin(self._nodes[t][0], self.frontiers[t].roots)

    def roots_of(self, r: int, owner: Tensor) -> Tensor | None:
        """The roots of nodes by their numbers, which edges of a type lead to; None where seeds have none."""
        return None if self._roots is None else self._roots[self._walker.tables.frontier_types[r]][owner]

    def _by_root(self, limits: Mapping[int, NDArray[np.int64]] | None) -> Tensor | None:
        """int64 ``[number of roots]``: a root's limit, which its seeds share."""
        if limits is None or self.seeds.roots is None:
            return None
        found = np.zeros(1 + max((int(roots.max()) for roots in self.seeds.roots.values() if len(roots)), default=-1), np.int64)
        for t, roots in self.seeds.roots.items():
            found[roots] = limits[t]
        return self._walker.to_device(found)

    def within(self, edges: DeviceAdjacency, begin: Tensor, end: Tensor, roots: Tensor) -> tuple[Tensor, Tensor]:
        """The ranges of nodes' edges that are early enough for their roots, and not too early."""
        assert edges.time is not None and self.last is not None
        until = draws.first_above(edges.time, begin, end, self.last[roots], edges.rounds)
        if self.since is None:
            return begin, until
        since, lowest = self.since[roots], torch.iinfo(torch.int64).min
        before = draws.first_above(edges.time, begin, until, since.clamp(min=lowest + 1) - 1, edges.rounds)
        return torch.where(since == lowest, begin, before), until

    def _frontier(self, t: int, first: int) -> _HopNodes:
        nodes = self._nodes[t][-1]
        return _HopNodes(first, nodes, self._walker.dataset_ids(t, nodes), None if self._roots is None else self._roots[t][first:])

    def hop(self, found: Sequence[_Along | None]) -> None:
        """Ends a hop with what it has found along each edge type: the one place where the host waits for sizes."""
        tables = self._walker.tables
        asked = [count for own in found if own is not None for count in own.counts]
        sizes = iter(torch.stack(asked).tolist() if asked else [])
        fresh: list[list[Tensor]] = [[] for _ in tables.node_types]
        roots: list[list[Tensor]] = [[] for _ in tables.node_types]
        for r, own in enumerate(found):
            if own is None:
                self._counts[r].append(0)
                continue
            taken, n = own.taken, tables.neighbor_types[r]
            new = torch.searchsorted(own.met, self._walker.counted(1, next(sizes) + 1))
            self._counts[r].append(len(own.ids) - (0 if taken.missing is None else next(sizes)))
            self._found[r].append((own.ids, taken.owner, taken.place))
            fresh[n].append(own.ids[new])
            if self._roots is not None:
                roots[n].append(self._roots[tables.frontier_types[r]][taken.owner[new]])
        for t, nodes in enumerate(self._nodes):
            first = self._totals[t]
            nodes.append(_joined(fresh[t]) if fresh[t] else nodes[0][:0])
            if fresh[t]:
                new_roots = None
                if self._roots is not None:
                    new_roots = _joined(roots[t])
                    self._roots[t] = torch.cat([self._roots[t], new_roots])
                self._numbering[t].settle(nodes[-1], new_roots)
            self._totals[t] += len(nodes[-1])
            self.num_sampled[t].append(len(nodes[-1]))
            self.frontiers[t] = self._frontier(t, first)

    def walked(self) -> DeviceWalked:
        """Everything that was chosen."""
        walker, batch = self._walker, self._roots
        if batch is not None and self.seeds.batch_of_root is not None:
            shown = walker.to_device(self.seeds.batch_of_root)
            batch = [shown[roots] for roots in batch]
        edges = [self._edges(r, edge_type) for r, edge_type in enumerate(walker.tables.edge_types)]
        return DeviceWalked([torch.cat(nodes) for nodes in self._nodes], self.num_sampled, edges, batch)

    def _edges(self, r: int, edge_type: EdgeType) -> DeviceEdges:
        """The edges of a type that were taken, without the places where there is none."""
        walker, count, n = self._walker, sum(self._counts[r]), self._walker.tables.neighbor_types[r]
        row = col = place = torch.empty(0, dtype=torch.int64, device=walker.counted.device)
        if count:
            ids, col, place = (_joined(columns) for columns in zip(*self._found[r], strict=True))
            if count < len(ids):
                is_some = place != walker.adjacency(r).count
                kept = torch.searchsorted(is_some.cumsum(0, dtype=torch.int32), walker.counted(1, count + 1))
                ids, col, place = ids[kept], col[kept], place[kept] if walker.wants_position[r] else place
            row, col = self._numbering[n].find(ids, self.roots_of(r, col)), col.long()
        position = place if walker.wants_position[r] else None
        return DeviceEdges(walker.tables.shown_type(edge_type), r, row, col, position, self._counts[r])

    def end(self, nodes: Sequence[Tensor]) -> None:
        """Ends the batch, of which these are the nodes of each type."""
        for numbering, own in zip(self._numbering, nodes, strict=True):
            numbering.end(own)


def _joined(tensors: tuple[Tensor, ...] | list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)

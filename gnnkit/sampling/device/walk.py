"""Walks on a device: ``docs/development/sampling.md``, from "Neighbours" to "Which edges a batch shows".

Sizes come back to the host once a hop: until then neighbours lie where there is room for all that a node may draw, and a mask says which
of the places are taken. A hop that takes all neighbours asks for their number first, and draws by weight ask whether they are done.
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
from gnnkit.sampling.device.numbering import Numbering, RootedNumbering, TableNumbering
from gnnkit.sampling.graph_access import positions_wanted
from gnnkit.sampling.owners import NO_CHANGE
from gnnkit.sampling.subgraph import ExcludedEdges, WalkSeeds
from gnnkit.sampling.tables import GraphTables
from gnnkit.sampling.walkers.shape import with_reverses
from gnnkit.schema import EdgeType, is_label_edge_type


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
        place: int64 ``[e]``, their positions.
        owner: int64 ``[e]``, whose they are, counted from the first node of the hop.
        valid: Bool ``[e]``, which of them are some; None where all are.
    """

    place: Tensor
    owner: Tensor
    valid: Tensor | None


class _Along(NamedTuple):
    """The finds of a hop along one edge type; see ``_TakenByNodes`` and ``Numbered``."""

    relation: int
    taken: _TakenByNodes
    ids: Tensor
    number: Tensor
    is_first: Tensor

    @property
    def counts(self) -> list[Tensor]:
        """The number of edges, and of those that lead to new nodes."""
        valid = self.taken.valid
        return [torch.full((), len(self.ids), device=self.ids.device) if valid is None else valid.sum(), self.is_first.sum()]


def places_of(mask: Tensor, count: int) -> Tensor:
    """int64 ``[count]``: where a mask is set, of which it is known how often; the host waits for nothing."""
    target = torch.where(mask, mask.cumsum(0) - 1, count)
    places = torch.arange(len(mask), device=mask.device)
    return torch.empty(count + 1, dtype=torch.int64, device=mask.device).scatter_(0, target, places)[:count]


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
        self._numbering: list[Numbering] = [
            RootedNumbering(size) if sampling.has_roots else TableNumbering(size, self._device) for size in self._sizes
        ]
        none = (0,) * sampling.num_hops
        self._fan_outs = [sampling.num_neighbors.get(edge_type, none) for edge_type in tables.edge_types]

    def walk(self, seeds: WalkSeeds, key: int) -> DeviceWalked:
        """Chooses the nodes and edges of a batch.

        Args:
            seeds: What it starts from.
            key: ``keys.batch_key`` of the batch.
        """
        batch = _Batch(self, seeds)
        for hop in range(self._sampling.num_hops):
            batch.hop([self._expand(r, hop, key, batch) for r in range(len(self._fan_outs))])
        walked = self._shaped(batch, batch.walked(self._sampling))
        batch.end()
        return self._without(walked, seeds) if seeds.excluded else walked

    def to_device(self, array: NDArray[np.int64]) -> Tensor:
        """A short array of the host's, there."""
        return torch.from_numpy(np.array(array, np.int64)).to(self._device, non_blocking=True)

    # One hop along one type.

    def adjacency(self, r: int) -> DeviceAdjacency:
        """The edges of a type."""
        return self._graph.adjacency(self.tables.edge_types[r], self._sampling)

    def _expand(self, r: int, hop: int, key: int, batch: _Batch) -> _Along | None:
        """The edges that a hop takes along a type; None where there are none."""
        fan_out, edges = self._fan_outs[r][hop], self.adjacency(r)
        frontier = batch.frontiers[self.tables.frontier_types[r]]
        if fan_out == 0 or not len(frontier.nodes) or not len(edges.indices):
            return None
        walk = fold_key(fold_key(key, hop), int(self.tables.relation_keys[r]))
        taken = self._take(r, hop, edges, frontier, fan_out, walk, batch)
        if not len(taken.place):
            return None
        n, place = self.tables.neighbor_types[r], taken.place
        ids = edges.indices[place].long()
        roots = None if frontier.roots is None else frontier.roots[taken.owner]
        numbered = self._numbering[n].number(ids, roots, taken.valid)
        return _Along(r, taken, ids, numbered.number, numbered.is_first)

    def _take(self, r: int, hop: int, edges: DeviceAdjacency, frontier: _HopNodes, fan_out: int, walk: int, batch: _Batch) -> _TakenByNodes:
        begin, end = edges.indptr[frontier.nodes], edges.indptr[1:][frontier.nodes]
        base = None
        if edges.time is not None and batch.last is not None and frontier.roots is not None:
            starts = begin
            begin, end = batch.within(edges, begin, end, frontier.roots)
            if edges.prefix is not None:
                base = torch.where(begin > starts, edges.prefix[(begin - 1).clamp(min=0)], 0)
        if batch.seeds.variates is not None and fan_out > 0:
            return self._smallest(r, hop, edges, begin, end, fan_out, batch)
        if edges.prefix is not None:
            return self._by_weight(edges, frontier, begin, end, base, fan_out, walk)
        if fan_out < 0:
            return _all(begin, end)
        return self._uniform(edges, frontier, begin, end, fan_out, walk)

    def _generators(self, frontier: _HopNodes, walk: int) -> Tensor:
        """int64 ``[n]``: the key of each node's draws."""
        own = fold_key(walk, 0) if frontier.roots is None else draws.fold(walk, frontier.roots)
        return draws.fold(own, frontier.ids)

    def _is_latest(self, edges: DeviceAdjacency) -> bool:
        return self._sampling.temporal_strategy == "last" and edges.time is not None

    def _uniform(self, edges: DeviceAdjacency, frontier: _HopNodes, begin: Tensor, end: Tensor, fan_out: int, walk: int) -> _TakenByNodes:
        degree, steps = end - begin, torch.arange(fan_out, device=self._device)
        if self._sampling.replace:
            picks = draws.pick_any(self._generators(frontier, walk), degree, fan_out, is_wide=edges.is_wide)
            return self._table(begin, picks, (degree > 0)[:, None].expand_as(picks))
        if self._is_latest(edges):
            picks = (degree - fan_out).clamp(min=0)[:, None] + steps
        else:
            drawn = draws.pick_distinct(self._generators(frontier, walk), degree, fan_out, is_wide=edges.is_wide)
            picks = torch.where((degree <= fan_out)[:, None], steps, drawn)
        return self._table(begin, picks, steps < degree[:, None])

    def _table(self, begin: Tensor, picks: Tensor, valid: Tensor) -> _TakenByNodes:
        """Picks ``[n, k]`` of nodes' edges, some of which are taken."""
        place = torch.where(valid, begin[:, None] + picks, 0).reshape(-1)
        owner = torch.arange(len(begin), device=self._device)[:, None].expand_as(picks).reshape(-1)
        return _TakenByNodes(place, owner, valid.reshape(-1))

    def _by_weight(
        self, edges: DeviceAdjacency, frontier: _HopNodes, begin: Tensor, end: Tensor, base: Tensor | None, fan_out: int, walk: int
    ) -> _TakenByNodes:
        assert edges.prefix is not None
        base = torch.zeros_like(begin) if base is None else base
        weighted = draws.WeightedEdges(edges.prefix, begin, end, base, edges.rounds)
        if fan_out > 0 and self._sampling.replace:
            picks = draws.pick_weighted(self._generators(frontier, walk), weighted, fan_out)
            return self._table(begin, picks, (weighted.total > 0)[:, None].expand_as(picks))
        if not edges.has_zeros and fan_out < 0:
            return _all(begin, end)
        count, steps = end - begin, torch.arange(max(fan_out, 0), device=self._device)
        picks = steps.expand(len(begin), -1).clone()
        if edges.has_zeros:
            starts = edges.indptr[frontier.nodes]
            place, owner, _ = _all(begin, end)
            kept = (edges.weights(place, starts[owner]) > 0).nonzero()[:, 0]
            place, owner = place[kept], owner[kept]
            if fan_out < 0:
                return _TakenByNodes(place, owner, None)
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
        return self._table(begin, picks, steps < count[:, None])

    def _smallest(self, r: int, hop: int, edges: DeviceAdjacency, begin: Tensor, end: Tensor, fan_out: int, batch: _Batch) -> _TakenByNodes:
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
        return _TakenByNodes(place, owner, draws.smallest(ranks, owner, count.cumsum(0) - count, fan_out))

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
        followed = {r for r, fan_outs in enumerate(self._fan_outs) if any(fan_outs)}
        followed = followed or {r for r, edge_type in enumerate(self.tables.edge_types) if not is_label_edge_type(edge_type)}
        found = []
        for r, own in enumerate(walked.edges):
            edges, t, n = self.adjacency(r), self.tables.frontier_types[r], self.tables.neighbor_types[r]
            place = row = col = torch.empty(0, dtype=torch.int64, device=self._device)
            if r in followed and len(walked.nodes[t]) and len(walked.nodes[n]) and len(edges.indices):
                taken = _all(edges.indptr[walked.nodes[t]], edges.indptr[1:][walked.nodes[t]])
                roots = None if batch.roots is None else batch.roots[t][taken.owner]
                number = self._numbering[n].find(edges.indices[taken.place].long(), roots)
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


def _all(begin: Tensor, end: Tensor) -> _TakenByNodes:
    """Every edge of nodes."""
    degree = end - begin
    total = int(degree.sum())
    owner = torch.repeat_interleave(degree, output_size=total)
    shift = begin - (degree.cumsum(0) - degree)
    return _TakenByNodes(torch.arange(total, device=begin.device) + shift[owner], owner, None)


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
        self._roots = None if seeds.roots is None else [[walker.to_device(seeds.roots.get(t, empty))] for t in types]
        self.num_sampled = [[len(nodes[0])] for nodes in self._nodes]
        self._totals = [len(nodes[0]) for nodes in self._nodes]
        self.last, self.since = (self._by_root(limits) for limits in (seeds.times, seeds.since))
        self._edges: list[list[tuple[Tensor, Tensor, Tensor]]] = [[] for _ in tables.edge_types]
        self._counts: list[list[int]] = [[] for _ in tables.edge_types]
        self.frontiers = [self._frontier(t, 0) for t in types]
        for t in types:
            self._numbering[t].begin(self._nodes[t][0], None if self._roots is None else self._roots[t][0])

    @property
    def roots(self) -> list[Tensor] | None:
        """The roots of the nodes of each type; None where seeds have none."""
        return None if self._roots is None else [torch.cat(roots) for roots in self._roots]

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
        ids = self._walker.dataset_ids(t, nodes)
        return _HopNodes(first, nodes, ids, None if self._roots is None else self._roots[t][-1])

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
            num_edges, num_new = next(sizes), next(sizes)
            frontier, n = self.frontiers[tables.frontier_types[r]], tables.neighbor_types[r]
            row, owner, place = own.number, own.taken.owner, own.taken.place
            new = places_of(own.is_first, num_new)
            fresh[n].append(own.ids[new])
            if frontier.roots is not None:
                roots[n].append(frontier.roots[owner[new]])
            if num_edges < len(row):
                assert own.taken.valid is not None
                kept = places_of(own.taken.valid, num_edges)
                row, owner = row[kept], owner[kept]
                place = place[kept] if self._walker.wants_position[r] else place
            self._edges[r].append((row, owner + frontier.first, place))
            self._counts[r].append(num_edges)
        for t, nodes in enumerate(self._nodes):
            first = self._totals[t]
            nodes.append(torch.cat(fresh[t]) if fresh[t] else nodes[0][:0])
            if self._roots is not None:
                self._roots[t].append(torch.cat(roots[t]) if roots[t] else nodes[-1])
            count = len(nodes[-1])
            self._totals[t] += count
            self.num_sampled[t].append(count)
            self._numbering[t].settle(self._totals[t])
            self.frontiers[t] = self._frontier(t, first)

    def walked(self, sampling: NeighborSampling) -> DeviceWalked:
        """Everything that was chosen."""
        walker, edges = self._walker, []
        for r, edge_type in enumerate(walker.tables.edge_types):
            none = [torch.empty(0, dtype=torch.int64, device=walker._device)] * 3
            row, col, place = (torch.cat(columns) for columns in zip(*self._edges[r], strict=True)) if self._edges[r] else none
            position = place if walker.wants_position[r] else None
            edges.append(DeviceEdges(walker.tables.shown_type(edge_type), r, row, col, position, self._counts[r]))
        batch = self.roots
        if batch is not None and self.seeds.batch_of_root is not None:
            shown = walker.to_device(self.seeds.batch_of_root)
            batch = [shown[roots] for roots in batch]
        return DeviceWalked([torch.cat(nodes) for nodes in self._nodes], self.num_sampled, edges, batch)

    def end(self) -> None:
        """Ends the batch."""
        for numbering, nodes in zip(self._numbering, self._nodes, strict=True):
            numbering.end(torch.cat(nodes))

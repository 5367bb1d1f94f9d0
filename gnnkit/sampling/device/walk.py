"""Walks on a device: ``docs/development/sampling.md``, from "Neighbours" to "Which edges a batch shows".

Sizes come back to the host once a hop: neighbours lie where there is room for all that a node may draw, and what is taken of it is picked
out once the batch is walked. A hop that takes all neighbours asks for their number first, and draws by weight ask whether they are done.

Where neither is so, sizes come back once a batch from the fourth one on: ``RoomyWalk`` leaves room for a little more than the batches
before have taken, so that nothing of the walk depends on its sizes, and a CUDA device does all of it at one call.
"""

# Graphs of torch.cuda have no type hints.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

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

_NO_IDS: NDArray[np.int64] = np.empty(0, np.int64)


@dataclass
class DeviceEdges:
    """The counterpart of ``WalkedEdges``; tensors are int64 on the device, and ``ends`` ``[2, e]`` has rows and columns."""

    type: EdgeType
    relation: int | None
    ends: Tensor
    position: Tensor | None
    num_sampled: list[int]

    @property
    def row(self) -> Tensor:
        """int64 ``[e]``."""
        return self.ends[0]

    @property
    def col(self) -> Tensor:
        """int64 ``[e]``."""
        return self.ends[1]


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
        owner: int32 ``[e]``, the numbers of the nodes.
        missing: int64, at how many places there is none; None where there is one everywhere.
    """

    place: Tensor
    owner: Tensor
    missing: Tensor | None

    def numbered(self, frontier: _HopNodes) -> _TakenByNodes:
        """The same with the numbers of a hop's nodes; here they are counted from 0."""
        return self._replace(owner=frontier.numbers[self.owner])


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
        numbers: int32 ``[n]``; -1 where there is none, but room for one.
        nodes: int64 ``[n]``, store ids.
        ids: int64 ``[n]``, the dataset's.
        roots: int64 ``[n]``; None where seeds have none.
    """

    numbers: Tensor
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
        self.types = range(len(tables.node_types))
        self.shown_types = [tables.shown_type(edge_type) for edge_type in tables.edge_types]
        self.wants_position = positions_wanted(tables, sampling.with_edge)
        self.sizes = [tables.graph.schema.node_types[t].num_nodes for t in tables.node_types]
        self.counted = Counted(self._device)
        self.numbering: list[Numbering] = [
            RootedNumbering(size) if sampling.has_roots else TableNumbering(size, self.counted) for size in self.sizes
        ]
        self._steps: dict[int, draws.Steps] = {}
        none = (0,) * sampling.num_hops
        self._fan_outs = [sampling.num_neighbors.get(edge_type, none) for edge_type in tables.edge_types]
        self._roomy = RoomyWalks()

    @property
    def tensors(self) -> list[Tensor]:
        """Its memory between batches, but for a few numbers."""
        return [own.table for own in self.numbering if isinstance(own, TableNumbering)]

    def walk(self, seeds: WalkSeeds, key: int) -> DeviceWalked:
        """Chooses the nodes and edges of a batch.

        Args:
            seeds: What it starts from.
            key: ``keys.batch_key`` of the batch.
        """
        walked = self._roomy.walk(self, seeds, key)
        if walked is None:
            batch = _Batch(self, seeds, key)
            self.follow(batch)
            walked = batch.walked()
            if self.has_fixed_shapes:
                self._roomy.learn(batch)
            if self._sampling.subgraph_type == "induced":
                walked = self._induced(batch, walked)
            batch.end(walked.nodes)
        if self._sampling.subgraph_type == "bidirectional":
            walked = _bidirectional(walked)
        return self._without(walked, seeds) if seeds.excluded else walked

    def close(self) -> None:
        """Gives up what the device was told of walks."""
        self._roomy.forget()

    def lose_numbers(self) -> None:
        """Forgets the numbers of a batch that was broken off."""
        for own in self.numbering:
            own.lose()

    def follow(self, batch: _Batch) -> None:
        """Does the hops of a batch."""
        for hop in range(self._sampling.num_hops):
            batch.hop([self._expand(r, hop, batch) for r in range(len(self._fan_outs))])

    @property
    def has_fixed_shapes(self) -> bool:
        """Whether what a hop looks at depends on fan-outs and on the nodes that it begins with, and on nothing else."""
        sampling = self._sampling
        by_weight = sampling.weight is not None and not sampling.replace
        return (
            not (by_weight or sampling.has_roots or sampling.subgraph_type == "induced")
            and min(itertools.chain(*self._fan_outs), default=0) >= 0
        )

    def to_device(self, array: NDArray[np.int64]) -> Tensor:
        """A short array of the host's, there."""
        if not len(array):  # NumPy's have strides of 0, which not every operation takes
            return torch.empty(0, dtype=torch.int64, device=self._device)
        return torch.from_numpy(np.array(array, np.int64)).to(self._device, non_blocking=True)

    # One hop along one type.

    def adjacency(self, r: int) -> DeviceAdjacency:
        """The edges of a type."""
        return self._graph.adjacency(self.tables.edge_types[r], self._sampling)

    def _expand(self, r: int, hop: int, batch: _Batch) -> _Along | None:
        """The edges that a hop takes along a type; None where there are none."""
        fan_out, edges = self._fan_outs[r][hop], self.adjacency(r)
        frontier = batch.frontiers[self.tables.frontier_types[r]]
        if fan_out == 0 or not len(frontier.nodes) or not edges.count:
            return None
        taken = self._take(r, hop, edges, frontier, fan_out, batch)
        if not len(taken.place):
            return None
        n = self.tables.neighbor_types[r]
        ids = edges.indices[taken.place].long()
        return _Along(taken, ids, self.numbering[n].meet(ids, batch.roots_of(r, taken.owner)))

    def key(self, key: int, hop: int, r: int) -> int:
        """The key of a hop along a type; where seeds have no roots, the one of the only root."""
        walk = fold_key(fold_key(key, hop), int(self.tables.relation_keys[r]))
        return walk if self._sampling.has_roots else fold_key(walk, 0)

    def _take(self, r: int, hop: int, edges: DeviceAdjacency, frontier: _HopNodes, fan_out: int, batch: _Batch) -> _TakenByNodes:
        begin, end = edges.ranges(frontier.nodes)
        base = None
        if edges.time is not None and batch.last is not None and frontier.roots is not None:
            starts = begin
            begin, end = batch.within(edges, begin, end, frontier.roots)
            if edges.prefix is not None:
                base = torch.where(begin > starts, edges.prefix[(begin - 1).clamp(min=0)], 0)
        if batch.variates is not None and fan_out > 0:
            return self._smallest(r, hop, edges, frontier, begin, end, fan_out, batch)
        if edges.prefix is not None:
            return self._by_weight(edges, frontier, begin, end, base, fan_out, batch.key(hop, r))
        if fan_out < 0:
            return _all(begin, end).numbered(frontier)
        return self._uniform(edges, frontier, begin, end, fan_out, batch.key(hop, r))

    def _steps_of(self, count: int) -> draws.Steps:
        if count not in self._steps:
            self._steps[count] = draws.Steps.of(count, self._device)
        return self._steps[count]

    def _generators(self, frontier: _HopNodes, key: int | Tensor) -> Tensor:
        """int64 ``[n]``: the key of each node's draws."""
        return draws.fold(key if frontier.roots is None else draws.fold(key, frontier.roots), frontier.ids)

    def _is_latest(self, edges: DeviceAdjacency) -> bool:
        return self._sampling.temporal_strategy == "last" and edges.time is not None

    def _uniform(
        self, edges: DeviceAdjacency, frontier: _HopNodes, begin: Tensor, end: Tensor, fan_out: int, key: int | Tensor
    ) -> _TakenByNodes:
        steps = self._steps_of(fan_out)
        if self._sampling.replace:
            drawn = draws.draws(self._generators(frontier, key)[:, None], steps.addends)
            picks = draws.bounded(drawn, (end - begin)[:, None], is_wide=edges.is_wide)
            return self._table(edges, frontier, begin, end, picks)
        start = torch.maximum(end - fan_out, begin)
        if self._is_latest(edges):
            return self._table(edges, frontier, start, end, steps.numbers)
        picks = draws.pick_distinct(self._generators(frontier, key), start - begin, steps, is_wide=edges.is_wide)
        return self._table(edges, frontier, start, end, picks)

    def _table(self, edges: DeviceAdjacency, frontier: _HopNodes, start: Tensor, end: Tensor, picks: Tensor) -> _TakenByNodes:
        """Picks ``[n, k]`` of nodes' edges, counted from ``start``; those that are not before ``end`` are none."""
        place = start[:, None] + picks
        is_none = place >= end[:, None]
        owner = frontier.numbers[:, None].expand_as(place)
        return _TakenByNodes(place.masked_fill_(is_none, edges.count).reshape(-1), owner.reshape(-1), is_none.sum(dtype=torch.int32))

    def _by_weight(
        self, edges: DeviceAdjacency, frontier: _HopNodes, begin: Tensor, end: Tensor, base: Tensor | None, fan_out: int, key: int | Tensor
    ) -> _TakenByNodes:
        assert edges.prefix is not None
        base = torch.zeros_like(begin) if base is None else base
        weighted = draws.WeightedEdges(edges.prefix, begin, end, base, edges.rounds)
        if fan_out > 0 and self._sampling.replace:
            picks = draws.pick_weighted(self._generators(frontier, key), weighted, self._steps_of(fan_out))
            return self._table(edges, frontier, begin, end, picks)
        if not edges.has_zeros and fan_out < 0:
            return _all(begin, end).numbered(frontier)
        count, steps = end - begin, torch.arange(max(fan_out, 0), device=self._device)
        picks = (count[:, None] if edges.has_zeros else steps).expand(len(begin), len(steps)).clone()
        if edges.has_zeros:
            starts = edges.ranges(frontier.nodes)[0]
            place, owner, _ = _all(begin, end)
            kept = (edges.weights(place, starts[owner]) > 0).nonzero()[:, 0]
            place, owner = place[kept], owner[kept]
            if fan_out < 0:
                return _TakenByNodes(place, owner, None).numbered(frontier)
            count = torch.bincount(owner, minlength=len(begin))
            within = torch.arange(len(owner), device=self._device) - (count.cumsum(0) - count)[owner]
            few = (within < fan_out).nonzero()[:, 0]
            picks[owner[few], within[few]] = (place - begin[owner])[few]
        drawing = (count > fan_out).nonzero()[:, 0]
        if self._is_latest(edges):
            picks[drawing] = (end - begin - fan_out)[drawing][:, None] + steps
        elif len(drawing):
            keys = self._generators(frontier, key)[drawing]
            picks[drawing] = draws.pick_weighted_distinct(keys, weighted.rows(drawing), fan_out)
        return self._table(edges, frontier, begin, end, picks)

    def _smallest(
        self, r: int, hop: int, edges: DeviceAdjacency, frontier: _HopNodes, begin: Tensor, end: Tensor, fan_out: int, batch: _Batch
    ) -> _TakenByNodes:
        """LABOR: the edges whose neighbours have the smallest variates."""
        assert batch.variates is not None
        place, owner, _ = _all(begin, end)
        weights = None
        if edges.prefix is not None:
            weights = edges.weights(place, begin[owner])
            kept = (weights > 0).nonzero()[:, 0]
            place, owner, weights = place[kept], owner[kept], weights[kept]
        key, next_key, last_hash, hash_key = batch.variates.table(self.tables, hop)[r].tolist()
        ids = self.dataset_ids(self.tables.neighbor_types[r], edges.indices[place].long())
        own = torch.full((), draws.signed(key), device=self._device)
        if last_hash != NO_CHANGE:
            is_here = draws.fold(hash_key, ids) ^ draws.signed(1 << 63) <= draws.signed(last_hash ^ (1 << 63))  # of unsigned ones
            own = torch.where(is_here, own, draws.signed(next_key))
        ranks = draws.variates(own, ids, is_wide=self.sizes[self.tables.neighbor_types[r]] > 1 << 32)
        if weights is not None:
            ranks = ranks.float() / weights.float()
        count = torch.bincount(owner, minlength=len(begin))
        is_none = ~draws.smallest(ranks, owner, count.cumsum(0) - count, fan_out)
        return _TakenByNodes(place.masked_fill_(is_none, edges.count), owner, is_none.sum(dtype=torch.int32)).numbered(frontier)

    def dataset_ids(self, t: int, nodes: Tensor) -> Tensor:
        """The dataset's ids of store ids."""
        table = self._graph.ids(self.tables.node_types[t])
        return nodes if table is None else table[nodes.clamp(max=len(table) - 1)].long()

    # The edges that a batch shows.

    def _induced(self, batch: _Batch, walked: DeviceWalked) -> DeviceWalked:
        """All edges between the nodes of a batch that is walked: ``docs/development/sampling.md``, "Which edges a batch shows"."""
        followed, found = followed_types(self._sampling, self.tables.edge_types), []
        for r, own in enumerate(walked.edges):
            edges, t, n = self.adjacency(r), self.tables.frontier_types[r], self.tables.neighbor_types[r]
            place = row = col = torch.empty(0, dtype=torch.int64, device=self._device)
            if r in followed and len(walked.nodes[t]) and len(walked.nodes[n]) and edges.count:
                taken = _all(*edges.ranges(walked.nodes[t]))
                number = self.numbering[n].find(edges.indices[taken.place].long(), batch.roots_of(r, taken.owner))
                kept = (number >= 0).nonzero()[:, 0]
                place, row, col = taken.place[kept], number[kept], taken.owner[kept]
            position = place if self.wants_position[r] else None
            found.append(replace(own, ends=torch.stack([row, col]), position=position, num_sampled=[]))
        return replace(walked, num_sampled_nodes=[[] for _ in walked.nodes], edges=found)

    def _without(self, walked: DeviceWalked, seeds: WalkSeeds) -> DeviceWalked:
        """``docs/development/sampling.md``, "Edges left out"."""
        by_type: dict[EdgeType, list[ExcludedEdges]] = {}
        for group in seeds.excluded:
            by_type.setdefault(self.tables.shown_type(self.tables.edge_types[group.relation]), []).append(group)
        edges = [self._left(own, by_type.get(own.type, []), walked, seeds) for own in walked.edges]
        return replace(walked, edges=edges)

    def _left(self, edges: DeviceEdges, excluded: Sequence[ExcludedEdges], walked: DeviceWalked, seeds: WalkSeeds) -> DeviceEdges:
        if not excluded or not edges.ends.shape[1]:
            return edges
        against = self.tables.graph.edge_dir == "in"
        sources, targets = (self.to_device(np.concatenate([getattr(own, end) for own in excluded])) for end in ("source", "target"))
        first, second = (sources, targets) if against else (targets, sources)
        ends = self.tables.neighbor_types[excluded[0].relation], self.tables.frontier_types[excluded[0].relation]
        size = self.sizes[ends[1]]
        pairs = walked.nodes[ends[0]][edges.row] * size + walked.nodes[ends[1]][edges.col]
        is_out = torch.isin(pairs, first * size + second)
        if seeds.roots is None:  # then a node that is a seed has no other number
            limits = [len(seeds.nodes.get(t, ())) for t in ends]
            is_out &= (edges.row < limits[0]) & (edges.col < limits[1])
        kept = (~is_out).nonzero()[:, 0]
        counts = _kept_by_hop(~is_out, edges.num_sampled)
        position = None if edges.position is None else edges.position[kept]
        return replace(edges, ends=edges.ends[:, kept], position=position, num_sampled=counts)


def _kept_by_hop(kept: Tensor, num_sampled: Sequence[int]) -> list[int]:
    """Counts the edges of each hop that are kept."""
    ends = torch.tensor([0, *itertools.accumulate(num_sampled)], device=kept.device)
    before = torch.cat([torch.zeros(1, dtype=torch.int64, device=kept.device), kept.cumsum(0)])
    return before[ends].diff().tolist()


def _all(begin: Tensor, end: Tensor) -> _TakenByNodes:
    """Every edge of nodes, whose numbers are 0, 1, 2 and so on."""
    degree = end - begin
    total = int(degree.sum())
    owner = torch.repeat_interleave(degree, output_size=total)
    shift = begin - (degree.cumsum(0) - degree)
    return _TakenByNodes(torch.arange(total, device=begin.device) + shift[owner], owner, None)


def _bidirectional(walked: DeviceWalked) -> DeviceWalked:
    """Every edge in both directions, once: ``docs/development/sampling.md``, "Which edges a batch shows"."""
    found = []
    for edges, other in with_reverses(walked.edges):
        if other is None:
            found.append(replace(edges, num_sampled=[]))
            continue
        row, col = torch.cat([edges.ends, other.ends.flip(0)], 1)
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
        ends = torch.stack([row[kept], col[kept]])
        found.append(replace(edges, relation=relation, ends=ends, position=position, num_sampled=[]))
    return replace(walked, num_sampled_nodes=[[] for _ in walked.nodes], edges=found)


class _Batch:
    """One batch while it is walked.

    Args:
        walker: Who walks it.
        seeds: What it starts from.
        key: ``keys.batch_key`` of the batch.
    """

    def __init__(self, walker: DeviceWalker, seeds: WalkSeeds, key: int) -> None:
        self._walker, self._key, self._seeds, self.variates = walker, key, seeds, seeds.variates
        self._roots = None if seeds.roots is None else [walker.to_device(seeds.roots.get(t, _NO_IDS)) for t in walker.types]
        self.last, self.since = (self._by_root(limits) for limits in (seeds.times, seeds.since))
        self._begin([walker.to_device(seeds.nodes.get(t, _NO_IDS)) for t in walker.types])

    def _begin(self, seeds: Sequence[Tensor]) -> None:
        """Begins with its seeds of each type."""
        walker = self._walker
        self._nodes = [[nodes] for nodes in seeds]
        self.num_sampled = [[len(nodes)] for nodes in seeds]
        self._totals = [len(nodes) for nodes in seeds]
        self._found: list[list[tuple[Tensor, Tensor, Tensor]]] = [[] for _ in walker.tables.edge_types]
        self._counts: list[list[int]] = [[] for _ in walker.tables.edge_types]
        self.num_new: list[int] = []  # hop after hop, of each edge type
        self.frontiers = [self._frontier(t, walker.counted(0, len(nodes))) for t, nodes in enumerate(seeds)]
        for t, nodes in enumerate(seeds):
            walker.numbering[t].begin(nodes, self.frontiers[t].roots)

    def key(self, hop: int, r: int) -> int | Tensor:
        """The key of a hop along a type, as ``DeviceWalker.key`` has it."""
        return self._walker.key(self._key, hop, r)

    def roots_of(self, r: int, owner: Tensor) -> Tensor | None:
        """The roots of nodes by their numbers, which edges of a type lead to; None where seeds have none."""
        return None if self._roots is None else self._roots[self._walker.tables.frontier_types[r]][owner]

    def _by_root(self, limits: Mapping[int, NDArray[np.int64]] | None) -> Tensor | None:
        """int64 ``[number of roots]``: a root's limit, which its seeds share."""
        by_type = self._seeds.roots
        if limits is None or by_type is None:
            return None
        found = np.zeros(1 + max((int(roots.max()) for roots in by_type.values() if len(roots)), default=-1), np.int64)
        for t, roots in by_type.items():
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

    def _frontier(self, t: int, numbers: Tensor) -> _HopNodes:
        """The nodes of a type that were found last."""
        nodes = self._nodes[t][-1]
        roots = None if self._roots is None else self._roots[t][len(self._roots[t]) - len(nodes) :]
        return _HopNodes(numbers, nodes, self._walker.dataset_ids(t, nodes), roots)

    def hop(self, found: Sequence[_Along | None]) -> None:
        """Ends a hop with what it has found along each edge type: the one place where the host waits for sizes."""
        walker, tables = self._walker, self._walker.tables
        asked = [count for own in found if own is not None for count in own.counts]
        sizes = iter(torch.stack(asked).tolist() if asked else [])
        fresh: list[list[Tensor]] = [[] for _ in tables.node_types]
        roots: list[list[Tensor]] = [[] for _ in tables.node_types]
        for r, own in enumerate(found):
            if own is None:
                self._counts[r].append(0)
                self.num_new.append(0)
                continue
            taken, n = own.taken, tables.neighbor_types[r]
            self.num_new.append(next(sizes))
            new = torch.searchsorted(own.met, walker.counted(1, self.num_new[-1] + 1))
            self._counts[r].append(len(own.ids) - (0 if taken.missing is None else next(sizes)))
            self._found[r].append((own.ids, taken.owner, taken.place))
            fresh[n].append(own.ids[new])
            if self._roots is not None:
                roots[n].append(self._roots[tables.frontier_types[r]][taken.owner[new]])
        for t, nodes in enumerate(self._nodes):
            nodes.append(_joined(fresh[t]) if fresh[t] else nodes[0][:0])
            first, self._totals[t] = self._totals[t], self._totals[t] + len(nodes[-1])
            numbers = walker.counted(first, self._totals[t])
            if fresh[t]:
                new_roots = None
                if self._roots is not None:
                    new_roots = _joined(roots[t])
                    self._roots[t] = torch.cat([self._roots[t], new_roots])
                walker.numbering[t].settle(nodes[-1], new_roots, numbers)
            self.num_sampled[t].append(len(nodes[-1]))
            self.frontiers[t] = self._frontier(t, numbers)

    @property
    def sizes(self) -> list[int]:
        """The numbers that ``_Rooms`` have room for: seeds of each type, new nodes hop after hop, and edges of each type."""
        return [*(own[0] for own in self.num_sampled), *self.num_new, *map(sum, self._counts)]

    def walked(self) -> DeviceWalked:
        """Everything that was chosen."""
        walker, batch = self._walker, self._roots
        if batch is not None and self._seeds.batch_of_root is not None:
            shown = walker.to_device(self._seeds.batch_of_root)
            batch = [shown[roots] for roots in batch]
        edges = [self._edges(r, sum(counts)) for r, counts in enumerate(self._counts)]
        return DeviceWalked([torch.cat(nodes) for nodes in self._nodes], self.num_sampled, edges, batch)

    def _edges(self, r: int, count: int, *, most: int | None = None) -> DeviceEdges:
        """The edges of a type that were taken, without the places where there is none.

        Args:
            r: The type.
            count: How many there are.
            most: Room for how many there is, where that is not known; behind them stands anything.
        """
        walker, n, found = self._walker, self._walker.tables.neighbor_types[r], self._found[r]
        row = col = place = torch.empty(0, dtype=torch.int64, device=walker.counted.device)
        if found and (count or most):
            ids, col, place = (_joined(columns) for columns in zip(*found, strict=True))
            if most is not None or count < len(ids):
                is_some = place != walker.adjacency(r).count
                kept = torch.searchsorted(is_some.cumsum(0, dtype=torch.int32), walker.counted(1, (most or count) + 1))
                if most is not None:
                    kept.clamp_(max=len(ids) - 1)
                ids, col, place = ids[kept], col[kept], place[kept] if walker.wants_position[r] else place
            row, col = walker.numbering[n].find(ids, self.roots_of(r, col)), col.long()
        position = place if walker.wants_position[r] else None
        return DeviceEdges(walker.shown_types[r], r, torch.stack([row, col]), position, self._counts[r])

    def end(self, nodes: Sequence[Tensor]) -> None:
        """Ends the batch, of which these are the nodes of each type."""
        for numbering, own in zip(self._walker.numbering, nodes, strict=True):
            numbering.end(own)


# A walk with room -----------------------------------------------------------------------------------------------------------------

# Batches whose sizes are looked at before there is room for the next ones, and how many of the latest count.
_LOOKED_AT, _MOST_LOOKED_AT = 3, 32
# How many times the difference between what such batches took there is room for beside the most that they took. Of three whose sizes are
# normal, the most and twice the difference are four standard deviations above the mean; a batch that takes more is walked again.
_ROOM = 2


class _Rooms(NamedTuple):
    """Room for what a batch takes.

    Attributes:
        seeds: Of each node type.
        new: Nodes that are new, of each hop along each edge type.
        edges: Of each edge type.
    """

    seeds: list[int]
    new: list[list[int]]
    edges: list[int]

    @classmethod
    def of(cls, sizes: Sequence[Sequence[int]], num_types: int, num_edge_types: int) -> _Rooms:
        """Room for what each of some batches took, see ``_Batch.sizes``, and for more of what varies."""
        rooms = [max(own) + _ROOM * (max(own) - min(own)) for own in zip(*sizes, strict=True)]
        seeds, rest = rooms[:num_types], rooms[num_types:]
        hops = [rest[first : first + num_edge_types] for first in range(0, len(rest), num_edge_types)]
        return cls(seeds, hops[:-1], hops[-1])


class _RoomyBatch(_Batch):
    """A batch that has room for more than it takes: its sizes stay on the device, where nothing depends on them.

    Args:
        walker: Who walks it.
        rooms: How much room.
        numbers: int64 on the device: keys of hops along each type, numbers of seeds and seeds of each type; see ``RoomyWalk``.
    """

    def __init__(self, walker: DeviceWalker, rooms: _Rooms, numbers: Tensor) -> None:
        self._walker, self._rooms = walker, rooms
        self._roots = self.last = self.since = self.variates = None
        keys, counts, *seeds = numbers.split([len(rooms.new) * len(rooms.edges), len(rooms.seeds), *rooms.seeds])
        self._keys = keys.view(len(rooms.new), len(rooms.edges))
        self._begin(seeds)
        self._ends = list(counts.int().unbind())  # how many nodes of each type have numbers
        self._segments: list[list[Tensor]] = [[nodes] for nodes in seeds]
        self._asked: list[Tensor] = []

    @override
    def key(self, hop: int, r: int) -> int | Tensor:
        key: Tensor = self._keys[hop, r]
        return key

    @override
    def hop(self, found: Sequence[_Along | None]) -> None:
        """Ends a hop: what is new lies at the beginning of the room for it, and no node behind it."""
        walker, rooms = self._walker, self._rooms.new[len(self._counts[0])]
        fresh: list[list[Tensor]] = [[] for _ in walker.types]
        numbers: list[list[Tensor]] = [[] for _ in walker.types]
        for r, own in enumerate(found):
            self._counts[r].append(0 if own is None else len(own.ids))
            if own is None:
                continue
            n, count = walker.tables.neighbor_types[r], own.met[-1]
            self._asked += own.counts
            self._found[r].append((own.ids, own.taken.owner, own.taken.place))
            new = torch.searchsorted(own.met, walker.counted(1, rooms[r] + 1)).clamp_(max=len(own.ids) - 1)
            is_new = walker.counted(0, rooms[r]) < count
            fresh[n].append(torch.where(is_new, own.ids[new], walker.sizes[n]))
            numbers[n].append(walker.counted(0, rooms[r]) + self._ends[n])
            self._ends[n] = self._ends[n] + count
        for t, nodes in enumerate(self._nodes):
            self._segments[t] += fresh[t]
            nodes.append(_joined(fresh[t]) if fresh[t] else nodes[0][:0])
            own_numbers = _joined(numbers[t]) if fresh[t] else walker.counted(0, 0)
            if fresh[t]:
                walker.numbering[t].settle(nodes[-1], None, own_numbers)
            self.frontiers[t] = self._frontier(t, own_numbers)

    def finish(self) -> Tensor:
        """Ends the walk; int32 on the device, the sizes that are not known."""
        self._edges_there = [self._edges(r, 0, most=most) for r, most in enumerate(self._rooms.edges)]
        self.end([torch.cat(nodes) for nodes in self._nodes])
        return torch.stack(self._asked) if self._asked else self._walker.counted(0, 0)

    def taken(self, seeds: Sequence[int], sizes: Sequence[int]) -> DeviceWalked | None:
        """The chosen nodes and edges, in memory of their own; None where there was too little room.

        Args:
            seeds: The number of seeds of each type.
            sizes: What ``finish`` has found.
        """
        walker, asked = self._walker, iter(sizes)
        segments = [iter(own) for own in self._segments]
        nodes = [[next(own)[:count]] for own, count in zip(segments, seeds, strict=True)]
        num_sampled, num_edges = [[count] for count in seeds], [list(own) for own in self._counts]
        for hop, rooms in enumerate(self._rooms.new):
            for own_counts in num_sampled:
                own_counts.append(0)
            for r, n in enumerate(walker.tables.neighbor_types):
                if not num_edges[r][hop]:
                    continue
                count = next(asked)
                if count > rooms[r]:
                    return None
                nodes[n].append(next(segments[n])[:count])
                num_sampled[n][hop + 1] += count
                num_edges[r][hop] -= next(asked)
        edges = []
        for own, counts, room in zip(self._edges_there, num_edges, self._rooms.edges, strict=True):
            if sum(counts) > room:
                return None
            ends = own.ends[:, : sum(counts)].clone(memory_format=torch.contiguous_format)
            position = None if own.position is None else own.position[: sum(counts)].clone()
            edges.append(DeviceEdges(own.type, own.relation, ends, position, counts))
        return DeviceWalked([torch.cat(own) for own in nodes], num_sampled, edges, None)


class RoomyWalk:
    """A walk with room for what batches take. A CUDA device is told of it once, and does it at one call from then on.

    Args:
        walker: Who walks.
        rooms: How much room there is.
    """

    def __init__(self, walker: DeviceWalker, rooms: _Rooms) -> None:
        self._walker, self._rooms = walker, rooms
        num_keys, num_types = len(rooms.new) * len(rooms.edges), len(rooms.seeds)
        self._numbers = np.zeros(num_keys + num_types + sum(rooms.seeds), np.int64)
        self._keys, self._counts, *self._seeds = np.split(self._numbers, np.cumsum([num_keys, num_types, *rooms.seeds])[:-1])
        self._there = torch.empty(len(self._numbers), dtype=torch.int64, device=walker.counted.device)
        self._batch: _RoomyBatch | None = None
        self._graph: torch.cuda.CUDAGraph | None = None

    def has_room(self, seeds: Sequence[int]) -> bool:
        """Whether there is room for so many seeds of each type; anything may follow them."""
        return all(count <= room for count, room in zip(seeds, self._rooms.seeds, strict=False))

    def walk(self, seeds: WalkSeeds, key: int) -> DeviceWalked | None:
        """Chooses the nodes and edges of a batch; None where there is too little room."""
        walker = self._walker
        counts = [len(seeds.nodes.get(t, ())) for t in walker.types]
        if not self.has_room(counts):
            return None
        relations = range(len(self._rooms.edges))
        self._keys[:] = [draws.signed(walker.key(key, hop, r)) for hop in range(len(self._rooms.new)) for r in relations]
        self._counts[:] = counts
        for t, own in enumerate(self._seeds):
            own[: counts[t]], own[counts[t] :] = seeds.nodes.get(t, _NO_IDS), walker.sizes[t]
        self._there.copy_(torch.from_numpy(self._numbers), non_blocking=True)
        batch = self._followed()
        found = batch.taken(counts, self._sizes.tolist())
        if found is None:
            walker.lose_numbers()
        return found

    def _followed(self) -> _RoomyBatch:
        """Does the walk: the first time by its operations, which a CUDA device has then seen, and later at once."""
        if self._graph is None:
            if self._batch is None or self._there.device.type != "cuda":
                return self._operations()
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                self._operations()
            finally:
                graph.capture_end()
            self._graph = graph
        assert self._batch is not None
        self._graph.replay()
        return self._batch

    def _operations(self) -> _RoomyBatch:
        batch = _RoomyBatch(self._walker, self._rooms, self._there)
        self._walker.follow(batch)
        self._sizes, self._batch = batch.finish(), batch
        self._kept = self._walker.counted.values  # a recorded walk reads them, whatever the walker has later
        return batch


class RoomyWalks:
    """One walker's walks with as much room as batches were seen to take."""

    def __init__(self) -> None:
        self._sizes: list[list[int]] = []  # of the batches that were looked at
        self._walk: RoomyWalk | None = None
        self._strays = 0  # batches in a row that have more seeds than there is room for

    def learn(self, batch: _Batch) -> None:
        """Looks at the sizes of a batch that there was no room for, or none yet."""
        if self._walk is not None and not self._walk.has_room(batch.sizes):
            self._strays += 1
            if self._strays < _LOOKED_AT:  # as a question about many nodes is, beside batches
                return
            self._sizes = []
        self._sizes = [*self._sizes, batch.sizes][-_MOST_LOOKED_AT:]
        self._walk = None

    def walk(self, walker: DeviceWalker, seeds: WalkSeeds, key: int) -> DeviceWalked | None:
        """Chooses the nodes and edges of a batch; None where there is no room, or none yet."""
        if len(self._sizes) < _LOOKED_AT or seeds.variates is not None:
            return None
        if self._walk is None:
            rooms = _Rooms.of(self._sizes, len(walker.types), len(walker.tables.edge_types))
            self._walk, self._strays = RoomyWalk(walker, rooms), 0
        return self._walk.walk(seeds, key)

    def forget(self) -> None:
        """Gives up the memory of the device."""
        self._walk = None


def _joined(tensors: tuple[Tensor, ...] | list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)

"""The access of kinds of batches to the graph: neighbours, degrees and single edges, wherever the parts that hold them are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gnnkit.plan import NeighborSampling
from gnnkit.sampling.batch_writer import GATHER, RowStep, fill
from gnnkit.sampling.owners import NO_IDS, Answer, Expansion, Picks, Question, scatter, stitched
from gnnkit.sampling.passes import DAMAGED, FRONTIER, STRANGE
from gnnkit.sampling.scratch import EdgeBuffers, NodeScratch
from gnnkit.sampling.tables import GraphTables, address_of
from gnnkit.sampling.walk import walk
from gnnkit.sampling.walked import LOOSE_EDGE, STRANGE_SEED, Walked, WalkedEdges, WalkSeeds, damaged
from gnnkit.schema import EdgeType

if TYPE_CHECKING:
    from gnnkit.sampling.numbering import BatchNumbering
    from gnnkit.sampling.owned import PartOwner

# Edges that a buffer has room for at first, at most; memory that is never touched is never paid for.
_FIRST_CAPACITY = 1 << 22


class GraphAccess(Protocol):
    """One thread's way to a graph's edges. Answers are valid until the next question.

    Attributes:
        tables: The graph's tables.
        wants_position: For each edge type, whether batches need the positions of its edges.
        walks_together: Whether ``walk`` samples several batches in one go.
    """

    tables: GraphTables
    wants_position: tuple[bool, ...]
    walks_together: bool

    @property
    def numbering(self) -> BatchNumbering:
        """Numbers for the nodes of a batch, one batch at a time."""

    def use(self, tables: GraphTables) -> None:
        """Switches to another copy of the same graph."""

    def shown_type(self, edge_type: EdgeType) -> EdgeType:
        """The type under which a batch shows sampled edges: they always point from the neighbour to the seed side."""

    def store_ids(self, t: int, ids: NDArray[Any]) -> NDArray[np.int64]:
        """Dataset ids of nodes of type ``t`` as store ids, int64 of the same shape."""

    def walk(self, seeds: Sequence[WalkSeeds], keys: Sequence[int], sampling: NeighborSampling) -> list[Walked]:
        """Samples the neighbourhoods of the first of these batches, at least of one; each is shared by its batch's seeds."""

    def expand(self, expansion: Expansion) -> dict[int, Picks]:
        """The edges that nodes draw: ``{index of an edge type: Picks}`` for every type with a fan-out whose frontier has nodes."""

    def induce(
        self,
        r: int,
        nodes: NDArray[np.int64],
        members: NDArray[np.int64],
        node_roots: NDArray[np.int64] | None = None,
        member_roots: NDArray[np.int64] | None = None,
    ) -> Picks:
        """Every edge of type ``r`` of each node whose other end is a member of the same root, in the stored order.

        ``neighbors`` of the answer are places in ``members``: of equal members the first.

        Args:
            r: Index of the edge type.
            nodes: int64 ``[n]`` store ids of its frontier's type.
            members: int64 ``[m]`` store ids of its neighbours' type.
            node_roots: int64 ``[n]``; None where roots play no part.
            member_roots: int64 ``[m]``, likewise.
        """

    def rows(self, t: int, name: str, nodes: NDArray[np.int64]) -> NDArray[Any]:
        """Rows ``[n, ...]`` of the array ``name`` of nodes of type ``t``."""

    def degrees(self, t: int, nodes: NDArray[np.int64], relations: Sequence[int]) -> NDArray[np.int64]:
        """int64 ``[n]``: how many edges of the given types, together, each node of type ``t`` owns."""

    def weights(self, r: int, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 ``[sum]``: the integer weights of nodes' edges of the weighted type ``r``, those of weight 0 left out, node after node."""

    def has_edges(self, r: int, nodes: NDArray[np.int64], neighbors: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Bool ``[n]``: whether there is an edge of type ``r`` between frontier node ``nodes[i]`` and ``neighbors[i]``."""


def positions_wanted(tables: GraphTables, with_edge: bool) -> tuple[bool, ...]:
    """For each edge type, whether batches carry rows of its edges."""
    schema = tables.graph.schema
    return tuple((with_edge and t in tables.edge_ids) or bool(schema.edge_types[t].arrays) for t in tables.edge_types)


class BaseGraphAccess(ABC):
    """The common base of every ``GraphAccess``.

    Args:
        tables: The graph.
        with_edge: Whether batches carry edge ids.
        scratch: Memory that is shared with other samplers of the same thread and graph; None makes some.
    """

    def __init__(self, tables: GraphTables, with_edge: bool, scratch: NodeScratch | None = None) -> None:
        self.tables = tables
        self.wants_position = positions_wanted(tables, with_edge)
        self.scratch = NodeScratch(tables) if scratch is None else scratch
        self.edges = EdgeBuffers(self.wants_position)
        self._fan_outs: tuple[NeighborSampling, NDArray[np.int64]] | None = None
        self._reserved: tuple[NDArray[np.int64] | None, int] = None, -1

    def use(self, tables: GraphTables) -> None:
        """See ``GraphAccess.use``."""
        assert tables.graph.schema is self.tables.graph.schema
        self.tables = tables
        if "own" in self.__dict__:
            self.own.use(tables)

    # Kernels that walks of the usual kind do without are imported, and compiled, where they are used: see ``kinds.prepare``.

    @cached_property
    def numbering(self) -> BatchNumbering:
        """See ``GraphAccess.numbering``."""
        from gnnkit.sampling.numbering import BatchNumbering

        return BatchNumbering(self.tables, self.scratch)

    @cached_property
    def own(self) -> PartOwner:
        """Answers questions about the parts that are here."""
        from gnnkit.sampling.owned import PartOwner

        return PartOwner(self.tables, self.tables.graph.local_parts)

    def shown_type(self, edge_type: EdgeType) -> EdgeType:
        """See ``GraphAccess.shown_type``."""
        return self.tables.shown_type(edge_type)

    def store_ids(self, t: int, ids: NDArray[Any]) -> NDArray[np.int64]:
        """See ``GraphAccess.store_ids``."""
        table = self.tables.graph.store_id[self.tables.node_types[t]]
        return np.ascontiguousarray(ids if table is None else table[ids], np.int64)

    def rows(self, t: int, name: str, nodes: NDArray[np.int64]) -> NDArray[Any]:
        """See ``GraphAccess.rows``."""
        table, nodes = self.tables.node_rows[self.tables.node_types[t], name], np.ascontiguousarray(nodes, np.int64)
        if len(nodes) and not 0 <= nodes.min() <= nodes.max() < self.tables.bounds[t, -1]:
            raise damaged(STRANGE_SEED)
        found = np.empty((len(nodes), *table.row_shape), table.dtype)
        self._fill_rows([(GATHER, address_of(nodes), len(nodes), table.row_nbytes, address_of(found), table.index, table.bounds)])
        return found

    def _fill_rows(self, steps: list[RowStep]) -> None:
        fill(self.tables.ahead, np.array(steps, np.int64), self.tables.row_addresses, self.tables.row_bounds)

    def fan_outs(self, sampling: NeighborSampling) -> NDArray[np.int64]:
        """int64 ``[R, H]``, edge types in canonical order."""
        if self._fan_outs is None or self._fan_outs[0] is not sampling:
            none = (0,) * sampling.num_hops
            rows = [sampling.num_neighbors.get(edge_type, none) for edge_type in self.tables.edge_types]
            fan_outs = np.array(rows, np.int64).reshape(len(rows), sampling.num_hops)
            if not sampling.replace:
                # No node has as many neighbours: all are taken, and no room is made for more.
                schema = self.tables.graph.schema
                num_edges = np.array([schema.edge_types[edge_type].num_edges for edge_type in self.tables.edge_types], np.int64)
                fan_outs[fan_outs > num_edges[:, None]] = -1
            self._fan_outs = sampling, fan_outs
        return self._fan_outs[1]

    def reserve(self, fan_outs: NDArray[np.int64], num_seeds: int) -> None:
        """Makes room for the edges that the fan-outs allow, as far as that is no waste."""
        if self._reserved[0] is fan_outs and num_seeds <= self._reserved[1]:
            return
        bound, width = 0, num_seeds
        for hop in range(fan_outs.shape[1]):
            if (fan_outs[:, hop] < 0).any() or bound > _FIRST_CAPACITY:
                bound = _FIRST_CAPACITY
                break
            width *= int(fan_outs[:, hop].sum())
            bound += width
        schema, num_hops = self.tables.graph.schema, fan_outs.shape[1]
        for r, edge_type in enumerate(self.tables.edge_types):
            most = schema.edge_types[edge_type].num_edges * num_hops
            self.edges.reserve(r, max(1, min(bound, _FIRST_CAPACITY, most)))
        self._reserved = fan_outs, num_seeds

    def walked(
        self, seeds: Sequence[WalkSeeds], num_sampled_nodes: NDArray[np.int64], num_sampled_edges: NDArray[np.int64]
    ) -> list[Walked]:
        """Returns the nodes and edges in the scratch and the buffers after a walk of batches, with their counts."""
        found, shown = [], [self.shown_type(edge_type) for edge_type in self.tables.edge_types]
        first_node, first_edge = [0] * len(self.scratch.nodes), [0] * len(shown)
        for own, nodes_by_hop, edges_by_hop in zip(seeds, num_sampled_nodes.tolist(), num_sampled_edges.tolist(), strict=True):
            nodes, edges = [], []
            for t, counts in enumerate(nodes_by_hop):
                first, last = first_node[t], first_node[t] + sum(counts)
                nodes.append(self.scratch.nodes[t][first:last])
                first_node[t] = last
            for r, counts in enumerate(edges_by_hop):
                first, last = first_edge[r], first_edge[r] + sum(counts)
                arrays = [array[first:last] for array in self.edges.arrays[r]]
                edges.append(WalkedEdges(shown[r], r, arrays[0], arrays[1], arrays[2] if self.wants_position[r] else None, counts))
                first_edge[r] = last
            found.append(Walked(nodes, nodes_by_hop, edges, own))
        return found

    # Questions about edges: each host answers for its own nodes.

    @abstractmethod
    def _shares(self, t: int, nodes: NDArray[np.int64]) -> dict[int, NDArray[np.int64]]:
        """``{host: places of its nodes}``, hosts with none left out."""

    @abstractmethod
    def _answers(self, shares: Mapping[int, NDArray[np.int64]], question: Callable[[NDArray[np.int64]], Question]) -> dict[int, Answer]:
        """Every host's answer to the question about the places of its nodes."""

    def induce(
        self,
        r: int,
        nodes: NDArray[np.int64],
        members: NDArray[np.int64],
        node_roots: NDArray[np.int64] | None = None,
        member_roots: NDArray[np.int64] | None = None,
    ) -> Picks:
        """See ``GraphAccess.induce``."""
        shares = self._shares(int(self.tables.relations[r, FRONTIER]), nodes)
        if node_roots is None or member_roots is None:
            node_roots = member_roots = NO_IDS

        def question(places: NDArray[np.int64]) -> Question:
            roots = node_roots[places] if len(node_roots) else NO_IDS
            return Question("induce", (r,), nodes[places], members, roots, member_roots, self.wants_position[r])

        picks = {
            host: Picks(answer["counts"], answer["neighbors"], answer.get("positions")) if {"counts", "neighbors"} <= set(answer) else None
            for host, answer in self._answers(shares, question).items()
        }
        return stitched(picks, shares, len(nodes), wants_position=self.wants_position[r])

    def degrees(self, t: int, nodes: NDArray[np.int64], relations: Sequence[int]) -> NDArray[np.int64]:
        """See ``GraphAccess.degrees``."""
        degrees = np.zeros(len(nodes), np.int64)
        if relations:
            shares = self._shares(t, nodes)
            answers = self._answers(shares, lambda places: Question("degrees", tuple(relations), nodes[places]))
            scatter(answers, "degrees", shares, degrees)
        return degrees

    def weights(self, r: int, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """See ``GraphAccess.weights``."""
        shares = self._shares(int(self.tables.relations[r, FRONTIER]), nodes)
        answers = self._answers(shares, lambda places: Question("weights", (r,), nodes[places]))
        picks = {
            host: Picks(answer["counts"], answer["weights"], None) if {"counts", "weights"} <= set(answer) else None
            for host, answer in answers.items()
        }
        weights: NDArray[np.int64] = stitched(picks, shares, len(nodes), wants_position=False).neighbors
        return weights

    def has_edges(self, r: int, nodes: NDArray[np.int64], neighbors: NDArray[np.int64]) -> NDArray[np.bool_]:
        """See ``GraphAccess.has_edges``."""
        found, shares = np.zeros(len(nodes), np.bool_), self._shares(int(self.tables.relations[r, FRONTIER]), nodes)
        answers = self._answers(shares, lambda places: Question("has_edges", (r,), nodes[places], neighbors[places]))
        scatter(answers, "found", shares, found)
        return found


class LocalGraphAccess(BaseGraphAccess):
    """A ``GraphAccess`` where every part is on this host."""

    walks_together = True

    def walk(self, seeds: Sequence[WalkSeeds], keys: Sequence[int], sampling: NeighborSampling) -> list[Walked]:
        """See ``GraphAccess.walk``; one call of a kernel.

        Raises:
            StoreError: The graph is damaged.
        """
        tables, fan_outs, scratch = self.tables, self.fan_outs(sampling), self.scratch
        num_batches, num_types, (num_relations, num_hops) = len(seeds), len(tables.node_types), fan_outs.shape
        num_nodes = np.empty((num_batches, num_types, num_hops + 1), np.int64)
        num_edges = np.zeros((num_batches, num_relations, num_hops), np.int64)
        own, starts, last = [], [], 0
        for of_batch in seeds:
            starts.append(last)
            for t in range(num_types):
                own.append(of_batch.nodes.get(t, NO_IDS))
                scratch.reserve(t, len(own[-1]))
                starts.append(last := last + len(own[-1]))
        self.reserve(fan_outs, last)
        seed_nodes, seed_starts = np.concatenate(own), np.array(starts, np.int64).reshape(num_batches, num_types + 1)
        batch_keys = np.array(keys, np.uint64)
        variates, ids = np.empty((num_batches, num_hops, num_relations, 0), np.uint64), np.zeros((num_types, 2), np.int64)
        if seeds[0].variates is not None and num_hops:
            found = [own_seeds.variates.table(tables, hop) for own_seeds in seeds if own_seeds.variates for hop in range(num_hops)]
            variates, ids = np.stack(found).reshape(num_batches, num_hops, num_relations, -1), tables.dataset_ids
        while True:
            done, outcome = walk(
                tables.ahead, tables.relations, tables.parts, tables.bounds, tables.global_ids, tables.relation_keys, fan_outs,
                sampling.replace, batch_keys, variates, ids, seed_nodes, seed_starts, scratch.buffers, scratch.room, self.edges.table,
                scratch.num_nodes, num_nodes, num_edges,
            )  # fmt: skip
            if done:
                return self.walked(seeds[:done], num_nodes[:done], num_edges[:done])
            if outcome in (DAMAGED, STRANGE):
                raise damaged(LOOSE_EDGE if outcome == DAMAGED else STRANGE_SEED)
            self.edges.grow(outcome)

    def expand(self, expansion: Expansion) -> dict[int, Picks]:
        """See ``GraphAccess.expand``."""
        return self.own.expand(replace(expansion, wants_position=self.wants_position))

    def _shares(self, t: int, nodes: NDArray[np.int64]) -> dict[int, NDArray[np.int64]]:
        return {0: np.arange(len(nodes))} if len(nodes) else {}

    def _answers(self, shares: Mapping[int, NDArray[np.int64]], question: Callable[[NDArray[np.int64]], Question]) -> dict[int, Answer]:
        return {host: self.own.answer(question(places)) for host, places in shares.items()}

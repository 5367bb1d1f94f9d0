"""Access to the graph: how a walk reaches neighbours and rows that are here, hop by hop.

It works through the frontier in blocks of ``BLOCK`` nodes, and through each block in passes, so that every random access was
asked of memory a pass earlier: row bounds, then draws, then neighbour ids, then the relabelling table. Five things carry its
speed, each measured alone: a direct-address table for relabelling instead of a hash map, prefetching, draws of 16 nodes by the
same instructions, scratch that is reused, and tables of addresses, so that parts and dtypes cost no copy of the code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import uint64
from numpy.typing import NDArray
from typing_extensions import override

from gnnkit.kernels.jit import helper, kernel
from gnnkit.kernels.native import store_i32, store_i64
from gnnkit.kernels.stream import fold_u64
from gnnkit.plan import NeighborSampling
from gnnkit.sampling.batch_writer import GATHER, RowFiller
from gnnkit.sampling.owners import NO_IDS, Answer, Expansion, Picks, Question, scatter, stitched
from gnnkit.sampling.passes import (
    BASE,
    BLOCK,
    CAPACITY,
    COL,
    DAMAGED,
    DONE,
    FRONTIER,
    INDICES_WIDTH,
    LINEAR_FAN_OUT,
    LOCAL_OF,
    NEIGHBOR,
    NODES,
    POSITION,
    ROW,
    SPARE_EDGES,
    STRANGE,
    WEIGHTED,
    WORK_ROWS,
    ask_draws,
    choose,
    mark_seeds,
    measure,
    nodes_ahead,
    number,
    use_draws,
)
from gnnkit.sampling.subgraph import LOOSE_EDGE, STRANGE_SEED, Walked, WalkedEdges, WalkSeeds, damaged
from gnnkit.sampling.tables import GraphTables, address_of
from gnnkit.schema import EdgeType
from gnnkit.storage.arrays import allocate

if TYPE_CHECKING:
    from gnnkit.sampling.numbering import BatchNumbering
    from gnnkit.sampling.owned import PartOwner


_LARGEST_INT32 = (1 << 31) - 1
# Nodes that there is room for beside those of one batch, so that several small ones lie behind each other: never touched, never paid for.
_MORE_NODES = 1 << 16
# Bytes of numbers that are written before they are needed, at most: of a larger graph a batch may meet few nodes.
_MOST_WRITTEN = 64 << 20


def _numbers(count: int) -> NDArray[np.int32]:
    """int32 ``[count]``, zeros.

    Few are in ordinary pages, and all of them are written first: of a page that is read, and written to later, other processors are told.
    For more of them NumPy asks for huge pages, by which they are found faster.
    """
    if 4 * count > _MOST_WRITTEN:
        return np.zeros(count, np.int32)
    numbers = allocate(4 * count).view(np.int32)
    numbers.fill(0)
    return numbers


class NodeScratch:
    """A thread's memory per node of the graph; samplers of the same thread share it, one batch at a time.

    Args:
        tables: The graph.

    Attributes:
        local_of: int32 ``[nodes]`` per node type: a node's number in a batch.
        nodes: int64, at least ``[nodes + seeds + 1]``, per node type: the batch's nodes.
        room: int64 ``[node types]``, their lengths.
        buffers: int64 ``[node types, 3]``, their addresses and the base that numbers count from; see ``graph_access.walk``.
        num_nodes: int64 ``[node types]``, nodes of the batch that was sampled last.
    """

    def __init__(self, tables: GraphTables) -> None:
        sizes = [tables.graph.schema.node_types[t].num_nodes for t in tables.node_types]
        self.local_of = [_numbers(size) for size in sizes]
        self.nodes = [np.empty(0, np.int64) for _ in sizes]
        self.buffers = np.zeros((len(sizes), 3), np.int64)
        self.buffers[:, LOCAL_OF] = [address_of(local_of) for local_of in self.local_of]
        self.num_nodes, self.room = np.zeros(len(sizes), np.int64), np.zeros(len(sizes), np.int64)

    def begin(self, seeds: dict[int, NDArray[np.int64]]) -> None:
        """Begins a batch with these seeds, by index of their node type; what was sampled before is gone."""
        self._advance()
        for t in range(len(self.local_of)):
            ids = seeds.get(t)
            count = 0 if ids is None else len(ids)
            self.reserve(t, count)
            if ids is not None:
                self.nodes[t][:count] = ids
            self.num_nodes[t] = count

    def reserve(self, t: int, num_seeds: int) -> None:
        """Makes room for every node of a type and so many seeds, where there is less; what is there is gone then."""
        needed = len(self.local_of[t]) + num_seeds + 1
        if needed > self.room[t]:
            self.nodes[t] = allocate(8 * (needed + _MORE_NODES)).view(np.int64)
            self.buffers[t, NODES], self.room[t] = address_of(self.nodes[t]), len(self.nodes[t])

    def _advance(self) -> None:
        """Makes every entry of the relabelling tables one of an earlier batch; they are cleared only when numbers run out."""
        bases = self.buffers[:, BASE]
        bases += self.num_nodes
        for t, base in enumerate(bases.tolist()):
            if base + 2 * (len(self.local_of[t]) + len(self.nodes[t])) > _LARGEST_INT32:
                self.local_of[t][:] = 0
                bases[t] = 0


class EdgeBuffers:
    """Room for the edges of a batch, by edge type; a sampler has one.

    Args:
        wants_position: For each edge type, whether positions are kept.

    Attributes:
        arrays: int64 ``[capacity]`` each: numbers of neighbours, numbers of nodes, and positions where they are kept.
        table: int64 ``[edge types, 4]``, their addresses and capacities; see ``graph_access.walk``.
    """

    def __init__(self, wants_position: tuple[bool, ...]) -> None:
        self._wants_position = wants_position
        self.arrays: list[list[NDArray[np.int64]]] = [[] for _ in wants_position]
        self.table = np.zeros((len(wants_position), 4), np.int64)

    def reserve(self, r: int, capacity: int, used: int = 0) -> None:
        """Makes room for so many edges of a type, where there is less; the first ``used`` ones stay."""
        if capacity <= self.table[r, CAPACITY]:
            return
        before, count = self.arrays[r], 3 if self._wants_position[r] else 2
        self.arrays[r] = [allocate(8 * (capacity + SPARE_EDGES)).view(np.int64) for _ in range(count)]
        for old, new in zip(before, self.arrays[r], strict=False):
            new[:used] = old[:used]
        self.table[r] = (*map(address_of, self.arrays[r]), *[0] * (3 - count), capacity)

    def grow(self, r: int, used: int = 0) -> None:
        """Doubles the room for a type."""
        self.reserve(r, 2 * int(self.table[r, CAPACITY]), used)


# Intrinsics have no type hints, so what they return is Any to mypy.
# mypy: disable-error-code="no-any-return"


@helper
def _expand(
    ahead: NDArray[np.int64],
    relation: NDArray[np.int64],
    parts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    global_id: NDArray[np.int64],
    fan_out: int,
    replace: bool,
    key: np.uint64,
    variates: NDArray[np.uint64],
    ids: NDArray[np.int64],
    nodes: int,
    begin: int,
    end: int,
    neighbor: NDArray[np.int64],
    num_neighbors: int,
    buffers: NDArray[np.int64],
    num_edges: int,
    work: NDArray[np.int64],
    picks: NDArray[np.int64],
    table: NDArray[np.int64],
) -> tuple[int, int]:
    """Samples one edge type for the frontier nodes ``[begin, end)``.

    Returns the new number of neighbour nodes and of edges; -1 edges say that the buffers are full, DAMAGED what it says.
    """
    together = nodes_ahead(ahead, end - begin)
    for first in range(begin, end, BLOCK):
        last = min(end, first + BLOCK)
        if (first - begin) % together == 0:
            ask_draws(
                ahead, relation, parts, bounds, global_id, fan_out, replace, False, key, variates, ids, nodes, 0, 0, 0, first,
                min(end, first + together), buffers, num_edges, work, picks, table,
            )  # fmt: skip
        needed = measure(ahead, relation, parts, bounds, fan_out, replace, nodes, first, last, end, 0, 0, work)
        if needed < 0:
            return num_neighbors, DAMAGED
        if num_edges + needed > buffers[CAPACITY]:
            return num_neighbors, -1
        e = choose(
            ahead, relation, parts, bounds, global_id, fan_out, replace, False, key, variates, ids, nodes, 0, first, last, buffers,
            num_edges, work, picks, table,
        )  # fmt: skip
        use_draws(ahead, buffers[ROW], num_edges, e, relation[INDICES_WIDTH])
        numbered = number(ahead, relation, buffers[ROW], num_edges, e, neighbor, num_neighbors)
        if numbered < 0:
            return num_neighbors, DAMAGED
        num_neighbors, num_edges = numbered, e
    return num_neighbors, num_edges


@helper
def _most_picks(relations: NDArray[np.int64], fan_outs: NDArray[np.int64], edge_buffers: NDArray[np.int64]) -> int:
    """The most edges that one node may draw or, with weights, take."""
    most = 1
    for r in range(fan_outs.shape[0]):
        for fan_out in fan_outs[r]:
            most = max(most, fan_out)
            if fan_out < 0 and relations[r, WEIGHTED] == 1:
                most = max(most, edge_buffers[r, CAPACITY])
    return most


@helper
def _enter(
    bounds: NDArray[np.int64],
    seeds: NDArray[np.int64],
    seed_starts: NDArray[np.int64],
    node_buffers: NDArray[np.int64],
    room: NDArray[np.int64],
    num_nodes: NDArray[np.int64],
) -> bool:
    """Begins a batch with its seeds; False where one is no node of the graph. ``num_nodes``, of the batch before, become its own."""
    parts = bounds.shape[1] - 1
    for t in range(num_nodes.size):
        size, base = bounds[t, parts], node_buffers[t, BASE] + num_nodes[t]
        if base + 2 * (size + room[t]) > _LARGEST_INT32:  # numbers run out: the table is cleared
            for v in range(size):
                store_i32(node_buffers[t, LOCAL_OF] + v * 4, 0)
            base = 0
        node_buffers[t, BASE], num_nodes[t] = base, 0
    for t in range(num_nodes.size):
        first, count = seed_starts[t], seed_starts[t + 1] - seed_starts[t]
        for i in range(count):
            seed = seeds[first + i]
            if uint64(seed) >= uint64(bounds[t, parts]):
                return False
            store_i64(node_buffers[t, NODES] + i * 8, seed)
        num_nodes[t] = count
    mark_seeds(node_buffers, num_nodes)
    return True


@helper
def _walk_one(
    ahead: NDArray[np.int64],
    relations: NDArray[np.int64],
    parts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    global_ids: NDArray[np.int64],
    relation_keys: NDArray[np.uint64],
    fan_outs: NDArray[np.int64],
    replace: bool,
    key: np.uint64,
    variates: NDArray[np.uint64],
    ids: NDArray[np.int64],
    node_buffers: NDArray[np.int64],
    edge_buffers: NDArray[np.int64],
    num_nodes: NDArray[np.int64],
    num_edges: NDArray[np.int64],
    num_sampled_nodes: NDArray[np.int64],
    num_sampled_edges: NDArray[np.int64],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    work: NDArray[np.int64],
    picks: NDArray[np.int64],
    table: NDArray[np.int64],
) -> int:
    """Walks from the seeds that ``_enter`` has entered; DONE, DAMAGED, or the index of the edge type whose buffers are full."""
    num_relations, num_hops = fan_outs.shape
    for t in range(num_nodes.size):
        begin[t], end[t], num_sampled_nodes[t, 0] = 0, num_nodes[t], num_nodes[t]
    num_edges[:] = 0
    for hop in range(num_hops):
        hop_key = fold_u64(key, uint64(hop))
        for r in range(num_relations):
            f, n, before = relations[r, FRONTIER], relations[r, NEIGHBOR], num_edges[r]
            if fan_outs[r, hop] != 0:
                relation_key = fold_u64(fold_u64(hop_key, relation_keys[r]), uint64(0))  # the root is 0: batches are not disjoint
                num_nodes[n], found = _expand(
                    ahead, relations[r], parts[r], bounds[f], global_ids[f], fan_outs[r, hop], replace, relation_key,
                    variates[hop, r], ids[n], node_buffers[f, NODES], begin[f], end[f], node_buffers[n], num_nodes[n], edge_buffers[r],
                    num_edges[r], work, picks, table,
                )  # fmt: skip
                if found < 0:
                    return DAMAGED if found == DAMAGED else r
                num_edges[r] = found
            num_sampled_edges[r, hop] = num_edges[r] - before
        for t in range(num_nodes.size):
            num_sampled_nodes[t, hop + 1] = num_nodes[t] - end[t]
            begin[t], end[t] = end[t], num_nodes[t]
    return DONE


@kernel(
    "UniTuple(int64, 2)(int64[::1], int64[:, ::1], int64[:, :, ::1], int64[:, ::1], int64[:, :, ::1], uint64[::1], int64[:, ::1], boolean,"
    " uint64[::1], uint64[:, :, :, ::1], int64[:, ::1], int64[::1], int64[:, ::1], int64[:, ::1], int64[::1], int64[:, ::1], int64[::1],"
    " int64[:, :, ::1], int64[:, :, ::1])"
)
def walk(
    ahead: NDArray[np.int64],
    relations: NDArray[np.int64],
    parts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    global_ids: NDArray[np.int64],
    relation_keys: NDArray[np.uint64],
    fan_outs: NDArray[np.int64],
    replace: bool,
    keys: NDArray[np.uint64],
    variates: NDArray[np.uint64],
    ids: NDArray[np.int64],
    seeds: NDArray[np.int64],
    seed_starts: NDArray[np.int64],
    node_buffers: NDArray[np.int64],
    room: NDArray[np.int64],
    edge_buffers: NDArray[np.int64],
    num_nodes: NDArray[np.int64],
    num_sampled_nodes: NDArray[np.int64],
    num_sampled_edges: NDArray[np.int64],
) -> tuple[int, int]:
    """Samples the neighbourhoods of batches, one after the other: their nodes and edges lie behind each other in the buffers.

    Args:
        ahead: int64 ``[9 + 2 K]``, ``ReadAhead.table``.
        relations: int64 ``[R, 6]``, see the column names above; edge types in canonical order.
        parts: int64 ``[R, P, 6]``.
        bounds: int64 ``[T, P + 1]``, store ids at which each part starts.
        global_ids: int64 ``[T, P, 2]``: address of a part's dataset ids (0 for the identity) and their width in bytes.
        relation_keys: uint64 ``[R]``, ``text_key`` of each edge type.
        fan_outs: int64 ``[R, H]``, -1 for all neighbours.
        replace: Whether a neighbour may be drawn more than once.
        keys: uint64 ``[B]``, ``batch_key`` of each batch.
        variates: uint64 ``[B, H, R, 4]``, see ``picks``; ``[B, H, R, 0]`` where edges are drawn by who draws.
        ids: int64 ``[T, 2]``, likewise; the dataset's ids are read with ``variates`` alone.
        seeds: int64 ``[S]``, store ids.
        seed_starts: int64 ``[B, T + 1]``: the seeds of a batch and a node type are those between two neighbouring ones.
        node_buffers: int64 ``[T, 3]``, see the column names above: an int32 relabelling table ``[number of nodes]``, an int64 array
            of nodes in the order of their numbers, and the base: entries up to it are of earlier batches, and ``base + 1 + number``
            stands for a number of this one.
        room: int64 ``[T]``, the lengths of the arrays of nodes: more than all nodes of the type and the seeds of a batch together.
        edge_buffers: int64 ``[R, 4]``, see the column names above.
        num_nodes: int64 ``[T]``: how many numbers the last batch has given out, on entry that of the call before.
        num_sampled_nodes: int64 ``[B, T, H + 1]``, filled.
        num_sampled_edges: int64 ``[B, R, H]``, filled.

    Returns:
        How many batches there are, and DONE; those that the buffers had no room for are left to another call. Where there is none, as
        the second number DAMAGED where an index leads out of the graph, STRANGE where a seed does, or the index of the edge type whose
        buffers are too small.
    """
    num_relations, num_types = fan_outs.shape[0], num_nodes.size
    most = _most_picks(relations, fan_outs, edge_buffers)
    size = 2
    while size < 2 * most and most > LINEAR_FAN_OUT:
        size *= 2
    picks, table, work = np.empty(most + 1, np.int64), np.empty(size, np.int64), np.empty((WORK_ROWS, BLOCK), np.int64)
    begin, end, num_edges = np.empty(num_types, np.int64), np.empty(num_types, np.int64), np.empty(num_relations, np.int64)
    # The buffers of one batch: those of all, from the end of the batch before on.
    own_nodes, own_edges, left = node_buffers.copy(), edge_buffers.copy(), room.copy()
    for b in range(keys.size):
        for t in range(num_types):
            if bounds[t, bounds.shape[1] - 1] + seed_starts[b, t + 1] - seed_starts[b, t] >= left[t]:
                return b, DONE
        if not _enter(bounds, seeds, seed_starts[b], own_nodes, room, num_nodes):
            outcome = STRANGE
        else:
            outcome = _walk_one(
                ahead, relations, parts, bounds, global_ids, relation_keys, fan_outs, replace, keys[b], variates[b], ids, own_nodes,
                own_edges, num_nodes, num_edges, num_sampled_nodes[b], num_sampled_edges[b], begin, end, work, picks, table,
            )  # fmt: skip
        for t in range(num_types):  # an assignment of slices brings what makes the text of an error with it: a quarter of compiling
            node_buffers[t, BASE] = own_nodes[t, BASE]
        if outcome != DONE:
            return b, DONE if b > 0 else outcome
        for t in range(num_types):
            own_nodes[t, NODES] += 8 * num_nodes[t]
            left[t] -= num_nodes[t]
        for r in range(num_relations):
            for column in (ROW, COL, POSITION):
                if own_edges[r, column] != 0:
                    own_edges[r, column] += 8 * num_edges[r]
            own_edges[r, CAPACITY] -= num_edges[r]
    return keys.size, DONE


# Edges that a buffer has room for at first, at most; memory that is never touched is never paid for.
_FIRST_CAPACITY = 1 << 22


def positions_wanted(tables: GraphTables, with_edge: bool) -> tuple[bool, ...]:
    """For each edge type, whether batches carry rows of its edges."""
    schema = tables.graph.schema
    return tuple((with_edge and t in tables.edge_ids) or bool(schema.edge_types[t].arrays) for t in tables.edge_types)


class GraphAccess(ABC):
    """One thread's way to a graph's edges. Answers are valid until the next question.

    Args:
        tables: The graph.
        with_edge: Whether batches carry edge ids.
        scratch: Memory that is shared with other samplers of the same thread and graph; None makes some.
        rows: Fills rows; None is for a graph all of which is here.

    Attributes:
        tables: The graph's tables.
        wants_position: For each edge type, whether batches need the positions of its edges.
        walks_together: Whether ``walk`` samples several batches in one go.
    """

    walks_together: bool

    def __init__(self, tables: GraphTables, with_edge: bool, scratch: NodeScratch | None = None, rows: RowFiller | None = None) -> None:
        self.tables = tables
        self._rows = RowFiller(tables) if rows is None else rows
        self.wants_position = positions_wanted(tables, with_edge)
        self.scratch = NodeScratch(tables) if scratch is None else scratch
        self.edges = EdgeBuffers(self.wants_position)
        self._fan_outs: tuple[NeighborSampling, NDArray[np.int64]] | None = None
        self._reserved: tuple[NDArray[np.int64] | None, int] = None, -1

    def use(self, tables: GraphTables) -> None:
        """Switches to another copy of the same graph."""
        assert tables.graph.schema is self.tables.graph.schema
        self.tables = tables
        self._rows.use(tables)
        if "own" in self.__dict__:
            self.own.use(tables)

    # Kernels that walks of the usual kind do without are imported, and compiled, where they are used: see ``kinds.prepare``.

    @cached_property
    def numbering(self) -> BatchNumbering:
        """Numbers for the nodes of a batch, one batch at a time."""
        from gnnkit.sampling.numbering import BatchNumbering  # kernels

        return BatchNumbering(self.tables, self.scratch)

    @cached_property
    def own(self) -> PartOwner:
        """Answers questions about the parts that are here."""
        from gnnkit.sampling.owned import PartOwner  # kernels

        return PartOwner(self.tables, self.tables.graph.structure_parts)

    def shown_type(self, edge_type: EdgeType) -> EdgeType:
        """The type under which a batch shows sampled edges: they always point from the neighbour to the seed side."""
        return self.tables.shown_type(edge_type)

    def store_ids(self, t: int, ids: NDArray[Any]) -> NDArray[np.int64]:
        """Dataset ids of nodes of type ``t`` as store ids, int64 of the same shape.

        Raises:
            StoreError: The graph is damaged: a node is numbered as one that does not exist.
        """
        table = self.tables.graph.store_id[self.tables.node_types[t]]
        found = np.ascontiguousarray(ids if table is None else table[ids], np.int64)
        # As unsigned numbers, so that one pass finds negative ones too.
        if found.size and int(np.maximum.reduce(found.view(np.uint64))) >= self.tables.bounds[t, -1]:
            raise damaged(STRANGE_SEED)
        return found

    def rows(self, t: int, name: str, nodes: NDArray[np.int64]) -> NDArray[Any]:
        """Rows ``[n, ...]`` of the array ``name`` of nodes of type ``t``."""
        table, nodes = self.tables.node_rows[self.tables.node_types[t], name], np.ascontiguousarray(nodes, np.int64)
        if len(nodes) and not 0 <= nodes.min() <= nodes.max() < self.tables.bounds[t, -1]:
            raise damaged(STRANGE_SEED)
        found = np.empty((len(nodes), *table.row_shape), table.dtype)
        self.rows_into(t, name, nodes, found)
        return found

    def rows_into(self, t: int, name: str, nodes: NDArray[np.int64], found: NDArray[Any]) -> None:
        """Writes such rows into memory of the caller's; the nodes are known to be the graph's."""
        table = self.tables.node_rows[self.tables.node_types[t], name]
        step = GATHER, address_of(nodes), len(nodes), table.row_nbytes, address_of(found), table.index, table.bounds
        self._rows.fill(np.array([step], np.int64))

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

    @abstractmethod
    def walk(self, seeds: Sequence[WalkSeeds], keys: Sequence[int], sampling: NeighborSampling) -> list[Walked]:
        """Samples the neighbourhoods of the first of these batches, at least of one; each is shared by its batch's seeds."""

    @abstractmethod
    def expand(self, expansion: Expansion) -> dict[int, Picks]:
        """The edges that nodes draw: ``{index of an edge type: Picks}`` for every type with a fan-out whose frontier has nodes."""

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
        """Every edge of type ``r`` of each node whose other end is a member of the same root, in the stored order.

        ``neighbors`` of the answer are places in ``members``: of equal members the first.

        Args:
            r: Index of the edge type.
            nodes: int64 ``[n]`` store ids of its frontier's type.
            members: int64 ``[m]`` store ids of its neighbours' type.
            node_roots: int64 ``[n]``; None where roots play no part.
            member_roots: int64 ``[m]``, likewise.
        """
        shares = self._shares(int(self.tables.relations[r, FRONTIER]), nodes)
        if node_roots is None or member_roots is None:
            node_roots = member_roots = NO_IDS

        def question(places: NDArray[np.int64]) -> Question:
            roots = node_roots[places] if len(node_roots) else NO_IDS
            return Question("induce", (r,), nodes[places], members, roots, member_roots, self.wants_position[r])

        answers = self._answers(shares, question)
        picks = {host: Picks(answer["counts"], answer["neighbors"], answer.get("positions")) for host, answer in answers.items()}
        return stitched(picks, shares, len(nodes), wants_position=self.wants_position[r])

    def degrees(self, t: int, nodes: NDArray[np.int64], relations: Sequence[int]) -> NDArray[np.int64]:
        """int64 ``[n]``: how many edges of the given types, together, each node of type ``t`` owns."""
        degrees = np.zeros(len(nodes), np.int64)
        if relations:
            shares = self._shares(t, nodes)
            answers = self._answers(shares, lambda places: Question("degrees", tuple(relations), nodes[places]))
            scatter(answers, "degrees", shares, degrees)
        return degrees

    def weights(self, r: int, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 ``[sum]``: the integer weights of nodes' edges of the weighted type ``r``, those of weight 0 left out, node after node."""
        shares = self._shares(int(self.tables.relations[r, FRONTIER]), nodes)
        answers = self._answers(shares, lambda places: Question("weights", (r,), nodes[places]))
        picks = {host: Picks(answer["counts"], answer["weights"], None) for host, answer in answers.items()}
        weights: NDArray[np.int64] = stitched(picks, shares, len(nodes), wants_position=False).neighbors
        return weights

    def has_edges(self, r: int, nodes: NDArray[np.int64], neighbors: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Bool ``[n]``: whether there is an edge of type ``r`` between frontier node ``nodes[i]`` and ``neighbors[i]``."""
        found, shares = np.zeros(len(nodes), np.bool_), self._shares(int(self.tables.relations[r, FRONTIER]), nodes)
        answers = self._answers(shares, lambda places: Question("has_edges", (r,), nodes[places], neighbors[places]))
        scatter(answers, "found", shares, found)
        return found


class LocalGraphAccess(GraphAccess):
    """A ``GraphAccess`` where every part is on this host, or all of them but for features."""

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

    @override
    def expand(self, expansion: Expansion) -> dict[int, Picks]:
        return self.own.expand(replace(expansion, wants_position=self.wants_position))

    def _shares(self, t: int, nodes: NDArray[np.int64]) -> dict[int, NDArray[np.int64]]:
        return {0: np.arange(len(nodes))} if len(nodes) else {}

    def _answers(self, shares: Mapping[int, NDArray[np.int64]], question: Callable[[NDArray[np.int64]], Question]) -> dict[int, Answer]:
        return {host: self.own.answer(question(places)) for host, places in shares.items()}

"""Samples of a part service: of the edges that its host owns, and all edges among the nodes of a batch.

Most edges lead to nodes that are not among them, and every edge costs. So a node's edges are first looked up in marks, a bit for each hash
value, which lie in the fastest caches and take no branch; those that pass are looked up in a table of the members. Memory is asked for the
rows of nodes ahead. ``docs/development/measurements.md`` has what each is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from gnnkit.errors import MemoryLimitError
from gnnkit.host import available_memory
from gnnkit.kernels.jit import helper, kernel
from gnnkit.kernels.keys import GOLDEN, fold
from gnnkit.kernels.native import LINE, ask, asks, load_i64, prefetch, store_i64, use
from gnnkit.sampling.batch_writer import GATHER, RowStep, fill
from gnnkit.sampling.owners import NO_IDS, NO_VARIATES, Answer, BadRequest, Expansion, Picks, Question, RowsRequest
from gnnkit.sampling.passes import (
    BLOCK,
    CAPACITY,
    COUNT,
    DAMAGED,
    FIRST_POSITION,
    FRONTIER,
    INDICES,
    INDICES_WIDTH,
    INDPTR,
    INDPTR_WIDTH,
    LINEAR_FAN_OUT,
    NUM_EDGES,
    NUM_NEIGHBOR_NODES,
    ROW,
    SPARE_EDGES,
    WEIGHT_PREFIX,
    WEIGHTED,
    WORK_ROWS,
    ask_draws,
    choose,
    find_part,
    load_id,
    measure,
    nodes_ahead,
    takes_all,
    use_draws,
)
from gnnkit.sampling.subgraph import LOOSE_EDGE, damaged
from gnnkit.sampling.tables import GraphTables, RowTable, address_of

# Intrinsics have no type hints, so what they return is Any to mypy.
# mypy: disable-error-code="no-any-return"


FULL = -1


@helper
def edge_range(relation: NDArray[np.int64], parts: NDArray[np.int64], bounds: NDArray[np.int64], node: int) -> tuple[int, int, int]:
    """A node's part, and the first of its edges there and one more than the last; the latter is DAMAGED where they make no sense."""
    p = find_part(bounds, node)
    width = relation[INDPTR_WIDTH]
    start = load_id(parts[p, INDPTR], node - bounds[p], width)
    stop = load_id(parts[p, INDPTR], node - bounds[p] + 1, width)
    if start < 0 or stop < start or stop > parts[p, NUM_EDGES]:
        return p, 0, DAMAGED
    return p, start, stop


@helper
def ask_edges(
    ahead: NDArray[np.int64],
    relation: NDArray[np.int64],
    parts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    nodes: NDArray[np.int64],
    column: int,
    width: int,
) -> None:
    """Asks the disk for the row bounds of nodes, and for an array of their edges.

    Args:
        ahead: int64 ``[9 + 2 K]``, ``ReadAhead.table``.
        relation: See ``add_degrees``, and so for the next three.
        parts: int64 ``[P, 6]``.
        bounds: int64 ``[P + 1]``.
        nodes: int64 ``[n]``.
        column: Column of ``parts`` that has the array's address; ``INDPTR``: the bounds are all.
        width: Bytes of an element of the array.
    """
    for node in nodes:
        p = find_part(bounds, node)
        ask(ahead, parts[p, INDPTR] + (node - bounds[p]) * relation[INDPTR_WIDTH], 2 * relation[INDPTR_WIDTH])
    for node in nodes:
        p = find_part(bounds, node)
        use(ahead, parts[p, INDPTR] + (node - bounds[p]) * relation[INDPTR_WIDTH], 2 * relation[INDPTR_WIDTH])
    if column != INDPTR:
        for node in nodes:
            p, start, stop = edge_range(relation, parts, bounds, node)
            if start < stop:
                ask(ahead, parts[p, column] + start * width, (stop - start) * width)


@kernel("boolean(int64[::1], int64[::1], int64[:, ::1], int64[::1], int64[::1], int64[::1])")
def add_degrees(
    ahead: NDArray[np.int64],
    relation: NDArray[np.int64],
    parts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    nodes: NDArray[np.int64],
    degrees: NDArray[np.int64],
) -> bool:
    """Adds the number of edges of one type that each node owns to ``degrees``; False where the graph is damaged.

    Args:
        ahead: int64 ``[9 + 2 K]``, ``ReadAhead.table``.
        relation: int64 ``[6]``, see ``graph_access.walk``, and so for the next two.
        parts: int64 ``[P, 6]``.
        bounds: int64 ``[P + 1]``.
        nodes: int64 ``[n]``, store ids of parts that are here.
        degrees: int64 ``[n]``.
    """
    together = nodes_ahead(ahead, nodes.size)
    for i in range(nodes.size):
        if asks(ahead) and i % together == 0:
            ask_edges(ahead, relation, parts, bounds, nodes[i : i + together], INDPTR, 0)
        _, start, stop = edge_range(relation, parts, bounds, nodes[i])
        if stop == DAMAGED:
            return False
        degrees[i] += stop - start
    return True


@kernel("boolean(int64[::1], int64[::1], int64[:, ::1], int64[::1], int64[::1], int64[::1], uint8[::1])")
def find_edges(
    ahead: NDArray[np.int64],
    relation: NDArray[np.int64],
    parts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    nodes: NDArray[np.int64],
    others: NDArray[np.int64],
    found: NDArray[np.uint8],
) -> bool:
    """Whether each node has an edge whose other end is the other node at its place; returns False where the graph is damaged.

    Args:
        ahead: See ``add_degrees``, and so for those that are not described here.
        relation: int64 ``[6]``.
        parts: int64 ``[P, 6]``.
        bounds: int64 ``[P + 1]``.
        nodes: int64 ``[n]``.
        others: int64 ``[n]``.
        found: uint8 ``[n]``, filled.
    """
    width = relation[INDICES_WIDTH]
    together = nodes_ahead(ahead, nodes.size)
    for i in range(nodes.size):
        if asks(ahead) and i % together == 0:
            ask_edges(ahead, relation, parts, bounds, nodes[i : i + together], INDICES, width)
        p, start, stop = edge_range(relation, parts, bounds, nodes[i])
        if stop == DAMAGED:
            return False
        found[i] = 0
        for q in range(start, stop):
            if load_id(parts[p, INDICES], q, width) == others[i]:
                found[i] = 1
                break
    return True


@kernel("int64(int64[::1], int64[::1], int64[:, ::1], int64[::1], int64[::1], int64[::1], int64[::1])")
def list_weights(
    ahead: NDArray[np.int64],
    relation: NDArray[np.int64],
    parts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    nodes: NDArray[np.int64],
    counts: NDArray[np.int64],
    weights: NDArray[np.int64],
) -> int:
    """Lists the integer weights of nodes' edges, those of weight 0 left out.

    Args:
        ahead: See ``add_degrees``, and so for those that are not described here.
        relation: int64 ``[6]``.
        parts: int64 ``[P, 6]``.
        bounds: int64 ``[P + 1]``.
        nodes: int64 ``[n]``.
        counts: int64 ``[n]``, filled: weights of each node.
        weights: int64, filled, node after node.

    Returns:
        The number of weights, or FULL where there is no room for all, or DAMAGED.
    """
    together = nodes_ahead(ahead, nodes.size)
    total = 0
    for i in range(nodes.size):
        if asks(ahead) and i % together == 0:
            ask_edges(ahead, relation, parts, bounds, nodes[i : i + together], WEIGHT_PREFIX, 8)
        p, start, stop = edge_range(relation, parts, bounds, nodes[i])
        if stop == DAMAGED:
            return DAMAGED
        before, running = total, np.int64(0)
        for position in range(start, stop):
            until = load_i64(parts[p, WEIGHT_PREFIX] + position * 8)
            if until == running:
                continue
            if total == weights.size:
                return FULL
            weights[total] = until - running
            running = until
            total += 1
        counts[i] = total - before
    return total


# Intrinsics have no type hints, so what they return is Any to mypy.
# mypy: disable-error-code="no-any-return"


# In a table of members: nothing is here.
_EMPTY = -1
# Places of the table for a member, at least.
_SPARSE = 4
# Marks for a member, at least: of few members more lie in the fastest cache, and fewer of the others pass.
_FEW, _MARKS_OF_FEW, _MARKS = 1 << 11, 64, 32
# Edges of a node that are looked up at a time.
_CHUNK = 1024
# How many nodes ahead memory is asked for the bounds of a row, and for the row, of which the first lines.
_BOUNDS_AHEAD, _ROW_AHEAD, _LINES = 16, 4, 8


def scratch_for(num_members: int) -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
    """A table and marks for ``induce``, large enough for so many members."""
    # Both are as long as a power of two that may be nearly twice as much as what is wanted.
    table = np.empty(max(8, 2 * _SPARSE * num_members), np.int32)
    return table, np.empty(max(_FEW * _MARKS_OF_FEW, 2 * _MARKS * num_members) // 64 + 1, np.uint64)


@helper
def _enter(members: NDArray[np.int64], order: NDArray[np.int64], begin: int, end: int, table: NDArray[np.int32]) -> int:
    """Enters the members of a root into a table of their own; returns the base-2 logarithm of its length."""
    bits = 3
    while (1 << bits) < _SPARSE * (end - begin):
        bits += 1
    mask = uint64((1 << bits) - 1)
    table[: 1 << bits] = _EMPTY
    for q in range(begin, end):
        slot = (uint64(members[order[q]]) * uint64(GOLDEN)) >> uint64(64 - bits)
        while table[slot] != _EMPTY and members[table[slot]] != members[order[q]]:
            slot = (slot + uint64(1)) & mask
        if table[slot] == _EMPTY:
            table[slot] = order[q]
    return bits


@helper
def _mark(members: NDArray[np.int64], order: NDArray[np.int64], begin: int, end: int, marks: NDArray[np.uint64]) -> int:
    """Marks the members of a root; returns the base-2 logarithm of the number of marks."""
    bits, share = 6, _MARKS_OF_FEW if end - begin <= _FEW else _MARKS
    while (1 << bits) < share * (end - begin):
        bits += 1
    marks[: 1 << (bits - 6)] = uint64(0)
    for q in range(begin, end):
        mark = (uint64(members[order[q]]) * uint64(GOLDEN)) >> uint64(64 - bits)
        marks[mark >> uint64(6)] |= uint64(1) << (mark & uint64(63))
    return bits


@helper
def _candidates(indices: int, width: int, start: int, stop: int, marks: NDArray[np.uint64], bits: int, found: NDArray[np.int64]) -> int:
    """Lists the edges whose other ends have a mark, as every member has; returns how many. A loop without a branch."""
    count, shift = uint64(0), uint64(64 - bits)
    for edge in range(start, stop):
        mark = (uint64(load_id(indices, edge, width)) * uint64(GOLDEN)) >> shift
        found[count] = edge
        count += (marks[mark >> uint64(6)] >> (mark & uint64(63))) & uint64(1)
    return np.int64(count)


@helper
def _ask_ahead(
    relation: NDArray[np.int64],
    parts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    nodes: NDArray[np.int64],
    order: NDArray[np.int64],
    q: int,
) -> None:
    """Asks memory for the bounds of a row that comes later, and for the row of a node that comes sooner."""
    if q + _BOUNDS_AHEAD < nodes.size:
        v = nodes[order[q + _BOUNDS_AHEAD]]
        p = find_part(bounds, v)
        prefetch(parts[p, INDPTR] + (v - bounds[p]) * relation[INDPTR_WIDTH])
    if q + _ROW_AHEAD < nodes.size:
        v = nodes[order[q + _ROW_AHEAD]]
        p = find_part(bounds, v)
        row = parts[p, INDICES] + load_id(parts[p, INDPTR], v - bounds[p], relation[INDPTR_WIDTH]) * relation[INDICES_WIDTH]
        for line in range(_LINES):
            prefetch(row + line * LINE)


@helper
def _look_up(
    relation: NDArray[np.int64],
    parts: NDArray[np.int64],
    p: int,
    found: NDArray[np.int64],
    count: int,
    members: NDArray[np.int64],
    table: NDArray[np.int32],
    bits: int,
    num_edges: int,
    places: NDArray[np.int64],
    positions: NDArray[np.int64],
) -> int:
    """Keeps the candidates whose other ends are members; returns the number of edges. There is room for all."""
    mask, shift, indices, width = uint64((1 << bits) - 1), uint64(64 - bits), parts[p, INDICES], relation[INDICES_WIDTH]
    for c in range(count):
        u = load_id(indices, found[c], width)
        slot = (uint64(u) * uint64(GOLDEN)) >> shift
        place = table[slot]
        while place != _EMPTY and members[uint64(place)] != u:
            slot = (slot + uint64(1)) & mask
            place = table[slot]
        places[num_edges] = place
        if positions.size:
            positions[num_edges] = parts[p, FIRST_POSITION] + found[c]
        num_edges += place != _EMPTY
    return num_edges


@kernel(
    "UniTuple(int64, 2)(int64[::1], int64[::1], int64[:, ::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1],"
    " int64[::1], int32[::1], uint64[::1], int64, int64, int64[::1], int64[::1], int64[::1])"
)
def induce(
    ahead: NDArray[np.int64],
    relation: NDArray[np.int64],
    parts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    nodes: NDArray[np.int64],
    node_roots: NDArray[np.int64],
    node_order: NDArray[np.int64],
    members: NDArray[np.int64],
    member_roots: NDArray[np.int64],
    member_order: NDArray[np.int64],
    table: NDArray[np.int32],
    marks: NDArray[np.uint64],
    first: int,
    num_edges: int,
    counts: NDArray[np.int64],
    places: NDArray[np.int64],
    positions: NDArray[np.int64],
) -> tuple[int, int]:
    """Lists nodes' edges to members of their root, root after root, and in the stored order.

    Args:
        ahead: See ``adjacency.add_degrees``, and so for those that are not described here.
        relation: int64 ``[6]``.
        parts: int64 ``[P, 6]``.
        bounds: int64 ``[P + 1]``.
        nodes: int64 ``[n]``.
        node_roots: int64 ``[n]``.
        node_order: int64, sorts the nodes stably by root; or its first part, where the rest is for a later call.
        members: int64 ``[m]``.
        member_roots: int64 ``[m]``.
        member_order: int64 ``[m]``, sorts the members stably by root.
        table: int32, of ``scratch_for``.
        marks: uint64, likewise.
        first: Where in ``node_order`` to begin, 0 unless a call before has left off.
        num_edges: Edges that are there already.
        counts: int64 ``[n]``, filled: edges of each node.
        places: int64, filled: where the edges' other ends are in ``members``; of equal ones the first.
        positions: int64, as long as ``places``, filled; empty where they are not wanted.

    Returns:
        Where in ``node_order`` it has left off because there is no room for all edges of a node, its length where it has not, and DAMAGED;
        and the number of edges.
    """
    bits, mark_bits, begin, end = 0, 0, 0, 0
    found = np.empty(_CHUNK + 1, np.int64)
    together = nodes_ahead(ahead, node_order.size)
    for q in range(first, node_order.size):
        i = node_order[q]
        if asks(ahead) and (q - first) % together == 0:
            next_nodes = nodes[node_order[q : q + together]]
            ask_edges(ahead, relation, parts, bounds, next_nodes, INDICES, relation[INDICES_WIDTH])
        _ask_ahead(relation, parts, bounds, nodes, node_order, q)
        if q == first or node_roots[i] != node_roots[node_order[q - 1]]:
            begin = end
            while begin < members.size and member_roots[member_order[begin]] < node_roots[i]:
                begin += 1
            end = begin
            while end < members.size and member_roots[member_order[end]] == node_roots[i]:
                end += 1
            bits = _enter(members, member_order, begin, end, table)
            mark_bits = _mark(members, member_order, begin, end, marks)
        p, start, stop = edge_range(relation, parts, bounds, nodes[i])
        if stop == DAMAGED:
            return DAMAGED, num_edges
        before = num_edges
        for chunk in range(start, stop, _CHUNK):
            count = _candidates(parts[p, INDICES], relation[INDICES_WIDTH], chunk, min(stop, chunk + _CHUNK), marks, mark_bits, found)
            if count > places.size - num_edges:
                return q, before
            num_edges = _look_up(relation, parts, p, found, count, members, table, bits, num_edges, places, positions)
        counts[i] = num_edges - before
    return node_order.size, num_edges


@kernel(
    "int64(int64[::1], int64[::1], int64[:, ::1], int64[::1], int64[:, ::1], int64, boolean, boolean, uint64, uint64[::1], int64[::1],"
    " int64, int64, int64, int64, int64, int64[::1], int64[::1], int64[::1], int64[::1])"
)
def expand_owned(
    ahead: NDArray[np.int64],
    relation: NDArray[np.int64],
    parts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    global_id: NDArray[np.int64],
    fan_out: int,
    replace: bool,
    latest: bool,
    key: int,
    variates: NDArray[np.uint64],
    ids: NDArray[np.int64],
    nodes: int,
    num_nodes: int,
    roots: int,
    times: int,
    since: int,
    counts: NDArray[np.int64],
    buffers: NDArray[np.int64],
    picks: NDArray[np.int64],
    table: NDArray[np.int64],
) -> int:
    """Draws the edges of nodes, one edge type, in the passes of ``graph_access.walk``.

    Args:
        ahead: int64 ``[9 + 2 K]``, ``ReadAhead.table``.
        relation: int64 ``[6]``, see ``graph_access.walk``, and so for those that are not described here.
        parts: int64 ``[P, 6]``.
        bounds: int64 ``[P + 1]``.
        global_id: int64 ``[P, 2]``.
        fan_out: -1 for all edges.
        replace: Whether an edge may be drawn more than once.
        latest: Whether a node's last edges are taken, where they have times, instead of some that are drawn.
        key: Of batch, hop and edge type; and of the root, where ``roots`` is 0.
        variates: uint64 ``[4]`` or ``[0]``, of the edge type.
        ids: int64 ``[2]``, of the neighbours' type.
        nodes: Address of int64 ``[num_nodes]`` store ids, all of local parts.
        num_nodes: How many.
        roots: Address of int64 ``[num_nodes]``, or 0.
        times: Address of int64 ``[num_nodes]``: later edges do not count; or 0.
        since: Address of int64 ``[num_nodes]``: earlier edges do not count; or 0.
        counts: int64 ``[num_nodes]``, filled: edges of each node.
        buffers: int64 ``[4]``; rows receive the neighbours' store ids, columns are scratch.
        picks: int64, longer than the most edges that a node draws.
        table: int64, scratch of ``picks.pick_uniform``.

    Returns:
        The number of edges, or FULL where the buffers are too small, or DAMAGED where an index leads out of the graph.
    """
    work = np.empty((WORK_ROWS, BLOCK), np.int64)
    row, width, num_edges = buffers[ROW], relation[INDICES_WIDTH], 0
    together = nodes_ahead(ahead, num_nodes)
    for first in range(0, num_nodes, BLOCK):
        last = min(num_nodes, first + BLOCK)
        if first % together == 0:
            ask_draws(
                ahead, relation, parts, bounds, global_id, fan_out, replace, latest, uint64(key), variates, ids, nodes, roots, times,
                since, first, min(num_nodes, first + together), buffers, num_edges, work, picks, table,
            )  # fmt: skip
        needed = measure(ahead, relation, parts, bounds, fan_out, replace, nodes, first, last, num_nodes, times, since, work)
        if needed < 0:
            return DAMAGED
        if num_edges + needed > buffers[CAPACITY]:
            return FULL
        end = choose(
            ahead, relation, parts, bounds, global_id, fan_out, replace, latest, uint64(key), variates, ids, nodes, roots, first, last,
            buffers, num_edges, work, picks, table,
        )  # fmt: skip
        for i in range(first, last):
            count = work[COUNT, i - first]
            counts[i] = count if count == 0 or takes_all(count, fan_out, replace) else fan_out
        use_draws(ahead, row, num_edges, end, width)
        damaged = False
        for q in range(num_edges, end):
            u = load_id(load_i64(row + q * 8), 0, width)
            damaged |= uint64(u) >= uint64(relation[NUM_NEIGHBOR_NODES])
            store_i64(row + q * 8, u)
        if damaged:
            return DAMAGED
        num_edges = end
    return num_edges


@kernel("boolean(int64, int64, int64[::1], int64[::1])")
def all_local(ids: int, count: int, bounds: NDArray[np.int64], is_local: NDArray[np.int64]) -> bool:
    """Whether every id is one of a local part.

    Args:
        ids: Address of int64 ``[count]``.
        count: How many.
        bounds: int64 ``[P + 1]``.
        is_local: int64 ``[P]``, 1 for local parts.
    """
    local = True
    for i in range(count):
        v = load_i64(ids + i * 8)
        inside = 0 <= v < bounds[bounds.size - 1]
        local &= inside and is_local[find_part(bounds, v if inside else 0)] == 1
    return local


_MOST_PREALLOCATED = 1 << 22
# Nodes of a piece of a request, and edges that they may draw: a fraction of a second, and more than one hop of most batches.
_PIECE_NODES, _PIECE_EDGES = 1 << 16, 1 << 20


def _address_or_0(array: NDArray[np.int64]) -> int:
    return address_of(array) if len(array) else 0


def _go_on() -> None:
    """No other thread waits."""


class PartOwner:
    """Answers requests about the parts that are here; one object per thread.

    Args:
        tables: The graph.
        parts: The parts that may be asked about; local ones.
        pause: Called between the pieces of a large request: lets others have their turn.
    """

    def __init__(self, tables: GraphTables, parts: tuple[int, ...], pause: Callable[[], None] = _go_on) -> None:
        assert set(parts) <= set(tables.graph.structure_parts)
        self.tables, self._pause = tables, pause
        self._is_local = np.zeros(tables.graph.num_parts, np.int64)
        self._is_local[list(parts)] = 1
        every: list[RowTable] = []
        for group in (tables.node_rows, tables.node_ids, tables.edge_rows, tables.edge_ids):
            every += group.values()
        self._row_tables = {table.index: table for table in every if not table.is_identity}
        self._buffers = [np.empty((3, 0), np.int64) for _ in tables.edge_types]
        self._counts = [np.empty(0, np.int64) for _ in tables.edge_types]

    def use(self, tables: GraphTables) -> None:
        """Switches to another copy of the same graph."""
        self.tables = tables

    def expand(self, request: Expansion) -> dict[int, Picks]:
        """Draws edges.

        Returns:
            ``{index of an edge type: Picks}``, valid until the next call.

        Raises:
            BadRequest: A node is not of a local part, or the request does not fit the graph.
            StoreError: The graph is damaged.
            MemoryLimitError: There is no memory for so many edges.
        """
        tables = self.tables
        if len(request.fan_outs) != len(tables.edge_types) or len(request.wants_position) != len(tables.edge_types):
            raise BadRequest(f"fan-outs for {len(request.fan_outs)} edge types of {len(tables.edge_types)}")
        for t, nodes in request.nodes.items():
            if not 0 <= t < len(tables.node_types):
                raise BadRequest(f"there is no node type {t}")
            self._check(t, nodes)
            for given in (request.roots, request.times, request.since):
                if given is not None and (t not in given or len(given[t]) != len(nodes)):
                    raise BadRequest("roots or times do not fit the nodes")
        frontier = tables.relations[:, FRONTIER].tolist()
        return {r: self._expand(request, r, t) for r, t in enumerate(frontier) if request.fan_outs[r] != 0 and t in request.nodes}

    def _check(self, bounds: int, ids: NDArray[np.int64]) -> None:
        if not all_local(address_of(ids), len(ids), self.tables.row_bounds[bounds], self._is_local):
            raise BadRequest("an id is none of the parts that are here")

    def _expand(self, request: Expansion, r: int, t: int) -> Picks:
        tables, fan_out, nodes = self.tables, int(request.fan_outs[r]), request.nodes[t]
        roots = NO_IDS if request.roots is None else request.roots[t]
        times = NO_IDS if request.times is None else request.times[t]
        since = NO_IDS if request.since is None else request.since[t]
        key = fold(fold(request.key, request.hop), int(tables.relation_keys[r]))
        if request.roots is None:
            key = fold(key, 0)
        variates = NO_VARIATES if request.variates is None else request.variates.table(tables, request.hop)[r]
        ids = tables.dataset_ids[tables.neighbor_types[r]] if len(variates) else np.zeros(2, np.int64)
        relation = tables.relations[r].copy()
        relation[WEIGHTED] &= request.weighted
        if len(self._counts[r]) < len(nodes):
            self._counts[r] = np.empty(2 * len(nodes), np.int64)
        self._reserve(r, min(len(nodes) * max(1, fan_out), _MOST_PREALLOCATED))
        size, first, num_edges = max(1, min(_PIECE_NODES, _PIECE_EDGES // max(1, fan_out))), 0, 0
        while first < len(nodes):
            piece = slice(first, min(len(nodes), first + size))
            capacity = self._buffers[r].shape[1] - num_edges
            # Without replacement no node draws more than there are.
            drawn_at_most = fan_out if request.replace else min(fan_out, tables.num_edges(r))
            most = max(1, drawn_at_most, capacity if fan_out < 0 and relation[WEIGHTED] == 1 else 0)
            table = np.empty(2 if most <= LINEAR_FAN_OUT else 1 << (2 * most - 1).bit_length(), np.int64)
            row, col, position = (address_of(array) + 8 * num_edges for array in self._buffers[r])
            buffers = np.array([row, col, position if request.wants_position[r] else 0, capacity], np.int64)
            drawn = expand_owned(
                tables.ahead, relation, tables.parts[r], tables.bounds[t], tables.global_ids[t], fan_out, request.replace, request.last,
                np.uint64(key), variates, ids, address_of(nodes[piece]), piece.stop - first, _address_or_0(roots[piece]),
                _address_or_0(times[piece]), _address_or_0(since[piece]), self._counts[r][piece], buffers,
                np.empty(most + 1, np.int64), table,
            )  # fmt: skip
            if drawn == DAMAGED:
                raise damaged(LOOSE_EDGE)
            if drawn == FULL:
                self._reserve(r, 2 * (num_edges + capacity), kept=num_edges)
                continue
            first, num_edges = piece.stop, num_edges + drawn
            if first < len(nodes):
                self._pause()
        found = self._buffers[r][:, :num_edges]
        return Picks(self._counts[r][: len(nodes)], found[0], found[2] if request.wants_position[r] else None)

    def _pieces(self, count: int, at_least: int = 0) -> Iterator[slice]:
        """The pieces of ``count`` nodes that are looked up, with a pause between two."""
        size = max(_PIECE_NODES, at_least)
        for first in range(0, count, size):
            if first:
                self._pause()
            yield slice(first, min(count, first + size))

    def answer(self, question: Question) -> Answer:
        """Answers a question about edges.

        Raises:
            BadRequest: A node is not of a local part, or the question does not fit the graph.
            StoreError: The graph is damaged.
            MemoryLimitError: There is no memory for so many edges.
        """
        tables, relations = self.tables, question.relations
        if not relations or not all(0 <= r < len(tables.edge_types) for r in relations):
            raise BadRequest(f"there are no edge types {relations}")
        ends = {int(tables.relations[r, FRONTIER]) for r in relations}
        if len(ends) != 1 or (len(relations) > 1 and question.what != "degrees"):
            raise BadRequest("the edge types do not belong together")
        t = ends.pop()
        self._check(t, question.nodes)
        if question.what == "degrees":
            return self._degrees(question, t)
        if question.what == "weights":
            return self._weights(question, t)
        return self._has_edges(question, t) if question.what == "has_edges" else self._induce(question, t)

    def _degrees(self, question: Question, t: int) -> Answer:
        tables, degrees = self.tables, np.zeros(len(question.nodes), np.int64)
        for r in question.relations:
            for piece in self._pieces(len(degrees)):
                if not add_degrees(
                    tables.ahead, tables.relations[r], tables.parts[r], tables.bounds[t], question.nodes[piece], degrees[piece]
                ):
                    raise damaged(LOOSE_EDGE)
        return {"degrees": degrees}

    def _has_edges(self, question: Question, t: int) -> Answer:
        tables, (r,), found = self.tables, question.relations, np.empty(len(question.nodes), np.uint8)
        if len(question.others) != len(found):
            raise BadRequest(f"{len(question.others)} other ends of {len(found)} edges")
        for piece in self._pieces(len(found)):
            ends = question.nodes[piece], question.others[piece]
            if not find_edges(tables.ahead, tables.relations[r], tables.parts[r], tables.bounds[t], *ends, found[piece]):
                raise damaged(LOOSE_EDGE)
        return {"found": found}

    def _induce(self, question: Question, t: int) -> Answer:
        tables, (r,), nodes, members = self.tables, question.relations, question.nodes, question.others
        roots = question.node_roots, question.other_roots
        rooted = bool(len(roots[0]) or len(roots[1]))
        if not rooted:
            roots = np.zeros(len(nodes), np.int64), np.zeros(len(members), np.int64)
        if (len(roots[0]), len(roots[1])) != (len(nodes), len(members)):
            raise BadRequest("the roots do not fit the nodes")
        node_order, member_order = (np.argsort(of_nodes, kind="stable") for of_nodes in roots)
        table, marks = scratch_for(len(members))
        counts, done, num_edges = np.zeros(len(nodes), np.int64), 0, 0
        # Every piece enters the members of its roots anew: it has enough nodes for that to be little of its work.
        for piece in self._pieces(len(nodes), len(members) // 4):
            while done < piece.stop:
                _, places, positions = self._buffers[r]
                done, num_edges = induce(
                    tables.ahead, tables.relations[r], tables.parts[r], tables.bounds[t], nodes, roots[0], node_order[: piece.stop],
                    members, roots[1], member_order, table, marks, done, num_edges, counts, places,
                    positions if question.wants_position else NO_IDS,
                )  # fmt: skip
                if done == DAMAGED:
                    raise damaged(LOOSE_EDGE)
                if done < piece.stop:
                    self._reserve(r, max(2 * len(places), 4 * len(nodes)), kept=num_edges)
        spare, places, positions = self._buffers[r][:, :num_edges]
        if rooted:  # they were listed root after root
            own = counts[node_order]
            target = np.repeat((np.cumsum(counts) - counts)[node_order] - (np.cumsum(own) - own), own) + np.arange(num_edges)
            spare[target], places[target] = places, positions
            places, positions = spare, places
        found = {"counts": counts, "neighbors": places}
        return {**found, "positions": positions} if question.wants_position else found

    def _weights(self, question: Question, t: int) -> Answer:
        tables, (r,), counts = self.tables, question.relations, np.empty(len(question.nodes), np.int64)
        if tables.relations[r, WEIGHTED] != 1:
            raise BadRequest(f"edge type {r} has no weights")
        num_edges = 0
        for piece in self._pieces(len(counts)):
            while True:
                weights = self._buffers[r][0, num_edges:]
                found = list_weights(
                    tables.ahead, tables.relations[r], tables.parts[r], tables.bounds[t], question.nodes[piece], counts[piece], weights
                )
                if found == DAMAGED:
                    raise damaged(LOOSE_EDGE)
                if found >= 0:
                    break
                self._reserve(r, max(2 * (num_edges + len(weights)), 4 * len(question.nodes)), kept=num_edges)
            num_edges += found
        return {"counts": counts, "weights": self._buffers[r][0, :num_edges]}

    def _reserve(self, r: int, capacity: int, kept: int = 0) -> None:
        if self._buffers[r].shape[1] >= capacity:
            return
        needed, free = 24 * capacity, available_memory()
        if needed > free:
            raise MemoryLimitError(
                f"the edges of one hop need {needed / 1e6:.0f} MB, {free / 1e6:.0f} MB are free", "lower batch_size or num_neighbors"
            )
        before, self._buffers[r] = self._buffers[r], np.empty((3, capacity + SPARE_EDGES), np.int64)[:, :capacity]
        self._buffers[r][:, :kept] = before[:, :kept]

    def rows(self, request: RowsRequest) -> Iterator[NDArray[np.uint8]]:
        """Yields the messages that ``RowsRequest.messages`` describes, each in memory that the next one overwrites.

        Raises:
            BadRequest: An id is not of a local part, or the request does not fit the graph.
        """
        tables = self.tables
        for bounds, ids in request.lists:
            if not 0 <= bounds < len(tables.row_bounds):
                raise BadRequest(f"there is no type {bounds}")
            self._check(bounds, ids)
        for index, which, width in request.sections:
            table = self._row_tables.get(index)
            if table is None or not 0 <= which < len(request.lists):
                raise BadRequest(f"there is no array {index}")
            if (table.bounds, table.row_nbytes) != (request.lists[which][0], width):
                raise BadRequest(f"array {index} has rows of {table.row_nbytes} bytes and belongs to type {table.bounds}")
        return self._gather(request)

    def _gather(self, request: RowsRequest) -> Iterator[NDArray[np.uint8]]:
        tables, sizes = self.tables, [request.nbytes(message) for message in request.messages]
        block = np.empty(max(sizes, default=0), np.uint8)
        start, sections = address_of(block), []
        for index, which, width in request.sections:
            bounds, ids = request.lists[which]
            sections.append((address_of(ids), width, index, bounds))

        def step(section: int, first: int, count: int, offset: int) -> RowStep:
            ids, width, index, bounds = sections[section]
            return GATHER, ids + 8 * first, count, width, start + offset, index, bounds

        # The steps of all messages at once: what runs between two of them finds caches that rows have filled.
        steps = [np.array([step(*piece) for piece in message], np.int64) for message in request.messages]
        for of_message, nbytes in zip(steps, sizes, strict=True):
            fill(tables.ahead, of_message, tables.row_addresses, tables.row_bounds, tables.meanings)
            yield block[:nbytes]

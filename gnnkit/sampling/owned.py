"""Answers to other hosts, and to this one: the edges that nodes of local parts draw, and rows of local parts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from gnnkit.errors import MemoryLimitError, StoreError
from gnnkit.host import available_memory
from gnnkit.sampling import fill as fill_kernel
from gnnkit.sampling.jit import kernel
from gnnkit.sampling.native import load_i64, store_i64
from gnnkit.sampling.owners import ExpandRequest, Picks, RowsRequest
from gnnkit.sampling.picks import LINEAR_FAN_OUT, takes_all
from gnnkit.sampling.stream import fold
from gnnkit.sampling.tables import GraphTables, RowTable, address_of
from gnnkit.sampling.walk import (
    BLOCK,
    CAPACITY,
    COUNT,
    DAMAGED,
    FRONTIER,
    INDICES_WIDTH,
    NUM_NEIGHBOR_NODES,
    ROW,
    WEIGHTED,
    choose,
    find_part,
    load_id,
    measure,
)

FULL = -1
_MOST_PREALLOCATED = 1 << 22


@kernel(
    "int64(int64[::1], int64[:, ::1], int64[::1], int64[:, ::1], int64, boolean, uint64, int64, int64, int64[::1], int64[::1],"
    " int64[::1], int64[::1])"
)
def expand_owned(
    relation: NDArray[np.int64],
    parts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    global_id: NDArray[np.int64],
    fan_out: int,
    replace: bool,
    key: int,
    nodes: int,
    num_nodes: int,
    counts: NDArray[np.int64],
    buffers: NDArray[np.int64],
    picks: NDArray[np.int64],
    table: NDArray[np.int64],
) -> int:
    """Draws the edges of nodes, one edge type, in the passes of ``walk.walk``.

    Args:
        relation: int64 ``[6]``, see ``walk.walk``, and so for those that are not described here.
        parts: int64 ``[P, 5]``.
        bounds: int64 ``[P + 1]``.
        global_id: int64 ``[P, 2]``.
        fan_out: -1 for all edges.
        replace: Whether an edge may be drawn more than once.
        key: Of batch, hop, edge type and root.
        nodes: Address of int64 ``[num_nodes]`` store ids, all of local parts.
        num_nodes: How many.
        counts: int64 ``[num_nodes]``, filled: edges of each node.
        buffers: int64 ``[4]``; rows receive the neighbours' store ids, columns are scratch.
        picks: int64, as long as the most edges that a node draws.
        table: int64, scratch of ``picks.pick_uniform``.

    Returns:
        The number of edges, or FULL where the buffers are too small, or DAMAGED where an index leads out of the graph.
    """
    work = np.empty((4, BLOCK), np.int64)
    row, width, num_edges = buffers[ROW], relation[INDICES_WIDTH], 0
    for first in range(0, num_nodes, BLOCK):
        last = min(num_nodes, first + BLOCK)
        needed = measure(relation, parts, bounds, fan_out, replace, nodes, first, last, num_nodes, work)
        if needed < 0:
            return DAMAGED
        if num_edges + needed > buffers[CAPACITY]:
            return FULL
        end = choose(
            relation, parts, bounds, global_id, fan_out, replace, uint64(key), nodes, first, last, buffers, num_edges, work, picks, table
        )  # fmt: skip
        for i in range(first, last):
            count = work[COUNT, i - first]
            counts[i] = count if count == 0 or takes_all(count, fan_out, replace) else fan_out
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


class BadRequest(ValueError):
    """A request that cannot be answered; the one who sent it is to blame."""


class PartOwner:
    """Answers requests about the parts that are here; one object per thread.

    Args:
        tables: The graph.
        parts: The parts that may be asked about; local ones.
    """

    def __init__(self, tables: GraphTables, parts: tuple[int, ...]) -> None:
        assert set(parts) <= set(tables.graph.local_parts)
        self.tables = tables
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

    def expand(self, request: ExpandRequest) -> dict[int, Picks]:
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
        frontier = tables.relations[:, FRONTIER].tolist()
        return {
            r: self._expand(request, r, request.nodes[t]) for r, t in enumerate(frontier) if request.fan_outs[r] != 0 and t in request.nodes
        }

    def _check(self, bounds: int, ids: NDArray[np.int64]) -> None:
        if not all_local(address_of(ids), len(ids), self.tables.row_bounds[bounds], self._is_local):
            raise BadRequest("an id is none of the parts that are here")

    def _expand(self, request: ExpandRequest, r: int, nodes: NDArray[np.int64]) -> Picks:
        tables, fan_out = self.tables, int(request.fan_outs[r])
        t = int(tables.relations[r, FRONTIER])
        key = fold(fold(fold(request.key, request.hop), int(tables.relation_keys[r])), 0)
        if len(self._counts[r]) < len(nodes):
            self._counts[r] = np.empty(2 * len(nodes), np.int64)
        self._reserve(r, min(len(nodes) * max(1, fan_out), _MOST_PREALLOCATED))
        while True:
            capacity = self._buffers[r].shape[1]
            most = max(1, fan_out, capacity if fan_out < 0 and tables.relations[r, WEIGHTED] == 1 else 0)
            table = np.empty(2 if most <= LINEAR_FAN_OUT else 1 << (2 * most - 1).bit_length(), np.int64)
            row, col, position = (address_of(array) for array in self._buffers[r])
            buffers = np.array([row, col, position if request.wants_position[r] else 0, capacity], np.int64)
            num_edges = expand_owned(
                tables.relations[r], tables.parts[r], tables.bounds[t], tables.global_ids[t], fan_out, request.replace, np.uint64(key),
                address_of(nodes), len(nodes), self._counts[r], buffers, np.empty(most, np.int64), table,
            )  # fmt: skip
            if num_edges == DAMAGED:
                raise StoreError("the graph is damaged: an edge leads to a node that does not exist", "gnnkit info --verify names the file")
            if num_edges >= 0:
                found = self._buffers[r][:, :num_edges]
                return Picks(self._counts[r][: len(nodes)], found[0], found[2] if request.wants_position[r] else None)
            self._reserve(r, 2 * capacity)

    def _reserve(self, r: int, capacity: int) -> None:
        if self._buffers[r].shape[1] >= capacity:
            return
        needed, free = 24 * capacity, available_memory()
        if needed > free:
            raise MemoryLimitError(
                f"the edges of one hop need {needed / 1e6:.0f} MB, {free / 1e6:.0f} MB are free", "lower batch_size or num_neighbors"
            )
        self._buffers[r] = np.empty((3, capacity), np.int64)

    def rows(self, request: RowsRequest) -> Iterator[NDArray[np.uint8]]:
        """Yields the messages that ``RowsRequest.messages`` describes, each in memory of its own.

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
        for message in request.messages:
            block = np.empty(request.nbytes(message), np.uint8)
            start, steps = address_of(block), []
            for section, first, count, offset in message:
                index, which, width = request.sections[section]
                bounds, ids = request.lists[which]
                steps.append((fill_kernel.GATHER, address_of(ids) + 8 * first, count, width, start + offset, index, bounds))
            fill_kernel.fill(np.array(steps, np.int64), self.tables.row_addresses, self.tables.row_bounds)
            yield block

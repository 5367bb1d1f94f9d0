"""Numbers for nodes as they are first seen: in one neighbourhood for all seeds, or in one for each root."""

# Intrinsics have no type hints, so what they return is Any to mypy.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import Any

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from gnnkit.kernels.jit import helper, kernel
from gnnkit.kernels.keys import GOLDEN
from gnnkit.kernels.native import begin_of, prefetch
from gnnkit.kernels.stream import fold_u64
from gnnkit.sampling.graph_access import NodeScratch
from gnnkit.sampling.owners import NO_IDS
from gnnkit.sampling.passes import BASE, LOCAL_OF, NODES, load_id, mark_seeds, number_one
from gnnkit.sampling.subgraph import LOOSE_EDGE, WalkSeeds, damaged
from gnnkit.sampling.tables import GraphTables, address_of

_AHEAD = 16
# In a table of indices: nothing is here.
EMPTY = -1
# Steps in a root's region before a node is put anywhere.
_REGION_STEPS = 8


@kernel("void(int64[:, ::1], int64[::1])")
def enter_seeds(node_buffers: NDArray[np.int64], num_nodes: NDArray[np.int64]) -> None:
    """Enters the seeds into the relabelling tables, see ``graph_access.walk``."""
    mark_seeds(node_buffers, num_nodes)


@kernel("int64(int64, int64, int64, int64[::1], int64, int64[::1])")
def number_nodes(ids: int, width: int, size: int, buffer: NDArray[np.int64], num_nodes: int, numbers: NDArray[np.int64]) -> int:
    """Gives nodes their numbers.

    Args:
        ids: Address of store ids ``[n]``.
        width: Their width in bytes.
        size: Nodes of the type in the graph.
        buffer: int64 ``[3]``, see ``graph_access.walk``.
        num_nodes: Numbers that have been given out.
        numbers: int64 ``[n]``, filled.

    Returns:
        The new number of numbers, or -1 where an id is none of the graph's.
    """
    local_of, base, count = buffer[LOCAL_OF], buffer[BASE], numbers.size
    for i in range(count):
        u = load_id(ids, i, width)
        if uint64(u) >= uint64(size):
            return -1
        numbers[i] = u
    for i in range(count):
        if i + _AHEAD < count:
            prefetch(local_of + numbers[i + _AHEAD] * 4)
        numbers[i], num_nodes = number_one(numbers[i], local_of, buffer[NODES], base, num_nodes)
    return num_nodes


@helper
def _start(mask: np.uint64, region_bits: int, node: int, root: int) -> np.uint64:
    """The first place where a (root, node) may be in a table.

    A root's nodes are asked for one after the other, so each root has a region of the table, which the cache can hold.
    """
    region = (uint64(root) << uint64(region_bits)) & mask
    return region | ((uint64(node) * uint64(GOLDEN)) >> uint64(64 - region_bits))


@helper
def find_pair(table: NDArray[Any], first: NDArray[np.int64], second: NDArray[np.int64], a: int, b: int) -> np.uint64:
    """Returns the slot of a pair's index in a table of indices of pairs ``(first[i], second[i])``, or the empty slot where it belongs."""
    mask = uint64(table.size - 1)
    slot = fold_u64(uint64(a), uint64(b)) & mask
    while table[slot] != EMPTY and (first[uint64(table[slot])] != a or second[uint64(table[slot])] != b):
        slot = (slot + uint64(1)) & mask
    return slot


@kernel("int64(int64, int64, int64, int64[::1], int64[::1], int64[::1], int32[::1], int64, int64, int64[::1])")
def number_rooted(
    ids: int,
    width: int,
    size: int,
    id_roots: NDArray[np.int64],
    nodes: NDArray[np.int64],
    roots: NDArray[np.int64],
    table: NDArray[np.int32],
    region_bits: int,
    num_nodes: int,
    numbers: NDArray[np.int64],
) -> int:
    """Gives nodes of roots their numbers. The first of equal ones is the one that is found.

    Args:
        ids: Address of store ids ``[n]``.
        width: Their width in bytes.
        size: Nodes of the type in the graph.
        id_roots: int64 ``[n]``.
        nodes: int64, the nodes that have numbers; with room for ``n`` more.
        roots: int64, likewise.
        table: int32, a power of two above the number of nodes and ``n`` together long: where each node's number is, -1 elsewhere.
        region_bits: Base-2 logarithm of a root's region in it, at least 1 and at most that of the table.
        num_nodes: Numbers that have been given out; -1 where ``ids`` are ``nodes`` themselves, to be entered into an empty table.
        numbers: int64 ``[n]``, filled.

    Returns:
        The new number of numbers, or -1 where an id is none of the graph's.
    """
    count, mask, inside = numbers.size, uint64(table.size - 1), uint64((1 << region_bits) - 1)
    entering, address = num_nodes < 0, begin_of(table)
    for i in range(count):
        if i + _AHEAD < count:
            ahead = _start(mask, region_bits, load_id(ids, i + _AHEAD, width), id_roots[i + _AHEAD])
            prefetch(address + 4 * np.int64(ahead))
        node, root = load_id(ids, i, width), id_roots[i]
        if uint64(node) >= uint64(size):
            return -1
        slot, steps = _start(mask, region_bits, node, root), 0
        place = table[slot]
        while place != EMPTY and (nodes[uint64(place)] != node or roots[uint64(place)] != root):
            steps += 1
            slot = (slot & ~inside) | ((slot + uint64(1)) & inside)
            if steps == _REGION_STEPS:
                slot = find_pair(table, roots, nodes, root, node)
            place = table[slot]
        if place == EMPTY:
            place = i if entering else num_nodes
            table[slot] = place
            if not entering:
                nodes[num_nodes], roots[num_nodes] = node, root
                num_nodes += 1
        numbers[i] = place
    return num_nodes


class BatchNumbering:
    """Numbers of the nodes of one batch after another.

    Args:
        tables: The graph.
        scratch: The thread's memory per node.
    """

    def __init__(self, tables: GraphTables, scratch: NodeScratch) -> None:
        self._sizes = [tables.graph.schema.node_types[t].num_nodes for t in tables.node_types]
        self._scratch = scratch
        self._rooted: list[_RootedNodes] | None = None
        self._kept = [_RootedNodes(size) for size in self._sizes]

    def begin(self, seeds: WalkSeeds) -> None:
        """Begins a batch: seeds have the first numbers, a repeated one one of its own."""
        if seeds.roots is None:
            self._rooted = None
            self._scratch.begin(seeds.nodes)
            enter_seeds(self._scratch.buffers, self._scratch.num_nodes)
            return
        self._rooted = self._kept
        num_roots = 1 + max((int(roots.max()) for roots in seeds.roots.values() if len(roots)), default=0)
        for t, kept in enumerate(self._kept):
            kept.begin(seeds.nodes.get(t), seeds.roots.get(t), num_roots)

    def number(
        self, t: int, ids: NDArray[Any], roots: NDArray[np.int64] | None = None, into: NDArray[np.int64] | None = None
    ) -> NDArray[np.int64]:
        """The numbers of nodes; those that are new get the next ones.

        Args:
            t: Index of their type.
            ids: int32 or int64 ``[n]`` store ids.
            roots: int64 ``[n]``, where seeds have roots.
            into: int64 ``[n]``, filled; None makes one.

        Returns:
            int64 ``[n]``.

        Raises:
            StoreError: The graph is damaged: a node is none of the graph's.
        """
        scratch, numbers = self._scratch, np.empty(len(ids), np.int64) if into is None else into
        ids = np.require(ids, requirements=["C", "A"])
        if self._rooted is not None:
            assert roots is not None, "seeds have roots, and so have all nodes"
            self._rooted[t].number(ids, np.ascontiguousarray(roots), numbers)
            return numbers
        found = number_nodes(address_of(ids), ids.itemsize, self._sizes[t], scratch.buffers[t], scratch.num_nodes[t], numbers)
        if found < 0:
            raise damaged(LOOSE_EDGE)
        scratch.num_nodes[t] = found
        return numbers

    def count(self, t: int) -> int:
        """Counts the nodes of a type that have a number."""
        return int(self._scratch.num_nodes[t]) if self._rooted is None else self._rooted[t].count

    def nodes(self, t: int) -> NDArray[np.int64]:
        """int64 ``[n]``, store ids in the order of their numbers; a view, valid until the next number is given."""
        return (
            self._scratch.nodes[t][: self._scratch.num_nodes[t]] if self._rooted is None else self._rooted[t].nodes[: self._rooted[t].count]
        )

    def roots(self, t: int) -> NDArray[np.int64] | None:
        """int64 ``[n]``, the nodes' roots, likewise; None where seeds have none."""
        return None if self._rooted is None else self._rooted[t].roots[: self._rooted[t].count]


class _RootedNodes:
    """The (root, node) pairs of one type."""

    def __init__(self, size: int) -> None:
        self._size, self._num_roots = size, 1
        self.nodes, self.roots = np.empty(0, np.int64), np.empty(0, np.int64)
        self._table = np.empty(2, np.int32)
        self.count = 0

    def begin(self, ids: NDArray[np.int64] | None, roots: NDArray[np.int64] | None, num_roots: int) -> None:
        self.count, self._num_roots = 0, num_roots
        if ids is None or roots is None:
            ids = roots = NO_IDS
        self._make_room(len(ids))
        self.nodes[: len(ids)], self.roots[: len(ids)] = ids, roots
        self.count = len(ids)
        self._enter()

    def number(self, ids: NDArray[Any], roots: NDArray[np.int64], numbers: NDArray[np.int64]) -> None:
        if self._make_room(len(ids)):
            self._enter()
        self.count = self._number(ids, roots, self.count, numbers)

    def _enter(self) -> None:
        """Makes the table anew."""
        self._table[:] = EMPTY
        self._number(self.nodes[: self.count], self.roots[: self.count], -1, np.empty(self.count, np.int64))

    def _number(self, ids: NDArray[Any], roots: NDArray[np.int64], num_nodes: int, numbers: NDArray[np.int64]) -> int:
        bits = max(1, (len(self._table) // self._num_roots).bit_length() - 1)
        found = number_rooted(
            address_of(ids), ids.itemsize, self._size, roots, self.nodes, self.roots, self._table, bits, num_nodes, numbers
        )  # fmt: skip
        if found < 0 <= num_nodes:
            raise damaged(LOOSE_EDGE)
        return int(found)

    def _make_room(self, more: int) -> bool:
        """Makes room for more nodes; whether the table must be made anew."""
        wanted = self.count + more
        if len(self.nodes) < wanted:
            nodes, roots = np.empty(2 * wanted, np.int64), np.empty(2 * wanted, np.int64)
            nodes[: self.count], roots[: self.count] = self.nodes[: self.count], self.roots[: self.count]
            self.nodes, self.roots = nodes, roots
        if 2 * len(self._table) < 3 * wanted:
            self._table = np.empty(1 << (3 * wanted // 2).bit_length(), np.int32)
            return True
        return False

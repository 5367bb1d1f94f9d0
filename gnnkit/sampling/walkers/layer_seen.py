"""The nodes that a walk with budgets has met, candidates and chosen ones, found by hashing: far fewer than the graph has."""

# Intrinsics have no type hints, so what they return is Any to mypy.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from gnnkit.kernels.jit import helper, kernel
from gnnkit.kernels.keys import GOLDEN
from gnnkit.sampling.tables import GraphTables

_FIRST_CAPACITY = 1 << 12


@helper
def _place(table: NDArray[np.int64], ids: NDArray[np.int64], node: int) -> int:
    """Returns the place in the table that a node's slot has or gets."""
    mask = table.size - 1
    # Multiplicative hashing: the product's upper half is well mixed (Knuth, volume 3, section 6.4).
    place = np.int64((uint64(node) * uint64(GOLDEN)) >> uint64(32)) & mask
    while table[place] >= 0 and ids[table[place]] != node:
        place = (place + 1) & mask
    return place


@kernel("int64(int64[::1], int64[::1], int64[::1], int64, boolean, int64[::1])")
def find_slots(
    nodes: NDArray[np.int64], table: NDArray[np.int64], ids: NDArray[np.int64], size: int, insert: bool, slots: NDArray[np.int64]
) -> int:
    """Looks nodes up, and enters those that were not met before.

    Args:
        nodes: int64 ``[n]``.
        table: int64, a power of two of places: slots, -1 where free; at most half of them used afterwards.
        ids: int64: the node of each slot.
        size: Slots in use.
        insert: Whether to enter new nodes; they get -1 otherwise.
        slots: int64 ``[n]``, filled.

    Returns:
        The new number of slots in use.
    """
    for i in range(nodes.size):
        place = _place(table, ids, nodes[i])
        if table[place] < 0 and insert:
            table[place], ids[size] = size, nodes[i]
            size += 1
        slots[i] = table[place]
    return size


@kernel("void(int64[::1], int64[::1], int64)")
def _rehash(table: NDArray[np.int64], ids: NDArray[np.int64], size: int) -> None:
    """Enters the first ``size`` slots into an empty table."""
    for slot in range(size):
        table[_place(table, ids, ids[slot])] = slot


@kernel("int64(int64[::1], int64[::1], int64, int64[::1])")
def number_slots(slots: NDArray[np.int64], number: NDArray[np.int64], count: int, new: NDArray[np.int64]) -> int:
    """Writes numbers over slots.

    Args:
        slots: int64 ``[n]``.
        number: int64: the number of each slot, -1 for those that get one.
        count: Numbers that were given out before.
        new: int64 ``[n]``, filled: slots that have got one.

    Returns:
        How many those are.
    """
    found = 0
    for i in range(slots.size):
        slot = slots[i]
        if number[slot] < 0:
            number[slot], new[found] = count + found, slot
            found += 1
        slots[i] = number[slot]
    return found


class SeenNodes:
    """Nodes of one type that the current walk has met, each with a slot, in the order in which they were first met.

    Args:
        num_nodes: How many nodes the type has.

    Attributes:
        size: Slots in use.
        count: How many nodes the batch has.
    """

    def __init__(self, num_nodes: int) -> None:
        self._most = num_nodes
        self._table = np.empty(0, np.int64)
        self._ids, self._number = np.empty(0, np.int64), np.empty(0, np.int64)
        self.size, self.count = 0, 0
        self._nodes: list[NDArray[np.int64]] = []

    @property
    def number(self) -> NDArray[np.int64]:
        """int64 ``[size]``, a node's number in the batch, -1 for one that has none yet."""
        return self._number[: self.size]

    def nodes(self) -> NDArray[np.int64]:
        """int64 ``[count]``, store ids of the batch's nodes in the order of their numbers."""
        return np.concatenate(self._nodes) if self._nodes else np.empty(0, np.int64)

    def begin(self, seeds: NDArray[np.int64] | None) -> None:
        """Forgets everything and numbers the seeds: a repeated one has several numbers, and its slot has the first."""
        self._table.fill(-1)
        self.size, self.count, self._nodes = 0, 0, []
        if seeds is not None and len(seeds):
            slots = self.slots(seeds, insert=True)
            first, where = np.unique(slots, return_index=True)
            self._number[first] = where
            self._nodes, self.count = [seeds], len(seeds)

    def slots(self, nodes: NDArray[Any], *, insert: bool) -> NDArray[np.int64]:
        """The slots of nodes; those that were not met before get one each, or -1 where ``insert`` is False.

        Returns:
            int64 ``[n]``.
        """
        nodes = np.ascontiguousarray(nodes, np.int64)
        before, slots = self.size, np.empty(len(nodes), np.int64)
        self._reserve(min(self._most, self.size + len(nodes)) if insert else self.size)
        self.size = find_slots(nodes, self._table, self._ids, self.size, insert, slots)
        self._number[before : self.size] = -1
        return slots

    def enter(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Gives the nodes of slots their numbers, those without one the next ones in turn, and writes the numbers over the slots.

        Returns:
            int64 ``[n]``, the same array.
        """
        new = np.empty(len(slots), np.int64)
        found = number_slots(slots, self._number, self.count, new)
        self._nodes.append(self._ids[new[:found]])
        self.count += found
        return slots

    def _reserve(self, size: int) -> None:
        if len(self._table) >= 2 * max(1, size):
            return
        capacity = max(_FIRST_CAPACITY, 1 << (2 * size - 1).bit_length())
        self._ids, self._number = (extended(array[: self.size], capacity // 2) for array in (self._ids, self._number))
        self._table = np.full(capacity, -1, np.int64)
        _rehash(self._table, self._ids, self.size)


@dataclass(frozen=True, eq=False)
class FrontierEdges:
    """The edges of one type of nodes with consecutive numbers, all or those that were drawn.

    Attributes:
        first: The first node's number.
        counts: int64 ``[n]``, edges of each node.
        slots: int64 ``[sum of counts]``, the neighbours among the nodes that the walk has met.
        position: int64 ``[sum of counts]``, or empty where it is not wanted.
        entries: float64 ``[sum of counts]``, the normalised adjacency, or empty likewise.
    """

    first: int
    counts: NDArray[np.int64]
    slots: NDArray[np.int64]
    position: NDArray[np.int64]
    entries: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))


def seen_nodes(tables: GraphTables) -> list[SeenNodes]:
    """One for each node type of a graph."""
    return [SeenNodes(tables.graph.schema.node_types[t].num_nodes) for t in tables.node_types]


def extended(array: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """The array, with zeros behind it up to ``size``."""
    return np.concatenate([array, np.zeros(size - len(array), np.int64)])

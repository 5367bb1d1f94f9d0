"""Memory that a sampling thread keeps: per node of the graph, and for the edges of a batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gnnkit.sampling.passes import BASE, CAPACITY, LOCAL_OF, NODES
from gnnkit.sampling.tables import GraphTables, address_of
from gnnkit.sampling.walked import STRANGE_SEED, damaged

_LARGEST_INT32 = (1 << 31) - 1
# Nodes that there is room for beside those of one batch, so that several small ones lie behind each other: never touched, never paid for.
_MORE_NODES = 1 << 16


class NodeScratch:
    """A thread's memory per node of the graph; samplers of the same thread share it, one batch at a time.

    Args:
        tables: The graph.

    Attributes:
        local_of: int32 ``[nodes]`` per node type: a node's number in a batch.
        nodes: int64, at least ``[nodes + seeds + 1]``, per node type: the batch's nodes.
        room: int64 ``[node types]``, their lengths.
        buffers: int64 ``[node types, 3]``, their addresses and the base that numbers count from; see ``walk.walk``.
        num_nodes: int64 ``[node types]``, nodes of the batch that was sampled last.
    """

    def __init__(self, tables: GraphTables) -> None:
        sizes = [tables.graph.schema.node_types[t].num_nodes for t in tables.node_types]
        self.local_of = [np.zeros(size, np.int32) for size in sizes]
        self.nodes = [np.empty(0, np.int64) for _ in sizes]
        self.buffers = np.zeros((len(sizes), 3), np.int64)
        self.buffers[:, LOCAL_OF] = [address_of(local_of) for local_of in self.local_of]
        self.num_nodes, self.room = np.zeros(len(sizes), np.int64), np.zeros(len(sizes), np.int64)

    def begin(self, seeds: dict[int, NDArray[np.int64]]) -> None:
        """Begins a batch with these seeds, by index of their node type; what was sampled before is gone.

        Raises:
            StoreError: The graph is damaged: a seed is numbered as a node that does not exist.
        """
        self._advance()
        for t, local_of in enumerate(self.local_of):
            ids = seeds.get(t)
            count = 0 if ids is None else len(ids)
            # As unsigned numbers, so that one pass finds negative ones too.
            if ids is not None and count and int(np.maximum.reduce(ids.view(np.uint64))) >= len(local_of):
                raise damaged(STRANGE_SEED)
            self.reserve(t, count)
            if ids is not None:
                self.nodes[t][:count] = ids
            self.num_nodes[t] = count

    def reserve(self, t: int, num_seeds: int) -> None:
        """Makes room for every node of a type and so many seeds, where there is less; what is there is gone then."""
        needed = len(self.local_of[t]) + num_seeds + 1
        if needed > self.room[t]:
            self.nodes[t] = np.empty(needed + _MORE_NODES, np.int64)
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
        table: int64 ``[edge types, 4]``, their addresses and capacities; see ``walk.walk``.
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
        self.arrays[r] = [np.empty(capacity, np.int64) for _ in range(count)]
        for old, new in zip(before, self.arrays[r], strict=False):
            new[:used] = old[:used]
        self.table[r] = (*map(address_of, self.arrays[r]), *[0] * (3 - count), capacity)

    def grow(self, r: int, used: int = 0) -> None:
        """Doubles the room for a type."""
        self.reserve(r, 2 * int(self.table[r, CAPACITY]), used)

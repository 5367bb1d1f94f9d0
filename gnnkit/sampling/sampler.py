"""Samples one batch: owns the scratch of one thread and drives the kernels."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import StoreError
from gnnkit.plan import NeighborSampling
from gnnkit.sampling import fill as fill_kernel
from gnnkit.sampling import walk as walk_kernel
from gnnkit.sampling.subgraph import BatchLayout, EdgeKey, Field, LayoutBuilder, NodeKey
from gnnkit.sampling.tables import GraphTables, RowTable, address_of
from gnnkit.schema import EdgeType, NodeType, reverse_edge_type

# Edges that a buffer has room for at first, at most; memory that is never touched is never paid for.
_FIRST_CAPACITY = 1 << 22
_LARGEST_INT32 = (1 << 31) - 1
VERIFY_HINT = "gnnkit info --verify names the file"


@dataclass(frozen=True)
class SampleRequest:
    """What one batch is sampled from.

    Attributes:
        key: ``stream.batch_key`` of the batch.
        input_type: The seeds' node type.
        seeds: int64 ``[b]``, store ids.
        input_id: int64 ``[b]``, the seeds' positions in the loader's input nodes.
    """

    key: int
    input_type: NodeType
    seeds: NDArray[np.int64]
    input_id: NDArray[np.int64]


class NodeScratch:
    """A thread's memory per node of the graph; samplers of the same thread share it, one batch at a time.

    Args:
        tables: The graph.

    Attributes:
        local_of: int32 ``[nodes]`` per node type: a node's number in a batch.
        nodes: int64 ``[nodes + seeds + 1]`` per node type: the batch's nodes.
        buffers: int64 ``[node types, 3]``, their addresses and the base that numbers count from; see ``walk.walk``.
        num_nodes: int64 ``[node types]``, nodes of the batch that was sampled last.
    """

    def __init__(self, tables: GraphTables) -> None:
        sizes = [tables.graph.schema.node_types[t].num_nodes for t in tables.node_types]
        self.local_of = [np.zeros(size, np.int32) for size in sizes]
        self.nodes = [np.empty(0, np.int64) for _ in sizes]
        self.buffers = np.zeros((len(sizes), 3), np.int64)
        self.num_nodes = np.zeros(len(sizes), np.int64)

    def fit(self, max_seeds: int) -> None:
        """Makes room for batches of so many seeds; what was sampled before is gone."""
        for t, local_of in enumerate(self.local_of):
            if len(self.nodes[t]) < len(local_of) + max_seeds + 1:
                self.nodes[t] = np.empty(len(local_of) + max_seeds + 1, np.int64)
            self.buffers[t, :2] = address_of(local_of), address_of(self.nodes[t])

    def advance(self) -> None:
        """Makes every entry of the relabelling tables one of an earlier batch; they are cleared only when numbers run out."""
        bases = self.buffers[:, walk_kernel.BASE]
        bases += self.num_nodes
        self.num_nodes[:] = 0
        for t, (local_of, nodes) in enumerate(zip(self.local_of, self.nodes, strict=True)):
            if bases[t] + len(nodes) > _LARGEST_INT32:
                local_of[:] = 0
                bases[t] = 0


class NeighborSampler:
    """Samples neighbourhoods of one graph; one object per thread.

    Args:
        tables: The graph.
        sampling: Fan-outs and options.
        max_seeds: The largest number of seeds in a batch.
        scratch: Memory that is shared with other samplers of the same thread and graph; None makes some.
    """

    def __init__(self, tables: GraphTables, sampling: NeighborSampling, max_seeds: int, scratch: NodeScratch | None = None) -> None:
        self.tables = tables
        self.max_seeds = max_seeds
        self._sampling = sampling
        schema = tables.graph.schema
        num_types, num_relations, num_hops = len(tables.node_types), len(tables.edge_types), sampling.num_hops
        self._fan_outs = np.zeros((num_relations, num_hops), np.int64)
        for r, edge_type in enumerate(tables.edge_types):
            self._fan_outs[r] = sampling.num_neighbors.get(edge_type, (0,) * num_hops)
        self._scratch = NodeScratch(tables) if scratch is None else scratch
        self._scratch.fit(max_seeds)
        self._node_buffers, self._num_nodes = self._scratch.buffers, self._scratch.num_nodes
        self._wants_position = [self._has_edge_rows(edge_type) for edge_type in tables.edge_types]
        self._edges: list[list[NDArray[np.int64]]] = [[] for _ in tables.edge_types]
        self._edge_buffers = np.zeros((num_relations, 4), np.int64)
        bound = self._edge_bound(max_seeds)
        for r, edge_type in enumerate(tables.edge_types):
            most = schema.edge_types[edge_type].num_edges * num_hops
            self._allocate_edges(r, max(1, min(bound, _FIRST_CAPACITY, most)))
        self._num_sampled_nodes = np.zeros((num_types, num_hops + 1), np.int64)
        self._num_sampled_edges = np.zeros((num_relations, num_hops), np.int64)

    def _has_edge_rows(self, edge_type: EdgeType) -> bool:
        if self._sampling.with_edge and edge_type in self.tables.edge_ids:
            return True
        return bool(self.tables.graph.schema.edge_types[edge_type].arrays)

    def _edge_bound(self, max_seeds: int) -> int:
        """The most edges that the fan-outs allow in one batch, any types; -1 allows any number."""
        bound, width = 0, max_seeds
        for hop in range(self._fan_outs.shape[1]):
            fan_outs = self._fan_outs[:, hop]
            if (fan_outs < 0).any() or bound > _FIRST_CAPACITY:
                return _FIRST_CAPACITY
            width *= int(fan_outs.sum())
            bound += width
        return bound

    def _allocate_edges(self, relation: int, capacity: int) -> None:
        count = 3 if self._wants_position[relation] else 2
        self._edges[relation] = [np.empty(capacity, np.int64) for _ in range(count)]
        addresses = [address_of(array) for array in self._edges[relation]] + [0] * (3 - count)
        self._edge_buffers[relation] = (*addresses, capacity)

    def use(self, tables: GraphTables) -> None:
        """Switches to another copy of the same graph."""
        assert tables.graph.schema is self.tables.graph.schema
        self.tables = tables

    def sample(self, request: SampleRequest) -> BatchLayout:
        """Chooses the batch's nodes and edges and lays its block out; ``fill`` then writes it.

        Returns:
            The layout, valid until the next call.
        """
        tables = self.tables
        t = tables.node_types.index(request.input_type)
        if len(request.seeds) and not 0 <= request.seeds.min() <= request.seeds.max() < tables.bounds[t, -1]:
            raise StoreError("the graph is damaged: a seed is numbered as a node that does not exist", VERIFY_HINT)
        while True:
            self._scratch.advance()
            self._num_nodes[t] = len(request.seeds)
            self._scratch.nodes[t][: len(request.seeds)] = request.seeds
            outcome = self._walk(request)
            if outcome == walk_kernel.DONE:
                return self._lay_out(request)
            if outcome == walk_kernel.DAMAGED:
                raise StoreError("the graph is damaged: an edge leads to a node that does not exist", VERIFY_HINT)
            self._allocate_edges(outcome, 2 * int(self._edge_buffers[outcome, walk_kernel.CAPACITY]))

    def _walk(self, request: SampleRequest) -> int:
        """Fills the node and edge buffers and the counts; the seeds are in place. Returns what ``walk.walk`` does."""
        tables = self.tables
        return walk_kernel.walk(
            tables.relations,
            tables.parts,
            tables.bounds,
            tables.global_ids,
            tables.relation_keys,
            self._fan_outs,
            self._sampling.replace,
            np.uint64(request.key),
            self._node_buffers,
            self._edge_buffers,
            self._num_nodes,
            self._num_sampled_nodes,
            self._num_sampled_edges,
        )

    def _lay_out(self, request: SampleRequest) -> BatchLayout:
        tables, builder = self.tables, LayoutBuilder()
        self._steps: list[tuple[Field, tuple[int, int, int, int, int, int]]] = []
        self._request = request
        for t, node_type in enumerate(tables.node_types):
            count, ids = int(self._num_nodes[t]), int(self._node_buffers[t, 1])
            self._look_up(builder, NodeKey(node_type, "n_id"), tables.node_ids[node_type], ids, count)
            for (owner, name), table in tables.node_rows.items():
                if owner == node_type:
                    self._gather(builder, NodeKey(node_type, name), table, ids, count)
        for r, edge_type in enumerate(tables.edge_types):
            shown = self.shown_type(edge_type)
            count, (row, col, position, _) = int(self._num_sampled_edges[r].sum()), self._edge_buffers[r].tolist()
            edge_index = builder.add(EdgeKey(shown, "edge_index"), "int64", (2, count))
            self._steps.append((edge_index, (fill_kernel.COPY, row, count, 8, 0, 0)))
            second = Field(edge_index.key, "int64", (count,), edge_index.offset + 8 * count)
            self._steps.append((second, (fill_kernel.COPY, col, count, 8, 0, 0)))
            if self._sampling.with_edge and edge_type in tables.edge_ids:
                self._look_up(builder, EdgeKey(shown, "e_id"), tables.edge_ids[edge_type], position, count)
            for (edge_owner, name), table in tables.edge_rows.items():
                if edge_owner == edge_type:
                    self._gather(builder, EdgeKey(shown, name), table, position, count)
        input_id = builder.add(NodeKey(request.input_type, "input_id"), "int64", (len(request.seeds),))
        self._steps.append((input_id, (fill_kernel.COPY, address_of(request.input_id), len(request.seeds), 8, 0, 0)))
        return BatchLayout(
            tuple(builder.fields),
            builder.nbytes,
            dict(zip(tables.node_types, self._num_sampled_nodes.tolist(), strict=True)),
            {self.shown_type(e): counts for e, counts in zip(tables.edge_types, self._num_sampled_edges.tolist(), strict=True)},
            request.input_type,
            len(request.seeds),
        )

    def shown_type(self, edge_type: EdgeType) -> EdgeType:
        """The type under which a batch shows sampled edges: they always point from the neighbour to the seed side."""
        if self._sampling.edge_dir == "in" or self.tables.graph.schema.is_homogeneous:
            return edge_type
        return reverse_edge_type(edge_type)

    def _look_up(self, builder: LayoutBuilder, key: NodeKey | EdgeKey, table: RowTable, ids: int, count: int) -> None:
        place = builder.add(key, "int64", (count,))
        if table.is_identity:
            self._steps.append((place, (fill_kernel.COPY, ids, count, 8, 0, 0)))
            return
        self._steps.append((place, (fill_kernel.LOOK_UP, ids, count, table.dtype.itemsize, table.index, table.bounds)))

    def _gather(self, builder: LayoutBuilder, key: NodeKey | EdgeKey, table: RowTable, ids: int, count: int) -> None:
        place = builder.add(key, table.spec_dtype, (count, *table.row_shape))
        self._steps.append((place, (fill_kernel.GATHER, ids, count, table.row_nbytes, table.index, table.bounds)))

    def fill(self, block: NDArray[np.uint8]) -> None:
        """Writes the batch that was sampled last into ``block``, which has at least ``layout.nbytes`` bytes.

        Raises:
            StoreError: A node or edge has an id that the dataset does not have.
        """
        start = address_of(block)
        steps = np.array(
            [
                (kind, ids, count, width, start + place.offset, table, bounds)
                for place, (kind, ids, count, width, table, bounds) in self._steps
            ],
            np.int64,
        )
        if not fill_kernel.fill(steps, self.tables.row_addresses, self.tables.row_bounds):
            raise StoreError("the graph is damaged: a node or an edge has an id that the dataset does not have", VERIFY_HINT)

    def sample_into(
        self, request: SampleRequest, acquire: Callable[[int], NDArray[np.uint8]]
    ) -> tuple[BatchLayout, NDArray[np.uint8], float, float]:
        """Samples, asks ``acquire`` for a block of the right size, and fills it.

        Returns:
            The layout, the block, and the seconds spent sampling and gathering; waiting for the block counts as neither.
        """
        started = time.perf_counter()
        layout = self.sample(request)
        sampled = time.perf_counter()
        block = acquire(layout.nbytes)
        acquired = time.perf_counter()
        self.fill(block)
        return layout, block, sampled - started, time.perf_counter() - acquired

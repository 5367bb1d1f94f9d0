"""From what a walk has chosen to a batch in one block of memory: ids, edges and rows, each array at its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gnnkit.sampling import fill as fill_kernel
from gnnkit.sampling.damage import STRANGE_ID, damaged
from gnnkit.sampling.fill import RowStep
from gnnkit.sampling.subgraph import MISSING, SLOT, BatchKey, BatchLayout, EdgeKey, Field, LayoutBuilder, NodeKey
from gnnkit.sampling.tables import GraphTables, RowTable, address_of
from gnnkit.sampling.walked import Walked, WalkedEdges
from gnnkit.schema import NodeType
from gnnkit.storage.layout import FEATURE_NAME

if TYPE_CHECKING:
    from gnnkit.sampling.cached import CachedNodes


class BatchWriter(Protocol):
    """Lays a batch out, and writes it once there is a block for it. One object per thread."""

    def use(self, tables: GraphTables) -> None:
        """Switches to another copy of the same graph."""

    def lay_out(self, walked: Walked) -> BatchLayout:
        """Where everything of a batch goes; valid, like the walk, until the next one."""

    def fill(self, block: NDArray[np.uint8]) -> None:
        """Writes the batch that was laid out last into ``block``, which has at least ``layout.nbytes`` bytes.

        Raises:
            StoreError: A node or edge has an id that the dataset does not have.
            SamplingError: A host did not answer.
        """


def layout_of(builder: LayoutBuilder, walked: Walked, tables: GraphTables) -> BatchLayout:
    """What has been laid out, with the walk's counts."""
    return BatchLayout(
        tuple(builder.fields),
        builder.nbytes,
        dict(zip(tables.node_types, walked.num_sampled_nodes, strict=True)),
        {edges.type: edges.num_sampled for edges in walked.edges},
        walked.seeds.input_type,
        walked.seeds.num_seeds,
    )


class CarriedArrays:
    """The arrays that a batch carries as they are: the seeds', and what the walk has worked out."""

    def __init__(self) -> None:
        self._carried: list[tuple[Field, NDArray[Any]]] = []

    def lay_out(self, builder: LayoutBuilder, walked: Walked) -> None:
        """Finds a place for each."""
        arrays: dict[BatchKey, NDArray[Any]] = {**walked.seeds.arrays, **walked.arrays}
        self._carried = [(builder.add(key, str(array.dtype), array.shape), array) for key, array in arrays.items()]

    def fill(self, block: NDArray[np.uint8]) -> None:
        """Writes them."""
        for place, array in self._carried:
            block[place.offset : place.offset + place.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)


class RowWriter:
    """Writes batches whole: everything that nodes and edges carry is gathered from parts on this host.

    Args:
        tables: The graph.
        with_edge: Whether batches carry edge ids.
        cached: ``{node type: the nodes whose features are not gathered, because the trainer has them}``.
    """

    def __init__(self, tables: GraphTables, with_edge: bool, cached: Mapping[NodeType, CachedNodes] | None = None) -> None:
        self.tables = tables
        self._with_edge = with_edge
        self._cached = cached or {}
        self._carried = CarriedArrays()
        self._steps: list[tuple[Field, tuple[int, int, int, int, int, int]]] = []
        self._kept: list[NDArray[np.int64]] = []  # what the steps read
        self._places: list[tuple[Field, NDArray[np.int32]]] = []  # of cached features, and of those that are not

    def use(self, tables: GraphTables) -> None:
        """See ``BatchWriter.use``."""
        self.tables = tables

    def lay_out(self, walked: Walked) -> BatchLayout:
        """See ``BatchWriter.lay_out``."""
        tables, builder = self.tables, LayoutBuilder()
        self._steps, self._kept, self._places = [], [], []
        for t, node_type in enumerate(tables.node_types):
            ids, count = self._address(walked.nodes[t]), len(walked.nodes[t])
            self._look_up(builder, NodeKey(node_type, "n_id"), tables.node_ids[node_type], ids, count)
            for (owner, name), table in tables.node_rows.items():
                if owner == node_type and name == FEATURE_NAME and node_type in self._cached:
                    self._gather_missing(builder, node_type, table, ids, count)
                elif owner == node_type:
                    self._gather(builder, NodeKey(node_type, name), table, ids, count)
        for edges in walked.edges:
            self._lay_out_edges(builder, edges)
        self._carried.lay_out(builder, walked)
        return layout_of(builder, walked, tables)

    def _lay_out_edges(self, builder: LayoutBuilder, edges: WalkedEdges) -> None:
        tables, count = self.tables, len(edges.row)
        place = builder.add(EdgeKey(edges.type, "edge_index"), "int64", (2, count))
        self._steps.append((place, (fill_kernel.COPY, self._address(edges.row), count, 8, 0, 0)))
        second = Field(place.key, "int64", (count,), place.offset + 8 * count)
        self._steps.append((second, (fill_kernel.COPY, self._address(edges.col), count, 8, 0, 0)))
        if edges.relation is None or edges.position is None:
            return
        edge_type, position = tables.edge_types[edges.relation], self._address(edges.position)
        if self._with_edge and edge_type in tables.edge_ids:
            self._look_up(builder, EdgeKey(edges.type, "e_id"), tables.edge_ids[edge_type], position, count)
        for (owner, name), table in tables.edge_rows.items():
            if owner == edge_type:
                self._gather(builder, EdgeKey(edges.type, name), table, position, count)

    def _address(self, array: NDArray[np.int64]) -> int:
        kept = np.ascontiguousarray(array, np.int64)
        self._kept.append(kept)
        return address_of(kept)

    def _look_up(self, builder: LayoutBuilder, key: BatchKey, table: RowTable, ids: int, count: int) -> None:
        place = builder.add(key, "int64", (count,))
        if table.is_identity:
            self._steps.append((place, (fill_kernel.COPY, ids, count, 8, 0, 0)))
            return
        self._steps.append((place, (fill_kernel.LOOK_UP, ids, count, table.dtype.itemsize, table.index, table.bounds)))

    def _gather(self, builder: LayoutBuilder, key: BatchKey, table: RowTable, ids: int, count: int) -> None:
        place = builder.add(key, table.spec_dtype, (count, *table.row_shape))
        self._steps.append((place, (fill_kernel.GATHER, ids, count, table.row_nbytes, table.index, table.bounds)))

    def _gather_missing(self, builder: LayoutBuilder, node_type: NodeType, table: RowTable, ids: int, count: int) -> None:
        split = self._cached[node_type].split(ids, count)
        self._gather(builder, NodeKey(node_type, FEATURE_NAME), table, self._address(split.missing), len(split.missing))
        for name, array in (SLOT, split.slots), (MISSING, split.places):
            self._places.append((builder.add(NodeKey(node_type, name), "int32", array.shape), array))

    def fill(self, block: NDArray[np.uint8]) -> None:
        """See ``BatchWriter.fill``."""
        start = address_of(block)
        self._carried.fill(block)
        for place, array in self._places:
            block[place.offset : place.offset + place.nbytes] = array.view(np.uint8)
        if not self._run([(start + place.offset, step) for place, step in self._steps]):
            raise damaged(STRANGE_ID)

    def _run(self, steps: list[RowStep]) -> bool:
        """Whether every id that was looked up is one that its type has."""
        rows = [(kind, ids, count, width, target, table, bounds) for target, (kind, ids, count, width, table, bounds) in steps]
        return bool(fill_kernel.fill(np.array(rows, np.int64).reshape(-1, 7), self.tables.row_addresses, self.tables.row_bounds))

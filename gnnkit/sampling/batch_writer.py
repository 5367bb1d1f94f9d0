"""The layout of a batch in one block of memory, and the kernel that copies ids, edges and rows into it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gnnkit.kernels.jit import helper, kernel
from gnnkit.kernels.native import PAGE, WINDOW, ask, asks, copy_bytes, load_i64, prefetch, store_i64, use
from gnnkit.sampling.passes import find_part, load_id
from gnnkit.sampling.subgraph import MISSING, SLOT, BatchKey, BatchLayout, EdgeKey, Field, LayoutBuilder, NodeKey
from gnnkit.sampling.tables import GraphTables, RowTable, address_of
from gnnkit.sampling.walked import STRANGE_ID, Walked, WalkedEdges, damaged
from gnnkit.schema import NodeType
from gnnkit.storage.layout import FEATURE_NAME

if TYPE_CHECKING:
    from gnnkit.sampling.cached import CachedNodes

# Columns of ``steps`` [num_steps, 7].
KIND, IDS, COUNT, WIDTH, TARGET, TABLE, BOUNDS = range(7)
# A step without its target, and the address of the target: KIND, IDS, COUNT, WIDTH, TABLE, BOUNDS.
RowStep: TypeAlias = tuple[int, tuple[int, int, int, int, int, int]]
# Kinds: copy int64 as they are; look ids up and widen them to int64; gather rows of ``WIDTH`` bytes.
COPY, LOOK_UP, GATHER = range(3)

_LINE = 64
# Rows asked of memory ahead of the one being copied: enough to cover a DRAM access at the speed of one core.
_AHEAD = 16


@kernel("int64(int64[::1])", nogil=False)
def address_of_ints(array: NDArray[np.int64]) -> int:
    """The address of an array's first element, in a tenth of the time that NumPy takes to tell it."""
    return array.ctypes.data


@helper
def _gather(parts: NDArray[np.int64], bounds: NDArray[np.int64], ids: int, count: int, width: int, target: int) -> None:
    single = bounds.size == 2
    for i in range(min(count, _AHEAD)):
        v = load_i64(ids + i * 8)
        p = 0 if single else find_part(bounds, v)
        prefetch(parts[p] + (v - bounds[p]) * width)
    for i in range(count):
        if i + _AHEAD < count:
            v = load_i64(ids + (i + _AHEAD) * 8)
            p = 0 if single else find_part(bounds, v)
            ahead = parts[p] + (v - bounds[p]) * width
            for offset in range(0, width, _LINE):
                prefetch(ahead + offset)
            prefetch(ahead + width - 1)
        v = load_i64(ids + i * 8)
        p = 0 if single else find_part(bounds, v)
        source = parts[p] + (v - bounds[p]) * width
        copy_bytes(target + i * width, source, width)


@helper
def _gather_words(parts: NDArray[np.int64], bounds: NDArray[np.int64], ids: int, count: int, target: int) -> None:
    """Rows of one 64-bit value, such as labels: one line each, so more of them are asked for ahead."""
    single = bounds.size == 2
    for i in range(count):
        if i + 2 * _AHEAD < count:
            v = load_i64(ids + (i + 2 * _AHEAD) * 8)
            p = 0 if single else find_part(bounds, v)
            prefetch(parts[p] + (v - bounds[p]) * 8)
        v = load_i64(ids + i * 8)
        p = 0 if single else find_part(bounds, v)
        store_i64(target + i * 8, load_i64(parts[p] + (v - bounds[p]) * 8))


@helper
def _look_up(parts: NDArray[np.int64], bounds: NDArray[np.int64], ids: int, count: int, width: int, target: int) -> bool:
    """Writes the ids that rows have in the dataset; False where one is none of the dataset's."""
    single, inside = bounds.size == 2, True
    for i in range(count):
        if i + _AHEAD < count:
            v = load_i64(ids + (i + _AHEAD) * 8)
            p = 0 if single else find_part(bounds, v)
            prefetch(parts[p] + (v - bounds[p]) * width)
        v = load_i64(ids + i * 8)
        p = 0 if single else find_part(bounds, v)
        value = load_id(parts[p], v - bounds[p], width)
        inside &= 0 <= value < bounds[bounds.size - 1]
        store_i64(target + i * 8, value)
    return inside


@helper
def rows_ahead(ahead: NDArray[np.int64], count: int, width: int) -> int:
    """Counts those of ``count`` rows of ``width`` bytes that are asked of the disk at a time, and copied while it reads the next."""
    return max(1, ahead[WINDOW] // (1 + width // ahead[PAGE])) if asks(ahead) else max(1, count)


@helper
def _ask_rows(
    ahead: NDArray[np.int64],
    parts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    ids: int,
    first: int,
    last: int,
    width: int,
    read: bool,
) -> None:
    """Asks the disk for the rows ``[first, last)`` of a step, or waits for them where they are about to be read."""
    if width > 0:
        for i in range(first, last):
            v = load_i64(ids + i * 8)
            p = find_part(bounds, v)
            source = parts[p] + (v - bounds[p]) * width
            if read:
                use(ahead, source, width)
            else:
                ask(ahead, source, width)


@kernel("boolean(int64[::1], int64[:, ::1], int64[:, ::1], int64[:, ::1])")
def fill(ahead: NDArray[np.int64], steps: NDArray[np.int64], tables: NDArray[np.int64], bounds: NDArray[np.int64]) -> bool:
    """Runs the steps in order.

    Args:
        ahead: int64 ``[4 + 2 K]``, ``ReadAhead.table``.
        steps: int64 ``[S, 7]``, see the column names above; ``IDS`` and ``TARGET`` are addresses.
        tables: int64 ``[A, P]``: for each array, the address of every part's rows.
        bounds: int64 ``[B, P + 1]``: for each type, the id at which every part starts.

    Returns:
        Whether every id that was looked up is one that its type has.
    """
    inside = True
    for s in range(steps.shape[0]):
        step = steps[s]
        if asks(ahead) and step[KIND] != COPY:
            last = min(step[COUNT], rows_ahead(ahead, step[COUNT], step[WIDTH]))
            _ask_rows(ahead, tables[step[TABLE]], bounds[step[BOUNDS]], step[IDS], 0, last, step[WIDTH], False)
    for s in range(steps.shape[0]):
        step = steps[s]
        if step[KIND] == COPY:
            copy_bytes(step[TARGET], step[IDS], step[COUNT] * 8)
            continue
        table, starts, width = tables[step[TABLE]], bounds[step[BOUNDS]], step[WIDTH]
        together = rows_ahead(ahead, step[COUNT], width)
        for first in range(0, step[COUNT], together):
            ids, count = step[IDS] + first * 8, min(together, step[COUNT] - first)
            if asks(ahead):
                _ask_rows(ahead, table, starts, ids, count, min(2 * together, step[COUNT] - first), width, False)
                _ask_rows(ahead, table, starts, ids, 0, count, width, True)
            if step[KIND] == LOOK_UP:
                inside &= _look_up(table, starts, ids, count, width, step[TARGET] + first * 8)
            elif width == 8:
                _gather_words(table, starts, ids, count, step[TARGET] + first * 8)
            else:
                _gather(table, starts, ids, count, width, step[TARGET] + first * width)
    return inside


class BatchWriter(Protocol):
    """Lays a batch out, and writes it once there is a block for it. One object per thread."""

    def use(self, tables: GraphTables) -> None:
        """Switches to another copy of the same graph."""

    def lay_out(self, walked: Walked) -> BatchLayout:
        """Determines the place of every array of a batch; valid, like the walk, until the next one."""

    def fill(self, block: NDArray[np.uint8]) -> None:
        """Writes the batch that was laid out last into ``block``, which has at least ``layout.nbytes`` bytes.

        Raises:
            StoreError: A node or edge has an id that the dataset does not have.
            SamplingError: A host did not answer.
        """


def layout_of(builder: LayoutBuilder, walked: Walked, tables: GraphTables) -> BatchLayout:
    """Returns the layout that a builder holds, with the walk's counts."""
    return BatchLayout(
        tuple(builder.fields),
        builder.nbytes,
        dict(zip(tables.node_types, walked.num_sampled_nodes, strict=True)),
        {edges.type: edges.num_sampled for edges in walked.edges},
        walked.seeds.input_type,
        walked.seeds.num_seeds,
    )


@cache
def _name_of(dtype: np.dtype[Any]) -> str:
    return str(dtype)


class CarriedArrays:
    """The arrays that a batch carries as they are: the seeds', and what the walk has worked out."""

    def __init__(self) -> None:
        self._carried: list[tuple[Field, NDArray[Any]]] = []

    def lay_out(self, builder: LayoutBuilder, walked: Walked) -> None:
        """Finds a place for each."""
        arrays: dict[BatchKey, NDArray[Any]] = {**walked.seeds.arrays, **walked.arrays}
        self._carried = [(builder.add(key, _name_of(array.dtype), array.shape), array) for key, array in arrays.items()]

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
        self._steps.append((place, (COPY, self._address(edges.row), count, 8, 0, 0)))
        second = Field(place.key, "int64", (count,), place.offset + 8 * count)
        self._steps.append((second, (COPY, self._address(edges.col), count, 8, 0, 0)))
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
        return address_of_ints(kept)

    def _look_up(self, builder: LayoutBuilder, key: BatchKey, table: RowTable, ids: int, count: int) -> None:
        place = builder.add(key, "int64", (count,))
        if table.is_identity:
            self._steps.append((place, (COPY, ids, count, 8, 0, 0)))
            return
        self._steps.append((place, (LOOK_UP, ids, count, table.dtype.itemsize, table.index, table.bounds)))

    def _gather(self, builder: LayoutBuilder, key: BatchKey, table: RowTable, ids: int, count: int) -> None:
        place = builder.add(key, table.spec_dtype, (count, *table.row_shape))
        self._steps.append((place, (GATHER, ids, count, table.row_nbytes, table.index, table.bounds)))

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
        return bool(fill(self.tables.ahead, np.array(rows, np.int64).reshape(-1, 7), self.tables.row_addresses, self.tables.row_bounds))

"""The layout of a batch in one block of memory, and the kernel that copies ids, edges and rows into it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from gnnkit.host import available_cpus
from gnnkit.kernels.jit import helper, kernel
from gnnkit.kernels.native import (
    INTO_FIRST,
    LINE,
    LINES_INTO_FIRST,
    PAGE,
    ROWS_AHEAD,
    STREAMED_FROM,
    VECTORS,
    WINDOW,
    ask,
    asks,
    copy_bytes,
    copy_row,
    end_streams,
    lines_of_stack,
    load_i64,
    prefetch_bytes,
    prefetch_into,
    prefetch_row,
    store_i64,
    stream_line,
    use,
)
from gnnkit.kernels.row_copies import NEVER
from gnnkit.sampling.passes import find_part, load_id
from gnnkit.sampling.subgraph import (
    MISSING,
    SLOT,
    STRANGE_ID,
    BatchKey,
    BatchLayout,
    EdgeKey,
    Field,
    LayoutBuilder,
    NodeKey,
    Walked,
    WalkedEdges,
    damaged,
    shown_name,
)
from gnnkit.sampling.tables import BITS, COLUMNS, NUM_WHOLE, OFFSET, SCALE, WHOLE, GraphTables, RowTable, address_of
from gnnkit.schema import EdgeType, NodeType
from gnnkit.storage.convert import unpack_row
from gnnkit.storage.files import Guarded
from gnnkit.storage.layout import FEATURE_NAME

if TYPE_CHECKING:
    from gnnkit.sampling.cached import CachedNodes

# Columns of ``steps`` [num_steps, 7].
KIND, IDS, COUNT, WIDTH, TARGET, TABLE, BOUNDS = range(7)
RowStep: TypeAlias = tuple[int, int, int, int, int, int, int]
# Kinds: copy values of ``WIDTH`` bytes as they are; look ids up and widen them to int64; gather rows of ``WIDTH`` bytes; gather quantised
# rows of ``WIDTH`` bytes as the float32 that they stand for.
COPY, LOOK_UP, GATHER, UNPACK = range(4)

# Words asked of memory ahead of the one being copied: enough to cover a DRAM access at the speed of one core.
_AHEAD = 16
# Rows whose first line is asked for before the others are, which brings the page's address; and places for the addresses of rows that are
# on their way, more than the most that are asked for ahead.
_LEAD, _SOURCES = 8, 128
# Threads that share the rows of the first batch of each sampling thread, at most, and bytes of a step that are worth it. Most of that time
# the system maps pages of the graph, and other processors have little to do yet.
_FIRST_THREADS, _FIRST_BYTES = 4, 8 << 20
# Bytes that are collected before whole lines of them are written, and the widest row that there is room for behind them.
_COLLECTED, WIDEST_STREAMED = 1024, 2048


@kernel("int64(int64[::1])", nogil=False)
def address_of_ints(array: NDArray[np.int64]) -> int:
    """The address of an array's first element, in a tenth of the time that NumPy takes to tell it."""
    return array.ctypes.data


@helper
def _stream(target: int, collected: int, lead: int, whole: int) -> None:
    """Writes whole lines that were collected; of the first one what lies behind its ``lead`` bytes."""
    first = 0
    if lead > 0:
        copy_bytes(target + lead, collected + lead, LINE - lead)
        first = LINE
    for offset in range(first, whole, LINE):
        stream_line(target + offset, collected + offset)


def _named_helper(function: Any, *variant: object) -> Any:
    """Makes a helper of one of several functions of one name.

    Kernels that were compiled in different processes are linked in one: of functions that are called alike there, it takes the first.
    """
    function.__qualname__ = "_".join(map(str, (function.__qualname__, *variant)))
    return helper(function)


def _rows_of(half: int | None, *, streams: bool, gaps: bool) -> Any:
    """A helper that gathers rows of ``half`` to ``2 * half`` lines of the cache; of any width where None.

    A loop whose copies are known to the compiler takes three quarters of the time of one that calls ``memcpy``. One that streams collects
    rows in the first cache, and writes whole lines past the others, where they would not stay: no line is fetched only to be overwritten.
    ``gaps``: rows of negative ids are left as they are; for the address of one stands that of all addresses, which is in the cache.
    """
    prefetch_lines, copy_lines = (prefetch_bytes, copy_bytes) if half is None else (prefetch_row(half), copy_row(half))

    def gather(
        far: int, first: bool, parts: NDArray[np.int64], bounds: NDArray[np.int64], ids: int, count: int, width: int, target: int
    ) -> None:
        sources, collected, lead = lines_of_stack(), 0, 0
        if streams:
            collected = lines_of_stack()
        to = collected if streams else target
        for i in range(-far - _LEAD, count):
            if i + far + _LEAD < count:
                v, place = load_i64(ids + (i + far + _LEAD) * 8), sources + (i + far + _LEAD) % _SOURCES * 8
                p = find_part(bounds, v)
                store_i64(place, sources if gaps and v < 0 else parts[p] + (v - bounds[p]) * width)
                prefetch_into(first, load_i64(place))
            if 0 <= i + far < count:
                prefetch_lines(first, load_i64(sources + (i + far) % _SOURCES * 8), width)
            if i < 0:
                continue
            source = load_i64(sources + i % _SOURCES * 8)
            if gaps and source == sources:
                if streams:
                    whole = (to - collected) // LINE * LINE
                    if whole > 0:
                        _stream(target, collected, lead, whole)
                        lead = whole
                    copy_bytes(target + lead, collected + lead, to - collected - lead)
                    target += to - collected + width
                    lead = target % LINE
                    target -= lead
                    to = collected + lead
                else:
                    to += width
                continue
            copy_lines(to, source, width)
            to += width
            if streams and to - collected >= _COLLECTED:
                whole = (to - collected) // LINE * LINE
                _stream(target, collected, lead, whole)
                copy_bytes(collected, collected + whole, LINE)
                target += whole
                to -= whole
                lead = 0
        if streams:
            copy_bytes(target + lead, collected + lead, to - collected - lead)
            end_streams()

    return _named_helper(gather, half, streams, gaps)


def row_gatherer(*, gaps: bool) -> Any:
    """A helper that gathers rows of any width; ``gaps``: those of negative ids are left as they are."""
    # As few as make a difference: each takes a third of a second to compile, once on a machine.
    kept_2, kept_4, kept_any = (_rows_of(half, streams=False, gaps=gaps) for half in (2, 4, None))
    streamed_2, streamed_4, streamed_any = (_rows_of(half, streams=True, gaps=gaps) for half in (2, 4, None))

    def gather(
        ahead: NDArray[np.int64], parts: NDArray[np.int64], bounds: NDArray[np.int64], ids: int, count: int, width: int, target: int
    ) -> None:
        streams = count * width >= ahead[STREAMED_FROM] and width <= WIDEST_STREAMED and target % LINE == 0
        vectors, far = ahead[VECTORS] != 0, ahead[ROWS_AHEAD]
        first = ahead[INTO_FIRST] != 0 or (not streams and ahead[STREAMED_FROM] < NEVER)
        if streams and vectors and 2 * LINE <= width <= 4 * LINE:
            streamed_2(far, first, parts, bounds, ids, count, width, target)
        elif streams and vectors and 4 * LINE < width <= 8 * LINE:
            streamed_4(far, first, parts, bounds, ids, count, width, target)
        elif streams:
            streamed_any(far, first, parts, bounds, ids, count, width, target)
        elif vectors and 2 * LINE <= width <= 4 * LINE:
            kept_2(far, first, parts, bounds, ids, count, width, target)
        elif vectors and 4 * LINE < width <= 8 * LINE:
            kept_4(far, first, parts, bounds, ids, count, width, target)
        else:
            kept_any(far, first, parts, bounds, ids, count, width, target)

    return _named_helper(gather, gaps)


_gather = row_gatherer(gaps=False)


@helper
def _unpack(
    near: bool,
    parts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    ids: int,
    count: int,
    width: int,
    meaning: NDArray[np.int64],
    target: int,
) -> None:
    """Quantised rows as the numbers that they stand for."""
    single, columns = bounds.size == 2, meaning[COLUMNS]
    for i in range(min(count, _AHEAD)):
        v = load_i64(ids + i * 8)
        p = 0 if single else find_part(bounds, v)
        prefetch_into(near, parts[p] + (v - bounds[p]) * width)
    for i in range(count):
        if i + _AHEAD < count:
            v = load_i64(ids + (i + _AHEAD) * 8)
            p = 0 if single else find_part(bounds, v)
            prefetch_into(near, parts[p] + (v - bounds[p]) * width)
            prefetch_bytes(near, parts[p] + (v - bounds[p]) * width, width)
        v = load_i64(ids + i * 8)
        p = 0 if single else find_part(bounds, v)
        source, to = parts[p] + (v - bounds[p]) * width, target + i * columns * 4
        unpack_row(source, meaning[BITS], columns, meaning[SCALE], meaning[OFFSET], to)
        for k in range(meaning[NUM_WHOLE]):
            place = load_i64(meaning[WHOLE] + k * 8)
            copy_bytes(to + place * 4, source + width - (meaning[NUM_WHOLE] - k) * 4, 4)


@helper
def _gather_words(near: bool, parts: NDArray[np.int64], bounds: NDArray[np.int64], ids: int, count: int, target: int) -> None:
    """Rows of one 64-bit value, such as labels: one line each, so more of them are asked for ahead."""
    single = bounds.size == 2
    for i in range(count):
        if i + 2 * _AHEAD < count:
            v = load_i64(ids + (i + 2 * _AHEAD) * 8)
            p = 0 if single else find_part(bounds, v)
            prefetch_into(near, parts[p] + (v - bounds[p]) * 8)
        v = load_i64(ids + i * 8)
        p = 0 if single else find_part(bounds, v)
        store_i64(target + i * 8, load_i64(parts[p] + (v - bounds[p]) * 8))


@helper
def _look_up(near: bool, parts: NDArray[np.int64], bounds: NDArray[np.int64], ids: int, count: int, width: int, target: int) -> bool:
    """Writes the ids that rows have in the dataset; False where one is none of the dataset's."""
    single, inside = bounds.size == 2, True
    for i in range(count):
        if i + _AHEAD < count:
            v = load_i64(ids + (i + _AHEAD) * 8)
            p = 0 if single else find_part(bounds, v)
            prefetch_into(near, parts[p] + (v - bounds[p]) * width)
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
def ask_rows(
    ahead: NDArray[np.int64],
    parts: NDArray[np.int64],
    bounds: NDArray[np.int64],
    ids: int,
    first: int,
    last: int,
    width: int,
    read: bool,
) -> None:
    """Asks the disk for the rows ``[first, last)`` of a step, or waits for them where they are about to be read; not for negative ids."""
    if width > 0:
        for i in range(first, last):
            v = load_i64(ids + i * 8)
            if v < 0:
                continue
            p = find_part(bounds, v)
            source = parts[p] + (v - bounds[p]) * width
            if read:
                use(ahead, source, width)
            else:
                ask(ahead, source, width)


@kernel("boolean(int64[::1], int64[:, ::1], int64[:, ::1], int64[:, ::1], int64[:, ::1])")
def fill(
    ahead: NDArray[np.int64],
    steps: NDArray[np.int64],
    tables: NDArray[np.int64],
    bounds: NDArray[np.int64],
    meanings: NDArray[np.int64],
) -> bool:
    """Runs the steps in order.

    Args:
        ahead: int64 ``[9 + 2 K]``, ``ReadAhead.table``.
        steps: int64 ``[S, 7]``, see the column names above; ``IDS`` and ``TARGET`` are addresses.
        tables: int64 ``[A, P]``: for each array, the address of every part's rows.
        bounds: int64 ``[B, P + 1]``: for each type, the id at which every part starts.
        meanings: int64 ``[A, 6]``: ``GraphTables.meanings``.

    Returns:
        Whether every id that was looked up is one that its type has.
    """
    inside, near = True, ahead[LINES_INTO_FIRST] != 0
    for s in range(steps.shape[0]):
        step = steps[s]
        if asks(ahead) and step[KIND] != COPY:
            last = min(step[COUNT], rows_ahead(ahead, step[COUNT], step[WIDTH]))
            ask_rows(ahead, tables[step[TABLE]], bounds[step[BOUNDS]], step[IDS], 0, last, step[WIDTH], False)
    for s in range(steps.shape[0]):
        step = steps[s]
        if step[KIND] == COPY:
            copy_bytes(step[TARGET], step[IDS], step[COUNT] * step[WIDTH])
            continue
        table, starts, width = tables[step[TABLE]], bounds[step[BOUNDS]], step[WIDTH]
        together = rows_ahead(ahead, step[COUNT], width)
        for first in range(0, step[COUNT], together):
            ids, count = step[IDS] + first * 8, min(together, step[COUNT] - first)
            if asks(ahead):
                ask_rows(ahead, table, starts, ids, count, min(2 * together, step[COUNT] - first), width, False)
                ask_rows(ahead, table, starts, ids, 0, count, width, True)
            if step[KIND] == LOOK_UP:
                inside &= _look_up(near, table, starts, ids, count, width, step[TARGET] + first * 8)
            elif width == 8 and step[KIND] == GATHER:
                _gather_words(near, table, starts, ids, count, step[TARGET] + first * 8)
            elif step[KIND] == UNPACK:
                meaning = meanings[step[TABLE]]
                _unpack(near, table, starts, ids, count, width, meaning, step[TARGET] + first * 4 * meaning[COLUMNS])
            else:
                _gather(ahead, table, starts, ids, count, width, step[TARGET] + first * width)
    return inside


class RowFiller:
    """Fills rows of arrays that are on this host; one object per thread.

    Args:
        tables: The graph.
    """

    def __init__(self, tables: GraphTables) -> None:
        self.tables = tables
        self._is_first = True

    def use(self, tables: GraphTables) -> None:
        """Switches to another copy of the same graph."""
        self.tables = tables

    def fill(self, steps: NDArray[np.int64]) -> bool:
        """Fills rows, see ``fill``; returns whether every id that was looked up is one that its type has."""
        shares = _shared_out(steps, min(_FIRST_THREADS, available_cpus())) if self._is_first else []
        self._is_first = False
        if not shares:
            return self._fill(steps)
        with ThreadPoolExecutor(len(shares), "gnnkit-rows") as pool:
            return all([*pool.map(self._fill_guarded, shares)])

    def _fill(self, steps: NDArray[np.int64]) -> bool:
        tables = self.tables
        return bool(fill(tables.ahead, steps, tables.row_addresses, tables.row_bounds, tables.meanings))

    def _fill_guarded(self, steps: NDArray[np.int64]) -> bool:
        with Guarded(self.tables.graph.each):
            return self._fill(steps)


def _shared_out(steps: NDArray[np.int64], count: int) -> list[NDArray[np.int64]]:
    """Steps for so many threads, each of which gathers a share of the rows of large steps; none where no step is large."""
    is_large = (steps[:, KIND] == GATHER) & (steps[:, COUNT] * steps[:, WIDTH] >= _FIRST_BYTES)
    if count < 2 or not is_large.any():
        return []
    shares = []
    for number in range(count):
        share = steps[is_large]
        rows = share[:, COUNT]
        # In a whole number of lines each, so that those that are written past the caches begin where a line does.
        begin, end = rows * number // count // LINE * LINE, rows * (number + 1) // count // LINE * LINE
        share[:, IDS] += 8 * begin
        share[:, TARGET] += share[:, WIDTH] * begin
        share[:, COUNT] = np.where(number == count - 1, rows, end) - begin
        shares.append(share if number else np.concatenate([steps[~is_large], share]))
    return shares


class BatchWriter(ABC):
    """Lays batches out, and writes them once there are blocks for them. One object per thread.

    Args:
        tables: The graph.
    """

    def __init__(self, tables: GraphTables) -> None:
        self.use(tables)

    def use(self, tables: GraphTables) -> None:
        """Switches to another copy of the same graph."""
        self.tables = tables

    @abstractmethod
    def lay_out(self, walked: Sequence[Walked]) -> list[BatchLayout]:
        """Determines the place of every array of each batch; valid, like the walk, until the next one."""

    @abstractmethod
    def fill(self, blocks: Sequence[NDArray[np.uint8]]) -> None:
        """Writes the batches that were laid out last into ``blocks``, which have at least ``layout.nbytes`` bytes each.

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
def _edge_index_of(edge_type: EdgeType) -> EdgeKey:
    return EdgeKey(edge_type, "edge_index")


@cache
def _name_of(dtype: np.dtype[Any]) -> str:
    return str(dtype)


CarriedArray: TypeAlias = tuple[Field, NDArray[Any]]


def carried_arrays(builder: LayoutBuilder, walked: Walked) -> list[CarriedArray]:
    """Finds a place for each of the arrays that a batch carries as they are: the seeds', and what the walk has worked out."""
    arrays: dict[BatchKey, NDArray[Any]] = {**walked.seeds.arrays, **walked.arrays}
    return [(builder.add(key, _name_of(array.dtype), array.shape), array) for key, array in arrays.items()]


class _Gathered(NamedTuple):
    """An array of a node or edge type as batches have it.

    Attributes:
        key: Its key.
        dtype: Its dtype's name.
        row_shape: Shape of a row.
        nbytes: Bytes of a row in a batch.
        kind: The kind of the step that writes it.
        width: Bytes of a row in the graph.
        table: See ``RowTable.index``.
        bounds: See ``RowTable.bounds``.
    """

    key: BatchKey
    dtype: str
    row_shape: tuple[int, ...]
    nbytes: int
    kind: int
    width: int
    table: int
    bounds: int

    @classmethod
    def of(cls, key: BatchKey, table: RowTable, *, unpacks: bool = False) -> _Gathered:
        """The rows, quantised ones as numbers where ``unpacks``, or with the key of ids, the ids of a table."""
        if unpacks and table.quantization is not None:
            columns = len(table.quantization.scale)
            return cls(key, "float32", (columns,), 4 * columns, UNPACK, table.row_nbytes, table.index, table.bounds)
        if key.name not in ("n_id", "e_id"):
            return cls(key, table.spec_dtype, table.row_shape, table.row_nbytes, GATHER, table.row_nbytes, table.index, table.bounds)
        if table.is_identity:
            return cls(key, "int64", (), 8, COPY, 8, 0, 0)
        return cls(key, "int64", (), 8, LOOK_UP, table.dtype.itemsize, table.index, table.bounds)


class RowWriter(BatchWriter):
    """Writes batches whole: everything that nodes and edges carry.

    Args:
        tables: The graph.
        with_edge: Whether batches carry edge ids.
        cached: ``{node type: the nodes whose features are not gathered, because the trainer has them}``.
        unpacks: Whether quantised rows are gathered as numbers: where batches go nowhere else. What completes cached rows stays as it is.
        rows: Fills the rows; None is for a graph all of which is here.
    """

    def __init__(
        self,
        tables: GraphTables,
        with_edge: bool,
        cached: Mapping[NodeType, CachedNodes] | None = None,
        *,
        unpacks: bool = False,
        rows: RowFiller | None = None,
    ) -> None:
        self._rows = RowFiller(tables) if rows is None else rows
        self._with_edge, self._cached, self._unpacks = with_edge, cached or {}, unpacks
        self._steps: list[int] = []  # of all batches, one behind the other
        self._num_steps: list[int] = []  # of each
        self._kept: list[NDArray[Any]] = []  # what the steps read
        super().__init__(tables)

    @override
    def use(self, tables: GraphTables) -> None:
        super().use(tables)
        self._rows.use(tables)
        self._node_arrays = [
            [
                _Gathered.of(NodeKey(node_type, "n_id"), tables.node_ids[node_type]),
                *(
                    _Gathered.of(
                        NodeKey(key[0], shown_name(key[1])),
                        table,
                        unpacks=self._unpacks and not (key[1] == FEATURE_NAME and node_type in self._cached),
                    )
                    for key, table in tables.node_rows.items()
                    if key[0] == node_type
                ),
            ]
            for node_type in tables.node_types
        ]
        self._edge_arrays = {
            edge_type: [(shown_name(name), table) for (owner, name), table in tables.edge_rows.items() if owner == edge_type]
            for edge_type in tables.edge_types
        }

    @override
    def lay_out(self, walked: Sequence[Walked]) -> list[BatchLayout]:
        self._steps, self._num_steps, self._kept = [], [], []
        return [self._lay_out(own) for own in walked]

    def _lay_out(self, walked: Walked) -> BatchLayout:
        builder, before = LayoutBuilder(), len(self._steps)
        for node_type, arrays, nodes in zip(self.tables.node_types, self._node_arrays, walked.nodes, strict=True):
            ids, count = self._address(nodes), len(nodes)
            for gathered in arrays:
                if self._cached and gathered.key.name == FEATURE_NAME and node_type in self._cached:
                    self._gather_missing(builder, node_type, gathered, ids, count)
                else:
                    self._gather(builder, gathered, ids, count)
        for edges in walked.edges:
            self._lay_out_edges(builder, edges)
        for place, array in carried_arrays(builder, walked):
            self._copy(place, array)
        self._num_steps.append((len(self._steps) - before) // 7)
        return layout_of(builder, walked, self.tables)

    def _lay_out_edges(self, builder: LayoutBuilder, edges: WalkedEdges) -> None:
        tables, count = self.tables, len(edges.row)
        row = builder.nbytes
        builder.add_bytes(_edge_index_of(edges.type), "int64", (2, count), 16 * count)
        self._steps += (COPY, self._address(edges.row), count, 8, row, 0, 0)
        self._steps += (COPY, self._address(edges.col), count, 8, row + 8 * count, 0, 0)
        if edges.relation is None or edges.position is None:
            return
        edge_type, position = tables.edge_types[edges.relation], self._address(edges.position)
        if self._with_edge and edge_type in tables.edge_ids:
            self._gather(builder, _Gathered.of(EdgeKey(edges.type, "e_id"), tables.edge_ids[edge_type]), position, count)
        for name, table in self._edge_arrays[edge_type]:
            self._gather(builder, _Gathered.of(EdgeKey(edges.type, name), table, unpacks=self._unpacks), position, count)

    def _address(self, array: NDArray[np.int64]) -> int:
        kept = np.ascontiguousarray(array, np.int64)
        self._kept.append(kept)
        return address_of_ints(kept)

    def _copy(self, place: Field, array: NDArray[Any]) -> None:
        if array.dtype == np.int64:
            self._steps += (COPY, self._address(array.reshape(-1)), array.size, 8, place.offset, 0, 0)
            return
        kept = np.ascontiguousarray(array)
        self._kept.append(kept)
        self._steps += (COPY, address_of(kept), kept.nbytes, 1, place.offset, 0, 0)

    def _gather(self, builder: LayoutBuilder, gathered: _Gathered, ids: int, count: int) -> None:
        key, dtype, row_shape, nbytes, kind, width, table, bounds = gathered
        self._steps += (kind, ids, count, width, builder.nbytes, table, bounds)
        builder.add_bytes(key, dtype, (count, *row_shape), count * nbytes)

    def _gather_missing(self, builder: LayoutBuilder, node_type: NodeType, gathered: _Gathered, ids: int, count: int) -> None:
        slots, places, missing = self._cached[node_type].split(ids, count)
        self._gather(builder, gathered, self._address(missing), len(missing))
        for name, array in (SLOT, slots), (MISSING, places):
            self._copy(builder.add(NodeKey(node_type, name), "int32", array.shape), array)

    @override
    def fill(self, blocks: Sequence[NDArray[np.uint8]]) -> None:
        steps = np.array(self._steps, np.int64).reshape(-1, 7)
        steps[:, TARGET] += np.array([address_of(block) for block in blocks], np.int64).repeat(self._num_steps)
        if not self._rows.fill(steps):
            raise damaged(STRANGE_ID)

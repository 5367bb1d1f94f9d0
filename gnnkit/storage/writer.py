"""Writing the files of a store: nodes assigned to parts, edges counted and filled range by range, all of it streamed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import DatasetError, PlanError
from gnnkit.events import EventSink, Stage
from gnnkit.schema import ArraySpec, EdgeType, GraphSchema, NodeType
from gnnkit.storage.arrays import GraphArrays
from gnnkit.storage.convert import convert_rows
from gnnkit.storage.edge_values import TIME_NAME, as_times, check_weights, time_order, timed_edge_types, weight_exponent, weight_prefix
from gnnkit.storage.files import ArrayWriter, FileSpec, StoreFiles
from gnnkit.storage.inputs import BucketSpool, BuildInput, EdgeBatch, RowReader, SortedEdgesInput, edges_only, with_quantizations
from gnnkit.storage.kernels import bucket_order, count_degrees, count_parts, place_edges
from gnnkit.storage.layout import (
    FEATURE_NAME,
    BuildOptions,
    StoreNumbering,
    array_file,
    book_file,
    cache_file,
    contiguous_numbering,
    from_assignment,
    index_dtype,
    keys_file,
    part_of,
    split_file,
    store_schema,
    weighted_edge_types,
)
from gnnkit.storage.link_splits import check_range, check_specs, id_rows, spec_of
from gnnkit.storage.manifest import Manifest, planned_manifest, write_manifest
from gnnkit.storage.partition import assign_parts, needs_topology
from gnnkit.storage.partition.hotness import hot_nodes, hotness_levels
from gnnkit.storage.staging import check_disk, check_memory, default_threads
from gnnkit.storage.store import Store

# Rows are converted and written in blocks of this size, so that nothing grows with the width of the features.
BLOCK_BYTES = 8 << 20


@dataclass
class BuildContext:
    """The state of one build.

    Attributes:
        files: What is written.
        scratch: Folder for the builder's own files, removed before the store is published.
        graph: What is read.
        draft: The manifest so far; counts are filled in as they become known.
        numbering: Store ids of each node type.
        pool: Runs the kernels and writes; the calling thread reads and reports.
        num_threads: Threads of ``pool``.
        budget_bytes: Memory that buffers of edges may take, over all threads.
        stage: Where progress goes, in bytes.
    """

    files: StoreFiles
    scratch: Path
    graph: BuildInput
    draft: Manifest
    numbering: dict[NodeType, StoreNumbering]
    pool: ThreadPoolExecutor
    num_threads: int
    budget_bytes: int
    stage: Stage
    _times: dict[NodeType, NDArray[np.int64]] = field(default_factory=dict)

    @property
    def parts(self) -> list[int]:
        """The parts that are written, ascending."""
        return sorted(part for part in self.files.roots if part is not None)

    def node_times(self, node_type: NodeType, name: str) -> NDArray[np.int64]:
        """Times of a type's nodes by store id, int64 ``[num_nodes]``; read when first asked for, and kept."""
        if node_type not in self._times:
            store_id = self.numbering[node_type].store_id
            times = as_times(RowReader.of(self.graph, node_type, name).take(self.graph.schema.node_types[node_type].num_nodes))
            by_store_id = np.empty_like(times)
            by_store_id[slice(None) if store_id is None else store_id] = times
            self._times[node_type] = by_store_id
        return self._times[node_type]

    def write_rows(self, writer: ArrayWriter, row: int, rows: NDArray[Any], specs: tuple[ArraySpec, ArraySpec], name: str) -> None:
        """Writes rows from ``row`` on, converted from the first spec to the second, block by block."""
        source, target = specs
        block = max(1, BLOCK_BYTES // max(1, source.row_nbytes))
        for first in range(0, len(rows), block):
            writer.write(row + first, convert_rows(rows[first : first + block], source, target, name))


def wait_all(futures: Iterable[Future[Any]]) -> list[Any]:
    """Results of all futures; raises the first error only once none of them runs any more."""
    futures = list(futures)
    errors = [error for future in futures if (error := future.exception()) is not None]
    if errors:
        raise errors[0]
    return [future.result() for future in futures]


NO_IDS: NDArray[np.int64] = np.empty(0, np.int64)
NO_MAP: NDArray[np.int32] = np.empty(0, np.int32)


def build_nodes(context: BuildContext, node_type: NodeType, hot: list[Mapping[NodeType, NDArray[np.int64]]]) -> None:
    """Writes the arrays and maps of one node type into the parts.

    Args:
        context: The build.
        node_type: The node type.
        hot: For each part, ``{node type: ascending dataset ids}`` of nodes that other parts own and whose features it replicates;
            empty: none does.
    """
    schema, numbering = context.graph.schema.node_types[node_type], context.numbering[node_type]
    # Where rows of one part come alone, they come in the order of the store.
    low, high = numbering.bounds[context.parts[0] :][:2] if context.parts else (0, 0)
    own = StoreNumbering(np.clip(numbering.bounds, low, high) - low)
    for name, spec in schema.arrays.items():
        chunks = context.graph.node_array_chunks(node_type, name)
        stored = context.draft.schema.node_types[node_type].arrays[name]
        cached = _cached_rows(context, node_type, hot) if name == FEATURE_NAME else []
        _scatter(context, node_type, name, chunks, (spec, stored), numbering if context.graph.totals is None else own, cached)
    if numbering.store_id is None:
        return
    id_spec = ArraySpec(index_dtype(numbering.num_nodes).name)
    _scatter(context, node_type, "global_id", _consecutive(numbering.num_nodes, id_spec.numpy_dtype), (id_spec, id_spec), numbering, [])
    if None in context.files.roots:
        file = book_file(node_type)
        context.files.writer(file, context.draft.node_specs(node_type)[file]).write(0, numbering.store_id)


# The features that one part replicates: ascending dataset ids, and where their rows go.
_CachedRows: TypeAlias = tuple[NDArray[np.int64], ArrayWriter]


def _cached_rows(context: BuildContext, node_type: NodeType, hot: list[Mapping[NodeType, NDArray[np.int64]]]) -> list[_CachedRows]:
    """Returns the rows of a node type that the written parts replicate; writes their ids."""
    if not any(len(ids.get(node_type, ())) for ids in hot):
        return []
    context.draft.cached[node_type] = tuple(len(ids.get(node_type, ())) for ids in hot)
    specs, found = context.draft.node_specs(node_type), []
    for part in context.parts:
        ids = hot[part].get(node_type, np.empty(0, np.int64))
        names = [cache_file(part, node_type, name) for name in ("global_id", FEATURE_NAME)]
        global_id, features = (context.files.writer(name, specs[name]) for name in names)
        global_id.write(0, ids)
        found.append((ids, features))
    return found


def build_splits(context: BuildContext) -> None:
    """Writes the official splits, verbatim.

    Raises:
        DatasetError: An id of a split is out of range.
    """
    specs = context.draft.file_specs()
    for node_type, splits in context.graph.splits.items():
        for split, ids in splits.items():
            check_range(ids, context.graph.schema.node_types[node_type].num_nodes, f"split {split!r} of {node_type!r}")
            name = split_file(node_type, split)
            context.files.writer(name, specs[name]).write(0, ids)


def build_link_splits(context: BuildContext) -> None:
    """Writes the links of all splits, verbatim.

    A source may read all edge types' links of a split at once, so splits are the outer loop, and one split is held at a time.

    Raises:
        DatasetError: An array is unknown, of a wrong shape or dtype, or an id in it is out of range.
    """
    splits = context.graph.link_splits
    written = {split_file(node_type, split) for node_type, own in context.graph.splits.items() for split in own}
    for split in dict.fromkeys(split for by_split in splits.values() for split in by_split):
        for edge_type in splits:
            if split not in splits[edge_type]:
                continue
            arrays = splits[edge_type][split]
            what = f"split {split!r} of {edge_type}"
            specs = {name: spec_of(what, name, values) for name, values in arrays.items()}
            check_specs(what, specs)
            for name, values in arrays.items():
                for ids, count in id_rows(context.graph.schema, edge_type, name, values):
                    check_range(ids, count, f"{name!r} of {what}")
            context.draft.link_splits.setdefault(edge_type, {})[split] = specs
            for name, spec in specs.items():
                file = split_file(edge_type, split, name)
                if file in written:
                    raise DatasetError(f"{what} would share the file {file!r} with a split of nodes", "rename the node type or the split")
                context.files.writer(file, spec).write(0, arrays[name])


def build_keys(context: BuildContext) -> None:
    """Writes the keys of all node types, verbatim."""
    for node_type, keys in context.graph.keys.items():
        specs = {name: FileSpec(rows.dtype, rows.shape) for name, rows in keys.arrays.items()}
        context.draft.keys[node_type] = (dict(keys.columns), specs)
        for name, spec in specs.items():
            context.files.writer(keys_file(node_type, name), spec).write(0, keys.arrays[name])


def _scatter(
    context: BuildContext,
    node_type: NodeType,
    name: str,
    chunks: Iterator[NDArray[Any]],
    specs: tuple[ArraySpec, ArraySpec],
    numbering: StoreNumbering,
    cached: list[_CachedRows],
) -> None:
    """Streams one array into the parts' files, and those of its rows that parts replicate."""
    if not context.parts:
        return
    bounds, store_id = numbering.bounds, numbering.store_id
    file_specs = context.draft.node_specs(node_type)
    names = {part: array_file(part, node_type, name) for part in context.parts}
    writers = {part: context.files.writer(file, file_specs[file]) for part, file in names.items()}
    label = f"{name!r} of {node_type!r}"

    def write(first: int, rows: NDArray[Any]) -> None:
        """Writes the rows of the dataset ids from ``first`` on, each to its part, and to those that replicate it."""
        last = first + len(rows)
        for ids, writer in cached:
            low, high = np.searchsorted(ids, [first, last])
            if high > low:
                context.write_rows(writer, int(low), rows[ids[low:high] - first], specs, label)
        if store_id is None:
            for part, writer in writers.items():
                start, end = max(first, int(bounds[part])), min(last, int(bounds[part + 1]))
                if end > start:
                    context.write_rows(writer, start - int(bounds[part]), rows[start - first : end - first], specs, label)
            return
        store_ids = store_id[first:last]
        owners = numbering.part_of(store_ids)
        for part in np.flatnonzero(np.bincount(owners, minlength=len(bounds) - 1)).tolist():
            if part not in writers:
                continue
            mine = np.flatnonzero(owners == part)
            mine = mine[np.argsort(store_ids[mine], kind="stable")]
            places = store_ids[mine] - bounds[part]
            # One run, or one for each level of hotness.
            for run in np.split(np.arange(len(mine)), np.flatnonzero(np.diff(places) != 1) + 1):
                context.write_rows(writers[part], int(places[run[0]]), rows[mine[run]], specs, label)

    reader = RowReader(chunks, specs[0], label, numbering.num_nodes)
    block = max(1, BLOCK_BYTES // max(1, specs[0].row_nbytes))
    for first in range(0, numbering.num_nodes, block * context.num_threads):
        last = min(first + block * context.num_threads, numbering.num_nodes)
        rows = reader.take(last - first)
        pieces = [(start, rows[start - first : start - first + block]) for start in range(first, last, block)]
        wait_all(context.pool.submit(write, *piece) for piece in pieces)
        context.stage.advance(rows.nbytes)
    reader.finish()
    context.files.finish()


def _consecutive(count: int, dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
    step = 1 << 20
    for first in range(0, count, step):
        yield np.arange(first, min(first + step, count), dtype=dtype)


# Passes over the edges beyond which one pass into a spool is cheaper, and rows taken from a spool at once.
MAX_REREADS = 4
_SPOOL_ROWS = 1 << 20
EDGE_BYTES = 16


def out_of_range(schema: GraphSchema, edge_type: EdgeType, batch: EdgeBatch, k: int) -> DatasetError:
    """The error for edge ``k`` of a batch, one of whose ends is no node."""
    sizes = [schema.node_types[end].num_nodes for end in (edge_type[0], edge_type[2])]
    return DatasetError(
        f"edge {batch.first + k} of {edge_type} goes from {int(batch.source[k])} to {int(batch.target[k])}, "
        f"but there are {sizes[0]} {edge_type[0]!r} and {sizes[1]} {edge_type[2]!r} nodes",
        "the dataset is damaged, or its node counts are wrong",
    )


def check_ends(schema: GraphSchema, edge_type: EdgeType, batch: EdgeBatch) -> None:
    """Refuses edges an end of which is no node.

    Raises:
        DatasetError: There is one; names the first.
    """
    wrong = np.zeros(len(batch.source), np.bool_)
    for ends, node_type in ((batch.source, edge_type[0]), (batch.target, edge_type[2])):
        wrong |= (ends < 0) | (ends >= schema.node_types[node_type].num_nodes)
    if (first := np.flatnonzero(wrong)[:1]).size:
        raise out_of_range(schema, edge_type, batch, int(first[0]))


@dataclass(frozen=True)
class OwnerRange:
    """Consecutive owners of one part: store ids ``[low, high)``, their edges at positions ``[first, last)`` of the part."""

    part: int
    low: int
    high: int
    first: int
    last: int


# The adjacency of one range in memory, by the names of its files; an empty array stands for edge ids that are not stored.
RangeBuffers: TypeAlias = dict[str, NDArray[Any]]


class EdgeTypeBuild:
    """Writes the files of one edge type.

    Args:
        context: The build.
        edge_type: The edge type.
    """

    def __init__(self, context: BuildContext, edge_type: EdgeType) -> None:
        self.context, self.edge_type = context, edge_type
        self.options = context.draft.options
        self.schema = context.graph.schema.edge_types[edge_type]
        owner, other = (edge_type[2], edge_type[0]) if self.options.edge_dir == "in" else (edge_type[0], edge_type[2])
        self.owners, self.others = context.numbering[owner], context.numbering[other]
        self.weight = self.options.weight if edge_type in weighted_edge_types(context.graph.schema, self.options) else None
        self.names = list(self.schema.arrays)
        timed = timed_edge_types(context.graph.schema, self.options.edge_dir, self.options.time_attr)
        self.timed, self.time_of = edge_type in timed, timed.get(edge_type)
        self._node_times: NDArray[np.int64] | None = None
        self.ordered = context.graph.in_edge_order(self.options)
        self.cut = np.zeros((self.options.num_parts, self.options.num_parts), np.int64)
        self._cut_lock = threading.Lock()
        # Degrees while counting; then, for each owner, the next free position within its part.
        self._cursor = np.zeros(self.owners.num_nodes, np.int64)
        self._writers: dict[str, ArrayWriter] = {}

    def build(self) -> None:
        """Reads the edges and writes everything."""
        self._count()
        ranges = self._plan()
        if ranges and self.time_of is not None and self.options.time_attr is not None:
            self._node_times = self.context.node_times(self.time_of, self.options.time_attr)
        waves = -(-len(ranges) // self.context.num_threads)
        reread = waves <= 1 or (waves <= MAX_REREADS and self.context.graph.cheap_to_reread(self.edge_type, self.names))
        if waves > 1 and self.ordered and self._come_in_order():
            self._fill_in_order(ranges)
        elif reread and self.ordered:
            self._fill_by_rereading(ranges)
        else:
            self._fill_by_buckets(ranges)
        self.context.draft.cuts[self.edge_type] = tuple(tuple(map(int, row)) for row in self.cut)
        self.context.files.finish()

    def _count(self) -> None:
        context, largest = self.context, 0.0
        threads = context.num_threads
        owner_map, num_owners, num_others = self.owners.map, self.owners.num_nodes, self.others.num_nodes
        bounds = [num_owners * k // threads for k in range(threads + 1)]
        for batch in context.graph.edge_batches(self.edge_type, [self.weight] if self.weight else []):
            owner, other = batch.ends(self.options.edge_dir)
            jobs = [
                context.pool.submit(count_degrees, owner, other, owner_map, num_owners, num_others, low, high, self._cursor)
                for low, high in zip(bounds, bounds[1:], strict=False)
            ]
            if self.weight:
                largest = max(largest, check_weights(batch.rows[self.weight], self.edge_type, self.weight, batch.first))
            bad = min((int(k) for k in wait_all(jobs) if k >= 0), default=-1)
            if bad >= 0:
                raise out_of_range(context.graph.schema, self.edge_type, batch, bad)
            context.stage.advance(len(owner) * EDGE_BYTES)
        if (totals := context.graph.totals) is not None:
            largest = totals.edges[self.edge_type].largest_weight
        if self.weight:
            context.draft.weight_exponents[self.edge_type] = weight_exponent(largest)

    def _plan(self) -> list[OwnerRange]:
        """Turns degrees into positions, writes the ``indptr`` of the parts that are written and cuts their owners into ranges."""
        bounds = self.owners.bounds
        parts = [self._cursor[low:high] for low, high in zip(bounds[:-1], bounds[1:], strict=True)]
        totals, own = self.context.graph.totals, tuple(int(part.sum()) for part in parts)
        self.context.draft.edge_counts[self.edge_type] = own if totals is None else totals.edges[self.edge_type].counts
        specs = self.context.draft.edge_specs(self.edge_type)
        files = self.context.files
        self._writers = {name: files.writer(name, spec) for name, spec in specs.items() if part_of(name) in files.roots}
        ranges: list[OwnerRange] = []
        for part in self.context.parts:
            ends = parts[part]
            np.cumsum(ends, out=ends)
            indptr = self._writers[array_file(part, self.edge_type, "indptr")]
            indptr.write(0, np.zeros(1, indptr.spec.dtype))
            for first in range(0, len(ends), _SPOOL_ROWS):
                indptr.write(1 + first, ends[first : first + _SPOOL_ROWS])
            ranges += self._cut_part(part, int(bounds[part]), ends)
            ends[1:] = ends[:-1]  # NumPy moves it within the array, without a copy
            ends[:1] = 0
        return ranges

    def _cut_part(self, part: int, offset: int, ends: NDArray[np.int64]) -> list[OwnerRange]:
        num_edges = int(ends[-1]) if len(ends) else 0
        limit = max(1, self.context.budget_bytes // self.context.num_threads // self._bytes_per_edge())
        # Equal ranges, as many as there are threads at least, so that all of them have work to the end.
        count = -(-num_edges // limit)
        if num_edges >= _SPOOL_ROWS:
            count = max(count, -(-self.context.num_threads // self.options.num_parts))
        ranges, low, first = [], 0, 0
        for k in range(1, count + 1):
            high = len(ends) if k == count else int(np.searchsorted(ends, num_edges * k // count, side="left")) + 1
            if high > low:
                last = int(ends[high - 1])
                ranges.append(OwnerRange(part, offset + low, offset + high, first, last))
                low, first = high, last
        return [r for r in ranges if r.last > r.first]

    def _bytes_per_edge(self) -> int:
        rows = sum(spec.row_nbytes for spec in self.schema.arrays.values())
        own = index_dtype(self.others.num_nodes).itemsize + (index_dtype(self.schema.num_edges).itemsize if self._with_id else 0) + rows
        # Beside the buffers lie one array's rows and, while edges are sorted, their times, their order and a copy of both.
        return own + (8 if self.weight else 0) + rows + (32 if self.timed else 0)

    @property
    def _with_id(self) -> bool:
        return self.options.with_edge or not self.ordered

    def _fill_by_rereading(self, ranges: list[OwnerRange]) -> None:
        threads, pool = self.context.num_threads, self.context.pool
        maps = self.owners.map, self.others.map
        waves = [ranges[k : k + threads] for k in range(0, len(ranges), threads)]
        for wave in waves:
            buffers = [self._allocate(owner_range) for owner_range in wave]
            for batch in self.context.graph.edge_batches(self.edge_type, self.names):
                wait_all(pool.submit(self._place, batch, maps, *work) for work in zip(wave, buffers, strict=True))
                self.context.stage.advance(len(batch.source) * EDGE_BYTES / len(waves))
            wait_all(pool.submit(self._write, *work) for work in zip(wave, buffers, strict=True))

    def _come_in_order(self) -> bool:
        """Whether edges of one range come together, so that few ranges have to be in memory at a time."""
        window = self.context.graph.owner_window(self.edge_type, self.options)
        # Node numbers of the store are the source's, and what may be under way at once is no more than a wave takes.
        return self.owners.store_id is None and window is not None and window * self._bytes_per_edge() <= self.context.budget_bytes

    def _fill_in_order(self, ranges: list[OwnerRange]) -> None:
        """Reads the edges once; a range is in memory from its first edge to its last."""
        pool, maps = self.context.pool, (NO_MAP, self.others.map)
        lows, highs = (np.array(ends, np.int64) for ends in ([r.low for r in ranges], [r.high for r in ranges]))
        left = np.array([r.last - r.first for r in ranges], np.int64)
        buffers: dict[int, RangeBuffers] = {}
        for batch in self.context.graph.edge_batches(self.edge_type, self.names):
            owner, _ = batch.ends(self.options.edge_dir)
            which = np.searchsorted(lows, owner, side="right") - 1
            counts = np.bincount(which[(which >= 0) & (owner < highs[which])], minlength=len(ranges))
            touched = np.flatnonzero(counts).tolist()
            buffers |= {k: self._allocate(ranges[k]) for k in touched if k not in buffers}
            wait_all(pool.submit(self._place, batch, maps, ranges[k], buffers[k]) for k in touched)
            left -= counts
            wait_all(pool.submit(self._write, ranges[k], buffers.pop(k)) for k in touched if not left[k])
            self.context.stage.advance(len(owner) * EDGE_BYTES)

    def _fill_by_buckets(self, ranges: list[OwnerRange]) -> None:
        if not ranges:
            return
        starts = np.cumsum([0] + [r.last - r.first for r in ranges], dtype=np.int64)
        # Arrays may be called anything but what the store uses itself: owners are the column "indptr".
        counts = {"indptr": self.owners.num_nodes, "indices": self.others.num_nodes}
        counts |= {"edge_id": self.schema.num_edges} if self._with_id else {}
        columns = {name: ArraySpec(index_dtype(count).name) for name, count in counts.items()}
        spool = BucketSpool(self.context.scratch, {**columns, **self.schema.arrays}, starts)
        try:
            bounds = np.array([0] + [r.low for r in ranges[1:]] + [self.owners.num_nodes], np.int64)
            for batch in self.context.graph.edge_batches(self.edge_type, self.names):
                self._spool_batch(spool, bounds, batch)
                self.context.stage.advance(len(batch.source) * EDGE_BYTES)
            wait_all([self.context.pool.submit(self._fill_bucket, spool, k, owner_range) for k, owner_range in enumerate(ranges)])
        finally:
            spool.close()

    def _spool_batch(self, spool: BucketSpool, bounds: NDArray[np.int64], batch: EdgeBatch) -> None:
        owner, other = batch.ends(self.options.edge_dir)
        if self.owners.store_id is not None:
            owner = self.owners.store_id[owner].astype(np.int64)
        if self.others.store_id is not None:
            other = self.others.store_id[other]
        mine: slice | NDArray[np.bool_] = slice(None)
        if len(self.context.parts) < self.options.num_parts:
            mine = np.isin(self.owners.part_of(owner), self.context.parts)
            owner, other = owner[mine], other[mine]
        order, starts = np.empty(len(owner), np.int64), np.empty(len(bounds), np.int64)
        bucket_order(owner, bounds, order, starts)
        columns: dict[str, NDArray[Any]] = {"indptr": owner, "indices": other}
        if self._with_id:
            columns["edge_id"] = (np.arange(batch.first, batch.first + len(batch.source)) if batch.edge_id is None else batch.edge_id)[mine]
        columns |= {name: batch.rows[name][mine] for name in self.names}
        wait_all(self.context.pool.submit(spool.put_column, name, order, starts, values) for name, values in columns.items())
        spool.advance(starts)

    def _fill_bucket(self, spool: BucketSpool, bucket: int, owner_range: OwnerRange) -> None:
        owner, other = spool.take(bucket, "indptr"), spool.take(bucket, "indices")
        edge_id = spool.take(bucket, "edge_id") if self._with_id else NO_IDS
        order = None if self.ordered else np.argsort(edge_id, kind="stable")
        rows = {name: spool.take(bucket, name) for name in self.names}
        buffers = self._allocate(owner_range)
        for first in range(0, len(owner), _SPOOL_ROWS):
            pick = slice(first, first + _SPOOL_ROWS) if order is None else order[first : first + _SPOOL_ROWS]
            ends = owner[pick].astype(np.int64), other[pick].astype(np.int64)
            source, target = ends[::-1] if self.options.edge_dir == "in" else ends
            ids = edge_id[pick].astype(np.int64) if self._with_id else None
            batch = EdgeBatch(first, source, target, ids, {name: values[pick] for name, values in rows.items()})
            self._place(batch, (NO_MAP, NO_MAP), owner_range, buffers)
        self._write(owner_range, buffers)

    def _allocate(self, owner_range: OwnerRange) -> RangeBuffers:
        count = owner_range.last - owner_range.first
        return {
            "indices": np.empty(count, index_dtype(self.others.num_nodes)),
            "edge_id": np.empty(count if self.options.with_edge else 0, index_dtype(self.schema.num_edges)),
            **{name: np.empty((count, *spec.stored_shape), spec.numpy_dtype) for name, spec in self.schema.arrays.items()},
        }

    def _place(self, batch: EdgeBatch, maps: tuple[NDArray[Any], NDArray[Any]], owner_range: OwnerRange, buffers: RangeBuffers) -> None:
        owner, other = batch.ends(self.options.edge_dir)
        place = np.empty(len(owner) if self.names else 0, np.int64)
        place_edges(
            owner, other, NO_IDS if batch.edge_id is None else batch.edge_id, batch.first, *maps, owner_range.low, owner_range.high,
            self._cursor, owner_range.first, buffers["indices"], buffers["edge_id"], place,
        )  # fmt: skip
        if self.names:
            mine = np.flatnonzero(place >= 0)
            for name in self.names:
                buffers[name][place[mine]] = batch.rows[name][mine]

    def _write(self, owner_range: OwnerRange, buffers: RangeBuffers) -> None:
        part, first = owner_range.part, owner_range.first
        indptr = np.zeros(owner_range.high - owner_range.low + 1 if self.timed or self.weight else 1, np.int64)
        if len(indptr) > 1:
            # Every owner's cursor has arrived at the end of its edges.
            np.subtract(self._cursor[owner_range.low : owner_range.high], first, out=indptr[1:])
        if self.timed:
            self._writer(part, TIME_NAME).write(first, self._sort_by_time(indptr, buffers))
        counts = np.zeros(self.options.num_parts, np.int64)
        count_parts(buffers["indices"], self.others.bounds, counts)
        with self._cut_lock:
            self.cut[part] += counts
        self._writer(part, "indices").write(first, buffers["indices"])
        if self.options.with_edge:
            self._writer(part, "edge_id").write(first, buffers["edge_id"])
        for name in self.names:
            specs = (self.schema.arrays[name], self.context.draft.schema.edge_types[self.edge_type].arrays[name])
            self.context.write_rows(self._writer(part, name), first, buffers[name], specs, f"{name!r} of {self.edge_type}")
        if self.weight:
            exponent = self.context.draft.weight_exponents[self.edge_type]
            self._writer(part, "weight_prefix").write(first, weight_prefix(indptr, buffers[self.weight], exponent))

    def _sort_by_time(self, indptr: NDArray[np.int64], buffers: RangeBuffers) -> NDArray[np.int64]:
        """Brings the edges of each owner into the order of their times, and returns these."""
        name = self.options.time_attr
        assert name is not None
        times = as_times(buffers[name]) if self._node_times is None else self._node_times[buffers["indices"]]
        order = time_order(indptr, times)
        if order is None:
            return times
        times = times[order]
        for values in buffers.values():
            if len(values):
                values[:] = values[order]
        return times

    def _writer(self, part: int, name: str) -> ArrayWriter:
        return self._writers[array_file(part, self.edge_type, name)]


# The manifest, with the files and the cuts of the parts that were written, which are on the disk; and the store ids of each node type.
Written: TypeAlias = tuple[Manifest, Mapping[NodeType, StoreNumbering]]


@dataclass(frozen=True)
class StoreWriter:
    """Writes the files of a store, or of some of its parts, into folders that exist.

    Attributes:
        graph: The graph.
        options: How to build it, in canonical form.
        fingerprint: Fingerprint of the result.
        roots: See ``StoreFiles``.
        scratch: Folder for temporary files.
        events: Receives the stages.
        stage: Name of the stage that writes.
        budget_bytes: Memory for buffers of edges.
    """

    graph: BuildInput
    options: BuildOptions
    fingerprint: str
    roots: Mapping[int | None, Path]
    scratch: Path
    events: EventSink
    stage: str
    budget_bytes: int

    def write(self, topology: GraphArrays | None, parts: Mapping[NodeType, NDArray[Any]] | None = None) -> Written:
        """Assigns nodes to parts and writes everything but the manifest.

        Args:
            topology: See ``BuildJob``.
            parts: See ``BuildJob``.
        """
        options, graph, writer = self.options, self.graph, self
        self._preflight()
        caches, by_hotness = options.cache_ratio > 0.0, options.order == "hotness"
        if topology is None and (caches or by_hotness or needs_topology(options.partition)):
            whole = self._sort_edges()
            topology = whole.arrays()
            # What is left is cutting: the dataset's edges are not read again.
            writer = replace(self, graph=SortedEdgesInput(graph, whole), stage="partition")
        numbering: dict[NodeType, StoreNumbering] = {}
        hot: list[Mapping[NodeType, NDArray[np.int64]]] = []
        if options.partition == "contiguous" and not caches and not by_hotness:
            numbering = contiguous_numbering(graph.schema, options.num_parts)
        else:
            if parts is None:
                parts = assign_parts(graph.schema, topology, options, self.events, graph.splits, graph)
            assignment = dict(parts)
            if caches and topology is not None:
                hot += hot_nodes(topology, assignment, options, graph.splits)
            levels = hotness_levels(topology, options, graph.splits) if by_hotness and topology is not None else {}
            for t, nodes in graph.schema.node_types.items():
                if t not in assignment:
                    raise PlanError(f"nothing says which parts the nodes of type {t!r} are in", "give a partition book for every node type")
                numbering[t] = from_assignment(t, nodes.num_nodes, options.num_parts, assignment.pop(t), levels.pop(t, None))
        return writer._write_parts(numbering, hot), numbering

    def _sort_edges(self) -> Store:
        """A temporary store of one part, so that partitioners see the topology and nothing is parsed twice."""
        options = BuildOptions(edge_dir=self.options.edge_dir, with_edge=self.options.with_edge)
        root, scratch = self.scratch / "whole", self.scratch / "sorting"
        root.mkdir()
        scratch.mkdir()
        graph, roots = edges_only(self.graph), {None: root, 0: root}
        sorting = replace(self, graph=graph, options=options, fingerprint="", roots=roots, scratch=scratch)
        write_manifest(root, sorting._write_parts(contiguous_numbering(graph.schema, 1), []))
        return Store.open(root)

    def _write_parts(self, numbering: dict[NodeType, StoreNumbering], hot: list[Mapping[NodeType, NDArray[np.int64]]]) -> Manifest:
        graph, threads, files = self.graph, default_threads(), StoreFiles(self.roots)
        draft = Manifest(
            name=graph.name,
            notice=graph.notice,
            fingerprint=self.fingerprint,
            source_fingerprint=graph.fingerprint(),
            schema=with_quantizations(graph, store_schema(graph.schema, self.options, graph.metadata), self.events),
            options=self.options,
            node_bounds={t: tuple(map(int, n.bounds)) for t, n in numbering.items()},
            edge_counts={},
            cuts={},
            weight_exponents={},
            renumbered=frozenset(t for t, n in numbering.items() if n.store_id is not None),
            hotness={t: n.hotness for t, n in numbering.items() if n.hotness is not None},
            splits={t: {split: len(ids) for split, ids in splits.items()} for t, splits in graph.splits.items()},
            metadata=checked_metadata(graph.metadata),
            append_state=graph.append_state,
            files=files.entries,
        )
        stage = Stage(self.events, self.stage, label=graph.name, total=_work(graph.schema), unit="B")
        with stage, ThreadPoolExecutor(threads, "gnnkit-build") as pool, files:
            context = BuildContext(files, self.scratch, graph, draft, numbering, pool, threads, self.budget_bytes, stage)
            for edge_type in graph.schema.edge_types:
                EdgeTypeBuild(context, edge_type).build()
            for node_type in graph.schema.node_types:
                build_nodes(context, node_type, hot)
            if None in self.roots:
                build_splits(context)
                build_link_splits(context)
                build_keys(context)
        return draft

    def _preflight(self) -> None:
        """Refuses to begin where disk or memory are too small."""
        graph, options = self.graph, self.options
        splits = {t: {split: len(ids) for split, ids in own.items()} for t, own in graph.splits.items()}
        planned = planned_manifest(graph.name, graph.schema, splits, options, graph.metadata)
        of_edges = {t: sum(spec.file_nbytes for spec in planned.edge_specs(t).values()) for t in planned.schema.edge_types}
        share = sum(part is not None for part in self.roots) / options.num_parts
        written = sum(spec.file_nbytes for name, spec in planned.file_specs().items() if part_of(name) in self.roots)
        sorts = needs_topology(options.partition) or options.cache_ratio or options.order == "hotness"
        # A spool holds the owners of edges, too.
        spools = [nbytes + 4 * planned.schema.edge_types[t].num_edges for t, nbytes in of_edges.items()]
        spool = max((nbytes for nbytes in spools if nbytes > MAX_REREADS * self.budget_bytes), default=0)
        beside = max(share * spool, sum(of_edges.values()) if sorts else 0)
        check_disk(next(iter(self.roots.values())), int(written + beside), f"the store of {graph.name}")
        counts = {t: nodes.num_nodes for t, nodes in graph.schema.node_types.items()}
        # Expected visits are counted with three numbers of 8 bytes for each node.
        numbering = sum(24 * counts[t] for t in planned.renumbered) + (24 * sum(counts.values()) if options.order == "hotness" else 0)
        timed = timed_edge_types(graph.schema, options.edge_dir, options.time_attr)
        times = sum(16 * counts[owner] for owner in set(timed.values()) if owner is not None)
        # One cursor for each owner, and where its edges end for what goes by that.
        ends = {*timed, *weighted_edge_types(graph.schema, options)}
        cursors = max((8 * (1 + (t in ends)) * counts[t[2 if options.edge_dir == "in" else 0]] for t in graph.schema.edge_types), default=0)
        check_memory(cursors + numbering + times + self.budget_bytes, f"building the store of {graph.name}", graph.schema)


def checked_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata as JSON gives it back.

    Raises:
        PlanError: It holds something that JSON cannot.
    """
    try:
        value: dict[str, Any] = json.loads(json.dumps(dict(metadata)))
    except (TypeError, ValueError) as error:
        raise PlanError(f"the dataset's metadata is not JSON: {error}") from error
    return value


def _work(schema: GraphSchema) -> float:
    """Bytes that a build goes through: both passes over the edges, and every node array."""
    nodes = sum(t.num_nodes * spec.row_nbytes for t in schema.node_types.values() for spec in t.arrays.values())
    return float(2 * EDGE_BYTES * schema.num_edges + nodes)

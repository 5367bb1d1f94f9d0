"""Building one edge type: count, cut the owners into ranges that fit memory, fill range by range.

Every range's adjacency is made in memory and written front to back, because random writes into a file mapping larger than
memory would read and write a page for each edge. A range is filled by reading the edges again where that is cheap and there are few
ranges, otherwise from a spool into which one pass sorted the edges by range.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import DatasetError
from gnnkit.schema import ArraySpec, EdgeType
from gnnkit.storage.context import NO_IDS, NO_MAP, BuildContext, wait_all
from gnnkit.storage.files import ArrayWriter
from gnnkit.storage.inputs import EdgeBatch
from gnnkit.storage.kernels import bucket_order, count_degrees, count_parts, place_edges
from gnnkit.storage.layout import edge_file, index_dtype, part_of, weighted_edge_types
from gnnkit.storage.spool import BucketSpool
from gnnkit.storage.times import TIME_NAME, as_times, time_order, timed_edge_types
from gnnkit.storage.weights import check_weights, weight_exponent, weight_prefix

# Passes over the edges beyond which one pass into a spool is cheaper, and rows taken from a spool at once.
MAX_REREADS = 4
_SPOOL_ROWS = 1 << 20
EDGE_BYTES = 16


@dataclass(frozen=True)
class OwnerRange:
    """Consecutive owners of one part: store ids ``[low, high)``, their edges at positions ``[first, last)`` of the part."""

    part: int
    low: int
    high: int
    first: int
    last: int


@dataclass(frozen=True)
class RangeBuffers:
    """The adjacency of one range in memory; empty arrays stand for what is not stored."""

    indices: NDArray[Any]
    edge_id: NDArray[Any]
    arrays: Mapping[str, NDArray[Any]]


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
        self.timed = timed_edge_types(context.graph.schema, self.options.edge_dir, self.options.time_attr)
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
        waves = -(-len(ranges) // self.context.num_threads)
        reread = waves <= 1 or (waves <= MAX_REREADS and self.context.graph.cheap_to_reread(self.edge_type, self.names))
        if reread and self.ordered:
            self._fill_by_rereading(ranges)
        else:
            self._fill_by_buckets(ranges)
        self.context.tables.cuts[self.edge_type] = tuple(tuple(map(int, row)) for row in self.cut)
        self.context.finish(self._writers.items())

    def _ends(self, batch: EdgeBatch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return (batch.target, batch.source) if self.options.edge_dir == "in" else (batch.source, batch.target)

    def _count(self) -> None:
        context, largest = self.context, 0.0
        threads = context.num_threads
        owner_map = NO_MAP if self.owners.store_id is None else self.owners.store_id
        num_owners, num_others = self.owners.num_nodes, self.others.num_nodes
        bounds = [num_owners * k // threads for k in range(threads + 1)]
        for batch in context.graph.edge_batches(self.edge_type, [self.weight] if self.weight else []):
            owner, other = self._ends(batch)
            jobs = [
                context.pool.submit(count_degrees, owner, other, owner_map, num_owners, num_others, low, high, self._cursor)
                for low, high in zip(bounds, bounds[1:], strict=False)
            ]
            if self.weight:
                largest = max(largest, check_weights(batch.rows[self.weight], self.edge_type, self.weight, batch.first))
            bad = min((int(k) for k in wait_all(jobs) if k >= 0), default=-1)
            if bad >= 0:
                raise self._out_of_range(batch, bad)
            context.stage.advance(len(owner) * EDGE_BYTES)
        if self.weight:
            context.tables.weight_exponents[self.edge_type] = weight_exponent(largest)

    def _out_of_range(self, batch: EdgeBatch, k: int) -> DatasetError:
        sizes = [self.context.graph.schema.node_types[end].num_nodes for end in (self.edge_type[0], self.edge_type[2])]
        return DatasetError(
            f"edge {batch.first + k} of {self.edge_type} goes from {int(batch.source[k])} to {int(batch.target[k])}, "
            f"but there are {sizes[0]} {self.edge_type[0]!r} and {sizes[1]} {self.edge_type[2]!r} nodes",
            "the dataset is damaged, or its node counts are wrong",
        )

    def _plan(self) -> list[OwnerRange]:
        """Turns degrees into positions, writes the ``indptr`` of the parts that are written and cuts their owners into ranges."""
        bounds = self.owners.bounds
        parts = [self._cursor[low:high] for low, high in zip(bounds[:-1], bounds[1:], strict=True)]
        self.context.tables.edge_counts[self.edge_type] = tuple(int(part.sum()) for part in parts)
        specs = self.context.draft.edge_specs(self.edge_type)
        self._writers = {name: self.context.writer(name, spec) for name, spec in specs.items() if part_of(name) in self.context.roots}
        ranges: list[OwnerRange] = []
        for part in self.context.parts:
            ends = parts[part]
            np.cumsum(ends, out=ends)
            indptr = self._writers[edge_file(part, self.edge_type, "indptr")]
            indptr.write(0, np.zeros(1, indptr.spec.dtype))
            for first in range(0, len(ends), _SPOOL_ROWS):
                indptr.write(1 + first, ends[first : first + _SPOOL_ROWS])
            ranges += self._cut_part(part, int(bounds[part]), ends)
            ends[1:] = ends[:-1].copy()
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
        return own + (8 if self.weight else 0) + rows + (32 if self.edge_type in self.timed else 0)

    @property
    def _with_id(self) -> bool:
        return self.options.with_edge or not self.ordered

    def _fill_by_rereading(self, ranges: list[OwnerRange]) -> None:
        threads, pool = self.context.num_threads, self.context.pool
        owner_map = NO_MAP if self.owners.store_id is None else self.owners.store_id
        other_map = NO_MAP if self.others.store_id is None else self.others.store_id
        waves = [ranges[k : k + threads] for k in range(0, len(ranges), threads)]
        for wave in waves:
            buffers = [self._allocate(owner_range) for owner_range in wave]
            for batch in self.context.graph.edge_batches(self.edge_type, self.names):
                wait_all(pool.submit(self._place, batch, (owner_map, other_map), *work) for work in zip(wave, buffers, strict=True))
                self.context.stage.advance(len(batch.source) * EDGE_BYTES / len(waves))
            wait_all(pool.submit(self._write, *work) for work in zip(wave, buffers, strict=True))

    def _fill_by_buckets(self, ranges: list[OwnerRange]) -> None:
        if not ranges:
            return
        starts = np.cumsum([0] + [r.last - r.first for r in ranges], dtype=np.int64)
        columns = {"owner": ArraySpec(index_dtype(self.owners.num_nodes).name), "other": ArraySpec(index_dtype(self.others.num_nodes).name)}
        if self._with_id:
            columns["edge_id"] = ArraySpec(index_dtype(self.schema.num_edges).name)
        # Arrays may be called anything, so their columns are numbered.
        columns |= {f"array{k}": self.schema.arrays[name] for k, name in enumerate(self.names)}
        spool = BucketSpool(self.context.scratch, columns, starts)
        try:
            bounds = np.array([0] + [r.low for r in ranges[1:]] + [self.owners.num_nodes], np.int64)
            for batch in self.context.graph.edge_batches(self.edge_type, self.names):
                self._spool_batch(spool, bounds, batch)
                self.context.stage.advance(len(batch.source) * EDGE_BYTES)
            wait_all([self.context.pool.submit(self._fill_bucket, spool, k, owner_range) for k, owner_range in enumerate(ranges)])
        finally:
            spool.close()

    def _spool_batch(self, spool: BucketSpool, bounds: NDArray[np.int64], batch: EdgeBatch) -> None:
        owner, other = self._ends(batch)
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
        columns: dict[str, NDArray[Any]] = {"owner": owner, "other": other}
        if self._with_id:
            columns["edge_id"] = (np.arange(batch.first, batch.first + len(batch.source)) if batch.edge_id is None else batch.edge_id)[mine]
        columns |= {f"array{k}": batch.rows[name][mine] for k, name in enumerate(self.names)}
        wait_all(self.context.pool.submit(spool.put_column, name, order, starts, values) for name, values in columns.items())
        spool.advance(starts)

    def _fill_bucket(self, spool: BucketSpool, bucket: int, owner_range: OwnerRange) -> None:
        owner, other = spool.take(bucket, "owner"), spool.take(bucket, "other")
        edge_id = spool.take(bucket, "edge_id") if self._with_id else NO_IDS
        order = None if self.ordered else np.argsort(edge_id, kind="stable")
        rows = {name: spool.take(bucket, f"array{k}") for k, name in enumerate(self.names)}
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
        return RangeBuffers(
            np.empty(count, index_dtype(self.others.num_nodes)),
            np.empty(count if self.options.with_edge else 0, index_dtype(self.schema.num_edges)),
            {name: np.empty((count, *spec.row_shape), spec.numpy_dtype) for name, spec in self.schema.arrays.items()},
        )

    def _place(self, batch: EdgeBatch, maps: tuple[NDArray[Any], NDArray[Any]], owner_range: OwnerRange, buffers: RangeBuffers) -> None:
        owner, other = self._ends(batch)
        place = np.empty(len(owner) if self.names else 0, np.int64)
        place_edges(
            owner, other, NO_IDS if batch.edge_id is None else batch.edge_id, batch.first, *maps, owner_range.low, owner_range.high,
            self._cursor, owner_range.first, buffers.indices, buffers.edge_id, place,
        )  # fmt: skip
        if self.names:
            mine = np.flatnonzero(place >= 0)
            for name, values in buffers.arrays.items():
                values[place[mine]] = batch.rows[name][mine]

    def _write(self, owner_range: OwnerRange, buffers: RangeBuffers) -> None:
        part, first = owner_range.part, owner_range.first
        # Every owner's cursor has arrived at the end of its edges.
        indptr = np.concatenate([[first], self._cursor[owner_range.low : owner_range.high]]) - first
        if self.edge_type in self.timed:
            self._writer(part, TIME_NAME).write(first, self._sort_by_time(indptr, buffers))
        counts = np.zeros(self.options.num_parts, np.int64)
        count_parts(buffers.indices, self.others.bounds, counts)
        with self._cut_lock:
            self.cut[part] += counts
        self._writer(part, "indices").write(first, buffers.indices)
        if self.options.with_edge:
            self._writer(part, "edge_id").write(first, buffers.edge_id)
        for name, values in buffers.arrays.items():
            spec = self.schema.arrays[name]
            specs = (spec, self.context.draft.schema.edge_types[self.edge_type].arrays[name])
            self.context.write_rows(self._writer(part, name), first, values, specs, f"{name!r} of {self.edge_type}")
        if self.weight:
            exponent = self.context.tables.weight_exponents[self.edge_type]
            self._writer(part, "weight_prefix").write(first, weight_prefix(indptr, buffers.arrays[self.weight], exponent))

    def _sort_by_time(self, indptr: NDArray[np.int64], buffers: RangeBuffers) -> NDArray[np.int64]:
        """Brings the edges of each owner into the order of their times, and returns these."""
        name, node_type = self.options.time_attr, self.timed[self.edge_type]
        assert name is not None
        times = as_times(buffers.arrays[name]) if node_type is None else self.context.node_times(node_type, name)[buffers.indices]
        order = time_order(indptr, times)
        if order is None:
            return times
        times = times[order]
        for values in (buffers.indices, buffers.edge_id, *buffers.arrays.values()):
            if len(values):
                values[:] = values[order]
        return times

    def _writer(self, part: int, name: str) -> ArrayWriter:
        return self._writers[edge_file(part, self.edge_type, name)]

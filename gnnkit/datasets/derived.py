"""Sources made of other sources: with every edge both ways, and copied as plain arrays."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from gnnkit.datasets.streaming import Spool
from gnnkit.errors import DatasetError, PlanError
from gnnkit.events import EventSink, Stage, ignore_events
from gnnkit.files import os_errors
from gnnkit.schema import ELEMENT_TYPES, ArraySpec, EdgeType, EdgeTypeSchema, GraphSchema, NodeType, edge_type_name
from gnnkit.source import CHUNK_ROWS, GraphSource, LinkSplits, RangedSource
from gnnkit.storage.catalog import writable_root
from gnnkit.storage.files import append_rows, read_rows
from gnnkit.storage.inputs import RowReader, SourceInput
from gnnkit.storage.layout import end_specs, file_name
from gnnkit.storage.staging import INCOMPLETE, check_disk, remove_tree
from gnnkit.storage.writer import EDGE_BYTES, check_ends

_KEY = "key"
_MAX_BUCKETS = 64
_LARGEST_KEY = np.iinfo(np.int64).max


@dataclass(frozen=True)
class _Sorter:
    specs: Mapping[str, ArraySpec]
    folder: Path
    bucket_bytes: int
    out: Spool
    stage: Stage

    def sort(self, rows: Iterator[dict[str, NDArray[Any]]], low: int, high: int, total_bytes: int) -> None:
        """Appends ``rows``, whose keys are in ``[low, high)``, to the output, sorted and merged."""
        # Twice as many as would do if keys were spread evenly.
        num_buckets = max(1, min(_MAX_BUCKETS, 2 * total_bytes // self.bucket_bytes, high - low))
        width = -(-(high - low) // num_buckets) if high > low else 1
        buckets: list[Spool | None] = [None] * num_buckets
        for chunk in rows:
            self._scatter(chunk, buckets, low, width)
        for index, bucket in enumerate(buckets):
            if bucket is None:
                continue
            start = low + index * width
            nbytes = bucket.num_rows * sum(spec.row_nbytes for spec in self.specs.values())
            if nbytes <= self.bucket_bytes:
                keys = {name: bucket.read(name, 0, bucket.num_rows) for name in self.specs}
                self.out.append(_merged(keys))
                self.stage.advance(bucket.num_rows)
            elif width == 1:
                self._merge_one_key(bucket)
            else:
                self.sort(bucket.chunks(), start, min(high, start + width), nbytes)
            bucket.close()

    def _scatter(self, chunk: Mapping[str, NDArray[Any]], buckets: list[Spool | None], low: int, width: int) -> None:
        index = ((chunk[_KEY] - low) // width).astype(np.uint16)
        # NumPy sorts 16-bit integers stably by radix, in linear time.
        order = np.argsort(index, kind="stable")
        bounds = np.searchsorted(index[order], np.arange(len(buckets) + 1))
        ordered = {name: values[order] for name, values in chunk.items()}
        for number in np.flatnonzero(np.diff(bounds)):
            if buckets[number] is None:
                buckets[number] = Spool(self.specs, self.folder)
            bucket = buckets[number]
            assert bucket is not None
            bucket.append({name: values[bounds[number] : bounds[number + 1]] for name, values in ordered.items()})

    def _merge_one_key(self, bucket: Spool) -> None:
        """One edge, repeated more often than fits the memory."""
        total: dict[str, NDArray[Any]] | None = None
        for chunk in bucket.chunks():
            rows = chunk if total is None else {name: np.concatenate([total[name], chunk[name]]) for name in chunk}
            total = _merged(rows)
            self.stage.advance(len(chunk[_KEY]))
        if total is not None:
            self.out.append(total)


def _merged(rows: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Sorts rows by key and adds up those of equal keys, in their order."""
    keys = rows[_KEY]
    if len(rows) == 1:
        ordered = np.sort(keys)
        return {_KEY: ordered[_starts(ordered)]}
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = _starts(ordered)
    merged = {name: np.add.reduceat(values[order], starts, axis=0, dtype=values.dtype) for name, values in rows.items() if name != _KEY}
    return {_KEY: ordered[starts], **merged}


def _starts(ordered: NDArray[np.int64]) -> NDArray[np.int64]:
    first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return np.flatnonzero(first)


def _both_directions(source: GraphSource, edge_type: EdgeType, num_nodes: int, stage: Stage) -> Iterator[dict[str, NDArray[Any]]]:
    """Yields edges and their inverses as keys, with their arrays."""
    arrays = {name: RowReader.of(source, edge_type, name) for name in source.schema.edge_types[edge_type].arrays}
    for edges in source.edge_chunks(edge_type):
        count = edges.shape[1]
        keys = np.concatenate([edges[0] * num_nodes + edges[1], edges[1] * num_nodes + edges[0]])
        values = {name: rows.take(count) for name, rows in arrays.items()}
        yield {_KEY: keys, **{_array_key(name): np.concatenate([value, value]) for name, value in values.items()}}
        stage.advance(2 * count)


def _array_key(name: str) -> str:
    # Apart from the key's own name, whatever an array is called.
    return f"array {name}"


# Changes whenever the same source would be made undirected in another way.
_VERSION = 1
DEFAULT_MEMORY_BYTES = 256 << 20


class UndirectedSource:
    """A ``GraphSource`` that is another one made undirected; see the protocol for the attributes.

    Merging needs to read and sort all edges once, in files of ``scratch_dir`` that have no name and vanish with the
    process. It happens when ``schema`` or edges are first asked for, not for ``fingerprint``.

    Args:
        source: The graph as it is.
        scratch_dir: Folder for the sorted edges, 8 bytes for each and what their arrays take, and twice that while
            sorting; None is the user's cache.
        memory_bytes: Memory that sorting may take, roughly.
        events: Where progress goes.

    Raises:
        PlanError: The graph has a type whose name a reverse type would need.
    """

    edges_are_cheap = True

    def __init__(
        self,
        source: GraphSource,
        *,
        scratch_dir: Path | None = None,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        events: EventSink = ignore_events,
    ) -> None:
        self.name, self.notice = source.name, source.notice
        self.splits: Mapping[NodeType, Mapping[str, NDArray[np.int64]]] = source.splits
        self.link_splits: LinkSplits = source.link_splits
        self.metadata: Mapping[str, Any] = {**source.metadata, "undirected": True}
        self._source, self._scratch_dir, self._memory_bytes, self._events = source, scratch_dir, memory_bytes, events
        self._lock = threading.Lock()
        self._merged: dict[EdgeType, Spool] = {}
        self._reverse: dict[EdgeType, EdgeType] = {}
        for edge_type, table in source.schema.edge_types.items():
            source_type, relation, target_type = edge_type
            if source_type == target_type:
                for name, spec in table.arrays.items():
                    if spec.dtype in ELEMENT_TYPES:
                        raise PlanError(f"{name!r} of {edge_type} is {spec.dtype}, which cannot be added up", "keep it as float32")
                continue
            reverse = (target_type, f"rev_{relation}", source_type)
            if reverse in source.schema.edge_types:
                message = f"the graph has both {edge_type} and {reverse}, so it cannot be made undirected"
                raise PlanError(message, "it has reverse types already: undirected=False")
            self._reverse[reverse] = edge_type

    @cached_property
    def schema(self) -> GraphSchema:
        """The source's types and the reverse ones."""
        before = self._source.schema
        edges = dict(before.edge_types)
        for edge_type, table in before.edge_types.items():
            if edge_type[0] == edge_type[2]:
                edges[edge_type] = EdgeTypeSchema(self._merge(edge_type).num_rows, table.arrays)
        for reverse, edge_type in self._reverse.items():
            edges[reverse] = edges[edge_type]
        return GraphSchema(before.node_types, edges, is_homogeneous=before.is_homogeneous)

    def fingerprint(self) -> str:
        """That of the source, and of the way in which it is made undirected."""
        return hashlib.blake2b(f"undirected {_VERSION} {self._source.fingerprint()}".encode(), digest_size=16).hexdigest()

    def edge_chunks(self, edge_type: EdgeType) -> Iterator[NDArray[np.int64]]:
        """The edges in their own order, ``[2, k]`` at a time."""
        if edge_type in self._reverse:
            for edges in self._source.edge_chunks(self._reverse[edge_type]):
                yield np.ascontiguousarray(edges[::-1])
        elif edge_type[0] == edge_type[2]:
            num_nodes = self._source.schema.node_types[edge_type[0]].num_nodes
            for keys in self._merge(edge_type).rows(_KEY):
                edges = np.empty((2, len(keys)), np.int64)
                np.divmod(keys, num_nodes, out=(edges[0], edges[1]))
                yield edges
        else:
            yield from self._source.edge_chunks(edge_type)

    def edge_array_chunks(self, edge_type: EdgeType, name: str) -> Iterator[NDArray[Any]]:
        """The rows of an edge array, some at a time."""
        if edge_type[0] == edge_type[2]:
            return self._merge(edge_type).rows(_array_key(name))
        return self._source.edge_array_chunks(self._reverse.get(edge_type, edge_type), name)

    def node_array_chunks(self, node_type: NodeType, name: str) -> Iterator[NDArray[Any]]:
        """The rows of a node array, some at a time."""
        return self._source.node_array_chunks(node_type, name)

    def _merge(self, edge_type: EdgeType) -> Spool:
        """The keys and arrays of edges of a type with the same node type at both ends: sorted by (source, target), each once."""
        with self._lock:
            if edge_type not in self._merged:
                table = self._source.schema.edge_types[edge_type]
                num_nodes = self._source.schema.node_types[edge_type[0]].num_nodes
                label = self.name if self._source.schema.is_homogeneous else f"{self.name} {edge_type_name(edge_type)}"
                # Once for reading and once for sorting, each in edges of both directions.
                with Stage(self._events, "ingest", label=f"{label}, made undirected", total=4 * table.num_edges, unit="edges") as stage:
                    self._merged[edge_type] = self._with_inverses(edge_type, num_nodes, stage)
            return self._merged[edge_type]

    def _with_inverses(self, edge_type: EdgeType, num_nodes: int, stage: Stage) -> Spool:
        """Reads all edges of a type with the same node type at both ends, and gives them with their inverses, merged.

        Raises:
            DatasetError: The scratch folder cannot be written, or its disk is full.
        """
        if num_nodes > 0 and num_nodes > _LARGEST_KEY // num_nodes:
            raise DatasetError(f"{num_nodes} nodes are too many to make the graph undirected")
        edges, folder = self._source.schema.edge_types[edge_type], self._scratch_dir or writable_root()
        specs = {_KEY: ArraySpec("int64"), **{_array_key(name): spec for name, spec in edges.arrays.items()}}
        hint = "free some space, or set GNNKIT_HOME to a folder on a larger disk"
        with os_errors(f"cannot keep the undirected edges in {folder}", None, hint, DatasetError):
            folder.mkdir(parents=True, exist_ok=True)
            out = Spool(specs, folder)
            # Sorting takes about three times a bucket.
            sorter = _Sorter(specs, folder, max(1, self._memory_bytes // 3), out, stage)
            total_bytes = 2 * edges.num_edges * sum(spec.row_nbytes for spec in specs.values())
            sorter.sort(_both_directions(self._source, edge_type, num_nodes, stage), 0, num_nodes * num_nodes, total_bytes)
        return out


_ENDS = ("edges.source", "edges.target")


def _steps(count: int) -> Iterator[tuple[int, int]]:
    return ((first, min(first + CHUNK_ROWS, count)) for first in range(0, count, CHUNK_ROWS))


class FiledSource(RangedSource):
    """The rows of another source, in files that every host sees; chunks are ranges of them.

    Args:
        source: The other one; nothing is kept of it but what it says of itself and its splits of nodes.
    """

    edges_are_cheap = True

    def __init__(self, source: GraphSource) -> None:
        self.name, self.notice, self.schema = source.name, source.notice, source.schema
        self.metadata: Mapping[str, Any] = dict(source.metadata)
        self.splits: Mapping[NodeType, Mapping[str, NDArray[np.int64]]] = {
            node_type: {split: np.asarray(ids) for split, ids in splits.items()} for node_type, splits in source.splits.items()
        }
        self.link_splits: LinkSplits = {}
        self.append_state: Mapping[str, Any] | None = getattr(source, "append_state", None)
        self._fingerprint = source.fingerprint()

    def fingerprint(self) -> str:
        """The other source's."""
        return self._fingerprint

    def edge_chunks(self, edge_type: EdgeType) -> Iterator[NDArray[np.int64]]:
        """The edges in their own order, ``[2, k]`` at a time."""
        for first, last in _steps(self.schema.edge_types[edge_type].num_edges):
            yield self.edge_rows(edge_type, first, last)

    def edge_array_chunks(self, edge_type: EdgeType, name: str) -> Iterator[NDArray[Any]]:
        """The rows of an edge array, some at a time."""
        for first, last in _steps(self.schema.edge_types[edge_type].num_edges):
            yield self.edge_array_rows(edge_type, name, first, last)

    def node_array_chunks(self, node_type: NodeType, name: str) -> Iterator[NDArray[Any]]:
        """The rows of a node array, some at a time."""
        for first, last in _steps(self.schema.node_types[node_type].num_nodes):
            yield self.node_array_rows(node_type, name, first, last)


class CopiedSource(FiledSource):
    """The rows of another source, in files of a folder.

    Args:
        source: See ``FiledSource``.
        folder: The folder, see ``copy_source``.
    """

    def __init__(self, source: GraphSource, folder: Path) -> None:
        super().__init__(source)
        self._folder = folder

    @override
    def edge_rows(self, edge_type: EdgeType, first: int, last: int) -> NDArray[np.int64]:
        ends = zip(_ENDS, end_specs(self.schema, edge_type), strict=True)
        return np.stack([self._read(edge_type_name(edge_type), name, spec, first, last) for name, spec in ends]).astype(np.int64)

    @override
    def edge_array_rows(self, edge_type: EdgeType, name: str, first: int, last: int) -> NDArray[Any]:
        return self._read(edge_type_name(edge_type), f"array.{name}", self.schema.edge_types[edge_type].arrays[name], first, last)

    @override
    def node_array_rows(self, node_type: NodeType, name: str, first: int, last: int) -> NDArray[Any]:
        return self._read(f"node.{node_type}", f"array.{name}", self.schema.node_types[node_type].arrays[name], first, last)

    def _read(self, owner: str, name: str, spec: ArraySpec, first: int, last: int) -> NDArray[Any]:
        path = self._folder / file_name(owner) / file_name(name)
        return read_rows(path, spec, first, last, "remove the folder, and build the store again")


def copy_source(source: GraphSource, folder: Path, events: EventSink) -> CopiedSource:
    """Copies a source into a folder, unless a complete copy is there: the folder is there once it is complete.

    Args:
        source: The source; it is read once, front to back.
        folder: The folder to make; who calls it knows that it is the copy of this source, if it is there.
        events: Receives the stage "ingest".

    Raises:
        DatasetError: The source does not hold what it announces.
        StoreError: The disk is too full.
    """
    copied = CopiedSource(source, folder)
    if folder.is_dir():
        return copied
    graph, schema, partial = SourceInput(source), source.schema, folder.with_name(folder.name + INCOMPLETE)
    remove_tree(partial)
    partial.mkdir(parents=True)
    nodes = sum(t.num_nodes * spec.row_nbytes for t in schema.node_types.values() for spec in t.arrays.values())
    rows = sum(t.num_edges * spec.row_nbytes for t in schema.edge_types.values() for spec in t.arrays.values())
    check_disk(partial, nodes + rows + EDGE_BYTES * schema.num_edges, f"the copy of {source.name}")
    with Stage(events, "ingest", label=source.name, total=float(nodes + rows + EDGE_BYTES * schema.num_edges), unit="B") as stage:
        for edge_type, edges in schema.edge_types.items():
            place = partial / file_name(edge_type_name(edge_type))
            place.mkdir()
            for batch in graph.edge_batches(edge_type, list(edges.arrays)):
                check_ends(schema, edge_type, batch)
                for name, ends, spec in zip(_ENDS, (batch.source, batch.target), end_specs(schema, edge_type), strict=True):
                    append_rows(place / name, ends.astype(spec.numpy_dtype))
                for name, values in batch.rows.items():
                    append_rows(place / file_name(f"array.{name}"), values)
                stage.advance(len(batch.source) * EDGE_BYTES + sum(values.nbytes for values in batch.rows.values()))
        for node_type, types in schema.node_types.items():
            place = partial / file_name(f"node.{node_type}")
            place.mkdir()
            for name in types.arrays:
                reader = RowReader.of(graph, node_type, name)
                for first, last in _steps(types.num_nodes):
                    values = reader.take(last - first)
                    append_rows(place / file_name(f"array.{name}"), values)
                    stage.advance(values.nbytes)
                reader.finish()
    partial.rename(folder)
    return copied

"""Inputs of the builder: a dataset's source, a store that exists, and what was spooled or sorted on disk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import DatasetError
from gnnkit.events import EventSink, Stage
from gnnkit.schema import ArraySpec, EdgeDir, EdgeType, GraphSchema, NodeType
from gnnkit.source import CHUNK_ROWS, GraphSource, LinkSplits
from gnnkit.storage.arrays import EdgePart, place_of
from gnnkit.storage.convert import ColumnRange, unmeasured
from gnnkit.storage.files import ArrayFile
from gnnkit.storage.keys import NodeKeys
from gnnkit.storage.layout import BuildOptions, index_dtype
from gnnkit.storage.store import Store

# Rows of wide arrays are taken in smaller batches than those of narrow ones.
_BATCH_BYTES = 16 << 20


@dataclass(frozen=True)
class EdgeBatch:
    """Some consecutive edges of an input.

    Attributes:
        first: Position of the first edge in the input.
        source: int64 ``[k]``, dataset ids.
        target: int64 ``[k]``, dataset ids.
        edge_id: int64 ``[k]``, the dataset's edge ids; None where they are ``first, first + 1, ...`` or unknown.
        rows: ``{name: [k, *row_shape]}`` of the edge arrays that were asked for.
    """

    first: int
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    edge_id: NDArray[np.int64] | None = None
    rows: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def ends(self, edge_dir: EdgeDir) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The ends that own the edges, and the others."""
        return (self.target, self.source) if edge_dir == "in" else (self.source, self.target)


@dataclass(frozen=True)
class EdgeTotals:
    """The sums over all edges of a type, for a builder that sees only those of its own parts.

    Attributes:
        counts: Edges of each part.
        largest_weight: The largest of the weights that are to be prepared; 0.0 where there are none.
    """

    counts: tuple[int, ...]
    largest_weight: float = 0.0


@dataclass(frozen=True)
class GraphTotals:
    """The facts of all parts, for a builder that sees only some of them.

    Attributes:
        edges: Sums over the edges, by type.
        ranges: ``{(type, array): the range of each column}`` of arrays that are to be quantised.
    """

    edges: Mapping[EdgeType, EdgeTotals] = field(default_factory=dict)
    ranges: Mapping[tuple[NodeType | EdgeType, str], ColumnRange] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form; ``from_json`` reverses it."""
        edges = [[list(t), list(sums.counts), sums.largest_weight] for t, sums in self.edges.items()]
        ranges = [[owner, name, found.low.tolist(), found.high.tolist()] for (owner, name), found in self.ranges.items()]
        return {"edges": edges, "ranges": ranges}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> GraphTotals:
        """Reverses ``to_json``."""
        edges = {tuple(t): EdgeTotals(tuple(counts), largest) for t, counts, largest in value["edges"]}
        ranges = {
            (tuple(owner) if isinstance(owner, list) else owner, name): ColumnRange(np.array(low, np.float64), np.array(high, np.float64))
            for owner, name, low, high in value["ranges"]
        }
        return cls(edges, ranges)


class BuildInput(ABC):
    """A graph that the builder can read, front to back, several times.

    Args:
        of: The source, store or input whose name, notice, schema, splits and metadata it has.
        keys: See ``GraphSource``.
        append_state: See ``Manifest``.

    Attributes:
        name, notice, schema, splits, link_splits, metadata, keys: As in ``GraphSource``.
        append_state: See above.
        totals: None where the input yields the whole graph. Else it yields only what the parts own that are written: one part's edges, and
            its rows in the order of the store.
    """

    totals: GraphTotals | None = None

    def __init__(
        self, of: GraphSource | Store | BuildInput, keys: Mapping[NodeType, NodeKeys], append_state: Mapping[str, Any] | None
    ) -> None:
        self.name: str = of.name
        self.notice: str | None = of.notice
        self.schema: GraphSchema = of.schema
        self.splits: Mapping[NodeType, Mapping[str, NDArray[np.int64]]] = of.splits
        self.link_splits: LinkSplits = of.link_splits
        self.metadata: Mapping[str, Any] = of.metadata
        self.keys, self.append_state = keys, append_state

    @abstractmethod
    def fingerprint(self) -> str:
        """Digest of the dataset's content."""

    @abstractmethod
    def edge_batches(self, edge_type: EdgeType, names: Sequence[str]) -> Iterator[EdgeBatch]:
        """Yields all edges with the rows of the named edge arrays."""

    @abstractmethod
    def node_array_chunks(self, node_type: NodeType, name: str) -> Iterator[NDArray[Any]]:
        """Yields rows of a node array in the dataset's node order."""

    def cheap_to_reread(self, edge_type: EdgeType, names: Sequence[str]) -> bool:
        """Whether another pass over these edges and their arrays costs no more than reading memory or a mapping."""
        return True

    def in_edge_order(self, options: BuildOptions) -> bool:
        """Whether the edges of each owner come in the dataset's edge order, or in the order by time that ``options`` ask for."""
        return True

    def owner_window(self, edge_type: EdgeType, options: BuildOptions) -> int | None:
        """Rows that two edges are apart, at most, of which the later one's owner is smaller; None where edges are in no order."""
        return None


class RowReader:
    """Cuts a stream of chunks into pieces of chosen sizes, and checks what comes.

    Args:
        chunks: Arrays ``[k, *row_shape]``.
        spec: Dtype and row shape that are promised.
        what: What is read, for errors.
        num_rows: Rows that are promised.
    """

    def __init__(self, chunks: Iterator[NDArray[Any]], spec: ArraySpec, what: str, num_rows: int) -> None:
        self._chunks, self._spec, self._what, self._left = chunks, spec, what, num_rows
        self._num_rows = num_rows
        self._pending: NDArray[Any] = np.empty((0, *spec.stored_shape), spec.numpy_dtype)

    @classmethod
    def of(cls, graph: GraphSource | BuildInput, owner: Any, name: str, num_rows: int | None = None) -> RowReader:
        """Reads an array of a type: as many rows as the type has nodes or edges, where nothing else is said."""
        spec, count = graph.schema.arrays_of(owner)[name], graph.schema.counts[owner] if num_rows is None else num_rows
        # Edges are read of sources alone: a store's come in batches.
        chunks = graph.node_array_chunks if isinstance(owner, str) else cast("GraphSource", graph).edge_array_chunks
        return cls(chunks(owner, name), spec, f"{name!r} of {owner!r}", count)

    def take(self, count: int) -> NDArray[Any]:
        """The next ``count`` rows; a view wherever they lie in one chunk.

        Raises:
            DatasetError: The stream ends too early, or holds something else than was promised.
        """
        pieces = []
        missing = count
        while missing:
            if not len(self._pending):
                self._pending = self._next_chunk(missing)
            piece, self._pending = self._pending[:missing], self._pending[missing:]
            # A chunk is only ours until the next one is asked for.
            pieces.append(piece if len(piece) == missing else piece.copy())
            missing -= len(piece)
        self._left -= count
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces) if pieces else self._pending[:0]

    def take_some(self, most: int) -> NDArray[Any]:
        """The next rows, at least one and at most ``most``, as they lie in one chunk: nothing is copied.

        Raises:
            DatasetError: See ``take``.
        """
        if not len(self._pending):
            self._pending = self._next_chunk(1)
        piece, self._pending = self._pending[:most], self._pending[most:]
        self._left -= len(piece)
        return piece

    def finish(self) -> None:
        """Checks that nothing is left.

        Raises:
            DatasetError: There are more rows than were promised.
        """
        if len(self._pending) or any(len(self._checked(chunk)) for chunk in self._chunks):
            raise DatasetError(f"{self._what} has more than the {self._num_rows} rows that the dataset announces")

    def _next_chunk(self, missing: int) -> NDArray[Any]:
        for chunk in self._chunks:
            if len(self._checked(chunk)):
                return chunk
        got = self._num_rows - self._left
        raise DatasetError(f"{self._what} ends early: {self._num_rows} rows are announced, {missing} more were needed after row {got}")

    def _checked(self, chunk: NDArray[Any]) -> NDArray[Any]:
        if chunk.dtype != self._spec.numpy_dtype or chunk.shape[1:] != self._spec.stored_shape:
            expected = f"{self._spec.dtype} rows of shape {self._spec.stored_shape}"
            raise DatasetError(f"{self._what} holds {chunk.dtype} rows of shape {chunk.shape[1:]} instead of {expected}")
        return chunk


class SourceInput(BuildInput):
    """A ``GraphSource`` as the builder's input.

    Args:
        source: The source.
        num_edges: Edges that it yields, by type, where these are not all that its schema counts.
    """

    def __init__(self, source: GraphSource, num_edges: Mapping[EdgeType, int] | None = None) -> None:
        super().__init__(source, getattr(source, "keys", {}), getattr(source, "append_state", None))
        self._source = source
        self._num_edges = num_edges or {edge_type: edges.num_edges for edge_type, edges in source.schema.edge_types.items()}
        self._target_windows: Mapping[EdgeType, int] = getattr(source, "target_windows", {})

    def fingerprint(self) -> str:
        """The digest of the source."""
        return self._source.fingerprint()

    def cheap_to_reread(self, edge_type: EdgeType, names: Sequence[str]) -> bool:
        """Whether the source says so of its edges."""
        return self._source.edges_are_cheap

    def owner_window(self, edge_type: EdgeType, options: BuildOptions) -> int | None:
        """The window of the source where targets own the edges, else None."""
        return self._target_windows.get(edge_type) if options.edge_dir == "in" else None

    def edge_batches(self, edge_type: EdgeType, names: Sequence[str]) -> Iterator[EdgeBatch]:
        """Yields the edges of the source with the rows of the named arrays.

        Raises:
            DatasetError: The source does not yield what its schema announces.
        """
        schema, total = self.schema.edge_types[edge_type], self._num_edges[edge_type]
        edges = RowReader(self._transposed(edge_type), ArraySpec("int64", (2,)), f"the edge list of {edge_type}", total)
        readers = {name: RowReader.of(self, edge_type, name, total) for name in names}
        size = batch_rows(schema.arrays[name] for name in names)
        first = 0
        while first < total:
            pairs = edges.take_some(min(size, total - first))
            count = len(pairs)
            # Columns of [k, 2] views are rows of the source's own [2, k] chunks: contiguous as a rule, so nothing is copied.
            source, target = (np.require(pairs[:, end], requirements=["C", "W"]) for end in (0, 1))
            yield EdgeBatch(first, source, target, None, {name: reader.take(count) for name, reader in readers.items()})
            first += count
        for reader in (edges, *readers.values()):
            reader.finish()

    def node_array_chunks(self, node_type: NodeType, name: str) -> Iterator[NDArray[Any]]:
        """Yields rows of a node array of the source."""
        return self._source.node_array_chunks(node_type, name)

    def edge_chunks(self, edge_type: EdgeType) -> Iterator[NDArray[Any]]:
        """Yields the edges of the source, ``[2, k]``."""
        return self._source.edge_chunks(edge_type)

    def edge_array_chunks(self, edge_type: EdgeType, name: str) -> Iterator[NDArray[Any]]:
        """Yields rows of an edge array of the source."""
        return self._source.edge_array_chunks(edge_type, name)

    def _transposed(self, edge_type: EdgeType) -> Iterator[NDArray[Any]]:
        for chunk in self.edge_chunks(edge_type):
            if chunk.ndim != 2 or chunk.shape[0] != 2:
                raise DatasetError(f"the edge list of {edge_type} comes in chunks of shape {chunk.shape} instead of [2, k]")
            yield chunk.T


def batch_rows(specs: Iterator[ArraySpec]) -> int:
    """Rows to take at once so that a batch of edges with these arrays stays small."""
    return max(1024, min(CHUNK_ROWS, _BATCH_BYTES // (16 + sum(spec.row_nbytes for spec in specs))))


_NODE_ROWS = 1 << 16


class StoreInput(BuildInput):
    """A store as the builder's input, node by node rather than in the dataset's edge order.

    Args:
        store: The store.

    Raises:
        StoreError: Not all of its parts are open.
    """

    def __init__(self, store: Store) -> None:
        self.store = store.require()
        super().__init__(store, {node_type: store.keys(node_type) for node_type in store.manifest.keys}, store.manifest.append_state)
        self._dataset_ids: dict[NodeType, NDArray[Any] | None] = {}

    def fingerprint(self) -> str:
        """The fingerprint of the dataset that the store was built from."""
        return self.store.manifest.source_fingerprint

    def in_edge_order(self, options: BuildOptions) -> bool:
        """A store keeps the order within the nodes that own the edges, but for that by its own times."""
        return options.edge_dir == self.store.edge_dir and self.store.options.time_attr in (None, options.time_attr)

    def edge_batches(self, edge_type: EdgeType, names: Sequence[str]) -> Iterator[EdgeBatch]:
        """Yields the edges of each part with the rows of the named arrays."""
        arrays = self.store.arrays()
        owner_ids, other_ids = (self._to_dataset(t) for t in (arrays.frontier_type(edge_type), arrays.neighbor_type(edge_type)))
        bounds = arrays.node_bounds[arrays.frontier_type(edge_type)]
        size = batch_rows(self.schema.edge_types[edge_type].arrays[name] for name in names)
        first = 0
        for part, edges in enumerate(arrays.edges[edge_type]):
            for low in range(0, len(edges.indices), size):
                high = min(low + size, len(edges.indices))
                owner = owners_of(edges, low, high) + bounds[part]
                other = edges.indices[low:high].astype(np.int64)
                owner = owner if owner_ids is None else owner_ids[owner].astype(np.int64)
                other = other if other_ids is None else other_ids[other].astype(np.int64)
                source, target = (other, owner) if self.store.edge_dir == "in" else (owner, other)
                ids = None if edges.edge_id is None else edges.edge_id[low:high].astype(np.int64)
                yield EdgeBatch(first + low, source, target, ids, {name: edges.arrays[name][low:high] for name in names})
            first += len(edges.indices)

    def node_array_chunks(self, node_type: NodeType, name: str) -> Iterator[NDArray[Any]]:
        """Yields rows of a node array in the dataset's node order."""
        arrays = self.store.arrays()
        parts, book, bounds = arrays.nodes[node_type], arrays.store_id[node_type], arrays.node_bounds[node_type]
        if book is None:
            yield from (part.arrays[name] for part in parts)
            return
        for first in range(0, len(book), _NODE_ROWS):
            store_ids = book[first : first + _NODE_ROWS]
            owners = np.searchsorted(bounds, store_ids, side="right") - 1
            rows = np.empty((len(store_ids), *parts[0].arrays[name].shape[1:]), parts[0].arrays[name].dtype)
            for part in np.unique(owners):
                mine = np.flatnonzero(owners == part)
                rows[mine] = parts[part].arrays[name][store_ids[mine] - bounds[part]]
            yield rows

    def _to_dataset(self, node_type: NodeType) -> NDArray[Any] | None:
        """Dataset ids by store id; None for the identity."""
        if node_type not in self._dataset_ids:
            pieces = [part.global_id for part in self.store.arrays().nodes[node_type]]
            self._dataset_ids[node_type] = np.concatenate([p for p in pieces if p is not None]) if pieces[0] is not None else None
        return self._dataset_ids[node_type]


class SortedEdgesInput(StoreInput):
    """Nodes of one input, edges of a store that was made of that input's edges alone.

    Args:
        nodes: The input.
        edges: The store.
    """

    def __init__(self, nodes: BuildInput, edges: Store) -> None:
        super().__init__(edges)
        BuildInput.__init__(self, nodes, nodes.keys, nodes.append_state)
        self._nodes, self.totals = nodes, nodes.totals

    def fingerprint(self) -> str:
        """The fingerprint of the input."""
        return self._nodes.fingerprint()

    def node_array_chunks(self, node_type: NodeType, name: str) -> Iterator[NDArray[Any]]:
        """Yields rows of a node array of the input."""
        return self._nodes.node_array_chunks(node_type, name)


def edges_only(graph: BuildInput) -> BuildInput:
    """The input without its node arrays, splits and metadata: what a partitioner needs to see."""
    edges = copy(graph)
    edges.schema = replace(graph.schema, node_types={name: replace(t, arrays={}) for name, t in graph.schema.node_types.items()})
    edges.splits, edges.link_splits, edges.metadata, edges.keys, edges.append_state = {}, {}, {}, {}, None
    return edges


def owners_of(edges: EdgePart, low: int, high: int) -> NDArray[np.int64]:
    """Local owners of the edges at positions ``[low, high)`` of a part, int64 ``[high - low]``."""
    first, last = place_of(edges.indptr, low, "right") - 1, place_of(edges.indptr, high)
    ends = np.clip(edges.indptr[first : last + 1].astype(np.int64), low, high)
    return np.repeat(np.arange(first, last, dtype=np.int64), np.diff(ends))


class KeptSourceInput(SourceInput):
    """A slow source (CSV) as the builder's input: edges and weights are parsed once and replayed from files.

    Args:
        source: The source.
        folder: Where the files go.
        kept: Names of the edge arrays that more than one pass reads.
    """

    def __init__(self, source: GraphSource, folder: Path, kept: Sequence[str]) -> None:
        super().__init__(source)
        self._folder, self._kept = folder, frozenset(kept)
        self._parsed: dict[tuple[EdgeType, str], tuple[ArrayFile, list[int]]] = {}

    def cheap_to_reread(self, edge_type: EdgeType, names: Sequence[str]) -> bool:
        """Whether all of these arrays are kept: others would be parsed again."""
        return self._kept.issuperset(names)

    def edge_chunks(self, edge_type: EdgeType) -> Iterator[NDArray[Any]]:
        """Yields the edges of the source, parsed once."""
        ends = (self.schema.node_types[node_type].num_nodes for node_type in (edge_type[0], edge_type[2]))
        spec = ArraySpec(index_dtype(max(ends)).name)
        for chunk in self._once((edge_type, ""), super().edge_chunks(edge_type), spec, (2, -1)):
            yield chunk.astype(np.int64, copy=False)

    def edge_array_chunks(self, edge_type: EdgeType, name: str) -> Iterator[NDArray[Any]]:
        """Yields rows of an edge array, parsed once where it is kept."""
        chunks = super().edge_array_chunks(edge_type, name)
        if name not in self._kept:
            return chunks
        spec = self.schema.edge_types[edge_type].arrays[name]
        return self._once((edge_type, name), chunks, spec, (-1, *spec.stored_shape))

    def _once(
        self, key: tuple[EdgeType, str], chunks: Iterator[NDArray[Any]], spec: ArraySpec, shape: tuple[int, ...]
    ) -> Iterator[NDArray[Any]]:
        """Passes the chunks on and keeps them, or replays those of an earlier complete pass."""
        if key in self._parsed:
            file, ends = self._parsed[key]
            for first, last in pairwise([0, *ends]):
                yield file.read(first, last).reshape(shape)
            return
        file, ends = ArrayFile(ArraySpec(spec.dtype), self._folder), []
        for chunk in chunks:
            yield chunk
            # An id beyond the narrow type wraps here; the reader of the chunk refuses it before anything is replayed.
            file.append(np.ascontiguousarray(chunk).astype(spec.numpy_dtype, copy=False).reshape(-1))
            ends.append(file.num_rows)
        self._parsed[key] = file, ends


class BucketSpool:
    """Rows sorted into buckets of known sizes, column by column, each bucket one region of each column's file.

    Args:
        folder: Where the files go.
        columns: Dtype and row shape of each column.
        starts: int64 ``[num_buckets + 1]``: bucket ``b`` holds ``starts[b + 1] - starts[b]`` rows.
    """

    def __init__(self, folder: Path, columns: Mapping[str, ArraySpec], starts: NDArray[np.int64]) -> None:
        self._starts, self._next = starts, starts[:-1].copy()
        self._files = {name: ArrayFile(spec, folder) for name, spec in columns.items()}

    def put_column(self, name: str, order: NDArray[np.int64], starts: NDArray[np.int64], values: NDArray[Any]) -> None:
        """Appends a column of some rows: row ``order[k]`` goes to bucket ``b`` for ``k`` in ``[starts[b], starts[b + 1])``."""
        file = self._files[name]
        rows = values.astype(file.spec.numpy_dtype, copy=False)[order]
        for bucket in np.flatnonzero(starts[1:] > starts[:-1]):
            file.put(int(self._next[bucket]), rows[starts[bucket] : starts[bucket + 1]])

    def advance(self, starts: NDArray[np.int64]) -> None:
        """Ends the rows of one ``order``, once every column of them has been put."""
        self._next += np.diff(starts)

    def take(self, bucket: int, name: str) -> NDArray[Any]:
        """A column of a bucket, in the order in which its rows were put."""
        return self._files[name].read(int(self._starts[bucket]), int(self._starts[bucket + 1]))

    def close(self) -> None:
        """Gives the disk space back."""
        for file in self._files.values():
            file.close()


def with_quantizations(graph: BuildInput, schema: GraphSchema, events: EventSink) -> GraphSchema:
    """The schema of a store with the scales and offsets of its quantised arrays, which one pass over them finds.

    Args:
        graph: What the store is built from.
        schema: The store's schema; arrays that are quantised already know theirs.
        events: Receives the stage "quantize", in bytes, where there is something to find.

    Raises:
        PlanError: See ``ColumnRange.quantization``; names the column.
    """
    counts = schema.counts
    pending = [(owner, name) for owner in counts for name in unmeasured(schema.arrays_of(owner))]
    if not pending:
        return schema
    total = sum(counts[owner] * graph.schema.arrays_of(owner)[name].row_nbytes for owner, name in pending)
    found: dict[NodeType | EdgeType, dict[str, ArraySpec]] = {owner: dict(schema.arrays_of(owner)) for owner in counts}
    with Stage(events, "quantize", label=graph.name, total=float(total), unit="B") as stage:
        for owner, name in pending:
            spec = found[owner][name]
            assert spec.quantization is not None
            ranges = measured(graph, owner, name, stage) if graph.totals is None else graph.totals.ranges[owner, name]
            found[owner][name] = replace(spec, quantization=ranges.quantization(spec.quantization, f"{name!r} of {owner}"))
    return schema.with_arrays(lambda owner, _: found[owner])


def measured(graph: BuildInput, owner: NodeType | EdgeType, name: str, stage: Stage | None = None) -> ColumnRange:
    """The range of each column of an array, in one pass over it; ``stage`` advances by its bytes."""
    spec = graph.schema.arrays_of(owner)[name]
    found = ColumnRange.of_none(spec.row_shape[0])
    if isinstance(owner, tuple):
        chunks: Iterator[NDArray[Any]] = (batch.rows[name] for batch in graph.edge_batches(owner, [name]))
    else:
        chunks = graph.node_array_chunks(owner, name)
    for chunk in chunks:
        found.add_rows(chunk, spec)
        if stage is not None:
            stage.advance(chunk.nbytes)
    return found

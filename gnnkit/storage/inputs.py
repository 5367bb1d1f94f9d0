"""What the builder reads: a dataset's source, checked while it streams, or a store that exists already."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import DatasetError
from gnnkit.schema import ArraySpec, EdgeType, GraphSchema, NodeType
from gnnkit.source import CHUNK_ROWS, GraphSource, LinkSplits
from gnnkit.storage.options import BuildOptions

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


class BuildInput(Protocol):
    """A graph that the builder can read, front to back, several times.

    Attributes:
        name, notice, schema, splits, link_splits, metadata: As in ``GraphSource``.
    """

    name: str
    notice: str | None
    schema: GraphSchema
    splits: Mapping[NodeType, Mapping[str, NDArray[np.int64]]]
    link_splits: LinkSplits
    metadata: Mapping[str, Any]

    def fingerprint(self) -> str:
        """Digest of the dataset's content."""
        ...

    def cheap_to_reread(self, edge_type: EdgeType, names: Sequence[str]) -> bool:
        """Whether another pass over these edges and their arrays costs no more than reading memory or a mapping."""
        ...

    def in_edge_order(self, options: BuildOptions) -> bool:
        """Whether the edges of each owner come in the dataset's edge order, or in the order by time that ``options`` ask for."""
        ...

    def edge_batches(self, edge_type: EdgeType, names: Sequence[str]) -> Iterator[EdgeBatch]:
        """Yields all edges with the rows of the named edge arrays."""
        ...

    def node_array_chunks(self, node_type: NodeType, name: str) -> Iterator[NDArray[Any]]:
        """Yields rows of a node array in the dataset's node order."""
        ...


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
        self._pending: NDArray[Any] = np.empty((0, *spec.row_shape), spec.numpy_dtype)

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
        if chunk.dtype != self._spec.numpy_dtype or chunk.shape[1:] != self._spec.row_shape:
            expected = f"{self._spec.dtype} rows of shape {self._spec.row_shape}"
            raise DatasetError(f"{self._what} holds {chunk.dtype} rows of shape {chunk.shape[1:]} instead of {expected}")
        return chunk


class SourceInput:
    """A ``GraphSource`` as the builder's input."""

    def __init__(self, source: GraphSource) -> None:
        self._source = source
        self.name, self.notice, self.schema = source.name, source.notice, source.schema
        self.splits, self.link_splits, self.metadata = source.splits, source.link_splits, source.metadata

    def fingerprint(self) -> str:
        """See ``GraphSource``."""
        return self._source.fingerprint()

    def cheap_to_reread(self, edge_type: EdgeType, names: Sequence[str]) -> bool:
        """See ``BuildInput``."""
        return self._source.edges_are_cheap

    def in_edge_order(self, options: BuildOptions) -> bool:
        """A source yields its edges in its own order."""
        return True

    def edge_batches(self, edge_type: EdgeType, names: Sequence[str]) -> Iterator[EdgeBatch]:
        """See ``BuildInput``.

        Raises:
            DatasetError: The source does not yield what its schema announces.
        """
        schema = self.schema.edge_types[edge_type]
        edges = RowReader(self._transposed(edge_type), ArraySpec("int64", (2,)), f"the edge list of {edge_type}", schema.num_edges)
        readers = {name: self._edge_rows(edge_type, name) for name in names}
        size = batch_rows(schema.arrays[name] for name in names)
        first = 0
        while first < schema.num_edges:
            pairs = edges.take_some(min(size, schema.num_edges - first))
            count = len(pairs)
            # Columns of [k, 2] views are rows of the source's own [2, k] chunks: contiguous as a rule, so nothing is copied.
            source, target = (np.require(pairs[:, end], requirements=["C", "W"]) for end in (0, 1))
            yield EdgeBatch(first, source, target, None, {name: reader.take(count) for name, reader in readers.items()})
            first += count
        for reader in (edges, *readers.values()):
            reader.finish()

    def node_array_chunks(self, node_type: NodeType, name: str) -> Iterator[NDArray[Any]]:
        """See ``BuildInput``."""
        return self._source.node_array_chunks(node_type, name)

    def edge_chunks(self, edge_type: EdgeType) -> Iterator[NDArray[Any]]:
        """See ``GraphSource``."""
        return self._source.edge_chunks(edge_type)

    def edge_array_chunks(self, edge_type: EdgeType, name: str) -> Iterator[NDArray[Any]]:
        """See ``GraphSource``."""
        return self._source.edge_array_chunks(edge_type, name)

    def _edge_rows(self, edge_type: EdgeType, name: str) -> RowReader:
        schema = self.schema.edge_types[edge_type]
        return RowReader(self.edge_array_chunks(edge_type, name), schema.arrays[name], f"{name!r} of {edge_type}", schema.num_edges)

    def _transposed(self, edge_type: EdgeType) -> Iterator[NDArray[Any]]:
        for chunk in self.edge_chunks(edge_type):
            if chunk.ndim != 2 or chunk.shape[0] != 2:
                raise DatasetError(f"the edge list of {edge_type} comes in chunks of shape {chunk.shape} instead of [2, k]")
            yield chunk.T


def batch_rows(specs: Iterator[ArraySpec]) -> int:
    """Rows to take at once so that a batch of edges with these arrays stays small."""
    return max(1024, min(CHUNK_ROWS, _BATCH_BYTES // (16 + sum(spec.row_nbytes for spec in specs))))

"""A source that can only be read from its beginning, copied as plain arrays, so that any rows of it can be read from anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import DatasetError
from gnnkit.events import EventSink, Stage
from gnnkit.schema import ArraySpec, EdgeType, NodeType, edge_type_name
from gnnkit.source import CHUNK_ROWS, GraphSource, LinkSplits
from gnnkit.storage.inputs import RowReader, SourceInput
from gnnkit.storage.layout import end_specs
from gnnkit.storage.staging import INCOMPLETE, check_disk, remove_tree
from gnnkit.storage.writer import EDGE_BYTES, check_ends

_ENDS = ("edges.source", "edges.target")


class CopiedSource:
    """A ``RangedSource``: the rows of another source, in files of a folder.

    Args:
        source: The other one; nothing is kept of it but what it says of itself and its splits of nodes.
        folder: The folder, see ``copy_source``.
    """

    edges_are_cheap = True

    def __init__(self, source: GraphSource, folder: Path) -> None:
        self.name, self.notice, self.schema = source.name, source.notice, source.schema
        self.metadata: Mapping[str, Any] = dict(source.metadata)
        self.splits: Mapping[NodeType, Mapping[str, NDArray[np.int64]]] = {
            node_type: {split: np.asarray(ids) for split, ids in splits.items()} for node_type, splits in source.splits.items()
        }
        self.link_splits: LinkSplits = {}
        self.append_state: Mapping[str, Any] | None = getattr(source, "append_state", None)
        self._folder, self._fingerprint = folder, source.fingerprint()

    def fingerprint(self) -> str:
        """The other source's."""
        return self._fingerprint

    def edge_chunks(self, edge_type: EdgeType) -> Iterator[NDArray[np.int64]]:
        """See ``GraphSource``."""
        for first, last in _steps(self.schema.edge_types[edge_type].num_edges):
            yield self.edge_rows(edge_type, first, last)

    def edge_array_chunks(self, edge_type: EdgeType, name: str) -> Iterator[NDArray[Any]]:
        """See ``GraphSource``."""
        for first, last in _steps(self.schema.edge_types[edge_type].num_edges):
            yield self.edge_array_rows(edge_type, name, first, last)

    def node_array_chunks(self, node_type: NodeType, name: str) -> Iterator[NDArray[Any]]:
        """See ``GraphSource``."""
        for first, last in _steps(self.schema.node_types[node_type].num_nodes):
            yield self.node_array_rows(node_type, name, first, last)

    def edge_rows(self, edge_type: EdgeType, first: int, last: int) -> NDArray[np.int64]:
        """See ``RangedSource``."""
        ends = zip(_ENDS, end_specs(self.schema, edge_type), strict=True)
        return np.stack([self._read(edge_type_name(edge_type), name, spec, first, last) for name, spec in ends]).astype(np.int64)

    def edge_array_rows(self, edge_type: EdgeType, name: str, first: int, last: int) -> NDArray[Any]:
        """See ``RangedSource``."""
        return self._read(edge_type_name(edge_type), f"array.{name}", self.schema.edge_types[edge_type].arrays[name], first, last)

    def node_array_rows(self, node_type: NodeType, name: str, first: int, last: int) -> NDArray[Any]:
        """See ``RangedSource``."""
        return self._read(f"node.{node_type}", f"array.{name}", self.schema.node_types[node_type].arrays[name], first, last)

    def _read(self, owner: str, name: str, spec: ArraySpec, first: int, last: int) -> NDArray[Any]:
        path = self._folder / owner / name
        count = (last - first) * spec.row_nbytes
        try:
            data = np.fromfile(path, np.uint8, count, offset=first * spec.row_nbytes)
        except OSError as error:
            raise DatasetError(f"{path} cannot be read: {error.strerror or error}", "all hosts have to see this folder") from error
        if len(data) < count:
            raise DatasetError(f"{path} ends early", "remove the folder, and build the store again")
        return data.view(spec.numpy_dtype).reshape(last - first, *spec.row_shape)


def _steps(count: int) -> Iterator[tuple[int, int]]:
    return ((first, min(first + CHUNK_ROWS, count)) for first in range(0, count, CHUNK_ROWS))


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
            place = partial / edge_type_name(edge_type)
            place.mkdir()
            for batch in graph.edge_batches(edge_type, list(edges.arrays)):
                check_ends(schema, edge_type, batch)
                for name, ends, spec in zip(_ENDS, (batch.source, batch.target), end_specs(schema, edge_type), strict=True):
                    _add(place / name, ends.astype(spec.numpy_dtype))
                for name, values in batch.rows.items():
                    _add(place / f"array.{name}", values)
                stage.advance(len(batch.source) * EDGE_BYTES + sum(values.nbytes for values in batch.rows.values()))
        for node_type, types in schema.node_types.items():
            place = partial / f"node.{node_type}"
            place.mkdir()
            for name, spec in types.arrays.items():
                chunks = graph.node_array_chunks(node_type, name)
                reader = RowReader(chunks, spec, f"{name!r} of {node_type!r}", types.num_nodes)
                for first, last in _steps(types.num_nodes):
                    values = reader.take(last - first)
                    _add(place / f"array.{name}", values)
                    stage.advance(values.nbytes)
                reader.finish()
    partial.rename(folder)
    return copied


def _add(path: Path, rows: NDArray[Any]) -> None:
    with path.open("ab", buffering=0) as file:
        data = memoryview(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)
        while len(data):
            data = data[file.write(data) :]

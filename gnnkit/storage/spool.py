"""Files of the builder's own: what a slow source was parsed into, and edges sorted into buckets that fit memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.schema import ArraySpec, EdgeType, edge_type_name
from gnnkit.source import GraphSource
from gnnkit.storage.files import write_fully
from gnnkit.storage.inputs import SourceInput
from gnnkit.storage.layout import index_dtype


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
        self._lengths: dict[tuple[EdgeType, str], list[int]] = {}

    def cheap_to_reread(self, edge_type: EdgeType, names: Sequence[str]) -> bool:
        """See ``BuildInput``: only arrays that are not kept would be parsed again."""
        return self._kept.issuperset(names)

    def edge_chunks(self, edge_type: EdgeType) -> Iterator[NDArray[Any]]:
        """See ``GraphSource``."""
        ends = (self.schema.node_types[node_type].num_nodes for node_type in (edge_type[0], edge_type[2]))
        spec = ArraySpec(index_dtype(max(ends)).name)
        for chunk in self._once((edge_type, ""), super().edge_chunks(edge_type), spec, (2, -1)):
            yield chunk.astype(np.int64, copy=False)

    def edge_array_chunks(self, edge_type: EdgeType, name: str) -> Iterator[NDArray[Any]]:
        """See ``GraphSource``."""
        chunks = super().edge_array_chunks(edge_type, name)
        if name not in self._kept:
            return chunks
        spec = self.schema.edge_types[edge_type].arrays[name]
        return self._once((edge_type, name), chunks, spec, (-1, *spec.row_shape))

    def _once(
        self, key: tuple[EdgeType, str], chunks: Iterator[NDArray[Any]], spec: ArraySpec, shape: tuple[int, ...]
    ) -> Iterator[NDArray[Any]]:
        """Passes the chunks on and keeps them, or replays those of an earlier complete pass."""
        path = self._folder / f"{edge_type_name(key[0])}.{key[1]}.parsed"
        if key in self._lengths:
            with path.open("rb") as file:
                for length in self._lengths[key]:
                    yield np.fromfile(file, spec.numpy_dtype, length).reshape(shape)
            return
        lengths = []
        with path.open("wb") as file:
            for chunk in chunks:
                yield chunk
                # An id beyond the narrow type wraps here; whoever got the chunk refuses it before anything is replayed.
                kept = np.ascontiguousarray(chunk).astype(spec.numpy_dtype, copy=False)
                kept.tofile(file)
                lengths.append(kept.size)
        self._lengths[key] = lengths


class BucketSpool:
    """Rows sorted into buckets of known sizes, column by column, each bucket one region of each column's file.

    Args:
        folder: Where the files go.
        columns: Dtype and row shape of each column.
        starts: int64 ``[num_buckets + 1]``: bucket ``b`` holds ``starts[b + 1] - starts[b]`` rows.
    """

    def __init__(self, folder: Path, columns: Mapping[str, ArraySpec], starts: NDArray[np.int64]) -> None:
        self._columns, self._starts = dict(columns), starts
        self._next = starts[:-1].copy()
        self._paths = {name: folder / f"bucket.{name}" for name in columns}
        self._files = {name: os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600) for name, path in self._paths.items()}

    def put_column(self, name: str, order: NDArray[np.int64], starts: NDArray[np.int64], values: NDArray[Any]) -> None:
        """Appends a column of some rows: row ``order[k]`` goes to bucket ``b`` for ``k`` in ``[starts[b], starts[b + 1])``."""
        spec = self._columns[name]
        data = values.astype(spec.numpy_dtype, copy=False)[order].reshape(-1).view(np.uint8)
        for bucket in np.flatnonzero(starts[1:] > starts[:-1]):
            first, last = int(starts[bucket]) * spec.row_nbytes, int(starts[bucket + 1]) * spec.row_nbytes
            write_fully(self._files[name], int(self._next[bucket]) * spec.row_nbytes, data[first:last].data)

    def advance(self, starts: NDArray[np.int64]) -> None:
        """Ends the rows of one ``order``, once every column of them has been put."""
        self._next += np.diff(starts)

    def take(self, bucket: int, name: str) -> NDArray[Any]:
        """A column of a bucket, in the order in which its rows were put."""
        spec = self._columns[name]
        first, last = int(self._starts[bucket]), int(self._starts[bucket + 1])
        count = (last - first) * (spec.row_nbytes // spec.numpy_dtype.itemsize)
        rows: NDArray[Any] = np.fromfile(self._paths[name], spec.numpy_dtype, count, offset=first * spec.row_nbytes)
        return rows.reshape(last - first, *spec.row_shape)

    def close(self) -> None:
        """Removes the files."""
        for name, descriptor in self._files.items():
            os.close(descriptor)
            self._paths[name].unlink()
        self._files.clear()

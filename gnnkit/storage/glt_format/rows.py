"""Rows that parts hold in any order, handed out in the order of their ids and in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from gnnkit.errors import DatasetError
from gnnkit.storage.glt_format import pickles

# A window is at most this many bytes of rows.
_WINDOW_BYTES = 64 << 20
_WINDOW_ROWS = 1 << 20


class PartRows(Protocol):
    """The rows of one part."""

    def take(self, first: int, last: int) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
        """Yields ``(ids, rows)`` for all ids in ``[first, last)``; the ranges asked for follow one another from 0."""
        ...


class MappedRows:
    """Rows that lie in arrays, any of which can be reached at any time.

    Args:
        ids: int64 ``[k]``.
        read: Returns the rows at given positions of ``ids``.
    """

    def __init__(self, ids: NDArray[np.int64], read: Callable[[Any], NDArray[Any]]) -> None:
        self._read = read
        # Partitioners go through the edges in order: ids are ascending nearly always, and then nothing is copied.
        self._order = None if bool((ids[:-1] <= ids[1:]).all()) else np.argsort(ids, kind="stable")
        self._ids = ids if self._order is None else ids[self._order]

    def take(self, first: int, last: int) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
        """See ``PartRows.take``."""
        begin, end = (int(i) for i in np.searchsorted(self._ids, [first, last]))
        if begin < end:
            positions = slice(begin, end) if self._order is None else self._order[begin:end]
            yield self._ids[begin:end], self._read(positions)


class PickledRows:
    """Rows in ``feats.pkl`` and their ids in ``ids.pkl``, which can be read front to back only.

    Chunks are read until no later one can hold an id of the range; what they hold beyond it is kept for later. The files of
    graphlearn-torch's partitioners are ordered by id, or nearly so, and little is kept.

    Args:
        folder: A ``node_feat`` or ``edge_feat`` folder.
    """

    def __init__(self, folder: Path) -> None:
        ids_path = folder / "ids.pkl"
        chunks = [pickles.as_ids(ids_path, chunk) for chunk in pickles.read_pickled_tensors(ids_path)]
        self._path = folder / "feats.pkl"
        self._ids = np.concatenate(chunks) if chunks else np.empty(0, np.int64)
        self._least_to_come = np.minimum.accumulate(self._ids[::-1])[::-1]
        self._chunks = pickles.read_pickled_tensors(self._path)
        self._position = 0
        self._waiting: list[tuple[NDArray[np.int64], NDArray[Any]]] = []

    def take(self, first: int, last: int) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
        """See ``PartRows.take``."""
        while self._position < len(self._ids) and self._least_to_come[self._position] < last:
            self._read_chunk()
        if self._position == len(self._ids) and any(len(chunk) for chunk in self._chunks):
            raise self._too_many()
        waiting, self._waiting = self._waiting, []
        for ids, rows in waiting:
            now = ids < last
            if now.any():
                yield ids[now], rows[now]
            if not now.all():
                self._waiting.append((ids[~now], rows[~now]))

    def _read_chunk(self) -> None:
        chunk = next(self._chunks, None)
        if chunk is None:
            raise pickles.damaged(self._path, f"it ends after {self._position} of {len(self._ids)} rows")
        rows = pickles.to_array(chunk)
        ids = self._ids[self._position : self._position + len(rows)]
        if len(ids) < len(rows):
            raise self._too_many()
        self._position += len(rows)
        self._waiting.append((ids, rows))

    def _too_many(self) -> DatasetError:
        return pickles.damaged(self._path, f"it holds more rows than the {len(self._ids)} of ids.pkl")


def first_row(folder: Path) -> torch.Tensor | None:
    """The first chunk of a folder's features; None where it has none."""
    return next(pickles.read_pickled_tensors(folder / "feats.pkl"), None)


def in_order(parts: Sequence[PartRows], count: int, row_shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> Iterator[NDArray[Any]]:
    """Yields all ``count`` rows by id, each of which must be in exactly one part.

    Args:
        parts: Where the rows are.
        count: Rows in all; ids are ``0`` to ``count - 1``.
        row_shape: Shape of one row.
        dtype: Their dtype.
        what: Whose rows they are, for the error ("edge ids of ...").

    Yields:
        ``[k, *row_shape]``.

    Raises:
        DatasetError: A row is missing, occurs twice, or has another shape or dtype.
    """
    row_nbytes = max(int(np.prod(row_shape, dtype=np.int64)) * dtype.itemsize, 1)
    window = max(min(_WINDOW_ROWS, _WINDOW_BYTES // row_nbytes), 1)
    for first in range(0, count, window):
        last = min(first + window, count)
        rows = np.empty((last - first, *row_shape), dtype)
        times = np.zeros(last - first, np.uint8)
        for part in parts:
            for ids, values in part.take(first, last):
                if ids.min() < first:
                    raise DatasetError(f"{what}: {int(ids.min())} is no valid id", f"ids must be 0 to {count - 1}")
                if values.shape[1:] != row_shape or values.dtype != dtype:
                    raise DatasetError(f"{what}: rows of {values.dtype} {values.shape[1:]} beside rows of {dtype} {row_shape}")
                rows[ids - first] = values
                np.add.at(times, ids - first, 1)
        _check_once(times, first, what)
        yield rows
    for part in parts:
        for ids, _ in part.take(count, np.iinfo(np.int64).max):
            raise DatasetError(f"{what}: {int(ids[0])} is no valid id", f"ids must be 0 to {count - 1}")


def _check_once(times: NDArray[np.uint8], first: int, what: str) -> None:
    wrong = np.flatnonzero(times != 1)
    if len(wrong):
        row = int(wrong[0])
        if times[row] == 0:
            raise DatasetError(f"{what}: nothing for id {first + row}", "the partition directory is incomplete: partition the graph again")
        raise DatasetError(
            f"{what}: id {first + row} occurs more than once",
            "graphlearn-torch appends when it partitions into the same folder again: remove the folder and partition once more",
        )

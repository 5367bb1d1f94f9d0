"""Rows of an array on their way to disk, with their digest: of a whole table, a range of it, or ranges that were read elsewhere."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from gnnkit.datasets.tables.digests import ChainedDigest, PieceDigest
from gnnkit.errors import DatasetError
from gnnkit.files import os_errors
from gnnkit.schema import ArraySpec
from gnnkit.storage.files import ArrayFile, append_rows, read_rows


class Rows(ABC):
    """The rows of an array.

    Attributes:
        spec: Dtype and row shape.
        num_rows: Rows so far.
        digest: Their digest, of a range a piece of that of the table.
    """

    spec: ArraySpec
    num_rows: int
    digest: ChainedDigest | PieceDigest

    @abstractmethod
    def append(self, rows: NDArray[Any], digested: NDArray[Any] | None = None) -> None:
        """Adds rows; their digest is that of ``digested``, if that is given."""

    @abstractmethod
    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows ``[start, stop)``."""


# Makes rows of a dtype and row shape, which go on with a digest of the state that is given, if one is.
Place: TypeAlias = Callable[[ArraySpec, Mapping[str, str] | None], Rows]


class KeptRows(ArrayFile, Rows):
    """Rows in a file without a name, of a table that is read here.

    Args:
        folder: Where the file lies.
        spec: Dtype and row shape.
        state: See ``Place``.
    """

    digest: ChainedDigest

    def __init__(self, folder: Path, spec: ArraySpec, state: Mapping[str, str] | None) -> None:
        super().__init__(spec, folder)
        self.digest = ChainedDigest(state)

    @override
    def append(self, rows: NDArray[Any], digested: NDArray[Any] | None = None) -> None:
        self.digest.update(rows if digested is None else digested)
        super().append(rows)


class RangeRows(Rows):
    """A range of rows in a file of its own, which all hosts see; it can be pickled.

    Args:
        folder: Where the file lies.
        name: The beginning of its name.
        first: The number of the range's first row.
        spec: Dtype and row shape.
        state: See ``Place``; ranges are of tables that follow no others.
    """

    digest: PieceDigest

    def __init__(self, folder: Path, name: str, first: int, spec: ArraySpec, state: Mapping[str, str] | None = None) -> None:
        assert state is None, "ranges are of tables that follow no others"
        # A task that is repeated leaves what it wrote before alone: it may still be at it.
        self.path = folder / f"{name}.{secrets.token_hex(8)}"
        self.spec, self.num_rows, self.digest, self._first = spec, 0, PieceDigest(), first
        with os_errors(f"{self.path} cannot be written", None, "all hosts have to see scratch_dir", DatasetError):
            self.path.touch()

    @override
    def append(self, rows: NDArray[Any], digested: NDArray[Any] | None = None) -> None:
        digested = rows if digested is None else digested
        if self.num_rows == 0 and len(rows):
            self.digest = PieceDigest(self._first * digested.nbytes // len(rows))
        self.digest.update(digested)
        append_rows(self.path, np.asarray(rows, self.spec.numpy_dtype))
        self.num_rows += len(rows)

    @override
    def read(self, start: int, stop: int) -> NDArray[Any]:
        return read_rows(self.path, self.spec, start, stop, "read the tables again")


class JoinedRows(Rows):
    """Ranges that were read elsewhere, one after the other; it can be pickled.

    Args:
        spec: Dtype and row shape.
        state: See ``Place``; there is none.
    """

    digest: ChainedDigest

    def __init__(self, spec: ArraySpec, state: Mapping[str, str] | None = None) -> None:
        assert state is None, "ranges are of tables that follow no others"
        self.spec, self.num_rows, self.digest = spec, 0, ChainedDigest()
        self._starts = [0]
        self._ranges: list[tuple[RangeRows, NDArray[Any] | None]] = []

    @override
    def append(self, rows: NDArray[Any], digested: NDArray[Any] | None = None) -> None:
        raise AssertionError("these rows are read elsewhere")

    def join(self, found: RangeRows, meaning: NDArray[Any] | None = None) -> None:
        """Adds the next range.

        Args:
            found: The range.
            meaning: What its rows, small whole numbers, stand for among all rows; -1 takes the last entry. None: what they are.
        """
        if found.num_rows:
            self.num_rows += found.num_rows
            self._starts.append(self.num_rows)
            self._ranges.append((found, meaning))
            self.digest.extend(found.digest)

    @override
    def read(self, start: int, stop: int) -> NDArray[Any]:
        out = np.empty((stop - start, *self.spec.stored_shape), self.spec.numpy_dtype)
        k = int(np.searchsorted(self._starts, start, side="right")) - 1
        at = start
        while at < stop:
            found, meaning = self._ranges[k]
            rows = found.read(at - self._starts[k], min(stop, self._starts[k + 1]) - self._starts[k])
            out[at - start : at - start + len(rows)] = rows if meaning is None else meaning[rows]
            at, k = at + len(rows), k + 1
        return out

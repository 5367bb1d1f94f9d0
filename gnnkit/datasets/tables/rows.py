"""Rows of an array on their way to disk, with their digest: of a whole table, a range of it, or ranges that were read elsewhere."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from gnnkit.datasets.streaming import ArrayFile
from gnnkit.datasets.tables.digests import ChainedDigest, PieceDigest
from gnnkit.errors import DatasetError
from gnnkit.schema import ArraySpec


class Rows(ABC):
    """The rows of an array.

    Attributes:
        spec: Dtype and row shape.
        num_rows: Rows so far.
    """

    spec: ArraySpec
    num_rows: int

    @abstractmethod
    def append(self, rows: NDArray[Any], digested: NDArray[Any] | None = None) -> None:
        """Adds rows; their digest is that of ``digested``, if that is given."""

    @abstractmethod
    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows ``[start, stop)``."""


class Place(Protocol):
    """A maker of ``Rows``."""

    def __call__(self, spec: ArraySpec, *, digest_nbytes: int, state: Mapping[str, str] | None = None) -> Rows:
        """Makes rows.

        Args:
            spec: Dtype and row shape.
            digest_nbytes: Bytes of a row as its digest is taken.
            state: Of the digest of the rows before the first; None where there are none.
        """
        ...


class KeptRows(ArrayFile, Rows):
    """Rows in a file without a name.

    Args:
        spec: Dtype and row shape.
        folder: Where the file lies.
        state: See ``Place``.
    """

    def __init__(self, spec: ArraySpec, folder: Path, state: Mapping[str, str] | None = None) -> None:
        super().__init__(spec, folder)
        self.digest = ChainedDigest(state)

    @override
    def append(self, rows: NDArray[Any], digested: NDArray[Any] | None = None) -> None:
        self.digest.update(rows if digested is None else digested)
        super().append(rows)


@dataclass(frozen=True)
class Scratch(Place):
    """The place of a table that is read here.

    Attributes:
        folder: A folder for files without names.
    """

    folder: Path

    @override
    def __call__(self, spec: ArraySpec, *, digest_nbytes: int, state: Mapping[str, str] | None = None) -> KeptRows:
        return KeptRows(spec, self.folder, state)


@dataclass(frozen=True)
class Segment:
    """A range of rows in a file of its own.

    Attributes:
        path: The file, the same for all hosts.
        num_rows: Rows in it.
        digest: The digest of this piece of the array.
    """

    path: str
    num_rows: int
    digest: PieceDigest


class RangeRows(Rows):
    """A range of rows that goes into a file of its own.

    Args:
        spec: Dtype and row shape.
        path: The file.
        digest: The digest of this piece of the array.
    """

    def __init__(self, spec: ArraySpec, path: Path, digest: PieceDigest) -> None:
        self.spec, self.num_rows, self._path, self._digest = spec, 0, path, digest
        try:
            path.touch()
        except OSError as error:
            raise DatasetError(f"{path} cannot be written: {error.strerror or error}", "all hosts have to see scratch_dir") from error

    @override
    def append(self, rows: NDArray[Any], digested: NDArray[Any] | None = None) -> None:
        self._digest.update(rows if digested is None else digested)
        with self._path.open("ab", buffering=0) as file:
            data = np.ascontiguousarray(rows, self.spec.numpy_dtype).reshape(-1).view(np.uint8).data if rows.size else memoryview(b"")
            while len(data):
                data = data[file.write(data) :]
        self.num_rows += len(rows)

    @override
    def read(self, start: int, stop: int) -> NDArray[Any]:
        return read_rows(self._path, self.spec, start, stop)

    def segment(self) -> Segment:
        """Returns the range, for other processes."""
        return Segment(str(self._path), self.num_rows, self._digest)


@dataclass
class RangePlace(Place):
    """The place of a range of a table.

    Attributes:
        folder: A folder that all hosts see.
        name: The beginning of the names of files, of this range alone.
        first: The number of the range's first row.
    """

    folder: Path
    name: str
    first: int
    _count: int = 0
    # A task that is repeated leaves what it wrote before alone: it may still be at it.
    _token: str = field(default_factory=lambda: secrets.token_hex(4))

    @override
    def __call__(self, spec: ArraySpec, *, digest_nbytes: int, state: Mapping[str, str] | None = None) -> RangeRows:
        assert state is None, "ranges are of tables that follow no others"
        self._count += 1
        return RangeRows(spec, self.folder / f"{self.name}.{self._count}.{self._token}", PieceDigest(self.first * digest_nbytes))


@dataclass
class JoinedRows(Rows):
    """Ranges that were read elsewhere, one after the other; it can be pickled.

    Attributes:
        spec: Dtype and row shape.
        digest: The digest of all rows.
    """

    spec: ArraySpec
    digest: ChainedDigest = field(default_factory=ChainedDigest)
    num_rows: int = 0
    _starts: list[int] = field(default_factory=lambda: [0])
    _paths: list[str] = field(default_factory=list)
    _maps: list[NDArray[Any] | None] = field(default_factory=list)

    @override
    def append(self, rows: NDArray[Any], digested: NDArray[Any] | None = None) -> None:
        raise AssertionError("these rows are read elsewhere")

    def join(self, segment: Segment, meaning: NDArray[Any] | None = None) -> None:
        """Adds the next range.

        Args:
            segment: The range.
            meaning: What its rows, small whole numbers, stand for among all rows; -1 takes the last entry. None: what they are.
        """
        if segment.num_rows:
            self.num_rows += segment.num_rows
            self._starts.append(self.num_rows)
            self._paths.append(segment.path)
            self._maps.append(meaning)
            self.digest.extend(segment.digest)

    @override
    def read(self, start: int, stop: int) -> NDArray[Any]:
        out = np.empty((stop - start, *self.spec.stored_shape), self.spec.numpy_dtype)
        k = int(np.searchsorted(self._starts, start, side="right")) - 1
        at = start
        while at < stop:
            first, last = at - self._starts[k], min(stop, self._starts[k + 1]) - self._starts[k]
            rows, meaning = read_rows(Path(self._paths[k]), self.spec, first, last), self._maps[k]
            out[at - start : at - start + len(rows)] = rows if meaning is None else meaning[rows]
            at, k = at + len(rows), k + 1
        return out


class JoinedPlace(Place):
    """The place of a table whose ranges are read elsewhere."""

    @override
    def __call__(self, spec: ArraySpec, *, digest_nbytes: int, state: Mapping[str, str] | None = None) -> JoinedRows:
        assert state is None, "ranges are of tables that follow no others"
        return JoinedRows(spec)


def read_rows(path: Path, spec: ArraySpec, start: int, stop: int) -> NDArray[Any]:
    """Reads rows ``[start, stop)`` of a file of rows.

    Raises:
        DatasetError: It cannot be read, or is too short.
    """
    count = (stop - start) * spec.row_nbytes
    try:
        data = np.fromfile(path, np.uint8, count, offset=start * spec.row_nbytes)
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror or error}", "all hosts have to see this folder") from error
    if len(data) < count:
        raise DatasetError(f"{path} ends early", "read the tables again")
    rows: NDArray[Any] = data.view(spec.numpy_dtype).reshape(stop - start, *spec.stored_shape)
    return rows

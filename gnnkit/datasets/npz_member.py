"""Arrays inside ``.npz`` files, streamed: never loaded whole, never unpickled, stored and deflated members alike.

``numpy.load`` reads a member whole, which for ogbn-papers100M means 57 GB of features and 26 GB of edges.
"""

from __future__ import annotations

import math
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.datasets.ogb_table import RESTORE_HINT, unreadable
from gnnkit.datasets.pipeline import read_ahead
from gnnkit.errors import DatasetError
from gnnkit.files import open_regular
from gnnkit.storage.files import NPY_DAMAGE
from gnnkit.storage.staging import check_memory

# Deflate makes at most 1032 bytes of one (RFC 1951: 258 bytes for two bits).
_MOST_DEFLATED = 1032
_CHUNK_BYTES = 2 << 20
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_DAMAGE = (*NPY_DAMAGE, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError)


@dataclass(frozen=True, slots=True)
class NpzMember:
    """One array of an ``.npz`` file.

    Attributes:
        path: The ``.npz`` file.
        name: The array's name.
        shape: Its shape.
        dtype: Its element type.
        fortran_order: Whether the first axis varies fastest in the file.
        header_bytes: Bytes before the first element.
        stored_at: Position in the file of the first element, where the member is stored as it is; None where it is deflated.
    """

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran_order: bool
    header_bytes: int
    stored_at: int | None = None

    @property
    def has_ranges(self) -> bool:
        """Whether elements can be read without those before them."""
        return self.stored_at is not None

    def range(self, first: int, last: int) -> NDArray[Any]:
        """Elements ``[first, last)``, flat, of a member that ``has_ranges``; no checksum is looked at.

        Raises:
            DatasetError: The file cannot be read, or ends before them.
        """
        assert self.stored_at is not None, "what is deflated is read from its beginning"
        try:
            with open(open_regular(self.path), "rb", buffering=0) as file:
                found = np.fromfile(file, self.dtype, last - first, offset=self.stored_at + first * self.dtype.itemsize)
        except OSError as error:
            raise unreadable(self.path, error) from error
        if len(found) < last - first:
            raise DatasetError(f"{self.path}: {self.name} ends early", RESTORE_HINT)
        return found.astype(self.dtype.newbyteorder("="), copy=False)

    def row_range(self, first: int, last: int) -> NDArray[Any]:
        """Rows ``[last - first, *shape[1:]]`` from ``first`` on; see ``range``.

        Raises:
            DatasetError: See ``range`` and ``rows``.
        """
        self._check_order()
        width = math.prod(self.shape[1:])
        return self.range(first * width, last * width).reshape(last - first, *self.shape[1:])

    def load(self) -> NDArray[Any]:
        """The whole array; for small ones."""
        count = math.prod(self.shape)
        check_memory(2 * count * self.dtype.itemsize, f"reading {self.name} of {self.path}")
        flat = [np.empty(0, self.dtype), *self._elements(0, count)]
        return np.concatenate(flat).reshape(self.shape, order="F" if self.fortran_order else "C")

    def rows(self) -> Iterator[NDArray[Any]]:
        """Yields ``[k, *shape[1:]]`` in order, about 2 MB at a time, inflated ahead in a thread.

        Raises:
            DatasetError: The member is truncated or corrupt (its checksum is verified at its end), or lies in the file
                column by column.
        """
        self._check_order()
        width = math.prod(self.shape[1:])
        for chunk in read_ahead(self._elements(0, self.shape[0] * width, multiple=max(1, width))):
            yield chunk.reshape(-1, *self.shape[1:])

    def _check_order(self) -> None:
        if self.fortran_order and sum(n > 1 for n in self.shape) > 1:
            message = f"{self.path}: {self.name} lies column by column (Fortran order); its rows cannot be streamed"
            raise DatasetError(message, "save it in C order")

    def pairs(self) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """Yields both rows of a ``[2, n]`` array side by side, ``[k]`` each.

        In C order the second row starts behind the whole first one: two readers go through the member at once, one of
        which reads up to there first.
        """
        half = self.shape[1]
        if self.fortran_order:
            for chunk in read_ahead(self._elements(0, 2 * half, multiple=2)):
                yield chunk[0::2], chunk[1::2]
            return
        first = read_ahead(self._elements(0, half))
        second = read_ahead(self._elements(half, half))
        try:
            yield from zip(first, second, strict=True)
        finally:
            first.close()
            second.close()

    def _elements(self, start: int, count: int, *, multiple: int = 1) -> Iterator[NDArray[Any]]:
        """Yields ``count`` elements from ``start`` on, flat, in the file's order, in chunks of a multiple of ``multiple``.

        What lies before ``start`` is read rather than skipped: a deflated member cannot be skipped, and a stored one is
        checked that way.
        """
        step = max(multiple, _CHUNK_BYTES // max(1, self.dtype.itemsize) // multiple * multiple)
        check_memory(step * self.dtype.itemsize, f"reading {self.name} of {self.path}")  # a row may be as long as somebody has written
        with _reading(self.path, self.name) as file:
            _skip(file, self.header_bytes + start * self.dtype.itemsize)
            done = 0
            while done < count:
                size = min(step, count - done)
                # bytearray: arrays that the consumer keeps are writable, as those that were parsed are.
                data = bytearray(size * self.dtype.itemsize)
                _fill(file, memoryview(data))
                yield np.frombuffer(data, self.dtype)
                done += size
            if start + count == math.prod(self.shape) and file.read(1):
                raise ValueError("more data than its header says")


def npz_members(path: Path) -> dict[str, NpzMember]:
    """Every array of an ``.npz`` file, by name; reads headers only.

    Raises:
        DatasetError: The file is missing or no ``.npz``, or a member is no array or holds Python objects.
    """
    try:
        with open(open_regular(path), "rb") as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
    except _DAMAGE as error:
        raise unreadable(path, error) from error
    return {item.filename.removesuffix(".npy"): _member(path, item) for item in members}


def _member(path: Path, item: zipfile.ZipInfo) -> NpzMember:
    name = item.filename.removesuffix(".npy")
    with _reading(path, name) as file:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f".npy version {version} is not known")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the file is of Python 2
            shape, fortran_order, dtype = _HEADERS[version](file)
        if dtype.hasobject or dtype.fields is not None:
            raise ValueError(f"elements of type {dtype} would have to be unpickled; gnnkit does not")
        if any(n < 0 for n in shape):
            raise ValueError(f"it has the shape {shape}")
        # What a zip file says of a member's size may be as wrong as the member's header.
        nbytes, on_disk = math.prod(shape) * dtype.itemsize, path.stat().st_size
        if nbytes > on_disk * (1 if item.compress_type == zipfile.ZIP_STORED else _MOST_DEFLATED):
            raise ValueError(f"its header claims {nbytes} bytes, which a file of {on_disk} bytes cannot hold")
        header_bytes = file.tell()
        stored_at = _data_position(path, item) + header_bytes if item.compress_type == zipfile.ZIP_STORED else None
        return NpzMember(path, name, tuple(int(n) for n in shape), dtype, fortran_order, header_bytes, stored_at)


# Of the header before each member's data (APPNOTE 4.3.7): its length without name and extra field, and where the lengths of these are.
_LOCAL_HEADER, _LOCAL_LENGTHS = 30, 26


def _data_position(path: Path, item: zipfile.ZipInfo) -> int:
    """The position of a member's data in the file; whoever has read its header has seen that there is one."""
    with open(open_regular(path), "rb") as file:
        file.seek(item.header_offset + _LOCAL_LENGTHS)
        name, extra = np.frombuffer(file.read(4), "<u2").tolist()
    return item.header_offset + _LOCAL_HEADER + int(name) + int(extra)


@contextmanager
def _reading(path: Path, name: str) -> Iterator[IO[bytes]]:
    try:
        with open(open_regular(path), "rb") as packed, zipfile.ZipFile(packed) as archive, archive.open(f"{name}.npy") as file:
            yield file
    except KeyError as error:
        raise DatasetError(f"{path} has no array {name!r}", RESTORE_HINT) from error
    except _DAMAGE as error:
        raise unreadable(path / f"{name}.npy", error) from error


def _skip(file: IO[bytes], count: int) -> None:
    while count > 0:
        data = file.read(min(count, _CHUNK_BYTES))
        if not data:
            raise EOFError("the data ends too early")
        count -= len(data)


def _fill(file: IO[bytes], view: memoryview) -> None:
    while len(view):
        data = file.read(len(view))
        if not data:
            raise EOFError("the data ends too early")
        view[: len(data)] = data
        view = view[len(data) :]

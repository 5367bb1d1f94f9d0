"""Files of stores: written, checked, moved into place, and mapped.

A read behind the end of a mapped file ends the process (SIGBUS). Within ``Guarded``, such a read becomes an error.

A file is a ``.npy`` of format 1.0 that ``numpy.load`` reads. Its checksum is the CRC-32 of the whole file as zlib computes it
(3.9 GiB/s measured here, against 1.7 for SHA-256 and 0.9 for BLAKE2b); that of pieces written out of order is combined.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import shutil
import tempfile
import threading
import tokenize
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from isal.isal_zlib import crc32_combine
from numpy.typing import NDArray

from gnnkit.bounds import is_whole
from gnnkit.errors import DatasetError, StoreError
from gnnkit.files import open_regular, os_errors
from gnnkit.host import allow_open_files
from gnnkit.schema import ArraySpec
from gnnkit.storage.layout import part_of

if TYPE_CHECKING:
    from gnnkit.kernels.bus_errors import BusErrors


# More mapped files, and more threads that read at a time, are read as without ``Guarded``.
_MOST_FILES, _MOST_THREADS = 1 << 16, 1 << 10
# See ``gnnkit.kernels.bus_errors``, which cannot be imported here: it brings the compiler, which reading a store does without.
_THREAD, _HIT = range(2)
_ranges = np.zeros((_MOST_FILES, 3), np.int64)
_threads = np.zeros((_MOST_THREADS, 2), np.int64)
_rows_of_threads = memoryview(_threads)  # type: ignore[arg-type]  # many times as fast as the array
_paths: dict[int, Path] = {}
# Rows of files that were found to be cut short.
_gone: set[int] = set()
# Rows that are free. Taking and giving back are one operation each: the latter happens in finalizers, in the middle of anything.
_free_rows, _new_rows, _free_threads = deque[int](), itertools.count(), deque(range(_MOST_THREADS))


def note_again(mapped: NDArray[Any], other: NDArray[Any]) -> None:
    """Takes down that ``other`` maps the file of ``mapped``, too, for as long as it lives."""
    for row in list(_paths):
        start, end, _ = _ranges[row].tolist()
        if start <= mapped.ctypes.data < end and (path := _paths.get(row)) is not None:
            note_mapping(other, path)
            return


def note_mapping(mapped: NDArray[Any], path: Path) -> None:
    """Takes a mapped file down, for as long as its array lives."""
    try:
        row = _free_rows.pop()
    except IndexError:
        row = next(_new_rows)
    if row >= _MOST_FILES:
        return
    start = mapped.ctypes.data - mapped.ctypes.data % mmap.PAGESIZE
    _paths[row] = path
    _ranges[row] = start, -(-(mapped.ctypes.data + mapped.nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE, 0
    weakref.finalize(mapped, _forget, row).atexit = False


def _forget(row: int) -> None:
    _ranges[row] = 0
    _gone.discard(row)
    _paths.pop(row, None)
    _free_rows.append(row)


class Guarded:
    """Reads mapped arrays in the calling thread: where a file of theirs is cut short, zeros are read, and then comes an error.

    A context manager, which raises ``StoreError`` at its end where a file was cut short, now or before: what was read is of no use.

    Args:
        arrays: Gives what is read; called after a file was cut, only.
    """

    __slots__ = ("_arrays", "_place")

    def __init__(self, arrays: Callable[[], Iterable[NDArray[Any]]]) -> None:
        self._arrays, self._place = arrays, -1

    def __enter__(self) -> None:
        if _free_threads:
            self._place = _free_threads.pop()
            _rows_of_threads[self._place, _THREAD] = threading.get_native_id()

    def __exit__(self, *_: object) -> None:
        place, hit = self._place, 0
        if place >= 0:
            _rows_of_threads[place, _THREAD] = 0
            hit, _rows_of_threads[place, _HIT] = _rows_of_threads[place, _HIT], 0
            _free_threads.append(place)
        if hit:
            _gone.add(hit - 1)
        if _gone:  # also where zeros have led to another error
            _check(hit - 1, self._arrays)


def watch() -> None:
    """Has ``Guarded`` guard: sets the handler, or sets it again where another one was set since."""
    handler = _handler()
    if handler is not None:
        handler.install()


@cache
def _handler() -> BusErrors | None:
    from gnnkit.kernels.bus_errors import BusErrors  # numba

    return BusErrors(_ranges, _threads) if BusErrors.is_possible() else None


def _check(hit: int, arrays: Callable[[], Iterable[NDArray[Any]]]) -> None:
    gone = {row: _ranges[row].tolist() for row in _gone.copy()}
    for row, (start, end, _) in gone.items():
        if row == hit or any(start <= array.ctypes.data < end for array in arrays()):
            raise StoreError(
                f"{_paths.get(row)} was cut short while it was mapped, or its disk failed",
                "gnnkit info --verify names damaged files; build or copy the store again, and make the loader again",
            )


# What reading a damaged array file raises: NumPy tries to repair a header that Python cannot parse, and lets errors of that through.
NPY_DAMAGE = (OSError, EOFError, ValueError, SyntaxError, tokenize.TokenError)
_MAGIC = b"\x93NUMPY\x01\x00"
_READ_BYTES = 8 << 20
# A disk brings many small files home together far faster than one after the other.
_SYNC_THREADS = 16
_CHUNK_ROWS = 1 << 18
# Descriptors that stay free for other files.
_SPARE_FILES = 256


@dataclass(frozen=True, slots=True)
class FileEntry:
    """The manifest's entry of one array file: dtype, shape, size in bytes and CRC-32, all of the file as it should be."""

    dtype: str
    shape: tuple[int, ...]
    size: int
    crc32: int


def as_count(value: Any) -> int:
    """A number of a manifest that counts something.

    Raises:
        ValueError: It is none.
    """
    if not is_whole(value):
        raise ValueError(f"{value!r} is not a count")
    return value


# What tells a file, as it was when it was opened, from every other one, and from itself after a change: device, inode, size, and times.
FileIdentity: TypeAlias = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class FileSpec:
    """The dtype and shape of an array file.

    Attributes:
        dtype: Its dtype.
        shape: Its shape.
        holds: What its numbers are: a word of ``gnnkit.storage.verify.OpenFiles``, and what its check takes; empty where any are right.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    holds: tuple[Any, ...] = field(default=(), compare=False)

    @property
    def header(self) -> bytes:
        """The file's first bytes; the same from every NumPy version, so that a reader can compare them."""
        text = f"{{'descr': '{self.dtype.str}', 'fortran_order': False, 'shape': {self.shape!r}, }}".encode()
        padding = -(len(_MAGIC) + 2 + len(text) + 1) % 64
        text += b" " * padding + b"\n"
        return _MAGIC + len(text).to_bytes(2, "little") + text

    @property
    def row_nbytes(self) -> int:
        """Bytes of one entry along the first axis."""
        return self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))

    @property
    def file_nbytes(self) -> int:
        """Bytes of the whole file."""
        return len(self.header) + self.row_nbytes * self.shape[0]


class ArrayWriter:
    """Writes one array file, row range by row range, in any order and from any thread.

    Args:
        root: The store's folder.
        name: Path of the file, relative to ``root``.
        spec: What the file is to hold.
    """

    def __init__(self, root: Path, name: str, spec: FileSpec) -> None:
        self.path, self.spec = root / name, spec
        self._pieces: list[tuple[int, int, int]] = []
        self._lock = threading.Lock()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._put(0, spec.header)

    def write(self, row: int, rows: NDArray[Any]) -> None:
        """Writes ``rows`` so that the first one becomes row number ``row``; each row must be written exactly once."""
        data = np.ascontiguousarray(rows, dtype=self.spec.dtype)
        assert data.shape[1:] == self.spec.shape[1:], (self.path, data.shape, self.spec.shape)
        if data.nbytes:
            self._put(len(self.spec.header) + row * self.spec.row_nbytes, data.reshape(-1).view(np.uint8).data)

    def finish(self) -> FileEntry:
        """The finished file's entry for the manifest."""
        crc, end = 0, 0
        for start, length, piece_crc in sorted(self._pieces):
            assert start == end, f"{self.path}: rows were written twice or left out at byte {end}"
            crc, end = crc32_combine(crc, piece_crc, length), start + length
        assert end == self.spec.file_nbytes, f"{self.path}: {end} of {self.spec.file_nbytes} bytes were written"
        return FileEntry(self.spec.dtype.name, self.spec.shape, end, crc)

    def _put(self, offset: int, data: bytes | memoryview) -> None:
        # The file is opened for each piece: a store of many parts would otherwise need as many descriptors.
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            write_fully(descriptor, offset, data)
        finally:
            os.close(descriptor)
        crc = zlib.crc32(data)
        with self._lock:
            self._pieces.append((offset, len(data), crc))


def write_fully(descriptor: int, offset: int, data: bytes | memoryview) -> None:
    """Writes all of ``data`` at ``offset``, however the system splits it."""
    view = memoryview(data)
    done = 0
    while done < len(view):
        done += os.pwrite(descriptor, view[done:], offset + done)


def sync(path: Path) -> None:
    """Waits until a file or folder is on the disk itself."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link_or_copy(source: Path, target: Path) -> None:
    """Gives a file another place as well, whose folder is made; a copy where the target is on another file system."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        sync(target)


class ArrayFile:
    """Rows of one array; rows may be read and written by several threads at once, appended by one.

    Args:
        spec: Dtype and row shape.
        folder: Where the file lies, without a name.
    """

    def __init__(self, spec: ArraySpec, folder: Path) -> None:
        self.spec = spec
        self.num_rows = 0
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115

    def append(self, rows: NDArray[Any]) -> None:
        """Adds rows ``[k, *row_shape]``."""
        self.put(self.num_rows, rows)

    def put(self, start: int, rows: NDArray[Any]) -> None:
        """Writes rows from ``start`` on, which may lie beyond the end of the file."""
        if rows.size:
            data = np.ascontiguousarray(rows, self.spec.numpy_dtype).data.cast("B")
            write_fully(self._file.fileno(), start * self.spec.row_nbytes, data)
        self.num_rows = max(self.num_rows, start + len(rows))

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows ``[start, stop)``."""
        out = np.empty((stop - start, *self.spec.stored_shape), self.spec.numpy_dtype)
        view, position = out.reshape(-1).view(np.uint8).data, start * self.spec.row_nbytes
        while len(view):
            count = os.preadv(self._file.fileno(), [view], position)
            if not count:
                raise DatasetError("a scratch file became shorter while it was being read", "is the disk healthy?")
            view, position = view[count:], position + count
        return out

    def chunks(self, rows: int = _CHUNK_ROWS) -> Iterator[NDArray[Any]]:
        """Yields all rows, some at a time."""
        for start in range(0, self.num_rows, rows):
            yield self.read(start, min(start + rows, self.num_rows))

    def mapped(self) -> NDArray[Any]:
        """All rows, mapped read-only; the mapping outlives this object."""
        shape = (self.num_rows, *self.spec.stored_shape)
        if not self.num_rows or not self.spec.row_nbytes:
            return np.empty(shape, self.spec.numpy_dtype)
        return np.memmap(self._file, self.spec.numpy_dtype, "r", shape=shape)

    def close(self) -> None:
        """Gives the disk space back."""
        self._file.close()

    def __del__(self) -> None:
        # Sources are dropped rather than closed; without this an unclosed file would warn.
        if hasattr(self, "_file"):
            self.close()


def append_rows(path: Path, rows: NDArray[Any]) -> None:
    """Adds rows to the end of a file, which is made where there is none."""
    with path.open("ab") as file:
        file.write(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)


def read_rows(path: Path, spec: ArraySpec, start: int, stop: int, hint: str) -> NDArray[Any]:
    """Reads rows ``[start, stop)`` of a file of rows that all hosts see.

    Raises:
        DatasetError: It cannot be read, or is too short, about which ``hint`` says what to do.
    """
    count = (stop - start) * spec.row_nbytes
    with os_errors(f"{path} cannot be read", None, "all hosts have to see this folder", DatasetError):
        data = np.fromfile(path, np.uint8, count, offset=start * spec.row_nbytes)
    if len(data) < count:
        raise DatasetError(f"{path} ends early", hint)
    return data.view(spec.numpy_dtype).reshape(stop - start, *spec.stored_shape)


class StoreFiles:
    """The files of a store that is being written, for a ``with`` block: finished ones are brought to the disk, all of them by its end.

    Args:
        roots: Where to write the files of each part, and under None those that every host has; parts that are not in it are not written.

    Attributes:
        roots: See above.
        entries: What the manifest says of the finished files.
    """

    def __init__(self, roots: Mapping[int | None, Path]) -> None:
        self.roots = roots
        self.entries: dict[str, FileEntry] = {}
        self._open: list[tuple[str, ArrayWriter]] = []
        self._syncing: list[Future[None]] = []

    def __enter__(self) -> StoreFiles:
        self._pool = ThreadPoolExecutor(_SYNC_THREADS, "gnnkit-sync")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._pool:
            if kind is None:
                self.finish()
                for future in self._syncing:
                    future.result()

    def writer(self, name: str, spec: FileSpec) -> ArrayWriter:
        """A writer for one of the files."""
        writer = ArrayWriter(self.roots[part_of(name)], name, spec)
        self._open.append((name, writer))
        return writer

    def finish(self) -> None:
        """Enters all files so far, which are written, and starts to bring them to the disk."""
        for name, writer in self._open:
            self.entries[name] = writer.finish()
            self._syncing.append(self._pool.submit(sync, writer.path))
        self._open.clear()


def open_array(root: Path, name: str, entry: FileEntry) -> tuple[NDArray[Any], FileIdentity]:
    """Maps an array file read-only, after comparing its size and header with the manifest; returns the array and what was opened.

    Raises:
        StoreError: The file is missing, truncated, or not what the manifest says.
    """
    spec = FileSpec(np.dtype(entry.dtype), entry.shape)
    path = root / name
    try:
        with open(open_regular(path, root), "rb", buffering=0) as file:
            _make_room_for_files(file.fileno())
            header, found = os.pread(file.fileno(), len(spec.header), 0), os.fstat(file.fileno())
            size = found.st_size
            identity = found.st_dev, found.st_ino, size, found.st_mtime_ns, found.st_ctime_ns
            if size != entry.size or size != spec.file_nbytes:
                raise damaged(root, f"{name} has {size} bytes instead of {spec.file_nbytes}")
            if header != spec.header:
                raise damaged(root, f"the header of {name} is not that of a {entry.dtype} array of shape {entry.shape}")
            if size == len(header):
                return np.empty(spec.shape, spec.dtype), identity
            mapped = np.memmap(file, dtype=spec.dtype, mode="r", offset=len(header), shape=spec.shape)
            note_mapping(mapped, path)
    except FileNotFoundError as error:
        raise damaged(root, f"{name} is missing") from error
    except (ValueError, OverflowError) as error:
        raise damaged(root, f"{name} cannot be mapped ({error})") from error
    except OSError as error:
        hint = "allow more open files: a higher hard limit (ulimit -H -n tells it)" if error.errno in (errno.EMFILE, errno.ENFILE) else None
        raise StoreError(f"{path} cannot be read: {error.strerror or error}", hint) from error
    return mapped.view(np.ndarray), identity


def _make_room_for_files(descriptor: int) -> None:
    """Raises the limit of open files in time: Python keeps a descriptor for every mapping, and a store of many parts has many."""
    lowest_free = os.dup(descriptor)
    os.close(lowest_free)
    allow_open_files(lowest_free + _SPARE_FILES)


def file_crc32(path: Path) -> int:
    """The CRC-32 of a file, read in bounded memory."""
    crc = 0
    buffer = bytearray(_READ_BYTES)
    with open(open_regular(path), "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            crc = zlib.crc32(memoryview(buffer)[:count], crc)
    return crc


def damaged(root: Path | str, what: str) -> StoreError:
    """The error for a store that is not as it was written."""
    return StoreError(f"the store {root} is damaged: {what}", "remove it (gnnkit stores rm) and build it again")

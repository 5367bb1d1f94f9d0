"""Streams of arrays: read ahead in threads, in bounded memory and in order, and spooled to files without a name."""

from __future__ import annotations

import contextlib
import os
import queue
import tempfile
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import DatasetError
from gnnkit.schema import ArraySpec

T = TypeVar("T")
R = TypeVar("R")


def overlap(items: Iterable[T], work: Callable[[T], R], *, num_threads: int = 2, depth: int = 4) -> Generator[R, None, None]:
    """Yields ``work(item)`` for every item, in order, with items and work running ahead in threads.

    ``items`` is drawn in a thread of its own, so it may block or compute; ``work`` runs on ``num_threads`` threads. At most
    ``depth`` results exist that the consumer has not seen. What ``items`` or ``work`` raise is raised here, in its place.
    Closing the iterator (or dropping it) ends its threads before it returns.
    """
    slots = threading.Semaphore(depth)
    results: queue.SimpleQueue[Future[R] | BaseException | None] = queue.SimpleQueue()
    stop = threading.Event()
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix="gnnkit-read")

    def feed() -> None:
        try:
            for item in items:
                slots.acquire()
                if stop.is_set():
                    return
                results.put(pool.submit(work, item))
            results.put(None)
        except BaseException as error:  # handed over whole: the consumer raises it
            results.put(error)
        finally:
            # A generator that is left half-way closes its files here, in the thread that ran it.
            getattr(items, "close", _nothing)()

    feeder = threading.Thread(target=feed, name="gnnkit-feed", daemon=True)
    try:
        feeder.start()  # which waits for it, so that an interrupt may come here too
        while (result := results.get()) is not None:
            if isinstance(result, BaseException):
                raise result
            yield result.result()
            slots.release()
    finally:
        stop.set()
        slots.release()
        with contextlib.suppress(RuntimeError):  # it was about to start
            feeder.join()
        pool.shutdown(cancel_futures=True)


def read_ahead(items: Iterable[T], *, depth: int = 4) -> Generator[T, None, None]:
    """Yields ``items``, drawn ahead in a thread; otherwise as ``overlap``."""
    return overlap(items, _same, num_threads=1, depth=depth)


def _nothing() -> None:
    return None


def _same(item: T) -> T:
    return item


READ_ROWS = 1 << 18


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
        data = np.ascontiguousarray(rows, self.spec.numpy_dtype).data.cast("B") if rows.size else memoryview(b"")
        self._write(data, self.num_rows * self.spec.row_nbytes)
        self.num_rows += len(rows)

    def put(self, start: int, rows: NDArray[Any]) -> None:
        """Writes rows from ``start`` on, which may lie beyond the end of the file."""
        if rows.size:
            self._write(np.ascontiguousarray(rows, self.spec.numpy_dtype).data.cast("B"), start * self.spec.row_nbytes)
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

    def chunks(self, rows: int = READ_ROWS) -> Iterator[NDArray[Any]]:
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

    def _write(self, data: memoryview, position: int) -> None:
        while len(data):
            count = os.pwrite(self._file.fileno(), data, position)
            data, position = data[count:], position + count


def append_rows(path: Path, rows: NDArray[Any]) -> None:
    """Adds rows to the end of a file, which is made where there is none."""
    with path.open("ab", buffering=0) as file:
        data = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
        while len(data):
            data = data[file.write(data) :]


def read_rows(path: Path, spec: ArraySpec, start: int, stop: int, hint: str) -> NDArray[Any]:
    """Reads rows ``[start, stop)`` of a file of rows that all hosts see.

    Raises:
        DatasetError: It cannot be read, or is too short, about which ``hint`` says what to do.
    """
    count = (stop - start) * spec.row_nbytes
    try:
        data = np.fromfile(path, np.uint8, count, offset=start * spec.row_nbytes)
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror or error}", "all hosts have to see this folder") from error
    if len(data) < count:
        raise DatasetError(f"{path} ends early", hint)
    rows: NDArray[Any] = data.view(spec.numpy_dtype).reshape(stop - start, *spec.stored_shape)
    return rows


class Spool:
    """Rows of several arrays of equal length."""

    def __init__(self, specs: Mapping[str, ArraySpec], folder: Path) -> None:
        self.specs = dict(specs)
        self._files = {name: ArrayFile(spec, folder) for name, spec in specs.items()}

    @property
    def num_rows(self) -> int:
        """Rows so far."""
        return next(iter(self._files.values())).num_rows

    def append(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Adds rows: ``{name: [k, *row_shape]}``."""
        for name, file in self._files.items():
            file.append(rows[name])

    def read(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Rows ``[start, stop)`` of one array."""
        return self._files[name].read(start, stop)

    def chunks(self, rows: int = READ_ROWS) -> Iterator[dict[str, NDArray[Any]]]:
        """Yields all arrays side by side."""
        for start in range(0, self.num_rows, rows):
            yield {name: self.read(name, start, min(start + rows, self.num_rows)) for name in self.specs}

    def close(self) -> None:
        """Gives the disk space back."""
        for file in self._files.values():
            file.close()

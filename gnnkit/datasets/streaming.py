"""Streams of arrays: read ahead in threads, in bounded memory and in order, and spooled to files without a name."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from numpy.typing import NDArray

from gnnkit.schema import ArraySpec
from gnnkit.storage.files import ArrayFile
from gnnkit.waiting import SLICE_S

T = TypeVar("T")
R = TypeVar("R")


def overlap(
    items: Iterable[T], work: Callable[[T], R], *, num_threads: int = 2, depth: int = 4, unblock: Callable[[], None] | None = None
) -> Generator[R, None, None]:
    """Yields ``work(item)`` for every item, in order, with items and work running ahead in threads.

    ``items`` is drawn in a thread of its own, so it may block or compute; ``work`` runs on ``num_threads`` threads. At most
    ``depth`` results exist that the consumer has not seen. What ``items`` or ``work`` raise is raised here, in its place.
    Closing the iterator (or dropping it) ends its threads before it returns; ``unblock`` ends what ``items`` may be waiting for.
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
            if isinstance(items, Generator):
                items.close()

    feeder = threading.Thread(target=feed, name="gnnkit-feed", daemon=True)
    try:
        feeder.start()  # which waits for it, so that an interrupt may come here too
        while (result := _take(results)) is not None:
            if isinstance(result, BaseException):
                raise result
            yield result.result()
            slots.release()
    finally:
        stop.set()
        slots.release()
        if unblock is not None:
            unblock()
        with contextlib.suppress(RuntimeError):  # it was about to start
            feeder.join()
        pool.shutdown(cancel_futures=True)


def read_ahead(items: Iterable[T], *, depth: int = 4, unblock: Callable[[], None] | None = None) -> Generator[T, None, None]:
    """Yields ``items``, drawn ahead in a thread; otherwise as ``overlap``."""
    return overlap(items, lambda item: item, num_threads=1, depth=depth, unblock=unblock)


def _take(results: queue.SimpleQueue[R]) -> R:
    """The next result; an interrupt that comes just before the wait begins is noticed, too."""
    while True:
        with contextlib.suppress(queue.Empty):
            return results.get(timeout=SLICE_S)


READ_ROWS, _READ_BYTES = 1 << 18, 8 << 20


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

    def rows(self, name: str) -> Iterator[NDArray[Any]]:
        """Yields the rows of one array, some at a time."""
        step = max(1, min(READ_ROWS, _READ_BYTES // max(1, self.specs[name].row_nbytes)))
        for start in range(0, self.num_rows, step):
            yield self.read(name, start, min(start + step, self.num_rows))

    def chunks(self, rows: int = READ_ROWS) -> Iterator[dict[str, NDArray[Any]]]:
        """Yields all arrays side by side."""
        for start in range(0, self.num_rows, rows):
            yield {name: self.read(name, start, min(start + rows, self.num_rows)) for name in self.specs}

    def close(self) -> None:
        """Gives the disk space back."""
        for file in self._files.values():
            file.close()

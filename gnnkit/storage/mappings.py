"""The mapped files of this process, and errors for those that are cut short while they are read.

A read behind the end of a mapped file ends the process (SIGBUS). Whoever reads mapped arrays within ``Guarded`` gets an error instead.
"""

from __future__ import annotations

import itertools
import mmap
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import StoreError

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


def note_mapping(mapped: np.memmap[Any, Any], path: Path) -> None:
    """Takes a mapped file down, for as long as its array lives."""
    _note(mapped, path)


def note_again(mapped: NDArray[Any], other: NDArray[Any]) -> None:
    """Takes down that ``other`` maps the file of ``mapped``, too, for as long as it lives."""
    for row in list(_paths):
        start, end, _ = _ranges[row].tolist()
        if start <= mapped.ctypes.data < end and (path := _paths.get(row)) is not None:
            _note(other, path)
            return


def _note(mapped: NDArray[Any], path: Path) -> None:
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
    """Has ``Guarded`` guard: sets the handler, or sets it again where somebody has set another one since."""
    handler = _handler()
    if handler is not None:
        handler.install()


@cache
def _handler() -> BusErrors | None:
    from gnnkit.kernels.bus_errors import BusErrors

    return BusErrors(_ranges, _threads) if BusErrors.is_possible() else None


def _check(hit: int, arrays: Callable[[], Iterable[NDArray[Any]]]) -> None:
    gone = {row: _ranges[row].tolist() for row in _gone.copy()}
    for row, (start, end, _) in gone.items():
        if row == hit or any(start <= array.ctypes.data < end for array in arrays()):
            raise StoreError(
                f"{_paths.get(row)} was cut short while it was mapped, or its disk failed",
                "gnnkit info --verify names damaged files; build or copy the store again, and make the loader again",
            )

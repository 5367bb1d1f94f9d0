"""Measuring how rows are copied fastest on this machine: some 50 ms, once on a machine, by one process at a time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from gnnkit.files import give_up_lock, take_lock
from gnnkit.host import available_memory
from gnnkit.kernels.folder import kernel_cache_root
from gnnkit.kernels.native import LINE
from gnnkit.kernels.row_copies import NEVER, RowCopies, keep_row_copies, kept_row_copies
from gnnkit.sampling.batch_writer import GATHER, fill
from gnnkit.sampling.tables import NUM_WHOLE, address_of
from gnnkit.storage.arrays import ReadAhead

# Rows of 100 float32, all over more memory than usual caches hold, in batches of more than 8 MB, and of 1 MB where caches could keep them.
_WIDTH, _NUM_ROWS, _LARGE, _SMALL = 400, 640_000, 21_000, 2_600
# Single values, each in another line.
_WORD, _LINES = 8, 100_000
_TURNS = 5
# Another way than the usual one has to be faster by this part: what else runs here is measured, too.
_MARGIN = 0.05
_PAGE = 4096
# Any odd number that leaps over pages.
_LEAP = 60_013


class _Trial:
    """Memory that rows are copied in, from one place to another."""

    def __init__(self) -> None:
        self._block = np.empty(_NUM_ROWS * _WIDTH + LINE, np.uint8)
        self._block[::_PAGE] = 1
        self._start = -(-address_of(self._block) // LINE) * LINE
        self._copied = 0

    def seconds(self, ways: Mapping[str, RowCopies], count: int, width: int) -> dict[str, float]:
        """Returns the seconds of a processor that ``count`` rows of ``width`` bytes take, the median of several turns of all ways.

        Now and then rows that are written past the caches take four fifths of their usual time, so the least would be chance.
        """
        turns = [[self._time(way, count, width) for way in ways.values()] for _ in range(_TURNS)]
        return dict(zip(ways, np.median(turns, axis=0).tolist(), strict=True))

    def _time(self, way: RowCopies, count: int, width: int) -> float:
        num_rows = _NUM_ROWS * _WIDTH // width
        ids = np.arange(self._copied, self._copied + count) * _LEAP % num_rows
        target = self._start + self._copied % (num_rows - count) * width // LINE * LINE
        self._copied += count
        steps = np.array([[GATHER, address_of(ids), count, width, target, 0, 0]], np.int64)
        given = way.entered(ReadAhead([]).table), steps, np.array([[self._start]]), np.array([[0, num_rows]])
        begin = time.thread_time()
        fill(*given, np.zeros((1, NUM_WHOLE + 1), np.int64))
        return time.thread_time() - begin


def measured() -> RowCopies:
    """Measures the ways in which rows can be copied, by processor time: other work on the machine takes some, and counts for nothing."""
    usual, trial, rates = RowCopies(), _Trial(), dict[str, float]()

    def best(ways: dict[str, RowCopies], count: int = _LARGE, width: int = _WIDTH) -> RowCopies:
        """The fastest way; the first one where no other is clearly faster."""
        seconds = trial.seconds(ways, count, width)
        rates.update({name: count * width / seconds[name] for name in ways})
        first, fastest = next(iter(ways)), min(ways, key=lambda name: seconds[name])
        return ways[fastest if seconds[fastest] < (1 - _MARGIN) * seconds[first] else first]

    ways = dict[str, RowCopies]()
    for name, way in {"vectors": usual, "memcpy": replace(usual, vectors=False)}.items():
        for by, into_first in {"": True, " by the second cache": False}.items():
            nearer = replace(way, into_first=into_first)
            ways |= {f"{name} past the caches{by}": nearer, f"{name}{by}": replace(nearer, streamed_from=NEVER)}
    found = best(ways)
    found = best({f"{far} rows ahead": replace(found, rows_ahead=far) for far in (usual.rows_ahead, 8, 32)})
    if found.streamed_from != NEVER:
        found = best({"kept at 1 MB": found, "past the caches at 1 MB": replace(found, streamed_from=_SMALL * _WIDTH)}, _SMALL)
    lines = {"lines into the first cache": found, "lines into the second": replace(found, lines_into_first=False)}
    return replace(best(lines, _LINES, _WORD), bytes_per_s=rates)


def measure_once(*, again: bool = False) -> None:
    """Measures, where this machine has not been measured and no other process is at it.

    Args:
        again: Also where it has been measured.
    """
    if (kept_row_copies() is not None and not again) or available_memory() < 8 * _NUM_ROWS * _WIDTH:
        return
    with contextlib.suppress(OSError):  # a folder that cannot be written to: rows are copied as usual
        lock = kernel_cache_root() / "row-copies.lock"
        held = take_lock(lock)
        if held is not None:
            try:
                keep_row_copies(measured())
            finally:
                give_up_lock(lock, held)

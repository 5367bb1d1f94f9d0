"""The way of a mapped graph's pages into memory: asked for ahead, where the graph is larger than the memory that may hold it."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.host import available_memory

# Rows that a thread asks for before it reads the first of them. With fewer the disk is idle at times; more are of no use, and where memory
# is short they push out what was asked for before it is read: their pages take no more than this part of what is free.
_WINDOW, _LEAST_WINDOW, _PART_OF_FREE = 2048, 64, 1 / 64
# Pages that were asked for lately and are not asked for again: so few that the system has not given them up meanwhile.
_LATELY, _LEAST_LATELY, _PART_LATELY = 1 << 17, 1 << 10, 1 / 4
_SETTINGS = 4
# MADV_POPULATE_READ, of Linux from 5.14 on, on all of its machines.
_POPULATE_READ = 22


class ReadAhead:
    """The way in which kernels ask for the pages of a mapped graph before they read them; decided once, when the graph is opened.

    A graph that fits in memory is left to the system, which fills its cache in a few large reads, and nobody asks for anything. One that
    does not fit is read page by page: otherwise every row is read from the disk with the 128 KB (8 MB on some systems) around it, which
    only pushes out what was read before. What is about to be read is asked for together, so that the disk has many pages to read at a time.

    Args:
        arrays: The graph's arrays; those that are not mapped files count as memory.

    Attributes:
        table: int64 ``[4 + 2 K]``, read and written by kernels; see ``gnnkit.kernels.native``, which cannot be imported here: it brings
            the compiler, which reading a store does without.
    """

    def __init__(self, arrays: Iterable[NDArray[Any]]) -> None:
        mappings = [(array, mapping) for array in arrays if (mapping := _mapping_of(array)) is not None]
        self.table = np.zeros(_SETTINGS, np.int64)
        free = available_memory() if mappings else 0
        if not hasattr(mmap, "MADV_RANDOM") or sum(array.nbytes for array, _ in mappings) <= free:
            return
        for _, mapping in mappings:
            with contextlib.suppress(OSError):  # a filter of system calls: pages come one at a time, and are right
                mapping.madvise(mmap.MADV_RANDOM)
        window = min(_WINDOW, max(_LEAST_WINDOW, int(free * _PART_OF_FREE) // mmap.PAGESIZE))
        lately = 1 << (min(_LATELY, max(_LEAST_LATELY, int(free * _PART_LATELY) // mmap.PAGESIZE)).bit_length() - 1)
        self.table = np.zeros(_SETTINGS + 2 * lately, np.int64)
        self.table[:_SETTINGS] = _address_of_madvise(), mmap.PAGESIZE, window, _advice_of_use()

    @property
    def is_on(self) -> bool:
        """Whether pages are asked for."""
        return bool(self.table[0])


@cache
def _address_of_madvise() -> int:
    return ctypes.cast(ctypes.CDLL(None).madvise, ctypes.c_void_p).value or 0


@cache
def _advice_of_use() -> int:
    """The advice by which pages are counted as used; 0 where there is none."""
    return _POPULATE_READ if sys.platform == "linux" and ctypes.CDLL(None).madvise(None, 0, _POPULATE_READ) == 0 else 0


def _mapping_of(array: NDArray[Any]) -> mmap.mmap | None:
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, mmap.mmap) else None

"""Asking the system for pages of mapped files before they are read, from kernels.

The system reads what it is asked for while the kernel goes on, and many pages at a time; a page that is read without having been asked
for is waited for alone. What to ask, and whether at all, is a table of ``gnnkit.storage.paging.ReadAhead``.
"""

# Intrinsics have no type hints, so what they return is Any to mypy.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gnnkit.kernels.jit import helper
from gnnkit.kernels.native import call_system

# Elements of ``ahead`` int64 [3]: the address of the system's ``madvise``, 0 where nothing is asked for; the bytes of a page; and the
# number of rows that are asked for before the first of them is read.
MADVISE, PAGE, WINDOW = range(3)

# MADV_WILLNEED on every system that has ``madvise``.
_WILL_NEED = 3
# Pages that were asked for lately are remembered by their number modulo this.
_REMEMBERED = 4096


@helper
def asks(ahead: NDArray[np.int64]) -> bool:
    """Whether anything is asked for."""
    return ahead[MADVISE] != 0


@helper
def memory_of_asked(ahead: NDArray[np.int64]) -> NDArray[np.int64]:
    """A kernel's memory of the pages that it has asked for lately, int64."""
    return np.zeros(_REMEMBERED if asks(ahead) else 0, np.int64)


@helper
def ask(ahead: NDArray[np.int64], asked: NDArray[np.int64], address: int, nbytes: int) -> None:
    """Asks for the pages of some bytes, and does not wait for them; not again for one that was asked for lately.

    It is advice: whatever the system answers, the pages are there when they are read. A call for each page: one of ``process_madvise`` for
    a thousand of them saves 0.14 of the 0.5 us that a page in memory costs, and of the 4.4 us of one that is read nothing that can be
    measured; and it needs a privilege on many systems.
    """
    page = ahead[PAGE]
    first, last = address // page, (address + nbytes - 1) // page
    if asked[first % _REMEMBERED] != first or first != last:
        asked[first % _REMEMBERED] = first
        call_system(ahead[MADVISE], first * page, (last - first + 1) * page, _WILL_NEED, 0, 0, 0)

"""A sampling process's slots: huge pages come under what a batch needs, and what other slots hold stays as it is."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gnnkit.runtime.ring import HUGE_PAGE, SharedBlock
from gnnkit.runtime.worker import WorkerRing


@pytest.mark.parametrize("slot_bytes", [4096, 3 * HUGE_PAGE])
@pytest.mark.parametrize("refused", [False, True])
def test_a_slot_is_written_and_its_neighbours_are_not(slot_bytes: int, refused: bool) -> None:
    with without_huge_pages() if refused else contextlib.nullcontext():
        write_a_slot(slot_bytes)


PR_SET_THP_DISABLE = 41


@contextlib.contextmanager
def without_huge_pages() -> Iterator[None]:
    """The system gives this process none, as one without a huge page in one piece, or a kernel that does not know the call."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        libc.prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0)


def write_a_slot(slot_bytes: int) -> None:
    block = SharedBlock.create("gnnkit-ring", 3 * slot_bytes)
    block.bytes[: 3 * slot_bytes] = 7
    ring = WorkerRing(block, slot_bytes)
    for nbytes in (1, slot_bytes // 2, slot_bytes, 1):
        target = ring.take(1, nbytes)
        assert target is not None and len(target) == slot_bytes
        target[:nbytes] = np.arange(nbytes) % 251
        assert (block.bytes[slot_bytes : slot_bytes + nbytes] == np.arange(nbytes) % 251).all()
        assert (block.bytes[:slot_bytes] == 7).all() and (block.bytes[2 * slot_bytes : 3 * slot_bytes] == 7).all()
    assert ring.take(1, slot_bytes + 1) is None


def test_only_what_a_batch_needs_takes_memory() -> None:
    block = SharedBlock.create("gnnkit-ring", 8 * HUGE_PAGE)
    if not block.populate(0, 1):
        pytest.skip("this kernel does not collapse shared memory into huge pages (Linux 6.1)")
    ring = WorkerRing(block, 4 * HUGE_PAGE)
    ring.take(1, HUGE_PAGE + 1)
    assert block.touched_bytes == 3 * HUGE_PAGE
    ring.take(1, 3 * HUGE_PAGE)
    assert block.touched_bytes == 4 * HUGE_PAGE
    text = Path("/proc/self/smaps").read_text(errors="replace").split("/memfd:gnnkit-ring")[1]
    mapped = int(next(line for line in text.splitlines() if line.startswith("ShmemPmdMapped:")).split()[1]) * 1024
    assert mapped == 4 * HUGE_PAGE

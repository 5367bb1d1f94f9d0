"""Blocks of memory for batches, reused for ever: fresh mappings cost half the throughput, because pages come one fault at a time.

A block is leased as a NumPy array. Every tensor of a batch is a view of it, and when the last one dies the block is free
again: a weak reference's callback appends to a ``deque``. That callback is ``deque.append`` itself and no Python function, so it
takes no lock, may run in any thread, and an interrupt of the user's is never raised, and lost, inside it.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import MemoryLimitError
from gnnkit.host import available_memory
from gnnkit.runtime.shared_block import give_back

_HUGE_PAGE = 2 << 20
# cudaHostRegisterPortable.
_FOR_ALL_DEVICES = 1
_PAGE = 4096
# Left free for everything else when a user holds batch after batch: the kernel's own reserves and the training step. Where
# there is little memory to begin with, it is a quarter of that.
_RESERVE = 256 << 20


class LeasedArray(np.ndarray[Any, np.dtype[np.uint8]]):
    """An array that can carry a finalizer; views of it are of the same class and keep the first one alive."""


class _Lease(weakref.ref[LeasedArray]):
    """Watches a leased block; lies in the pool's queue once its array has died."""

    __slots__ = ("block", "nbytes")
    block: NDArray[np.uint8]
    nbytes: int


def _allocate(nbytes: int) -> NDArray[np.uint8]:
    """Anonymous memory, aligned to huge pages where the block is worth one.

    Private: pages of shared memory take 1.6 times as long to come and three times as long to go. No huge pages are asked for: on a virtual
    machine, where the host has to find them, they take several times as long.
    """
    if nbytes < _HUGE_PAGE:
        whole = np.empty(nbytes + _PAGE, np.uint8)
        start = -whole.ctypes.data % _PAGE
        return whole[start : start + nbytes]
    block = mmap.mmap(-1, nbytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = np.frombuffer(block, np.uint8)
    start = -whole.ctypes.data % _HUGE_PAGE
    return whole[start : start + nbytes]


def page_lock(block: NDArray[np.uint8], device: int, owner: object | None = None) -> None:
    """Page-locks a block until its memory's owner, which is ``block.base`` unless it is given, dies.

    Args:
        block: The block.
        device: The number of a CUDA device that this process uses. Which one does not matter to the lock, which is for all; but a thread
            that has never said which it uses would make a context on the first one, where another rank trains.
        owner: The owner of its memory.
    """
    import torch

    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    address = block.ctypes.data
    with torch.cuda.device(device):
        torch.cuda.check_error(int(runtime.cudaHostRegister(address, block.nbytes, _FOR_ALL_DEVICES)))
    # The mapping outlives every view of it, so unlocking when it dies is before it is unmapped.
    memory = owner if owner is not None else block.base if block.base is not None else block
    weakref.finalize(memory, _unlock, runtime, address, device).atexit = False


def _unlock(runtime: Any, address: int, device: int) -> None:
    import torch

    with torch.cuda.device(device):
        runtime.cudaHostUnregister(address)


class BlockPool:
    """Leases blocks and takes them back.

    Args:
        keep: Blocks that sampling needs to go on; so many are kept for reuse, and more than that are returned to the system.
        pinned_for: The CUDA device for whose copies blocks are page-locked; None: they are not.
    """

    def __init__(self, keep: int, *, pinned_for: int | None = None) -> None:
        self.keep = keep
        self._pinned_for = pinned_for
        self._owner = os.getpid()
        self._free: deque[NDArray[np.uint8]] = deque()
        self._leases: dict[int, _Lease] = {}
        self._returned: deque[_Lease] = deque()
        self._largest = 0
        self._reserve = min(_RESERVE, available_memory() // 4)
        self._growing = threading.Lock()

    def lease(self, nbytes: int) -> NDArray[np.uint8]:
        """A block of at least ``nbytes`` bytes, aligned to pages; free again when its last view dies.

        Raises:
            MemoryLimitError: No block is free, because the batches are all still held, and another one does not fit.
        """
        self.reclaim()
        block = self._reuse(nbytes)
        if block is None:
            # One at a time: what is free is only known once the block before is really there.
            with self._growing:
                block = self._new_block(nbytes)
        array = block.view(LeasedArray)
        if self.keep:  # otherwise it dies with its batch
            lease = _Lease(array, self._returned.append)
            lease.block, lease.nbytes = block, nbytes
            self._leases[id(lease)] = lease
        return array

    def _new_block(self, nbytes: int) -> NDArray[np.uint8]:
        # A little more than asked, so that the next batch, of about the same size, fits too.
        self._largest = max(self._largest, nbytes + nbytes // 8)
        unit = _PAGE if self._largest < _HUGE_PAGE else _HUGE_PAGE
        size = -(-self._largest // unit) * unit
        free = available_memory()
        # What the user holds must leave room for others; the loader's own blocks must only fit.
        reserve = self._reserve if len(self._leases) >= self.keep else 0
        if size + reserve > free:
            raise MemoryLimitError(
                f"the next batch needs {size / 1e6:.0f} MB, {free / 1e6:.0f} MB are free, and the batches that are still held take "
                f"{self.num_leased_bytes / 1e6:.0f} MB",
                "drop batches when they are used (a list of all batches keeps them all), or lower batch_size or num_neighbors",
            )
        block = _allocate(size)
        if self._pinned_for is not None:
            page_lock(block, self._pinned_for)
        else:
            block[:nbytes:_PAGE] = 0
        return block

    def _reuse(self, nbytes: int) -> NDArray[np.uint8] | None:
        while os.getpid() == self._owner:  # a forked child shares the blocks, and must not write to them
            try:
                block = self._free.popleft()
            except IndexError:
                return None
            if block.nbytes >= nbytes:
                return block  # one that is too small is dropped: batches grew
        return None

    def reclaim(self) -> None:
        """Frees the blocks whose batches have died since the last call, beyond ``keep`` back to the system."""
        while True:
            try:
                lease = self._returned.popleft()
            except IndexError:
                return
            if self._leases.pop(id(lease), None) is not None and len(self._free) < self.keep:
                self._free.append(lease.block)

    @property
    def num_leased_bytes(self) -> int:
        """Bytes of the blocks that batches are still held on."""
        self.reclaim()
        return sum(lease.block.nbytes for lease in list(self._leases.values()))

    @property
    def free_bytes(self) -> int:
        """Bytes of the blocks that wait to be leased."""
        return sum(block.nbytes for block in list(self._free))

    def clear(self) -> None:
        """Returns free blocks to the system and keeps none from now on; leased ones stay valid."""
        self.keep = 0
        self._free.clear()
        if os.getpid() == self._owner and self._pinned_for is None:
            for lease in list(self._leases.values()):
                if lease.block.nbytes >= _HUGE_PAGE:  # a mapping of its own; what it has beyond its batch is needed no more
                    give_back(lease.block.ctypes.data + lease.nbytes, lease.block.nbytes - lease.nbytes)
        self._leases.clear()  # nobody waits for the blocks any more: each dies with its batch
        self._returned.clear()

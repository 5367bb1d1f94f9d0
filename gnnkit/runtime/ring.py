"""The ring: a fixed number of slots in one shared block, reused for ever; a batch is sampled straight into one.

Only the loader decides which slot is used for what, so no process ever takes a lock. A slot that a batch of the user's lies in comes back
when the last view of it dies: a weak reference's callback appends to a ``deque``. The callback is ``deque.append`` itself and no Python
function, so it takes no lock, may run in any thread, and in a forked child fills only the child's own copy of the queue.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from gnnkit.runtime.buffers import LeasedArray, page_lock
from gnnkit.runtime.shared_block import HUGE_PAGE, SharedBlock

T = TypeVar("T")
_PAGE = 4096


class _SlotLease(weakref.ref[LeasedArray]):
    """Watches the array on a slot; lies in the ring's queue once it has died."""

    __slots__ = ("nbytes", "slot")
    slot: int
    nbytes: int


def slot_size(nbytes: int) -> int:
    """Bytes of a slot for batches of up to ``nbytes``: whole pages, huge ones where it is worth one."""
    unit = _PAGE if nbytes < HUGE_PAGE else HUGE_PAGE
    return max(unit, -(-nbytes // unit) * unit)


def given_up(block: SharedBlock) -> NDArray[np.uint8]:
    """uint8 ``[1]`` at the end of a ring's block: not 0 once the ring is given up.

    A worker looks at it after it has written a slot. The trainer sets it before it gives back the slots: one of the two sees the other.
    """
    return block.bytes[-1:]


class Ring(Generic[T]):
    """The loader's side: which slot belongs to whom.

    Every slot has one owner, of the caller's own kind, or none. A change is one assignment, so an interrupt leaves no slot half-way.

    Args:
        num_slots: Slots.
        slot_bytes: Bytes of each, in whole pages.
        pinned_for: The CUDA device for whose copies the block is page-locked; None: it is not.

    Raises:
        OSError: The system has no shared memory for it.
    """

    def __init__(self, num_slots: int, slot_bytes: int, *, pinned_for: int | None = None) -> None:
        self.num_slots, self.slot_bytes = num_slots, slot_bytes
        self.block = SharedBlock.create("gnnkit-ring", num_slots * slot_bytes + _PAGE)
        self._process, self._is_pinned = os.getpid(), pinned_for is not None
        if pinned_for is not None:
            page_lock(self.block.bytes, pinned_for, self.block.storage)
        self._owners: list[T | None] = [None] * num_slots
        self._leases: dict[int, _SlotLease] = {}
        self._returned: deque[_SlotLease] = deque()

    def take(self, owner: T) -> int | None:
        """Gives a free slot to ``owner``; None when there is none. The slots used before come first: their pages are there already."""
        self.reclaim()
        for slot, current in enumerate(self._owners):
            if current is None:
                self._owners[slot] = owner
                return slot
        return None

    def owner(self, slot: int) -> T | None:
        """Whose a slot is."""
        return self._owners[slot]

    def free(self, slot: int, owner: T) -> None:
        """Takes a slot back from ``owner``; does nothing where it belongs to somebody else by now."""
        if self._owners[slot] is owner:
            self._owners[slot] = None

    def lease(self, slot: int, nbytes: int, freed: Callable[[], None] | None = None) -> NDArray[np.uint8]:
        """The slot's bytes as an array; the slot is free once the last view of it has died.

        Args:
            slot: The slot.
            nbytes: Bytes of its batch.
            freed: Called then, from anywhere; not for arrays that the user gets, see above.
        """

        def tell(lease: _SlotLease) -> None:
            self._returned.append(lease)
            assert freed is not None
            freed()

        array = self.bytes_of(slot).view(LeasedArray)
        lease = _SlotLease(array, self._returned.append if freed is None else tell)
        lease.slot, lease.nbytes = slot, nbytes
        self._leases[slot] = lease
        return array

    def bytes_of(self, slot: int) -> NDArray[np.uint8]:
        """uint8 ``[slot_bytes]``."""
        return self.block.bytes[slot * self.slot_bytes : (slot + 1) * self.slot_bytes]

    def reclaim(self) -> None:
        """Frees the slots whose batches have died since the last call."""
        while self._returned:
            lease = self._returned.popleft()
            if self._leases.get(lease.slot) is lease:
                self._owners[lease.slot] = None
                del self._leases[lease.slot]

    def give_up(self) -> None:
        """Ends the use of the ring: what no batch of the user's lies in goes back to the system, now or when the batch dies.

        Tensors that were handed out stay where they are. A worker that still samples into a slot gives it back by itself. Does nothing in
        a forked child, and where the block is page-locked.
        """
        if os.getpid() != self._process or self._is_pinned:
            return
        self.reclaim()
        given_up(self.block)[0] = 1
        for slot in range(self.num_slots):
            lease = self._leases.get(slot)
            array, start, used = None if lease is None else lease(), slot * self.slot_bytes, 0
            if lease is not None and array is not None:
                used = -(-lease.nbytes // _PAGE) * _PAGE
                weakref.finalize(array, _release, self._process, self.block, start, used).atexit = False
            self.block.release(start + used, self.slot_bytes - used)
        self._leases.clear()
        self.block.close_descriptor()

    @property
    def num_leased(self) -> int:
        """Slots that batches of the user's lie in."""
        self.reclaim()
        return len(self._leases)


def _release(process: int, block: SharedBlock, start: int, nbytes: int) -> None:
    if os.getpid() == process:
        block.release(start, nbytes)

"""Memory that batches lie in: blocks, pools of them, and rings of slots in shared memory.

A block is a memfd, so the size of /dev/shm does not matter. It is mapped at a 2 MiB boundary, so that its pages can be collapsed into huge
ones with ``MADV_COLLAPSE`` (Linux 6.1 and newer), which also works where huge pages for shared memory are switched off.

A block is leased as a NumPy array. Every tensor of a batch is a view of it, and when the last one dies the block is free
again: a weak reference's callback appends to a ``deque``. That callback is ``deque.append`` itself and no Python function, so it
takes no lock, may run in any thread, and an interrupt of the user's is never raised, and lost, inside it.

Only the loader decides which slot is used for what, so no process ever takes a lock. A slot that a batch of the user's lies in comes back
when the last view of it dies: a weak reference's callback appends to a ``deque``. The callback is ``deque.append`` itself and no Python
function, so it takes no lock, may run in any thread, and in a forked child fills only the child's own copy of the queue.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import MemoryLimitError, on_error
from gnnkit.host import available_memory, needed_by_processes
from gnnkit.storage.arrays import HUGE_PAGE, allocate
from gnnkit.storage.files import note_again
from gnnkit.waiting import Deadline

_MADV_RANDOM, _MADV_DONTNEED, _MADV_REMOVE, _MADV_POPULATE_WRITE, _MADV_COLLAPSE = 1, 4, 9, 23, 25
_MREMAP_MAYMOVE, _MREMAP_FIXED = 1, 2
_PAGE = 4096
_PROT_READ, _PROT_WRITE = 1, 2
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS = 1, 2, 0x10, 0x20
# linux/fcntl.h, named in Python's fcntl from 3.11 on: no process may shrink or grow the block, which would kill its readers.
_F_ADD_SEALS, _F_SEAL_SHRINK, _F_SEAL_GROW = 1033, 2, 4


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mremap.restype = ctypes.c_void_p
    libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


def rounded(nbytes: int) -> int:
    """A size in whole huge pages, at least one."""
    return max(HUGE_PAGE, -(-nbytes // HUGE_PAGE) * HUGE_PAGE)


class SharedBlock:
    """A memfd and its mapping in this process.

    Args:
        fd: The memfd; closed with the block.
        nbytes: Its size, in whole huge pages.
        writable: Whether this process may write to it.

    Attributes:
        fd: The descriptor, for other processes.
        nbytes: Its size.
        bytes: uint8 ``[nbytes]``; views of it keep the mapping and the descriptor.
        storage: What the views keep; the mapping ends with it.

    Raises:
        OSError: The system refuses the mapping.
    """

    def __init__(self, fd: int, nbytes: int, *, writable: bool) -> None:
        self.fd, self.nbytes = fd, nbytes
        self._owned = owned = [fd]
        with on_error(lambda: os.close(fd)):
            reserved = _map(None, nbytes + HUGE_PAGE, 0, _MAP_PRIVATE | _MAP_ANONYMOUS, -1)
            self.address = (reserved + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1)
            protection = _PROT_READ | _PROT_WRITE if writable else _PROT_READ
            _map(self.address, nbytes, protection, _MAP_SHARED | _MAP_FIXED, fd)
        self.storage = storage = (ctypes.c_uint8 * nbytes).from_address(self.address)
        self.bytes: NDArray[np.uint8] = np.ctypeslib.as_array(storage)
        self.bytes.flags.writeable = writable
        # Views keep ``storage`` alive, and its end is the end of the mapping.
        weakref.finalize(storage, _unmap, owned, reserved, nbytes + HUGE_PAGE).atexit = False

    @classmethod
    def create(cls, name: str, nbytes: int) -> SharedBlock:
        """A new block of zeros.

        Args:
            name: Shown in /proc, for people.
            nbytes: Its size; rounded up to whole huge pages.

        Raises:
            PlanError: The system does not allow memfd_create.
            OSError: It refuses the mapping.
        """
        nbytes = rounded(nbytes)
        with needed_by_processes("memfd_create"):
            fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with on_error(lambda: os.close(fd)):
            os.ftruncate(fd, nbytes)
            with contextlib.suppress(OSError):  # a precaution; a kernel without seals works as well
                fcntl.fcntl(fd, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW)
        return cls(fd, nbytes, writable=True)

    @classmethod
    def attach(cls, fd: int, *, writable: bool) -> SharedBlock:
        """A block that another process made; takes the descriptor over.

        Raises:
            OSError: The system refuses the mapping.
        """
        return cls(fd, os.fstat(fd).st_size, writable=writable)

    def collapse(self) -> bool:
        """Asks for huge pages under what has been written; False where the kernel cannot."""
        return bool(_libc().madvise(self.address, self.nbytes, _MADV_COLLAPSE) == 0)

    def populate(self, start: int, nbytes: int) -> bool:
        """Puts huge pages under a range that is about to be written over; False where the kernel cannot.

        Pages of 4 kB would come one fault at a time, and be given back one by one, which takes longer than filling them.

        Args:
            start: Where the range begins, at a huge page's border.
            nbytes: Its size; rounded up to whole huge pages.
        """
        nbytes = rounded(nbytes)
        self.bytes[start : start + nbytes : HUGE_PAGE] = 0  # the kernel collapses where there is a page, and nowhere else
        return bool(_libc().madvise(self.address + start, nbytes, _MADV_COLLAPSE) == 0)

    def release(self, start: int, nbytes: int) -> None:
        """Gives the memory of whole pages back to the system, for all processes that map the block; they are zeros then.

        Args:
            start: Where they begin, at a page's border.
            nbytes: Their size; rounded down to whole pages.
        """
        _libc().madvise(self.address + start, nbytes // _PAGE * _PAGE, _MADV_REMOVE)  # a kernel that cannot keeps them with the block

    def close_descriptor(self) -> None:
        """Closes the descriptor, which no other process needs any more; the mapping stays."""
        self.fd = -1
        _close(self._owned)

    @property
    def touched_bytes(self) -> int:
        """Bytes of memory that it really takes: pages come with their first use."""
        return os.fstat(self.fd).st_blocks * 512


def mapped(fd: int) -> NDArray[np.uint8]:
    """The memory behind a descriptor, which is closed: unlike Python's own mapping, what is held takes no descriptor.

    Returns:
        uint8 ``[size]``; the mapping dies with its last view.

    Raises:
        OSError: The system refuses the mapping.
    """
    try:
        nbytes = os.fstat(fd).st_size
        address = _map(None, nbytes, _PROT_READ | _PROT_WRITE, _MAP_SHARED, fd)
    finally:
        os.close(fd)
    storage = (ctypes.c_uint8 * nbytes).from_address(address)
    weakref.finalize(storage, _libc().munmap, address, nbytes).atexit = False
    return np.ctypeslib.as_array(storage)


def page_start(array: NDArray[Any]) -> int:
    """The address of the page in which an array begins."""
    return array.ctypes.data // _PAGE * _PAGE


def first_pages(array: NDArray[Any], nbytes: int) -> NDArray[np.uint8]:
    """uint8 ``[nbytes]``: the first pages of a mapped file's array, from the beginning of the first one; ``array`` has to live as long."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(page_start(array)))


def joined(fd: int, offset: int, nbytes: int, array: NDArray[Any]) -> NDArray[Any]:
    """A mapped file's array whose first pages are in memory, at one piece of addresses, so that readers need not know.

    Args:
        fd: The memfd.
        offset: Where in it the first pages are.
        nbytes: Their size, in whole pages; less than the array takes.
        array: The array, as mapped.

    Returns:
        The same array, read-only; ``array`` may go.

    Raises:
        OSError: The system refuses the mapping.
    """
    start = page_start(array)
    total = -(-(array.ctypes.data + array.nbytes - start) // _PAGE) * _PAGE
    reserved = _map(None, total + HUGE_PAGE, 0, _MAP_PRIVATE | _MAP_ANONYMOUS, -1)
    address = (reserved + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1)
    with on_error(lambda: _libc().munmap(reserved, total + HUGE_PAGE)):
        _map(address, nbytes, _PROT_READ, _MAP_SHARED | _MAP_FIXED, fd, offset)
        # A size of 0 maps the same pages of the file a second time.
        moved = _libc().mremap(start + nbytes, 0, total - nbytes, _MREMAP_MAYMOVE | _MREMAP_FIXED, address + nbytes)
        if moved in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), f"cannot map a file again: {os.strerror(ctypes.get_errno())}")
    _libc().madvise(address + nbytes, total - nbytes, _MADV_RANDOM)  # as ``ReadAhead`` does with the other
    first = array.ctypes.data - start
    storage = (ctypes.c_uint8 * total).from_address(address)
    weakref.finalize(storage, _libc().munmap, reserved, total + HUGE_PAGE).atexit = False
    found = np.ctypeslib.as_array(storage)
    found.flags.writeable = False
    note_again(array, found)
    return found[first : first + array.nbytes].view(array.dtype).reshape(array.shape)


def _map(address: int | None, nbytes: int, protection: int, flags: int, fd: int, offset: int = 0) -> int:
    mapped = _libc().mmap(address, nbytes, protection, flags, fd, offset)
    if mapped in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), f"cannot map {nbytes} bytes of shared memory: {os.strerror(ctypes.get_errno())}")
    return int(mapped)


def give_back(address: int, nbytes: int) -> None:
    """Gives whole pages of anonymous memory back to the system; they are zeros then.

    Args:
        address: Where they begin; rounded up to a page's border.
        nbytes: Up to where they reach; rounded down to one.
    """
    start, end = -(-address // _PAGE) * _PAGE, (address + nbytes) // _PAGE * _PAGE
    if end > start:
        _libc().madvise(start, end - start, _MADV_DONTNEED)


def _unmap(owned: list[int], address: int, nbytes: int) -> None:
    _libc().munmap(address, nbytes)
    _close(owned)


def _close(owned: list[int]) -> None:
    while owned:
        os.close(owned.pop())


# cudaHostRegisterPortable.
_FOR_ALL_DEVICES = 1
# Left free for everything else when a user holds batch after batch: the kernel's own reserves and the training step. Where
# there is little memory to begin with, it is a quarter of that.
_RESERVE = 256 << 20
# Bytes that the first block is given at a time while its size is not known.
_GROWTH = 1 << 20


class LeasedArray(np.ndarray[Any, np.dtype[np.uint8]]):
    """An array that can carry a finalizer; views of it are of the same class and keep the first one alive."""


class _Lease(weakref.ref[LeasedArray]):
    """Watches the array on a leased block, or on a slot; lies in the queue of its pool or ring once that has died."""

    __slots__ = ("block", "nbytes", "slot")
    block: NDArray[np.uint8]
    slot: int
    nbytes: int


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


def _populate(pages: NDArray[np.uint8]) -> bool:
    """Gets pages of anonymous memory, to be written to; whether the system can.

    A part at a time: meanwhile no other thread can map memory, and so none can start a thread.
    """
    if sys.platform != "linux":
        return False
    parts = (pages[begin : begin + _GROWTH] for begin in range(0, pages.nbytes, _GROWTH))
    return not any(_libc().madvise(part.ctypes.data, part.nbytes, _MADV_POPULATE_WRITE) for part in parts)


@dataclass
class _FirstBlock:
    """A block that is longer than the first batch, and whose first ``num_ready`` bytes have pages."""

    block: NDArray[np.uint8]
    num_ready: int = 0

    def has_grown(self) -> bool:
        """Gets the next pages; whether the system can."""
        begin, self.num_ready = self.num_ready, self.num_ready + _GROWTH
        return _populate(self.block[begin : self.num_ready])


class BlockPool:
    """Leases blocks and takes them back.

    Args:
        keep: Blocks that sampling needs to go on; so many are kept for reuse, and more than that are returned to the system.
        pinned_for: The CUDA device for whose copies blocks are page-locked; None: they are not.
        most_ahead: Bytes that ``prepare`` gets pages for, at most; a thirty-second of the free memory is another limit.
    """

    def __init__(self, keep: int, *, pinned_for: int | None = None, most_ahead: int = 0) -> None:
        self.keep, self._most_ahead = keep, most_ahead
        self._pinned_for = pinned_for
        self._owner = os.getpid()
        self._free: deque[NDArray[np.uint8]] = deque()
        self._leases: dict[int, _Lease] = {}
        self._returned: deque[_Lease] = deque()
        self._largest = 0
        self._reserve = min(_RESERVE, available_memory() // 4)
        self._coming = 0  # bytes of blocks that are being made
        self._growing = threading.Lock()
        self._first: _FirstBlock | None = None

    def lease(self, nbytes: int) -> NDArray[np.uint8]:
        """A block of at least ``nbytes`` bytes, aligned to pages; free again when its last view dies.

        Raises:
            MemoryLimitError: No block is free, because the batches are all still held, and another one does not fit.
        """
        self.reclaim()
        block = self._reuse(nbytes)
        if block is None:
            block = self._new_block(nbytes)
        array = block.view(LeasedArray)
        if self.keep:  # otherwise it dies with its batch
            lease = _Lease(array, self._returned.append)
            lease.block, lease.nbytes = block, nbytes
            self._leases[id(lease)] = lease
        return array

    def prepare(self, timeout_s: float) -> None:
        """Gets pages of the first block until that is leased; for a thread that has less to do than the one that samples the first batch.

        The pages of a large batch take as long to come as its neighbours and its rows together.

        Args:
            timeout_s: How long, at most.
        """
        deadline = Deadline(timeout_s)
        with self._growing:
            if not self.keep or self._largest or self._first is not None or self._pinned_for is not None or os.getpid() != self._owner:
                return
            most = min(self._most_ahead, available_memory() // 32) // HUGE_PAGE * HUGE_PAGE
            try:
                first = self._first = _FirstBlock(allocate(4 * most)) if most else None
            except OSError:  # a limit of addresses
                return
        while first is not None and first.num_ready < most and self._first is first and not deadline.has_passed and first.has_grown():
            pass

    def _new_block(self, nbytes: int) -> NDArray[np.uint8]:
        with self._growing:
            first, self._first = self._first, None
            # A little more than asked, so that the next batch, of about the same size, fits too.
            self._largest = max(self._largest, nbytes + nbytes // 8)
            size = slot_size(self._largest)
            ready = 0 if first is None or not HUGE_PAGE <= size <= first.block.nbytes else first.num_ready
            free = available_memory() + ready - self._coming  # of pages that other threads ask for at this moment
            # What the user holds must leave room for others; the loader's own blocks must only fit.
            reserve = self._reserve if len(self._leases) >= self.keep else 0
            if size + reserve > free:
                raise MemoryLimitError(
                    f"the next batch needs {size / 1e6:.0f} MB, {free / 1e6:.0f} MB are free, and the batches that are still held take "
                    f"{self.num_leased_bytes / 1e6:.0f} MB",
                    "drop batches when they are used (a list of all batches keeps them all), or lower batch_size or num_neighbors",
                )
            self._coming += size
        try:
            if first is not None and ready:
                block = first.block[:size]
                give_back(block.ctypes.data + size, ready - size)
            else:
                block = allocate(size)
            if self._pinned_for is not None:
                page_lock(block, self._pinned_for)
            elif ready < nbytes and not _populate(block[ready:nbytes]):
                block[ready:nbytes:_PAGE] = 0  # a fault for each page, on Linux before 5.14 too
            return block
        finally:
            with self._growing:
                self._coming -= size

    def _reuse(self, nbytes: int) -> NDArray[np.uint8] | None:
        while os.getpid() == self._owner:  # a forked child shares the blocks, and must not write to them
            try:
                block = self._free.pop()  # the one that was written to last is in the caches, if one is
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
        self.keep, self._first = 0, None
        self._free.clear()
        if os.getpid() == self._owner and self._pinned_for is None:
            for lease in list(self._leases.values()):
                if lease.block.nbytes >= HUGE_PAGE:  # a mapping of its own; what it has beyond its batch is needed no more
                    give_back(lease.block.ctypes.data + lease.nbytes, lease.block.nbytes - lease.nbytes)
        self._leases.clear()  # the blocks are not needed any more: each dies with its batch
        self._returned.clear()


# Slots that batches of the user's lie in: the one in use, the one before it that a loop still names, and one more.
LEASED = 3
# A slot is larger than the largest batch so far by this part.
HEADROOM = 0.25


def slot_size(nbytes: int) -> int:
    """Bytes of a slot for batches of up to ``nbytes``: whole pages, huge ones where it is worth one."""
    unit = _PAGE if nbytes < HUGE_PAGE else HUGE_PAGE
    return max(unit, -(-nbytes // unit) * unit)


def roomy_slot_size(largest: int) -> int:
    """Bytes of a slot for batches somewhat larger than the largest so far, which ``slot_size`` fits exactly."""
    needed = max(_PAGE, largest)
    return slot_size(needed + int(needed * HEADROOM))


def given_up(block: SharedBlock) -> NDArray[np.uint8]:
    """uint8 ``[1]`` at the end of a ring's block: not 0 once the ring is given up.

    A worker looks at it after it has written a slot. The trainer sets it before it gives back the slots: one of the two sees the other.
    """
    return block.bytes[-1:]


class Ring:
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
        self._owners: list[object] = [None] * num_slots
        self._leases: dict[int, _Lease] = {}
        self._returned: deque[_Lease] = deque()

    def take(self, owner: object) -> int | None:
        """Gives a free slot to ``owner``; None when there is none. The slots used before come first: their pages are there already."""
        if self._returned:
            self.reclaim()
        for slot, current in enumerate(self._owners):
            if current is None:
                self._owners[slot] = owner
                return slot
        return None

    def owner(self, slot: int) -> object:
        """Whose a slot is; None: it is free."""
        return self._owners[slot]

    def is_leased(self, slot: int) -> bool:
        """Whether a batch of the user's lies in a slot."""
        return slot in self._leases

    def free(self, slot: int, owner: object) -> None:
        """Takes a slot back from ``owner``; does nothing where it has another owner by now."""
        if self._owners[slot] is owner:
            self._owners[slot] = None

    def lease(self, slot: int, nbytes: int, freed: Callable[[], None] | None = None) -> NDArray[np.uint8]:
        """The slot's bytes as an array; the slot is free once the last view of it has died.

        Args:
            slot: The slot.
            nbytes: Bytes of its batch.
            freed: Called then, from anywhere; not for arrays that the user gets, see above.
        """

        def tell(lease: _Lease) -> None:
            self._returned.append(lease)
            assert freed is not None
            freed()

        array = self.bytes_of(slot).view(LeasedArray)
        lease = _Lease(array, self._returned.append if freed is None else tell)
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

        Tensors that were handed out stay where they are. A worker that still samples into a slot gives it back by itself. No page is given
        back in a forked child, nor where the block is page-locked.
        """
        self._owners = [None] * self.num_slots  # they know their ring, which would wait for the garbage collector
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
        if self._returned:
            self.reclaim()
        return len(self._leases)


def _release(process: int, block: SharedBlock, start: int, nbytes: int) -> None:
    if os.getpid() == process:
        block.release(start, nbytes)

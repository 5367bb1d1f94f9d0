"""Memory that processes share by descriptor: no name in any file system, gone with its last process.

A block is a memfd, so the size of /dev/shm does not matter. It is mapped at a 2 MiB boundary, so that its pages can be collapsed into huge
ones with ``MADV_COLLAPSE`` (Linux 6.1 and newer), which also works where huge pages for shared memory are switched off.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import weakref
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.storage.mappings import note_again

HUGE_PAGE = 2 << 20
_MADV_RANDOM, _MADV_DONTNEED, _MADV_REMOVE, _MADV_COLLAPSE = 1, 4, 9, 25
_MREMAP_MAYMOVE, _MREMAP_FIXED = 1, 2
_PAGE = 4096
_PROT_READ, _PROT_WRITE = 1, 2
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS = 1, 2, 0x10, 0x20
# linux/fcntl.h, named in Python's fcntl from 3.11 on: nobody may shrink or grow the block, which would kill whoever reads it.
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
        try:
            reserved = _map(None, nbytes + HUGE_PAGE, 0, _MAP_PRIVATE | _MAP_ANONYMOUS, -1)
            self.address = (reserved + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1)
            protection = _PROT_READ | _PROT_WRITE if writable else _PROT_READ
            _map(self.address, nbytes, protection, _MAP_SHARED | _MAP_FIXED, fd)
        except OSError:
            os.close(fd)
            raise
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
            OSError: The system has no memfd or refuses the mapping.
        """
        nbytes = rounded(nbytes)
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, nbytes)
            with contextlib.suppress(OSError):  # a precaution; a kernel without seals works as well
                fcntl.fcntl(fd, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW)
        except OSError:
            os.close(fd)
            raise
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
    """A mapped file's array whose first pages are in memory, at one piece of addresses, so that nobody who reads it need know.

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
    try:
        _map(address, nbytes, _PROT_READ, _MAP_SHARED | _MAP_FIXED, fd, offset)
        # A size of 0 maps the same pages of the file a second time.
        moved = _libc().mremap(start + nbytes, 0, total - nbytes, _MREMAP_MAYMOVE | _MREMAP_FIXED, address + nbytes)
        if moved in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), f"cannot map a file again: {os.strerror(ctypes.get_errno())}")
    except OSError:
        _libc().munmap(reserved, total + HUGE_PAGE)
        raise
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

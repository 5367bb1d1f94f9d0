"""One copy of a graph's arrays in huge pages, filled in the background while sampling already runs on the file mapping.

Random rows come through a file mapping 1.3 times slower and more than through huge pages, because every row costs a walk of the
page tables. The copy lies in a memfd, so that processes can share it, and is collapsed into huge pages with
``MADV_COLLAPSE`` (Linux 6.1 and newer), which also works where huge pages for shared memory are switched off.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.host import available_memory
from gnnkit.storage.arrays import EdgePart, GraphArrays, NodePart

logger = logging.getLogger(__name__)

_HUGE_PAGE = 2 << 20
_MADV_COLLAPSE = 25
_PROT_READ, _PROT_WRITE = 1, 2
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS = 1, 2, 0x10, 0x20
# Bytes copied between two looks at whether the copy is still wanted.
_CHUNK = 32 << 20


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


class HugeBlock:
    """Shared memory at a 2 MiB boundary, without a name: gone with the last process that maps it.

    Args:
        nbytes: Its size; rounded up to whole huge pages.

    Raises:
        OSError: The system has no memfd or refuses the mapping.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = max(_HUGE_PAGE, -(-nbytes // _HUGE_PAGE) * _HUGE_PAGE)
        self.fd = os.memfd_create("gnnkit-graph", os.MFD_CLOEXEC)
        libc = _libc()
        try:
            os.ftruncate(self.fd, self.nbytes)
            reserved = libc.mmap(None, self.nbytes + _HUGE_PAGE, 0, _MAP_PRIVATE | _MAP_ANONYMOUS, -1, 0)
            failed = ctypes.c_void_p(-1).value
            if reserved == failed:
                raise OSError(ctypes.get_errno(), "cannot reserve address space")
            self.address = (reserved + _HUGE_PAGE - 1) & ~(_HUGE_PAGE - 1)
            if libc.mmap(self.address, self.nbytes, _PROT_READ | _PROT_WRITE, _MAP_SHARED | _MAP_FIXED, self.fd, 0) == failed:
                raise OSError(ctypes.get_errno(), "cannot map shared memory")
        except OSError:
            os.close(self.fd)
            raise
        storage = (ctypes.c_uint8 * self.nbytes).from_address(self.address)
        self.bytes: NDArray[np.uint8] = np.ctypeslib.as_array(storage)
        # Views keep ``storage`` alive, and its end is the end of the mapping.
        weakref.finalize(storage, _unmap, self.fd, reserved, self.nbytes + _HUGE_PAGE).atexit = False

    def collapse(self) -> bool:
        """Asks for huge pages under what has been written; False where the kernel cannot."""
        return bool(_libc().madvise(self.address, self.nbytes, _MADV_COLLAPSE) == 0)


def _unmap(fd: int, address: int, nbytes: int) -> None:
    _libc().munmap(address, nbytes)
    os.close(fd)


def _arrays(graph: GraphArrays) -> Iterator[NDArray[Any]]:
    for parts in graph.nodes.values():
        for node_part in parts:
            yield from node_part.arrays.values()
            if node_part.global_id is not None:
                yield node_part.global_id
    for edge_parts in graph.edges.values():
        for edge_part in edge_parts:
            yield from (edge_part.indptr, edge_part.indices, *edge_part.arrays.values())
            yield from (a for a in (edge_part.edge_id, edge_part.weight_prefix) if a is not None)


def graph_nbytes(graph: GraphArrays) -> int:
    """Bytes of every array that sampling may read."""
    return sum(array.nbytes for array in _arrays(graph))


class _Stopped(Exception):
    """The copy is no longer wanted."""


class GraphMemory:
    """The arrays of one graph, first as they came, then in huge pages.

    Args:
        graph: The arrays as mapped.
        memory_budget: Most bytes that the copy may take; None is a quarter of what is free, 0 makes no copy.

    Attributes:
        graph: The arrays to read now; replaced once, when the copy is complete.
        copied_bytes: Bytes of the copy, 0 until it is in use.
    """

    def __init__(self, graph: GraphArrays, memory_budget: int | None) -> None:
        self.graph = graph
        self.copied_bytes = 0
        self._stop = threading.Event()
        needed = graph_nbytes(graph)
        budget = available_memory() // 4 if memory_budget is None else memory_budget
        self._thread: threading.Thread | None = None
        if 0 < needed <= budget and hasattr(os, "memfd_create"):
            self._thread = threading.Thread(
                target=_copy_in_background, args=(weakref.ref(self), graph, self._stop), name="gnnkit-graph-memory", daemon=True
            )
            self._thread.start()
        weakref.finalize(self, self._stop.set).atexit = False

    def wait(self, timeout_s: float) -> bool:
        """Waits for the copy, if one is being made; whether it is in use then."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self.copied_bytes > 0

    def stop(self) -> None:
        """Gives up a copy that is not finished yet."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(10.0)


def _copy_in_background(memory_ref: weakref.ref[GraphMemory], graph: GraphArrays, stop: threading.Event) -> None:
    try:
        copy, nbytes = copy_to_huge_pages(graph, stop)
    except _Stopped:
        return
    except OSError as error:
        logger.info("no copy of the graph in huge pages: %s", error)
        return
    memory = memory_ref()
    if memory is not None:
        memory.graph, memory.copied_bytes = copy, nbytes


def copy_to_huge_pages(graph: GraphArrays, stop: threading.Event) -> tuple[GraphArrays, int]:
    """Copies every array of a graph into one ``HugeBlock``.

    Returns:
        The graph on the copy, and the bytes that the copy takes.
    """
    align = 64
    total = sum(-(-array.nbytes // align) * align for array in _arrays(graph))
    block = HugeBlock(total)
    offset = 0

    def move(array: NDArray[Any]) -> NDArray[Any]:
        nonlocal offset
        target = block.bytes[offset : offset + array.nbytes]
        offset += -(-array.nbytes // align) * align
        source = array.reshape(-1).view(np.uint8)
        for start in range(0, array.nbytes, _CHUNK):
            if stop.is_set():
                raise _Stopped
            target[start : start + _CHUNK] = source[start : start + _CHUNK]
        return target.view(array.dtype).reshape(array.shape)

    def move_if(array: NDArray[Any] | None) -> NDArray[Any] | None:
        return None if array is None else move(array)

    nodes = {
        node_type: tuple(NodePart({n: move(a) for n, a in part.arrays.items()}, move_if(part.global_id)) for part in parts)
        for node_type, parts in graph.nodes.items()
    }
    edges = {
        edge_type: tuple(
            EdgePart(
                move(part.indptr),
                move(part.indices),
                move_if(part.edge_id),
                move_if(part.weight_prefix),
                {n: move(a) for n, a in part.arrays.items()},
            )
            for part in parts
        )
        for edge_type, parts in graph.edges.items()
    }
    if not block.collapse():
        logger.info("the kernel gives no huge pages for shared memory; the copy of the graph uses ordinary pages")
    return replace(graph, nodes=nodes, edges=edges), block.nbytes

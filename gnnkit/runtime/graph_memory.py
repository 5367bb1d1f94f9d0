"""One copy of a graph's arrays in huge pages, filled in the background while sampling already runs on the file mapping.

Random rows come through a file mapping 1.3 times slower and more than through huge pages, because every row costs a walk of the
page tables. The copy lies in a ``SharedBlock``, so that processes share it.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref

from gnnkit.host import available_memory
from gnnkit.runtime.shared_graph import CopyStopped, SharedGraph, graph_nbytes, share
from gnnkit.storage.arrays import GraphArrays
from gnnkit.storage.paging import expect_random_access

logger = logging.getLogger(__name__)


def copy_fits(graph: GraphArrays, memory_budget: int | None) -> bool:
    """Whether a copy of the graph in shared memory is wanted.

    Args:
        graph: The graph.
        memory_budget: Most bytes that the copy may take; None is a quarter of what is free, 0 makes no copy.
    """
    budget = available_memory() // 4 if memory_budget is None else memory_budget
    return 0 < graph_nbytes(graph) <= budget and hasattr(os, "memfd_create")


class GraphMemory:
    """The arrays of one graph, first as they came, then in huge pages.

    Args:
        graph: The arrays as mapped.
        memory_budget: Most bytes that the copy may take; None is a quarter of what is free, 0 makes no copy.
        shared: A copy that exists already; used at once.

    Attributes:
        graph: The arrays to read now; replaced once, when the copy is complete.
        shared: The copy; None until it is in use.
    """

    def __init__(self, graph: GraphArrays, memory_budget: int | None, shared: SharedGraph | None = None) -> None:
        self.graph = graph if shared is None else shared.graph
        self.shared = shared
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if shared is None:
            expect_random_access(graph)
            self.want_copy(memory_budget)
        weakref.finalize(self, self._stop.set).atexit = False

    def want_copy(self, memory_budget: int | None, shared: SharedGraph | None = None) -> None:
        """Uses a copy that exists by now, or else has one made if there is none and this budget allows it; see ``GraphMemory``.

        One caller at a time.
        """
        if self.shared is not None or self.is_copying:
            return
        if shared is not None:
            self.graph, self.shared = shared.graph, shared
        elif copy_fits(self.graph, memory_budget):
            self._thread = threading.Thread(
                target=_copy_in_background, args=(weakref.ref(self), self.graph, self._stop), name="gnnkit-graph-memory", daemon=True
            )
            self._thread.start()

    @property
    def copied_bytes(self) -> int:
        """Bytes of the copy, 0 until it is in use."""
        return 0 if self.shared is None else self.shared.nbytes

    @property
    def is_copying(self) -> bool:
        """Whether the copy is being made."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self, timeout_s: float) -> bool:
        """Waits for the copy, if one is being made; whether it is in use then."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self.shared is not None

    def stop(self) -> None:
        """Gives up a copy that is not finished yet."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(10.0)


def _copy_in_background(memory_ref: weakref.ref[GraphMemory], graph: GraphArrays, stop: threading.Event) -> None:
    try:
        shared = share(graph, stop)
    except CopyStopped:
        return
    except OSError as error:
        logger.info("no copy of the graph in huge pages: %s", error)
        return
    memory = memory_ref()
    if memory is not None:
        memory.graph, memory.shared = shared.graph, shared

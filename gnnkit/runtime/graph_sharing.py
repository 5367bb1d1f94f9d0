"""One copy of the graph for all sampling processes: made once on a host, and known to everybody who samples there."""

from __future__ import annotations

import contextlib
from typing import Any

from gnnkit.runtime.graph_handle import GraphHandle
from gnnkit.runtime.shared_graph import SharedGraph
from gnnkit.runtime.supervisor import Supervisor
from gnnkit.runtime.wire import Message


class GraphSharing:
    """What the processes of one crew know of the shared copy.

    A stored graph is read from its file mapping until one process has made the copy; a graph in memory is copied before they start.

    Args:
        graph: The graph; other loaders of this process may have had the copy made, or wait for it.
        memory_budget: Most bytes that the copy of a stored graph may take; None is a quarter of what is free, 0 makes no copy.

    Raises:
        MemoryLimitError: The graph is in memory only, and there is no room for the copy.
    """

    def __init__(self, graph: GraphHandle, memory_budget: int | None) -> None:
        self._graph, self._budget = graph, memory_budget
        self._may_ask = graph.store is not None
        self._copier: int | None = None
        self._told: set[int] = set()
        self._own = graph.share_now() if graph.store is None else None

    def greeting(self, rank: int) -> tuple[tuple[int, ...], dict[str, Any] | None]:
        """The copy's descriptor and description for a process that starts."""
        shared = self.shared
        if shared is None:
            return (), None
        self._told.add(rank)
        return (shared.block.fd,), dict(shared.description)

    def spread(self, crew: Supervisor, *, ask: bool) -> None:
        """Tells every process of the copy; where there is none, ``ask`` has one made."""
        shared = self.shared
        if shared is not None:
            for rank in crew.ready - self._told:
                self._told.add(rank)
                crew.send(rank, "graph", (shared.block.fd,), description=dict(shared.description))
        elif ask and self._may_ask and self._copier is None and crew.ready and self._graph.wants_copy(self, self._budget):
            self._copier = min(crew.ready)
            crew.send(self._copier, "copy")

    def take(self, rank: int, message: Message) -> None:
        """A process has made the copy, or says that it cannot."""
        description, shared = message.body["description"], None
        if description is not None:
            with contextlib.suppress(OSError):  # no address space left: sampling stays on the file mapping
                shared = SharedGraph.attach(message.fds[0], description, self._graph.arrays)
                self._told.add(rank)
        self._may_ask = shared is not None
        self._copier = None
        self._graph.copy_made(self, shared)

    def use(self, fd: int, description: dict[str, Any]) -> None:
        """Takes over a copy that another process of this host has made.

        Args:
            fd: Its descriptor; taken over.
            description: What came with it.

        Raises:
            OSError: The system refuses the mapping.
        """
        self._graph.copy_made(self, SharedGraph.attach(fd, description, self._graph.arrays))

    def lost(self, rank: int) -> None:
        """A process is gone, and perhaps the copy that it was making."""
        self._told.discard(rank)
        if self._copier == rank:
            self.give_up()

    def give_up(self) -> None:
        """Lets another loader have the copy made."""
        self._copier = None
        self._graph.copy_made(self, None)

    @property
    def is_copying(self) -> bool:
        """Whether one of these processes is making the copy."""
        return self._copier is not None

    @property
    def shared(self) -> SharedGraph | None:
        """The copy; None while there is none."""
        return self._own or self._graph.shared

    @property
    def nbytes(self) -> int:
        """Bytes of the copy, 0 while there is none."""
        shared = self.shared
        return 0 if shared is None else shared.nbytes

"""The copy of a graph that processes of one host share."""

from __future__ import annotations

import os
from typing import Any

from gnnkit.runtime.graph_memory import SharedGraph, share


def shared(graph: Any, most: int | None = None) -> Any:
    """The copy, of so many bytes at most, as the process has it that makes it."""
    return share(graph, most)


def attached(made: Any, known: Any = None) -> Any:
    """The same, as another process finds it, which may know the graph."""
    return SharedGraph.attach(os.dup(made.block.fd), made.description, known)

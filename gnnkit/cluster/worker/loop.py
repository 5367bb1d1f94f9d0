"""The work of a sampling process: the loop of ``gnnkit.runtime.worker`` with a way to other hosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gnnkit.runtime.entry import ParentWatch
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.runtime.wire import Wire
from gnnkit.runtime.worker import OtherHosts, WorkerLoop
from gnnkit.storage.store import Store


def connected_loop(wire: Wire, watch: ParentWatch) -> WorkerLoop:
    """The loop of a process that may ask other hosts for their parts."""
    return WorkerLoop(wire, watch, _connect)


def _connect(setup: Mapping[str, Any], graph: GraphHandle, store: Store | None, threads: int) -> OtherHosts | None:
    """The way to other hosts; None where there are none."""
    if setup["hosts"] is None or store is None:
        return None
    from gnnkit.cluster.worker.owners import Spreading  # the network, which a run on one host does without

    return Spreading(setup["hosts"], store, threads)

"""The part services of this process: one for each store, whatever number of loaders use it."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gnnkit.cluster.part_spec import ServiceSpec
from gnnkit.cluster.part_supervisor import PartServiceSupervisor
from gnnkit.runtime.graph_handle import GraphHandle

# Ending a process takes no longer: it is killed at last.
_END_S = 12.0
_keepers: dict[tuple[Any, ...], PartServiceSupervisor] = {}
_ports: dict[tuple[Any, ...], int] = {}
_lock = threading.RLock()


def keep_service(spec: ServiceSpec, graph: GraphHandle, user: int, stop: Callable[[], None]) -> PartServiceSupervisor:
    """The part service of this process for a store, started unless it runs.

    Args:
        spec: What it serves, and where.
        graph: The graph.
        user: Number of whoever needs it, for ``PartServiceSupervisor.leave``.
        stop: Ends that user; called before the process ends.

    Raises:
        StartTimeout: It was not ready in time, or ended.
        PlanError: The address is taken, or the system's limits do not allow it.
    """
    key = (os.getpid(), *spec.key)  # a forked child has none of its parent's
    while True:
        with _lock:
            keeper = _keepers.get(key)
            if keeper is None:
                # Other hosts know the address: a service that comes back is found where the last one was.
                known = _ports.get(key, spec.port)
                keeper = _keepers[key] = PartServiceSupervisor(
                    replace(spec, port=known), graph, {user: stop}, lambda ended: _forget(key, ended)
                )
                _ports[key] = keeper.spec.port
                weakref.finalize(keeper, _linger, weakref.ref(keeper))  # at the end of the interpreter
                return keeper
        if keeper.enter(user, stop):
            return keeper
        keeper.finished.wait(_END_S)  # it has begun to end; the next one takes its address over


def _forget(key: tuple[Any, ...], keeper: PartServiceSupervisor) -> None:
    with _lock:
        if _keepers.get(key) is keeper:
            del _keepers[key]


def _linger(reference: weakref.ref[PartServiceSupervisor]) -> None:
    keeper = reference()
    if keeper is not None:
        keeper.linger()

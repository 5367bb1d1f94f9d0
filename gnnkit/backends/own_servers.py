"""Servers that loaders of this process have started for themselves, and that go with the last of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gnnkit.backends.server_pool import ServerWorkerPool
from gnnkit.backends.stored_graph import TemporaryStore, temporary_store
from gnnkit.cluster.serving.fleet import ServerFleet
from gnnkit.cluster.serving.server_state import processes_of
from gnnkit.cluster.serving.spec import ServerSpec
from gnnkit.cluster.serving.unix_join import join_folder
from gnnkit.errors import GnnkitError, WorkerStopped
from gnnkit.events import EventSink
from gnnkit.plan import LoaderPlan, StoreRef
from gnnkit.runtime.graph_handle import GraphHandle
from gnnkit.runtime.preflight import check_descriptors, check_start_memory
from gnnkit.runtime.process_status import ProcessStatus

if TYPE_CHECKING:
    from gnnkit.backends.graph_store import GraphStore
    from gnnkit.backends.worker_pool import OnStarted


# Between two looks at loaders that may not be used.
_LEAST_GAP_S, _MOST_GAP_S = 0.05, 30.0


class OwnServers:
    """Servers of this process.

    Args:
        options: The backend's options.
        plan: The plan of the first loader.
        graph: The graph.
        events: Receives the stages of a build, where the graph is only in memory.

    Attributes:
        store: What they serve.
        fleet: The servers.

    Raises:
        PlanError: The system's limits do not allow it, or there is no folder for logs or for a graph in memory.
        MemoryLimitError: There is no memory for it.
        StoreError: A graph in memory cannot be written.
    """

    def __init__(self, options: GraphStore, plan: LoaderPlan, graph: GraphHandle, events: EventSink) -> None:
        workers = options.num_servers * options.workers_per_server
        check_descriptors(options.num_servers + workers)
        check_start_memory(options.num_servers + workers, options.threads_per_worker, graph.arrays.schema)
        self._temporary: TemporaryStore | None = None
        if plan.store is None:
            self._temporary = temporary_store(graph, events)
        self.store: StoreRef = plan.store if self._temporary is None else self._temporary.reference  # type: ignore[assignment]
        spec = ServerSpec(
            self.store.path,
            self.store.fingerprint,
            options.num_servers,
            options.workers_per_server,
            options.threads_per_worker,
            addresses=() if options.address is None else (str(options.address),),
            join_timeout_s=options.join_timeout_s,
            start_timeout_s=plan.runtime.start_timeout_s,
            log_dir=options.log_dir,
            memory_budget=plan.runtime.memory_budget,
        )
        self.fleet = ServerFleet(spec)
        self._stopped = threading.Event()
        if options.idle_timeout_s is None:
            return
        try:
            threading.Thread(target=_tidy, args=(self._stopped, options.idle_timeout_s), name="gnnkit-idle", daemon=True).start()
        except BaseException:  # an interrupt
            self.stop()
            raise

    @property
    def ranks(self) -> range:
        """Their numbers."""
        return self.fleet.spec.ranks

    @property
    def error(self) -> GnnkitError | None:
        """What one of them has died of, where nobody has started it again; that somebody has had it ended comes first."""
        errors = [error for rank in self.ranks if (error := self.error_of(rank)) is not None]
        return next((error for error in errors if isinstance(error, WorkerStopped)), errors[0] if errors else None)

    def check(self) -> None:
        """Raises what keeps them from coming."""
        error = self.error
        if error is not None:
            raise error

    def error_of(self, rank: int) -> GnnkitError | None:
        """What one of them has died of, where nobody has started it again."""
        return self.fleet.error_of(rank)

    def revive(self) -> None:
        """Starts those again that are not there."""
        self.fleet.revive()

    def restart(self) -> None:
        """Ends them and starts them again."""
        self.fleet.restart()

    @property
    def pids(self) -> frozenset[int]:
        """Of those that are there."""
        return frozenset(server["pid"] for server in self.fleet.status()["servers"] if server["pid"] is not None)

    def are_there_without(self, pids: frozenset[int]) -> bool:
        """Whether all are ready, and none of them is one of ``pids``."""
        return self.fleet.state == "ready" and len(self.pids) == len(self.ranks) and self.pids.isdisjoint(pids)

    def statuses(self) -> Iterator[ProcessStatus]:
        """What the system says of each of them and of its sampling processes."""
        return processes_of(self.fleet.status())

    def stop(self) -> None:
        """Ends them."""
        self._stopped.set()
        self.fleet.stop()
        self._temporary = None


def _tidy(stopped: threading.Event, idle_timeout_s: float) -> None:
    """A thread: takes the places of loaders that are not used, also while nothing else of gnnkit's runs; the last one's servers end."""
    from gnnkit.backends.pool_registry import crews

    gap_s = max(_LEAST_GAP_S, min(idle_timeout_s / 4, _MOST_GAP_S))
    while not stopped.wait(gap_s):
        with crews().lock:
            crews().tidy()


def hire_own_servers(options: GraphStore, plan: LoaderPlan, graph: GraphHandle, events: EventSink, newcomer: OnStarted) -> ServerWorkerPool:
    """Starts servers and joins them; see ``PoolOptions.hire``."""
    own = OwnServers(options, plan, graph, events)
    try:
        servers = join_folder(own.fleet.folder, "starter", plan.runtime.start_timeout_s, events, own.store.fingerprint, own.check)
    except BaseException:
        own.stop()
        raise
    return ServerWorkerPool(servers, newcomer, own)

"""Sampling in processes beside the trainer, which hand batches over in shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gnnkit.arguments import checks_calls
from gnnkit.backends.base import BatchStream, PoolBackend
from gnnkit.bounds import MOST_THREADS, check_seconds, keep_whole_number
from gnnkit.cluster.hosts import split_address
from gnnkit.errors import PlanError
from gnnkit.events import EventSink
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.runtime.limits import auto_threads

if TYPE_CHECKING:
    from gnnkit.runtime.pool import WorkerPool

# Batches under way in a process where parts are on other hosts, at least.
_LEAST_CONCURRENT = 4


@checks_calls()
@dataclass(frozen=True)
class Colocated(PoolBackend):
    """Samples in background processes of this host, shared by all loaders on the same graph with the same options, and ended with the last.

    Batches are those of ``InProcess``, bit for bit. ``docs/workers.md`` describes the processes.

    Attributes:
        num_workers: Processes, or "auto": the processors this trainer may use, less one, at most 16.
        threads_per_worker: Sampling threads in each.
        worker_concurrency: Batches that a process is given at a time, 1 to 32; at least 4 where parts are on other hosts. Small batches
            that are sampled together count as one.
        channel_size: The most memory for batches under way, in bytes or as "4GB"; None: as much as they take.
        process_start_gap_seconds: The trainer of local rank ``i`` waits ``i`` times as long before it starts processes. Start-up needs no
            such gap: memory is shared.
        max_concurrent_producer_inits: Processes of this loader that may be starting at the same time; None: all.
        max_restarts: How often, in all, a process that dies is started again, its batches sampled again and a warning given; after
            that, its end is an error.
        idle_timeout_s: Seconds after which a loader that is not used gives its memory up, and processes that no loader uses end; both are
            there again at the next use. None: never; nor on several hosts, which count on each other.
        hosts: ``"address:port"`` of every host's part service, the same list on each; None takes the process group's ranks. With a
            list, ``$GNNKIT_TOKEN`` must hold the same secret everywhere, and ``$GNNKIT_HOST`` this host's place in it where
            addresses do not tell.
        interface: Name or address of the interface that this host serves its parts on; None: that of its address in ``hosts``, or the one
            that the process group was reached by. A run on one host listens nowhere.
        linger_timeout_s: Seconds that a process which has finished early goes on serving hosts that have not, when it is about to end.
        log_dir: Folder for the processes' logs; None: ``$GNNKIT_HOME``, the user's runtime or state folder, or the temporary one.

    Raises:
        PlanError: A value is unusable.

    Example:
        >>> import gnnkit
        >>> data = gnnkit.datasets.cora()
        >>> backend = gnnkit.Colocated(num_workers=1)
        >>> with gnnkit.GraphLoader.from_pyg(data, input_nodes="train", num_neighbors=[5, 5], backend=backend) as loader:
        ...     print(loader.peek().batch_size)
        140
    """

    num_workers: int | Literal["auto"] = "auto"
    threads_per_worker: int = 1
    worker_concurrency: int = 2
    channel_size: int | str | None = None
    process_start_gap_seconds: float = 0.0
    max_concurrent_producer_inits: int | None = None
    max_restarts: int = 0
    idle_timeout_s: float | None = 600.0
    hosts: tuple[str, ...] | None = None
    interface: str | None = None
    linger_timeout_s: float = 3600.0
    log_dir: str | None = None

    def __post_init__(self) -> None:
        self.keep_pool_options()
        if self.num_workers != "auto":
            keep_whole_number(self, "num_workers", 1, MOST_THREADS, instead="'auto' or ")
        if self.max_concurrent_producer_inits is not None:
            keep_whole_number(self, "max_concurrent_producer_inits", 1)
        check_seconds("process_start_gap_seconds", self.process_start_gap_seconds, 0.0)
        check_seconds("linger_timeout_s", self.linger_timeout_s, 0.0)
        self._check_hosts()

    def _check_hosts(self) -> None:
        if self.interface == "":
            raise PlanError("interface must be the name or address of an interface, got ''")
        if self.hosts is None:
            return
        if not isinstance(self.hosts, (list, tuple)) or not self.hosts:
            raise PlanError(f"hosts must be a list of addresses, got {self.hosts!r}", "for example ('10.0.0.1:7000', '10.0.0.2:7000')")
        for address in self.hosts:
            split_address(address)
        if len(set(self.hosts)) < len(self.hosts):
            raise PlanError(f"hosts names an address twice: {list(self.hosts)}", "every host needs an address and port of its own")
        object.__setattr__(self, "hosts", tuple(self.hosts))

    def open(self, plan: LoaderPlan, graph: GraphHandle, events: EventSink) -> BatchStream:
        """Starts the processes and waits until they are ready."""
        is_spread = plan.placement is not None and not plan.placement.is_replicated  # batches wait for other hosts most of the time
        return self._open(plan, graph, events, _LEAST_CONCURRENT if is_spread else 1, samples_here=True, has_other_hosts=is_spread)

    def open_pool(self, plan: LoaderPlan, graph: GraphHandle, events: EventSink) -> WorkerPool:
        """Makes the workers of processes, of which none is started yet; see ``PoolBackend.open_pool``."""
        from gnnkit.backends.host_pool import open_colocated  # heavy

        workers = self.num_workers if isinstance(self.num_workers, int) else max(1, auto_threads() // self.threads_per_worker)
        return open_colocated(self, workers, plan, graph)

"""Sampling by servers that hold the graph: this process's own, others of this host, or those of other hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gnnkit.arguments import checks_calls
from gnnkit.backends.base import BatchStream, PoolBackend, folder_or_none
from gnnkit.bounds import MOST_THREADS, check_seconds, keep_whole_number
from gnnkit.cluster.serving.spec import UNIX_PREFIX, address_text, has_any_port, remember_token, split_place, threads_for
from gnnkit.errors import PlanError
from gnnkit.events import EventSink
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.graph_memory import GraphHandle

if TYPE_CHECKING:
    from gnnkit.runtime.pool import WorkerPool


@checks_calls()
@dataclass(frozen=True)
class GraphStore(PoolBackend):
    """Samples in servers, which hold the graph for any number of trainers; the same batches as ``InProcess``, bit for bit.

    Without an address it starts servers of its own, shared by all loaders of this process on the same graph with the same options, and
    ended with the last. With one, it joins servers that ``gnnkit.serve`` or ``gnnkit serve`` has started.
    ``docs/servers.md`` describes them.

    Attributes:
        num_servers: Servers to start; those that are joined say how many they are.
        workers_per_server: Sampling processes of each server that is started.
        threads_per_worker: Sampling threads of each of those.
        address: Where servers are: ``"unix:/folder"`` or the folder, on this host; ``"10.0.0.1:7000"``, or several of these, on others;
            ``"127.0.0.1:0"`` starts servers of its own, and joins them as if they were on another host. None starts some of its own.
        worker_concurrency: Batches that a sampling process is given at a time by each loader, 1 to 32. Small batches that are sampled
            together count as one.
        channel_size: The most memory for batches under way, in bytes or as "4GB"; None: as much as they take.
        max_restarts: How often, in all, a server or sampling process that dies is waited for, or started again where it is this
            process's own, its batches sampled again and a warning given; after that, its end is an error.
        join_timeout_s: Seconds to wait for servers that are not there yet.
        idle_timeout_s: Seconds after which a loader that is not used gives its memory up; it takes it again at its next use. None: never.
        tls_ca: PEM file of the certificate that servers of other hosts show, or of its issuer; None: not encrypted.
        log_dir: Folder for logs of what is started here; None: as for ``Colocated``.

    ``token`` is what the servers want to hear: ``GraphStoreServers.token``, or what they were given. It is part of no plan. None: that in
    the servers' folder, ``$GNNKIT_TOKEN``, or what is in the file ``$GNNKIT_TOKEN_FILE``.

    Raises:
        PlanError: A value is unusable.

    Example:
        >>> import gnnkit
        >>> data = gnnkit.datasets.cora()
        >>> backend = gnnkit.GraphStore(num_servers=1)
        >>> with gnnkit.GraphLoader.from_pyg(data, input_nodes="train", num_neighbors=[5, 5], backend=backend) as loader:
        ...     print(loader.peek().batch_size)
        140
    """

    num_servers: int = 2
    workers_per_server: int = 1
    threads_per_worker: int = 1
    address: str | Path | Sequence[str] | None = None
    token: InitVar[str | None] = None
    worker_concurrency: int = 2
    channel_size: int | str | None = None
    max_restarts: int = 0
    join_timeout_s: float = 600.0
    idle_timeout_s: float | None = 600.0
    tls_ca: str | None = None
    log_dir: str | None = None

    def __post_init__(self, token: str | None) -> None:
        object.__setattr__(self, "tls_ca", folder_or_none("tls_ca", self.tls_ca))
        self.keep_pool_options()
        for name in ("num_servers", "workers_per_server"):
            keep_whole_number(self, name, 1, MOST_THREADS)
        check_seconds("join_timeout_s", self.join_timeout_s, 0.1)
        if self.address is not None:
            object.__setattr__(self, "address", address_text(self.address))
        if token is not None:
            if self.address is None:
                raise PlanError(
                    "token=... without address=...: servers of this process's own need none", "leave it out, or name the servers"
                )
            remember_token(self.address, token)

    @property
    def starts_servers(self) -> bool:
        """Whether it starts servers of its own."""
        return self.address is None or (self.folder is None and has_any_port(str(self.address)))

    @property
    def folder(self) -> Path | None:
        """The folder of servers of this host; None where there is no address, or one of another kind."""
        text = str(self.address or "")
        return Path(text.removeprefix(UNIX_PREFIX)) if text.startswith(UNIX_PREFIX) else None

    def open(self, plan: LoaderPlan, graph: GraphHandle, events: EventSink) -> BatchStream:
        """Starts or joins servers, and waits until all are there."""
        is_remote = self.address is not None and self.folder is None  # batches wait for other hosts most of the time
        least = threads_for(len(split_place(self.address)[1])) if is_remote else 1
        samples_here = self.starts_servers or self.folder is not None
        return self._open(plan, graph, events, least, samples_here=samples_here, has_other_hosts=is_remote)

    def open_pool(self, plan: LoaderPlan, graph: GraphHandle, events: EventSink) -> WorkerPool:
        """Finds the servers' sampling processes; see ``PoolBackend.open_pool``."""
        from gnnkit.backends.server_pool import open_local_servers, open_receiver  # heavy

        if plan.store is None and not self.starts_servers:
            raise PlanError(
                "the graph is only in memory, and servers that are joined have a store", "use from_store(), or leave address out"
            )
        open_servers = open_local_servers if self.address is None or self.folder is not None else open_receiver
        return open_servers(self, plan, graph, events)

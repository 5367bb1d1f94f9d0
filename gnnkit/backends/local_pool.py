"""Sampling processes that this process starts, with what each of them has to be told."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from gnnkit.backends.hosts import HostLink, link_hosts
from gnnkit.cluster import worker
from gnnkit.errors import StartTimeout
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.children import ChildProcess
from gnnkit.runtime.graph_handle import GraphHandle
from gnnkit.runtime.graph_sharing import GraphSharing
from gnnkit.runtime.preflight import check_descriptors, check_start_memory
from gnnkit.runtime.process_status import ProcessStatus, lane_of, look_at
from gnnkit.runtime.registry import RunFolder, new_run
from gnnkit.runtime.supervisor import Death, Supervisor, SupervisorOptions
from gnnkit.runtime.wire import Message

if TYPE_CHECKING:
    from gnnkit.backends.colocated import Colocated
    from gnnkit.backends.worker_pool import OnStarted


class LocalWorkerPool(Supervisor):
    """Processes of this process's own; see ``WorkerPool``.

    Args:
        options: How they are started.
        folder: Where their logs go.
        sharing: The graph's copy.
        newcomer: Called with each process that has been started.

    Attributes:
        setup: What a process is told first, beside the graph's copy.
        link: The connection to other hosts; None where every part is on this one.
    """

    def __init__(self, options: SupervisorOptions, folder: RunFolder, sharing: GraphSharing, newcomer: OnStarted) -> None:
        super().__init__(options, folder, _weakly(self._introduce))
        self.setup: dict[str, Any] = {}
        self.link: HostLink | None = None
        self._sharing, self._newcomer = sharing, newcomer

    def _introduce(self, child: ChildProcess) -> None:
        """Tells a process that has just been started what it is there for."""
        fds, description = self._sharing.greeting(child.rank)
        child.wire.send("setup", fds, graph=description, threads=self.options.threads, **self.setup)
        self._newcomer(child.rank)

    @property
    def expected(self) -> int:
        """How many there are once all are there."""
        return self.options.num_workers

    @property
    def pids(self) -> dict[int, int]:
        """Pids by number."""
        return {rank: child.pid for rank, child in self.alive.items()}

    @property
    def is_starting(self) -> bool:
        """Whether one is not ready yet."""
        return bool(self.starting)

    @property
    def is_reporting(self) -> bool:
        """Never: that a process is ready comes on the same way as all that it has reported."""
        return False

    @property
    def logs(self) -> str:
        """The folder of their logs."""
        return str(self.folder.path)

    @property
    def graph_bytes(self) -> int:
        """Bytes of the graph's copy, 0 while there is none."""
        return self._sharing.nbytes

    @property
    def can_idle(self) -> bool:
        """Whether nobody counts on this host until the end."""
        return self.link is None

    def lane(self, rank: int, thread: int | None) -> str:
        """See ``WorkerPool.lane``."""
        return lane_of(self.options.lane.format(rank=rank), thread)

    def statuses(self) -> Iterator[ProcessStatus]:
        """See ``WorkerPool.statuses``."""
        for rank, child in sorted(self.alive.items()):
            status = look_at(self.options.lane.format(rank=rank), child.pid, child.log, self.signs(rank).busy_s)
            yield status if rank in self.ready or status.state != "running" else replace(status, state="starting")

    def describe(self, rank: int) -> str | None:
        """Who a process is, and what the system says it is doing."""
        child = self.alive.get(rank)
        return None if child is None else f"{self.name(rank)} is {child.state()}"

    def listen(self) -> Iterator[tuple[int, Message | Death]]:
        """See ``Supervisor.listen``; what concerns the graph's copy is taken."""
        for rank, what in super().listen():
            if isinstance(what, Death) or what.kind == "retired":
                self._sharing.lost(rank)
            elif what.kind == "graph":
                self._sharing.take(rank, what)
                continue
            yield rank, what

    def attend(self, *, ask: bool) -> None:
        """Tells every process of the graph's copy; ``ask`` has one made."""
        self._sharing.spread(self, ask=ask)

    def overdue(self, timeout_s: float) -> tuple[int, StartTimeout] | None:
        """See ``Supervisor.overdue``."""
        found = super().overdue(timeout_s)
        if found is not None:
            self._sharing.lost(found[0])
        return found

    def check(self) -> None:
        """Raises what keeps this host's part service from coming back."""
        if self.link is not None:
            self.link.check()

    def details(self) -> Mapping[str, Any]:
        """Facts about other hosts."""
        return {} if self.link is None else self.link.details()

    def stop(self) -> None:
        """Ends them; does nothing in a forked child."""
        if os.getpid() != self._owner:
            return
        self._sharing.give_up()
        super().stop()
        if self.link is not None:
            self.link.close()


def hire_colocated(options: Colocated, num_workers: int, plan: LoaderPlan, graph: GraphHandle, newcomer: OnStarted) -> LocalWorkerPool:
    """The crew of ``Colocated``; see ``PoolOptions.hire``."""
    _wait_for_turn(options.process_start_gap_seconds)
    check_descriptors(num_workers)
    check_start_memory(num_workers, options.threads_per_worker, graph.arrays.schema)
    sharing = GraphSharing(graph, plan.runtime.memory_budget)
    crew_options = SupervisorOptions(num_workers, options.threads_per_worker, worker.__name__, options.max_concurrent_producer_inits)
    store = None if plan.store is None else asdict(plan.store)
    folder = new_run(options.log_dir, {"store": None if store is None else store["path"]})
    crew = LocalWorkerPool(crew_options, folder, sharing, newcomer)
    try:
        crew.link = link_hosts(options, plan, graph, folder.path.parent, crew.stop)
    except BaseException:
        crew.stop()
        raise
    # On several hosts nobody is idle: they count on each other until the end.
    idle_s, hosts = (options.idle_timeout_s, None) if crew.link is None else (None, crew.link.greeting())
    crew.setup = {"store": store, "idle_s": idle_s, "hosts": hosts}
    return crew


def _wait_for_turn(gap_s: float) -> None:
    """The gap between the trainers of one host that the user asked for."""
    rank = os.environ.get("LOCAL_RANK", "0")
    if rank.isdigit() and gap_s:
        threading.Event().wait(int(rank) * gap_s)


def _weakly(method: Callable[[ChildProcess], None]) -> Callable[[ChildProcess], None]:
    """A bound method that does not keep its object."""
    weak = weakref.WeakMethod(method)

    def call(child: ChildProcess) -> None:
        target = weak()
        if target is not None:
            target(child)

    return call

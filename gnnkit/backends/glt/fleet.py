"""The processes that run graphlearn-torch for one loader, from their start to the first one's death: after that, all are replaced."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gnnkit.backends.batch_wait import SLICE_S
from gnnkit.backends.glt import driver
from gnnkit.backends.glt.cluster import Cluster
from gnnkit.errors import GnnkitError, StartTimeout, WorkerDied
from gnnkit.events import EventSink, Stage
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.children import ChildProcess
from gnnkit.runtime.graph_handle import GraphHandle
from gnnkit.runtime.preflight import check_descriptors
from gnnkit.runtime.registry import new_run
from gnnkit.runtime.supervisor import Death, Supervisor, SupervisorOptions
from gnnkit.runtime.wire import Message

if TYPE_CHECKING:
    from gnnkit.backends.glt.options import Glt

_AGAIN = "iterate the loader again: its processes are started anew"
_AGAIN_EVERYWHERE = "make the loader again on every host"


class Fleet:
    """Starts the processes, introduces them to each other, and listens to them.

    Args:
        options: The backend's options.
        plan: The plan.
        graph: The graph.
        events: Receives the stage "start".

    Attributes:
        crew: The processes; the first one serves the trainer.
        lanes: Workers that can be given batches.
        failure: Why they are of no use any more, or None.
    """

    def __init__(self, options: Glt, plan: LoaderPlan, graph: GraphHandle, events: EventSink) -> None:
        self._options, self._plan, self._events = options, plan, events
        self._owner = os.getpid()
        self.failure: GnnkitError | None = None
        self.lanes = 0
        self._ports: dict[str, int] | None = None
        self._joined = False
        self._cluster = Cluster(options, plan, graph.arrays.num_parts)
        count = len(self._cluster.members)
        check_descriptors(count)
        self._shared = graph.share_now() if plan.store is None else None
        folder = new_run(options.log_dir, {"store": None if plan.store is None else plan.store.path})
        crew_options = SupervisorOptions(count, 1, module=driver.__name__, environment=self._cluster.environment())
        self.crew = Supervisor(crew_options, folder, _greeter(weakref.ref(self)))

    def start(self) -> None:
        """Starts every process and waits until all have found each other.

        Raises:
            StartTimeout: One was not ready in time, or ended.
            PlanError: graphlearn-torch cannot be used.
        """
        count, ready = self.crew.options.num_workers, 0
        self.crew.start_missing()
        with Stage(self._events, "start", label="graphlearn-torch", total=count, unit="processes") as stage:
            while ready < count:
                for _, message in self.listen():
                    if message.kind == "ready":
                        self.lanes = max(self.lanes, message.body["lanes"])
                        ready += 1
                        stage.update(ready)
                self._introduce()
                overdue = self.crew.overdue(self._plan.runtime.start_timeout_s)
                failure = self.failure or (None if overdue is None else overdue[1])
                if failure is not None:
                    raise failure
                if ready < count:
                    self.crew.poller().poll(SLICE_S * 1000)

    def greet(self, child: ChildProcess) -> None:
        """Tells a process that has just been started what it is there for."""
        member, shared = self._cluster.members[child.rank], self._shared
        child.wire.send(
            "setup",
            () if shared is None else (shared.block.fd,),
            plan=self._plan.to_json(),
            graph=None if shared is None else dict(shared.description),
            parts=list(self._cluster.parts) if member.part is None else [member.part],
            role=member.role,
            address=self._cluster.address,
            open=self._cluster.opens() if child.rank == 0 else {},
            options={
                "num_workers": self._options.num_workers,
                "graph_mode": self._options.graph_mode,
                "worker_concurrency": self._options.worker_concurrency,
                "channel_bytes": self._options.channel_bytes,
                "rpc_timeout_s": self._options.rpc_timeout_s,
            },
            log=str(child.log),
        )

    def _introduce(self) -> None:
        """Tells every process where the others are, once that is known."""
        if self._joined or self._ports is None:
            return
        met = self._cluster.meeting(self._ports)
        if met is not None:
            self._joined = True
            for rank, member in enumerate(self._cluster.members):
                self.crew.send(rank, "join", place=self._cluster.place(member, self._ports, met))

    def listen(self) -> Iterator[tuple[int, Message]]:
        """Yields what has arrived; a death becomes ``failure``."""
        for rank, what in self.crew.listen():
            if isinstance(what, Death):
                self.failure = self.failure or self._explained(what.error)
            elif what.kind == "event":
                if rank == 0:
                    self._ports = what.body["ports"]
                    self._cluster.announce(self._ports)
            else:
                yield rank, what

    @property
    def can_start_again(self) -> bool:
        """Whether this host can replace the processes by itself: those of other hosts would not meet new ones."""
        return self._cluster.hosts.count == 1

    def _explained(self, error: GnnkitError) -> GnnkitError:
        if isinstance(error, (WorkerDied, StartTimeout)):
            explained = type(error)(error.message, _AGAIN if self.can_start_again else _AGAIN_EVERYWHERE)
            explained.__cause__ = error.__cause__
            return explained
        return error

    def close(self) -> None:
        """Ends the processes, and with them graphlearn-torch's own; does nothing in a forked child."""
        if os.getpid() == self._owner:
            self.crew.stop()


def _greeter(fleet: weakref.ref[Fleet]) -> Any:
    def greet(child: ChildProcess) -> None:
        target = fleet()
        if target is not None:
            target.greet(child)

    return greet

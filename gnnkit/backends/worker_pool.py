"""The processes that sample for the loaders of a pool: its own, or the workers of servers; a pool treats both alike."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any, Protocol

from gnnkit.errors import GnnkitError
from gnnkit.events import EventSink
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.runtime.process_status import ProcessStatus
from gnnkit.runtime.supervisor import Exit
from gnnkit.runtime.vitals import Signs
from gnnkit.runtime.wire import Message

# Called with the number of a process that can be told of loaders from now on.
OnStarted = Callable[[int], None]


class WorkerPool(Protocol):
    """Processes that sample, by number.

    Only the holder of the registry's lock may use them, but for ``pids``, ``logs``, ``graph_bytes``, ``details`` and ``statuses``.
    """

    @property
    def expected(self) -> int:
        """The number of processes once all have started."""
        ...

    @property
    def pids(self) -> Mapping[int, int]:
        """Pids of those that are there, by number."""
        ...

    @property
    def ready(self) -> Set[int]:
        """Those that can be given steps."""
        ...

    @property
    def is_starting(self) -> bool:
        """Whether somebody is awaited; such a wait has a deadline of its own."""
        ...

    @property
    def is_reporting(self) -> bool:
        """Whether more may come of what those that are there did to start, though they can be given steps."""
        ...

    @property
    def logs(self) -> str:
        """The folder of their logs."""
        ...

    @property
    def graph_bytes(self) -> int:
        """Bytes of the graph's copy in huge pages, 0 while there is none."""
        ...

    @property
    def can_idle(self) -> bool:
        """Whether loaders that are not used may give their places up."""
        ...

    def lane(self, rank: int, thread: int | None) -> str:
        """Returns the name of a process, or of its thread, which a restart does not change: "process 0", "server 0, process 1"."""
        ...

    def statuses(self) -> Iterator[ProcessStatus]:
        """Yields the process status of each process on this host, servers and helpers included."""
        ...

    def restart(self) -> None:
        """Has all processes end that are this process's own; ``start_missing`` has others come. Their ends are nobody's error.

        Raises:
            PlanError: None is.
        """
        ...

    def describe(self, rank: int) -> str | None:
        """``"sampling process 0 (pid 12) is running"``; None where there is none of that number."""
        ...

    def signs(self, rank: int) -> Signs:
        """Returns the last signs of life of a process."""
        ...

    def send(self, rank: int, kind: str, fds: tuple[int, ...] = (), /, **body: object) -> None:
        """Sends a message to a process; one that is gone gets nothing."""
        ...

    def listen(self) -> Iterator[tuple[int, Message | Exit]]:
        """Yields what has arrived since the last call, and exits after all that the dead had sent.

        "retired" is a process that has ended and is an error for nobody: what it was sent is to be sent again.
        """
        ...

    def poller(self) -> select.poll:
        """Returns a poll object that wakes when something arrives or a process ends."""
        ...

    def settle(self) -> None:
        """Waits for processes that have begun to end, so that the next ``listen`` finds all who died together."""
        ...

    def start_missing(self) -> None:
        """Has those that are not there come back."""
        ...

    def attend(self, *, ask: bool) -> None:
        """Does what they need beside messages of loaders; ``ask`` where that may cost something."""
        ...

    def overdue(self, timeout_s: float) -> tuple[int, GnnkitError] | None:
        """Somebody who has not come in time, and the error for it."""
        ...

    def check(self) -> None:
        """Raises what keeps an epoch from being sampled."""
        ...

    def details(self) -> Mapping[str, Any]:
        """Facts for people."""
        ...

    def stop(self) -> None:
        """Ends what is this process's own; safe to call twice."""
        ...


class PoolOptions(Protocol):
    """The options of a backend that its pool and sessions use; a frozen dataclass, equal to others with the same values."""

    @property
    def threads_per_worker(self) -> int:
        """Sampling threads of a process."""
        ...

    @property
    def worker_concurrency(self) -> int:
        """Batches that a process is given at a time."""
        ...

    @property
    def channel_size(self) -> int | str | None:
        """The most memory for batches under way, as the user said it."""
        ...

    @property
    def channel_bytes(self) -> int | None:
        """``channel_size`` in bytes."""
        ...

    @property
    def max_restarts(self) -> int:
        """The number of exits that are followed by a restart instead of an error."""
        ...

    @property
    def idle_timeout_s(self) -> float | None:
        """Seconds after which a loader that is not used gives its place up; None: never."""
        ...

    def open_pool(self, plan: LoaderPlan, graph: GraphHandle, events: EventSink, on_started: OnStarted) -> WorkerPool:
        """Finds the processes for a pool, which may take a while.

        Args:
            plan: The plan of the pool's first loader.
            graph: The graph.
            events: Receives progress.
            on_started: Called with each process that can be told of loaders from now on.

        Raises:
            PlanError: The system's limits do not allow it, there is no folder for logs, or hosts or servers are not clear.
            MemoryLimitError: There is no memory for it.
            StartTimeout: Another host, or a server, was not there in time.
        """
        ...

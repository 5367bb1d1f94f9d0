"""A pool of sampling processes that this process starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from gnnkit.errors import GnnkitError
from gnnkit.runtime.graph_memory import GraphSharing
from gnnkit.runtime.pool import OnStarted, WorkerPool, weakly
from gnnkit.runtime.process_status import ProcessStatus, look_at
from gnnkit.runtime.runs import RunFolder
from gnnkit.runtime.supervisor import ChildProcess, Exit, Supervisor, SupervisorOptions
from gnnkit.runtime.wire import Message


class LocalWorkerPool(Supervisor, WorkerPool):
    """Processes of this process's own; see ``WorkerPool``.

    Args:
        options: How they are started.
        folder: Where their logs go.
        sharing: The graph's copy.
        on_started: Called with each process that has been started.

    Attributes:
        setup: What a process is told first, beside the graph's copy.
        sharing: The graph's copy.
    """

    def __init__(self, options: SupervisorOptions, folder: RunFolder, sharing: GraphSharing, on_started: OnStarted) -> None:
        super().__init__(options, folder, weakly(self._set_up), sharing)
        self.setup: dict[str, Any] = {}
        self.sharing, self._on_started = sharing, on_started
        self._traffic: dict[int, tuple[int, int]] = {}  # bytes that each process has received from other hosts and sent to them

    def _set_up(self, child: ChildProcess) -> None:
        """Tells a process that has just been started what it is there for."""
        fds, description = self.sharing.setup_message(child.rank)
        child.wire.send("setup", fds, graph=description, threads=self.options.threads, **self.setup)
        self._on_started(child.rank)

    @property
    def expected(self) -> int:
        """The number of processes once all have started."""
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
    def logs(self) -> str:
        """The folder of their logs."""
        return str(self.folder.path)

    @property
    def graph_bytes(self) -> int:
        """Bytes of the graph's copy, 0 while there is none."""
        return self.sharing.nbytes

    def listen(self) -> Iterator[tuple[int, Message | Exit]]:
        """Yields what has arrived, and notes the bytes on the wire."""
        for rank, what in super().listen():
            if isinstance(what, Message) and "traffic" in what.body:
                self._traffic[rank] = what.body["traffic"]
            yield rank, what

    @property
    def wire(self) -> dict[str, int]:
        """Bytes of messages from and to other hosts since the processes were started."""
        received, sent = map(sum, zip((0, 0), *self._traffic.values(), strict=True))
        return {"received": received, "sent": sent}

    def lane(self, rank: int) -> str:
        """Returns the name of a process."""
        return self.options.lane.format(rank=rank)

    def statuses(self) -> Iterator[ProcessStatus]:
        """Yields the status of each process."""
        for rank, child in sorted(self.alive.items()):
            status = look_at(self.lane(rank), child.pid, child.log, self.signs(rank).busy_s)
            yield status if rank in self.ready or status.state != "running" else replace(status, state="starting")

    def describe(self, rank: int) -> str | None:
        """Returns a process's name and its state in the system, for messages; None where it is not running."""
        child = self.alive.get(rank)
        return None if child is None else f"{self.name(rank)} is {child.state()}"

    def attend(self, start_timeout_s: float, *, revive: bool) -> tuple[int, GnnkitError] | None:
        """Starts those that are missing, has the graph's copy made, and ends a process past its start deadline."""
        found = None if len(self.ready) == len(self._children) else self.overdue(start_timeout_s)
        if revive:
            self.start_missing()
        self.sharing.spread(self.ready, self.send, ask=revive)
        return found

    def stop(self) -> None:
        """Ends them; does nothing in a forked child."""
        if os.getpid() == self._owner:
            self.sharing.give_up()
            super().stop()

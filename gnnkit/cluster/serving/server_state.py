"""What is known of servers that this process has started, and what that amounts to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gnnkit.cluster.serving.spec import ServerSpec
from gnnkit.cluster.serving.throughput import Throughput
from gnnkit.errors import GnnkitError, WorkerDied
from gnnkit.runtime.process_status import ProcessStatus, look_at
from gnnkit.runtime.remote import fresh

# Of a server that is not there, or has not said yet what it is doing: whoever reads a status finds the same names in it.
_UNHEARD: Mapping[str, Any] = {"pid": None, "parts": None, "clients": 0, "visits": 0, "graph_bytes": 0, "network": None}


@dataclass
class ServerState:
    """Only for the holder of its fleet's lock.

    Attributes:
        spec: What the servers are.
        details: What each server that is there last said of itself, by rank; see ``ServerLoop.details``.
        errors: What each server has died of that nobody has started again.
        addresses: Where each server listens, or has listened.
        restarts: How often one was started again.
        pace: How fast they are.
        last_error: What a server or a worker died of last, in a line; None where all have lived.
    """

    spec: ServerSpec
    details: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    errors: dict[int, GnnkitError] = field(default_factory=dict)
    addresses: dict[int, str] = field(default_factory=dict)
    restarts: int = 0
    pace: Throughput = field(default_factory=Throughput)
    last_error: str | None = None

    def said(self, rank: int, details: Mapping[str, Any]) -> None:
        """A server says what it is doing."""
        for worker in details["workers"]:
            if worker["error"] is not None:
                self.last_error = str(worker["error"]).splitlines()[0]
        self.details[rank] = dict(details)

    def left(self, rank: int) -> None:
        """A server has ended, and what it said of itself means nothing any more."""
        self.details.pop(rank, None)
        self.pace.lost(rank)

    def lost(self, rank: int, error: GnnkitError) -> None:
        """A server has died."""
        self.left(rank)
        self.errors[rank] = error
        self.last_error = error.message.splitlines()[0]

    @property
    def num_ready(self) -> int:
        """Servers all of whose workers are there."""
        return sum(details["state"] == "ready" for details in self.details.values())

    @property
    def state(self) -> str:
        """Says "joining" until all servers and workers are there; then "ready", or "degraded" where one is not."""
        if self.errors or any(details["state"] == "degraded" for details in self.details.values()):
            return "degraded"
        return "ready" if self.num_ready == len(self.spec.ranks) else "joining"

    @property
    def is_deserted(self) -> bool:
        """Whether as many clients as the user said have come, and none is left."""
        wanted, known = self.spec.stop_with_last_client, self.details.values()
        return bool(wanted and known) and self._most("visits") >= wanted and not any(details["clients"] for details in known)

    def _most(self, name: str) -> int:
        return max((int(details[name]) for details in self.details.values()), default=0)

    def check(self) -> None:
        """Raises what keeps the servers from being ready.

        Raises:
            GnnkitError: What a server has died of, or a worker that nobody starts again.
        """
        for error in self.errors.values():
            raise fresh(error)
        for details in self.details.values():
            for worker in details["workers"]:
                if worker["state"] == "gone":
                    raise WorkerDied(str(worker["error"]), "look at the log, or start it again with revive()")

    def status(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        servers = []
        for rank in self.spec.ranks:
            error = self.errors.get(rank)
            state = "joining" if error is None else "gone"
            said, batches = self.details.get(rank, {}), self.pace.batches(rank)
            why = None if error is None else str(error)
            servers.append({**_UNHEARD, "workers": [], "rank": rank, "state": state, **said, "batches": batches, "error": why})
        return {
            "state": self.state,
            "store": self.spec.store,
            "servers": servers,
            "clients": self._most("clients"),
            "visits": self._most("visits"),
            "restarts": self.restarts,
            "last_error": self.last_error,
            "batches": sum(server["batches"] for server in servers),
            "batches_per_s": self.pace.batches_per_s,
        }


def processes_of(status: Mapping[str, Any]) -> Iterator[ProcessStatus]:
    """What the system says of servers and their workers.

    Args:
        status: What ``ServerFleet.status`` gives.
    """
    for server in status["servers"]:
        name = f"server {server['rank']}"
        if server["pid"] is not None:
            yield look_at(name, server["pid"], Path(server["log"]))
        for worker in server["workers"]:
            if worker["pid"] is not None:
                yield look_at(f"{name}, process {worker['worker']}", worker["pid"], Path(worker["log"]))

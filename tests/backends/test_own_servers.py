"""PoolRegistry of servers without servers: what becomes of those that die or are ended, and looks at them meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gnnkit.backends.server_pool import OwnServers, ReceiverPool, ServerWorkerPool
from gnnkit.errors import GnnkitError, WorkerDied, WorkerStopped
from gnnkit.runtime.supervisor import SupervisorOptions
from tests.loader.graphs import make

DIED, STOPPED = WorkerDied("died", None), WorkerStopped("stopped", None)


class Fleet:
    """Servers that have ended."""

    def __init__(self, errors: dict[int, GnnkitError]) -> None:
        self.spec = SimpleNamespace(ranks=range(3))
        self.errors, self.revived = errors, 0

    def error_of(self, rank: int) -> GnnkitError | None:
        """As a fleet's."""
        return self.errors.get(rank)

    def revive(self) -> None:
        """As a fleet's."""
        self.revived += 1
        self.errors.clear()


def own_servers(errors: dict[int, GnnkitError]) -> tuple[Any, Fleet]:
    """Servers of this process's own that have died of these errors."""
    own: Any = object.__new__(OwnServers)
    own.fleet = Fleet(errors)
    return own, own.fleet


@pytest.fixture
def graph() -> Any:
    """Some graph."""
    with make() as loader:
        return loader.pipeline.graph


@pytest.mark.parametrize("errors", [{}, {1: DIED}, {2: STOPPED}, {0: DIED, 2: STOPPED}])
def test_servers_that_somebody_has_had_ended_come_back_with_the_next_epoch(
    tmp_path: Path, graph: Any, errors: dict[int, GnnkitError]
) -> None:
    own, fleet = own_servers(dict(errors))
    joined: Any = SimpleNamespace(servers=())
    pool = ReceiverPool(SupervisorOptions(0, 1, "gnnkit.cluster.worker"), str(tmp_path), {}, graph, {}, {}, joined, own)
    try:
        pool.start_missing()  # somebody waits for a batch
        assert fleet.revived == (bool(errors) and STOPPED not in errors.values())
        pool.check()  # an epoch begins
        assert fleet.revived == bool(errors)
    finally:
        fleet.errors.clear()
        pool._own = None
        pool.stop()


class Connection:
    """A server with one sampling process."""

    def __init__(self, server: int) -> None:
        self.server, self.graph_bytes = server, server
        self.most_workers = 2
        self.members = {0: SimpleNamespace(pid=server)}

    def enlist(self, most: int) -> None:
        """As a connection's."""

    def statuses(self) -> Iterator[int]:
        """As a connection's, with numbers of servers."""
        yield self.server


def test_servers_may_come_and_go_while_somebody_looks() -> None:
    """A dashboard asks for pids from a thread of its own."""
    servers: Any = SimpleNamespace(connections={server: Connection(server) for server in range(3)})
    pool = ServerWorkerPool(servers, None)
    looked: Any = pool.statuses()
    assert next(looked) == 0
    servers.connections.pop(2)
    servers.connections[0].members[1] = SimpleNamespace(pid=7)
    assert list(looked) == [1, 2], "as it was at the first look"
    assert pool.graph_bytes == 1 and sorted(pool.pids.values()) == [0, 1, 7]

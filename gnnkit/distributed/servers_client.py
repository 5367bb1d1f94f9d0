"""A client's conversation with all servers at once: by Unix sockets on their host, by a courier from another one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gnnkit.cluster.serving.connection import Connection
from gnnkit.cluster.serving.credentials import required
from gnnkit.cluster.serving.unix_join import UnixJoin, join_folder
from gnnkit.errors import LoaderClosed, WorkerDied
from gnnkit.events import EventSink, ignore_events

if TYPE_CHECKING:
    import torch

    from gnnkit.backends.graph_store import GraphStore

# Calls that are under way at a time, at most; further ones wait for their turn.
_MOST_CALLS = 32
# A call may take so long unless somebody says otherwise: fetching waits for a batch.
CALL_TIMEOUT_S = 180.0
# Threads of calls notice within moments that the conversation is over.
_FAREWELL_S = 5.0
_LEFT, _AGAIN = "the servers were left", "join them again with init_client() or gnnkit.distributed.initialize()"


class Transport(Protocol):
    """How servers are reached."""

    def call(self, rank: int, name: str, args: Any, timeout_s: float) -> Any:
        """Has a server answer a call; from any thread, several at a time."""
        ...

    def close(self) -> None:
        """Ends the conversation: the client has left."""
        ...


class ServersClient:
    """A conversation. Closing it is leaving: servers give up what this client has registered.

    Args:
        transport: How servers are reached.
        num_servers: How many there are.

    Attributes:
        num_servers: How many there are.
    """

    def __init__(self, transport: Transport, num_servers: int) -> None:
        self.num_servers = num_servers
        self._transport = transport
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._under_way = 0
        self._is_closed = False

    def call(self, rank: int, name: str, args: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """Has a server answer, and waits for it.

        Args:
            rank: The server.
            name: What it is to do; see ``gnnkit.cluster.serving.server_api``.
            args: A value of ``gnnkit.cluster.serving.codec``.
            timeout_s: Seconds to wait.

        Raises:
            LoaderClosed: The servers were left.
            GnnkitError: What the server refuses with, or what has become of it.
        """
        try:
            return self._transport.call(rank, name, args, timeout_s)
        except WorkerDied as error:
            if self._is_closed:  # it is this end that has gone
                raise LoaderClosed(_LEFT, _AGAIN) from error
            raise

    def submit(self, rank: int, name: str, args: Any, convert: Callable[[Any], Any]) -> torch.futures.Future[Any]:
        """As ``call``, without waiting.

        Args:
            rank: See ``call``.
            name: See ``call``.
            args: See ``call``.
            convert: What is done with the answer.

        Raises:
            LoaderClosed: The servers were left.
        """
        from torch.futures import Future

        future: Future[Any] = Future()

        def ask() -> None:
            try:
                future.set_result(convert(self.call(rank, name, args)))
            except Exception as error:
                future.set_exception(error)

        with self._lock:
            if self._is_closed:
                raise LoaderClosed(_LEFT, _AGAIN)
            self._under_way += 1
            if len(self._threads) < min(self._under_way, _MOST_CALLS):
                # Daemons: a fetch that waits for its batch must not keep the process from ending, as those of an executor do.
                self._threads.append(threading.Thread(target=self._work, name="gnnkit-requests", daemon=True))
                self._threads[-1].start()
            self._waiting.put(ask)
        return future

    def _work(self) -> None:
        while (ask := self._waiting.get()) is not None:
            ask()
            with self._lock:
                self._under_way -= 1

    def close(self) -> None:
        """Leaves; calls that are under way or wait for their turn end with an error. Closing twice is fine."""
        with self._lock:
            self._is_closed, threads, self._threads = True, self._threads, []
            for _ in threads:
                self._waiting.put(None)
        self._transport.close()
        for thread in threads:
            thread.join(_FAREWELL_S)


def open_session(backend: GraphStore, events: EventSink = ignore_events) -> ServersClient:
    """Joins the servers of a backend, and waits until all of them are there.

    Args:
        backend: Says where they are, and how long to wait for them.
        events: Is told which are missing.

    Raises:
        StartTimeout: They were not in time; names those that are missing.
        PlanError: They refuse this client, for example its token.
    """
    address = str(backend.address)
    if backend.folder is not None:
        servers = join_folder(backend.folder, "trainer", backend.join_timeout_s, events)
        return ServersClient(_Here(servers, backend.folder, address), len(servers.connections))
    from gnnkit.backends.receiver_pool import servers_of

    courier = servers_of(backend).courier()
    try:
        return ServersClient(courier, len(courier.join(backend.join_timeout_s, events).servers))
    except BaseException:
        courier.close()
        raise


class _Here:
    """Servers of this host that have been joined; a connection that has broken is made again when it is needed.

    Args:
        servers: The connections.
        folder: The servers' folder.
        address: The same as users write it, for the token.
    """

    def __init__(self, servers: UnixJoin, folder: Path, address: str) -> None:
        self._connections = servers.connections
        self._folder, self._address = folder, address
        self._lock = threading.Lock()
        self._is_closed = False

    def call(self, rank: int, name: str, args: Any, timeout_s: float) -> Any:
        """See ``Transport``."""
        with self._lock:
            if self._is_closed:
                raise LoaderClosed(_LEFT, _AGAIN)
            connection = self._connections.get(rank)
            if connection is None:  # it was gone, and may be back
                connection = self._connections[rank] = Connection.open(self._folder, rank, required(self._address), timeout_s)
        try:
            return connection.call(name, args, timeout_s)
        except WorkerDied:
            with self._lock:
                if self._connections.get(rank) is connection:
                    del self._connections[rank]
            connection.close()
            raise

    def close(self) -> None:
        """See ``Transport``."""
        with self._lock:
            self._is_closed, connections = True, list(self._connections.values())
            self._connections.clear()
        for connection in connections:
            connection.close()

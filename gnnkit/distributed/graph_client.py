"""Processes that use the graph of servers, by graphlearn-torch's names, and the role of a process among them: without torch RPC."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from multiprocessing.pool import ThreadPool
from typing import TYPE_CHECKING, Any

from gnnkit.backends.graph_store import GraphStore
from gnnkit.bounds import whole_number
from gnnkit.cluster.serving.connection import end_visit, join_folder
from gnnkit.distributed.process_group import meeting_address
from gnnkit.errors import LoaderClosed, PlanError, WorkerDied, on_error
from gnnkit.events import EventSink, ignore_events
from gnnkit.vendor import glt

if TYPE_CHECKING:
    import torch

    from gnnkit.cluster.network_child.client import NetworkChild
    from gnnkit.cluster.serving.connection import UnixServers


class DistRole(Enum):
    """The role of a process in a run; the numbers are graphlearn-torch's."""

    WORKER = 1
    SERVER = 2
    CLIENT = 3


def check_rank(name: str, rank: int, size: int) -> None:
    """Makes sure that a rank is one of ``size``.

    Raises:
        PlanError: It is not.
    """
    if not 0 <= rank < size:
        raise PlanError(f"{name} must be between 0 and {size - 1}, got {rank}")


@dataclass(frozen=True)
class DistContext:
    """A process's place among the processes of its role, and among all.

    Servers come first in the global order, then clients.

    Attributes:
        role: What the process is.
        group_name: Name of the processes of its role.
        world_size: Number of processes of its role.
        rank: This one among them.
        global_world_size: Number of processes of all roles.
        global_rank: This one among them.
    """

    role: DistRole
    group_name: str
    world_size: int
    rank: int
    global_world_size: int
    global_rank: int

    def __post_init__(self) -> None:
        check_rank("rank", self.rank, self.world_size)
        check_rank("global_rank", self.global_rank, self.global_world_size)

    def is_worker(self) -> bool:
        """Whether it is one of a group of trainers that sample for themselves."""
        return self.role is DistRole.WORKER

    def is_server(self) -> bool:
        """Whether it is a storage server."""
        return self.role is DistRole.SERVER

    def is_client(self) -> bool:
        """Whether it is a trainer that servers sample for."""
        return self.role is DistRole.CLIENT

    def num_servers(self) -> int:
        """Number of servers; 0 for a worker."""
        return {DistRole.SERVER: self.world_size, DistRole.CLIENT: self.global_world_size - self.world_size}.get(self.role, 0)

    def num_clients(self) -> int:
        """Number of clients; 0 for a worker, and for a server that does not count on a number of them."""
        return {DistRole.CLIENT: self.world_size, DistRole.SERVER: self.global_world_size - self.world_size}.get(self.role, 0)

    @property
    def worker_name(self) -> str:
        """``"<group name>_<rank>"``."""
        return f"{self.group_name}_{self.rank}"


def server_context(num_servers: int, rank: int, num_clients: int, group_name: str | None) -> DistContext:
    """The context of a server; ``num_clients`` is 0 where any number may come."""
    return DistContext(DistRole.SERVER, group_name or "_default_server", num_servers, rank, num_servers + num_clients, rank)


def client_context(num_servers: int, num_clients: int, rank: int, group_name: str | None) -> DistContext:
    """The context of a client."""
    total = num_servers + num_clients
    return DistContext(DistRole.CLIENT, group_name or "_default_client", num_clients, rank, total, num_servers + rank)


_lock = threading.Lock()
_current: DistContext | None = None
_group: DistContext | None = None


def get_context() -> DistContext | None:
    """Returns this process's role since ``init_server``, ``init_client``, ``initialize`` or ``init_worker_group``; None before."""
    return _current or worker_group()


def check_free(what: str) -> None:
    """Refuses to make a server or a client of a process that is one.

    Raises:
        PlanError: It is; names what it is and how it stops being it.
    """
    if (current := _current) is not None:
        leave_by = "wait_and_shutdown_server()" if current.is_server() else "shutdown_client() or exit_client()"
        raise PlanError(f"{what}: this process is {current.role.name.lower()} {current.rank} already", f"call {leave_by} first")


def enter(context: DistContext, what: str) -> None:
    """Makes ``context`` that of the process.

    Raises:
        PlanError: It is a server or a client already.
    """
    global _current
    with _lock:
        check_free(what)
        _current = context


def leave() -> None:
    """The process is neither a server nor a client from here on."""
    global _current
    with _lock:
        _current = None


def init_worker_group(world_size: int, rank: int, group_name: str | None = None) -> None:
    """Enters this process into a group of trainers that sample for themselves; nothing is started, and no process is met.

    Args:
        world_size: Number of processes.
        rank: This process.
        group_name: Name of the group.

    Raises:
        PlanError: The rank is not below the size.
    """
    global _group
    _group = DistContext(DistRole.WORKER, group_name or "_default_worker", world_size, rank, world_size, rank)
    if glt.status().kind == "native":  # its own loaders look for a group of theirs
        glt.attribute("distributed.init_worker_group")(world_size, rank, group_name)


def worker_group() -> DistContext | None:
    """The group that ``init_worker_group`` made, or what graphlearn-torch's own functions made of a process that has imported it."""
    ask = glt.imported("distributed.get_context")
    theirs = None if ask is None else ask()
    if theirs is None:
        return _group
    role = DistRole(theirs.role.value)
    return DistContext(role, theirs.group_name, theirs.world_size, theirs.rank, theirs.global_world_size, theirs.global_rank)


# Calls that are under way at a time, at most; further ones wait.
_MOST_CALLS = 32
# A call may take so long unless the caller says otherwise: fetching waits for a batch.
CALL_TIMEOUT_S = 180.0
# Threads of calls notice within moments that the conversation is over.
_STOP_TIMEOUT_S = 5.0
_LEFT, _AGAIN = "the servers were left", "join them again with init_client() or gnnkit.distributed.initialize()"


class ServersClient:
    """A conversation. Closing it is leaving: servers give up what this client has registered.

    Args:
        servers: How they are reached: over their sockets, or by the network child.
        num_servers: How many there are.
        backend: What says where they are.

    Attributes:
        num_servers: See above.
        backend: See above.
    """

    def __init__(self, servers: UnixServers | NetworkChild, num_servers: int, backend: GraphStore) -> None:
        self.num_servers, self.backend = num_servers, backend
        self._servers = servers
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
            args: A value of ``gnnkit.cluster.network.codec``.
            timeout_s: Seconds to wait.

        Raises:
            LoaderClosed: The servers were left.
            GnnkitError: What the server refuses with, or what has become of it.
        """
        try:
            return self._servers.call(rank, name, args, timeout_s)
        except (LoaderClosed, WorkerDied) as error:
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
        """Leaves; calls that are under way or wait end with an error. Closing twice is fine."""
        with self._lock:
            self._is_closed, threads, self._threads = True, self._threads, []
            for _ in threads:
                self._waiting.put(None)
        self._servers.close()
        for thread in threads:
            thread.join(_STOP_TIMEOUT_S)


def open_session(backend: GraphStore, events: EventSink = ignore_events) -> ServersClient:
    """Joins the servers of a backend, and waits until all of them are there.

    Args:
        backend: Says where they are, and how long to wait for them.
        events: Is told which are missing.

    Raises:
        StartTimeout: They were not in time; names those that are missing.
        PlanError: They refuse this client, for example its token.
    """
    if backend.folder is not None:
        servers = join_folder(backend.folder, "trainer", backend.join_timeout_s, events)
        return ServersClient(servers, len(servers.connections), backend)
    from gnnkit.backends.server_pool import servers_of  # network
    from gnnkit.cluster.network_child.client import NetworkChild  # network

    child = NetworkChild(servers_of(backend))
    with on_error(child.close):
        return ServersClient(child, len(child.join(backend.join_timeout_s, events).servers), backend)


_pool: ThreadPool | None = None
_num_samplers = 0


def get_sampler_pool() -> tuple[ThreadPool | None, int]:
    """The pool that ``initialize`` made for a client, and its size; ``(None, size)`` where it made none.

    DGL's pool is one of processes that sample for a trainer. Here servers' processes do, and the pool is what asks several of them at
    a time: ``pool.map(loader.sample, lists_of_ids)``, ``pool.apply_async(loader.sample, (ids,))``. It has as many threads as
    ``GNNKIT_NUM_SAMPLERS`` says that a server has processes; none is made where that is 0 or not set, nor in standalone mode. There, as in
    DGL, the size is the number all the same.
    """
    with _lock:
        return _pool, _num_samplers


def open_pool(num_samplers: int, *, is_client: bool) -> None:
    """Notes the size of the pool, and makes it for a client of servers; one that is there is closed."""
    global _pool, _num_samplers
    close_pool()
    with _lock:
        _num_samplers = num_samplers
        _pool = ThreadPool(num_samplers) if num_samplers and is_client else None


def close_pool() -> None:
    """Ends the pool: what it has begun is finished, what waits is dropped."""
    global _pool, _num_samplers
    with _lock:
        pool, _pool, _num_samplers = _pool, None, 0
    if pool is not None:
        pool.terminate()
        pool.join()


_logger = logging.getLogger(__name__)


# The servers that ``init_client`` has joined.
_client: ServersClient | None = None


def init_client(  # noqa: PLR0913
    num_servers: int | None,
    num_clients: int,
    client_rank: int,
    master_addr: str,
    master_port: int,
    num_rpc_threads: int = 4,
    client_group_name: str | None = None,
    is_dynamic: bool = False,
    *,
    token: str | None = None,
    **options: Any,
) -> None:
    """Joins the servers, and returns when all of them are there.

    Args:
        num_servers: Servers of the run; None takes as many as there are.
        num_clients: Trainers of the run.
        client_rank: Which one this is.
        master_addr: Address of server 0's host, or ``"unix:<folder>"``.
        master_port: Port on which server 0 listens.
        num_rpc_threads: Of no use here: any number of calls may be under way.
        client_group_name: Name of the trainers in ``get_context()``.
        is_dynamic: Of no use here: trainers come and go as they like.
        token: What the servers expect; None takes the environment's.
        **options: Further options of ``gnnkit.GraphStore``, for example ``join_timeout_s``.

    Raises:
        PlanError: An argument is unusable, this process is a server or a client already, the token is not the servers', or there is
            another number of servers.
        StartTimeout: Not all servers were there in time; names those that are missing.
    """
    del num_rpc_threads, is_dynamic
    num_clients = whole_number("num_clients", num_clients, 1)
    backend = GraphStore(address=meeting_address(master_addr, master_port), token=token, **options)
    join_servers(backend, num_servers, num_clients, client_rank, client_group_name, "init_client")


def join_servers(backend: GraphStore, num_servers: int | None, num_clients: int, rank: int, group_name: str | None, what: str) -> None:
    """Joins the servers of a backend as client ``rank``; see ``init_client``."""
    global _client
    from gnnkit.ui.progress import make_sink  # IPython's kernel, if there is one

    check_free(what)
    client_context(num_servers or 1, num_clients, rank, group_name)  # a rank out of range is found before a server is asked
    with make_sink("auto") as events:
        session = open_session(backend, events)
    with on_error(session.close):
        if num_servers not in (None, session.num_servers):
            raise PlanError(
                f"{what}: {num_servers} servers are expected, and there are {session.num_servers}", "count all servers of the run"
            )
        enter(client_context(session.num_servers, num_clients, rank, group_name), what)
    with _lock:
        _client = session


def shutdown_client() -> None:
    """Leaves the servers. They go on serving others; they end if ``init_server`` was told of as many clients as have come and left.

    A process that joins again afterwards counts as another client.

    Raises:
        PlanError: This process is a server.
    """
    global _client
    if (current := get_context()) is not None and current.is_server():
        raise PlanError("this process is a server, not a client", "servers call wait_and_shutdown_server()")
    with _lock:
        client, _client = _client, None
    if client is None:
        _logger.warning("shutdown_client: this process is no client")
        return
    try:
        client.close()
    finally:
        end_visit()
        leave()


def joined() -> ServersClient:
    """The servers that this process has joined.

    Raises:
        PlanError: It has joined none.
    """
    with _lock:
        client = _client
    if client is None:
        raise PlanError("this process has joined no servers", "call init_client() or gnnkit.distributed.initialize() first")
    return client

"""Processes that use the graph of servers, by graphlearn-torch's names: over gnnkit's servers, without torch RPC.

    init_client(num_servers=2, num_clients=2, client_rank=0, master_addr="10.0.0.1", master_port=7000)
    request_server(0, DistServer.get_dataset_meta)
    shutdown_client()

The token is that of ``$GNNKIT_TOKEN`` or of the file ``$GNNKIT_TOKEN_FILE`` names, unless it is given. ``master_addr="unix:<folder>"``
is the way to servers of this host, whose folder is their ``address``; the port does not matter then.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gnnkit.distributed import context
from gnnkit.distributed.rendezvous import check_counts, meeting_address
from gnnkit.errors import PlanError

if TYPE_CHECKING:
    import torch

    from gnnkit.backends.graph_store import GraphStore
    from gnnkit.distributed.servers_client import ServersClient

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Client:
    """What ``init_client`` has joined."""

    session: ServersClient
    backend: GraphStore


_lock = threading.Lock()
_client: _Client | None = None


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
    from gnnkit.backends.graph_store import GraphStore

    check_counts(num_clients=(num_clients, 1))
    backend = GraphStore(address=meeting_address(master_addr, master_port), token=token, **options)
    join_servers(backend, num_servers, num_clients, client_rank, client_group_name, "init_client")


def join_servers(backend: GraphStore, num_servers: int | None, num_clients: int, rank: int, group_name: str | None, what: str) -> None:
    """Joins the servers of a backend as client ``rank``; see ``init_client``."""
    global _client
    from gnnkit.distributed.servers_client import open_session
    from gnnkit.ui.progress import make_sink

    context.check_free(what)
    context.client_context(num_servers or 1, num_clients, rank, group_name)  # a rank out of range is found before anybody is asked
    with make_sink("auto") as events:
        session = open_session(backend, events)
    try:
        if num_servers not in (None, session.num_servers):
            raise PlanError(
                f"{what}: {num_servers} servers are expected, and there are {session.num_servers}", "count all servers of the run"
            )
        context.enter(context.client_context(session.num_servers, num_clients, rank, group_name), what)
    except BaseException:
        session.close()
        raise
    with _lock:
        _client = _Client(session, backend)


def shutdown_client() -> None:
    """Leaves the servers. They go on serving others; they end if ``init_server`` was told of as many clients as have come and left.

    Raises:
        PlanError: This process is a server.
    """
    global _client
    current = context.get_context()
    if current is not None and current.is_server():
        raise PlanError("this process is a server, not a client", "servers call wait_and_shutdown_server()")
    with _lock:
        client, _client = _client, None
    if client is None:
        _logger.warning("shutdown_client: this process is no client")
        return
    try:
        client.session.close()
    finally:
        context.leave()


def joined_backend() -> GraphStore:
    """The backend of loaders on the servers that this process has joined.

    Raises:
        PlanError: It has joined none.
    """
    return _joined().backend


def request_server(server_rank: int, func: Callable[..., Any] | str, *args: Any, **kwargs: Any) -> Any:
    """Has a server do one of the things that ``DistServer`` can do, and waits for its answer.

    Args:
        server_rank: Which server.
        func: A method of ``DistServer``, or its name. Only the name travels: what is no method of it is refused.
        *args: Its arguments: numbers, texts, tensors, and records, lists and dicts of them.
        **kwargs: More of them.

    Raises:
        PlanError: This process has joined no servers, there is no such server, or no such method.
        WorkerDied: The server is gone; names its rank.
        GnnkitError: Whatever the server refuses with.
    """
    from gnnkit.distributed.dist_server import DistServer, method_name

    session = _session(server_rank)

    def ask(name: str, values: dict[str, Any], convert: Callable[[Any], Any]) -> Any:
        return convert(session.call(server_rank, name, values))

    return getattr(DistServer.over(ask), method_name(func))(*args, **kwargs)


def async_request_server(server_rank: int, func: Callable[..., Any] | str, *args: Any, **kwargs: Any) -> torch.futures.Future[Any]:
    """As ``request_server``, without waiting.

    Returns:
        A future of the answer; ``wait()`` gives it, or raises what ``request_server`` raises.

    Raises:
        PlanError: As ``request_server``; what has to do with the server itself comes from the future.
    """
    from gnnkit.distributed.dist_server import DistServer, method_name

    session = _session(server_rank)

    def ask(name: str, values: dict[str, Any], convert: Callable[[Any], Any]) -> Any:
        return session.submit(server_rank, name, values, convert)

    future: torch.futures.Future[Any] = getattr(DistServer.over(ask), method_name(func))(*args, **kwargs)
    return future


def _joined() -> _Client:
    with _lock:
        client = _client
    if client is None:
        raise PlanError("this process has joined no servers", "call init_client() or gnnkit.distributed.initialize() first")
    return client


def _session(server_rank: int) -> ServersClient:
    session = _joined().session
    if isinstance(server_rank, bool) or not isinstance(server_rank, int) or not 0 <= server_rank < session.num_servers:
        raise PlanError(f"there is no server {server_rank!r}: there are {session.num_servers}", "servers count from 0")
    return session

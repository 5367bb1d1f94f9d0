"""Processes that serve a graph, by graphlearn-torch's names: over gnnkit's servers, without torch RPC.

    init_server(num_servers=2, server_rank=0, dataset=store, master_addr="10.0.0.1", master_port=7000, num_clients=2)
    wait_and_shutdown_server()

See ``gnnkit.distributed.graph_client`` for the other side, and for the token.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit.cluster.serving.spec import UNIX_PREFIX
from gnnkit.distributed import context
from gnnkit.distributed.process_group import check_counts, meeting_address
from gnnkit.errors import LoaderClosed, PlanError

if TYPE_CHECKING:
    from gnnkit.distributed.dataset import DistDataset
    from gnnkit.distributed.dist_server import DistServer
    from gnnkit.serving import GraphStoreServers
    from gnnkit.storage.store import Store

_logger = logging.getLogger(__name__)


@dataclass
class _Serving:
    """The servers that ``init_server`` has started."""

    servers: GraphStoreServers
    dataset: Any
    face: DistServer | None = None


_lock = threading.Lock()
_serving: _Serving | None = None


def init_server(  # noqa: PLR0913
    num_servers: int,
    server_rank: int,
    dataset: DistDataset | Store | str | Path,
    master_addr: str,
    master_port: int,
    num_clients: int = 0,
    num_rpc_threads: int = 16,
    request_timeout: float = 180,
    server_group_name: str | None = None,
    is_dynamic: bool = False,
    *,
    token: str | None = None,
    **options: Any,
) -> None:
    """Starts server ``server_rank`` in the background, and returns when all servers of the run are there.

    Args:
        num_servers: Servers of the run.
        server_rank: Which one this is.
        dataset: What it serves: a dataset of a store, a store, or a store's folder.
        master_addr: Address of server 0's host.
        master_port: Port on which server 0 listens.
        num_clients: Trainers that are to come: the servers end when as many have come and all have left. 0: they stay.
        num_rpc_threads: Of no use here: servers answer calls as they come.
        request_timeout: Of no use here: it is the clients that wait.
        server_group_name: Name of the servers in ``get_context()``.
        is_dynamic: Any number of trainers may come: the servers end once one has come and none is left. ``num_clients`` does not count.
        token: What clients have to know; None takes the environment's.
        **options: Further options of ``gnnkit.serve``, for example ``workers_per_server``.

    Raises:
        PlanError: An argument is unusable, this process is a server or a client already, there is no token, or the port is taken.
        StartTimeout: Not all servers came in time.
        StoreError: The store is missing or damaged, or another one than the other servers'.
        WorkerDied: The server ended while it started.
    """
    global _serving
    check_counts(num_servers=(num_servers, 1), num_clients=(num_clients, 0))
    clients = 0 if is_dynamic else num_clients
    address = meeting_address(master_addr, master_port)
    context.check_free("init_server")
    store = _store_of(dataset, master_addr, master_port, server_rank, num_servers)
    context.enter(context.server_context(num_servers, server_rank, clients, server_group_name), "init_server")
    try:
        servers = _start(store, num_servers, server_rank, address, is_dynamic or clients, token, options)
        with _lock:
            _serving = _Serving(servers, dataset)
    except BaseException:
        context.leave()
        raise


def _start(
    store: Store | Path, num_servers: int, rank: int, address: str, clients: bool | int, token: str | None, options: dict[str, Any]
) -> GraphStoreServers:
    from gnnkit.cluster.serving.spec import required
    from gnnkit.serving import serve

    servers = serve(
        store,
        num_servers,
        rank=rank,
        address=address,
        token=token or (None if address.startswith(UNIX_PREFIX) else required(address)),
        stop_with_last_client=clients,
        **options,
    )
    try:
        servers.wait()
    except LoaderClosed:
        # Nobody here has them yet: they have ended because all clients came and left before this thread looked.
        if not clients or servers.error_of(rank) is not None:
            servers.stop()
            raise
    except BaseException:
        servers.stop()
        raise
    return servers


def get_server() -> DistServer | None:
    """Returns the object with the calls that clients may make to this process; None where ``init_server`` was not called."""
    with _lock:
        serving = _serving
    if serving is None:
        return None
    if serving.face is None:
        from gnnkit.distributed.dataset import DistDataset
        from gnnkit.distributed.dist_server import DistServer

        dataset = serving.dataset
        serving.face = DistServer(dataset if isinstance(dataset, DistDataset) else DistDataset.from_store(dataset))
    return serving.face


def wait_and_shutdown_server() -> None:
    """Waits until the server has ended, because all of its clients have left or it was told to, and removes what is left of it.

    Whatever happens, the server is gone afterwards, and ``init_server`` may be called again.

    Raises:
        PlanError: This process is a client.
        WorkerDied: The server ended by itself, with the tail of its log.
    """
    global _serving
    current = context.get_context()
    if current is not None and not current.is_server():
        raise PlanError(f"this process is a {current.role.name.lower()}, not a server", "clients call shutdown_client()")
    with _lock:
        serving, _serving = _serving, None
    if serving is None:
        _logger.warning("wait_and_shutdown_server: this process is no server")
        return
    try:
        serving.servers.join()
    finally:
        try:
            serving.servers.stop()
        finally:
            context.leave()


def _store_of(dataset: Any, address: str, port: int, rank: int, num_servers: int) -> Store | Path:
    from gnnkit.distributed.dataset import DistDataset
    from gnnkit.distributed.dataset_parts import meeting_at
    from gnnkit.distributed.loader_plan import stored
    from gnnkit.storage.store import Store

    if isinstance(dataset, DistDataset):
        if not address.startswith(UNIX_PREFIX):
            dataset.meet(meeting_at(address, port, rank, num_servers))  # before server 0 listens there for good
        store = stored(dataset)
        if dataset.has_own_split:
            raise PlanError(
                "the dataset has a split of its own, and servers know those of their store",
                "give clients the ids as seeds, or partition the graph with the split in it, for example as train_mask",
            )
        return store
    if isinstance(dataset, Store):
        return dataset
    if isinstance(dataset, (str, Path)):
        return Path(dataset)
    raise PlanError(
        f"dataset must be a DistDataset, a Store or a store's folder, got {dataset!r}",
        "graphlearn-torch's versions order the arguments of init_server differently: give them by name",
    )

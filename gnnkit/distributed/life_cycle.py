"""DGL's life cycle: one call that makes a process a server, a client of servers, or neither, and one that ends it.

    gnnkit.distributed.initialize()
    loader = GraphLoader.from_store(store, num_neighbors=[15, 10, 5], batch_size=1024)

What a process becomes, its environment says (``gnnkit.distributed.roles``); without any of those variables the same script runs in one
process. After ``initialize``, ``backend="auto"`` and plan files mean what it has decided: the servers that it joined, or this process. A
backend that a script writes down is used as it is.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from gnnkit.backends import backend_from_json
from gnnkit.backends.base import Backend
from gnnkit.backends.graph_store import GraphStore
from gnnkit.backends.inprocess import InProcess
from gnnkit.backends.joined import JoinedBackend, join, part
from gnnkit.cluster.serving.spec import UNIX_PREFIX, required
from gnnkit.distributed import context, graph_client
from gnnkit.distributed.graph_client import close_pool, open_pool
from gnnkit.distributed.roles import PLAN, Role, find_role
from gnnkit.errors import PlanError
from gnnkit.files import open_regular
from gnnkit.loader.planned import check_planned
from gnnkit.loader.served import joins_servers
from gnnkit.plan import LoaderPlan
from gnnkit.storage.manifest import read_manifest
from gnnkit.storage.store import Store
from gnnkit.urls import is_url

_lock = threading.Lock()
# The process that called ``initialize``: a forked child of it is another one.
_initialized_by: int | None = None


def initialize(
    plan: str | Path | None = None,
    num_servers: int = 1,
    num_workers: int = 0,
    max_queue_size: int | None = None,
    net_type: str = "socket",
    num_worker_threads: int = 1,
    *,
    ip_config: str | Path | None = None,
) -> None:
    """Makes this process what its launcher says it is; see ``gnnkit.distributed.roles`` for the variables.

    * A server serves the plan's store. The call never returns: the process ends with exit status 0 when the servers do, or at SIGTERM.
    * A client joins the servers and waits until all of them are there. Its rank is the process group's or torchrun's.
    * Otherwise everything runs in this process.

    A plan that names servers' addresses makes a client where no variable says anything. ``exit_client`` undoes it, also at the end of the
    process; then it may be called again.

    Args:
        plan: A plan file: whose store is served, and what ``GraphLoader.from_plan()`` opens; None takes ``$GNNKIT_PLAN``, or none. A file
            that is no plan is taken for ``ip_config``, which DGL's scripts give first.
        num_servers: Taken and not used: DGL takes it from the environment too, here ``$GNNKIT_NUM_SERVERS``.
        num_workers: Likewise: ``$GNNKIT_NUM_SAMPLERS``.
        max_queue_size: Taken and not used: buffers have the size that batches take.
        net_type: Taken and not used.
        num_worker_threads: Taken and not used.
        ip_config: A file in DGL's form: where servers listen, unless ``$GNNKIT_ADDRESSES`` says it. Not read in standalone mode.

    Raises:
        PlanError: It was called before and not undone, a variable is missing or malformed, or the token or the number of servers is wrong.
        StartTimeout: Not all servers were there in time; names those that are missing.
        StoreError: The plan's store is missing or another one than the servers'.
        WorkerDied: The server that this process is ended by itself.
    """
    global _initialized_by
    with _lock:
        if is_initialized():
            raise PlanError("gnnkit.distributed is initialised already", "call exit_client() first")
        context.check_free("initialize")
        if plan is not None and ip_config is None and not _is_plan(Path(plan)):
            plan, ip_config = None, plan
        file = Path(plan or os.environ[PLAN]) if plan or os.environ.get(PLAN) else None
        written = None if file is None else LoaderPlan.load(file)
        named = None if written is None else _graph_store(written)
        planned = str(named.address) if named is not None and joins_servers(named) else None
        role = find_role(planned, None if ip_config is None else str(ip_config))
        if role.kind != "server":
            backend = _enter(role, named)
            _initialized_by = os.getpid()
            atexit.register(exit_client)
            join(JoinedBackend(backend, file))
            open_pool(role.num_samplers or 0, is_client=role.kind == "client")
            return
    _serve(role, written, file, named)


def is_initialized() -> bool:
    """Whether ``initialize`` has been called in this process, and not been undone."""
    return _initialized_by == os.getpid()


def exit_client() -> None:
    """Undoes ``initialize``: closes the loaders that were made since, ends the sampler pool, and leaves the servers, in this order.

    Called at the end of the process too. The servers go on with other clients; those that were told how many clients there will be end
    when as many have come and left. Without ``initialize`` it does nothing.
    """
    global _initialized_by
    with _lock:
        if not is_initialized():
            return
        _initialized_by = None
        atexit.unregister(exit_client)
        try:
            part()
        finally:
            try:
                close_pool()
            finally:
                if (current := context.get_context()) is not None and current.is_client():
                    graph_client.shutdown_client()


def _is_plan(file: Path) -> bool:
    """Whether a file is a plan: by its name, or by what it begins with."""
    if file.suffix == ".json" or not file.is_file():
        return file.suffix == ".json"
    with open(open_regular(file), "rb") as opened:
        return opened.read(1) == b"{"


def _enter(role: Role, named: GraphStore | None) -> Backend:
    """Joins the servers of a client; the backend that loaders are to use."""
    if role.kind == "standalone":
        return InProcess()
    backend = GraphStore(address=role.address) if named is None else replace(named, address=role.address, token=None)
    graph_client.join_servers(backend, role.num_servers, role.num_clients or 1, role.rank, None, "initialize")
    return backend


def _graph_store(plan: LoaderPlan) -> GraphStore | None:
    """The backend of a plan if it is of servers."""
    if plan.backend.get("kind") != "GraphStore":
        return None
    backend: Any = backend_from_json(plan.backend)
    found: GraphStore = backend
    return found


def _serve(role: Role, plan: LoaderPlan | None, file: Path | None, named: GraphStore | None) -> NoReturn:
    """Serves the plan's store until that is over, and ends the process."""
    from gnnkit.serving import run_in_foreground, serve

    options: dict[str, Any] = {}
    if named is not None:
        options = {name: getattr(named, name) for name in ("workers_per_server", "threads_per_worker", "max_restarts", "join_timeout_s")}
    if role.num_samplers:
        options["workers_per_server"] = role.num_samplers
    address = role.address
    servers = serve(
        _planned_store(plan, file),
        role.num_servers or 1,
        rank=role.rank,
        address=address,
        token=None if address.startswith(UNIX_PREFIX) else required(address),
        stop_with_last_client=role.num_clients or 0,
        **options,
    )
    run_in_foreground(servers)
    sys.exit(0)


def _planned_store(plan: LoaderPlan | None, file: Path | None) -> Path:
    """The folder of the store that a server serves.

    Raises:
        PlanError: There is no plan, or it has no store.
        StoreError: The store is missing or is of another graph than the plan was made for.
    """
    if plan is None or file is None or plan.store is None:
        found = f"{PLAN} is not set" if plan is None else f"the graph of the plan {str(file)!r} was only in memory"
        raise PlanError(
            f"{found}, so that this server has nothing to serve",
            f"export {PLAN}=plan.json, a file that loader.plan.save() wrote",
        )
    if is_url(plan.store.path):
        store = Store.open(plan.store.path)
        check_planned(plan.store, store.manifest, plan.store.path)
        return store.path
    path = Path(plan.store.path)
    check_planned(plan.store, read_manifest(path), path)
    return path

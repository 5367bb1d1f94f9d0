"""DGL's life cycle: one call that makes a process a server, a client of servers, or neither, and one that ends it.

    gnnkit.distributed.initialize()
    loader = GraphLoader.from_store(store, num_neighbors=[15, 10, 5], batch_size=1024)

What a process becomes, its environment says, as below; without any of those variables the same script runs in one process. After
``initialize``, ``backend="auto"`` and plan files mean what it has decided: the servers that it joined, or this process. A backend that a
script writes down is used as it is.

====================== ======= ==========================================================================================
variable               for     meaning
====================== ======= ==========================================================================================
``GNNKIT_ROLE``        both    ``server`` or ``client``; unset, a client where another variable is about servers
``GNNKIT_ADDRESSES``   both    where servers listen: ``ip:port`` of the first, of all of them with commas between, a file
                               in the form of DGL's ``ip_config``, or ``unix:<folder>`` for servers of this host
``GNNKIT_NUM_SERVERS`` both    number of servers; with an ``ip_config`` file, of each machine
``GNNKIT_SERVER_ID``   server  which of the servers this is, from 0
``GNNKIT_NUM_CLIENTS`` both    trainers in all: servers end when as many have come and all have left; unset, servers stay
``GNNKIT_NUM_SAMPLERS`` both   sampling processes of each server, and threads of a client's sampler pool
``GNNKIT_PLAN``        both    plan file: whose store servers serve, and what ``GraphLoader.from_plan()`` opens
``GNNKIT_MODE``        any     ``standalone``: neither, whatever the others are; ``distributed``: they have to be there
====================== ======= ==========================================================================================
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

from gnnkit.backends import backend_from_json
from gnnkit.backends.base import Backend, JoinedBackend, join, part
from gnnkit.backends.graph_store import GraphStore
from gnnkit.backends.inprocess import InProcess
from gnnkit.callers import warn
from gnnkit.cluster.serving.spec import UNIX_PREFIX, address_text, required, wire_addresses
from gnnkit.distributed import graph_client
from gnnkit.distributed.graph_client import close_pool, open_pool
from gnnkit.distributed.process_group import read_ip_config
from gnnkit.errors import PlanError, near_matches
from gnnkit.files import open_regular
from gnnkit.loader.inputs import resolve_rank
from gnnkit.loader.planned import check_planned
from gnnkit.loader.served import joins_servers
from gnnkit.plan import LoaderPlan
from gnnkit.storage.manifest import read_manifest
from gnnkit.storage.store import Store
from gnnkit.urls import is_url

ROLE, SERVER_ID, ADDRESSES = "GNNKIT_ROLE", "GNNKIT_SERVER_ID", "GNNKIT_ADDRESSES"
NUM_SERVERS, NUM_CLIENTS, NUM_SAMPLERS = "GNNKIT_NUM_SERVERS", "GNNKIT_NUM_CLIENTS", "GNNKIT_NUM_SAMPLERS"
MODE, PLAN = "GNNKIT_MODE", "GNNKIT_PLAN"
# Any of these says that there are servers.
_ABOUT_SERVERS = (ROLE, SERVER_ID, ADDRESSES, NUM_SERVERS, NUM_CLIENTS)
# Variables of DGL's launcher, and those that stand in their place.
_OF_DGL = {
    "DGL_ROLE": ROLE,
    "DGL_DIST_MODE": MODE,
    "DGL_SERVER_ID": SERVER_ID,
    "DGL_IP_CONFIG": ADDRESSES,
    "DGL_NUM_SERVER": NUM_SERVERS,
    "DGL_NUM_CLIENT": NUM_CLIENTS,
    "DGL_NUM_SAMPLER": NUM_SAMPLERS,
    "DGL_CONF_PATH": PLAN,
}
_ADDRESS_HINT = f"export {ADDRESSES}=10.0.0.1:7000, {ADDRESSES}=ip_config.txt or {ADDRESSES}=unix:/folder, the same for servers and clients"

Kind = Literal["standalone", "server", "client"]


@dataclass(frozen=True)
class Role:
    """The role of a process in a run, with the numbers and the address that go with it.

    Attributes:
        kind: "server", "client", or "standalone": samples for itself.
        rank: Which server, or which trainer.
        num_servers: Servers in all; None where a client does not know it.
        num_clients: Trainers in all; None where a server does not know it.
        num_samplers: Sampling processes of each server; None where it was not given.
        address: Where servers are, as ``GraphStore`` and ``gnnkit.serve`` take it: the meeting point, ``"ip:port"``, or that of every
            server in rank order with commas between; or ``"unix:<folder>"``.
    """

    kind: Kind = "standalone"
    rank: int = 0
    num_servers: int | None = None
    num_clients: int | None = None
    num_samplers: int | None = None
    address: str = ""


def find_role(planned: str | None = None, ip_config: str | None = None) -> Role:
    """Determines the role of this process from its environment.

    Args:
        planned: Address of servers that the plan names. It counts where ``GNNKIT_ADDRESSES`` is not set, and makes the process a client
            where no variable of the environment is about servers.
        ip_config: A file with the addresses of servers, which the script names. It counts before ``planned``, and decides no role.

    Raises:
        PlanError: A variable is missing or malformed, or two contradict each other; the error names it and what to set.
    """
    mode = os.environ.get(MODE, "")
    if mode not in ("", "standalone", "distributed"):
        known = ["standalone", "distributed"]
        raise PlanError(f"{MODE}={mode!r} is no mode{near_matches(mode, known)}", f"{MODE} is one of {known}, or unset")
    samplers = _number(NUM_SAMPLERS, 0, "for example 2 sampling processes per server")
    said = [name for name in _ABOUT_SERVERS if os.environ.get(name)]
    if not (said or mode or planned):
        _warn_of_dgls_variables()
        return Role(num_samplers=samplers)
    if mode == "standalone":
        return Role(num_samplers=samplers)
    # As for DGL, a process that is not said to be a server is a client; one with a server's number was meant to be a server.
    kind = os.environ.get(ROLE) or ("" if os.environ.get(SERVER_ID) else "client")
    if kind == "server":
        return _server(ip_config or planned, samplers)
    if kind == "client":
        return _client(ip_config or planned, samplers)
    if kind:
        raise PlanError(f"{ROLE}={kind!r} is no role{near_matches(kind, ['server', 'client'])}", f"export {ROLE}=server or {ROLE}=client")
    because = f"{' and '.join(said)} {'are' if len(said) > 1 else 'is'} set"
    raise PlanError(f"{ROLE} is not set, but {because}", f"export {ROLE}=server or {ROLE}=client; {MODE}=standalone runs without servers")


def _warn_of_dgls_variables() -> None:
    """Warns of variables of DGL's launcher: they have no effect here, and this process is alone although a role was meant for it."""
    found = {name: ours for name, ours in _OF_DGL.items() if os.environ.get(name)}
    if found and os.environ.get("DGL_DIST_MODE") != "standalone":
        instead = ", ".join(f"{name}={os.environ[name]} ({ours})" for name, ours in found.items())
        warn(
            f"gnnkit.distributed.initialize() runs without servers: it does not read the variables of DGL's launcher, {instead}; "
            f"set those in brackets instead, or {MODE}=standalone"
        )


def _server(planned: str | None, samplers: int | None) -> Role:
    rank = _needed(SERVER_ID, 0, "0 for the first server, 1 for the next, and so on", "server")
    said = _needed(NUM_SERVERS, 1, "the number of servers; with an ip_config file, of each machine", "server")
    address, num_servers = _address(planned, said, "server")
    clients = _number(NUM_CLIENTS, 1, "the number of trainers; unset, servers stay when trainers leave")
    total = num_servers or said
    if rank >= total:
        raise PlanError(f"{SERVER_ID}={rank}, but there are {total} servers", f"servers count from 0; or set {NUM_SERVERS}")
    return Role("server", rank, total, clients, samplers, address)


def _client(planned: str | None, samplers: int | None) -> Role:
    said = _number(NUM_SERVERS, 1, "the number of servers; with an ip_config file, of each machine")
    address, num_servers = _address(planned, said, "client")
    rank, world_size = resolve_rank(None, None)
    clients = _number(NUM_CLIENTS, 1, "the number of trainers") or world_size
    if world_size > clients:
        raise PlanError(f"{NUM_CLIENTS}={clients}, but this is trainer {rank} of {world_size}", f"count every trainer in {NUM_CLIENTS}")
    return Role("client", rank, num_servers, clients, samplers, address)


def _address(planned: str | None, said: int | None, kind: str) -> tuple[str, int | None]:
    """Returns the address of the servers, and their number in all where it is known."""
    text = os.environ.get(ADDRESSES, "").strip() or planned or ""
    if not text:
        raise PlanError(f"{ADDRESSES} is not set, and {ROLE}={kind} needs it", _ADDRESS_HINT)
    if text.startswith(UNIX_PREFIX) or Path(text).is_dir():
        return address_text(UNIX_PREFIX + text.removeprefix(UNIX_PREFIX)), said
    try:
        addresses = read_ip_config(text, said or 1) if Path(text).is_file() or "/" in text else wire_addresses(text)
    except PlanError as error:
        raise PlanError(f"{ADDRESSES}={text!r}: {error.message}", _ADDRESS_HINT) from error
    if len(addresses) == 1 and not Path(text).is_file():
        return text, said
    if not Path(text).is_file() and said not in (None, len(addresses)):
        raise PlanError(f"{ADDRESSES} has {len(addresses)} addresses, but {NUM_SERVERS}={said}", "give the first, or one for each server")
    return ",".join(addresses), len(addresses)


def _needed(name: str, least: int, meaning: str, kind: str) -> int:
    value = _number(name, least, meaning)
    if value is None:
        raise PlanError(f"{name} is not set, and {ROLE}={kind} needs it", f"export {name}: {meaning}")
    return value


def _number(name: str, least: int, meaning: str) -> int | None:
    text = os.environ.get(name, "")
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise PlanError(f"{name}={text!r} is no whole number of at least {least}", f"{name} is {meaning}")
    return int(text)


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
    """Makes this process what its launcher says it is; see ``gnnkit.distributed.life_cycle`` for the variables.

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
        graph_client.check_free("initialize")
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
                if (current := graph_client.get_context()) is not None and current.is_client():
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
    backend = backend_from_json(plan.backend)
    assert isinstance(backend, GraphStore)
    return backend


def _serve(role: Role, plan: LoaderPlan | None, file: Path | None, named: GraphStore | None) -> NoReturn:
    """Serves the plan's store until that is over, and ends the process."""
    from gnnkit.serving import run_in_foreground, serve  # processes

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

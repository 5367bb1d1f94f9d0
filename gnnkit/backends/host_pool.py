"""A pool of sampling processes that this process starts, and their way to other hosts."""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit.cluster import worker
from gnnkit.cluster.hosts import Hosts, check_group, find_hosts, join_address, listening_address, split_address
from gnnkit.cluster.parts.starter import PartService, ServiceSpec, keep_service
from gnnkit.errors import GnnkitError, PlanError, StartTimeout
from gnnkit.plan import LoaderPlan, StoreRef
from gnnkit.runtime.graph_memory import GraphHandle, GraphSharing
from gnnkit.runtime.limits import check_descriptors, check_start_memory
from gnnkit.runtime.local_pool import LocalWorkerPool
from gnnkit.runtime.pool import weakly
from gnnkit.runtime.runs import new_run
from gnnkit.runtime.supervisor import Exit, SupervisorOptions

if TYPE_CHECKING:
    from gnnkit.backends.colocated import Colocated
    from gnnkit.runtime.pool import OnStarted

TOKEN_VARIABLE = "GNNKIT_TOKEN"
_LEAST_TOKEN = 16
# Where rank 0 tells the others, in the store of the process group.
_TOKEN_KEY = "gnnkit/parts/token"
# Of the deadline of a batch, for one answer of another host: the error is to name that host.
_SHARE = 0.5


class HostLink:
    """The connection of one pool to the other hosts.

    Args:
        options: The backend's options.
        plan: The plan of the pool's first loader; with a store, and a placement.
        graph: The graph.
        log_root: Folder that the folders of logs are in.
        stop: Ends the pool; a bound method, held weakly.

    Raises:
        PlanError: The hosts are not clear, or there is no token, or the address is taken.
        StartTimeout: Another host, or this one's service, was not there in time.
    """

    def __init__(self, options: Colocated, plan: LoaderPlan, graph: GraphHandle, log_root: Path, stop: Callable[[], None]) -> None:
        placement, store = plan.placement, plan.store
        assert placement is not None and store is not None
        self._timeout_s, self._batch_timeout_s = plan.runtime.start_timeout_s, plan.runtime.batch_timeout_s
        self._placement, self._stop = placement, weakly(stop)
        # Parts of several hosts and one trainer alone: the seeds are its own (gnnkit.distributed), and others like it hold the other parts.
        world_size = plan.batching.world_size
        self._hosts = find_hosts(options.hosts, world_size if world_size > 1 else None, self._timeout_s)
        if self._hosts.count != placement.num_hosts:
            raise PlanError(f"the plan places parts on {placement.num_hosts} hosts, and there are {self._hosts.count}")
        check_group(self._hosts)
        self._fingerprint, self._token = store.fingerprint, _token(self._hosts, self._timeout_s)
        self._supervisor = self._serve(options, store, graph, log_root)
        try:
            if self._supervisor is not None and self._hosts.addresses is None:
                _group_store().set(self._key(self.index), join_address(self._supervisor.spec.ip, self._supervisor.spec.port))
            self._addresses = self._find_addresses()
        except BaseException:  # nothing else would give the service up
            self.close()
            raise
        if self._supervisor is not None:
            self._supervisor.attend(self._addresses)

    @property
    def index(self) -> int:
        """This host."""
        return self._hosts.index

    @cached_property
    def _sources(self) -> dict[int, tuple[int, ...]]:
        return self._placement.sources(self.index)

    def _serve(self, options: Colocated, store: StoreRef, graph: GraphHandle, log_root: Path) -> PartService | None:
        """Starts this host's service where others need it and this is the trainer that does so."""
        placement, hosts = self._placement, self._hosts
        clients = tuple(host for host in range(placement.num_hosts) if hosts.index in placement.sources(host))
        if hosts.local_rank != 0 or not clients:
            return None
        spec = ServiceSpec(
            store.path,
            store.fingerprint,
            placement.held(hosts.index),
            hosts.index,
            clients,
            listening_address(hosts, options.interface),
            0 if hosts.addresses is None else split_address(hosts.addresses[hosts.index])[1],
            self._token,
            self._timeout_s,
            options.linger_timeout_s,
            log_root,
            hosts.local_size,
        )
        return keep_service(spec, graph, self._stop)

    def _key(self, host: int) -> str:
        parts = json.dumps(self._placement.to_json(), separators=(",", ":"))
        return f"gnnkit/parts/{self._fingerprint[:16]}/{parts}/{host}"

    def _find_addresses(self) -> dict[int, str]:
        if self._hosts.addresses is not None:
            return {host: self._hosts.addresses[host] for host in self._sources}
        return {host: _read(self._key(host), f"host {host}", self._timeout_s) for host in self._sources}

    def setup_message(self) -> dict[str, Any]:
        """Returns the facts that a sampling process needs about other hosts; see ``gnnkit.cluster.parts``."""
        return {
            "self": self.index,
            "held": self._placement.held(self.index),
            "peers": {str(host): {"address": self._addresses[host], "parts": list(parts)} for host, parts in self._sources.items()},
            "token": self._token,
            "timeout_s": self._batch_timeout_s * _SHARE,
            "start_timeout_s": self._timeout_s,
        }

    def check(self) -> None:
        """Raises what keeps this host's service from coming back."""
        if self._supervisor is not None:
            self._supervisor.check()

    def explain(self, error: GnnkitError) -> GnnkitError:
        """The error to raise for what has kept a process from starting.

        A host with another token is refused and ends; the hosts that look for it afterwards do not find it, and the error says why.
        """
        refused = () if self._supervisor is None else self._supervisor.refused
        if not isinstance(error, StartTimeout) or not refused:
            return error
        told = StartTimeout(
            f"{error.message}; a process at {', '.join(refused)} came with another token, and was refused",
            "start every host with the same token: the one that was refused has ended",
        )
        told.__cause__ = error.__cause__
        return told

    def details(self) -> Mapping[str, Any]:
        """Facts for people: no token."""
        supervisor, sources = self._supervisor, {host: self._addresses[host] for host in self._sources}
        others = ", ".join(f"host {host} at {address}" for host, address in sources.items())
        line, service = f"this is host {self.index} of {self._hosts.count}", None
        if supervisor is not None:
            address = join_address(supervisor.spec.ip, supervisor.spec.port)
            service = {"address": address, "pid": supervisor.pid, "log": supervisor.log, "restarts": supervisor.restarts}
            line += f", serving at {address}"
        return {"hosts": f"{line}; asks {others}" if others else line, "host": self.index, "sources": sources, "part_service": service}

    def close(self) -> None:
        """Gives the service up; it stays for as long as other hosts use it."""
        if self._supervisor is not None:
            self._supervisor.leave(self._stop)


def _token(hosts: Hosts, timeout_s: float) -> str:
    """Returns the secret that all hosts of the run share: given by the user, or made by rank 0 for the process group."""
    if hosts.addresses is not None:
        token = os.environ.get(TOKEN_VARIABLE, "")
        if len(token) < _LEAST_TOKEN or not token.isascii() or not token.isprintable():
            said = f"has {len(token)} characters" if token else "is not set"
            raise PlanError(
                f"{TOKEN_VARIABLE} {said}; hosts that are written down need a secret of at least {_LEAST_TOKEN} printable ASCII characters",
                "make one with `openssl rand -hex 32`, and set it on every host",
            )
        return token
    import torch.distributed as dist

    if dist.get_rank() == 0:
        store = _group_store()
        token = str(store.compare_set(_TOKEN_KEY, "", secrets.token_hex(32)).decode())
        # Who waits already is not told of what compare_set has written, where the store is one that listens on one interface only.
        store.set(_TOKEN_KEY, token)
        return token
    return _read(_TOKEN_KEY, "rank 0", timeout_s)


def _group_store() -> Any:
    import torch.distributed as dist

    return dist.distributed_c10d._get_default_store()


def _read(key: str, whose: str, timeout_s: float) -> str:
    """Reads a value that another rank has written to the process group's store."""
    store = _group_store()
    try:
        store.wait([key], timedelta(seconds=timeout_s))
    except RuntimeError as error:
        raise StartTimeout(
            f"{whose} did not say within {timeout_s:g} s where its parts are", "every rank has to make the loader, in the same order"
        ) from error
    return str(store.get(key).decode())


class HostWorkerPool(LocalWorkerPool):
    """Processes that sample some parts themselves, and ask other hosts for the others; see ``LocalWorkerPool``.

    Attributes:
        link: The connection to the other hosts; None while it is not there.
    """

    link: HostLink | None = None
    can_idle = False  # hosts depend on each other until the end

    def _exited(self, rank: int) -> Exit:
        exit_ = super()._exited(rank)
        return exit_ if self.link is None else replace(exit_, error=self.link.explain(exit_.error))

    def check(self) -> None:
        """Raises what keeps this host's part service from coming back."""
        if self.link is not None:
            self.link.check()

    def details(self) -> Mapping[str, Any]:
        """Facts about other hosts."""
        return {} if self.link is None else {**self.link.details(), "wire": self.wire}

    def stop(self) -> None:
        """Ends them; does nothing in a forked child."""
        super().stop()
        if self.link is not None and os.getpid() == self._owner:
            self.link.close()


def open_colocated(options: Colocated, num_workers: int, plan: LoaderPlan, graph: GraphHandle, on_started: OnStarted) -> LocalWorkerPool:
    """The workers of ``Colocated``; see ``PoolBackend.open_pool``."""
    _wait_for_turn(options.process_start_gap_seconds)
    check_descriptors(num_workers)
    check_start_memory(num_workers, options.threads_per_worker, graph.arrays.schema, graph.mapped_nbytes)
    sharing = GraphSharing(graph, plan.runtime.memory_budget)
    supervisor_options = SupervisorOptions(num_workers, options.threads_per_worker, worker.__name__, options.max_concurrent_producer_inits)
    store = None if plan.store is None else asdict(plan.store)
    folder = new_run(options.log_dir, {"store": None if store is None else store["path"]})
    if plan.store is None or plan.placement is None or plan.placement.is_replicated:
        workers = LocalWorkerPool(supervisor_options, folder, sharing, on_started)
        workers.setup = {"store": store, "idle_s": options.idle_timeout_s, "hosts": None}
        return workers
    linked = HostWorkerPool(supervisor_options, folder, sharing, on_started)
    try:
        linked.link = HostLink(options, plan, graph, folder.path.parent, linked.stop)
    except BaseException:
        linked.stop()
        raise
    linked.setup = {"store": store, "idle_s": None, "hosts": linked.link.setup_message()}
    return linked


def _wait_for_turn(gap_s: float) -> None:
    """The gap between the trainers of one host that the user asked for."""
    rank = os.environ.get("LOCAL_RANK", "0")
    if rank.isdigit() and gap_s:
        threading.Event().wait(int(rank) * gap_s)

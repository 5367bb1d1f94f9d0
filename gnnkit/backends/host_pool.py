"""A pool of sampling processes that this process starts, and their way to other hosts."""

from __future__ import annotations

import json
import os
import secrets
import threading
from dataclasses import asdict, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from gnnkit.cluster import worker
from gnnkit.cluster.hosts import Hosts, find_hosts, group_store, join_address, listening_address, split_address
from gnnkit.cluster.parts.starter import PartService, ServiceSpec, keep_service
from gnnkit.cluster.serving.spec import LEAST_TOKEN, TOKEN_VARIABLE
from gnnkit.errors import GnnkitError, PlanError, StartTimeout, on_error
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.runtime.pool import LocalWorkerPool, weakly
from gnnkit.runtime.supervisor import Exit, SupervisorOptions

if TYPE_CHECKING:
    from gnnkit.backends.colocated import Colocated

# Where rank 0 tells the others, in the store of the process group.
_TOKEN_KEY = "gnnkit/parts/token"
# Of the deadline of a batch, for one answer of another host: the error is to name that host.
_SHARE = 0.5


def _token(hosts: Hosts, timeout_s: float) -> str:
    """Returns the secret that all hosts of the run share: given by the user, or made by rank 0 for the process group."""
    if hosts.addresses is not None:
        token = os.environ.get(TOKEN_VARIABLE, "")
        if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable():
            said = f"has {len(token)} characters" if token else "is not set"
            raise PlanError(
                f"{TOKEN_VARIABLE} {said}; hosts that are written down need a secret of at least {LEAST_TOKEN} printable ASCII characters",
                "make one with `openssl rand -hex 32`, and set it on every host",
            )
        return token
    import torch.distributed as dist

    if dist.get_rank() == 0:
        store = group_store()
        token = str(store.compare_set(_TOKEN_KEY, "", secrets.token_hex(32)).decode())
        # Who waits already is not told of what compare_set has written, where the store is one that listens on one interface only.
        store.set(_TOKEN_KEY, token)
        return token
    return _read(_TOKEN_KEY, "rank 0", timeout_s)


def _read(key: str, whose: str, timeout_s: float) -> str:
    """Reads a value that another rank has written to the process group's store."""
    store = group_store()
    try:
        store.wait([key], timedelta(seconds=timeout_s))
    except RuntimeError as error:
        raise StartTimeout(
            f"{whose} did not say within {timeout_s:g} s where its parts are", "every rank has to make the loader, in the same order"
        ) from error
    return str(store.get(key).decode())


class HostWorkerPool(LocalWorkerPool):
    """Processes that sample some parts themselves, and ask other hosts for the others; see ``LocalWorkerPool``."""

    can_idle = False  # hosts depend on each other until the end
    _service: PartService | None = None

    def connect(self, options: Colocated, plan: LoaderPlan, graph: GraphHandle) -> None:
        """Finds the other hosts, and starts this one's part service where others need it and this is the trainer that does so.

        Args:
            options: The backend's options.
            plan: The plan of the pool's first loader; with a store, and a placement.
            graph: The graph.

        Raises:
            PlanError: The hosts are not clear, or there is no token, or the address is taken.
            StartTimeout: Another host, or this one's service, was not there in time.
        """
        placement, store, limit_s = plan.placement, plan.store, plan.runtime.start_timeout_s
        assert placement is not None and store is not None
        # Parts of several hosts and one trainer alone: the seeds are its own (gnnkit.distributed), and others like it hold the other parts.
        world_size = plan.batching.world_size
        hosts = self._hosts = find_hosts(options.hosts, world_size if world_size > 1 else None, limit_s)
        if hosts.count != placement.num_hosts:
            raise PlanError(f"the plan places parts on {placement.num_hosts} hosts, and there are {hosts.count}")
        if not hosts.in_group and hosts.addresses is None:
            hint = "call torch.distributed.init_process_group before making the loader, or write Colocated(hosts=('10.0.0.1:7000', ...))"
            raise PlanError(f"the {hosts.count} hosts have no way to tell each other where their parts are", hint)
        token, sources, held = _token(hosts, limit_s), placement.sources(hosts.index), placement.held(hosts.index)
        clients = tuple(host for host in range(placement.num_hosts) if hosts.index in placement.sources(host))
        parts = json.dumps(placement.to_json(), separators=(",", ":"))
        key = f"gnnkit/parts/{store.fingerprint[:16]}/{parts}"
        if hosts.local_rank == 0 and clients:
            spec = ServiceSpec(
                store.path,
                store.fingerprint,
                held,
                hosts.index,
                clients,
                listening_address(hosts, options.interface),
                0 if hosts.addresses is None else split_address(hosts.addresses[hosts.index])[1],
                token,
                limit_s,
                options.linger_timeout_s,
                self.folder.path.parent,
                hosts.local_size,
            )
            self._stop = weakly(self.stop)
            self._service = keep_service(spec, graph, self._stop)
            if hosts.addresses is None:
                group_store().set(f"{key}/{hosts.index}", join_address(self._service.spec.ip, self._service.spec.port))
        known = hosts.addresses
        self._sources = {host: _read(f"{key}/{host}", f"host {host}", limit_s) if known is None else known[host] for host in sources}
        if self._service is not None:
            self._service.attend(self._sources)
        self.setup["hosts"] = {
            "self": hosts.index,
            "held": held,
            "peers": {str(host): {"address": self._sources[host], "parts": list(parts)} for host, parts in sources.items()},
            "token": token,
            "timeout_s": plan.runtime.batch_timeout_s * _SHARE,
            "start_timeout_s": limit_s,
        }

    def _exited(self, rank: int) -> Exit:
        exit_ = super()._exited(rank)
        return replace(exit_, error=self._explain(exit_.error))

    def _explain(self, error: GnnkitError) -> GnnkitError:
        """The error to raise for what has kept a process from starting.

        A host with another token is refused and ends; the hosts that look for it afterwards do not find it, and the error says why.
        """
        refused = () if self._service is None else self._service.refused
        if not isinstance(error, StartTimeout) or not refused:
            return error
        told = StartTimeout(
            f"{error.message}; a process at {', '.join(refused)} came with another token, and was refused",
            "start every host with the same token: the one that was refused has ended",
        )
        told.__cause__ = error.__cause__
        return told

    def check(self) -> None:
        """Raises what keeps this host's part service from coming back."""
        if self._service is not None:
            self._service.check()

    def details(self) -> dict[str, Any]:
        """Facts about other hosts: no token."""
        index, found, service = self._hosts.index, self._service, None
        others = ", ".join(f"host {host} at {address}" for host, address in self._sources.items())
        line = f"this is host {index} of {self._hosts.count}"
        if found is not None:
            address = join_address(found.spec.ip, found.spec.port)
            service = {"address": address, "pid": found.pid, "log": found.log, "restarts": found.restarts}
            line += f", serving at {address}"
        line = f"{line}; asks {others}" if others else line
        facts = {"hosts": line, "host": index, "sources": self._sources, "part_service": service, "wire": self.wire}
        return {**super().details(), **facts}

    def stop(self) -> None:
        """Ends them, and gives the part service up, which stays for as long as other hosts use it; does nothing in a forked child."""
        super().stop()
        if self._service is not None and os.getpid() == self._owner:
            self._service.leave(self._stop)


def open_colocated(options: Colocated, num_workers: int, plan: LoaderPlan, graph: GraphHandle) -> LocalWorkerPool:
    """The workers of ``Colocated``; see ``PoolBackend.open_pool``."""
    _wait_for_turn(options.process_start_gap_seconds)
    supervisor_options = SupervisorOptions(num_workers, options.threads_per_worker, worker.__name__, options.max_concurrent_producer_inits)
    is_here = plan.store is None or plan.placement is None or plan.placement.is_replicated
    store = None if plan.store is None else asdict(plan.store)
    setup = {"store": store, "idle_s": options.idle_timeout_s if is_here else None, "hosts": None}
    kind = LocalWorkerPool if is_here else HostWorkerPool
    workers = kind(supervisor_options, options.log_dir, {"store": store and store["path"]}, graph, plan.runtime.memory_budget, setup)
    if isinstance(workers, HostWorkerPool):
        with on_error(workers.stop):
            workers.connect(options, plan, graph)
    return workers


def _wait_for_turn(gap_s: float) -> None:
    """The gap between the trainers of one host that the user asked for."""
    rank = os.environ.get("LOCAL_RANK", "0")
    if rank.isdigit() and gap_s:
        threading.Event().wait(int(rank) * gap_s)

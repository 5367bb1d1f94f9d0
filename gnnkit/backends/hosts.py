"""A crew's connection to the other hosts of a run: whom its processes ask for parts, and the service that answers theirs."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import weakref
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit.cluster.hosts import Hosts, check_group, find_hosts, join_address, listening_address, split_address
from gnnkit.cluster.part_services import keep_service
from gnnkit.cluster.part_spec import ServiceSpec
from gnnkit.cluster.part_supervisor import PartServiceSupervisor
from gnnkit.errors import PlanError, StartTimeout
from gnnkit.plan import LoaderPlan, StoreRef
from gnnkit.runtime.graph_handle import GraphHandle

if TYPE_CHECKING:
    from gnnkit.backends.colocated import Colocated

TOKEN_VARIABLE = "GNNKIT_TOKEN"
_LEAST_TOKEN = 16
# Where rank 0 tells the others, in the store of the process group.
_TOKEN_KEY = "gnnkit/parts/token"
# Of the deadline of a batch, for one answer of another host: the error is to name that host.
_SHARE = 0.5
_numbers = itertools.count()


def link_hosts(options: Colocated, plan: LoaderPlan, graph: GraphHandle, log_root: Path, stop: Callable[[], None]) -> HostLink | None:
    """Connects a crew to the other hosts; None where every host holds everything.

    Args:
        options: The backend's options.
        plan: The plan of the crew's first loader.
        graph: The graph.
        log_root: Folder that the folders of logs are in.
        stop: Ends the crew; a bound method, held weakly.

    Raises:
        PlanError: The hosts are not clear, or there is no token, or the address is taken.
        StartTimeout: Another host, or this one's service, was not there in time.
    """
    if plan.placement is None or plan.placement.is_replicated or plan.store is None:
        return None
    return HostLink(options, plan, graph, log_root, stop)


class HostLink:
    """The connection of one crew.

    Args:
        options: The backend's options.
        plan: The plan of the crew's first loader; with a store, and a placement.
        graph: The graph.
        log_root: See ``link_hosts``.
        stop: See ``link_hosts``.
    """

    def __init__(self, options: Colocated, plan: LoaderPlan, graph: GraphHandle, log_root: Path, stop: Callable[[], None]) -> None:
        placement, store = plan.placement, plan.store
        assert placement is not None and store is not None
        self._timeout_s, self._batch_timeout_s = plan.runtime.start_timeout_s, plan.runtime.batch_timeout_s
        self._placement, self._number = placement, next(_numbers)
        # Parts of several hosts and one trainer alone: the seeds are its own (gnnkit.distributed), and others like it hold the other parts.
        world_size = plan.batching.world_size
        self._hosts = find_hosts(options.hosts, world_size if world_size > 1 else None, self._timeout_s)
        if self._hosts.count != placement.num_hosts:
            raise PlanError(f"the plan places parts on {placement.num_hosts} hosts, and there are {self._hosts.count}")
        check_group(self._hosts)
        self._fingerprint, self._token = store.fingerprint, _token(self._hosts, self._timeout_s)
        self._keeper = self._serve(options, store, graph, log_root, stop)
        try:
            if self._keeper is not None and self._hosts.addresses is None:
                _group_store().set(self._key(self.index), join_address(self._keeper.spec.ip, self._keeper.spec.port))
            self._addresses = self._find_addresses()
        except BaseException:  # nobody else would give the service up
            self.close()
            raise
        if self._keeper is not None:
            self._keeper.attend(self._addresses)

    @property
    def index(self) -> int:
        """This host."""
        return self._hosts.index

    @cached_property
    def _sources(self) -> dict[int, tuple[int, ...]]:
        return self._placement.sources(self.index)

    def _serve(
        self, options: Colocated, store: StoreRef, graph: GraphHandle, log_root: Path, stop: Callable[[], None]
    ) -> PartServiceSupervisor | None:
        """Starts this host's service where others need it and this is the trainer that does so."""
        placement, hosts = self._placement, self._hosts
        clients = tuple(host for host in range(placement.num_hosts) if hosts.index in placement.sources(host))
        if hosts.local_rank != 0 or not clients:
            return None
        weak = weakref.WeakMethod(stop)
        spec = ServiceSpec(
            store.path,
            store.fingerprint,
            placement.hosts[hosts.index],
            hosts.index,
            clients,
            listening_address(hosts, options.interface),
            0 if hosts.addresses is None else split_address(hosts.addresses[hosts.index])[1],
            self._token,
            self._timeout_s,
            options.linger_timeout_s,
            log_root,
        )
        return keep_service(spec, graph, self._number, lambda: _call(weak))

    def _key(self, host: int) -> str:
        parts = json.dumps([list(parts) for parts in self._placement.hosts], separators=(",", ":"))
        return f"gnnkit/parts/{self._fingerprint[:16]}/{parts}/{host}"

    def _find_addresses(self) -> dict[int, str]:
        if self._hosts.addresses is not None:
            return {host: self._hosts.addresses[host] for host in self._sources}
        return {host: _read(self._key(host), f"host {host}", self._timeout_s) for host in self._sources}

    def greeting(self) -> dict[str, Any]:
        """What a sampling process has to know; see ``gnnkit.cluster.parts``."""
        return {
            "self": self.index,
            "parts": list(self._placement.hosts[self.index]),
            "peers": {str(host): {"address": self._addresses[host], "parts": list(parts)} for host, parts in self._sources.items()},
            "token": self._token,
            "timeout_s": self._batch_timeout_s * _SHARE,
            "start_timeout_s": self._timeout_s,
        }

    def check(self) -> None:
        """Raises what keeps this host's service from coming back."""
        if self._keeper is not None:
            self._keeper.check()

    def details(self) -> Mapping[str, Any]:
        """Facts for people: no token."""
        keeper, sources = self._keeper, {host: self._addresses[host] for host in self._sources}
        others = ", ".join(f"host {host} at {address}" for host, address in sources.items())
        line, service = f"this is host {self.index} of {self._hosts.count}", None
        if keeper is not None:
            address = join_address(keeper.spec.ip, keeper.spec.port)
            service = {"address": address, "pid": keeper.pid, "log": keeper.log, "restarts": keeper.restarts}
            line += f", serving at {address}"
        return {"hosts": f"{line}; asks {others}" if others else line, "host": self.index, "sources": sources, "part_service": service}

    def close(self) -> None:
        """Gives the service up; it stays for as long as other hosts use it."""
        if self._keeper is not None:
            self._keeper.leave(self._number)


def _call(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    stop = method()
    if stop is not None:
        stop()


def _token(hosts: Hosts, timeout_s: float) -> str:
    """What all hosts of the run know and nobody else: as the user gave it, or made by rank 0 for the process group."""
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
    """What another rank has written to the process group's store."""
    store = _group_store()
    try:
        store.wait([key], timedelta(seconds=timeout_s))
    except RuntimeError as error:
        raise StartTimeout(
            f"{whose} did not say within {timeout_s:g} s where its parts are", "every rank has to make the loader, in the same order"
        ) from error
    return str(store.get(key).decode())

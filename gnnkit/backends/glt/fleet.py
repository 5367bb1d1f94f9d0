"""The processes that run graphlearn-torch for one loader: where they are, how they find each other, start and end."""

from __future__ import annotations

import itertools
import json
import os
import socket
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gnnkit.backends.glt import driver
from gnnkit.backends.session import SLICE_S
from gnnkit.cluster.hosts import ONE_HOST, Hosts, environment_int, find_hosts, listening_address
from gnnkit.errors import GnnkitError, PlanError, StartTimeout, WorkerDied
from gnnkit.events import EventSink, Stage
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.runtime.limits import check_descriptors
from gnnkit.runtime.runs import new_run
from gnnkit.runtime.supervisor import ChildProcess, Exit, Supervisor, SupervisorOptions
from gnnkit.runtime.wire import Message

if TYPE_CHECKING:
    from gnnkit.backends.glt.options import Glt

_LOOPBACK = "127.0.0.1"
_numbers = itertools.count()
# torch's RPC finds the others through a store that we have opened, as under torchrun it would find torchrun's: it opens none itself then.
_OWN_STORE = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}


@dataclass(frozen=True)
class GltProcess:
    """A process of one trainer's.

    Attributes:
        role: "worker", "server" or "client".
        part: The part that it holds; None for a client.
    """

    role: str
    part: int | None


class GltGroup:
    """The processes that sample together for one trainer of each host.

    Where every host holds the whole graph, each trainer has all of them to itself.

    Args:
        options: The backend's options.
        plan: The plan.
        num_parts: Parts of the graph.

    Attributes:
        hosts: The hosts that share the parts; one host where nothing is shared.
        parts: The parts that this host's processes hold.
        num_parts: All parts.
        address: Where this host's processes listen.

    Raises:
        PlanError: The hosts are not clear, or one of them holds no part.
    """

    def __init__(self, options: Glt, plan: LoaderPlan, num_parts: int) -> None:
        self._options, self.num_parts = options, num_parts
        self.hosts: Hosts = ONE_HOST
        self.parts: tuple[int, ...] = tuple(range(num_parts))
        self.address = _LOOPBACK
        placement = plan.placement
        if placement is None or placement.is_replicated:
            return
        self.hosts = find_hosts(None, plan.batching.world_size, plan.runtime.start_timeout_s)
        if self.hosts.count != placement.num_hosts or not self.hosts.in_group:
            raise PlanError(
                f"the plan places parts on {placement.num_hosts} hosts, and the process group has {self.hosts.count}",
                "call torch.distributed.init_process_group on every host before making the loader",
            )
        holders = [next(host for host, held in enumerate(placement.hosts) if part in held) for part in range(num_parts)]
        idle = sorted(set(range(placement.num_hosts)) - set(holders))
        if idle:
            raise PlanError(
                f"with Glt() every host holds parts of its own, and hosts {idle} of {placement.num_hosts} have none",
                f"gnnkit.partition(..., {placement.num_hosts}) makes a store with enough parts",
            )
        self.parts = tuple(part for part in range(num_parts) if holders[part] == self.hosts.index)
        self._number = next(_numbers)  # of the clusters that span hosts: every host counts the same ones
        self.address = listening_address(self.hosts, options.interface)

    @cached_property
    def members(self) -> list[GltProcess]:
        """This host's processes; the first one serves the trainer."""
        if self._options.mode == "worker":
            return [GltProcess("worker", part) for part in self.parts]
        return [GltProcess("client", None), *(GltProcess("server", part) for part in self.parts)]

    @property
    def is_first(self) -> bool:
        """Whether the processes of all hosts meet at this one."""
        return self.hosts.index == 0

    @property
    def _local_rank(self) -> int:
        return environment_int("LOCAL_RANK") or self.hosts.local_rank

    def opens(self) -> dict[str, int]:
        """The meeting places that this host's first process opens, with their ports; 0 is a free one.

        Sampling workers meet under "samplers", of each client by themselves; servers and clients under "group".
        """
        with_servers = self._options.mode == "server_client"
        port = 0 if self._options.master_port is None else self._options.master_port + 2 * self._local_rank
        found = {"samplers": port} if with_servers or self.is_first else {}
        if with_servers and self.is_first:
            found["group"] = port + 1 if port else 0
        return found

    def place(self, member: GltProcess, own: dict[str, int], met: dict[str, Any]) -> dict[str, Any]:
        """Returns the place of a process, as JSON values for ``backends.glt.setup.GltPlace``.

        Args:
            member: The process.
            own: Ports of the meeting places that this host has opened.
            met: ``{"address": ..., "ports": {...}}`` of the first host.
        """
        with_servers = self._options.mode == "server_client"
        samplers = [self.address, own["samplers"]] if with_servers else [met["address"], met["ports"]["samplers"]]
        return {
            "part": self.parts[0] if member.part is None else member.part,
            "num_parts": self.num_parts,
            "samplers": samplers,
            "group": [met["address"], met["ports"]["group"]] if with_servers else None,
            "client": self.hosts.index,
            "num_clients": self.hosts.count if with_servers else 0,
        }

    def announce(self, ports: dict[str, int]) -> None:
        """Tells the other hosts where to meet, through the process group's store."""
        if self.hosts.count > 1 and self.is_first:
            _group_store().set(self._key, json.dumps({"address": self.address, "ports": ports}))

    def meeting(self, ports: dict[str, int]) -> dict[str, Any] | None:
        """Returns the address and the ports at which processes meet; None while the first host has not published them.

        Args:
            ports: The ports that this host has opened.
        """
        if self.is_first:
            return {"address": self.address, "ports": ports}
        store = _group_store()
        return dict(json.loads(store.get(self._key))) if store.check([self._key]) else None

    @property
    def _key(self) -> str:
        return f"gnnkit/glt/{self._number}/{self.hosts.local_rank}"

    def environment(self) -> dict[str, str]:
        """Variables of the processes."""
        found = {**_OWN_STORE, "TP_SOCKET_IFNAME": _interface_of(self.address)}
        if self._options.graph_mode != "CPU":  # children see no GPU otherwise
            import torch

            every = ",".join(map(str, range(torch.cuda.device_count())))
            found["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", every)
        return found


def _interface_of(address: str) -> str:
    """The interface that has an address: torch's RPC takes names."""
    import psutil

    for name, items in psutil.net_if_addrs().items():
        if any(item.address == address and item.family in (socket.AF_INET, socket.AF_INET6) for item in items):
            return name
    raise PlanError(f"no interface of this host has the address {address}", "name one: Glt(interface='eth0')")


def _group_store() -> Any:
    import torch.distributed as dist

    return dist.distributed_c10d._get_default_store()


_AGAIN = "iterate the loader again: its processes are started anew"
_AGAIN_EVERYWHERE = "make the loader again on every host"


class Fleet:
    """Starts the processes, introduces them to each other, and listens to them.

    Args:
        options: The backend's options.
        plan: The plan.
        graph: The graph.
        events: Receives the stage "start".

    Attributes:
        supervisor: The processes; the first one serves the trainer.
        lanes: Workers that can be given batches.
        failure: Why they are of no use any more, or None.
    """

    def __init__(self, options: Glt, plan: LoaderPlan, graph: GraphHandle, events: EventSink) -> None:
        self._options, self._plan, self._events = options, plan, events
        self._owner = os.getpid()
        self.failure: GnnkitError | None = None
        self.lanes = 0
        self._ports: dict[str, int] | None = None
        self._joined = False
        self._cluster = GltGroup(options, plan, graph.arrays.num_parts)
        count = len(self._cluster.members)
        check_descriptors(count)
        self._shared = graph.share_now() if plan.store is None else None
        folder = new_run(options.log_dir, {"store": None if plan.store is None else plan.store.path})
        supervisor_options = SupervisorOptions(count, 1, module=driver.__name__, environment=self._cluster.environment())
        self.supervisor = Supervisor(supervisor_options, folder, _weak_set_up(weakref.ref(self)))

    def start(self) -> None:
        """Starts every process and waits until all have found each other.

        Raises:
            StartTimeout: One was not ready in time, or ended.
            PlanError: graphlearn-torch cannot be used.
        """
        count, ready = self.supervisor.options.num_workers, 0
        self.supervisor.start_missing()
        with Stage(self._events, "start", label="graphlearn-torch", total=count, unit="processes") as stage:
            while ready < count:
                for _, message in self.listen():
                    if message.kind == "ready":
                        self.lanes = max(self.lanes, message.body["lanes"])
                        ready += 1
                        stage.update(ready)
                self._introduce()
                overdue = self.supervisor.overdue(self._plan.runtime.start_timeout_s)
                failure = self.failure or (None if overdue is None else overdue[1])
                if failure is not None:
                    raise failure
                if ready < count:
                    self.supervisor.poller().poll(SLICE_S * 1000)

    def set_up(self, child: ChildProcess) -> None:
        """Tells a process that has just been started what it is there for."""
        member, shared = self._cluster.members[child.rank], self._shared
        child.wire.send(
            "setup",
            () if shared is None else (shared.block.fd,),
            plan=self._plan.to_json(),
            graph=None if shared is None else dict(shared.description),
            parts=list(self._cluster.parts) if member.part is None else [member.part],
            role=member.role,
            address=self._cluster.address,
            open=self._cluster.opens() if child.rank == 0 else {},
            options={
                "num_workers": self._options.num_workers,
                "graph_mode": self._options.graph_mode,
                "worker_concurrency": self._options.worker_concurrency,
                "channel_bytes": self._options.channel_bytes,
                "rpc_timeout_s": self._options.rpc_timeout_s,
            },
            log=str(child.log),
        )

    def _introduce(self) -> None:
        """Tells every process where the others are, once that is known."""
        if self._joined or self._ports is None:
            return
        met = self._cluster.meeting(self._ports)
        if met is not None:
            self._joined = True
            for rank, member in enumerate(self._cluster.members):
                self.supervisor.send(rank, "join", place=self._cluster.place(member, self._ports, met))

    def listen(self) -> Iterator[tuple[int, Message]]:
        """Yields what has arrived; a death becomes ``failure``."""
        for rank, what in self.supervisor.listen():
            if isinstance(what, Exit):
                self.failure = self.failure or self._explained(what.error)
            elif what.kind == "event":
                if rank == 0:
                    self._ports = what.body["ports"]
                    self._cluster.announce(self._ports)
            else:
                yield rank, what

    @property
    def can_start_again(self) -> bool:
        """Whether this host can replace the processes by itself: those of other hosts would not meet new ones."""
        return self._cluster.hosts.count == 1

    def _explained(self, error: GnnkitError) -> GnnkitError:
        if isinstance(error, (WorkerDied, StartTimeout)):
            explained = type(error)(error.message, _AGAIN if self.can_start_again else _AGAIN_EVERYWHERE)
            explained.__cause__ = error.__cause__
            return explained
        return error

    def close(self) -> None:
        """Ends the processes, and with them graphlearn-torch's own; does nothing in a forked child."""
        if os.getpid() == self._owner:
            self.supervisor.stop()


def _weak_set_up(fleet: weakref.ref[Fleet]) -> Any:
    def set_up(child: ChildProcess) -> None:
        target = fleet()
        if target is not None:
            target.set_up(child)

    return set_up

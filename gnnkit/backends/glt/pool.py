"""The trainer's side of ``Glt``: the pool of processes that run graphlearn-torch."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from gnnkit.backends.glt.options import DRAWN_BY, Glt
from gnnkit.cluster.hosts import ONE_HOST, Hosts, environment_int, find_hosts, group_store, interface_to, listening_address
from gnnkit.errors import GnnkitError, PlanError
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.runtime.pool import LocalWorkerPool
from gnnkit.runtime.process_status import ProcessStatus, look_at
from gnnkit.runtime.supervisor import ChildProcess, Exit, SupervisorOptions, children_of
from gnnkit.runtime.wire import Handed, Message

_LOOPBACK = "127.0.0.1"
_MODULE = "gnnkit.backends.glt.driver"
_numbers = itertools.count()
# torch's RPC finds the others through a store that we have opened, as under torchrun it would find torchrun's: it opens none itself then.
_OWN_STORE = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}


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
        if placement.whole_structure:
            raise PlanError("Glt() has structure and features of a part on one host", "placement='partition', or backend='colocated'")
        self.hosts = find_hosts(None, plan.batching.world_size, plan.runtime.start_timeout_s)
        if self.hosts.count != placement.num_hosts or not self.hosts.in_group:
            raise PlanError(
                f"the plan places parts on {placement.num_hosts} hosts, and the process group has {self.hosts.count}",
                "call torch.distributed.init_process_group on every host before making the loader",
            )
        holders = [next(host for host, held in enumerate(placement.hosts) if part in held) for part in range(num_parts)]
        if idle := sorted(set(range(placement.num_hosts)) - set(holders)):
            raise PlanError(
                f"with Glt() every host holds parts of its own, and hosts {idle} of {placement.num_hosts} have none",
                f"gnnkit.partition(..., {placement.num_hosts}) makes a store with enough parts",
            )
        self.parts = tuple(part for part in range(num_parts) if holders[part] == self.hosts.index)
        self._number = next(_numbers)  # of the clusters that span hosts: every host counts the same ones
        self.address = listening_address(self.hosts, options.interface)

    @property
    def members(self) -> list[int | None]:
        """The parts that this host's processes hold, None for a client; the first one serves the trainer."""
        return [*self.parts] if self._options.mode == "worker" else [None, *self.parts]

    def role(self, part: int | None) -> str:
        """Returns the role of the process that holds a part, or of the client."""
        return "worker" if self._options.mode == "worker" else "client" if part is None else "server"

    def opens(self) -> dict[str, int]:
        """The meeting places that this host's first process opens, with their ports; 0 is a free one.

        Sampling workers meet under "samplers", of each client by themselves; servers and clients under "group".
        """
        with_servers = self._options.mode == "server_client"
        local_rank = environment_int("LOCAL_RANK") or self.hosts.local_rank
        port = 0 if self._options.master_port is None else self._options.master_port + 2 * local_rank
        is_first = self.hosts.index == 0
        found = {"samplers": port} if with_servers or is_first else {}
        if with_servers and is_first:
            found["group"] = port + 1 if port else 0
        return found

    def place(self, part: int | None, own: dict[str, int], met: dict[str, Any]) -> dict[str, Any]:
        """Returns the place of a process, as JSON values for ``gnnkit.backends.glt.loop.GltPlace``.

        Args:
            part: The part that it holds; None for a client.
            own: Ports of the meeting places that this host has opened.
            met: ``{"address": ..., "ports": {...}}`` of the first host.
        """
        with_servers = self._options.mode == "server_client"
        samplers = [self.address, own["samplers"]] if with_servers else [met["address"], met["ports"]["samplers"]]
        return {
            "part": self.parts[0] if part is None else part,
            "num_parts": self.num_parts,
            "samplers": samplers,
            "group": [met["address"], met["ports"]["group"]] if with_servers else None,
            "client": self.hosts.index,
            "num_clients": self.hosts.count if with_servers else 0,
        }

    def announce(self, ports: dict[str, int]) -> None:
        """Tells the other hosts where to meet, through the process group's store."""
        if self.hosts.count > 1 and self.hosts.index == 0:
            group_store().set(self._key, json.dumps({"address": self.address, "ports": ports}))

    def meeting(self, ports: dict[str, int]) -> dict[str, Any] | None:
        """Returns the address and the ports at which processes meet; None while the first host has not published them.

        Args:
            ports: The ports that this host has opened.
        """
        if self.hosts.index == 0:
            return {"address": self.address, "ports": ports}
        store = group_store()
        return dict(json.loads(store.get(self._key))) if store.check([self._key]) else None

    @property
    def _key(self) -> str:
        return f"gnnkit/glt/{self._number}/{self.hosts.local_rank}"

    def environment(self) -> dict[str, str]:
        """Variables of the processes."""
        interface = interface_to(self.address)
        if interface is None:
            raise PlanError(f"no interface of this host has the address {self.address}", "name one: Glt(interface='eth0')")
        found = {**_OWN_STORE, "TP_SOCKET_IFNAME": interface}  # torch's RPC takes names
        if self._options.graph_mode != "CPU":  # children see no GPU otherwise
            import torch

            every = ",".join(map(str, range(torch.cuda.device_count())))
            found["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", every)
        return found


_AGAIN = "iterate the loader again: its processes are started anew"
_AGAIN_EVERYWHERE = "make the loader again on every host"


class GltPool(LocalWorkerPool):
    """The processes that sample together, of which the first one serves the trainer and is the pool's only worker; see ``LocalWorkerPool``.

    They find each other once: when one ends, all others end, too, and are started anew, where they are all of this host.

    Args:
        options: The backend's options.
        lanes: graphlearn-torch's workers that the trainer has to itself.
        plan: The plan.
        graph: The graph.

    Raises:
        PlanError: See ``GltGroup``.
    """

    can_idle = False

    def __init__(self, options: Glt, lanes: int, plan: LoaderPlan, graph: GraphHandle) -> None:
        group = self._group = GltGroup(options, plan, graph.arrays.num_parts)
        advice = _AGAIN if group.hosts.count == 1 else _AGAIN_EVERYWHERE
        self._told = {"plan": plan.to_json(), "options": asdict(options), "lanes": lanes, "advice": advice}
        self._ports: dict[str, int] | None = None
        self._have_met = False
        self._error: GnnkitError | None = None
        store = None if plan.store is None else asdict(plan.store)
        started = SupervisorOptions(len(group.members), 1, _MODULE, environment=group.environment(), advice=advice)
        super().__init__(started, options.log_dir, {"store": store and store["path"]}, graph, 0, {"store": store, "idle_s": None})

    def _set_up(self, child: ChildProcess) -> None:
        """Tells a process that has just been started what it is, and has the first one open the places where all meet."""
        role, opened = self._group.role(self._group.members[child.rank]), self._group.opens() if child.rank == 0 else {}
        child.wire.send("role", role=role, address=self._group.address, open=opened, log=str(child.log), **self._told)

    def _introduce(self) -> None:
        """Tells every process where the others are, once that is known."""
        if self._ports is None or self._have_met or (met := self._group.meeting(self._ports)) is None:
            return
        self._have_met = True
        for rank, child in self.alive.items():
            part = self._group.members[rank]
            self.setup["hosts"] = {"held": {"parts": list(self._group.parts) if part is None else [part]}}
            self.setup["place"] = self._group.place(part, self._ports, met)
            super()._set_up(child)

    @property
    def expected(self) -> int:
        """One: the others sample nothing for the loader."""
        return 1

    def send(self, rank: int, kind: str, fds: Handed = (), /, **body: object) -> None:
        """Sends a message to the process that serves the trainer; loaders are nothing to the others."""
        if rank == 0:
            super().send(rank, kind, fds, **body)

    def listen(self) -> Iterator[tuple[int, Message | Exit]]:
        """Yields what the process that serves the trainer says, and the end of any as its end."""
        for rank, what in super().listen():
            if isinstance(what, Message) and "ports" in what.body:
                if rank == 0:
                    self._ports = what.body["ports"]
                    self._group.announce(self._ports)
            elif rank == 0 or isinstance(what, Exit):
                yield 0, what
        self._introduce()

    def _exited(self, rank: int) -> Exit:
        exit_ = super()._exited(rank)
        self._error = exit_.error
        super().restart()
        return exit_

    def start_missing(self) -> None:
        """Starts all of them, once those of before have ended."""
        if not self.alive:
            self._ports, self._have_met = None, False
        if not self._retiring:
            super().start_missing()

    def attend(self, start_timeout_s: float, *, revive: bool) -> tuple[int, GnnkitError] | None:
        """As its base; but the processes of other hosts would not meet new ones of this host."""
        if self._error is not None and self._group.hosts.count > 1:
            return (0, self._error) if revive else None
        return super().attend(start_timeout_s, revive=revive)

    def restart(self) -> None:
        """Raises PlanError: graphlearn-torch's processes find each other once."""
        raise PlanError("graphlearn-torch's processes cannot be restarted inside an epoch", "close the loader and make it again")

    def statuses(self) -> Iterator[ProcessStatus]:
        """Yields the status of each process, and of graphlearn-torch's workers."""
        yield from super().statuses()
        for rank, child in sorted(self.alive.items()):
            for number, pid in enumerate(children_of(child.pid)):
                yield look_at(f"{self.lane(rank)}, child {number}", pid, child.log)

    def describe(self, rank: int) -> str | None:
        """Returns the names of all processes and their states in the system: any of them may be what the others wait for."""
        said = [f"{status.name} (pid {status.pid}) is {status.state}" for status in self.statuses()]
        return ", ".join(said) if rank == 0 and said else None

    def details(self) -> dict[str, Any]:
        """Facts for people, of which the first is who draws the batches."""
        return {"drawn by": DRAWN_BY, **super().details()}

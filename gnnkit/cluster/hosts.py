"""Which hosts a run has, and which of them this one is: from what the user wrote, from the process group, or from torchrun.

Topology comes from what every rank says about itself or was told, never from host names (``gnnkit.cluster.topology``).
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from gnnkit.cluster.exchange import environment_int, exchange, own_facts, store_host
from gnnkit.cluster.topology import group_ranks
from gnnkit.errors import PlanError

HOST_VARIABLE = "GNNKIT_HOST"
_INIT_HINT = "call torch.distributed.init_process_group before making the loader, or write Colocated(hosts=('10.0.0.1:7000', ...))"


@dataclass(frozen=True)
class Hosts:
    """The hosts of a run, as one process sees them.

    Attributes:
        count: Number of hosts.
        index: This one.
        local_rank: This trainer among those of its host.
        local_size: Trainers of this host.
        memory: Bytes of memory of the smallest host; None where hosts have not told each other.
        addresses: ``"address:port"`` of each host's part service where the user wrote them; else None.
        in_group: Whether all trainers are in one process group, through whose store they can tell each other things.
        is_one_system: Whether all of them are logical hosts of one running system.
    """

    count: int = 1
    index: int = 0
    local_rank: int = 0
    local_size: int = 1
    memory: int | None = None
    addresses: tuple[str, ...] | None = None
    in_group: bool = False
    is_one_system: bool = True


ONE_HOST = Hosts()


def find_hosts(addresses: Sequence[str] | None, world_size: int | None, timeout_s: float) -> Hosts:
    """The hosts of the trainers of one loader.

    The first of these that is there decides: ``addresses``; torchrun's environment where it says that there is one node; the process
    group, whose ranks tell each other about themselves, so that all of them have to call this; torchrun's environment.

    Args:
        addresses: ``"address:port"`` of each host, as the user wrote them.
        world_size: Number of trainers that seeds are dealt to; None: each has seeds of its own, and the whole process group counts.
        timeout_s: Seconds to wait for the others.

    Raises:
        PlanError: What there is contradicts itself, or does not say which host this is.
        StartTimeout: Other ranks did not come in time.
    """
    if addresses is not None:
        return _written_hosts(tuple(addresses))
    if world_size == 1 or _is_one_node():
        return ONE_HOST
    trainers = _group_size()
    if trainers is not None and world_size in (None, trainers):
        return _group_hosts(timeout_s)
    count, index = environment_int("GROUP_WORLD_SIZE"), environment_int("GROUP_RANK")
    if count is None or index is None:
        return ONE_HOST
    return Hosts(count, index, environment_int("LOCAL_RANK") or 0, environment_int("LOCAL_WORLD_SIZE") or 1)


def _is_one_node() -> bool:
    """Whether torchrun, or a store that was reached by loopback, says that every trainer is here."""
    nodes, local = environment_int("GROUP_WORLD_SIZE"), environment_int("LOCAL_WORLD_SIZE")
    if nodes is not None or local is not None:
        return nodes == 1 or local == environment_int("WORLD_SIZE")
    return _group_size() is not None and is_loopback(store_host())


def _group_size() -> int | None:
    """Ranks of the process group; None without one."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return int(distributed.get_world_size())


def _group_hosts(timeout_s: float) -> Hosts:
    import torch.distributed as dist

    facts = exchange(own_facts(None, None), "found", timeout_s)
    nodes, rank = group_ranks(facts), dist.get_rank()
    index = next(node for node, ranks in enumerate(nodes) if rank in ranks)
    return Hosts(
        count=len(nodes),
        index=index,
        local_rank=nodes[index].index(rank),
        local_size=len(nodes[index]),
        memory=min(fact.memory for fact in facts),
        in_group=True,
        is_one_system=bool(facts[0].host) and all(fact.host == facts[0].host for fact in facts),
    )


def _written_hosts(addresses: tuple[str, ...]) -> Hosts:
    local_rank, local_size = environment_int("LOCAL_RANK") or 0, environment_int("LOCAL_WORLD_SIZE") or 1
    return Hosts(len(addresses), _own_index(addresses), local_rank, local_size, addresses=addresses, is_one_system=False)


def _own_index(addresses: tuple[str, ...]) -> int:
    told = environment_int(HOST_VARIABLE)
    if told is not None:
        if told >= len(addresses):
            raise PlanError(f"{HOST_VARIABLE}={told}, but there are {len(addresses)} hosts: {list(addresses)}", "hosts count from 0")
        return told
    here = [index for index, address in enumerate(addresses) if _is_local(split_address(address)[0])]
    if len(here) != 1:
        found = "none of them is an address" if not here else f"hosts {here} are all addresses"
        raise PlanError(
            f"{found} of this host: {list(addresses)}", f"set {HOST_VARIABLE} to this host's place in hosts=..., counting from 0"
        )
    return here[0]


def _is_local(name: str) -> bool:
    """Whether an address is one of this host's: a socket can be bound to it."""
    try:
        family, kind, _, _, target = socket.getaddrinfo(name, 0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(target)
    except OSError:
        return False
    return True


def split_address(text: str, *, least_port: int = 1) -> tuple[str, int]:
    """``"10.0.0.1:7000"``, ``"name:7000"`` or ``"[fe80::1]:7000"`` as address and port.

    Args:
        text: The address.
        least_port: 0 allows the port 0, which means any that is free.

    Raises:
        PlanError: It is none of these.
    """
    name, _, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    bare = name[1:-1] if name.startswith("[") and name.endswith("]") else name
    if not bare or (":" in bare and bare == name) or not port.isascii() or not port.isdigit() or not least_port <= int(port) <= 65535:
        raise PlanError(f"{text!r} is no address of a host", "write an address and a port, for example '10.0.0.1:7000' or '[fd00::1]:7000'")
    return bare, int(port)


def join_address(address: str, port: int) -> str:
    """Reverses ``split_address``."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def is_loopback(address: str) -> bool:
    """Whether an address only means the host that uses it."""
    return address == "localhost" or address == "::1" or address.startswith("127.")


def listening_address(hosts: Hosts, interface: str | None) -> str:
    """The one address on which this host's part service listens.

    Args:
        hosts: The hosts.
        interface: Name of an interface, or an address; None takes the written address of this host, or that from which the process
            group's store is reached.

    Raises:
        PlanError: There is no such interface, it has no address, or the address is of no use to other hosts.
    """
    if interface is not None:
        return interface_address(interface)
    if hosts.addresses is not None:
        name = split_address(hosts.addresses[hosts.index])[0]
        return checked_address(str(socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)[0][4][0]), name)
    target = store_host() or os.environ.get("MASTER_ADDR", "")
    own = source_address(target) if target else ""
    if not own or (is_loopback(own) and not hosts.is_one_system):
        found = f"{target!r} is reached from {own!r}" if own else f"{target!r} cannot be reached"
        raise PlanError(
            f"the address that other hosts reach this one by is not clear: the process group's store at {found}",
            "name the interface: Colocated(interface='eth0'), or set MASTER_ADDR to an address that every host can reach",
        )
    return own


def source_address(target: str) -> str:
    """The address from which packets to ``target`` leave; empty where it cannot be reached. Nothing is sent."""
    try:
        family, kind, _, _, where = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(where)
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def interface_address(interface: str) -> str:
    """The address of an interface of this host, by its name or the address itself.

    Raises:
        PlanError: There is no such interface, or it has no address.
    """
    import psutil

    known = psutil.net_if_addrs()
    if interface not in known:
        try:
            address = str(socket.getaddrinfo(interface, 0, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0][4][0])
        except OSError:
            raise PlanError(
                f"there is no interface {interface!r} on this host", f"interfaces: {sorted(known)}; or give an address"
            ) from None
        return checked_address(address, interface)
    for family in (socket.AF_INET, socket.AF_INET6):
        for item in known[interface]:
            if item.family == family and "%" not in item.address:
                return str(item.address)
    raise PlanError(f"the interface {interface!r} has no address", f"interfaces: {sorted(known)}")


def checked_address(address: str, said: str) -> str:
    """An address that means this host and one interface of it.

    Raises:
        PlanError: It means every interface, or another host.
    """
    if address in ("0.0.0.0", "::"):
        raise PlanError(f"{said!r} means every interface", "name the one interface, or its address, that other hosts reach this one by")
    if not _is_local(address):
        raise PlanError(f"{said!r} ({address}) is no address of this host")
    return address


def check_group(hosts: Hosts) -> None:
    """Refuses hosts that have no way to find each other.

    Raises:
        PlanError: There is neither a process group nor a list of hosts.
    """
    if not hosts.in_group and hosts.addresses is None:
        raise PlanError(f"the {hosts.count} hosts have no way to tell each other where their parts are", _INIT_HINT)

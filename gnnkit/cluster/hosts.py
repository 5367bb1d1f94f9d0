"""Hosts: their addresses and interfaces, and which of them holds which parts."""

from __future__ import annotations

import json
import math
import os
import shlex
import socket
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from gnnkit.errors import PlanError, StartTimeout
from gnnkit.files import os_errors
from gnnkit.host import total_memory
from gnnkit.plan import Placement, PlacementWord
from gnnkit.source import GraphSource
from gnnkit.storage.layout import BuildOptions, is_held
from gnnkit.storage.manifest import Manifest, planned_manifest
from gnnkit.units import format_bytes
from gnnkit.waiting import Deadline

_LOCAL_RANK_HINT = "start every rank with torchrun, or give local_process_rank and local_process_world_size on every rank"
_EQUAL_HINT = "every node needs the same number of processes: start as many on each"


@dataclass(frozen=True, slots=True)
class RankFacts:
    """The facts that a rank publishes about itself.

    Attributes:
        host: Identity of the running system and of its namespaces; processes with the same one share memory and files. Empty
            where the system has none.
        local_rank: Its place on its node, where that was given.
        local_world_size: Processes of its node, where that was given.
        node_rank: Its node, where that was given.
        address: Address of its host that other ranks have used, or empty.
        route: Address from which its packets leave, or empty.
        memory: Bytes of memory that its host has for it.
    """

    host: str
    local_rank: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    address: str = ""
    route: str = ""
    memory: int = 0


def group_ranks(facts: Sequence[RankFacts]) -> list[list[int]]:
    """Groups ranks by node.

    Ranks that were told their local rank are grouped by the node rank they were told. Without one they are grouped by host, and
    where a local rank occurs more than once on a host, each occurrence belongs to a further node on it. Ranks that were told
    nothing are grouped by host.

    Args:
        facts: One per rank, in the order of ranks.

    Returns:
        The ranks of each node, in the order of their local ranks; all nodes have equally many.

    Raises:
        PlanError: Only some ranks were told, the local ranks of a node are not 0, 1, 2, ..., or nodes have different counts.
    """
    told = [fact.local_rank is not None for fact in facts]
    if any(told) and not all(told):
        without = [rank for rank, known in enumerate(told) if not known]
        raise PlanError(f"ranks {without} do not know their local rank, the other ranks do", _LOCAL_RANK_HINT)
    nodes = _told_nodes(facts) if all(told) else _host_nodes(facts)
    if len(set(map(len, nodes))) > 1:
        listed = ", ".join(f"node {node} has {len(ranks)} (ranks {', '.join(map(str, ranks))})" for node, ranks in enumerate(nodes))
        raise PlanError(f"nodes have different numbers of ranks: {listed}", _EQUAL_HINT)
    return nodes


def _host_nodes(facts: Sequence[RankFacts]) -> list[list[int]]:
    nodes: dict[str, list[int]] = {}
    for rank, fact in enumerate(facts):
        if not fact.host:
            raise PlanError(f"rank {rank} runs on a system without a boot id, which would tell who shares its host", _LOCAL_RANK_HINT)
        nodes.setdefault(fact.host, []).append(rank)
    return list(nodes.values())


def _told_nodes(facts: Sequence[RankFacts]) -> list[list[int]]:
    by_node = all(fact.node_rank is not None for fact in facts)
    seen: dict[tuple[str, int], int] = defaultdict(int)
    nodes: dict[Any, dict[int, int]] = {}
    for rank, fact in enumerate(facts):
        local_rank = int(fact.local_rank or 0)
        key: Any = fact.node_rank
        if not by_node:
            key = (fact.host, seen[fact.host, local_rank])
            seen[fact.host, local_rank] += 1
        members = nodes.setdefault(key, {})
        if local_rank in members:
            raise PlanError(
                f"ranks {members[local_rank]} and {rank} are both local rank {local_rank} of node {key}",
                "processes that were started by a rank inherit its LOCAL_RANK: give them their own, or unset it",
            )
        members[local_rank] = rank
    ordered = [nodes[key] for key in sorted(nodes)] if by_node else list(nodes.values())
    for node, members in enumerate(ordered):
        _check_node(node, members, facts)
    return [[members[local_rank] for local_rank in range(len(members))] for members in ordered]


def _check_node(node: int, members: dict[int, int], facts: Sequence[RankFacts]) -> None:
    if sorted(members) != list(range(len(members))):
        raise PlanError(f"node {node} has the local ranks {sorted(members)}, expected 0 to {len(members) - 1}", _LOCAL_RANK_HINT)
    for rank in members.values():
        if (expected := facts[rank].local_world_size) is not None and expected != len(members):
            raise PlanError(
                f"rank {rank} was told that its node has {expected} processes, "
                f"but {len(members)} are there: ranks {sorted(members.values())}",
                _EQUAL_HINT,
            )


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Processes that share these see the same files, shared memory, processes and interfaces.
_NAMESPACES = ("ipc", "mnt", "net", "pid")
_ROUTE_PROBE = "192.0.2.1"  # an address for documentation: decides the route, nothing is sent


def host_identity() -> str:
    """Identity of the running system and of the namespaces this process is in; empty where there is no boot id."""
    try:
        boot_id = _BOOT_ID.read_text().strip()
        namespaces = [os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES]
    except OSError:
        return ""
    return " ".join([boot_id, *namespaces])


def environment_int(name: str) -> int | None:
    """A number of torchrun's environment, or None where it is not set.

    Raises:
        PlanError: The variable is no whole number of at least 0.
    """
    text = os.environ.get(name)
    if text is None or text == "":
        return None
    if not text.isascii() or not text.isdigit():
        raise PlanError(f"{name}={text!r} in the environment is no whole number", "unset it, or start the process with torchrun")
    return int(text)


def own_facts(local_rank: int | None, local_world_size: int | None) -> RankFacts:
    """Returns the facts that this rank, in an initialised process group, publishes about itself.

    Args:
        local_rank: Its local rank where it was given; None takes the environment's, with node rank and local world size.
        local_world_size: The number of processes of its node where it was given.
    """
    node_rank = None
    if local_rank is None:
        local_rank, local_world_size = environment_int("LOCAL_RANK"), environment_int("LOCAL_WORLD_SIZE")
        node_rank = environment_int("GROUP_RANK")
    address = store_host() or os.environ.get("MASTER_ADDR", "")
    return RankFacts(host_identity(), local_rank, local_world_size, node_rank, address, source_address(_ROUTE_PROBE), total_memory())


def exchange(facts: RankFacts, topic: str, timeout_s: float) -> list[RankFacts]:
    """Publishes this rank's facts and waits for those of all others.

    Args:
        facts: This rank's.
        topic: Ranks that exchange under the same name see each other's facts; a rank's facts stay there for later calls.
        timeout_s: Seconds to wait for all of them.

    Returns:
        One per rank of the process group, in the order of ranks.

    Raises:
        StartTimeout: A rank did not publish in time; names the missing ranks.
    """
    import torch.distributed as dist

    rank, world_size = dist.get_rank(), dist.get_world_size()
    store = group_store()
    keys = [f"gnnkit/runtime/{topic}/{other}" for other in range(world_size)]
    store.set(keys[rank], json.dumps(asdict(facts)))
    deadline = Deadline(timeout_s)
    for other, key in enumerate(keys):
        try:
            store.wait([key], timedelta(seconds=max(deadline.left_s, 0.001)))
        except RuntimeError as error:
            missing = [other, *(late for late in range(other + 1, world_size) if not store.check([keys[late]]))]
            raise StartTimeout(
                f"rank {rank} heard nothing from ranks {missing} within {timeout_s:g} s",
                "every rank of the process group has to get here: all make the loader or call resolve_runtime, in the same way",
            ) from error
    return [RankFacts(**json.loads(store.get(key))) for key in keys]


def group_store() -> Any:
    """The store of the process group, in which ranks tell each other things."""
    import torch.distributed as dist

    return dist.distributed_c10d._get_default_store()


def store_host() -> str:
    """The address under which this rank reached the process group's store, where that is a TCP store."""
    store = group_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return str(getattr(store, "host", ""))


HOST_VARIABLE = "GNNKIT_HOST"


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
        local_rank, local_size = environment_int("LOCAL_RANK") or 0, environment_int("LOCAL_WORLD_SIZE") or 1
        return Hosts(len(addresses), _own_index(addresses), local_rank, local_size, addresses=tuple(addresses), is_one_system=False)
    if world_size == 1 or _is_one_node():
        return ONE_HOST
    if (trainers := _group_size()) is not None and world_size in (None, trainers):
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


def _own_index(addresses: Sequence[str]) -> int:
    if (told := environment_int(HOST_VARIABLE)) is not None:
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


def interface_to(address: str) -> str | None:
    """Name of the interface by which packets to ``address`` leave; None where the system does not say."""
    import psutil

    own = source_address(address)
    for name, addresses in psutil.net_if_addrs().items():
        if own and any(item.address.split("%")[0] == own for item in addresses):
            return name
    # All of 127.0.0.0/8 is local, but only one address of it is listed.
    return "lo" if own.startswith("127.") else None


def meeting_store(
    address: str, port: int, rank: int, world_size: int | None, timeout: timedelta, listener: socket.socket | None = None
) -> Any:
    """A key-value store for all ranks, which rank 0 keeps and which listens on ``address`` only; it is for the caller to hold.

    Args:
        address: Address or name of rank 0's host.
        port: Port on which rank 0 listens.
        rank: This process.
        world_size: Number of processes; None where it is not known.
        timeout: For reaching rank 0, and for each wait.
        listener: For rank 0: a socket that listens there already; taken over. None opens one.

    Raises:
        PlanError: Rank 0 cannot listen there.
        RuntimeError: Rank 0 was not reached in time.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch.distributed has no list of its names

    if rank != 0:
        return TCPStore(address, port, world_size, False, timeout, wait_for_workers=False)
    hint = "the address must be one of the host of rank 0, with that port free"
    with os_errors(f"rank 0 cannot listen on {address}:{port}", None, hint):
        # The store's own listener would be bound to every interface.
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        listener = listener or socket.create_server((address, port), family=family, backlog=max(128, world_size or 0))
    # The store owns the descriptor from here on.
    return TCPStore(address, port, world_size, True, timeout, wait_for_workers=False, master_listen_fd=listener.detach(), use_libuv=False)


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


def require_free(ip: str, port: int, what: str, hint: str) -> None:
    """Refuses an address that is in use: a service itself would share it with another of the same user.

    Args:
        ip: The address.
        port: The port; 0 is always free.
        what: What cannot be done, for the message.
        hint: What to do about it.

    Raises:
        PlanError: It is in use, or none of this host's.
    """
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe, os_errors(f"{what} at {join_address(ip, port)}", None, hint):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((ip, port))


PlacementOption: TypeAlias = Literal["auto"] | PlacementWord | Mapping[int, Sequence[int]] | Placement
_WORDS = ("auto", *get_args(PlacementWord))
# A store that takes no more than this share of the smallest host's memory is held by every host whole.
REPLICATED_SHARE = 4


def check_placement(value: Any) -> None:
    """Checks what can be checked without hosts and a store.

    Raises:
        PlanError: It is neither a word nor ``{host: parts}``.
    """
    if isinstance(value, Placement):
        return
    if isinstance(value, Mapping):
        for host, parts in value.items():
            numbers = [host, *parts] if isinstance(parts, Sequence) and not isinstance(parts, str) else [None]
            if any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in numbers):
                raise PlanError(f"placement[{host!r}] is {parts!r}", "write host numbers and lists of part numbers: {0: [0, 1], 1: [2]}")
        return
    if not isinstance(value, str) or value not in _WORDS:
        raise PlanError(
            f"placement must be one of {list(_WORDS)} or {{host: parts}}, got {value!r}",
            "'partition' divides the parts among the hosts, 'replicate' gives each host all of them, 'auto' decides by their memory",
        )


def place(value: PlacementOption, manifest: Manifest, path: str | Path, hosts: Hosts) -> Placement | None:
    """The placement of a store's parts.

    Args:
        value: What the user said.
        manifest: The store's manifest.
        path: The store's folder or URL, for a message.
        hosts: The hosts.

    Returns:
        None where one host has everything.

    Raises:
        PlanError: It does not fit the hosts or the parts.
    """
    num_parts = manifest.num_parts
    if isinstance(value, Placement):  # a plan that was made before
        if hosts.count == 1:
            return None
        found = _written(dict(enumerate(value.hosts)), num_parts, hosts)
        return found and replace(found, whole_structure=value.whole_structure)
    if isinstance(value, Mapping):
        return _written(value, num_parts, hosts)
    if hosts.count == 1:
        return None
    if value == "auto" and hosts.memory is None:  # hosts that cannot compare their memory go by what all see
        value = "replicate" if num_parts < hosts.count else "partition"
    elif value == "auto":
        value = fitting_placement(manifest.sizes, num_parts, hosts.count, hosts.memory or 0)
    every = tuple(range(num_parts))
    if value == "replicate":
        return Placement((every,) * hosts.count)
    if num_parts < hosts.count:
        raise PlanError(
            f"the store {path} has {num_parts} part{'s' if num_parts > 1 else ''} for {hosts.count} hosts",
            f"gnnkit partition {shlex.quote(str(path))} {hosts.count}   # or placement='replicate': every host holds all of it",
        )
    return shares(num_parts, hosts.count, whole_structure=value == "features")


def shares(num_parts: int, num_hosts: int, *, whole_structure: bool = False) -> Placement:
    """Each host's share of the parts, of which there are at least as many as hosts."""
    ends = [num_parts * host // num_hosts for host in range(num_hosts + 1)]
    return Placement(tuple(tuple(range(first, end)) for first, end in zip(ends[:-1], ends[1:], strict=True)), whole_structure)


def held_nbytes(sizes: Mapping[str, int], word: PlacementWord, num_parts: int, num_hosts: int) -> int:
    """Bytes of a store on the host that holds most.

    Args:
        sizes: ``{file of the store: bytes}``.
        word: What the hosts hold of it.
        num_parts: Its parts: at least as many as hosts, where they do not hold all of it.
        num_hosts: Hosts.
    """
    if word == "replicate":
        return sum(sizes.values())
    held = map(shares(num_parts, num_hosts, whole_structure=word == "features").held, range(num_hosts))
    return max(sum(size for name, size in sizes.items() if is_held(name, **own)) for own in held)


def fitting_placement(sizes: Mapping[str, int], num_parts: int, num_hosts: int, memory: int) -> PlacementWord:
    """The placement of which least crosses between hosts, among those that fit a part of the smallest one's memory.

    Args:
        sizes: See ``held_nbytes``.
        num_parts: Parts of the store.
        num_hosts: Hosts.
        memory: Bytes of memory of the smallest one.
    """
    if held_nbytes(sizes, "replicate", num_parts, num_hosts) * REPLICATED_SHARE <= memory:
        return "replicate"
    if num_parts >= num_hosts and held_nbytes(sizes, "features", num_parts, num_hosts) * REPLICATED_SHARE <= memory:
        return "features"
    return "partition"


def fitting_cache_ratio(graph: GraphSource, options: BuildOptions, budget: int) -> float:
    """The ``cache_ratio`` of a store of which a host with one part, and with the structure of the others, holds so many bytes.

    Args:
        graph: The graph, or a store of it.
        options: How it is to be built.
        budget: Bytes that the host may hold.

    Returns:
        At most what makes every row of the other parts a replicated one; in steps of 1/1000.

    Raises:
        PlanError: It would hold more without replicated rows; or see ``check_buildable``.
    """
    counts = {t: {name: len(ids) for name, ids in splits.items()} for t, splits in graph.splits.items()}

    def held(cache_ratio: float) -> int:
        manifest = planned_manifest("", graph.schema, counts, replace(options, cache_ratio=cache_ratio), graph.metadata)
        return held_nbytes(manifest.file_sizes(), "features", options.num_parts, options.num_parts)

    none, every = held(0.0), held(1.0)
    if none > budget:
        have = f"memory_budget is {format_bytes(budget, 1024)}"
        what = f"a part of {options.num_parts} and the structure of the others take {format_bytes(none, 1024)}, and {have}"
        raise PlanError(what, "cut the graph into more parts, or leave memory_budget out")
    most = 1.0 - 1.0 / options.num_parts
    return math.floor(1000 * min(most, (budget - none) / (every - none))) / 1000 if every > none else 0.0


def _written(value: Mapping[int, Sequence[int]], num_parts: int, hosts: Hosts) -> Placement | None:
    if unknown_hosts := sorted(set(value) - set(range(hosts.count))):
        raise PlanError(f"placement names host {unknown_hosts[0]}, but there are {hosts.count}", "hosts count from 0")
    if unknown := sorted({part for parts in value.values() for part in parts} - set(range(num_parts))):
        raise PlanError(f"placement names part {unknown[0]}, but the store has {num_parts}", "parts count from 0")
    if missing := sorted(set(range(num_parts)) - {part for parts in value.values() for part in parts}):
        raise PlanError(f"placement says nothing about the parts {missing}", "every part must be on some host")
    if hosts.count == 1:
        return None
    return Placement(tuple(tuple(sorted(set(value.get(host, ())))) for host in range(hosts.count)))


def describe(placement: Placement) -> str:
    """A placement on one line."""
    if placement.is_replicated:
        return f"all of it on each of {placement.num_hosts} hosts"
    held = "; ".join(f"host {host}: {_parts(parts)}" for host, parts in enumerate(placement.hosts))
    return f"structure on every host; features of {held}" if placement.whole_structure else held


def _parts(parts: Sequence[int]) -> str:
    return f"part{'s' if len(parts) != 1 else ''} {', '.join(map(str, parts))}" if parts else "no part"

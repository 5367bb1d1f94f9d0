"""The place of this process in a run: the records of GiGL, and ``resolve_runtime``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from gnnkit.bounds import keep_whole_number
from gnnkit.cluster.hosts import environment_int, exchange, group_ranks, own_facts
from gnnkit.distributed import process_group
from gnnkit.distributed.graph_client import check_rank, get_context, worker_group
from gnnkit.errors import PlanError


@dataclass(frozen=True)
class DistributedRuntimeInfo:
    """Ranks and sizes of a run, as one process sees them; made by ``resolve_runtime``.

    A node is a group of processes that share a host's memory and files: a machine, a container, or one of several launches on
    one machine. Every node has the same number of processes, so ``world_size == node_world_size * local_world_size``; ranks
    need not be numbered node by node.

    Attributes:
        node_world_size: Number of nodes.
        node_rank: This process's node, from 0.
        rank: This process among all.
        world_size: Number of processes.
        local_rank: This process among those of its node, from 0.
        local_world_size: Processes of each node.
        master_ip_address: Address, or resolvable name, of the host of rank 0.
        should_cleanup_distributed_context: Whether ``resolve_runtime`` created the process group; ``cleanup`` destroys it then.
    """

    node_world_size: int
    node_rank: int
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    master_ip_address: str
    should_cleanup_distributed_context: bool = False

    def __post_init__(self) -> None:
        if self.world_size != self.node_world_size * self.local_world_size or self.world_size < 1:
            raise PlanError(
                f"{self.node_world_size} nodes of {self.local_world_size} processes are not world_size={self.world_size} processes",
                "every node needs the same number of processes",
            )
        check_rank("rank", self.rank, self.world_size)
        check_rank("node_rank", self.node_rank, self.node_world_size)
        check_rank("local_rank", self.local_rank, self.local_world_size)

    def cleanup(self) -> None:
        """Destroys the process group if ``resolve_runtime`` created it; a borrowed one is left alone. Repeating it does nothing."""
        if self.should_cleanup_distributed_context:
            process_group.destroy_created()


_LOOPBACK = "127.0.0.1"
_SERVERS, _TRAINERS = "GNNKIT_NUM_SERVERS", "GNNKIT_NUM_CLIENTS"
_RANK = "RANK"


@dataclass(frozen=True)
class GraphStoreInfo:
    """The servers and the trainers of a run.

    Addresses and ports are kept as they are given: nothing of gnnkit asks for them, because trainers have joined the servers before.

    Attributes:
        num_storage_nodes: Servers.
        num_compute_nodes: Hosts of trainers.
        cluster_master_ip: Address of the first host of all.
        storage_cluster_master_ip: Address of the first server's host.
        compute_cluster_master_ip: Address of the first trainer's host.
        cluster_master_port: Port on the first.
        storage_cluster_master_port: Port on the second.
        compute_cluster_master_port: Port on the third.
        num_processes_per_compute: Trainers of each host.
        rpc_master_port: Port of GiGL's RPC.
        rpc_wait_port: Port on which GiGL's trainers wait.
        readiness_uri: File that GiGL's servers write when they are ready.

    Raises:
        PlanError: A number is less than 1.
    """

    num_storage_nodes: int
    num_compute_nodes: int
    cluster_master_ip: str = _LOOPBACK
    storage_cluster_master_ip: str = _LOOPBACK
    compute_cluster_master_ip: str = _LOOPBACK
    cluster_master_port: int = 0
    storage_cluster_master_port: int = 0
    compute_cluster_master_port: int = 0
    num_processes_per_compute: int = 1
    rpc_master_port: int = 0
    rpc_wait_port: int = 0
    readiness_uri: str = ""

    def __post_init__(self) -> None:
        for name in ("num_storage_nodes", "num_compute_nodes", "num_processes_per_compute"):
            keep_whole_number(self, name, 1)

    @property
    def num_cluster_nodes(self) -> int:
        """Servers and hosts of trainers together."""
        return self.num_storage_nodes + self.num_compute_nodes

    @property
    def compute_cluster_world_size(self) -> int:
        """Trainers of all hosts."""
        return self.num_compute_nodes * self.num_processes_per_compute

    @property
    def compute_node_rank(self) -> int:
        """This host among those of trainers, where ``RANK`` counts hosts, those of trainers first.

        Raises:
            PlanError: ``RANK`` is not set, or that of a server.
        """
        return self._rank(0, self.num_compute_nodes, "a host of trainers")

    @property
    def storage_node_rank(self) -> int:
        """This server among the servers, where ``RANK`` counts hosts, those of trainers first.

        Raises:
            PlanError: ``RANK`` is not set, or that of a host of trainers.
        """
        return self._rank(self.num_compute_nodes, self.num_cluster_nodes, "a server") - self.num_compute_nodes

    def _rank(self, low: int, end: int, what: str) -> int:
        rank = environment_int(_RANK)
        if rank is None:
            raise PlanError(f"{_RANK} is not set in the environment", "a launcher sets it: hosts of trainers first, then servers")
        if not low <= rank < end:
            raise PlanError(f"{_RANK}={rank} is not {what}: those are {low} to {end - 1}")
        return rank


def get_graph_store_info() -> GraphStoreInfo:
    """The servers and trainers of the run that this trainer belongs to.

    The servers are those that were joined; before, ``GNNKIT_NUM_SERVERS`` and ``GNNKIT_NUM_CLIENTS`` in the environment say how many
    servers and trainers there are. Every rank of the process group calls it.

    Raises:
        PlanError: There is no process group, only one of the variables is set or it is no number, or there are more or fewer ranks.
    """
    if not process_group.is_initialized():
        raise PlanError("there is no process group", "call torch.distributed.init_process_group first")
    runtime, context = resolve_runtime(), get_context()
    if context is not None and context.is_client():
        servers, trainers = context.num_servers(), context.world_size
    else:
        told, counted = environment_int(_SERVERS), environment_int(_TRAINERS)
        if told is None or counted is None:
            raise PlanError(
                f"{_SERVERS}={told} and {_TRAINERS}={counted} in the environment do not say how many servers and trainers there are",
                "set both, or join the servers first, with init_client() or initialize()",
            )
        servers, trainers = told, counted
    if trainers != runtime.world_size:
        raise PlanError(
            f"there are {trainers} trainers, and {runtime.world_size} ranks in the process group", "every trainer is a rank of it"
        )
    return GraphStoreInfo(
        servers,
        runtime.node_world_size,
        cluster_master_ip=runtime.master_ip_address,
        compute_cluster_master_ip=runtime.master_ip_address,
        num_processes_per_compute=runtime.local_world_size,
    )


# Where a process group is created for a legacy context.
DEFAULT_MASTER_INFERENCE_PORT = 10000
_WAYS = (
    "call torch.distributed.init_process_group first, start the script with torchrun, or say where the process stands: "
    "resolve_runtime(rank=0, world_size=1) for a single one"
)


@dataclass(frozen=True)
class DistributedContext:
    """The legacy description of a run by machines; ``resolve_runtime`` takes any object with these attributes.

    Attributes:
        main_worker_ip_address: Address of machine 0.
        global_rank: This machine, from 0.
        global_world_size: Number of machines.
    """

    main_worker_ip_address: str
    global_rank: int
    global_world_size: int


def resolve_runtime(  # noqa: PLR0913
    context: DistributedContext | None = None,
    local_process_rank: int | None = None,
    local_process_world_size: int | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    node_rank: int | None = None,
    master_ip_address: str | None = None,
    master_port: int = DEFAULT_MASTER_INFERENCE_PORT,
    timeout_s: float = 120.0,
) -> DistributedRuntimeInfo:
    """Says where this process stands among all processes of a run.

    The first of these that is there decides:

    1. ``rank`` and ``world_size``, given;
    2. ``context``, a legacy description by machines; a gloo process group is created unless there is one;
    3. the initialised process group: its ranks tell each other about themselves, so all of them have to call this;
    4. torchrun's environment.

    Args:
        context: Machines and the address of the first; needs both local arguments.
        local_process_rank: This process among those of its node; None takes LOCAL_RANK, and where a process group has no
            LOCAL_RANK either, its ranks are grouped by host (boot id and namespaces).
        local_process_world_size: Processes of each node; goes with ``local_process_rank``.
        rank: This process among all; goes with ``world_size``.
        world_size: Number of processes.
        node_rank: This process's node, where ``rank`` is given and ranks are not numbered node by node.
        master_ip_address: Address of rank 0's host; None finds it out.
        master_port: Port of the group that is created for a ``context``.
        timeout_s: Seconds to wait for other ranks.

    Returns:
        The record. Call its ``cleanup()`` at the end: it destroys a process group that was created here, and only that.

    Raises:
        PlanError: There is nothing to go by, or what there is contradicts itself; names the counts.
        StartTimeout: Other ranks did not come in time.
    """
    if (local_process_rank is None) != (local_process_world_size is None):
        raise PlanError(
            "local_process_rank and local_process_world_size go together, "
            f"got local_process_rank={local_process_rank!r} and local_process_world_size={local_process_world_size!r}"
        )
    local = (local_process_rank, local_process_world_size)
    if rank is not None or world_size is not None:
        if context is not None:
            raise PlanError("both a context and rank and world_size are given", "give one of them")
        return _from_numbers(rank, world_size, local, node_rank, master_ip_address or _LOOPBACK)
    if node_rank is not None:
        raise PlanError(f"node_rank={node_rank!r} is given without rank and world_size", "give all three, or none of them")
    if context is not None:
        return _from_context(context, local, master_port, timeout_s)
    if process_group.is_initialized():
        return _from_process_group(local, master_ip_address, timeout_s)
    return _from_environment(local, master_ip_address)


def _from_numbers(
    rank: int | None, world_size: int | None, local: tuple[int | None, int | None], node_rank: int | None, master: str
) -> DistributedRuntimeInfo:
    if rank is None or world_size is None:
        raise PlanError(f"rank and world_size go together, got rank={rank!r} and world_size={world_size!r}")
    local_rank, local_world_size = (0, 1) if local == (None, None) and world_size == 1 else local
    if local_rank is None or local_world_size is None:
        raise PlanError(
            f"rank={rank} of world_size={world_size} does not say which ranks share a node",
            f"on one host: local_process_rank={rank}, local_process_world_size={world_size}",
        )
    if local_world_size < 1 or world_size % local_world_size:
        raise PlanError(
            f"world_size={world_size} processes are not nodes of {local_world_size} processes each",
            "every node needs the same number of processes",
        )
    if node_rank is None:
        node_rank, expected = divmod(rank, local_world_size)
        if expected != local_rank:
            raise PlanError(
                f"rank {rank} would be local rank {expected} if ranks were numbered node by node, but is local rank {local_rank}",
                "give node_rank too",
            )
    return DistributedRuntimeInfo(world_size // local_world_size, node_rank, rank, world_size, local_rank, local_world_size, master)


def _from_context(
    context: DistributedContext, local: tuple[int | None, int | None], master_port: int, timeout_s: float
) -> DistributedRuntimeInfo:
    local_rank, local_world_size = local
    if local_rank is None or local_world_size is None:
        raise PlanError(
            "a context needs local_process_rank and local_process_world_size too",
            "for example local_process_rank=0, local_process_world_size=1",
        )
    node_rank, node_world_size = context.global_rank, context.global_world_size
    rank, world_size = node_rank * local_world_size + local_rank, node_world_size * local_world_size
    created = not process_group.is_initialized()
    runtime = DistributedRuntimeInfo(
        node_world_size, node_rank, rank, world_size, local_rank, local_world_size, context.main_worker_ip_address, created
    )
    if created:
        process_group.create(context.main_worker_ip_address, master_port, rank, world_size, timeout_s)
        return runtime
    import torch.distributed as dist

    found = (dist.get_rank(), dist.get_world_size())
    if found != (rank, world_size):
        raise PlanError(
            f"the context makes this process rank {rank} of {world_size}, the process group makes it rank {found[0]} of {found[1]}",
            "leave the context out: the process group says it all",
        )
    return runtime


def _from_process_group(local: tuple[int | None, int | None], master: str | None, timeout_s: float) -> DistributedRuntimeInfo:
    import torch.distributed as dist

    topic = "found" if local == (None, None) else "given"
    facts = exchange(own_facts(*local), topic, timeout_s)
    nodes = group_ranks(facts)
    rank = dist.get_rank()
    node_rank = next(node for node, ranks in enumerate(nodes) if rank in ranks)
    first = facts[0]
    if not master:
        one_host = bool(first.host) and all(fact.host == first.host for fact in facts)
        master = first.address or (_LOOPBACK if one_host else first.route)
    if not master:
        raise PlanError("the host of rank 0 has no address that other hosts could use", "give master_ip_address")
    return DistributedRuntimeInfo(len(nodes), node_rank, rank, len(facts), nodes[node_rank].index(rank), len(nodes[node_rank]), master)


def _from_environment(local: tuple[int | None, int | None], master: str | None) -> DistributedRuntimeInfo:
    rank, world_size = environment_int("RANK"), environment_int("WORLD_SIZE")
    if rank is None and world_size is None:
        raise PlanError("there is neither a process group nor torchrun's environment, and no rank is given", _WAYS)
    if rank is None or world_size is None:
        missing = "RANK" if rank is None else "WORLD_SIZE"
        raise PlanError(f"the environment has no {missing}, but the other of RANK and WORLD_SIZE", _WAYS)
    if local == (None, None):
        local = environment_int("LOCAL_RANK"), environment_int("LOCAL_WORLD_SIZE")
    if None in local and world_size > 1:
        raise PlanError(
            f"RANK={rank} and WORLD_SIZE={world_size} are in the environment, but LOCAL_RANK and LOCAL_WORLD_SIZE are not both",
            "call torch.distributed.init_process_group first: ranks can then find out which of them share a host",
        )
    master = master or os.environ.get("MASTER_ADDR") or (_LOOPBACK if world_size == (local[1] or 1) else None)
    if not master:
        raise PlanError(
            "several nodes need an address, and the environment has no MASTER_ADDR", "set MASTER_ADDR, or give master_ip_address"
        )
    runtime = _from_numbers(rank, world_size, local, environment_int("GROUP_RANK"), master)
    expected = environment_int("GROUP_WORLD_SIZE")
    if expected not in (None, runtime.node_world_size):
        raise PlanError(
            f"GROUP_WORLD_SIZE={expected} nodes with LOCAL_WORLD_SIZE={runtime.local_world_size} processes here are not "
            f"WORLD_SIZE={world_size} processes",
            "every node needs the same number of processes: start as many on each",
        )
    return runtime


def runtime_of(context: Any, local_rank: int | None, local_world_size: int | None, inputs: Any) -> DistributedRuntimeInfo:
    """Returns this process's place in the run; a process without a run is the only one.

    Args:
        context: See ``resolve_runtime``.
        local_rank: See ``resolve_runtime``.
        local_world_size: See ``resolve_runtime``.
        inputs: Seeds or links as they were given. Those of a dataset's part are dealt to the processes of its host, which have to be known.

    Raises:
        PlanError: See ``resolve_runtime``.
    """
    if context is not None or process_group.is_initialized() or environment_int("WORLD_SIZE") is not None:
        return resolve_runtime(context, local_rank, local_world_size)
    group = worker_group()
    rank, world_size = (0, 1) if group is None else (group.rank, group.world_size)
    which = inputs[-1] if isinstance(inputs, tuple) else inputs
    if local_rank is local_world_size is None and which is not None and not isinstance(which, str):
        # A worker group says nothing of hosts, and nothing is dealt.
        local_rank, local_world_size = rank, world_size
    return resolve_runtime(None, local_rank, local_world_size, rank=rank, world_size=world_size)

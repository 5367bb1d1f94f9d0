"""``GraphStoreInfo``: how many servers and trainers a run has, with the fields of GiGL's record."""

from __future__ import annotations

from dataclasses import dataclass

from gnnkit.cluster.exchange import environment_int
from gnnkit.distributed import process_group
from gnnkit.distributed.context import get_context
from gnnkit.distributed.resolve import resolve_runtime
from gnnkit.errors import PlanError

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
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise PlanError(f"{name} must be a whole number of at least 1, got {value!r}")

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

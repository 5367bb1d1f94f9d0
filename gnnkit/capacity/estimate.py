"""What each node of a run needs, and what would hold it back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from gnnkit.capacity.batch import BatchSize
from gnnkit.capacity.graph import SizedGraph
from gnnkit.capacity.rates import Rates
from gnnkit.cluster.placing import REPLICATED_SHARE
from gnnkit.errors import PlanError
from gnnkit.runtime.preflight import start_memory
from gnnkit.units import format_bytes

# Batches under way: one with each worker's thread, those ahead of the trainer, and those that it holds; see ``backends.slots``.
_AHEAD_AND_HELD, _SLOT_HEADROOM = 5, 1.25
_MOST_WORKERS = 16


@dataclass(frozen=True)
class Cluster:
    """The machines.

    Attributes:
        nodes: Machines with trainers.
        procs_per_node: Trainers on each.
        storage_nodes: Machines with storage servers; 0: trainers' machines hold the graph themselves.
        memory: Bytes of memory of each machine.
        network: Bytes a second of each machine's network; None: not said.
        cpus: Processors of each machine.
        train_rate: Seeds a second that one trainer's model takes; None: not said.
    """

    nodes: int
    procs_per_node: int
    storage_nodes: int
    memory: int
    network: float | None
    cpus: int
    train_rate: float | None = None

    def __post_init__(self) -> None:
        for name in ("nodes", "procs_per_node", "cpus"):
            if getattr(self, name) < 1:
                raise PlanError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.storage_nodes < 0:
            raise PlanError(f"storage_nodes must be at least 0, got {self.storage_nodes}")
        if self.train_rate is not None and not self.train_rate > 0:
            raise PlanError(f"train_rate must be more than 0 seeds/s, got {self.train_rate}", "loader.profile() measures it")

    @property
    def holders(self) -> int:
        """Machines that hold the graph."""
        return self.storage_nodes or self.nodes


@dataclass(frozen=True)
class Estimate:
    """What one run needs.

    Attributes:
        placement: "replicate" or "partition".
        batch: ``nodes``, ``edges``, ``bytes`` of a batch, and the ``source`` of these numbers.
        disk: Bytes on each machine that holds the graph.
        memory: Bytes by what they are for, on each machine with trainers.
        storage_memory: The same on each storage machine.
        sampled: Seeds a second that one machine samples, whatever the network allows.
        network: Bytes that travel into one machine for each seed that it trains on.
        limits: Seeds a second of one machine with trainers, by what limits them.
        bottleneck: What is least of those, or "memory" where the graph does not fit.
        notes: What else should be known.
    """

    placement: Literal["replicate", "partition"]
    batch: Mapping[str, Any]
    disk: int
    memory: Mapping[str, int]
    storage_memory: Mapping[str, int]
    sampled: float
    network: float
    limits: Mapping[str, float]
    bottleneck: str
    notes: tuple[str, ...] = field(default=())

    @property
    def seeds_per_s(self) -> float:
        """Seeds a second of one machine with trainers."""
        return min(self.limits.values())

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable form."""
        return {**asdict(self), "seeds_per_s": self.seeds_per_s, "notes": list(self.notes)}


def estimate(graph: SizedGraph, cluster: Cluster, batch: BatchSize, rates: Rates, batch_size: int, with_edge: bool) -> Estimate:
    """Works out what a run needs.

    Args:
        graph: The graph, in as many parts as it will have.
        cluster: The machines.
        batch: Its batches.
        rates: What one thread does.
        batch_size: Seeds of a batch.
        with_edge: Whether batches carry edge ids.

    Raises:
        PlanError: There are fewer parts than machines that hold some.
    """
    nbytes, holders = batch.nbytes(graph.schema, batch_size, with_edge), cluster.holders
    placement: Literal["replicate", "partition"] = (
        "replicate" if holders == 1 or (not cluster.storage_nodes and graph.nbytes * REPLICATED_SHARE <= cluster.memory) else "partition"
    )
    if placement == "partition" and len(graph.part_bytes) < holders:
        raise PlanError(f"{len(graph.part_bytes)} parts for {holders} machines that hold the graph", f"cut it into {holders} or more")
    held = _held(graph, holders) if placement == "partition" else graph.nbytes
    samplers = max(1, cluster.cpus - 1) if cluster.storage_nodes else cluster.procs_per_node * _workers(cluster)
    processes = start_memory(samplers, 1, graph.schema)
    ring = int((samplers / cluster.procs_per_node + _AHEAD_AND_HELD) * cluster.procs_per_node * nbytes * _SLOT_HEADROOM)
    graph_and_samplers = {"graph": held, "sampling processes": processes}
    memory = {"batches under way": ring} | ({} if cluster.storage_nodes else graph_and_samplers)
    storage = graph_and_samplers | {"batches under way": 2 * samplers * nbytes} if cluster.storage_nodes else {}
    own = batch_size / rates.seconds(batch.num_edges, batch.row_bytes(graph.schema)) * min(samplers, cluster.cpus)
    sampled = own * cluster.storage_nodes / cluster.nodes if cluster.storage_nodes else own
    travels = _network(cluster, placement, batch, graph, nbytes) / batch_size
    limits, notes = {"sampling": sampled}, []
    if cluster.network is not None and travels:
        senders = min(1.0, cluster.storage_nodes / cluster.nodes) if cluster.storage_nodes else 1.0
        limits["network"] = cluster.network * senders / travels
    if cluster.train_rate is not None:
        limits["training"] = cluster.train_rate * cluster.procs_per_node
    bottleneck = min(limits, key=lambda name: limits[name])
    for where, needs in (("a machine with trainers", memory), ("a storage machine", storage)):
        total = sum(needs.values())
        if total > cluster.memory:
            bottleneck = "memory"
            what = f"{where} needs {format_bytes(total)} and has {format_bytes(cluster.memory)}"
            notes.append(f"{what}: what of the graph does not fit is read from disk whenever it is wanted, and no rate here holds")
    sizes = {"nodes": batch.num_nodes, "edges": batch.num_edges, "bytes": nbytes, "source": batch.source}
    return Estimate(placement, sizes, held, memory, storage, sampled, travels, limits, bottleneck, tuple(notes))


def _workers(cluster: Cluster) -> int:
    """Sampling processes of one trainer, as ``Colocated(num_workers="auto")`` takes them."""
    return max(1, min(_MOST_WORKERS, cluster.cpus // cluster.procs_per_node - 1))


def _held(graph: SizedGraph, holders: int) -> int:
    """Bytes of the machine that holds most: parts are shared out in order, as ``placement="partition"`` does."""
    parts = graph.part_bytes
    ends = [len(parts) * host // holders for host in range(holders + 1)]
    return graph.shared_bytes + max(sum(parts[first:end]) for first, end in zip(ends[:-1], ends[1:], strict=True))


def _network(cluster: Cluster, placement: str, batch: BatchSize, graph: SizedGraph, nbytes: int) -> float:
    """Bytes that travel into a trainers' machine for a batch: all of it from storage machines, else what lies in other machines' parts.

    Of that it is asked with 8 bytes for a node, and told 8 for an edge. Parts that keep neighbours together (ldg, metis) need less.
    """
    if cluster.storage_nodes:
        return float(nbytes)
    if placement == "replicate":
        return 0.0
    elsewhere = (cluster.nodes - 1) / cluster.nodes
    return elsewhere * (batch.row_bytes(graph.schema) + 8 * (batch.num_nodes + batch.num_edges))

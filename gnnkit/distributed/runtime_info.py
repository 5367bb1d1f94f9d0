"""Where a process stands among all processes of a run."""

from __future__ import annotations

from dataclasses import dataclass

from gnnkit.distributed import process_group
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
        for name, value, size in (
            ("rank", self.rank, self.world_size),
            ("node_rank", self.node_rank, self.node_world_size),
            ("local_rank", self.local_rank, self.local_world_size),
        ):
            if not 0 <= value < size:
                raise PlanError(f"{name} must be between 0 and {size - 1}, got {value}")

    def cleanup(self) -> None:
        """Destroys the process group if ``resolve_runtime`` created it; a borrowed one is left alone. Repeating it does nothing."""
        if self.should_cleanup_distributed_context:
            process_group.destroy_created()

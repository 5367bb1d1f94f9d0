"""The rows of a README's table of ports that several launchers share."""

from __future__ import annotations

from gnnkit.export.job import ExportJob, Port

_ANY = "any free one"


def between_ranks(job: ExportJob) -> tuple[Port, ...]:
    """What ranks open to each other, on ports that the system picks."""
    if job.world_size == 1:
        return ()
    kind = "gloo or NCCL (gradients, checkpoints)" if job.gpus_per_proc else "gloo (gradients, checkpoints)"
    rows = [Port(kind, "every rank", _ANY, ephemeral=True)]
    if job.backend == "Colocated" and job.nodes > 1 and not job.placement.is_replicated:
        rows.append(Port("part service (sampled neighbours and rows)", "local rank 0 of every node", _ANY, ephemeral=True))
    return tuple(rows)


def storage_ports(job: ExportJob, first: str, change: str, where: str = "every storage node") -> tuple[Port, ...]:
    """What storage servers listen on.

    Args:
        job: The job.
        first: The first server's port of each node.
        change: How that is changed.
        where: Where they are.
    """
    if not job.num_servers:
        return ()
    last = f" and the {job.servers_per_node - 1} after it" if job.servers_per_node > 1 else ""
    return (Port("storage servers (STORAGE_PORT)", where, f"{first}{last}", ephemeral=False, change=change),)

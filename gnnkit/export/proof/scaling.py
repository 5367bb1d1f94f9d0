"""What an exported directory says of its job, and how much of it this machine can run at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gnnkit.errors import PlanError
from gnnkit.export.job import LAUNCHERS, RECORD, SizedJob
from gnnkit.export.writer import read_record
from gnnkit.host import available_cpus, available_memory
from gnnkit.units import format_bytes

# What a rank takes before it has a batch: torch, PyG and a process group.
_BYTES_PER_RANK = 700 << 20
# Ranks take turns on a processor without harm; more than so many for each only wait for each other.
_RANKS_PER_CPU = 2
_LEAST_RANKS = 4
_SMALL = 2


@dataclass(frozen=True)
class TrialJob(SizedJob):
    """What is known of a job, and in which size it runs; its name is its directory's.

    Attributes:
        is_replicated: Whether each node that holds the graph holds all of it.
        gpus_per_proc: GPUs of each rank.
        cut_from: The notebook's store, where the job's is cut from it.
    """

    is_replicated: bool
    gpus_per_proc: int
    cut_from: str | None

    @property
    def num_hosts(self) -> int:
        """Nodes of both kinds."""
        return self.nodes + self.storage_nodes

    @property
    def size(self) -> str:
        """In words: "2 x 2 ranks and 2 x 1 storage servers"."""
        servers = f" and {self.storage_nodes} x {self.servers_per_node} storage servers" if self.storage_nodes else ""
        return f"{self.nodes} x {self.procs_per_node} ranks{servers}"


def read_job(directory: Path) -> TrialJob:
    """The job of an exported directory.

    Raises:
        PlanError: It is no exported directory, or what it says of itself is damaged.
    """
    options = read_record(directory)["options"]
    numbers: dict[str, Any] = {}
    for name, least in (("nodes", 1), ("procs_per_node", 1), ("storage_nodes", 0), ("servers_per_node", 1), ("gpus_per_proc", 0)):
        value = numbers[name] = options.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise PlanError(f"{RECORD} says {name}={value!r}", "export the job again")
    if options.get("launcher") not in LAUNCHERS:
        raise PlanError(f"{RECORD} says launcher={options.get('launcher')!r}", "export the job again")
    replicated = options.get("placement") == "replicate"
    return TrialJob(directory.name, options["launcher"], is_replicated=replicated, cut_from=options.get("cut_from"), **numbers)


def fitting(job: TrialJob) -> tuple[TrialJob, list[str]]:
    """The job in the size in which this machine can run it, and what to say where that is not the job's own.

    Args:
        job: The job.
    """
    cpus, memory = available_cpus(), available_memory()
    most_by_cpu, most_by_memory = max(_LEAST_RANKS, _RANKS_PER_CPU * cpus), memory // _BYTES_PER_RANK
    reasons = []
    if job.world_size > most_by_cpu or job.num_servers > most_by_cpu:
        reasons.append(f"{cpus} processor{'s' if cpus > 1 else ''}")
    if job.world_size + job.num_servers > most_by_memory:
        reasons.append(f"{format_bytes(memory)} of free memory")
    small = replace(
        job,
        nodes=min(_SMALL, job.nodes),
        procs_per_node=min(_SMALL, job.procs_per_node),
        storage_nodes=min(_SMALL, job.storage_nodes),
        servers_per_node=min(_SMALL, job.servers_per_node),
    )
    if not reasons or small == job:
        return job, []
    return small, [f"{small.size} in place of {job.size}: this machine has {' and '.join(reasons)}"]

"""What a node of a job is to have: cores and memory to ask a scheduler for. Estimates, which a person may change in the files."""

from __future__ import annotations

from gnnkit.export.job import ExportJob

# Cores of a rank that samples with as many threads as there are cores for.
_AUTO_THREADS = 4
_GIB = 2**30
# GiB of a rank beside the graph: Python, torch and batches; and of a storage server.
_RANK_GIB, _SERVER_GIB = 6, 2
# GiB of shared memory of each of them.
SHM_GIB = 1


def in_gib(nbytes: int) -> int:
    """Whole GiB that hold so many bytes, at least 1."""
    return max(1, -(-nbytes // _GIB))


def rank_cores(job: ExportJob) -> int:
    """Cores of a rank: its own, and those of its sampling threads."""
    return 1 + (_AUTO_THREADS if job.sampling_threads is None else job.sampling_threads)


def storage_cores(job: ExportJob) -> int:
    """Cores of a storage node: one for each sampling thread, and one for what serves rows."""
    return job.servers_per_node * (job.workers_per_server * job.threads_per_worker + 1)


def trainer_gib(job: ExportJob) -> int:
    """GiB of memory of a node with trainers: its part of the graph, unless servers hold that, and its ranks."""
    graph = 0 if job.num_servers else job.store_bytes_per_node
    return in_gib(graph) + (_RANK_GIB + SHM_GIB) * job.procs_per_node


def storage_gib(job: ExportJob) -> int:
    """GiB of memory of a storage node: its part of the graph, and its servers."""
    return in_gib(job.store_bytes_per_node) + (_SERVER_GIB + SHM_GIB) * job.servers_per_node

"""Sizes that "auto" stands for, and the system's limits, checked before processes are started."""

from __future__ import annotations

import os

from gnnkit.errors import MemoryLimitError, PlanError
from gnnkit.host import allow_open_files, available_cpus, available_memory
from gnnkit.schema import GraphSchema

# The most sampling threads or workers that "auto" starts: beyond it one host's memory bandwidth is the limit.
_MOST_AUTO = 16


def own_cpus() -> int:
    """This trainer's share of the host's processors, at least 1."""
    local_world_size = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, available_cpus() // max(1, int(local_world_size) if local_world_size.isdigit() else 1))


def auto_threads() -> int:
    """Sampling threads for "auto": the processors of this trainer's share of the host, less the one that trains, 1 to 16."""
    return min(_MOST_AUTO, max(1, own_cpus() - 1))


# For each process a socket and a few that are open only while it is started; then shared blocks, logs and messages under way.
_FDS_EACH, _FDS_BESIDE = 4, 24
# The interpreter with NumPy and Numba, and the compiled kernels.
_PROCESS_BYTES = 100 << 20
# A thread's scratch per node: an int32 and an int64.
_NODE_BYTES = 12


def check_descriptors(num_workers: int) -> None:
    """Counts file descriptors, and raises this process's limit where that helps.

    Raises:
        PlanError: The system does not allow so many processes.
    """
    used, needed = len(os.listdir("/proc/self/fd")), num_workers * _FDS_EACH + _FDS_BESIDE
    limit = allow_open_files(used + needed)
    if used + needed > limit:
        raise PlanError(
            f"{num_workers} sampling processes need {needed} file descriptors; {used} of the {limit} allowed are open",
            "raise the hard limit (ulimit -H -n tells it), lower num_workers, or use InProcess()",
        )


def start_memory(num_workers: int, threads: int, schema: GraphSchema) -> int:
    """Bytes that sampling processes take themselves, beside the graph and the batches."""
    return num_workers * (_PROCESS_BYTES + threads * schema.num_nodes * _NODE_BYTES)


def check_start_memory(num_workers: int, threads: int, schema: GraphSchema) -> None:
    """Compares what the processes themselves take with what is free.

    Raises:
        MemoryLimitError: It does not fit.
    """
    needed, free = start_memory(num_workers, threads, schema), available_memory()
    if needed > free:
        raise MemoryLimitError(
            f"{num_workers} sampling processes need about {needed / 1e6:.0f} MB, {free / 1e6:.0f} MB are free",
            "lower num_workers, or use InProcess()",
        )


def check_ring_memory(nbytes: int, num_slots: int) -> None:
    """Compares the ring's size with what is free.

    Raises:
        MemoryLimitError: It does not fit.
    """
    free = available_memory()
    if nbytes > free:
        raise MemoryLimitError(
            f"{num_slots} batches under way take up to {nbytes / 1e6:.0f} MB of shared memory, {free / 1e6:.0f} MB are free",
            "lower batch_size, num_neighbors, worker_concurrency, num_workers or prefetch, or bound it with channel_size",
        )

"""Sizes that "auto" stands for, and the system's limits, checked before processes are started."""

from __future__ import annotations

import os
import sys

from gnnkit.errors import MemoryLimitError, PlanError
from gnnkit.host import allow_open_files, available_cpus, available_memory
from gnnkit.schema import GraphSchema

# The most sampling threads or workers that "auto" starts: beyond it one host's memory bandwidth is the limit.
_MOST_AUTO = 16


def copy_budget(users: int) -> int:
    """Bytes that a copy of a store's graph may take where nothing is said: a share of a quarter of what is free.

    Args:
        users: Processes that use the store. Each may make a copy for itself, while all of them share the store's mapped pages.
    """
    return available_memory() // 4 // users


def own_cpus() -> int:
    """This trainer's share of the host's processors, at least 1."""
    local_world_size = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, available_cpus() // max(1, int(local_world_size) if local_world_size.isdigit() else 1))


def auto_threads() -> int:
    """Sampling threads for "auto": the processors of this trainer's share of the host, less the one that trains, 1 to 16."""
    return min(_MOST_AUTO, max(1, own_cpus() - 1))


def auto_disk_threads(schema: GraphSchema) -> int:
    """Sampling threads of one process for "auto" where pages come from a disk: one that waits for it needs no processor.

    At least as many as keep a disk busy while others copy, as far as their scratch leaves the memory to the graph's pages.
    """
    fitting = int(available_memory() * _SCRATCH_PART) // (schema.num_nodes * _TOUCHED_BYTES + 1)
    return max(auto_threads(), min(DISK_THREADS, fitting))


# For each process a socket and a few that are open only while it is started; then shared blocks, logs and messages under way.
_FDS_EACH, _FDS_BESIDE = 4, 24
# The interpreter with NumPy and Numba, and the compiled kernels.
_PROCESS_BYTES = 70 << 20
# What torch and PyG take in this process; they are imported with the first batch.
_TORCH_BYTES = 250 << 20
# The part of a mapped graph that has to stay in memory, and the most of it: with less, the pages of one batch push out those of the
# others, and the kernel reads the same ones again and again. Hubs and the pages of a few batches are about as much.
_KEPT, _MOST_KEPT = 16, 256 << 20
# A thread's scratch per node: an int32 and an int64.
_NODE_BYTES = 12
# Threads that keep a disk busy, and the part of the free memory that their scratch may take: batches that are much smaller than the graph
# touch all of the int32 and little else.
DISK_THREADS, _TOUCHED_BYTES, _SCRATCH_PART = 4, 4, 1 / 8


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


def check_start_memory(num_workers: int, threads: int, schema: GraphSchema, mapped: int = 0, *, trains: bool = True) -> None:
    """Compares what the processes, this one included, and the graph's pages need with what is free.

    Args:
        num_workers: Processes to start.
        threads: Sampling threads in each.
        schema: The graph's.
        mapped: See ``GraphHandle.mapped_nbytes``.
        trains: Whether this process makes PyG's objects of batches.

    Raises:
        MemoryLimitError: It does not fit.
    """
    processes, free = start_memory(num_workers, threads, schema), available_memory()
    if processes + _beside(mapped, trains=trains) > free:
        raise MemoryLimitError(
            f"{num_workers} sampling processes need about {processes / 1e6:.0f} MB{_words_beside(mapped, trains=trains)}; "
            f"{free / 1e6:.0f} MB are free",
            "lower num_workers, or use InProcess(), which needs neither processes nor shared memory",
        )


def most_slots(nbytes: int, mapped: int) -> int:
    """Slots of ``nbytes`` that a ring may have: half of the memory that is free beside what this process and the graph's pages take.

    Args:
        nbytes: Bytes of a slot.
        mapped: See ``GraphHandle.mapped_nbytes``.
    """
    return max(0, available_memory() - _beside(mapped)) // 2 // nbytes


def check_ring_memory(nbytes: int, num_slots: int, mapped: int) -> None:
    """Compares the ring's size, and what this process and the graph's pages need, with what is free.

    Args:
        nbytes: Bytes of the ring.
        num_slots: Its slots.
        mapped: See ``GraphHandle.mapped_nbytes``.

    Raises:
        MemoryLimitError: It does not fit.
    """
    free = available_memory()
    if nbytes + _beside(mapped) > free:
        raise MemoryLimitError(
            f"{num_slots} batches under way take up to {nbytes / 1e6:.0f} MB of shared memory{_words_beside(mapped)}; "
            f"{free / 1e6:.0f} MB are free",
            "lower batch_size, num_neighbors or num_workers, or use InProcess(), which keeps no batches in shared memory",
        )


def _kept(mapped: int) -> int:
    return min(mapped // _KEPT, _MOST_KEPT)


def _to_come(*, trains: bool) -> int:
    return _TORCH_BYTES if trains and "torch_geometric" not in sys.modules else 0


def _beside(mapped: int, *, trains: bool = True) -> int:
    """Bytes that are needed beside processes and rings."""
    return _kept(mapped) + _to_come(trains=trains)


def _words_beside(mapped: int, *, trains: bool = True) -> str:
    to_come = _to_come(trains=trains)
    words = f", torch and PyG in this process about {to_come / 1e6:.0f} MB" if to_come else ""
    if mapped:
        words += f", and the graph about {_kept(mapped) / 1e6:.0f} MB to be read from its files ({mapped / 1e6:.0f} MB) without thrashing"
    return words

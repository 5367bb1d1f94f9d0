"""Checks of the machine: processors, memory, disk, GPU, network."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from pathlib import Path

from gnnkit.cli.checks.row import Check
from gnnkit.units import format_bytes

GB = 1e9
# OGBN-Products needs 1.6 GB for its store and as much for its pages; PyTorch alone takes half a gigabyte.
_ENOUGH_MEMORY, _LEAST_MEMORY = 4 * GB, 1 * GB
_ENOUGH_DISK, _LEAST_DISK = 5 * GB, 0.2 * GB
# Docker gives 64 MB, in which DataLoader workers that hand over batches die of SIGBUS.
_ENOUGH_SHM = 0.5 * GB
_ENOUGH_FILES = 4096


def processors() -> Check:
    """Checks how many processors this process may keep busy."""
    from gnnkit.host import available_cpus
    from gnnkit.runtime.limits import auto_threads

    count, total = available_cpus(), os.cpu_count() or 1
    value = f"{count} of {total} usable, {auto_threads()} sampling by default"
    if count > 1:
        return Check("processors", value)
    return Check("processors", value, "warning", "sampling shares the one processor with training; give the container or job two")


def memory() -> Check:
    """Checks how much memory is free, limits of containers included."""
    import psutil

    from gnnkit.host import available_memory

    free = available_memory()
    value = f"{format_bytes(free)} free of {format_bytes(psutil.virtual_memory().total)}"
    if free >= _ENOUGH_MEMORY:
        return Check("memory", value)
    fix = "end other programs, or raise the container's or job's memory limit; feature_dtype='float16' halves what features take"
    return Check("memory", value, "warning" if free >= _LEAST_MEMORY else "error", fix)


def shared_memory() -> Check:
    """Size of /dev/shm, which PyTorch's DataLoader workers use; gnnkit does not."""
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return Check("/dev/shm", "not there" if sys.platform == "linux" else f"not part of {sys.platform}")
    usage = shutil.disk_usage(folder)
    value = f"{format_bytes(usage.free)} free of {format_bytes(usage.total)}"
    if usage.free >= _ENOUGH_SHM:
        return Check("/dev/shm", value)
    fix = "gnnkit works; PyTorch's DataLoader workers may die of SIGBUS: docker run --shm-size=2g, or an emptyDir with medium: Memory"
    return Check("/dev/shm", value, "warning", fix)


def disk() -> Check:
    """Whether stores can be written, and how many."""
    from gnnkit.storage.catalog import default_root, default_store_dir

    folder = default_store_dir(default_root())
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    value = f"{format_bytes(free)} free in {folder}"
    if not os.access(existing, os.W_OK):
        return Check("disk", f"{folder} is not writable", "error", "name a folder of yours: export GNNKIT_HOME=/path/to/folder")
    if free >= _ENOUGH_DISK:
        return Check("disk", value)
    fix = "gnnkit stores prune, or name a folder on a larger disk: export GNNKIT_HOME=/path/to/folder"
    return Check("disk", value, "warning" if free >= _LEAST_DISK else "error", fix)


def gpu() -> Check:
    """Whether torch can use a GPU; working without one is fine."""
    driver = Path("/proc/driver/nvidia/version").exists()
    try:
        import torch
    except ImportError:
        return Check("GPU", "unknown: torch cannot be imported")
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        return Check("GPU", ", ".join(f"{device.name} ({format_bytes(device.total_memory)})" for device in names))
    if not driver:
        return Check("GPU", "none: batches stay on the CPU")
    built = (
        f"torch {torch.__version__} is built for CUDA {torch.version.cuda}"
        if torch.version.cuda
        else f"torch {torch.__version__} is a CPU build"
    )
    return Check(
        "GPU",
        f"an NVIDIA driver is there, and torch cannot use it: {built}",
        "warning",
        "install a CUDA build of torch that fits the driver",
    )


def network() -> Check:
    """The interface that other hosts would reach this one by; one host needs none."""
    import psutil

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for documentation: decides the route, sends nothing
            address = str(probe.getsockname()[0])
        except OSError:
            address = ""
    for name, addresses in psutil.net_if_addrs().items():
        if address and any(item.address == address for item in addresses):
            return Check("network", f"{name} ({address}); nothing listens on it in a run on one host")
    return Check("network", "no route to other hosts; runs on one host need none")


def open_files() -> Check:
    """Checks how many files and mappings a process may hold."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # gnnkit raises the soft one where it needs more
    value = "no limit" if hard == resource.RLIM_INFINITY else f"{hard} per process"
    if hard == resource.RLIM_INFINITY or hard >= _ENOUGH_FILES:
        return Check("open files", value)
    return Check(
        "open files", value, "warning", "stores with many parts map many files: have the hard limit raised (ulimit -H -n tells it)"
    )

"""The host's limits for this process: memory and processors, containers and affinity included."""

from __future__ import annotations

import contextlib
import errno
import gc
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gnnkit.errors import PlanError

_CGROUP = Path("/sys/fs/cgroup")
# The system's words for a call that a sandbox or a seccomp profile forbids, or that the kernel does not have.
_FORBIDDEN = (
    errno.EPERM,
    errno.EACCES,
    errno.ENOSYS,
    errno.EINVAL,
    errno.EAFNOSUPPORT,
    errno.EOPNOTSUPP,
    errno.EPROTONOSUPPORT,
    errno.ESOCKTNOSUPPORT,
)


@contextlib.contextmanager
def needed_by_processes(what: str) -> Iterator[None]:
    """Says which call of the system processes need that it does not allow.

    Args:
        what: The call.

    Raises:
        PlanError: The system does not allow it.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FORBIDDEN:
            raise
        raise PlanError(
            f"sampling processes and servers need {what}, and this system does not allow it: {error.strerror}",
            "sample in threads: backend=gnnkit.InProcess(); or allow the call in the sandbox or its seccomp profile",
        ) from error


def available_memory() -> int:
    """Bytes that this process may still take: the machine's available memory, or what its cgroup leaves where that is less."""
    import psutil

    return min([int(psutil.virtual_memory().available), *(room for folder in _memory_groups() if (room := _room(*folder)) is not None)])


def free_on(device: Any) -> int:
    """Bytes that this process may still take on a device of torch's: what is free there, and what torch keeps of it for later."""
    if device.type != "cuda":
        return available_memory()
    import torch

    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + kept


# How long an answer of the system about its memory is used for requests of at most this part of it.
_BELIEVED_S, _LITTLE = 0.1, 1 / 8


class FreeMemory:
    """``available_memory`` for those that take little pieces often: asking costs several times as much as filling one."""

    def __init__(self) -> None:
        self._left, self._asked_s = 0, -math.inf

    def take(self, nbytes: int) -> int:
        """Bytes that this process may take, of which the caller takes ``nbytes`` if they are enough."""
        now = time.monotonic()
        if nbytes > self._left * _LITTLE or now - self._asked_s > _BELIEVED_S:
            self._left, self._asked_s = available_memory(), now
        left = self._left
        self._left = left - nbytes  # threads that get here at once may miss each other's pieces, for as long as the system is believed
        return left


def total_memory() -> int:
    """Bytes of memory that this process could have if other processes took none: the machine's, or its cgroup's limit if less."""
    import psutil

    limits = []
    for group, limit_file, _, _ in _memory_groups():
        with contextlib.suppress(OSError, ValueError):  # no limit
            limits.append(int((group / limit_file).read_text()))
    return min([int(psutil.virtual_memory().total), *limits])


def available_cpus() -> int:
    """Processors that this process may keep busy: its affinity, capped by the cgroup's quota; at least 1."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    for folder, version in _groups("cpu"):
        try:
            if version == 2:
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        except (OSError, ValueError):
            continue
        if quota.isdigit():
            count = min(count, int(quota) // int(period))
    return max(1, count)


def allow_open_files(count: int) -> int:
    """Raises this process's soft limit of open files, where it is lower, to ``count``, or as far as the hard limit allows.

    It is low on most systems, for programs that use ``select``, which knows no descriptor beyond 1023; Python's raises ``ValueError`` then.

    Returns:
        The soft limit that holds now.
    """
    try:
        import resource
    except ImportError:  # not a POSIX system
        return count
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft == resource.RLIM_INFINITY:
        return count
    if wanted > soft:
        with contextlib.suppress(OSError, ValueError):  # a system with a limit of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def leave_no_core() -> None:
    """Has this process, and those that it starts, leave no core file: it would hold tokens and the graph.

    A limit of 1 byte: one of 0 keeps the kernel from writing a file, but not from handing all memory to a program that collects cores.
    """
    try:
        import resource
    except ImportError:  # not a POSIX system
        return
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (1 if hard == resource.RLIM_INFINITY else min(1, hard), hard))


def _groups(controller: str) -> Iterator[tuple[Path, int]]:
    """This process's cgroup and its parents, innermost first, with the version of their hierarchy."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers == "":
            base, version = _CGROUP, 2
        elif controller in controllers.split(","):
            base, version = _CGROUP / controller, 1
        else:
            continue
        folder = base / name.lstrip("/")
        # Inside a container the path may be the host's; the mounted root then is the container's own group.
        for group in (folder, *folder.parents):
            yield group, version
            if group == base:
                break


def _memory_groups() -> Iterator[tuple[Path, str, str, tuple[str, ...]]]:
    for group, version in _groups("memory"):
        if version == 2:
            yield group, "memory.max", "memory.current", ("active_file", "inactive_file")
        else:
            yield group, "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")


def _room(group: Path, limit_file: str, usage_file: str, cache_names: tuple[str, ...]) -> int | None:
    """Returns the bytes that one group's memory limit leaves; None without a limit."""
    try:
        limit = int((group / limit_file).read_text())
        usage = int((group / usage_file).read_text())
        lines = (group / "memory.stat").read_text().splitlines()
    except (OSError, ValueError):
        return None
    # Pages of files count as used but are dropped when the memory is needed, however often they are read: a mapped
    # store that is larger than the limit fills all of it, and leaves all of it to others.
    cache = sum(int(line.split()[1]) for line in lines if line.startswith(tuple(f"{name} " for name in cache_names)))
    return max(0, limit - usage + cache)


def memory_kills() -> int | None:
    """Counts the processes that the kernel has killed in this process's memory group for lack of memory; None where it keeps no count."""
    for group, version in _groups("memory"):
        try:
            lines = (group / ("memory.events" if version == 2 else "memory.oom_control")).read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.isdigit():
                return int(value)
    return None


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Has no garbage looked for while modules are loaded, nor among what they have made afterwards.

    Nothing of them is garbage, and looking through all of it again and again takes up to a fifth of the start of a rank.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def set_variables(variables: Mapping[str, str | None]) -> None:
    """Sets this process's variables; None removes one."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def installed_version(package: str) -> str | None:
    """The version of a package that is installed here; None where it is not."""
    from importlib import metadata  # not what every process needs

    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None

"""Finds what a test left behind: processes, shared memory, listening ports and threads."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import psutil

from tests.helpers.machine import slowness

# Python's own helpers and gnnkit's, shared by everything in the process and ended with it at the latest.
KEPT_PROCESSES = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "gnnkit.runtime.fork_server")
# Lasts as long as the session in which it starts hosts; those that it has forked have its name, and count.
NURSERY = "tests.cluster.hosts.nursery"
# A browser belongs to a fixture of many tests, and starts and ends processes as it likes; the fixture sees to their end.
BROWSER_DRIVER = "playwright/driver"
# Tests of this very check put theirs elsewhere, where no test beside them sees it.
SHARED_MEMORY = Path(os.environ.get("GNNKIT_LEAK_SHARED_MEMORY", "/dev/shm"))
# Where Linux has what a process has open.
DESCRIPTORS = Path("/proc/self/fd")
# How long a closed loader's children may take to be gone; a leak stays for good. A busy machine is given longer, unless it is told.
GRACE_VARIABLE, GRACE_S = "GNNKIT_LEAK_GRACE_S", 5.0


@dataclass(frozen=True)
class Holdings:
    """What this process and its children hold at one moment; sockets as (process, descriptor, which socket it is)."""

    processes: frozenset[str]
    shared_memory: frozenset[str]
    sockets: frozenset[tuple[int, int, str]]
    threads: frozenset[str]

    def beyond(self, before: Holdings) -> list[str]:
        """What is held now and was not before, one line each."""
        kinds = (
            ("process", self.processes - before.processes),
            ("shared memory", self.shared_memory - before.shared_memory),
            ("listening port", _listening(self.sockets - before.sockets)),
            ("thread", self.threads - before.threads),
        )
        return [f"{kind} {item}" for kind, items in kinds for item in sorted(items)]


def holdings() -> Holdings:
    """What this process and its children hold now."""
    family = [os.getpid()]
    processes = set()
    of_browsers: set[int] = set()
    for child in _children():  # parents come before their children
        try:
            line = " ".join(child.cmdline())
            if BROWSER_DRIVER in line or child.ppid() in of_browsers:
                of_browsers.add(child.pid)
                continue
            if child.status() == psutil.STATUS_ZOMBIE or any(kept in line for kept in KEPT_PROCESSES):
                continue
        except psutil.Error:  # gone meanwhile
            continue
        family.append(child.pid)
        processes.add(f"{child.pid}: {line[:200]}")
    return Holdings(frozenset(processes), _shared_memory(), frozenset(chain(*map(_sockets, family))), _threads())


def descendants(pid: int | None = None) -> list[psutil.Process]:
    """Everything that a process, or this one, has started and that still runs, but for what is kept."""
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            command = " ".join(child.cmdline())
            kept = (*KEPT_PROCESSES, NURSERY) if child.ppid() == os.getpid() else KEPT_PROCESSES
            if child.status() != psutil.STATUS_ZOMBIE and not any(name in command for name in kept):
                found.append(child)
    return found


def _shared_memory() -> frozenset[str]:
    if not SHARED_MEMORY.is_dir():
        return frozenset()
    return frozenset(name for name in os.listdir(SHARED_MEMORY) if "gnnkit" in name.lower())


def _children() -> list[psutil.Process]:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # nobody needs to look through all processes of the machine
        return []
    return psutil.Process().children(recursive=True)


def _sockets(pid: int) -> Iterator[tuple[int, int, str]]:
    """Every socket of a process, of whatever kind: (process, descriptor, which socket it is)."""
    try:
        if not DESCRIPTORS.is_dir():
            yield from ((pid, found.fd, str(found.laddr)) for found in psutil.Process(pid).net_connections("inet"))
            return
        for descriptor in os.listdir(folder := f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):
                if (target := os.readlink(f"{folder}/{descriptor}")).startswith("socket:"):
                    yield pid, int(descriptor), target
    except (psutil.Error, OSError):  # gone meanwhile, or another user's
        return


def _listening(sockets: frozenset[tuple[int, int, str]]) -> frozenset[str]:
    """Those of some sockets that listen on the network.

    The system's table of ports takes milliseconds to read, so that it is read for processes with sockets that were not there before.
    """
    ports = set()
    for pid in {pid for pid, *_ in sockets}:
        descriptors = {descriptor for owner, descriptor, _ in sockets if owner == pid}
        with suppress(psutil.Error):  # gone meanwhile
            for connection in psutil.Process(pid).net_connections("inet"):
                if connection.status == psutil.CONN_LISTEN and connection.fd in descriptors:
                    ports.add(f"{connection.laddr.ip}:{connection.laddr.port} of process {pid}")
    return frozenset(ports)


def sampling_threads() -> list[threading.Thread]:
    """Threads that sample in this process; each holds the graph of its loader."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("gnnkit-sampler")]


def _threads() -> frozenset[str]:
    """Threads that keep this process alive, and threads that sample."""
    threads = [thread for thread in threading.enumerate() if not thread.daemon] + sampling_threads()
    return frozenset(f"{thread.name} ({thread.ident})" for thread in threads)


def leaks_since(before: Holdings) -> list[str]:
    """What has been left behind since ``before``, after garbage was collected and stragglers had time to end."""
    told = os.environ.get(GRACE_VARIABLE)
    left = _left_after(GRACE_S if told is None else float(told), before)
    if left and told is None:
        left = _left_after(GRACE_S * (slowness() - 1), before)
    return left


def _left_after(grace_s: float, before: Holdings) -> list[str]:
    deadline = time.monotonic() + grace_s
    while (left := holdings().beyond(before)) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.05)
    return left

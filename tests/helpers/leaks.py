"""Finds what a test left behind: processes, shared memory, listening ports and threads."""

from __future__ import annotations

import gc
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.helpers.machine import slowness

# Python's own helper, shared by everything in the process and ended with it.
KEPT_PROCESSES = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
# A browser belongs to a fixture of many tests, and starts and ends processes as it likes; the fixture sees to their end.
BROWSER_DRIVER = "playwright/driver"
# Tests of this very check put theirs elsewhere, where no test beside them sees it.
SHARED_MEMORY = Path(os.environ.get("GNNKIT_LEAK_SHARED_MEMORY", "/dev/shm"))
# How long a closed loader's children may take to be gone; a leak stays for good. A busy machine is given longer, unless it is told.
GRACE_VARIABLE, GRACE_S = "GNNKIT_LEAK_GRACE_S", 5.0


@dataclass(frozen=True)
class Holdings:
    """What this process holds at one moment."""

    processes: frozenset[str]
    shared_memory: frozenset[str]
    ports: frozenset[str]
    threads: frozenset[str]

    def beyond(self, before: Holdings) -> list[str]:
        """What is held now and was not before, one line each."""
        kinds = (
            ("process", self.processes - before.processes),
            ("shared memory", self.shared_memory - before.shared_memory),
            ("listening port", self.ports - before.ports),
            ("thread", self.threads - before.threads),
        )
        return [f"{kind} {item}" for kind, items in kinds for item in sorted(items)]


def holdings() -> Holdings:
    """What this process and its children hold now."""
    me = psutil.Process()
    family = [me]
    processes = set()
    of_browsers: set[int] = set()
    for child in me.children(recursive=True):  # parents come before their children
        try:
            line = " ".join(child.cmdline())
            if BROWSER_DRIVER in line or child.ppid() in of_browsers:
                of_browsers.add(child.pid)
                continue
            if child.status() == psutil.STATUS_ZOMBIE or any(kept in line for kept in KEPT_PROCESSES):
                continue
        except psutil.Error:  # gone meanwhile
            continue
        family.append(child)
        processes.add(f"{child.pid}: {line[:200]}")
    return Holdings(frozenset(processes), _shared_memory(), _ports(family), _threads())


def _shared_memory() -> frozenset[str]:
    if not SHARED_MEMORY.is_dir():
        return frozenset()
    return frozenset(name for name in os.listdir(SHARED_MEMORY) if "gnnkit" in name.lower())


def _ports(family: list[psutil.Process]) -> frozenset[str]:
    ports = set()
    for process in family:
        try:
            for connection in process.net_connections("inet"):
                if connection.status == psutil.CONN_LISTEN:
                    ports.add(f"{connection.laddr.ip}:{connection.laddr.port} of process {process.pid}")
        except psutil.Error:  # gone meanwhile, or another user's
            continue
    return frozenset(ports)


def _threads() -> frozenset[str]:
    return frozenset(f"{thread.name} ({thread.ident})" for thread in threading.enumerate() if not thread.daemon)


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

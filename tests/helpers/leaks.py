"""Finds what a test left behind: processes, shared memory, listening ports and threads."""

from __future__ import annotations

import gc
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

# Python's own helper, shared by everything in the process and ended with it.
KEPT_PROCESSES = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
SHARED_MEMORY = Path("/dev/shm")
# How long a closed loader's children may take to be gone, on a busy machine; a leak stays for good.
GRACE_S = float(os.environ.get("GNNKIT_LEAK_GRACE_S", "5"))


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
    for child in me.children(recursive=True):
        try:
            line = " ".join(child.cmdline())
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
    left = holdings().beyond(before)
    deadline = time.monotonic() + GRACE_S
    while left and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.05)
        left = holdings().beyond(before)
    return left

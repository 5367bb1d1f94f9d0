"""What backends are tried with: their sizes, the graphs, and how to look at sampling processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from gnnkit import Colocated, GraphLoader, GraphStore, InProcess, OnDevice
from tests.helpers import leaks
from tests.loader.graphs import make

BACKENDS: dict[str, Any] = {
    "InProcess-2": InProcess(2),
    "OnDevice": OnDevice("cpu"),
    "Colocated-1": Colocated(1),
    "Colocated-2": Colocated(2),
    "Colocated-4": Colocated(4),
    "GraphStore-2": GraphStore(2),
}
COLOCATED = [name for name in BACKENDS if name.startswith("Colocated")]
# What a fault may take to be seen, beyond starting processes.
FAULT_S = 5.0


def loader_of(name: str, **options: Any) -> GraphLoader:
    """The small graph, shuffled, 15 batches an epoch."""
    return make(**{"backend": BACKENDS.get(name, name), "shuffle": True, **options})


def workers(loader: GraphLoader) -> dict[int, int]:
    """Pids of a loader's processes, by rank."""
    return dict(loader.status().details["pids"])


def descendants() -> set[int]:
    """Pids of everything that this process has started and that still runs, but for what is kept for other tests' processes."""
    return {child.pid for child in leaks.descendants()}


def is_gone(pid: int) -> bool:
    """Whether a process has ended, with all of its threads; one that nobody has collected yet counts as gone."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE and len(os.listdir(f"/proc/{pid}/task")) <= 1
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):  # the last: it went while its folder was read
        return True


def environment(**more: str) -> dict[str, str]:
    """For a script that imports gnnkit and these tests."""
    return {**os.environ, **more}


def run_script(text: str, folder: Path, *arguments: str, timeout_s: float = 240, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs a file as a user would."""
    path = folder / "script.py"
    path.write_text(text)
    return subprocess.run(
        [sys.executable, "-W", "ignore", str(path), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        cwd=folder,
        env=environment(**more),
    )

"""What processes occupy, told apart by what the memory is for: a graph that they share, batches under way, and their own."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import psutil

_GRAPH, _RING = "/memfd:gnnkit-graph", "/memfd:gnnkit-ring"


def children_running(module: str) -> list[int]:
    """Pids of this process's children, theirs included, that run ``python -m module``."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if module in child.cmdline():
                found.append(child.pid)
        except psutil.Error:  # gone meanwhile
            continue
    return found


def footprint(pids: Iterable[int], store: Path) -> dict[str, float]:
    """Proportional set sizes (PSS: a page that ``n`` processes map counts as one ``n``-th for each), summed over processes.

    Args:
        pids: The processes.
        store: Folder of the store that they map.

    Returns:
        Bytes: "graph_bytes" (its copy in huge pages and the pages of the store's files), "ring_bytes" and "own_bytes", which is
        everything else: heap, stacks, libraries; and "processes", how many there were.
    """
    sizes = {"graph_bytes": 0.0, "ring_bytes": 0.0, "own_bytes": 0.0, "processes": 0.0}
    for pid in pids:
        sizes["processes"] += 1
        for name, nbytes in _mappings(pid):
            if name.startswith((_GRAPH, f"{store.resolve()}/")):
                sizes["graph_bytes"] += nbytes
            elif name.startswith(_RING):
                sizes["ring_bytes"] += nbytes
            else:
                sizes["own_bytes"] += nbytes
    return sizes


def _mappings(pid: int) -> Iterable[tuple[str, int]]:
    """Name and PSS of each mapping, from ``/proc/<pid>/smaps`` (see proc_pid_smaps(5))."""
    name = ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        word, _, rest = line.partition(" ")
        if not word.endswith(":"):  # "start-end perms offset dev inode   name"
            fields = line.split(maxsplit=5)
            name = fields[5] if len(fields) > 5 else ""
        elif word == "Pss:":
            yield name, int(rest.split()[0]) * 1024

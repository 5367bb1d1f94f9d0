"""Made-up measurements."""

from __future__ import annotations

from typing import Any

from gnnkit.loader.advice import PARTS, LoopMeasurement, Work

IN_PROCESS = {"kind": "InProcess", "num_threads": "auto"}
COLOCATED = {"kind": "Colocated", "num_workers": "auto", "threads_per_worker": 1, "worker_concurrency": 2, "channel_size": None}
# Its memory is given as bytes, and bounds no number of batches.
GLT = {"kind": "Glt", "mode": "worker", "num_workers": 2, "worker_concurrency": 4, "channel_size": "1GB"}
SERVERS = {
    "kind": "GraphStore",
    "num_servers": 2,
    "workers_per_server": 1,
    "threads_per_worker": 1,
    "worker_concurrency": 2,
    "channel_size": None,
    "address": None,
}


def shares(**parts: float) -> dict[str, float]:
    """Shares of the loop's time, 0 where none is named."""
    return {**dict.fromkeys(PARTS, 0.0), **parts}


def measured(**facts: Any) -> LoopMeasurement:
    """Ten seconds of a loop that waits for one thread most of the time, on a machine that has processors to spare."""
    usual: dict[str, Any] = {
        "backend": IN_PROCESS,
        "prefetch": 2,
        "seconds": 10.0,
        "batches": 100,
        "seeds": 102400,
        "shares": shares(wait=0.9, consumer=0.1),
        "workers": 1,
        "threads": 1,
        "busy": 1.0,
        "slots": 3,
        "ready": 0.1,
        "batch_bytes": 50e6,
        "work": (Work(0.1, 0.01),) * 100,
        "blocked": 0.05,
        "starved": 0.0,
        "read_bytes_per_s": 0.0,
        "faults_per_s": 0.0,
        "cpus": 4,
        "idle_cpus": 3.0,
        "graph_bytes": 1_500_000_000,
        "free_bytes": 20_000_000_000,
    }
    return LoopMeasurement(**{**usual, **facts})

"""The entry point of a sampling process: ``python -m gnnkit.runtime.worker``; started by ``gnnkit.runtime.children`` only."""

from __future__ import annotations

from gnnkit.runtime.entry import run

if __name__ == "__main__":
    run("gnnkit.runtime.worker_loop", "WorkerLoop")

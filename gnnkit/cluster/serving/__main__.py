"""The entry point of a server: ``python -m gnnkit.cluster.serving``; started by ``gnnkit.runtime.children`` only."""

from __future__ import annotations

from gnnkit.runtime.entry import run

if __name__ == "__main__":
    run("gnnkit.cluster.serving.loop", "ServerLoop")

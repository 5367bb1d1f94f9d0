"""The entry point of a part service: ``python -m gnnkit.cluster.parts``; started by ``gnnkit.runtime.children`` only."""

from __future__ import annotations

from gnnkit.runtime.entry import run

if __name__ == "__main__":
    run("gnnkit.cluster.parts.loop", "PartServiceLoop")

"""The entry point of a rank: ``python -m gnnkit.jobs.launching``; started by ``gnnkit.runtime.children`` only."""

from __future__ import annotations

from gnnkit.runtime.entry import run

if __name__ == "__main__":
    run("gnnkit.jobs.launching.rank", "RankWork")

"""The entry point of a rank: ``python -m gnnkit.jobs.launching``; started by ``gnnkit.runtime.supervisor`` only."""

from gnnkit.runtime.entry import run

WORK = "gnnkit.jobs.launching.rank:RankWork"

if __name__ == "__main__":
    run(WORK)

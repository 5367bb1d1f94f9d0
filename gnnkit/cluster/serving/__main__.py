"""The entry point of a server: ``python -m gnnkit.cluster.serving``; started by ``gnnkit.runtime.supervisor`` only."""

from gnnkit.runtime.entry import run

WORK = "gnnkit.cluster.serving.loop:ServerLoop"

if __name__ == "__main__":
    run(WORK)

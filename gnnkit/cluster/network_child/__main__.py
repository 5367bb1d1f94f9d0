"""The entry point of a network child: ``python -m gnnkit.cluster.network_child``; started by ``gnnkit.runtime.supervisor`` only."""

from gnnkit.runtime.entry import run

WORK = "gnnkit.cluster.network_child.loop:NetworkChildLoop"

if __name__ == "__main__":
    run(WORK)

"""The entry point of a part service: ``python -m gnnkit.cluster.parts``; started by ``gnnkit.runtime.supervisor`` only."""

from gnnkit.runtime.entry import run

WORK = "gnnkit.cluster.parts.loop:PartServiceLoop"

if __name__ == "__main__":
    run(WORK)

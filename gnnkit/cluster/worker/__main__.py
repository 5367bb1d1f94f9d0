"""The entry point of a sampling process: ``python -m gnnkit.cluster.worker``; a supervisor starts it."""

from gnnkit.runtime.entry import run

WORK = "gnnkit.cluster.worker.loop:connected_loop"

if __name__ == "__main__":
    run(WORK)

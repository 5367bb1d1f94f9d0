"""The entry point of a server: ``python -m gnnkit.cluster.serving``; started by ``gnnkit.runtime.supervisor`` only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnnkit.runtime.entry import run

if TYPE_CHECKING:
    from gnnkit.cluster.serving.loop import ServerLoop


def load() -> type[ServerLoop]:
    """Imports the work; see ``gnnkit.runtime.entry``."""
    from gnnkit.cluster.serving.loop import ServerLoop  # what it imports may fail, which is reported

    return ServerLoop


if __name__ == "__main__":
    run(load)

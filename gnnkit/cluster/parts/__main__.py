"""The entry point of a part service: ``python -m gnnkit.cluster.parts``; started by ``gnnkit.runtime.supervisor`` only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnnkit.runtime.entry import run

if TYPE_CHECKING:
    from gnnkit.cluster.parts.loop import PartServiceLoop


def load() -> type[PartServiceLoop]:
    """Imports the work; see ``gnnkit.runtime.entry``."""
    from gnnkit.cluster.parts.loop import PartServiceLoop  # what it imports may fail, which is reported

    return PartServiceLoop


if __name__ == "__main__":
    run(load)

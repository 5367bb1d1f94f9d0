"""The entry point of a rank: ``python -m gnnkit.jobs.launching``; started by ``gnnkit.runtime.supervisor`` only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnnkit.runtime.entry import run

if TYPE_CHECKING:
    from gnnkit.jobs.launching.rank import RankWork


def load() -> type[RankWork]:
    """Imports the work; see ``gnnkit.runtime.entry``."""
    from gnnkit.jobs.launching.rank import RankWork  # late: what it imports may fail, which is reported

    return RankWork


if __name__ == "__main__":
    run(load)

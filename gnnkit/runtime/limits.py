"""How many threads or workers "auto" is."""

from __future__ import annotations

import os

from gnnkit.host import available_cpus

# The most sampling threads or workers that "auto" starts: beyond it one host's memory bandwidth is the limit.
_MOST_AUTO = 16


def own_cpus() -> int:
    """This trainer's share of the host's processors, at least 1."""
    local_world_size = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, available_cpus() // max(1, int(local_world_size) if local_world_size.isdigit() else 1))


def auto_threads() -> int:
    """Sampling threads for "auto": the processors of this trainer's share of the host, less the one that trains, 1 to 16."""
    return min(_MOST_AUTO, max(1, own_cpus() - 1))

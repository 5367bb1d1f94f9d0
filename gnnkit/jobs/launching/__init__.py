"""``gnnkit.launch``: a train function in several ranks on this machine, watched from a notebook or a script."""

from __future__ import annotations

from gnnkit.jobs.launching.engine import RunHandle as RunHandle
from gnnkit.jobs.launching.engine import launch as launch

__all__ = ["RunHandle", "launch"]

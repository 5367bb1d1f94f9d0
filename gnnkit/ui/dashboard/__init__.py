"""A view of a loader that goes on while it runs: stages, speed, where the time goes, processes, advice, and buttons."""

from gnnkit.ui.dashboard.live import Dashboard

__all__ = ["Dashboard"]

"""``GraphLoader`` and the values it hands out."""

from gnnkit.loader.facade import GraphLoader
from gnnkit.loader.stats import EpochStats

__all__ = ["EpochStats", "GraphLoader"]

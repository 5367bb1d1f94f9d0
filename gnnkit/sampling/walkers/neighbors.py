"""Neighbourhoods that all seeds of a batch share, hop by hop: PyG's ``NeighborLoader``."""

from __future__ import annotations

from collections.abc import Sequence

from gnnkit.plan import NeighborSampling
from gnnkit.sampling.graph_access import GraphAccess
from gnnkit.sampling.walked import Walked, WalkSeeds


class NeighborWalker:
    """See ``gnnkit.sampling.kinds.Walker``.

    Args:
        sampling: Fan-outs and options.
    """

    def __init__(self, sampling: NeighborSampling) -> None:
        self._sampling = sampling

    def walk(self, seeds: WalkSeeds, key: int, reach: GraphAccess) -> Walked:
        """See ``Walker.walk``."""
        return self.walk_together([seeds], [key], reach)[0]

    def walk_together(self, seeds: Sequence[WalkSeeds], keys: Sequence[int], reach: GraphAccess) -> list[Walked]:
        """See ``GraphAccess.walk``."""
        return reach.walk(seeds, keys, self._sampling)

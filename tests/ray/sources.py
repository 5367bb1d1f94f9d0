"""Sources whose ranges go wrong on a cluster; its nodes import this module."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gnnkit.datasets.synthetic import PRODUCTS, GeneratedSource
from tests.helpers.graphs import EdgeType

# A variable of the processes of a node that is going to be killed.
DOOMED = "TEST_NODE_IS_DOOMED"


class WaitingSource(GeneratedSource):
    """``products_like``, of which a doomed node reads one range; with the second one it waits for its end.

    Args:
        scale: See ``products_like``.
        folder: Where it says how far it is.
    """

    def __init__(self, scale: float, folder: Path) -> None:
        super().__init__(PRODUCTS, scale, 0)
        self.has_read, self.waits = folder / "has-read", folder / "waits"

    def edge_rows(self, edge_type: EdgeType, first: int, last: int) -> NDArray[np.int64]:
        """See ``RangedSource``."""
        if os.environ.get(DOOMED):
            if self.has_read.exists():
                self.waits.touch()
                threading.Event().wait()
            self.has_read.touch()
        return super().edge_rows(edge_type, first, last)


class StuckSource(GeneratedSource):
    """``products_like``, of which the task that is the first to read waits for what never comes: Ray counts it as one that does not work.

    Args:
        scale: See ``products_like``.
        folder: Where it says that it waits.
    """

    def __init__(self, scale: float, folder: Path) -> None:
        super().__init__(PRODUCTS, scale, 0)
        self.waits = folder / "waits"

    def edge_rows(self, edge_type: EdgeType, first: int, last: int) -> NDArray[np.int64]:
        """See ``RangedSource``."""
        try:
            self.waits.touch(exist_ok=False)
        except FileExistsError:
            return super().edge_rows(edge_type, first, last)
        import ray

        never = ray.remote(num_cpus=1e6)(lambda: None).remote()  # no node has so many processors
        ray.get(never)
        raise AssertionError("no node has so many processors")


class DamagedSource(GeneratedSource):
    """``products_like``, one edge of which leads nowhere."""

    def __init__(self, scale: float) -> None:
        super().__init__(PRODUCTS, scale, 0)

    def edge_rows(self, edge_type: EdgeType, first: int, last: int) -> NDArray[np.int64]:
        """See ``RangedSource``."""
        edges = super().edge_rows(edge_type, first, last)
        if first <= 7 < last:
            edges[1, 7 - first] = self.num_nodes
        return edges

"""The numbers by which the neighbours of a node compete where a batch's nodes share them: LABOR. ``docs/sampling.md`` specifies them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gnnkit.kernels.keys import fold, variates_key
from gnnkit.plan import LaborDraws
from gnnkit.sampling.tables import GraphTables

# The largest hash of all: with it as the last one, no node has changed to the next period.
NO_CHANGE = (1 << 64) - 1
NO_VARIATES: NDArray[np.uint64] = np.empty(0, np.uint64)


@dataclass(frozen=True)
class Variates:
    """The keys of a batch's variates.

    Attributes:
        key: Of nodes that are still in the batch's period.
        next_key: Of those that are in the next one already.
        last_hash: The largest hash of a node that is in the period still.
        is_shared: Whether all hops have the same ones.
    """

    key: int
    next_key: int
    last_hash: int
    is_shared: bool

    @classmethod
    def of(cls, draws: LaborDraws, stream: int, epoch: int, index: int) -> Variates:
        """The variates of batch ``index`` of an epoch of the loader whose ``keys.stream_key`` is given."""
        dependency = draws.batch_dependency
        period, passed = divmod(index, dependency)
        # Nodes move on as soon as passed + hash * dependency / 2**64, rounded down, is a whole period.
        last_hash = min(NO_CHANGE, -(-((dependency - passed) << 64) // dependency) - 1)
        key, next_key = (variates_key(stream, epoch, number) for number in (period, period + 1))
        return cls(key, next_key, last_hash, draws.layer_dependency)

    def table(self, tables: GraphTables, hop: int) -> NDArray[np.uint64]:
        """uint64 ``[R, 4]``: the columns of ``picks`` for each edge type."""
        keys = [fold(key, 0 if self.is_shared else hop) for key in (self.key, self.next_key)]
        by_type = [[*(fold(key, of_type) for key in keys), self.last_hash, of_type] for of_type in tables.node_keys]
        return np.array([by_type[n] for n in tables.neighbor_types], np.uint64).reshape(-1, 4)

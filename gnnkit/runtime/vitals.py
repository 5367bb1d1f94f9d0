"""Signs of life: a few numbers per sampling process in shared memory, written by it and read by the loader without a message."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gnnkit.runtime.shared_block import SharedBlock

# Columns of a worker's row: when it was last seen and what it was doing then.
SEEN_NS, BUSY_SINCE_NS, STEP, CPU_NS, RSS, BATCHES = range(6)
_WIDTH = 8
# A worker that has not been seen for longer than this is not running.
STALE_S = 2.0


@dataclass(frozen=True)
class Signs:
    """What a sampling process last showed of itself.

    Attributes:
        seen_s: Seconds since it was seen; infinite before the first time.
        busy_s: Seconds that it has been sampling a batch, 0 when idle.
        step: The step it samples, -1 when idle.
        cpu_ns: Processor time that its sampling threads have used.
        rss: Bytes of memory that it occupied.
        batches: Batches that it has sampled since it was started.
    """

    seen_s: float
    busy_s: float
    step: int
    cpu_ns: int
    rss: int
    batches: int

    @property
    def is_fresh(self) -> bool:
        """Whether it is running."""
        return self.seen_s < STALE_S


# Of a process that nobody knows.
UNSEEN = Signs(float("inf"), 0.0, -1, 0, 0, 0)


class Vitals:
    """The rows of all sampling processes of one loader.

    Args:
        block: Where they lie.
    """

    def __init__(self, block: SharedBlock) -> None:
        self.block = block
        self._rows: NDArray[np.int64] = block.bytes.view(np.int64)

    @classmethod
    def create(cls, num_workers: int) -> Vitals:
        """Rows for so many processes."""
        return cls(SharedBlock.create("gnnkit-vitals", num_workers * _WIDTH * 8))

    def row(self, rank: int) -> NDArray[np.int64]:
        """int64 ``[8]``, one process's row; see the column names."""
        return self._rows[rank * _WIDTH : (rank + 1) * _WIDTH]

    def forget(self, rank: int) -> None:
        """Clears the row of a process that is gone."""
        self.row(rank)[:] = 0

    def signs(self, rank: int) -> Signs:
        """What a process last showed."""
        row, now = self.row(rank).tolist(), time.monotonic_ns()
        seen = (now - row[SEEN_NS]) / 1e9 if row[SEEN_NS] else float("inf")
        busy = (now - row[BUSY_SINCE_NS]) / 1e9 if row[BUSY_SINCE_NS] else 0.0
        return Signs(seen, busy, row[STEP] if row[BUSY_SINCE_NS] else -1, row[CPU_NS], row[RSS], row[BATCHES])

"""How fast servers sample: read from the memory that their workers show themselves in, so that no server has to say it."""

from __future__ import annotations

import time
from collections import deque

from gnnkit.runtime.shared_block import SharedBlock
from gnnkit.runtime.vitals import Vitals
from gnnkit.runtime.wire import Message

# Seconds that a rate is taken over, and least seconds between two looks.
_SPAN_S, _GAP_S = 10.0, 1.0


class Throughput:
    """Counts what servers of this process have sampled. Only for the holder of its fleet's lock."""

    def __init__(self) -> None:
        self._vitals: dict[int, tuple[Vitals, int]] = {}
        self._looks: deque[tuple[float, int]] = deque()

    def take(self, rank: int, message: Message) -> None:
        """A server shows where its workers' signs of life are."""
        try:
            vitals = Vitals(SharedBlock.attach(message.fds[0], writable=False))
        except OSError:  # no address space left: nobody needs to know how fast it is
            return
        self._vitals[rank] = vitals, int(message.body["workers"])

    def lost(self, rank: int) -> None:
        """A server has ended, and its count with it."""
        if self._vitals.pop(rank, None) is not None:
            self._looks.clear()

    def batches(self, rank: int) -> int:
        """Batches that the workers of a server have sampled since they were started."""
        if rank not in self._vitals:
            return 0
        vitals, workers = self._vitals[rank]
        return sum(vitals.signs(worker).batches for worker in range(workers))

    def look(self) -> None:
        """Notes how many there are now, once a second."""
        now = time.monotonic()
        if not self._looks or now - self._looks[-1][0] >= _GAP_S:
            self._looks.append((now, self._total()))
        while len(self._looks) > 1 and self._looks[1][0] <= now - _SPAN_S:
            self._looks.popleft()

    @property
    def batches_per_s(self) -> float:
        """Batches per second of all servers, over the last ten seconds."""
        if not self._looks:
            return 0.0
        then, before = self._looks[0]
        elapsed = time.monotonic() - then
        return max(0.0, (self._total() - before) / elapsed) if elapsed >= _GAP_S else 0.0

    def _total(self) -> int:
        return sum(map(self.batches, self._vitals))

"""A sampling process's side of a loader's ring."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gnnkit.runtime.shared_block import HUGE_PAGE, SharedBlock, rounded


@dataclass(eq=False)
class WorkerRing:
    """The slots, as this process maps them.

    Attributes:
        block: All of them.
        slot_bytes: Bytes of each.
    """

    block: SharedBlock
    slot_bytes: int
    _populated: dict[int, int] = field(default_factory=dict)

    def populate(self, number: int, nbytes: int) -> None:
        """Has huge pages under the first ``nbytes`` of a slot; what the system refuses once is not asked for again."""
        done = self._populated.get(number, 0)
        if self.slot_bytes % HUGE_PAGE == 0 and nbytes > done:
            wanted = rounded(nbytes)
            collapsed = self.block.populate(number * self.slot_bytes + done, wanted - done)
            self._populated[number] = wanted if collapsed else self.slot_bytes


@dataclass(frozen=True, eq=False)
class WorkerSlot:
    """A slot of one ring, also once the loader has another ring.

    Attributes:
        ring: The ring.
        number: Which of its slots.
    """

    ring: WorkerRing
    number: int

    def take(self, nbytes: int) -> NDArray[np.uint8] | None:
        """uint8 ``[slot_bytes]`` to write a batch of ``nbytes`` to; None where it does not fit."""
        size = self.ring.slot_bytes
        if nbytes > size:
            return None
        self.ring.populate(self.number, nbytes)
        return self.ring.block.bytes[self.number * size : (self.number + 1) * size]

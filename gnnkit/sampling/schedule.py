"""Which seeds are in which batch, and which rank gets it.

An epoch is one list of ``num_batches`` batches, the same for any number of ranks: batch ``j`` holds positions ``[j * B, (j + 1) * B)``
of the epoch's order. Batches are dealt like cards: counted from the first batch of the run, the ``i``-th goes to rank
``i % world_size`` at its step ``i // world_size``. When the last step is short, ``remainder`` decides: "drop" leaves the step out,
"pad" fills it with batches from the list's start, marked as repeats, and "uneven" gives some ranks one step less.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnnkit.kernels import keys, stream
from gnnkit.plan import Batching, num_batches


class Step(NamedTuple):
    """One step of one rank.

    Attributes:
        step: The rank's step in this run, from 0.
        batch_index: Index in the epoch's list of batches.
        is_padding: Whether the batch is a repeat that only fills the last step; None where no batch can be one.
    """

    step: int
    batch_index: int
    is_padding: bool | None


@dataclass(frozen=True)
class Schedule:
    """The steps of one rank in one epoch.

    Attributes:
        num_seeds: Seeds in all.
        batching: Batch size, order and rank.
        first_batch: Batches before this one were consumed by an earlier run of the same epoch.
    """

    num_seeds: int
    batching: Batching
    first_batch: int = 0

    @cached_property
    def num_batches(self) -> int:
        """Batches of the whole epoch, over all ranks."""
        return num_batches(self.num_seeds, self.batching.batch_size, self.batching.drop_last)

    @cached_property
    def can_pad(self) -> bool:
        """Whether batches may be repeats that only fill the last step."""
        return self.batching.world_size > 1 and self.batching.remainder == "pad"

    def __len__(self) -> int:
        """Steps of this rank."""
        left, world_size = max(0, self.num_batches - self.first_batch), self.batching.world_size
        if self.batching.remainder == "drop":
            return left // world_size
        if self.batching.remainder == "pad":
            return -(-left // world_size)
        return max(0, -(-(left - self.batching.rank) // world_size))

    def step(self, step: int) -> Step:
        """Returns the batch that this rank samples at ``step``, ``0 <= step < len(self)``."""
        index = self.first_batch + step * self.batching.world_size + self.batching.rank
        total = self.num_batches
        return Step(step, index % total, index >= total if self.can_pad else None)

    def next_batch(self, steps_done: int) -> int:
        """Index of the first batch that no rank has consumed once every rank has done ``steps_done`` steps."""
        return min(self.first_batch + steps_done * self.batching.world_size, self.num_batches)

    def positions(self, batch_index: int) -> slice:
        """Positions of a batch in the epoch's order."""
        start = batch_index * self.batching.batch_size
        return slice(start, min(start + self.batching.batch_size, self.num_seeds))


def epoch_order(
    stream_key: int, epoch: int, num_seeds: int, shuffle: bool, weight_sums: NDArray[np.int64] | None = None
) -> NDArray[np.int64] | None:
    """The order in which an epoch visits the seeds.

    Args:
        stream_key: ``keys.stream_key``.
        epoch: The epoch.
        num_seeds: Seeds in all.
        shuffle: Whether each is visited once, in a fresh order.
        weight_sums: int64 ``[num_seeds]``, running sums of integer weights: seeds are drawn in proportion to them, with replacement.

    Returns:
        int64 ``[num_seeds]``, or None for ``0, 1, 2, ...``.
    """
    key = keys.order_key(stream_key, epoch)
    if weight_sums is not None:
        drawn = stream.draws_below(key, int(weight_sums[-1]), num_seeds)
        return np.searchsorted(weight_sums, drawn, side="right").astype(np.int64)
    return stream.permutation(key, num_seeds) if shuffle else None

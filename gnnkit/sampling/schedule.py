"""Which seeds are in which batch, and which rank gets it.

An epoch is one list of ``num_batches`` batches, the same for any number of ranks: batch ``j`` holds positions ``[j * B, (j + 1) * B)``
of the epoch's order. Batches are dealt like cards: counted from the first batch of the run, the ``i``-th goes to rank
``i % world_size`` at its step ``i // world_size``. When the last step is short, ``remainder`` decides: "drop" leaves the step out,
"pad" fills it with batches from the list's start, marked as repeats, and "uneven" gives some ranks one step less.

With ``shuffle="parts"`` the list is as ``PartOrder`` has it, also the same for any number of ranks, and the batches of a step are dealt
otherwise: a rank gets one of the parts that are usual on its host, if the step has one.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

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
class PartOrder:
    """The order of an epoch whose batches have seeds of one part each.

    Seeds of a part, in the epoch's shuffled order, fill the part's batches. What is left of all parts, fewer than a batch of each, comes
    last, in the shuffled order. Batches of the parts take turns: the ``i``-th is of part ``turns[i % num_parts]``, or, where that has
    none left, of the part that has most left, the lowest of several. ``turns`` are the parts by their numbers' bits from the lowest
    on, so that batches near each other are of parts far from each other, which are on different hosts.

    Attributes:
        parts: ``[num_seeds]`` whole numbers, the part of each seed.
        num_parts: Number of parts.
        batch_size: Seeds of a batch.
    """

    parts: NDArray[Any]
    num_parts: int
    batch_size: int

    @cached_property
    def batch_parts(self) -> NDArray[np.int64]:
        """int64 ``[num_batches]``: the part of each batch, -1 for those at the end whose seeds are of several."""
        left = np.bincount(self.parts, minlength=self.num_parts) // self.batch_size
        found = np.full(num_batches(len(self.parts), self.batch_size, False), -1, np.int64)
        width = (self.num_parts - 1).bit_length()
        turns = sorted(range(self.num_parts), key=lambda part: f"{part:0{width}b}"[::-1])
        for place in range(int(left.sum())):
            part = turns[place % self.num_parts]
            if not left[part]:
                part = int(left.argmax())
            found[place] = part
            left[part] -= 1
        return found

    def ordered(self, shuffled: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns seeds in shuffled order, ``[num_seeds]``, batch by batch."""
        of = self.parts[shuffled]
        found, is_left = np.empty_like(shuffled), np.ones(len(shuffled), np.bool_)
        by_part, ends = np.argsort(of, kind="stable"), np.cumsum(np.bincount(of, minlength=self.num_parts))
        for part in range(self.num_parts):
            batches = np.flatnonzero(self.batch_parts == part)
            first = ends[part - 1] if part else 0
            own = by_part[first : first + len(batches) * self.batch_size].reshape(-1, self.batch_size)
            found[batches[:, None] * self.batch_size + np.arange(self.batch_size)] = shuffled[own]
            is_left[own] = False
        found[len(found) - np.count_nonzero(is_left) :] = shuffled[is_left]
        return found

    def deal(self, batches: NDArray[np.int64], world_size: int) -> list[int]:
        """Deals the batches of a step to ranks: returns the places in ``batches`` of ranks 0, 1, ...

        Parts and ranks are divided into as many ranges, ``min(num_parts, world_size)``. From rank 0 on, each gets the first batch left of
        its own range; then those that have none get the others, both in order.

        Args:
            batches: int64 ``[k]``, for the ranks from 0 up to k.
            world_size: Number of ranks.
        """
        ranges = min(self.num_parts, world_size)
        left: list[deque[int]] = [deque() for _ in range(ranges + 1)]  # the last one of batches whose seeds are of several parts
        for place, part in enumerate(self.batch_parts[batches].tolist()):
            left[part * ranges // self.num_parts if part >= 0 else ranges].append(place)
        dealt = [own.popleft() if (own := left[rank * ranges // world_size]) else None for rank in range(len(batches))]
        others = iter(sorted(itertools.chain.from_iterable(left)))
        return [next(others) if place is None else place for place in dealt]


@dataclass(frozen=True)
class Schedule:
    """The steps of one rank in one epoch.

    Attributes:
        num_seeds: Seeds in all.
        batching: Batch size, order and rank.
        first_batch: Batches before this one were consumed by an earlier run of the same epoch.
        by_part: The order of batches that have seeds of one part each; None where they have seeds of any.
    """

    num_seeds: int
    batching: Batching
    first_batch: int = 0
    by_part: PartOrder | None = field(default=None, compare=False)

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
        rank, world_size, total = self.batching.rank, self.batching.world_size, self.num_batches
        first = self.first_batch + step * world_size
        index = first + rank
        if self.by_part is not None and world_size > 1:
            count = min(world_size, total - first) if self.batching.remainder == "uneven" else world_size
            index = first + self.by_part.deal(np.arange(first, first + count) % total, world_size)[rank]
        return Step(step, index % total, index >= total if self.can_pad else None)

    def next_batch(self, steps_done: int) -> int:
        """Index of the first batch that no rank has consumed once every rank has done ``steps_done`` steps."""
        return min(self.first_batch + steps_done * self.batching.world_size, self.num_batches)

    def positions(self, batch_index: int) -> slice:
        """Positions of a batch in the epoch's order."""
        start = batch_index * self.batching.batch_size
        return slice(start, min(start + self.batching.batch_size, self.num_seeds))


def epoch_order(
    stream_key: int,
    epoch: int,
    num_seeds: int,
    shuffle: bool,
    weight_sums: NDArray[np.int64] | None = None,
    by_part: PartOrder | None = None,
) -> NDArray[np.int64] | None:
    """The order in which an epoch visits the seeds.

    Args:
        stream_key: ``keys.stream_key``.
        epoch: The epoch.
        num_seeds: Seeds in all.
        shuffle: Whether each is visited once, in a fresh order.
        weight_sums: int64 ``[num_seeds]``, running sums of integer weights: seeds are drawn in proportion to them, with replacement.
        by_part: The parts of seeds, where batches have seeds of one part each.

    Returns:
        int64 ``[num_seeds]``, or None for ``0, 1, 2, ...``.
    """
    key = keys.order_key(stream_key, epoch)
    if weight_sums is not None:
        drawn = stream.draws_below(key, int(weight_sums[-1]), num_seeds)
        return np.searchsorted(weight_sums, drawn, side="right").astype(np.int64)
    if not shuffle:
        return None
    shuffled = stream.permutation(key, num_seeds)
    return shuffled if by_part is None else by_part.ordered(shuffled)

"""One loader of another host, on a server: a channel of the workers', its own ring for structures, and its own credit."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import GnnkitError
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.batches import BatchList
from gnnkit.runtime.remote import error_from_json, fresh
from gnnkit.runtime.ring import Ring, slot_size
from gnnkit.runtime.shared_block import mapped
from gnnkit.runtime.wire import Message

# Slots beside those that are sampled into: for structures that are being sent.
_SENDING = 4
_HEADROOM = 0.25
_LEAST_SLOT = 4096
_MOST_CONCURRENT = 32


@dataclass(eq=False)
class Walk:
    """A batch whose structure somebody waits for.

    Attributes:
        epoch: The epoch.
        batch: Index in its list of batches.
        seeds: int64 ``[k]`` dataset ids of a batch outside the epoch, or None.
        answer: The layout as JSON and the bytes, or why there are none; set before ``done``.
        done: Whether there is an answer.
    """

    epoch: int
    batch: int
    seeds: NDArray[np.int64] | None
    answer: tuple[dict[str, Any], NDArray[np.uint8]] | GnnkitError | None = None
    done: threading.Event = field(default_factory=threading.Event)
    rank: int = -1
    slot: int = -1
    ring: Ring[Walk] | None = None

    def settle(self, answer: tuple[dict[str, Any], NDArray[np.uint8]] | GnnkitError) -> None:
        """Answers."""
        self.answer = answer
        self.done.set()

    def give_back(self) -> None:
        """Frees the slot that nothing was written to that anybody wants."""
        if self.ring is not None:
            self.ring.free(self.slot, self)
        self.rank, self.ring = -1, None


class RemoteSession:
    """One loader of one client.

    Args:
        number: What workers know it by.
        plan: Its plan.
        as_sent: The plan as it came, to compare with.
        batches: The plan's batches.

    Attributes:
        number: See above.
        as_sent: See above.
        told: Workers that know it.
        waiting: Walks that no worker has been given.
        sent: Walks that workers have been given, by number.
        opening: Who waits for the channel to be of use.
        epoch: The epoch of the last walk.
    """

    def __init__(self, number: int, plan: LoaderPlan, as_sent: dict[str, Any], batches: BatchList) -> None:
        self.number, self.as_sent = number, as_sent
        self.told: set[int] = set()
        self.waiting: deque[Walk] = deque()
        self.sent: dict[int, Walk] = {}
        self.opening: list[Future[int]] = []
        self.epoch: int | None = None
        self._plan, self._schedule = plan.to_json(), batches.schedule()
        self._ring: Ring[Walk] | None = None
        self._numbers = itertools.count(1)
        self._concurrency = _concurrency(plan)

    @property
    def is_open(self) -> bool:
        """Whether walks can be dealt."""
        return self._ring is not None

    def introduction(self, rank: int) -> dict[str, Any]:
        """What a worker is told of it; it tries a batch where nobody knows yet how large they are."""
        count = len(self._schedule)
        trial = None if self.is_open or not count else self._schedule.turn(rank % count).batch_index
        return {"c": self.number, "plan": self._plan, "trial": trial, "mode": "structure"}

    def make_ring(self, largest: int, workers: int) -> None:
        """Makes a ring for structures of up to ``largest`` bytes and somewhat more; walks under way keep the one before.

        Raises:
            OSError: There is no memory for it.
        """
        needed = max(_LEAST_SLOT, largest)
        self._ring = Ring(workers * self._concurrency + _SENDING, slot_size(needed + int(needed * _HEADROOM)))

    def ring_message(self) -> tuple[tuple[int, ...], dict[str, Any]]:
        """How a worker learns of the ring: descriptors and body."""
        assert self._ring is not None
        return (self._ring.block.fd,), {"c": self.number, "slot_bytes": self._ring.slot_bytes}

    def is_larger(self, nbytes: int) -> bool:
        """Whether a structure is larger than the slots."""
        return self._ring is None or nbytes > self._ring.slot_bytes

    def next_walk(self, ready: frozenset[int]) -> tuple[int, Walk] | None:
        """Gives the next walk to the worker with least to do, and takes a slot for it: its number, or None where there is no room."""
        loads = {rank: 0 for rank in sorted(self.told & ready)}
        for walk in self.sent.values():
            if walk.rank in loads:
                loads[walk.rank] += 1
        rank = min(loads, key=loads.__getitem__, default=None)
        if self._ring is None or not self.waiting or rank is None or loads[rank] >= self._concurrency:
            return None
        walk = self.waiting[0]
        if walk.seeds is None:
            slot = self._ring.take(walk)
            if slot is None:
                return None
            walk.slot, walk.ring = slot, self._ring
        self.waiting.popleft()
        walk.rank, number = rank, next(self._numbers)
        self.sent[number] = walk
        return number, walk

    def take(self, number: int, message: Message, freed: Callable[[], None]) -> None:
        """Books what a worker says about a walk; ``freed`` is called, from anywhere, once the slot is free again."""
        walk, body = self.sent.pop(number, None), message.body
        if walk is None or walk.done.is_set():  # nobody waits for it any more
            if walk is not None:
                walk.give_back()
            message.close()
        elif "error" in body:
            walk.give_back()
            walk.settle(error_from_json(body["error"], "sampling a batch"))
        elif message.fds:  # it was too large for its slot, or has none
            walk.give_back()
            try:
                walk.settle((body["layout"], mapped(message.fds[0])[: body["layout"]["nbytes"]]))
            except OSError as error:
                walk.settle(GnnkitError(f"a batch of {body['layout']['nbytes'] / 1e6:.0f} MB cannot be mapped: {error}"))
        else:
            assert walk.ring is not None
            walk.settle((body["layout"], walk.ring.lease(walk.slot, freed)[: body["layout"]["nbytes"]]))

    def lost(self, rank: int, error: GnnkitError | None) -> None:
        """A worker is gone: what it had is dealt again, or fails with ``error``."""
        self.told.discard(rank)
        for number in [number for number, walk in self.sent.items() if walk.rank == rank]:
            walk = self.sent.pop(number)
            walk.give_back()
            if not walk.done.is_set():
                if error is None:
                    self.waiting.appendleft(walk)
                else:
                    walk.settle(fresh(error))

    def fail(self, error: GnnkitError) -> None:
        """Tells everybody who waits that there will be nothing."""
        for walk in [*self.waiting, *self.sent.values()]:
            if not walk.done.is_set():
                walk.settle(fresh(error))
        self.waiting.clear()
        for opening in self.opening:
            opening.set_exception(fresh(error))
        self.opening.clear()


def _concurrency(plan: LoaderPlan) -> int:
    """Walks of a loader that a worker is given at a time."""
    wanted = plan.backend.get("worker_concurrency", 2)
    return min(_MOST_CONCURRENT, max(1, wanted)) if isinstance(wanted, int) else 2

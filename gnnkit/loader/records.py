"""What became of each batch: who sampled it and when, and where the consumer's time went."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

# About a megabyte; an epoch of OGBN-Products has 193 batches of 1024.
_KEPT = 4096


class BatchRecord(NamedTuple):
    """What became of one batch. Moments are ``time.monotonic()`` of this process; everything in seconds.

    The consumer's times are those between the hand-over of the batch before and that of this one: ``consumer_s`` before ``asked_s``, the
    others after it, one after another. On a device, where the next batch is prepared ahead, its preparation counts for the batch that is
    handed out meanwhile. (A named tuple, because one is made for every batch: it costs a tenth of a frozen dataclass.)

    Attributes:
        epoch: The epoch.
        index: Index in the epoch's list of batches.
        worker: Who sampled it: "thread 0", "process 1", "process 1, thread 0" where processes have several, "server 0, process 1",
            "receiver, thread 2"; "" where that is not known.
        began_s: When its worker began to sample it; nan where that is not known.
        sample_s: What the worker spent choosing neighbours.
        gather_s: What it spent copying features and ids.
        asked_s: When the consumer asked for it, the last time if it had asked before in vain.
        paused_s: How long the loader was paused.
        wait_s: Waiting for it.
        collate_s: Building PyG objects.
        transform_s: The user's ``transform``.
        transfer_s: Starting copies to the device.
        consumer_s: What the consumer did before it asked: the training step.
        seeds: Seeds in it.
        nodes: Nodes in it, seeds included.
        edges: Edges in it.
        nbytes: Bytes of its tensors as they were sampled.
        ready: Batches that were sampled and waiting when it was asked for, itself included if it was.
        cached_nbytes: Bytes of features that it came without, because they were on the device.
    """

    epoch: int
    index: int  # type: ignore[assignment]  # a tuple's own method of that name is of no use here
    worker: str
    began_s: float
    sample_s: float
    gather_s: float
    asked_s: float
    paused_s: float
    wait_s: float
    collate_s: float
    transform_s: float
    transfer_s: float
    consumer_s: float
    seeds: int
    nodes: int
    edges: int
    nbytes: int
    ready: int
    cached_nbytes: int = 0

    @property
    def delivered_s(self) -> float:
        """When the consumer got it."""
        return self.asked_s + self.paused_s + self.wait_s + self.collate_s + self.transform_s + self.transfer_s


class Records:
    """The last 4096 batches of all epochs of a loader, oldest first. May be read from any thread."""

    def __init__(self) -> None:
        self._kept: deque[BatchRecord] = deque(maxlen=_KEPT)
        self.add = self._kept.append
        """Books a batch."""

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[BatchRecord]:
        # Copied in one step of the interpreter: a deque that grows meanwhile cannot be iterated.
        return iter(self._kept.copy())

    @property
    def is_full(self) -> bool:
        """Whether each further batch makes it forget another."""
        return len(self._kept) == self._kept.maxlen

    def window(self, seconds: float) -> list[BatchRecord]:
        """The batches that were handed out within the last ``seconds``."""
        since = time.monotonic() - seconds
        return [record for record in self if record.delivered_s >= since]

    def of_epoch(self, epoch: int) -> list[BatchRecord]:
        """The batches of an epoch that are still known."""
        return [record for record in self if record.epoch == epoch]

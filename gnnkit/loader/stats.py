"""Where an epoch's time goes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class EpochStats:
    """Counters of one epoch, as the consumer sees it.

    ``paused_s + wait_s + collate_s + transform_s + transfer_s + consumer_s`` is ``wall_s``; ``sample_s`` and ``gather_s`` are spent by the
    sampling threads or processes beside them, summed over all of them.

    Attributes:
        epoch: Which epoch.
        batches: Batches delivered.
        seeds: Seeds in them.
        nodes: Nodes in them, seeds included.
        edges: Edges in them.
        nbytes: Bytes of their tensors as they were sampled.
        cached_nbytes: Bytes of features that they came without, because they were on the device: see ``feature_cache``.
        wall_s: From the start of the epoch to the last look.
        paused_s: Held back by ``pause()``.
        wait_s: Waiting for a sampled batch.
        collate_s: Building PyG objects.
        transform_s: The user's ``transform``.
        transfer_s: Starting copies to the device.
        consumer_s: Everything that happened between batches: the training step.
        sample_s: Choosing neighbours.
        gather_s: Copying features and ids.
    """

    epoch: int = 0
    batches: int = 0
    seeds: int = 0
    nodes: int = 0
    edges: int = 0
    nbytes: int = 0
    cached_nbytes: int = 0
    wall_s: float = 0.0
    paused_s: float = 0.0
    wait_s: float = 0.0
    collate_s: float = 0.0
    transform_s: float = 0.0
    transfer_s: float = 0.0
    consumer_s: float = 0.0
    sample_s: float = 0.0
    gather_s: float = 0.0

    def spent(self) -> tuple[float, float, float, float, float, float]:
        """The consumer's time so far, in the order of ``BatchRecord``."""
        return self.paused_s, self.wait_s, self.collate_s, self.transform_s, self.transfer_s, self.consumer_s

    @property
    def batches_per_s(self) -> float:
        """Batches delivered per second of wall time."""
        return self.batches / self.wall_s if self.wall_s else 0.0

    @property
    def seeds_per_s(self) -> float:
        """Seeds delivered per second of wall time."""
        return self.seeds / self.wall_s if self.wall_s else 0.0

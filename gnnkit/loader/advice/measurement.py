"""The facts that advice rests on: plain numbers of one span of a loop."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# The parts that a loop's time falls into, as ``EpochStats`` has them.
PARTS = ("wait", "collate", "transform", "transfer", "consumer")


@dataclass(frozen=True)
class Work:
    """What one batch took.

    Attributes:
        sampling_s: Seconds that a sampling thread worked on it, gathering included.
        loop_s: Seconds that the loop spent on it, waiting not included.
    """

    sampling_s: float
    loop_s: float


@dataclass(frozen=True)
class Measurement:
    """What was measured in one span of a loop. Unknown numbers are nan.

    Attributes:
        backend: The backend's options, as in a plan.
        prefetch: The loader's ``prefetch``.
        seconds: The loop's time in the span: that between the batches and for them, not that between epochs.
        batches: Batches that were handed out.
        seeds: Seeds in them.
        shares: Parts of the loop's time by the names in ``PARTS``; they sum to 1.
        start_share: Part of the loop's time that it waited for the first batches of epochs, before all workers have delivered.
        workers: Threads or processes that sample.
        threads: Batches that can be sampled at once: sampling threads of all processes.
        busy: Part of their time that those threads sampled, 0 to 1.
        busy_of: The same for each worker by name: the time that it sampled by the time of the loop; above 1 for one of several threads.
        slots: Batches that can be sampled and waiting at once.
        ready: Mean number of batches that were waiting when one was asked for, that one included.
        batch_bytes: Mean bytes of a batch.
        work: What the last batches took, in their order.
        blocked: Part of the sampling time in which a thread had nothing to compute: it waited for a disk, a network or a lock.
        starved: Part of the sampling time in which a thread waited for a processor.
        read_bytes_per_s: Bytes a second that the sampling processes had the disk read.
        faults_per_s: Times a second that one of them touched memory that had to be read from the disk.
        cpus: Processors that this trainer may use: its share of the host's.
        loop_cpus: Mean number of processors that this process used beside its sampling threads: the loop, and the training step's threads.
        idle_cpus: Mean number of those that nobody used.
        graph_bytes: Bytes of the graph on this host.
        copied_bytes: Bytes of its copy in memory, 0 where there is none.
        will_copy: Whether that copy is being made, or will be with the first batches.
        free_bytes: Bytes of memory that are free for it.
        is_remote: Whether batches or parts of the graph come from other hosts.
        starting: What has to be done before batches can come ("start", "compile", ...), or "".
    """

    backend: Mapping[str, Any] = field(default_factory=lambda: {"kind": "InProcess"})
    prefetch: int = 2
    seconds: float = 0.0
    batches: int = 0
    seeds: int = 0
    shares: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    start_share: float = 0.0
    workers: int = 1
    threads: int = 1
    busy: float = math.nan
    busy_of: Mapping[str, float] = field(default_factory=dict)
    slots: int = 0
    ready: float = math.nan
    batch_bytes: float = math.nan
    work: tuple[Work, ...] = ()
    blocked: float = math.nan
    starved: float = math.nan
    read_bytes_per_s: float = math.nan
    faults_per_s: float = math.nan
    cpus: int = 1
    loop_cpus: float = math.nan
    idle_cpus: float = math.nan
    graph_bytes: int = 0
    copied_bytes: int = 0
    will_copy: bool = False
    free_bytes: int = 0
    is_remote: bool = False
    starting: str = ""

    @property
    def kind(self) -> str:
        """The backend's class."""
        return str(self.backend["kind"])

    @property
    def is_joined(self) -> bool:
        """Whether its workers are those of servers that somebody else has started."""
        return self.backend.get("address") is not None

    @property
    def is_bounded(self) -> bool:
        """Whether memory for batches was given as ``channel_size``, which bounds the slots; graphlearn-torch's does not."""
        return self.kind != "Glt" and self.backend.get("channel_size") is not None

    @property
    def seeds_per_s(self) -> float:
        """Seeds per second of the loop's time."""
        return self.seeds / self.seconds if self.seconds else 0.0

    @property
    def batches_per_s(self) -> float:
        """Batches per second of the loop's time."""
        return self.batches / self.seconds if self.seconds else 0.0

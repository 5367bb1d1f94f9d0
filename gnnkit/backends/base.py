"""What every backend offers: a stream of sampled batches, in order, that can be started anew at any time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gnnkit.events import EventSink
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.graph_handle import GraphHandle
from gnnkit.runtime.process_status import ProcessStatus
from gnnkit.sampling.subgraph import SampledSubgraph


class EndOfEpoch:
    """What ``recv`` returns once every batch of the epoch has been delivered."""


END_OF_EPOCH = EndOfEpoch()


@dataclass(frozen=True)
class StreamStatus:
    """What a stream is doing.

    Attributes:
        state: "ready", "sampling", "idle" (unused for so long that it has given up what it held) or "closed".
        workers: Threads or processes that sample.
        batches_ready: Batches that are sampled and wait for the consumer; where processes sample, as it was when a batch was last taken.
        buffer_bytes: Memory of the batches' blocks, held ones included.
        graph_bytes: Memory of the graph's copy in huge pages.
        slots: The most batches that can be under way or wait for the consumer at once.
        processes: This process and those that work for the loader on this host, as far as they are known.
        details: Further facts, for people.
    """

    state: str
    workers: int
    batches_ready: int
    buffer_bytes: int
    graph_bytes: int
    slots: int
    processes: tuple[ProcessStatus, ...]
    details: Mapping[str, Any] = field(default_factory=dict)


class BatchStream(Protocol):
    """A loader's connection to where its batches are sampled."""

    def start_epoch(self, epoch: int, first_batch: int = 0) -> None:
        """Starts (or abandons and starts) an epoch at ``first_batch`` of its list of batches."""
        ...

    def recv(self, timeout_s: float, check: Callable[[], None]) -> SampledSubgraph | EndOfEpoch:
        """The next batch of this rank, in order.

        Args:
            timeout_s: Longest wait.
            check: Raises once the caller's epoch has given way to a newer one; called where no other thread can begin one, so that
                nobody takes a batch of an epoch that is not his.

        Raises:
            BatchTimeout: None came within ``timeout_s`` seconds.
            WorkerDied: Whoever was sampling it is gone.
            SamplingError: Sampling it raised.
            MemoryLimitError: There is no memory for it.
        """
        ...

    def sample_now(self, epoch: int, batch_index: int, seeds: NDArray[np.int64] | None = None) -> SampledSubgraph:
        """One batch outside the running epoch: of this loader's list, or around ``seeds`` (dataset ids) where they are given."""
        ...

    def status(self) -> StreamStatus:
        """What the stream is doing. May be asked for from any thread, in the middle of anything."""
        ...

    def restart(self, timeout_s: float) -> None:
        """Ends whoever samples and starts others; the epoch goes on with the same batches. Callable from any thread.

        Args:
            timeout_s: Longest wait for the new ones.

        Raises:
            PlanError: They are not this process's to restart.
            StartTimeout: They are not there in time.
        """
        ...

    def close(self) -> None:
        """Stops everything; safe to call twice."""
        ...


class Backend(Protocol):
    """Where sampling happens: a frozen dataclass of options that opens streams."""

    def open(self, plan: LoaderPlan, graph: GraphHandle, events: EventSink) -> BatchStream:
        """Starts what it takes to sample ``plan``."""
        ...

    def to_json(self) -> dict[str, Any]:
        """``{"kind": class name, option: value, ...}``."""
        ...

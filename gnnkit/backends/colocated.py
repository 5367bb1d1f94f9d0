"""Sampling in processes beside the trainer, which hand batches over in shared memory."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from gnnkit.backends.base import BatchStream
from gnnkit.errors import PlanError
from gnnkit.events import EventSink
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.graph_handle import GraphHandle
from gnnkit.runtime.limits import auto_threads

_MOST_CONCURRENT = 32
# As graphlearn-torch reads them.
_UNITS = {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}


@dataclass(frozen=True)
class Colocated:
    """Samples in background processes of this host, started by the loader and ended with it.

    Batches are those of ``InProcess``, bit for bit. ``docs/workers.md`` describes the processes.

    Attributes:
        num_workers: Processes, or "auto": the processors this trainer may use, less one, at most 16.
        threads_per_worker: Sampling threads in each.
        worker_concurrency: Batches that a process is given at a time, 1 to 32.
        channel_size: The most memory for batches under way, in bytes or as "4GB"; None: as much as they take.
        process_start_gap_seconds: The trainer of local rank ``i`` waits ``i`` times as long before it starts processes. Start-up needs no
            such gap: memory is shared.
        max_concurrent_producer_inits: Processes of this loader that may be starting at the same time; None: all.
        max_restarts: How often, in all, a process that dies is started again, its batches sampled again and a warning given; after
            that, its death is an error.
        log_dir: Folder for the processes' logs; None: ``$GNNKIT_HOME``, the user's runtime or state folder, or the temporary one.

    Raises:
        PlanError: A value is unusable.
    """

    num_workers: int | Literal["auto"] = "auto"
    threads_per_worker: int = 1
    worker_concurrency: int = 2
    channel_size: int | str | None = None
    process_start_gap_seconds: float = 0.0
    max_concurrent_producer_inits: int | None = None
    max_restarts: int = 0
    log_dir: str | None = None

    def __post_init__(self) -> None:
        if self.num_workers != "auto":
            _check_count("num_workers", self.num_workers, 1)
        _check_count("threads_per_worker", self.threads_per_worker, 1)
        _check_count("worker_concurrency", self.worker_concurrency, 1)
        _check_count("max_restarts", self.max_restarts, 0)
        if self.worker_concurrency > _MOST_CONCURRENT:
            raise PlanError(f"worker_concurrency must be at most {_MOST_CONCURRENT}, got {self.worker_concurrency}", "2 is enough for most")
        if self.max_concurrent_producer_inits is not None:
            _check_count("max_concurrent_producer_inits", self.max_concurrent_producer_inits, 1)
        gap = self.process_start_gap_seconds
        if isinstance(gap, bool) or not isinstance(gap, (int, float)) or not math.isfinite(gap) or gap < 0:
            raise PlanError(f"process_start_gap_seconds must be a number of seconds of at least 0, got {gap!r}")
        if self.log_dir is not None:
            if not isinstance(self.log_dir, (str, Path)) or not str(self.log_dir):
                raise PlanError(f"log_dir must be a folder's path, got {self.log_dir!r}")
            object.__setattr__(self, "log_dir", str(self.log_dir))
        _ = self.channel_bytes

    @property
    def channel_bytes(self) -> int | None:
        """``channel_size`` in bytes."""
        size = self.channel_size
        if size is None:
            return None
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?B?)\s*", size.upper()) if isinstance(size, str) else None
        if match is not None and (match[2] in _UNITS or match[2] + "B" in _UNITS):
            nbytes = int(float(match[1]) * _UNITS.get(match[2], _UNITS.get(match[2] + "B", 1)))
        elif isinstance(size, int) and not isinstance(size, bool):
            nbytes = size
        else:
            nbytes = 0
        if nbytes < 1:
            raise PlanError(f"channel_size must be a number of bytes or a size such as '4GB', got {size!r}", "None takes what is needed")
        return nbytes

    def open(self, plan: LoaderPlan, graph: GraphHandle, events: EventSink) -> BatchStream:
        """Starts the processes and waits until they are ready."""
        if sys.platform != "linux":
            raise PlanError(f"Colocated() needs Linux, this is {sys.platform}", "use InProcess()")
        from gnnkit.backends.colocated_stream import ColocatedStream

        workers = self.num_workers if isinstance(self.num_workers, int) else max(1, auto_threads() // self.threads_per_worker)
        return ColocatedStream(self, workers, plan, graph, events)

    def to_json(self) -> dict[str, Any]:
        """``{"kind": "Colocated", option: value, ...}``."""
        return {"kind": "Colocated", **asdict(self)}


def _check_count(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        auto = "'auto' or " if name == "num_workers" else ""
        raise PlanError(f"{name} must be {auto}a whole number of at least {least}, got {value!r}")

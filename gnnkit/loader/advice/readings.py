"""What the system counts of sampling processes and of the machine, read now and then while a loop runs."""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gnnkit.events import Event
from gnnkit.runtime.shared_graph import graph_nbytes

if TYPE_CHECKING:
    from gnnkit.loader.pipeline import Pipeline
    from gnnkit.runtime.graph_handle import GraphHandle

# Least seconds between two readings while an epoch runs; one takes a fraction of a millisecond per process.
_GAP_S = 1.0
_KEPT = 600
# How ``InProcess`` names its threads.
_SAMPLER = "gnnkit-sampler-"


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters at one moment; the difference of two is what happened between them.

    Attributes:
        time_s: ``time.monotonic()``.
        idle_s: Processor-seconds that nobody used of the processors that this process may use; nan where the system does not say.
        process_s: Processor-seconds that this process has used, with all its threads.
        samplers: Counters of the sampling processes by pid; of this one, only its sampling threads'.
    """

    time_s: float
    idle_s: float
    process_s: float
    samplers: dict[int, Counters]


@dataclass(frozen=True, slots=True)
class Counters:
    """What a process, or some threads of it, have used.

    Attributes:
        cpu_s: Seconds of processors.
        queued_s: Seconds that its threads waited for a processor.
        read_bytes: Bytes that it had disks read.
        faults: Times that it touched memory that had to be read from a disk.
    """

    cpu_s: float
    queued_s: float
    read_bytes: int
    faults: int


class Gauge:
    """The last readings of one loader, taken at most once a second while its epochs run.

    It listens to the loader's events: readings are taken where the loop runs, at the beginning and the end of epochs and between
    batches.

    Args:
        loader: The loader; it is not kept.
        graph: Its graph.

    Attributes:
        graph_bytes: Bytes of the graph's arrays on this host.
    """

    def __init__(self, loader: Pipeline, graph: GraphHandle) -> None:
        self._loader, self.graph_bytes = weakref.ref(loader), graph_nbytes(graph.arrays)
        self._readings: deque[Reading] = deque(maxlen=_KEPT)
        self._due_s = -math.inf
        loader.history.listen(self._listen)

    def _listen(self, event: Event) -> None:
        """Takes a reading where one is due."""
        if event.stage == "epoch" and (event.kind != "progress" or event.time_s >= self._due_s):
            self.read()

    def read(self) -> None:
        """Takes a reading now."""
        loader = self._loader()
        if loader is not None:
            self._readings.append(read_counters(_samplers(loader)))
            self._due_s = time.monotonic() + _GAP_S

    def around(self, since_s: float, until_s: float) -> tuple[Reading, Reading] | None:
        """The readings that come closest to a span; None where there are not two.

        The first is the last one before it, or else the first of all; the other is the first one after it, or else the last of all.

        Args:
            since_s: Its beginning, as ``time.monotonic()`` counts.
            until_s: Its end.
        """
        readings = list(self._readings.copy())
        first = next((r for r in reversed(readings) if r.time_s <= since_s), readings[0] if readings else None)
        last = next((r for r in readings if r.time_s >= until_s), readings[-1] if readings else None)
        if first is None or last is None or last.time_s <= first.time_s:
            return None
        return first, last


def read_counters(samplers: Iterable[tuple[int, Sequence[int]]]) -> Reading:
    """Reads the counters of sampling processes.

    Args:
        samplers: Their pids, with the native ids of the threads that count; none stands for all.
    """
    found = {}
    for pid, threads in samplers:
        try:
            found[pid] = _counters(pid, threads)
        except (OSError, ValueError, IndexError):  # it has ended, or this system has no /proc
            continue
    return Reading(time.monotonic(), _idle_s(), time.process_time(), found)


def _counters(pid: int, threads: Sequence[int]) -> Counters:
    folder = f"/proc/{pid}"
    cpu_ns = queued_ns = faults = 0
    for thread in threads or [int(name) for name in os.listdir(f"{folder}/task")]:
        with open(f"{folder}/task/{thread}/schedstat") as file:
            ran, queued, _ = file.read().split()
        with open(f"{folder}/task/{thread}/stat") as file:
            faults += int(file.read().rpartition(")")[2].split()[9])
        cpu_ns, queued_ns = cpu_ns + int(ran), queued_ns + int(queued)
    with open(f"{folder}/io") as file:
        read_bytes = next(int(line.split()[1]) for line in file if line.startswith("read_bytes:"))
    return Counters(cpu_ns / 1e9, queued_ns / 1e9, read_bytes, faults)


def _idle_s() -> float:
    """Idle seconds of the processors that this process may run on, summed."""
    try:
        allowed = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        with open("/proc/stat") as file:
            lines = [line.split() for line in file if line.startswith("cpu")]
        ticks = sum(int(fields[4]) + int(fields[5]) for fields in lines if fields[0] in allowed)  # idle, and idle while a disk reads
    except (OSError, AttributeError, ValueError, IndexError):
        return math.nan
    return ticks / float(os.sysconf("SC_CLK_TCK"))


def _samplers(loader: Pipeline) -> list[tuple[int, Sequence[int]]]:
    """Who samples for a loader: pids, with the threads that do it where others run beside them; in this process, those of all loaders."""
    if loader.plan.backend["kind"] == "InProcess":
        threads = [t.native_id for t in threading.enumerate() if t.name.startswith(_SAMPLER) and t.native_id is not None]
        return [(os.getpid(), threads)] if threads else []
    return [(process.pid, ()) for process in loader.status().processes if "process" in process.name or process.name == "receiver"]

"""Measuring a loader: from its records, its status and the readings of its gauge, without touching what it does."""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

from gnnkit.events import Event
from gnnkit.host import available_cpus, available_memory
from gnnkit.loader.history import BatchRecord
from gnnkit.runtime.graph_memory import copy_nbytes, graph_nbytes
from gnnkit.runtime.limits import own_cpus
from gnnkit.storage.disk import Disk

if TYPE_CHECKING:
    from gnnkit.loader.pipeline import Pipeline
    from gnnkit.runtime.graph_memory import GraphHandle

# The parts that a loop's time falls into, as ``EpochStats`` has them.
PARTS = ("wait", "collate", "transform", "transfer", "consumer")


@dataclass(frozen=True)
class Work:
    """The seconds that one batch took.

    Attributes:
        sampling_s: Seconds that a sampling thread worked on it, gathering included.
        loop_s: Seconds that the loop spent on it, waiting not included.
    """

    sampling_s: float
    loop_s: float


@dataclass(frozen=True)
class LoopMeasurement:
    """The figures that were measured in one span of a loop. Unknown numbers are nan.

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
        work: The seconds of the last batches, in their order.
        blocked: Part of the sampling time in which a thread had nothing to compute: it waited for a disk, a network or a lock.
        starved: Part of the sampling time in which a thread waited for a processor.
        read_bytes_per_s: Bytes a second that the sampling processes had the disk read.
        faults_per_s: Times a second that one of them touched memory that had to be read from the disk.
        disk: The system's name of the disk that the store lies on, or "".
        disk_busy: Part of the time in which that disk had something to do, for whomever.
        cpus: Processors that this trainer may use: its share of the host's.
        loop_cpus: Mean number of processors that this process used beside its sampling threads: the loop, and the training step's threads.
        idle_cpus: Mean number of those that were idle.
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
    disk: str = ""
    disk_busy: float = math.nan
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
        disk_s: Seconds in which the store's disk had something to do; nan where the system does not say.
    """

    time_s: float
    idle_s: float
    process_s: float
    samplers: dict[int, Counters]
    disk_s: float = math.nan


@dataclass(frozen=True, slots=True)
class Counters:
    """The resources that a process, or some threads of it, have used.

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
        gap_s: Seconds between two readings while an epoch runs.

    Attributes:
        readings: The last readings, the oldest first.
        graph_bytes: Bytes of the graph's arrays on this host.
        disk: The disk that its store lies on; None where it has none, or the system does not say.
    """

    def __init__(self, loader: Pipeline, graph: GraphHandle, gap_s: float = _GAP_S) -> None:
        self._gap_s = gap_s
        self._loader, self.graph_bytes = weakref.ref(loader), graph_nbytes(graph.arrays)
        self.disk = None if graph.store is None else Disk.under(graph.store.path)
        self.readings: deque[Reading] = deque(maxlen=_KEPT)
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
            self.readings.append(read_counters(_samplers(loader), self.disk))
            self._due_s = time.monotonic() + self._gap_s

    def around(self, since_s: float, until_s: float) -> tuple[Reading, Reading] | None:
        """The readings that come closest to a span; None where there are not two.

        The first is the last one before it, or else the first of all; the other is the first one after it, or else the last of all.

        Args:
            since_s: Its beginning, as ``time.monotonic()`` counts.
            until_s: Its end.
        """
        readings = list(self.readings.copy())
        first = next((r for r in reversed(readings) if r.time_s <= since_s), readings[0] if readings else None)
        last = next((r for r in readings if r.time_s >= until_s), readings[-1] if readings else None)
        if first is None or last is None or last.time_s <= first.time_s:
            return None
        return first, last


def read_counters(samplers: Iterable[tuple[int, Sequence[int]]], disk: Disk | None = None) -> Reading:
    """Reads the counters of sampling processes.

    Args:
        samplers: Their pids, with the native ids of the threads that count; none stands for all.
        disk: The disk that they read.
    """
    found = {}
    for pid, threads in samplers:
        try:
            found[pid] = _counters(pid, threads)
        except (OSError, ValueError, IndexError):  # it has ended, or this system has no /proc
            continue
    return Reading(time.monotonic(), _idle_s(), time.process_time(), found, math.nan if disk is None else disk.busy_s())


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
    """Returns the pids that sample for a loader, with their sampling threads where others run beside them; here, those of all loaders."""
    if loader.plan.backend["kind"] == "InProcess":
        threads = [t.native_id for t in threading.enumerate() if t.name.startswith(_SAMPLER) and t.native_id is not None]
        return [(os.getpid(), threads)] if threads else []
    return [(process.pid, ()) for process in loader.status().processes if "process" in process.name or process.name == "receiver"]


# Batches whose times are kept one by one.
_MOST_WORK = 128
# Stages that must be over before batches can come.
_BEFORE_BATCHES = ("download", "ingest", "quantize", "partition", "compile", "start")


def measure(loader: Pipeline, seconds: float = 10.0) -> LoopMeasurement:
    """Measures the last ``seconds`` of a loader's loop, whether it still runs or not.

    Reads a few small files of /proc, and may be called from any thread.

    Args:
        loader: The loader.
        seconds: How far to look back from the last batch.
    """
    loader.gauge.read()
    status, plan, records = loader.status(), loader.plan, last_records(loader.records, seconds)
    workers = max(1, status.workers)
    threads = workers * int(plan.backend.get("threads_per_worker", 1))
    return LoopMeasurement(
        backend=plan.backend,
        prefetch=plan.runtime.prefetch,
        workers=workers,
        threads=threads,
        slots=status.slots,
        cpus=own_cpus(),
        graph_bytes=loader.gauge.graph_bytes,
        copied_bytes=status.graph_bytes,
        will_copy=_will_copy(loader),
        free_bytes=available_memory(),
        is_remote=_is_remote(loader),
        starting=next((s.stage for s in loader.history.stages if s.state == "running" and s.stage in _BEFORE_BATCHES), ""),
        **_of_records(records, threads),
        **_of_system(loader, records),
    )


def last_records(records: Iterable[BatchRecord], seconds: float) -> list[BatchRecord]:
    """The batches of the last ``seconds`` before the last one was handed out, oldest first."""
    found = list(records)
    if not found:
        return []
    since = found[-1].delivered_s - seconds
    first = len(found) - 1
    while first and found[first - 1].delivered_s >= since:
        first -= 1
    return found[first:]


def _of_records(records: Sequence[BatchRecord], threads: int) -> dict[str, Any]:
    """Returns the figures that come from the records of batches."""
    if not records:
        return {}
    times = {name: sum(getattr(record, f"{name}_s") for record in records) for name in PARTS}
    seconds = max(sum(times.values()), 1e-9)
    sampled: dict[str, float] = {}
    for record in records:
        sampled[record.worker] = sampled.get(record.worker, 0.0) + record.sample_s + record.gather_s
    return {
        "seconds": seconds,
        "batches": len(records),
        "seeds": sum(record.seeds for record in records),
        "shares": {name: time / seconds for name, time in times.items()},
        "start_share": sum(record.wait_s for record in _first_ones(records, threads)) / seconds,
        "busy": min(1.0, sum(sampled.values()) / seconds / threads),
        "busy_of": {name: time / seconds for name, time in sorted(sampled.items())},
        "ready": fmean(record.ready for record in records),
        "batch_bytes": fmean(record.nbytes for record in records),
        "work": tuple(_work(record) for record in records[-_MOST_WORK:]),
    }


def _work(record: BatchRecord) -> Work:
    loop_s = record.collate_s + record.transform_s + record.transfer_s + record.consumer_s
    return Work(record.sample_s + record.gather_s, loop_s)


def _first_ones(records: Sequence[BatchRecord], threads: int) -> list[BatchRecord]:
    """The first batch of every worker in each epoch that began in the span."""
    found, epoch, left = [], records[0].epoch, 0 if records[0].index else threads
    for record in records:
        if record.epoch != epoch:
            epoch, left = record.epoch, threads
        if left:
            found.append(record)
            left -= 1
    return found


def _of_system(loader: Pipeline, records: Sequence[BatchRecord]) -> dict[str, Any]:
    """Returns the figures that come from the system, for the time in which the batches were sampled."""
    readings = loader.gauge.around(records[0].asked_s, records[-1].delivered_s) if records else None
    if readings is None:
        return {}
    first, last = readings
    seconds = last.time_s - first.time_s
    disk = loader.gauge.disk
    facts_of_disk = {} if disk is None else {"disk": disk.name, "disk_busy": min((last.disk_s - first.disk_s) / seconds, 1.0)}
    # In this order, nan stays nan.
    facts: dict[str, Any] = {"idle_cpus": min((last.idle_s - first.idle_s) / seconds, float(available_cpus())), **facts_of_disk}
    pid = os.getpid()
    own_s = last.samplers[pid].cpu_s - first.samplers[pid].cpu_s if pid in first.samplers and pid in last.samplers else 0.0
    facts["loop_cpus"] = max(0.0, last.process_s - first.process_s - own_s) / seconds
    used = _used(first, last)
    within = [r for r in records if first.time_s <= r.asked_s <= last.time_s]
    sampled_s = sum(r.sample_s + r.gather_s for r in within)
    if used is not None and sampled_s > 0:
        # What a thread has waited is not counted any more once it has ended.
        facts["starved"] = min(1.0, max(0.0, used.queued_s / sampled_s))
        facts["blocked"] = min(1.0, max(0.0, 1.0 - (used.cpu_s + used.queued_s) / sampled_s))
        facts["read_bytes_per_s"], facts["faults_per_s"] = used.read_bytes / seconds, used.faults / seconds
    return facts


def _used(first: Reading, last: Reading) -> Counters | None:
    """Returns the resources that the sampling processes used between two readings; None where none of them was there all the time."""
    both = [(first.samplers[pid], counters) for pid, counters in last.samplers.items() if pid in first.samplers]
    if not both:
        return None
    return Counters(*(sum(getattr(b, name) - getattr(a, name) for a, b in both) for name in Counters.__slots__))


def _will_copy(loader: Pipeline) -> bool:
    """Whether the loader has a copy of its whole stored graph made; servers that somebody else has started decide for themselves."""
    plan, graph = loader.plan, loader.graph
    is_own = plan.store is not None and plan.backend.get("address") is None and plan.backend["kind"] != "Glt"
    return is_own and graph.shared is None and copy_nbytes(graph.arrays, plan.runtime.memory_budget) >= graph_nbytes(graph.arrays) > 0


def _is_remote(loader: Pipeline) -> bool:
    """Whether batches or parts of the graph come from other hosts."""
    plan = loader.plan
    address = str(plan.backend.get("address") or "unix:")
    return not address.startswith("unix:") or (plan.placement is not None and not plan.placement.is_replicated)

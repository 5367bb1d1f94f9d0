"""Finds the limit of a loop and what to change: measured while it runs, put into one sentence and into the call that follows it."""

from __future__ import annotations

import heapq
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from gnnkit.backends import backend_from_json
from gnnkit.backends.devices import cache_device
from gnnkit.backends.on_device import OnDevice
from gnnkit.bounds import MOST_SECONDS, is_real
from gnnkit.errors import PlanError
from gnnkit.events import Event, ignore_events
from gnnkit.host import available_cpus, available_memory
from gnnkit.loader.history import BatchRecord
from gnnkit.rendering import Shown
from gnnkit.runtime.graph_memory import graph_nbytes
from gnnkit.runtime.limits import DISK_THREADS, own_cpus
from gnnkit.storage.disk import Disk
from gnnkit.units import format_bytes, format_number, format_percent, format_rate

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
        device: The device that batches are copied to, where it has room for the graph and could sample them itself; else "".
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
    device: str = ""
    starting: str = ""

    @property
    def kind(self) -> str:
        """The backend's class."""
        return str(self.backend["kind"])

    @property
    def is_joined(self) -> bool:
        """Whether its workers are those of servers that were joined."""
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
# How ``InProcess`` and ``OnDevice`` name their threads.
_SAMPLER = "gnnkit-sampler-"


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters at one moment; the difference of two is what happened between them.

    Attributes:
        time_s: ``time.monotonic()``.
        idle_s: Idle processor-seconds of the processors that this process may use; nan where the system does not say.
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
    if loader.plan.backend["kind"] in ("InProcess", "OnDevice"):
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
        device=_device_with_room(loader),
        starting=next((s.stage for s in loader.history.stages if s.state == "running" and s.stage in _BEFORE_BATCHES), ""),
        **_of_records(records, threads),
        **_of_system(loader, records),
    )


def _device_with_room(loader: Pipeline) -> str:
    """The device that has room for what a loader samples from, or ""; of loaders that copy batches to it."""
    device = cache_device(loader.device)
    if device is None or device.type == "cpu" or loader.plan.backend["kind"] in ("OnDevice", "Glt"):
        return ""
    try:
        return str(device) if OnDevice(str(device)).room(loader.plan, loader.graph) >= 0 else ""
    except PlanError:
        return ""


def last_records(records: Iterable[BatchRecord], seconds: float) -> list[BatchRecord]:
    """The batches of the last ``seconds`` before the last one was handed out, oldest first."""
    newest_first = list(records)[::-1]
    since = newest_first[0].delivered_s - seconds if newest_first else 0.0
    return list(takewhile(lambda record: record.delivered_s >= since, newest_first))[::-1]


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
        "work": tuple(
            Work(r.sample_s + r.gather_s, r.collate_s + r.transform_s + r.transfer_s + r.consumer_s) for r in records[-_MOST_WORK:]
        ),
    }


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
    """Whether the loader has a copy of its whole stored graph made; servers that were joined decide for themselves."""
    plan, graph = loader.plan, loader.graph
    is_own = plan.store is not None and plan.backend.get("address") is None and plan.backend["kind"] != "Glt"
    return is_own and graph.shared is None and graph.copy_nbytes(plan.runtime.memory_budget) >= graph_nbytes(graph.arrays) > 0


def _is_remote(loader: Pipeline) -> bool:
    """Whether batches or parts of the graph come from other hosts."""
    plan = loader.plan
    address = str(plan.backend.get("address") or "unix:")
    return not address.startswith("unix:") or (plan.placement is not None and not plan.placement.is_replicated)


# Times that differ by less than this factor are equal.
_AS_GOOD = 1.03


def replay_s(work: Sequence[Work], threads: int, slots: int) -> float:
    """Seconds from the first sampled batch to the last step of the loop.

    Batches are taken up in order by the next free worker, at most ``slots`` of them beyond the one that the loop has taken last, and are
    handed out in order; nothing else takes time. That is how every backend deals its batches.

    Args:
        work: What the batches take, in their order.
        threads: How many are sampled at once, at least 1.
        slots: How many can be under way or waiting, at least 1.
    """
    free = [0.0] * threads
    taken: list[float] = []
    asked = 0.0
    for step, batch in enumerate(work):
        room = taken[step - slots] if step >= slots else 0.0
        done = max(heapq.heappop(free), room) + batch.sampling_s
        heapq.heappush(free, done)
        taken.append(max(asked, done))
        asked = taken[-1] + batch.loop_s
    return asked


def fewest(work: Sequence[Work], counts: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], float]:
    """The first of several numbers of threads and slots that is about as good as the best.

    Args:
        work: What the batches take.
        counts: Threads and slots, the fewest first.

    Returns:
        The pair, and its seconds.
    """
    times = [replay_s(work, *count) for count in counts]
    chosen = next(i for i, time in enumerate(times) if time <= min(times) * _AS_GOOD)
    return counts[chosen], times[chosen]


# A processor that is idle for this part of the time has room for another thread.
_ROOM = 0.5
# Threads that have nothing to compute for this part of their time need no processor of their own.
_WAITING = 0.5
# The most sampling threads, and batches under way, that are advised.
_MOST_THREADS, _MOST_SLOTS = 16, 64
# Batches under way may take this part of the memory that is free.
_MOST_OF_MEMORY = 0.1


def slots_change(measured: LoopMeasurement) -> tuple[float, dict[str, Any]]:
    """Returns the speed-up that as many slots as are useful would have given, and the options for that."""
    work, threads, now = measured.work, measured.threads, max(1, measured.slots)
    if not work or math.isnan(measured.busy):
        return 1.0, {}
    room = int(measured.free_bytes * _MOST_OF_MEMORY / max(1.0, measured.batch_bytes))
    sizes = [now] + [size for size in (4, 8, 16, 32, _MOST_SLOTS) if now < size <= room]
    chosen, seconds = fewest(work, [(threads, size) for size in sizes])
    gain = _gain(measured, replay_s(work, threads, now), seconds)
    change: dict[str, Any] = {"channel_size": None} if measured.is_bounded else {}
    return gain, {**change, "prefetch": max(measured.prefetch, 0 if change else measured.prefetch + chosen[1] - now, chosen[1] - threads)}


def workers_change(measured: LoopMeasurement) -> tuple[float, dict[str, Any]]:
    """Returns the speed-up that more workers would have given, and the options for as many as there is room for."""
    work, threads, slots = measured.work, measured.threads, max(1, measured.slots)
    each = max(1, threads // max(1, measured.workers))
    if not work or math.isnan(measured.busy):  # how long its batches take is not known
        return 2.0, _of_workers(measured, measured.workers + 1)
    most = min(_MOST_THREADS, threads + max(each, worker_room(measured) // each * each))
    # Each brings a slot with it, unless the memory for them is bounded.
    counts = [(count, slots if measured.is_bounded else slots + count - threads) for count in range(threads, most + 1, each)]
    chosen, seconds = fewest(work, counts)
    return _gain(measured, replay_s(work, threads, slots), seconds), _of_workers(measured, chosen[0] // each)


def _gain(measured: LoopMeasurement, now_s: float, then_s: float) -> float:
    """Returns the speed-up of the loop, by its replays as it was and as it would be; the time that these do not explain stays."""
    took_s = measured.seconds / max(1, measured.batches) * len(measured.work)
    rest_s = max(0.0, took_s - now_s)
    return (now_s + rest_s) / max(then_s + rest_s, 1e-9)


def worker_room(measured: LoopMeasurement) -> int:
    """Returns the number of further threads with room: on processors of this trainer's share that it leaves idle, or on any idle ones.

    Other programs count where they use processors beyond this trainer's share, and not within it: so does "auto" of the backends.
    """
    if measured.blocked >= _WAITING:
        return measured.threads
    loop = 0.0 if math.isnan(measured.loop_cpus) else measured.loop_cpus
    own = math.floor(measured.cpus - measured.threads - loop + _ROOM)
    idle = 0 if math.isnan(measured.idle_cpus) else math.floor(measured.idle_cpus + 1 - _ROOM)
    return max(0, own, idle)


def _of_workers(measured: LoopMeasurement, count: int) -> dict[str, Any]:
    """The option that makes so many workers."""
    if measured.kind == "InProcess":
        return {"num_threads": count}
    if measured.kind == "GraphStore":
        return {"workers_per_server": -(-count // int(measured.backend["num_servers"]))}
    return {"num_workers": count}


def divided(backend: Mapping[str, Any], change: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divides options into those of a backend and the others, which are keywords of the loader.

    Args:
        backend: The backend's options, as in a plan.
        change: Names and values.
    """
    own = {name: value for name, value in change.items() if name in backend}
    return own, {name: value for name, value in change.items() if name not in own}


def in_words(backend: Mapping[str, Any], change: Mapping[str, Any]) -> str:
    """Options as arguments of a loader: ``backend=InProcess(num_threads=4), prefetch=8``.

    Args:
        backend: The backend's options, as in a plan.
        change: Options of the backend and keywords of the loader.
    """
    own, rest = divided(backend, change)
    words = [f"backend={backend['kind']}({arguments(own)})"] if own else []
    return ", ".join([*words, *([arguments(rest)] if rest else [])])


def arguments(options: Mapping[str, Any]) -> str:
    """Options as keyword arguments: "num_threads=4, memory_budget=1_500_000"."""
    return ", ".join(f"{name}={f'{value:_}' if isinstance(value, int) else repr(value)}" for name, value in options.items())


def workers(kind: str, count: int) -> str:
    """The number of those that sample, in words: "1 thread", "3 workers"."""
    return format_number(count, "thread" if kind in ("InProcess", "OnDevice") else "worker")


# A loop that waits for less than this part of its time cannot gain a fifth of its speed from faster batches, whatever is done.
LITTLE = 1 / 6
# Sampling that has nothing to compute for this part of its time waits for something else.
_MUCH = 0.3
# Sampling processes that read this much a second do not have the store in memory; nor do those that read this part of what they deliver.
_READS, _READS_AGAIN = 1e6, 0.5
# A copy of the graph may take this part of the memory that is free.
_RULES_MOST_OF_MEMORY = 0.5
# More of something is advised where the recorded batches would have come faster by this factor.
_WORTHWHILE = 1.1


@dataclass(frozen=True)
class Advice:
    """The limit of a loop, and what to do about it.

    Attributes:
        bottleneck: "consumer", "collate", "transform", "transfer", "workers", "processors", "slots", "disk", "network", "handover",
            "start", or "none" where nothing stands out or nothing was measured yet.
        sentence: The same for people, with what to change.
        change: Options of the backend and keywords of the loader to use instead; ``{}`` where the loader cannot help.
    """

    bottleneck: str
    sentence: str
    change: Mapping[str, Any] = field(default_factory=dict)


def advise(measured: LoopMeasurement) -> Advice:
    """Names the bottleneck.

    Args:
        measured: What was measured.
    """
    if measured.starting:
        return Advice("start", f"Batches come once the stage {measured.starting!r} is over.")
    if not measured.batches:
        return Advice("none", "Nothing is known yet: no batch was taken.")
    if measured.shares["wait"] < LITTLE:
        return _of_the_loop(measured)
    return _disk(measured) or _start(measured) or _network(measured) or _more(measured) or _handover(measured)


def _of_the_loop(measured: LoopMeasurement) -> Advice:
    """Batches come fast enough: which part of the loop takes the most."""
    part = max(("consumer", "collate", "transform", "transfer"), key=lambda name: measured.shares[name])
    takes = f"takes {format_percent(measured.shares[part])} of the time"
    remedy = {
        "consumer": f"The loop's own code {takes}, and batches wait for it: make the training step faster; more workers gain nothing.",
        "collate": f"Making PyG objects of batches {takes}: a larger batch_size makes fewer of them.",
        "transform": f"Your transform {takes}: do its work once beforehand, or less of it.",
        "transfer": f"Copying batches to the device {takes}: a store with feature_dtype='float16' halves what is copied.",
    }
    if part == "transfer" and measured.device:
        return _sampled_there(part, remedy[part].partition(":")[0], measured)
    return Advice(part, remedy[part])


def _waits(measured: LoopMeasurement) -> str:
    return f"The loop waits for batches {format_percent(measured.shares['wait'])} of the time"


def _disk(measured: LoopMeasurement) -> Advice | None:
    """Sampling that waits for pages of the store."""
    reads = measured.faults_per_s * measured.seconds >= measured.batches or measured.read_bytes_per_s >= _READS
    is_waiting = measured.blocked >= _MUCH and reads
    if not (is_waiting or measured.read_bytes_per_s >= _READS_AGAIN * measured.batch_bytes * measured.batches_per_s):
        return None
    rate = format_rate(measured.read_bytes_per_s, "B")
    how = f"waits for the disk ({format_percent(measured.blocked)} of its time, {rate})" if is_waiting else f"reads the disk ({rate})"
    if measured.disk and not math.isnan(measured.disk_busy):
        how += f", {measured.disk}, which is busy {format_percent(measured.disk_busy)} of the time"
    what = f"{_waits(measured)}, because sampling {how}"
    size, free = format_bytes(measured.graph_bytes), format_bytes(measured.free_bytes)
    if measured.copied_bytes and measured.copied_bytes >= measured.graph_bytes:
        return Advice("disk", f"{what}; the graph's copy in memory has just been made, so this is over.")
    if measured.will_copy:
        return Advice("disk", f"{what}; the graph ({size}) is being copied into memory, and then this is over.")
    if measured.is_joined:
        remedy = "it takes more memory there, or a store with feature_dtype='float16'"
        return Advice("disk", f"{what}: servers copy the graph ({size}) into memory where four times as much is free; {remedy}.")
    if measured.graph_bytes > measured.free_bytes * _RULES_MOST_OF_MEMORY:
        does_not_fit = f"{what}: the graph is {size}, and {free} are free"
        if measured.kind == "InProcess" and is_waiting and measured.threads < DISK_THREADS:
            more = {"num_threads": DISK_THREADS}
            return Advice("disk", f"{does_not_fit}; threads that wait need no processor: use {in_words(measured.backend, more)}.", more)
        remedy = (
            "a faster disk, more memory, a store with order='hotness' or feature_dtype='float16', or placement='partition' on several hosts"
        )
        return Advice("disk", f"{does_not_fit}; it takes {remedy}.")
    change = {"memory_budget": _rounded_up(measured.graph_bytes)}
    return Advice("disk", f"{what}: have a copy of the graph ({size}) made in memory: {in_words(measured.backend, change)}.", change)


def _rounded_up(count: int) -> int:
    """A count that is easy to read: two digits and zeros."""
    unit = int(10 ** max(0, len(str(count)) - 2))
    return -(-count // unit) * unit


def _start(measured: LoopMeasurement) -> Advice | None:
    """Epochs that are over before the workers have got going."""
    if measured.start_share < max(LITTLE, measured.shares["wait"] / 2):
        return None
    sentence = f"{_waits(measured)}, most of it for the first batches of each epoch: epochs are short; longer ones wait less."
    return Advice("start", sentence)


def _network(measured: LoopMeasurement) -> Advice | None:
    """Batches, or parts of the graph, that are on their way most of the time."""
    if not (measured.is_remote and measured.blocked >= _MUCH):
        return None
    what = f"{_waits(measured)}, because sampling waits for other hosts ({format_percent(measured.blocked)} of its time)"
    concurrency = min(32, 2 * int(measured.backend["worker_concurrency"]))
    if concurrency <= measured.backend["worker_concurrency"]:
        return Advice("network", f"{what}: the network is too slow; placement='replicate' does without it where the graph fits.")
    change = {"worker_concurrency": concurrency}
    return Advice("network", f"{what}: have more batches on their way: {in_words(measured.backend, change)}.", change)


def _more(measured: LoopMeasurement) -> Advice | None:
    """More slots or more workers, whichever would have been faster with the batches as they were."""
    slots_gain, slots = slots_change(measured)
    workers_gain, more = workers_change(measured)
    if max(slots_gain, workers_gain) < _WORTHWHILE:
        return None
    who = workers(measured.kind, measured.workers)
    if measured.device:
        return _sampled_there("workers", f"{_waits(measured)} while {who} cannot sample faster", measured)
    if slots_gain >= workers_gain:
        what = f"{_waits(measured)} although {who} could sample more: room for {format_number(measured.slots, 'batch')} is too little"
        return Advice("slots", f"{what}; use {in_words(measured.backend, slots)}.", slots)
    if measured.kind == "OnDevice":
        remedy = "a larger batch_size has it do more at once, and fewer neighbours are less to do"
        return Advice("workers", f"{_waits(measured)}, and the device cannot sample faster: {remedy}.")
    what = f"{_waits(measured)} while {who} cannot sample faster"
    if worker_room(measured) < 1:
        return _processors(what)
    if measured.is_joined:
        return Advice("workers", f"{what}: give its servers more: gnnkit serve --workers-per-server.")
    return Advice("workers", f"{what}; use {in_words(measured.backend, more)}.", more)


def _sampled_there(bottleneck: str, what: str, measured: LoopMeasurement) -> Advice:
    """The graph fits the device that batches are copied to: it can make them."""
    change = {"backend": OnDevice(measured.device)}
    return Advice(bottleneck, f"{what}; the graph fits {measured.device}: use {in_words(measured.backend, change)}.", change)


def _processors(what: str) -> Advice:
    remedy = "fewer neighbours, a store with feature_dtype='float16', or servers on another machine"
    return Advice("processors", f"{what}, and no processor is left for more of them: it takes {remedy}.")


def _handover(measured: LoopMeasurement) -> Advice:
    """Returns the advice for the remaining case: neither the loop nor sampling alone is the limit."""
    who = workers(measured.kind, measured.workers)
    if measured.starved >= _MUCH:
        return _processors(f"{_waits(measured)} while {who} {'waits' if measured.workers == 1 else 'wait'} for a processor")
    if measured.busy < 0.5:
        return Advice(
            "handover",
            f"{_waits(measured)} although {who} {'samples' if measured.workers == 1 else 'sample'} only {format_percent(measured.busy)} "
            "of it: batches are so small that handing them over costs more than sampling them; raise batch_size.",
        )
    return Advice("none", f"{_waits(measured)}; sampling and the loop take about as long as each other, and nothing stands out.")


# Batches that a profile is made of, at least.
_LEAST_BATCHES = 4


def beside(loader: Pipeline, change: Mapping[str, Any]) -> Pipeline:
    """A loader of like batches with other options, which reports nothing to the reader.

    Args:
        loader: The loader.
        change: Options of its backend and keywords of the loader; see ``Advice.change``.
    """
    own, rest = divided(loader.plan.backend, change)
    # Of another seed: a loader of the same plan would take this one's place in its processes, as a cell that is run again does.
    seed = loader.plan.batching.seed ^ 1
    return loader.with_backend(backend_from_json({**loader.plan.backend, **own}), {"seed": seed, **rest}, ignore_events)


def _sample_for(loader: Pipeline, seconds: float) -> None:
    """Goes through the batches of epoch after epoch for some time, and at least for a few."""
    if not len(loader):
        raise PlanError("there is nothing to measure: an epoch of this loader has no batches", "see len(loader) and input_nodes")
    count, until_s = 0, time.monotonic() + seconds
    while True:
        for batch in loader:
            del batch
            count += 1
            if count >= _LEAST_BATCHES and time.monotonic() >= until_s:
                return


# A loop that hands out no batch for so long is not running in another thread.
_STILL_S = 1.0


@dataclass(frozen=True, repr=False)
class Profile(Shown):
    """The division of a loop's time, and advice on it.

    Attributes:
        title: The loader, in words.
        source: The measured loop: one that was "running" in another thread, the one that had run "last", or epochs of its "own".
        measurement: The figures.
        advice: What limits the loop, and what to change.
        call: The call that makes the loader with that change, ready to be copied; "" where the loader cannot help.
    """

    title: str
    source: Literal["running", "last", "own"]
    measurement: LoopMeasurement
    advice: Advice
    call: str = ""


def profile(loader: Pipeline, seconds: float = 10.0, name: str = "loader") -> Profile:
    """Looks at a loader.

    While another thread iterates over it, the profile is of that loop in the ``seconds`` to come. Otherwise it is of the last ``seconds``
    of the last loop, which takes no time. Where nothing has run yet, batches are sampled for ``seconds`` and dropped; the loader's epoch
    stays as it is.

    Args:
        loader: The loader.
        seconds: How much of a loop is looked at.
        name: How the caller's code calls the loader.

    Raises:
        PlanError: ``seconds`` is no positive number, an epoch has no batches, or nothing has run yet and there are several ranks, whose
            epochs of their own would not fit together.
        LoaderClosed: The loader is closed, and nothing has run.
    """
    if not is_real(seconds) or not 0 < seconds <= MOST_SECONDS:
        raise PlanError(f"seconds must be a positive number, got {seconds!r}")
    source, measured = _measured(loader, seconds)
    advice = advise(measured)
    return Profile(f"GraphLoader {loader.graph.name}", source, measured, advice, call_for(name, loader.plan.backend, advice.change))


def _measured(loader: Pipeline, seconds: float) -> tuple[Literal["running", "last", "own"], LoopMeasurement]:
    has_begun = any(stage.stage == "epoch" and stage.state == "running" for stage in loader.history.stages)
    if has_begun and _heard(loader, min(_STILL_S, seconds), lambda _: True):
        # Until the loop breaks off; an epoch that is complete has another one after it, as a rule.
        _heard(loader, seconds, lambda event: event.kind == "fail" or (event.kind == "end" and event.text == "stopped"))
        return "running", measure(loader, seconds)
    if len(last_records(loader.records, seconds)) >= min(_LEAST_BATCHES, len(loader)) > 0:
        return "last", measure(loader, seconds)
    ranks = loader.plan.batching.world_size
    if ranks > 1:
        raise PlanError(f"nothing has run yet that could be profiled, and this is one of {ranks} trainers", "iterate over the loader first")
    with beside(loader, {}) as own:
        _sample_for(own, seconds)
        return "own", measure(own, seconds)


def call_for(name: str, backend: Mapping[str, Any], change: Mapping[str, Any]) -> str:
    """The call that follows an advice: "loader.with_backend(InProcess(num_threads=2), prefetch=8)"; "" where there is nothing to change.

    Args:
        name: How the caller's code calls the loader.
        backend: The backend's options, as in a plan; those that were given stay.
        change: See ``Advice.change``.
    """
    if not change:
        return ""
    if "backend" in change:
        return f"{name}.with_backend({change['backend']!r})"
    usual = backend_from_json({"kind": backend["kind"]}).to_json()
    kept = {option: value for option, value in backend.items() if value != usual.get(option)}
    own, rest = divided(backend, change)
    words = [f"{backend['kind']}({arguments({**kept, **own})})", *([arguments(rest)] if rest else [])]
    return f"{name}.with_backend({', '.join(words)})"


def _heard(loader: Pipeline, limit_s: float, is_it: Callable[[Event], bool]) -> bool:
    """Waits for an event of the loader's epochs; whether it came in time."""
    heard = threading.Event()
    stop = loader.history.listen(lambda event: heard.set() if event.stage == "epoch" and is_it(event) else None)
    try:
        return heard.wait(limit_s)
    finally:
        stop()

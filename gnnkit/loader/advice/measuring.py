"""Measures a loader from its records, its status and the readings of its gauge, without touching what it does."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from gnnkit.host import available_cpus, available_memory
from gnnkit.loader.advice.measurement import PARTS, Measurement, Work
from gnnkit.loader.advice.readings import Counters, Reading
from gnnkit.loader.records import BatchRecord
from gnnkit.runtime.graph_memory import copy_fits
from gnnkit.runtime.limits import own_cpus

if TYPE_CHECKING:
    from gnnkit.loader.pipeline import Pipeline

# Batches whose times are kept one by one.
_MOST_WORK = 128
# Stages that must be over before batches can come.
_BEFORE_BATCHES = ("download", "ingest", "quantize", "partition", "compile", "start")


def measure(loader: Pipeline, seconds: float = 10.0) -> Measurement:
    """What happened in the last ``seconds`` of a loader's loop, whether it still runs or not.

    Reads a few small files of /proc, and may be called from any thread.

    Args:
        loader: The loader.
        seconds: How far to look back from the last batch.
    """
    loader.gauge.read()
    status, plan, records = loader.status(), loader.plan, last_records(loader.records, seconds)
    workers = max(1, status.workers)
    threads = workers * int(plan.backend.get("threads_per_worker", 1))
    return Measurement(
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
    """What the batches say themselves."""
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
    """What the system says of the time in which the batches were sampled."""
    readings = loader.gauge.around(records[0].asked_s, records[-1].delivered_s) if records else None
    if readings is None:
        return {}
    first, last = readings
    seconds = last.time_s - first.time_s
    # In this order, nan stays nan.
    facts: dict[str, Any] = {"idle_cpus": min((last.idle_s - first.idle_s) / seconds, float(available_cpus()))}
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
    """What the sampling processes have used between two readings; None where none of them was there all the time."""
    both = [(first.samplers[pid], counters) for pid, counters in last.samplers.items() if pid in first.samplers]
    if not both:
        return None
    return Counters(*(sum(getattr(b, name) - getattr(a, name) for a, b in both) for name in Counters.__slots__))


def _will_copy(loader: Pipeline) -> bool:
    """Whether the loader has a copy of its stored graph made; servers that somebody else has started decide for themselves."""
    plan, graph = loader.plan, loader.graph
    is_own = plan.store is not None and plan.backend.get("address") is None and plan.backend["kind"] != "Glt"
    return is_own and graph.shared is None and copy_fits(graph.arrays, plan.runtime.memory_budget)


def _is_remote(loader: Pipeline) -> bool:
    """Whether batches or parts of the graph come from other hosts."""
    plan = loader.plan
    address = str(plan.backend.get("address") or "unix:")
    return not address.startswith("unix:") or (plan.placement is not None and not plan.placement.is_replicated)

"""An epoch as spans of time, from the records of its batches: what each worker did when, and the consumer."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError
from gnnkit.loader.history import BatchRecord, Records

# What the consumer does between two batches, in this order; each is a field of ``BatchRecord``.
CONSUMER_STEPS = ("consumer_s", "paused_s", "wait_s", "collate_s", "transform_s", "transfer_s")


@dataclass(frozen=True)
class Timeline:
    """Spans of an epoch, each float64 ``[k, 2]``: begin and length, in seconds since the epoch's first moment that is known.

    Attributes:
        epoch: Which epoch.
        batches: Batches that are known.
        is_whole: Whether all of its batches are known: the loader keeps records of the last few thousand.
        seconds: From the first moment to the last.
        workers: ``{worker: {"sample": spans, "gather": spans}}``, in the order of their names and numbers; a gather is drawn right after
            its sampling, though its worker may have waited for a free slot in between.
        consumer: ``{field of BatchRecord: spans}``, in the order in which one follows another.
        ready: float64 ``[batches, 2]``: when a batch was asked for, and how many were waiting then.
        unseen: Batches whose worker's times are not known.
    """

    epoch: int
    batches: int
    is_whole: bool
    seconds: float
    workers: Mapping[str, Mapping[str, NDArray[np.float64]]]
    consumer: Mapping[str, NDArray[np.float64]]
    ready: NDArray[np.float64]
    unseen: int


def timeline(records: Records, epoch: int | None = None) -> Timeline:
    """Arranges an epoch's records.

    Args:
        records: A loader's.
        epoch: Which epoch; None takes that of the newest batch.

    Raises:
        PlanError: No batch of it is known.
    """
    known = list(records)
    if not known:
        raise PlanError("no batch has been handed out yet, so there is no time to draw", "iterate over the loader first")
    if epoch is None:
        epoch = known[-1].epoch
    found = [record for record in known if record.epoch == epoch]
    if not found:
        epochs = sorted({record.epoch for record in known})
        raise PlanError(f"nothing is known of epoch {epoch!r}", f"the last batches are of epoch{'s' * (len(epochs) > 1)} {_spans(epochs)}")
    seen = [record for record in found if math.isfinite(record.began_s)]
    starts = [record.asked_s - record.consumer_s for record in found] + [record.began_s for record in seen]
    zero = min(starts)
    ends = [record.delivered_s for record in found] + [record.began_s + record.sample_s + record.gather_s for record in seen]
    return Timeline(
        epoch,
        len(found),
        not (records.is_full and found[0] is known[0]),
        max(ends) - zero,
        _workers(seen, zero),
        _consumer(found, zero),
        np.array([(record.asked_s - zero, record.ready) for record in found], np.float64),
        len(found) - len(seen),
    )


def _workers(seen: Iterable[BatchRecord], zero: float) -> dict[str, dict[str, NDArray[np.float64]]]:
    by_name: dict[str, list[BatchRecord]] = {}
    for record in seen:
        by_name.setdefault(record.worker, []).append(record)
    return {
        name: {
            "sample": _array((r.began_s - zero, r.sample_s) for r in by_name[name]),
            "gather": _array((r.began_s + r.sample_s - zero, r.gather_s) for r in by_name[name]),
        }
        for name in sorted(by_name, key=_by_number)
    }


def _consumer(found: Sequence[BatchRecord], zero: float) -> dict[str, NDArray[np.float64]]:
    spans: dict[str, list[tuple[float, float]]] = {step: [] for step in CONSUMER_STEPS}
    for record in found:
        at = record.asked_s - record.consumer_s - zero
        for step in CONSUMER_STEPS:
            length = getattr(record, step)
            if length > 0:
                spans[step].append((at, length))
            at += length
    return {step: _array(found) for step, found in spans.items()}


def _array(spans: Iterable[tuple[float, float]]) -> NDArray[np.float64]:
    return np.array(list(spans), np.float64).reshape(-1, 2)


def _by_number(name: str) -> list[tuple[str, int]]:
    """A key that puts "thread 2" before "thread 10"."""
    return [(word, int(number or -1)) for word, number in re.findall(r"(\D+)(\d*)", name)]


def _spans(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"

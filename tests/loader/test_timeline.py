"""An epoch's spans of time from its records."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from gnnkit.errors import PlanError
from gnnkit.loader.history import CONSUMER_STEPS, BatchRecord, Records, timeline
from tests.loader.graphs import make

NOTHING = dict.fromkeys(CONSUMER_STEPS, 0.0)
SIZES = {"seeds": 4, "nodes": 9, "edges": 12, "nbytes": 100}


def record(index: int, worker: str = "thread 0", began_s: float = math.nan, asked_s: float = 0.0, **times: Any) -> BatchRecord:
    """A batch of epoch 1, in which nothing took time but what is said."""
    values = {"epoch": 1, "sample_s": 0.0, "gather_s": 0.0, "ready": 0, **NOTHING, **SIZES, **times}
    return BatchRecord(index=index, worker=worker, began_s=began_s, asked_s=asked_s, **values)


def records(*found: BatchRecord) -> Records:
    kept = Records()
    for one in found:
        kept.add(one)
    return kept


def test_spans() -> None:
    known = records(
        record(0, epoch=0, asked_s=5.0, wait_s=1.0),
        record(0, "process 10", 99.5, 100.0, sample_s=0.5, gather_s=0.25, wait_s=1.0, collate_s=0.5),
        record(1, "process 2", 99.0, 103.5, sample_s=1.0, gather_s=1.0, consumer_s=2.0, transform_s=0.25, transfer_s=0.5, ready=2),
        record(2, "process 2", 101.0, 106.0, sample_s=0.5, gather_s=0.5, consumer_s=1.75, paused_s=1.0, ready=1),
        record(3, asked_s=110.0, consumer_s=3.0),
    )
    found = timeline(known)
    assert (found.epoch, found.batches, found.is_whole, found.unseen) == (1, 4, True, 1)
    assert found.seconds == 11.0  # from 99, when the first worker began, to 110
    assert list(found.workers) == ["process 2", "process 10"]
    assert found.workers["process 10"]["sample"].tolist() == [[0.5, 0.5]]
    assert found.workers["process 10"]["gather"].tolist() == [[1.0, 0.25]]
    assert found.workers["process 2"]["gather"].tolist() == [[1.0, 1.0], [2.5, 0.5]]
    spans = {step: found.consumer[step].tolist() for step in CONSUMER_STEPS}
    assert spans == {
        "consumer_s": [[2.5, 2.0], [5.25, 1.75], [8.0, 3.0]],
        "paused_s": [[7.0, 1.0]],
        "wait_s": [[1.0, 1.0]],
        "collate_s": [[2.0, 0.5]],
        "transform_s": [[4.5, 0.25]],
        "transfer_s": [[4.75, 0.5]],
    }
    assert found.ready.tolist() == [[1.0, 0], [4.5, 2], [7.0, 1], [11.0, 0]]
    assert timeline(known, 0).seconds == 1.0


def test_an_epoch_whose_begin_is_forgotten() -> None:
    known = records(*[record(index, asked_s=float(index)) for index in range(5000)])
    assert not timeline(known).is_whole and timeline(known).batches == len(known) < 5000
    for index in range(10):
        known.add(record(index, epoch=2))
    assert timeline(known).is_whole and not timeline(known, 1).is_whole


def test_what_is_not_known() -> None:
    with make() as loader:
        with pytest.raises(PlanError, match="no batch has been handed out yet"):
            timeline(loader.pipeline.records)
        list(loader)
        with pytest.raises(PlanError, match=r"(?s)nothing is known of epoch 3.*the last batches are of epoch 0$"):
            timeline(loader.pipeline.records, 3)
        list(loader)
        with pytest.raises(PlanError, match=r"(?s)epoch 'first'.*epochs 0 to 1$"):
            timeline(loader.pipeline.records, "first")  # type: ignore[arg-type]


def test_an_epoch_that_has_run() -> None:
    """Nobody does two things at once, and everything lies within the epoch."""
    with make(backend="inprocess") as loader:
        list(loader)
        before = timeline(loader.pipeline.records)
        list(loader)
        found = timeline(loader.pipeline.records)
    assert (before.epoch, found.epoch, found.batches, found.unseen) == (0, 1, len(loader), 0)
    rows = [np.concatenate(list(spans.values())) for spans in found.workers.values()] + [np.concatenate(list(found.consumer.values()))]
    assert sum(len(spans["sample"]) for spans in found.workers.values()) == len(loader)
    for spans in rows:
        spans = spans[np.argsort(spans[:, 0])]
        assert (spans[:, 0] >= -1e-6).all() and (spans.sum(axis=1) <= found.seconds + 1e-6).all()
        assert (spans[1:, 0] >= spans[:-1].sum(axis=1) - 1e-6).all()

"""Where the time went, and how a loader shows itself."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from gnnkit import GraphLoader
from tests.loader.graphs import NUM_NODES, make, plain, typed

STAGES = ("wait_s", "collate_s", "transform_s", "transfer_s", "consumer_s")


def busy(seconds: float) -> None:
    """Keeps this thread busy: what it is given is its own time."""
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        pass


@pytest.mark.parametrize("where", ["consumer", "transform", "nowhere"])
def test_stages_sum_to_the_wall_time(where: str) -> None:
    def transform(batch: Any) -> Any:
        if where == "transform":
            busy(0.01)
        return batch

    best = 1.0
    with make(transform=transform) as loader:
        for _ in range(40):  # another process may take the processor away between two looks at the clock, but not each time
            started = time.perf_counter()
            for _ in loader:
                if where == "consumer":
                    busy(0.01)
            wall = time.perf_counter() - started
            stats = loader.stats()
            total = sum(getattr(stats, name) for name in STAGES)
            best = min(best, max(abs(total - stats.wall_s), abs(stats.wall_s - wall)) / wall)
            if where != "nowhere":
                assert 0.15 <= getattr(stats, f"{where}_s") <= stats.wall_s
            if best < 0.05:
                break
    assert best < 0.05


def test_counters() -> None:
    with make() as loader:
        batches = list(loader)
        stats = loader.stats()
    assert (stats.epoch, stats.batches, stats.seeds) == (0, 15, NUM_NODES)
    assert stats.nodes == sum(batch.num_nodes for batch in batches)
    assert stats.edges == sum(batch.num_edges for batch in batches)
    tensors = sum(value.nbytes for batch in batches for _, value in batch if isinstance(value, torch.Tensor))
    assert tensors <= stats.nbytes <= tensors + 15 * 8 * 64
    assert stats.sample_s > 0 and stats.gather_s > 0
    assert stats.seeds_per_s == pytest.approx(NUM_NODES / stats.wall_s)
    assert stats.batches_per_s == pytest.approx(15 / stats.wall_s)


def test_stats_before_in_and_after_an_epoch() -> None:
    with make() as loader:
        assert loader.stats().batches == 0 and loader.stats().wall_s == 0 and loader.stats().seeds_per_s == 0
        iterator = iter(loader)
        next(iterator)
        first = loader.stats()
        busy(0.02)
        second = loader.stats()
        assert first.batches == second.batches == 1
        assert second.consumer_s - first.consumer_s >= 0.02  # the step that runs now is the consumer's
        booked = sum(getattr(second, name) for name in STAGES)
        assert booked > 0.02 and booked <= second.wall_s + 0.001  # what lies between two looks at the clock is nobody's
        list(iterator)
        ended = loader.stats()
        busy(0.01)
        assert loader.stats() == ended  # and what comes after the epoch is nobody's
        next(iter(loader))
        assert loader.stats().epoch == 1 and loader.stats().batches == 1


def test_an_epoch_is_a_stage_of_the_progress() -> None:
    seen: list[Any] = []
    with make() as made, GraphLoader(made.plan, made.pipeline.graph, seen.append) as loader:
        list(loader)
        next(iter(loader))
        list(loader)
    epochs = [event for event in seen if event.stage == "epoch"]
    assert [(event.kind, event.done) for event in epochs if event.kind != "progress"] == [
        ("start", 0),
        ("end", 15),
        ("start", 0),
        ("end", 1),
        ("start", 0),
        ("end", 15),
    ]
    assert {event.total for event in epochs} == {15} and {event.unit for event in epochs} == {"batches"}
    assert [event.text for event in epochs if event.kind == "end"] == ["", "abandoned", ""]


def test_a_failed_epoch_says_so() -> None:
    seen: list[Any] = []
    with make() as made:
        loader = GraphLoader(made.plan, made.pipeline.graph, seen.append, transform=lambda batch: 1 / 0)
    with loader, pytest.raises(ZeroDivisionError):
        list(loader)
    (failed,) = [event for event in seen if event.kind == "fail"]
    assert failed.text == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize("data", [plain, typed])
def test_repr_and_html(data: Any) -> None:
    with make(data(), input_nodes="train" if data is plain else "paper") as loader:
        fresh = repr(loader)
        list(loader)
        bundle = loader._repr_mimebundle_()
    assert fresh.startswith("<GraphLoader") and "\n" not in fresh
    for word in ("InProcess", "num_neighbors", "batches", "ready"):
        assert word in fresh
    assert set(bundle) >= {"text/plain", "text/html"}
    html = bundle["text/html"]
    assert "GraphLoader" in html and "last epoch" in html and "<script" not in html
    for stage in ("wait", "collate", "consumer"):
        assert stage in html
    if data is typed:
        assert "paper__cites__paper" in html
    assert "closed" in repr(loader)


def test_names_are_escaped_in_html() -> None:
    data = typed()
    data["<b>"].num_nodes = 1
    with GraphLoader.from_pyg(data, input_nodes="paper", num_neighbors=[1], progress=False) as loader:
        html = loader._repr_mimebundle_()["text/html"]
    assert "&lt;b&gt;" in html and "<b>" not in html.replace("<b></b>", "")


def test_the_plan_is_json() -> None:
    import json

    from gnnkit import LoaderPlan

    with make(typed(), input_nodes=("paper", range(0, 60, 7)), seed=(1 << 64) - 1) as loader:
        text = json.dumps(loader.plan.to_json())
        assert LoaderPlan.from_json(json.loads(text)) == loader.plan

"""The demonstration runs, and fails when the graph teaches nothing."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnnkit.datasets import synthetic
from gnnkit.demo import run_demo
from gnnkit.demo.graphs import compare_on_products_like, train_on_cora, train_on_products_like
from gnnkit.demo.training import Scores, TrainingReport
from gnnkit.events import Event, ignore_events
from gnnkit.graph_loader import GraphLoader

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Tests run side by side: threads of PyTorch that wait for each other by spinning would take each other's time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_small_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    state = torch.random.get_rng_state()
    assert run_demo(0.005, epochs=3, store_dir=tmp_path / "stores") == 0
    out, err = capfd.readouterr()
    lines = out.splitlines()
    assert lines[0].endswith("not OGB's data")
    assert sum(line.lstrip().startswith("GraphSAGE") for line in lines) == 2
    assert sum(line.startswith("  ok: +") for line in lines) == 2
    assert any("on 11,066 of 11,066 test nodes" in line for line in lines)
    assert sum(line.startswith("  identical batches: yes, all ") for line in lines) == 1
    places = [line.split()[0] for line in lines if line.endswith(" seeds/s")]
    assert places == ["InProcess(2)", "Colocated(2)", "GraphStore(2)"]
    assert lines[-1].startswith("passed in ")
    assert "train GraphSAGE" in err, "progress goes to standard error"
    assert torch.equal(torch.random.get_rng_state(), state), "the caller's random numbers go on as before"
    assert torch.get_num_threads() == 1
    assert list((tmp_path / "empty").iterdir()) == []
    assert sorted(path.name.split("-")[3] for path in (tmp_path / "stores").iterdir() if path.is_dir()) == ["1p", "2p"]


@pytest.mark.parametrize(("place", "change"), [("Colocated", {"feature_dtype": "float16"}), ("GraphStore", {"seed": 1})], ids=str)
def test_other_batches_are_found_and_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, change: dict[str, Any]) -> None:
    from_source = GraphLoader.from_source

    def with_a_difference(source: Any, **options: Any) -> GraphLoader:
        return from_source(source, **{**options, **(change if type(options["backend"]).__name__ == place else {})})

    monkeypatch.setattr(GraphLoader, "from_source", with_a_difference)
    text = io.StringIO()
    assert not compare_on_products_like(0.002, tmp_path, False, TrainingReport(text))
    assert "identical batches: NO (" in text.getvalue()


def test_batches_that_are_not_the_same_fail_the_demonstration(monkeypatch: pytest.MonkeyPatch) -> None:
    good = Scores(0.2, 0.4, 0.9, "some nodes")
    monkeypatch.setattr("gnnkit.demo.graphs.train_on_products_like", lambda *_: good)
    monkeypatch.setattr("gnnkit.demo.graphs.train_on_cora", lambda *_: good)
    for same in (False, True):
        monkeypatch.setattr("gnnkit.demo.graphs.compare_on_products_like", lambda *_, same=same: same)
        text = io.StringIO()
        assert run_demo(progress=False, stream=text) == (0 if same else 1)
        assert text.getvalue().splitlines()[-1].startswith("passed" if same else "FAILED")


def test_at_least_15_batches_an_epoch(tmp_path: Path) -> None:
    events: list[Event] = []
    train_on_products_like(0.005, 1, tmp_path, False, events.append, TrainingReport(io.StringIO()))
    starts = {event.label: event.total for event in events if event.kind == "start" and event.stage == "train"}
    assert starts["GraphSAGE"] is not None and starts["GraphSAGE"] >= 15
    assert starts["features-only MLP"] is not None and starts["features-only MLP"] >= 300


def test_it_fails_when_edges_lead_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Edges between random nodes: the neighbourhood says nothing about a node's class.
    def shuffled(key: np.uint64, start: int, law: Any, labels: Any, communities: Any, bounds: Any, out: Any) -> None:
        out[:] = np.random.default_rng(start).integers(0, len(labels), out.shape)

    monkeypatch.setattr(synthetic.kernels, "fill_edges", shuffled)
    text = io.StringIO()
    assert run_demo(0.005, epochs=1, store_dir=tmp_path, progress=False, stream=text) == 1
    assert "NOT ENOUGH" in text.getvalue()
    assert text.getvalue().splitlines()[-1].startswith("FAILED in ")


@pytest.mark.parametrize(
    ("majority", "mlp", "sage", "passed"),
    [(0.2, 0.4, 0.46, True), (0.2, 0.4, 0.44, False), (0.3, 0.2, 0.49, False), (0.3, 0.2, 0.51, True), (0.1, 0.6, 0.5, False)],
)
def test_margins(majority: float, mlp: float, sage: float, passed: bool) -> None:
    text = io.StringIO()
    assert TrainingReport(text).verdict(Scores(majority, mlp, sage, "some nodes")) is passed
    assert ("NOT ENOUGH" in text.getvalue()) is not passed
    assert f"{100 * sage:.1f} %" in text.getvalue()


def test_cora_over_five_seeds() -> None:
    scores = [train_on_cora(ignore_events, TrainingReport(io.StringIO()), seed=seed) for seed in range(5)]
    assert np.mean([score.sage for score in scores]) >= 0.78
    assert all(score.passed for score in scores)
    assert scores[0].majority == pytest.approx(0.319)

"""The demonstration runs, and fails when the graph teaches nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnnkit import GraphLoader
from gnnkit.datasets import products_like
from gnnkit.datasets.synthetic import PRODUCTS, GeneratedSource
from gnnkit.demo import Scores, compare_places, conclude, run_demo, train_on_cora, train_on_products_like, verdict

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_torch_thread")]


@pytest.mark.core
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
def test_other_batches_are_found_and_fail(tmp_path: Path, place: str, change: dict[str, Any]) -> None:
    source = products_like(0.002)

    def make(num_parts: int, backend: Any) -> GraphLoader:
        options = {"num_neighbors": [5, 5], "batch_size": 64, "store_dir": tmp_path, "progress": False, "num_parts": num_parts}
        return GraphLoader.from_source(source, backend=backend, **options, **(change if type(backend).__name__ == place else {}))

    said: list[str] = []
    assert not compare_places(make, said.append)
    assert any("identical batches: NO (" in line for line in said)


@pytest.mark.parametrize("failed", [None, 0, 1, 2])
def test_whatever_fails_fails_the_demonstration(failed: int | None) -> None:
    """A graph that nothing is learnt of, or batches that are not the same."""
    said: list[str] = []
    assert conclude([number != failed for number in range(3)], 1.2, said.append) == (0 if failed is None else 1)
    assert said == ["passed in 1 s" if failed is None else "FAILED in 1 s"]


def test_at_least_15_batches_an_epoch(tmp_path: Path) -> None:
    events: list[Any] = []
    train_on_products_like(products_like(0.005), 1, events.append, str, store_dir=tmp_path, progress=False)
    starts = {event.label: event.total for event in events if event.kind == "start" and event.stage == "train"}
    assert starts["GraphSAGE"] is not None and starts["GraphSAGE"] >= 15
    assert starts["features-only MLP"] is not None and starts["features-only MLP"] >= 300


def test_it_fails_when_edges_lead_anywhere(tmp_path: Path) -> None:
    # Edges between random nodes: the neighbourhood says nothing about a node's class.
    source = GeneratedSource(replace(PRODUCTS, local=0, similar=0), 0.005, 0)
    said: list[str] = []
    assert not verdict(train_on_products_like(source, 1, [].append, str, store_dir=tmp_path, progress=False), said.append)
    assert "NOT ENOUGH" in said[-1]


@pytest.mark.parametrize(
    ("majority", "mlp", "sage", "passed"),
    [(0.2, 0.4, 0.46, True), (0.2, 0.4, 0.44, False), (0.3, 0.2, 0.49, False), (0.3, 0.2, 0.51, True), (0.1, 0.6, 0.5, False)],
)
def test_margins(majority: float, mlp: float, sage: float, passed: bool) -> None:
    said: list[str] = []
    assert verdict(Scores(majority, mlp, sage, "some nodes"), said.append) is passed
    assert ("NOT ENOUGH" in said[-1]) is not passed
    assert any(line.endswith(f"{100 * sage:.1f} %") for line in said)


def test_cora_over_five_seeds() -> None:
    scores = [train_on_cora([].append, str, seed=seed) for seed in range(5)]
    assert np.mean([score.sage for score in scores]) >= 0.78
    assert all(score.passed for score in scores)
    assert scores[0].majority == pytest.approx(0.319)

"""What the README shows, and what the texts of the page with everything on it say, is what works."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch_geometric.nn import GraphSAGE

import gnnkit
from gnnkit import GraphLoader
from gnnkit.datasets import sample_root
from tests.helpers.command import run
from tests.helpers.machine import ROOT
from tests.helpers.ogb_trees import MAG_EDGES, write_tree

pytestmark = pytest.mark.slow

README = (ROOT / "README.md").read_text()
COMMANDS = (ROOT / "docs/command-line.md").read_text()
(PROGRAM,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home in which ogbn-products lies already, a small one, and from which nothing is downloaded."""
    shutil.copytree(sample_root() / "ogbn_products", tmp_path / "ogbn_products")
    monkeypatch.setenv("GNNKIT_HOME", str(tmp_path))
    monkeypatch.setenv("GNNKIT_OFFLINE", "1")
    return tmp_path


@pytest.mark.core
def test_the_first_program_trains(home: Path) -> None:
    code = PROGRAM
    assert len([line for line in code.splitlines() if line.strip()]) == 12
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(code, names)
    loader, model, batch = (names[name] for name in ("loader", "model", "batch"))
    torch.manual_seed(0)
    before = GraphSAGE(loader.num_features, 256, num_layers=3, out_channels=47)
    truth = batch.y[: batch.batch_size]
    losses = [F.cross_entropy(m(batch.x, batch.edge_index)[: batch.batch_size], truth).item() for m in (before, model)]
    assert loader.stats().batches == len(loader) > 0
    assert losses[1] < losses[0]
    loader.close()


def test_the_calls_that_the_text_shows(home: Path) -> None:
    loader = GraphLoader.from_ogb("ogbn-products", num_neighbors=[15, 10, 5], batch_size=1024, feature_dtype="float16")
    evaluation = loader.for_split("valid", num_neighbors=[-1, -1])
    assert loader.peek().x.dtype == evaluation.peek().x.dtype == torch.float16
    assert loader.sample([0, 17]).n_id[:2].tolist() == [0, 17]
    for batch in loader:
        state = loader.state_dict()
        assert batch.batch_size
    loader.load_state_dict(state)
    assert loader.stats().batches == len(loader)
    assert "GraphLoader ogbn-products" in repr(loader) and "text/html" in loader._repr_mimebundle_()
    for either in (loader, evaluation):
        either.close()
    write_tree("ogbn-mag", home)
    fan_outs = dict.fromkeys(MAG_EDGES, [10, 5])
    with GraphLoader.from_ogb("ogbn-mag", num_neighbors=fan_outs, batch_size=4) as typed:
        assert typed.peek()["paper"].batch_size == 4
    store = gnnkit.partition("ogbn-products", 2)
    with GraphLoader.from_store(
        store.path, num_neighbors=[2], remainder="pad", rank=1, world_size=2, backend=gnnkit.InProcess(2)
    ) as second:
        assert all(len(batch.seed_mask) == batch.batch_size for batch in second)
    source = gnnkit.datasets.products_like(0.0005)
    with GraphLoader.from_source(source, num_neighbors=[2], batch_size=32) as generated:
        assert generated.plan.to_json()["batching"]["batch_size"] == 32
    assert gnnkit.datasets.evaluator("ogbn-products").eval_metric == "acc"


def test_the_command_lines_exist(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines = re.findall(r"^\| `gnnkit ([\w-]+)(.*?) \| ", COMMANDS, re.MULTILINE)
    assert {verb for verb, _ in lines} == {
        "demo",
        "doctor",
        "partition",
        "append",
        "push",
        "serve",
        "run",
        "export",
        "plan-capacity",
        "info",
        "stores",
        "ps",
        "logs",
        "stop",
        "cleanup",
        "bench",
    }
    for verb, arguments in lines:
        for words in [[verb, word] for word in re.findall(r"\w+", arguments)] if verb == "stores" else [[verb]]:
            assert run([*words, "--help"]) == 0
            shown = capfd.readouterr().out
            assert all(option in shown for option in re.findall(r"--[\w-]+", arguments)), (words, arguments)
    assert run(["partition", "ogbn-products", "4"]) == 0
    (name,) = (path.name for path in (home / "stores").iterdir() if path.is_dir())
    assert run(["info", str(home / "stores" / name), "--verify", "--json"]) == 0
    assert run(["stores", "ls"]) == 0 and run(["stores", "rm", name]) == 0 and run(["stores", "prune"]) == 0

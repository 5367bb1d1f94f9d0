"""The programs that a job starts from: they train, alone and with DDP, and continue from their checkpoints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnkit import GraphLoader
from gnnkit.errors import PlanError
from gnnkit.export.code import is_installed
from gnnkit.jobs.environment import JobPlace
from gnnkit.jobs.running import load_train, run_training
from tests.export.graphs import NUM_CLASSES, NUM_NODES, make_store, make_typed_store
from tests.helpers.machine import ROOT

pytestmark = pytest.mark.slow


def export(kind: str, folder: Path, **options: Any) -> Path:
    """Exports a loader of one kind without a train function."""
    store = make_typed_store(folder / "store") if kind == "typed" else make_store(folder / "store", with_edge=True)
    words: dict[str, Any] = {"num_neighbors": [3, 2], "batch_size": 16, "progress": False, "backend": "inprocess"}
    if kind == "typed":
        words["input_nodes"] = ("paper", "train")
    with GraphLoader.from_store(store, **words) as loader:
        if kind in ("binary", "triplet"):
            loader = loader.for_links(None, neg_sampling=kind, neg_amount=2, batch_size=256)
        with loader:
            return loader.export(folder / "job", gpus_per_node=0, **options).directory


def train(job: Path, epochs: int, capsys: pytest.CaptureFixture[str]) -> tuple[float, str, list[float]]:
    """Trains alone, as ``gnnkit run`` does; the accuracy, what was printed, and every loss."""
    program = job / "train.py"
    program.write_text(re.sub(r"^EPOCHS = .*$", f"EPOCHS = {epochs}", program.read_text(), flags=re.MULTILINE))
    losses: list[float] = []
    accuracy = run_training(
        job / "plan.json",
        load_train(program),
        JobPlace(),
        directory=job / "run",
        report=lambda logged: losses.append(logged.numbers["loss"]),
        device="cpu",
    )
    return accuracy, capsys.readouterr().out, losses


@pytest.mark.parametrize("kind", ["nodes", "typed", "binary"])
@pytest.mark.core
def test_a_program_is_written_as_gnnkit_is(kind: str, tmp_path: Path) -> None:
    program = export(kind, tmp_path) / "train.py"
    words = ["check", "--config", ROOT / "pyproject.toml", "--ignore", "D,T20"], ["format", "--check", "--config", ROOT / "pyproject.toml"]
    for each in words:
        done = subprocess.run([sys.executable, "-m", "ruff", *each, program], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", ["nodes", "typed", "binary", "triplet"])
@pytest.mark.core
def test_a_template_trains_and_continues(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    job = export(kind, tmp_path)
    assert len((job / "train.py").read_text().splitlines()) <= 120
    accuracy, out, losses = train(job, 2, capsys)
    assert 0 <= accuracy <= 1
    assert "epoch 0: accuracy" in out
    assert "epoch 1: accuracy" in out
    assert "continues from a checkpoint" not in out
    _, out, more = train(job, 6, capsys)
    assert "continues from a checkpoint" in out
    assert "epoch 1: accuracy" not in out
    assert "epoch 5: accuracy" in out
    steps = len(losses) // 2
    assert len(more) == 4 * steps
    assert sum(more[-steps:]) < sum(losses[:steps]), "it learns"
    sys.modules.pop("gnnkit_train", None)


@pytest.mark.parametrize("several", [False, True])
def test_nodes_without_a_label_are_no_part_of_the_loss(
    several: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of which no seed has one included."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    y = np.arange(NUM_NODES) % NUM_CLASSES
    y = np.stack([y, 4 - y], 1).astype(np.float32) / 4 if several else y
    y[: NUM_NODES // 2] = np.nan if several else -1
    store = make_store(tmp_path / "store", y=y)
    words: dict[str, Any] = {"input_nodes": None, "shuffle": False, "batch_size": 16, "progress": False, "backend": "inprocess"}
    with GraphLoader.from_store(store, num_neighbors=[2], **words) as loader:
        job = loader.export(tmp_path / "job", gpus_per_node=0).directory
    accuracy, _, losses = train(job, 1, capsys)
    assert 0 < accuracy <= 1 and np.isfinite(losses).all() and losses[0] == 0 < losses[-1]
    sys.modules.pop("gnnkit_train", None)


def test_a_program_that_is_changed_at_once_is_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same size, in the same second."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    program = tmp_path / "train.py"
    for answer in (1, 2):
        program.write_text(f"def train(loader, ctx):\n    return {answer}\n")
        os.utime(program, (1_000_000_000, 1_000_000_000))
        assert load_train(program)(None, None) == answer  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
    sys.modules.pop("gnnkit_train", None)


def test_the_typed_template_uses_every_parameter(tmp_path: Path) -> None:
    """The launch file for real: DDP of two ranks fails where a parameter plays no part in the loss."""
    job = export("typed", tmp_path, procs_per_node=2)
    program = job / "train.py"
    program.write_text(program.read_text().replace("EPOCHS = 10", "EPOCHS = 2"))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "MASTER_PORT": "0"}
    done = subprocess.run([job / "launch.sh"], env=environment, cwd="/", capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "epoch 1: accuracy" in done.stdout


def test_what_has_no_template_is_told(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", with_edge=True)
    with GraphLoader.from_store(store, num_neighbors=[2], batch_size=8, backend="inprocess", progress=False) as loader:
        for changes, why in (({"remainder": "uneven"}, "uneven"), ({"sampler": "ppr"}, "PageRank")):
            if "sampler" in changes:
                from gnnkit import PPR

                changes["sampler"] = PPR()  # type: ignore[assignment]
            with loader.for_split("train", **changes) as other, pytest.raises(PlanError, match=why) as caught:
                other.export(tmp_path / "job", gpus_per_node=0)
            assert "train=train" in str(caught.value.hint)
        with loader.for_links(None) as links, pytest.raises(PlanError, match="neither negatives nor labels"):
            links.export(tmp_path / "job", gpus_per_node=0)
    outward = make_typed_store(tmp_path / "outward", edge_dir="out")
    with (
        GraphLoader.from_store(
            outward, num_neighbors=[2], batch_size=8, input_nodes=("paper", "train"), backend="inprocess", progress=False
        ) as loader,
        loader.for_anchors(("paper", "cites", "paper")) as anchors,
        pytest.raises(PlanError, match="anchors"),
    ):
        anchors.export(tmp_path / "job", gpus_per_node=0)
    assert not (tmp_path / "job").exists()
    assert is_installed("torch_geometric.nn")
    assert not is_installed("tests.export")

"""The example of distributed training, run as its first line says, on the small graph that comes with gnnkit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from gnnkit import GraphLoader
from gnnkit.datasets import sample_root
from tests.helpers.machine import ROOT

EXAMPLE = ROOT / "examples/ogbn_products_ddp.py"
EPOCHS, BATCH_SIZE, DEADLINE_S = 3, 32, 240


def processes_of(mark: str) -> list[str]:
    """Processes whose environment holds a mark, however they have detached themselves."""
    found = []
    for process in psutil.process_iter():
        try:
            if mark in process.environ().values():
                found.append(f"{process.pid}: {' '.join(process.cmdline())[:120]}")
        except psutil.Error:
            continue
    return found


def torchrun(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs the example with two ranks; returns what it printed."""
    mark = uuid.uuid4().hex
    for name, value in (("GNNKIT_HOME", str(folder)), ("GNNKIT_TEST_MARK", mark), ("OMP_NUM_THREADS", "1")):
        monkeypatch.setenv(name, value)
    options = ["--root", str(sample_root()), "--epochs", str(EPOCHS), "--batch-size", str(BATCH_SIZE)]
    recorded = [str(ROOT / "tests/examples/recorded.py"), str(folder), str(EXAMPLE), *options]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *recorded]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr[-4000:]
    assert processes_of(mark) == []
    assert list((folder / "runs").iterdir()) == [], "the processes' folders go with them"
    return done.stdout


@pytest.mark.slow
@pytest.mark.core
def test_two_ranks_share_every_epoch_and_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = torchrun(tmp_path, monkeypatch)
    losses = {
        (int(rank), int(epoch)): float(loss) for rank, epoch, loss in re.findall(r"Trainer (\d)\] epoch (\d+): loss ([\d.]+)", printed)
    }
    assert losses.keys() == {(rank, epoch) for rank in range(2) for epoch in range(EPOCHS)}
    for rank in range(2):
        assert losses[rank, EPOCHS - 1] < 0.8 * losses[rank, 0]

    facts: list[dict[str, Any]] = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert all(fact["plan"]["backend"]["kind"] == "Colocated" for fact in facts)
    with GraphLoader.from_ogb("ogbn-products", root=sample_root(), num_neighbors=[1], progress=False) as loader:
        train = loader.store.splits[loader.plan.inputs.node_type]["train"]
    orders = []
    for epoch in range(EPOCHS):
        steps = [fact["seeds"][epoch] for fact in facts]
        assert len(steps[0]) == len(steps[1]) == len(train) // BATCH_SIZE // 2
        seeds = Counter(np.concatenate([np.concatenate(batches) for batches in steps]).tolist())
        assert set(seeds.values()) == {1} and seeds.keys() <= set(train.tolist()), "disjoint, and nothing else"
        orders.append(steps[0][0])
    assert orders[0] != orders[1], "every epoch has an order of its own"


def test_it_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 40

"""OGB's three baselines for products, each run on a small graph as its first line says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.machine import ROOT

NAMES = ("sage", "cluster_gcn", "graph_saint")
MOST_LINES, DEADLINE_S = 60, 300


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_learns(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNKIT_HOME", str(tmp_path))
    script = ROOT / f"examples/ogbn_products_{name}.py"
    assert len(script.read_text().splitlines()) < MOST_LINES
    command = [sys.executable, str(script), "--scale", "0.001", "--epochs", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", done.stdout)]
    assert len(losses) == 3 and losses[-1] < losses[0]
    assert re.search(r"test accuracy: 0\.\d+", done.stdout)

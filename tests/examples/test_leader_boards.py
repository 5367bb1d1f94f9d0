"""Models of OGB's leader boards, each run on a small graph as its first line says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.machine import ROOT

# Each script, and how large a share of the real data's size it is run with.
SCRIPTS = {
    "ogbn_products_sage": 0.001,
    "ogbn_products_cluster_gcn": 0.001,
    "ogbn_products_graph_saint": 0.001,
    "ogbn_mag_rgcn": 0.002,
    "ogbl_collab_sage": 0.005,
}
MOST_LINES, DEADLINE_S = 60, 300


@pytest.mark.slow
@pytest.mark.parametrize(("name", "scale"), SCRIPTS.items(), ids=SCRIPTS)
def test_it_learns(name: str, scale: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNKIT_HOME", str(tmp_path))
    script = ROOT / f"examples/{name}.py"
    assert len(script.read_text().splitlines()) < MOST_LINES
    command = [sys.executable, str(script), "--scale", str(scale), "--epochs", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", done.stdout)]
    assert len(losses) == 3 and losses[-1] < losses[0]
    assert re.search(r"test (accuracy|Hits@50): 0\.\d+", done.stdout)

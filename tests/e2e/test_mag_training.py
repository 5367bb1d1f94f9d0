"""A model learns from gnnkit's batches of a typed graph in ogbn-mag's layout, and as well as from PyG's own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from statistics import mean

import pytest
import torch

from tests.e2e.mag_training import read_labels, read_splits, with_gnnkit
from tests.e2e.mag_trees import write_learnable_mag
from tests.helpers.machine import ROOT

pytestmark = pytest.mark.slow

NUM_SEEDS = 3


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the dataset."""
    folder = tmp_path_factory.mktemp("mag")
    write_learnable_mag(folder)
    return folder


@pytest.fixture(scope="module")
def good_enough(root: Path) -> float:
    """Fifteen points above what saying the most common class reaches."""
    folder = root / "ogbn_mag"
    tested = read_labels(folder)[read_splits(folder)["test"]]
    return float(torch.bincount(tested).max()) / len(tested) + 0.15


@pytest.mark.usefixtures("one_torch_thread")
def test_neighbours_are_what_the_model_learns_from(root: Path, good_enough: float) -> None:
    assert with_gnnkit(root, seed=0) >= good_enough
    assert with_gnnkit(root, seed=0, fan_out=(0, 0), test_fan_out=(0, 0)) < good_enough, "features alone are not enough"


@pytest.mark.glt
def test_accuracy_is_that_of_pygs_neighbor_loader(glt_interpreter: Path, root: Path, good_enough: float) -> None:
    """A point is more than four standard deviations of the difference between two means over three seeds."""
    command = [str(glt_interpreter), "-W", "ignore", "-m", "tests.e2e.mag_training", str(root), str(NUM_SEEDS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert len(found["gnnkit"]) == len(found["pyg"]) == NUM_SEEDS
    assert abs(mean(found["gnnkit"]) - mean(found["pyg"])) <= 0.01, found
    assert min(found["gnnkit"]) >= good_enough, found

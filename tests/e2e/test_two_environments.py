"""The same pipeline under another torch and other libraries gives the same bytes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.e2e.pipeline import DATASETS, pipeline
from tests.helpers.machine import ROOT
from tests.helpers.ogb_trees import write_tree


@pytest.mark.glt
def test_a_tree_becomes_the_same_batches_with_torch_2_4(glt_interpreter: Path, tmp_path: Path) -> None:
    for name in DATASETS:
        write_tree(name, tmp_path)
    command = [str(glt_interpreter), "-W", "ignore", "-m", "tests.e2e.pipeline", str(tmp_path), str(tmp_path / "theirs")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    version, *digests = done.stdout.split()
    assert version.startswith("2.4")
    assert digests == pipeline(str(tmp_path), str(tmp_path / "ours"))
    # And each reads the other's stores.
    assert {path.name for path in (tmp_path / "theirs").iterdir()} == {path.name for path in (tmp_path / "ours").iterdir()}
    assert digests == pipeline(str(tmp_path), str(tmp_path / "theirs"))

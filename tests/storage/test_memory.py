"""A graph larger than memory can be built: what a build takes does not grow with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_memory_does_not_grow_with_the_graph() -> None:
    command = [sys.executable, "-m", "tests.storage.measured_build"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-3000:]
    store_bytes, grown_bytes = map(int, done.stdout.split())
    assert store_bytes > 500_000_000
    assert grown_bytes < 150_000_000, f"{grown_bytes / 1e6:.0f} MB for a store of {store_bytes / 1e6:.0f} MB"

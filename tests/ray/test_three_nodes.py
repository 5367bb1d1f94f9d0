"""Three nodes with addresses and memory of their own build a store; one of them is killed meanwhile."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gnnkit
from tests.ray.clusters import PATIENCE_S
from tests.ray.three_nodes import build_on_three_nodes


@pytest.mark.packages("ray")
@pytest.mark.netns
@pytest.mark.cgroup
@pytest.mark.slow(seconds=60)
@pytest.mark.timeout(2 * PATIENCE_S)
@pytest.mark.parametrize("kill", [False, True])
def test_three_nodes_build_the_store_of_one_machine(tmp_path: Path, kill: bool) -> None:
    built = build_on_three_nodes(0.002, "contiguous", tmp_path / "built", 3 << 30, kill=kill)
    wanted = gnnkit.partition(gnnkit.datasets.papers_like(0.002), 3, out=tmp_path / "wanted")
    assert built.manifest == wanted.manifest.to_json()
    for name in wanted.files:
        assert (tmp_path / "built" / name).read_bytes() == (wanted.path / name).read_bytes(), name
    assert not built.was_killed and all(peak is None or peak < 3 << 30 for peak in built.peaks)
    if not kill:
        found = re.fullmatch(r"3 nodes, each read at most (\d+) % of the source", built.shares)
        assert found and int(found[1]) <= 135 / 3

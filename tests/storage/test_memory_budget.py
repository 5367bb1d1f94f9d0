"""``memory_budget`` of ``gnnkit.partition``: as many replicated rows as a host with one part and all structure has room for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gnnkit
from gnnkit.errors import PlanError
from tests.helpers.command import run_captured

DATA = gnnkit.datasets.products_like(0.005)


def held(store: Path, part: int) -> int:
    """Bytes of a host that has one part, and of the others all but features."""
    files = [
        path for path in store.rglob("*.npy") if f"part{part}" in path.parts or not re.search(r"part\d+/(cache/|.*/x\.npy)", str(path))
    ]
    return sum(path.stat().st_size for path in files)


@pytest.mark.parametrize("partition", ["contiguous", "random"])
def test_hot_rows_fill_what_is_left(tmp_path: Path, partition: str) -> None:
    plain = gnnkit.partition(DATA, 3, partition, tmp_path / "plain")
    least = max(held(plain.path, part) for part in range(3))
    for room in (0.1, 0.3, 0.5):
        budget = least + int(room * 400 * DATA.num_nodes)
        store = gnnkit.partition(DATA, 3, partition, tmp_path / f"store{room}", memory_budget=budget)
        assert budget - 0.01 * 400 * DATA.num_nodes < max(held(store.path, part) for part in range(3)) <= budget + 0.01 * least
        assert 0.97 * room < store.options.cache_ratio <= room
    whole = gnnkit.partition(plain, 3, partition, tmp_path / "whole", memory_budget="1GB")
    assert whole.options.cache_ratio == 0.666


def test_what_does_not_fit(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PlanError, match=r"a part of 2 and the structure of the others take .* MB, and memory_budget is 1.00 MB"):
        gnnkit.partition(DATA, 2, out=tmp_path / "store", memory_budget="1MB")
    with pytest.raises(PlanError, match="cache_ratio=0.1, and memory_budget says how much is replicated"):
        gnnkit.partition(DATA, 2, out=tmp_path / "store", memory_budget="1GB", cache_ratio=0.1)
    with pytest.raises(PlanError, match="memory_budget='much'|memory_budget must be"):
        gnnkit.partition(DATA, 2, out=tmp_path / "store", memory_budget="much")
    plain = gnnkit.partition(DATA, 1, out=tmp_path / "plain")
    code, _, said = run_captured(capfd, ["partition", plain.path, 2, "--memory-budget", "1MB", "--out", tmp_path / "store"])
    assert code == 2 and "memory_budget is 1.00 MB" in said
    code, _, _ = run_captured(capfd, ["partition", plain.path, 2, "--memory-budget", "64GB", "--out", tmp_path / "store"])
    assert code == 0 and gnnkit.Store.open(tmp_path / "store").options.cache_ratio == 0.5

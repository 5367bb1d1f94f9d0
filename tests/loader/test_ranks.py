"""Several trainers: what torchrun says, padding, and ranks that are not where the others are."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from gnnkit.errors import PlanError
from tests.helpers.ports import free_port
from tests.loader.graphs import NUM_NODES, make, plain, seeds, typed

pytestmark = pytest.mark.slow

DATA = plain()


def test_rank_and_world_size_come_from_torchruns_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with make(DATA) as loader, make(DATA, rank=0, world_size=1) as alone:
        assert (loader.plan.batching.rank, loader.plan.batching.world_size) == (1, 3)
        assert len(loader) == 5 and len(alone) == 15
        assert loader.for_split("valid").plan.batching.world_size == 3
        assert seeds(loader)[:7] == list(range(7, 14))
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(PlanError, match="rank 3 of world_size 3"):
        make(DATA)


def test_the_remainder_follows_from_the_order() -> None:
    for shuffle, expected in ((True, "drop"), (False, "pad")):
        with make(DATA, shuffle=shuffle, rank=0, world_size=2) as loader:
            assert loader.plan.batching.remainder == expected


@pytest.mark.parametrize("data", [plain, typed])
def test_seed_mask_marks_repeats(data: Any) -> None:
    input_nodes, count = (None, NUM_NODES) if data is plain else ("paper", 60)
    loaders = [make(data(), input_nodes=input_nodes, rank=rank, world_size=4) for rank in range(4)]
    kept = []
    for loader in loaders:
        for batch in loader:
            store = batch if data is plain else batch["paper"]
            assert store.seed_mask.dtype == torch.bool and len(store.seed_mask) == store.batch_size
            kept += store.input_id[store.seed_mask].tolist()
        assert "seed_mask" in (loader.peek() if data is plain else loader.peek()["paper"])
        loader.close()
    assert sorted(kept) == list(range(count))


def test_there_is_no_seed_mask_where_nothing_is_padded() -> None:
    for options in ({}, {"rank": 0, "world_size": 2, "remainder": "drop"}, {"rank": 0, "world_size": 2, "remainder": "uneven"}):
        with make(DATA, **options) as loader:
            assert all("seed_mask" not in batch for batch in loader)


def test_more_ranks_than_batches() -> None:
    with make(DATA, batch_size=50, rank=3, world_size=5) as padded:
        (batch,) = padded
        assert batch.input_id.tolist() == list(range(50, 100)) and not batch.seed_mask.any()
    for remainder in ("drop", "uneven"):
        with make(DATA, batch_size=50, rank=3, world_size=5, remainder=remainder) as loader:
            assert len(loader) == 0 and list(loader) == []


_TRAINER = """
import json, sys, warnings
import torch
import torch.distributed as dist
from gnnkit.errors import PlanError
from tests.loader.graphs import make, plain, seeds

dist.init_process_group("gloo")
rank = dist.get_rank()
with make(plain(), shuffle=True, remainder="uneven") as loader:
    assert (loader.plan.batching.rank, loader.plan.batching.world_size) == (rank, 2)
    gathered = [None, None]
    for _ in range(2):
        dist.all_gather_object(gathered, seeds(loader))
        assert sorted(gathered[0] + gathered[1]) == list(range(100)), gathered
    with make(plain(), seed=1) as other:  # another plan has epochs of its own
        list(other)
    loader.set_epoch(5 + rank)
    if rank == 1:
        dist.barrier()
    try:
        iter(loader)
        outcome = "none"
    except PlanError as error:
        outcome = str(error)
    if rank == 0:
        dist.barrier()
    dist.all_gather_object(gathered, outcome)
    loader.set_epoch(9)
    again = len(seeds(loader))
    if rank == 0:
        print(json.dumps([*gathered, again]))
    dist.barrier()
dist.destroy_process_group()
"""


def test_ranks_on_different_epochs_are_an_error() -> None:
    """Two real processes: the one that begins second sees what the first has announced."""
    port = str(free_port())
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _TRAINER],
            env={**environment, "RANK": str(rank), "WORLD_SIZE": "2"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    results = [process.communicate(timeout=240) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(err for _, err in results)
    import json

    first, second, again = json.loads(results[0][0].splitlines()[-1])
    assert first == "none"
    assert "rank 1 begins epoch 6, rank 0 epoch 5" in second and "set_epoch()" in second
    assert again in (49, 51)

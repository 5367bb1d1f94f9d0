"""Several trainers: what torchrun says, padding, and ranks that are not where the others are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch_geometric.data import HeteroData

import gnnkit
from gnnkit import GraphLoader
from gnnkit.errors import PlanError
from gnnkit.loader.inputs import find_rank
from gnnkit.pyg import LinkNeighborLoader, NeighborLoader
from tests.helpers.ports import free_port
from tests.loader.graphs import NUM_NODES, make, plain, seeds, typed

pytestmark = pytest.mark.slow

DATA = plain()


def test_blank_variables_are_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for rank, world_size in ((" ", " "), ("", "2"), ("\t", "2")):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", world_size)
        assert find_rank() is None


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


def test_a_rank_that_is_known_later_holds_from_the_next_epoch_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """For loaders of all kinds, and those made beside them; but not where a rank was given."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    store = gnnkit.partition(DATA, 1, "contiguous", tmp_path / "store")
    options: dict[str, Any] = {"num_neighbors": [3, 2], "batch_size": 7, "backend": "inprocess", "progress": False}
    with make(DATA) as loader, GraphLoader.from_store(store, input_nodes=None, **options) as stored:
        stored.plan.save(tmp_path / "plan.json")
        beside = {
            "for_split": loader.for_split(None),
            "for_links": loader.for_links(DATA.edge_index[:, :NUM_NODES]),
            "with_backend": loader.with_backend("colocated"),
            "of its own": loader.for_split(None, rank=0, world_size=1),
            "from_plan": GraphLoader.from_plan(tmp_path / "plan.json", progress=False),
            "a plan of its own": GraphLoader.from_plan(tmp_path / "plan.json", rank=0, world_size=1, progress=False),
            "beside that": GraphLoader.from_plan(tmp_path / "plan.json", rank=0, world_size=1, progress=False).for_split(None),
        }
        every = {"from_pyg": loader, "from_store": stored, **beside}
        under_way = {name: iter(own) for name, own in every.items()}
        firsts = {name: next(batches) for name, batches in under_way.items()}
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        for name, own in every.items():
            is_given = name in ("of its own", "a plan of its own", "beside that")
            batching, mine = own.plan.batching, list(range(NUM_NODES)) if is_given else own_share(1, 2)
            assert (batching.rank, batching.world_size) == ((0, 1) if is_given else (1, 2)), name
            assert len(own) == (15 if is_given else 8)
            assert seeds([firsts[name], *under_way[name]]) == list(range(NUM_NODES)), "an epoch stays as it began"
            state = own.state_dict()
            assert own.peek().input_id.tolist() == mine[:7] and ("seed_mask" in own.peek()) != is_given
            batches = list(own)
            assert seeds(batches) == mine and all(("seed_mask" in batch) != is_given for batch in batches)
            own.load_state_dict(state)
            own.set_epoch(3)
            assert seeds(own) == mine and own.epoch == 3
            assert own.for_split(None).plan.batching.world_size == batching.world_size
        monkeypatch.delenv("RANK")
        assert seeds(loader) == list(range(NUM_NODES))
        for own in beside.values():
            own.close()


def own_share(rank: int, world_size: int) -> list[int]:
    """Positions of a rank's seeds where batches of 7 are dealt in turn, and the last step is filled up from the first batch on."""
    batches = [list(range(first, min(first + 7, NUM_NODES))) for first in range(0, NUM_NODES, 7)]
    steps = -(-len(batches) // world_size)
    return [i for step in range(steps) for i in batches[(step * world_size + rank) % len(batches)]]


def test_an_epoch_that_broke_off_goes_on_among_the_ranks_that_are_there_then(monkeypatch: pytest.MonkeyPatch) -> None:
    with make(DATA) as loader:
        iterator = iter(loader)
        before = seeds([next(iterator) for _ in range(5)])
        monkeypatch.setenv("WORLD_SIZE", "2")
        shares = []
        for rank in range(2):
            monkeypatch.setenv("RANK", str(rank))
            with make(DATA) as other:
                other.load_state_dict(loader.state_dict())
                shares.append(seeds(other))
        monkeypatch.setenv("RANK", "1")
        assert seeds(loader.resume()) == shares[1]
    assert sorted([*before, *shares[0], *shares[1]]) == list(range(NUM_NODES))


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


def run_ranks(script: str, *arguments: str) -> list[str]:
    """What a script says in each of two processes, whose environment is torchrun's."""
    port = str(free_port())
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", script, *arguments],
            env={**environment, "RANK": str(rank), "WORLD_SIZE": "2"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    results = [process.communicate(timeout=240) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(err for _, err in results)
    return [out for out, _ in results]


def test_ranks_on_different_epochs_are_an_error() -> None:
    """Two real processes: the one that begins second sees what the first has announced."""
    first, second, again = json.loads(run_ranks(_TRAINER)[0].splitlines()[-1])
    assert first == "none"
    assert "rank 1 begins epoch 6, rank 0 epoch 5" in second and "set_epoch()" in second
    assert again in (49, 51)


_EARLY = """
import json, os, sys
rank, world_size = int(os.environ.pop("RANK")), int(os.environ.pop("WORLD_SIZE"))
import torch.distributed as dist
from tests.loader.graphs import make, plain, seeds

data, loaders = plain(), []
for backend in sys.argv[1:]:
    loader = make(data, backend=backend, shuffle=True, remainder="uneven")
    loaders += [loader, loader.for_split(None, shuffle=True, remainder="uneven")]
    loaders.append(loader.for_links(data.edge_index[:, :100], shuffle=True, remainder="uneven"))
assert all(len(loader) == 15 for loader in loaders)
dist.init_process_group("gloo", rank=rank, world_size=world_size)
assert all(len(loader) == 8 - rank for loader in loaders)
print(json.dumps([[seeds(loader) for _ in range(2)] for loader in loaders]))
dist.barrier()
dist.destroy_process_group()
for loader in loaders:
    loader.close()
"""


def test_loaders_that_were_made_before_the_process_group_share_its_epochs() -> None:
    """Two real processes, every backend, nodes and links, and the same batches as one rank's."""
    found = [json.loads(out.splitlines()[-1]) for out in run_ranks(_EARLY, "inprocess", "colocated", "graph_store")]
    with make(DATA, shuffle=True) as alone:
        whole = [[batch.input_id.tolist() for batch in alone] for _ in range(2)]
    assert len(found[0]) == len(found[1]) == 9
    for number, (first, second) in enumerate(zip(*found, strict=True)):
        for epoch in range(2):
            assert sorted(first[epoch] + second[epoch]) == list(range(100)), number
            if number % 3 < 2:
                assert [first[epoch], second[epoch]] == [sum(whole[epoch][rank::2], []) for rank in range(2)]


def in_a_spawned_rank(rank: int, loaders: dict[str, Any], folder: str, port: int) -> None:
    """What a script gives to ``mp.spawn``: it trains two epochs with loaders that the script has made."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    found: dict[str, list[list[int]]] = {}
    for name, loader in loaders.items():
        found[name] = []
        for _ in range(2):
            owners = [batch["paper"] if isinstance(batch, HeteroData) else batch for batch in loader]
            found[name].append([int(place) for owner in owners for place in owner.input_id])
    Path(folder, str(rank)).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()
    for loader in loaders.values():
        getattr(loader, "graph_loader", loader).close()


@pytest.mark.slow(seconds=30)
def test_loaders_that_are_given_to_spawned_ranks_share_their_epochs(tmp_path: Path) -> None:
    """As scripts of PyG and graphlearn-torch start: ``torch.multiprocessing.spawn``, with the loader as an argument."""
    data, options = plain(), {"shuffle": True, "remainder": "uneven"}
    sees = ("paper", "sees_gigl_positive", "paper")
    labelled = gnnkit.add_label_edges(typed(), {sees: torch.stack([torch.arange(60), torch.arange(60).flip(0)])})
    nodes, papers = make(data, **options), make(labelled, input_nodes="paper", **options)
    store = gnnkit.partition(data, 2, out=tmp_path / "store")
    loaders = {
        "nodes": nodes,
        "split": nodes.for_split(None, **options),
        "links": nodes.for_links(data.edge_index[:, :100], **options),
        "anchors": papers.for_anchors(sees, **options),
        "papers": papers,
        "processes": nodes.with_backend("colocated"),
        "servers": nodes.with_backend("graph_store"),
        "store": GraphLoader.from_store(store, num_neighbors=[3], batch_size=7, input_nodes=None, progress=False, **options),
        "PyG's": NeighborLoader(data, [3], batch_size=7, shuffle=True),
        "PyG's, named": NeighborLoader(data, [3], batch_size=7, shuffle=True, input_id=1000 + torch.arange(100)),
        "PyG's links": LinkNeighborLoader(data, [3], data.edge_index[:, :100], batch_size=7, num_workers=1),
    }
    ranks = mp.spawn(in_a_spawned_rank, (loaders, str(tmp_path), free_port()), nprocs=2, join=False)
    ends = time.monotonic() + 200
    try:
        while not ranks.join(timeout=5):
            assert time.monotonic() < ends
    finally:
        for process in ranks.processes:
            process.kill()
    first, second = (json.loads((tmp_path / str(rank)).read_text()) for rank in range(2))
    assert list(first) == list(second) == list(loaders)
    for name in loaders:
        inputs = list(range(60 if name in ("papers", "anchors") else 100))
        for mine, other in zip(first[name], second[name], strict=True):
            if name.startswith("PyG's"):  # which are one rank's, as PyG's own: a sampler says which inputs a rank has
                inputs = [1000 + place for place in range(100)] if name == "PyG's, named" else inputs
                assert sorted(mine) == sorted(other) == inputs, name
            else:
                assert sorted(mine + other) == inputs and len(mine) - len(other) <= 7, name
        assert first[name][0] != first[name][1] or name == "PyG's links", name

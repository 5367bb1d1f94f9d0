"""Scripts of other libraries with their imports changed, graphlearn-torch's own loaders beside ours, and its absence."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnnkit.datasets import write_glt_partitions
from tests.distributed.loading import ring, stored, typed_ring
from tests.distributed.ranks import TORCHRUN_VARIABLES
from tests.helpers.batches import digest
from tests.helpers.graphs import homogeneous_source, random_edges
from tests.helpers.ports import free_port
from tests.helpers.programs import started

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
NUM_TRAIN = 60


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in TORCHRUN_VARIABLES} | {"OMP_NUM_THREADS": "1"}


def run_ranks(folder: Path, world_size: int, python: str) -> list[list[dict[str, Any]]]:
    """What each rank printed, for each script."""
    script = [python, "-W", "ignore", str(HERE / "migrated.py"), str(folder)]
    commands = [[*script, str(rank), str(world_size)] for rank in range(world_size)]
    with started(commands, [environment()] * world_size) as programs:
        results = [program.communicate(timeout=300) for program in programs]
        for program, (_, err) in zip(programs, results, strict=True):
            assert program.returncode == 0, err[-4000:]
        return [json.loads(out.splitlines()[-1]) for out, _ in results]


def learnable() -> Any:
    """A graph of 80 nodes whose labels can be learned."""
    y = np.arange(80) % 4
    edges = random_edges(np.random.default_rng(0), 80, 80, 400)
    return homogeneous_source(edges, 80, x=np.eye(4, dtype=np.float32)[y], y=y.astype(np.int64))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A graph whose labels can be learned, as a store and as graphlearn-torch's partitions."""
    where = tmp_path
    write_glt_partitions(stored(learnable(), where, 1, edge_dir="out"), where / "partitions", lambda event: None)
    torch.save(torch.from_numpy(np.random.default_rng(1).permutation(80)[:NUM_TRAIN]), where / "train_idx.pt")
    return where


def check_training(folder: Path, python: str, world_size: int) -> None:
    ranks = run_ranks(folder, world_size, python)
    train_idx = torch.load(folder / "train_idx.pt", weights_only=True).tolist()
    for script, wanted in enumerate((sorted(train_idx), list(range(80)))):
        for epoch in range(3):
            assert sorted(seed for rank in ranks for seed in rank[script]["seeds"][epoch]) == wanted
        for rank in ranks:
            seeds, losses = rank[script]["seeds"], rank[script]["losses"]
            assert seeds[0] != seeds[1] and losses[-1] < losses[0]


@pytest.mark.timeout(400)
def test_scripts_with_their_imports_changed_train_on_two_ranks(folder: Path) -> None:
    check_training(folder, sys.executable, 2)


@pytest.mark.glt
@pytest.mark.timeout(400)
def test_they_do_so_beside_the_native_library(folder: Path, glt_interpreter: Path) -> None:
    check_training(folder, str(glt_interpreter), 1)


def test_hosts_with_a_part_each_give_the_batches_of_one_with_both(tmp_path: Path) -> None:
    from gnnkit.distributed import DistDataset, DistNeighborLoader

    store, wanted = stored(ring(), tmp_path, 2, partition="random"), []
    for part in range(2):
        dataset = DistDataset.from_store(store, part)
        loader = DistNeighborLoader(dataset, [3, 2], batch_size=8, shuffle=True, num_workers=0, seed=4)
        wanted.append(str([digest(list(loader)) for _ in range(2)]))
        loader.shutdown()
        shutil.copytree(store.path, tmp_path / f"host{part}")
        shutil.rmtree(tmp_path / f"host{part}" / f"part{1 - part}")
    group = {"WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    group |= {"MASTER_PORT": str(free_port()), **environment()}
    commands = [[sys.executable, "-W", "ignore", str(HERE / "hosted.py"), str(tmp_path / f"host{rank}")] for rank in range(2)]
    with started(commands, [{**group, "RANK": str(rank), "GROUP_RANK": str(rank)} for rank in range(2)]) as programs:
        results = [program.communicate(timeout=240) for program in programs]
    assert [out.splitlines()[-1:] for out, _ in results] == [[line] for line in wanted], [err[-3000:] for _, err in results]


def check_servers(tmp_path: Path, num_servers: int, num_clients: int, word: str, python: str) -> None:
    """One program of servers, one of clients, a token in the environment."""
    source, train, test = learnable(), np.arange(60), np.arange(60, 80)
    write_glt_partitions(stored(source, tmp_path, num_servers, edge_dir="out"), tmp_path / "partitions", lambda event: None)
    for name, ids in (("train", train), ("test", test)):
        for part, some in enumerate(np.array_split(ids, num_servers)):
            torch.save(torch.from_numpy(some), tmp_path / f"{name}{part}.pt")
    own = {"GNNKIT_TOKEN": "a token in the environment", "GNNKIT_HOME": str(tmp_path / "home")}
    numbers = {"--port": free_port(), "--num_servers": num_servers, "--num_clients": num_clients}
    arguments = [str(tmp_path), *(str(word) for pair in numbers.items() for word in pair), "--word", word]
    commands = [[python, "-W", "ignore", str(HERE / "migrated_servers.py"), role, *arguments] for role in ("server", "client")]
    with started(commands, [environment() | own] * 2) as programs:
        errors = [program.communicate(timeout=300)[1] for program in reversed(programs)]
        # The programs look at the exit status of each process that they started.
        assert [program.returncode for program in programs] == [0, 0], errors
    clients = [torch.load(tmp_path / f"client{rank}.pt") for rank in range(num_clients)]
    for epoch in range(3):
        assert sorted(seed for client in clients for seed in client["train"][epoch]) == train.tolist()
    for epoch in (0, 2):
        tested = sorted(seed for client in clients for first, *seeds in client["test"] if first == epoch for seed in seeds)
        assert tested == test.tolist()
    first, *_, last = [np.mean([loss for client in clients for loss in client["losses"][epoch]]) for epoch in range(3)]
    assert last < first


@pytest.mark.slow(seconds=30)
@pytest.mark.timeout(400)
def test_the_tutorial_of_servers_and_clients_trains_and_ends(tmp_path: Path) -> None:
    check_servers(tmp_path, 2, 2, "graph_dir", sys.executable)


@pytest.mark.slow(seconds=40)
@pytest.mark.glt
@pytest.mark.timeout(400)
def test_it_does_so_beside_the_native_library(tmp_path: Path, glt_interpreter: Path) -> None:
    check_servers(tmp_path, 1, 1, "root_dir", str(glt_interpreter))


# Beside graphlearn-torch's own loaders ----------------------------------------------------------------------------------------

# What differs by right: whose objects they are, and what GiGL adds.
OURS_ONLY = {
    "_edge_feature_info",
    "_is_homogeneous_with_labeled_edge_type",
    "_node_feature_info",
    "_non_blocking_transfers",
    "_sampler_options",
}
OBJECTS = {"data", "_channel", "_mp_producer", "_collocated_producer"}
MACHINERY = {"_ahead", "_is_borrowed", "_iteration", "_make", "_num_batches", "_own", "_producer", "_transfer"}


@pytest.mark.slow(seconds=40)
@pytest.mark.glt
@pytest.mark.timeout(400)
def test_loaders_are_like_those_that_graphlearn_torch_built(tmp_path: Path, glt_interpreter: Path) -> None:
    for name, data in (("plain", ring()), ("typed", typed_ring())):
        write_glt_partitions(stored(data, tmp_path / name, 1, edge_dir="out"), tmp_path / f"{name}-glt", lambda event: None)
    command = [str(glt_interpreter), "-W", "ignore", str(HERE / "glt_loader_probe.py"), str(tmp_path)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for kind in ("mp", "collocated"):
        ours, theirs = found[kind]["ours"], found[kind]["theirs"]
        assert theirs.keys() <= ours.keys()
        assert ours.keys() - theirs.keys() - MACHINERY == OURS_ONLY | ({"_channel"} if kind == "collocated" else set())
        for name in theirs.keys() - OBJECTS:
            # Its node types come out of a set, in any order.
            wanted = sorted(theirs[name]) if name == "_node_types" and theirs[name] else theirs[name]
            assert ours[name] == wanted, name
        assert found[kind]["after ours"] == found[kind]["after theirs"] == [6, 1]
        words = [set(found[kind][f"batches of {who}"][0][2]) for who in ("ours", "theirs")]
        assert words[1] <= words[0]
    epochs = [found[kind][f"batches of {who}"] for kind in ("mp", "collocated") for who in ("ours", "theirs")]
    assert len(found["foreign"]) == 2
    for epoch in epochs + found["foreign"]:
        assert all(right for right, _, _ in epoch) and [len(seeds) for _, seeds, _ in epoch] == [7, 7, 7, 7, 7, 5]
        assert sorted(seed for _, seeds, _ in epoch for seed in seeds) == list(range(40))


# Without it ---------------------------------------------------------------------------------------------------------------

ABSENT = """
import importlib.util, sys
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name.startswith("graphlearn_torch") else real(name, *rest)
import gnnkit.distributed
from gnnkit import GraphLoader
from gnnkit.errors import PlanError
loader = GraphLoader.from_store(sys.argv[1], num_neighbors=[2], input_nodes=None, progress=False)
print(len(list(loader.dist_loader)), type(loader.dist_loader).__name__)
try:
    gnnkit.distributed.ShmChannel
except PlanError as error:
    print(str(error).splitlines()[0])
print(all(getattr(gnnkit.distributed, name) is not None for name in gnnkit.distributed.__all__), "graphlearn_torch" in sys.modules)
print(gnnkit.distributed.shard_nodes_by_process.__name__, gnnkit.distributed.DEFAULT_NUM_CPU_THREADS)
"""


def test_without_graphlearn_torch_everything_of_ours_is_there(tmp_path: Path) -> None:
    path = stored(ring(), tmp_path).path
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ABSENT, str(path)], env=environment(), capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == [
        "1 BaseDistLoader",
        "gnnkit.distributed.ShmChannel needs graphlearn-torch's native library: graphlearn-torch is not installed",
        "True False",
        "shard_nodes_by_process 2",
    ]

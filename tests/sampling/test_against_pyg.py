"""Batches are what PyG's NeighborLoader would give: its attributes, its neighbourhoods and, where it draws, its distribution."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gnnkit import GraphLoader
from tests.helpers.batches import items
from tests.helpers.chi_square import check_statistic
from tests.helpers.graphs import random_edges
from tests.helpers.kind_batches import pyg_epochs
from tests.helpers.machine import ROOT, glt_python

pytestmark = pytest.mark.glt

AUTHOR, PAPER, VENUE = "author", "paper", "venue"


def homogeneous_case(**options: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    edge_index = torch.from_numpy(random_edges(rng, 70, 70, 500))
    nodes = {
        "x": torch.from_numpy(rng.standard_normal((80, 6)).astype(np.float32)),
        "y": torch.arange(80) % 5,
        "train_mask": torch.arange(80) % 2 == 0,
    }
    edge_arrays = {"": {"edge_attr": torch.arange(500.0).view(-1, 1)}}
    return {"edges": {"": edge_index}, "nodes": {"": nodes}, "edge_arrays": edge_arrays, "options": options}


def typed_case(**options: Any) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    sizes = {AUTHOR: 50, PAPER: 60, VENUE: 7}
    types = [(AUTHOR, "writes", PAPER), (PAPER, "rev_writes", AUTHOR), (PAPER, "cites", PAPER), (VENUE, "has", PAPER)]
    edges = {t: torch.from_numpy(random_edges(rng, sizes[t[0]], sizes[t[2]], 150)) for t in types}
    nodes: dict[str, dict[str, Any]] = {AUTHOR: {"x": torch.rand(50, 3)}, PAPER: {"x": torch.rand(60, 4), "y": torch.rand(60, 2)}}
    nodes[VENUE] = {"num_nodes": 7}
    edge_arrays = {(PAPER, "cites", PAPER): {"edge_attr": torch.arange(150.0).view(-1, 1)}}
    return {"edges": edges, "nodes": nodes, "edge_arrays": edge_arrays, "options": options}


def layered_case(**options: Any) -> dict[str, Any]:
    """Three layers of nine nodes, each node with the whole next layer as neighbours."""
    layers = torch.arange(27).view(3, 9)
    edge_index = torch.cat([torch.cartesian_prod(layers[h + 1], layers[h]).T for h in range(2)], 1)
    return {"edges": {"": edge_index}, "nodes": {"": {"num_nodes": 27}}, "edge_arrays": {}, "options": options}


CASES: dict[str, dict[str, Any]] = {
    "homogeneous": homogeneous_case(num_neighbors=[-1, -1], batch_size=7),
    "homogeneous, three hops, some seeds": homogeneous_case(
        num_neighbors=[-1, -1, -1], batch_size=4, input_nodes=torch.tensor([5, 79, 3, 35, 0, 69])
    ),
    "homogeneous, fan-out above every degree": homogeneous_case(num_neighbors=[500, 500], batch_size=7),
    "typed": typed_case(num_neighbors=[-1, -1], batch_size=8, input_nodes=(PAPER, None)),
    "typed, seeds of another type": typed_case(num_neighbors=[-1, -1], batch_size=8, input_nodes=(AUTHOR, torch.arange(0, 50, 3))),
    "typed, fan-out per type": typed_case(
        num_neighbors={
            (AUTHOR, "writes", PAPER): [-1, 0],
            (PAPER, "rev_writes", AUTHOR): [0, -1],
            (PAPER, "cites", PAPER): [-1, -1],
            (VENUE, "has", PAPER): [0, 0],
        },
        batch_size=8,
        input_nodes=(PAPER, None),
    ),  # fmt: skip
}
DRAWN: dict[str, dict[str, Any]] = {
    "distinct": layered_case(num_neighbors=[3, 2], batch_size=1, input_nodes=torch.zeros(2000, dtype=torch.long)),
    "replace": layered_case(num_neighbors=[3, 2], batch_size=1, input_nodes=torch.zeros(2000, dtype=torch.long), replace=True),
    "random graph": homogeneous_case(num_neighbors=[4, 3], batch_size=10),
}
INDUCED: dict[str, dict[str, Any]] = {
    "homogeneous, induced": homogeneous_case(num_neighbors=[-1, -1], batch_size=7, subgraph_type="induced"),
    "repeated seeds, induced": homogeneous_case(
        num_neighbors=[-1], batch_size=5, input_nodes=torch.tensor([35, 3, 35, 0, 3]), subgraph_type="induced"
    ),
    "typed, induced": typed_case(num_neighbors=[-1, -1], batch_size=8, input_nodes=(AUTHOR, None), subgraph_type="induced"),
}
SHADOW = homogeneous_case(depth=2, num_neighbors=500, node_idx=torch.arange(0, 80, 3), batch_size=7)
SHADOW["nodes"][""]["id"] = torch.arange(80)


@pytest.fixture(scope="module")
def pyg_batches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Every case's batches, from PyG in the second environment."""
    return pyg_epochs({**CASES, **DRAWN, **INDUCED, "shadow": {**SHADOW, "loader": "ShaDowKHopSampler"}}, tmp_path_factory.mktemp("pyg"))


def graph_of(case: dict[str, Any]) -> Data | HeteroData:
    from tests.helpers.pyg_batches import graph_of as build

    data: Data | HeteroData = build(case)
    return data


def ours(case: dict[str, Any], **options: Any) -> list[Data | HeteroData]:
    with GraphLoader.from_pyg(
        graph_of(case), **{"input_nodes": None, "with_edge": True, "progress": False, **case["options"], **options}
    ) as loader:
        return list(loader)


def hops(values: Any, counts: list[int]) -> list[list[Any]]:
    """Values cut into the hops that they were sampled in, each sorted."""
    assert len(values) == sum(counts)
    ends = np.cumsum([0, *counts])
    return [sorted(values[start:end]) for start, end in zip(ends[:-1], ends[1:], strict=True)]


@pytest.mark.parametrize("name", CASES)
def test_whole_neighbourhoods(pyg_batches: dict[str, list[dict[str, Any]]], name: str) -> None:
    theirs, mine = pyg_batches[name], ours(CASES[name])
    assert len(theirs) == len(mine)
    for theirs_batch, batch in zip(theirs, mine, strict=True):
        found = dict(items(batch))
        # With torch-sparse, PyG leaves the counts out that it has with pyg-lib; the cuts below show what they would be.
        missing = set(found) - set(theirs_batch)
        assert {key.rpartition(".")[2] for key in missing} <= {"num_sampled_nodes", "num_sampled_edges"}
        assert set(theirs_batch) <= set(found)
        for key, value in ((key, value) for key, value in found.items() if key not in missing):
            other = theirs_batch[key]
            if isinstance(value, torch.Tensor):
                assert value.dtype == other.dtype and value.shape == other.shape, key
            else:
                assert value == other and type(value) is type(other), key
        for prefix in {key.rpartition(".")[0] for key in found}:
            check_one_store(found, theirs_batch, f"{prefix}." if prefix else "")


def check_one_store(mine: dict[str, Any], theirs: dict[str, Any], where: str) -> None:
    """Nodes and edges per hop, and the rows that belong to them."""
    for batch in (mine, theirs):
        if f"{where}input_id" in batch:
            size = batch[f"{where}batch_size"]
            assert batch[f"{where}n_id"][:size].equal(mine[f"{where}n_id"][:size])
            assert batch[f"{where}input_id"].equal(mine[f"{where}input_id"])
    if f"{where}n_id" in mine:
        counts = mine[f"{where}num_sampled_nodes"]
        left, right = (hops(batch[f"{where}n_id"].tolist(), counts) for batch in (mine, theirs))
        assert left == right
        for name in ("x", "y", "train_mask"):
            if where + name in mine:
                by_id = [batch[where + name][batch[f"{where}n_id"].argsort(stable=True)] for batch in (mine, theirs)]
                assert by_id[0].equal(by_id[1])
    if f"{where}edge_index" in mine:
        counts = mine[f"{where}num_sampled_edges"]
        left, right = (hops(global_edges(batch, where), counts) for batch in (mine, theirs))
        assert left == right
        if f"{where}edge_attr" in mine:
            for batch in (mine, theirs):
                assert batch[f"{where}edge_attr"][:, 0].equal(batch[f"{where}e_id"].float())


def global_edges(batch: dict[str, Any], where: str) -> list[tuple[int, int, int]]:
    """(source, target, edge id) in the dataset's ids."""
    types = where.rstrip(".").split("__") if where else None
    source, target = (batch["n_id"],) * 2 if types is None else (batch[f"{types[0]}.n_id"], batch[f"{types[2]}.n_id"])
    row, col = batch[f"{where}edge_index"]
    return list(zip(source[row].tolist(), target[col].tolist(), batch[f"{where}e_id"].tolist(), strict=True))


@pytest.mark.parametrize("name", INDUCED)
def test_induced_subgraphs(pyg_batches: dict[str, list[dict[str, Any]]], name: str) -> None:
    for theirs, batch in zip(pyg_batches[name], ours(INDUCED[name]), strict=True):
        mine = dict(items(batch))
        assert set(mine) == set(theirs), "neither has counts by hop"
        for where in {key.rpartition(".")[0] + "." if "." in key else "" for key in mine}:
            if f"{where}n_id" in mine:
                size = mine.get(f"{where}batch_size", 0)
                assert mine[f"{where}n_id"][:size].equal(theirs[f"{where}n_id"][:size])
                assert sorted(mine[f"{where}n_id"].tolist()) == sorted(theirs[f"{where}n_id"].tolist())
            if f"{where}edge_index" in mine:
                assert sorted(global_edges(mine, where)) == sorted(global_edges(theirs, where))
            if f"{where}edge_attr" in mine:
                assert mine[f"{where}edge_attr"][:, 0].equal(mine[f"{where}e_id"].float())


def test_shadow(pyg_batches: dict[str, list[dict[str, Any]]]) -> None:
    """Disjoint and induced together; PyG lists each root's nodes together and by id, so sets are compared, root by root."""
    options = {"num_neighbors": [500, 500], "input_nodes": SHADOW["options"]["node_idx"], "batch_size": 7}
    data = graph_of(SHADOW)
    with GraphLoader.from_pyg(data, disjoint=True, subgraph_type="induced", with_edge=True, progress=False, **options) as loader:
        batches = list(loader)
    assert len(batches) == len(pyg_batches["shadow"])
    for theirs, batch in zip(pyg_batches["shadow"], batches, strict=True):
        assert batch.n_id[: batch.batch_size].equal(theirs["id"][theirs["root_n_id"]])
        assert batch.y[: batch.batch_size].equal(theirs["y"])
        row, col = batch.edge_index
        their_row, their_col = theirs["edge_index"]
        for root in range(batch.batch_size):
            mine, other = batch.batch == root, theirs["batch"] == root
            assert sorted(batch.n_id[mine].tolist()) == theirs["id"][other].tolist()
            edges = zip(batch.n_id[row].tolist(), batch.n_id[col].tolist(), batch.edge_attr[:, 0].tolist(), mine[col].tolist(), strict=True)
            wanted = zip(
                theirs["id"][their_row].tolist(),
                theirs["id"][their_col].tolist(),
                theirs["edge_attr"][:, 0].tolist(),
                other[their_col].tolist(),
                strict=True,
            )
            assert sorted(edges) == sorted(wanted)


def two_samples(left: np.ndarray, right: np.ndarray) -> None:
    """Pearson's test that two lists of counts are of one distribution."""
    kept = (left + right) >= 10
    left, right = left[kept].astype(float), right[kept].astype(float)
    ratio = np.sqrt(right.sum() / left.sum())
    check_statistic(float(((left * ratio - right / ratio) ** 2 / (left + right)).sum()), int(kept.sum()) - 1)


def children(batch: dict[str, Any], unbiased: bool) -> tuple[list[list[int]], int]:
    """What the seed drew, and what the last of the nodes drew that it had drawn, as positions; and the number of nodes."""
    source, target = batch["n_id"][batch["edge_index"]]
    kept = target[3:] == target[3:].max()
    drawn = [sorted((source[:3] - 9).tolist()), sorted((source[3:][kept][:2] - 18).tolist())]
    return [positions for positions in drawn if not unbiased or positions[-1] < 6], len(batch["n_id"])


def count(batches: list[dict[str, Any]], unbiased: bool) -> list[np.ndarray]:
    subsets, pairs, sizes = np.zeros(1000, int), np.zeros(100, int), np.zeros(20, int)
    for batch in batches:
        drawn, size = children(batch, unbiased)
        for positions in drawn:
            index = int("".join(map(str, positions)))
            (subsets if len(positions) == 3 else pairs)[index] += 1
        sizes[size] += 1
    return [subsets, pairs] if unbiased else [subsets, pairs, sizes]


@pytest.mark.parametrize("name", ["distinct", "replace"])
def test_draws_have_the_same_distribution(pyg_batches: dict[str, list[dict[str, Any]]], name: str) -> None:
    """Subsets as a whole, in both hops, and how large batches become.

    Without replacement, torch-sparse 0.6.18 draws from [0, j) where Floyd's sample needs [0, j], so that a node's last edges are
    taken too rarely (of nine, the last three a third less often): there, subsets of the first six are compared.
    """
    mine = [dict(items(batch)) for batch in ours(DRAWN[name])]
    unbiased = name == "distinct"
    for left, right in zip(count(mine, unbiased), count(pyg_batches[name], unbiased), strict=True):
        two_samples(left, right)


def test_numbers_of_nodes_and_edges_agree_on_average(pyg_batches: dict[str, list[dict[str, Any]]]) -> None:
    """Fan-outs below the degree on a graph with hubs, batch by batch: what is certain is equal, what is drawn agrees on average."""
    theirs = pyg_batches["random graph"]
    epochs = [ours(DRAWN["random graph"], seed=seed) for seed in range(60)]
    for index, other in enumerate(theirs):
        mine = [sizes_of(dict(items(epoch[index]))) for epoch in epochs]
        wanted = sizes_of(other)
        drawn = np.array(mine, float)
        assert (drawn[:, 0] == wanted[0]).all()  # edges of the first hop: as many as degrees and fan-out say
        spread = np.maximum(drawn.std(axis=0), 0.5)
        assert (np.abs(np.array(wanted) - drawn.mean(axis=0)) < 5 * spread).all()


def sizes_of(batch: dict[str, Any]) -> tuple[int, int, int]:
    """Edges of the first hop, edges and nodes."""
    col = batch["edge_index"][1]
    return int((col < batch["batch_size"]).sum()), len(col), len(batch["n_id"])


def test_another_torch_samples_the_same_batches() -> None:
    """The golden batches come out under the second environment's torch, NumPy and Numba too."""
    command = [str(glt_python()), "-W", "ignore", "-m", "tests.helpers.golden"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads((Path(__file__).parent / "golden.json").read_text())

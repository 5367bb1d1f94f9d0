"""Batches of ``gnnkit.pyg`` beside those of PyG's own loaders, which run in the second environment, where nothing is drawn."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from typing import Any

import pytest
import torch

import gnnkit
from tests.helpers.kind_batches import pyg_epochs
from tests.helpers.machine import ROOT, glt_python
from tests.helpers.pyg_batches import flatten, graph_of
from tests.sampling.test_against_pyg import AUTHOR, PAPER, SHADOW, check_one_store, global_edges, homogeneous_case, typed_case
from tests.sampling.test_against_pyg import CASES as NODE_CASES
from tests.sampling.test_links_against_pyg import CASES as LINK_CASES
from tests.sampling.test_links_against_pyg import check_links

pytestmark = pytest.mark.glt

EVEN = torch.arange(80) % 2 == 0
COUNTS = {"num_sampled_nodes", "num_sampled_edges"}  # which PyG gives with pyg-lib, and leaves out with torch-sparse
CASES: dict[str, dict[str, Any]] = {
    **NODE_CASES,
    "a mask": homogeneous_case(num_neighbors=[-1], batch_size=7, input_nodes=EVEN),
    "a list": homogeneous_case(num_neighbors=(-1,), batch_size=2, input_nodes=[5, 3, 79]),
    "names of inputs": homogeneous_case(num_neighbors=[-1], batch_size=2, input_nodes=[5, 3, 79], input_id=torch.tensor([7, 9, 8])),
    "drop_last, induced": homogeneous_case(num_neighbors=[-1], batch_size=7, drop_last=True, subgraph_type="induced"),
    "not directed": homogeneous_case(num_neighbors=[-1], batch_size=40, directed=False),
    "an order of one's own": homogeneous_case(num_neighbors=[-1], batch_size=3, sampler=[5, 3, 5, 79, 0]),
    "no hop": homogeneous_case(num_neighbors=[], batch_size=30),
    "a type": typed_case(num_neighbors=[-1, -1], batch_size=8, input_nodes=AUTHOR),
    "a list of type and mask": typed_case(num_neighbors=[-1], batch_size=8, input_nodes=[AUTHOR, torch.arange(50) < 9]),
    "a type and a range": typed_case(num_neighbors=[-1], batch_size=8, input_nodes=(AUTHOR, range(3, 20))),
    "typed, induced": typed_case(num_neighbors=[-1, -1], batch_size=8, input_nodes=PAPER, subgraph_type="induced"),
    "ids of its own": homogeneous_case(num_neighbors=[-1], batch_size=7),
    **{name: case for name, case in LINK_CASES.items() if "neg_sampling" not in case["options"]},
    "links, names of inputs": {
        **homogeneous_case(num_neighbors=[-1], batch_size=2, edge_label_index=torch.arange(6).view(2, 3), input_id=torch.tensor([7, 9, 8])),
        "loader": "LinkNeighborLoader",
    },
}
CASES["ids of its own"]["nodes"][""]["n_id"] = torch.arange(80) * 3
SHADOWS = {"shadow": {**SHADOW, "loader": "ShaDowKHopSampler"}, "shadow of all": {**SHADOW, "loader": "ShaDowKHopSampler"}}
SHADOWS["shadow of all"] = {**SHADOWS["shadow"], "options": {"depth": 1, "num_neighbors": 500, "batch_size": 30, "replace": False}}


@pytest.fixture(scope="module")
def pygs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Every case's batches, from PyG."""
    return pyg_epochs({**CASES, **SHADOWS}, tmp_path_factory.mktemp("pyg"))


def ours(case: dict[str, Any]) -> list[dict[str, Any]]:
    kind = getattr(gnnkit.pyg, case.get("loader", "NeighborLoader"))
    with pytest.warns(UserWarning, match="deprecated") if "directed" in case["options"] else contextlib.nullcontext():
        loader = kind(graph_of(case), shuffle=False, **case["options"])
    return [flatten(batch) for batch in loader]


@pytest.mark.parametrize("name", CASES)
def test_batches_are_pygs(pygs: dict[str, list[dict[str, Any]]], name: str) -> None:
    theirs, mine = pygs[name], ours(CASES[name])
    assert len(theirs) == len(mine)
    for other, found in zip(theirs, mine, strict=True):
        missing = {key for key in found if key.rpartition(".")[2] in COUNTS} - set(other)
        assert set(found) - missing == set(other)
        for key, value in ((key, value) for key, value in found.items() if key not in missing):
            assert type(value) is type(other[key]), key
            if isinstance(value, torch.Tensor):
                assert value.dtype == other[key].dtype and value.shape == other[key].shape, key
            elif not isinstance(value, list):
                assert value == other[key], key
        for where in {key.rpartition(".")[0] + "." if "." in key else "" for key in found}:
            compare(found, other, where)


def compare(mine: dict[str, Any], theirs: dict[str, Any], where: str) -> None:
    """One type's attributes, whose order within a hop is no loader's promise."""
    for name in ("input_id", "batch_size", "num_nodes"):
        if where + name in mine:
            assert torch.equal(torch.as_tensor(mine[where + name]), torch.as_tensor(theirs[where + name])), name
    if f"{where}edge_label_index" in mine:
        check_links(mine, theirs, where)
    if any(key.rpartition(".")[2] in COUNTS for key in mine) and "n_id" in mine and mine["n_id"].max() < 80:
        check_one_store(
            {k: v for k, v in mine.items() if "input_id" not in k}, {k: v for k, v in theirs.items() if "input_id" not in k}, where
        )
    elif f"{where}edge_index" in mine:
        assert sorted(global_edges(mine, where)) == sorted(global_edges(theirs, where))
    if f"{where}n_id" in mine:
        assert sorted(mine[f"{where}n_id"].tolist()) == sorted(theirs[f"{where}n_id"].tolist())


@pytest.mark.parametrize("name", SHADOWS)
def test_shadow_is_pygs_to_the_last_number(pygs: dict[str, list[dict[str, Any]]], name: str) -> None:
    mine = ours(SHADOWS[name])
    assert len(mine) == len(pygs[name])
    for found, other in zip(mine, pygs[name], strict=True):
        assert set(found) == set(other)
        for key in set(found) - {"edge_attr"}:
            assert found[key].equal(other[key]) if isinstance(found[key], torch.Tensor) else found[key] == other[key], key
        # Parallel edges come in the order of their ids, and in PyG in any order.
        left, right = (sorted(zip(*one["edge_index"].tolist(), one["edge_attr"][:, 0].tolist(), strict=True)) for one in (found, other))
        assert left == right


SPARSE = """
import json, torch, warnings
from torch_geometric import loader as theirs
from torch_geometric.data import Data
from torch_sparse import SparseTensor
import gnnkit.pyg

torch.manual_seed(2)
edge_index, weight = torch.randint(0, 20, (2, 90)), torch.rand(90)
matrix = SparseTensor(row=edge_index[1], col=edge_index[0], value=weight, sparse_sizes=(20, 20)).coalesce()
found = {}
for kind, options in (("NeighborLoader", {"num_neighbors": [-1, -1]}), ("ShaDowKHopSampler", {"depth": 2, "num_neighbors": 500})):
    batches = []
    for module in (theirs, gnnkit.pyg):
        batch = next(iter(getattr(module, kind)(Data(adj_t=matrix, x=torch.arange(20)), batch_size=3, **options)))
        row, col, value = batch.adj_t.coo()
        edges = sorted(zip(batch.x[row].tolist(), batch.x[col].tolist(), value.tolist()))
        ids = sorted(batch.e_id.tolist()) if "e_id" in batch else []
        batches.append([sorted(batch.keys()), edges, sorted(batch.x.tolist()), batch.adj_t.sizes(), ids])
    drop = {"num_sampled_nodes", "num_sampled_edges"}
    for one in batches:
        one[0] = [key for key in one[0] if key not in drop]
    found[kind] = batches
print(json.dumps(found))
"""


def test_sparse_matrices_stay_sparse_matrices() -> None:
    """``adj_t``, with its values, in and out."""
    environment = {**os.environ}
    command = [str(glt_python()), "-W", "ignore", "-c", SPARSE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    for kind, (theirs, mine) in json.loads(done.stdout).items():
        assert mine == theirs, kind

"""Batches of links are what PyG's LinkNeighborLoader would give: everything but which negatives are drawn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gnnkit import GraphLoader
from tests.helpers.batches import items
from tests.helpers.kind_batches import pyg_epochs
from tests.helpers.pyg_batches import graph_of
from tests.sampling.test_against_pyg import AUTHOR, PAPER, check_one_store, homogeneous_case, typed_case

pytestmark = pytest.mark.glt

WRITES, CITES = (AUTHOR, "writes", PAPER), (PAPER, "cites", PAPER)
PLAIN_LINKS = torch.stack([torch.arange(0, 80, 3) % 80, (torch.arange(0, 80, 3) * 7) % 80])
WRITES_LINKS = torch.stack([torch.arange(23) * 2, torch.arange(23) % 11])
BINARY, TRIPLET = {"mode": "binary", "amount": 1.5}, {"mode": "triplet", "amount": 1}
CLASSES = torch.arange(27) % 4


def plain(**options: Any) -> dict[str, Any]:
    case = homogeneous_case(num_neighbors=[-1, -1], batch_size=5, edge_label_index=PLAIN_LINKS, **options)
    return {**case, "loader": "LinkNeighborLoader"}


def typed(edge_type: Any = WRITES, links: Any = WRITES_LINKS, **options: Any) -> dict[str, Any]:
    case = typed_case(num_neighbors=[-1, -1], batch_size=5, edge_label_index=(edge_type, links), **options)
    return {**case, "loader": "LinkNeighborLoader"}


CASES: dict[str, dict[str, Any]] = {
    "links alone": plain(),
    "labels": plain(edge_label=CLASSES),
    "labels of several columns": plain(edge_label=torch.rand(27, 3)),
    "binary": plain(neg_sampling=BINARY),
    "binary, classes from 0": plain(neg_sampling=BINARY, edge_label=CLASSES),
    "binary, classes from 1": plain(neg_sampling=BINARY, edge_label=CLASSES + 1),
    "binary, numbers from 0": plain(neg_sampling=BINARY, edge_label=CLASSES / 4),
    "binary, numbers": plain(neg_sampling=BINARY, edge_label=CLASSES / 4 + 0.5),
    "triplet": plain(neg_sampling=TRIPLET),
    "triplet of three": plain(neg_sampling={"mode": "triplet", "amount": 3}),
    "typed": typed(),
    "typed, labels": typed(edge_label=torch.arange(23)),
    "typed, binary": typed(neg_sampling=BINARY),
    "typed, triplet": typed(neg_sampling={"mode": "triplet", "amount": 2}),
    "one type": typed(CITES, torch.stack([torch.arange(30), torch.arange(30, 60)])),
    "one type, triplet": typed(CITES, torch.stack([torch.arange(30), torch.arange(30, 60)]), neg_sampling=TRIPLET),
    "all edges": typed(CITES, None),
}


@pytest.fixture(scope="module")
def pyg_batches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Every case's batches, from PyG in the second environment."""
    return pyg_epochs(CASES, tmp_path_factory.mktemp("pyg"))


def ours(case: dict[str, Any]) -> list[Data | HeteroData]:
    with GraphLoader.from_pyg(graph_of(case), with_edge=True, progress=False, **case["options"]) as loader:
        return list(loader)


@pytest.mark.parametrize("name", CASES)
def test_everything_that_is_not_drawn(pyg_batches: dict[str, list[dict[str, Any]]], name: str) -> None:
    theirs, mine = pyg_batches[name], ours(CASES[name])
    assert len(theirs) == len(mine)
    has_negatives = "neg_sampling" in CASES[name]["options"]
    for other, batch in zip(theirs, mine, strict=True):
        found = dict(items(batch))
        # With torch-sparse, PyG leaves out the counts that it has with pyg-lib.
        missing = {key for key in set(found) - set(other) if key.rpartition(".")[2] in ("num_sampled_nodes", "num_sampled_edges")}
        assert set(found) - missing == set(other)
        for key, value in ((key, value) for key, value in found.items() if key not in missing):
            if isinstance(value, torch.Tensor):
                assert value.dtype == other[key].dtype and value.ndim == other[key].ndim, key
                assert has_negatives or value.shape == other[key].shape, key
        for prefix in {key.rpartition(".")[0] for key in found}:
            where = f"{prefix}." if prefix else ""
            check_links(found, other, where)
            if not has_negatives:
                check_one_store(*({k: v for k, v in both.items() if not k.endswith("input_id")} for both in (found, other)), where)


def check_links(mine: dict[str, Any], theirs: dict[str, Any], where: str) -> None:
    """Labels as they are, and numbers by the nodes that they stand for; of negatives, how many there are."""
    for name in ("input_id", "edge_label", "edge_label_time"):
        if where + name in mine:
            assert mine[where + name].equal(theirs[where + name]), name
    count = len(mine.get(f"{where}input_id", mine.get(f"{where}src_index", mine.get(f"{where}dst_pos_index", ()))))
    ends = where.rstrip(".").split("__") if "__" in where else [where.rstrip(".")] * 3
    for name in ("edge_label_index", "src_index", "dst_pos_index", "dst_neg_index"):
        if where + name not in mine:
            continue
        left, right = mine[where + name], theirs[where + name]
        assert left.shape == right.shape
        rows = zip(left, right, (ends[0], ends[2]), strict=True) if name == "edge_label_index" else [(left, right, ends[0])]
        for one, other, node_type in rows if name != "dst_neg_index" else []:
            key = f"{node_type}.n_id" if node_type else "n_id"
            assert mine[key][one[:count]].equal(theirs[key][other[:count]])
    if f"{where}n_id" in mine:  # seeds come first, ascending, in both
        counts = mine[f"{where}num_sampled_nodes"]
        for batch in (mine, theirs):
            seeds = batch[f"{where}n_id"][: counts[0]]
            assert batch is theirs or seeds.equal(seeds.unique())

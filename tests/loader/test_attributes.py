"""What is on a batch: ``docs/batches.md``, line by line."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gnnkit import GraphLoader
from gnnkit.errors import PlanError
from tests.helpers.batches import items, raw, same
from tests.helpers.graphs import homogeneous_source, random_edges
from tests.loader.graphs import make, plain, typed

PAGE = Path(__file__).parents[2] / "docs" / "batches.md"


def names_in(section: str) -> set[str]:
    """The attributes in the first column of a section's table."""
    text = PAGE.read_text().split(f"## {section}\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)}


def test_the_page_names_every_attribute_of_data() -> None:
    timed = Data(edge_index=plain().edge_index, time=torch.arange(100), num_nodes=100)
    with (
        make(plain(), with_edge=True, rank=0, world_size=2) as loader,
        make(Data(edge_index=plain().edge_index, num_nodes=100)) as bare,
        make(timed, time_attr="time", input_nodes=[1, 2], input_time=[50, 60]) as temporal,
    ):
        found = {name for batch in (loader.peek(), bare.peek(), temporal.peek()) for name, _ in items(batch)}
    assert found - {"train_mask", "val_mask", "test_mask", "time"} == names_in("`Data`: one node type, one edge type")


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        (torch.arange(100) % 4, 4),
        ((torch.arange(100) % 4).unsqueeze(1), 4),
        (torch.zeros(100, 7), 7),
        (None, 0),
    ],
)
def test_num_classes_are_those_of_the_input_nodes_labels(y: torch.Tensor | None, classes: int) -> None:
    with make(Data(edge_index=plain().edge_index, num_nodes=100, y=y)) as loader:
        assert loader.num_classes == classes
    with (
        make(Data(edge_index=plain().edge_index, num_nodes=100, y=torch.rand(100))) as loader,
        pytest.raises(PlanError, match="no classes"),
    ):
        _ = loader.num_classes
    data = typed()
    with make(data, input_nodes="paper") as papers, make(data, input_nodes="tag") as tags:
        assert (papers.num_classes, tags.num_classes) == (3, 0)


def test_the_page_names_every_attribute_of_heterodata() -> None:
    data = typed()
    data["paper", "cites", "paper"].edge_attr = torch.rand(150, 2)
    timed = typed()
    for node_type in timed.node_types:
        timed[node_type].time = torch.arange(timed[node_type].num_nodes)
    times = {"time_attr": "time", "input_nodes": ("paper", [1, 2]), "input_time": [50, 60]}
    with make(data, input_nodes="paper", rank=0, world_size=2) as loader, make(timed, **times) as temporal:
        found = {name.rpartition(".")[2] for batch in (loader.peek(), temporal.peek()) for name, _ in items(batch)} - {"time"}
    assert found == names_in("`HeteroData`: per node type") | names_in("`HeteroData`: per edge type")


def test_shapes_and_dtypes_of_data() -> None:
    data = plain()
    with make(data, with_edge=True) as loader:
        for batch in loader:
            n, e, b = batch.num_nodes, batch.num_edges, batch.batch_size
            assert isinstance(batch, Data) and isinstance(b, int)
            assert batch.n_id.dtype == batch.e_id.dtype == batch.input_id.dtype == batch.edge_index.dtype == torch.int64
            assert (
                batch.n_id.shape == (n,) and batch.e_id.shape == (e,) and batch.edge_index.shape == (2, e) and batch.input_id.shape == (b,)
            )
            assert batch.x.equal(data.x[batch.n_id]) and batch.y.equal(data.y[batch.n_id])
            assert batch.edge_attr.equal(data.edge_attr[batch.e_id])
            assert batch.train_mask.equal(data.train_mask[batch.n_id]) and batch.train_mask.dtype == torch.bool
            assert batch.n_id[batch.edge_index].equal(data.edge_index[:, batch.e_id])
            assert sum(batch.num_sampled_nodes) == n and sum(batch.num_sampled_edges) == e
            assert len(batch.num_sampled_nodes) == 3 and len(batch.num_sampled_edges) == 2
            assert batch.validate()
            assert batch.edge_index.max() < n and batch.is_coalesced() in (True, False)


def test_shapes_and_dtypes_of_heterodata() -> None:
    data = typed()
    with make(data, input_nodes="paper", with_edge=True) as loader:
        for batch in loader:
            assert isinstance(batch, HeteroData) and batch.node_types == ["paper", "tag"] and batch.edge_types == sorted(data.edge_types)
            assert "input_id" in batch["paper"] and "input_id" not in batch["tag"] and "batch_size" not in batch["tag"]
            assert "x" not in batch["tag"] and batch["tag"].num_nodes == len(batch["tag"].n_id)
            for edge_type in batch.edge_types:
                source, target = (batch[edge_type[i]].n_id[batch[edge_type].edge_index[i // 2]] for i in (0, 2))
                assert torch.stack([source, target]).equal(data[edge_type].edge_index[:, batch[edge_type].e_id])
            assert batch.validate()


def test_edge_ids_come_with_edge_features_unless_told_otherwise() -> None:
    bare = Data(edge_index=plain().edge_index, num_nodes=100)
    for data, with_edge, expected in ((plain(), None, True), (bare, None, False), (plain(), False, False), (bare, True, True)):
        with make(data, with_edge=with_edge) as loader:
            batch = loader.peek()
        assert ("e_id" in batch) is expected
        assert ("edge_attr" in batch) is ("edge_attr" in data)


def test_without_features_num_nodes_is_an_attribute() -> None:
    with make(Data(edge_index=plain().edge_index, num_nodes=100, y=torch.arange(100))) as loader:
        for batch in loader:
            assert "x" not in batch and batch.num_nodes == len(batch.n_id) and batch.y.equal(batch.n_id)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.uint8, torch.int32, torch.bool])
def test_features_keep_their_dtype(dtype: torch.dtype) -> None:
    data = plain()
    data.x = (data.x * 10).to(dtype)
    data.edge_attr = (data.edge_attr * 10).to(dtype)
    with make(data) as loader:
        for batch in loader:
            assert batch.x.dtype == batch.edge_attr.dtype == dtype
            assert raw(batch.x) == raw(data.x[batch.n_id])
            assert raw(batch.edge_attr) == raw(data.edge_attr[batch.e_id])


@pytest.mark.parametrize("feature_dtype", [None, "float32", "float16", "bfloat16"])
def test_stores_of_narrower_features(tmp_path: Path, feature_dtype: Any) -> None:
    rng = np.random.default_rng(0)
    x, attr = rng.standard_normal((50, 6)).astype(np.float32), rng.standard_normal((300, 3)).astype(np.float32)
    source = homogeneous_source(
        random_edges(rng, 50, 50, 300), 50, edge_arrays={"edge_attr": attr}, x=x, y=rng.random(50).astype(np.float32)
    )
    options: dict[str, Any] = {"num_neighbors": [3, 2], "batch_size": 10, "input_nodes": None, "num_parts": 2, "partition": "random"}
    dtype = getattr(torch, feature_dtype or "float32")
    with GraphLoader.from_source(source, store_dir=tmp_path, feature_dtype=feature_dtype, progress=False, **options) as loader:
        for batch in loader:
            assert batch.x.dtype == batch.edge_attr.dtype == dtype and batch.y.dtype == torch.float32
            assert batch.x.equal(torch.from_numpy(x).to(dtype)[batch.n_id])
            assert batch.edge_attr.equal(torch.from_numpy(attr).to(dtype)[batch.e_id])


def test_labels_of_several_tasks() -> None:
    data = plain()
    data.y = torch.rand(100, 3)
    with make(data) as loader:
        for batch in loader:
            assert batch.y.equal(data.y[batch.n_id]) and batch.y.shape == (batch.num_nodes, 3)


def test_missing_labels_stay_missing() -> None:
    """NaN in floating-point labels and -1 in whole ones come through bit by bit."""
    data = plain()
    data.y = torch.arange(100.0)
    data.y[::3] = math.nan
    data.species = torch.arange(100)
    data.species[::2] = -1
    with make(data) as loader:
        for batch in loader:
            assert raw(batch.y) == raw(data.y[batch.n_id]) and batch.species.equal(data.species[batch.n_id])
            assert batch.y.isnan().equal(batch.n_id % 3 == 0)


def test_what_is_not_per_node_or_edge_comes_with_every_batch() -> None:
    data = plain()
    data.name, data.classes, data.scale = "toy", ["a", "b"], torch.tensor(2.0)
    data.means = torch.rand(8)
    with make(data) as loader:
        for batch in loader:
            assert batch.name == "toy" and batch.classes == ["a", "b"]
            assert batch.scale.equal(data.scale) and batch.means.equal(data.means)
    several = typed()
    several.name = "toy"
    several["tag"].vocabulary = ["x", "y"]
    several["paper", "has", "tag"].note = "kept"
    with make(several, input_nodes="paper") as loader:
        batch = loader.peek()
    assert batch.name == "toy" and batch["tag"].vocabulary == ["x", "y"] and batch["paper", "has", "tag"].note == "kept"


def test_reversed_types_of_out_sampling() -> None:
    data = typed()
    with make(data, input_nodes="paper", edge_dir="out", with_edge=True) as loader:
        for batch in loader:
            assert set(batch.edge_types) == {("paper", "rev_on", "tag"), ("paper", "cites", "paper"), ("tag", "rev_has", "paper")}
            store = batch["tag", "rev_has", "paper"]
            ends = torch.stack([batch["paper"].n_id[store.edge_index[1]], batch["tag"].n_id[store.edge_index[0]]])
            assert ends.equal(data["paper", "has", "tag"].edge_index[:, store.e_id])


def test_wide_rows_and_rows_without_columns() -> None:
    data = plain()
    data.x, data.empty, data.grid = torch.rand(100, 777), torch.empty(100, 0), torch.rand(100, 2, 3)
    with make(data) as loader:
        for batch in loader:
            assert batch.x.equal(data.x[batch.n_id]) and batch.grid.equal(data.grid[batch.n_id])
            assert batch.empty.shape == (batch.num_nodes, 0)


def test_a_non_contiguous_tensor_is_read_as_what_it_shows() -> None:
    data = plain()
    data.x = torch.rand(8, 100).t()
    with make(data) as loader, make(data.clone().contiguous()) as other:
        for left, right in zip(loader, other, strict=True):
            same(left, right)

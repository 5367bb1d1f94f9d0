"""Labels of every kind, kept bit for bit: of several tasks, missing ones, types without any, labels of edges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

from gnnkit import BuildOptions, Colocated, GraphLoader, GraphStore
from gnnkit.distributed import reverse_edge_type
from gnnkit.errors import PlanError
from tests.helpers.graphs import homogeneous_source, random_edges, stored

CITES, ON, HAS = ("paper", "cites", "paper"), ("tag", "on", "paper"), ("paper", "has", "tag")
SIZES = {"paper": 60, "tag": 20, "venue": 10}
# Two NaNs of different bits: a missing label is not to be rewritten, not even into another NaN.
PAYLOAD = np.array([0x7FC00000, 0x7FC12345], np.uint32).view(np.float32)


def labelled() -> HeteroData:
    """Several tasks with missing ones (paper), whole numbers with -1 (tag), no labels (venue); labels of edges of either kind."""
    rng, data = np.random.default_rng(0), HeteroData()
    tasks = rng.random((60, 5)).astype(np.float32)
    tasks[rng.random((60, 5)) < 0.5] = PAYLOAD[0]
    tasks[::7, 2] = PAYLOAD[1]
    data["paper"].y, data["paper"].x = torch.from_numpy(tasks), torch.from_numpy(rng.random((60, 3)).astype(np.float32))
    data["tag"].y = torch.from_numpy(rng.integers(-1, 4, 20))
    data["tag"].num_nodes, data["venue"].x = 20, torch.rand(10, 2)
    for edge_type in (CITES, ON, HAS, ("paper", "in", "venue")):
        ends = SIZES[edge_type[0]], SIZES[edge_type[2]]
        data[edge_type].edge_index = torch.from_numpy(random_edges(rng, *ends, 150))
    several = rng.standard_normal((150, 2))
    several[::3] = np.nan
    data[CITES].y, data[ON].y = torch.from_numpy(several), torch.from_numpy(rng.integers(-1, 2, 150).astype(np.int8))
    data[ON].edge_attr = torch.rand(150, 4)
    return data


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def check(loader: Any, data: HeteroData, edge_dir: str = "in") -> None:
    seen = set()
    for batch in loader:
        for node_type in data.node_types:
            assert ("y" in batch[node_type]) == ("y" in data[node_type])
            if "y" in data[node_type]:
                expected = data[node_type].y[batch[node_type].n_id]
                assert batch[node_type].y.dtype == expected.dtype and batch[node_type].y.shape == expected.shape
                assert raw(batch[node_type].y) == raw(expected)
                seen.add(node_type)
        for edge_type in data.edge_types:
            shown = batch[edge_type if edge_dir == "in" else reverse_edge_type(edge_type)]
            assert ("y" in shown) == ("y" in data[edge_type])
            if "y" in data[edge_type]:
                expected = data[edge_type].y[shown.e_id]
                assert shown.y.dtype == expected.dtype and shown.y.shape == expected.shape and raw(shown.y) == raw(expected)
                if len(shown.e_id):
                    seen.add(edge_type)
        assert "edge_label" not in batch.to_dict()
    assert seen == {"paper", "tag", CITES, ON}


OPTIONS: dict[str, Any] = {"num_neighbors": [3, 3], "batch_size": 16, "progress": False, "input_nodes": "paper", "with_edge": True}


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize(
    "build",
    [
        {},
        {"num_parts": 3, "partition": "random", "feature_dtype": "quint8", "cache_ratio": 0.2},
        {"num_parts": 2, "partition": "ldg", "feature_dtype": "bfloat16", "weight": "edge_weight"},
    ],
    ids=lambda build: str(build.get("feature_dtype")),
)
def test_stores_of_every_kind_keep_labels(build: dict[str, Any], edge_dir: Any, tmp_path: Path) -> None:
    from gnnkit.datasets import PyGSource

    data = labelled()
    data[CITES].edge_weight = torch.rand(150)
    store = stored(PyGSource(data), tmp_path / "store", BuildOptions(**build, edge_dir=edge_dir, with_edge=True))
    with GraphLoader.from_store(store.path, backend="inprocess", **OPTIONS) as loader:
        check(loader, data, edge_dir)


@pytest.mark.slow
def test_graphs_in_memory_keep_labels_in_every_backend() -> None:
    data = labelled()
    with GraphLoader.from_pyg(data, backend="inprocess", **OPTIONS) as loader:
        check(loader, data)
        for backend in (Colocated(1), GraphStore(1)):
            with loader.for_split("paper", backend=backend) as other:
                check(other, data)


def test_labels_of_edges_of_a_homogeneous_graph(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    y = rng.random((90, 2)).astype(np.float32)
    y[::2] = PAYLOAD[1]
    source = homogeneous_source(random_edges(rng, 30, 30, 90), 30, edge_arrays={"y": y}, x=rng.random((30, 2)).astype(np.float32))
    options: dict[str, Any] = {"num_neighbors": [4], "batch_size": 10, "progress": False, "input_nodes": None, "store_dir": tmp_path}
    with GraphLoader.from_source(source, feature_dtype="quint8", backend="inprocess", **options) as loader:
        for batch in loader:
            assert raw(batch.y) == raw(torch.from_numpy(y)[batch.e_id]) and len(batch.e_id)


def test_one_name_for_nodes_and_edges_of_a_homogeneous_graph_is_refused(tmp_path: Path) -> None:
    y = np.zeros(4, np.int64)
    source = homogeneous_source(np.array([[0, 1, 2, 3], [1, 2, 3, 0]]), 4, edge_arrays={"y": y}, y=y)
    with pytest.raises(PlanError, match="nodes and edges of a homogeneous graph both have an array called 'y'"):
        stored(source, tmp_path / "store", BuildOptions())


def test_whole_labels_of_a_part_of_the_face_of_graphlearn_torch(tmp_path: Path) -> None:
    """``DistDataset.node_labels``: [n, K] with the bits of what is missing, [n, 1] as [n]; no entry for types without labels."""
    from gnnkit.datasets import PyGSource
    from gnnkit.distributed import DistDataset

    data = labelled()
    data["tag"].y = data["tag"].y[:, None]
    found = DistDataset.from_store(stored(PyGSource(data), tmp_path / "store", BuildOptions(3, "random"))).node_labels
    assert isinstance(found, dict) and set(found) == {"paper", "tag"}
    assert raw(found["paper"]) == raw(data["paper"].y) and found["tag"].equal(data["tag"].y.view(-1))

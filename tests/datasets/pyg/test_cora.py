"""The Cora that ships is PyG's, bit for bit."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.utils import coalesce, contains_self_loops, is_undirected

from gnnkit import shipped
from gnnkit.datasets import cora
from gnnkit.datasets.citations import read_cora
from gnnkit.errors import DatasetError

# Digests of the arrays that torch_geometric.io.read_planetoid_data gives for Planetoid's own files.
PLANETOID = {
    "edge_index": "299cb541efef8bc7bdf70e07e44b206c5ce6419ab16e878cb585acd5a695b459",
    "test_mask": "ec05c123cc125ff38ad3963cba5d85415a2e7b125dc68064bbf65fb0661644e6",
    "train_mask": "b211325c561d6f73f978a4b0f3d44571c58eb70ca55a2aa27b9d4988344476c1",
    "val_mask": "96c8f5dc197fc3c014b3d655f1c28d0d276221e867ca01d64f74edb39cfb7173",
    "x": "f0faab5177bcc12f5688f042c8e0ed24ffb9baa8efc3ae7cde440d42524c9075",
    "y": "d0018d7ffd314eb25a4904973f2c7eb1b7be135d668de42d453714724f8e9d03",
}


def test_equal_to_planetoid() -> None:
    data = cora()
    assert {key: hashlib.sha256(data[key].numpy().tobytes()).hexdigest() for key in data.keys()} == PLANETOID  # noqa: SIM118


def test_facts() -> None:
    data = cora()
    assert list(data.x.shape) == [2708, 1433] and data.x.dtype == torch.float32
    assert data.x.unique().tolist() == [0.0, 1.0]
    assert list(data.edge_index.shape) == [2, 10556] and data.edge_index.dtype == torch.int64
    assert is_undirected(data.edge_index) and not contains_self_loops(data.edge_index)
    assert torch.equal(coalesce(data.edge_index, sort_by_row=False), data.edge_index)
    assert data.y.bincount().tolist() == [351, 217, 418, 818, 426, 298, 180]
    assert [int(data[f"{split}_mask"].sum()) for split in ("train", "val", "test")] == [140, 500, 1000]
    assert data.y[data.train_mask].bincount().tolist() == [20] * 7


def test_calls_do_not_share_memory() -> None:
    first = cora()
    first.x.zero_()
    assert cora().x.sum() > 0


@pytest.mark.parametrize("damage", ["missing", "truncated", "garbage", "incomplete"])
def test_a_damaged_file_is_an_error(tmp_path: Path, damage: str) -> None:
    content = (shipped.shipped_data_dir() / "cora" / "cora.npz").read_bytes()
    path = tmp_path / "cora.npz"
    if damage == "truncated":
        path.write_bytes(content[:40_000])
    elif damage == "garbage":
        path.write_bytes(b"garbage")
    elif damage == "incomplete":
        np.savez(path, y=np.zeros(3))
    with pytest.raises(DatasetError, match="cora.npz"):
        read_cora(path)


def test_the_data_of_an_installed_package_comes_first_and_may_be_missing(tmp_path: Path) -> None:
    """The module looks where it lies: here a copy of it lies elsewhere."""
    (tmp_path / "gnnkit").mkdir()
    copy = shutil.copy(shipped.__file__, tmp_path / "gnnkit" / "shipped.py")
    spec = importlib.util.spec_from_file_location("shipped_elsewhere", copy)
    assert spec is not None and spec.loader is not None
    elsewhere = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(elsewhere)
    with pytest.raises(DatasetError, match="neither"):
        elsewhere.shipped_data_dir()
    for folder in (tmp_path, tmp_path / "gnnkit"):  # of a checkout, of a package
        (folder / "data" / "cora").mkdir(parents=True)
        assert elsewhere.shipped_data_dir() == folder / "data"


def test_what_is_shipped() -> None:
    assert shipped.is_shipped(shipped.sample_root() / "ogbn_products")
    assert not shipped.is_shipped(Path("/"))

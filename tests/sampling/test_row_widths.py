"""Rows of every width arrive as they are: one line of the cache or many, within what stays in the caches and past them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import gnnkit
from gnnkit import GraphLoader

# From a byte to more than there is a loop of its own for; lines of the cache have 64.
WIDTHS = [1, 7, 63, 64, 65, 100, 127, 128, 129, 191, 192, 200, 256, 320, 321, 384, 400, 448, 449, 511, 512, 513, 700, 2048, 2049, 3000]
# So many rows of most of these widths are more than 8 MB, which is written past the caches.
NUM_NODES = 40_000


def graph(width: int, num_nodes: int) -> Data:
    rng = np.random.default_rng(width)
    x = torch.from_numpy(rng.integers(0, 256, (num_nodes, width), dtype=np.uint8))
    ends = torch.from_numpy(rng.integers(0, num_nodes, (2, num_nodes)))
    return Data(x=x, edge_index=ends, y=torch.arange(num_nodes))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("num_nodes", [50, NUM_NODES])
def test_rows_are_those_of_the_graph(width: int, num_nodes: int) -> None:
    data = graph(width, num_nodes)
    with GraphLoader.from_pyg(data, num_neighbors=[1], batch_size=num_nodes, shuffle=True) as loader:
        for _ in range(2):  # the second batch is written over the first one
            batch = next(iter(loader))
            assert torch.equal(batch.x, data.x[batch.n_id]) and torch.equal(batch.y, batch.n_id)
            del batch


@pytest.mark.parametrize("width", [4, 260, 400, 600])
@pytest.mark.parametrize("backend", ["inprocess", "colocated"])
def test_rows_of_several_parts(width: int, backend: str, tmp_path: Path) -> None:
    data = graph(width, NUM_NODES)
    store = gnnkit.partition(data, 3, out=tmp_path / "store", partition="random")
    with GraphLoader.from_store(store.path, num_neighbors=[1], batch_size=NUM_NODES, backend=backend) as loader:
        batch = next(iter(loader))
        assert torch.equal(batch.x, data.x[batch.n_id])

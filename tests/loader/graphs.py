"""The graphs that loaders are tried on, and what is asked of an epoch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

from gnnkit import GraphLoader
from tests.helpers.graphs import random_edges

NUM_NODES = 100


def plain(num_nodes: int = NUM_NODES, num_edges: int = 700) -> Data:
    """Homogeneous, with features, labels, edge features and splits of 60, 20 and 20 per cent."""
    rng = np.random.default_rng(0)
    place = torch.arange(num_nodes) % 5
    return Data(
        x=torch.from_numpy(rng.standard_normal((num_nodes, 8)).astype(np.float32)),
        edge_index=torch.from_numpy(random_edges(rng, num_nodes, num_nodes, num_edges)),
        edge_attr=torch.from_numpy(rng.standard_normal((num_edges, 2)).astype(np.float32)),
        y=torch.arange(num_nodes) % 4,
        train_mask=place < 3,
        val_mask=place == 3,
        test_mask=place == 4,
    )


def typed() -> HeteroData:
    """Two node types; "tag" has neither features nor labels."""
    rng, data = np.random.default_rng(1), HeteroData()
    data["paper"].x, data["paper"].y = torch.rand(60, 4), torch.arange(60) % 3
    data["tag"].num_nodes = 20
    for edge_type, ends in (("tag", "on", "paper"), (20, 60)), (("paper", "cites", "paper"), (60, 60)), (("paper", "has", "tag"), (60, 20)):
        data[edge_type].edge_index = torch.from_numpy(random_edges(rng, *ends, 150))
    return data


def make(data: Any = None, **options: Any) -> GraphLoader:
    """A small loader, silent, one thread; on all nodes, where nothing else is said."""
    if "edge_label_index" not in options:
        options.setdefault("input_nodes", None)
    options = {"num_neighbors": [3, 2], "batch_size": 7, "progress": False, "backend": "inprocess", **options}
    return GraphLoader.from_pyg(plain() if data is None else data, **options)


def seeds(batches: Iterable[Any]) -> list[int]:
    """Positions of all seeds, in the order in which they came."""
    return [int(i) for batch in batches for i in batch.input_id]

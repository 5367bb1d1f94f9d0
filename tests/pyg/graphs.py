"""The graphs that the tests of ``gnnkit.pyg`` share; features are the nodes' ids, so that batches show what they hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

from tests.helpers.graphs import random_edges

LIKES, LIKED = ("user", "likes", "item"), ("item", "liked", "user")


def plain(**more: Any) -> Data:
    """60 nodes and 300 edges, whose attributes are their ids."""
    edge_index = torch.from_numpy(random_edges(np.random.default_rng(0), 60, 60, 300))
    return Data(x=torch.arange(60.0).view(-1, 1), edge_index=edge_index, edge_attr=torch.arange(300), **more)


def plain_with_times() -> Data:
    """The same with times and weights."""
    return plain(time=torch.arange(60), weight=torch.arange(300) % 7, edge_time=torch.arange(300))


def typed() -> HeteroData:
    """30 users, 40 items and 150 edges, both ways."""
    data = HeteroData()
    data["user"].x, data["item"].x = torch.arange(30.0).view(-1, 1), torch.arange(40.0).view(-1, 1)
    likes = torch.from_numpy(random_edges(np.random.default_rng(1), 30, 40, 150))
    data[LIKES].edge_index, data[LIKED].edge_index = likes, likes.flip(0)
    return data


def typed_with_times() -> HeteroData:
    """The same with times of nodes."""
    data = typed()
    data["user"].time, data["item"].time = torch.arange(30), torch.arange(40)
    return data

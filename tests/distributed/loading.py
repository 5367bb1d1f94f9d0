"""The graphs that distributed loaders are tried on, and what their batches are compared with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

import gnnkit
from gnnkit import Store
from gnnkit.datasets import PyGSource
from gnnkit.distributed import (
    DistDataset,
    GraphStoreInfo,
    RemoteDistDataset,
    init_client,
    message_passing_to_negative_label,
    message_passing_to_positive_label,
    shutdown_client,
)

DEADLINE_S = 120
NUM_NODES = 40
TO = ("node", "to", "node")
POSITIVE, NEGATIVE = message_passing_to_positive_label(TO), message_passing_to_negative_label(TO)


def ring(num_nodes: int = NUM_NODES) -> Data:
    """Node v leads to v + 1 and v + 2; features and labels are the ids, of nodes and edges."""
    v = torch.arange(num_nodes)
    edges = torch.stack([v.repeat(2), torch.cat([(v + 1) % num_nodes, (v + 2) % num_nodes])])
    return Data(x=v.float()[:, None], y=v.clone(), edge_index=edges, edge_attr=torch.arange(2.0 * num_nodes)[:, None], num_nodes=num_nodes)


def typed_ring(num_nodes: int = NUM_NODES) -> HeteroData:
    """User v leads to items v + 1 and v + 2, item v to items v + 2 and v + 3; features are ids, of different widths."""
    v, data = torch.arange(num_nodes), HeteroData()
    for node_type, dim in (("user", 5), ("item", 3)):
        data[node_type].x, data[node_type].y = v.float()[:, None].repeat(1, dim), v.clone()
    for edge_type, steps, dim in ((("user", "u2i", "item"), (1, 2), 2), (("item", "i2i", "item"), (2, 3), 4)):
        data[edge_type].edge_index = torch.stack([v.repeat(2), torch.cat([(v + step) % num_nodes for step in steps])])
        data[edge_type].edge_attr = torch.arange(2.0 * num_nodes)[:, None].repeat(1, dim)
    return data


def labelled(num_nodes: int = NUM_NODES) -> HeteroData:
    """The ring, stored typed because of label edges that lead half around it."""
    plain, data = ring(num_nodes), HeteroData()
    v = torch.arange(num_nodes)
    data["node"].x, data["node"].y = plain.x, plain.y
    data[TO].edge_index, data[TO].edge_attr = plain.edge_index, plain.edge_attr
    for edge_type, step in ((POSITIVE, 20), (NEGATIVE, 21)):
        data[edge_type].edge_index = torch.stack([v, (v + step) % num_nodes])
    return data


def stored(data: Any, folder: Path, num_parts: int = 1, **options: Any) -> Store:
    """A store of a graph in ``folder``."""
    return gnnkit.partition(data, num_parts, out=folder / "store", **options)


def dataset_of(data: Any, folder: Path, num_parts: int = 1, part: int = 0, **options: Any) -> DistDataset:
    """A dataset of a store of a graph."""
    return DistDataset.from_store(stored(data, folder, num_parts, **options), part)


@contextmanager
def serving(*stores: Store) -> Iterator[list[Any]]:
    """Two servers of each store, which are there."""
    with ExitStack() as stack:
        running = [stack.enter_context(gnnkit.serve(store, 2, progress=False)) for store in stores]
        for servers in running:
            servers.wait(DEADLINE_S)
        yield running


@contextmanager
def client(address: str) -> Iterator[RemoteDistDataset]:
    """This process as the only client of two servers, with their graph."""
    init_client(2, 1, 0, address, 0)
    try:
        yield RemoteDistDataset(GraphStoreInfo(2, 1), 0)
    finally:
        shutdown_client()


def pygs_own(batch: Any) -> Any:
    """A copy of a batch without graphlearn-torch's names, each of which must be another word for one of PyG's."""
    batch, is_typed = batch.clone(), isinstance(batch, HeteroData)
    for store in batch.stores:
        for theirs, pygs in (("node", "n_id"), ("edge", "e_id")):
            assert (theirs in store) == (pygs in store)
            if theirs in store:
                assert torch.equal(store[theirs], store[pygs])
                del store[theirs]
        if "input_id" in store:
            assert torch.equal(store.batch, store.n_id[: store.batch_size])
            del store["batch"]
    if is_typed:
        assert batch.num_sampled_nodes == batch.num_sampled_nodes_dict
        assert not batch.num_sampled_edges or batch.num_sampled_edges == batch.num_sampled_edges_dict
        del batch["num_sampled_nodes"], batch["num_sampled_edges"]
    return batch


def seeds_of(batches: Any, node_type: str | None = None) -> list[int]:
    """The seeds' ids, in the order in which they came."""
    return [int(seed) for batch in batches for seed in (batch if node_type is None else batch[node_type]).batch]


def by_parity(data: Data) -> PyGSource:
    """A graph that comes in two parts: even nodes in part 0, odd ones in part 1."""
    return PyGSource(data, parts={"node": np.arange(data.num_nodes) % 2})

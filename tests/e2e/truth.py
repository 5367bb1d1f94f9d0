"""What a dataset holds, told by somebody else: OGB's own reader and PyG's transforms; and a batch compared with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import ToUndirected

from tests.datasets.reading import ask_ogb

# What ogb calls it, and what it is called in a batch.
RENAMED = {"node_feat": "x", "edge_feat": "edge_attr"}


@dataclass
class Truth:
    """A typed graph in memory; a homogeneous one has a type called "node" and edges ("node", "to", "node").

    Attributes:
        homogeneous: Whether batches are ``Data``.
        num_nodes: ``{node type: count}``.
        node_rows: ``{node type: {name: [n, ...]}}``.
        edge_index: ``{edge type: int64 [2, m]}``.
        edge_rows: ``{edge type: {name: [m, ...]}}``.
        splits: ``{split: int64 [k]}`` of the one type that has them.
        input_type: That type.
        has_sums: Whether edge features are sums of several edges', which depend on the order of adding in their last digit.
    """

    homogeneous: bool
    num_nodes: dict[str, int]
    node_rows: dict[str, dict[str, NDArray[Any]]]
    edge_index: dict[tuple[str, str, str], NDArray[Any]]
    edge_rows: dict[tuple[str, str, str], dict[str, NDArray[Any]]]
    splits: dict[str, NDArray[Any]] = field(default_factory=dict)
    input_type: str = "node"
    has_sums: bool = False


def told_by_ogb(name: str, tree: Path, scratch: Path) -> Truth:
    """Has ``NodePropPredDataset`` read a copy of the tree."""
    answer = ask_ogb(name, tree, scratch)
    if name == "ogbn-mag":
        return _typed(answer)
    graph, labels = answer.graph, answer.labels
    rows = {RENAMED.get(key, key): value for key, value in graph.items() if value is not None and key not in ("edge_index", "num_nodes")}
    edge_type = ("node", "to", "node")
    edge_rows = {key: rows.pop(key) for key in ("edge_attr",) if key in rows}
    rows["y"] = _labels(labels)
    return Truth(
        True, {"node": graph["num_nodes"]}, {"node": rows}, {edge_type: graph["edge_index"]}, {edge_type: edge_rows}, answer.splits
    )


def _typed(answer: Any) -> Truth:
    graph = answer.graph
    node_rows: dict[str, dict[str, NDArray[Any]]] = {node_type: {} for node_type in graph["num_nodes_dict"]}
    for key, name in (("node_feat_dict", "x"), ("node_year", "node_year")):
        for node_type, values in graph[key].items():
            node_rows[node_type][name] = values
    for node_type, values in answer.labels.items():
        node_rows[node_type]["y"] = _labels(values)
    edge_rows = {edge_type: {"edge_reltype": values} for edge_type, values in graph["edge_reltype"].items()}
    splits = {split: ids["paper"] for split, ids in answer.splits.items()}
    return Truth(False, graph["num_nodes_dict"], node_rows, graph["edge_index_dict"], edge_rows, splits, "paper")


def _labels(labels: NDArray[Any]) -> NDArray[np.int64]:
    values = np.nan_to_num(labels, nan=-1).astype(np.int64)
    return values[:, 0] if values.shape[1] == 1 else values


def made_undirected(truth: Truth) -> Truth:
    """The same graph after PyG's ``ToUndirected``."""
    data: Any = Data() if truth.homogeneous else HeteroData()
    for node_type, count in truth.num_nodes.items():
        (data if truth.homogeneous else data[node_type]).num_nodes = count
    for edge_type, edge_index in truth.edge_index.items():
        store = data if truth.homogeneous else data[edge_type]
        store.edge_index = torch.from_numpy(edge_index)
        for name, values in truth.edge_rows[edge_type].items():
            store[name] = torch.from_numpy(values)
    data = ToUndirected()(data)
    types = [("node", "to", "node")] if truth.homogeneous else data.edge_types
    names = {name for rows in truth.edge_rows.values() for name in rows}
    edge_index, edge_rows = {}, {}
    for edge_type in types:
        store = data if truth.homogeneous else data[edge_type]
        edge_index[edge_type] = store.edge_index.numpy()
        edge_rows[edge_type] = {name: store[name].numpy() for name in names}
    return Truth(truth.homogeneous, truth.num_nodes, truth.node_rows, edge_index, edge_rows, truth.splits, truth.input_type, True)


def check_batch(batch: Any, truth: Truth, split: str) -> None:
    """Asserts that every row, edge and id in a batch is the one that the dataset has.

    The first hop must have taken all neighbours; it is compared with all edges that end in a seed.

    Args:
        batch: Sampled with ``with_edge=True``.
        truth: The dataset.
        split: Where the seeds are from.
    """
    assert isinstance(batch, Data if truth.homogeneous else HeteroData)
    seeds = batch if truth.homogeneous else batch[truth.input_type]
    assert np.array_equal(seeds.n_id[: seeds.batch_size].numpy(), truth.splits[split][seeds.input_id.numpy()])
    if not truth.homogeneous:
        assert set(batch.node_types) == set(truth.num_nodes) and set(batch.edge_types) == set(truth.edge_index)
    n_id = {}
    for node_type, rows in truth.node_rows.items():
        store = batch if truth.homogeneous else batch[node_type]
        n_id[node_type] = ids = store.n_id.numpy()
        assert len(np.unique(ids)) == len(ids) == sum(store.num_sampled_nodes)
        for name, values in rows.items():
            _check_rows(store, name, values[ids], exact=True)
        assert ("x" in store) == ("x" in rows) and ("y" in store) == ("y" in rows)
    for edge_type, edge_index in truth.edge_index.items():
        store = batch if truth.homogeneous else batch[edge_type]
        e_id = store.e_id.numpy()
        source, target = store.edge_index.numpy()
        ends = np.stack([n_id[edge_type[0]][source], n_id[edge_type[2]][target]])
        assert np.array_equal(edge_index[:, e_id], ends)
        for name, values in truth.edge_rows[edge_type].items():
            _check_rows(store, name, values[e_id], exact=not truth.has_sums)
        if edge_type[2] == truth.input_type:
            first = e_id[: store.num_sampled_edges[0]]
            wanted = np.flatnonzero(np.isin(edge_index[1], seeds.n_id[: seeds.batch_size].numpy()))
            assert np.array_equal(np.sort(first), wanted)


def _check_rows(store: Any, name: str, wanted: NDArray[Any], *, exact: bool) -> None:
    got = store[name].numpy()
    assert got.dtype == wanted.dtype and got.shape == wanted.shape, f"{name}: {got.dtype} {got.shape}, {wanted.dtype} {wanted.shape}"
    np.testing.assert_allclose(got, wanted, rtol=0 if exact else 1e-6, err_msg=name)

"""Reading sources whole, and asking OGB's own reader for the same."""

from __future__ import annotations

import os
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.datasets import GraphSource
from gnnkit.vendor import ogb as vendor_ogb


def read_edges(source: GraphSource, edge_type: tuple[str, str, str]) -> NDArray[np.int64]:
    chunks = list(source.edge_chunks(edge_type))
    edges = np.concatenate([np.empty((2, 0), np.int64), *chunks], axis=1)
    assert all(chunk.dtype == np.int64 for chunk in chunks)
    assert edges.shape[1] == source.schema.edge_types[edge_type].num_edges
    return edges


def read_node_array(source: GraphSource, node_type: str, name: str) -> NDArray[Any]:
    table = source.schema.node_types[node_type]
    return _checked(list(source.node_array_chunks(node_type, name)), table.num_nodes, table.arrays[name])


def read_edge_array(source: GraphSource, edge_type: tuple[str, str, str], name: str) -> NDArray[Any]:
    table = source.schema.edge_types[edge_type]
    return _checked(list(source.edge_array_chunks(edge_type, name)), table.num_edges, table.arrays[name])


def _checked(chunks: list[NDArray[Any]], num_rows: int, spec: Any) -> NDArray[Any]:
    """What was streamed must be what the schema says."""
    values = np.concatenate([np.empty((0, *spec.row_shape), spec.numpy_dtype), *chunks])
    assert all(chunk.dtype == spec.numpy_dtype for chunk in chunks)
    assert values.shape == (num_rows, *spec.row_shape)
    return values


def read_everything(source: GraphSource) -> dict[str, NDArray[Any]]:
    """Reads all there is to read: ``{"paper.x": ...}``."""
    found: dict[str, NDArray[Any]] = {}
    for node_type, table in source.schema.node_types.items():
        for name in table.arrays:
            found[f"{node_type}.{name}"] = read_node_array(source, node_type, name)
    for edge_type, edges in source.schema.edge_types.items():
        found["/".join(edge_type)] = read_edges(source, edge_type)
        for name in edges.arrays:
            found[f"{edge_type}.{name}"] = read_edge_array(source, edge_type, name)
    for node_type, splits in source.splits.items():
        for split, ids in splits.items():
            found[f"{node_type}/{split}"] = ids
    return found


@dataclass
class OgbAnswer:
    """What ``NodePropPredDataset`` makes of a tree."""

    graph: dict[str, Any]
    labels: Any
    splits: dict[str, Any]


def ask_ogb(name: str, tree: Path, scratch: Path) -> OgbAnswer:
    """Has ``ogb`` read a copy of the tree (it writes into what it reads)."""
    shutil.copytree(tree, scratch / name.replace("-", "_"))
    vendor_ogb.evaluator(name, "node")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ogb.nodeproppred import NodePropPredDataset

        dataset = NodePropPredDataset(name, root=os.fspath(scratch))
        return OgbAnswer(dataset.graph, dataset.labels, dataset.get_idx_split())

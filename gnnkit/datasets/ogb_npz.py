"""OGB's binary layout (ogbn-papers100M, ogbl-vessel): ``raw/data.npz`` and, where nodes have labels, ``raw/node-label.npz``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.datasets.npz_member import NpzMember, npz_members
from gnnkit.datasets.ogb_source import EdgeTable, NodeTable, OgbSource
from gnnkit.datasets.ogb_table import RESTORE_HINT
from gnnkit.datasets.ogb_tree import OgbTree
from gnnkit.datasets.ogb_values import check_ids, class_ids
from gnnkit.datasets.registry import OgbInfo
from gnnkit.errors import DatasetError
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE, HOMOGENEOUS_NODE_TYPE, ArraySpec

_COUNTS = ("num_nodes_list", "num_edges_list")
_NAMES = {"node_feat": "x", "edge_feat": "edge_attr"}


def open_binary_layout(info: OgbInfo, tree: OgbTree) -> OgbSource:
    """Opens a tree of ``.npz`` files, reading no more than headers and counts.

    Raises:
        DatasetError: A file or array is missing or damaged, or they contradict each other.
    """
    if info.is_hetero or info.add_inverse_edge:
        raise DatasetError(f"gnnkit does not know the binary layout of {info.name}", "pip install -U gnnkit")
    data_path, label_path = tree.raw / "data.npz", tree.raw / "node-label.npz"
    members = npz_members(data_path)
    for name in ("edge_index", *_COUNTS):
        if name not in members:
            raise DatasetError(f"{data_path} has no array {name!r}", RESTORE_HINT)
    num_nodes, num_edges = (_single_count(members[name]) for name in _COUNTS)
    edge_index = members["edge_index"]
    if edge_index.shape != (2, num_edges) or edge_index.dtype.kind not in "iu":
        raise DatasetError(
            f"{data_path}: edge_index is {edge_index.dtype} {list(edge_index.shape)} where integers [2, {num_edges}] must be", RESTORE_HINT
        )
    nodes, edges = NodeTable(num_nodes), EdgeTable(num_edges, partial(_edges, edge_index, num_nodes))
    for name, member in members.items():
        if name in ("edge_index", *_COUNTS):
            continue
        if not name.startswith(("node_", "edge_")):
            raise DatasetError(f"{data_path}: array {name!r} belongs neither to nodes nor to edges", RESTORE_HINT)
        table: NodeTable | EdgeTable = nodes if name.startswith("node_") else edges
        _check_rows(member, num_nodes if table is nodes else num_edges)
        table.arrays[_NAMES.get(name, name)] = (ArraySpec(member.dtype.newbyteorder("=").name, member.shape[1:]), partial(_native, member))
    is_node = info.kind == "node"
    if is_node:
        nodes.arrays["y"] = _labels_of(info, label_path, num_nodes)
    return OgbSource(
        info,
        tree,
        nodes={HOMOGENEOUS_NODE_TYPE: nodes},
        edges={HOMOGENEOUS_EDGE_TYPE: edges},
        splits={HOMOGENEOUS_NODE_TYPE: tree.split} if is_node else {},
        files=[data_path, label_path] if is_node else [data_path],
    )


def _single_count(member: NpzMember) -> int:
    if int(np.prod(member.shape, dtype=np.int64)) != 1 or member.dtype.kind not in "iu":
        raise DatasetError(f"{member.path}: {member.name} is {member.dtype} {list(member.shape)} where one count must be", RESTORE_HINT)
    count = int(member.load().reshape(-1)[0])
    if count < 0:
        raise DatasetError(f"{member.path}: {member.name} is {count}", RESTORE_HINT)
    return count


def _check_rows(member: NpzMember, num_rows: int) -> None:
    if not member.shape or member.shape[0] != num_rows or member.dtype.kind not in "iufb":
        raise DatasetError(
            f"{member.path}: {member.name} is {member.dtype} {list(member.shape)} where numbers in {num_rows} rows must be", RESTORE_HINT
        )


def _labels_of(info: OgbInfo, path: Path, num_nodes: int) -> tuple[ArraySpec, partial[Iterator[NDArray[Any]]]]:
    members = npz_members(path)
    if "node_label" not in members:
        raise DatasetError(f"{path} has no array 'node_label'", RESTORE_HINT)
    member = members["node_label"]
    _check_rows(member, num_nodes)
    if member.shape[1:] not in ((info.num_tasks,), () if info.num_tasks == 1 else (info.num_tasks,)):
        raise DatasetError(f"{path}: node_label is {list(member.shape)} where {info.name} has {info.num_tasks} labels a node", RESTORE_HINT)
    shape = () if info.num_tasks == 1 else (info.num_tasks,)
    return ArraySpec("int64", shape), partial(_labels, member, info)


def _native(member: NpzMember) -> Iterator[NDArray[Any]]:
    for rows in member.rows():
        yield rows.astype(rows.dtype.newbyteorder("="), copy=False)


def _labels(member: NpzMember, info: OgbInfo) -> Iterator[NDArray[np.int64]]:
    done = 0
    for rows in member.rows():
        yield class_ids(rows.reshape(len(rows), -1), info.num_classes, member.path, first_row=done)
        done += len(rows)


def _edges(member: NpzMember, num_nodes: int) -> Iterator[NDArray[np.int64]]:
    done = 0
    for source, target in member.pairs():
        check_ids(source, num_nodes, member.path, first_row=done, what="source node")
        check_ids(target, num_nodes, member.path, first_row=done, what="target node")
        done += len(source)
        yield np.stack([source, target]).astype(np.int64, copy=False)

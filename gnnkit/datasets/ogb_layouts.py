"""OGB's layouts on disk: ``.csv.gz`` tables of untyped and typed graphs, and the binary layout of the largest ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.datasets.npz_member import NpzMember, npz_members
from gnnkit.datasets.ogb_source import Chunks, EdgeTable, NodeTable, OgbSource, RangedOgbSource, Rows
from gnnkit.datasets.ogb_table import (
    RESTORE_HINT,
    CsvTable,
    check_ids,
    class_ids,
    open_table,
    parse_count,
    single_count,
    small_table,
    with_inverses,
)
from gnnkit.datasets.ogb_tree import OgbTree
from gnnkit.datasets.registry import OgbInfo
from gnnkit.errors import DatasetError
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE, HOMOGENEOUS_NODE_TYPE, ArraySpec, EdgeType, NodeType

# OGB-4: what a tree that ogb has not touched yet calls it.
_OLDER_NAMES = {"node_species": "species"}
# The edge array that numbers the relations of a typed graph.
_RELATION = "edge_reltype"


def open_csv_layout(info: OgbInfo, tree: OgbTree) -> OgbSource:
    """Opens a tree of ``.csv.gz`` files, reading no more than counts and the start of each file.

    Raises:
        DatasetError: A file is missing or damaged, or files contradict each other.
    """
    return _Typed(info, tree).source() if info.is_hetero else _Untyped(info, tree).source()


class _Reader:
    """The common base of both layouts: it turns files into tables, and records which files were used."""

    def __init__(self, info: OgbInfo, tree: OgbTree) -> None:
        self.info, self.tree = info, tree
        self.files: list[Path] = []

    def used(self, path: Path) -> Path:
        self.files.append(path)
        return path

    def node_table(self, num_nodes: int, folder: Path, label: Path | None, count_file: Path) -> NodeTable:
        """The arrays of one node type: features and additional files in ``folder``, labels in ``label``."""
        table = NodeTable(num_nodes)
        features = folder / "node-feat.csv.gz"
        if features.exists():
            table.arrays["x"] = self._array(features, num_nodes, count_file)
        if label is not None:
            table.arrays["y"] = self._labels(label, num_nodes, count_file)
        for name in self.info.node_files:
            path = next((p for p in (folder / f"{name}.csv.gz", folder / f"{_OLDER_NAMES.get(name, name)}.csv.gz") if p.exists()), None)
            if path is not None:
                table.arrays[name] = self._array(path, num_nodes, count_file)
            elif not self.info.is_hetero:
                raise DatasetError(f"{folder / name}.csv.gz is missing", RESTORE_HINT)
        return table

    def edge_table(self, folder: Path, num_sources: int, num_targets: int) -> EdgeTable:
        """The edges of one type and their arrays."""
        count_file = self.used(folder / "num-edge-list.csv.gz")
        rows = single_count(count_file)
        inverse = self.info.add_inverse_edge
        edges = CsvTable(self.used(folder / "edge.csv.gz"), 2, np.dtype(np.int64), rows, str(count_file))
        if not edges.path.exists():
            raise DatasetError(f"{edges.path} is missing", RESTORE_HINT)
        table = EdgeTable(rows * (1 + inverse), partial(_edges, edges, num_sources, num_targets, inverse=inverse))
        for name, file_name in (("edge_attr", "edge-feat"), *((name, name) for name in self.info.edge_files)):
            path = folder / f"{file_name}.csv.gz"
            if path.exists():
                spec, chunks = self._array(path, rows, count_file)
                table.arrays[name] = (spec, partial(_twice, chunks) if inverse else chunks)
            elif name != "edge_attr" and not self.info.is_hetero:
                raise DatasetError(f"{path} is missing", RESTORE_HINT)
        return table

    def _array(self, path: Path, num_rows: int, count_file: Path) -> tuple[ArraySpec, Chunks]:
        table = open_table(self.used(path), num_rows, str(count_file))
        return ArraySpec(table.dtype.name, (table.num_columns,)), table.rows

    def _labels(self, path: Path, num_rows: int, count_file: Path) -> tuple[ArraySpec, Chunks]:
        # As float64, so that the missing ones can be told; class numbers are far below 2 ** 53.
        table = open_table(self.used(path), num_rows, str(count_file), dtype=np.float64)
        if table.num_columns != self.info.num_tasks:
            message = f"{path} has {table.num_columns} labels a row where {self.info.name} has {self.info.num_tasks}"
            raise DatasetError(message, RESTORE_HINT)
        shape = () if self.info.num_tasks == 1 else (self.info.num_tasks,)
        return ArraySpec("int64", shape), partial(_labels, table, self.info.num_classes)


class _Untyped(_Reader):
    """``raw/{edge,node-feat,node-label,num-node-list,num-edge-list}.csv.gz`` and more."""

    def source(self) -> OgbSource:
        raw = self.tree.raw
        count_file = self.used(raw / "num-node-list.csv.gz")
        num_nodes = single_count(count_file)
        is_node = self.info.kind == "node"
        return OgbSource(
            self.info,
            self.tree,
            nodes={HOMOGENEOUS_NODE_TYPE: self.node_table(num_nodes, raw, raw / "node-label.csv.gz" if is_node else None, count_file)},
            edges={HOMOGENEOUS_EDGE_TYPE: self.edge_table(raw, num_nodes, num_nodes)},
            splits={HOMOGENEOUS_NODE_TYPE: self.tree.split} if is_node else {},
            files=self.files,
        )


class _Typed(_Reader):
    """``raw/relations/<source>___<relation>___<target>/``, ``raw/node-feat/<type>/``, ``raw/node-label/<type>/``."""

    def source(self) -> OgbSource:
        raw = self.tree.raw
        count_file = self.used(raw / "num-node-dict.csv.gz")
        counts = self._by_type(count_file)
        num_nodes = {node_type: parse_count(count_file, text) for node_type, text in counts.items()}
        is_node = self.info.kind == "node"
        labelled = self._flagged(raw / "nodetype-has-label.csv.gz", raw / "node-label") if is_node else []
        nodes = {
            node_type: self.node_table(
                count,
                raw / "node-feat" / node_type,
                raw / "node-label" / node_type / "node-label.csv.gz" if node_type in labelled else None,
                count_file,
            )
            for node_type, count in num_nodes.items()
        }
        edges = {
            edge_type: self.edge_table(raw / "relations" / "___".join(edge_type), num_nodes[edge_type[0]], num_nodes[edge_type[2]])
            for edge_type in self._edge_types(num_nodes)
        }
        split = self.tree.split
        splits = {key: split / key for key in self._flagged(split / "nodetype-has-split.csv.gz", split)} if is_node else {}
        for node_type in {*labelled, *splits} - set(num_nodes):
            message = f"{raw} has labels or a split for the node type {node_type!r}, which {count_file} does not know"
            raise DatasetError(message, RESTORE_HINT)
        relations = partial(_relations, {key: table.arrays.get(_RELATION) for key, table in edges.items()})
        return OgbSource(self.info, self.tree, nodes=nodes, edges=edges, splits=splits, files=self.files, relation_of=relations)

    def _edge_types(self, num_nodes: dict[NodeType, int]) -> list[EdgeType]:
        path = self.tree.raw / "triplet-type-list.csv.gz"
        if path.exists():
            rows = small_table(self.used(path))
        else:
            # PyG's OGB_MAG leaves the list out; the folders say the same.
            folder = self.tree.raw / "relations"
            rows = [entry.name.split("___") for entry in sorted(folder.iterdir()) if entry.is_dir()]
            path = folder
        for row in rows:
            if len(row) != 3 or row[0] not in num_nodes or row[2] not in num_nodes:
                raise DatasetError(f"{path}: {','.join(row)!r} is no relation between the node types {sorted(num_nodes)}", RESTORE_HINT)
        return [(row[0], row[1], row[2]) for row in rows]

    def _flagged(self, path: Path, folder: Path) -> list[NodeType]:
        """Node types that a file of flags marks; where it is left out (PyG's OGB_MAG), those that have a folder."""
        if path.exists():
            return [node_type for node_type, flag in self._by_type(self.used(path)).items() if flag.strip() in ("True", "1")]
        return sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []

    @staticmethod
    def _by_type(path: Path) -> dict[NodeType, str]:
        rows = small_table(path)
        if len(rows) != 2 or len(rows[0]) != len(rows[1]):
            raise DatasetError(f"{path} must have one line of node types and one of values, it has {len(rows)} lines", RESTORE_HINT)
        return dict(zip(rows[0], rows[1], strict=True))


def _edges(table: CsvTable, num_sources: int, num_targets: int, *, inverse: bool) -> Iterator[NDArray[np.int64]]:
    done = 0
    for columns in table.columns():
        source, target = columns
        check_ids(source, num_sources, table.path, first_row=done, what="source node")
        check_ids(target, num_targets, table.path, first_row=done, what="target node")
        done += len(source)
        yield with_inverses(source, target) if inverse else columns


def _relations(arrays: Mapping[EdgeType, tuple[ArraySpec, Chunks] | None]) -> dict[EdgeType, int]:
    """The number of each edge type's relation, which all of its edges bear; types without edges have none.

    Raises:
        DatasetError: A type's edges bear several, or none.
    """
    numbers: dict[EdgeType, int] = {}
    for edge_type, array in arrays.items():
        if array is None:
            raise DatasetError(f"the edges of {edge_type} have no {_RELATION}.csv.gz, so links cannot be told by edge type", RESTORE_HINT)
        found = {int(number) for rows in array[1]() for number in np.unique(rows)}
        if len(found) > 1:
            raise DatasetError(f"{_RELATION} of {edge_type} has several relations: {sorted(found)[:3]}", RESTORE_HINT)
        numbers |= dict.fromkeys([edge_type], *found) if found else {}
    return numbers


def _twice(chunks: Chunks) -> Iterator[NDArray[Any]]:
    """An edge and its inverse have the same features."""
    for rows in chunks():
        yield np.repeat(rows, 2, axis=0)


def _labels(table: CsvTable, num_classes: int) -> Iterator[NDArray[np.int64]]:
    done = 0
    for rows in table.rows():
        yield class_ids(rows, num_classes, table.path, first_row=done)
        done += len(rows)


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
    nodes, edges = NodeTable(num_nodes), EdgeTable(num_edges, partial(_edges_of_ogb_npz, edge_index, num_nodes))
    ranges: dict[tuple[NodeType | EdgeType, str | None], Rows] = {
        (HOMOGENEOUS_EDGE_TYPE, None): partial(_edge_range, edge_index, num_nodes)
    }
    for name, member in members.items():
        if name in ("edge_index", *_COUNTS):
            continue
        if not name.startswith(("node_", "edge_")):
            raise DatasetError(f"{data_path}: array {name!r} belongs neither to nodes nor to edges", RESTORE_HINT)
        table: NodeTable | EdgeTable = nodes if name.startswith("node_") else edges
        _check_rows(member, num_nodes if table is nodes else num_edges)
        table.arrays[_NAMES.get(name, name)] = (ArraySpec(member.dtype.newbyteorder("=").name, member.shape[1:]), partial(_native, member))
        ranges[HOMOGENEOUS_NODE_TYPE if table is nodes else HOMOGENEOUS_EDGE_TYPE, _NAMES.get(name, name)] = member.row_range
    is_node, used = info.kind == "node", [edge_index, *(member for name, member in members.items() if name not in _COUNTS)]
    if is_node:
        spec, labels = _labels_of(info, label_path, num_nodes)
        nodes.arrays["y"] = spec, partial(_labels_of_ogb_npz, labels, info)
        ranges[HOMOGENEOUS_NODE_TYPE, "y"] = partial(_label_range, labels, info)
        used.append(labels)
    kind = partial(RangedOgbSource, ranges=ranges) if all(member.has_ranges for member in used) else OgbSource
    return kind(
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


def _labels_of(info: OgbInfo, path: Path, num_nodes: int) -> tuple[ArraySpec, NpzMember]:
    members = npz_members(path)
    if "node_label" not in members:
        raise DatasetError(f"{path} has no array 'node_label'", RESTORE_HINT)
    member = members["node_label"]
    _check_rows(member, num_nodes)
    if member.shape[1:] not in ((info.num_tasks,), () if info.num_tasks == 1 else (info.num_tasks,)):
        raise DatasetError(f"{path}: node_label is {list(member.shape)} where {info.name} has {info.num_tasks} labels a node", RESTORE_HINT)
    shape = () if info.num_tasks == 1 else (info.num_tasks,)
    return ArraySpec("int64", shape), member


def _native(member: NpzMember) -> Iterator[NDArray[Any]]:
    for rows in member.rows():
        yield rows.astype(rows.dtype.newbyteorder("="), copy=False)


def _labels_of_ogb_npz(member: NpzMember, info: OgbInfo) -> Iterator[NDArray[np.int64]]:
    done = 0
    for rows in member.rows():
        yield class_ids(rows.reshape(len(rows), -1), info.num_classes, member.path, first_row=done)
        done += len(rows)


def _label_range(member: NpzMember, info: OgbInfo, first: int, last: int) -> NDArray[np.int64]:
    rows = member.row_range(first, last)
    return class_ids(rows.reshape(len(rows), -1), info.num_classes, member.path, first_row=first)


def _edge_range(member: NpzMember, num_nodes: int, first: int, last: int) -> NDArray[np.int64]:
    edges: NDArray[np.int64]
    if member.fortran_order:
        edges = member.range(2 * first, 2 * last).reshape(-1, 2).T.astype(np.int64, copy=False)
    else:
        edges = np.stack([member.range(start + first, start + last) for start in (0, member.shape[1])]).astype(np.int64, copy=False)
    for ends, what in zip(edges, ("source node", "target node"), strict=True):
        check_ids(ends, num_nodes, member.path, first_row=first, what=what)
    return edges


def _edges_of_ogb_npz(member: NpzMember, num_nodes: int) -> Iterator[NDArray[np.int64]]:
    done = 0
    for source, target in member.pairs():
        check_ids(source, num_nodes, member.path, first_row=done, what="source node")
        check_ids(target, num_nodes, member.path, first_row=done, what="target node")
        done += len(source)
        yield np.stack([source, target]).astype(np.int64, copy=False)

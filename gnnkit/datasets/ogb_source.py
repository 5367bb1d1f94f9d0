"""The graph source that every OGB layout is read through, and the layouts: ``.csv.gz`` tables and binary files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from gnnkit.datasets.ogb import OgbInfo, OgbTree, content_digest
from gnnkit.datasets.ogb_binary import NpzMember, npz_members, read_saved
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
from gnnkit.errors import DatasetError
from gnnkit.schema import (
    HOMOGENEOUS_EDGE_TYPE,
    HOMOGENEOUS_NODE_TYPE,
    ArraySpec,
    EdgeType,
    EdgeTypeSchema,
    GraphSchema,
    NodeType,
    NodeTypeSchema,
)
from gnnkit.source import LazyMapping, LinkSplits, RangedSource, numbered
from gnnkit.splits import SPLITS
from gnnkit.storage.staging import check_memory

logger = logging.getLogger(__name__)

# Changes whenever the same files would be read as another graph.
READER_VERSION = 1

Chunks = Callable[[], Iterator[NDArray[Any]]]
Rows = Callable[[int, int], NDArray[Any]]
# Of edges, which are handed over as [2, k].
_EDGES = ArraySpec("int64", (2,))


class OgbArray(NamedTuple):
    """An array of a layout: its form, how it is streamed, and how rows ``[first, last)`` are read where that is possible."""

    spec: ArraySpec
    chunks: Chunks
    rows: Rows | None = None


@dataclass
class OgbTable:
    """A node type or edge type while its layout is being read: how many rows it has, its edges as ``[2, k]``, and its arrays."""

    num_rows: int
    edges: OgbArray | None = None
    arrays: dict[str, OgbArray] = field(default_factory=dict)

    @property
    def specs(self) -> dict[str, ArraySpec]:
        """The arrays that it has."""
        return {name: array.spec for name, array in self.arrays.items()}


class OgbSource:
    """A ``GraphSource`` over an OGB tree; see the protocol for the attributes.

    Splits are read when they are asked for: opening a dataset whose store exists should cost nothing.

    Args:
        info: The dataset.
        tree: Where it is.
        nodes: Its node types.
        edges: Its edge types.
        splits: Node types that have the official split, each with the folder that holds it; none where links are split.
        files: Every file that decides the graph's content.
        relation_of: See ``OgbLinkSplits``.
    """

    # Inflating and parsing text takes longer than everything that follows.
    edges_are_cheap = False

    def __init__(
        self,
        info: OgbInfo,
        tree: OgbTree,
        *,
        nodes: Mapping[NodeType, OgbTable],
        edges: Mapping[EdgeType, OgbTable],
        splits: Mapping[NodeType, Path],
        files: list[Path],
        relation_of: Callable[[], Mapping[EdgeType, int]] | None = None,
    ) -> None:
        self.name = info.name
        self.notice = tree.notice
        self.path = tree.path
        self.metadata: Mapping[str, Any] = info.metadata()
        self.schema = GraphSchema(
            {key: NodeTypeSchema(t.num_rows, t.specs) for key, t in nodes.items()},
            {key: EdgeTypeSchema(t.num_rows, t.specs) for key, t in edges.items()},
            is_homogeneous=not info.is_hetero,
        )
        self._tables: dict[Any, OgbTable] = {**nodes, **edges}
        self._split_folders = dict(splits)
        self._files = [*files, *(folder / f"{split}.csv.gz" for folder in splits.values() for split in SPLITS)]
        self._facts = {"reader": READER_VERSION, "name": info.name, "inverse": info.add_inverse_edge, "release": info.version}
        self.splits: Mapping[NodeType, Mapping[str, NDArray[np.int64]]] = LazyMapping(sorted(splits), self._splits_of)
        self.link_splits: LinkSplits = {}
        if info.kind == "link":
            links = OgbLinkSplits(tree.split, self.schema, relation_of)
            self.link_splits = links.by_type()
            self._files += links.files()

    def __repr__(self) -> str:
        return f"OgbSource({self.name!r}, {str(self.path)!r}, {self.schema.num_nodes} nodes, {self.schema.num_edges} edges)"

    def fingerprint(self) -> str:
        """A digest of a few kilobytes of each file."""
        return content_digest(self.path, self._files, self._facts)

    def edge_chunks(self, edge_type: EdgeType) -> Iterator[NDArray[np.int64]]:
        """The edges in their own order, ``[2, k]`` at a time."""
        return self._edges(edge_type).chunks()

    def _edges(self, edge_type: EdgeType) -> OgbArray:
        edges = self._tables[edge_type].edges
        assert edges is not None, "a type of edges"
        return edges

    def edge_array_chunks(self, edge_type: EdgeType, name: str) -> Iterator[NDArray[Any]]:
        """The rows of an edge array, some at a time."""
        return self._tables[edge_type].arrays[name].chunks()

    def node_array_chunks(self, node_type: NodeType, name: str) -> Iterator[NDArray[Any]]:
        """The rows of a node array, some at a time."""
        return self._tables[node_type].arrays[name].chunks()

    def _splits_of(self, node_type: NodeType) -> Mapping[str, NDArray[np.int64]]:
        folder, num_nodes = self._split_folders[node_type], self._tables[node_type].num_rows
        return LazyMapping(list(SPLITS), lambda split: read_split(folder / f"{split}.csv.gz", num_nodes))


class RangedOgbSource(OgbSource, RangedSource):
    """An ``OgbSource`` any rows of which can be read: its arrays are stored one element after the other."""

    @override
    def edge_rows(self, edge_type: EdgeType, first: int, last: int) -> NDArray[np.int64]:
        return _rows(self._edges(edge_type), first, last)

    @override
    def edge_array_rows(self, edge_type: EdgeType, name: str, first: int, last: int) -> NDArray[Any]:
        return _rows(self._tables[edge_type].arrays[name], first, last)

    @override
    def node_array_rows(self, node_type: NodeType, name: str, first: int, last: int) -> NDArray[Any]:
        return _rows(self._tables[node_type].arrays[name], first, last)


def _rows(array: OgbArray, first: int, last: int) -> NDArray[Any]:
    assert array.rows is not None, "this layout has ranges"
    return array.rows(first, last)


def read_split(path: Path, num_nodes: int) -> NDArray[np.int64]:
    """The ids of an official split, as the file has them: int64 ``[k]``.

    Raises:
        DatasetError: The file is missing or damaged, or an id is out of range.
    """
    if not path.exists() and (path.parent / "split_dict.pt").exists():
        raise DatasetError(
            f"{path} is missing; {path.parent / 'split_dict.pt'} is there, but it is a pickle, which gnnkit does not open",
            "restore the .csv.gz files of OGB's archive",
        )
    chunks: list[NDArray[np.int64]] = []
    for first, (ids,) in numbered(CsvTable(path, 1, np.dtype(np.int64)).rows(transposed=True), axis=1):
        check_ids(ids, num_nodes, path, first_row=first, what="node id")
        chunks.append(ids)
    return np.concatenate(chunks) if chunks else np.empty(0, np.int64)


Links = Mapping[str, NDArray[Any]]
# A link's ends: one array [n, 2], or one array [n] for each.
_PAIRS = "edge"
_ENDS = (("source_node", "target_node"), ("head", "tail"))
_LABELS = ("weight", "relation", "label")
_NEGATIVES = {"target_node_neg": "dst_neg_index", "tail_neg": "dst_neg_index", "head_neg": "src_neg_index"}
_TYPES = ("head_type", "tail_type")


class OgbLinkSplits:
    """The official split of a tree's links: files are read when their split is asked for, and one at a time is held.

    Args:
        folder: The official split's folder.
        schema: The graph's.
        relation_of: Gives the number of each edge type's relation, where links of several types share a file; called at most once.
    """

    def __init__(self, folder: Path, schema: GraphSchema, relation_of: Callable[[], Mapping[EdgeType, int]] | None = None) -> None:
        self._folder, self._schema, self._relation_of = folder, schema, relation_of
        self._relations: Mapping[EdgeType, int] | None = None
        self._held: tuple[str, dict[EdgeType, dict[str, NDArray[Any]]]] | None = None

    def files(self) -> list[Path]:
        """The files that hold the splits."""
        whole = self._folder / "split_dict.pt"
        return [whole] if whole.is_file() else [self._folder / f"{split}.pt" for split in SPLITS]

    def by_type(self) -> LinkSplits:
        """``GraphSource.link_splits``."""
        return LazyMapping(list(self._schema.edge_types), self._of_edge_type)

    def _of_edge_type(self, edge_type: EdgeType) -> Mapping[str, Links]:
        return LazyMapping(list(SPLITS), lambda split: self.links(split)[edge_type], keeps=False)

    def links(self, split: str) -> dict[EdgeType, dict[str, NDArray[Any]]]:
        """The links of a split, of every edge type.

        Raises:
            DatasetError: The file is missing or damaged, or what it holds does not fit the graph.
            MemoryLimitError: It would not fit the memory.
        """
        if self._held is None or self._held[0] != split:
            self._held = None  # the one before goes first
            self._held = (split, self._read(split))
        return self._held[1]

    def _read(self, split: str) -> dict[EdgeType, dict[str, NDArray[Any]]]:
        whole = self._folder / "split_dict.pt"
        path = whole if whole.is_file() else self._folder / f"{split}.pt"
        if path.is_file():
            # The file's bytes, and copies of single arrays.
            check_memory(2 * path.stat().st_size, f"reading {path}")
        value = read_saved(path)
        if path == whole:
            if not isinstance(value, dict) or split not in value:
                raise DatasetError(f"{path} holds no split {split!r}", RESTORE_HINT)
            value = value[split]
        if not isinstance(value, dict):
            raise DatasetError(f"{path} holds a {type(value).__name__} where a dict of arrays must be", RESTORE_HINT)
        if self._relation_of is None:
            (edge_type,) = self._schema.edge_types
            return {edge_type: self._of_type(path, edge_type, _renamed(path, value))}
        return self._by_type(path, value)

    def _by_type(self, path: Path, value: dict[str, Any]) -> dict[EdgeType, dict[str, NDArray[Any]]]:
        """Sorts links of many edge types, in the order of the file within each."""
        for name in (*_TYPES, "relation"):
            if name not in value:
                raise DatasetError(f"{path} has no {name!r}", RESTORE_HINT)
        links = _renamed(path, {name: values for name, values in value.items() if name not in _TYPES})
        relation, count = links["edge_label"], links["edge_label_index"].shape[1]
        nodes = list(self._schema.node_types)
        heads, tails = (_codes(path, name, value[name], nodes, count) for name in _TYPES)
        if relation.dtype.kind not in "iu" or relation.ndim != 1 or (count and int(relation.min()) < 0):
            raise DatasetError(f"{path}: 'relation' must be whole numbers from 0 on", RESTORE_HINT)
        if self._relations is None:
            assert self._relation_of is not None
            self._relations = self._relation_of()
        known = {(nodes.index(t[0]), number, nodes.index(t[2])): t for t, number in self._relations.items()}
        # A number beyond the graph's own is as good as the first of these, and keys stay small.
        width, numbers = 2 + max(self._relations.values(), default=-1), relation.astype(np.int64)
        numbers[relation >= width - 1] = width - 1
        key = (heads * width + numbers) * len(nodes) + tails
        order = np.argsort(key, kind="stable")
        found, starts = np.unique(key[order], return_index=True)
        sorted_links = {edge_type: order[:0] for edge_type in self._schema.edge_types}
        for code, rows in zip(found.tolist(), np.split(order, starts[1:]), strict=False):
            head, number, tail = code // len(nodes) // width, code // len(nodes) % width, code % len(nodes)
            if (head, number, tail) not in known:
                what = f"relation {relation[rows[0]]} from {nodes[head]!r} to {nodes[tail]!r}"
                raise DatasetError(f"{path}: row {int(rows[0]) + 1}: {what} is none of the graph's", RESTORE_HINT)
            sorted_links[known[head, number, tail]] = rows
        return {t: self._of_type(path, t, _taken(links, rows), rows) for t, rows in sorted_links.items()}

    def _of_type(
        self, path: Path, edge_type: EdgeType, links: dict[str, NDArray[Any]], rows: NDArray[np.int64] | None = None
    ) -> dict[str, NDArray[Any]]:
        """The links of one type, checked; ``rows`` are theirs in the file."""
        sources, targets = (self._schema.node_types[node_type].num_nodes for node_type in (edge_type[0], edge_type[2]))
        for name, bounds in (("edge_label_index", (sources, targets)), ("neg_edge_index", (sources, targets))):
            for ids, bound, what in zip(links.get(name, ()), bounds, ("source node", "target node"), strict=False):
                check_ids(ids, bound, path, what=f"{what} of a {'link' if name == 'edge_label_index' else 'negative'}", rows=rows)
        for name, bound in (("src_neg_index", sources), ("dst_neg_index", targets)):
            if name in links:
                ids = links[name]
                beyond = ((ids < 0) | (ids >= bound)).any(axis=1)
                first = np.flatnonzero(beyond)[:1]
                what = f"negative {'source' if name == 'src_neg_index' else 'target'} node"
                numbers = (first if rows is None else rows[first]).repeat(ids.shape[1])
                check_ids(ids[first].reshape(-1), bound, path, what=what, rows=numbers)
        return links


def _renamed(path: Path, value: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """OGB's arrays under gnnkit's names, shapes checked."""
    used: set[str] = set()
    links: dict[str, NDArray[Any]] = {}
    ends = next((pair for pair in _ENDS if pair[0] in value), None)
    if _PAIRS in value:
        links["edge_label_index"] = _ids(path, _PAIRS, value[_PAIRS], (None, 2)).T
        used.add(_PAIRS)
    elif ends is not None:
        first = _ids(path, ends[0], value[ends[0]], (None,))
        links["edge_label_index"] = np.stack([first, _ids(path, ends[1], value.get(ends[1]), first.shape)])
        used.update(ends)
    else:
        raise DatasetError(f"{path} has neither {_PAIRS!r} nor {' nor '.join(repr(pair[0]) for pair in _ENDS)}", RESTORE_HINT)
    count = links["edge_label_index"].shape[1]
    for name, values in value.items():
        if name in _LABELS and "edge_label" not in links:
            if not isinstance(values, np.ndarray) or values.dtype.kind not in "biuf" or values.shape[:1] != (count,):
                raise _wrong(path, name, values, f"numbers of {count} links")
            links["edge_label"] = np.ascontiguousarray(values)
        elif name == "year":
            years = values.reshape(-1) if isinstance(values, np.ndarray) else values
            links["edge_label_time"] = _ids(path, name, years, (count,))
        elif name == "edge_neg":
            links["neg_edge_index"] = _ids(path, name, values, (None, 2)).T
        elif name in _NEGATIVES:
            links[_NEGATIVES[name]] = _ids(path, name, values, (count, None))
        elif name not in used:
            logger.warning("%s has %r, of which gnnkit does not know what it is: it is left out", path, name)
    return {name: np.ascontiguousarray(values) for name, values in links.items()}


def _ids(path: Path, name: str, values: Any, shape: tuple[int | None, ...]) -> NDArray[np.int64]:
    """An array of whole numbers as int64, after its shape was found to be right."""
    if isinstance(values, list):
        values = np.asarray(values) if all(type(v) is int for v in values) else values
    right = isinstance(values, np.ndarray) and values.dtype.kind in "iu" and values.ndim == len(shape)
    if not right or any(want not in (None, have) for want, have in zip(shape, values.shape, strict=True)):
        raise _wrong(path, name, values, f"whole numbers [{', '.join('k' if n is None else str(n) for n in shape)}]")
    return np.asarray(values, np.int64)


def _wrong(path: Path, name: str, values: Any, wanted: str) -> DatasetError:
    have = f"{values.dtype} {list(values.shape)}" if isinstance(values, np.ndarray) else type(values).__name__
    return DatasetError(f"{path}: {name!r} is {have} where {wanted} must be", RESTORE_HINT)


def _codes(path: Path, name: str, values: Any, nodes: list[str], count: int) -> NDArray[np.int64]:
    """Names of node types as their places in ``nodes``."""
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if not isinstance(values, list) or len(values) != count or not all(type(value) is str for value in values):
        raise DatasetError(f"{path}: {name!r} does not name a node type for each of {count} links", RESTORE_HINT)
    places: dict[Any, int] = {node_type: place for place, node_type in enumerate(nodes)}
    if unknown := set(values) - set(nodes):
        raise DatasetError(f"{path}: {name!r} names {sorted(map(str, unknown))[0]!r}, the graph has {nodes}", RESTORE_HINT)
    return np.fromiter(map(places.__getitem__, values), np.int64, count)


def _taken(links: Mapping[str, NDArray[Any]], rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    if "neg_edge_index" in links:
        raise DatasetError("negatives that belong to no link cannot be told by edge type", "pip install -U gnnkit")
    return {name: np.ascontiguousarray(v[:, rows] if name == "edge_label_index" else v[rows]) for name, v in links.items()}


# OGB-4: what a tree that ogb has not touched yet calls it.
_OLDER_NAMES = {"node_species": "species"}
# The edge array that numbers the relations of a typed graph.
_RELATION = "edge_reltype"


def open_csv_layout(info: OgbInfo, tree: OgbTree) -> OgbSource:
    """Opens a tree of ``.csv.gz`` files, reading no more than counts and the start of each file.

    Raises:
        DatasetError: A file is missing or damaged, or files contradict each other.
    """
    layout = _CsvLayout(info, tree)
    return layout.typed() if info.is_hetero else layout.untyped()


class _CsvLayout:
    """The ``.csv.gz`` files of a tree, which become tables.

    Args:
        info: The dataset.
        tree: Where it is.

    Attributes:
        files: The files that are used.
    """

    def __init__(self, info: OgbInfo, tree: OgbTree) -> None:
        self.info, self.tree = info, tree
        self.files: list[Path] = []

    def used(self, path: Path) -> Path:
        self.files.append(path)
        return path

    def node_table(self, num_nodes: int, folder: Path, label: Path | None, count_file: Path) -> OgbTable:
        """The arrays of one node type: features and additional files in ``folder``, labels in ``label``."""
        table = OgbTable(num_nodes)
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

    def edge_table(self, folder: Path, num_sources: int, num_targets: int) -> OgbTable:
        """The edges of one type and their arrays."""
        count_file = self.used(folder / "num-edge-list.csv.gz")
        rows = single_count(count_file)
        inverse = self.info.add_inverse_edge
        edges = CsvTable(self.used(folder / "edge.csv.gz"), 2, np.dtype(np.int64), rows, str(count_file))
        if not edges.path.exists():
            raise DatasetError(f"{edges.path} is missing", RESTORE_HINT)
        streamed = partial(_edges, edges.path, partial(edges.rows, transposed=True), (num_sources, num_targets), inverse=inverse)
        table = OgbTable(rows * (1 + inverse), OgbArray(_EDGES, streamed))
        for name, file_name in (("edge_attr", "edge-feat"), *((name, name) for name in self.info.edge_files)):
            path = folder / f"{file_name}.csv.gz"
            if path.exists():
                array = self._array(path, rows, count_file)
                table.arrays[name] = array._replace(chunks=partial(_twice, array.chunks)) if inverse else array
            elif name != "edge_attr" and not self.info.is_hetero:
                raise DatasetError(f"{path} is missing", RESTORE_HINT)
        return table

    def _array(self, path: Path, num_rows: int, count_file: Path) -> OgbArray:
        table = open_table(self.used(path), num_rows, str(count_file))
        return OgbArray(ArraySpec(table.dtype.name, (table.num_columns,)), table.rows)

    def _labels(self, path: Path, num_rows: int, count_file: Path) -> OgbArray:
        # As float64, so that the missing ones can be told; class numbers are far below 2 ** 53.
        table = open_table(self.used(path), num_rows, str(count_file), dtype=np.float64)
        if table.num_columns != self.info.num_tasks:
            message = f"{path} has {table.num_columns} labels a row where {self.info.name} has {self.info.num_tasks}"
            raise DatasetError(message, RESTORE_HINT)
        return OgbArray(ArraySpec("int64", self.info.label_shape), partial(_labels, table.rows, self.info.num_classes, path))

    def untyped(self) -> OgbSource:
        """The graph of ``raw/{edge,node-feat,node-label,num-node-list,num-edge-list}.csv.gz`` and more."""
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

    def typed(self) -> OgbSource:
        """The graph of ``raw/relations/<source>___<relation>___<target>/``, ``raw/node-feat/<type>/``, ``raw/node-label/<type>/``."""
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


def _edges(path: Path, chunks: Chunks, bounds: tuple[int, int], *, inverse: bool = False) -> Iterator[NDArray[np.int64]]:
    for first, ends in numbered(chunks(), axis=1):
        _check_ends(ends, bounds, path, first)
        yield with_inverses(ends[0], ends[1]) if inverse else ends.astype(np.int64, copy=False)


def _check_ends(ends: NDArray[Any], bounds: tuple[int, int], path: Path, first_row: int) -> None:
    for ids, bound, what in zip(ends, bounds, ("source node", "target node"), strict=True):
        check_ids(ids, bound, path, first_row=first_row, what=what)


def _relations(arrays: Mapping[EdgeType, OgbArray | None]) -> dict[EdgeType, int]:
    """The number of each edge type's relation, which all of its edges bear; types without edges have none.

    Raises:
        DatasetError: A type's edges bear several, or none.
    """
    numbers: dict[EdgeType, int] = {}
    for edge_type, array in arrays.items():
        if array is None:
            raise DatasetError(f"the edges of {edge_type} have no {_RELATION}.csv.gz, so links cannot be told by edge type", RESTORE_HINT)
        found = {int(number) for rows in array.chunks() for number in np.unique(rows)}
        if len(found) > 1:
            raise DatasetError(f"{_RELATION} of {edge_type} has several relations: {sorted(found)[:3]}", RESTORE_HINT)
        numbers |= dict.fromkeys([edge_type], *found) if found else {}
    return numbers


def _twice(chunks: Chunks) -> Iterator[NDArray[Any]]:
    """An edge and its inverse have the same features."""
    for rows in chunks():
        yield np.repeat(rows, 2, axis=0)


def _labels(chunks: Chunks, num_classes: int, path: Path) -> Iterator[NDArray[np.int64]]:
    for first, rows in numbered(chunks()):
        yield class_ids(rows.reshape(len(rows), -1), num_classes, path, first_row=first)


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
    members = _members(data_path, "edge_index", *_COUNTS)
    num_nodes, num_edges = (_single_count(members[name]) for name in _COUNTS)
    edge_index = members["edge_index"]
    if edge_index.shape != (2, num_edges) or edge_index.dtype.kind not in "iu":
        raise DatasetError(
            f"{data_path}: edge_index is {edge_index.dtype} {list(edge_index.shape)} where integers [2, {num_edges}] must be", RESTORE_HINT
        )
    streamed = partial(_edges, data_path, edge_index.pairs, (num_nodes, num_nodes))
    ends = OgbArray(_EDGES, streamed, partial(_edge_range, edge_index, num_nodes))
    nodes, edges = OgbTable(num_nodes), OgbTable(num_edges, ends)
    for name, member in members.items():
        if name in ("edge_index", *_COUNTS):
            continue
        if not name.startswith(("node_", "edge_")):
            raise DatasetError(f"{data_path}: array {name!r} belongs neither to nodes nor to edges", RESTORE_HINT)
        table = nodes if name.startswith("node_") else edges
        _check_rows(member, num_nodes if table is nodes else num_edges)
        spec = ArraySpec(member.dtype.newbyteorder("=").name, member.shape[1:])
        table.arrays[_NAMES.get(name, name)] = OgbArray(spec, member.rows, member.row_range)
    is_node, used = info.kind == "node", [edge_index, *(member for name, member in members.items() if name not in _COUNTS)]
    if is_node:
        labels = _members(label_path, "node_label")["node_label"]
        _check_rows(labels, num_nodes)
        if labels.shape[1:] not in ((info.num_tasks,), info.label_shape):
            what = f"{label_path}: node_label is {list(labels.shape)} where {info.name} has {info.num_tasks} labels a node"
            raise DatasetError(what, RESTORE_HINT)
        rows = partial(_labels, labels.rows, info.num_classes, label_path)
        nodes.arrays["y"] = OgbArray(ArraySpec("int64", info.label_shape), rows, partial(_label_range, labels, info))
        used.append(labels)
    kind = RangedOgbSource if all(member.stored_at is not None for member in used) else OgbSource
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


def _members(path: Path, *names: str) -> dict[str, NpzMember]:
    members = npz_members(path)
    for name in names:
        if name not in members:
            raise DatasetError(f"{path} has no array {name!r}", RESTORE_HINT)
    return members


def _label_range(member: NpzMember, info: OgbInfo, first: int, last: int) -> NDArray[np.int64]:
    rows = member.row_range(first, last)
    return class_ids(rows.reshape(len(rows), -1), info.num_classes, member.path, first_row=first)


def _edge_range(member: NpzMember, num_nodes: int, first: int, last: int) -> NDArray[np.int64]:
    edges: NDArray[np.int64]
    if member.fortran_order:
        edges = member.range(2 * first, 2 * last).reshape(-1, 2).T.astype(np.int64, copy=False)
    else:
        edges = np.stack([member.range(start + first, start + last) for start in (0, member.shape[1])]).astype(np.int64, copy=False)
    _check_ends(edges, (num_nodes, num_nodes), member.path, first)
    return edges

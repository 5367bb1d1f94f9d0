"""The graph source that every OGB layout is read through."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.datasets.ogb_pickle import read_saved
from gnnkit.datasets.ogb_table import RESTORE_HINT, CsvTable, check_ids
from gnnkit.datasets.ogb_tree import OgbTree, content_digest
from gnnkit.datasets.registry import OgbInfo
from gnnkit.errors import DatasetError
from gnnkit.schema import ArraySpec, EdgeType, EdgeTypeSchema, GraphSchema, NodeType, NodeTypeSchema
from gnnkit.source import LazyMapping, LinkSplits
from gnnkit.storage.staging import check_memory

logger = logging.getLogger(__name__)


# Changes whenever the same files would be read as another graph.
READER_VERSION = 1

Chunks = Callable[[], Iterator[NDArray[Any]]]


@dataclass
class NodeTable:
    """A node type while its layout is being read: how many nodes, and where their arrays come from."""

    num_nodes: int
    arrays: dict[str, tuple[ArraySpec, Chunks]] = field(default_factory=dict)


@dataclass
class EdgeTable:
    """An edge type while its layout is being read."""

    num_edges: int
    edges: Chunks
    arrays: dict[str, tuple[ArraySpec, Chunks]] = field(default_factory=dict)


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
        nodes: Mapping[NodeType, NodeTable],
        edges: Mapping[EdgeType, EdgeTable],
        splits: Mapping[NodeType, Path],
        files: list[Path],
        relation_of: Callable[[], Mapping[EdgeType, int]] | None = None,
    ) -> None:
        self.name = info.name
        self.notice = tree.notice
        self.path = tree.path
        self.metadata: Mapping[str, Any] = info.metadata()
        self.schema = GraphSchema(
            {key: NodeTypeSchema(t.num_nodes, {name: spec for name, (spec, _) in t.arrays.items()}) for key, t in nodes.items()},
            {key: EdgeTypeSchema(t.num_edges, {name: spec for name, (spec, _) in t.arrays.items()}) for key, t in edges.items()},
            is_homogeneous=not info.is_hetero,
        )
        self._nodes, self._edges = dict(nodes), dict(edges)
        self._split_folders = dict(splits)
        self._files = [*files, *(folder / f"{split}.csv.gz" for folder in splits.values() for split in SPLITS)]
        self._facts = {"reader": READER_VERSION, "name": info.name, "inverse": info.add_inverse_edge, "release": info.version}
        self.splits: Mapping[NodeType, Mapping[str, NDArray[np.int64]]] = LazyMapping(sorted(splits), self._splits_of)
        self.link_splits: LinkSplits = {}
        if info.kind == "link":
            links = OgbLinkSplits(tree.split, self.schema, relation_of)
            self.link_splits = links
            self._files += links.files()

    def __repr__(self) -> str:
        return f"OgbSource({self.name!r}, {str(self.path)!r}, {self.schema.num_nodes} nodes, {self.schema.num_edges} edges)"

    def fingerprint(self) -> str:
        """See ``GraphSource.fingerprint``; reads a few kilobytes of each file."""
        return content_digest(self.path, self._files, self._facts)

    def edge_chunks(self, edge_type: EdgeType) -> Iterator[NDArray[np.int64]]:
        """See ``GraphSource.edge_chunks``."""
        return self._edges[edge_type].edges()

    def edge_array_chunks(self, edge_type: EdgeType, name: str) -> Iterator[NDArray[Any]]:
        """See ``GraphSource.edge_array_chunks``."""
        return self._edges[edge_type].arrays[name][1]()

    def node_array_chunks(self, node_type: NodeType, name: str) -> Iterator[NDArray[Any]]:
        """See ``GraphSource.node_array_chunks``."""
        return self._nodes[node_type].arrays[name][1]()

    def _splits_of(self, node_type: NodeType) -> Mapping[str, NDArray[np.int64]]:
        folder, num_nodes = self._split_folders[node_type], self._nodes[node_type].num_nodes
        return LazyMapping(list(SPLITS), lambda split: read_split(folder / f"{split}.csv.gz", num_nodes))


Rows = Callable[[int, int], NDArray[Any]]


class RangedOgbSource(OgbSource):
    """An ``OgbSource`` that is a ``RangedSource``: its arrays are stored one element after the other.

    Args:
        ranges: ``{(type, array): reads rows [first, last)}``; None for the array of the edges themselves, as ``[2, last - first]``.
        given: See ``OgbSource``.
    """

    def __init__(self, *given: Any, ranges: Mapping[tuple[NodeType | EdgeType, str | None], Rows], **named: Any) -> None:
        super().__init__(*given, **named)
        self._ranges = dict(ranges)

    def edge_rows(self, edge_type: EdgeType, first: int, last: int) -> NDArray[np.int64]:
        """See ``RangedSource``."""
        return self._ranges[edge_type, None](first, last)

    def edge_array_rows(self, edge_type: EdgeType, name: str, first: int, last: int) -> NDArray[Any]:
        """See ``RangedSource``."""
        return self._ranges[edge_type, name](first, last)

    def node_array_rows(self, node_type: NodeType, name: str, first: int, last: int) -> NDArray[Any]:
        """See ``RangedSource``."""
        return self._ranges[node_type, name](first, last)


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
    done = 0
    for (ids,) in CsvTable(path, 1, np.dtype(np.int64)).columns():
        check_ids(ids, num_nodes, path, first_row=done, what="node id")
        chunks.append(ids)
        done += len(ids)
    return np.concatenate(chunks) if chunks else np.empty(0, np.int64)


SPLITS = ("train", "valid", "test")
Links = Mapping[str, NDArray[Any]]
# A link's ends: one array [n, 2], or one array [n] for each.
_PAIRS = "edge"
_ENDS = (("source_node", "target_node"), ("head", "tail"))
_LABELS = ("weight", "relation", "label")
_NEGATIVES = {"target_node_neg": "dst_neg_index", "tail_neg": "dst_neg_index", "head_neg": "src_neg_index"}
_TYPES = ("head_type", "tail_type")


class OgbLinkSplits(Mapping[EdgeType, Mapping[str, Links]]):
    """``GraphSource.link_splits`` of a tree: files are read when their split is asked for, and one at a time is held.

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

    def __getitem__(self, edge_type: EdgeType) -> Mapping[str, Links]:
        if edge_type not in self._schema.edge_types:
            raise KeyError(edge_type)
        return _OfType(self, edge_type)

    def __iter__(self) -> Iterator[EdgeType]:
        return iter(self._schema.edge_types)

    def __len__(self) -> int:
        return len(self._schema.edge_types)

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
                _check(path, ids, bound, f"{what} of a {'link' if name == 'edge_label_index' else 'negative'}", rows)
        for name, bound in (("src_neg_index", sources), ("dst_neg_index", targets)):
            if name in links:
                ids = links[name]
                beyond = ((ids < 0) | (ids >= bound)).any(axis=1)
                first = np.flatnonzero(beyond)[:1]
                what = f"negative {'source' if name == 'src_neg_index' else 'target'} node"
                _check(path, ids[first].reshape(-1), bound, what, (first if rows is None else rows[first]).repeat(ids.shape[1]))
        return links


class _OfType(Mapping[str, Links]):
    """The splits of one edge type."""

    def __init__(self, splits: OgbLinkSplits, edge_type: EdgeType) -> None:
        self._splits, self._edge_type = splits, edge_type

    def __getitem__(self, split: str) -> Links:
        if split not in SPLITS:
            raise KeyError(split)
        return self._splits.links(split)[self._edge_type]

    def __iter__(self) -> Iterator[str]:
        return iter(SPLITS)

    def __len__(self) -> int:
        return len(SPLITS)


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


def _check(path: Path, ids: NDArray[np.int64], bound: int, what: str, rows: NDArray[np.int64] | None) -> None:
    """Refuses ids that are no nodes, naming their row in the file."""
    if rows is None:
        check_ids(ids, bound, path, first_row=0, what=what)
    elif len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= bound):
        at = int(np.flatnonzero((ids < 0) | (ids >= bound))[0])
        check_ids(ids[at : at + 1], bound, path, first_row=int(rows[at]), what=what)

"""The graph source that every OGB layout is read through."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from gnnkit.datasets.ogb_links import SPLITS, OgbLinkSplits
from gnnkit.datasets.ogb_table import CsvTable, check_ids
from gnnkit.datasets.ogb_tree import OgbTree, content_digest
from gnnkit.datasets.registry import OgbInfo
from gnnkit.errors import DatasetError
from gnnkit.schema import ArraySpec, EdgeType, EdgeTypeSchema, GraphSchema, NodeType, NodeTypeSchema
from gnnkit.source import LinkSplits

K = TypeVar("K")
V = TypeVar("V")

# Changes whenever the same files would be read as another graph.
READER_VERSION = 1

Chunks = Callable[[], Iterator[NDArray[Any]]]


class LazyMapping(Mapping[K, V], Generic[K, V]):
    """A mapping whose keys are known and whose values are loaded when they are asked for, once."""

    def __init__(self, keys: list[K], load: Callable[[K], V]) -> None:
        self._keys, self._load = keys, load
        self._values: dict[K, V] = {}

    def __getitem__(self, key: K) -> V:
        if key not in self._keys:
            raise KeyError(key)
        if key not in self._values:
            self._values[key] = self._load(key)
        return self._values[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


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

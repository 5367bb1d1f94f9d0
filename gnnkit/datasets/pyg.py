"""A user's PyG ``Data`` or ``HeteroData`` as a graph source; nothing is copied that can be looked at where it is."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.datasets.pyg_tensors import as_rows, edge_index_of
from gnnkit.errors import DatasetError, PlanError, near_matches
from gnnkit.host import available_cpus
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
from gnnkit.source import CHUNK_ROWS, LinkSplits

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

# PyG's names of the masks of the official splits, and ours of the splits.
SPLIT_MASKS = {"train_mask": "train", "val_mask": "valid", "test_mask": "test"}
# Attributes that cannot be anything else: another number of rows is a mistake and not a graph-level attribute.
_ALWAYS_NODE = frozenset({"x", *SPLIT_MASKS})
_ALWAYS_EDGE = frozenset({"edge_attr", "edge_weight"})
_SIZES = frozenset({"num_nodes", "num_edges", "edge_index"})
_ROWS_HASHED_AT_ONCE = 1 << 16
_MOST_HASHING = 4


@dataclass
class _Arrays:
    """What one node type or edge type carries; ``rest`` is neither node-level nor edge-level."""

    count: int
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    specs: dict[str, ArraySpec] = field(default_factory=dict)
    rest: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, value: Any, where: str) -> None:
        self.arrays[name], self.specs[name] = as_rows(value, f"{where}{name}")


class PyGSource:
    """A ``GraphSource`` over a ``Data`` or ``HeteroData``: its tensors are read where they are, whenever they are asked for.

    Node-level and edge-level are what PyG takes for them: the size along the attribute's ``__cat_dim__`` decides, and where a
    graph has as many nodes as edges, "edge" in the name does. Boolean ``train_mask``, ``val_mask`` and ``test_mask`` ``[n]``
    are splits as well as node arrays.

    Args:
        data: The graph; must not change while it is in use.

    Attributes:
        extra: Attributes of the graph as a whole, by name.
        type_extra: Attributes of one node type or edge type as a whole; ``{type: {name: value}}``, empty for ``Data``.

    Raises:
        PlanError: ``data`` is no such object, holds its edges as ``adj`` or ``adj_t``, holds a sparse tensor or one of a dtype that
            cannot be stored, or the number of nodes of a type is unknown.
        DatasetError: ``edge_index`` is no integer ``[2, num_edges]``; "x", a mask or "edge_attr" has a wrong number of rows.
    """

    def __init__(self, data: Data | HeteroData) -> None:
        from torch_geometric.data import Data, HeteroData

        if not isinstance(data, (Data, HeteroData)):
            raise PlanError(f"expected a torch_geometric.data.Data or HeteroData, got {type(data).__name__}")
        self.name = "pyg"
        self.notice: str | None = None
        self.metadata: Mapping[str, Any] = {}
        self.edges_are_cheap = True
        self.extra: dict[str, Any] = {}
        self.type_extra: dict[NodeType | EdgeType, dict[str, Any]] = {}
        self._edge_index: dict[EdgeType, NDArray[Any]] = {}
        self._fingerprint: str | None = None
        self._checked: set[tuple[EdgeType, int]] = set()  # chunks of edges whose ids are known to be in range
        self._nodes: dict[NodeType, _Arrays] = {}
        self._edges: dict[EdgeType, _Arrays] = {}
        if isinstance(data, HeteroData):
            self._scan_typed(data)
        else:
            self._scan_homogeneous(data)
        self.schema = GraphSchema(
            {node_type: NodeTypeSchema(found.count, found.specs) for node_type, found in self._nodes.items()},
            {edge_type: EdgeTypeSchema(found.count, found.specs) for edge_type, found in self._edges.items()},
            is_homogeneous=not isinstance(data, HeteroData),
        )
        splits = {node_type: _splits_of(found.arrays) for node_type, found in self._nodes.items()}
        self.link_splits: LinkSplits = {}
        self.splits: Mapping[NodeType, Mapping[str, NDArray[np.int64]]] = {key: ids for key, ids in splits.items() if ids}

    def __repr__(self) -> str:
        return f"PyGSource({self.schema.num_nodes:,} nodes, {self.schema.num_edges:,} edges)"

    def fingerprint(self) -> str:
        """A digest of the schema and of every byte: SHA-256 of the pieces' SHA-256, which several threads take at once.

        It is taken once: a build asks for it several times, and the graph must not change meanwhile.
        """
        if self._fingerprint is None:
            self._fingerprint = self._digest()
        return self._fingerprint

    def _digest(self) -> str:
        digest = hashlib.sha256(json.dumps(self.schema.to_json()).encode())
        with ThreadPoolExecutor(min(available_cpus(), _MOST_HASHING)) as pool:
            for piece in pool.map(_sha256, self._pieces()):
                digest.update(piece)
        return digest.hexdigest()

    def _pieces(self) -> Iterator[NDArray[Any]]:
        """Everything, in an order that only depends on the schema, some megabytes at a time."""
        for edge_type in self.schema.edge_types:
            for chunk in self.edge_chunks(edge_type):
                yield from chunk
        for found in (*(self._nodes[t] for t in self.schema.node_types), *(self._edges[t] for t in self.schema.edge_types)):
            for _, rows in sorted(found.arrays.items()):
                for start in range(0, len(rows), _ROWS_HASHED_AT_ONCE):
                    yield rows[start : start + _ROWS_HASHED_AT_ONCE]

    def edge_chunks(self, edge_type: EdgeType) -> Iterator[NDArray[np.int64]]:
        """Yields ``[2, k]``; see ``GraphSource``."""
        edge_index = _known(self._edge_index, edge_type, "edge type")
        ends = self._nodes[edge_type[0]].count, self._nodes[edge_type[2]].count
        for start in range(0, edge_index.shape[1], CHUNK_ROWS):
            chunk = edge_index[:, start : start + CHUNK_ROWS].astype(np.int64, copy=False)
            if (edge_type, start) in self._checked:
                yield chunk
                continue
            for end, count in enumerate(ends):
                # A negative id is a very large one without its sign.
                if chunk[end].view(np.uint64).max() >= count:
                    position = int(np.flatnonzero((chunk[end] < 0) | (chunk[end] >= count))[0])
                    node_type = edge_type[2 * end]
                    raise DatasetError(
                        f"edge_index[{end}, {start + position}] of {edge_type} is {chunk[end, position]}; {node_type!r} has {count} nodes",
                        "ids run from 0; set num_nodes if there are nodes without edges and features",
                    )
            self._checked.add((edge_type, start))
            yield chunk

    def edge_array_chunks(self, edge_type: EdgeType, name: str) -> Iterator[NDArray[Any]]:
        """Yields rows of an edge array; see ``GraphSource``."""
        return _row_chunks(self.edge_array(edge_type, name))

    def node_array_chunks(self, node_type: NodeType, name: str) -> Iterator[NDArray[Any]]:
        """Yields rows of a node array; see ``GraphSource``."""
        return _row_chunks(self.node_array(node_type, name))

    def edge_array(self, edge_type: EdgeType, name: str) -> NDArray[Any]:
        """An edge array as a whole, ``[num_edges, *row_shape]``, in the order of the edges; the user's memory where possible."""
        rows: NDArray[Any] = _known(_known(self._edges, edge_type, "edge type").arrays, name, f"array of the edges {edge_type}")
        return rows

    def node_array(self, node_type: NodeType, name: str) -> NDArray[Any]:
        """A node array as a whole, ``[num_nodes, *row_shape]``; the user's memory where possible."""
        rows: NDArray[Any] = _known(_known(self._nodes, node_type, "node type").arrays, name, f"array of the nodes {node_type!r}")
        return rows

    def _scan_homogeneous(self, data: Any) -> None:
        store = data.stores[0]
        edge_index = edge_index_of(store, "data.")
        nodes, edges = _Arrays(_num_nodes(store, "data.")), _Arrays(edge_index.shape[1])
        self._edge_index[HOMOGENEOUS_EDGE_TYPE] = edge_index
        self._nodes[HOMOGENEOUS_NODE_TYPE], self._edges[HOMOGENEOUS_EDGE_TYPE] = nodes, edges
        for name, value in store.items():
            if name in _SIZES:
                continue
            size = _row_count(data, store, name, value)
            is_node, is_edge = size == nodes.count, size == edges.count
            if is_node and is_edge:
                is_node = "edge" not in name
            if name in _ALWAYS_NODE and size != nodes.count:
                raise _wrong_rows(f"data.{name}", size, nodes.count, "nodes")
            if name in _ALWAYS_EDGE and size != edges.count:
                raise _wrong_rows(f"data.{name}", size, edges.count, "edges")
            if is_node:
                nodes.add(name, value, "data.")
            elif is_edge:
                edges.add(name, value, "data.")
            else:
                self.extra[name] = value

    def _scan_typed(self, data: Any) -> None:
        self.extra = dict(data._global_store.items())
        for node_type, store in data.node_items():
            where = f"data[{node_type!r}]."
            self._nodes[node_type] = _scan_type(data, store, _Arrays(_num_nodes(store, where)), where, _ALWAYS_NODE)
        for edge_type, store in data.edge_items():
            where = f"data[{edge_type!r}]."
            edge_index = edge_index_of(store, where)
            self._edge_index[edge_type] = edge_index
            self._edges[edge_type] = _scan_type(data, store, _Arrays(edge_index.shape[1]), where, _ALWAYS_EDGE)
        scanned: dict[Any, _Arrays] = {**self._nodes, **self._edges}
        self.type_extra = {key: found.rest for key, found in scanned.items() if found.rest}


def _num_nodes(store: Any, where: str) -> int:
    explicit = store.get("num_nodes")
    if explicit is None and store._key is not None:
        # PyG warns and gives None for a type without features; the error below says the same.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            explicit = store.num_nodes
    elif explicit is None:
        # PyG's own warning, where the number of nodes is guessed from the edges, is the user's to see.
        explicit = store.num_nodes
    if explicit is None:
        raise PlanError(f"the number of nodes of {where.rstrip('.')} is unknown", f"set {where}num_nodes")
    if int(explicit) < 0:
        raise DatasetError(f"{where}num_nodes is {int(explicit)}")
    return int(explicit)


def _row_count(data: Any, store: Any, name: str, value: Any) -> int | None:
    """The size that decides whether an attribute is node-level or edge-level; None where it is neither.

    A two-dimensional attribute joined along another dimension than its first ("..._index") holds ids, not rows.
    """
    import torch

    if not isinstance(value, (torch.Tensor, np.ndarray)) or value.ndim == 0:
        # A TensorFrame has rows without being a tensor: it is reported by ``as_rows`` rather than handed on whole.
        return int(value.num_rows) if hasattr(value, "num_rows") else None
    dim = data.__cat_dim__(name, value, store)
    return int(value.shape[0]) if isinstance(dim, int) and dim % value.ndim == 0 else None


def _scan_type(data: Any, store: Any, found: _Arrays, where: str, always: frozenset[str]) -> _Arrays:
    for name, value in store.items():
        if name in _SIZES:
            continue
        size = _row_count(data, store, name, value)
        if size == found.count:
            found.add(name, value, where)
        elif name in always:
            raise _wrong_rows(f"{where}{name}", size, found.count, "nodes" if always is _ALWAYS_NODE else "edges")
        else:
            found.rest[name] = value
    return found


def _wrong_rows(where: str, got: int | None, expected: int, what: str) -> DatasetError:
    return DatasetError(f"{where} has {'no' if got is None else got} rows, but there are {expected} {what}")


def _splits_of(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.int64]]:
    masks = {split: arrays[name] for name, split in SPLIT_MASKS.items() if name in arrays}
    return {split: np.flatnonzero(mask).astype(np.int64) for split, mask in masks.items() if mask.dtype == np.bool_ and mask.ndim == 1}


def _sha256(piece: NDArray[Any]) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data).digest()


def _row_chunks(rows: NDArray[Any]) -> Iterator[NDArray[Any]]:
    for start in range(0, len(rows), CHUNK_ROWS):
        yield rows[start : start + CHUNK_ROWS]


def _known(table: Mapping[Any, Any], key: Any, what: str) -> Any:
    if key not in table:
        names = [str(name) for name in table]
        raise PlanError(f"unknown {what} {key!r}{near_matches(str(key), names)}", f"known: {names}")
    return table[key]

"""A graphlearn-torch partition directory as a source that a store can be built from."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import DatasetError
from gnnkit.files import open_regular, read_bounded
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
from gnnkit.source import LinkSplits
from gnnkit.storage.files import NPY_DAMAGE
from gnnkit.storage.glt_format import layout as names
from gnnkit.storage.glt_format import pickles
from gnnkit.storage.glt_format.layout import GltLayout
from gnnkit.storage.glt_format.rows import MappedRows, PartRows, PickledRows, first_row, in_order

_HASHED_BYTES = 4096
_SPEC_HINT = "give the folder that a graphlearn-torch partitioner wrote"


class GltPartitionSource:
    """A graph that graphlearn-torch 0.2.4 partitioned, or that ``write_glt_partitions`` wrote; a ``GraphSource``.

    Node features become "x", edge features "edge_attr", edge weights "weight", labels "y". Parts are put together again;
    their feature caches are copies, and left out.

    Args:
        path: The directory with ``META`` in it.
        labels: Files of whole labels that ``torch.save`` wrote, by node type (a single path for a homogeneous graph): what is
            passed to graphlearn-torch as ``whole_node_label_file``. None takes those that ``write_glt_partitions`` wrote.
        name: What the dataset is called; None takes the folder's name.

    Raises:
        DatasetError: The directory is not such a directory, is damaged, or asks for code to be run.
    """

    def __init__(self, path: str | Path, *, labels: Path | Mapping[NodeType, Path] | None = None, name: str | None = None) -> None:
        root = Path(path).expanduser()
        meta = _read_meta(root / names.META_NAME)
        self.num_parts = int(meta["num_parts"])
        self._layout = GltLayout(root, typed=meta["data_cls"] == names.TYPED)
        node_types, edge_types = _types(meta)
        about = self._read_about()
        self.name: str = name or about.get("name") or root.resolve().name
        self.notice: str | None = about.get("notice")
        self.metadata: Mapping[str, Any] = about.get("metadata", {})
        self.edges_are_cheap = True
        self._labels = self._find_labels(node_types, labels)
        self._edges = {edge_type: self._open_edges(edge_type) for edge_type in edge_types}
        self.schema = self._find_schema(node_types, about)
        self.link_splits: LinkSplits = {}
        self.splits: Mapping[NodeType, Mapping[str, NDArray[np.int64]]] = {
            node_type: {split: _read_npy(self._layout.split(node_type, split)) for split in splits}
            for node_type, splits in about.get("splits", {}).items()
        }

    def fingerprint(self) -> str:
        """A digest of every file's name, size and first and last bytes."""
        digest = hashlib.sha256(b"glt-0.2.4")
        files = sorted({p for p in self._layout.root.rglob("*") if p.is_file()} | set(self._labels.values()))
        for file in files:
            size = file.stat().st_size
            digest.update(f"{file.relative_to(self._layout.root) if file.is_relative_to(self._layout.root) else file} {size}\n".encode())
            with open(open_regular(file), "rb") as stream:
                digest.update(stream.read(_HASHED_BYTES))
                stream.seek(max(size - _HASHED_BYTES, 0))
                digest.update(stream.read(_HASHED_BYTES))
        return digest.hexdigest()

    def edge_chunks(self, edge_type: EdgeType) -> Iterator[NDArray[np.int64]]:
        """Yields ``[2, k]`` (source row, target row) in the order of edge ids; see ``GraphSource.edge_chunks``."""
        edges = self._edges[edge_type]
        limits = [self.schema.node_types[end].num_nodes for end in (edge_type[0], edge_type[2])]
        parts = [MappedRows(e.ids, e.pairs) for e in edges]
        for pairs in in_order(parts, self._num_edges(edge_type), (2,), np.dtype(np.int64), f"edges {edge_type}"):
            for column, limit in enumerate(limits):
                ids = pairs[:, column]
                if ids.min() < 0 or ids.max() >= limit:
                    bad = int(ids.min()) if ids.min() < 0 else int(ids.max())
                    raise DatasetError(f"edge type {edge_type} names node {bad} of {edge_type[2 * column]!r}, which has {limit} nodes")
            yield np.ascontiguousarray(pairs.T)

    def edge_array_chunks(self, edge_type: EdgeType, name: str) -> Iterator[NDArray[Any]]:
        """Yields rows in the order of edge ids; see ``GraphSource.edge_array_chunks``."""
        spec, count = self.schema.edge_types[edge_type].arrays[name], self._num_edges(edge_type)
        extra = self._layout.edge_array(edge_type, name)
        if extra.exists():
            return _npy_chunks(extra, spec, count)
        parts: list[PartRows]
        if name == names.WEIGHT_NAME:
            parts = [MappedRows(e.ids, e.weights.__getitem__) for e in self._edges[edge_type] if e.weights is not None]
        else:
            folders = (self._layout.edge_features(p, edge_type) for p in range(self.num_parts))
            parts = [PickledRows(f) for f in folders if f.exists()]
        return in_order(parts, count, spec.row_shape, spec.numpy_dtype, f"{name!r} of edges {edge_type}")

    def node_array_chunks(self, node_type: NodeType, name: str) -> Iterator[NDArray[Any]]:
        """Yields rows in the order of node ids; see ``GraphSource.node_array_chunks``."""
        nodes = self.schema.node_types[node_type]
        spec, extra = nodes.arrays[name], self._layout.node_array(node_type, name)
        if extra.exists():
            return _npy_chunks(extra, spec, nodes.num_nodes)
        if name == names.LABEL_NAME:
            return iter([pickles.to_array(pickles.read_tensor(self._labels[node_type]))])
        folders = (self._layout.node_features(p, node_type) for p in range(self.num_parts))
        parts = [PickledRows(f) for f in folders if f.exists()]
        return in_order(parts, nodes.num_nodes, spec.row_shape, spec.numpy_dtype, f"{name!r} of nodes {node_type!r}")

    def _num_edges(self, edge_type: EdgeType) -> int:
        return self.schema.edge_types[edge_type].num_edges

    def _read_about(self) -> dict[str, Any]:
        path = self._layout.about
        if not path.exists():
            return {}
        try:
            about = json.loads(read_bounded(path))
            GraphSchema.from_json(about["schema"])
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise pickles.damaged(path, exc) from exc
        return dict(about)

    def _find_labels(self, node_types: list[NodeType], given: Path | Mapping[NodeType, Path] | None) -> dict[NodeType, Path]:
        if given is None:
            return {t: self._layout.labels(t) for t in node_types if self._layout.labels(t).exists()}
        if not isinstance(given, Mapping):
            given = {node_types[0]: given}
        unknown = set(given) - set(node_types)
        if unknown or (self._layout.typed and len(given) == 0):
            raise DatasetError(f"labels are given for the unknown node types {sorted(unknown)}", f"known: {node_types}")
        return {node_type: Path(path) for node_type, path in given.items()}

    def _open_edges(self, edge_type: EdgeType) -> list[_Edges]:
        whole = self._layout.graph(None, edge_type)
        if whole.exists():
            return [_Edges(whole, may_lack_ids=True)]
        return [_Edges(self._layout.graph(part, edge_type)) for part in range(self.num_parts)]

    def _find_schema(self, node_types: list[NodeType], about: Mapping[str, Any]) -> GraphSchema:
        nodes = {}
        for node_type in node_types:
            count = len(pickles.read_ids(self._layout.node_book(node_type)))
            nodes[node_type] = NodeTypeSchema(count, self._node_arrays(node_type, count))
        edges = {}
        for edge_type, parts in self._edges.items():
            edges[edge_type] = EdgeTypeSchema(sum(len(e.ids) for e in parts), self._edge_arrays(edge_type, parts))
        found = GraphSchema(nodes, edges, is_homogeneous=not self._layout.typed)
        if not about:
            return found
        schema = GraphSchema.from_json(about["schema"])
        for what, old, new in (("node", schema.node_types, found.node_types), ("edge", schema.edge_types, found.edge_types)):
            if list(old) != list(new) or [_size(t) for t in old.values()] != [_size(t) for t in new.values()]:
                raise pickles.damaged(self._layout.about, f"its {what} types do not agree with the partition books")
        return schema

    def _node_arrays(self, node_type: NodeType, count: int) -> dict[str, ArraySpec]:
        arrays = {}
        folders = (self._layout.node_features(p, node_type) for p in range(self.num_parts))
        spec = _feature_spec(folders)
        if spec is not None:
            arrays[names.FEATURE_NAME] = spec
        if node_type in self._labels:
            labels = pickles.read_tensor(self._labels[node_type])
            if labels.dim() == 0 or len(labels) != count:
                raise DatasetError(f"{self._labels[node_type]} holds labels of shape {list(labels.shape)} for {count} nodes")
            arrays[names.LABEL_NAME] = ArraySpec(pickles.dtype_name(labels), tuple(labels.shape[1:]))
        return arrays

    def _edge_arrays(self, edge_type: EdgeType, parts: list[_Edges]) -> dict[str, ArraySpec]:
        arrays = {}
        weights = next((e.weights for e in parts if e.weights is not None), None)
        if weights is not None:
            arrays[names.WEIGHT_NAME] = ArraySpec(str(weights.dtype))
        spec = _feature_spec(self._layout.edge_features(p, edge_type) for p in range(self.num_parts))
        if spec is not None:
            arrays[names.EDGE_FEATURE_NAME] = spec
            if not all(e.has_ids for e in parts):
                raise DatasetError(f"edge type {edge_type} has features, but {parts[0].folder} has no eids.pt to tell whose they are")
        return arrays


class _Edges:
    """The edges in one ``graph`` folder, mapped; the source's end is "rows", the target's "cols"."""

    def __init__(self, folder: Path, *, may_lack_ids: bool = False) -> None:
        self.folder = folder
        self._rows, self._cols = pickles.read_ids(folder / "rows.pt"), pickles.read_ids(folder / "cols.pt")
        self.has_ids = (folder / "eids.pt").exists() or not may_lack_ids
        # Of a topology kept whole without ids, the order is all that identifies an edge.
        self.ids = pickles.read_ids(folder / "eids.pt") if self.has_ids else np.arange(len(self._rows), dtype=np.int64)
        weights = folder / "weights.pt"
        self.weights: NDArray[Any] | None = pickles.to_array(pickles.read_tensor(weights)) if weights.exists() else None
        lengths = [len(values) for values in (self._rows, self._cols, self.ids, self.weights) if values is not None]
        if len(set(lengths)) > 1 or (self.weights is not None and self.weights.ndim != 1):
            raise pickles.damaged(folder, f"rows, cols, eids and weights have different lengths: {lengths}")

    def pairs(self, positions: Any) -> NDArray[np.int64]:
        """Edges ``[k, 2]`` at positions."""
        return np.stack([self._rows[positions], self._cols[positions]], axis=1)


def _read_meta(path: Path) -> dict[str, Any]:
    meta = pickles.read_plain_pickle(path)
    try:
        usable = meta["data_cls"] in (names.HOMOGENEOUS, names.TYPED) and int(meta["num_parts"]) >= 1
        usable = usable and (meta["data_cls"] == names.HOMOGENEOUS or (bool(meta["node_types"]) and meta["edge_types"] is not None))
    except (TypeError, KeyError, ValueError) as exc:
        raise pickles.damaged(path, f"it holds {meta!r:.200}") from exc
    if not usable:
        raise pickles.damaged(path, f"it holds {meta!r:.200}")
    return dict(meta)


def _types(meta: Mapping[str, Any]) -> tuple[list[NodeType], list[EdgeType]]:
    if meta["data_cls"] == names.HOMOGENEOUS:
        return [HOMOGENEOUS_NODE_TYPE], [HOMOGENEOUS_EDGE_TYPE]
    edge_types = []
    for edge_type in meta["edge_types"]:
        source, relation, target = (str(word) for word in edge_type)
        edge_types.append((source, relation, target))
    words = [str(t) for t in meta["node_types"]] + [word for edge_type in edge_types for word in edge_type]
    for word in words:
        if not word or "/" in word or word.startswith("."):
            raise DatasetError(f"META names the type {word!r}, which cannot be a folder", _SPEC_HINT)
    return [str(t) for t in meta["node_types"]], edge_types


def _size(type_schema: NodeTypeSchema | EdgeTypeSchema) -> int:
    return type_schema.num_nodes if isinstance(type_schema, NodeTypeSchema) else type_schema.num_edges


def _feature_spec(folders: Iterator[Path]) -> ArraySpec | None:
    for folder in folders:
        chunk = first_row(folder) if folder.exists() else None
        if chunk is not None:
            return ArraySpec(pickles.dtype_name(chunk), tuple(chunk.shape[1:]))
    return None


def _read_npy(path: Path) -> NDArray[Any]:
    try:
        os.close(open_regular(path))  # a pipe would be waited for
        values: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except NPY_DAMAGE as exc:
        raise pickles.damaged(path, exc) from exc
    return values


def _npy_chunks(path: Path, spec: ArraySpec, count: int) -> Iterator[NDArray[Any]]:
    values = _read_npy(path)
    if values.shape != (count, *spec.row_shape) or values.dtype != spec.numpy_dtype:
        raise pickles.damaged(path, f"it holds {values.dtype} of shape {values.shape}")
    step = max(min(1 << 20, (64 << 20) // max(spec.row_nbytes, 1)), 1)
    return (np.array(values[first : first + step]) for first in range(0, count, step))

"""Graphlearn-torch's partition directories: read as a source, and written from a store.

Such a directory is made of pickles, which is why reading one is always an explicit call. Nothing in it is run: tensors are
loaded as weights only, and every other pickle may hold plain values. Importing this package imports torch.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gnnkit.arguments import checks_calls
from gnnkit.errors import DatasetError, PlanError
from gnnkit.events import EventSink, Stage, ignore_events
from gnnkit.files import open_regular, read_json, user_path
from gnnkit.schema import (
    HOMOGENEOUS_EDGE_TYPE,
    HOMOGENEOUS_NODE_TYPE,
    ArraySpec,
    EdgeType,
    EdgeTypeSchema,
    GraphSchema,
    NodeType,
    NodeTypeSchema,
    edge_type_name,
)
from gnnkit.source import LinkSplits
from gnnkit.storage.arrays import EdgePart, GraphArrays, all_dataset_ids, as_tensor, dtype_name, node_values, part_edge_ids, stored_rows
from gnnkit.storage.convert import plain_rows, plain_spec
from gnnkit.storage.files import NPY_DAMAGE, ArrayWriter, FileSpec
from gnnkit.storage.layout import EDGE_FEATURE_NAME, FEATURE_NAME, LABEL_NAME, file_name
from gnnkit.storage.staging import locked, staged
from gnnkit.storage.store import Store
from gnnkit.unpickling import RestrictedUnpickler, encode_latin1

META_NAME = "META"
HOMOGENEOUS = "homo"
TYPED = "hetero"

WEIGHT_NAME = "weight"
_SPEC_HINT = "give the folder that a graphlearn-torch partitioner wrote"


@dataclass(frozen=True)
class GltLayout:
    """Paths in a partition directory.

    Attributes:
        root: The directory.
        typed: Whether there is a sub-folder per type.
    """

    root: Path
    typed: bool

    @property
    def meta(self) -> Path:
        """The pickled description."""
        return self.root / META_NAME

    @property
    def about(self) -> Path:
        """Our own description."""
        return self.root / "gnnkit" / "about.json"

    def part(self, part: int) -> Path:
        """The folder of a part."""
        return self.root / f"part{part}"

    def book(self, graph_type: NodeType | EdgeType) -> Path:
        """The partition book of a node type or an edge type."""
        return self._file("node_pb" if isinstance(graph_type, str) else "edge_pb", graph_type)

    def labels(self, node_type: NodeType) -> Path:
        """The whole labels of a node type."""
        return self._file("node_label", node_type)

    def graph(self, part: int | None, edge_type: EdgeType) -> Path:
        """The folder of an edge type's edges in a part; None for the whole graph in one place."""
        return self._folder((self.root if part is None else self.part(part)) / "graph", edge_type)

    def features(self, part: int, graph_type: NodeType | EdgeType) -> Path:
        """The folder of the features of a node type or an edge type in a part."""
        return self._folder(self.part(part) / ("node_feat" if isinstance(graph_type, str) else "edge_feat"), graph_type)

    def array(self, owner: NodeType | EdgeType, name: str) -> Path:
        """An array of nodes or edges that the layout has no other place for."""
        return self.root / "gnnkit" / ("nodes" if isinstance(owner, str) else "edges") / _word(owner) / f"{file_name(name)}.npy"

    def split(self, node_type: NodeType, name: str) -> Path:
        """The ids of a split."""
        return self.root / "gnnkit" / "splits" / node_type / f"{file_name(name)}.npy"

    def _file(self, name: str, graph_type: NodeType | EdgeType) -> Path:
        return self.root / name / f"{_word(graph_type)}.pt" if self.typed else self.root / f"{name}.pt"

    def _folder(self, folder: Path, graph_type: NodeType | EdgeType) -> Path:
        return folder / _word(graph_type) if self.typed else folder


def _word(graph_type: NodeType | EdgeType) -> str:
    return graph_type if isinstance(graph_type, str) else edge_type_name(graph_type)


def damaged(path: Path, reason: object) -> DatasetError:
    """The error for a file that cannot be what the layout says it is."""
    return DatasetError(
        f"{path} cannot be read as graphlearn-torch wrote it: {reason}", "partition the graph again, or copy the folder again"
    )


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turns whatever reading a file raises into a ``DatasetError``: unpickling damaged bytes can raise nearly anything."""
    try:
        yield
    except DatasetError:
        raise
    except FileNotFoundError as exc:
        raise DatasetError(f"{path} does not exist", _SPEC_HINT) from exc
    except Exception as exc:
        raise damaged(path, f"{type(exc).__name__}: {exc}".splitlines()[0]) from exc


def read_plain_pickle(path: Path) -> Any:
    """Unpickles numbers, text and plain containers.

    Raises:
        DatasetError: The file is missing, damaged, or asks for any class or function.
    """
    with _reading(path), open(open_regular(path), "rb") as file:
        return RestrictedUnpickler(file, {}).load()


def read_tensor(path: Path) -> torch.Tensor:
    """Maps a tensor that ``torch.save`` wrote; nothing in it is run.

    Raises:
        DatasetError: The file is missing, damaged or holds anything but a plain tensor.
    """
    with _reading(path):
        os.close(open_regular(path))  # a pipe would be waited for
        try:
            value = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:
            # Files of the format before torch 1.6 cannot be mapped.
            value = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(value, torch.Tensor):
        raise damaged(path, f"it holds a {type(value).__name__} instead of a tensor")
    return value


def read_ids(path: Path) -> NDArray[np.int64]:
    """Maps a one-dimensional tensor of ids as int64.

    Raises:
        DatasetError: As ``read_tensor``, or the tensor has another shape or kind.
    """
    return as_ids(path, read_tensor(path))


def as_ids(path: Path, tensor: torch.Tensor) -> NDArray[np.int64]:
    """A tensor of ids as int64 ``[n]``; ``path`` is for the error."""
    if tensor.dim() != 1 or tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise damaged(path, f"it holds {tensor.dtype} of shape {list(tensor.shape)} instead of ids")
    return tensor.numpy().astype(np.int64, copy=False)


def read_pickled_tensors(path: Path) -> Iterator[torch.Tensor]:
    """Yields the tensors of a ``.pkl`` file one by one.

    Raises:
        DatasetError: The file is missing, damaged or holds anything but plain tensors.
    """
    names = {
        "torch._utils._rebuild_tensor_v2": torch._utils._rebuild_tensor_v2,
        "torch.storage._load_from_bytes": lambda data: torch.load(io.BytesIO(data), map_location="cpu", weights_only=True),
        "collections.OrderedDict": OrderedDict,
        "_codecs.encode": encode_latin1,
    }
    with _reading(path), open(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        while file.tell() < size:
            value = RestrictedUnpickler(file, names).load()
            if not isinstance(value, torch.Tensor):
                raise damaged(path, f"it holds a {type(value).__name__} instead of a tensor")
            yield value


def write_pickled_tensors(path: Path, tensors: Iterator[torch.Tensor]) -> None:
    """Pickles tensors one after another; each must own its storage, all of which is written."""
    with path.open("wb") as file:
        for tensor in tensors:
            pickle.dump(tensor, file, pickle.HIGHEST_PROTOCOL)


def to_tensor(values: NDArray[Any], dtype: str) -> torch.Tensor:
    """Copies an array of an ``ArraySpec``'s dtype into a tensor."""
    return as_tensor(np.array(values), dtype)


def to_array(tensor: torch.Tensor) -> NDArray[Any]:
    """A tensor's values as they are stored."""
    return stored_rows(tensor.detach().contiguous())[0]


# A window is at most this many bytes of rows.
_WINDOW_BYTES = 64 << 20
_WINDOW_ROWS = 1 << 20


class MappedRows:
    """Rows that lie in arrays, any of which can be reached at any time.

    Args:
        ids: int64 ``[k]``.
        read: Returns the rows at given positions of ``ids``.
    """

    def __init__(self, ids: NDArray[np.int64], read: Callable[[Any], NDArray[Any]]) -> None:
        self._read = read
        # Partitioners go through the edges in order: ids are ascending nearly always, and then nothing is copied.
        self._order = None if bool((ids[:-1] <= ids[1:]).all()) else np.argsort(ids, kind="stable")
        self._ids = ids if self._order is None else ids[self._order]

    def take(self, first: int, last: int) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
        """Yields the ids in ``[first, last)`` and their rows."""
        begin, end = (int(i) for i in np.searchsorted(self._ids, [first, last]))
        if begin < end:
            positions = slice(begin, end) if self._order is None else self._order[begin:end]
            yield self._ids[begin:end], self._read(positions)


class PickledRows:
    """Rows in ``feats.pkl`` and their ids in ``ids.pkl``, which can be read front to back only.

    Chunks are read until no later one can hold an id of the range; what they hold beyond it is kept for later. The files of
    graphlearn-torch's partitioners are ordered by id, or nearly so, and little is kept.

    Args:
        folder: A ``node_feat`` or ``edge_feat`` folder.
    """

    def __init__(self, folder: Path) -> None:
        ids_path = folder / "ids.pkl"
        chunks = [as_ids(ids_path, chunk) for chunk in read_pickled_tensors(ids_path)]
        self._path = folder / "feats.pkl"
        self._ids = np.concatenate(chunks) if chunks else np.empty(0, np.int64)
        self._least_to_come = np.minimum.accumulate(self._ids[::-1])[::-1]
        self._chunks = read_pickled_tensors(self._path)
        self._position = 0
        self._waiting: list[tuple[NDArray[np.int64], NDArray[Any]]] = []

    def take(self, first: int, last: int) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
        """Yields the ids in ``[first, last)`` and their rows."""
        while self._position < len(self._ids) and self._least_to_come[self._position] < last:
            self._read_chunk()
        if self._position == len(self._ids) and any(len(chunk) for chunk in self._chunks):
            raise self._too_many()
        waiting, self._waiting = self._waiting, []
        for ids, rows in waiting:
            now = ids < last
            if now.any():
                yield ids[now], rows[now]
            if not now.all():
                self._waiting.append((ids[~now], rows[~now]))

    def _read_chunk(self) -> None:
        chunk = next(self._chunks, None)
        if chunk is None:
            raise damaged(self._path, f"it ends after {self._position} of {len(self._ids)} rows")
        rows = to_array(chunk)
        ids = self._ids[self._position : self._position + len(rows)]
        if len(ids) < len(rows):
            raise self._too_many()
        self._position += len(rows)
        self._waiting.append((ids, rows))

    def _too_many(self) -> DatasetError:
        return damaged(self._path, f"it holds more rows than the {len(self._ids)} of ids.pkl")


def in_order(parts: Sequence[MappedRows | PickledRows], count: int, spec: ArraySpec, what: str) -> Iterator[NDArray[Any]]:
    """Yields all ``count`` rows by id, each of which must be in exactly one part.

    Args:
        parts: Where the rows are.
        count: Rows in all; ids are ``0`` to ``count - 1``.
        spec: Their dtype and the shape of one of them.
        what: Whose rows they are, for the error ("edge ids of ...").

    Yields:
        ``[k, *row_shape]``.

    Raises:
        DatasetError: A row is missing, occurs twice, or has another shape or dtype.
    """
    row_shape, dtype = spec.row_shape, spec.numpy_dtype
    window = max(min(_WINDOW_ROWS, _WINDOW_BYTES // max(spec.row_nbytes, 1)), 1)
    for first in range(0, count, window):
        last = min(first + window, count)
        rows = np.empty((last - first, *row_shape), dtype)
        times = np.zeros(last - first, np.uint8)
        for part in parts:
            for ids, values in part.take(first, last):
                if ids.min() < first:
                    raise DatasetError(f"{what}: {int(ids.min())} is no valid id", f"ids must be 0 to {count - 1}")
                if values.shape[1:] != row_shape or values.dtype != dtype:
                    raise DatasetError(f"{what}: rows of {values.dtype} {values.shape[1:]} beside rows of {dtype} {row_shape}")
                rows[ids - first] = values
                np.add.at(times, ids - first, 1)
        _check_once(times, first, what)
        yield rows
    for part in parts:
        for ids, _ in part.take(count, np.iinfo(np.int64).max):
            raise DatasetError(f"{what}: {int(ids[0])} is no valid id", f"ids must be 0 to {count - 1}")


def _check_once(times: NDArray[np.uint8], first: int, what: str) -> None:
    wrong = np.flatnonzero(times != 1)
    if len(wrong):
        row = int(wrong[0])
        if times[row] == 0:
            raise DatasetError(f"{what}: nothing for id {first + row}", "the partition directory is incomplete: partition the graph again")
        raise DatasetError(
            f"{what}: id {first + row} occurs more than once",
            "graphlearn-torch appends when it partitions into the same folder again: remove the folder and partition once more",
        )


_HASHED_BYTES = 4096
_LAYOUTS = ("COO", "CSR", "CSC")


@checks_calls()
class GltPartitionSource:
    """A graph that graphlearn-torch 0.2.4 partitioned, or that ``write_glt_partitions`` wrote; a ``GraphSource``.

    Node features become "x", edge features "edge_attr", edge weights "weight", labels "y". Parts are put together again;
    their feature caches are copies, and left out.

    Args:
        path: The directory with ``META`` in it.
        labels: Files of whole labels that ``torch.save`` wrote, by node type (a single path for a homogeneous graph): what is
            passed to graphlearn-torch as ``whole_node_label_file``. None takes those that ``write_glt_partitions`` wrote.
        layout: How the folders of edges are written: "COO", or compressed as graphlearn-torch's ``input_layout`` says: with "CSC",
            ``rows.pt`` has the source of each edge and ``cols.pt`` the offset of each target's first edge; "CSR" is the other way round.
        name: What the dataset is called; None takes the folder's name.

    Raises:
        DatasetError: The directory is not such a directory, is damaged, or asks for code to be run.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        labels: str | Path | Mapping[NodeType, str | Path] | None = None,
        layout: str = "COO",
        name: str | None = None,
    ) -> None:
        if layout not in _LAYOUTS:
            raise PlanError(f"the layout of edges must be one of {list(_LAYOUTS)}, got {layout!r}")
        root = user_path(path)
        meta = _read_meta(root / META_NAME)
        self.num_parts = int(meta["num_parts"])
        self._layout = GltLayout(root, typed=meta["data_cls"] == TYPED)
        node_types, edge_types = _types(meta)
        about = self._read_about()
        self.name: str = name or about.get("name") or root.resolve().name
        self.notice: str | None = about.get("notice")
        self.metadata: Mapping[str, Any] = about.get("metadata", {})
        self.edges_are_cheap = True
        self._labels = self._find_labels(node_types, labels)
        self._edges_layout = layout
        self._edges = {edge_type: self._open_edges(edge_type) for edge_type in edge_types}
        self.schema = self._find_schema(node_types, about)
        self.link_splits: LinkSplits = {}
        self.splits: Mapping[NodeType, Mapping[str, NDArray[np.int64]]] = {
            node_type: {split: _read_npy(self._layout.split(node_type, split)) for split in splits}
            for node_type, splits in about.get("splits", {}).items()
        }

    @property
    def parts(self) -> dict[NodeType, NDArray[np.int64]]:
        """int64 ``[num_nodes]`` by type: each node's part, of the partition books."""
        return {node_type: read_ids(self._layout.book(node_type)) for node_type in self.schema.node_types}

    def fingerprint(self) -> str:
        """A digest of every file's name, size and first and last bytes."""
        digest = hashlib.sha256(b"glt-0.2.4" + self._edges_layout.encode() * (self._edges_layout != "COO"))
        for file in sorted({p for p in self._layout.root.rglob("*") if p.is_file()} | set(self._labels.values())):
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
        for pairs in in_order(parts, self.schema.edge_types[edge_type].num_edges, ArraySpec("int64", (2,)), f"edges {edge_type}"):
            for column, limit in enumerate(limits):
                ids = pairs[:, column]
                if ids.min() < 0 or ids.max() >= limit:
                    bad = int(ids.min()) if ids.min() < 0 else int(ids.max())
                    raise DatasetError(f"edge type {edge_type} names node {bad} of {edge_type[2 * column]!r}, which has {limit} nodes")
            yield np.ascontiguousarray(pairs.T)

    def edge_array_chunks(self, edge_type: EdgeType, name: str) -> Iterator[NDArray[Any]]:
        """Yields rows in the order of edge ids; see ``GraphSource.edge_array_chunks``."""
        weights = None
        if name == WEIGHT_NAME:
            weights = [MappedRows(e.ids, e.weights.__getitem__) for e in self._edges[edge_type] if e.weights is not None]
        return self._array_chunks(edge_type, name, weights)

    def node_array_chunks(self, node_type: NodeType, name: str) -> Iterator[NDArray[Any]]:
        """Yields rows in the order of node ids; see ``GraphSource.node_array_chunks``."""
        if name == LABEL_NAME and node_type in self._labels:
            nodes = self.schema.node_types[node_type]
            return iter([to_array(read_tensor(self._labels[node_type])).reshape(nodes.num_nodes, *nodes.arrays[name].row_shape)])
        return self._array_chunks(node_type, name)

    def _array_chunks(self, owner: NodeType | EdgeType, name: str, rows: Sequence[MappedRows] | None = None) -> Iterator[NDArray[Any]]:
        """Yields rows of an array with a file of its own, else ``rows``, else features, in the order of ids."""
        extra, what = self._layout.array(owner, name), "nodes" if isinstance(owner, str) else "edges"
        spec, count = self.schema.arrays_of(owner)[name], self.schema.counts[owner]
        if extra.exists():
            return _npy_chunks(extra, spec, count)
        parts = [PickledRows(folder) for folder in self._feature_folders(owner)] if rows is None else rows
        return in_order(parts, count, spec, f"{name!r} of {what} {owner!r}")

    def _feature_folders(self, owner: NodeType | EdgeType) -> list[Path]:
        return [folder for part in range(self.num_parts) if (folder := self._layout.features(part, owner)).exists()]

    def _read_about(self) -> dict[str, Any]:
        path = self._layout.about
        if not path.exists():
            return {}
        try:
            about = read_json(path)
            GraphSchema.from_json(about["schema"])
        except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as exc:
            raise damaged(path, exc) from exc
        return dict(about)

    def _find_labels(self, node_types: list[NodeType], given: str | Path | Mapping[NodeType, str | Path] | None) -> dict[NodeType, Path]:
        if given is None:
            return {t: self._layout.labels(t) for t in node_types if self._layout.labels(t).exists()}
        if not isinstance(given, Mapping):
            given = {node_types[0]: given}
        unknown = set(given) - set(node_types)
        if unknown or (self._layout.typed and len(given) == 0):
            raise DatasetError(f"labels are given for the unknown node types {sorted(unknown)}", f"known: {node_types}")
        return {node_type: user_path(path) for node_type, path in given.items()}

    def _open_edges(self, edge_type: EdgeType) -> list[_MappedEdges]:
        whole = self._layout.graph(None, edge_type)
        if whole.exists():
            return [_MappedEdges(whole, self._edges_layout, may_lack_ids=True)]
        return [_MappedEdges(self._layout.graph(part, edge_type), self._edges_layout) for part in range(self.num_parts)]

    def _find_schema(self, node_types: list[NodeType], about: Mapping[str, Any]) -> GraphSchema:
        counts = {t: len(read_ids(self._layout.book(t))) for t in node_types}
        nodes = {t: NodeTypeSchema(count, self._node_arrays(t, count)) for t, count in counts.items()}
        edges = {t: EdgeTypeSchema(sum(len(e.ids) for e in parts), self._edge_arrays(t, parts)) for t, parts in self._edges.items()}
        found = GraphSchema(nodes, edges, is_homogeneous=not self._layout.typed)
        if not about:
            return found
        # A user's file of labels stands before what the folder has.
        own = {t for t, path in self._labels.items() if path != self._layout.labels(t)}
        schema = GraphSchema.from_json(about["schema"]).with_arrays(
            lambda t, arrays: dict(arrays) | ({LABEL_NAME: found.arrays_of(t)[LABEL_NAME]} if t in own else {})
        )
        for what, old, new in (("node", schema.node_types, found.node_types), ("edge", schema.edge_types, found.edge_types)):
            if list(old) != list(new) or [_size(t) for t in old.values()] != [_size(t) for t in new.values()]:
                raise damaged(self._layout.about, f"its {what} types do not agree with the partition books")
        return schema

    def _node_arrays(self, node_type: NodeType, count: int) -> dict[str, ArraySpec]:
        arrays, spec = {}, _feature_spec(self._feature_folders(node_type))
        if spec is not None:
            arrays[FEATURE_NAME] = spec
        if node_type in self._labels:
            labels = read_tensor(self._labels[node_type])
            if labels.dim() == 0 or len(labels) != count:
                raise DatasetError(f"{self._labels[node_type]} holds labels of shape {list(labels.shape)} for {count} nodes")
            # As graphlearn-torch's ``init_node_labels``: a single column is one label for each node.
            arrays[LABEL_NAME] = ArraySpec(dtype_name(labels), tuple(size for size in labels.shape[1:] if size != 1))
        return arrays

    def _edge_arrays(self, edge_type: EdgeType, parts: list[_MappedEdges]) -> dict[str, ArraySpec]:
        arrays = {}
        weights = next((e.weights for e in parts if e.weights is not None), None)
        if weights is not None:
            arrays[WEIGHT_NAME] = ArraySpec(str(weights.dtype))
        spec = _feature_spec(self._feature_folders(edge_type))
        if spec is not None:
            arrays[EDGE_FEATURE_NAME] = spec
            if not all(e.has_ids for e in parts):
                raise DatasetError(f"edge type {edge_type} has features, but {parts[0].folder} has no eids.pt to tell whose they are")
        return arrays


class _MappedEdges:
    """The edges in one ``graph`` folder, mapped; the source's end is "rows", the target's "cols", and offsets are spelled out."""

    def __init__(self, folder: Path, layout: str, *, may_lack_ids: bool = False) -> None:
        self.folder = folder
        ends = {name: read_ids(folder / f"{name}.pt") for name in ("rows", "cols")}
        if layout != "COO":
            offsets, other = ("rows", "cols") if layout == "CSR" else ("cols", "rows")
            ends[offsets] = self._spelled_out(folder / f"{offsets}.pt", ends[offsets], len(ends[other]))
        self._rows, self._cols = ends["rows"], ends["cols"]
        self.has_ids = (folder / "eids.pt").exists() or not may_lack_ids
        # Of a topology kept whole without ids, the order is all that identifies an edge.
        self.ids = read_ids(folder / "eids.pt") if self.has_ids else np.arange(len(self._rows), dtype=np.int64)
        weights = folder / "weights.pt"
        self.weights: NDArray[Any] | None = to_array(read_tensor(weights)) if weights.exists() else None
        lengths = [len(values) for values in (self._rows, self._cols, self.ids, self.weights) if values is not None]
        if len(set(lengths)) > 1 or (self.weights is not None and self.weights.ndim != 1):
            reason = f"rows, cols, eids and weights have different lengths: {lengths}"
            if layout == "COO" and len(self._rows) != len(self._cols):
                raise DatasetError(f"{folder}: {reason}", 'give input_layout="CSC" (or "CSR") where one of rows and cols holds offsets')
            raise damaged(folder, reason)

    @staticmethod
    def _spelled_out(path: Path, offsets: NDArray[np.int64], num_edges: int) -> NDArray[np.int64]:
        """Returns the node of each edge, int64 ``[num_edges]``, of the offset of each node's first edge."""
        if not len(offsets) or offsets[0] != 0 or offsets[-1] != num_edges or (np.diff(offsets) < 0).any():
            raise DatasetError(f"{path} holds no offsets of {num_edges} edges", 'edges that are not compressed are input_layout="COO"')
        return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))

    def pairs(self, positions: Any) -> NDArray[np.int64]:
        """Edges ``[k, 2]`` at positions."""
        return np.stack([self._rows[positions], self._cols[positions]], axis=1)


def _read_meta(path: Path) -> dict[str, Any]:
    meta = read_plain_pickle(path)
    try:
        usable = meta["data_cls"] in (HOMOGENEOUS, TYPED) and int(meta["num_parts"]) >= 1
        usable = usable and (meta["data_cls"] == HOMOGENEOUS or (bool(meta["node_types"]) and meta["edge_types"] is not None))
    except (TypeError, KeyError, ValueError) as exc:
        raise damaged(path, f"it holds {meta!r:.200}") from exc
    if not usable:
        raise damaged(path, f"it holds {meta!r:.200}")
    return dict(meta)


def _types(meta: Mapping[str, Any]) -> tuple[list[NodeType], list[EdgeType]]:
    if meta["data_cls"] == HOMOGENEOUS:
        return [HOMOGENEOUS_NODE_TYPE], [HOMOGENEOUS_EDGE_TYPE]
    edge_types = [(str(source), str(relation), str(target)) for source, relation, target in meta["edge_types"]]
    for word in [str(t) for t in meta["node_types"]] + [word for edge_type in edge_types for word in edge_type]:
        if not word or "/" in word or word.startswith("."):
            raise DatasetError(f"META names the type {word!r}, which cannot be a folder", _SPEC_HINT)
    return [str(t) for t in meta["node_types"]], edge_types


def _size(type_schema: NodeTypeSchema | EdgeTypeSchema) -> int:
    return type_schema.num_nodes if isinstance(type_schema, NodeTypeSchema) else type_schema.num_edges


def _feature_spec(folders: list[Path]) -> ArraySpec | None:
    for folder in folders:
        chunk = next(read_pickled_tensors(folder / "feats.pkl"), None)
        if chunk is not None:
            return ArraySpec(dtype_name(chunk), tuple(chunk.shape[1:]))
    return None


def _read_npy(path: Path) -> NDArray[Any]:
    try:
        os.close(open_regular(path))  # a pipe would be waited for
        values: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except NPY_DAMAGE as exc:
        raise damaged(path, exc) from exc
    return values


def _npy_chunks(path: Path, spec: ArraySpec, count: int) -> Iterator[NDArray[Any]]:
    values = _read_npy(path)
    if values.shape != (count, *spec.stored_shape) or values.dtype != spec.numpy_dtype:
        raise damaged(path, f"it holds {values.dtype} of shape {values.shape}")
    step = max(min(1 << 20, (64 << 20) // max(spec.row_nbytes, 1)), 1)
    return (np.array(values[first : first + step]) for first in range(0, count, step))


# graphlearn-torch pickles 10 000 rows at a time.
_CHUNK_ROWS = 10_000


@checks_calls()
def write_glt_partitions(store: Store, out: str | Path, events: EventSink = ignore_events) -> None:
    """Writes a store's parts in graphlearn-torch's layout (``gnnkit.storage.glt_format``).

    Edges keep the part of the node that owns them: pass the store's ``edge_dir`` to graphlearn-torch's datasets. Where the
    store has no edge ids, edges are numbered by their place in it. A part without nodes of a type has no feature folder for
    it: graphlearn-torch cannot load an empty one. Each part is put together in memory, as graphlearn-torch reads it.

    Args:
        store: What to write.
        out: A folder that does not exist yet; it appears when everything is in it.
        events: Receives the stage "export".

    Raises:
        PlanError: ``out`` exists already, or a folder cannot be called after a type.
        StoreError: Not all parts of ``store`` are open, it is damaged, or ``out`` cannot be written. Nothing is left behind then.
    """
    out = user_path(out)
    if out.exists():
        raise PlanError(f"{out} exists already", "give a folder that does not exist, or remove this one")
    graph = store.require().arrays()
    for word in sorted({*graph.schema.node_types, *(word for edge_type in graph.schema.edge_types for word in edge_type)}):
        if file_name(word) != word:
            raise PlanError(f"graphlearn-torch calls folders after types, and no folder can be called {word!r}", "rename the type")
    store.checked(events=events)
    total = graph.schema.num_nodes + graph.schema.num_edges
    with (
        locked(out, 0.0, events, "written"),
        staged(out) as partial,
        Stage(events, "export", label=f"{out.name} for graphlearn-torch", total=total, unit="rows") as stage,
    ):
        if any(part.edge_id is None for parts in graph.edges.values() for part in parts):
            stage.message("the store has no edge ids: edges are numbered by their place in it")
        _Writer(store, graph, GltLayout(partial, typed=not graph.schema.is_homogeneous), stage).write()


class _Writer:
    def __init__(self, store: Store, graph: GraphArrays, layout: GltLayout, stage: Stage) -> None:
        self._store, self._graph, self._layout, self._stage = store, graph, layout, stage
        self._weight = store.options.weight or WEIGHT_NAME
        # graphlearn-torch knows no quantised features: they are written as what they stand for.
        self._schema = graph.schema.with_arrays(lambda _, arrays: {name: plain_spec(spec) for name, spec in arrays.items()})
        self._dataset_ids = {t: all_dataset_ids(graph, t) for t in graph.schema.node_types}

    def write(self) -> None:
        for part in range(self._graph.num_parts):
            self._layout.part(part).mkdir()
        for node_type in self._graph.schema.node_types:
            self._write_nodes(node_type)
        for edge_type in self._graph.schema.edge_types:
            self._write_edges(edge_type)
        self._write_about()
        # Last, so that nothing that has it is incomplete.
        typed = self._layout.typed
        meta = {
            "num_parts": self._graph.num_parts,
            "data_cls": TYPED if typed else HOMOGENEOUS,
            "node_types": list(self._graph.schema.node_types) if typed else None,
            "edge_types": list(self._graph.schema.edge_types) if typed else None,
        }
        self._layout.meta.write_bytes(pickle.dumps(meta))

    def _write_nodes(self, node_type: NodeType) -> None:
        nodes, stored = self._schema.node_types[node_type], self._graph.schema.node_types[node_type].arrays
        bounds, ids = self._graph.node_bounds[node_type], self._dataset_ids[node_type]
        book = np.empty(nodes.num_nodes, np.int64)
        book[ids] = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
        _save(self._layout.book(node_type), torch.from_numpy(book))
        for name, spec in nodes.arrays.items():
            if name == FEATURE_NAME and len(spec.row_shape) == 1:
                for part, own in enumerate(self._graph.nodes[node_type]):
                    rows = plain_rows(own.arrays[name], stored[name])
                    _write_rows(self._layout.features(part, node_type), ids[bounds[part] : bounds[part + 1]], rows, spec.dtype)
                self._write_caches(node_type, stored[name])
                continue
            whole = plain_rows(node_values(self._graph, node_type, name), stored[name])
            if name == LABEL_NAME:
                _save(self._layout.labels(node_type), to_tensor(whole, spec.dtype))
            else:
                _save_npy(self._layout.array(node_type, name), whole)
        self._stage.advance(nodes.num_nodes)

    def _write_caches(self, node_type: NodeType, spec: ArraySpec) -> None:
        for part in range(self._graph.num_parts):
            cache = self._store.cache(part).get(node_type)
            folder = self._layout.features(part, node_type)
            if cache is not None and len(cache.global_id) and folder.exists():
                _save(folder / "cache_ids.pt", torch.from_numpy(np.array(cache.global_id, np.int64)))
                _save(folder / "cache_feats.pt", to_tensor(plain_rows(cache.x, spec), spec.batch_dtype))

    def _write_edges(self, edge_type: EdgeType) -> None:
        edges, stored = self._schema.edge_types[edge_type], self._graph.schema.edge_types[edge_type].arrays
        book = np.empty(edges.num_edges, np.int64)
        edge_ids, orders = [], []
        frontier, neighbor = self._graph.frontier_type(edge_type), self._graph.neighbor_type(edge_type)
        for part, arrays in enumerate(self._graph.edges[edge_type]):
            owners = slice(*self._graph.node_bounds[frontier][part : part + 2])
            own = np.repeat(self._dataset_ids[frontier][owners], np.diff(arrays.indptr))
            other = self._dataset_ids[neighbor][arrays.indices]
            rows, cols = (other, own) if self._graph.edge_dir == "in" else (own, other)
            eids = part_edge_ids(self._graph, edge_type, part)
            order = np.argsort(eids, kind="stable")
            eids = eids[order]
            book[eids] = part
            folder = self._layout.graph(part, edge_type)
            for name, values in (("rows", rows[order]), ("cols", cols[order]), ("eids", eids)):
                _save(folder / f"{name}.pt", torch.from_numpy(values))
            if (weights := self._weights(edge_type, arrays)) is not None:
                _save(folder / "weights.pt", torch.from_numpy(np.array(weights[order], np.float32)))
            edge_ids.append(eids)
            orders.append(order)
            self._stage.advance(len(eids))
        _save(self._layout.book(edge_type), torch.from_numpy(book))
        for name, spec in edges.arrays.items():
            columns = [plain_rows(part.arrays[name], stored[name]) for part in self._graph.edges[edge_type]]
            if name == EDGE_FEATURE_NAME and len(spec.row_shape) == 1:
                for part, values in enumerate(columns):
                    _write_rows(self._layout.features(part, edge_type), edge_ids[part], values, spec.dtype, orders[part])
            elif (name, self._weight, spec) != (WEIGHT_NAME, WEIGHT_NAME, ArraySpec("float32")):
                whole = np.empty((edges.num_edges, *spec.stored_shape), spec.numpy_dtype)
                for rows, ids, order in zip(columns, edge_ids, orders, strict=True):
                    whole[ids] = rows[order]
                _save_npy(self._layout.array(edge_type, name), whole)

    def _weights(self, edge_type: EdgeType, arrays: EdgePart) -> NDArray[Any] | None:
        spec = self._graph.schema.edge_types[edge_type].arrays.get(self._weight)
        return arrays.arrays[self._weight] if spec is not None and spec.row_shape == () else None

    def _write_about(self) -> None:
        splits = self._store.splits
        about = {
            "name": self._store.name,
            "notice": self._store.notice,
            "metadata": dict(self._store.metadata),
            "edge_dir": self._graph.edge_dir,
            "schema": self._schema.to_json(),
            "splits": {node_type: list(ids) for node_type, ids in splits.items()},
        }
        self._layout.about.parent.mkdir(exist_ok=True)
        self._layout.about.write_text(json.dumps(about, indent=1))
        for node_type, by_name in splits.items():
            for split, ids in by_name.items():
                _save_npy(self._layout.split(node_type, split), np.asarray(ids, dtype=np.int64))


def _write_rows(folder: Path, ids: NDArray[np.int64], rows: NDArray[Any], dtype: str, order: NDArray[np.int64] | None = None) -> None:
    """Writes ``feats.pkl`` and ``ids.pkl``; ``rows`` are in the order of ``ids`` once ``order`` has been applied to them."""
    if not len(ids):
        return
    folder.mkdir(parents=True)

    def chunks() -> Iterator[torch.Tensor]:
        for first in range(0, len(ids), _CHUNK_ROWS):
            last = first + _CHUNK_ROWS
            yield to_tensor(rows[first:last] if order is None else rows[order[first:last]], dtype)

    write_pickled_tensors(folder / "feats.pkl", chunks())
    write_pickled_tensors(
        folder / "ids.pkl", (torch.from_numpy(np.array(ids[f : f + _CHUNK_ROWS])) for f in range(0, len(ids), _CHUNK_ROWS))
    )


def _save(path: Path, tensor: torch.Tensor) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    torch.save(tensor, content)
    path.write_bytes(content.getbuffer())  # torch's own writing does not say why it fails


def _save_npy(path: Path, values: NDArray[Any]) -> None:
    writer = ArrayWriter(path.parent, path.name, FileSpec(values.dtype, values.shape))
    writer.write(0, values)
    writer.finish()

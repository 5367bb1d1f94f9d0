"""A user's PyG ``Data`` or ``HeteroData``: as a graph source, as the arrays that sampling reads, and with label edges."""

from __future__ import annotations

import copy
import hashlib
import json
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.arguments import checks_calls
from gnnkit.bounds import check_choice
from gnnkit.callers import warn
from gnnkit.errors import DatasetError, PlanError, near_matches
from gnnkit.host import available_cpus
from gnnkit.schema import (
    ELEMENT_TYPES,
    HOMOGENEOUS_EDGE_TYPE,
    HOMOGENEOUS_NODE_TYPE,
    ArraySpec,
    EdgeDir,
    EdgeType,
    EdgeTypeSchema,
    GraphSchema,
    NodeType,
    NodeTypeSchema,
    opposite_edge_type,
)
from gnnkit.source import CHUNK_ROWS, LazyMapping, LinkSplits
from gnnkit.splits import SPLIT_MASKS, has_label, is_split_attribute, split_index_of, split_name, splits_of, with_labels
from gnnkit.storage.arrays import EdgePart, GraphArrays, NodePart, stored_rows
from gnnkit.storage.edge_values import (
    as_times,
    check_time_attr,
    check_weights,
    time_order,
    timed_edge_types,
    weight_exponent,
    weight_prefix,
)
from gnnkit.storage.kernels import count_degrees, place_edges
from gnnkit.storage.layout import LABEL_NAME, TRAIN, index_dtype
from gnnkit.storage.staging import check_memory

if TYPE_CHECKING:
    import torch
    from torch_geometric.data import Data, HeteroData


def as_rows(value: Any, where: str, dim: int = 0) -> tuple[NDArray[Any], ArraySpec]:
    """A tensor as a C-contiguous NumPy array, on the same memory where it is in memory and contiguous, rows first.

    Args:
        value: A dense tensor or NumPy array, such as ``[n, ...]``.
        where: Its name in error messages.
        dim: The dimension that its rows lie along.

    Returns:
        The array ``[n, ...]`` as it is stored, and the specification of a row. What NumPy maps stays mapped.

    Raises:
        PlanError: It is no dense array, or of a dtype that cannot be stored.
    """
    if isinstance(value, np.ndarray):
        rows = _native(value, where)
        dtype = rows.dtype.name
    else:
        rows, dtype = _dense(value, where)
    rows = np.ascontiguousarray(np.moveaxis(rows, dim, 0))
    return rows, ArraySpec(dtype, rows.shape[1:], dim=dim)


def is_dense(value: torch.Tensor) -> bool:
    """Whether a tensor has a number at each place of its shape."""
    import torch  # heavy

    return value.layout == torch.strided and not value.is_nested and not isinstance(value, torch.masked.MaskedTensor)


def _dense(value: Any, where: str) -> tuple[NDArray[Any], str]:
    """A dense tensor as an array, and its dtype; a CUDA tensor is copied."""
    import torch  # heavy

    if not isinstance(value, torch.Tensor):
        raise PlanError(
            f"{where} has a value for each node or edge and is a {type(value).__name__}, which batches cannot take rows of",
            f"make it a tensor; or del {where}, and look values up by a batch's ids, batch.n_id.tolist() or batch.e_id.tolist()",
        )
    if not is_dense(value):
        kind = "a nested tensor" if value.is_nested else "a masked tensor" if value.layout == torch.strided else str(value.layout)
        raise PlanError(f"{where} must be a dense tensor, got {kind}", f"use {where}.to_dense(), or delete it")
    if value.is_quantized:
        hint = f"{where}.dequantize() gives its numbers; a store keeps 8 bits of them with feature_dtype='quint8'"
        raise PlanError(f"{where} is a quantised tensor", hint)
    if value.is_meta:
        raise PlanError(f"{where} is on the device 'meta', which has no values", f"load {where} before the loader is made")
    if value.requires_grad:
        warn(f"{where} requires gradients, and batches carry its values alone")
    value = value.detach().resolve_conj().resolve_neg().cpu()
    try:
        return stored_rows(value)
    except TypeError as error:
        raise PlanError(f"{where} has the dtype {value.dtype}, which NumPy does not know", "convert it first") from error


def edge_index_of(store: Any, where: str) -> NDArray[Any]:
    """The edges of a PyG storage, int64 or int32 ``[2, num_edges]``; ids are not checked.

    Args:
        store: The storage.
        where: Its name in error messages, with the dot behind it.

    Raises:
        PlanError: Edges are held as ``adj`` or ``adj_t``, or are missing.
        DatasetError: ``edge_index`` has another dtype or shape.
    """
    import torch  # heavy

    for name in ("adj_t", "adj"):
        if name in store:
            raise PlanError(
                f"{where}{name} holds the edges as a sparse matrix; gnnkit reads edge_index",
                f"leave out the transform ToSparseTensor, or delete {where}{name} and set {where}edge_index",
            )
    if "edge_index" not in store:
        raise PlanError(f"{where}edge_index is missing", "a graph without edges has torch.empty(2, 0, dtype=torch.long)")
    value = store["edge_index"]
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        # An EdgeIndex, a subclass with checks of its own, is looked at as the plain tensor that it is.
        edges: NDArray[Any] = _dense(value.as_subclass(torch.Tensor), f"{where}edge_index")[0]
    elif isinstance(value, np.ndarray):
        edges = _native(value, f"{where}edge_index")
    else:
        raise DatasetError(f"{where}edge_index must be a dense tensor, got {type(value).__name__}")
    if edges.dtype not in (np.int64, np.int32):
        raise DatasetError(f"{where}edge_index has the dtype {value.dtype}; ids are torch.int64", f"{where}edge_index.long()")
    if edges.ndim != 2 or len(edges) != 2:
        transposed = edges.ndim == 2 and edges.shape[1] == 2
        hint = f"{where}edge_index.t().contiguous()" if transposed else "row 0 holds the sources, row 1 the targets"
        raise DatasetError(f"{where}edge_index has the shape {list(edges.shape)}, expected [2, num_edges]", hint)
    return edges


def _native(array: NDArray[Any], where: str) -> NDArray[Any]:
    """An array in this machine's byte order, on the same memory where it is in that already."""
    import torch  # heavy

    if isinstance(array, np.ma.MaskedArray):
        raise PlanError(f"{where} is a masked array, and rows have every value", f"fill what is masked: {where}.filled(...)")
    if not isinstance(getattr(torch, array.dtype.name, None), torch.dtype):
        raise PlanError(f"{where} has the dtype {array.dtype}, which PyTorch does not know", "convert it first")
    return np.asarray(array, array.dtype.newbyteorder("="))


# Attributes that cannot be anything else: another number of rows is a mistake and not a graph-level attribute.
_ALWAYS_NODE = frozenset({"x", *SPLIT_MASKS})
_ALWAYS_EDGE = frozenset({"edge_attr", "edge_weight"})
# Attributes that are the nodes' without a doubt, also where there are as many edges.
_OF_NODES = _ALWAYS_NODE | {"y", "pos", "batch", "n_id"}
_SIZES = frozenset({"num_nodes", "num_edges", "edge_index"})
_ROWS_HASHED_AT_ONCE = 1 << 16
_MOST_HASHING = 4


def graph_hint(value: Any) -> str | None:
    """Returns the way to the graph of something that is none and holds some, a dataset or a pair of OGB's; None of anything else."""
    from torch_geometric.data import Data, Dataset, HeteroData  # heavy

    has_splits = hasattr(value, "get_idx_split") or hasattr(value, "get_edge_split")
    name, root = getattr(value, "name", None), getattr(value, "original_root", None)
    is_ogbs = has_splits and not str(name).startswith("ogbg-")  # which are of many graphs
    from_ogb = (
        f"GraphLoader.from_ogb({name!r}{f', root={root!r}' if root else ''})" if isinstance(name, str) else "GraphLoader.from_ogb(name)"
    )
    if isinstance(value, Dataset):
        if len(value) > 1:
            graphs = f"it holds {len(value):,} graphs: give one, such as dataset[0]"
            return f"{graphs}; batches of whole graphs are made by torch_geometric.loader.DataLoader(dataset)"
        return f"give its graph: dataset[0]{f'; or {from_ogb}' if is_ogbs else ''}"
    if is_ogbs:
        return f"it gives dicts of arrays; {from_ogb} opens the dataset"
    first = value[0] if isinstance(value, (tuple, list)) and value else value
    if first is not value and isinstance(first, (Data, HeteroData)):
        return f"torch_geometric.data.Batch.from_data_list(graphs) makes one of its {len(value)} graphs; [0] is the first of them"
    if hasattr(value, "__arrow_c_stream__") or hasattr(value, "columns"):
        return "it is a table: GraphLoader.from_tables(edges, nodes, ...) takes it, and gnnkit.partition(gnnkit.tables(edges, nodes), ...)"
    if hasattr(value, "shape") and value.shape[:1] == (2,):
        return "torch_geometric.data.Data(edge_index=edge_index, num_nodes=n) makes a graph of its edges"
    if isinstance(first, Mapping) and ("edge_index" in first or "edge_index_dict" in first):
        return f"it is what NodePropPredDataset gives: {from_ogb} opens the dataset; or make a Data of its arrays, with torch.from_numpy()"
    return None


@dataclass
class _TypeArrays:
    """The arrays of one node type or edge type; ``rest`` holds values that are neither node-level nor edge-level."""

    count: int
    where: str
    always: frozenset[str]
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    specs: dict[str, ArraySpec] = field(default_factory=dict)
    rest: dict[str, Any] = field(default_factory=dict)

    def takes(self, name: str, value: Any, size: int | None, dim: int) -> bool:
        """Whether an attribute has a row for each node or edge of the type, and is one of its arrays from here on."""
        if size == self.count:
            self.arrays[name], self.specs[name] = as_rows(value, f"{self.where}{name}", dim)
        elif name in self.always:
            what = "nodes" if self.always is _ALWAYS_NODE else "edges"
            raise DatasetError(f"{self.where}{name} has {'no' if size is None else size} rows, but there are {self.count} {what}")
        return size == self.count


def _versions(data: Data | HeteroData) -> Iterator[tuple[str, Any, int]]:
    """The node-level, edge-level and other tensors of an object: name, tensor, and how often it has been changed in place."""
    import torch  # heavy

    for store in data.stores:
        key = store._key
        for name, value in store.items():
            if isinstance(value, torch.Tensor) and not value.is_inference():  # of those, no changes are counted
                yield f"data.{name}" if key is None else f"data[{key!r}].{name}", value, value._version


@checks_calls()
class PyGSource:
    """A ``GraphSource`` over a ``Data`` or ``HeteroData``: its tensors are read where they are, whenever they are asked for.

    Node-level and edge-level are what PyG takes for them: the size along the attribute's ``__cat_dim__`` decides, and where a
    graph has as many nodes as edges, the name does: "edge" in it and ``edge_arrays`` are the edges'. Attributes of nodes that hold splits,
    such as ``train_mask``, ``train_idx`` and ``split_idx``, are these as well, see ``gnnkit.splits.splits_of``. Training nodes without a
    label ``y`` are left out of their split when it is first used, with a warning.

    Args:
        data: The graph; must not change while it is in use.
        more_splits: Splits beside those of masks, in their own order.
        parts: Each node's part by type, integers ``[num_nodes]``, where the graph is in parts; see ``PartedSource``.
        edge_arrays: Names that are asked for as those of edge arrays, such as that of weights.

    Attributes:
        parts: See above.
        extra: Attributes of the graph as a whole, by name.
        type_extra: Attributes of one node type or edge type as a whole; ``{type: {name: value}}``, empty for ``Data``.

    Raises:
        PlanError: ``data`` is no such object, holds its edges as ``adj`` or ``adj_t``, holds a sparse tensor or one of a dtype that
            cannot be stored, or the number of nodes of a type is unknown.
        DatasetError: ``edge_index`` is no integer ``[2, num_edges]``; "x", a mask or "edge_attr" has a wrong number of rows.
    """

    def __init__(
        self,
        data: Data | HeteroData,
        more_splits: Mapping[NodeType, Mapping[str, NDArray[np.int64]]] | None = None,
        parts: Mapping[NodeType, NDArray[Any]] | None = None,
        edge_arrays: Collection[str | None] = (),
    ) -> None:
        from torch_geometric.data import Data, HeteroData  # heavy

        if not isinstance(data, (Data, HeteroData)):
            raise PlanError(f"expected a torch_geometric.data.Data or HeteroData, got {type(data).__name__}", graph_hint(data))
        self._made_of = copy.copy(data), more_splits, parts
        self.name = "pyg"
        self.notice: str | None = None
        self.metadata: Mapping[str, Any] = {}
        self.edges_are_cheap = True
        self.parts = parts
        self.extra: dict[str, Any] = {}
        self.type_extra: dict[NodeType | EdgeType, dict[str, Any]] = {}
        self._edge_index: dict[EdgeType, NDArray[Any]] = {}
        self._fingerprint: str | None = None
        self._told: set[NodeType] = set()  # those whose nodes without a label were warned of
        self._checked: set[tuple[EdgeType, int]] = set()  # chunks of edges whose ids are known to be in range
        self._nodes: dict[NodeType, _TypeArrays] = {}
        self._edges: dict[EdgeType, _TypeArrays] = {}
        self._versions = list(_versions(data))
        if isinstance(data, HeteroData):
            self._scan_typed(data)
        else:
            self._scan_homogeneous(data, edge_arrays)
        self.schema = GraphSchema(
            {node_type: NodeTypeSchema(found.count, found.specs) for node_type, found in self._nodes.items()},
            {edge_type: EdgeTypeSchema(found.count, found.specs) for edge_type, found in self._edges.items()},
            is_homogeneous=not isinstance(data, HeteroData),
        )
        self.link_splits: LinkSplits = {}
        self._all_splits = {t: {**self._found_splits(t, found), **(more_splits or {}).get(t, {})} for t, found in self._nodes.items()}
        self.splits: Mapping[NodeType, Mapping[str, NDArray[np.int64]]] = {
            t: LazyMapping(list(own), partial(self._seeds, t)) for t, own in self._all_splits.items() if own
        }

    def __reduce__(self) -> tuple[Any, ...]:
        told = ("name", "notice", "metadata", "edges_are_cheap", "splits", "link_splits")  # which others may have told it since
        return PyGSource, self._made_of, {name: getattr(self, name) for name in told}

    def __repr__(self) -> str:
        return f"PyGSource({self.schema.num_nodes:,} nodes, {self.schema.num_edges:,} edges)"

    @property
    def left_out(self) -> list[str]:
        """The attributes that are those of no single node or edge, and that a store of the graph does not hold."""
        of_types = [f"data[{owner!r}].{name}" for owner, values in self.type_extra.items() for name in values]
        return [where for where in [f"data.{name}" for name in self.extra] + of_types if not is_split_attribute(where.rpartition(".")[2])]

    def _found_splits(self, node_type: NodeType, found: _TypeArrays) -> dict[str, NDArray[np.int64]]:
        """The splits that attributes hold, those of a dict of the whole graph's by type among them."""
        own = {**found.rest, **(self.extra if self.schema.is_homogeneous else {}), **found.arrays}
        if not self.schema.is_homogeneous and isinstance(by_split := self.extra.get("split_idx"), Mapping):
            by_type = {s: ids[node_type] for s, ids in by_split.items() if isinstance(ids, Mapping) and node_type in ids}
            own = {"split_idx": by_type, **own}
        return splits_of(own.items(), found.count, found.where)

    def _seeds(self, node_type: NodeType, split: str) -> NDArray[np.int64]:
        ids, labels = self._all_splits[node_type][split], self._nodes[node_type].arrays.get(LABEL_NAME)
        if labels is None or split_name(split).partition(".")[0] != TRAIN:
            return ids
        where = f"{self._nodes[node_type].where}{LABEL_NAME}"
        kept = with_labels(ids, has_label(labels[ids]), where, split, is_told=node_type in self._told)
        self._told |= {node_type} if len(kept) < len(ids) else set()
        return kept

    def check_unchanged(self) -> None:
        """Looks whether tensors have been changed in place since: what has been copied or compressed would not know of it.

        PyTorch counts such changes. NumPy's are not seen, nor those through ``tensor.data`` or in another process.

        Raises:
            PlanError: One has been changed.
        """
        for where, tensor, version in self._versions:
            if tensor._version != version:
                raise PlanError(
                    f"{where} has been changed in place since the loader was made, whose batches have the values of that moment",
                    "make the loader anew; or look values that change up by the batch's ids: batch.x = x[batch.n_id]",
                )

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
        yield from (self.parts or {}).values()
        for found in (*(self._nodes[t] for t in self.schema.node_types), *(self._edges[t] for t in self.schema.edge_types)):
            for _, rows in sorted(found.arrays.items()):
                for start in range(0, len(rows), _ROWS_HASHED_AT_ONCE):
                    yield rows[start : start + _ROWS_HASHED_AT_ONCE]
        for node_type, splits in sorted(self.splits.items()):
            own = self._nodes[node_type]
            masks = splits_of(((name, rows) for name, rows in own.arrays.items() if name in SPLIT_MASKS), own.count, "")
            for name, ids in sorted(splits.items()):
                if not np.array_equal(ids, masks.get(name, ())) or split_index_of(name) is not None:  # masks are among the arrays
                    yield np.frombuffer(json.dumps([node_type, name, len(ids)]).encode(), np.uint8)
                    yield ids

    def edge_chunks(self, edge_type: EdgeType) -> Iterator[NDArray[np.int64]]:
        """Yields ``[2, k]``; see ``GraphSource``."""
        edge_index = _known(self._edge_index, edge_type, "edge type")
        ends = self._nodes[edge_type[0]].count, self._nodes[edge_type[2]].count
        for start in range(0, edge_index.shape[1], CHUNK_ROWS):
            # require() copies what is read-only: kernels are compiled for arrays that may be written.
            chunk = np.require(edge_index[:, start : start + CHUNK_ROWS], np.int64, "W")
            chunk = chunk if chunk.strides[1] == chunk.itemsize else np.ascontiguousarray(chunk)
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

    def _scan_homogeneous(self, data: Any, edge_arrays: Collection[str | None]) -> None:
        store = data.stores[0]
        edge_index = edge_index_of(store, "data.")
        nodes = _TypeArrays(_num_nodes(store, "data."), "data.", _ALWAYS_NODE)
        edges = _TypeArrays(edge_index.shape[1], "data.", _ALWAYS_EDGE)
        self._edge_index[HOMOGENEOUS_EDGE_TYPE] = edge_index
        self._nodes[HOMOGENEOUS_NODE_TYPE], self._edges[HOMOGENEOUS_EDGE_TYPE] = nodes, edges
        unclear = []
        for name, value in store.items():
            if name in _SIZES:
                continue
            rows = _rows_of(data, store, name, value)
            of_edges = name not in _ALWAYS_NODE and ("edge" in name or name in edge_arrays)
            if not of_edges and rows[0] == nodes.count == edges.count and name not in _OF_NODES and "node" not in name:
                unclear.append(f"data.{name}")
            first, second = (edges, nodes) if of_edges else (nodes, edges)
            if not (first.takes(name, value, *rows) or second.takes(name, value, *rows)):
                self.extra[name] = value
        if unclear:
            warn(
                f"there are {nodes.count} nodes and as many edges, and {', '.join(unclear)}: taken as the nodes'"
                ' (a name with "edge" or "node" in it says whose an attribute is)'
            )

    def _scan_typed(self, data: Any) -> None:
        self.extra = dict(data._global_store.items())
        for node_type, store in data.node_items():
            where = f"data[{node_type!r}]."
            self._nodes[node_type] = _scan_type(data, store, _TypeArrays(_num_nodes(store, where), where, _ALWAYS_NODE))
        for edge_type, store in data.edge_items():
            where = f"data[{edge_type!r}]."
            self._edge_index[edge_type] = edge_index = edge_index_of(store, where)
            self._edges[edge_type] = _scan_type(data, store, _TypeArrays(edge_index.shape[1], where, _ALWAYS_EDGE))
        scanned: dict[Any, _TypeArrays] = {**self._nodes, **self._edges}
        self.type_extra = {key: found.rest for key, found in scanned.items() if found.rest}


def _num_nodes(store: Any, where: str) -> int:
    explicit = store.get("num_nodes")
    if explicit is None:
        with warnings.catch_warnings():
            # PyG warns and gives None for a type without features; the error below says the same. Its warning where the number of nodes
            # of the only type is guessed from the edges is the user's to see.
            if store._key is not None:
                warnings.simplefilter("ignore")
            explicit = store.num_nodes
    if explicit is None:
        raise PlanError(f"the number of nodes of {where.rstrip('.')} is unknown", f"set {where}num_nodes")
    if int(explicit) < 0:
        raise DatasetError(f"{where}num_nodes is {int(explicit)}")
    return int(explicit)


def _rows_of(data: Any, store: Any, name: str, value: Any) -> tuple[int | None, int]:
    """The size that decides whether an attribute is node-level or edge-level, and the dimension that it is the size of.

    That dimension is the attribute's ``__cat_dim__``, as for PyG's loaders. The size is None where it has no rows.
    """
    import torch  # heavy

    if isinstance(value, torch.Tensor) and value.is_nested:
        return value.size(0), 0
    if isinstance(value, (torch.Tensor, np.ndarray)):
        dim = data.__cat_dim__(name, value, store) if value.ndim else None
        return (int(value.shape[dim]), dim % value.ndim) if isinstance(dim, int) else (None, 0)
    # Lists, tables and TensorFrames have rows without being tensors: ``as_rows`` refuses them, rather than that they are handed on whole.
    if hasattr(value, "num_rows"):
        return int(value.num_rows), 0
    is_list = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    return (len(value) if is_list or (hasattr(value, "__array__") and hasattr(value, "__len__")) else None), 0


def _scan_type(data: Any, store: Any, found: _TypeArrays) -> _TypeArrays:
    for name, value in store.items():
        if name not in _SIZES and not found.takes(name, value, *_rows_of(data, store, name, value)):
            found.rest[name] = value
    return found


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


_INT32_END = 1 << 31
_NO_IDS = np.empty(0, np.int64)
_NO_IDS_32 = np.empty(0, np.int32)


@checks_calls()
def graph_from_pyg(
    data: Data | HeteroData | PyGSource,
    *,
    edge_dir: EdgeDir = "in",
    weight: str | None = None,
    time_attr: str | None = None,
    with_edge: bool | None = None,
) -> GraphArrays:
    """A graph of one part on a user's own tensors.

    Node arrays are the tensors' memory. New are the compressed edges (4 bytes an edge and 4 or 8 a node), their ids if wanted,
    and edge arrays, which are copied into the order of the compressed edges.

    Args:
        data: The graph; a ``PyGSource`` spares looking at it twice.
        edge_dir: "in" compresses edges by target, "out" by source.
        weight: Name of the edge-level attribute ``[num_edges]`` to sample by; edge types without it are sampled uniformly.
        time_attr: Name of the attributes ``[n]`` or ``[n, 1]`` with the times of nodes or edges, by which each node's edges are then sorted
            (see ``gnnkit.storage.edge_values``); None leaves them in the graph's order.
        with_edge: Whether to keep edge ids; None keeps those of edge types that carry arrays.

    Returns:
        One part; store ids are the dataset's ids.

    Raises:
        PlanError: See ``PyGSource``; or ``edge_dir``, ``weight`` or ``time_attr`` is unknown, a weight is negative or not finite, or
            times are no integers.
        DatasetError: See ``PyGSource``; or an id in ``edge_index`` is out of range.
    """
    source = data if isinstance(data, PyGSource) else PyGSource(data)
    schema = source.schema
    check_choice("edge_dir", edge_dir, EdgeDir)
    if weight is not None:
        _check_weight_name(source, weight)
    check_time_attr(schema, time_attr)
    for node_type, node_schema in schema.node_types.items():
        if node_schema.num_nodes >= _INT32_END:
            raise PlanError(f"{node_type!r} has {node_schema.num_nodes} nodes; a type may have up to {_INT32_END - 1}")
    check_memory(_structure_nbytes(schema, edge_dir), f"sampling from {type(data).__name__}", schema)
    nodes = {
        node_type: (NodePart({name: source.node_array(node_type, name) for name in node_schema.arrays}),)
        for node_type, node_schema in schema.node_types.items()
    }
    edges = {edge_type: (_compress(source, edge_type, edge_dir, weight, time_attr, with_edge),) for edge_type in schema.edge_types}
    bounds = {node_type: np.array([0, node_schema.num_nodes], np.int64) for node_type, node_schema in schema.node_types.items()}
    return GraphArrays(schema, edge_dir, nodes, edges, bounds, dict.fromkeys(schema.node_types), (0,))


def _structure_nbytes(schema: GraphSchema, edge_dir: EdgeDir) -> int:
    """Bytes that compressed edges take, with what is there while they are made: see ``_compress``."""
    kept, beside = 0, 0
    for edge_type, edges in schema.edge_types.items():
        owners = schema.node_types[edge_type[2 if edge_dir == "in" else 0]].num_nodes
        rows = sum(spec.row_nbytes for spec in edges.arrays.values())
        kept += owners * index_dtype(edges.num_edges).itemsize + edges.num_edges * (4 + rows)
        beside = max(beside, 16 * owners)
    return kept + beside


def _compress(
    source: PyGSource, edge_type: EdgeType, edge_dir: EdgeDir, weight: str | None, time_attr: str | None, with_edge: bool | None
) -> EdgePart:
    """Sorts edges by their owner, stably: one pass counts, one places; then those of each owner by their times."""
    edge_schema = source.schema.edge_types[edge_type]
    owner_end, other_end = (1, 0) if edge_dir == "in" else (0, 1)
    num_owners = source.schema.node_types[edge_type[2 * owner_end]].num_nodes
    num_others = source.schema.node_types[edge_type[2 * other_end]].num_nodes
    indptr = np.zeros(num_owners + 1, np.int64)
    for chunk in source.edge_chunks(edge_type):
        bad = count_degrees(chunk[owner_end], chunk[other_end], _NO_IDS_32, num_owners, num_others, 0, num_owners, indptr[1:])
        assert bad < 0, "edge_chunks has checked the ids"
    np.cumsum(indptr, out=indptr)

    keep_ids = bool(edge_schema.arrays) if with_edge is None else with_edge
    indices = np.empty(edge_schema.num_edges, np.int32)
    edge_id = np.empty(edge_schema.num_edges, index_dtype(edge_schema.num_edges)) if keep_ids else None
    arrays = {name: np.empty((edge_schema.num_edges, *spec.stored_shape), spec.numpy_dtype) for name, spec in edge_schema.arrays.items()}
    cursor, first = indptr[:-1].copy(), 0
    for chunk in source.edge_chunks(edge_type):
        count = chunk.shape[1]
        place = np.empty(count, np.int64) if keep_ids or arrays else _NO_IDS
        place_edges(
            chunk[owner_end], chunk[other_end], _NO_IDS, first, _NO_IDS_32, _NO_IDS_32, 0, num_owners, cursor, 0, indices, _NO_IDS_32, place
        )  # fmt: skip
        if edge_id is not None:
            edge_id[place] = np.arange(first, first + count)
        for name, rows in arrays.items():
            rows[place] = source.edge_array(edge_type, name)[first : first + count]
        first += count
    timed = timed_edge_types(source.schema, edge_dir, time_attr)
    times = None
    if time_attr is not None and edge_type in timed:
        own = timed[edge_type] is None
        times = as_times(arrays[time_attr]) if own else as_times(source.node_array(edge_type[2 * other_end], time_attr))[indices]
        if (order := time_order(indptr, times)) is not None:
            times, indices = times[order], indices[order]
            edge_id = None if edge_id is None else edge_id[order]
            arrays = {name: rows[order] for name, rows in arrays.items()}
        elif own:
            times = times.copy()  # an array of its own, as everywhere
    prefix = None
    if weight is not None and weight in arrays:
        exponent = weight_exponent(check_weights(source.edge_array(edge_type, weight), edge_type, weight))
        prefix = weight_prefix(indptr, arrays[weight], exponent)
    return EdgePart(indptr.astype(index_dtype(edge_schema.num_edges), copy=False), indices, edge_id, prefix, arrays, times)


def _check_weight_name(source: PyGSource, weight: str) -> None:
    known = {name: spec for edge_schema in source.schema.edge_types.values() for name, spec in edge_schema.arrays.items()}
    if weight not in known:
        raise PlanError(f"unknown weight {weight!r}{near_matches(weight, list(known))}", f"edge-level attributes: {sorted(known)}")
    for edge_type, edge_schema in source.schema.edge_types.items():
        spec = edge_schema.arrays.get(weight)
        if spec is not None and (spec.row_shape or spec.dtype in ELEMENT_TYPES or np.dtype(spec.dtype).kind not in "fiu"):
            got = f"{spec.dtype} [num_edges{''.join(f', {size}' for size in spec.row_shape)}]"
            raise PlanError(f"the weight {weight!r} of {edge_type} is {got}; weights are numbers [num_edges]", "use .view(-1).float()")


@checks_calls()
def add_label_edges(data: Data | HeteroData, labels: Mapping[EdgeType, Any], edge_dir: EdgeDir = "in") -> HeteroData:
    """A typed graph with label edges, for ``loader.for_anchors``.

    Let the relations end in ``_gigl_positive`` or ``_gigl_negative``: then no loader ever samples along them, not only those for anchors.
    For ``edge_dir="in"`` they are stored leading from labels to anchors, with ``rev_`` added to the relation or removed. Loaders are told
    of them as they lead from anchors to labels, whatever the direction.

    Args:
        data: The graph. A ``Data`` becomes a ``HeteroData`` with the node type "node" and the edge type ("node", "to", "node").
        labels: ``{edge type: edge_index [2, n]}`` from anchors to labels; an anchor keeps its labels in this order.
        edge_dir: That of the loaders or of the store.

    Returns:
        A copy; tensors are shared with ``data``.

    Raises:
        PlanError: A type is none or names unknown node types, or its edges are none of nodes that exist.
    """
    check_choice("edge_dir", edge_dir, EdgeDir)
    if not hasattr(data, "stores"):
        what = type(data).__name__
        raise PlanError(f"label edges are added to a PyG Data or HeteroData, got a {what}", "add them before a store is built")
    made: Any = copy.copy(data) if hasattr(data, "node_types") else _typed(data)
    for edge_type, edges in labels.items():
        if not isinstance(edge_type, tuple) or len(edge_type) != 3 or not {edge_type[0], edge_type[2]} <= set(made.node_types):
            hint = f"an edge type is (source type, relation, target type); node types: {made.node_types}"
            raise PlanError(f"{edge_type!r} is no edge type between nodes of the graph", hint)
        rows = _checked(edges, edge_type, made)
        stored = edge_type if edge_dir == "out" else opposite_edge_type(edge_type)
        if stored in made.edge_types:
            raise PlanError(f"the graph has edges {stored} already", "give the labels another relation")
        made[stored].edge_index = rows if edge_dir == "out" else rows.flip(0)
    typed: HeteroData = made
    return typed


def _typed(data: Any) -> Any:
    """A ``HeteroData`` of one node type and one edge type; PyG's own way there copies everything."""
    from torch_geometric.data import HeteroData  # heavy

    made: Any = HeteroData()
    nodes, edges = made[HOMOGENEOUS_NODE_TYPE], made[HOMOGENEOUS_EDGE_TYPE]
    for name, value in data.to_dict().items():
        owner = nodes if name == "num_nodes" or data.is_node_attr(name) else edges if data.is_edge_attr(name) else made
        owner[name] = value
    if not ("num_nodes" in nodes or "x" in nodes):
        nodes.num_nodes = data.num_nodes
    return made


def _checked(edges: Any, edge_type: EdgeType, data: Any) -> Any:
    import torch  # heavy

    rows = torch.as_tensor(edges)
    if rows.dim() != 2 or rows.shape[0] != 2 or rows.is_floating_point() or rows.dtype == torch.bool:
        raise PlanError(f"the labels {edge_type} must be whole numbers of shape [2, n], got {rows.dtype} of shape {tuple(rows.shape)}")
    for end, node_type in ((0, edge_type[0]), (1, edge_type[2])):
        num_nodes = data[node_type].num_nodes
        if rows.shape[1] and not 0 <= int(rows[end].min()) <= int(rows[end].max()) < num_nodes:
            raise PlanError(f"the labels {edge_type} name a {node_type!r} node that does not exist", f"ids go from 0 to {num_nodes - 1}")
    return rows.long()

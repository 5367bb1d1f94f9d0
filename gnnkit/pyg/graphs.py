"""Every form of a graph that PyG's loaders take, as an object that ``GraphLoader.from_pyg`` takes."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData

from gnnkit.errors import PlanError
from gnnkit.schema import EdgeType

# Under this name the values of a sparse matrix ``adj_t`` are an edge array of the graph that is sampled.
ADJ_VALUE = "adj_t.value"
# Batches call ids so, which a user's attributes of these names take the place of.
_IDS = ("n_id", "e_id")


@dataclass(frozen=True)
class Aside:
    """An attribute that PyG's loaders index and stores do not hold, such as a ``TensorFrame``.

    Attributes:
        owner: The node type or edge type; None in a ``Data``.
        name: The attribute's name.
        value: What is indexed.
        is_node: Whether by node ids, or by edge ids.
    """

    owner: Any
    name: str
    value: Any
    is_node: bool


@dataclass(frozen=True)
class PreparedGraph:
    """A graph as ``GraphLoader.from_pyg`` takes it, and what its batches lack to look like the user's object.

    Attributes:
        data: The graph; its tensors are the user's.
        like: An object of the user's class with its types, in its order, and without their attributes.
        counted: Node types with ``num_nodes`` of their own; None in a ``Data``.
        sparse: Edge types that hold edges as ``adj_t``; None in a ``Data``.
        aside: Attributes that batches are to have as well.
        device: Where tensors lie, if not all of them in memory.
    """

    data: Data | HeteroData
    like: Data | HeteroData
    counted: frozenset[Any]
    sparse: frozenset[Any]
    aside: tuple[Aside, ...]
    device: torch.device | None


def is_pair(data: Any) -> bool:
    """Whether it is PyG's ``(FeatureStore, GraphStore)``."""
    return isinstance(data, (tuple, list)) and len(data) == 2 and isinstance(data[0], FeatureStore) and isinstance(data[1], GraphStore)


def attributes_of(data: Data | HeteroData) -> list[tuple[Any, str, Any]]:
    """``(type, name, value)`` of every attribute of a PyG object."""
    return [(store._key, name, value) for store in data.stores for name, value in store.items()]


def as_object(data: Any) -> Data | HeteroData:
    """The object itself, or what a pair of stores holds, read once and as a whole.

    Raises:
        PlanError: It is neither.
    """
    if isinstance(data, (Data, HeteroData)):
        return data
    if is_pair(data):
        return _read_stores(*data)
    raise PlanError(
        f"data must be a Data, a HeteroData or a pair (FeatureStore, GraphStore), got {type(data).__name__}",
        "gnnkit.GraphLoader.from_ogb() and from_store() open graphs that are no PyG objects",
    )


def prepare(data: Data | HeteroData, edge_type: EdgeType | None = None) -> PreparedGraph:
    """A graph as ``GraphLoader`` takes it.

    Args:
        data: The user's object, which stays as it is.
        edge_type: The type of a loader's links: batches show it, also if the graph has no edge of it.

    Raises:
        PlanError: ``adj_t`` is no ``torch_sparse.SparseTensor``.
    """
    graph, like = copy.copy(data), copy.copy(data)
    for store in like.stores:
        store._mapping.clear()
    counted = frozenset(store._key for store in data.node_stores if "num_nodes" in store)
    if isinstance(graph, Data):
        edge_stores: Iterable[Any] = [graph._store]
        if "edge_index" not in graph and "adj_t" not in graph:
            graph.num_nodes = data.num_nodes
            graph.edge_index = torch.empty(2, 0, dtype=torch.long)
    else:
        if edge_type is not None and edge_type not in graph.edge_types:
            graph[edge_type].edge_index = torch.empty(2, 0, dtype=torch.long)
        edge_stores = graph.edge_stores
    sparse = frozenset(store._key for store in edge_stores if _to_edge_index(store, graph))
    return PreparedGraph(graph, like, counted, sparse, tuple(_take_aside(data, graph)), _device_of(data))


def _to_edge_index(store: Any, graph: Data | HeteroData) -> bool:
    """Replaces ``adj_t`` by ``edge_index``, in the order of the matrix, which its edges' ids follow; whether there was one."""
    if "adj_t" not in store:
        return False
    matrix = store["adj_t"]
    if not hasattr(matrix, "csr"):
        raise PlanError(
            f"adj_t is a {type(matrix).__name__}, and loaders take a torch_sparse.SparseTensor", "set edge_index, and delete adj_t"
        )
    if isinstance(graph, Data):
        store["num_nodes"] = graph.num_nodes
    row, col, value = matrix.coo()
    del store["adj_t"]
    store["edge_index"] = torch.stack([col, row])
    if value is not None:
        store[ADJ_VALUE] = value
    return True


def _take_aside(data: Data | HeteroData, graph: Data | HeteroData) -> Iterator[Aside]:
    """Takes attributes out of ``graph``; what is named as the ids that others are looked up by comes last."""
    found = []
    for key, name, value in attributes_of(data):
        store, own = (
            (data._store, graph._store) if key is None and isinstance(data, Data) else (data[key], graph[key]) if key else (None, None)
        )
        if store is None or own is None or not (name in _IDS or _has_rows_only(value)):
            continue
        is_node = bool(store.is_node_attr(name))
        if is_node or store.is_edge_attr(name):
            if is_node and "num_nodes" not in own:
                own["num_nodes"] = store.num_nodes
            del own[name]
            found.append(Aside(key, name, torch.as_tensor(value) if name in _IDS else value, is_node))
    return iter(sorted(found, key=lambda aside: aside.name in _IDS))


def _has_rows_only(value: Any) -> bool:
    """Whether it has rows, and is no array."""
    return not isinstance(value, (torch.Tensor, np.ndarray)) and hasattr(value, "num_rows")


def _device_of(data: Data | HeteroData) -> torch.device | None:
    found = {value.device for _, _, value in attributes_of(data) if isinstance(value, torch.Tensor) and value.device.type != "cpu"}
    return next(iter(sorted(found, key=str)), None)


# Stores of features and edges ------------------------------------------------------------------------------------------------


def _read_stores(features: FeatureStore, edges: GraphStore) -> Data | HeteroData:
    """Everything that a pair holds, as an object: its edges in the order of their layout, and their numbers of nodes.

    Raises:
        PlanError: There are no edges.
    """
    layouts = edges.get_all_edge_attrs()
    if not layouts:
        raise PlanError(
            "the GraphStore holds no edges", "put some: graph_store.put_edge_index(edge_index, edge_type=..., layout='coo', size=...)"
        )
    wanted = [copy.copy(attr) for attr in features.get_all_tensor_attrs()]
    for attr in wanted:
        attr.index = None  # all rows
    arrays = list(zip(wanted, features.multi_get_tensor(wanted) if wanted else [], strict=True))
    row, col, _ = edges.coo()
    return _as_data(arrays, layouts, row, col) if not isinstance(row, dict) else _as_typed(arrays, layouts, row, col)


def _as_data(arrays: list[Any], layouts: list[Any], row: torch.Tensor, col: torch.Tensor) -> Data:
    data = Data(edge_index=torch.stack([row, col]))
    sizes = [size for attr in layouts for size in attr.size or () if size is not None]
    data.num_nodes = max([*sizes, *(len(value) for attr, value in arrays if len(value) != len(row)), _past(row), _past(col)])
    for attr, value in arrays:
        data[attr.attr_name] = value
    return data


def _as_typed(arrays: list[Any], layouts: list[Any], row: dict[EdgeType, torch.Tensor], col: dict[EdgeType, torch.Tensor]) -> HeteroData:
    data, sizes = HeteroData(), dict[str, int]()
    for attr, value in arrays:
        if isinstance(attr.group_name, str):
            sizes[attr.group_name] = max(sizes.get(attr.group_name, 0), len(value))
        data[attr.group_name][attr.attr_name] = value
    for attr in layouts:
        for node_type, size in zip(attr.edge_type[::2], attr.size or (None, None), strict=True):
            sizes[node_type] = max(sizes.get(node_type, 0), size or 0)
    for edge_type in row:
        for node_type, ids in ((edge_type[0], row[edge_type]), (edge_type[2], col[edge_type])):
            sizes[node_type] = max(sizes[node_type], _past(ids))
        data[edge_type].edge_index = torch.stack([row[edge_type], col[edge_type]])
    for node_type, size in sizes.items():
        data[node_type].num_nodes = size
    return data


def _past(ids: torch.Tensor) -> int:
    return int(ids.max()) + 1 if ids.numel() else 0

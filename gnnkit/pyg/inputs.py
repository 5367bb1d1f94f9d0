"""Graphs and arguments of PyG's loaders, as gnnkit's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, FeatureStore, GraphStore, HeteroData
from torch_geometric.sampler import NegativeSampling

from gnnkit.backends.devices import device_of
from gnnkit.datasets.pyg import graph_hint, is_dense
from gnnkit.errors import PlanError, near_matches
from gnnkit.graph_loader import GraphLoader
from gnnkit.loader.inputs import check_no_mapping
from gnnkit.sampling.subgraph import shown_name
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE, EdgeType, NodeType, near_edge_types
from gnnkit.user_arrays import to_array

# Under this name the values of a sparse matrix ``adj_t`` are an edge array of the graph that is sampled.
ADJ_VALUE = "adj_t.value"
# Batches call ids so, which a user's attributes of these names take the place of, as in PyG.
_IDS = ("n_id", "e_id")


@dataclass(frozen=True)
class Aside:
    """An attribute that PyG's loaders index and stores do not hold, such as a ``TensorFrame``, or under a name that batches use themselves.

    Attributes:
        owner: The node type or edge type; None in a ``Data``.
        name: The attribute's name.
        value: What is indexed.
        is_node: Whether by node ids, or by edge ids; None comes whole.
    """

    owner: Any
    name: str
    value: Any
    is_node: bool | None

    def put(self, store: Any, n_id: Tensor, e_id: Tensor | None) -> None:
        """Puts it on a batch, where only ids give way to a user's attribute of their name, as in PyG."""
        ids = n_id if self.is_node else e_id
        if (self.name in _IDS or self.name not in store) and not (self.is_node is not None and ids is None):
            store[self.name] = self.value if self.is_node is None else self.value[ids]


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
    if isinstance(data, (tuple, list)) and len(data) == 2 and isinstance(data[0], FeatureStore) and isinstance(data[1], GraphStore):
        return _read_stores(*data)
    raise PlanError(
        f"data must be a Data, a HeteroData or a pair (FeatureStore, GraphStore), got {type(data).__name__}",
        graph_hint(data) or "gnnkit.GraphLoader.from_ogb() and from_store() open graphs that are no PyG objects",
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
    return PreparedGraph(graph, like, counted, sparse, tuple(_take_aside(data, graph)), device_of(data))


def structure_of(data: Data | HeteroData, *names: str) -> Data | HeteroData:
    """A graph's edges as ``edge_index``, its numbers of nodes, and the arrays of these names."""
    graph = prepare(data).data
    counts = {store._key: store.num_nodes for store in graph.node_stores}
    for store in graph.stores:
        for name in set(store.keys()) - {"edge_index", *names}:
            del store[name]
    for store in graph.node_stores:
        store["num_nodes"] = counts[store._key]
    return graph


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
        if key is None and isinstance(data, HeteroData):  # of the whole graph
            continue
        store, own = (each.stores[0] if key is None else each[key] for each in (data, graph))
        is_taken = shown_name(name) != name and name not in ("edge_index", "num_nodes")
        has_rows_only = hasattr(value, "num_rows") and not isinstance(value, (torch.Tensor, np.ndarray))
        if not (is_taken or has_rows_only):
            continue
        is_node = True if store.is_node_attr(name) else False if store.is_edge_attr(name) else None
        if is_taken or is_node is not None:
            if is_node and "num_nodes" not in own:
                own["num_nodes"] = store.num_nodes
            del own[name]
            found.append(Aside(key, name, _tensor(value, name) if isinstance(value, np.ndarray) else value, is_node))
    return iter(sorted(found, key=lambda aside: aside.name in _IDS))


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


@dataclass(frozen=True)
class NodeForm:
    """The form of ``NeighborLoader``, ``LinkNeighborLoader`` and ``HGTLoader``; a transform of ``GraphLoader``.

    Attributes:
        graph: The graph.
        num_hops: Hops that were asked for; None where batches have no counts by hop.
        input_id: What inputs are called, by their places; None for the places.
        transform: The user's function, called last.
        pin_memory: Whether batches are copied to page-locked memory.
        has_edge_ids: Whether edges of a ``HeteroData`` keep ids and arrays; in bidirectional batches of PyG they have none.
    """

    graph: PreparedGraph
    num_hops: int | None = None
    input_id: Tensor | None = None
    transform: Callable[[Any], Any] | None = None
    pin_memory: bool = False
    has_edge_ids: bool = True

    @property
    def keeping_ids(self) -> NodeForm:
        """The same form, without attributes that take the place of ids."""
        return replace(self, graph=replace(self.graph, aside=tuple(aside for aside in self.graph.aside if aside.name not in _IDS)))

    def __call__(self, batch: Data | HeteroData) -> Any:
        """The batch as the user is to see it; the object itself where possible."""
        shown = self._shown(batch)
        shown = shown.pin_memory() if self.pin_memory else shown
        return shown if self.transform is None else self.transform(shown)

    def _shown(self, batch: Data | HeteroData) -> Any:
        graph = self.graph
        for store in batch.stores:
            self._correct(store)
        for aside in graph.aside:  # what is named as the ids comes last
            store = batch._store if aside.owner is None else batch[aside.owner]
            aside.put(store, store.get("n_id"), store.get("e_id"))
        for key in graph.sparse:
            _to_matrix(batch if key is None else batch[key], batch)
        if type(batch) is HeteroData:  # isinstance of one of PyG's classes is a call of Python's
            if not self.has_edge_ids:
                _without_edge_ids(batch, graph.data)
            _in_order(batch, graph.like)
        return batch if type(graph.like) in (Data, HeteroData) else _of_class(batch, graph.like)

    def _correct(self, store: Any) -> None:
        """Names of inputs, and numbers of hops and of nodes, as PyG's loaders give them."""
        values = store._mapping  # each look through PyG's storage costs several calls
        if self.input_id is not None and "input_id" in values:
            values["input_id"] = self.input_id[values["input_id"]]
        if self.num_hops is None:
            for name in ("num_sampled_nodes", "num_sampled_edges"):
                values.pop(name, None)
        elif self.num_hops == 0:  # which was sampled as one hop that draws nothing
            for name, kept in (("num_sampled_nodes", 1), ("num_sampled_edges", 0)):
                if name in values:
                    values[name] = values[name][:kept]
        if "n_id" in values and store._key in self.graph.counted:
            values["num_nodes"] = len(values["n_id"])
        else:
            values.pop("num_nodes", None)


def _without_edge_ids(batch: HeteroData, graph: HeteroData) -> None:
    """Takes ids and arrays from edges that stand for themselves and for their reverses, of which PyG gives neither."""
    for store in batch.edge_stores:
        arrays = [name for name in graph[store._key] if graph[store._key].is_edge_attr(name)] if store._key in graph.edge_types else []
        for name in ("e_id", *arrays):
            if name != "edge_index":
                store._mapping.pop(name, None)


def _to_matrix(store: Any, batch: Data | HeteroData) -> None:
    """Replaces ``edge_index`` by ``adj_t``, as the graph had it."""
    from torch_sparse import SparseTensor  # only where a graph came with one

    key = getattr(store, "_key", None)
    sizes = (batch.num_nodes,) * 2 if key is None else (batch[key[2]].num_nodes, batch[key[0]].num_nodes)
    row, col = store["edge_index"]
    value = store._mapping.pop(ADJ_VALUE, None)
    del store["edge_index"]
    store["adj_t"] = SparseTensor(row=col, col=row, value=value, sparse_sizes=sizes, trust_data=True)


def _in_order(batch: HeteroData, like: HeteroData) -> None:
    """Lists types in the order of the user's object, which code that takes ``x_dict.values()`` may count on."""
    for name in ("_node_store_dict", "_edge_store_dict"):
        stores, order = getattr(batch, name), getattr(like, name)
        batch.__dict__[name] = {
            key: stores[key] for key in (*(key for key in order if key in stores), *(key for key in stores if key not in order))
        }


def _of_class(batch: Data | HeteroData, like: Data | HeteroData) -> Any:
    """The batch as an object of the user's own class."""
    shown = copy.copy(like)
    for store in batch.stores:
        own = shown.stores[0] if store._key is None else shown[store._key]
        own._mapping.update(store._mapping)
    return shown


@dataclass(frozen=True)
class ShadowForm(NodeForm):
    """The form of ``ShaDowKHopSampler``: a subgraph for each root, one after the other, nodes by their ids and edges by their ends."""

    def _shown(self, batch: Data | HeteroData) -> Any:
        graph, num_roots, num_nodes = self.graph, int(batch.batch_size), len(batch.n_id)
        by_id = batch.n_id.argsort(stable=True)
        nodes = by_id[batch.batch[by_id].argsort(stable=True)]  # where the node at each place of the new order comes from
        place = torch.empty_like(nodes)
        place[nodes] = torch.arange(num_nodes)
        row, col = place[batch.edge_index]
        edges = batch.e_id.argsort(stable=True)
        edges = edges[(row * num_nodes + col)[edges].argsort(stable=True)]
        sizes = torch.bincount(batch.batch, minlength=num_roots)
        shown = Batch(batch=batch.batch[nodes], ptr=torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]))
        shown.root_n_id, shown.edge_index = place[:num_roots], torch.stack([row, col])[:, edges]
        for name, value in graph.data.items():
            if name in ("edge_index", "num_nodes"):
                continue
            dim, is_node = graph.data.__cat_dim__(name, value), graph.data.is_node_attr(name)
            if is_node or graph.data.is_edge_attr(name):
                rows = (nodes[shown.root_n_id] if name == "y" else nodes) if is_node else edges
                shown[name] = batch[name].index_select(dim, rows)
            else:
                shown[name] = value
        n_id, e_id = batch.n_id[nodes], batch.e_id[edges]
        for aside in graph.aside:
            aside.put(shown, n_id, e_id)
        if graph.sparse:
            _to_matrix(shown, shown)
        return shown


@dataclass(frozen=True)
class NodeInputs:
    """Input nodes.

    Attributes:
        node_type: Their type; None in a ``Data``.
        ids: int64 ``[n]``; None for all nodes of the type, in order.
        count: Their number.
        time: Their times ``[n]``; None where they are the nodes' own, or there are none.
        input_id: What batches call them, ``[n]``; None for their places.
    """

    node_type: NodeType | None
    ids: Tensor | None
    count: int
    time: Tensor | None = None
    input_id: Tensor | None = None

    edge_type = None

    def options(self) -> dict[str, Any]:
        """The options of ``GraphLoader.from_pyg`` for them."""
        return {"input_nodes": self.ids if self.node_type is None else (self.node_type, self.ids), "input_time": self.time}

    def taken(self, places: Tensor) -> NodeInputs:
        """Those at ``places``, under the names that they have here."""
        ids = places if self.ids is None else self.ids[places]
        names = places if self.input_id is None else self.input_id[places]
        return NodeInputs(self.node_type, ids, len(places), None if self.time is None else self.time[places], names)

    def beside(self, loader: GraphLoader, **changes: Any) -> GraphLoader:
        """A loader of these nodes on the graph of another."""
        return loader.for_split(**self.options(), **changes)


@dataclass(frozen=True)
class LinkInputs:
    """Input links.

    Attributes:
        edge_type: Their type; None in a ``Data``.
        links: ``[2, n]`` ids of sources and targets.
        all_edges: Whether they are all edges of the type, in order.
        label: Their labels ``[n, ...]``, or None.
        time: Their times ``[n]``, or None.
        negatives: What they are told apart from, or None.
        input_id: What batches call them, ``[n]``; None for their places.
    """

    edge_type: EdgeType | None
    links: Tensor
    all_edges: bool
    label: Tensor | None = None
    time: Tensor | None = None
    negatives: NegativeSampling | None = None
    input_id: Tensor | None = None

    @property
    def count(self) -> int:
        """Their number."""
        return int(self.links.shape[1])

    def options(self) -> dict[str, Any]:
        """The options of ``GraphLoader.from_pyg`` for them."""
        edge_type = HOMOGENEOUS_EDGE_TYPE if self.edge_type is None else self.edge_type
        return {
            "edge_label_index": (edge_type, None if self.all_edges else self.links),
            "edge_label": self.label,
            "edge_label_time": self.time,
            "neg_sampling": self.negatives,
        }

    def taken(self, places: Tensor) -> LinkInputs:
        """Those at ``places``, under the names that they have here."""
        label, time, names = (None if value is None else value[places] for value in (self.label, self.time, self.input_id))
        names = places if names is None else names
        return LinkInputs(self.edge_type, self.links[:, places.to(self.links.device)], False, label, time, self.negatives, names)

    def beside(self, loader: GraphLoader, **changes: Any) -> GraphLoader:
        """A loader of these links on the graph of another."""
        return loader.for_links(**self.options(), **changes)


Inputs: TypeAlias = NodeInputs | LinkInputs


def node_inputs(data: Data | HeteroData, input_nodes: Any, input_time: Any = None, input_id: Any = None) -> NodeInputs:
    """The input nodes that a user of PyG means.

    Args:
        data: The graph.
        input_nodes: Ids or a mask, as tensor, array, list or range, or None for all nodes; of a ``HeteroData`` a type, or
            ``(type, any of these)``.
        input_time: Times of them.
        input_id: What batches are to call them; None: their ids where they are a mask, else their places.

    Raises:
        PlanError: A type is missing or unknown, or an array is unusable or of another length.
    """
    node_type = None
    check_no_mapping(input_nodes, "input_nodes")
    if isinstance(data, HeteroData):
        node_type, input_nodes = _type_and_nodes(data, input_nodes)
    num_nodes = int((data if node_type is None else data[node_type]).num_nodes)
    ids, names = (None, None) if input_nodes is None else _to_ids(input_nodes, num_nodes)
    count = num_nodes if ids is None else len(ids)
    if input_id is not None:
        names = _of_length(_tensor(input_id, "input_id"), count, "input_id")
    time = None if input_time is None else _of_length(_tensor(input_time, "input_time"), count, "input_time")
    return NodeInputs(node_type, ids, count, time, names)


def _type_and_nodes(data: HeteroData, value: Any) -> tuple[NodeType, Any]:
    types = list(data.node_types)
    if isinstance(value, str):
        value = (value, None)
    if not isinstance(value, (tuple, list)) or len(value) != 2 or not isinstance(value[0], str):
        raise PlanError(
            "the graph has node types, and input_nodes does not say which one it means", f"give a type of {types}, or (type, ids or mask)"
        )
    if value[0] not in types:
        raise PlanError(f"input_nodes names the unknown node type {value[0]!r}{near_matches(value[0], types)}", f"known: {types}")
    return value[0], value[1]


def _to_ids(value: Any, num_nodes: int) -> tuple[Tensor, Tensor | None]:
    """Ids, and what batches call them where that is something else than their places."""
    is_rows = hasattr(value, "dtype") or not isinstance(value, Iterable) or isinstance(value, (str, bytes))
    nodes = _tensor(value if is_rows else list(value), "input_nodes", "give node ids or a mask, as a tensor, an array or a list").cpu()
    if nodes.dim() != 1 and nodes.dtype != torch.bool:
        raise PlanError(f"input_nodes must be one-dimensional, got shape {list(nodes.shape)}", "for a single node give a list of one")
    if nodes.dtype != torch.bool:
        return nodes if nodes.numel() else nodes.long(), None
    if nodes.dim() != 1 or len(nodes) != num_nodes:
        hint = "a mask of several splits has a column for each: input_nodes[:, 0] is the first" if nodes.dim() == 2 else None
        raise PlanError(f"input_nodes is a mask of {list(nodes.shape)} elements, but there are {num_nodes} nodes", hint)
    nodes = nodes.nonzero().view(-1)
    return nodes, nodes


def _tensor(value: Any, what: str, hint: str | None = None) -> Tensor:
    """A tensor itself, or one of numbers that are given in another way."""
    if isinstance(value, Tensor) and is_dense(value) and not value.is_meta and not value.is_quantized:
        return value.detach()
    return torch.from_numpy(np.require(to_array(value, what, hint), requirements=["C", "W"]))


def _of_length(value: Tensor, count: int, what: str) -> Tensor:
    if value.dim() == 0 or len(value) != count:
        raise PlanError(f"{what} must have a row for each of {count} inputs, got shape {list(value.shape)}")
    return value.detach().cpu()


def link_inputs(
    data: Data | HeteroData,
    edge_label_index: Any,
    edge_label: Any,
    edge_label_time: Any,
    neg_sampling: Any,
    neg_sampling_ratio: float | None,
    input_id: Any = None,
) -> LinkInputs:
    """The input links that a user of PyG means.

    Args:
        data: The graph.
        edge_label_index: ``[2, n]``, or None for all edges; of a ``HeteroData`` an edge type, or ``(edge type, any of these)``.
        edge_label: Labels of them.
        edge_label_time: Times of them.
        neg_sampling: PyG's ``NegativeSampling``, a mode, or a dict of its arguments.
        neg_sampling_ratio: Negatives for each link, as "binary".
        input_id: What batches are to call them; None: their places.

    Raises:
        PlanError: A type is missing or unknown, or an array is unusable or of another length.
    """
    edge_type, given = None, edge_label_index
    check_no_mapping(edge_label_index, "edge_label_index")
    if isinstance(data, HeteroData):
        edge_type, given = _type_and_links(data, edge_label_index)
    links = given
    if given is None:
        store = data if edge_type is None else data[edge_type]
        links = store.edge_index if "edge_index" in store else _edges_of_matrix(store)
    links = _tensor(links, "edge_label_index")
    if links.dim() != 2 or len(links) != 2:
        raise PlanError(
            f"edge_label_index must be [2, n], sources and targets, got shape {list(links.shape)}", "for example data.edge_index"
        )
    count = int(links.shape[1])
    label = None if edge_label is None else _of_length(_tensor(edge_label, "edge_label"), count, "edge_label")
    negatives = negatives_of(neg_sampling, neg_sampling_ratio)
    if negatives is not None and negatives.is_binary() and label is not None and label.numel() and label.min() == 0:
        label = label + 1  # over all of them: 0 is for negatives, also in a batch whose labels are others
    time = None if edge_label_time is None else _of_length(_tensor(edge_label_time, "edge_label_time"), count, "edge_label_time")
    names = None if input_id is None else _of_length(_tensor(input_id, "input_id"), count, "input_id")
    return LinkInputs(edge_type, links, given is None, label, time, negatives, names)


def _type_and_links(data: HeteroData, value: Any) -> tuple[EdgeType, Any]:
    known = list(data.edge_types)
    if isinstance(value, (tuple, list)) and value and isinstance(value[0], str):
        value = (value, None)
    if not isinstance(value, (tuple, list)) or len(value) != 2 or not isinstance(value[0], (tuple, list)):
        raise PlanError(
            "the graph has edge types, and edge_label_index does not say which one it means",
            f"give a type of {known}, or (type, tensor [2, n])",
        )
    edge_type = tuple(data._to_canonical(*value[0]))
    ends = [node_type for node_type in edge_type[::2] if node_type not in data.node_types]
    if ends or (value[1] is None and edge_type not in known):
        raise PlanError(
            f"edge_label_index names the unknown edge type {edge_type}{near_edge_types(edge_type, known)}",
            f"known: {known}",
        )
    return edge_type, value[1]


def _edges_of_matrix(store: Any) -> Tensor:
    if "adj_t" not in store:
        return torch.empty(2, 0, dtype=torch.long)
    row, col, _ = store.adj_t.coo()
    return torch.stack([col, row])


def negatives_of(neg_sampling: Any, ratio: float | None) -> NegativeSampling | None:
    """The negatives that a user of PyG means, in one of the ways of saying them; see ``link_inputs``.

    Raises:
        PlanError: It is no way of drawing negatives.
    """
    if ratio is not None and ratio != 0:
        neg_sampling = {"mode": "binary", "amount": ratio}
    try:
        found = NegativeSampling.cast(neg_sampling)
        # PyG takes weights of sources for "triplet" too, which draws none.
        return found if found is None or found.is_binary() else NegativeSampling(found.mode, found.amount, None, found.dst_weight)
    except (TypeError, ValueError, AttributeError) as error:
        raise PlanError(f"neg_sampling={neg_sampling!r} is no way of drawing negatives: {error}", "'binary', 'triplet' or None") from error

"""Input nodes and input links in every form that PyG's loaders take, and any of them by their places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling

from gnnkit.errors import PlanError, near_matches
from gnnkit.graph_loader import GraphLoader
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE, EdgeType, NodeType


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
    if isinstance(data, HeteroData):
        node_type, input_nodes = _type_and_nodes(data, input_nodes)
    num_nodes = int((data if node_type is None else data[node_type]).num_nodes)
    ids, names = (None, None) if input_nodes is None else _to_ids(input_nodes, num_nodes)
    count = num_nodes if ids is None else len(ids)
    if input_id is not None:
        names = _of_length(torch.as_tensor(input_id), count, "input_id")
    time = None if input_time is None else _of_length(torch.as_tensor(input_time), count, "input_time")
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
    try:
        nodes = value if isinstance(value, Tensor) else torch.as_tensor(value if hasattr(value, "dtype") else list(value))
    except (TypeError, ValueError, RuntimeError) as error:
        raise PlanError(
            f"input_nodes cannot be read as node ids: {error}", "give ids or a mask, as a tensor, an array or a list"
        ) from error
    nodes = nodes.detach().cpu()
    if nodes.dtype != torch.bool:
        return nodes if nodes.numel() else nodes.long(), None
    if nodes.dim() != 1 or len(nodes) != num_nodes:
        raise PlanError(f"input_nodes is a mask of {list(nodes.shape)} elements, but there are {num_nodes} nodes")
    nodes = nodes.nonzero().view(-1)
    return nodes, nodes


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
    if isinstance(data, HeteroData):
        edge_type, given = _type_and_links(data, edge_label_index)
    links = given
    if given is None:
        store = data if edge_type is None else data[edge_type]
        links = store.edge_index if "edge_index" in store else _edges_of_matrix(store)
    links = torch.as_tensor(links)
    if links.dim() != 2 or len(links) != 2:
        raise PlanError(
            f"edge_label_index must be [2, n], sources and targets, got shape {list(links.shape)}", "for example data.edge_index"
        )
    count = int(links.shape[1])
    label = None if edge_label is None else _of_length(torch.as_tensor(edge_label), count, "edge_label")
    negatives = _negatives(neg_sampling, neg_sampling_ratio)
    if negatives is not None and negatives.is_binary() and label is not None and label.numel() and label.min() == 0:
        label = label + 1  # over all of them: 0 is for negatives, also in a batch whose labels are others
    time = None if edge_label_time is None else _of_length(torch.as_tensor(edge_label_time), count, "edge_label_time")
    names = None if input_id is None else _of_length(torch.as_tensor(input_id), count, "input_id")
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
            f"edge_label_index names the unknown edge type {edge_type}{near_matches(str(edge_type), list(map(str, known)))}",
            f"known: {known}",
        )
    return edge_type, value[1]


def _edges_of_matrix(store: Any) -> Tensor:
    if "adj_t" not in store:
        return torch.empty(2, 0, dtype=torch.long)
    row, col, _ = store.adj_t.coo()
    return torch.stack([col, row])


def _negatives(neg_sampling: Any, ratio: float | None) -> NegativeSampling | None:
    if ratio is not None and ratio != 0:
        neg_sampling = {"mode": "binary", "amount": ratio}
    try:
        found = NegativeSampling.cast(neg_sampling)
        # PyG takes weights of sources for "triplet" too, which draws none.
        return found if found is None or found.is_binary() else NegativeSampling(found.mode, found.amount, None, found.dst_weight)
    except (TypeError, ValueError, AttributeError) as error:
        raise PlanError(f"neg_sampling={neg_sampling!r} is no way of drawing negatives: {error}", "'binary', 'triplet' or None") from error

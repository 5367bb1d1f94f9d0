"""Label edges for a PyG graph, stored so that anchors own them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gnnkit.errors import PlanError
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE, HOMOGENEOUS_NODE_TYPE, EdgeDir, EdgeType, opposite_edge_type

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData


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
    if edge_dir not in ("in", "out"):
        raise PlanError(f"edge_dir must be 'in' or 'out', got {edge_dir!r}")
    if not hasattr(data, "stores"):
        what = type(data).__name__
        raise PlanError(f"label edges are added to a PyG Data or HeteroData, got a {what}", "add them before a store is built")
    made: Any = copy.copy(data) if hasattr(data, "node_types") else _typed(data)
    for edge_type, edges in labels.items():
        if not isinstance(edge_type, tuple) or len(edge_type) != 3 or not {edge_type[0], edge_type[2]} <= set(made.node_types):
            raise PlanError(f"{edge_type!r} is no edge type between nodes of the graph", f"node types: {made.node_types}")
        rows = _checked(edges, edge_type, made)
        stored = edge_type if edge_dir == "out" else opposite_edge_type(edge_type)
        if stored in made.edge_types:
            raise PlanError(f"the graph has edges {stored} already", "give the labels another relation")
        made[stored].edge_index = rows if edge_dir == "out" else rows.flip(0)
    typed: HeteroData = made
    return typed


def _typed(data: Any) -> Any:
    """A ``HeteroData`` of one node type and one edge type; PyG's own way there copies everything."""
    from torch_geometric.data import HeteroData

    made: Any = HeteroData()
    nodes, edges = made[HOMOGENEOUS_NODE_TYPE], made[HOMOGENEOUS_EDGE_TYPE]
    for name, value in data.to_dict().items():
        owner = nodes if name == "num_nodes" or data.is_node_attr(name) else edges if data.is_edge_attr(name) else made
        owner[name] = value
    if not ("num_nodes" in nodes or "x" in nodes):
        nodes.num_nodes = data.num_nodes
    return made


def _checked(edges: Any, edge_type: EdgeType, data: Any) -> Any:
    import torch

    rows = torch.as_tensor(edges)
    if rows.dim() != 2 or rows.shape[0] != 2 or rows.is_floating_point() or rows.dtype == torch.bool:
        raise PlanError(f"the labels {edge_type} must be whole numbers of shape [2, n], got {rows.dtype} of shape {tuple(rows.shape)}")
    for end, node_type in ((0, edge_type[0]), (1, edge_type[2])):
        num_nodes = data[node_type].num_nodes
        if rows.shape[1] and not 0 <= int(rows[end].min()) <= int(rows[end].max()) < num_nodes:
            raise PlanError(f"the labels {edge_type} name a {node_type!r} node that does not exist", f"ids go from 0 to {num_nodes - 1}")
    return rows.long()

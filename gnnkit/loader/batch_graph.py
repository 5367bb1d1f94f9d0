"""A PyG batch as one graph of NumPy arrays: nodes of all types numbered through, edges of all types in one list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE, HOMOGENEOUS_NODE_TYPE, EdgeType, NodeType


@dataclass(frozen=True)
class BatchGraph:
    """A batch's nodes and edges.

    Attributes:
        node_types: The node types of the batch.
        first: The number of each type's first node.
        node_type: int64 ``[n]``, positions in ``node_types``.
        n_id: int64 ``[n]``, dataset ids.
        edge_types: The edge types of the batch.
        edge_type: int64 ``[e]``, positions in ``edge_types``.
        edges: int64 ``[2, e]``, numbers of nodes, as in the batch's ``edge_index``.
        stores: ``{node type or edge type: the batch's attributes of it}``.
    """

    node_types: tuple[NodeType, ...]
    first: Mapping[NodeType, int]
    node_type: NDArray[np.int64]
    n_id: NDArray[np.int64]
    edge_types: tuple[EdgeType, ...]
    edge_type: NDArray[np.int64]
    edges: NDArray[np.int64]
    stores: Mapping[Any, Any]

    @classmethod
    def of(cls, batch: Any) -> BatchGraph:
        """Reads a ``Data`` or ``HeteroData``.

        Raises:
            PlanError: It lacks what every batch of a loader has.
        """
        typed = hasattr(batch, "node_types")
        stores = (
            {**{t: batch[t] for t in batch.node_types}, **{t: batch[t] for t in batch.edge_types}}
            if typed
            else {HOMOGENEOUS_NODE_TYPE: batch, HOMOGENEOUS_EDGE_TYPE: batch}
        )
        node_types = tuple(t for t in stores if isinstance(t, str))
        # Links may have a type of their own in a batch, which holds labels and no edges.
        edge_types = tuple(t for t in stores if isinstance(t, tuple) and "edge_index" in stores[t])
        ids = [numbers(stores[t], "n_id") for t in node_types]
        ends = [0, *np.cumsum([len(part) for part in ids]).tolist()]
        first = dict(zip(node_types, ends, strict=False))
        edges = [numbers(stores[t], "edge_index") + np.array([[first[t[0]]], [first[t[2]]]], np.int64) for t in edge_types]
        return cls(
            node_types,
            first,
            np.repeat(np.arange(len(ids)), [len(part) for part in ids]),
            np.concatenate([*ids, np.empty(0, np.int64)]),
            edge_types,
            np.repeat(np.arange(len(edges)), [part.shape[1] for part in edges]),
            np.concatenate([*edges, np.empty((2, 0), np.int64)], axis=1),
            stores,
        )


def numbers(store: Any, name: str) -> NDArray[Any]:
    """A tensor of a batch as an array of this process's memory.

    Raises:
        PlanError: The batch has none.
    """
    value: Any = getattr(store, name, None)
    if not hasattr(value, "detach"):
        raise PlanError(f"the batch has no tensor {name!r}", "give a batch of this loader, as it is before a transform that takes it away")
    array: NDArray[Any] = value.detach().cpu().numpy()
    return array

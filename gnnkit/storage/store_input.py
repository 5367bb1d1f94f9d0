"""A store that exists, read back as the builder's input: for other partitions, and for edges that were sorted once already."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.schema import EdgeType, GraphSchema, NodeType
from gnnkit.source import LinkSplits
from gnnkit.storage.arrays import EdgePart
from gnnkit.storage.inputs import BuildInput, EdgeBatch, batch_rows
from gnnkit.storage.options import BuildOptions
from gnnkit.storage.store import Store

_NODE_ROWS = 1 << 16


class StoreInput:
    """A store as the builder's input, node by node rather than in the dataset's edge order.

    Args:
        store: The store.

    Raises:
        StoreError: Not all of its parts are open.
    """

    def __init__(self, store: Store) -> None:
        self.store = store.require()
        self.name, self.notice, self.schema = store.name, store.notice, store.schema
        self.splits: Mapping[NodeType, Mapping[str, NDArray[np.int64]]] = store.splits
        self.link_splits: LinkSplits = store.link_splits
        self.metadata = store.metadata
        self._dataset_ids: dict[NodeType, NDArray[Any] | None] = {}

    def fingerprint(self) -> str:
        """The fingerprint of the dataset that the store was built from."""
        return self.store.manifest.source_fingerprint

    def cheap_to_reread(self, edge_type: EdgeType, names: Sequence[str]) -> bool:
        """Mappings are."""
        return True

    def in_edge_order(self, options: BuildOptions) -> bool:
        """A store keeps the order within the nodes that own the edges, but for that by its own times."""
        return options.edge_dir == self.store.edge_dir and self.store.options.time_attr in (None, options.time_attr)

    def edge_batches(self, edge_type: EdgeType, names: Sequence[str]) -> Iterator[EdgeBatch]:
        """See ``BuildInput``."""
        arrays = self.store.arrays()
        owner_ids, other_ids = (self._to_dataset(t) for t in (arrays.frontier_type(edge_type), arrays.neighbor_type(edge_type)))
        bounds = arrays.node_bounds[arrays.frontier_type(edge_type)]
        size = batch_rows(self.schema.edge_types[edge_type].arrays[name] for name in names)
        first = 0
        for part, edges in enumerate(arrays.edges[edge_type]):
            for low in range(0, len(edges.indices), size):
                high = min(low + size, len(edges.indices))
                owner = owners_of(edges, low, high) + bounds[part]
                other = edges.indices[low:high].astype(np.int64)
                owner = owner if owner_ids is None else owner_ids[owner].astype(np.int64)
                other = other if other_ids is None else other_ids[other].astype(np.int64)
                source, target = (other, owner) if self.store.edge_dir == "in" else (owner, other)
                ids = None if edges.edge_id is None else edges.edge_id[low:high].astype(np.int64)
                yield EdgeBatch(first + low, source, target, ids, {name: edges.arrays[name][low:high] for name in names})
            first += len(edges.indices)

    def node_array_chunks(self, node_type: NodeType, name: str) -> Iterator[NDArray[Any]]:
        """See ``BuildInput``."""
        arrays = self.store.arrays()
        parts, book, bounds = arrays.nodes[node_type], arrays.store_id[node_type], arrays.node_bounds[node_type]
        if book is None:
            yield from (part.arrays[name] for part in parts)
            return
        for first in range(0, len(book), _NODE_ROWS):
            store_ids = book[first : first + _NODE_ROWS]
            owners = np.searchsorted(bounds, store_ids, side="right") - 1
            rows = np.empty((len(store_ids), *parts[0].arrays[name].shape[1:]), parts[0].arrays[name].dtype)
            for part in np.unique(owners):
                mine = np.flatnonzero(owners == part)
                rows[mine] = parts[part].arrays[name][store_ids[mine] - bounds[part]]
            yield rows

    def _to_dataset(self, node_type: NodeType) -> NDArray[Any] | None:
        """Dataset ids by store id; None for the identity."""
        if node_type not in self._dataset_ids:
            pieces = [part.global_id for part in self.store.arrays().nodes[node_type]]
            self._dataset_ids[node_type] = np.concatenate([p for p in pieces if p is not None]) if pieces[0] is not None else None
        return self._dataset_ids[node_type]


class SortedEdgesInput:
    """Nodes of one input, edges of a store that was made of that input's edges alone.

    Args:
        nodes: The input.
        edges: The store.
    """

    def __init__(self, nodes: BuildInput, edges: Store) -> None:
        self._nodes, self._edges = nodes, StoreInput(edges)
        self.name, self.notice, self.schema = nodes.name, nodes.notice, nodes.schema
        self.splits, self.link_splits, self.metadata = nodes.splits, nodes.link_splits, nodes.metadata
        self.fingerprint = nodes.fingerprint
        self.node_array_chunks = nodes.node_array_chunks
        self.edge_batches = self._edges.edge_batches
        self.in_edge_order = self._edges.in_edge_order
        self.cheap_to_reread = self._edges.cheap_to_reread


class EdgesOnlyInput:
    """An input without its node arrays, splits and metadata: what a partitioner needs to see."""

    def __init__(self, graph: BuildInput) -> None:
        from dataclasses import replace

        nodes = {name: replace(t, arrays={}) for name, t in graph.schema.node_types.items()}
        self.schema: GraphSchema = replace(graph.schema, node_types=nodes)
        self.name, self.notice = graph.name, graph.notice
        self.splits: Mapping[NodeType, Mapping[str, NDArray[np.int64]]] = {}
        self.link_splits: LinkSplits = {}
        self.metadata: Mapping[str, Any] = {}
        self.fingerprint = graph.fingerprint
        self.node_array_chunks = graph.node_array_chunks
        self.edge_batches = graph.edge_batches
        self.in_edge_order = graph.in_edge_order
        self.cheap_to_reread = graph.cheap_to_reread


def owners_of(edges: EdgePart, low: int, high: int) -> NDArray[np.int64]:
    """Local owners of the edges at positions ``[low, high)`` of a part, int64 ``[high - low]``."""
    first = int(np.searchsorted(edges.indptr, low, side="right")) - 1
    last = int(np.searchsorted(edges.indptr, high, side="left"))
    ends = np.clip(edges.indptr[first : last + 1].astype(np.int64), low, high)
    return np.repeat(np.arange(first, last, dtype=np.int64), np.diff(ends))

"""A graph's arrays, part by part, as the sampler reads them: mapped files, shared memory or a user's own tensors.

Nodes are numbered twice. The *dataset's id* is what users see. The *store id* numbers the nodes of a type so that each part
owns one range: part ``p`` owns ``[node_bounds[p], node_bounds[p + 1])``, in the dataset's order within the part or the hottest
first. Adjacency holds store ids, so finding a node's part is a search in ``num_parts + 1`` bounds, whatever the partitioner did.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.schema import EdgeDir, EdgeType, GraphSchema, NodeType
from gnnkit.storage.paging import ReadAhead


def placeholder(dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """An array that stands for one that is not here: read-only, ``[*shape]``, and of one element's memory."""
    return np.broadcast_to(np.zeros((), dtype), shape)


@dataclass(frozen=True)
class NodePart:
    """The nodes of one type in one part.

    Attributes:
        arrays: ``{name: [num_local_nodes, *row_shape]}``, C-contiguous.
        global_id: int32 or int64 ``[num_local_nodes]``, the dataset's ids, ascending unless the hottest come first; None where store
            ids are dataset ids.
    """

    arrays: Mapping[str, NDArray[Any]]
    global_id: NDArray[Any] | None = None


@dataclass(frozen=True)
class EdgePart:
    """The edges of one type that one part owns: those whose target (``edge_dir="in"``) or source ("out") it owns.

    Attributes:
        indptr: int32 or int64 ``[num_local_nodes + 1]`` over the owning end's local nodes, from 0.
        indices: int32 or int64 ``[num_local_edges]``, store ids of the other end; within a node in the dataset's edge order, or by ``time``
            and in that order among equal ones.
        edge_id: int32 or int64 ``[num_local_edges]``, the dataset's edge ids; None where they were not stored.
        weight_prefix: uint64 ``[num_local_edges]``, running sums of integer weights, restarting at each node; None without weights.
        arrays: ``{name: [num_local_edges, *row_shape]}`` in the order of ``indices``.
        time: int64 ``[num_local_edges]``, ascending within each node, the times that temporal sampling compares (see
            ``gnnkit.storage.edge_values``); None without any.
    """

    indptr: NDArray[Any]
    indices: NDArray[Any]
    edge_id: NDArray[Any] | None = None
    weight_prefix: NDArray[np.uint64] | None = None
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    time: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class GraphArrays:
    """Every array that sampling may read. All parts of an edge type agree in dtypes.

    Attributes:
        schema: Types, sizes and arrays.
        edge_dir: "in" (compressed by target; sampling walks from targets to sources) or "out".
        nodes: ``{node type: one NodePart per part}``.
        edges: ``{edge type: one EdgePart per part}``.
        node_bounds: ``{node type: int64 [num_parts + 1]}``, see above.
        store_id: ``{node type: int32 or int64 [num_nodes]}`` from the dataset's id to the store id; None for the identity.
        local_parts: The parts whose arrays are here, ascending. Those of other parts are placeholders of the right dtype and shape
            that take no memory and must never be read.
        hotness: See ``Manifest.hotness``; empty where nodes are in the dataset's order.
        ahead: How its pages come into memory, where that has been decided; None decides it when it is first asked for.
        chunk_edges: Edges that whoever goes through all of them reads at once: 32 MB as int64, which stays in a last-level cache on its way
            to the kernel.
    """

    schema: GraphSchema
    edge_dir: EdgeDir
    nodes: Mapping[NodeType, tuple[NodePart, ...]]
    edges: Mapping[EdgeType, tuple[EdgePart, ...]]
    node_bounds: Mapping[NodeType, NDArray[np.int64]]
    store_id: Mapping[NodeType, NDArray[Any] | None]
    local_parts: tuple[int, ...]
    hotness: Mapping[NodeType, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    ahead: ReadAhead | None = None
    chunk_edges: int = 1 << 22

    @property
    def num_parts(self) -> int:
        """Parts of every type."""
        return len(next(iter(self.node_bounds.values()))) - 1

    @property
    def is_whole(self) -> bool:
        """Whether every part is here."""
        return len(self.local_parts) == self.num_parts

    def local_nodes(self, node_type: NodeType) -> tuple[NodePart, ...]:
        """The parts of a node type that are here."""
        return tuple(self.nodes[node_type][part] for part in self.local_parts)

    def local_edges(self, edge_type: EdgeType) -> tuple[EdgePart, ...]:
        """The parts of an edge type that are here."""
        return tuple(self.edges[edge_type][part] for part in self.local_parts)

    def each(self) -> Iterator[NDArray[Any]]:
        """Yields every array of the parts that are here: nodes first, type by type and part by part."""
        for node_type in self.schema.node_types:
            for node_part in self.local_nodes(node_type):
                yield from node_part.arrays.values()
                if node_part.global_id is not None:
                    yield node_part.global_id
        for edge_type in self.schema.edge_types:
            for edge_part in self.local_edges(edge_type):
                yield from (edge_part.indptr, edge_part.indices, *edge_part.arrays.values())
                yield from (a for a in (edge_part.edge_id, edge_part.weight_prefix, edge_part.time) if a is not None)

    @cached_property
    def read_ahead(self) -> ReadAhead:
        """The way in which its pages come into memory; decided when it is first asked for."""
        return ReadAhead(self.each()) if self.ahead is None else self.ahead

    @cached_property
    def edge_bounds(self) -> dict[EdgeType, NDArray[np.int64]]:
        """``{edge type: int64 [num_parts + 1]}``: part ``p`` owns the positions from ``[p]`` up to ``[p + 1]``."""
        return {
            edge_type: np.cumsum([0] + [len(part.indices) for part in parts], dtype=np.int64) for edge_type, parts in self.edges.items()
        }

    def frontier_type(self, edge_type: EdgeType) -> NodeType:
        """The end of an edge type that sampling starts from, and that owns the edges."""
        return edge_type[2] if self.edge_dir == "in" else edge_type[0]

    def neighbor_type(self, edge_type: EdgeType) -> NodeType:
        """The end of an edge type that sampling arrives at."""
        return edge_type[0] if self.edge_dir == "in" else edge_type[2]

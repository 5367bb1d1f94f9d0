"""From graphlearn-torch's message to a batch as every backend gives it: one block of memory and its layout, in the dataset's ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.backends.glt.data import N_ID, Columns
from gnnkit.errors import SamplingError
from gnnkit.plan import LoaderPlan
from gnnkit.sampling.subgraph import BatchKey, BatchLayout, EdgeKey, LayoutBuilder, NodeKey
from gnnkit.schema import ArraySpec, EdgeType, NodeType, edge_type_name, reverse_edge_type
from gnnkit.storage.arrays import GraphArrays

_Message = Mapping[str, NDArray[Any]]
_NO_IDS = np.empty(0, np.int64)


@dataclass(frozen=True)
class NodeRequest:
    """The seeds that one batch is sampled from.

    Attributes:
        input_type: The seeds' node type.
        seeds: int64 ``[b]``, store ids.
        input_id: int64 ``[b]``, the seeds' positions in the loader's input nodes.
    """

    input_type: NodeType
    seeds: NDArray[np.int64]
    input_id: NDArray[np.int64]


@dataclass(frozen=True)
class MessageReader:
    """Reads messages of one loader.

    Attributes:
        plan: The plan.
        graph: The graph, of whatever parts are here; messages name nodes and edges by the store's ids.
    """

    plan: LoaderPlan
    graph: GraphArrays

    def lay_out(self, message: _Message, request: NodeRequest) -> tuple[BatchLayout, list[NDArray[Any]]]:
        """The batch's layout, and its arrays in the order of the layout's fields.

        Args:
            message: ``{graphlearn-torch's key: array}``.
            request: What was asked for.

        Raises:
            SamplingError: The message is of other seeds.
        """
        hops, places = self.plan.sampling.num_hops, _SeedPlaces.of(request.seeds)
        builder, arrays = LayoutBuilder(), []

        def add(key: BatchKey, values: NDArray[Any], spec: ArraySpec | None = None) -> None:
            builder.add(key, "int64" if spec is None else spec.dtype, values.shape)
            arrays.append(values)

        node_counts: dict[NodeType, list[int]] = {}
        for node_type in self.graph.schema.node_types:
            is_input = node_type == request.input_type
            self._add_nodes(message, node_type, places if is_input else None, add)
            counts = _padded(message.get(self._node_name(node_type, "num_sampled_nodes")), hops + 1)
            node_counts[node_type] = [len(request.seeds) if is_input else counts[0], *counts[1:]]
        edge_counts: dict[EdgeType, list[int]] = {}
        for edge_type in self.graph.schema.edge_types:
            self._add_edges(message, edge_type, request.input_type, places, add)
            edge_counts[self._shown(edge_type)] = _padded(message.get(self._edge_name(edge_type, "num_sampled_edges")), hops)
        add(NodeKey(request.input_type, "input_id"), request.input_id)
        layout = BatchLayout(tuple(builder.fields), builder.nbytes, node_counts, edge_counts, request.input_type, len(request.seeds))
        return layout, arrays

    def _add_nodes(self, message: _Message, node_type: NodeType, places: _SeedPlaces | None, add: Any) -> None:
        nodes = message.get(self._node_name(node_type, "ids"), _NO_IDS)
        columns = Columns.of_nodes(self.graph, node_type)
        table = message.get(self._node_name(node_type, "nfeats"), np.empty((len(nodes), columns.num_words), np.float32))
        if places is not None:
            places.check(nodes)
            nodes, table = places.spread(nodes), places.spread(table)
        values = columns.unpack(table)
        add(NodeKey(node_type, N_ID), values.pop(N_ID, nodes))
        for name, rows in values.items():
            add(NodeKey(node_type, name), rows, columns.specs[name])

    def _add_edges(self, message: _Message, edge_type: EdgeType, input_type: NodeType, places: _SeedPlaces, add: Any) -> None:
        shown, graph = self._shown(edge_type), self.graph
        # Its rows are the seeds' side, its columns the neighbours'.
        near = message.get(self._edge_name(edge_type, "rows"), _NO_IDS)
        far = message.get(self._edge_name(edge_type, "cols"), _NO_IDS)
        if graph.frontier_type(edge_type) == input_type:
            near = places.moved(near)
        if graph.neighbor_type(edge_type) == input_type:
            far = places.moved(far)
        add(EdgeKey(shown, "edge_index"), np.stack([far, near]).astype(np.int64, copy=False))
        columns = self.edge_columns(edge_type)
        table = message.get(self._edge_name(edge_type, "efeats"), np.empty((len(near), columns.num_words), np.float32))
        for name, rows in columns.unpack(table).items():
            add(EdgeKey(shown, name), rows, columns.specs[name])

    def edge_columns(self, edge_type: EdgeType) -> Columns:
        """Returns the arrays that a batch carries for each edge of a type."""
        return Columns.of_edges(self.graph, edge_type, with_edge=self.plan.sampling.with_edge)

    @property
    def needs_nodes(self) -> bool:
        """Whether batches hold anything of single nodes beside the store's ids."""
        return any(Columns.of_nodes(self.graph, node_type).specs for node_type in self.graph.schema.node_types)

    @property
    def needs_edges(self) -> bool:
        """Whether batches hold anything of single edges."""
        return any(self.edge_columns(edge_type).specs for edge_type in self.graph.schema.edge_types)

    def _node_name(self, node_type: NodeType, name: str) -> str:
        return name if self.graph.schema.is_homogeneous else f"{node_type}.{name}"

    def _edge_name(self, edge_type: EdgeType, name: str) -> str:
        """The key that a message has for edges of a stored type: it names them by where sampling came from first."""
        if self.graph.schema.is_homogeneous:
            return name
        return f"{edge_type_name(edge_type if self.graph.edge_dir == 'out' else reverse_edge_type(edge_type))}.{name}"

    def _shown(self, edge_type: EdgeType) -> EdgeType:
        """The type under which a batch shows sampled edges: they always point from the neighbour to the seed side."""
        return edge_type if self.graph.edge_dir == "in" or self.graph.schema.is_homogeneous else reverse_edge_type(edge_type)


@dataclass(frozen=True)
class _SeedPlaces:
    """The places of seeds in a batch: graphlearn-torch drops repeated seeds, a batch has a place for each.

    Attributes:
        distinct: int64 ``[d]``, each seed once, in the order of its first place.
        first: int64 ``[d]``, the first place of each.
        of_seed: int64 ``[num_seeds]``, which of the distinct ones a seed is.
    """

    distinct: NDArray[np.int64]
    first: NDArray[np.int64]
    of_seed: NDArray[np.int64]

    @classmethod
    def of(cls, seeds: NDArray[np.int64]) -> _SeedPlaces:
        """Of a batch's seeds."""
        _, first, inverse = np.unique(seeds, return_index=True, return_inverse=True)
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        return cls(seeds[first[order]], first[order], rank[inverse.reshape(-1)])

    @property
    def is_plain(self) -> bool:
        """Whether no seed is repeated."""
        return len(self.distinct) == len(self.of_seed)

    def check(self, nodes: NDArray[Any]) -> None:
        """Makes sure that a message's nodes begin with these seeds."""
        if not np.array_equal(nodes[: len(self.distinct)], self.distinct):
            raise SamplingError("graphlearn-torch answered with a batch of other seeds")

    def spread(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Rows of a message's nodes, with a row for every seed."""
        return rows if self.is_plain else np.concatenate([rows[self.of_seed], rows[len(self.distinct) :]])

    def moved(self, local: NDArray[Any]) -> NDArray[Any]:
        """A message's numbers of nodes as the batch's: a repeated seed is known by its first place."""
        if self.is_plain:
            return local
        count = len(self.distinct)
        extra = len(self.of_seed) - count
        return np.where(local < count, self.first[np.minimum(local, count - 1)], local + extra)


def _padded(counts: NDArray[Any] | None, length: int) -> list[int]:
    """Counts by hop; graphlearn-torch leaves out hops in which it found nothing."""
    found = [] if counts is None else counts.tolist()
    return [*found, *[0] * (length - len(found))]


def write(layout: BatchLayout, arrays: Sequence[NDArray[Any]], block: NDArray[np.uint8]) -> None:
    """Copies arrays to their places in ``block``."""
    for place, values in zip(layout.fields, arrays, strict=True):
        raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        assert raw.nbytes == place.nbytes, f"{place.key} has {raw.nbytes} bytes, not {place.nbytes}"
        block[place.offset : place.offset + place.nbytes] = raw

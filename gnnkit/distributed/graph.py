"""The edges of a part, and which part owns which node and edge."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from gnnkit.distributed.partition_book import AnyBook, look_up
from gnnkit.distributed.parts import by_type, check_part
from gnnkit.errors import PlanError
from gnnkit.schema import EdgeType, NodeType
from gnnkit.storage.arrays import GraphArrays
from gnnkit.storage.part_ids import all_dataset_ids, dataset_ids, part_edge_ids


class LocalGraph:
    """The edges of one type that one part owns; what is handed out is in the dataset's ids.

    Args:
        graph: The arrays of all parts.
        edge_type: The type.
        part: The part.
        weight: Name of the edge array that holds weights, or None.
    """

    def __init__(self, graph: GraphArrays, edge_type: EdgeType, part: int, weight: str | None = None) -> None:
        self._graph, self._edge_type, self._part, self._weight = graph, edge_type, part, weight
        self._edges = graph.edges[edge_type][part]

    @property
    def layout(self) -> str:
        """How edges are compressed: "CSC" by target, "CSR" by source."""
        return "CSC" if self._graph.edge_dir == "in" else "CSR"

    @property
    def row_count(self) -> int:
        """Nodes that own the edges."""
        return len(self._edges.indptr) - 1

    @property
    def edge_count(self) -> int:
        """Edges of this part."""
        return len(self._edges.indices)

    @property
    def degrees(self) -> torch.Tensor:
        """int64 ``[row_count]``, in the order of the part's nodes (ascending ids)."""
        return torch.from_numpy(np.diff(np.asarray(self._edges.indptr, np.int64)))

    @property
    def edge_weights(self) -> torch.Tensor | None:
        """float32 ``[edge_count]`` in the order of ``export_topology``, or None without weights."""
        if self._weight is None or self._weight not in self._edges.arrays:
            return None
        return torch.from_numpy(np.array(self._edges.arrays[self._weight], np.float32))

    def export_topology(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Copies the edges out, compressed over *all* nodes of the owning end, as graphlearn-torch keeps them.

        Returns:
            indptr: int64 ``[num_nodes + 1]`` by id; other parts' nodes have no edges here.
            indices: int64 ``[edge_count]``, ids at the other end, in the dataset's edge order within a node.
            edge_ids: int64 ``[edge_count]``; places in the store where it has no edge ids.
        """
        graph, edges = self._graph, self._edges
        owner, other = graph.frontier_type(self._edge_type), graph.neighbor_type(self._edge_type)
        counts = np.zeros(graph.schema.node_types[owner].num_nodes + 1, np.int64)
        counts[dataset_ids(graph, owner, self._part) + 1] = np.diff(np.asarray(edges.indptr, np.int64))
        # A part keeps its nodes in ascending order of ids, so that compressing over all nodes leaves edges where they are.
        indices = all_dataset_ids(graph, other)[edges.indices]
        edge_ids = np.array(part_edge_ids(graph, self._edge_type, self._part), np.int64)
        return torch.from_numpy(np.cumsum(counts)), torch.from_numpy(indices), torch.from_numpy(edge_ids)


class DistGraph:
    """A part of a graph and the books that say what the other parts own.

    Typed graphs have a dict by type wherever a homogeneous one has a single value.

    Args:
        num_partitions: Number of parts.
        partition_idx: The part here.
        local_graph: Its edges.
        node_pb: Which part owns which node: partition books, or tensors with each id's part.
        edge_pb: The same for edges; None where nobody asks.

    Raises:
        PlanError: There is no such part, or only some of graphs and books are dicts.
    """

    def __init__(
        self,
        num_partitions: int,
        partition_idx: int,
        local_graph: LocalGraph | Mapping[EdgeType, LocalGraph],
        node_pb: AnyBook | Mapping[NodeType, AnyBook],
        edge_pb: AnyBook | Mapping[EdgeType, AnyBook] | None = None,
    ) -> None:
        check_part(partition_idx, num_partitions)
        typed = isinstance(local_graph, Mapping)
        if any(book is not None and isinstance(book, Mapping) != typed for book in (node_pb, edge_pb)):
            raise PlanError("local_graph, node_pb and edge_pb must all be dicts by type, or none of them")
        self.num_partitions, self.partition_idx = num_partitions, partition_idx
        self.local_graph, self.node_pb, self.edge_pb = local_graph, node_pb, edge_pb
        self.data_cls = "hetero" if typed else "homo"

    def get_local_graph(self, etype: EdgeType | None = None) -> LocalGraph:
        """The edges of a type in the part here; a homogeneous graph has only one."""
        graph: LocalGraph = by_type(self.local_graph, etype, "a graph")
        return graph

    def get_node_partitions(self, ids: torch.Tensor, ntype: NodeType | None = None) -> torch.Tensor:
        """int64 ``[k]``: the parts that own nodes ``[k]`` of a type."""
        return look_up(by_type(self.node_pb, ntype, "a partition book"), ids)

    def get_edge_partitions(self, eids: torch.Tensor, etype: EdgeType | None = None) -> torch.Tensor:
        """int64 ``[k]``: the parts that own edges ``[k]`` of a type.

        Raises:
            PlanError: There is no book of edges, an id is out of range, or the type is unknown.
        """
        if self.edge_pb is None:
            raise PlanError("this DistGraph has no edge_pb", "give one when you make it")
        return look_up(by_type(self.edge_pb, etype, "a partition book"), eids)

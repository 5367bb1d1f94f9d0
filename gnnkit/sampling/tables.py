"""Address tables: a graph as the kernels see it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.kernels.keys import text_key
from gnnkit.kernels.row_copies import row_copies
from gnnkit.schema import EdgeType, NodeType, Quantization, edge_type_name, reverse_edge_type
from gnnkit.storage.arrays import GraphArrays, all_dataset_ids

# Columns of ``GraphTables.meanings`` [A, 6], what the numbers of quantised rows stand for; no columns where rows are none.
COLUMNS, BITS, SCALE, OFFSET, WHOLE, NUM_WHOLE = range(6)


def address_of(array: NDArray[Any] | None) -> int:
    """The address of a C-contiguous array's first element; 0 for None."""
    if array is None:
        return 0
    assert array.flags.c_contiguous, "kernels read rows by address"
    return int(array.__array_interface__["data"][0])


@dataclass(frozen=True)
class RowTable:
    """One array of a node or edge type over all parts.

    Attributes:
        dtype: NumPy dtype of the elements as stored.
        spec_dtype: The schema's name of the dtype.
        row_shape: Shape of one row as stored.
        index: Row in ``GraphTables.row_addresses``.
        bounds: Row in ``GraphTables.row_bounds``.
        is_identity: Whether there is no array because store ids are the dataset's ids.
        quantization: What the numbers of quantised rows stand for.
    """

    dtype: np.dtype[Any]
    spec_dtype: str
    row_shape: tuple[int, ...]
    index: int
    bounds: int
    is_identity: bool = False
    quantization: Quantization | None = None

    @cached_property
    def row_nbytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * int(np.prod(self.row_shape, dtype=np.int64))


class GraphTables:
    """The address tables of a graph; see ``graph_access.walk`` and ``batch_writer.fill`` for their layouts.

    Arrays of parts that are not here have address 0; ``are_here`` says of each row of ``row_addresses`` whether there is none of them.

    Args:
        graph: The arrays; they are kept alive as long as the tables are.
        weighted: Whether sampling follows the stored weights.
    """

    def __init__(self, graph: GraphArrays, weighted: bool) -> None:
        self.graph = graph
        self.ahead = row_copies().entered(graph.read_ahead.table)
        self.node_types: list[NodeType] = list(graph.schema.node_types)
        self.edge_types: list[EdgeType] = list(graph.schema.edge_types)
        type_index = {node_type: i for i, node_type in enumerate(self.node_types)}
        num_parts = graph.num_parts
        self.bounds = np.stack([graph.node_bounds[t] for t in self.node_types]).astype(np.int64)
        self.global_ids = np.zeros((len(self.node_types), num_parts, 2), np.int64)
        for t, node_type in enumerate(self.node_types):
            for p in graph.structure_parts:
                part = graph.nodes[node_type][p]
                if part.global_id is not None:
                    self.global_ids[t, p] = address_of(part.global_id), part.global_id.itemsize
        self.relations = np.zeros((len(self.edge_types), 6), np.int64)
        self.parts = np.zeros((len(self.edge_types), num_parts, 6), np.int64)
        self.relation_keys = np.array([text_key(edge_type_name(t)) for t in self.edge_types], np.uint64)
        for r, edge_type in enumerate(self.edge_types):
            first = graph.edges[edge_type][0]
            has_weights = weighted and first.weight_prefix is not None
            self.relations[r] = (
                type_index[graph.frontier_type(edge_type)],
                type_index[graph.neighbor_type(edge_type)],
                first.indptr.itemsize,
                first.indices.itemsize,
                has_weights,
                graph.node_bounds[graph.neighbor_type(edge_type)][-1],
            )
            for p, edge_part in enumerate(graph.edges[edge_type]):
                arrays = (edge_part.indptr, edge_part.indices, edge_part.weight_prefix if has_weights else None, edge_part.time)
                *addresses, time = map(address_of, arrays) if p in graph.structure_parts else (0, 0, 0, 0)
                self.parts[r, p] = (*addresses, graph.edge_bounds[edge_type][p], len(edge_part.indices), time)
        # The types of nodes that own the edges of each type, and of their neighbours; keys of node types, as ``Variates`` wants them.
        self.frontier_types, self.neighbor_types = (self.relations[:, end].tolist() for end in (0, 1))
        self.node_keys = [text_key(node_type) for node_type in self.node_types]
        self._kept: list[NDArray[Any]] = []  # what ``meanings`` has addresses of
        self._dataset_ids: list[NDArray[Any]] = []  # added to only: threads may work them out at the same time
        self._collect_rows()
        self.num_rows: list[int] = self.row_bounds[:, -1].tolist()  # nodes of every type, then edges of every type

    def num_edges(self, r: int) -> int:
        """Edges of a type."""
        return self.num_rows[len(self.node_types) + r]

    @cached_property
    def dataset_ids(self) -> NDArray[np.int64]:
        """int64 ``[T, 2]``: the address of the dataset's ids by store id, 0 where they are the same, and their width in bytes.

        They are worked out where they are needed first, once for all threads of a process: 4 bytes for each node of such a type.
        """
        found = np.zeros((len(self.node_types), 2), np.int64)
        for t, node_type in enumerate(self.node_types):
            if self.graph.store_id[node_type] is not None:
                ids = all_dataset_ids(self.graph, node_type)
                ids = ids.astype(np.int32) if len(ids) <= 1 << 31 else ids
                self._dataset_ids.append(ids)
                found[t] = address_of(ids), ids.itemsize
        return found

    def shown_type(self, edge_type: EdgeType) -> EdgeType:
        """The type under which a batch shows sampled edges: they always point from the neighbour to the seed side."""
        if self.graph.edge_dir == "in" or self.graph.schema.is_homogeneous:
            return edge_type
        return reverse_edge_type(edge_type)

    def _collect_rows(self) -> None:
        """Numbers every array that a batch may hold, and the bounds that its rows are found by."""
        graph = self.graph
        addresses: list[list[int]] = []

        meanings: list[list[int]] = []

        def add(arrays: Iterable[NDArray[Any] | None], quantization: Quantization | None = None) -> int:
            meanings.append(self._meaning(quantization))
            addresses.append([address_of(array) if p in graph.structure_parts else 0 for p, array in enumerate(arrays)])
            return len(addresses) - 1

        edge_bounds = [graph.edge_bounds[t] for t in self.edge_types]
        self.row_bounds = np.concatenate([self.bounds, np.stack(edge_bounds)]) if edge_bounds else self.bounds.copy()
        self.node_rows: dict[tuple[NodeType, str], RowTable] = {}
        self.edge_rows: dict[tuple[EdgeType, str], RowTable] = {}
        self.node_ids: dict[NodeType, RowTable] = {}
        self.edge_ids: dict[EdgeType, RowTable] = {}
        for t, node_type in enumerate(self.node_types):
            node_parts = graph.nodes[node_type]
            for name, spec in graph.schema.node_types[node_type].arrays.items():
                index = add((part.arrays.get(name) for part in node_parts), spec.quantization)
                self.node_rows[node_type, name] = RowTable(
                    spec.numpy_dtype, spec.dtype, spec.stored_shape, index, t, quantization=spec.quantization
                )
            ids = [part.global_id for part in node_parts]
            dtype = np.dtype(np.int64) if ids[0] is None else ids[0].dtype
            self.node_ids[node_type] = RowTable(dtype, "int64", (), add(ids), t, is_identity=ids[0] is None)
        for r, edge_type in enumerate(self.edge_types):
            edge_parts, bounds = graph.edges[edge_type], len(self.node_types) + r
            for name, spec in graph.schema.edge_types[edge_type].arrays.items():
                index = add((part.arrays.get(name) for part in edge_parts), spec.quantization)
                self.edge_rows[edge_type, name] = RowTable(
                    spec.numpy_dtype, spec.dtype, spec.stored_shape, index, bounds, quantization=spec.quantization
                )
            if edge_parts[0].edge_id is not None:
                index = add(part.edge_id for part in edge_parts)
                self.edge_ids[edge_type] = RowTable(edge_parts[0].edge_id.dtype, "int64", (), index, bounds)
        self.row_addresses = np.array(addresses, np.int64).reshape(len(addresses), graph.num_parts)
        self.are_here: NDArray[np.bool_] = (self.row_addresses != 0).all(axis=1)
        self.meanings = np.array(meanings, np.int64).reshape(len(meanings), NUM_WHOLE + 1)

    def _meaning(self, quantization: Quantization | None) -> list[int]:
        """A row of ``meanings``: addresses of arrays that are kept."""
        if quantization is None:
            return [0] * (NUM_WHOLE + 1)
        scale, offset = (np.array(numbers, np.float32) for numbers in (quantization.scale, quantization.offset))
        whole = np.array(quantization.whole, np.int64)
        self._kept += [scale, offset, whole]
        return [len(scale), quantization.bits, address_of(scale), address_of(offset), address_of(whole), len(whole)]

"""Parts of a graph as graphlearn-torch's own objects, in memory that processes share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from gnnkit.sampling.subgraph import by_shown_name
from gnnkit.schema import ArraySpec, EdgeType, NodeType
from gnnkit.storage.arrays import GraphArrays, all_dataset_ids, edge_order, viewed
from gnnkit.storage.convert import plain_rows, plain_spec
from gnnkit.vendor import glt

_WORD = 4
N_ID, E_ID = "n_id", "e_id"
_ID = ArraySpec("int64", ())


@dataclass(frozen=True)
class Columns:
    """The arrays that a row consists of.

    Attributes:
        specs: ``{name: spec}``, in the order of the row; ids under "n_id" or "e_id" where they differ from the store's.
    """

    specs: Mapping[str, ArraySpec]

    @classmethod
    def of_nodes(cls, graph: GraphArrays, node_type: NodeType) -> Columns:
        """Rows of a node type."""
        ids = {} if graph.store_id[node_type] is None else {N_ID: _ID}
        return cls({**ids, **by_shown_name(graph.schema.node_types[node_type].arrays)})

    @classmethod
    def of_edges(cls, graph: GraphArrays, edge_type: EdgeType, *, with_edge: bool) -> Columns:
        """Rows of an edge type; with the dataset's ids if there are any and ``with_edge`` asks for them."""
        has_ids = graph.local_edges(edge_type)[0].edge_id is not None
        return cls({**({E_ID: _ID} if with_edge and has_ids else {}), **by_shown_name(graph.schema.edge_types[edge_type].arrays)})

    @cached_property
    def row(self) -> np.dtype[Any]:
        """A row of words; at least one, because a type without features is an error to graphlearn-torch where others have some (GLT-10)."""
        ends = np.cumsum([0, *(-(-spec.row_nbytes // _WORD) * _WORD for spec in self.specs.values())])
        formats: Any = [(spec.numpy_dtype, spec.stored_shape) for spec in self.specs.values()]
        return np.dtype({"names": [*self.specs], "formats": formats, "offsets": ends[:-1].tolist(), "itemsize": max(_WORD, int(ends[-1]))})

    @property
    def num_words(self) -> int:
        """Words of a row."""
        return self.row.itemsize // _WORD

    def pack(self, arrays: Mapping[str, NDArray[Any] | None], table: NDArray[np.float32]) -> None:
        """Fills a table.

        Args:
            arrays: ``{name: [n, *row_shape]}``; None for what rows do not have.
            table: ``[n, num_words]``.
        """
        rows = table.view(self.row)[:, 0]
        for name in self.specs:
            given = arrays[name]
            assert given is not None, f"rows have {name}, and this part has not"
            rows[name] = given

    def unpack(self, table: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        """``{name: [n, *row_shape]}``, as they are stored; reverses ``pack``."""
        rows = table.view(self.row)[:, 0]
        return {name: np.ascontiguousarray(rows[name]) for name in self.specs}


GraphMode = Literal["CPU", "ZERO_COPY", "CUDA"]
_SIGNED = {"uint16": np.int16, "uint32": np.int32, "uint64": np.int64}


class OffsetIndex:
    """From ids of one range to rows.

    Args:
        offset: The id of row 0.
    """

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def __getitem__(self, ids: torch.Tensor) -> torch.Tensor:
        return ids - self.offset

    def to(self, device: object) -> OffsetIndex:
        """Itself: it works on every device."""
        return self


@dataclass(frozen=True)
class PartBuilder:
    """Makes graphlearn-torch's objects of one part.

    Attributes:
        graph: The arrays of every part.
        part: The part.
        of_dataset: Whether nodes and edges have the dataset's own ids, or the store's, whose parts are ranges.
        graph_mode: "CPU", "ZERO_COPY" (edges in memory that a GPU reads) or "CUDA" (edges on a GPU).
        device: The GPU of the last two; None is torch's current one.
    """

    graph: GraphArrays
    part: int
    of_dataset: bool
    graph_mode: GraphMode = "CPU"
    device: int | None = None

    def _ids(self, graph_type: NodeType | EdgeType, part: int) -> NDArray[Any] | None:
        """The ids of a part's nodes or edges of a type; None where they are its range of the store's."""
        if not self.of_dataset:
            return None
        return self.graph.nodes[graph_type][part].global_id if isinstance(graph_type, str) else self.graph.edges[graph_type][part].edge_id

    def _bounds(self, graph_type: NodeType | EdgeType) -> NDArray[np.int64]:
        """The bounds of the parts' ranges of the store's ids of a type."""
        return self.graph.node_bounds[graph_type] if isinstance(graph_type, str) else self.graph.edge_bounds[graph_type]

    def book(self, graph_type: NodeType | EdgeType) -> Any:
        """Which part owns which node or edge of a type."""
        ids = [self._ids(graph_type, part) for part in range(self.graph.num_parts)]
        ends = [int(bound) for bound in self._bounds(graph_type)]
        if not self.of_dataset and all(start < end for start, end in zip(ends[:-1], ends[1:], strict=True)):
            ranges = list(zip(ends[:-1], ends[1:], strict=True))
            return glt.attribute("partition.RangePartitionBook")(ranges, self.part)
        owners = shared_empty((ends[-1],), torch.uint8 if len(ids) <= 256 else torch.int32)  # GLT-6
        for part, own in enumerate(ids):
            where: Any = slice(ends[part], ends[part + 1]) if own is None else torch.from_numpy(own.astype(np.int64))
            owners[where] = part
        return glt.attribute("partition.GLTPartitionBook")(owners)

    def edges(self, edge_type: EdgeType, weight: str | None = None) -> Any:
        """A ``Graph``: the part's edges; see ``topology``."""
        indptr, indices, edge_ids, weights = self.topology(edge_type, weight)
        layout = "CSC" if self.graph.edge_dir == "in" else "CSR"
        ends = (indices, indptr) if layout == "CSC" else (indptr, indices)
        topology = glt.attribute("data.Topology")(ends, edge_ids, weights, input_layout=layout, layout=layout)
        return glt.attribute("data.Graph")(topology, self.graph_mode, self.device if self.graph_mode != "CPU" else None)

    def topology(
        self, edge_type: EdgeType, weight: str | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Copies the part's edges, compressed over *all* nodes of the owning end.

        Args:
            edge_type: The type.
            weight: Name of the edge array that holds weights, or None.

        Returns:
            indptr: int64 ``[num_nodes + 1]``; other parts' nodes have no edges here.
            indices: int64 ``[num_local_edges]``, the nodes at the other end, in the order of the dataset's edges within a node.
            edge_ids: int64 ``[num_local_edges]``; places in the store where it has no edge ids.
            weights: float32 ``[num_local_edges]``, or None.
        """
        graph, edges = self.graph.checked(edge_type), self.graph.edges[edge_type][self.part]
        owner, other = graph.frontier_type(edge_type), graph.neighbor_type(edge_type)
        indptr = shared_empty((graph.schema.node_types[owner].num_nodes + 1,), torch.int64)
        counts = np.zeros(len(indptr), np.int64)
        first, end = graph.node_bounds[owner][self.part : self.part + 2]
        own: Any = self._ids(owner, self.part)
        counts[1:][slice(int(first), int(end)) if own is None else own] = np.diff(np.asarray(edges.indptr, np.int64))
        np.cumsum(counts, out=indptr.numpy())
        indices = shared_empty((len(edges.indices),), torch.int64)
        indices.numpy()[:] = edges.indices
        if self.of_dataset:
            indices.numpy()[:] = all_dataset_ids(graph, other)[edges.indices]
        edge_ids, own = shared_empty((len(edges.indices),), torch.int64), self._ids(edge_type, self.part)
        edge_ids.numpy()[:] = np.arange(*graph.edge_bounds[edge_type][self.part : self.part + 2]) if own is None else own
        weights = None
        if weight is not None and weight in edges.arrays:
            weights = shared_empty((len(edges.indices),), torch.float32)
            weights.numpy()[:] = edges.arrays[weight]
        order = edge_order(graph, edge_type, self.part) if self.of_dataset else None
        if order is not None:  # a part that has its hottest nodes first
            for values in (indices, edge_ids, *([] if weights is None else [weights])):
                values.copy_(values[torch.from_numpy(order)])
        return indptr, indices, edge_ids, weights

    def features(self, graph_type: NodeType | EdgeType, name: str) -> Any:
        """A ``Feature``: an array of the part's nodes or edges of a type."""
        parts: Any = self.graph.nodes if isinstance(graph_type, str) else self.graph.edges
        rows, spec = parts[graph_type][self.part].arrays[name], self.graph.schema.arrays_of(graph_type)[name]
        return self._feature(_shared_rows(rows, spec), graph_type)

    def node_table(self, node_type: NodeType) -> Any:
        """A ``Feature``: all arrays that the part's nodes carry; see ``Columns``."""
        nodes = self.graph.nodes[node_type][self.part]
        return self._table(Columns.of_nodes(self.graph, node_type), {N_ID: nodes.global_id, **by_shown_name(nodes.arrays)}, node_type)

    def edge_table(self, edge_type: EdgeType, *, with_edge: bool) -> Any:
        """A ``Feature``: all arrays that the part's edges carry, likewise."""
        edges, columns = self.graph.edges[edge_type][self.part], Columns.of_edges(self.graph, edge_type, with_edge=with_edge)
        return self._table(columns, {E_ID: edges.edge_id, **by_shown_name(edges.arrays)}, edge_type)

    def _table(self, columns: Columns, arrays: Mapping[str, NDArray[Any] | None], graph_type: NodeType | EdgeType) -> Any:
        count = int(np.diff(self._bounds(graph_type))[self.part])
        table = shared_empty((count, columns.num_words), torch.float32)
        columns.pack(arrays, table.numpy())
        return self._feature(table, graph_type)

    def _feature(self, rows: torch.Tensor, graph_type: NodeType | EdgeType) -> Any:
        bounds, own = self._bounds(graph_type), self._ids(graph_type, self.part)
        index: Any = OffsetIndex(int(bounds[self.part]))
        if own is not None:
            index = shared_empty((int(bounds[-1]),), torch.int64)
            index[torch.from_numpy(own.astype(np.int64))] = torch.arange(len(own))
        device = self.device if self.graph_mode != "CPU" else None
        return glt.attribute("data.Feature")(rows, index, device=device, with_gpu=self.graph_mode != "CPU", dtype=rows.dtype)


def _shared_rows(values: NDArray[Any], spec: ArraySpec) -> torch.Tensor:
    """A copy of an array as graphlearn-torch wants features: ``[n, width]``, quantised ones as float32."""
    values, spec = plain_rows(values, spec), plain_spec(spec)
    flat = values.reshape(len(values), int(np.prod(spec.row_shape, dtype=np.int64))).view(_SIGNED.get(values.dtype.name, values.dtype))
    rows = shared_empty(flat.shape, torch.from_numpy(np.empty(0, flat.dtype)).dtype)
    rows.numpy()[:] = flat
    return viewed(rows, spec.dtype)


def shared_empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of zeros in a memfd of its own, which other processes are given by descriptor; in plain memory where there are none.

    Raises:
        OSError: There is no memory for it.
    """
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if not nbytes or not hasattr(os, "memfd_create"):
        return torch.zeros(shape, dtype=dtype)
    fd = os.memfd_create("gnnkit-glt", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, nbytes)
        storage: torch.UntypedStorage = torch.UntypedStorage._new_shared_fd_cpu(fd, nbytes)  # type: ignore[attr-defined]
    finally:
        os.close(fd)  # the storage has duplicated it
    strides = torch.empty(shape, device="meta").stride()
    return torch.empty(0, dtype=dtype).set_(storage, 0, shape, strides)


def unwrapped(by_type: Mapping[Any, Any], *, homogeneous: bool) -> Any:
    """The only value of a homogeneous graph, else the dict."""
    return next(iter(by_type.values())) if homogeneous else dict(by_type)

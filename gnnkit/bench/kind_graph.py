"""The generated graph with what some kinds of batches need beside: weights, times, and edges that are labels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.schema import (
    HOMOGENEOUS_NODE_TYPE,
    POSITIVE_LABELS,
    ArraySpec,
    EdgeType,
    EdgeTypeSchema,
    GraphSchema,
    NodeType,
    opposite_edge_type,
)
from gnnkit.source import CHUNK_ROWS, GraphSource

LABELS: EdgeType = (HOMOGENEOUS_NODE_TYPE, f"to{POSITIVE_LABELS}", HOMOGENEOUS_NODE_TYPE)
# As they lie in a store that is compressed by targets: anchors own them.
_STORED_LABELS = opposite_edge_type(LABELS)
TIME_SPAN = 1 << 20
# Odd, so that its multiples visit every residue: nodes and edges that are near each other get values that are not.
_STRIDE = 0x9E3779B1


class _Wrapped:
    """A source with another schema, which passes on what it does not know better."""

    def __init__(self, source: GraphSource, kind: str, schema: GraphSchema) -> None:
        self._source, self._kind, self.schema = source, kind, schema
        self.name, self.notice, self.edges_are_cheap = f"{source.name}-{kind}", source.notice, source.edges_are_cheap
        self.splits: Mapping[NodeType, Mapping[str, NDArray[np.int64]]] = source.splits
        self.link_splits, self.metadata = source.link_splits, source.metadata

    def fingerprint(self) -> str:
        """See ``GraphSource.fingerprint``."""
        return hashlib.sha256(f"{self._source.fingerprint()} {self._kind}".encode()).hexdigest()

    def edge_chunks(self, edge_type: EdgeType) -> Iterator[NDArray[np.int64]]:
        """See ``GraphSource.edge_chunks``."""
        return self._source.edge_chunks(edge_type)

    def edge_array_chunks(self, edge_type: EdgeType, name: str) -> Iterator[NDArray[Any]]:
        """See ``GraphSource.edge_array_chunks``."""
        return self._source.edge_array_chunks(edge_type, name)

    def node_array_chunks(self, node_type: NodeType, name: str) -> Iterator[NDArray[Any]]:
        """See ``GraphSource.node_array_chunks``."""
        return self._source.node_array_chunks(node_type, name)


class Weighted(_Wrapped):
    """Edges have a "weight" float32 ``[E]`` in (0, 1].

    Args:
        source: A homogeneous graph.
    """

    def __init__(self, source: GraphSource) -> None:
        (nodes,) = source.schema.node_types.values()
        weight = {"weight": ArraySpec("float32")}
        super().__init__(source, "weighted", GraphSchema.homogeneous(nodes.num_nodes, source.schema.num_edges, nodes.arrays, weight))

    def edge_array_chunks(self, edge_type: EdgeType, name: str) -> Iterator[NDArray[Any]]:
        """See ``GraphSource.edge_array_chunks``."""
        for start, stop in _chunks(self.schema.num_edges):
            yield ((_spread(start, stop, TIME_SPAN) + 1) / TIME_SPAN).astype(np.float32)


class Timed(_Wrapped):
    """Nodes have a "time" int64 ``[N]`` in [0, TIME_SPAN).

    Args:
        source: A homogeneous graph.
    """

    def __init__(self, source: GraphSource) -> None:
        (nodes,) = source.schema.node_types.values()
        arrays = {**nodes.arrays, "time": ArraySpec("int64")}
        super().__init__(source, "timed", GraphSchema.homogeneous(nodes.num_nodes, source.schema.num_edges, arrays))

    def node_array_chunks(self, node_type: NodeType, name: str) -> Iterator[NDArray[Any]]:
        """See ``GraphSource.node_array_chunks``."""
        if name != "time":
            yield from super().node_array_chunks(node_type, name)
            return
        for start, stop in _chunks(self.schema.num_nodes):
            yield _spread(start, stop, TIME_SPAN)


class Labeled(_Wrapped):
    """Beside its edges, every node has one that is a label.

    Args:
        source: A homogeneous graph.
    """

    def __init__(self, source: GraphSource) -> None:
        labels = EdgeTypeSchema(source.schema.num_nodes)
        super().__init__(source, "labeled", GraphSchema(source.schema.node_types, {**source.schema.edge_types, _STORED_LABELS: labels}))

    def edge_chunks(self, edge_type: EdgeType) -> Iterator[NDArray[np.int64]]:
        """See ``GraphSource.edge_chunks``."""
        if edge_type != _STORED_LABELS:
            yield from super().edge_chunks(edge_type)
            return
        for start, stop in _chunks(self.schema.num_nodes):
            nodes = np.arange(start, stop)
            yield np.stack([_spread(start, stop, self.schema.num_nodes), nodes])


WRAPPERS = {"weighted": Weighted, "timed": Timed, "labeled": Labeled}


def _chunks(count: int) -> Iterator[tuple[int, int]]:
    for start in range(0, count, CHUNK_ROWS):
        yield start, min(count, start + CHUNK_ROWS)


def _spread(start: int, stop: int, span: int) -> NDArray[np.int64]:
    return np.arange(start, stop, dtype=np.int64) * _STRIDE % span

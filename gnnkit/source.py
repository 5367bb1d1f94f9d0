"""The source that a store is built from: a graph that can be read front to back, twice, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from gnnkit.schema import EdgeType, GraphSchema, NodeType

K = TypeVar("K")
V = TypeVar("V")

# Rows that a source hands over at once: large enough to amortise a call, small enough to bound memory.
CHUNK_ROWS = 1 << 20
# {edge type: {split: {name: array}}}
LinkSplits: TypeAlias = Mapping[EdgeType, Mapping[str, Mapping[str, NDArray[Any]]]]


class GraphSource(Protocol):
    """A graph to be streamed into a store.

    Every ``*_chunks`` method starts at the beginning each time it is called, and yields arrays that the caller may keep
    until the next one is asked for. Ids are the dataset's own: node ``i`` is row ``i`` of its type's arrays, edge ``e`` is
    the ``e``-th edge that ``edge_chunks`` yields.

    Attributes:
        name: What users call it ("ogbn-products"); part of the store's folder name.
        notice: A line that must be shown wherever the dataset is ("synthetic sample, not OGB's data"), or None.
        schema: Types, sizes and arrays; known before anything is streamed.
        splits: ``{node type: {"train" | "valid" | "test": int64 [k]}}``, the dataset's official ids, verbatim.
        link_splits: ``{edge type: {"train" | "valid" | "test": {name: array}}}``, the dataset's official links; empty where it has none.
            Of n links: "edge_label_index" int64 ``[2, n]``, always there; "edge_label" ``[n, ...]``, whatever the dataset says of them;
            "edge_label_time" int64 ``[n]``; "src_neg_index" and "dst_neg_index" int64 ``[n, k]``, wrong sources and targets for each
            link; and "neg_edge_index" int64 ``[2, m]``, negatives that belong to no link. All ids are the dataset's.
        metadata: JSON-serialisable facts for users ("num_classes", "task_type", "eval_metric", ...).
        keys: ``{node type: gnnkit.storage.keys.NodeKeys}``, what nodes are called by the tables they came from; a source whose nodes have
            no names but their ids need not have this attribute, which is why it is none of those below.
        target_windows: ``{edge type: rows}``, for types whose edges come in the order of their targets: two edges of which the later one's
            target is smaller are fewer rows apart than this; 0 where there are none. A source without an order need not have it, either.
        edges_are_cheap: Whether a second pass over ``edge_chunks`` costs no more than reading memory or a mapping; where it is
            False (CSV), the builder keeps what the first pass parsed.
    """

    name: str
    notice: str | None
    splits: Mapping[NodeType, Mapping[str, NDArray[np.int64]]]
    link_splits: LinkSplits
    metadata: Mapping[str, Any]
    edges_are_cheap: bool

    @property
    def schema(self) -> GraphSchema:
        """See the attributes above; read-only, so that a source may work it out when it is first asked for."""
        ...

    def fingerprint(self) -> str:
        """A hex digest of the content, cheap enough to be taken at every call of ``GraphLoader.from_ogb``."""
        ...

    def edge_chunks(self, edge_type: EdgeType) -> Iterator[NDArray[np.int64]]:
        """Yields ``[2, k]`` (source row, target row) in the dataset's edge order.

        Raises:
            DatasetError: An id is out of range, or the data ends too early or goes on too long.
        """
        ...

    def edge_array_chunks(self, edge_type: EdgeType, name: str) -> Iterator[NDArray[Any]]:
        """Yields rows ``[k, *row_shape]`` of an edge array in the dataset's edge order."""
        ...

    def node_array_chunks(self, node_type: NodeType, name: str) -> Iterator[NDArray[Any]]:
        """Yields rows ``[k, *row_shape]`` of a node array in the dataset's node order."""
        ...


@runtime_checkable
class PartedSource(Protocol):
    """A ``GraphSource`` whose nodes are in parts already; the fingerprint covers them.

    Attributes:
        parts: ``{node type: integers [num_nodes]}``, each node's part; None where the nodes of this one are not in parts.
    """

    @property
    def parts(self) -> Mapping[NodeType, NDArray[Any]] | None:
        """See above."""
        ...


@runtime_checkable
class RangedSource(Protocol):
    """A ``GraphSource`` any rows of which can be read without those before them, on any host that sees its files; it can be pickled."""

    def edge_rows(self, edge_type: EdgeType, first: int, last: int) -> NDArray[np.int64]:
        """Returns the edges ``[first, last)`` of the dataset's edge order: ``[2, last - first]`` (source row, target row)."""
        ...

    def edge_array_rows(self, edge_type: EdgeType, name: str, first: int, last: int) -> NDArray[Any]:
        """Returns rows ``[first, last)`` of an edge array."""
        ...

    def node_array_rows(self, node_type: NodeType, name: str, first: int, last: int) -> NDArray[Any]:
        """Returns rows ``[first, last)`` of a node array."""
        ...


def numbered(chunks: Iterable[NDArray[Any]], axis: int = 0) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yields each chunk of what lies along an axis, with the number of its first element."""
    first = 0
    for chunk in chunks:
        yield first, chunk
        first += chunk.shape[axis]


class LazyMapping(Mapping[K, V], Generic[K, V]):
    """A mapping whose keys are known and whose values are loaded when they are asked for: once, unless ``load`` keeps them itself."""

    def __init__(self, keys: list[K], load: Callable[[K], V], *, keeps: bool = True) -> None:
        self._keys, self._load, self._keeps = keys, load, keeps
        self._values: dict[K, V] = {}

    def __getitem__(self, key: K) -> V:
        if key not in self._keys:
            raise KeyError(key)
        if not self._keeps:
            return self._load(key)
        if key not in self._values:
            self._values[key] = self._load(key)
        return self._values[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

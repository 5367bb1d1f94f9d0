"""Small graphs for tests: an in-memory ``GraphSource`` and random typed graphs with every awkward shape in them.

source = random_source(np.random.default_rng(0))                  # typed, with duplicates, self loops, isolated nodes
source = homogeneous_source(edge_index, num_nodes, x=x, y=y)      # one node type, one edge type
source = ArraySource(schema, {edge_type: edge_index}, ...)        # anything else
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gnnkit import BuildOptions, Store, partition
from gnnkit.datasets import ArraySpec, EdgeTypeSchema, GraphSchema, NodeTypeSchema

NodeType: TypeAlias = str
EdgeType: TypeAlias = tuple[str, str, str]

NODE_NAMES = ("author", "field", "paper", "venue")
RELATIONS = ("cites", "has", "to", "writes")


def stored(source: Any, path: Path | None, options: BuildOptions | None = None, **more: Any) -> Store:
    """``gnnkit.partition``, with its options in one object; a path that is None is in the folder of stores."""
    options = BuildOptions() if options is None else options
    given = {field.name: getattr(options, field.name) for field in fields(options)}
    store = partition(source, out=path, overwrite=True, **given, **more)
    assert store is not None
    return store


class ArraySource:
    """A ``GraphSource`` over arrays in memory.

    Args:
        schema: Types, sizes and arrays; must agree with the arrays given.
        edges: ``{edge type: int64 [2, num_edges]}``, source row and target row.
        node_arrays: ``{node type: {name: [num_nodes, *row_shape]}}``; bfloat16 arrays as uint16 bit patterns.
        edge_arrays: ``{edge type: {name: [num_edges, *row_shape]}}``.
        splits: See ``GraphSource.splits``.
        link_splits: See ``GraphSource.link_splits``.
        chunk_rows: Rows per chunk; small values exercise the seams between chunks.
        edges_are_cheap: See ``GraphSource``.
    """

    def __init__(
        self,
        schema: GraphSchema,
        edges: Mapping[EdgeType, NDArray[np.int64]],
        node_arrays: Mapping[NodeType, Mapping[str, NDArray[Any]]] | None = None,
        edge_arrays: Mapping[EdgeType, Mapping[str, NDArray[Any]]] | None = None,
        *,
        splits: Mapping[NodeType, Mapping[str, NDArray[np.int64]]] | None = None,
        link_splits: Mapping[EdgeType, Mapping[str, Mapping[str, NDArray[Any]]]] | None = None,
        name: str = "tiny",
        notice: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        chunk_rows: int = 1 << 20,
        edges_are_cheap: bool = True,
    ) -> None:
        self.schema = schema
        self.edges = dict(edges)
        self.node_arrays = {k: dict(v) for k, v in (node_arrays or {}).items()}
        self.edge_arrays = {k: dict(v) for k, v in (edge_arrays or {}).items()}
        self.splits = {k: dict(v) for k, v in (splits or {}).items()}
        self.link_splits = {k: dict(v) for k, v in (link_splits or {}).items()}
        self.name, self.notice, self.metadata = name, notice, dict(metadata or {})
        self.chunk_rows, self.edges_are_cheap = chunk_rows, edges_are_cheap
        self.passes: dict[EdgeType, int] = dict.fromkeys(self.edges, 0)

    def fingerprint(self) -> str:
        """A digest of every array and of the schema."""
        digest = hashlib.sha256(repr(self.schema.to_json()).encode())
        for _, edge_index in sorted(self.edges.items()):
            digest.update(np.ascontiguousarray(edge_index).tobytes())
        for tables in (self.node_arrays, self.edge_arrays, self.splits):
            for _, arrays in sorted(tables.items()):
                for name, values in sorted(arrays.items()):
                    digest.update(name.encode() + np.ascontiguousarray(values).tobytes())
        for _, by_split in sorted(self.link_splits.items()):
            for split, links in sorted(by_split.items()):
                for name, values in sorted(links.items()):
                    digest.update(f"{split} {name}".encode() + np.ascontiguousarray(values).tobytes())
        return digest.hexdigest()

    def edge_chunks(self, edge_type: EdgeType) -> Iterator[NDArray[np.int64]]:
        """Yields ``[2, k]`` in order, and counts the passes made over the edges."""
        self.passes[edge_type] += 1
        edge_index = self.edges[edge_type]
        for start in range(0, edge_index.shape[1], self.chunk_rows):
            yield edge_index[:, start : start + self.chunk_rows]

    def edge_array_chunks(self, edge_type: EdgeType, name: str) -> Iterator[NDArray[Any]]:
        """Yields rows in the order of the edges."""
        yield from self._chunks(self.edge_arrays[edge_type][name])

    def node_array_chunks(self, node_type: NodeType, name: str) -> Iterator[NDArray[Any]]:
        """Yields rows in the order of the nodes."""
        yield from self._chunks(self.node_arrays[node_type][name])

    def _chunks(self, values: NDArray[Any]) -> Iterator[NDArray[Any]]:
        for start in range(0, len(values), self.chunk_rows):
            yield values[start : start + self.chunk_rows]


def spec_of(values: NDArray[Any]) -> ArraySpec:
    """The ``ArraySpec`` of an array with one row per node or edge."""
    return ArraySpec(str(values.dtype), values.shape[1:])


def homogeneous_source(
    edge_index: NDArray[np.int64],
    num_nodes: int,
    *,
    edge_arrays: Mapping[str, NDArray[Any]] | None = None,
    splits: Mapping[str, NDArray[np.int64]] | None = None,
    chunk_rows: int = 1 << 20,
    edges_are_cheap: bool = True,
    **node_arrays: NDArray[Any],
) -> ArraySource:
    """A homogeneous ``ArraySource``; ``x=...``, ``y=...`` and so on become node arrays."""
    edge_arrays = dict(edge_arrays or {})
    schema = GraphSchema.homogeneous(
        num_nodes,
        edge_index.shape[1],
        {name: spec_of(values) for name, values in node_arrays.items()},
        {name: spec_of(values) for name, values in edge_arrays.items()},
    )
    (node_type,), (edge_type,) = schema.node_types, schema.edge_types
    return ArraySource(
        schema,
        {edge_type: edge_index},
        {node_type: node_arrays},
        {edge_type: edge_arrays},
        splits={node_type: splits} if splits else None,
        chunk_rows=chunk_rows,
        edges_are_cheap=edges_are_cheap,
    )


def typed_source(
    sizes: Mapping[NodeType, int],
    edges: Mapping[EdgeType, NDArray[np.int64]],
    node_arrays: Mapping[NodeType, Mapping[str, NDArray[Any]]] | None = None,
    edge_arrays: Mapping[EdgeType, Mapping[str, NDArray[Any]]] | None = None,
    **others: Any,
) -> ArraySource:
    """An ``ArraySource`` of several types, with the schema that its arrays have; ``others`` are those of ``ArraySource``."""
    nodes, rows = node_arrays or {}, edge_arrays or {}
    schema = GraphSchema(
        {t: NodeTypeSchema(count, {name: spec_of(values) for name, values in nodes.get(t, {}).items()}) for t, count in sizes.items()},
        {t: EdgeTypeSchema(e.shape[1], {name: spec_of(values) for name, values in rows.get(t, {}).items()}) for t, e in edges.items()},
    )
    return ArraySource(schema, edges, nodes, rows, **others)


def random_edges(rng: np.random.Generator, num_sources: int, num_targets: int, num_edges: int) -> NDArray[np.int64]:
    """Random ``[2, num_edges]`` with a hub on each side, duplicates and, where both ends count alike, self loops."""
    if not num_sources or not num_targets:
        return np.empty((2, 0), np.int64)
    edge_index = np.stack([rng.integers(0, num_sources, num_edges), rng.integers(0, num_targets, num_edges)]).astype(np.int64)
    quarter = num_edges // 4
    edge_index[1, :quarter] = num_targets // 2
    edge_index[0, quarter : 2 * quarter] = num_sources - 1
    edge_index[:, 2 * quarter : 3 * quarter] = edge_index[:, :quarter]
    if num_sources == num_targets and num_edges:
        edge_index[1, -1] = edge_index[0, -1]
    return edge_index[:, rng.permutation(num_edges)]


def built(source: Any, folder: Path, *options: Any, **more: Any) -> Any:
    """A store of a graph, built with the arguments of ``BuildOptions``."""
    return stored(source, folder, BuildOptions(*options, **more))


def split_store(folder: Path) -> Path:
    """Builds a store of 2000 nodes with features, of which 1000 are to train with and 500 to validate; its folder."""
    num_nodes, rng = 2000, np.random.default_rng(0)
    splits = {"train": np.arange(0, num_nodes, 2), "valid": np.arange(1, num_nodes, 4)}
    x = rng.standard_normal((num_nodes, 64)).astype(np.float32)
    source = homogeneous_source(random_edges(rng, num_nodes, num_nodes, 20000), num_nodes, splits=splits, x=x)
    stored(source, folder)
    return folder


def random_source(
    rng: np.random.Generator,
    *,
    max_nodes: int = 40,
    max_edges: int = 150,
    num_node_types: int | None = None,
    num_edge_types: int | None = None,
    chunk_rows: int | None = None,
    edges_are_cheap: bool = True,
) -> ArraySource:
    """A random typed graph.

    Node types carry ``x`` float32 ``[n, 1 to 5]``, ``y`` int64 ``[n]`` or float32 ``[n, 3]`` and ``time`` int64, each with
    some probability, and some have no nodes at all; edge types carry ``edge_attr`` float32 ``[m, 3]``, ``weight`` float32
    ``[m]`` (always; a fifth of it zero) and ``time`` int64. The first node type is never empty and has splits.
    """
    nodes: dict[NodeType, dict[str, NDArray[Any]]] = {}
    sizes: dict[NodeType, int] = {}
    names = list(rng.permutation(NODE_NAMES)[: num_node_types or int(rng.integers(1, 4))])
    for index, node_type in enumerate(map(str, names)):
        size = int(rng.integers(1, max_nodes + 1)) if index == 0 or rng.random() > 0.15 else 0
        sizes[node_type], nodes[node_type] = size, _random_node_arrays(rng, size, always=index == 0)
    edges: dict[EdgeType, NDArray[np.int64]] = {}
    edge_arrays: dict[EdgeType, dict[str, NDArray[Any]]] = {}
    for _ in range(num_edge_types or int(rng.integers(1, 5))):
        edge_type = (str(rng.choice(names)), str(rng.choice(RELATIONS)), str(rng.choice(names)))
        edge_index = random_edges(rng, sizes[edge_type[0]], sizes[edge_type[2]], int(rng.integers(0, max_edges + 1)))
        edges[edge_type], edge_arrays[edge_type] = edge_index, _random_edge_arrays(rng, edge_index.shape[1])
    first = str(names[0])
    order = rng.permutation(sizes[first]).astype(np.int64)
    cut = len(order) // 2
    splits = {first: {"train": order[:cut], "valid": order[cut:], "test": order[:0]}}
    return typed_source(
        sizes,
        edges,
        nodes,
        edge_arrays,
        splits=splits,
        metadata={"num_classes": 7},
        chunk_rows=chunk_rows or int(rng.integers(1, 64)),
        edges_are_cheap=edges_are_cheap,
    )


def _random_node_arrays(rng: np.random.Generator, size: int, *, always: bool) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    if always or rng.random() < 0.7:
        arrays["x"] = rng.standard_normal((size, int(rng.integers(1, 6)))).astype(np.float32)
    if always or rng.random() < 0.7:
        one_task = rng.random() < 0.5
        arrays["y"] = rng.integers(-1, 7, size) if one_task else rng.random((size, 3)).astype(np.float32)
    if rng.random() < 0.3:
        arrays["time"] = rng.integers(0, 1000, size)
    return arrays


def _random_edge_arrays(rng: np.random.Generator, size: int) -> dict[str, NDArray[Any]]:
    weight = rng.random(size).astype(np.float32)
    weight[rng.random(size) < 0.2] = 0.0
    arrays: dict[str, NDArray[Any]] = {"weight": weight}
    if rng.random() < 0.5:
        arrays["edge_attr"] = rng.standard_normal((size, 3)).astype(np.float32)
    if rng.random() < 0.3:
        arrays["time"] = rng.integers(0, 1000, size)
    return arrays

"""A graph's arrays in one shared block: copied in, described as JSON, and found again by other processes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gnnkit.runtime.shared_block import SharedBlock
from gnnkit.schema import GraphSchema
from gnnkit.storage.arrays import EdgePart, GraphArrays, NodePart

K = TypeVar("K")
V = TypeVar("V")
logger = logging.getLogger(__name__)

_ALIGN = 64
# Bytes copied between two looks at whether the copy is still wanted.
_CHUNK = 32 << 20


class CopyStopped(Exception):
    """The copy is no longer wanted."""


def graph_arrays(graph: GraphArrays) -> Iterator[NDArray[Any]]:
    """Every array of this host that sampling may read, in the order in which a shared block holds them."""
    for node_type in graph.schema.node_types:
        for node_part in graph.local_nodes(node_type):
            yield from node_part.arrays.values()
            if node_part.global_id is not None:
                yield node_part.global_id
    for edge_type in graph.schema.edge_types:
        for edge_part in graph.local_edges(edge_type):
            yield from (edge_part.indptr, edge_part.indices, *edge_part.arrays.values())
            yield from (a for a in (edge_part.edge_id, edge_part.weight_prefix, edge_part.time) if a is not None)


def _room(nbytes: int) -> int:
    return -(-nbytes // _ALIGN) * _ALIGN


def graph_nbytes(graph: GraphArrays) -> int:
    """Bytes of a graph's arrays in a shared block."""
    return sum(_room(array.nbytes) for array in graph_arrays(graph))


@dataclass(frozen=True, eq=False)
class SharedGraph:
    """A graph in a shared block.

    Attributes:
        graph: Its arrays, on the block.
        block: The block.
        description: JSON that says what lies where in the block; with the block's descriptor, all that another process needs.
    """

    graph: GraphArrays
    block: SharedBlock
    description: Mapping[str, Any]

    @property
    def nbytes(self) -> int:
        """Bytes of the block."""
        return self.block.nbytes

    @classmethod
    def attach(cls, fd: int, description: Mapping[str, Any], template: GraphArrays | None = None) -> SharedGraph:
        """A graph that another process copied.

        Args:
            fd: The block's descriptor; taken over.
            description: What came with it.
            template: The same graph as this process knows it, for the schema and what the block does not hold; None makes both anew.

        Raises:
            OSError: The system refuses the mapping.
        """
        block = SharedBlock.attach(fd, writable=False)
        return cls(_find(description, block.bytes, template), block, description)


def share(graph: GraphArrays, stop: threading.Event) -> SharedGraph:
    """Copies a graph into a new shared block of huge pages.

    Raises:
        CopyStopped: ``stop`` was set meanwhile.
        OSError: The system has no shared memory for it.
    """
    block = SharedBlock.create("gnnkit-graph", graph_nbytes(graph))
    offset = 0
    for array in graph_arrays(graph):
        target = block.bytes[offset : offset + array.nbytes]
        offset += _room(array.nbytes)
        source = array.reshape(-1).view(np.uint8)
        for start in range(0, array.nbytes, _CHUNK):
            if stop.is_set():
                raise CopyStopped
            target[start : start + _CHUNK] = source[start : start + _CHUNK]
    if not block.collapse():
        logger.info("the kernel gives no huge pages for shared memory; the copy of the graph uses ordinary pages")
    description = _describe(graph)
    return SharedGraph(_find(description, block.bytes, graph), block, description)


def _describe(graph: GraphArrays) -> dict[str, Any]:
    offset = 0

    def place(array: NDArray[Any] | None) -> list[Any] | None:
        nonlocal offset
        if array is None:
            return None
        offset += _room(array.nbytes)
        return [array.dtype.str, list(array.shape), offset - _room(array.nbytes)]

    # The order of these calls is that of ``graph_arrays``.
    nodes = [
        [
            {"arrays": {n: place(a) for n, a in part.arrays.items()}, "global_id": place(part.global_id)}
            for part in graph.local_nodes(node_type)
        ]
        for node_type in graph.schema.node_types
    ]
    edges = [
        [
            {
                "indptr": place(part.indptr),
                "indices": place(part.indices),
                "arrays": {n: place(a) for n, a in part.arrays.items()},
                "edge_id": place(part.edge_id),
                "weight_prefix": place(part.weight_prefix),
                "time": place(part.time),
            }
            for part in graph.local_edges(edge_type)
        ]
        for edge_type in graph.schema.edge_types
    ]
    return {
        "schema": graph.schema.to_json(),
        "edge_dir": graph.edge_dir,
        "local_parts": list(graph.local_parts),
        "node_bounds": {node_type: bounds.tolist() for node_type, bounds in graph.node_bounds.items()},
        "nodes": nodes,
        "edges": edges,
    }


def _find(description: Mapping[str, Any], memory: NDArray[np.uint8], template: GraphArrays | None) -> GraphArrays:
    def find(place: list[Any] | None) -> Any:
        if place is None:
            return None
        dtype, shape, offset = np.dtype(place[0]), tuple(place[1]), place[2]
        nbytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        return memory[offset : offset + nbytes].view(dtype).reshape(shape)

    def node_part(part: Mapping[str, Any]) -> NodePart:
        return NodePart({n: find(p) for n, p in part["arrays"].items()}, find(part["global_id"]))

    def edge_part(part: Mapping[str, Any]) -> EdgePart:
        arrays = {n: find(p) for n, p in part["arrays"].items()}
        names = ("indptr", "indices", "edge_id", "weight_prefix", "time")
        return EdgePart(**{name: find(part[name]) for name in names}, arrays=arrays)

    template = template or _frame(description)
    nodes = {
        t: _with_local(template, template.nodes.get(t), map(node_part, parts))
        for t, parts in zip(template.schema.node_types, description["nodes"], strict=True)
    }
    edges = {
        t: _with_local(template, template.edges.get(t), map(edge_part, parts))
        for t, parts in zip(template.schema.edge_types, description["edges"], strict=True)
    }
    return replace(template, nodes=nodes, edges=edges)


def _with_local(template: GraphArrays, parts: tuple[V, ...] | None, found: Iterable[V]) -> tuple[V, ...]:
    """All parts of a type, with what was found in the place of the local ones."""
    local = dict(zip(template.local_parts, found, strict=True))
    return tuple(local.values()) if parts is None else tuple(local.get(number, part) for number, part in enumerate(parts))


def _frame(description: Mapping[str, Any]) -> GraphArrays:
    """A graph without arrays, in the dataset's own numbering."""
    schema = GraphSchema.from_json(description["schema"])
    # JSON sorts a type's arrays by name; batches carry them in the order that the user's object has.
    nodes = {t: replace(s, arrays={n: s.arrays[n] for n in d[0]["arrays"]}) for (t, s), d in _zip(schema.node_types, description["nodes"])}
    edges = {t: replace(s, arrays={n: s.arrays[n] for n in d[0]["arrays"]}) for (t, s), d in _zip(schema.edge_types, description["edges"])}
    schema = replace(schema, node_types=nodes, edge_types=edges)
    bounds = {node_type: np.array(bounds, np.int64) for node_type, bounds in description["node_bounds"].items()}
    return GraphArrays(schema, description["edge_dir"], {}, {}, bounds, dict.fromkeys(schema.node_types), tuple(description["local_parts"]))


def _zip(types: Mapping[K, V], parts: list[Any]) -> Iterator[tuple[tuple[K, V], Any]]:
    return zip(types.items(), parts, strict=True)

"""``undirected=True``: the edges of PyG's ``ToUndirected``, made by streaming.

Relations between different node types get a reverse type (``rev_<relation>``). Relations within one node type get their
inverse edges merged into them, sorted by (source, target), each pair once, the arrays of merged edges added up.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.datasets.merge import MergedEdges, merge_with_inverses
from gnnkit.errors import PlanError
from gnnkit.events import EventSink, Stage, ignore_events
from gnnkit.schema import EdgeType, EdgeTypeSchema, GraphSchema, NodeType, edge_type_name
from gnnkit.source import GraphSource, LinkSplits

# Changes whenever the same source would be made undirected in another way.
_VERSION = 1
DEFAULT_MEMORY_BYTES = 256 << 20


class UndirectedSource:
    """A ``GraphSource`` that is another one made undirected; see the protocol for the attributes.

    Merging needs to read and sort all edges once, in files of ``scratch_dir`` that have no name and vanish with the
    process. It happens when ``schema`` or edges are first asked for, not for ``fingerprint``.

    Args:
        source: The graph as it is.
        scratch_dir: Folder for the sorted edges, 8 bytes for each and what their arrays take, and twice that while
            sorting; None is the user's cache.
        memory_bytes: Memory that sorting may take, roughly.
        events: Where progress goes.

    Raises:
        PlanError: The graph has a type whose name a reverse type would need.
    """

    edges_are_cheap = True

    def __init__(
        self,
        source: GraphSource,
        *,
        scratch_dir: Path | None = None,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        events: EventSink = ignore_events,
    ) -> None:
        self.name, self.notice = source.name, source.notice
        self.splits: Mapping[NodeType, Mapping[str, NDArray[np.int64]]] = source.splits
        self.link_splits: LinkSplits = source.link_splits
        self.metadata: Mapping[str, Any] = {**source.metadata, "undirected": True}
        self._source, self._scratch_dir, self._memory_bytes, self._events = source, scratch_dir, memory_bytes, events
        self._lock = threading.Lock()
        self._merged: dict[EdgeType, MergedEdges] = {}
        self._reverse: dict[EdgeType, EdgeType] = {}
        for edge_type, table in source.schema.edge_types.items():
            source_type, relation, target_type = edge_type
            if source_type == target_type:
                for name, spec in table.arrays.items():
                    if spec.dtype == "bfloat16":
                        raise PlanError(f"{name!r} of {edge_type} is bfloat16, which cannot be added up", "keep it as float32")
                continue
            reverse = (target_type, f"rev_{relation}", source_type)
            if reverse in source.schema.edge_types:
                message = f"the graph has both {edge_type} and {reverse}, so it cannot be made undirected"
                raise PlanError(message, "it has reverse types already: undirected=False")
            self._reverse[reverse] = edge_type

    @cached_property
    def schema(self) -> GraphSchema:
        """The source's types and the reverse ones."""
        before = self._source.schema
        edges = dict(before.edge_types)
        for edge_type, table in before.edge_types.items():
            if edge_type[0] == edge_type[2]:
                edges[edge_type] = EdgeTypeSchema(self._merge(edge_type).num_edges, table.arrays)
        for reverse, edge_type in self._reverse.items():
            edges[reverse] = edges[edge_type]
        return GraphSchema(before.node_types, edges, is_homogeneous=before.is_homogeneous)

    def fingerprint(self) -> str:
        """See ``GraphSource.fingerprint``."""
        return hashlib.blake2b(f"undirected {_VERSION} {self._source.fingerprint()}".encode(), digest_size=16).hexdigest()

    def edge_chunks(self, edge_type: EdgeType) -> Iterator[NDArray[np.int64]]:
        """See ``GraphSource.edge_chunks``."""
        if edge_type in self._reverse:
            for edges in self._source.edge_chunks(self._reverse[edge_type]):
                yield np.ascontiguousarray(edges[::-1])
        elif edge_type[0] == edge_type[2]:
            yield from self._merge(edge_type).edge_chunks()
        else:
            yield from self._source.edge_chunks(edge_type)

    def edge_array_chunks(self, edge_type: EdgeType, name: str) -> Iterator[NDArray[Any]]:
        """See ``GraphSource.edge_array_chunks``."""
        if edge_type[0] == edge_type[2]:
            return self._merge(edge_type).array_chunks(name)
        return self._source.edge_array_chunks(self._reverse.get(edge_type, edge_type), name)

    def node_array_chunks(self, node_type: NodeType, name: str) -> Iterator[NDArray[Any]]:
        """See ``GraphSource.node_array_chunks``."""
        return self._source.node_array_chunks(node_type, name)

    def _merge(self, edge_type: EdgeType) -> MergedEdges:
        with self._lock:
            if edge_type not in self._merged:
                table = self._source.schema.edge_types[edge_type]
                num_nodes = self._source.schema.node_types[edge_type[0]].num_nodes
                label = self.name if self._source.schema.is_homogeneous else f"{self.name} {edge_type_name(edge_type)}"
                # Once for reading and once for sorting, each in edges of both directions.
                with Stage(self._events, "ingest", label=f"{label}, made undirected", total=4 * table.num_edges, unit="edges") as stage:
                    self._merged[edge_type] = merge_with_inverses(
                        self._source, edge_type, num_nodes, folder=self._scratch(), memory_bytes=self._memory_bytes, stage=stage
                    )
            return self._merged[edge_type]

    def _scratch(self) -> Path:
        if self._scratch_dir is not None:
            return self._scratch_dir
        from gnnkit.storage.catalog import default_root

        return default_root()

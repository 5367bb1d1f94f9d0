"""Writing the files of a store: nodes are assigned to parts, edges sorted, and everything streamed to where it belongs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError
from gnnkit.events import EventSink, Stage
from gnnkit.schema import GraphSchema, NodeType
from gnnkit.storage.arrays import GraphArrays
from gnnkit.storage.context import BuildContext, Tables, default_threads
from gnnkit.storage.edges import EDGE_BYTES, MAX_REREADS, EdgeTypeBuild
from gnnkit.storage.inputs import BuildInput
from gnnkit.storage.layout import index_dtype, store_schema
from gnnkit.storage.link_splits import build_link_splits
from gnnkit.storage.manifest import Manifest
from gnnkit.storage.manifest_io import write_manifest
from gnnkit.storage.nodes import build_nodes, build_splits
from gnnkit.storage.numbering import Numbering, contiguous, from_assignment
from gnnkit.storage.options import BuildOptions
from gnnkit.storage.partition import assign_parts, hot_nodes, needs_topology
from gnnkit.storage.quantize import bytes_to_measure, with_quantizations
from gnnkit.storage.resources import check_disk, check_memory
from gnnkit.storage.store import Store
from gnnkit.storage.store_input import EdgesOnlyInput, SortedEdgesInput
from gnnkit.storage.times import timed_edge_types

# A disk brings many small files home together far faster than one after the other.
_SYNC_THREADS = 16


@dataclass(frozen=True)
class Written:
    """What was written.

    Attributes:
        manifest: The store's manifest, with the files and the cuts of the parts that were written; they are on the disk.
        numbering: Store ids of each node type.
    """

    manifest: Manifest
    numbering: Mapping[NodeType, Numbering]


@dataclass(frozen=True)
class StoreWriter:
    """Writes the files of a store, or of some of its parts, into folders that exist.

    Attributes:
        options: How to build it, in canonical form.
        events: Receives the stages.
        stage: Name of the stage that writes.
        budget_bytes: Memory for buffers of edges.
    """

    options: BuildOptions
    events: EventSink
    stage: str
    budget_bytes: int

    def write(
        self, graph: BuildInput, roots: Mapping[int | None, Path], scratch: Path, fingerprint: str, topology: GraphArrays | None
    ) -> Written:
        """Assigns nodes to parts and writes everything but the manifest.

        Args:
            graph: The graph.
            roots: See ``BuildContext``.
            scratch: Folder for temporary files.
            fingerprint: Fingerprint of the result.
            topology: See ``BuildJob``.
        """
        options = self.options
        self._preflight(graph, roots)
        caches, stage = options.cache_ratio > 0.0, self.stage
        if topology is None and (caches or needs_topology(options.partition)):
            whole = self._sort_edges(EdgesOnlyInput(graph), scratch)
            graph, topology = SortedEdgesInput(graph, whole), whole.arrays()
            # What is left is cutting: the dataset's edges are not read again.
            stage = "partition"
        numbering: dict[NodeType, Numbering] = {}
        hot: list[Mapping[NodeType, NDArray[np.int64]]] = []
        if options.partition == "contiguous" and not caches:
            numbering = {t: contiguous(nodes.num_nodes, options.num_parts) for t, nodes in graph.schema.node_types.items()}
        else:
            assignment = assign_parts(graph.schema, topology, options, self.events, graph.splits)
            if caches and topology is not None:
                hot += hot_nodes(topology, assignment, options, graph.splits)
            for t, nodes in graph.schema.node_types.items():
                numbering[t] = from_assignment(t, nodes.num_nodes, options.num_parts, assignment.pop(t))
        return replace(self, stage=stage)._write_parts(graph, roots, scratch, numbering, hot, fingerprint)

    def _sort_edges(self, graph: BuildInput, scratch: Path) -> Store:
        """A temporary store of one part, so that partitioners see the topology and nothing is parsed twice."""
        options = BuildOptions(edge_dir=self.options.edge_dir, with_edge=self.options.with_edge)
        root, own_scratch = scratch / "whole", scratch / "sorting"
        root.mkdir()
        own_scratch.mkdir()
        numbering = {t: contiguous(nodes.num_nodes, 1) for t, nodes in graph.schema.node_types.items()}
        written = replace(self, options=options)._write_parts(graph, {None: root, 0: root}, own_scratch, numbering, [], "")
        write_manifest(root, written.manifest)
        return Store.open(root)

    def _write_parts(
        self,
        graph: BuildInput,
        roots: Mapping[int | None, Path],
        scratch: Path,
        numbering: dict[NodeType, Numbering],
        hot: list[Mapping[NodeType, NDArray[np.int64]]],
        fingerprint: str,
    ) -> Written:
        tables, threads = Tables(), default_threads()
        schema = store_schema(graph.schema, self.options)
        if (total := bytes_to_measure(graph.schema, schema)) is not None:
            with Stage(self.events, "quantize", label=graph.name, total=float(total), unit="B") as stage:
                schema = with_quantizations(graph, schema, stage)
        draft = Manifest(
            name=graph.name,
            notice=graph.notice,
            fingerprint=fingerprint,
            source_fingerprint=graph.fingerprint(),
            schema=schema,
            options=self.options,
            node_bounds={t: tuple(map(int, n.bounds)) for t, n in numbering.items()},
            renumbered=frozenset(t for t, n in numbering.items() if n.store_id is not None),
            splits={t: {split: len(ids) for split, ids in splits.items()} for t, splits in graph.splits.items()},
            metadata=checked_metadata(graph.metadata),
            **vars(tables),
        )
        stage = Stage(self.events, self.stage, label=graph.name, total=_work(graph.schema), unit="B")
        with stage, ThreadPoolExecutor(threads, "gnnkit-build") as pool, ThreadPoolExecutor(_SYNC_THREADS, "gnnkit-sync") as syncer:
            context = BuildContext(roots, scratch, graph, draft, tables, numbering, pool, threads, self.budget_bytes, stage, syncer)
            for edge_type in graph.schema.edge_types:
                EdgeTypeBuild(context, edge_type).build()
            for node_type in graph.schema.node_types:
                build_nodes(context, node_type, hot)
            if None in roots:
                build_splits(context)
                build_link_splits(context)
            context.wait_synced()
        return Written(draft, numbering)

    def _preflight(self, graph: BuildInput, roots: Mapping[int | None, Path]) -> None:
        options, schema = self.options, store_schema(graph.schema, self.options)
        renumbers = options.num_parts > 1 and options.partition != "contiguous"
        nodes = sum(t.num_nodes * sum(spec.row_nbytes for spec in t.arrays.values()) for t in schema.node_types.values())
        ids = sum(2 * t.num_nodes * index_dtype(t.num_nodes).itemsize for t in schema.node_types.values()) if renumbers else 0
        timed = timed_edge_types(schema, options.edge_dir, options.time_attr)
        edges, spool = 0, 0
        for edge_type, t in schema.edge_types.items():
            rows = sum(spec.row_nbytes for spec in t.arrays.values())
            adjacency = t.num_edges * (4 + rows + (4 if options.with_edge else 0))
            owners = schema.node_types[edge_type[2] if options.edge_dir == "in" else edge_type[0]].num_nodes
            edges += 4 * owners + adjacency + 8 * t.num_edges * ((options.weight in t.arrays) + (edge_type in timed))
            spool = max(spool, adjacency + 4 * t.num_edges if adjacency > MAX_REREADS * self.budget_bytes else 0)
        sorted_edges = edges if needs_topology(options.partition) or options.cache_ratio else 0
        cached = int(options.cache_ratio * options.num_parts * nodes)
        share = sum(part is not None for part in roots) / options.num_parts
        written = share * (nodes + edges + cached) + max(share * spool, sorted_edges) + ids
        check_disk(next(iter(roots.values())), int(written), f"the store of {graph.name}")
        largest = max(t.num_nodes for t in schema.node_types.values())
        numbering = sum(t.num_nodes * (24 if renumbers else 0) for t in schema.node_types.values())
        times = sum(16 * schema.node_types[owner].num_nodes for owner in set(timed.values()) if owner is not None)
        check_memory(8 * largest + numbering + times + self.budget_bytes, f"building the store of {graph.name}")


def checked_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata as JSON gives it back.

    Raises:
        PlanError: It holds something that JSON cannot.
    """
    try:
        value: dict[str, Any] = json.loads(json.dumps(dict(metadata)))
    except (TypeError, ValueError) as error:
        raise PlanError(f"the dataset's metadata is not JSON: {error}") from error
    return value


def _work(schema: GraphSchema) -> float:
    """Bytes that a build goes through: both passes over the edges, and every node array."""
    nodes = sum(t.num_nodes * spec.row_nbytes for t in schema.node_types.values() for spec in t.arrays.values())
    return float(2 * EDGE_BYTES * schema.num_edges + nodes)

"""Building a store from a dataset: streaming, in bounded memory, all or nothing."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.datasets.source import GraphSource
from gnnkit.errors import PlanError, StoreError
from gnnkit.events import EventSink, Stage, ignore_events
from gnnkit.sampling.jit import register_with_numba
from gnnkit.schema import GraphSchema, NodeType
from gnnkit.storage.arrays import GraphArrays
from gnnkit.storage.context import BuildContext, Tables, default_threads
from gnnkit.storage.edges import EDGE_BYTES, MAX_REREADS, EdgeTypeBuild
from gnnkit.storage.inputs import BuildInput, SourceInput
from gnnkit.storage.layout import check_buildable, index_dtype, store_schema
from gnnkit.storage.manifest import Manifest, canonical_options, store_fingerprint
from gnnkit.storage.manifest_io import write_manifest
from gnnkit.storage.nodes import build_cached_nodes, build_nodes, build_splits
from gnnkit.storage.numbering import Numbering, contiguous, from_assignment
from gnnkit.storage.options import BuildOptions
from gnnkit.storage.partition import assign_parts, hot_nodes, needs_topology
from gnnkit.storage.resources import check_disk, check_memory, memory_budget
from gnnkit.storage.spool import KeptSourceInput
from gnnkit.storage.staging import check_replaceable, locked, remove_tree, restore, staged
from gnnkit.storage.store import Store
from gnnkit.storage.store_input import EdgesOnlyInput, SortedEdgesInput

logger = logging.getLogger(__name__)

_SCRATCH = ".scratch"
# A disk brings many small files home together far faster than one after the other.
_SYNC_THREADS = 16


def build_store(
    source: GraphSource,
    path: Path,
    options: BuildOptions,
    events: EventSink = ignore_events,
    *,
    wait_timeout_s: float = 0.0,
    memory_bytes: int | None = None,
) -> Store:
    """Streams a dataset into a store.

    A store of the same content and options that is already there is opened instead; any other store is replaced once the new
    one is complete.

    Args:
        source: The dataset.
        path: The store's folder.
        options: How to build it.
        events: Receives the stage "ingest", and "partition" where nodes are assigned by topology.
        wait_timeout_s: How long to wait for another process that builds the same store.
        memory_bytes: Memory for buffers of edges; by default a 64th of what is available, between 64 MB and 1 GB.

    Raises:
        PlanError: The options do not fit the dataset.
        DatasetError: The dataset does not hold what it announces.
        StoreError: Disk full, no permission, another process at work, or ``path`` is something else than a store.
        MemoryLimitError: The ids and degrees of the nodes would not fit memory.
    """
    register_with_numba()
    check_buildable(source.schema, options)

    def open_input(folder: Path) -> BuildInput:
        if source.edges_are_cheap:
            return SourceInput(source)
        return KeptSourceInput(source, folder, [options.weight] if options.weight else [])

    fingerprint = store_fingerprint(source.fingerprint(), options)
    return publish(BuildJob(open_input, Path(path), options, fingerprint, "ingest"), events, wait_timeout_s, memory_bytes)


@dataclass(frozen=True)
class BuildJob:
    """What is to be built, and from what.

    Attributes:
        open_input: Makes the input, given an existing folder for its temporary files.
        path: The store's folder.
        options: How to build it.
        fingerprint: Fingerprint of the result.
        stage: Name of the stage that writes.
        topology: The same graph's edges, for partitioners; None has them sorted into a temporary store where they are needed.
    """

    open_input: Callable[[Path], BuildInput]
    path: Path
    options: BuildOptions
    fingerprint: str
    stage: str
    topology: GraphArrays | None = None


def publish(job: BuildJob, events: EventSink, wait_timeout_s: float, memory_bytes: int | None) -> Store:
    """Writes a store beside its path, and puts it there once it is complete; opens the one that is there if it is the same.

    Args:
        job: What to build.
        events: Receives the stages.
        wait_timeout_s: See ``build_store``.
        memory_bytes: See ``build_store``.
    """
    path = job.path.expanduser().absolute()
    if (store := _existing(path, job.fingerprint)) is not None:
        return store
    check_replaceable(path)
    with locked(path, wait_timeout_s, events):
        restore(path)
        if (store := _existing(path, job.fingerprint)) is not None:
            return store
        with staged(path) as root:
            scratch = root / _SCRATCH
            scratch.mkdir()
            writer = _Writer(canonical_options(job.options), events, job.stage, memory_bytes or memory_budget())
            writer.write(job.open_input(scratch), root, scratch, job.fingerprint, job.topology)
            remove_tree(scratch)
        return Store.open(path)


def _existing(path: Path, fingerprint: str) -> Store | None:
    """The store at ``path`` if it has this fingerprint and opens."""
    try:
        store = Store.open(path)
    except StoreError as error:
        logger.debug("no usable store at %s: %s", path, error)
        return None
    return store if store.fingerprint == fingerprint else None


@dataclass(frozen=True)
class _Writer:
    """Writes the files of a store into a folder that exists."""

    options: BuildOptions
    events: EventSink
    stage: str
    budget_bytes: int

    def write(self, graph: BuildInput, root: Path, scratch: Path, fingerprint: str, topology: GraphArrays | None) -> None:
        """Assigns nodes to parts and writes everything, the manifest last."""
        options = self.options
        self._preflight(graph, root)
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
        replace(self, stage=stage)._write_parts(graph, root, scratch, numbering, hot, fingerprint)

    def _sort_edges(self, graph: BuildInput, scratch: Path) -> Store:
        """A temporary store of one part, so that partitioners see the topology and nothing is parsed twice."""
        options = replace(self.options, num_parts=1, partition="contiguous", cache_ratio=0.0, weight=None, feature_dtype=None)
        root, own_scratch = scratch / "whole", scratch / "sorting"
        root.mkdir()
        own_scratch.mkdir()
        numbering = {t: contiguous(nodes.num_nodes, 1) for t, nodes in graph.schema.node_types.items()}
        replace(self, options=options)._write_parts(graph, root, own_scratch, numbering, [], "")
        return Store.open(root)

    def _write_parts(
        self,
        graph: BuildInput,
        root: Path,
        scratch: Path,
        numbering: dict[NodeType, Numbering],
        hot: list[Mapping[NodeType, NDArray[np.int64]]],
        fingerprint: str,
    ) -> None:
        tables, threads = Tables(), default_threads()
        draft = Manifest(
            name=graph.name,
            notice=graph.notice,
            fingerprint=fingerprint,
            source_fingerprint=graph.fingerprint(),
            schema=store_schema(graph.schema, self.options),
            options=self.options,
            node_bounds={t: tuple(map(int, n.bounds)) for t, n in numbering.items()},
            renumbered=frozenset(t for t, n in numbering.items() if n.store_id is not None),
            splits={t: {split: len(ids) for split, ids in splits.items()} for t, splits in graph.splits.items()},
            metadata=checked_metadata(graph.metadata),
            **vars(tables),
        )
        stage = Stage(self.events, self.stage, label=graph.name, total=_work(graph.schema), unit="B")
        with stage, ThreadPoolExecutor(threads, "gnnkit-build") as pool, ThreadPoolExecutor(_SYNC_THREADS, "gnnkit-sync") as syncer:
            context = BuildContext(root, scratch, graph, draft, tables, numbering, pool, threads, self.budget_bytes, stage, syncer)
            for edge_type in graph.schema.edge_types:
                EdgeTypeBuild(context, edge_type).build()
            for node_type in graph.schema.node_types:
                build_nodes(context, node_type)
            if hot:
                build_cached_nodes(context, hot)
            build_splits(context)
            context.wait_synced()
            write_manifest(root, draft)

    def _preflight(self, graph: BuildInput, root: Path) -> None:
        options, schema = self.options, store_schema(graph.schema, self.options)
        renumbers = options.num_parts > 1 and options.partition != "contiguous"
        nodes = sum(t.num_nodes * sum(spec.row_nbytes for spec in t.arrays.values()) for t in schema.node_types.values())
        ids = sum(2 * t.num_nodes * index_dtype(t.num_nodes).itemsize for t in schema.node_types.values()) if renumbers else 0
        edges, spool = 0, 0
        for edge_type, t in schema.edge_types.items():
            rows = sum(spec.row_nbytes for spec in t.arrays.values())
            adjacency = t.num_edges * (4 + rows + (4 if options.with_edge else 0))
            owners = schema.node_types[edge_type[2] if options.edge_dir == "in" else edge_type[0]].num_nodes
            edges += 4 * owners + adjacency + (8 * t.num_edges if options.weight in t.arrays else 0)
            spool = max(spool, adjacency + 4 * t.num_edges if adjacency > MAX_REREADS * self.budget_bytes else 0)
        sorted_edges = edges if needs_topology(options.partition) or options.cache_ratio else 0
        cached = int(options.cache_ratio * options.num_parts * nodes)
        check_disk(root, nodes + ids + edges + max(spool, sorted_edges) + cached, f"the store of {graph.name}")
        largest = max(t.num_nodes for t in schema.node_types.values())
        numbering = sum(t.num_nodes * (24 if renumbers else 0) for t in schema.node_types.values())
        check_memory(8 * largest + numbering + self.budget_bytes, f"building the store of {graph.name}")


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

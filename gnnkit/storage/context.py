"""What the steps of one build share."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.events import Stage
from gnnkit.host import available_cpus
from gnnkit.schema import ArraySpec, EdgeType, NodeType
from gnnkit.storage.convert import convert_rows
from gnnkit.storage.files import ArrayWriter, FileEntry, FileSpec, sync
from gnnkit.storage.inputs import BuildInput, RowReader
from gnnkit.storage.layout import part_of
from gnnkit.storage.manifest import Manifest
from gnnkit.storage.numbering import Numbering
from gnnkit.storage.times import as_times

# Rows are converted and written in blocks of this size, so that nothing grows with the width of the features.
BLOCK_BYTES = 8 << 20
_MAX_THREADS = 4


def default_threads() -> int:
    """Threads that a build uses: the CPUs it may run on, at most 4 (more only wait for memory and disk)."""
    return min(available_cpus(), _MAX_THREADS)


@dataclass(frozen=True)
class Tables:
    """The tables of the manifest that fill up during the build; the draft manifest holds these very objects."""

    edge_counts: dict[EdgeType, tuple[int, ...]] = field(default_factory=dict)
    cuts: dict[EdgeType, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    weight_exponents: dict[EdgeType, int] = field(default_factory=dict)
    cached: dict[NodeType, tuple[int, ...]] = field(default_factory=dict)
    link_splits: dict[EdgeType, dict[str, dict[str, FileSpec]]] = field(default_factory=dict)
    files: dict[str, FileEntry] = field(default_factory=dict)


@dataclass
class BuildContext:
    """The state of one build.

    Attributes:
        roots: Where to write the files of each part, and under None those that every host has; parts that are not in it are not written.
        scratch: Folder for the builder's own files, removed before the store is published.
        graph: What is read.
        draft: The manifest so far.
        tables: Its tables, to be filled in as counts become known.
        numbering: Store ids of each node type.
        pool: Runs the kernels and writes; the calling thread reads and reports.
        num_threads: Threads of ``pool``.
        budget_bytes: Memory that buffers of edges may take, over all threads.
        stage: Where progress goes, in bytes.
        syncer: Threads that bring finished files to the disk.
    """

    roots: Mapping[int | None, Path]
    scratch: Path
    graph: BuildInput
    draft: Manifest
    tables: Tables
    numbering: dict[NodeType, Numbering]
    pool: ThreadPoolExecutor
    num_threads: int
    budget_bytes: int
    stage: Stage
    syncer: ThreadPoolExecutor
    _syncing: list[Future[None]] = field(default_factory=list)
    _times: dict[NodeType, NDArray[np.int64]] = field(default_factory=dict)
    _reading: threading.Lock = field(default_factory=threading.Lock)

    @property
    def parts(self) -> list[int]:
        """The parts that are written, ascending."""
        return sorted(part for part in self.roots if part is not None)

    def writer(self, name: str, spec: FileSpec) -> ArrayWriter:
        """A writer for one of the store's files, of those that are written."""
        return ArrayWriter(self.roots[part_of(name)], name, spec)

    def finish(self, writers: Iterable[tuple[str, ArrayWriter]]) -> None:
        """Enters finished files into the manifest and starts to bring them to the disk."""
        for name, writer in writers:
            self.tables.files[name] = writer.finish()
            self._syncing.append(self.syncer.submit(sync, writer.path))

    def node_times(self, node_type: NodeType, name: str) -> NDArray[np.int64]:
        """Times of a type's nodes by store id, int64 ``[num_nodes]``; read when first asked for, and kept."""
        with self._reading:
            if node_type not in self._times:
                nodes, store_id = self.graph.schema.node_types[node_type], self.numbering[node_type].store_id
                chunks = self.graph.node_array_chunks(node_type, name)
                reader = RowReader(chunks, nodes.arrays[name], f"{name!r} of {node_type!r}", nodes.num_nodes)
                times = as_times(reader.take(nodes.num_nodes))
                by_store_id = np.empty_like(times)
                by_store_id[slice(None) if store_id is None else store_id] = times
                self._times[node_type] = by_store_id
            return self._times[node_type]

    def wait_synced(self) -> None:
        """Waits until all finished files are on the disk."""
        for future in self._syncing:
            future.result()
        self._syncing.clear()

    def write_rows(self, writer: ArrayWriter, row: int, rows: NDArray[Any], specs: tuple[ArraySpec, ArraySpec], name: str) -> None:
        """Writes rows from ``row`` on, converted from the first spec to the second, block by block."""
        source, target = specs
        block = max(1, BLOCK_BYTES // max(1, source.row_nbytes))
        for first in range(0, len(rows), block):
            writer.write(row + first, convert_rows(rows[first : first + block], source, target, name))


def wait_all(futures: Iterable[Future[Any]]) -> list[Any]:
    """Results of all futures; raises the first error only once none of them runs any more."""
    futures = list(futures)
    errors = [error for future in futures if (error := future.exception()) is not None]
    if errors:
        raise errors[0]
    return [future.result() for future in futures]


NO_IDS: NDArray[np.int64] = np.empty(0, np.int64)
NO_MAP: NDArray[np.int32] = np.empty(0, np.int32)

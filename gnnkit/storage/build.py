"""Building a store from a dataset: streaming, in bounded memory, all or nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gnnkit.errors import StoreError
from gnnkit.events import EventSink, ignore_events
from gnnkit.source import GraphSource
from gnnkit.storage.arrays import GraphArrays
from gnnkit.storage.inputs import BuildInput, SourceInput
from gnnkit.storage.layout import check_buildable
from gnnkit.storage.manifest import canonical_options, store_fingerprint
from gnnkit.storage.manifest_io import write_manifest
from gnnkit.storage.options import BuildOptions
from gnnkit.storage.resources import memory_budget
from gnnkit.storage.spool import KeptSourceInput
from gnnkit.storage.staging import check_replaceable, locked, remove_tree, restore, staged
from gnnkit.storage.store import Store
from gnnkit.storage.writer import StoreWriter, Written

logger = logging.getLogger(__name__)

_SCRATCH = ".scratch"


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
        events: Receives the stage "ingest", "partition" where nodes are assigned by topology, and "quantize" for 8-bit features.
        wait_timeout_s: How long to wait for another process that builds the same store.
        memory_bytes: Memory for buffers of edges; by default a 64th of what is available, between 64 MB and 1 GB.

    Raises:
        PlanError: The options do not fit the dataset.
        DatasetError: The dataset does not hold what it announces.
        StoreError: Disk full, no permission, another process at work, or ``path`` is something else than a store.
        MemoryLimitError: The ids and degrees of the nodes would not fit memory.
    """
    return publish(source_job(source, path, options), events, wait_timeout_s, memory_bytes)


def source_job(source: GraphSource, path: Path, options: BuildOptions) -> BuildJob:
    """What ``build_store`` does.

    Raises:
        PlanError: The options do not fit the dataset.
    """
    check_buildable(source.schema, options)

    def open_input(folder: Path) -> BuildInput:
        if source.edges_are_cheap:
            return SourceInput(source)
        return KeptSourceInput(source, folder, [options.weight] if options.weight else [])

    return BuildJob(open_input, Path(path), options, store_fingerprint(source.fingerprint(), options), "ingest")


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

    def write(self, roots: Mapping[int | None, Path], events: EventSink, memory_bytes: int | None) -> Written:
        """Writes parts of the store into folders that exist, see ``StoreWriter``.

        Args:
            roots: See ``BuildContext``.
            events: Receives the stages.
            memory_bytes: See ``build_store``.
        """
        scratch = next(iter(roots.values())) / _SCRATCH
        scratch.mkdir()
        writer = StoreWriter(canonical_options(self.options), events, self.stage, memory_bytes or memory_budget())
        written = writer.write(self.open_input(scratch), roots, scratch, self.fingerprint, self.topology)
        remove_tree(scratch)
        return written


def publish(job: BuildJob, events: EventSink, wait_timeout_s: float = 0.0, memory_bytes: int | None = None) -> Store:
    """Writes a store beside its path, and puts it there once it is complete; opens the one that is there if it is the same.

    Args:
        job: What to build.
        events: Receives the stages.
        wait_timeout_s: See ``build_store``.
        memory_bytes: See ``build_store``.
    """
    path = job.path.expanduser().absolute()
    if (store := existing(path, job.fingerprint)) is not None:
        return store
    check_replaceable(path)
    with locked(path, wait_timeout_s, events):
        restore(path)
        if (store := existing(path, job.fingerprint)) is not None:
            return store
        with staged(path) as root:
            roots: dict[int | None, Path] = dict.fromkeys((None, *range(job.options.num_parts)), root)
            write_manifest(root, job.write(roots, events, memory_bytes).manifest)
        return Store.open(path)


def existing(path: Path, fingerprint: str, parts: Iterable[int] | None = None) -> Store | None:
    """The store at ``path`` if it has this fingerprint and opens; with ``parts`` these parts of it."""
    try:
        store = Store.open(path, parts)
    except StoreError as error:
        logger.debug("no usable store at %s: %s", path, error)
        return None
    return store if store.fingerprint == fingerprint else None

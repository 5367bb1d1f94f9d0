"""Building a store from a dataset, or from a store in other parts: streaming, in bounded memory, all or nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from gnnkit.errors import PlanError, StoreError
from gnnkit.events import EventSink, ignore_events
from gnnkit.schema import NodeType
from gnnkit.source import GraphSource, PartedSource
from gnnkit.storage.arrays import GraphArrays
from gnnkit.storage.inputs import BuildInput, KeptSourceInput, SourceInput, StoreInput
from gnnkit.storage.layout import check_buildable
from gnnkit.storage.manifest import canonical_options, store_fingerprint, write_manifest
from gnnkit.storage.options import BuildOptions
from gnnkit.storage.staging import check_replaceable, locked, memory_budget, remove_tree, restore, staged
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
    """Makes the job of ``build_store``.

    Raises:
        PlanError: The options do not fit the dataset.
    """
    check_buildable(source.schema, options)
    parts = source.parts if options.partition == "given" and isinstance(source, PartedSource) else None
    _check_given(options, parts)

    def open_input(folder: Path) -> BuildInput:
        if source.edges_are_cheap:
            return SourceInput(source)
        return KeptSourceInput(source, folder, [options.weight] if options.weight else [])

    return BuildJob(open_input, Path(path), options, store_fingerprint(source.fingerprint(), options), "ingest", parts=parts)


def _check_given(options: BuildOptions, parts: object) -> None:
    if options.partition == "given" and parts is None:
        raise PlanError(
            "partition='given' keeps the parts of a dataset that has some, and this one has none",
            "a partition directory of graphlearn-torch has; else let gnnkit assign nodes, for example with partition='contiguous'",
        )


@dataclass(frozen=True)
class BuildJob:
    """A store to build, and its input.

    Attributes:
        open_input: Makes the input, given an existing folder for its temporary files.
        path: The store's folder.
        options: The options to build it with.
        fingerprint: Fingerprint of the result.
        stage: Name of the stage that writes.
        topology: The same graph's edges, for partitioners; None has them sorted into a temporary store where they are needed.
        parts: Each node's part by type, for ``partition="given"``.
    """

    open_input: Callable[[Path], BuildInput]
    path: Path
    options: BuildOptions
    fingerprint: str
    stage: str
    topology: GraphArrays | None = None
    parts: Mapping[NodeType, NDArray[Any]] | None = None

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
        written = writer.write(self.open_input(scratch), roots, scratch, self.fingerprint, self.topology, self.parts)
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


def repartition(
    store: Store,
    path: Path,
    options: BuildOptions,
    events: EventSink = ignore_events,
    *,
    wait_timeout_s: float = 0.0,
    memory_bytes: int | None = None,
) -> Store:
    """Makes another store of the same graph.

    The result is what ``build_store`` would make of the dataset with the same options, byte for byte.

    Args:
        store: The store to read.
        path: The new store's folder; not that of ``store``.
        options: How to build the new one. ``feature_dtype=None`` keeps the features as they are stored.
        events: Receives the stage "partition".
        wait_timeout_s: See ``build_store``.
        memory_bytes: See ``build_store``.

    Raises:
        PlanError: The store does not hold what the options need: edge ids (also needed to turn ``edge_dir`` round and to
            leave the order of its times, because neighbours keep the dataset's edge order), or features of full width.
        StoreError: Not all parts of ``store`` are open, disk full, another process at work, or ``path`` is something else than a store.
    """
    return publish(repartition_job(store, path, options), events, wait_timeout_s, memory_bytes)


def repartition_job(store: Store, path: Path, options: BuildOptions) -> BuildJob:
    """Makes the job of ``repartition``.

    Raises:
        PlanError: See ``repartition``.
        StoreError: Not all parts of ``store`` are open.
    """
    path = Path(path).expanduser().absolute()
    options = _resolved(store, options)
    if path == store.path:
        raise PlanError(f"{path} cannot be repartitioned onto itself", "give another folder with out=...")
    check_buildable(store.schema, options)
    _check_given(options, None)
    fingerprint = store_fingerprint(store.manifest.source_fingerprint, options)
    return BuildJob(lambda folder: StoreInput(store), path, options, fingerprint, "partition", store.require().arrays())


def _resolved(store: Store, options: BuildOptions) -> BuildOptions:
    """The options with the store's own feature dtype filled in, once the store has been found to hold what they need."""
    has_ids = store.options.with_edge or store.schema.num_edges == 0
    if options.with_edge and not has_ids:
        raise PlanError(f"the store {store.path} was built without edge ids", "build it from the dataset with with_edge=True")
    if options.edge_dir != store.edge_dir and not has_ids:
        raise PlanError(
            f"turning edge_dir from {store.edge_dir!r} to {options.edge_dir!r} needs edge ids, and the store {store.path} has none",
            f"build it from the dataset with edge_dir={options.edge_dir!r}",
        )
    times = store.options.time_attr
    if times not in (None, options.time_attr) and not has_ids:
        raise PlanError(
            f"the store {store.path} has each node's edges in the order of {times!r}, and time_attr={options.time_attr!r} needs edge ids",
            f"build it from the dataset with time_attr={options.time_attr!r}",
        )
    held = store.options.feature_dtype
    if held is not None and options.feature_dtype not in (None, held):
        raise PlanError(
            f"features of the store {store.path} were reduced to {held} and cannot become {options.feature_dtype}",
            f"build it from the dataset with feature_dtype={options.feature_dtype!r}",
        )
    return replace(options, feature_dtype=options.feature_dtype or held)

"""Cutting a store into other parts, from its own files: the dataset is not read again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gnnkit.errors import PlanError
from gnnkit.events import EventSink, ignore_events
from gnnkit.storage.build import BuildJob, publish
from gnnkit.storage.layout import check_buildable
from gnnkit.storage.manifest import store_fingerprint
from gnnkit.storage.options import BuildOptions
from gnnkit.storage.store import Store
from gnnkit.storage.store_input import StoreInput


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
    """What ``repartition`` does.

    Raises:
        PlanError: See ``repartition``.
        StoreError: Not all parts of ``store`` are open.
    """
    path = Path(path).expanduser().absolute()
    options = _resolved(store, options)
    if path == store.path:
        raise PlanError(f"{path} cannot be repartitioned onto itself", "give another folder with out=...")
    check_buildable(store.schema, options)
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

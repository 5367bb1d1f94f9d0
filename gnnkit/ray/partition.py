"""A store that is built on a Ray cluster, as the process sees it that has asked for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gnnkit.datasets.derived import copy_source
from gnnkit.errors import PlanError, StoreError
from gnnkit.events import EventSink
from gnnkit.ray.building import BuildTask, PartInput
from gnnkit.ray.child import START_S, DriverChild
from gnnkit.ray.cluster import RayCluster
from gnnkit.source import GraphSource, PartedSource, RangedSource
from gnnkit.storage.build import BuildJob, build_parts, existing, join_parts, read_records
from gnnkit.storage.edge_values import timed_edge_types
from gnnkit.storage.inputs import GraphTotals
from gnnkit.storage.layout import BuildOptions, check_buildable
from gnnkit.storage.manifest import store_fingerprint
from gnnkit.storage.partition import assign_parts
from gnnkit.storage.staging import check_replaceable, parts_path
from gnnkit.storage.store import Store

_ADVICE = "call it again: parts that are finished are kept"
# Where the rows of a source go that can only be read from its beginning, below the folder of parts.
_COPY = "source"
_METHODS = ("contiguous", "random", "given")


def build_on_ray(engine: RayCluster, source: GraphSource, path: Path, options: BuildOptions, events: EventSink) -> Store:
    """Builds a store on a Ray cluster, byte for byte that of one machine; see ``Ray.build``."""
    _check(source, options)
    fingerprint = store_fingerprint(source.fingerprint(), options)
    if (store := existing(path, fingerprint)) is not None:
        return store
    check_replaceable(path)
    assignment = _assignment(source, options, events)
    folder = parts_path(path)
    try:
        job = BuildTask(source, options, str(path), fingerprint, (), assignment)
        join_parts(folder, _shared_job(job, source, GraphTotals()))
    except OSError as error:
        raise StoreError(f"{folder} cannot be written: {error.strerror or error}", "give another folder: out=...") from error
    missing = tuple(part for part in range(options.num_parts) if part not in read_records(folder))
    if missing:
        # Tables that hosts have read are ranged in a form that can be sent.
        ranged: GraphSource = getattr(source, "ranged", source)
        if not isinstance(ranged, RangedSource):
            ranged = copy_source(source, folder / _COPY, events)
        task = BuildTask(ranged, options, str(path), fingerprint, missing, assignment)
        packed = _packed(task)
        with DriverChild(engine, _ADVICE) as driver:
            driver.send("build", packed)
            totals = GraphTotals.from_json(driver.hear("divided", events=events).body["totals"])
            build_parts(_shared_job(task, source, totals), (), wait_timeout_s=START_S)
            driver.say("shared")
            driver.hear("built", events=events)
    found = build_parts(_shared_job(job, source, GraphTotals()), (), finish=True)
    assert found is not None, "finish gives a store, or an error"
    return found


def _shared_job(task: BuildTask, source: GraphSource, totals: GraphTotals) -> BuildJob:
    """The job that writes what every host has, and no part."""
    return task.job(lambda folder, _: PartInput(task, None, totals, {}, {}, folder, source))


def _check(source: GraphSource, options: BuildOptions) -> None:
    """Refuses what needs all of the graph in one place.

    Raises:
        PlanError: Says what.
    """
    check_buildable(source.schema, options, source.metadata)
    here = "leave engine= away: one machine builds it"
    if options.partition not in _METHODS and not options.part_column:
        text = f"partition={options.partition!r} needs all edges in one place, and on Ray no host has them"
        raise PlanError(text, f"partition='contiguous', 'random' or 'column:NAME', or {here}")
    if options.cache_ratio or options.order != "dataset":
        what = f"cache_ratio={options.cache_ratio}" if options.cache_ratio else f"order={options.order!r}"
        raise PlanError(f"{what} counts visits over all edges, and on Ray no host has them", here)
    by_nodes = [t for t, owner in timed_edge_types(source.schema, options.edge_dir, options.time_attr).items() if owner is not None]
    if by_nodes:
        raise PlanError(f"time_attr={options.time_attr!r} of {by_nodes[0]} are times of nodes, which every part would have to read", here)
    if options.partition == "given" and not isinstance(source, PartedSource):
        raise PlanError("partition='given' keeps the parts of a dataset that has some, and this one has none", "partition='contiguous'")


def _packed(task: BuildTask) -> bytes:
    """Pickles a build.

    Raises:
        PlanError: The source cannot be sent.
    """
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps(task))
    except Exception as error:  # whatever an object raises that will not be pickled
        raise PlanError(
            f"the source {task.source.name} cannot be sent to other processes: {type(error).__name__}: {error}",
            "a RangedSource names its files, and opens them where they are read",
        ) from error


def _assignment(source: GraphSource, options: BuildOptions, events: EventSink) -> dict[str, Any] | None:
    if options.partition == "contiguous":
        return None
    if options.partition == "given":
        assert isinstance(source, PartedSource)
        return dict(source.parts or {})
    return dict(assign_parts(source.schema, None, options, events, source.splits, source))

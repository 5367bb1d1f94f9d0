"""A store that is built on a Ray cluster, as the process sees it that has asked for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit.errors import PlanError, StoreError, WorkerDied
from gnnkit.events import Event, EventSink
from gnnkit.ray.building import BuildTask, PartInput
from gnnkit.ray.job import driver_environment, driver_options
from gnnkit.runtime.remote import error_from_json
from gnnkit.runtime.runs import new_run
from gnnkit.runtime.supervisor import Exit, Supervisor
from gnnkit.runtime.wire import Message, Waker, in_memory
from gnnkit.source import GraphSource, PartedSource, RangedSource
from gnnkit.storage.build import BuildJob, existing
from gnnkit.storage.edge_values import timed_edge_types
from gnnkit.storage.host_build import build_parts, join_parts, read_records
from gnnkit.storage.inputs import EdgeTotals
from gnnkit.storage.layout import check_buildable
from gnnkit.storage.manifest import store_fingerprint
from gnnkit.storage.options import BuildOptions
from gnnkit.storage.partition import assign_parts
from gnnkit.storage.staging import check_replaceable, parts_path
from gnnkit.storage.store import Store
from gnnkit.waiting import SLICE_S, Deadline

if TYPE_CHECKING:
    from gnnkit.ray.options import Ray

_ADVICE = "call it again: parts that are finished are kept"
# That Ray may take to be there.
_START_S = 600.0
# Where the rows of a source go that can only be read from its beginning, below the folder of parts.
_COPY = "source"
_METHODS = ("contiguous", "random", "given")


def build_on_ray(engine: Ray, source: GraphSource, path: Path, options: BuildOptions, events: EventSink) -> Store:
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
        join_parts(folder, _shared_job(job, source, {}))
    except OSError as error:
        raise StoreError(f"{folder} cannot be written: {error.strerror or error}", "give another folder: out=...") from error
    missing = tuple(part for part in range(options.num_parts) if part not in read_records(folder))
    if missing:
        ranged: GraphSource = source
        if not isinstance(source, RangedSource):
            from gnnkit.datasets.copied import copy_source

            ranged = copy_source(source, folder / _COPY, events)
        task = BuildTask(ranged, options, str(path), fingerprint, missing, assignment)
        with _Driver(engine, task) as driver:
            totals = driver.divide(events)
            build_parts(_shared_job(task, source, totals), (), wait_timeout_s=_START_S)
            driver.build(events)
    found = build_parts(_shared_job(job, source, {}), (), finish=True)
    assert found is not None, "whoever finishes has a store, or an error"
    return found


def _shared_job(task: BuildTask, source: GraphSource, totals: dict[Any, EdgeTotals]) -> BuildJob:
    """The job that writes what every host has, and no part."""
    return task.job(lambda folder: PartInput(task, None, totals, {}, {}, folder, source))


def _check(source: GraphSource, options: BuildOptions) -> None:
    """Refuses what needs all of the graph in one place.

    Raises:
        PlanError: Says what.
    """
    check_buildable(source.schema, options)
    here = "leave engine= away: one machine builds it"
    if options.partition not in _METHODS and not options.part_column:
        text = f"partition={options.partition!r} needs all edges in one place, and on Ray no host has them"
        raise PlanError(text, f"partition='contiguous', 'random' or 'column:NAME', or {here}")
    if options.cache_ratio or options.order != "dataset":
        what = f"cache_ratio={options.cache_ratio}" if options.cache_ratio else f"order={options.order!r}"
        raise PlanError(f"{what} counts visits over all edges, and on Ray no host has them", here)
    if options.feature_dtype == "quint8":
        text = "feature_dtype='quint8' measures all rows before any is written, which a build on Ray does not"
        raise PlanError(text, f"feature_dtype='float16', or {here}")
    by_nodes = [t for t, owner in timed_edge_types(source.schema, options.edge_dir, options.time_attr).items() if owner is not None]
    if by_nodes:
        raise PlanError(f"time_attr={options.time_attr!r} of {by_nodes[0]} are times of nodes, which every part would have to read", here)
    if options.partition == "given" and not isinstance(source, PartedSource):
        raise PlanError("partition='given' keeps the parts of a dataset that has some, and this one has none", "partition='contiguous'")


def _assignment(source: GraphSource, options: BuildOptions, events: EventSink) -> dict[str, Any] | None:
    if options.partition == "contiguous":
        return None
    if options.partition == "given":
        assert isinstance(source, PartedSource)
        return dict(source.parts or {})
    return dict(assign_parts(source.schema, None, options, events, source.splits, source))


class _Driver:
    """Ray's driver, for a ``with`` block; it ends with the block, and whatever it had running on the cluster.

    Args:
        engine: The cluster.
        task: The build.

    Raises:
        PlanError: The source cannot be sent.
    """

    def __init__(self, engine: Ray, task: BuildTask) -> None:
        import cloudpickle

        self._engine = engine
        try:
            self._task = in_memory(bytes(cloudpickle.dumps(task)))
        except Exception as error:  # whatever an object raises that will not be pickled
            raise PlanError(
                f"the source {task.source.name} cannot be sent to other processes: {type(error).__name__}: {error}",
                "a RangedSource names its files, and opens them where they are read",
            ) from error

    def __enter__(self) -> _Driver:
        self._waker = Waker()
        options = driver_options(driver_environment(self._engine), _ADVICE)
        try:
            self._supervisor = Supervisor(options, new_run(None, {"engine": "ray"}, "build"), lambda child: None)
        except BaseException:
            os.close(self._task)
            raise
        try:
            self._supervisor.start_missing()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._task)
        self._supervisor.stop()

    def divide(self, events: EventSink) -> dict[Any, EdgeTotals]:
        """Has edges divided; returns the sums over them."""
        self._supervisor.send(0, "build", (self._task,), engine=self._engine.to_json(), timeout_s=_START_S)
        said = self._await("divided", events)
        return {tuple(t): EdgeTotals(tuple(counts), largest) for t, counts, largest in said.body["totals"]}

    def build(self, events: EventSink) -> None:
        """Has all parts built."""
        self._supervisor.send(0, "shared")
        self._await("built", events)

    def _await(self, kind: str, events: EventSink) -> Message:
        for message in self._heard():
            if message.kind == "progress":
                events(Event(**message.body["event"]))
            elif message.kind == "lost":
                raise error_from_json(message.body["error"], "Ray", WorkerDied)
            elif message.kind == kind:
                return message
        raise AssertionError("it is heard until something is said")

    def _heard(self) -> Iterator[Message]:
        """Yields what the driver says; its end is an error. Ray itself has deadlines for joining, and says when no node is left."""
        while True:
            self._waker.wait(self._supervisor.poller(), Deadline(SLICE_S).left_s)
            for _, said in self._supervisor.listen():
                if isinstance(said, Exit):
                    raise said.error
                yield said

"""Ray's driver, as the process sees it that has asked for it: what it has nodes call, and the stores that it has them build."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from gnnkit.datasets.derived import copy_source
from gnnkit.errors import PlanError, StoreError, WorkerDied, on_error
from gnnkit.events import Event, EventSink, ignore_events
from gnnkit.files import os_errors
from gnnkit.ray.building import BuildTask, PartInput
from gnnkit.ray.cluster import RayCluster
from gnnkit.ray.job import driver_environment, driver_options
from gnnkit.runtime.remote import error_from_json
from gnnkit.runtime.runs import new_run
from gnnkit.runtime.supervisor import Exit, Supervisor
from gnnkit.runtime.wire import Message, Waker, from_memory
from gnnkit.source import GraphSource, PartedSource, RangedSource
from gnnkit.storage.build import BuildJob, build_parts, existing, join_parts, read_records
from gnnkit.storage.edge_values import timed_edge_types
from gnnkit.storage.inputs import GraphTotals
from gnnkit.storage.layout import BuildOptions, check_buildable
from gnnkit.storage.manifest import store_fingerprint
from gnnkit.storage.partition import assign_parts
from gnnkit.storage.staging import check_replaceable, parts_path
from gnnkit.storage.store import Store
from gnnkit.waiting import SLICE_S

# That Ray may take to be there.
_START_S = 600.0
T = TypeVar("T")


class DriverChild:
    """Ray's driver, for a ``with`` block; it ends with the block, and whatever it had running on the cluster.

    Args:
        engine: The cluster.
        advice: What to do when it is gone.
    """

    def __init__(self, engine: RayCluster, advice: str) -> None:
        self._engine, self._advice = engine, advice
        # Messages that have arrived and were not asked for yet.
        self._said = deque[Message]()

    def __enter__(self) -> DriverChild:
        self._waker = Waker()
        options = driver_options(driver_environment(self._engine), self._advice)
        self._supervisor = Supervisor(options, new_run(None, {"engine": "ray"}, "build"), lambda child: None)
        with on_error(self.__exit__):
            self._supervisor.start_missing()
        return self

    def __exit__(self, *exc: object) -> None:
        self._supervisor.stop()

    def send(self, kind: str, value: bytes) -> None:
        """Has the driver join the cluster, if it has not, and do something with a pickled object."""
        self._supervisor.send(0, kind, (value,), engine=self._engine.to_json(), timeout_s=_START_S)

    def say(self, kind: str) -> None:
        """Tells the driver something."""
        self._supervisor.send(0, kind)

    def hear(self, kind: str, events: EventSink = ignore_events) -> Message:
        """Waits for a message. Ray itself has deadlines for joining, and says when no node is left.

        Args:
            kind: Its kind.
            events: Receives the driver's progress until then.

        Raises:
            GnnkitError: What the driver has failed of.
            WorkerDied: It is gone.
        """
        while True:
            while self._said:
                message = self._said.popleft()
                if message.kind == kind:
                    return message
                if message.kind == "progress":
                    events(Event(**message.body["event"]))
                elif message.kind == "lost":
                    raise error_from_json(message.body["error"], "Ray", WorkerDied)
            self._waker.wait(self._supervisor.poller(), SLICE_S)
            for _, said in self._supervisor.listen():
                if isinstance(said, Exit):
                    raise said.error
                self._said.append(said)

    def map(self, function: Callable[..., T], shared: Any, calls: Sequence[tuple[tuple[Any, ...], int]]) -> Iterator[tuple[int, str, T]]:
        """Yields the number of each call, the node that made it, and its result, as they end; see ``HostTasks`` of ``gnnkit.datasets``.

        Raises:
            GnnkitError: What a function raises.
            PlanError: Something cannot be sent.
            WorkerDied: The driver, or every node, is gone.
        """
        if not calls:
            return
        self.send("calls", _packed((function, shared, list(calls)), "the tables"))
        for _ in calls:
            message = self.hear("called")
            number, node, value = pickle.loads(from_memory(message.fds.pop()))
            yield number, node, value


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
    assignment: dict[str, Any] | None = None
    if options.partition == "given":
        assert isinstance(source, PartedSource)
        assignment = dict(source.parts or {})
    elif options.partition != "contiguous":
        assignment = dict(assign_parts(source.schema, None, options, events, source.splits, source))
    folder = parts_path(path)
    job = BuildTask(source, options, str(path), fingerprint, (), assignment)
    with os_errors(f"{folder} cannot be written", None, "give another folder: out=...", StoreError):
        join_parts(folder, _shared_job(job, source, GraphTotals()))
    if missing := tuple(part for part in range(options.num_parts) if part not in read_records(folder)):
        # Tables that hosts have read are ranged in a form that can be sent.
        ranged: GraphSource = getattr(source, "ranged", source)
        if not isinstance(ranged, RangedSource):
            ranged = copy_source(source, folder / _COPY, events)
        task = BuildTask(ranged, options, str(path), fingerprint, missing, assignment)
        packed = _packed(task, f"the source {ranged.name}", "a RangedSource names its files, and opens them where they are read")
        with DriverChild(engine, _ADVICE) as driver:
            driver.send("build", packed)
            totals = GraphTotals.from_json(driver.hear("divided", events=events).body["totals"])
            build_parts(_shared_job(task, source, totals), (), wait_timeout_s=_START_S)
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


def _packed(value: Any, what: str, hint: str | None = None) -> bytes:
    """Pickles what the driver is to work on.

    Raises:
        PlanError: It cannot be sent.
    """
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps(value))
    except Exception as error:  # whatever an object raises that will not be pickled
        raise PlanError(f"{what} cannot be sent to other processes: {type(error).__name__}: {error}", hint) from error

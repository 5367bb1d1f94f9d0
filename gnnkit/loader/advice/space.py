"""What ``autotune`` may try: numbers of workers, threads and slots, as far as a backend has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from gnnkit.errors import PlanError
from gnnkit.plan import LoaderPlan

# More sampling threads than this are more than one host's memory is fast; batches ahead cost their memory.
_MOST_THREADS = 16
_AHEAD = (0, 1, 2, 4, 8, 16)
_CONCURRENCY = (1, 2, 4)
# Slots of a ring that batches of the user's lie in.
_LEASED = 3

Point = Mapping[str, Any]


@dataclass(frozen=True)
class Axis:
    """An option with the values that are tried.

    Attributes:
        name: An option of the backend, or "prefetch".
        values: Its values, the cheapest first.
        kind: Whether it is about who samples, or about how many batches may be under way.
    """

    name: str
    values: tuple[Any, ...]
    kind: Literal["workers", "slots"]


@dataclass(frozen=True)
class Space:
    """All combinations of some options.

    Attributes:
        axes: The options, in the order in which they are tried.
        allowed: Whether a combination can be had.
    """

    axes: tuple[Axis, ...]
    allowed: Callable[[Point], bool] = lambda point: True

    def grid(self) -> list[dict[str, Any]]:
        """Every combination that can be had, the cheapest first."""
        names = [axis.name for axis in self.axes]
        points = (dict(zip(names, values, strict=True)) for values in product(*(axis.values for axis in self.axes)))
        return sorted(filter(self.allowed, points), key=self.cost)

    def beside(self, point: Point, axis: Axis, *, up: bool) -> Iterator[dict[str, Any]]:
        """Combinations that differ from ``point`` in one option, the nearest first; of slots, one at a time is too little to tell."""
        at = axis.values.index(point[axis.name])
        values = axis.values[at + 1 :] if up else axis.values[:at][::-1]
        if axis.kind == "slots" and up and len(values) > 1:
            values = values[1::2]
        yield from filter(self.allowed, ({**point, axis.name: value} for value in values))

    def cost(self, point: Point) -> int:
        """What a combination takes, to compare it with others: how far up it is."""
        return sum(axis.values.index(point[axis.name]) for axis in self.axes)


def space_of(plan: LoaderPlan, *, workers: int, cpus: int, most_slots: int) -> tuple[Space, dict[str, Any]]:
    """What may be tried for a loader, and where it stands now.

    Args:
        plan: Its plan.
        workers: Threads or processes that sample for it now.
        cpus: Processors that it may use.
        most_slots: Batches that may be under way, for the memory that they take.

    Raises:
        PlanError: The loader's backend has nothing to try.
    """
    backend = plan.backend
    kind, prefetch = backend["kind"], plan.runtime.prefetch
    if kind == "Glt":
        raise PlanError(
            "autotune() tries gnnkit's own workers, and Glt() samples with graphlearn-torch's", "use InProcess() or Colocated()"
        )
    if plan.batching.world_size > 1:
        raise PlanError(
            f"autotune() tries one trainer's options, and this is one of {plan.batching.world_size}, who would wait for each other",
            "tune a loader with rank=0, world_size=1, and give all ranks its options",
        )
    if kind == "InProcess":
        start = {"num_threads": workers, "prefetch": prefetch}
    else:
        start = {**_processes(backend, workers), **_ring_options(backend), "prefetch": prefetch}
    return Space(tuple(_axis(name, value, cpus) for name, value in start.items()), _limits(backend, cpus, most_slots, start)), start


def _processes(backend: Mapping[str, Any], workers: int) -> dict[str, Any]:
    """Who samples; nothing where that is up to servers which somebody else has started."""
    threads = {"threads_per_worker": backend["threads_per_worker"]}
    if backend["kind"] == "Colocated":
        return {"num_workers": workers, **threads}
    return {} if backend["address"] is not None else {"workers_per_server": backend["workers_per_server"], **threads}


def _ring_options(backend: Mapping[str, Any]) -> dict[str, Any]:
    size = {} if backend["channel_size"] is None else {"channel_size": backend["channel_size"]}
    return {"worker_concurrency": backend["worker_concurrency"], **size}


def _axis(name: str, now: Any, cpus: int) -> Axis:
    """The values of an option: the usual ones, and what it is now."""
    if name == "channel_size":
        return Axis(name, (now, None), "slots")
    if name in ("prefetch", "worker_concurrency"):
        return Axis(name, tuple(sorted({now, *(_AHEAD if name == "prefetch" else _CONCURRENCY)})), "slots")
    counts = {1, 2, 4, 8, 16, cpus - 1, cpus, cpus + 1}
    return Axis(name, tuple(sorted({now, *(count for count in counts if 1 <= count <= min(_MOST_THREADS, 2 * cpus))})), "workers")


def _limits(backend: Mapping[str, Any], cpus: int, most_slots: int, start: Point) -> Callable[[Point], bool]:
    """Keeps to about as many threads as there are processors, and to the memory for batches; what there is now is allowed."""
    servers = int(backend.get("num_servers", 1))

    def allowed(point: Point) -> bool:
        processes = point.get("num_workers", point.get("workers_per_server", 1) * servers)
        each = point.get("threads_per_worker", 1)
        threads = point.get("num_threads", processes * each)
        slots = threads if "num_threads" in point else processes * max(each, point["worker_concurrency"]) + _LEASED
        fits = threads <= min(_MOST_THREADS, max(2 * cpus, servers)) and slots + point["prefetch"] <= most_slots
        return fits or all(point[name] == value for name, value in start.items())

    return allowed

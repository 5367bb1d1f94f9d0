"""Sampling on a device: the graph lies there, and batches are made there, equal to those of ``InProcess`` bit for bit."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import override

from gnnkit.arguments import check_fields, checks_calls
from gnnkit.backends.base import Backend, BatchStream, EndOfEpoch, StreamStatus
from gnnkit.backends.devices import cache_device
from gnnkit.backends.inprocess import _JOIN_S, InProcess, InProcessStream, LoopSampling
from gnnkit.callers import warn
from gnnkit.errors import PlanError
from gnnkit.events import EventSink, Stage
from gnnkit.host import free_on
from gnnkit.plan import LoaderPlan, NeighborSampling
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.samplers import Labor
from gnnkit.sampling.subgraph import SampledSubgraph, SampleRequest
from gnnkit.storage.layout import FEATURE_NAME

if TYPE_CHECKING:
    from gnnkit.sampling.device.graph import DeviceGraph
    from gnnkit.sampling.device.sampler import DevicePlace

T = TypeVar("T")

# A loop never samples itself: the device does it beside the step.
_NO_LOOP = LoopSampling(small_s=0.0)


@checks_calls()
@dataclass(frozen=True)
class OnDevice:
    """Samples on a device that the graph is copied to; every part of the graph must be on this host. See ``docs/gpu.md``.

    Batches are those of ``InProcess``, bit for bit, and their tensors lie on the device; the loader's ``device`` follows. With
    ``feature_cache`` so many bytes of features lie there, too, and the host gathers the others.

    Attributes:
        device: "cuda", "cuda:1" or another name of PyTorch's; "cpu" runs the same operations here, to try a plan or a test.

    Example:
        >>> import gnnkit
        >>> data = gnnkit.datasets.cora()
        >>> backend = gnnkit.OnDevice("cpu")
        >>> with gnnkit.GraphLoader.from_pyg(data, input_nodes="train", num_neighbors=[5, 5], backend=backend) as loader:
        ...     print(loader.peek().batch_size)
        140
    """

    device: str = "cuda"

    def __post_init__(self) -> None:
        check_fields(self)

    def open(self, plan: LoaderPlan, graph: GraphHandle, events: EventSink) -> BatchStream:
        """Copies what is needed to the device, and starts the threads that ask it for batches.

        Raises:
            PlanError: Hosts hold parts of the graph only, the kind of sampling is none that a device does, or there is no such device.
            MemoryLimitError: The device has no room.
        """
        sampling = _checked(plan, graph)
        from gnnkit.sampling.device.sampler import DevicePlace

        copy, lasting, passing = self._beside(plan, graph, sampling)
        with Stage(events, "device") as stage:
            predicted = copy.prepare(sampling, skips_features=_gathers(plan), beside=lasting + passing)
            stage.summary = f"{copy.nbytes / 1e6:.0f} MB of the graph on {copy.device}"
        place = DevicePlace(copy, plan, predicted + lasting)
        here = replace(plan, runtime=replace(plan.runtime, memory_budget=0))  # no copy of the graph for kernels
        return OnDeviceStream(here, graph, _num_threads(plan), events, place)

    def _beside(self, plan: LoaderPlan, graph: GraphHandle, sampling: NeighborSampling) -> tuple[DeviceGraph, int, int]:
        """The graph's copy on the device, which may have nothing yet, and the bytes beside it, see ``bytes_beside``."""
        from gnnkit.sampling.device.graph import device_graph
        from gnnkit.sampling.device.sampler import bytes_beside

        where = cache_device(self.device)
        assert where is not None
        batches = _num_threads(plan) + plan.runtime.prefetch + 1
        return device_graph(graph, graph.arrays, where), *bytes_beside(graph.arrays.schema, sampling, plan, batches)

    def room(self, plan: LoaderPlan, graph: GraphHandle) -> int:
        """Bytes that a plan would leave free on the device; negative where they are too few.

        Raises:
            PlanError: See ``open``.
        """
        sampling = _checked(plan, graph)
        copy, lasting, passing = self._beside(plan, graph, sampling)
        needed = copy.missing(sampling, skips_features=_gathers(plan))
        return free_on(copy.device) - sum(needed.values()) - lasting - passing - plan.runtime.feature_cache

    def to_json(self) -> dict[str, Any]:
        """``{"kind": "OnDevice", "device": ...}``."""
        return {"kind": "OnDevice", **asdict(self)}


@dataclass(frozen=True)
class WhereRoom(OnDevice):
    """``OnDevice`` for data that lies there already, where the choice is left open: gives way where the device has no room."""

    def settled(self, plan: LoaderPlan, graph: GraphHandle) -> tuple[LoaderPlan, Backend]:
        """The plan with the backend that there is room for: all of it there, or its structure and some features, or batches alone."""
        there, schema = OnDevice(self.device), graph.arrays.schema
        plan = replace(plan, backend=there.to_json())
        try:
            if there.room(plan, graph) >= 0:
                return plan, there
            if not plan.runtime.feature_cache and any(FEATURE_NAME in nodes.arrays for nodes in schema.node_types.values()):
                half = there.room(_with_cache(plan, 1), graph) // 2  # the other half is the model's
                if half > 0:
                    return _with_cache(plan, half), there
            why = "it has no room"
        except PlanError as error:
            why = error.message
        warn(f"data on {self.device!r} is sampled by threads of this process, and batches are copied there: {why}", RuntimeWarning)
        return replace(plan, backend=InProcess().to_json()), InProcess()


def _with_cache(plan: LoaderPlan, nbytes: int) -> LoaderPlan:
    return replace(plan, runtime=replace(plan.runtime, feature_cache=nbytes))


def _gathers(plan: LoaderPlan) -> bool:
    """Whether the host gathers features: it does so for one batch while the device walks the next."""
    return bool(plan.runtime.feature_cache)


def _num_threads(plan: LoaderPlan) -> int:
    return 2 if _gathers(plan) else 1


def backend_for_data(backend: Any, device: Any, sampler: Any) -> Any:
    """The backend of a loader that leaves the choice open: where the user's data lies already.

    Args:
        backend: What it is otherwise.
        device: The device that the data lies on; None where it is in memory.
        sampler: The ``sampler`` of the loader's options.
    """
    return backend if device is None or not isinstance(sampler, Labor | None) else WhereRoom(str(device))


def _checked(plan: LoaderPlan, graph: GraphHandle) -> NeighborSampling:
    """The plan's sampling, where a device does it."""
    if plan.placement is not None and not plan.placement.is_replicated or not graph.arrays.is_whole:
        raise PlanError(
            "OnDevice() needs the whole graph on this host, and the plan places parts on others",
            "backend='colocated' asks other hosts for their parts; placement='replicate' has the whole graph everywhere",
        )
    if not isinstance(plan.sampling, NeighborSampling):
        raise PlanError(
            f"OnDevice() samples neighbourhoods hop by hop, and the plan's sampler is {plan.sampling.to_json()['kind']}",
            "InProcess(), Colocated() and GraphStore() have it, with device='cuda' for the batches",
        )
    schema = graph.arrays.schema
    sizes = sorted((nodes.num_nodes for nodes in schema.node_types.values()), reverse=True)
    if sizes and sizes[0] * max(sizes[0], 1 << 31) >= 1 << 63:
        raise PlanError(f"OnDevice() numbers at most {1 << 31} nodes of a type, and there are {sizes[0]}", "use InProcess() or Colocated()")
    return plan.sampling


_streams: weakref.WeakSet[OnDeviceStream] = weakref.WeakSet()
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Ends the threads, also of streams that are gone, before the interpreter does: one that torch is at work for would abort it."""
    for stream in list(_streams):
        stream.close()
    for thread in list(_threads):
        thread.join(_JOIN_S)


class OnDeviceStream(InProcessStream):
    """Batches made on a device, delivered in order.

    Args:
        plan: The plan.
        graph: The graph.
        num_threads: Threads that ask the device for batches.
        events: Receives the stage "compile".
        place: What they share.
    """

    def __init__(self, plan: LoaderPlan, graph: GraphHandle, num_threads: int, events: EventSink, place: DevicePlace) -> None:
        from gnnkit.sampling.device.sampler import DeviceSampler

        super().__init__(plan, graph, num_threads, events, _NO_LOOP, lambda tables: DeviceSampler(tables, place))
        self._place = place
        _streams.add(self)
        _threads.update(self._threads)

    def status(self) -> StreamStatus:
        """Returns the stream's state, counts and memory; ``details`` has the device, the bytes on it, and those that were predicted."""
        place = self._place
        return replace(
            super().status(),
            details={"device": str(place.device), "device_bytes": place.nbytes, "predicted_bytes": place.predicted},
        )

    @override
    def recv(self, timeout_s: float, check: Callable[[], None]) -> SampledSubgraph | EndOfEpoch:
        return self._handed_out(super().recv(timeout_s, check))

    @override
    def sample_request(self, epoch: int, batch_index: int, request: SampleRequest) -> SampledSubgraph:
        return self._handed_out(super().sample_request(epoch, batch_index, request))

    def _handed_out(self, found: T) -> T:
        if isinstance(found, SampledSubgraph) and found.tensors is not None:
            self._place.hand_out(found.tensors)
        return found

    @override
    def close(self) -> None:
        """As elsewhere; the device's memory is given up, but for that of batches."""
        super().close()
        if os.getpid() == self._shared.owner:
            with self._now_lock:
                self._idle.clear()
                self._place.close()

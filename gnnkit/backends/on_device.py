"""Sampling on a device: the graph lies there, and batches are made there, equal to those of ``InProcess`` bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from gnnkit.arguments import check_fields, checks_calls
from gnnkit.backends.base import BatchStream, StreamStatus
from gnnkit.backends.devices import cache_device
from gnnkit.backends.inprocess import InProcessStream, LoopSampling
from gnnkit.errors import PlanError
from gnnkit.events import EventSink, Stage
from gnnkit.plan import LoaderPlan, NeighborSampling
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.samplers import Labor

if TYPE_CHECKING:
    from gnnkit.sampling.device.sampler import DevicePlace
    from gnnkit.sampling.kinds import BatchSource
    from gnnkit.sampling.tables import GraphTables

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
        from gnnkit.sampling.device.graph import device_graph
        from gnnkit.sampling.device.sampler import DevicePlace, bytes_beside

        where = cache_device(self.device)
        assert where is not None
        # Where the host gathers features, it does so for one batch while the device walks the next.
        gathers = bool(plan.runtime.feature_cache)
        threads = 2 if gathers else 1
        copy = device_graph(graph, graph.arrays, where)
        with Stage(events, "device") as stage:
            beside = bytes_beside(graph.arrays.schema, sampling, plan, threads + plan.runtime.prefetch + 1)
            copy.prepare(sampling, skips_features=gathers, beside=beside)
            stage.summary = f"{copy.nbytes / 1e6:.0f} MB of the graph on {where}"
        place = DevicePlace(copy, plan)
        here = replace(plan, runtime=replace(plan.runtime, memory_budget=0))  # no copy of the graph for kernels
        return OnDeviceStream(here, graph, threads, events, place)

    def to_json(self) -> dict[str, Any]:
        """``{"kind": "OnDevice", "device": ...}``."""
        return {"kind": "OnDevice", **asdict(self)}


def backend_for_data(backend: Any, device: Any, sampler: Any) -> Any:
    """The backend of a loader that leaves the choice open: where the user's data lies already.

    Args:
        backend: What it is otherwise.
        device: The device that the data lies on; None where it is in memory.
        sampler: The ``sampler`` of the loader's options.
    """
    return backend if device is None or not isinstance(sampler, Labor | None) else OnDevice(str(device))


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
        super().__init__(plan, graph, num_threads, events, _NO_LOOP, _maker(place))
        self._place = place

    def status(self) -> StreamStatus:
        """Returns the stream's state, counts and memory; ``details`` has the device and the bytes on it."""
        return replace(super().status(), details={"device": str(self._place.device), "device_bytes": self._place.graph.nbytes})


def _maker(place: DevicePlace) -> Callable[[GraphTables], BatchSource]:
    from gnnkit.sampling.device.sampler import DeviceSampler

    return lambda tables: DeviceSampler(tables, place)

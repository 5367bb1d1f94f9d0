"""graphlearn-torch's own engine behind the loader, in background processes."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gnnkit.arguments import checks_calls
from gnnkit.backends.base import Backend, BatchStream, PoolBackend, folder_or_none
from gnnkit.bounds import MOST_SECONDS, MOST_THREADS, is_real, is_whole, keep_whole_number, shown, size_in_bytes
from gnnkit.errors import PlanError
from gnnkit.events import EventSink
from gnnkit.plan import InputNodes, LoaderPlan, NeighborSampling, Sampling
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.runtime.scheduler import MOST_CONCURRENT

if TYPE_CHECKING:
    from gnnkit.runtime.pool import WorkerPool

_MODES = ("worker", "server_client")
_GRAPH_MODES = ("CPU", "ZERO_COPY", "CUDA")
DRAWN_BY = "graphlearn-torch"


@checks_calls()
@dataclass(frozen=True)
class Glt(Backend):
    """Samples with graphlearn-torch's own loaders and RPC, in processes that the loader starts and ends.

    Batches are drawn by graphlearn-torch: seeds, order and contents are those of every backend, the neighbours are others, of the same
    distribution, and differ between two runs. ``docs/glt.md`` says when it is worth it, and what it cannot do.

    Attributes:
        mode: "worker" (its sampling workers beside the loader) or "server_client" (its servers, one per part, with their workers).
        num_workers: Its sampling workers for each part.
        graph_mode: "CPU", or sampling on a GPU with edges in pinned memory ("ZERO_COPY") or on the GPU ("CUDA").
        worker_concurrency: Batches that a worker samples at the same time, 1 to 32.
        channel_size: Memory of the channel that workers answer through, in bytes or as "1GB"; a batch must fit.
        master_port: Port where its processes find each other, and the next one; of the trainer of local rank ``i``, ``2 * i`` further.
            None takes free ones.
        interface: Name or address of the interface that several hosts use; None: the one that the process group was reached by. One
            host uses loopback.
        rpc_timeout_s: Seconds that one of its requests may take.
        log_dir: Folder for the processes' logs; None: as for ``Colocated``.
        drawn_by: The library that draws the batches, as a plan shows it; no other value is possible.

    Raises:
        PlanError: A value is unusable.

    Example:
        >>> import gnnkit
        >>> backend = gnnkit.Glt(num_workers=2)  # from_ogb("ogbn-products", ..., backend=backend)
        >>> backend.num_workers
        2
    """

    mode: Literal["worker", "server_client"] = "worker"
    num_workers: int = 1
    graph_mode: Literal["CPU", "ZERO_COPY", "CUDA"] = "CPU"
    worker_concurrency: int = 4
    channel_size: int | str = "1GB"
    master_port: int | None = None
    interface: str | None = None
    rpc_timeout_s: float = 180.0
    log_dir: str | None = None
    drawn_by: Literal["graphlearn-torch"] = "graphlearn-torch"

    def __post_init__(self) -> None:
        for name, value, known in (
            ("mode", self.mode, _MODES),
            ("graph_mode", self.graph_mode, _GRAPH_MODES),
            ("drawn_by", self.drawn_by, (DRAWN_BY,)),
        ):
            if value not in known:
                raise PlanError(f"{name} must be one of {list(known)}, got {value!r}")
        keep_whole_number(self, "num_workers", 1, MOST_THREADS)
        keep_whole_number(self, "worker_concurrency", 1, MOST_CONCURRENT)
        port, timeout = self.master_port, self.rpc_timeout_s
        if port is not None and not is_whole(port, 1, (1 << 16) - 1):
            raise PlanError(f"master_port must be a port, got {shown(port)}", "None takes a free one")
        if not is_real(timeout) or not 0 < timeout <= MOST_SECONDS:
            raise PlanError(f"rpc_timeout_s must be a positive number of seconds, and at most {MOST_SECONDS:g}, got {shown(timeout)}")
        if self.interface is not None and (not isinstance(self.interface, str) or not self.interface):
            raise PlanError(f"interface must be the name or address of an interface, got {self.interface!r}")
        if self.channel_size is None:
            raise PlanError("channel_size must be a number of bytes or a size such as '1GB', got None")
        object.__setattr__(self, "log_dir", folder_or_none("log_dir", self.log_dir))
        _ = self.channel_bytes

    @property
    def channel_bytes(self) -> int:
        """``channel_size`` in bytes."""
        return size_in_bytes("channel_size", self.channel_size) or 0

    def open(self, plan: LoaderPlan, graph: GraphHandle, events: EventSink) -> BatchStream:
        """Starts the processes and waits until they have found each other.

        Raises:
            PlanError: graphlearn-torch cannot be used here, or cannot sample this plan.
        """
        from gnnkit.vendor import glt  # metadata

        if sys.platform != "linux":
            raise PlanError(f"Glt() needs Linux, this is {sys.platform}", "use InProcess()")
        glt.require_native("Glt()")
        if not isinstance(plan.inputs, InputNodes):
            raise PlanError("Glt() samples around nodes, and the inputs are links or anchors", "use InProcess() or Colocated()")
        check_sampling(plan.sampling)
        if self.graph_mode != "CPU":
            import torch

            if not torch.cuda.is_available():
                raise PlanError(f"graph_mode={self.graph_mode!r} samples on a GPU, and torch finds none", "graph_mode='CPU' needs none")
        return GltWorkers(self, graph).open(plan, graph, events)


class GltWorkers(PoolBackend):
    """The pool's options of ``Glt``. No two loaders share a pool: graphlearn-torch's processes sample one plan.

    Args:
        options: The backend's options.
        graph: The graph.
    """

    worker_concurrency, channel_size, max_restarts, idle_timeout_s, log_dir = 1, None, 0, None, None

    def __init__(self, options: Glt, graph: GraphHandle) -> None:
        self._options = options
        self._lanes = options.num_workers * (graph.arrays.num_parts if options.mode == "server_client" else 1)
        # A worker is to have the next batches when it has sampled as many as it may at the same time.
        self.threads_per_worker = 2 * options.worker_concurrency * self._lanes

    def open(self, plan: LoaderPlan, graph: GraphHandle, events: EventSink) -> BatchStream:
        """Starts the processes; see ``Glt.open``."""
        from gnnkit.backends.pool_stream import PoolStream  # heavy

        return PoolStream(self, plan, graph, events)

    def open_pool(self, plan: LoaderPlan, graph: GraphHandle, events: EventSink) -> WorkerPool:
        """Makes the pool, of which no process is started yet; see ``PoolBackend.open_pool``."""
        from gnnkit.backends.glt.pool import GltPool  # processes

        return GltPool(self._options, self._lanes, plan, graph)


def check_sampling(sampling: Sampling) -> None:
    """Refuses what graphlearn-torch cannot do, or would do wrongly.

    Raises:
        PlanError: It would.
    """
    if not isinstance(sampling, NeighborSampling) or sampling.has_roots or sampling.subgraph_type != "directional":
        raise PlanError("Glt() samples neighbourhoods hop by hop, one for all seeds, and nothing else", "use InProcess() or Colocated()")
    if sampling.labor is not None:
        raise PlanError("Glt() draws for every node on its own, and gnnkit.Labor(...) shares draws", "use InProcess() or Colocated()")
    if sampling.weight is not None:
        raise PlanError(
            f"Glt() does not sample by weight={sampling.weight!r}: graphlearn-torch also returns neighbours of weight 0",
            "use InProcess() or Colocated(), which do not",
        )
    for edge_type, fan_outs in sampling.num_neighbors.items():
        hops = [hop for hop, fan_out in enumerate(fan_outs) if fan_out == 0]
        if hops and any(fan_outs[hops[0] :]):
            raise PlanError(
                f"num_neighbors={list(fan_outs)} of {edge_type} takes nothing at hop {hops[0] + 1} and something later, "
                "which graphlearn-torch does from the wrong nodes",
                "use InProcess() or Colocated(), which do not",
            )

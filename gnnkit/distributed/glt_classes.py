"""Classes that graphlearn-torch has too: its names, fields and defaults, and nothing of it behind them.

Where a process has imported graphlearn-torch, ``isinstance`` holds for the objects of either library and the classes of the other.
"""

from __future__ import annotations

import copy
import math
import os
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from gnnkit.cluster.hosts import environment_int
from gnnkit.distributed.graph_client import get_context
from gnnkit.distributed.graph_types import even_bounds
from gnnkit.errors import PlanError, near_matches
from gnnkit.schema import EdgeDir, EdgeType, NodeType, edge_type_name, reverse_edge_type
from gnnkit.vendor import glt

if TYPE_CHECKING:
    from typing_extensions import Self


class _TwinType(ABCMeta):
    """Takes graphlearn-torch's objects for instances of the classes here that are called the same."""

    def __instancecheck__(cls, value: Any) -> bool:
        theirs = glt.imported(cls.__dict__.get("_theirs", ""))
        return super().__instancecheck__(value) or (theirs is not None and isinstance(value, theirs))


class _Twin(metaclass=_TwinType):
    """Base of what graphlearn-torch takes for its own; ``_theirs`` is the path of its class."""

    _theirs = ""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The class that ``isinstance`` asks for beside the real one."""
        theirs = glt.imported(self._theirs)
        return type(self) if theirs is None else _of_both(type(self), theirs)

    def __reduce__(self) -> Any:
        """Pickles and copies by the real class, also where ``__class__`` is another."""
        return object.__new__, (type(self),), self.__dict__


@cache
def _of_both(ours: type, theirs: type) -> type:
    """A class derived from both; calling it makes an object of ours."""
    names = {"__module__": ours.__module__, "__qualname__": ours.__qualname__, "__new__": lambda _, *args, **named: ours(*args, **named)}
    return _TwinType(ours.__name__, (ours, theirs), names)


class _Choice(Enum):
    """Base of enumerations whose members equal graphlearn-torch's."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Enum) and (type(other).__name__, other.value) == (type(self).__name__, self.value)

    __hash__ = Enum.__hash__


class SamplingType(_Choice):
    """The kinds of sampling; the numbers are graphlearn-torch's."""

    NODE = 0
    LINK = 1
    SUBGRAPH = 2
    RANDOM_WALK = 3


class Split(_Choice):
    """A split of the nodes."""

    train = "train"
    valid = "valid"
    test = "test"


class NegativeSamplingMode(_Choice):
    """The ways of drawing negatives: links of two random ends, or new targets for the sources of links."""

    binary = "binary"
    triplet = "triplet"


@dataclass
class SamplingConfig(_Twin):
    """A description of what is sampled, and in which batches.

    Attributes:
        sampling_type: Around nodes, around links, or the edges among neighbourhoods.
        num_neighbors: Fan-out per hop, one list or by edge type.
        batch_size: Seeds per batch.
        shuffle: Whether an epoch visits the seeds in a fresh order.
        drop_last: Whether a last batch of fewer seeds is left out.
        with_edge: Whether batches have ids of edges.
        collect_features: Whether batches have features.
        with_neg: Whether negatives are drawn.
        with_weight: Whether neighbours are drawn in proportion to edge weights.
        edge_dir: The direction of sampling.
        seed: Random seed; None leaves it to the loader.
    """

    _theirs = "sampler.SamplingConfig"
    sampling_type: SamplingType
    num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]]
    batch_size: int
    shuffle: bool
    drop_last: bool
    with_edge: bool
    collect_features: bool
    with_neg: bool
    with_weight: bool
    edge_dir: EdgeDir
    seed: int | None


@dataclass
class NegativeSampling(_Twin):
    """A description of the negatives of links.

    Attributes:
        mode: "binary" or "triplet".
        amount: Negatives for each link; a whole number for "triplet".
        weight: ``[num_nodes]``: how likely a node is drawn; None: all are alike.

    Raises:
        PlanError: A value is unusable.
    """

    _theirs = "sampler.NegativeSampling"
    mode: NegativeSamplingMode | str
    amount: int | float = 1
    weight: torch.Tensor | None = None

    def __post_init__(self) -> None:
        mode, known = getattr(self.mode, "value", self.mode), [each.value for each in NegativeSamplingMode]
        if mode not in known:
            raise PlanError(f"the mode of negatives must be one of {known}, got {mode!r}{near_matches(str(mode), known)}")
        self.mode = NegativeSamplingMode(mode)
        if not self.amount > 0 or (self.is_triplet() and self.amount != math.ceil(self.amount)):
            raise PlanError(f"the amount of {mode} negatives must be a positive number, got {self.amount!r}", "for 'triplet' a whole one")
        self.amount = math.ceil(self.amount) if self.is_triplet() else self.amount

    def is_binary(self) -> bool:
        """Whether links are drawn."""
        return self.mode == NegativeSamplingMode.binary

    def is_triplet(self) -> bool:
        """Whether targets are drawn for each source."""
        return self.mode == NegativeSamplingMode.triplet


class _SamplerInput(_Twin):
    """Base of seeds; the first field is what a batch takes ``batch_size`` of."""

    def __len__(self) -> int:
        first: torch.Tensor = next(iter(vars(self).values()))
        return first.numel()

    def __getitem__(self, index: Any) -> Self:
        places = torch.as_tensor(index)
        return self._changed(lambda rows: rows[places.to(rows.device)])

    def share_memory(self) -> Self:
        """The same in memory that processes share."""
        return self._changed(torch.Tensor.share_memory_)

    def to(self, device: torch.device | str) -> Self:
        """The same on a device."""
        return self._changed(lambda rows: rows.to(device))

    def _changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        found = copy.copy(self)
        found.__dict__.update({name: change(value) for name, value in vars(self).items() if isinstance(value, torch.Tensor)})
        return found


@dataclass
class NodeSamplerInput(_SamplerInput):
    """Nodes to sample around.

    Attributes:
        node: Ids ``[n]``.
        input_type: Their type; None in a homogeneous graph.
    """

    _theirs = "sampler.NodeSamplerInput"
    node: torch.Tensor
    input_type: NodeType | None = None


@dataclass
class EdgeSamplerInput(_SamplerInput):
    """Links to sample around.

    Attributes:
        row: Ids of sources ``[n]``.
        col: Ids of targets ``[n]``.
        label: Their labels ``[n, ...]``, or None.
        input_type: Their type; None in a homogeneous graph.
        neg_sampling: The negatives that are drawn, or None.
    """

    _theirs = "sampler.EdgeSamplerInput"
    row: torch.Tensor
    col: torch.Tensor
    label: Any = None
    input_type: EdgeType | None = None
    neg_sampling: Any = None


@dataclass(eq=False)
class _WorkerOptions(_Twin):
    """Base of options of sampling workers."""

    num_workers: int = 1
    worker_devices: Any = None
    worker_concurrency: int = 1
    master_addr: str | None = None
    master_port: str | int | None = None
    num_rpc_threads: int | None = None
    rpc_timeout: float = 180

    def __post_init__(self) -> None:
        self.worker_world_size: int | None = None
        self.worker_ranks: list[int] | None = None
        if self.worker_devices is not None:
            given = self.worker_devices
            self.worker_devices = list(given) if isinstance(given, (list, tuple)) else [given] * self.num_workers
            if len(self.worker_devices) != self.num_workers:
                raise PlanError(f"worker_devices are {len(self.worker_devices)}, and num_workers is {self.num_workers}", "give as many")
        self.worker_concurrency = min(max(self.worker_concurrency, 1), 32)
        port = environment_int("MASTER_PORT") if self.master_port is None else None
        self.master_port = port + 1 if port is not None else self.master_port
        self.master_addr = self.master_addr or os.environ.get("MASTER_ADDR")
        if self.master_addr is None or self.master_port is None:
            raise PlanError(
                f"master_addr is {self.master_addr!r} and master_port {self.master_port!r}",
                "give both, or set MASTER_ADDR and MASTER_PORT, as torchrun does",
            )
        self.master_addr, self.master_port = str(self.master_addr), int(self.master_port)

    def _set_worker_ranks(self, current: Any) -> None:
        first, self.worker_world_size = current.rank * self.num_workers, current.world_size * self.num_workers
        self.worker_ranks = list(range(first, first + self.num_workers))

    def _assign_worker_devices(self) -> None:
        """Sets the devices that graphlearn-torch's own producers ask for: a GPU for each worker in turn where there are some."""
        count = torch.cuda.device_count()
        devices = [torch.device("cuda", worker % count) if count else torch.device("cpu") for worker in range(self.num_workers)]
        self.worker_devices = self.worker_devices or devices


class CollocatedDistSamplingWorkerOptions(_WorkerOptions):
    """Options for sampling in the trainer's own process.

    Args:
        master_addr: Where ranks meet; None takes ``MASTER_ADDR``. Used only where they hold parts of a dataset as values.
        master_port: Likewise; None takes the port after ``MASTER_PORT``.
        num_rpc_threads: Taken and not used.
        rpc_timeout: Seconds that one wait for a batch may take.
        use_all2all: Taken and not used.

    Raises:
        PlanError: There is no address or no port.
    """

    _theirs = "distributed.CollocatedDistSamplingWorkerOptions"

    def __init__(
        self,
        master_addr: str | None = None,
        master_port: str | int | None = None,
        num_rpc_threads: int | None = None,
        rpc_timeout: float = 180,
        use_all2all: bool = False,
    ) -> None:
        super().__init__(1, None, 1, master_addr, master_port, num_rpc_threads, rpc_timeout)
        self.use_all2all = use_all2all


@dataclass(eq=False)
class MpDistSamplingWorkerOptions(_WorkerOptions):
    """Options for sampling in processes beside the trainer.

    Attributes:
        num_workers: Sampling processes.
        worker_devices: Taken and not used: sampling runs on the CPU.
        worker_concurrency: Batches that a process is given at a time, 1 to 32.
        master_addr: Where ranks meet; None takes ``MASTER_ADDR``. Used only where they hold parts of a dataset as values.
        master_port: Likewise; None takes the port after ``MASTER_PORT``.
        num_rpc_threads: Taken and not used.
        rpc_timeout: Seconds that one wait for a batch may take.
        channel_size: The most memory for batches under way, in bytes or as "4GB"; None: as much as they take.
        pin_memory: Taken and not used: a loader's device decides it.
        use_all2all: Taken and not used.

    Raises:
        PlanError: There is no address or no port, or not a device for each process.
    """

    _theirs = "distributed.MpDistSamplingWorkerOptions"
    worker_concurrency: int = 4
    channel_size: int | str | None = None
    pin_memory: bool = False
    use_all2all: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.channel_capacity = self.num_workers * self.worker_concurrency
        self.channel_size = f"{self.num_workers * DEFAULT_MB_PER_WORKER}MB" if self.channel_size is None else self.channel_size


# What graphlearn-torch puts in place of a channel_size or buffer_size that is left out.
DEFAULT_MB_PER_WORKER = 64


class RemoteDistSamplingWorkerOptions(_WorkerOptions):
    """Options for sampling on servers.

    Args:
        server_rank: The server that samples, or several. None takes this client's share of them, as graphlearn-torch deals them: of 4
            servers and 2 clients the first has 0 and 1, of 2 servers and 5 clients the third has 0.
        num_workers: Servers have workers already; with ``worker_concurrency`` it says how many batches are sampled ahead.
        worker_devices: Taken and not used: servers sample on the CPU.
        worker_concurrency: See ``num_workers``.
        master_addr: Taken and not used: nothing listens there.
        master_port: Likewise.
        num_rpc_threads: Likewise.
        rpc_timeout: Seconds that one wait for a batch may take.
        buffer_size: The most memory for batches under way.
        prefetch_size: Batches that are asked for ahead.
        worker_key: Trainers that give the same one divide the batches of the same seeds among themselves: a batch goes to the trainer that
            asks first, so of few batches one trainer may get all.
        use_all2all: Taken and not used.

    Raises:
        PlanError: ``server_rank`` is None, and this process has joined no servers; or a value is unusable.
    """

    _theirs = "distributed.RemoteDistSamplingWorkerOptions"

    def __init__(  # noqa: PLR0913
        self,
        server_rank: int | Sequence[int] | None = None,
        num_workers: int = 1,
        worker_devices: Any = None,
        worker_concurrency: int = 4,
        master_addr: str | None = None,
        master_port: str | int | None = None,
        num_rpc_threads: int | None = None,
        rpc_timeout: float = 180,
        buffer_size: int | str | None = None,
        prefetch_size: int = 4,
        worker_key: str | None = None,
        use_all2all: bool = False,
    ) -> None:
        super().__init__(num_workers, worker_devices, worker_concurrency, master_addr, master_port, num_rpc_threads, rpc_timeout)
        self.server_rank = _own_servers() if server_rank is None else server_rank
        self.buffer_capacity = self.num_workers * self.worker_concurrency
        self.buffer_size = f"{self.num_workers * DEFAULT_MB_PER_WORKER}MB" if buffer_size is None else buffer_size
        self.prefetch_size, self.worker_key, self.use_all2all = prefetch_size, worker_key, use_all2all
        if not 1 <= prefetch_size <= self.buffer_capacity:
            raise PlanError(
                f"prefetch_size must be between 1 and num_workers * worker_concurrency = {self.buffer_capacity}, got {prefetch_size}",
                "raise worker_concurrency, or lower prefetch_size",
            )


def _own_servers() -> list[int]:
    """This client's servers, dealt in order: the first clients have one more; too few are dealt again."""
    current = get_context()
    if current is None or not current.is_client():
        raise PlanError("server_rank is None, and this process has joined no servers", "call init_client() first, or name the servers")
    servers, clients, rank = current.num_servers(), current.world_size, current.rank
    if clients >= servers:
        return [rank % servers]
    bounds = even_bounds(servers, clients)
    return list(range(bounds[rank], bounds[rank + 1]))


class ChannelBase(_Twin):
    """Base of what carries messages from samplers to a loader; derive from it for a channel of your own."""

    _theirs = "channel.ChannelBase"

    @abstractmethod
    def send(self, msg: dict[str, torch.Tensor], **kwargs: Any) -> None:
        """Sends a message."""

    @abstractmethod
    def recv(self, **kwargs: Any) -> dict[str, torch.Tensor]:
        """The next message."""


class DistLoader(_Twin):
    """Base of loaders, for ``isinstance``; it is made by none of its own.

    Attributes:
        edge_dir: The direction of sampling.

    Raises:
        PlanError: Always, but in a derived class.
    """

    _theirs = "distributed.DistLoader"
    edge_dir: EdgeDir

    def __init__(self, *args: Any, **options: Any) -> None:
        raise PlanError(
            "DistLoader is the base of loaders, and samples nothing",
            "make a DistNeighborLoader; graphlearn-torch's own is graphlearn_torch.distributed.DistLoader",
        )

    def _set_ntypes_and_etypes(self, node_types: Sequence[NodeType] | None, edge_types: Sequence[EdgeType] | None) -> None:
        self._node_types, self._edge_types = node_types, edge_types
        both = [(t, reverse_edge_type(t)) for t in edge_types or ()]
        pairs = both if self.edge_dir == "out" else [(reverse, t) for t, reverse in both]
        self._reversed_edge_types = [shown for _, shown in pairs]
        self._etype_str_to_rev = {edge_type_name(sampled): shown for sampled, shown in pairs}

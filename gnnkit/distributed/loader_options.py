"""Options of samplers and of sampling workers, as GiGL and graphlearn-torch give them: the backend that they mean, and the plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from gnnkit.backends.base import Backend
from gnnkit.backends.colocated import Colocated
from gnnkit.backends.inprocess import InProcess
from gnnkit.bounds import whole_number
from gnnkit.distributed.dataset import DistDataset
from gnnkit.distributed.glt_classes import (
    DEFAULT_MB_PER_WORKER,
    CollocatedDistSamplingWorkerOptions,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
    SamplingConfig,
    SamplingType,
)
from gnnkit.distributed.graph_client import joined
from gnnkit.distributed.graph_types import patch_fanout_for_sampling
from gnnkit.distributed.resolve import DistributedRuntimeInfo
from gnnkit.errors import PlanError
from gnnkit.loader.inputs import resolve_input_nodes
from gnnkit.loader.planned import check_store_has, open_store
from gnnkit.plan import Batching, Inputs, LoaderPlan, NeighborSampling, Placement, RuntimeOptions, Sampling, SubgraphType
from gnnkit.plan.sampling import EdgeUse, whole_fan_outs
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.samplers import PPR
from gnnkit.schema import EdgeType
from gnnkit.storage.store import Store

if TYPE_CHECKING:
    from gnnkit.backends.graph_store import GraphStore
    from gnnkit.distributed.store_views import DatasetSchema


class SamplerOptions(ABC):
    """Base of every kind of sampler options; derive from it for a sampler of your own.

    Options are values: make subclasses frozen dataclasses, so that they compare, pickle and can be sent to other processes.
    """

    @abstractmethod
    def check_num_neighbors(self, num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]]) -> None:
        """Compares the options with the fan-outs that the loader was given.

        Raises:
            PlanError: They contradict each other.
        """


@dataclass(frozen=True)
class KHopNeighborSamplerOptions(SamplerOptions):
    """Neighbourhoods of a number of hops; what loaders use unless they are told otherwise.

    Attributes:
        num_neighbors: Fan-out per hop, for all edge types or by edge type. -1 takes all neighbours, 0 none.
    """

    num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]]

    def check_num_neighbors(self, num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]]) -> None:
        """Refuses fan-outs that are not the same."""
        if _plain(num_neighbors) != _plain(self.num_neighbors):
            raise PlanError(
                f"num_neighbors={num_neighbors} and sampler_options.num_neighbors={self.num_neighbors} differ", "give the same, or only one"
            )


@dataclass(frozen=True)
class PPRSamplerOptions(PPR, SamplerOptions):
    """The nodes with the largest personalised PageRank of each seed, see ``gnnkit.PPR``; the loader's fan-outs are not used."""

    def check_num_neighbors(self, num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]]) -> None:
        """Takes any fan-outs."""


def resolve_sampler_options(
    num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]], sampler_options: SamplerOptions | None = None
) -> SamplerOptions:
    """The options to sample with.

    Args:
        num_neighbors: The loader's fan-outs.
        sampler_options: What the user chose; None is ``KHopNeighborSamplerOptions(num_neighbors)``.

    Raises:
        PlanError: Both are given and contradict each other, or ``sampler_options`` is of no kind of options.
    """
    if sampler_options is None:
        return KHopNeighborSamplerOptions(num_neighbors)
    if not isinstance(sampler_options, SamplerOptions):
        raise PlanError(
            f"sampler_options must be a SamplerOptions, got a {type(sampler_options).__name__}", "derive it from SamplerOptions"
        )
    sampler_options.check_num_neighbors(num_neighbors)
    return sampler_options


def sampler_options_of(num_neighbors: Any, options: SamplerOptions | None) -> tuple[Any, SamplerOptions]:
    """Fan-outs and sampler options, of which one may be left out.

    Raises:
        PlanError: Both are missing, or they do not agree.
    """
    if isinstance(options, PPRSamplerOptions) and (num_neighbors is None or len(num_neighbors) == 0):
        num_neighbors = [-1]  # GiGL's scripts give [], since PPR has no hops; a configuration has some
    if num_neighbors is None:
        if not isinstance(options, KHopNeighborSamplerOptions):
            raise PlanError("num_neighbors is missing", "give one number per hop, for example [15, 10, 5]")
        num_neighbors = options.num_neighbors
    return num_neighbors, resolve_sampler_options(num_neighbors, options)


def _plain(num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]]) -> Any:
    """The same fan-outs compare equal, whether they are lists or tuples."""
    if isinstance(num_neighbors, Mapping):
        return {edge_type: list(fan_out) for edge_type, fan_out in num_neighbors.items()}
    return list(num_neighbors)


def create_sampling_config(
    num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]],
    dataset_schema: DatasetSchema,
    batch_size: int = 1,
    shuffle: bool = False,
    drop_last: bool = False,
    *,
    with_weight: bool = False,
    seed: int | None = None,
) -> SamplingConfig:
    """Makes the ``SamplingConfig`` of a node loader.

    Features are collected; edge ids are where edges have features, and cost time and memory where they have none. The same
    arguments give equal configurations on every rank.

    Args:
        num_neighbors: See ``patch_fanout_for_sampling``.
        dataset_schema: Edge types, features and direction.
        batch_size: Seeds per batch and rank.
        shuffle: Whether an epoch visits the seeds in a fresh order.
        drop_last: Whether a last batch of fewer seeds is left out.
        with_weight: Whether neighbours are drawn in proportion to edge weights.
        seed: Random seed; None leaves it to the loader.

    Raises:
        PlanError: ``num_neighbors`` does not fit the dataset, or ``batch_size`` is no whole number of at least 1.
    """
    batch_size = whole_number("batch_size", batch_size, 1, hint="1024 is a usual choice")
    fan_outs = patch_fanout_for_sampling(dataset_schema.edge_types, num_neighbors)
    return SamplingConfig(
        sampling_type=SamplingType.NODE,
        num_neighbors=fan_outs,
        batch_size=batch_size,
        shuffle=shuffle,
        drop_last=drop_last,
        with_edge=bool(dataset_schema.edge_feature_info),
        collect_features=True,
        with_neg=False,
        with_weight=with_weight,
        edge_dir=dataset_schema.edge_dir,
        seed=seed,
    )


# GiGL's torch threads of a process that samples on the CPU; sampling here uses none of torch's.
DEFAULT_NUM_CPU_THREADS = 2
_LOCAL = "use MpDistSamplingWorkerOptions, or leave worker_options out"
_REMOTE = "use RemoteDistSamplingWorkerOptions, or leave worker_options out"
# Graphlearn-torch's RPC was seen to slow down beyond so many threads.
_MOST_RPC_THREADS = 16
_RPC_TIMEOUT_S = 600


def create_colocated_worker_options(
    *,
    dataset_num_partitions: int,
    num_workers: int,
    worker_concurrency: int,
    master_ip_address: str,
    master_port: int,
    channel_size: int | str | None,
    pin_memory: bool,
) -> MpDistSamplingWorkerOptions:
    """Makes the ``MpDistSamplingWorkerOptions`` of a colocated loader.

    Args:
        dataset_num_partitions: Number of parts of the dataset.
        num_workers: Sampling processes.
        worker_concurrency: Batches that a process is given at a time, 1 to 32.
        master_ip_address: Kept in the record: gnnkit's processes need no address.
        master_port: Likewise; nothing listens there.
        channel_size: The most memory for batches under way, in bytes or as "4GB"; None: as much as they take.
        pin_memory: Kept in the record: a loader's device decides it.

    Raises:
        PlanError: A value is unusable.
    """
    if not isinstance(num_workers, int):
        raise PlanError(f"num_workers must be a whole number of at least 1, got {num_workers!r}")
    # Checks the values, under the names that the caller gave.
    Colocated(num_workers=num_workers, worker_concurrency=worker_concurrency, channel_size=channel_size)
    return MpDistSamplingWorkerOptions(
        num_workers=num_workers,
        worker_devices=[torch.device("cpu")] * num_workers,
        worker_concurrency=worker_concurrency,
        master_addr=master_ip_address,
        master_port=master_port,
        num_rpc_threads=min(dataset_num_partitions, _MOST_RPC_THREADS),
        rpc_timeout=_RPC_TIMEOUT_S,
        channel_size=channel_size,
        pin_memory=pin_memory,
    )


def check_worker_options(options: Any, *, on_servers: bool) -> None:
    """Makes sure that a loader can be made with the options.

    Args:
        options: The options.
        on_servers: Whether its graph is on servers.

    Raises:
        PlanError: They are for the other kind of loader, or of no kind of options.
    """
    if not isinstance(options, (MpDistSamplingWorkerOptions, CollocatedDistSamplingWorkerOptions, RemoteDistSamplingWorkerOptions)):
        raise PlanError(
            f"worker_options must be options of sampling workers, got a {type(options).__name__}", _REMOTE if on_servers else _LOCAL
        )
    if isinstance(options, RemoteDistSamplingWorkerOptions) != on_servers:
        where = "the dataset is on servers" if on_servers else "the dataset is not on servers"
        raise PlanError(f"worker_options is a {type(options).__name__}, and {where}", _REMOTE if on_servers else _LOCAL)


def served_backend_of(options: Any) -> GraphStore:
    """The backend of a loader on the servers that this process has joined.

    Args:
        options: Remote options: ``worker_concurrency`` and ``buffer_size`` count. Workers were started with the servers.

    Raises:
        PlanError: It has joined none, or a value is unusable.
    """
    size = None if options.buffer_size == f"{options.num_workers * DEFAULT_MB_PER_WORKER}MB" else options.buffer_size
    return replace(joined().backend, worker_concurrency=options.worker_concurrency, channel_size=size)


def backend_of(options: Any, max_concurrent_producer_inits: int | None = None) -> Backend:
    """The backend that does what the options ask for.

    Args:
        options: Mp options become ``Colocated``, collocated ones ``InProcess``.
        max_concurrent_producer_inits: See ``Colocated``.

    Raises:
        PlanError: They are for servers, or a value is unusable.
    """
    check_worker_options(options, on_servers=False)
    if isinstance(options, CollocatedDistSamplingWorkerOptions):
        return InProcess()
    # No user has asked for graphlearn-torch's own default, and large batches do not fit into it.
    chosen = None if options.channel_size == f"{options.num_workers * DEFAULT_MB_PER_WORKER}MB" else options.channel_size
    return Colocated(
        num_workers=options.num_workers,
        worker_concurrency=options.worker_concurrency,
        channel_size=chosen,
        max_concurrent_producer_inits=max_concurrent_producer_inits,
    )


def placed_store(dataset: DistDataset, runtime: DistributedRuntimeInfo | None) -> tuple[Store, Placement | None]:
    """The store of a dataset with the parts that this host is to hold, and which host holds which; None where one holds everything.

    Args:
        dataset: A dataset of a store.
        runtime: Where this process stands; None is alone.

    Raises:
        PlanError: This host's part is not that of its own number.
    """
    store = stored(dataset)
    placement = _placement(dataset, runtime)
    parts = None if placement is None else placement.hosts[dataset.partition_idx]
    if store.local_parts != (tuple(range(store.num_parts)) if parts is None else parts):
        # A part is here because the plan says so, not because its file can be opened.
        store = Store.open(store.path, parts)
    return store, placement


def plan_on(
    store: Store,
    sampler_input: Any,
    config: Any,
    backend: Backend,
    batch_timeout_s: float,
    placement: Placement | None = None,
    options: SamplerOptions | None = None,
) -> tuple[LoaderPlan, GraphHandle]:
    """The plan of one trainer's batches, and the process's handle on the graph that it is about.

    The seeds are this trainer's own: no other trainer gets them. Without a seed in ``config`` the random seed is 0.

    Args:
        store: The store.
        sampler_input: ``NodeSamplerInput``: the seeds' ids.
        config: ``SamplingConfig``, as ``create_sampling_config`` makes it.
        backend: Where it is sampled.
        batch_timeout_s: Seconds that one wait for a batch may take.
        placement: Which host holds which parts; None where everything is on one, or on servers.
        options: How it is sampled; None is hop by hop, as ``config`` says.

    Raises:
        PlanError: Something does not fit the store, or is not there yet.
    """
    of_links = hasattr(sampler_input, "links")
    fitting = (SamplingType.LINK,) if of_links else (SamplingType.NODE, SamplingType.SUBGRAPH)
    if config.sampling_type not in fitting or (config.with_neg and not of_links):
        raise PlanError(f"sampling_type is {config.sampling_type}, and the seeds are {'links' if of_links else 'nodes'}")
    if config.edge_dir != store.edge_dir:
        raise PlanError(
            f"edge_dir={config.edge_dir!r}, and the store {str(store.path)!r} is compressed for {store.edge_dir!r}",
            f"sample along edge_dir={store.edge_dir!r}, or build a store with gnnkit.partition(..., edge_dir={config.edge_dir!r})",
        )
    if config.with_weight and store.options.weight is None:
        raise PlanError(
            f"with_weight=True, and the store {str(store.path)!r} was built without weights",
            "build it with weight=<name of an edge array>, or leave with_weight out",
        )
    check_store_has(store, None, None, config.with_edge)
    sampling = _sampling(store, config, options)
    graph = open_store(store)
    inputs = sampler_input.links(sampling, graph) if of_links else _nodes(sampler_input, graph)
    seed = 0 if config.seed is None else config.seed
    batching = Batching(
        config.batch_size, bool(config.shuffle), bool(config.drop_last), "drop" if config.shuffle else "pad", seed, rank=0, world_size=1
    )
    limits = RuntimeOptions(batch_timeout_s=batch_timeout_s)
    return LoaderPlan(graph.store, inputs, sampling, batching, backend.to_json(), limits, placement), graph


def _nodes(sampler_input: Any, graph: GraphHandle) -> Inputs:
    ids = sampler_input.node
    nodes = resolve_input_nodes(ids if sampler_input.input_type is None else (sampler_input.input_type, ids), graph)
    # Seeds with labels say themselves what they are in a plan.
    return sampler_input.anchors(nodes) if hasattr(sampler_input, "anchors") else nodes


def _sampling(store: Store, config: Any, options: SamplerOptions | None) -> Sampling:
    weight, with_edge = store.options.weight if config.with_weight else None, bool(config.with_edge)
    if isinstance(options, PPRSamplerOptions):
        return options.sampling(store.schema, EdgeUse(store.edge_dir, weight, with_edge=with_edge))
    fan_outs = whole_fan_outs(config.num_neighbors, store.schema)
    subgraph_type: SubgraphType = "induced" if config.sampling_type == SamplingType.SUBGRAPH else "directional"
    return NeighborSampling(fan_outs, False, store.edge_dir, weight, with_edge, subgraph_type=subgraph_type)


def stored(dataset: Any) -> Store:
    """The store behind a dataset.

    Raises:
        PlanError: There is none, or it is no dataset of ours.
    """
    store: Store | None = getattr(dataset, "store", None)
    if store is None and getattr(dataset, "num_partitions", 1) > 1:
        raise PlanError(
            f"the dataset is part {dataset.partition_idx} of {dataset.num_partitions}, without a store: the other parts are elsewhere",
            "loaders and servers on the network put the parts of init_graph() together; else make a store of the whole graph "
            "with gnnkit.partition(data, num_parts), and open each part with DistDataset.from_store",
        )
    if store is None:
        raise PlanError(
            f"the dataset is a {type(dataset).__name__} without a store and without a graph",
            "use gnnkit.distributed.DistDataset.from_store(...), load() of a store or of graphlearn-torch's partitions, or init_graph()",
        )
    return store


def _placement(dataset: DistDataset, runtime: DistributedRuntimeInfo | None) -> Placement | None:
    """Host k holds part k; None where one host holds everything."""
    if runtime is None or runtime.node_world_size == 1 or dataset.num_partitions == 1:
        return None
    if dataset.num_partitions != runtime.node_world_size or dataset.partition_idx != runtime.node_rank:
        raise PlanError(
            f"host {runtime.node_rank} of {runtime.node_world_size} has part {dataset.partition_idx} of {dataset.num_partitions}",
            "give each host the part of its own number: DistDataset.from_store(store, partition_idx=runtime.node_rank), "
            f"of a store with {runtime.node_world_size} parts",
        )
    return Placement(tuple((part,) for part in range(runtime.node_world_size)))

"""``DistNeighborLoader``: k-hop neighbourhoods of nodes, with the arguments of GiGL's loader and of graphlearn-torch's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gnnkit.distributed import process_group
from gnnkit.distributed.base_loader import BaseDistLoader
from gnnkit.distributed.loader_plan import stored
from gnnkit.distributed.resolve import DistributedContext, resolve_runtime
from gnnkit.distributed.runtime_info import DistributedRuntimeInfo
from gnnkit.distributed.sampler_options import KHopNeighborSamplerOptions, SamplerOptions, resolve_sampler_options
from gnnkit.distributed.sampling_producer import DistSamplingProducer
from gnnkit.distributed.seed_nodes import resolve_seeds
from gnnkit.distributed.worker_options import check_worker_options, create_colocated_worker_options
from gnnkit.errors import PlanError
from gnnkit.runtime.exchange import environment_int
from gnnkit.schema import EdgeDir, EdgeType, NodeType
from gnnkit.vendor import glt

if TYPE_CHECKING:
    import torch

    from gnnkit.distributed.dataset import DistDataset

_WORKER_CONCURRENCY = 4


class DistNeighborLoader(BaseDistLoader):
    """Samples the neighbourhoods of nodes; takes GiGL's arguments, and graphlearn-torch's.

    Where the two libraries have different words for one thing, give one of them: ``dataset`` or ``data``, ``pin_memory_device``
    or ``to_device``, ``seed`` or ``random_seed``, ``num_workers``, ``worker_concurrency`` and ``channel_size`` or
    ``worker_options``. All but the first three are given by name, because the libraries order them differently.

    Seeds that are given are this process's own: nobody deals them to other processes. Left out, the nodes of the dataset's part are
    dealt to the processes of this host, and some may have one batch more than others; ``gnnkit.GraphLoader`` gives every process the
    same number.

    Args:
        dataset: A dataset of a store.
        num_neighbors: Fan-out per hop, one list or ``{edge type: list}``; -1 takes all neighbours, 0 none. Label edges have none.
        input_nodes: Ids ``[n]``, or ``(node type, ids)`` for a typed graph. None: the nodes of the dataset's part. A homogeneous
            graph with labels takes ids and gives ``Data``; with ``(node type, ids)`` it gives ``HeteroData``.
        data: See ``dataset``.
        num_workers: Sampling processes, 1 unless given; 0 samples in this process.
        batch_size: Seeds per batch.
        context: GiGL's legacy description of a run; see ``resolve_runtime``.
        local_process_rank: See ``resolve_runtime``.
        local_process_world_size: See ``resolve_runtime``.
        pin_memory_device: See ``to_device``.
        to_device: Where batches are copied to; None: a CUDA device by local rank where there are some, else the CPU.
        worker_concurrency: Batches that a process is given at a time, 4 unless given.
        channel_size: The most memory for batches under way, in bytes or as "4GB"; None: as much as they take.
        prefetch_size: Of the graph-store mode only.
        process_start_gap_seconds: See ``BaseDistLoader``.
        max_concurrent_producer_inits: See ``BaseDistLoader``.
        num_cpu_threads: Taken and not used: sampling uses no threads of torch's.
        shuffle: Whether an epoch visits the seeds in a fresh order.
        drop_last: Whether a last batch of fewer seeds is left out.
        with_edge: Whether batches have ``edge`` ids; None: where edges have features.
        with_weight: Whether neighbours are drawn in proportion to the weights that the store was built with.
        edge_dir: The direction that the store is compressed for; None is that.
        collect_features: Whether batches have ``x`` and ``edge_attr``.
        sampler_options: ``KHopNeighborSamplerOptions`` with the same fan-outs, or None.
        non_blocking_transfers: See ``BaseDistLoader``.
        seed: Random seed, 0 unless given: the same seed gives the same epochs.
        random_seed: See ``seed``.
        worker_options: Mp or collocated options, in place of ``num_workers`` and its fellows. ``rpc_timeout`` is the deadline of one
            wait for a batch; addresses, ports and devices are not used.

    Raises:
        PlanError: An argument is unusable or does not fit another; nothing was started.
        GnnkitError: As ``Backend.open``.
    """

    def __init__(  # noqa: PLR0913
        self,
        dataset: DistDataset | None = None,
        num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]] | None = None,
        input_nodes: torch.Tensor | tuple[NodeType, torch.Tensor] | None = None,
        *,
        data: DistDataset | None = None,
        num_workers: int | None = None,
        batch_size: int = 1,
        context: DistributedContext | None = None,
        local_process_rank: int | None = None,
        local_process_world_size: int | None = None,
        pin_memory_device: torch.device | str | None = None,
        to_device: torch.device | str | None = None,
        worker_concurrency: int | None = None,
        channel_size: int | str | None = None,
        prefetch_size: int | None = None,
        process_start_gap_seconds: float = 0.0,
        max_concurrent_producer_inits: int | None = None,
        num_cpu_threads: int | None = None,
        shuffle: bool = False,
        drop_last: bool = False,
        with_edge: bool | None = None,
        with_weight: bool = False,
        edge_dir: EdgeDir | None = None,
        collect_features: bool = True,
        sampler_options: SamplerOptions | None = None,
        non_blocking_transfers: bool = True,
        seed: int | None = None,
        random_seed: int | None = None,
        worker_options: Any = None,
    ) -> None:
        dataset = _one_of("dataset", dataset, "data", data)
        stored(dataset)
        fan_outs, options = _sampler_options(num_neighbors, sampler_options)
        if prefetch_size is not None:
            raise PlanError(f"prefetch_size={prefetch_size} belongs to the graph-store mode", "leave it out: see worker_concurrency")
        runtime = _runtime(context, local_process_rank, local_process_world_size)
        try:
            own = {"num_workers": num_workers, "worker_concurrency": worker_concurrency, "channel_size": channel_size}
            workers = _worker_options(worker_options, own, dataset.num_partitions, runtime)
            node_type, ids, plain = resolve_seeds(input_nodes, dataset, runtime)
            schema = replace(dataset.schema, is_homogeneous_with_labeled_edge_type=plain)
            number = _one_of("seed", seed, "random_seed", random_seed, default=0)
            config = self.create_sampling_config(fan_outs, schema, batch_size, shuffle, drop_last, with_weight=with_weight, seed=number)
            config.with_edge = config.with_edge if with_edge is None else with_edge
            config.edge_dir, config.collect_features = edge_dir or config.edge_dir, collect_features
            seeds = glt.attribute("sampler.NodeSamplerInput")(ids, node_type)
            producer = DistSamplingProducer(dataset, seeds, config, workers, self.create_colocated_channel(workers), options)
            super().__init__(
                dataset,
                seeds,
                schema,
                workers,
                config,
                _device(_one_of("pin_memory_device", pin_memory_device, "to_device", to_device, default=None), runtime),
                runtime,
                producer,
                options,
                process_start_gap_seconds,
                max_concurrent_producer_inits,
                non_blocking_transfers,
            )
        finally:
            runtime.cleanup()


def _one_of(name: str, value: Any, other_name: str, other: Any, **default: Any) -> Any:
    """The one that is given of two words for the same thing."""
    if value is not None and other is not None:
        raise PlanError(f"both {name} and {other_name} are given", "they are two words for the same thing: give one")
    found = other if value is None else value
    if found is None and not default:
        raise PlanError(f"{name} is missing", f"give {name} or, which is the same, {other_name}")
    return default["default"] if found is None else found


def _sampler_options(num_neighbors: Any, options: SamplerOptions | None) -> tuple[Any, SamplerOptions]:
    if num_neighbors is None:
        if not isinstance(options, KHopNeighborSamplerOptions):
            raise PlanError("num_neighbors is missing", "give one number per hop, for example [15, 10, 5]")
        num_neighbors = options.num_neighbors
    return num_neighbors, resolve_sampler_options(num_neighbors, options)


def _runtime(context: Any, local_rank: int | None, local_world_size: int | None) -> DistributedRuntimeInfo:
    """Where this process stands; alone, where nothing says otherwise."""
    if context is not None or process_group.is_initialized() or environment_int("WORLD_SIZE") is not None:
        return resolve_runtime(context, local_rank, local_world_size)
    group = glt.attribute("distributed.get_context", "DistNeighborLoader")()
    rank, world_size = (0, 1) if group is None else (group.rank, group.world_size)
    return resolve_runtime(None, local_rank, local_world_size, rank=rank, world_size=world_size)


def _worker_options(given: Any, own: dict[str, Any], num_partitions: int, runtime: DistributedRuntimeInfo) -> Any:
    named = {name: value for name, value in own.items() if value is not None}
    if given is not None:
        if named:
            raise PlanError(f"both worker_options and {list(named)} are given", "worker_options say it all: leave the others out")
        check_worker_options(given)
        return given
    count = named.get("num_workers", 1)
    if count == 0 and not isinstance(count, bool):
        if len(named) > 1:
            raise PlanError(f"num_workers=0 samples in this process, and {list(named)[1:]} are about others", "leave them out")
        return glt.attribute("distributed.CollocatedDistSamplingWorkerOptions")(runtime.master_ip_address, 0)
    return create_colocated_worker_options(
        dataset_num_partitions=num_partitions,
        num_workers=count,
        worker_concurrency=named.get("worker_concurrency", _WORKER_CONCURRENCY),
        master_ip_address=runtime.master_ip_address,
        master_port=0,
        channel_size=named.get("channel_size"),
        pin_memory=False,
    )


def _device(device: Any, runtime: DistributedRuntimeInfo) -> Any:
    import torch

    if device is not None or not torch.cuda.is_available():
        return device
    return torch.device("cuda", runtime.local_rank % torch.cuda.device_count())

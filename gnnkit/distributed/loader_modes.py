"""Arguments of loaders, checked, and what loaders make of them on this host and on servers."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from gnnkit.backends.base import check_count, check_seconds
from gnnkit.cluster.hosts import environment_int
from gnnkit.distributed import process_group
from gnnkit.distributed.connection import ConnectionChannel, DistSamplingProducer
from gnnkit.distributed.context import check_rank
from gnnkit.distributed.dataset import DistDataset
from gnnkit.distributed.dataset_values import trainers
from gnnkit.distributed.dist_server import DistServer
from gnnkit.distributed.loader_options import (
    KHopNeighborSamplerOptions,
    PPRSamplerOptions,
    SamplerOptions,
    check_prefetch,
    check_worker_options,
    create_colocated_worker_options,
    is_remote,
    remote_options,
    resolve_sampler_options,
)
from gnnkit.distributed.loader_plan import stored
from gnnkit.distributed.remote_dataset import RemoteDistDataset
from gnnkit.distributed.resolve import DistributedRuntimeInfo, resolve_runtime
from gnnkit.distributed.seeds import resolve_seeds, resolve_server_seeds
from gnnkit.errors import PlanError
from gnnkit.vendor import glt

_PRODUCER_PARTS = ("init", "produce_all", "shutdown", "output_channel")


def check_arguments(dataset: Any, sampler_input: Any, worker_options: Any, producer: Any, process_start_gap_seconds: Any) -> None:
    """Makes sure that a loader's arguments are of the kinds that go together.

    Raises:
        PlanError: They are not.
    """
    on_servers = isinstance(dataset, RemoteDistDataset)
    check_worker_options(worker_options, on_servers=on_servers)
    check_seconds("process_start_gap_seconds", process_start_gap_seconds, 0)
    if on_servers:
        _check_server_inputs(sampler_input, dataset)
    else:
        _check_local(dataset, sampler_input, producer)


def _check_server_inputs(inputs: Any, dataset: RemoteDistDataset) -> None:
    count = dataset.cluster_info.num_storage_nodes
    if not isinstance(inputs, list) or len(inputs) != count or not all(isinstance(seeds, _kinds()) for seeds in inputs):
        raise PlanError(f"sampler_input must be a list with a NodeSamplerInput for each of {count} servers, got {inputs!r:.200}")


def _kinds() -> tuple[Any, ...]:
    """The records of seeds: nodes and links."""
    return glt.attribute("sampler.NodeSamplerInput"), glt.attribute("sampler.EdgeSamplerInput")


def _check_local(dataset: Any, sampler_input: Any, producer: Any) -> None:
    if not isinstance(sampler_input, _kinds()):
        raise PlanError(
            f"sampler_input must be a NodeSamplerInput, got a {type(sampler_input).__name__}",
            "lists are of the graph-store mode",
        )
    missing = [name for name in _PRODUCER_PARTS if not hasattr(producer, name)]
    if missing:
        raise PlanError(
            f"producer is a {type(producer).__name__} without {missing}",
            "give a DistSamplingProducer, or an object with init(), produce_all(), shutdown() and output_channel",
        )
    if isinstance(producer, DistSamplingProducer) and dataset is not None:
        stored(dataset)
    context = glt.attribute("distributed.get_context")()
    if context is not None and not context.is_worker():
        raise PlanError(
            f"this process is a {context.role.name.lower()} in graphlearn-torch's group {context.group_name!r}, and no worker",
            "make the loader where init_worker_group() was called, or in a process that is in none of graphlearn-torch's groups",
        )


def initialize_colocated_sampling_worker(
    *,
    local_rank: int,
    local_world_size: int,
    node_rank: int,
    node_world_size: int,
    master_ip_address: str,
    device: torch.device,
    num_cpu_threads: int | None,
) -> None:
    """Enters this process into graphlearn-torch's worker group of its local rank, which spans the nodes.

    That is all it does: it changes neither the threads nor the affinity of this process, starts no RPC, and listens nowhere. What
    gnnkit samples with lives in processes of its own and needs none of it; graphlearn-torch's ``get_context()`` knows the group then.

    Args:
        local_rank: This process among those of its node.
        local_world_size: Processes of each node.
        node_rank: This process's node.
        node_world_size: Number of nodes.
        master_ip_address: Taken and not used: nothing has to be met there.
        device: Taken and not used: sampling runs on the CPU.
        num_cpu_threads: Taken and not used: GiGL's torch threads, ``DEFAULT_NUM_CPU_THREADS`` by default.

    Raises:
        PlanError: A rank is not below its size, or graphlearn-torch is not installed.
    """
    check_rank("local_rank", local_rank, local_world_size)
    check_rank("node_rank", node_rank, node_world_size)
    glt.attribute("distributed.init_worker_group", "initialize_colocated_sampling_worker")(
        node_world_size, node_rank, f"gnnkit-sampling-{local_rank}"
    )


_WORKER_CONCURRENCY = _PREFETCH_SIZE = 4
_DATASETS = (
    "a DistDataset samples here, a RemoteDistDataset on servers; "
    "without either, RemoteDistSamplingWorkerOptions mean the servers that were joined"
)


def one_of(name: str, value: Any, other_name: str, other: Any, hint: str = "", **default: Any) -> Any:
    """The one that is given of two words for the same thing.

    Raises:
        PlanError: Both are given, or none and there is no ``default``.
    """
    if value is not None and other is not None:
        raise PlanError(f"both {name} and {other_name} are given", "they are two words for the same thing: give one")
    found = other if value is None else value
    if found is None and not default:
        raise PlanError(f"{name} is missing", f"give {name} or, which is the same, {other_name}{hint and '; '}{hint}")
    return default["default"] if found is None else found


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


def runtime_of(context: Any, local_rank: int | None, local_world_size: int | None, inputs: Any) -> DistributedRuntimeInfo:
    """Returns this process's place in the run; a process without a run is the only one.

    Args:
        context: See ``resolve_runtime``.
        local_rank: See ``resolve_runtime``.
        local_world_size: See ``resolve_runtime``.
        inputs: Seeds or links as they were given. Those of a dataset's part are dealt to the processes of its host, which have to be known.

    Raises:
        PlanError: See ``resolve_runtime``.
    """
    if context is not None or process_group.is_initialized() or environment_int("WORLD_SIZE") is not None:
        return resolve_runtime(context, local_rank, local_world_size)
    group = glt.attribute("distributed.get_context", "DistNeighborLoader")()
    rank, world_size = (0, 1) if group is None else (group.rank, group.world_size)
    which = inputs[-1] if isinstance(inputs, tuple) else inputs
    if local_rank is local_world_size is None and which is not None and not isinstance(which, str):
        # Graphlearn-torch's group says nothing of hosts, and nothing is dealt.
        local_rank, local_world_size = rank, world_size
    return resolve_runtime(None, local_rank, local_world_size, rank=rank, world_size=world_size)


class LocalMode:
    """Sampling on this host.

    Args:
        dataset: A dataset of a store, or of values.
        options: A loader's options, or None: they may say where processes meet that hold parts as values.

    Attributes:
        dataset: See above; of a store from here on.

    Raises:
        PlanError: There is no store behind it, and none can be made.
        GnnkitError: See ``store_of_parts``.
    """

    def __init__(self, dataset: DistDataset, options: Any) -> None:
        if isinstance(dataset, DistDataset):
            dataset.meet(trainers(dataset, options))
        stored(dataset)
        self.dataset = dataset

    def worker_options(self, given: Any, own: dict[str, Any], runtime: DistributedRuntimeInfo) -> Any:
        """Options as they are given, or made of the arguments."""
        if own.pop("prefetch_size") is not None:
            raise PlanError("prefetch_size belongs to the graph-store mode", "leave it out: see worker_concurrency")
        named = _named(given, own)
        if given is not None:
            check_worker_options(given, on_servers=False)
            return given
        count = named.get("num_workers", 1)
        if count == 0 and not isinstance(count, bool):
            if len(named) > 1:
                raise PlanError(f"num_workers=0 samples in this process, and {list(named)[1:]} are about others", "leave them out")
            return glt.attribute("distributed.CollocatedDistSamplingWorkerOptions")(runtime.master_ip_address, 0)
        return create_colocated_worker_options(
            dataset_num_partitions=self.dataset.num_partitions,
            num_workers=count,
            worker_concurrency=named.get("worker_concurrency", _WORKER_CONCURRENCY),
            master_ip_address=runtime.master_ip_address,
            master_port=0,
            channel_size=named.get("channel_size"),
            pin_memory=False,
        )

    def seeds(self, input_nodes: Any, runtime: DistributedRuntimeInfo) -> tuple[Any, bool]:
        """The loader's seeds in graphlearn-torch's record, and whether batches are plain; see ``resolve_seeds``."""
        node_type, ids, plain = resolve_seeds(input_nodes, self.dataset, runtime)
        return glt.attribute("sampler.NodeSamplerInput")(ids, node_type), plain

    def producer(self, seeds: Any, config: Any, workers: Any, options: SamplerOptions) -> DistSamplingProducer:
        """Makes the producer that samples the seeds."""
        return DistSamplingProducer(self.dataset, seeds, config, workers, ConnectionChannel(workers), options)


class RemoteMode:
    """Sampling on servers.

    Args:
        dataset: Their graph.
        options: Remote options, or None for all servers.
        is_shared: Whether trainers whose options have the same ``worker_key`` divide the batches, as graphlearn-torch's do.

    Attributes:
        dataset: See above.
        servers: The servers that sample, in the order of the options.

    Raises:
        PlanError: The options name a server that does not exist, or one twice.
    """

    def __init__(self, dataset: RemoteDistDataset, options: Any, *, is_shared: bool) -> None:
        self.dataset, self._is_shared = dataset, is_shared
        count = dataset.cluster_info.num_storage_nodes
        named = options.server_rank if options is not None and is_remote(options) else range(count)
        self.servers = [named] if isinstance(named, int) else list(named)
        if not self.servers or len(set(self.servers)) < len(self.servers) or not set(self.servers) <= set(range(count)):
            raise PlanError(f"server_rank is {named!r}, and there are {count} servers", "name each server once, from 0")

    def worker_options(self, given: Any, own: dict[str, Any], runtime: DistributedRuntimeInfo) -> Any:
        """Options as they are given, or made of the arguments."""
        named = _named(given, own)
        if given is not None:
            check_worker_options(given, on_servers=True)
            return given
        count, concurrency = named.get("num_workers", 1), named.get("worker_concurrency", _WORKER_CONCURRENCY)
        check_count("num_workers", count, 1)
        check_count("worker_concurrency", concurrency, 1)
        prefetch = named.get("prefetch_size", min(_PREFETCH_SIZE, count * concurrency))
        return remote_options(
            self.dataset.cluster_info,
            0,
            num_workers=count,
            worker_concurrency=concurrency,
            buffer_size=named.get("channel_size"),
            prefetch_size=check_prefetch(prefetch, count * concurrency),
        )

    def seeds(self, input_nodes: Any, runtime: DistributedRuntimeInfo) -> tuple[Any, bool]:
        """The same, a record for each server; see ``resolve_server_seeds``."""
        node_type, ids, plain = resolve_server_seeds(input_nodes, self.dataset, self.servers)
        return [glt.attribute("sampler.NodeSamplerInput")(own, node_type) for own in ids], plain

    def producer(self, seeds: Any, config: Any, workers: Any, options: SamplerOptions) -> Any:
        """Returns the producer that the loader asks servers for; None for streams of its own."""
        of_nodes = config.sampling_type is glt.attribute("sampler.SamplingType").NODE
        return DistServer.create_sampling_producer if self._is_shared and of_nodes and workers.worker_key is not None else None


def _named(given: Any, own: dict[str, Any]) -> dict[str, Any]:
    """Arguments about workers that are given."""
    named = {name: value for name, value in own.items() if value is not None}
    if given is not None and named:
        raise PlanError(f"both worker_options and {list(named)} are given", "worker_options say it all: leave the others out")
    return named


def device_of(device: Any, runtime: DistributedRuntimeInfo) -> Any:
    """The device that is given, else a CUDA device by local rank where there are some, else None."""
    if device is not None or not torch.cuda.is_available():
        return device
    return torch.device("cuda", runtime.local_rank % torch.cuda.device_count())


Mode: TypeAlias = LocalMode | RemoteMode


def mode_of(dataset: Any, data: Any, worker_options: Any) -> Mode:
    """Determines where the batches of a dataset are sampled: by this host's workers or by servers.

    Args:
        dataset: A dataset under GiGL's name, or None.
        data: The same under graphlearn-torch's. Where both are None, remote options mean the graph of the servers that were joined.
        worker_options: A loader's options, or None.

    Raises:
        PlanError: It is missing, given twice, or a dataset of no store; or options name servers that do not exist.
    """
    is_joined = dataset is None and data is None and worker_options is not None and is_remote(worker_options)
    found = RemoteDistDataset.joined() if is_joined else one_of("dataset", dataset, "data", data, _DATASETS)
    return (
        RemoteMode(found, worker_options, is_shared=is_joined) if isinstance(found, RemoteDistDataset) else LocalMode(found, worker_options)
    )

"""``BaseDistLoader``: a graphlearn-torch loader with GiGL's arguments, where it samples, and the one that a ``GraphLoader`` lends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from gnnkit.backends import backend_from_json
from gnnkit.backends.colocated import Colocated
from gnnkit.backends.devices import resolve_device
from gnnkit.bounds import check_seconds, whole_number
from gnnkit.cluster.hosts import environment_int
from gnnkit.distributed import process_group
from gnnkit.distributed.connection import ConnectionChannel, DistSamplingProducer, batch_counts, remote_producer
from gnnkit.distributed.dataset import DistDataset
from gnnkit.distributed.dataset_values import trainers
from gnnkit.distributed.dist_server import DistServer
from gnnkit.distributed.glt_records import create_graph_store_worker_options, remote_options
from gnnkit.distributed.graph_client import check_rank
from gnnkit.distributed.loader_options import (
    KHopNeighborSamplerOptions,
    PPRSamplerOptions,
    SamplerOptions,
    check_prefetch,
    check_worker_options,
    create_colocated_worker_options,
    create_sampling_config,
    is_collocated,
    is_remote,
    resolve_sampler_options,
    stored,
)
from gnnkit.distributed.remote_dataset import RemoteDistDataset
from gnnkit.distributed.resolve import DistributedRuntimeInfo, resolve_runtime
from gnnkit.distributed.sample_message import BatchMaker, MessageFormat, SampleMessage
from gnnkit.distributed.seeds import resolve_seeds, resolve_server_seeds
from gnnkit.distributed.store_views import DatasetSchema
from gnnkit.errors import BatchTimeout, LoaderClosed, PlanError
from gnnkit.loader.epoch import DeviceTransfer, ProcessBound
from gnnkit.loader.pipeline import Pipeline
from gnnkit.plan import InputNodes, LoaderPlan, NeighborSampling
from gnnkit.sampling.collate import specs_of
from gnnkit.sampling.subgraph import BatchKey
from gnnkit.schema import HOMOGENEOUS_NODE_TYPE, ArraySpec
from gnnkit.vendor import glt

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData


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
        count = whole_number("num_workers", named.get("num_workers", 1), 1)
        concurrency = whole_number("worker_concurrency", named.get("worker_concurrency", _WORKER_CONCURRENCY), 1)
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


# What a loader of graphlearn-torch's has of its configuration.
_OF_CONFIG = (
    *("sampling_type", "num_neighbors", "batch_size", "shuffle", "drop_last"),
    *("with_edge", "with_weight", "collect_features", "edge_dir"),
)

if TYPE_CHECKING:
    DistLoader = object
else:
    DistLoader = glt.attribute("distributed.DistLoader", "BaseDistLoader")


class BaseDistLoader(ProcessBound, DistLoader):
    """Iterates over the batches of a producer.

    It *is a* ``graphlearn_torch.distributed.DistLoader`` and has its attributes, but starts no sampler, no RPC and no process of
    graphlearn-torch's. Every iteration is the next epoch, also when the one before was abandoned; a newer iteration ends the one that
    is under way, whose iterator then says so. Batches are those of ``gnnkit.GraphLoader`` for the same seeds, with graphlearn-torch's
    names ``node``, ``edge`` and ``batch`` beside PyG's.

    Args:
        dataset: A dataset of a store; or a ``RemoteDistDataset``, whose servers sample.
        sampler_input: ``NodeSamplerInput``: this trainer's seeds. On servers a list with those of each: no batch has seeds of two, and
            batches come from one server after the other, in turn.
        dataset_schema: Types and features. Marked as homogeneous with labels, batches come as ``Data``.
        worker_options: Mp or collocated options; remote ones on servers.
        sampling_config: As ``create_sampling_config`` makes it.
        device: The device that batches are copied to.
        runtime: Where this process stands.
        producer: What samples: a ``DistSamplingProducer``, or any object with ``init()``, ``produce_all()``, ``shutdown()`` and an
            ``output_channel`` whose ``recv()`` gives messages as graphlearn-torch's samplers send them. Messages of theirs name no epoch:
            one's own producer has ``produce_all`` drop what is left of an epoch that was abandoned. On servers it is None; or
            ``DistServer.create_sampling_producer``, where trainers whose options have the same ``worker_key`` register the same seeds and
            divide the batches among themselves: its length is then that of all of them together, and each gets some of them.
        sampler_options: How it samples; kept for subclasses.
        process_start_gap_seconds: The trainer of local rank ``i`` waits ``i`` times as long before it starts its producer. Nothing of
            gnnkit needs such a gap: memory is shared.
        max_concurrent_producer_inits: Sampling processes of this loader that may be starting at the same time; None: all. Those of
            servers run already.
        non_blocking_transfers: On CUDA, copies the next batch while this one is worked on; False copies each when it is asked for.

    Raises:
        PlanError: An argument is unusable or does not fit another; nothing was started.
        GnnkitError: As ``Backend.open``.
    """

    # Until something has been started, also where the constructor fails.
    _shutdowned = True

    # Of graphlearn-torch's class.
    edge_dir: Any
    _node_types: Any
    _edge_types: Any
    _channel: Any
    _set_ntypes_and_etypes: Any
    # Of another kind on servers.
    data: DistDataset | None
    _input_len: Any
    _num_expected: float

    # What makes batches of messages.
    _maker: type[BatchMaker] = BatchMaker

    resolve_runtime = staticmethod(resolve_runtime)
    create_sampling_config = staticmethod(create_sampling_config)
    create_colocated_worker_options = staticmethod(create_colocated_worker_options)
    create_graph_store_worker_options = staticmethod(create_graph_store_worker_options)
    initialize_colocated_sampling_worker = staticmethod(initialize_colocated_sampling_worker)

    def __init__(  # noqa: PLR0913
        self,
        dataset: DistDataset | RemoteDistDataset | None,
        sampler_input: Any,
        dataset_schema: DatasetSchema,
        worker_options: Any,
        sampling_config: Any,
        device: torch.device | str | None,
        runtime: DistributedRuntimeInfo,
        producer: Any,
        sampler_options: SamplerOptions,
        process_start_gap_seconds: float = 0.0,
        max_concurrent_producer_inits: int | None = None,
        non_blocking_transfers: bool = True,
    ) -> None:
        check_arguments(dataset, sampler_input, worker_options, producer, process_start_gap_seconds)
        target = resolve_device(device)
        if isinstance(dataset, RemoteDistDataset):
            producer = remote_producer(dataset, sampler_input, sampling_config, worker_options, sampler_options, producer)
        self._set_glt_attributes(dataset, sampler_input, sampling_config, worker_options, target, runtime, producer)
        self._is_homogeneous_with_labeled_edge_type = dataset_schema.is_homogeneous_with_labeled_edge_type
        self._node_feature_info = dataset_schema.node_feature_info
        self._edge_feature_info = dataset_schema.edge_feature_info
        self._sampler_options, self._non_blocking_transfers = sampler_options, non_blocking_transfers
        self._transfer = DeviceTransfer(target) if target is not None and non_blocking_transfers else None
        self._iteration, self._is_borrowed = 0, False
        self._ahead: tuple[Any, Any] | Exception | None = None
        self._own = producer if isinstance(producer, DistSamplingProducer) else None
        if self._own is not None:
            self._own.prepare(runtime, target, max_concurrent_producer_inits)
        if runtime.local_rank and process_start_gap_seconds:
            threading.Event().wait(runtime.local_rank * process_start_gap_seconds)
        self._producer, self._shutdowned = producer, False
        try:
            producer.init()
            self._channel = producer.output_channel
            if hasattr(producer, "producer_ids"):  # as graphlearn-torch's loaders have it where servers sample
                self._producer_id_list = producer.producer_ids
            types = (None if dataset_schema.edge_types is None else self._node_types, self._edge_types, self.edge_dir, self._input_type)
            by_ppr = isinstance(sampler_options, PPRSamplerOptions)
            opened = None if self._own is None else self._own.connection.format
            messages = opened or MessageFormat.of(*types, by_ppr=by_ppr)
            self._make = self._maker.of(messages, dataset_schema, sampling_config, target, non_blocking=non_blocking_transfers)
        except BaseException:
            self.shutdown()
            raise

    def _set_glt_attributes(
        self,
        dataset: DistDataset | RemoteDistDataset | None,
        sampler_input: Any,
        config: Any,
        worker_options: Any,
        device: torch.device | None,
        runtime: DistributedRuntimeInfo,
        producer: Any,
    ) -> None:
        """Sets what ``graphlearn_torch.distributed.DistLoader.__init__`` of version 0.2.4 would."""
        self.__dict__.update({name: getattr(config, name) for name in _OF_CONFIG})
        self.input_data, self.sampling_config, self.worker_options = sampler_input, config, worker_options
        self.to_device = torch.device("cpu") if device is None else device
        self._num_recv = self._epoch = 0
        self._is_remote_worker = isinstance(dataset, RemoteDistDataset)
        self._is_collocated_worker = not self._is_remote_worker and is_collocated(worker_options)
        self._is_mp_worker = not self._is_remote_worker and not self._is_collocated_worker
        self._with_channel = not self._is_collocated_worker
        counts = batch_counts(sampler_input if self._is_remote_worker else [sampler_input], config)
        self._num_expected = self._num_batches = sum(counts)
        if isinstance(dataset, RemoteDistDataset):
            self.data = None
            self.num_data_partitions, self.data_partition_idx = dataset.cluster_info.num_storage_nodes, runtime.node_rank
            self._set_ntypes_and_etypes(dataset.fetch_node_types() or [HOMOGENEOUS_NODE_TYPE], dataset.fetch_edge_types() or [])
            self._server_rank_list, self._input_data_list = list(range(len(sampler_input))), sampler_input
            self._input_len, self._input_type = [len(seeds) for seeds in sampler_input], sampler_input[0].input_type
            self._num_expected = float("inf")  # the channel says when an epoch is over
            return
        self.data = dataset
        self.num_data_partitions, self.data_partition_idx = (1, 0) if dataset is None else (dataset.num_partitions, dataset.partition_idx)
        self._set_ntypes_and_etypes(*((None, None) if dataset is None else (dataset.get_node_types(), dataset.get_edge_types())))
        self._input_len, self._input_type = len(sampler_input), sampler_input.input_type
        if self._is_collocated_worker:
            self._collocated_producer = producer
        else:
            self._mp_producer = producer
            worker_options._set_worker_ranks(runtime)

    @staticmethod
    def create_colocated_channel(worker_options: Any) -> ConnectionChannel:
        """Makes the channel that a ``DistSamplingProducer`` hands its batches to.

        Args:
            worker_options: As ``create_colocated_worker_options`` makes them.
        """
        return ConnectionChannel(worker_options)

    def __len__(self) -> int:
        """Batches of an epoch of this trainer."""
        return self._num_batches if self._own is None else sum(map(len, self._own.connection.loaders))

    def __iter__(self) -> Iterator[Data | HeteroData]:
        """Starts the next epoch; an iteration that is under way ends."""
        self._check_open()
        self._iteration, self._ahead, self._num_recv = self._iteration + 1, None, 0
        self._producer.produce_all()
        self._epoch += 1
        return _Epoch(self, self._iteration)

    def __next__(self) -> Data | HeteroData:
        """The next batch of the epoch that was begun last.

        Raises:
            StopIteration: The epoch is over, or none has begun.
            GnnkitError: As ``BatchStream.recv``.
        """
        self._check_open()
        # A producer of ours says itself when its epoch is over.
        if self._iteration == 0 or (self._own is None and self._num_recv == self._num_expected):
            raise StopIteration
        ahead, self._ahead = self._ahead, None
        if isinstance(ahead, Exception):
            raise ahead
        message = None if ahead else self._receive()
        self._num_recv += 1  # also where the message is an error: its producer counts it
        data, event = ahead or self._collate(message)
        if self._transfer is not None:
            data = self._transfer.finish(data, event)
            # The lender of a connection counts its batches: none is taken ahead of its time.
            if self._own is not None and self._transfer.looks_ahead and not self._is_borrowed:
                self._ahead = self._take_ahead(self._own)
        return data

    def shutdown(self) -> None:
        """Ends what samples; batches that were handed out stay valid. Repeating it does nothing."""
        if not self._shutdowned:
            self._shutdowned, self._ahead = True, None
            self._producer.shutdown()

    def __del__(self) -> None:
        if not self._shutdowned and not self._is_borrowed:
            self.shutdown()

    def _collate_fn(self, msg: SampleMessage) -> Data | HeteroData:
        """Makes a batch of a message, on the loader's device; a subclass may add to it.

        On CUDA with ``non_blocking_transfers`` it runs on a stream of its own, ordered before the batch is handed out: what a subclass
        does to the batch overlaps with the training step too.

        Raises:
            SamplingError: The message holds a traceback instead of a batch, or is none.
        """
        return self._make(msg)

    def _lend(
        self,
        extra: Mapping[str, Any],
        type_extra: Mapping[Any, Mapping[str, Any]],
        specs: Mapping[BatchKey, ArraySpec],
        transform: Callable[[Any], Any] | None,
    ) -> None:
        """Marks the connection as that of a GraphLoader, whose batches these are: only ``shutdown`` closes it, not this one's own end."""
        self._is_borrowed, self._num_expected = True, len(self)
        homogeneous, dims = self._make.format.homogeneous, {key: spec.dim for key, spec in specs.items() if spec.dim}
        self._make = replace(
            self._make, homogeneous=homogeneous, extra=extra, type_extra=type_extra, dims=dims, transform=transform, shows_labels=True
        )

    def _collate(self, message: Any) -> tuple[Any, Any]:
        if self._transfer is None:
            return self._collate_fn(message), None
        return self._transfer.run(lambda: self._collate_fn(message), message)

    def _receive(self) -> Any:
        timeout_s = float(self.worker_options.rpc_timeout)
        try:
            return self._channel.recv(timeout_ms=int(timeout_s * 1000))
        except glt.attribute("channel.QueueTimeoutError") as error:  # of graphlearn-torch's own channels
            raise BatchTimeout(
                f"no batch within {timeout_s:g} s from {type(self._producer).__name__}", "raise rpc_timeout, or see whether it still runs"
            ) from error

    def _take_ahead(self, producer: DistSamplingProducer) -> tuple[Any, Any] | Exception | None:
        """The next batch if it is ready. Its error is raised in its turn, after the batch before it has been handed out."""
        try:
            return self._collate(producer.connection.receive(0.0))
        except (BatchTimeout, StopIteration):
            return None
        except Exception as error:
            return error

    def _check_open(self) -> None:
        if self._shutdowned:
            raise LoaderClosed("the loader is shut down", "create a new one")


class _Epoch(Iterator[Any]):
    """One iteration of a loader; ends when a newer one begins."""

    def __init__(self, loader: BaseDistLoader, iteration: int) -> None:
        self._loader, self._iteration = loader, iteration

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        if self._loader._iteration != self._iteration:
            raise LoaderClosed("this iteration ended when a newer one of the same loader began", "iterate one at a time")
        return next(self._loader)


_LOOPBACK = "127.0.0.1"


def dist_loader_over(loader: Pipeline) -> BaseDistLoader:
    """A loader with graphlearn-torch's surface over the connection of an open one; see ``GraphLoader.dist_loader``.

    Raises:
        PlanError: It does not sample nodes hop by hop, or graphlearn-torch is not installed.
    """
    if not isinstance(loader.plan.inputs, InputNodes) or not isinstance(loader.plan.sampling, NeighborSampling):
        raise PlanError(
            "dist_loader hands out loaders of nodes that are sampled hop by hop",
            "for links and anchors construct DistLinkNeighborLoader or DistABLPLoader of gnnkit.distributed",
        )
    if loader.plan.sampling.has_roots:
        raise PlanError(
            "dist_loader hands out batches with graphlearn-torch's names, and its batch is the seeds", "leave disjoint and time_attr out"
        )
    plan, schema = loader.plan, DatasetSchema.from_graph(loader.schema, loader.plan.sampling.edge_dir)
    store = loader.store
    dataset = None if store is None else DistDataset.from_store(store, store.local_parts[0])
    config, options = _config(plan, schema), _options(plan)
    seeds = _seeds(loader, homogeneous=schema.edge_types is None)
    batching = plan.batching
    # Which of these ranks share a host does not matter here: the connection is open.
    runtime = DistributedRuntimeInfo(1, 0, batching.rank, batching.world_size, batching.rank, batching.world_size, _LOOPBACK)
    channel = BaseDistLoader.create_colocated_channel(options)
    producer = DistSamplingProducer.over(loader, dataset, seeds, config, options, channel)
    lent = BaseDistLoader(
        dataset, seeds, schema, options, config, loader.device, runtime, producer, KHopNeighborSamplerOptions(config.num_neighbors)
    )
    lent._lend(*loader.graph.shown_extra(), specs_of(loader.schema, plan.sampling.edge_dir), loader.transform)
    return lent


def _config(plan: LoaderPlan, schema: DatasetSchema) -> Any:
    batching, sampling = plan.batching, plan.sampling
    assert isinstance(sampling, NeighborSampling), "nothing else is lent"
    fan_outs = {edge_type: list(fan_out) for edge_type, fan_out in sampling.num_neighbors.items()}
    size, shuffle, is_weighted = batching.batch_size, bool(batching.shuffle), sampling.weight is not None
    config = create_sampling_config([-1], schema, size, shuffle, batching.drop_last, with_weight=is_weighted, seed=batching.seed)
    config.num_neighbors, config.with_edge = next(iter(fan_outs.values())) if schema.edge_types is None else fan_outs, sampling.with_edge
    return config


def _options(plan: LoaderPlan) -> Any:
    """The options that come closest to the loader's backend; nothing is started from them."""
    backend = backend_from_json(plan.backend)
    timeout_s = plan.runtime.batch_timeout_s
    if not isinstance(backend, Colocated):
        return glt.attribute("distributed.CollocatedDistSamplingWorkerOptions")(_LOOPBACK, 0, rpc_timeout=timeout_s)
    return glt.attribute("distributed.MpDistSamplingWorkerOptions")(
        num_workers=backend.num_workers if isinstance(backend.num_workers, int) else 1,
        worker_devices="cpu",
        worker_concurrency=backend.worker_concurrency,
        master_addr=_LOOPBACK,
        master_port=0,
        rpc_timeout=timeout_s,
        channel_size=backend.channel_size,
    )


def _seeds(loader: Pipeline, *, homogeneous: bool) -> Any:
    """The seeds of all ranks: what is dealt to this one is decided batch by batch."""
    inputs = loader.batches.written_out()
    assert isinstance(inputs, InputNodes), "only loaders of nodes are lent"
    whole = np.arange(loader.batches.num_seeds) if inputs.ids is None else np.array(inputs.ids, np.int64)
    return glt.attribute("sampler.NodeSamplerInput")(torch.from_numpy(whole), None if homogeneous else inputs.node_type)

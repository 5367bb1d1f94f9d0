"""``BaseDistLoader``: a graphlearn-torch loader with GiGL's arguments, over a connection of gnnkit's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from gnnkit.distributed.connection import ConnectionChannel, DistSamplingProducer, batch_counts, remote_producer
from gnnkit.distributed.dataset import DistDataset
from gnnkit.distributed.loader_modes import check_arguments, initialize_colocated_sampling_worker
from gnnkit.distributed.loader_options import (
    PPRSamplerOptions,
    SamplerOptions,
    create_colocated_worker_options,
    create_graph_store_worker_options,
    create_sampling_config,
    is_collocated,
)
from gnnkit.distributed.remote_dataset import RemoteDistDataset
from gnnkit.distributed.resolve import DistributedRuntimeInfo, resolve_runtime
from gnnkit.distributed.sample_message import BatchMaker, MessageFormat, SampleMessage
from gnnkit.distributed.store_views import DatasetSchema
from gnnkit.errors import BatchTimeout, LoaderClosed
from gnnkit.loader.epoch import ProcessBound
from gnnkit.loader.transfer import DeviceTransfer, resolve_device
from gnnkit.schema import HOMOGENEOUS_NODE_TYPE
from gnnkit.vendor import glt

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData


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
            # Whoever lends a connection counts its batches: none is taken ahead of its time.
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

    def _lend(self, extra: Mapping[str, Any], type_extra: Mapping[Any, Mapping[str, Any]], transform: Callable[[Any], Any] | None) -> None:
        """Marks the connection as that of a GraphLoader, whose batches these are: only ``shutdown`` closes it, not this one's own end."""
        self._is_borrowed, self._num_expected = True, len(self)
        homogeneous = self._make.format.homogeneous
        self._make = replace(
            self._make, homogeneous=homogeneous, extra=extra, type_extra=type_extra, transform=transform, shows_labels=True
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

"""``BaseDistLoader``: a graphlearn-torch loader with GiGL's arguments, what it gets its batches from, and the one a ``GraphLoader`` lends.

A loader's batches are messages that a channel hands out. A producer opens the channel, here or on servers.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gnnkit.backends import backend_from_json
from gnnkit.backends.colocated import Colocated
from gnnkit.backends.devices import resolve_device
from gnnkit.bounds import check_seconds
from gnnkit.distributed import dist_server
from gnnkit.distributed.dataset import DistDataset
from gnnkit.distributed.dist_server import RemoteDistDataset
from gnnkit.distributed.glt_classes import (
    ChannelBase,
    CollocatedDistSamplingWorkerOptions,
    DistLoader,
    EdgeSamplerInput,
    MpDistSamplingWorkerOptions,
    NodeSamplerInput,
    SamplingConfig,
)
from gnnkit.distributed.glt_records import create_graph_store_worker_options
from gnnkit.distributed.graph_client import check_rank, init_worker_group, worker_group
from gnnkit.distributed.loader_options import (
    KHopNeighborSamplerOptions,
    PPRSamplerOptions,
    SamplerOptions,
    backend_of,
    check_worker_options,
    create_colocated_worker_options,
    create_sampling_config,
    placed_store,
    plan_on,
    served_backend_of,
    stored,
)
from gnnkit.distributed.resolve import DistributedRuntimeInfo, resolve_runtime
from gnnkit.distributed.sample_message import BatchMaker, MessageFormat, SampleMessage
from gnnkit.distributed.store_views import DatasetSchema
from gnnkit.errors import BatchTimeout, GnnkitError, LoaderClosed, PlanError, on_error
from gnnkit.events import ignore_events
from gnnkit.loader.building import BatchBuilder
from gnnkit.loader.epoch import BatchSteps, DeviceTransfer, EpochIterator, ProcessBound
from gnnkit.loader.pipeline import Pipeline
from gnnkit.loader.served import served_store
from gnnkit.plan import BatchForm, InputNodes, LoaderPlan, NeighborSampling, num_batches
from gnnkit.sampling.collate import specs_of
from gnnkit.schema import HOMOGENEOUS_NODE_TYPE, GraphSchema
from gnnkit.vendor import glt
from gnnkit.waiting import Deadline

if TYPE_CHECKING:
    from torch.futures import Future
    from torch_geometric.data import Data, HeteroData

_MS = 1000


class ConnectionChannel(ChannelBase):
    """Hands out the batches of loaders as messages: one of each in turn, without those that have no more.

    It has no memory and no process of its own. Iterating a loader elsewhere advances the same epochs.

    Args:
        worker_options: The options that it was made for.

    Attributes:
        worker_options: See above.
        loaders: The loaders that its producer has opened, whose order is that of the turns; empty before.
        format: What messages look like; None before.
    """

    def __init__(self, worker_options: Any) -> None:
        self.worker_options = worker_options
        self.loaders: tuple[Pipeline, ...] = ()
        self.format: MessageFormat | None = None
        self._steps: list[BatchSteps] = []
        self._turns: deque[EpochIterator] = deque()
        self._is_taken = False

    def take(self) -> None:
        """Assigns the channel to a producer.

        Raises:
            PlanError: It belongs to another one already.
        """
        if self._is_taken:
            raise PlanError("the channel belongs to another producer already", "make one channel for each producer")
        self._is_taken = True

    def open(self, loaders: Sequence[Pipeline], format: MessageFormat) -> None:
        """Makes the channel that of the loaders that its producer has opened.

        Raises:
            PlanError: A loader's batches have a form that messages have not.
        """
        if any(loader.plan.form != BatchForm() for loader in loaders):
            raise PlanError("messages carry batches as they were sampled: not padded, without EdgeIndex", "leave pad and is_edge_index out")
        self.loaders, self.format = tuple(loaders), format
        self._steps = [_steps(loader, format) for loader in loaders]

    def start_epoch(self) -> None:
        """Starts the loaders' next epoch; what is left of the one before is dropped."""
        self._turns.clear()
        self._turns.extend([loader.begin(steps) for loader, steps in zip(self.loaders, self._steps, strict=True)])

    def receive(self, timeout_s: float | None = None) -> SampleMessage:
        """The next message of the epoch; an error leaves the turn with the loader that it came from.

        Args:
            timeout_s: Seconds to wait, 0 for none; None is the plan's deadline.

        Raises:
            StopIteration: The epoch is over, or none has begun.
            LoaderClosed: A newer one was begun elsewhere, or the loader was closed.
            GnnkitError: As ``BatchStream.recv``.
        """
        while self._turns:
            batches = self._turns[0]
            try:
                message: SampleMessage = next(batches) if timeout_s is None else batches.within(timeout_s)
            except StopIteration:
                if len(self._turns) == 1:  # it says what becomes of it later, too
                    raise
                self._turns.popleft()
            else:
                self._turns.rotate(-1)
                return message
        raise StopIteration

    def send(self, msg: SampleMessage, **kwargs: Any) -> None:
        """Refused: what comes out of this channel is sampled by its producer.

        Raises:
            PlanError: Always.
        """
        raise PlanError("nothing can be sent through a loader's own channel", "a producer of your own needs a channel of its own")

    def recv(self, timeout_ms: int | None = None, **kwargs: Any) -> SampleMessage:
        """The next message of the epoch, by graphlearn-torch's name.

        Args:
            timeout_ms: Milliseconds to wait; None and 0 are the loader's own deadline.
            **kwargs: Taken and not used.

        Raises:
            StopIteration: The epoch is over, or none has begun.
            GnnkitError: As ``BatchStream.recv``.
        """
        if self.format is None:
            raise LoaderClosed("the channel has no producer that runs", "call init() of the producer that it was given to")
        return self.receive(timeout_ms / _MS if timeout_ms else None)

    def empty(self) -> bool:
        """Whether no batch is ready."""
        return not any(loader.stream.status().batches_ready for loader in self.loaders)

    def pin_memory(self) -> None:
        """Does nothing: blocks are page-locked where a loader's device asks for it."""


def _steps(loader: Pipeline, format: MessageFormat) -> BatchSteps:
    """Messages in place of batches; nothing here knows the channel, which keeps the iterators: a circle would live on."""
    contents, pack = BatchBuilder(loader.schema, loader.plan, {}, {}).contents, format.pack
    return BatchSteps(lambda subgraph: pack(contents(subgraph)), None, None)


class DistSamplingProducer:
    """Opens a backend of gnnkit, and hands its batches to a channel.

    A loader takes any object with ``init()``, ``produce_all()``, ``shutdown()`` and ``output_channel``; this one is what it gets unless
    a script brings its own.

    Args:
        data: A dataset of a store.
        sampler_input: ``NodeSamplerInput``: this trainer's seeds.
        sampling_config: ``SamplingConfig``, as ``create_sampling_config`` makes it.
        worker_options: Mp options sample in background processes, collocated ones in this process.
        output_channel: As ``create_colocated_channel`` makes it; a channel serves one producer.
        sampler_options: ``KHopNeighborSamplerOptions``, which is also what None means, or ``PPRSamplerOptions``.

    Attributes:
        output_channel: The channel.

    Raises:
        PlanError: The channel or the sampler options are of another kind, or the channel belongs to another producer.
    """

    def __init__(
        self,
        data: DistDataset,
        sampler_input: Any,
        sampling_config: Any,
        worker_options: Any,
        output_channel: ConnectionChannel,
        sampler_options: SamplerOptions | None = None,
    ) -> None:
        if not isinstance(output_channel, ConnectionChannel):
            raise PlanError(
                f"output_channel is a {type(output_channel).__name__}",
                "make it with BaseDistLoader.create_colocated_channel(worker_options)",
            )
        if sampler_options is not None and not isinstance(sampler_options, (KHopNeighborSamplerOptions, PPRSamplerOptions)):
            raise PlanError(
                f"DistSamplingProducer samples k-hop neighbourhoods or by PPR, and sampler_options is a {type(sampler_options).__name__}",
                "give the loader a producer of your own that samples with them",
            )
        output_channel.take()
        self.data, self.sampler_input, self.sampling_config = data, sampler_input, sampling_config
        self.worker_options, self.output_channel, self.sampler_options = worker_options, output_channel, sampler_options
        self._runtime: DistributedRuntimeInfo | None = None
        self._device: torch.device | None = None
        self._at_once: int | None = None

    def prepare(
        self, runtime: DistributedRuntimeInfo, device: torch.device | None, max_concurrent_producer_inits: int | None = None
    ) -> None:
        """Takes what only the loader knows; called before ``init``.

        Args:
            runtime: Where this process stands.
            device: The device that batches are copied to: blocks are page-locked for CUDA.
            max_concurrent_producer_inits: See ``gnnkit.Colocated``.
        """
        self._runtime, self._device, self._at_once = runtime, device, max_concurrent_producer_inits

    def init(self) -> None:
        """Starts whatever samples, and waits until it is ready. Does nothing where that has been done.

        Raises:
            PlanError: Something does not fit the graph, or its servers were not joined; nothing was started.
            GnnkitError: As ``Backend.open``.
        """
        if self.output_channel.format is None:
            self._open()

    def _open(self) -> None:
        options = self.worker_options
        backend = backend_of(options, self._at_once)
        store, placement = placed_store(self.data, self._runtime)
        records = self.sampler_input, self.sampling_config
        plan, graph = plan_on(store, *records, backend, options.rpc_timeout, placement, self.sampler_options)
        loader = Pipeline(plan, graph, ignore_events, backend=backend, device=self._device)
        self._hand_out([loader], loader.schema)

    def _hand_out(self, loaders: Sequence[Pipeline], schema: GraphSchema) -> None:
        inputs = self.sampler_input[0] if isinstance(self.sampler_input, list) else self.sampler_input
        nodes, edges = (None, None) if schema.is_homogeneous else (schema.node_types, schema.edge_types)
        input_type, by_ppr = getattr(inputs, "link_type", inputs.input_type), isinstance(self.sampler_options, PPRSamplerOptions)
        self.output_channel.open(loaders, MessageFormat.of(nodes, edges, self.sampling_config.edge_dir, input_type, by_ppr=by_ppr))

    @classmethod
    def over(cls, loader: Pipeline, *records: Any) -> DistSamplingProducer:
        """The producer of a connection that is open already: that of ``loader``.

        Args:
            loader: The loader.
            *records: The constructor's arguments.
        """
        producer = cls(*records)
        producer._hand_out([loader], loader.schema)
        return producer

    def produce_all(self) -> None:
        """Starts the next epoch; what is left of the one before is dropped."""
        self.connection.start_epoch()

    def shutdown(self) -> None:
        """Ends what ``init`` started; batches that were handed out stay valid. Repeating it does nothing."""
        for loader in self.output_channel.loaders:
            loader.close()

    @property
    def connection(self) -> ConnectionChannel:
        """The channel, once it is open.

        Raises:
            PlanError: It has not been opened.
        """
        if self.output_channel.format is None:
            raise PlanError("the producer is not running", "call init() first")
        return self.output_channel


# A request has a deadline of its own; this one is for a request that breaks it.
_ANSWER_WAIT_S = 600.0


class RemoteReceivingChannel(ChannelBase):
    """Fetches from each server ahead of need, and hands out whatever comes first.

    An answer to a request of an earlier epoch is dropped. An error is raised in its turn; what comes after it can still be received.

    Args:
        server_rank: The servers, one or several.
        channel_id: The number of a channel at each of them.
        prefetch_size: Requests under way to each server, at most.
        active_mask: Which of the servers have something to give; None: all.
        pin_memory: Whether tensors are page-locked.

    Raises:
        PlanError: Lists are of different lengths, ``prefetch_size`` is less than 1, or there is no CUDA to lock pages for.
    """

    def __init__(
        self,
        server_rank: int | Sequence[int],
        channel_id: int | Sequence[int],
        prefetch_size: int = 2,
        active_mask: Sequence[bool] | None = None,
        pin_memory: bool = False,
    ) -> None:
        self.server_rank_list = [server_rank] if isinstance(server_rank, int) else list(server_rank)
        self.channel_id_list = [channel_id] if isinstance(channel_id, int) else list(channel_id)
        self.active_mask = [True] * len(self.server_rank_list) if active_mask is None else [bool(active) for active in active_mask]
        lengths = [len(self.server_rank_list), len(self.channel_id_list), len(self.active_mask)]
        if len(set(lengths)) > 1:
            raise PlanError(f"server_rank, channel_id and active_mask have {lengths} elements", "give one of each for every server")
        if prefetch_size < 1:
            raise PlanError(f"prefetch_size must be at least 1, got {prefetch_size}")
        if pin_memory and not torch.cuda.is_available():
            raise PlanError("pin_memory=True, and there is no CUDA device to lock pages for", "leave it out")
        self.prefetch_size, self._pins = prefetch_size, pin_memory
        self._answers: queue.SimpleQueue[tuple[int, int, Future[Any]]] = queue.SimpleQueue()
        self._generation = 0
        self.reset()

    def reset(self, epoch: int | None = None) -> None:
        """Begins anew, after the servers have been told to start an epoch; what was under way is dropped.

        Args:
            epoch: The epoch that was started: nothing of another one is received. None receives what the servers have.
        """
        self._generation += 1
        self._epoch = epoch
        # By server: whether nothing more comes in this epoch, and requests that have not been received.
        self._is_over, self._under_way = [not active for active in self.active_mask], [0] * len(self.active_mask)

    def send(self, msg: SampleMessage, **kwargs: Any) -> None:
        """Refused: what comes out of this channel is sampled by servers.

        Raises:
            PlanError: Always.
        """
        raise PlanError("nothing can be sent through a receiving channel", "the servers' workers fill it")

    def recv(self, timeout_ms: int | None = None, **kwargs: Any) -> SampleMessage:
        """The next message, of any server.

        Args:
            timeout_ms: Milliseconds to wait; None and 0 wait until the requests' own deadlines.
            **kwargs: Taken and not used.

        Raises:
            StopIteration: Every server that has something to give has given everything.
            BatchTimeout: Nothing came in time.
            GnnkitError: A request failed.
        """
        deadline = Deadline(timeout_ms / _MS if timeout_ms else _ANSWER_WAIT_S)
        while True:
            self._request_some()
            if not any(self._under_way):
                raise StopIteration
            try:
                generation, place, future = self._answers.get(timeout=deadline.left_s)
            except queue.Empty:
                waiting = [server for server, count in zip(self.server_rank_list, self._under_way, strict=True) if count]
                raise BatchTimeout(f"no message from servers {waiting} in time", "see what the servers are doing, or wait longer") from None
            if generation != self._generation:  # of an epoch that was left
                continue
            self._under_way[place] -= 1
            message, is_over = future.wait()
            self._is_over[place] |= is_over
            if message is not None:
                return {name: value.pin_memory() for name, value in message.items()} if self._pins else message

    def empty(self) -> bool:
        """Whether nothing has come that is not received."""
        return self._answers.empty()

    def _request_some(self) -> None:
        for place, (server, channel) in enumerate(zip(self.server_rank_list, self.channel_id_list, strict=True)):
            while not self._is_over[place] and self._under_way[place] < self.prefetch_size:
                future = dist_server.async_request_server(server, "fetch_one_sampled_message", channel, self._epoch)
                self._under_way[place] += 1
                future.add_done_callback(partial(_put, self._answers, self._generation, place))


def _put(answers: queue.SimpleQueue[Any], generation: int, place: int, done: Future[Any]) -> None:
    answers.put((generation, place, done))


_logger = logging.getLogger(__name__)
_METHOD = "create_sampling_producer"


def remote_producer(
    dataset: RemoteDistDataset, inputs: Sequence[Any], config: Any, options: Any, sampler_options: SamplerOptions | None, asked: Any
) -> ServedStreams | ServedProducer:
    """Makes the producer that samples the inputs on servers.

    Args:
        dataset: Their graph.
        inputs: ``NodeSamplerInput`` for every server.
        config: ``SamplingConfig``.
        options: ``RemoteDistSamplingWorkerOptions``.
        sampler_options: None, ``KHopNeighborSamplerOptions`` or ``PPRSamplerOptions``.
        asked: None for streams of this loader's own, or ``DistServer.create_sampling_producer`` for producers that trainers with the same
            ``worker_key`` share.

    Raises:
        PlanError: ``asked`` or the sampler options are something else.
    """
    if sampler_options is not None and not isinstance(sampler_options, (KHopNeighborSamplerOptions, PPRSamplerOptions)):
        raise PlanError(f"servers sample k-hop neighbourhoods or by PPR, and sampler_options is a {type(sampler_options).__name__}")
    if asked is None:
        channel = ConnectionChannel(options)
        return ServedStreams(dataset, inputs, config, options, channel, sampler_options)  # type: ignore[arg-type]  # a graph of servers
    if getattr(asked, "__name__", asked) != _METHOD:
        raise PlanError(f"producer is {asked!r}, and the dataset is on servers", f"give None, or DistServer.{_METHOD}")
    return ServedProducer(inputs, config, options, sampler_options)


def batch_counts(inputs: Sequence[Any], config: Any) -> list[int]:
    """Batches of an epoch by server: no batch has seeds of two."""
    return [num_batches(len(seeds), config.batch_size, bool(config.drop_last)) for seeds in inputs]


class ServedStreams(DistSamplingProducer):
    """A stream of the backend ``GraphStore`` for the seeds of each server; batches come from one server after the other, in turn."""

    def _open(self) -> None:
        options, config = self.worker_options, self.sampling_config
        backend, loaders = served_backend_of(options), []
        store = served_store(backend, ignore_events)
        try:
            for seeds, count in zip(self.sampler_input, batch_counts(self.sampler_input, config), strict=True):
                if count:
                    plan, graph = plan_on(store, seeds, config, backend, options.rpc_timeout, options=self.sampler_options)
                    loaders.append(Pipeline(plan, graph, ignore_events, backend=backend, device=self._device))
        except BaseException:
            for loader in loaders:
                loader.close()
            raise
        self._hand_out(loaders, store.schema)


class ServedProducer:
    """Producers on the servers, one on each that has something to sample; trainers with one ``worker_key`` divide their batches.

    Args:
        inputs: See ``remote_producer``.
        config: See ``remote_producer``.
        options: See ``remote_producer``.
        sampler_options: See ``remote_producer``.

    Attributes:
        output_channel: What receives from them, once they are there.
        server_ranks: The servers.
        producer_ids: What the producers are known by there.
    """

    def __init__(self, inputs: Sequence[Any], config: Any, options: Any, sampler_options: SamplerOptions | None) -> None:
        counts = batch_counts(inputs, config)
        self.server_ranks = [server for server, count in enumerate(counts) if count]
        self.producer_ids: list[int] = []
        self.output_channel: RemoteReceivingChannel | None = None
        self._inputs, self._config, self._options, self._sampler_options = inputs, config, options, sampler_options
        self._epoch = 0

    def init(self) -> None:
        """Has the servers make the producers, or finds those that are there; all are asked at the same time.

        Raises:
            PlanError: As ``DistServer.create_sampling_producer``, or no servers were joined.
        """
        if self.output_channel is not None:
            return
        asked = [self._create(server) for server in self.server_ranks]
        self.producer_ids[:] = [future.wait() for future in asked]
        self.output_channel = RemoteReceivingChannel(self.server_ranks, self.producer_ids, self._options.prefetch_size)

    def produce_all(self) -> None:
        """Starts the next epoch on every server, and waits until all have heard of it."""
        assert self.output_channel is not None, "init comes first"
        epoch, self._epoch = self._epoch, self._epoch + 1
        for place, started in enumerate([self._start(place, epoch) for place in range(len(self.producer_ids))]):
            try:
                started.wait()
            except PlanError:  # the server was started anew or took this client for gone, and knows nothing of the producer
                self.producer_ids[place] = self._create(self.server_ranks[place]).wait()
                self._start(place, epoch).wait()
        self.output_channel.channel_id_list[:] = self.producer_ids
        self.output_channel.reset(epoch)

    def _create(self, server: int) -> Any:
        return dist_server.async_request_server(server, _METHOD, self._inputs[server], self._config, self._options, self._sampler_options)

    def _start(self, place: int, epoch: int) -> Any:
        return dist_server.async_request_server(self.server_ranks[place], "start_new_epoch_sampling", self.producer_ids[place], epoch)

    def shutdown(self) -> None:
        """Gives the producers up. Repeating it does nothing."""
        held, self.producer_ids = list(zip(self.server_ranks, self.producer_ids, strict=False)), []
        for server, number in held:
            try:
                dist_server.async_request_server(server, "destroy_sampling_producer", number).wait()
            except GnnkitError as error:  # a server that is gone, or was left, has no producers of this process any more
                _logger.info("%s", error)


_PRODUCER_PARTS = ("init", "produce_all", "shutdown", "output_channel")


def check_arguments(dataset: Any, sampler_input: Any, worker_options: Any, producer: Any, process_start_gap_seconds: Any) -> None:
    """Makes sure that a loader's arguments are of the kinds that go together.

    Raises:
        PlanError: They are not.
    """
    check_worker_options(worker_options, on_servers=isinstance(dataset, RemoteDistDataset))
    check_seconds("process_start_gap_seconds", process_start_gap_seconds, 0)
    kinds = NodeSamplerInput, EdgeSamplerInput
    if isinstance(dataset, RemoteDistDataset):
        count = dataset.cluster_info.num_storage_nodes
        is_list = isinstance(sampler_input, list) and len(sampler_input) == count
        if not is_list or not all(isinstance(seeds, kinds) for seeds in sampler_input):
            raise PlanError(f"sampler_input must be a list with a NodeSamplerInput for each of {count} servers, got {sampler_input!r:.200}")
        return
    if not isinstance(sampler_input, kinds):
        raise PlanError(
            f"sampler_input must be a NodeSamplerInput, got a {type(sampler_input).__name__}",
            "lists are of the graph-store mode",
        )
    if missing := [name for name in _PRODUCER_PARTS if not hasattr(producer, name)]:
        raise PlanError(
            f"producer is a {type(producer).__name__} without {missing}",
            "give a DistSamplingProducer, or an object with init(), produce_all(), shutdown() and output_channel",
        )
    if isinstance(producer, DistSamplingProducer) and dataset is not None:
        stored(dataset)
    if (context := worker_group()) is not None and not context.is_worker():
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
    """Enters this process into the worker group of its local rank, which spans the nodes.

    That is all it does: it changes neither the threads nor the affinity of this process, starts no RPC, and listens nowhere. What
    gnnkit samples with lives in processes of its own and needs none of it; ``get_context()`` knows the group then.

    Args:
        local_rank: This process among those of its node.
        local_world_size: Processes of each node.
        node_rank: This process's node.
        node_world_size: Number of nodes.
        master_ip_address: Taken and not used: nothing has to be met there.
        device: Taken and not used: sampling runs on the CPU.
        num_cpu_threads: Taken and not used: GiGL's torch threads, ``DEFAULT_NUM_CPU_THREADS`` by default.

    Raises:
        PlanError: A rank is not below its size.
    """
    check_rank("local_rank", local_rank, local_world_size)
    check_rank("node_rank", node_rank, node_world_size)
    init_worker_group(node_world_size, node_rank, f"gnnkit-sampling-{local_rank}")


# What a loader of graphlearn-torch's has of its configuration.
_OF_CONFIG = (
    *("sampling_type", "num_neighbors", "batch_size", "shuffle", "drop_last"),
    *("with_edge", "with_weight", "collect_features", "edge_dir"),
)


class BaseDistLoader(ProcessBound, DistLoader):
    """Iterates over the batches of a producer.

    Wherever graphlearn-torch is imported it *is a* ``graphlearn_torch.distributed.DistLoader``, and it has the attributes of one; but it
    starts no sampler, no RPC and no process of graphlearn-torch's. Every iteration is the next epoch, also when the one before was
    abandoned; a newer iteration ends the one that is under way, whose iterator then says so. Batches are those of ``gnnkit.GraphLoader``
    for the same seeds, with graphlearn-torch's names ``node``, ``edge`` and ``batch`` beside PyG's.

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

    # Of another kind on servers.
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
        self.input_data, self.sampling_config, self.worker_options = sampler_input, sampling_config, worker_options
        self.to_device, self._producer = torch.device("cpu") if target is None else target, producer
        self._set_glt_attributes(dataset, runtime)
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
        self._shutdowned = False
        with on_error(self.shutdown):
            producer.init()
            self._channel = producer.output_channel
            if hasattr(producer, "producer_ids"):  # as graphlearn-torch's loaders have it where servers sample
                self._producer_id_list = producer.producer_ids
            types = (None if dataset_schema.edge_types is None else self._node_types, self._edge_types, self.edge_dir, self._input_type)
            by_ppr = isinstance(sampler_options, PPRSamplerOptions)
            opened = None if self._own is None else self._own.connection.format
            messages = opened or MessageFormat.of(*types, by_ppr=by_ppr)
            self._make = self._maker.of(messages, dataset_schema, sampling_config, target, non_blocking=non_blocking_transfers)

    def _set_glt_attributes(self, dataset: DistDataset | RemoteDistDataset | None, runtime: DistributedRuntimeInfo) -> None:
        """Sets what ``graphlearn_torch.distributed.DistLoader.__init__`` of version 0.2.4 would."""
        sampler_input, config, worker_options = self.input_data, self.sampling_config, self.worker_options
        self.__dict__.update({name: getattr(config, name) for name in _OF_CONFIG})
        self._num_recv = self._epoch = 0
        self._is_remote_worker = isinstance(dataset, RemoteDistDataset)
        self._is_collocated_worker = isinstance(worker_options, CollocatedDistSamplingWorkerOptions)
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
            self._collocated_producer = self._producer
        else:
            self._mp_producer = self._producer
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

    def _collate(self, message: Any) -> tuple[Any, Any]:
        if self._transfer is None:
            return self._collate_fn(message), None
        return self._transfer.run(lambda: self._collate_fn(message), message)

    def _receive(self) -> Any:
        timeout_s = float(self.worker_options.rpc_timeout)
        try:
            return self._channel.recv(timeout_ms=int(timeout_s * 1000))
        except Exception as error:
            if not isinstance(error, glt.imported("channel.QueueTimeoutError") or ()):
                raise
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
        PlanError: It does not sample nodes hop by hop.
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
    store = None if loader.graph.store is None else loader.store
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
    # The batches are the GraphLoader's: only ``shutdown`` closes it, not the connection's own end.
    lent._is_borrowed, lent._num_expected = True, len(lent)
    extra, type_extra = loader.graph.shown_extra()
    shown: dict[str, Any] = {"homogeneous": lent._make.format.homogeneous, "extra": extra, "type_extra": type_extra, "shows_labels": True}
    dims = {key: spec.dim for key, spec in specs_of(loader.schema, plan.sampling.edge_dir).items() if spec.dim}
    lent._make = replace(lent._make, **shown, dims=dims, transform=loader.transform)
    return lent


def _config(plan: LoaderPlan, schema: DatasetSchema) -> SamplingConfig:
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
        return CollocatedDistSamplingWorkerOptions(_LOOPBACK, 0, rpc_timeout=timeout_s)
    return MpDistSamplingWorkerOptions(
        num_workers=backend.num_workers if isinstance(backend.num_workers, int) else 1,
        worker_devices="cpu",
        worker_concurrency=backend.worker_concurrency,
        master_addr=_LOOPBACK,
        master_port=0,
        rpc_timeout=timeout_s,
        channel_size=backend.channel_size,
    )


def _seeds(loader: Pipeline, *, homogeneous: bool) -> NodeSamplerInput:
    """The seeds of all ranks: what is dealt to this one is decided batch by batch."""
    inputs = loader.batches.inputs.written_out()
    assert isinstance(inputs, InputNodes), "only loaders of nodes are lent"
    whole = np.arange(loader.batches.inputs.num_inputs) if inputs.ids is None else np.array(inputs.ids, np.int64)
    return NodeSamplerInput(torch.from_numpy(whole), None if homogeneous else inputs.node_type)

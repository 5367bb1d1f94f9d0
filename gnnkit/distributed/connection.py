"""A loader's batches as messages: the channels that hand them out and the producers that open them, here and on servers."""

from __future__ import annotations

import logging
import queue
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from gnnkit.distributed import dist_server
from gnnkit.distributed.dataset import DistDataset
from gnnkit.distributed.loader_options import (
    KHopNeighborSamplerOptions,
    PPRSamplerOptions,
    SamplerOptions,
    backend_of,
    make_plan,
    plan_on,
    served_backend_of,
)
from gnnkit.distributed.remote_dataset import RemoteDistDataset
from gnnkit.distributed.resolve import DistributedRuntimeInfo
from gnnkit.distributed.sample_message import MessageFormat, SampleMessage
from gnnkit.errors import BatchTimeout, GnnkitError, LoaderClosed, PlanError
from gnnkit.events import ignore_events
from gnnkit.loader.building import BatchBuilder
from gnnkit.loader.epoch import BatchSteps, EpochIterator
from gnnkit.loader.pipeline import Pipeline
from gnnkit.loader.served import served_store
from gnnkit.plan import BatchForm, num_batches
from gnnkit.schema import GraphSchema
from gnnkit.vendor import glt
from gnnkit.waiting import Deadline

if TYPE_CHECKING:
    from torch.futures import Future

    ChannelBase = object
else:
    ChannelBase = glt.attribute("channel.ChannelBase", "a channel")

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
        records = self.data, self.sampler_input, self.sampling_config
        plan, graph = make_plan(*records, backend, options.rpc_timeout, self._runtime, self.sampler_options)
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


@dataclass
class _Source:
    """A channel of one server.

    Attributes:
        server: The server.
        channel: Its number there.
        is_over: Whether nothing more comes in this epoch.
        under_way: Requests that have not been received.
    """

    server: int
    channel: int
    is_over: bool
    under_way: int = 0


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
        both = zip(self.server_rank_list, self.channel_id_list, self.active_mask, strict=True)
        self._sources = [_Source(server, channel, not active) for server, channel, active in both]

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
            if not any(source.under_way for source in self._sources):
                raise StopIteration
            try:
                generation, place, future = self._answers.get(timeout=deadline.left_s)
            except queue.Empty:
                waiting = [source.server for source in self._sources if source.under_way]
                raise BatchTimeout(f"no message from servers {waiting} in time", "see what the servers are doing, or wait longer") from None
            if generation != self._generation:  # of an epoch that was left
                continue
            source = self._sources[place]
            source.under_way -= 1
            message, is_over = future.wait()
            source.is_over = source.is_over or is_over
            if message is not None:
                return {name: value.pin_memory() for name, value in message.items()} if self._pins else message

    def empty(self) -> bool:
        """Whether nothing has come that is not received."""
        return self._answers.empty()

    def _request_some(self) -> None:
        for place, source in enumerate(self._sources):
            while not source.is_over and source.under_way < self.prefetch_size:
                future = dist_server.async_request_server(source.server, "fetch_one_sampled_message", source.channel, self._epoch)
                source.under_way += 1
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

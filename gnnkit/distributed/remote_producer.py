"""What samples the batches of a loader whose graph is on servers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gnnkit.distributed.connection import Connection, InTurn
from gnnkit.distributed.connection_channel import ConnectionChannel
from gnnkit.distributed.loader_plan import plan_on
from gnnkit.distributed.remote_channel import RemoteReceivingChannel
from gnnkit.distributed.sample_message import MessageFormat
from gnnkit.distributed.sampler_options import KHopNeighborSamplerOptions, PPRSamplerOptions, SamplerOptions
from gnnkit.distributed.sampling_producer import ConnectionProducer
from gnnkit.distributed.worker_options import served_backend_of
from gnnkit.errors import GnnkitError, PlanError
from gnnkit.events import ignore_events
from gnnkit.plan import num_batches

if TYPE_CHECKING:
    from gnnkit.distributed.remote_dataset import RemoteDistDataset

_logger = logging.getLogger(__name__)
_METHOD = "create_sampling_producer"


def remote_producer(
    dataset: RemoteDistDataset, inputs: Sequence[Any], config: Any, options: Any, sampler_options: SamplerOptions | None, asked: Any
) -> ServedStreams | ServedProducer:
    """What samples the inputs on servers.

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
        return ServedStreams(dataset, inputs, config, options, sampler_options)
    if getattr(asked, "__name__", asked) != _METHOD:
        raise PlanError(f"producer is {asked!r}, and the dataset is on servers", f"give None, or DistServer.{_METHOD}")
    return ServedProducer(inputs, config, options, sampler_options)


def batch_counts(inputs: Sequence[Any], config: Any) -> list[int]:
    """Batches of an epoch by server: no batch has seeds of two."""
    return [num_batches(len(seeds), config.batch_size, bool(config.drop_last)) for seeds in inputs]


class ServedStreams(ConnectionProducer):
    """A stream of the backend ``GraphStore`` for the seeds of each server; batches come from one server after the other, in turn.

    Args:
        dataset: The servers' graph.
        inputs: See ``remote_producer``.
        config: See ``remote_producer``.
        options: See ``remote_producer``.
        sampler_options: See ``remote_producer``.
    """

    def __init__(
        self, dataset: RemoteDistDataset, inputs: Sequence[Any], config: Any, options: Any, sampler_options: SamplerOptions | None
    ) -> None:
        super().__init__(ConnectionChannel(options))
        self._dataset, self._inputs, self._config, self._options = dataset, inputs, config, options
        self._sampler_options = sampler_options

    def init(self) -> None:
        """Opens the streams. Does nothing where that has been done.

        Raises:
            PlanError: Something does not fit the graph, or no servers were joined.
            GnnkitError: As ``Backend.open``.
        """
        if self._connection is not None:
            return
        from gnnkit.loader.pipeline import Pipeline
        from gnnkit.loader.served import served_store

        config, backend, connections = self._config, served_backend_of(self._options), []
        store = served_store(backend, ignore_events)
        try:
            for seeds, count in zip(self._inputs, batch_counts(self._inputs, config), strict=True):
                if count:
                    plan, graph = plan_on(store, seeds, config, backend, self._options.rpc_timeout, options=self._sampler_options)
                    connections.append(Connection(Pipeline(plan, graph, ignore_events, device=self._device)))
        except BaseException:
            for connection in connections:
                connection.close()
            raise
        schema, by_ppr = store.schema, isinstance(self._sampler_options, PPRSamplerOptions)
        input_type = getattr(self._inputs[0], "link_type", self._inputs[0].input_type)
        nodes, edges = (None, None) if schema.is_homogeneous else (schema.node_types, schema.edge_types)
        self._attach(InTurn(connections, MessageFormat.of(nodes, edges, config.edge_dir, input_type, by_ppr=by_ppr)))


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
        return _ask(server, _METHOD, self._inputs[server], self._config, self._options, self._sampler_options)

    def _start(self, place: int, epoch: int) -> Any:
        return _ask(self.server_ranks[place], "start_new_epoch_sampling", self.producer_ids[place], epoch)

    def shutdown(self) -> None:
        """Gives the producers up. Repeating it does nothing."""
        held, self.producer_ids = list(zip(self.server_ranks, self.producer_ids, strict=False)), []
        for server, number in held:
            try:
                _ask(server, "destroy_sampling_producer", number).wait()
            except GnnkitError as error:  # a server that is gone, or was left, has no producers of this process any more
                _logger.info("%s", error)


def _ask(server: int, method: str, *args: Any) -> Any:
    from gnnkit.distributed.graph_client import async_request_server

    return async_request_server(server, method, *args)

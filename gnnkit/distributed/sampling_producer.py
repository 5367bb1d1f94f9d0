"""``DistSamplingProducer``: what samples a loader's batches, with the methods that graphlearn-torch's loaders call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gnnkit.distributed.connection import AnyConnection, Connection
from gnnkit.distributed.connection_channel import ConnectionChannel
from gnnkit.distributed.loader_plan import make_plan
from gnnkit.distributed.sampler_options import KHopNeighborSamplerOptions, PPRSamplerOptions, SamplerOptions
from gnnkit.distributed.worker_options import backend_of
from gnnkit.errors import PlanError
from gnnkit.events import ignore_events

if TYPE_CHECKING:
    import torch

    from gnnkit.distributed.dataset import DistDataset
    from gnnkit.distributed.runtime_info import DistributedRuntimeInfo
    from gnnkit.loader.pipeline import Pipeline


class ConnectionProducer:
    """What loaders know of a producer that has a connection of gnnkit's.

    Args:
        output_channel: What the connection is to be a channel of; it serves one producer.

    Attributes:
        output_channel: The channel.

    Raises:
        PlanError: The channel belongs to another producer.
    """

    def __init__(self, output_channel: ConnectionChannel) -> None:
        output_channel.take()
        self.output_channel = output_channel
        self._runtime: DistributedRuntimeInfo | None = None
        self._device: torch.device | None = None
        self._at_once: int | None = None
        self._connection: AnyConnection | None = None

    def prepare(
        self, runtime: DistributedRuntimeInfo, device: torch.device | None, max_concurrent_producer_inits: int | None = None
    ) -> None:
        """Takes what only the loader knows; called before ``init``.

        Args:
            runtime: Where this process stands.
            device: Where batches are copied to: blocks are page-locked for CUDA.
            max_concurrent_producer_inits: See ``gnnkit.Colocated``.
        """
        self._runtime, self._device, self._at_once = runtime, device, max_concurrent_producer_inits

    def produce_all(self) -> None:
        """Starts the next epoch; what is left of the one before is dropped."""
        self.connection.start_epoch()

    def shutdown(self) -> None:
        """Ends what ``init`` started; batches that were handed out stay valid. Repeating it does nothing."""
        if self._connection is not None:
            self._connection.close()

    @property
    def connection(self) -> AnyConnection:
        """The connection.

        Raises:
            PlanError: It has not been opened.
        """
        if self._connection is None:
            raise PlanError("the producer is not running", "call init() first")
        return self._connection

    def _attach(self, connection: AnyConnection) -> None:
        self._connection = connection
        self.output_channel.attach(connection)


class DistSamplingProducer(ConnectionProducer):
    """Opens the connection to a backend of gnnkit, and hands its batches to a channel.

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
        PlanError: The channel or the sampler options are of another kind.
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
        super().__init__(output_channel)
        self.data, self.sampler_input, self.sampling_config = data, sampler_input, sampling_config
        self.worker_options, self.sampler_options = worker_options, sampler_options

    @classmethod
    def over(cls, loader: Pipeline, *records: Any) -> DistSamplingProducer:
        """The producer of a connection that is open already: that of ``loader``.

        Args:
            loader: The loader.
            *records: The constructor's arguments.
        """
        producer = cls(*records)
        producer._attach(Connection(loader))
        return producer

    def init(self) -> None:
        """Starts whatever samples, and waits until it is ready. Does nothing where that has been done.

        Raises:
            PlanError: Something does not fit the dataset; nothing was started.
            GnnkitError: As ``Backend.open``.
        """
        if self._connection is not None:
            return
        from gnnkit.loader.pipeline import Pipeline

        options = self.worker_options
        backend = backend_of(options, self._at_once)
        records = self.data, self.sampler_input, self.sampling_config
        plan, graph = make_plan(*records, backend, options.rpc_timeout, self._runtime, self.sampler_options)
        self._attach(Connection(Pipeline(plan, graph, ignore_events, device=self._device)))

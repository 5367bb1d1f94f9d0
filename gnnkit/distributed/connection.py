"""A GraphLoader's stream of batches, as messages: what channels and producers are views of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnnkit.distributed.sample_message import MessageFormat, SampleMessage
from gnnkit.loader.building import BatchBuilder
from gnnkit.loader.epoch import BatchSteps, EpochIterator
from gnnkit.sampling.subgraph import SampledSubgraph

if TYPE_CHECKING:
    from gnnkit.loader import GraphLoader


class Connection:
    """Hands out the batches of a loader as messages; whoever else iterates the loader advances the same epochs.

    Args:
        loader: The loader.

    Attributes:
        loader: The loader.
        format: What messages look like.
    """

    def __init__(self, loader: GraphLoader) -> None:
        plan, schema = loader.plan, loader.schema
        self.loader = loader
        nodes, edges = (None, None) if schema.is_homogeneous else (schema.node_types, schema.edge_types)
        self.format = MessageFormat.of(nodes, edges, plan.sampling.edge_dir, plan.inputs.node_type)
        contents, pack = BatchBuilder(schema, plan, {}, {}).contents, self.format.pack

        # Knows nothing of this object, which keeps the iterator: a circle would live on until it is collected.
        def message(subgraph: SampledSubgraph) -> SampleMessage:
            return pack(contents(subgraph))

        self._steps = BatchSteps(message, None, None)
        self._batches: EpochIterator | None = None

    def start_epoch(self) -> None:
        """Starts the loader's next epoch; what is left of the one before is dropped."""
        self._batches = self.loader._begin(self._steps)

    def recv(self, timeout_s: float | None = None) -> SampleMessage:
        """The next message of the epoch.

        Args:
            timeout_s: Seconds to wait, 0 for none; None is the plan's deadline.

        Raises:
            StopIteration: The epoch is over, or none has begun.
            LoaderClosed: Somebody else has begun a newer one, or closed the loader.
            GnnkitError: As ``BatchStream.recv``.
        """
        if self._batches is None:
            raise StopIteration
        message: SampleMessage = next(self._batches) if timeout_s is None else self._batches.within(timeout_s)
        return message

    @property
    def num_ready(self) -> int:
        """Batches that wait to be received."""
        return self.loader._stream.status().batches_ready

    def __len__(self) -> int:
        return len(self.loader)

    def close(self) -> None:
        """Closes the loader. Repeating it does nothing."""
        self.loader.close()

"""A GraphLoader's stream of batches, as messages: what channels and producers are views of."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from gnnkit.distributed.sample_message import MessageFormat, SampleMessage
from gnnkit.loader.building import BatchBuilder
from gnnkit.loader.epoch import BatchSteps, EpochIterator
from gnnkit.plan import PPRSampling
from gnnkit.sampling.subgraph import SampledSubgraph

if TYPE_CHECKING:
    from gnnkit.loader.pipeline import Pipeline


class AnyConnection(Protocol):
    """Where a loader's messages come from."""

    @property
    def format(self) -> MessageFormat:
        """What messages look like."""
        ...

    def start_epoch(self) -> None:
        """Starts the next epoch; what is left of the one before is dropped."""
        ...

    def recv(self, timeout_s: float | None = None) -> SampleMessage:
        """The next message of the epoch; see ``Connection.recv``."""
        ...

    @property
    def num_ready(self) -> int:
        """Batches that wait to be received."""
        ...

    def __len__(self) -> int:
        """Batches of an epoch."""
        ...

    def close(self) -> None:
        """Ends what samples. Repeating it does nothing."""
        ...


class Connection:
    """Hands out the batches of a loader as messages; whoever else iterates the loader advances the same epochs.

    Args:
        loader: The loader.

    Attributes:
        loader: The loader.
        format: What messages look like.
    """

    def __init__(self, loader: Pipeline) -> None:
        plan, schema = loader.plan, loader.schema
        self.loader = loader
        nodes, edges = (None, None) if schema.is_homogeneous else (schema.node_types, schema.edge_types)
        self.format = MessageFormat.of(
            nodes, edges, plan.sampling.edge_dir, plan.inputs.input_type, by_ppr=isinstance(plan.sampling, PPRSampling)
        )
        contents, pack = BatchBuilder(schema, plan, {}, {}).contents, self.format.pack

        # Knows nothing of this object, which keeps the iterator: a circle would live on until it is collected.
        def message(subgraph: SampledSubgraph) -> SampleMessage:
            return pack(contents(subgraph))

        self._steps = BatchSteps(message, None, None)
        self._batches: EpochIterator | None = None

    def start_epoch(self) -> None:
        """Starts the loader's next epoch; what is left of the one before is dropped."""
        self._batches = self.loader.begin(self._steps)

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
        return self.loader.stream.status().batches_ready

    def __len__(self) -> int:
        return len(self.loader)

    def close(self) -> None:
        """Closes the loader. Repeating it does nothing."""
        self.loader.close()


class InTurn:
    """Several connections as one: a message of each in turn, without those that have no more.

    Args:
        connections: The connections, whose order is that of the turns.
        format: What messages look like.

    Attributes:
        format: See above.
    """

    def __init__(self, connections: Sequence[Connection], format: MessageFormat) -> None:
        self.format, self._connections = format, list(connections)
        self._turns: deque[Connection] = deque()

    def start_epoch(self) -> None:
        """See ``AnyConnection``."""
        self._turns.clear()
        for connection in self._connections:
            connection.start_epoch()
        self._turns.extend(self._connections)

    def recv(self, timeout_s: float | None = None) -> SampleMessage:
        """See ``Connection.recv``; an error leaves the turn with the connection that it came from."""
        while self._turns:
            try:
                message = self._turns[0].recv(timeout_s)
            except StopIteration:
                self._turns.popleft()
            else:
                self._turns.rotate(-1)
                return message
        raise StopIteration

    @property
    def num_ready(self) -> int:
        """See ``AnyConnection``."""
        return sum(connection.num_ready for connection in self._connections)

    def __len__(self) -> int:
        return sum(map(len, self._connections))

    def close(self) -> None:
        """See ``AnyConnection``."""
        for connection in self._connections:
            connection.close()

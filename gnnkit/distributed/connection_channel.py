"""The channel of a loader's own connection: graphlearn-torch's interface to what the loader has anyway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gnnkit.distributed.connection import AnyConnection
from gnnkit.distributed.sample_message import SampleMessage
from gnnkit.errors import LoaderClosed, PlanError
from gnnkit.vendor import glt

if TYPE_CHECKING:
    ChannelBase = object
else:
    ChannelBase = glt.attribute("channel.ChannelBase", "a channel")

_MS = 1000


class ConnectionChannel(ChannelBase):
    """A view of the connection that a producer opens; it has no memory and no process of its own.

    Args:
        worker_options: The options that it was made for.
    """

    def __init__(self, worker_options: Any) -> None:
        self.worker_options = worker_options
        self._connection: AnyConnection | None = None
        self._is_taken = False

    def take(self) -> None:
        """Books the channel for a producer.

        Raises:
            PlanError: It belongs to another one already.
        """
        if self._is_taken:
            raise PlanError("the channel belongs to another producer already", "make one channel for each producer")
        self._is_taken = True

    def attach(self, connection: AnyConnection) -> None:
        """Makes the channel a view of the connection that its producer has opened."""
        self._connection = connection

    def send(self, msg: SampleMessage, **kwargs: Any) -> None:
        """Refused: what comes out of this channel is sampled by its producer.

        Raises:
            PlanError: Always.
        """
        raise PlanError("nothing can be sent through a loader's own channel", "a producer of your own needs a channel of its own")

    def recv(self, timeout_ms: int | None = None, **kwargs: Any) -> SampleMessage:
        """The next message of the epoch.

        Args:
            timeout_ms: Milliseconds to wait; None and 0 are the loader's own deadline.
            **kwargs: Taken and not used.

        Raises:
            StopIteration: The epoch is over, or none has begun.
            GnnkitError: As ``BatchStream.recv``.
        """
        if self._connection is None:
            raise LoaderClosed("the channel has no producer that runs", "call init() of the producer that it was given to")
        return self._connection.recv(timeout_ms / _MS if timeout_ms else None)

    def empty(self) -> bool:
        """Whether no batch is ready."""
        return self._connection is None or self._connection.num_ready == 0

    def pin_memory(self) -> None:
        """Does nothing: blocks are page-locked where a loader's device asks for it."""

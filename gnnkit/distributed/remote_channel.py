"""``RemoteReceivingChannel``: messages that are fetched from channels of servers, some of them ahead."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from gnnkit.distributed.sample_message import SampleMessage
from gnnkit.errors import BatchTimeout, PlanError
from gnnkit.vendor import glt

if TYPE_CHECKING:
    from torch.futures import Future

    ChannelBase = object
else:
    ChannelBase = glt.attribute("channel.ChannelBase", "a channel")

_MS = 1000
# A request has a deadline of its own; this one is for whoever breaks his.
_PATIENCE_S = 600.0


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
        if pin_memory and not _has_cuda():
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
        deadline = time.monotonic() + (timeout_ms / _MS if timeout_ms else _PATIENCE_S)
        while True:
            self._request_some()
            if not any(source.under_way for source in self._sources):
                raise StopIteration
            try:
                generation, place, future = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
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
        from gnnkit.distributed.graph_client import async_request_server

        for place, source in enumerate(self._sources):
            while not source.is_over and source.under_way < self.prefetch_size:
                future = async_request_server(source.server, "fetch_one_sampled_message", source.channel, self._epoch)
                source.under_way += 1
                future.add_done_callback(partial(_put, self._answers, self._generation, place))


def _put(answers: queue.SimpleQueue[Any], generation: int, place: int, done: Future[Any]) -> None:
    answers.put((generation, place, done))


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()

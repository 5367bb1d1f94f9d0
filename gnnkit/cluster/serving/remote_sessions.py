"""Loaders of other hosts, on a server: who they are, and what its workers do for them.

Everything here happens in the server's main thread.
"""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnkit.cluster.serving.remote_session import RemoteSession, Walk
from gnnkit.cluster.serving.walk_protocol import UnknownChannel
from gnnkit.errors import GnnkitError, PlanError
from gnnkit.plan import InputLinks, LoaderPlan, NeighborSampling
from gnnkit.runtime.batches import BatchList
from gnnkit.runtime.graph_handle import GraphHandle
from gnnkit.runtime.wire import Message, in_memory

if TYPE_CHECKING:
    from gnnkit.cluster.serving.loop import ServerLoop
    from gnnkit.cluster.serving.pool import ServedWorkers

logger = logging.getLogger(__name__)

# A client that has not been heard of for so long has its memory taken; one that was only slow registers again with its next request.
# Sooner than ``presence.SILENCE_S``, after which it counts as having left: that may end the server.
SILENCE_S = 4.0


class RemoteSessions:
    """All of them.

    Args:
        loop: The server.
        pool: Its workers.
        graph: The graph.
    """

    def __init__(self, loop: ServerLoop, pool: ServedWorkers, graph: GraphHandle) -> None:
        self._loop, self._pool, self._graph = loop, pool, graph
        self._channels: dict[tuple[str, str], RemoteSession] = {}
        self._seen: dict[str, float] = {}
        pool.handlers.append(self)

    def heard(self, what: str, client: str) -> None:
        """A client says that it is there, or that it leaves."""
        if what == "bye":
            self._drop(client)
            return
        self._seen[client] = time.monotonic()

    def tidy(self) -> None:
        """Drops the clients that have not been heard of for long."""
        limit = time.monotonic() - SILENCE_S
        for client in [client for client, seen in self._seen.items() if seen < limit]:
            logger.info("%s has not been heard of for %g s", client, SILENCE_S)
            self._drop(client)

    def _drop(self, client: str) -> None:
        for name, key in [found for found in self._channels if found[0] == client]:
            self.release(name, key)
        self._seen.pop(client, None)

    def register(self, client: str, key: str, plan: dict[str, Any]) -> Future[int]:
        """Opens a channel, or finds the one that is there.

        Returns:
            The channel's number, once walks can be asked for.

        Raises:
            PlanError: The plan is of no use here, or another one was registered under this key.
        """
        self.heard("here", client)
        channel = self._channels.get((client, key))
        if channel is None:
            channel = self._open(client, key, plan)
        elif channel.as_sent != plan:
            raise PlanError(f"the loader {key!r} of {client} was registered with another plan", "give each loader a key of its own")
        opened: Future[int] = Future()
        if channel.is_open:
            opened.set_result(channel.number)
        else:
            channel.opening.append(opened)
            self._pool.start()
        return opened

    def _open(self, client: str, key: str, sent: dict[str, Any]) -> RemoteSession:
        plan = LoaderPlan.from_json(sent)
        _check_plan(plan, self._graph)
        batches = BatchList(plan, self._graph)
        channel = self._channels[client, key] = RemoteSession(self._pool.open_channel(self), plan, sent, batches)
        for rank in self._pool.ready:
            self._introduce(rank, channel)
        return channel

    def release(self, client: str, key: str) -> None:
        """Gives a channel up, if there is one: its ring goes with the last structure in it."""
        channel = self._channels.pop((client, key), None)
        if channel is not None:
            self._give_up(channel, UnknownChannel(f"the loader {key!r} of {client} was given up"))

    def _give_up(self, channel: RemoteSession, error: GnnkitError) -> None:
        channel.fail(error)
        for rank in channel.told & self._pool.ready:
            self._pool.send(rank, "close", c=channel.number)
        self._pool.close_channel(channel.number)

    def begin(self, client: str, key: str, walk: Walk) -> RemoteSession:
        """Has a batch walked.

        Raises:
            UnknownChannel: Nobody has registered it.
        """
        channel = self._channels.get((client, key))
        if channel is None:
            raise UnknownChannel(f"there is no loader {key!r} of {client}")
        self.heard("here", client)
        if channel.epoch != walk.epoch or self._pool.is_over:  # whoever begins an epoch finds every worker there
            channel.epoch = walk.epoch
            self._pool.start()
        channel.waiting.append(walk)
        self.deal(channel)
        return channel

    def end(self, channel: RemoteSession, walk: Walk) -> None:
        """Nobody waits for a walk any more, or its answer has been sent."""
        if walk in channel.waiting:
            channel.waiting.remove(walk)
        walk.done.set()
        walk.answer = None

    def _later(self, channel: RemoteSession) -> Callable[[], None]:
        loop, weak = self._loop, weakref.ref(self)

        def deal() -> None:
            channels = weak()
            if channels is not None:
                channels.deal(channel)

        return lambda: loop.call(deal)

    def deal(self, channel: RemoteSession) -> None:
        """Gives the workers as many walks as there is room for."""
        while (dealt := channel.next_walk(self._pool.ready)) is not None:
            number, walk = dealt
            place = {"c": channel.number, "epoch": walk.epoch, "batch": walk.batch}
            if walk.seeds is None:
                self._pool.send(walk.rank, "sample", g=0, step=number, slot=walk.slot, **place)
                continue
            fd = in_memory(np.ascontiguousarray(walk.seeds).data)
            try:
                self._pool.send(walk.rank, "now", (fd,), number=number, **place)
            finally:
                os.close(fd)

    # What workers say -----------------------------------------------------------------------------------------------------

    def on_message(self, rank: int, message: Message) -> None:
        """See ``gnnkit.cluster.serving.pool.Handler``."""
        body = message.body
        channel = next((found for found in self._channels.values() if found.number == body["c"]), None)
        if channel is None:
            message.close()
        elif message.kind == "opened":
            if not channel.is_open:
                self._give_ring(channel, body["nbytes"])
            self.deal(channel)
        else:
            nbytes = body["layout"]["nbytes"] if "layout" in body else 0
            channel.take(body.get("number", body.get("step", 0)), message, self._later(channel))
            if channel.is_larger(nbytes):
                self._give_ring(channel, nbytes)
            self.deal(channel)

    def _give_ring(self, channel: RemoteSession, largest: int) -> None:
        try:
            channel.make_ring(largest, self._pool.options.workers)
        except OSError as error:
            if not channel.is_open:  # whoever registers it again has it tried again
                self._channels = {name: found for name, found in self._channels.items() if found is not channel}
                self._give_up(channel, GnnkitError(f"there is no memory for batches of {largest / 1e6:.1f} MB: {error}"))
            return
        for rank in channel.told:
            self._send_ring(rank, channel)
        for opening in channel.opening:
            opening.set_result(channel.number)
        channel.opening.clear()

    def on_ready(self, rank: int) -> None:
        """See ``gnnkit.cluster.serving.pool.Handler``."""
        for channel in self._channels.values():
            self._introduce(rank, channel)
            self.deal(channel)

    def on_lost(self, rank: int, error: GnnkitError) -> None:
        """See ``gnnkit.cluster.serving.pool.Handler``: one that is started again does its work, others do not."""
        for channel in self._channels.values():
            channel.lost(rank, None if rank in self._pool.crew.alive else error)
            if self._pool.is_over:
                channel.fail(error)
            self.deal(channel)

    def _introduce(self, rank: int, channel: RemoteSession) -> None:
        channel.told.add(rank)
        self._pool.send(rank, "open", **channel.introduction(rank))
        if channel.is_open:
            self._send_ring(rank, channel)

    def _send_ring(self, rank: int, channel: RemoteSession) -> None:
        fds, body = channel.ring_message()
        self._pool.send(rank, "ring", fds, **body)


def _check_plan(plan: LoaderPlan, graph: GraphHandle) -> None:
    """Refuses what workers could not sample.

    Raises:
        PlanError: Something is not in this store.
    """
    schema, inputs, sampling = graph.arrays.schema, plan.inputs, plan.sampling
    fan_outs = sampling.num_neighbors if isinstance(sampling, NeighborSampling) else {}
    unknown = [edge_type for edge_type in fan_outs if edge_type not in schema.edge_types]
    lengths = {len(fan_out) for fan_out in fan_outs.values()}
    known = inputs.input_type in schema.node_types or inputs.input_type in schema.edge_types
    if not known or unknown or len(lengths) > 1 or sampling.edge_dir != graph.arrays.edge_dir:
        raise PlanError(
            f"the plan does not fit the servers' store: inputs of type {inputs.input_type!r}, edge types "
            f"{unknown or list(schema.edge_types)}, edge_dir={sampling.edge_dir!r}",
            "make the loader for this store",
        )
    splits = graph.link_splits.get(inputs.edge_type, {}) if isinstance(inputs, InputLinks) else graph.splits.get(inputs.node_type, {})
    if inputs.split is not None and inputs.split not in splits:
        raise PlanError(f"the servers' store has no split {inputs.split!r} of {inputs.input_type!r}", "name another, or give ids")

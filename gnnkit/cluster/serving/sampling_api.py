"""Sampling backends and the inputs that clients register with them: GiGL's and graphlearn-torch's calls over the server's workers.

A backend is a configuration under a name. It starts nothing of its own: all of a server's backends, and all of its other clients, share
the server's workers. An input is a channel on them. Whatever is done twice has been done, and nothing depends on the order in which
clients come.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.cluster.serving.served_plan import plan_of
from gnnkit.cluster.serving.served_stream import OVER, Reply, ServedStream, Waiting
from gnnkit.errors import GnnkitError, PlanError
from gnnkit.plan import LoaderPlan, PPRSampling
from gnnkit.runtime.remote import fresh
from gnnkit.runtime.wire import Message
from gnnkit.schema import NodeType
from gnnkit.storage.store import Store

if TYPE_CHECKING:
    from gnnkit.cluster.serving.pool import ServedWorkers

# Numbers stay exact wherever they may be taken for floats.
_NUMBER_BITS, _COUNT_BITS = 32, 20
_NO_SEEDS: NDArray[np.int64] = np.empty(0, np.int64)


@dataclass(eq=False)
class _Backend:
    """A configuration under a name."""

    number: int
    key: str
    digest: str
    ppr: Any
    is_ready: bool = False
    waiting: list[tuple[str, Reply]] = field(default_factory=list)
    holders: set[str] = field(default_factory=set)
    channels: dict[str, int] = field(default_factory=dict)  # by worker key


class SamplingApi:
    """Answers calls about sampling. Only the server's main thread uses it; replies may come later, each once.

    Args:
        store: The store that the workers sample.
        pool: The workers.
        ends_with_clients: Whether the server ends when its clients have left.
    """

    def __init__(self, store: Store, pool: ServedWorkers, *, ends_with_clients: bool = False) -> None:
        self._store, self._pool, self._ends_with_clients = store, pool, ends_with_clients
        self._backends: dict[int, _Backend] = {}
        self._channels: dict[int, ServedStream] = {}
        self._destroyed: set[int] = set()
        # Nothing that was known to a server before it was started anew is anything now.
        first = secrets.randbits(_NUMBER_BITS) << _COUNT_BITS
        self._backend_numbers, self._nameless, self._channel_numbers = itertools.count(first), itertools.count(1), itertools.count(first)
        pool.handlers.append(self)

    # Calls ------------------------------------------------------------------------------------------------------------------

    def init_backend(self, client: str, reply: Reply, key: str, config: Mapping[str, Any]) -> None:
        """The number of the backend ``key``, once there are workers for it; made by whoever asks first.

        Raises:
            PlanError: It exists with another configuration, or the configuration does not fit the store.
        """
        digest = _digest_of(self._plan(config, next(iter(self._store.schema.node_types)), _NO_SEEDS))
        backend = next((found for found in self._backends.values() if found.key == key), None)
        if backend is None:
            backend = _Backend(next(self._backend_numbers), key, digest, config.get("ppr"))
            self._backends[backend.number] = backend
        elif backend.digest != digest:
            raise PlanError(f"the sampling backend {key!r} exists with another configuration", "give it another backend_key")
        backend.holders.add(client)
        backend.waiting.append((client, reply))
        self._revive()
        self._answer_ready(backend)

    def register(
        self,
        client: str,
        reply: Reply,
        backend: int,
        worker_key: str,
        config: Mapping[str, Any],
        node_type: NodeType | None,
        ids: NDArray[Any],
        capacity: int,
    ) -> None:
        """The number of the channel of an input; clients that register the same under one name share its batches.

        Raises:
            PlanError: There is no such backend, its configuration is another one, or the name stands for another input.
        """
        found = self._backends.get(backend)
        if found is None or not found.is_ready:
            raise PlanError(f"there is no sampling backend {backend}", "init_sampling_backend gives its number")
        # An input has no options of a sampler, which are its backend's.
        plan = self._plan({**config, "ppr": found.ppr}, node_type, ids)
        if _digest_of(plan) != found.digest:
            raise PlanError(
                f"the input {worker_key!r} has another configuration than its sampling backend {found.key!r}",
                "use one sampling_config for both",
            )
        digest, number = _digest([plan.inputs.to_json(), capacity]), found.channels.get(worker_key)
        if number is None:
            number = self._open(found, worker_key, plan, digest, capacity)
        elif self._channels[number].digest != digest:
            raise PlanError(
                f"the worker_key {worker_key!r} stands for another input already",
                "clients that share a worker_key register the same input; give this one another",
            )
        self._channels[number].holders.add(client)
        reply(number)

    def create(
        self,
        client: str,
        reply: Reply,
        worker_key: str | None,
        config: Mapping[str, Any],
        node_type: NodeType | None,
        ids: NDArray[Any],
        capacity: int,
    ) -> None:
        """A backend and an input in one: graphlearn-torch's producer, shared by those who give the same ``worker_key``.

        Raises:
            PlanError: As ``init_backend`` and ``register``.
        """
        key = f"producer of {client} {next(self._nameless)}" if worker_key is None else f"producer {worker_key}"

        def go_on(backend: Any) -> None:
            try:
                if isinstance(backend, Exception):
                    raise backend
                self.register(client, reply, backend, key, config, node_type, ids, capacity)
            except GnnkitError as error:
                reply(error)

        self.init_backend(client, go_on, key, config)

    def start_epoch(self, client: str, reply: Reply, channel: int, epoch: int) -> None:
        """Starts an epoch of a channel; an epoch that was started before, or an older one, is left as it is.

        Raises:
            PlanError: There never was such a channel, or its client was taken for gone; destroyed ones are no error.
        """
        found = self._channels.get(channel)
        if found is None and channel not in self._destroyed:
            raise _unknown(channel)
        if found is not None:
            self._revive()
            found.begin(epoch)
            self._deal(found)
        reply(None)

    def fetch(self, client: str, reply: Reply, channel: int, epoch: int | None = None) -> None:
        """The next batch of a channel and False; None and True where there is none.

        Raises:
            PlanError: Nothing is known of the channel, and so not whether that is the end of ``epoch``; see ``start_epoch``.
        """
        found = self._channels.get(channel)
        if found is None:
            if epoch is not None and channel not in self._destroyed:
                raise _unknown(channel)
            reply(OVER)
            return
        found.fetch(Waiting(client, reply), epoch)
        self._deal(found)

    def destroy(self, client: str, reply: Reply, channel: int) -> None:
        """Gives a channel up for a client; it ends with the last one that holds it, and so does its backend."""
        found = self._channels.get(channel)
        if found is not None:
            self._destroyed.add(channel)
            self._release(channel, found, client)
        reply(None)

    def give_up(self, client: str, reply: Reply) -> None:
        """Gives up everything of a client that stays; says how many backends that were, and whether the server ends with its clients."""
        channels = {number for number, channel in self._channels.items() if client in channel.holders}
        held = [backend for backend in self._backends.values() if client in backend.holders or channels & {*backend.channels.values()}]
        self.left(client)
        reply({"backends": len(held), "ends_with_clients": self._ends_with_clients})

    def left(self, client: str) -> None:
        """A client has gone, or gives everything up: what it still waits for does not come."""
        for number, channel in list(self._channels.items()):
            channel.leave(client)
            if not channel.holders:
                self._release(number, channel, client)
        for backend in list(self._backends.values()):
            backend.holders.discard(client)
            gone = [reply for who, reply in backend.waiting if who == client]
            backend.waiting = [(who, reply) for who, reply in backend.waiting if who != client]
            self._tidy(backend)
            for reply in gone:
                reply(PlanError(f"the sampling backend {backend.key!r} was given up while it was awaited", "ask for it again"))

    def close(self) -> None:
        """Ends every channel."""
        for number, channel in list(self._channels.items()):
            channel.holders.clear()
            self._release(number, channel, "")
        self._backends.clear()

    # What workers say ---------------------------------------------------------------------------------------------------------

    def on_message(self, rank: int, message: Message) -> None:
        """See ``gnnkit.cluster.serving.pool.Handler``."""
        number = message.body["c"]
        channel = next((found for found in self._channels.values() if found.number == number), None)
        if channel is None or message.kind not in ("done", "error"):
            message.close()
            return
        channel.take(message)
        self._deal(channel)

    def on_ready(self, rank: int) -> None:
        """See ``gnnkit.cluster.serving.pool.Handler``."""
        for channel in self._channels.values():
            self._introduce(rank, channel)
            self._deal(channel)
        for backend in list(self._backends.values()):
            self._answer_ready(backend)

    def on_lost(self, rank: int, error: GnnkitError) -> None:
        """See ``gnnkit.cluster.serving.pool.Handler``: others do its work; where nobody is left, whoever waits hears why."""
        for channel in self._channels.values():
            channel.lost(rank)
            self._deal(channel)
        if not self._pool.is_over:
            return
        for channel in self._channels.values():
            channel.fail(error)
        for backend in list(self._backends.values()):
            waiting, backend.waiting = backend.waiting, []
            for _, reply in waiting:
                reply(fresh(error))
            if not backend.is_ready:  # the next one to ask tries again
                del self._backends[backend.number]

    # ----------------------------------------------------------------------------------------------------------------------------

    def _revive(self) -> None:
        if self._pool.is_over:
            self._pool.start()

    def _answer_ready(self, backend: _Backend) -> None:
        if not self._pool.ready:
            return
        backend.is_ready = True
        waiting, backend.waiting = backend.waiting, []
        for _, reply in waiting:
            reply(backend.number)

    def _plan(self, config: Mapping[str, Any], node_type: NodeType | None, ids: NDArray[Any]) -> LoaderPlan:
        return plan_of(self._store, config, node_type, ids)

    def _open(self, backend: _Backend, worker_key: str, plan: LoaderPlan, digest: str, capacity: int) -> int:
        channel = ServedStream(self._pool.open_channel(self), digest, plan, max(1, capacity), self._frame(plan))
        number = next(self._channel_numbers)
        self._channels[number], backend.channels[worker_key] = channel, number
        for rank in self._pool.ready:
            self._introduce(rank, channel)
        return number

    def _frame(self, plan: LoaderPlan) -> dict[str, Any]:
        """What messages look like."""
        schema = self._store.schema
        nodes, edges = (None, None) if schema.is_homogeneous else (list(schema.node_types), list(schema.edge_types))
        by_ppr = isinstance(plan.sampling, PPRSampling)
        types = {"node_types": nodes, "edge_types": edges, "input_type": plan.inputs.input_type}
        return {**types, "edge_dir": plan.sampling.edge_dir, "by_ppr": by_ppr}

    def _introduce(self, rank: int, channel: ServedStream) -> None:
        self._pool.send(rank, "open", c=channel.number, plan=channel.plan.to_json(), trial=None)

    def _deal(self, channel: ServedStream) -> None:
        for order in channel.deal(self._pool.ready):
            self._pool.send(order.rank, "now", c=channel.number, number=order.number, epoch=order.epoch, batch=order.batch)

    def _release(self, number: int, channel: ServedStream, client: str) -> None:
        channel.leave(client)
        if channel.holders:
            return
        channel.close()
        del self._channels[number]
        for rank in self._pool.ready:
            self._pool.send(rank, "close", c=channel.number)
        self._pool.close_channel(channel.number)
        for backend in list(self._backends.values()):
            kept = {key: held for key, held in backend.channels.items() if held != number}
            if len(kept) < len(backend.channels):
                backend.channels = kept
                if not kept:  # its last input
                    backend.holders.clear()
                self._tidy(backend)

    def _tidy(self, backend: _Backend) -> None:
        if not backend.channels and not backend.holders and not backend.waiting:
            self._backends.pop(backend.number, None)


def _unknown(channel: int) -> PlanError:
    hint = "register the input again: the server was started anew, or had not heard of this client for long"
    return PlanError(f"the channel {channel} is unknown", hint)


def _digest_of(plan: LoaderPlan) -> str:
    """Of what all inputs of a backend have in common."""
    return _digest([plan.sampling.to_json(), asdict(plan.batching)])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()

"""The server API: the calls that a server answers by name, those that sample among them."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import secrets
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gnnkit.cluster.network.requests import READS, SAMPLING, Requests, called
from gnnkit.cluster.serving.pool import ServedPool
from gnnkit.cluster.serving.store_api import StoreApi
from gnnkit.errors import GnnkitError, PlanError, SamplingError, near_matches
from gnnkit.plan import Batching, InputLinks, InputNodes, LoaderPlan, NeighborSampling, PPRSampling, Sampling, num_batches
from gnnkit.plan.sampling import EdgeUse, whole_fan_outs
from gnnkit.runtime.pool import BatchRequest, PoolSession, Sampled, WorkerPool
from gnnkit.runtime.remote import fresh
from gnnkit.runtime.scheduler import Scheduler
from gnnkit.samplers import PPR, channel_ratios
from gnnkit.schema import HOMOGENEOUS_NODE_TYPE, NodeType
from gnnkit.storage.store import Store

# A sampling configuration, see ``plan_of``, and the ids of seeds.
Config: TypeAlias = Mapping[str, Any]
Ids: TypeAlias = NDArray[Any]


def plan_of(store: Store, config: Config, node_type: NodeType | None, ids: Ids) -> LoaderPlan:
    """Makes a plan for a store from a configuration and seeds.

    Args:
        store: The store.
        config: ``num_neighbors`` (a list, or a list by edge type), ``batch_size``, ``shuffle``, ``drop_last``, ``with_edge``,
            ``with_weight``, ``edge_dir`` and ``seed``, as in graphlearn-torch's ``SamplingConfig``; possibly ``ppr``, the fields of a
            ``PPR`` that samples in the place of ``num_neighbors``, its channels as pairs of a list of edge types and a share.
        node_type: The seeds' type; None for a homogeneous graph.
        ids: Integers ``[n]``: the seeds.

    Raises:
        PlanError: Something is missing, unusable or does not fit the store.
    """
    try:
        batching = Batching(config["batch_size"], bool(config["shuffle"]), bool(config["drop_last"]), seed=config["seed"] or 0)
        sampling = _sampling(store, config)
    except (AttributeError, KeyError, TypeError) as error:
        raise PlanError(f"the sampling configuration cannot be read: {type(error).__name__}: {error}") from error
    owner = HOMOGENEOUS_NODE_TYPE if node_type is None else node_type
    seeds = np.asarray(ids, np.int64)
    store.to_store_ids(owner, seeds)  # an unknown type or an id out of range is found here, and not by a worker
    inputs = InputNodes(owner, f"node/{owner}/ids", ids=seeds)
    return LoaderPlan(store.reference, inputs, sampling, batching)


def _sampling(store: Store, config: Config) -> Sampling:
    if config["edge_dir"] != store.edge_dir:
        raise PlanError(
            f"edge_dir={config['edge_dir']!r}, and the servers' store is compressed for {store.edge_dir!r}",
            f"sample along edge_dir={store.edge_dir!r}, or serve a store that was built with edge_dir={config['edge_dir']!r}",
        )
    weight = store.options.weight
    if config["with_weight"] and weight is None:
        raise PlanError(
            f"with_weight=True, and the servers' store {str(store.path)!r} was built without weights",
            "build it with weight=<name of an edge array>, or leave with_weight out",
        )
    with_edge = bool(config["with_edge"])
    if with_edge and not store.options.with_edge:
        raise PlanError(
            f"with_edge=True, and the servers' store {str(store.path)!r} holds no edge ids", "build it with with_edge=True, or leave it out"
        )
    weight = weight if config["with_weight"] else None
    if config.get("ppr") is not None:
        words = config["ppr"]
        ppr = PPR(**{**words, "typed_channel_ratios": channel_ratios(words["typed_channel_ratios"] or ())})
        return ppr.sampling(store.schema, EdgeUse(store.edge_dir, weight, with_edge=with_edge))
    return NeighborSampling(whole_fan_outs(config["num_neighbors"], store.schema), False, store.edge_dir, weight, with_edge)


# Called once with a value or an error.
Reply: TypeAlias = Callable[[Any], None]
# What a fetch is answered with once there is nothing more to come.
OVER = (None, True)


class ServedStream(PoolSession):
    """One registered input. Only the server's main thread uses it.

    Batches come in the order of the epoch's list; several clients that fetch from one channel divide them among themselves, each batch
    going to the next client that asks. At most ``capacity`` batches are sampled ahead, however long no client fetches.

    Args:
        pool: The server's pool of workers.
        digest: What was registered, to compare with.
        plan: Its plan, whose seeds are ids.
        capacity: Batches under way or waiting to be fetched, at most.
        frame: What goes with every batch.

    Attributes:
        digest: See above.
        holders: Clients that have registered it and not destroyed it.
        epoch: The epoch that is under way or ran last; -1 before the first.
    """

    def __init__(self, pool: ServedPool, digest: str, plan: LoaderPlan, capacity: int, frame: Mapping[str, Any]) -> None:
        super().__init__(plan, capacity)
        inputs, batching = plan.inputs, plan.batching
        assert not isinstance(inputs, InputLinks) and inputs.ids is not None, "an input is registered with its ids"
        self.digest, self._pool = digest, pool
        self.holders: set[str] = set()
        self.epoch = -1
        self._num_steps, self._frame = num_batches(len(inputs.ids), batching.batch_size, batching.drop_last), frame
        self._scheduler: Scheduler[Any] = Scheduler(capacity)
        self._clients: deque[tuple[str, Reply]] = deque()  # that wait for a batch
        self._failure: GnnkitError | None = None

    def begin(self, epoch: int) -> None:
        """Starts an epoch, unless it or a newer one has been started. Clients that wait for the one before hear that it is over."""
        if epoch > self.epoch:
            self._begin(epoch, self._num_steps)

    def _begin(self, epoch: int, num_steps: int) -> None:
        for request in [*self._waiting, *self._given.values()]:
            self.forget(request)
        self._answer_all(OVER)
        self.epoch, self._failure = epoch, None
        self._scheduler.begin(epoch, num_steps)
        self._advance()

    def fetch(self, client: str, reply: Reply, epoch: int | None) -> None:
        """Answers with the next batch, now or later; with ``OVER`` where there is none, or the epoch that is meant has gone by."""
        if epoch is not None and epoch != self.epoch:
            reply(OVER)
            return
        self._clients.append((client, reply))
        self._advance()

    def deal(self, workers: WorkerPool) -> None:
        """Gives the workers what there is room for; once there are some again, the epoch goes on."""
        if workers.ready:
            self._failure = None
        super().deal(workers)

    def lost(self, rank: int | None, error: GnnkitError | None) -> None:
        """A worker is gone, and others do its work; without any, the epoch cannot go on for now."""
        super().lost(rank, None)
        if error is not None and self._pool.is_over:
            self._failure = error
            self._serve()

    def let_go(self, client: str) -> None:
        """Forgets a client; if it waits, it hears that there is nothing more to come. The last one ends the channel."""
        self.holders.discard(client)
        gone = [reply for who, reply in self._clients if who == client]
        self._clients = deque((who, reply) for who, reply in self._clients if who != client)
        for reply in gone:
            reply(OVER)
        if not self.holders:
            self._begin(self.epoch, 0)
            self._pool.remove(self)

    def _advance(self) -> None:
        """Serves clients with what is there, and has sampled what there is room for."""
        self._serve()
        while self._scheduler.next_step() is not None:
            generation, batch = self._scheduler.assign(0)
            self.ask(BatchRequest(self.epoch, batch, None, partial(self._came, generation, batch), f"sampling batch {batch}"))
        self.deal(self._pool.workers)

    def _came(self, generation: int, batch: int, sampled: Sampled) -> None:
        found: Any = sampled
        if not isinstance(sampled, GnnkitError):
            found = {"frame": dict(self._frame), "epoch": self.epoch, "layout": sampled[0]["layout"], "block": sampled[1]}, False
        self._scheduler.complete(generation, batch, found)
        self._advance()

    def _serve(self) -> None:
        while self._clients:
            if self._scheduler.is_over:
                self._answer_all(OVER)
            elif self._scheduler.delivered in self._scheduler.results:
                self._clients.popleft()[1](self._scheduler.hand_out())
            elif self._failure is not None:
                self._answer_all(self._failure)
            else:
                return

    def _answer_all(self, answer: Any) -> None:
        clients, self._clients = self._clients, deque()
        for _, reply in clients:
            reply(fresh(answer) if isinstance(answer, GnnkitError) else answer)


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

    def __init__(self, store: Store, pool: ServedPool, *, ends_with_clients: bool = False) -> None:
        self._store, self._pool, self._ends_with_clients = store, pool, ends_with_clients
        self._backends: dict[int, _Backend] = {}
        self._channels: dict[int, ServedStream] = {}
        self._destroyed: set[int] = set()
        # Nothing that was known to a server before it was started anew is anything now.
        first = secrets.randbits(_NUMBER_BITS) << _COUNT_BITS
        self._backend_numbers, self._nameless, self._channel_numbers = itertools.count(first), itertools.count(1), itertools.count(first)
        pool.watchers.append(self._on_worker)

    # Calls ------------------------------------------------------------------------------------------------------------------

    def init_backend(self, client: str, reply: Reply, key: str, config: Config) -> None:
        """The number of the backend ``key``, once there are workers for it; the first call makes it.

        Raises:
            PlanError: It exists with another configuration, or the configuration does not fit the store.
        """
        digest = _digest_of(plan_of(self._store, config, next(iter(self._store.schema.node_types)), _NO_SEEDS))
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
        self, client: str, reply: Reply, backend: int, worker_key: str, config: Config, node_type: NodeType | None, ids: Ids, capacity: int
    ) -> None:
        """The number of the channel of an input; clients that register the same under one name share its batches.

        Raises:
            PlanError: There is no such backend, its configuration is another one, or the name stands for another input.
        """
        found = self._backends.get(backend)
        if found is None or not found.is_ready:
            raise PlanError(f"there is no sampling backend {backend}", "init_sampling_backend gives its number")
        # An input has no options of a sampler, which are its backend's.
        plan = plan_of(self._store, {**config, "ppr": found.ppr}, node_type, ids)
        if _digest_of(plan) != found.digest:
            raise PlanError(
                f"the input {worker_key!r} has another configuration than its sampling backend {found.key!r}",
                "use one sampling_config for both",
            )
        digest, number = _digest([plan.inputs.to_json(), capacity]), found.channels.get(worker_key)
        if number is None:
            number = found.channels[worker_key] = next(self._channel_numbers)
            channel = self._channels[number] = ServedStream(self._pool, digest, plan, max(1, capacity), self._frame(plan))
            self._pool.add(channel)
        elif self._channels[number].digest != digest:
            raise PlanError(
                f"the worker_key {worker_key!r} stands for another input already",
                "clients that share a worker_key register the same input; give this one another",
            )
        self._channels[number].holders.add(client)
        reply(number)

    def create(
        self, client: str, reply: Reply, worker_key: str | None, config: Config, node_type: NodeType | None, ids: Ids, capacity: int
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
        found.fetch(client, reply, epoch)

    def destroy(self, client: str, reply: Reply, channel: int) -> None:
        """Gives a channel up for a client; it ends with the last one that holds it, and so does its backend."""
        if (found := self._channels.get(channel)) is not None:
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

    def _on_worker(self, rank: int, error: GnnkitError | None) -> None:
        """A worker is there, or has ended with an error: the last one's is told to clients that wait for a backend."""
        if error is None:
            for backend in list(self._backends.values()):
                self._answer_ready(backend)
            return
        for backend in list(self._backends.values()) if self._pool.is_over else ():
            waiting, backend.waiting = backend.waiting, []
            for _, reply in waiting:
                reply(fresh(error))
            if not backend.is_ready:  # the next one to ask tries again
                del self._backends[backend.number]

    # ----------------------------------------------------------------------------------------------------------------------------

    def _revive(self) -> None:
        if self._pool.is_over:
            self._pool.workers.start_missing()

    def _answer_ready(self, backend: _Backend) -> None:
        if not self._pool.workers.ready:
            return
        backend.is_ready = True
        waiting, backend.waiting = backend.waiting, []
        for _, reply in waiting:
            reply(backend.number)

    def _frame(self, plan: LoaderPlan) -> dict[str, Any]:
        """Returns the properties that all messages of a plan share: types, direction and kind of sampling."""
        schema = self._store.schema
        nodes, edges = (None, None) if schema.is_homogeneous else (list(schema.node_types), list(schema.edge_types))
        by_ppr = isinstance(plan.sampling, PPRSampling)
        types = {"node_types": nodes, "edge_types": edges, "input_type": plan.inputs.input_type}
        return {**types, "edge_dir": plan.sampling.edge_dir, "by_ppr": by_ppr}

    def _release(self, number: int, channel: ServedStream, client: str) -> None:
        channel.let_go(client)
        if channel.holders:
            return
        del self._channels[number]
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


logger = logging.getLogger(__name__)


class ServerApi:
    """Answers the calls of a server's clients. Used by the server's main thread only; what takes long is read in a thread of its own.

    Args:
        reads: Answers what is asked of the store.
        sampling: Answers what is about sampling.
        later: Runs a function in the main thread, soon; called from any thread.
    """

    def __init__(self, reads: StoreApi, sampling: SamplingApi, later: Callable[[Callable[[], None]], None]) -> None:
        self._reads, self._sampling, self._later = reads, sampling, later
        self._tickets = itertools.count()
        self._pending: defaultdict[str, set[int]] = defaultdict(set)
        self._reader = ThreadPoolExecutor(1, "gnnkit-api")

    def call(self, client: str, name: str, args: Mapping[str, Any], reply: Reply) -> None:
        """Answers a call.

        Args:
            client: Who calls.
            name: What.
            args: Its arguments by name.
            reply: Called once with the answer or an error, now or later, in the main thread; never after ``left(client)``.
        """
        ticket = next(self._tickets)
        self._pending[client].add(ticket)

        def answer(value: Any) -> None:
            if ticket in self._pending.get(client, ()):
                self._pending[client].discard(ticket)
                reply(value)

        try:
            request = Requests.__members__.get(name)
            kind = None if request is None else request.kind
            if kind == READS:
                self._read(partial(called, getattr(self._reads, name), name, args), answer)
            elif kind == SAMPLING:
                called(partial(getattr(self._sampling, name), client, answer), name, args)
            else:
                known = [known.name for known in Requests if known.kind in (READS, SAMPLING)]
                raise PlanError(f"a server answers no call {name!r}{near_matches(name, known)}", "code is never sent to a server")
        except Exception as error:
            answer(_own(error, name))

    def left(self, client: str) -> None:
        """A client has gone: what it had registered is given up, and nothing is answered any more."""
        self._pending.pop(client, None)
        self._sampling.left(client)

    def close(self) -> None:
        """Ends everything."""
        self._pending.clear()
        self._sampling.close()
        self._reader.shutdown(wait=False)

    def _read(self, question: Callable[[], Any], answer: Reply) -> None:
        def work() -> None:
            try:
                found = question()
            except Exception as error:
                found = _own(error, "a call")
            self._later(lambda: answer(found))

        self._reader.submit(work)


def _own(error: Exception, name: str) -> GnnkitError:
    if isinstance(error, GnnkitError):
        return error
    logger.info("%s failed", name, exc_info=True)
    own = SamplingError(f"{name} failed: {type(error).__name__}: {error}")
    own.__cause__ = error
    return own

"""The loaders of other hosts that a server samples for: their sessions among its workers, and the requests that they make."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from gnnkit.bounds import MOST_BATCHES, is_whole, shown
from gnnkit.cluster.membership import CLIENT_PREFIX
from gnnkit.cluster.network.requests import Requests, UnknownLoader, ids_of
from gnnkit.cluster.network.service import Stream, limit_of, settle, waited
from gnnkit.errors import BatchTimeout, GnnkitError, PlanError, StartTimeout
from gnnkit.plan import InputLinks, LoaderPlan, NeighborSampling
from gnnkit.runtime.batches import BatchList
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.runtime.pool import BatchRequest, PoolSession, Sampled, trial_batch
from gnnkit.runtime.remote import fresh
from gnnkit.runtime.ring import Ring, roomy_slot_size
from gnnkit.runtime.scheduler import MOST_CONCURRENT
from gnnkit.runtime.wire import Message
from gnnkit.sampling.owners import BadRequest
from gnnkit.storage.store import Store

if TYPE_CHECKING:
    from gnnkit.cluster.serving.loop import ServerLoop
    from gnnkit.cluster.serving.pool import ServedPool

# Slots beside those that are sampled into: for structures that are being sent.
_SENDING = 4


class RemoteSession(PoolSession):
    """One loader of one client on another host. Structures come back in the slots of a ring, which is made once their size is known.

    Args:
        loop: The server.
        pool: Its workers.
        plan: Its plan.
        graph: The graph.
        as_sent: The plan as it came, to compare with.

    Attributes:
        as_sent: See above.
        epoch: The epoch of the last walk.
    """

    def __init__(self, loop: ServerLoop, pool: ServedPool, plan: LoaderPlan, graph: GraphHandle, as_sent: dict[str, Any]) -> None:
        super().__init__(plan, _concurrency(plan))
        self.as_sent = as_sent
        self.epoch: int | None = None
        self._loop, self._pool, self._schedule = loop, pool, BatchList(plan, graph).schedule()
        self._opening: list[Future[int]] = []

    def setup(self, rank: int) -> dict[str, Any]:
        """Returns the message that introduces the loader to a worker, which is to sample structures."""
        trial = trial_batch(self._schedule, rank) if self.ring is None else None
        return {**super().setup(rank), "trial": trial, "mode": "structure"}

    def opened(self) -> Future[int]:
        """The loader's number, once walks can be asked for."""
        opened: Future[int] = Future()
        if self.ring is not None:
            opened.set_result(self.number)
        else:
            self._opening.append(opened)
            self._pool.workers.start_missing()
        return opened

    def take(self, rank: int, message: Message) -> None:
        """Handles what a worker says; the first that has sampled a batch to try says how large the slots have to be."""
        if message.kind != "opened":
            super().take(rank, message)
        elif self.ring is None:
            self._use_ring_for(message.body["nbytes"])

    def lost(self, rank: int | None, error: GnnkitError | None) -> None:
        """A worker is gone: one that is started again does its work, no other one does; without any, nothing is done."""
        super().lost(rank, error)
        if error is not None and self._pool.is_over:
            self.fail(error)

    def fail(self, error: GnnkitError) -> None:
        """Fails all walks and registrations that are under way."""
        super().lost(None, error)
        for opening in self._opening:
            opening.set_exception(fresh(error))
        self._opening.clear()

    def _place(self, request: BatchRequest) -> bool:
        if self.ring is not None and request.seeds is None:
            slot = self.ring.take(request)
            if slot is None:
                return False
            request.slot, request.ring = slot, self.ring
        return self.ring is not None

    def _read(self, request: BatchRequest, batch: Mapping[str, Any], message: Message) -> Sampled:
        found = super()._read(request, batch, message)
        nbytes = batch["layout"]["nbytes"] if "layout" in batch else 0
        if self.ring is not None and nbytes > self.ring.slot_bytes:
            self._use_ring_for(nbytes)
        return found

    def _freed(self) -> None:
        """A slot is free again; called from anywhere."""
        self._loop.call(lambda: self.deal(self._pool.workers))

    def _use_ring_for(self, largest: int) -> None:
        """Makes a ring for structures of up to ``largest`` bytes and somewhat more; walks under way keep the one before."""
        pool = self._pool
        try:
            self.ring = Ring(pool.count * self._most_each + _SENDING, roomy_slot_size(largest))
        except OSError as error:
            if self.ring is None:  # the next registration tries again
                self.fail(GnnkitError(f"there is no memory for batches of {largest / 1e6:.1f} MB: {error}"))
                pool.remove(self)
            return
        pool.hand_ring(self)
        for opening in self._opening:
            opening.set_result(self.number)
        self._opening.clear()


def _concurrency(plan: LoaderPlan) -> int:
    """Walks of a loader that a worker is given at a time."""
    wanted = plan.backend.get("worker_concurrency", 2)
    return min(MOST_CONCURRENT, max(1, wanted)) if isinstance(wanted, int) else 2


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


class RemoteLoaders:
    """The loaders of other hosts; requests come in any thread, and sessions are the main thread's.

    Args:
        loop: The server.
        pool: Its workers.
        store: The store.
        heard: See ``gnnkit.cluster.membership.LeaseRequests``.
    """

    def __init__(self, loop: ServerLoop, pool: ServedPool, store: Store, heard: Callable[[Requests, str, int], None]) -> None:
        self._loop, self._pool, self._heard = loop, pool, heard
        self._graph = GraphHandle.of(store)
        self._sessions: dict[tuple[str, str], RemoteSession] = {}  # by client and key

    def left(self, client: str) -> None:
        """A client says goodbye, or has not been heard of for long: what it had here goes."""

        def leave() -> None:
            for name, key in [found for found in self._sessions if found[0] == client]:
                self._give_up(name, key)

        self._loop.call(leave)

    def _give_up(self, client: str, key: str) -> None:
        """Gives a session up, if there is one: its ring goes with the last structure in it."""
        if (session := self._sessions.pop((client, key), None)) is not None:
            session.fail(UnknownLoader(f"the loader {key!r} of {client} was given up"))
            self._pool.remove(session)

    def _session(self, client: str, key: str, sent: dict[str, Any]) -> Future[int]:
        """Gives a loader its session, or finds the one that is there; see ``RemoteSession.opened``.

        Raises:
            PlanError: The plan is of no use here, or another one was registered under this key.
        """
        session, pool = self._sessions.get((client, key)), self._pool
        if session is None or not session.number:
            plan = LoaderPlan.from_json(sent)
            _check_plan(plan, self._graph)
            session = self._sessions[client, key] = RemoteSession(self._loop, pool, plan, self._graph, sent)
            pool.add(session)
        elif session.as_sent != sent:
            raise PlanError(f"the loader {key!r} of {client} was registered with another plan", "give each loader a key of its own")
        return session.opened()

    def _begin(self, client: str, key: str, walk: BatchRequest) -> RemoteSession:
        """Has a batch walked.

        Raises:
            UnknownLoader: It is not there.
        """
        session, pool = self._sessions.get((client, key)), self._pool
        if session is None or not session.number:
            raise UnknownLoader(f"there is no loader {key!r} of {client}")
        if session.epoch != walk.epoch or pool.is_over:  # missing workers are started when an epoch begins
            session.epoch = walk.epoch
            pool.workers.start_missing()
        session.ask(walk)
        session.deal(pool.workers)
        return session

    # Requests ---------------------------------------------------------------------------------------------------------------

    def add_loader(self, client: Any, key: Any, timeout_s: Any, plan: Any) -> dict[str, Any]:
        """A loader comes in with its plan; answered once a worker can sample for it.

        Raises:
            PlanError: See ``_session``.
            StartTimeout: No worker was there in time.
        """
        limit_s = _checked(client, key, timeout_s)
        try:  # what workers are told is JSON, and nothing else
            plan = json.loads(json.dumps(plan))
        except (TypeError, ValueError, RecursionError) as error:
            raise BadRequest("the plan cannot be read") from error
        if not isinstance(plan, dict):
            raise BadRequest("there is no plan")
        self._heard(Requests.here, client, 0)  # the client may have had no time to say so itself
        opened: Future[int] = self._loop.result_of(lambda: self._session(client, key, plan))
        try:
            return {"channel": opened.result(limit_s)}
        except TimeoutError as error:
            raise StartTimeout(f"no sampling process was ready within {limit_s:g} s", "look at the server's log") from error

    def remove_loader(self, client: Any, key: Any, timeout_s: Any = 0.0) -> dict[str, Any]:
        """A loader leaves."""
        _checked(client, key, timeout_s)
        self._loop.call(partial(self._give_up, client, key))
        return {}

    def walk(self, client: Any, key: Any, timeout_s: Any, epoch: Any, batch: Any, seeds: Any = None) -> Stream:
        """A batch's structure: its layout as a text, and its block.

        Raises:
            BadRequest: There is no such batch.
            UnknownLoader: See ``_begin``.
        """
        limit_s = _checked(client, key, timeout_s)
        if not is_whole(epoch, 0, MOST_BATCHES) or not is_whole(batch, 0, MOST_BATCHES):
            raise BadRequest(f"there is no batch {shown(batch)} of epoch {shown(epoch)}")
        done: Future[Any] = Future()
        walk = BatchRequest(epoch, batch, None if seeds is None else ids_of(seeds), partial(settle, done))
        session: RemoteSession = self._loop.result_of(lambda: self._begin(client, key, walk))
        return Stream(self._answer(session, walk, done, limit_s))

    def _answer(self, session: RemoteSession, walk: BatchRequest, done: Future[Any], timeout_s: float) -> Generator[Any, None, None]:
        """Waits for a batch, and gives it; a client that has gone ends this."""
        try:
            yield from waited(done, timeout_s, BatchTimeout(f"no sampling process has sampled the batch within {timeout_s:g} s"))
            batch, block = done.result()
            yield json.dumps(batch["layout"], separators=(",", ":")), block
        finally:
            self._loop.call(partial(session.forget, walk))


def _checked(client: Any, key: Any, timeout_s: Any) -> float:
    """The seconds that the answer to a request of a loader may take.

    Raises:
        BadRequest: There is no such loader or time.
    """
    if not isinstance(client, str) or not client.startswith(CLIENT_PREFIX) or not isinstance(key, str) or len(client) + len(key) > 200:
        raise BadRequest("the request names no loader")
    return limit_of(timeout_s)

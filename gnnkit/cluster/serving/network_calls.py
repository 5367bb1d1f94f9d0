"""The calls that a server answers over the network: its outline, the server API, and the sessions of loaders on other hosts."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.bounds import MOST_BATCHES, is_real, is_whole, shown
from gnnkit.cluster.membership import CLIENT_PREFIX, Membership, ServerMember, check_version
from gnnkit.cluster.network_wire import NotYet
from gnnkit.cluster.parts.service import PENDING, Answer, Answers, Stream, lease_calls
from gnnkit.cluster.service_client import ids_of
from gnnkit.errors import BatchTimeout, GnnkitError, PlanError, SamplingError, StartTimeout
from gnnkit.files import open_regular
from gnnkit.plan import InputLinks, LoaderPlan, NeighborSampling
from gnnkit.runtime.batches import BatchList
from gnnkit.runtime.beats import BEAT_S
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.runtime.pool import BatchRequest, PoolSession, Sampled, trial_batch
from gnnkit.runtime.remote import fresh, layout_from_json
from gnnkit.runtime.ring import Ring, roomy_slot_size
from gnnkit.runtime.scheduler import MOST_CONCURRENT
from gnnkit.runtime.wire import Message
from gnnkit.sampling.owners import BadRequest
from gnnkit.sampling.structure import Structure
from gnnkit.storage.layout import MANIFEST_NAME
from gnnkit.storage.manifest import Manifest, outline_files
from gnnkit.storage.store import Store
from gnnkit.waiting import Deadline

if TYPE_CHECKING:
    from gnnkit.cluster.serving.loop import ServerLoop
    from gnnkit.cluster.serving.pool import ServedPool


class UnknownChannel(GnnkitError):
    """The server knows nothing of the loader: it has been started again, or has not heard of the client for long. Register again."""


def walk_from_value(value: Any) -> Structure:
    """A server's answer to a walk, which is the layout as a text and the block; nothing is copied.

    Raises:
        BadRequest: It is none of its.
    """
    try:
        layout, block = value
        if not isinstance(block, np.ndarray) or block.dtype != np.uint8 or block.ndim != 1:
            raise BadRequest("this is no answer to a walk")
        return Structure(layout_from_json(json.loads(layout)), block)
    except (SamplingError, TypeError, ValueError, RecursionError) as error:
        raise BadRequest(f"the answer cannot be read: {error}") from error


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


_MOST_S = 3600.0


class NetworkCalls:
    """The table of a server's ``PartServer``, which grows when it learns more; its functions are called from any thread.

    Args:
        path: The store's folder.
        manifest: Its manifest.
        on_main: Runs something in the server's main thread, and waits.
        loop: The server.

    Attributes:
        table: What answers calls, by their names.
    """

    def __init__(self, path: Path, manifest: Manifest, on_main: Callable[[Callable[[], Any]], Any], loop: ServerLoop) -> None:
        self._path, self._on_main, self._loop = path, on_main, loop
        self._files = {MANIFEST_NAME, *outline_files(manifest)}
        self._sessions: dict[tuple[str, str], RemoteSession] = {}  # by client and key; for the main thread
        later = ("announce", "membership", "here", "bye", "register", "release", "expand", "question", "rows", "walk")
        self.table: dict[str, Answer] = {**dict.fromkeys(later, _not_yet), "call": self._call, "file": self._file}

    def meet(self, membership: Membership) -> None:
        """Lets others announce themselves, and tells who is there."""
        self._membership = membership
        self.table |= {"announce": self._announce, "membership": self._members}

    def open(self, answers: Answers, store: Store, heard: Callable[[str, str, int], None]) -> None:
        """Answers about parts, and samples, from now on.

        Args:
            answers: Knows the parts, and what a request must say.
            store: The store.
            heard: See ``lease_calls``.
        """
        self._answers, self._heard = answers, heard
        self._graph = GraphHandle(store.arrays(), store.splits, store.reference, link_splits=store.link_splits)
        walks = {"walk": self._walk, "register": self._register, "release": self._release}
        self.table |= {**answers.calls, **lease_calls(answers.check, heard), **walks}

    # Sessions of loaders on other hosts -----------------------------------------------------------------------------------

    def left(self, client: str) -> None:
        """A client says goodbye, or has not been heard of for long: what it had here goes."""

        def leave() -> None:
            for name, key in [found for found in self._sessions if found[0] == client]:
                self._give_up(name, key)

        self._loop.call(leave)

    @property
    def _pool(self) -> ServedPool:
        """The workers.

        Raises:
            NotYet: There are none yet.
        """
        if self._loop.pool is None:
            raise NotYet("the server is not there yet")
        return self._loop.pool

    def _give_up(self, client: str, key: str) -> None:
        """Gives a session up, if there is one: its ring goes with the last structure in it."""
        session = self._sessions.pop((client, key), None)
        if session is not None:
            session.fail(UnknownChannel(f"the loader {key!r} of {client} was given up"))
            self._pool.remove(session)

    def _session(self, client: str, key: str, sent: dict[str, Any]) -> Future[int]:
        """Gives a loader its session, or finds the one that is there; see ``RemoteSession.opened``.

        Raises:
            PlanError: The plan is of no use here, or another one was registered under this key.
            NotYet: There are no workers yet.
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
            UnknownChannel: It is not registered.
            NotYet: There are no workers yet.
        """
        session, pool = self._sessions.get((client, key)), self._pool
        if session is None or not session.number:
            raise UnknownChannel(f"there is no loader {key!r} of {client}")
        if session.epoch != walk.epoch or pool.is_over:  # missing workers are started when an epoch begins
            session.epoch = walk.epoch
            pool.workers.start_missing()
        session.ask(walk)
        session.deal(pool.workers)
        return session

    def _register(self, body: dict[str, Any]) -> dict[str, Any]:
        self._answers.check(body)
        client, key, timeout_s = _names(body)
        try:  # what workers are told is JSON, and nothing else
            plan = json.loads(json.dumps(body.get("plan")))
        except (TypeError, ValueError, RecursionError) as error:
            raise BadRequest("the plan cannot be read") from error
        if not isinstance(plan, dict):
            raise BadRequest("there is no plan")
        self._heard("here", client, 0)  # the client may have had no time to say so itself
        opened: Future[int] = self._on_main(lambda: self._session(client, key, plan))
        try:
            return {"channel": opened.result(timeout_s)}
        except TimeoutError as error:
            raise StartTimeout(f"no sampling process was ready within {timeout_s:g} s", "look at the server's log") from error

    def _release(self, body: dict[str, Any]) -> dict[str, Any]:
        self._answers.check(body)
        client, key, _ = _names({"timeout_s": 0, **body})
        self._loop.call(partial(self._give_up, client, key))
        return {}

    def _walk(self, args: dict[str, Any]) -> Stream:
        self._answers.check(args)
        client, key, timeout_s = _names(args)
        epoch, batch, seeds = args.get("epoch"), args.get("batch"), args.get("seeds")
        if not is_whole(epoch, 0, MOST_BATCHES) or not is_whole(batch, 0, MOST_BATCHES):
            raise BadRequest(f"there is no batch {shown(batch)} of epoch {shown(epoch)}")
        done: Future[Any] = Future()
        walk = BatchRequest(epoch, batch, None if seeds is None else ids_of(seeds), partial(_settle, done))
        session: RemoteSession = self._on_main(lambda: self._begin(client, key, walk))
        return Stream(self._answer(session, walk, done, timeout_s))

    def _answer(self, session: RemoteSession, walk: BatchRequest, done: Future[Any], timeout_s: float) -> Generator[Any, None, None]:
        """Waits for a batch, and gives it; a client that has gone ends this."""
        late = BatchTimeout(f"no sampling process has sampled the batch within {timeout_s:g} s")
        try:
            yield from _waited(done, timeout_s, late)
            batch, block = done.result()
            yield json.dumps(batch["layout"], separators=(",", ":")), block
        finally:
            self._loop.call(partial(session.forget, walk))

    # Calls, files, and other servers --------------------------------------------------------------------------------------

    def _announce(self, body: dict[str, Any]) -> dict[str, Any]:
        check_version(body)
        self._membership.announce(ServerMember.of_json(body.get("server")))
        return self._membership.to_json()

    def _members(self, body: dict[str, Any]) -> dict[str, Any]:
        check_version(body)
        return self._membership.to_json()

    def _file(self, args: dict[str, Any]) -> NDArray[np.uint8]:
        check_version(args)
        name = args.get("name")
        if name not in self._files:
            raise BadRequest(f"there is no public file {name!r}")
        with open(open_regular(self._path / name, self._path), "rb") as file:
            return np.fromfile(file, np.uint8)

    def _call(self, args: dict[str, Any]) -> Stream:
        """Has the server answer a call, as over its Unix socket; see ``ServerLoop.answer``."""
        check_version(args)
        try:
            client, name, asked, timeout_s = str(args["client"]), str(args["name"]), args["args"], _timeout(args)
        except KeyError as error:
            raise BadRequest("the call cannot be read") from error
        done: Future[Any] = Future()

        reply = partial(_settle, done)

        def ask() -> None:
            try:
                if name != "status":
                    _ = self._pool
                self._loop.answer(client, name, asked, reply)
            except Exception as error:
                reply(error)

        self._loop.call(ask)
        return Stream(_outcome(done, name, timeout_s))


def _settle(done: Future[Any], value: Any) -> None:
    """Ends a wait with a value or an error."""
    if isinstance(value, Exception):
        done.set_exception(value)
    else:
        done.set_result(value)


def _waited(done: Future[Any], timeout_s: float, late: BatchTimeout) -> Generator[Any, None, None]:
    """Waits for a value, and says meanwhile that it is not there yet; a client that has gone ends this."""
    deadline = Deadline(timeout_s)
    while not wait([done], deadline.within(BEAT_S)).done:
        if deadline.has_passed:
            raise late
        yield PENDING


def _outcome(done: Future[Any], name: str, timeout_s: float) -> Generator[Any, None, None]:
    """Waits for a call's value, and gives it."""
    yield from _waited(done, timeout_s, BatchTimeout(f"{name!r} was not answered within {timeout_s:g} s", "look at the server's log"))
    yield done.result()


def _names(head: Mapping[str, Any]) -> tuple[str, str, float]:
    """The client, the loader's key, and the seconds that the answer may take."""
    client, key = head.get("client"), head.get("key")
    if not isinstance(client, str) or not client.startswith(CLIENT_PREFIX) or not isinstance(key, str) or len(client) + len(key) > 200:
        raise BadRequest("the request names no loader")
    return client, key, _timeout(head)


def _timeout(head: Mapping[str, Any]) -> float:
    """The seconds that an answer may take."""
    timeout_s = head.get("timeout_s")
    if not is_real(timeout_s):
        raise BadRequest(f"timeout_s is {shown(timeout_s)}")
    return max(0.0, min(_MOST_S, timeout_s))


def _not_yet(args: dict[str, Any]) -> Any:
    """Refuses a call that the server cannot answer yet; the client tries again."""
    raise NotYet("the server is not there yet")

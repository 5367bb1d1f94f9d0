"""The calls that a server answers over the network: its outline, the server API, and the sessions of loaders on other hosts."""

from __future__ import annotations

import itertools
import json
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.bounds import MOST_BATCHES, is_real, is_whole, shown
from gnnkit.cluster.membership import CLIENT_PREFIX, LeaseTable, Membership, ServerMember, check_version
from gnnkit.cluster.network_wire import NotYet
from gnnkit.cluster.parts.service import PENDING, Answer, Answers, Stream, lease_calls
from gnnkit.cluster.service_client import ids_of
from gnnkit.errors import BatchTimeout, GnnkitError, PlanError, SamplingError, StartTimeout
from gnnkit.files import open_regular
from gnnkit.plan import InputLinks, LoaderPlan, NeighborSampling
from gnnkit.runtime.batches import BatchList
from gnnkit.runtime.beats import BEAT_S, SESSION_SILENCE_S
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.runtime.remote import error_from_json, fresh, layout_from_json
from gnnkit.runtime.ring import Ring, mapped, roomy_slot_size
from gnnkit.runtime.scheduler import MOST_CONCURRENT
from gnnkit.runtime.wire import Message, in_memory
from gnnkit.sampling.owners import BadRequest
from gnnkit.sampling.structure import Structure
from gnnkit.storage.layout import MANIFEST_NAME
from gnnkit.storage.manifest import Manifest, outline_files
from gnnkit.storage.store import Store
from gnnkit.waiting import Deadline

if TYPE_CHECKING:
    from gnnkit.cluster.serving.loop import ServerLoop
    from gnnkit.cluster.serving.pool import ServedWorkers


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


@dataclass(eq=False)
class Walk:
    """A batch whose structure a client waits for.

    Attributes:
        epoch: The epoch.
        batch: Index in its list of batches.
        seeds: int64 ``[k]`` dataset ids of a batch outside the epoch, or None.
        answer: The layout as JSON and the bytes, or why there are none; set before ``done``.
        done: Whether there is an answer.
    """

    epoch: int
    batch: int
    seeds: NDArray[np.int64] | None
    answer: tuple[dict[str, Any], NDArray[np.uint8]] | GnnkitError | None = None
    done: threading.Event = field(default_factory=threading.Event)
    rank: int = -1
    slot: int = -1
    ring: Ring[Walk] | None = None

    def settle(self, answer: tuple[dict[str, Any], NDArray[np.uint8]] | GnnkitError) -> None:
        """Answers."""
        self.answer = answer
        self.done.set()

    def give_back(self) -> None:
        """Frees its slot, whose content is not needed."""
        if self.ring is not None:
            self.ring.free(self.slot, self)
        self.rank, self.ring = -1, None


class RemoteSession:
    """One loader of one client.

    Args:
        number: What workers know it by.
        plan: Its plan.
        as_sent: The plan as it came, to compare with.
        batches: The plan's batches.

    Attributes:
        number: See above.
        as_sent: See above.
        told: Workers that know it.
        waiting: Walks that no worker has been given.
        sent: Walks that workers have been given, by number.
        opening: Registrations that wait for the channel to be of use.
        epoch: The epoch of the last walk.
    """

    def __init__(self, number: int, plan: LoaderPlan, as_sent: dict[str, Any], batches: BatchList) -> None:
        self.number, self.as_sent = number, as_sent
        self.told: set[int] = set()
        self.waiting: deque[Walk] = deque()
        self.sent: dict[int, Walk] = {}
        self.opening: list[Future[int]] = []
        self.epoch: int | None = None
        self._plan, self._schedule = plan.to_json(), batches.schedule()
        self._ring: Ring[Walk] | None = None
        self._numbers = itertools.count(1)
        self._concurrency = _concurrency(plan)

    @property
    def is_open(self) -> bool:
        """Whether walks can be dealt."""
        return self._ring is not None

    def introduction(self, rank: int) -> dict[str, Any]:
        """Returns the message that introduces the session to a worker, with a batch to try while the size of batches is unknown."""
        count = len(self._schedule)
        trial = None if self.is_open or not count else self._schedule.step(rank % count).batch_index
        return {"c": self.number, "plan": self._plan, "trial": trial, "mode": "structure"}

    def make_ring(self, largest: int, workers: int) -> None:
        """Makes a ring for structures of up to ``largest`` bytes and somewhat more; walks under way keep the one before.

        Raises:
            OSError: There is no memory for it.
        """
        self._ring = Ring(workers * self._concurrency + _SENDING, roomy_slot_size(largest))

    def ring_message(self) -> tuple[tuple[int, ...], dict[str, Any]]:
        """Returns the message that hands the ring to a worker: descriptors and body."""
        assert self._ring is not None
        return (self._ring.block.fd,), {"c": self.number, "slot_bytes": self._ring.slot_bytes}

    def is_larger(self, nbytes: int) -> bool:
        """Whether a structure is larger than the slots."""
        return self._ring is None or nbytes > self._ring.slot_bytes

    def next_walk(self, ready: frozenset[int]) -> tuple[int, Walk] | None:
        """Gives the next walk to the worker with least to do, and takes a slot for it: its number, or None where there is no room."""
        loads = {rank: 0 for rank in sorted(self.told & ready)}
        for walk in self.sent.values():
            if walk.rank in loads:
                loads[walk.rank] += 1
        rank = min(loads, key=loads.__getitem__, default=None)
        if self._ring is None or not self.waiting or rank is None or loads[rank] >= self._concurrency:
            return None
        walk = self.waiting[0]
        if walk.seeds is None:
            slot = self._ring.take(walk)
            if slot is None:
                return None
            walk.slot, walk.ring = slot, self._ring
        self.waiting.popleft()
        walk.rank, number = rank, next(self._numbers)
        self.sent[number] = walk
        return number, walk

    def take(self, number: int, body: Mapping[str, Any], message: Message, freed: Callable[[], None]) -> None:
        """Handles what a worker says about a walk; ``freed`` is called, from anywhere, once the slot is free again."""
        walk = self.sent.pop(number, None)
        if walk is None or walk.done.is_set():  # its client waits no more
            if walk is not None:
                walk.give_back()
            message.close()
        elif "error" in body:
            walk.give_back()
            walk.settle(error_from_json(body["error"], "sampling a batch"))
        elif message.fds:  # it was too large for its slot, or has none
            walk.give_back()
            try:
                walk.settle((body["layout"], mapped(message.fds[0])[: body["layout"]["nbytes"]]))
            except OSError as error:
                walk.settle(GnnkitError(f"a batch of {body['layout']['nbytes'] / 1e6:.0f} MB cannot be mapped: {error}"))
        else:
            assert walk.ring is not None
            nbytes = body["layout"]["nbytes"]
            walk.settle((body["layout"], walk.ring.lease(walk.slot, nbytes, freed)[:nbytes]))

    def lost(self, rank: int, error: GnnkitError | None) -> None:
        """A worker is gone: what it had is dealt again, or fails with ``error``."""
        self.told.discard(rank)
        for number in [number for number, walk in self.sent.items() if walk.rank == rank]:
            walk = self.sent.pop(number)
            walk.give_back()
            if not walk.done.is_set():
                if error is None:
                    self.waiting.appendleft(walk)
                else:
                    walk.settle(fresh(error))

    def fail(self, error: GnnkitError) -> None:
        """Fails all walks and registrations that are under way."""
        for walk in [*self.waiting, *self.sent.values()]:
            if not walk.done.is_set():
                walk.settle(fresh(error))
        self.waiting.clear()
        for opening in self.opening:
            opening.set_exception(fresh(error))
        self.opening.clear()


def _concurrency(plan: LoaderPlan) -> int:
    """Walks of a loader that a worker is given at a time."""
    wanted = plan.backend.get("worker_concurrency", 2)
    return min(MOST_CONCURRENT, max(1, wanted)) if isinstance(wanted, int) else 2


logger = logging.getLogger(__name__)


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
        self._leases = LeaseTable[str, None](SESSION_SILENCE_S)
        pool.handlers.append(self)

    def heard(self, what: str, client: str) -> None:
        """A client says that it is there, or that it leaves."""
        if what == "bye":
            self._drop(client)
            return
        self._leases.here(client, None)

    def tidy(self) -> None:
        """Drops the clients that have not been heard of for long."""
        for client in self._leases.forget_silent():
            logger.info("%s has not been heard of for %g s", client, SESSION_SILENCE_S)
            self._drop(client)

    def _drop(self, client: str) -> None:
        for name, key in [found for found in self._channels if found[0] == client]:
            self.release(name, key)
        self._leases.bye(client)

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
            UnknownChannel: It is not registered.
        """
        channel = self._channels.get((client, key))
        if channel is None:
            raise UnknownChannel(f"there is no loader {key!r} of {client}")
        self.heard("here", client)
        if channel.epoch != walk.epoch or self._pool.is_over:  # missing workers are started when an epoch begins
            channel.epoch = walk.epoch
            self._pool.start()
        channel.waiting.append(walk)
        self.deal(channel)
        return channel

    def end(self, channel: RemoteSession, walk: Walk) -> None:
        """The answer of a walk has been sent, or is not needed any more."""
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
            place = {"c": channel.number, "epoch": walk.epoch}
            if walk.seeds is None:
                self._pool.send(walk.rank, "sample", g=0, steps=[[number, walk.batch, walk.slot]], **place)
                continue
            fd = in_memory(np.ascontiguousarray(walk.seeds).data)
            try:
                self._pool.send(walk.rank, "now", (fd,), number=number, batch=walk.batch, **place)
            finally:
                os.close(fd)

    # What workers say -----------------------------------------------------------------------------------------------------

    def on_message(self, rank: int, message: Message) -> None:
        """Handles what a worker says about a channel."""
        body = message.body
        channel = next((found for found in self._channels.values() if found.number == body["c"]), None)
        if channel is None:
            message.close()
        elif message.kind == "opened":
            if not channel.is_open:
                self._give_ring(channel, body["nbytes"])
            self.deal(channel)
        else:
            (batch,) = body.get("batches", [body])  # a walk is a job of its own
            nbytes = batch["layout"]["nbytes"] if "layout" in batch else 0
            channel.take(body.get("number", batch.get("step", 0)), batch, message, self._later(channel))
            if channel.is_larger(nbytes):
                self._give_ring(channel, nbytes)
            self.deal(channel)

    def _give_ring(self, channel: RemoteSession, largest: int) -> None:
        try:
            channel.make_ring(largest, self._pool.options.workers)
        except OSError as error:
            if not channel.is_open:  # the next registration tries again
                self._channels = {name: found for name, found in self._channels.items() if found is not channel}
                self._give_up(channel, GnnkitError(f"there is no memory for batches of {largest / 1e6:.1f} MB: {error}"))
            return
        for rank in channel.told:
            self._send_ring(rank, channel)
        for opening in channel.opening:
            opening.set_result(channel.number)
        channel.opening.clear()

    def on_ready(self, rank: int) -> None:
        """Introduces every channel to a worker that is there."""
        for channel in self._channels.values():
            self._introduce(rank, channel)
            self.deal(channel)

    def on_lost(self, rank: int, error: GnnkitError) -> None:
        """Has a worker that is started again do the lost one's work, or fails it: no other worker does."""
        for channel in self._channels.values():
            channel.lost(rank, None if rank in self._pool.supervisor.alive else error)
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
        self._sessions: RemoteSessions | None = None
        self._closed = threading.Event()
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
        self._answers = answers
        self._graph = GraphHandle(store.arrays(), store.splits, store.reference, link_splits=store.link_splits)
        walks = {"walk": self._walk, "register": self._register, "release": self._release}
        self.table |= {**answers.calls, **lease_calls(answers.check, heard), **walks}

    def close(self) -> None:
        """Stops looking after clients."""
        self._closed.set()

    # Sessions of loaders on other hosts -----------------------------------------------------------------------------------

    def heard(self, what: str, client: str) -> None:
        """A client says "here" or "bye"."""
        self._tell(lambda sessions: sessions.heard(what, client))

    def _tell(self, fn: Callable[[RemoteSessions], None]) -> None:
        """Calls a function in the main thread, once there are workers."""
        self._loop.call(lambda: None if self._loop.pool is None else fn(self._known()))

    def _known(self) -> RemoteSessions:
        """The loaders of other hosts; in the main thread."""
        if self._sessions is None:
            if self._loop.pool is None:
                raise NotYet("the server is not there yet")
            self._sessions = RemoteSessions(self._loop, self._loop.pool, self._graph)
            threading.Thread(target=self._look_after, name="gnnkit-wire-clients", daemon=True).start()
        return self._sessions

    def _look_after(self) -> None:
        while not self._closed.wait(BEAT_S):
            self._tell(lambda sessions: sessions.tidy())

    def _register(self, body: dict[str, Any]) -> dict[str, Any]:
        self._answers.check(body)
        client, key, timeout_s = _names(body)
        try:  # what workers are told is JSON, and nothing else
            plan = json.loads(json.dumps(body.get("plan")))
        except (TypeError, ValueError, RecursionError) as error:
            raise BadRequest("the plan cannot be read") from error
        if not isinstance(plan, dict):
            raise BadRequest("there is no plan")
        opened: Future[int] = self._on_main(lambda: self._known().register(client, key, plan))
        try:
            return {"channel": opened.result(timeout_s)}
        except TimeoutError as error:
            raise StartTimeout(f"no sampling process was ready within {timeout_s:g} s", "look at the server's log") from error

    def _release(self, body: dict[str, Any]) -> dict[str, Any]:
        self._answers.check(body)
        client, key, _ = _names({"timeout_s": 0, **body})
        self._tell(lambda sessions: sessions.release(client, key))
        return {}

    def _walk(self, args: dict[str, Any]) -> Stream:
        self._answers.check(args)
        client, key, timeout_s = _names(args)
        epoch, batch, seeds = args.get("epoch"), args.get("batch"), args.get("seeds")
        if not is_whole(epoch, 0, MOST_BATCHES) or not is_whole(batch, 0, MOST_BATCHES):
            raise BadRequest(f"there is no batch {shown(batch)} of epoch {shown(epoch)}")
        walk = Walk(epoch, batch, None if seeds is None else ids_of(seeds))
        channel: RemoteSession = self._on_main(lambda: self._known().begin(client, key, walk))
        return Stream(self._answer(channel, walk, timeout_s))

    def _answer(self, channel: RemoteSession, walk: Walk, timeout_s: float) -> Generator[Any, None, None]:
        """Waits for a batch, and gives it; a client that has gone ends this."""
        deadline = Deadline(timeout_s)
        try:
            while not walk.done.wait(deadline.within(BEAT_S)):
                if deadline.has_passed:
                    raise BatchTimeout(f"no sampling process has sampled the batch within {timeout_s:g} s")
                yield PENDING
            if isinstance(walk.answer, GnnkitError):
                raise walk.answer
            assert walk.answer is not None, "only this takes it away"
            layout, block = walk.answer
            yield json.dumps(layout, separators=(",", ":")), block
        finally:
            self._tell(lambda sessions: sessions.end(channel, walk))

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

        def reply(value: Any) -> None:
            if isinstance(value, Exception):
                done.set_exception(value)
            else:
                done.set_result(value)

        def ask() -> None:
            try:
                if self._loop.pool is None and name != "status":
                    _not_yet({})
                self._loop.answer(client, name, asked, reply)
            except Exception as error:
                reply(error)

        self._loop.call(ask)
        return Stream(_outcome(done, name, timeout_s))


def _outcome(done: Future[Any], name: str, timeout_s: float) -> Generator[Any, None, None]:
    """Waits for a call's value, and gives it; a client that has gone ends this."""
    deadline = Deadline(timeout_s)
    while not wait([done], deadline.within(BEAT_S)).done:
        if deadline.has_passed:
            raise BatchTimeout(f"{name!r} was not answered within {timeout_s:g} s", "look at the server's log")
        yield PENDING
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

"""A sampling process: its clients, their sessions and jobs, its graph, and the loop that samples into shared memory."""

from __future__ import annotations

import logging
import mmap
import os
import select
import socket
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gnnkit.bounds import MOST_BATCHES, is_whole, shown
from gnnkit.errors import MemoryLimitError, PlanError, StoreError
from gnnkit.events import Event
from gnnkit.host import FreeMemory
from gnnkit.plan import LoaderPlan, StoreRef
from gnnkit.runtime.batches import BatchList
from gnnkit.runtime.entry import ParentWatch
from gnnkit.runtime.graph_memory import GraphHandle, SharedGraph, share
from gnnkit.runtime.remote import error_to_json, layout_to_json
from gnnkit.runtime.ring import SharedBlock, given_up, rounded
from gnnkit.runtime.wire import PARENT_WAIT_S, Message, Waker, Wire, from_memory
from gnnkit.sampling.graph_access import NodeScratch
from gnnkit.sampling.kinds import BatchSampler, local_sampler, prepare, warm
from gnnkit.sampling.subgraph import SampleRequest
from gnnkit.sampling.tables import GraphTables
from gnnkit.storage.arrays import HUGE_PAGE
from gnnkit.storage.store import Store
from gnnkit.waiting import Deadline

logger = logging.getLogger(__name__)

# The process that has started this one.
STARTER = 0
# The most messages taken from one process before the others have their turn.
_TURN = 64


class Clients:
    """The connections. ``send`` may be called from any thread, everything else from the main one.

    What a process does not read is kept for it, and no process waits: one that is stopped keeps no other from its batches. How much that
    can be is bounded by what it has asked for.

    Args:
        starter: The connection to the process that has started this one.
    """

    def __init__(self, starter: Wire) -> None:
        self._wires: dict[int, Wire] = {STARTER: starter}
        self._waker = Waker()

    def admit(self, number: int, fd: int) -> None:
        """Takes a process in.

        Args:
            number: What it is known by.
            fd: A connected socket to it; taken over.
        """
        self._wires[number] = Wire(socket.socket(fileno=fd))

    def remove(self, number: int) -> None:
        """Ends the connection to a process, if there is one."""
        if (wire := self._wires.pop(number, None)) is not None:
            wire.close()

    def send(self, number: int, kind: str, fds: tuple[int, ...] = (), /, **body: object) -> None:
        """Sends a message to a process, now or once it reads; one that is gone gets nothing."""
        if (wire := self._wires.get(number)) is not None and not wire.send(kind, fds, **body):
            self._waker.wake()

    def listen(self, timeout_s: float) -> Iterator[tuple[int, Message | None]]:
        """Waits until something arrives or a message that was kept can be sent, and yields what has arrived, None from one that is gone."""
        self._wait(timeout_s)
        for number, wire in list(self._wires.items()):
            try:
                for message in wire.messages(_TURN):
                    yield number, message
                    if number not in self._wires:  # it was removed because of what it said
                        break
            except EOFError:
                yield number, None
            except Exception:
                if number == STARTER:
                    raise
                logger.warning("process %d sent a message that cannot be read, and is removed", number, exc_info=True)
                yield number, None

    def _wait(self, timeout_s: float) -> None:
        poller = select.poll()
        for wire in self._wires.values():
            wire.register(poller)
        self._waker.wait(poller, max(0.0, timeout_s))


# A loader: the number of the process that it lives in, 0 for the one that has started this one, and its own number there.
ChannelKey = tuple[int, int]


@dataclass(frozen=True, eq=False)
class JobStep:
    """A batch of a job.

    Attributes:
        step: The loader's step.
        batch_index: Index in the epoch's list of batches.
        ring: The ring that its slot belongs to, also once the loader has another one; None: it goes to memory of its own.
        slot: Which of the ring's slots.
    """

    step: int
    batch_index: int
    ring: WorkerRing | None = None
    slot: int = -1


@dataclass(frozen=True, eq=False)
class SamplingJob:
    """Batches of one loader, sampled and answered together.

    Attributes:
        channel: The loader.
        kind: "sample": batches of an epoch; "now": one outside it, for which a client is waiting; "trial": one of a new loader's, which
            only says how large its batches are.
        number: Counts the epochs that the loader has begun, and a job of an older one is dropped; of "now", the request's number.
        epoch: The epoch.
        steps: The batches, at least one.
        seeds: int64 ``[k]`` dataset ids of a batch of "now"; None for a batch of the loader's list.
    """

    channel: ChannelKey
    kind: Literal["sample", "now", "trial"]
    number: int
    epoch: int
    steps: tuple[JobStep, ...]
    seeds: NDArray[np.int64] | None = None

    @property
    def place(self) -> dict[str, Any]:
        """The fields by which an answer names it; steps are named beside it."""
        return {"c": self.channel[1], "number" if self.kind == "now" else "g": self.number}


@dataclass(eq=False)
class JobQueue:
    """Jobs that wait and jobs that run. Loaders take turns: one that has much to do does not keep another one waiting."""

    _changed: threading.Condition = field(default_factory=threading.Condition)
    # By loader, the next one first; a loader that has nothing waiting is not there.
    _waiting: OrderedDict[ChannelKey, deque[SamplingJob]] = field(default_factory=OrderedDict)
    _urgent: OrderedDict[ChannelKey, deque[SamplingJob]] = field(default_factory=OrderedDict)
    _favoured: set[ChannelKey] = field(default_factory=set)  # had an urgent job done since the last turn of an epoch
    _running: list[SamplingJob] = field(default_factory=list)

    def put(self, job: SamplingJob) -> None:
        """Adds a job; those that a client waits for go first, one of each loader before an epoch has its turn."""
        with self._changed:
            jobs = self._waiting if job.kind == "sample" else self._urgent
            jobs.setdefault(job.channel, deque()).append(job)
            self._changed.notify()

    def take(self) -> SamplingJob:
        """Waits for a job."""
        with self._changed:
            self._changed.wait_for(lambda: self._urgent or self._waiting)
            urgent = next((channel for channel in self._urgent if channel not in self._favoured or not self._waiting), None)
            if urgent is None:
                self._favoured.clear()
                job = _next_of(self._waiting, next(iter(self._waiting)))
            else:
                self._favoured.add(urgent)
                job = _next_of(self._urgent, urgent)
            self._running.append(job)
            return job

    def done(self, job: SamplingJob) -> None:
        """Says that a job's outcome has been sent."""
        with self._changed:
            self._running.remove(job)

    def cancel(self, channel: ChannelKey, generation: int) -> list[tuple[int, int]]:
        """Drops a loader's jobs that are older than ``generation``.

        Returns:
            The number and step of each batch among them that is being sampled, and will be answered.
        """
        with self._changed:
            if kept := deque(job for job in self._waiting.pop(channel, ()) if job.number >= generation):
                self._waiting[channel] = kept
            running = [job for job in self._running if (job.channel, job.kind) == (channel, "sample") and job.number < generation]
            return [(job.number, step.step) for job in running for step in job.steps]

    def forget(self, channel: ChannelKey) -> None:
        """Drops everything of a loader that has left; what is running comes to its end."""
        with self._changed:
            self._waiting.pop(channel, None)
            self._urgent.pop(channel, None)
            self._favoured.discard(channel)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits or runs."""
        with self._changed:
            return not (self._urgent or self._waiting or self._running)


def _next_of(jobs: OrderedDict[ChannelKey, deque[SamplingJob]], channel: ChannelKey) -> SamplingJob:
    """Takes a loader's next job; what else it has waits behind the others."""
    own = jobs.pop(channel)
    job = own.popleft()
    if own:
        jobs[channel] = own
    return job


@dataclass(eq=False)
class WorkerRing:
    """The slots, as this process maps them.

    Attributes:
        block: All of them.
        slot_bytes: Bytes of each.
    """

    block: SharedBlock
    slot_bytes: int
    _populated: dict[int, int] = field(default_factory=dict)

    def take(self, number: int, nbytes: int) -> NDArray[np.uint8] | None:
        """uint8 ``[slot_bytes]``, slot ``number``, to write a batch of ``nbytes`` to; None where it does not fit."""
        if nbytes > self.slot_bytes:
            return None
        self._populate(number, nbytes)
        return self.block.bytes[number * self.slot_bytes : (number + 1) * self.slot_bytes]

    def give_back(self, number: int) -> None:
        """Gives a slot's memory back to the system if the loader has given the ring up meanwhile, and will not look at it."""
        if given_up(self.block)[0]:
            self.block.release(number * self.slot_bytes, self.slot_bytes)

    def _populate(self, number: int, nbytes: int) -> None:
        """Has huge pages under the first ``nbytes`` of a slot; what the system refuses once is not asked for again."""
        done = self._populated.get(number, 0)
        if self.slot_bytes % HUGE_PAGE == 0 and nbytes > done:
            wanted = rounded(nbytes)
            collapsed = self.block.populate(number * self.slot_bytes + done, wanted - done)
            self._populated[number] = wanted if collapsed else self.slot_bytes


class OtherHosts:
    """The way of a sampling process to what is not on its host: parts of the graph, or servers that walk in its place. This one: nothing.

    Args:
        threads: Sampling threads that the user asked for.

    Attributes:
        threads: Sampling threads to run.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def session(self, graph: WorkerGraph, plan: LoaderPlan) -> WorkerChannel | None:
        """The session of a loader whose batches are walked elsewhere; None where they are walked here."""
        return None

    def sampler(self, tables: GraphTables, plan: LoaderPlan, scratch: NodeScratch, *, walks_only: bool) -> BatchSampler:
        """A sampler for one thread, on the thread's memory per node."""
        return local_sampler(tables, plan.inputs, plan.sampling, scratch, walks_only=walks_only, cached=plan.cached)

    def report(self) -> dict[str, Any]:
        """Values that are sent with each batch."""
        return {}

    def leave(self) -> None:
        """Tells the other hosts that this process needs them no more."""


# Makes the way to other hosts that a setup message describes, for the graph, the store that it is of (None: one in memory) and so many
# threads; None where there is none.
ConnectHosts = Callable[[Mapping[str, Any], GraphHandle, Store | None, int], OtherHosts | None]


class WorkerGraph:
    """The graph as it lies in memory now; shared by the sampling threads and by all loaders.

    Args:
        setup: The first message.
        connect: Makes the way to other hosts.

    Attributes:
        handle: The graph as it was opened.
        graph: The arrays to read now.
        others: The way to other hosts.
    """

    def __init__(self, setup: Message, connect: ConnectHosts) -> None:
        description, store_ref, hosts = setup.body["graph"], setup.body["store"], setup.body["hosts"]
        threads, shared, store = int(setup.body["threads"]), None, None
        if store_ref is None:
            shared = SharedGraph.attach(setup.fds[0], description)
            self.handle = GraphHandle(shared.graph, {})
        else:
            reference = StoreRef(**store_ref)
            store = Store.open(reference.path) if hosts is None else Store.open(reference.path, **hosts["held"])
            if store.fingerprint != reference.fingerprint:
                raise StoreError(f"the store {str(store.path)!r} was replaced while it was in use", "make the loader again")
            self.handle = GraphHandle.of(store)
            if description is not None:
                shared = SharedGraph.attach(setup.fds[0], description, self.handle.arrays)
        self.others = connect(setup.body, self.handle, store, threads) or OtherHosts(threads)
        self.graph = self.handle.arrays if shared is None else shared.graph
        self._lock = threading.Lock()
        self._tables: dict[bool, GraphTables] = {}

    def tables(self, weighted: bool) -> GraphTables:
        """The tables of the graph as it lies in memory now."""
        with self._lock:
            tables = self._tables.get(weighted)
            if tables is None or tables.graph is not self.graph:
                tables = self._tables[weighted] = GraphTables(self.graph, weighted)
            return tables

    def channel(self, plan: LoaderPlan, mode: str) -> WorkerChannel:
        """Makes the channel that samples for one loader.

        Args:
            plan: The loader's plan.
            mode: "batch", or "structure" where the rows are gathered by another process.
        """
        if (elsewhere := self.others.session(self, plan)) is not None:
            return elsewhere
        prepare(plan.inputs, plan.sampling, caches=bool(plan.cached))
        warm()  # the kernels of its kind, which other loaders do without
        return WorkerChannel(self, plan, walks_only=mode == "structure")


class WorkerChannel:
    """One of the loaders that this process samples for.

    Args:
        graph: The graph.
        plan: The loader's plan.
        walks_only: Whether it is for batches' structures (``gnnkit.sampling.structure``) instead of batches.
    """

    def __init__(self, graph: WorkerGraph, plan: LoaderPlan, *, walks_only: bool = False) -> None:
        self._graph, self._plan, self._walks_only = graph, plan, walks_only
        self._weighted = plan.sampling.weight is not None
        self._batches = BatchList(plan, graph.handle)
        self._lock = threading.Lock()
        self._samplers: dict[int, BatchSampler] = {}
        self._ring: WorkerRing | None = None

    def use_ring(self, block: SharedBlock, slot_bytes: int) -> None:
        """Batches go to the slots of this ring from now on."""
        self._ring = WorkerRing(block, slot_bytes)

    def ring_with(self, number: int) -> WorkerRing:
        """The ring, which has this slot.

        Raises:
            PlanError: There is no ring yet, or the slot does not lie in it.
        """
        if self._ring is None or (number + 1) * self._ring.slot_bytes > self._ring.block.nbytes:
            raise PlanError(f"there is no slot {number}", "the ring comes first, with room for every slot")
        return self._ring

    def request(self, epoch: int, batch_index: int, seeds: NDArray[np.int64] | None = None) -> SampleRequest:
        """Returns the request that a batch is sampled from: one of the epoch's list, or one of the ``seeds``, int64 ``[k]`` dataset ids."""
        with self._lock:
            return self._batches.request(epoch, batch_index, seeds)

    def sampler(self, thread: int, scratches: dict[int, NodeScratch]) -> BatchSampler:
        """Returns the sampler of a sampling thread for this loader's batches.

        Args:
            thread: The thread's number.
            scratches: Memory per node, by thread, shared by all loaders.
        """
        tables, sampler = self._graph.tables(self._weighted), self._samplers.get(thread)
        if sampler is None:
            scratch = scratches.get(thread)
            if scratch is None:
                scratch = scratches[thread] = NodeScratch(tables)
            sampler = self._samplers[thread] = self._graph.others.sampler(tables, self._plan, scratch, walks_only=self._walks_only)
        if sampler.tables is not tables:
            sampler.use(tables)
        return sampler

    def close(self) -> None:
        """The loader has left."""


class RefusedChannel(WorkerChannel):
    """A loader that cannot be sampled for; each batch that it asks for is the error that says why.

    Args:
        error: The error.
    """

    def __init__(self, error: Exception) -> None:
        self._error, self._ring = error, None

    def request(self, epoch: int, batch_index: int, seeds: NDArray[np.int64] | None = None) -> SampleRequest:
        """Raises the error."""
        raise self._error


# At most so many reports of progress a second.
_EVENT_GAP_S = 0.1


class WorkerLoop:
    """Obeys the process that has started this one, and those that it lets in.

    Args:
        wire: The connection to it.
        watch: This process's watchman.
        connect: Makes the way to other hosts.
    """

    def __init__(self, wire: Wire, watch: ParentWatch, connect: ConnectHosts) -> None:
        self._wire, self._watch, self._connect = wire, watch, connect
        self._clients = Clients(wire)
        self._jobs = JobQueue()
        self._channels: dict[ChannelKey, WorkerChannel] = {}
        self._scratches: dict[int, NodeScratch] = {}
        self._copying: threading.Thread | None = None
        self._idle_s: float | None = None
        self._last_event = 0.0
        # What loaders say, wherever they are.
        self._obey: dict[str, Callable[[int, Message], None]] = {
            "open": self._open,
            "ring": self._use_ring,
            "sample": self._queue,
            "now": self._queue_now,
            "cancel": self._cancel,
            "close": self._close,
        }
        # What only the process that has started this one may say.
        self._obey_starter: dict[str, Callable[[int, Message], None]] = {
            **self._obey,
            "copy": self._copy,
            "graph": self._use_graph,
            "client": lambda _, message: self._clients.admit(message.body["client"], message.fds[0]),
            "left": lambda _, message: self._remove_client(message.body["client"]),
        }

    def run(self, setup: Message | None = None) -> None:
        """Works until its starter goes away or says stop, or it has been idle for long.

        Args:
            setup: The first message, where it was received already.
        """
        try:
            setup = setup or self._wire.next()
            warm(self._forward)
            self._graph = WorkerGraph(setup, self._connect)
            for _ in range(self._graph.others.threads):
                threading.Thread(target=self._sample, name="gnnkit-sampler", daemon=True).start()
        except EOFError:
            return
        except BaseException as error:  # the loader raises it
            self._wire.tell("failed", error=error_to_json(error))
            raise
        self._idle_s = setup.body["idle_s"]
        self._wire.tell("ready")
        if self._serve():
            self._wire.tell("idle")

    def _serve(self) -> bool:
        """Does what is asked until the process is to end; whether it ends because it has been idle for as long as the user allows."""
        idle = Deadline(self._idle_s)
        while True:
            was_busy = self._is_busy()
            for client, message in self._clients.listen(idle.within(PARENT_WAIT_S) + 0.001):
                idle = Deadline(self._idle_s)
                if client != STARTER:
                    self._serve_client(client, message)
                elif message is None:
                    return False
                elif message.kind == "stop":
                    self._graph.others.leave()
                    return False
                else:
                    self._serve_starter(message)
            if was_busy or self._is_busy():
                idle = Deadline(self._idle_s)
            elif idle.has_passed:
                return True

    def _serve_starter(self, message: Message) -> None:
        """Does what the process that has started this one asks; what cannot be done for a loader is an error of that loader alone."""
        try:
            self._obey_starter[message.kind](STARTER, message)
        except Exception as error:
            if message.kind not in self._obey:
                raise
            logger.warning("a loader asks for what cannot be done: %r", message.kind, exc_info=True)
            self._refuse(message, error)

    def _refuse(self, message: Message, error: Exception) -> None:
        """Answers a loader of the process that has started this one with an error."""
        body, told = message.body, error_to_json(error)
        if message.kind == "open":
            self._channels[_key(STARTER, message)] = RefusedChannel(error)
            self._clients.send(STARTER, "opened", c=body["c"], nbytes=0)
        elif message.kind == "now":
            self._clients.send(STARTER, "error", error=told, c=body["c"], number=body["number"])
        elif message.kind == "sample":
            for step, *_ in body["steps"]:
                self._clients.send(STARTER, "error", error=told, c=body["c"], g=body["g"], step=step)

    def _serve_client(self, client: int, message: Message | None) -> None:
        """Does what another process asks; one that is gone, or asks for what cannot be, is let go with everything that it has here."""
        try:
            if message is not None:
                self._obey[message.kind](client, message)
                return
        except Exception as error:
            logger.warning("process %d asks for what cannot be done", client, exc_info=True)
            self._clients.send(client, "failed", error=error_to_json(error))
        finally:
            if message is not None:
                message.close()
        self._remove_client(client)

    def _remove_client(self, client: int) -> None:
        self._clients.remove(client)
        for key in [key for key in self._channels if key[0] == client]:
            self._jobs.forget(key)
            self._channels.pop(key).close()

    def _is_busy(self) -> bool:
        return not self._jobs.is_idle or (self._copying is not None and self._copying.is_alive())

    def _forward(self, event: Event) -> None:
        """Sends progress on; the loader draws it."""
        if event.kind != "progress" or event.time_s - self._last_event >= _EVENT_GAP_S:
            self._last_event = event.time_s
            self._wire.tell("event", fields=astuple(event))

    def _open(self, client: int, message: Message) -> None:
        """A loader comes in; a batch is tried where it does not know how large they are."""
        key, trial = _key(client, message), message.body["trial"]
        self._channels[key] = self._graph.channel(LoaderPlan.from_json(message.body["plan"]), message.body.get("mode", "batch"))
        if trial is None:
            self._clients.send(client, "opened", c=key[1], nbytes=0)
        else:
            self._jobs.put(SamplingJob(key, "trial", 0, 0, (JobStep(0, trial),)))

    def _close(self, client: int, message: Message) -> None:
        """A loader has left; its ring goes with the last batch that is being sampled into it."""
        self._jobs.forget(_key(client, message))
        self._channels.pop(_key(client, message)).close()

    def _use_ring(self, client: int, message: Message) -> None:
        channel, slot_bytes = self._channels[_key(client, message)], _whole(message, "slot_bytes", least=1)
        channel.use_ring(SharedBlock.attach(message.fds.pop(0), writable=True), slot_bytes)

    def _queue(self, client: int, message: Message) -> None:
        key, (generation, epoch) = _key(client, message), (_whole(message, name) for name in ("g", "epoch"))
        channel, steps = self._channels[key], message.body.get("steps")
        if not isinstance(steps, list) or not steps:
            raise PlanError(f"the message 'sample' has steps={steps!r}, where a list of at least one [step, batch, slot] must be")
        told = [[_checked(value, "sample", "steps") for value in step] for step in steps if isinstance(step, list) and len(step) == 3]
        if len(told) < len(steps):
            raise PlanError(f"the message 'sample' has a step that is none among {steps!r}", "a step is [step, batch, slot]")
        slots = tuple(JobStep(step, batch, channel.ring_with(slot), slot) for step, batch, slot in told)
        self._jobs.put(SamplingJob(key, "sample", generation, epoch, slots))

    def _queue_now(self, client: int, message: Message) -> None:
        key, (number, epoch, batch) = _key(client, message), (_whole(message, name) for name in ("number", "epoch", "batch"))
        seeds = np.frombuffer(from_memory(message.fds.pop(0)), np.int64) if message.fds else None
        self._jobs.put(SamplingJob(key, "now", number, epoch, (JobStep(0, batch),), seeds))

    def _cancel(self, client: int, message: Message) -> None:
        """A loader has begun another epoch; what is left of the one before is dropped, but for what is being sampled."""
        key, generation = _key(client, message), _whole(message, "g")
        self._clients.send(client, "cancelled", c=key[1], g=generation, running=self._jobs.cancel(key, generation))

    def _copy(self, _: int, message: Message) -> None:
        nbytes = _whole(message, "nbytes")
        self._copying = threading.Thread(target=self._share_graph, args=(nbytes,), name="gnnkit-graph-memory", daemon=True)
        self._copying.start()

    def _share_graph(self, nbytes: int) -> None:
        try:
            shared = share(self._graph.handle.arrays, nbytes)
        except (OSError, MemoryError) as error:
            logger.info("no copy of the graph in huge pages: %s", error)
            self._clients.send(STARTER, "graph", description=None)
            return
        self._graph.graph = shared.graph
        self._clients.send(STARTER, "graph", (shared.block.fd,), description=dict(shared.description))

    def _use_graph(self, _: int, message: Message) -> None:
        mapped = self._graph.handle.arrays
        self._graph.graph = SharedGraph.attach(message.fds[0], message.body["description"], mapped).graph

    def _sample(self) -> None:
        """A sampling thread."""
        number = self._watch.add_sampler()
        while True:
            self._do(self._jobs.take(), number)  # in a function of its own: this thread keeps no ring while it waits

    def _do(self, job: SamplingJob, number: int) -> None:
        if (channel := self._channels.get(job.channel)) is not None:  # it has not left meanwhile
            self._watch.busy(number, job.steps[0].step)
            self._sample_for(channel, job, number)
            self._watch.idle(number, len(job.steps))
        self._jobs.done(job)

    def _sample_for(self, channel: WorkerChannel, job: SamplingJob, thread: int) -> None:
        client, number = job.channel
        try:
            requests = [channel.request(job.epoch, step.batch_index, job.seeds) for step in job.steps]
            sampler = channel.sampler(thread, self._scratches)
            if job.kind == "trial":
                self._clients.send(client, "opened", c=number, nbytes=sampler.sample(requests[0]).nbytes)
            else:
                self._sample_together(sampler, job, requests, thread)
        except BaseException as error:  # everything goes to the loader, who raises it
            if job.kind == "trial":  # a later request for that batch hears of it
                logger.info("the trial batch failed", exc_info=True)
                self._clients.send(client, "opened", c=number, nbytes=0)
            elif len(job.steps) == 1:
                self._clients.send(client, "error", error=error_to_json(error), step=job.steps[0].step, **job.place)
            else:  # an error is its own batch's alone
                for step in job.steps:
                    self._sample_for(channel, replace(job, steps=(step,)), thread)

    def _sample_together(self, sampler: BatchSampler, job: SamplingJob, requests: Sequence[SampleRequest], thread: int) -> None:
        """Samples the batches of a job and answers: in one message, or in one for each where they have descriptors of their own."""
        targets, own = iter(job.steps), list[int | None]()

        def acquire(nbytes: int) -> NDArray[np.uint8]:
            step = next(targets)
            block = None if step.ring is None else step.ring.take(step.slot, nbytes)
            fd = None
            if block is None:
                fd, block = own_memory(nbytes)
            own.append(fd)
            return block

        try:
            try:
                found = sampler.sample_all(requests, acquire)
            finally:  # before the loader hears of it: afterwards the slot has another owner, whatever becomes of the ring
                for step in job.steps:
                    if step.ring is not None:
                        step.ring.give_back(step.slot)
            batches = [
                {"step": step.step, "layout": layout_to_json(layout), "began_s": began_s, "sample_s": sample_s, "gather_s": gather_s}
                for step, (layout, _, sample_s, gather_s, began_s, _) in zip(job.steps, found, strict=True)  # by a host's one clock
            ]
            others = self._graph.others
            place = {"thread": thread if others.threads > 1 else None, **others.report(), **job.place}
            if all(fd is None for fd in own):
                self._clients.send(job.channel[0], "done", batches=batches, **place)
            else:
                for batch, fd in zip(batches, own, strict=True):
                    self._clients.send(job.channel[0], "done", () if fd is None else (fd,), batches=[batch], **place)
        finally:
            for fd in own:
                if fd is not None:
                    os.close(fd)


def _key(client: int, message: Message) -> ChannelKey:
    return client, _whole(message, "c")


def _whole(message: Message, name: str, least: int = 0) -> int:
    """A number in a message: those of other processes are looked at before any thread works with them.

    Raises:
        PlanError: It is none that can be.
    """
    return _checked(message.body.get(name), message.kind, name, least)


def _checked(value: Any, kind: str, name: str, least: int = 0) -> int:
    if not is_whole(value, least, MOST_BATCHES):
        raise PlanError(f"the message {kind!r} has {name}={shown(value)}, where a number from {least} to {MOST_BATCHES} must be")
    return int(value)


_free_memory = FreeMemory()


def own_memory(nbytes: int) -> tuple[int, NDArray[np.uint8]]:
    """Memory for a batch that no slot is for: outside an epoch, or larger than those that the slots were made for.

    Raises:
        MemoryLimitError: There is none.
    """
    free = _free_memory.take(nbytes)
    if nbytes > free:
        raise MemoryLimitError(
            f"the next batch needs {nbytes / 1e6:.0f} MB, {free / 1e6:.0f} MB are free", "lower batch_size or num_neighbors"
        )
    fd = os.memfd_create("gnnkit-batch", os.MFD_CLOEXEC)
    os.ftruncate(fd, max(1, nbytes))
    return fd, np.frombuffer(mmap.mmap(fd, max(1, nbytes)), np.uint8)

"""Worker pools shared by the sessions of this process: whose messages they are, what is sampled next, and which pools there are."""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from gnnkit.backends.session import SLICE_S, Session
from gnnkit.backends.worker_pool import OnStarted, PoolOptions
from gnnkit.errors import GnnkitError, LoaderClosed, StartTimeout, WorkerStopped
from gnnkit.events import Event, EventSink, Stage
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.runtime.remote import fresh
from gnnkit.runtime.supervisor import Death
from gnnkit.runtime.wire import Message
from gnnkit.sampling.schedule import Schedule


class SharedPool:
    """Finds the processes, handles their messages and deals steps to them. Only the holder of its crews' lock may use it.

    Args:
        options: The backend's options.
        plan: The plan of its first loader.
        graph: The graph.
        events: Receives progress of finding them.

    Attributes:
        crew: The processes.
        channels: The loaders that have a place, by number.
        restarts: Deaths that were no errors because the user allowed it.

    Raises:
        PlanError: See ``PoolOptions.hire``.
        MemoryLimitError: See ``PoolOptions.hire``.
        StartTimeout: See ``PoolOptions.hire``.
    """

    def __init__(self, options: PoolOptions, plan: LoaderPlan, graph: GraphHandle, events: EventSink) -> None:
        self._options = options
        self.channels: dict[int, Session] = {}
        self.restarts = 0
        self._owner = os.getpid()
        self._numbers = itertools.count(1)
        self.crew = options.hire(plan, graph, events, _newcomer(weakref.ref(self)))

    # Loaders --------------------------------------------------------------------------------------------------------------

    def admit(self, channel: Session) -> None:
        """Gives a loader a place; one that has had a place before is dealt to at once.

        Raises:
            MemoryLimitError: There is no memory for its batches any more.
        """
        number = next(self._numbers)
        channel.enter(number, self.crew.expected)
        self.channels[number] = channel
        for rank in self.crew.pids:
            self.crew.send(rank, "open", **channel.introduction(rank))
        if channel.is_known:
            self.give_ring(channel)

    def give_ring(self, channel: Session) -> None:
        """Makes a loader's ring.

        Raises:
            PlanError: ``channel_size`` is too small.
            MemoryLimitError: There is no memory for the batches.
        """
        channel.make_ring()
        self._send_ring(channel)

    def _send_ring(self, channel: Session) -> None:
        fds, body = channel.ring_message()
        for rank in self.crew.pids:
            self.crew.send(rank, "ring", fds, **body)

    def dismiss(self, channel: Session) -> None:
        """Takes a loader's place away; its memory goes with the batches that it has handed out."""
        if self.channels.pop(channel.number, None) is not None:
            for rank in self.crew.pids:
                self.crew.send(rank, "close", c=channel.number)
        channel.leave()

    def introduce(self, rank: int) -> None:
        """Tells a process that has just come of the loaders that are there."""
        for channel in self.channels.values():
            self.crew.send(rank, "open", **channel.introduction(rank))
            if channel.dealer is not None:
                fds, body = channel.ring_message()
                self.crew.send(rank, "ring", fds, **body)

    def begin(self, channel: Session, epoch: int, schedule: Schedule) -> None:
        """Starts a loader's epoch; what is left of the one before is dropped. Processes that have died are started again."""
        self.crew.check()
        dealer = channel.dealer
        assert dealer is not None, "it has a place"
        dealer.begin_schedule(epoch, schedule)
        for rank in self.crew.pids:
            if dealer.assigned_to(rank):
                self.crew.send(rank, "cancel", c=channel.number, g=dealer.generation)
        if channel.grow_ring():
            self._send_ring(channel)
        self.crew.settle()
        self.pump(revive=True)
        channel.failure = None  # what had died meanwhile has been started again
        self.deal()

    # Processes ------------------------------------------------------------------------------------------------------------

    def pump(self, *, revive: bool) -> None:
        """Handles what has arrived, for whichever loader it is, and deals what can be sampled next.

        Args:
            revive: Whether processes that are missing are started.
        """
        for rank, what in self.crew.listen():
            if isinstance(what, Death):
                self._mourn(rank, what)
            else:
                self._handle(rank, what)
        overdue = self.crew.overdue(max((c.plan.runtime.start_timeout_s for c in self.channels.values()), default=0.0))
        if overdue is not None:
            self._fail(*overdue)
        if revive:
            self.crew.start_missing()
        self.crew.attend(ask=revive)
        self.deal()

    def deal(self) -> None:
        """Gives the processes as many steps of each loader as there is room for; none of an epoch that cannot go on."""
        for channel in self.channels.values():
            if channel.dealer is None or channel.failure is not None:
                continue
            for job in channel.dealer.assign_all(self.crew.ready):
                step, place = job.step, {"c": channel.number, "g": job.generation}
                self.crew.send(job.rank, "sample", **place, epoch=job.epoch, step=step.step, batch=step.batch_index, slot=job.slot)

    def _handle(self, rank: int, message: Message) -> None:
        body = message.body
        if message.kind == "event":
            event = Event(body["what"], **{name: value for name, value in body.items() if name != "what"})
            for newcomer in [c for c in self.channels.values() if c.dealer is None][:1]:
                newcomer.note(event)
        elif message.kind == "retired":  # whoever wants something has it started again
            for channel in self.channels.values():
                channel.lost(rank, None)
        elif "c" in body:
            addressee = self.channels.get(body["c"])
            if addressee is None:  # it has left
                message.close()
            else:
                addressee.take(rank, message)

    def _mourn(self, rank: int, death: Death) -> None:
        """Processes have died: somebody takes their place where the user allows it, and it is an error for the loaders otherwise."""
        is_final = death.is_replaced or isinstance(death.error, WorkerStopped)
        may_restart = not is_final and self.restarts < self._options.max_restarts
        for channel in self.channels.values():
            is_harmless = death.is_replaced or (may_restart and channel.dealer is not None)
            for dead in (rank, *death.others):
                channel.lost(dead, None if is_harmless else death.error)
        if death.is_replaced:
            self._warn(f"{death.summary}; {death.remedy}")
        elif may_restart:
            self.restarts += 1
            self._warn(f"{death.summary}; {death.remedy} ({self.restarts} of max_restarts={self._options.max_restarts})")

    def _warn(self, what: str) -> None:
        active = [channel for channel in self.channels.values() if not channel.is_over]
        for channel in active or list(self.channels.values())[:1]:
            channel.note(f"{what}, and its batches are sampled again")

    def _fail(self, rank: int, error: GnnkitError) -> None:
        for channel in self.channels.values():
            # Somebody may wait for a batch outside an epoch, and perhaps for anybody to sample it.
            channel.requests.lost(rank if self.crew.ready else None, error)
            if channel.dealer is None or not channel.is_over:
                channel.failure = error

    def restart(self) -> None:
        """Has other processes take the place of those that are there; what keeps an epoch from going on is forgotten.

        Raises:
            PlanError: See ``WorkerPool.restart``.
        """
        self.crew.restart()
        for channel in self.channels.values():
            channel.failure = None

    def idle_channels(self) -> list[Session]:
        """Loaders that nobody has used for longer than the user allows."""
        limit, now = self._options.idle_timeout_s if self.crew.can_idle else None, time.monotonic()
        return [] if limit is None else [c for c in self.channels.values() if c.dealer is not None and now - c.used > limit]

    def stop(self) -> None:
        """Ends the processes; does nothing in a forked child."""
        if os.getpid() != self._owner:
            return
        self.crew.stop()


def _newcomer(hub: weakref.ref[SharedPool]) -> OnStarted:
    def introduce(rank: int) -> None:
        target = hub()
        if target is not None:
            target.introduce(rank)

    return introduce


@dataclass(eq=False)
class PoolRegistry:
    """Who works for whom in this process.

    Everything of a loader in background processes happens under one lock, which is never held while somebody waits. A loader that is
    forgotten may be so in the middle of anything, by the garbage collector, and perhaps by the lock's own holder: it is only noted, and
    ``collect`` takes its place away.

    Attributes:
        lock: To be held for everything but ``open``, ``enter``, ``hub_of``, ``forget`` and ``collect``.
        owner: The process; a forked child has crews of its own.
    """

    lock: threading.RLock = field(default_factory=threading.RLock)
    owner: int = field(default_factory=os.getpid)
    # Held while a crew is made, which may wait for other hosts.
    _making: threading.Lock = field(default_factory=threading.Lock)
    _hubs: dict[Any, SharedPool] = field(default_factory=dict)
    _forgotten: deque[Session] = field(default_factory=deque)

    def open(self, channel: Session) -> None:
        """Gives a new loader its place, and waits until every process knows it. Older loaders of the same name and plan lose theirs.

        Raises:
            StartTimeout: A process was not ready in time, or ended, or another host was not there.
            PlanError: The system's limits or ``channel_size`` do not allow it, or the hosts are not clear.
            MemoryLimitError: There is no memory for it.
        """
        self.enter(channel)
        with self.lock:
            self.tidy()
            for other in [c for hub in self._hubs.values() for c in hub.channels.values() if _replaces(channel, c)]:
                self.leave(other)
        started, limit_s = time.monotonic(), channel.plan.runtime.start_timeout_s
        with Stage(channel.events, "start", label="sampling processes", total=channel.num_workers, unit="processes") as stage:
            while True:
                with self.lock:
                    hub = self._hubs[_key(channel)]
                    is_reporting = hub.crew.is_reporting  # before it is listened to: what was reported by then is heard
                    hub.pump(revive=channel.failure is None)
                    if channel.failure is not None:
                        raise fresh(channel.failure)
                    count, total, poller = len(channel.opened), hub.crew.expected, hub.crew.poller()
                    is_open = count == total and not is_reporting
                    if is_open:
                        hub.give_ring(channel)
                channel.tell()
                if count > stage.done:
                    stage.update(count, total)
                if is_open:
                    return
                if time.monotonic() - started > limit_s and not hub.crew.is_starting:
                    raise StartTimeout(_absent(hub, channel, limit_s), "close the other loaders on this graph, or raise start_timeout_s")
                poller.poll(SLICE_S * 1000)

    def enter(self, channel: Session) -> None:
        """Sees to it that a loader has a place: a new one, or one that has lost its place.

        Raises:
            LoaderClosed: It is closed.
            StartTimeout: See ``open``.
            PlanError: See ``open``.
            MemoryLimitError: See ``open``.
        """
        channel.used = time.monotonic()
        while self.hub_of(channel) is None:
            if channel.is_closed:
                raise LoaderClosed("the loader is closed", "create a new one")
            with self._making:
                self._take_place(channel)

    def _take_place(self, channel: Session) -> None:
        """Tries to; in vain if the crew ends, or the loader is closed, in this moment."""
        key = _key(channel)
        hub = self._hubs.get(key)
        if hub is None:
            new = SharedPool(channel.options, channel.plan, channel.graph, channel.events)
            with self.lock:
                hub = self._hubs[key] = new
        with self.lock:
            if self._hubs.get(key) is not hub:
                return
            try:
                if not channel.is_closed:
                    hub.admit(channel)
            except BaseException:  # without a ring it is no place: the next use takes another one
                self.leave(channel)
                raise
            if channel.number not in hub.channels:
                self.leave(channel)

    def hub_of(self, channel: Session) -> SharedPool | None:
        """A loader's crew, or None where it has no place."""
        hub = self._hubs.get(_key(channel))
        return hub if hub is not None and channel.number in hub.channels else None

    def tidy(self) -> None:
        """Takes the places of loaders that have not been used for long."""
        for channel in [c for hub in self._hubs.values() for c in hub.idle_channels()]:
            self.leave(channel)

    def leave(self, channel: Session) -> None:
        """Takes a loader's place away; the last one's crew stops."""
        key = _key(channel)
        hub = self._hubs.get(key)
        if hub is None:
            return
        hub.dismiss(channel)
        if not hub.channels:
            del self._hubs[key]
            hub.stop()

    def forget(self, channel: Session) -> None:
        """Has a loader's place taken away, from anywhere, and at once unless this thread holds the lock. Does nothing in a forked child."""
        if os.getpid() == self.owner:
            self._forgotten.append(channel)
            self.collect()

    def collect(self) -> None:
        """Takes the places of forgotten loaders; does nothing while this thread holds the lock, and is to be called after that."""
        while self._forgotten and not self._is_holder():
            with self.lock:
                while self._forgotten:
                    self.leave(self._forgotten.popleft())

    def _is_holder(self) -> bool:
        # What threading.Condition asks its lock. A finalizer, which may run inside a ``with`` block of the same thread, cannot know else.
        return bool(self.lock._is_owned())  # type: ignore[attr-defined]


_crews: PoolRegistry | None = None


def crews() -> PoolRegistry:
    """The crews of this process."""
    global _crews
    if _crews is None or _crews.owner != os.getpid():
        _crews = PoolRegistry()
    return _crews


def _key(channel: Session) -> Any:
    """What loaders must have in common to share processes; the crew keeps the graph, so that its id stays its own."""
    plan = channel.plan
    return id(channel.graph), plan.store, plan.placement, channel.options, plan.runtime.memory_budget


def _replaces(new: Session, old: Session) -> bool:
    """Whether a loader is what a cell that was run again has made of another one: of the same name, kind of graph and plan."""
    if new is old or not old.is_known or new.graph.name != old.graph.name or replace(new.plan, inputs=old.plan.inputs) != old.plan:
        return False
    same_kind = new.graph is old.graph or new.graph.arrays.schema == old.graph.arrays.schema
    return same_kind and new.plan.inputs == old.plan.inputs


def _absent(hub: SharedPool, channel: Session, limit_s: float) -> str:
    who = [hub.crew.describe(rank) for rank in sorted(hub.crew.pids) if rank not in channel.opened]
    return f"not every sampling process has taken the loader in after {limit_s:g} s: {'; '.join(filter(None, who))}"

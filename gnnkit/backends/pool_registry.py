"""The crews of this process: one per graph and options, shared by all loaders on it; the last loader out stops the processes."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from gnnkit.backends.batch_wait import SLICE_S
from gnnkit.backends.session import Session
from gnnkit.backends.shared_pool import SharedPool
from gnnkit.errors import LoaderClosed, StartTimeout
from gnnkit.events import Stage
from gnnkit.runtime.remote import fresh


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

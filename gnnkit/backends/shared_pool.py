"""Worker pools shared by the sessions of this process: whose messages they are, what is sampled next, and which pools there are."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from gnnkit.backends.session import Session
from gnnkit.errors import GnnkitError, LoaderClosed, StartTimeout
from gnnkit.events import Event, Stage
from gnnkit.runtime.pool import SharedPool, WorkerPool
from gnnkit.runtime.remote import fresh
from gnnkit.runtime.supervisor import Exit
from gnnkit.runtime.waiters import SLICE_S
from gnnkit.runtime.wire import Message
from gnnkit.sampling.schedule import Schedule
from gnnkit.waiting import Deadline


class LoaderPool(SharedPool[Session, WorkerPool]):
    """The pool of some loaders of this process. Only the holder of the registry's lock may use it.

    Args:
        session: Its first loader; the others have the same options and graph.
        lock: The registry's.

    Raises:
        PlanError: See ``PoolBackend.open_pool``.
        MemoryLimitError: See ``PoolBackend.open_pool``.
        StartTimeout: See ``PoolBackend.open_pool``.
    """

    def __init__(self, session: Session, lock: AbstractContextManager[Any]) -> None:
        options, plan = session.options, session.plan
        super().__init__(lambda started: options.open_pool(plan, session.graph, session.events, started), options.max_restarts, 0.0, lock)

    # Loaders --------------------------------------------------------------------------------------------------------------

    def add(self, session: Session) -> None:
        """Gives a loader a place; one that has had a place before is dealt to at once.

        Raises:
            MemoryLimitError: There is no memory for its batches any more.
        """
        session.enter(self.workers.expected)
        self.start_timeout_s = max(self.start_timeout_s, session.plan.runtime.start_timeout_s)
        super().add(session)
        if session.is_known:
            self.give_ring(session)

    def give_ring(self, session: Session) -> None:
        """Makes a loader's ring.

        Raises:
            PlanError: ``channel_size`` is too small.
            MemoryLimitError: There is no memory for the batches.
        """
        session.make_ring(self.workers)
        self.hand_ring(session)

    def remove(self, session: Session) -> None:
        """Takes a loader's place away; its memory goes with the batches that it has handed out. After the last one the processes end."""
        others = [other for other in self.sessions.values() if other is not session]
        self.start_timeout_s = max([other.plan.runtime.start_timeout_s for other in others], default=0.0)
        if others:
            super().remove(session)
            return
        self.sessions.clear()
        try:  # first: a process that ends while it writes a batch leaves its pages in the ring
            self.workers.stop()
        finally:
            session.leave()

    def begin(self, session: Session, epoch: int, schedule: Schedule) -> None:
        """Starts a loader's epoch; what is left of the one before is dropped. Processes that have died are started again."""
        self.workers.check()
        session.begin(self.workers, epoch, schedule)
        if session.grow_ring():
            self.hand_ring(session)
        self.workers.settle()
        self.pump(revive=True)
        session.failure = None  # what had died meanwhile has been started again
        self.assign()

    # Processes ------------------------------------------------------------------------------------------------------------

    def _handle(self, rank: int, message: Message) -> None:
        body = message.body
        if message.kind == "event":
            event = Event(body["what"], **{name: value for name, value in body.items() if name != "what"})
            for starting in [s for s in self.sessions.values() if s.is_opening][:1]:
                starting.notices.append(event)
        elif message.kind == "retired":  # the next request has it started again
            for session in self.sessions.values():
                session.lost(rank, None)
        else:  # the loader has left
            message.close()

    def _on_harmless(self, exit_: Exit) -> None:
        counted = "" if exit_.is_replaced else f" ({self.restarts} of max_restarts={self._max_restarts})"
        active = [session for session in self.sessions.values() if not session.is_over]
        for session in active or list(self.sessions.values())[:1]:
            session.notices.append(f"{exit_.summary}; {exit_.remedy}{counted}, and its batches are sampled again")

    def _on_overdue(self, rank: int, error: GnnkitError) -> None:
        for session in self.sessions.values():  # a thread may wait for a batch outside an epoch, and perhaps for any process to sample it
            session.lost(rank if self.workers.ready else None, error)

    def restart(self) -> None:
        """Has other processes take the place of those that are there; what keeps an epoch from going on is forgotten.

        Raises:
            PlanError: See ``WorkerPool.restart``.
        """
        self.workers.restart()
        for session in self.sessions.values():
            session.failure = None


@dataclass(eq=False)
class PoolRegistry:
    """The pools of this process, and the loaders that each of them serves.

    Everything of a loader in background processes happens under one lock, which is never held while a thread waits. A loader that is
    forgotten may be so in the middle of anything, by the garbage collector, and perhaps by the lock's own holder: it is only noted, and
    ``collect`` takes its place away.

    Attributes:
        lock: To be held for everything but ``open``, ``enter``, ``forget`` and ``collect``.
        owner: The process; a forked child has pools of its own.
        places: The pool of each loader that has a place.
        forgotten: Loaders whose places ``collect`` is to take away.
    """

    lock: threading.RLock = field(default_factory=threading.RLock)
    owner: int = field(default_factory=os.getpid)
    places: dict[Session, LoaderPool] = field(default_factory=dict)
    forgotten: deque[Session] = field(default_factory=deque)
    # Held while a pool is made, which may wait for other hosts.
    _making: threading.Lock = field(default_factory=threading.Lock)
    _by_key: dict[Any, LoaderPool] = field(default_factory=dict)

    def open(self, session: Session) -> None:
        """Gives a new loader its place, and waits until every process knows it. Older loaders of the same name and plan lose theirs.

        Raises:
            StartTimeout: A process was not ready in time, or ended, or another host was not there.
            PlanError: The system's limits or ``channel_size`` do not allow it, or the hosts are not clear.
            MemoryLimitError: There is no memory for it.
        """
        self.enter(session)
        with self.lock:
            self.tidy()
            for other in [other for other in self.places if _replaces(session, other)]:
                self.leave(other)
        deadline = Deadline(session.plan.runtime.start_timeout_s)
        with Stage(session.events, "start", label="sampling processes", total=session.num_workers, unit="processes") as stage:
            while True:
                with self.lock:
                    pool = self.places[session]
                    is_reporting = pool.workers.is_reporting  # before it is listened to: what was reported by then is heard
                    pool.pump(revive=session.failure is None)
                    if session.failure is not None:
                        raise fresh(session.failure)
                    count, total, poller = len(session.opened), pool.workers.expected, pool.workers.poller()
                    is_open = count == total and not is_reporting
                    if is_open:
                        pool.give_ring(session)
                session.tell()
                if count > stage.done:
                    stage.update(count, total)
                if is_open:
                    return
                if pool.workers.is_starting:  # which has a deadline of its own
                    deadline = Deadline(deadline.timeout_s)
                elif deadline.has_passed:
                    text = _absent(pool, session, session.plan.runtime.start_timeout_s)
                    raise StartTimeout(text, "close the other loaders on this graph, or raise start_timeout_s")
                poller.poll(SLICE_S * 1000)

    def enter(self, session: Session) -> None:
        """Sees to it that a loader has a place: a new one, or one that has lost its place.

        Raises:
            LoaderClosed: It is closed.
            StartTimeout: See ``open``.
            PlanError: See ``open``.
            MemoryLimitError: See ``open``.
        """
        session.used = time.monotonic()
        while session not in self.places:
            with self._making:
                self._take_place(session)

    def _take_place(self, session: Session) -> None:
        """Tries to; in vain if the pool ends in this moment."""
        if session.is_closed:
            raise _closed()
        key = _key(session)
        new = None if key in self._by_key else LoaderPool(session, self.lock)
        with self.lock:
            pool = self._by_key.get(key) or new
            if pool is None:
                return
            self.places[session] = self._by_key[key] = pool
            try:
                if session.is_closed:  # meanwhile
                    raise _closed()
                pool.add(session)
            except BaseException:  # without a ring it is no place: the next use takes another one
                self.leave(session)
                raise

    def tidy(self) -> None:
        """Takes the places of loaders that have not been used for long."""
        now = time.monotonic()
        for session, pool in list(self.places.items()):
            limit = session.options.idle_timeout_s if pool.workers.can_idle else None
            if limit is not None and not session.is_opening and now - session.used > limit:
                self.leave(session)

    def leave(self, session: Session) -> None:
        """Takes a loader's place away; the last one's pool stops."""
        pool = self.places.pop(session, None)
        if pool is None:
            return
        if pool.sessions.keys() <= {session.number}:
            self._by_key.pop(_key(session), None)
        pool.remove(session)

    def forget(self, session: Session) -> None:
        """Has a loader's place taken away, from anywhere, and at once unless this thread holds the lock. Does nothing in a forked child."""
        if os.getpid() == self.owner:
            self.forgotten.append(session)
            self.collect()

    def collect(self) -> None:
        """Takes the places of forgotten loaders; does nothing while this thread holds the lock, and is to be called after that."""
        while self.forgotten and not self._is_holder():
            with self.lock:
                while self.forgotten:
                    self.leave(self.forgotten.popleft())

    def _is_holder(self) -> bool:
        """Whether this thread holds the lock: a finalizer may run inside a ``with`` block of the same thread."""
        try:
            threading.Condition(self.lock).notify()  # refused to all threads but the holder
        except RuntimeError:
            return False
        return True


_pools: PoolRegistry | None = None


def pool_registry() -> PoolRegistry:
    """The pools of this process."""
    global _pools
    if _pools is None or _pools.owner != os.getpid():
        _pools = PoolRegistry()
    return _pools


def _key(session: Session) -> Any:
    """Returns the key that loaders must share to use the same processes; their pool keeps the graph, so that its id is not used again."""
    plan = session.plan
    return id(session.graph), plan.store, plan.placement, session.options, plan.runtime.memory_budget


def _replaces(new: Session, old: Session) -> bool:
    """Whether a loader is what a cell that was run again has made of another one: of the same name, kind of graph and plan."""
    if new is old or not old.is_known or new.graph.name != old.graph.name or new.plan.sampling != old.plan.sampling:
        return False
    if replace(new.plan, inputs=old.plan.inputs) != old.plan:
        return False
    same_kind = new.graph is old.graph or new.graph.arrays.schema == old.graph.arrays.schema
    return same_kind and new.plan.inputs == old.plan.inputs


def _closed() -> LoaderClosed:
    return LoaderClosed("the loader is closed", "create a new one")


def _absent(pool: LoaderPool, session: Session, limit_s: float) -> str:
    who = [pool.workers.describe(rank) for rank in sorted(pool.workers.pids) if rank not in session.opened]
    return f"not every sampling process has taken the loader in after {limit_s:g} s: {'; '.join(filter(None, who))}"

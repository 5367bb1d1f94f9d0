"""The loaders of this process and their pools: a loader's session, what is sampled for it next, and which pools there are."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from gnnkit.backends.base import PoolBackend, check_owner
from gnnkit.callers import warn
from gnnkit.errors import GnnkitError, MemoryLimitError, PlanError, StartTimeout, on_error
from gnnkit.events import Event, EventSink, Stage
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.batches import BatchList
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.runtime.limits import check_ring_memory, most_slots
from gnnkit.runtime.pool import BatchRequest, PoolSession, SharedPool, WorkerPool, memory_of, trial_batch
from gnnkit.runtime.remote import error_from_json, fresh
from gnnkit.runtime.ring import LEASED, Ring, roomy_slot_size, slot_size
from gnnkit.runtime.scheduler import BatchTimes, Scheduler
from gnnkit.runtime.supervisor import Exit
from gnnkit.runtime.waiters import SLICE_S
from gnnkit.runtime.wire import Message
from gnnkit.sampling.schedule import Schedule
from gnnkit.waiting import Deadline

# Small batches are sampled, and told of, several at a time: as many as take so long to sample, as fit into so much memory, and at most so
# many, because a message and a wake-up cost as much as a batch of a few seeds.
_GROUP_S = 0.8e-3
_GROUP_BYTES = 4 << 20
_MOST_TOGETHER = 16


def _most_together(slot_bytes: int) -> int:
    """Batches in slots of this size that a process may be given together."""
    return max(1, min(_MOST_TOGETHER, _GROUP_BYTES // slot_bytes))


class Session(PoolSession):
    """A loader of this process in a worker pool. Only the holder of the pool registry's lock may change it, but for ``tell``.

    It may lose its place in the workers, to a newer loader of the same plan or because it is not used, and takes one again at its next
    use, with a new ring: the epoch goes on with the step after the last one that was handed out.

    Args:
        options: The backend's options.
        plan: The loader's plan.
        graph: The graph.
        events: Receives the stages "start" and "compile".

    Attributes:
        options: The backend's options.
        num_workers: Processes that it was last sampled by, or is to be.
        graph: The graph.
        batches: The plan's batches.
        opened: Processes that have taken it in since it got its place.
        scheduler: The steps under way, and what came back for them; None while it has no ring.
        group: Steps that a process is given, and answers, together.
        failure: Why the epoch cannot go on, or None.
        is_known: Whether it has had a place before, so that the size of its batches is known.
        is_closed: Whether it is closed: it is not admitted again.
        largest: Bytes of the largest batch so far.
        used: ``time.monotonic()`` when it was last used.
        notices: Events and warnings for ``tell``.
    """

    def __init__(self, options: PoolBackend, plan: LoaderPlan, graph: GraphHandle, events: EventSink) -> None:
        super().__init__(plan, max(options.worker_concurrency, options.threads_per_worker))
        self.options, self.num_workers = options, 0
        self.graph, self.events = graph, events
        self.batches = BatchList(plan, graph)
        self.opened: set[int] = set()
        self.scheduler: Scheduler[tuple[BatchRequest, Any]] | None = None
        self.group = 1
        self.failure: GnnkitError | None = None
        self.is_known, self.is_closed, self.is_opening = False, False, True
        self.largest = 0
        self.used = time.monotonic()
        self.notices: list[Event | str] = []
        self._schedule: Schedule | None = None  # of the epoch that runs; None before the first
        self._left_off: tuple[int, Schedule, int] | None = None
        self._old_rings: list[Ring] = []
        self._behind: set[int] = set()  # processes that have yet to drop the epoch before
        self._batch_times = BatchTimes()

    # Its place ----------------------------------------------------------------------------------------------------------

    def enter(self, num_workers: int) -> None:
        """Takes a place among so many processes."""
        self.num_workers, self.failure = num_workers, None
        self.opened.clear()
        self.used = time.monotonic()

    def setup(self, rank: int) -> dict[str, Any]:
        """Returns the message that introduces the loader to a process; see ``PoolSession.setup``."""
        plan = self.plan
        if plan.store is None:  # only the arrays of a graph in memory are shared, not its splits
            plan = replace(plan, inputs=self.batches.inputs.written_out())
        trial = None if self.is_known else trial_batch(self.batches.schedule(), rank)
        return {"c": self.number, "plan": plan.to_json(), "trial": trial}

    def make_ring(self, workers: WorkerPool) -> None:
        """Makes the ring, and goes on where the loader lost its place.

        Raises:
            PlanError: ``channel_size`` is too small.
            MemoryLimitError: There is no memory for the batches.
        """
        ring = self.ring = self._new_ring()
        self.scheduler, self.group = Scheduler(self._window(ring, 1)), 1
        self.is_known, self.is_opening = True, False
        if self._left_off is not None:
            self.begin(workers, *self._left_off)

    def _new_ring(self) -> Ring:
        """A ring for batches somewhat larger than the largest so far.

        Raises:
            PlanError: ``channel_size`` does not hold two of them.
            MemoryLimitError: It does not fit.
        """
        largest, bound, mapped_nbytes = self.largest, self.options.channel_bytes, self.graph.mapped_nbytes
        size, least = roomy_slot_size(largest), slot_size(largest)
        # Fewer slots where memory is short; half of it is left for other programs.
        num_slots = min(self._under_way(_most_together(size)) + LEASED, max(2, most_slots(size, mapped_nbytes)))
        if bound is not None:
            if bound // least < 2:
                raise PlanError(
                    f"channel_size={self.options.channel_size!r} does not hold two batches of {largest / 1e6:.1f} MB",
                    "raise channel_size, lower batch_size or num_neighbors, or leave channel_size out",
                )
            size = size if bound // size >= 2 else least
            num_slots = min(num_slots, bound // size)
        check_ring_memory(num_slots * size, num_slots, mapped_nbytes)
        try:
            return Ring(num_slots, size, pinned_for=self.plan.runtime.pin_device)
        except OSError as error:
            raise MemoryLimitError(
                f"no shared memory of {num_slots * size / 1e6:.0f} MB for batches: {error}", "lower batch_size"
            ) from error

    def _under_way(self, group: int) -> int:
        """Steps that may be under way or wait to be handed out, where they are sampled ``group`` together."""
        return self.num_workers * self._most_each * group + self.plan.runtime.prefetch

    def _window(self, ring: Ring, group: int) -> int:
        """The same, where slots are short: at least one stays for sampling, whatever the user holds."""
        return min(max(1, ring.num_slots - min(LEASED, ring.num_slots // 2)), self._under_way(group))

    def _use_groups(self, scheduler: Scheduler[Any], ring: Ring, wanted: int) -> None:
        """Has so many steps sampled together from now on, or as many as slots are for."""
        group = max(1, min(wanted, _most_together(ring.slot_bytes)))
        if group != self.group:
            self.group, scheduler.window = group, self._window(ring, group)

    def grow_ring(self) -> bool:
        """Makes a new ring for larger batches, if there were any that did not fit; batches in the old one keep it."""
        if self.scheduler is None or self.ring is None or self.largest <= self.ring.slot_bytes:
            return False
        try:
            larger = self._new_ring()
        except GnnkitError:  # no room: they go on travelling by themselves
            return False
        self._old_rings.append(self.ring)
        self.ring, self.group, self.scheduler.window = larger, 1, self._window(larger, 1)
        return True

    def leave(self) -> None:
        """Gives the place and the ring up; batches in it keep it."""
        if self.scheduler is not None and self._schedule is not None:
            self._left_off = self.scheduler.epoch, self._schedule, self.scheduler.delivered
        for ring in (*self._old_rings, self.ring):
            if ring is not None:
                ring.give_up()
        self._old_rings.clear()
        self.scheduler = self.ring = None
        self.is_opening = True
        super().leave()

    # Its epoch ----------------------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether every step of the epoch has been handed out."""
        if self.scheduler is not None:
            return self.scheduler.is_over
        return self._left_off is None or self._left_off[2] >= len(self._left_off[1])

    def begin(self, workers: WorkerPool, epoch: int, schedule: Schedule, delivered: int = 0) -> None:
        """Starts an epoch; what is left of the one before is dropped, now or when its answers come.

        Args:
            workers: The processes.
            epoch: Its number.
            schedule: Its steps.
            delivered: Steps that were handed out before.
        """
        scheduler, ring, under_way = self.scheduler, self.ring, set(self._given.values())
        assert scheduler is not None and ring is not None, "it has a place"
        self._schedule = schedule
        scheduler.begin(epoch, len(schedule), delivered)
        for old in self._old_rings:  # nothing that lies in them is wanted any more
            old.give_up()
        self._old_rings.clear()
        for slot in range(ring.num_slots):  # rather than by the results: an interrupt may have lost one
            if (own := ring.owner(slot)) is not None and own not in under_way and not ring.is_leased(slot):
                ring.free(slot, own)
        self._use_groups(scheduler, ring, 1)
        self._behind = {request.rank for request in under_way if request.ring is not None}
        for rank in self._behind:
            workers.send(rank, "cancel", c=self.number, g=scheduler.generation)

    def has_news(self) -> bool:
        """Whether there is a batch to hand out, or none will come; for holders of the pool's lock."""
        scheduler = self.scheduler
        return scheduler is None or self.failure is not None or scheduler.is_over or scheduler.delivered in scheduler.results

    def _has_more(self) -> bool:
        """Whether a batch is asked for, or there is a step to give; none of an epoch that cannot go on."""
        return bool(self._waiting) or (self.failure is None and self.scheduler is not None and self.scheduler.next_step() is not None)

    def _room(self, rank: int, load: int) -> int:
        """Batches that are asked for go to any process, one at a time, and steps in groups.

        Whole groups as long as a process has something to do: there is soon room for the rest of one. Single steps where it has not
        answered for an older epoch: it may have stopped.
        """
        if rank not in self.opened:
            return 0
        if self._waiting:
            return 1
        if self.scheduler is None or self.failure is not None:
            return 0
        group = 1 if rank in self._behind else self.group
        return group if load <= group * (self._most_each - 1) and (not load or self.scheduler.has_room_for(group)) else 0

    def _give(self, workers: WorkerPool, rank: int, most: int) -> int:
        if self._waiting:
            return super()._give(workers, rank, most)
        scheduler, schedule, ring, steps = self.scheduler, self._schedule, self.ring, list[list[int]]()
        assert scheduler is not None and ring is not None, "it has a place"
        while schedule is not None and len(steps) < most and (number := scheduler.next_step()) is not None:
            step = schedule.step(number)
            own = BatchRequest(scheduler.epoch, step.batch_index, None, None, rank=rank, ring=ring, is_padding=step.is_padding)
            slot = ring.take(own)
            if slot is None:
                break
            own.slot = slot
            self._given[scheduler.assign(rank)] = own
            steps.append([number, step.batch_index, slot])
        if steps:
            workers.send(rank, "sample", c=self.number, g=scheduler.generation, epoch=scheduler.epoch, steps=steps)
        return len(steps)

    # What arrives ---------------------------------------------------------------------------------------------------------

    def take(self, rank: int, message: Message) -> None:
        """Handles what a process says to this loader."""
        body, scheduler, ring = message.body, self.scheduler, self.ring
        if message.kind == "opened":
            self.opened.add(rank)
            self.largest = max(self.largest, body["nbytes"])
        elif "number" in body:
            super().take(rank, message)
        elif scheduler is None or ring is None:
            message.close()
        elif message.kind == "cancelled":
            self._drop_older(scheduler, rank, body["g"], {(generation, step) for generation, step in body["running"]})
        elif message.kind == "error":
            self._keep(scheduler, (body["g"], body["step"]), error_from_json(body["error"], f"sampling step {body['step']}"))
        else:
            for batch in body["batches"]:
                self._take_batch(scheduler, message, {**batch, "thread": body["thread"]})
            # One at first: the first batches are no later, and short epochs are not sampled whole before they are begun.
            self._use_groups(scheduler, ring, min(self._batch_times.batches_in(_GROUP_S), 1 + scheduler.delivered // _MOST_TOGETHER))

    def _take_batch(self, scheduler: Scheduler[Any], message: Message, body: Mapping[str, Any]) -> None:
        self.largest = max(self.largest, body["layout"]["nbytes"])
        self._batch_times.add(body["sample_s"] + body["gather_s"])
        name = message.body["g"], body["step"]
        if not message.fds:
            self._keep(scheduler, name, (body, None))
            return
        block = memory_of(message, body["layout"]["nbytes"])  # it was too large for its slot
        own = self._keep(scheduler, name, block if isinstance(block, GnnkitError) else (body, block))
        if own is not None:
            self.withdraw(own)

    def _keep(self, scheduler: Scheduler[Any], name: tuple[int, int], result: Any) -> BatchRequest | None:
        """Keeps what came back for a step until its turn; the step's request, if the result is wanted."""
        own = self._given.pop(name, None)
        if own is None:
            return None
        if scheduler.complete(*name, (own, result)):
            return own
        self.withdraw(own)
        return None

    def _drop_older(self, scheduler: Scheduler[Any], rank: int, generation: int, running: Set[tuple[int, int]]) -> None:
        """Takes back what a process has of epochs before ``generation`` and does not run, whatever became of its answers."""
        self._behind.discard(rank)
        for name in scheduler.assigned_to(rank):
            if name[0] < generation and name not in running:
                scheduler.forget(*name)
                self.withdraw(self._given.pop(name))

    def lost(self, rank: int | None, error: GnnkitError | None) -> None:
        """A process is gone; its steps are to be dealt again. See ``PoolSession.lost``."""
        super().lost(rank, error)
        if rank is not None and error is not None:
            self.opened.discard(rank)
        if rank is not None and self.scheduler is not None:
            self._behind.discard(rank)
            self.scheduler.lost(rank)
        if error is not None and (self.scheduler is None or not self.scheduler.is_over):
            self.failure = error

    def tell(self) -> None:
        """Reports events and gives the warnings that are due: the user's code may run then, so never under the lock."""
        while self.notices:
            notice = self.notices.pop(0)
            if isinstance(notice, Event):
                self.events(notice)
            else:
                warn(notice, RuntimeWarning)


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
        super().__init__(options.open_pool(plan, session.graph, session.events), options.max_restarts, 0.0, lock)

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
        if message.kind == "event":
            for starting in [s for s in self.sessions.values() if s.is_opening][:1]:
                starting.notices.append(Event(*message.body["fields"]))
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
        check_owner(self.owner, is_closed=session.is_closed)
        key = _key(session)
        new = None if key in self._by_key else LoaderPool(session, self.lock)
        with self.lock:
            pool = self._by_key.get(key) or new
            if pool is None:
                return
            self.places[session] = self._by_key[key] = pool
            with on_error(lambda: self.leave(session)):  # without a ring it is no place: the next use takes another one
                check_owner(self.owner, is_closed=session.is_closed)  # meanwhile
                pool.add(session)

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


def _absent(pool: LoaderPool, session: Session, limit_s: float) -> str:
    who = [pool.workers.describe(rank) for rank in sorted(pool.workers.pids) if rank not in session.opened]
    return f"not every sampling process has taken the loader in after {limit_s:g} s: {'; '.join(filter(None, who))}"

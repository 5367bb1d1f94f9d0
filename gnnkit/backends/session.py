"""A loader's session in a worker pool: its ring, epoch and credit; and the wait for its batches."""

from __future__ import annotations

import heapq
import time
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from gnnkit.callers import warn
from gnnkit.errors import BatchTimeout, GnnkitError, MemoryLimitError, PlanError
from gnnkit.events import Event, EventSink
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.batches import BatchList
from gnnkit.runtime.beats import SIGN_SILENCE_S
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.runtime.limits import check_ring_memory, most_slots
from gnnkit.runtime.pool import OnStarted, PoolSession, WorkerPool, trial_batch
from gnnkit.runtime.remote import error_from_json
from gnnkit.runtime.ring import LEASED, Ring, mapped, roomy_slot_size, slot_size
from gnnkit.runtime.scheduler import BatchTimes, Scheduler
from gnnkit.runtime.wire import Message
from gnnkit.sampling.schedule import Schedule, Step


class PoolOptions(Protocol):
    """The options of a backend that its pool and sessions use; a frozen dataclass, equal to others with the same values."""

    @property
    def threads_per_worker(self) -> int:
        """Sampling threads of a process."""
        ...

    @property
    def worker_concurrency(self) -> int:
        """Batches that a process is given at a time."""
        ...

    @property
    def channel_size(self) -> int | str | None:
        """The most memory for batches under way, as the user said it."""
        ...

    @property
    def channel_bytes(self) -> int | None:
        """``channel_size`` in bytes."""
        ...

    @property
    def max_restarts(self) -> int:
        """The number of exits that are followed by a restart instead of an error."""
        ...

    @property
    def idle_timeout_s(self) -> float | None:
        """Seconds after which a loader that is not used gives its place up; None: never."""
        ...

    def open_pool(self, plan: LoaderPlan, graph: GraphHandle, events: EventSink, on_started: OnStarted) -> WorkerPool:
        """Finds the processes for a pool, which may take a while.

        Args:
            plan: The plan of the pool's first loader.
            graph: The graph.
            events: Receives progress.
            on_started: Called with each process that can be told of loaders from now on.

        Raises:
            PlanError: The system's limits do not allow it, there is no folder for logs, or hosts or servers are not clear.
            MemoryLimitError: There is no memory for it.
            StartTimeout: Another host, or a server, was not there in time.
        """
        ...


@dataclass(eq=False)
class Assignment:
    """A step that was given to a worker; it owns its slot until its batch is handed out or dropped.

    Attributes:
        generation: Counts the epochs that have begun.
        epoch: The epoch.
        step: The step.
        rank: The worker.
        ring: The ring that its slot belongs to.
        slot: The slot.
        state: "sampling" until an answer has come, then "ready", and "held" while the user has a batch in its slot.
    """

    generation: int
    epoch: int
    step: Step
    rank: int
    ring: Ring[Assignment]
    slot: int
    state: Literal["sampling", "ready", "held"] = "sampling"


class RingScheduler(Scheduler[tuple[Assignment, Any]]):
    """A ``Scheduler`` whose results are assignments with what came back for them. Only the holder of its pool's lock may use it.

    Args:
        ring: The slots.
        in_flight_each: Groups of steps that one worker may have at a time.
        window: Steps that may be under way or wait to be handed out.

    Attributes:
        ring: See above.
        in_flight_each: See above.
        group: Steps that a worker is given, and answers, together; as many as ``in_flight_each`` of these it may have at a time.
        most_together: The most that slots of this size are for.
        schedule: The steps of the epoch that runs; None before the first.
    """

    def __init__(self, ring: Ring[Assignment], in_flight_each: int, window: int) -> None:
        super().__init__(window)
        self.ring, self.in_flight_each, self.group = ring, in_flight_each, 1
        self.most_together = _most_together(ring.slot_bytes)
        self.schedule: Schedule | None = None
        self._old_rings: list[Ring[Assignment]] = []
        self._assignments: dict[tuple[int, int], Assignment] = {}

    def begin_schedule(self, epoch: int, schedule: Schedule, delivered: int = 0) -> None:
        """Starts an epoch; what is left of the one before is dropped, now or when its answers come.

        Args:
            epoch: Its number.
            schedule: Its steps.
            delivered: Steps that were handed out before.
        """
        self.schedule = schedule
        self.begin(epoch, len(schedule), delivered)
        for ring in self._old_rings:  # nothing that lies in them is wanted any more
            ring.give_up()
        self._old_rings.clear()
        for slot in range(self.ring.num_slots):  # rather than by the results: an interrupt may have lost one
            own = self.ring.owner(slot)
            if own is not None and own.state == "ready" and own.generation < self.generation:
                self.drop(own)

    def use_ring(self, ring: Ring[Assignment], window: int) -> None:
        """Goes on with another ring; assignments under way keep their slots in the old one, which is given up with the epoch."""
        self._old_rings.append(self.ring)
        self.ring, self.window, self.group = ring, window, 1
        self.most_together = _most_together(ring.slot_bytes)

    def give_up_rings(self) -> None:
        """Ends the use of all rings; see ``Ring.give_up``."""
        for ring in (*self._old_rings, self.ring):
            ring.give_up()

    def drop(self, assignment: Assignment) -> None:
        """Takes an assignment's slot back."""
        assignment.ring.free(assignment.slot, assignment)

    def assign_all(self, ranks: Set[int]) -> list[list[Assignment]]:
        """Makes new assignments for the workers ``ranks``, to be sent group by group: as many as they and the ring have room for.

        Whole groups as long as a worker has something to do: there is soon room for the rest of one. Single steps where it has not answered
        for an older epoch: it may have stopped.
        """
        made: list[list[Assignment]] = []
        if self.schedule is None or self.next_step() is None:
            return made
        counts, groups = dict.fromkeys(ranks, 0), dict.fromkeys(ranks, self.group)
        for own in self._assignments.values():
            if own.rank in counts:
                counts[own.rank] += 1
                if own.generation < self.generation:
                    groups[own.rank] = 1
        load = [(counts[rank], rank, groups[rank]) for rank in ranks if counts[rank] <= groups[rank] * (self.in_flight_each - 1)]
        heapq.heapify(load)
        while load:
            count, rank, together = heapq.heappop(load)
            if count and not self.has_room_for(together):
                break
            group = self._assign_group(self.schedule, rank, together)
            if not group:
                break
            made.append(group)
            if count + len(group) <= together * (self.in_flight_each - 1):
                heapq.heappush(load, (count + len(group), rank, together))
        return made

    def _assign_group(self, schedule: Schedule, rank: int, count: int) -> list[Assignment]:
        group: list[Assignment] = []
        while len(group) < count and (step := self.next_step()) is not None:
            new = Assignment(self.generation, self.epoch, schedule.step(step), rank, self.ring, -1)
            slot = self.ring.take(new)
            if slot is None:
                break
            new.slot = slot
            self._assignments[self.assign(rank)] = new
            group.append(new)
        return group

    def answer(self, generation: int, step: int, result: Any) -> Assignment | None:
        """Keeps what came back for an assignment; the assignment, if its result is wanted."""
        own = self._assignments.pop((generation, step), None)
        if own is None:
            return None
        own.state = "ready"  # before it is kept: an interrupt in between leaves a slot that the next epoch takes back
        if self.complete(generation, step, (own, result)):
            return own
        self.drop(own)
        return None

    def cancelled(self, rank: int, generation: int) -> None:
        """Takes off what a worker has of epochs before ``generation``, whatever became of its answers."""
        for key in self.assigned_to(rank):
            if key[0] < generation:
                self.forget(*key)
                self.drop(self._assignments.pop(key))

    def lost(self, worker: int) -> list[tuple[int, int]]:
        """Takes a worker's assignments and their slots back; see ``Scheduler.lost``."""
        gone = super().lost(worker)
        for key in gone:
            self.drop(self._assignments.pop(key))
        return gone


# Small batches are sampled, and told of, several at a time: as many as take so long to sample, as fit into so much memory, and at most so
# many, because a message and a wake-up cost as much as a batch of a few seeds.
_GROUP_S = 0.8e-3
_GROUP_BYTES = 4 << 20
_MOST_TOGETHER = 16


def _most_together(slot_bytes: int) -> int:
    """Batches in slots of this size that a process may be given together."""
    return max(1, min(_MOST_TOGETHER, _GROUP_BYTES // slot_bytes))


class BatchWait:
    """One wait.

    Args:
        workers: The processes.
        timeout_s: The deadline; 0 waits for nothing.
        what: What is waited for, for the error.
    """

    def __init__(self, workers: WorkerPool, timeout_s: float, what: str) -> None:
        self._workers, self._timeout_s, self._what = workers, timeout_s, what
        self._started = self._since = time.monotonic()
        self._deadline = self._started + timeout_s
        self._clocks: dict[int, int] = {}
        self._warned = False

    def _look(self) -> dict[int, int]:
        return {rank: self._workers.signs(rank).cpu_ns for rank in self._workers.pids}

    @property
    def left_s(self) -> float:
        """Seconds to the deadline."""
        return max(0.0, self._deadline - time.monotonic())

    def check(self, ranks: list[int]) -> str | None:
        """Looks at the processes that could bring what is waited for; to be called once it has been waited for a while.

        Args:
            ranks: Their numbers.

        Returns:
            A warning that is due now, or None.

        Raises:
            BatchTimeout: The deadline has passed and none of them is sampling.
        """
        now = time.monotonic()
        if not self._clocks:
            self._clocks = self._look()
        if self._timeout_s > 0 and not self._warned and now - self._started >= self._timeout_s / 2 and self._is_sampling(ranks):
            self._warned = True
            return f"waiting for {self._what} for {now - self._started:.1f} s; {self._whereabouts(ranks)}"
        if now < self._deadline:
            return None
        # A process on a busy machine must have had time to show what it is doing.
        if self._timeout_s > 0 and now - self._since < SIGN_SILENCE_S and any(self._workers.signs(rank).is_fresh for rank in ranks):
            self._deadline = self._since + SIGN_SILENCE_S
            return None
        if self._timeout_s > 0 and (self._is_sampling(ranks) or self._workers.is_starting):  # which has a deadline of its own
            self._since, self._deadline, self._clocks = now, now + self._timeout_s, self._look()
            return None
        raise BatchTimeout(
            f"no batch within {self._timeout_s:g} s ({self._what}); {self._whereabouts(ranks)}",
            "raise batch_timeout_s, lower num_neighbors or batch_size, or close the loader and make it again",
        )

    def _is_sampling(self, ranks: list[int]) -> bool:
        """Whether one of them is alive, at a batch, and has used its processor since the last look: a hung disk does not count."""
        for rank in ranks:
            signs = self._workers.signs(rank)
            if signs.is_fresh and signs.step >= 0 and signs.cpu_ns > self._clocks.get(rank, 0):
                return True
        return False

    def _whereabouts(self, ranks: list[int]) -> str:
        said = []
        for rank in ranks:
            who, signs = self._workers.describe(rank), self._workers.signs(rank)
            if who is None:
                continue
            seen = "was never seen" if signs.seen_s == float("inf") else f"was last seen {signs.seen_s:.1f} s ago"
            doing = f", sampling step {signs.step} for {signs.busy_s:.1f} s" if signs.step >= 0 else ""
            said.append(f"{who} and {seen}{doing}")
        return "; ".join(said) or "no sampling process has it"


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
        scheduler: The steps under way; None while it has no ring.
        failure: Why the epoch cannot go on, or None.
        is_known: Whether it has had a place before, so that the size of its batches is known.
        is_closed: Whether it is closed: it is not admitted again.
        largest: Bytes of the largest batch so far.
        used: ``time.monotonic()`` when it was last used.
        notices: Events and warnings for ``tell``.
    """

    def __init__(self, options: PoolOptions, plan: LoaderPlan, graph: GraphHandle, events: EventSink) -> None:
        super().__init__(plan)
        self.options, self.num_workers = options, 0
        self.graph, self.events = graph, events
        self.batches = BatchList(plan, graph)
        self.opened: set[int] = set()
        self.scheduler: RingScheduler | None = None
        self.failure: GnnkitError | None = None
        self.is_known, self.is_closed, self.is_opening = False, False, True
        self.largest = 0
        self.used = time.monotonic()
        self.notices: list[Event | str] = []
        self._left_off: tuple[int, Schedule, int] | None = None
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
            plan = replace(plan, inputs=self.batches.written_out())
        trial = None if self.is_known else trial_batch(self.batches.schedule(), rank)
        return {"c": self.number, "plan": plan.to_json(), "trial": trial}

    def make_ring(self) -> None:
        """Makes the ring, and goes on where the loader lost its place.

        Raises:
            PlanError: ``channel_size`` is too small.
            MemoryLimitError: There is no memory for the batches.
        """
        ring = self.ring = self._new_ring()
        self.scheduler = RingScheduler(ring, self._in_flight_each, self._window(ring, 1))
        self.is_known, self.is_opening = True, False
        if self._left_off is not None:
            self.scheduler.begin_schedule(*self._left_off)

    def _new_ring(self) -> Ring[Assignment]:
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

    @property
    def _in_flight_each(self) -> int:
        """Batches that a process is given at a time; of small ones, groups of them."""
        return max(self.options.worker_concurrency, self.options.threads_per_worker)

    def _under_way(self, group: int) -> int:
        """Steps that may be under way or wait to be handed out, where they are sampled ``group`` together."""
        return self.num_workers * self._in_flight_each * group + self.plan.runtime.prefetch

    def _window(self, ring: Ring[Assignment], group: int) -> int:
        """The same, where slots are short: at least one stays for sampling, whatever the user holds."""
        return min(max(1, ring.num_slots - min(LEASED, ring.num_slots // 2)), self._under_way(group))

    def use_groups(self, wanted: int) -> None:
        """Has so many steps sampled together from now on, or as many as slots are for."""
        scheduler = self.scheduler
        assert scheduler is not None, "it has a ring"
        group = max(1, min(wanted, scheduler.most_together))
        if group != scheduler.group:
            scheduler.group, scheduler.window = group, self._window(scheduler.ring, group)

    def grow_ring(self) -> bool:
        """Makes a new ring for larger batches, if there were any that did not fit; batches in the old one keep it."""
        if self.scheduler is None or self.largest <= self.scheduler.ring.slot_bytes:
            return False
        try:
            larger = self._new_ring()
        except GnnkitError:  # no room: they go on travelling by themselves
            return False
        self.ring = larger
        self.scheduler.use_ring(larger, self._window(larger, 1))
        return True

    def leave(self) -> None:
        """Gives the place and the ring up; batches in it keep it."""
        if self.scheduler is not None and self.scheduler.schedule is not None:
            self._left_off = self.scheduler.epoch, self.scheduler.schedule, self.scheduler.delivered
        if self.scheduler is not None:
            self.scheduler.give_up_rings()
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

    def has_news(self) -> bool:
        """Whether there is a batch to hand out, or none will come; for holders of the pool's lock."""
        scheduler = self.scheduler
        return scheduler is None or self.failure is not None or scheduler.is_over or scheduler.delivered in scheduler.results

    def deal(self, workers: WorkerPool) -> None:
        """Gives the processes what there is room for: batches that are asked for, and as many steps; none of an epoch that cannot go on."""
        if self._waiting:
            super().deal(workers)
        if self.scheduler is None or self.failure is not None:
            return
        for jobs in self.scheduler.assign_all(workers.ready):
            first, steps = jobs[0], [[job.step.step, job.step.batch_index, job.slot] for job in jobs]
            workers.send(first.rank, "sample", c=self.number, g=first.generation, epoch=first.epoch, steps=steps)

    def _load(self, rank: int) -> int:
        return super()._load(rank) + (0 if self.scheduler is None else len(self.scheduler.assigned_to(rank)))

    # What arrives ---------------------------------------------------------------------------------------------------------

    def take(self, rank: int, message: Message) -> None:
        """Handles what a process says to this loader."""
        body, scheduler = message.body, self.scheduler
        if message.kind == "opened":
            self.opened.add(rank)
            self.largest = max(self.largest, body["nbytes"])
        elif "number" in body:
            super().take(rank, message)
        elif scheduler is None:
            message.close()
        elif message.kind == "cancelled":
            scheduler.cancelled(rank, body["g"])
        elif message.kind == "error":
            scheduler.answer(body["g"], body["step"], error_from_json(body["error"], f"sampling step {body['step']}"))
        else:
            for batch in body["batches"]:
                self._take_batch(scheduler, message, {**batch, "thread": body["thread"]})
            # One at first: the first batches are no later, and short epochs are not sampled whole before they are begun.
            self.use_groups(min(self._batch_times.batches_in(_GROUP_S), 1 + scheduler.delivered // _MOST_TOGETHER))

    def _take_batch(self, scheduler: RingScheduler, message: Message, body: Mapping[str, Any]) -> None:
        self.largest = max(self.largest, body["layout"]["nbytes"])
        self._batch_times.add(body["sample_s"] + body["gather_s"])
        result: object = (body, None)
        if message.fds:  # it was too large for its slot
            try:
                result = (body, mapped(message.fds[0]))
            except OSError as error:
                result = MemoryLimitError(
                    f"a batch of {body['layout']['nbytes'] / 1e6:.0f} MB cannot be mapped: {error}", "lower batch_size"
                )
        job = scheduler.answer(message.body["g"], body["step"], result)
        if message.fds and job is not None:
            scheduler.drop(job)

    def lost(self, rank: int | None, error: GnnkitError | None) -> None:
        """A process is gone; its steps are to be dealt again. See ``PoolSession.lost``."""
        super().lost(rank, error)
        if rank is not None and error is not None:
            self.opened.discard(rank)
        if rank is not None and self.scheduler is not None:
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

"""A loader's session in a worker pool: its ring, epoch and credit; and the wait for its batches."""

from __future__ import annotations

import time
from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Any

from gnnkit.backends.base import PoolBackend
from gnnkit.callers import warn
from gnnkit.errors import BatchTimeout, GnnkitError, MemoryLimitError, PlanError
from gnnkit.events import Event, EventSink
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.batches import BatchList
from gnnkit.runtime.beats import SIGN_SILENCE_S
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.runtime.limits import check_ring_memory, most_slots
from gnnkit.runtime.pool import BatchRequest, PoolSession, WorkerPool, memory_of, trial_batch
from gnnkit.runtime.remote import error_from_json
from gnnkit.runtime.ring import LEASED, Ring, roomy_slot_size, slot_size
from gnnkit.runtime.scheduler import BatchTimes, Scheduler
from gnnkit.runtime.wire import Message
from gnnkit.sampling.schedule import Schedule

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
            plan = replace(plan, inputs=self.batches.written_out())
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
        group = max(1, min(wanted, _MOST_TOGETHER, _GROUP_BYTES // ring.slot_bytes))
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
            own = ring.owner(slot)
            if own is not None and own not in under_way and not ring.is_leased(slot):
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

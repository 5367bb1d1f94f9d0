"""A loader's place in a crew: its own plan, ring, epoch and credit, beside those of the other loaders."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gnnkit.backends.requests import Requests
from gnnkit.backends.scheduler import Scheduler
from gnnkit.backends.slots import SlotPlan
from gnnkit.errors import GnnkitError, MemoryLimitError
from gnnkit.events import Event, EventSink
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.batches import BatchList
from gnnkit.runtime.graph_handle import GraphHandle
from gnnkit.runtime.remote import error_from_json
from gnnkit.runtime.shared_block import mapped
from gnnkit.runtime.wire import Message
from gnnkit.sampling.schedule import Schedule

if TYPE_CHECKING:
    from gnnkit.backends.worker_pool import PoolOptions


class Session:
    """The books of one loader. Only the holder of its crews' lock may change it, but for ``tell``.

    It may lose its place in the crew, to a newer loader of the same plan or because it is not used, and takes one again at its next
    use, with a new ring: the epoch goes on with the step after the last one that was handed out.

    Args:
        options: The backend's options.
        plan: The loader's plan.
        graph: The graph.
        events: Receives the stages "start" and "compile".

    Attributes:
        options: The backend's options.
        num_workers: Processes that it was last sampled by, or is to be.
        plan: The loader's plan.
        graph: The graph.
        batches: The plan's batches.
        requests: Batches outside an epoch.
        number: What the processes know it by; a new one for every place that it takes, 0 while it has none.
        opened: Processes that have taken it in since it got its place.
        dealer: The steps under way; None while it has no ring.
        failure: Why the epoch cannot go on, or None.
        is_known: Whether it has had a place before, so that the size of its batches is known.
        is_closed: Whether it takes no place any more.
        largest: Bytes of the largest batch so far.
        used: ``time.monotonic()`` when somebody last wanted something of it.
    """

    def __init__(self, options: PoolOptions, plan: LoaderPlan, graph: GraphHandle, events: EventSink) -> None:
        self.options, self.num_workers = options, 0
        self.plan, self.graph, self.events = plan, graph, events
        self.batches = BatchList(plan, graph)
        self.requests = Requests()
        self.number = 0
        self.opened: set[int] = set()
        self.dealer: Scheduler | None = None
        self.failure: GnnkitError | None = None
        self.is_known = self.is_closed = False
        self.largest = 0
        self.used = time.monotonic()
        self._slots = SlotPlan(options, plan)
        self._left_off: tuple[int, Schedule, int] | None = None
        self._notices: list[Event | str] = []

    # Its place ----------------------------------------------------------------------------------------------------------

    def enter(self, number: int, num_workers: int) -> None:
        """Takes a place among so many processes."""
        self.number, self.num_workers, self.failure = number, num_workers, None
        self.opened.clear()
        self.used = time.monotonic()

    def introduction(self, rank: int) -> dict[str, Any]:
        """What a process is told of the loader: its plan, and a batch to try while nobody knows how large they are."""
        schedule = self.batches.schedule()
        trial = schedule.turn(rank % len(schedule)).batch_index if len(schedule) and not self.is_known else None
        plan = self.plan
        if plan.store is None:  # only the arrays of a graph in memory are shared, not its splits
            plan = replace(plan, inputs=self.batches.written_out())
        return {"c": self.number, "plan": plan.to_json(), "trial": trial}

    def make_ring(self) -> None:
        """Makes the ring, and goes on where the loader lost its place.

        Raises:
            PlanError: ``channel_size`` is too small.
            MemoryLimitError: There is no memory for the batches.
        """
        ring = self._slots.ring(self.largest, self.num_workers)
        self.dealer = Scheduler(ring, self._slots.in_flight_each, self._slots.window(ring.num_slots))
        self.is_known = True
        if self._left_off is not None:
            self.dealer.begin(*self._left_off)

    def ring_message(self) -> tuple[tuple[int, ...], dict[str, Any]]:
        """What a process is told of the ring: descriptors and body."""
        assert self.dealer is not None
        ring = self.dealer.ring
        return (ring.block.fd,), {"c": self.number, "slot_bytes": ring.slot_bytes}

    def grow_ring(self) -> bool:
        """Makes a new ring for larger batches, if there were any that did not fit; batches in the old one keep it."""
        if self.dealer is None or self.largest <= self.dealer.ring.slot_bytes:
            return False
        try:
            larger = self._slots.ring(self.largest, self.num_workers)
        except GnnkitError:  # no room: they go on travelling by themselves
            return False
        self.dealer.use_ring(larger, self._slots.window(larger.num_slots))
        return True

    def leave(self) -> None:
        """Gives the place and the ring up; batches in it keep it."""
        if self.dealer is not None and self.dealer.schedule is not None:
            self._left_off = self.dealer.epoch, self.dealer.schedule, self.dealer.delivered
        self.dealer, self.number = None, 0
        self.requests.lost(None, None)

    # Its epoch ----------------------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether every step of the epoch has been handed out."""
        if self.dealer is not None:
            return self.dealer.is_over
        return self._left_off is None or self._left_off[2] >= len(self._left_off[1])

    # What arrives ---------------------------------------------------------------------------------------------------------

    def take(self, rank: int, message: Message) -> None:
        """Handles what a process says to this loader."""
        body, dealer = message.body, self.dealer
        if message.kind == "opened":
            self.opened.add(rank)
            self.largest = max(self.largest, body["nbytes"])
        elif "number" in body:
            self.requests.answer(body["number"], message)
        elif dealer is None:
            message.close()
        elif message.kind == "cancelled":
            dealer.cancelled(rank, body["g"])
        elif message.kind == "error":
            dealer.answer(body["g"], body["step"], error_from_json(body["error"], f"sampling step {body['step']}"))
        else:
            self._take_batch(dealer, message)

    def _take_batch(self, dealer: Scheduler, message: Message) -> None:
        body = message.body
        self.largest = max(self.largest, body["layout"]["nbytes"])
        result: object = (body, None)
        if message.fds:  # it was too large for its slot
            try:
                result = (body, mapped(message.fds[0]))
            except OSError as error:
                result = MemoryLimitError(
                    f"a batch of {body['layout']['nbytes'] / 1e6:.0f} MB cannot be mapped: {error}", "lower batch_size"
                )
        job = dealer.answer(body["g"], body["step"], result)
        if message.fds and job is not None:
            dealer.drop(job)

    def lost(self, rank: int, error: GnnkitError | None) -> None:
        """A process is gone; its steps are to be dealt again.

        Args:
            rank: The process.
            error: What to raise for it; None where somebody else does its work.
        """
        if error is not None:
            self.opened.discard(rank)
        self.requests.lost(rank, error)
        if self.dealer is not None:
            self.dealer.lost(rank)
        if error is not None and (self.dealer is None or not self.dealer.is_over):
            self.failure = error

    def note(self, notice: Event | str) -> None:
        """Keeps an event or a warning for ``tell``."""
        self._notices.append(notice)

    def tell(self) -> None:
        """Reports events and gives the warnings that are due: the user's code may run then, so never under the lock."""
        while self._notices:
            notice = self._notices.pop(0)
            if isinstance(notice, Event):
                self.events(notice)
            else:
                warnings.warn(notice, RuntimeWarning, stacklevel=3)

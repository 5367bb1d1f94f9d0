"""Sampling processes and the loaders that they work for: who has died, what has arrived, what is to be sampled next."""

from __future__ import annotations

import itertools
import os
import time
import weakref

from gnnkit.backends.session import Session
from gnnkit.backends.worker_pool import OnStarted, PoolOptions
from gnnkit.errors import GnnkitError, WorkerStopped
from gnnkit.events import Event, EventSink
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.graph_handle import GraphHandle
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
        dealer.begin(epoch, schedule)
        for rank in self.crew.pids:
            if dealer.jobs_of(rank):
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
            for job in channel.dealer.deal(self.crew.ready):
                turn, place = job.turn, {"c": channel.number, "g": job.generation}
                self.crew.send(job.rank, "sample", **place, epoch=job.epoch, step=turn.step, batch=turn.batch_index, slot=job.slot)

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

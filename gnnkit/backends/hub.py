"""A crew of sampling processes and the loaders that it works for: who has died, what has arrived, what is to be sampled next."""

from __future__ import annotations

import itertools
import os
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gnnkit.backends.channel import Channel
from gnnkit.backends.graph_sharing import GraphSharing
from gnnkit.backends.hosts import link_hosts
from gnnkit.errors import PlanError, StartTimeout
from gnnkit.events import Event
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.children import ChildProcess
from gnnkit.runtime.graph_handle import GraphHandle
from gnnkit.runtime.preflight import check_descriptors, check_start_memory
from gnnkit.runtime.registry import RunFolder, checked_folder, runs_root, sweep
from gnnkit.runtime.supervise import Crew, CrewOptions, Death
from gnnkit.runtime.wire import Message
from gnnkit.sampling.schedule import Schedule

if TYPE_CHECKING:
    from gnnkit.backends.colocated import Colocated


class Hub:
    """Starts the processes, handles their messages and deals steps to them. Only the holder of its crews' lock may use it.

    Args:
        options: The backend's options.
        num_workers: Processes.
        plan: The plan of its first loader.
        graph: The graph.

    Attributes:
        crew: The processes.
        channels: The loaders that have a place, by number.
        sharing: The graph's copy.
        link: The connection to other hosts; None where every part is on this one.
        restarts: Processes that were started again because the user allowed it.

    Raises:
        PlanError: The system's limits do not allow it, there is no folder for logs, or the hosts are not clear.
        MemoryLimitError: There is no memory for it.
        StartTimeout: Another host was not there in time.
    """

    def __init__(self, options: Colocated, num_workers: int, plan: LoaderPlan, graph: GraphHandle) -> None:
        self._options, self._store = options, plan.store
        self.channels: dict[int, Channel] = {}
        self.restarts = 0
        self._owner = os.getpid()
        self._numbers = itertools.count(1)
        check_descriptors(num_workers)
        check_start_memory(num_workers, options.threads_per_worker, graph.arrays.schema)
        self.sharing = GraphSharing(plan, graph)
        crew_options = CrewOptions(num_workers, options.threads_per_worker, options.max_concurrent_producer_inits)
        self.crew = Crew(crew_options, _new_folder(options, plan), _greeter(weakref.ref(self)))
        try:
            self.link = link_hosts(options, plan, graph, self.crew.folder.path.parent, self.stop)
        except BaseException:
            self.crew.stop()
            raise

    # Loaders --------------------------------------------------------------------------------------------------------------

    def admit(self, channel: Channel) -> None:
        """Gives a loader a place; one that has had a place before is dealt to at once.

        Raises:
            MemoryLimitError: There is no memory for its batches any more.
        """
        number = next(self._numbers)
        channel.enter(number)
        self.channels[number] = channel
        for rank in self.crew.alive:
            self.crew.send(rank, "open", **channel.introduction(rank))
        if channel.is_known:
            self.give_ring(channel)

    def give_ring(self, channel: Channel) -> None:
        """Makes a loader's ring.

        Raises:
            PlanError: ``channel_size`` is too small.
            MemoryLimitError: There is no memory for the batches.
        """
        channel.make_ring()
        self._send_ring(channel)

    def _send_ring(self, channel: Channel) -> None:
        fds, body = channel.ring_message()
        for rank in self.crew.alive:
            self.crew.send(rank, "ring", fds, **body)

    def dismiss(self, channel: Channel) -> None:
        """Takes a loader's place away; its memory goes with the batches that it has handed out."""
        if self.channels.pop(channel.number, None) is not None:
            for rank in self.crew.alive:
                self.crew.send(rank, "close", c=channel.number)
        channel.leave()

    def greet(self, child: ChildProcess) -> None:
        """Tells a process that has just been started what it is there for."""
        fds, description = self.sharing.greeting(child.rank)
        store = None if self._store is None else {"path": self._store.path, "fingerprint": self._store.fingerprint}
        threads, hosts = self._options.threads_per_worker, None if self.link is None else self.link.greeting()
        child.wire.send("setup", fds, store=store, graph=description, threads=threads, idle_s=self._idle_s, hosts=hosts)
        for channel in self.channels.values():
            child.wire.send("open", **channel.introduction(child.rank))
            if channel.dealer is not None:
                ring_fds, body = channel.ring_message()
                child.wire.send("ring", ring_fds, **body)

    def begin(self, channel: Channel, epoch: int, schedule: Schedule) -> None:
        """Starts a loader's epoch; what is left of the one before is dropped. Processes that have died are started again."""
        if self.link is not None:
            self.link.check()
        dealer = channel.dealer
        assert dealer is not None, "it has a place"
        dealer.begin(epoch, schedule)
        for rank in self.crew.alive:
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
        self.sharing.spread(self.crew, ask=revive)
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
            self.sharing.lost(rank)
            for channel in self.channels.values():
                channel.lost(rank, None)
        elif message.kind == "graph":
            self.sharing.take(rank, message)
        elif "c" in body:
            addressee = self.channels.get(body["c"])
            if addressee is None:  # it has left
                message.close()
            else:
                addressee.take(rank, message)

    def _mourn(self, rank: int, death: Death) -> None:
        """A process has died: it is started again where the user allows it, and is an error for the loaders it worked for otherwise."""
        self.sharing.lost(rank)
        may_restart = self.restarts < self._options.max_restarts
        for channel in self.channels.values():
            channel.lost(rank, None if may_restart and channel.dealer is not None else death.error)
        if may_restart:
            self.restarts += 1
            count = f"{self.restarts} of max_restarts={self._options.max_restarts}"
            active = [channel for channel in self.channels.values() if not channel.is_over]
            for channel in active or list(self.channels.values())[:1]:
                channel.note(f"{death.summary}; it is started again ({count}), and its batches are sampled again")

    def _fail(self, rank: int, error: StartTimeout) -> None:
        self.sharing.lost(rank)
        for channel in self.channels.values():
            channel.requests.lost(rank, error)  # somebody may wait for a batch outside an epoch
            if channel.dealer is None or not channel.is_over:
                channel.failure = error

    @property
    def _idle_s(self) -> float | None:
        """Seconds after which something is idle; None on several hosts, which count on each other until the end."""
        return self._options.idle_timeout_s if self.link is None else None

    def idle_channels(self) -> list[Channel]:
        """Loaders that nobody has used for longer than the user allows."""
        limit, now = self._idle_s, time.monotonic()
        return [] if limit is None else [c for c in self.channels.values() if c.dealer is not None and now - c.used > limit]

    def stop(self) -> None:
        """Ends the processes; does nothing in a forked child."""
        if os.getpid() != self._owner:
            return
        self.sharing.give_up()
        self.crew.stop()
        if self.link is not None:
            self.link.close()


def _new_folder(options: Colocated, plan: LoaderPlan) -> RunFolder:
    if options.log_dir is None:
        root = runs_root()
    else:
        try:
            root = checked_folder(Path(options.log_dir).expanduser())
        except OSError as error:
            raise PlanError(f"log_dir={options.log_dir!r} cannot be written: {error.strerror or error}", "give another folder") from error
    sweep(root)
    return RunFolder(root, {"store": None if plan.store is None else plan.store.path})


def _greeter(hub: weakref.ref[Hub]) -> Callable[[ChildProcess], None]:
    def greet(child: ChildProcess) -> None:
        target = hub()
        if target is not None:
            target.greet(child)

    return greet

"""The conversation with a loader's sampling processes: who has died, what has arrived, what is to be sampled next."""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gnnkit.backends.batches import BatchList
from gnnkit.backends.dealing import Dealer
from gnnkit.backends.graph_sharing import GraphSharing
from gnnkit.backends.requests import Requests
from gnnkit.backends.slots import SlotPlan
from gnnkit.errors import GnnkitError, MemoryLimitError, PlanError
from gnnkit.events import Event, EventSink, Stage
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.children import ChildProcess
from gnnkit.runtime.graph_handle import GraphHandle
from gnnkit.runtime.preflight import check_descriptors, check_start_memory
from gnnkit.runtime.registry import RunFolder, checked_folder, runs_root, sweep
from gnnkit.runtime.remote import error_from_json
from gnnkit.runtime.supervise import Crew, CrewOptions, Death
from gnnkit.runtime.wire import Message
from gnnkit.sampling.schedule import Schedule

if TYPE_CHECKING:
    from gnnkit.backends.colocated import Colocated

# Longest time that a wait goes without looking around: at other threads, closed loaders and interrupts.
SLICE_S = 0.05


class Hub:
    """Starts the processes, handles their messages and deals steps to them. Only its stream's lock's holder may use it.

    Args:
        options: The backend's options.
        num_workers: Processes.
        plan: The plan.
        graph: The graph.
        events: Receives the stages "start" and "compile".

    Attributes:
        batches: The plan's batches.
        crew: The processes.
        dealer: The steps under way.
        requests: Batches outside an epoch.
        sharing: The graph's copy.
        failure: Why the epoch cannot go on, or None.
        restarts: Processes that were started again because the user allowed it.
    """

    def __init__(self, options: Colocated, num_workers: int, plan: LoaderPlan, graph: GraphHandle, events: EventSink) -> None:
        self._options, self._plan, self._events = options, plan, events
        self.batches = BatchList(plan, graph)
        self.requests = Requests()
        self.failure: GnnkitError | None = None
        self.restarts = 0
        self._owner = os.getpid()
        self._largest = 0  # bytes of the largest batch so far
        self._warnings: list[str] = []
        self._slots = SlotPlan(options, plan, num_workers)
        check_descriptors(num_workers)
        check_start_memory(num_workers, options.threads_per_worker, graph.arrays.schema)
        self.sharing = GraphSharing(plan, graph)
        crew_options = CrewOptions(num_workers, options.threads_per_worker, options.max_concurrent_producer_inits)
        self.crew = Crew(crew_options, _new_folder(options, plan), _greeter(weakref.ref(self)))

    def start(self) -> None:
        """Starts every process and waits until they are ready.

        Raises:
            StartTimeout: One was not ready in time, or ended.
            PlanError: ``channel_size`` is too small.
            MemoryLimitError: There is no memory for the batches.
        """
        crew, count = self.crew, self.crew.options.num_workers
        self._wait_for_turn()
        with Stage(self._events, "start", label="sampling processes", total=count, unit="processes") as stage:
            while len(crew.ready) < count:
                crew.start_missing()
                for rank, what in crew.listen():
                    if isinstance(what, Death):
                        raise what.error
                    self._handle(rank, what)
                if len(crew.ready) > stage.done:
                    stage.update(len(crew.ready))
                error = crew.overdue(self._plan.runtime.start_timeout_s)
                if error is not None:
                    raise error
                if len(crew.ready) < count:
                    crew.wait(SLICE_S)
        ring = self._slots.ring(self._largest)
        self.dealer = Dealer(ring, self._slots.in_flight_each, self._slots.window(ring.num_slots))
        for rank in crew.alive:
            self._send_ring(rank)

    def _wait_for_turn(self) -> None:
        """The gap between the trainers of one host that the user asked for."""
        rank = os.environ.get("LOCAL_RANK", "0")
        if rank.isdigit() and self._options.process_start_gap_seconds:
            threading.Event().wait(int(rank) * self._options.process_start_gap_seconds)

    def greet(self, child: ChildProcess) -> None:
        """Tells a process that has just been started what it is there for."""
        fds, description = self.sharing.greeting(child.rank)
        schedule = self.batches.schedule()
        trial = schedule.turn(child.rank % len(schedule)).batch_index if len(schedule) else None
        plan = self._plan_for_workers().to_json()
        child.wire.send("setup", fds, plan=plan, graph=description, threads=self._options.threads_per_worker, trial=trial)

    def _plan_for_workers(self) -> LoaderPlan:
        """The plan; for a graph in memory with the split's ids in it, because only the arrays are shared."""
        inputs = self._plan.inputs
        if self._plan.store is None and inputs.split is not None:
            return replace(self._plan, inputs=replace(inputs, split=None, ids=self.batches.input_ids))
        return self._plan

    def _send_ring(self, rank: int) -> None:
        ring = self.dealer.ring
        self.crew.send(rank, "ring", (ring.block.fd,), slot_bytes=ring.slot_bytes)

    def begin(self, epoch: int, schedule: Schedule) -> None:
        """Starts an epoch; what is left of the one before is dropped. Processes that have died are started again."""
        self.failure = None
        self.dealer.begin(epoch, schedule)
        for rank in self.crew.alive:
            if self.dealer.jobs_of(rank):
                self.crew.send(rank, "cancel", g=self.dealer.generation)
        self._grow_ring()
        self.crew.settle()
        self.pump(revive=True)
        self.failure = None  # what had died meanwhile has been started again
        self.deal()

    def _grow_ring(self) -> None:
        """Makes a new ring for larger batches, if there were any that did not fit; batches in the old one keep it."""
        if self._largest <= self.dealer.ring.slot_bytes:
            return
        with contextlib.suppress(PlanError, MemoryLimitError):  # then they go on travelling by themselves
            larger = self._slots.ring(self._largest)
            self.dealer.use_ring(larger, self._slots.window(larger.num_slots))
            for rank in self.crew.alive:
                self._send_ring(rank)

    def pump(self, *, revive: bool = False) -> None:
        """Handles what has arrived and deals what can be sampled next.

        Args:
            revive: Whether processes that have died are started again, whatever the options say.
        """
        for rank, what in self.crew.listen():
            if isinstance(what, Death):
                self._mourn(rank, what)
            else:
                self._handle(rank, what)
        overdue = self.crew.overdue(self._plan.runtime.start_timeout_s)
        if overdue is not None:
            self.failure = overdue
        if revive or (self.failure is None and len(self.crew.alive) < self.crew.options.num_workers):
            before = set(self.crew.alive)
            self.crew.start_missing()
            for rank in set(self.crew.alive) - before:
                self._send_ring(rank)
        self.sharing.spread(self.crew, ask=revive)
        self.deal()

    def deal(self) -> None:
        """Gives the processes as many steps as there is room for; none once the epoch cannot go on."""
        if self.failure is not None:
            return
        for job in self.dealer.deal(self.crew.ready):
            turn = job.turn
            self.crew.send(job.rank, "sample", g=job.generation, epoch=job.epoch, step=turn.step, batch=turn.batch_index, slot=job.slot)

    def _handle(self, rank: int, message: Message) -> None:
        body = message.body
        if message.kind == "event":
            self._events(Event(body["what"], **{name: value for name, value in body.items() if name != "what"}))
        elif message.kind == "ready":
            self._largest = max(self._largest, body["nbytes"])
        elif message.kind == "cancelled":
            self.dealer.cancelled(rank, body["g"])
        elif message.kind == "graph":
            self.sharing.take(rank, message)
        elif "number" in body:
            self.requests.answer(body["number"], message)
        elif message.kind == "error":
            self.dealer.answer(body["g"], body["step"], error_from_json(body["error"], f"sampling step {body['step']}"))
        else:
            self._take_batch(message)

    def _take_batch(self, message: Message) -> None:
        body = message.body
        self._largest = max(self._largest, body["layout"]["nbytes"])
        result: object = (body, None)
        if message.fds:  # it was too large for its slot
            try:
                result = (body, mapped(message.fds[0]))
            except OSError as error:
                result = MemoryLimitError(
                    f"a batch of {body['layout']['nbytes'] / 1e6:.0f} MB cannot be mapped: {error}", "lower batch_size"
                )
        job = self.dealer.answer(body["g"], body["step"], result)
        if message.fds and job is not None:
            self.dealer.drop(job)

    def _mourn(self, rank: int, death: Death) -> None:
        self.dealer.lost(rank)
        self.sharing.lost(rank)
        self.requests.lost(rank, death.error)
        if self.restarts < self._options.max_restarts:
            self.restarts += 1
            count = f"{self.restarts} of max_restarts={self._options.max_restarts}"
            self._warnings.append(f"{death.summary}; it is started again ({count}), and its batches are sampled again")
        else:
            self.failure = death.error

    def warn(self) -> None:
        """Gives the warnings that are due."""
        while self._warnings:
            warnings.warn(self._warnings.pop(0), RuntimeWarning, stacklevel=3)

    def close(self) -> None:
        """Ends the processes; does nothing in a forked child."""
        if os.getpid() != self._owner:
            return
        self.sharing.give_up()
        self.crew.stop()


def mapped(fd: int) -> NDArray[np.uint8]:
    """The memory behind a descriptor, which is closed; it dies with its last view.

    Raises:
        OSError: The system refuses the mapping.
    """
    try:
        return np.frombuffer(mmap.mmap(fd, 0), np.uint8)
    finally:
        os.close(fd)


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

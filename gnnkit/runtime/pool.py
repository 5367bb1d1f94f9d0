"""A pool of workers: what it is, one of this process's own, the loaders that it serves, and what its workers are given and say.

A trainer's pools (``gnnkit.backends.loader_pool``) and a server's (``gnnkit.cluster.serving.pool``) are such pools.
"""

from __future__ import annotations

import itertools
import os
import select
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import GnnkitError, MemoryLimitError, WorkerStopped
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.entry import Signs
from gnnkit.runtime.graph_memory import GraphHandle, GraphSharing
from gnnkit.runtime.limits import check_descriptors, check_start_memory
from gnnkit.runtime.process_status import ProcessStatus, look_at
from gnnkit.runtime.remote import error_from_json, fresh
from gnnkit.runtime.ring import Ring, mapped
from gnnkit.runtime.runs import new_run
from gnnkit.runtime.supervisor import ChildProcess, Exit, Supervisor, SupervisorOptions
from gnnkit.runtime.waiters import Waiters
from gnnkit.runtime.wire import Handed, Message

if TYPE_CHECKING:
    from gnnkit.sampling.schedule import Schedule

P = ParamSpec("P")


class WorkerPool(Protocol):
    """Processes that sample, by number.

    Only the pool's holder may use them, but for ``pids``, ``graph_bytes``, ``details`` and ``statuses``.

    Attributes:
        ready: Those that can be given steps.
        on_started: Called with each process that can be told of loaders from now on.
        can_idle: Whether loaders that are not used may give their places up.
    """

    ready: set[int]
    on_started: Callable[[int], None]
    can_idle: bool = True

    @property
    def expected(self) -> int:
        """The number of processes once all have started."""

    @property
    def pids(self) -> Mapping[int, int]:
        """Pids of those that are there, by number."""

    @property
    def is_starting(self) -> bool:
        """Whether any worker is starting; such a wait has a deadline of its own."""

    @property
    def is_reporting(self) -> bool:
        """Whether more may come of what those that are there did to start, though they can be given steps."""
        return False

    @property
    def graph_bytes(self) -> int:
        """Bytes of the graph's copy in huge pages, 0 while there is none."""

    def lane(self, rank: int) -> str:
        """Returns the name of a process, which a restart does not change: "process 0", "server 0, process 1"."""

    def statuses(self) -> Iterator[ProcessStatus]:
        """Yields the process status of each process on this host, servers and helpers included."""

    def restart(self) -> None:
        """Has all processes end that are this process's own; ``attend`` has others come. Their ends are no errors.

        Raises:
            PlanError: None is.
        """

    def describe(self, rank: int) -> str | None:
        """``"sampling process 0 (pid 12) is running"``; None where there is none of that number."""

    def signs(self, rank: int) -> Signs:
        """Returns the last signs of life of a process."""

    def send(self, rank: int, kind: str, fds: Handed = (), /, **body: object) -> None:
        """Sends a message to a process; one that is gone gets nothing."""

    def listen(self) -> Iterator[tuple[int, Message | Exit]]:
        """Yields what has arrived since the last call, and exits after all that the dead had sent.

        "retired" is a process that has ended without an error: what it was sent is to be sent again.
        """

    def poller(self) -> select.poll:
        """Returns a poll object that wakes when something arrives or a process ends."""

    def settle(self) -> None:
        """Waits for processes that have begun to end, so that the next ``listen`` finds all who died together."""

    def attend(self, start_timeout_s: float, *, revive: bool) -> tuple[int, GnnkitError] | None:
        """Periodic housekeeping.

        Args:
            start_timeout_s: How long workers may take to start.
            revive: Whether those that are not there are to come back; without it, nothing is done that takes long.

        Returns:
            Rank of a worker past its start deadline, and the error.
        """

    def check(self) -> None:
        """Raises what keeps an epoch from being sampled."""
        return

    def details(self) -> Mapping[str, Any]:
        """Facts for people, the folder of their logs among them."""

    def stop(self) -> None:
        """Ends what is this process's own; safe to call twice."""


# What a worker says of a batch, its layout among it, and the batch's bytes; or why there are none.
Sampled: TypeAlias = "tuple[Mapping[str, Any], NDArray[np.uint8]] | GnnkitError"


@dataclass(eq=False)
class BatchRequest:
    """A request for one batch.

    Attributes:
        epoch: The epoch.
        batch: Index in its list of batches.
        seeds: int64 ``[k]`` dataset ids in place of that list's, or None.
        answer: Called once, with the batch or why there is none; None after that, and where nothing waits for it any more.
        what: What is done, for errors.
        rank: The worker that it was given to; -1 while there is none.
        slot: Where the worker writes it.
        ring: What the slot belongs to; None: the worker answers with memory of its own.
        is_padding: See ``Step``; of an epoch's step.
    """

    epoch: int
    batch: int
    seeds: NDArray[np.int64] | None
    answer: Callable[[Sampled], None] | None
    what: str = "sampling a batch"
    rank: int = -1
    slot: int = -1
    ring: Ring | None = None
    is_padding: bool | None = None

    def settle(self, sampled: Sampled) -> None:
        """Answers, once. What has the answer now is not held on to: its slot is this request's until the answer is gone."""
        answer, self.answer = self.answer, None
        if answer is not None:
            answer(sampled)


class PoolSession:
    """The state of one loader in a pool of workers. Only for the holder of the pool.

    Args:
        plan: The loader's plan.
        most_each: Batches that a worker has to sample before it is given no more requests.

    Attributes:
        number: What the workers know it by; a new one for every place that it takes, 0 while it has none.
        plan: See above.
        ring: The memory that batches are written to; None while there is none.
        is_opening: Whether it is not known yet that workers can sample for it: one that dies meanwhile is not tried again.
    """

    def __init__(self, plan: LoaderPlan, most_each: int = sys.maxsize) -> None:
        self.number, self.plan, self._most_each = 0, plan, most_each
        self.ring: Ring | None = None
        self.is_opening = False
        self._waiting: deque[BatchRequest] = deque()
        self._given: dict[Any, BatchRequest] = {}  # by what workers call them in their answers
        self._numbers = itertools.count(1)

    # What workers are told of it ----------------------------------------------------------------------------------------------

    def setup(self, rank: int) -> dict[str, Any]:
        """Returns the message that introduces the loader to a worker: its plan, and a batch to try where their size is not known."""
        return {"c": self.number, "plan": self.plan.to_json(), "trial": None}

    def leave(self) -> None:
        """Gives its place up: what workers were asked for is to be asked for again."""
        self.number = 0
        self.lost(None, None)

    # Batches in no order ------------------------------------------------------------------------------------------------------

    def ask(self, request: BatchRequest) -> None:
        """Has a batch sampled; ``deal`` is to follow."""
        self._waiting.append(request)

    def forget(self, request: BatchRequest) -> None:
        """Ends a request whose answer nothing waits for any more."""
        request.answer = None
        if request in self._waiting:
            self._waiting.remove(request)

    def deal(self, workers: WorkerPool) -> None:
        """Gives the workers what there is room for, each time to the one that has least to do."""
        if not self._has_more():
            return
        loads = dict.fromkeys(sorted(workers.ready), 0)
        for request in self._given.values():
            if request.rank in loads:
                loads[request.rank] += 1
        while loads:
            rank = min(loads, key=loads.__getitem__)
            room = self._room(rank, loads[rank])
            if not room:
                del loads[rank]
            elif given := self._give(workers, rank, room):
                loads[rank] += given
            else:
                return

    def _has_more(self) -> bool:
        """Whether there is something to give."""
        return bool(self._waiting)

    def _room(self, rank: int, load: int) -> int:
        """Requests that a worker is to be given together now that it has ``load`` of them; 0 where it has enough to do."""
        return int(load < self._most_each)

    def _give(self, workers: WorkerPool, rank: int, most: int) -> int:
        """Gives a worker the next requests, at most so many; how many there were, and room for their answers."""
        if not self._waiting or not self._place(self._waiting[0]):
            return 0
        request, number = self._waiting.popleft(), next(self._numbers)
        request.rank, self._given[number] = rank, request
        if request.ring is not None:
            workers.send(rank, "sample", c=self.number, g=0, epoch=request.epoch, steps=[[number, request.batch, request.slot]])
            return 1
        seeds = () if request.seeds is None else (np.ascontiguousarray(request.seeds).data,)
        workers.send(rank, "now", seeds, c=self.number, number=number, epoch=request.epoch, batch=request.batch)
        return 1

    def _place(self, request: BatchRequest) -> bool:
        """Whether there is room for what a worker answers; gives the request a slot where there are some."""
        return True

    # What arrives ---------------------------------------------------------------------------------------------------------------

    def take(self, rank: int, message: Message) -> None:
        """Handles what a worker says to this loader; the message's descriptors are this loader's."""
        (batch,) = message.body.get("batches", [message.body])
        request = self._given.pop(message.body.get("number", batch.get("step", 0)), None)
        if request is not None and request.answer is not None:
            request.settle(self._read(request, batch, message))
        elif request is not None:
            self.withdraw(request)
        message.close()

    def _read(self, request: BatchRequest, batch: Mapping[str, Any], message: Message) -> Sampled:
        """Returns a worker's answer to a request; what is mapped takes no descriptor."""
        if message.fds or "error" in batch:  # its slot, where it has one, is not needed
            self.withdraw(request)
        if "error" in batch:
            return error_from_json(batch["error"], request.what)
        nbytes = batch["layout"]["nbytes"]
        if request.ring is not None:
            return batch, request.ring.lease(request.slot, nbytes, self._freed)[:nbytes]
        block = memory_of(message, nbytes)
        return block if isinstance(block, GnnkitError) else (batch, block)

    def withdraw(self, request: BatchRequest) -> None:
        """Takes a request's slot back."""
        if request.ring is not None:
            request.ring.free(request.slot, request)
            request.ring = None

    def _freed(self) -> None:
        """A slot is free again; called from anywhere."""

    def lost(self, rank: int | None, error: GnnkitError | None) -> None:
        """A worker does not answer any more.

        Args:
            rank: The worker; None: none does.
            error: What to raise for it; None where another one does its work.
        """
        names = [name for name, request in self._given.items() if rank in (None, request.rank)]
        gone = [self._given.pop(name) for name in names]
        for request in gone:
            self.withdraw(request)
            request.rank = -1
        if error is None:
            self._waiting.extendleft(request for request in reversed(gone) if request.answer is not None)
            return
        if rank is None:
            gone += self._waiting
            self._waiting.clear()
        for request in gone:
            request.settle(fresh(error))


def memory_of(message: Message, nbytes: int) -> NDArray[np.uint8] | MemoryLimitError:
    """The memory that a batch has come in, which takes no descriptor; or why it cannot be mapped."""
    try:
        return mapped(message.fds.pop(0))[:nbytes]
    except OSError as error:
        return MemoryLimitError(f"a batch of {nbytes / 1e6:.0f} MB cannot be mapped: {error}", "lower batch_size")


def trial_batch(schedule: Schedule, rank: int) -> int | None:
    """The batch that a worker tries, so that the size of batches is known; None where there is none."""
    return schedule.step(rank % len(schedule)).batch_index if len(schedule) else None


S = TypeVar("S", bound=PoolSession)
W = TypeVar("W", bound=WorkerPool)


class SharedPool(Generic[S, W]):
    """The loaders of a pool of workers: hands on what workers say, and gives them what there is to do. Only for the holder of the pool.

    Args:
        workers: The workers, of which none has started yet.
        max_restarts: How many deaths are followed by a restart instead of an error.
        start_timeout_s: Seconds that a worker may take to start.
        lock: What its holder holds, where several threads may; None where one thread has the pool.

    Attributes:
        workers: The workers.
        sessions: The loaders that have a place, by number.
        waiters: The threads that wait for what the workers say, where there are several.
        restarts: Deaths that were no errors because the user allowed it.
        start_timeout_s: See above.
    """

    def __init__(
        self,
        workers: W,
        max_restarts: int,
        start_timeout_s: float,
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        self.sessions: dict[int, S] = {}
        self.waiters = Waiters(lock or nullcontext())
        self.restarts, self.start_timeout_s = 0, start_timeout_s
        self._max_restarts, self._numbers = max_restarts, itertools.count(1)
        self.workers = workers
        workers.on_started = weakly(self._announce_sessions)

    # Loaders ------------------------------------------------------------------------------------------------------------------

    def add(self, session: S) -> None:
        """Gives a loader a place: the workers hear of it."""
        session.number = next(self._numbers)
        self.sessions[session.number] = session
        for rank in self.workers.pids:
            self.workers.send(rank, "open", **session.setup(rank))

    def hand_ring(self, session: S) -> None:
        """Tells the workers of a loader's ring."""
        for rank in self.workers.pids:
            self._hand_ring(rank, session)

    def _hand_ring(self, rank: int, session: S) -> None:
        if session.ring is not None:
            self.workers.send(rank, "ring", (session.ring.block.fd,), c=session.number, slot_bytes=session.ring.slot_bytes)

    def remove(self, session: S) -> None:
        """Takes a loader's place away."""
        if self.sessions.pop(session.number, None) is not None:
            for rank in self.workers.pids:
                self.workers.send(rank, "close", c=session.number)
        session.leave()

    def _announce_sessions(self, rank: int) -> None:
        """Tells a process that has just come of the loaders that are there."""
        for session in self.sessions.values():
            self.workers.send(rank, "open", **session.setup(rank))
            self._hand_ring(rank, session)

    # Workers ------------------------------------------------------------------------------------------------------------------

    def pump(self, *, revive: bool) -> None:
        """Handles what has arrived, for whichever loader it is, and gives the workers what there is to do; see ``hear``."""
        self.hear(revive=revive)
        self.assign()

    def hear(self, *, revive: bool) -> None:
        """Handles what has arrived, for whichever loader it is; ``assign`` is to follow.

        Args:
            revive: Whether processes that are missing are started.
        """
        for rank, what in self.workers.listen():
            if isinstance(what, Exit):
                self._on_exit(rank, what)
            elif (addressee := self.sessions.get(what.body.get("c", 0))) is not None:
                addressee.take(rank, what)
            else:
                self._handle(rank, what)
        if (overdue := self.workers.attend(self.start_timeout_s, revive=revive)) is not None:
            self._on_overdue(*overdue)
        self.waiters.ring()

    def assign(self) -> None:
        """Gives the workers as much to do as there is room for."""
        for session in self.sessions.values():
            session.deal(self.workers)

    def _handle(self, rank: int, message: Message) -> None:
        """Handles what a worker says to no loader that is there."""
        message.close()

    @property
    def may_restart(self) -> bool:
        """Whether the next death is no error."""
        return self.restarts < self._max_restarts

    def _on_exit(self, rank: int, exit_: Exit) -> None:
        """Processes have died: others take their places where the user allows it, and it is an error for the loaders otherwise."""
        is_allowed = self.may_restart and not exit_.is_replaced and not isinstance(exit_.error, WorkerStopped)
        for session in list(self.sessions.values()):
            is_harmless = exit_.is_replaced or (is_allowed and not session.is_opening)
            for dead in (rank, *exit_.others):
                session.lost(dead, None if is_harmless else exit_.error)
        if is_allowed:
            self.restarts += 1
        if is_allowed or exit_.is_replaced:
            self._on_harmless(exit_)

    def _on_harmless(self, exit_: Exit) -> None:
        """Processes have died, and others take their places."""

    def _on_overdue(self, rank: int, error: GnnkitError) -> None:
        """A process was not ready in time, and was ended."""
        raise NotImplementedError


def weakly(method: Callable[P, None]) -> Callable[P, None]:
    """A bound method that does not keep its object, and does nothing once that is gone."""
    weak = weakref.WeakMethod(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        if (target := weak()) is not None:
            target(*args, **kwargs)

    return call


class LocalWorkerPool(Supervisor, WorkerPool):
    """Processes of this process's own; see ``WorkerPool``.

    Args:
        options: How they are started.
        log_dir: The folder of runs as the user gave it; see ``new_run``.
        facts: See ``RunFolder``.
        graph: The graph.
        memory_budget: Most bytes that its copy may take; see ``GraphHandle.copy_nbytes``.
        setup: What a process is told first, beside the graph's copy.
        trains: Whether this process makes PyG's objects of batches.

    Attributes:
        setup: See above.
        sharing: The graph's copy.

    Raises:
        PlanError: The system's limits do not allow it, or there is no folder for logs.
        MemoryLimitError: There is no memory for them.
    """

    def __init__(
        self,
        options: SupervisorOptions,
        log_dir: str | None,
        facts: dict[str, Any],
        graph: GraphHandle,
        memory_budget: int | None,
        setup: dict[str, Any],
        *,
        trains: bool = True,
    ) -> None:
        check_descriptors(options.num_workers)
        check_start_memory(options.num_workers, options.threads, graph.arrays.schema, graph.mapped_nbytes, trains=trains)
        self.setup, self.sharing, self.on_started = setup, GraphSharing(graph, memory_budget), lambda rank: None
        super().__init__(options, new_run(log_dir, facts), weakly(self._set_up), self.sharing)
        self._traffic: dict[int, tuple[int, int]] = {}  # bytes that each process has received from other hosts and sent to them

    def _set_up(self, child: ChildProcess) -> None:
        """Tells a process that has just been started what it is there for."""
        fds, description = self.sharing.setup_message(child.rank)
        child.wire.send("setup", fds, graph=description, threads=self.options.threads, **self.setup)
        self.on_started(child.rank)

    @property
    def expected(self) -> int:
        """The number of processes once all have started."""
        return self.options.num_workers

    @property
    def pids(self) -> dict[int, int]:
        """Pids by number."""
        return {rank: child.pid for rank, child in self.alive.items()}

    @property
    def is_starting(self) -> bool:
        """Whether one is not ready yet."""
        return bool(self.starting)

    @property
    def graph_bytes(self) -> int:
        """Bytes of the graph's copy, 0 while there is none."""
        return self.sharing.nbytes

    def listen(self) -> Iterator[tuple[int, Message | Exit]]:
        """Yields what has arrived, and notes the bytes on the wire."""
        for rank, what in super().listen():
            if isinstance(what, Message) and "traffic" in what.body:
                self._traffic[rank] = what.body["traffic"]
            yield rank, what

    @property
    def wire(self) -> dict[str, int]:
        """Bytes of messages from and to other hosts since the processes were started."""
        received, sent = map(sum, zip((0, 0), *self._traffic.values(), strict=True))
        return {"received": received, "sent": sent}

    def lane(self, rank: int) -> str:
        """Returns the name of a process."""
        return self.options.lane.format(rank=rank)

    def statuses(self) -> Iterator[ProcessStatus]:
        """Yields the status of each process."""
        for rank, child in sorted(self.alive.items()):
            status = look_at(self.lane(rank), child.pid, child.log, self.signs(rank).busy_s)
            yield status if rank in self.ready or status.state != "running" else replace(status, state="starting")

    def describe(self, rank: int) -> str | None:
        """Returns a process's name and its state in the system, for messages; None where it is not running."""
        child = self.alive.get(rank)
        return None if child is None else f"{self.name(rank)} is {child.state()}"

    def details(self) -> dict[str, Any]:
        """Facts for people."""
        return {"logs": str(self.folder.path)}

    def attend(self, start_timeout_s: float, *, revive: bool) -> tuple[int, GnnkitError] | None:
        """Starts those that are missing, has the graph's copy made, and ends a process past its start deadline."""
        found = None if len(self.ready) == len(self._children) else self.overdue(start_timeout_s)
        if revive:
            self.start_missing()
        self.sharing.spread(self.ready, self.send, ask=revive)
        return found

    def stop(self) -> None:
        """Ends them; does nothing in a forked child."""
        if os.getpid() == self._owner:
            self.sharing.give_up()
            super().stop()

"""Servers that this process has started: their state and throughput, the graph copies that they share, restarts and stops."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gnnkit.cluster.serving.listener import own_folder, remove_sockets
from gnnkit.cluster.serving.spec import TOKEN_NAME, UNIX_PREFIX, ServerSpec, has_any_port, settle_token
from gnnkit.errors import GnnkitError, LoaderClosed, PlanError, StartTimeout, WorkerDied, WorkerStopped, on_error
from gnnkit.events import Event, EventSink, Stage, StageProgress, ignore_events
from gnnkit.runtime.entry import Vitals
from gnnkit.runtime.graph_memory import CopySpreading
from gnnkit.runtime.process_status import ProcessStatus, look_at
from gnnkit.runtime.remote import fresh
from gnnkit.runtime.ring import SharedBlock
from gnnkit.runtime.runs import new_run, sweep, tail, with_tail
from gnnkit.runtime.supervisor import ChildProcess, Exit, Supervisor, SupervisorOptions, supervise
from gnnkit.runtime.wire import Message, Waker
from gnnkit.waiting import Deadline

# Of a server that is not there, or has not said yet what it is doing: a status always has the same names.
_UNHEARD: Mapping[str, Any] = {"state": "joining", "pid": None, "parts": None, "clients": 0, "visits": 0, "graph_bytes": 0, "network": None}


def processes_of(status: Mapping[str, Any]) -> Iterator[ProcessStatus]:
    """Yields the process status of servers and their workers.

    Args:
        status: The value of ``ServerFleet.status``.
    """
    for server in status["servers"]:
        name = f"server {server['rank']}"
        if server["pid"] is not None:
            yield look_at(name, server["pid"], Path(server["log"]))
        for worker in server["workers"]:
            if worker["pid"] is not None:
                yield look_at(f"{name}, process {worker['worker']}", worker["pid"], Path(worker["log"]))


_MODULE = "gnnkit.cluster.serving"
_ADVICE = "start the servers again, or let gnnkit do so with max_restarts=..."
# Servers end their own processes first.
_STOP_TIMEOUT_S = 2.0
# Longest time between two looks around.
_LOOK_S, _SLICE_S = 0.5, 0.05
_JOIN_S = 10.0


class ServerFleet:
    """Starts servers, and returns at once. They run until ``stop`` or the end of this process, however that comes.

    Args:
        spec: What they are.

    Attributes:
        spec: What they are.
        folder: Where their Unix sockets are.
        token: What clients have to know.
        token_file: Where it is written; None where it was given by the caller and is written nowhere.

    Raises:
        PlanError: There is no folder for logs, or the system does not start processes.
    """

    def __init__(self, spec: ServerSpec) -> None:
        self.spec = spec
        self._owner = os.getpid()
        self._changed = threading.Condition(threading.RLock())
        self._details: dict[int, Mapping[str, Any]] = {}  # what each server that is there last said of itself; see ``ServerLoop.details``
        self._errors: dict[int, GnnkitError] = {}  # what each server has died of that was not started again
        self._addresses: dict[int, str] = {}  # where each server listens, or has listened
        self._vitals: dict[int, Vitals] = {}  # signs of life of each server's workers
        self._pace, self._restarts = StageProgress(Event("start", "epoch")), 0
        self._last_error: str | None = None  # what a server or a worker died of last, in a line
        self._deferred: list[ChildProcess] = []
        self._events: list[Event] = []
        self._stopped = False
        self._run_folder = new_run(spec.log_dir, {"store": spec.store, "servers": list(spec.ranks)}, "server")
        self._waker = Waker()
        self._copies: defaultdict[tuple[int, ...], CopySpreading] = defaultdict(CopySpreading)  # by the parts that servers have
        options = SupervisorOptions(
            len(spec.ranks),
            1,
            module=_MODULE,
            starts_others=True,
            first=spec.ranks.start,
            title="server {rank}",
            advice=_ADVICE,
            stop_timeout_s=_STOP_TIMEOUT_S,
        )
        self._supervisor = Supervisor(options, self._run_folder, self._set_up)
        self._thread = threading.Thread(target=self._run, name="gnnkit-servers", daemon=True)
        with on_error(self.stop):
            self.folder = self._run_folder.path if spec.folder is None else own_folder(spec.folder)
            self.token, self.token_file = settle_token(spec.token, self.folder, on_network=bool(spec.addresses))
            atexit.register(self.stop)
            self._supervisor.start_missing()
            self._thread.start()  # which waits for it, so that an interrupt may come here too

    # What they are doing ------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """Says "joining" until all servers and workers are there; then "ready", "degraded" where one is not, and "stopped"."""
        with self._changed:
            if self._stopped:
                return "stopped"
            if self._errors or any(details["state"] == "degraded" for details in self._details.values()):
                return "degraded"
            return "ready" if self._num_ready == len(self.spec.ranks) else "joining"

    @property
    def _num_ready(self) -> int:
        """Servers all of whose workers are there."""
        return sum(details["state"] == "ready" for details in self._details.values())

    @property
    def address(self) -> str:
        """The address at which clients find the servers: ``"unix:/folder"``, or addresses with commas between them.

        Raises:
            GnnkitError: The first server, which chooses its own port, does not start.
        """
        spec = self.spec
        if not spec.addresses:
            return f"{UNIX_PREFIX}{self.folder}"
        if not has_any_port(spec.addresses[0]):
            return ",".join(spec.addresses)
        self._wait(lambda: 0 in self._addresses, spec.start_timeout_s, ignore_events)
        return self._addresses[0]

    def status(self) -> dict[str, Any]:
        """Returns the state of the servers and their workers, as JSON values without the token."""
        with self._changed:
            servers = list(map(self._status_of, self.spec.ranks))
            listed = self._addresses.get(0, ",".join(self.spec.addresses))
            return {
                "state": self.state,
                "store": self.spec.store,
                "servers": servers,
                "clients": self._most("clients"),
                "visits": self._most("visits"),
                "restarts": self._restarts,
                "last_error": self._last_error,
                "batches": sum(server["batches"] for server in servers),
                "batches_per_s": self._pace.state().rate or 0.0,
                "address": listed if self.spec.addresses else f"{UNIX_PREFIX}{self.folder}",
            }

    def _status_of(self, rank: int) -> dict[str, Any]:
        """Returns the state of one server, whose names are the same whatever it has said."""
        error = self._errors.get(rank)
        return {
            **_UNHEARD,
            "workers": [],
            **({} if error is None else {"state": "gone"}),
            **self._details.get(rank, {}),
            "rank": rank,
            "batches": self._batches(rank),
            "error": None if error is None else str(error),
            "log": str(self._run_folder.log(rank)),
        }

    def _batches(self, rank: int) -> int:
        """Returns how many batches the workers of a server have sampled since they were started."""
        return self._vitals[rank].num_batches if rank in self._vitals else 0

    def _most(self, name: str) -> int:
        return max((int(details[name]) for details in self._details.values()), default=0)

    def logs(self, rank: int) -> str:
        """The end of what a server and its workers have written.

        Raises:
            PlanError: There is no such server here.
        """
        if rank not in self.spec.ranks:
            raise PlanError(f"server {rank} was not started here", f"here: {list(self.spec.ranks)}")
        with self._changed:
            workers = self._details.get(rank, {}).get("workers", [])
            files = [(f"server {rank}", self._run_folder.log(rank))]
            files += [(f"sampling process {worker['worker']} of server {rank}", Path(worker["log"])) for worker in workers]
        return "\n".join(f"--- {name}, {path}\n{tail(path)}" for name, path in files)

    def wait(self, timeout_s: float | None = None, events: EventSink | None = None) -> None:
        """Waits until they are ready.

        Args:
            timeout_s: Most seconds to wait; None: as long as they may take to start, or to find each other.
            events: Receives the stage "start"; None shows nothing.

        Raises:
            StartTimeout: They are not, in time; or one cannot be started.
            StoreError: The store is damaged, or a part of it is not here.
            WorkerDied: A server or a worker has ended, and is not started again.
            LoaderClosed: They were stopped.
        """
        spec = self.spec
        limit_s = timeout_s if timeout_s is not None else spec.join_timeout_s if spec.rank is not None else spec.start_timeout_s
        self._wait(self._are_ready, limit_s, events or ignore_events)

    def _are_ready(self) -> bool:
        """Whether all are ready, and none has died of which the thread that looks after them has yet to hear."""
        return self.state == "ready" and not any(server.has_ended() for server in self._supervisor.alive.values())

    def take_events(self) -> list[Event]:
        """Takes the progress that servers have reported."""
        if not self._events:
            return []
        with self._changed:
            taken, self._events = self._events, []
            return taken

    def _wait(self, done: Callable[[], bool], limit_s: float, events: EventSink) -> None:
        deadline, total = Deadline(limit_s), len(self.spec.ranks)
        with Stage(events, "start", label="servers", total=total, unit="servers") as stage:
            while True:
                with self._changed:
                    is_done = done()
                    if not is_done:
                        self._check(limit_s if deadline.has_passed else None)
                        self._changed.wait(_SLICE_S)
                    told = self.take_events()
                    there = self._num_ready
                for event in told:
                    events(event)
                if there != stage.done:
                    stage.update(there)
                if is_done:
                    return

    def _check(self, waited_s: float | None) -> None:
        """Raises what keeps the servers from being ready; ``waited_s`` where that takes too long."""
        if self._stopped:
            raise LoaderClosed("the servers were stopped", "start them again with gnnkit.serve(...)")
        self._raise_errors()
        if waited_s is not None:
            missing = [rank for rank in self.spec.ranks if self._details.get(rank, _UNHEARD)["state"] != "ready"]
            said = "; ".join(self._whereabouts(rank) for rank in missing)
            raise StartTimeout(f"not every server was ready after {waited_s:g} s: {said}", "raise the timeout, or look at the logs")

    def _raise_errors(self) -> None:
        """Raises what a server has died of, or a worker that is not started again."""
        for error in self._errors.values():
            raise fresh(error)
        for details in self._details.values():
            for worker in details["workers"]:
                if worker["state"] == "gone":
                    raise WorkerDied(str(worker["error"]), "look at the log, or start it again with revive()")

    def _whereabouts(self, rank: int) -> str:
        child = self._supervisor.alive.get(rank)
        if child is None:
            return f"server {rank} is not there"
        network = self._details.get(rank, {}).get("network") or {}
        missing = f", and waits for the servers {network['missing']}" if network.get("missing") else ""
        return with_tail(f"{self._supervisor.name(rank)} is {child.state()}{missing}", child.log)

    # The thread ---------------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        def give_up(text: str) -> None:
            self._errors.update(dict.fromkeys(self.spec.ranks, WorkerDied(text, "start them again")))
            self._end()

        supervise(
            self._supervisor, self._waker, self._changed, "the servers", has_ended=lambda: self._stopped, look=self._pump, give_up=give_up
        )

    def _listen(self) -> None:
        for rank, what in self._supervisor.listen():
            if isinstance(what, Exit):
                self._on_exit(rank, what.error)
            else:
                self._take(rank, what)

    def _pump(self) -> None:
        self._listen()
        if (overdue := self._supervisor.overdue(self.spec.start_timeout_s)) is not None:
            self._on_exit(*overdue)
        self._pace.advance(Event("progress", "epoch", done=sum(map(self._batches, self._vitals))))
        self._spread_copies()
        wanted, known = self.spec.stop_with_last_client, self._details.values()
        if wanted and known and self._most("visits") >= wanted and not any(details["clients"] for details in known):
            self._end()  # as many clients as the user said have come, and none is left

    def _spread_copies(self) -> None:
        """Tells servers whose workers are there of the graph's copies, and has one made where there is none."""
        ready: defaultdict[tuple[int, ...], set[int]] = defaultdict(set)
        for rank, details in self._details.items():
            if details["parts"] is not None and any(worker["state"] == "ready" for worker in details["workers"]):
                ready[tuple(details["parts"])].add(rank)
        for parts, ranks in ready.items():
            self._copies[parts].spread(ranks, self._supervisor.send, ask=True)

    def _take(self, rank: int, message: Message) -> None:
        body = message.body
        if message.kind == "listening":
            self._errors.pop(rank, None)
            self._addresses[rank] = body["address"]
            waiting, self._deferred = self._deferred, []
            for child in waiting:
                self._set_up(child)
        elif message.kind == "state":
            for worker in body["workers"]:
                if worker["error"] is not None:
                    self._last_error = str(worker["error"]).splitlines()[0]
            self._details[rank] = body
        elif message.kind == "retired":  # it was told to, for another one to take its place
            self._forget(rank)
            self._supervisor.start_missing()
        elif message.kind == "vitals":
            with contextlib.suppress(OSError):  # no address space left: the speed stays unknown
                self._vitals[rank] = Vitals(SharedBlock.attach(message.fds[0], writable=False))
        elif message.kind == "graph":
            for copy in self._copies.values():
                if copy.copier == rank:
                    copy.take(rank, message)
            message.close()
        elif message.kind == "event":
            self._events.append(Event(*body["fields"]))
            del self._events[:-100]  # they may never be taken

    def _on_exit(self, rank: int, error: GnnkitError) -> None:
        self._forget(rank)
        self._last_error = error.message.splitlines()[0]
        if self._restarts < self.spec.max_restarts and not isinstance(error, WorkerStopped):
            self._restarts += 1
            self._supervisor.start_missing()
        else:
            self._errors[rank] = error

    def _forget(self, rank: int) -> None:
        """A server is gone: what it said of itself means nothing any more, it waits for nothing, and knows of no copy."""
        self._details.pop(rank, None)
        self._vitals.pop(rank, None)
        for copy in self._copies.values():
            copy.lost(rank)
        self._deferred = [child for child in self._deferred if child.rank != rank]

    def _set_up(self, child: ChildProcess) -> None:
        """Tells a server that has just been started what it is there for, as soon as that is known."""
        spec, rank = self.spec, child.rank
        if rank and spec.addresses and has_any_port(spec.addresses[0]) and 0 not in self._addresses:
            self._deferred.append(child)
            return
        child.wire.send("setup", **spec.setup(rank, self.token, self.folder, child.log, self._addresses))

    # Its end --------------------------------------------------------------------------------------------------------------------

    def revive(self) -> None:
        """Starts servers and workers that are not there again; whatever has become of them is forgotten."""
        with self._changed:
            if self._stopped or os.getpid() != self._owner:
                return
            self._listen()  # a server that has ended a moment ago is missing, too
            self._errors.clear()
            self._supervisor.start_missing()
            for rank in self._supervisor.alive:
                self._supervisor.send(rank, "revive")
        self._waker.wake()

    def restart(self) -> None:
        """Ends all servers, and starts others in their places."""
        with self._changed:
            if not self._stopped and os.getpid() == self._owner:
                self._supervisor.restart()
        self._waker.wake()

    @property
    def has_ended(self) -> bool:
        """Whether there is no server any more, because they were stopped or because they have died and are not started again."""
        with self._changed:
            return self._stopped or (bool(self._errors) and not self._supervisor.alive)

    def join(self) -> None:
        """Waits until there is no server any more.

        Raises:
            GnnkitError: What the last of them has died of.
        """
        with self._changed:
            while not self.has_ended:
                self._changed.wait(_LOOK_S)
            if not self._stopped:
                self._raise_errors()

    def error_of(self, rank: int) -> GnnkitError | None:
        """Returns the error that ended a server, where no restart followed; None otherwise."""
        with self._changed:
            error = self._errors.get(rank)
            return None if error is None else fresh(error)

    def stop(self) -> None:
        """Ends them; safe to call twice, and in a forked child, where it does nothing."""
        if os.getpid() != self._owner:
            return
        with self._changed:
            self._end()
            self._changed.notify_all()
        self._waker.wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_S)

    def _end(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        atexit.unregister(self.stop)
        try:
            self._supervisor.stop()
        finally:
            for copy in self._copies.values():
                copy.close()
            if hasattr(self, "folder"):
                remove_sockets(self.folder, self.spec.ranks)
            if self._run_folder.path.is_dir():  # it stays for its logs
                (self._run_folder.path / TOKEN_NAME).unlink(missing_ok=True)
            sweep(self._run_folder.path.parent)  # a server that was killed has left its own

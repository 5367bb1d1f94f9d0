"""Servers that this process has started: watched, started again, stopped. What is beside the trainer's way is done by a thread."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gnnkit.cluster.serving.addresses import has_any_port
from gnnkit.cluster.serving.graph_copies import GraphCopies
from gnnkit.cluster.serving.listener import own_folder, remove_sockets
from gnnkit.cluster.serving.server_state import ServerState
from gnnkit.cluster.serving.spec import UNIX_PREFIX, ServerSpec
from gnnkit.cluster.serving.tokens import TOKEN_NAME, settle_token
from gnnkit.errors import GnnkitError, LoaderClosed, PlanError, StartTimeout, WorkerDied, WorkerStopped
from gnnkit.events import Event, EventSink, Stage, ignore_events
from gnnkit.runtime.children import ChildProcess
from gnnkit.runtime.logs import tail, with_tail
from gnnkit.runtime.registry import new_run, sweep
from gnnkit.runtime.remote import fresh
from gnnkit.runtime.supervisor import Death, Supervisor, SupervisorOptions
from gnnkit.runtime.tending import look_after
from gnnkit.runtime.waker import Waker
from gnnkit.runtime.wire import Message

_MODULE = "gnnkit.cluster.serving"
_ADVICE = "start the servers again, or let gnnkit do so with max_restarts=..."
# Servers end their own processes first.
_FAREWELL_S = 2.0
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
        token_file: Where it is written; None where somebody has given it and it is written nowhere.

    Raises:
        PlanError: There is no folder for logs, or the system does not start processes.
    """

    def __init__(self, spec: ServerSpec) -> None:
        self.spec = spec
        self._owner = os.getpid()
        self._changed = threading.Condition(threading.RLock())
        self._books = ServerState(spec)
        self._deferred: list[ChildProcess] = []
        self._events: list[Event] = []
        self._stopped = False
        self._run_folder = new_run(spec.log_dir, {"store": spec.store, "servers": list(spec.ranks)}, "server")
        self._waker = Waker()
        self._copies = GraphCopies()
        options = SupervisorOptions(
            len(spec.ranks), 1, module=_MODULE, first=spec.ranks.start, title="server {rank}", advice=_ADVICE, farewell_s=_FAREWELL_S
        )
        self._crew = Supervisor(options, self._run_folder, self._greet)
        self._thread = threading.Thread(target=self._run, name="gnnkit-servers", daemon=True)
        try:
            self.folder = self._run_folder.path if spec.folder is None else own_folder(spec.folder)
            self.token, self.token_file = settle_token(spec.token, self.folder, on_network=bool(spec.addresses))
            atexit.register(self.stop)
            self._crew.start_missing()
            self._thread.start()  # which waits for it, so that an interrupt may come here too
        except BaseException:
            self.stop()
            raise

    # What they are doing ------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """Says "joining" until all servers and workers are there; then "ready", "degraded" where one is not, and "stopped"."""
        with self._changed:
            return "stopped" if self._stopped else self._books.state

    @property
    def address(self) -> str:
        """What clients are given to find them: ``"unix:/folder"``, or addresses with commas between them.

        Raises:
            GnnkitError: The first server, which chooses its own port, does not start.
        """
        spec = self.spec
        if not spec.addresses:
            return f"{UNIX_PREFIX}{self.folder}"
        if not has_any_port(spec.addresses[0]):
            return ",".join(spec.addresses)
        self._wait(lambda: 0 in self._books.addresses, spec.start_timeout_s, ignore_events)
        return self._books.addresses[0]

    def status(self) -> dict[str, Any]:
        """What they are doing, as JSON values: no token."""
        with self._changed:
            status, addresses = self._books.status(), self._books.addresses
            for server in status["servers"]:
                server["log"] = str(self._run_folder.log(server["rank"]))
            listed = addresses.get(0, ",".join(self.spec.addresses))
            return {**status, "state": self.state, "address": listed if self.spec.addresses else f"{UNIX_PREFIX}{self.folder}"}

    def logs(self, rank: int) -> str:
        """The end of what a server and its workers have written.

        Raises:
            PlanError: There is no such server here.
        """
        if rank not in self.spec.ranks:
            raise PlanError(f"server {rank} was not started here", f"here: {list(self.spec.ranks)}")
        with self._changed:
            workers = self._books.details.get(rank, {}).get("workers", [])
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
            WorkerDied: A server or a worker has ended, and nobody starts it again.
            LoaderClosed: They were stopped.
        """
        spec = self.spec
        limit_s = timeout_s if timeout_s is not None else spec.join_timeout_s if spec.rank is not None else spec.start_timeout_s
        self._wait(lambda: self.state == "ready", limit_s, events or ignore_events)

    def take_events(self) -> list[Event]:
        """The progress that servers have reported and nobody has taken."""
        with self._changed:
            taken, self._events = self._events, []
            return taken

    def _wait(self, done: Callable[[], bool], limit_s: float, events: EventSink) -> None:
        deadline, total = time.monotonic() + limit_s, len(self.spec.ranks)
        with Stage(events, "start", label="servers", total=total, unit="servers") as stage:
            while True:
                with self._changed:
                    is_done = done()
                    if not is_done:
                        self._check(limit_s if time.monotonic() >= deadline else None)
                        self._changed.wait(_SLICE_S)
                    told = self.take_events()
                    there = self._books.num_ready
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
        self._books.check()
        if waited_s is not None:
            details = self._books.details
            missing = [rank for rank in self.spec.ranks if rank not in details or details[rank]["state"] != "ready"]
            said = "; ".join(self._whereabouts(rank) for rank in missing)
            raise StartTimeout(f"not every server was ready after {waited_s:g} s: {said}", "raise the timeout, or look at the logs")

    def _whereabouts(self, rank: int) -> str:
        child = self._crew.alive.get(rank)
        if child is None:
            return f"server {rank} is not there"
        network = self._books.details.get(rank, {}).get("network") or {}
        missing = f", and waits for the servers {network['missing']}" if network.get("missing") else ""
        return with_tail(f"{self._crew.name(rank)} is {child.state()}{missing}", child.log)

    # The thread ---------------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        def give_up(text: str) -> None:
            self._books.errors.update(dict.fromkeys(self.spec.ranks, WorkerDied(text, "start them again")))
            self._end()

        look_after(self._crew, self._waker, self._changed, "the servers", has_ended=lambda: self._stopped, look=self._pump, give_up=give_up)

    def _pump(self) -> None:
        for rank, what in self._crew.listen():
            if isinstance(what, Death):
                self._mourn(rank, what.error)
            else:
                self._take(rank, what)
        overdue = self._crew.overdue(self.spec.start_timeout_s)
        if overdue is not None:
            self._mourn(*overdue)
        self._books.pace.look()
        self._copies.spread({rank: self._books.details[rank] for rank in self._crew.alive if rank in self._books.details}, self._crew.send)
        if self._books.is_deserted:
            self._end()

    def _take(self, rank: int, message: Message) -> None:
        body = message.body
        if message.kind == "listening":
            self._books.errors.pop(rank, None)
            self._books.addresses[rank] = body["address"]
            waiting, self._deferred = self._deferred, []
            for child in waiting:
                self._greet(child)
        elif message.kind == "state":
            self._books.said(rank, body)
        elif message.kind == "retired":  # it was told to, for another one to take its place
            self._books.left(rank)
            self._copies.lost(rank)
            self._deferred = [child for child in self._deferred if child.rank != rank]
            self._crew.start_missing()
        elif message.kind == "vitals":
            self._books.pace.take(rank, message)
        elif message.kind == "graph":
            self._copies.take(rank, message)
        elif message.kind == "event":
            self._events.append(Event(body["what"], **{name: value for name, value in body.items() if name != "what"}))
            del self._events[:-100]  # nobody may be looking

    def _mourn(self, rank: int, error: GnnkitError) -> None:
        self._books.lost(rank, error)
        self._copies.lost(rank)
        self._deferred = [child for child in self._deferred if child.rank != rank]
        if self._books.restarts < self.spec.max_restarts and not isinstance(error, WorkerStopped):
            self._books.restarts += 1
            self._books.errors.pop(rank)
            self._crew.start_missing()

    def _greet(self, child: ChildProcess) -> None:
        """Tells a server that has just been started what it is there for, as soon as that is known."""
        spec, rank = self.spec, child.rank
        if rank and spec.addresses and has_any_port(spec.addresses[0]) and 0 not in self._books.addresses:
            self._deferred.append(child)
            return
        child.wire.send("setup", **spec.setup(rank, self.token, self.folder, child.log, self._books.addresses))

    # Its end --------------------------------------------------------------------------------------------------------------------

    def revive(self) -> None:
        """Starts servers and workers that are not there again; whatever has become of them is forgotten."""
        with self._changed:
            if self._stopped or os.getpid() != self._owner:
                return
            self._books.errors.clear()
            self._crew.start_missing()
            for rank in self._crew.alive:
                self._crew.send(rank, "revive")
        self._waker.wake()

    def restart(self) -> None:
        """Ends all servers, and starts others in their places."""
        with self._changed:
            if not self._stopped and os.getpid() == self._owner:
                self._crew.restart()
        self._waker.wake()

    @property
    def has_ended(self) -> bool:
        """Whether there is no server any more, because they were stopped or because they have died and nobody starts them again."""
        with self._changed:
            return self._stopped or (bool(self._books.errors) and not self._crew.alive)

    def join(self) -> None:
        """Waits until there is no server any more.

        Raises:
            GnnkitError: What the last of them has died of.
        """
        with self._changed:
            while not self.has_ended:
                self._changed.wait(_LOOK_S)
            if not self._stopped:
                self._books.check()

    def error_of(self, rank: int) -> GnnkitError | None:
        """What a server has died of, where nobody has started it again; None otherwise."""
        with self._changed:
            error = self._books.errors.get(rank)
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
            self._crew.stop()
        finally:
            self._copies.close()
            if hasattr(self, "folder"):
                remove_sockets(self.folder, self.spec.ranks)
            if self._run_folder.path.is_dir():  # it stays for its logs
                (self._run_folder.path / TOKEN_NAME).unlink(missing_ok=True)
            sweep(self._run_folder.path.parent)  # a server that was killed has left its own

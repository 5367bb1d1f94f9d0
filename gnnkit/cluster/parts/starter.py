"""This host's part services: what they serve, and how they are kept running."""

from __future__ import annotations

import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gnnkit.cluster.hosts import join_address, require_free
from gnnkit.cluster.membership import LeaseTable
from gnnkit.errors import GnnkitError, StartTimeout, WorkerDied, WorkerStopped, on_error
from gnnkit.plan import Held
from gnnkit.runtime.graph_memory import GraphHandle, GraphSharing
from gnnkit.runtime.remote import fresh
from gnnkit.runtime.runs import RunFolder
from gnnkit.runtime.supervisor import ChildProcess, Exit, Supervisor, SupervisorOptions, supervise
from gnnkit.runtime.wire import Message, Waker
from gnnkit.waiting import Deadline


@dataclass(frozen=True)
class ServiceSpec:
    """The store, the parts and the address of a part service.

    Attributes:
        store: The store's folder.
        fingerprint: The store's fingerprint.
        held: What this host has of it.
        host: This host's number.
        clients: Hosts that get parts from it.
        ip: The one address that it listens on.
        port: The port; 0 takes any that is free.
        token: The secret that clients must present.
        start_timeout_s: Seconds that starting may take; also those that a host which never came is waited for.
        linger_timeout_s: Seconds that other hosts are served at the end of the process.
        log_root: Folder of its log's folder.
        trainers: Trainers of each host.
    """

    store: str
    fingerprint: str
    held: Held
    host: int
    clients: tuple[int, ...]
    ip: str
    port: int
    token: str = field(repr=False)
    start_timeout_s: float
    linger_timeout_s: float
    log_root: Path
    trainers: int = 1

    @property
    def key(self) -> tuple[Any, ...]:
        """The values that loaders must have in common to share a service."""
        return self.store, self.fingerprint, *self.held.values(), self.clients, self.ip, self.port, self.token


logger = logging.getLogger(__name__)

_MODULE = "gnnkit.cluster.parts"
# A service that dies while it starts again is started after this time, then after twice as long, and so on.
_GAP_S, _MOST_GAP_S = 1.0, 30.0
_EXIT_WAIT_S = 2.0
# Longest time that saying goodbye to other hosts may take.
_STOP_TIMEOUT_S = 3.0
# Longest time between two looks at who is still there while the interpreter ends.
_LINGER_LOOK_S = 0.1
_HINT = "make the loader again"


class PartService:
    """One part service of this host, kept running while a loader or another host needs it.

    Args:
        spec: What it serves.
        graph: The graph; the service reads its copy in huge pages once there is one.
        user: Ends the one that needs it at first; see ``enter``.
        ended: Called when it has ended for good.

    Attributes:
        spec: What it serves, with the port that it has.
        restarts: How often it was started again.
        failure: Why it does not come back, or None.
        refused: Addresses of clients that came with another token.
        finished: Set once it has ended for good.

    Raises:
        StartTimeout: It was not ready in time, or ended.
        PlanError: The system's limits do not allow it, or the address is taken.
    """

    def __init__(self, spec: ServiceSpec, graph: GraphHandle, user: Callable[[], None], ended: Callable[[PartService], None]) -> None:
        self.spec, self.restarts = spec, 0
        self.failure: GnnkitError | None = None
        self.refused: tuple[str, ...] = ()
        self.finished = threading.Event()
        self._ended, self._sharing, self._owner = ended, GraphSharing(graph, 0), os.getpid()
        self._leases = LeaseTable[str, int]()  # processes of other hosts
        self._come: dict[int, set[str]] = {}  # the trainers of each host that have ever come, or whose processes have
        self._users = {user}
        self._sources: dict[int, str] = {}
        self._asked_sources: dict[int, str] = {}
        self._was_used, self._ending = False, False
        self._is_up, self._has_been_up = False, False
        self._gap_s, self._next_start = _GAP_S, Deadline(0.0)
        self._started = Deadline(spec.start_timeout_s)
        # Reentrant: a forgotten loader's finalizer may run in the middle of anything.
        self._changed = threading.Condition(threading.RLock())
        hint = "choose another port, or end the process that has it; loaders of two stores need a port each"
        require_free(spec.ip, spec.port, f"the parts of host {spec.host} cannot be served", hint)
        self._waker = Waker()
        folder = RunFolder(spec.log_root, {"store": spec.store, "serves": list(spec.held["parts"])})
        self._supervisor = Supervisor(self._process_options(), folder, self._set_up, self._sharing)
        with on_error(self._end):
            self._supervisor.start_missing()
            self._supervise(lambda: self._is_up or self.failure is not None)
            if not self._is_up:
                raise fresh(self.failure) if self.failure is not None else StartTimeout(f"{self._title} did not start")
        threading.Thread(target=self._run, name="gnnkit-part-service", daemon=True).start()

    @property
    def pid(self) -> int | None:
        """The service's process; None where there is none just now."""
        return next((child.pid for child in self._supervisor.alive.values()), None)

    @property
    def log(self) -> str:
        """The service's log."""
        return str(self._supervisor.folder.log(0))

    def check(self) -> None:
        """Raises what keeps the service from coming back; called when an epoch begins."""
        self._was_used = True
        if self.failure is not None:
            raise fresh(self.failure)

    def attend(self, sources: Mapping[int, str]) -> None:
        """Has the service tell those of other hosts that this host needs them.

        Args:
            sources: ``{host: address}``.
        """
        self._sources = dict(sources)
        self._waker.wake()

    def enter(self, user: Callable[[], None]) -> bool:
        """Keeps the service for the one that a function ends, until ``leave`` is given it; False where the service has begun to end."""
        with self._changed:
            if self._ending:
                return False
            self._users.add(user)
        self._waker.wake()
        return True

    def leave(self, user: Callable[[], None]) -> None:
        """The user is done; from anywhere. The service stays for as long as other hosts use it."""
        if os.getpid() == self._owner:
            self._users.discard(user)
            self._waker.wake()

    def awaited(self) -> set[int]:
        """Hosts that the service must stay for: those that use it, and once there was an epoch, for a while, those that have not come.

        A host has come once each of its trainers has: one may be done with its epochs before another one has started its processes.
        """
        waiting = set(self._leases.there().values())
        if self._was_used and not self._started.has_passed:
            waiting |= {host for host in self.spec.clients if len(self._come.get(host, ())) < self.spec.trainers}
        return waiting

    # The process ---------------------------------------------------------------------------------------------------------

    @property
    def _title(self) -> str:
        where = join_address(self.spec.ip, self.spec.port)
        return f"the part service of host {self.spec.host} for parts {list(self.spec.held['parts'])} at {where}"

    def _process_options(self) -> SupervisorOptions:
        return SupervisorOptions(1, 1, _MODULE, title=self._title, advice=_HINT, stop_timeout_s=_STOP_TIMEOUT_S)

    def _set_up(self, child: ChildProcess) -> None:
        spec = self.spec
        self._is_up, self._asked_sources = False, {}
        setup = {"store": spec.store, "fingerprint": spec.fingerprint, "held": spec.held, "ip": spec.ip, "port": spec.port}
        fds, description = self._sharing.setup_message(child.rank)
        child.wire.send("setup", fds, **setup, token=spec.token, host=spec.host, graph=description)

    def _supervise(self, has_ended: Callable[[], bool]) -> None:
        what = f"the part service of host {self.spec.host}"
        supervise(self._supervisor, self._waker, self._changed, what, has_ended=has_ended, look=self._look, give_up=self._give_up)

    def _run(self) -> None:
        """The thread: until no loader and no other host needs the service."""
        try:
            self._supervise(self._has_finished)
        finally:
            self._end()

    def _look(self) -> None:
        """Takes what the service has said, starts it again where it has died, and tells it what is new."""
        for _, said in self._supervisor.listen():
            if isinstance(said, Exit):
                self._exited(said)
            else:
                self._handle(said)
        if (overdue := self._supervisor.overdue(self.spec.start_timeout_s)) is not None:
            self._exited(Exit(overdue[1], str(overdue[1])))
        if self._is_up:
            self._tell()
        elif not self._supervisor.alive and not self._ending and self._next_start.has_passed:
            self._supervisor.start_missing()

    def _give_up(self, text: str) -> None:
        self.failure, self._ending = WorkerDied(text, _HINT), True

    def _handle(self, message: Message) -> None:
        body = message.body
        if message.kind == "ready":
            self._is_up = self._has_been_up = True
            self.failure, self._gap_s = None, _GAP_S
            self.spec = replace(self.spec, port=int(body["port"]))
            self._supervisor.options = self._process_options()
        elif message.kind == "here":
            self._come.setdefault(int(body["host"]), set()).add(body["name"].rpartition("-")[0])
            self._leases.here(body["name"], int(body["host"]))
        elif message.kind == "bye":
            self._leases.bye(body["name"])
        elif message.kind == "refused":
            self.refused = tuple(dict.fromkeys((*self.refused, str(body["address"]))))
        message.close()

    def _exited(self, ended: Exit) -> None:
        """Has a service that has died started again, on the port that clients know."""
        if isinstance(ended.error, WorkerStopped):  # a person has had it ended
            self.failure, self._ending = ended.error, True
            return
        if not self._has_been_up:  # a first start that has failed is not repeated
            self.failure = ended.error
            return
        if not self._is_up:
            self.failure = self.failure or ended.error
            self._next_start = Deadline(self._gap_s)
            self._gap_s = min(2 * self._gap_s, _MOST_GAP_S)
        logger.warning("%s; it is started again", ended.summary)
        self.restarts += 1
        self._is_up = False

    def _has_finished(self) -> bool:
        """Whether the service is needed no more."""
        self._ending = self._ending or not (self._users or self.awaited())
        return self._ending

    def _tell(self) -> None:
        """Tells the service of the graph's copy, and which other services this host needs for as long as it has loaders."""
        sources = self._sources if self._users else {}
        self._sharing.spread(self._supervisor.ready, self._supervisor.send, ask=False)
        if sources != self._asked_sources:
            self._asked_sources = dict(sources)
            self._supervisor.send(0, "attend", peers={str(host): address for host, address in sources.items()})

    def _end(self) -> None:
        with self._changed:
            self._ending = True
            self._supervisor.stop()
        self._ended(self)
        self.finished.set()

    # The end of the interpreter ----------------------------------------------------------------------------------------------

    def linger(self) -> None:
        """Closes what still uses the service, and waits for other hosts that do.

        A process that ends because of an error does not wait: its starter is to learn of that soon.
        """
        if os.getpid() != self._owner:
            return
        for stop in list(self._users):
            stop()
        self._users.clear()
        self._waker.wake()
        deadline, said = Deadline(self.spec.linger_timeout_s), hasattr(sys, "last_type")
        try:
            while not self.finished.wait(_LINGER_LOOK_S) and not deadline.has_passed and not hasattr(sys, "last_type"):
                if (awaited := sorted(self.awaited())) and not said:
                    said = True
                    text = "this process has finished, and serves parts %s until hosts %s have finished too, for at most %g s"
                    logger.warning(text, list(self.spec.held["parts"]), awaited, self.spec.linger_timeout_s)
        except KeyboardInterrupt:
            logger.warning("not waiting for other hosts any longer")
        self._ending = True
        self._waker.wake()
        self.finished.wait(_EXIT_WAIT_S)


# Ending a process takes no longer: it is killed at last.
_END_S = 12.0
_services: dict[tuple[Any, ...], PartService] = {}
_ports: dict[tuple[Any, ...], int] = {}
_lock = threading.RLock()


def keep_service(spec: ServiceSpec, graph: GraphHandle, user: Callable[[], None]) -> PartService:
    """The part service of this process for a store, started unless it runs.

    Args:
        spec: What it serves, and where.
        graph: The graph.
        user: Ends the one that needs it; called before the process ends. Also names it, for ``PartService.leave``.

    Raises:
        StartTimeout: It was not ready in time, or ended.
        PlanError: The address is taken, or the system's limits do not allow it.
    """
    key = (os.getpid(), *spec.key)  # a forked child has none of its parent's
    while True:
        with _lock:
            service = _services.get(key)
            if service is None:
                # Other hosts know the address: a service that comes back is found where the last one was.
                known = _ports.get(key, spec.port)
                service = _services[key] = PartService(replace(spec, port=known), graph, user, lambda ended: _forget(key, ended))
                _ports[key] = service.spec.port
                weakref.finalize(service, _linger, weakref.ref(service))  # at the end of the interpreter
                return service
        if service.enter(user):
            return service
        service.finished.wait(_END_S)  # it has begun to end; the next one takes its address over


def _forget(key: tuple[Any, ...], service: PartService) -> None:
    with _lock:
        if _services.get(key) is service:
            del _services[key]


def _linger(reference: weakref.ref[PartService]) -> None:
    if (service := reference()) is not None:
        service.linger()

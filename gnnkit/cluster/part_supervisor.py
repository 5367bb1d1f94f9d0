"""This host's part services: what they serve, and the supervisor that starts, restarts and ends them."""

from __future__ import annotations

import logging
import os
import select
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gnnkit.cluster.hosts import join_address
from gnnkit.cluster.leases import LeaseTable
from gnnkit.errors import GnnkitError, PlanError, StartTimeout, WorkerDied, WorkerStopped
from gnnkit.runtime.graph_memory import GraphHandle, SharedGraph
from gnnkit.runtime.remote import error_from_json, fresh
from gnnkit.runtime.runs import RunFolder, with_tail
from gnnkit.runtime.supervisor import ChildProcess, describe_end, end_all
from gnnkit.runtime.vitals import Vitals
from gnnkit.runtime.wire import Message, Waker


@dataclass(frozen=True)
class ServiceSpec:
    """What a part service serves, and where.

    Attributes:
        store: The store's folder.
        fingerprint: The store's fingerprint.
        parts: The parts of this host.
        host: This host's number.
        clients: Hosts that get parts from it.
        ip: The one address that it listens on.
        port: The port; 0 takes any that is free.
        token: What clients have to know.
        start_timeout_s: Seconds that starting may take; also those that a host which never came is waited for.
        linger_timeout_s: Seconds that other hosts are served at the end of the process.
        log_root: Folder of its log's folder.
    """

    store: str
    fingerprint: str
    parts: tuple[int, ...]
    host: int
    clients: tuple[int, ...]
    ip: str
    port: int
    token: str
    start_timeout_s: float
    linger_timeout_s: float
    log_root: Path

    @property
    def key(self) -> tuple[Any, ...]:
        """What loaders must have in common to share a service."""
        return self.store, self.fingerprint, self.parts, self.clients, self.ip, self.port, self.token

    def __repr__(self) -> str:
        return f"ServiceSpec(parts {list(self.parts)} of {self.store} at {self.ip})"  # without the token


def check_free(spec: ServiceSpec) -> None:
    """Refuses an address that somebody listens on; see ``require_free``.

    Raises:
        PlanError: Somebody does, or the address is none of this host's.
    """
    hint = "choose another port, or end whoever has it; loaders of two stores need a port each"
    require_free(spec.ip, spec.port, f"the parts of host {spec.host} cannot be served", hint)


def require_free(ip: str, port: int, what: str, hint: str) -> None:
    """Refuses an address that somebody listens on: a service itself would share it with another of the same user.

    Args:
        ip: The address.
        port: The port; 0 is always free.
        what: What cannot be done, for the message.
        hint: What to do about it.

    Raises:
        PlanError: Somebody does, or the address is none of this host's.
    """
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ip, port))
        except OSError as error:
            raise PlanError(f"{what} at {join_address(ip, port)}: {error.strerror or error}", hint) from error


logger = logging.getLogger(__name__)

_MODULE = "gnnkit.cluster.parts"
# Longest time between two looks at the graph's copy and at who is still there.
_LOOK_S = 0.5
# A service that dies while it starts is started again after this time, then after twice as long, and so on.
_GAP_S, _MOST_GAP_S = 1.0, 30.0
_EXIT_WAIT_S = 2.0
# Longest time that saying goodbye to other hosts may take.
_STOP_TIMEOUT_S = 3.0


class PartServiceSupervisor:
    """One part service.

    Args:
        spec: What it serves.
        graph: The graph; the service reads its copy in huge pages once there is one.
        users: Who needs it at first; see ``enter``.
        ended: Called when it has ended for good.

    Attributes:
        spec: What it serves, with the port that it has.
        restarts: How often it was started again.
        failure: Why it does not come back, or None.
        finished: Set once it has ended for good.

    Raises:
        StartTimeout: It was not ready in time, or ended.
        PlanError: The system's limits do not allow it, or the address is taken.
    """

    def __init__(
        self, spec: ServiceSpec, graph: GraphHandle, users: dict[int, Callable[[], None]], ended: Callable[[PartServiceSupervisor], None]
    ) -> None:
        self.spec, self.restarts = spec, 0
        self.failure: GnnkitError | None = None
        self.finished = threading.Event()
        self._ended, self._graph, self._leases, self._owner = ended, graph, LeaseTable(), os.getpid()
        self._users = users
        self._sources: dict[int, str] = {}
        self._told: SharedGraph | None = None
        self._asked_sources: dict[int, str] = {}
        self._told_sources: set[int] = set()
        self._ready, self._was_used, self._ending = False, False, False
        self._gap_s = _GAP_S
        self._child: ChildProcess | None = None
        self._started = time.monotonic()
        self._state = threading.RLock()  # reentrant: a forgotten loader's finalizer may run in the middle of anything
        check_free(spec)
        self._folder = RunFolder(spec.log_root, {"store": spec.store, "serves": list(spec.parts)})
        self._vitals = Vitals.create(1)
        self._waker = Waker()
        try:
            self._start()
            self._wait_until_ready()
        except BaseException:
            self._end()
            raise
        threading.Thread(target=self._run, name="gnnkit-part-supervisor", daemon=True).start()

    @property
    def pid(self) -> int | None:
        """The service's process; None once it has ended for good."""
        return None if self._child is None else self._child.pid

    @property
    def log(self) -> str:
        """The service's log."""
        return str(self._folder.log(0))

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

    def enter(self, user: int, stop: Callable[[], None]) -> bool:
        """Keeps the service for a user; False where it has begun to end."""
        with self._state:
            if self._ending:
                return False
            self._users[user] = stop
        self._waker.wake()
        return True

    def leave(self, user: int) -> None:
        """The user is done; from anywhere. The service stays for as long as other hosts use it."""
        if os.getpid() == self._owner:
            self._users.pop(user, None)
            self._waker.wake()

    def awaited(self) -> set[int]:
        """Hosts that the service must stay for: those that use it, and once there was an epoch, for a while, those that have not come."""
        waiting = self._leases.present()
        if self._was_used and time.monotonic() - self._started < self.spec.start_timeout_s:
            waiting |= set(self.spec.clients) - self._leases.come
        return waiting

    # The process ---------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._vitals.forget(0)
        spec, shared = self.spec, self._graph.shared
        self._ready, self._told, self._asked_sources, self._told_sources = False, shared, {}, set()
        self._child = child = ChildProcess(0, self._folder.log(0), self._vitals.block.fd, 1, module=_MODULE)
        self._folder.add(0, child.pid)
        setup = {"store": spec.store, "fingerprint": spec.fingerprint, "parts": list(spec.parts), "ip": spec.ip, "port": spec.port}
        fds, description = ((), None) if shared is None else ((shared.block.fd,), dict(shared.description))
        child.wire.send("setup", fds, **setup, token=spec.token, host=spec.host, graph=description)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self.spec.start_timeout_s
        while not self._ready:
            self._poll(min(_LOOK_S, max(0.0, deadline - time.monotonic())))
            ended = self._listen()
            if self.failure is not None:
                raise self.failure
            assert self._child is not None
            if ended:
                raise StartTimeout(with_tail(f"{self._whose()} {describe_end(self._child.wait(_EXIT_WAIT_S))}", self._child.log))
            if time.monotonic() >= deadline:
                text = f"{self._whose()} was not ready after {self.spec.start_timeout_s:g} s and is {self._child.state()}"
                raise StartTimeout(with_tail(text, self._child.log), "raise start_timeout_s, or look at the log")

    def _whose(self) -> str:
        where = join_address(self.spec.ip, self.spec.port)
        return f"the part service of host {self.spec.host} (pid {self.pid}, parts {list(self.spec.parts)}, {where})"

    def _poll(self, timeout_s: float) -> None:
        poller = select.poll()
        if self._child is not None and self._child.wire.fileno() >= 0:
            wire = self._child.wire
            poller.register(wire.fileno(), select.POLLIN | (0 if wire.flush() else select.POLLOUT))
        self._waker.wait(poller, timeout_s)

    def _listen(self) -> bool:
        """Handles what the service has said; whether it is gone."""
        assert self._child is not None
        while True:
            try:
                message = self._child.wire.receive()
            except EOFError:
                return True
            if message is None:
                return self._child.has_ended()
            self._handle(message)

    def _handle(self, message: Message) -> None:
        body = message.body
        if message.kind == "ready":
            self._ready, self.failure, self._gap_s = True, None, _GAP_S
            self.spec = replace(self.spec, port=int(body["port"]))
        elif message.kind == "failed":
            self.failure = error_from_json(body["error"], f"starting {self._whose()}", StartTimeout)
        elif message.kind == "attending":
            self._told_sources = {int(host) for host in body["peers"]}
        elif message.kind == "here":
            self._leases.here(body["name"], int(body["host"]))
        elif message.kind == "bye":
            self._leases.bye(body["name"])
        message.close()

    def _run(self) -> None:
        """The thread: until no loader and no other host needs the service."""
        try:
            while self._is_needed():
                self._poll(_LOOK_S)
                if self._listen():
                    if self._was_stopped():
                        break
                    self._bring_back()
                elif self._ready:
                    self._tell()
        except Exception as error:
            logger.exception("the part service cannot be kept running")
            self.failure = WorkerDied(f"the part service of host {self.spec.host} cannot be kept running: {error}", "make the loader again")
        finally:
            self._bid_farewell()
            self._end()

    def _was_stopped(self) -> bool:
        """Whether a person has had the service ended, so that it is not brought back."""
        assert self._child is not None
        if not self._folder.was_stopped(self._child.pid):
            return False
        self._told_sources.clear()  # it can tell nobody any more
        self.failure = WorkerStopped(f"{self._whose()} is gone: gnnkit stop has ended it", "make the loader again")
        return True

    def _bid_farewell(self) -> None:
        """Lets the service tell those of other hosts that this one is done, so that they need not find out by its silence."""
        if not self._told_sources or self._child is None:
            return
        self._sources = {}
        self._tell()
        deadline, ended = time.monotonic() + _STOP_TIMEOUT_S, False
        while self._told_sources and not ended and time.monotonic() < deadline:
            self._poll(max(0.0, deadline - time.monotonic()))
            ended = self._listen()

    def _is_needed(self) -> bool:
        """Whether a loader or another host needs the service; once not, it is not taken up again."""
        with self._state:
            self._ending = self._ending or not (self._users or self.awaited())
            return not self._ending

    def _tell(self) -> None:
        """Tells the service of the graph's copy, and which other services this host needs for as long as it has loaders."""
        assert self._child is not None
        shared, sources = self._graph.shared, self._sources if self._users else {}
        if shared is not None and shared is not self._told:
            self._told = shared
            self._child.wire.send("graph", (shared.block.fd,), description=dict(shared.description))
        if sources != self._asked_sources:
            self._asked_sources = dict(sources)
            self._child.wire.send("attend", peers={str(host): address for host, address in sources.items()})

    def _bring_back(self) -> None:
        """Starts a service that has died again, on the port that everybody knows."""
        assert self._child is not None
        what = f"{self._whose()} {describe_end(self._child.wait(_EXIT_WAIT_S))}"
        self._child.wire.close()
        if not self._ready:
            self.failure = self.failure or WorkerDied(with_tail(f"{what} while it was starting again", self._child.log))
            self._folder.keep()
            self._poll(self._gap_s)
            self._gap_s = min(2 * self._gap_s, _MOST_GAP_S)
        logger.warning("%s; it is started again", what)
        self.restarts += 1
        self._start()

    def _end(self) -> None:
        with self._state:
            self._ending = True
        if self._child is not None:
            end_all([self._child])
            self._child.wire.close()
            self._child = None
        self._folder.close()
        self._ended(self)
        self.finished.set()

    # The end of the interpreter ----------------------------------------------------------------------------------------------

    def linger(self) -> None:
        """Closes what still uses the service, and waits for other hosts that do.

        A process that ends because of an error waits for nobody: whoever started it is to learn of that soon.
        """
        if os.getpid() != self._owner:
            return
        for stop in list(self._users.values()):
            stop()
        self._users.clear()
        self._waker.wake()
        deadline, said = time.monotonic() + self.spec.linger_timeout_s, hasattr(sys, "last_type")
        try:
            while not self.finished.wait(_LOOK_S / 5) and time.monotonic() < deadline and not hasattr(sys, "last_type"):
                awaited = sorted(self.awaited())
                if awaited and not said:
                    said = True
                    text = "this process has finished, and serves parts %s until hosts %s have finished too, for at most %g s"
                    logger.warning(text, list(self.spec.parts), awaited, self.spec.linger_timeout_s)
        except KeyboardInterrupt:
            logger.warning("not waiting for other hosts any longer")
        self._ending = True
        self._waker.wake()
        self.finished.wait(_EXIT_WAIT_S)


# Ending a process takes no longer: it is killed at last.
_END_S = 12.0
_supervisors: dict[tuple[Any, ...], PartServiceSupervisor] = {}
_ports: dict[tuple[Any, ...], int] = {}
_lock = threading.RLock()


def keep_service(spec: ServiceSpec, graph: GraphHandle, user: int, stop: Callable[[], None]) -> PartServiceSupervisor:
    """The part service of this process for a store, started unless it runs.

    Args:
        spec: What it serves, and where.
        graph: The graph.
        user: Number of whoever needs it, for ``PartServiceSupervisor.leave``.
        stop: Ends that user; called before the process ends.

    Raises:
        StartTimeout: It was not ready in time, or ended.
        PlanError: The address is taken, or the system's limits do not allow it.
    """
    key = (os.getpid(), *spec.key)  # a forked child has none of its parent's
    while True:
        with _lock:
            supervisor = _supervisors.get(key)
            if supervisor is None:
                # Other hosts know the address: a service that comes back is found where the last one was.
                known = _ports.get(key, spec.port)
                supervisor = _supervisors[key] = PartServiceSupervisor(
                    replace(spec, port=known), graph, {user: stop}, lambda ended: _forget(key, ended)
                )
                _ports[key] = supervisor.spec.port
                weakref.finalize(supervisor, _linger, weakref.ref(supervisor))  # at the end of the interpreter
                return supervisor
        if supervisor.enter(user, stop):
            return supervisor
        supervisor.finished.wait(_END_S)  # it has begun to end; the next one takes its address over


def _forget(key: tuple[Any, ...], supervisor: PartServiceSupervisor) -> None:
    with _lock:
        if _supervisors.get(key) is supervisor:
            del _supervisors[key]


def _linger(reference: weakref.ref[PartServiceSupervisor]) -> None:
    supervisor = reference()
    if supervisor is not None:
        supervisor.linger()

"""The proxy: a child of the trainer that speaks to servers of other hosts on its behalf; the trainer itself opens no connection.

One process, ``python -m gnnkit.cluster.serving.server_proxy``, started like a sampling process. Messages to it over its wire:

========= ===================================================================================================================
``setup`` first: ``addresses`` (the first that answers is asked), ``token``, ``ca`` (PEM or None), ``client`` (the trainer's id),
          ``outlines`` (folder), ``stays`` (whether it says that the trainer is there), ``join_timeout_s``
``call``  ``number``, ``rank``, ``name``, ``args`` (``gnnkit.cluster.serving.codec``), ``timeout_s``
``stop``  ends it
========= ===================================================================================================================

It answers ``waiting`` (``text``, ``there``, ``total``) while servers are missing, ``joined`` (``membership``, ``outline``) once it has
joined, or ``refused`` (``error``), and each call with ``answer`` (``number``, ``value`` or ``error``).
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gnnkit.cluster.leases import CLIENT_PREFIX
from gnnkit.cluster.serving.codec import decode, encode
from gnnkit.cluster.serving.membership import ServerMember, hosts_of
from gnnkit.errors import BatchTimeout, GnnkitError, LoaderClosed, PlanError, StartTimeout, WorkerDied
from gnnkit.events import EventSink, Stage, ignore_events
from gnnkit.files import read_bounded
from gnnkit.plan import Placement
from gnnkit.runtime.entry import Loop, run
from gnnkit.runtime.remote import error_from_json
from gnnkit.runtime.runs import RunFolder, new_run, with_tail
from gnnkit.runtime.supervisor import Exit, Supervisor, SupervisorOptions, supervise
from gnnkit.runtime.vitals import ParentWatch
from gnnkit.runtime.wire import Message, Waker, Wire
from gnnkit.storage.catalog import default_root
from gnnkit.waiting import SLICE_S, Deadline, is_done

_MODULE = "gnnkit.cluster.serving.server_proxy"
# Beyond its own deadline, the proxy may take so long to say what came of something.
_GRACE_S = 15.0


@dataclass(frozen=True)
class JoinedServers:
    """Servers that a trainer has joined.

    Attributes:
        servers: All of them, in the order of their ranks.
        placement: Which host holds which parts; None where there is one.
        outline: The folder of the store's outline.
        fingerprint: The store's.
    """

    servers: tuple[ServerMember, ...]
    placement: Placement | None
    outline: Path
    fingerprint: str

    @classmethod
    def of(cls, membership: Mapping[str, Any], outline: str) -> JoinedServers:
        """Makes the record from the membership and the outline's folder that the proxy has sent."""
        servers = tuple(ServerMember.of_json(value) for value in membership["servers"])
        held = servers[0].placement
        placement = None if held is None else Placement(tuple(tuple(parts) for parts in held))
        return cls(servers, placement, Path(outline), str(membership["fingerprint"]))

    def host_of(self, rank: int) -> int:
        """The number of a server's host."""
        return hosts_of({server.rank: server for server in self.servers}).index(self.servers[rank].host)

    def parts_of(self, rank: int, num_parts: int) -> tuple[int, ...]:
        """The parts of a server's host."""
        return tuple(range(num_parts)) if self.placement is None else self.placement.hosts[self.host_of(rank)]


class JoinProgress(NamedTuple):
    """The state of a trainer's wait: in words, and the number of servers that are there, and in all; None where that is unknown."""

    text: str
    there: int | None
    total: int | None


class _Session:
    """The proxy's process, and what it has said; a thread looks after it, which must not keep the ``ServerProxy``."""

    def __init__(self, folder: RunFolder) -> None:
        options = SupervisorOptions(1, 1, _MODULE, title="the proxy", lane="proxy", advice="ask again")
        self.supervisor = Supervisor(options, folder, lambda child: None)
        self.changed = threading.Condition()
        self.waiting: JoinProgress | None = None
        self.joined: JoinedServers | None = None
        self.failure: GnnkitError | None = None
        self.answers: dict[int, Future[Any]] = {}
        self._owner, self._is_over = os.getpid(), False
        self._waker = Waker()
        self.supervisor.start_missing()
        self.name = self.supervisor.name(0)

    def run(self) -> None:
        """The thread: until the proxy is gone."""
        supervise(
            self.supervisor,
            self._waker,
            self.changed,
            self.name,
            has_ended=lambda: self._is_over,
            look=self._look,
            give_up=lambda text: self._fail(WorkerDied(text, "join the servers again")),
        )

    def send(self, kind: str, fds: tuple[int, ...] = (), /, **body: object) -> None:
        """Sends the proxy a message."""
        self.supervisor.send(0, kind, fds, **body)
        self._waker.wake()

    def news(self, told: JoinProgress | None, timeout_s: float) -> tuple[JoinedServers | None, GnnkitError | None, JoinProgress | None]:
        """Waits until there is something else than ``told``; the servers, why there are none, what is waited for."""
        with self.changed:
            self.changed.wait_for(lambda: self.joined or self.failure or self.waiting != told, timeout_s)
            return self.joined, self.failure, self.waiting

    def end(self) -> None:
        """Ends the process; in a forked child, which has none, nothing is done."""
        if os.getpid() == self._owner:
            with self.changed:
                self._fail(LoaderClosed("the connection to the servers is closed", "join them again"))
                self.supervisor.stop()
            self._waker.wake()

    def _look(self) -> None:
        for _, said in self.supervisor.listen():
            if isinstance(said, Exit):
                self._fail(WorkerDied(said.error.message, said.error.hint))
            else:
                self._take(said)

    def _fail(self, error: GnnkitError) -> None:
        self._is_over, self.failure = True, self.failure or error
        left, self.answers = self.answers, {}
        for answer in left.values():
            answer.set_exception(error)

    def _take(self, message: Message) -> None:
        body = message.body
        if message.kind == "waiting":
            self.waiting = JoinProgress(body["text"], body["there"], body["total"])
        elif message.kind == "joined":
            self.joined = JoinedServers.of(body["membership"], body["outline"])
        elif message.kind == "refused":
            self.failure = error_from_json(body["error"], "joining the servers", StartTimeout)
        elif (answer := self.answers.pop(body["number"], None)) is None:  # nobody waits for it any more
            message.close()
        elif "error" in body:
            answer.set_exception(error_from_json(body["error"], "the call"))
        else:
            answer.set_result(decode(body["value"], message.fds))


class ServerProxy:
    """One proxy; ended by ``close``, or when it is forgotten.

    Args:
        servers: The servers.
        stays: Whether they count this trainer as long as the proxy is there; else it only learns who they are.

    Raises:
        PlanError: There is no folder for its log.
    """

    def __init__(self, servers: Servers, *, stays: bool = True) -> None:
        self._addresses = list(servers.addresses)
        setup = {"addresses": self._addresses, "token": servers.token, "ca": servers.ca, "client": servers.client, "stays": stays}
        self._setup = {**setup, "outlines": str(outlines_folder())}
        self._session = _Session(new_run(servers.log_dir, {"servers": self._addresses}, "proxy"))
        self._numbers = iter(range(1, 1 << 62))
        self._begun = False
        self._end = weakref.finalize(self, self._session.end)
        threading.Thread(target=self._session.run, name="gnnkit-proxy", daemon=True).start()

    def join(self, join_timeout_s: float, events: EventSink = ignore_events) -> JoinedServers:
        """Waits until every server is there; says which are missing.

        Raises:
            StartTimeout: They were not there in time; names them.
            PlanError: They expect another token, or are another gnnkit's.
            StoreError: What has to be known of their store cannot be kept here.
            WorkerDied: The proxy was killed.
        """
        if not self._begun:
            self._begun = True
            self._session.send("setup", **self._setup, join_timeout_s=join_timeout_s)
            self._setup = {}
        session, deadline = self._session, Deadline(join_timeout_s + _GRACE_S)
        told: JoinProgress | None = None
        with Stage(events, "start", label=f"servers at {self._addresses[0]}", unit="servers") as stage:
            while True:
                joined, failure, waiting = session.news(told, deadline.within(SLICE_S))
                if joined is not None:
                    stage.update(len(joined.servers), len(joined.servers))
                    return joined
                if failure is not None:
                    raise failure
                if deadline.has_passed:
                    state = next((child.state() for child in session.supervisor.alive.values()), "gone")
                    raise StartTimeout(with_tail(f"{session.name} is {state}", session.supervisor.folder.log(0)))
                if waiting is not None and waiting != told:
                    told = waiting
                    stage.message(f"waiting: {waiting.text}")
                    if waiting.there is not None:
                        stage.update(waiting.there, waiting.total)

    def call(self, rank: int, name: str, args: Any, timeout_s: float) -> Any:
        """Has a server answer a call; from any thread, several at a time.

        Args:
            rank: The server's.
            name: What is called; see ``gnnkit.cluster.serving.server_api``.
            args: A value of ``codec``.
            timeout_s: Most seconds that it may take.

        Raises:
            BatchTimeout: It was not answered in time.
            WorkerDied: The proxy was killed.
            GnnkitError: What the call ended with.
        """
        session, number, answer = self._session, next(self._numbers), Future[Any]()
        tree, fds = encode(args)
        try:
            with session.changed:
                if session.failure is not None:
                    raise session.failure
                session.answers[number] = answer
            session.send("call", tuple(fds), number=number, rank=rank, name=name, args=tree, timeout_s=timeout_s)
        finally:
            for fd in fds:
                os.close(fd)
        if not is_done(answer, timeout_s + _GRACE_S):
            session.answers.pop(number, None)
            raise BatchTimeout(f"server {rank} did not answer {name!r} within {timeout_s:g} s")
        return answer.result()

    def status(self, rank: int, timeout_s: float = 10.0) -> dict[str, Any]:
        """Returns a server's status, as JSON values.

        Raises:
            GnnkitError: See ``call``.
        """
        return dict(self.call(rank, "status", {}, timeout_s))

    def close(self) -> None:
        """Ends the proxy; closing twice is fine."""
        self._end()

    def __enter__(self) -> ServerProxy:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


# A bundle of every issuer that a system knows is a quarter of this.
_MOST_PEM_BYTES = 1 << 20


@dataclass(frozen=True)
class Servers:
    """Servers of other hosts, and what it takes to join them.

    Attributes:
        addresses: Where they listen; the first is where they meet.
        token: What they expect.
        ca: See ``connect``.
        client: This trainer's id.
        join_timeout_s: Seconds to wait for all of them.
        log_dir: Folder for logs; None: see ``runs_root``.
    """

    addresses: tuple[str, ...]
    token: str
    ca: str | None
    client: str
    join_timeout_s: float
    log_dir: str | None = None

    def __repr__(self) -> str:
        return f"Servers({', '.join(self.addresses)})"  # without the token

    def proxy(self, *, stays: bool = True) -> ServerProxy:
        """A proxy to them.

        Args:
            stays: See ``ServerProxy``.

        Raises:
            PlanError: See ``ServerProxy``.
        """
        return ServerProxy(self, stays=stays)


# What a loader that is being made has just learned, and when, for the stream that it is about to open. Servers may be elsewhere soon.
_known: dict[Servers, tuple[JoinedServers, float]] = {}
_FRESH_S = 5.0
_lock = threading.Lock()


def look(servers: Servers, events: EventSink) -> JoinedServers:
    """Joins servers to learn of their store; the next ``join`` of the same ones need not ask again.

    Raises:
        GnnkitError: See ``ServerProxy.join``.
    """
    joined = _join(servers, events)
    with _lock:
        _known[servers] = joined, time.monotonic()
    return joined


def join(servers: Servers, events: EventSink) -> JoinedServers:
    """Waits until every server is there; what it learns is as of now, or of the ``look`` just before it.

    Raises:
        GnnkitError: See ``ServerProxy.join``.
    """
    with _lock:
        joined, learned = _known.pop(servers, (None, 0.0))
    return _join(servers, events) if joined is None or time.monotonic() - learned > _FRESH_S else joined


def _join(servers: Servers, events: EventSink) -> JoinedServers:
    # Not counted as a client: servers that end with the last one must not see it leave before its receiving process is there.
    with servers.proxy(stays=False) as proxy:
        return proxy.join(servers.join_timeout_s, events)


def receiver_setup(joined: JoinedServers, servers: Servers, num_parts: int, again: bool) -> dict[str, Any]:
    """Returns the facts that a receiving process needs about the servers; see ``gnnkit.cluster.receiver``.

    Args:
        joined: The servers.
        servers: What it takes to join them.
        num_parts: Parts of the store.
        again: Whether a server that is gone is waited for.
    """
    return {
        "servers": {str(s.rank): {"address": s.address, "parts": list(joined.parts_of(s.rank, num_parts))} for s in joined.servers},
        "token": servers.token,
        "ca": servers.ca,
        "client": f"{CLIENT_PREFIX}{servers.client}",
        "again": again,
    }


def outlines_folder() -> Path:
    """Returns the folder of outlines of stores on other hosts, which lie there by fingerprint."""
    return default_root() / "outlines"


def read_ca(path: str | None) -> str | None:
    """The certificates in a PEM file; None for None.

    Raises:
        PlanError: It cannot be read, or holds none.
    """
    if path is None:
        return None
    text = read_pem(path, "tls_ca")
    if "BEGIN CERTIFICATE" not in text:
        raise PlanError(f"tls_ca={path!r} holds no certificate", "give the PEM file of the servers' certificate, or of its issuer")
    return text


def read_pem(path: str, word: str) -> str:
    """A PEM file.

    Args:
        path: The file.
        word: The option that names it.

    Raises:
        PlanError: It cannot be read.
    """
    try:
        return read_bounded(Path(path).expanduser(), _MOST_PEM_BYTES).decode("ascii")
    except (OSError, ValueError) as error:
        raise PlanError(f"{word}={str(path)!r} cannot be read: {error}", "give a PEM file") from error


def _load() -> Callable[[Wire, ParentWatch], Loop]:
    from gnnkit.cluster.serving.server_proxy_loop import ServerProxyLoop  # pyarrow.flight, which the trainer does without

    return ServerProxyLoop


if __name__ == "__main__":
    run(_load)

"""The trainer's end of a network child: joining servers of other hosts, and calling them; the trainer opens no connection itself."""

from __future__ import annotations

import select
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gnnkit.cluster.membership import JoinedServers
from gnnkit.cluster.network.calls import Calls
from gnnkit.errors import LoaderClosed, PlanError, StartTimeout, WorkerDied
from gnnkit.events import EventSink, Stage, ignore_events
from gnnkit.files import read_bounded, user_path
from gnnkit.runtime.remote import error_from_json
from gnnkit.runtime.runs import new_run, with_tail
from gnnkit.runtime.supervisor import Supervisor, SupervisorOptions
from gnnkit.runtime.wire import Handed, Message
from gnnkit.storage.catalog import writable_root
from gnnkit.waiting import SLICE_S, Deadline

# Beyond its own deadline, the child may take so long to say what came of something.
_GRACE_S = 15.0


class NetworkChild(Calls):
    """A network child that joins servers and calls them; ended by ``close``, or when it is forgotten.

    Args:
        servers: The servers.
        stays: Whether they count this trainer as long as the child is there; else it only learns who they are.

    Raises:
        PlanError: There is no folder for its log.
    """

    def __init__(self, servers: Servers, *, stays: bool = True) -> None:
        super().__init__()
        self._addresses, self._setup = servers.addresses, {**servers.message(None), "stays": stays}
        options = SupervisorOptions(1, 1, __package__, title="the proxy", lane="proxy", advice="ask again")
        self._supervisor = Supervisor(options, new_run(servers.log_dir, {"servers": list(servers.addresses)}, "proxy"), lambda child: None)
        self._stop = weakref.finalize(self, self._supervisor.stop)
        self._supervisor.start_missing()
        self._name = self._supervisor.name(0)

    def join(self, join_timeout_s: float, events: EventSink = ignore_events) -> JoinedServers:
        """Waits until every server is there; says which are missing.

        Raises:
            StartTimeout: They were not there in time; names them.
            PlanError: They expect another token, or are another gnnkit's.
            StoreError: What has to be known of their store cannot be kept here.
            WorkerDied: The child was killed.
        """
        self._send("servers", **self._setup, join_timeout_s=join_timeout_s)
        deadline = Deadline(join_timeout_s + _GRACE_S)
        with Stage(events, "start", label=f"servers at {self._addresses[0]}", unit="servers") as stage:
            while True:
                for message in self._next():
                    body = message.body
                    if message.kind == "joined":
                        joined = JoinedServers.of(body["membership"], body["outline"])
                        stage.update(len(joined.servers), len(joined.servers))
                        return joined
                    if message.kind == "refused":
                        self._end(error_from_json(body["error"], "joining the servers", StartTimeout))
                    else:
                        stage.message(f"waiting: {body['text']}")
                        if body["there"] is not None:
                            stage.update(body["there"], body["total"])
                if self._ended is not None:
                    raise self._ended
                if deadline.has_passed:
                    state = next((child.state() for child in self._supervisor.alive.values()), "gone")
                    raise StartTimeout(with_tail(f"{self._name} is {state}", self._supervisor.folder.log(0)))

    def call(self, rank: int, name: str, args: Any, timeout_s: float) -> Any:
        """Has a server answer a call; from any thread, several at a time.

        Args:
            rank: The server's.
            name: What is called; see ``gnnkit.cluster.serving.server_api``.
            args: A value of ``codec``.
            timeout_s: Most seconds that it may take.

        Raises:
            BatchTimeout: It was not answered in time.
            WorkerDied: The child was killed.
            GnnkitError: What the call ended with.
        """

        def late() -> str:
            return f"server {rank} did not answer {name!r} within {timeout_s:g} s"

        return self._ask(rank, name, args, Deadline(timeout_s + _GRACE_S), late, rank=rank, timeout_s=timeout_s)

    def _send(self, kind: str, fds: Handed = (), /, **body: Any) -> None:
        self._supervisor.send(0, kind, fds, **body)

    def _next(self) -> list[Message]:
        """Waits a moment for messages, while no call is under way."""
        with self._lock:
            poller = self._poller()
        poller.poll(SLICE_S * 1000)
        with self._lock:
            return list(self._arrived())

    def _poller(self) -> select.poll:
        return self._supervisor.poller()

    def _arrived(self) -> Iterator[Message]:
        for _, said in self._supervisor.listen():
            if isinstance(said, Message):
                yield said
            else:
                self._end(WorkerDied(said.error.message, said.error.hint))

    def close(self) -> None:
        """Ends the child; closing twice is fine."""
        self._end(LoaderClosed("the connection to the servers is closed", "join them again"))
        with self._lock:
            self._stop()

    def __enter__(self) -> NetworkChild:
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
    token: str = field(repr=False)
    ca: str | None = field(repr=False)
    client: str
    join_timeout_s: float
    log_dir: str | None = None

    def message(self, joined: JoinedServers | None) -> dict[str, Any]:
        """The first message to a network child; see ``gnnkit.cluster.network_child``.

        Args:
            joined: What is known of them; None has it join them.
        """
        # Outlines of stores on other hosts lie there by fingerprint.
        membership, outline = (None, str(writable_root() / "outlines")) if joined is None else (joined.membership, str(joined.outline))
        told = {"addresses": list(self.addresses), "token": self.token, "ca": self.ca, "client": self.client}
        return {**told, "membership": membership, "outlines": outline}


# What a loader that is being made has just learned, and when, for the stream that it is about to open. Servers may be elsewhere soon.
_known: dict[Servers, tuple[JoinedServers, float]] = {}
_FRESH_S = 5.0
_lock = threading.Lock()


def look(servers: Servers, events: EventSink) -> JoinedServers:
    """Joins servers to learn of their store; the next ``join`` of the same ones need not ask again.

    Raises:
        GnnkitError: See ``NetworkChild.join``.
    """
    joined = _join(servers, events)
    with _lock:
        _known[servers] = joined, time.monotonic()
    return joined


def join(servers: Servers, events: EventSink) -> JoinedServers:
    """Waits until every server is there; what it learns is as of now, or of the ``look`` just before it.

    Raises:
        GnnkitError: See ``NetworkChild.join``.
    """
    with _lock:
        joined, learned = _known.pop(servers, (None, 0.0))
    return _join(servers, events) if joined is None or time.monotonic() - learned > _FRESH_S else joined


def _join(servers: Servers, events: EventSink) -> JoinedServers:
    # Not counted as a client: servers that end with the last one must not see it leave before its receiving process is there.
    with NetworkChild(servers, stays=False) as child:
        return child.join(servers.join_timeout_s, events)


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
        return read_bounded(user_path(path), _MOST_PEM_BYTES).decode("ascii")
    except (OSError, ValueError) as error:
        raise PlanError(f"{word}={str(path)!r} cannot be read: {error}", "give a PEM file") from error

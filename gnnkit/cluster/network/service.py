"""A service over TCP: reads the requests of those that the gate has let in, and has them answered."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import Future, wait
from typing import Any, NamedTuple

from gnnkit.bounds import is_real, shown
from gnnkit.cluster.hosts import join_address
from gnnkit.cluster.network.gate import PortGate, most_connections
from gnnkit.cluster.network.wire import Gone, Head, Kind, NetworkWire, error_body
from gnnkit.errors import BatchTimeout, PlanError, SamplingError
from gnnkit.files import os_errors
from gnnkit.runtime.beats import BEAT_S
from gnnkit.sampling.owners import BadRequest
from gnnkit.waiting import Deadline

logger = logging.getLogger(__name__)

# The most seconds that an answer may take.
_MOST_S = 3600.0
# Yielded where there is no value yet, so that it can be seen whether the client still waits: None is a value.
PENDING = object()


class Stream(NamedTuple):
    """An answer that is worked out while it is sent.

    Attributes:
        values: Its values, and ``PENDING`` between them.
        kind: What they are sent as: ``VALUE`` or ``BLOCK``.
    """

    values: Generator[Any, None, None]
    kind: Kind = Kind.VALUE


def waited(done: Future[Any], timeout_s: float, late: BatchTimeout) -> Generator[Any, None, None]:
    """Waits for a value, and says meanwhile that it is not there yet; a client that has gone ends this."""
    deadline = Deadline(timeout_s)
    while not wait([done], deadline.within(BEAT_S)).done:
        if deadline.has_passed:
            raise late
        yield PENDING


def limit_of(timeout_s: Any) -> float:
    """The seconds that an answer may take, as a client has said them.

    Raises:
        BadRequest: It is no number.
    """
    if not is_real(timeout_s):
        raise BadRequest(f"timeout_s is {shown(timeout_s)}")
    return max(0.0, min(_MOST_S, timeout_s))


def settle(done: Future[Any], value: Any) -> None:
    """Ends a wait with a value or an error."""
    if isinstance(value, Exception):
        done.set_exception(value)
    else:
        done.set_result(value)


# What one client, which is a process, may have under way: requests, and their bytes together.
_MOST_CALLS, _MOST_BYTES = 1024, 256 << 20
# The longest that a request which is too many waits for one that is ending.
_ENDING_S = 0.5
# The most connections, of all clients together.
_MOST_CONNECTIONS = 8192
# Bytes of answers that wait to be read, and how long they wait in any case.
_MOST_UNSENT, _UNREAD_S = 256 << 20, 5.0


class Underway:
    """Requests that every client has under way, counted. From any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._clients: dict[str, tuple[int, int]] = {}

    def begin(self, client: str, nbytes: int) -> None:
        """Counts a request. One that is too many waits for a moment: a client has an answer before the request behind it is over here.

        Raises:
            SamplingError: It is more than a client may have.
        """

        def has_room() -> bool:
            calls, total = self._clients.get(client, (0, 0))
            return calls < _MOST_CALLS and total + nbytes <= _MOST_BYTES

        with self._changed:
            is_allowed = self._changed.wait_for(has_room, _ENDING_S)
            calls, total = self._clients.get(client, (0, 0))
            if is_allowed:
                self._clients[client] = calls + 1, total + nbytes
                return
        raise SamplingError(
            f"the client {client} has {calls} requests of {total / 1e6:.0f} MB under way, and asks for another of {nbytes / 1e6:.0f} MB; "
            f"{_MOST_CALLS} of {_MOST_BYTES / 1e6:.0f} MB together are allowed",
            "ask for less at a time: lower batch_size, num_neighbors, num_workers or worker_concurrency",
        )

    def end(self, client: str, nbytes: int) -> None:
        """A request that was counted is over."""
        with self._changed:
            calls, total = self._clients.pop(client)
            if calls > 1:
                self._clients[client] = calls - 1, total - nbytes
            self._changed.notify_all()


class NetworkService:
    """Listens, and answers: every connection in a thread of its own, one request after the other.

    Args:
        ip: The address to listen on, and no other.
        port: The port; 0 for any free one.
        token: What peers have to know.
        answer: Answers a request, given its name and arguments, with a value of the codec or a ``Stream``. Errors go to the client.
        tls: PEM of its certificate, with those that it was issued by, and of the key; None: what travels is not encrypted.
        refused: See ``PortGate``.

    Attributes:
        port: The port that it listens on.

    Raises:
        PlanError: The address cannot be listened on.
    """

    def __init__(
        self,
        ip: str,
        port: int,
        token: str,
        answer: Callable[[str, dict[str, Any]], Any],
        tls: tuple[str, str] | None = None,
        refused: Callable[[str], None] = lambda address: None,
    ) -> None:
        self._answer, self._underway = answer, Underway()
        self._lock = threading.Lock()
        self._most = most_connections(_MOST_CONNECTIONS)
        self._wires: dict[NetworkWire, str] = {}  # with their clients' addresses; the one that has been silent longest first
        self._working: set[NetworkWire] = set()
        self._closed = threading.Event()
        hint = "the address is none of this host's, or another program uses the port"
        with os_errors(f"the part service cannot listen on {join_address(ip, port)}", None, hint):
            try:
                self._gate = PortGate(ip, port, token, self._enter, tls, refused)
            except ssl.SSLError as error:
                raise PlanError(f"the certificate and its key cannot be used: {error}", "give PEM files that belong together") from error
        self.port = self._gate.port
        threading.Thread(target=self._beat, name="gnnkit-beat", daemon=True).start()

    def _beat(self) -> None:
        """Tells every client that waits for an answer that this process is there."""
        while not self._closed.wait(BEAT_S):
            with self._lock:
                working = list(self._working)
            _drop_unread(working)
            for wire in working:
                wire.beat()

    def close(self) -> None:
        """Ends all connections, and answers no more."""
        self._closed.set()
        self._gate.close()
        with self._lock:
            wires = list(self._wires)
        for wire in wires:
            wire.close()

    def _enter(self, end: socket.socket, client: str) -> None:
        wire = NetworkWire(end)
        with self._lock:
            has_room = self._make_room(address := _address_of(end))
            self._wires[wire] = address
        try:
            if not has_room:
                raise RuntimeError(f"there are {len(self._wires)} connections, and each is at work")
            threading.Thread(target=self._serve, args=(wire, client), name="gnnkit-client", daemon=True).start()
        except RuntimeError as error:
            logger.warning("a connection of %s was closed: %s", client, error)
            self._leave(wire)

    def _make_room(self, address: str) -> bool:
        """Makes room for a connection from an address, which has half of all at most; whether there is some.

        The one that has been silent longest makes room, of that address or else of the one that has most.
        """
        counts = Counter(self._wires.values())
        if counts[address] < max(1, self._most // 2):
            if len(self._wires) < self._most:
                return True
            address = counts.most_common(1)[0][0]
        silent = next((wire for wire, own in self._wires.items() if own == address and wire not in self._working), None)
        if silent is None:
            return False
        del self._wires[silent]
        silent.hang_up()
        return True

    def _leave(self, wire: NetworkWire) -> None:
        wire.close()
        with self._lock:
            self._wires.pop(wire, None)

    def _serve(self, wire: NetworkWire, client: str) -> None:
        """Answers a connection's requests until it ends."""
        try:
            while not wire.is_gone:
                self._attend(wire, client, wire.next_head())
        except Gone:
            pass
        except Exception:
            logger.exception("a connection of %s is given up", client)
        finally:
            self._leave(wire)

    def _attend(self, wire: NetworkWire, client: str, head: Head) -> None:
        try:
            self._underway.begin(client, head.nbytes)
        except SamplingError as error:
            wire.discard(head)
            wire.answer(Kind.ERROR, error_body(error))
            return
        try:
            self._work(wire, head)
        finally:  # once the last byte of the answer has been sent
            self._underway.end(client, head.nbytes)

    def _work(self, wire: NetworkWire, head: Head) -> None:
        try:
            name, args = wire.request(head)
            with self._lock:
                self._working.add(wire)
            value = self._answer(name, args)
            if not isinstance(value, Stream):
                wire.answer(Kind.LAST, value)
                return
            with contextlib.closing(value.values) as parts:
                for part in parts:
                    if wire.is_gone:
                        raise Gone
                    if part is not PENDING:
                        wire.answer(value.kind, part)
            wire.answer(Kind.END)
        except Gone:
            raise
        except Exception as error:
            logger.info("a request failed", exc_info=True)
            wire.answer(Kind.ERROR, error_body(error))
        finally:
            with self._lock:
                self._working.discard(wire)
                if wire in self._wires:  # silent from now on, behind all others that are
                    self._wires[wire] = self._wires.pop(wire)


def _drop_unread(wires: list[NetworkWire]) -> None:
    """Ends connections of clients that do not read their answers, the oldest first, where these take too much memory."""
    unsent = sorted(((*found, wire) for wire in wires if (found := wire.unsent) is not None), key=lambda answer: answer[1])
    total = sum(nbytes for nbytes, _, _ in unsent)
    for nbytes, since, wire in unsent:
        if total <= _MOST_UNSENT or time.monotonic() - since < _UNREAD_S:
            return
        wire.hang_up()
        total -= nbytes


def _address_of(end: socket.socket) -> str:
    """The address of who is at the other end; empty where it has gone already."""
    with contextlib.suppress(OSError):
        return str(end.getpeername()[0])
    return ""

"""The server: reads the requests of those that the gate has let in, and answers from this host's parts."""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import ssl
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gnnkit.cluster.network_wire import Gone, Head, Kind, NetworkWire, error_body
from gnnkit.cluster.parts.gate import PortGate, most_connections
from gnnkit.cluster.service_client import (
    PROTOCOL_VERSION,
    answer_to_value,
    expand_from_args,
    picks_to_value,
    question_from_args,
    rows_from_args,
)
from gnnkit.errors import PlanError, SamplingError, StoreError
from gnnkit.host import available_cpus
from gnnkit.runtime.beats import BEAT_S
from gnnkit.sampling.owned import PartOwner
from gnnkit.sampling.owners import BadRequest, Picks
from gnnkit.sampling.tables import GraphTables
from gnnkit.storage.arrays import GraphArrays

logger = logging.getLogger(__name__)

R = TypeVar("R")
T = TypeVar("T")


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


# Arguments by name are answered with a value of the codec, or several. Errors go to the client.
Answer = Callable[[dict[str, Any]], Any]

# Answers worked out at the same time, at most: this host's own sampling has the other processors.
_MOST_AT_ONCE = 16
# Longest wait for a processor. Turns last milliseconds, and clients have given their requests up by then.
_TURN_S = 600.0
# What one client, which is a process, may have under way: requests, and their bytes together.
_MOST_CALLS, _MOST_BYTES = 1024, 256 << 20
# The longest that a request which is too many waits for one that is ending.
_ENDING_S = 0.5
# The most connections, of all clients together.
_MOST_CONNECTIONS = 8192
# Bytes of answers that wait to be read, and how long they wait in any case.
_MOST_UNSENT, _UNREAD_S = 256 << 20, 5.0


_BUSY_HINT = "look at the load of the host that serves the parts"


class Turns:
    """Turns at the processors, in the order in which they were asked for; a context manager takes one.

    Args:
        count: How many are taken at a time, at most.
        timeout_s: Longest wait for one. A thread that has a turn gives it back in any case, so only its work can be late.
    """

    def __init__(self, count: int, timeout_s: float = _TURN_S) -> None:
        self._free, self._timeout_s, self._lock = count, timeout_s, threading.Lock()
        self._waiting: deque[threading.Event] = deque()

    def __enter__(self) -> None:
        with self._lock:
            if self._free > 0:
                self._free -= 1
                return
            mine = threading.Event()
            self._waiting.append(mine)
        if not mine.wait(self._timeout_s):  # those before are in a piece of their work
            with self._lock:
                if not mine.is_set():
                    self._waiting.remove(mine)
                    raise SamplingError(f"no processor was free for the request within {self._timeout_s:g} s", _BUSY_HINT)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1

    def pause(self) -> None:
        """Gives the turn to a waiting thread and takes another; for a thread that has one."""
        if self._waiting:
            self.__exit__()
            try:
                self.__enter__()
            except SamplingError:
                with self._lock:
                    self._free -= 1  # the block that has called gives a turn back at its end
                raise


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


class Answers:
    """Answers requests from the graph as it lies in memory now.

    Args:
        graph: The arrays.
        parts: The parts that may be asked about.
        fingerprint: The store's.

    Attributes:
        generation: Tells this start of the service from others.
    """

    def __init__(self, graph: GraphArrays, parts: tuple[int, ...], fingerprint: str) -> None:
        self.generation = secrets.randbits(48)
        self._parts, self._fingerprint = parts, fingerprint
        self._lock = threading.Lock()
        self._turns = Turns(max(1, min(_MOST_AT_ONCE, available_cpus() // 2)))
        self.use(graph)

    def use(self, graph: GraphArrays) -> None:
        """Moves over to another copy of the graph."""
        tables = {weighted: GraphTables(graph, weighted) for weighted in (False, True)}
        idle: dict[bool, list[PartOwner]] = {False: [], True: []}
        with self._lock:
            self._tables, self._idle = tables, idle

    def check(self, head: dict[str, Any]) -> None:
        """Refuses requests about another graph.

        Raises:
            StoreError: The other side has another store.
            BadRequest: It runs another gnnkit.
        """
        if head.get("version") != PROTOCOL_VERSION:
            raise BadRequest(f"the request is of version {head.get('version')!r}, this gnnkit answers {PROTOCOL_VERSION}")
        if head.get("fingerprint") != self._fingerprint:
            raise StoreError(
                f"hosts have different stores: this one's fingerprint is {self._fingerprint}, the request's {head.get('fingerprint')}",
                "copy the parts of one and the same store to every host",
            )

    @property
    def calls(self) -> dict[str, Answer]:
        """The functions that answer requests about parts, by name."""
        return {"expand": self.expand, "question": self.question, "rows": self.rows}

    def expand(self, args: dict[str, Any]) -> dict[str, Any]:
        """Answers a request for edges."""
        self.check(args)
        request = expand_from_args(args)

        def value(picks: Mapping[int, Picks], tables: GraphTables) -> dict[str, Any]:
            num_edges = tables.row_bounds[len(tables.node_types) :, -1].tolist()
            return picks_to_value(picks, self.generation, tables.relations[:, -1].tolist(), num_edges)

        return self._work(request.weighted, lambda owner: owner.expand(request), value)

    def question(self, args: dict[str, Any]) -> dict[str, Any]:
        """Answers a question about edges."""
        self.check(args)
        question = question_from_args(args)
        return self._work(question.what == "weights", lambda owner: owner.answer(question), lambda answer, _: answer_to_value(answer))

    def rows(self, args: dict[str, Any]) -> Stream:
        """Answers a request for rows, message by message."""
        self.check(args)
        request = rows_from_args(args)
        # The messages need none of the owner's memory.
        return Stream(self._messages(self._work(False, lambda owner: owner.rows(request), lambda messages, _: messages)), Kind.BLOCK)

    def _messages(self, messages: Iterator[NDArray[np.uint8]]) -> Generator[NDArray[np.uint8], None, None]:
        while True:
            with self._turns:  # not while a message is being sent: a slow reader holds no turn
                rows = next(messages, None)
            if rows is None:
                return
            yield rows

    def _work(self, weighted: bool, work: Callable[[PartOwner], T], value: Callable[[T, GraphTables], R]) -> R:
        """Does ``work`` in a turn and makes a value of what it found, with memory that is used again unless one of them fails."""
        with self._turns:
            with self._lock:
                tables, idle = self._tables[weighted], self._idle[weighted]
                owner = idle.pop() if idle else None
            owner = owner or PartOwner(tables, self._parts, self._turns.pause)
            found = work(owner)
        answer = value(found, tables)
        with self._lock:
            idle.append(owner)  # of no more use once the graph has moved
        return answer


class PartServer:
    """Listens, and answers: every connection in a thread of its own, one request after the other.

    Args:
        ip: The address to listen on, and no other.
        port: The port; 0 for any free one.
        token: What peers have to know.
        answers: What answers requests, by name; looked up at every request, so it may grow.
        tls: PEM of its certificate, with those that it was issued by, and of the key; None: what travels is not encrypted.
        refused: See ``PortGate``.

    Raises:
        PlanError: The address cannot be listened on.
    """

    def __init__(
        self,
        ip: str,
        port: int,
        token: str,
        answers: Mapping[str, Answer],
        tls: tuple[str, str] | None = None,
        refused: Callable[[str], None] = lambda address: None,
    ) -> None:
        self._answers, self._underway = answers, Underway()
        self._lock = threading.Lock()
        self._most = most_connections(_MOST_CONNECTIONS)
        self._wires: dict[NetworkWire, str] = {}  # with their clients' addresses; the one that has been silent longest first
        self._working: set[NetworkWire] = set()
        self._closed = threading.Event()
        try:
            self._gate = PortGate(ip, port, token, self._enter, tls, refused)
        except ssl.SSLError as error:
            raise PlanError(f"the certificate and its key cannot be used: {error}", "give PEM files that belong together") from error
        except OSError as error:
            place = f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
            raise PlanError(
                f"the part service cannot listen on {place}: {error.strerror or error}",
                "the address is none of this host's, or another program uses the port",
            ) from error
        threading.Thread(target=self._beat, name="gnnkit-beat", daemon=True).start()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._gate.port

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
            answer = self._answers.get(name)
            if answer is None:
                raise BadRequest(f"there is no call {name!r}")
            value = answer(args)
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
    try:
        return str(end.getpeername()[0])
    except OSError:
        return ""


# The longest name of a process.
_MOST_NAME = 64


def lease_calls(check: Callable[[dict[str, Any]], None], heard: Callable[[str, str, int], None]) -> dict[str, Answer]:
    """The service's side: its calls "here" and "bye".

    Args:
        check: Raises where a client is one of another run.
        heard: Called with "here" or "bye", a process's name and its host; from any thread.
    """

    def act(what: str, head: dict[str, Any]) -> dict[str, Any]:
        name, host = head.get("name"), head.get("host")
        if not isinstance(name, str) or not 0 < len(name) <= _MOST_NAME or isinstance(host, bool) or not isinstance(host, int) or host < 0:
            raise BadRequest("the visit names no process and host")
        check(head)
        heard(what, name, host)
        return {}

    return {what: partial(act, what) for what in ("here", "bye")}

"""The server: checks who asks, reads the request, answers from this host's parts."""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import os
import secrets
import ssl
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
from numpy.typing import NDArray

from gnnkit.cluster.parts.gate import PortGate
from gnnkit.cluster.parts.protocol import (
    CLIENT_HEADER,
    PROTOCOL_VERSION,
    ROWS_SCHEMA,
    TOKEN_HEADER,
    answer_to_batch,
    arrow_array,
    expand_from_ticket,
    from_ticket,
    picks_to_batch,
    question_from_ticket,
    rows_from_ticket,
)
from gnnkit.errors import GnnkitError, PlanError, SamplingError, StoreError
from gnnkit.host import available_cpus
from gnnkit.sampling.owned import PartOwner
from gnnkit.sampling.owners import BadRequest
from gnnkit.sampling.tables import GraphTables
from gnnkit.storage.arrays import GraphArrays

logger = logging.getLogger(__name__)


class Stream(NamedTuple):
    """An answer of several messages, worked out while it is sent.

    Attributes:
        schema: Of each message.
        batches: The messages.
    """

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


# What a request's or an action's head, and a request's arrays, are answered with. Errors go to whoever asked.
Get = Callable[[dict[str, Any], dict[str, NDArray[Any]]], pa.RecordBatch | Stream]
Action = Callable[[dict[str, Any]], dict[str, Any]]

# Answers worked out at the same time, at most: this host's own sampling has the other processors.
_MOST_AT_ONCE = 16
# What one client, which is a process, may have under way: requests, and their bytes together.
_MOST_CALLS, _MOST_BYTES = 1024, 256 << 20
_MOST_NAME = 100
# The name of what sees every call first.
_CALL = "call"


class Turns:
    """Turns at the processors, in the order in which they were asked for; a context manager takes one.

    Args:
        count: How many are taken at a time, at most.
    """

    def __init__(self, count: int) -> None:
        self._free, self._lock = count, threading.Lock()
        self._waiting: deque[threading.Event] = deque()

    def __enter__(self) -> None:
        mine = threading.Event()
        with self._lock:
            if self._free:
                self._free -= 1
                return
            self._waiting.append(mine)
        mine.wait()  # those before are in a piece of their work

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1

    def pause(self) -> None:
        """Lets those who wait have their turn, and takes another; for whoever has one."""
        if self._waiting:
            self.__exit__()
            self.__enter__()


class Underway:
    """Requests that every client has under way, counted. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[str, tuple[int, int]] = {}

    def begin(self, client: str, nbytes: int) -> None:
        """Counts a request.

        Raises:
            SamplingError: It is more than a client may have.
        """
        with self._lock:
            calls, total = self._clients.get(client, (0, 0))
            if calls < _MOST_CALLS and total + nbytes <= _MOST_BYTES:
                self._clients[client] = calls + 1, total + nbytes
                return
        raise SamplingError(
            f"the client {client} has {calls} requests of {total / 1e6:.0f} MB under way, and asks for another of {nbytes / 1e6:.0f} MB; "
            f"{_MOST_CALLS} of {_MOST_BYTES / 1e6:.0f} MB together are allowed",
            "ask for less at a time: lower batch_size, num_neighbors, num_workers or worker_concurrency",
        )

    def end(self, client: str, nbytes: int) -> None:
        """A request that was counted is over."""
        with self._lock:
            calls, total = self._clients.pop(client)
            if calls > 1:
                self._clients[client] = calls - 1, total - nbytes


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
    def gets(self) -> dict[str, Get]:
        """The functions that answer requests about parts, by name."""
        return {"expand": self.expand, "question": self.question, "rows": self.rows}

    def expand(self, head: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> pa.RecordBatch:
        """Answers a request for edges."""
        self.check(head)
        request = expand_from_ticket(head, arrays)
        with self._turns:
            owner, tables = self._take(request.weighted)
            answer = owner.expand(request)
        relations = tables.relations
        num_edges = tables.row_bounds[len(tables.node_types) :, -1].tolist()
        batch = picks_to_batch(answer, self.generation, relations[:, -1].tolist(), num_edges)
        self._give_back(owner, tables, weighted=request.weighted)
        return batch

    def question(self, head: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> pa.RecordBatch:
        """Answers a question about edges."""
        self.check(head)
        question = question_from_ticket(head, arrays)
        weighted = question.what == "weights"
        with self._turns:
            owner, tables = self._take(weighted)
            answer = owner.answer(question)
        batch = answer_to_batch(answer)
        self._give_back(owner, tables, weighted=weighted)
        return batch

    def rows(self, head: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Stream:
        """Answers a request for rows, message by message."""
        self.check(head)
        request = rows_from_ticket(head, arrays)
        owner, tables = self._take(weighted=False)
        with self._turns:
            messages = owner.rows(request)
        self._give_back(owner, tables, weighted=False)  # rows need none of its memory
        return Stream(ROWS_SCHEMA, self._messages(messages))

    def _messages(self, messages: Iterator[NDArray[np.uint8]]) -> Iterator[pa.RecordBatch]:
        while True:
            with self._turns:  # not while a message is being sent: a slow reader keeps nobody waiting
                rows = next(messages, None)
            if rows is None:
                return
            yield pa.RecordBatch.from_arrays([arrow_array(rows)], schema=ROWS_SCHEMA)

    def _take(self, weighted: bool) -> tuple[PartOwner, GraphTables]:
        with self._lock:
            tables = self._tables[weighted]
            if self._idle[weighted]:
                return self._idle[weighted].pop(), tables
        return PartOwner(tables, self._parts, self._turns.pause), tables

    def _give_back(self, owner: PartOwner, tables: GraphTables, *, weighted: bool) -> None:
        with self._lock:
            if self._tables[weighted] is tables:
                self._idle[weighted].append(owner)


class _Call(flight.ServerMiddleware):  # type: ignore[misc]
    """A call: what it adds to what its client has under way."""

    def __init__(self, underway: Underway, client: str) -> None:
        self._underway, self._client = underway, client
        self._nbytes: int | None = None

    def begin(self, nbytes: int) -> None:
        """Counts the request, until the last byte of its answer has been sent; see ``Underway.begin``."""
        self._underway.begin(self._client, nbytes)
        self._nbytes = nbytes

    def call_completed(self, exception: Any) -> None:
        """It is over."""
        if self._nbytes is not None:
            self._underway.end(self._client, self._nbytes)


class _TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses every call without the token, before anything else of it is looked at."""

    def __init__(self, token: str) -> None:
        self._wanted, self._underway = token.encode(), Underway()

    def start_call(self, info: Any, headers: dict[str, list[str | bytes]]) -> _Call:
        if not hmac.compare_digest(_first(headers, TOKEN_HEADER).encode(), self._wanted):
            raise flight.FlightUnauthenticatedError("the token is wrong or missing")
        return _Call(self._underway, _first(headers, CLIENT_HEADER)[:_MOST_NAME] or "without a name")


def _first(headers: dict[str, list[str | bytes]], name: str) -> str:
    """A header's first value as text; "" where it is not there."""
    given = (headers.get(name) or [""])[0]
    return given.decode("latin-1") if isinstance(given, bytes) else given


class PartServer(flight.FlightServerBase):  # type: ignore[misc]
    """Listens.

    Args:
        ip: The address to listen on, and no other.
        port: The port; 0 for any free one.
        token: What every call must carry.
        gets: What answers requests, by the ``what`` in their heads; looked up at every request, so it may grow.
        actions: What answers actions, by their names; likewise.
        tls: PEM of its certificate, with those that it was issued by, and of the key; None: what travels is not encrypted.

    Raises:
        PlanError: The address cannot be listened on.
    """

    def __init__(
        self, ip: str, port: int, token: str, gets: Mapping[str, Get], actions: Mapping[str, Action], tls: tuple[str, str] | None = None
    ) -> None:
        self._gets, self._actions = gets, actions
        try:
            self._gate = PortGate(ip, port, token, self._listen(token), tls)
        except ssl.SSLError as error:
            raise PlanError(f"the certificate and its key cannot be used: {error}", "give PEM files that belong together") from error
        except OSError as error:
            place = f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
            raise PlanError(
                f"the part service cannot listen on {place}: {error.strerror or error}",
                "the address is none of this host's, or another program uses the port",
            ) from error

    def _listen(self, token: str) -> int:
        """Begins to answer at a Unix socket that no path leads to any more; a descriptor of it."""
        with tempfile.TemporaryDirectory(prefix="gnnkit-") as folder, contextlib.ExitStack() as stack:
            fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)
            stack.callback(os.close, fd)
            path = f"/proc/self/fd/{fd}/service"  # the folder's own may be longer than an address can be
            super().__init__(f"grpc+unix://{path}", middleware={_CALL: _TokenCheck(token)})
            return os.open(path, os.O_PATH | os.O_CLOEXEC)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._gate.port

    def do_action(self, context: Any, action: Any) -> list[Any]:
        """Does something small: JSON comes and goes."""
        try:
            context.get_middleware(_CALL).begin(action.body.size)
            answer = self._actions.get(action.type)
            if answer is None:
                raise BadRequest(f"there is no action {action.type!r}")
            return [json.dumps(answer(_read_body(action.body.to_pybytes()))).encode()]
        except Exception as error:
            logger.info("the action %.40r failed", action.type, exc_info=True)
            raise as_flight(error) from error

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Answers a request; errors go to whoever sent it."""
        try:
            context.get_middleware(_CALL).begin(len(ticket.ticket))
            head, arrays = from_ticket(ticket.ticket)
            get = self._gets.get(str(head.get("what")))
            if get is None:
                raise BadRequest(f"the request asks for {head.get('what')!r}")
            answer = get(head, arrays)
            if isinstance(answer, Stream):
                return flight.GeneratorStream(*answer)
            return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(answer.schema, [answer]))
        except Exception as error:
            logger.info("a request failed", exc_info=True)
            raise as_flight(error) from error


def _read_body(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest("the action cannot be read") from error
    if not isinstance(value, dict):
        raise BadRequest("the action cannot be read")
    return value


def as_flight(error: Exception) -> Exception:
    """An error as it travels to whoever asked."""
    if isinstance(error, flight.FlightError):
        return error  # type: ignore[no-any-return]
    own = isinstance(error, GnnkitError)
    message = error.message if isinstance(error, GnnkitError) else f"{type(error).__name__}: {error}"
    hint = error.hint if isinstance(error, GnnkitError) else None
    body = {"type": type(error).__name__ if own else "SamplingError", "message": message[:2000], "hint": hint}
    return flight.FlightServerError(message[:2000], extra_info=json.dumps(body).encode())  # type: ignore[no-any-return]


# The longest name of a process.
_MOST_NAME = 64


def lease_actions(check: Callable[[dict[str, Any]], None], heard: Callable[[str, str, int], None]) -> dict[str, Action]:
    """The service's side: its actions "here" and "bye".

    Args:
        check: Raises where a client is one of another run.
        heard: Called with "here" or "bye", a process's name and its host; from any thread.
    """

    def act(what: str, head: dict[str, Any]) -> dict[str, Any]:
        name, host = head.get("name"), head.get("host")
        if not isinstance(name, str) or not 0 < len(name) <= _MOST_NAME or isinstance(host, bool) or not isinstance(host, int) or host < 0:
            raise BadRequest("the visit names nobody")
        check(head)
        heard(what, name, host)
        return {}

    return {what: partial(act, what) for what in ("here", "bye")}

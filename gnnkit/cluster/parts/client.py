"""A sampling process's connections to the part services of other hosts."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from gnnkit.cluster.flight_client import call_headers, connect, is_refused, remote_error
from gnnkit.cluster.parts.protocol import answer_from_batch, expand_to_ticket, picks_from_batch, question_to_ticket, rows_to_ticket
from gnnkit.errors import HostUnreachable, SamplingError
from gnnkit.sampling.owners import Answer, BadRequest, Expansion, Picks, Question, RowsRequest
from gnnkit.waiting import Deadline

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# The most that glibc takes; larger arrays are mapped and unmapped as before.
_LARGEST = 32 << 20


def keep_freed_memory() -> None:
    """Has freed memory used again instead of given back: touching fresh pages cost a third of the time that a message takes."""
    with contextlib.suppress(AttributeError):  # another C library than glibc
        libc: Any = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST)
        libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


T = TypeVar("T")
logger = logging.getLogger(__name__)

# A connection that breaks sooner than this after a call began was broken before: the service has been started again since.
_STALE_S = 1.0
# What a call ends with whose connection broke.
BROKEN = (flight.FlightUnavailableError, flight.FlightInternalError, flight.FlightCancelledError)


@dataclass(frozen=True)
class Peer:
    """Another host.

    Attributes:
        address: Where its part service listens, ``"10.0.0.2:4711"``.
        parts: Its parts.
        server: The number of the server that answers there; None for a part service.
    """

    address: str
    parts: tuple[int, ...]
    server: int | None = None

    @classmethod
    def all_from_json(cls, peers: Mapping[str, Mapping[str, Any]]) -> dict[int, Peer]:
        """The ``peers`` of a setup message."""
        return {int(host): cls(str(peer["address"]), tuple(peer["parts"]), peer.get("server")) for host, peer in peers.items()}


@dataclass(frozen=True)
class Attempt:
    """A call whose connection broke.

    Attributes:
        deadline: Until when it may take.
        is_new: Whether the connection was made for it.
    """

    deadline: Deadline
    is_new: bool


class Traffic:
    """Bytes of all messages so far, without the transport's own. Safe to use from several threads.

    Attributes:
        received: Bytes that came.
        sent: Bytes that went.
    """

    def __init__(self) -> None:
        self.received = self.sent = 0
        self._lock = threading.Lock()

    def add(self, received: int, sent: int) -> None:
        """Counts a message."""
        with self._lock:
            self.received += received
            self.sent += sent


class FlightOwners:
    """``gnnkit.sampling.owners.PartOwners`` over Arrow Flight; shared by the sampling threads of a process.

    Args:
        peers: The other hosts.
        token: What their services expect.
        fingerprint: The store's.
        num_rows: Nodes of every type and edges of every type, as in ``GraphTables.row_bounds``: they decide the width of ids.
        timeout_s: Most seconds that one request may take.
        at_once: Requests under way at a time, at most.
        ca: See ``connect``.

    Attributes:
        traffic: What has come and gone.
    """

    def __init__(
        self,
        peers: Mapping[int, Peer],
        token: str,
        fingerprint: str,
        num_rows: list[int],
        *,
        timeout_s: float,
        at_once: int,
        ca: str | None = None,
    ) -> None:
        self._ca = ca
        self._peers, self._fingerprint, self._timeout_s = dict(peers), fingerprint, timeout_s
        self._token, self._headers = token, call_headers(token)
        self._num_rows = num_rows
        self.traffic = Traffic()
        self._lock = threading.Lock()
        self._idle: dict[int, list[Any]] = {host: [] for host in peers}
        self._generations: dict[int, int] = {}
        self._threads = ThreadPoolExecutor(at_once, "gnnkit-part-calls")

    def close(self) -> None:
        """Ends the connections; calls under way come to their end first."""
        self._threads.shutdown()
        with self._lock:
            for clients in self._idle.values():
                for client in clients:
                    client.close()
                clients.clear()

    def expand(self, requests: Mapping[int, Expansion]) -> Callable[[], Mapping[int, Mapping[int, Picks]]]:
        """See ``PartOwners.expand``."""
        calls = {
            host: self._begin_get(host, expand_to_ticket(request, self._fingerprint, self._num_rows), self._picks_reader(host))
            for host, request in requests.items()
        }
        return lambda: _wait(calls)

    def answer(self, questions: Mapping[int, Question]) -> Callable[[], Mapping[int, Answer]]:
        """See ``PartOwners.answer``."""
        tickets = {host: question_to_ticket(question, self._fingerprint) for host, question in questions.items()}
        calls = {host: self._begin_get(host, ticket, _read_answer) for host, ticket in tickets.items()}
        return lambda: _wait(calls)

    def rows(self, requests: Mapping[int, RowsRequest], take: Callable[[int, int, int], None]) -> Callable[[], None]:
        """See ``PartOwners.rows``."""

        def reader(host: int, request: RowsRequest) -> Callable[[Iterator[pa.RecordBatch]], None]:
            return lambda messages: _read_rows(messages, request, lambda message, address: take(host, message, address))

        # All tickets before the first call: nobody would wait for calls under way where making one fails.
        tickets = {host: rows_to_ticket(request, self._fingerprint, self._num_rows) for host, request in requests.items()}
        calls = {host: self._begin_get(host, tickets[host], reader(host, request)) for host, request in requests.items()}

        def wait() -> None:
            _wait(calls)

        return wait

    def _picks_reader(self, host: int) -> Callable[[Iterator[pa.RecordBatch]], dict[int, Picks]]:
        def read(messages: Iterator[pa.RecordBatch]) -> dict[int, Picks]:
            generation, picks = picks_from_batch(_only(messages))
            if self._generations.setdefault(host, generation) != generation:
                logger.info("the part service of host %d (%s) has been started again", host, self._peers[host].address)
                self._generations[host] = generation
            return picks

        return read

    def _begin_get(self, host: int, ticket: bytes, read: Callable[[Iterator[pa.RecordBatch]], T]) -> Future[T]:
        """Begins a request.

        Args:
            host: Who is asked.
            ticket: What.
            read: Reads the answer's messages.
        """

        def ask(client: Any, options: Any) -> T:
            self.traffic.add(0, len(ticket))
            return read(self._messages(client.do_get(flight.Ticket(ticket), options)))

        return self._begin(host, ask)

    def _messages(self, stream: Any) -> Iterator[pa.RecordBatch]:
        while True:
            try:
                batch = stream.read_chunk().data
            except StopIteration:
                return
            self.traffic.add(batch.get_total_buffer_size(), 0)
            yield batch

    def _begin(self, host: int, ask: Callable[[Any, Any], T]) -> Future[T]:
        """Begins a call: ``ask`` is given a client and the call's options, perhaps more than once."""
        return self._threads.submit(self._call, host, ask, self._deadline())

    def _deadline(self) -> Deadline:
        """Until when a call may take that begins now."""
        return Deadline(self._timeout_s)

    def _call(self, host: int, ask: Callable[[Any, Any], T], deadline: Deadline) -> T:
        """One call; made again as far as ``_may_ask_again`` says."""
        peer = self._peers[host]
        with self._lock:
            client = self._idle[host].pop() if self._idle[host] else None
        attempt = Attempt(deadline, client is None)
        while True:
            try:
                if client is None:
                    client = connect(peer.address, self._token, self._ca)
                answer = ask(client, flight.FlightCallOptions(timeout=max(0.001, deadline.left_s), headers=self._headers))
            except BaseException as error:
                if client is not None:
                    client.close()
                if not isinstance(error, BROKEN) or is_refused(error) or not self._may_ask_again(host, attempt):
                    raise self._explain(host, peer, error) from error
                with self._lock:
                    self._idle[host].clear()
                client, attempt = None, replace(attempt, is_new=True)
            else:
                with self._lock:
                    self._idle[host].append(client)
                return answer

    def _may_ask_again(self, host: int, attempt: Attempt) -> bool:
        """Whether a call whose connection broke is made again: once where it may be one from before the service was started again."""
        return not attempt.is_new and attempt.deadline.elapsed_s < _STALE_S

    def _explain(self, host: int, peer: Peer, error: BaseException) -> BaseException:
        """The error to raise for what a call ended with."""
        parts = f"part{'s' if len(peer.parts) > 1 else ''} {', '.join(map(str, peer.parts))}"
        where = f"the part service of host {host} ({peer.address}, {parts})"
        if peer.server is not None:
            where = f"server {peer.server} ({peer.address})"
        again = "when that host's processes run again, iterate again"
        text = str(error).partition(". gRPC client debug context")[0]
        if is_refused(error):
            return SamplingError(f"{where} refused the token", "start every host with the same token")
        if isinstance(error, flight.FlightTimedOutError):
            return HostUnreachable(f"{where} did not answer within {self._timeout_s:g} s", again)
        if isinstance(error, flight.FlightServerError) and error.extra_info:
            return remote_error(where, bytes(error.extra_info))
        if isinstance(error, BadRequest):
            return SamplingError(f"{where} sent an answer that cannot be read: {error}", "all hosts must run the same gnnkit")
        if isinstance(error, (flight.FlightError, pa.ArrowException, OSError)):
            return HostUnreachable(f"{where} cannot be reached: {text}", again)
        return error


def _wait(calls: Mapping[int, Future[T]]) -> dict[int, T]:
    """Waits for all calls, also where one has failed: none of them may write into memory of a batch that has been given up."""
    failed = [error for call in calls.values() if (error := call.exception()) is not None]
    if failed:
        raise failed[0]
    return {host: call.result() for host, call in calls.items()}


def _only(messages: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
    batches = list(messages)
    if len(batches) != 1:
        raise BadRequest(f"{len(batches)} messages instead of one")
    return batches[0]


def _read_answer(messages: Iterator[pa.RecordBatch]) -> Answer:
    return answer_from_batch(_only(messages))


def _read_rows(messages: Iterator[pa.RecordBatch], request: RowsRequest, take: Callable[[int, int], None]) -> None:
    number = 0
    for batch in messages:
        rows = batch.column(0)
        if number == len(request.messages) or not rows.type.equals(pa.uint8()) or len(rows) != request.nbytes(request.messages[number]):
            raise BadRequest(f"message {number} is not what was asked for")
        take(number, rows.buffers()[1].address + rows.offset)
        number += 1
    if number != len(request.messages):
        raise BadRequest(f"{number} messages instead of {len(request.messages)}")

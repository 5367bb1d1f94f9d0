"""The other side: a sampling process's connections to the part services of other hosts."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from gnnkit import errors
from gnnkit.errors import GnnkitError, SamplingError
from gnnkit.runtime.parts.protocol import TOKEN_HEADER, expand_to_ticket, picks_from_batch, rows_to_ticket
from gnnkit.sampling.owned import BadRequest
from gnnkit.sampling.owners import ExpandRequest, Picks, RowsRequest

T = TypeVar("T")
logger = logging.getLogger(__name__)

# A connection that breaks sooner than this after a call began was broken before: the service has been started again since.
_STALE_S = 1.0
# A host that vanishes without a word is noticed by pings: one this long after the last byte, answered within this time. Few enough
# pings go out for the service not to take them for a nuisance, because calls are short.
_PING_AFTER_MS, _PING_TIMEOUT_MS = 2000, 2500
_CONNECT_TIMEOUT_MS = 2500
CHANNEL_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own for each client
    ("grpc.keepalive_time_ms", _PING_AFTER_MS),
    ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
    ("grpc.min_reconnect_backoff_ms", _CONNECT_TIMEOUT_MS),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.http2.max_frame_size", (1 << 24) - 1),  # fewer pieces to a message: 5 % of its time
]


@dataclass(frozen=True)
class Peer:
    """Another host.

    Attributes:
        address: Where its part service listens, ``"10.0.0.2:4711"``.
        parts: Its parts.
    """

    address: str
    parts: tuple[int, ...]

    @classmethod
    def all_from_json(cls, peers: Mapping[str, Mapping[str, Any]]) -> dict[int, Peer]:
        """The ``peers`` of a setup message."""
        return {int(host): cls(str(peer["address"]), tuple(peer["parts"])) for host, peer in peers.items()}


class FlightOwners:
    """``gnnkit.sampling.owners.PartOwners`` over Arrow Flight; shared by the sampling threads of a process.

    Args:
        peers: The other hosts.
        token: What their services expect.
        fingerprint: The store's.
        num_rows: Nodes of every type and edges of every type, as in ``GraphTables.row_bounds``: they decide the width of ids.
        timeout_s: Most seconds that one request may take.
        at_once: Requests under way at a time, at most.
    """

    def __init__(
        self, peers: Mapping[int, Peer], token: str, fingerprint: str, num_rows: list[int], *, timeout_s: float, at_once: int
    ) -> None:
        self._peers, self._fingerprint, self._timeout_s = dict(peers), fingerprint, timeout_s
        self._headers = [(TOKEN_HEADER.encode(), token.encode())]
        self._num_rows = num_rows
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

    def expand(self, requests: Mapping[int, ExpandRequest]) -> Callable[[], Mapping[int, Mapping[int, Picks]]]:
        """See ``PartOwners.expand``."""
        calls = {
            host: self._begin(host, expand_to_ticket(request, self._fingerprint, self._num_rows), self._picks_reader(host))
            for host, request in requests.items()
        }
        return lambda: _wait(calls)

    def rows(self, requests: Mapping[int, RowsRequest], take: Callable[[int, int, int], None]) -> Callable[[], None]:
        """See ``PartOwners.rows``."""

        def reader(host: int, request: RowsRequest) -> Callable[[Any], None]:
            return lambda stream: _read_rows(stream, request, lambda message, address: take(host, message, address))

        # All tickets before the first call: nobody would wait for calls under way where making one fails.
        tickets = {host: rows_to_ticket(request, self._fingerprint, self._num_rows) for host, request in requests.items()}
        calls = {host: self._begin(host, tickets[host], reader(host, request)) for host, request in requests.items()}

        def wait() -> None:
            _wait(calls)

        return wait

    def _picks_reader(self, host: int) -> Callable[[Any], dict[int, Picks]]:
        def read(stream: Any) -> dict[int, Picks]:
            generation, picks = _read_picks(stream)
            if self._generations.setdefault(host, generation) != generation:
                logger.info("the part service of host %d (%s) has been started again", host, self._peers[host].address)
                self._generations[host] = generation
            return picks

        return read

    def _begin(self, host: int, ticket: bytes, read: Callable[[Any], T]) -> Future[T]:
        return self._threads.submit(self._call, host, ticket, read)

    def _call(self, host: int, ticket: bytes, read: Callable[[Any], T]) -> T:
        """One request; asked once more where the connection turns out to be one from before the service was started again."""
        peer = self._peers[host]
        with self._lock:
            client = self._idle[host].pop() if self._idle[host] else None
        is_new = client is None
        started = time.monotonic()
        while True:
            try:
                if client is None:
                    client = flight.FlightClient(f"grpc://{peer.address}", generic_options=CHANNEL_OPTIONS)
                left = max(0.001, self._timeout_s - (time.monotonic() - started))
                answer = read(client.do_get(flight.Ticket(ticket), flight.FlightCallOptions(timeout=left, headers=self._headers)))
            except BaseException as error:
                broken = isinstance(error, (flight.FlightUnavailableError, flight.FlightInternalError, flight.FlightCancelledError))
                if client is not None:
                    client.close()
                if not (broken and not is_new and time.monotonic() - started < _STALE_S):
                    raise self._explain(host, peer, error) from error
                with self._lock:
                    self._idle[host].clear()
                client, is_new = None, True
            else:
                with self._lock:
                    self._idle[host].append(client)
                return answer

    def _explain(self, host: int, peer: Peer, error: BaseException) -> BaseException:
        """The error to raise for what a call ended with."""
        parts = f"part{'s' if len(peer.parts) > 1 else ''} {', '.join(map(str, peer.parts))}"
        where = f"the part service of host {host} ({peer.address}, {parts})"
        again = "when that host's processes run again, iterate again"
        text = str(error).partition(". gRPC client debug context")[0]
        if isinstance(error, flight.FlightUnauthenticatedError):
            return SamplingError(f"{where} refused the token", "start every host with the same token")
        if isinstance(error, flight.FlightTimedOutError):
            return SamplingError(f"{where} did not answer within {self._timeout_s:g} s", again)
        if isinstance(error, flight.FlightServerError) and error.extra_info:
            return remote_error(where, bytes(error.extra_info))
        if isinstance(error, BadRequest):
            return SamplingError(f"{where} sent an answer that cannot be read: {error}", "all hosts must run the same gnnkit")
        if isinstance(error, (flight.FlightError, pa.ArrowException, OSError)):
            return SamplingError(f"{where} cannot be reached: {text}", again)
        return error


def remote_error(where: str, body: bytes) -> GnnkitError:
    """The error that another host's service has sent, with where it came from."""
    try:
        value = json.loads(body)
        kind: Any = getattr(errors, str(value["type"]), SamplingError)
        return kind(f"{where}: {value['message']}", value["hint"])  # type: ignore[no-any-return]
    except (ValueError, KeyError, TypeError):
        return SamplingError(f"{where} failed: {body[:200]!r}")


def _wait(calls: Mapping[int, Future[T]]) -> dict[int, T]:
    """Waits for all calls, also where one has failed: none of them may write into memory of a batch that has been given up."""
    failed = [error for call in calls.values() if (error := call.exception()) is not None]
    if failed:
        raise failed[0]
    return {host: call.result() for host, call in calls.items()}


def _batches(stream: Any) -> Iterator[pa.RecordBatch]:
    while True:
        try:
            yield stream.read_chunk().data
        except StopIteration:
            return


def _read_picks(stream: Any) -> tuple[int, dict[int, Picks]]:
    batches = list(_batches(stream))
    if len(batches) != 1:
        raise BadRequest(f"{len(batches)} messages instead of one")
    return picks_from_batch(batches[0])


def _read_rows(stream: Any, request: RowsRequest, take: Callable[[int, int], None]) -> None:
    number = 0
    for batch in _batches(stream):
        rows = batch.column(0)
        if number == len(request.messages) or not rows.type.equals(pa.uint8()) or len(rows) != request.nbytes(request.messages[number]):
            raise BadRequest(f"message {number} is not what was asked for")
        take(number, rows.buffers()[1].address + rows.offset)
        number += 1
    if number != len(request.messages):
        raise BadRequest(f"{number} messages instead of {len(request.messages)}")

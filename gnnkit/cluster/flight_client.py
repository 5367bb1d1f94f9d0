"""A client of one service of another host, a server or a part service, over Arrow Flight: its actions, answers, and leases."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
from numpy.typing import NDArray

from gnnkit import errors
from gnnkit.cluster.leases import LeaseRenewal, Tell
from gnnkit.cluster.parts.gate import is_refusal, tunnel_options
from gnnkit.cluster.parts.protocol import CLIENT_HEADER, PROTOCOL_VERSION, TOKEN_HEADER, to_ticket, unpack
from gnnkit.cluster.serving.codec import from_bytes, to_bytes
from gnnkit.cluster.serving.membership import SERVING_VERSION
from gnnkit.errors import GnnkitError, PlanError, SamplingError

T = TypeVar("T")

# A message has one array at least.
_NOTHING: Mapping[str, NDArray[Any]] = {"nothing": np.empty(0, np.uint8)}


# A host that vanishes without a word is noticed by pings: one this long after the last byte, answered within this time. Few enough
# pings go out for the service not to take them for a nuisance, because calls are short.
_PING_AFTER_MS, _PING_TIMEOUT_MS = 2000, 2500
_CONNECT_TIMEOUT_MS = 2500
_CHANNEL_OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own for each client
    ("grpc.keepalive_time_ms", _PING_AFTER_MS),
    ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
    ("grpc.min_reconnect_backoff_ms", _CONNECT_TIMEOUT_MS),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 250),  # a host that starts, and refuses another one, may be there for a moment only
    ("grpc.enable_http_proxy", 0),
    ("grpc.http2.max_frame_size", (1 << 24) - 1),  # fewer pieces to a message: 5 % of its time
]


def connect(address: str, token: str, ca: str | None) -> Any:
    """A ``FlightClient``; it connects with its first call.

    Args:
        address: ``"10.0.0.2:4711"``.
        token: What the service's gate expects; every call carries it, too.
        ca: PEM of the certificates that the service's is checked against; None: the connection is not encrypted.
    """
    options = _CHANNEL_OPTIONS + tunnel_options(token)
    if ca is None:
        return flight.FlightClient(f"grpc://{address}", generic_options=options)
    return flight.FlightClient(f"grpc+tls://{address}", tls_root_certs=ca.encode(), generic_options=options)


def call_headers(token: str) -> list[tuple[bytes, bytes]]:
    """Headers of every call: the token, and which process calls."""
    host = socket.gethostname().encode("ascii", "replace").decode()
    return [(TOKEN_HEADER.encode(), token.encode()), (CLIENT_HEADER.encode(), f"{host[:64]}, process {os.getpid()}".encode())]


def is_refused(error: BaseException) -> bool:
    """Whether a call ended because the service, or its gate, expects another token."""
    return isinstance(error, flight.FlightUnauthenticatedError) or is_refusal(error)


def remote_error(where: str, body: bytes) -> GnnkitError:
    """The error that another host's service has sent, with where it came from."""
    try:
        value = json.loads(body)
        kind: Any = getattr(errors, str(value["type"]), None)
        own = kind if isinstance(kind, type) and issubclass(kind, GnnkitError) else SamplingError
        return own(f"{where}: {value['message']}", value["hint"])
    except (ValueError, KeyError, TypeError):
        return SamplingError(f"{where} failed: {body[:200]!r}")


class Unreachable(Exception):
    """Nobody answers there, or nobody that speaks this language; asking again may help."""


class FlightClient:
    """A connection to one service, for one call at a time. It connects when it is first used, and again where it broke.

    Args:
        address: Where the service listens.
        token: What it expects.
        ca: See ``connect``.
        where: The service in messages; None: the server at its address.
        hint: What to do where it expects another token.
    """

    def __init__(
        self,
        address: str,
        token: str,
        ca: str | None,
        *,
        where: str | None = None,
        hint: str = "the servers' token is in the file that they were started with",
    ) -> None:
        self.address, self._ca = address, ca
        self._where, self._hint = where or f"the server at {address}", hint
        self._lock = threading.Lock()
        self._token, self._headers = token, call_headers(token)
        self._client: Any = None

    def do(self, action: str, body: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Has the service do something.

        Args:
            action: What.
            body: JSON values; ``version`` is that of servers unless they say another.
            timeout_s: Most seconds that it may take.

        Raises:
            Unreachable: It cannot be asked.
            PlanError: It expects another token.
            GnnkitError: Whatever it refuses with.
        """

        def ask(client: Any, options: Any) -> dict[str, Any]:
            answers = list(client.do_action(flight.Action(action, json.dumps({"version": SERVING_VERSION, **body}).encode()), options))
            return dict(json.loads(answers[0].body.to_pybytes()))

        return self._call(ask, timeout_s)

    def get(
        self, head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], timeout_s: float
    ) -> Iterator[tuple[dict[str, Any], dict[str, NDArray[Any]]]]:
        """Asks for something larger; the messages of the answer, all of them once they have arrived.

        Raises:
            Unreachable: See ``do``.
            PlanError: See ``do``.
            GnnkitError: See ``do``.
        """
        ticket = flight.Ticket(to_ticket({"version": SERVING_VERSION, **head}, arrays or _NOTHING))

        def ask(client: Any, options: Any) -> list[tuple[dict[str, Any], dict[str, NDArray[Any]]]]:
            return [unpack(batch) for batch in client.do_get(ticket, options).read_all().to_batches()]

        return iter(self._call(ask, timeout_s))

    def call(self, client: str, name: str, args: Any, timeout_s: float) -> Any:
        """Has the server answer a call, as ``ServerConnection.call`` does over a Unix socket.

        Args:
            client: Who calls.
            name: What is called; see ``gnnkit.cluster.serving.server_api``.
            args: A value of ``codec``.
            timeout_s: Most seconds that it may take.

        Raises:
            Unreachable: See ``do``.
            PlanError: See ``do``.
            GnnkitError: What the call ended with.
        """
        head = {"what": "call", "client": client, "name": name, "timeout_s": timeout_s}
        ((_, arrays),) = self.get(head, {"args": np.frombuffer(to_bytes(args), np.uint8)}, timeout_s)
        return from_bytes(arrays["value"].tobytes())

    def close(self) -> None:
        """Ends the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _call(self, ask: Callable[[Any, Any], T], timeout_s: float) -> T:
        with self._lock:
            try:
                if self._client is None:
                    self._client = connect(self.address, self._token, self._ca)
                return ask(self._client, flight.FlightCallOptions(timeout=timeout_s, headers=self._headers))
            except BaseException as error:
                self.close()
                raise self._explain(error) from error

    def _explain(self, error: BaseException) -> BaseException:
        """The error to raise for what a call ended with."""
        where = self._where
        if is_refused(error):
            return PlanError(f"{where} refused the token", self._hint)
        if isinstance(error, flight.FlightServerError) and error.extra_info:
            return remote_error(where, bytes(error.extra_info))
        if isinstance(error, flight.FlightTimedOutError):
            return Unreachable(f"{where} does not answer")
        if isinstance(error, (flight.FlightError, pa.ArrowException, OSError, ValueError, IndexError, TypeError)):
            return Unreachable(f"{where} cannot be reached: {_short(error)}")
        return error


_PREFIXES = ("Flight returned unavailable error, with message: ", "failed to connect to all addresses; last error: ")


def _short(error: BaseException) -> str:
    """Returns the network library's message, without its particulars."""
    text = str(error).partition(". gRPC client debug context")[0].partition("\n")[0]
    for prefix in _PREFIXES:
        text = text.removeprefix(prefix)
    return text


def lease_renewal(
    host: int,
    addresses: Mapping[int, str],
    token: str,
    fingerprint: str,
    *,
    for_all: bool = False,
    ca: str | None = None,
    name: str | None = None,
) -> LeaseRenewal:
    """This process's presence at the services of other hosts.

    Args:
        host: This host.
        addresses: ``{other host: address of its service}``.
        token: What they expect.
        fingerprint: The store's.
        for_all: See ``LeaseRenewal``.
        ca: See ``connect``.
        name: See ``LeaseRenewal``.
    """
    hint = "start every host with the same token"

    def tell(other: int) -> Tell:
        client = FlightClient(addresses[other], token, ca, where=f"host {other} ({addresses[other]})", hint=hint)

        def tell_service(what: str, name: str, of_host: int, timeout_s: float) -> None:
            client.do(what, {"version": PROTOCOL_VERSION, "fingerprint": fingerprint, "name": name, "host": of_host}, timeout_s)

        return tell_service

    return LeaseRenewal(host, {other: tell(other) for other in addresses}, addresses, for_all=for_all, name=name)

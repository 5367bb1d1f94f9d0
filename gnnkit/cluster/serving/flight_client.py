"""One server of another host, as those who ask it see it: its actions, and its files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
from numpy.typing import NDArray

from gnnkit.cluster.parts.client import call_headers, connect, is_refused, remote_error
from gnnkit.cluster.parts.protocol import to_ticket, unpack
from gnnkit.cluster.serving.codec import from_bytes, to_bytes
from gnnkit.cluster.serving.membership import SERVING_VERSION
from gnnkit.errors import PlanError

T = TypeVar("T")

# A message has one array at least.
_NOTHING: Mapping[str, NDArray[Any]] = {"nothing": np.empty(0, np.uint8)}


class Unreachable(Exception):
    """Nobody answers there, or nobody that speaks this language; asking again may help."""


class FlightClient:
    """A connection to one server; not for several threads at a time. It connects when it is first used, and again where it broke.

    Args:
        address: Where the server listens.
        token: What it expects.
        ca: See ``connect``.
    """

    def __init__(self, address: str, token: str, ca: str | None) -> None:
        self.address, self._ca = address, ca
        self._token, self._headers = token, call_headers(token)
        self._client: Any = None

    def do(self, action: str, body: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Has the server do something.

        Args:
            action: What.
            body: JSON values.
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
        try:
            if self._client is None:
                self._client = connect(self.address, self._token, self._ca)
            return ask(self._client, flight.FlightCallOptions(timeout=timeout_s, headers=self._headers))
        except BaseException as error:
            self.close()
            where = f"the server at {self.address}"
            if is_refused(error):
                raise PlanError(f"{where} refused the token", "the servers' token is in the file that they were started with") from error
            if isinstance(error, flight.FlightServerError) and error.extra_info:
                raise remote_error(where, bytes(error.extra_info)) from error
            if isinstance(error, flight.FlightTimedOutError):
                raise Unreachable(f"{where} does not answer") from error
            if isinstance(error, (flight.FlightError, pa.ArrowException, OSError, ValueError, IndexError, TypeError)):
                raise Unreachable(f"{where} cannot be reached: {_short(error)}") from error
            raise


_PREFIXES = ("Flight returned unavailable error, with message: ", "failed to connect to all addresses; last error: ")


def _short(error: BaseException) -> str:
    """Returns the network library's message, without its particulars."""
    text = str(error).partition(". gRPC client debug context")[0].partition("\n")[0]
    for prefix in _PREFIXES:
        text = text.removeprefix(prefix)
    return text

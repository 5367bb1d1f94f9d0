"""A client of one service of another host, a server or a part service: its calls, and leases."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from gnnkit import errors
from gnnkit.cluster.leases import LeaseRenewal, Tell
from gnnkit.cluster.network_wire import Broken, Failed, NetworkWire, OutOfTime, Request, TokenRefused, connect
from gnnkit.cluster.parts.protocol import PROTOCOL_VERSION
from gnnkit.cluster.serving.membership import SERVING_VERSION
from gnnkit.errors import GnnkitError, PlanError, SamplingError
from gnnkit.sampling.owners import BadRequest
from gnnkit.waiting import Deadline


def remote_error(where: str, body: Mapping[str, Any]) -> GnnkitError:
    """The error that another host's service has sent, with where it came from."""
    kind: Any = getattr(errors, str(body.get("type")), None)
    own = kind if isinstance(kind, type) and issubclass(kind, GnnkitError) else SamplingError
    hint = body.get("hint")
    return own(f"{where}: {body.get('message')}", hint if isinstance(hint, str) else None)


class Unreachable(Exception):
    """Nobody answers there, or nobody that speaks this language; asking again may help."""


class ServiceClient:
    """A connection to one service, for one call at a time. It connects when it is first used, and again where it broke.

    Args:
        address: Where the service listens.
        token: What it expects.
        ca: See ``gnnkit.cluster.network_wire.connect``.
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
        self._token = token
        self._wire: NetworkWire | None = None

    def ask(self, name: str, args: Mapping[str, Any], timeout_s: float) -> Any:
        """Has the service do or answer something.

        Args:
            name: What.
            args: Its arguments by name, values of the codec; ``version`` is that of servers unless they say another.
            timeout_s: Most seconds that it may take.

        Raises:
            Unreachable: It cannot be asked.
            PlanError: It expects another token.
            GnnkitError: Whatever it refuses with.
        """
        request, deadline = Request.of(name, {"version": SERVING_VERSION, **args}), Deadline(timeout_s)
        with self._lock:
            try:
                if self._wire is None:
                    self._wire = connect(self.address, self._token, self._ca, deadline)
                values = [value for value, _ in self._wire.ask(request, deadline)]
                if len(values) != 1:
                    raise BadRequest(f"{len(values)} messages instead of one")
                return values[0]
            except BaseException as error:
                self.close()
                raise self._explain(error) from error

    def call(self, client: str, name: str, args: Any, timeout_s: float) -> Any:
        """Has the server answer a call, as ``ServerConnection.call`` does over a Unix socket.

        Args:
            client: Who calls.
            name: What is called; see ``gnnkit.cluster.serving.server_api``.
            args: A value of ``codec``.
            timeout_s: Most seconds that it may take.

        Raises:
            Unreachable: See ``ask``.
            PlanError: See ``ask``.
            GnnkitError: What the call ended with.
        """
        return self.ask("call", {"client": client, "name": name, "args": args, "timeout_s": timeout_s}, timeout_s)

    def close(self) -> None:
        """Ends the connection."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def _explain(self, error: BaseException) -> BaseException:
        """The error to raise for what a call ended with."""
        where = self._where
        if isinstance(error, TokenRefused):
            return PlanError(f"{where} refused the token", self._hint)
        if isinstance(error, Failed):
            return remote_error(where, error.body)
        if isinstance(error, OutOfTime):
            return Unreachable(f"{where} does not answer")
        if isinstance(error, (Broken, BadRequest)):
            return Unreachable(f"{where} cannot be reached: {error}")
        return error


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
        ca: See ``ServiceClient``.
        name: See ``LeaseRenewal``.
    """
    hint = "start every host with the same token"

    def tell(other: int) -> Tell:
        client = ServiceClient(addresses[other], token, ca, where=f"host {other} ({addresses[other]})", hint=hint)

        def tell_service(what: str, name: str, of_host: int, timeout_s: float) -> None:
            client.ask(what, {"version": PROTOCOL_VERSION, "fingerprint": fingerprint, "name": name, "host": of_host}, timeout_s)

        return tell_service

    return LeaseRenewal(host, {other: tell(other) for other in addresses}, addresses, for_all=for_all, name=name)

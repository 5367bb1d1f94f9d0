"""The messages "here" and "bye" of leases (``gnnkit.cluster.leases``): actions of the part service, with a small JSON body."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pyarrow.flight as flight

from gnnkit.cluster.leases import LeaseRenewal
from gnnkit.cluster.parts.client import connect, remote_error
from gnnkit.cluster.parts.protocol import PROTOCOL_VERSION, TOKEN_HEADER
from gnnkit.cluster.parts.service import Action
from gnnkit.errors import PlanError
from gnnkit.sampling.owners import BadRequest

_MOST_NAME = 64


class Visits:
    """This process's way to one other host's service; connects when it is first used, and again where a connection has broken.

    Args:
        host: The other host.
        address: Its service's address.
        token: What it expects.
        fingerprint: The store's.
        ca: See ``connect``.
    """

    def __init__(self, host: int, address: str, token: str, fingerprint: str, ca: str | None = None) -> None:
        self._ca = ca
        self._host, self._address, self._fingerprint = host, address, fingerprint
        self._headers = [(TOKEN_HEADER.encode(), token.encode())]
        self._client: Any = None
        self._lock = threading.Lock()

    def tell(self, what: str, name: str, host: int, timeout_s: float) -> None:
        """Tells the service ``what``; see ``presence.Tell``.

        Raises:
            PlanError: The token is another one.
            StoreError: The other host has another store.
            SamplingError: It runs another gnnkit.
            FlightError: It cannot be reached.
        """
        head = {"version": PROTOCOL_VERSION, "fingerprint": self._fingerprint, "name": name, "host": host}
        action = flight.Action(what, json.dumps(head).encode())
        with self._lock:
            try:
                if self._client is None:
                    self._client = connect(self._address, self._ca)
                list(self._client.do_action(action, flight.FlightCallOptions(timeout=timeout_s, headers=self._headers)))
            except BaseException as error:
                if self._client is not None:
                    self._client.close()
                    self._client = None
                where = f"host {self._host} ({self._address})"
                if isinstance(error, flight.FlightUnauthenticatedError):
                    raise PlanError(f"{where} refused the token", "start every host with the same token") from error
                if isinstance(error, flight.FlightServerError) and error.extra_info:
                    raise remote_error(where, bytes(error.extra_info)) from error
                raise


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
    visits = {other: Visits(other, address, token, fingerprint, ca) for other, address in addresses.items()}
    return LeaseRenewal(host, {other: visit.tell for other, visit in visits.items()}, addresses, for_all=for_all, name=name)


def visit_actions(check: Callable[[dict[str, Any]], None], heard: Callable[[str, str, int], None]) -> dict[str, Action]:
    """The service's side: its actions "here" and "bye".

    Args:
        check: Raises where a pending is one of another run.
        heard: Called with "here" or "bye", a process's name and its host; from any thread.
    """

    def visit(what: str, head: dict[str, Any]) -> dict[str, Any]:
        name, host = head.get("name"), head.get("host")
        if not isinstance(name, str) or not 0 < len(name) <= _MOST_NAME or isinstance(host, bool) or not isinstance(host, int) or host < 0:
            raise BadRequest("the visit names nobody")
        check(head)
        heard(what, name, host)
        return {}

    return {what: partial(visit, what) for what in ("here", "bye")}

"""Clients of services over TCP, and the connections that they ask over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from gnnkit import errors
from gnnkit.cluster.network.requests import Requests
from gnnkit.cluster.network.wire import Broken, Failed, NetworkWire, OutOfTime, TokenRefused, connect
from gnnkit.errors import GnnkitError, PlanError, SamplingError
from gnnkit.sampling.owners import BadRequest
from gnnkit.waiting import Deadline


def remote_error(where: str, body: Mapping[str, Any]) -> GnnkitError:
    """The error that another host's service has sent, with where it came from."""
    kind: Any = getattr(errors, str(body.get("type")), None)
    own = kind if isinstance(kind, type) and issubclass(kind, GnnkitError) else SamplingError
    hint = body.get("hint")
    return own(f"{where}: {body.get('message')}", hint if isinstance(hint, str) else None)


T = TypeVar("T")
# A connection that breaks sooner than this after a call began was broken before: the service has made room for others, or was started
# again.
_STALE_S = 1.0


def is_stale(deadline: Deadline, is_new: bool) -> bool:
    """Whether a connection that broke may be one from before the service was started again."""
    return not is_new and deadline.elapsed_s < _STALE_S


def only_value(values: Iterable[T]) -> T:
    """The one value of an answer.

    Raises:
        BadRequest: There are none, or several.
    """
    found = list(values)
    if len(found) != 1:
        raise BadRequest(f"{len(found)} messages instead of one")
    return found[0]


class Unreachable(Exception):
    """No service answers there, or one that speaks another protocol; asking again may help."""


class ServiceClient:
    """Connections to one service, made when they are needed; any number of threads may use it. Each connection has one call at a time.

    Args:
        address: Where the service listens.
        token: What it expects.
        ca: See ``gnnkit.cluster.network.wire.connect``.
        fingerprint: Of the store that requests are about; None where they are about none.
        where: The service in messages; None: the server at its address.
        hint: What to do where it expects another token.
    """

    def __init__(
        self,
        address: str,
        token: str,
        ca: str | None,
        fingerprint: str | None = None,
        *,
        where: str | None = None,
        hint: str = "the servers' token is in the file that they were started with",
    ) -> None:
        self.address, self._token, self._ca, self._fingerprint = address, token, ca, fingerprint
        self._where, self._hint = where or f"the server at {address}", hint
        self._lock = threading.Lock()
        self._idle: list[NetworkWire] = []

    def ask(self, request: Requests, within_s: float, /, **args: Any) -> Any:
        """Has the service do or answer something.

        Args:
            request: What.
            within_s: Most seconds that it may take.
            **args: Its arguments, values of the codec.

        Raises:
            Unreachable: It cannot be asked.
            PlanError: It expects another token.
            GnnkitError: Whatever it refuses with.
        """
        ready, deadline = request.ready(args, self._fingerprint, within_s), Deadline(within_s)
        try:
            return self.use(lambda wire: only_value(value for value, _ in wire.ask(ready, deadline)), deadline)
        except BaseException as error:
            raise self._explain(error) from error

    def use(self, work: Callable[[NetworkWire], T], deadline: Deadline, may_ask_again: Callable[[Deadline, bool], bool] = is_stale) -> T:
        """Does something over a connection; over another one where that broke.

        Args:
            work: What is done, perhaps more than once.
            deadline: Until when.
            may_ask_again: Whether it is done again, given the deadline and whether the connection that broke was made for it.

        Raises:
            Broken: It is not done again.
            Exception: See ``connect``, and what ``work`` raises.
        """
        with self._lock:
            wire = self._idle.pop() if self._idle else None
        is_new = wire is None
        while True:
            try:
                if wire is None:
                    wire = connect(self.address, self._token, self._ca, deadline)
                answer = work(wire)
            except BaseException as error:
                if wire is not None:
                    wire.close()
                if not isinstance(error, Broken) or not may_ask_again(deadline, is_new):
                    raise
                self.close()  # the others are as old
                wire, is_new = None, True
            else:
                with self._lock:
                    self._idle.append(wire)
                return answer

    def close(self) -> None:
        """Ends the connections that are not in use."""
        with self._lock:
            idle, self._idle = self._idle, []
        for wire in idle:
            wire.close()

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

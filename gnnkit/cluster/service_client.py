"""Clients of services of other hosts: what is asked of owners of parts, and the connections that it is asked over.

Ids are narrowed to 32 bits where the graph's fit. Edges are answered with arrays under names, rows as bytes, message by message
(``RowsRequest.messages``).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gnnkit import errors
from gnnkit.cluster.membership import SERVING_VERSION, LeaseRenewal, Tell
from gnnkit.cluster.network_wire import Broken, Failed, NetworkWire, OutOfTime, Request, TokenRefused, connect
from gnnkit.errors import GnnkitError, PlanError, SamplingError
from gnnkit.sampling.owners import Answer, BadRequest, Expansion, Picks, Question, RowsRequest, Variates
from gnnkit.waiting import Deadline

# Changes with the meaning of messages: hosts that run different versions refuse each other.
PROTOCOL_VERSION = 6
_LARGEST_INT32 = (1 << 31) - 1
# Fields of ``Expansion`` with a number for each node.
_BY_NODE = ("roots", "times", "since")
_QUESTION_ARRAYS = ("nodes", "others", "node_roots", "other_roots")


@contextlib.contextmanager
def _reading(what: str) -> Iterator[None]:
    """Turns the errors of reading a value of another shape into ``BadRequest``."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise BadRequest(f"the {what} cannot be read: {error}") from error


def _list(values: Any) -> NDArray[Any]:
    """An array of integers in one dimension, as this machine has them.

    Raises:
        BadRequest: It is none.
    """
    if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind not in "iu" or not values.dtype.isnative:
        raise BadRequest(f"there is {_shown(values)} in place of a list of integers")
    return values


def _shown(value: Any) -> str:
    return f"an array of {value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"


def ids_of(values: Any) -> NDArray[np.int64]:
    """int64 ``[n]``: a list of ids that has arrived.

    Raises:
        BadRequest: It is none.
    """
    return _list(values).astype(np.int64)


def narrowed(ids: NDArray[Any], largest: int) -> NDArray[Any]:
    """Ids in the narrowest type that holds ``largest``."""
    return ids.astype(np.int32) if largest <= _LARGEST_INT32 else ids


def _to_args(request: Expansion | Question | RowsRequest, fingerprint: str, **own: Any) -> dict[str, Any]:
    """A request by the names of its fields; ``own`` are those that travel in another form."""
    named = {field.name: getattr(request, field.name) for field in fields(request)}
    return {"version": PROTOCOL_VERSION, "fingerprint": fingerprint, **named, **own}


def expand_to_args(request: Expansion, fingerprint: str, num_nodes: list[int]) -> dict[str, Any]:
    """A request for edges; ``num_nodes`` of each type decide the width of ids."""
    nodes = {t: narrowed(nodes, num_nodes[t]) for t, nodes in request.nodes.items()}
    return _to_args(request, fingerprint, nodes=nodes, variates=None if request.variates is None else astuple(request.variates))


def expand_from_args(args: Mapping[str, Any]) -> Expansion:
    """Reverses ``expand_to_args``.

    Raises:
        BadRequest: Something is missing or of the wrong kind.
    """
    with _reading("request"):
        fan_outs = ids_of(args["fan_outs"])
        if fan_outs.size and not -1 <= fan_outs.min() <= fan_outs.max() <= _LARGEST_INT32:
            raise BadRequest("a fan-out is out of range")
        flags = bool(args["replace"]), bool(args["weighted"]), bool(args["last"])
        nodes = {int(t): ids_of(ids) for t, ids in args["nodes"].items()}
        given = (args[name] for name in _BY_NODE)
        roots, times, since = (None if values is None else {t: ids_of(values[t]) for t in nodes} for values in given)
        positions = tuple(map(bool, args["wants_position"]))
        key = int(args["key"]) & ((1 << 64) - 1)
        return Expansion(key, int(args["hop"]), fan_outs, nodes, *flags, roots, times, since, _variates_from(args["variates"]), positions)


def _variates_from(value: Any) -> Variates | None:
    if value is None:
        return None
    *keys, is_shared = value
    key, next_key, last_hash = (int(number) & ((1 << 64) - 1) for number in keys)
    return Variates(key, next_key, last_hash, bool(is_shared))


def picks_to_value(answer: Mapping[int, Picks], generation: int, num_neighbors: list[int], num_edges: list[int]) -> dict[str, Any]:
    """An answer about edges, in memory of its own; nodes and edges of each edge type decide the width of ids."""
    picked = {
        r: (
            narrowed(picks.counts, len(picks.neighbors)),
            narrowed(picks.neighbors, num_neighbors[r]),
            None if picks.positions is None else narrowed(picks.positions, num_edges[r]),
        )
        for r, picks in answer.items()
    }
    return {"generation": generation, "picks": {r: tuple(map(_own, arrays)) for r, arrays in picked.items()}}


def _own(values: NDArray[Any] | None) -> NDArray[Any] | None:
    """An array, or a copy of one that may still lie in the scratch of the thread that answered."""
    return values if values is None or values.base is None else values.copy()


def picks_from_value(value: Any) -> tuple[int, dict[int, Picks]]:
    """Reverses ``picks_to_value``: the generation of the service, and its answer.

    Raises:
        BadRequest: The value is none of its.
    """
    with _reading("answer"):
        found = {}
        for r, (counts, neighbors, positions) in value["picks"].items():
            found[int(r)] = Picks(_list(counts), _list(neighbors), None if positions is None else _list(positions))
        return int(value["generation"]), found


def question_to_args(question: Question, fingerprint: str) -> dict[str, Any]:
    """A question about edges."""
    return _to_args(question, fingerprint)


def question_from_args(args: Mapping[str, Any]) -> Question:
    """Reverses ``question_to_args``.

    Raises:
        BadRequest: Something is missing or of the wrong kind.
    """
    with _reading("request"):
        what = args["what"]
        if what not in ("degrees", "has_edges", "induce", "weights"):
            raise BadRequest(f"there is no question {what!r}")
        given = {name: ids_of(args[name]) for name in _QUESTION_ARRAYS}
        return Question(what, tuple(map(int, args["relations"])), wants_position=bool(args["wants_position"]), **given)


def answer_to_value(answer: Answer) -> dict[str, Any]:
    """An answer to a question, in memory of its own."""
    return {name: _own(values) for name, values in answer.items()}


def answer_from_value(value: Any) -> Answer:
    """Reverses ``answer_to_value``.

    Raises:
        BadRequest: The value is none of its.
    """
    with _reading("answer"):
        return {str(name): _list(values) for name, values in value.items()}


def rows_to_args(request: RowsRequest, fingerprint: str, num_rows: list[int]) -> dict[str, Any]:
    """A request for rows; the number of rows of each type decides the width of ids."""
    return _to_args(request, fingerprint, lists=[(bounds, narrowed(ids, num_rows[bounds])) for bounds, ids in request.lists])


def rows_from_args(args: Mapping[str, Any]) -> RowsRequest:
    """Reverses ``rows_to_args``.

    Raises:
        BadRequest: Something is missing or of the wrong kind.
    """
    with _reading("request"):
        lists = tuple((int(bounds), ids_of(ids)) for bounds, ids in args["lists"])
        sections = tuple((int(table), int(which), int(width)) for table, which, width in args["sections"])
    return RowsRequest(lists, sections)


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
        self.address, self._token, self._ca = address, token, ca
        self._where, self._hint = where or f"the server at {address}", hint
        self._lock = threading.Lock()
        self._idle: list[NetworkWire] = []

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
        try:
            return self.use(lambda wire: only_value(value for value, _ in wire.ask(request, deadline)), deadline)
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

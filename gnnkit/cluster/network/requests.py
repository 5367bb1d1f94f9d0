"""Requests between processes by name: the table of all of them, what answers them, and how their arguments and answers travel.

A request is answered by the method of its name of the class that the table names; that method says what its arguments and its answer are.
A client names the row of the table, which also says whether the store's fingerprint and the deadline go along.

Ids are narrowed to 32 bits where the graph's fit. Edges are answered with arrays under names, rows as bytes, message by message
(``RowsRequest.messages``).
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass, fields
from enum import Enum, unique
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gnnkit.cluster.network.codec import PROTOCOL_VERSION
from gnnkit.cluster.network.wire import NotYet, Request
from gnnkit.errors import GnnkitError, PlanError, StoreError
from gnnkit.sampling.owners import Answer, BadRequest, Expansion, Picks, Question, RowsRequest, Variates


@dataclass(frozen=True)
class RequestKind:
    """Properties that some requests have in common.

    Attributes:
        answered_by: The class below ``gnnkit.cluster`` whose methods answer them.
        asked_of: Who answers them: "services", which are part services and servers, or "servers", both over TCP; "calls" are answered by
            servers, over their Unix sockets and, within the request "call", over TCP.
        of_store: Whether they say which store they are about, and are refused where the other side has another one.
        answered: "at once", in the connection's thread; "in turn", which may take a while; or "later": what they wait for may be long in
            coming, and so the deadline of the one who asks travels with them.
    """

    answered_by: str
    asked_of: Literal["services", "servers", "calls"]
    of_store: bool
    answered: Literal["at once", "in turn", "later"]

    def check(self, args: Mapping[str, Any], fingerprint: str) -> None:
        """Refuses requests of another gnnkit, and about another graph.

        Raises:
            PlanError: The other side runs another gnnkit.
            BadRequest: Likewise, and asks about a store.
            StoreError: It has another store.
        """
        version = args.get("version")
        if version != PROTOCOL_VERSION and self.of_store:
            raise BadRequest(f"the request is of version {version!r}, this gnnkit answers {PROTOCOL_VERSION}")
        if version != PROTOCOL_VERSION:
            what = f"the request is of version {version!r}, and these servers answer {PROTOCOL_VERSION}"
            raise PlanError(what, "run the same gnnkit on every machine")
        if self.of_store and args.get("fingerprint") != fingerprint:
            raise StoreError(
                f"hosts have different stores: this one's fingerprint is {fingerprint}, the request's {args.get('fingerprint')}",
                "copy the parts of one and the same store to every host",
            )


PARTS = RequestKind("parts.answers:Answers", "services", of_store=True, answered="in turn")
LEASES = RequestKind("membership:LeaseRequests", "services", of_store=True, answered="at once")
MEMBERS = RequestKind("serving.network:Network", "servers", of_store=False, answered="at once")
CALLS = RequestKind("serving.network:Network", "servers", of_store=False, answered="later")
LOADERS = RequestKind("serving.remote_loaders:RemoteLoaders", "servers", of_store=True, answered="later")
STATUS = RequestKind("serving.loop:ServerLoop", "calls", of_store=False, answered="at once")
READS = RequestKind("serving.store_api:StoreApi", "calls", of_store=False, answered="in turn")
SAMPLING = RequestKind("serving.server_api:SamplingApi", "calls", of_store=False, answered="later")


@unique
class Requests(Enum):
    """The table: every request by its name, with its kind and what it is about."""

    expand = PARTS, "the edges that nodes draw in one hop"
    question = PARTS, "facts about stored edges, without a draw"
    rows = PARTS, "features and labels"
    here = LEASES, "a process needs the service"
    bye = LEASES, "it does not any more"
    membership = MEMBERS, "the servers of the run"
    announce = MEMBERS, "a server is there"
    file = MEMBERS, "a file of the store's outline"
    call = CALLS, "one of the calls below, made from another host"
    add_loader = LOADERS, "a loader of another host comes in with its plan"
    walk = LOADERS, "the structure of one of its batches"
    remove_loader = LOADERS, "it leaves"
    status = STATUS, "the server, its workers and its clients"
    ablp_input = READS, "anchors and their labels"
    describe = READS, "what a client has to know of the graph"
    device_count = READS, "CUDA devices"
    edge_book = READS, "which part owns which edge"
    edge_index = READS, "the ends of the server's edges"
    edge_size = READS, "numbers of nodes at the ends of an edge type"
    feature_shape = READS, "the shape of the server's features"
    free_ports = READS, "ports of the host"
    ids_in_file = READS, "ids in a file of the host"
    node_book = READS, "which part owns which node"
    node_ids = READS, "the server's nodes, or those of a split"
    node_partition_ids = READS, "the parts of some nodes"
    node_rows = READS, "features or labels of some nodes"
    init_backend = SAMPLING, "a sampling configuration gets a number"
    register = SAMPLING, "an input of it"
    create = SAMPLING, "both in one"
    start_epoch = SAMPLING, "an epoch of an input begins"
    fetch = SAMPLING, "the next batch"
    destroy = SAMPLING, "an input is given up"
    give_up = SAMPLING, "everything is"

    def __init__(self, kind: RequestKind, about: str) -> None:
        self.kind, self.about = kind, about

    def ready(self, args: Mapping[str, Any], fingerprint: str | None, timeout_s: float) -> Request:
        """The request with its arguments and what else its kind asks for, ready to be sent over TCP.

        Args:
            args: Its arguments by name, values of the codec.
            fingerprint: That of the store, where it is about one.
            timeout_s: Most seconds that it may take; travels with it where it is answered later.

        Raises:
            PlanError: There is something in it that cannot be sent.
        """
        assert self.kind.asked_of != "calls", f"{self.name} is asked over a Unix socket, or within {Requests.call.name}"
        limit = {"timeout_s": timeout_s} if self.kind.answered == "later" else {}
        return Request.of(self.name, {**limit, **args}, fingerprint if self.kind.of_store else None)


class Answerers:
    """The objects that answer the requests of a service over TCP; may grow while it is asked. Called from any thread.

    Args:
        fingerprint: The store's.
        kinds: The requests that it answers, or will once it can.
    """

    def __init__(self, fingerprint: str, *kinds: RequestKind) -> None:
        self._fingerprint = fingerprint
        self._objects: dict[RequestKind, object] = dict.fromkeys(kinds)

    def add(self, answerer: object, *kinds: RequestKind) -> None:
        """Has requests answered by an object, from now on."""
        self._objects |= dict.fromkeys(kinds, answerer)

    def __call__(self, name: str, args: dict[str, Any]) -> Any:
        """Answers a request.

        Raises:
            BadRequest: There is none of this name.
            NotYet: It cannot be answered yet.
            GnnkitError: What it is refused with.
        """
        request = Requests.__members__.get(name)
        if request is None or request.kind not in self._objects:
            raise BadRequest(f"there is no call {name!r}")
        answerer = self._objects[request.kind]
        if answerer is None:
            raise NotYet("the server is not there yet")
        request.kind.check(args, self._fingerprint)
        own = {word: value for word, value in args.items() if word not in ("version", "fingerprint")}
        return called(getattr(answerer, name), name, own)


def called(function: Callable[..., Any], name: str, args: Any) -> Any:
    """Calls the function that answers a request with the arguments that have come.

    Raises:
        PlanError: They are not those that it takes.
    """
    try:
        return function(**args)
    except TypeError:
        try:
            inspect.signature(function).bind(**args)
        except TypeError as error:
            raise PlanError(f"the call {name!r} has other arguments: {error}", "run the same gnnkit on servers and clients") from error
        raise


class UnknownLoader(GnnkitError):
    """The server knows nothing of the loader: it has been started again, or has not heard of the client for long. Add it again."""


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


def to_args(request: Expansion | Question | RowsRequest, num_rows: list[int]) -> dict[str, Any]:
    """A request by the names of its fields.

    Args:
        request: The request.
        num_rows: Nodes of every type and edges of every type, as in ``GraphTables.row_bounds``: they decide the width of ids.
    """
    found = {field.name: getattr(request, field.name) for field in fields(request)}
    if isinstance(request, Expansion):
        found["nodes"] = {t: narrowed(nodes, num_rows[t]) for t, nodes in request.nodes.items()}
        found["variates"] = None if request.variates is None else astuple(request.variates)
    elif isinstance(request, RowsRequest):
        found["lists"] = [(bounds, narrowed(ids, num_rows[bounds])) for bounds, ids in request.lists]
    return found


def expand_from_args(args: Mapping[str, Any]) -> Expansion:
    """Reverses ``to_args``, of a request for edges.

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


def picks_to_value(answer: Mapping[int, Picks], num_neighbors: list[int], num_edges: list[int]) -> dict[int, Any]:
    """An answer about edges, in memory of its own; nodes and edges of each edge type decide the width of ids."""
    picked = {
        r: (
            narrowed(picks.counts, len(picks.neighbors)),
            narrowed(picks.neighbors, num_neighbors[r]),
            None if picks.positions is None else narrowed(picks.positions, num_edges[r]),
        )
        for r, picks in answer.items()
    }
    return {r: tuple(map(_own, arrays)) for r, arrays in picked.items()}


def _own(values: NDArray[Any] | None) -> NDArray[Any] | None:
    """An array, or a copy of one that may still lie in the scratch of the thread that answered."""
    return values if values is None or values.base is None else values.copy()


def picks_from_value(value: Any) -> dict[int, Picks]:
    """Reverses ``picks_to_value``.

    Raises:
        BadRequest: The value is none of its.
    """
    with _reading("answer"):
        found = {}
        for r, (counts, neighbors, positions) in value.items():
            found[int(r)] = Picks(_list(counts), _list(neighbors), None if positions is None else _list(positions))
        return found


def question_from_args(args: Mapping[str, Any]) -> Question:
    """Reverses ``to_args``, of a question about edges.

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


def rows_from_args(args: Mapping[str, Any]) -> RowsRequest:
    """Reverses ``to_args``, of a request for rows.

    Raises:
        BadRequest: Something is missing or of the wrong kind.
    """
    with _reading("request"):
        lists = tuple((int(bounds), ids_of(ids)) for bounds, ids in args["lists"])
        sections = tuple((int(table), int(which), int(width)) for table, which, width in args["sections"])
    return RowsRequest(lists, sections)

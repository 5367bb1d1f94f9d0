"""The requests between a sampling process and a part service, as arguments of calls, and their answers: values of the codec.

Ids are narrowed to 32 bits where the graph's fit. Edges are answered with arrays under names, rows as bytes, message by message
(``RowsRequest.messages``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.sampling.owners import Answer, BadRequest, Expansion, Picks, Question, RowsRequest
from gnnkit.sampling.variates import Variates

# Changes with the meaning of messages: hosts that run different versions refuse each other.
PROTOCOL_VERSION = 4
_LARGEST_INT32 = (1 << 31) - 1
# Fields of ``Expansion`` with a number for each node.
_BY_NODE = ("roots", "times", "since")
_QUESTION_ARRAYS = ("nodes", "others", "node_roots", "other_roots")
# What reading a value of another shape may end with.
_MISFITS = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)


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


def expand_to_args(request: Expansion, fingerprint: str, num_nodes: list[int]) -> dict[str, Any]:
    """A request for edges; ``num_nodes`` of each type decide the width of ids."""
    return {
        "version": PROTOCOL_VERSION,
        "fingerprint": fingerprint,
        "key": request.key,
        "hop": request.hop,
        "fan_outs": request.fan_outs,
        "replace": request.replace,
        "weighted": request.weighted,
        "last": request.last,
        "positions": request.wants_position,
        "variates": None if request.variates is None else astuple(request.variates),
        "nodes": {t: narrowed(nodes, num_nodes[t]) for t, nodes in request.nodes.items()},
        **{name: getattr(request, name) for name in _BY_NODE},
    }


def expand_from_args(args: Mapping[str, Any]) -> Expansion:
    """Reverses ``expand_to_args``.

    Raises:
        BadRequest: Something is missing or of the wrong kind.
    """
    try:
        fan_outs = ids_of(args["fan_outs"])
        if fan_outs.size and not -1 <= fan_outs.min() <= fan_outs.max() <= _LARGEST_INT32:
            raise BadRequest("a fan-out is out of range")
        flags = bool(args["replace"]), bool(args["weighted"]), bool(args["last"])
        nodes = {int(t): ids_of(ids) for t, ids in args["nodes"].items()}
        given = (args[name] for name in _BY_NODE)
        roots, times, since = (None if values is None else {t: ids_of(values[t]) for t in nodes} for values in given)
        positions = tuple(map(bool, args["positions"]))
        key = int(args["key"]) & ((1 << 64) - 1)
        return Expansion(key, int(args["hop"]), fan_outs, nodes, *flags, roots, times, since, _variates_from(args["variates"]), positions)
    except _MISFITS as error:
        raise BadRequest(f"the request cannot be read: {error}") from error


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
    """An array, or a copy of one that may still lie in the scratch of whoever answered."""
    return values if values is None or values.base is None else values.copy()


def picks_from_value(value: Any) -> tuple[int, dict[int, Picks]]:
    """Reverses ``picks_to_value``: the generation of the service, and its answer.

    Raises:
        BadRequest: The value is none of its.
    """
    try:
        found = {}
        for r, (counts, neighbors, positions) in value["picks"].items():
            found[int(r)] = Picks(_list(counts), _list(neighbors), None if positions is None else _list(positions))
        return int(value["generation"]), found
    except _MISFITS as error:
        raise BadRequest(f"the answer cannot be read: {error}") from error


def question_to_args(question: Question, fingerprint: str) -> dict[str, Any]:
    """A question about edges."""
    return {
        "version": PROTOCOL_VERSION,
        "fingerprint": fingerprint,
        "question": question.what,
        "relations": question.relations,
        "positions": question.wants_position,
        **{name: getattr(question, name) for name in _QUESTION_ARRAYS},
    }


def question_from_args(args: Mapping[str, Any]) -> Question:
    """Reverses ``question_to_args``.

    Raises:
        BadRequest: Something is missing or of the wrong kind.
    """
    try:
        what = args["question"]
        if what not in ("degrees", "has_edges", "induce", "weights"):
            raise BadRequest(f"there is no question {what!r}")
        given = {name: ids_of(args[name]) for name in _QUESTION_ARRAYS}
        return Question(what, tuple(map(int, args["relations"])), wants_position=bool(args["positions"]), **given)
    except _MISFITS as error:
        raise BadRequest(f"the request cannot be read: {error}") from error


def answer_to_value(answer: Answer) -> dict[str, Any]:
    """An answer to a question, in memory of its own."""
    return {name: _own(values) for name, values in answer.items()}


def answer_from_value(value: Any) -> Answer:
    """Reverses ``answer_to_value``.

    Raises:
        BadRequest: The value is none of its.
    """
    try:
        return {str(name): _list(values) for name, values in value.items()}
    except _MISFITS as error:
        raise BadRequest(f"the answer cannot be read: {error}") from error


def rows_to_args(request: RowsRequest, fingerprint: str, num_rows: list[int]) -> dict[str, Any]:
    """A request for rows; the number of rows of each type decides the width of ids."""
    return {
        "version": PROTOCOL_VERSION,
        "fingerprint": fingerprint,
        "lists": [(bounds, narrowed(ids, num_rows[bounds])) for bounds, ids in request.lists],
        "sections": request.sections,
    }


def rows_from_args(args: Mapping[str, Any]) -> RowsRequest:
    """Reverses ``rows_to_args``.

    Raises:
        BadRequest: Something is missing or of the wrong kind.
    """
    try:
        lists = tuple((int(bounds), ids_of(ids)) for bounds, ids in args["lists"])
        sections = tuple((int(table), int(which), int(width)) for table, which, width in args["sections"])
    except _MISFITS as error:
        raise BadRequest(f"the request cannot be read: {error}") from error
    return RowsRequest(lists, sections)

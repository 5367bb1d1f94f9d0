"""The messages between a sampling process and a part service: typed arrays under names, with a JSON head.

A request is a Flight ticket: an Arrow stream of one record batch with one row, each array a list in a column of its own, and the head
in the schema's metadata. Edges are answered in the same form, rows as a stream of batches of bytes (``RowsRequest.messages``). Ids are
narrowed to 32 bits where the graph's fit. Arrow's formats hold numbers only: nothing that arrives is unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gnnkit.sampling.owners import Answer, BadRequest, Expansion, Picks, Question, RowsRequest
from gnnkit.sampling.variates import Variates

# Changes with the meaning of messages: hosts that run different versions refuse each other.
PROTOCOL_VERSION = 3
TOKEN_HEADER = "authorization"
# Who calls, for whom work under way is counted.
CLIENT_HEADER = "gnnkit-client"
_HEAD = b"gnnkit"
_LARGEST_INT32 = (1 << 31) - 1
# Fields of ``Expansion`` with a number for each node.
_BY_NODE = ("roots", "times", "since")
_QUESTION_ARRAYS = ("nodes", "others", "node_roots", "other_roots")

ROWS_SCHEMA = pa.schema([("rows", pa.uint8())])


def arrow_array(values: NDArray[Any]) -> pa.Array:
    """The numbers of an array as Arrow's, in the same memory; ``pa.array`` would import pandas first, for a third of a second."""
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def one_list(values: NDArray[Any]) -> pa.LargeListArray:
    """A column of one row, the numbers of an array; they are not copied."""
    return pa.LargeListArray.from_arrays(arrow_array(np.array([0, len(values)], np.int64)), arrow_array(values))


def listed(column: pa.LargeListArray) -> NDArray[Any]:
    """The numbers of all of a column's lists, in the same memory; ``to_numpy`` would import pandas first.

    Raises:
        BadRequest: There are nulls among them.
    """
    values = column.flatten()
    if values.null_count:
        raise BadRequest("there are numbers missing in it")
    dtype = np.dtype(values.type.to_pandas_dtype())
    if not len(values):
        return np.empty(0, dtype)
    return np.frombuffer(values.buffers()[1], dtype, len(values), values.offset * dtype.itemsize)


def pack(head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> pa.RecordBatch:
    """A record batch of one row, of none where there are no arrays; the arrays are not copied."""
    columns = [one_list(np.ascontiguousarray(values)) for values in arrays.values()]
    metadata = {_HEAD: json.dumps(head, separators=(",", ":")).encode()}
    schema = pa.schema([pa.field(name, column.type) for name, column in zip(arrays, columns, strict=True)], metadata)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def unpack(batch: pa.RecordBatch) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Reverses ``pack``; arrays are copied only where memory is not aligned.

    Raises:
        BadRequest: The batch is none of ``pack``'s.
    """
    try:
        batch.validate(full=True)
        head = json.loads((batch.schema.metadata or {})[_HEAD])
        if batch.num_rows != (1 if batch.num_columns else 0) or not isinstance(head, dict):
            raise BadRequest("not one row with a head")
        arrays = {}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if not pa.types.is_large_list(column.type) or not pa.types.is_integer(column.type.value_type) or column.null_count:
                raise BadRequest(f"{name} is {column.type}, not a list of integers")
            arrays[name] = np.require(listed(column), requirements=["C", "A"])
    except (pa.ArrowException, KeyError, RecursionError, ValueError) as error:
        raise BadRequest(f"the message cannot be read: {error}") from error
    return head, arrays


def to_ticket(head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """A request as bytes."""
    batch, sink = pack(head, arrays), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def from_ticket(ticket: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Reverses ``to_ticket``.

    Raises:
        BadRequest: The bytes are none of its.
    """
    try:
        with pa.ipc.open_stream(pa.py_buffer(ticket)) as reader:
            batch = reader.read_next_batch()
    except (pa.ArrowException, StopIteration, OSError) as error:
        raise BadRequest(f"the message cannot be read: {error}") from error
    return unpack(batch)


def narrowed(ids: NDArray[Any], largest: int) -> NDArray[Any]:
    """Ids in the narrowest type that holds ``largest``."""
    return ids.astype(np.int32) if largest <= _LARGEST_INT32 else ids


def expand_to_ticket(request: Expansion, fingerprint: str, num_nodes: list[int]) -> bytes:
    """A request for edges; ``num_nodes`` of each type decide the width of ids."""
    head = {
        "what": "expand",
        "version": PROTOCOL_VERSION,
        "fingerprint": fingerprint,
        "key": request.key,
        "hop": request.hop,
        "fan_outs": request.fan_outs.tolist(),
        "replace": request.replace,
        "weighted": request.weighted,
        "last": request.last,
        "positions": request.wants_position,
        "variates": None if request.variates is None else astuple(request.variates),
    }
    arrays: dict[str, NDArray[Any]] = {str(t): narrowed(nodes, num_nodes[t]) for t, nodes in request.nodes.items()}
    by_node = {name: getattr(request, name) for name in _BY_NODE}
    for name, given in by_node.items():
        arrays.update({} if given is None else {f"{name}/{t}": values for t, values in given.items()})
    return to_ticket(head | {name: given is not None for name, given in by_node.items()}, arrays)


def expand_from_ticket(head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Expansion:
    """Reverses ``expand_to_ticket``.

    Raises:
        BadRequest: Something is missing or of the wrong kind.
    """
    try:
        fan_outs = np.array(head["fan_outs"], np.int64).reshape(-1)
        if fan_outs.size and not -1 <= fan_outs.min() <= fan_outs.max() <= _LARGEST_INT32:
            raise BadRequest("a fan-out is out of range")
        flags = bool(head["replace"]), bool(head["weighted"]), bool(head["last"])
        nodes = {int(name): ids.astype(np.int64) for name, ids in arrays.items() if "/" not in name}
        roots, times, since = ({t: arrays[f"{name}/{t}"].astype(np.int64) for t in nodes} if head[name] else None for name in _BY_NODE)
        positions = tuple(map(bool, head["positions"]))
        key = int(head["key"]) & ((1 << 64) - 1)
        return Expansion(key, int(head["hop"]), fan_outs, nodes, *flags, roots, times, since, _variates_from(head["variates"]), positions)
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise BadRequest(f"the request cannot be read: {error}") from error


def _variates_from(value: Any) -> Variates | None:
    if value is None:
        return None
    *keys, is_shared = value
    key, next_key, last_hash = (int(number) & ((1 << 64) - 1) for number in keys)
    return Variates(key, next_key, last_hash, bool(is_shared))


def picks_to_batch(answer: Mapping[int, Picks], generation: int, num_neighbors: list[int], num_edges: list[int]) -> pa.RecordBatch:
    """An answer about edges, in memory of its own; nodes and edges of each edge type decide the width of ids."""
    arrays = {}
    for r, picks in answer.items():
        arrays[f"counts/{r}"] = narrowed(picks.counts, len(picks.neighbors))
        arrays[f"neighbors/{r}"] = narrowed(picks.neighbors, num_neighbors[r])
        if picks.positions is not None:
            arrays[f"positions/{r}"] = narrowed(picks.positions, num_edges[r])
    # What was not narrowed still lies in the scratch of whoever answered.
    return pack({"generation": generation}, {name: values if values.base is None else values.copy() for name, values in arrays.items()})


def picks_from_batch(batch: pa.RecordBatch) -> tuple[int, dict[int, Picks]]:
    """Reverses ``picks_to_batch``: the generation of the service, and its answer.

    Raises:
        BadRequest: The batch is none of its.
    """
    head, arrays = unpack(batch)
    try:
        indices = sorted({int(name.partition("/")[2]) for name in arrays})
        picks = {r: Picks(arrays[f"counts/{r}"], arrays[f"neighbors/{r}"], arrays.get(f"positions/{r}")) for r in indices}
        return int(head["generation"]), picks
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise BadRequest(f"the answer cannot be read: {error}") from error


def question_to_ticket(question: Question, fingerprint: str) -> bytes:
    """A question about edges."""
    head = {
        "what": "question",
        "version": PROTOCOL_VERSION,
        "fingerprint": fingerprint,
        "question": question.what,
        "relations": question.relations,
        "positions": question.wants_position,
    }
    arrays = {name: getattr(question, name) for name in _QUESTION_ARRAYS}
    return to_ticket(head, arrays)


def question_from_ticket(head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Question:
    """Reverses ``question_to_ticket``.

    Raises:
        BadRequest: Something is missing or of the wrong kind.
    """
    try:
        what = head["question"]
        if what not in ("degrees", "has_edges", "induce", "weights"):
            raise BadRequest(f"there is no question {what!r}")
        given = {name: arrays[name].astype(np.int64) for name in _QUESTION_ARRAYS}
        return Question(what, tuple(map(int, head["relations"])), wants_position=bool(head["positions"]), **given)
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise BadRequest(f"the request cannot be read: {error}") from error


def answer_to_batch(answer: Answer) -> pa.RecordBatch:
    """An answer to a question, in memory of its own."""
    # What was looked up may still lie in the scratch of whoever answered.
    return pack({}, {name: values if values.base is None else values.copy() for name, values in answer.items()})


def answer_from_batch(batch: pa.RecordBatch) -> Answer:
    """Reverses ``answer_to_batch``.

    Raises:
        BadRequest: The batch is none of its.
    """
    return unpack(batch)[1]


def rows_to_ticket(request: RowsRequest, fingerprint: str, num_rows: list[int]) -> bytes:
    """A request for rows; the number of rows of each type decides the width of ids."""
    head = {
        "what": "rows",
        "version": PROTOCOL_VERSION,
        "fingerprint": fingerprint,
        "lists": [bounds for bounds, _ in request.lists],
        "sections": request.sections,
    }
    return to_ticket(head, {str(number): narrowed(ids, num_rows[bounds]) for number, (bounds, ids) in enumerate(request.lists)})


def rows_from_ticket(head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> RowsRequest:
    """Reverses ``rows_to_ticket``.

    Raises:
        BadRequest: Something is missing or of the wrong kind.
    """
    try:
        lists = tuple((int(bounds), arrays[str(number)].astype(np.int64)) for number, bounds in enumerate(head["lists"]))
        sections = tuple((int(table), int(which), int(width)) for table, which, width in head["sections"])
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise BadRequest(f"the request cannot be read: {error}") from error
    return RowsRequest(lists, sections)

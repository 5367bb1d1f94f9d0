"""Keys of nodes on disk: collected, put in order, checked for doubles, and found for the ends of edges, in bounded memory.

The dictionary of a node type is divided by a digest into as many parts as are needed for one of them to fit the memory; the ends of edges,
kept on disk as one or two words each, are gone through once for each part.
"""

from __future__ import annotations

import bisect
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gnnkit.datasets.tables.columns import column_of, is_text, plain_type, without_nulls
from gnnkit.datasets.tables.reading import Piece, SourceTable
from gnnkit.datasets.tables.rows import KeptRows
from gnnkit.errors import DatasetError, MemoryLimitError, PlanError
from gnnkit.schema import ArraySpec, NodeType
from gnnkit.source import numbered
from gnnkit.storage.files import ArrayFile
from gnnkit.storage.key_kernels import find_keys, insert_keys
from gnnkit.storage.keys import INTEGER, TEXT, NodeKeys, key_index
from gnnkit.storage.layout import index_dtype

KeyColumn: TypeAlias = "NDArray[np.int64] | tuple[NDArray[np.int64], NDArray[np.uint8]]"
_STEP = 1 << 20
_SHOWN = 10
_MIN_SLOTS = 1 << 11


def key_kind(table: SourceTable, column: str, option: str) -> str:
    """Whether the keys of a column are "int64" or "string".

    Raises:
        PlanError: They are neither, or there is no such column.
    """
    kind = plain_type(table.need(column, option))
    if pa.types.is_integer(kind):
        return INTEGER
    if is_text(kind):
        return TEXT
    hint = f"keys are whole numbers, texts or UUIDs; types={{{column!r}: 'string'}} reads a column as text"
    if pa.types.is_floating(kind) and table.is_csv:
        whole = f"pandas.read_csv(path).astype({{{column!r}: 'Int64'}}) makes 1 of 1.0"
        hint = f"{whole}, pandas.read_csv(path, dtype={{{column!r}: 'string'}}) keeps what is written; gnnkit.tables takes either"
    elif pa.types.is_floating(kind):  # pandas makes fractions of whole numbers beside missing ones
        hint = f"table.astype({{{column!r}: 'Int64'}}) of pandas makes whole numbers of it; those beyond 2**53 have lost digits by now"
    if pa.types.is_nested(kind):
        hint = f"table[{column!r}] = table[{column!r}].astype(str) of pandas makes a text of each value"
    if pa.types.is_binary(kind):
        hint = "texts are read as UTF-8: write the table anew with that encoding"
    raise PlanError(f"{option}={column!r} of {table.what} is {kind}, which is no key", hint)


def key_array(piece: Piece, column: str, kind: str, types: Mapping[str, pa.DataType], fills: Mapping[str, Any], hint: str) -> pa.Array:
    """A column of keys of a kind, as ``key_kind`` says it: int64 or large_string without nulls.

    Args:
        piece: Some rows of a table.
        column: The column.
        kind: "int64" or "string".
        types: Types that columns are to have.
        fills: ``{column: key}`` for nulls.
        hint: What can be done about nulls.

    Raises:
        DatasetError: There is a null, keys are of another kind, or one is beyond int64; names the place and the column.
    """
    array = column_of(piece, column, types)
    if not (is_text(array.type) if kind == TEXT else pa.types.is_integer(array.type)):
        raise DatasetError(
            f"{piece.where}: the key column {column!r} is {array.type} here, and {kind} before", "all files have one type of keys"
        )
    if column in fills:
        array = without_nulls(array, column, piece, fills)
    if array.null_count:
        row = piece.first + int(pc.index(array.is_null(), True).as_py())
        what = f"{array.null_count} nulls in {len(array)} rows of the key column {column!r}, the first in row {row}"
        raise DatasetError(f"{piece.where}: {what}", hint)
    if is_text(array.type):
        return array
    try:
        return array.cast(pa.int64())
    except pa.ArrowException as error:
        raise DatasetError(
            f"{piece.where}: column {column!r} has a key beyond int64: {error}", f"types={{{column!r}: 'string'}}"
        ) from error


def key_column(array: pa.Array) -> KeyColumn:
    """Returns keys, as ``key_array`` gives them, in the form that ``words_of`` takes."""
    if not is_text(array.type):
        return np.asarray(array)
    _, ends, text = array.buffers()
    end = np.frombuffer(ends, np.int64, len(array) + 1, 8 * array.offset) if len(array) else np.zeros(1, np.int64)
    data = np.frombuffer(text, np.uint8)[end[0] : end[-1]] if text is not None else np.empty(0, np.uint8)
    return end - end[0], data


class KeySpool:
    """The keys of a node type, by id.

    Args:
        columns: ``{column: "int64" or "string"}``.
        folder: Where they are kept.
        before: The keys of the nodes before these; None where these are the first.
        state: The ``state`` of the spool of those.
    """

    def __init__(
        self, columns: Mapping[str, str], folder: Path, before: NodeKeys | None = None, state: Mapping[str, Any] | None = None
    ) -> None:
        self.columns, self._before = dict(columns), before
        self.words = ArrayFile(ArraySpec("uint64", (1 if list(columns.values()) == [INTEGER] else 2,)), folder)
        self._files: dict[str, KeptRows] = {}
        for number, kind in enumerate(columns.values()):
            for name, dtype in {INTEGER: [("value", "int64")], TEXT: [("end", "int64"), ("text", "uint8")]}[kind]:
                file = f"{number}.{name}"
                self._files[file] = KeptRows(folder, ArraySpec(dtype), None if state is None else state[file])
        for name, kept in self._files.items():
            if name.endswith(".end"):
                kept.append(np.zeros(1, np.int64), digested=np.empty(0, np.int64))

    @property
    def num_rows(self) -> int:
        """Keys so far."""
        return self.words.num_rows

    @property
    def num_before(self) -> int:
        """Keys of the nodes before these."""
        return 0 if self._before is None else len(self._before)

    def append(self, columns: Sequence[KeyColumn], words: NDArray[np.uint64]) -> None:
        """Adds keys, with the words by which they are compared."""
        for number, column in enumerate(columns):
            if isinstance(column, tuple):
                ends, text = column[0][1:] + self._files[f"{number}.text"].num_rows, column[1]
                before = 0 if self._before is None else len(self._before.arrays[f"{number}.text"])
                self._files[f"{number}.end"].append(ends, digested=ends + before)
                self._files[f"{number}.text"].append(text)
            else:
                self._files[f"{number}.value"].append(column)
        self.words.append(words)

    def digest(self) -> list[str]:
        """Hex digests of the keys, the same however they came in pieces."""
        return [file.digest.hexdigest() for file in self._files.values()]

    def state(self) -> dict[str, Any]:
        """All that the spool of later keys needs, as JSON."""
        return {name: file.digest.state() for name, file in self._files.items()}

    def find_before(self, words: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The ids of keys among those of the nodes before these, int64 ``[n]``; -1 where they are none of them."""
        return np.full(len(words), -1, np.int64) if self._before is None else self._before.find(words)

    def key(self, row: int) -> Any:
        """One key."""
        parts: list[Any] = []
        for number, kind in enumerate(self.columns.values()):
            if kind == INTEGER:
                parts.append(int(self._files[f"{number}.value"].read(row, row + 1)[0]))
            else:
                first, last = map(int, self._files[f"{number}.end"].read(row, row + 2))
                parts.append(bytes(self._files[f"{number}.text"].read(first, last)).decode())
        return parts[0] if len(parts) == 1 else tuple(parts)

    def node_keys(self, node_type: NodeType) -> NodeKeys:
        """The keys as a store keeps them."""
        arrays = {name: file.mapped() for name, file in self._files.items()}
        return NodeKeys(node_type, self.columns, {**arrays, **key_index(self.words.mapped())})


class DistinctKeys:
    """The different keys of a column that is too long for memory, in ascending order: sorted runs on disk, merged range by range.

    Args:
        kind: "int64" or "string".
        folder: Where runs are kept.
        memory_bytes: Bytes of keys in memory.
    """

    def __init__(self, kind: str, folder: Path, memory_bytes: int) -> None:
        self._type = pa.int64() if kind == INTEGER else pa.large_string()
        self._folder, self._memory = folder, max(1, memory_bytes)
        self._pending: list[pa.Array] = []
        self._pending_bytes = 0
        self._runs: list[pa.Array] = []

    def add(self, keys: pa.Array) -> None:
        """Adds keys, each of them once."""
        self._pending.append(keys)
        self._pending_bytes += keys.nbytes
        if self._pending_bytes > self._memory:
            merged = _once(self._pending, self._type)
            if merged.nbytes > self._memory // 2:
                self._spill(_ascending([merged], self._type))
                merged = pa.array([], self._type)
            self._pending, self._pending_bytes = [merged], merged.nbytes

    def chunks(self) -> Iterable[pa.Array]:
        """Yields all keys in ascending order, some at a time."""
        last = _ascending(self._pending, self._type)
        self._pending = []
        if not self._runs:
            for start in range(0, len(last), _STEP):
                yield last.slice(start, _STEP)
            return
        self._spill(last)
        total = sum(run.nbytes for run in self._runs)
        count = max(1, 2 * total // self._memory)
        # Keys that cut the whole into ranges of about equal size, as those of each run cut it.
        samples = [run[len(run) * k // (8 * count)] for run in self._runs if len(run) for k in range(8 * count)]
        cuts = sorted({sample.as_py() for sample in samples}, key=_order)
        bounds = [cuts[len(cuts) * k // count] for k in range(1, count)]
        places = [[0, *(_place(run, bound) for bound in bounds), len(run)] for run in self._runs]
        for k in range(count):
            pieces = [run.slice(place[k], place[k + 1] - place[k]) for run, place in zip(self._runs, places, strict=True)]
            merged = _ascending(pieces, self._type)
            for start in range(0, len(merged), _STEP):
                yield merged.slice(start, _STEP)

    def _spill(self, run: pa.Array) -> None:
        file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
        schema = pa.schema([("key", self._type)])
        with pa.ipc.new_stream(file, schema) as writer:
            writer.write_batch(pa.record_batch([run], schema))
        file.flush()
        mapped = np.memmap(file, np.uint8, "r")
        file.close()
        self._runs.append(pa.ipc.open_stream(pa.py_buffer(mapped)).read_next_batch().column(0))


def _ascending(pieces: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    joined = _once(pieces, kind)
    if kind == pa.int64():
        return pa.array(np.sort(np.asarray(joined)))
    return joined.take(pc.array_sort_indices(joined))


def _once(pieces: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    return pc.unique(pa.chunked_array(list(pieces), kind))


def _order(key: int | str) -> int | bytes:
    return key.encode() if isinstance(key, str) else key


def _place(run: pa.Array, key: int | str) -> int:
    return bisect.bisect_left(range(len(run)), _order(key), key=lambda row: _order(run[row].as_py()))


# Finding -------------------------------------------------------------------------------------------------------------------


def resolve(spool: KeySpool, ends: Sequence[tuple[ArrayFile, ArrayFile]], what: str, memory_bytes: int, pool: ThreadPoolExecutor) -> None:
    """Finds the ids of the ends of edges.

    Args:
        spool: The keys, by id; those of nodes before them are found, too, and come first.
        ends: Of each column of ends, its words, and where their ids go: integers, -1 where no node has the key.
        what: Whose keys these are, for errors.
        memory_bytes: Size of the table that is held in memory at most.
        pool: Where finding runs.

    Raises:
        DatasetError: Two nodes have one key; names the first ten.
    """
    table = KeyTable(spool, what, parts_for(spool, memory_bytes))
    for part in range(table.parts):
        table.enter(part)
        for source, target in ends if table.num_doubles == 0 else ():
            starts = range(0, source.num_rows, _STEP)
            list(pool.map(lambda start, s=source, t=target, p=part: _find(s, t, start, p, table), starts))
    table.refuse_doubles()


def parts_for(spool: KeySpool, memory_bytes: int) -> int:
    """Parts that the keys have to be divided into for a table of one of them to fit the memory."""
    parts, nbytes = 1, spool.words.spec.row_nbytes + index_dtype(spool.num_rows).itemsize
    while _slots(spool.num_rows, parts) > _MIN_SLOTS and _slots(spool.num_rows, parts) * nbytes > memory_bytes:
        parts += 1
    return parts


class KeyTable:
    """A table in memory that finds the ids of keys: all of them, or those of one part at a time.

    Args:
        spool: The keys, by id.
        what: Whose keys these are, for errors.
        parts: Parts that they are divided into.

    Attributes:
        slots, rows: The table itself, for ``find_keys``: words by slot, and rows.
    """

    def __init__(self, spool: KeySpool, what: str, parts: int = 1) -> None:
        self.parts, self._spool, self._what = parts, spool, what
        size = _slots(spool.num_rows, parts)
        self.slots, self.rows = np.empty((size, *spool.words.spec.row_shape), np.uint64), np.empty(size, index_dtype(spool.num_rows))
        self._counts, self._doubles = np.zeros(2, np.int64), np.empty((_SHOWN, 2), np.int64)

    @classmethod
    def of(cls, spool: KeySpool, what: str) -> KeyTable:
        """A table of all keys.

        Raises:
            DatasetError: Two nodes have one key; names the first ten.
        """
        table = cls(spool, what)
        table.enter()
        table.refuse_doubles()
        return table

    @property
    def num_doubles(self) -> int:
        """Keys so far that were there already."""
        return int(self._counts[1])

    def enter(self, part: int = 0) -> None:
        """Enters the keys of a part, in the place of those of another one.

        Raises:
            MemoryLimitError: Many more keys than others belong to this part.
        """
        self.rows.fill(-1)
        self._counts[0] = 0
        for first, chunk in numbered(self._spool.words.chunks(_STEP)):
            # Only keys made for the purpose fill a part beyond its share.
            if not insert_keys(chunk, first, self.parts, part, self.slots, self.rows, self._counts, self._doubles):
                size = len(self.rows)
                raise MemoryLimitError(f"the keys of {self._what} do not spread: {size} places for part {part} of {self.parts} are full")

    def refuse_doubles(self) -> None:
        """Refuses keys that are there twice, or in nodes before these.

        Raises:
            DatasetError: Two nodes have one key; names the first ten.
        """
        if self.num_doubles:
            rows = self._doubles[: min(self.num_doubles, _SHOWN)]
            named = [f"{self._spool.key(int(row))!r} (rows {earlier} and {row})" for row, earlier in rows]
            raise DatasetError(
                f"{self._what}: {self.num_doubles} keys are there more than once: {', '.join(named)}", "a key names one node"
            )
        if self._spool.num_before:
            _refuse_keys_of_before(self._spool, self._what)

    def ids(self, words: NDArray[np.uint64]) -> NDArray[Any]:
        """The ids of keys, also of nodes before these, in a table of one part: integers ``[n]``, -1 where no node has the key."""
        rows = np.full(len(words), -1, self.rows.dtype)
        find_keys(words, self.parts, 0, self.slots, self.rows, rows)
        return self.with_those_before(rows, words)

    def with_those_before(self, rows: NDArray[Any], words: NDArray[np.uint64]) -> NDArray[Any]:
        """Ids of keys, of their rows among the new keys."""
        if not self._spool.num_before:
            return rows
        earlier = self._spool.find_before(words)
        return np.where(earlier >= 0, earlier, np.where(rows >= 0, rows.astype(np.int64) + self._spool.num_before, -1))


def _refuse_keys_of_before(spool: KeySpool, what: str) -> None:
    """Refuses keys that nodes before these have.

    Raises:
        DatasetError: There are some; names the first ten.
    """
    doubled, named = 0, list[str]()
    for first, words in numbered(spool.words.chunks(_STEP)):
        earlier = spool.find_before(words)
        rows = np.flatnonzero(earlier >= 0)
        doubled += len(rows)
        named += [f"{spool.key(int(row + first))!r} (row {row + first}, node {earlier[row]})" for row in rows[: _SHOWN - len(named)]]
    if doubled:
        raise DatasetError(f"{what}: {doubled} keys are those of nodes that are there already: {', '.join(named)}", "append new nodes only")


def _slots(count: int, parts: int) -> int:
    """Places of a table for one part: a power of two, at most three quarters full."""
    share = count if parts == 1 else count // parts + count // (20 * parts) + 1000
    return max(_MIN_SLOTS, 1 << (share * 4 // 3).bit_length())


def _find(source: ArrayFile, target: ArrayFile, start: int, part: int, table: KeyTable) -> None:
    stop = min(start + _STEP, source.num_rows)
    out, words = target.read(start, stop) if part else np.full(stop - start, -1, target.spec.numpy_dtype), source.read(start, stop)
    find_keys(words, table.parts, part, table.slots, table.rows, out)
    target.put(start, table.with_those_before(out, words) if part == table.parts - 1 else out)

"""Keys of nodes: what the user's tables call them, kept beside the graph, and found both ways."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError
from gnnkit.printable import printable_line
from gnnkit.schema import NodeType
from gnnkit.storage.files import FileSpec
from gnnkit.storage.layout import index_dtype, keys_file

# {node type: ({column: kind}, {file: dtype and shape})}
KeySpecs = dict[NodeType, tuple[dict[str, str], dict[str, FileSpec]]]
INTEGER, TEXT = "int64", "string"


def words_of(columns: Sequence[NDArray[np.int64] | tuple[NDArray[np.int64], NDArray[np.uint8]]]) -> NDArray[np.uint64]:
    """The words by which keys are compared.

    Args:
        columns: Of n keys, int64 ``[n]`` or ``(end int64 [n + 1], text uint8)``, as in ``NodeKeys.arrays``.

    Returns:
        uint64 ``[n, 1]``, a single column of integers itself, else ``[n, 2]``, digests. Where two of these are equal, keys are.
    """
    single = [_column_words(column) for column in columns]
    if len(single) == 1:
        return single[0]
    from gnnkit.storage.key_kernels import mix_into  # numba

    out = np.zeros((len(single[0]), 2), np.uint64)
    for words in single:
        mix_into(words, out)
    return out


def _column_words(column: NDArray[np.int64] | tuple[NDArray[np.int64], NDArray[np.uint8]]) -> NDArray[np.uint64]:
    if not isinstance(column, tuple):
        return np.require(column, np.int64, ["C", "W"]).view(np.uint64).reshape(-1, 1)
    from gnnkit.storage.key_kernels import digest_texts  # numba

    end, text = column
    out = np.empty((len(end) - 1, 2), np.uint64)
    digest_texts(np.require(end, np.int64, ["C", "W"]), np.require(text, np.uint8, ["C", "W"]), out)
    return out


def text_column(values: Iterable[Any]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Texts as ``(end int64 [n + 1], text uint8)``."""
    encoded = [str(value).encode() for value in values]
    end = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(value) for value in encoded], out=end[1:])
    return end, np.frombuffer(b"".join(encoded), np.uint8)


def _texts(end: NDArray[np.int64], text: NDArray[np.uint8]) -> NDArray[Any]:
    """Reverses ``text_column``."""
    found = np.empty(len(end) - 1, object)
    found[:] = [bytes(text[first:last]).decode() for first, last in pairwise(end.tolist())]
    return found


def key_index(words: NDArray[np.uint64]) -> dict[str, NDArray[Any]]:
    """The arrays by which ``NodeKeys.ids`` finds nodes, of their words ``[n, 1 or 2]``."""
    order = np.argsort(words[:, 0], kind="stable")
    return {"word": words[order, 0], "row": order.astype(index_dtype(len(order)))}


@dataclass(frozen=True)
class NodeKeys:
    """The keys of the nodes of one type, by id, mapped from disk: ``keys[ids]``, and back with ``keys.ids(...)``.

    Attributes:
        node_type: The type.
        columns: ``{column of the user's table: "int64" or "string"}``; a key has as many parts.
        arrays: For column ``i``, "i.value" int64 ``[num_nodes]``, or "i.end" int64 ``[num_nodes + 1]`` and "i.text" uint8. Then "word"
            uint64 ``[num_nodes]``, the first word of each key, ascending, and "row", the ids in that order.
    """

    node_type: NodeType
    columns: Mapping[str, str]
    arrays: Mapping[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.arrays["row"])

    def __getitem__(self, ids: Any) -> Any:
        """The keys of nodes.

        Args:
            ids: Dataset ids ``[k]``, as in ``batch.n_id``, or one of them.

        Returns:
            int64 ``[k]``, or an array of ``str``; of tuples where a key has several columns. Of one id, its key.

        Raises:
            PlanError: An id is out of range.
        """
        rows = np.asarray(ids)
        if rows.dtype.kind not in "iu" and rows.size:
            raise PlanError(f"ids of {self.node_type!r} nodes must be integers, got {rows.dtype}", "keys.ids(...) finds the ids of keys")
        flat = rows.reshape(-1).astype(np.int64)
        if flat.size and not 0 <= int(flat.min()) <= int(flat.max()) < len(self):
            wrong = int(flat[(flat < 0) | (flat >= len(self))][0])
            raise PlanError(f"there is no {self.node_type!r} node {wrong}", f"ids go from 0 to {len(self) - 1}")
        parts = [_texts(*column) if isinstance(column, tuple) else column for column in self._columns(flat)]
        found: Any = parts[0]
        if len(parts) > 1:
            found = np.empty(len(flat), object)
            found[:] = list(zip(*(part.tolist() for part in parts), strict=True))
        return found[0] if rows.ndim == 0 else found

    def ids(self, keys: Any) -> NDArray[np.int64]:
        """The dataset ids of keys.

        Args:
            keys: Integers or texts ``[k]``; tuples where a key has several columns.

        Returns:
            int64 ``[k]``.

        Raises:
            PlanError: There is no node of such a key; names the first ten, and how many.
        """
        keys = keys.tolist() if hasattr(keys, "tolist") else list(keys)
        found = self.find(words_of(self._columns_of(keys)))
        if (missing := np.flatnonzero(found < 0)).size:
            first = ", ".join(repr(keys[k]) for k in missing[:10])
            raise PlanError(
                f"{len(missing)} of {len(keys)} keys belong to no {self.node_type!r} node: {first}", f"columns: {dict(self.columns)}"
            )
        return found

    def find(self, words: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The dataset ids of keys given as words, see ``words_of``: int64 ``[n]``, -1 where no node has the key."""
        found = np.full(len(words), -1, np.int64)
        pending = np.argsort(words[:, 0], kind="stable")  # in their order, neighbours are searched in memory that is near
        at = np.empty(len(words), np.int64)
        at[pending] = np.searchsorted(self.arrays["word"], words[pending, 0])
        # Keys whose first words are equal lie side by side; more than one is as good as never there.
        while len(pending):
            pending = pending[at[pending] < len(self)]
            pending = pending[self.arrays["word"][at[pending]] == words[pending, 0]]
            rows = self.arrays["row"][at[pending]].astype(np.int64)
            if words.shape[1] > 1:
                same = self.words(rows)[:, 1] == words[pending, 1]
                at[pending] += 1
                found[pending[same]], pending = rows[same], pending[~same]
            else:
                found[pending], pending = rows, pending[:0]
        return found

    def words(self, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        """The words of the keys of nodes, by their ids; see ``words_of``."""
        return words_of(self._columns(rows))

    def _columns(self, rows: NDArray[np.int64]) -> list[Any]:
        """The columns of the keys of nodes, as ``words_of`` takes them."""
        columns: list[Any] = []
        for number, kind in enumerate(self.columns.values()):
            if kind == INTEGER:
                columns.append(np.asarray(self.arrays[f"{number}.value"][rows]))
                continue
            starts, ends = (self.arrays[f"{number}.end"][rows + k] for k in (0, 1))
            end = np.concatenate([[0], np.cumsum(ends - starts)])
            places = np.arange(end[-1]) + np.repeat(starts - end[:-1], ends - starts)
            columns.append((end, self.arrays[f"{number}.text"][places]))
        return columns

    def _columns_of(self, keys: list[Any]) -> list[Any]:
        if len(self.columns) > 1 and any(not isinstance(key, tuple) or len(key) != len(self.columns) for key in keys):
            raise PlanError(f"a key of {self.node_type!r} nodes is a tuple of {len(self.columns)}: {list(self.columns)}")
        parts = [keys] if len(self.columns) == 1 else [[key[k] for key in keys] for k in range(len(self.columns))]
        columns: list[Any] = []
        for (name, kind), values in zip(self.columns.items(), parts, strict=True):
            if kind == TEXT:
                columns.append(text_column(values))
                continue
            if wrong := [value for value in values if isinstance(value, bool) or not isinstance(value, int)]:
                raise PlanError(f"{name!r} of {self.node_type!r} nodes is an integer, got {wrong[0]!r}")
            columns.append(np.array(values, np.int64))
        return columns

    def __repr__(self) -> str:
        columns = ", ".join(f"{name} {kind}" for name, kind in self.columns.items())
        return printable_line(f"NodeKeys({self.node_type!r}: {len(self):,} keys, {columns})")


def key_files(specs: KeySpecs) -> dict[str, FileSpec]:
    """Returns the dtype and shape of every file of the keys, by path."""
    found = {}
    for node_type, (_, files) in specs.items():
        for name, spec in files.items():
            number, _, what = name.partition(".")
            holds: tuple[Any, ...] = ()
            if what == "end":
                holds = "offsets", *files[f"{number}.text"].shape
            elif what == "text":
                holds = "texts", keys_file(node_type, f"{number}.end")
            elif name in ("word", "row"):
                holds = ("ascending",) if name == "word" else ("ids", *spec.shape)
            found[keys_file(node_type, name)] = replace(spec, holds=holds)
    return found


def keys_to_json(specs: KeySpecs) -> dict[str, Any]:
    """A JSON-serialisable form; ``keys_from_json`` reverses it."""
    return {
        node_type: {
            "columns": dict(columns),
            "text_bytes": {name: files[name].shape[0] for name in sorted(files) if name.endswith(".text")},
        }
        for node_type, (columns, files) in specs.items()
    }


def keys_from_json(value: Mapping[str, Any], num_nodes: Mapping[NodeType, int]) -> KeySpecs:
    """Reverses ``keys_to_json``; raises whatever a wrong value causes.

    Args:
        value: The JSON form.
        num_nodes: Nodes of each type.
    """
    specs: KeySpecs = {}
    for node_type, own in value.items():
        count, columns, files = num_nodes[node_type], {str(k): str(v) for k, v in own["columns"].items()}, dict[str, FileSpec]()
        for number, kind in enumerate(columns.values()):
            if kind == INTEGER:
                files[f"{number}.value"] = FileSpec(np.dtype(np.int64), (count,))
            elif kind == TEXT:
                files[f"{number}.end"] = FileSpec(np.dtype(np.int64), (count + 1,))
                files[f"{number}.text"] = FileSpec(np.dtype(np.uint8), (int(own["text_bytes"][f"{number}.text"]),))
            else:
                raise ValueError(f"{kind!r} is no kind of keys")
        files["word"] = FileSpec(np.dtype(np.uint64), (count,))
        files["row"] = FileSpec(index_dtype(count), (count,))
        specs[node_type] = (columns, files)
    return specs

"""Readers of the tables of node and edge types: which columns they take, and what becomes of some rows, here or on another host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gnnkit.datasets.tables.columns import (
    Codes,
    Column,
    Features,
    Ids,
    Numbers,
    ReadOptions,
    Times,
    column_of,
    is_list,
    is_text,
    plain_type,
    without_nulls,
)
from gnnkit.datasets.tables.digests import ChainedDigest, PieceDigest
from gnnkit.datasets.tables.keys import KeyColumn, key_array, key_column, key_kind
from gnnkit.datasets.tables.layout import EDGE_FEATURES, EdgeTable, NodeTable
from gnnkit.datasets.tables.reading import Piece
from gnnkit.datasets.tables.rows import Place
from gnnkit.errors import DatasetError, PlanError
from gnnkit.schema import NodeType
from gnnkit.storage.keys import words_of
from gnnkit.storage.layout import FEATURE_NAME, LABEL_NAME

_WEIGHT, TIME = "edge_weight", "time"
# Finds the ids of keys, given as words; -1 where no node has the key.
Finder: TypeAlias = Callable[[NDArray[np.uint64]], NDArray[Any]]


_SHOWN = 10
D = TypeVar("D", ChainedDigest, PieceDigest)


class EndCount(Generic[D]):
    """Digests of the ids of both ends of edges, and the edges that name no node, found in one pass.

    Args:
        source: The digest of the ids of sources, as int64, but for edges that name no node.
        target: The same of targets.

    Attributes:
        digests: See above.
        missing: Edges an end of which is no node, so that its id is -1.
        first: The numbers of the first of these.
    """

    def __init__(self, source: D, target: D) -> None:
        self.digests: list[D] = [source, target]
        self.missing, self.first = 0, list[int]()

    def add(self, start: int, ends: Sequence[NDArray[Any]]) -> None:
        """Enters some edges, of which the first has the number ``start``."""
        known = are_known(ends)
        bad = np.flatnonzero(~known)
        self.missing += len(bad)
        self.first += (bad[: _SHOWN - len(self.first)] + start).tolist()
        for digest, ids in zip(self.digests, ends, strict=True):
            digest.update((ids[known] if len(bad) else ids).astype(np.int64, copy=False))

    def join(self: EndCount[ChainedDigest], other: EndCount[PieceDigest]) -> None:
        """Enters the next range of edges, which another host has counted."""
        self.missing += other.missing
        self.first += other.first[: _SHOWN - len(self.first)]
        for digest, piece in zip(self.digests, other.digests, strict=True):
            digest.extend(piece)


def are_known(ends: Sequence[NDArray[Any]]) -> NDArray[np.bool_]:
    """Which edges have nodes for both ends."""
    known: NDArray[np.bool_] = (ends[0] >= 0) & (ends[1] >= 0)
    return known


def columns_of(
    owner: NodeTable | EdgeTable, options: ReadOptions, place: Place, before: Mapping[str, Any] | None = None
) -> dict[str, Column]:
    """Makes the arrays that the table of a type is asked for.

    Args:
        owner: The type.
        options: How columns are read.
        place: Where they are kept.
        before: The states of the arrays of tables before this one, which say whether a label is text.

    Raises:
        PlanError: Two of them have one name.
    """
    uses, made = owner.uses, dict[str, Column]()
    features, one_hot = uses.get("features", ()), uses.get("one_hot", ())
    is_node = isinstance(owner, NodeTable)
    if features or one_hot:
        numbers = Numbers(features, "float32", options, place, standardize=uses.get("standardize", ())) if features else None
        made[FEATURE_NAME if is_node else EDGE_FEATURES] = Features(numbers, [Codes(column, options, place) for column in one_hot])
    if label := uses.get("label"):
        name, one = LABEL_NAME if is_node else "edge_label", len(label) == 1
        kind = pa.null() if owner.table is None else plain_type(owner.table.need(label[0], "label"))
        text = "known" in before[name] if before else is_text(kind)
        flat = one and not (before[name].get("lists") if before else is_list(kind))
        made[name] = (
            Codes(label[0], options, place, is_label=True)
            if text and one
            else Numbers(label, None, options, place, flat=flat, is_label=True)
        )
    for found in uses.get("time", ()):
        made[TIME] = Times(found, options, place)
    for found in uses.get("edge_weight", ()):
        made[_WEIGHT] = Numbers([found], None, options, place, flat=True)
    for found in uses.get("categories", ()):
        if found in made:
            raise PlanError(f"categories={found!r} of {owner.name!r}: another array has that name already", "rename the column")
        made[found] = Codes(found, options, place)
    return made


def split_of(node: NodeTable, options: ReadOptions, place: Place) -> Codes | None:
    """Makes the column of splits; None where there is none."""
    names = node.uses.get("split", ())
    return Codes(names[0], options, place, optional=True) if names else None


def ids_of(node: NodeTable, options: ReadOptions, place: Place) -> Ids | None:
    """Makes the column that may name nodes without keys; None where there is none."""
    return None if node.ids is None else Ids([node.ids], "int64", options, place, flat=True)


class NodeReader:
    """The reader of a table of nodes.

    Args:
        node: The type; it has a table.
        columns: The columns that become arrays, and the split.
        options: How they are read.

    Attributes:
        table: The table.
        names: The columns to read.
        kinds: ``{column of the key: "int64" or "string"}``.
    """

    def __init__(self, node: NodeTable, columns: Sequence[Column], options: ReadOptions) -> None:
        assert node.table is not None, "others are not read"
        self.table = node.table
        self.kinds = {column: key_kind(node.table, column, "keys") for column in node.keys}
        self.names = _names(node.table.schema, [*node.keys, *(name for column in columns for name in column.columns)])
        self._columns, self._options = columns, options

    def work(self, piece: Piece) -> tuple[int, tuple[list[KeyColumn], NDArray[np.uint64]] | None, list[Any]]:
        """Makes of some rows their number, keys with their words where there are keys, and what columns convert to."""
        types, fill, hint = self._options.types, self._options.fill, "every node needs a key: leave these rows out of the table"
        keys = [key_column(key_array(piece, column, kind, types, fill, hint)) for column, kind in self.kinds.items()]
        return piece.rows.num_rows, (keys, words_of(keys)) if keys else None, [column.convert(piece) for column in self._columns]


class EdgeRows(NamedTuple):
    """Rows of a table of edges, as they are kept.

    Attributes:
        num_rows: Their number.
        ends: The ids or words of both ends.
        once: The different keys of both ends, where these are the nodes.
        values: What columns convert to.
        file: The number of the file.
        left_out: How many more rows there were, which have a null for an end.
    """

    num_rows: int
    ends: list[NDArray[Any]]
    once: list[pa.Array | None]
    values: list[Any]
    file: int
    left_out: int


def pieces_by(piece: Piece, column: str, options: ReadOptions) -> list[tuple[str, NDArray[np.int64], Piece]]:
    """Divides rows by the values of a column: each of them as text, the places of its rows, and these.

    Raises:
        DatasetError: A value is missing, or none that an edge type is called by; names the place and the column.
    """
    array = without_nulls(column_of(piece, column, options.types), column, piece, options.fill)
    if not (is_text(array.type) or pa.types.is_integer(array.type)):
        hint = f"types={{{column!r}: 'string'}} reads each value as a name"
        raise DatasetError(f"{piece.where}: column {column!r} is {array.type}; edge types are called by texts or whole numbers", hint)
    encoded = array.dictionary_encode()
    codes = np.asarray(encoded.indices)
    order = np.argsort(codes, kind="stable")
    places = np.split(order, np.searchsorted(codes[order], np.arange(1, len(encoded.dictionary))))
    named = zip(encoded.dictionary.to_pylist(), places, strict=True) if len(array) else ()
    return [(str(value), own, replace(piece, rows=piece.rows.take(own))) for value, own in named]


class EdgeReader:
    """The reader of a table of edges.

    Args:
        edge: The type; it has a table.
        columns: The columns that become arrays.
        options: How they are read.
        finders: Of each node type whose keys are known, what finds their ids.
        distinct: The node types whose nodes are those that edges name.

    Attributes:
        table: The table.
        names: The columns to read.
        finders, distinct: See above.
    """

    def __init__(
        self,
        edge: EdgeTable,
        columns: Sequence[Column],
        options: ReadOptions,
        finders: Mapping[NodeType, Finder],
        distinct: frozenset[NodeType],
    ) -> None:
        assert edge.table is not None, "others are not read"
        self.table = table = edge.table
        self._kinds = [[(column, key_kind(table, column, "src or dst")) for column in end] for end in edge.ends]
        self._relation = edge.relation
        own = [*edge.ends[0], *edge.ends[1], *([] if edge.relation is None else [edge.relation])]
        self.names = _names(table.schema, [*own, *(name for column in columns for name in column.columns)])
        self._columns, self._options, self.finders, self.distinct = columns, options, finders, distinct
        self._node_types = edge.node_types

    def work(self, piece: Piece) -> tuple[int, list[tuple[str | None, EdgeRows]]]:
        """Makes of some rows their number, and what edges need: by relation, where a column says it, and else for None."""
        if self._relation is None:
            return piece.rows.num_rows, [(None, self._rows(piece))]
        try:
            return piece.rows.num_rows, [(value, self._rows(part)) for value, _, part in pieces_by(piece, self._relation, self._options)]
        except DatasetError:
            self._rows(piece)  # whose error has the number of the row in the table
            raise

    def _rows(self, piece: Piece) -> EdgeRows:
        options, total = self._options, piece.rows.num_rows
        if options.drops:
            piece = replace(piece, rows=_with_keys(piece.rows, [c for end in self._kinds for c, _ in end if c not in options.fill]))
        ends = [[self._keys(piece, column, kind) for column, kind in end] for end in self._kinds]
        found: list[NDArray[Any]] = [words_of([key_column(array) for array in keys]) for keys in ends]
        found = [self.finders[t](rows) if t in self.finders else rows for rows, t in zip(found, self._node_types, strict=True)]
        once = [pc.unique(keys[0]) if t in self.distinct else None for keys, t in zip(ends, self._node_types, strict=True)]
        num_rows, values = piece.rows.num_rows, [column.convert(piece) for column in self._columns]
        return EdgeRows(num_rows, found, once, values, piece.file, total - num_rows)

    def _keys(self, piece: Piece, column: str, kind: str) -> pa.Array:
        hint = f'dangling="drop" leaves these edges out; fill={{{column!r}: key}} gives them a node'
        return key_array(piece, column, kind, self._options.types, self._options.fill, hint)


def _with_keys(rows: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """The rows that have no null in some columns."""
    for column in columns:
        if rows.column(column).null_count:
            rows = rows.filter(rows.column(column).is_valid())
    return rows


def _names(schema: pa.Schema, names: Sequence[str]) -> list[str]:
    """Each column once; rows of no column cannot be counted."""
    return list(dict.fromkeys(names)) or list(schema.names[:1])

"""``gnnkit.tables``: tables of nodes and of edges as a source that stores are built from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gnnkit.datasets.pipeline import overlap
from gnnkit.datasets.spool import ArrayFile
from gnnkit.datasets.tables.columns import Codes, Column, Features, Numbers, Times, column_of, is_text, plain_type
from gnnkit.datasets.tables.keys import DistinctKeys, KeySpool, key_array, key_column, key_kind, resolve
from gnnkit.datasets.tables.networks import is_networkx, tables_of_networkx
from gnnkit.datasets.tables.reading import Piece, Table, open_table
from gnnkit.errors import DatasetError, PlanError, near_matches
from gnnkit.events import EventSink, Stage, ignore_events
from gnnkit.host import available_cpus, available_memory
from gnnkit.schema import (
    HOMOGENEOUS_EDGE_TYPE,
    HOMOGENEOUS_NODE_TYPE,
    ArraySpec,
    EdgeType,
    EdgeTypeSchema,
    GraphSchema,
    NodeType,
    NodeTypeSchema,
    edge_type_name,
)
from gnnkit.source import LinkSplits
from gnnkit.storage.keys import INTEGER, NodeKeys, words_of
from gnnkit.storage.layout import FEATURE_NAME, LABEL_NAME

Columns: TypeAlias = "str | Sequence[str]"
_EDGE_FEATURES, _WEIGHT, _TIME = "edge_attr", "edge_weight", "time"
_SPLITS = {"val": "valid", "validation": "valid"}
_SHOWN = 10
_CHUNK_ROWS, _CHUNK_BYTES = 1 << 20, 16 << 20
_MIN_MEMORY, _MAX_MEMORY = 64 << 20, 512 << 20
_MOST_THREADS = 4


def tables(  # noqa: PLR0913 - each says what one kind of column is
    edges: Any,
    nodes: Any = None,
    *,
    keys: Any = None,
    src: Any = None,
    dst: Any = None,
    features: Any = None,
    one_hot: Any = None,
    categories: Any = None,
    label: Any = None,
    split: Any = None,
    time: Any = None,
    edge_weight: Any = None,
    types: Mapping[str, Any] | None = None,
    fill: Mapping[str, Any] | None = None,
    dangling: Literal["error", "drop"] = "error",
    presorted: bool = False,
    time_unit: Literal["s", "ms", "us", "ns"] = "us",
    name: str = "tables",
    scratch_dir: str | Path | None = None,
    memory_bytes: int | None = None,
    events: EventSink = ignore_events,
) -> TableSource:
    """Tables of nodes and edges as a graph, for ``GraphLoader.from_source`` and ``gnnkit.partition``.

    A table is a path, a URL, a glob, a folder or a list of them (Parquet; CSV or TSV, also .gz, .zst and .bz2; Arrow or Feather); anything
    with ``__arrow_c_stream__`` (Polars, DuckDB, pandas, pyarrow); a pandas data frame; ``{column: array}``; or ``(src, dst)``, two arrays.
    ``edges`` may be a NetworkX graph. Each table is read once, front to back, in bounded memory.

    Node ``i`` is row ``i`` of its type's table, edge ``e`` row ``e`` of its own. A node type without a table has the nodes that edges name,
    in ascending order of their keys (texts by their UTF-8 bytes). Files of a glob or folder come in the order of their names.

    Options that name columns take, for a graph of one node type and one edge type, the columns; else ``{type: columns}``, where a type
    is a node type or an edge type, and ``src`` and ``dst`` may be one name for all.

    Args:
        edges: The table of edges; ``{(source type, relation, target type): table}`` for a typed graph.
        nodes: The table of nodes, or their number; ``{node type: either}`` for a typed graph.
        keys: The column that names a node, or several. Without it, nodes of a table are named by their row numbers, from 0.
        src: The column of edges that names the source, as many as keys have; None is the first column.
        dst: The same of the target; None is the second column.
        features: Columns of numbers, booleans or lists of one length that become ``x``, for edges ``edge_attr``, as float32.
        one_hot: Columns whose values become columns of zeros and ones after the features.
        categories: Columns that become arrays of their own names: int64 codes, positions in the ascending list of values.
        label: The column that becomes ``y``: classes if it is text, else as it is; or several columns of numbers.
        split: The column that says "train", "valid" (or "val") or "test", or another split's name, or null.
        time: The column that becomes ``time``, int64: timestamps and dates in ``time_unit`` since 1970, whole numbers as they are;
            ``time_attr="time"`` of a loader samples by it.
        edge_weight: The column of edges that becomes ``edge_weight``; ``weight="edge_weight"`` of a loader draws by it.
        types: ``{column: Arrow type, or its name such as "string"}``: what columns are read as.
        fill: ``{column: value}``: what takes the place of nulls and NaN; -1 is no class and no category. Elsewhere nulls are an error,
            but for splits.
        dangling: "error" refuses edges that name no node of a table, "drop" leaves them out and counts them in the metadata.
        presorted: Promises that edges come in the order of their targets' numbers, or in files each of which has a range of them that
            follows that of the file before, as Spark's ``repartitionByRange(dst)`` writes them. It is checked, and a store is then built
            in one pass, without sorting edges on disk; it is the same store. See ``docs/how-to/spark-and-dask.md``.
        time_unit: The unit of times.
        name: What the graph is called.
        scratch_dir: Folder for what is kept while the tables are read; None is that of datasets.
        memory_bytes: Memory for dictionaries of keys; None is a 16th of what is available, between 64 MB and 512 MB.
        events: Receives the stage "ingest" for each table, in rows, and "download" for those at URLs, in bytes.

    Raises:
        PlanError: An option names no column, or a table is none; nothing was read.
        DatasetError: A file is missing or damaged, a value does not fit, a key is missing or double, or an edge names no node. The message
            names file, row group and column.
    """
    given = {
        "features": features,
        "one_hot": one_hot,
        "categories": categories,
        "label": label,
        "split": split,
        "time": time,
        "edge_weight": edge_weight,
    }
    if not isinstance(presorted, bool):
        raise PlanError(f"presorted={presorted!r}: it is True or False")
    source = TableSource(
        _Layout.of(edges, nodes, keys, src, dst, given, _types(types), events),
        fill=dict(fill or {}),
        dangling=_one_of("dangling", dangling, ("error", "drop")),
        time_unit=_one_of("time_unit", time_unit, ("s", "ms", "us", "ns")),
        name=name,
        folder=_scratch(scratch_dir),
        memory_bytes=memory_bytes or max(_MIN_MEMORY, min(_MAX_MEMORY, available_memory() // 16)),
        events=events,
    )
    if presorted:
        source.check_order()
    return source


# What is asked for ---------------------------------------------------------------------------------------------------------


@dataclass
class _NodeTable:
    """A node type: its table or number of nodes, the columns of its keys, and the columns of each use."""

    name: NodeType
    table: Table | None = None
    count: int | None = None
    keys: tuple[str, ...] = ()
    uses: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def by_row(self) -> bool:
        """Whether nodes are named by their numbers."""
        return not self.keys and (self.table is not None or self.count is not None)


@dataclass
class _EdgeTable:
    """An edge type: its table, the columns of both ends, and the columns of each use."""

    name: EdgeType
    table: Table
    ends: tuple[tuple[str, ...], tuple[str, ...]]
    uses: dict[str, tuple[str, ...]] = field(default_factory=dict)


_NODE_USES = ("features", "one_hot", "categories", "label", "split", "time")
_EDGE_USES = ("features", "one_hot", "categories", "label", "time", "edge_weight")


@dataclass(frozen=True)
class _Layout:
    nodes: dict[NodeType, _NodeTable]
    edges: dict[EdgeType, _EdgeTable]
    types: dict[str, pa.DataType]
    is_homogeneous: bool

    @classmethod
    def of(
        cls,
        edges: Any,
        nodes: Any,
        keys: Any,
        src: Any,
        dst: Any,
        given: dict[str, Any],
        types: dict[str, pa.DataType],
        events: EventSink,
    ) -> _Layout:
        """Sorts the options by types, and opens the tables.

        Raises:
            PlanError: An option is unusable.
            DatasetError: A table cannot be opened.
        """
        if is_networkx(edges):
            if nodes is not None or keys is not None:
                raise PlanError("edges is a NetworkX graph, which has its own nodes", "leave nodes and keys away")
            nodes, edges, keys = tables_of_networkx(edges)
        typed = isinstance(edges, Mapping) and all(isinstance(key, tuple) for key in edges)
        if not typed:
            edges = {HOMOGENEOUS_EDGE_TYPE: edges}
            nodes = {} if nodes is None else {HOMOGENEOUS_NODE_TYPE: nodes}
        if not edges:
            raise PlanError("there are no tables of edges", "give edges={(source type, relation, target type): table}")
        if nodes is not None and not isinstance(nodes, Mapping):
            raise PlanError(f"nodes is one table, and edges are {len(edges)} by type", "give nodes={node type: table}")
        wrong = [name for name in edges if len(name) != 3 or not all(isinstance(word, str) for word in name)]
        if wrong:
            raise PlanError(f"{wrong[0]!r} is no edge type", "an edge type is (source type, relation, target type)")
        ends = [end for name in edges for end in (name[0], name[2])]
        node_types, edge_types = sorted({*ends, *(nodes or {})}), sorted(edges)
        by_type = _ByType(node_types, edge_types, typed)
        made = {}
        for node_type in node_types:
            made[node_type] = _node_table(node_type, (nodes or {}).get(node_type), by_type.one("keys", keys, node_type), types, events)
        rows = {}
        for edge_type in edge_types:
            table = open_table(edges[edge_type], f"edges {edge_type}" if typed else "edges", types, events)
            found = [by_type.one(option, value, edge_type, shared=True) for option, value in (("src", src), ("dst", dst))]
            rows[edge_type] = _EdgeTable(edge_type, table, _ends(table, found, made[edge_type[0]], made[edge_type[2]]))
        layout = cls(made, rows, types, not typed)
        for option, value in given.items():
            by_type.check(option, value)
            layout._use(option, value, by_type)
        layout._check()
        return layout

    def _use(self, option: str, value: Any, by_type: _ByType) -> None:
        """Enters the columns of one use; those of a graph of one type belong to its nodes, unless only its edges have them."""
        shared = self.is_homogeneous and not isinstance(value, Mapping)
        for node_type, node in self.nodes.items():
            columns = by_type.one(option, value, node_type) if option in _NODE_USES else ()
            if columns and not (shared and _only_edges_have(columns, node.table, next(iter(self.edges.values())).table)):
                node.uses[option] = columns
        for edge_type, edge in self.edges.items():
            columns = by_type.one(option, value, edge_type) if option in _EDGE_USES else ()
            if columns and not (shared and any(option in node.uses for node in self.nodes.values())):
                edge.uses[option] = columns

    def _check(self) -> None:
        for node in self.nodes.values():
            for option, columns in node.uses.items():
                if node.table is None:
                    raise PlanError(f"{option}={list(columns)}: there is no table of nodes {node.name!r}", "nodes=... gives it")
                for column in columns:
                    node.table.need(column, option)
        for edge in self.edges.values():
            for option, columns in edge.uses.items():
                for column in columns:
                    edge.table.need(column, option)
            for columns, node in zip(edge.ends, (self.nodes[edge.name[0]], self.nodes[edge.name[2]]), strict=True):
                self._check_end(edge, columns, node)
        for name, uses in [*((name, n.uses) for name, n in self.nodes.items()), *((name, e.uses) for name, e in self.edges.items())]:
            for option in ("split", "time", "edge_weight"):
                if len(uses.get(option, ())) > 1:
                    raise PlanError(f"{option}={list(uses[option])} of {name!r}: it is one column")

    def _check_end(self, edge: _EdgeTable, columns: tuple[str, ...], node: _NodeTable) -> None:
        kinds = [key_kind(edge.table, column, "src or dst") for column in columns]
        if node.keys:
            assert node.table is not None
            wanted = [key_kind(node.table, column, "keys") for column in node.keys]
            if kinds != wanted:
                raise PlanError(
                    f"{list(columns)} of {edge.table.what} are {kinds}, and the keys {list(node.keys)} of {node.name!r} are {wanted}",
                    f"types={{{columns[0]!r}: {wanted[0]!r}}} reads a column as another type",
                )
        elif node.by_row and kinds != [INTEGER]:
            raise PlanError(
                f"{list(columns)} of {edge.table.what} are {kinds}, and nodes {node.name!r} have no keys: they are named by row numbers",
                f"keys={{{node.name!r}: column}} says which column names a node",
            )
        elif not node.by_row and len(columns) > 1:
            raise PlanError(f"{list(columns)} of {edge.table.what}: keys of several columns need a table of nodes", "nodes=... gives it")


@dataclass(frozen=True)
class _ByType:
    """Options as users write them, by type."""

    nodes: list[NodeType]
    edges: list[EdgeType]
    typed: bool

    def one(self, option: str, value: Any, name: NodeType | EdgeType, *, shared: bool = False) -> tuple[str, ...]:
        """The columns that an option names for one type; none where it says nothing of it."""
        if isinstance(value, Mapping):
            value = value.get(name)
        elif self.typed and value is not None and not shared:
            raise PlanError(f"{option}={value!r}: a graph of several types needs {{type: columns}}", f"types: {[*self.nodes, *self.edges]}")
        if value is None:
            return ()
        columns = (value,) if isinstance(value, str) else tuple(value)
        if not all(isinstance(column, str) for column in columns) or len(set(columns)) < len(columns):
            raise PlanError(f"{option}={value!r} names no columns", "give a column's name, or a list of different names")
        return columns

    def check(self, option: str, value: Any) -> None:
        """Refuses names that are no types, and types that the option has no use for."""
        if not isinstance(value, Mapping):
            return
        known: list[Any] = [*(self.nodes if option in _NODE_USES else []), *(self.edges if option in _EDGE_USES else [])]
        for name in value:
            if name not in known:
                raise PlanError(
                    f"{option} names {name!r}, which is no type of this graph{near_matches(str(name), list(map(str, known)))}",
                    f"types: {known}",
                )


def _only_edges_have(columns: tuple[str, ...], nodes: Table | None, edges: Table) -> bool:
    """Whether, in a graph of one type, columns are those of its edges: its nodes have no table, or not these columns."""
    return all(column in edges.schema.names for column in columns) and (
        nodes is None or not all(column in nodes.schema.names for column in columns)
    )


def _node_table(name: NodeType, form: Any, keys: tuple[str, ...], types: dict[str, pa.DataType], events: EventSink) -> _NodeTable:
    if isinstance(form, (int, np.integer)) and not isinstance(form, bool):
        if form < 0:
            raise PlanError(f"nodes: {form} nodes {name!r}")
        return _NodeTable(name, count=int(form))
    if form is None:
        return _NodeTable(name)  # its key is that of the edges
    table = open_table(form, f"nodes {name!r}", types, events)
    for column in keys:
        key_kind(table, column, "keys")
    return _NodeTable(name, table, keys=keys)


def _ends(table: Table, found: list[tuple[str, ...]], source: _NodeTable, target: _NodeTable) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns of both ends: those that are named, else the first and the second column."""
    if len(table.schema.names) < 2:
        raise PlanError(f"{table.what} have the columns {table.schema.names}, and an edge has two ends")
    ends = []
    for number, (columns, option, node) in enumerate(zip(found, ("src", "dst"), (source, target), strict=True)):
        columns = columns or (table.schema.names[number],)
        for column in columns:
            table.need(column, option)
        if len(columns) != max(1, len(node.keys)):
            raise PlanError(
                f"{option}={list(columns)} of {table.what}, and the keys of {node.name!r} are {list(node.keys)}", "name as many"
            )
        ends.append(columns)
    return ends[0], ends[1]


def _types(types: Mapping[str, Any] | None) -> dict[str, pa.DataType]:
    made = {}
    for column, kind in (types or {}).items():
        try:
            made[column] = kind if isinstance(kind, pa.DataType) else pa.type_for_alias(kind)
        except (ValueError, TypeError) as error:
            raise PlanError(
                f"types={{{column!r}: {kind!r}}}: {error}", "for example 'string', 'int64', 'double' or 'timestamp[us]'"
            ) from error
    return made


def _cut(starts: NDArray[np.int64], first: int, count: int) -> Iterator[tuple[int, int, int]]:
    """Yields ``(number, low, high)``: which of the rows from ``first`` on belong to which of the ranges that begin at ``starts``."""
    number, low = int(np.searchsorted(starts, first, side="right")) - 1, 0
    while low < count:
        end = starts[number + 1] - first if number + 1 < len(starts) else count
        high = min(count, int(end))
        yield number, low, high
        number, low = number + 1, high


def _one_of(option: str, value: Any, known: Sequence[str]) -> Any:
    if value not in known:
        raise PlanError(f"{option}={value!r}{near_matches(str(value), list(known))}", f"it is one of {list(known)}")
    return value


def _scratch(folder: str | Path | None) -> Path:
    if folder is None:
        from gnnkit.storage.catalog import default_root

        folder = default_root()
    path = Path(folder).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatasetError(f"{path} cannot be written: {error.strerror or error}", "name another folder: scratch_dir=...") from error
    return path


# The source ----------------------------------------------------------------------------------------------------------------


@dataclass
class _Arrays:
    """The arrays of one type while and after its table is read."""

    columns: dict[str, Column]
    num_rows: int = 0
    specs: dict[str, ArraySpec] = field(default_factory=dict)

    def finish(self) -> None:
        self.specs = {name: column.finish() for name, column in self.columns.items()}

    def chunks(self, name: str) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yields the rows of an array, with the number of the first one."""
        step = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // max(1, self.specs[name].row_nbytes)))
        for start in range(0, self.num_rows, step):
            yield start, self.columns[name].rows(start, min(start + step, self.num_rows))


class TableSource:
    """A ``GraphSource`` over tables; made by ``gnnkit.tables``, which reads them.

    What was read lies on disk in files without names, as long as the source is there: it takes about as much as the store that is built.
    """

    def __init__(
        self,
        layout: _Layout,
        *,
        fill: Mapping[str, Any],
        dangling: str,
        time_unit: str,
        name: str,
        folder: Path,
        memory_bytes: int,
        events: EventSink,
    ) -> None:
        self.name = name
        self.notice: str | None = None
        self.edges_are_cheap = True
        self.link_splits: LinkSplits = {}
        self._layout, self._fill, self._time_unit, self._folder = layout, fill, time_unit, folder
        self._memory, self._events, self._dangling = memory_bytes, events, dangling
        self._threads = min(available_cpus(), _MOST_THREADS)
        self._spools: dict[NodeType, KeySpool] = {}
        self._nodes: dict[NodeType, _Arrays] = {}
        self._edges: dict[EdgeType, _Arrays] = {}
        self._words: dict[tuple[EdgeType, int], ArrayFile] = {}
        self._ids: dict[tuple[EdgeType, int], ArrayFile] = {}
        self._dropped: dict[EdgeType, int] = {}
        # Of each table of edges the numbers of the files that have rows, and of their first rows.
        self._files: dict[EdgeType, list[tuple[int, int]]] = {}
        self.target_windows: dict[EdgeType, int] = {}
        try:
            self._read()
        except OSError as error:
            hint = "free some space, or name another folder: scratch_dir=..."
            raise DatasetError(f"what was read cannot be kept in {folder}: {error.strerror or error}", hint) from error
        sizes = {edge_type: arrays.num_rows - self._dropped.get(edge_type, 0) for edge_type, arrays in self._edges.items()}
        self.schema = GraphSchema(
            {node_type: NodeTypeSchema(arrays.num_rows, arrays.specs) for node_type, arrays in self._nodes.items()},
            {edge_type: EdgeTypeSchema(sizes[edge_type], arrays.specs) for edge_type, arrays in self._edges.items()},
            is_homogeneous=layout.is_homogeneous,
        )
        self.metadata: Mapping[str, Any] = self._facts()
        self._fingerprint = self._digest()

    def check_order(self) -> None:
        """Checks that edges come in the order that ``presorted`` promises, and lets builders rely on it.

        Raises:
            DatasetError: They do not; names the file and the row.
        """
        self.target_windows = {edge_type: self._check_order(edge_type) for edge_type in self._edges}

    def fingerprint(self) -> str:
        """See ``GraphSource``: a digest of the rows, the same in whatever form and pieces they came."""
        return self._fingerprint

    @cached_property
    def keys(self) -> Mapping[NodeType, NodeKeys]:
        """``{node type: NodeKeys}`` of the types whose nodes have names."""
        return {node_type: spool.node_keys(node_type) for node_type, spool in self._spools.items()}

    def edge_chunks(self, edge_type: EdgeType) -> Iterator[NDArray[np.int64]]:
        """See ``GraphSource``."""
        for _, edges, kept in self._edge_ids(edge_type):
            yield edges if kept is None else np.ascontiguousarray(edges[:, kept])

    def edge_array_chunks(self, edge_type: EdgeType, name: str) -> Iterator[NDArray[Any]]:
        """See ``GraphSource``."""
        for start, rows in self._edges[edge_type].chunks(name):
            if edge_type in self._dropped:
                ends = [self._ids[edge_type, end].read(start, start + len(rows)) for end in (0, 1)]
                rows = rows[(ends[0] >= 0) & (ends[1] >= 0)]
            yield rows

    def node_array_chunks(self, node_type: NodeType, name: str) -> Iterator[NDArray[Any]]:
        """See ``GraphSource``."""
        for _, rows in self._nodes[node_type].chunks(name):
            yield rows

    # Reading ---------------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        layout = self._layout
        distinct = self._distinct()
        self._splits: dict[NodeType, Codes] = {}
        for node in layout.nodes.values():
            self._nodes[node.name] = _Arrays(self._columns(node))
            self._read_nodes(node)
        for edge in layout.edges.values():
            self._edges[edge.name] = _Arrays(self._columns(edge))
            self._read_edges(edge, distinct)
        for arrays in (*self._nodes.values(), *self._edges.values()):
            arrays.finish()
        self.splits: Mapping[NodeType, Mapping[str, NDArray[np.int64]]] = {t: self._split(t, codes) for t, codes in self._splits.items()}
        for node_type, keys in distinct.items():
            spool = self._spools[node_type]
            for chunk in keys.chunks():
                column = [key_column(chunk)]
                spool.append(column, words_of(column))
            self._nodes[node_type].num_rows = spool.num_rows
        self._resolve()

    def _distinct(self) -> dict[NodeType, DistinctKeys]:
        """Makes the collections of keys of node types without a table."""
        found: dict[NodeType, DistinctKeys] = {}
        for edge in self._layout.edges.values():
            for columns, node_type in zip(edge.ends, (edge.name[0], edge.name[2]), strict=True):
                node = self._layout.nodes[node_type]
                if node.keys or node.by_row:
                    continue
                kind = key_kind(edge.table, columns[0], "src or dst")
                if node_type in found and list(self._spools[node_type].columns.values()) != [kind]:
                    raise PlanError(
                        f"{columns[0]!r} of {edge.table.what} is {kind}, and other edges name {node_type!r} nodes otherwise",
                        f"types={{{columns[0]!r}: 'string'}} reads a column as text",
                    )
                if node_type not in found:
                    self._spools[node_type] = KeySpool({columns[0]: kind}, self._folder)
                    found[node_type] = DistinctKeys(kind, self._folder, self._memory // 2)
        for node in self._layout.nodes.values():
            if node.table is None and node.count is None and node.name not in found:
                raise PlanError(f"there is neither a table of nodes {node.name!r} nor an edge that names one")
        return found

    def _columns(self, owner: _NodeTable | _EdgeTable) -> dict[str, Column]:
        """The arrays that the table of a type is asked for."""
        uses, made = owner.uses, dict[str, Column]()
        common: tuple[Any, ...] = (self._layout.types, self._fill, self._folder)
        features, one_hot = uses.get("features", ()), uses.get("one_hot", ())
        is_node = isinstance(owner, _NodeTable)
        if features or one_hot:
            numbers = Numbers(features, "float32", *common) if features else None
            made[FEATURE_NAME if is_node else _EDGE_FEATURES] = Features(numbers, [Codes(column, *common) for column in one_hot])
        if label := uses.get("label"):
            assert owner.table is not None
            text = is_text(plain_type(owner.table.need(label[0], "label")))
            name = LABEL_NAME if is_node else "edge_label"
            one = len(label) == 1
            column: Column = Codes(label[0], *common) if text and one else Numbers(label, None, *common, flat=one)
            made[name] = column
        for found in uses.get("time", ()):
            made[_TIME] = Times(found, self._time_unit, *common)
        for found in uses.get("edge_weight", ()):
            made[_WEIGHT] = Numbers([found], None, *common, flat=True)
        for found in uses.get("categories", ()):
            if found in made:
                raise PlanError(f"categories={found!r} of {owner.name!r}: another array has that name already", "rename the column")
            made[found] = Codes(found, *common)
        return made

    def _read_nodes(self, node: _NodeTable) -> None:
        arrays = self._nodes[node.name]
        if node.table is None:
            arrays.num_rows = node.count or 0
            return
        columns: list[Column] = list(arrays.columns.values())
        for name in node.uses.get("split", ()):
            self._splits[node.name] = Codes(name, self._layout.types, self._fill, self._folder, optional=True)
            columns.append(self._splits[node.name])
        if node.keys:
            kinds = {column: key_kind(node.table, column, "keys") for column in node.keys}
            self._spools[node.name] = KeySpool(kinds, self._folder)

        def work(piece: Piece) -> tuple[int, Any, list[Any]]:
            keys = [key_column(key_array(piece, column, self._layout.types)) for column in node.keys]
            return piece.rows.num_rows, (keys, words_of(keys)) if keys else None, [column.convert(piece) for column in columns]

        for count, keys, values in self._pieces(node.table, [*node.keys, *(name for column in columns for name in column.columns)], work):
            if keys is not None:
                self._spools[node.name].append(*keys)
            for column, value in zip(columns, values, strict=True):
                column.append(value)
            arrays.num_rows += count

    def _read_edges(self, edge: _EdgeTable, distinct: Mapping[NodeType, DistinctKeys]) -> None:
        arrays = self._edges[edge.name]
        columns = list(arrays.columns.values())
        node_types = (edge.name[0], edge.name[2])
        for end, node_type in enumerate(node_types):
            spec = self._spools[node_type].words.spec if node_type in self._spools else ArraySpec("uint64", (1,))
            self._words[edge.name, end] = ArrayFile(spec, self._folder)

        files = self._files.setdefault(edge.name, [])

        def work(piece: Piece) -> tuple[int, list[Any], list[Any], list[Any], int]:
            ends = [[key_array(piece, column, self._layout.types) for column in edge.ends[end]] for end in (0, 1)]
            words = [words_of([key_column(array) for array in keys]) for keys in ends]
            found = [pc.unique(keys[0]) if node_type in distinct else None for keys, node_type in zip(ends, node_types, strict=True)]
            return piece.rows.num_rows, words, found, [column.convert(piece) for column in columns], piece.file

        names = [*edge.ends[0], *edge.ends[1], *(name for column in columns for name in column.columns)]
        for count, words, found, values, file in self._pieces(edge.table, names, work):
            if not files or files[-1][0] != file:
                files.append((file, arrays.num_rows))
            for end, node_type in enumerate(node_types):
                self._words[edge.name, end].append(words[end])
                if found[end] is not None:
                    distinct[node_type].add(found[end])
            for column, value in zip(columns, values, strict=True):
                column.append(value)
            arrays.num_rows += count

    def _pieces(self, table: Table, names: Sequence[str], work: Any) -> Iterator[Any]:
        """Yields what threads make of the pieces of a table, in order."""
        with Stage(self._events, "ingest", label=f"{self.name}, {table.what}", unit="rows") as stage:
            columns = list(dict.fromkeys(names)) or table.schema.names[:1]  # rows of no column cannot be counted
            results = overlap(table.pieces(columns), work, num_threads=self._threads, depth=2 * self._threads)
            try:
                for result in results:
                    yield result
                    stage.advance(result[0])
            finally:
                results.close()

    def _split(self, node_type: NodeType, codes: Codes) -> dict[str, NDArray[np.int64]]:
        codes.finish()
        found: dict[str, list[NDArray[np.int64]]] = {}
        for start in range(0, self._nodes[node_type].num_rows, _CHUNK_ROWS):
            rows = codes.rows(start, min(start + _CHUNK_ROWS, self._nodes[node_type].num_rows))
            for code, value in enumerate(codes.values):
                if not isinstance(value, str):
                    raise DatasetError(f"split {codes.columns[0]!r} of {node_type!r} holds {value!r}", "names of splits are text")
                found.setdefault(_SPLITS.get(value, value), []).append(np.flatnonzero(rows == code) + start)
        return {name: np.sort(np.concatenate(ids)).astype(np.int64) for name, ids in sorted(found.items())}

    def _resolve(self) -> None:
        """Finds the ids of the ends of all edges, node type by node type."""
        with ThreadPoolExecutor(self._threads, "gnnkit-keys") as pool:
            for node_type, arrays in self._nodes.items():
                dtype = ArraySpec("int32" if arrays.num_rows < 1 << 31 else "int64")
                ends = [key for key in self._words if key[0][2 * key[1]] == node_type]
                for key in ends:
                    self._ids[key] = ArrayFile(dtype, self._folder)
                if node_type in self._spools:
                    files = [(self._words[key], self._ids[key]) for key in ends]
                    resolve(self._spools[node_type], files, f"nodes {node_type!r}", self._memory, pool)
                    continue
                for key in ends:
                    for words in self._words[key].chunks(_CHUNK_ROWS):
                        rows = words.view(np.int64).reshape(-1)
                        self._ids[key].append(np.where((rows >= 0) & (rows < arrays.num_rows), rows, -1))
        for edge_type in self._edges:
            self._check_ends(edge_type)
        for file in self._words.values():
            file.close()

    def _check_ends(self, edge_type: EdgeType) -> None:
        """Refuses or counts the edges that name no node."""
        missing, first = 0, list[int]()
        for start, _, kept in self._edge_ids(edge_type, look=True):
            assert kept is not None
            bad = np.flatnonzero(~kept)
            missing += len(bad)
            first += (bad[: _SHOWN - len(first)] + start).tolist()
        if not missing:
            return
        if self._dangling == "drop":
            self._dropped[edge_type] = missing
            return
        table, total = self._layout.edges[edge_type].table, self._edges[edge_type].num_rows
        shown = ", ".join(self._shown_edges(edge_type, first))
        raise DatasetError(
            f"{missing} of {total} {table.what} name no node: {shown}",
            'add these nodes to their tables, or leave the edges out with dangling="drop"',
        )

    def _check_order(self, edge_type: EdgeType) -> int:
        """Checks the promise of ``presorted``.

        Returns:
            How many rows apart two edges are, at most, of which the later one's target has the smaller number.

        Raises:
            DatasetError: The promise is broken; names the file and the row.
        """
        table, files = self._layout.edges[edge_type].table, self._files[edge_type]
        starts = np.array([first for _, first in files], np.int64)
        # Targets in the file, or up to the row, that was looked at last; and of all before it.
        largest, before, at, is_sorted = -1, -1, 0, True
        for start, edges, _ in self._edge_ids(edge_type):
            targets = edges[1]
            for number, low, high in _cut(starts, start, len(targets)):
                if number != at:
                    before, at = largest, number
                part = targets[low:high]
                kept = part >= 0
                is_sorted &= bool((np.diff(part[kept], prepend=largest) >= 0).all())
                floor = before if len(files) > 1 else np.maximum.accumulate(np.concatenate([[largest], part[:-1]]))
                if (bad := np.flatnonzero(kept & (part < floor))).size:
                    raise self._out_of_order(table, edge_type, number, int(start + low + bad[0]))
                largest = max(largest, int(part.max(initial=-1)))
        widest = int(np.diff(starts, append=self._edges[edge_type].num_rows).max(initial=0))
        return 0 if is_sorted else widest

    def _out_of_order(self, table: Table, edge_type: EdgeType, number: int, row: int) -> DatasetError:
        file, first = self._files[edge_type][number]
        where = f"{table.files[file]}, row {row - first}" if table.files else f"row {row}"
        than = "a file before it" if len(self._files[edge_type]) > 1 else "a row before it"
        (shown,) = self._shown_edges(edge_type, [row])
        return DatasetError(
            f"presorted=True, and {table.what} are in another order: {where}, has a target with a smaller number than {than} ({shown})",
            "write them with repartitionByRange or sorted by the target; a table of nodes has to be sorted by its key, too",
        )

    def _shown_edges(self, edge_type: EdgeType, rows: list[int]) -> list[str]:
        """Edges as their table has them; their row numbers alone, where it cannot be read again."""
        edge = self._layout.edges[edge_type]
        shown = []
        if not edge.table.can_be_read_again:
            return [f"row {row}" for row in rows]
        for piece in edge.table.pieces(list(dict.fromkeys([*edge.ends[0], *edge.ends[1]]))):
            for row in [row for row in rows if piece.first <= row < piece.first + piece.rows.num_rows]:
                ends = []
                for end in (0, 1):
                    values = [column_of(piece, column, self._layout.types)[row - piece.first].as_py() for column in edge.ends[end]]
                    lost = int(self._ids[edge_type, end].read(row, row + 1)[0]) < 0
                    ends.append(f"{values[0] if len(values) == 1 else tuple(values)!r}{' (unknown)' if lost else ''}")
                shown.append(f"row {row}: {ends[0]} to {ends[1]}")
            if rows and piece.first + piece.rows.num_rows > rows[-1]:
                break
        return shown

    def _edge_ids(self, edge_type: EdgeType, look: bool = False) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.bool_] | None]]:
        """Yields the number of the first row, ids ``[2, k]``, and which edges are kept; None for all."""
        for start in range(0, self._edges[edge_type].num_rows, _CHUNK_ROWS):
            stop = min(start + _CHUNK_ROWS, self._edges[edge_type].num_rows)
            edges = np.stack([self._ids[edge_type, end].read(start, stop) for end in (0, 1)]).astype(np.int64)
            kept = (edges[0] >= 0) & (edges[1] >= 0) if look or edge_type in self._dropped else None
            yield start, edges, kept

    # What came of it -------------------------------------------------------------------------------------------------------

    def _facts(self) -> dict[str, Any]:
        """Returns what became of the columns, as JSON."""
        layout, facts, classes = self._layout, dict[str, Any](), dict[NodeType, list[Any]]()
        owners: list[tuple[str, Any, _Arrays]] = [(name, layout.nodes[name], arrays) for name, arrays in self._nodes.items()]
        owners += [(edge_type_name(name), layout.edges[name], arrays) for name, arrays in self._edges.items()]
        for label, owner, arrays in owners:
            own: dict[str, Any] = {name: column.facts() for name, column in arrays.columns.items()}
            used = {name for columns in owner.uses.values() for name in columns}
            if isinstance(owner, _NodeTable):
                own["keys"] = list(owner.keys) or ("row numbers" if owner.by_row else "from the edges, in ascending order")
                used |= set(owner.keys)
                codes: Any = arrays.columns.get(LABEL_NAME)
                if isinstance(codes, Codes):
                    classes[owner.name] = codes.values
                if owner.name in self._splits:
                    own["split"] = {"column": owner.uses["split"][0]}
            else:
                own["src"], own["dst"] = (list(columns) for columns in owner.ends)
                used |= {*owner.ends[0], *owner.ends[1]}
                if dropped := self._dropped.get(owner.name):
                    own["dropped_edges"] = dropped
            if owner.table is not None and (
                unused := [n for n in owner.table.schema.names if n not in used and not n.startswith("__index")]
            ):
                own["unused"] = unused
            if filled := {name: self._fill[name] for name in sorted(used & set(self._fill))}:
                own["fill"] = filled
            facts[label] = own
        found = {"num_classes": len(next(iter(classes.values())))} if len(classes) == 1 else {}
        return {"tables": facts, **found}

    def _digest(self) -> str:
        digest = hashlib.sha256(json.dumps(self.schema.to_json()).encode())

        def add(*values: Any) -> None:
            digest.update(json.dumps(values).encode())

        for node_type, arrays in self._nodes.items():
            add(node_type, {name: column.digest() for name, column in arrays.columns.items()})
            if node_type in self._spools:
                add(self._spools[node_type].columns, self._spools[node_type].digest())
            for split, ids in self.splits.get(node_type, {}).items():
                add(split, hashlib.sha256(ids.tobytes()).hexdigest())
        for edge_type, edge_arrays in self._edges.items():
            ends = hashlib.sha256()
            for edges in self.edge_chunks(edge_type):
                ends.update(np.ascontiguousarray(edges.T).data.cast("B") if edges.size else b"")
            add(edge_type, ends.hexdigest(), {name: column.digest() for name, column in edge_arrays.columns.items()})
        # What became of columns, but for those that became nothing.
        add({owner: {name: fact for name, fact in own.items() if name != "unused"} for owner, own in self.metadata["tables"].items()})
        return digest.hexdigest()

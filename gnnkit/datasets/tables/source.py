"""``gnnkit.tables``: tables of nodes and of edges as a source that stores are built from, given as arguments or named by a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import yaml
from numpy.typing import NDArray

from gnnkit.arguments import check_known, checks_calls, documented_fields, spelled_out
from gnnkit.bounds import size_in_bytes
from gnnkit.datasets.derived import UndirectedSource
from gnnkit.datasets.streaming import overlap
from gnnkit.datasets.table_options import ELSEWHERE, TableOptions
from gnnkit.datasets.tables.columns import Codes, Column, Features, Recoding, column_of
from gnnkit.datasets.tables.digests import ChainedDigest
from gnnkit.datasets.tables.keys import DistinctKeys, KeySpool, KeyTable, key_column, key_kind, parts_for, resolve
from gnnkit.datasets.tables.layout import EdgeTable, Layout, NodeTable, types_of, types_to_text
from gnnkit.datasets.tables.readers import TIME, EdgeReader, Finder, NodeReader, ReadOptions
from gnnkit.datasets.tables.reading import SourceTable
from gnnkit.datasets.tables.rows import KeptRows, Place, Rows
from gnnkit.errors import DatasetError, PlanError
from gnnkit.events import EventSink, Stage, ignore_events
from gnnkit.files import read_bounded, user_path
from gnnkit.host import available_cpus, available_memory
from gnnkit.rendering import Shown
from gnnkit.schema import (
    ArraySpec,
    EdgeType,
    EdgeTypeSchema,
    GraphSchema,
    NodeType,
    NodeTypeSchema,
    edge_type_name,
)
from gnnkit.source import LinkSplits
from gnnkit.storage.catalog import writable_root
from gnnkit.storage.files import ArrayFile
from gnnkit.storage.keys import NodeKeys, words_of
from gnnkit.storage.layout import LABEL_NAME, split_file
from gnnkit.storage.store import Store
from gnnkit.urls import is_url

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from gnnkit.datasets.table_types import TableKeywords
    from gnnkit.datasets.tables.hosts import TableEngine  # circular

Columns: TypeAlias = "str | Sequence[str]"
# What files call the splits, in any case, after scikit-learn, Hugging Face, PyG and OGB.
_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("valid", "val", "validation", "dev", "development"), "valid"),
    **dict.fromkeys(("test", "testing", "holdout", "hold-out", "heldout", "held-out"), "test"),
}
_SHOWN = 10
_CHUNK_ROWS, _CHUNK_BYTES = 1 << 20, 16 << 20
_MIN_MEMORY, _MAX_MEMORY = 64 << 20, 512 << 20
_MOST_THREADS = 4


@partial(spelled_out, options=documented_fields(TableOptions), check_names=partial(check_known, instead=ELSEWHERE, of=" of tables()"))
def tables(
    edges: Any,
    nodes: Any = None,
    *,
    scratch_dir: str | Path | None = None,
    memory_bytes: int | str | None = None,
    engine: TableEngine | None = None,
    events: EventSink = ignore_events,
    **options: Unpack[TableKeywords],
) -> TableSource | UndirectedTables:
    """Tables of nodes and edges as a graph, for ``GraphLoader.from_source`` and ``gnnkit.partition``.

    A table is a path, a URL, a glob, a folder or a list of them (Parquet; Arrow or Feather; texts such as CSV, also .gz, .zst, .bz2, .lz4
    and .xz); anything with ``__arrow_c_stream__`` (Polars, DuckDB, pandas, pyarrow); a pandas data frame; ``{column: array}``; or
    ``(src, dst)``, two arrays. ``edges`` may be a NetworkX graph. Each table is read once, front to back, in bounded memory.

    Node ``i`` is row ``i`` of its type's table, edge ``e`` row ``e`` of its own. A node type without a table has the nodes that edges name,
    in ascending order of their keys (texts by their UTF-8 bytes). Files of a glob or folder come in the order of their names;
    names of folders such as "year=2020" are columns. A folder of Delta is read as its log says, with ``deltalake``.

    Options that name columns take, for a graph of one node type and one edge type, the columns; else ``{type: columns}``, where a type
    is a node type or an edge type, and ``src`` and ``dst`` may be one name for all.

    Args:
        edges: The table of edges; ``{(source type, relation, target type): table}`` for a typed graph.
        nodes: The table of nodes, or their number; ``{node type: either}`` for a typed graph.
        **options: See ``TableOptions``.
        scratch_dir: Folder for what is kept while the tables are read; None is that of datasets. With ``engine``, all its nodes see it.
        memory_bytes: Memory for dictionaries of keys, in bytes or as "512MB"; None is a 16th of what is available, between 64 MB and
            512 MB.
        engine: What reads: None is this process; ``gnnkit.Ray(...)`` has each node of a cluster read its share of the row groups of Parquet
            files, which all nodes see (``docs/how-to/ray.md``). It is the same graph. Other tables, and all where edges may be dropped or
            features are fitted, this process reads in any case.
        events: Receives the stage "ingest" for each table, in rows, and "download" for those at URLs, in bytes.

    Raises:
        PlanError: An option names no column, or a table is none; nothing was read.
        DatasetError: A file is missing or damaged, a value does not fit, a key is missing or double, or an edge names no node. The message
            names file, row group and column.
    """
    own = TableOptions(**options)
    layout = Layout.of(edges, nodes, own, types_of(own.types), events)
    fill = layout.fills(own.fill)
    if own.undirected:
        layout.check_undirected()
    made: dict[str, Any] = {
        "layout": layout,
        "fill": fill,
        "dangling": own.dangling,
        "time_unit": own.time_unit,
        "name": own.name,
        "folder": _scratch(scratch_dir),
        "memory_bytes": size_in_bytes("memory_bytes", memory_bytes) or _memory(),
        "events": events,
    }
    source: TableSource | None = None
    if engine is not None:
        from gnnkit.datasets.tables.hosts import HostTables  # circular

        if HostTables.can_read(layout, fill, own.dangling):
            source = HostTables(engine, **made)
    source = source or TableSource(**made)
    if own.presorted:
        source.check_order()
    return UndirectedTables(source, made["folder"], events) if own.undirected else source


def tables_after(
    store: Store,
    edges: Any = None,
    nodes: Any = None,
    *,
    fill: Mapping[str, Any] | None = None,
    folder: Path,
    events: EventSink = ignore_events,
) -> TableSource:
    """Tables that come after those of a store, for ``Store.append``.

    Args:
        store: The store.
        edges: Tables of edges, as ``tables`` takes them.
        nodes: Tables of nodes, or numbers of nodes, likewise.
        fill: What takes the place of nulls in columns of which the store's tables said nothing.
        folder: Folder for what is kept while the tables are read.
        events: Receives the stage "ingest" for each table, in rows.

    Raises:
        PlanError: The store was not made of tables, a column is missing, or see ``tables``.
        DatasetError: See ``tables``.
    """
    state = store.manifest.append_state
    if state is None:
        raise PlanError(
            f"the store {store.path} was not made of tables, or with undirected=, standardize= or 'mean', for which all rows are needed",
            "gnnkit.tables(...) makes one that more can be appended to",
        )
    for column, value in (fill or {}).items():
        if state["fill"].get(column, value) != value:
            raise PlanError(f"fill={{{column!r}: {value!r}}}: the store's tables were filled with {state['fill'][column]!r}")
    layout = Layout.after(store, state, edges, nodes, events)
    layout.need_columns("fill", fill or {})
    return TableSource(
        layout,
        fill={**state["fill"], **(fill or {})},
        dangling=state["dangling"],
        time_unit=state["time_unit"],
        name=store.name,
        folder=folder,
        memory_bytes=_memory(),
        events=events,
        after=store,
    )


def _memory() -> int:
    return max(_MIN_MEMORY, min(_MAX_MEMORY, available_memory() // 16))


def _scratch(folder: str | Path | None) -> Path:
    path = writable_root() if folder is None else user_path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatasetError(f"{path} cannot be written: {error.strerror or error}", "name another folder: scratch_dir=...") from error
    return path


def _row_numbers(words: NDArray[np.uint64], total: int) -> NDArray[np.int64]:
    """Ids of nodes that are named by their row numbers; -1 where there is no such row."""
    rows = words.view(np.int64).reshape(-1)
    return np.where((rows >= 0) & (rows < total), rows, -1)


_FROM_EDGES = "from the edges, in ascending order"
_FROM_EDGES_APPENDED = "from the edges, in ascending order, those of appended edges after them"

# The source ----------------------------------------------------------------------------------------------------------------


@dataclass
class _ColumnArrays:
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


@checks_calls()
class TableSource(Shown):
    """A ``GraphSource`` over tables; made by ``gnnkit.tables``, which reads them. Its card shows how they were read.

    What was read lies on disk in files without names, as long as the source is there: it takes about as much as the store that is built.

    The tables may come after those of a store (``tables_after``). Then schema, splits, metadata, fingerprint and ids are those of all
    tables, and the rows and keys that it gives those of the new ones.
    """

    def __init__(  # noqa: PLR0913 - the options of ``tables``
        self,
        layout: Layout,
        *,
        fill: Mapping[str, Any],
        dangling: str,
        time_unit: str,
        name: str,
        folder: Path,
        memory_bytes: int,
        events: EventSink,
        after: Store | None = None,
        place: Place | None = None,
    ) -> None:
        self.name = name
        self.notice: str | None = None
        self.edges_are_cheap = True
        self.link_splits: LinkSplits = {}
        self._layout, self._fill, self._time_unit, self._folder = layout, fill, time_unit, folder
        self._options = ReadOptions(layout.types, fill, time_unit, dangling == "drop")
        self._place: Place = place or partial(KeptRows, folder)
        self._after = after
        self._state: Mapping[str, Any] = {} if after is None else after.manifest.append_state or {}
        self._memory, self._events, self._dangling = memory_bytes, events, dangling
        self._threads = min(available_cpus(), _MOST_THREADS)
        self._spools: dict[NodeType, KeySpool] = {}
        self._nodes: dict[NodeType, _ColumnArrays] = {}
        self._edges: dict[EdgeType, _ColumnArrays] = {}
        self._words: dict[tuple[EdgeType, int], ArrayFile] = {}
        self._ids: dict[tuple[EdgeType, int], ArrayFile | Rows] = {}
        # Edges left out because they name no node, which have the id -1, and because they have a null for one, which have none.
        self._dropped: dict[EdgeType, int] = {}
        self._null_ends: dict[EdgeType, int] = {}
        # Of each table of edges the numbers of the files that have rows, and of their first rows.
        self._files: dict[EdgeType, list[tuple[int, int]]] = {}
        self.target_windows: dict[EdgeType, int] = {}
        try:
            self._read()
        except OSError as error:
            hint = "free some space, or name another folder: scratch_dir=..."
            raise DatasetError(f"what was read cannot be kept in {folder}: {error.strerror or error}", hint) from error
        nodes = {name: NodeTypeSchema(self._before(name) + arrays.num_rows, arrays.specs) for name, arrays in self._nodes.items()}
        edges = {}
        for edge_type, arrays in self._edges.items():
            count = self._before(edge_type) + arrays.num_rows - self._dropped.get(edge_type, 0)
            edges[edge_type] = EdgeTypeSchema(count, arrays.specs)
        self.schema = GraphSchema(nodes, edges, is_homogeneous=layout.is_homogeneous)
        self.metadata: Mapping[str, Any] = self._facts()
        self._end_digests = {
            edge_type: [ChainedDigest(state) for state in self._own(edge_type).get("digests", (None, None))] for edge_type in self._edges
        }
        self._fingerprint = self._digest()

    def check_order(self) -> None:
        """Checks that edges come in the order that ``presorted`` promises, and lets builders rely on it.

        Raises:
            DatasetError: They do not; names the file and the row.
        """
        self.target_windows = {edge_type: self._check_order(edge_type) for edge_type in self._edges}

    def fingerprint(self) -> str:
        """A digest of the rows, the same in whatever form and pieces they came."""
        return self._fingerprint

    @cached_property
    def append_state(self) -> Mapping[str, Any] | None:
        """The columns of the tables and the states of their digests, as JSON: all that ``Store.append`` needs to go on with them.

        None where features are fitted to rows, which are others with more of them.
        """
        layout = self._layout
        if self._is_fitted:
            return None
        nodes, edges = dict[str, Any](), dict[str, Any]()
        for name, node in layout.nodes.items():
            nodes[name] = {
                "form": node.form,
                "keys": list(node.keys),
                "split": self._splits[name].state() if name in self._splits else None,
                "names": self._spools[name].state() if name in self._spools else None,
                **self._columns_state(node, self._nodes[name]),
            }
        for edge_type, edge in layout.edges.items():
            edges[edge_type_name(edge_type)] = {
                "ends": self._own(edge_type).get("ends", [list(columns) for columns in edge.ends]),
                "named": list(edge.named),
                "dropped": self._num_dropped(edge_type),
                "null_ends": self._num_null_ends(edge_type),
                "digests": [digest.state() for digest in self._end_digests[edge_type]],
                **self._columns_state(edge, self._edges[edge_type]),
            }
        options = {"types": types_to_text(layout.types), "fill": self._fill, "dangling": self._dangling, "time_unit": self._time_unit}
        return {"nodes": nodes, "edges": edges, **options}

    def _columns_state(self, owner: NodeTable | EdgeTable, arrays: _ColumnArrays) -> dict[str, Any]:
        own = self._own(owner.name)
        rows = own.get("rows", 0) + arrays.num_rows
        columns = {array: column.state() for array, column in arrays.columns.items()} if rows else {}
        text = own.get("text", {}) if own else owner.table.told if owner.table is not None else {}
        uses = {option: list(found) for option, found in owner.uses.items()}
        return {"uses": uses, "rows": rows, "columns": columns, **({"text": text} if text else {})}

    @property
    def _is_fitted(self) -> bool:
        every = [column for arrays in (*self._nodes.values(), *self._edges.values()) for column in arrays.columns.values()]
        return any(isinstance(column, Features) and column.is_fitted for column in every)

    def recoding(self, name: NodeType | EdgeType, array: str) -> Recoding | None:
        """Makes rows of an array of the store what they are among all rows; None where they stay as they are."""
        if not self._own(name).get("rows", 0):
            return None
        return self._arrays(name).columns[array].recoding()

    def _own(self, name: NodeType | EdgeType) -> Mapping[str, Any]:
        """The state that the store's tables of a type ended in; empty where there is no store."""
        if not self._state:
            return {}
        own: Mapping[str, Any] = self._state["edges"][edge_type_name(name)] if isinstance(name, tuple) else self._state["nodes"][name]
        return own

    def _before(self, name: NodeType | EdgeType) -> int:
        """Nodes or edges of a type in the store."""
        if self._after is None:
            return 0
        schema = self._after.schema
        return schema.edge_types[name].num_edges if isinstance(name, tuple) else schema.node_types[name].num_nodes

    def _num_nodes(self, node_type: NodeType) -> int:
        return self._before(node_type) + self._nodes[node_type].num_rows

    def _id_spec(self, node_type: NodeType) -> ArraySpec:
        return ArraySpec("int32" if self._num_nodes(node_type) < 1 << 31 else "int64")

    def _num_dropped(self, edge_type: EdgeType) -> int:
        return int(self._own(edge_type).get("dropped", 0)) + self._dropped.get(edge_type, 0)

    def _num_null_ends(self, edge_type: EdgeType) -> int:
        return int(self._own(edge_type).get("null_ends", 0)) + self._null_ends.get(edge_type, 0)

    @cached_property
    def keys(self) -> Mapping[NodeType, NodeKeys]:
        """``{node type: NodeKeys}`` of the types whose nodes have names."""
        return {node_type: spool.node_keys(node_type) for node_type, spool in self._spools.items()}

    def edge_chunks(self, edge_type: EdgeType) -> Iterator[NDArray[np.int64]]:
        """The edges in their own order, ``[2, k]`` at a time."""
        for _, edges, kept in self._edge_ids(edge_type):
            yield edges if kept is None else np.ascontiguousarray(edges[:, kept])

    def edge_array_chunks(self, edge_type: EdgeType, name: str) -> Iterator[NDArray[Any]]:
        """The rows of an edge array, some at a time."""
        for start, rows in self._edges[edge_type].chunks(name):
            if edge_type in self._dropped:
                ends = [self._ids[edge_type, end].read(start, start + len(rows)) for end in (0, 1)]
                rows = rows[(ends[0] >= 0) & (ends[1] >= 0)]
            yield rows

    def node_array_chunks(self, node_type: NodeType, name: str) -> Iterator[NDArray[Any]]:
        """The rows of a node array, some at a time."""
        for _, rows in self._nodes[node_type].chunks(name):
            yield rows

    # Reading ---------------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        layout = self._layout
        distinct = self._distinct()
        self._splits: dict[NodeType, Codes] = {}
        for node in layout.nodes.values():
            self._nodes[node.name] = _ColumnArrays(self._columns(node))
            self._read_nodes(node)
            self._refuse_nodes_that_edges_were_dropped_for(node.name)
        finders = self._finders(self._memory // 2 if distinct else self._memory)
        for edge in layout.edges.values():
            self._edges[edge.name] = _ColumnArrays(self._columns(edge))
            self._read_edges(edge, distinct, finders)
        pending = [node_type for node_type in self._spools if node_type not in finders]
        del finders  # and their memory
        for arrays in (*self._nodes.values(), *self._edges.values()):
            arrays.finish()
        self._check_times()
        self.splits: Mapping[NodeType, Mapping[str, NDArray[np.int64]]] = {t: self._split(t, codes) for t, codes in self._splits.items()}
        for name, arrays in (*self._nodes.items(), *self._edges.items()):
            for column in arrays.columns.values():
                if isinstance(column, Features):
                    column.fit(self.splits[name].get("train", ()) if name in self.splits else None)
        for node_type, keys in distinct.items():
            spool = self._spools[node_type]
            for chunk in keys.chunks():
                words = words_of([key_column(chunk)])
                if spool.num_before:
                    is_new = spool.find_before(words) < 0
                    chunk, words = chunk.filter(pa.array(is_new)), words[is_new]
                spool.append([key_column(chunk)], words)
            self._nodes[node_type].num_rows = spool.num_rows
        self._resolve(pending)

    def _check_times(self) -> None:
        """Refuses whole numbers beside timestamps: they would be compared with each other, in units that differ.

        Raises:
            DatasetError: Names the columns of both.
        """
        owners: list[NodeTable | EdgeTable] = [*self._layout.nodes.values(), *self._layout.edges.values()]
        timed = [(owner, self._arrays(owner.name)) for owner in owners if "time" in owner.uses]
        found = {arrays.specs[TIME].unit: owner for owner, arrays in timed if arrays.num_rows or self._own(owner.name).get("rows", 0)}
        if len(found) > 1 and None in found:
            number, (dated, *_) = found.pop(None), found.values()
            (column,), (other,) = number.uses["time"], dated.uses["time"]
            raise DatasetError(
                f"{column!r} of {number.name!r} has whole numbers, and {other!r} of {dated.name!r} has timestamps",
                f"types={{{column!r}: 'timestamp[s]'}} reads whole numbers as seconds since 1970, and 'timestamp[ms]' as milliseconds",
            )

    def _arrays(self, name: NodeType | EdgeType) -> _ColumnArrays:
        return self._edges[name] if isinstance(name, tuple) else self._nodes[name]

    def _distinct(self) -> dict[NodeType, DistinctKeys]:
        """Makes the collections of keys of node types without a table."""
        found: dict[NodeType, DistinctKeys] = {}
        for edge in self._layout.edges.values():
            for columns, node_type in zip(edge.ends, (edge.name[0], edge.name[2]), strict=True):
                node = self._layout.nodes[node_type]
                if node.form != "edges" or edge.table is None:
                    continue
                kind = key_kind(edge.table, columns[0], "src or dst")
                if node_type in found and list(self._spools[node_type].columns.values()) != [kind]:
                    raise PlanError(
                        f"{columns[0]!r} of {edge.table.what} is {kind}, and other edges name {node_type!r} nodes otherwise",
                        f"types={{{columns[0]!r}: 'string'}} reads a column as text",
                    )
                if node_type not in found:
                    self._spools[node_type] = self._spool(node_type, {columns[0]: kind})
                    found[node_type] = DistinctKeys(kind, self._folder, self._memory // 2)
        for node in self._layout.nodes.values():
            if node.form == "edges" and node.name not in found and self._after is not None:
                self._spools[node.name] = self._spool(node.name, {})
            elif node.form == "edges" and node.name not in found:
                raise PlanError(f"there is neither a table of nodes {node.name!r} nor an edge that names one")
        return found

    def _spool(self, node_type: NodeType, columns: Mapping[str, str]) -> KeySpool:
        if self._after is None:
            return KeySpool(columns, self._folder)
        before = self._after.keys(node_type)
        return KeySpool(before.columns, self._folder, before, self._own(node_type)["names"])

    def _refuse_nodes_that_edges_were_dropped_for(self, node_type: NodeType) -> None:
        """Refuses new nodes of a type that edges of the store's tables may have named, and were left out for.

        Raises:
            PlanError: There are such edges.
        """
        if self._after is None or not self._nodes[node_type].num_rows:
            return
        for edge_type in self._layout.edges:
            if node_type in (edge_type[0], edge_type[2]) and (dropped := self._own(edge_type)["dropped"]):
                raise PlanError(
                    f"{dropped} edges {edge_type} of the store {self._after.path} were left out, and may name the new nodes {node_type!r}",
                    "make a store of the whole tables: gnnkit.tables(...)",
                )

    def _columns(self, owner: NodeTable | EdgeTable) -> dict[str, Column]:
        """The arrays that the table of a type is asked for; they go on where those of the store end."""
        before = self._own(owner.name)
        made = self._options.columns(owner, self._place, before.get("columns"))
        if before.get("rows", 0):
            for name, column in made.items():
                column.resume(before["columns"][name])
        return made

    def _read_nodes(self, node: NodeTable) -> None:
        arrays = self._nodes[node.name]
        columns: list[Column] = list(arrays.columns.values())
        if (codes := self._options.split(node, self._place)) is not None:
            if before := self._own(node.name).get("split"):
                codes.resume(before)
            self._splits[node.name] = codes
            columns.append(codes)
        reader = None if node.table is None else NodeReader(node, columns, self._options)
        if node.keys:
            self._spools[node.name] = self._spool(node.name, {} if reader is None else reader.kinds)
        if node.table is None or reader is None:
            arrays.num_rows = node.count
        else:
            self._read_node_table(node, node.table, reader, columns)

    def _read_node_table(self, node: NodeTable, table: SourceTable, reader: NodeReader, columns: Sequence[Column]) -> None:
        arrays = self._nodes[node.name]
        for count, keys, values in self._pieces(table, reader):
            if keys is not None:
                self._spools[node.name].append(*keys)
            for column, value in zip(columns, values, strict=True):
                column.append(value)
            arrays.num_rows += count

    def _finders(self, memory_bytes: int) -> dict[NodeType, Finder]:
        """Makes what finds the ids of keys while edges are read: of the node types that are known by then and whose keys fit the memory."""
        found: dict[NodeType, Finder] = {}
        for name, node in self._layout.nodes.items():
            if node.by_row:
                found[name] = partial(_row_numbers, total=self._num_nodes(name))
            elif node.form == "table" and parts_for(self._spools[name], memory_bytes) == 1:
                table = KeyTable(self._spools[name], f"nodes {name!r}")
                memory_bytes -= table.nbytes
                table.enter()
                table.refuse_doubles()
                found[name] = table.ids
        return found

    def _read_edges(
        self,
        edge: EdgeTable,
        distinct: Mapping[NodeType, DistinctKeys],
        finders: Mapping[NodeType, Finder],
    ) -> None:
        arrays = self._edges[edge.name]
        columns = list(arrays.columns.values())
        node_types = (edge.name[0], edge.name[2])
        for end, node_type in enumerate(node_types):
            if node_type in finders:
                self._ids[edge.name, end] = ArrayFile(self._id_spec(node_type), self._folder)
            else:
                self._words[edge.name, end] = ArrayFile(self._spools[node_type].words.spec, self._folder)
        if edge.table is None:
            return

        files = self._files.setdefault(edge.name, [])
        reader = EdgeReader(edge, columns, self._options, finders, distinct)
        for count, words, found, values, file, left_out in self._pieces(edge.table, reader):
            if left_out:
                self._null_ends[edge.name] = self._null_ends.get(edge.name, 0) + left_out
            if not files or files[-1][0] != file:
                files.append((file, arrays.num_rows))
            for end, node_type in enumerate(node_types):
                (self._ids if node_type in finders else self._words)[edge.name, end].append(words[end])
                if (keys := found[end]) is not None:
                    distinct[node_type].add(keys)
            for column, value in zip(columns, values, strict=True):
                column.append(value)
            arrays.num_rows += count

    def _pieces(self, table: SourceTable, reader: NodeReader | EdgeReader) -> Iterator[Any]:
        """Yields what threads make of the pieces of a table, in order."""
        with Stage(self._events, "ingest", label=f"{self.name}, {table.what}", unit="rows") as stage:
            work: Any = reader.work
            results = overlap(table.pieces(reader.names), work, num_threads=self._threads, depth=2 * self._threads)
            try:
                for result in results:
                    yield result
                    stage.advance(result[0])
            finally:
                results.close()

    def _split(self, node_type: NodeType, codes: Codes) -> dict[str, NDArray[np.int64]]:
        codes.finish()
        before = () if self._after is None else self._after.splits.get(node_type, ())
        found: dict[str, list[NDArray[np.int64]]] = {}
        if self._after is not None:
            found = {name: [self._after.file(split_file(node_type, name))] for name in before}
        known = {**_SPLITS, **{name: name for name in before}}
        named = [known.get(str(value).strip().lower().replace("_", "-")) or known.get(value, "") for value in codes.values]
        if unknown := [value for value, split in zip(codes.values, named, strict=True) if not split]:
            raise DatasetError(
                f"split {codes.columns[0]!r} of {node_type!r} holds {unknown[:_SHOWN]}, which names no split",
                f"known, in any case: {list(_SPLITS)}; a null is in no split",
            )
        for start in range(0, self._nodes[node_type].num_rows, _CHUNK_ROWS):
            rows = codes.rows(start, min(start + _CHUNK_ROWS, self._nodes[node_type].num_rows))
            for code, split in enumerate(named):
                found.setdefault(split, []).append(np.flatnonzero(rows == code) + start + self._before(node_type))
        return {name: np.sort(np.concatenate(ids)).astype(np.int64) for name, ids in sorted(found.items())}

    def _resolve(self, node_types: Sequence[NodeType]) -> None:
        """Finds the ids of the ends of edges that were not found while these were read, node type by node type."""
        with ThreadPoolExecutor(self._threads, "gnnkit-keys") as pool:
            for node_type in node_types:
                ends = [key for key in self._words if key[0][2 * key[1]] == node_type]
                files = []
                for key in ends:
                    self._ids[key] = file = ArrayFile(self._id_spec(node_type), self._folder)
                    files.append((self._words[key], file))
                resolve(self._spools[node_type], files, f"nodes {node_type!r}", self._memory, pool)
        for edge_type in self._edges:
            self._check_ends(edge_type)
        for file in self._words.values():
            file.close()

    def _check_ends(self, edge_type: EdgeType) -> None:
        """Refuses or counts the edges that name no node."""
        missing, first = 0, list[int]()
        for start, ends in self._ends(edge_type):
            bad = np.flatnonzero((ends[0] < 0) | (ends[1] < 0))
            missing += len(bad)
            first += (bad[: _SHOWN - len(first)] + start).tolist()
        if missing and self._dangling == "drop":
            self._dropped[edge_type] = missing
            return
        self._refuse_missing(edge_type, missing, first)

    def _refuse_missing(self, edge_type: EdgeType, missing: int, first: list[int]) -> None:
        """Refuses edges that name no node, of which these are the first.

        Raises:
            DatasetError: There are some.
        """
        if not missing:
            return
        table, total = self._layout.edges[edge_type].table, self._edges[edge_type].num_rows
        assert table is not None, "no rows come from no table"
        shown = ", ".join(self._shown_edges(edge_type, first))
        hint = 'add these nodes to their tables, or leave the edges out with dangling="drop"'
        for node in (self._layout.nodes[edge_type[0]], self._layout.nodes[edge_type[2]]):
            if node.by_row:
                named = "keys= names the column of these ids" if node.form == "table" else "without a number of nodes, edges name them"
                hint = f"nodes {node.name!r} have no keys= and are row numbers, counted from 0: {named}; where ids begin with 1, subtract 1"
        if edge_type[0] != edge_type[2]:
            looked = f"{edge_type[0]!r} has {self._shown_end(edge_type, 0)} and {edge_type[2]!r} {self._shown_end(edge_type, 1)}"
            hint += f"; {looked}: where that is the wrong way round, swap src= and dst="
        raise DatasetError(f"{missing} of {total} {table.what} name no node: {shown}", hint)

    def _check_order(self, edge_type: EdgeType) -> int:
        """Checks the promise of ``presorted``.

        Returns:
            How many rows apart two edges are, at most, of which the later one's target has the smaller number.

        Raises:
            DatasetError: The promise is broken; names the file and the row.
        """
        table, files = self._layout.edges[edge_type].table, self._files[edge_type]
        assert table is not None, "only what is appended may lack one, and no order is promised of it"
        starts, count = [first for _, first in files], self._edges[edge_type].num_rows
        largest, is_sorted = -1, True  # the largest target so far
        for number, (first, last) in enumerate(zip(starts, [*starts[1:], count], strict=False)):
            before = largest
            for start in range(first, last, _CHUNK_ROWS):
                part = self._ids[edge_type, 1].read(start, min(start + _CHUNK_ROWS, last))
                kept = part >= 0
                is_sorted &= bool((np.diff(part[kept], prepend=largest) >= 0).all())
                floor = before if len(files) > 1 else np.maximum.accumulate(np.concatenate([[largest], part[:-1]]))
                if (bad := np.flatnonzero(kept & (part < floor))).size:
                    raise self._out_of_order(table, edge_type, number, start + int(bad[0]))
                largest = max(largest, int(part.max(initial=-1)))
        return 0 if is_sorted else int(np.diff(starts, append=count).max(initial=0))

    def _out_of_order(self, table: SourceTable, edge_type: EdgeType, number: int, row: int) -> DatasetError:
        file, first = self._files[edge_type][number]
        where = f"{table.files[file]}, row {row - first}" if table.files else f"row {row}"
        than = "a file before it" if len(self._files[edge_type]) > 1 else "a row before it"
        (shown,) = self._shown_edges(edge_type, [row])
        return DatasetError(
            f"presorted=True, and {table.what} are in another order: {where}, has a target with a smaller number than {than} ({shown})",
            "write them with repartitionByRange or sorted by the target; a table of nodes has to be sorted by its key, too",
        )

    def _shown_end(self, edge_type: EdgeType, end: int) -> str:
        """The columns that name an end of edges."""
        return ", ".join(map(repr, self._layout.edges[edge_type].ends[end]))

    def _shown_edges(self, edge_type: EdgeType, rows: list[int]) -> list[str]:
        """Edges as their table has them; their row numbers alone, where it cannot be read again."""
        edge = self._layout.edges[edge_type]
        shown = []
        if edge.table is None or isinstance(edge.table.form, pa.RecordBatchReader):
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

    def _edge_ids(self, edge_type: EdgeType) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.bool_] | None]]:
        """Yields the number of the first row, ids ``[2, k]``, and which edges are kept; None for all."""
        for start, ends in self._ends(edge_type):
            kept = (ends[0] >= 0) & (ends[1] >= 0) if edge_type in self._dropped else None
            yield start, np.stack(ends, dtype=np.int64), kept

    def _ends(self, edge_type: EdgeType) -> Iterator[tuple[int, list[NDArray[Any]]]]:
        """Yields the number of the first row, and the ids of both ends as they are kept, ``[k]`` each; -1 where no node has the key."""
        for start in range(0, self._edges[edge_type].num_rows, _CHUNK_ROWS):
            stop = min(start + _CHUNK_ROWS, self._edges[edge_type].num_rows)
            yield start, [self._ids[edge_type, end].read(start, stop) for end in (0, 1)]

    # What came of it -------------------------------------------------------------------------------------------------------

    def _facts(self) -> dict[str, Any]:
        """Returns what became of the columns, as JSON."""
        facts, classes = dict[str, Any](), dict[NodeType, list[Any]]()
        for label, owner, arrays in self._owners():
            earlier = {} if self._after is None else self._after.metadata["tables"][label]
            own: dict[str, Any] = {name: column.facts() for name, column in arrays.columns.items()}
            used = {name for columns in owner.uses.values() for name in columns}
            if isinstance(owner, NodeTable):
                own["keys"] = list(owner.keys) or ("row numbers" if owner.by_row else _FROM_EDGES)
                if owner.form == "edges" and self._after is not None and not self._goes_on_ascending(owner.name, earlier):
                    own["keys"] = _FROM_EDGES_APPENDED
                used |= set(owner.keys)
                codes: Any = arrays.columns.get(LABEL_NAME)
                if isinstance(codes, Codes):
                    classes[owner.name] = codes.values
                if owner.name in self._splits:
                    own["split"] = {"column": owner.uses["split"][0]}
            else:
                own["src"], own["dst"] = self._own(owner.name).get("ends", [list(columns) for columns in owner.ends])
                used |= {*owner.ends[0], *owner.ends[1]}
                if dropped := self._num_dropped(owner.name) + self._num_null_ends(owner.name):
                    own["dropped_edges"] = dropped
            if "unused" in earlier:
                own["unused"] = earlier["unused"]
            if (
                not earlier
                and owner.table is not None
                and (unused := [n for n in owner.table.schema.names if n not in used and not n.startswith("__index")])
            ):
                own["unused"] = unused
            if filled := {name: self._fill[name] for name in sorted(used & set(self._fill))}:
                own["fill"] = filled
            facts[label] = own
        found = {"num_classes": len(next(iter(classes.values())))} if len(classes) == 1 else {}
        return {"tables": facts, **found}

    @property
    def described(self) -> list[tuple[str, str]]:
        """Names and values for its card: of each table the files, the columns of each use, what was left out, and columns without use."""
        found: list[tuple[str, str]] = []
        for label, owner, arrays in self._owners():
            table, own, rows = owner.table, self.metadata["tables"][label], f"{arrays.num_rows} rows"
            found.append((label, f"no table, {rows}" if table is None else f"{table.origin}, {rows}"))
            ends = {"keys": owner.keys} if isinstance(owner, NodeTable) else {"src": owner.ends[0], "dst": owner.ends[1]}
            for option, columns in ({} if table is None else {**ends, **owner.uses}).items():
                words = [f"{column} ({table.need(column, option)})" for column in columns]
                words += [f"in {own['time']['unit']}" if "unit" in own["time"] else "as they are"] if option == "time" else []
                found += [(f"{label} {option}", ", ".join(words))] if words else []
            found += [(f"{label} dropped", f"{own['dropped_edges']} edges that name no node")] if "dropped_edges" in own else []
            found += [(f"{label} unused", ", ".join(own["unused"]))] if "unused" in own else []
        return found

    def _owners(self) -> list[tuple[str, Any, _ColumnArrays]]:
        """The types as metadata name them, their tables and their arrays."""
        nodes: list[tuple[str, Any, _ColumnArrays]] = [(t, self._layout.nodes[t], arrays) for t, arrays in self._nodes.items()]
        return nodes + [(edge_type_name(t), self._layout.edges[t], arrays) for t, arrays in self._edges.items()]

    def _goes_on_ascending(self, node_type: NodeType, earlier: Mapping[str, Any]) -> bool:
        """Whether the keys that edges name are in ascending order, those of the store and the new ones together."""
        spool, before = self._spools[node_type], self._before(node_type)
        if earlier["keys"] != _FROM_EDGES or not (before and spool.num_rows):
            return bool(earlier["keys"] == _FROM_EDGES)
        assert self._after is not None
        last, first = self._after.keys(node_type)[before - 1], spool.key(0)
        return bool(last < first if not isinstance(first, str) else str(last).encode() < first.encode())

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
            ends = self._end_digests[edge_type]
            self._digest_ends(edge_type, ends)
            add(edge_type, [end.hexdigest() for end in ends], {name: column.digest() for name, column in edge_arrays.columns.items()})
        # What became of columns, but for those that became nothing.
        add({owner: {name: fact for name, fact in own.items() if name != "unused"} for owner, own in self.metadata["tables"].items()})
        return digest.hexdigest()

    def _digest_ends(self, edge_type: EdgeType, digests: Sequence[ChainedDigest]) -> None:
        """Adds the ids of both ends of all edges to their digests."""
        with ThreadPoolExecutor(2, "gnnkit-digests") as pool:
            for edges in self.edge_chunks(edge_type):
                list(pool.map(ChainedDigest.update, digests, edges))


class UndirectedTables(UndirectedSource, Shown):
    """Tables with the reverse of each edge; made by ``gnnkit.tables(..., undirected=True)``."""

    def __init__(self, tables: TableSource, folder: Path, events: EventSink) -> None:
        super().__init__(tables, scratch_dir=folder, events=events)
        self.keys, self.described = tables.keys, [*tables.described, ("undirected", "each edge has its reverse")]


_YAML = (".yaml", ".yml")


def open_described(
    path: str | Path, events: EventSink = ignore_events, *, engine: TableEngine | None = None, scratch_dir: Path | None = None
) -> TableSource | UndirectedTables:
    """The graph of a file: a YAML file with the arguments of ``gnnkit.tables``, or a table of edges.

    In YAML, an edge type is "user,buys,item", and paths are relative to the file.

    Args:
        path: The file; of a table of edges its URL, too.
        events: Receives progress.
        engine: See ``gnnkit.tables``.
        scratch_dir: See ``gnnkit.tables``.

    Raises:
        PlanError: The file names an argument that there is not, or see ``gnnkit.tables``.
        DatasetError: See ``gnnkit.tables``.
    """
    table, path = path, Path(path)
    if path.suffix.lower() not in _YAML:
        return tables(table, name=path.name.partition(".")[0], engine=engine, scratch_dir=scratch_dir, events=events)
    try:
        given = yaml.safe_load(read_bounded(path))
    except (yaml.YAMLError, ValueError, OSError) as error:
        raise DatasetError(f"{path} cannot be read: {error}") from error
    if not isinstance(given, dict) or "edges" not in given:
        raise PlanError(f"{path} names no edges", "it holds the arguments of gnnkit.tables, edges at least")
    return tables_from_text(given, path.parent, events, default_name=path.stem, engine=engine, scratch_dir=scratch_dir)


def tables_from_text(
    given: Mapping[str, Any],
    folder: Path,
    events: EventSink,
    *,
    default_name: str = "tables",
    engine: TableEngine | None = None,
    scratch_dir: Path | None = None,
) -> TableSource | UndirectedTables:
    """``gnnkit.tables`` with arguments as a file or a command line has them.

    Args:
        given: The arguments; an edge type is "user,buys,item".
        folder: Where relative paths begin.
        events: Receives progress.
        default_name: The graph's name where none is given.
        engine: See ``gnnkit.tables``.
        scratch_dir: See ``gnnkit.tables``.

    Raises:
        PlanError: There is no such argument.
    """
    check_known(given, ["edges", "nodes", *(field.name for field in fields(TableOptions))], ELSEWHERE, of=" of gnnkit.tables")
    arguments = {name: forms_from_text(value, folder) if name in ("nodes", "edges") else _typed(value) for name, value in given.items()}
    return tables(**{"name": default_name, **arguments}, engine=engine, scratch_dir=scratch_dir, events=events)


def forms_from_text(value: Any, folder: Path) -> Any:
    """Tables as a file or a command line names them: ``{"user,buys,item": path}``, or a path; relative ones begin in ``folder``."""
    value = _typed(value)
    return {key: _located(form, folder) for key, form in value.items()} if isinstance(value, dict) else _located(value, folder)


def _typed(value: Any) -> Any:
    """A mapping with edge types as tuples."""
    if not isinstance(value, dict):
        return value
    return {tuple(word.strip() for word in key.split(",")) if isinstance(key, str) and "," in key else key: v for key, v in value.items()}


def _located(form: Any, folder: Path) -> Any:
    if isinstance(form, dict):
        return {key: _located(each, folder) for key, each in form.items()}
    if isinstance(form, list):
        return [_located(each, folder) for each in form]
    if not isinstance(form, str) or is_url(form):
        return form
    return str(user_path(form) if form.startswith("~") else folder / form)

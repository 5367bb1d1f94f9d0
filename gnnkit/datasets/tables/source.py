"""``gnnkit.tables``: tables of nodes and of edges as a source that stores are built from, given as arguments or named by a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import yaml
from numpy.typing import NDArray

from gnnkit.arguments import check_known, checks_calls, documented_fields, spelled_out
from gnnkit.bounds import size_in_bytes
from gnnkit.datasets.derived import UndirectedSource
from gnnkit.datasets.streaming import overlap
from gnnkit.datasets.table_options import ELSEWHERE, TableOptions
from gnnkit.datasets.tables.columns import Codes, Column, Features, Ids, ReadOptions, Recoding, column_of
from gnnkit.datasets.tables.digests import ChainedDigest
from gnnkit.datasets.tables.keys import DistinctKeys, KeySpool, KeyTable, key_column, key_kind, parts_for, resolve
from gnnkit.datasets.tables.layout import EdgeTable, Layout, NodeTable, types_to_text
from gnnkit.datasets.tables.readers import (
    TIME,
    EdgeReader,
    EndCount,
    Finder,
    NodeReader,
    are_known,
    columns_of,
    ids_of,
    pieces_by,
    split_of,
)
from gnnkit.datasets.tables.reading import Piece
from gnnkit.datasets.tables.rows import KeptRows, Place, Rows
from gnnkit.errors import DatasetError, PlanError
from gnnkit.events import EventSink, Stage, ignore_events
from gnnkit.files import os_errors, read_bounded, user_path
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
from gnnkit.splits import SPLIT_WORDS, SPLITS, has_label, split_name, with_labels
from gnnkit.storage.catalog import writable_root
from gnnkit.storage.files import ArrayFile
from gnnkit.storage.keys import NodeKeys, words_of
from gnnkit.storage.layout import LABEL_NAME, TRAIN, split_file
from gnnkit.storage.store import Store
from gnnkit.urls import is_url

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from gnnkit.datasets.table_types import TableKeywords
    from gnnkit.datasets.tables.hosts import TableEngine  # circular

_SHOWN = 10
_CHUNK_ROWS, _CHUNK_BYTES = 1 << 20, 16 << 20
_MIN_MEMORY, _MAX_MEMORY = 64 << 20, 512 << 20
_MOST_THREADS = 4
# Each has files of its own, here and in the store.
MOST_EDGE_TYPES = 256


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
    layout = Layout.of(edges, nodes, own, events)
    read = ReadOptions(layout.types, layout.fills(own.fill), own.time_unit, own.dangling == "drop", layout.unlabelled(own.unlabelled))
    if own.undirected:
        layout.check_undirected()
    kind: Callable[..., TableSource] = TableSource
    if engine is not None:
        from gnnkit.datasets.tables.hosts import HostTables  # circular

        if HostTables.can_read(layout, read):
            kind = partial(HostTables, engine)
    folder, memory = _scratch(scratch_dir), size_in_bytes("memory_bytes", memory_bytes) or _memory()
    source = kind(layout, read, name=own.name, folder=folder, memory_bytes=memory, events=events)
    if own.presorted:
        source.check_order()
    return UndirectedTables(source, folder, events) if own.undirected else source


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
    filled, unlabelled = {**state["fill"], **(fill or {})}, tuple(state.get("unlabelled", ()))
    options = ReadOptions(layout.types, filled, state["time_unit"], state["dangling"] == "drop", unlabelled)
    return TableSource(layout, options, name=store.name, folder=folder, memory_bytes=_memory(), events=events, after=store)


def append_tables(store: Store, edges: Any, nodes: Any, *, fill: Mapping[str, Any] | None, path: Path | None, events: EventSink) -> Store:
    """Writes a store with the rows of further tables, see ``Store.append``; ``path`` is where, None is the store's own place."""
    from gnnkit.storage.append import append_to_store  # numba

    rows = tables_after(store, edges, nodes, fill=fill, folder=store.path.parent, events=events)
    return append_to_store(store, rows, rows.recoding, path, events)


def _memory() -> int:
    return max(_MIN_MEMORY, min(_MAX_MEMORY, available_memory() // 16))


def _scratch(folder: str | Path | None) -> Path:
    path = writable_root() if folder is None else user_path(folder)
    with os_errors(f"{path} cannot be written", None, "name another folder: scratch_dir=...", DatasetError):
        path.mkdir(parents=True, exist_ok=True)
    return path


def _row_numbers(words: NDArray[np.uint64], total: int) -> NDArray[np.int64]:
    """Ids of nodes that are named by their row numbers; -1 where there is no such row."""
    rows = words.view(np.int64).reshape(-1)
    return np.where((rows >= 0) & (rows < total), rows, -1)


_FROM_EDGES = "from the edges, in ascending order"
_FROM_EDGES_APPENDED = "from the edges, in ascending order, those of appended edges after them"

# The source ----------------------------------------------------------------------------------------------------------------


@dataclass
class Kept:
    """The columns, rows and earlier state of one type, while and after its table is read.

    Attributes:
        owner: The type, with its table.
        columns: ``{array: the column that it is made of}``.
        state: What the store knows of its table of this type, see ``TableSource.append_state``; empty where there is no store.
        before: Nodes or edges of the type in the store.
        num_rows: Rows that were read.
        specs: Dtypes and row shapes of the arrays, once all rows are there.
        num_earlier: Rows of the store's table, those that were left out included.
        read: The columns that the table is read for.
    """

    owner: NodeTable | EdgeTable
    columns: dict[str, Column]
    state: Mapping[str, Any] = field(default_factory=dict)
    before: int = 0
    num_rows: int = 0
    specs: dict[str, ArraySpec] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.num_earlier = int(self.state.get("rows", 0))
        self.read = list(self.columns.values())

    @property
    def label(self) -> str:
        """The type as metadata name it."""
        return edge_type_name(self.owner.name) if isinstance(self.owner.name, tuple) else self.owner.name

    def add(self, count: int, values: Sequence[Any]) -> None:
        """Adds rows, of which ``values`` are what the columns that are ``read`` convert to."""
        for column, value in zip(self.read, values, strict=True):
            column.append(value)
        self.num_rows += count

    def join(self, count: int, columns: Sequence[Column]) -> None:
        """Adds rows that another host has read into columns of its own."""
        for column, other in zip(self.read, columns, strict=True):
            column.join(other)
        self.num_rows += count

    def chunks(self, name: str) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yields the rows of an array, with the number of the first one."""
        step = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // max(1, self.specs[name].row_nbytes)))
        for start in range(0, self.num_rows, step):
            yield start, self.columns[name].rows(start, min(start + step, self.num_rows))

    def next_state(self) -> dict[str, Any]:
        """State that a store of these rows keeps for rows that follow them, as JSON."""
        rows, table = self.num_earlier + self.num_rows, self.owner.table
        text = self.state.get("text", {}) if self.state else table.told if table is not None else {}
        return {
            "uses": {option: list(columns) for option, columns in self.owner.uses.items()},
            "rows": rows,
            "columns": {array: column.state() for array, column in self.columns.items()} if rows else {},
            **({"text": text} if text else {}),
        }


@dataclass
class KeptNodes(Kept):
    """The same of a node type, with its keys and its split.

    Attributes:
        split: The column of splits.
        ids: The column that may name nodes without keys.
        spool: The keys of nodes, where they have some.
        distinct: The keys that edges have named so far, where these are the nodes.
        finder: What finds the ids of nodes while edges are read; None where these are found afterwards.
    """

    owner: NodeTable
    split: Codes | None = None
    ids: Ids | None = None
    spool: KeySpool | None = None
    distinct: DistinctKeys | None = None
    finder: Finder | None = None

    @property
    def what(self) -> str:
        """Whose keys these are, for errors."""
        return f"nodes {self.owner.name!r}"

    @property
    def num_nodes(self) -> int:
        """Nodes of the store and new ones."""
        return self.before + self.num_rows

    @property
    def id_spec(self) -> ArraySpec:
        """The dtype of ids."""
        return ArraySpec("int32" if self.num_nodes < 1 << 31 else "int64")

    @property
    def keys(self) -> KeySpool:
        """The keys of a type that has some."""
        assert self.spool is not None, "others are row numbers"
        return self.spool

    def next_state(self) -> dict[str, Any]:
        """The same, with the form of nodes, their keys and their split."""
        return {
            "form": self.owner.form,
            "keys": list(self.owner.keys),
            "split": None if self.split is None else self.split.state(),
            "names": None if self.spool is None else self.spool.state(),
            **super().next_state(),
        }


@dataclass
class KeptEdges(Kept):
    """The same of an edge type, with the ends of its edges.

    Attributes:
        ids: ``{0 for the source, 1 for the target: ids}``; -1 where no node has the key.
        words: The same for the words of keys whose ids are not known yet.
        num_dropped: Edges that are left out because they name no node.
        files: The numbers of the files that have rows, and of their first rows.
        counted: The digests of the ids of both ends, and the edges that name no node.
        end_columns: The columns of both ends, as the first table calls them.
        earlier_dropped: Edges of the store's tables that were left out because they name no node.
        num_null: Edges, those of the store's tables included, that are left out because an end is null; there are no ids of them.
        of: The edge type whose table has a column that names this one; None for others.
    """

    owner: EdgeTable
    ids: dict[int, ArrayFile | Rows] = field(default_factory=dict)
    words: dict[int, ArrayFile] = field(default_factory=dict)
    num_dropped: int = 0
    files: list[tuple[int, int]] = field(default_factory=list)
    of: EdgeType | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        source, target = self.state.get("digests", (None, None))
        self.counted = EndCount(ChainedDigest(source), ChainedDigest(target))
        self.end_columns: list[list[str]] = self.state.get("ends", [list(columns) for columns in self.owner.ends])
        self.earlier_dropped, self.num_null = int(self.state.get("dropped", 0)), int(self.state.get("null_ends", 0))

    def begin_file(self, number: int, first: int) -> None:
        """Takes down that rows from ``first`` on are of a file, unless they go on with it."""
        if not self.files or self.files[-1][0] != number:
            self.files.append((number, first))

    def ends(self, start: int, stop: int) -> list[NDArray[Any]]:
        """The ids of both ends of some rows, ``[k]`` each."""
        return [self.ids[end].read(start, stop) for end in (0, 1)]

    def end_chunks(self) -> Iterator[tuple[int, list[NDArray[Any]]]]:
        """Yields the number of the first row, and the ids of both ends."""
        for start in range(0, self.num_rows, _CHUNK_ROWS):
            yield start, self.ends(start, min(start + _CHUNK_ROWS, self.num_rows))

    def next_state(self) -> dict[str, Any]:
        """The same, with the ends of edges."""
        return {
            "ends": self.end_columns,
            "named": list(self.owner.named),
            "dropped": self.earlier_dropped + self.num_dropped,
            "null_ends": self.num_null,
            "digests": [digest.state() for digest in self.counted.digests],
            **({} if self.of is None else {"of": list(self.of)}),
            **super().next_state(),
        }


@checks_calls()
class TableSource(Shown):
    """A ``GraphSource`` over tables; made by ``gnnkit.tables``, which reads them. Its card shows how they were read.

    What was read lies on disk in files without names, as long as the source is there: it takes about as much as the store that is built.

    The tables may come after those of a store (``tables_after``). Then schema, splits, metadata, fingerprint and ids are those of all
    tables, and the rows and keys that it gives those of the new ones.
    """

    def __init__(
        self,
        layout: Layout,
        options: ReadOptions,
        *,
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
        self._layout, self._options, self._folder = layout, options, folder
        self._place: Place = place or partial(KeptRows, folder)
        self._after, self._memory, self._events = after, memory_bytes, events
        self._threads = min(available_cpus(), _MOST_THREADS)
        self.target_windows: dict[EdgeType, int] = {}
        hint = "free some space, or name another folder: scratch_dir=..."
        with os_errors(f"what was read cannot be kept in {folder}", None, hint, DatasetError):
            self._read()
        self.schema = GraphSchema(
            {name: NodeTypeSchema(nodes.num_nodes, nodes.specs) for name, nodes in self._nodes.items()},
            {t: EdgeTypeSchema(edges.before + edges.num_rows - edges.num_dropped, edges.specs) for t, edges in self._edges.items()},
            is_homogeneous=layout.is_homogeneous and all(edges.of is None for edges in self._edges.values()),
        )
        self.metadata: Mapping[str, Any] = self._facts()
        self._fingerprint = self._digest()

    def check_order(self) -> None:
        """Checks that edges come in the order that ``presorted`` promises, and lets builders rely on it.

        Raises:
            DatasetError: They do not; names the file and the row.
        """
        self.target_windows = {edge_type: self._check_order(edges) for edge_type, edges in self._edges.items()}

    def fingerprint(self) -> str:
        """A digest of the rows, the same in whatever form and pieces they came."""
        return self._fingerprint

    @cached_property
    def append_state(self) -> Mapping[str, Any] | None:
        """The columns of the tables and the states of their digests, as JSON: all that ``Store.append`` needs to go on with them.

        None where features are fitted to rows, which are others with more of them.
        """
        columns = [column for kept in self._kept for column in kept.columns.values()]
        if any(isinstance(column, Features) and column.is_fitted for column in columns):
            return None
        options = self._options
        return {
            "nodes": {nodes.label: nodes.next_state() for nodes in self._nodes.values()},
            "edges": {edges.label: edges.next_state() for edges in self._edges.values()},
            "types": types_to_text(options.types),
            "fill": options.fill,
            "dangling": "drop" if options.drops else "error",
            **({"unlabelled": list(options.unlabelled)} if options.unlabelled else {}),
            "time_unit": options.time_unit,
        }

    def recoding(self, name: NodeType | EdgeType, array: str) -> Recoding | None:
        """Makes rows of an array of the store what they are among all rows; None where they stay as they are."""
        kept = self._edges[name] if isinstance(name, tuple) else self._nodes[name]
        return kept.columns[array].recoding() if kept.num_earlier else None

    @cached_property
    def keys(self) -> Mapping[NodeType, NodeKeys]:
        """``{node type: NodeKeys}`` of the types whose nodes have names."""
        return {name: nodes.keys.node_keys(name) for name, nodes in self._nodes.items() if nodes.spool is not None}

    def edge_chunks(self, edge_type: EdgeType) -> Iterator[NDArray[np.int64]]:
        """The edges in their own order, ``[2, k]`` at a time."""
        edges = self._edges[edge_type]
        for _, ends in edges.end_chunks():
            both = np.stack(ends, dtype=np.int64)
            yield np.ascontiguousarray(both[:, are_known(ends)]) if edges.num_dropped else both

    def edge_array_chunks(self, edge_type: EdgeType, name: str) -> Iterator[NDArray[Any]]:
        """The rows of an edge array, some at a time."""
        edges = self._edges[edge_type]
        for start, rows in edges.chunks(name):
            yield rows[are_known(edges.ends(start, start + len(rows)))] if edges.num_dropped else rows

    def node_array_chunks(self, node_type: NodeType, name: str) -> Iterator[NDArray[Any]]:
        """The rows of a node array, some at a time."""
        return (rows for _, rows in self._nodes[node_type].chunks(name))

    @property
    def _kept(self) -> list[KeptNodes | KeptEdges]:
        """Every node type, then every edge type."""
        return [*self._nodes.values(), *self._edges.values()]

    # Reading ---------------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        self._nodes = {name: KeptNodes(node, *self._begun(node)) for name, node in self._layout.nodes.items()}
        self._edges = dict[EdgeType, KeptEdges]()
        self._begin_distinct()
        for nodes in self._nodes.values():
            self._read_nodes(nodes)
            self._refuse_nodes_that_edges_were_dropped_for(nodes)
        self._make_finders(self._memory // 2 if any(nodes.distinct is not None for nodes in self._nodes.values()) else self._memory)
        for edge in self._layout.edges.values():
            self._read_edges(self._begin_edges(edge))
        self._edges = dict(sorted(self._edges.items()))
        pending = [nodes for nodes in self._nodes.values() if nodes.finder is None]
        for kept in self._kept:
            kept.specs = {name: column.finish() for name, column in kept.columns.items()}
        for nodes in self._nodes.values():
            nodes.finder = None  # and its memory
        self._check_times()
        self.splits: Mapping[NodeType, Mapping[str, NDArray[np.int64]]] = {
            name: self._split(nodes, nodes.split) for name, nodes in self._nodes.items() if nodes.split is not None
        }
        for kept in self._kept:
            split = self.splits.get(kept.owner.name) if isinstance(kept, KeptNodes) else None
            for column in kept.columns.values():
                if isinstance(column, Features):
                    column.fit(None if split is None else split.get("train", ()))
        for nodes in self._nodes.values():
            self._take_distinct(nodes)
        self._resolve(pending)
        for nodes in self._nodes.values():
            self._check_ids(nodes)
        for edges in self._edges.values():
            self._settle_missing(edges)

    def _begun(self, owner: NodeTable | EdgeTable) -> tuple[dict[str, Column], Mapping[str, Any], int]:
        """The arrays that the table of a type is asked for, which go on where those of the store end; see ``Kept``."""
        if self._after is None:
            return columns_of(owner, self._options, self._place), {}, 0
        types, schema = self._after.manifest.append_state or {}, self._after.schema
        state = types["nodes"][owner.name] if isinstance(owner, NodeTable) else types["edges"][edge_type_name(owner.name)]
        columns = columns_of(owner, self._options, self._place, state["columns"])
        if state["rows"]:
            for name, column in columns.items():
                column.resume(state["columns"][name])
        return columns, state, schema.counts[owner.name]

    def _begin_distinct(self) -> None:
        """Makes the collections of keys of node types without a table.

        Raises:
            PlanError: Nothing names nodes of a type, or edges name them in different ways.
        """
        for edge in self._layout.edges.values():
            for columns, node_type in zip(edge.ends, edge.node_types, strict=True):
                nodes = self._nodes[node_type]
                if nodes.owner.form != "edges" or edge.table is None:
                    continue
                kind = key_kind(edge.table, columns[0], "src or dst")
                if nodes.distinct is None:
                    nodes.spool = self._spool(nodes, {columns[0]: kind})
                    nodes.distinct = DistinctKeys(kind, self._folder, self._memory // 2)
                if list(nodes.keys.columns.values()) != [kind]:
                    raise PlanError(
                        f"{columns[0]!r} of {edge.table.what} is {kind}, and other edges name {node_type!r} nodes otherwise",
                        f"types={{{columns[0]!r}: 'string'}} reads a column as text",
                    )
        for name, nodes in self._nodes.items():
            if nodes.owner.form == "edges" and nodes.distinct is None:
                if self._after is None:
                    raise PlanError(f"there is neither a table of nodes {name!r} nor an edge that names one")
                nodes.spool = self._spool(nodes, {})

    def _spool(self, nodes: KeptNodes, columns: Mapping[str, str]) -> KeySpool:
        if self._after is None:
            return KeySpool(columns, self._folder)
        before = self._after.keys(nodes.owner.name)
        return KeySpool(before.columns, self._folder, before, nodes.state["names"])

    def _refuse_nodes_that_edges_were_dropped_for(self, nodes: KeptNodes) -> None:
        """Refuses new nodes of a type that edges of the store's tables may have named, and were left out for.

        Raises:
            PlanError: There are such edges.
        """
        if self._after is None or not nodes.num_rows:
            return
        states = (self._after.manifest.append_state or {})["edges"]
        for edge_type in self._after.schema.edge_types:
            if nodes.owner.name in (edge_type[0], edge_type[2]) and (dropped := states[edge_type_name(edge_type)]["dropped"]):
                raise PlanError(
                    f"{dropped} edges {edge_type} of the store {self._after.path} were left out, "
                    f"and may name the new nodes {nodes.owner.name!r}",
                    "make a store of the whole tables: gnnkit.tables(...)",
                )

    def _read_nodes(self, nodes: KeptNodes) -> None:
        node = nodes.owner
        nodes.split = split_of(node, self._options, self._place)
        if nodes.split is not None:
            nodes.read.append(nodes.split)
            if before := nodes.state.get("split"):
                nodes.split.resume(before)
        nodes.ids = ids_of(node, self._options, self._place)
        nodes.read += [] if nodes.ids is None else [nodes.ids]
        reader = None if node.table is None else NodeReader(node, nodes.read, self._options)
        if node.keys:
            nodes.spool = self._spool(nodes, {} if reader is None else reader.kinds)
        if reader is None:
            nodes.num_rows = node.count
        else:
            self._read_node_table(nodes, reader)

    def _read_node_table(self, nodes: KeptNodes, reader: NodeReader) -> None:
        for count, keys, values in self._pieces(reader):
            if keys is not None:
                nodes.keys.append(*keys)
            nodes.add(count, values)

    def _make_finders(self, memory_bytes: int) -> None:
        """Makes what finds the ids of keys while edges are read: of the node types that are known by then and whose keys fit the memory."""
        for nodes in self._nodes.values():
            if nodes.owner.by_row:
                nodes.finder = partial(_row_numbers, total=nodes.num_nodes)
            elif nodes.owner.form == "table":
                memory_bytes -= self._make_key_finder(nodes, memory_bytes)

    def _make_key_finder(self, nodes: KeptNodes, memory_bytes: int) -> int:
        """Makes what finds the ids of a type's keys, if it fits the memory; the bytes that it takes of that."""
        if parts_for(nodes.keys, memory_bytes) > 1:
            return 0
        table = KeyTable.of(nodes.keys, nodes.what)
        nodes.finder = table.ids
        return table.slots.nbytes + table.rows.nbytes

    def _reader(self, edges: KeptEdges) -> EdgeReader:
        ends = {node_type: self._nodes[node_type] for node_type in edges.owner.node_types}
        finders = {node_type: nodes.finder for node_type, nodes in ends.items() if nodes.finder is not None}
        distinct = frozenset(node_type for node_type, nodes in ends.items() if nodes.distinct is not None)
        return EdgeReader(edges.owner, edges.read, self._options, finders, distinct)

    def _begin_edges(self, edge: EdgeTable) -> KeptEdges:
        """Begins a table, and returns its edge type; of one whose column says edge types, that which reads it, after those of the store."""
        if edge.relation is None:
            return self._keep(edge)
        states = {} if self._after is None else (self._after.manifest.append_state or {})["edges"]
        before: list[KeptEdges] = []
        for edge_type in () if self._after is None else self._after.schema.edge_types:
            if states[edge_type_name(edge_type)].get("of") == [*edge.name]:
                before.append(self._keep(replace(edge, name=edge_type), edge.name))
        return KeptEdges(edge, columns_of(edge, self._options, self._place, before[0].state["columns"] if before else None))

    def _keep(self, edge: EdgeTable, of: EdgeType | None = None) -> KeptEdges:
        """Makes room for the edges of a type, which a column of the table of ``of`` names if that is given."""
        self._edges[edge.name] = edges = KeptEdges(edge, *self._begun(edge), of=of)
        for end, nodes in enumerate(self._nodes[node_type] for node_type in edge.node_types):
            file = ArrayFile(nodes.keys.words.spec if nodes.finder is None else nodes.id_spec, self._folder)
            (edges.words if nodes.finder is None else edges.ids)[end] = file
        return edges

    def _of_relation(self, edge: EdgeTable, value: str) -> KeptEdges:
        """Returns the edge type of rows whose column says it.

        Raises:
            DatasetError: The store has no such type, or there are too many.
        """
        name = edge.name[0], value, edge.name[2]
        if name not in self._edges:
            known = [own.owner.name[1] for own in self._edges.values() if own.of == edge.name]
            if self._after is not None:
                hint = "a store's edge types stay as they are: make a store of all tables with gnnkit.tables(...)"
                raise DatasetError(f"{edge.relation!r} names the edge type {value!r}, and the store has {known}", hint)
            if len(known) == MOST_EDGE_TYPES:
                hint = f"categories={edge.relation!r} keeps one edge type, and whole numbers for the values"
                raise DatasetError(f"edge_type={edge.relation!r} has more than {MOST_EDGE_TYPES} different values", hint)
            self._keep(replace(edge, name=name), edge.name)
        if self._edges[name].of != edge.name:
            raise DatasetError(f"{edge.relation!r} names the edge type {name}, which has a table of its own", "rename one of them")
        return self._edges[name]

    def _read_edges(self, edges: KeptEdges) -> None:
        if edges.owner.table is None:
            return
        for _, parts in self._pieces(self._reader(edges)):
            for value, rows in parts:
                kept = edges if value is None else self._of_relation(edges.owner, value)
                kept.num_null += rows.left_out
                kept.begin_file(rows.file, kept.num_rows)
                for end, node_type in enumerate(kept.owner.node_types):
                    (kept.words if end in kept.words else kept.ids)[end].append(rows.ends[end])
                    if (distinct := self._nodes[node_type].distinct) is not None:
                        distinct.add(rows.once[end])
                kept.add(rows.num_rows, rows.values)
        if not self._edges:
            raise DatasetError("there are no edges, and edge_type= takes edge types from them", "give a table with rows")

    def _pieces(self, reader: NodeReader | EdgeReader) -> Iterator[Any]:
        """Yields what threads make of the pieces of a table, in order."""
        table = reader.table
        with Stage(self._events, "ingest", label=f"{self.name}, {table.what}", unit="rows") as stage:
            work: Any = reader.work
            results = overlap(table.pieces(reader.names), work, num_threads=self._threads, depth=2 * self._threads)
            try:
                for result in results:
                    yield result
                    stage.advance(result[0])
            finally:
                results.close()

    def _check_times(self) -> None:
        """Refuses whole numbers beside timestamps: they would be compared with each other, in units that differ.

        Raises:
            DatasetError: Names the columns of both.
        """
        timed = [kept for kept in self._kept if "time" in kept.owner.uses and (kept.num_rows or kept.num_earlier)]
        found = {kept.specs[TIME].unit: kept.owner for kept in timed}
        if len(found) > 1 and None in found:
            number, (dated, *_) = found.pop(None), found.values()
            (column,), (other,) = number.uses["time"], dated.uses["time"]
            raise DatasetError(
                f"{column!r} of {number.name!r} has whole numbers, and {other!r} of {dated.name!r} has timestamps",
                f"types={{{column!r}: 'timestamp[s]'}} reads whole numbers as seconds since 1970, and 'timestamp[ms]' as milliseconds",
            )

    def _split(self, nodes: KeptNodes, codes: Codes) -> dict[str, NDArray[np.int64]]:
        name = nodes.owner.name
        codes.finish()
        found: dict[str, list[NDArray[np.int64]]] = {}
        if self._after is not None:
            found = {split: [self._after.file(split_file(name, split))] for split in self._after.splits.get(name, ())}
        named = [value if value in found else split_name(str(value)) for value in codes.values]
        if unknown := [value for value, split in zip(codes.values, named, strict=True) if split not in (*SPLITS, *found)]:
            column, hint = codes.columns[0], f"known, in any case: {list(SPLIT_WORDS)}; a null is in no split"
            if not isinstance(unknown[0], str):
                hint = f"table[{column!r}].astype(int).map({{1: 'train', 0: 'test'}}), or what they mean, makes words of numbers; {hint}"
            raise DatasetError(f"split {column!r} of {name!r} holds {unknown[:_SHOWN]}, which names no split", hint)
        for start in range(0, nodes.num_rows, _CHUNK_ROWS):
            rows = codes.rows(start, min(start + _CHUNK_ROWS, nodes.num_rows))
            for code, split in enumerate(named):
                found.setdefault(split, []).append(np.flatnonzero(rows == code) + start + nodes.before)
        if nodes.num_rows and not found:
            hint = "it names splits for some rows at least; without split= there are none"
            raise DatasetError(f"split {codes.columns[0]!r} of {name!r} is null in all {nodes.num_rows} rows", hint)
        splits = {split: np.sort(np.concatenate(ids)).astype(np.int64) for split, ids in sorted(found.items())}
        if TRAIN in splits and LABEL_NAME in nodes.columns:
            known = np.ones(nodes.num_nodes, np.bool_)  # those of the store are without the others already
            for start, rows in nodes.chunks(LABEL_NAME):
                known[nodes.before + start : nodes.before + start + len(rows)] = has_label(rows)
            splits[TRAIN] = with_labels(splits[TRAIN], known[splits[TRAIN]], f"label={list(nodes.owner.uses['label'])}")
        return splits

    def _take_distinct(self, nodes: KeptNodes) -> None:
        """Makes nodes of the keys that edges have named, of which the store has none."""
        if nodes.distinct is None:
            return
        spool = nodes.keys
        for chunk in nodes.distinct.chunks():
            words = words_of([key_column(chunk)])
            if spool.num_before:
                is_new = spool.find_before(words) < 0
                chunk, words = chunk.filter(pa.array(is_new)), words[is_new]
            spool.append([key_column(chunk)], words)
        nodes.num_rows, nodes.distinct = spool.num_rows, None

    def _resolve(self, pending: Sequence[KeptNodes]) -> None:
        """Finds the ids of the ends of edges that were not found while these were read, node type by node type."""
        with ThreadPoolExecutor(self._threads, "gnnkit-keys") as pool:
            for nodes in pending:
                files = []
                for edges in self._edges.values():
                    for end in (end for end in edges.words if edges.owner.node_types[end] == nodes.owner.name):
                        edges.ids[end] = file = ArrayFile(nodes.id_spec, self._folder)
                        files.append((edges.words[end], file))
                resolve(nodes.keys, files, nodes.what, self._memory, pool)
        for edges in self._edges.values():
            for start, ends in edges.end_chunks():
                edges.counted.add(start, ends)
            for words in edges.words.values():
                words.close()

    def _check_ids(self, nodes: KeptNodes) -> None:
        """Refuses edges that may name nodes by a column, and are read as row numbers.

        Raises:
            DatasetError: The values of the column are different, are not the rows' numbers, and all edges name some of them.
        """
        column, cuts = nodes.ids, [*range(0, nodes.num_rows, _CHUNK_ROWS), nodes.num_rows]
        if column is None or all((column.rows(a, b) == np.arange(a, b) + nodes.before).all() for a, b in pairwise(cuts)):
            return
        ids, named = np.sort(column.rows(0, nodes.num_rows)), 0
        for edges in self._edges.values():
            for end in (end for end in (0, 1) if edges.owner.node_types[end] == nodes.owner.name):
                for _, ends in edges.end_chunks():
                    own = ends[end][ends[end] >= nodes.before]
                    named += len(own)
                    if not (ids[np.minimum(np.searchsorted(ids, own), len(ids) - 1)] == own).all():
                        return
        if named and (np.diff(ids) > 0).all():
            name, label = column.columns[0], nodes.owner.name
            keys = name if self._layout.is_homogeneous else {label: name}
            what = f"{nodes.what}: the values of {name!r} are not the rows' numbers, edges name some of these values, and there is no keys="
            raise DatasetError(
                what, f"keys={keys!r} has edges name nodes by {name!r}; without it (an index: nodes.reset_index(drop=True)) they name rows"
            )

    def _settle_missing(self, edges: KeptEdges) -> None:
        """Leaves out or refuses the edges that name no node.

        Raises:
            DatasetError: There are some, and they are not to be left out.
        """
        missing = edges.counted.missing
        if self._options.drops or not missing:
            edges.num_dropped = missing
            return
        edge, node_types = edges.owner, edges.owner.node_types
        assert edge.table is not None, "no rows come from no table"
        shown = ", ".join(self._shown_edges(edges, edges.counted.first))
        hint = 'add these nodes to their tables, or leave the edges out with dangling="drop"'
        for node in (self._layout.nodes[node_type] for node_type in node_types):
            if node.by_row:
                named = "keys= names the column of these ids" if node.form == "table" else "without a number of nodes, edges name them"
                named = named if node.ids is None else f"keys= names the column of these ids, such as {node.ids!r}"
                hint = f"nodes {node.name!r} have no keys= and are row numbers, counted from 0: {named}; where ids begin with 1, subtract 1"
        if node_types[0] != node_types[1]:
            source, target = (", ".join(map(repr, columns)) for columns in edge.ends)
            looked = f"{node_types[0]!r} has {source} and {node_types[1]!r} {target}"
            hint += f"; {looked}: where that is the wrong way round, swap src= and dst="
        raise DatasetError(f"{missing} of {edges.num_rows} {edge.table.what} name no node: {shown}", hint)

    def _check_order(self, edges: KeptEdges) -> int:
        """Checks the promise of ``presorted``.

        Returns:
            How many rows apart two edges are, at most, of which the later one's target has the smaller number.

        Raises:
            DatasetError: The promise is broken; names the file and the row.
        """
        starts, count = [first for _, first in edges.files], edges.num_rows
        largest, is_sorted = -1, True  # the largest target so far
        for number, (first, last) in enumerate(zip(starts, [*starts[1:], count], strict=False)):
            before = largest
            for start in range(first, last, _CHUNK_ROWS):
                part = edges.ids[1].read(start, min(start + _CHUNK_ROWS, last))
                kept = part >= 0
                is_sorted &= bool((np.diff(part[kept], prepend=largest) >= 0).all())
                floor = before if len(starts) > 1 else np.maximum.accumulate(np.concatenate([[largest], part[:-1]]))
                if (bad := np.flatnonzero(kept & (part < floor))).size:
                    raise self._out_of_order(edges, number, start + int(bad[0]))
                largest = max(largest, int(part.max(initial=-1)))
        return 0 if is_sorted else int(np.diff(starts, append=count).max(initial=0))

    def _out_of_order(self, edges: KeptEdges, number: int, row: int) -> DatasetError:
        (file, first), table = edges.files[number], edges.owner.table
        assert table is not None, "only what is appended may lack one, and no order is promised of it"
        where = f"{table.files[file]}, row {row - first}" if table.files else f"row {row}"
        than = "a file before it" if len(edges.files) > 1 else "a row before it"
        (shown,) = self._shown_edges(edges, [row])
        return DatasetError(
            f"presorted=True, and {table.what} are in another order: {where}, has a target with a smaller number than {than} ({shown})",
            "write them with repartitionByRange or sorted by the target; a table of nodes has to be sorted by its key, too",
        )

    def _shown_edges(self, edges: KeptEdges, rows: list[int]) -> list[str]:
        """Edges as their table has them; their row numbers alone, where it cannot be read again."""
        edge, shown = edges.owner, list[str]()
        if edge.table is None or isinstance(edge.table.form, pa.RecordBatchReader):
            return [f"row {row}" for row in rows]
        for piece in self._own_pieces(edges):
            for row in [row for row in rows if piece.first <= row < piece.first + piece.rows.num_rows]:
                ends = []
                for columns, (found,) in zip(edge.ends, edges.ends(row, row + 1), strict=True):
                    values = [column_of(piece, column, self._layout.types)[row - piece.first].as_py() for column in columns]
                    ends.append(f"{values[0] if len(values) == 1 else tuple(values)!r}{' (unknown)' if found < 0 else ''}")
                shown.append(f"row {row}: {ends[0]} to {ends[1]}")
            if rows and piece.first + piece.rows.num_rows > rows[-1]:
                break
        return shown

    def _own_pieces(self, edges: KeptEdges) -> Iterator[Piece]:
        """Reads the ends of edges again, of those alone that are of the type."""
        edge, first = edges.owner, 0
        assert edge.table is not None, "it was read"
        names = [*edge.ends[0], *edge.ends[1], *([] if edge.relation is None else [edge.relation])]
        for piece in edge.table.pieces(list(dict.fromkeys(names))):
            if edge.relation is None:
                yield piece
                continue
            for value, _, own in pieces_by(piece, edge.relation, self._options):
                if value == edge.name[1]:
                    yield replace(own, first=first)
                    first += own.rows.num_rows

    # What came of it -------------------------------------------------------------------------------------------------------

    def _facts(self) -> dict[str, Any]:
        """Returns what became of the columns, as JSON."""
        facts, labelled = dict[str, Any](), list[Column]()
        for kept in self._kept:
            owner, earlier = kept.owner, {} if self._after is None else self._after.metadata["tables"][kept.label]
            own: dict[str, Any] = {name: column.facts() for name, column in kept.columns.items()}
            used = {name for columns in owner.uses.values() for name in columns}
            if isinstance(kept, KeptNodes):
                own["keys"] = list(kept.owner.keys) or ("row numbers" if kept.owner.by_row else self._key_order(kept, earlier))
                used |= set(kept.owner.keys)
                if LABEL_NAME in kept.columns:
                    labelled.append(kept.columns[LABEL_NAME])
                    without = sum(int((~has_label(rows)).sum()) for _, rows in kept.chunks(LABEL_NAME)) + earlier.get("unlabelled", 0)
                    own |= {"unlabelled": without} if without else {}
                if kept.split is not None:
                    own["split"] = {"column": kept.split.columns[0]}
            else:
                own["src"], own["dst"] = kept.end_columns
                used |= {*kept.owner.ends[0], *kept.owner.ends[1]}
                if dropped := kept.earlier_dropped + kept.num_dropped + kept.num_null:
                    own["dropped_edges"] = dropped
            names = [] if owner.table is None else owner.table.schema.names
            unused = [name for name in names if name not in used and not name.startswith("__index")]
            if unused := earlier.get("unused", []) if earlier else unused:
                own["unused"] = unused
            if filled := {name: self._options.fill[name] for name in sorted(used & set(self._options.fill))}:
                own["fill"] = filled
            facts[kept.label] = own
        classes = [len(column.values) for column in labelled if isinstance(column, Codes)]
        return {"tables": facts, **({"num_classes": classes[0]} if len(labelled) == len(classes) == 1 else {})}

    def _key_order(self, nodes: KeptNodes, earlier: Mapping[str, Any]) -> str:
        """The order of keys that edges name, those of the store and the new ones together."""
        if not earlier or earlier["keys"] != _FROM_EDGES:
            return str(earlier.get("keys", _FROM_EDGES))
        if nodes.before and nodes.num_rows:
            assert self._after is not None, "nodes before these are of a store"
            last, first = self._after.keys(nodes.owner.name)[nodes.before - 1], nodes.keys.key(0)
            if not (str(last).encode() < first.encode() if isinstance(first, str) else last < first):
                return _FROM_EDGES_APPENDED
        return _FROM_EDGES

    @property
    def described(self) -> list[tuple[str, str]]:
        """Names and values for its card: of each table the files, the columns of each use, what was left out, and columns without use."""
        found: list[tuple[str, str]] = []
        for kept in self._kept:
            label, owner, table = kept.label, kept.owner, kept.owner.table
            own, rows = self.metadata["tables"][label], f"{kept.num_rows} rows"
            found.append((label, f"no table, {rows}" if table is None else f"{table.origin}, {rows}"))
            ends = {"keys": owner.keys} if isinstance(owner, NodeTable) else {"src": owner.ends[0], "dst": owner.ends[1]}
            for option, columns in {**ends, **owner.uses}.items():
                words = [f"{column} ({table.need(column, option)})" for column in columns if table is not None]
                if words and option == "time":
                    words.append(f"in {own['time']['unit']}" if "unit" in own["time"] else "as they are")
                found += [(f"{label} {option}", ", ".join(words))] if words else []
            found += [(f"{label} dropped", f"{own['dropped_edges']} edges that name no node")] if "dropped_edges" in own else []
            found += [(f"{label} without a label", f"{own['unlabelled']}")] if "unlabelled" in own else []
            found += [(f"{label} unused", ", ".join(own["unused"]))] if "unused" in own else []
        return found

    def _digest(self) -> str:
        digest = hashlib.sha256(json.dumps(self.schema.to_json()).encode())

        def add(*values: Any) -> None:
            digest.update(json.dumps(values).encode())

        for node_type, nodes in self._nodes.items():
            add(node_type, {name: column.digest() for name, column in nodes.columns.items()})
            if nodes.spool is not None:
                add(nodes.spool.columns, nodes.spool.digest())
            for split, ids in self.splits.get(node_type, {}).items():
                add(split, hashlib.sha256(ids.tobytes()).hexdigest())
        for edge_type, edges in self._edges.items():
            ends = [end.hexdigest() for end in edges.counted.digests]
            add(edge_type, ends, {name: column.digest() for name, column in edges.columns.items()})
        # What became of columns, but for those that became nothing.
        add({owner: {name: fact for name, fact in own.items() if name != "unused"} for owner, own in self.metadata["tables"].items()})
        return digest.hexdigest()


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

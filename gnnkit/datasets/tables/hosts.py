"""Tables that the hosts of a cluster read together: each its share of the row groups, into files that all of them see.

A task reads some consecutive row groups, converts their columns, finds the ids of the ends of edges, and takes the digests of the chunks
that lie in its range. What it leaves is put together here, in the order of the ranges, so that it is the graph that one process reads.
Only keys come together in one place: those of node tables are read here again from what hosts wrote, and their table goes into a file.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from typing_extensions import override

from gnnkit.datasets.derived import FiledSource
from gnnkit.datasets.tables.columns import MEAN, Column, ReadOptions
from gnnkit.datasets.tables.digests import PieceDigest
from gnnkit.datasets.tables.keys import KeyColumn, KeyTable
from gnnkit.datasets.tables.layout import EdgeTable, Layout, NodeTable
from gnnkit.datasets.tables.readers import EdgeReader, EndCount, Finder, NodeReader, columns_of, ids_of, split_of
from gnnkit.datasets.tables.reading import RowGroup
from gnnkit.datasets.tables.rows import JoinedRows, RangeRows, Rows
from gnnkit.datasets.tables.source import KeptEdges, KeptNodes, TableSource
from gnnkit.events import Stage
from gnnkit.schema import ArraySpec, EdgeType, NodeType
from gnnkit.source import CHUNK_ROWS
from gnnkit.storage.files import ArrayFile
from gnnkit.storage.key_kernels import find_keys
from gnnkit.storage.keys import INTEGER
from gnnkit.storage.staging import remove_tree

# Bytes of row groups that a task reads; a small table is cut into so many ranges at most.
_RANGE_BYTES, _SMALLEST_RANGE_BYTES, _RANGES = 64 << 20, 1 << 12, 24
T = TypeVar("T")


class HostTasks(Protocol):
    """The hosts of a cluster, which run functions."""

    def map(self, function: Callable[..., T], shared: Any, calls: Sequence[tuple[tuple[Any, ...], int]]) -> Iterator[tuple[int, str, T]]:
        """Runs ``function(shared, *words)`` for each of ``calls``, ``(words, bytes that it reads)``, shared out by these bytes.

        Yields:
            Which call has ended, the name of the host that has run it, and what it has returned; in the order in which they end.
        """
        ...


@runtime_checkable
class TableEngine(Protocol):
    """A cluster whose hosts read tables together, such as ``gnnkit.Ray``."""

    def tasks(self) -> AbstractContextManager[HostTasks]:
        """Joins the cluster, for a ``with`` block."""
        ...


# What hosts do ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EdgeJob:
    """A table of edges to read.

    Attributes:
        edge: Its type.
        options: How columns are read.
        folder: The folder that all hosts see.
        finders: What finds the ids of keys, of the node types whose keys are known.
        distinct: The node types whose nodes are those that edges name.
        specs: The forms of ids, or where they are not known of words, of both ends.
    """

    edge: EdgeTable
    options: ReadOptions
    folder: Path
    finders: Mapping[NodeType, Finder]
    distinct: frozenset[NodeType]
    specs: tuple[ArraySpec, ArraySpec]


@dataclass
class NodeRange:
    """Nodes that a host has read.

    Attributes:
        num_rows: How many.
        columns: Their columns.
        keys: Of each column of the key its files, of integers one, of texts lengths and bytes.
        words: The words of their keys; None where they have none.
    """

    num_rows: int
    columns: list[Column]
    keys: list[list[RangeRows]]
    words: RangeRows | None


@dataclass
class EdgeEnds:
    """The ids of the ends of some edges.

    Attributes:
        rows: Where they are, of both ends.
        counted: Their digests and the edges that name no node, once all ids are known.
    """

    rows: list[RangeRows]
    counted: EndCount[PieceDigest]

    @classmethod
    def from_row(cls, first: int, rows: list[RangeRows]) -> EdgeEnds:
        """Those of edges of which the first has the number ``first``."""
        return cls(rows, EndCount(PieceDigest(8 * first), PieceDigest(8 * first)))

    @property
    def num_rows(self) -> int:
        """Number of these edges."""
        return self.rows[0].num_rows


@dataclass
class EdgeRange:
    """Edges that a host has read.

    Attributes:
        num_rows: How many.
        columns: Their columns.
        ends: Their ends; of the node types without a finder these are words.
        keys: Of each end the file of its different keys; None where none are asked for.
    """

    num_rows: int
    columns: list[Column]
    ends: EdgeEnds
    keys: list[str | None]


@dataclass(frozen=True)
class StoredKeys:
    """A table of keys in files, which finds their ids in any process.

    Attributes:
        path: The beginning of the names of the files.
        width: Words of a key.
        dtype: Of rows.
    """

    path: str
    width: int
    dtype: str

    @classmethod
    def of(cls, table: KeyTable, path: Path) -> StoredKeys:
        """Writes a table that has all keys."""
        table.slots.tofile(f"{path}.slots")
        table.rows.tofile(f"{path}.rows")
        return cls(str(path), table.slots.shape[1], table.rows.dtype.name)

    def __call__(self, words: NDArray[np.uint64]) -> NDArray[Any]:
        """The ids of keys; -1 where no node has the key."""
        slots, rows = _mapped(self)
        found = np.full(len(words), -1, rows.dtype)
        find_keys(words, 1, 0, slots, rows, found)
        return found


@lru_cache(1)
def _mapped(keys: StoredKeys) -> tuple[NDArray[np.uint64], NDArray[Any]]:
    """Its words by slot and its rows, mapped: processes of a host share the pages. A private mapping is writable, as kernels want it."""
    rows = np.asarray(np.memmap(f"{keys.path}.rows", keys.dtype, "c"))
    return np.asarray(np.memmap(f"{keys.path}.slots", np.uint64, "c", shape=(len(rows), keys.width))), rows


def read_nodes(job: tuple[NodeTable, ReadOptions, Path], groups: Sequence[RowGroup], first: int, name: str) -> NodeRange:
    """Reads some row groups of a table of nodes.

    Args:
        job: The table, how its columns are read, and the folder that all hosts see.
        groups: The row groups.
        first: The number of their first row.
        name: The beginning of the names of the files to write.
    """
    node, options, folder = job
    place = partial(RangeRows, folder, name, first)
    more = split_of(node, options, place), ids_of(node, options, place)
    columns: list[Column] = [*columns_of(node, options, place).values(), *(column for column in more if column is not None)]
    reader = NodeReader(node, columns, options)
    dtypes = (("int64",) if kind == INTEGER else ("int64", "uint8") for kind in reader.kinds.values())
    keys = [[place(ArraySpec(dtype)) for dtype in own] for own in dtypes]
    words = place(ArraySpec("uint64", (1 if [*reader.kinds.values()] == [INTEGER] else 2,))) if keys else None
    count = 0
    for piece in reader.table.pieces(reader.names, groups, first):
        size, found, values = reader.work(piece)
        count += size
        for column, value in zip(columns, values, strict=True):
            column.append(value)
        if found is not None and words is not None:
            words.append(found[1])
            for files, own in zip(keys, found[0], strict=True):
                parts = [np.diff(own[0]), own[1]] if isinstance(own, tuple) else [own]
                for file, rows in zip(files, parts, strict=True):
                    file.append(rows)
    return NodeRange(count, columns, keys, words)


def read_edges(job: EdgeJob, groups: Sequence[RowGroup], first: int, name: str) -> EdgeRange:
    """Reads some row groups of a table of edges; see ``read_nodes``."""
    place = partial(RangeRows, job.folder, name, first)
    columns = [*columns_of(job.edge, job.options, place).values()]
    reader = EdgeReader(job.edge, columns, job.options, job.finders, job.distinct)
    node_types = job.edge.node_types
    ids = [place(spec) for spec in job.specs]
    ends, count = EdgeEnds.from_row(first, ids), 0
    keys: list[list[pa.Array]] = [[], []]
    for piece in reader.table.pieces(reader.names, groups, first):
        ((_, (size, found, once, values, *_)),) = reader.work(piece)[1]
        for column, value in zip(columns, values, strict=True):
            column.append(value)
        for file, rows in zip(ids, found, strict=True):
            file.append(rows)
        for end, own in enumerate(once):
            keys[end] += [] if own is None else [own]
        if all(t in job.finders for t in node_types):
            ends.counted.add(first + count, found)
        count += size
    stored = [_stored_keys(own, job.folder / f"{name}.keys{end}") if t in job.distinct else None
              for end, (t, own) in enumerate(zip(node_types, keys, strict=True))]  # fmt: skip
    return EdgeRange(count, columns, ends, stored)


def find_ends(job: EdgeJob, found: EdgeEnds, first: int, name: str) -> EdgeEnds:
    """Finds the ids of ends of which there are words.

    Args:
        job: The table, with finders of the node types whose ids are yet to be found.
        found: The ends.
        first: The number of the first edge.
        name: The beginning of the names of the files to write.
    """
    place = partial(RangeRows, job.folder, name, first)
    given = zip(found.rows, job.edge.node_types, job.specs, strict=True)
    ids = [place(spec) if node_type in job.finders else rows for rows, node_type, spec in given]
    ends = EdgeEnds.from_row(first, ids)
    for start in range(0, found.num_rows, CHUNK_ROWS):
        stop = min(start + CHUNK_ROWS, found.num_rows)
        both = []
        for node_type, words, file in zip(job.edge.node_types, found.rows, ids, strict=True):
            rows = words.read(start, stop)
            if node_type in job.finders:
                rows = job.finders[node_type](rows)
                file.append(rows)
            both.append(rows)
        ends.counted.add(first + start, both)
    return ends


def _stored_keys(keys: Sequence[pa.Array], path: Path) -> str:
    """Writes different keys into a file, and returns its path."""
    once = pa.chunked_array(keys).unique() if keys else pa.array([], pa.int64())
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, pa.schema([("key", once.type)])) as writer:
        writer.write_batch(pa.record_batch([once], ["key"]))
    return str(path)


# Together --------------------------------------------------------------------------------------------------------------------


class HostTables(TableSource):
    """A ``TableSource`` whose tables the hosts of a cluster read; ``ranged`` is what they build a store from.

    Args:
        engine: The cluster.
        layout, options, folder, given: Those of ``TableSource``; the folder is one that all hosts see.
    """

    def __init__(self, engine: TableEngine, layout: Layout, options: ReadOptions, *, folder: Path, **given: Any) -> None:
        self._engine = engine
        self._ends_read: dict[EdgeType, list[EdgeEnds]] = {}
        self._read_by: dict[str, int] = {}
        self._shared = Path(tempfile.mkdtemp(prefix="gnnkit-tables-", dir=folder))
        weakref.finalize(self, remove_tree, self._shared)
        super().__init__(layout, options, folder=folder, **given, place=JoinedRows)

    @classmethod
    def can_read(cls, layout: Layout, options: ReadOptions) -> bool:
        """Whether hosts can share tables: row groups of Parquet files, of which each is known to come after how many rows."""
        if options.drops or MEAN in options.fill.values() or any({"standardize", "edge_type"} & {*owner.uses} for owner in layout.owners):
            return False
        # A range of rows says of these what it is by its own values.
        uses = [(owner.table, [*owner.uses.get("label", ()), *owner.uses.get("edge_weight", ()), *options.fill]) for owner in layout.owners]
        return all(table is None or table.can_be_cut(columns) for table, columns in uses)

    @property
    def ranged(self) -> RangedTables:
        """The same graph, any rows of which any host can read."""
        columns = {kept.owner.name: kept.columns for kept in self._kept}
        return RangedTables(self, columns, {edge_type: edges.ids for edge_type, edges in self._edges.items()})

    def _read(self) -> None:
        with self._engine.tasks() as self._tasks:
            super()._read()
        del self._tasks

    @override
    def _read_node_table(self, nodes: KeptNodes, reader: NodeReader) -> None:
        job = replace(nodes.owner, table=reader.table.of_hosts()), self._options, self._shared
        for found in self._run(reader, read_nodes, job, f"nodes.{self._number(nodes)}"):
            nodes.join(found.num_rows, found.columns)
            if found.words is not None:
                nodes.keys.append([_key_column(files) for files in found.keys], found.words.read(0, found.num_rows))

    def _number(self, nodes: KeptNodes) -> int:
        return list(self._nodes).index(nodes.owner.name)

    @override
    def _make_key_finder(self, nodes: KeptNodes, memory_bytes: int) -> int:
        nodes.finder = self._stored(nodes)
        return 0

    def _stored(self, nodes: KeptNodes) -> StoredKeys:
        """Writes the table of a type's keys.

        Raises:
            DatasetError: Two nodes have one key.
        """
        return StoredKeys.of(KeyTable.of(nodes.keys, nodes.what), self._shared / f"table.{self._number(nodes)}")

    @override
    def _read_edges(self, edges: KeptEdges) -> None:
        edge, nodes, reader = edges.owner, [self._nodes[node_type] for node_type in edges.owner.node_types], self._reader(edges)
        source, target = (each.keys.words.spec if each.finder is None else each.id_spec for each in nodes)
        own = replace(edge, table=reader.table.of_hosts())
        job = EdgeJob(own, self._options, self._shared, reader.finders, reader.distinct, (source, target))
        for group in reader.table.row_groups(reader.names):
            if group.num_rows:
                edges.begin_file(group.file, group.first)
        self._ends_read[edge.name] = ends = []
        for found in self._run(reader, read_edges, job, f"edges.{list(self._edges).index(edge.name)}"):
            ends.append(found.ends)
            edges.join(found.num_rows, found.columns)
            for path, each in zip(found.keys, nodes, strict=True):
                if path is not None and each.distinct is not None and found.num_rows:
                    with pa.memory_map(path) as file:
                        each.distinct.add(pa.ipc.open_file(file).read_all().column(0).combine_chunks())

    @override
    def _resolve(self, pending: Sequence[KeptNodes]) -> None:
        finders: dict[NodeType, Finder] = {nodes.owner.name: self._stored(nodes) for nodes in pending}
        for number, (edge_type, edges) in enumerate(self._edges.items()):
            ends, (source, target) = self._ends_read[edge_type], edges.owner.node_types
            specs = self._nodes[source].id_spec, self._nodes[target].id_spec
            if source in finders or target in finders:
                own = {node_type: finder for node_type, finder in finders.items() if node_type in (source, target)}
                job = EdgeJob(replace(edges.owner, table=None), self._options, self._shared, own, frozenset(), specs)
                starts = np.cumsum([0, *(each.num_rows for each in ends)]).tolist()
                calls = [((each, starts[k], f"ids.{number}.{k}"), 16 * each.num_rows) for k, each in enumerate(ends)]
                found = dict[int, EdgeEnds]((k, value) for k, _, value in self._tasks.map(find_ends, job, calls))
                ends = [found[k] for k in range(len(ends))]
            for end, spec in enumerate(specs):
                edges.ids[end] = joined = JoinedRows(spec)
                for each in ends:
                    joined.join(each.rows[end])
            for each in ends:
                edges.counted.join(each.counted)

    def _run(self, reader: NodeReader | EdgeReader, function: Callable[..., T], job: Any, name: str) -> Iterator[T]:
        """Yields what hosts make of the ranges of a table, in their order."""
        groups = reader.table.row_groups(reader.names)
        total = sum(group.nbytes for group in groups)
        calls: list[tuple[tuple[Any, ...], int]] = []
        for range_ in _ranges(groups, min(_RANGE_BYTES, max(_SMALLEST_RANGE_BYTES, total // _RANGES))):
            nbytes = sum(group.nbytes for group in range_) + sum({group.file: group.footer_nbytes for group in range_}.values())
            calls.append(((range_, range_[0].first, f"{name}.{len(calls)}"), nbytes))
        ended: dict[int, T] = {}
        yielded = 0
        with Stage(self._events, "ingest", label=f"{self.name}, {reader.table.what}", unit="rows") as stage:
            for number, host, value in self._tasks.map(function, job, calls):
                self._read_by[host] = self._read_by.get(host, 0) + calls[number][1]
                ended[number] = value
                stage.advance(sum(group.num_rows for group in calls[number][0][0]))
                while yielded in ended:
                    yield ended.pop(yielded)
                    yielded += 1
            stage.summary = self.shares

    @property
    def shares(self) -> str:
        """Describes how much of the tables each host has read: "3 nodes, each read at most 34 % of the tables"."""
        largest = 100 * max(self._read_by.values(), default=0) / max(1, sum(self._read_by.values()))
        return f"{len(self._read_by)} nodes, each read at most {largest:.0f} % of the tables"


def _ranges(groups: Sequence[RowGroup], range_bytes: int) -> Iterator[list[RowGroup]]:
    """Cuts row groups into ranges of about so many bytes."""
    found, nbytes = list[RowGroup](), 0
    for group in groups:
        if found and nbytes + group.nbytes > range_bytes:
            yield found
            found, nbytes = [], 0
        found.append(group)
        nbytes += group.nbytes
    if found:
        yield found


def _key_column(files: Sequence[RangeRows]) -> KeyColumn:
    """A column of keys, of the files of a range."""
    first, *text = (file.read(0, file.num_rows) for file in files)
    return (np.concatenate([[0], np.cumsum(first)]), text[0]) if text else first


class RangedTables(FiledSource):
    """Tables that hosts have read; it can be pickled.

    Args:
        source: The tables, see ``FiledSource``.
        columns: ``{node type or edge type: {array: its column}}``.
        ends: ``{edge type: the ids of both ends, see ``KeptEdges``}``.
    """

    def __init__(
        self,
        source: HostTables,
        columns: Mapping[Any, Mapping[str, Column]],
        ends: Mapping[EdgeType, Mapping[int, ArrayFile | Rows]],
    ) -> None:
        super().__init__(source)
        self._columns, self._ends = columns, ends

    @override
    def edge_rows(self, edge_type: EdgeType, first: int, last: int) -> NDArray[np.int64]:
        return np.stack([self._ends[edge_type][end].read(first, last) for end in (0, 1)], dtype=np.int64)

    @override
    def edge_array_rows(self, edge_type: EdgeType, name: str, first: int, last: int) -> NDArray[Any]:
        return self._columns[edge_type][name].rows(first, last)

    @override
    def node_array_rows(self, node_type: NodeType, name: str, first: int, last: int) -> NDArray[Any]:
        return self._columns[node_type][name].rows(first, last)

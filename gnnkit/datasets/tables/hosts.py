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
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from typing_extensions import override

from gnnkit.datasets.derived import FiledSource
from gnnkit.datasets.tables.columns import MEAN, Column
from gnnkit.datasets.tables.digests import ChainedDigest, PieceDigest
from gnnkit.datasets.tables.keys import DistinctKeys, KeyColumn, KeyTable
from gnnkit.datasets.tables.layout import EdgeTable, Layout, NodeTable
from gnnkit.datasets.tables.readers import EdgeReader, Finder, NodeReader, ReadOptions
from gnnkit.datasets.tables.reading import RowGroup, SourceTable
from gnnkit.datasets.tables.rows import JoinedRows, RangeRows
from gnnkit.datasets.tables.source import TableSource
from gnnkit.events import Stage
from gnnkit.schema import ArraySpec, EdgeType, NodeType
from gnnkit.source import CHUNK_ROWS
from gnnkit.storage.key_kernels import find_keys
from gnnkit.storage.keys import INTEGER
from gnnkit.storage.staging import remove_tree

# Bytes of row groups that a task reads; a small table is cut into so many ranges at most.
_RANGE_BYTES, _SMALLEST_RANGE_BYTES, _RANGES = 64 << 20, 1 << 12, 24
_SHOWN = 10
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
        digests: The digests of both, as int64.
        missing: Edges an end of which is no node.
        first: The numbers of the first of these.
    """

    rows: list[RangeRows]
    digests: list[PieceDigest]
    missing: int = 0
    first: list[int] = field(default_factory=list)

    def count(self, start: int, ends: Sequence[NDArray[Any]]) -> None:
        """Enters the ids of both ends of some edges, of which the first has the number ``start``."""
        for digest, ids in zip(self.digests, ends, strict=True):
            digest.update(ids.astype(np.int64, copy=False))
        bad = np.flatnonzero((ends[0] < 0) | (ends[1] < 0))
        self.missing += len(bad)
        self.first += (bad[: _SHOWN - len(self.first)] + start).tolist()


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
        slots, rows = table.arrays
        for array, suffix in ((slots, "slots"), (rows, "rows")):
            array.tofile(f"{path}.{suffix}")
        return cls(str(path), slots.reshape(len(rows), -1).shape[1], rows.dtype.name)

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
    split = options.split(node, place)
    columns: list[Column] = [*options.columns(node, place).values(), *([] if split is None else [split])]
    reader, table = NodeReader(node, columns, options), node.table
    assert table is not None, "others are not read"
    keys: list[list[RangeRows]] = []
    for kind in reader.kinds.values():
        specs = [ArraySpec("int64")] if kind == INTEGER else [ArraySpec("int64"), ArraySpec("uint8")]
        keys.append([place(spec) for spec in specs])
    words = place(ArraySpec("uint64", (1 if [*reader.kinds.values()] == [INTEGER] else 2,))) if keys else None
    count = 0
    for piece in table.pieces(reader.names, groups, first):
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
    columns = [*job.options.columns(job.edge, place).values()]
    reader, table = EdgeReader(job.edge, columns, job.options, job.finders, job.distinct), job.edge.table
    assert table is not None, "others are not read"
    node_types = (job.edge.name[0], job.edge.name[2])
    ids = [place(spec) for spec in job.specs]
    ends, count = EdgeEnds(ids, [PieceDigest(8 * first), PieceDigest(8 * first)]), 0
    keys: list[list[pa.Array]] = [[], []]
    for piece in table.pieces(reader.names, groups, first):
        size, found, once, values, *_ = reader.work(piece)
        for column, value in zip(columns, values, strict=True):
            column.append(value)
        for file, rows in zip(ids, found, strict=True):
            file.append(rows)
        for end, own in enumerate(once):
            keys[end] += [] if own is None else [own]
        if all(t in job.finders for t in node_types):
            ends.count(first + count, found)
        count += size
    stored = [_stored_keys(own, job.folder / f"{name}.keys{end}") if t in job.distinct else None
              for end, (t, own) in enumerate(zip(node_types, keys, strict=True))]  # fmt: skip
    return EdgeRange(count, columns, ends, stored)


def find_ends(job: EdgeJob, found: EdgeEnds, known: tuple[bool, bool], first: int, name: str) -> EdgeEnds:
    """Finds the ids of ends of which there are words.

    Args:
        job: The table; its finders know all keys now.
        found: The ends.
        known: Whether ids are there already, of both ends.
        first: The number of the first edge.
        name: The beginning of the names of the files to write.
    """
    place = partial(RangeRows, job.folder, name, first)
    ids = [rows if is_known else place(spec) for rows, is_known, spec in zip(found.rows, known, job.specs, strict=True)]
    ends = EdgeEnds(ids, [PieceDigest(8 * first), PieceDigest(8 * first)])
    for start in range(0, found.rows[0].num_rows, CHUNK_ROWS):
        stop = min(start + CHUNK_ROWS, found.rows[0].num_rows)
        both = []
        for node_type, given, file in zip((job.edge.name[0], job.edge.name[2]), found.rows, ids, strict=True):
            rows = given.read(start, stop)
            if file is not given:
                rows = job.finders[node_type](rows)
                file.append(rows)
            both.append(rows)
        ends.count(first + start, both)
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
        options: Those of ``TableSource``; the folder is one that all hosts see.
    """

    def __init__(self, engine: TableEngine, **options: Any) -> None:
        self._engine = engine
        self._ranges: dict[EdgeType, list[EdgeRange]] = {}
        self._joined: dict[EdgeType, tuple[JoinedRows, JoinedRows]] = {}
        self._ends_read: dict[EdgeType, list[EdgeEnds]] = {}
        self._read_by: dict[str, int] = {}
        self._shared = Path(tempfile.mkdtemp(prefix="gnnkit-tables-", dir=options["folder"]))
        weakref.finalize(self, remove_tree, self._shared)
        super().__init__(**options, place=JoinedRows)

    @classmethod
    def can_read(cls, layout: Layout, fill: Mapping[str, Any], dangling: str) -> bool:
        """Whether hosts can share tables: row groups of Parquet files, of which each is known to come after how many rows."""
        if MEAN in fill.values() or any("standardize" in owner.uses for owner in layout.owners):
            return False
        tables = [*(node.table for node in layout.nodes.values()), *(edge.table for edge in layout.edges.values())]
        return dangling == "error" and all(table is None or table.can_be_cut for table in tables)

    @property
    def ranged(self) -> RangedTables:
        """The same graph, any rows of which any host can read."""
        return RangedTables(self, {t: arrays.columns for found in (self._nodes, self._edges) for t, arrays in found.items()}, self._joined)

    def _read(self) -> None:
        with self._engine.tasks() as self._tasks:
            super()._read()
        del self._tasks

    @override
    def _read_node_table(self, node: NodeTable, table: SourceTable, reader: NodeReader, columns: Sequence[Column]) -> None:
        arrays = self._nodes[node.name]
        job = replace(node, table=table.of_hosts()), self._options, self._shared
        for found in self._run(table, reader.names, read_nodes, job, f"nodes.{list(self._layout.nodes).index(node.name)}"):
            arrays.num_rows += found.num_rows
            for column, own in zip(columns, found.columns, strict=True):
                column.join(own)
            if found.words is not None:
                self._spools[node.name].append([_key_column(files) for files in found.keys], found.words.read(0, found.num_rows))

    def _finders(self, memory_bytes: int) -> dict[NodeType, Finder]:
        found = {name: finder for name, finder in super()._finders(0).items() if self._layout.nodes[name].by_row}
        return found | {name: self._stored(name) for name, node in self._layout.nodes.items() if node.form == "table" and node.keys}

    def _stored(self, node_type: NodeType) -> StoredKeys:
        """Writes the table of a type's keys.

        Raises:
            DatasetError: Two nodes have one key.
        """
        table = KeyTable(self._spools[node_type], f"nodes {node_type!r}")
        table.enter()
        table.refuse_doubles()
        return StoredKeys.of(table, self._shared / f"table.{list(self._layout.nodes).index(node_type)}")

    def _read_edges(self, edge: EdgeTable, distinct: Mapping[NodeType, DistinctKeys], finders: Mapping[NodeType, Finder]) -> None:
        assert edge.table is not None, "nothing is appended here"
        arrays, node_types = self._edges[edge.name], (edge.name[0], edge.name[2])
        columns = list(arrays.columns.values())
        own: dict[NodeType, Finder] = {t: finders[t] for t in node_types if t in finders}
        source, target = (self._id_spec(t) if t in own else self._spools[t].words.spec for t in node_types)
        table = edge.table.of_hosts()
        job = EdgeJob(replace(edge, table=table), self._options, self._shared, own, frozenset(distinct) & {*node_types}, (source, target))
        reader = EdgeReader(edge, columns, self._options, own, job.distinct)
        files = self._files.setdefault(edge.name, [])
        for group in edge.table.row_groups(reader.names):
            if group.num_rows and (not files or files[-1][0] != group.file):
                files.append((group.file, group.first))
        found = self._ranges.setdefault(edge.name, [])
        for read in self._run(edge.table, reader.names, read_edges, job, f"edges.{list(self._layout.edges).index(edge.name)}"):
            found.append(read)
            arrays.num_rows += read.num_rows
            for column, own_rows in zip(columns, read.columns, strict=True):
                column.join(own_rows)
            for path, node_type in zip(read.keys, node_types, strict=True):
                if path is not None and read.num_rows:
                    with pa.memory_map(path) as file:
                        distinct[node_type].add(pa.ipc.open_file(file).read_all().column(0).combine_chunks())

    def _resolve(self, node_types: Sequence[NodeType]) -> None:
        finders: dict[NodeType, Finder] = {t: self._stored(t) for t in node_types if t in self._spools}
        for number, (edge_type, read) in enumerate(self._ranges.items()):
            ends, of_type = [each.ends for each in read], (edge_type[0], edge_type[2])
            if any(t in finders for t in of_type):
                known = of_type[0] not in finders, of_type[1] not in finders
                specs = self._id_spec(of_type[0]), self._id_spec(of_type[1])
                edge = replace(self._layout.edges[edge_type], table=None)
                own = {t: finders[t] for t in of_type if t in finders}
                job = EdgeJob(edge, self._options, self._shared, own, frozenset(), specs)
                starts = np.cumsum([0, *(each.num_rows for each in read)]).tolist()
                calls = [((each, known, starts[k], f"ids.{number}.{k}"), 16 * read[k].num_rows) for k, each in enumerate(ends)]
                found = dict[int, EdgeEnds]((k, value) for k, _, value in self._tasks.map(find_ends, job, calls))
                ends = [found[k] for k in range(len(ends))]
            self._ends_read[edge_type] = ends
            joined = JoinedRows(self._id_spec(of_type[0])), JoinedRows(self._id_spec(of_type[1]))
            for each in ends:
                for rows, own_rows in zip(joined, each.rows, strict=True):
                    rows.join(own_rows)
            self._joined[edge_type] = joined
            self._ids[edge_type, 0], self._ids[edge_type, 1] = joined
            first = [row for each in ends for row in each.first][:_SHOWN]
            self._refuse_missing(edge_type, sum(each.missing for each in ends), first)

    def _digest_ends(self, edge_type: EdgeType, digests: Sequence[ChainedDigest]) -> None:
        for ends in self._ends_read[edge_type]:
            for digest, piece in zip(digests, ends.digests, strict=True):
                digest.extend(piece)

    def _run(self, table: SourceTable, names: Sequence[str], function: Callable[..., T], job: Any, name: str) -> Iterator[T]:
        """Yields what hosts make of the ranges of a table, in their order."""
        groups = table.row_groups(names)
        total = sum(group.nbytes for group in groups)
        calls: list[tuple[tuple[Any, ...], int]] = []
        for range_ in _ranges(groups, min(_RANGE_BYTES, max(_SMALLEST_RANGE_BYTES, total // _RANGES))):
            nbytes = sum(group.nbytes for group in range_) + sum({group.file: group.footer_nbytes for group in range_}.values())
            calls.append(((range_, range_[0].first, f"{name}.{len(calls)}"), nbytes))
        ended: dict[int, T] = {}
        yielded = 0
        with Stage(self._events, "ingest", label=f"{self.name}, {table.what}", unit="rows") as stage:
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
        ends: ``{edge type: the ids of both ends}``.
    """

    def __init__(
        self,
        source: HostTables,
        columns: Mapping[Any, Mapping[str, Column]],
        ends: Mapping[EdgeType, tuple[JoinedRows, JoinedRows]],
    ) -> None:
        super().__init__(source)
        self._columns, self._ends = columns, ends

    @override
    def edge_rows(self, edge_type: EdgeType, first: int, last: int) -> NDArray[np.int64]:
        return np.stack([rows.read(first, last) for rows in self._ends[edge_type]], dtype=np.int64)

    @override
    def edge_array_rows(self, edge_type: EdgeType, name: str, first: int, last: int) -> NDArray[Any]:
        return self._columns[edge_type][name].rows(first, last)

    @override
    def node_array_rows(self, node_type: NodeType, name: str, first: int, last: int) -> NDArray[Any]:
        return self._columns[node_type][name].rows(first, last)

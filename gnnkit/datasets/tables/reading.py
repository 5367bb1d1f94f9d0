"""Tables in any form, read front to back in record batches: files, Arrow streams, data frames, dictionaries, pairs of arrays."""

from __future__ import annotations

import glob
import lzma
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet
from typing_extensions import override

from gnnkit.datasets.tables.formats import FileRead, MatrixMarket, TableFormat
from gnnkit.datasets.tables.texts import (
    AS_TOLD,
    BLOCK_BYTES,
    PACKED,
    PADDED,
    TEXT,
    Dialect,
    PaddedNumbers,
    TextOptions,
    open_text,
    sniff,
    unlike,
)
from gnnkit.errors import DatasetError, PlanError, near_matches
from gnnkit.events import EventSink, ignore_events
from gnnkit.files import user_path
from gnnkit.rendering import renderer
from gnnkit.urls import is_url

# Rows and bytes of a batch at most; wide rows come in smaller batches.
_BATCH_ROWS, _BATCH_BYTES = 1 << 18, 16 << 20
# Streams of these are opened once: all columns of pandas and of dictionaries are converted for each, and a reader of pyarrow has only one.
# Of others, such as DuckDB, a stream that is open may be the only one that a connection gives.
_KEPT_OPEN = ("pandas", "pyarrow", "builtins")
# Files of Spark's saveAsTextFile, and KONECT's.
_BARE_TEXT = re.compile(r"part-\d{5}|out\.[^.]+")
_DAMAGE = (pa.ArrowException, OSError, ValueError, EOFError, lzma.LZMAError, zlib.error)
# Marks the columns that a file does not have itself.
_IN_FOLDERS = {b"gnnkit": b"in the names of folders"}
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
# What reads files of other kinds.
_READERS = {
    ".jsonl": "gnnkit.tables takes pandas.read_json(path, lines=True)",
    ".ndjson": "gnnkit.tables takes pandas.read_json(path, lines=True)",
    ".json": "gnnkit.tables takes pandas.read_json(path)",
    ".xlsx": "gnnkit.tables takes pandas.read_excel(path)",
    ".orc": "gnnkit.tables takes pyarrow.orc.read_table(path)",
    ".avro": "gnnkit.tables takes polars.read_avro(path)",
    ".npy": "gnnkit.tables takes numpy.load(path, mmap_mode='r'), two rows of ends",
    ".mat": "gnnkit.tables takes arrays of scipy.io.loadmat(path)",
    ".npz": "gnnkit.tables takes scipy.sparse.load_npz(path).nonzero() of a matrix, and dict(numpy.load(path)) of columns",
    ".graphml": "gnnkit.tables takes networkx.read_graphml(path)",
    ".gexf": "gnnkit.tables takes networkx.read_gexf(path)",
    ".gml": "gnnkit.tables takes networkx.read_gml(path)",
    ".pkl": "gnnkit.tables takes pandas.read_pickle(path)",
    ".pt": "GraphLoader.from_pyg takes torch.load(path, weights_only=False) of a Data or HeteroData",
    ".bin": "dgl.load_graphs(path) reads graphs of DGL, and gnnkit.tables takes graph.edges()",
    ".zip": "unpack it: python -m zipfile -e FILE FOLDER",
}


@dataclass(frozen=True)
class Piece:
    """Some consecutive rows of a table.

    Attributes:
        rows: The rows.
        first: The number of the first one in its table.
        where: The place it was read from, for errors: "users.parquet, row group 3".
        file: The number of its file among those of the table; 0 where the table is an object.
    """

    rows: pa.RecordBatch
    first: int
    where: str
    file: int = 0


@dataclass(frozen=True)
class RowGroup:
    """A row group of one of a table's Parquet files.

    Attributes:
        file: The number of its file.
        number: Its number in the file.
        first: The number of its first row in the table.
        num_rows: Its rows.
        nbytes: Bytes of the columns that are read.
        footer_nbytes: Bytes of the file's footer, which is read whenever the file is opened.
    """

    file: int
    number: int
    first: int
    num_rows: int
    nbytes: int
    footer_nbytes: int


@dataclass
class SourceTable:
    """A table that can be read.

    Attributes:
        what: Whose it is, for errors: "nodes 'user'".
        form: What the user gave.
        types: Types that columns are to have, by name.
        files: Its files, in their order; empty where it is an object.
        urls: ``{file: the URL that it was fetched from}``.
        text: What is said of it where it is text.
        known: Columns that the header of a text is expected to have; none where nothing is known of it.
        schema: Its columns and their types.
        unreadable: ``{column: why it is no column of Arrow}``; it is an error only where such a column is needed.
        names: Columns whose values are names, of which 007 and 7 are two: keys, ends, classes, categories.
    """

    what: str
    form: Any
    types: Mapping[str, pa.DataType]
    files: list[str] = field(default_factory=list)
    urls: dict[str, str] = field(default_factory=dict)
    text: TextOptions = AS_TOLD
    known: Sequence[str] = ()
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    unreadable: dict[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    _dialects: dict[str, Dialect] = field(default_factory=dict)
    _opened: Any = None

    def need(self, column: str, option: str) -> pa.DataType:
        """The type of a column.

        Args:
            column: Its name.
            option: The option that names it, for the error.

        Raises:
            PlanError: There is none of that name, or it is text of another encoding.
            DatasetError: It cannot be read.
        """
        if f"{column}.0" in self.schema.names and column not in self.schema.names:
            found = [name for name in self.schema.names if name.startswith(f"{column}.")]
            what = f"{option}={column!r}: several columns of {self.what} are called {column!r}"
            raise PlanError(what, f"they go by {found}; or rename them")
        if column in self.unreadable:
            raise DatasetError(f"{option}={column!r} of {self.what} could not be read: {self.unreadable[column]}", "values are of one type")
        if not isinstance(column, str) or column not in self.schema.names:
            known = self.schema.names
            source = f" ({self.shown(self.files[0])})" if self.files else ""
            raise PlanError(
                f"{option}={column!r} names no column of {self.what}{source}{near_matches(str(column), known)}",
                f"columns: {known}",
            )
        kind = self.kind(column)
        if getattr(kind, "extension_name", "") == "pandas.period":
            hint = f"table[{column!r}] = table[{column!r}].dt.to_timestamp() makes times of them"
            raise DatasetError(f"{option}={column!r} of {self.what} has periods of pandas", hint)
        if self.is_csv and pa.types.is_binary(kind):
            raise PlanError(f"{option}={column!r} of {self.what} is no UTF-8", 'encoding="latin-1", or what else it is, reads it')
        return kind

    def kind(self, column: str) -> pa.DataType:
        """The type that a column has, or is to have."""
        return self.types.get(column, self.schema.field(column).type)

    def pieces(self, columns: Sequence[str], groups: Sequence[RowGroup] | None = None, first: int = 0) -> Iterator[Piece]:
        """Yields all rows of some columns, in order.

        Args:
            columns: The columns.
            groups: The row groups to read; None for all of the table.
            first: The number of the first row.

        Raises:
            DatasetError: It cannot be read; names the file and the row group.
        """
        width = sum(_width(self.schema.field(name).type) for name in columns)
        size = max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, width)))
        for batch, where, file in self._batches(list(columns), size, groups):
            for start in range(0, batch.num_rows, size):
                piece = batch.slice(start, size)
                yield Piece(piece, first, where, file)
                first += piece.num_rows

    def dialect(self, path: str) -> Dialect:
        """The dialect of one of its texts; where the first one has no header, none has."""
        if path not in self._dialects:
            first = None if path == self._texts[0] else self.dialect(self._texts[0])
            is_headless = first is not None and not first.options.header
            options = replace(self.text, header=False) if is_headless else self.text
            self._dialects[path] = sniff(path, options, self.known if first is None else first.names)
        return self._dialects[path]

    def with_texts(self, columns: Sequence[str]) -> SourceTable:
        """Returns the table itself; in files of text, such columns are texts, which may look like numbers."""
        if self.is_csv and columns:
            self.types = {**dict.fromkeys(columns, pa.string()), **self.types}
            self.schema = _files_schema(self)
        return self

    def with_names(self, columns: Sequence[str]) -> None:
        """Has the values of columns taken for names: texts where 007 is among their first rows, an error where it comes later."""
        self.names = (*self.names, *columns)
        padded = frozenset[str]().union(*(self.dialect(path).padded for path in self._texts))
        self.with_texts([name for name in columns if name in padded])

    def refuse_padded(self, path: str) -> None:
        """Refuses numbers such as 007 in columns of names of a text that were read as whole numbers.

        Raises:
            DatasetError: There is one; names the row and the column.
        """
        with open_text(path, self.dialect(path), self.numbered_names, dict.fromkeys(self.numbered_names, pa.string())) as reader:
            first = 0
            for batch in reader:
                for name, values in zip(batch.schema.names, batch.columns, strict=True):
                    if (row := pc.index(pc.match_substring_regex(values, PADDED), True).as_py()) >= 0:
                        what = f"{values[row].as_py()!r} in row {first + row}, after rows in which all were whole numbers"
                        hint = f"types={{{name!r}: 'string'}} keeps 007 and 7 apart, and 'int64' takes one for the other"
                        raise DatasetError(f"{self.shown(path)}: column {name!r} has {what}", hint)
                first += batch.num_rows

    @property
    def numbered_names(self) -> list[str]:
        """The columns of names that are read as whole numbers without a word of the user."""
        own = [self.schema.field(name) for name in dict.fromkeys(self.names) if name in self.schema.names and name not in self.types]
        return [field.name for field in own if pa.types.is_integer(field.type) and field.metadata != _IN_FOLDERS]

    @property
    def is_headless(self) -> bool:
        """Whether it is text that does not name its columns."""
        return self.is_csv and not self.dialect(self._texts[0]).options.header

    @property
    def told(self) -> dict[str, Any]:
        """The options for tables of text that come after this one, as JSON; {} where it is no text."""
        if not self.is_csv:
            return {}
        options = replace(self.text, header=None if self.dialect(self._texts[0]).options.header else False)
        return {name: value for name, value in vars(options).items() if value != getattr(AS_TOLD, name)}

    @cached_property
    def folders(self) -> dict[str, pa.DataType]:
        """The columns whose values are in the names of folders, as Hive and Spark write them ("year=2020"), and their types."""
        found = [_in_folders(self.shown(path)) for path in self.files]
        names = [name for name in (found[0] if found else ()) if all(name in own for own in found)]
        whole = {name: all(own[name] is None or re.fullmatch(r"-?\d{1,18}", own[name] or "") for own in found) for name in names}
        return {name: pa.int64() if whole[name] else pa.string() for name in names}

    def shown(self, path: str) -> str:
        """A file as the user knows it, for errors: where it was fetched from, else its path."""
        return self.urls.get(path, path)

    @property
    def origin(self) -> str:
        """Its files, and the dialect of the first one where it is text."""
        if not self.files:
            return type(self.form).__name__
        more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        how = f" ({self.dialect(self._texts[0])})" if self.is_csv else ""
        return f"{self.shown(self.files[0]).rpartition('/')[2]}{more}{how}"

    @property
    def is_csv(self) -> bool:
        """Whether its files say nothing of the types of columns."""
        return bool(self._texts)

    @property
    def _texts(self) -> list[str]:
        return [path for path in self.files if _format(path) == "csv"]

    def can_be_cut(self, columns: Sequence[str]) -> bool:
        """Whether hosts can read row groups by themselves.

        It is Parquet files at their own places; the values of some columns have one type in all of them, and are no lists of any length.
        """
        if not self.files or self.urls or any(_format(path) != "parquet" for path in self.files):
            return False
        own = [column for column in columns if column in self.schema.names]
        kinds = {column: {self.schema.field(column).type} for column in own}
        for path in self.files[1:]:
            schema = _file_schema(path, self)
            for column in own:
                kinds[column] |= {schema.field(column).type} if column in schema.names else set()
        lists = any(pa.types.is_list(kind) or pa.types.is_large_list(kind) for found in kinds.values() for kind in found)
        return not lists and all(len(found - {pa.null()}) < 2 for found in kinds.values())

    def row_groups(self, columns: Sequence[str]) -> list[RowGroup]:
        """Lists the row groups of a table that ``can_be_cut``, for some columns.

        Raises:
            DatasetError: A file cannot be read.
        """
        wanted, found, first = set(columns), list[RowGroup](), 0
        for number, path in enumerate(self.files):
            try:
                facts = parquet.read_metadata(path)
            except (pa.ArrowException, OSError) as error:
                raise _unreadable(self, path, error) from error
            for group in range(facts.num_row_groups):
                rows = facts.row_group(group)
                own = (rows.column(k) for k in range(rows.num_columns))
                nbytes = sum(c.total_compressed_size for c in own if c.path_in_schema.partition(".")[0] in wanted)
                found.append(RowGroup(number, group, first, rows.num_rows, nbytes, facts.serialized_size))
                first += rows.num_rows
        return found

    def of_hosts(self) -> SourceTable:
        """The same table for other hosts, with absolute paths."""
        return SourceTable(self.what, None, dict(self.types), [*map(os.path.abspath, self.files)], schema=self.schema)

    def _batches(self, columns: list[str], size: int, groups: Sequence[RowGroup] | None) -> Iterator[tuple[pa.RecordBatch, str, int]]:
        for number, path in enumerate(self.files):
            own = None if groups is None else [group.number for group in groups if group.file == number]
            for batch, where in _file_batches(path, columns, size, self, own) if own is None or own else ():
                yield batch, where, number
        if self.files:
            return
        reader, self._opened = self._opened or _open_stream(self), None
        try:
            for batch in reader:
                yield _distinct(batch).select(columns), self.what, 0
        except (pa.ArrowException, OSError, ValueError, TypeError) as error:
            raise DatasetError(f"{self.what} could not be read: {_line(error)}") from error
        finally:
            reader.close()


def open_table(
    form: Any,
    what: str,
    types: Mapping[str, pa.DataType],
    events: EventSink = ignore_events,
    text: TextOptions = AS_TOLD,
    known: Sequence[str] = (),
) -> SourceTable:
    """Opens a table, and reads what its columns are.

    Args:
        form: A path, a URL, a glob, a folder or a list of them; an object with ``__arrow_c_stream__``; a pandas data frame;
            ``{column: array}``; or two arrays ``(src, dst)`` or one ``[2, n]``.
        what: Whose it is, for errors.
        types: Types that columns are to have, by name.
        events: Receives the stage "download" where there is a URL.
        text: What is said of files of text.
        known: Columns that their header is expected to have.

    Raises:
        PlanError: It is no table.
        DatasetError: A file is missing or cannot be read, or what is at a URL cannot be fetched.
    """
    table = SourceTable(what, form, types, text=text, known=known)
    paths = [form] if isinstance(form, (str, Path)) else form
    if isinstance(paths, (list, tuple)) and paths and all(isinstance(path, (str, Path)) for path in paths):
        if len(paths) > 1 or _engine_at(folder := _expanded(os.fspath(paths[0]))) != "Delta":
            table.files, table.urls = _files(paths, what, events)
            table.schema = _files_schema(table)
            return table
        table.form = _DeltaFolder(folder, what)
    reader = _open_stream(table)
    table.schema = _schema(reader.schema)
    if type(table.form).__module__.partition(".")[0] in _KEPT_OPEN:
        table._opened = reader
    else:
        reader.close()
    return table


def _open_stream(table: SourceTable) -> pa.RecordBatchReader:
    form = _as_stream(table)
    try:
        return pa.RecordBatchReader.from_stream(form)
    except PlanError:
        raise
    except Exception as error:  # whatever the library that the object is of raises
        raise DatasetError(f"{table.what} could not be read: {_line(error)}") from error


def _as_stream(table: SourceTable) -> Any:
    """An object with ``__arrow_c_stream__`` of the same rows."""
    form, what = table.form, table.what
    try:
        if type(form).__module__.partition(".")[0] == "pandas" and hasattr(form, "columns"):
            try:
                return pa.Table.from_pandas(form)
            except (pa.ArrowException, ValueError, TypeError):  # of a column, or two have one name
                return pa.Table.from_pandas(_readable(form, table.unreadable))
        if hasattr(form, "__arrow_c_stream__"):
            is_polars = type(form).__module__.partition(".")[0] == "polars" and hasattr(form, "schema")
            # A stream of Polars with objects of Python ends the process.
            objects = {name: f"it is {kind}" for name, kind in form.schema.items() if "Object" in str(kind)} if is_polars else {}
            table.unreadable.update(objects)
            return form.with_columns(**dict.fromkeys(objects)) if objects else form
        if isinstance(form, Mapping):
            return pa.table({str(name): _column_or_none(str(name), values, table.unreadable) for name, values in form.items()})
        if (isinstance(form, (tuple, list)) or hasattr(form, "shape")) and len(form) == 2:
            ends = [np.asanyarray(end) for end in form]
            if all(end.ndim == 1 for end in ends) and len(ends[0]) == len(ends[1]):
                return pa.table({"src": pa.array(ends[0]), "dst": pa.array(ends[1])})
            raise PlanError(f"{what} are arrays of the shapes {[end.shape for end in ends]}", "give (src, dst), two arrays of one length")
    except (pa.ArrowException, ValueError, TypeError) as error:
        if isinstance(error, PlanError):
            raise
        raise DatasetError(f"{what} could not be read: {_line(error)}") from error
    raise PlanError(
        f"{what} is no table: {type(form).__name__}",
        "give a path or a glob, a data frame, anything with __arrow_c_stream__, {column: array}, or (src, dst)",
    )


def _readable(frame: Any, unreadable: dict[str, str]) -> Any:
    """A pandas data frame with nulls in place of columns that Arrow cannot hold, and with different names."""
    made = frame.copy(deep=False)
    made.columns = unlike([*map(str, frame.columns)])
    for k, name in enumerate(made.columns):
        values = made.iloc[:, k]
        if hasattr(values.dtype, "fill_value"):  # sparse
            made.isetitem(k, values := values.sparse.to_dense())
        elif values.dtype == object and all(hasattr(value, "numpy") for value in values):  # tensors
            made.isetitem(k, values := values.map(np.asarray))
        if pa.types.is_null(_column_or_none(name, values, unreadable).type):
            made.isetitem(k, None)
    return made


def _column_or_none(name: str, values: Any, unreadable: dict[str, str]) -> Any:
    """An Arrow array, as ``_column`` makes it; nulls where Arrow cannot hold the values."""
    if hasattr(values, "tocsr"):
        unreadable[name] = "a sparse matrix of SciPy, of which toarray() makes rows"
        return pa.nulls(values.shape[0])
    try:
        return _column(values)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        is_complex = getattr(getattr(values, "dtype", None), "kind", "") == "c"
        unreadable[name] = "complex numbers, of which numpy.real and numpy.imag make columns" if is_complex else _line(error)
        return pa.nulls(len(values))


def _distinct(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows under different names, see ``unlike``."""
    names = batch.schema.names
    return batch if len({*names}) == len(names) else pa.RecordBatch.from_arrays(batch.columns, names=unlike(names))


def _schema(own: pa.Schema) -> pa.Schema:
    return pa.schema([found.with_name(name) for found, name in zip(own, unlike(own.names), strict=True)])


def _column(values: Any) -> Any:
    """An Arrow array of a NumPy array or tensor; rows of two dimensions become lists of fixed size."""
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values
    if hasattr(values, "columns"):
        raise DatasetError(
            "a mapping of names to tables is given where a table is read: {column: array}",
            "node types go with edge types: from_tables({('user', 'buys', 'item'): edges}, {'user': users, 'item': items})",
        )
    if type(values).__module__.partition(".")[0] == "pandas":
        return pa.array(values, from_pandas=True)
    if isinstance(values, list) and not (values and hasattr(values[0], "shape")):
        return pa.array(values) if values else pa.array([], pa.int64())
    rows = np.asanyarray(values)
    if rows.ndim == 2:
        if np.ma.is_masked(rows):
            raise ValueError("it is a masked array of two dimensions: filled(...) gives it all values")
        return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rows).reshape(-1)), rows.shape[1])
    return pa.array(rows if rows.dtype != object else list(rows))


def _width(kind: pa.DataType) -> int:
    """Bytes of a value, roughly."""
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * _width(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return 4096  # its length is not known yet
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return 16


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


# Files ---------------------------------------------------------------------------------------------------------------------


def is_table_file(source: str | Path) -> bool:
    """Whether a text is a file's path, or the path or URL of one, there or not, whose suffix is that of a table."""
    if _format(str(source)) is not None:
        return is_url(source) or not Path(source).is_dir()
    return not is_url(source) and Path(source).is_file()


def _expanded(path: str) -> str:
    """Returns a path with ``~`` expanded, and otherwise as the user writes it, which errors show."""
    return str(user_path(path)) if path.startswith("~") else path


def _files(paths: Sequence[str | Path], what: str, events: EventSink) -> tuple[list[str], dict[str, str]]:
    """The files that paths, URLs and globs stand for; those of a glob or folder by name. And the URLs that they were fetched from."""
    found: list[str] = []
    urls: dict[str, str] = {}
    for path in [os.fspath(given) for given in paths]:
        if is_url(path):
            fetched = renderer("fetch_tables")(path, what, partial(_is_fetched, path, what), events)
            urls |= dict(fetched)
            found += [place for place, _ in fetched]
            continue
        path = _expanded(path)
        inside = [path]
        if os.path.isdir(path) or not os.path.exists(path):
            entries = {below for entry in ([path] if os.path.isdir(path) else glob.glob(path, recursive=True)) for below in _below(entry)}
            inside = sorted(entry for entry in entries if not _is_hidden(entry, path))
            for folder in sorted({str(folder) for entry in inside for folder in PurePath(os.path.abspath(entry)).parents}):
                if (engine := _engine_at(folder)) is not None:
                    raise _log_decides(engine, folder, what)
        if not inside:
            raise DatasetError(f"{what}: there is no file {path!r}", "paths are relative to the working directory; a glob has * in it")
        found += inside
    for path in found:
        if _format(path) is None:
            known = " ".join(suffix for each in FORMATS.values() for suffix in each.suffixes if not suffix.endswith(tuple(PACKED)))
            others = _READERS.get(PurePath(path).suffix.lower(), f"known suffixes: {known}; text also with {' '.join(PACKED)}")
            raise PlanError(f"{what}: {path!r} is of no known format", others)
    return found, urls


def _below(entry: str) -> list[str]:
    """All files of tables below a folder; a file itself."""
    if not os.path.isdir(entry):
        return [entry]
    below = glob.glob(f"{glob.escape(entry.rstrip('/'))}/**/*", recursive=True)
    return [path for path in below if _format(path) is not None and not os.path.isdir(path)]


def _is_hidden(path: str, given: str) -> bool:
    """Whether a file that a folder or glob leads to has a name, or lies below one, with _ or . first, such as Spark's _temporary.

    The folders that are named before a glob may have such names, and so may files where the glob has one.
    """
    literal = re.split(r"[*?\[]", given)[0]
    depth = given.rstrip("/").count("/") + 1 if literal == given else literal.count("/")
    marked = [any(part.startswith(("_", ".")) for part in each.split("/")[depth:]) for each in (path, given)]
    return marked == [True, False]


def _is_fetched(given: str, what: str, url: str) -> bool:
    """Whether the file at a URL that is listed below the given one is one of the table."""
    root, sign, _ = url.partition("/_delta_log/")
    if sign:
        raise _log_decides("Delta", root, what)
    return _format(url) is not None and not _is_hidden(url, given)


# Of engines whose folders hold files that are no part of the table, what says which are: a pattern, and what reads the table.
_LOGS = {
    "Delta": ("_delta_log", "deltalake.DeltaTable({root!r}).to_pyarrow_table()"),
    "Hudi": (".hoodie", "what Spark makes of it"),
    "Iceberg": ("metadata/*.metadata.json", "pyiceberg.table.StaticTable.from_metadata(...).scan().to_arrow()"),
}


def _engine_at(folder: str) -> str | None:
    """The engine whose table lies in a folder, if one has left a log there."""
    return next((engine for engine, (log, _) in _LOGS.items() if glob.glob(f"{glob.escape(folder)}/{log}")), None)


def _log_decides(engine: str, root: str, what: str) -> PlanError:
    takes = _LOGS[engine][1].format(root=root)
    return PlanError(f"{what}: {root} is a table of {engine}, whose log says which of its files count", f"gnnkit.tables takes {takes}")


class _DeltaFolder:
    """The rows of a Delta table as its log has them.

    Args:
        folder: Its folder.
        what: Whose table it is, for errors.
    """

    def __init__(self, folder: str, what: str) -> None:
        self._folder, self._what = folder, what

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        try:
            import deltalake  # optional
        except ImportError as error:
            raise PlanError(
                f"{self._what}: {self._folder} is a Delta table, and there is no deltalake to read its log", "pip install deltalake"
            ) from error
        rows = deltalake.DeltaTable(self._folder).to_pyarrow_dataset().scanner(batch_size=_BATCH_ROWS)
        return rows.to_reader().__arrow_c_stream__(requested_schema)


def _in_folders(path: str) -> dict[str, str | None]:
    """The values that the names of a file's folders hold: ``{"year": "2020"}`` of "year=2020/part-0.parquet"."""
    pairs = [part.partition("=") for part in path.split("/")[:-1]]
    return {unquote(name): None if value == _HIVE_NULL else unquote(value) for name, sign, value in pairs if name and sign}


class _Parquet(TableFormat):
    suffixes = (".parquet", ".pq")

    @override
    def schema(self, path: str, table: SourceTable) -> pa.Schema:
        with parquet.ParquetFile(path) as file:
            return file.schema_arrow

    @override
    def batches(self, read: FileRead, table: SourceTable) -> Iterator[pa.RecordBatch]:
        with parquet.ParquetFile(read.path, pre_buffer=False) as file:
            columns = read.columns if len({*file.schema_arrow.names}) == len(file.schema_arrow.names) else None
            for group in range(file.num_row_groups) if read.groups is None else read.groups:
                read.where = f", row group {group}"
                try:
                    yield from file.iter_batches(read.size, row_groups=[group], columns=columns)
                except (pa.ArrowException, OSError):
                    read.where += _damaged_column(file, group, read.size, read.columns)
                    raise


class _Arrow(TableFormat):
    suffixes = (".arrow", ".feather", ".ipc", ".arrows")

    @override
    def schema(self, path: str, table: SourceTable) -> pa.Schema:
        with _open_arrow(path) as reader:
            return reader.schema

    @override
    def batches(self, read: FileRead, table: SourceTable) -> Iterator[pa.RecordBatch]:
        with _open_arrow(read.path) as reader:
            count, read.where = getattr(reader, "num_record_batches", None), ", record batch 0"
            for number, batch in enumerate(reader if count is None else map(reader.get_batch, range(count))):
                yield batch
                read.where = f", record batch {number + 1}"


class _Text(TableFormat):
    suffixes = TEXT

    @override
    def is_of(self, name: str) -> bool:
        for packed in PACKED:
            name = name.removesuffix(packed)
        return super().is_of(name) or _BARE_TEXT.fullmatch(PurePath(name).name) is not None

    @override
    def schema(self, path: str, table: SourceTable) -> pa.Schema:
        with open_text(path, table.dialect(path), None, table.types) as reader:
            return reader.schema

    @override
    def batches(self, read: FileRead, table: SourceTable) -> Iterator[pa.RecordBatch]:
        dialect = table.dialect(read.path)
        padded = PaddedNumbers(dialect.delimiter) if table.numbered_names else None
        with open_text(read.path, dialect, read.columns, table.types, padded) as reader:
            read.where, is_checked = f", block 0 of {BLOCK_BYTES >> 20} MB", False
            for number, batch in enumerate(reader):
                if padded is not None and padded.were_seen and not is_checked:
                    table.refuse_padded(read.path)
                    is_checked = True
                yield batch
                read.where = f", block {number + 1} of {BLOCK_BYTES >> 20} MB"


# Every format of files, by a name of its own.
FORMATS: dict[str, TableFormat] = {"parquet": _Parquet(), "arrow": _Arrow(), "matrix": MatrixMarket(), "csv": _Text()}


def _format(path: str) -> str | None:
    return next((name for name, each in FORMATS.items() if each.is_of(path.lower())), None)


def _file_schema(path: str, table: SourceTable) -> pa.Schema:
    try:
        own = FORMATS[_format(path) or ""].schema(path, table)
    except _DAMAGE as error:
        raise _unreadable(table, path, error) from error
    schema = _schema(own)
    for name, kind in table.folders.items():
        schema = schema if name in schema.names else schema.append(pa.field(name, kind, metadata=_IN_FOLDERS))
    return schema


def _files_schema(table: SourceTable) -> pa.Schema:
    """The columns of the first file; the type of one that is empty there is that of the first file where it is not."""
    schema = _file_schema(table.files[0], table)
    for path in table.files[1:]:
        empty = [number for number, found in enumerate(schema) if pa.types.is_null(found.type)]
        if not empty:
            break
        other = _file_schema(path, table)
        for number in empty:
            name = schema.field(number).name
            schema = schema.set(number, other.field(name)) if name in other.names else schema
    return schema


def _unreadable(table: SourceTable, path: str, error: BaseException, where: str = "") -> DatasetError:
    hint = "the file is damaged, cut short, or not what its name says"
    if path in table._dialects:
        hint = f"it is damaged, or not written as it seems ({table.dialect(path)}): sep, header, comment, null, encoding, types say how"
    return DatasetError(f"{table.shown(path)}{where} cannot be read: {_line(error)}", hint)


def _file_batches(
    path: str, columns: list[str], size: int, table: SourceTable, groups: Sequence[int] | None
) -> Iterator[tuple[pa.RecordBatch, str]]:
    """Yields the rows of a file, or of some row groups of it, and where they lie in it."""
    shown = table.shown(path)
    schema = table.schema if path == table.files[0] else _file_schema(path, table)
    if missing := [name for name in columns if name not in schema.names]:
        raise DatasetError(
            f"{shown} has no column {missing[0]!r}, which {table.shown(table.files[0])} has", f"every file of {table.what} needs it"
        )
    in_folders = {name for name in columns if schema.field(name).metadata == _IN_FOLDERS}
    own, values = [name for name in columns if name not in in_folders] or schema.names[:1], _in_folders(shown)
    read = FileRead(path, own, size, groups)
    try:
        for batch in map(_distinct, FORMATS[_format(path) or ""].batches(read, table)):
            for name in in_folders:
                value = pa.repeat(pa.scalar(values[name], pa.string()), batch.num_rows).cast(table.folders[name])
                batch = pa.RecordBatch.from_arrays([*batch.columns, value], names=[*batch.schema.names, name])
            found = zip(columns, batch.select(columns).columns, strict=True)
            # A column that is empty here is of no type, and of one in other files.
            kept = [pa.nulls(len(own), table.schema.field(name).type) if pa.types.is_null(own.type) else own for name, own in found]
            yield pa.RecordBatch.from_arrays(kept, names=columns) if columns else batch.select(columns), shown + read.where
    except _DAMAGE as error:
        raise _unreadable(table, path, error, read.where) from error


def _damaged_column(file: Any, group: int, size: int, columns: Sequence[str]) -> str:
    """The first column of a row group that cannot be read, as the end of a sentence; Arrow's errors do not name it."""
    for column in columns:
        try:
            for _ in file.iter_batches(size, row_groups=[group], columns=[column]):
                pass
        except (pa.ArrowException, OSError):
            return f", column {column!r},"
    return ""


def _open_arrow(path: str) -> Any:
    source = pa.memory_map(path)
    return pa.ipc.open_file(source) if source.read(6) == b"ARROW1" and not source.seek(0) else pa.ipc.open_stream(pa.memory_map(path))

"""Tables in any form, read front to back in record batches: files, Arrow streams, data frames, dictionaries, pairs of arrays."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gnnkit.errors import DatasetError, PlanError, near_matches
from gnnkit.events import EventSink, ignore_events
from gnnkit.rendering import renderer
from gnnkit.urls import is_url

# Rows and bytes of a batch at most; wide rows come in smaller batches.
_BATCH_ROWS, _BATCH_BYTES = 1 << 18, 16 << 20
_CSV_BLOCK = 8 << 20
# Streams of these are opened once: pandas converts all of its columns for each, and a reader of pyarrow has only one. Of others, such as
# DuckDB, a stream that is open may be the only one that a connection gives.
_KEPT_OPEN = ("pandas", "pyarrow")
_PARQUET, _ARROW = (".parquet", ".pq"), (".arrow", ".feather", ".ipc", ".arrows")
_TEXT, _PACKED = (".csv", ".tsv", ".txt"), (".gz", ".zst", ".bz2")


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
        footer_nbytes: Bytes of the file's footer, which whoever opens the file reads, too.
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
        schema: Its columns and their types.
        reads: How often it has been read; a stream that is spent can be read once.
    """

    what: str
    form: Any
    types: Mapping[str, pa.DataType]
    files: list[str] = field(default_factory=list)
    urls: dict[str, str] = field(default_factory=dict)
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    reads: int = 0
    _opened: Any = None

    def need(self, column: str, option: str) -> pa.DataType:
        """The type of a column.

        Args:
            column: Its name.
            option: The option that names it, for the error.

        Raises:
            PlanError: There is none of that name.
        """
        if not isinstance(column, str) or column not in self.schema.names:
            known = self.schema.names
            source = f" ({self.shown(self.files[0])})" if self.files else ""
            raise PlanError(
                f"{option}={column!r} names no column of {self.what}{source}{near_matches(str(column), known)}",
                f"columns: {known}",
            )
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
        self.reads += 1
        size = self._batch_rows(columns)
        for batch, where, file in self._batches(list(columns), size, groups):
            for start in range(0, batch.num_rows, size):
                piece = batch.slice(start, size)
                yield Piece(piece, first, where, file)
                first += piece.num_rows

    def shown(self, path: str) -> str:
        """A file as the user knows it, for errors: where it was fetched from, else its path."""
        return self.urls.get(path, path)

    @property
    def is_csv(self) -> bool:
        """Whether its files say nothing of the types of columns."""
        return any(_format(path) == "csv" for path in self.files)

    @property
    def can_be_cut(self) -> bool:
        """Whether it is Parquet files at their own places, whose row groups can be read by themselves."""
        return bool(self.files) and not self.urls and all(_format(path) == "parquet" for path in self.files)

    def row_groups(self, columns: Sequence[str]) -> list[RowGroup]:
        """Lists the row groups of a table that ``can_be_cut``, for some columns.

        Raises:
            DatasetError: A file cannot be read.
        """
        import pyarrow.parquet as parquet

        wanted, found, first = set(columns), list[RowGroup](), 0
        for number, path in enumerate(self.files):
            try:
                facts = parquet.read_metadata(path)
            except (pa.ArrowException, OSError) as error:
                raise _unreadable(path, error) from error
            for group in range(facts.num_row_groups):
                rows = facts.row_group(group)
                own = (rows.column(k) for k in range(rows.num_columns))
                nbytes = sum(c.total_compressed_size for c in own if c.path_in_schema.partition(".")[0] in wanted)
                found.append(RowGroup(number, group, first, rows.num_rows, nbytes, facts.serialized_size))
                first += rows.num_rows
        return found

    def of_hosts(self) -> SourceTable:
        """The same table for other hosts, with absolute paths."""
        return SourceTable(self.what, None, dict(self.types), [os.path.abspath(path) for path in self.files], schema=self.schema)

    @property
    def can_be_read_again(self) -> bool:
        """Whether another pass gives the rows once more."""
        return not isinstance(self.form, pa.RecordBatchReader)

    def _batch_rows(self, columns: Sequence[str]) -> int:
        width = sum(_width(self.schema.field(name).type) for name in columns)
        return max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, width)))

    def _batches(self, columns: list[str], size: int, groups: Sequence[RowGroup] | None) -> Iterator[tuple[pa.RecordBatch, str, int]]:
        numbers = None if groups is None else {file: [g.number for g in groups if g.file == file] for file in {g.file for g in groups}}
        for number, path in enumerate(self.files):
            if numbers is not None and number not in numbers:
                continue
            for batch, where in _file_batches(path, columns, size, self, None if numbers is None else numbers[number]):
                yield batch, where, number
        if self.files:
            return
        reader, self._opened = self._opened or _open_stream(self), None
        try:
            for batch in reader:
                yield batch.select(columns), self.what, 0
        except (pa.ArrowException, OSError, ValueError, TypeError) as error:
            raise DatasetError(f"{self.what} could not be read: {_line(error)}") from error
        finally:
            reader.close()


def open_table(form: Any, what: str, types: Mapping[str, pa.DataType], events: EventSink = ignore_events) -> SourceTable:
    """Opens a table, and reads what its columns are.

    Args:
        form: A path, a URL, a glob, a folder or a list of them; an object with ``__arrow_c_stream__``; a pandas data frame;
            ``{column: array}``; or two arrays ``(src, dst)`` or one ``[2, n]``.
        what: Whose it is, for errors.
        types: Types that columns are to have, by name.
        events: Receives the stage "download" where there is a URL.

    Raises:
        PlanError: It is no table.
        DatasetError: A file is missing or cannot be read, or what is at a URL cannot be fetched.
    """
    table = SourceTable(what, form, types)
    if isinstance(form, (str, Path)) or (isinstance(form, (list, tuple)) and form and all(isinstance(p, (str, Path)) for p in form)):
        table.files, table.urls = _files(form, what, events)
        table.schema = _file_schema(table.files[0], table)
        return table
    table.form = _as_stream(form, what)
    reader = _open_stream(table)
    table.schema = reader.schema
    if type(table.form).__module__.partition(".")[0] in _KEPT_OPEN:
        table._opened = reader
    else:
        reader.close()
    if doubles := sorted({name for name in table.schema.names if table.schema.names.count(name) > 1}):
        raise PlanError(f"{what} have several columns called {doubles[0]!r}", "rename them")
    return table


def _open_stream(table: SourceTable) -> pa.RecordBatchReader:
    try:
        return pa.RecordBatchReader.from_stream(table.form)
    except Exception as error:  # whatever the library that the object is of raises
        raise DatasetError(f"{table.what} could not be read: {_line(error)}") from error


def _as_stream(form: Any, what: str) -> Any:
    """An object with ``__arrow_c_stream__`` of the same rows."""
    if hasattr(form, "__arrow_c_stream__"):
        return form
    try:
        if type(form).__module__.partition(".")[0] == "pandas":
            return pa.Table.from_pandas(form, preserve_index=False)
        if isinstance(form, Mapping):
            return pa.table({str(name): _column(values) for name, values in form.items()})
        if (isinstance(form, (tuple, list)) or hasattr(form, "shape")) and len(form) == 2:
            ends = [np.asarray(end) for end in form]
            if all(end.ndim == 1 for end in ends) and len(ends[0]) == len(ends[1]):
                return pa.table({"src": ends[0], "dst": ends[1]})
            raise PlanError(f"{what} are arrays of the shapes {[end.shape for end in ends]}", "give (src, dst), two arrays of one length")
    except (pa.ArrowException, ValueError, TypeError) as error:
        if isinstance(error, PlanError):
            raise
        raise DatasetError(f"{what} could not be read: {_line(error)}") from error
    raise PlanError(
        f"{what} is no table: {type(form).__name__}",
        "give a path or a glob, a data frame, anything with __arrow_c_stream__, {column: array}, or (src, dst)",
    )


def _column(values: Any) -> Any:
    """An Arrow array of a NumPy array or tensor; rows of two dimensions become lists of fixed size."""
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values
    rows = np.asarray(values)
    if rows.ndim == 2:
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


def _files(form: Any, what: str, events: EventSink) -> tuple[list[str], dict[str, str]]:
    """The files that paths, URLs and globs stand for; those of a glob or folder by name. And the URLs that they were fetched from."""
    found: list[str] = []
    urls: dict[str, str] = {}
    for name in [form] if isinstance(form, (str, Path)) else form:
        path = os.fspath(name)
        if is_url(path):
            fetched = renderer("fetch_tables")(path, what, lambda url: _format(url) is not None, events)
            urls |= dict(fetched)
            found += [place for place, _ in fetched]
            continue
        path = os.path.expanduser(path)
        if os.path.isdir(path):
            inside = sorted(entry for entry in glob.glob(f"{glob.escape(path)}/**/*", recursive=True) if _format(entry) is not None)
        else:
            inside = [path] if os.path.exists(path) else sorted(glob.glob(path, recursive=True))
        if not inside:
            raise DatasetError(f"{what}: there is no file {path!r}", "paths are relative to the working directory; a glob has * in it")
        found += inside
    for path in found:
        if _format(path) is None:
            known = " ".join((*_PARQUET, *_TEXT, *_ARROW))
            raise PlanError(f"{what}: {path!r} is of no known format", f"known suffixes: {known}; text also with {' '.join(_PACKED)}")
    return found, urls


def _format(path: str) -> str | None:
    name = path.lower()
    if name.endswith(_PARQUET):
        return "parquet"
    if name.endswith(_ARROW):
        return "arrow"
    for packed in _PACKED:
        name = name.removesuffix(packed)
    return "csv" if name.endswith(_TEXT) else None


def _file_schema(path: str, table: SourceTable) -> pa.Schema:
    import pyarrow.parquet as parquet

    try:
        if _format(path) == "parquet":
            with parquet.ParquetFile(path) as file:
                return file.schema_arrow
        if _format(path) == "arrow":
            with _open_arrow(path) as reader:
                return reader.schema
        with _open_csv(path, None, table.types) as reader:
            return reader.schema
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _unreadable(table.shown(path), error) from error


def _unreadable(where: str, error: BaseException) -> DatasetError:
    return DatasetError(f"{where} cannot be read: {_line(error)}", "the file is damaged, cut short, or not what its name says")


def _file_batches(
    path: str, columns: list[str], size: int, table: SourceTable, groups: Sequence[int] | None
) -> Iterator[tuple[pa.RecordBatch, str]]:
    """Yields the rows of a file, or of some row groups of it, and where they lie in it."""
    where = shown = table.shown(path)
    try:
        missing = [name for name in columns if name not in (table.schema if path == table.files[0] else _file_schema(path, table)).names]
        if missing:
            raise DatasetError(
                f"{shown} has no column {missing[0]!r}, which {table.shown(table.files[0])} has", f"every file of {table.what} needs it"
            )
        if _format(path) == "parquet":
            import pyarrow.parquet as parquet

            with parquet.ParquetFile(path, pre_buffer=False) as file:
                for group in range(file.num_row_groups) if groups is None else groups:
                    where = f"{shown}, row group {group}"
                    try:
                        for batch in file.iter_batches(size, row_groups=[group], columns=columns):
                            yield batch.select(columns), where
                    except (pa.ArrowException, OSError) as error:
                        raise _unreadable(f"{where}{_damaged_column(file, group, size, columns)}", error) from error
        elif _format(path) == "arrow":
            with _open_arrow(path) as reader:
                count, where = getattr(reader, "num_record_batches", None), f"{shown}, record batch 0"
                for number, batch in enumerate(reader if count is None else map(reader.get_batch, range(count))):
                    yield batch.select(columns), where
                    where = f"{shown}, record batch {number + 1}"
        else:
            with _open_csv(path, columns, table.types) as reader:
                where = f"{shown}, block 0 of {_CSV_BLOCK >> 20} MB"
                for number, batch in enumerate(reader):
                    yield batch.select(columns), where
                    where = f"{shown}, block {number + 1} of {_CSV_BLOCK >> 20} MB"
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        raise _unreadable(where, error) from error


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
    import pyarrow.ipc as ipc

    source = pa.memory_map(path)
    return ipc.open_file(source) if source.read(6) == b"ARROW1" and not source.seek(0) else ipc.open_stream(pa.memory_map(path))


def _open_csv(path: str, columns: list[str] | None, types: Mapping[str, pa.DataType]) -> Any:
    """A reader of text: an empty field is a null and nothing else is; a first line of numbers alone is no header."""
    import pyarrow.csv as csv

    skipped, delimiter, has_header = _look(path)
    read = csv.ReadOptions(block_size=_CSV_BLOCK, skip_rows=skipped, autogenerate_column_names=not has_header)
    # Times may be written as numbers: those are read as such, and converted afterwards.
    known = {name: kind for name, kind in types.items() if not pa.types.is_temporal(kind)}
    convert = csv.ConvertOptions(
        column_types=known, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False, include_columns=columns
    )
    source = pa.input_stream(path, compression="detect")
    return csv.open_csv(source, read, csv.ParseOptions(delimiter=delimiter, newlines_in_values=False), convert)


def _look(path: str) -> tuple[int, str, bool]:
    """Lines of comments (#) at the beginning of a text, its delimiter, and whether the next line names columns."""
    with pa.input_stream(path, compression="detect") as file:
        lines = file.read(1 << 16).decode("utf-8", "replace").splitlines()
    skipped = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    line = lines[skipped] if skipped < len(lines) else ""
    delimiter = "\t" if "\t" in line and "," not in line else ","
    return skipped, delimiter, not all(_is_number(value) for value in line.split(delimiter))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

"""Tables of OGB's datasets: digits parsed from compressed text, with their place in an error."""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from isal import igzip
from isal.igzip_lib import IsalError
from numba import float32, float64, int64, uint64
from numpy.typing import NDArray

from gnnkit.datasets.streaming import overlap
from gnnkit.errors import DatasetError
from gnnkit.files import open_regular
from gnnkit.kernels.jit import helper, lazy_kernel

_MINUS, _PLUS, _POINT, _ZERO, _COMMA, _LINE, _E = (np.uint8(ord(char)) for char in "-+.0,\ne")
_LOWER_CASE = np.uint8(32)
_NINE = np.uint8(9)
_MAX_EXPONENT_DIGITS = 4
_NO_EXPONENT = 1 << 30
# 10 ** 18 < 2 ** 63: so many digits never overflow.
_MAX_DIGITS = 18
# Up to here a whole number, and below that power of ten, is exact in double precision, so that one multiplication or division
# rounds correctly (W. D. Clinger, How to read floating point numbers accurately, 1990).
_EXACT = np.uint64(1 << 53)
_POWERS = np.array([float(f"1e{power}") for power in range(23)], np.float64)
_MAX_POWER = len(_POWERS) - 1
# A double halfway between two singles: rounding once more could go the wrong way.
_BELOW_SINGLE, _HALFWAY = (1 << 29) - 1, 1 << 28


@helper
def _digits(text: NDArray[np.uint8], at: int, number: np.uint64) -> tuple[int, np.uint64]:
    """Appends the digits at ``at`` to a number: where they end, and the number (wrong if there were too many)."""
    while at < len(text):
        digit = text[at] - _ZERO
        if digit > _NINE:
            break
        number = uint64(number) * uint64(10) + uint64(digit)
        at += 1
    return at, number


@helper
def _exponent(text: NDArray[np.uint8], at: int) -> tuple[int, int]:
    """The exponent after an "e": where it ends, and what it is; a huge number if it is none."""
    down = at < len(text) and text[at] == _MINUS
    if at < len(text) and (text[at] == _MINUS or text[at] == _PLUS):
        at += 1
    end, number = _digits(text, at, uint64(0))
    if end == at or end - at > _MAX_EXPONENT_DIGITS:
        return end, _NO_EXPONENT
    return end, -int64(number) if down else int64(number)


@helper
def _is_certain(value: float) -> bool:
    """Whether rounding a correctly rounded double to single precision gives the correctly rounded single."""
    return bool(np.float64(value).view(np.int64) & _BELOW_SINGLE != _HALFWAY)


@helper
def _is_followed(text: NDArray[np.uint8], at: int, ends_row: bool, ends_table: bool) -> bool:
    """Whether what stands after a number is what must stand there."""
    if at == len(text):
        return ends_table
    return bool(text[at] == (_LINE if ends_row else _COMMA))


@lazy_kernel
def parse_floats(text: NDArray[np.uint8], out: NDArray[np.float32]) -> bool:
    """Parses a table of decimal numbers, each correctly rounded to single precision.

    Args:
        text: uint8 ``[k]``, rows of numbers, the last row's line feed optional.
        out: float32 ``[num_rows, num_columns]``, filled; undefined where the result is False.

    Returns:
        Whether the text is such a table of exactly that shape, and every number's rounding is certain.
    """
    num_rows, num_columns = out.shape
    at = 0
    for row in range(num_rows):
        for column in range(num_columns):
            negative = at < len(text) and text[at] == _MINUS
            start = at + negative
            at, number = _digits(text, start, uint64(0))
            num_digits, power = at - start, 0
            if at < len(text) and text[at] == _POINT:
                start = at + 1
                at, number = _digits(text, start, number)
                num_digits += at - start
                power = start - at
            if num_digits == 0 or num_digits > _MAX_DIGITS or number > _EXACT:
                return False
            if at < len(text) and (text[at] | _LOWER_CASE) == _E:
                at, exponent = _exponent(text, at + 1)
                power += exponent
            if power < -_MAX_POWER or power > _MAX_POWER:
                return False
            value = float64(number) / _POWERS[-power] if power < 0 else float64(number) * _POWERS[power]
            ends_row = column == num_columns - 1
            if not _is_certain(value) or not _is_followed(text, at, ends_row, ends_row and row == num_rows - 1):
                return False
            out[row, column] = float32(-value if negative else value)
            at += 1
    return at >= len(text)


@lazy_kernel
def parse_whole(text: NDArray[np.uint8], out: NDArray[np.int64]) -> bool:
    """Parses a table of whole numbers, column by column in the output.

    Args:
        text: As for ``parse_floats``.
        out: int64 ``[num_columns, num_rows]``, filled; undefined where the result is False.

    Returns:
        Whether the text is such a table of exactly that shape.
    """
    num_columns, num_rows = out.shape
    at = 0
    for row in range(num_rows):
        for column in range(num_columns):
            negative = at < len(text) and text[at] == _MINUS
            start = at + negative
            at, number = _digits(text, start, uint64(0))
            ends_row = column == num_columns - 1
            if at == start or at - start > _MAX_DIGITS or not _is_followed(text, at, ends_row, ends_row and row == num_rows - 1):
                return False
            out[column, row] = -int64(number) if negative else int64(number)
            at += 1
    return at >= len(text)


def parse_plain(block: bytes, out: NDArray[Any], *, transposed: bool) -> bool:
    """Fills ``out`` from a block of text, if there is a kernel for its type and the text is plain.

    Args:
        block: Rows of text.
        out: ``[num_columns, num_rows]`` if ``transposed``, else ``[num_rows, num_columns]``.
        transposed: See ``out``.
    """
    text = np.frombuffer(block, np.uint8)
    if out.dtype == np.float32 and not transposed:
        return bool(parse_floats(text, out))
    if out.dtype == np.int64 and transposed:
        return bool(parse_whole(text, out))
    return False


def check_ids(ids: NDArray[Any], bound: int, path: Path, *, what: str, first_row: int = 0, rows: NDArray[np.int64] | None = None) -> None:
    """Refuses ids outside ``[0, bound)``.

    Args:
        ids: ``[k]`` integers.
        bound: Number of nodes.
        path: The file they come from.
        what: What they are ("source").
        first_row: Rows of the file before ``ids[0]``.
        rows: ``[k]``, the number of each id's row, where they do not follow each other.

    Raises:
        DatasetError: Names the first such id, its file and its row, counted from 1.
    """
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= bound):
        place = int(np.flatnonzero((ids < 0) | (ids >= bound))[0])
        row = first_row + place if rows is None else int(rows[place])
        raise DatasetError(f"{path}: row {row + 1}: {what} {int(ids[place])} is outside [0, {bound})", RESTORE_HINT)


def class_ids(values: NDArray[Any], num_classes: int, path: Path, *, first_row: int) -> NDArray[np.int64]:
    """Labels as OGB's files have them, as int64.

    A node without a label is NaN in the files. Where nodes have one label it becomes -1, as PyG's examples expect of
    nodes to leave out; no dataset has several labels of which some are missing, so there it is an error.

    Args:
        values: ``[k, num_tasks]``, integers or floating-point.
        num_classes: Classes per task.
        path: The file they come from.
        first_row: Rows of the file before ``values[0]``.

    Returns:
        ``[k]`` for one task, else ``[k, num_tasks]``.

    Raises:
        DatasetError: A label is no class, or is missing where that is not allowed.
    """
    if values.shape[1] == 1:
        values = values[:, 0]
        missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), np.bool_)
        numbers = np.where(missing, -1, values)
    else:
        missing = np.zeros(values.shape, np.bool_)
        numbers = values
    # NaN fails both comparisons, so it is wrong wherever it was not declared missing.
    right = missing | ((numbers >= 0) & (numbers < num_classes) & (np.trunc(numbers) == numbers))
    if not right.all():
        at = tuple(int(i) for i in np.argwhere(~right)[0])
        message = f"{path}: row {first_row + at[0] + 1}: label {numbers[at]} is not one of the classes 0 to {num_classes - 1}"
        raise DatasetError(message, RESTORE_HINT)
    return numbers.astype(np.int64, copy=False)


def with_inverses(source: NDArray[Any], target: NDArray[Any]) -> NDArray[np.int64]:
    """Each edge followed by its inverse, as ``ogb.io.read_graph_raw`` orders them.

    Args:
        source: ``[k]`` ids.
        target: ``[k]`` ids.

    Returns:
        ``[2, 2 k]``: edge ``2 i`` is (source[i], target[i]), edge ``2 i + 1`` its inverse.
    """
    edges = np.empty((2, 2 * len(source)), np.int64)
    edges[0, 0::2] = edges[1, 1::2] = source
    edges[1, 0::2] = edges[0, 1::2] = target
    return edges


_GZIP_HEADER = b"\x1f\x8b"
# Text inflated at once. Larger blocks leave the caches, smaller ones pay for their calls.
_BLOCK_BYTES = 1 << 20
# A row of text longer than this is no row of numbers.
_MAX_ROW_BYTES = 64 << 20
_SAMPLE_BYTES = 256 << 10
# Tables of counts and type names are one line; anything larger is not what it claims to be.
_MAX_SMALL_BYTES = 4 << 20
RESTORE_HINT = "the file is damaged: restore it, or move the dataset's folder away and download again"
_ROW = re.compile(r"Row #(\d+): ?(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CsvTable:
    """A file of ``num_rows`` rows of ``num_columns`` numbers each.

    Attributes:
        path: The ``.csv.gz`` file.
        num_columns: Numbers in each row.
        dtype: What they are parsed to. Integers must be there; floating-point values that are empty or "nan" become NaN.
        num_rows: Rows that must be there.
        num_rows_from: Where that number comes from, for the error's text.
    """

    path: Path
    num_columns: int
    dtype: np.dtype[Any]
    num_rows: int | None = None
    num_rows_from: str = ""

    def rows(self, *, transposed: bool = False) -> Iterator[NDArray[Any]]:
        """Yields ``[k, num_columns]``, or ``[num_columns, k]`` if ``transposed``, C-contiguous.

        Raises:
            DatasetError: The file is missing, truncated or corrupt, holds something else than such numbers, or more or
                fewer rows than it should.
        """
        done = 0
        arrays = overlap(_inflate(self.path), partial(_parse, num_columns=self.num_columns, dtype=self.dtype, transposed=transposed))
        try:
            for array in arrays:
                done += array.shape[-1] if transposed else len(array)
                if self.num_rows is not None and done > self.num_rows:
                    break
                yield array
        except _BadRow as error:
            raise DatasetError(f"{self.path}: row {done + error.row}: {error.text}", RESTORE_HINT) from error.__cause__
        finally:
            arrays.close()
        if self.num_rows is not None and done != self.num_rows:
            many = "more rows" if done > self.num_rows else f"{done} rows"
            raise DatasetError(f"{self.path} has {many} where {self.num_rows_from or 'the dataset'} says {self.num_rows}", RESTORE_HINT)


class _BadRow(Exception):
    """Row ``row`` (from 1) of a block cannot be parsed."""

    def __init__(self, row: int, text: str) -> None:
        super().__init__(row, text)
        self.row, self.text = row, text


def _inflate(path: Path) -> Iterator[bytes]:
    """Yields the text in blocks that end with their last row's end."""
    rest = b""
    try:
        with open(open_regular(path), "rb") as file:
            if file.read(len(_GZIP_HEADER)) != _GZIP_HEADER:
                raise DatasetError(f"{path}: no gzip file: it begins with another header", RESTORE_HINT)
        with igzip.open(path, "rb") as stream:  # type: ignore[no-untyped-call]
            while block := stream.read(_BLOCK_BYTES):
                end = block.rfind(b"\n") + 1
                if end:
                    yield rest + block[:end]
                    rest = block[end:]
                else:
                    rest += block
                    if len(rest) > _MAX_ROW_BYTES:
                        raise DatasetError(f"{path}: a row of more than {_MAX_ROW_BYTES} bytes", RESTORE_HINT)
    except (OSError, EOFError, IsalError) as error:  # type: ignore[misc]
        raise unreadable(path, error) from error
    if rest:
        yield rest


def _parse(block: bytes, *, num_columns: int, dtype: np.dtype[Any], transposed: bool) -> NDArray[Any]:

    num_rows = block.count(b"\n") + (not block.endswith(b"\n"))
    out = np.empty((num_columns, num_rows) if transposed else (num_rows, num_columns), dtype)
    if parse_plain(block, out, transposed=transposed):
        return out
    return parse_any(block, num_columns=num_columns, dtype=dtype, transposed=transposed)


def parse_any(block: bytes, *, num_columns: int, dtype: np.dtype[Any], transposed: bool) -> NDArray[Any]:
    """Whatever pyarrow takes for a table of numbers."""
    import pyarrow as pa  # heavy
    from pyarrow import csv as pa_csv  # heavy

    names = [str(column) for column in range(num_columns)]
    arrow_type = pa.from_numpy_dtype(dtype)
    try:
        table = pa_csv.read_csv(
            pa.BufferReader(block),
            pa_csv.ReadOptions(column_names=names, use_threads=False, block_size=max(len(block), 1 << 16)),
            convert_options=pa_csv.ConvertOptions(column_types=dict.fromkeys(names, arrow_type)),
        )
    except pa.ArrowInvalid as error:
        if "Empty CSV" in str(error):
            return np.empty((num_columns, 0) if transposed else (0, num_columns), dtype)
        match = _ROW.search(str(error))
        row, text = (int(match[1]), match[2]) if match else (1, str(error))
        raise _BadRow(row, text) from error
    out = np.empty((num_columns, table.num_rows) if transposed else (table.num_rows, num_columns), dtype)
    for index, column in enumerate(table.columns):
        if column.null_count:
            if dtype.kind != "f":
                row = column.is_null().to_pylist().index(True) + 1
                raise _BadRow(row, f"column {index} is empty where a whole number must be")
            column = column.fill_null(float("nan"))
        place = out[index] if transposed else out[:, index]
        done = 0
        for chunk in column.chunks:
            # The chunk's memory as it is: its own to_numpy() would import pandas.
            place[done : done + len(chunk)] = np.frombuffer(chunk.buffers()[1], dtype)[chunk.offset : chunk.offset + len(chunk)]
            done += len(chunk)
    return out


def small_table(path: Path) -> list[list[str]]:
    """Every row of a small ``.csv.gz`` file, as text.

    Raises:
        DatasetError: The file is missing, truncated, corrupt or empty.
    """
    return _first_rows(path, _MAX_SMALL_BYTES, is_all=True)


def single_count(path: Path) -> int:
    """The one non-negative number in a file such as ``num-node-list.csv.gz``, which has a row for each graph.

    Raises:
        DatasetError: The file holds anything else.
    """
    rows = small_table(path)
    if len(rows) != 1 or len(rows[0]) != 1:
        raise DatasetError(f"{path} counts {len(rows)} graphs where there must be one", RESTORE_HINT)
    return parse_count(path, rows[0][0])


# Nodes and edges are counted in 64 bits.
_MOST_DIGITS = 18


def parse_count(path: Path, text: str) -> int:
    """``text`` as a number of nodes or edges."""
    digits = text.strip()
    if not digits.isdecimal() or len(digits) > _MOST_DIGITS:
        raise DatasetError(f"{path} holds {text[:100]!r} where a count must be", RESTORE_HINT)
    return int(digits)


def open_table(path: Path, num_rows: int, num_rows_from: str, *, dtype: type[Any] | None = None) -> CsvTable:
    """A table whose width is that of its first row, and whose type is int64 if all of it is whole numbers, else float32.

    So decides OGB's own reader, which holds the file in memory. Here a sample from the start settles it where it shows a
    fraction, as it does for every file that OGB distributes; otherwise the whole file is read once.

    Args:
        path: The ``.csv.gz`` file.
        num_rows: Rows it must have.
        num_rows_from: Where that number comes from.
        dtype: The type, where it is known.
    """
    if num_rows == 0:
        # Nothing says what the rows would have looked like.
        return CsvTable(path, 1, np.dtype(dtype or np.int64), 0, num_rows_from)
    lines = _first_rows(path, _SAMPLE_BYTES, is_all=False)
    width = len(lines[0])
    if dtype is None:
        whole = all(cell.strip().lstrip("+-").isdecimal() for line in lines for cell in line) and _all_whole(path, width)
        dtype = np.int64 if whole else np.float32
    return CsvTable(path, width, np.dtype(dtype), num_rows, num_rows_from)


def _first_rows(path: Path, nbytes: int, *, is_all: bool) -> list[list[str]]:
    """The rows in the first bytes of a file, as text, or all of its rows, which are no more bytes.

    Raises:
        DatasetError: See ``small_table``.
    """
    try:
        with open(open_regular(path), "rb") as packed, gzip.open(packed) as file:
            text = file.read(nbytes + is_all)
        if is_all and len(text) > nbytes:
            raise DatasetError(f"{path} holds more than {nbytes} bytes where a few counts are expected", RESTORE_HINT)
        lines = text if is_all else text[: text.rfind(b"\n") + 1] or text  # the last one may be cut
        rows = [row for row in csv.reader(lines.decode().splitlines()) if row]
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise unreadable(path, error) from error
    if not rows:
        raise DatasetError(f"{path} is empty", RESTORE_HINT)
    return rows


def _all_whole(path: Path, width: int) -> bool:
    try:
        for _ in CsvTable(path, width, np.dtype(np.int64)).rows():
            pass
    except DatasetError:
        # Fractions, or damage: reading it as float32 tells which.
        return False
    return True


def unreadable(path: Path, error: BaseException) -> DatasetError:
    """The error to raise where ``error`` came up while ``path`` was read."""
    if isinstance(error, FileNotFoundError):
        return DatasetError(f"{path} is missing", RESTORE_HINT)
    if isinstance(error, PermissionError):
        return DatasetError(f"{path} cannot be read: {error.strerror}", "ask for permission to read it, or pass another root=")
    return DatasetError(f"{path}: {error}", RESTORE_HINT)

"""Columns of tables as the arrays that training needs: features, codes of texts, numbers, times and splits, kept on disk as they come."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from typing_extensions import override

from gnnkit.callers import warn
from gnnkit.datasets.tables.digests import ChainedDigest
from gnnkit.datasets.tables.reading import Piece
from gnnkit.datasets.tables.rows import JoinedRows, Place, RangeRows, Rows
from gnnkit.errors import DatasetError, PlanError
from gnnkit.schema import ArraySpec
from gnnkit.storage.convert import is_lost

# Changes stored rows ``[k, *row_shape]``.
Recoding: TypeAlias = Callable[[NDArray[Any]], NDArray[Any]]
# A vocabulary is part of the store's manifest; a longer one is a node type of its own.
MOST_CATEGORIES, MOST_ONE_HOT = 1 << 16, 1 << 10
NO_CATEGORY = -1
# Whole numbers below it are exact as float32.
_MOST_WHOLE = 1 << 24
# What fills nulls of features with the mean of their column.
MEAN = "mean"
# How texts that are no numbers may be meant is told from the first of them.
_LOOKED_AT = 100
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+")
_ISO_DATE, _DATE = re.compile(r"\d{4}-\d\d-\d\d\b"), re.compile(r"\d{1,2}([./-])\d{1,2}\1\d{2,4}\b")
# Texts that usually stand for a label that is missing.
_NO_LABELS = {"", "?", "-", "na", "n/a", "<na>", "nan", "nat", "none", "null", "unknown", "unlabelled", "unlabeled", "missing"}
_FIT_ROWS, _DAY_US = 1 << 20, 86_400_000_000


@dataclass(frozen=True)
class ReadOptions:
    """The options of ``tables`` that say how columns are read.

    Attributes:
        types: Types that columns are to have.
        fill: ``{column: value}`` for nulls.
        time_unit: The unit of times: "s", "ms", "us" or "ns".
        drops: Whether edges that name no node are left out.
        unlabelled: Values of labels that mean that there is none.
    """

    types: Mapping[str, pa.DataType]
    fill: Mapping[str, Any]
    time_unit: str
    drops: bool
    unlabelled: tuple[Any, ...] = ()


class Column(ABC):
    """One or several columns of a table on their way into an array, whose rows a ``Place`` keeps: those of one table or of a range of it.

    Args:
        columns: Names of the columns that it reads.
        options: How they are read.
        place: Where its rows are kept.
    """

    def __init__(self, columns: Sequence[str], options: ReadOptions, place: Place) -> None:
        self.columns = tuple(columns)
        self._options, self._place = options, place
        self._kept: Rows | None = None

    @abstractmethod
    def convert(self, piece: Piece) -> Any:
        """Makes arrays of some rows; called by several threads."""

    @abstractmethod
    def append(self, converted: Any) -> None:
        """Keeps what ``convert`` made; called in the order of the rows."""

    @abstractmethod
    def finish(self) -> ArraySpec:
        """Ends the column, and returns its dtype and row shape."""

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Rows ``[start, stop)``, once it is finished."""
        return self._rows_kept.read(start, stop)

    def digest(self) -> str:
        """Hex digest of its values, the same however the rows came in pieces."""
        return self._digest.hexdigest()

    @abstractmethod
    def facts(self) -> Any:
        """Returns the columns that its values come from, as JSON."""

    @abstractmethod
    def state(self) -> Any:
        """All that another column needs to go on where this one ends, as JSON."""

    @abstractmethod
    def resume(self, state: Any) -> None:
        """Goes on where a column of the state ``state`` ended; before any rows come."""

    def recoding(self) -> Recoding | None:
        """Makes rows from before ``resume`` what they are now; None where they stay as they are."""
        return None

    @abstractmethod
    def join(self, other: Any) -> None:
        """Goes on with the next range of rows, which are those of another column of the same class, read on another host."""

    @property
    def _rows_kept(self) -> Rows:
        assert self._kept is not None, "it has rows, or is finished"
        return self._kept

    @property
    def _digest(self) -> ChainedDigest:
        found = ChainedDigest() if self._kept is None else self._kept.digest
        assert isinstance(found, ChainedDigest), "the digest of a range is a piece"
        return found

    def _join(self, other: Column, meaning: NDArray[Any] | None = None) -> None:
        assert isinstance(self._kept, JoinedRows) and isinstance(other._kept, RangeRows), "others are read, not joined"
        self._kept.join(other._kept, meaning)


def plain(array: pa.Array) -> pa.Array:
    """The same values in a type without dictionaries, views and extensions; UUIDs as text."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    if pa.types.is_dictionary(kind):
        return plain(array.dictionary).take(array.indices)  # of views, Arrow decodes none
    if pa.types.is_run_end_encoded(kind):
        return plain(pc.run_end_decode(array))
    if pa.types.is_fixed_size_binary(kind) and kind.byte_width == 16:
        return _uuid_texts(array)
    return array.cast(pa.large_string()) if is_text(kind) else array


def _uuid_texts(array: pa.FixedSizeBinaryArray) -> pa.Array:
    data = np.frombuffer(array.buffers()[1], np.uint8)[16 * array.offset : 16 * (array.offset + len(array))].reshape(-1, 16)
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    out = np.full((len(data), 36), ord("-"), np.uint8)
    places = [place for place in range(36) if place not in (8, 13, 18, 23)]
    out[:, places[0::2]], out[:, places[1::2]] = digits[data >> 4], digits[data & 15]
    ends = pa.py_buffer(np.arange(0, 36 * (len(data) + 1), 36, dtype=np.int64))
    texts = pa.LargeStringArray.from_buffers(len(data), ends, pa.py_buffer(out.reshape(-1)))
    return pc.if_else(array.is_null(), pa.scalar(None, pa.large_string()), texts) if array.null_count else texts


def is_text(kind: pa.DataType) -> bool:
    """Whether values of an Arrow type are texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type that ``plain`` gives values of a type."""
    return plain(pa.nulls(0, kind)).type


def column_of(piece: Piece, name: str, types: Mapping[str, pa.DataType]) -> pa.Array:
    """A column of some rows, plain, in the type that was asked for.

    Raises:
        DatasetError: A value is none of that type; names the place and the column.
    """
    array = plain(piece.rows.column(name))
    wanted = types.get(name)
    if wanted is None or array.type == wanted:
        return array
    try:
        # Arrow narrows texts and decimals without a word: they are numbers first, which are compared with what becomes of them.
        is_whole = not pa.types.is_floating(wanted) or pa.types.is_integer(array.type)
        numbers = array if is_whole else array.cast(pa.float64())
        cast = plain(numbers.cast(wanted))
    except pa.ArrowException as error:
        what = f"{piece.where}: column {name!r} is {array.type}, and {wanted} was asked for: {error}"
        raise DatasetError(what, _way(array, name)) from error
    wide, narrow = _leaves(numbers), _leaves(cast)
    if pa.types.is_floating(wide.type) and pa.types.is_floating(narrow.type):
        width = max(1, len(wide) // max(1, len(array)))
        _check_held(wide.to_numpy(zero_copy_only=False), narrow.to_numpy(zero_copy_only=False), name, piece, width, is_exact=True)
    return cast


def _way(array: pa.Array, name: str) -> str | None:
    """Advice on texts of a column that are numbers or dates as some countries write them; None where the first ones are neither."""
    texts = [text.strip() for text in array.drop_null()[:_LOOKED_AT].to_pylist()] if is_text(array.type) else []
    for text in texts:
        if _DECIMAL_COMMA.fullmatch(text):
            return f"decimal=',' reads {text!r} in a file; of a data frame: table[{name!r}].str.replace(',', '.').astype(float)"
        if _ISO_DATE.match(text):
            return f"types={{{name!r}: 'timestamp[us]'}} reads {text!r} as a time: time= takes times, and features= does as days"
        if found := _DATE.match(text):
            between = found[1]
            orders = [f"'%d{between}%m{between}%Y'"] + [f"'%m{between}%d{between}%Y'"] * (between != ".")
            read = f"pandas.to_datetime(table[{name!r}], format={' or '.join(orders)})"
            return f"{text!r} is a time once pandas has read it: table[{name!r}] = {read}"
    if texts and all(_NUMBER.fullmatch(text) for text in texts):
        return f"types={{{name!r}: 'double'}} reads {texts[0]!r} as a number"
    return None


def _leaves(array: pa.Array) -> pa.Array:
    """The values of lists, one after the other; else the array."""
    return _leaves(plain(array.flatten())) if is_list(array.type) else array


def is_list(kind: pa.DataType) -> bool:
    """Whether values of an Arrow type are lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _check_held(numbers: NDArray[Any], narrowed: NDArray[Any], name: str, piece: Piece, width: int, *, is_exact: bool) -> None:
    """Refuses numbers that a narrower type does not hold, see ``is_lost``.

    Args:
        numbers: ``[k * width]``.
        narrowed: The same in a narrower type.
        name: Their column.
        piece: Their rows.
        width: Numbers of a row.
        is_exact: Whether none may become 0.

    Raises:
        DatasetError: Names the place, the column and the first row.
    """
    lost = np.flatnonzero(is_lost(numbers, narrowed, to_zero=is_exact))
    if len(lost):
        what = f"{float(numbers[lost[0]])!r} in row {piece.first + int(lost[0]) // width}, which {narrowed.dtype} cannot hold"
        raise DatasetError(
            f"{piece.where}: column {name!r} has {what}",
            "multiply the column by a number that brings its values nearer to 1, or take their logarithms: tables are read as float32",
        )


def without_nulls(array: pa.Array, name: str, piece: Piece, fills: Mapping[str, Any]) -> pa.Array:
    """A column with its nulls (and NaN, where it is of fractions) filled in as ``fills`` says.

    Raises:
        DatasetError: There are nulls, and it says nothing of this column; names the place, the column and the first row.
        PlanError: The column cannot hold the value.
    """
    if pa.types.is_floating(array.type):
        array = pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
    if not array.null_count:
        return array
    if name not in fills:
        row = piece.first + int(pc.index(array.is_null(), True).as_py())
        what = f"{array.null_count} nulls in {len(array)} rows of column {name!r}, the first in row {row}"
        mean = f"; of a feature, fill={{{name!r}: 'mean'}}" if pa.types.is_floating(array.type) or pa.types.is_integer(array.type) else ""
        raise DatasetError(f"{piece.where}: {what}", f"fill={{{name!r}: value}} puts a value in their place{mean}")
    try:
        value = fills[name]
        is_date = isinstance(value, str) and pa.types.is_temporal(array.type)
        return pc.fill_null(array, pa.scalar(value).cast(array.type) if is_date else pa.scalar(value, array.type))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise PlanError(f"fill={{{name!r}: {fills[name]!r}}}: the column is {array.type}") from error


def _labels(array: pa.Array, unlabelled: Sequence[Any]) -> pa.Array:
    """A column of labels with nulls where there is none; values of another kind than the column's are none of its rows."""
    known = []
    for value in unlabelled:
        with contextlib.suppress(pa.ArrowException, TypeError, ValueError):
            known.append(pa.scalar(value).cast(array.type))
    return pc.if_else(pc.is_in(array, pa.array(known, array.type)), pa.scalar(None, array.type), array) if known else array


def _days(array: pa.Array) -> pa.Array:
    """Timestamps and dates as days since 1970, spans and times of day as days; with fractions."""
    kind = array.type
    wanted = pa.duration("us") if pa.types.is_duration(kind) else pa.time64("us") if pa.types.is_time(kind) else None
    ticks = array.cast(wanted or pa.timestamp("us", getattr(kind, "tz", None)), safe=False).cast(pa.int64())
    return pc.divide(ticks.cast(pa.float64(), safe=False), float(_DAY_US))


@dataclass(frozen=True)
class _Fit:
    """The means and deviations that columns side by side are fitted to: ``[width]`` each.

    Attributes:
        means: Of the rows that they are fitted to.
        shifts: What is taken away from a number, and
        scales: what the rest is divided by.
    """

    means: NDArray[np.float64]
    shifts: NDArray[np.float64]
    scales: NDArray[np.float64]

    def __call__(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        return ((np.where(np.isnan(rows), self.means, rows) - self.shifts) / self.scales).astype(np.float32)


class Numbers(Column):
    """Columns of numbers, booleans or lists of a fixed size side by side.

    Features, which become float32, may also be times, and fitted to the rows of a split once all are there (``fit``); until then these
    are kept as float64, with NaN where a mean will be.

    Args:
        columns: Their names.
        dtype: The dtype they get; None is int64 for whole numbers and booleans, float32 for others.
        options: How they are read.
        place: Where they are kept.
        flat: Whether the array is ``[n]``; then there is one column.
        standardize: The columns that get the mean 0 and the deviation 1.
        is_label: Whether rows need not have a number: of whole ones -1 says so, of others NaN. One column of whole numbers that a data
            frame holds as fractions, because some are missing, has whole ones.
    """

    def __init__(
        self,
        columns: Sequence[str],
        dtype: str | None,
        options: ReadOptions,
        place: Place,
        *,
        flat: bool = False,
        standardize: Collection[str] = (),
        is_label: bool = False,
    ) -> None:
        super().__init__(columns, options, place)
        self._means = {column for column in columns if dtype == "float32" and options.fill.get(column) == MEAN}
        self._standardized = set(standardize)
        self._fit: _Fit | None = None
        self._dtype, self._flat = dtype, flat
        self._is_exact = dtype is None  # features may be rounded to 0, and labels and weights may not
        self._widths: list[int] = []
        self._waiting: list[list[NDArray[Any]]] = []  # rows until there is a list of each column, which tells how long they are
        self._is_label = is_label
        # Of labels that are no whole numbers: whether some are missing, whether some are there, and whether these could be classes.
        self._has_gaps, self._has_some, self._may_be_classes = False, False, flat and not set(columns) & set(options.types)
        self._forms_before: tuple[bool, bool] | None = None

    @override
    def convert(self, piece: Piece) -> list[NDArray[Any]]:
        return [self._rows(piece, name) for name in self.columns]

    @override
    def append(self, converted: list[NDArray[Any]]) -> None:
        self._waiting.append(converted)
        if self._kept is not None or all(self._firsts()):
            self._keep_waiting()

    def _firsts(self) -> list[list[NDArray[Any]]]:
        """The rows of each column that have a width, of those that wait."""
        return [[rows for rows in found if rows.dtype != np.bool_] for found in zip(*self._waiting, strict=True)] or [[]]

    def _keep_waiting(self) -> None:
        """Keeps the rows that wait; of a column that has no list at all, lists of one number."""
        if self._kept is None:
            firsts = [found[0] if found else np.empty((0, 1), np.float32) for found in self._firsts()]
            self._widths = [rows.shape[1] for rows in firsts] if self._waiting else [1] * len(self.columns)
            self._dtype = self._dtype or ("int64" if all(rows.dtype.kind in "iu" for rows in firsts) else "float32")
            self._kept = self._made()
        waiting, self._waiting = self._waiting, []
        for converted in waiting:
            self._keep([self._with_width(*each) for each in zip(converted, self.columns, self._widths, strict=True)])

    def _with_width(self, rows: NDArray[Any], name: str, width: int) -> NDArray[Any]:
        """The same rows; those without any list get what there is in its place."""
        return np.full((len(rows), width), self._in_place_of(name, np.nan), np.float64) if rows.dtype == np.bool_ else rows

    def _in_place_of(self, name: str, none: float) -> Any:
        """Returns what takes the place of a list that is null; ``none`` in labels."""
        return np.nan if name in self._means else self._options.fill.get(name, none)

    def _keep(self, converted: list[NDArray[Any]]) -> None:
        self._check_widths([rows.shape[1] for rows in converted])
        if self._is_label:
            converted = self._as_labels(converted)
        if self._dtype == "int64" and any(rows.dtype.kind not in "iu" for rows in converted):
            hint = f"types={dict.fromkeys(self.columns, 'double')} reads all as fractions"
            raise DatasetError(f"columns {list(self.columns)} have whole numbers first and fractions later", hint)
        kept = "float64" if self.is_fitted else self._dtype
        rows = np.concatenate(converted, axis=1, dtype=np.dtype(kept), casting="same_kind" if self._dtype == "int64" else "unsafe")
        self._rows_kept.append(rows.reshape(-1) if self._flat else rows)

    def _as_labels(self, converted: list[NDArray[Any]]) -> list[NDArray[Any]]:
        """Labels with -1 or NaN, whichever the array has, where there is none."""
        if self._dtype != "int64":
            converted = [np.where(rows < 0, np.nan, rows).astype(np.float32) if rows.dtype.kind == "i" else rows for rows in converted]
            for rows in converted:
                gaps = np.isnan(rows)
                self._has_gaps, self._has_some = self._has_gaps or bool(gaps.any()), self._has_some or not gaps.all()
                self._may_be_classes &= bool((gaps | ((rows >= 0) & (rows < _MOST_WHOLE) & (np.trunc(rows) == rows))).all())
            return converted
        are_whole = [rows.dtype.kind == "i" or bool((np.isnan(rows) | (np.trunc(rows) == rows)).all()) for rows in converted]
        return [
            rows if rows.dtype.kind == "i" or not is_whole else np.where(np.isnan(rows), NO_CATEGORY, rows).astype(np.int64)
            for rows, is_whole in zip(converted, are_whole, strict=True)
        ]

    @property
    def _are_classes(self) -> bool:
        """Whether labels that were kept as fractions are whole numbers, some of which are missing."""
        return self._is_label and self._dtype == "float32" and self._has_gaps and self._may_be_classes

    def _made(self, state: Mapping[str, str] | None = None) -> Rows:
        assert self._dtype is not None
        spec = ArraySpec("float64" if self.is_fitted else self._dtype, () if self._flat else (sum(self._widths),))
        return self._place(spec, state)

    def _check_widths(self, widths: Sequence[int]) -> None:
        for name, width, first in zip(self.columns, widths, self._widths, strict=True):
            if width != first:
                raise DatasetError(f"column {name!r} has lists of {width} and of {first} numbers", "all rows of a feature have one length")

    @override
    def finish(self) -> ArraySpec:
        self._keep_waiting()
        assert self._dtype is not None
        if self._are_classes and self._has_some:
            (name,) = self.columns
            what = f"the labels {name!r} are whole numbers, and some are missing: they are taken as classes, and -1 as none"
            warn(f"{what}. Of numbers to predict, types={{{name!r}: 'double'}} says so")
        if self._forms_before not in (None, (self._dtype == "float32", self._are_classes)):
            hint = f"make a store of all tables, or of these with types={{{self.columns[0]!r}: 'double'}}"
            raise DatasetError(
                f"the labels {list(self.columns)} are classes with the new rows and numbers without them, or otherwise", hint
            )
        return replace(self._rows_kept.spec, dtype="int64" if self._are_classes else self._dtype)

    @property
    def is_fitted(self) -> bool:
        """Whether its values depend on those of other rows."""
        return bool(self._means or self._standardized)

    def fit(self, ids: Sequence[int] | NDArray[np.int64] | None) -> None:
        """Takes means and deviations of some rows, all of them where ``ids`` is None, in an order that does not depend on how they came.

        Raises:
            DatasetError: A column has no value there.
        """
        kept = self._rows_kept
        names = [name for name, width in zip(self.columns, self._widths, strict=True) for _ in range(width)]
        chosen = np.ones(kept.num_rows, np.bool_)
        if ids is not None:
            chosen[:] = False
            chosen[np.asarray(ids, np.int64)] = True

        def total(value: Callable[[NDArray[np.float64]], NDArray[Any]]) -> NDArray[np.float64]:
            found = np.zeros(len(names))
            for start in range(0, len(chosen), _FIT_ROWS):
                part = chosen[start : start + _FIT_ROWS]
                found += np.nansum(value(kept.read(start, start + len(part))[part]), axis=0)
            return found

        # One pass for both: a value that is infinite makes its column's number of values so.
        counts = total(lambda rows: np.where(np.isinf(rows), np.inf, ~np.isnan(rows)))
        if (empty := np.flatnonzero(counts == 0)).size:
            raise DatasetError(f"column {names[empty[0]]!r} has no value to fit to in {'all' if ids is None else 'the training'} rows")
        if (endless := np.flatnonzero(np.isinf(counts))).size:
            raise DatasetError(
                f"column {names[endless[0]]!r} has an infinite value in rows that its mean is taken of", "give null there, and fill="
            )
        means = total(lambda rows: rows) / counts
        deviations = np.sqrt(total(lambda rows: (rows - means) ** 2) / counts)
        is_standard = np.isin(names, list(self._standardized))
        scales = np.where(is_standard & (deviations > 0), deviations, 1.0)
        self._fit = _Fit(means, np.where(is_standard, means, 0.0), scales)

    @override
    def rows(self, start: int, stop: int) -> NDArray[Any]:
        rows = super().rows(start, stop)
        if self._are_classes:
            return np.where(np.isnan(rows), NO_CATEGORY, rows).astype(np.int64)
        return rows if self._fit is None else self._fit(rows)

    @override
    def facts(self) -> list[Any]:
        found, place = list[Any](), 0
        for name, width in zip(self.columns, self._widths, strict=True):
            fact: dict[str, Any] = {"column": name, "width": width}
            if self._fit is not None and name in self._means | self._standardized:
                fact["mean"] = self._fit.means[place : place + width].tolist()
            if self._fit is not None and name in self._standardized:
                fact["deviation"] = self._fit.scales[place : place + width].tolist()
            found.append(name if fact == {"column": name, "width": 1} else fact)
            place += width
        return found

    @override
    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = {"dtype": self._dtype, "widths": self._widths, "digest": self._digest.state()}
        if self._is_label and self._dtype == "float32":
            state["gaps"], state["classes"] = self._has_gaps, self._may_be_classes
        return {**state, "lists": True} if self._is_label and len(self.columns) == 1 and not self._flat else state

    @override
    def resume(self, state: Mapping[str, Any]) -> None:
        self._dtype, self._widths = state["dtype"], list(state["widths"])
        self._has_gaps, self._may_be_classes = bool(state.get("gaps")), bool(state.get("classes"))
        self._forms_before = (self._dtype == "float32", self._are_classes)
        self._kept = self._made(state["digest"])

    @override
    def join(self, other: Numbers) -> None:
        if other._kept is None:
            return
        if self._kept is None:
            self._dtype, self._widths = other._dtype, other._widths
            self._kept = self._made()
        self._check_widths(other._widths)
        self._has_gaps, self._has_some = self._has_gaps or other._has_gaps, self._has_some or other._has_some
        self._may_be_classes &= other._may_be_classes
        assert other._dtype == self._dtype, "columns of several types are read in one place"
        self._join(other)

    def _rows(self, piece: Piece, name: str) -> NDArray[Any]:
        array = column_of(piece, name, self._options.types)
        width, is_there = 1, np.ones(len(array), np.bool_)
        kind = array.type
        if is_list(kind):
            array, is_there, length = self._lists(array, name, piece)
            if length is None:
                return np.empty((len(is_there), 0), np.bool_)  # other rows tell how long lists are
            width = length
        array = self._filled(array, name, piece)
        if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
            hint = _way(array, name) or f"one_hot={name!r} makes a column of each text, and categories={name!r} keeps their numbers"
            if pa.types.is_temporal(array.type):
                hint = "time= takes times, and features= does as days; for other uses make numbers of them"
            raise DatasetError(f"{piece.where}: column {name!r} is {kind}, which is no number", hint)
        rows = np.asarray(array)
        if rows.dtype.kind == "f":
            with np.errstate(over="ignore"):
                found = rows.astype(np.float32)
            _check_held(rows, found, name, piece, width, is_exact=self._is_exact)
            rows = rows.astype(np.float64) if self.is_fitted else found
        elif rows.dtype == np.uint64 and self._dtype != "float32":
            if (bad := np.flatnonzero(rows >> 63)).size:
                hint = f"types={{{name!r}: 'string'}} reads it as text, for classes" if self._flat else f"types={{{name!r}: 'double'}}"
                raise DatasetError(f"{piece.where}: column {name!r} has {rows[bad[0]]}, which int64 does not hold", hint)
            rows = rows.astype(np.int64)
        rows = rows.reshape(-1 if width else len(is_there), width)
        if len(rows) == len(is_there):
            return rows
        out = np.full((len(is_there), width), self._in_place_of(name, NO_CATEGORY if rows.dtype.kind == "i" else np.nan), rows.dtype)
        out[is_there] = rows
        return out

    def _lists(self, array: pa.Array, name: str, piece: Piece) -> tuple[pa.Array, NDArray[np.bool_], int | None]:
        """The numbers of lists one after the other, which rows have a list, and the length of lists; None where nothing tells it."""
        kind = array.type
        if self._flat:
            raise DatasetError(f"{piece.where}: column {name!r} has lists ({kind}), and one number a row is needed")
        if is_text(plain_type(kind.value_type)):
            hint = f"table[{name!r}] = table[{name!r}].str.join('|').str.get_dummies().values.tolist() of pandas has 0 or 1 for each"
            raise DatasetError(f"{piece.where}: column {name!r} has lists of texts, and numbers are needed", hint)
        if not self._is_label and name not in self._options.fill:
            array = without_nulls(array, name, piece, {})
        is_there, array = np.asarray(array.is_valid()), array.drop_null()
        lengths = np.asarray(pc.list_value_length(array))
        width = int(lengths[0]) if len(lengths) else int(kind.list_size) if pa.types.is_fixed_size_list(kind) else None
        if (other := np.flatnonzero(lengths != width)).size:
            row = piece.first + int(np.flatnonzero(is_there)[other[0]])
            what = f"a list of {lengths[other[0]]} numbers in row {row}, after lists of {width}"
            raise DatasetError(f"{piece.where}: column {name!r} has {what}", "all rows of a feature have one length")
        return plain(array.flatten()), is_there, width

    def _filled(self, array: pa.Array, name: str, piece: Piece) -> pa.Array:
        """A column without nulls: with what ``fills`` says, or NaN where its mean will be; booleans, decimals and times as numbers."""
        kind = array.type
        if pa.types.is_null(kind):  # a CSV whose fields are all empty
            array = array.cast(pa.int64() if self._dtype == "int64" else pa.float64())
        elif pa.types.is_decimal(kind):
            array = array.cast(pa.float64())
        is_time = pa.types.is_temporal(kind) and not self._is_exact
        if not (is_time or pa.types.is_boolean(kind) or pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
            return array
        if self._is_label and name not in self._options.fill:
            array = _labels(array.cast(pa.int64()) if pa.types.is_boolean(kind) else array, self._options.unlabelled)
            if not array.null_count:
                return array
            is_whole = pa.types.is_integer(array.type)
            return array.cast(pa.int64()).fill_null(NO_CATEGORY) if is_whole else array.cast(pa.float64()).fill_null(np.nan)
        if name not in self._means:
            array = without_nulls(array, name, piece, self._options.fill)
        array = _days(array) if is_time else array.cast(pa.int64()) if pa.types.is_boolean(kind) else array
        return array.cast(pa.float64(), safe=False).fill_null(np.nan) if name in self._means else array


class Ids(Numbers):
    """A column that may name the nodes of a table without keys; no value of it is an error. -1 stands for what is no whole number."""

    @override
    def convert(self, piece: Piece) -> list[NDArray[Any]]:
        array = plain(piece.rows.column(self.columns[0]))
        whole = array if pa.types.is_integer(array.type) and array.type != pa.uint64() else pa.nulls(len(array), pa.int64())
        return [np.asarray(whole.cast(pa.int64()).fill_null(-1)).reshape(-1, 1)]


class Codes(Column):
    """A column of texts (or whole numbers, or booleans) as codes: positions in the sorted list of the values that occur.

    Args:
        column: Its name.
        options: How it is read; to fill nulls with -1 makes them no category at all.
        place: Where they are kept.
        optional: Whether nulls are no category where they are not to be filled.
        is_label: Whether these are classes, of which nulls and the ``unlabelled`` are none.
    """

    def __init__(self, column: str, options: ReadOptions, place: Place, *, optional: bool = False, is_label: bool = False) -> None:
        super().__init__([column], options, place)
        self.values: list[Any] = []
        self._optional, self._is_label, self._unlabelled = optional or is_label, is_label, options.unlabelled if is_label else ()
        self._known: dict[Any, int] = {}
        self._kept = place(ArraySpec("int32"), None)
        self._num_before = 0
        self._map: NDArray[np.int64] = np.empty(0, np.int64)

    @override
    def convert(self, piece: Piece) -> tuple[NDArray[Any], list[Any]]:
        name = self.columns[0]
        array = column_of(piece, name, self._options.types)
        if pa.types.is_null(array.type):
            array = array.cast(pa.large_string())
        if not (is_text(array.type) or pa.types.is_integer(array.type) or pa.types.is_boolean(array.type)):
            what = f"{piece.where}: column {name!r} is {array.type}; categories are texts, whole numbers or booleans"
            raise DatasetError(what, f"features= takes numbers; types={{{name!r}: 'string'}} reads each number as a category")
        array = _labels(array, self._unlabelled)
        fill = self._options.fill.get(name, NO_CATEGORY if self._optional else None)
        if fill is None or (fill != NO_CATEGORY and array.null_count):
            array = without_nulls(array, name, piece, self._options.fill)
        if pa.types.is_boolean(array.type):
            array = array.cast(pa.int64())
        encoded = array.dictionary_encode()
        codes = np.asarray(encoded.indices.fill_null(NO_CATEGORY))
        return codes, encoded.dictionary.to_pylist()

    @override
    def append(self, converted: tuple[NDArray[Any], list[Any]]) -> None:
        codes, values = converted
        rows = self._places(values)[codes]
        # Digests are of what codes stand for: the codes of a range are others than those of all rows.
        self._rows_kept.append(rows, np.array([*map(_word, values), 0], np.uint64)[codes])

    def _places(self, values: Sequence[Any]) -> NDArray[np.int32]:
        """The codes of values, and at last that of none; values that are new get the next ones."""
        known = next(iter(self._known), None)
        if known is not None and any(isinstance(value, str) != isinstance(known, str) for value in values):
            raise DatasetError(
                f"column {self.columns[0]!r} has texts and numbers, {known!r} and {values[0]!r}", "categories are of one type"
            )
        places = [self._known.setdefault(value, len(self._known)) for value in values]
        if len(self._known) > MOST_CATEGORIES:
            raise DatasetError(
                f"column {self.columns[0]!r} has more than {MOST_CATEGORIES} different values",
                "make them a node type of their own, or a key",
            )
        return np.array([*places, NO_CATEGORY], np.int32)

    @override
    def finish(self) -> ArraySpec:
        self.values = sorted(self._known)
        if self._is_label and (none := [value for value in self.values if str(value).strip().lower() in _NO_LABELS]):
            warn(f"the labels {self.columns[0]!r} have the classes {none}: unlabelled={none} says that they mean none")
        self._map = np.empty(len(self.values) + 1, np.int64)
        self._map[[self._known[value] for value in self.values]] = np.arange(len(self.values))
        self._map[-1] = NO_CATEGORY
        return ArraySpec("int64")

    @override
    def rows(self, start: int, stop: int) -> NDArray[Any]:
        rows: NDArray[Any] = self._map[super().rows(start, stop)]
        return rows

    @override
    def digest(self) -> str:
        return f"{super().digest()} {list(self._known)}"

    @override
    def facts(self) -> dict[str, Any]:
        return {"column": self.columns[0], "values": self.values}

    @override
    def state(self) -> dict[str, Any]:
        return {"known": list(self._known), "digest": self._digest.state()}

    @override
    def resume(self, state: Mapping[str, Any]) -> None:
        self._known = {value: place for place, value in enumerate(state["known"])}
        self._num_before, self._kept = len(self._known), self._place(ArraySpec("int32"), state["digest"])

    @property
    def values_before(self) -> list[Any]:
        """The values that there were before ``resume``, ascending."""
        return sorted(list(self._known)[: self._num_before])

    @override
    def recoding(self) -> Recoding | None:
        if self.values_before == self.values:
            return None
        now = np.array([*(self.values.index(value) for value in self.values_before), NO_CATEGORY])
        return lambda rows: now[rows]

    @override
    def join(self, other: Codes) -> None:
        self._join(other, self._places([*other._known]))


@lru_cache(MOST_CATEGORIES)
def _word(value: Any) -> int:
    return int.from_bytes(hashlib.blake2b(json.dumps(value).encode(), digest_size=8).digest(), "little")


class Features(Column):
    """Numbers and one-hot columns side by side, as float32.

    Args:
        numbers: The numbers, or None.
        one_hot: The columns of which each value becomes one of the array.
    """

    def __init__(self, numbers: Numbers | None, one_hot: Sequence[Codes]) -> None:
        self._parts: list[Numbers | Codes] = [*([] if numbers is None else [numbers]), *one_hot]
        self.columns = tuple(name for part in self._parts for name in part.columns)

    @override
    def convert(self, piece: Piece) -> list[Any]:
        return [part.convert(piece) for part in self._parts]

    @override
    def append(self, converted: list[Any]) -> None:
        for part, value in zip(self._parts, converted, strict=True):
            part.append(value)

    @override
    def finish(self) -> ArraySpec:
        width = 0
        for part in self._parts:
            spec = part.finish()
            if isinstance(part, Codes) and len(part.values) > MOST_ONE_HOT:
                raise DatasetError(
                    f"column {part.columns[0]!r} has {len(part.values)} different values, too many for one_hot (at most {MOST_ONE_HOT})",
                    "categories={...} keeps them as codes, for an embedding",
                )
            width += len(part.values) if isinstance(part, Codes) else spec.row_shape[0]
        return ArraySpec("float32", (width,))

    @override
    def rows(self, start: int, stop: int) -> NDArray[Any]:
        blocks = []
        for part in self._parts:
            rows = part.rows(start, stop)
            blocks.append((rows[:, None] == np.arange(len(part.values))).astype(np.float32) if isinstance(part, Codes) else rows)
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=1)

    @property
    def is_fitted(self) -> bool:
        """Whether its values depend on those of other rows."""
        return any(isinstance(part, Numbers) and part.is_fitted for part in self._parts)

    def fit(self, ids: Sequence[int] | NDArray[np.int64] | None) -> None:
        """Fits the numbers that are to be, see ``Numbers.fit``."""
        for part in self._parts:
            if isinstance(part, Numbers) and part.is_fitted:
                part.fit(ids)

    @override
    def digest(self) -> str:
        return " ".join(part.digest() for part in self._parts)

    @override
    def facts(self) -> list[Any]:
        found: list[Any] = []
        for part in self._parts:
            found += [{"one_hot": part.columns[0], "values": part.values}] if isinstance(part, Codes) else part.facts()
        return found

    @override
    def state(self) -> list[Any]:
        return [part.state() for part in self._parts]

    @override
    def resume(self, state: Sequence[Any]) -> None:
        for part, own in zip(self._parts, state, strict=True):
            part.resume(own)

    @override
    def recoding(self) -> Recoding | None:
        # Columns of values that are new come in between, zeros all.
        if all(part.recoding() is None for part in self._parts):
            return None
        places, width = list[int](), 0
        for part in self._parts:
            spec = part.finish()
            own = range(spec.row_shape[0]) if isinstance(part, Numbers) else [part.values.index(value) for value in part.values_before]
            places += [width + place for place in own]
            width += spec.row_shape[0] if isinstance(part, Numbers) else len(part.values)

        def widened(rows: NDArray[Any]) -> NDArray[Any]:
            out = np.zeros((len(rows), width), rows.dtype)  # of bfloat16, too, zero is no bits
            out[:, places] = rows
            return out

        return widened

    @override
    def join(self, other: Features) -> None:
        parts: list[Any] = other._parts
        for part, own in zip(self._parts, parts, strict=True):
            part.join(own)


class Times(Column):
    """A column of times as int64: timestamps and dates since 1970 in one unit, whole numbers as they are.

    Args:
        column: Its name.
        options: How it is read.
        place: Where they are kept.
    """

    def __init__(self, column: str, options: ReadOptions, place: Place) -> None:
        super().__init__([column], options, place)
        self._unit = options.time_unit
        self._kept = place(ArraySpec("int64"), None)
        self._is_number, self._num_before = False, 0

    @override
    def convert(self, piece: Piece) -> tuple[NDArray[Any], bool]:
        name = self.columns[0]
        array = column_of(piece, name, self._options.types)
        is_number = pa.types.is_integer(array.type)
        if not (is_number or pa.types.is_timestamp(array.type) or pa.types.is_date(array.type)):
            hint = _way(array, name) or f"types={{{name!r}: 'timestamp[us]'}} reads texts such as 2026-01-31 12:00"
            if pa.types.is_floating(array.type):
                hint = f"make whole numbers of them, for example (1000 * table[{name!r}]).astype('int64')"
            raise DatasetError(f"{piece.where}: column {name!r} is {array.type}; times are timestamps, dates or whole numbers", hint)
        array = without_nulls(array, name, piece, self._options.fill)
        try:
            array = array.cast(pa.int64()) if is_number else array.cast(pa.timestamp(self._unit, getattr(array.type, "tz", None)))
        except pa.ArrowException as error:
            what = f"{piece.where}: column {name!r} does not fit the unit {self._unit!r}: {error}"
            wide = "int64 holds times from 1677 to 2262 in nanoseconds: time_unit='us'"
            hint = "times are whole numbers below 2**63" if is_number else wide if self._unit == "ns" else "a finer one: time_unit='ns'"
            raise DatasetError(what, hint) from error
        return np.asarray(array.cast(pa.int64())), is_number

    @override
    def append(self, converted: tuple[NDArray[Any], bool]) -> None:
        rows, is_number = converted
        self._check_kind(is_number)
        self._rows_kept.append(rows)

    def _check_kind(self, is_number: bool) -> None:
        if self._rows_kept.num_rows + self._num_before and is_number != self._is_number:
            raise DatasetError(f"column {self.columns[0]!r} has whole numbers and timestamps", "times are of one type")
        self._is_number = is_number

    @override
    def finish(self) -> ArraySpec:
        return replace(self._rows_kept.spec, unit=None if self._is_number else self._unit)

    @override
    def facts(self) -> dict[str, Any]:
        return {"column": self.columns[0], **({} if self._is_number else {"unit": self._unit, "since": "1970-01-01 UTC"})}

    @override
    def state(self) -> dict[str, Any]:
        return {"is_number": self._is_number, "digest": self._digest.state()}

    @override
    def resume(self, state: Mapping[str, Any]) -> None:
        self._is_number, self._num_before = bool(state["is_number"]), 1
        self._kept = self._place(ArraySpec("int64"), state["digest"])

    @override
    def join(self, other: Times) -> None:
        if other._rows_kept.num_rows:
            self._check_kind(other._is_number)
            self._join(other)

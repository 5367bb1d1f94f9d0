"""Tables as text, such as CSV: what separates fields and whether row 1 names columns, and a reader of the rows in Arrow batches."""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import lzma
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
from numpy.typing import NDArray

from gnnkit.errors import DatasetError, PlanError

# Suffixes of text, and of what packs it with the codec of Arrow; Python reads xz.
TEXT = (".csv", ".tsv", ".tab", ".txt", ".dat", ".data", ".edges", ".edgelist", ".cites", ".content")
PACKED = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4", ".xz": ""}
BLOCK_BYTES, _PIECE_BYTES = 8 << 20, 1 << 18
# What is looked at of a text, and how many whole rows at least, however long they are.
_SAMPLE_BYTES, _SAMPLE_ROWS, _WHOLE_ROWS = 1 << 18, 500, 3
# Separators that are looked for; of those that divide the sample equally well, the first one.
_SEPARATORS = ("\t", ",", ";", "|", "::", " ")
_COMMENTS = ("#", "%")
# A byte that takes the place of separators of several bytes: the "unit separator" of ASCII.
_UNIT = "\x1f"
# What names no column where other rows have it: numbers, dates and times, booleans.
_VALUE = re.compile(r"[+-]?[\d.][\d.,:eE+\-/TZ ]*|true|false", re.IGNORECASE)
PADDED = r"^\s*([+-]?0[\dxX]|\+)"
_SETTLE = "header=True or header=False says which it is; a file that is appended has the header of those before"
_NOTHING = ("", "\\n", "na", "n/a", "null", "none", "nan", "nil", "?", "-")


@dataclass(frozen=True)
class TextOptions:
    """Options of texts, given by the user; the first rows of a text tell the others.

    Attributes:
        header: Whether row 1 names the columns.
        sep: What separates fields.
        comment: What lines begin with that are left out; "" for none. None leaves those before the first row out that begin with # or %.
        decimal: The decimal point.
        null: What fields are missing values, beside empty ones.
        encoding: The encoding, as Python names it; None is UTF-8, or UTF-16 where a text begins with its mark.
    """

    header: bool | None = None
    sep: str | None = None
    comment: str | None = None
    decimal: str = "."
    null: tuple[str, ...] = ()
    encoding: str | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> TextOptions:
        """Checks the options of a table; None of one is its default.

        Raises:
            PlanError: One is unusable.
        """
        options = {name: value for name, value in given.items() if value is not None}
        if isinstance(null := options.get("null", ()), (str, list, tuple)):
            options["null"] = (null,) if isinstance(null, str) else tuple(null)
        sep = options["sep"] = "\t" if options.get("sep") in ("\\t", "tab") else options.get("sep")
        checks = {
            "header": (options.get("header") in (None, True, False), "it is True or False"),
            "sep": (sep is None or _is_one_line(sep, 1, 4), 'it is one to four characters, such as ",", "\\t" or "::"'),
            "comment": (_is_one_line(options.get("comment", ""), 0, 4), 'it is what such lines begin with, "" for none'),
            "decimal": (options.get("decimal", ".") in (".", ","), 'it is "." or ","'),
            "null": (isinstance(options["null"], tuple) and all(isinstance(n, str) for n in options["null"]), "it is a text, or several"),
            "encoding": (_is_encoding(options.get("encoding", "utf-8")), 'it is a name that Python knows, such as "latin-1"'),
        }
        for name, (is_right, hint) in checks.items():
            if not is_right:
                raise PlanError(f"{name}={given[name]!r}", hint)
        if sep is not None and sep == options.get("decimal", "."):
            raise PlanError(f"sep={sep!r} is the decimal point, too", 'sep=";" and decimal="," go together')
        return cls(**options)


AS_TOLD = TextOptions()
TEXT_OPTIONS = tuple(vars(AS_TOLD))


def _is_one_line(text: Any, least: int, most: int) -> bool:
    return isinstance(text, str) and least <= len(text) <= most and not {*text} & {*"\n\r\"'"}


def _is_encoding(name: Any) -> bool:
    try:
        return isinstance(name, str) and codecs.lookup(name) is not None
    except LookupError:
        return False


@dataclass(frozen=True)
class Dialect:
    """The way a text is written.

    Attributes:
        options: What was said of it, and what its first rows tell.
        names: The columns, as it names them; "f0", "f1" where it does not.
        skipped: Lines before the first row of values.
        comments: Those of them that are comments.
        quote: What quotes fields; "" for nothing.
        escape: What quotes a quote within them; "" for another quote.
        blanks: Whether any number of blanks is one separator.
        padded: Columns with numbers such as 007, +7 and 0x7, which as keys are other than 7.
    """

    options: TextOptions
    names: list[str]
    skipped: int
    comments: int
    quote: str
    escape: str
    blanks: bool
    padded: frozenset[str] = frozenset()

    @property
    def sep(self) -> str:
        """Separator of fields."""
        assert self.options.sep is not None, "it was found out"
        return self.options.sep

    @property
    def delimiter(self) -> str:
        """The character that the readers of text are given for it."""
        return _delimiter(self.sep)

    def __str__(self) -> str:
        words = ["blanks" if self.blanks else {"\t": "tabs", " ": "blanks"}.get(self.sep, repr(self.sep))]
        words += ["row 1 is a header" if self.options.header else "row 1 is values"]
        words += [f"quotes {self.quote}"] if self.quote == "'" else []
        words += [f"{self.comments} lines of comments left out"] if self.comments else []
        words += [str(self.options.encoding)] if self.options.encoding else []
        return ", ".join(words)


def sniff(path: str, options: TextOptions, known: Sequence[str] = ()) -> Dialect:
    """Finds out how a text is written, from what was said of it and from its first rows.

    Of the separators that divide all rows into the same number of fields, it takes the one that leaves most columns of numbers, dates and
    booleans. Row 1 is a header if such a column has another word there, and values if it has one, too; of columns of texts, if their words
    occur nowhere else.

    Args:
        path: The file.
        options: What was said.
        known: Columns that are expected.

    Raises:
        DatasetError: It holds nothing, or nothing says whether row 1 is a header that has other columns than are expected.
        OSError: It cannot be read.
    """
    with _open(path, options) as file:
        head = file.read(_SAMPLE_BYTES)
        if options.encoding is None and head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return sniff(path, replace(options, encoding="utf-16"), known)
        while (more := file.read(_SAMPLE_BYTES if head.count(b"\n") < _WHOLE_ROWS and len(head) < BLOCK_BYTES else 1)) and len(more) > 1:
            head += more
        is_all = not more
    lines = list(io.StringIO(head.decode("utf-8", "replace").removeprefix("\ufeff"), newline=""))
    if not is_all or len(lines) > _SAMPLE_ROWS:
        lines, is_all = lines[: min(_SAMPLE_ROWS, max(1, len(lines) - 1))], False
    marks = _COMMENTS if options.comment is None else ()
    leading = list(takewhile(lambda line: not line.strip(" \r\n") or line.startswith(marks), lines))
    body = [line for line in lines[len(leading) :] if line.strip("\r\n")]
    if not body:
        raise DatasetError(f"{path} holds no row", "leave it out")
    tried = [_Rows(body, sep, is_all=is_all) for sep in (_SEPARATORS if options.sep is None else (options.sep,))]
    if any(rows.sep == "\t" and rows.evenness == 1 for rows in tried):  # blanks are in fields then
        tried = [rows for rows in tried if rows.sep != " "]
    best = max(tried, key=lambda rows: (rows.evenness == 1, rows.num_values, rows.evenness))
    if options.sep is None and best.sep.strip() and best.are_apart:
        spaced = [_Rows(body, sep, is_all=is_all) for sep in (f" {best.sep} ", f"{best.sep} ")]
        spaced = [rows for rows in spaced if rows.evenness == 1 and rows.width == best.width and rows.is_bare]
        if not spaced:
            hint = "pandas.read_csv(path, skipinitialspace=True) reads it, and gnnkit.tables takes the frame"
            raise DatasetError(f"{path}: a blank follows each {best.sep!r}, which is part of texts that are not in quotes", hint)
        best = spaced[0]
    header = _has_header(best, path, known) if options.header is None else options.header
    width = len(best.rows[0])
    if width < best.width:
        hint = "pandas.read_csv(path, skiprows=1, header=None) reads it without row 1, and gnnkit.tables takes the frame"
        raise DatasetError(f"{path}: row 1 has {width} fields, and the others have {best.width}", hint)
    if header and not best.rows[0][0] and 2 < width <= len(best.rows) and best.rows[0][1:] == [row[0] for row in best.rows[1:width]]:
        hint = "gnnkit.tables takes numpy.nonzero(pandas.read_csv(path, index_col=0).to_numpy())"
        raise DatasetError(f"{path} is a matrix, with the names of its columns before its rows", hint)
    names = unlike([name.strip() for name in best.rows[0]]) if header else [f"f{k}" for k in range(width)]
    return Dialect(
        replace(options, header=header, sep=best.sep),
        names,
        len(leading) + (best.first_lines if header else 0),
        sum(line.startswith(marks) for line in leading),
        best.quote,
        best.escape,
        best.blanks,
        frozenset(name for name, words in zip(names, best.columns, strict=False) if any(re.match(PADDED, word) for word in words)),
    )


def unlike(names: Sequence[str]) -> list[str]:
    """The names of columns; those that several have with their number among these: "Account.0", "Account.1"."""
    total, before = Counter(names), Counter[str]()
    found = []
    for name in names:
        found.append(f"{name}.{before[name]}" if total[name] > 1 else name)
        before[name] += 1
    return found


class _Rows:
    """The first rows of a text, divided by a separator.

    Args:
        lines: Its first lines.
        sep: The separator.
        is_all: Whether it has no other lines.
    """

    def __init__(self, lines: Sequence[str], sep: str, *, is_all: bool) -> None:
        text, edge = "".join(lines), re.escape(sep)
        self.sep = sep
        self.blanks = sep == " " and '"' not in text and re.search(r"^[ \t]|[ \t]{2}|\t|[ \t]\r?$", text, re.MULTILINE) is not None
        edit = _edit(sep, blanks=self.blanks)
        # A field that is one ' begins and ends with it, and is not in quotes.
        kinds = (rf"(?:^|{edge})'", rf"'(?={edge}|\r?$)", rf"(?:^|{edge})'(?:[^'\r\n]|'')*'(?={edge}|\r?$)")
        opened, closed, whole = (len(re.findall(found, text, re.MULTILINE)) for found in kinds)
        self.quote = "" if edit else "'" if '"' not in text and opened and opened == closed == whole else '"'
        has_escape = self.quote and re.search(rf"\\{self.quote}(?!{edge}|\r?$)", text, re.MULTILINE)
        self.escape = "\\" if has_escape else ""
        read = csv.reader(
            lines if edit is None else [edit(line.encode()).decode() for line in lines],
            delimiter=_delimiter(sep),
            quotechar=self.quote or None,
            escapechar=self.escape or None,
            doublequote=not self.escape,
            quoting=csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE,
        )
        self.rows: list[list[str]] = []
        # Lines of the first row, whose fields may hold some.
        self.first_lines = 1
        with contextlib.suppress(csv.Error):  # a field longer than any: this is no separator
            for row in read:
                self.first_lines = self.first_lines if self.rows else read.line_num
                self.rows.append(row)
        self.rows = self.rows or [[""]]
        if not is_all and len(self.rows) > 2:  # the last one may be cut
            del self.rows[-1]
        widths = [len(row) for row in self.rows]
        self.width = max(sorted({*(widths[1:] or widths)}), key=widths.count)
        self.evenness = widths.count(self.width) / len(widths) if self.width > 1 else 0.0
        self.num_values = sum(map(_are_values, self.columns))

    @property
    def are_apart(self) -> bool:
        """Whether a blank follows each separator, and some of the fields are texts or in quotes."""
        later = self.columns[1:]
        return any(words and not _are_values(words) for words in later) and all(word.startswith(" ") for words in later for word in words)

    @property
    def is_bare(self) -> bool:
        """Whether no field is quoted or has blanks around it."""
        return all(word == word.strip(' "') for row in self.rows for word in row)

    @property
    def columns(self) -> list[tuple[str, ...]]:
        """The fields of the rows after the first one, by column; those of rows of another width are left out."""
        return list(zip(*(row for row in self.rows[1:] if len(row) == self.width), strict=True)) or [()] * self.width


def _are_values(words: Sequence[str]) -> bool:
    """Whether the fields of a column are numbers, dates, times or booleans, those aside that are missing."""
    found = [word for word in map(str.strip, words) if word.lower() not in _NOTHING]
    return bool(found) and all(map(_VALUE.fullmatch, found))


def _has_header(sample: _Rows, path: str, known: Sequence[str]) -> bool:
    """Whether row 1 names the columns.

    Raises:
        DatasetError: Nothing says it, or things that contradict each other.
    """
    words = [word.strip() for word in sample.rows[0]]
    common = {*words} & {*known}
    if common and (len(common) == len({*known}) or not all(map(_VALUE.fullmatch, common))):
        return True
    is_value = [bool(_VALUE.fullmatch(word)) for word in words]
    told = [word.lower() not in _NOTHING and _are_values(column) for word, column in zip(words, sample.columns, strict=False)]
    if any(column and not value for column, value in zip(told, is_value, strict=False)):
        return True
    elsewhere = {word.strip() for row in sample.rows[1:] for word in row}
    recurring = sorted({word for word in words if word.lower() not in _NOTHING} & elsewhere)
    numbered = [int(word) for word in words if word.isdigit()]
    if not is_value[0] and len(numbered) > 1 and numbered == [numbered[0] + k for k in range(len(numbered))]:
        why = "its numbers follow each other, as those of columns do"
    elif any(is_value) or len(recurring) > 1:
        return False
    elif recurring:
        why = f"{recurring[0]!r} is in other rows, too"
    else:
        why = f"it has none of the columns {list(known)} that came before" if known else ""
    if why:
        raise DatasetError(f"{path}: row 1 is {words}, which may be a header or values: {why}", _SETTLE)
    return True


def _delimiter(sep: str) -> str:
    """The character that the readers of text are given for a separator."""
    return sep if len(sep.encode()) == 1 else _UNIT


def _edit(sep: str, *, blanks: bool) -> Callable[[bytes], bytes] | None:
    """A function that makes one character of each separator, in whole lines; None where it is one."""
    if blanks:
        return lambda text: re.sub(rb"(?m)^ | (?=\r?$)", b"", re.sub(rb"[ \t]+", b" ", text))
    return None if _delimiter(sep) == sep else lambda text: text.replace(sep.encode(), _UNIT.encode())


class _Lines:
    """Edits a stream of bytes line by line, for ``pyarrow.TransformInputStream``; as for Arrow, no line is longer than two blocks.

    Args:
        edit: What is done to whole lines.
    """

    def __init__(self, edit: Callable[[bytes], bytes]) -> None:
        self._edit, self._rest = edit, b""

    def __call__(self, block: Any) -> bytes:
        data = self._rest + bytes(block)
        end = data.rfind(b"\n") + 1 if len(block) else len(data)
        self._rest = data[end:]
        if len(self._rest) > 2 * BLOCK_BYTES:
            raise pa.ArrowInvalid(f"a line has more than {2 * BLOCK_BYTES >> 20} MB")
        return self._edit(data[:end])


class PaddedNumbers:
    """Looks for numbers such as 007 and 0x7 in a stream of bytes, for ``pyarrow.TransformInputStream``, which hands the bytes on.

    Args:
        delimiter: What separates fields.

    Attributes:
        were_seen: Whether there was one, in whatever column.
    """

    def __init__(self, delimiter: str) -> None:
        self.were_seen, self._last, self._delimiter = False, b"\n\n\n", ord(delimiter)
        # What may stand before a number in its field.
        self._edges = np.zeros(256, np.bool_)
        self._edges[[*b" \t\r\n\"'", self._delimiter]] = True

    def __call__(self, block: Any) -> Any:
        """Looks through the next bytes, and returns them."""
        if len(block) and not self.were_seen:
            data = np.frombuffer(block, np.uint8)
            self.were_seen = self._are_in(np.concatenate([np.frombuffer(self._last, np.uint8), data[:3]])) or any(
                # Pieces that the processor's cache holds; each begins with the last bytes of the one before.
                self._are_in(data[start : start + _PIECE_BYTES + 3])
                for start in range(0, len(data), _PIECE_BYTES)
            )
            self._last = (self._last + data[-3:].tobytes())[-3:]
        return block

    def _are_in(self, data: NDArray[np.uint8]) -> bool:
        edge = data < ord("-")
        # A sign or a blank begins a number if it begins a field itself: that of a date with a time does not.
        is_inner = (data == ord("-")) | (data == ord(" "))
        if self._delimiter not in b",\t\x1f":
            edge |= data == self._delimiter
            is_inner &= data != self._delimiter
        begins = edge[:-3] & is_inner[1:-2]
        begins |= edge[1:-2] > is_inner[1:-2]
        begins &= data[2:-1] == ord("0")
        begins &= data[3:] > ord("/")
        places = np.flatnonzero(begins)
        begins_field = self._edges[data[places + 1 - is_inner[places + 1]]] & (data[places + 3] != self._delimiter)
        return bool(begins_field.any())


def _open(path: str, options: TextOptions) -> Any:
    """A stream of a text in UTF-8, without the lines of comments that were told of."""
    packed = next((codec for suffix, codec in PACKED.items() if path.lower().endswith(suffix)), None)
    file = pa.PythonFile(lzma.open(path)) if packed == "" else pa.input_stream(path, compression=packed)  # noqa: SIM115 - the stream closes it
    if options.encoding is not None:
        file = pa.transcoding_input_stream(file, options.encoding, "utf-8")
    if options.comment:
        mark = options.comment.encode()
        pattern = re.compile(rb"(?m)^" + re.escape(mark) + rb"[^\n]*\n?")
        file = pa.TransformInputStream(file, _Lines(lambda text: pattern.sub(b"", text) if mark in text else text))
    return file


@contextlib.contextmanager
def open_lines(path: str) -> Iterator[Iterator[str]]:
    """The lines of a text in UTF-8, for a ``with`` block."""
    with _open(path, AS_TOLD) as file, io.TextIOWrapper(file, "utf-8", "replace") as lines:
        yield lines


def open_text(
    path: str, dialect: Dialect, columns: Sequence[str] | None, types: Mapping[str, pa.DataType], padded: PaddedNumbers | None = None
) -> Any:
    """A reader of a text's rows.

    Args:
        path: The file.
        dialect: How it is written.
        columns: The columns to read; None is all.
        types: ``{column: its type}``; of others the first block tells.
        padded: Looks at what is read.

    Raises:
        pyarrow.ArrowException: It is damaged.
        OSError: It cannot be read.
    """
    options = dialect.options
    file = _open(path, options)
    if (edit := _edit(dialect.sep, blanks=dialect.blanks)) is not None:
        file = pa.TransformInputStream(file, _Lines(edit))
    if padded is not None:
        file = pa.TransformInputStream(file, padded)
    return arrow_csv.open_csv(
        file,
        arrow_csv.ReadOptions(block_size=BLOCK_BYTES, skip_rows=dialect.skipped, column_names=dialect.names),
        arrow_csv.ParseOptions(
            delimiter=dialect.delimiter,
            quote_char=dialect.quote or False,
            double_quote=not dialect.escape,
            escape_char=dialect.escape or False,
            newlines_in_values=True,
        ),
        arrow_csv.ConvertOptions(
            # Narrow numbers are read wide: text beyond their range would be infinite without a word.
            # Times may be written as numbers: those are read as such, and converted afterwards.
            column_types={
                name: pa.float64() if pa.types.is_floating(kind) else kind for name, kind in types.items() if not pa.types.is_temporal(kind)
            },
            null_values=["", *options.null],
            strings_can_be_null=True,
            include_columns=columns,
            decimal_point=options.decimal,
        ),
    )

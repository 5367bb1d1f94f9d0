"""Formats of files of tables: their base class, and one that is no text, Parquet or Arrow: Matrix Market."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from gnnkit.datasets.tables.texts import PACKED, Dialect, TextOptions, open_lines, open_text


@dataclass
class FileRead:
    """A read of some columns of a file.

    Attributes:
        path: The file.
        columns: The columns.
        size: Rows of a batch, roughly.
        groups: The numbers of the row groups to read, of formats that have some; None is all.
        where: The place in the file that is read right now, for errors: ", row group 3". Formats say it before they read on.
    """

    path: str
    columns: list[str]
    size: int
    groups: Sequence[int] | None
    where: str = ""


class TableFormat(ABC):
    """A format of files. It is known by their suffixes, and named in ``FORMATS`` of ``gnnkit.datasets.tables.reading``.

    Of a file that is damaged, methods raise ``pyarrow.ArrowException``, ``OSError`` or ``ValueError``, which readers make an error of that
    names the file.

    Attributes:
        suffixes: How the names of files end, in lower case.
    """

    suffixes: tuple[str, ...]

    def is_of(self, name: str) -> bool:
        """Whether a file of this name, in lower case, is of the format."""
        return name.endswith(self.suffixes)

    @abstractmethod
    def schema(self, path: str, table: Any) -> pa.Schema:
        """Reads the columns of a file, of the ``SourceTable`` ``table``, and their types."""

    @abstractmethod
    def batches(self, read: FileRead, table: Any) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a file, front to back, with the columns of ``read`` at least."""


_BANNER = re.compile(r"(?i)%%MatrixMarket\s+matrix\s+coordinate\s+(pattern|integer|real)\s+(general|symmetric|skew-symmetric)\s*")


class MatrixMarket(TableFormat):
    """Sparse matrices as SuiteSparse and SciPy write them: columns "row" and "col", counted from 0, and "value" where entries have one.

    Of a symmetric matrix, whose file has one half, each entry outside the diagonal is followed by its mirror image.
    """

    suffixes = tuple(f".mtx{packed}" for packed in ("", *PACKED))

    @override
    def schema(self, path: str, table: Any) -> pa.Schema:
        field, _, _, _ = self._header(path)
        values = {"integer": pa.int64(), "real": pa.float64()}.get(field)
        return pa.schema([("row", pa.int64()), ("col", pa.int64()), *([] if values is None else [("value", values)])])

    @override
    def batches(self, read: FileRead, table: Any) -> Iterator[pa.RecordBatch]:
        _, symmetry, sizes, skipped = self._header(read.path)
        schema = self.schema(read.path, table)
        dialect = Dialect(TextOptions(header=False, sep=" "), schema.names, skipped, skipped, "", "", blanks=True)
        entries = 0
        with open_text(read.path, dialect, None, dict(zip(schema.names, schema.types, strict=True))) as reader:
            for batch in reader:
                read.where = f", entry {entries} and those after it"
                entries += batch.num_rows
                ends = [pc.subtract(batch.column(k), 1) for k in (0, 1)]
                if not all(np.all((np.asarray(end) >= 0) & (np.asarray(end) < size)) for end, size in zip(ends, sizes, strict=False)):
                    raise ValueError(f"one is outside the {sizes[0]} rows and {sizes[1]} columns")
                yield self._mirrored(pa.record_batch([*ends, *batch.columns[2:]], schema), symmetry)
        read.where = ""
        if entries != sizes[2]:
            raise ValueError(f"it has {entries} entries, and says that it has {sizes[2]}")

    @staticmethod
    def _mirrored(batch: pa.RecordBatch, symmetry: str) -> pa.RecordBatch:
        if symmetry == "general":
            return batch
        row, col, *values = batch.columns
        mirror = pa.record_batch([col, row, *(pc.negate(v) if symmetry == "skew-symmetric" else v for v in values)], batch.schema)
        order = np.arange(2 * len(row)).reshape(2, -1).T
        is_other = np.asarray(row) != np.asarray(col)
        order = order[np.stack([np.ones_like(is_other), is_other], axis=1)]
        return pa.Table.from_batches([batch, mirror]).take(order).combine_chunks().to_batches()[0] if len(order) else batch

    @staticmethod
    def _header(path: str) -> tuple[str, str, list[int], int]:
        """Reads what values entries have, the symmetry, the numbers of rows, columns and entries, and how many lines say so."""
        with open_lines(path) as lines:
            banner = next(lines, "")
            if (found := _BANNER.fullmatch(banner)) is None:
                raise ValueError(f"it begins with {banner.strip()[:80]!r}; what is read are coordinates of patterns, integers and reals")
            for number, line in enumerate(lines, 2):
                if line.strip() and not line.startswith("%"):
                    sizes = [*map(int, line.split())]
                    if len(sizes) != 3:
                        raise ValueError(f"line {number} is no size: {line.strip()[:80]!r}")
                    return found[1].lower(), found[2].lower(), sizes, number
        raise ValueError("it has no size")

"""The way in which rows are copied on this machine: measured once, and kept beside the compiled kernels. Batches do not depend on it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gnnkit.files import read_json, write_whole
from gnnkit.kernels.folder import kernel_cache_root
from gnnkit.units import format_bytes, format_rate
from gnnkit.version import __version__

# Rows that nothing is gained by streaming.
NEVER = 1 << 62
# What tells processors from each other, of those lines of /proc/cpuinfo that a system has.
_OF_PROCESSOR = ("vendor_id", "model name", "cpu family", "model", "stepping", "cache size", "CPU implementer", "CPU part")
_MOST_BYTES = 1 << 16
# Where kernels look for it in the table of a ``ReadAhead``: see ``gnnkit.kernels.native``, which brings the compiler.
_PLACE = slice(4, 9)


@dataclass(frozen=True)
class RowCopies:
    """The way in which rows are copied, and what it was chosen from.

    Attributes:
        vectors: Whether rows of two to eight lines of the cache are copied by vectors; otherwise by ``memcpy``, as all others are.
        rows_ahead: Rows that are asked of memory ahead of the one that is copied, at least 1.
        streamed_from: Bytes of rows from which on they are written past the caches.
        into_first: Whether rows are asked for into the first cache; otherwise into the second one, for whose lines many processors can wait
            in larger numbers. Where large batches are written past the caches this is said of them: rows of others go into the first one.
        lines_into_first: The same of single lines: of neighbours, of nodes' numbers, of labels.
        bytes_per_s: Bytes that were copied a second in each of the ways that were tried; empty where nothing was measured.
    """

    vectors: bool = True
    rows_ahead: int = 16
    streamed_from: int = 8 << 20
    into_first: bool = True
    lines_into_first: bool = True
    bytes_per_s: Mapping[str, float] = field(default_factory=dict)

    def entered(self, table: NDArray[np.int64]) -> NDArray[np.int64]:
        """Enters it into the table of a ``ReadAhead``, which is returned."""
        table[_PLACE] = self.vectors, self.rows_ahead, self.streamed_from, self.into_first, self.lines_into_first
        return table

    def __str__(self) -> str:
        """The choice in words."""
        streams = self.streamed_from != NEVER
        streamed = f"past the caches from {format_bytes(self.streamed_from, 1024)} on" if streams else "kept in caches"
        rows, lines = ("first" if is_first else "second" for is_first in (self.into_first, self.lines_into_first))
        way = f"{'vectors' if self.vectors else 'memcpy'}, {self.rows_ahead} rows asked for ahead into the {rows} cache, {streamed}"
        return f"{way}; single lines into the {lines} cache"

    @property
    def reason(self) -> str:
        """The figures that it was chosen from, in words."""
        found = ", ".join(f"{way} {format_rate(rate, 'B')}" for way, rate in self.bytes_per_s.items())
        return found or "not measured on this machine yet"


def processor() -> str:
    """The processor's name, with what else tells it from others."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n")[0].splitlines():
            name, _, value = (part.strip() for part in line.partition(":"))
            if name in _OF_PROCESSOR:
                found[name] = value
    return ", ".join(found.values()) or platform.processor() or platform.machine()


def place_of_row_copies() -> Path:
    """The file in which this processor's and this version's choice is kept."""
    name = hashlib.sha256(f"{processor()}, {__version__}".encode()).hexdigest()[:16]
    return kernel_cache_root() / f"row-copies-{name}.json"


def kept_row_copies() -> RowCopies | None:
    """Reads the choice that is kept for this machine; None where there is none, or none that can be read."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        kept = read_json(place_of_row_copies(), _MOST_BYTES)
        rates = {str(way): float(rate) for way, rate in kept["bytes_per_s"].items()}
        vectors, into_first, lines_into_first = (bool(kept[name]) for name in ("vectors", "into_first", "lines_into_first"))
        found = RowCopies(vectors, int(kept["rows_ahead"]), int(kept["streamed_from"]), into_first, lines_into_first, rates)
        if 1 <= found.rows_ahead <= 64 and found.streamed_from > 0:
            return found
    return None


def row_copies() -> RowCopies:
    """Returns the choice for this machine; the usual one as long as nothing was measured here."""
    return kept_row_copies() or RowCopies()


def keep_row_copies(choice: RowCopies) -> None:
    """Keeps a choice for this machine.

    Raises:
        OSError: It cannot be written.
    """
    write_whole(place_of_row_copies(), json.dumps({"processor": processor(), **asdict(choice)}))

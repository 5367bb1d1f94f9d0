"""The open files of a store, and looking through them: that their bytes are those written, and that readers can follow every number.

Checksums find damage. The other checks hold for any bytes at all: numbers that pass them cannot make a reader read or write out of bounds,
even if the checksums were recomputed. Samplers look at what they draw, and so read a store of any size at once; a reader of whole files
has these looked through first, once for each file that is opened.
"""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.events import EventSink, Stage, ignore_events
from gnnkit.schema import EdgeType, NodeType
from gnnkit.storage.files import FileIdentity, FileSpec, damaged
from gnnkit.storage.layout import EDGE_FILES, NODE_FILES, array_file, book_file
from gnnkit.storage.link_splits import id_rows
from gnnkit.storage.manifest import Manifest
from gnnkit.storage.staging import default_threads

_STEP = 1 << 20
_STEP_BYTES = 8 << 20
# Files that were looked through and found right, each with what its manifest says of it.
_checked: set[tuple[FileIdentity, str, int]] = set()


@dataclass(frozen=True)
class OpenFiles:
    """The files of a store that are open.

    Attributes:
        path: The store's folder.
        manifest: Its manifest.
        parts: The parts that are open.
        arrays: ``{path relative to the store: the mapped file}``.
        identities: ``{path relative to the store: what was opened}``.
    """

    path: Path
    manifest: Manifest
    parts: tuple[int, ...]
    arrays: Mapping[str, NDArray[Any]]
    identities: Mapping[str, FileIdentity]

    def check(self, names: Iterable[str], events: EventSink = ignore_events, *, again: bool = False) -> None:
        """Looks files through: their checksums, and that readers may follow every number in them.

        Args:
            names: The files.
            events: Receives the stage "verify", in bytes, where there is something to do.
            again: Whether files are looked through that were found right before.

        Raises:
            StoreError: Something differs; names the file and what is wrong.
        """
        pending = {name: None for name in names if again or self._key(name) not in _checked}
        if not pending:
            return
        total = float(sum(self.manifest.files[name].size for name in pending))
        stage = Stage(events, "verify", label=self.manifest.name, total=total, unit="B")
        with stage, ThreadPoolExecutor(default_threads(), "gnnkit-verify") as pool:
            for name, _ in zip(pending, pool.map(self._check_sum, pending), strict=True):
                stage.advance(self.manifest.files[name].size)
            checks = [check for name, check in self._contents.items() if name in pending]
            list(pool.map(lambda check: check(), checks))
        _checked.update(map(self._key, pending))

    def check_types(self, types: Iterable[NodeType | EdgeType]) -> None:
        """Does so with the offsets and the ids of node types and edge types; see ``check``."""
        names: list[str] = []
        for each in types:
            names += [book_file(each)] if isinstance(each, str) else []
            files = NODE_FILES if isinstance(each, str) else EDGE_FILES[:3]
            names += [array_file(part, each, name) for part in self.parts for name in files]
        self.check(name for name in names if name in self.arrays)

    def _key(self, name: str) -> tuple[FileIdentity, str, int]:
        return self.identities[name], self.manifest.fingerprint, self.manifest.files[name].crc32

    def _check_sum(self, name: str) -> None:
        entry = self.manifest.files[name]
        crc, content = zlib.crc32(FileSpec(np.dtype(entry.dtype), entry.shape).header), self.arrays[name].reshape(-1).view(np.uint8)
        for first in range(0, len(content), _STEP_BYTES):
            crc = zlib.crc32(content[first : first + _STEP_BYTES].data, crc)
        if crc != entry.crc32:
            raise damaged(self.path, f"{name} was changed: its CRC-32 is {crc:08x}, it was written with {entry.crc32:08x}")

    @cached_property
    def _contents(self) -> dict[str, Callable[[], None]]:
        """The checks of what is in files, by file, those first that others build on; any content of files without one is right."""
        checks: Mapping[str, Callable[..., None]] = {
            "ids": self._check_range,
            "ascending_ids": self._check_ascending,
            "offsets": self._check_offsets,
            "of_nodes": self._check_order,
            "book": self._check_book,
            "numbers": self._check_numbers,
            "links": self._check_links,
            "texts": self._check_texts,
            "ascending": self._check_order,
        }
        specs = self.manifest.file_specs().items()
        return {name: partial(checks[spec.holds[0]], name, *spec.holds[1:]) for name, spec in specs if spec.holds}

    def _check_texts(self, name: str, ends: str) -> None:
        """All of it is UTF-8, and no text ends within a character."""
        text, end, decoder = self.arrays[name], self.arrays[ends], codecs.getincrementaldecoder("utf-8")()
        try:
            for first in range(0, len(text), _STEP_BYTES):
                decoder.decode(text[first : first + _STEP_BYTES].data)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            raise damaged(self.path, f"{name} is no text ({error.reason})") from error
        for first in range(0, len(end), _STEP):
            starts = end[first : first + _STEP]
            inner = starts[(starts >= 0) & (starts < len(text))]
            if ((text[inner] & 0xC0) == 0x80).any():
                raise damaged(self.path, f"{name} has a text that ends within a character")

    def _check_links(self, file: str, edge_type: EdgeType, name: str) -> None:
        for ids, count in id_rows(self.manifest.schema, edge_type, name, self.arrays[file]):
            self._check_ids(file, ids, count)

    def _check_offsets(self, name: str, last: int) -> None:
        self._check_order(name)
        offsets = self.arrays[name]
        if offsets[0] != 0 or offsets[-1] != last:
            raise damaged(self.path, f"{name} does not go from 0 to {last}")

    def _check_order(self, name: str, indptr: str | None = None) -> None:
        """Checks that values never decrease: at all, or within the edges of a node, each of which begins at an offset."""
        values, offsets = self.arrays[name], None if indptr is None else self.arrays[indptr]
        for first in range(0, len(values) - 1, _STEP):
            piece = values[first : first + _STEP + 1]
            falls = np.flatnonzero(piece[1:] < piece[:-1]) + first + 1
            if len(falls) and offsets is None:
                raise damaged(self.path, f"{name} decreases")
            if offsets is not None and not np.array_equal(offsets[np.minimum(np.searchsorted(offsets, falls), len(offsets) - 1)], falls):
                raise damaged(self.path, f"{name} decreases within a node")

    def _check_book(self, name: str) -> None:
        """Store ids are those of all nodes, each once."""
        book = self.arrays[name]
        self._check_range(name, len(book))
        found = np.zeros(len(book), np.bool_)
        for first in range(0, len(book), _STEP):
            found[book[first : first + _STEP]] = True
        if not found.all():
            raise damaged(self.path, f"{name} gives {int(np.flatnonzero(~found)[0])} to no node, and another number to two")

    def _check_numbers(self, name: str, book_name: str, low: int, by_hotness: bool) -> None:
        """The dataset's ids of a part are those that the book gives its numbers to."""
        ids, book = self.arrays[name], self.arrays[book_name]
        (self._check_range if by_hotness else self._check_ascending)(name, len(book))
        for first in range(0, len(ids), _STEP):
            piece = ids[first : first + _STEP]
            if not np.array_equal(book[piece], np.arange(first, first + len(piece)) + low):
                raise damaged(self.path, f"{name} and {book_name} contradict each other")

    def _check_ascending(self, name: str, count: int) -> None:
        self._check_range(name, count)
        ids = self.arrays[name]
        if (ids[1:] <= ids[:-1]).any():
            raise damaged(self.path, f"{name} does not ascend")

    def _check_range(self, name: str, count: int) -> None:
        values = self.arrays[name]
        for first in range(0, len(values), _STEP):
            self._check_ids(name, values[first : first + _STEP], count)

    def _check_ids(self, name: str, ids: NDArray[Any], count: int) -> None:
        if not 0 <= int(ids.min()) <= int(ids.max()) < count:
            wrong = int(ids[(ids < 0) | (ids >= count)][0])
            raise damaged(self.path, f"{name} holds {wrong}, which is not from 0 to {count - 1}")

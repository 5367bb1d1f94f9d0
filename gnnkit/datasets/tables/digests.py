"""Digests of arrays: one can be gone on with, and those of pieces be put together, without what they were taken of."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError

# Few enough that what is left of the last chunk fits a manifest, enough that Python's share of the work is small.
_CHUNK_BYTES = 4096
# Digests of chunks that are put into the chain at once.
_GROUP = 64
_DIGEST_BYTES = hashlib.sha256().digest_size


class PieceDigest:
    """The digests of the chunks of a piece of an array, for the ``ChainedDigest`` of the whole; chunks are those of the whole.

    Args:
        start: Bytes of the array before the piece.

    Attributes:
        head: Bytes before the first chunk that begins in the piece.
        chunks: The digests of all chunks that lie in it, one after the other.
        tail: Bytes after the last one.
    """

    def __init__(self, start: int = 0) -> None:
        self._missing = -start % _CHUNK_BYTES
        self.head, self.chunks, self.tail = b"", bytearray(), b""

    def update(self, rows: NDArray[Any]) -> None:
        """Adds the bytes of an array."""
        if not rows.size:
            return
        data = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
        if len(self.head) < self._missing:
            own = min(len(data), self._missing - len(self.head))
            self.head += data[:own]
            data = data[own:]
        begun = min(len(data), -len(self.tail) % _CHUNK_BYTES) if self.tail else 0
        self.tail += data[:begun]
        if len(self.tail) == _CHUNK_BYTES:
            self.chunks += hashlib.sha256(self.tail).digest()
            self.tail = b""
        whole = begun + (len(data) - begun) // _CHUNK_BYTES * _CHUNK_BYTES
        sha256 = hashlib.sha256
        self.chunks += b"".join([sha256(data[first : first + _CHUNK_BYTES]).digest() for first in range(begun, whole, _CHUNK_BYTES)])
        self.tail += data[whole:]


class ChainedDigest:
    """A chain of SHA-256 over the digests of chunks of 4096 bytes, 64 of them at a time, each time with the digest of those before.

    Args:
        state: The ``state`` of a digest that is gone on with; None begins anew.

    Raises:
        PlanError: The state is of a gnnkit that took other digests.
    """

    def __init__(self, state: Mapping[str, str] | None = None) -> None:
        if state is not None and "chunks" not in state:
            text = "the store was made by an older gnnkit, whose digests of tables were others, and cannot be appended to"
            raise PlanError(text, "make a store of the whole tables: gnnkit.tables(...)")
        self._chain = bytes.fromhex(state["chain"]) if state else bytes(_DIGEST_BYTES)
        self._chunks = bytearray(base64.b64decode(state["chunks"]) if state else b"")
        self._rest = base64.b64decode(state["rest"]) if state else b""

    def update(self, rows: NDArray[Any]) -> None:
        """Adds the bytes of an array."""
        piece = PieceDigest(len(self._rest))
        piece.update(rows)
        self.extend(piece)

    def extend(self, piece: PieceDigest) -> None:
        """Adds the piece that begins where this digest ends."""
        self._rest += piece.head
        if len(self._rest) == _CHUNK_BYTES:
            self._chunks += hashlib.sha256(self._rest).digest()
            self._rest = b""
        self._chunks += piece.chunks
        self._rest += piece.tail
        size = _GROUP * _DIGEST_BYTES
        whole = len(self._chunks) // size * size
        for first in range(0, whole, size):
            self._chain = hashlib.sha256(self._chain + self._chunks[first : first + size]).digest()
        del self._chunks[:whole]

    def hexdigest(self) -> str:
        """The digest of all bytes so far."""
        return hashlib.sha256(b"".join((self._chain, self._chunks, self._rest))).hexdigest()

    def state(self) -> dict[str, str]:
        """All that is needed to go on, as JSON."""
        chunks, rest = (base64.b64encode(part).decode() for part in (self._chunks, self._rest))
        return {"chain": self._chain.hex(), "chunks": chunks, "rest": rest}

"""Digests of arrays that grow: one that was taken can be gone on with, without what it was taken of."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Few enough that what is left of the last chunk fits a manifest, enough that Python's share of the work is small.
_CHUNK_BYTES = 4096


class ChainedDigest:
    """A chain of SHA-256 over chunks of 4096 bytes, each with the digest of those before it.

    Args:
        state: The ``state`` of a digest that is gone on with; None begins anew.
    """

    def __init__(self, state: Mapping[str, str] | None = None) -> None:
        self._chain = bytes.fromhex(state["chain"]) if state else bytes(hashlib.sha256().digest_size)
        self._rest = base64.b64decode(state["rest"]) if state else b""

    def update(self, rows: NDArray[Any]) -> None:
        """Adds the bytes of an array."""
        if not rows.size:
            return
        data = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
        begun = min(len(data), -len(self._rest) % _CHUNK_BYTES) if self._rest else 0
        self._rest += data[:begun]
        if len(self._rest) == _CHUNK_BYTES:
            self._add(self._rest)
            self._rest = b""
        whole = begun + (len(data) - begun) // _CHUNK_BYTES * _CHUNK_BYTES
        for first in range(begun, whole, _CHUNK_BYTES):
            self._add(data[first : first + _CHUNK_BYTES])
        self._rest += data[whole:]

    def hexdigest(self) -> str:
        """The digest of all bytes so far."""
        return hashlib.sha256(self._chain + self._rest).hexdigest()

    def state(self) -> dict[str, str]:
        """All that is needed to go on, as JSON."""
        return {"chain": self._chain.hex(), "rest": base64.b64encode(self._rest).decode()}

    def _add(self, chunk: bytes | memoryview) -> None:
        # One call for both, so that threads that take digests at the same time wait less for each other.
        self._chain = hashlib.sha256(b"".join((self._chain, chunk))).digest()

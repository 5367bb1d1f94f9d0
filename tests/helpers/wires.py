"""The wire between hosts, spoken by tests: what clients say at the gate, and values as they come out on the other side."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import numpy as np

from gnnkit.cluster.network.codec import PROTOCOL_VERSION, from_pieces, to_pieces


def _proof(token: str, purpose: str) -> bytes:
    return hmac.new(token.encode(), purpose.encode(), hashlib.sha256).hexdigest().encode()


def first_line(token: str) -> bytes:
    """What a client says before encryption begins."""
    return b"gnnkit-gate " + _proof(token, "gnnkit gate") + b"\n"


def second_line(token: str, name: str) -> bytes:
    """What it says behind it, with its name."""
    return b"gnnkit-wire " + _proof(token, "gnnkit wire") + b" " + name.encode() + b"\n"


def packed(value: Any) -> tuple[bytes, bytes]:
    """The text and the block that a value travels as."""
    text, pieces = to_pieces(value)
    return text, b"".join(pieces)


def unpacked(text: bytes, block: bytes) -> Any:
    """The value of a text and a block."""
    return from_pieces(text, np.frombuffer(bytearray(block), np.uint8))


def sent(value: Any) -> Any:
    """A value as it comes out on another host."""
    return unpacked(*packed(value))


def asked(store: Any, **words: Any) -> dict[str, Any]:
    """What is asked about a store, with the version that this gnnkit speaks."""
    return {"version": PROTOCOL_VERSION, "fingerprint": store.fingerprint, **words}

"""The wire between hosts, spoken by tests: what clients say at the gate, and values as they come out on the other side."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

import numpy as np

from gnnkit.cluster.network.codec import PROTOCOL_VERSION, from_pieces, to_pieces
from gnnkit.cluster.network.wire import Request


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


class _Named:
    """A request that the table need not have."""

    def __init__(self, name: str) -> None:
        self.name = name

    def ready(self, args: Mapping[str, Any], fingerprint: str | None, timeout_s: float) -> Request:
        return Request.of(self.name, args, fingerprint)


def ask_by_name(client: Any, name: str, args: Mapping[str, Any], timeout_s: float) -> Any:
    """Has a ``ServiceClient`` ask for something by any name."""
    return client.ask(_Named(name), timeout_s, **args)

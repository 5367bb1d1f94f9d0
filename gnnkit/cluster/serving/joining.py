"""Joining servers of other hosts: the trainer's side."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnkit.cluster.leases import CLIENT_PREFIX
from gnnkit.cluster.serving.server_proxy import JoinedServers, ServerProxy
from gnnkit.errors import PlanError
from gnnkit.events import EventSink
from gnnkit.files import read_bounded
from gnnkit.storage.catalog import default_root

# A bundle of every issuer that a system knows is a quarter of this.
_MOST_PEM_BYTES = 1 << 20


@dataclass(frozen=True)
class Servers:
    """Servers of other hosts, and what it takes to join them.

    Attributes:
        addresses: Where they listen; the first is where they meet.
        token: What they expect.
        ca: See ``connect``.
        client: This trainer's id.
        join_timeout_s: Seconds to wait for all of them.
        log_dir: Folder for logs; None: see ``runs_root``.
    """

    addresses: tuple[str, ...]
    token: str
    ca: str | None
    client: str
    join_timeout_s: float
    log_dir: str | None = None

    def __repr__(self) -> str:
        return f"Servers({', '.join(self.addresses)})"  # without the token

    def proxy(self, *, stays: bool = True) -> ServerProxy:
        """A proxy to them.

        Args:
            stays: See ``ServerProxy``.

        Raises:
            PlanError: See ``ServerProxy``.
        """
        return ServerProxy(self.addresses, self.token, self.ca, self.client, self.log_dir, stays=stays)


# What a loader that is being made has just learned, and when, for the stream that it is about to open. Servers may be elsewhere soon.
_known: dict[Servers, tuple[JoinedServers, float]] = {}
_FRESH_S = 5.0
_lock = threading.Lock()


def look(servers: Servers, events: EventSink) -> JoinedServers:
    """Joins servers to learn of their store; the next ``join`` of the same ones need not ask again.

    Raises:
        GnnkitError: See ``ServerProxy.join``.
    """
    joined = _join(servers, events)
    with _lock:
        _known[servers] = joined, time.monotonic()
    return joined


def join(servers: Servers, events: EventSink) -> JoinedServers:
    """Waits until every server is there; what it learns is as of now, or of the ``look`` just before it.

    Raises:
        GnnkitError: See ``ServerProxy.join``.
    """
    with _lock:
        joined, learned = _known.pop(servers, (None, 0.0))
    return _join(servers, events) if joined is None or time.monotonic() - learned > _FRESH_S else joined


def _join(servers: Servers, events: EventSink) -> JoinedServers:
    # Not counted as a client: servers that end with the last one must not see it leave before its receiving process is there.
    with servers.proxy(stays=False) as proxy:
        return proxy.join(servers.join_timeout_s, events)


def receiver_setup(joined: JoinedServers, servers: Servers, num_parts: int, again: bool) -> dict[str, Any]:
    """Returns the facts that a receiving process needs about the servers; see ``gnnkit.cluster.receiving``.

    Args:
        joined: The servers.
        servers: What it takes to join them.
        num_parts: Parts of the store.
        again: Whether a server that is gone is waited for.
    """
    return {
        "servers": {str(s.rank): {"address": s.address, "parts": list(joined.parts_of(s.rank, num_parts))} for s in joined.servers},
        "token": servers.token,
        "ca": servers.ca,
        "client": f"{CLIENT_PREFIX}{servers.client}",
        "again": again,
    }


def outlines_folder() -> Path:
    """Returns the folder of outlines of stores on other hosts, which lie there by fingerprint."""
    return default_root() / "outlines"


def read_ca(path: str | None) -> str | None:
    """The certificates in a PEM file; None for None.

    Raises:
        PlanError: It cannot be read, or holds none.
    """
    if path is None:
        return None
    text = read_pem(path, "tls_ca")
    if "BEGIN CERTIFICATE" not in text:
        raise PlanError(f"tls_ca={path!r} holds no certificate", "give the PEM file of the servers' certificate, or of its issuer")
    return text


def read_pem(path: str, word: str) -> str:
    """A PEM file.

    Args:
        path: The file.
        word: The option that names it.

    Raises:
        PlanError: It cannot be read.
    """
    try:
        return read_bounded(Path(path).expanduser(), _MOST_PEM_BYTES).decode("ascii")
    except (OSError, ValueError) as error:
        raise PlanError(f"{word}={str(path)!r} cannot be read: {error}", "give a PEM file") from error

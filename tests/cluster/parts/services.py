"""Part services as processes, and what asks them."""

from __future__ import annotations

import contextlib
import shutil
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from gnnkit import Store
from gnnkit.cluster.worker.owners import Peer, RemoteOwners
from gnnkit.runtime.entry import Vitals
from gnnkit.runtime.supervisor import ChildProcess, SupervisorOptions, end_all
from tests.cluster.parts.several_hosts import sampler_of_host
from tests.cluster.serving.setups import refusal
from tests.helpers.wires import first_line, packed, second_line

TOKEN = "a token of the tests"


def staged(whole: Store, folder: Path, parts: tuple[int, ...]) -> Store:
    """A copy of a store as a host with some of its parts has it."""
    others = {f"part{part}" for part in range(whole.num_parts) if part not in parts}
    shutil.copytree(whole.path, folder, ignore=lambda _, names: [name for name in names if name in others])
    return Store.open(folder, parts)


class Service:
    """A part service of a store's open parts; a context manager.

    Attributes:
        port: Its port.
    """

    def __init__(self, store: Store, folder: Path, *, port: int = 0, ip: str = "127.0.0.1", shared: Any | None = None) -> None:
        self.store, self.ip = store, ip
        self._vitals = Vitals.create(1)
        folder.mkdir(exist_ok=True)
        options = SupervisorOptions(1, 1, module="gnnkit.cluster.parts")
        self.child = ChildProcess(0, folder / f"service-{time.monotonic_ns()}.log", self._vitals.block.fd, options)
        self.child.wire.send(
            "setup",
            () if shared is None else (shared.block.fd,),
            store=str(store.path),
            fingerprint=store.fingerprint,
            held={"parts": store.local_parts, "whole_structure": False},
            ip=ip,
            port=port,
            token=TOKEN,
            graph=None if shared is None else shared.description,
        )
        try:
            self.port = self._ready()
        except BaseException:
            self.end()
            raise

    def _ready(self) -> int:
        deadline = time.monotonic() + 120
        while (message := self.child.wire.receive()) is None:
            assert time.monotonic() < deadline, "the service does not start"
            self.child.wire.wait(1)
        if message.kind == "failed":
            raise refusal(message, "failed")
        assert message.kind == "ready"
        return int(message.body["port"])

    @property
    def peer(self) -> Peer:
        """The service as others know it."""
        return Peer(f"{self.ip}:{self.port}", self.store.local_parts)

    def end(self) -> None:
        """Ends it, whatever it does."""
        end_all([self.child])
        self.child.wire.close()

    def __enter__(self) -> Service:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.end()


def owners_of(store: Store, peers: Mapping[int, Peer], **options: Any) -> RemoteOwners:
    """Connections to services."""
    arrays = store.arrays()
    bounds = [arrays.node_bounds[t] for t in arrays.schema.node_types] + [arrays.edge_bounds[t] for t in arrays.schema.edge_types]
    options = {"token": TOKEN, "fingerprint": store.fingerprint, "timeout_s": 60.0, "at_once": 8, **options}
    return RemoteOwners(peers, num_rows=[int(ends[-1]) for ends in bounds], **options)


def sampler_over(store: Store, here: int, owners: RemoteOwners, peers: Mapping[int, Peer], sampling: Any) -> Any:
    """A sampler of the host ``here``, whose store holds its parts only."""
    return sampler_of_host(store, here, {host: peer.parts for host, peer in peers.items()}, sampling, owners)


# The head of a message between hosts: its kind, the bytes of its text and those of its block.
HEAD = struct.Struct("<B3xIQ")
CALL, VALUE, LAST, END, ERROR, BEAT, BLOCK = range(1, 8)


def said_of(name: Any, args: Any) -> tuple[bytes, bytes]:
    """The text and the block of a request."""
    return packed({"name": name, "args": args})


class Speaker:
    """A connection of a token's holder, who says what he likes; a context manager.

    Attributes:
        end: The connection.
    """

    def __init__(self, address: str, token: str = TOKEN, name: str = "a test") -> None:
        host, _, port = address.rpartition(":")
        self.end = socket.create_connection((host, int(port)), timeout=60)
        self.end.sendall(first_line(token) + second_line(token, name))
        assert self._take(16) == b"welcome\n" * 2

    def say(self, text: bytes, block: bytes = b"", kind: int = CALL) -> None:
        """Sends a message."""
        self.end.sendall(HEAD.pack(kind, len(text), len(block)) + text + block)

    def ask(self, name: Any, args: Any) -> tuple[int, bytes, bytes]:
        """Sends a request; the last message of its answer."""
        self.say(*said_of(name, args))
        return self.last()

    def last(self) -> tuple[int, bytes, bytes]:
        """The last message of an answer: its kind, text and block."""
        while True:
            kind, text_nbytes, block_nbytes = HEAD.unpack(self._take(HEAD.size))
            text, block = self._take(text_nbytes), self._take(block_nbytes)
            if kind not in (BEAT, VALUE):
                return kind, text, block

    def is_closed(self) -> bool:
        """Waits for the other side to say something; whether it has ended the connection instead."""
        try:
            return self.end.recv(1) == b""
        except ConnectionError:
            return True

    def _take(self, count: int) -> bytes:
        said = b""
        while len(said) < count:
            more = self.end.recv(count - len(said))
            if not more:
                raise EOFError
            said += more
        return said

    def __enter__(self) -> Speaker:
        return self

    def __exit__(self, *_: object) -> None:
        self.end.close()


def told(address: str, said: bytes) -> bytes:
    """Everything that somebody is told who connects and says something, until the connection is ended."""
    host, _, port = address.rpartition(":")
    heard = b""
    with socket.create_connection((host, int(port)), timeout=60) as stranger, contextlib.suppress(ConnectionError):
        stranger.sendall(said)
        while more := stranger.recv(4096):
            heard += more
    return heard

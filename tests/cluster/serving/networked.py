"""Servers that listen on addresses: two hosts on one machine, each with the files of its own part and an address of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from gnnkit import Store
from gnnkit.cluster.network_child.client import NetworkChild, Servers
from gnnkit.cluster.serving.fleet import ServerFleet
from gnnkit.cluster.serving.spec import ServerSpec
from tests.cluster.hosts.setups import stage
from tests.helpers.ports import free_port

TOKEN = "5eecre7-0f-these-tests-0nly"
HOSTS = ("127.0.0.1", "127.0.0.2")
READY_S = 120.0


def serve(store: Path, fingerprint: str, **options: Any) -> ServerFleet:
    """Starts servers."""
    return ServerFleet(ServerSpec(str(store), fingerprint, **{"token": TOKEN, "join_timeout_s": READY_S, **options}))


@dataclass(frozen=True)
class TwoHosts:
    """A server on each of two hosts.

    Attributes:
        store: The whole store, which neither of them has.
        fleets: Who has started them.
        address: Where they meet.
    """

    store: Store
    fleets: tuple[ServerFleet, ServerFleet]
    address: str

    def pids(self) -> list[int]:
        """The servers' processes."""
        return [fleet.status()["servers"][0]["pid"] for fleet in self.fleets]

    def kill(self, rank: int) -> None:
        """Kills a server."""
        os.kill(self.pids()[rank], signal.SIGKILL)

    def joining(self, token: str = TOKEN, timeout_s: float = READY_S, client: str = "client-tests", stays: bool = True) -> NetworkChild:
        """A network child for them; ``join`` waits for them."""
        return NetworkChild(Servers((self.address,), token, None, client, timeout_s), stays=stays)

    def join(self, timeout_s: float = READY_S, events: Callable[[Any], None] = lambda event: None) -> Any:
        """Joins them, and leaves again."""
        with self.joining() as child:
            return child.join(timeout_s, events)


@contextlib.contextmanager
def two_hosts(store: Store, folder: Path, **options: Any) -> Iterator[TwoHosts]:
    """A server on each of two hosts, ready."""
    address = f"{HOSTS[0]}:{free_port(HOSTS[0])}"
    words = {"num_servers": 2, "addresses": (address,), "placement": "partition", "log_dir": str(folder / "logs"), **options}
    whole_structure = words["placement"] == "features"
    paths = [stage(store, folder / f"host{rank}", [rank], whole_structure=whole_structure) for rank in range(2)]
    with contextlib.ExitStack() as stack:
        fleets = []
        for rank, path in enumerate(paths):
            fleets.append(serve(path, store.fingerprint, rank=rank, interface=HOSTS[rank], **words))
            stack.callback(fleets[-1].stop)
        for fleet in fleets:
            fleet.wait(READY_S)
        yield TwoHosts(store, (fleets[0], fleets[1]), address)


def family() -> list[psutil.Process]:
    """This process and everything that it has started."""
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def certificate(folder: Path, addresses: Sequence[str] = HOSTS) -> tuple[Path, Path]:
    """A certificate for these addresses, and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    names = ",".join(f"IP:{address}" for address in addresses)
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    words += ["-subj", "/CN=gnnkit tests", "-addext", f"subjectAltName={names}", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(words, check=True, capture_output=True, timeout=240)
    return cert, key


class Events:
    """Keeps what a stage says.

    Attributes:
        said: The lines for the reader.
    """

    def __init__(self) -> None:
        self.said: list[str] = []

    def __call__(self, event: Any) -> None:
        if event.kind == "message":
            self.said.append(event.text)


# A stranger on a port: random bytes, connections that say nothing, HTTP, lines and messages of a million bytes, guesses at the token;
# prints what he is told.
STRANGER = """
import random, socket, struct, sys

host, port = sys.argv[1], int(sys.argv[2])
half_open = [socket.create_connection((host, port), timeout=60) for _ in range(20)]
def say(*pieces):
    heard = b""
    with socket.create_connection((host, port), timeout=60) as connection:
        try:
            for piece in pieces:
                connection.sendall(piece)
            while said := connection.recv(1 << 16):
                heard += said
        except OSError:
            pass
    return heard
for size in (1, 100, 4096, 100_000):
    with socket.create_connection((host, port), timeout=60) as connection:
        try:
            connection.sendall(random.Random(size).randbytes(size))
        except OSError:
            pass
preface, settings = b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n", struct.pack(">IBI", 4, 0, 0)[1:]
text = b'{"name":"membership","args":{}}'
message = struct.pack("<B3xIQ", 1, len(text), 0) + text
for pieces in (
    (b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n",),
    (preface, settings, struct.pack(">I", 16_000_000)[1:] + b"\\x01\\x04" + struct.pack(">I", 1), b"a" * 1_000_000),
    (message,),
    (struct.pack("<B3xIQ", 1, 1_000_000, 1_000_000), b"[" * 1_000_000, b"x" * 1_000_000),
    (b"gnnkit-wire ", b"0" * 64, b" me\\n", message),
):
    print(say(*pieces))
for guess in (b"", b"wrong", b"0" * 64, b"f" * 4000):
    print(say(b"gnnkit-gate " + guess + b"\\n"))
"""


def send_strangers(address: str) -> list[str]:
    """What ``STRANGER`` prints."""
    host, _, port = address.rpartition(":")
    command = [sys.executable, "-W", "ignore", "-c", STRANGER, host, port]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()

"""Those who reach a service's port and have no token: what they send is not kept, and they are not waited for."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import psutil
import pytest

from gnnkit.cluster.flight_client import FlightClient
from gnnkit.cluster.parts.protocol import PROTOCOL_VERSION
from gnnkit.storage.build import build_store
from gnnkit.storage.options import BuildOptions
from tests.cluster.parts.services import TOKEN, Service, staged
from tests.helpers.graphs import homogeneous_source, random_edges
from tests.helpers.machine import slowness
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.slow

# Calls with large messages, several at a time; a token travels with each, and is a wrong one.
LARGE_MESSAGES = """
import sys
from concurrent.futures import ThreadPoolExecutor
import pyarrow.flight as flight

message = bytes(96 << 20)
options = flight.FlightCallOptions(timeout=20, headers=[(b"authorization", b"wrong")])

def call(number):
    try:
        flight.FlightClient(f"grpc://{sys.argv[1]}").do_get(flight.Ticket(message), options).read_all()
    except flight.FlightError as error:
        return type(error).__name__

with ThreadPoolExecutor(4) as threads:
    for name in threads.map(call, range(4)):
        print(name)
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder, rng = tmp_path_factory.mktemp("strangers"), np.random.default_rng(5)
    source = homogeneous_source(random_edges(rng, 40, 40, 200), 40, x=rng.standard_normal((40, 4)).astype(np.float32))
    whole = build_store(source, folder / "store", BuildOptions(2, partition="random"))
    with Service(staged(whole, folder / "host", (1,)), folder / "logs") as service:
        yield service


def memory(service: Service) -> int:
    return int(psutil.Process(service.child.pid).memory_info().rss)


def num_connections(service: Service) -> int:
    return sum(found.status == psutil.CONN_ESTABLISHED for found in psutil.Process(service.child.pid).net_connections("tcp"))


def is_answered(service: Service) -> bool:
    """Whether somebody with the token is still answered."""
    head = {"version": PROTOCOL_VERSION, "fingerprint": service.store.fingerprint, "name": "somebody", "host": 0}
    FlightClient(service.peer.address, TOKEN, None).do("here", head, 60.0)
    return True


def test_large_messages_of_strangers_are_not_read(service: Service) -> None:
    assert is_answered(service)
    before = memory(service)
    done = subprocess.run([sys.executable, "-c", LARGE_MESSAGES, service.peer.address], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["FlightUnavailableError"] * 4
    assert memory(service) - before < 32 << 20
    assert is_answered(service)


@pytest.mark.parametrize("said", [b"", b"CONNECT x HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"CONNECT " + b"x" * 100_000])
def test_half_open_connections_are_closed(service: Service, said: bytes) -> None:
    """At once where there are many of them, or they say what nobody has asked for; the others after a while."""
    place, began = ("127.0.0.1", service.port), time.monotonic()
    strangers = []
    for _ in range(200):
        stranger = socket.create_connection(place, timeout=60)
        strangers.append(stranger)
        with contextlib.suppress(OSError):
            stranger.sendall(said)
    assert wait_until(lambda: num_connections(service) <= 64, 5)
    assert is_answered(service)
    for stranger in strangers:
        with contextlib.suppress(ConnectionError):
            assert stranger.recv(1) == b""
        stranger.close()
    assert time.monotonic() - began < 15 * slowness()


def test_a_connection_without_the_token_is_told_so(service: Service) -> None:
    """A token that is nearly right is a wrong one."""
    for header in (b"", b"gnnkit-gate: " + b"0" * 64, b"gnnkit-gate: " + TOKEN.encode(), b"authorization: " + TOKEN.encode()):
        with socket.create_connection(("127.0.0.1", service.port), timeout=60) as stranger:
            stranger.sendall(b"CONNECT gnnkit HTTP/1.1\r\nHost: gnnkit\r\n" + header + b"\r\n\r\n")
            assert stranger.recv(4096).startswith(b"HTTP/1.1 401") and stranger.recv(4096) == b""
    assert is_answered(service)

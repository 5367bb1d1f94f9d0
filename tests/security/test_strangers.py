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

from gnnkit.cluster.network.client import ServiceClient
from tests.cluster.parts.services import TOKEN, Service, staged, told
from tests.helpers.graphs import built, homogeneous_source, random_edges
from tests.helpers.machine import slowness
from tests.helpers.waiting import wait_until
from tests.helpers.wires import ask_by_name, asked, first_line, second_line

pytestmark = pytest.mark.slow

# Large messages, several at a time, behind lines with a wrong token, behind none, and behind half of what is needed.
LARGE_MESSAGES = """
import socket, sys
from concurrent.futures import ThreadPoolExecutor

host, port, *lines = sys.argv[1:]
head = (1).to_bytes(8, "little") + (96 << 20).to_bytes(8, "little")

def call(line):
    try:
        with socket.create_connection((host, int(port)), timeout=20) as stranger:
            stranger.sendall(bytes.fromhex(line) + head)
            for _ in range(96):
                stranger.sendall(bytes(1 << 20))
            while stranger.recv(4096):
                pass
            return "ended"
    except ConnectionError:
        return "ended"

with ThreadPoolExecutor(4) as threads:
    for name in threads.map(call, lines):
        print(name)
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder, rng = tmp_path_factory.mktemp("strangers"), np.random.default_rng(5)
    source = homogeneous_source(random_edges(rng, 40, 40, 200), 40, x=rng.standard_normal((40, 4)).astype(np.float32))
    whole = built(source, folder / "store", 2, partition="random")
    with Service(staged(whole, folder / "host", (1,)), folder / "logs") as service:
        yield service


def memory(service: Service) -> int:
    return int(psutil.Process(service.child.pid).memory_info().rss)


def num_connections(service: Service) -> int:
    return sum(found.status == psutil.CONN_ESTABLISHED for found in psutil.Process(service.child.pid).net_connections("tcp"))


def is_answered(service: Service) -> bool:
    """Whether somebody with the token is still answered."""
    head = asked(service.store, name="somebody", host=0)
    client = ServiceClient(service.peer.address, TOKEN, None)
    ask_by_name(client, "here", head, 60.0)
    client.close()
    return True


def test_large_messages_of_strangers_are_not_read(service: Service) -> None:
    assert is_answered(service)
    before = memory(service)
    lines = [b"", first_line("wrong") + second_line("wrong", "x"), first_line(TOKEN), first_line(TOKEN) + second_line("wrong", "x")]
    words = [sys.executable, "-c", LARGE_MESSAGES, "127.0.0.1", str(service.port), *(line.hex() for line in lines)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["ended"] * 4
    assert memory(service) - before < 32 << 20
    assert is_answered(service)


@pytest.mark.parametrize(
    "said", [b"", b"gnnkit-gate ", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"gnnkit-gate " + b"x" * 100_000, first_line(TOKEN)]
)
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
            while heard := stranger.recv(100):
                assert heard == b"welcome\n" and said == first_line(TOKEN)
        stranger.close()
    assert time.monotonic() - began < 15 * slowness()


@pytest.mark.core
def test_a_connection_without_the_token_is_told_so(service: Service) -> None:
    """A token that is nearly right is a wrong one."""
    for guess in (b"", b"0" * 64, TOKEN.encode(), first_line(TOKEN)[12:-2], first_line(TOKEN).strip(), second_line(TOKEN, "x").strip()):
        assert told(service.peer.address, b"gnnkit-gate " + guess + b"\n") == b"refused\n"
    assert is_answered(service)

"""What the holder of a token may ask for: as much as he likes, in turn with all the others, up to a quota."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
import psutil
import pytest

from gnnkit import Store
from gnnkit.cluster.network.client import ServiceClient
from gnnkit.errors import SamplingError
from gnnkit.sampling import owned
from gnnkit.sampling.owners import Expansion, Question
from tests.cluster.parts.services import ERROR, LAST, TOKEN, Service, Speaker, owners_of, said_of
from tests.cluster.parts.several_hosts import host_of
from tests.helpers.graphs import built, homogeneous_source, random_edges
from tests.helpers.waiting import wait_until
from tests.helpers.wires import ask_by_name

pytestmark = pytest.mark.slow

NUM_NODES, NUM_EDGES = 50, 100_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A few nodes with many weighted edges: a draw takes long, and little memory."""
    rng = np.random.default_rng(5)
    weights = {"weight": rng.random(NUM_EDGES).astype(np.float32)}
    source = homogeneous_source(random_edges(rng, NUM_NODES, NUM_NODES, NUM_EDGES), NUM_NODES, edge_arrays=weights)
    return built(source, tmp_path_factory.mktemp("large") / "store", 1, weight="weight")


@pytest.fixture(scope="module")
def service(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """On one processor, so that one request is answered at a time."""
    processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(processors)})
    try:
        running = Service(store, tmp_path_factory.mktemp("logs"))
    finally:
        os.sched_setaffinity(0, processors)
    with running:
        yield running


@pytest.fixture
def owners(store: Store, service: Service) -> Iterator[Any]:
    found = owners_of(store, {1: service.peer})
    yield found
    found.close()


def expansion(count: int, fan_out: int = 1) -> Expansion:
    return Expansion(1, 0, np.array([fan_out]), {0: np.arange(count) % NUM_NODES}, weighted=True, wants_position=(True,))


def test_others_have_their_turn_while_a_large_request_is_answered(owners: Any) -> None:
    """Their longest wait is a fraction of it."""
    times: list[float] = []

    def ask() -> None:
        began = time.monotonic()
        owners.expand({1: expansion(3_000_000)})()
        times.append(time.monotonic() - began)

    owners.expand({1: expansion(10)})()
    large, waits = threading.Thread(target=ask), [0.0]
    large.start()
    while large.is_alive():
        began = time.monotonic()
        owners.expand({1: expansion(10)})()
        waits.append(time.monotonic() - began)
    large.join()
    assert max(waits) < times[0] / 2, (max(waits), times[0])


def test_what_is_cut_into_pieces_is_the_same(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """All kinds of requests, whose answers for a node depend on nothing but the node; each pauses between two pieces."""
    # All neighbours of as many weighted nodes as a piece has take minutes.
    monkeypatch.setattr(owned, "_PIECE_NODES", 128)
    pauses: list[int] = []
    owner, count = host_of(store.arrays(), (0,), lambda: pauses.append(1), weighted=True), 1000

    def check(few: Mapping[str, Any], many: Mapping[str, Any], copies: int, num_pauses: int) -> None:
        for name, values in many.items():
            assert np.array_equal(values, np.tile(few[name], copies)), name
        assert len(pauses) == num_pauses
        pauses.clear()

    for fan_out, num_pauses in ((1, 7), (20, 7), (-1, 7), (10_000, 9)):
        few = {name: np.array(values) for name, values in owner.expand(expansion(NUM_NODES, fan_out))[0]._asdict().items()}
        pauses.clear()
        check(few, owner.expand(expansion(count, fan_out))[0]._asdict(), count // NUM_NODES, num_pauses)
    nodes, others = np.arange(count) % NUM_NODES, np.arange(count) % 10
    for what in ("degrees", "has_edges", "weights"):
        few = {name: np.array(values) for name, values in owner.answer(Question(what, (0,), nodes[:NUM_NODES], others[:NUM_NODES])).items()}
        check(few, owner.answer(Question(what, (0,), nodes, others)), count // NUM_NODES, 7)


# A service with a small quota; a request that says "wait" is answered when a line comes.
SMALL_QUOTA = """
import sys, threading
from gnnkit.cluster.network import service

def answer(_, args):
    if args["wait"]:
        sys.stdout.write("waiting\\n")
        sys.stdout.flush()
        lines.acquire()

lines = threading.Semaphore(0)
service._MOST_CALLS, service._MOST_BYTES = 2, 1_000_000
running = service.NetworkService("127.0.0.1", 0, sys.argv[1], answer)
print(running.port, flush=True)
for line in sys.stdin:
    lines.release()
"""


def test_more_than_the_quota_is_an_error_for_its_client_alone() -> None:
    """It says what is under way and what is allowed; an answer makes room."""
    command = [sys.executable, "-W", "ignore", "-c", SMALL_QUOTA, TOKEN]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child,
        ThreadPoolExecutor() as threads,
    ):
        assert child.stdin is not None and child.stdout is not None
        address = f"127.0.0.1:{child.stdout.readline().strip()}"

        def ask(nbytes: int, *, wait: bool = False) -> None:
            client = ServiceClient(address, TOKEN, None)
            try:
                ask_by_name(client, "ask", {"wait": wait, "ids": np.zeros(nbytes, np.uint8)}, 60.0)
            finally:
                client.close()

        def refusal(nbytes: int) -> str:
            try:
                ask(nbytes)
            except SamplingError as error:
                return str(error)
            return ""

        for _ in range(20):  # each makes room for the next, at once
            ask(900_000)
        refused = f"{os.getpid()} has 0 requests of 0 MB under way, and asks for another of 2 MB; 2 of 1 MB together are allowed"
        assert refused in refusal(2_000_000)
        held = [threads.submit(ask, 400_000, wait=True) for _ in range(2)]
        assert [child.stdout.readline() for _ in held] == ["waiting\n"] * 2
        with pytest.raises(SamplingError, match=f"{os.getpid()} has 2 requests of 1 MB under way"):
            ask(10)
        with Speaker(address, name="another") as another:
            assert another.ask("ask", {"wait": False, "ids": np.zeros(900_000, np.uint8)})[0] == LAST
        child.stdin.write("\n" * 2)
        child.stdin.flush()
        for call in held:
            call.result(60)
        ask(900_000)
        child.stdin.close()


# A service with few descriptors and little memory for answers; "give" answers with so many bytes.
SMALL_HOST = """
import resource, sys
import numpy as np
from gnnkit.cluster.network import service

resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
service._MOST_UNSENT, service._UNREAD_S = 64 << 20, 0.5
running = service.NetworkService("127.0.0.1", 0, sys.argv[1], lambda _, args: np.ones(args["nbytes"], np.uint8))
print(running.port, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def small_host() -> Iterator[tuple[str, psutil.Process]]:
    command = [sys.executable, "-W", "ignore", "-c", SMALL_HOST, TOKEN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        yield f"127.0.0.1:{child.stdout.readline().strip()}", psutil.Process(child.pid)
        child.stdin.close()


def test_silent_connections_make_room(small_host: tuple[str, psutil.Process]) -> None:
    """The silent longest of an address that has its share: a client that asks is answered, also where its connection was closed."""
    address, process = small_host
    early = ServiceClient(address, TOKEN, None)
    ask_by_name(early, "give", {"nbytes": 1}, 60.0)
    with ExitStack() as stack:
        stack.callback(early.close)
        silent = [stack.enter_context(Speaker(address)) for _ in range(300)]
        assert process.num_fds() < 256 - 64
        for _ in range(3):
            ask_by_name(early, "give", {"nbytes": 1}, 10.0)
            late = ServiceClient(address, TOKEN, None)
            ask_by_name(late, "give", {"nbytes": 1}, 10.0)
            late.close()
        assert silent[0].is_closed()
        assert silent[-1].ask("give", {"nbytes": 1})[0] == LAST


def test_answers_that_are_not_read_do_not_stay(small_host: tuple[str, psutil.Process]) -> None:
    """Of arrays above 32 MB: of smaller ones glibc may keep the last for each thread."""
    (address, process), nbytes = small_host, 40 << 20
    client = ServiceClient(address, TOKEN, None)
    ask_by_name(client, "give", {"nbytes": 1}, 60.0)
    before = process.memory_info().rss
    with ExitStack() as stack:
        stack.callback(client.close)
        for _ in range(20):
            stack.enter_context(Speaker(address)).say(*said_of("give", {"nbytes": nbytes}))
        assert wait_until(lambda: process.memory_info().rss - before < 160 << 20, 60)
        assert len(ask_by_name(client, "give", {"nbytes": nbytes}, 60.0)) == nbytes


def test_a_text_of_millions_of_values_is_refused_unread(small_host: tuple[str, psutil.Process]) -> None:
    """While a text is read no other thread works: the next caller waited for eleven seconds."""
    address, _ = small_host
    for value in ("1", "[]", "{}"):
        text = '{"name":"give","args":{"nbytes":[' + ",".join([value] * 4_000_000) + "]}}"
        with Speaker(address) as holder:
            holder.say(text.encode())
            kind, said, _ = holder.last()
            assert kind == ERROR and b"values cannot be read" in said
            assert holder.ask("give", {"nbytes": 1})[0] == LAST


def test_strangers_in_a_flood_cost_no_call(small_host: tuple[str, psutil.Process]) -> None:
    address, _ = small_host
    host, _, port = address.rpartition(":")
    ended = threading.Event()

    def flood() -> None:
        strangers: deque[socket.socket] = deque()
        while not ended.is_set():
            with suppress(OSError):
                strangers.append(socket.create_connection((host, int(port)), timeout=1))
            if len(strangers) > 100:
                strangers.popleft().close()
        for stranger in strangers:
            stranger.close()

    threads = [threading.Thread(target=flood) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(60):
            client = ServiceClient(address, TOKEN, None)
            ask_by_name(client, "give", {"nbytes": 1}, 60.0)
            client.close()
    finally:
        ended.set()
        for thread in threads:
            thread.join()

"""Part services as processes: the same batches, and what happens when they die, are strangers' targets, or are started again."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from gnnkit import Store
from gnnkit.cluster.parts.answers import Turns
from gnnkit.cluster.worker.owners import Peer
from gnnkit.errors import GnnkitError, PlanError, SamplingError, StoreError
from gnnkit.plan import NeighborSampling
from gnnkit.sampling.owners import RowsRequest
from gnnkit.sampling.tables import GraphTables
from tests.cluster.parts.services import (
    CALL,
    END,
    ERROR,
    HEAD,
    LAST,
    TOKEN,
    Service,
    Speaker,
    owners_of,
    said_of,
    sampler_over,
    staged,
    told,
)
from tests.cluster.parts.several_hosts import inputs_of, key_of, request_of, sampled, sampler_on
from tests.helpers.graphs import built, random_source
from tests.helpers.shared_graphs import shared
from tests.helpers.wires import asked, first_line, second_line

pytestmark = pytest.mark.slow

MAX_SEEDS = 20
Sample = Callable[[int], Any]


def typed_store(folder: Path, **options: Any) -> Store:
    source = random_source(np.random.default_rng(4), max_nodes=300, max_edges=3000, num_node_types=3, num_edge_types=5)
    return built(source, folder, **{"num_parts": 3, "partition": "random", "with_edge": True, **options})


def sampling_of(store: Store) -> NeighborSampling:
    weight, edge_dir = store.options.weight, store.edge_dir
    return NeighborSampling({t: (4, 3, -1) for t in store.schema.edge_types}, edge_dir=edge_dir, weight=weight, with_edge=True)


def sample_with(sampler: Any, index: int) -> Any:
    graph = sampler.tables.graph
    num_nodes = graph.schema.node_types[inputs_of(graph).node_type].num_nodes
    seeds = np.random.default_rng(index).integers(0, num_nodes, MAX_SEEDS)
    return sampled(sampler, request_of(key_of(1, index), seeds))


def expected(whole: Store, index: int) -> Any:
    sampling = sampling_of(whole)
    return sample_with(sampler_on(whole.arrays(), sampling), index)


class Pair:
    """Two hosts: this process, with parts 0 and 2, and a service with part 1."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.whole = folder, typed_store(folder / "whole")
        self.here, self.there = staged(self.whole, folder / "here", (0, 2)), staged(self.whole, folder / "there", (1,))
        self.service = Service(self.there, folder / "logs")
        self.owners = owners_of(self.here, {1: self.service.peer})
        self.sampler = sampler_over(self.here, 0, self.owners, {1: self.service.peer}, sampling_of(self.whole))

    def check(self, index: int = 0) -> None:
        assert sample_with(self.sampler, index) == expected(self.whole, index)

    def end(self) -> None:
        self.owners.close()
        self.service.end()


@pytest.fixture
def pair(tmp_path: Path) -> Any:
    hosts = Pair(tmp_path)
    yield hosts
    hosts.end()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"partition": "contiguous", "weight": "weight", "edge_dir": "out"},
        {"partition": "ldg", "cache_ratio": 0.3, "feature_dtype": "quint8"},
    ],
    ids=["random", "weighted-out", "cache"],
)
@pytest.mark.core
def test_batches_over_three_hosts(tmp_path: Path, options: dict[str, Any]) -> None:
    whole = typed_store(tmp_path / "whole", **options)
    stores = {host: staged(whole, tmp_path / f"host{host}", (host,)) for host in range(3)}
    copy = shared(stores[2].arrays())
    with Service(stores[1], tmp_path / "logs") as first, Service(stores[2], tmp_path / "logs", shared=copy) as second:
        peers = {1: first.peer, 2: second.peer}
        owners = owners_of(stores[0], peers)
        samplers = [sampler_over(stores[0], 0, owners, peers, sampling_of(whole)) for _ in range(2)]
        found: dict[int, Any] = {}

        def work(sampler: Any, first: int) -> None:
            for index in range(first, 8, 2):
                found[index] = sample_with(sampler, index)

        threads = [threading.Thread(target=work, args=(sampler, first)) for first, sampler in enumerate(samplers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        owners.close()
    assert {index: expected(whole, index) for index in range(8)} == found


def test_a_service_that_is_killed_and_comes_back(pair: Pair) -> None:
    pair.check()
    port, address = pair.service.port, re.escape(pair.service.peer.address)
    pair.service.child.signal(signal.SIGKILL)
    pair.service.child.wait(60)
    for _ in range(2):
        with pytest.raises(SamplingError, match=rf"part service of host 1 \({address}, part 1\) cannot be reached"):
            sample_with(pair.sampler, 1)
    pair.service.end()
    pair.service = Service(pair.there, pair.folder / "logs", port=port)
    pair.check(1)
    # A service that was started again between two batches is not even noticed.
    pair.service.end()
    pair.service = Service(pair.there, pair.folder / "logs", port=port)
    pair.check(2)


def test_a_service_that_is_killed_in_the_middle_of_requests(pair: Pair) -> None:
    failures: list[BaseException] = []
    begun = threading.Event()

    def work() -> None:
        try:
            for index in range(10_000):
                sample_with(pair.sampler, index)
                begun.set()
        except GnnkitError as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(60)
    pair.service.child.signal(signal.SIGKILL)
    thread.join(60)
    assert not thread.is_alive() and isinstance(failures[0], SamplingError) and "part 1" in str(failures[0])


def test_a_service_that_is_silent_for_three_seconds_is_waited_for(pair: Pair) -> None:
    """It comes back in the middle of fetching: the batches are the same, over the same connection."""
    pair.check()
    pair.service.child.signal(signal.SIGSTOP)
    is_back = threading.Event()

    def come_back() -> None:
        is_back.set()
        pair.service.child.signal(signal.SIGCONT)

    back = threading.Timer(3.0, come_back)
    back.start()
    try:
        pair.check(1)
        assert is_back.is_set(), "the batch needs what the other host has"
    finally:
        back.cancel()
        back.join()
        pair.service.child.signal(signal.SIGCONT)
    pair.check(2)


@pytest.mark.parametrize(
    ("timeout_s", "message"), [(1.0, "did not answer within 1 s"), (150.0, "cannot be reached")], ids=["deadline", "silence"]
)
def test_a_service_that_is_stopped_ends_the_wait(pair: Pair, timeout_s: float, message: str) -> None:
    """Whichever is first: the request's own deadline, or that it gives no sign of life."""
    pair.check()
    owners = owners_of(pair.here, {1: pair.service.peer}, timeout_s=timeout_s)
    pair.service.child.signal(signal.SIGSTOP)
    try:
        with pytest.raises(SamplingError, match=rf"host 1 .*part 1\) {message}"):
            sample_with(sampler_over(pair.here, 0, owners, {1: pair.service.peer}, sampling_of(pair.whole)), 1)
    finally:
        pair.service.child.signal(signal.SIGCONT)
        owners.close()
    pair.check(1)


def test_rows_of_more_than_one_message(pair: Pair) -> None:
    arrays = pair.here.arrays()
    node_type, names = next((t, s.arrays) for t, s in arrays.schema.node_types.items() if s.num_nodes and "y" in s.arrays)
    table = GraphTables(arrays, False).node_rows[node_type, "y"]
    first = int(arrays.node_bounds[node_type][1])
    ids = np.full(1 << 21, first, np.int64)
    request = RowsRequest(((table.bounds, ids),), ((table.index, 0, table.row_nbytes),))
    received: list[int] = []
    pair.owners.rows({1: request}, lambda host, message, address: received.append(request.nbytes(request.messages[message])))()
    assert names and sum(received) == len(ids) * table.row_nbytes > 1 << 22
    pair.check()


def test_strangers_get_nothing(pair: Pair) -> None:
    """Random bytes, other languages, calls without the token, wrong lines: the service goes on."""
    address = pair.service.peer.address
    rng = np.random.default_rng(0)
    for size in (1, 100, 4096, 100_000):
        with socket.create_connection(("127.0.0.1", pair.service.port)) as stranger:
            stranger.sendall(rng.bytes(size))
    text, block = said_of("here", asked(pair.whole, name="me", host=1))
    call = HEAD.pack(CALL, len(text), len(block)) + text + block
    for said in (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + rng.bytes(5000),
        b"CONNECT gnnkit HTTP/1.1\r\nHost: gnnkit\r\n\r\n",
        call,
        second_line(TOKEN, "me") + call,
        first_line(TOKEN)[:-1] + b"x" * 5000,
    ):
        assert told(address, said) == b""
    for token in ("wrong", TOKEN + "x", TOKEN[:-1], ""):
        assert told(address, first_line(token) + second_line(TOKEN, "me")) == b"refused\n"
        # One line is not enough: what comes behind it is not looked at either.
        assert told(address, first_line(TOKEN) + second_line(token, "me")) == b"welcome\nrefused\n"
    for said in (call, first_line(TOKEN), b"gnnkit-wire " + b"x" * 5000, rng.bytes(100)):
        assert told(address, first_line(TOKEN) + said) in (b"welcome\n", b"welcome\nrefused\n")
    # Who says more before he was told that he may come in is not let in.
    assert told(address, first_line(TOKEN) + second_line(TOKEN, "me") + call) == b"welcome\n"
    pair.check()
    strange = owners_of(pair.here, {1: pair.service.peer}, token="another")
    with pytest.raises(SamplingError, match=r"host 1 .* refused the token"):
        sample_with(sampler_over(pair.here, 0, strange, {1: pair.service.peer}, sampling_of(pair.whole)), 0)
    strange.close()
    pair.check(1)
    process = psutil.Process(pair.service.child.pid)
    said = " ".join(process.cmdline()) + str(process.environ()) + pair.service.child.log.read_text()
    assert TOKEN not in said


def test_another_store_is_refused(pair: Pair) -> None:
    other = owners_of(pair.here, {1: pair.service.peer}, fingerprint="0123abc")
    with pytest.raises(StoreError, match=rf"host 1 .*{pair.whole.fingerprint}.*0123abc"):
        sample_with(sampler_over(pair.here, 0, other, {1: pair.service.peer}, sampling_of(pair.whole)), 0)
    other.close()
    pair.check()


def malformed(store: Store) -> list[tuple[bytes, bytes]]:
    """Texts and blocks of those who have the token, and do not say what a sampler asks."""
    good = asked(store)
    count = len(store.schema.edge_types)
    ids, none = np.arange(3, dtype=np.int64), np.empty(0, np.int64)
    fan_outs = np.full(count, 2)
    expand = {**good, "key": 1, "hop": 0, "replace": False, "weighted": False, "last": False, "wants_position": [True] * count}
    expand |= {"variates": None, "roots": None, "times": None, "since": None, "fan_outs": fan_outs, "nodes": {0: ids, 1: ids, 2: ids}}
    rows = {**good, "lists": [(0, none)], "sections": []}
    text, block = said_of("expand", expand)
    rng = np.random.default_rng(1)
    spoiled = []
    for _ in range(60):
        raw = bytearray(text)
        raw[rng.integers(len(raw))] ^= 1 << rng.integers(7)
        spoiled.append((bytes(raw), block))
    wrong: list[tuple[Any, Any]] = [
        ("everything", good),
        (None, good),
        ("rows", None),
        ("rows", [good]),
        ("rows", {**rows, "version": 2}),
        ("rows", {"version": good["version"]}),
        ("expand", {**expand, "fan_outs": np.array([2])}),
        ("expand", {**expand, "fan_outs": np.full(count, -7)}),
        ("expand", {**expand, "fan_outs": ["x"] * count}),
        ("expand", {**expand, "nodes": {99: ids}}),
        ("expand", {**expand, "nodes": {0: -ids - 1}}),
        ("expand", {**expand, "nodes": {0: ids + (1 << 40)}}),
        ("expand", {**expand, "nodes": {0: ids.astype(np.float64)}}),
        ("expand", {**expand, "nodes": {0: ids.reshape(1, 3)}}),
        ("expand", {**expand, "nodes": [ids]}),
        ("expand", {name: value for name, value in expand.items() if name != "fan_outs"}),
        ("rows", {**rows, "lists": [(0, ids - 5)], "sections": [(0, 0, 4)]}),
        ("rows", {**rows, "sections": [(0, 0, 1 << 40)]}),
        ("rows", {**rows, "sections": [(99, 0, 4)]}),
        ("rows", {**rows, "sections": [(0, 5, 4)]}),
        ("rows", {**rows, "sections": [(0,)]}),
        ("rows", {**rows, "lists": [(77, none)]}),
        ("here", {**good, "name": "x", "host": -1}),
        ("here", {**good, "name": 3, "host": 0}),
    ]
    whole = b'{"name":"rows","args":{"a":{"#":["array","<i8",[%d],0]}}}'
    return [
        (b"", b""),
        (rng.bytes(500), rng.bytes(500)),
        (text, b""),
        (text, block[:-100]),
        (text[:-10], block),
        (b"[" * 100_000, b""),
        (whole % (1 << 40), b""),
        (whole % -1, bytes(64)),
        (whole.replace(b"<i8", b"O") % 1, bytes(64)),
        *spoiled,
        *(said_of(name, args) for name, args in wrong),
    ]


def test_a_request_that_makes_no_sense_is_its_sender_s_error_only(pair: Pair) -> None:
    refused = 0
    with Speaker(pair.service.peer.address) as holder:
        for text, block in malformed(pair.whole):
            holder.say(text, block)
            kind = holder.last()[0]
            assert kind in (ERROR, LAST, END)
            refused += kind == ERROR
    assert refused > 60, "a flipped bit may hit what nobody reads, but hardly ever does"
    pair.check()


def test_a_message_that_says_that_it_is_larger_than_may_be_takes_no_memory(pair: Pair) -> None:
    """Also one of another kind, and one that never ends: the connection is ended, and nobody else's."""
    pair.check()
    process = psutil.Process(pair.service.child.pid)
    before = process.memory_info().rss
    for head in (
        HEAD.pack(CALL, 0, 1 << 50),
        HEAD.pack(CALL, (1 << 32) - 1, 0),
        HEAD.pack(CALL, (1 << 32) - 1, (1 << 64) - 1),
        HEAD.pack(LAST, 0, 0),
        HEAD.pack(0, 0, 0),
        HEAD.pack(255, 3, 3),
        bytes([255]) * HEAD.size,
    ):
        with Speaker(pair.service.peer.address) as holder:
            holder.end.sendall(head)
            assert holder.is_closed()
    with Speaker(pair.service.peer.address) as holder:  # as large as is taken in and thrown away
        holder.end.sendall(HEAD.pack(CALL, 0, 600 << 20))
        for _ in range(600):
            holder.end.sendall(bytes(1 << 20))
        kind, text, _ = holder.last()
        assert kind == ERROR and b"629 MB" in text
        assert holder.ask("nothing", {})[0] == ERROR, "the connection can be used again"
    assert process.memory_info().rss - before < 64 << 20
    pair.check(1)


def test_it_listens_on_the_given_address_only(tmp_path: Path) -> None:
    whole = typed_store(tmp_path / "whole")
    with Service(whole, tmp_path / "logs", ip="127.0.0.2") as service:
        found = [c.laddr for c in psutil.Process(service.child.pid).net_connections("all") if c.status == psutil.CONN_LISTEN]
        # An IPv6 socket bound to an IPv4 address shows it in IPv6's words.
        assert [(place.ip.removeprefix("::ffff:"), place.port) for place in found] == [("127.0.0.2", service.port)]
        with pytest.raises(PlanError, match=rf"cannot listen on 127\.0\.0\.2:{service.port}"):
            Service(whole, tmp_path / "logs", ip="127.0.0.2", port=service.port)
    with pytest.raises(PlanError, match=r"cannot listen on 203\.0\.113\.7:0"):
        Service(whole, tmp_path / "logs", ip="203.0.113.7")


def test_it_ends_with_whoever_started_it(tmp_path: Path) -> None:
    """The connection is all that keeps it: closed, it is gone."""
    service = Service(typed_store(tmp_path / "whole"), tmp_path / "logs")
    service.child.wire.close()
    assert service.child.wait(60) == 0
    assert not os.path.exists(f"/proc/{service.child.pid}")


def test_nobody_listens(tmp_path: Path) -> None:
    whole = typed_store(tmp_path / "whole")
    here = staged(whole, tmp_path / "here", (0, 2))
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        peers = {7: Peer(f"127.0.0.1:{reserved.getsockname()[1]}", (1,))}
        owners: Any = owners_of(here, peers)
        with pytest.raises(SamplingError, match=r"host 7 \(127\.0\.0\.1:\d+, part 1\) cannot be reached"):
            sample_with(sampler_over(here, 0, owners, peers, sampling_of(whole)), 0)
        owners.close()


def test_a_wait_for_a_processor_has_a_deadline_and_leaves_no_turn_behind() -> None:
    turns = Turns(1, timeout_s=0.05)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with turns:
            held.set()
            assert done.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(30)
    with pytest.raises(SamplingError, match=r"no processor was free for the request within 0\.05 s"), turns:
        pass
    done.set()
    holder.join(30)
    with turns:  # the one that gave up has not taken it
        turns.pause()

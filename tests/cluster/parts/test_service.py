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
import pyarrow.flight as flight
import pytest

from gnnkit.cluster.flight_client import connect
from gnnkit.cluster.parts.client import FlightOwners, Peer
from gnnkit.cluster.parts.protocol import to_ticket
from gnnkit.errors import GnnkitError, PlanError, SamplingError, StoreError
from gnnkit.kernels.keys import batch_key
from gnnkit.plan import NeighborSampling
from gnnkit.runtime.graph_memory import share
from gnnkit.sampling.owners import RowsRequest
from gnnkit.sampling.sampler import BatchSampler
from gnnkit.sampling.tables import GraphTables
from gnnkit.sampling.walked import SampleRequest
from gnnkit.storage.build import build_store
from gnnkit.storage.options import BuildOptions
from gnnkit.storage.store import Store
from tests.cluster.parts.services import TOKEN, Service, owners_of, sampler_over, staged
from tests.cluster.parts.several_hosts import inputs_of, sampled, sampler_on
from tests.helpers.graphs import random_source

pytestmark = pytest.mark.slow

MAX_SEEDS = 20
Sample = Callable[[int], Any]


def typed_store(folder: Path, **options: Any) -> Store:
    source = random_source(np.random.default_rng(4), max_nodes=300, max_edges=3000, num_node_types=3, num_edge_types=5)
    return build_store(source, folder, BuildOptions(**{"num_parts": 3, "partition": "random", "with_edge": True, **options}))


def sampling_of(store: Store) -> NeighborSampling:
    weight, edge_dir = store.options.weight, store.edge_dir
    return NeighborSampling({t: (4, 3, -1) for t in store.schema.edge_types}, edge_dir=edge_dir, weight=weight, with_edge=True)


def sample_with(sampler: BatchSampler, index: int) -> Any:
    graph = sampler.tables.graph
    num_nodes = graph.schema.node_types[inputs_of(graph).node_type].num_nodes
    seeds = np.random.default_rng(index).integers(0, num_nodes, MAX_SEEDS)
    return sampled(sampler, SampleRequest(batch_key(1, 0, index), np.arange(len(seeds)), {"node": seeds}))


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
def test_batches_over_three_hosts(tmp_path: Path, options: dict[str, Any]) -> None:
    whole = typed_store(tmp_path / "whole", **options)
    stores = {host: staged(whole, tmp_path / f"host{host}", (host,)) for host in range(3)}
    shared = share(stores[2].arrays(), threading.Event())
    with Service(stores[1], tmp_path / "logs") as first, Service(stores[2], tmp_path / "logs", shared=shared) as second:
        peers = {1: first.peer, 2: second.peer}
        owners = owners_of(stores[0], peers)
        samplers = [sampler_over(stores[0], 0, owners, peers, sampling_of(whole)) for _ in range(2)]
        found: dict[int, Any] = {}

        def work(sampler: BatchSampler, first: int) -> None:
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
    back = threading.Timer(3.0, pair.service.child.signal, (signal.SIGCONT,))
    back.start()
    try:
        pair.check(1)
        assert back.finished.is_set(), "the batch needs what the other host has"
    finally:
        back.cancel()
        back.join()
        pair.service.child.signal(signal.SIGCONT)
    pair.check(2)


@pytest.mark.parametrize(
    ("timeout_s", "message"), [(1.0, "did not answer within 1 s"), (150.0, "cannot be reached")], ids=["deadline", "pings"]
)
def test_a_service_that_is_stopped_ends_the_wait(pair: Pair, timeout_s: float, message: str) -> None:
    """Whichever is first: the request's own deadline, or pings that nobody answers."""
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


def test_messages_larger_than_the_transport_s_usual_limit(pair: Pair) -> None:
    """gRPC refuses more than 4 MB unless told otherwise."""
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
    """Random bytes, calls without the token, calls of every kind: the service goes on."""
    address = ("127.0.0.1", pair.service.port)
    rng = np.random.default_rng(0)
    for size in (1, 100, 4096, 100_000):
        with socket.create_connection(address) as stranger:
            stranger.sendall(rng.bytes(size))
    with socket.create_connection(address) as stranger:
        stranger.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + rng.bytes(5000))
    descriptor = flight.FlightDescriptor.for_command(b"x")
    for headers in ([], [(b"authorization", b"wrong")], [(b"authorization", TOKEN.encode() + b"x")], [(b"authorization", b"")]):
        options = flight.FlightCallOptions(timeout=60, headers=headers)
        calls: list[Callable[[Any], Any]] = [
            lambda client, o=options: client.do_get(flight.Ticket(b"x" * 100), o).read_all(),
            lambda client, o=options: list(client.do_action(flight.Action("x", b""), o)),
            lambda client, o=options: list(client.list_flights(options=o)),
            lambda client, o=options: list(client.list_actions(options=o)),
            lambda client, o=options: client.get_flight_info(descriptor, o),
            lambda client, o=options: client.get_schema(descriptor, o),
            lambda client, o=options: client.do_exchange(descriptor, o)[1].read_all(),
        ]
        # At the gate, and behind it: a connection is that of a token's holder, and every call shows the token again.
        with flight.connect(f"grpc://{pair.service.peer.address}") as stranger, connect(pair.service.peer.address, TOKEN, None) as client:
            for call in calls:
                with pytest.raises((flight.FlightUnavailableError, OSError), match="failed to connect"):
                    call(stranger)
                with pytest.raises((flight.FlightUnauthenticatedError, OSError), match="the token is wrong or missing"):
                    call(client)
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


def malformed(store: Store) -> list[bytes]:
    """Tickets that hold the token's call but not what a sampler asks."""
    good = {"version": 1, "fingerprint": store.fingerprint}
    count = len(store.schema.edge_types)
    expand = {**good, "what": "expand", "key": 1, "hop": 0, "replace": False, "weighted": False, "positions": [True] * count}
    rows = {**good, "what": "rows", "lists": [0]}
    ids = np.arange(3, dtype=np.int64)
    of_others = {"0": ids, "1": ids, "2": ids}
    whole = to_ticket({**expand, "fan_outs": [2] * count}, of_others)
    rng = np.random.default_rng(1)
    spoiled = []
    for _ in range(60):
        raw = bytearray(whole)
        raw[rng.integers(len(raw))] ^= 1 << rng.integers(8)
        spoiled.append(bytes(raw))
    return [
        b"",
        rng.bytes(500),
        whole,
        whole[:-100],
        *spoiled,
        to_ticket({**good, "what": "everything"}, {}),
        to_ticket({**good, "version": 2, "what": "rows"}, {}),
        to_ticket({**expand, "fan_outs": [2]}, of_others),
        to_ticket({**expand, "fan_outs": [-7] * count}, of_others),
        to_ticket({**expand, "fan_outs": ["x"] * count}, of_others),
        to_ticket({**expand, "fan_outs": [2] * count}, {"99": ids}),
        to_ticket({**expand, "fan_outs": [2] * count}, {"0": -ids - 1}),
        to_ticket({**expand, "fan_outs": [2] * count}, {"0": ids + (1 << 40)}),
        to_ticket(expand, of_others),
        to_ticket({**rows, "sections": [[0, 0, 4]]}, {"0": ids - 5}),
        to_ticket({**rows, "sections": [[0, 0, 1 << 40]]}, {"0": ids[:0]}),
        to_ticket({**rows, "sections": [[99, 0, 4]]}, {"0": ids[:0]}),
        to_ticket({**rows, "sections": [[0, 5, 4]]}, {"0": ids[:0]}),
        to_ticket({**rows, "sections": [[0]]}, {"0": ids[:0]}),
        to_ticket({**rows, "lists": [77], "sections": []}, {"0": ids[:0]}),
    ]


def test_a_request_that_makes_no_sense_is_its_sender_s_error_only(pair: Pair) -> None:
    options = flight.FlightCallOptions(timeout=60, headers=[(b"authorization", TOKEN.encode())])
    refused = 0
    with connect(pair.service.peer.address, TOKEN, None) as client:
        for ticket in malformed(pair.whole):
            try:
                client.do_get(flight.Ticket(ticket), options).read_all()
            except flight.FlightServerError:
                refused += 1
    assert refused > 60, "a flipped bit may hit what nobody reads, but hardly ever does"
    pair.check()


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
        owners: FlightOwners = owners_of(here, peers)
        with pytest.raises(SamplingError, match=r"host 7 \(127\.0\.0\.1:\d+, part 1\) cannot be reached"):
            sample_with(sampler_over(here, 0, owners, peers, sampling_of(whole)), 0)
        owners.close()

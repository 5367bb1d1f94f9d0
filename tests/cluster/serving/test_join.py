"""Servers that meet at an address, and clients that join them there."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from gnnkit import GraphLoader, GraphStore, Store
from gnnkit.cluster.membership import Membership, ServerMember
from gnnkit.cluster.network.client import ServiceClient, remote_error
from gnnkit.cluster.network_child.client import Servers, look
from gnnkit.errors import GnnkitError, PlanError, StartTimeout, StoreError
from gnnkit.storage.manifest import find_outline, keep_outline
from tests.cluster.hosts.setups import OPTIONS, build, expected
from tests.cluster.serving.networked import (
    HOSTS,
    READY_S,
    TOKEN,
    Events,
    TwoHosts,
    certificate,
    family,
    send_strangers,
    serve,
    two_hosts,
)
from tests.helpers.batches import digest
from tests.helpers.machine import ROOT, in_time
from tests.helpers.ports import free_port
from tests.helpers.waiting import wait_until
from tests.helpers.wires import ask_by_name

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Store]:
    """The store in two and in three parts, which are different stores."""
    return {count: build(tmp_path_factory.mktemp("stores") / str(count), count) for count in (2, 3)}


@pytest.fixture(scope="module")
def hosts(stores: dict[int, Store], tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHosts]:
    """Two servers, which no test breaks."""
    with two_hosts(stores[2], tmp_path_factory.mktemp("two")) as servers:
        yield servers


def test_what_a_client_learns(hosts: TwoHosts) -> None:
    joined = hosts.join()
    assert [server.rank for server in joined.servers] == [0, 1]
    assert [server.host for server in joined.servers] == list(HOSTS) and joined.servers[0].address == hosts.address
    assert joined.placement is not None and joined.placement.hosts == ((0,), (1,)), "each host has its own part"
    assert [joined.parts_of(rank, 2) for rank in range(2)] == [(0,), (1,)]
    outline = Store.open(joined.outline, ())
    assert outline.fingerprint == hosts.store.fingerprint and outline.schema == hosts.store.schema
    for split, ids in hosts.store.splits["node"].items():
        assert np.array_equal(outline.splits["node"][split], ids)
    files = {str(path.relative_to(joined.outline)) for path in joined.outline.rglob("*") if path.is_file()}
    assert not any(name.startswith(("part", "book")) for name in files), "only what every trainer needs"
    for read in (lambda: outline.to_store_ids("node", np.arange(3)), lambda: outline.arrays().nodes["node"][0].arrays["x"][0]):
        with pytest.raises(StoreError, match="on its servers"):
            read()
    with pytest.raises(StoreError, match="part 0 of the store .* is not on this host"):
        Store.open(joined.outline)


def test_an_outline_that_was_damaged_is_fetched_again(hosts: TwoHosts) -> None:
    outline = hosts.join().outline
    (outline / "manifest.json").write_text("{}")
    assert Store.open(hosts.join().outline, ()).fingerprint == hosts.store.fingerprint


def test_clients_are_counted_and_answered(hosts: TwoHosts) -> None:
    def clients() -> set[int]:
        return {fleet.status()["clients"] for fleet in hosts.fleets}

    assert wait_until(lambda: clients() == {0}, READY_S)
    with hosts.joining() as one, hosts.joining(client="client-other") as other, hosts.joining() as same:
        for child in (one, other, same):
            child.join(READY_S)
        assert wait_until(lambda: clients() == {2}, READY_S), "two of them are of one process"
        assert [one.call(rank, "status", {}, READY_S)["parts"] for rank in range(2)] == [[0], [1]]
        described = one.call(1, "describe", {}, 20.0)
        assert described["fingerprint"] == hosts.store.fingerprint
        with pytest.raises(GnnkitError, match="no_such_call"):
            one.call(0, "no_such_call", {}, 20.0)
    assert wait_until(lambda: clients() == {0}, READY_S), "who closes has left"


def test_who_only_looks_is_no_client(hosts: TwoHosts) -> None:
    def clients() -> set[int]:
        return {fleet.status()["clients"] for fleet in hosts.fleets}

    assert wait_until(lambda: clients() == {0}, READY_S)
    with hosts.joining(client="client-looks", stays=False) as looks, hosts.joining() as stays:
        looks.join(READY_S)
        stays.join(READY_S)
        assert wait_until(lambda: 0 not in clients(), READY_S)
        assert clients() == {1}, "servers that end with the last client would end between looking and the first batch"
    assert wait_until(lambda: clients() == {0}, READY_S)


def test_who_comes_and_goes_at_once_has_been_there(hosts: TwoHosts) -> None:
    before = [fleet.status()["visits"] for fleet in hosts.fleets]
    with hosts.joining(client="client-brief") as brief:
        brief.join(READY_S)
    counted = wait_until(lambda: [fleet.status()["visits"] for fleet in hosts.fleets] == [count + 1 for count in before], READY_S)
    assert counted, "servers that end with their last client would never end"


@pytest.mark.parametrize("said", ["../kept", "..", "", "/kept", "a/../../kept"])
def test_a_fingerprint_does_not_lead_out_of_the_folder(tmp_path: Path, said: str) -> None:
    (tmp_path / "kept").mkdir()
    with pytest.raises(StoreError, match="no fingerprint"):
        find_outline(tmp_path / "outlines", said)
    with pytest.raises(StoreError, match="no fingerprint"):
        keep_outline(tmp_path / "outlines", said, lambda name: [b"{}"])
    assert [path.name for path in tmp_path.rglob("*")] == ["kept"]


def test_an_error_of_no_kind_can_be_raised() -> None:
    for kind in ("near_matches", "annotations", "no_such", "GnnkitError"):
        with pytest.raises(GnnkitError, match="there: it broke"):
            raise remote_error("there", {"type": kind, "message": "it broke", "hint": None})


def test_strangers(hosts: TwoHosts) -> None:
    pids = hosts.pids()
    for server in hosts.join().servers:
        said = send_strangers(server.address)
        assert said == ["b''"] * 5 + ["b'refused\\n'"] * 4
    for token in ("wrong-wrong-wrong-wrong", TOKEN[:-1], TOKEN + "x"):
        with hosts.joining(token=token) as child, pytest.raises(PlanError, match=f"{hosts.address} refused the token"):
            child.join(READY_S)
    assert hosts.join().fingerprint == hosts.store.fingerprint and hosts.pids() == pids


def test_another_version_is_refused(hosts: TwoHosts) -> None:
    asker = ServiceClient(hosts.address, TOKEN, None)
    assert ask_by_name(asker, "membership", {}, 20.0)["num_servers"] == 2
    for body in ({"version": 99}, {"version": None}, {"version": [1]}):
        with pytest.raises(PlanError, match="of version"):
            ask_by_name(asker, "membership", body, 20.0)
    for name in ("part0/nodes/node/x.npy", "book/node/store_id.npy", "../../etc/passwd", None):
        with pytest.raises(GnnkitError, match="there is no public file"):
            ask_by_name(asker, "file", {"name": name}, 20.0)
    for announced in (None, {}, {"rank": 1}, [1], {**ask_by_name(asker, "membership", {}, 20.0)["servers"][1], "rank": -1}):
        with pytest.raises(GnnkitError, match="cannot be read"):
            ask_by_name(asker, "announce", {"server": announced}, 20.0)
    asker.close()
    assert hosts.join().fingerprint == hosts.store.fingerprint


def test_servers_that_do_not_belong_to_the_others(hosts: TwoHosts, stores: dict[int, Store], tmp_path: Path) -> None:
    store, words = hosts.store, {"num_servers": 2, "rank": 1, "addresses": (hosts.address,), "log_dir": str(tmp_path)}
    theirs, ours = store.fingerprint, stores[3].fingerprint
    wrong = [
        (stores[3], {}, StoreError, f"(?s){theirs}.*{ours}"),
        (store, {"num_servers": 3}, PlanError, "as one of 3, server 0 .* as one of 2"),
        (store, {}, PlanError, f"server 1 is at {HOSTS[1]}:[0-9]+ already"),
        (store, {"token": "x" * 20}, PlanError, "refused the token"),
    ]
    fleets = [serve(wanted.path, wanted.fingerprint, **{**words, **options}) for wanted, options, _, _ in wrong]
    try:
        for fleet, (_, _, kind, text) in zip(fleets, wrong, strict=True):
            with pytest.raises(kind, match=text):
                fleet.wait(READY_S)
    finally:
        for fleet in fleets:
            fleet.stop()
    assert hosts.join().fingerprint == theirs and {fleet.state for fleet in hosts.fleets} == {"ready"}


def test_addresses_that_cannot_be_listened_on(hosts: TwoHosts, tmp_path: Path) -> None:
    store, words = hosts.store, {"num_servers": 1, "log_dir": str(tmp_path)}
    wrong = [
        ({"addresses": (hosts.address,)}, f"server 0 cannot listen at {hosts.address}: Address already in use"),
        ({"addresses": ("192.0.2.1:7000",)}, r"'192.0.2.1' \(192.0.2.1\) is no address of this host"),
        ({"addresses": ("0.0.0.0:7000",)}, "means every interface"),
        ({"addresses": ("127.0.0.1:0",), "interface": "nonesuch0"}, "there is no interface 'nonesuch0'"),
        ({"addresses": ("127.0.0.1:0",), "interface": "127.0.0.2"}, "is to listen at 127.0.0.1:0, and the interface '127.0.0.2'"),
    ]
    fleets = [serve(store.path, store.fingerprint, **words, **options) for options, _ in wrong]
    try:
        for fleet, (_, text) in zip(fleets, wrong, strict=True):
            with pytest.raises(PlanError, match=text):
                fleet.wait(READY_S)
    finally:
        for fleet in fleets:
            fleet.stop()
    with pytest.raises(PlanError, match="'10.0.0.1' is no address"):
        serve(store.path, store.fingerprint, addresses=("10.0.0.1",))


def missing_of(fleet: Any) -> list[int] | None:
    """The servers that the only one of a fleet waits for; None until it has said anything of that."""
    network = fleet.status()["servers"][0]["network"]
    return None if network is None else network["missing"]


def test_who_is_missing_is_said(stores: dict[int, Store], tmp_path: Path) -> None:
    """The first server alone; a client that waits; then the second one comes."""
    store, address = stores[2], f"{HOSTS[0]}:{free_port(HOSTS[0])}"
    words = {"num_servers": 2, "addresses": (address,), "log_dir": str(tmp_path)}
    servers, events, found = Servers((address,), TOKEN, None, "client-tests", READY_S), Events(), []
    with pytest.raises(StartTimeout, match=rf"{address} were not ready within 1 s: the server at {address} (cannot be|does not)"):
        look(Servers((address,), TOKEN, None, "client-tests", 1.0), events)
    waiting = threading.Thread(target=lambda: found.append(look(servers, events)))
    waiting.start()
    first = serve(store.path, store.fingerprint, rank=0, **words)
    second = None
    try:
        assert wait_until(lambda: any("1 of 2 not there yet" in text for text in events.said), READY_S), events.said
        assert first.state == "joining" and wait_until(lambda: missing_of(first) == [1], READY_S)
        second = serve(store.path, store.fingerprint, rank=1, **words)
        waiting.join(READY_S)
        assert found and [server.rank for server in found[0].servers] == [0, 1]
        first.wait(READY_S)
        second.wait(READY_S)
    finally:
        first.stop()
        if second is not None:
            second.stop()
        waiting.join(READY_S)


# In a process of its own: an interrupt that comes where it is not expected would end the tests.
INTERRUPTED = """
import _thread, sys, threading, time

from gnnkit.cluster.network_child.client import Servers, look

begun, times = threading.Event(), []

def interrupt():
    begun.wait()
    times.append(time.monotonic())
    _thread.interrupt_main()

threading.Thread(target=interrupt).start()
try:
    look(Servers((sys.argv[1],), "a-token-of-many-characters", None, "client-tests", 1200.0), lambda event: begun.set())
except KeyboardInterrupt:
    print(time.monotonic() - times[0])
"""


def test_an_interrupt_that_does_not_end_a_wait_is_noticed() -> None:
    """One that comes just before a wait begins does not end it; ``interrupt_main`` sets what such a signal leaves behind."""
    words = [sys.executable, "-c", INTERRUPTED, f"{HOSTS[0]}:{free_port(HOSTS[0])}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert done.stdout and not done.stderr, done.stderr
    assert in_time(float(done.stdout), 3)


def test_servers_wait_for_each_other_for_so_long(stores: dict[int, Store], tmp_path: Path) -> None:
    store, address = stores[2], f"{HOSTS[0]}:{free_port(HOSTS[0])}"
    words = {"num_servers": 3, "addresses": (address,), "log_dir": str(tmp_path), "join_timeout_s": 1.0}
    fleets = [serve(store.path, store.fingerprint, rank=rank, **words) for rank in (0, 2)]
    try:
        with pytest.raises(StartTimeout, match=rf"of 3 did not come to {address} within 1 s"):
            fleets[0].wait(READY_S)
        with pytest.raises(StartTimeout, match=rf"of 3 did not come to {address} within 1 s"):
            fleets[1].wait(READY_S)
    finally:
        for fleet in fleets:
            fleet.stop()


def test_a_server_that_comes_back_takes_its_place_again(stores: dict[int, Store], tmp_path: Path) -> None:
    """Each of the two in turn, the one where they meet included, while the other goes on."""
    with two_hosts(stores[2], tmp_path) as hosts:
        before = hosts.join()
        for rank in (1, 0):
            pids = hosts.pids()
            hosts.kill(rank)
            assert wait_until(lambda rank=rank: hosts.fleets[rank].state == "degraded", READY_S)
            hosts.fleets[rank].revive()
            hosts.fleets[rank].wait(READY_S)
            after = hosts.join()
            assert hosts.pids()[1 - rank] == pids[1 - rank] and hosts.pids()[rank] != pids[rank]
            assert [server.address for server in after.servers] == [server.address for server in before.servers]
            assert after.placement == before.placement and after.servers[rank].start != before.servers[rank].start


def test_encrypted(stores: dict[int, Store], tmp_path: Path) -> None:
    """Between servers, and from there to a loader."""
    ca, key = certificate(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    with two_hosts(stores[2], tmp_path, tls=(ca.read_text(), key.read_text())) as hosts:
        backend = GraphStore(address=hosts.address, token=TOKEN, tls_ca=str(ca))
        with GraphLoader.from_store(backend=backend, progress=False, **OPTIONS) as loader:
            assert [digest([batch]) for batch in loader] == expected(stores[2])[0]
        assert all(fleet.status()["servers"][0]["network"]["encrypted"] for fleet in hosts.fleets)
        for wrong in (None, certificate(other)[0].read_text()):
            with pytest.raises(StartTimeout, match="(cannot be reached|does not answer)(?s:.*)tls_ca"):
                look(Servers((hosts.address,), TOKEN, wrong, "client-tests", 1.0), Events())
    for path, text in ((tmp_path / "nowhere.pem", "cannot be read"), (tmp_path / "key.pem", "holds no certificate")):
        with pytest.raises(PlanError, match=text):
            GraphLoader.from_store(backend=GraphStore(address="127.0.0.1:9", token=TOKEN, tls_ca=str(path)), num_neighbors=[2])


def test_the_token_is_nowhere(hosts: TwoHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in command lines, in environments of children, in logs, records or outlines."""
    monkeypatch.setenv("GNNKIT_TOKEN", TOKEN)
    with hosts.joining() as child:
        outline = child.join(READY_S).outline
        mine = {process.pid: process for process in family()}
        assert len(mine) >= 6, "servers, workers, the network child"
        for pid, process in mine.items():
            with contextlib.suppress(psutil.Error, OSError):  # one that has ended meanwhile
                assert TOKEN not in " ".join(process.cmdline())
                if pid != os.getpid():
                    assert TOKEN not in Path(f"/proc/{pid}/environ").read_text(errors="replace")
        assert TOKEN not in repr(hosts.fleets[0].status()) + repr(hosts.fleets[0].spec) + repr(child)
    roots = [Path(fleet.spec.log_dir or "") for fleet in hosts.fleets] + [outline, Path(os.environ["GNNKIT_HOME"]) / "runs"]
    files = [path for root in roots for path in root.rglob("*") if path.is_file()]
    assert any(path.name == "run.json" for path in files) and any(path.suffix == ".log" for path in files)
    assert not [path for path in files if TOKEN.encode() in path.read_bytes()]
    assert TOKEN not in json.dumps(GraphStore(address=hosts.address, token=TOKEN).to_json()) + repr(
        GraphStore(address=hosts.address, token=TOKEN)
    )


def test_a_store_that_is_not_the_servers(hosts: TwoHosts, stores: dict[int, Store]) -> None:
    backend, words = GraphStore(address=hosts.address, token=TOKEN), {"num_neighbors": [2], "progress": False}
    theirs, ours = hosts.store.fingerprint, stores[3].fingerprint
    with pytest.raises(StoreError, match=f"(?s){theirs}.*{ours}"):
        GraphLoader.from_store(stores[3].path, backend=backend, **words)
    with pytest.raises(StoreError, match="is of tiny, and ogbn-arxiv is wanted"):
        GraphLoader.from_ogb("ogbn-arxiv", backend=backend, **words)
    with pytest.raises(PlanError, match="was given no path"):
        GraphLoader.from_store(**words)
    with pytest.raises(PlanError, match="but the graph is on servers"):
        GraphLoader.from_store(backend=backend, placement="partition", **words)


def test_a_loader_needs_no_file_of_the_store(hosts: TwoHosts, tmp_path: Path) -> None:
    backend, want = GraphStore(address=hosts.address, token=TOKEN), expected(hosts.store)[0]
    with GraphLoader.from_store(backend=backend, progress=False, **OPTIONS) as loader:
        assert [digest([batch]) for batch in loader] == want
        loader.plan.save(tmp_path / "plan.json")
        text = (tmp_path / "plan.json").read_text()
        assert TOKEN not in text and hosts.address in text and loader.plan.placement is None
        assert loader.store.local_parts == () and loader.num_features == 5
        with pytest.raises(PlanError, match="the graph, which is on its servers"):
            loader.for_split("valid", backend="inprocess")
        with GraphLoader.from_plan(tmp_path / "plan.json", progress=False) as again:
            assert [digest([batch]) for batch in again] == want
        other = json.loads(text) | {"store": {"path": "/nowhere", "fingerprint": "0" * 64, "graph": "0" * 64}}
        (tmp_path / "other.json").write_text(json.dumps(other))
        with pytest.raises(StoreError, match=hosts.store.manifest.graph_fingerprint[:16]):
            GraphLoader.from_plan(tmp_path / "other.json", progress=False)
        elsewhere = tmp_path / "not" / "here"
        with GraphLoader.from_store(elsewhere, backend=backend, progress=False, **OPTIONS) as given:
            assert given.store.fingerprint == hosts.store.fingerprint, "a path that is not here is somebody else's"


def test_servers_of_its_own_on_the_network(stores: dict[int, Store]) -> None:
    backend = GraphStore(address="127.0.0.1:0", num_servers=2)
    with GraphLoader.from_store(stores[2].path, backend=backend, progress=False, **OPTIONS) as loader:
        assert [digest([batch]) for batch in loader] == expected(stores[2])[0]


def test_servers_of_other_formats() -> None:
    """Rules that no two servers of one installation can break."""
    own = ServerMember(0, 2, "10.0.0.1:7000", 1, 1, "abc", 1, "/s", 1, None)
    membership = Membership(own)
    with pytest.raises(StoreError, match=r"(?s)different formats: 1 \(abc\) on server 0, 2 \(def\) on server 1"):
        membership.announce(ServerMember(1, 2, "10.0.0.2:7000", 1, 2, "def", 2, "/s", 1, None))
    assert membership.missing() == [1] and "different formats" in membership.refused[1]


def test_the_network_child_is_killed(hosts: TwoHosts) -> None:
    with hosts.joining() as child:
        child.join(READY_S)
        (pid,) = [p.pid for p in family()[0].children() if "network_child" in " ".join(p.cmdline())]
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(GnnkitError, match=f"the proxy \\(pid {pid}\\) was killed"):
            for _ in range(100):
                child.call(0, "status", {}, READY_S)

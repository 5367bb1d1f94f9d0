"""A server's Unix listener: who comes in, what workers do for several clients, and what nobody can do to a server."""

from __future__ import annotations

import array
import contextlib
import json
import os
import random
import select
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from gnnkit import GraphStoreServers, Store
from gnnkit.cluster.serving.listener import ClientListener
from gnnkit.cluster.serving.loop import ClientSessions
from gnnkit.errors import PlanError
from gnnkit.runtime.wire import Wire
from tests.cluster.serving.setups import (
    FAULT_S,
    Caller,
    Trainer,
    arrays_of,
    blocks_of,
    expected_batches,
    hear,
    ready_servers,
    refusal,
    server_pids,
    worker_pids,
)
from tests.helpers.waiting import HANG_S, wait_until


@pytest.fixture(scope="module")
def servers(store: Store) -> Iterator[GraphStoreServers]:
    """One server with one worker."""
    with ready_servers(store, 1) as handle:
        yield handle


def is_let_go(caller: Caller) -> bool:
    """Whether the server has closed the connection."""
    try:
        return caller.wire.receive() is not None
    except EOFError:
        return True


def test_a_client_is_welcome_and_told_what_the_server_is(servers: GraphStoreServers, store: Store) -> None:
    with Caller(servers) as caller:
        welcome = caller.join()
        assert welcome.kind == "welcome"
        body = welcome.body
        assert (body["rank"], body["num_servers"], body["pid"], body["state"]) == (0, 1, server_pids(servers)[0], "ready")
        manifest = json.loads((store.path / "manifest.json").read_text())
        assert body["store"] == {"path": str(store.path), "fingerprint": store.fingerprint, "format": manifest["format_version"]}
        assert (body["parts"], body["workers"], body["threads"]) == ([0, 1], 1, 1) and Path(body["log"]).is_file()
        caller.wire.send("call", number=1, name="status", args={})
        assert hear(caller.wire).body["value"]["workers"][0]["pid"] == worker_pids(servers)[0, 0]
        assert servers.token not in json.dumps(body)
        assert wait_until(lambda: servers.status()["clients"] == 1)
    assert wait_until(lambda: servers.status()["clients"] == 0)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ({"token": "a token of somebody else's"}, "refused the token"),
        ({"token": ""}, "refused the token"),
        ({"token": None}, "refused the token"),
        ({"token": "\ud800"}, "refused the token"),
        ({"token": "wrong, and looked at first", "version": 77}, "refused the token"),
        ({"version": 77}, "speaks version 8 to its clients, and this one 77"),
        ({"version": None}, "speaks version 8"),
    ],
)
def test_a_wrong_token_or_version_is_refused(servers: GraphStoreServers, words: dict[str, object], complaint: str) -> None:
    with Caller(servers) as caller:
        error = refusal(caller.join(**words))
        assert isinstance(error, PlanError) and complaint in str(error) and servers.token not in str(error)
        assert wait_until(lambda: is_let_go(caller))


GARBAGE = {
    "a byte": b"\0",
    "noise": random.Random(0).randbytes(3000),
    "a list": b"[1, 2]",
    "another message": b'{"kind": "enlist"}',
    "deep": b"[" * 4000,
    "a long join": b'{"kind": "join", "token": "' + b"x" * 20_000 + b'"}',
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
}


@contextlib.contextmanager
def descriptor_to_close() -> Iterator[int]:
    """A descriptor of which nobody is to have a copy in the end."""
    reader, writer = os.pipe()
    try:
        try:
            yield writer
        finally:
            os.close(writer)
        poller = select.poll()
        poller.register(reader, 0)
        assert wait_until(lambda: poller.poll(0)), "somebody has kept it"
    finally:
        os.close(reader)


@pytest.mark.parametrize("said", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_is_sent_away(servers: GraphStoreServers, said: bytes) -> None:
    pid = server_pids(servers)[0]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
        end.connect(str(servers.folder / "server-0.sock"))
        end.settimeout(HANG_S)
        end.send(said)
        with contextlib.suppress(ConnectionResetError):
            assert end.recv(100) == b""
    with Caller(servers) as caller:
        assert caller.join().kind == "welcome"
    assert server_pids(servers) == {0: pid}


@pytest.mark.skipif(os.geteuid() != 0, reason="a socket takes messages of a million bytes from root alone")
def test_a_million_bytes_and_descriptors_are_sent_away(servers: GraphStoreServers) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
        end.setsockopt(socket.SOL_SOCKET, 32, 4 << 20)  # SO_SNDBUFFORCE
        end.connect(str(servers.folder / "server-0.sock"))
        end.send(b'{"kind": "join", "token": "' + b"x" * 1_000_000 + b'"}')
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end, descriptor_to_close() as fd:
        end.connect(str(servers.folder / "server-0.sock"))
        end.settimeout(HANG_S)
        end.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd] * 50))])
        assert end.recv(100) == b""
    with Caller(servers) as caller:
        assert caller.join().kind == "welcome"


@pytest.mark.slow
def test_silent_visitors_go_and_keep_nobody_out(servers: GraphStoreServers) -> None:
    """Two hundred connections at a time, none of which says anything: the listener stays open, and they are gone after a while."""
    silent, pid = [Caller(servers) for _ in range(200)], server_pids(servers)[0]
    try:
        with Caller(servers) as caller:
            assert caller.join().kind == "welcome"
            assert len(os.listdir(f"/proc/{pid}/fd")) < 150
            assert wait_until(lambda: all(is_let_go(other) for other in silent), 5.0 + FAULT_S)
            caller.wire.send("call", number=1, name="status", args={})
            assert hear(caller.wire).body["value"]["state"] == "ready"
    finally:
        for other in silent:
            other.close()


def test_descriptors_that_nobody_asked_for_are_closed(servers: GraphStoreServers) -> None:
    with Caller(servers) as caller, Caller(servers) as rude, descriptor_to_close() as fd:
        assert caller.join().kind == rude.join().kind == "welcome"
        caller.wire.send("call", (fd, fd), number=1, name="status", args={})
        caller.wire.send("enlist", (fd, fd))
        assert hear(caller.wire, "answer") and hear(caller.wire, "worker")
        rude.wire._end.sendmsg([b"no message"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd] * 3))])
        assert wait_until(lambda: is_let_go(rude))


def test_an_answer_that_cannot_be_sent_is_an_error_of_the_one_who_asked() -> None:
    class Host:
        pool = None

        def answer(self, client: str, name: str, args: object, reply: Callable[[object], None]) -> None:
            reply(object())  # later, and in the middle of other things, in a server

        def came(self, client: str) -> None: ...
        def left(self, client: str) -> None: ...

    sessions, (ours, theirs) = ClientSessions(Host(), dict), Wire.pair()  # type: ignore[arg-type]
    sessions.enter(Wire(theirs), {"client": "a"})
    assert ours.next().kind == "welcome"
    ours.send("call", number=4, name="describe", args={})
    sessions.attend(set(sessions.filenos()))
    answer = ours.next().body
    assert answer["number"] == 4 and "cannot be sent" in answer["error"]["message"]
    sessions.close()
    ours.close()


def test_nonsense_after_joining_ends_that_client_alone(servers: GraphStoreServers) -> None:
    with Caller(servers) as good, Caller(servers) as bad, Caller(servers) as worse:
        for caller in (good, bad, worse):
            assert caller.join().kind == "welcome"
        bad.wire.send("dance", (0,))
        worse.wire.send("call", number="x", name=[], args=7)
        assert wait_until(lambda: is_let_go(bad) and is_let_go(worse))
        good.wire.send("call", number=3, name="no such call", args={})
        answer = hear(good.wire, "answer")
        assert answer.body["number"] == 3 and "no such call" in answer.body["error"]["message"]


def test_processes_of_other_users_are_sent_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[object] = []
    listener = ClientListener(tmp_path, 0, "the token of this test", lambda wire, body: entered.append(wire))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
        end.connect(str(listener.path))
        end.settimeout(HANG_S)
        assert end.recv(100) == b""
    listener.close()
    assert not entered and not listener.path.exists()


def test_a_folder_with_a_long_path(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120) / ("y" * 120)
    folder.mkdir(parents=True)
    listener = ClientListener(folder, 3, "the token of this test", lambda wire, body: None)
    assert listener.path.is_socket() and listener.path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(PlanError, match="another process is server 3"):
        ClientListener(folder, 3, "the token of this test", lambda wire, body: None)
    listener.close()


# Workers with several clients ------------------------------------------------------------------------------------------------


def test_clients_share_a_worker_and_nothing_else(servers: GraphStoreServers, store: Store) -> None:
    """The same numbers mean something else to each of them; batches are those that this process samples."""
    plan, batches = expected_batches(store)
    other_plan, other_batches = expected_batches(store, seed=8, num_neighbors=[2])
    one, two = Trainer(servers, "one"), Trainer(servers, "two")
    assert one.worker_pid == two.worker_pid == worker_pids(servers)[0, 0]
    one.open(1, plan)
    two.open(1, other_plan)
    for index in range(4):
        for trainer in (one, two):
            trainer.ask(1, index)
    for trainer, wanted in ((one, batches), (two, other_batches)):
        for _ in range(4):
            message, subgraph = trainer.batch()
            found, batch = arrays_of(subgraph), wanted[message.body["number"]]
            for name in ("x", "n_id", "edge_index", "input_id", "edge_attr"):
                assert np.array_equal(found[name], batch[name].numpy()), name
        trainer.close()


def test_what_a_client_had_goes_with_it(servers: GraphStoreServers, store: Store) -> None:
    plan, _ = expected_batches(store)
    leaving, staying = Trainer(servers, "leaving"), Trainer(servers, "staying")
    rings = {}
    for trainer in (leaving, staying):
        trainer.open(1, plan)
        rings[trainer] = trainer.give_ring(1)
        trainer.worker.send("sample", c=1, g=1, epoch=0, steps=[[0, 0, 0]])
        assert hear(trainer.worker).kind == "done"
    assert set(rings.values()) <= blocks_of(leaving.worker_pid, "gnnkit-ring")
    for step in range(1, 5):
        leaving.worker.send("sample", c=1, g=1, epoch=0, steps=[[step, step, 0]])
    leaving.worker.close()
    assert wait_until(lambda: rings[leaving] not in blocks_of(staying.worker_pid, "gnnkit-ring"), FAULT_S)
    staying.ask(1, 1)
    staying.batch()
    # The connection at the listener counts as well.
    leaving.wire.close()
    staying.wire.close()
    assert wait_until(lambda: rings[staying] not in blocks_of(staying.worker_pid, "gnnkit-ring"), FAULT_S)
    staying.worker.close()


def test_a_client_that_reads_nothing_keeps_nobody_waiting(servers: GraphStoreServers, store: Store) -> None:
    plan, _ = expected_batches(store)
    paused, reading = Trainer(servers, "paused"), Trainer(servers, "reading")
    for trainer in (paused, reading):
        trainer.open(1, plan)
        trainer.give_ring(1)
    for step in range(2000):  # far more answers than a socket holds
        paused.worker.send("sample", c=1, g=1, epoch=0, steps=[[step, step % 8, 0]])
    assert paused.worker.send_all(HANG_S)
    for index in range(8):
        reading.ask(1, index)
    assert {reading.batch()[0].body["number"] for _ in range(8)} == set(range(8))
    steps = [hear(paused.worker).body["batches"][0]["step"] for _ in range(2000)]  # nothing is lost meanwhile
    assert sorted(steps) == list(range(2000))
    paused.close()
    reading.close()


def test_a_client_that_asks_for_what_cannot_be_is_let_go_alone(servers: GraphStoreServers, store: Store) -> None:
    plan, _ = expected_batches(store)
    good = Trainer(servers, "good")
    good.open(1, plan)
    nonsense: tuple[dict[str, object], ...] = (
        {"kind": "sample"},
        {"kind": "open", "c": 1, "plan": {"store": 3}, "trial": None},
        {"kind": "stop"},
        {"kind": "client", "client": 1},
    )
    for body in nonsense:
        bad = Trainer(servers, "bad")
        bad.worker.send(str(body.pop("kind")), **body)
        message = hear(bad.worker)
        assert message.kind == "failed" and message.body["error"]["message"]
        with pytest.raises(EOFError):
            hear(bad.worker)
        bad.close()
    with Caller(servers) as _:
        raw = Trainer(servers, "raw")
        raw.worker._end.send(b"{not json")
        with pytest.raises(EOFError):
            hear(raw.worker)
        raw.close()
    good.ask(1, 0)
    good.batch()
    assert worker_pids(servers)[0, 0] == good.worker_pid
    good.close()


def test_the_worker_rests_when_nobody_asks(servers: GraphStoreServers) -> None:
    """Connections that come and go leave no descriptors behind, and nobody spins."""
    pid, worker = server_pids(servers)[0], worker_pids(servers)[0, 0]
    Trainer(servers).close()
    assert wait_until(lambda: servers.status()["clients"] == 0)

    def leave_nothing() -> bool:
        before = [len(os.listdir(f"/proc/{each}/fd")) for each in (pid, worker)]
        for _ in range(20):
            Trainer(servers).close()
        return wait_until(lambda: [len(os.listdir(f"/proc/{each}/fd")) for each in (pid, worker)] <= before, 5.0)

    # A copy of the graph, which stays, may be made during one of them.
    assert any(leave_nothing() for _ in range(3))

    def used() -> int:
        return sum(sum(map(int, Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[11:13])) for each in (pid, worker))

    ticks, started = used(), time.monotonic()
    time.sleep(1.0)  # what is measured is how much of it they use
    spent, passed = used() - ticks, time.monotonic() - started
    assert spent <= 20 * passed, f"{spent} ticks in {passed:.1f} s"

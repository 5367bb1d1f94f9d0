"""Servers, their workers and clients that die or stop: always an answer within seconds, and everybody else goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gnnkit import GraphLoader, GraphStore, GraphStoreServers, Store, serve
from gnnkit.errors import BatchTimeout, StartTimeout, WorkerDied
from tests.backends.setups import is_gone, workers
from tests.cluster.hosts.setups import OPTIONS, expected
from tests.cluster.serving import clients
from tests.cluster.serving.clients import Trainer, digests, server_of
from tests.cluster.serving.setups import FAULT_S, blocks_of, ready_servers, server_pids, worker_pids
from tests.helpers.machine import in_time
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.slow

# More batches than a ring has slots: an epoch is not sampled before its first batch is used.
SMALL: dict[str, Any] = {**OPTIONS, "batch_size": 2}


@pytest.fixture(scope="module")
def wanted(store: Store) -> list[list[str]]:
    """The digests of some epochs' batches, sampled in this process."""
    return expected(store, 4, **SMALL)


def joined(address: str, store: Store, options: dict[str, Any] | None = None, **more: Any) -> GraphLoader:
    """A loader with small batches on servers of this host."""
    return clients.joined(address, store, options, **{**SMALL, **more})


@pytest.fixture
def restarting(store: Store) -> Iterator[GraphStoreServers]:
    """Two servers that are started again, as their workers are."""
    with ready_servers(store, max_restarts=4) as handle:
        yield handle


@pytest.fixture
def servers(store: Store) -> Iterator[GraphStoreServers]:
    """Two servers that nobody starts again."""
    with ready_servers(store) as handle:
        yield handle


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: is_gone(pid))


@pytest.mark.core
def test_a_server_is_killed_in_the_middle_of_an_epoch(servers: GraphStoreServers, store: Store, wanted: list[list[str]]) -> None:
    """Every client in an epoch is told, here and in another process; the other server goes on for both."""

    def train() -> Iterator[Any]:
        with joined(servers.address, store) as loader:
            iterator = iter(loader)
            found = digests([next(iterator)])
            yield "begun"
            try:
                found += digests(iterator, 0.02)
            except WorkerDied as error:
                yield str(error)
            yield found + digests(loader.resume())

    with Trainer(train) as other, joined(servers.address, store) as loader, joined(servers.address, store, seed=9) as idle:
        assert other.next() == "begun"
        list(idle)
        iterator = iter(loader)
        found = digests([next(iterator)])
        pid, log = server_pids(servers)[1], servers.status()["servers"][1]["log"]
        text = killed_under(iterator, pid, found)
        assert f"server 1 (pid {pid})" in text and "is gone" in text and log in text and "client" in text  # the end of its log
        assert "loader.resume()" in text
        found += digests(loader.resume())
        assert found == wanted[0]
        assert list(workers(loader)) == [0] and "1 of 2 servers" in repr(loader)
        assert digests(idle.resume()) == [] and len(digests(idle)) == len(wanted[0])
        other.go_on()
        told = other.next()
        assert f"server 1 (pid {pid})" in told
        other.go_on()
        assert other.next() == wanted[0]
        assert_a_death_of_a_worker(servers, loader, wanted)


def killed_under(iterator: Iterator[Any], pid: int, found: list[str]) -> str:
    """Kills a process in the middle of an epoch, adds the digests of what still comes to ``found``, and gives the error's text."""
    kill(pid)
    started = time.monotonic()
    with pytest.raises(WorkerDied) as caught:
        for batch in iterator:
            found += digests([batch])
            time.sleep(0.02)
    assert in_time(time.monotonic() - started, FAULT_S)
    return str(caught.value)


def assert_a_death_of_a_worker(servers: GraphStoreServers, loader: GraphLoader, wanted: list[list[str]]) -> None:
    """It is an error, and the server starts another one when somebody asks."""
    loader.set_epoch(1)
    iterator = iter(loader)
    found = digests([next(iterator)])
    pid = worker_pids(servers)[0, 0]
    text = killed_under(iterator, pid, found)
    assert f"sampling process 0 of server 0 (pid {pid}) was killed by SIGKILL" in text
    assert found + digests(loader.resume()) == wanted[1]
    assert pid not in workers(loader).values()


def test_no_server_is_left(store: Store) -> None:
    with serve(store, 1, progress=False) as servers, contextlib.ExitStack() as stack:
        servers.wait()
        loader = stack.enter_context(joined(servers.address, store, start_timeout_s=3.0))
        iterator = iter(loader)
        next(iterator)
        kill(server_pids(servers)[0])
        with pytest.raises(WorkerDied, match="server 0"):
            digests(iterator, 0.02)
        for use in (lambda: digests(loader.resume()), loader.peek):
            started = time.monotonic()
            with pytest.raises(
                StartTimeout, match=r"no server came back within 3 s; 1 of 1 missing: server 0 is not there \(no server listens"
            ):
                use()
            assert in_time(time.monotonic() - started, 3 + FAULT_S)
        servers.revive()  # under the same address
        servers.wait()
        assert len(loader.peek().input_id) == SMALL["batch_size"]
        assert len(digests(loader)) == len(loader)
        servers.stop()  # they do not come back, and nobody waits for them
        for use in (loader.peek, lambda: digests(loader)):
            with pytest.raises(WorkerDied, match="were stopped"):
                use()


def test_what_comes_back_is_only_a_pause(restarting: GraphStoreServers, store: Store, wanted: list[list[str]]) -> None:
    """A worker that its server starts again; a server; both servers."""
    with joined(restarting.address, store, {"max_restarts": 3}) as loader:
        iterator = iter(loader)
        found = digests([next(iterator)])
        kill(worker_pids(restarting)[1, 0])
        with pytest.warns(RuntimeWarning, match=r"sampling process 0 of server 1 .* SIGKILL; its server .*sampled again"):
            found += digests(iterator, 0.03)
        assert found == wanted[0]
        for epoch, ranks in ((1, [1]), (2, [0, 1])):
            assert wait_until(lambda: digests(loader) and len(workers(loader)) == 2, 20)
            loader.set_epoch(epoch)
            iterator = iter(loader)
            found = digests([next(iterator)])
            before = server_of(loader)
            for rank in ranks:
                kill(before[rank])
            with pytest.warns(RuntimeWarning, match=r"server \d .* is gone; it is waited for \(\d of max_restarts=3\)"):
                found += digests(iterator, 0.03)
            assert found == wanted[epoch]


def test_a_client_that_is_killed_leaves_nothing(pair: GraphStoreServers, store: Store, wanted: list[list[str]]) -> None:
    def train() -> Iterator[Any]:
        loader = joined(pair.address, store)
        iterator = iter(loader)
        next(iterator)
        yield os.getpid()

    pids = list(worker_pids(pair).values())
    before = {pid: blocks_of(pid, "gnnkit-ring") for pid in pids}
    with joined(pair.address, store) as loader, Trainer(train) as other:
        iterator = iter(loader)
        found = digests([next(iterator)])
        other.next()
        assert all(len(blocks_of(pid, "gnnkit-ring") - before[pid]) == 2 for pid in pids)
        clients = pair.status()["clients"]
        other.end()
        assert wait_until(lambda: all(len(blocks_of(pid, "gnnkit-ring") - before[pid]) == 1 for pid in pids))
        assert wait_until(lambda: pair.status()["clients"] == clients - 1)
        assert found + digests(iterator) == wanted[0]
    assert wait_until(lambda: all(blocks_of(pid, "gnnkit-ring") == before[pid] for pid in pids))


def test_a_worker_that_is_stopped(pair: GraphStoreServers, store: Store, wanted: list[list[str]]) -> None:
    with joined(pair.address, store, batch_timeout_s=2.5) as loader:
        iterator = iter(loader)
        found = digests([next(iterator)])
        pid, server = worker_pids(pair)[0, 0], server_pids(pair)[0]
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(BatchTimeout, match=rf"sampling process 0 \(pid {pid}\) of server 0 \(pid {server}\) is stopped") as caught:
                for batch in iterator:
                    found += digests([batch])
            assert "was last seen" in str(caught.value)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert found + digests(iterator) == wanted[0]


def test_a_server_that_is_stopped(pair: GraphStoreServers, store: Store, wanted: list[list[str]]) -> None:
    """Who has joined goes on: the server is not in the way of batches. Who comes then is told."""
    with joined(pair.address, store) as loader:
        pid = server_pids(pair)[1]
        os.kill(pid, signal.SIGSTOP)
        try:
            assert digests(loader) == wanted[0]
            backend = GraphStore(address=pair.address, join_timeout_s=4.0)
            started = time.monotonic()
            with pytest.raises(StartTimeout, match="1 of 2 missing: server 1 does not answer"):
                GraphLoader.from_store(store.path, backend=backend, progress=False, **{**SMALL, "seed": 4})
            assert in_time(time.monotonic() - started, 4 + FAULT_S)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert digests(loader) == wanted[1]


def test_servers_of_its_own_are_started_again(store: Store, wanted: list[list[str]]) -> None:
    with GraphLoader.from_store(store.path, backend=GraphStore(1), progress=False, **SMALL) as loader:
        iterator = iter(loader)
        found = digests([next(iterator)])
        pid = server_of(loader)[0]
        kill(pid)
        started = time.monotonic()
        with pytest.raises(WorkerDied, match=rf"server 0 \(pid {pid}\) was killed by SIGKILL"):
            for batch in iterator:
                found += digests([batch])
                time.sleep(0.02)
        assert in_time(time.monotonic() - started, FAULT_S)
        assert found + digests(loader.resume()) == wanted[0]
        pids = [*server_of(loader).values(), *workers(loader).values()]
        kill(pids[0])
        assert wait_until(lambda: all(is_gone(pid) for pid in pids))
        assert len(loader.peek().input_id) == SMALL["batch_size"]

"""Batches that servers of other hosts walk, and whose rows come from their owners: the same ones, also when something dies.

The servers listen on loopback; what it takes to join them from another host is in ``test_join.py`` and ``test_namespaces.py``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnkit import BuildOptions, GraphLoader, GraphStore, GraphStoreServers, Store, serve
from gnnkit.cluster.network.client import ServiceClient
from gnnkit.errors import BatchTimeout, GnnkitError, PlanError, WorkerDied
from tests.backends.test_contract import typed_source
from tests.cluster.serving.networked import two_hosts
from tests.cluster.serving.setups import OPTIONS, blocks_of, expected_batches, server_pids, worker_pids
from tests.helpers.batches import same
from tests.helpers.graphs import stored
from tests.helpers.waiting import wait_until
from tests.helpers.wires import ask_by_name, asked

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def served(store: Store, folder: Path, num_servers: int = 2, **options: Any) -> Iterator[GraphStoreServers]:
    """Servers of one host that listen on loopback, ready."""
    with serve(store, num_servers, address="127.0.0.1:0", log_dir=folder / "servers", progress=False, **options) as servers:
        servers.wait(120)
        yield servers


def joined(servers: GraphStoreServers, store: Store, **options: Any) -> GraphLoader:
    """A loader of theirs."""
    words = ("max_restarts", "worker_concurrency")
    backend = GraphStore(address=servers.address, token=servers.token, **{word: options.pop(word) for word in words if word in options})
    return GraphLoader.from_store(store.path, backend=backend, progress=False, **{**OPTIONS, **options})


def receiver(loader: GraphLoader) -> int:
    """Pid of a loader's receiving process."""
    return int(loader.status().details["pids"][0])


def check(loader: GraphLoader, store: Store, epochs: int = 2, **options: Any) -> None:
    """Whether a loader's epochs are those of this process, and so are batches outside them."""
    with GraphLoader.from_store(store.path, backend="inprocess", progress=False, **{**OPTIONS, **options}) as reference:
        loader.set_epoch(0)
        for _ in range(epochs):
            for batch, wanted in zip(loader, reference, strict=True):
                same(batch, wanted)
        same(loader.peek(), reference.peek())
        for ids in ([3, 1, 2], []):
            same(loader.sample(ids, epoch=4, index=2), reference.sample(ids, epoch=4, index=2))


@pytest.mark.core
def test_typed_batches_are_the_same(tmp_path: Path) -> None:
    """Three parts, weights, edges with ids and arrays, walked from sources to targets; the second of three trainers."""
    source: Any = typed_source()
    build: dict[str, Any] = {"num_parts": 3, "partition": "random", "edge_dir": "out", "weight": "weight", "with_edge": True}
    words = {"num_neighbors": [-1, 2], "input_nodes": next(iter(source.splits)), "weight": "weight", "with_edge": True, "replace": True}
    store = stored(source, tmp_path / "store", BuildOptions(**build))
    words |= {"batch_size": 7, "rank": 1, "world_size": 3}
    with served(store, tmp_path) as servers, joined(servers, store, **words) as loader:
        check(loader, store, **words)


def test_parts_of_two_hosts(store: Store, tmp_path: Path) -> None:
    """Each server has its own part only: they walk together, and each is asked for its rows."""
    with two_hosts(store, tmp_path) as hosts:
        backend = GraphStore(address=hosts.address, token=hosts.fleets[0].token)
        with GraphLoader.from_store(backend=backend, progress=False, **OPTIONS) as loader:
            check(loader, store)


@pytest.fixture(scope="module")
def servers(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GraphStoreServers]:
    """Two servers, which no test breaks."""
    with served(store, tmp_path_factory.mktemp("wire")) as both:
        yield both


def test_loaders_share_the_servers(servers: GraphStoreServers, store: Store) -> None:
    """One that nobody reads from keeps nobody waiting; what has come and gone is known."""
    with joined(servers, store) as train, joined(servers, store, input_nodes="valid") as valid:
        first, others = next(iter(train)), [batch for _ in range(3) for batch in valid]
        assert len(others) == 9 and int(first.input_id.numel()) == 8
        check(train, store, 1)
        check(valid, store, 1, input_nodes="valid")
        wire = train.status().details["wire"]
        assert wire["received"] > sum(batch.x.nbytes for batch in others) and wire["sent"] > 0
        assert len(servers.status()["servers"]) == 2
        with pytest.raises(PlanError, match="not this process's to restart"):
            train.restart_workers()
        assert [process.name for process in train.status().processes] == ["trainer", "receiver"]
    assert wait_until(lambda: servers.status()["clients"] == 0), "who leaves says so"


def test_a_server_that_does_not_answer(servers: GraphStoreServers, store: Store) -> None:
    """Until the deadline; one that comes to in time is none the worse for it."""
    pid = server_pids(servers)[1]
    with joined(servers, store, batch_timeout_s=60) as patient, joined(servers, store, batch_timeout_s=1.5) as hasty:
        for loader in (patient, hasty):
            assert len(list(loader)) == 8
        os.kill(pid, signal.SIGSTOP)
        try:
            with (
                warnings.catch_warnings(),
                pytest.raises(BatchTimeout, match=r"server 1 \(127\.0\.0\.1:\d+\) has not done its share"),
            ):
                warnings.simplefilter("ignore")  # of which half of the time gives one
                for _ in range(10):
                    list(hasty)
            waiting = Reader(patient)
            assert not waiting.ended.wait(1)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert waiting.ended.wait(60) and (waiting.error, waiting.count) == (None, 8)
        check(hasty, store, 1)


class Reader(threading.Thread):
    """Reads an epoch in a thread.

    Attributes:
        count: Batches that have come.
        error: What it ended with.
        ended: Whether it has.
    """

    def __init__(self, loader: GraphLoader) -> None:
        super().__init__(daemon=True)
        self.error: GnnkitError | None = None
        self.count, self.ended, self._loader = 0, threading.Event(), loader
        self.start()

    def run(self) -> None:
        """Reads."""
        try:
            for _ in self._loader:
                self.count += 1
        except GnnkitError as error:
            self.error = error
        self.ended.set()


def test_a_receiver_that_is_killed(servers: GraphStoreServers, store: Store) -> None:
    """It is an error, its loader goes on, and the servers forget what it had there; others are not disturbed."""

    def rings() -> list[int]:
        return [len(blocks_of(pid, "gnnkit-ring")) for pid in worker_pids(servers).values()]

    with joined(servers, store) as other:
        check(other, store, 1)
        assert rings() == [1, 1]
        with joined(servers, store) as loader:
            batches = iter(loader)
            next(batches)
            os.kill(receiver(loader), signal.SIGKILL)
            with pytest.raises(WorkerDied, match=r"receiving process 0 \(pid \d+\) was killed"):
                for _ in range(10):
                    list(batches)
                    batches = iter(loader)
            check(loader, store, 1)
        check(other, store, 1)
        assert wait_until(lambda: rings() == [1, 1], 30), "it says nothing any more"


def test_a_loader_that_is_closed_while_it_waits(servers: GraphStoreServers, store: Store) -> None:
    """What it was waiting for does not make it known to the servers again."""

    def rings() -> list[int]:
        return [len(blocks_of(pid, "gnnkit-ring")) for pid in worker_pids(servers).values()]

    with joined(servers, store) as stays:
        check(stays, store, 1)
        leaves = joined(servers, store, input_nodes="valid")
        check(leaves, store, 1, input_nodes="valid")
        assert rings() == [2, 2]
        for pid in worker_pids(servers).values():
            os.kill(pid, signal.SIGSTOP)
        try:
            reader = Reader(leaves)
            assert not reader.ended.wait(1), "it has asked for batches that nobody samples"
            leaves.close()
        finally:
            for pid in worker_pids(servers).values():
                os.kill(pid, signal.SIGCONT)
        assert reader.ended.wait(60)
        check(stays, store, 1)
        assert wait_until(lambda: rings() == [1, 1], 30)


def test_requests_that_make_no_sense(servers: GraphStoreServers, store: Store) -> None:
    """They are their sender's errors; another plan under the same key is one, too."""
    address, token = servers.address, servers.token
    head = asked(store, client="client-a/1", key="k", timeout_s=20.0)
    plan = expected_batches(store)[0].to_json()
    client = ServiceClient(address, token, None)

    def do(name: str, args: dict[str, Any]) -> Any:
        return ask_by_name(client, name, args, 60.0)

    def walk(**words: Any) -> int:
        layout, block = do("walk", {**head, "epoch": 0, "batch": 0, "seeds": None, **words})
        return int(json.loads(layout)["num_seeds"]) if len(block) else 0

    wrong: list[dict[str, Any]] = [{}, {"epoch": -1}, {"batch": "x"}, {"client": "somebody"}, {"key": None}, {"timeout_s": "x"}]
    for words in [*wrong, {"fingerprint": "0"}, {"seeds": [1, 2]}, {"seeds": np.ones((2, 2), np.int64)}, {"seeds": np.ones(2)}]:
        with pytest.raises(GnnkitError):
            walk(**words)
    bad = {**plan, "inputs": {**plan["inputs"], "node_type": "nobody"}}
    for registered in (None, 3, {}, bad, {**plan, "inputs": np.arange(3)}):
        with pytest.raises(GnnkitError):
            do("add_loader", {**head, "plan": registered})
    for _ in range(2):  # the second time it is known
        do("add_loader", {**head, "plan": plan})
    with pytest.raises(PlanError, match="another plan"):
        do("add_loader", {**head, "plan": {**plan, "batching": {**plan["batching"], "seed": 9}}})
    assert walk() == plan["batching"]["batch_size"] and walk(seeds=np.array([1, 2, 3])) == 3
    with pytest.raises(GnnkitError, match="index 1000000000 is out of bounds"):
        walk(seeds=np.array([10**9]))
    do("remove_loader", head)
    with pytest.raises(GnnkitError, match=re.escape("no loader 'k' of client-a/1")):
        walk()
    client.close()
    with joined(servers, store) as loader:
        check(loader, store, 1)


def test_servers_and_workers_that_are_killed(store: Store, tmp_path: Path) -> None:
    """A server is named at once; when it runs again at its address, the same loaders go on, and those that may wait for it lose nothing."""
    with served(store, tmp_path) as servers, joined(servers, store) as loader, joined(servers, store, max_restarts=1) as patient:
        wanted, batches = expected_batches(store)[1], iter(loader)
        got = [next(iterator := iter(patient))]
        next(batches)
        os.kill(server_pids(servers)[1], signal.SIGKILL)
        with pytest.raises(WorkerDied, match=r"server 1 \(127\.0\.0\.1:\d+\) is gone"):
            for _ in range(10):
                list(batches)
                batches = iter(loader)
        servers.revive()
        for batch, other in zip([*got, *iterator], wanted, strict=True):
            same(batch, other)
        servers.wait(60)
        check(loader, store)

        worker = worker_pids(servers)[0, 0]
        os.kill(worker, signal.SIGSTOP)  # it will have something to do when it dies
        received, reader = loader.status().details["wire"]["received"], Reader(loader)
        assert wait_until(lambda: loader.status().details["wire"]["received"] > received, 30), "the other server goes on"
        os.kill(worker, signal.SIGKILL)
        assert reader.ended.wait(60) and "sampling process 0 of server 0" in str(reader.error)
        check(loader, store, 1)

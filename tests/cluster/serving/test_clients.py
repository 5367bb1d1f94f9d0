"""Loaders on servers of this host: the same batches as in this process, many clients at once, and clear words where they cannot join."""

from __future__ import annotations

import gc
import itertools
import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnkit import GraphLoader, GraphStore, GraphStoreServers, InProcess, Store, serve
from gnnkit.backends import backend_from_json, resolve_backend
from gnnkit.cluster.serving.spec import required
from gnnkit.errors import PlanError, StartTimeout, StoreError
from tests.backends.setups import descendants, is_gone, loader_of, workers
from tests.backends.test_contract import typed_source
from tests.cluster.hosts.setups import OPTIONS, expected
from tests.cluster.serving.clients import Trainer, digests, joined, leftovers, server_of
from tests.cluster.serving.setups import ANSWER_S, FAULT_S, blocks_of, worker_pids
from tests.helpers.batches import same
from tests.helpers.graphs import built
from tests.helpers.waiting import wait_until
from tests.loader.graphs import make, plain

pytestmark = pytest.mark.slow

TYPED: dict[str, Any] = {"num_neighbors": [4, 3], "batch_size": 7, "shuffle": True, "progress": False}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Store]:
    """The same typed graph in 1, 2 and 3 parts."""
    folder = tmp_path_factory.mktemp("typed")
    kinds = {1: "contiguous", 2: "random", 3: "ldg"}
    return {
        parts: built(typed_source(), folder / str(parts), parts, partition, weight="weight", with_edge=True)
        for parts, partition in kinds.items()
    }


# Batches ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_servers", "num_parts"), [(1, 3), (2, 2), (2, 3), (4, 1)])
def test_batches_for_any_number_of_servers_and_parts(stores: dict[int, Store], num_servers: int, num_parts: int) -> None:
    """A typed graph, by weight, in all ways that a loader has to ask."""
    options, path = {**TYPED, "weight": "weight", "with_edge": True}, stores[num_parts].path
    with (
        GraphLoader.from_store(path, backend=InProcess(1), **options) as reference,
        GraphLoader.from_store(path, backend=GraphStore(num_servers), **options) as loader,
    ):
        assert len(workers(loader)) == num_servers
        for batch, wanted in zip(loader, reference, strict=True):
            same(batch, wanted)
        same(loader.peek(), reference.peek())
        same(loader.sample([3, 1, 2], epoch=2, index=1), reference.sample([3, 1, 2], epoch=2, index=1))


def test_several_workers_and_threads(store: Store) -> None:
    backend = GraphStore(1, workers_per_server=2, threads_per_worker=2)
    with GraphLoader.from_store(store.path, backend=backend, progress=False, **OPTIONS) as loader:
        assert len(workers(loader)) == 2 and [digests(loader), digests(loader)] == expected(store, 2)


def stored(home: Path) -> int:
    """Stores of graphs in memory."""
    return sum(path.name == "manifest.json" for path in (home / "temporary").rglob("*"))


def test_a_graph_in_memory(home: Path) -> None:
    """Is copied to a store for as long as it is needed; attributes keep the order that they have in the user's object."""
    data = plain()
    data.also = data.x[:, :2].clone()  # comes before "edge_attr" and "x" by name
    with make(data, input_nodes="valid") as reference, make(data, input_nodes="valid", backend=GraphStore(1)) as loader:
        for batch, wanted in zip(loader, reference, strict=True):
            same(batch, wanted)
        assert stored(home) == 1
    assert not leftovers(home)


def test_a_process_that_is_killed_leaves_nothing(home: Path) -> None:
    """What it has stored goes with the next that stores something."""

    def train() -> Iterator[Any]:
        loader = make(backend=GraphStore(1))
        yield [*workers(loader).values(), *server_of(loader).values()]

    with Trainer(train) as other:
        pids = other.next()
        other.end()
    assert len(pids) == 2 and wait_until(lambda: all(is_gone(pid) for pid in pids), FAULT_S)
    assert stored(home) == 1
    make(backend=GraphStore(1)).close()
    assert not leftovers(home)


# Several at once ------------------------------------------------------------------------------------------------------------


@pytest.mark.core
def test_train_valid_and_test_alternate_with_a_second_store_client(pair: GraphStoreServers, store: Store) -> None:
    with (
        joined(pair.address, store) as train,
        train.for_split("valid", num_neighbors=[-1, -1], batch_size=4) as valid,
        joined(pair.address, store, {"worker_concurrency": 1}, input_nodes=None, shuffle=False) as every,
    ):
        assert workers(train) == workers(valid) == workers(every)
        found: list[list[str]] = [[], [], []]
        for batches in itertools.zip_longest(train, valid, every):
            for place, batch in enumerate(batches):
                if batch is not None:
                    found[place] += digests([batch])
        valid_options = {"input_nodes": "valid", "num_neighbors": [-1, -1], "batch_size": 4, "shuffle": False}
        assert found[0] == expected(store)[0]
        assert found[1] == expected(store, **valid_options)[0]
        assert found[2] == expected(store, input_nodes=None, shuffle=False)[0]


def test_three_trainers_at_once(pair: GraphStoreServers, store: Store) -> None:
    """Each epoch's seeds are dealt to them, each once; they join and leave when they like."""

    def train(rank: int) -> Iterator[Any]:
        with joined(pair.address, store, rank=rank, world_size=3, remainder="uneven", batch_size=3) as loader:
            for _ in range(3):
                yield [digests([batch])[0] for batch in loader], [int(i) for batch in loader for i in batch.input_id]

    trainers = [Trainer(lambda rank=rank: train(rank)) for rank in range(3)]
    try:
        wanted = expected(store, 6, batch_size=3)
        for epoch in range(3):
            said = [trainer.next() for trainer in trainers]
            for trainer in trainers:
                trainer.go_on()
            dealt = [digest for step in itertools.zip_longest(*(digests for digests, _ in said)) for digest in step if digest is not None]
            assert dealt == wanted[2 * epoch]
            assert sorted(seed for _, seeds in said for seed in seeds) == list(range(57))
    finally:
        for trainer in trainers:
            trainer.end()


def test_a_client_that_pauses_keeps_nobody_waiting(pair: GraphStoreServers, store: Store) -> None:
    def train() -> Iterator[Any]:
        with joined(pair.address, store, batch_size=1) as loader:
            iterator = iter(loader)
            first = digests([next(iterator)])
            yield "begun"
            yield first + digests(iterator)

    with Trainer(train) as other, joined(pair.address, store, batch_size=1, seed=1) as loader:
        assert other.next() == "begun"
        os.kill(other.pid, signal.SIGSTOP)
        for _ in range(3):
            assert len(digests(loader)) == 57
        os.kill(other.pid, signal.SIGCONT)
        other.go_on()
        assert other.next() == expected(store, batch_size=1)[0]


def test_a_client_that_leaves_takes_everything_with_it(pair: GraphStoreServers, store: Store) -> None:
    pids = list(worker_pids(pair).values())
    assert wait_until(lambda: not any(blocks_of(pid, "gnnkit-ring") for pid in pids))
    for number in range(3):
        loader = joined(pair.address, store, seed=number)
        iterator = iter(loader)
        held = next(iterator)
        if number:
            loader.close()
        del loader, iterator
        gc.collect()
        assert wait_until(lambda: not any(blocks_of(pid, "gnnkit-ring") for pid in pids))
        assert wait_until(lambda: pair.status()["clients"] == 0)
        assert held.batch_size == 8
    assert pair.ready


# Its own servers ------------------------------------------------------------------------------------------------------------


def test_siblings_share_servers_and_the_last_one_out_ends_them() -> None:
    before = descendants()
    with loader_of("", backend=GraphStore(1)) as train, train.for_split("valid", batch_size=3) as valid:
        assert workers(train) == workers(valid) and server_of(train) == server_of(valid)
        own = descendants() - before
        assert own == set(workers(train).values()) | set(server_of(train).values()) and len(own) == 2
        train.close()
        assert len(list(valid)) == 7
        assert "GraphStore" in repr(valid) and "1 server of its own" in repr(valid)
    assert all(is_gone(pid) for pid in own)


def test_a_loader_that_is_not_used_gives_its_servers_up(store: Store) -> None:
    backend = GraphStore(1, idle_timeout_s=0.3)
    with GraphLoader.from_store(store.path, backend=backend, progress=False, **OPTIONS) as loader:
        iterator = iter(loader)
        found = digests([next(iterator)])
        pids = server_of(loader).values()
        assert wait_until(lambda: all(is_gone(pid) for pid in pids), 20) and loader.status().state == "idle"
        found += digests(iterator)
        assert found == expected(store)[0]


# Joining --------------------------------------------------------------------------------------------------------------------


def test_trainers_may_come_first(store: Store, tmp_path: Path) -> None:
    """They say whom they wait for."""
    folder, handles = tmp_path / "sockets", []
    events: list[Any] = []
    backend = GraphStore(address=folder, join_timeout_s=ANSWER_S)

    def start() -> None:
        assert wait_until(lambda: any("there is no folder" in event.text for event in events), ANSWER_S)
        handles.append(serve(store, 2, address=folder, rank=0, progress=False))
        assert wait_until(lambda: any("1 of 2 missing: server 1 is not there" in event.text for event in events), ANSWER_S)
        handles.append(serve(store, 2, address=folder, rank=1, progress=False))

    thread = threading.Thread(target=start)
    thread.start()
    try:
        with GraphLoader.from_store(store.path, backend="inprocess", progress=False, **OPTIONS) as reference:
            plan = replace(reference.plan, backend=backend.to_json())
            with GraphLoader(plan, reference.pipeline.graph, events.append) as loader:
                assert digests(loader) == digests(reference)
                assert loader.status().details["servers"] == f"2 servers at unix:{folder}"
    finally:
        thread.join()
        for handle in handles:
            handle.stop()


def refused(store: Store, match: str, error: type[Exception], **options: Any) -> None:
    backend = GraphStore(**{"join_timeout_s": 0.5, **options})
    with pytest.raises(error, match=match):
        GraphLoader.from_store(store.path, backend=backend, progress=False, **OPTIONS)


def test_who_cannot_join_is_told_why(pair: GraphStoreServers, store: Store, stores: dict[int, Store], tmp_path: Path) -> None:
    refused(store, "there is no folder .*nowhere", PlanError, address=tmp_path / "nowhere" / "at all")
    refused(store, "no server has made a socket in", StartTimeout, address=tmp_path)
    others = {"address": pair.address, "token": "a token of somebody else's", "join_timeout_s": ANSWER_S}
    refused(store, r"server \d refused the token", PlanError, **others)
    theirs, ours = store.fingerprint[:16], stores[1].fingerprint[:16]
    from gnnkit.cluster.serving import spec as credentials

    credentials.remember_token(pair.address, pair.token)
    with pytest.raises(StoreError) as caught:
        GraphLoader.from_store(stores[1].path, backend=GraphStore(address=pair.address), **TYPED)
    assert theirs in str(caught.value) and ours in str(caught.value)
    with pytest.raises(PlanError, match="only in memory"):
        make(backend=GraphStore(address=pair.address))
    (tmp_path / "server-0.sock").touch()
    refused(store, "server 0 is not there", StartTimeout, address=tmp_path, token="0123456789abcdef")
    assert pair.ready and wait_until(lambda: pair.status()["clients"] == 0)


def test_servers_with_different_stores(store: Store, stores: dict[int, Store], tmp_path: Path) -> None:
    folder = tmp_path / "sockets"
    with serve(store, 2, address=folder, rank=0, progress=False), serve(stores[1], 2, address=folder, rank=1, progress=False):
        with pytest.raises(StoreError) as caught:
            GraphLoader.from_store(store.path, backend=GraphStore(address=folder, join_timeout_s=ANSWER_S), progress=False, **OPTIONS)
        assert store.fingerprint[:16] in str(caught.value) and stores[1].fingerprint[:16] in str(caught.value)


def test_the_token_is_in_no_plan(pair: GraphStoreServers, store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    backend = GraphStore(address=pair.address, token=pair.token)
    with GraphLoader.from_store(store.path, backend=backend, progress=False, **OPTIONS) as loader:
        shown = [json.dumps(loader.plan.to_json()), repr(loader), repr(backend), repr(loader.status())]
        assert all(pair.token not in text for text in shown)
        assert backend_from_json(loader.plan.backend) == backend == GraphStore(address=str(pair.folder))
    assert resolve_backend("graph_store") == GraphStore()
    monkeypatch.delenv("GNNKIT_TOKEN", raising=False)
    with pytest.raises(PlanError, match=r"there is no token for the servers at 10\.0\.0\.1:7099"):
        required("10.0.0.1:7099")
    path = tmp_path / "secret"
    path.write_text("0123456789abcdef\n")
    monkeypatch.setenv("GNNKIT_TOKEN_FILE", str(path))
    path.chmod(0o644)
    with pytest.raises(PlanError, match="others can read it"):
        required("10.0.0.1:7099")
    path.chmod(0o600)
    assert required(["10.0.0.1:7099", "10.0.0.2:7000"]) == "0123456789abcdef"
    monkeypatch.setenv("GNNKIT_TOKEN", "fedcba9876543210")
    assert required("10.0.0.1:7099") == "fedcba9876543210" and required(pair.address) == pair.token


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"num_servers": 0}, "num_servers"),
        ({"workers_per_server": True}, "workers_per_server"),
        ({"worker_concurrency": 33}, "worker_concurrency"),
        ({"join_timeout_s": float("nan")}, "join_timeout_s"),
        ({"idle_timeout_s": 0}, "idle_timeout_s"),
        ({"channel_size": "much"}, "channel_size"),
        ({"address": "somewhere"}, "somewhere"),
        ({"token": "0123456789abcdef"}, "without address"),
        ({"address": "10.0.0.1:7099", "token": "short"}, "at least 16"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], match: str) -> None:
    with pytest.raises(PlanError, match=match):
        GraphStore(**options)


def test_a_split_of_numbers_only(pair: GraphStoreServers, store: Store) -> None:
    """Ids that a user gives travel in the plan."""
    ids = np.random.default_rng(1).permutation(120)[:33]
    with joined(pair.address, store, input_nodes=ids) as loader:
        assert [digests(loader)] == expected(store, input_nodes=ids)

"""Requests over the network that no honest client makes: each is its sender's error, and the same processes answer all others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gnnkit import HGT, PPR, GraphLoader, GraphStoreServers, LayerWise, Store, Walks, serve
from tests.cluster.hosts.setups import OPTIONS
from tests.cluster.parts.services import END, ERROR, LAST, Speaker
from tests.cluster.serving.setups import ANSWER_S, server_pids, worker_pids
from tests.helpers.ports import free_port
from tests.helpers.wires import asked, unpacked

TOKEN = "a token of these tests only"


@pytest.fixture(scope="module")
def servers(store: Store) -> Iterator[GraphStoreServers]:
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    with serve(store.path, 1, address=address, token=TOKEN, progress=False) as handle:
        handle.wait(ANSWER_S)
        yield handle


class Client(Speaker):
    """A client that has loaders; a context manager.

    Args:
        servers: The servers.
        store: Their store.

    Attributes:
        key: What it calls the loader that it asks about.
    """

    def __init__(self, servers: GraphStoreServers, store: Store) -> None:
        super().__init__(str(servers.address), TOKEN)
        self._head = asked(store, client="client-a", timeout_s=60.0)
        self.key = "a"

    def answer(self, name: str, **words: Any) -> tuple[int, str]:
        """The kind of the last message of an answer, and the text of an error."""
        kind, text, block = self.ask(name, {**self._head, "key": self.key, **words})
        return kind, str(unpacked(text, block)["message"]) if kind == ERROR else ""


def plan_of(store: Store, **options: Any) -> Any:
    with GraphLoader.from_store(store.path, progress=False, **{**OPTIONS, **options}) as loader:
        return json.loads(json.dumps(loader.plan.to_json()))


NUMBERS = (2**64, 2**63, 2**63 - 1, 2**62, 2**48, -1, -(2**63), 10**29, 2.5, True, None, "1", [1])


@pytest.mark.slow(seconds=15)
def test_a_number_that_no_batch_has_is_its_senders_error(servers: GraphStoreServers, store: Store) -> None:
    before, seeds = (server_pids(servers), worker_pids(servers)), np.arange(3)
    with GraphLoader.from_store(store.path, progress=False, **OPTIONS) as loader:
        count = len(loader)
    with Client(servers, store) as client:
        assert client.answer("add_loader", plan=plan_of(store))[0] == LAST
        assert client.answer("walk", epoch=0, batch=0, seeds=None)[0] == client.answer("walk", epoch=7, batch=1, seeds=seeds)[0] == END
        for number in NUMBERS:
            for words in ({"epoch": number, "batch": 0}, {"epoch": 0, "batch": number}, {"epoch": number, "batch": number}):
                for given in (None, seeds):
                    kind, message = client.answer("walk", **words, seeds=given)
                    assert kind == ERROR and "there is no batch" in message, (words, message)
        kind, message = client.answer("walk", epoch=0, batch=count, seeds=None)
        assert kind == ERROR and f"there is no batch {count}" in message
        for wrong in (np.array([-1]), np.array([2**40]), np.array([2**64 - 1], np.uint64), np.ones((2, 2), np.int64), np.ones(3)):
            assert client.answer("walk", epoch=0, batch=0, seeds=wrong)[0] == ERROR, wrong
        assert client.answer("walk", epoch=0, batch=0, seeds=None)[0] == END
    assert (server_pids(servers), worker_pids(servers)) == before


def changed(plan: Any, path: tuple[Any, ...], value: Any) -> Any:
    plan = json.loads(json.dumps(plan))
    place = plan
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return plan


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a JSON value."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(value[key], (*path, key))


@pytest.mark.slow(seconds=60)
@pytest.mark.parametrize(
    "sampler",
    [None, HGT([3, 2]), PPR(max_ppr_nodes=3), LayerWise([3, 2]), Walks(3, p=2)],
    ids=["fan-outs", "hgt", "ppr", "layers", "walks"],
)
def test_a_plan_that_cannot_be_sampled_is_its_senders_error(servers: GraphStoreServers, store: Store, sampler: Any) -> None:
    """Whatever a plan says: the server refuses it, a batch of it is an error, or there is a batch; the workers stay."""
    before = server_pids(servers), worker_pids(servers)
    plan = plan_of(store, **({} if sampler is None else {"sampler": sampler, "num_neighbors": None}))
    kinds = set()
    with Client(servers, store) as client:
        for number, path in enumerate(places(plan)):
            for value in ("x", 2**40, None, []):
                client.key = f"loader {number}"
                kind, message = client.answer("add_loader", plan=changed(plan, path, value))
                kinds.add(kind)
                if kind == LAST:
                    kind, message = client.answer("walk", epoch=0, batch=0, seeds=None)
                    kinds.add(kind)
                assert kind == END or message, path
                client.answer("remove_loader")
    assert kinds == {LAST, ERROR, END}
    assert (server_pids(servers), worker_pids(servers)) == before

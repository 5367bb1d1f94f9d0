"""``init_server``, ``init_client`` and ``request_server`` over gnnkit's servers, as scripts for graphlearn-torch call them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import gnnkit
from gnnkit import Store
from gnnkit.distributed import (
    DistDataset,
    DistServer,
    async_request_server,
    get_context,
    get_server,
    init_client,
    init_server,
    request_server,
    shutdown_client,
    wait_and_shutdown_server,
)
from gnnkit.errors import LoaderClosed, PlanError, StartTimeout, WorkerDied
from tests.distributed.loading import ring, serving, stored
from tests.helpers.leaks import descendants
from tests.helpers.machine import ROOT
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.slow

DEADLINE_S = 120


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return stored(ring(), tmp_path_factory.mktemp("served"), num_parts=2)


@pytest.fixture(scope="module")
def servers(store: Store) -> Iterator[Any]:
    with serving(store) as (running,):
        yield running


def children() -> set[psutil.Process]:
    """Processes that this one has started."""
    return {child for child in descendants() if child.ppid() == os.getpid()}


@pytest.fixture(autouse=True)
def neither() -> Iterator[None]:
    """Whatever a test does, this process is neither server nor client after it."""
    before = children()
    yield
    context = get_context()
    if context is not None and context.is_client():
        shutdown_client()
    elif context is not None and context.is_server():
        for child in children() - before:
            child.kill()
        with contextlib.suppress(WorkerDied):
            wait_and_shutdown_server()


@pytest.fixture
def client(servers: Any) -> Any:
    """This process as client 1 of 3."""
    init_client(2, 3, 1, servers.address, 0)
    return servers


# Clients ------------------------------------------------------------------------------------------------------------------


def test_a_client_knows_its_place_and_leaves_it(client: Any) -> None:
    context = get_context()
    assert context is not None and context.is_client() and (context.rank, context.world_size) == (1, 3)
    assert (context.num_servers(), context.num_clients(), context.global_rank) == (2, 3, 3)
    assert wait_until(lambda: client.status()["clients"] == 1)
    shutdown_client()
    assert wait_until(lambda: client.status()["clients"] == 0)
    after = get_context()
    assert after is None or not after.is_client()
    with pytest.raises(PlanError, match=r"has joined no servers\n  -> call init_client\(\)"):
        request_server(0, DistServer.get_dataset_meta)


def test_every_server_answers(client: Any, store: Store) -> None:
    ids = torch.tensor([3, 0, 21])
    for rank in range(2):
        here = DistServer(DistDataset.from_store(store, rank))
        assert request_server(rank, DistServer.get_dataset_meta) == here.get_dataset_meta()
        assert torch.equal(request_server(rank, DistServer.get_node_feature, None, ids), ids.float()[:, None])
        assert torch.equal(request_server(rank, "get_node_label", node_type=None, index=ids), ids)


def test_many_requests_may_be_under_way(client: Any) -> None:
    futures = [async_request_server(number % 2, DistServer.get_node_label, None, torch.tensor([number % 40])) for number in range(100)]
    assert [int(future.wait()) for future in futures] == [number % 40 for number in range(100)]


def test_what_a_server_refuses_is_raised_here(client: Any) -> None:
    with pytest.raises(PlanError, match="40"):
        request_server(0, DistServer.get_node_label, None, torch.tensor([40]))
    future = async_request_server(0, DistServer.get_node_label, None, torch.tensor([40]))
    with pytest.raises(PlanError, match="40"):
        future.wait()


@pytest.mark.parametrize("rank", [2, -1, "0", True])
def test_an_unknown_server_is_an_error(client: Any, rank: Any) -> None:
    with pytest.raises(PlanError, match=f"no server {rank!r}: there are 2"):
        request_server(rank, DistServer.get_dataset_meta)


def test_code_does_not_travel(client: Any) -> None:
    refused: list[Any] = [os.getpid, lambda server: server, "__init__", "_ask", "system", 7]
    for func in refused:
        with pytest.raises(PlanError):
            request_server(0, func)
        with pytest.raises(PlanError):
            async_request_server(0, func)


def test_a_process_is_a_client_once(client: Any, store: Store) -> None:
    with pytest.raises(PlanError, match=r"init_client: this process is client 1 already\n  -> call shutdown_client\(\)"):
        init_client(2, 1, 0, client.address, 0)
    with pytest.raises(PlanError, match="init_server: this process is client 1 already"):
        init_server(1, 0, store, "127.0.0.1", 7000)
    with pytest.raises(PlanError, match="this process is a client, not a server"):
        wait_and_shutdown_server()


def test_futures_of_a_client_that_has_left_end(servers: Any) -> None:
    init_client(2, 1, 0, servers.address, 0)
    futures = [async_request_server(0, DistServer.get_dataset_meta) for _ in range(200)]
    shutdown_client()
    for future in futures:
        with contextlib.suppress(LoaderClosed):
            assert future.wait()[0] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_servers": 3}, "init_client: 3 servers are expected, and there are 2"),
        ({"client_rank": 1}, "rank must be between 0 and 0, got 1"),
        ({"num_clients": 0}, "num_clients must be a whole number of at least 1, got 0"),
        ({"token": "a token that is not theirs"}, "refused the token"),
    ],
)
def test_a_client_that_does_not_fit_is_refused_and_may_try_again(servers: Any, arguments: dict[str, Any], message: str) -> None:
    usual: dict[str, Any] = {"num_servers": 2, "num_clients": 1, "client_rank": 0, "master_addr": servers.address, "master_port": 0}
    with pytest.raises(PlanError, match=message):
        init_client(**{**usual, **arguments})
    init_client(**{**usual, "token": servers.token})
    shutdown_client()


@pytest.mark.parametrize(("address", "port"), [("", 1), ("10.0.0.1", 0), ("10.0.0.1", "7000")])
def test_an_unusable_address_is_an_error(address: str, port: Any) -> None:
    with pytest.raises(PlanError, match="master_"):
        init_client(1, 1, 0, address, port)


def test_servers_that_do_not_come_are_named(tmp_path: Path) -> None:
    with pytest.raises(StartTimeout, match=r"not all servers at .* were there within 0.3 s"):
        init_client(1, 1, 0, f"unix:{tmp_path}", 0, join_timeout_s=0.3)


def test_shutting_down_what_was_not_started_is_only_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    shutdown_client()
    wait_and_shutdown_server()
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


def test_a_dead_server_is_named_and_the_others_answer(store: Store) -> None:
    with gnnkit.serve(store, num_servers=2, progress=False) as running:
        running.wait(DEADLINE_S)
        init_client(2, 1, 0, running.address, 0)
        try:
            os.kill(running.status()["servers"][1]["pid"], signal.SIGKILL)
            with pytest.raises(WorkerDied, match="server 1"):
                request_server(1, DistServer.get_dataset_meta)
            assert request_server(0, DistServer.get_dataset_meta)[0] == 2
        finally:
            shutdown_client()


# Servers ------------------------------------------------------------------------------------------------------------------

SERVER = """
import json, sys
from gnnkit.distributed import get_context, get_server, init_server, wait_and_shutdown_server
rank, store, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
init_server(2, rank, store, "unix:" + folder, 0, num_clients=2)
context = get_context()
facts = [context.role.name, context.rank, context.num_servers(), context.num_clients(), get_server().get_dataset_meta()[0]]
print(json.dumps(facts), flush=True)
wait_and_shutdown_server()
print(json.dumps([get_server(), get_context()]), flush=True)
"""


def test_servers_end_when_all_of_their_clients_have_come_and_left(store: Store, tmp_path: Path) -> None:
    folder = str(tmp_path / "sockets")
    command = [sys.executable, "-W", "error", "-c", SERVER]
    running = [
        subprocess.Popen([*command, str(rank), str(store.path), folder], stdout=subprocess.PIPE, text=True, cwd=ROOT) for rank in range(2)
    ]
    try:
        for rank, process in enumerate(running):
            assert process.stdout is not None
            assert json.loads(process.stdout.readline()) == ["SERVER", rank, 2, 2, 2]
        init_client(2, 2, 0, f"unix:{folder}", 0)
        other = "from gnnkit.distributed import init_client; init_client(2, 2, 1, 'unix:' + __import__('sys').argv[1], 0)"
        assert subprocess.run([sys.executable, "-c", other, folder], timeout=DEADLINE_S, cwd=ROOT).returncode == 0
        assert request_server(1, DistServer.exit) is True, "it ends when both have left, and not before"
        assert request_server(1, DistServer.get_dataset_meta)[0] == 2, "one of two has left"
        shutdown_client()
        for process in running:
            assert process.communicate(timeout=DEADLINE_S)[0] == "[null, null]\n" and process.returncode == 0
    finally:
        for process in running:
            process.kill()
            process.communicate()


def test_a_server_that_dies_is_an_error_after_which_another_can_be_started(store: Store, tmp_path: Path) -> None:
    for _ in range(2):
        before = children()
        init_server(1, 0, DistDataset.from_store(store, 0), f"unix:{tmp_path}/sockets", 0)
        server = get_server()
        assert server is not None and server.get_dataset_meta()[0] == 2
        with pytest.raises(PlanError, match=r"init_client: this process is server 0 already\n  -> call wait_and_shutdown_server\(\)"):
            init_client(1, 1, 0, f"unix:{tmp_path}/sockets", 0)
        (child,) = children() - before
        child.kill()
        with pytest.raises(WorkerDied, match="server 0"):
            wait_and_shutdown_server()
        assert get_server() is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataset": 0}, "dataset must be a DistDataset, a Store or a store's folder, got 0"),
        ({"server_rank": 2}, "rank"),
        ({"num_servers": 0}, "num_servers must be a whole number of at least 1, got 0"),
        (
            {"master_addr": "127.0.0.1", "master_port": 7000},
            "there is no token for the servers at 127.0.0.1:7000\n  -> export GNNKIT_TOKEN",
        ),
    ],
)
def test_a_server_that_cannot_be_is_refused_at_once(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], message: str
) -> None:
    monkeypatch.delenv("GNNKIT_TOKEN", raising=False)
    monkeypatch.delenv("GNNKIT_TOKEN_FILE", raising=False)
    usual: dict[str, Any] = {"num_servers": 2, "server_rank": 0, "dataset": store, "master_addr": f"unix:{tmp_path}", "master_port": 0}
    with pytest.raises(PlanError, match=message):
        init_server(**{**usual, **arguments})
    assert get_server() is None

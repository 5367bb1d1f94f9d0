"""Two "hosts" on loopback addresses, each with a directory of its own: what works without network namespaces, and what breaks."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from gnnkit import BuildOptions, GraphLoader, Store, datasets, partition
from gnnkit.capacity import asked, batch_of, sized_graph
from tests.cluster.hosts.setups import OPTIONS, TOKEN, Host, ended, expected, source, stage
from tests.cluster.parts.services import told
from tests.helpers.machine import in_time
from tests.helpers.ports import free_port
from tests.helpers.waiting import wait_until
from tests.helpers.wires import first_line, second_line

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
WORLD = 2
NAMES = ("127.0.0.2", "127.0.0.3")
# What a fault may take to be seen.
FAULT_S = 5.0


def free_ports() -> list[str]:
    """An address for each host, with a port that is free now."""
    return [f"{name}:{free_port(name)}" for name in NAMES]


class Pair:
    """Two hosts with one part each, and a loader on both."""

    def __init__(self, store: Store, folder: Path, *, whole_structure: bool = False) -> None:
        self.folder, self.addresses = folder, free_ports()
        self.paths = [stage(store, folder / f"host{index}", [index], whole_structure=whole_structure) for index in range(WORLD)]
        self.hosts: list[Host] = [self.start(index) for index in range(WORLD)]

    def start(self, index: int, **environment: str) -> Host:
        return Host(self.folder / f"host{index}.log", **{"GNNKIT_HOST": str(index), "GNNKIT_TOKEN": TOKEN, **environment})

    def backend(self, **options: Any) -> dict[str, Any]:
        return {"num_workers": 1, "hosts": self.addresses, **options}

    def open(self, indices: Any = range(WORLD), backend: dict[str, Any] | None = None, **options: Any) -> None:
        for index in indices:
            words = {"placement": "partition", "rank": index, "world_size": WORLD, **OPTIONS, **options}
            self.hosts[index].ask("make", name="a", store=str(self.paths[index]), backend=backend or self.backend(), **words)
        for index in indices:
            self.hosts[index].answer()

    def epochs(self) -> list[list[str]]:
        for host in self.hosts:
            host.ask("epoch", name="a")
        return [host.answer() for host in self.hosts]


@pytest.fixture
def pair(stores: dict[int, Store], tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(stores[2], tmp_path)
    with ended(pair.hosts):
        yield pair


@pytest.fixture
def lists(stores: dict[int, Store]) -> list[list[list[str]]]:
    """``[rank][epoch]``: digests of the batches as one process samples them."""
    return [expected(stores[2], epochs=5, rank=rank, world_size=WORLD) for rank in range(WORLD)]


@pytest.mark.parametrize("options", [{}, {"device": "cpu", "feature_cache": 900}, {"with_edge": True}])
@pytest.mark.core
def test_the_structure_is_on_both_hosts_and_features_are_on_one(stores: dict[int, Store], tmp_path: Path, options: dict[str, Any]) -> None:
    pair = Pair(stores[2], tmp_path, whole_structure=True)
    with ended(pair.hosts):
        pair.open(placement="features", memory_budget="1GB", **options)
        sampled = {name: value for name, value in options.items() if name == "with_edge"}
        lists = [expected(stores[2], epochs=2, rank=rank, world_size=WORLD, **sampled) for rank in range(WORLD)]
        for epoch in range(2):  # the second with a copy of what is here in huge pages
            assert pair.epochs() == [ranks[epoch] for ranks in lists]
        assert "structure on every host; features of host 0: part 0; host 1: part 1" in pair.hosts[0].do("status", name="a")["card"]


@pytest.mark.usefixtures("stores")  # with what starts hosts
@pytest.mark.parametrize(
    ("placement", "with_edge", "shuffle"),
    [
        ("features", False, False),
        ("partition", False, False),
        ("partition", True, False),
        ("features", False, "parts"),
        ("partition", True, "parts"),
    ],
)
def test_as_many_bytes_cross_as_plan_capacity_says(tmp_path: Path, placement: Any, with_edge: bool, shuffle: Any) -> None:
    """Counted while the second epoch runs: the first one's batches have been tried before."""
    # Of many batches, so that those of several parts at the end count for little.
    data = datasets.products_like(0.04 if shuffle else 0.005)
    cut: Any = "ldg" if shuffle else "random"
    store = partition(data, WORLD, cut, tmp_path / "store", cache_ratio=0.1, num_neighbors=(10, 5), with_edge=with_edge)
    sampling: dict[str, Any] = {"num_neighbors": [10, 5], "batch_size": 100, "with_edge": with_edge, "shuffle": shuffle}
    with GraphLoader.from_store(store.path, input_nodes="train", progress=False, **sampling) as loader:
        loader.plan.save(tmp_path / "plan.json")
    graph = sized_graph(str(tmp_path / "plan.json"), BuildOptions(WORLD))
    wanted = asked(graph, None, None)
    pair = Pair(store, tmp_path, whole_structure=placement == "features")
    with ended(pair.hosts):
        pair.open(placement=placement, **sampling)
        counted = []
        for _ in range(2):
            batches = sum(map(len, pair.epochs()))
            counted.append(sum(sum(host.do("status", name="a")["wire"].values()) for host in pair.hosts))
    predicted = graph.crossing(placement, WORLD, batch_of(graph, wanted, WORLD), wanted.with_edge)
    assert (counted[1] - counted[0]) / batches == pytest.approx(predicted, rel=0.05)


def test_one_host_infers_for_the_parts_of_all(pair: Pair, tmp_path: Path) -> None:
    pair.open()
    for host in pair.hosts:
        host.do("begin", name="a")
    assert pair.hosts[0].do("infer", name="a", out=str(tmp_path / "out")) == [120, 5]
    x = source().node_arrays["node"]["x"].astype(np.float64)
    (edge_index,) = source().edges.values()
    for _ in range(2):
        x = x + np.array([x[edge_index[0][edge_index[1] == node]].sum(0) for node in range(120)])
    np.testing.assert_allclose(np.load(tmp_path / "out" / "layer2" / "node.npy"), x, rtol=1e-4, atol=1e-3)


def test_features_of_both_hosts_stay_on_the_device(pair: Pair, stores: dict[int, Store], lists: list[list[list[str]]]) -> None:
    """The budget is for all rows, so each rank keeps what its first epoch touches; what that is, batches of one process say."""
    pair.open(device="cpu", feature_cache=120 * 5 * 4)
    for epoch in range(2):
        assert pair.epochs() == [ranks[epoch] for ranks in lists]
        saved = [host.do("status", name="a")["cached_nbytes"] for host in pair.hosts]
        for rank in range(WORLD):
            with GraphLoader.from_store(
                stores[2].path, backend="inprocess", progress=False, rank=rank, world_size=WORLD, **OPTIONS
            ) as loader:
                whole = [torch.cat([batch.n_id for batch in loader]) for _ in range(2)]
            assert saved[rank] == 5 * 4 * int(torch.isin(whole[epoch], whole[0]).sum())


def test_a_service_that_dies_and_a_host_that_reboots(pair: Pair, lists: list[list[list[str]]]) -> None:
    pair.open()
    assert pair.epochs() == [ranks[0] for ranks in lists]
    first, second = pair.hosts
    status = second.do("status", name="a")
    service = status["part_service"]["pid"]
    assert status["part_service"]["address"] == pair.addresses[1] and status["host"] == 1
    assert f"this is host 1 of 2, serving at {pair.addresses[1]}; asks host 0 at {pair.addresses[0]}" in status["card"]
    assert "placement host 0: part 0; host 1: part 1" in status["card"] and TOKEN not in json.dumps(status)

    os.kill(service, signal.SIGSTOP)  # neither host's batches end while it is silent
    first.ask("epoch", name="a")
    os.kill(service, signal.SIGKILL)
    reply = first.reply()
    if "error" in reply:  # unless it was back before anybody asked
        assert reply["error"] == "HostUnreachable" and "host 1" in reply["message"] and pair.addresses[1] in reply["message"]
        assert "part 1" in reply["message"]
    assert wait_until(lambda: second.do("status", name="a")["part_service"]["pid"] != service, FAULT_S + 10)
    assert wait_until(lambda: _listens(pair.addresses[1]), 30)
    assert second.do("epoch", name="a") == lists[1][1]
    assert first.do("epoch", name="a") == lists[0][2]
    assert second.do("status", name="a")["part_service"]["restarts"] == 1

    pids = second.kill()
    first.ask("epoch", name="a")
    reply = first.reply()
    assert reply["error"] == "HostUnreachable" and f"host 1 ({pair.addresses[1]}, part 1)" in reply["message"], reply
    assert in_time(reply["seconds"], FAULT_S)
    assert wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids), FAULT_S)
    second.close()
    pair.hosts[1] = second = pair.start(1)
    pair.open([1])
    first.ask("epoch", name="a")
    assert second.do("epoch", name="a") == lists[1][0]
    assert first.answer() == lists[0][4]


def test_a_host_that_is_killed_while_it_starts_and_is_started_again(pair: Pair, lists: list[list[list[str]]]) -> None:
    """The other one waits for it, as it would for one that is late."""
    first, second = pair.hosts
    words = {"placement": "partition", "world_size": WORLD, "backend": pair.backend(), **OPTIONS}
    for index, host in enumerate(pair.hosts):
        host.ask("make", name="a", store=str(pair.paths[index]), rank=index, **words)
    assert wait_until(lambda: len(second.pids()) > 1, 60), "it has begun to start its processes"
    pids = second.kill()
    assert wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids), FAULT_S)
    second.close()
    pair.hosts[1] = second = pair.start(1)
    second.ask("make", name="a", store=str(pair.paths[1]), rank=1, **words)
    for host in pair.hosts:
        host.answer()
    assert pair.epochs() == [ranks[0] for ranks in lists]


def _listens(address: str) -> bool:
    name, _, port = address.rpartition(":")
    try:
        socket.create_connection((name, int(port)), timeout=60).close()
    except OSError:
        return False
    return True


def test_a_host_that_has_finished_serves_the_others(pair: Pair, lists: list[list[list[str]]]) -> None:
    first, second = pair.hosts
    pair.open()
    first.do("epoch", name="a")
    assert in_time(first.do("close", name="a"), 0.5)
    first.finish()
    assert second.do("epoch", name="a") == lists[1][0]
    assert first.poll() is None, "it serves for as long as the other host is there"
    second.do("sibling", name="b", of="a", input_nodes="valid")
    assert len(second.do("epoch", name="b")) == 2
    assert first.poll() is None
    assert wait_until(lambda: "until hosts [1] have finished too" in first.log.read_text())
    assert in_time(second.do("close", name="a"), 0.5) and in_time(second.do("close", name="b"), 0.5)
    second.finish()
    assert first.wait(FAULT_S) == 0 and second.wait(FAULT_S) == 0


def test_a_killed_trainer_leaves_nothing_and_the_other_host_ends(pair: Pair) -> None:
    first, second = pair.hosts
    pair.open()
    left = second.pids() - {second.pid}
    assert len(left) == 3, "a sampling process, the part service, and the process that they were forked from"
    os.kill(second.pid, signal.SIGKILL)
    second.wait(FAULT_S)
    assert wait_until(lambda: not any(psutil.pid_exists(pid) for pid in left), FAULT_S)
    first.do("close", name="a")
    first.finish()
    assert first.wait(20) == 0, "a host that is gone is not waited for"


def test_a_script_that_fails_waits_for_nobody(pair: Pair, stores: dict[int, Store], lists: list[list[list[str]]]) -> None:
    """Here one host holds everything, and the other one nothing."""
    first, second = pair.hosts
    pair.paths = [stage(stores[2], pair.folder / "all", [0, 1]), stage(stores[2], pair.folder / "none", [])]
    pair.open(placement={0: [0, 1]})
    assert second.do("epoch", name="a") == lists[1][0]
    assert [host.do("status", name="a")["part_service"] is None for host in pair.hosts] == [False, True]
    first.ask("crash")
    assert first.wait(FAULT_S) == 1
    second.ask("epoch", name="a")
    assert f"host 0 ({pair.addresses[0]}, parts 0, 1)" in second.reply()["message"]


@pytest.mark.parametrize("token", ["another secret of these tests", ""])
def test_a_host_without_the_token(pair: Pair, token: str) -> None:
    """A host that is refused says by whom; one that nobody comes to says whom it has waited for, and who has come with another token."""
    pair.hosts[1].close()
    pair.hosts[1] = stranger = pair.start(1, GNNKIT_TOKEN=token)
    for index, host in enumerate(pair.hosts):
        words = {"placement": "partition", "rank": index, "world_size": WORLD, "start_timeout_s": 60 if token else 12, **OPTIONS}
        host.ask("make", name="a", store=str(pair.paths[index]), backend=pair.backend(), **words)
    if not token:
        assert "GNNKIT_TOKEN is not set" in stranger.reply()["message"]
        assert wait_until(lambda: _listens(pair.addresses[0]), 30)
        wrong = first_line("a token of another") + second_line("a token of another", "me")
        assert told(pair.addresses[0], wrong) == b"refused\n"
    replies = [host.reply() for host in pair.hosts[: 2 if token else 1]]
    assert TOKEN not in json.dumps(replies)
    at_once = [
        f"host {1 - index} ({pair.addresses[1 - index]}) refused the token" in reply["message"] for index, reply in enumerate(replies)
    ]
    assert [reply["error"] for reply in replies] == ["PlanError" if refused else "StartTimeout" for refused in at_once], replies
    assert any(at_once) == bool(token), "the first of the two that comes to the other one"
    for index, reply in enumerate(replies):  # the other one may find that host gone
        assert at_once[index] or f"host {1 - index} did not answer at {pair.addresses[1 - index]}" in reply["message"], reply
        assert at_once[index] or "a process at 127.0.0.1 came with another token" in reply["message"], reply
    pair.hosts[0].finish()
    assert pair.hosts[0].wait(60) == 0

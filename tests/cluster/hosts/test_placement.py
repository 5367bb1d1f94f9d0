"""Who holds what, and which host this is: what users may write, and what is refused before anything is started."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from gnnkit import Colocated, GraphLoader, LoaderPlan, Store
from gnnkit.backends import backend_from_json
from gnnkit.cluster.hosts import Hosts, find_hosts, join_address, listening_address, place, split_address
from gnnkit.errors import PlanError, StoreError
from gnnkit.plan import Placement
from tests.cluster.hosts.setups import OPTIONS, source, stage

ADDRESSES = ("127.0.0.2:7000", "127.0.0.3:7000")
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("word", "hosts", "expected"),
    [
        ("auto", Hosts(), None),
        ("partition", Hosts(), None),
        ({0: [2, 0, 1]}, Hosts(), None),
        ("replicate", Hosts(2), [[0, 1, 2], [0, 1, 2]]),
        ("partition", Hosts(2), [[0], [1, 2]]),
        ("features", Hosts(2), [[0], [1, 2]]),
        ("partition", Hosts(3), [[0], [1], [2]]),
        ({0: [0, 1], 1: [1, 2]}, Hosts(2), [[0, 1], [1, 2]]),
        ({1: [0, 1, 2]}, Hosts(2), [[], [0, 1, 2]]),
        ("auto", Hosts(2, memory=1 << 30), [[0, 1, 2], [0, 1, 2]]),
        ("auto", Hosts(2, memory=4000), [[0], [1, 2]]),
        ("auto", Hosts(2, memory=64000), [[0], [1, 2]]),
        ("auto", Hosts(3), [[0], [1], [2]]),
        ("auto", Hosts(4), [[0, 1, 2]] * 4),
    ],
)
def test_words(stores: dict[int, Store], word: Any, hosts: Hosts, expected: Any) -> None:
    placement = place(word, stores[3].manifest, stores[3].path, hosts)
    assert (placement and [list(parts) for parts in placement.hosts]) == expected
    assert word not in ("replicate", "features", "partition") or placement is None or placement.word == word
    again = place(placement or "auto", stores[3].manifest, stores[3].path, hosts)
    assert again == placement, "a plan's placement is a word too"


@pytest.mark.parametrize(
    ("word", "count", "message"),
    [
        ("partition", 4, "gnnkit partition {path} 4"),
        ({0: [0, 1, 2], 2: [1]}, 2, "names host 2, but there are 2"),
        ({0: [0, 1, 3], 1: [2]}, 2, "names part 3, but the store has 3"),
        ({0: [0], 1: [2]}, 2, "says nothing about the parts [1]"),
        ({0: [0]}, 1, "says nothing about the parts [1, 2]"),
    ],
)
def test_placements_that_do_not_fit(stores: dict[int, Store], word: Any, count: int, message: str) -> None:
    with pytest.raises(PlanError) as error:
        place(word, stores[3].manifest, stores[3].path, Hosts(count))
    assert message.format(path=stores[3].path) in str(error.value)


def test_parts_come_from_one_host_each_and_hosts_share_the_load() -> None:
    placement = Placement(((0, 1), (1, 2), (0, 2)))
    assert [placement.sources(host) for host in range(3)] == [{1: (2,)}, {2: (0,)}, {0: (1,)}]
    assert not placement.is_replicated and Placement(((0, 1), (0, 1))).is_replicated
    assert Placement(((), (0,))).sources(0) == {1: (0,)}


def test_a_plan_keeps_its_placement(stores: dict[int, Store]) -> None:
    with GraphLoader.from_store(stores[2].path, progress=False, **OPTIONS) as loader:
        assert loader.plan.placement is None
        written = {**loader.plan.to_json(), "placement": [[0], [1]]}
    plan = LoaderPlan.from_json(json.loads(json.dumps(written)))
    assert plan.placement == Placement(((0,), (1,))) and plan.to_json() == written
    spread = {**written, "placement": {"hosts": [[0], [1]], "whole_structure": True}}
    assert LoaderPlan.from_json(spread).placement == Placement(((0,), (1,)), True) and LoaderPlan.from_json(spread).to_json() == spread
    for wrong in ([[0], [2]], [[1, 0]], "all", [["a"]], {"hosts": [[0], [1]]}, {"hosts": [[0], [1]], "whole_structure": "no"}):
        with pytest.raises(PlanError):
            LoaderPlan.from_json({**written, "placement": wrong})


def test_from_plan_on_one_host_has_everything_here(stores: dict[int, Store], tmp_path: Path) -> None:
    with GraphLoader.from_store(stores[2].path, progress=False, **OPTIONS) as loader:
        written = {**loader.plan.to_json(), "placement": [[0], [1]]}
    (tmp_path / "plan.json").write_text(json.dumps(written))
    with GraphLoader.from_plan(tmp_path / "plan.json", progress=False) as again:
        assert again.plan.placement is None and again.store.local_parts == (0, 1)


@pytest.mark.parametrize("word", ["partitioned", 2, {0: "01"}, {0: [0.5]}, {"a": [0]}, {0: 1}])
def test_words_that_are_none(stores: dict[int, Store], word: Any) -> None:
    with pytest.raises(PlanError, match="placement"):
        GraphLoader.from_store(stores[2].path, placement=word, progress=False, **OPTIONS)


@pytest.fixture
def two_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is host 1 of 2, says torchrun; there is no process group."""
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("two_hosts")
def test_hosts_without_a_process_group(stores: dict[int, Store], tmp_path: Path) -> None:
    assert find_hosts(None, 2, 1.0) == Hosts(2, 1)
    with GraphLoader.from_store(stores[2].path, placement="replicate", progress=False, **OPTIONS) as loader:
        assert loader.plan.backend["kind"] == "InProcess" and loader.plan.placement == Placement(((0, 1), (0, 1)))
        assert "all of it on each of 2 hosts" in repr(loader)
        with pytest.raises(PlanError, match="needs the whole graph on every host"):
            loader.for_split("valid", placement="partition")
    with pytest.raises(PlanError, match="init_process_group"):
        GraphLoader.from_store(stores[2].path, placement="partition", progress=False, **OPTIONS)
    with pytest.raises(StoreError, match="part 1 of the store .* is not on this host"):
        GraphLoader.from_store(stage(stores[2], tmp_path / "host", [0]), placement="partition", progress=False, **OPTIONS)
    with pytest.raises(PlanError, match="needs the whole graph on every host"):
        GraphLoader.from_store(stores[2].path, placement="partition", backend="inprocess", progress=False, **OPTIONS)


@pytest.mark.usefixtures("two_hosts")
def test_a_dataset_gets_a_part_for_each_host(tmp_path: Path) -> None:
    with GraphLoader.from_source(source(), placement="replicate", store_dir=tmp_path, progress=False, **OPTIONS) as loader:
        assert loader.store.num_parts == 2
    with GraphLoader.from_source(source(), placement="replicate", num_parts=1, store_dir=tmp_path, progress=False, **OPTIONS) as loader:
        assert loader.store.num_parts == 1


def test_one_host_says_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**TORCHRUN, "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    assert find_hosts(None, 2, 1.0) == Hosts()


def test_which_host_this_is(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = "192.0.2.7:7000"  # an address for documentation
    assert find_hosts((elsewhere, ADDRESSES[0]), 2, 1.0).index == 1
    with pytest.raises(PlanError, match=r"(?s)hosts \[0, 1\] are all addresses of this host.*GNNKIT_HOST"):
        find_hosts(ADDRESSES, 2, 1.0)
    with pytest.raises(PlanError, match="none of them is an address of this host"):
        find_hosts((elsewhere,), 2, 1.0)
    monkeypatch.setenv("GNNKIT_HOST", "1")
    assert find_hosts(ADDRESSES, 2, 1.0).index == 1
    monkeypatch.setenv("GNNKIT_HOST", "2")
    with pytest.raises(PlanError, match="GNNKIT_HOST=2, but there are 2 hosts"):
        find_hosts(ADDRESSES, 2, 1.0)


def test_which_address_is_listened_on() -> None:
    hosts = Hosts(2, 1, addresses=ADDRESSES)
    assert listening_address(hosts, None) == "127.0.0.3"
    assert listening_address(hosts, "lo") == "127.0.0.1" and listening_address(hosts, "127.0.0.5") == "127.0.0.5"
    for wrong, message in (("eth77", "no interface"), ("0.0.0.0", "every interface"), ("192.0.2.7", "no address of this host")):
        with pytest.raises(PlanError, match=message):
            listening_address(hosts, wrong)


@pytest.mark.parametrize("text", ["10.0.0.1", "10.0.0.1:0", "10.0.0.1:70000", ":7000", "fe80::1:7000", "a:b", 7000, ""])
def test_addresses_that_are_none(text: Any) -> None:
    with pytest.raises(PlanError, match="no address of a host"):
        Colocated(hosts=(text,))


def test_addresses() -> None:
    for text in ("10.0.0.1:7000", "node-1.cluster:65535", "[fd00::1]:7000"):
        assert join_address(*split_address(text)) == text
    assert Colocated(hosts=list(ADDRESSES)) == Colocated(hosts=ADDRESSES)
    options = {**Colocated(hosts=ADDRESSES).to_json(), "hosts": list(ADDRESSES)}
    assert backend_from_json(options) == Colocated(hosts=ADDRESSES)
    for wrong in ((), "10.0.0.1:7000", (ADDRESSES[0], ADDRESSES[0])):
        with pytest.raises(PlanError, match="hosts"):
            Colocated(hosts=wrong)


def test_a_service_whose_address_is_taken(stores: dict[int, Store], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNKIT_HOST", "0")
    monkeypatch.setenv("GNNKIT_TOKEN", "a secret of these tests only")
    with socket.create_server(("127.0.0.2", 0)) as taken:
        addresses = (f"127.0.0.2:{taken.getsockname()[1]}", ADDRESSES[1])
        with pytest.raises(PlanError, match="cannot be served at 127.0.0.2"):
            GraphLoader.from_store(stores[2].path, placement="partition", backend=Colocated(1, hosts=addresses), progress=False, **OPTIONS)


def test_what_hosts_need_is_compiled_before_any_of_them_waits(stores: dict[int, Store]) -> None:
    """On a slow machine it takes longer than a process is given to start."""
    with socket.create_server(("127.0.0.2", 0)) as taken:
        backend = f"Colocated(1, hosts=('127.0.0.2:{taken.getsockname()[1]}', '127.0.0.3:7000'))"
        program = f"""
            from gnnkit import Colocated, GraphLoader
            from gnnkit.errors import PlanError
            from gnnkit.sampling.kinds import warm
            try:
                GraphLoader.from_store({str(stores[2].path)!r}, num_neighbors=[2], placement="partition", backend={backend}, progress=False)
            except PlanError as error:
                print(error)
            import gnnkit.cluster.parts.loop, gnnkit.cluster.worker.owners
            missing = []
            warm(missing.append)
            print(missing)
        """
        environment = {**os.environ, "GNNKIT_HOST": "0", "GNNKIT_TOKEN": "a secret of these tests only"}
        command = [sys.executable, "-c", textwrap.dedent(program)]
        found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=True).stdout.splitlines()
    assert "cannot be served at 127.0.0.2" in found[0] and found[-1] == "[]"

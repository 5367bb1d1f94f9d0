"""``resolve_runtime`` without other processes: numbers that are given, torchrun's environment, and what is refused."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from gnnkit.distributed import DistributedRuntimeInfo, resolve_runtime
from gnnkit.errors import PlanError, StartTimeout
from tests.distributed.ranks import TORCHRUN_VARIABLES
from tests.helpers.ports import free_port


@pytest.fixture(autouse=True)
def no_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TORCHRUN_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"rank": 0, "world_size": 1}, DistributedRuntimeInfo(1, 0, 0, 1, 0, 1, "127.0.0.1")),
        (
            {"rank": 5, "world_size": 6, "local_process_rank": 1, "local_process_world_size": 2, "master_ip_address": "10.0.0.1"},
            DistributedRuntimeInfo(3, 2, 5, 6, 1, 2, "10.0.0.1"),
        ),
        (
            {"rank": 3, "world_size": 4, "local_process_rank": 1, "local_process_world_size": 2, "node_rank": 1},
            DistributedRuntimeInfo(2, 1, 3, 4, 1, 2, "127.0.0.1"),
        ),
        (
            {"rank": 1, "world_size": 4, "local_process_rank": 0, "local_process_world_size": 2, "node_rank": 1},
            DistributedRuntimeInfo(2, 1, 1, 4, 0, 2, "127.0.0.1"),
        ),
    ],
    ids=["alone", "last of six", "node given", "interleaved"],
)
def test_numbers_that_are_given(arguments: dict[str, Any], expected: DistributedRuntimeInfo) -> None:
    assert resolve_runtime(**arguments) == expected


def torchrun(monkeypatch: pytest.MonkeyPatch, **values: Any) -> None:
    for name, value in values.items():
        monkeypatch.setenv(name, str(value))


def test_torchrun_s_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    torchrun(monkeypatch, RANK=3, WORLD_SIZE=6, LOCAL_RANK=1, LOCAL_WORLD_SIZE=2, GROUP_RANK=1, GROUP_WORLD_SIZE=3, MASTER_ADDR="node0")
    assert resolve_runtime() == DistributedRuntimeInfo(3, 1, 3, 6, 1, 2, "node0")
    assert resolve_runtime(master_ip_address="10.0.0.9").master_ip_address == "10.0.0.9"
    # Ranks need not be numbered node by node where the node is known.
    torchrun(monkeypatch, RANK=4, GROUP_RANK=1)
    assert resolve_runtime() == DistributedRuntimeInfo(3, 1, 4, 6, 1, 2, "node0")


def test_one_node_needs_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    torchrun(monkeypatch, RANK=1, WORLD_SIZE=2, LOCAL_RANK=1, LOCAL_WORLD_SIZE=2)
    assert resolve_runtime() == DistributedRuntimeInfo(1, 0, 1, 2, 1, 2, "127.0.0.1")


def test_one_process_needs_no_local_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    torchrun(monkeypatch, RANK=0, WORLD_SIZE=1)
    assert resolve_runtime() == DistributedRuntimeInfo(1, 0, 0, 1, 0, 1, "127.0.0.1")


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, ["neither a process group nor torchrun's environment", "resolve_runtime(rank=0, world_size=1)"]),
        ({"RANK": 0}, ["no WORLD_SIZE"]),
        ({"WORLD_SIZE": 2}, ["no RANK"]),
        ({"RANK": "x", "WORLD_SIZE": 2}, ["RANK='x'"]),
        ({"RANK": 0, "WORLD_SIZE": 2}, ["LOCAL_RANK", "init_process_group first"]),
        ({"RANK": 0, "WORLD_SIZE": 4, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2}, ["MASTER_ADDR"]),
        ({"RANK": 0, "WORLD_SIZE": 3, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "a"}, ["world_size=3", "2 processes each"]),
        (
            {
                "RANK": 2,
                "WORLD_SIZE": 3,
                "LOCAL_RANK": 0,
                "LOCAL_WORLD_SIZE": 1,
                "GROUP_WORLD_SIZE": 2,
                "GROUP_RANK": 1,
                "MASTER_ADDR": "a",
            },
            ["GROUP_WORLD_SIZE=2", "LOCAL_WORLD_SIZE=1", "WORLD_SIZE=3"],
        ),
        ({"RANK": 1, "WORLD_SIZE": 4, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "a"}, ["node by node", "node_rank"]),
        ({"RANK": 7, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2}, ["rank must be between 0 and 1, got 7"]),
    ],
)
def test_an_environment_that_makes_no_sense(monkeypatch: pytest.MonkeyPatch, environment: dict[str, Any], words: list[str]) -> None:
    torchrun(monkeypatch, **environment)
    with pytest.raises(PlanError) as caught:
        resolve_runtime()
    assert all(word in str(caught.value) for word in words), caught.value


CONTEXT = SimpleNamespace(main_worker_ip_address="127.0.0.1", global_rank=0, global_world_size=1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rank": 0}, ["rank and world_size go together", "world_size=None"]),
        ({"world_size": 2}, ["rank=None"]),
        ({"rank": 0, "world_size": 2}, ["does not say which ranks share a node"]),
        ({"rank": 2, "world_size": 2, "local_process_rank": 0, "local_process_world_size": 2}, ["rank must be between 0 and 1, got 2"]),
        (
            {"rank": 0, "world_size": 2, "local_process_rank": 2, "local_process_world_size": 2, "node_rank": 0},
            ["local_rank must be between"],
        ),
        ({"rank": 0, "world_size": 2, "local_process_rank": 0, "local_process_world_size": 0}, ["nodes of 0 processes"]),
        ({"local_process_rank": 0}, ["go together", "local_process_world_size=None"]),
        ({"node_rank": 1}, ["without rank and world_size"]),
        ({"context": CONTEXT}, ["a context needs local_process_rank"]),
        ({"context": CONTEXT, "rank": 0, "world_size": 1}, ["both a context and rank"]),
    ],
)
def test_arguments_that_make_no_sense(arguments: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(PlanError) as caught:
        resolve_runtime(**arguments)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_record_checks_itself() -> None:
    with pytest.raises(PlanError, match="2 nodes of 2 processes are not world_size=5"):
        DistributedRuntimeInfo(2, 0, 0, 5, 0, 2, "127.0.0.1")


def test_a_taken_port_and_a_foreign_address_are_refused() -> None:
    import torch.distributed as dist

    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(PlanError, match="cannot listen on 127.0.0.1"):
        resolve_runtime(CONTEXT, 0, 1, master_port=taken.getsockname()[1])
    foreign = SimpleNamespace(main_worker_ip_address="192.0.2.1", global_rank=0, global_world_size=1)
    with pytest.raises(PlanError, match="cannot listen on 192.0.2.1"):
        resolve_runtime(foreign, 0, 1)
    assert not dist.is_initialized()


def test_ranks_that_never_come_are_not_waited_for_for_ever() -> None:
    import torch.distributed as dist

    two = SimpleNamespace(main_worker_ip_address="127.0.0.1", global_rank=0, global_world_size=2)
    port = free_port()
    with pytest.raises(StartTimeout, match=r"rank 0 of 2 found no process group at 127.0.0.1:\d+ within 1 s") as caught:
        resolve_runtime(two, 0, 1, master_port=port, timeout_s=1.0)
    assert caught.value.__cause__ is not None
    assert not dist.is_initialized()
    # The port is free again: a second try may use it.
    runtime = resolve_runtime(CONTEXT, 0, 1, master_port=port)
    runtime.cleanup()

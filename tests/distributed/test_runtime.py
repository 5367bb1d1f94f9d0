"""``resolve_runtime`` among real gloo process groups on this host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gnnkit.distributed import DistributedContext, resolve_runtime
from tests.distributed.ranks import TORCHRUN_VARIABLES, launch
from tests.helpers.machine import in_time
from tests.helpers.ports import free_port

pytestmark = pytest.mark.slow

TWO_NODES = [(0, 0), (0, 1), (1, 0), (1, 1)]
INTERLEAVED = [(0, 0), (1, 0), (0, 1), (1, 1)]


def told(places: list[tuple[int, int]], *, nodes: bool = True, local_world_size: int = 2) -> list[dict[str, str]]:
    """Torchrun's environment of ranks at (node, local rank)."""
    return [
        {"LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(local_world_size), **({"GROUP_RANK": str(node)} if nodes else {})}
        for node, local in places
    ]


def context(node: int, nodes: int) -> dict[str, Any]:
    return {"main_worker_ip_address": "127.0.0.1", "global_rank": node, "global_world_size": nodes}


def scenarios() -> list[dict[str, Any]]:
    given = [{"local_process_rank": local, "local_process_world_size": 2} for _, local in TWO_NODES]
    legacy, again = (
        [{**given[rank], "context": context(node, 2), "master_port": port} for rank, (node, _) in enumerate(TWO_NODES)]
        for port in (free_port(), free_port())
    )
    wrong = [{"context": context(0, 1), "local_process_rank": 0, "local_process_world_size": 1}] * 4
    mixed = told(TWO_NODES)
    mixed[2] = {}
    uneven = told([(0, 0), (0, 1), (0, 2), (1, 0)], local_world_size=3)
    for environment in uneven:
        del environment["LOCAL_WORLD_SIZE"]
    return [
        {"name": "hosts", "group": True, "times": 3},
        {"name": "torchrun", "group": True, "environment": told(TWO_NODES)},
        {"name": "interleaved", "group": True, "environment": told(INTERLEAVED)},
        {"name": "no node ranks", "group": True, "environment": told(INTERLEAVED, nodes=False)},
        {"name": "given", "group": True, "arguments": given},
        {"name": "address", "group": True, "arguments": [{"master_ip_address": "10.1.2.3"}] * 4},
        {"name": "uneven", "group": True, "environment": uneven},
        {"name": "mixed", "group": True, "environment": mixed},
        {"name": "inherited", "group": True, "environment": told([(0, 0)] * 4, local_world_size=1)},
        {"name": "legacy", "arguments": legacy},
        {"name": "legacy again", "arguments": again},
        {"name": "legacy borrowed", "group": True, "arguments": [{k: v for k, v in a.items() if k != "master_port"} for a in legacy]},
        {"name": "legacy wrong", "group": True, "arguments": wrong},
        {"name": "absent rank", "group": True, "arguments": [{"timeout_s": 6.0}, None, {"timeout_s": 6.0}, {"timeout_s": 6.0}]},
    ]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """``{scenario: what each of four ranks found}``; starting ranks is what takes the time, so all scenarios share them."""
    ranks = launch(tmp_path_factory.mktemp("ranks"), 4, scenarios())
    return {found[0]["name"]: list(found) for found in zip(*ranks, strict=True)}


def places(found: list[dict[str, Any]]) -> list[tuple[int, int]]:
    for rank, result in enumerate(found):
        record = result["record"]
        assert (record["rank"], record["world_size"]) == (rank, 4)
        assert record["node_world_size"] * record["local_world_size"] == 4
    return [(result["record"]["node_rank"], result["record"]["local_rank"]) for result in found]


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        ("hosts", [(0, 0), (0, 1), (0, 2), (0, 3)]),
        ("torchrun", TWO_NODES),
        ("interleaved", INTERLEAVED),
        ("no node ranks", INTERLEAVED),
        ("given", TWO_NODES),
    ],
)
def test_a_borrowed_group_says_where_ranks_stand(results: dict[str, Any], scenario: str, expected: list[tuple[int, int]]) -> None:
    assert places(results[scenario]) == expected
    for result in results[scenario]:
        assert result["record"]["master_ip_address"] == "127.0.0.1"
        assert result["record"]["should_cleanup_distributed_context"] is False
        assert result["initialized_after"], "a borrowed group was destroyed"
        assert result["sum"] == 6


def test_the_address_can_be_given(results: dict[str, Any]) -> None:
    assert {result["record"]["master_ip_address"] for result in results["address"]} == {"10.1.2.3"}


@pytest.mark.parametrize("scenario", ["legacy", "legacy again"])
def test_a_context_creates_a_group_and_destroys_it(results: dict[str, Any], scenario: str) -> None:
    assert places(results[scenario]) == TWO_NODES
    for result in results[scenario]:
        assert result["sum"] == 6, "the created group does not work"
        assert result["record"]["should_cleanup_distributed_context"] is True
        assert not result["initialized_after"], "the created group outlived cleanup()"
        assert result["listeners"] == ["127.0.0.1"], "something listens on another interface than the one given"


def test_a_context_borrows_the_group_that_is_there(results: dict[str, Any]) -> None:
    assert places(results["legacy borrowed"]) == TWO_NODES
    for result in results["legacy borrowed"]:
        assert result["record"]["should_cleanup_distributed_context"] is False
        assert result["initialized_after"]


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("uneven", ["node 0 has 3 (ranks 0, 1, 2)", "node 1 has 1 (ranks 3)", "same number"]),
        ("mixed", ["ranks [2] do not know their local rank"]),
        ("inherited", ["ranks 0 and 1 are both local rank 0", "unset"]),
        ("legacy wrong", ["rank 0 of 1", "of 4"]),
    ],
)
def test_contradictions_are_refused_on_every_rank(results: dict[str, Any], scenario: str, words: list[str]) -> None:
    for result in results[scenario]:
        assert result["error"] == "PlanError"
        assert all(word in result["message"] for word in words), result["message"]
        assert result["initialized_after"], "a borrowed group was destroyed"


def test_a_rank_that_does_not_call_is_named_in_time(results: dict[str, Any]) -> None:
    for rank in (0, 2, 3):
        result = results["absent rank"][rank]
        assert result["error"] == "StartTimeout"
        assert "heard nothing from ranks [1] within 6 s" in result["message"]
        assert result["seconds"] > 5.5 and in_time(result["seconds"], 10)


def test_the_environment_is_left_as_it_was(results: dict[str, Any]) -> None:
    assert not [name for name, found in results.items() for result in found if result["environment_changed"]]


@pytest.mark.netns
def test_namespaces_are_hosts_of_their_own(tmp_path: Path) -> None:
    unshare = "unshare --ipc" if os.geteuid() == 0 else "unshare -r --ipc"
    ranks = launch(tmp_path, 4, [{"name": "namespaces", "group": True}], wrap={f"{unshare} --": [0, 2], unshare: [1, 3]})
    assert places([found[0] for found in ranks]) == INTERLEAVED


@pytest.mark.glt
def test_the_same_on_the_oldest_torch(tmp_path: Path, glt_interpreter: Path) -> None:
    arguments = [
        {"context": context(node, 2), "local_process_rank": 0, "local_process_world_size": 1, "master_port": free_port()} for node in (0, 1)
    ]
    arguments[1]["master_port"] = arguments[0]["master_port"]
    wanted = [{"name": "hosts", "group": True}, {"name": "legacy", "arguments": arguments}]
    for rank, (hosts, legacy) in enumerate(launch(tmp_path, 2, wanted, python=str(glt_interpreter))):
        assert (hosts["record"]["local_rank"], hosts["record"]["local_world_size"]) == (rank, 2)
        assert (legacy["record"]["node_rank"], legacy["listeners"], legacy["initialized_after"]) == (rank, ["127.0.0.1"], False)


SCRIPT = """
import json
from dataclasses import asdict
import torch.distributed as dist
from gnnkit.distributed import DistributedContext, resolve_runtime
found = [asdict(resolve_runtime())]
dist.init_process_group("gloo")
found.append(asdict(resolve_runtime()))
open(f"{FOLDER}/{dist.get_rank()}.json", "w").write(json.dumps(found))
dist.barrier()
dist.destroy_process_group()
"""


def test_torchrun_with_and_without_a_group(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"FOLDER = {str(tmp_path)!r}\n{SCRIPT}")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        "--master-addr=127.0.0.1",
        f"--master-port={free_port()}",
    ]
    done = subprocess.run([*command, str(script)], env=clean(os.environ), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in range(2):
        from_environment, from_group = json.loads((tmp_path / f"{rank}.json").read_text())
        assert from_environment == from_group
        assert (from_group["rank"], from_group["local_rank"], from_group["local_world_size"]) == (rank, rank, 2)
        assert from_group["master_ip_address"] == "127.0.0.1"


def clean(environment: Any) -> dict[str, str]:
    return {key: value for key, value in environment.items() if key not in TORCHRUN_VARIABLES} | {"OMP_NUM_THREADS": "1"}


def test_a_group_of_one_is_made_and_destroyed_in_this_process() -> None:
    import torch.distributed as dist

    legacy, hook, environment = DistributedContext(**context(0, 1)), sys.excepthook, dict(os.environ)
    for _ in range(3):
        runtime = resolve_runtime(legacy, 0, 1, master_port=free_port())
        assert dist.is_initialized() and runtime.should_cleanup_distributed_context
        runtime.cleanup()
        assert not dist.is_initialized()
        # Torch's own prefix of tracebacks would stay behind.
        assert sys.excepthook is hook and dict(os.environ) == environment


def test_a_group_that_replaced_ours_is_left_alone(tmp_path: Path) -> None:
    import torch.distributed as dist

    runtime = resolve_runtime(DistributedContext(**context(0, 1)), 0, 1, master_port=free_port())
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        runtime.cleanup()
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()

"""What of graphlearn-torch is handed on as it is, used as its documents use it, with and without its native library."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnkit import distributed as glt
from gnnkit.datasets import write_glt_partitions
from gnnkit.errors import PlanError
from tests.distributed.loading import NUM_NODES, needs_glt, ring, stored
from tests.helpers.glt import is_native, of_glt
from tests.helpers.machine import ROOT
from tests.helpers.ports import free_port

pytestmark = [pytest.mark.slow, needs_glt]
DEADLINE_S = 120


def test_an_event_loop_runs_tasks() -> None:
    loop, found = glt.ConcurrentEventLoop(2), []

    async def doubled(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    loop.start_loop()
    for number in range(5):
        loop.add_task(doubled(number), callback=found.append)
    loop.wait_all()
    assert sorted(found) == [0, 2, 4, 6, 8] and loop.run_task(doubled(21)) == 42
    loop.shutdown_loop()


# One of two processes; its RPC cannot be started twice in one, which is why it has one of its own.
CALLS = """
import json, sys
from gnnkit import distributed as glt

class Sum(glt.RpcCalleeBase):
    def call(self, *args, **kwargs):
        return sum(args)

rank = int(sys.argv[1])
glt.init_worker_group(2, rank, "trainers")
glt.init_rpc("127.0.0.1", int(sys.argv[2]))
glt.barrier(), glt.global_barrier()
names = glt.get_rpc_current_group_worker_names()
parts = glt.rpc_sync_data_partitions(2, rank)
number, other = glt.rpc_register(Sum()), glt.RpcDataPartitionRouter(parts).get_to_worker(1 - rank)
found = [glt.rpc_is_initialized(), names, parts, other, glt.all_gather(rank), glt.global_all_gather(rank + 5),
         glt.rpc_request(other, number, args=(1, 2)), glt.rpc_request_async(other, number, args=(3, 4)).wait(),
         glt.get_context().worker_name, [len(own) for own in glt.get_rpc_worker_names().values()]]
glt.barrier()
glt.shutdown_rpc()
print(json.dumps(found))
"""


def test_calls_between_processes_are_graphlearn_torchs_own() -> None:
    names = ["trainers_0", "trainers_1"]
    command, port = [sys.executable, "-W", "ignore", "-c", CALLS], str(free_port())
    started = [
        subprocess.Popen([*command, str(rank), port], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        for rank in range(2)
    ]
    try:
        for rank, process in enumerate(started):
            out, err = process.communicate(timeout=DEADLINE_S)
            assert process.returncode == 0, err[-3000:]
            initialized, found, parts, other, gathered, everywhere, total, later, own, groups = json.loads(out.splitlines()[-1])
            assert initialized and found == names and parts == [[name] for name in names] and other == names[1 - rank]
            assert gathered == {name: rank for rank, name in enumerate(names)} and everywhere == {names[0]: 5, names[1]: 6}
            assert (total, later, own, groups) == (3, 7, names[rank], [2])
    finally:
        for process in started:
            process.kill()
            process.communicate()


def test_constants_and_records() -> None:
    assert [(command.name, command.value) for command in glt.MpCommand] == [("SAMPLE_ALL", 0), ("STOP", 1)]
    assert glt.MP_STATUS_CHECK_INTERVAL == glt.SERVER_EXIT_STATUS_CHECK_INTERVAL == 5.0
    group = glt.DeviceGroup(1, [0, 2])
    assert (group.group_id, group.device_list, group.size) == (1, [0, 2], 2)
    ids = torch.tensor([3, 1])
    output = glt.PartialNeighborOutput(index=ids, output=None)
    assert output.index is ids and output.output is None
    seeds = of_glt("sampler.RemoteNodePathSamplerInput")("partition0.pt", "user")
    assert isinstance(seeds, glt.RemoteSamplerInput) and (seeds.node_path, seeds.input_type) == ("partition0.pt", "user")
    assert [split.name for split in glt.Split] == ["train", "valid", "test"]


def test_a_callee_looks_features_up_for_others(tmp_path: Path) -> None:
    features = glt.DistFeature.from_store(stored(ring(), tmp_path))
    callee = glt.RpcFeatureLookupCallee(features)
    assert isinstance(callee, glt.RpcCalleeBase) and callee.call(torch.tensor([5, 2]), None)[:, 0].tolist() == [5, 2]


# What needs the native library ----------------------------------------------------------------------------------------------


def values() -> Any:
    """A dataset of graphlearn-torch's own."""
    graph = glt.Graph(of_glt("data.Topology")(edge_index=ring().edge_index), "CPU")
    return of_glt("distributed.DistDataset")(1, 0, graph, node_pb=torch.zeros(NUM_NODES, dtype=torch.long))


NATIVE: dict[str, Callable[[], Any]] = {
    "Graph": lambda: values().get_graph().graph_handler,
    "ShmChannel": lambda: glt.ShmChannel(2, "1MB"),
}


@pytest.mark.parametrize("name", NATIVE)
def test_without_its_native_library_one_sentence_says_so(name: str) -> None:
    if is_native():
        pytest.skip("the library is there: see below; to enable: a torch that it does not fit")
    with pytest.raises(PlanError, match=r"needs graphlearn-torch's native library: .*\n  -> in an environment of Python"):
        NATIVE[name]()


SAMPLERS = """
import sys, torch
from gnnkit import distributed as glt
from graphlearn_torch.distributed import DistDataset

def checked(message):
    # The ring: 3 leads to 4 and 5, ids are features; which end a row is differs by method.
    ids, steps = message["ids"], (message["ids"][message["rows"]] - message["ids"][message["cols"]]) % 40
    assert set(torch.minimum(steps, 40 - steps).tolist()) == {1, 2}
    assert message["nfeats"][:, 0].long().equal(ids) and message["efeats"][:, 0].long().equal(message["eids"])
    return sorted(ids.tolist())

glt.init_worker_group(1, 0, "samplers")
glt.init_rpc("127.0.0.1", int(sys.argv[2]))
data = DistDataset(edge_dir="out")
data.load(sys.argv[1], 0, graph_mode="CPU", feature_with_gpu=False)
cpu, seeds = torch.device("cpu"), torch.tensor([3, 4, 5])
sampler = glt.DistNeighborSampler(data, [2, 2], with_edge=True, with_neg=True, collect_features=True, device=cpu)
assert isinstance(sampler, glt.ConcurrentEventLoop)
sampler.start_loop()
nodes = sampler.sample_from_nodes(glt.NodeSamplerInput(seeds))
assert checked(nodes) == [3, 4, 5, 6, 7, 8, 9] and nodes["batch"].equal(seeds)
links = sampler.sample_from_edges(glt.EdgeSamplerInput(seeds, seeds + 1))
assert checked(links) == [3, 4, 5, 6, 7, 8, 9, 10] and links["#META.edge_label_index"].shape == (2, 3)
around = sampler.subgraph(glt.NodeSamplerInput(seeds))
assert checked(around) == [3, 4, 5, 6, 7, 8, 9] and around["ids"][around["#META.mapping"]].equal(seeds)
one_hop = glt.RpcSamplingCallee(sampler.sampler, cpu).call(seeds, 2, None)
assert one_hop.nbr.tolist() == [4, 5, 5, 6, 6, 7] and one_hop.nbr_num.tolist() == [2, 2, 2]
found, rows, cols, _ = glt.RpcSubGraphCallee(sampler.sampler, cpu).call(seeds, with_edge=True)
assert sorted(zip(found[rows].tolist(), found[cols].tolist())) == [(3, 4), (3, 5), (4, 5)]
assert glt.Feature(torch.arange(4.0)[:, None], with_gpu=False)[torch.tensor([2])].tolist() == [[2.0]]
sampler.shutdown_loop()
glt.shutdown_rpc()
"""


@pytest.mark.glt
def test_its_samplers_sample_where_the_native_library_is(tmp_path: Path, glt_interpreter: Path) -> None:
    write_glt_partitions(stored(ring(), tmp_path, 1, edge_dir="out"), tmp_path / "partitions", lambda event: None)
    command = [str(glt_interpreter), "-W", "ignore", "-c", SAMPLERS, str(tmp_path / "partitions"), str(free_port())]
    own = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]

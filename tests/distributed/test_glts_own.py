"""Classes that graphlearn-torch has too, beside its own; and what is handed on as it is where its native library fits."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnkit import distributed as glt
from gnnkit.datasets import write_glt_partitions
from gnnkit.distributed import glt_classes
from gnnkit.errors import PlanError
from tests.distributed.loading import ring, stored
from tests.helpers.glt import is_native, needs_glt, of_glt
from tests.helpers.ports import free_port
from tests.helpers.programs import started

DEADLINE_S = 120
ADDRESS: dict[str, Any] = {"master_addr": "10.0.0.1", "master_port": 7}
CONFIG: dict[str, Any] = {"num_neighbors": [2, 1], "batch_size": 4, "shuffle": True, "drop_last": False, "with_edge": True}
CONFIG |= {"collect_features": True, "with_neg": False, "with_weight": False, "edge_dir": "in", "seed": 3}
IDS, ENDS = torch.tensor([3, 1, 2]), torch.tensor([4, 5, 6])
# Where graphlearn-torch has a class, and arguments.
SHARED: dict[str, tuple[str, dict[str, Any]]] = {
    "NodeSamplerInput": ("sampler", {"node": IDS, "input_type": "user"}),
    "EdgeSamplerInput": ("sampler", {"row": IDS, "col": ENDS, "label": ENDS}),
    "NegativeSampling": ("sampler", {"mode": "triplet", "amount": 2.0}),
    "SamplingConfig": ("sampler", {"sampling_type": glt.SamplingType.LINK, **CONFIG}),
    "CollocatedDistSamplingWorkerOptions": ("distributed", {**ADDRESS, "rpc_timeout": 60}),
    "MpDistSamplingWorkerOptions": ("distributed", {**ADDRESS, "num_workers": 2, "worker_devices": torch.device("cpu")}),
    "RemoteDistSamplingWorkerOptions": ("distributed", {**ADDRESS, "server_rank": [1, 0], "worker_concurrency": 40, "worker_key": "key"}),
}


def fields(record: Any) -> dict[str, Any]:
    """A record's fields, in words."""
    return {name: str(getattr(value, "value", value)) for name, value in vars(record).items()}


@needs_glt
@pytest.mark.parametrize("name", SHARED)
def test_records_are_graphlearn_torchs_and_theirs_are_ours(name: str) -> None:
    module, given = SHARED[name]
    their_class, our_class = of_glt(f"{module}.{name}"), getattr(glt, name)
    theirs, ours = their_class(**given), our_class(**given)
    assert fields(ours) == fields(theirs)
    assert isinstance(ours, their_class) and isinstance(theirs, our_class) and type(ours) is our_class
    assert not any(isinstance(each, getattr(glt, other)) for other in SHARED if other != name for each in (ours, theirs))
    for again in (pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours), ours.__class__(**given)):
        assert type(again) is our_class and fields(again) == fields(ours)
    own = type("Own", (our_class,), {})(**given)
    assert isinstance(own, their_class) and own.__class__.__name__ == "Own" and not isinstance(theirs, type(own))


def test_records_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, links = glt.NodeSamplerInput(IDS, "user"), glt.EdgeSamplerInput(IDS, ENDS, None, None, glt.NegativeSampling("binary"))
    assert (len(nodes), len(links)) == (3, 3) and nodes[[2, 0]].node.tolist() == [2, 3] and nodes[[0]].input_type == "user"
    some = links[torch.tensor([1])].share_memory()
    assert (some.row.tolist(), some.col.tolist(), some.label) == ([1], [5], None) and some.row.is_shared() and some.neg_sampling.is_binary()
    assert nodes.to("meta").node.is_meta and not nodes.node.is_meta
    options = glt.MpDistSamplingWorkerOptions(2, **ADDRESS)
    assert (options.channel_size, options.channel_capacity, options.worker_devices) == ("128MB", 8, None)
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.2"), monkeypatch.setenv("MASTER_PORT", "70")
    options = glt.CollocatedDistSamplingWorkerOptions()
    assert (options.master_addr, options.master_port, options.num_workers, options.worker_concurrency) == ("10.0.0.2", 71, 1, 1)
    monkeypatch.delenv("MASTER_PORT")
    for wrong, said in (
        (lambda: glt.MpDistSamplingWorkerOptions(), "master_port None"),
        (lambda: glt.MpDistSamplingWorkerOptions(2, [torch.device("cpu")], **ADDRESS), "worker_devices are 1, and num_workers is 2"),
        (
            lambda: glt.RemoteDistSamplingWorkerOptions(0, prefetch_size=5, **ADDRESS),
            "prefetch_size must be between 1 and .* = 4, got 5",
        ),
        (lambda: glt.RemoteDistSamplingWorkerOptions(**ADDRESS), "server_rank is None"),
        (lambda: glt.NegativeSampling("triplets"), "did you mean 'triplet'"),
        (lambda: glt.NegativeSampling("triplet", 1.5), "a whole one"),
        (lambda: glt.init_worker_group(2, 2), "rank must be between 0 and 1"),
    ):
        with pytest.raises(PlanError, match=said):
            wrong()
    with pytest.raises(TypeError, match="abstract"):
        glt.ChannelBase()
    with pytest.raises(PlanError, match="base of loaders"):
        glt.DistLoader(None, nodes)


@needs_glt
@pytest.mark.parametrize("name", ["SamplingType", "NegativeSamplingMode"])
def test_members_are_those_of_graphlearn_torch(name: str) -> None:
    ours, theirs = getattr(glt_classes, name), of_glt(f"sampler.{name}")
    for member in theirs:
        assert ours(member.value) == member == ours[member.name] and member in set(ours) and ours(member.value) in [member]
    assert len(ours) == len(theirs) and list(ours)[0] != list(theirs)[1]
    assert [(split.name, split.value) for split in glt.Split] == [(split.name, split.value) for split in of_glt("typing.Split")]


@needs_glt
def test_loaders_and_channels_are_graphlearn_torchs(tmp_path: Path) -> None:
    dataset = glt.DistDataset.from_store(stored(ring(), tmp_path))
    options = of_glt("distributed.CollocatedDistSamplingWorkerOptions")("127.0.0.1", 1)
    loader = glt.DistNeighborLoader(dataset, [2], torch.arange(10), batch_size=5, worker_options=options)
    assert isinstance(loader, glt.DistLoader) and isinstance(loader, of_glt("distributed.DistLoader"))
    assert isinstance(loader._channel, of_glt("channel.ChannelBase"))
    assert [batch.batch.tolist() for batch in loader] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    loader.shutdown()
    seeds, record = of_glt("sampler.NodeSamplerInput")(torch.arange(10)), of_glt("sampler.SamplingConfig")
    config = record(of_glt("sampler.SamplingType").NODE, **{**CONFIG, "shuffle": False})
    runtime = glt.resolve_runtime(rank=0, world_size=1)
    producer = glt.DistSamplingProducer(dataset, seeds, config, options, glt.BaseDistLoader.create_colocated_channel(options))
    sampler = glt.KHopNeighborSamplerOptions([2, 1])
    loader = glt.BaseDistLoader(dataset, seeds, dataset.schema, options, config, "cpu", runtime, producer, sampler)
    assert [batch.batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    loader.shutdown()


@pytest.mark.parametrize("name", ["ShmChannel", "init_rpc", "DistNeighborSampler"])
def test_without_its_native_library_one_sentence_says_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_native():
        pytest.skip("the library is there: see below; to enable: a torch that it does not fit")
    monkeypatch.delitem(sys.modules, "graphlearn_torch", raising=False)  # whose Python part other tests import
    with pytest.raises(PlanError, match=rf"gnnkit.distributed.{name} needs graphlearn-torch's native library: .*\n  -> in an environment"):
        getattr(glt, name)


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


@pytest.mark.glt
def test_calls_between_processes_are_graphlearn_torchs_own(glt_interpreter: Path) -> None:
    names = ["trainers_0", "trainers_1"]
    command, port = [str(glt_interpreter), "-W", "ignore", "-c", CALLS], str(free_port())
    with started([[*command, str(rank), port] for rank in range(2)], [os.environ] * 2) as programs:
        for rank, program in enumerate(programs):
            out, err = program.communicate(timeout=DEADLINE_S)
            assert program.returncode == 0, err[-3000:]
            initialized, found, parts, other, gathered, everywhere, total, later, own, groups = json.loads(out.splitlines()[-1])
            assert initialized and found == names and parts == [[name] for name in names] and other == names[1 - rank]
            assert gathered == {name: rank for rank, name in enumerate(names)} and everywhere == {names[0]: 5, names[1]: 6}
            assert (total, later, own, groups) == (3, 7, names[rank], [2])


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

loop, found = glt.ConcurrentEventLoop(2), []

async def doubled(number):
    return 2 * number

loop.start_loop()
for number in range(5):
    loop.add_task(doubled(number), callback=found.append)
loop.wait_all()
assert sorted(found) == [0, 2, 4, 6, 8] and loop.run_task(doubled(21)) == 42
loop.shutdown_loop()
assert [(command.name, command.value) for command in glt.MpCommand] == [("SAMPLE_ALL", 0), ("STOP", 1)]
assert glt.MP_STATUS_CHECK_INTERVAL == glt.SERVER_EXIT_STATUS_CHECK_INTERVAL == 5.0
group = glt.DeviceGroup(1, [0, 2])
assert (group.group_id, group.device_list, group.size) == (1, [0, 2], 2)
output = glt.PartialNeighborOutput(index=seeds, output=None)
assert output.index is seeds and output.output is None
features = glt.DistFeature.from_store(sys.argv[1] + "/../store")
callee = glt.RpcFeatureLookupCallee(features)
assert isinstance(callee, glt.RpcCalleeBase) and callee.call(torch.tensor([5, 2]), None)[:, 0].tolist() == [5, 2]
from graphlearn_torch.sampler import RemoteNodePathSamplerInput
assert isinstance(RemoteNodePathSamplerInput("partition0.pt", "user"), glt.RemoteSamplerInput)
channel = glt.ShmChannel(2, "1MB")
channel.send({"ids": seeds})
assert channel.recv()["ids"].equal(seeds)
"""


@pytest.mark.glt
def test_its_samplers_sample_where_the_native_library_is(tmp_path: Path, glt_interpreter: Path) -> None:
    write_glt_partitions(stored(ring(), tmp_path, 1, edge_dir="out"), tmp_path / "partitions", lambda event: None)
    command = [str(glt_interpreter), "-W", "ignore", "-c", SAMPLERS, str(tmp_path / "partitions"), str(free_port())]
    own = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]

"""``BaseDistLoader``: GiGL's recipe, producers of one's own, messages, and graphlearn-torch's own collate as the judge."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from gnnkit.distributed import DatasetSchema, DistDataset, DistributedRuntimeInfo, FeatureInfo, KHopNeighborSamplerOptions
from gnnkit.errors import BatchTimeout, LoaderClosed, PlanError, SamplingError
from tests.distributed.loading import NUM_NODES, dataset_of, pygs_own, ring, seeds_of, typed_ring
from tests.helpers.batches import same
from tests.helpers.devices import pretend_copies_overlap
from tests.helpers.glt import needs_glt, of_glt

pytestmark = pytest.mark.slow
ALONE = DistributedRuntimeInfo(1, 0, 0, 1, 0, 1, "127.0.0.1")
OPTIONS = {"worker_concurrency": 2, "master_ip_address": "127.0.0.1", "master_port": 1, "channel_size": "1MB", "pin_memory": False}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> DistDataset:
    return dataset_of(ring(), tmp_path_factory.mktemp("ring"), 2, edge_dir="out")


@pytest.fixture(scope="module", params=["in", "out"])
def typed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DistDataset:
    return dataset_of(typed_ring(), tmp_path_factory.mktemp("typed"), 2, edge_dir=request.param)


def recipe(dataset: DistDataset, *, base: Any = None, input_type: str | None = None, **changes: Any) -> Any:
    """What a subclass of GiGL's does in its constructor."""
    from gnnkit.distributed import BaseDistLoader, DistSamplingProducer, NodeSamplerInput

    base = base or BaseDistLoader
    runtime = base.resolve_runtime(rank=0, world_size=1)
    config = base.create_sampling_config([2, 2], dataset.schema, batch_size=7, shuffle=True)
    options = base.create_colocated_worker_options(dataset_num_partitions=dataset.num_partitions, num_workers=1, **OPTIONS)
    seeds = NodeSamplerInput(torch.arange(NUM_NODES), input_type)
    arguments = {
        "dataset": dataset,
        "sampler_input": seeds,
        "dataset_schema": dataset.schema,
        "worker_options": options,
        "sampling_config": config,
        "device": torch.device("cpu"),
        "runtime": runtime,
        "sampler_options": KHopNeighborSamplerOptions([2, 2]),
        **changes,
    }
    if "producer" not in arguments:
        channel = base.create_colocated_channel(arguments["worker_options"])
        arguments["producer"] = DistSamplingProducer(
            dataset, arguments["sampler_input"], config, arguments["worker_options"], channel, arguments["sampler_options"]
        )
    return base(**arguments)


@pytest.mark.core
def test_gigls_recipe(dataset: DistDataset) -> None:
    from gnnkit.distributed import BaseDistLoader, ChannelBase, DistLoader

    class Named(BaseDistLoader):
        def _collate_fn(self, msg: Any) -> Any:
            batch = super()._collate_fn(msg)
            batch.words = sorted(msg)
            return batch

    loader = recipe(dataset, base=Named)
    assert isinstance(loader, DistLoader) and isinstance(loader._channel, ChannelBase)
    batches = list(loader)
    assert sorted(seeds_of(batches)) == list(range(NUM_NODES)) and "nfeats" in batches[0].words
    assert loader.worker_options.worker_world_size == 1 and loader.worker_options.worker_ranks == [0]
    assert not loader._channel.empty() or loader._channel.empty() is True
    with pytest.raises(PlanError, match="nothing can be sent"):
        loader._channel.send({})
    with pytest.raises(PlanError, match="another producer"):
        type(loader._producer)(dataset, None, None, None, loader._channel)
    loader.shutdown()


def judged(loader: Any) -> list[tuple[Any, Any]]:
    """Every batch of an epoch, ours and what graphlearn-torch's own loader makes of the same message."""
    found, theirs = [], of_glt("distributed.DistLoader")
    iter(loader)
    while True:
        try:
            message = loader._channel.recv()
        except StopIteration:
            return found
        before = {name: value.clone() for name, value in message.items()}
        found.append((loader._collate_fn(message), theirs._collate_fn(loader, message)))
        assert before.keys() == message.keys() and all(torch.equal(before[name], value) for name, value in message.items())


@needs_glt
def test_graphlearn_torchs_own_collate_reads_the_same_from_our_messages(dataset: DistDataset, typed: DistDataset) -> None:
    plain, hetero = recipe(dataset), recipe(typed, input_type="item")
    for ours, theirs in judged(plain):
        for name in ("x", "y", "edge_attr", "edge_index", "node", "edge", "batch"):
            assert torch.equal(ours[name], theirs[name]), name
        assert ours.batch_size == theirs.batch_size
        assert ours.num_sampled_nodes == theirs.num_sampled_nodes.tolist() and ours.num_sampled_edges == theirs.num_sampled_edges.tolist()
    pairs = judged(hetero)
    for ours, theirs in pairs:
        assert set(ours.edge_types) == set(theirs.edge_types) and set(ours.node_types) == set(theirs.node_types)
        for node_type in ours.node_types:
            assert torch.equal(ours[node_type].node, theirs[node_type].node) and torch.equal(ours[node_type].x, theirs[node_type].x)
            assert ours.num_sampled_nodes[node_type] == theirs.num_sampled_nodes[node_type].tolist()
        assert torch.equal(ours["item"].batch, theirs["item"].batch) and torch.equal(ours["item"].y, theirs["item"].y)
        for edge_type in ours.edge_types:
            for name in ("edge_index", "edge", "edge_attr"):
                assert torch.equal(ours[edge_type][name], theirs[edge_type][name]), (edge_type, name)
            assert ours.num_sampled_edges[edge_type] == theirs.num_sampled_edges[edge_type].tolist()
    assert len(pairs) == len(hetero) == 6
    plain.shutdown()
    hetero.shutdown()


# Producers of one's own -------------------------------------------------------------------------------------------------------


class Replay:
    """A producer with GiGL's methods over messages that are given."""

    def __init__(self, messages: list[Any]) -> None:
        self.messages, self.calls = messages, []
        self.output_channel = self

    def init(self) -> None:
        self.calls.append("init")

    def produce_all(self) -> None:
        self.calls.append("produce_all")
        self.left = list(self.messages)

    def shutdown(self) -> None:
        self.calls.append("shutdown")

    def recv(self, **kwargs: Any) -> Any:
        self.calls.append("recv")
        if not self.left:
            raise of_glt("channel.QueueTimeoutError")
        return self.left.pop(0)


def messages_of(loader: Any) -> list[Any]:
    iter(loader)
    return [{name: value.clone() for name, value in loader._channel.recv().items()} for _ in range(len(loader))]


def test_any_producer_will_do(dataset: DistDataset) -> None:
    own = recipe(dataset)
    expected, messages = [pygs_own(batch) for batch in own], messages_of(own)
    again = list(own._producer.connection.loaders[0])  # the third epoch
    own.shutdown()
    assert len(again) == len(messages)
    producer = Replay([{**message, "#META.key": torch.tensor(7)} for message in messages])
    loader = recipe(dataset, producer=producer)
    for _ in range(2):
        batches = list(loader)
        assert len(batches) == len(loader) == len(expected) and all(batch.key == 7 for batch in batches)
    assert sorted(seeds_of(batches)) == list(range(NUM_NODES))
    assert producer.calls == ["init", *(["produce_all"] + ["recv"] * 6) * 2]
    loader.shutdown()
    loader.shutdown()
    assert producer.calls[-1:] == ["shutdown"] and producer.calls.count("shutdown") == 1
    for missing in ("ids", "rows", "num_sampled_nodes"):
        loader = recipe(dataset, producer=Replay([{name: value for name, value in messages[0].items() if name != missing}]))
        with pytest.raises(SamplingError, match=f"no '{missing}'"):
            next(iter(loader))
    for wrong, said in (
        ({"#SAMPLING_ERROR": torch.tensor(list("Zürich: IndexError".encode()), dtype=torch.uint8)}, "Zürich: IndexError"),
        ({"planet.ids": EMPTY}, "'planet.ids'"),
    ):
        loader = recipe(dataset, producer=Replay([{**messages[0], **wrong}]))
        with pytest.raises(SamplingError, match=said):
            next(iter(loader))
    failed = {**messages[0], "#SAMPLING_ERROR": torch.tensor(list(b"once"), dtype=torch.uint8)}
    batches = iter(recipe(dataset, producer=Replay([failed, *messages[1:]])))
    with pytest.raises(SamplingError, match="once"):
        next(batches)
    assert len(list(batches)) == len(messages) - 1, "the others of the epoch come, and no more are waited for"


@needs_glt
def test_a_channel_of_graphlearn_torchs_that_is_silent(dataset: DistDataset) -> None:
    silent = recipe(dataset, producer=Replay([]))
    with pytest.raises(BatchTimeout, match="600 s from Replay"):
        next(iter(silent))


EMPTY = torch.empty(0, dtype=torch.int64)


def test_a_message_with_only_what_graphlearn_torch_sends(typed: DistDataset) -> None:
    own = recipe(typed, input_type="item")
    message = messages_of(own)[0]
    wanted = own._collate_fn(message)
    own.shutdown()
    bare = {name: value for name, value in message.items() if not name.endswith(("input_id", ".batch"))}
    gone = "user__u2i__item" if typed.edge_dir == "out" else "item__rev_u2i__user"
    bare = {name: value for name, value in bare.items() if not name.startswith((gone, "user."))}
    batch = recipe(typed, input_type="item", producer=Replay([bare]))._collate_fn(bare)
    assert torch.equal(batch["item"].batch, wanted["item"].batch) and batch["item"].batch_size == 7
    shown = ("item", "rev_u2i", "user") if typed.edge_dir == "out" else ("user", "u2i", "item")
    assert batch["user"].node.tolist() == [] and batch[shown].edge_index.shape == (2, 0)
    assert batch.num_sampled_nodes["user"] == [0, 0, 0] and batch.num_sampled_edges[shown] == [0, 0]


# Arguments ----------------------------------------------------------------------------------------------------------------


def test_arguments_that_do_not_go_together(dataset: DistDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    from gnnkit.distributed import BaseDistLoader, DistSamplingProducer

    producer = Replay([])
    for changes, said in (
        ({"producer": lambda *args: 0}, "without \\['init', 'produce_all', 'shutdown', 'output_channel'\\]"),
        ({"sampler_input": [EMPTY], "producer": producer}, "graph-store mode"),
        ({"sampler_input": EMPTY, "producer": producer}, "must be a NodeSamplerInput"),
        ({"worker_options": None, "producer": producer}, "options of sampling workers, got a NoneType"),
        ({"process_start_gap_seconds": float("nan"), "producer": producer}, "process_start_gap_seconds"),
        ({"producer": None}, "producer is a NoneType without"),
        ({"device": "abacus", "producer": producer}, "unknown device"),
    ):
        with pytest.raises(PlanError, match=said):
            recipe(dataset, **changes)
    assert producer.calls == []
    with pytest.raises(PlanError, match="output_channel is a list"):
        DistSamplingProducer(dataset, None, None, None, [])  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="init"):
        DistSamplingProducer(dataset, None, None, None, BaseDistLoader.create_colocated_channel(None)).produce_all()
    with pytest.raises(LoaderClosed, match="no producer"):
        BaseDistLoader.create_colocated_channel(None).recv()


@needs_glt
def test_a_server_of_graphlearn_torchs_makes_no_loader(dataset: DistDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    module = of_glt("distributed.dist_context")
    monkeypatch.setattr(module, "_dist_context", module.DistContext(module.DistRole.SERVER, "storage", 1, 0, 2, 0))
    with pytest.raises(PlanError, match="is a server in graphlearn-torch's group 'storage'"):
        recipe(dataset, producer=Replay([]))


def test_the_gap_is_waited_for_by_local_rank(dataset: DistDataset) -> None:
    for local_rank, gap_s in ((0, 600.0), (2, 0.2)):
        runtime, began = DistributedRuntimeInfo(1, 0, local_rank, 3, local_rank, 3, "127.0.0.1"), time.monotonic()
        loader = recipe(dataset, runtime=runtime, process_start_gap_seconds=gap_s, producer=Replay([]))
        assert local_rank * gap_s <= time.monotonic() - began < 300
        assert loader.worker_options.worker_ranks == [local_rank] and loader.worker_options.worker_world_size == 3


def test_a_producer_that_does_not_start_is_ended_once(dataset: DistDataset) -> None:
    class Failing(Replay):
        def init(self) -> None:
            raise ZeroDivisionError

    producer = Failing([])
    with pytest.raises(ZeroDivisionError):
        recipe(dataset, producer=producer)
    gc.collect()
    assert producer.calls == ["shutdown"]


def test_options_of_workers() -> None:
    from gnnkit import Colocated
    from gnnkit.distributed import BaseDistLoader, MpDistSamplingWorkerOptions
    from gnnkit.distributed.loader_options import backend_of

    options = BaseDistLoader.create_colocated_worker_options(dataset_num_partitions=40, num_workers=3, **{**OPTIONS, "pin_memory": True})
    assert (options.num_workers, options.worker_concurrency, options.channel_size, options.channel_capacity) == (3, 2, "1MB", 6)
    assert options.worker_devices == [torch.device("cpu")] * 3 and options.pin_memory
    assert (options.num_rpc_threads, options.rpc_timeout, options.master_addr, options.master_port) == (16, 600, "127.0.0.1", 1)
    assert backend_of(options, 2) == Colocated(3, worker_concurrency=2, channel_size="1MB", max_concurrent_producer_inits=2)
    default = MpDistSamplingWorkerOptions(2, master_addr="127.0.0.1", master_port=1)
    assert backend_of(default) == Colocated(2, worker_concurrency=4)


def test_options_of_a_graph_store() -> None:
    from gnnkit.distributed import BaseDistLoader, RemoteDistSamplingWorkerOptions

    asked: list[int] = []

    class Remote:
        cluster_info = SimpleNamespace(num_storage_nodes=3, storage_cluster_master_ip="10.0.0.9", compute_cluster_world_size=2)

        def fetch_free_ports_on_storage_cluster(self, num_ports: int) -> list[int]:
            asked.append(num_ports)
            return [5001, 5002]

    common: dict[str, Any] = {"dataset": Remote(), "worker_key": "key", "num_workers": 2, "worker_concurrency": 2, "channel_size": "2GB"}
    options = BaseDistLoader.create_graph_store_worker_options(compute_rank=1, prefetch_size=4, **common)
    assert isinstance(options, RemoteDistSamplingWorkerOptions) and asked == [2]
    assert (options.server_rank, options.master_addr, options.master_port) == ([0, 1, 2], "10.0.0.9", 5002)
    assert (options.worker_key, options.prefetch_size, options.buffer_size, options.buffer_capacity) == ("key", 4, "2GB", 4)
    for changes, said in (
        ({"compute_rank": 0, "prefetch_size": 5}, "prefetch_size"),
        ({"compute_rank": 2, "prefetch_size": 1}, "compute_rank 2 of 2"),
    ):
        with pytest.raises(PlanError, match=said):
            BaseDistLoader.create_graph_store_worker_options(**changes, **common)


ENTERS_A_GROUP = """
import os, threading, torch
from gnnkit.distributed import DEFAULT_NUM_CPU_THREADS, BaseDistLoader, get_context
from gnnkit.errors import PlanError

def state():
    return (torch.get_num_threads(), torch.get_num_interop_threads(), os.sched_getaffinity(0), threading.active_count(), dict(os.environ))

arguments = {"local_world_size": 2, "node_rank": 1, "node_world_size": 3, "master_ip_address": "10.0.0.1"}
arguments |= {"device": torch.device("cpu"), "num_cpu_threads": DEFAULT_NUM_CPU_THREADS}
before = state()
BaseDistLoader.initialize_colocated_sampling_worker(local_rank=1, **arguments)
context = get_context()
assert before == state()
assert context.is_worker() and (context.rank, context.world_size) == (1, 3)
try:
    BaseDistLoader.initialize_colocated_sampling_worker(local_rank=2, **arguments)
except PlanError as error:
    assert "local_rank must be between 0 and 1, got 2" in str(error)
else:
    raise AssertionError("a rank beyond the node's was taken")
"""


def test_entering_a_worker_group_leaves_the_process_alone() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", ENTERS_A_GROUP], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


def test_a_schema_of_ones_own(dataset: DistDataset) -> None:
    schema = DatasetSchema(False, None, FeatureInfo(9, torch.float64), None, "out")
    loader = recipe(dataset, dataset_schema=schema, producer=Replay([]))
    messages: Any = {"ids": EMPTY, "rows": EMPTY, "cols": EMPTY, "num_sampled_nodes": torch.tensor([0])}
    batch = loader._collate_fn(messages)
    assert type(batch) is Data and batch.x.shape == (0, 9) and batch.x.dtype == torch.float64
    same(batch, batch)


# Devices ------------------------------------------------------------------------------------------------------------------


def test_batches_go_to_the_device(dataset: DistDataset) -> None:
    for non_blocking in (True, False):
        loader = recipe(dataset, device="meta", non_blocking_transfers=non_blocking)
        batch = next(iter(loader))
        assert all(value.is_meta for value in batch.to_dict().values() if isinstance(value, torch.Tensor))
        assert batch.node is batch.n_id and batch.batch.shape == (7,) and loader.to_device == torch.device("meta")
        loader.shutdown()


def test_copying_ahead_loses_and_repeats_nothing(dataset: DistDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    from gnnkit.distributed import BaseDistLoader

    made: list[weakref.ref[Any]] = []

    class Named(BaseDistLoader):
        def _collate_fn(self, msg: Any) -> Any:
            batch = super()._collate_fn(msg)
            batch.seeds = msg["ids"][: batch.batch_size].tolist()  # as the batch itself says on another device
            made.append(weakref.ref(batch))
            return batch

    pretend_copies_overlap(monkeypatch)
    loader = recipe(dataset, base=Named, device="meta")
    ahead = 0
    for broken in (True, False, True, False):
        seeds, before = [], len(made)
        for count, batch in enumerate(loader, 1):
            seeds += batch.seeds
            ahead += len(made) - before > count
            if broken and len(seeds) > 14:
                break
        assert len(set(seeds)) == len(seeds) and (broken or sorted(seeds) == list(range(NUM_NODES)))
    assert ahead > 0
    for batch in loader:
        if made[-1]() is not batch:  # one is ready
            break
    loader.shutdown()
    assert made[-1]() in (None, batch), "it is given up"


def test_an_error_met_while_copying_ahead_comes_in_its_turn(dataset: DistDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    from gnnkit.distributed import BaseDistLoader

    class Third(BaseDistLoader):
        def _collate_fn(self, msg: Any) -> Any:
            self.made = getattr(self, "made", 0) + 1
            if self.made == 3:
                raise ZeroDivisionError
            return super()._collate_fn(msg)

    pretend_copies_overlap(monkeypatch)
    loader = recipe(dataset, base=Third, device="meta")
    iterator, found = iter(loader), []
    with pytest.raises(ZeroDivisionError):
        while True:
            found.append(next(iterator))
    assert len(found) == 2
    loader.shutdown()


@pytest.mark.gpu
@pytest.mark.parametrize("non_blocking", [True, False])
def test_batches_on_a_gpu_are_those_on_the_cpu(dataset: DistDataset, non_blocking: bool) -> None:
    here, there = recipe(dataset), recipe(dataset, device="cuda", non_blocking_transfers=non_blocking)
    for _ in range(3):
        for batch, wanted in zip(there, here, strict=True):
            assert batch.x.is_cuda and batch.node.is_cuda and batch.node.data_ptr() == batch.n_id.data_ptr()
            same(batch.cpu(), wanted)
    here.shutdown()
    there.shutdown()

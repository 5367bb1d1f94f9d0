"""``DistNeighborLoader``: batches against the graph, the reference sampler and ``GraphLoader``; inputs, names and lifetime."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import signal
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gnnkit import GraphLoader
from gnnkit.distributed import (
    DistDataset,
    DistributedRuntimeInfo,
    FeatureInfo,
    KHopNeighborSamplerOptions,
    SamplerOptions,
    shard_nodes_by_process,
)
from gnnkit.errors import LoaderClosed, PlanError, StoreError, WorkerDied
from tests.backends.setups import descendants, is_gone
from tests.distributed.loading import (
    NEGATIVE,
    NUM_NODES,
    POSITIVE,
    TO,
    by_parity,
    dataset_of,
    labelled,
    pygs_own,
    ring,
    seeds_of,
    stored,
    typed_ring,
)
from tests.helpers.batches import expected_epoch, same
from tests.helpers.graphs import built, random_source
from tests.helpers.waiting import wait_until

EVERYTHING = torch.arange(NUM_NODES)


def make(dataset: Any, num_neighbors: Any = (2, 2), input_nodes: Any = EVERYTHING, **options: Any) -> Any:
    """A loader that samples in this process unless told otherwise."""
    from gnnkit.distributed import DistNeighborLoader

    options = {"num_workers": 0, "batch_size": 5, **({} if "worker_options" not in options else {"num_workers": None}), **options}
    return DistNeighborLoader(dataset, num_neighbors if isinstance(num_neighbors, dict) else list(num_neighbors), input_nodes, **options)


# Batches ------------------------------------------------------------------------------------------------------------------


def test_repeated_ids_and_no_fan_outs(tmp_path: Path) -> None:
    dataset = DistDataset.from_store(stored(typed_ring(), tmp_path))
    batches = list(make(dataset, input_nodes=("item", torch.tensor([3, 3, 4])), batch_size=3))
    assert [batch["item"].node[: batch["item"].batch_size].tolist() for batch in batches] == [[3, 3, 4]]
    assert batches[0].edge_types == sorted(typed_ring().edge_types)
    with pytest.raises(PlanError, match="num_neighbors"):
        make(dataset, {}, input_nodes=("item", torch.tensor([3])))


@pytest.mark.parametrize("book", ["range", "parity"])
@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_a_ring(book: str, edge_dir: Any, tmp_path: Path) -> None:
    if book == "parity":
        store = built(by_parity(ring()), tmp_path / "store", 2, "given", edge_dir, with_edge=True)
    else:
        store = stored(ring(), tmp_path, 2, partition="contiguous", edge_dir=edge_dir)
    loader = make(DistDataset.from_store(store, 1), shuffle=True)
    batches = list(loader)
    assert sorted(seeds_of(batches)) == list(range(NUM_NODES))
    sign = 1 if edge_dir == "out" else -1
    for batch in batches:
        neighbour, node = batch.node[batch.edge_index]
        assert (((neighbour - node) * sign) % NUM_NODES).unique().tolist() == [1, 2]
        assert torch.equal(batch.x[:, 0].long(), batch.node) and torch.equal(batch.y, batch.node)
        assert torch.equal(batch.edge_attr[:, 0].long(), batch.edge)
        ends = ring().edge_index[:, batch.edge]
        assert torch.equal(ends, torch.stack([node, neighbour] if edge_dir == "out" else [neighbour, node]))
        assert batch.num_sampled_nodes[0] == 5 and batch.num_sampled_edges[0] == 10
    plain = GraphLoader.from_store(store.path, num_neighbors=[2, 2], input_nodes=EVERYTHING, batch_size=5, shuffle=True, progress=False)
    for batch, wanted in zip(batches, plain, strict=True):
        same(pygs_own(batch), wanted)
    plain.close()
    loader.shutdown()


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_a_typed_ring(edge_dir: str, tmp_path: Path) -> None:
    fan_outs = {("user", "u2i", "item"): [2, 2], ("item", "i2i", "item"): [2, 1]}
    start = "user" if edge_dir == "out" else "item"
    loader = make(dataset_of(typed_ring(), tmp_path, 2, edge_dir=edge_dir), fan_outs, (start, EVERYTHING))
    steps = {"u2i": [1, 2], "i2i": [2, 3]}
    for batch in loader:
        assert isinstance(batch, HeteroData)
        for node_type in batch.node_types:
            width = 5 if node_type == "user" else 3
            assert torch.equal(batch[node_type].x, batch[node_type].node[:, None].float().repeat(1, width))
        for edge_type in batch.edge_types:
            relation = edge_type[1].removeprefix("rev_")
            neighbour = batch[edge_type[0]].node[batch[edge_type].edge_index[0]]
            node = batch[edge_type[2]].node[batch[edge_type].edge_index[1]]
            difference = (neighbour - node) if edge_dir == "out" else (node - neighbour)
            assert set((difference % NUM_NODES).tolist()) <= set(steps[relation])
            assert torch.equal(batch[edge_type].edge_attr[:, 0].long(), batch[edge_type].edge)
        assert batch.num_sampled_nodes[start][0] == batch[start].batch_size == 5
        assert batch.num_sampled_edges.keys() == set(batch.edge_types)
    assert ("item", "rev_u2i", "user") in batch.edge_types or edge_dir == "in"
    loader.shutdown()


@pytest.mark.parametrize(("graph", "edge_dir", "num_workers"), [(3, "in", 2), (5, "out", 0)])
def test_batches_are_those_of_the_reference_sampler(graph: int, edge_dir: Any, num_workers: int, tmp_path: Path) -> None:
    source = random_source(np.random.default_rng(graph), max_nodes=30, max_edges=120)
    input_type = next(iter(source.splits))
    size = source.schema.node_types[input_type].num_nodes
    parts = min(2, size)
    store = built(source, tmp_path / "store", parts, "random", edge_dir=edge_dir, with_edge=True, weight="weight")
    seeds = np.random.default_rng(0).permutation(size)
    common = {"batch_size": 4, "shuffle": True, "seed": 9}
    for with_weight in (False, True):
        loader = make(
            DistDataset.from_store(store),
            [3, 2],
            (input_type, torch.from_numpy(seeds)),
            num_workers=num_workers,
            with_edge=True,
            with_weight=with_weight,
            **common,
        )
        for epoch in range(2):
            wanted = expected_epoch(
                source,
                num_neighbors=[3, 2],
                input_type=input_type,
                input_nodes=seeds.tolist(),
                epoch=epoch,
                edge_dir=edge_dir,
                weight="weight" if with_weight else None,
                **common,
            )
            assert len(loader) == len(wanted)
            for batch, expected in zip(loader, wanted, strict=True):
                same(pygs_own(batch), expected, any_order=True)
        loader.shutdown()


def test_weights(tmp_path: Path) -> None:
    data = ring()
    data.weight = (torch.arange(2 * NUM_NODES) % 2).float()
    data.edge_index = torch.stack([torch.arange(NUM_NODES).repeat_interleave(2), data.edge_index[1].view(2, -1).t().reshape(-1)])
    loader = make(dataset_of(data, tmp_path, 2, edge_dir="out", weight="weight"), with_weight=True, with_edge=True)
    for batch in loader:
        assert len(batch.edge) and (batch.edge % 2 == 1).all()
    loader.shutdown()


@pytest.mark.parametrize("typed", [False, True])
def test_isolated_nodes(typed: bool, tmp_path: Path) -> None:
    count = 18
    if typed:
        data: Any = HeteroData()
        data["a"].x, data["b"].x = torch.rand(count, 3), torch.rand(4, 2)
        data["b", "to", "a"].edge_index = torch.empty((2, 0), dtype=torch.int64)
        input_nodes: Any = ("a", torch.arange(count))
    else:
        data, input_nodes = Data(x=torch.rand(count, 3), edge_index=torch.empty((2, 0), dtype=torch.int64)), torch.arange(count)
    loader = make(dataset_of(data, tmp_path), [2, 2], input_nodes, batch_size=1)
    batches = list(loader)
    assert len(loader) == len(batches) == count
    for node, batch in enumerate(batches):
        store = batch["a"] if typed else batch
        assert torch.equal(store.x, (data["a"] if typed else data).x[node : node + 1])
        edges = batch["b", "to", "a"] if typed else batch
        assert edges.edge_index.shape == (2, 0)
        assert not typed or batch["b"].x.shape == (0, 2)
    loader.shutdown()


def test_labels_of_several_tasks(tmp_path: Path) -> None:
    data = typed_ring()
    data["user"].y = torch.stack([EVERYTHING, EVERYTHING + 100], dim=1)
    loader = make(dataset_of(data, tmp_path, 2), input_nodes=("user", EVERYTHING))
    for batch in loader:
        assert torch.equal(batch["user"].y, torch.stack([batch["user"].node, batch["user"].node + 100], dim=1))
    loader.shutdown()


def test_edge_ids_come_where_edges_have_features(tmp_path: Path) -> None:
    featureless = ring()
    del featureless["edge_attr"]
    loader = make(dataset_of(featureless, tmp_path / "a"))
    assert not loader.with_edge and "edge" not in next(iter(loader)) and "e_id" not in next(iter(loader))
    loader.shutdown()
    with pytest.raises(PlanError, match="holds no edge ids"):
        make(dataset_of(featureless, tmp_path / "a"), with_edge=True)
    dataset = dataset_of(ring(), tmp_path / "b")
    for options, wanted in (
        ({}, {"edge", "edge_attr", "x", "y"}),
        ({"with_edge": False}, {"edge_attr", "x", "y"}),
        ({"collect_features": False}, {"edge", "y"}),
    ):
        loader = make(dataset, **options)
        found = next(iter(loader))
        assert {name for name in ("edge", "edge_attr", "x", "y") if name in found} == wanted
        assert found.num_nodes == len(found.node)
        loader.shutdown()


# Labelled homogeneous graphs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_a_homogeneous_graph_with_labels_gives_plain_batches(edge_dir: str, tmp_path: Path) -> None:
    dataset = dataset_of(labelled(), tmp_path, 2, edge_dir=edge_dir)
    assert dataset.schema.is_homogeneous_with_labeled_edge_type
    for input_nodes in (EVERYTHING, None):
        loader = make(dataset, input_nodes=input_nodes, batch_size=4)
        assert loader.num_neighbors == {TO: [2, 2]}
        wanted = EVERYTHING if input_nodes is not None else dataset.node_ids["node"]
        batches = list(loader)
        assert sorted(seeds_of(batches)) == sorted(wanted.tolist())
        for batch in batches:
            assert type(batch) is Data
            difference = (batch.node[batch.edge_index[0]] - batch.node[batch.edge_index[1]]) * (1 if edge_dir == "out" else -1)
            assert (difference % NUM_NODES).unique().tolist() == [1, 2]
            assert torch.equal(batch.x[:, 0].long(), batch.node) and torch.equal(batch.edge_attr[:, 0].long(), batch.edge)
            assert batch.num_sampled_nodes[0] == batch.batch_size == len(batch.batch) and sum(batch.num_sampled_edges) == len(batch.edge)
        loader.shutdown()
    loader = make(dataset, input_nodes=("node", EVERYTHING))
    batch = next(iter(loader))
    assert isinstance(batch, HeteroData) and batch.edge_types == [TO] and set(batch.num_sampled_edges) == {TO}
    with pytest.raises(PlanError, match="label"):
        make(dataset, {TO: [2], POSITIVE: [1], NEGATIVE: [0]})
    loader.shutdown()


# Inputs -------------------------------------------------------------------------------------------------------------------


def test_seeds_are_dealt_to_the_processes_of_a_host() -> None:
    ids = torch.arange(1, 18, 2)
    assert shard_nodes_by_process(ids, 0, 2).tolist() == [1, 3, 5, 7]
    assert shard_nodes_by_process(ids, 1, 2).tolist() == [9, 11, 13, 15, 17]
    assert shard_nodes_by_process(ids, 0, 1) is not ids and shard_nodes_by_process(ids, 0, 1).tolist() == ids.tolist()
    assert [len(shard_nodes_by_process(ids[:2], rank, 3)) for rank in range(3)] == [0, 0, 2]
    with pytest.raises(PlanError, match="no process 2 of 2"):
        shard_nodes_by_process(ids, 2, 2)


def test_without_input_nodes_every_node_of_the_part_is_a_seed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = dataset_of(ring(), tmp_path, 2, part=1)
    found = []
    for rank in range(3):
        for name, value in (("RANK", rank), ("WORLD_SIZE", 3), ("LOCAL_RANK", rank), ("LOCAL_WORLD_SIZE", 3), ("MASTER_ADDR", "127.0.0.1")):
            monkeypatch.setenv(name, str(value))
        loader = make(dataset, input_nodes=None)
        found.append(seeds_of(loader))
        loader.shutdown()
    assert [len(ids) for ids in found] == [6, 6, 8] and sum(found, []) == dataset.node_ids.tolist()


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DistDataset]:
    return {
        name: dataset_of(data, tmp_path_factory.mktemp(name))
        for name, data in (("plain", ring()), ("typed", typed_ring()), ("labelled", labelled()))
    }


ROWS: list[tuple[str, dict[str, Any], str]] = [
    ("plain", {"input_nodes": {0: EVERYTHING}}, "input_nodes is a dict"),
    ("plain", {"input_nodes": ("node", {0: EVERYTHING})}, "the graph is homogeneous"),
    ("plain", {"input_nodes": ("node", EVERYTHING)}, "the graph is homogeneous"),
    ("plain", {"input_nodes": "train"}, "the word 'train'"),
    ("plain", {"input_nodes": torch.tensor([NUM_NODES])}, "holds node 40"),
    ("plain", {"input_nodes": torch.rand(3)}, "whole numbers"),
    ("plain", {"input_nodes": object()}, "must be ids"),
    ("plain", {"input_nodes": EVERYTHING > 3}, "input_nodes is a mask"),
    ("plain", {"input_nodes": (EVERYTHING > 3).to(torch.uint8)}, "input_nodes is a mask"),
    ("plain", {"input_nodes": EVERYTHING.view(2, -1)}, "one-dimensional"),
    ("plain", {"num_workers": "auto"}, "num_workers must be a whole number"),
    ("plain", {"num_neighbors": {TO: [2]}}, "the graph is homogeneous"),
    ("plain", {"num_neighbors": [-2]}, "-1 takes all"),
    ("plain", {"sampler_options": KHopNeighborSamplerOptions([3])}, "differ"),
    ("plain", {"with_weight": True}, "built without weights"),
    ("plain", {"edge_dir": "out"}, "compressed for 'in'"),
    ("plain", {"prefetch_size": 4}, "graph-store mode"),
    ("plain", {"batch_size": 0}, "batch_size"),
    ("plain", {"num_workers": -1}, "num_workers"),
    ("plain", {"num_workers": 0, "channel_size": "1MB"}, "in this process"),
    ("plain", {"num_workers": 1, "worker_concurrency": 33}, "worker_concurrency"),
    ("plain", {"num_workers": 1, "channel_size": "4 apples"}, "channel_size"),
    ("plain", {"process_start_gap_seconds": -1}, "process_start_gap_seconds"),
    ("plain", {"seed": 1, "random_seed": 2}, "two words for the same thing"),
    ("plain", {"to_device": "cpu", "pin_memory_device": "cpu"}, "two words for the same thing"),
    ("plain", {"to_device": "abacus"}, "unknown device"),
    ("plain", {"worker_options": "mp"}, "options of sampling workers"),
    ("plain", {"local_process_rank": 1}, "go together"),
    ("labelled", {"input_nodes": {0: EVERYTHING}}, "input_nodes is a dict"),
    ("labelled", {"num_neighbors": {("node", "other", "node"): [2]}}, "unknown edge type"),
    ("typed", {"input_nodes": None}, "input_nodes is None, and the graph is typed"),
    ("typed", {"input_nodes": EVERYTHING}, "input_nodes is a Tensor, and the graph is typed"),
    ("typed", {"input_nodes": {"user": EVERYTHING}}, "input_nodes is a dict"),
    ("typed", {"input_nodes": ("user", {0: EVERYTHING})}, "input_nodes is a dict"),
    ("typed", {"input_nodes": ("users", EVERYTHING)}, "did you mean 'user'"),
    ("typed", {"input_nodes": ("user", EVERYTHING), "num_neighbors": {("user", "u2i", "item"): [2]}}, "says nothing about"),
]


@pytest.mark.parametrize(("name", "options", "message"), ROWS, ids=[f"{row[0]}: {row[2]}" for row in ROWS])
def test_unusable_input(datasets: dict[str, DistDataset], name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make(datasets[name], **options)


def test_a_dataset_has_to_be_one_of_a_store(datasets: dict[str, DistDataset]) -> None:
    for wrong in (DistDataset(), SimpleNamespace(num_partitions=1)):
        with pytest.raises(PlanError, match="without a store"):
            make(wrong)
    with pytest.raises(PlanError, match="dataset is missing"):
        make(None)
    with pytest.raises(PlanError, match="two words for the same thing"):
        make(datasets["plain"], data=datasets["plain"])
    with pytest.raises(PlanError, match="num_neighbors is missing"):
        from gnnkit.distributed import DistNeighborLoader

        DistNeighborLoader(datasets["plain"])


# Both libraries' words -----------------------------------------------------------------------------------------------------


def test_the_words_of_either_library_make_the_same_loader(datasets: dict[str, DistDataset]) -> None:
    from gnnkit.distributed import CollocatedDistSamplingWorkerOptions, DistNeighborLoader, MpDistSamplingWorkerOptions

    common: dict[str, Any] = {"num_neighbors": [2, 2], "input_nodes": EVERYTHING, "batch_size": 7, "shuffle": True}
    address = {"master_addr": "127.0.0.1", "master_port": 1}
    ways = [
        {
            "dataset": datasets["plain"],
            "seed": 5,
            "pin_memory_device": "cpu",
            "num_workers": 1,
            "channel_size": "64MB",
            "num_cpu_threads": 2,
        },
        {
            "data": datasets["plain"],
            "random_seed": 5,
            "to_device": torch.device("cpu"),
            "with_edge": True,
            "collect_features": True,
            "worker_options": MpDistSamplingWorkerOptions(2, torch.device("cpu"), 4, channel_size="64MB", pin_memory=True, **address),
        },
        {"data": datasets["plain"], "seed": 5, "worker_options": CollocatedDistSamplingWorkerOptions(rpc_timeout=5, **address)},
        {"dataset": datasets["plain"], "seed": 5, "sampler_options": KHopNeighborSamplerOptions([2, 2]), "num_workers": 0},
    ]
    epochs = []
    for number, way in enumerate(ways):
        loader = DistNeighborLoader(**common, **way)
        assert loader._is_collocated_worker == (number > 1) and loader._with_channel == (number < 2)
        assert loader.worker_options.rpc_timeout == [600, 180, 5, 180][number]
        epochs.append([pygs_own(batch) for batch in loader])
        loader.shutdown()
    for epoch in epochs[1:]:
        for batch, wanted in zip(epoch, epochs[0], strict=True):
            same(batch, wanted)


def test_graph_store_options_are_for_graphs_on_servers(datasets: dict[str, DistDataset]) -> None:
    from gnnkit.distributed import RemoteDistSamplingWorkerOptions

    options = RemoteDistSamplingWorkerOptions([0], master_addr="127.0.0.1", master_port=1)
    with pytest.raises(PlanError, match="the dataset is not on servers"):
        make(datasets["plain"], worker_options=options)


# Epochs -------------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=[0, 2], ids=["here", "processes"])
def loader(request: pytest.FixtureRequest, datasets: dict[str, DistDataset]) -> Iterator[Any]:
    opened = make(datasets["plain"], shuffle=True, num_workers=request.param, batch_size=7)
    yield opened
    opened.shutdown()


def test_every_epoch_has_every_seed_once_however_the_one_before_ended(loader: Any) -> None:
    everything = list(range(NUM_NODES))
    orders = [seeds_of(loader), seeds_of(loader)]
    assert orders[0] != orders[1] and all(sorted(order) == everything for order in orders)
    for _ in loader:
        break
    assert sorted(seeds_of(loader)) == everything
    next(iter(loader))
    with pytest.raises(ZeroDivisionError):
        for _ in loader:
            raise ZeroDivisionError
    assert sorted(seeds_of(loader)) == everything
    endless = itertools.chain.from_iterable(itertools.repeat(loader))
    batches = list(itertools.islice(endless, 2 * len(loader)))
    for epoch in (batches[: len(loader)], batches[len(loader) :]):
        assert sorted(seeds_of(epoch)) == everything
    assert loader._epoch == 9


def test_a_second_iterator_ends_the_first(loader: Any) -> None:
    first = iter(loader)
    next(first)
    second = iter(loader)
    assert len(second) == len(loader) == 6
    with pytest.raises(LoaderClosed, match="newer one"):
        next(first)
    assert sorted(seeds_of(second)) == list(range(NUM_NODES))
    with pytest.raises(StopIteration):
        next(second)
    with pytest.raises(StopIteration):
        next(loader)
    assert loader._num_recv == loader._num_expected == 6


@pytest.mark.parametrize(("count", "batch_size", "drop_last"), [(0, 3, False), (2, 5, False), (2, 5, True), (10, 5, True), (11, 5, False)])
def test_lengths_are_exact(datasets: dict[str, DistDataset], count: int, batch_size: int, drop_last: bool) -> None:
    loader = make(datasets["plain"], input_nodes=torch.arange(count), batch_size=batch_size, drop_last=drop_last)
    batches = list(loader)
    full, rest = divmod(count, batch_size)
    assert len(loader) == len(batches) == loader._num_expected == full + (rest > 0 and not drop_last)
    assert seeds_of(batches) == list(range(count))[: full * batch_size if drop_last else None]
    loader.shutdown()


@pytest.mark.slow
def test_several_loaders_at_once_and_one_after_them(datasets: dict[str, DistDataset]) -> None:
    one = make(datasets["plain"], num_workers=1, batch_size=5)
    two = make(datasets["typed"], input_nodes=("user", EVERYTHING), num_workers=1, batch_size=5)
    pairs = list(zip(one, two, strict=True))
    assert seeds_of(pair[0] for pair in pairs) == seeds_of((pair[1] for pair in pairs), "user") == list(range(NUM_NODES))
    one.shutdown()
    two.shutdown()
    third = make(datasets["plain"], num_workers=1, batch_size=40)
    assert len(list(third)) == 1
    third.shutdown()


# Lifetime -----------------------------------------------------------------------------------------------------------------


def test_shutdown_is_idempotent_and_batches_outlive_it(datasets: dict[str, DistDataset]) -> None:
    loader = make(datasets["plain"], num_workers=1)
    batch = next(iter(loader))
    held = batch.x.clone()
    loader.shutdown()
    loader.shutdown()
    assert torch.equal(batch.x, held) and loader._shutdowned
    for use in (lambda: iter(loader), lambda: next(loader)):
        with pytest.raises(LoaderClosed, match="shut down"):
            use()


@pytest.mark.slow
def test_a_forgotten_loader_ends_its_processes(datasets: dict[str, DistDataset]) -> None:
    before = descendants()
    for _ in range(3):
        loader = make(datasets["plain"], num_workers=1)
        next(iter(loader))
        ended = weakref.ref(loader)
        gc.disable()
        try:
            del loader
            assert ended() is None
        finally:
            gc.enable()
        assert wait_until(lambda: descendants() <= before)


def test_half_built_loaders_end_quietly() -> None:
    from gnnkit.distributed import BaseDistLoader

    nothing = BaseDistLoader.__new__(BaseDistLoader)
    nothing.shutdown()
    del nothing


@pytest.mark.slow
def test_a_worker_that_dies_is_an_error_and_the_next_epoch_is_whole(datasets: dict[str, DistDataset]) -> None:
    before = descendants()
    loader = make(datasets["plain"], num_workers=1, batch_size=1)
    iterator = iter(loader)
    next(iterator)
    (pid,) = loader._producer.connection.loaders[0].status().details["pids"].values()
    assert pid in descendants() - before
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: is_gone(pid))
    with pytest.raises(WorkerDied, match="SIGKILL"):
        list(iterator)
    assert sorted(seeds_of(loader)) == list(range(NUM_NODES))
    loader.shutdown()


# Several hosts, and options of one's own ------------------------------------------------------------------------------------


def test_hosts_hold_the_parts_of_their_numbers(tmp_path: Path) -> None:
    from gnnkit import InProcess
    from gnnkit.distributed import BaseDistLoader, NodeSamplerInput
    from gnnkit.distributed.loader_options import placed_store, plan_on

    def planned(dataset: DistDataset, runtime: DistributedRuntimeInfo) -> Any:
        placed, placement = placed_store(dataset, runtime)
        return plan_on(placed, seeds, config, InProcess(), 60.0, placement)

    store = stored(ring(), tmp_path, 2)
    for host in range(2):
        dataset = DistDataset.from_store(store, host)
        config = BaseDistLoader.create_sampling_config([2], dataset.schema, batch_size=4)
        seeds = NodeSamplerInput(dataset.node_ids)
        runtime = DistributedRuntimeInfo(2, host, host, 2, 0, 1, "10.0.0.1")
        plan, graph = planned(dataset, runtime)
        assert plan.placement is not None and plan.placement.hosts == ((0,), (1,))
        assert graph.arrays.local_parts == (host,) and plan.batching.world_size == 1
        assert planned(dataset, DistributedRuntimeInfo(1, 0, 0, 1, 0, 1, "127.0.0.1"))[0].placement is None
        with pytest.raises(PlanError, match="part of its own number"):
            planned(DistDataset.from_store(store, 1 - host), runtime)
    shutil.rmtree(store.path / "part0")  # from here on, this is host 1
    dataset = DistDataset.from_store(store.path, 1)
    plan, graph = planned(dataset, runtime)
    assert graph.arrays.local_parts == (1,) and plan.inputs.ids is not None and plan.inputs.ids.tolist() == dataset.node_ids.tolist()
    with pytest.raises(StoreError, match="part 0 of the store .* is not on this host"):
        make(dataset)


def test_options_of_another_sampler_need_a_producer_of_their_own(datasets: dict[str, DistDataset]) -> None:
    class Pprs(SamplerOptions):
        def check_num_neighbors(self, num_neighbors: Any) -> None:
            """Whatever is given."""

    with pytest.raises(PlanError, match="producer of your own"):
        make(datasets["plain"], sampler_options=Pprs())


def test_types_that_should_have_features_get_empty_ones(datasets: dict[str, DistDataset]) -> None:
    loader = make(datasets["typed"], input_nodes=("user", EVERYTHING))
    assert loader._node_feature_info == {"item": FeatureInfo(3, torch.float32), "user": FeatureInfo(5, torch.float32)}
    iter(loader)
    message = {name: value for name, value in loader._channel.recv().items() if not name.endswith("feats")}
    batch = loader._collate_fn(message)
    assert batch["item"].x.shape == (0, 3) and batch["user", "u2i", "item"].edge_attr.shape == (0, 2)
    loader.shutdown()

"""Loaders in graph-store mode, on servers that run: what they take, the order of their batches, and the batches themselves."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData

import gnnkit
from gnnkit import Store
from gnnkit.cluster.serving.connection import join_folder
from gnnkit.distributed import (
    DistDataset,
    DistributedRuntimeInfo,
    DistServer,
    FetchNodesRequest,
    GraphStoreInfo,
    InitSamplingBackendRequest,
    KHopNeighborSamplerOptions,
    PPRSamplerOptions,
    RegisterBackendRequest,
    RemoteDistDataset,
    async_request_server,
    create_sampling_config,
    request_server,
)
from gnnkit.errors import DatasetError, GnnkitError, LoaderClosed, PlanError, WorkerDied
from gnnkit.events import ignore_events
from tests.distributed.loading import NUM_NODES, TO, client, labelled, ring, seeds_of, serving, stored
from tests.helpers.batches import same
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.slow
DEADLINE_S = 120
# What a fault may take to be seen.
FAULT_S = 30
ALONE = DistributedRuntimeInfo(1, 0, 0, 1, 0, 1, "127.0.0.1")
EVERYTHING = list(range(NUM_NODES))


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Store]:
    plain = ring()
    plain.train_mask = torch.arange(NUM_NODES) % 3 == 0
    plain.val_mask = plain.test_mask = ~plain.train_mask
    graphs = {"plain": (plain, 2), "labelled": (labelled(), 1)}
    return {name: stored(data, tmp_path_factory.mktemp(name), parts) for name, (data, parts) in graphs.items()}


@pytest.fixture(scope="module")
def servers(stores: dict[str, Store]) -> Iterator[dict[str, Any]]:
    with serving(*stores.values()) as running:
        yield dict(zip(stores, running, strict=True))


@pytest.fixture
def dataset(servers: dict[str, Any]) -> Iterator[RemoteDistDataset]:
    with client(servers["plain"].address) as dataset:
        yield dataset


@pytest.fixture
def with_labels(servers: dict[str, Any]) -> Iterator[RemoteDistDataset]:
    with client(servers["labelled"].address) as dataset:
        yield dataset


def make(dataset: Any, input_nodes: Any, **options: Any) -> Any:
    from gnnkit.distributed import DistNeighborLoader

    return DistNeighborLoader(dataset, [2, 2], input_nodes, **{"batch_size": 7, **options})


def in_turn(epochs: list[list[Any]]) -> list[Any]:
    """One batch of each in turn, without those that have no more."""
    return [batch for step in itertools.zip_longest(*epochs) for batch in step if batch is not None]


# Batches ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"shuffle": True, "seed": 3, "drop_last": True}], ids=["in order", "shuffled"])
def test_batches_are_those_of_each_servers_seeds_in_turn(dataset: RemoteDistDataset, stores: dict[str, Store], options: Any) -> None:
    ids = dataset.fetch_node_ids()
    here = DistDataset.from_store(stores["plain"])
    expected = [make(here, ids[server], num_workers=0, **options) for server in ids]
    loader = make(dataset, ids, **options)
    assert len(loader) == sum(map(len, expected))
    for _ in range(2):
        batches, wanted = list(loader), in_turn([list(one) for one in expected])
        assert len(batches) == len(wanted) == len(loader)
        for ours, theirs in zip(batches, wanted, strict=True):
            same(ours, theirs)
    loader.shutdown()
    for one in expected:
        one.shutdown()


def test_servers_sample_links(dataset: RemoteDistDataset, stores: dict[str, Store]) -> None:
    from gnnkit.distributed import DistLinkNeighborLoader

    links, here = {0: ring().edge_index[:, :9], 1: ring().edge_index[:, 40:52]}, DistDataset.from_store(stores["plain"])
    labels = {server: torch.arange(own.shape[1]) % 2 for server, own in links.items()}
    options: dict[str, Any] = {"neg_sampling": "binary", "neg_strict": True, "exclude_edges": "self"}
    parts = [DistLinkNeighborLoader(here, [2, 2], 5, links[server], labels[server], num_workers=0, **options) for server in links]
    loader = DistLinkNeighborLoader(dataset, [2, 2], 5, links, labels, **options)
    assert len(loader) == 5
    for ours, theirs in zip(loader, in_turn([list(one) for one in parts]), strict=True):
        same(ours, theirs)
    for one in (loader, *parts):
        one.shutdown()
    for given, said in ((ring().edge_index, "have to be named"), ({2: links[0]}, "names the server 2"), ({}, "names no server")):
        with pytest.raises(PlanError, match=said):
            DistLinkNeighborLoader(dataset, [2, 2], 5, given)
    with pytest.raises(PlanError, match="edge_label is a Tensor"):
        DistLinkNeighborLoader(dataset, [2, 2], 5, links, labels[0])


def test_labels_of_all_servers_become_one_higher_together(dataset: RemoteDistDataset) -> None:
    from gnnkit.distributed import DistLinkNeighborLoader

    links = {0: ring().edge_index[:, :3], 1: ring().edge_index[:, 40:42]}
    labels = {0: torch.tensor([0, 1, 1]), 1: torch.tensor([1, 2])}
    for neg_sampling, raised in (("binary", 1), (None, 0)):
        loader = DistLinkNeighborLoader(dataset, [2], 5, links, labels, neg_sampling)
        found = [batch.edge_label[: len(own)].tolist() for batch, own in zip(loader, labels.values(), strict=True)]
        assert found == [(own + raised).tolist() for own in labels.values()]
        loader.shutdown()


def test_no_batch_has_seeds_of_two_servers(dataset: RemoteDistDataset) -> None:
    loader = make(dataset, {0: torch.arange(10), 1: torch.arange(10, 19)}, batch_size=4)
    assert len(loader) == 3 + 3
    assert [batch.batch.tolist() for batch in loader] == [
        [0, 1, 2, 3], [10, 11, 12, 13], [4, 5, 6, 7], [14, 15, 16, 17], [8, 9], [18],
    ]  # fmt: skip
    loader.shutdown()


def test_every_rank_gets_its_own_seeds_and_all_of_them_everything(dataset: RemoteDistDataset) -> None:
    seen: list[int] = []
    for rank in range(3):
        share = dataset.fetch_node_ids(rank, 3)
        loader = make(dataset, share, shuffle=True, seed=rank)
        found = seeds_of(loader)
        assert sorted(found) == sorted(torch.cat(list(share.values())).tolist()) and len(list(loader)) == len(loader)
        seen += found
        loader.shutdown()
    assert sorted(seen) == EVERYTHING


def test_a_homogeneous_graph_with_labels(with_labels: RemoteDistDataset) -> None:
    ids = with_labels.fetch_node_ids()
    assert sorted(torch.cat(list(ids.values())).tolist()) == EVERYTHING, "two servers share one part"
    for options, edge_type in (({}, TO), ({"sampler_options": PPRSamplerOptions()}, ("node", "ppr", "node"))):
        plain, typed = make(with_labels, ids, **options), make(with_labels, ("node", ids), **options)
        for flat, full in zip(plain, typed, strict=True):
            assert isinstance(flat, Data) and isinstance(full, HeteroData)
            assert full.edge_types == [edge_type], "label edges are not seen"
            assert torch.equal(flat.x[:, 0], flat.n_id.float()) and torch.equal(flat.edge_index, full[edge_type].edge_index)
        assert sorted(seeds_of(plain)) == sorted(seeds_of(typed, "node")) == EVERYTHING
        for loader in (plain, typed):
            loader.shutdown()


# As graphlearn-torch's scripts give them ------------------------------------------------------------------------------------


def joined(
    input_nodes: Any, server_rank: Any = None, worker_key: str | None = None, cls: str = "DistNeighborLoader", **options: Any
) -> Any:
    """A loader with ``data=None`` and remote options."""
    workers = gnnkit.distributed.RemoteDistSamplingWorkerOptions(
        server_rank=server_rank, num_workers=2, master_addr="localhost", master_port=1, prefetch_size=2, worker_key=worker_key
    )
    given = {"edge_label_index" if "Link" in cls else "input_nodes": input_nodes}
    return getattr(gnnkit.distributed, cls)(
        data=None, num_neighbors=[2, 2], batch_size=7, shuffle=False, worker_options=workers, **given, **options
    )


@pytest.mark.parametrize("key", [None, "train"])
@pytest.mark.parametrize(
    ("seeds", "server_rank", "wanted"),
    [
        ("ids", 1, [range(9)]),
        ("path", 0, [range(9)]),
        ("paths", [0, 1], [range(9), range(9, 20)]),
        ("paths", [1, 0], [range(9), range(9, 20)]),
        ("paths", None, [range(9), range(9, 20)]),
        ("one list", 1, [range(9)]),
        ("all servers", 1, [range(9, 20)]),
        ("split", [0, 1], [range(20)]),
        ("split", 0, [range(20)]),
        ("by server", [0, 1], [range(9)]),
        ("mixed", [0, 1], [range(9, 20), range(3)]),
    ],
)
def test_without_data_remote_options_mean_the_servers_that_were_joined(
    dataset: RemoteDistDataset, tmp_path: Path, seeds: str, server_rank: Any, wanted: Any, key: str | None
) -> None:
    paths = [str(tmp_path / f"partition{part}.pt") for part in range(2)]
    for path, ids in zip(paths, (torch.arange(9), torch.arange(9, 20)), strict=True):
        torch.save(ids, path)
    split = gnnkit.distributed.Split.train
    given: Any = {
        "ids": torch.arange(9),
        "path": paths[0],
        "paths": paths,
        "one list": paths[:1],
        "all servers": paths,
        "split": split,
        "by server": {0: paths[0]},
        "mixed": [Path(paths[1]), torch.arange(3)],
    }[seeds]
    loader, expected = joined(given, server_rank, key), [seed for ids in wanted for seed in ids]
    if seeds == "split":  # each server has its share of the training nodes
        expected = [int(i) for server in ([0, 1] if server_rank != 0 else [0]) for i in dataset.fetch_node_ids(split="train")[server]]
    for _ in range(2):
        assert sorted(seeds_of(loader)) == sorted(expected)
    loader.shutdown()


class Trap:
    """What a pickle of somebody else may ask for."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (Path.touch, (self.mark,))


def test_seeds_in_files_are_read_and_nothing_else(dataset: RemoteDistDataset, tmp_path: Path) -> None:
    mark, trap, words = tmp_path / "mark", tmp_path / "trap.pt", tmp_path / "words.pt"
    torch.save(Trap(mark), trap)
    torch.save({"ids": torch.arange(3)}, words)
    for path in (trap, words, tmp_path / "missing.pt"):
        with pytest.raises(GnnkitError, match=path.name):
            joined(str(path), 0)
    assert not mark.exists()


def test_a_server_rank_is_dealt_or_named(dataset: RemoteDistDataset) -> None:
    options = gnnkit.distributed.RemoteDistSamplingWorkerOptions(master_addr="localhost", master_port=1)
    assert options.server_rank == [0, 1], "one client has all servers"
    for rank in (2, [0, 0], []):
        with pytest.raises(PlanError, match="server_rank is .*, and there are 2 servers"):
            joined(torch.arange(3), rank)
    for several in (torch.arange(3), "partition0.pt"):
        with pytest.raises(PlanError, match="the dataset is on servers, which have to be named"):
            joined(several, [0, 1])


def test_links_of_the_joined_servers(dataset: RemoteDistDataset, stores: dict[str, Store]) -> None:
    links = ring().edge_index[:, :9]
    here = gnnkit.distributed.DistLinkNeighborLoader(
        DistDataset.from_store(stores["plain"]), [2, 2], 7, links, torch.arange(9), num_workers=0
    )
    for given, labels, rank in ((links, torch.arange(9), 1), ([links[:, :7], links[:, 7:]], [torch.arange(7), torch.arange(7, 9)], [1, 0])):
        loader = joined(given, rank, cls="DistLinkNeighborLoader", edge_label=labels)
        assert sorted(label for batch in loader for label in batch.edge_label.tolist()) == list(range(9))
        if rank == 1:
            for ours, theirs in zip(loader, here, strict=True):
                same(ours, theirs)
        loader.shutdown()
    here.shutdown()


def test_without_servers_data_cannot_be_left_out() -> None:
    with pytest.raises(PlanError, match=r"data is None, which means the servers .* has joined none\n  -> call init_client"):
        joined(torch.arange(3), 0)
    with pytest.raises(PlanError, match=r"server_rank is None, and this process has joined no servers"):
        joined(torch.arange(3))
    with pytest.raises(PlanError, match=r"dataset is missing\n  -> .*a RemoteDistDataset on servers; without either, RemoteDistSampling"):
        gnnkit.distributed.DistNeighborLoader(num_neighbors=[2], input_nodes=torch.arange(3))


def test_a_server_counts_its_devices(dataset: RemoteDistDataset) -> None:
    assert request_server(0, torch.cuda.device_count) == max(1, torch.cuda.device_count())


# Inputs -------------------------------------------------------------------------------------------------------------------


def test_servers_that_are_left_out_have_no_seeds(dataset: RemoteDistDataset) -> None:
    loader = make(dataset, {1: torch.tensor([3, 1])})
    assert loader._input_len == [0, 2] and len(loader) == 1 and seeds_of(loader) == [3, 1]
    empty = make(dataset, {0: torch.arange(3)}, drop_last=True)
    assert len(empty) == 0 and [list(empty) for _ in range(2)] == [[], []]
    for one in (loader, empty):
        one.shutdown()


@pytest.mark.parametrize(
    ("input_nodes", "said"),
    [
        (None, "input_nodes is None, and the dataset is on servers"),
        (torch.arange(3), "input_nodes is a Tensor, and the dataset is on servers"),
        ("train", "input_nodes is a str"),
        ({}, "names no server"),
        ({2: torch.arange(3)}, "the server 2, and there are 2"),
        ({-1: torch.arange(3)}, "the server -1"),
        ({"0": torch.arange(3)}, "the server '0'"),
        ({True: torch.arange(3)}, "the server True"),
        ({0: "train"}, "there is no file 'train' on this server's host"),
        ([torch.arange(3)] * 3, r"a list of 3, and the servers are \[0, 1\]"),
        ({0: torch.ones(40, dtype=torch.bool)}, "is a mask"),
        ({0: torch.tensor([NUM_NODES])}, "ids go from 0 to 39"),
        (("node", {0: torch.arange(3)}), "the graph is homogeneous"),
    ],
)
def test_inputs_of_the_wrong_kind(dataset: RemoteDistDataset, input_nodes: Any, said: str) -> None:
    with pytest.raises((PlanError, DatasetError), match=said):
        make(dataset, input_nodes)


@pytest.mark.parametrize(
    ("input_nodes", "said"),
    [
        (("nod", {0: torch.arange(3)}), "did you mean 'node'"),
        (("node", torch.arange(3)), "input_nodes is a Tensor"),
        (("node", {}), "names no server"),
        (torch.arange(3), "input_nodes is a Tensor"),
    ],
)
def test_typed_inputs_of_the_wrong_kind(with_labels: RemoteDistDataset, input_nodes: Any, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        make(with_labels, input_nodes)


def test_options_of_the_wrong_kind(dataset: RemoteDistDataset) -> None:
    from gnnkit.distributed import MpDistSamplingWorkerOptions, RemoteDistSamplingWorkerOptions

    ids = dataset.fetch_node_ids()
    for options, said in (
        ({"worker_options": MpDistSamplingWorkerOptions(1, master_addr="127.0.0.1", master_port=1)}, "the dataset is on servers"),
        ({"worker_options": 3}, "must be options of sampling workers"),
        ({"prefetch_size": 5}, "prefetch_size must be between 1 and num_workers \\* worker_concurrency = 4"),
        ({"num_workers": 0}, "num_workers must be a whole number of at least 1"),
        ({"with_weight": True}, "built without weights"),
        ({"edge_dir": "out"}, "compressed for 'in'"),
    ):
        with pytest.raises(PlanError, match=said):
            make(dataset, ids, **options)
    remote = RemoteDistSamplingWorkerOptions([0, 1], worker_concurrency=2, master_addr="127.0.0.1", master_port=1, prefetch_size=1)
    loader = make(dataset, ids, worker_options=remote)
    assert sorted(seeds_of(loader)) == EVERYTHING
    loader.shutdown()


def test_the_attributes_that_graphlearn_torch_would_set(dataset: RemoteDistDataset) -> None:
    from gnnkit.distributed import DistLoader

    loader = make(dataset, {0: torch.arange(9)})
    assert isinstance(loader, DistLoader) and loader.data is None
    kinds = loader._is_collocated_worker, loader._is_mp_worker, loader._is_remote_worker, loader._with_channel
    assert kinds == (False, False, True, True)
    assert (loader.num_data_partitions, loader.data_partition_idx, loader._server_rank_list) == (2, 0, [0, 1])
    assert (loader._node_types, loader._edge_types, loader._input_type) == (["node"], [], None)
    assert loader._num_expected == float("inf") and len(loader) == 2
    loader.shutdown()
    loader.shutdown()
    with pytest.raises(LoaderClosed):
        iter(loader)


# Epochs -------------------------------------------------------------------------------------------------------------------


def test_every_epoch_has_every_seed_once_however_the_one_before_ended(dataset: RemoteDistDataset) -> None:
    loader = make(dataset, dataset.fetch_node_ids(), shuffle=True)
    first, second = seeds_of(loader), seeds_of(loader)
    assert first != second and sorted(first) == sorted(second) == EVERYTHING
    for _ in loader:
        break
    assert sorted(seeds_of(loader)) == EVERYTHING
    older = iter(loader)
    next(older)
    newer = iter(loader)
    with pytest.raises(LoaderClosed, match="newer one"):
        next(older)
    assert sorted(seeds_of(newer)) == EVERYTHING
    loader.shutdown()


def test_multiple_loaders_in_graph_store(dataset: RemoteDistDataset) -> None:
    ids = dataset.fetch_node_ids()
    loaders = [make(dataset, ids, batch_size=size, shuffle=bool(size % 2)) for size in (4, 5, 6, 7)]
    for step in itertools.zip_longest(*loaders):
        assert all(batch is None or batch.batch_size <= 7 for batch in step)
    for loader in loaders:
        loader.shutdown()
    pair = [make(dataset, ids), make(dataset, ids)]
    for left, right in zip(*pair, strict=True):
        same(left, right)
    for loader in pair:
        loader.shutdown()


def test_nobody_was_joined() -> None:
    dataset = RemoteDistDataset(GraphStoreInfo(2, 1), 0)
    with pytest.raises(PlanError, match="joined no servers"):
        make(dataset, {0: torch.arange(3)})


# Producers that trainers share ------------------------------------------------------------------------------------------------


def shared(
    dataset: RemoteDistDataset,
    ids: Any,
    worker_key: str | None,
    producer: Any = DistServer.create_sampling_producer,
    batch_size: int = 7,
    sampler_options: Any = None,
    **more: Any,
) -> Any:
    """GiGL's recipe for the graph-store mode."""
    from gnnkit.distributed import BaseDistLoader, NodeSamplerInput, RemoteDistSamplingWorkerOptions

    options = RemoteDistSamplingWorkerOptions(
        [0, 1], 1, worker_concurrency=4, master_addr="127.0.0.1", master_port=1, worker_key=worker_key
    )
    config = create_sampling_config([2, 2], dataset.schema, batch_size, **more)
    inputs = [NodeSamplerInput(ids[server], None) for server in range(2)]
    sampler_options = sampler_options or KHopNeighborSamplerOptions([2, 2])
    return BaseDistLoader(dataset, inputs, dataset.schema, options, config, None, ALONE, producer, sampler_options)


def by_seed(batches: Any) -> list[Any]:
    return sorted(batches, key=lambda batch: int(batch.batch[0]))


@pytest.mark.core
def test_gigls_recipe_gives_the_same_batches(dataset: RemoteDistDataset) -> None:
    ids = dataset.fetch_node_ids()
    loaders = [make(dataset, ids), shared(dataset, ids, None, None), shared(dataset, ids, None), shared(dataset, ids, "one")]
    for _ in range(2):
        epochs = [by_seed(loader) for loader in loaders]
        assert [len(loader) for loader in loaders] == [len(epoch) for epoch in epochs] == [6] * 4
        for batches in zip(*epochs, strict=True):
            for batch in batches[1:]:
                same(batches[0], batch)
    iter(loaders[3])
    assert sorted(seeds_of(loaders[3])) == EVERYTHING, "what was left of an epoch does not come in the next"
    for loader in loaders:
        loader.shutdown()
    with pytest.raises(PlanError, match="give None, or DistServer.create_sampling_producer"):
        shared(dataset, ids, None, DistServer.get_node_ids)


def test_ppr_is_sampled_by_servers_too(dataset: RemoteDistDataset, stores: dict[str, Store]) -> None:
    ids, options = dataset.fetch_node_ids(), {"sampler_options": PPRSamplerOptions(alpha=0.3, max_ppr_nodes=6)}
    here = [make(DistDataset.from_store(stores["plain"]), ids[server], num_workers=0, **options) for server in ids]
    loaders = [make(dataset, ids, **options), shared(dataset, ids, "ppr", **options)]
    wanted = by_seed(batch for one in here for batch in one)
    for loader in loaders:
        for ours, theirs in zip(by_seed(loader), wanted, strict=True):
            same(ours, theirs)
            assert ours.edge_attr.shape == (6 * ours.batch_size, 2)
    for loader in loaders + here:
        loader.shutdown()


def test_a_paused_trainer_stalls_nobody_and_goes_on(dataset: RemoteDistDataset) -> None:
    ids = dataset.fetch_node_ids()
    loaders = [shared(dataset, ids, key, batch_size=1, shuffle=True, seed=2) for key in ("paused", "active")]
    paused = iter(loaders[0])
    before = [next(paused)]
    orders = [seeds_of(loaders[1]) for _ in range(2)]
    assert all(sorted(order) == EVERYTHING for order in orders)
    assert sorted(seeds_of(before + list(paused))) == EVERYTHING
    for loader in loaders:
        loader.shutdown()


@contextlib.contextmanager
def another_trainer(address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], DistServer]]:
    """Servers as another process sees them."""
    # A process of its own would have to be told of every call that comes between this one's.
    with monkeypatch.context() as patch:
        patch.setattr("gnnkit.cluster.serving.connection.client_id", lambda: "another")
        joined = join_folder(Path(address.removeprefix("unix:")), "another", DEADLINE_S, ignore_events)
    try:
        yield lambda rank: DistServer.over(lambda name, args, convert: convert(joined.call(rank, name, args, DEADLINE_S)))
    finally:
        joined.close()


def test_trainers_with_one_worker_key_divide_the_batches(
    dataset: RemoteDistDataset, servers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gnnkit.distributed import NodeSamplerInput

    ids = dataset.fetch_node_ids()
    loader = shared(dataset, ids, "ours")
    with pytest.raises(PlanError, match="stands for another input"):
        shared(dataset, {**ids, 1: ids[1][:-1]}, "ours")
    with another_trainer(servers["plain"].address, monkeypatch) as server:
        config, theirs = loader.sampling_config, []
        producers = [server(rank).create_sampling_producer(NodeSamplerInput(ids[rank]), config, loader.worker_options) for rank in range(2)]
        assert producers == loader._producer_id_list
        for rank in range(2):
            server(rank).start_new_epoch_sampling(producers[rank], 0)
            message, is_over = server(rank).fetch_one_sampled_message(producers[rank], 0)
            assert message is not None and not is_over
            theirs += message["batch"].tolist()
        own = list(loader)
        assert len(own) == 4 and len(loader) == 6 and sorted(seeds_of(own) + theirs) == EVERYTHING
        assert [server(rank).fetch_one_sampled_message(producers[rank], 0) for rank in range(2)] == [(None, True)] * 2
        loader.shutdown()
        server(0).start_new_epoch_sampling(producers[0], 1)
        assert server(0).fetch_one_sampled_message(producers[0], 1)[0] is not None, "it lives until the last of them has left"
    assert wait_until(lambda: request_server(0, DistServer.fetch_one_sampled_message, producers[0]) == (None, True), DEADLINE_S)


def test_backends_by_gigls_requests(dataset: RemoteDistDataset) -> None:
    from gnnkit.distributed import NodeSamplerInput, RemoteReceivingChannel

    config, channels = create_sampling_config([2, 2], dataset.schema, 4, shuffle=True, seed=5), []
    for server in range(2):
        started = InitSamplingBackendRequest("train", None, KHopNeighborSamplerOptions([2, 2]), config)
        both = [async_request_server(server, DistServer.init_sampling_backend, started) for _ in range(2)]
        (backend,) = {future.wait() for future in both}
        ids = request_server(server, DistServer.get_node_ids, FetchNodesRequest())
        registered = RegisterBackendRequest(backend, "rank 0", NodeSamplerInput(ids), config, 2)
        channels.append(request_server(server, DistServer.register_sampling_input, registered))
    channel = RemoteReceivingChannel([0, 1], channels, prefetch_size=3)
    orders = []
    for epoch in range(2):
        for server in range(2):
            request_server(server, DistServer.start_new_epoch_sampling, channels[server], epoch)
        channel.reset(epoch)
        order: list[list[int]] = []
        while True:
            try:
                order.append(channel.recv(timeout_ms=FAULT_S * 1000)["batch"].tolist())
            except StopIteration:
                break
        assert sorted(itertools.chain.from_iterable(order)) == EVERYTHING and len(order) == 10
        orders.append(sorted(order))
    assert orders[0] != orders[1]
    for server in range(2):
        request_server(server, DistServer.destroy_sampling_input, channels[server])
        assert request_server(server, DistServer.fetch_one_sampled_message, channels[server]) == (None, True)
        with pytest.raises(PlanError, match="is unknown"):
            request_server(server, DistServer.start_new_epoch_sampling, 99, 0)
        assert request_server(server, DistServer.exit) is False, "these servers stay"


# Faults -------------------------------------------------------------------------------------------------------------------


def test_a_server_that_is_killed_is_an_error_for_everybody_and_is_used_again(stores: dict[str, Store]) -> None:
    with gnnkit.serve(stores["plain"], 2, max_restarts=1, progress=False) as running:
        running.wait(DEADLINE_S)
        with client(running.address) as dataset:
            # More batches than a server samples ahead: what it sent before it is killed arrives.
            ids = {server: of.repeat(20) for server, of in dataset.fetch_node_ids().items()}
            loaders = [make(dataset, ids, batch_size=1), shared(dataset, ids, "all", batch_size=1)]
            epochs = [iter(loader) for loader in loaders]
            for epoch in epochs:
                next(epoch)
            pid = next(server["pid"] for server in running.status()["servers"] if server["rank"] == 1)
            os.kill(pid, signal.SIGKILL)
            for epoch in epochs:
                with pytest.raises(WorkerDied, match="server 1"):
                    list(epoch)
            running.wait(DEADLINE_S)
            for loader in loaders:
                assert sorted(seeds_of(loader)) == sorted(EVERYTHING * 20)
                loader.shutdown()

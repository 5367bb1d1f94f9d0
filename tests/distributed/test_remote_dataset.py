"""``RemoteDistDataset`` and ``GraphStoreInfo``: shares of seeds, proxies of what servers know, and servers that really are elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.futures import Future

from gnnkit import Store
from gnnkit.distributed import (
    ABLPInputNodes,
    DistDataset,
    DistServer,
    FeatureInfo,
    FetchNodesRequest,
    GraphStoreInfo,
    RangePartitionBook,
    RemoteDistDataset,
    ServerSlice,
    get_graph_store_info,
    request_server,
)
from gnnkit.errors import PlanError
from tests.distributed.loading import NEGATIVE, POSITIVE, TO, client, labelled, ring, serving, stored
from tests.distributed.social import TO_STORY, TO_USER, social
from tests.distributed.standing_in import answer_requests

DEADLINE_S = 120


class Locally:
    """Takes the place of ``request_server``: each part of a store is a server in this process, and what is asked is kept."""

    def __init__(self, store: Store) -> None:
        self.servers = [DistServer(DistDataset.from_store(store, part)) for part in range(store.num_parts)]
        self.asked: list[tuple[int, str]] = []

    def request(self, server: int, method: str, *args: Any) -> Any:
        self.asked.append((server, method))
        return getattr(self.servers[server], method)(*args)

    def request_later(self, server: int, method: str, *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(self.request(server, method, *args))
        return future


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Store]:
    graphs = {"plain": (ring(12), 3), "typed": (social(), 2), "labelled": (labelled(12), 2)}
    return {name: stored(data, tmp_path_factory.mktemp(name), parts) for name, (data, parts) in graphs.items()}


@pytest.fixture
def locally(stores: dict[str, Store], monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(name: str) -> tuple[RemoteDistDataset, Locally]:
        here = Locally(stores[name])
        answer_requests(monkeypatch, here.request, here.request_later)
        return RemoteDistDataset(GraphStoreInfo(len(here.servers), 1), 0), here

    return use


def lists(by_server: dict[int, torch.Tensor]) -> dict[int, list[int]]:
    assert all(ids.dtype == torch.int64 for ids in by_server.values())
    return {server: ids.tolist() for server, ids in by_server.items()}


# Shares of seeds ----------------------------------------------------------------------------------------------------------


def test_everything_of_every_server(locally: Any) -> None:
    dataset, _ = locally("plain")
    assert lists(dataset.fetch_node_ids()) == {0: [0, 1, 2, 3], 1: [4, 5, 6, 7], 2: [8, 9, 10, 11]}


def test_fetch_node_ids_contiguous_even_split(locally: Any) -> None:
    dataset, here = locally("plain")
    assert lists(dataset.fetch_node_ids(rank=1, world_size=3)) == {0: [], 1: [4, 5, 6, 7], 2: []}
    assert [server for server, method in here.asked if method == "get_node_ids"] == [1], "the others are not asked"


def test_fetch_node_ids_contiguous_fractional_split(locally: Any) -> None:
    dataset, _ = locally("plain")
    assert lists(dataset.fetch_node_ids(0, 2)) == {0: [0, 1, 2, 3], 1: [4, 5], 2: []}
    assert lists(dataset.fetch_node_ids(1, 2)) == {0: [], 1: [6, 7], 2: [8, 9, 10, 11]}


def test_fetch_ablp_input_contiguous(locally: Any) -> None:
    dataset, _ = locally("typed")
    whole = dataset.fetch_ablp_input("train", None, None, "user", TO_STORY)
    assert {s: found.anchor_nodes.tolist() for s, found in whole.items()} == {0: [0, 1], 1: [2]}
    shares = [dataset.fetch_ablp_input("train", rank, 4, "user", TO_STORY) for rank in range(4)]
    assert [[found[server].anchor_nodes.tolist() for server in range(2)] for found in shares] == [[[0], []], [[1], []], [[], []], [[], [2]]]
    positive, negative = shares[3][1].labels[TO_STORY]
    assert isinstance(shares[3][1], ABLPInputNodes) and shares[3][1].anchor_node_type == "user"
    assert positive.tolist() == [[2, 3]] and negative is not None and negative.tolist() == [[4]]
    nothing = shares[3][0].labels[TO_STORY]
    assert nothing[0].shape == (0, 0) and nothing[1] is not None and nothing[1].dtype == torch.int64
    capped = dataset.fetch_ablp_input("test", None, None, "user", TO_STORY, max_labels_per_anchor_node=1)
    assert [found.labels[TO_STORY][0].tolist() for found in capped.values()] == [[], [[0]]]


def test_arguments_that_go_together(locally: Any) -> None:
    dataset, _ = locally("typed")
    for call in (
        lambda: dataset.fetch_node_ids(rank=0, node_type="user"),
        lambda: dataset.fetch_node_ids(world_size=2, node_type="user"),
        lambda: dataset.fetch_ablp_input("train", rank=1, anchor_node_type="user", supervision_edge_type=TO_STORY),
        lambda: dataset.fetch_ablp_input("train", anchor_node_type="user"),
        lambda: dataset.fetch_ablp_input("train", supervision_edge_type=TO_STORY),
    ):
        with pytest.raises(PlanError, match="go together"):
            call()
    with pytest.raises(PlanError, match="there is no compute_rank 2 of 2"):
        dataset.fetch_node_ids(2, 2, node_type="user")
    with pytest.raises(PlanError, match="are missing"):
        dataset.fetch_ablp_input("train")
    with pytest.raises(PlanError, match="no local_rank 1"):
        RemoteDistDataset(GraphStoreInfo(2, 1), 1)


def test_what_all_servers_know(locally: Any) -> None:
    dataset, here = locally("plain")
    assert dataset.fetch_node_feature_info() == dataset.fetch_edge_feature_info() == FeatureInfo(1, torch.float32)
    assert dataset.fetch_edge_dir() == "in" and dataset.fetch_edge_types() is dataset.fetch_node_types() is None
    assert dataset.fetch_edge_weights_registered() is False
    book = dataset.fetch_node_partition_book()
    assert isinstance(book, RangePartitionBook) and book[torch.tensor([0, 5, 11])].tolist() == [0, 1, 2]
    assert len(dataset.fetch_edge_partition_book()) == 24
    assert here.asked.count((0, "get_dataset_schema")) == 1 and {server for server, _ in here.asked} == {0}
    assert "3 servers" in repr(dataset)


def test_a_homogeneous_graph_with_labels_needs_no_types(locally: Any) -> None:
    dataset, _ = locally("labelled")
    assert dataset.schema.is_homogeneous_with_labeled_edge_type and set(dataset.fetch_edge_types()) == {TO, POSITIVE, NEGATIVE}
    assert sorted(sum(lists(dataset.fetch_node_ids()).values(), [])) == list(range(12))
    assert dataset.fetch_node_partition_book()[torch.tensor([0, 11])].tolist() == [0, 1]
    assert dataset.fetch_edge_partition_book() is not None
    with pytest.raises(PlanError, match="no split 'train' of 'node' nodes"):
        dataset.fetch_ablp_input("train")


# Servers and trainers -------------------------------------------------------------------------------------------------------


def test_graph_store_info(monkeypatch: pytest.MonkeyPatch) -> None:
    info = GraphStoreInfo(2, 3, num_processes_per_compute=4)
    assert (info.num_cluster_nodes, info.compute_cluster_world_size) == (5, 12)
    for rank in range(5):
        monkeypatch.setenv("RANK", str(rank))
        if rank < 3:
            assert info.compute_node_rank == rank
            with pytest.raises(PlanError, match=f"RANK={rank} is not a server: those are 3 to 4"):
                _ = info.storage_node_rank
        else:
            assert info.storage_node_rank == rank - 3
            with pytest.raises(PlanError, match="not a host of trainers"):
                _ = info.compute_node_rank
    monkeypatch.delenv("RANK")
    with pytest.raises(PlanError, match="RANK is not set"):
        _ = info.compute_node_rank
    for wrong in ((0, 1), (1, 0), (1.5, 1), (True, 1)):
        with pytest.raises(PlanError, match="at least 1"):
            GraphStoreInfo(*wrong)  # type: ignore[arg-type]


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


def test_get_graph_store_info_needs_a_process_group() -> None:
    with pytest.raises(PlanError, match="no process group"):
        get_graph_store_info()
    with pytest.raises(PlanError, match="no process group"):
        RemoteDistDataset(GraphStoreInfo(1, 1), 0).fetch_free_ports_on_storage_cluster(1)


@pytest.mark.usefixtures("group")
def test_get_graph_store_info_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GNNKIT_NUM_SERVERS", "GNNKIT_NUM_CLIENTS"):
        monkeypatch.delenv(name, raising=False)
    for servers, clients, said in (
        (None, None, "do not say how many"),
        ("2", None, "do not say how many"),
        (None, "1", "do not say how many"),
        ("two", "1", "no whole number"),
        ("0", "1", "num_storage_nodes must be"),
        ("2", "3", "3 trainers, and 1 ranks"),
        ("2", "1", None),
    ):
        for name, value in (("GNNKIT_NUM_SERVERS", servers), ("GNNKIT_NUM_CLIENTS", clients)):
            monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
        if said is None:
            info = get_graph_store_info()
            assert (info.num_storage_nodes, info.num_compute_nodes, info.num_processes_per_compute) == (2, 1, 1)
        else:
            with pytest.raises(PlanError, match=said):
                get_graph_store_info()


# Elsewhere --------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def servers(stores: dict[str, Store]) -> Iterator[Any]:
    with serving(stores["typed"]) as (running,):
        yield running


@pytest.fixture
def joined(servers: Any) -> Iterator[RemoteDistDataset]:
    with client(servers.address) as dataset:
        yield dataset


@pytest.mark.slow
def test_servers_elsewhere_say_what_they_say_here(joined: RemoteDistDataset, stores: dict[str, Store]) -> None:
    here = Locally(stores["typed"]).servers
    ids = torch.tensor([4, 0, 2])
    for rank, server in enumerate(here):
        for method, args in (
            (DistServer.get_dataset_meta, ()),
            (DistServer.get_dataset_schema, ()),
            (DistServer.get_edge_weights_registered, ()),
            (DistServer.get_node_partition_id, ("user", ids)),
            (DistServer.get_node_partition_book, ("story",)),
            (DistServer.get_edge_partition_book, (TO_STORY,)),
            (DistServer.get_node_feature, ("story", ids)),
            (DistServer.get_node_label, ("user", ids)),
            (DistServer.get_tensor_size, ("user",)),
            (DistServer.get_edge_index, (TO_USER, "coo")),
            (DistServer.get_edge_size, (TO_STORY,)),
            (DistServer.get_node_ids, (FetchNodesRequest("train", "user", ServerSlice(rank, 1, 2, 2)),)),
        ):
            theirs, ours = request_server(rank, method, *args), getattr(server, method.__name__)(*args)
            assert plain(theirs) == plain(ours), method
    with pytest.raises(PlanError, match="did you mean 'user'"):
        request_server(0, DistServer.get_node_label, "usr", ids)
    with pytest.raises(PlanError, match="DistServer has no method 'print'"):
        request_server(0, print, "code never travels")


def plain(value: Any) -> Any:
    if isinstance(value, RangePartitionBook):
        return "range", value.partition_bounds.tolist()
    if isinstance(value, torch.Tensor):
        return value.dtype, value.tolist()
    return tuple(map(plain, value)) if isinstance(value, tuple) else value


@pytest.mark.usefixtures("group")
def test_a_trainer_of_servers_elsewhere(joined: RemoteDistDataset) -> None:
    assert lists(joined.fetch_node_ids(split="train", node_type="user")) == {0: [0, 1], 1: [2]}
    assert joined.fetch_ablp_input("val", None, None, "user", TO_STORY)[1].labels[TO_STORY][0].tolist() == [[3, 4]]
    info = get_graph_store_info()
    assert (info.num_storage_nodes, info.compute_cluster_world_size) == (2, 1)
    ports = joined.fetch_free_ports_on_storage_cluster(3)
    assert len(set(ports)) == 3 and all(1 <= port <= 65535 for port in ports)


def test_nobody_was_joined() -> None:
    with pytest.raises(PlanError, match="joined no servers"):
        RemoteDistDataset(GraphStoreInfo(1, 1), 0).fetch_node_ids()

"""``DistServer``: what it tells of a graph, against the graph itself; and sampling backends, epochs and channels in every order."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gnnkit import LoaderPlan, Store
from gnnkit.cluster.serving.server_api import SamplingApi, ServerApi
from gnnkit.cluster.serving.store_api import StoreApi
from gnnkit.distributed import (
    DistDataset,
    DistServer,
    FeatureInfo,
    FetchABLPInputRequest,
    FetchNodesRequest,
    PPRSamplerOptions,
    ServerSlice,
    get_ids_on_rank,
)
from gnnkit.distributed.dist_server import METHODS, method_name
from gnnkit.errors import GnnkitError, PlanError, SamplingError, StoreError, WorkerDied
from gnnkit.plan.sampling import EdgeUse
from gnnkit.runtime.pool import SharedPool
from gnnkit.runtime.remote import error_from_json, error_to_json
from gnnkit.runtime.wire import Message, in_memory
from tests.distributed.loading import NUM_NODES, labelled, ring, stored
from tests.distributed.social import NUM_USERS, TO_STORY, TO_USER, social

# What servers tell ------------------------------------------------------------------------------------------------------------


def servers_of(store: Store) -> list[DistServer]:
    return [DistServer(DistDataset.from_store(store, part)) for part in range(store.num_parts)]


def masked_ring(num_nodes: int = 20) -> Any:
    data = ring(num_nodes)
    for name, ids in (("train_mask", range(10)), ("val_mask", range(10, 13)), ("test_mask", range(13, 16))):
        data[name] = torch.zeros(num_nodes, dtype=torch.bool)
        data[name][list(ids)] = True
    return data


@pytest.fixture(scope="module", params=["contiguous", "random"])
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[DistServer]:
    return servers_of(stored(masked_ring(), tmp_path_factory.mktemp("plain"), 2, partition=request.param))


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> list[DistServer]:
    return servers_of(stored(social(), tmp_path_factory.mktemp("typed"), 2, partition="random"))


def test_metadata(plain: list[DistServer], typed: list[DistServer]) -> None:
    assert [server.get_dataset_meta() for server in plain] == [(2, 0, None, None), (2, 1, None, None)]
    assert plain[0].get_node_types() is None and plain[0].get_edge_types() is None
    assert plain[0].get_edge_dir() == "in" and plain[0].get_edge_weights_registered() is False
    assert plain[0].get_node_feature_info() == plain[0].get_edge_feature_info() == FeatureInfo(1, torch.float32)
    assert typed[1].get_node_types() == ["story", "user"] and set(typed[1].get_edge_types() or []) >= {TO_STORY, TO_USER}
    assert typed[1].get_node_feature_info() == {"user": FeatureInfo(1, torch.float32), "story": FeatureInfo(2, torch.float32)}
    assert typed[1].get_edge_feature_info() is None
    assert typed[0].get_dataset_schema() == typed[0].dataset.schema  # type: ignore[union-attr]


def test_rows_books_and_edges(plain: list[DistServer], typed: list[DistServer]) -> None:
    ids = torch.tensor([7, 3, 3, 19])
    for server in plain:
        assert server.get_node_feature(None, ids).tolist() == [[7.0], [3.0], [3.0], [19.0]]
        assert server.get_node_label(None, ids).tolist() == [7, 3, 3, 19]
        book = server.get_node_partition_book()
        assert server.get_node_partition_id(None, ids).tolist() == book[ids].tolist()
        assert server.get_edge_size() == (20, 20) and server.get_tensor_size() == torch.Size([10, 1])
        own = set(get_ids_on_rank(book, plain.index(server)).tolist())
        source, target = server.get_edge_index(None, "coo")
        assert len(source) == 20 and set(target.tolist()) <= own
        # As they were given: first all edges that lead one step on.
        assert ((target - source) % 20).tolist() == [1, 2] * 10
        with pytest.raises(PlanError, match="layout must be 'coo'"):
            server.get_edge_index(None, "csr")
    first, second = (server.get_edge_partition_book()[torch.arange(40)] for server in plain)
    assert torch.equal(first, second) and first.unique().tolist() == [0, 1]
    assert typed[0].get_node_feature("story", torch.tensor([4, 0])).tolist() == [[14.0, 14.0], [10.0, 10.0]]
    assert torch.cat([server.get_edge_index(TO_STORY)[0] for server in typed]).sort()[0].tolist() == list(range(5))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda plain, typed: plain.get_node_feature("node", torch.tensor([0])), "the graph is homogeneous"),
        (lambda plain, typed: typed.get_node_feature(None, torch.tensor([0])), "node_type is missing"),
        (lambda plain, typed: typed.get_node_partition_book("usr"), "did you mean 'user'"),
        (lambda plain, typed: typed.get_edge_partition_book(("user", "x", "story")), "unknown edge type"),
        (lambda plain, typed: typed.get_node_label("story", torch.tensor([0])), "no labels"),
        (lambda plain, typed: plain.get_node_feature(None, torch.tensor([20])), "there is no 'node' node 20"),
        (lambda plain, typed: plain.get_node_feature(None, torch.tensor([0.5])), "whole numbers"),
        (lambda plain, typed: plain.get_node_ids(FetchNodesRequest("trian")), "did you mean 'train'"),
        (lambda plain, typed: plain.get_node_ids(FetchNodesRequest(node_type="node")), "the graph is homogeneous"),
        (lambda plain, typed: typed.get_node_ids(FetchNodesRequest("train")), "node_type is missing"),
        (lambda plain, typed: typed.get_node_ids(FetchNodesRequest("train", "story")), "no split 'train' of 'story'"),
        (lambda plain, typed: plain.start_new_epoch_sampling(1, 0), "samples nothing"),
        (lambda plain, typed: plain.exit(), "samples nothing"),
    ],
)
def test_wrong_questions(call: Callable[[Any, Any], Any], said: str, plain: list[DistServer], typed: list[DistServer]) -> None:
    with pytest.raises(PlanError, match=said):
        call(plain[0], typed[0])


def test_node_ids(plain: list[DistServer], typed: list[DistServer]) -> None:
    own = [set(get_ids_on_rank(server.get_node_partition_book(), part).tolist()) for part, server in enumerate(plain)]
    for split, expected in ((None, range(20)), ("train", range(10)), ("val", range(10, 13)), ("test", range(13, 16))):
        found = [server.get_node_ids(FetchNodesRequest(split)).tolist() for server in plain]
        assert sorted(sum(found, [])) == list(expected) and all(set(ids) <= part for ids, part in zip(found, own, strict=True))
        for server, ids in zip(plain, found, strict=True):
            thirds = [
                server.get_node_ids(FetchNodesRequest(split, None, ServerSlice(0, third, third + 1, 3))).tolist() for third in range(3)
            ]
            assert sum(thirds, []) == ids and max(map(len, thirds)) - min(map(len, thirds)) <= 1
    everything = plain[0].get_node_ids().tolist()
    assert (
        everything[: len(plain[0].get_node_ids(FetchNodesRequest("train")))] == plain[0].get_node_ids(FetchNodesRequest("train")).tolist()
    )
    assert sorted(sum((server.get_node_ids(FetchNodesRequest("train", "user")).tolist() for server in typed), [])) == [0, 1, 2]
    assert sorted(sum((server.get_node_ids(FetchNodesRequest(None, "story")).tolist() for server in typed), [])) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("num_servers", "num_parts"), [(2, 1), (3, 2), (2, 3), (4, 4)])
def test_servers_share_parts(num_servers: int, num_parts: int, tmp_path: Path) -> None:
    store = stored(masked_ring(), tmp_path, num_parts)
    pool: Any = Workers()
    apis = [opened(store, pool, rank, num_servers) for rank in range(num_servers)]
    try:
        for split, expected in ((None, range(20)), ("train", range(10)), ("val", range(10, 13))):
            found = [asked(api, "node_ids", split=split, node_type=None) for api in apis]
            assert sorted(np.concatenate(found)) == list(expected)
        edges = [asked(api, "edge_index", edge_type=None, layout="coo") for api in apis]
        assert sorted(zip(*np.concatenate(edges, 1).tolist(), strict=True)) == sorted(zip(*masked_ring().edge_index.tolist(), strict=True))
        assert sum(asked(api, "feature_shape", node_type=None)[0] for api in apis) == 20
    finally:
        for api in apis:
            api.close()


def test_a_server_that_lacks_a_part_says_so(tmp_path: Path) -> None:
    store = stored(masked_ring(), tmp_path, 2)
    server = DistServer(DistDataset.from_store(Store.open(store.path, (0,)), 0))
    assert server.get_node_feature(None, torch.tensor([3])).tolist() == [[3.0]]
    with pytest.raises(StoreError, match="part 1 of the store .* is not open here"):
        server.get_node_feature(None, torch.tensor([15]))


# Labels of anchors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reversed_labels", [False, True])
@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("num_parts", [1, 2])
def test_ablp_input_whichever_way_labels_are_stored(reversed_labels: bool, edge_dir: str, num_parts: int, tmp_path: Path) -> None:
    store = stored(social(reversed_labels=reversed_labels), tmp_path, num_parts, partition="random", edge_dir=edge_dir)
    found = {}
    for server in servers_of(store):
        for split in ("train", "val", "test"):
            anchors, positive, negative = server.get_ablp_input(FetchABLPInputRequest(split, "user", TO_STORY))
            assert negative is not None and (positive.dtype, positive.shape[0]) == (torch.int64, len(anchors))
            for anchor, good, bad in zip(anchors.tolist(), positive.tolist(), negative.tolist(), strict=True):
                found[anchor] = split, good, bad
    splits = ["train", "train", "train", "val", "test"]
    assert found == {u: (splits[u], sorted([u, (u + 1) % NUM_USERS]), [(u + 2) % NUM_USERS]) for u in range(NUM_USERS)}


def test_ablp_input_slices_caps_and_refusals(tmp_path: Path) -> None:
    server = servers_of(stored(social(with_negatives=False), tmp_path))[0]
    half = ServerSlice(0, 1, 2, 2)
    anchors, positive, negative = server.get_ablp_input(FetchABLPInputRequest("train", "user", TO_STORY, half))
    assert (anchors.tolist(), positive.tolist(), negative) == ([1, 2], [[1, 2], [2, 3]], None)
    capped = server.get_ablp_input(FetchABLPInputRequest("train", "user", TO_STORY, max_labels_per_anchor_node=1))
    assert capped[1].tolist() == [[0], [1], [2]]
    for request, said in (
        (FetchABLPInputRequest("all", "user", TO_STORY), "there is no split 'all'"),
        (FetchABLPInputRequest("train", "story", TO_STORY), "anchors of type 'story' have no edges"),
        (FetchABLPInputRequest("train", "user", ("user", "likes", "story")), "no positive labels"),
        (FetchABLPInputRequest("train", "user", TO_STORY, max_labels_per_anchor_node=0), "at least 1"),
    ):
        with pytest.raises(PlanError, match=said):
            server.get_ablp_input(request)


def test_rows_of_labels_belong_to_their_anchors(tmp_path: Path) -> None:
    """An anchor without labels keeps its own row, wherever it stands, and rows are filled up behind."""
    from gnnkit.cluster.serving.store_api import padded_neighbors

    data = labelled(6)
    positive = ("node", "to_gigl_positive", "node")
    data[positive].edge_index = torch.tensor([[0, 0, 1, 4, 4, 4], [1, 2, 2, 5, 0, 3]])
    for edge_dir in ("in", "out"):
        store = stored(data, tmp_path / edge_dir, 2, partition="random", edge_dir=edge_dir)

        def rows(ids: list[int], store: Store = store, **options: Any) -> Any:
            return padded_neighbors(store, positive, np.array(ids, np.int64), **{"from_source": True, **options}).tolist()

        assert rows([0, 1]) == [[1, 2], [2, -1]] and rows([0, 1], most=1) == [[1], [2]]
        assert rows([3, 4, 0, 4]) == [[-1, -1, -1], [0, 3, 5], [1, 2, -1], [0, 3, 5]]
        assert rows([3]) == [[]] and rows([]) == []
        assert rows([2, 5, 4], from_source=False) == [[0, 1], [4, -1], [-1, -1]]


# What can be asked -----------------------------------------------------------------------------------------------------------


def opened(store: Store, pool: Any, rank: int = 0, num_servers: int = 1, *, ends_with_clients: bool = False) -> ServerApi:
    """A server's API over workers of a test's own."""
    sampling = SamplingApi(store, pool, ends_with_clients=ends_with_clients)
    return ServerApi(StoreApi(store, rank, num_servers), sampling, lambda work: work())


def asked(api: ServerApi, name: str, client: str = "a", timeout_s: float = 20.0, **args: Any) -> Any:
    """The answer of a api to a call; its error is raised."""
    done = threading.Event()
    found: list[Any] = []

    def reply(value: Any) -> None:
        found.append(value)
        done.set()

    api.call(client, name, args, reply)
    assert done.wait(timeout_s), "no answer"
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def test_only_names_of_methods_are_carried() -> None:
    assert method_name(DistServer.get_node_ids) == method_name("get_node_ids") == "get_node_ids"
    assert "over" not in METHODS and not any(name.startswith("_") for name in METHODS)
    for wrong in (print, "get_node_idz", lambda: 0, "__init__", "over", DistServer, os.system):
        with pytest.raises(PlanError, match="DistServer has no method"):
            method_name(wrong)


def test_a_desk_answers_its_calls_and_nothing_else(tmp_path: Path) -> None:
    api = opened(stored(ring(), tmp_path), Workers())
    for name, args, said in (
        ("describ", {}, "no call 'describ'; did you mean 'describe'"),
        ("__class__", {}, "answers no call"),
        ("close", {}, "answers no call"),
        ("node_ids", {"spilt": None}, "other arguments"),
        ("free_ports", {"count": 0}, "between 1 and"),
    ):
        with pytest.raises(PlanError, match=said):
            asked(api, name, **args)
    with pytest.raises(SamplingError, match="failed: TypeError"):
        asked(api, "free_ports", count=None)
    assert len(set(asked(api, "free_ports", count=3))) == 3
    api.close()


# Backends and channels ---------------------------------------------------------------------------------------------------------

CONFIG = {
    "num_neighbors": [2, 2],
    "batch_size": 4,
    "shuffle": False,
    "drop_last": False,
    "with_edge": False,
    "with_weight": False,
    "edge_dir": "in",
    "seed": None,
}


class Workers(SharedPool[Any, Any]):
    """A server's pool whose workers are a stand-in: what they are sent is kept, and they answer when they are told to."""

    def __init__(self) -> None:
        self.ready: frozenset[int] = frozenset()
        self.watchers: list[Any] = []
        self.sent: list[tuple[int, str, dict[str, Any]]] = []
        self.is_over, self.starts = False, 0
        super().__init__(self, 0, 1.0)

    @property
    def pids(self) -> dict[int, int]:
        return dict.fromkeys(self.ready, 0)

    def start_missing(self) -> None:
        self.is_over, self.starts = False, self.starts + 1

    def send(self, rank: int, kind: str, fds: Any = (), /, **body: Any) -> None:
        self.sent.append((rank, kind, body))

    def come(self, *ranks: int) -> None:
        for rank in ranks:
            self.ready |= {rank}
            self._announce_sessions(rank)
            self.assign()
            for watcher in self.watchers:
                watcher(rank, None)

    def die(self, rank: int, *, for_good: bool = True) -> None:
        self.ready -= {rank}
        self.is_over = for_good and not self.ready
        error = error_from_json(error_to_json(WorkerDied(f"sampling process {rank} ended", "look")), "")
        for session in list(self.sessions.values()):
            session.lost(rank, error)
        self.assign()
        for watcher in self.watchers:
            watcher(rank, error)

    def jobs(self) -> list[tuple[int, dict[str, Any]]]:
        """Batches to sample that were not asked for before."""
        found = [(rank, body) for rank, kind, body in self.sent if kind == "now"]
        self.sent = [message for message in self.sent if message[1] != "now"]
        return found

    def answer(self, rank: int, job: dict[str, Any], error: GnnkitError | None = None) -> None:
        """A worker has sampled a batch, which holds its own number."""
        body, session = {"c": job["c"], "number": job["number"]}, self.sessions.get(job["c"])
        if session is None:  # given up
            return
        if error is not None:
            session.take(rank, Message("error", {**body, "error": error_to_json(error)}))
            self.assign()
            return
        block = np.array([job["epoch"], job["batch"]], np.int64)
        batches = [{"layout": {"nbytes": block.nbytes}}]
        session.take(rank, Message("done", {**body, "batches": batches}, [in_memory(block.data)]))
        self.assign()

    def work(self) -> int:
        """Answers everything that there is to do, the last first; how much that was."""
        jobs = self.jobs()
        for rank, job in reversed(jobs):
            self.answer(rank, job)
        return len(jobs)


@pytest.fixture(scope="module")
def ring_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return stored(ring(), tmp_path_factory.mktemp("ring"))


@pytest.fixture
def workers() -> Workers:
    return Workers()


@pytest.fixture
def api(ring_store: Store, workers: Workers) -> Iterator[ServerApi]:
    found = opened(ring_store, workers)
    yield found
    found.close()


class Answer:
    """What a call was answered with, once it was."""

    def __init__(self, api: ServerApi, name: str, client: str = "a", **args: Any) -> None:
        self.all: list[Any] = []
        api.call(client, name, args, self.all.append)

    @property
    def value(self) -> Any:
        (value,) = self.all
        if isinstance(value, Exception):
            raise value
        return value


def batch_of(found: Any) -> tuple[int, int]:
    """Epoch and number of a batch of ``Workers``."""
    (batch, is_over) = found
    frame = {"node_types": None, "edge_types": None, "edge_dir": "in", "input_type": "node", "by_ppr": False}
    assert not is_over and batch["frame"] == frame
    epoch, index = batch["block"].view(np.int64).tolist()
    assert epoch == batch["epoch"]
    return epoch, index


def backend_of(api: ServerApi, client: str = "a", key: str = "train", **config: Any) -> int:
    return int(Answer(api, "init_backend", client, key=key, config={**CONFIG, **config}).value)


def channel_of(api: ServerApi, backend: int, client: str = "a", key: str = "mine", num_seeds: int = 10, capacity: int = 3) -> int:
    ids, args = np.arange(num_seeds), {"backend": backend, "worker_key": key, "config": CONFIG, "capacity": capacity}
    return int(Answer(api, "register", client, node_type=None, ids=ids, **args).value)


def test_init_sampling_backend_idempotent(api: ServerApi, workers: Workers) -> None:
    workers.come(0)
    assert backend_of(api) == backend_of(api) == backend_of(api, "b")
    assert backend_of(api, key="valid") != backend_of(api)
    with pytest.raises(PlanError, match="'train' exists with another configuration"):
        backend_of(api, batch_size=5)
    for config, said in (
        ({"with_weight": True}, "without weights"),
        ({"edge_dir": "out"}, "compressed for 'in'"),
        ({"num_neighbors": [-2]}, "num_neighbors holds -2"),
        ({"num_neighbors": {("a", "b", "c"): [1]}}, "num_neighbors is a dict, but the graph is homogeneous"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"batch_size": "x"}, "batch_size must be a whole number"),
        ({"num_neighbors": 3}, "num_neighbors must be a list"),
    ):
        with pytest.raises(PlanError, match=said):
            backend_of(api, key="wrong", **config)


def test_concurrent_init_same_key_reuses_backend(api: ServerApi, workers: Workers) -> None:
    first, second = (Answer(api, "init_backend", client, key="train", config=CONFIG) for client in "ab")
    assert not first.all and not second.all, "there is nobody who could sample yet"
    workers.come(0, 1)
    assert first.value == second.value == backend_of(api)
    assert workers.starts == 0


def test_concurrent_init_failure_propagates_to_second_caller(api: ServerApi, workers: Workers) -> None:
    waiting = [Answer(api, "init_backend", client, key="train", config=CONFIG) for client in "ab"]
    workers.die(0)
    for answer in waiting:
        with pytest.raises(WorkerDied, match="sampling process 0 ended") as caught:
            _ = answer.value
        assert "WorkerDied" in str(caught.value.__cause__)
    again = Answer(api, "init_backend", key="train", config=CONFIG)
    assert workers.starts == 1, "whoever asks next has the workers started again"
    workers.come(0)
    assert again.value


def test_register_creates_channel(api: ServerApi, workers: Workers) -> None:
    workers.come(0, 1)
    backend = backend_of(api)
    channel = channel_of(api, backend)
    assert [(rank, kind) for rank, kind, _ in workers.sent] == [(0, "open"), (1, "open")]
    assert channel_of(api, backend) == channel_of(api, backend, "b") == channel != channel_of(api, backend, key="other")
    with pytest.raises(PlanError, match="'mine' stands for another input"):
        channel_of(api, backend, num_seeds=9)
    with pytest.raises(PlanError, match="no sampling backend 99"):
        channel_of(api, 99)
    with pytest.raises(PlanError, match="another configuration than its sampling backend"):
        channel_of(api, backend_of(api, key="larger", batch_size=7))
    with pytest.raises(PlanError, match="there is no 'node' node"):
        channel_of(api, backend, key="wrong", num_seeds=NUM_NODES + 1)
    workers.come(2)
    assert [(rank, kind) for rank, kind, _ in workers.sent][-2:] == [(2, "open"), (2, "open")], "a worker that comes later knows them too"


def test_register_empty_channel(api: ServerApi, workers: Workers) -> None:
    workers.come(0)
    channel = channel_of(api, backend_of(api), num_seeds=0)
    Answer(api, "start_epoch", channel=channel, epoch=0)
    assert Answer(api, "fetch", channel=channel).value == (None, True) and not workers.jobs()


def test_an_input_is_sampled_with_its_backends_options(tmp_path: Path, workers: Workers) -> None:
    """Channels, the words of which are the hardest, arrive as they were given."""
    store = stored(social(), tmp_path)
    api = opened(store, workers)
    workers.come(0)
    server = DistServer.over(lambda name, args, convert: convert(asked(api, name, **args)))
    config: Any = SimpleNamespace(**CONFIG, sampling_type=SimpleNamespace(name="NODE"), with_neg=False)
    options = PPRSamplerOptions(
        max_ppr_nodes=8, typed_channel_ratios={(TO_STORY, TO_USER): 0.75, TO_USER: 0.25}, edge_types=[TO_STORY, TO_USER]
    )
    started: Any = SimpleNamespace(backend_key="k", sampling_config=config, sampler_options=options)
    backend = server.init_sampling_backend(started)
    seeds = SimpleNamespace(node=torch.arange(4), input_type="user")
    request: Any = SimpleNamespace(backend_id=backend, worker_key="w", sampler_input=seeds, sampling_config=config, buffer_capacity=1)
    server.register_sampling_input(request)
    ((_, kind, body),) = workers.sent
    wanted = options.sampling(store.schema, EdgeUse())
    assert kind == "open" and LoaderPlan.from_json(body["plan"]).sampling == wanted
    assert [channel.target for channel in wanted.channels] == [6, 2]
    started.sampler_options = None
    with pytest.raises(PlanError, match="another configuration"):
        server.init_sampling_backend(started)
    with pytest.raises(PlanError, match="cannot be read|alpha"):
        asked(api, "init_backend", key="other", config={**CONFIG, "ppr": {"alpha": 7}})
    api.close()


def test_batches_come_in_order_and_not_too_far_ahead(api: ServerApi, workers: Workers) -> None:
    workers.come(0, 1)
    channel = channel_of(api, backend_of(api), num_seeds=22, capacity=3)
    early = Answer(api, "fetch", channel=channel)
    assert early.value == (None, True), "no epoch has begun"
    Answer(api, "start_epoch", channel=channel, epoch=0)
    jobs = workers.jobs()
    assert [job["batch"] for _, job in jobs] == [0, 1, 2] and {rank for rank, _ in jobs} == {0, 1}
    waiting = [Answer(api, "fetch", client, channel=channel) for client in "ab"]
    workers.answer(*jobs[1])
    assert not any(answer.all for answer in waiting)
    workers.answer(*jobs[0])
    assert [batch_of(answer.value) for answer in waiting] == [(0, 0), (0, 1)], "clients divide the batches as they ask"
    workers.answer(*jobs[2])
    for _ in range(3):
        workers.work()
    assert not workers.jobs(), "three are ready, and nobody takes them"
    rest = []
    while (found := Answer(api, "fetch", channel=channel)).all[0] != (None, True):
        rest.append(batch_of(found.value))
        workers.work()
    assert rest == [(0, 2), (0, 3), (0, 4), (0, 5)]
    assert [Answer(api, "fetch", client, channel=channel).value for client in "ab"] == [(None, True)] * 2


def test_epochs_are_monotonic(api: ServerApi, workers: Workers) -> None:
    workers.come(0)
    channel = channel_of(api, backend_of(api))
    for epoch in (3, 3, 2, 0):
        assert Answer(api, "start_epoch", channel=channel, epoch=epoch).value is None
    assert [(job["epoch"], job["batch"]) for _, job in workers.jobs()] == [(3, 0), (3, 1), (3, 2)]
    with pytest.raises(PlanError, match="the channel 7 is unknown"):
        _ = Answer(api, "start_epoch", channel=7, epoch=0).value
    Answer(api, "destroy", channel=channel)
    assert Answer(api, "start_epoch", channel=channel, epoch=9).value is None and not workers.jobs()


def test_concurrent_start_epoch_dispatches_monotonically(api: ServerApi, workers: Workers) -> None:
    workers.come(0)
    channel = channel_of(api, backend_of(api), num_seeds=4)
    for epoch in (1, 0, 2, 1, 2):
        Answer(api, "start_epoch", channel=channel, epoch=epoch)
    assert [job["epoch"] for _, job in workers.jobs()] == [1, 2]


def test_what_is_left_of_an_epoch_never_comes(api: ServerApi, workers: Workers) -> None:
    workers.come(0)
    channel = channel_of(api, backend_of(api))
    Answer(api, "start_epoch", channel=channel, epoch=0)
    old_jobs, waiting = workers.jobs(), Answer(api, "fetch", channel=channel)
    Answer(api, "start_epoch", channel=channel, epoch=1)
    assert waiting.value == (None, True), "whoever waits for the old epoch gets nothing of the new one"
    late, right = Answer(api, "fetch", channel=channel, epoch=0), Answer(api, "fetch", channel=channel, epoch=1)
    assert late.value == (None, True) and not right.all
    for rank, job in old_jobs:
        workers.answer(rank, job)
    assert not right.all
    workers.work()
    assert batch_of(right.value) == (1, 0)


def test_destroy(api: ServerApi, workers: Workers) -> None:
    workers.come(0)
    backend = backend_of(api)
    channel, other = channel_of(api, backend), channel_of(api, backend, key="other")
    channel_of(api, backend, "b")
    Answer(api, "start_epoch", channel=channel, epoch=0)
    waiting = Answer(api, "fetch", "b", channel=channel)
    for unknown in (99, -1):
        assert Answer(api, "destroy", channel=unknown).value is None
        assert Answer(api, "fetch", channel=unknown).value == (None, True)
    Answer(api, "destroy", channel=channel)
    assert not waiting.all, "another client still holds it"
    workers.work()
    assert batch_of(waiting.value) == (0, 0), "a fetch under way still gets its batch"
    last = Answer(api, "fetch", "b", channel=channel)
    Answer(api, "destroy", "b", channel=channel)
    Answer(api, "destroy", "b", channel=channel)
    assert batch_of(last.value) == (0, 1)
    assert Answer(api, "fetch", "b", channel=channel).value == (None, True)
    assert [kind for _, kind, _ in workers.sent].count("close") == 1
    assert channel_of(api, backend, key="third")  # the backend lives as long as it has an input
    for number in (other, channel + 2):
        Answer(api, "destroy", channel=number)
    with pytest.raises(PlanError, match=f"no sampling backend {backend}"):
        channel_of(api, backend)
    assert backend_of(api) != backend, "the name is free again"


def test_destroy_start_overlap_prefers_destroyed_state(api: ServerApi, workers: Workers) -> None:
    workers.come(0)
    channel = channel_of(api, backend_of(api))
    Answer(api, "start_epoch", channel=channel, epoch=0)
    waiting = Answer(api, "fetch", channel=channel)
    Answer(api, "destroy", channel=channel)
    assert waiting.value == (None, True)
    assert Answer(api, "start_epoch", channel=channel, epoch=1).value is None
    assert workers.work() == 3 and Answer(api, "fetch", channel=channel).value == (None, True)


def test_a_client_that_leaves_gives_everything_up(api: ServerApi, workers: Workers) -> None:
    waiting = Answer(api, "init_backend", "gone", key="train", config=CONFIG)
    api.left("gone")
    workers.come(0)
    assert not waiting.all, "nobody is left who could be answered"
    backend = backend_of(api)
    shared, own = channel_of(api, backend), channel_of(api, backend, "b", key="own")
    channel_of(api, backend, "b")
    Answer(api, "start_epoch", channel=shared, epoch=0)
    late = Answer(api, "fetch", "b", channel=shared)
    api.left("b")
    api.left("b")
    assert not late.all and Answer(api, "fetch", channel=own).value == (None, True)
    workers.work()
    assert batch_of(Answer(api, "fetch", channel=shared).value) == (0, 0)
    api.left("a")
    assert [kind for _, kind, _ in workers.sent].count("close") == 2


def test_a_batch_that_cannot_be_sampled_is_one_error(api: ServerApi, workers: Workers) -> None:
    workers.come(0)
    channel = channel_of(api, backend_of(api))
    Answer(api, "start_epoch", channel=channel, epoch=0)
    (first, *rest) = workers.jobs()
    workers.answer(*first, error=SamplingError("index 4 is out of bounds"))
    for job in rest:
        workers.answer(*job)
    with pytest.raises(SamplingError, match="index 4"):
        _ = Answer(api, "fetch", channel=channel).value
    assert batch_of(Answer(api, "fetch", channel=channel).value) == (0, 1)


def test_another_worker_does_what_a_dead_one_was_given(api: ServerApi, workers: Workers) -> None:
    workers.come(0, 1)
    channel = channel_of(api, backend_of(api))
    Answer(api, "start_epoch", channel=channel, epoch=0)
    lost = [job["batch"] for rank, job in workers.jobs() if rank == 0]
    waiting = Answer(api, "fetch", channel=channel)
    workers.die(0)
    assert lost and [(rank, job["batch"]) for rank, job in workers.jobs()] == [(1, batch) for batch in lost]
    workers.die(1)
    with pytest.raises(WorkerDied, match="sampling process 1 ended"):
        _ = waiting.value
    with pytest.raises(WorkerDied):
        _ = Answer(api, "fetch", channel=channel).value
    Answer(api, "start_epoch", channel=channel, epoch=1)
    workers.come(0)
    waiting = Answer(api, "fetch", channel=channel)
    workers.work()
    assert workers.starts == 1 and batch_of(waiting.value) == (1, 0)


def test_one_that_comes_back_is_waited_for(api: ServerApi, workers: Workers) -> None:
    workers.come(0)
    channel = channel_of(api, backend_of(api))
    Answer(api, "start_epoch", channel=channel, epoch=0)
    waiting = Answer(api, "fetch", channel=channel)
    workers.jobs()
    workers.die(0, for_good=False)
    assert not waiting.all
    workers.come(0)
    workers.work()
    assert batch_of(waiting.value) == (0, 0)


def test_producers_are_backend_and_input_in_one(api: ServerApi, workers: Workers) -> None:
    args = {"config": CONFIG, "node_type": None, "ids": np.arange(10), "capacity": 2}
    first = Answer(api, "create", "a", worker_key="train", **args)
    second = Answer(api, "create", "b", worker_key="train", **args)
    assert not first.all
    workers.come(0)
    assert first.value == second.value
    alone = [Answer(api, "create", "a", worker_key=None, **args).value for _ in range(2)]
    assert len({first.value, *alone}) == 3
    with pytest.raises(PlanError, match="another input"):
        _ = Answer(api, "create", worker_key="train", **{**args, "ids": np.arange(9)}).value
    with pytest.raises(PlanError, match="another configuration"):
        _ = Answer(api, "create", worker_key="train", **{**args, "config": {**CONFIG, "shuffle": True}}).value


def test_the_end_of_a_server_answers_nobody_twice(ring_store: Store, workers: Workers) -> None:
    api = opened(ring_store, workers)
    workers.come(0)
    channel = channel_of(api, backend_of(api))
    Answer(api, "start_epoch", channel=channel, epoch=0)
    waiting = Answer(api, "fetch", channel=channel)
    api.close()
    api.close()
    workers.work()
    assert len(waiting.all) <= 1


def test_a_client_that_was_taken_for_gone_does_not_mistake_that_for_the_end_of_an_epoch(api: ServerApi, workers: Workers) -> None:
    workers.come(0)
    channel = channel_of(api, backend_of(api))
    Answer(api, "start_epoch", channel=channel, epoch=0)
    api.left("a")  # nothing was heard of it for long; here it is again
    for call, epoch in (("fetch", 0), ("start_epoch", 1), ("fetch", 1)):
        with pytest.raises(PlanError, match=f"the channel {channel} is unknown"):
            _ = Answer(api, call, channel=channel, epoch=epoch).value
    again = channel_of(api, backend_of(api))
    Answer(api, "start_epoch", channel=again, epoch=1)
    Answer(api, "destroy", channel=again)
    assert Answer(api, "fetch", channel=again, epoch=1).value == (None, True), "whoever destroys a channel knows"


def test_an_epoch_goes_on_once_there_are_workers_again(api: ServerApi, workers: Workers) -> None:
    workers.come(0)
    channel = channel_of(api, backend_of(api))
    Answer(api, "start_epoch", channel=channel, epoch=0)
    workers.die(0)
    with pytest.raises(WorkerDied):
        _ = Answer(api, "fetch", channel=channel).value
    workers.jobs()
    workers.come(0)  # another client has had them started again
    waiting = Answer(api, "fetch", channel=channel)
    assert not waiting.all
    workers.work()
    assert batch_of(waiting.value) == (0, 0)


def test_batches_that_wait_to_be_fetched_take_no_descriptor(api: ServerApi, workers: Workers) -> None:
    workers.come(0)
    channel = channel_of(api, backend_of(api), num_seeds=40, capacity=10)
    Answer(api, "start_epoch", channel=channel, epoch=0)
    before = len(os.listdir("/proc/self/fd"))
    assert workers.work() == 10 and len(os.listdir("/proc/self/fd")) < before + 5
    assert [batch_of(Answer(api, "fetch", channel=channel).value) for _ in range(10)] == [(0, batch) for batch in range(10)]


def over(api: ServerApi, client: str) -> DistServer:
    """The server as a client's script sees it."""
    return DistServer.over(lambda name, args, convert: convert(Answer(api, name, client, **args).value))


def test_exit_gives_up_what_is_this_clients_alone(api: ServerApi, workers: Workers) -> None:
    awaited = Answer(api, "init_backend", key="never", config=CONFIG)
    produced = Answer(api, "create", worker_key="never", config=CONFIG, node_type=None, ids=np.arange(3), capacity=1)
    assert over(api, "a").exit() is False
    for answer in (awaited, produced):
        with pytest.raises(PlanError, match="given up while it was awaited"):
            _ = answer.value
    workers.come(0)
    backend = backend_of(api)
    shared, own = channel_of(api, backend), channel_of(api, backend, key="own")
    assert channel_of(api, backend, "b") == shared
    for channel in (shared, own):
        Answer(api, "start_epoch", channel=channel, epoch=0)
    mine, theirs = Answer(api, "fetch", channel=shared), Answer(api, "fetch", "b", channel=shared)
    assert over(api, "a").exit() is False and over(api, "a").exit() is False
    assert mine.value == Answer(api, "fetch", channel=own).value == (None, True)
    workers.work()
    assert batch_of(theirs.value) == (0, 0), "another client's epoch goes on"
    assert [kind for _, kind, _ in workers.sent].count("close") == 1
    assert channel_of(api, backend_of(api), key="own") not in (own, shared), "and whoever has exited may come back"


def test_exit_says_whether_the_server_ends_with_its_clients(ring_store: Store, workers: Workers) -> None:
    api = opened(ring_store, workers, ends_with_clients=True)
    assert over(api, "a").exit() is True
    api.close()


def test_shutdown_warns_of_live_backends_and_clears(api: ServerApi, workers: Workers, caplog: pytest.LogCaptureFixture) -> None:
    workers.come(0)
    backend_of(api, key="valid")
    channel, theirs = channel_of(api, backend_of(api)), channel_of(api, backend_of(api, "b", "theirs"), "b")
    assert over(api, "a").shutdown() is None  # type: ignore[func-returns-value]
    assert [record.getMessage() for record in caplog.records if "shutdown" in record.getMessage()] == [
        "DistServer.shutdown: 2 sampling backends of this client were alive, and are given up"
    ]
    caplog.clear()
    over(api, "a").shutdown()
    assert not caplog.records
    for key in ("train", "valid"):
        assert backend_of(api, "c", key, batch_size=7), "the name is free again"
    assert Answer(api, "fetch", channel=channel).value == (None, True)
    Answer(api, "start_epoch", "b", channel=theirs, epoch=0)
    waiting = Answer(api, "fetch", "b", channel=theirs)
    workers.work()
    assert batch_of(waiting.value) == (0, 0)


def test_methods_speak_to_the_desk(api: ServerApi, workers: Workers) -> None:
    """Every method's name and arguments are those of a call that there is."""
    workers.come(0)
    options = SimpleNamespace(worker_key=None, buffer_capacity=2)
    config = SimpleNamespace(**CONFIG, sampling_type=SimpleNamespace(name="NODE"), with_neg=False)
    seeds = SimpleNamespace(node=torch.arange(4), input_type=None)
    server = DistServer.over(lambda name, args, convert: convert(asked(api, name, **args)))
    started = SimpleNamespace(backend_key="k", sampling_config=config, sampler_options=None)
    backend = server.init_sampling_backend(started)  # type: ignore[arg-type]
    request = SimpleNamespace(backend_id=backend, worker_key="w", sampler_input=seeds, sampling_config=config, buffer_capacity=1)
    channel = server.register_sampling_input(request)  # type: ignore[arg-type]
    assert server.create_sampling_producer(seeds, config, options) != channel
    server.start_new_epoch_sampling(channel, 0)
    server.destroy_sampling_input(channel)
    server.destroy_sampling_producer(channel)
    assert server.fetch_one_sampled_message(channel) == (None, True) and len(server.get_free_ports(2)) == 2
    with pytest.raises(PlanError, match="only neighbourhoods of nodes"):
        server.create_sampling_producer(seeds, SimpleNamespace(**{**vars(config), "with_neg": True}), options)

"""``DistDataset`` of values: what a script builds in memory samples like the same graph of a store."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing
from torch_geometric.data import Data

import gnnkit
from gnnkit.distributed import DistDataset, RangePartitionBook, init_client, init_server, shutdown_client
from gnnkit.distributed.dataset_values import Meeting, store_of_parts
from gnnkit.errors import DatasetError, GnnkitError, PlanError
from gnnkit.runtime.process_status import pid_space
from tests.distributed.loading import NUM_NODES, ring, seeds_of, stored, typed_ring
from tests.helpers.batches import same
from tests.helpers.glt import needs_glt, of_glt
from tests.helpers.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("home")]
EVERYTHING = torch.arange(NUM_NODES)
DEADLINE_S = 120


def make(dataset: Any, **options: Any) -> Any:
    return gnnkit.distributed.DistNeighborLoader(dataset, [2, 2], **{"batch_size": 7, "num_workers": 0, **options})


def by_init(data: Any, edge_dir: Any) -> DistDataset:
    """A dataset made of the values of a PyG object, its edges in another order."""
    typed = not isinstance(data, Data)
    dataset, order = DistDataset(edge_dir=edge_dir), torch.randperm(2 * NUM_NODES, generator=torch.Generator().manual_seed(0))

    def of(stores: Any, name: str) -> Any:
        return {store._key: store[name] for store in stores} if typed else data[name]

    edges = of(data.edge_stores, "edge_index")
    dataset.init_graph(
        {t: e[:, order] for t, e in edges.items()} if typed else edges[:, order].numpy(),
        dict.fromkeys(edges, order) if typed else order,
        graph_mode="CPU",
    )
    dataset.init_node_features(of(data.node_stores, "x"), with_gpu=False)
    dataset.init_edge_features(of(data.edge_stores, "edge_attr"), with_gpu=False)
    dataset.init_node_labels(of(data.node_stores, "y"))
    return dataset


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("kind", ["plain", "typed"])
def test_batches_are_those_of_a_store(kind: str, edge_dir: Any, tmp_path: Path) -> None:
    data: Any = ring() if kind == "plain" else typed_ring()
    seeds: Any = EVERYTHING if kind == "plain" else ("user", EVERYTHING)
    dataset = by_init(data, edge_dir)
    assert "values" in repr(dataset) and not dataset.has_edge_weights
    theirs = DistDataset.from_store(stored(data, tmp_path, edge_dir=edge_dir, with_edge=True))
    for options in ({}, {"num_workers": 1}):
        ours, wanted = make(dataset, input_nodes=seeds, **options), make(theirs, input_nodes=seeds)
        for batch, other in zip(ours, wanted, strict=True):
            same(batch, other)
        ours.shutdown()
        wanted.shutdown()
    again = pickle.loads(pickle.dumps(dataset))
    assert again.store is not None and again.store.path == dataset.store.path


def part_of(data: Any, part: int, edge_dir: Any = "out", **given: Any) -> DistDataset:
    """What one of two ranks holds of a PyG object: nodes of its parity, edges from these, and all books."""
    typed = not isinstance(data, Data)
    edges = {store._key: store for store in data.edge_stores}

    def of(found: dict[Any, Any]) -> Any:
        return found if typed else next(iter(found.values()))

    node_books = {store._key: torch.arange(store.num_nodes) % 2 for store in data.node_stores}
    edge_books = {t: store.edge_index[0] % 2 for t, store in edges.items()}
    own = {t: (book == part).nonzero().view(-1).flip(0) for t, book in edge_books.items()}
    labels = {store._key: store.y for store in data.node_stores}
    dataset = DistDataset(2, part, None, None, None, of(labels), of(node_books), of(edge_books), edge_dir=edge_dir)
    weights = {t: ids % 2 for t, ids in own.items()}
    pairs = {t: store.edge_index[:, own[t]] for t, store in edges.items()}
    dataset.init_graph(of(pairs), of(own), of(weights) if given.get("weighted") else None, graph_mode="CPU")
    features = {store._key: store.x[part::2] for store in data.node_stores}
    dataset.init_node_features(of(features), with_gpu=False)
    places = {t: torch.empty(len(edge_books[t]), dtype=torch.long).index_copy(0, ids, torch.arange(len(ids))) for t, ids in own.items()}
    dataset.init_edge_features(of({t: store.edge_attr[own[t]] for t, store in edges.items()}), of(places), with_gpu=False)
    return dataset


def topology(layout: str) -> tuple[Any, Any]:
    v = torch.arange(NUM_NODES)
    edges = torch.stack([v.repeat_interleave(2), (v.repeat_interleave(2) + torch.tensor([1, 2]).repeat(NUM_NODES)) % NUM_NODES])
    indptr = torch.arange(0, 2 * NUM_NODES + 1, 2)
    return edges, (indptr, edges[1]) if layout == "CSR" else edges


@pytest.mark.parametrize("how", [pytest.param("constructor", marks=needs_glt), "CSR", "features by index"])
def test_every_way_of_giving_values(how: str) -> None:
    edges, given = topology("CSR" if how == "CSR" else "COO")
    x, order = torch.arange(float(NUM_NODES))[:, None], torch.randperm(NUM_NODES, generator=torch.Generator().manual_seed(1))
    place = torch.empty_like(order)
    place[order] = torch.arange(NUM_NODES)
    if how == "constructor":
        topo = of_glt("data.Topology")(edge_index=edges)
        graph, feature = of_glt("data.Graph")(topo, "CPU"), of_glt("data.Feature")(x[order], place, with_gpu=False)
        book = RangePartitionBook([(0, NUM_NODES)], 0)
        dataset = DistDataset(1, 0, graph, feature, None, torch.arange(NUM_NODES), book, None)
    else:
        dataset = DistDataset()
        dataset.init_graph(given, layout="CSR" if how == "CSR" else "COO", graph_mode="CPU")
        dataset.init_node_features(x[order], place, with_gpu=False)
        dataset.init_node_labels(torch.arange(NUM_NODES))
    loader = make(dataset, input_nodes=EVERYTHING)
    for batch in loader:
        assert batch.x[:, 0].long().equal(batch.node) and batch.y.equal(batch.node)
        assert set(((batch.node[batch.edge_index[0]] - batch.node[batch.edge_index[1]]) % NUM_NODES).tolist()) <= {1, 2}
    loader.shutdown()


def test_weights_and_no_weights() -> None:
    edges, _ = topology("COO")
    dataset = DistDataset()
    dataset.init_graph(edges, edge_weights=torch.arange(2 * NUM_NODES) % 2, graph_mode="CPU")
    assert dataset.has_edge_weights
    loader = gnnkit.distributed.DistNeighborLoader(dataset, [1], EVERYTHING, batch_size=40, with_weight=True, num_workers=0)
    for batch in loader:
        assert ((batch.node[batch.edge_index[0]] - batch.node[batch.edge_index[1]]) % NUM_NODES == 2).all(), "the others have weight 0"
    loader.shutdown()


def test_a_random_split_is_the_objects_own_and_a_store_of_values_has_it(tmp_path: Path) -> None:
    dataset = DistDataset.from_store(stored(ring(), tmp_path, 2), 1)
    own = dataset.node_ids
    for _ in range(2):
        dataset.random_node_split(0.25, 5, seed=3)
    parts: Any = dataset.train_idx, dataset.val_node_ids, dataset.test_idx
    assert [len(ids) for ids in parts] == [10, 5, 5] and torch.cat(parts).sort().values.equal(own.sort().values)  # type: ignore[union-attr]
    again = pickle.loads(pickle.dumps(dataset))
    assert again.train_idx.equal(parts[0])
    with pytest.raises(PlanError, match="servers know those of their store"):
        init_server(1, 0, dataset, f"unix:{tmp_path}/sockets", 0)
    with pytest.raises(PlanError, match="cannot be drawn"):
        dataset.random_node_split(0.9, 0.9)
    values = by_init(ring(), "out")
    before = values.store
    values.random_node_split(0, 4)
    assert before is not None and values.store is not None and values.store.path != before.path
    assert set(values.store.splits["node"]["test"].tolist()) == set(values.test_idx.tolist())  # type: ignore[union-attr]
    typed = by_init(typed_ring(), "out")
    typed.random_node_split(0.5, 0)
    assert {t: len(ids) for t, ids in typed.val_idx.items()} == {"user": 20, "item": 20}  # type: ignore[union-attr]


@pytest.mark.parametrize("count", [1, 2])
def test_servers_serve_values_and_their_split(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One server has the whole graph; of two, which do not count clients, each has a part, and they meet where clients look for them."""
    monkeypatch.setenv("GNNKIT_TOKEN", "a token of sufficient length")
    datasets = [by_init(ring(), "out")] if count == 1 else [part_of(ring(), 0), part_of(ring(), 1)]
    address, port = (f"unix:{tmp_path}/sockets", 0) if count == 1 else ("127.0.0.1", free_port())
    servers, until = [], "num_clients=1" if count == 1 else "is_dynamic=True"
    for rank, dataset in enumerate(datasets):
        dataset.random_node_split(0.5, 0)
        (tmp_path / f"{rank}.pkl").write_bytes(pickle.dumps(dataset))
    try:
        for rank in range(count):
            script = SERVER.format(count=count, rank=rank, pickled=str(tmp_path / f"{rank}.pkl"), address=address, port=port, until=until)
            servers.append(subprocess.Popen([sys.executable, "-W", "ignore", "-c", script]))
        init_client(count, 1, 0, address, port)
        # graphlearn-torch's own call; without its library it is refused, unless another test of this process has imported it all the same.
        with pytest.raises((RuntimeError, PlanError), match="RPC has not been initialized|needs graphlearn-torch's native library"):
            gnnkit.distributed.barrier()
        options = gnnkit.distributed.RemoteDistSamplingWorkerOptions(list(range(count)), master_addr="localhost", master_port=1)
        loader = make(None, num_workers=None, input_nodes=gnnkit.distributed.Split.train, worker_options=options)
        assert sorted(seeds_of(loader)) == sorted(int(v) for dataset in datasets for v in dataset.train_idx)  # type: ignore[union-attr]
        loader.shutdown()
        shutdown_client()
        assert [server.wait(60) for server in servers] == [0] * count
    finally:
        for server in servers:
            server.kill()
            server.wait()


SERVER = """
import pickle
from gnnkit.distributed import init_server, wait_and_shutdown_server
init_server({count}, {rank}, pickle.load(open({pickled!r}, "rb")), {address!r}, {port}, {until})
wait_and_shutdown_server()
"""


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    edges, _ = topology("COO")
    book = (torch.arange(NUM_NODES) % 2).long()
    part = DistDataset(2, 1, node_pb=book)
    part.init_graph(edges[:, ::2], graph_mode="CPU")
    for wrong, message in ((DistDataset(), "without a graph"), (part, "part 1 of 2 as values, and the other parts are elsewhere")):
        with pytest.raises(PlanError, match=message):
            make(wrong, input_nodes=EVERYTHING)
    wrong = DistDataset()
    wrong.init_graph(edges, torch.arange(1, 2 * NUM_NODES + 1), graph_mode="CPU")
    with pytest.raises(PlanError, match="not the numbers from 0 to 79"):
        make(wrong, input_nodes=EVERYTHING)
    wrong.init_graph(edges, graph_mode="CPU")
    wrong.init_edge_features(torch.zeros(2 * NUM_NODES - 1, 1), with_gpu=False)
    with pytest.raises(DatasetError, match="has 79 rows, but there are 80 edges"):
        make(wrong, input_nodes=EVERYTHING)
    for whole in (ring(), stored(ring(), tmp_path)):
        with pytest.raises(PlanError, match="partition='given' keeps the parts of a dataset that has some, and this one has none"):
            gnnkit.partition(whole, 2, "given", out=tmp_path / "parts")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="layout must be"):
        DistDataset().init_graph(edges, layout="LIL")
    with pytest.raises(PlanError, match="edge_dir, 'in' or 'out', got True"):
        DistDataset(1, 0, None, None, None, None, None, None, None, None, True)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"2 arguments after input_nodes are given without their names, 7 first\n  -> .*batch_size, GiGL's"):
        gnnkit.distributed.DistNeighborLoader(by_init(ring(), "out"), [2], EVERYTHING, 7, True)


BESIDE = """
import torch
import torch.multiprocessing
import gnnkit.distributed as glt
from graphlearn_torch.data import Feature, Graph, Topology
from graphlearn_torch.distributed import DistDataset

v = torch.arange(40)
edges = torch.stack([v.repeat(2), torch.cat([(v + 1) % 40, (v + 2) % 40])])
first = glt.DistDataset()
first.init_graph(edges, graph_mode="CPU")
first.init_node_features(v.float()[:, None], with_gpu=False)
first.init_node_labels(v)
graph, feature = Graph(Topology(edge_index=edges), "CPU"), Feature(v.float()[:, None], with_gpu=False)
second = glt.DistDataset(1, 0, graph, feature, None, v, torch.zeros(40))
for dataset, workers in ((first, 0), (second, 1)):
    assert isinstance(dataset, DistDataset) and isinstance(dataset.get_graph(), Graph)
    loader = glt.DistNeighborLoader(dataset, [2, 2], v, batch_size=7, num_workers=workers)
    for batch in loader:
        assert batch.x[:, 0].long().equal(batch.node) and batch.y.equal(batch.node)
    loader.shutdown()
"""


@pytest.mark.glt
def test_beside_the_native_library_they_are_graphlearn_torchs_too(tmp_path: Path, glt_interpreter: Path) -> None:
    own = {**os.environ, "GNNKIT_HOME": str(tmp_path)}
    done = subprocess.run([str(glt_interpreter), "-W", "ignore", "-c", BESIDE], env=own, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]


# In spawned children, as graphlearn-torch's scripts train ---------------------------------------------------------------------


def train_in_a_child(rank: int, datasets: dict[str, Any], folder: str, port: int) -> None:
    """One of two trainers, on one data set after the other."""
    gnnkit.distributed.init_worker_group(world_size=2, rank=rank, group_name="trainers")
    for kind, dataset in datasets.items():
        (Path(folder) / kind).mkdir(exist_ok=True)
        train_on(rank, dataset, Path(folder) / kind, port)


def train_on(rank: int, dataset: Any, folder: Path, port: int) -> None:
    """Every loader with a sampling process of its own, and graphlearn-torch's options."""
    distributed = gnnkit.distributed
    own, edges = EVERYTHING.split(NUM_NODES // 2)[rank], ring().edge_index.split(NUM_NODES, dim=1)[rank]

    def options() -> Any:
        return distributed.MpDistSamplingWorkerOptions(num_workers=1, master_addr="localhost", master_port=port, channel_size="16MB")

    loaders = [
        distributed.DistNeighborLoader(dataset, [2, 2], own, batch_size=7, shuffle=True, worker_options=options()),
        distributed.DistSubGraphLoader(dataset, own, [2], batch_size=7, worker_options=options()),
        distributed.DistLinkNeighborLoader(dataset, [2], 7, edges, neg_sampling="binary", worker_options=options()),
    ]
    for loader, kind in zip(loaders, ("NODE", "SUBGRAPH", "LINK"), strict=True):
        assert isinstance(loader, distributed.DistLoader) and loader.sampling_type.name == loader.sampling_config.sampling_type.name == kind
        assert loader._is_mp_worker and not loader._is_remote_worker and loader._with_channel and loader.data is dataset
        assert (loader.worker_options.worker_world_size, loader.worker_options.worker_ranks) == (2, [rank])
        assert (loader.batch_size, loader.drop_last, loader.num_neighbors, loader.edge_dir) == (
            7,
            False,
            loader.sampling_config.num_neighbors,
            "out",
        )
    assert loaders[2].neg_sampling.is_binary() and loaders[2].sampling_config.with_neg
    found: list[Any] = [[], [], []]
    for kind, loader in enumerate(loaders):
        for batch in loader:
            assert batch.x[:, 0].long().equal(batch.node)
            assert kind != 1 or batch.node[batch.mapping].equal(batch.batch)
            found[kind] += (batch.node[batch.edge_label_index][:, : len(batch.input_id)].T if kind == 2 else batch.batch).tolist()
    assert distributed.get_context().rank == rank
    torch.save(found, folder / f"{rank}.pt")
    (folder / f"{rank}.store").write_text(str(dataset.store.path))
    loaders[1].shutdown()  # the others end with their process


def test_loaders_in_spawned_children(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Of values that both children are handed, of a part each, and of a store."""
    whole, stored_one = by_init(ring(), "out"), DistDataset.from_store(stored(ring(), tmp_path, 2, edge_dir="out"))
    datasets = [{"values": whole, "parts": part_of(ring(), rank), "store": stored_one} for rank in range(2)]
    spawn, port = torch.multiprocessing.get_context("spawn"), free_port()
    children = [spawn.Process(target=train_in_a_child, args=(rank, datasets[rank], str(tmp_path), port)) for rank in range(2)]
    for child in children:
        child.start()
    try:
        for child in children:
            child.join(DEADLINE_S)
        assert [child.exitcode for child in children] == [0, 0], capfd.readouterr().err[-3000:]
    finally:
        for child in children:
            child.kill()
            child.join()
    for kind in datasets[0]:
        ranks = [torch.load(tmp_path / kind / f"{rank}.pt") for rank in range(2)]
        for found in range(2):
            assert sorted(ranks[0][found] + ranks[1][found]) == EVERYTHING.tolist(), kind
        assert sorted(map(tuple, ranks[0][2] + ranks[1][2])) == sorted(map(tuple, ring().edge_index.T.tolist())), kind
        assert len({(tmp_path / kind / f"{rank}.store").read_text() for rank in range(2)}) == 1, kind
    of_parts = DistDataset.from_store((tmp_path / "parts/0.store").read_text(), 1)
    assert of_parts.node_ids.sort().values.equal(EVERYTHING[1::2])  # type: ignore[union-attr]
    assert not [*(tmp_path / "home" / "stores").glob("*.parts")]
    for batch, wanted in zip(make(of_parts, input_nodes=EVERYTHING), make(by_init(ring(), "out"), input_nodes=EVERYTHING), strict=True):
        same(batch, wanted)


# Parts that ranks hold --------------------------------------------------------------------------------------------------------


def put_together(*datasets: DistDataset) -> list[Any]:
    """What each rank gets or fails with, ranks being threads that meet at a store in memory."""
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]

    def rank(number: int) -> Any:
        try:
            return store_of_parts(datasets[number], Meeting(store, number, len(datasets)))
        except GnnkitError as error:
            return error

    with ThreadPoolExecutor(len(datasets)) as ranks:
        return list(ranks.map(rank, range(len(datasets))))


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_parts_of_a_typed_graph_with_weights_and_splits(edge_dir: Any) -> None:
    """Every edge is sampled, also along "in", where half of them are not in the part of the node that owns them."""
    parts = [part_of(typed_ring(), part, edge_dir, weighted=True) for part in (1, 0)]
    for part in (*parts, pickle.loads(pickle.dumps(parts[0]))):
        part.random_node_split(0.25, 0)
        assert part.needs_others and part.has_edge_weights and {len(ids) for ids in part.train_idx.values()} == {15}
    stores = put_together(*parts, parts[1])  # two ranks of one host have the same part
    assert stores[0].path == stores[1].path == stores[2].path and stores[0].options.weight is not None
    assert set(stores[0].splits["user"]["valid"].tolist()) == {int(v) for part in parts for v in part.val_node_ids["user"]}
    of_store = DistDataset.from_store(stores[0], 1)
    assert all(ids.sort().values.equal(EVERYTHING[1::2]) for ids in of_store.node_ids.values())
    whole = by_init(typed_ring(), edge_dir)
    for batch, wanted in zip(make(of_store, input_nodes=("user", EVERYTHING)), make(whole, input_nodes=("user", EVERYTHING)), strict=True):
        for edges in batch.edge_stores:
            assert edges.pop("edge_weight").long().equal(edges.e_id % 2)
        same(batch, wanted)


def test_parts_that_do_not_fit_are_an_error_at_every_rank() -> None:
    first, second = part_of(ring(), 0), part_of(ring(), 1)
    for given, message in (
        ((first, first), "the parts [0, 0] of 2, and no rank has part 1"),
        ((first, part_of(ring(), 1, "in")), "edge_dir ['out', 'in']"),
    ):
        assert all(message in str(error) and isinstance(error, PlanError) for error in put_together(*given))
    second.init_graph(ring().edge_index[:, :3], torch.tensor([1, 3, 4]), graph_mode="CPU")
    wrong, heard = put_together(first, second)
    assert "for id" in str(wrong) and "rank 0 could not go on" in str(heard) and wrong.message in heard.message
    with pytest.raises(PlanError, match="no node_pb says which rows are its own"):
        DistDataset(2, 0).init_node_features(torch.zeros(20, 1), with_gpu=False)
    with pytest.raises(PlanError, match="owns 20 ids is given 7 rows"):
        first.init_node_features(torch.zeros(7, 1), with_gpu=False)


def test_a_rank_that_is_gone_is_not_waited_for() -> None:
    store, gone = torch.distributed.HashStore(), {"pid": os.getpid(), "ticks": 1, "space": pid_space()}  # type: ignore[attr-defined]
    store.set("rank/1", json.dumps({**gone, "part": 1, "num_parts": 2, "edge_dir": "out"}))
    with pytest.raises(DatasetError, match="rank 1 ended before the parts"):
        store_of_parts(part_of(ring(), 0), Meeting(store, 0, 2))

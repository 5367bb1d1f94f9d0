"""Loaders of links: what may be given, which negatives come, which edges are left out, and that all backends give the same batches."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling
from torch_geometric.transforms import RandomLinkSplit

import gnnkit
from gnnkit import Colocated, GraphLoader, GraphStore, InProcess, LoaderPlan
from gnnkit.errors import PlanError, SamplingError
from tests import reference_links, reference_sampler
from tests.helpers.batches import same, to_pyg, to_reference
from tests.helpers.chi_square import check_counts, check_independent
from tests.helpers.graphs import ArraySource, homogeneous_source, random_edges
from tests.helpers.link_batches import check, contents
from tests.loader.graphs import NUM_NODES, make, plain, seeds, typed

TO = ("node", "to", "node")
ON, CITES, HAS = ("tag", "on", "paper"), ("paper", "cites", "paper"), ("paper", "has", "tag")
SOME = torch.tensor([[3, 5, 3, 99, 0], [1, 5, 2, 4, 98]])


def links_of(batch: Any, edge_type: Any = None) -> torch.Tensor:
    """A batch's pairs in the dataset's ids."""
    if edge_type is None:
        return batch.n_id[batch.edge_label_index]
    ends = zip(batch[edge_type].edge_label_index, (edge_type[0], edge_type[2]), strict=True)
    return torch.stack([batch[node_type].n_id[places] for places, node_type in ends])


def edges_of(batch: Any) -> set[tuple[int, int]]:
    """A batch's edges in the dataset's ids."""
    return set(map(tuple, batch.n_id[batch.edge_index].T.tolist()))


# What may be given ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given", [SOME, SOME.int(), SOME.numpy(), SOME.tolist(), (TO, SOME)], ids=["tensor", "int32", "array", "lists", "typed"]
)
def test_links_of_a_plain_graph(given: Any) -> None:
    with make(edge_label_index=given, batch_size=2) as loader:
        batches = list(loader)
    assert torch.cat([links_of(batch) for batch in batches], 1).equal(SOME) and seeds(batches) == [0, 1, 2, 3, 4]
    for batch in batches:
        assert "batch_size" not in batch and "edge_label" not in batch
        count = batch.num_sampled_nodes[0]
        assert batch.n_id[:count].equal(links_of(batch).unique()) and sum(batch.num_sampled_nodes) == batch.num_nodes


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("edge_type", [ON, CITES, HAS])
def test_all_edges_of_a_type_in_their_order(edge_type: Any, edge_dir: str) -> None:
    data = typed()
    for backend in (InProcess(2), Colocated(1)) if (edge_type, edge_dir) == (ON, "in") else (InProcess(2),):
        with make(data, edge_label_index=edge_type, edge_dir=edge_dir, batch_size=64, backend=backend) as loader:
            found = torch.cat([links_of(batch, edge_type) for batch in loader], 1)
        assert found.equal(data[edge_type].edge_index)


def test_all_edges_of_stores(tmp_path: Path) -> None:
    source = homogeneous_source(random_edges(np.random.default_rng(0), 50, 50, 200), 50)
    common: dict[str, Any] = {"num_neighbors": [2], "batch_size": 64, "progress": False, "store_dir": tmp_path}
    with GraphLoader.from_source(source, edge_label_index=TO, num_parts=3, partition="random", **common) as loader:
        found = torch.cat([links_of(batch) for batch in loader], 1)
        assert found.equal(torch.from_numpy(source.edges[TO]))
    with GraphLoader.from_source(source, input_nodes=None, **common) as nodes, pytest.raises(PlanError, match="without the edges' ids"):
        nodes.for_links(TO)


def split_source() -> ArraySource:
    """A graph with splits of links: independent negatives, and negatives of each link."""
    rng = np.random.default_rng(4)
    source = homogeneous_source(random_edges(rng, 30, 30, 120), 30, x=rng.standard_normal((30, 2)).astype(np.float32))

    def links(count: int) -> Any:
        return rng.integers(0, 30, (2, count))

    source.link_splits = {
        TO: {
            "train": {"edge_label_index": links(20), "edge_label": np.arange(20) % 3},
            "valid": {"edge_label_index": links(7), "edge_label": np.arange(7) / 2, "neg_edge_index": links(5)},
            "test": {
                "edge_label_index": links(6),
                "src_neg_index": rng.integers(0, 30, (6, 3)),
                "dst_neg_index": rng.integers(0, 30, (6, 4)),
            },
        }
    }
    return source


@pytest.fixture(scope="module")
def split_store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return gnnkit.partition(split_source(), 2, "random", out=tmp_path_factory.mktemp("splits") / "store", with_edge=True)


def on_splits(split_store: Any, **options: Any) -> GraphLoader:
    options = {"num_neighbors": [2, 2], "batch_size": 4, "progress": False, "edge_label_index": "train", **options}
    return GraphLoader.from_store(split_store.path, **options)


def test_splits_and_their_own_negatives(split_store: Any) -> None:
    splits = split_source().link_splits[TO]
    with on_splits(split_store, shuffle=False) as loader:
        found = list(loader)
        assert torch.cat([links_of(batch) for batch in found], 1).tolist() == splits["train"]["edge_label_index"].tolist()
        assert torch.cat([batch.edge_label for batch in found]).tolist() == splits["train"]["edge_label"].tolist()
        valid = list(loader.for_links("valid"))
        whole = np.concatenate([splits["valid"]["edge_label_index"], splits["valid"]["neg_edge_index"]], 1)
        assert torch.cat([links_of(batch) for batch in valid], 1).tolist() == whole.tolist()
        # 0 is to mean a negative, so labels that start from 0 are one higher.
        assert torch.cat([batch.edge_label for batch in valid]).tolist() == [*(np.arange(7) / 2 + 1), 0, 0, 0, 0, 0]
        for batch in loader.for_links("test", batch_size=3):
            where = batch.input_id.numpy()
            for name, key in (("src_neg_index", "src_neg_index"), ("dst_neg_index", "dst_neg_index")):
                assert batch.n_id[batch[name]].tolist() == splits["test"][key][where].tolist()
            ends = torch.stack([batch.src_index, batch.dst_pos_index])
            assert batch.n_id[ends].tolist() == splits["test"]["edge_label_index"][:, where].tolist()
        plain_valid = list(loader.for_links("valid", neg_sampling=None))
        assert torch.cat([links_of(batch) for batch in plain_valid], 1).tolist() == splits["valid"]["edge_label_index"].tolist()
        drawn = next(iter(loader.for_links((TO, "valid"), neg_sampling="triplet", neg_amount=5)))
        assert drawn.dst_neg_index.shape == (4, 5) and drawn.edge_label.tolist() == [0, 0.5, 1, 1.5]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.bool])
def test_labels_that_cannot_be_one_higher_are_widened(dtype: torch.dtype) -> None:
    """Or the largest one would be taken for a negative."""
    label = torch.tensor([0, 1, 0, 1, 1], dtype=dtype) * (1 if dtype == torch.bool else torch.iinfo(dtype).max)
    with make(edge_label_index=SOME, edge_label=label, neg_sampling="binary", batch_size=5) as loader:
        (batch,) = loader
    assert batch.edge_label.tolist() == [*(label.long() + 1).tolist(), 0, 0, 0, 0, 0]


def test_a_splits_own_pairs_of_negatives_have_no_times(tmp_path: Path) -> None:
    source = homogeneous_source(np.array([[0, 1], [1, 2]]), 3, time=np.arange(3))
    pairs = np.array([[0, 1], [1, 2]])
    source.link_splits = {TO: {"valid": {"edge_label_index": pairs, "edge_label_time": np.arange(2), "neg_edge_index": pairs}}}
    store = gnnkit.partition(source, 1, out=tmp_path / "store", time_attr="time")
    for words in ({}, {"edge_label_time": [1, 2]}):
        with pytest.raises(PlanError, match="negatives of the split 'valid' have no times"):
            on_splits(store, edge_label_index="valid", time_attr="time", **words)
    with on_splits(store, edge_label_index="valid", time_attr="time", neg_sampling=None) as loader:
        assert torch.cat([batch.edge_label_time for batch in loader]).tolist() == [0, 1]


def test_the_train_split_is_shuffled(split_store: Any) -> None:
    with on_splits(split_store, batch_size=3) as loader:
        first, second = seeds(loader), seeds(loader)
    assert first != second and sorted(first) == sorted(second) == list(range(20))


def test_what_random_link_split_leaves_behind() -> None:
    """Its attributes are none of the graph's: a batch says its own, and none where there is none."""
    train, _, test = RandomLinkSplit(num_val=0.1, num_test=0.1)(plain())
    with make(train, edge_label_index=train.edge_label_index, neg_sampling="binary") as loader:
        batch = next(iter(loader))
        assert batch.edge_label.tolist() == [1.0] * 7 + [0.0] * 7 and batch.edge_label_index.shape == (2, 14)
    with make(test, edge_label_index=test.edge_label_index, edge_label=test.edge_label) as loader:
        assert torch.cat([batch.edge_label for batch in loader]).equal(test.edge_label)
    with make(train, edge_label_index=train.edge_label_index) as loader:
        assert "edge_label" not in next(iter(loader))


def test_siblings_of_a_loader_of_nodes() -> None:
    with make(neg_sampling="binary", edge_label_index=SOME) as links, make() as nodes:
        for batch, wanted in zip(nodes.for_links(SOME, neg_sampling="binary"), links, strict=True):
            same(batch, wanted)
        assert [batch.batch_size for batch in links.for_split([4, 5])] == [2]
        assert len(nodes.for_links(SOME[:, :0])) == 0


def test_sample_takes_links() -> None:
    with make(edge_label_index=SOME, neg_sampling="triplet", neg_amount=2) as loader:
        batch = loader.sample([[7, 8, 7], [9, 9, 2]])
        assert batch.n_id[batch.src_index].tolist() == [7, 8, 7] and batch.n_id[batch.dst_pos_index].tolist() == [9, 9, 2]
        assert batch.dst_neg_index.shape == (3, 2)
        same(batch, loader.sample(torch.tensor([[7, 8, 7], [9, 9, 2]])))
        with pytest.raises(PlanError, match="source 100"):
            loader.sample([[100], [0]])


def test_pygs_record_and_words_mean_the_same() -> None:
    weight = torch.arange(NUM_NODES).float()
    for record, words in (
        (NegativeSampling("binary", 1.5), {"neg_sampling": "binary", "neg_amount": 1.5}),
        ({"mode": "triplet", "amount": 2}, {"neg_sampling": "triplet", "neg_amount": 2}),
        (NegativeSampling("triplet", dst_weight=weight), {"neg_sampling": {"mode": "triplet", "dst_weight": weight}}),
    ):
        with make(edge_label_index=SOME, neg_sampling=record) as first, make(edge_label_index=SOME, **words) as second:
            assert first.plan == second.plan
            same(first.peek(), second.peek())


def test_the_plan_says_it_all(split_store: Any, tmp_path: Path) -> None:
    labels, weight = torch.arange(5) % 2, np.arange(30.0)
    given = SOME % 30
    for options in (
        {"edge_label_index": given, "edge_label": labels, "neg_sampling": {"mode": "binary", "src_weight": weight}, "neg_strict": True},
        {"edge_label_index": "valid"},
        {"edge_label_index": TO, "neg_sampling": "triplet", "neg_amount": 3, "exclude_edges": "reverse"},
    ):
        with on_splits(split_store, **options) as loader:
            loader.plan.save(tmp_path / "plan.json")
            assert LoaderPlan.load(tmp_path / "plan.json") == loader.plan
            with GraphLoader.from_plan(tmp_path / "plan.json", progress=False) as again:
                for batch, wanted in zip(again, loader, strict=True):
                    same(batch, wanted)


# Backends -------------------------------------------------------------------------------------------------------------------

KINDS: dict[str, dict[str, Any]] = {
    "binary, strict": {"edge_label_index": TO, "neg_sampling": "binary", "neg_strict": True, "exclude_edges": "reverse"},
    "triplet": {"edge_label_index": "train", "neg_sampling": "triplet", "neg_amount": 2, "exclude_edges": "self", "shuffle": True},
    "own pairs": {"edge_label_index": "valid"},
    "own targets": {"edge_label_index": "test", "disjoint": True},
}


@pytest.fixture(scope="module")
def expected(split_store: Any) -> dict[str, list[Any]]:
    found = {}
    for name, options in KINDS.items():
        with on_splits(split_store, backend=InProcess(1), **options) as loader:
            found[name] = list(loader)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("backend", [Colocated(2), GraphStore(1)], ids=["Colocated", "GraphStore"])
def test_every_backend(split_store: Any, expected: dict[str, list[Any]], backend: Any) -> None:
    first = next(iter(KINDS))
    with on_splits(split_store, backend=backend, **KINDS[first]) as loader:
        for name, options in KINDS.items():
            rest = {key: value for key, value in options.items() if key != "edge_label_index"}
            with loader.for_links(options["edge_label_index"], **rest) as sibling:
                for batch, wanted in zip(sibling, expected[name], strict=True):
                    same(batch, wanted)


def test_ranks_share_a_list_of_batches(split_store: Any) -> None:
    with on_splits(split_store, shuffle=False, batch_size=3, rank=1, world_size=2, neg_sampling="binary") as loader:
        batches = list(loader)
    assert [batch.seed_mask.tolist() for batch in batches] == [[True] * 3] * 3 + [[False] * 3]
    assert seeds(batches)[:9] == [3, 4, 5, 9, 10, 11, 15, 16, 17]


# Negatives ------------------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.data())
def test_strict_negatives_are_no_edges(data: st.DataObject) -> None:
    """Against every edge of a dense graph; and where a source leads everywhere, an error that says so."""
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    count = data.draw(st.integers(2, 8))
    dense = np.argwhere(rng.random((count, count)) < data.draw(st.sampled_from([0.5, 0.9, 0.97]))).T.reshape(2, -1)
    if not dense.shape[1]:
        return
    graph = Data(edge_index=torch.from_numpy(dense), num_nodes=count)
    edges = set(map(tuple, dense.T.tolist()))
    for mode in ("binary", "triplet"):
        with make(graph, edge_label_index=TO, neg_sampling=mode, neg_amount=2, neg_strict=True, num_neighbors=[1], batch_size=9) as loader:
            try:
                for batch in loader:
                    if mode == "binary":
                        found = links_of(batch)[:, len(batch.input_id) :].T
                    else:
                        found = torch.stack([batch.n_id[batch.src_index].repeat(2), batch.n_id[batch.dst_neg_index].T.ravel()]).T
                    assert not edges & set(map(tuple, found.tolist()))
            except SamplingError as error:
                source = int(str(error).split("node ")[1].split(":")[0])
                assert all((source, target) in edges for target in range(count))


@pytest.mark.parametrize("weighted", [False, True])
def test_negatives_are_spread_over_all_nodes(weighted: bool) -> None:
    graph = Data(edge_index=torch.zeros((2, 1), dtype=torch.long), num_nodes=23)
    weight = torch.arange(23).float() if weighted else None
    share = np.arange(23) / np.arange(23).sum() if weighted else None
    links = torch.zeros((2, 4000), dtype=torch.long)
    binary = {"mode": "binary", "amount": 1, "src_weight": weight, "dst_weight": weight}
    with make(graph, edge_label_index=links, neg_sampling=binary, num_neighbors=[0], batch_size=1000) as loader:
        sources, targets = torch.cat([links_of(batch)[:, 1000:] for batch in loader], 1).numpy()
    check_counts(np.bincount(sources, minlength=23), share)
    check_counts(np.bincount(targets, minlength=23), share)
    if share is None:
        check_independent(sources, targets, 23)
    triplet = {"mode": "triplet", "amount": 2, "dst_weight": weight}
    with make(graph, edge_label_index=links, neg_sampling=triplet, num_neighbors=[0], batch_size=1000, seed=1) as loader:
        targets = torch.cat([batch.n_id[batch.dst_neg_index].ravel() for batch in loader]).numpy()
    check_counts(np.bincount(targets, minlength=23), share)


def test_strict_negatives_are_spread_over_what_is_left() -> None:
    """Also where nearly every draw is an edge: of 60 targets three are free."""
    free = [7, 33, 58]
    edges = torch.tensor([[0, target] for target in range(60) if target not in free]).T
    graph = Data(edge_index=edges, num_nodes=60)
    links = torch.zeros((2, 1500), dtype=torch.long)
    with make(graph, edge_label_index=links, neg_sampling="triplet", neg_strict=True, num_neighbors=[0], batch_size=500) as loader:
        targets = torch.cat([batch.n_id[batch.dst_neg_index] for batch in loader])
    assert set(targets.tolist()) == set(free)
    check_counts(torch.bincount(targets)[free])


def test_a_source_that_leads_everywhere() -> None:
    graph = Data(edge_index=torch.tensor([[4] * 9, list(range(9))]), num_nodes=9)
    with (
        make(graph, edge_label_index=[[4], [0]], neg_sampling="triplet", neg_strict=True) as loader,
        pytest.raises(SamplingError, match=r"node 4: it has an edge \('node', 'to', 'node'\) to every node"),
    ):
        next(iter(loader))


# Edges left out -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("exclude", ["self", "reverse"])
def test_links_are_left_out_of_what_is_sampled(exclude: str, edge_dir: str) -> None:
    """Of an undirected graph, with every neighbour taken: nothing else is missing, and counts say what is left."""
    rng = np.random.default_rng(2)
    one_way = random_edges(rng, 40, 40, 150)
    graph = Data(edge_index=torch.from_numpy(np.concatenate([one_way, one_way[::-1]], 1)), num_nodes=40)
    common: dict[str, Any] = {
        "edge_label_index": graph.edge_index[:, :60],
        "num_neighbors": [-1, -1],
        "edge_dir": edge_dir,
        "batch_size": 5,
    }
    with make(graph, exclude_edges=exclude, **common) as loader, make(graph, **common) as everything:
        for batch, whole in zip(loader, everything, strict=True):
            sources, targets = links_of(batch).tolist()
            pairs = set(zip(sources, targets, strict=True))
            gone = pairs | ({(t, s) for s, t in pairs} if exclude == "reverse" else set())
            gone = gone if edge_dir == "in" else {(t, s) for s, t in gone}  # edges point from the neighbour to the seed side
            assert edges_of(whole) & gone and edges_of(batch) == edges_of(whole) - gone
            assert batch.n_id.equal(whole.n_id) and batch.num_sampled_nodes == whole.num_sampled_nodes
            kept = [edge not in gone for edge in map(tuple, whole.n_id[whole.edge_index].T.tolist())]
            first = whole.num_sampled_edges[0]
            assert batch.num_sampled_edges == [sum(kept[:first]), sum(kept[first:])]


def test_the_reverse_type_is_left_out_too() -> None:
    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes = 12, 9
    bought = torch.from_numpy(random_edges(np.random.default_rng(5), 12, 9, 50))
    data["user", "buys", "item"].edge_index, data["item", "rev_buys", "user"].edge_index = bought, bought.flip(0)
    edge_type = ("user", "buys", "item")
    with make(data, edge_label_index=(edge_type, bought[:, :20]), exclude_edges="reverse", num_neighbors=[-1, -1], batch_size=4) as loader:
        for batch in loader:
            pairs = set(map(tuple, links_of(batch, edge_type).T.tolist()))
            for a, r, b in (edge_type, ("item", "rev_buys", "user")):
                row, col = batch[a, r, b].edge_index
                found = list(zip(batch[a].n_id[row].tolist(), batch[b].n_id[col].tolist(), strict=True))
                assert found and not pairs & set(found if a == "user" else [(t, s) for s, t in found])


def test_an_edge_and_its_reverse_are_left_out_of_bidirectional_batches() -> None:
    data = plain()
    options: dict[str, Any] = {"num_neighbors": [-1, -1], "subgraph_type": "bidirectional", "batch_size": 10}
    with make(data, edge_label_index=data.edge_index[:, :50], exclude_edges="reverse", **options) as loader:
        for batch in loader:
            pairs = set(map(tuple, links_of(batch).T.tolist()))
            assert edges_of(batch) and not edges_of(batch) & (pairs | {(t, s) for s, t in pairs})


@pytest.mark.parametrize("sampler", [gnnkit.LayerWise(num_nodes=[30, 30]), gnnkit.HGT(num_samples=[30, 30])], ids=["layers", "HGT"])
def test_other_ways_of_sampling_leave_them_out_too(sampler: Any) -> None:
    """With whatever goes with an edge."""
    data = plain()
    options: dict[str, Any] = {"edge_label_index": data.edge_index[:, :50], "num_neighbors": None, "sampler": sampler, "with_edge": True}
    with make(data, exclude_edges="self", batch_size=25, **options) as loader:
        for batch in loader:
            assert not edges_of(batch) & set(map(tuple, links_of(batch).T.tolist()))
            assert batch.edge_attr.equal(data.edge_attr[batch.e_id]) and batch.num_edges == len(batch.e_id) > 20
            assert data.edge_index[:, batch.e_id].equal(batch.n_id[batch.edge_index])
            assert "edge_weight" not in batch or len(batch.edge_weight) == batch.num_edges


def test_a_splits_own_negatives_are_not_left_out(split_store: Any) -> None:
    """They are no edges to be predicted: where one is an edge of the graph, it stays."""
    source = split_source()
    edges = set(map(tuple, source.edges[TO].T.tolist()))
    splits = source.link_splits[TO]["valid"]
    with on_splits(split_store, edge_label_index="valid", exclude_edges="self", num_neighbors=[-1], batch_size=12) as loader:
        batch = loader.peek()
    positives = set(map(tuple, splits["edge_label_index"].T.tolist()))
    negatives = set(map(tuple, splits["neg_edge_index"].T.tolist()))
    assert not edges_of(batch) & positives
    assert edges_of(batch) >= (edges & negatives) - positives


# Whole epochs ---------------------------------------------------------------------------------------------------------------


def test_an_epoch_as_specified() -> None:
    """Stream, order, labels and negatives of a shuffled epoch, as the program written from the specification has them."""
    rng = np.random.default_rng(9)
    source = homogeneous_source(random_edges(rng, 40, 40, 150), 40, x=rng.standard_normal((40, 2)))
    links, labels = source.edges[TO][:, :31], rng.integers(0, 3, 31)
    options: dict[str, Any] = {"num_neighbors": [3, 2], "batch_size": 8, "shuffle": True, "seed": 11}
    negatives: dict[str, Any] = {"neg_sampling": "binary", "neg_amount": 0.5, "neg_strict": True, "exclude_edges": "self"}
    data = to_pyg(source)
    with make(data, edge_label_index=links, edge_label=labels, with_edge=True, **options, **negatives) as loader:
        loader.set_epoch(3)
        batches = list(loader)
    shifted = reference_links.labels_of(labels.tolist(), "binary")
    expected = reference_sampler.epoch_batches(31, 8, seed=11, name="link/node__to__node/ids", epoch=3, shuffle=True)
    for batch, (key, positions) in zip(batches, expected, strict=True):
        sampled = reference_links.sample(
            to_reference(source), key, TO, [tuple(links[:, p].tolist()) for p in positions], positions, {TO: [3, 2]},
            labels=[shifted[p] for p in positions], mode="binary", amount=0.5, strict=True, exclude="self",
        )  # fmt: skip
        check(contents(batch), sampled, source, TO)


def test_links_with_times() -> None:
    """Nothing later than a link is sampled around its ends, nor around those of its negatives."""
    rng = np.random.default_rng(3)
    data = plain(60, 500)
    data.time = torch.from_numpy(rng.integers(0, 100, 500))
    links, times = data.edge_index[:, :40], data.time[:40]
    for mode in ("binary", "triplet"):
        options: dict[str, Any] = {"edge_label_index": links, "edge_label_time": times, "time_attr": "time", "neg_sampling": mode}
        with make(data, num_neighbors=[-1, -1], with_edge=True, neg_amount=2, batch_size=6, **options) as loader:
            for batch in loader:
                own = times[batch.input_id]
                assert (data.time[batch.e_id] <= own[batch.batch[batch.edge_index[1]]]).all()
                assert batch.batch[batch.edge_index[0]].equal(batch.batch[batch.edge_index[1]])
                count = len(own)
                if mode == "binary":
                    assert batch.edge_label_time.equal(own[torch.arange(3 * count) % count])
                    assert batch.batch[batch.edge_label_index].equal((torch.arange(3 * count) % count).expand(2, -1))
                else:
                    assert batch.seed_time.equal(own) and "edge_label_time" not in batch
                    for name in ("src_index", "dst_pos_index"):
                        assert batch.batch[batch[name]].equal(torch.arange(count))
                    assert batch.batch[batch.dst_neg_index].equal(torch.arange(count)[:, None].expand(-1, 2))


def test_negatives_are_not_later_than_their_links() -> None:
    """Where nodes have times: alike among those that are early enough; and an error where there is none."""
    times = torch.from_numpy(np.random.default_rng(0).permutation(60))
    graph = Data(edge_index=torch.zeros((2, 1), dtype=torch.long), num_nodes=60, time=times)
    links, until = torch.zeros((2, 3000), dtype=torch.long), torch.full((3000,), 22)
    options: dict[str, Any] = {"time_attr": "time", "num_neighbors": [0], "batch_size": 1000, "edge_label_index": links}
    with make(graph, edge_label_time=until, neg_sampling="binary", **options) as loader:
        found = times[torch.cat([links_of(batch)[:, 1000:] for batch in loader], 1)]
    for row in found:
        check_counts(torch.bincount(row, minlength=60)[:23])
    assert found.max() == 22
    with make(graph, edge_label_time=until, neg_sampling="triplet", neg_strict=True, **options) as loader:
        found = times[torch.cat([batch.n_id[batch.dst_neg_index] for batch in loader])]
        assert set(found.tolist()) == set(range(23)) - {int(times[0])}  # of the edge from 0 to 0
    until[2500:] = -8
    for words, earliest in (({"neg_sampling": "triplet"}, 0), ({"neg_sampling": "binary", "neg_amount": 1}, 0)):
        with pytest.raises(PlanError, match=rf"500 of 3000 links are older than every 'node' node(.*\n.*)*below {earliest}"):
            make(graph, edge_label_time=until, **words, **options)
    late = NegativeSampling("triplet", 1, dst_weight=(times >= 30).float())
    with pytest.raises(PlanError, match=r"3000 of 3000 links are older than every 'node' node(.*\n.*)*below 30"):
        make(graph, edge_label_time=until, neg_sampling=late, **options)
    with (  # which links get one depends on the batch
        make(graph, edge_label_time=until - 30, neg_sampling="binary", neg_amount=0.5, **options) as loader,
        pytest.raises(SamplingError, match="none that is early enough"),
    ):
        next(iter(loader))
    until[2500:] = 22
    with make(graph, edge_label_time=until, **options) as loader, pytest.raises(PlanError, match="have no times"):
        loader.sample([[0], [0]])


# Wrong input ----------------------------------------------------------------------------------------------------------------

PLAIN: dict[str, tuple[dict[str, Any], str, str]] = {
    "one row": ({"edge_label_index": torch.zeros(1, 4).long()}, r"shape \[1, 4\]", "split's name"),
    "transposed": ({"edge_label_index": SOME.T}, r"shape \[5, 2\]", "sources and targets"),
    "one dimension": ({"edge_label_index": [1, 2]}, r"shape \[2\]", "split's name"),
    "ragged": ({"edge_label_index": [[1, 2], [3]]}, "cannot be read", "split's name"),
    "floats": ({"edge_label_index": SOME.float()}, "float32", "long"),
    "text": ({"edge_label_index": [["a"], ["b"]]}, "<U1", "tensor"),
    "source too large": ({"edge_label_index": [[100], [0]]}, "source 100", "0 to 99"),
    "target negative": ({"edge_label_index": [[0], [-1]]}, "target -1", "0 to 99"),
    "a split without splits": ({"edge_label_index": "train"}, "'train'", "no splits of links"),
    "unknown edge type": ({"edge_label_index": (("node", "too", "node"), SOME)}, "'too'", "'to'"),
    "nodes and links": ({"edge_label_index": SOME, "input_nodes": [1]}, "both given", "one of them"),
    "labels without links": ({"edge_label": [1]}, "edge_label is about links", "edge_label_index"),
    "negatives without links": ({"neg_sampling": "binary"}, "neg_sampling is about links", "edge_label_index"),
    "labels of another length": ({"edge_label_index": SOME, "edge_label": [1, 2]}, "5 links", r"\[2\]"),
    "labels are text": ({"edge_label_index": SOME, "edge_label": list("abcde")}, "<U1", "numbers"),
    "labels with triplet": ({"edge_label_index": SOME, "edge_label": range(5), "neg_sampling": "triplet"}, "triplet", "leave edge_label"),
    "unknown mode": ({"edge_label_index": SOME, "neg_sampling": "tripplet"}, "'tripplet'", "'triplet'"),
    "mode of another kind": ({"edge_label_index": SOME, "neg_sampling": 3}, "int", "NegativeSampling"),
    "unknown word of a mode": ({"edge_label_index": SOME, "neg_sampling": {"mode": "binary", "ratio": 2}}, "'ratio'", "amount"),
    "amount 0": ({"edge_label_index": SOME, "neg_sampling": "binary", "neg_amount": 0}, "0", "positive"),
    "amount not finite": ({"edge_label_index": SOME, "neg_sampling": "binary", "neg_amount": float("nan")}, "nan", "positive"),
    "amount True": ({"edge_label_index": SOME, "neg_sampling": "binary", "neg_amount": True}, "True", "a number"),
    "fraction of triplets": ({"edge_label_index": SOME, "neg_sampling": "triplet", "neg_amount": 1.5}, "1.5", "whole number"),
    "amount twice": ({"edge_label_index": SOME, "neg_sampling": NegativeSampling("binary", 2), "neg_amount": 3}, "3", "one of them"),
    "strict without draws": ({"edge_label_index": SOME, "neg_strict": True}, "draws none", "binary"),
    "strict is text": ({"edge_label_index": SOME, "neg_sampling": "binary", "neg_strict": "yes"}, "'yes'", "True or False"),
    "own negatives of given links": ({"edge_label_index": SOME, "neg_sampling": "official"}, "no split", "binary"),
    "weights of another length": ({"edge_label_index": SOME, "neg_sampling": {"mode": "binary", "dst_weight": [1, 2]}}, r"\(2,\)", "100"),
    "weights below 0": ({"edge_label_index": SOME, "neg_sampling": {"mode": "binary", "src_weight": [-1] * 100}}, "src_weight", "finite"),
    "weights of 0": ({"edge_label_index": SOME, "neg_sampling": {"mode": "triplet", "dst_weight": [0] * 100}}, "dst_weight", "not all"),
    "source weights of triplets": (
        {"edge_label_index": SOME, "neg_sampling": {"mode": "triplet", "src_weight": [1] * 100}},
        "src_weight",
        "draws no sources",
    ),
    "what is excluded": ({"edge_label_index": SOME, "exclude_edges": "both"}, "'both'", "'reverse'"),
    "an edge shown both ways": (
        {"edge_label_index": SOME, "exclude_edges": "self", "subgraph_type": "bidirectional"},
        "the other way round",
        "'reverse'",
    ),
    "excluded edges as an array": ({"edge_label_index": SOME, "exclude_edges": np.zeros(2)}, "exclude_edges must", "'reverse'"),
    "times without times": ({"edge_label_index": SOME, "edge_label_time": range(5)}, "time_attr is not", "time_attr="),
    "times of links missing": ({"edge_label_index": SOME, "time_attr": "time"}, "links' times", "edge_label_time"),
    "times of another length": ({"edge_label_index": SOME, "time_attr": "time", "edge_label_time": [1]}, "5 links", r"\[1\]"),
    "times of fractions": ({"edge_label_index": SOME, "time_attr": "time", "edge_label_time": [0.5] * 5}, "float64", "whole numbers"),
    "times of nodes": ({"edge_label_index": SOME, "input_time": [1]}, "input nodes", "edge_label_time"),
}  # fmt: skip
TYPED: dict[str, tuple[dict[str, Any], str, str]] = {
    "links without a type": ({"edge_label_index": SOME}, "several edge types", "cites"),
    "unknown type": ({"edge_label_index": ("paper", "cits", "paper")}, "cits", "cites"),
    "a type's name": ({"edge_label_index": ("cites", SOME)}, "'cites'", "known"),
    "target of another type": ({"edge_label_index": (HAS, [[50], [50]])}, "target 50", "'tag' go from 0 to 19"),
    "a type without that split": ({"edge_label_index": (HAS, "train")}, "no split 'train'", "tensor"),
}


@pytest.mark.parametrize("name", [*PLAIN, *TYPED])
def test_wrong_input(name: str) -> None:
    options, what, hint = {**PLAIN, **TYPED}[name]
    data = typed() if name in TYPED else plain()
    if "time_attr" in options:
        data.time = torch.arange(700)
    with pytest.raises(PlanError) as caught:
        make(data, **options)
    assert re.search(what, str(caught.value)) and re.search(hint, str(caught.value)), caught.value


def test_no_reverse_type() -> None:
    data = typed()
    del data[HAS]
    with pytest.raises(PlanError, match="no edge type holds the reverses"):
        make(data, edge_label_index=(ON, [[1], [2]]), exclude_edges="reverse")


def test_wrong_splits(split_store: Any) -> None:
    with on_splits(split_store) as loader:
        with pytest.raises(PlanError, match="'trian'.*'train'"):
            loader.for_links("trian")
        with pytest.raises(PlanError, match="no negatives of their own"):
            loader.for_links("train", neg_sampling="official")
        with pytest.raises(PlanError, match="row for each of 7 links"):
            loader.for_links("valid", edge_label=[1, 2])
        with pytest.raises(PlanError, match="draws none"):
            loader.for_links("valid", neg_amount=2)
        with pytest.raises(PlanError, match="unknown option 'neg_ammount'.*'neg_amount'"):
            loader.for_links("valid", neg_ammount=2)


@pytest.fixture(autouse=True)
def _no_global_draws() -> Iterator[None]:
    """Nothing here depends on, or changes, torch's random state."""
    state = torch.random.get_rng_state()
    yield
    torch.random.set_rng_state(state)

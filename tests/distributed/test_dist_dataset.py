"""``DistDataset``, ``DistFeature`` and ``DistGraph`` over stores: everything they hand out against the graph itself."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import gnnkit
from gnnkit import BuildOptions, Store
from gnnkit.datasets import write_glt_partitions
from gnnkit.distributed import DistDataset, DistFeature, DistGraph, FeatureInfo, RangePartitionBook, get_ids_on_rank, reduce_dist_dataset
from gnnkit.errors import DatasetError, PlanError, StoreError
from tests.helpers.graphs import ArraySource, built, homogeneous_source, random_edges, random_source, stored

TYPED = [
    BuildOptions(1),
    BuildOptions(3, "random", with_edge=True, weight="weight"),
    BuildOptions(3, "random", edge_dir="out"),
    BuildOptions(2, edge_dir="out", with_edge=True),
]


def plain_source(seed: int = 0, num_nodes: int = 40) -> ArraySource:
    rng = np.random.default_rng(seed)
    edges = random_edges(rng, num_nodes, num_nodes, 150)
    order = rng.permutation(num_nodes)
    return homogeneous_source(
        edges,
        num_nodes,
        x=rng.random((num_nodes, 3)).astype(np.float32),
        y=rng.integers(0, 5, (num_nodes, 1)),
        edge_arrays={"edge_attr": np.arange(150, dtype=np.float32)[:, None]},
        splits={"train": order[:10], "valid": order[10:15], "test": order[15:18]},
    )


Case = tuple[ArraySource, Store]


@pytest.fixture(scope="module", params=[(seed, options) for seed in range(3) for options in TYPED], ids=str)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    seed, options = request.param
    source = random_source(np.random.default_rng(seed), max_nodes=25)
    largest = max(nodes.num_nodes for nodes in source.schema.node_types.values())
    options = replace(options, num_parts=min(options.num_parts, largest))
    return source, stored(source, tmp_path_factory.mktemp("store") / "store", options)


def parts(store: Store) -> Iterator[DistDataset]:
    for part in range(store.num_parts):
        yield DistDataset.from_store(store, part, store.num_parts)


def test_edges_are_those_of_the_graph_each_owned_once(case: Case) -> None:
    source, store = case
    for edge_type, edge_index in source.edges.items():
        seen: list[tuple[int, int]] = []
        ids: list[int] = []
        for dataset in parts(store):
            graph = dataset.get_graph(edge_type)
            indptr, indices, edge_ids = (tensor.numpy() for tensor in graph.export_topology())
            own = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
            owner = edge_type[2] if store.edge_dir == "in" else edge_type[0]
            assert len(indptr) == source.schema.node_types[owner].num_nodes + 1
            assert graph.edge_count == len(indices) and int(graph.degrees.sum()) == graph.edge_count
            assert graph.layout == ("CSC" if store.edge_dir == "in" else "CSR")
            assert (dataset.node_pb[owner][torch.from_numpy(own)] == dataset.partition_idx).all()
            assert (dataset.edge_pb[edge_type][torch.from_numpy(edge_ids)] == dataset.partition_idx).all()
            pairs = np.stack([indices, own] if store.edge_dir == "in" else [own, indices])
            if store.options.with_edge:
                np.testing.assert_array_equal(pairs, edge_index[:, edge_ids])
                for first, last in zip(indptr[:-1], indptr[1:], strict=True):
                    assert (np.diff(edge_ids[first:last]) > 0).all(), "edges of a node are not in the dataset's order"
            weights = graph.edge_weights
            assert (weights is None) == (store.options.weight is None)
            if weights is not None:
                np.testing.assert_array_equal(weights.numpy(), source.edge_arrays[edge_type]["weight"][edge_ids])
            seen += list(zip(*pairs.tolist(), strict=True))
            ids += edge_ids.tolist()
        assert sorted(seen) == sorted(zip(*edge_index.tolist(), strict=True))
        assert sorted(ids) == list(range(edge_index.shape[1]))


def test_features_are_those_of_the_ids_whatever_part_has_them(case: Case) -> None:
    source, store = case
    rng = np.random.default_rng(1)
    for dataset in parts(store):
        part = dataset.partition_idx
        for node_type, arrays in source.node_arrays.items():
            feature = dataset.get_node_feature(node_type)
            assert (feature is None) == ("x" not in arrays)
            if feature is None:
                continue
            own = dataset.node_pb[node_type].ids_of(part)
            own = own[torch.from_numpy(rng.integers(0, max(len(own), 1), 12 if len(own) else 0))]
            np.testing.assert_array_equal(feature[own].numpy(), arrays["x"][own.numpy()])
            assert feature.shape[1:] == arrays["x"].shape[1:] and feature.size(0) == len(dataset.node_pb[node_type].ids_of(part))
            foreign = torch.nonzero(dataset.node_pb[node_type][torch.arange(len(arrays["x"]))] != part).view(-1)
            for wrong in (*foreign[:1].tolist(), -1, len(arrays["x"])):
                with pytest.raises(PlanError, match=f"no features of id {wrong}"):
                    feature[torch.tensor([wrong])]
            everywhere = DistFeature.from_store(store, part)
            ids = torch.from_numpy(rng.integers(0, len(arrays["x"]), 30))
            np.testing.assert_array_equal(everywhere[node_type, ids].numpy(), arrays["x"][ids.numpy()])
            np.testing.assert_array_equal(everywhere.async_get(ids, node_type).wait().numpy(), arrays["x"][ids.numpy()])
            np.testing.assert_array_equal(everywhere.local_get(own, node_type).numpy(), arrays["x"][own.numpy()])
        if not store.options.with_edge:
            continue
        for edge_type, arrays in source.edge_arrays.items():
            if "edge_attr" in arrays and len(arrays["edge_attr"]):
                ids = torch.from_numpy(rng.integers(0, len(arrays["edge_attr"]), 30))
                found = DistFeature.from_store(store, part, of="edge")[edge_type, ids]
                np.testing.assert_array_equal(found.numpy(), arrays["edge_attr"][ids.numpy()])
                own = dataset.edge_pb[edge_type].ids_of(part)
                np.testing.assert_array_equal(dataset.get_edge_feature(edge_type)[own].numpy(), arrays["edge_attr"][own.numpy()])


def test_labels_nodes_and_splits(case: Case) -> None:
    source, store = case
    datasets = list(parts(store))
    for node_type, nodes in source.schema.node_types.items():
        label = datasets[0].get_node_label(node_type)
        wanted = source.node_arrays[node_type].get("y")
        assert (label is None) == (wanted is None)
        if label is not None:
            np.testing.assert_array_equal(label.numpy(), wanted)
        everything = torch.cat([dataset.node_ids[node_type] for dataset in datasets])
        assert sorted(everything.tolist()) == list(range(nodes.num_nodes))
    ((node_type, splits),) = source.splits.items()
    for dataset in datasets:
        own = set(dataset.node_pb[node_type].ids_of(dataset.partition_idx).tolist())
        named = {"train": dataset.train_node_ids, "valid": dataset.val_node_ids, "test": dataset.test_node_ids}
        for name, ids in splits.items():
            assert named[name][node_type].tolist() == [i for i in ids.tolist() if i in own]
        assert torch.equal(dataset.train_idx[node_type], named["train"][node_type])
        first = torch.cat([named[name][node_type] for name in ("train", "valid", "test")])
        assert dataset.node_ids[node_type][: len(first)].tolist() == first.tolist()


def test_types_and_metadata(case: Case) -> None:
    source, store = case
    dataset = next(parts(store))
    assert dataset.get_node_types() == list(source.schema.node_types)
    assert dataset.get_edge_types() == list(source.schema.edge_types)
    assert dataset.schema.edge_dir == dataset.edge_dir == store.edge_dir
    for node_type, arrays in source.node_arrays.items():
        found = (dataset.node_feature_info or {}).get(node_type)
        assert found == (FeatureInfo(arrays["x"].shape[1], torch.float32) if "x" in arrays else None)
    assert set(dataset.edge_feature_info or {}) == {t for t, arrays in source.edge_arrays.items() if "edge_attr" in arrays}
    assert dataset.node_feat_pb is dataset.node_pb and dataset.edge_feat_pb is dataset.edge_pb
    for copied in (pickle.loads(pickle.dumps(dataset)), reduce_dist_dataset(dataset)[0](*reduce_dist_dataset(dataset)[1])):
        assert (copied.partition_idx, copied.num_partitions, copied.store.path) == (0, store.num_parts, store.path)
    assert len(pickle.dumps(dataset)) < 1000, "a dataset pickles as its store's path"
    assert str(store.path) in repr(dataset)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Case:
    source = plain_source()
    return source, built(source, tmp_path_factory.mktemp("plain") / "store", 3, "random", with_edge=True)


def test_a_homogeneous_graph_has_single_values(plain: Case) -> None:
    source, store = plain
    dataset = DistDataset.from_store(store.path, 2)
    (x,), (attr,) = (
        [arrays[name] for arrays in by_type.values()] for name, by_type in (("x", source.node_arrays), ("edge_attr", source.edge_arrays))
    )
    assert dataset.get_node_types() is None and dataset.get_edge_types() is None
    assert dataset.node_feature_info == FeatureInfo(3, torch.float32)
    assert dataset.get_node_label().shape == (40,), "one task has labels [n]"
    assert dataset.node_ids.dim() == 1
    ids = torch.tensor([3, 39, 3, 0])
    features = DistFeature.from_store(store, 2)
    assert features.data_cls == "homo"
    np.testing.assert_array_equal(features[ids].numpy(), x[ids.numpy()])
    features[ids].zero_()
    np.testing.assert_array_equal(features[ids].numpy(), x[ids.numpy()], "what is handed out is the caller's own")
    assert features[torch.empty(0, dtype=torch.int64)].shape == (0, 3)
    edges = torch.arange(150)
    np.testing.assert_array_equal(DistFeature.from_store(store, 0, of="edge")[edges].numpy(), attr)
    graph = dataset.dist_graph()
    assert isinstance(graph, DistGraph) and graph.data_cls == "homo"
    assert graph.get_local_graph().edge_count == dataset.get_graph().edge_count
    assert (graph.get_node_partitions(dataset.node_ids) == 2).all()
    assert (graph.get_edge_partitions(dataset.get_graph().export_topology()[2]) == 2).all()


def test_features_of_other_parts_only_where_they_can_be_read(plain: Case) -> None:
    source, store = plain
    dataset = DistDataset.from_store(store, 1)
    alone = DistFeature(3, 1, dataset.node_features, dataset.node_pb)
    own = dataset.node_ids
    np.testing.assert_array_equal(alone[own].numpy(), source.node_arrays["node"]["x"][own.numpy()])
    foreign = dataset.node_pb.ids_of(2)[:1]
    for use in (lambda: alone[torch.cat([own, foreign])], lambda: alone.async_get(foreign).wait()):
        with pytest.raises(PlanError, match=f"part 2 has the features of id {int(foreign)}"):
            use()
    peers = {2: DistDataset.from_store(store, 2).node_features}
    assert DistFeature(3, 1, dataset.node_features, dataset.node_pb, peers=peers)[foreign].shape == (1, 3)
    with pytest.raises(PlanError, match="part 2 has"):
        DistFeature(3, 1, dataset.node_features, dataset.node_pb, local_only=True, peers=peers)[foreign]
    as_table = dataset.node_pb[torch.arange(40)]
    assert DistFeature(3, 1, dataset.node_features, as_table, device=torch.device("cpu"))[own].shape == (len(own), 3)


def test_values_of_one_s_own(plain: Case) -> None:
    _, store = plain
    part = DistDataset.from_store(store, 1)
    labels = torch.arange(40)
    own = DistDataset(3, 1, part.graph, part.node_features, part.edge_features, labels, part.node_pb, part.edge_pb, edge_dir="in")
    assert own.store is None and own.get_node_label() is labels and own.get_graph() is part.graph
    assert own.dist_graph().get_local_graph() is part.graph
    book = RangePartitionBook([(0, 40)], 0)
    assert DistDataset(node_feature_partition=part.node_features, node_feat_pb=book).node_feat_pb is book
    for use in (lambda: own.node_ids, lambda: own.schema, own.get_node_types, lambda: own.train_idx):
        with pytest.raises(PlanError, match="needs a dataset of a store"):
            use()
    for use in (DistDataset().get_graph, DistDataset().dist_graph):
        with pytest.raises(PlanError, match="no graph yet"):
            use()


def test_what_does_not_fit_is_refused(plain: Case) -> None:
    _, store = plain
    dataset = DistDataset.from_store(store, 0)
    wrong: list[tuple[Any, str]] = [
        (lambda: DistDataset.from_store(store, 0, 2), r"has 3 parts, not 2"),
        (lambda: DistDataset.from_store(store, 3), "no part 3 of 3"),
        (lambda: DistDataset(2, 2), "no part 2 of 2"),
        (lambda: DistDataset(graph_partition=dataset.graph), "without node_pb"),
        (lambda: DistDataset(edge_feature_partition=dataset.edge_features), "without edge_pb or edge_feat_pb"),
        (lambda: DistFeature(3, 0, dataset.node_features, dataset.node_pb, rpc_router=object()), "RPC"),
        (lambda: DistFeature(3, 0, {"node": dataset.node_features}, dataset.node_pb), "both be dicts"),
        (lambda: DistFeature(3, 3, dataset.node_features, dataset.node_pb), "no part 3"),
        (lambda: DistFeature(3, 0, dataset.node_features, "book")[torch.tensor([0])], "a partition book is"),
        (lambda: DistFeature(3, 0, {"node": dataset.node_features}, {"node": dataset.node_pb})[torch.tensor([0])], "no type is given"),
        (
            lambda: DistFeature(3, 0, {"node": dataset.node_features}, {"node": dataset.node_pb})["user", torch.tensor([0])],
            "none for 'user'",
        ),
        (lambda: DistGraph(3, 0, {("a", "b", "c"): dataset.graph}, dataset.node_pb), "all be dicts"),
        (lambda: DistGraph(3, 0, dataset.graph, dataset.node_pb).get_edge_partitions(torch.tensor([0])), "no edge_pb"),
    ]
    for use, words in wrong:
        with pytest.raises(PlanError, match=words):
            use()


def test_a_store_without_features_says_so(tmp_path: Path) -> None:
    store = built(homogeneous_source(np.zeros((2, 0), np.int64), 3), tmp_path / "store", 1)
    dataset = DistDataset.from_store(store)
    assert dataset.get_node_feature() is None and dataset.node_features is None
    with pytest.raises(PlanError, match="no node features"):
        DistFeature.from_store(store)


@pytest.mark.parametrize("kind", ["homogeneous", "typed"])
@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_graphlearn_torch_s_directories_are_loaded(tmp_path: Path, kind: str, edge_dir: Any) -> None:
    source = plain_source(3) if kind == "homogeneous" else random_source(np.random.default_rng(5), max_nodes=30)
    build = BuildOptions(2, "random", edge_dir="in", with_edge=True)
    write_glt_partitions(stored(source, tmp_path / "store", build), tmp_path / "partitions", [].append)
    dataset = DistDataset(edge_dir=edge_dir)
    for _ in range(2):
        dataset.load(tmp_path / "partitions", 1, graph_mode="CPU", store_dir=tmp_path / "stores")
    assert len([path for path in (tmp_path / "stores").iterdir() if path.is_dir()]) == 1, "the second load builds nothing"
    assert (dataset.partition_idx, dataset.num_partitions, dataset.edge_dir) == (1, 2, edge_dir)
    assert dataset.store.schema == source.schema
    own, original = dataset.node_ids, DistDataset.from_store(tmp_path / "store", 1).node_ids
    for node_type in source.schema.node_types:
        found, wanted = (ids[node_type] if isinstance(ids, dict) else ids for ids in (own, original))
        assert sorted(found.tolist()) == sorted(wanted.tolist()), "parts are those of the books"
    for edge_type, edge_index in source.edges.items():
        found = []
        for part in range(2):
            indptr, indices, _ = DistDataset.from_store(dataset.store, part).get_graph(edge_type).export_topology()
            own = torch.repeat_interleave(torch.arange(len(indptr) - 1), indptr.diff())
            found += list(zip(*(pair.tolist() for pair in ((indices, own) if edge_dir == "in" else (own, indices))), strict=True))
        assert sorted(found) == sorted(zip(*edge_index.tolist(), strict=True))


@pytest.mark.parametrize("layout", ["CSC", "CSR", "csc"])
def test_compressed_edges_of_a_partition_directory_are_spelled_out(tmp_path: Path, layout: str) -> None:
    """As igbh's script compresses each part's folder; against the edges as they were."""
    source = plain_source(3)
    write_glt_partitions(built(source, tmp_path / "store", 2, with_edge=True), tmp_path / "parts", [].append)
    for part in range(2):
        folder = tmp_path / "parts" / f"part{part}" / "graph"
        ends = {name: torch.load(folder / f"{name}.pt") for name in ("rows", "cols", "eids")}
        packed = "cols" if layout.upper() == "CSC" else "rows"
        order = torch.argsort(ends[packed], stable=True)
        degrees = torch.bincount(ends[packed])  # as short as the last node that has an edge
        for name, values in ends.items():
            torch.save(
                torch.cat([torch.zeros(1, dtype=torch.long), degrees.cumsum(0)]) if name == packed else values[order], folder / f"{name}.pt"
            )
    dataset = DistDataset(edge_dir="in")
    with pytest.raises(DatasetError, match=f'input_layout="{layout.upper()}"|input_layout="CSC"'):
        dataset.load(tmp_path / "parts", 0, "CPU", store_dir=tmp_path / "stores")
    dataset.load(tmp_path / "parts", 0, "CPU", input_layout=layout, store_dir=tmp_path / "stores")
    found = []
    for part in range(2):
        indptr, indices, _ = DistDataset.from_store(dataset.store, part).get_graph().export_topology()
        targets = torch.repeat_interleave(torch.arange(len(indptr) - 1), indptr.diff())
        found += list(zip(indices.tolist(), targets.tolist(), strict=True))
    (edges,) = source.edges.values()
    assert sorted(found) == sorted(zip(*edges.tolist(), strict=True))


def test_edges_that_are_not_compressed_are_not_read_as_if(tmp_path: Path) -> None:
    write_glt_partitions(built(plain_source(), tmp_path / "store", 1), tmp_path / "parts", [].append)
    with pytest.raises(DatasetError, match="holds no offsets"):
        DistDataset().load(tmp_path / "parts", 0, "CPU", input_layout="CSR", store_dir=tmp_path / "stores")
    with pytest.raises(PlanError, match="layout"):
        DistDataset().load(tmp_path / "parts", 0, "CPU", input_layout="COOL", store_dir=tmp_path / "stores")


@pytest.mark.parametrize("about", [True, False], ids=["ours", "graphlearn-torch's"])
@pytest.mark.parametrize("shape", [(40,), (40, 1)])
def test_labels_of_a_partition_directory_may_be_elsewhere(tmp_path: Path, about: bool, shape: tuple[int, ...]) -> None:
    source = plain_source()
    write_glt_partitions(built(source, tmp_path / "store", 2), tmp_path / "partitions", [].append)
    labels = torch.arange(40).flip(0)
    torch.save(labels.view(shape), tmp_path / "label.pt")
    if not about:
        (tmp_path / "partitions" / "gnnkit" / "about.json").unlink()
    dataset = DistDataset()
    dataset.load(
        str(tmp_path / "partitions"), 0, "ZERO_COPY", whole_node_label_file=str(tmp_path / "label.pt"), store_dir=tmp_path / "stores"
    )
    assert torch.equal(dataset.get_node_label(), labels)
    assert dataset.store.schema.node_types["node"].arrays["y"].row_shape == ()


def test_loading_a_store_and_what_is_none(tmp_path: Path, plain: Case) -> None:
    _, store = plain
    dataset = DistDataset()
    dataset.load(store.path, 1)
    assert (dataset.partition_idx, dataset.num_partitions, dataset.edge_dir) == (1, 3, "in")
    assert dataset.schema.edge_dir == "in"
    with pytest.raises(PlanError, match="no part 3 of 3"):
        dataset.load(store.path, 3)
    with pytest.raises(PlanError, match="graph_mode"):
        dataset.load(store.path, 0, "GPU")
    with pytest.raises(DatasetError, match="neither a store nor a partition directory"):
        dataset.load(tmp_path, 0)
    assert dataset.partition_idx == 1, "a failed load left something behind"


@pytest.mark.parametrize("method", ["contiguous", "random"])
def test_a_host_with_one_part_alone(method: Any, tmp_path: Path) -> None:
    whole = built(plain_source(), tmp_path / "whole", 2, method, with_edge=True)
    alone = tmp_path / "alone"
    shutil.copytree(whole.path, alone, ignore=shutil.ignore_patterns("part0"))
    ours, theirs = DistDataset.from_store(alone, 1, 2), DistDataset.from_store(whole, 1)
    assert ours.store is not None and ours.store.local_parts == (1,)
    assert torch.equal(ours.node_ids, theirs.node_ids) and torch.equal(ours.train_node_ids, theirs.train_node_ids)
    for left, right in zip(ours.get_graph().export_topology(), theirs.get_graph().export_topology(), strict=True):
        assert torch.equal(left, right)
    ids = ours.node_ids
    assert torch.equal(ours.get_node_feature()[ids], theirs.get_node_feature()[ids])
    assert torch.equal(ours.node_pb[torch.arange(40)], theirs.node_pb[torch.arange(40)])
    assert pickle.loads(pickle.dumps(ours)).node_ids.tolist() == ids.tolist()
    loaded = DistDataset()
    loaded.load(alone, 1, graph_mode="CPU")
    assert loaded.node_ids.tolist() == ids.tolist()
    for use in (lambda: ours.node_labels, lambda: ours.edge_pb[torch.tensor([0])], lambda: DistFeature.from_store(ours.store, 1)):
        with pytest.raises(StoreError, match="part 0 of the store .* is not open here"):
            use()
    with pytest.raises(StoreError, match="part 0 of the store .* is not on this host"):
        DistDataset.from_store(alone, 0)
    with pytest.raises(StoreError, match="part 0 of the store .* is not open here"):
        DistDataset.from_store(ours.store, 0)


def test_parts_by_the_visits_of_training_nodes(tmp_path: Path) -> None:
    """Two rings that no edge joins: each part is one of them, because its own training nodes visit no other."""
    rings = [[0, 1, *range(4, 20, 2)], [2, 3, *range(5, 20, 2)]]
    edges = torch.cat([torch.tensor([ids[1:] + ids[:1], ids]) for ids in rings], dim=1)
    data = Data(edge_index=edges, train_mask=torch.arange(20) < 4, num_nodes=20)
    store = gnnkit.partition(data, 2, "frequency", tmp_path / "store", num_neighbors=(1, 1, 1, 1, 1))
    for part, ids in enumerate(rings):
        book: Any = DistDataset.from_store(store, part).node_pb
        own = get_ids_on_rank(book, part).tolist()
        assert len(own) == 10 and set(ids[:7]) <= set(own)

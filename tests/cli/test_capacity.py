"""Sizing on paper, compared with what was built and sampled."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnkit import BuildOptions, GraphLoader, InProcess, Store, datasets, partition
from gnnkit.capacity import (
    BatchSize,
    Cluster,
    Rates,
    SizedGraph,
    asked,
    batch_of,
    estimate,
    from_bench,
    most,
    planned,
    sized_graph,
)
from gnnkit.datasets.ogb import published_graph, published_names
from gnnkit.errors import DatasetError, PlanError
from gnnkit.loader.inputs import resolve_fan_outs
from tests.helpers.command import run
from tests.helpers.ogb_link_trees import write_link_tree
from tests.helpers.ogb_trees import write_tree

RATES = Rates(1e6, 1e9, "made up for a test")
PAPERS = "ogbn-papers100M"
GB = 10**9


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return partition(datasets.products_like(0.01), 1, out=tmp_path_factory.mktemp("capacity") / "store", with_edge=True)


def bytes_on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.npy"))


# Disk ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        BuildOptions(3),
        BuildOptions(2, "random", with_edge=True),
        BuildOptions(3, "random", cache_ratio=0.1),
        BuildOptions(2, feature_dtype="quint8"),
        BuildOptions(2, feature_dtype="quint4x2"),
        BuildOptions(1),
    ],
)
def test_a_store_takes_the_bytes_that_were_predicted(store: Store, tmp_path: Path, options: BuildOptions) -> None:
    built = partition(
        store, options.num_parts, options.partition, tmp_path / "cut",
        with_edge=options.with_edge, feature_dtype=options.feature_dtype, cache_ratio=options.cache_ratio,
    )  # fmt: skip
    splits = {t: {name: len(ids) for name, ids in by.items()} for t, by in store.splits.items()}
    predicted = planned("products-like", "", datasets.products_like(0.01).schema, splits, options, {})
    assert predicted.nbytes == pytest.approx(bytes_on_disk(built.path), rel=0 if options.cache_ratio == 0 else 1e-3)
    seen = sized_graph(str(built.path), BuildOptions(options.num_parts))
    assert seen.nbytes == bytes_on_disk(built.path)
    for part, nbytes in enumerate(seen.part_bytes):
        assert nbytes == bytes_on_disk(built.path / f"part{part}")
        assert predicted.part_bytes[part] == pytest.approx(nbytes, rel=0.1), "parts have about the same share"


@pytest.mark.parametrize("name", published_names())
def test_published_graphs_have_the_arrays_of_a_downloaded_one(name: str, tmp_path: Path) -> None:
    (write_tree if name.startswith("ogbn") else write_link_tree)(name, tmp_path)
    real, published = datasets.open_ogb(name, root=tmp_path), published_graph(name)
    assert published.schema.node_types.keys() == real.schema.node_types.keys()
    for types, others in ((published.schema.node_types, real.schema.node_types), (published.schema.edge_types, real.schema.edge_types)):
        assert types.keys() == others.keys()  # type: ignore[attr-defined]
        for each in types:
            assert dict(types[each].arrays) == dict(others[each].arrays), each  # type: ignore[index]
    assert {t: list(splits) for t, splits in published.splits.items()} == {t: list(splits) for t, splits in real.splits.items()}
    assert published.schema.is_homogeneous == real.schema.is_homogeneous


def test_a_generated_graph_of_products_size_agrees_with_what_is_published() -> None:
    ours, published = datasets.products_like(1.0).schema, published_graph("ogbn-products").schema
    assert (ours.num_nodes, ours.num_edges) == (published.num_nodes, published.num_edges)


# Batches ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fan_out", "batch_size"), [([3], 64), ([5, 3], 32), ([15, 10, 5], 64)])
def test_batches_are_no_larger_than_the_bound(store: Store, fan_out: list[int], batch_size: int) -> None:
    (node_type,), (edge_type,) = store.schema.node_types, store.schema.edge_types
    bound = most(store.schema, resolve_fan_outs(fan_out, store.schema), node_type, batch_size, "in")
    options: dict[str, Any] = {"num_neighbors": fan_out, "batch_size": batch_size, "backend": InProcess(1), "progress": False}
    seen = []
    with GraphLoader.from_store(store.path, with_edge=True, **options) as loader:
        for batch in loader:
            size = BatchSize({node_type: batch.num_nodes}, {edge_type: batch.num_edges}, "")
            nbytes = sum(value.nbytes for name, value in batch if hasattr(value, "nbytes"))
            predicted = size.nbytes(store.schema, batch_size, with_edge=True)
            assert nbytes <= predicted <= 1.02 * nbytes + 1024, "bytes follow from the numbers of nodes and edges"
            seen.append((batch.num_nodes, batch.num_edges))
    nodes, edges = (sum(column) / len(seen) for column in zip(*seen, strict=True))
    assert nodes <= bound.num_nodes <= store.schema.num_nodes and edges <= bound.num_edges


def test_batches_of_a_store_are_counted_and_not_bounded(store: Store) -> None:
    graph = sized_graph(str(store.path), BuildOptions(1))
    size = batch_of(graph, asked(graph, (-1, 3), 32))
    assert "sampled from the store" in size.source and 32 < size.num_nodes <= store.schema.num_nodes
    with pytest.raises(PlanError, match="-1 cannot be bounded"):
        batch_of(sized_graph("ogbn-arxiv", BuildOptions(1)), asked(graph, (-1,), 32))


def test_a_plan_says_what_is_sampled(store: Store, tmp_path: Path) -> None:
    with GraphLoader.from_store(store.path, num_neighbors=[4, 2], batch_size=48, progress=False) as loader:
        loader.plan.save(tmp_path / "plan.json")
    graph = sized_graph(str(tmp_path / "plan.json"), BuildOptions(1))
    wanted = asked(graph, None, None)
    assert (wanted.num_neighbors, wanted.batch_size, graph.store) == ((4, 2), 48, store.path)


@pytest.mark.parametrize("kind", ["nodes", "all nodes", "links"])
def test_batches_of_a_plan_are_those_of_its_inputs(store: Store, tmp_path: Path, kind: str) -> None:
    options: dict[str, Any] = {"num_neighbors": [4, 2], "batch_size": 48, "progress": False}
    if kind == "links":
        loader = GraphLoader.from_store(store.path, edge_label_index=np.arange(96).reshape(2, 48), neg_sampling="binary", **options)
    else:
        loader = GraphLoader.from_store(store.path, input_nodes=np.arange(4000, 4096) if kind == "nodes" else None, **options)
    with loader:
        loader.plan.save(tmp_path / "plan.json")
        batches = list(itertools.islice(loader, 8))
    graph = sized_graph(str(tmp_path / "plan.json"), BuildOptions(1))
    size = batch_of(graph, asked(graph, None, None))
    assert size.num_nodes == pytest.approx(sum(batch.num_nodes for batch in batches) / len(batches))
    assert size.num_edges == pytest.approx(sum(batch.num_edges for batch in batches) / len(batches))
    assert batch_of(graph, asked(graph, (1,), None)).num_nodes < size.num_nodes


# What follows ---------------------------------------------------------------------------------------------------------------


def papers(cluster: Cluster, **options: Any) -> tuple[SizedGraph, Any]:
    graph = sized_graph(PAPERS, BuildOptions(max(cluster.holders, 1), **options))
    return graph, estimate(graph, cluster, batch_of(graph, asked(graph, (15, 10, 5), 1024)), RATES, 1024, with_edge=False)


def test_the_first_placement_that_fits_a_quarter_of_memory_is_chosen() -> None:
    _, large = papers(Cluster(4, 8, 0, 512 * GB, 3e9, 64))
    _, middle = papers(Cluster(4, 8, 0, 128 * GB, 3e9, 64))
    _, small = papers(Cluster(4, 8, 0, 80 * GB, 3e9, 64))
    assert large.placement == "replicate" and large.network == 0 and "network" not in large.limits
    assert middle.placement == "features" and small.placement == "partition"
    assert small.network > middle.network > 0 and small.disk < middle.disk < large.disk / 2
    for each in (large, middle, small):
        assert each.disk == each.holding[each.placement] and each.network * 1024 == each.crossing[each.placement]
        assert each.crossing == small.crossing and list(each.crossing) == ["replicate", "features", "partition"]


def test_the_least_limit_is_the_bottleneck() -> None:
    _, slow_network = papers(Cluster(4, 1, 0, 200 * GB, 1e8, 64))
    assert slow_network.bottleneck == "network" and slow_network.seeds_per_s == slow_network.limits["network"]
    _, slow_model = papers(Cluster(4, 1, 0, 2000 * GB, 1e12, 64, train_rate=10.0))
    assert slow_model.bottleneck == "training" and slow_model.seeds_per_s == 10.0
    _, no_memory = papers(Cluster(4, 1, 0, 8 * GB, 1e12, 64))
    assert no_memory.bottleneck == "memory" and "read from disk" in no_memory.notes[0]


def test_storage_machines_hold_the_graph_and_trainers_do_not() -> None:
    graph, found = papers(Cluster(4, 8, 2, 512 * GB, 3e9, 64))
    assert "graph" not in found.memory and found.storage_memory["graph"] == found.disk == max(graph.part_bytes) + graph.shared_bytes
    assert found.network == pytest.approx(found.batch["bytes"] / 1024)


def test_rates_from_a_record_of_bench(tmp_path: Path) -> None:
    figures = {"edges_per_s": [900.0, 1000.0, 1400.0], "bytes_per_s": [4000.0]}
    (tmp_path / "bench.json").write_text(json.dumps({"graph": "mine", "num_threads": 2, "backends": {"InProcess": figures}}))
    rates = from_bench(tmp_path / "bench.json")
    assert (rates.edges_per_s, rates.bytes_per_s) == (500.0, 2000.0) and "mine" in rates.source
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(PlanError, match="no record of gnnkit bench"):
        from_bench(tmp_path / "other.json")


# The command --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_line(capfd: pytest.CaptureFixture[str]) -> None:
    call = ["plan-capacity", PAPERS, "--nodes", "4", "--procs-per-node", "8", "--num-neighbors", "15,10,5", "--memory", "1TB"]
    assert run([*call, "--network", "25Gbit", "--cpus", "64", "--json"]) == 0
    value = json.loads(capfd.readouterr().out)
    assert value["graph"]["num_nodes"] == 111_059_956 and value["cluster"]["network"] == 25e9 / 8
    assert value["rates"]["edges_per_s"] > 0 and value["rates"]["source"].startswith("measured here")
    assert run([*call[:-1], "1GB"]) == 1
    out = " ".join(capfd.readouterr().out.split())
    assert "bottleneck memory" in out and "sizes that OGB publishes" in out and "1,615,685,872 edges" in out


def test_fan_outs_are_usual_ones_where_none_are_given_and_memory_has_the_unit_of_its_option(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["plan-capacity", PAPERS, "--nodes", "4", "--memory", "256GB", "--cpus", "64"]) == 0
    out = " ".join(capfd.readouterr().out.split())
    assert f"{PAPERS}, 4 x 1 trainers of 1024 seeds, num_neighbors 15,10,5" in out
    assert re.search(r"memory [\d.]+ GB of 256 GB", out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ogbn-product", "--num-neighbors", "5"], "did you mean"),
        ([PAPERS, "--num-neighbors", "a,b"], "no list of whole numbers"),
        ([PAPERS, "--num-neighbors", "5", "--network", "fast"], "is no rate"),
        ([PAPERS, "--num-neighbors", "5", "--memory", "much"], "memory must be"),
        ([PAPERS, "--num-neighbors", "5", "--memory", "256"], "memory='256' has no unit -> '256GB', or '256B'"),
        ([PAPERS, "--num-neighbors", "5", "--backend", "cloud"], "it is colocated or graph_store"),
        ([PAPERS, "--num-neighbors", "5", "--backend", "colocated", "--storage-nodes", "2"], "leave one of them out"),
        (["ogbl-biokg", "--num-neighbors", "5"], "are not known here"),
        ([PAPERS, "--num-neighbors", "5", "--train-rate", "-5"], "train_rate must be more than 0 seeds/s, got -5"),
    ],
)
def test_mistakes_are_named(arguments: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["plan-capacity", *arguments]) == 2
    assert message in " ".join(capfd.readouterr().err.split())


def test_unknown_names() -> None:
    with pytest.raises(DatasetError, match="no OGB dataset"):
        published_graph("ogbn-nothing")

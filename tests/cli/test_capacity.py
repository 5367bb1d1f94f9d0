"""Sizing on paper, compared with what was built and sampled."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnkit import BuildOptions, GraphLoader, InProcess, Store, datasets, partition
from gnnkit.datasets.ogb import published_graph, published_names
from gnnkit.errors import DatasetError
from tests.helpers.command import run, run_captured
from tests.helpers.graphs import stored
from tests.helpers.ogb_link_trees import write_link_tree
from tests.helpers.ogb_trees import write_tree
from tests.helpers.stores import said

PAPERS = "ogbn-papers100M"
# What a record of gnnkit bench says of two threads.
FIGURES = {"edges_per_s": [1e6, 2e6, 9e6], "bytes_per_s": [2e9]}


def looked_at(batches: list[Any]) -> list[Any]:
    """The batches of an epoch that are counted: sixteen, evenly spread, again where there are fewer."""
    return [batches[(2 * i + 1) * len(batches) // 32] for i in range(16)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return partition(datasets.products_like(0.01), 1, out=tmp_path_factory.mktemp("capacity") / "store", with_edge=True)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record of rates: measuring them takes seconds."""
    path = tmp_path_factory.mktemp("bench") / "bench.json"
    path.write_text(json.dumps({"graph": "mine", "num_threads": 2, "backends": {"InProcess": FIGURES}}))
    return path


@pytest.fixture
def capacity(bench: Path) -> Any:
    """What ``gnnkit plan-capacity`` says of a source, as JSON; options are those of the command, such as ``train_rate``."""

    def ask(source: object, **options: object) -> Any:
        return said("plan-capacity", source, "--bench", bench, *(f"--{name.replace('_', '-')}={value}" for name, value in options.items()))

    return ask


def bytes_on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.npy"))


# Disk ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        BuildOptions(3, with_edge=True),
        BuildOptions(2, "random", with_edge=True),
        BuildOptions(3, "random", with_edge=True, cache_ratio=0.1),
        BuildOptions(2, with_edge=True, feature_dtype="quint8"),
        BuildOptions(2, with_edge=True, feature_dtype="quint4x2"),
        BuildOptions(1, with_edge=True),
    ],
)
def test_a_store_takes_the_bytes_that_were_predicted(store: Store, tmp_path: Path, capacity: Any, options: BuildOptions) -> None:
    built = stored(store, tmp_path / "cut", options)
    uncut = replace(options, num_parts=2 if options.num_parts == 3 else 1, partition="contiguous")
    whole = stored(store, tmp_path / "whole", uncut)
    predicted = capacity(whole.path, num_parts=options.num_parts, partition=options.partition)["graph"]
    assert predicted["nbytes"] == pytest.approx(bytes_on_disk(built.path), rel=0 if options.cache_ratio == 0 else 1e-3)
    seen = capacity(built.path, num_parts=options.num_parts)["graph"]
    assert seen["nbytes"] == bytes_on_disk(built.path)
    for part, nbytes in enumerate(seen["part_bytes"]):
        assert nbytes == bytes_on_disk(built.path / f"part{part}")
        assert predicted["part_bytes"][part] == pytest.approx(nbytes, rel=0.1), "parts have about the same share"


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
def test_batches_are_no_larger_than_the_bound(store: Store, capacity: Any, fan_out: list[int], batch_size: int) -> None:
    """That of a larger graph of the same kind, which is not here: a bound that has no more nodes than there are is above it."""
    wanted = {"num_neighbors": ",".join(map(str, fan_out)), "batch_size": batch_size}
    bound, mean = (capacity(place, **wanted)["batch"] for place in ("ogbn-products", store.path))
    options: dict[str, Any] = {"num_neighbors": fan_out, "batch_size": batch_size, "backend": InProcess(1), "progress": False}
    with GraphLoader.from_store(store.path, with_edge=False, **options) as loader:
        batches = list(loader)
    nbytes = sum(value.nbytes for batch in looked_at(batches) for _, value in batch if hasattr(value, "nbytes")) / 16
    assert nbytes <= mean["bytes"] <= 1.02 * nbytes + 1024, "bytes follow from the numbers of nodes and edges"
    nodes, edges = (sum(getattr(batch, name) for batch in batches) / len(batches) for name in ("num_nodes", "num_edges"))
    tree = [batch_size * int(np.prod(fan_out[:hop])) for hop in range(len(fan_out) + 1)]
    assert nodes <= bound["nodes"] <= sum(tree) and edges <= bound["edges"] <= sum(tree[1:])


def test_batches_of_a_store_are_counted_and_not_bounded(store: Store, capacity: Any, capfd: pytest.CaptureFixture[str]) -> None:
    batch = capacity(store.path, num_neighbors="-1,3", batch_size=32)["batch"]
    assert "sampled from the store" in batch["source"] and 32 < batch["nodes"] <= store.schema.num_nodes
    code, _, err = run_captured(capfd, ["plan-capacity", "ogbn-arxiv", "--num-neighbors=-1"])
    assert code == 2 and "-1 cannot be bounded" in err


@pytest.mark.parametrize("kind", ["nodes", "all nodes", "links"])
def test_batches_of_a_plan_are_those_of_its_inputs(
    store: Store, tmp_path: Path, capacity: Any, bench: Path, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"num_neighbors": [4, 2], "batch_size": 48, "progress": False}
    if kind == "links":
        loader = GraphLoader.from_store(store.path, edge_label_index=np.arange(96).reshape(2, 48), neg_sampling="binary", **options)
    else:
        loader = GraphLoader.from_store(store.path, input_nodes=np.arange(4000, 4096) if kind == "nodes" else None, **options)
    with loader:
        loader.plan.save(tmp_path / "plan.json")
        batches = looked_at(list(loader))
    size = capacity(tmp_path / "plan.json")["batch"]
    assert size["nodes"] == pytest.approx(sum(batch.num_nodes for batch in batches) / len(batches))
    assert size["edges"] == pytest.approx(sum(batch.num_edges for batch in batches) / len(batches))
    assert capacity(tmp_path / "plan.json", num_neighbors=1)["batch"]["nodes"] < size["nodes"]
    assert "trainers of 48 seeds, num_neighbors 4,2" in run_captured(capfd, ["plan-capacity", tmp_path / "plan.json", "--bench", bench])[1]


# What follows ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def papers(capacity: Any) -> Any:
    """Four machines of 64 processors and OGB's largest graph, with other options."""
    return lambda **options: capacity(PAPERS, nodes=4, cpus=64, **options)


def test_the_first_placement_that_fits_a_quarter_of_memory_is_chosen(papers: Any) -> None:
    large, middle, small = (papers(procs_per_node=8, memory=memory, network="24Gbit") for memory in ("512GB", "128GB", "80GB"))
    assert large["placement"] == "replicate" and large["network"] == 0 and "network" not in large["limits"]
    assert middle["placement"] == "features" and small["placement"] == "partition"
    assert small["network"] > middle["network"] > 0 and small["disk"] < middle["disk"] < large["disk"] / 2
    for each in (large, middle, small):
        assert each["disk"] == each["holding"][each["placement"]] and each["network"] * 1024 == each["crossing"][each["placement"]]
        assert each["crossing"] == small["crossing"] and list(each["crossing"]) == ["replicate", "features", "partition"]


def test_the_least_limit_is_the_bottleneck(papers: Any) -> None:
    slow_network = papers(memory="200GB", network="800Mbit")
    assert slow_network["bottleneck"] == "network" and slow_network["seeds_per_s"] == slow_network["limits"]["network"]
    slow_model = papers(memory="2TB", network="8Tbit", train_rate=10.0)
    assert slow_model["bottleneck"] == "training" and slow_model["seeds_per_s"] == 10.0
    no_memory = papers(memory="8GB", network="8Tbit")
    assert no_memory["bottleneck"] == "memory" and "read from disk" in no_memory["notes"][0]


def test_storage_machines_hold_the_graph_and_trainers_do_not(papers: Any) -> None:
    found = papers(procs_per_node=8, storage_nodes=2, memory="512GB", network="24Gbit")
    graph = found["graph"]
    held = max(graph["part_bytes"]) + graph["shared_bytes"]
    assert "graph" not in found["memory"] and found["storage_memory"]["graph"] == found["disk"] == held
    assert found["network"] == pytest.approx(found["batch"]["bytes"] / 1024)


def test_rates_from_a_record_of_bench(papers: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rates = papers()["rates"]
    assert (rates["edges_per_s"], rates["bytes_per_s"]) == (1e6, 1e9) and "mine" in rates["source"]
    (tmp_path / "other.json").write_text("{}")
    code, _, err = run_captured(capfd, ["plan-capacity", PAPERS, "--bench", tmp_path / "other.json"])
    assert code == 2 and "no record of gnnkit bench" in err


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

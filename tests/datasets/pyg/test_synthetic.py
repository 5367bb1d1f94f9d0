"""products_like: the shape it promises, the same graph everywhere, and labels that need features and neighbourhood."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gnnkit import BuildOptions
from gnnkit.datasets import GraphSource, products_like
from gnnkit.errors import PlanError

EDGES = ("node", "to", "node")

# What this generator version gives for scale 0.002 and seed 0, on every machine. It changes with GENERATOR_VERSION only.
GOLDEN = "22b87a7214d07234966bb53f97107767f9ffc160e67427b7ee80fb3d1bbb7dbd"


def edges_of(source: GraphSource) -> NDArray[np.int64]:
    return np.concatenate(list(source.edge_chunks(EDGES)), axis=1)


def rows_of(source: GraphSource, name: str) -> NDArray[np.generic]:
    return np.concatenate(list(source.node_array_chunks("node", name)))


def digest_of(source: GraphSource) -> str:
    digest = hashlib.sha256(edges_of(source).astype("<i8").tobytes())
    digest.update(rows_of(source, "x").astype("<f4").tobytes())
    digest.update(rows_of(source, "y").astype("<i8").tobytes())
    for split in ("train", "valid", "test"):
        digest.update(source.splits["node"][split].astype("<i8").tobytes())
    return digest.hexdigest()


def test_full_size_is_ogbn_products_size() -> None:
    source = products_like(1)
    assert (source.schema.num_nodes, source.schema.num_edges) == (2_449_029, 2 * 61_859_140)
    assert {split: len(ids) for split, ids in source.splits["node"].items()} == {"train": 196_615, "valid": 39_323, "test": 2_213_091}
    assert source.metadata["num_classes"] == 47
    assert source.metadata["task_type"] == "multiclass classification"
    assert source.metadata["eval_metric"] == "acc"
    assert "not OGB's data" in str(source.notice)


def test_the_graph_is_the_same_everywhere() -> None:
    assert digest_of(products_like(0.002)) == GOLDEN


def test_chunks_may_be_cut_anywhere() -> None:
    source = products_like(0.002)

    def pieces(total: int, step: int) -> Iterator[tuple[int, int]]:
        return ((first, min(total, first + step)) for first in range(0, total, step))

    edges = [source.edge_rows(EDGES, *piece) for piece in pieces(source.schema.num_edges, 777)]
    np.testing.assert_array_equal(np.concatenate(edges, axis=1), edges_of(source))
    for name in ("x", "y"):
        rows = [source.node_array_rows("node", name, *piece) for piece in pieces(source.num_nodes, 131)]
        np.testing.assert_array_equal(np.concatenate(rows), rows_of(source, name))


@pytest.mark.slow
def test_chunks_are_put_together_in_their_order() -> None:
    """They are generated ahead in several threads."""
    source = products_like(0.02)
    chunks = list(source.edge_chunks()), list(source.node_array_chunks("node", "x"))
    assert all(len(each) > 1 for each in chunks)
    np.testing.assert_array_equal(np.concatenate(chunks[0], axis=1), source.edge_rows(EDGES, 0, source.schema.num_edges))
    np.testing.assert_array_equal(np.concatenate(chunks[1]), source.node_array_rows("node", "x", 0, source.num_nodes))


def test_schema_and_arrays_agree() -> None:
    source = products_like(0.003)
    edges, x, y = edges_of(source), rows_of(source, "x"), rows_of(source, "y")
    schema = source.schema.node_types["node"]
    assert edges.shape == (2, source.schema.num_edges) and edges.dtype == np.int64
    assert x.shape == (schema.num_nodes, 100) and x.dtype == np.float32 and x.flags.c_contiguous
    assert y.shape == (schema.num_nodes,) and y.dtype == np.int64
    assert edges.min() >= 0 and edges.max() < schema.num_nodes
    assert set(np.unique(y)) == set(range(47))
    np.testing.assert_array_equal(edges[:, ::2], edges[::-1, 1::2], err_msg="each edge is followed by its inverse")
    assert not (edges[0] == edges[1]).any(), "no self loops"
    splits = source.splits["node"]
    np.testing.assert_array_equal(np.sort(np.concatenate(list(splits.values()))), np.arange(schema.num_nodes))
    assert all((np.diff(ids) > 0).all() for ids in splits.values())
    np.testing.assert_array_equal(x.astype(np.float16).astype(np.float32), x, err_msg="features are exact in half precision")


def test_degrees_follow_a_power_law_and_neighbours_are_near() -> None:
    source = products_like(0.02)
    edges = edges_of(source)
    degree = np.sort(np.bincount(edges[1], minlength=source.num_nodes))
    assert 50 < degree.mean() < 51
    assert np.median(degree) < 0.75 * degree.mean()
    assert degree[-1] > 100 * degree.mean()
    # The survival function is close to a line on logarithmic axes over the upper decades.
    ranks = np.unique(np.geomspace(10, len(degree) // 10, 30).astype(int))
    correlation = np.corrcoef(np.log(ranks), np.log(degree[::-1][ranks]))[0, 1]
    assert correlation < -0.98
    near = (np.abs(edges[0] - edges[1]) < 1024).mean()
    assert near > 0.4, "communities are ranges of ids"


def test_labels_need_features_and_neighbourhood() -> None:
    source = products_like(0.02)
    x, y, splits = torch.from_numpy(rows_of(source, "x")), rows_of(source, "y"), source.splits["node"]
    near = neighbour_means(source, x)
    blind = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))]
    columns = {"features": [x], "graph": [x, near, neighbour_means(source, near)], "blind graph": [blind, neighbour_means(source, blind)]}
    scores = {name: accuracy_of_least_squares(torch.hstack(parts).numpy(), y, splits) for name, parts in columns.items()}
    majority = (y[splits["test"]] == np.bincount(y[splits["train"]]).argmax()).mean()
    assert 0.2 < majority < 0.26
    assert scores["graph"] > majority + 0.30
    assert scores["graph"] > scores["features"] + 0.15
    assert scores["features"] > majority + 0.05
    assert scores["blind graph"] < majority + 0.08, "edges alone, with other nodes' features on them, say little"


def neighbour_means(source: GraphSource, x: torch.Tensor) -> torch.Tensor:
    total, degree = torch.zeros_like(x), torch.zeros(len(x))
    for chunk in source.edge_chunks(EDGES):
        neighbour, node = torch.from_numpy(chunk)
        total.index_add_(0, node, x[neighbour])
        degree.index_add_(0, node, torch.ones(len(node)))
    assert degree.min() > 0
    return total / degree[:, None]


def accuracy_of_least_squares(x: NDArray[np.float32], y: NDArray[np.generic], splits: Mapping[str, NDArray[np.int64]]) -> float:
    x = np.hstack([(x - x.mean(0)) / x.std(0), np.ones((len(x), 1))])
    train, test = splits["train"], splits["test"]
    weights = np.linalg.solve(x[train].T @ x[train] + 10 * np.eye(x.shape[1]), x[train].T @ np.eye(47)[y[train]])
    return float(((x[test] @ weights).argmax(1) == y[test]).mean())


def test_fingerprint_tells_graphs_apart() -> None:
    sources = [products_like(0.002), products_like(0.003), products_like(0.002, seed=1)]
    assert len({source.fingerprint() for source in sources}) == 3
    assert products_like(0.002).fingerprint() == sources[0].fingerprint()
    assert digest_of(sources[0]) != digest_of(sources[2])


@pytest.mark.parametrize("scale", [0, -1, float("nan"), float("inf"), 1e-6, 401, "1", True, None])
def test_bad_scale(scale: object) -> None:
    with pytest.raises(PlanError, match="scale"):
        products_like(scale)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [1.0, "0", None, True])
def test_bad_seed(seed: object) -> None:
    with pytest.raises(PlanError, match="seed"):
        products_like(0.01, seed=seed)  # type: ignore[arg-type]


def test_unknown_names() -> None:
    source = products_like(0.001)
    with pytest.raises(PlanError, match="'z'"):
        source.node_array_chunks("node", "z")
    with pytest.raises(PlanError, match="'paper'"):
        source.node_array_chunks("paper", "x")
    with pytest.raises(PlanError, match="edge_attr"):
        source.edge_array_chunks(EDGES, "edge_attr")
    with pytest.raises(PlanError, match="cites"):
        next(source.edge_chunks(("node", "cites", "node")))


def test_smallest_graph() -> None:
    source = products_like(5.3e-5)
    assert source.num_nodes == 130
    assert edges_of(source).max() < 130


@pytest.mark.slow
def test_memory_is_bounded() -> None:
    script = (
        "import resource\n"
        "from gnnkit.datasets.synthetic import products_like\n"
        "next(products_like(0.01).edge_chunks())\n"
        "sum(len(c) for c in products_like(0.01).node_array_chunks('node', 'x'))\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "source = products_like(0.5)\n"
        "assert sum(c.shape[1] for c in source.edge_chunks()) == source.schema.num_edges\n"
        "assert sum(len(c) for c in source.node_array_chunks('node', 'x')) == source.num_nodes\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)\n"
    )
    grown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=True)
    # The arrays themselves take 990 MB (edges) and 490 MB (features).
    assert int(grown.stdout) < 150


def test_straight_into_a_store(tmp_path: Path) -> None:
    events: list[Any] = []
    source = products_like(0.002)
    store = products_like(0.002, out=tmp_path / "store", options=BuildOptions(num_parts=2), events=events.append)
    assert store.path == tmp_path / "store" and store.num_parts == 2
    assert "not OGB's data" in str(store.notice) and store.metadata["num_classes"] == 47
    assert events and events[-1].kind == "end"
    np.testing.assert_array_equal(store.splits["node"]["train"], source.splits["node"]["train"])
    parts = store.arrays().nodes["node"]
    np.testing.assert_array_equal(np.concatenate([part.arrays["x"] for part in parts]), rows_of(source, "x"))
    np.testing.assert_array_equal(np.concatenate([part.arrays["y"] for part in parts]), rows_of(source, "y"))
    edges = edges_of(source)
    order = np.argsort(edges[1], kind="stable")
    indices = np.concatenate([part.indices for part in store.arrays().edges[EDGES]])
    np.testing.assert_array_equal(indices, edges[0][order])

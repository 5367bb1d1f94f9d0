"""OGB's raw layout, written by us and read by pandas in the way OGB does."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from gnnkit.datasets import open_ogb, papers_like, products_like, sample_root, shipped_data_dir, write_ogb_layout
from gnnkit.errors import PlanError
from tests.datasets.reading import ask_ogb

EDGES = ("node", "to", "node")
NOTICE = "synthetic sample, not OGB's data"


def read(path: Path) -> np.ndarray:
    return pd.read_csv(path, compression="gzip", header=None).values


def check_tree(tree: Path, scale: float) -> None:
    source = products_like(scale)
    edges = np.concatenate(list(source.edge_chunks()), axis=1)
    np.testing.assert_array_equal(read(tree / "raw/edge.csv.gz").T, edges[:, ::2])
    features = read(tree / "raw/node-feat.csv.gz").astype(np.float32)
    np.testing.assert_array_equal(features, np.concatenate(list(source.node_array_chunks("node", "x"))))
    np.testing.assert_array_equal(read(tree / "raw/node-label.csv.gz")[:, 0], source.labels)
    assert read(tree / "raw/num-node-list.csv.gz").tolist() == [[source.num_nodes]]
    assert read(tree / "raw/num-edge-list.csv.gz").tolist() == [[source.num_draws]]
    for split, ids in source.splits["node"].items():
        np.testing.assert_array_equal(read(tree / f"split/sales_ranking/{split}.csv.gz")[:, 0], ids)
    assert (tree / "RELEASE_v1.txt").exists()
    assert (tree / "NOTICE.gnnkit").read_text() == f"{NOTICE}\n"


def test_layout(tmp_path: Path) -> None:
    events: list[Any] = []
    tree = write_ogb_layout(products_like(0.001), tmp_path / "new", events=events.append)
    assert tree == tmp_path / "new" / "ogbn_products"
    check_tree(tree, 0.001)
    assert [events[0].kind, events[-1].kind] == ["start", "end"]
    assert events[-1].done == events[-1].total
    assert not list(tree.parent.glob("*.incomplete"))


@pytest.mark.parametrize("source", [products_like(1e-4), papers_like(4e-5)], ids=["products", "papers"])
def test_ogbs_own_reader_reads_it(source: Any, tmp_path: Path) -> None:
    name = source.shape.dataset
    answer = ask_ogb(name, write_ogb_layout(source, tmp_path), tmp_path / "ogb")
    edges = np.concatenate(list(source.edge_chunks()), axis=1)
    assert answer.graph["num_nodes"] == source.num_nodes
    np.testing.assert_array_equal(answer.graph["edge_index"], edges)
    labels = np.concatenate(list(source.node_array_chunks("node", "y")))
    np.testing.assert_array_equal(np.nan_to_num(answer.labels[:, 0], nan=-1), labels)
    assert {split: len(ids) for split, ids in answer.splits.items()} == {split: len(ids) for split, ids in source.splits["node"].items()}


def test_same_bytes_every_time(tmp_path: Path) -> None:
    trees = [write_ogb_layout(products_like(1e-4), tmp_path / name) for name in ("a", "b")]
    for path in sorted(trees[0].rglob("*.gz")):
        assert path.read_bytes() == (trees[1] / path.relative_to(trees[0])).read_bytes()
        with gzip.open(path) as unpacked:
            assert unpacked.read(1)


def test_the_sample_that_ships() -> None:
    tree = sample_root() / "ogbn_products"
    check_tree(tree, 0.002)
    assert sum(path.stat().st_size for path in tree.rglob("*") if path.is_file()) < 5_000_000
    assert "write_ogb_layout(products_like(0.002)" in (shipped_data_dir() / "README.md").read_text()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    write_ogb_layout(products_like(1e-4), tmp_path)
    with pytest.raises(PlanError, match="exists already"):
        write_ogb_layout(products_like(1e-4), tmp_path)


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    def fail(event: Any) -> None:
        if event.kind == "progress" and event.done > 100:
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write_ogb_layout(products_like(1e-4), tmp_path, events=fail)
    assert not list(tmp_path.iterdir())


def test_other_layouts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="ogbn-arxiv"):
        write_ogb_layout(products_like(1e-4), tmp_path, "ogbn-arxiv")


def test_the_sample_reads_as_the_graph_it_was_written_from() -> None:
    read_back = open_ogb("ogbn-products", root=sample_root(), download=False)
    source = products_like(0.002)
    assert read_back.notice == NOTICE
    assert read_back.schema == source.schema
    for name in ("num_classes", "task_type", "eval_metric"):
        assert read_back.metadata[name] == source.metadata[name]
    edges = [np.concatenate(list(graph.edge_chunks(EDGES)), axis=1) for graph in (read_back, source)]
    np.testing.assert_array_equal(*edges)
    for name in ("x", "y"):
        rows = [np.concatenate(list(graph.node_array_chunks("node", name))) for graph in (read_back, source)]
        np.testing.assert_array_equal(*rows)
    for split, ids in source.splits["node"].items():
        np.testing.assert_array_equal(read_back.splits["node"][split], ids)

"""From a dataset's name to batches: every number in them is the one that OGB's own reader finds in the tree."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnnkit import GraphLoader
from gnnkit.datasets import evaluator, sample_root
from gnnkit.errors import DatasetError, PlanError, StoreError
from tests.e2e.truth import Truth, check_batch, made_undirected, told_by_ogb
from tests.helpers.batches import digest, same
from tests.helpers.command import run
from tests.helpers.machine import ROOT
from tests.helpers.ogb_trees import write_tree

NAMES = ["ogbn-products", "ogbn-arxiv", "ogbn-proteins", "ogbn-mag", "ogbn-papers100M"]
LAYOUTS = [(1, "contiguous"), (3, "contiguous"), (3, "random"), (3, "ldg"), (3, "metis"), (3, "frequency")]
# All neighbours at first, so that what is missing is noticed; then some.
OPTIONS: dict[str, Any] = {"num_neighbors": [-1, 3], "batch_size": 5, "with_edge": True, "progress": False}


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with all datasets, each small."""
    root = tmp_path_factory.mktemp("trees")
    for name in NAMES:
        write_tree(name, root)
    return root


@pytest.fixture(scope="module")
def truths(trees: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Truth]:
    scratch = tmp_path_factory.mktemp("scratch")
    return {name: told_by_ogb(name, trees / name.replace("-", "_"), scratch) for name in NAMES}


def epoch_of(name: str, root: Path, **options: Any) -> list[Any]:
    with GraphLoader.from_ogb(name, root=root, **{**OPTIONS, **options}) as loader:
        assert len(loader) > 1
        return list(loader)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_batches_hold_what_ogb_reads(name: str, trees: Path, truths: dict[str, Truth]) -> None:
    """Whatever the parts and the partitioner; and all of them give the same batches."""
    expected = None
    for num_parts, method in LAYOUTS:
        batches = epoch_of(name, trees, num_parts=num_parts, partition=method)
        for batch in batches:
            check_batch(batch, truths[name], "train")
        expected = expected or digest(batches)
        assert digest(batches) == expected, (num_parts, method)


@pytest.mark.parametrize("name", NAMES)
def test_splits_are_the_official_ones(name: str, trees: Path, truths: dict[str, Truth]) -> None:
    truth = truths[name]
    with GraphLoader.from_ogb(name, root=trees, **OPTIONS) as loader:
        for split, ids in truth.splits.items():
            with loader.for_split(split, batch_size=4) as sibling:
                batches = list(sibling)
            for batch in batches:
                check_batch(batch, truth, split)
            seeds = [batch if truth.homogeneous else batch[truth.input_type] for batch in batches]
            visited = np.concatenate([store.n_id[: store.batch_size].numpy() for store in seeds])
            in_order = split != "train"
            assert np.array_equal(visited if in_order else np.sort(visited), ids if in_order else np.sort(ids))


@pytest.mark.parametrize("name", NAMES)
def test_undirected_is_pygs_to_undirected(name: str, trees: Path, truths: dict[str, Truth]) -> None:
    truth = made_undirected(truths[name])
    for batch in epoch_of(name, trees, undirected=True, num_parts=2):
        check_batch(batch, truth, "train")


def test_inverse_edges_lie_beside_their_edges(trees: Path, truths: dict[str, Truth]) -> None:
    """``e_id`` counts as OGB does: an edge of the file, its inverse, the next edge of the file."""
    (edge_index,) = truths["ogbn-proteins"].edge_index.values()
    assert np.array_equal(edge_index[:, 0::2], edge_index[::-1, 1::2])
    e_id = np.unique(np.concatenate([batch.e_id.numpy() for batch in epoch_of("ogbn-proteins", trees, num_neighbors=[-1, -1, -1])]))
    assert {int(i) % 2 for i in e_id} == {0, 1} and len(e_id) > 0.9 * edge_index.shape[1]


def test_edge_ids_come_with_edge_features_and_only_then(trees: Path) -> None:
    options = {**OPTIONS, "with_edge": None}
    for name, expected in (("ogbn-proteins", True), ("ogbn-products", False), ("ogbn-arxiv", False)):
        with GraphLoader.from_ogb(name, root=trees, **options) as loader:
            assert ("e_id" in loader.peek()) == expected


def test_labels_of_the_binary_layout_are_minus_one_where_there_are_none(trees: Path) -> None:
    with GraphLoader.from_ogb("ogbn-papers100M", root=trees, **OPTIONS) as loader:
        y = loader.peek().y
    assert y.dtype == torch.int64 and (y == -1).any() and (y >= 0).any()


# The second call ---------------------------------------------------------------------------------------------------------


def blanked(path: Path) -> None:
    """Overwrites the middle of a file, which no longer can be read, and leaves what identifies it."""
    size = path.stat().st_size
    assert size > 3 * 8192, f"{path} is too small for a middle"
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(bytes(size - 2 * 8192))


def test_the_second_call_does_not_read_the_dataset(tmp_path: Path) -> None:
    tree = write_tree("ogbn-arxiv", tmp_path, num_nodes=2000, num_edges=30_000)
    first = epoch_of("ogbn-arxiv", tmp_path)
    for file in ("edge.csv.gz", "node-feat.csv.gz"):
        blanked(tree / "raw" / file)
    assert digest(epoch_of("ogbn-arxiv", tmp_path)) == digest(first)
    assert digest(epoch_of("ogbn-arxiv", tmp_path, num_parts=2)) == digest(first)  # cut from the store that is there
    with pytest.raises(DatasetError, match=r"\.csv\.gz"):
        epoch_of("ogbn-arxiv", tmp_path, edge_dir="out")  # another graph is needed, and the files are read


def test_another_tree_makes_another_store(tmp_path: Path) -> None:
    tree = write_tree("ogbn-arxiv", tmp_path)
    first = epoch_of("ogbn-arxiv", tmp_path)
    shutil.rmtree(tree)
    write_tree("ogbn-arxiv", tmp_path, seed=1)
    assert digest(epoch_of("ogbn-arxiv", tmp_path)) != digest(first)
    assert len(list((tmp_path / "stores").glob("ogbn-arxiv-*"))) == 2


# Where stores go ---------------------------------------------------------------------------------------------------------

_READ_ONLY = """
import json, os, sys
from gnnkit import GraphLoader
root = sys.argv[1]
assert not os.access(root, os.W_OK)
with GraphLoader.from_ogb("ogbn-products", root=root, num_neighbors=[2, 2], batch_size=4, progress=False) as loader:
    print(json.dumps([str(loader.store.path), sum(batch.batch_size for batch in loader)]))
"""


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    write_tree("ogbn-products", tmp_path / "data")
    paths = [*(tmp_path / "data").rglob("*"), tmp_path / "data"]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield tmp_path / "data"
    for path in reversed(paths):
        path.chmod(0o755)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root may write anywhere, and there is no setpriv")
def test_the_store_of_a_read_only_tree_is_in_the_users_folder(read_only: Path, tmp_path: Path) -> None:
    # Root without the right to ignore permissions.
    drop = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    home = Path(os.environ["GNNKIT_HOME"])
    done = subprocess.run(
        [*drop, sys.executable, "-c", _READ_ONLY, str(read_only)], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    path, num_seeds = json.loads(done.stdout)
    assert Path(path).parent == home / "stores" and num_seeds == 12
    assert not (read_only / "stores").exists()


def snapshot(folder: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in [folder, *folder.rglob("*")]}


def test_the_sample_says_what_it_is_and_is_not_written_to(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GNNKIT_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "250")
    before = snapshot(sample_root())
    with GraphLoader.from_ogb("ogbn-products", root=sample_root(), num_neighbors=[3], batch_size=64, progress=False) as loader:
        shown = loader._repr_mimebundle_()
        store = loader.store
        for text in (repr(loader), shown["text/plain"], shown["text/html"].replace("&#39;", "'"), repr(store)):
            assert "synthetic sample, not OGB's data" in text
        assert sum(batch.batch_size for batch in loader) == len(store.splits["node"]["train"])
    assert store.path.is_relative_to(os.environ["GNNKIT_HOME"])
    for command in (["info", str(store.path)], ["stores", "ls"], ["stores", "ls", "--json"]):
        assert run(command) == 0
        out = " ".join(capfd.readouterr().out.split())
        assert "synthetic sample, not OGB's data" in out, command
    assert snapshot(sample_root()) == before


# Plans -------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def planned(tmp_path: Path) -> tuple[Path, list[Any], dict[str, Any]]:
    """A plan's file, the batches of the loader that wrote it, and its JSON; the store lies in a folder beside the file."""
    write_tree("ogbn-proteins", tmp_path)
    with GraphLoader.from_ogb("ogbn-proteins", root=tmp_path, store_dir=tmp_path / "my" / "stores", seed=3, **OPTIONS) as loader:
        path = tmp_path / "plan.json"
        loader.plan.save(path)
        return path, list(loader), json.loads(path.read_text())


def batches_of_plan(path: Path) -> list[Any]:
    with GraphLoader.from_plan(path, progress=False) as loader:
        return list(loader)


def test_a_written_plan_gives_the_same_batches(planned: tuple[Path, list[Any], dict[str, Any]]) -> None:
    path, expected, _ = planned
    for got, wanted in zip(batches_of_plan(path), expected, strict=True):
        same(got, wanted)


def test_a_relative_store_is_relative_to_the_plan(
    planned: tuple[Path, list[Any], dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, expected, plan = planned
    assert not os.path.isabs(plan["store"]["path"])
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    shutil.move(path, moved / "plan.json")
    shutil.move(tmp_path / "my", moved / "my")
    monkeypatch.chdir("/")
    assert digest(batches_of_plan(moved / "plan.json")) == digest(expected)


def test_a_plan_takes_its_graph_in_other_parts_and_refuses_another_one(planned: tuple[Path, list[Any], dict[str, Any]]) -> None:
    path, expected, plan = planned
    with GraphLoader.from_ogb("ogbn-proteins", root=path.parent, num_parts=2, **OPTIONS) as other:
        plan["store"]["path"] = str(other.store.path)
    path.write_text(json.dumps(plan))
    assert digest(batches_of_plan(path)) == digest(expected)
    with GraphLoader.from_ogb("ogbn-proteins", root=path.parent, **(OPTIONS | {"with_edge": False})) as other:
        plan["store"]["path"] = str(other.store.path)
    path.write_text(json.dumps(plan))
    with pytest.raises(StoreError, match="the plan was made for"):
        batches_of_plan(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda plan: plan.pop("sampling"),
        lambda plan: plan.update(version=99),
        lambda plan: plan.update(version=1),
        lambda plan: plan.update(store=None),
        lambda plan: plan["store"].update(path=None),
        lambda plan: plan["inputs"].update(ids="!"),
        lambda plan: plan["inputs"].update(node_type="author"),
        lambda plan: plan["inputs"].update(split="evaluation"),
        lambda plan: plan["sampling"].update(num_neighbors=[]),
        lambda plan: plan["sampling"].update(weight="weight"),
        lambda plan: plan["sampling"].update(edge_dir="out"),
        lambda plan: plan["sampling"].update(with_edge="yes"),
        lambda plan: plan["sampling"]["num_neighbors"][0].update(num_neighbors=[-2]),
        lambda plan: plan["sampling"].update(num_neighbors=3),
        lambda plan: plan["batching"].update(batch_size=0),
        lambda plan: plan["batching"].update(shuffle=None),
        lambda plan: plan["backend"].update(num_threads=0),
        lambda plan: plan["inputs"].update(ids="eJyzYYAAAAHoAD0=") or plan["inputs"].update(split=None),
        lambda plan: plan["inputs"].update(stream=None),
        lambda plan: plan["runtime"].update(prefetch="many"),
        lambda plan: plan["backend"].update(kind="Threads"),
    ],
)
def test_a_damaged_plan_is_an_error(planned: tuple[Path, list[Any], dict[str, Any]], change: Any) -> None:
    path, _, plan = planned
    change(plan)
    path.write_text(json.dumps(plan))
    with pytest.raises(PlanError):
        batches_of_plan(path)


# Evaluation --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ogbn-products", "ogbn-proteins", "ogbn-mag"])
def test_labels_of_batches_go_into_ogbs_evaluator(name: str, trees: Path, truths: dict[str, Truth]) -> None:
    truth = truths[name]
    with GraphLoader.from_ogb(name, root=trees, input_nodes="test", **OPTIONS) as loader:
        stores = [batch if truth.homogeneous else batch[truth.input_type] for batch in loader]
        facts = loader.metadata
    labels = torch.cat([store.y[: store.batch_size] for store in stores]).view(-1, facts["num_tasks"])
    assert len(labels) == len(truth.splits["test"])
    (score,) = evaluator(name).eval({"y_true": labels, "y_pred": labels}).values()
    (worst,) = evaluator(name).eval({"y_true": labels, "y_pred": 1 - labels}).values()
    assert score == 1.0 and worst < 0.1

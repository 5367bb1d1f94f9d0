"""Every OGB layout gives what OGB's own reader gives, streamed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnkit.datasets import evaluator, ogb_names, ogb_table, open_ogb
from gnnkit.datasets.ogb import ogb_info
from gnnkit.datasets.ogb_table import CsvTable
from gnnkit.errors import DatasetError
from tests.datasets.reading import ask_ogb, read_edge_array, read_edges, read_everything, read_node_array
from tests.helpers.ogb_trees import read_text, write_csv, write_tree

EDGES = ("node", "to", "node")

UNTYPED = ["ogbn-products", "ogbn-arxiv", "ogbn-proteins", "ogbn-papers100M"]
EVERY = [*UNTYPED, "ogbn-mag"]


@pytest.fixture(params=[64, ogb_table._BLOCK_BYTES], ids=["tiny blocks", "blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once as it is, and once with a seam between blocks at every few rows."""
    monkeypatch.setattr(ogb_table, "_BLOCK_BYTES", request.param)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("name", UNTYPED)
def test_untyped_graphs_equal_ogbs_own_reading(name: str, tmp_path: Path) -> None:
    tree = write_tree(name, tmp_path / "root")
    source = open_ogb(name, root=tmp_path / "root", download=False)
    theirs = ask_ogb(name, tree, tmp_path)

    assert source.schema.is_homogeneous
    assert source.schema.num_nodes == theirs.graph["num_nodes"]
    np.testing.assert_array_equal(read_edges(source, EDGES), theirs.graph["edge_index"])
    renamed = {"node_feat": "x", "edge_feat": "edge_attr"}
    expected = {
        renamed.get(key, key): value for key, value in theirs.graph.items() if value is not None and key not in ("edge_index", "num_nodes")
    }
    nodes, edges = source.schema.node_types["node"].arrays, source.schema.edge_types[EDGES].arrays
    assert {*nodes, *edges} - {"y"} == set(expected)
    for key, value in expected.items():
        mine = read_node_array(source, "node", key) if key in nodes else read_edge_array(source, EDGES, key)
        assert mine.dtype == value.dtype
        np.testing.assert_array_equal(mine, value)
    labels = theirs.labels[:, 0] if theirs.labels.shape[1] == 1 else theirs.labels
    np.testing.assert_array_equal(read_node_array(source, "node", "y"), np.nan_to_num(labels, nan=-1).astype(np.int64))
    for split, ids in theirs.splits.items():
        np.testing.assert_array_equal(source.splits["node"][split], ids)


@pytest.mark.usefixtures("blocks")
def test_typed_graph_equals_ogbs_own_reading(tmp_path: Path) -> None:
    tree = write_tree("ogbn-mag", tmp_path / "root")
    source = open_ogb("ogbn-mag", root=tmp_path / "root", download=False)
    theirs = ask_ogb("ogbn-mag", tree, tmp_path)

    assert not source.schema.is_homogeneous
    assert {key: table.num_nodes for key, table in source.schema.node_types.items()} == theirs.graph["num_nodes_dict"]
    assert set(source.schema.edge_types) == set(theirs.graph["edge_index_dict"])
    for edge_type, edge_index in theirs.graph["edge_index_dict"].items():
        np.testing.assert_array_equal(read_edges(source, edge_type), edge_index)
        np.testing.assert_array_equal(read_edge_array(source, edge_type, "edge_reltype"), theirs.graph["edge_reltype"][edge_type])
        assert set(source.schema.edge_types[edge_type].arrays) == {"edge_reltype"}
    assert {key: set(table.arrays) for key, table in source.schema.node_types.items()} == {
        "author": set(), "field_of_study": set(), "institution": set(), "paper": {"x", "y", "node_year"}
    }  # fmt: skip
    np.testing.assert_array_equal(read_node_array(source, "paper", "x"), theirs.graph["node_feat_dict"]["paper"])
    np.testing.assert_array_equal(read_node_array(source, "paper", "node_year"), theirs.graph["node_year"]["paper"])
    np.testing.assert_array_equal(read_node_array(source, "paper", "y"), theirs.labels["paper"][:, 0])
    assert set(source.splits) == {"paper"}
    for split, ids in theirs.splits.items():
        np.testing.assert_array_equal(source.splits["paper"][split], ids["paper"])


def test_inverse_edges_lie_beside_their_edges(tmp_path: Path) -> None:
    tree = write_tree("ogbn-proteins", tmp_path)
    source = open_ogb("ogbn-proteins", root=tmp_path, download=False)
    written = np.loadtxt(read_text(tree / "raw/edge.csv.gz").splitlines(), delimiter=",", dtype=np.int64)
    edges = read_edges(source, EDGES)
    np.testing.assert_array_equal(edges[:, 0::2].T, written)
    np.testing.assert_array_equal(edges[::-1, 1::2].T, written)
    features = read_edge_array(source, EDGES, "edge_attr")
    np.testing.assert_array_equal(features[0::2], features[1::2])


@pytest.mark.parametrize("kind", ["stored", "fortran", "half", "big-endian", "flat labels"])
def test_variants_of_the_binary_layout(kind: str, tmp_path: Path) -> None:
    tree = write_tree("ogbn-papers100M", tmp_path)
    with np.load(tree / "raw/data.npz") as file:
        arrays = dict(file)
    labels = np.load(tree / "raw/node-label.npz")["node_label"]
    save = np.savez if kind == "stored" else np.savez_compressed
    if kind == "fortran":
        arrays["edge_index"] = np.asfortranarray(arrays["edge_index"])
    elif kind == "half":
        arrays["node_feat"] = arrays["node_feat"].astype(np.float16)
    elif kind == "big-endian":
        arrays = {key: value.astype(value.dtype.newbyteorder(">")) for key, value in arrays.items()}
        labels = labels.astype(">f4")
    elif kind == "flat labels":
        labels = labels[:, 0]
    save(tree / "raw/data.npz", **arrays)
    save(tree / "raw/node-label.npz", node_label=labels)
    source = open_ogb("ogbn-papers100M", root=tmp_path, download=False)
    np.testing.assert_array_equal(read_edges(source, EDGES), arrays["edge_index"])
    np.testing.assert_array_equal(read_node_array(source, "node", "x"), arrays["node_feat"])
    np.testing.assert_array_equal(read_node_array(source, "node", "y"), np.nan_to_num(labels.reshape(-1), nan=-1))


def test_missing_labels_in_text_are_minus_one(tmp_path: Path) -> None:
    tree = write_tree("ogbn-arxiv", tmp_path, num_nodes=5)
    write_csv(tree / "raw/node-label.csv.gz", [["3.0"], [None], ["nan"], ["39"], [0]])
    source = open_ogb("ogbn-arxiv", root=tmp_path, download=False)
    assert read_node_array(source, "node", "y").tolist() == [3, -1, -1, 39, 0]


def test_features_of_whole_numbers_stay_whole_as_in_ogb(tmp_path: Path) -> None:
    tree = write_tree("ogbn-arxiv", tmp_path / "root", num_nodes=4)
    write_csv(tree / "raw/node-feat.csv.gz", [[1, -2], [3, 4], [5, 6], [7, 8]])
    theirs = ask_ogb("ogbn-arxiv", tree, tmp_path)
    source = open_ogb("ogbn-arxiv", root=tmp_path / "root", download=False)
    x = read_node_array(source, "node", "x")
    assert x.dtype == theirs.graph["node_feat"].dtype == np.int64
    np.testing.assert_array_equal(x, theirs.graph["node_feat"])


def test_one_fraction_far_from_the_start_makes_features_float(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ogb_table, "_SAMPLE_BYTES", 100)
    tree = write_tree("ogbn-arxiv", tmp_path, num_nodes=500)
    write_csv(tree / "raw/node-feat.csv.gz", [*([1, 2] for _ in range(499)), [1, 0.5]])
    x = read_node_array(open_ogb("ogbn-arxiv", root=tmp_path, download=False), "node", "x")
    assert x.dtype == np.float32
    assert x[-1].tolist() == [1, 0.5]


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.tuples(*[st.floats(width=32, allow_nan=True, allow_infinity=False)] * 3), min_size=1, max_size=40),
    line_end=st.sampled_from(["\n", "\r\n"]),
    last_end=st.booleans(),
)
def test_floats_survive_as_their_shortest_text(
    values: list[tuple[float, ...]], line_end: str, last_end: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    import gzip

    expected = np.array(values, np.float32)
    text = line_end.join(",".join("nan" if np.isnan(v) else str(v) for v in row) for row in expected) + (line_end if last_end else "")
    path = tmp_path_factory.mktemp("floats") / "a.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    table = CsvTable(path, 3, np.dtype(np.float32), len(values))
    np.testing.assert_array_equal(np.concatenate(list(table.rows())), expected)
    np.testing.assert_array_equal(np.concatenate(list(table.rows(transposed=True)), axis=1), expected.T)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("folder", ["ogb", "pyg", "archive"])
def test_trees_are_found_where_others_leave_them_and_are_only_read(name: str, folder: str, tmp_path: Path) -> None:
    names = {"ogb": name.replace("-", "_"), "pyg": name.replace("-", "_") + "_pyg", "archive": ogb_info(name).download_name}
    tree = write_tree(name, tmp_path, folder=names[folder])
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in tmp_path.rglob("*")}
    read_everything(open_ogb(name, root=tmp_path, download=False))
    read_everything(open_ogb(name, root=tree, download=False))
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in tmp_path.rglob("*")} == before


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() == 0 and not Path("/usr/bin/setpriv").exists(), reason="root may write anywhere, and there is no setpriv")
def test_a_tree_without_write_permission_is_read(tmp_path: Path) -> None:
    tree = write_tree("ogbn-proteins", tmp_path)
    (tree / "raw/node_species.csv.gz").rename(tree / "raw/species.csv.gz")
    paths = [*tree.rglob("*"), tree, tmp_path]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    code = (
        "import os; from tests.datasets.reading import read_everything, read_node_array; from gnnkit.datasets.ogb import open_ogb;"
        f"assert not os.access({str(tree)!r}, os.W_OK); s = open_ogb('ogbn-proteins', root={str(tmp_path)!r}, download=False);"
        "read_everything(s); s.fingerprint(); print(read_node_array(s, 'node', 'node_species').shape)"
    )
    # Root without the right to ignore permissions.
    drop = ["/usr/bin/setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    try:
        done = subprocess.run(
            [*drop, sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=240, check=False
        )
    finally:
        for path in reversed(paths):
            path.chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "(60, 1)"


def test_the_tree_that_pyg_makes_of_mag_is_read(tmp_path: Path) -> None:
    whole = write_tree("ogbn-mag", tmp_path / "whole")
    expected = open_ogb("ogbn-mag", root=tmp_path / "whole", download=False)
    # torch_geometric.datasets.OGB_MAG moves these five into mag/raw and drops the rest.
    raw = tmp_path / "mag" / "raw"
    raw.mkdir(parents=True)
    for name in ("node-feat", "node-label", "relations", "num-node-dict.csv.gz"):
        (whole / "raw" / name).rename(raw / name)
    (whole / "split").rename(raw / "split")
    (raw / "split/time/nodetype-has-split.csv.gz").unlink()
    messages: list[Any] = []
    source = open_ogb("ogbn-mag", root=tmp_path, download=False, events=messages.append)
    assert source.schema == expected.schema
    assert set(source.splits) == {"paper"}
    read_everything(source)
    assert any("cannot tell whether it is the current release" in event.text for event in messages)


@pytest.mark.parametrize("name", EVERY)
def test_fingerprint_is_of_content(name: str, tmp_path: Path) -> None:
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_tree(name, tmp_path / folder, seed=seed)
    prints = {folder: open_ogb(name, root=tmp_path / folder, download=False).fingerprint() for folder in "abc"}
    assert prints["a"] != prints["c"]
    if name != "ogbn-papers100M":
        # The dates of a zip's members are in its directory, which makes two of them differ; gzip's are left out here.
        assert prints["a"] == prints["b"]
    assert open_ogb(name, root=tmp_path / "a", download=False).fingerprint() == prints["a"]
    split = next((tmp_path / "a").rglob("valid.csv.gz"))
    write_csv(split, [[1], [2]])
    assert open_ogb(name, root=tmp_path / "a", download=False).fingerprint() != prints["a"]


def test_metadata_is_ogbs(tmp_path: Path) -> None:
    write_tree("ogbn-proteins", tmp_path)
    metadata = open_ogb("ogbn-proteins", root=tmp_path, download=False).metadata
    facts = {key: metadata[key] for key in ("num_classes", "num_tasks", "task_type", "eval_metric")}
    assert facts == {"num_classes": 2, "num_tasks": 112, "task_type": "binary classification", "eval_metric": "rocauc"}
    assert [name for name in ogb_names() if name.startswith("ogbn-")] == sorted(EVERY)


def test_notice_of_a_generated_tree_is_handed_on(tmp_path: Path) -> None:
    tree = write_tree("ogbn-products", tmp_path)
    assert open_ogb("ogbn-products", root=tmp_path, download=False).notice is None
    (tree / "NOTICE.gnnkit").write_text("synthetic sample, not OGB's data\n")
    assert open_ogb("ogbn-products", root=tmp_path, download=False, undirected=True).notice == "synthetic sample, not OGB's data"


def test_the_root_is_gnnkit_home_unless_one_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNKIT_HOME", str(tmp_path))
    write_tree("ogbn-arxiv", tmp_path)
    assert open_ogb("ogbn-arxiv", download=False, undirected=True).schema.num_nodes == 60
    assert {path.name for path in tmp_path.iterdir()} == {"ogbn_arxiv"}


def test_splits_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    tree = write_tree("ogbn-arxiv", tmp_path)
    source = open_ogb("ogbn-arxiv", root=tmp_path, download=False)
    (tree / "split/time/test.csv.gz").unlink()
    assert source.splits["node"]["train"] is source.splits["node"]["train"]
    assert list(source.splits["node"]) == ["train", "valid", "test"]
    with pytest.raises(DatasetError, match=r"test.csv.gz is missing"):
        source.splits["node"]["test"]
    with pytest.raises(KeyError):
        source.splits["paper"]


@pytest.mark.slow
def test_evaluator_is_ogbs_and_leaves_the_process_alone() -> None:
    code = """
import os, sys, threading
os.environ.pop("OUTDATED_IGNORE", None)
from gnnkit.datasets.ogb import evaluator
assert "ogb" not in sys.modules
judge = evaluator("ogbn-arxiv")
import numpy as np
print(judge.eval({"y_true": np.array([[1], [2]]), "y_pred": np.array([[1], [3]])})["acc"])
assert type(judge) is sys.modules["ogb.nodeproppred"].Evaluator
assert "OUTDATED_IGNORE" not in os.environ and "outdated" not in sys.modules
assert not [t for t in threading.enumerate() if getattr(t, "_target", None) is not None and t._target.__module__ == "ogb.version"]
assert sys.modules["ogb.version"].check_outdated is None
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("0.5")


def test_opening_imports_no_ogb_torch_or_pandas(tmp_path: Path) -> None:
    write_tree("ogbn-products", tmp_path)
    code = (
        "import sys; from gnnkit.datasets.ogb import open_ogb; from tests.datasets.reading import read_everything;"
        f"read_everything(open_ogb('ogbn-products', root={str(tmp_path)!r}, download=False));"
        "print([m for m in ('ogb', 'torch', 'pandas', 'torch_geometric') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=240, check=False
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_a_missing_ogb_package_is_said_with_the_line_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from gnnkit.vendor import ogb as vendor_ogb

    vendor_ogb.master_table.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DatasetError, match="not installed") as caught:
        open_ogb("ogbn-products")
    assert "pip install" in str(caught.value.hint)
    with pytest.raises(DatasetError, match="not installed"):
        evaluator("ogbn-products")

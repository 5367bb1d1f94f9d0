"""Wrong names and damaged files: an error that names file and row, before anything wrong is handed on."""

from __future__ import annotations

import gzip
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnkit.datasets import open_ogb
from gnnkit.errors import DatasetError
from tests.datasets.reading import read_everything
from tests.helpers.ogb_trees import read_text, rewrite, write_csv, write_tree


def read(name: str, root: Path) -> None:
    read_everything(open_ogb(name, root=root, download=False))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ogbn-product", "did you mean 'ogbn-products'"),
        ("OGBN_Arxiv", "did you mean 'ogbn-arxiv'"),
        ("reddit", "there is no OGB dataset 'reddit'"),
        ("ogbg-molhiv", "graph prediction dataset, which gnnkit does not read"),
    ],
)
def test_unknown_names(name: str, expected: str) -> None:
    with pytest.raises(DatasetError, match=expected) as caught:
        open_ogb(name, download=False)
    assert "ogbn-papers100M" in str(caught.value)


def test_download_takes_three_values() -> None:
    with pytest.raises(DatasetError, match="download must be 'auto', True or False, got 'yes'"):
        open_ogb("ogbn-arxiv", download="yes")  # type: ignore[arg-type]


def _cut_gz(tree: Path) -> None:
    path = tree / "raw/edge.csv.gz"
    path.write_bytes(path.read_bytes()[:-20])


def _flip_gz(tree: Path) -> None:
    path = tree / "raw/node-feat.csv.gz"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(bytes(data))


def _replace_row(file: str, row: int, text: str) -> Callable[[Path], None]:
    def damage(tree: Path) -> None:
        lines = read_text(tree / file).splitlines()
        lines[row - 1] = text
        (tree / file).write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))

    return damage


def _drop_row(file: str) -> Callable[[Path], None]:
    return _rewritten(file, lambda text: text.partition("\n")[2])


def _add_row(file: str, row: str) -> Callable[[Path], None]:
    return _rewritten(file, lambda text: f"{text}{row}\n")


def _rewritten(file: str, change: Callable[[str], str]) -> Callable[[Path], None]:
    def damage(tree: Path) -> None:
        (tree / file).write_bytes(gzip.compress(change(read_text(tree / file)).encode()))

    return damage


def _pickle_split(tree: Path) -> None:
    (tree / "split/time/train.csv.gz").unlink()
    (tree / "split/time/split_dict.pt").touch()


DAMAGE = {
    "truncated gz": (_cut_gz, r"edge.csv.gz: Compressed file ended before"),
    "flipped bit": (_flip_gz, r"node-feat.csv.gz: "),
    "not gz": (lambda tree: (tree / "raw/edge.csv.gz").write_bytes(b"0,1\n1,2\n"), r"edge.csv.gz: .*header"),
    "missing edges": (lambda tree: (tree / "raw/num-edge-list.csv.gz").unlink(), r"num-edge-list.csv.gz is missing"),
    "missing labels": (lambda tree: (tree / "raw/node-label.csv.gz").unlink(), r"node-label.csv.gz is missing"),
    "missing year": (lambda tree: (tree / "raw/node_year.csv.gz").unlink(), r"node_year.csv.gz is missing"),
    "missing split": (lambda tree: (tree / "split/time/valid.csv.gz").unlink(), r"valid.csv.gz is missing"),
    "text for an id": (_replace_row("raw/edge.csv.gz", 117, "5,x"), r"edge.csv.gz: row 117: .*'x'"),
    "fraction for an id": (_replace_row("raw/edge.csv.gz", 3, "5,1.5"), r"edge.csv.gz: row 3: .*'1.5'"),
    "no id": (_replace_row("raw/edge.csv.gz", 9, "5,"), r"edge.csv.gz: row 9: column 1 is empty"),
    "three columns": (_replace_row("raw/edge.csv.gz", 8, "1,2,3"), r"edge.csv.gz: row 8: Expected 2 columns, got 3"),
    "id too large": (_replace_row("raw/edge.csv.gz", 200, "60,1"), r"edge.csv.gz: row 200: source node 60 is outside \[0, 60\)"),
    "negative id": (_replace_row("raw/edge.csv.gz", 2, "1,-1"), r"edge.csv.gz: row 2: target node -1 is outside"),
    "edge lost": (_drop_row("raw/edge.csv.gz"), r"edge.csv.gz has 199 rows where .*num-edge-list.csv.gz says 200"),
    "edge added": (_add_row("raw/edge.csv.gz", "1,2"), r"edge.csv.gz has more rows where .* says 200"),
    "node lost": (_drop_row("raw/node-feat.csv.gz"), r"node-feat.csv.gz has 59 rows where .*num-node-list.csv.gz says 60"),
    "label of no class": (
        _replace_row("raw/node-label.csv.gz", 7, "40"),
        r"node-label.csv.gz: row 7: label 40.0 is not one of the classes 0 to 39",
    ),
    "negative label": (_replace_row("raw/node-label.csv.gz", 1, "-1"), r"node-label.csv.gz: row 1: label -1.0"),
    "fractional label": (_replace_row("raw/node-label.csv.gz", 60, "1.5"), r"node-label.csv.gz: row 60: label 1.5"),
    "infinite label": (_replace_row("raw/node-label.csv.gz", 6, "inf"), r"node-label.csv.gz: row 6: label inf"),
    "two labels": (lambda tree: write_csv(tree / "raw/node-label.csv.gz", [[1, 2]] * 60), r"has 2 labels a row where ogbn-arxiv has 1"),
    "split out of range": (_add_row("split/time/train.csv.gz", "60"), r"train.csv.gz: row 13: node id 60 is outside \[0, 60\)"),
    "fraction in a split": (_replace_row("split/time/test.csv.gz", 4, "0.5"), r"test.csv.gz: row 4"),
    "two graphs": (_add_row("raw/num-node-list.csv.gz", "7"), r"num-node-list.csv.gz counts 2 graphs"),
    "no count": (lambda tree: write_csv(tree / "raw/num-node-list.csv.gz", [["many"]]), r"'many' where a count must be"),
    "empty count": (lambda tree: write_csv(tree / "raw/num-node-list.csv.gz", []), r"num-node-list.csv.gz is empty"),
    "huge count": (lambda tree: write_csv(tree / "raw/num-node-list.csv.gz", [["1" * (5 << 20)]]), r"holds more than"),
    "empty features": (lambda tree: (tree / "raw/node-feat.csv.gz").write_bytes(b""), r"node-feat.csv.gz is empty"),
    "not text": (
        _replace_row("raw/num-edge-list.csv.gz", 1, "\udcff".encode("utf-8", "surrogateescape").decode("latin-1")),
        r"where a count must be",
    ),
    "other release": (
        lambda tree: (tree / "RELEASE_v1.txt").rename(tree / "RELEASE_v0.txt"),
        r"RELEASE_v0.txt; the current one is RELEASE_v1.txt",
    ),
    "pickled split": (_pickle_split, r"split_dict.pt is there, but it is a pickle"),
}


def test_missing_label_among_several_is_refused(tmp_path: Path) -> None:
    tree = write_tree("ogbn-proteins", tmp_path)
    lines = read_text(tree / "raw/node-label.csv.gz").splitlines()
    lines[4] = "nan" + lines[4][1:]
    (tree / "raw/node-label.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    with pytest.raises(DatasetError, match=r"node-label.csv.gz: row 5: label nan"):
        read("ogbn-proteins", tmp_path)


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        ("raw/triplet-type-list.csv.gz", "author,writes", "alien,writes", "'alien,writes,paper' is no relation"),
        ("raw/triplet-type-list.csv.gz", "writes,paper", "writes", "is no relation between the node types"),
        ("raw/triplet-type-list.csv.gz", "writes", "reads", "num-edge-list.csv.gz is missing"),
        ("raw/num-node-dict.csv.gz", "\n", ",", "must have one line of node types"),
        ("raw/nodetype-has-label.csv.gz", "author,", "editor,", None),
        ("raw/nodetype-has-label.csv.gz", "paper\n", "article\n", "node type 'article', which"),
    ],
)
def test_damaged_typed_tree(file: str, old: str, new: str, expected: str | None, tmp_path: Path) -> None:
    rewrite(write_tree("ogbn-mag", tmp_path) / file, old, new)
    if expected is None:
        read("ogbn-mag", tmp_path)
        return
    with pytest.raises(DatasetError, match=expected):
        read("ogbn-mag", tmp_path)


def _resave(tree: Path, *, file: str = "data", **changes: object) -> None:
    path = tree / f"raw/{file}.npz"
    with np.load(path) as loaded:
        arrays = {**dict(loaded), **changes}
    np.savez_compressed(path, allow_pickle=True, **{key: value for key, value in arrays.items() if value is not None})  # type: ignore[arg-type]


NPZ_DAMAGE = {
    "missing": (lambda tree: (tree / "raw/node-label.npz").unlink(), r"node-label.npz is missing"),
    "no zip": (lambda tree: (tree / "raw/data.npz").write_bytes(b"PK not really"), r"data.npz: File is not a zip file"),
    "no edges": (lambda tree: _resave(tree, edge_index=None), r"has no array 'edge_index'"),
    "no labels": (lambda tree: _resave(tree, file="node-label", node_label=None, node_other=np.zeros(60)), r"has no array 'node_label'"),
    "too few edges": (
        lambda tree: _resave(tree, num_edges_list=np.array([199])),
        r"edge_index is int64 \[2, 200\] where integers \[2, 199\]",
    ),
    "edges of floats": (lambda tree: _resave(tree, edge_index=np.zeros((2, 200))), r"edge_index is float64"),
    "two graphs": (lambda tree: _resave(tree, num_nodes_list=np.array([30, 30])), r"num_nodes_list is int64 \[2\] where one count"),
    "negative count": (lambda tree: _resave(tree, num_nodes_list=np.array([-1])), r"num_nodes_list is -1"),
    "too few features": (
        lambda tree: _resave(tree, node_feat=np.zeros((59, 4))),
        r"node_feat is float64 \[59, 4\] where numbers in 60 rows",
    ),
    "column by column": (lambda tree: _resave(tree, node_feat=np.asfortranarray(np.ones((60, 4)))), r"node_feat lies column by column"),
    "objects": (lambda tree: _resave(tree, node_feat=np.array([{}] * 60)), r"would have to be unpickled"),
    "text": (lambda tree: _resave(tree, node_feat=np.array(["a"] * 60)), r"node_feat is <U1"),
    "stranger": (lambda tree: _resave(tree, weights=np.zeros(60)), r"'weights' belongs neither to nodes nor to edges"),
    "id too large": (lambda tree: _resave(tree, edge_index=np.full((2, 200), 60)), r"data.npz: row 1: source node 60 is outside"),
    "negative target": (
        lambda tree: _resave(tree, edge_index=np.stack([np.zeros(200, np.int64), np.append(np.zeros(199, np.int64), -4)])),
        r"row 200: target node -4 is outside",
    ),
    "label of no class": (
        lambda tree: _resave(tree, file="node-label", node_label=np.full((60, 1), 172.0)),
        r"row 1: label 172.0 is not one",
    ),
    "two labels": (lambda tree: _resave(tree, file="node-label", node_label=np.zeros((60, 2))), r"has 1 labels a node"),
}


@pytest.mark.parametrize(("name", "case"), [("ogbn-arxiv", case) for case in DAMAGE] + [("ogbn-papers100M", case) for case in NPZ_DAMAGE])
def test_a_damaged_tree_is_an_error_with_a_hint(name: str, case: str, tmp_path: Path) -> None:
    damage, expected = (DAMAGE if name == "ogbn-arxiv" else NPZ_DAMAGE)[case]
    damage(write_tree(name, tmp_path))
    with pytest.raises(DatasetError, match=expected) as caught:
        read(name, tmp_path)
    assert caught.value.hint


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("papers")
    for kind, save in (("stored", np.savez), ("deflated", np.savez_compressed)):
        tree = write_tree("ogbn-papers100M", root / kind)
        with np.load(tree / "raw/data.npz") as loaded:
            arrays = dict(loaded)
        save(tree / "raw/data.npz", **arrays)
    return root


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(data=st.data(), kind=st.sampled_from(["stored", "deflated"]))
def test_any_flipped_bit_or_cut_in_an_npz_is_noticed_or_harmless(data: st.DataObject, kind: str, papers: Path) -> None:
    root = papers / kind
    path = root / "ogbn_papers100M/raw/data.npz"
    whole = path.read_bytes()
    expected = read_everything(open_ogb("ogbn-papers100M", root=root, download=False))
    damaged = bytearray(whole)
    position = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        damaged[position] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del damaged[position:]
    path.write_bytes(bytes(damaged))
    try:
        got = read_everything(open_ogb("ogbn-papers100M", root=root, download=False))
    except DatasetError:
        return
    finally:
        path.write_bytes(whole)
    # Dates and attributes in the zip's own records may change unnoticed; numbers may not.
    assert got.keys() == expected.keys()
    for key, values in got.items():
        np.testing.assert_array_equal(values, expected[key])


def test_a_header_that_is_no_python_is_damage(papers: Path) -> None:
    """NumPy raises errors of Python's own tokenizer for some of these, which no check of the zip comes before."""
    path = papers / "stored/ogbn_papers100M/raw/data.npz"
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:  # the checksum of a small member is known before its header is read
        largest = max(archive.infolist(), key=lambda item: item.file_size)
    begin, kinds = whole.index(b"\x93NUMPY", largest.header_offset), set()
    try:
        for position in range(begin, begin + 118):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << position % 7
            path.write_bytes(bytes(damaged))
            try:
                open_ogb("ogbn-papers100M", root=papers / "stored", download=False)
            except DatasetError as error:
                kinds.add(type(error.__cause__).__name__)
    finally:
        path.write_bytes(whole)
    assert {"ValueError", "TokenError"} <= kinds


def test_a_tree_without_its_raw_files_is_not_written_over(tmp_path: Path) -> None:
    tree = write_tree("ogbn-arxiv", tmp_path)
    (tree / "raw/edge.csv.gz").unlink()
    with pytest.raises(DatasetError, match=r"ogbn_arxiv should hold ogbn-arxiv, but raw/edge.csv.gz is not in it") as caught:
        open_ogb("ogbn-arxiv", root=tmp_path)
    assert "move" in str(caught.value.hint)

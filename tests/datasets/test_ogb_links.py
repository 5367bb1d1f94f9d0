"""OGB's link datasets: the graph and the official splits are those that ``LinkPropPredDataset`` gives, and nothing in a file is run."""

from __future__ import annotations

import collections
import functools
import io
import os
import pickle
import shutil
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gnnkit import BuildOptions, GraphLoader
from gnnkit.datasets import evaluator, ogb_names, open_ogb
from gnnkit.datasets.ogb import ogb_info
from gnnkit.datasets.ogb_binary import read_saved
from gnnkit.errors import DatasetError
from tests.datasets.reading import read_edge_array, read_edges, read_everything, read_node_array
from tests.helpers.ogb_link_trees import LINK_NAMES, save_splits, write_link_tree
from tests.helpers.ogb_trees import rewrite
from tests.storage.checks import build_store

EDGES = ("node", "to", "node")

SAVED = ("tensors", "arrays", "dict")
UNTYPED = [name for name in LINK_NAMES if name != "ogbl-biokg"]


def ask_ogb(name: str, tree: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], dict[str, Any]]:
    """The graph and the splits that ``ogb`` makes of a copy of the tree, which it writes into."""
    shutil.copytree(tree, scratch / tree.name)
    evaluator(name)
    # ogb opens its own pickles without saying so, which torch has refused since 2.6.
    monkeypatch.setattr(torch, "load", functools.partial(torch.load, weights_only=False))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ogb.linkproppred import LinkPropPredDataset

        dataset = LinkPropPredDataset(name, root=os.fspath(scratch))
        return dataset.graph, dataset.get_edge_split()


def links_of(value: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """OGB's split of an untyped graph under gnnkit's names."""
    value = {key: np.asarray(v) for key, v in value.items()}
    links = {}
    for first, second in (("source_node", "target_node"), ("head", "tail")):
        if first in value:
            links["edge_label_index"] = np.stack([value[first], value[second]])
    renamed = {
        "edge_neg": "neg_edge_index", "weight": "edge_label", "relation": "edge_label", "year": "edge_label_time",
        "tail_neg": "dst_neg_index", "head_neg": "src_neg_index", "target_node_neg": "dst_neg_index", "edge": "edge_label_index",
    }  # fmt: skip
    for key, values in value.items():
        if key in renamed:
            links[renamed[key]] = values.T if key.startswith("edge") else values
    return links


def assert_same(links: Any, expected: dict[str, NDArray[Any]]) -> None:
    assert set(links) == set(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(links[name], values)
        assert links[name].dtype == values.dtype and links[name].flags.c_contiguous


@pytest.mark.parametrize("saved", SAVED)
@pytest.mark.parametrize("name", UNTYPED)
def test_untyped_datasets_equal_ogbs_own_reading(name: str, saved: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = write_link_tree(name, tmp_path / "root", saved=saved)
    source = open_ogb(name, root=tmp_path / "root", download=False)
    graph, splits = ask_ogb(name, tree, tmp_path, monkeypatch)

    assert source.schema.is_homogeneous and source.schema.num_nodes == graph["num_nodes"] and not source.splits
    np.testing.assert_array_equal(read_edges(source, EDGES), graph["edge_index"])
    renamed = {"node_feat": "x", "edge_feat": "edge_attr"}
    expected = {renamed.get(key, key): v for key, v in graph.items() if v is not None and key not in ("edge_index", "num_nodes")}
    nodes, edges = source.schema.node_types["node"].arrays, source.schema.edge_types[EDGES].arrays
    assert {*nodes, *edges} == set(expected)
    for key, value in expected.items():
        mine = read_node_array(source, "node", key) if key in nodes else read_edge_array(source, EDGES, key)
        assert mine.dtype == value.dtype
        np.testing.assert_array_equal(mine, value)
    assert list(source.link_splits) == [EDGES] and list(source.link_splits[EDGES]) == list(splits)
    for split, value in splits.items():
        assert_same(source.link_splits[EDGES][split], links_of(value))


@pytest.mark.parametrize("saved", SAVED)
def test_links_of_biokg_come_by_edge_type(saved: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = write_link_tree("ogbl-biokg", tmp_path / "root", saved=saved)
    source = open_ogb("ogbl-biokg", root=tmp_path / "root", download=False)
    graph, splits = ask_ogb("ogbl-biokg", tree, tmp_path, monkeypatch)

    assert {key: table.num_nodes for key, table in source.schema.node_types.items()} == graph["num_nodes_dict"]
    assert set(source.schema.edge_types) == set(graph["edge_index_dict"]) == set(source.link_splits)
    for edge_type, edge_index in graph["edge_index_dict"].items():
        np.testing.assert_array_equal(read_edges(source, edge_type), edge_index)
        np.testing.assert_array_equal(read_edge_array(source, edge_type, "edge_reltype"), graph["edge_reltype"][edge_type])
    relation_of = {edge_type: int(numbers[0, 0]) for edge_type, numbers in graph["edge_reltype"].items()}
    for split, value in splits.items():
        rows = zip(value["head_type"], np.asarray(value["relation"]).tolist(), value["tail_type"], strict=True)
        types = [next(t for t, number in relation_of.items() if (t[0], number, t[2]) == row) for row in rows]
        for edge_type in relation_of:
            own = [row for row, t in enumerate(types) if t == edge_type]
            part = {key: np.asarray(v)[own] for key, v in value.items() if not key.endswith("_type")}
            assert_same(source.link_splits[edge_type][split], links_of(part))


@pytest.mark.parametrize("name", ["ogbl-collab", "ogbl-biokg"])
def test_a_store_keeps_the_links(name: str, tmp_path: Path) -> None:
    write_link_tree(name, tmp_path)
    source = open_ogb(name, root=tmp_path, download=False, undirected=name == "ogbl-collab")
    store = build_store(source, tmp_path / "store", BuildOptions(2, "random"))
    assert store.link_splits.keys() == source.link_splits.keys()
    for edge_type, by_split in source.link_splits.items():
        for split in by_split:
            assert_same(store.link_splits[edge_type][split], dict(by_split[split]))


def test_names_metadata_and_fingerprints(tmp_path: Path) -> None:
    assert [name for name in ogb_names() if name.startswith("ogbl-")] == list(LINK_NAMES)
    assert ogb_info("ogbl-ddi").kind == "link" and ogb_info("ogbn-mag").kind == "node"
    assert ogb_info("ogbl-citation2").url.endswith("linkproppred/citation-v2.zip")
    for folder, seed, saved in (("a", 1, "arrays"), ("b", 1, "arrays"), ("c", 2, "arrays"), ("d", 1, "tensors")):
        write_link_tree("ogbl-ddi", tmp_path / folder, seed=seed, saved=saved)
    sources = {folder: open_ogb("ogbl-ddi", root=tmp_path / folder, download=False) for folder in "abcd"}
    assert sources["a"].metadata["eval_metric"] == "hits@20" and "num_classes" not in sources["a"].metadata
    prints = {folder: source.fingerprint() for folder, source in sources.items()}
    assert prints["a"] == prints["b"] and len(set(prints.values())) == 3
    for path, saved in (("a", "arrays"), ("d", "tensors")):
        value = read_saved(tmp_path / path / "ogbl_ddi/split/target/valid.pt")
        edge = value["edge"].copy()
        edge[7, 1] += 1
        save_splits({"valid": {**value, "edge": edge}}, tmp_path / path / "ogbl_ddi/split/target", saved)
        assert open_ogb("ogbl-ddi", root=tmp_path / path, download=False).fingerprint() != prints[path]


def test_opening_imports_no_torch_and_reads_no_split(tmp_path: Path) -> None:
    tree = write_link_tree("ogbl-collab", tmp_path)
    code = (
        "import sys; from gnnkit.datasets.ogb import open_ogb; from tests.datasets.reading import read_everything;"
        f"s = open_ogb('ogbl-collab', root={str(tmp_path)!r}, download=False); read_everything(s);"
        "print(s.link_splits['node', 'to', 'node']['valid']['neg_edge_index'].shape,"
        "[m for m in ('ogb', 'torch', 'pandas', 'torch_geometric') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=240, check=False
    )
    assert done.stdout.strip() == "(2, 40) []", done.stderr
    (tree / "split/time/test.pt").write_bytes(b"")
    source = open_ogb("ogbl-collab", root=tmp_path, download=False)
    assert source.link_splits[EDGES]["train"]["edge_label_time"].shape == (90,)
    with pytest.raises(DatasetError, match="test.pt cannot be read"):
        source.link_splits[EDGES]["test"]
    with pytest.raises(KeyError):
        source.link_splits["a", "b", "c"]


def test_the_evaluator_is_that_of_links() -> None:
    judge = evaluator("ogbl-ddi")
    assert judge.eval({"y_pred_pos": np.ones(3), "y_pred_neg": np.zeros(30)}) == {"hits@20": 1.0}


def changed(**values: Any) -> Callable[[Path], None]:
    """Changes arrays of the split "valid"; None removes one."""

    def damage(folder: Path) -> None:
        value = {
            **read_saved(folder / "valid.pt"),
            **{k: v(read_saved(folder / "valid.pt")[k]) if callable(v) else v for k, v in values.items()},
        }
        save_splits({"valid": {k: v for k, v in value.items() if v is not None}}, folder, "arrays")

    return damage


def with_row(row: Any, number: Any) -> Callable[[NDArray[Any]], NDArray[Any]]:
    def change(values: NDArray[Any]) -> NDArray[Any]:
        values = values.copy()
        values[row] = number
        return values

    return change


@pytest.mark.parametrize(
    ("name", "damage", "expected"),
    [
        ("ogbl-collab", lambda folder: (folder / "valid.pt").unlink(), r"valid\.pt is missing"),
        ("ogbl-collab", lambda folder: (folder / "valid.pt").write_bytes(b"PK\x03\x04 nothing"), r"valid\.pt cannot be read"),
        ("ogbl-collab", lambda folder: torch.save([1, 2], folder / "valid.pt"), "holds a list where a dict"),
        ("ogbl-collab", changed(edge=None), "has neither 'edge' nor 'source_node' nor 'head'"),
        ("ogbl-collab", changed(edge=np.zeros((20, 3), np.int64)), r"'edge' is int64 \[20, 3\] where whole numbers \[k, 2\] must be"),
        ("ogbl-collab", changed(edge=np.zeros((20, 2))), r"'edge' is float64 \[20, 2\]"),
        ("ogbl-collab", changed(edge="edges"), "'edge' is str"),
        ("ogbl-collab", changed(year=np.arange(3)), r"'year' is int64 \[3\] where whole numbers \[20\] must be"),
        ("ogbl-collab", changed(weight=np.arange(3)), r"'weight' is int64 \[3\] where numbers of 20 links"),
        ("ogbl-collab", changed(edge=with_row((4, 1), 50)), r"valid\.pt: row 5: target node of a link 50 is outside \[0, 50\)"),
        ("ogbl-collab", changed(edge=with_row((0, 0), -1)), r"row 1: source node of a link -1 is outside"),
        ("ogbl-collab", changed(edge_neg=with_row((6, 0), 99)), r"row 7: source node of a negative 99 is outside"),
        ("ogbl-citation2", changed(target_node=np.arange(3)), r"'target_node' is int64 \[3\] where whole numbers \[20\]"),
        ("ogbl-citation2", changed(target_node_neg=with_row((3, 2), 50)), r"row 4: negative target node 50 is outside"),
        ("ogbl-biokg", changed(head_neg=with_row((3, 2), 77)), r"row 4: negative source node 77 is outside"),
        ("ogbl-biokg", changed(head=with_row(9, 77)), r"row 10: source node of a link 77 is outside"),
        ("ogbl-biokg", changed(tail_type=None), "has no 'tail_type'"),
        ("ogbl-biokg", changed(tail_type=["protein"] * 3), "'tail_type' does not name a node type for each of 20 links"),
        ("ogbl-biokg", changed(tail_type=["cell"] * 20), "'tail_type' names 'cell', the graph has"),
        ("ogbl-biokg", changed(relation=with_row(2, 40)), "row 3: relation 40 from .* is none of the graph's"),
        ("ogbl-biokg", changed(relation=with_row(2, 1 << 62)), "row 3: relation 4611686018427387904 from .* is none of the graph's"),
        ("ogbl-biokg", changed(relation=with_row(2, (1 << 63) - 1)), "row 3: relation 9223372036854775807 from .* is none of the graph's"),
        ("ogbl-biokg", changed(relation=np.zeros((20, 1), np.int64)), "'relation' must be whole numbers"),
        ("ogbl-biokg", changed(tail_type=[["protein"]] * 20), "'tail_type' does not name a node type for each of 20 links"),
        ("ogbl-biokg", changed(relation=with_row(2, -4)), "'relation' must be whole numbers from 0 on"),
    ],
)
def test_damaged_splits_are_errors_that_name_file_and_row(name: str, damage: Callable[[Path], Any], expected: str, tmp_path: Path) -> None:
    tree = write_link_tree(name, tmp_path)
    damage(tree / "split" / ogb_info(name).split)
    source = open_ogb(name, root=tmp_path, download=False)
    first = next(iter(source.link_splits))
    source.link_splits[first]["train"]
    with pytest.raises(DatasetError, match=expected):
        source.link_splits[first]["valid"]


def test_damaged_graphs_are_errors(tmp_path: Path) -> None:
    tree = write_link_tree("ogbl-wikikg2", tmp_path)
    (tree / "raw/edge_reltype.csv.gz").unlink()
    with pytest.raises(DatasetError, match=r"edge_reltype.csv.gz is missing"):
        open_ogb("ogbl-wikikg2", root=tmp_path, download=False)
    tree = write_link_tree("ogbl-biokg", tmp_path)
    rewrite(tree / "raw/relations/drug___drug-protein___protein/edge_reltype.csv.gz", "3\n", "1\n")
    source = open_ogb("ogbl-biokg", root=tmp_path, download=False)
    with pytest.raises(DatasetError, match="has several relations: \\[1, 3\\]"):
        source.link_splits["drug", "drug-protein", "protein"]["train"]
    with pytest.raises(DatasetError, match="there is no OGB dataset 'ogbl-colab'; did you mean 'ogbl-collab'"):
        open_ogb("ogbl-colab", root=tmp_path, download=False)


class Hostile:
    """Pickles as a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> Any:
        return self.function, self.arguments


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (lambda path: Hostile(os.mkdir, str(path)), r"asks for (posix|nt|os)\.mkdir, which is neither an array nor a plain container"),
        (lambda path: Hostile(eval, f"__import__('os').mkdir({str(path)!r})"), r"asks for (builtins|__builtin__)\.eval"),
        (lambda path: Hostile(getattr, "text", "format"), r"asks for (builtins|__builtin__)\.getattr"),
        (lambda path: np.array([Hostile(os.mkdir, str(path))]), "holds an array of dtype 'O8'"),
        (lambda path: np.array([{"a": 1}, None]), "holds an array of dtype 'O8', where numbers or text may be"),
        (lambda path: np.zeros(3, [("a", "i4")]), "holds an array of dtype 'V4'"),
        (lambda path: collections.Counter("abc"), r"asks for collections\.Counter"),
        (lambda path: np.dtype("i4"), "holds _Dtype, which is neither an array nor a plain container"),
        (lambda path: torch.LongStorage, "holds torch.LongStorage, which is neither"),
        (lambda path: torch.zeros(3, dtype=torch.bfloat16), r"asks for torch\.BFloat16Storage"),
        (lambda path: torch.nn.Linear(2, 2), r"asks for torch\.nn\.modules\.linear\.Linear"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_hostile_files_are_refused_and_nothing_is_run(value: Any, expected: str, zipped: bool, tmp_path: Path) -> None:
    victim, path = tmp_path / "made by the file", tmp_path / "train.pt"
    torch.save({"edge": value(victim)}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(DatasetError, match=expected) as caught:
        read_saved(path)
    assert "gnnkit runs nothing" in str(caught.value) and not victim.exists()


def zip_with(path: Path, pickled: bytes, **storages: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("train/data.pkl", pickled)
        for key, data in storages.items():
            archive.writestr(f"train/data/{key.removeprefix('s')}", data)


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        return ("storage", torch.LongStorage, value.key, "cpu", value.numel) if isinstance(value, Stored) else None


class Stored:
    def __init__(self, key: str, numel: int) -> None:
        self.key, self.numel = key, numel


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((Stored("0", 4), 2, (3,), (1,), False, {}), "reaches to number 4 of 4"),
        ((Stored("0", 4), 0, (2, 2), (4, 1), False, {}), "reaches to number 5 of 4"),
        ((Stored("0", 4), 0, (2,), (-1,), False, {}), "strides"),
        ((Stored("0", 4), -1, (2,), (1,), False, {}), "strides"),
        ((Stored("0", 4), 0, (1 << 40,), (0,), False, {}), "1099511627776 numbers that is made of 4"),
        ((Stored("0", 9), 0, (2,), (1,), False, {}), "holds 4 numbers where 9 must be"),
        ((Stored("7", 4), 0, (2,), (1,), False, {}), "cannot be read"),
        ((3, 0, (2,), (1,), False, {}), "holds a tensor that is none"),
        (({"values": [1]}, 0, (2,), (1,), False, {}), "holds a tensor that is none"),
    ],
)
def test_tensors_stay_within_their_storage(arguments: tuple[Any, ...], expected: str, tmp_path: Path) -> None:
    pickled = io.BytesIO()
    _Pickler(pickled, 2).dump({"edge": Hostile(torch._utils._rebuild_tensor_v2, *arguments)})
    zip_with(tmp_path / "train.pt", pickled.getvalue(), s0=np.arange(4).tobytes())
    with pytest.raises(DatasetError, match=expected):
        read_saved(tmp_path / "train.pt")


@pytest.mark.parametrize("zipped", [False, True])
def test_arrays_without_numbers(zipped: bool, tmp_path: Path) -> None:
    value = {"head": np.empty(0, np.int64), "tail_neg": np.empty((0, 5)), "edge": torch.empty(0, 2, dtype=torch.int64)}
    torch.save(value, tmp_path / "train.pt", _use_new_zipfile_serialization=zipped)
    shapes = {name: (found.dtype, found.shape) for name, found in read_saved(tmp_path / "train.pt").items()}
    assert shapes == {"head": (np.int64, (0,)), "tail_neg": (np.float64, (0, 5)), "edge": (np.int64, (0, 2))}


@pytest.mark.parametrize("state", [b"}X\x01\x00\x00\x00aK\x01s", b"N}X\x05\x00\x00\x00_makeK\x01s\x86"], ids=["dict", "slots"])
def test_names_cannot_be_changed_by_a_file(state: bytes, tmp_path: Path) -> None:
    # GLOBAL collections.OrderedDict, then BUILD with a state that would set its attributes.
    zip_with(tmp_path / "train.pt", b"\x80\x02ccollections\nOrderedDict\n" + state + b"b.")
    with pytest.raises(DatasetError, match=r"changes collections\.OrderedDict"):
        read_saved(tmp_path / "train.pt")


@settings(max_examples=60, deadline=None)
@given(data=st.data(), zipped=st.booleans())
def test_damaged_bytes_are_errors_or_harmless(data: st.DataObject, zipped: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("damaged") / "train.pt"
    value = {"edge": np.arange(20).reshape(10, 2), "weight": torch.arange(5), "head_type": ["a", "b"] * 3}
    torch.save(value, path, _use_new_zipfile_serialization=zipped)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, (1 << 16) - 1)) * len(content) >> 16  # torch writes addresses, of one digit more or less
    if data.draw(st.booleans()):
        content[place] ^= data.draw(st.integers(1, 255))
    else:
        content = content[:place]
    path.write_bytes(content)
    try:
        found = read_saved(path)
    except DatasetError as error:
        assert str(path) in str(error)
    else:
        assert isinstance(found, (dict, list, tuple, str, int, float, bytes, np.ndarray, type(None)))


@pytest.mark.parametrize("name", LINK_NAMES)
def test_trees_are_only_read(name: str, tmp_path: Path) -> None:
    write_link_tree(name, tmp_path)
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in tmp_path.rglob("*")}
    source = open_ogb(name, root=tmp_path, download=False)
    read_everything(source)
    assert all(len(by_split["test"]["edge_label_index"]) == 2 for by_split in source.link_splits.values())
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("name", LINK_NAMES)
def test_a_loader_starts_from_the_official_links(name: str, tmp_path: Path) -> None:
    write_link_tree(name, tmp_path)
    splits = open_ogb(name, root=tmp_path, download=False).link_splits
    edge_type = max(splits, key=lambda edge_type: splits[edge_type]["train"]["edge_label_index"].shape[1])
    chosen: Any = {"edge_label_index": (edge_type, "train")} if name == "ogbl-biokg" else {}
    with GraphLoader.from_ogb(
        name, root=tmp_path, download=False, num_parts=2, num_neighbors=[2], batch_size=40, neg_sampling=None, progress=False, **chosen
    ) as loader:
        found = []
        for batch in loader:
            links = batch if name != "ogbl-biokg" else batch[edge_type]
            ends = [batch.n_id] * 2 if name != "ogbl-biokg" else [batch[edge_type[0]].n_id, batch[edge_type[2]].n_id]
            found.append(torch.stack([links.input_id, *(ids[row] for ids, row in zip(ends, links.edge_label_index, strict=True))]).numpy())
    rows = np.concatenate(found, axis=1)
    np.testing.assert_array_equal(rows[1:, np.argsort(rows[0])], splits[edge_type]["train"]["edge_label_index"])

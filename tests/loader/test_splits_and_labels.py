"""Splits of several columns and other names, "val" and "valid", and nodes without a label: from PyG, tables, stores and plans."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import gnnkit
from gnnkit import GraphLoader
from gnnkit.datasets.pyg import PyGSource
from gnnkit.errors import GnnkitError
from gnnkit.pyg import NeighborLoader

NODES = 60
PLAIN: dict[str, Any] = {"num_neighbors": [2], "batch_size": 10, "progress": False}
EDGES = torch.stack([torch.arange(90) % NODES, torch.arange(90) * 7 % NODES])
FIRST = torch.arange(NODES) < 40
LATER = (torch.arange(NODES) >= 40) & (torch.arange(NODES) < 50)
# Three splits, each a few nodes further.
TRAIN, VAL, TEST = (torch.stack([mask.roll(5 * k) for k in range(3)], 1) for mask in (FIRST, LATER, ~(FIRST | LATER)))
SEVERAL = {"train_mask": TRAIN, "val_mask": VAL, "test_mask": TEST}
IDX = {"train": torch.arange(40), "valid": torch.arange(40, 50), "test": torch.arange(50, 60)}


def graph(**attributes: Any) -> Data:
    values = {"y": torch.arange(NODES) % 3, **attributes}
    return Data(x=torch.rand(NODES, 2), edge_index=EDGES, **values)


def typed(**attributes: Any) -> HeteroData:
    data = HeteroData()
    data["a"].x, data["b"].x = torch.rand(NODES, 2), torch.rand(NODES, 2)
    data["a", "to", "a"].edge_index, data["a", "to", "b"].edge_index = EDGES, EDGES
    for name, value in attributes.items():
        data["a"][name] = value
    return data


def seeds(loader: GraphLoader) -> list[int]:
    """Every seed of an epoch, ascending."""
    node_type = loader.plan.inputs.input_type
    found = []
    for batch in loader:
        nodes = batch[node_type] if isinstance(batch, HeteroData) else batch
        found += nodes.n_id[: nodes.batch_size].tolist()
    return sorted(found)


def ids(mask: torch.Tensor) -> list[int]:
    return [int(i) for i in mask.nonzero().view(-1)]


def as_stored(data: Any, path: Path, **options: Any) -> GraphLoader:
    return GraphLoader.from_store(gnnkit.partition(data, 2, out=path), **options, **PLAIN)


OPENED: dict[str, Callable[..., GraphLoader]] = {
    "pyg": lambda data, path, **options: GraphLoader.from_pyg(data, **options, **PLAIN),
    "store": as_stored,
}


@pytest.mark.parametrize("opened", OPENED)
@pytest.mark.parametrize("made", [graph, typed])
def test_one_of_several_splits_is_chosen_for_all_loaders(made: Any, opened: str, tmp_path: Path) -> None:
    data = made(**SEVERAL)
    with pytest.raises(GnnkitError, match=r"(?s)train_mask.*3 splits.*split_index=0"):
        OPENED[opened](data, tmp_path / "none")
    loader = OPENED[opened](data, tmp_path / "store", split_index=1)
    assert seeds(loader) == ids(TRAIN[:, 1]) and loader.plan.batching.shuffle
    assert seeds(loader.for_split("val")) == ids(VAL[:, 1])
    assert seeds(loader.for_split("test", split_index=2)) == ids(TEST[:, 2])
    with pytest.raises(GnnkitError, match="none of the number 3"):
        loader.for_split("test", split_index=3)


def test_a_plan_keeps_the_column_and_partition_measures_by_it(tmp_path: Path) -> None:
    store = gnnkit.partition(graph(**SEVERAL), 2, out=tmp_path / "store")
    GraphLoader.from_store(store, split_index=2, **PLAIN).plan.save(tmp_path / "plan.json")
    loader = GraphLoader.from_plan(tmp_path / "plan.json", progress=False)
    assert seeds(loader) == ids(TRAIN[:, 2]) and seeds(loader.for_split("valid")) == ids(VAL[:, 2])
    with pytest.raises(GnnkitError, match="no node type has such a split"):
        gnnkit.partition(store, 2, "frequency", out=tmp_path / "other")
    parted = gnnkit.partition(store, 2, "frequency", out=tmp_path / "other", split_index=1)
    assert parted.options.input_nodes == "train.1" and "train.0 to train.2" in str(parted)


def test_nodes_without_a_label_are_warned_of_once_for_several_splits(tmp_path: Path) -> None:
    data = graph(**SEVERAL, y=torch.where(torch.arange(NODES) == 20, -1, 0))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        store = gnnkit.partition(data, 1, out=tmp_path / "store")
        assert seeds(GraphLoader.from_store(store, split_index=2, **PLAIN)) == [i for i in ids(TRAIN[:, 2]) if i != 20]
    assert [str(one.message) for one in said] == [
        "1 of 40 nodes of the split 'train.0' have no label in data.y, and are left out of it; so are those of the others"
    ]
    assert said[0].filename == __file__


def test_inputs_of_pygs_loaders_are_taken_as_they_are() -> None:
    data = graph(train_mask=FIRST, y=torch.where(torch.arange(NODES) % 2 == 0, -1, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = NeighborLoader(data, num_neighbors=[2], input_nodes=data.train_mask, batch_size=10)
        found = [int(i) for batch in loader for i in batch.n_id[: batch.batch_size]]
    assert sorted(found) == list(range(40))


def test_a_mask_that_all_splits_share_belongs_to_each() -> None:
    data = graph(**{**SEVERAL, "test_mask": TEST[:, 0]})  # as in PyG's WikiCS
    assert seeds(GraphLoader.from_pyg(data, split_index=2, **PLAIN).for_split("test")) == ids(TEST[:, 0])
    with pytest.raises(GnnkitError, match="no splits of several"):
        GraphLoader.from_pyg(graph(train_mask=FIRST), split_index=0, **PLAIN)


@pytest.mark.parametrize("wrong", [TRAIN, TRAIN.numpy()])
def test_a_mask_of_several_splits_as_input_nodes_says_how_to_choose(wrong: Any) -> None:
    with pytest.raises(GnnkitError, match=r"input_nodes\[:, 0\]"):
        GraphLoader.from_pyg(graph(), input_nodes=wrong, **PLAIN)
    with pytest.raises(GnnkitError, match=r"input_nodes\[:, 0\]"):
        NeighborLoader(graph(), num_neighbors=[2], input_nodes=wrong)


@pytest.mark.parametrize("opened", OPENED)
@pytest.mark.parametrize(
    "attributes",
    [
        {f"{name}_idx": ids for name, ids in IDX.items()},
        {"train_idx": IDX["train"][:, None], "val_idx": IDX["valid"].numpy()},
        {"split_idx": {**IDX, "val": IDX["valid"]}},
        {"train_mask": FIRST.to(torch.uint8), "valid_mask": LATER},  # as DGL keeps them
        {"train_mask": FIRST, "train_idx": IDX["train"], "val_mask": LATER},
    ],
    ids=["idx", "val_idx", "split_idx", "bytes", "both"],
)
@pytest.mark.parametrize("made", [graph, typed])
def test_attributes_that_hold_splits_plainly_are_taken(made: Any, attributes: dict[str, Any], opened: str, tmp_path: Path) -> None:
    loader = OPENED[opened](made(**attributes), tmp_path / "store")
    assert seeds(loader) == list(range(40)) and seeds(loader.for_split("val")) == list(range(40, 50))


def test_splits_of_a_typed_dataset_of_ogb_are_by_type() -> None:
    data = typed()
    data.split_idx = {"train": {"a": IDX["train"]}, "valid": {"a": IDX["valid"]}}
    assert seeds(GraphLoader.from_pyg(data, **PLAIN)) == list(range(40))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("train_nodes", IDX["train"]),
        ("train_masks", FIRST),
        ("training_mask", FIRST.long()),
        ("idx_train", IDX["train"]),
        ("train_idx", torch.tensor([NODES, 1])),
        ("train_split", TRAIN),
    ],
)
@pytest.mark.parametrize("made", [graph, typed])
def test_an_attribute_that_contradicts_no_split_is_named(made: Any, name: str, value: torch.Tensor, tmp_path: Path) -> None:
    data = made(**{name: value})
    inputs = "auto" if made is graph else "train"
    for opened, open_graph in OPENED.items():
        with pytest.raises(GnnkitError, match=rf"{name} looks like one"):
            open_graph(data, tmp_path / opened, input_nodes=inputs)
    own = (None if made is graph else ("a", None)) if name == "train_idx" else None
    nodes = own if own is not None or name == "train_idx" else IDX["train"] if made is graph else ("a", IDX["train"])
    assert len(GraphLoader.from_pyg(data, input_nodes=nodes, **PLAIN))


def test_other_attributes_are_no_splits() -> None:
    data = graph(train_count=torch.arange(NODES) % 5, constraint_mask=FIRST, train_loss=0.5, trained=True)
    assert seeds(GraphLoader.from_pyg(data, **PLAIN)) == list(range(NODES))
    with pytest.raises(GnnkitError, match="different nodes of the split 'train'"):
        GraphLoader.from_pyg(graph(train_mask=FIRST, train_idx=torch.arange(30)), **PLAIN)


@pytest.mark.parametrize("word", ["val", "valid", "validation"])
def test_val_and_valid_are_one_split(word: str, tmp_path: Path) -> None:
    data = graph(train_mask=FIRST, val_mask=LATER)
    for opened, open_graph in OPENED.items():
        loader = open_graph(data, tmp_path / opened, input_nodes=word)
        assert seeds(loader) == seeds(loader.for_split(word)) == list(range(40, 50)), opened
        assert loader.plan.inputs.split == "valid"
    typed_loader = GraphLoader.from_pyg(typed(train_mask=FIRST, val_mask=LATER), input_nodes=("a", word), **PLAIN)
    assert seeds(typed_loader) == list(range(40, 50))
    store = gnnkit.partition(tmp_path / "store", 2, "frequency", out=tmp_path / "parts", input_nodes=word)
    assert GraphLoader.from_store(store, input_nodes=word, **PLAIN).plan.inputs.split == "valid"
    text = (loader.plan.save(tmp_path / "plan.json") or (tmp_path / "plan.json")).read_text()
    (tmp_path / "plan.json").write_text(text.replace('"split": "valid"', f'"split": "{word}"'))
    assert seeds(GraphLoader.from_plan(tmp_path / "plan.json", progress=False)) == list(range(40, 50))


# Nodes without a label ---------------------------------------------------------------------------------------------------------

FOLDS = ["train", "val", None, "train", "train"]
TABLE = pd.DataFrame({"id": [1, 2, 3, 4, 5], "a": [0.1, 0.2, 0.3, 0.4, 0.5], "fold": FOLDS})
LINKS = pd.DataFrame({"src": [1, 2, 3, 4, 5], "dst": [2, 3, 4, 5, 1]})
OPTIONS: dict[str, Any] = {"keys": {"node": "id"}, "features": {"node": "a"}, "label": "label", "split": "fold"}


def of_table(column: Any, store_dir: Path, **options: Any) -> GraphLoader:
    nodes = TABLE.assign(label=column)
    return GraphLoader.from_tables(LINKS, nodes, store_dir=store_dir, **{**OPTIONS, **options}, **PLAIN)


def labels(loader: GraphLoader) -> list[Any]:
    """The labels of all nodes, by their ids."""
    batch = next(iter(GraphLoader.from_store(loader.store, input_nodes=None, **PLAIN)))
    return list(np.nan_to_num(batch.y[: batch.batch_size].numpy(), nan=-9.0).tolist())


@pytest.mark.parametrize(
    ("column", "options", "expected", "num_classes"),
    [
        (["b", "a", None, "a", None], {}, [1, 0, -1, 0, -1], 2),
        (["b", "a", "unknown", "a", None], {"unlabelled": ["unknown", "?"]}, [1, 0, -1, 0, -1], 2),
        (pd.array([1, 0, None, 0, None], "Int64"), {}, [1, 0, -1, 0, -1], 2),
        (pd.array([1, 0, 9, 0, None], "Int64"), {"unlabelled": 9}, [1, 0, -1, 0, -1], 2),
        (pd.array([True, False, None, False, None], "boolean"), {}, [1, 0, -1, 0, -1], 2),
        ([1.0, 0.0, np.nan, 0.0, np.nan], {}, [1, 0, -1, 0, -1], 2),
        ([1.0, 0.0, np.nan, 0.0, np.nan], {"types": {"label": "double"}}, [1.0, 0.0, -9.0, 0.0, -9.0], None),
        ([1.5, 0.0, np.nan, 0.0, np.nan], {}, [1.5, 0.0, -9.0, 0.0, -9.0], None),
        ([[1, 0], [0, 0], None, [1, 1], None], {}, [[1, 0], [0, 0], [-1, -1], [1, 1], [-1, -1]], 2),
        ([[0.5, 0.0], [0.0, 0.0], None, [1.0, 1.0], None], {}, [[0.5, 0.0], [0.0, 0.0], [-9.0] * 2, [1.0, 1.0], [-9.0] * 2], 2),
    ],
    ids=["text", "unlabelled", "Int64", "a number", "boolean", "pandas", "numbers", "fractions", "lists", "lists of fractions"],
)
def test_nodes_without_a_label_have_none_and_are_not_trained_on(
    column: Any, options: dict[str, Any], expected: list[Any], num_classes: int | None, tmp_path: Path
) -> None:
    with pytest.warns(UserWarning) as said:
        loader = of_table(column, tmp_path, **options)
    assert any("1 of 3 nodes of the split 'train' have no label in label" in str(one.message) for one in said)
    assert labels(loader) == expected and seeds(loader) == [0, 3]
    assert seeds(loader.for_split("valid")) == [1]
    assert loader.metadata["tables"]["node"]["unlabelled"] == 2
    if num_classes is not None:
        assert loader.num_classes == num_classes


def test_whole_numbers_with_gaps_are_said_to_be_classes_and_no_label_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"taken as classes, and -1 as none. Of numbers to predict, types=\{'label': 'double'\}"):
        of_table([1.0, 0.0, np.nan, 0.0, 1.0], tmp_path)
    with pytest.raises(GnnkitError, match="none of the 3 nodes of the split 'train' has a label"):
        of_table([None, "b", "a", None, None], tmp_path)
    with pytest.raises(GnnkitError, match=r"(?s)column 'split' of 'node' nodes, which is unused.*split='split'"):
        GraphLoader.from_tables(LINKS, TABLE.rename(columns={"fold": "split"}), keys={"node": "id"}, store_dir=tmp_path, **PLAIN)


def test_classes_are_counted_for_each_type(tmp_path: Path) -> None:
    users = pd.DataFrame({"id": [1, 2, 3], "job": ["cook", "nurse", None]})
    items = pd.DataFrame({"id": [1, 2, 3], "kind": pd.array([5, 0, None], "Int64")})
    edges = pd.DataFrame({"user": [1, 2, 3], "item": [3, 2, 1]})
    options: dict[str, Any] = {"keys": {"user": "id", "item": "id"}, "label": {"user": "job", "item": "kind"}, "store_dir": tmp_path}
    loader = GraphLoader.from_tables(
        {("user", "buys", "item"): edges}, {"user": users, "item": items}, **options, input_nodes=("user", None), **PLAIN
    )
    assert (loader.num_classes, loader.for_split(("item", None)).num_classes) == (2, 6)


def read(**columns: Any) -> Any:
    options = columns.pop("options", {})
    return gnnkit.tables(LINKS, TABLE.drop(columns="fold").assign(**columns), keys="id", **options)


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        ({"s": [None] * 5}, {"split": "s"}, "split 's' of 'node' is null in all 5 rows"),
        ({"s": [True, False, True, True, False]}, {"split": "s"}, r"holds \[0, 1\].*\n.*table\['s'\].astype\(int\).map\("),
        ({"c": list("abcab")}, {"label": "c", "unlabelled": {"node": "a"}}, "unlabelled={'node': 'a'}"),
        ({"c": list("abcab")}, {"unlabelled": "a"}, "unlabelled='a', and no label= is given"),
        ({"c": [["x"], ["y", "x"], None, [], ["x"]]}, {"label": "c"}, r"lists of texts.*\n.*str.join\('\|'\).str.get_dummies\(\)"),
        ({"c": [None, [1, 2], None, [1], [0, 1]]}, {"label": "c"}, "a list of 1 numbers in row 3, after lists of 2"),
        ({"c": [1.5, 2, 3, 4, 5]}, {"label": "c", "types": {"c": "int64"}}, "'c' is double, and int64 was asked for"),
    ],
)
def test_labels_and_splits_that_cannot_be_meant_are_said(columns: dict[str, Any], options: dict[str, Any], says: str) -> None:
    with pytest.raises(GnnkitError, match=f"(?s){says}"):
        read(**columns, options=options)


def test_advice_on_labels_and_splits_is_followed_to_its_end() -> None:
    made = read(s=pd.Series([True, False, True, True, False]).astype(int).map({1: "train", 0: "test"}), options={"split": "s"})
    assert {name: list(own) for name, own in made.splits["node"].items()} == {"train": [0, 2, 3], "test": [1, 4]}
    lists = pd.Series([["x"], ["y", "x"], None, [], ["x"]]).str.join("|").str.get_dummies().values.tolist()
    assert np.concatenate(list(read(c=lists, options={"label": "c"}).node_array_chunks("node", "y"))).tolist()[1:3] == [[1, 1], [0, 0]]
    texts = ["a", "nan", "b", "None", "a"]
    with pytest.warns(UserWarning, match=r"the labels 'c' have the classes \['None', 'nan'\]: unlabelled=\['None', 'nan'\] says"):
        assert read(c=texts, options={"label": "c"}).metadata["num_classes"] == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for none in (["None", "nan"], {"None", "nan"}, np.array(["None", "nan"])):
            assert read(c=texts, options={"label": "c", "unlabelled": none}).metadata["num_classes"] == 2
        assert read(c=[None] * 5, options={"label": "c"}).metadata["tables"]["node"]["unlabelled"] == 5
    masked = gnnkit.tables({"src": [0, 1], "dst": [1, 0]}, {"c": np.ma.array([1, 7], mask=[0, 1])}, label="c")
    assert np.concatenate(list(masked.node_array_chunks("node", "y"))).tolist() == [1, -1]


def test_several_columns_of_labels_may_lack_some(tmp_path: Path) -> None:
    table = TABLE.assign(l1=pd.array([1, 0, None, 1, 0], "Int64"), l2=[0.5, 1.0, np.nan, np.nan, 0.0])
    options = {**OPTIONS, "label": ["l1", "l2"]}
    loader = GraphLoader.from_tables(LINKS, table, store_dir=tmp_path, **options, **PLAIN)
    assert labels(loader) == [[1.0, 0.5], [0.0, 1.0], [-9.0, -9.0], [1.0, -9.0], [0.0, 0.0]]


@pytest.mark.parametrize("column", [["b", "a", None, "?", None], [1.0, 0.0, np.nan, 0.0, np.nan]], ids=["text", "pandas"])
def test_what_is_appended_has_labels_as_a_store_of_all_tables(column: list[Any], tmp_path: Path) -> None:
    nodes = TABLE.assign(label=column)
    options = {**OPTIONS, "unlabelled": "?"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = gnnkit.partition(gnnkit.tables(LINKS, nodes, **options), 1, out=tmp_path / "whole")
        first = gnnkit.partition(gnnkit.tables(LINKS[LINKS.src < 3], nodes[:4], **options), 1, out=tmp_path / "first")
        grown = first.append(edges=LINKS[LINKS.src >= 3], nodes=nodes[4:])
    assert {name: np.asarray(own).tolist() for name, own in grown.splits["node"].items()} == {
        name: np.asarray(own).tolist() for name, own in whole.splits["node"].items()
    }
    assert grown.metadata["tables"]["node"]["unlabelled"] == whole.metadata["tables"]["node"]["unlabelled"]


@pytest.mark.parametrize("none", [-1, -100, float("nan")])
@pytest.mark.parametrize("opened", OPENED)
def test_labels_of_pyg_that_say_none(none: float, opened: str, tmp_path: Path) -> None:
    y = (torch.arange(NODES) % 3).to(torch.float if none != none else torch.long)
    y[10:20] = none
    with pytest.warns(UserWarning, match="10 of 40 nodes of the split 'train' have no label in data.y"):
        loader = OPENED[opened](graph(y=y, train_mask=FIRST, val_mask=LATER), tmp_path / "store")
        assert seeds(loader) == [*range(10), *range(20, 40)]
    assert seeds(loader.for_split("valid")) == list(range(40, 50))
    if none == none:
        assert loader.num_classes == 3
    y[:] = none
    with pytest.raises(GnnkitError, match="none of the 40 nodes of the split 'train' has a label"):
        OPENED[opened](graph(y=y, train_mask=FIRST), tmp_path / "other")
    assert len(GraphLoader.from_pyg(graph(y=y, train_mask=FIRST), input_nodes=None, **PLAIN))


# Plans -------------------------------------------------------------------------------------------------------------------------

RELATIONS = LINKS.assign(relation=["likes", "knows", "likes", "knows", "likes"])
MATRIX = "%%MatrixMarket matrix coordinate pattern general\n5 5 4\n1 2\n2 3\n3 4\n5 1\n"


def of_relations(folder: Path, **options: Any) -> GraphLoader:
    table = TABLE.assign(label=["b", "a", None, "a", "?"])
    nodes: Any = table if len(options) == 1 else {"node": table}
    return GraphLoader.from_tables(RELATIONS, nodes, store_dir=folder, **OPTIONS, **options, unlabelled="?", **PLAIN)


def of_matrix(folder: Path) -> GraphLoader:
    (folder / "graph.mtx").write_text(MATRIX)
    return GraphLoader.from_tables(folder / "graph.mtx", 5, store_dir=folder, **PLAIN)


def of_links(folder: Path) -> GraphLoader:
    source = PyGSource(graph())
    ends = {"train": EDGES.numpy()[:, :40], "valid": EDGES.numpy()[:, 40:60]}
    source.link_splits = {("node", "to", "node"): {split: {"edge_label_index": index} for split, index in ends.items()}}
    store = gnnkit.partition(source, 2, out=folder / "store")
    return GraphLoader.from_store(store, **PLAIN).for_links("val")


PLANNED: dict[str, Callable[[Path], GraphLoader]] = {
    "unlabelled": lambda folder: of_table(["b", "a", "unknown", "a", None], folder, unlabelled=["unknown"]),
    "numbers with gaps": lambda folder: of_table([1.0, 0.0, np.nan, 0.0, np.nan], folder).for_split("val"),
    "split_index": lambda folder: as_stored(graph(**SEVERAL), folder / "store", split_index=1),
    "typed split_index": lambda folder: as_stored(typed(**SEVERAL), folder / "store", split_index=2).for_split("val"),
    "edge_type": lambda folder: of_relations(folder, edge_type="relation"),
    "categories": lambda folder: of_relations(folder, categories="relation"),
    "matrix": of_matrix,
    "links": of_links,
}


@pytest.mark.parametrize("name", PLANNED)
@pytest.mark.filterwarnings("ignore:.*(no label|taken as classes)")
def test_a_plan_and_a_job_give_the_batches_of_the_loader(name: str, tmp_path: Path) -> None:
    loader = PLANNED[name](tmp_path)
    loader.plan.save(tmp_path / "plan.json")
    (tmp_path / "program.py").write_text("def train(loader, ctx):\n    pass\n")
    job = loader.export(tmp_path / "job", gpus_per_node=0, train=tmp_path / "program.py")
    own = [batch.to_dict() for batch in loader]
    assert own
    for path in (tmp_path / "plan.json", job.directory / "plan.json"):
        found = [batch.to_dict() for batch in GraphLoader.from_plan(path, progress=False)]
        assert str(found) == str(own)

"""Options of tables: names that are nearly right, edges both ways, times as features, and features that are fitted to the training rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.transforms import ToUndirected

import gnnkit
from gnnkit import GraphLoader
from gnnkit.errors import DatasetError, PlanError

EDGES = pd.DataFrame({"a": [0, 1, 2, 3, 1], "b": [1, 2, 3, 0, 0], "amount": [1.5, 2.0, 3.0, 4.0, 8.0]})
EDGES["at"] = pd.date_range("2020-01-01", periods=5, freq="12h")
NODES = pd.DataFrame(
    {
        "id": [10, 11, 12, 13],
        "age": [1.0, None, 100.0, 3.0],
        "size": [2, 4, 1000, 7],
        "same": [5, 5, 5, 5],
        "born": pd.to_datetime(["1970-01-02", "1970-01-03T12:00", None, "1970-01-05"], format="ISO8601"),
        "held": pd.to_timedelta([6, 12, 18, 24], unit="h"),
        "said": ["2020-01-01", "2020-01-02", "2020-01-03", "2020-01-04"],
        "fold": ["train", "train", "valid", "train"],
    }
)


def tables(edges: Any = EDGES, nodes: Any = NODES, **options: Any) -> Any:
    return gnnkit.tables(edges, nodes, **options)


def rows(source: Any, name: str = "x") -> np.ndarray[Any, Any]:
    return np.concatenate(list(source.node_array_chunks("node", name)))


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("labels", "label"),
        ("y", "label"),
        ("source", "src"),
        ("src_col", "src"),
        ("target", "dst"),
        ("key", "keys"),
        ("node_id", "keys"),
        ("feature", "features"),
        ("feature_columns", "features"),
        ("normalize", "standardize"),
        ("fillna", "fill"),
        ("splits", "split"),
        ("timestamp", "time"),
        ("weights", "edge_weight"),
        ("directed", "undirected"),
        ("undirect", "undirected"),
        ("delimiter", "sep"),
        ("separator", "sep"),
        ("na_values", "null"),
        ("categorie", "categories"),
    ],
)
def test_a_name_that_is_nearly_right_is_answered_with_the_right_one(word: str, meant: str) -> None:
    for call in (tables, lambda **given: GraphLoader.from_tables(EDGES, NODES, num_neighbors=[2], **given)):
        with pytest.raises(PlanError, match=f"unknown option '{word}'") as error:
            call(**{word: "x"})
        said = str(error.value).partition("known options")[0]
        assert f"it is {meant}= here" in said or f"did you mean '{meant}'" in said, said


@pytest.mark.parametrize("word", ["nonsense", "prt", "zz"])
def test_a_name_that_is_like_none_is_answered_with_none(word: str) -> None:
    with pytest.raises(PlanError, match=f"unknown option '{word}'") as error:
        GraphLoader.from_tables(EDGES, num_neighbors=[2], **{word: 1})  # type: ignore[arg-type]
    assert "did you mean" not in str(error.value)


@pytest.mark.parametrize("named", [{}, {"sep": ";"}])
def test_semicolons_are_recognised_and_can_be_named(named: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("src;dst;amount\n0;1;2,5\n1;0;3,5\n")
    source = tables(tmp_path / "edges.csv", None, edge_weight="amount", decimal=",", **named)
    assert "';'" in repr(source) or "sep ;" in repr(source) or ";" in repr(source)
    assert np.concatenate(list(source.edge_array_chunks(("node", "to", "node"), "edge_weight"))).tolist() == [2.5, 3.5]


def test_standardized_features_have_mean_0_and_deviation_1_in_the_training_rows() -> None:
    source = tables(features=["age", "size", "same"], split="fold", standardize=True, fill="mean")
    train = NODES.fold == "train"
    means = np.array([2.0, 13 / 3, 5.0])
    filled = NODES[["age", "size", "same"]].astype(float).fillna({"age": means[0]}).to_numpy()
    deviations = np.array([1.0, NODES["size"][train].std(ddof=0), 1.0])
    np.testing.assert_allclose(rows(source), (filled - means) / deviations, rtol=1e-6)
    facts = source.metadata["tables"]["node"]["x"]
    np.testing.assert_allclose([fact["mean"][0] for fact in facts], means)
    assert facts[0] == {"column": "age", "width": 1, "mean": [2.0], "deviation": [1.0]}


def test_one_column_is_standardized_and_another_filled() -> None:
    source = tables(features=["age", "size"], standardize="size", fill={"age": "mean"})
    found = rows(source)
    assert found[1, 0] == np.float32((1 + 100 + 3) / 3) and found[0, 0] == 1  # without splits, of all rows
    assert abs(found[:, 1].mean()) < 1e-6 and abs(found[:, 1].std() - 1) < 1e-6


def test_lists_and_edges_are_standardized() -> None:
    nodes = pa.table({"v": pa.array([[1.0, 10.0], [3.0, 10.0]], pa.list_(pa.float32(), 2))})
    source = tables(pd.DataFrame({"src": [0, 1], "dst": [1, 0], "w": [2.0, 4.0]}), nodes, features={"node": "v"}, standardize=True)
    assert rows(source).tolist() == [[-1, 0], [1, 0]]
    source = tables(pd.DataFrame({"src": [0, 1], "dst": [1, 0], "w": [2.0, 4.0]}), None, features="w", standardize="w")
    assert np.concatenate(list(source.edge_array_chunks(("node", "to", "node"), "edge_attr"))).tolist() == [[-1], [1]]


def test_fitted_features_do_not_depend_on_how_the_rows_came(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    nodes = pd.DataFrame({"f": rng.normal(1e6, 1, 5000), "fold": np.where(rng.random(5000) < 0.5, "train", "test")})
    nodes.loc[::7, "f"] = None
    pq.write_table(pa.Table.from_pandas(nodes), tmp_path / "nodes.parquet", row_group_size=137)
    options = {"features": "f", "split": "fold", "standardize": True, "fill": "mean"}
    one, other = (tables(EDGES, form, **options) for form in (nodes, tmp_path / "nodes.parquet"))
    assert np.array_equal(rows(one), rows(other))
    train = rows(one)[np.flatnonzero(nodes.fold == "train")]
    assert abs(float(train.mean())) < 1e-3 and one.metadata == other.metadata


def test_times_are_features_in_days() -> None:
    source = tables(features=["born", "held"], fill={"born": pd.Timestamp("1970-01-11")})
    assert rows(source).tolist() == [[1, 0.25], [2.5, 0.5], [10, 0.75], [4, 1]]
    assert rows(tables(features=["born"], fill="mean"))[2, 0] == 2.5
    of_edges = tables(features="at")
    assert np.concatenate(list(of_edges.edge_array_chunks(("node", "to", "node"), "edge_attr")))[:2, 0].tolist() == [18262, 18262.5]


def test_advice_on_texts_that_are_times_works() -> None:
    with pytest.raises(DatasetError, match=r"types=\{'said': 'timestamp\[us\]'\} reads '2020-01-01' as a time"):
        tables(time="said")
    types = {"said": "timestamp[us]"}
    assert rows(tables(time="said", types=types), "time")[1] == 1_577_923_200_000_000
    assert rows(tables(features="said", types=types))[1, 0] == 18263
    with pytest.raises(DatasetError, match="time= takes times, and features= does as days"):
        tables(label="born", fill={"born": pd.Timestamp(0)})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"features": "size", "standardize": "age"}, "standardize names 'age', which is none of the features"),
        ({"standardize": True}, "standardize=True, and there are no features"),
        ({"features": "size", "fill": "median"}, "fill='median'"),
        ({"features": "size", "standardize": 3}, "standardize"),
        ({"time": {("node", "to", "node"): "at"}, "undirected": True}, r"cannot be added up\n.*'a': 'b', 'b': 'a'"),
        ({"undirected": "yes"}, "undirected must be True or False"),
        (
            {"features": ["size", "a"]},
            r"\['size'\] are columns of nodes, and \['a'\] of edges\n.*features=\{'node': \['size'\], \('node', 'to', 'node'\): \['a'\]\}",
        ),
    ],
)
def test_what_cannot_be_done_is_said(options: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        tables(**options)


def test_an_infinite_value_cannot_be_fitted_to() -> None:
    nodes = pd.DataFrame({"f": [np.inf, 1.0, 2.0], "fold": ["train", "train", "test"]})
    with pytest.raises(DatasetError, match="column 'f' has an infinite value"):
        tables(pd.DataFrame({"src": [0], "dst": [1]}), nodes, features="f", split="fold", standardize=True)


def test_types_of_nodes_need_types_of_edges() -> None:
    with pytest.raises(DatasetError, match="a mapping of names to tables(.|\\n)*edge types"):
        tables(pd.DataFrame({"a": [0], "b": [1]}), {"u": pd.DataFrame({"c": [0, 1]})}, keys="c")


def test_a_column_without_a_training_value_cannot_be_fitted() -> None:
    nodes = pd.DataFrame({"f": [None, 1.0], "fold": ["train", "test"]})
    with pytest.raises(DatasetError, match="column 'f' has no value to fit to in the training rows"):
        tables(pd.DataFrame({"src": [0], "dst": [1]}), nodes, features="f", split="fold", fill="mean")


def test_undirected_tables_are_what_pyg_makes_of_them() -> None:
    source = tables(features={"node": "size"}, edge_weight="amount", undirected=True)
    edges = torch.tensor(EDGES[["a", "b"]].to_numpy().T)
    wanted = ToUndirected()(Data(edge_index=edges, edge_weight=torch.tensor(EDGES.amount.to_numpy(), dtype=torch.float32), num_nodes=4))
    assert np.array_equal(np.concatenate(list(source.edge_chunks(("node", "to", "node"))), axis=1), wanted.edge_index)
    found = np.concatenate(list(source.edge_array_chunks(("node", "to", "node"), "edge_weight")))
    assert np.array_equal(found, wanted.edge_weight) and "undirected" in repr(source)


def test_undirected_tables_of_two_types_keep_their_keys(tmp_path: Path) -> None:
    edges = {("user", "buys", "item"): pd.DataFrame({"u": ["x", "y"], "i": [7, 9]})}
    options: dict[str, Any] = {"undirected": True, "num_neighbors": [1], "input_nodes": "user", "store_dir": tmp_path, "progress": False}
    with GraphLoader.from_tables(edges, **options) as loader:
        assert ("item", "rev_buys", "user") in loader.schema.edge_types
        assert loader.store is not None and loader.store.keys("item")[1] == 9
        with pytest.raises(PlanError, match="undirected="):
            loader.store.append(edges=edges)


def test_a_store_of_fitted_features_takes_no_more_rows(tmp_path: Path) -> None:
    with GraphLoader.from_tables(EDGES, NODES, features="size", standardize=True, num_neighbors=[1], store_dir=tmp_path) as loader:
        assert loader.store is not None
        with pytest.raises(PlanError, match="standardize="):
            loader.store.append(edges=EDGES)

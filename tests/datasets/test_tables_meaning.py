"""The meaning of the columns of tables: which are ends, keys and times, and advice that leads to a graph."""

from __future__ import annotations

import itertools
import re
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
from scipy import sparse
from torch_geometric.data import Data, TemporalData
from torch_geometric.datasets import KarateClub

import gnnkit
from gnnkit.errors import DatasetError, GnnkitError, PlanError
from tests.datasets.reading import read_edge_array, read_edges, read_node_array
from tests.helpers.machine import ROOT

pytestmark = pytest.mark.usefixtures("home")
PLAIN = ("node", "to", "node")


def pairs(source: Any, edge_type: Any = PLAIN) -> list[tuple[Any, Any]]:
    """The edges, by the keys of their ends."""
    source_keys, target_keys = (source.keys.get(t) for t in (edge_type[0], edge_type[2]))
    return [
        (int(a) if source_keys is None else source_keys[int(a)], int(b) if target_keys is None else target_keys[int(b)])
        for a, b in read_edges(source, edge_type).T
    ]


def numbered(columns: list[str], rows: int = 3) -> dict[str, np.ndarray]:
    """Columns of which each has numbers of its own."""
    return {name: 100 * number + np.arange(rows) for number, name in enumerate(columns, 1)}


# Ends ------------------------------------------------------------------------------------------------------------------------

NAMED = [
    ("src", "dst"),
    ("source", "target"),
    ("Source", "Destination"),
    ("from", "to"),
    ("FromNodeId", "ToNodeId"),
    ("from_id", "to_id"),
    ("srcid", "dstid"),
    (":START_ID(Person)", ":END_ID(Film)"),
    ("head", "tail"),
    ("u", "v"),
    ("u", "i"),
    ("nameOrig", "nameDest"),
    ("sender_account", "receiver_account"),
    ("from_address", "to_address"),
    ("srcip", "dstip"),
]


@pytest.mark.parametrize("ends", NAMED, ids="-".join)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["in order", "reversed"])
@pytest.mark.parametrize("before", [[], ["time"], ["Unnamed: 0"], ["", "w"]], ids=str)
def test_names_of_ends_come_before_their_places(ends: tuple[str, str], order: tuple[int, int], before: list[str]) -> None:
    if before and ends[0] in ("from", "head", "u"):
        before = before[:1]  # further to the right these may be something else
    columns = [*before, *(ends[k] for k in order), "amount"]
    table = numbered(columns)
    assert pairs(gnnkit.tables(table)) == list(zip(table[ends[0]].tolist(), table[ends[1]].tolist(), strict=True))


@pytest.mark.parametrize(
    ("columns", "wanted"),
    [
        (["a", "b"], ("a", "b")),
        (["Unnamed: 0", "a", "b"], ("a", "b")),
        (["user", "item", "start_time", "end_time"], ("user", "item")),
        (["id", "friend_id"], ("id", "friend_id")),
    ],
)
def test_places_count_where_names_say_nothing(columns: list[str], wanted: tuple[str, str]) -> None:
    table = numbered(columns)
    assert pairs(gnnkit.tables(table)) == list(zip(*(table[name].tolist() for name in wanted), strict=True))


def test_what_can_be_no_key_or_has_another_use_is_no_end() -> None:
    table = {"at": pd.to_datetime(["2020-01-01", "2021-01-01"]).to_numpy(), "a": np.array([1, 2]), "b": np.array([2, 1])}
    assert pairs(gnnkit.tables(table)) == pairs(gnnkit.tables(table, time="at")) == [(1, 2), (2, 1)]
    assert pairs(gnnkit.tables({"when": np.array([5, 6]), "a": np.array([1, 2]), "b": np.array([2, 1])}, time="when")) == [(1, 2), (2, 1)]


def followed(error: GnnkitError, call: Any) -> list[Any]:
    """What the calls that an error names lead to, each of them written as it stands there."""
    assert error.hint is not None
    return [call(**eval(f"dict({words})")) for words in error.hint.split(" or ")]


@pytest.mark.parametrize(
    "columns",
    [
        ["time", "a", "b"],
        ["weight", "a", "b"],
        ["edge_id", "a", "b"],
        ["id", "user_id", "item_id"],
        ["user", "relation", "item"],
        ["to_city", "from_city"],
        ["Timestamp", "From Bank", "Account", "To Bank", "Account.1"],
        ["user", "item", "from", "to"],
        ["Message-ID", "Folder", "From", "To"],
        ["year", "month", "ORIGIN", "DEST"],
        ["day", "relation", "subject", "object"],
        ["x", "src", "dst", "source", "target"],
        ["dst", "x"],
        ["x", "sender_id"],
    ],
    ids=",".join,
)
def test_names_that_contradict_are_refused_with_the_calls_that_settle_it(columns: list[str]) -> None:
    table = numbered(columns)
    with pytest.raises(PlanError, match="do not say which are the ends") as caught:
        gnnkit.tables(table)
    for words in caught.value.hint.split(" or "):
        named = eval(f"dict({words})")
        assert pairs(gnnkit.tables(table, **named)) == list(zip(table[named["src"]].tolist(), table[named["dst"]].tolist(), strict=True))
    assert caught.value.hint.count(" or ") == 1


@pytest.mark.parametrize("columns", [("item", "user"), ("item_id", "user_id"), ("ITEM", "by"), ("x", "userId")])
def test_columns_called_as_the_other_type_ask(columns: tuple[str, str]) -> None:
    buys, table = ("user", "buys", "item"), numbered([*columns])
    with pytest.raises(PlanError, match="do not say which are the ends") as caught:
        gnnkit.tables({buys: table})
    as_they_stand, turned = followed(caught.value, lambda **named: gnnkit.tables({buys: table}, **named))
    assert pairs(as_they_stand, buys) == [(a, b) for b, a in pairs(turned, buys)] == [(100, 200), (101, 201), (102, 202)]
    table = numbered([*columns[::-1]])
    assert pairs(gnnkit.tables({buys: table}), buys) == [(100, 200), (101, 201), (102, 202)]


def test_unreadable_ends_are_errors_and_others_no_ends() -> None:
    odd = {"src": [{"a": 1}, "x"], "dst": [1, 2], "w": [3, 4]}
    with pytest.raises(DatasetError, match="src or dst='src' of edges could not be read"):
        gnnkit.tables(odd)
    assert pairs(gnnkit.tables({"note": odd["src"], "a": odd["dst"], "b": odd["w"]})) == [(1, 3), (2, 4)]


def test_edges_that_may_lead_back_ask(tmp_path: Path) -> None:
    """In a typed graph, columns in another order have always been a way to say it."""
    there, back, friends = ("a", "to", "b"), ("b", "rev_to", "a"), ("a", "knows", "a")
    table = numbered(["src", "dst"])
    turned = {name: table[name] for name in ("dst", "src")}
    with pytest.raises(PlanError, match="do not say which are the ends") as caught:
        gnnkit.tables({there: table, back: turned})
    by_name, led_back = followed(caught.value, lambda **named: gnnkit.tables({there: table, back: turned}, **named))
    assert pairs(by_name, there) == pairs(by_name, back) == pairs(led_back, there) == [(100, 200), (101, 201), (102, 202)]
    assert pairs(led_back, back) == [(200, 100), (201, 101), (202, 102)]
    assert pairs(gnnkit.tables({friends: turned}), friends) == [(100, 200), (101, 201), (102, 202)]


def test_appended_columns_that_do_not_tell(tmp_path: Path) -> None:
    store = gnnkit.partition(gnnkit.tables({"a": [0], "b": [1]}, 3), 1, out=tmp_path / "store")
    with pytest.raises(PlanError, match=r"(?s)do not say which are the ends.*call the columns of the ends \['a', 'b'\]"):
        store.append(edges={"time": [1], "x": [2], "y": [0]})
    assert store.append(edges={"time": [1], "a": [2], "b": [0]}).schema.num_edges == 2


@pytest.mark.parametrize("option", ["src", "dst"])
@pytest.mark.parametrize("column", ["a", "b"])
def test_one_named_end_leaves_the_other_column(option: str, column: str) -> None:
    other = {"a": "b", "b": "a"}[column]
    table = numbered(["a", "b"])
    wanted = (column, other) if option == "src" else (other, column)
    assert pairs(gnnkit.tables(table, **{option: column})) == list(zip(*(table[name].tolist() for name in wanted), strict=True))


@pytest.mark.parametrize("columns", [["hash", "nonce", "from_address", "to_address"], ["srcip", "sport", "dstip", "dsport"]], ids=",".join)
def test_a_number_between_texts_is_no_end(columns: list[str]) -> None:
    numbers = ("nonce", "sport", "dsport")
    table = {name: [1, 2] if name in numbers else [f"{name}1", f"{name}2"] for name in columns}
    first, second = [name for name in columns if name not in numbers][-2:]
    assert pairs(gnnkit.tables(table)) == list(zip(table[first], table[second], strict=True))
    nameless = {f"c{k}": values for k, values in enumerate(table.values())}
    with pytest.raises(PlanError, match="do not say which are the ends") as caught:
        gnnkit.tables(nameless)
    assert all(found for found in followed(caught.value, lambda **named: pairs(gnnkit.tables(nameless, **named))))


@pytest.mark.parametrize("form", ["adjacency", "crosstab"])
def test_matrices_of_names_are_no_edges(form: str) -> None:
    ends = pd.DataFrame({"u": ["a", "b", "a"], "v": ["x", "y", "y"]})
    graph = nx.DiGraph([("a", "x"), ("b", "y"), ("a", "y")])
    edges = pd.crosstab(ends.u, ends.v) if form == "crosstab" else nx.to_pandas_adjacency(graph)
    for given in (edges, {("user", "to", "item"): edges}):
        with pytest.raises(PlanError, match="are a matrix") as caught:
            gnnkit.tables(given)
    line = (caught.value.hint or "").removesuffix(" is a table of edges")
    assert sorted(pairs(gnnkit.tables(eval(line, {"edges": edges})))) == sorted(graph.edges)


def test_rows_of_nodes_and_edges_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "all.csv"
    path.write_text('"_id","_labels","born","_start","_end","_type"\n7,":P",1964,,,\n9,":P",1961,,,\n,,,7,9,"KNOWS"\n')
    with pytest.raises(PlanError, match="rows of nodes and of edges") as caught:
        gnnkit.tables(path)
    first, call = (caught.value.hint or "").split("; ")
    names: dict[str, Any] = {"pandas": pd, "path": path, "gnnkit": gnnkit}
    exec(first, names)
    assert pairs(eval(call, names)) == [(7, 9)]


def test_columns_of_nodes_are_ends_of_edges_of_the_same_names(tmp_path: Path) -> None:
    """Cora as LINQS publishes it, without headers: f1 is a feature of nodes and the target of edges."""
    (tmp_path / "cora.cites").write_text("1\t2\n2\t3\n")
    (tmp_path / "cora.content").write_text("1\t0\t1\tA\n2\t1\t1\tB\n3\t0\t0\tA\n")
    source = gnnkit.tables(tmp_path / "cora.cites", tmp_path / "cora.content", keys="f0", features=["f1", "f2"], label="f3")
    assert pairs(source) == [(1, 2), (2, 3)] and read_node_array(source, "node", "y").tolist() == [0, 1, 0]


# Ids that are no row numbers -------------------------------------------------------------------------------------------------

IDS = np.random.default_rng(0).permutation(50)


@pytest.mark.parametrize("column", ["id", "user_id", "index", ":ID"])
@pytest.mark.parametrize("typed", [False, True])
def test_ids_that_are_no_row_numbers_need_keys(column: str, typed: bool, tmp_path: Path) -> None:
    edges, nodes = pd.DataFrame({"src": np.arange(49), "dst": np.arange(1, 50)}), pd.DataFrame({"id": IDS, "x": IDS * 1.0})
    nodes = nodes.set_index("id") if column == "index" else nodes.rename(columns={"id": column})
    name, edge_type = ("id" if column == "index" else column), ("user", "to", "user") if typed else PLAIN

    def read(table: Any, **options: Any) -> Any:
        return gnnkit.tables({edge_type: edges}, {"user": table}, **options) if typed else gnnkit.tables(edges, table, **options)

    with pytest.raises(DatasetError, match=f"the values of '{name}' are not the rows' numbers") as caught:
        read(nodes)
    keys = (caught.value.hint or "").removeprefix("keys=").partition(" has")[0]
    features = {edge_type[0]: "x"}
    source = read(nodes, keys=eval(keys), features=features)
    assert pairs(source, edge_type) == list(zip(edges.src, edges.dst, strict=True))
    assert pairs(read(nodes.reset_index(drop=True)[["x"]]), edge_type) == pairs(source, edge_type)  # without the column, rows


@pytest.mark.parametrize(
    "ids", [np.arange(50), np.arange(100, 150), np.zeros(50, int), IDS.astype(str)], ids=["rows", "others", "one", "texts"]
)
def test_columns_that_edges_do_not_name_stop_nothing(ids: Any) -> None:
    edges = {"src": np.arange(49), "dst": np.arange(1, 50)}
    assert len(pairs(gnnkit.tables(edges, {"id": ids, "x": np.arange(50.0)}))) == 49


# Relations in a column -------------------------------------------------------------------------------------------------------

TRIPLES = pd.DataFrame(
    {"head": ["a", "b", "c", "a"], "relation": ["likes", "knows", "likes", "/p/x, z"], "tail": ["b", "c", "a", "c"], "w": [1.0, 2, 3, 4]}
)
RELATIONS = {("node", relation, "node") for relation in TRIPLES.relation}


def test_values_of_a_column_become_edge_types(tmp_path: Path) -> None:
    sources = [gnnkit.tables(rows, edge_type="relation", edge_weight="w") for rows in (TRIPLES, TRIPLES[::-1])]
    assert [*sources[0].schema.edge_types] == [*sources[1].schema.edge_types] == sorted(RELATIONS)
    assert pairs(sources[0], ("node", "likes", "node")) == [("a", "b"), ("c", "a")]
    assert read_edge_array(sources[0], ("node", "likes", "node"), "edge_weight").tolist() == [1, 3]
    typed = ("user", "to", "item")
    by_type = gnnkit.tables({typed: TRIPLES}, edge_type={typed: "relation"})
    assert {*by_type.schema.edge_types} == {("user", relation, "item") for _, relation, _ in RELATIONS}
    options: dict[str, Any] = {"num_neighbors": [-1], "input_nodes": None, "batch_size": 4, "progress": False}
    with gnnkit.GraphLoader.from_tables(TRIPLES, edge_type="relation", store_dir=tmp_path, **options) as loader:
        assert {*loader.peek().edge_types} == RELATIONS


def test_edge_types_of_a_column_are_appended_to_and_stay(tmp_path: Path) -> None:
    more = TRIPLES.iloc[:1].assign(tail="zed")
    whole = gnnkit.partition(gnnkit.tables(pd.concat([TRIPLES, more]), edge_type="relation", edge_weight="w"), 1, out=tmp_path / "all")
    store = gnnkit.partition(gnnkit.tables(TRIPLES, edge_type="relation", edge_weight="w"), 1, out=tmp_path / "store")
    assert store.append(edges=more).fingerprint == whole.fingerprint
    with pytest.raises(DatasetError, match="names the edge type 'new', and the store has"):
        store.append(edges=more.assign(relation="new"))


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (TRIPLES.assign(relation=[None, "a", "b", "c"]), "1 nulls in 4 rows of column 'relation', the first in row 0"),
        (TRIPLES.assign(relation=TRIPLES.w), "edge types are called by texts or whole numbers"),
        (TRIPLES[:0], "there are no edges"),
        (pd.DataFrame({"head": range(300), "relation": range(300), "tail": range(300)}), "more than 256 different values"),
    ],
)
def test_columns_that_name_no_edge_types(table: Any, says: str) -> None:
    with pytest.raises(DatasetError, match=says):
        gnnkit.tables(table, edge_type="relation")


def test_relations_as_whole_numbers() -> None:
    source = gnnkit.tables(TRIPLES, categories="relation")
    assert read_edge_array(source, PLAIN, "relation").tolist() == [2, 1, 2, 0]
    assert source.metadata["tables"]["node__to__node"]["relation"]["values"] == ["/p/x, z", "knows", "likes"]


def test_one_named_end_finds_its_partner_or_asks() -> None:
    table = numbered(["to_id", "amount", "from_id"])
    for named in ({"src": "from_id"}, {"dst": "to_id"}):
        assert pairs(gnnkit.tables(table, **named)) == list(zip(table["from_id"].tolist(), table["to_id"].tolist(), strict=True))
    table = numbered(["a", "b", "c"])
    with pytest.raises(PlanError, match=r"src='b', and edges have the columns") as caught:
        gnnkit.tables(table, src="b")
    assert all(pairs(found)[0][0] == 200 for found in followed(caught.value, lambda **named: gnnkit.tables(table, **named)))
    loops = gnnkit.tables(table, src="a", dst="a")  # said, and not guessed
    assert pairs(loops) == [(100, 100), (101, 101), (102, 102)]


@pytest.mark.packages("dask")
@pytest.mark.filterwarnings("ignore:The inplace keyword")  # of pandas, which Dask uses
def test_edges_that_dask_has_put_into_order(tmp_path: Path) -> None:
    """By the line of the page on Spark and Dask; Dask itself writes ``dst`` first, and several files."""
    import dask
    import dask.dataframe as dask_frames

    line = re.search(r"`ddf\.(.*?)`", (ROOT / "docs/how-to/spark-and-dask.md").read_text(), re.DOTALL)
    assert line is not None
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"src": rng.integers(0, 300, 4000), "dst": rng.integers(0, 300, 4000)})
    code = line[0].strip("`").replace('"edges/"', repr(str(tmp_path / "edges")))
    with dask.config.set(scheduler="synchronous"):
        exec(code, {"ddf": dask_frames.from_pandas(frame, npartitions=4)})
    files = sorted((tmp_path / "edges").glob("*.parquet"))
    assert len(files) > 1 and parquet.read_schema(files[0]).names[0] == "dst"
    found = pairs(gnnkit.tables(tmp_path / "edges", 300, presorted=True))
    assert sorted(found) == sorted(zip(frame["src"], frame["dst"], strict=True))


def test_appended_columns_in_another_order(tmp_path: Path) -> None:
    store = gnnkit.partition(gnnkit.tables({"dst": [1, 2], "src": [0, 1]}, 4), 1, out=tmp_path / "store")
    later = store.append(edges={"src": [2], "dst": [3]})
    assert later.metadata["tables"]["node__to__node"]["src"] == ["src"]
    with gnnkit.GraphLoader.from_store(later, num_neighbors=[-1], input_nodes=[1, 2, 3], batch_size=3, progress=False) as loader:
        (batch,) = loader
    ends = batch.n_id[batch.edge_index]
    assert sorted(map(tuple, ends.T.tolist())) == [(0, 1), (1, 2), (2, 3)]


@pytest.mark.parametrize("kind", [nx.DiGraph, nx.Graph, nx.MultiDiGraph])
def test_attributes_of_networkx_take_no_ends_and_no_keys(kind: Any) -> None:
    graph = kind()
    for node, other in itertools.pairwise([0, 1, 2, 0]):
        graph.add_node(node, node=2 - node, v=10.0 * node)
        graph.add_edge(node, other, src=other, dst=node, _src="x", source=1, target=2)
    source = gnnkit.tables(graph, features="v")
    keys, rows = source.keys["node"][[0, 1, 2]], read_node_array(source, "node", "x")
    assert dict(zip(keys.tolist(), rows[:, 0].tolist(), strict=True)) == {0: 0, 1: 10, 2: 20}
    assert sorted(pairs(source)) == sorted((a, b) for a, b, *_ in graph.to_directed().edges)
    with pytest.raises(PlanError, match="its own nodes and ends"):
        gnnkit.tables(graph, src="src")


# Names that name nothing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"types": {"sorce": "string"}}, r"types names 'sorce', which is no column; did you mean 'source'"),
        ({"fill": {"sorce": 0}}, r"fill names 'sorce', which is no column; did you mean 'source'"),
        ({"keys": {"user": "id"}}, r"keys names 'user', which is no type of this graph"),
        ({"src": {("a", "to", "b"): "source"}}, r"src names .* which is no type of this graph"),
        ({"features": {"user": "id"}}, r"features names 'user', which is no type"),
        ({"nodes": None, "keys": "id"}, r"there is no table of nodes 'node'"),
        ({"nodes": 3, "keys": "id"}, r"there is no table of nodes 'node'"),
    ],
)
def test_names_that_name_nothing(options: dict[str, Any], says: str) -> None:
    arguments = {"nodes": {"id": [0, 1, 2], "v": [1.0, 2.0, 3.0]}, **options}
    with pytest.raises(PlanError, match=says):
        gnnkit.tables({"source": [0, 1], "target": [1, 2]}, **arguments)
    with pytest.raises(PlanError, match=re.compile("fill names 'w'")):
        store = gnnkit.partition(gnnkit.tables(([0], [1]), {"v": [1.0, 2.0]}, features="v"), 1)
        store.append(nodes={"v": [3.0]}, fill={"w": 0})


# Keys ------------------------------------------------------------------------------------------------------------------------

BUYS = ("c", "buys", "a")


def test_null_foreign_keys(tmp_path: Path) -> None:
    buys = pd.DataFrame(
        {"customer": pd.array([10, None, 30, 99], dtype="Int64"), "article": ["p", "q", None, "q"], "w": [1.0, 2.0, 3.0, 4.0]}
    )
    options: dict[str, Any] = {"keys": {"c": "customer"}, "edge_weight": {BUYS: "w"}}
    customers = pd.DataFrame({"customer": [10, 20, 30]})
    with pytest.raises(
        DatasetError, match=r"(?s)1 nulls in 4 rows of the key column 'customer'.*dangling=\"drop\".*fill=\{'customer': key\}"
    ):
        gnnkit.tables({BUYS: buys}, {"c": customers}, **options)
    dropped = gnnkit.tables({BUYS: buys}, {"c": customers}, dangling="drop", **options)
    assert pairs(dropped, BUYS) == [(10, "p")]
    assert read_edge_array(dropped, BUYS, "edge_weight").tolist() == [1.0]
    assert dropped.metadata["tables"]["c__buys__a"]["dropped_edges"] == 3 and dropped.schema.edge_types[BUYS].num_edges == 1
    filled = gnnkit.tables({BUYS: buys}, {"c": customers}, dangling="drop", fill={"customer": 20, "article": "none"}, **options)
    assert pairs(filled, BUYS) == [(10, "p"), (20, "q"), (30, "none")]
    many = pd.concat([buys] * 3000, ignore_index=True)
    whole = gnnkit.tables({BUYS: many}, {"c": customers}, dangling="drop", memory_bytes=1 << 12, **options)
    assert pairs(whole, BUYS) == [(10, "p")] * 3000


def test_appended_null_foreign_keys(tmp_path: Path) -> None:
    customers, buys = {"customer": [10, 20]}, pd.DataFrame({"customer": pd.array([10, None], dtype="Int64"), "article": [1, 2]})
    made = {"keys": {"c": "customer"}, "dangling": "drop"}
    store = gnnkit.partition(gnnkit.tables({BUYS: buys}, {"c": customers}, **made), 1, out=tmp_path / "store")
    later = store.append(edges={BUYS: buys}, nodes={"c": {"customer": [30]}})
    assert later.metadata["tables"]["c__buys__a"]["dropped_edges"] == 2 and later.schema.edge_types[BUYS].num_edges == 2


@pytest.mark.parametrize("node_keys", [{"id": [1, 2, 3]}, None])
def test_whole_numbers_that_became_fractions(node_keys: Any) -> None:
    edges = pd.DataFrame({"src": [1.0, None, 2.0], "dst": [2, 3, 3]})
    options = {} if node_keys is None else {"nodes": node_keys, "keys": "id"}
    with pytest.raises(PlanError, match="is double, which is no key") as caught:
        gnnkit.tables(edges, dangling="drop", **options)
    (change,) = re.findall(r"table(\.astype\(.*?\)) of pandas", caught.value.hint or "")
    assert pairs(gnnkit.tables(eval(f"edges{change}"), dangling="drop", **options)) == [(1, 2), (2, 3)]


def test_nodes_of_a_grid_are_keys_as_texts() -> None:
    edges = pd.DataFrame({"source": [(0, 0), (0, 1)], "target": [(0, 1), (1, 1)]})
    for column in edges:
        with pytest.raises(PlanError, match=f"'{column}' of edges is list<.*>, which is no key") as caught:
            gnnkit.tables(edges)
        exec((caught.value.hint or "").split(" of pandas")[0], {"table": edges})
    assert pairs(gnnkit.tables(edges)) == [("(0, 0)", "(0, 1)"), ("(0, 1)", "(1, 1)")]


def test_a_sparse_matrix_as_features_is_named() -> None:
    matrix = sparse.eye(3, format="csr")
    with pytest.raises(DatasetError, match=r"'x' of .* could not be read: a sparse matrix of SciPy, of which toarray\(\) makes rows"):
        gnnkit.tables(([0], [2]), {"x": matrix}, features="x")
    gnnkit.tables(([0], [2]), {"x": matrix.toarray()}, features="x")


@pytest.mark.parametrize("ids", [["1.0", "2.0"], ["1e5", "18446744073709551615"]])
def test_fractions_of_texts_as_keys(tmp_path: Path, ids: list[str]) -> None:
    (tmp_path / "edges.csv").write_text(f"src,dst\n{ids[0]},2\n{ids[1]},1\n")
    with pytest.raises(PlanError, match="is double, which is no key") as caught:
        gnnkit.tables(tmp_path / "edges.csv")
    whole, written = re.findall(r"pandas(\.read_csv\(.*?\}\))", caught.value.hint or "")
    call = whole if ids[0] == "1.0" else written
    frame = eval(f"pd{call}", {"pd": pd, "path": tmp_path / "edges.csv"})
    wanted = [(1, 2), (2, 1)] if ids[0] == "1.0" else [(ids[0], "2"), (ids[1], "1")]
    assert pairs(gnnkit.tables(frame.astype({"dst": frame["src"].dtype}))) == wanted


@pytest.mark.parametrize("nodes", [{"v": [10.0, 20.0, 30.0]}, 3])
@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_ids_that_begin_with_one(nodes: Any, dtype: Any) -> None:
    edges = {"src": np.array([1, 2, 3, 1], dtype), "dst": np.array([2, 3, 1, 3], dtype)}
    with pytest.raises(DatasetError, match=r"(?s)3 of 4 edges name no node.*have no keys= and are row numbers, counted from 0") as caught:
        gnnkit.tables(edges, nodes)
    assert "dangling" not in str(caught.value)
    assert pairs(gnnkit.tables({name: ids - 1 for name, ids in edges.items()}, nodes)) == [(0, 1), (1, 2), (2, 0), (0, 2)]
    assert pairs(gnnkit.tables(edges)) == [(1, 2), (2, 3), (3, 1), (1, 3)]
    if isinstance(nodes, dict):
        keyed = gnnkit.tables(edges, {**nodes, "id": [1, 2, 3]}, keys="id", features="v")
        assert pairs(keyed) == [(1, 2), (2, 3), (3, 1), (1, 3)]


def test_keys_of_several_columns_need_a_table_of_nodes() -> None:
    edges = {"bank": [1, 2], "account": ["x", "y"], "bank2": [2, 1], "account2": ["y", "x"]}
    ends: dict[str, Any] = {"src": ["bank", "account"], "dst": ["bank2", "account2"]}
    with pytest.raises(PlanError, match=r"(?s)keys of 'node' are \[\].*a table with a row for each of them, and keys="):
        gnnkit.tables(edges, **ends)
    made = gnnkit.tables(edges, {"bank": [1, 2], "account": ["x", "y"]}, keys=["bank", "account"], **ends)
    assert pairs(made) == [((1, "x"), (2, "y")), ((2, "y"), (1, "x"))]
    with pytest.raises(PlanError, match=r"src is not given, .*keys of 'node' are \['bank', 'account'\]"):
        gnnkit.tables(edges, {"bank": [1, 2], "account": ["x", "y"]}, keys=["bank", "account"])


@pytest.mark.parametrize(("ends", "ids"), [([1, 2], ["1", "2"]), (["1", "2"], [1, 2])])
def test_the_type_that_an_error_names_reads_keys_as_the_others(ends: Any, ids: Any) -> None:
    edges, nodes = {"src": ends, "dst": ends[::-1]}, {"id": ids}
    types: dict[str, str] = {}
    for _ in range(2):  # one end after the other
        with pytest.raises(PlanError, match="and the keys") as caught:
            gnnkit.tables(edges, nodes, keys="id", types=types)
        types |= eval(re.findall(r"types=(\{.*?\})", caught.value.hint or "")[0])
    assert pairs(gnnkit.tables(edges, nodes, keys="id", types=types)) == [(ids[0], ids[1]), (ids[1], ids[0])]


# Numbers that do not fit -----------------------------------------------------------------------------------------------------

RING = {"src": [0, 1, 2], "dst": [1, 2, 0]}


@pytest.mark.parametrize("option", ["label", "features"])
def test_whole_numbers_beyond_int64(option: str) -> None:
    nodes = {"y": np.array([2**63 + 5, 1, 2], np.uint64)}
    if option == "features":  # of float32, as all features are
        assert read_node_array(gnnkit.tables(RING, nodes, features="y"), "node", "x")[0, 0] == np.float32(2**63 + 5)
        return
    with pytest.raises(DatasetError, match=r"column 'y' has 9223372036854775813, which int64 does not hold") as caught:
        gnnkit.tables(RING, nodes, label="y")
    types = eval(re.findall(r"types=(\{.*?\})", caught.value.hint or "")[0])
    assert read_node_array(gnnkit.tables(RING, nodes, label="y", types=types), "node", "y").tolist() == [2, 0, 1]
    fits = {"y": np.array([2**63 - 1, 1, 2], np.uint64)}
    assert read_node_array(gnnkit.tables(RING, fits, label="y"), "node", "y").tolist() == [2**63 - 1, 1, 2]


@pytest.mark.parametrize(
    ("option", "values", "fits"),
    [
        ("features", [1e300, 1.0], False),
        ("features", [-1e39, 1.0], False),
        ("features", [1e-50, 1.0], True),
        ("features", [np.inf, 1.0], True),
        ("label", [1e300, 2e300], False),
        ("label", [1e-50, 2e-50], False),
        ("edge_weight", [1e300, 2e300], False),
        ("edge_weight", [1e-50, 2e-50], False),
        ("edge_weight", [1e-40, 0.0], True),
    ],
)
def test_fractions_beyond_float32(option: str, values: list[float], fits: bool) -> None:
    def read(found: list[float]) -> list[float]:
        edges = {"src": [0, 1], "dst": [1, 0], **({"v": found} if option == "edge_weight" else {})}
        source = gnnkit.tables(edges, {"v": found} if option != "edge_weight" else 2, **{option: "v"})
        if option == "edge_weight":
            return read_edge_array(source, PLAIN, "edge_weight").tolist()
        return read_node_array(source, "node", {"features": "x", "label": "y"}[option]).reshape(-1).tolist()

    if fits:
        assert read(values) == np.array(values, np.float32).tolist()
        return
    with pytest.raises(DatasetError, match=re.escape(f"column 'v' has {values[0]!r} in row 0, which float32 cannot hold")):
        read(values)
    scale = 10.0 ** -np.round(np.log10(abs(values[0])))
    assert read([value * scale for value in values]) == np.array([value * scale for value in values], np.float32).tolist()


@pytest.mark.parametrize("value", [1e-50, -1e-50, 1e39])
@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize("form", ["floats", "texts", "decimals", "csv"])
def test_fractions_that_are_asked_for_in_a_type_too_narrow(value: float, kind: str, form: str, tmp_path: Path) -> None:
    made: dict[str, Any] = {
        "floats": pa.array([1.0, value]),
        "texts": pa.array(["1.0", repr(value)]),
        "decimals": pa.array([Decimal(1), Decimal(repr(value))], pa.decimal256(75, 30 if value > 1 else 60)),
    }
    edges: Any = {"src": [0, 1], "dst": [1, 0], "v": made.get(form)}
    if form == "csv":
        edges = tmp_path / "edges.csv"
        edges.write_text(f"src,dst,v\n0,1,1.0\n1,0,{value!r}\n")
    types = {"v": {"float32": "float32", "float16": "halffloat"}[kind]}
    shown = re.escape(repr(value)).replace("1e", r"1(\.0+1)?e")  # of a decimal the nearest one may be another
    for use in ("edge_weight", "features"):
        with pytest.raises(DatasetError, match=rf"column 'v' has {shown} in row 1, which {kind} cannot hold"):
            gnnkit.tables(edges, types=types, **{use: "v"})


def test_lists_that_are_asked_for_in_a_type_too_narrow() -> None:
    nodes = {"v": pa.array([[1.0, 2.0], [3.0, 1e-50]])}
    with pytest.raises(DatasetError, match="column 'v' has 1e-50 in row 1, which float32 cannot hold"):
        gnnkit.tables({"src": [0], "dst": [1]}, nodes, features="v", types={"v": pa.list_(pa.float32())})


# Times -----------------------------------------------------------------------------------------------------------------------

RATED = ("film", "rated_by", "user")
WHEN = pd.Timestamp("2020-01-01")
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
DATES: dict[str, Any] = {
    "datetime64[D]": np.array(["2020-01-01"], "datetime64[D]"),
    "datetime64[ns]": np.array(["2020-01-01"], "datetime64[ns]"),
    "Timestamp": [WHEN],
    "DatetimeIndex": pd.DatetimeIndex([WHEN]),
    "Series": pd.Series([WHEN]),
    "with a zone": pd.Series([pd.Timestamp("2020-01-01 02:00", tz="Europe/Helsinki")]),
    "datetime": [datetime(2020, 1, 1)],
    "datetime with a zone": [datetime(2020, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))],
    "date": [date(2020, 1, 1)],
    "text": ["2020-01-01"],
    "text with a zone": ["2020-01-01T00:00:00Z"],
}


def rated(unit: str = "us", **options: Any) -> gnnkit.GraphLoader:
    """A user and two ratings, of 2019 and 2030."""
    events = pd.DataFrame({"mid": [7, 8], "uid": [1, 1], "at": pd.to_datetime(["2019-01-01", "2030-01-01"])})
    options = {"num_neighbors": [-1], "batch_size": 1, "progress": False, "time_attr": "time", **options}
    if "edge_label_index" not in options:
        options["input_nodes"] = ("user", [0])
    return gnnkit.GraphLoader.from_tables({RATED: events}, time={RATED: "at"}, time_unit=unit, **options)


@pytest.mark.parametrize("unit", PER_SECOND)
@pytest.mark.parametrize("kind", DATES)
def test_dates_of_inputs_are_converted(kind: str, unit: str) -> None:
    with rated(unit, input_time=DATES[kind]) as loader:
        assert loader.plan.inputs.time.tolist() == [int(WHEN.timestamp()) * PER_SECOND[unit]]
        assert loader.peek()["film"].n_id.tolist() == [0]
        assert loader.schema.edge_types[RATED].arrays["time"].unit == unit and f"before time in {unit}" in repr(loader)
        assert f"time int64 in {unit}" in loader.store._repr_mimebundle_()["text/html"]
        assert loader.for_split(("user", [0]), input_time=["2031-01-01"]).peek()["film"].n_id.tolist() == [0, 1]
        with gnnkit.GraphLoader.from_store(
            loader.store, num_neighbors=[-1], input_nodes=("user", [0]), time_attr="time", input_time=DATES[kind], progress=False
        ) as again:
            assert again.plan.inputs == loader.plan.inputs


@pytest.mark.parametrize("kind", DATES)
def test_dates_of_links_are_converted(kind: str) -> None:
    with rated(edge_label_index=(RATED, [[0], [0]]), edge_label_time=DATES[kind]) as loader:
        assert loader.plan.inputs.edge_label_time.tolist() == [int(WHEN.timestamp()) * 10**6]


@pytest.mark.parametrize("unit", PER_SECOND)
@pytest.mark.parametrize("window", [np.timedelta64(400, "D"), timedelta(days=400), pd.Timedelta(days=400), [timedelta(days=400)]], ids=str)
def test_windows_are_converted(window: Any, unit: str) -> None:
    with rated(unit, input_time=DATES["date"], time_window=window) as loader:
        assert loader.peek()["film"].n_id.tolist() == [0]
        given = loader.plan.inputs.window if isinstance(window, list) else [loader.plan.sampling.time_window]
        assert list(given) == [400 * 86400 * PER_SECOND[unit]]
    with rated(unit, input_time=DATES["date"], time_window=timedelta(days=300)) as loader:
        assert loader.peek()["film"].n_id.tolist() == []


@pytest.mark.parametrize("unit", PER_SECOND)
@pytest.mark.parametrize("other", PER_SECOND)
@pytest.mark.parametrize("option", ["input_time", "edge_label_time"])
def test_whole_numbers_of_another_unit_are_refused(option: str, unit: str, other: str) -> None:
    given = torch.tensor([int(WHEN.timestamp()) * PER_SECOND[other]])
    more = {} if option == "input_time" else {"edge_label_index": (RATED, [[0], [0]])}
    if unit == other:
        with rated(unit, **{option: given}, **more) as loader:
            assert loader.plan.inputs.input_type is not None
        return
    with pytest.raises(PlanError, match=rf"{option} has {int(given)}: in .* that is .*; in .* it is 2020-01-01") as caught:
        rated(unit, **{option: given}, **more)
    (change,) = re.findall(rf"({option} (?:\*|//) \d+) is in", caught.value.hint or "")
    with rated(unit, **{option: eval(change, {option: given})}, **more) as loader:
        found = loader.plan.inputs.time if option == "input_time" else loader.plan.inputs.edge_label_time
        assert found.tolist() == [int(WHEN.timestamp()) * PER_SECOND[unit]]


@pytest.mark.parametrize("number", [0, -1, 5, 2**62, -(2**62)])
def test_whole_numbers_that_are_no_dates_are_taken(number: int) -> None:
    with rated(input_time=[number]) as loader:
        assert loader.plan.inputs.time.tolist() == [number]


def test_dates_where_times_have_no_unit() -> None:
    events = {"mid": [7, 8], "uid": [1, 1], "at": [2019, 2030]}
    options: dict[str, Any] = {"num_neighbors": [-1], "input_nodes": ("user", [0]), "time_attr": "time", "progress": False}
    for given in ({"input_time": ["2020-01-01"]}, {"input_time": [2020], "time_window": timedelta(days=1)}):
        with pytest.raises(PlanError, match=r"(?s)times are whole numbers without a unit.*astype\('int64'\)"):
            gnnkit.GraphLoader.from_tables({RATED: events}, time={RATED: "at"}, **options, **given)
    with gnnkit.GraphLoader.from_tables({RATED: events}, time={RATED: "at"}, **options, input_time=[2020]) as loader:
        assert loader.schema.edge_types[RATED].arrays["time"].unit is None
    for bad, says in ((np.array(["NaT"], "datetime64[s]"), "missing time"), (["soon"], "must hold numbers"), (["3000-01-01"], "beyond")):
        with pytest.raises(PlanError, match=says):
            rated("ns", input_time=bad)


@pytest.mark.parametrize("as_csv", [False, True])
def test_seconds_beside_timestamps_are_refused(as_csv: bool, tmp_path: Path) -> None:
    users = pd.DataFrame({"uid": [1], "since": pd.to_datetime(["2020-01-01"])})
    events: Any = pd.DataFrame({"mid": [7, 8], "uid": [1, 1], "ts": [1546300800, 1893456000]})
    if as_csv:
        events.to_csv(tmp_path / "events.csv", index=False)
        events = tmp_path / "events.csv"
    options: dict[str, Any] = {"keys": {"user": "uid"}, "time": {"user": "since", RATED: "ts"}}
    with pytest.raises(DatasetError, match=r"(?s)'ts' of .* has whole numbers, and 'since' of 'user' has timestamps") as caught:
        gnnkit.tables({RATED: events}, {"user": users}, **options)
    types = eval(re.findall(r"types=(\{.*?\})", caught.value.hint or "")[0])
    source = gnnkit.tables({RATED: events}, {"user": users}, types=types, **options)
    assert read_edge_array(source, RATED, "time").tolist() == [1546300800 * 10**6, 1893456000 * 10**6]
    more: dict[str, Any] = {"num_neighbors": [-1], "input_nodes": ("user", [0]), "time_attr": "time", "progress": False}
    with gnnkit.GraphLoader.from_source(source, **more) as loader:
        assert loader.peek()["film"].n_id.tolist() == [0]
        assert str(loader.check_leakage()) == f"none of 1 edges is later than its seed ({RATED} by times of edges)"


def test_a_column_of_both_tables_is_no_time() -> None:
    people = pd.DataFrame({"id": [0, 1, 2], "at": [50, 1, 1]})
    payments = pd.DataFrame({"src": [1, 2], "dst": [0, 0], "at": [10, 99]})
    with pytest.raises(PlanError, match="is a column of nodes and one of edges") as caught:
        gnnkit.tables(payments, people, keys="id", time="at")
    of_nodes, of_edges = (eval(words) for words in re.findall(r"time=(\{.*?\}) (?:takes|that)", caught.value.hint or ""))
    assert read_node_array(gnnkit.tables(payments, people, keys="id", time=of_nodes), "node", "time").tolist() == [50, 1, 1]
    assert read_edge_array(gnnkit.tables(payments, people, keys="id", time=of_edges), PLAIN, "time").tolist() == [10, 99]


@pytest.mark.parametrize(
    ("values", "unit", "says"),
    [
        ([1.5, 2.5], "us", "are timestamps, dates or whole numbers"),
        (pd.to_datetime(["1600-01-01 00:00:00.5"] * 2), "ns", "does not fit the unit 'ns'"),
        (pd.to_datetime(["2020-01-01 00:00:00.5"] * 2), "s", "does not fit the unit 's'"),
    ],
)
def test_what_an_error_of_times_names_helps(values: Any, unit: str, says: str) -> None:
    table = pd.DataFrame({"src": [0, 1], "dst": [1, 0], "t": values})
    with pytest.raises(DatasetError, match=says) as caught:
        gnnkit.tables(table, time="t", time_unit=unit)
    hint = caught.value.hint or ""
    if found := re.findall(r"time_unit='(\w+)'", hint):
        assert len(read_edge_array(gnnkit.tables(table, time="t", time_unit=found[0]), PLAIN, "time")) == 2
    else:
        (change,) = re.findall(r"for example (\(.*'int64'\))", hint)
        assert read_edge_array(gnnkit.tables(table.assign(t=eval(change)), time="t"), PLAIN, "time").tolist() == [1500, 2500]


# Other forms -----------------------------------------------------------------------------------------------------------------


def other_forms() -> dict[str, Any]:
    """Graphs of the edges 0 to 1, 0 to 2 and 2 to 1 in forms that are no tables."""
    src, dst = torch.tensor([0, 0, 2]), torch.tensor([1, 2, 1])
    matrix = sparse.coo_array((np.ones(3), (src.numpy(), dst.numpy())), shape=(3, 3))
    graph = Data(edge_index=torch.stack([src, dst]), num_nodes=3)
    return {
        "LazyFrame": pl.DataFrame({"src": src.numpy(), "dst": dst.numpy()}).lazy(),
        "TemporalData": TemporalData(src=src, dst=dst, t=torch.tensor([1, 2, 3])),
        "Data": graph,
        "dataset": KarateClub(),
        "coo_array": matrix,
        "csr_matrix": sparse.csr_matrix(matrix),
        "sparse tensor": torch.sparse_csr_tensor([0, 2, 2, 3], [1, 2, 1], torch.ones(3), size=(3, 3), check_invariants=True),
        "rows": [{"src": int(a), "dst": int(b)} for a, b in zip(src, dst, strict=True)],
        "indptr and indices": (np.array([0, 2, 2, 3]), np.array([1, 2, 1])),
    }


@pytest.mark.parametrize(
    "name",
    ["LazyFrame", "TemporalData", "Data", "dataset", "coo_array", "csr_matrix", "sparse tensor", "rows", "indptr and indices"],
)
@pytest.mark.filterwarnings("ignore:Sparse (invariant|CSR)")
def test_what_is_no_table_is_told_the_line_that_makes_it_one(name: str) -> None:
    edges = other_forms()[name]
    with pytest.raises(PlanError, match="is no table") as caught:
        gnnkit.tables(edges)
    line, _, _ = (caught.value.hint or "").rpartition(" is one" if " is one" in (caught.value.hint or "") else " takes it")
    if line.startswith("GraphLoader"):
        call = line.replace(")", ", num_neighbors=[1], progress=False)")
        with eval(call, {"GraphLoader": gnnkit.GraphLoader, "edges": edges}) as loader:
            assert loader.schema.num_nodes in (3, 34)
        return
    table = eval(line, {"edges": edges, "np": np, "pandas": pd})
    assert pairs(gnnkit.tables(table, 3)) == [(0, 1), (0, 2), (2, 1)]
    with pytest.raises(PlanError, match="is no table"):
        gnnkit.tables({PLAIN: edges})

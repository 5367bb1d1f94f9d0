"""The meaning of the columns of tables: which are ends, keys and times, and advice that leads to a graph."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest

import gnnkit
from gnnkit.errors import GnnkitError, PlanError
from tests.datasets.reading import read_edges, read_node_array

PLAIN = ("node", "to", "node")


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNKIT_HOME", str(tmp_path / "home"))


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
        (["user", "item", "from", "to"], ("user", "item")),
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
        ["src_ip", "src_port", "dst_ip", "dst_port"],
        ["x", "src", "dst", "source", "target"],
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


@pytest.mark.parametrize("option", ["src", "dst"])
@pytest.mark.parametrize("column", ["a", "b"])
def test_one_named_end_leaves_the_other_column(option: str, column: str) -> None:
    other = {"a": "b", "b": "a"}[column]
    table = numbered(["a", "b"])
    wanted = (column, other) if option == "src" else (other, column)
    assert pairs(gnnkit.tables(table, **{option: column})) == list(zip(*(table[name].tolist() for name in wanted), strict=True))


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


def test_dask_writes_the_index_first() -> None:
    """As ``ddf.set_index("dst").reset_index()`` of the page on Spark and Dask orders columns."""
    frame = pd.DataFrame({"src": [4, 0, 3], "dst": [0, 1, 2]}).set_index("dst").reset_index()
    assert list(frame.columns) == ["dst", "src"]
    assert pairs(gnnkit.tables(frame, 5, presorted=True)) == [(4, 0), (0, 1), (3, 2)]


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

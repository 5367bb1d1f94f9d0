"""Tables as a graph: the same in every form and in any pieces, with keys of their own, and nothing silent about what is wrong."""

from __future__ import annotations

import gzip
import re
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import networkx as nx
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

import gnnkit
from gnnkit import BuildOptions, GraphLoader
from gnnkit.datasets import TableSource
from gnnkit.errors import DatasetError, GnnkitError, PlanError
from tests.datasets.reading import read_edge_array, read_edges, read_node_array
from tests.storage.checks import build_store

BUYS, FOLLOWS = ("user", "buys", "item"), ("user", "follows", "user")
NUM_USERS, NUM_ITEMS, NUM_EDGES = 60, 25, 300
Shop = dict[str, pd.DataFrame]


def a_shop(seed: int = 0) -> Shop:
    rng = np.random.default_rng(seed)
    names = [f"ü{i}" if i % 7 == 0 else f"user-{i}" for i in rng.permutation(NUM_USERS)]
    users = pd.DataFrame(
        {
            "user_id": names,
            "age": rng.integers(18, 90, NUM_USERS),
            "country": rng.choice(["de", "fr", "ch"], NUM_USERS),
            "plan": rng.choice(["free", "pro", "team"], NUM_USERS),
            "churned": rng.random(NUM_USERS) < 0.3,
            "fold": rng.choice(["train", "val", "test"], NUM_USERS),
        }
    )
    items = pd.DataFrame({"sku": rng.permutation(1000)[:NUM_ITEMS] - 500, "price": rng.random(NUM_ITEMS)})
    at = pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.integers(0, 10**7, NUM_EDGES), unit="s")
    buys = pd.DataFrame(
        {"who": rng.choice(names, NUM_EDGES), "what": rng.choice(items.sku, NUM_EDGES), "at": at, "amount": rng.random(NUM_EDGES)}
    )
    follows = pd.DataFrame({"a": rng.choice(names, NUM_EDGES), "b": rng.choice(names, NUM_EDGES)})
    return {"users": users, "items": items, "buys": buys, "follows": follows}


def the_graph(form: Callable[[str], Any], folder: Path, **changes: Any) -> TableSource:
    """The shop as a graph; ``form`` gives each of its tables."""
    options: dict[str, Any] = {
        "keys": {"user": "user_id", "item": "sku"},
        "features": {"user": "age", "item": ["price"], BUYS: "amount"},
        "one_hot": {"user": "country"},
        "categories": {"user": "plan"},
        "label": {"user": "churned"},
        "split": {"user": "fold"},
        "time": {BUYS: "at"},
        "edge_weight": {BUYS: "amount"},
        "scratch_dir": folder,
    }
    nodes, edges = {"user": form("users"), "item": form("items")}, {BUYS: form("buys"), FOLLOWS: form("follows")}
    return gnnkit.tables(edges, nodes, **{**options, **changes})


def stream(frame: pd.DataFrame, rows: int) -> pa.RecordBatchReader:
    table = pa.Table.from_pandas(frame, preserve_index=False)
    return pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=rows))


def number_of(names: Any, wanted: Any) -> np.ndarray[Any, Any]:
    return pd.Index(names).get_indexer(wanted)


# One graph -----------------------------------------------------------------------------------------------------------------


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1000), rows=st.integers(1, NUM_EDGES), packed=st.sampled_from(["", ".gz"]), files=st.integers(1, 3))
def test_form_and_pieces_do_not_matter(tmp_path_factory: pytest.TempPathFactory, seed: int, rows: int, packed: str, files: int) -> None:
    shop, folder = a_shop(seed), tmp_path_factory.mktemp("forms")
    for name, frame in shop.items():
        for k in range(files):
            piece = frame.iloc[len(frame) * k // files : len(frame) * (k + 1) // files]
            piece.to_parquet(folder / f"{name}{k}.parquet", row_group_size=rows)
            feather.write_feather(pa.Table.from_pandas(piece, preserve_index=False), folder / f"{name}{k}.feather", chunksize=rows)
            piece.to_csv(folder / f"{name}{k}.csv{packed}", index=False)
    expected = the_graph(shop.__getitem__, folder).fingerprint()
    forms: dict[str, Callable[[str], Any]] = {
        "Parquet": lambda name: folder / f"{name}*.parquet",
        "CSV": lambda name: [folder / f"{name}{k}.csv{packed}" for k in range(files)],
        "Feather": lambda name: str(folder / f"{name}*.feather"),
        "Polars": lambda name: pl.from_pandas(shop[name]),
        "stream": lambda name: stream(shop[name], rows),
        "categories": lambda name: pa.Table.from_pandas(shop[name].astype({shop[name].columns[0]: "category"}), preserve_index=False),
        "dictionary": lambda name: {column: shop[name][column].array for column in shop[name]},
    }
    assert {form: the_graph(give, folder).fingerprint() for form, give in forms.items()} == dict.fromkeys(forms, expected)
    with duckdb.connect() as connection:
        assert the_graph(lambda name: connection.from_df(shop[name]), folder).fingerprint() == expected
    turned = {**shop, "buys": shop["buys"].iloc[::-1]}
    assert the_graph(turned.__getitem__, folder).fingerprint() != expected, "the order of rows is content"


def test_it_is_what_pandas_makes_of_it(tmp_path: Path) -> None:
    shop = a_shop()
    source = the_graph(shop.__getitem__, tmp_path)
    users, items, buys, follows = shop.values()
    expected = np.stack([number_of(users.user_id, buys.who), number_of(items.sku, buys["what"])])
    assert np.array_equal(read_edges(source, BUYS), expected)
    expected = np.stack([number_of(users.user_id, follows.a), number_of(users.user_id, follows.b)])
    assert np.array_equal(read_edges(source, FOLLOWS), expected)
    one_hot = np.stack([users.country == name for name in ("ch", "de", "fr")], axis=1)
    x = np.concatenate([users[["age"]], one_hot], axis=1).astype(np.float32)
    assert np.array_equal(read_node_array(source, "user", "x"), x)
    assert np.array_equal(read_node_array(source, "user", "y"), users.churned.astype(np.int64))
    assert np.array_equal(read_node_array(source, "user", "plan"), number_of(["free", "pro", "team"], users.plan))
    assert np.array_equal(read_node_array(source, "item", "x"), items[["price"]].astype(np.float32))
    assert np.array_equal(read_edge_array(source, BUYS, "time"), buys["at"].astype("datetime64[us]").astype(np.int64))
    for name in ("edge_weight", "edge_attr"):
        assert np.array_equal(read_edge_array(source, BUYS, name).ravel(), buys.amount.astype(np.float32))
    for split, called in {"train": "train", "valid": "val", "test": "test"}.items():
        assert np.array_equal(source.splits["user"][split], np.flatnonzero(users.fold == called))
    facts = source.metadata["tables"]
    assert facts["user"]["x"] == ["age", {"one_hot": "country", "values": ["ch", "de", "fr"]}]
    assert facts["user"]["plan"]["values"] == ["free", "pro", "team"]
    assert facts["user__buys__item"]["time"]["unit"] == "us"


def test_a_loader_gives_the_batches_of_the_same_graph_in_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    ends = rng.integers(0, 50, (2, 400))
    (tmp_path / "edges.csv").write_text("".join(f"{a},{b}\n" for a, b in ends.T))
    in_memory = Data(edge_index=torch.from_numpy(ends), num_nodes=50)
    options: dict[str, Any] = {"num_neighbors": [4, 3], "batch_size": 8, "shuffle": True, "progress": False}
    with GraphLoader.from_pyg(in_memory, **options) as expected, GraphLoader.from_tables(tmp_path / "edges.csv", **options) as loader:
        assert loader.schema.num_nodes == 50, "every number from 0 to 49 is there, so that ids are the numbers"
        for ours, theirs in zip(loader, expected, strict=True):
            assert torch.equal(ours.n_id, theirs.n_id) and torch.equal(ours.edge_index, theirs.edge_index)


@pytest.mark.parametrize("kind", ["int64", "string"])
def test_a_dictionary_larger_than_memory_changes_nothing(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    names = rng.choice(10**9, 20_000, replace=False).astype(np.int64 if kind == "int64" else str)
    edges = {"a": names[rng.integers(0, 20_000, 50_000)], "b": names[rng.integers(0, 20_000, 50_000)]}
    for nodes, keys in (({"id": names}, "id"), (None, None)):
        wide, narrow = (gnnkit.tables(edges, nodes, keys=keys, scratch_dir=tmp_path, memory_bytes=size) for size in (1 << 30, 1 << 16))
        listed = names if nodes else np.unique(np.concatenate(list(edges.values())))
        assert np.array_equal(read_edges(wide, ("node", "to", "node")), [number_of(listed, end) for end in edges.values()])
        assert narrow.fingerprint() == wide.fingerprint()
    assert list(tmp_path.iterdir()) == [], "files that are kept meanwhile have no names"


# Keys ----------------------------------------------------------------------------------------------------------------------


def test_keys_lead_back_from_a_store_also_when_it_is_cut_anew(tmp_path: Path) -> None:
    shop = a_shop()
    store = gnnkit.partition(the_graph(shop.__getitem__, tmp_path), 1, out=tmp_path / "store")
    for each in (store, gnnkit.partition(store, 3, "random", out=tmp_path / "cut")):
        each.verify()
        users, items = each.keys("user"), each.keys("item")
        assert users[np.arange(NUM_USERS)].tolist() == shop["users"].user_id.tolist()
        assert items[[3, 1]].tolist() == shop["items"].sku.iloc[[3, 1]].tolist() and items[2] == shop["items"].sku[2]
        assert users.ids(shop["users"].user_id.iloc[[5, 0, 5]]).tolist() == [5, 0, 5]
        assert items.ids(torch.from_numpy(shop["items"].sku.to_numpy(copy=True))).tolist() == list(range(NUM_ITEMS))
        with pytest.raises(PlanError, match=r"1 of 2 keys belong to no 'user' node: 'nobody'"):
            users.ids(["nobody", "user-1"])
        with pytest.raises(PlanError, match="there is no 'user' node 60"):
            users[[60]]
        with pytest.raises(PlanError, match=r"(?s)keeps no keys of 'userr'.*did you mean.*user"):
            each.keys("userr")


def test_hosts_that_build_a_part_each_keep_the_keys(tmp_path: Path) -> None:
    source = the_graph(a_shop().__getitem__, tmp_path)
    whole = gnnkit.partition(source, 2, out=tmp_path / "whole")
    assert gnnkit.partition(source, 2, out=tmp_path / "store", parts=[1]) is None
    store = gnnkit.partition(source, 2, out=tmp_path / "store", parts=[0])
    assert store is not None and store.manifest == whole.manifest
    assert store.keys("user").ids(whole.keys("user")[[4, 2]]).tolist() == [4, 2]


def test_batches_carry_keys(tmp_path: Path) -> None:
    shop = a_shop()
    store = gnnkit.partition(the_graph(shop.__getitem__, tmp_path), 2, out=tmp_path / "store")
    options: dict[str, Any] = {"num_neighbors": [4, 4], "batch_size": 16, "progress": False, "transform": store.add_keys}
    with GraphLoader.from_store(store, input_nodes=("item", None), **options) as loader:
        for batch in loader:
            assert batch["user"].key == shop["users"].user_id.iloc[batch["user"].n_id.numpy()].tolist()
            assert batch["item"].key.tolist() == shop["items"].sku.iloc[batch["item"].n_id.numpy()].tolist()


def test_keys_of_several_columns_and_uuids(tmp_path: Path) -> None:
    shelves = {"house": ["a", "a", "b"], "number": [1, 2, 1]}
    ways = {"h": ["b", "a"], "n": [1, 2], "h2": ["a", "a"], "n2": [1, 1]}
    source = gnnkit.tables(ways, shelves, keys=["house", "number"], src=["h", "n"], dst=["h2", "n2"], scratch_dir=tmp_path)
    assert read_edges(source, ("node", "to", "node")).tolist() == [[2, 1], [0, 0]]
    assert source.keys["node"][[2]].tolist() == [("b", 1)] and source.keys["node"].ids([("a", 2)]).tolist() == [1]
    ids = [uuid.UUID(int=k * 77) for k in range(4)]
    binary = pa.array([each.bytes for each in ids], pa.binary(16))
    edges = pa.table({"a": binary, "b": pa.ExtensionArray.from_storage(pa.uuid(), binary)})
    source = gnnkit.tables(edges, {"id": [str(each) for each in reversed(ids)]}, keys="id", scratch_dir=tmp_path)
    assert read_edges(source, ("node", "to", "node")).tolist() == [[3, 2, 1, 0]] * 2
    assert source.keys["node"].ids(ids[:1]).tolist() == [3]


def test_without_a_table_nodes_come_in_ascending_order_of_their_keys(tmp_path: Path) -> None:
    source = gnnkit.tables(([7, -3, 7], [5, 7, 5]), scratch_dir=tmp_path)
    assert source.keys["node"][[0, 1, 2]].tolist() == [-3, 5, 7]
    assert read_edges(source, ("node", "to", "node")).tolist() == [[2, 0, 2], [1, 2, 1]]
    texts = gnnkit.tables({"a": ["é", "b"], "b": ["Z", "é"]}, scratch_dir=tmp_path)
    assert texts.keys["node"][[0, 1, 2]].tolist() == ["Z", "b", "é"]


def test_nodes_of_a_table_without_keys_are_its_rows(tmp_path: Path) -> None:
    pd.DataFrame({"name": ["x", "y", "z"]}).to_csv(tmp_path / "nodes.csv", index=False)
    for nodes in (tmp_path / "nodes.csv", pl.read_csv(tmp_path / "nodes.csv"), 3):
        source = gnnkit.tables(([0, 2], [2, 1]), nodes, scratch_dir=tmp_path)
        assert source.schema.num_nodes == 3 and dict(source.keys) == {}
        assert read_edges(source, ("node", "to", "node")).tolist() == [[0, 2], [2, 1]]


def test_networkx(tmp_path: Path) -> None:
    club = nx.karate_club_graph()
    source = gnnkit.tables(club, label="club", edge_weight="weight", scratch_dir=tmp_path)
    edges = read_edges(source, ("node", "to", "node"))
    assert {tuple(edge) for edge in edges.T.tolist()} == set(club.to_directed().edges) and edges.shape[1] == 2 * club.number_of_edges()
    assert read_edge_array(source, ("node", "to", "node"), "edge_weight").tolist() == [
        club.edges[a, b]["weight"] for a, b in edges.T.tolist()
    ]
    assert source.metadata["num_classes"] == 2 and source.metadata["tables"]["node"]["y"]["values"] == ["Mr. Hi", "Officer"]


# In order already ----------------------------------------------------------------------------------------------------------


def in_ranges(frame: pd.DataFrame, column: str, files: int, folder: Path, seed: int = 0) -> str:
    """A folder of files as Spark's ``repartitionByRange(column)`` writes them: ranges in order, rows of a range in any."""
    folder.mkdir()
    order = frame.sort_values(column, kind="stable")
    cuts = np.linspace(0, len(order), files + 1).astype(int)
    # Equal keys are in one file.
    keys = order[column].to_numpy()
    cuts = [0, *(int(np.searchsorted(keys, keys[cut])) for cut in cuts[1:-1]), len(order)]
    for number, (low, high) in enumerate(zip(cuts, cuts[1:], strict=False)):
        part = order.iloc[low:high].sample(frac=1.0, random_state=seed)
        pq.write_table(pa.Table.from_pandas(part, preserve_index=False), folder / f"part-{number:05}.parquet")
    return str(folder)


def cites(count: int = 4000) -> pd.DataFrame:
    rng = np.random.default_rng(4)
    return pd.DataFrame({"from": rng.integers(0, 500, count), "to": rng.integers(0, 500, count), "weight": rng.random(count)})


def bytes_of(store: Path) -> dict[str, bytes]:
    return {str(file.relative_to(store)): file.read_bytes() for file in sorted(store.rglob("*")) if file.is_file()}


@pytest.mark.parametrize("num_parts", [1, 2])
@pytest.mark.parametrize("sort", ["ranges", "rows"])
def test_edges_in_order_are_read_once_and_not_sorted_again(tmp_path: Path, sort: str, num_parts: int) -> None:
    edges: Any = cites()
    edges = in_ranges(edges, "to", 40, tmp_path / "edges") if sort == "ranges" else edges.sort_values("to", kind="stable")
    passes, sorted_into = 0, set[str]()

    class Counted(TableSource):
        def edge_chunks(self, edge_type: Any) -> Any:
            nonlocal passes
            passes += 1
            return super().edge_chunks(edge_type)

    def opened(event: str, arguments: tuple[Any, ...]) -> None:  # there is no way to take it back; no file of later tests lies here
        if event == "open" and str(arguments[0]).startswith(str(tmp_path)):
            sorted_into.update(re.findall(r"/(bucket\.\w+)$", str(arguments[0])))

    sys.addaudithook(opened)

    def source(**options: Any) -> TableSource:
        return gnnkit.tables(edges, 500, edge_weight="weight", scratch_dir=tmp_path / "scratch", **options)

    def build(graph: TableSource, name: str) -> dict[str, bytes]:
        options = BuildOptions(num_parts=num_parts, with_edge=True)
        return bytes_of(build_store(graph, tmp_path / name, options, memory_bytes=16 << 10).path)

    usual, promised = source(), source(presorted=True)
    assert usual.fingerprint() == promised.fingerprint()
    usual.__class__ = promised.__class__ = Counted
    expected = build(usual, "usual")
    assert passes > 2 or sorted_into, "again and again, or through the buckets of a spool: there is memory for a few hundred edges"
    passes = 0
    sorted_into.clear()
    assert build(promised, "promised") == expected
    assert passes == 2 and not sorted_into  # degrees, and the edges


def test_keys_of_any_kind_are_in_order_where_their_numbers_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    frame = pd.DataFrame({"from": [f"u{k}" for k in rng.integers(0, 90, 300)], "to": [f"é{k}" for k in rng.integers(0, 90, 300)]})
    source = gnnkit.tables(in_ranges(frame, "to", 3, tmp_path / "edges"), presorted=True, scratch_dir=tmp_path)
    assert 0 < next(iter(source.target_windows.values())) < 300
    assert gnnkit.tables(frame.sort_values("to"), presorted=True, scratch_dir=tmp_path).target_windows == dict.fromkeys(
        source.target_windows, 0
    )
    nodes = pd.DataFrame({"key": sorted({*frame["from"], *frame["to"]}, reverse=True)})  # numbers descend where keys ascend
    with pytest.raises(DatasetError, match="a table of nodes has to be sorted by its key"):
        gnnkit.tables(frame.sort_values("to"), nodes, keys="key", presorted=True, scratch_dir=tmp_path)


def test_a_promise_of_order_that_is_broken_is_named_by_file_and_row(tmp_path: Path) -> None:
    frame = cites(600)
    folder = Path(in_ranges(frame, "to", 3, tmp_path / "edges"))
    late = pq.read_table(folder / "part-00001.parquet").to_pandas()
    late.loc[41, "to"] = 3
    pq.write_table(pa.Table.from_pandas(late, preserve_index=False), folder / "part-00001.parquet")
    with pytest.raises(DatasetError, match=rf"presorted=True.*part-00001\.parquet, row 41, .*a file before it .*{late['from'][41]} to 3\)"):
        gnnkit.tables(str(folder), 500, presorted=True, scratch_dir=tmp_path)
    gnnkit.tables(str(folder), 500, scratch_dir=tmp_path)
    rows = frame.sort_values("to").reset_index(drop=True)
    rows.loc[300, "to"] = 0
    with pytest.raises(DatasetError, match=r"another order: row 300, has .*a row before it"):
        gnnkit.tables(rows, 500, presorted=True, scratch_dir=tmp_path)
    with pytest.raises(PlanError, match="presorted must be True or False, got 'yes'"):
        gnnkit.tables(rows, 500, presorted="yes")  # type: ignore[arg-type]


# What is wrong -------------------------------------------------------------------------------------------------------------


def test_edges_that_name_no_node_are_refused_or_left_out(tmp_path: Path) -> None:
    shop = a_shop()
    fewer = {**shop, "items": shop["items"].iloc[5:]}
    gone = set(shop["items"].sku.iloc[:5])
    lost = np.array([what in gone for what in shop["buys"]["what"]])
    first = int(np.flatnonzero(lost)[0])
    with pytest.raises(DatasetError, match=f"(?s){lost.sum()} of {NUM_EDGES} edges .* row {first}: .* \\(unknown\\).*dangling") as caught:
        the_graph(fewer.__getitem__, tmp_path)
    assert caught.value.message.count("row ") == 10
    source = the_graph(fewer.__getitem__, tmp_path, dangling="drop")
    kept = shop["buys"][~lost]
    assert np.array_equal(read_edges(source, BUYS)[1], number_of(fewer["items"].sku, kept["what"]))
    assert np.array_equal(read_edge_array(source, BUYS, "edge_weight"), kept.amount.astype(np.float32))
    assert source.metadata["tables"]["user__buys__item"]["dropped_edges"] == lost.sum()
    assert the_graph({**fewer, "buys": kept}.__getitem__, tmp_path).fingerprint() != source.fingerprint()


def test_nulls_are_refused_or_filled(tmp_path: Path) -> None:
    nodes = pd.DataFrame({"id": [1, 2, 3], "price": [1.0, np.nan, 2.0], "kind": ["a", None, "b"], "fold": ["train", None, "test"]})
    edges = ([1, 2], [2, 3])
    with pytest.raises(DatasetError, match=r"(?s)1 nulls in 3 rows of column 'price', the first in row 1.*fill=\{'price'"):
        gnnkit.tables(edges, nodes, keys="id", features="price", scratch_dir=tmp_path)
    with pytest.raises(DatasetError, match="column 'kind', the first in row 1"):
        gnnkit.tables(edges, nodes, keys="id", categories="kind", scratch_dir=tmp_path)
    options: dict[str, Any] = {"keys": "id", "features": "price", "label": "kind", "split": "fold", "scratch_dir": tmp_path}
    source = gnnkit.tables(edges, nodes, fill={"price": 0.5, "kind": -1}, **options)
    assert read_node_array(source, "node", "x").tolist() == [[1.0], [0.5], [2.0]]
    assert read_node_array(source, "node", "y").tolist() == [0, -1, 1]
    assert {split: ids.tolist() for split, ids in source.splits["node"].items()} == {"test": [2], "train": [0]}


@pytest.mark.parametrize(
    ("values", "splits"),
    [
        (["train", "valid", "test"], ("train", "valid", "test")),
        (["Train", "VAL", "TEST"], ("train", "valid", "test")),
        (["training", "validation", "holdout"], ("train", "valid", "test")),
        ([" train ", "dev", "hold_out"], ("train", "valid", "test")),
        (["train", "trian", None], "'trian'"),
        (["train", "val", "unlabelled"], "'unlabelled'"),
        ([0, 1, 2], "0, 1, 2"),
    ],
)
def test_names_of_splits(tmp_path: Path, values: list[Any], splits: Any) -> None:
    def make() -> dict[str, list[int]]:
        source = gnnkit.tables(([0], [1]), {"fold": values}, split="fold", scratch_dir=tmp_path)
        return {name: ids.tolist() for name, ids in source.splits["node"].items()}

    if isinstance(splits, str):
        with pytest.raises(DatasetError, match=rf"(?s)holds \[{splits}\], which names no split.*'train'.*'dev'"):
            make()
    else:
        assert make() == {split: [row] for row, split in enumerate(splits)}


def bad_files(folder: Path) -> Iterator[tuple[str, Callable[[], Any], str]]:
    """Name, call and what the error says."""
    good = pa.table({"a": list(range(2000)), "b": list(range(2000)), "t": ["x"] * 2000})
    pq.write_table(good, folder / "good.parquet", row_group_size=500)
    data = (folder / "good.parquet").read_bytes()
    (folder / "short.parquet").write_bytes(data[: len(data) // 2])
    middle = bytearray(data)
    middle[len(data) // 4 : len(data) // 2] = b"\xff" * (len(data) // 2 - len(data) // 4)
    (folder / "damaged.parquet").write_bytes(bytes(middle))
    feather.write_feather(good, str(folder / "damaged.feather"), chunksize=500, compression="lz4")
    data = (folder / "damaged.feather").read_bytes()
    (folder / "damaged.feather").write_bytes(data[: len(data) // 2] + b"\xff" * 200 + data[len(data) // 2 + 200 :])
    pq.write_table(pa.table({"a": [1], "b": ["2"]}), folder / "texts.parquet")
    (folder / "short.csv.gz").write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 100_000)[:-200])
    (folder / "later.csv").write_text("a,b\n" + "1,2\n" * 3_000_000 + "x,2\n")
    (folder / "ragged.csv").write_text("a,b\n1,2\n3\n")
    pq.write_table(pa.table({"a": pa.array([1, None, 3]), "b": [1, 2, 3]}), folder / "nulls.parquet", row_group_size=1)
    pq.write_table(good.drop_columns("b"), folder / "good2.parquet")
    tables = gnnkit.tables
    yield "short Parquet", lambda: tables(folder / "short.parquet"), r"short\.parquet cannot be read"
    yield "damaged Parquet", lambda: tables(folder / "damaged.parquet"), r"damaged\.parquet, row group [0-3], column '[ab]', cannot be read"
    yield "damaged Feather", lambda: tables(folder / "damaged.feather"), r"damaged\.feather, record batch [1-3] cannot be read"
    yield (
        "kinds of files differ",
        lambda: tables([folder / "good.parquet", folder / "texts.parquet"]),
        r"texts\.parquet, row group 0: the key column 'b' is large_string here, and int64",
    )
    yield "short gzip", lambda: tables(folder / "short.csv.gz"), r"short\.csv\.gz.* cannot be read"
    yield "text among numbers", lambda: tables(folder / "later.csv"), r"later\.csv, block \d+ of 8 MB cannot be read.*column.*0"
    yield "ragged", lambda: tables(folder / "ragged.csv"), r"ragged\.csv.* cannot be read"
    yield (
        "null key",
        lambda: tables(folder / "nulls.parquet"),
        r"nulls\.parquet, row group 1: 1 nulls .* column 'a', the first in row 1",
    )
    yield "missing column", lambda: tables(folder / "good*.parquet"), r"good2\.parquet has no column 'b', which .*good\.parquet has"
    yield "text as numbers", lambda: tables(folder / "good.parquet", features="t"), r"good\.parquet, row group 0: column 't' is .*string"
    yield (
        "kinds differ",
        lambda: tables(folder / "good.parquet", {"id": ["1"]}, keys="id"),
        r"\['int64'\], and the keys .* are \['string'\]",
    )
    yield "no keys", lambda: tables({"a": ["x"], "b": ["y"]}, {"id": ["x"]}), r"(?s)named by row numbers.*keys="
    yield "no column", lambda: tables(folder / "good.parquet", src="aa"), r"src='aa' names no column of edges .*good\.parquet"
    yield "no file", lambda: tables(folder / "none*.parquet"), r"there is no file '.*none\*"
    yield "no file to partition", lambda: gnnkit.partition("none.csv", 2), r"there is no file 'none\.csv'"
    yield (
        "types of nodes alone",
        lambda: tables(folder / "good.parquet", {"user": folder / "good.parquet"}),
        "nodes are by type",
    )
    yield "no format", lambda: tables(__file__), "is of no known format"
    yield "no table", lambda: tables(7), "edges is no table: int"
    yield "a password", lambda: tables("https://me:word@shop/buys.parquet"), "names a user or a password"
    yield "doubles", lambda: tables(([1], [1]), {"id": [1, 2, 1]}, keys="id"), r"1 keys are there more than once: 1 \(rows 0 and 2\)"
    yield "half a key", lambda: tables({"a": [1.5], "b": [2.0]}), r"src or dst='a' of edges is double, which is no key"
    yield "fractions", lambda: tables(([0], [0]), {"p": [0.5], "k": [1]}, time="p"), "times are timestamps"
    yield "two arrays", lambda: tables(([0], [0]), {"y": ["a"]}, label="y", categories="y"), "another array has that name"
    yield "no split", lambda: tables(([0], [0]), 1, split="fold"), "there is no table of nodes"
    yield "far id", lambda: tables(([0, 3], [0, 0]), 2), r"1 of 2 edges name no node: row 1: 3 \(unknown\) to 0"


def test_what_is_wrong_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    inputs, home = tmp_path / "in", tmp_path / "home"
    inputs.mkdir()
    home.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GNNKIT_HOME", str(home))
        for name, call, says in bad_files(inputs):
            with pytest.raises(GnnkitError, match=says):
                call()
                raise AssertionError(f"{name}: nothing was wrong")
    assert [path for path in home.rglob("*") if path.is_file()] == []

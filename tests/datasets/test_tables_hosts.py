"""Tables whose row groups several hosts read: the graph that one process reads, byte for byte, and nothing is read twice."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import gnnkit
from gnnkit.errors import DatasetError
from tests.datasets.test_tables import BUYS, FOLLOWS, Shop, a_shop, the_graph


class Hosts:
    """Three hosts, which get nothing but what can be sent, and end in any order; one does everything twice, as if it had been gone."""

    def __init__(self) -> None:
        self.read: dict[str, int] = {}

    @contextmanager
    def tasks(self) -> Iterator[Hosts]:
        yield self

    def map(
        self, function: Callable[..., Any], shared: Any, calls: Sequence[tuple[tuple[Any, ...], int]]
    ) -> Iterator[tuple[int, str, Any]]:
        order, sent = list(range(len(calls))), pickle.dumps((function, shared, calls))
        random.Random(1).shuffle(order)
        for number in order:
            function, shared, all_calls = pickle.loads(sent)
            host, (words, nbytes) = f"host {number % 3}", all_calls[number]
            if number % 3 == 0:
                function(shared, *words)
            self.read[host] = self.read.get(host, 0) + nbytes
            yield number, host, pickle.loads(pickle.dumps(function(shared, *words)))


def written(shop: Shop, folder: Path, row_group_size: int = 37) -> Callable[[str], Any]:
    """Writes the tables of a shop, each as two files."""
    for name, frame in shop.items():
        for number, rows in enumerate((frame[:55], frame[55:])):
            table = pa.Table.from_pandas(rows, preserve_index=False)
            (folder / name).mkdir(exist_ok=True)
            parquet.write_table(table, folder / name / f"{number}.parquet", row_group_size=row_group_size)
    return lambda name: folder / name


def assert_same_stores(one: Any, other: Any, folder: Path, **options: Any) -> None:
    stores = [gnnkit.partition(source, 2, "random", folder / name, **options) for name, source in (("one", one), ("other", other))]
    assert stores[0].manifest.to_json() == stores[1].manifest.to_json()
    for name in stores[0].files:
        assert (stores[0].path / name).read_bytes() == (stores[1].path / name).read_bytes(), name


def test_hosts_read_the_graph_that_one_process_reads(tmp_path: Path) -> None:
    """Every kind of column, keys of text and of numbers; what is built of it is the same, too, and what is appended to it."""
    form, said, engine = written(a_shop(3), tmp_path), list[Any](), Hosts()
    changes: dict[str, Any] = {"label": {"user": "plan", "item": "price"}}
    one, other = the_graph(form, tmp_path, **changes), the_graph(form, tmp_path, engine=engine, events=said.append, **changes)
    assert other.fingerprint() == one.fingerprint() and other.append_state == one.append_state
    assert other.schema == one.schema and other.metadata == one.metadata
    assert_same_stores(one, other, tmp_path, weight="edge_weight", time_attr="time")
    ends = [event.text for event in said if event.kind == "end" and event.stage == "ingest"]
    assert len(ends) == 4 and "3 nodes, each read at most " in ends[-1]
    assert len(engine.read) == 3


def test_rows_can_be_read_in_any_ranges_and_sent(tmp_path: Path) -> None:
    form = written(a_shop(4), tmp_path)
    one, ranged = the_graph(form, tmp_path), pickle.loads(pickle.dumps((source := the_graph(form, tmp_path, engine=Hosts())).ranged))
    for edge_type in (BUYS, FOLLOWS):
        edges = np.concatenate(list(one.edge_chunks(edge_type)), axis=1)
        np.testing.assert_array_equal(edges[:, 33:140], ranged.edge_rows(edge_type, 33, 140))
        np.testing.assert_array_equal(edges, np.concatenate(list(ranged.edge_chunks(edge_type)), axis=1))
    for name in one.schema.edge_types[BUYS].arrays:
        rows = np.concatenate(list(one.edge_array_chunks(BUYS, name)))
        np.testing.assert_array_equal(rows[12:99], ranged.edge_array_rows(BUYS, name, 12, 99))
    for name in one.schema.node_types["user"].arrays:
        rows = np.concatenate(list(one.node_array_chunks("user", name)))
        np.testing.assert_array_equal(rows[36:60], ranged.node_array_rows("user", name, 36, 60))
    assert len(list(tmp_path.glob("gnnkit-tables-*"))) == 1
    del source
    assert not list(tmp_path.glob("gnnkit-tables-*"))


@pytest.mark.parametrize("kind", ["int64", "string"])
def test_nodes_that_edges_name(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    ends = rng.integers(-50, 400, (2, 3000)).astype(kind if kind == "int64" else str)
    edges = pa.table({"a": ends[0], "b": ends[1], "kind": rng.choice(["x", "y", "z"], 3000)})
    parquet.write_table(edges, tmp_path / "edges.parquet", row_group_size=100)
    given: dict[str, Any] = {"categories": "kind", "scratch_dir": tmp_path}
    one, other = (gnnkit.tables(tmp_path / "edges.parquet", **given, **more) for more in ({}, {"engine": Hosts()}))
    assert other.fingerprint() == one.fingerprint()
    assert_same_stores(one, other, tmp_path)
    whole = gnnkit.partition(other, 1, out=tmp_path / "grown", with_edge=True)
    assert whole.append({"a": ends[1][:70], "b": ends[0][:70], "kind": ["y"] * 70}).schema.num_edges == 3070


def test_nodes_by_their_numbers(tmp_path: Path) -> None:
    """Without keys, and without a table of nodes."""
    rng = np.random.default_rng(0)
    table = pa.table({"x": rng.random(500), "list": pa.FixedSizeListArray.from_arrays(pa.array(rng.random(1500)), 3)})
    parquet.write_table(table, tmp_path / "nodes.parquet", row_group_size=60)
    parquet.write_table(pa.table({"a": rng.integers(0, 500, 2000), "b": rng.integers(0, 500, 2000)}), tmp_path / "e.pq", row_group_size=150)
    for number, nodes in enumerate((500, tmp_path / "nodes.parquet")):
        given: dict[str, Any] = {"scratch_dir": tmp_path, **({"features": ["x", "list"]} if number else {})}
        one, other = (gnnkit.tables(tmp_path / "e.pq", nodes, **given, **more) for more in ({}, {"engine": Hosts()}))
        assert other.fingerprint() == one.fingerprint()
        (tmp_path / str(number)).mkdir()
        assert_same_stores(one, other, tmp_path / str(number))


SOME, LISTS = [2, 1, 0] * 20, pa.list_(pa.int64())


@pytest.mark.parametrize(
    ("first", "second", "options", "expected"),
    [
        (["x", "y", "z"] * 20, ["x", None, "w"] * 20, {}, [1, 2, 3, 1, -1, 0]),
        ([None] * 60, ["x", None, "w"] * 20, {}, [-1, -1, -1, 1, -1, 0]),
        (["x", "?", "z"] * 20, ["x", None, "w"] * 20, {"unlabelled": ["?"]}, [1, -1, 2, 1, -1, 0]),
        (SOME, [3, None, 9] * 20, {"unlabelled": 9}, [2, 1, 0, 3, -1, -1]),
        (SOME, [3.0, np.nan, 1.0] * 20, {}, [2, 1, 0, 3, -1, 1]),  # as pandas writes them
        ([3.0, np.nan, 1.0] * 20, SOME, {}, [3, -1, 1, 2, 1, 0]),
        ([3.5, np.nan, 1.0] * 20, SOME, {}, [3.5, -9, 1, 2, 1, 0]),
        (SOME, [3, None, 1] * 20, {"types": {"label": "double"}}, [2, 1, 0, 3, -9, 1]),
        (SOME, [None] * 60, {}, [2, 1, 0, -1, -1, -1]),
        ([None] * 60, SOME, {}, [-1, -1, -1, 2, 1, 0]),
        ([True, False, None] * 20, [True] * 60, {}, [1, 0, -1, 1, 1, 1]),
        (pa.array([None] * 60, LISTS), [[1, 0], [0, 1], [1, 1]] * 20, {}, [[-1, -1]] * 3 + [[1, 0], [0, 1], [1, 1]]),
        ([[1, 0], [0, 1], [1, 1]] * 20, pa.array([None] * 60, LISTS), {}, [[1, 0], [0, 1], [1, 1]] + [[-1, -1]] * 3),
        (pa.array(["x", "y", None] * 20).dictionary_encode(), ["w"] * 60, {}, [1, 2, -1, 0, 0, 0]),
    ],
    ids=["text", "no type", "unlabelled", "number", "pandas", "pandas first", "fractions", "asked", "none later", "none first", "boolean",
         "no list", "no list later", "dictionary"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*(no label|taken as classes)")
def test_labels_that_are_missing_in_one_file(tmp_path: Path, first: Any, second: Any, options: Any, expected: list[Any]) -> None:
    """What a range of rows shows of its labels is not what the others do: types, classes, lists without any value."""
    parquet.write_table(pa.table({"a": range(120), "b": range(120)}), tmp_path / "edges.parquet", row_group_size=50)
    for number, label in enumerate((first, second)):
        rows = {"id": range(60 * number, 60 * number + 60), "fold": ["train", "val", "test"] * 20, "label": label}
        parquet.write_table(pa.table(rows), tmp_path / f"nodes{number}.parquet", row_group_size=15)
    given: dict[str, Any] = {"keys": "id", "label": "label", "split": "fold", "scratch_dir": tmp_path, **options}
    tables = tmp_path / "edges.parquet", tmp_path / "nodes*.parquet"
    one, other = (gnnkit.tables(*tables, **given, **more) for more in ({}, {"engine": Hosts()}))
    labels = np.nan_to_num(np.concatenate(list(other.node_array_chunks("node", "y"))), nan=-9)
    assert labels[[0, 1, 2, 60, 61, 62]].tolist() == expected
    assert other.fingerprint() == one.fingerprint() and other.append_state == one.append_state and other.metadata == one.metadata


class TestRefused:
    """What is wrong with tables is found by the host that reads it, or refused before."""

    def test_an_edge_that_names_no_node(self, tmp_path: Path) -> None:
        shop = a_shop(0)
        shop["buys"].loc[123, "who"] = "nobody"
        with pytest.raises(DatasetError, match=r"1 of \d+ edges .* name no node: row 123: 'nobody' \(unknown\)"):
            the_graph(written(shop, tmp_path), tmp_path, engine=Hosts())

    def test_a_key_that_is_there_twice(self, tmp_path: Path) -> None:
        shop = a_shop(0)
        shop["users"].loc[9, "user_id"] = shop["users"].loc[3, "user_id"]
        with pytest.raises(DatasetError, match=r"1 keys are there more than once: .* \(rows 3 and 9\)"):
            the_graph(written(shop, tmp_path), tmp_path, engine=Hosts())

    def test_a_null_is_named_with_its_row(self, tmp_path: Path) -> None:
        shop = a_shop(0)
        shop["buys"].loc[200, "amount"] = np.nan
        with pytest.raises(DatasetError, match=r"1\.parquet, row group 3: 1 nulls in .* the first in row 200"):
            the_graph(written(shop, tmp_path), tmp_path, engine=Hosts())
        assert not list(tmp_path.glob("gnnkit-tables-*"))

    def test_what_hosts_cannot_share_is_read_here(self, tmp_path: Path) -> None:
        frame, engine = pd.DataFrame({"a": [0, 1, 9], "b": [1, 0, 0]}), Hosts()
        frame.to_csv(tmp_path / "edges.csv", index=False)
        frame.to_parquet(tmp_path / "edges.parquet")
        for edges, options in ((frame, {}), (tmp_path / "edges.csv", {}), (tmp_path / "edges.parquet", {"nodes": 2, "dangling": "drop"})):
            source = gnnkit.tables(edges, scratch_dir=tmp_path, engine=engine, **options)
            assert source.schema.num_edges == 3 - len(options) // 2
        assert not engine.read

"""Parts that a column of nodes says: from tables, graphs in memory and stores, in one process or by several hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import gnnkit
from gnnkit import GraphLoader, Store
from gnnkit.errors import PlanError
from tests.helpers.command import run_captured

RATES = ("user", "rates", "film")


def parts_of(store: Store, node_type: str) -> list[int]:
    """The part of each node, by dataset id, read from the files of the parts."""
    parts = np.full(store.schema.node_types[node_type].num_nodes, -1)
    for part in range(store.num_parts):
        ids = np.load(store.path / f"part{part}/nodes/{node_type}/global_id.npy")
        assert (parts[ids] == -1).all() and (np.diff(ids) > 0).all()
        parts[ids] = part
    return parts.tolist()


def rated(**changes: Any) -> Any:
    """A graph of two types, both with a column of regions; films have none from the south."""
    rng = np.random.default_rng(1)
    users = pd.DataFrame({"name": [f"u{k}" for k in range(40)], "region": rng.choice(["north", "south", "west"], 40), "shard": 7})
    users["shard"] = rng.choice([0, 3, 1], 40)
    films = pd.DataFrame({"title": range(100, 130), "region": rng.choice(["west", "north"], 30), "shard": rng.choice([3, 0], 30)})
    rates = pd.DataFrame({"who": rng.choice(users.name, 300), "what": rng.choice(films.title, 300), "stars": rng.random(300)})
    for table, columns in changes.items():
        for column, rows in columns.items():
            {"users": users, "films": films}[table][column] = rows
    columns = {"user": ["region", "shard"], "film": ["region", "shard"]}
    keys = {"user": "name", "film": "title"}
    return (
        gnnkit.tables({RATES: rates}, {"user": users, "film": films}, keys=keys, categories=columns, features={RATES: "stars"}),
        users,
        films,
    )


def test_whole_numbers_of_tables_are_parts_themselves_and_texts_are_in_one_order_for_all_types(tmp_path: Path) -> None:
    source, users, films = rated()
    store = gnnkit.partition(source, 4, "column:shard", tmp_path / "by-shard")
    assert parts_of(store, "user") == users["shard"].tolist() and parts_of(store, "film") == films["shard"].tolist()
    assert store.options.partition == "column:shard" and "column:shard" in repr(store)
    order = ["north", "south", "west"]
    store = gnnkit.partition(source, 3, "column:region", tmp_path / "by-region")
    assert parts_of(store, "user") == [order.index(region) for region in users["region"]]
    assert parts_of(store, "film") == [order.index(region) for region in films["region"]]
    store.verify()


def test_a_store_is_cut_anew_and_hosts_that_build_their_parts_make_the_same(tmp_path: Path) -> None:
    source, *_ = rated()
    wanted = gnnkit.partition(source, 4, "column:shard", tmp_path / "wanted", seed=1)
    one = gnnkit.partition(source, 1, out=tmp_path / "one", with_edge=True)
    assert gnnkit.partition(one, 4, "column:shard", tmp_path / "again").fingerprint == wanted.fingerprint
    assert gnnkit.partition(source, 4, "column:shard", tmp_path / "hosts", parts=[2, 0]) is None
    store = gnnkit.partition(source, 4, "column:shard", tmp_path / "hosts", parts=[1, 3], seed=2)
    assert store is not None and store.fingerprint == wanted.fingerprint
    for name in wanted.files:
        assert (wanted.path / name).read_bytes() == (store.path / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_batches_are_those_of_the_graph_however_it_is_cut(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = Data(x=torch.rand(60, 3), edge_index=torch.tensor(rng.integers(0, 60, (2, 500))), part=torch.tensor(rng.integers(0, 3, (60, 1))))
    stores = [gnnkit.partition(data, 3, method, tmp_path / method[:6]) for method in ("contiguous", "column:part")]
    assert parts_of(stores[1], stores[1].schema.node_types.copy().popitem()[0]) == data.part.reshape(-1).tolist()
    seen = []
    for store in stores:
        with GraphLoader.from_store(store, num_neighbors=[4, 3], batch_size=16, input_nodes=None, shuffle=True, progress=False) as loader:
            seen.append([(batch.n_id.tolist(), batch.edge_index.tolist(), batch.x.tolist()) for batch in loader])
    assert seen[0] == seen[1]


def test_by_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    nodes = pd.DataFrame({"id": [5, 6, 7, 8], "where": ["b", "a", "c", "b"]})
    nodes.to_csv(tmp_path / "nodes.csv", index=False)
    pd.DataFrame({"src": [5, 6, 7], "dst": [6, 7, 8]}).to_csv(tmp_path / "edges.csv", index=False)
    words = ["partition", "3", "--edges", str(tmp_path / "edges.csv"), "--nodes", str(tmp_path / "nodes.csv"), "--keys", "id"]
    words += ["--categories", "where", "--out", str(tmp_path / "store"), "--partition"]
    code, _, err = run_captured(capfd, [*words, "column:where"])
    assert code == 0, err
    assert parts_of(Store.open(tmp_path / "store"), "node") == [1, 0, 2, 1]
    code, _, err = run_captured(capfd, [*words, "column:were"])
    assert code == 2 and "have no array 'were'; did you mean 'where'?" in " ".join(err.split())


class TestRefused:
    """What is no part is refused, with the node's number."""

    @pytest.mark.parametrize(
        ("changes", "partition", "num_parts", "words"),
        [
            ({}, "column:shard", 3, r"node \d+ of type '(film|user)' has shard=3, and parts count from 0 to 2"),
            ({}, "column:region", 2, r"'region' has 3 different values, and there are 2 parts: 'west' has none.*num_parts=3"),
            ({}, "column:stars", 2, "nodes of type 'film' have no array 'stars'"),
            ({}, "column:", 2, r"partition must be one of .*'column:NAME'"),
            ({}, "colum:shard", 2, r"partition must be one of .*'column:NAME'"),
            ({"users": {"shard": ["x"] * 40}}, "column:shard", 4, "'shard' holds .*'film': 'numbers'.*all tables a column of one type"),
        ],
    )
    def test_a_value(self, tmp_path: Path, changes: Any, partition: str, num_parts: int, words: str) -> None:
        source, *_ = rated(**changes)
        with pytest.raises(PlanError, match=f"(?s){words}"):
            gnnkit.partition(source, num_parts, partition, tmp_path / "store")
        assert not (tmp_path / "store").exists()

    def test_a_node_without_a_value(self, tmp_path: Path) -> None:
        nodes = {"id": [1, 2, 3], "region": np.array(["a", None, "b"], object)}
        source = gnnkit.tables({"src": [1], "dst": [3]}, nodes, keys="id", categories="region", fill={"region": -1})
        with pytest.raises(PlanError, match="(?s)node 1 of type 'node' has no 'region'.*fill="):
            gnnkit.partition(source, 2, "column:region", tmp_path / "store")

    def test_an_array_that_is_no_number_of_a_part(self, tmp_path: Path) -> None:
        data = HeteroData()
        data["a"].x, data["a"].many = torch.rand(3, 2), torch.zeros(3, 2, dtype=torch.int64)
        data["a"].low = torch.tensor([0, -1, 1])
        data["a", "to", "a"].edge_index = torch.tensor([[0, 1], [1, 2]])
        for name, words in (("x", "dtype float32"), ("many", r"shape \(2,\)"), ("low", "node 1 of type 'a' has low=-1")):
            with pytest.raises(PlanError, match=words):
                gnnkit.partition(data, 2, f"column:{name}", tmp_path / "store")

"""More rows for a store: what comes of it is the store of all rows, and whatever goes wrong leaves the old one as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gnnkit
from gnnkit import GraphLoader, Store
from gnnkit.errors import GnnkitError
from tests.datasets.test_tables import BUYS, FOLLOWS, Shop, a_shop

ENDS = {"users": "user_id", "items": "sku"}


def the_graph(shop: Shop, folder: Path, **changes: Any) -> Any:
    """The shop as a graph, with every kind of column."""
    options: dict[str, Any] = {
        "keys": {"user": "user_id", "item": "sku"},
        "features": {"user": "age", "item": ["price"], BUYS: "amount"},
        "one_hot": {"user": "country"},
        "categories": {"user": "plan"},
        "label": {"user": "plan"},
        "split": {"user": "fold"},
        "time": {BUYS: "at"},
        "edge_weight": {BUYS: "amount"},
        "scratch_dir": folder,
    }
    nodes, edges = {"user": shop["users"], "item": shop["items"]}, {BUYS: shop["buys"], FOLLOWS: shop["follows"]}
    return gnnkit.tables(edges, nodes, **{**options, **changes})


def cut(shop: Shop, users: int, items: int, buys: int, follows: int) -> tuple[Shop, Shop]:
    """The shop before and after some rows of each table; edges that name later nodes come later."""
    first = {"users": shop["users"][:users], "items": shop["items"][:items]}
    known = {name: set(first[name][key]) for name, key in ENDS.items()}
    ends = {"buys": [("who", "users"), ("what", "items")], "follows": [("a", "users"), ("b", "users")]}
    later: Shop = {"users": shop["users"][users:], "items": shop["items"][items:]}
    for table, count in (("buys", buys), ("follows", follows)):
        rows = shop[table]
        early = np.logical_and.reduce([rows[column].isin(known[name]) for column, name in ends[table]]) & (np.arange(len(rows)) < count)
        first[table], later[table] = rows[early], rows[~early]
    return first, later


def both(first: Shop, later: Shop) -> Shop:
    return {name: pd.concat([first[name], later[name]], ignore_index=True) for name in first}


def files_of(store: Store) -> dict[str, bytes]:
    return {name: (store.path / name).read_bytes() for name in store.files}


def batches(store: Store, **options: Any) -> list[str]:
    loader = GraphLoader.from_store(
        store,
        num_neighbors=[4, 3],
        batch_size=16,
        input_nodes=("user", None),
        shuffle=True,
        seed=3,
        progress=False,
        **options,
    )
    with loader:
        return [gnnkit_digest(batch) for batch in loader]


def gnnkit_digest(batch: Any) -> str:
    flat: list[str] = []
    for kind in (*batch.node_types, *batch.edge_types):
        flat += [f"{kind} {name} {value.tolist()}" for name, value in sorted(batch[kind].items()) if isinstance(value, torch.Tensor)]
    return "\n".join(flat)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 50),
    counts=st.tuples(st.integers(1, 60), st.integers(1, 25), st.integers(0, 300), st.integers(0, 300)),
    options=st.sampled_from([{}, {"weight": "edge_weight"}, {"time_attr": "time", "edge_dir": "out"}, {"feature_dtype": "bfloat16"}]),
    twice=st.booleans(),
)
def test_one_part_is_the_store_of_all_tables_byte_by_byte(
    tmp_path_factory: pytest.TempPathFactory, seed: int, counts: tuple[int, int, int, int], options: dict[str, Any], twice: bool
) -> None:
    folder = tmp_path_factory.mktemp("append")
    first, later = cut(a_shop(seed), *counts)
    whole = gnnkit.partition(the_graph(both(first, later), folder), 1, out=folder / "whole", with_edge=True, **options)
    store = gnnkit.partition(the_graph(first, folder), 1, out=folder / "old", with_edge=True, **options)
    old = files_of(store)
    if twice:  # nodes first, then edges
        grown = store.append(nodes={"user": later["users"], "item": later["items"]})
        grown = grown.append({BUYS: later["buys"], FOLLOWS: later["follows"]})
    else:
        grown = store.append({BUYS: later["buys"], FOLLOWS: later["follows"]}, {"user": later["users"], "item": later["items"]})
    grown.verify()
    assert grown.fingerprint == whole.fingerprint
    assert grown.manifest.to_json() == whole.manifest.to_json()
    assert files_of(grown) == files_of(whole)
    assert files_of(store) == old


@pytest.mark.parametrize(
    ("partition", "options"),
    [("contiguous", {}), ("random", {"weight": "edge_weight", "cache_ratio": 0.1}), ("contiguous", {"order": "hotness"})],
)
def test_parts_keep_their_bounds_and_batches_are_those_of_all_tables(tmp_path: Path, partition: Any, options: dict[str, Any]) -> None:
    first, later = cut(a_shop(1), 50, 20, 200, 250)
    whole = gnnkit.partition(
        the_graph(both(first, later), tmp_path), 1, out=tmp_path / "whole", **{**options, "cache_ratio": 0.0, "order": "dataset"}
    )
    store = gnnkit.partition(the_graph(first, tmp_path), 3, partition, tmp_path / "old", **options)
    edges = store.append({BUYS: later["buys"][:0], FOLLOWS: first["follows"][:5]})
    assert edges.manifest.node_bounds == store.manifest.node_bounds
    linked = [name for name in store.files if (store.path / name).samefile(edges.path / name)]
    assert {name for name in store.files if "/nodes/" in name or f"edges/{'__'.join(BUYS)}" in name} <= set(linked)
    grown = store.append({BUYS: later["buys"], FOLLOWS: later["follows"]}, {"user": later["users"], "item": later["items"]})
    grown.verify()
    for node_type in ("user", "item"):
        assert grown.manifest.node_bounds[node_type][:-1] == store.manifest.node_bounds[node_type][:-1]
    assert grown.reference.graph == whole.reference.graph  # the same graph, however it is cut
    assert len({grown.fingerprint, whole.fingerprint, store.fingerprint, edges.fingerprint}) == 4
    weight = options.get("weight")
    assert batches(grown, weight=weight) == batches(whole, weight=weight)
    again = gnnkit.partition(grown, 2, out=tmp_path / "again")
    again.verify()
    assert again.fingerprint == gnnkit.partition(whole, 2, out=tmp_path / "whole-2").fingerprint


def test_a_loader_keeps_the_version_that_it_opened_and_the_same_rows_again_are_opened(tmp_path: Path) -> None:
    first, later = cut(a_shop(2), 60, 25, 250, 300)
    store = gnnkit.partition(the_graph(first, tmp_path), 2, out=tmp_path / "shop")
    loader = GraphLoader.from_store(store, num_neighbors=[3], batch_size=8, input_nodes=("user", None), progress=False)
    with loader:
        before = gnnkit_digest(loader.peek())
        grown = store.append({BUYS: later["buys"]})
        assert gnnkit_digest(loader.peek()) == before
        assert Store.open(tmp_path / "shop").fingerprint == store.fingerprint
    assert grown.path.parent == tmp_path
    again = store.append({BUYS: later["buys"].to_dict("list")})
    assert again.path == grown.path and again.manifest == grown.manifest
    assert store.append({BUYS: later["buys"][:0]}).path == store.path
    named = store.append({BUYS: later["buys"]}, out=tmp_path / "named")
    assert files_of(named) == files_of(grown)


def test_nodes_that_only_edges_name_and_nodes_that_are_rows(tmp_path: Path) -> None:
    names = gnnkit.partition(gnnkit.tables({"src": ["b", "d"], "dst": ["d", "f"]}, scratch_dir=tmp_path), 1, out=tmp_path / "names")
    grown = names.append((np.array(["a", "h", "d"]), np.array(["b", "g", "a"])))
    assert list(grown.keys()[np.arange(6)]) == ["b", "d", "f", "a", "g", "h"]
    assert grown.schema.num_edges == 5 and list(grown.keys().ids(["h", "b"])) == [5, 0]
    grown.verify()
    # Where new keys come after all others, it is the store of both tables.
    later = names.append({"from": ["g"], "to": ["b"]})
    whole = gnnkit.tables({"src": ["b", "d", "g"], "dst": ["d", "f", "b"]}, scratch_dir=tmp_path)
    assert later.fingerprint == gnnkit.partition(whole, 1, out=tmp_path / "names-whole").fingerprint
    counted = gnnkit.partition(gnnkit.tables(([0, 1], [1, 2]), 3, scratch_dir=tmp_path), 1, out=tmp_path / "rows")
    more = counted.append(([4], [0]), 2)
    whole = gnnkit.tables(([0, 1, 4], [1, 2, 0]), 5, scratch_dir=tmp_path)
    assert more.fingerprint == gnnkit.partition(whole, 1, out=tmp_path / "rows-whole").fingerprint


PAIRS = st.lists(st.tuples(st.text("aäz", max_size=2), st.text("aäz", max_size=2)), min_size=1, max_size=12)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=PAIRS, later=PAIRS)
def test_nodes_that_only_edges_name_keep_their_ids_and_edges_their_ends(
    first: list[tuple[str, str]], later: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("names")
    forms = [{"src": [a for a, _ in rows], "dst": [b for _, b in rows]} for rows in (first, later)]
    store = gnnkit.partition(gnnkit.tables(forms[0], scratch_dir=folder), 1, out=folder / "first", with_edge=True)
    grown = store.append(forms[1])
    old, new = ({key for row in rows for key in row} for rows in (first, later))
    keys = grown.keys()[np.arange(grown.schema.num_nodes)]
    assert list(keys) == [*sorted(old, key=str.encode), *sorted(new - old, key=str.encode)]
    with GraphLoader.from_store(
        grown, num_neighbors=[-1], batch_size=len(keys), input_nodes=None, with_edge=True, progress=False
    ) as loader:
        (batch,) = loader
    ends = keys[batch.n_id.numpy()[batch.edge_index.numpy()]]
    assert {int(e): (a, b) for e, a, b in zip(batch.e_id, *ends, strict=True)} == dict(enumerate([*first, *later]))


def test_eight_bits_keep_their_range(tmp_path: Path) -> None:
    nodes = {"k": [1, 2, 3], "x": [0.0, 10.0, 5.0]}
    tables = gnnkit.tables({"src": [1], "dst": [2]}, nodes, keys="k", features="x", scratch_dir=tmp_path)
    store = gnnkit.partition(tables, 1, out=tmp_path / "old", feature_dtype="quint8")
    grown = store.append(nodes={"k": [4], "x": [7.5]})
    every = {"k": [1, 2, 3, 4], "x": [0.0, 10.0, 5.0, 7.5]}
    whole = gnnkit.tables({"src": [1], "dst": [2]}, every, keys="k", features="x", scratch_dir=tmp_path)
    assert files_of(grown) == files_of(gnnkit.partition(whole, 1, out=tmp_path / "whole", feature_dtype="quint8"))
    with pytest.raises(GnnkitError, match="8 bits"):
        store.append(nodes={"k": [4], "x": [10.5]})


def test_what_is_wrong_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    shop = a_shop(3)
    first, later = cut(shop, 50, 20, 300, 300)
    store = gnnkit.partition(the_graph(first, tmp_path), 1, out=tmp_path / "shop")
    users, buys = later["users"], first["buys"]
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "nothing to append"),
        ({"edges": buys}, "the types"),
        ({"edges": {("user", "sells", "item"): buys}}, "the types"),
        ({"edges": {BUYS: buys.assign(what=-9999)}}, "name no node"),
        ({"edges": {BUYS: buys.drop(columns="amount")}}, "'amount' names no column"),
        ({"edges": {BUYS: buys.assign(what="x")}}, "are \\['string'\\]"),
        ({"nodes": {"user": first["users"][:2]}}, "there already"),
        ({"nodes": {"user": pd.concat([users, users])}}, "more than once"),
        ({"nodes": {"user": users.drop(columns="age")}}, "'age' names no column"),
        ({"nodes": {"user": users.assign(plan=pd.array([None] * len(users), "string"))}}, "nulls"),
        ({"nodes": {"user": users.assign(plan=3)}}, "texts and numbers"),
        ({"nodes": {"user": 7}}, "have a table"),
    ]
    for arguments, message in wrong:
        with pytest.raises(GnnkitError, match=message):
            store.append(**arguments)
        assert [path.name for path in tmp_path.iterdir()] == ["shop"], message
    with pytest.warns(UserWarning, match="of the split 'train' have no label"):
        filled = store.append(nodes={"user": users.assign(plan=pd.array([None] * len(users), "string"))}, fill={"plan": -1})
    assert set(filled.arrays().nodes["user"][0].arrays["y"][50:].tolist()) == {-1}
    other = gnnkit.partition(gnnkit.datasets.products_like(0.0005), 1, out=tmp_path / "other")
    with pytest.raises(GnnkitError, match="was not made of tables"):
        other.append(([0], [1]))


def test_edges_that_were_left_out_may_name_new_nodes(tmp_path: Path) -> None:
    options: dict[str, Any] = {"keys": "k", "dangling": "drop", "scratch_dir": tmp_path}
    store = gnnkit.partition(gnnkit.tables({"src": [1, 2, 9], "dst": [2, 1, 1]}, {"k": [1, 2]}, **options), 1, out=tmp_path / "old")
    grown = store.append({"src": [1, 7], "dst": [1, 1]})
    whole = gnnkit.tables({"src": [1, 2, 9, 1, 7], "dst": [2, 1, 1, 1, 1]}, {"k": [1, 2]}, **options)
    assert grown.fingerprint == gnnkit.partition(whole, 1, out=tmp_path / "whole").fingerprint
    assert grown.metadata["tables"]["node__to__node"]["dropped_edges"] == 2
    with pytest.raises(GnnkitError, match="left out"):
        grown.append(nodes={"k": [9]})

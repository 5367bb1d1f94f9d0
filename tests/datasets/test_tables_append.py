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
        num_threads=1,
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

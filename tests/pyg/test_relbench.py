"""RelBench's own code, over a database in memory: its graph, its tables of tasks and its loaders with gnnkit's samplers under them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tests.helpers.machine import needs

needs("relbench", "torch_frame")
# ruff: noqa: E402

from relbench.base import Database, Dataset, EntityTask, RecommendationTask, Table, TaskType

with warnings.catch_warnings():  # torch_frame compiles functions in a way that torch calls deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    from relbench.modeling import graph as its_graph
    from relbench.modeling import loader as its_loaders
    from relbench.modeling.utils import get_stype_proposal

from gnnkit.pyg import NeighborLoader, NeighborSampler

IGNORED = pytest.mark.filterwarnings("ignore:The given NumPy array is not writable", "ignore:Sparse")
NANOSECONDS = "datetime64[ns]"
START, USERS, ITEMS, LIKES = pd.Timestamp("2024-01-01"), 30, 40, 300


class Likes(Dataset):
    """Users like items, some of which are not known."""

    val_timestamp, test_timestamp = START + pd.Timedelta(days=70), START + pd.Timedelta(days=80)

    def make_db(self) -> Database:
        draw = np.random.default_rng(0)
        at = START + pd.to_timedelta(np.sort(draw.integers(0, 100, LIKES)), unit="D")
        likes = {
            "like_id": np.arange(LIKES),
            "user_id": draw.integers(0, USERS, LIKES),
            "item_id": draw.integers(0, ITEMS, LIKES),
            "at": at,
        }
        frame = pd.DataFrame(likes).astype({"item_id": "Int64"})
        frame.loc[3, "item_id"] = pd.NA
        users = {"user_id": np.arange(USERS), "age": draw.normal(size=USERS), "since": START + pd.to_timedelta(np.arange(USERS), unit="D")}
        items = {"item_id": np.arange(ITEMS), "price": draw.normal(size=ITEMS)}
        # It takes moments for nanoseconds.
        frame, people = frame.astype({"at": NANOSECONDS}), pd.DataFrame(users).astype({"since": NANOSECONDS})
        return Database(
            {
                "user": Table(people, {}, "user_id", "since"),
                "item": Table(pd.DataFrame(items), {}, "item_id"),
                "like": Table(frame, {"user_id": "user", "item_id": "item"}, "like_id", "at"),
            }
        )


def later(db: Database, timestamps: Iterable[pd.Timestamp], timedelta: pd.Timedelta) -> pd.DataFrame:
    """What is liked within a time after each of some moments."""
    likes = db.table_dict["like"].df.dropna()
    found = [likes[(likes["at"] > moment) & (likes["at"] <= moment + timedelta)].assign(timestamp=moment) for moment in timestamps]
    return pd.concat(found, ignore_index=True).astype({"timestamp": NANOSECONDS})


class HowMany(EntityTask):
    """How many items a user likes next."""

    entity_col, entity_table, time_col, target_col = "user_id", "user", "timestamp", "number"
    task_type, timedelta, metrics = TaskType.REGRESSION, pd.Timedelta(days=10), ()

    def make_table(self, db: Database, timestamps: Any) -> Table:
        counts = later(db, timestamps, self.timedelta).groupby(["timestamp", "user_id"]).size().reset_index(name="number")
        return Table(counts, {"user_id": "user"}, None, "timestamp")


class Which(RecommendationTask):
    """Which items a user likes next."""

    src_entity_col, src_entity_table, dst_entity_col, dst_entity_table = "user_id", "user", "item_id", "item"
    time_col, eval_k, task_type, timedelta, metrics = "timestamp", 3, TaskType.RECOMMENDATION, pd.Timedelta(days=10), ()

    def make_table(self, db: Database, timestamps: Any) -> Table:
        lists = later(db, timestamps, self.timedelta).groupby(["timestamp", "user_id"])["item_id"].agg(lambda ids: sorted(set(ids)))
        return Table(lists.reset_index(), {"user_id": "user", "item_id": "item"}, None, "timestamp")


@pytest.fixture(scope="module")
def graph() -> Any:
    db = Likes().get_db()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return its_graph.make_pkey_fkey_graph(db, get_stype_proposal(db))[0]


def check(batch: Any, graph: Any, node_type: str, times: torch.Tensor) -> None:
    """Every row is the one of its node, and nothing is later than the input that it is there for."""
    assert batch[node_type].seed_time.equal(times)
    for store in batch.node_stores:
        rows, whole = store.tf.feat_dict, graph[store._key].tf.feat_dict
        assert rows.keys() == whole.keys() and all(torch.equal(rows[kind], whole[kind][store.n_id]) for kind in rows)
        if "time" in store:
            sampled = slice(len(times) if store._key == node_type else 0, None)
            assert (store.time[sampled] <= times[store.batch[sampled]]).all()


@IGNORED
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("strategy", ["uniform", "last"])
def test_its_node_tasks(graph: Any, num_workers: int, strategy: str) -> None:
    """As its examples train: the table's nodes, times and targets go to ``NeighborLoader`` of PyG, by another import."""
    task = HowMany(Likes())
    table = task.get_table("train")
    given = its_graph.get_node_train_table_input(table, task)
    loader = NeighborLoader(
        graph,
        num_neighbors=[6, 6],
        time_attr="time",
        input_nodes=given.nodes,
        input_time=given.time,
        transform=given.transform,
        batch_size=16,
        temporal_strategy=strategy,
        shuffle=True,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )
    with loader.graph_loader:
        batches = list(loader)
    seen = torch.cat([batch["user"].input_id for batch in batches])
    assert sorted(seen.tolist()) == list(range(len(table))) and len(batches) > 3
    for batch in batches:
        users, places = batch["user"], batch["user"].input_id
        assert users.n_id[: users.batch_size].equal(given.nodes[1][places])
        assert users.y.tolist() == table.df["number"].to_numpy()[places.numpy()].tolist()
        check(batch, graph, "user", given.time[places])
    assert max(len(batch["like"].n_id) for batch in batches) > 16


@IGNORED
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("same_time", [False, True])
def test_its_loader_of_recommendations(monkeypatch: pytest.MonkeyPatch, graph: Any, num_workers: int, same_time: bool) -> None:
    """Its own ``LinkNeighborLoader``, with the sampler's import changed."""
    monkeypatch.setattr(its_loaders, "NeighborSampler", NeighborSampler)
    task = Which(Likes())
    db, table = task.get_db(), task.get_table("train")
    given = its_graph.get_link_train_table_input(table, task, its_graph.num_dst_nodes(db, task))
    loader = its_loaders.LinkNeighborLoader(
        graph,
        [6, 6],
        given.src_nodes,
        given.dst_nodes,
        given.num_dst_nodes,
        src_time=given.src_time,
        share_same_time=same_time,
        time_attr="time",
        temporal_strategy="last",
        batch_size=8,
        shuffle=None if same_time else True,
        num_workers=num_workers,
    )
    liked = {(int(time.timestamp()), user, item) for time, user, items in table.df.itertuples(index=False) for item in items}
    batches = list(loader)
    assert len(batches) > 3
    for source, positive, negative in batches:
        times = source["user"].seed_time
        assert not same_time or len(times.unique()) == 1
        check(source, graph, "user", times)
        check(positive, graph, "item", times)
        check(negative, graph, "item", times)
        ends = (source["user"].n_id[: len(times)].tolist(), positive["item"].n_id[: len(times)].tolist())
        assert liked.issuperset(zip(times.tolist(), *ends, strict=True))


@IGNORED
def test_its_sampler_of_batches(graph: Any) -> None:
    """Batches of one moment each, which it makes for loaders of PyG."""
    task = HowMany(Likes())
    given = its_graph.get_node_train_table_input(task.get_table("train"), task)
    batches = its_loaders.TimestampSampler(given.time, 4)
    loader = NeighborLoader(graph, [4], given.nodes, given.time, time_attr="time", batch_sampler=batches)
    found = list(loader)
    assert len(found) == len(batches) > 3
    assert all(len(batch["user"].seed_time.unique()) == 1 and batch["user"].batch_size == 4 for batch in found)

"""Temporal batches: never a neighbour from the future, and of the others those that the strategy says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData

from gnnkit import GraphLoader
from gnnkit.errors import PlanError
from tests.helpers.chi_square import check_counts, check_subsets
from tests.helpers.graphs import random_edges


def timed_data(rng: np.random.Generator, level: str, num_nodes: int = 25, num_edges: int = 120) -> Data:
    data = Data(edge_index=torch.from_numpy(random_edges(rng, num_nodes, num_nodes, num_edges)), num_nodes=num_nodes)
    data.time = torch.from_numpy(rng.integers(-4, 5, num_nodes if level == "nodes" else num_edges))
    return data


def loader_of(data: Any, **options: Any) -> GraphLoader:
    return GraphLoader.from_pyg(data, **{"time_attr": "time", "with_edge": True, "progress": False, "batch_size": 8, **options})


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_nothing_is_from_the_future_and_the_last_are_the_latest(data: st.DataObject) -> None:
    """Brute force: each node's drawn edges against all of its edges that are early enough."""
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    level, strategy = data.draw(st.sampled_from(["nodes", "edges"])), data.draw(st.sampled_from(["uniform", "last"]))
    graph = timed_data(rng, level)
    source, target = graph.edge_index.numpy()
    edge_times = graph.time.numpy()[source] if level == "nodes" else graph.time.numpy()
    seeds, seed_times = rng.integers(0, 25, 8), rng.integers(-6, 7, 8)
    fan_out = data.draw(st.sampled_from([-1, 1, 2, 4]))
    options = {
        "num_neighbors": [fan_out, fan_out],
        "temporal_strategy": strategy,
        "input_nodes": seeds,
        "input_time": torch.tensor(seed_times),
    }
    with loader_of(graph, **options) as loader:
        (batch,) = list(loader)
    assert batch.seed_time.tolist() == seed_times.tolist()
    times_of_edges = seed_times[batch.batch[batch.edge_index[1]].numpy()]
    assert (edge_times[batch.e_id.numpy()] <= times_of_edges).all()
    drew = sum(batch.num_sampled_nodes[:-1])
    for node in range(drew):
        mine = batch.e_id[batch.edge_index[1] == node].tolist()
        root_time, v = seed_times[batch.batch[node]], int(batch.n_id[node])
        early = [edge for edge in np.flatnonzero(target == v).tolist() if edge_times[edge] <= root_time]
        assert len(mine) == len(set(mine)) == (len(early) if fan_out < 0 else min(fan_out, len(early)))
        assert set(mine) <= set(early)
        if strategy == "last":
            latest = sorted(early, key=lambda edge: (edge_times[edge], edge))
            assert mine == (latest if fan_out < 0 else latest[max(0, len(latest) - fan_out) :])


def star(times: list[int], **edge_arrays: Any) -> Data:
    """Node 0 with a neighbour for each time."""
    count = len(times)
    edge_index = torch.stack([torch.arange(1, count + 1), torch.zeros(count, dtype=torch.long)])
    return Data(edge_index=edge_index, num_nodes=count + 1, time=torch.tensor(times), **edge_arrays)


def drawn(data: Data, count: int, time: int, **options: Any) -> np.ndarray:
    """bool ``[count, edges]``: what each of many copies of node 0 has drawn."""
    options = {
        "input_nodes": torch.zeros(count, dtype=torch.long),
        "input_time": torch.full((count,), time),
        "batch_size": count,
        **options,
    }
    with loader_of(data, **options) as loader:
        (batch,) = list(loader)
    chosen = np.zeros((count, data.num_edges), int)
    np.add.at(chosen, (batch.edge_index[1].numpy(), batch.e_id.numpy()), 1)
    return chosen


def test_uniform_draws_are_uniform_among_the_early_ones() -> None:
    data = star([5, 1, 9, 3, 2, 5, 7, 4, 6, 8])
    chosen = drawn(data, 4000, 6, num_neighbors=[3])
    assert not chosen[:, [2, 6, 9]].any()
    check_subsets(chosen[:, [0, 1, 3, 4, 5, 7, 8]].astype(bool))
    check_counts(drawn(data, 4000, 6, num_neighbors=[4], replace=True).sum(axis=0)[[0, 1, 3, 4, 5, 7, 8]])


def test_weights_are_followed_among_the_early_ones() -> None:
    weight = torch.tensor([1.0, 4.0, 100.0, 0.0, 2.0, 3.0])
    data = star([5, 1, 9, 3, 2, 5], weight=weight)
    chosen = drawn(data, 6000, 6, num_neighbors=[1], weight="weight")
    check_counts(chosen.sum(axis=0), np.array([1, 4, 0, 0, 2, 3]) / 10)
    early = drawn(data, 6000, 2, num_neighbors=[1], weight="weight")
    check_counts(early.sum(axis=0), np.array([0, 4, 0, 0, 2, 0]) / 6)
    assert not drawn(data, 10, 0, num_neighbors=[-1], weight="weight").any()


def test_ties_stay_in_the_order_of_the_dataset() -> None:
    data = star([7, 7, 3, 7, 3, 7])
    for fan_out, wanted in ((1, [5]), (2, [3, 5]), (3, [1, 3, 5]), (5, [4, 0, 1, 3, 5]), (-1, [2, 4, 0, 1, 3, 5])):
        with loader_of(data, num_neighbors=[fan_out], temporal_strategy="last", input_nodes=[0], input_time=[7]) as loader:
            (batch,) = list(loader)
        assert batch.e_id.tolist() == wanted


def test_extreme_times() -> None:
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    data = star([low, 0, high])
    for time, wanted in ((low, [0]), (-1, [0]), (0, [0, 1]), (high - 1, [0, 1]), (high, [0, 1, 2])):
        assert np.flatnonzero(drawn(data, 1, time, num_neighbors=[-1])).tolist() == wanted


def test_seeds_have_their_own_time_unless_told_otherwise() -> None:
    """The second hop keeps to the root's time too, not to that of the node in between."""
    data = Data(edge_index=torch.tensor([[1, 2, 3, 4, 0], [0, 1, 1, 2, 3]]), num_nodes=5, time=torch.tensor([5, 3, 4, 6, 5]))
    with loader_of(data, num_neighbors=[-1] * 4) as loader:
        (batch,) = list(loader)
        assert batch.seed_time.tolist() == data.time.tolist()
        by_root = [sorted(batch.n_id[batch.batch == root].tolist()) for root in range(5)]
        assert by_root == [[0, 1, 2, 4], [1], [2], [0, 1, 2, 3, 4], [4]]
        assert loader.sample([3, 0]).seed_time.tolist() == [6, 5]
    with loader_of(data, num_neighbors=[-1] * 4, input_nodes=[0, 0], input_time=[4, 3]) as loader:
        (batch,) = list(loader)
    assert [sorted(batch.n_id[batch.batch == root].tolist()) for root in range(2)] == [[0, 1, 2], [0, 1]]


def typed_data() -> HeteroData:
    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes = 4, 6
    data["item"].time = torch.tensor([0, 1, 2, 3, 4, 5])
    data["item", "to", "user"].edge_index = torch.stack([torch.arange(6), torch.zeros(6, dtype=torch.long)])
    data["user", "knows", "user"].edge_index = torch.tensor([[1, 2, 3], [0, 0, 0]])
    return data


@pytest.mark.parametrize("strategy", ["uniform", "last"])
def test_types_without_times_are_not_restricted(strategy: str) -> None:
    options = {"num_neighbors": [2], "batch_size": 3000, "temporal_strategy": strategy}
    with loader_of(typed_data(), input_nodes=("user", [0] * 3000), input_time=[3] * 3000, **options) as loader:
        (batch,) = list(loader)
    items = np.bincount(batch["item", "to", "user"].e_id, minlength=6)
    assert (items[:2].sum() == 0 and (items[2:4] == 3000).all()) if strategy == "last" else not items[4:].any()
    check_counts(np.bincount(batch["user", "knows", "user"].e_id))  # drawn either way: there is no latest one


WRONG = [
    ({"time_attr": "age"}, "age"),
    ({"input_time": [1] * 24}, r"input_time must be whole numbers \[25\]"),
    ({"input_time": [1] * 26}, r"input_time must be whole numbers \[25\]"),
    ({"input_time": torch.zeros(25)}, "float32"),
    ({"input_time": torch.zeros((25, 1), dtype=torch.long)}, "input_time must be"),
    ({"time_attr": None, "input_time": [1] * 25}, "input_time is given"),
    ({"time_attr": None, "temporal_strategy": "last"}, "needs times"),
    ({"temporal_strategy": "first"}, "temporal_strategy must be"),
    ({"temporal_strategy": "last", "replace": True}, "replace"),
    ({"temporal_strategy": "last", "weight": "weight"}, "weight"),
    ({"subgraph_type": "induced"}, "future"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=[str(options) for options, _ in WRONG])
def test_wrong_input(options: dict[str, Any], message: str) -> None:
    data = timed_data(np.random.default_rng(0), "nodes")
    data.weight = torch.ones(data.num_edges)
    with pytest.raises(PlanError, match=message):
        loader_of(data, **{"num_neighbors": [2], **options})


def test_times_of_edges_say_nothing_about_seeds() -> None:
    data = timed_data(np.random.default_rng(0), "edges")
    with pytest.raises(PlanError, match="input_time is not given"):
        loader_of(data, num_neighbors=[2])
    with loader_of(data, num_neighbors=[2], input_time=[0] * 25) as loader, pytest.raises(PlanError, match="sample"):
        loader.sample([1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.float64])
def test_times_are_whole_numbers(dtype: torch.dtype) -> None:
    data = timed_data(np.random.default_rng(0), "nodes")
    data.time = data.time.to(dtype)
    with pytest.raises(PlanError, match="time"):
        loader_of(data, num_neighbors=[2])

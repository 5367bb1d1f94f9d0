"""Temporal batches: never a neighbour from the future, and of the others those that the strategy says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData

import gnnkit
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


def test_windows_begin_where_they_say() -> None:
    """From ``seed - window`` on, that time included; at the ends of 64 bits, too."""
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    data = star([low, -3, 0, 2, 2, 5, high])
    for comparison, time, window, wanted in (
        ("<=", 2, 2, [2, 3, 4]),
        ("<", 2, 2, [2]),
        ("<=", 2, 0, [3, 4]),
        ("<", 3, 1, [3, 4]),
        ("<", high, high, [2, 3, 4, 5]),
        ("<=", low, 1, [0]),
        ("<", low, 1, []),
        ("<", low, None, []),
        ("<", high, None, [0, 1, 2, 3, 4, 5]),
    ):
        options: dict[str, Any] = {"num_neighbors": [-1], "temporal_comparison": comparison, "time_window": window}
        assert np.flatnonzero(drawn(data, 1, time, **options)).tolist() == wanted


def test_draws_within_a_window_follow_weights_and_are_uniform() -> None:
    data = star([5, 1, 9, 3, 2, 5, 4], weight=torch.tensor([1.0, 50.0, 100.0, 3.0, 2.0, 0.0, 4.0]))
    options: dict[str, Any] = {"time_window": 4, "temporal_comparison": "<"}  # of times 2, 3, 4 and 5
    check_counts(drawn(data, 6000, 6, num_neighbors=[1], weight="weight", **options).sum(axis=0), np.array([1, 0, 0, 3, 2, 0, 4]) / 10)
    assert drawn(data, 10, 6, num_neighbors=[5], weight="weight", **options).sum(axis=0).tolist() == [10, 0, 0, 10, 10, 0, 10]
    check_subsets(drawn(data, 4000, 6, num_neighbors=[3], **options)[:, [0, 3, 4, 5, 6]].astype(bool))
    assert (drawn(data, 10, 6, num_neighbors=[2], temporal_strategy="last", **options).sum(axis=0) == [10, 0, 0, 0, 0, 10, 0]).all()


def test_each_input_may_have_its_own_window() -> None:
    """Also by a mask's places, in a plan that was saved, for links and both of their ends; others must say theirs."""
    data = star([5, 1, 9, 3, 2, 5])
    options: dict[str, Any] = {"num_neighbors": [-1], "input_time": [6, 6, 6]}
    with loader_of(data, input_nodes=[0, 0, 0], time_window=torch.tensor([1, 3, 9]), **options) as loader:
        (batch,) = list(loader)
        assert [batch.e_id[batch.edge_index[1] == seed].tolist() for seed in range(3)] == [[0, 5], [3, 0, 5], [1, 4, 3, 0, 5]]
        with pytest.raises(PlanError, match="one for each"):
            loader.for_split([0], input_time=[6])
        with loader.for_split([0], input_time=[6], time_window=None) as other:
            assert len(next(iter(other)).e_id) == 5
        assert loader.plan.inputs == type(loader.plan.inputs).from_json(loader.plan.inputs.to_json())
    of_nodes = timed_data(np.random.default_rng(0), "nodes")
    with loader_of(of_nodes, num_neighbors=[2], time_window=[3] * 25) as loader, pytest.raises(PlanError, match="one for each"):
        loader.sample([0])
    mask = torch.arange(7) == 0
    with loader_of(data, num_neighbors=[-1], input_nodes=mask, input_time=[6], time_window=[3, 0, 0, 0, 0, 0, 0]) as loader:
        assert next(iter(loader)).e_id.tolist() == [3, 0, 5]
    pairs, times = torch.tensor([[0, 2], [1, 0]]), torch.tensor([6, 6])
    with loader_of(data, num_neighbors=[-1], edge_label_index=pairs, edge_label_time=times, time_window=[1, 3]) as loader:
        (batch,) = list(loader)
    assert [batch.e_id[batch.batch[batch.edge_index[1]] == link].tolist() for link in range(2)] == [[0, 5], [3, 0, 5]]


@pytest.mark.parametrize("level", ["nodes", "edges"])
def test_no_edge_of_a_million_is_later_than_its_seed(level: str) -> None:
    data = timed_data(np.random.default_rng(6), level, 2_000, 40_000)
    options: dict[str, Any] = {"num_neighbors": [20, 20], "batch_size": 500, "replace": True}
    times = torch.randint(1, 5, (10_000,), generator=torch.Generator().manual_seed(1))
    with loader_of(data, input_nodes=torch.arange(10_000) % 2_000, input_time=times, **options) as loader:
        check = loader.check_leakage(batches=25)
        assert check.num_edges > 1_000_000 and check.num_later == 0 and not check.later
        batch = loader.peek()
    with loader_of(data, input_nodes=[3, 5], input_time=[0, 1], temporal_comparison="<", **options) as loader:
        assert loader.check_leakage().num_later == 0
    found = gnnkit.check_leakage(batch)
    assert found.num_later == 0 and found.num_edges == batch.num_edges
    late = int(batch.edge_index[1][0])
    batch.time[0 if level == "edges" else batch.edge_index[0][0]] = batch.seed_time[batch.batch[late]] + 1
    found = gnnkit.check_leakage(batch)
    assert found.num_later >= 1 and found.later[0].edge == 0 and "later than their seed" in str(found)
    strict = gnnkit.check_leakage(batch, temporal_comparison="<")
    assert strict.num_later > found.num_later and len(strict.later) == 10


def test_a_leak_of_a_typed_graph_and_of_links_is_found() -> None:
    with loader_of(typed_data(), num_neighbors=[-1], input_nodes=("user", [0, 1]), input_time=[3, 5]) as loader:
        assert loader.check_leakage() == gnnkit.check_leakage(loader.peek())
        batch = loader.peek()
    assert gnnkit.check_leakage(batch).num_edges == 4, "friends have no times"
    batch["item"].time[2] = 4
    (late,) = gnnkit.check_leakage(batch).later
    assert late == (0, ("item", "to", "user"), 2, 4, 3)
    data = star([5, 1, 9, 3, 2, 5])
    links: dict[str, Any] = {"edge_label_index": torch.tensor([[0, 2], [1, 0]]), "edge_label_time": torch.tensor([6, 2])}
    with loader_of(data, num_neighbors=[-1], neg_sampling="binary", **links) as loader:
        batch = loader.peek()
    assert gnnkit.check_leakage(batch).num_later == 0 < gnnkit.check_leakage(batch).num_edges
    batch.time[int(torch.nonzero(batch.batch[batch.edge_index[1]] == 1)[0])] = 3
    assert [(late.time, late.seed_time) for late in gnnkit.check_leakage(batch).later] == [(3, 2)]


def test_what_cannot_be_checked_is_refused() -> None:
    data = timed_data(np.random.default_rng(0), "nodes")
    with loader_of(data, num_neighbors=[2], time_attr=None) as loader, pytest.raises(PlanError, match="does not follow times"):
        loader.check_leakage()
    with loader_of(data, num_neighbors=[2], time_attr=None) as loader, pytest.raises(PlanError, match="seed_time"):
        gnnkit.check_leakage(loader.peek())
    with loader_of(data, num_neighbors=[2], subgraph_type="bidirectional") as loader:
        for check in (loader.check_leakage, lambda: gnnkit.check_leakage(loader.peek())):
            with pytest.raises(PlanError, match="were not drawn"):
                check()
    with loader_of(data, num_neighbors=[2]) as loader, pytest.raises(PlanError, match="batches must be"):
        loader.check_leakage(0)


@pytest.mark.filterwarnings("ignore:there are 5 nodes and as many edges")
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
    ({"time_window": 1.5}, "time_window must be"),
    ({"time_window": -1}, "time_window must be"),
    ({"time_window": True}, "time_window must be"),
    ({"time_window": "week"}, "time_window must be"),
    ({"time_window": [1] * 24}, r"one for each input; got int64 \[24\]"),
    ({"time_window": [-1] * 25}, "one for each input"),
    ({"time_window": [0.5] * 25}, "one for each input; got float"),
    ({"time_window": 0, "temporal_comparison": "<"}, "leaves no time"),
    ({"time_window": 3, "time_attr": None}, "needs times"),
    ({"time_window": [3] * 25, "time_attr": None}, "no times are compared"),
    ({"temporal_comparison": ">"}, "temporal_comparison must be"),
    ({"temporal_comparison": "<", "time_attr": None}, "needs times"),
    ({"time_window": [3] * 25, "sampler": gnnkit.HGT([2]), "num_neighbors": None, "time_attr": None}, "do not go together"),
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

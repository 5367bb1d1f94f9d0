"""Layer-wise batches: bit for bit as specified, with the probabilities that they state, so that weighted sums are unbiased."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData

from gnnkit import BuildOptions, GraphLoader, LayerWise, LoaderPlan
from gnnkit.errors import PlanError
from gnnkit.plan import HGTSampling, LayerWiseSampling
from tests import reference_layers
from tests.cluster.parts.several_hosts import (
    OwnersOverTheWire,
    inputs_of,
    request_of,
    sampled,
    sampler_on,
    spread_samplers,
)
from tests.helpers.batches import items, same, to_pyg
from tests.helpers.graphs import ArraySource, homogeneous_source, random_edges, random_source, stored
from tests.helpers.kind_batches import epoch_of, expected_kind

NUM_BATCHES = 1500


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """A random graph and options for it."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    source = random_source(rng, max_edges=300)
    if not draw(st.integers(0, 3)):
        num_nodes, num_edges = int(rng.integers(1, 60)), int(rng.integers(4, 300))
        edge_index, weight = random_edges(rng, num_nodes, num_nodes, num_edges), rng.integers(0, 5, num_edges)
        source = homogeneous_source(edge_index, num_nodes, edge_arrays={"weight": weight})
    input_type = draw(st.sampled_from([t for t, s in source.schema.node_types.items() if s.num_nodes]))
    hops = draw(st.integers(1, 3))
    types = draw(st.sets(st.sampled_from(list(source.schema.node_types)), min_size=1))
    return {
        "source": source,
        "input_type": input_type,
        "ids": draw(st.lists(st.integers(0, source.schema.node_types[input_type].num_nodes - 1), min_size=1, max_size=12)),
        "num_nodes": {t: draw(st.lists(st.integers(0, 12), min_size=hops, max_size=hops)) for t in sorted(types)},
        "batch_size": draw(st.integers(1, 9)),
        "edge_dir": draw(st.sampled_from(["in", "out"])),
        "seed": draw(st.integers(0, (1 << 64) - 1)),
        "weight": draw(st.sampled_from([None, "weight"])),
    }


@settings(max_examples=40, deadline=None, derandomize=True)
@given(cases())
def test_random_graphs(case: dict[str, Any]) -> None:
    source, ids = case["source"], case["ids"]
    input_nodes = np.array(ids) if source.schema.is_homogeneous else (case["input_type"], np.array(ids))
    options = {name: case[name] for name in ("batch_size", "edge_dir", "seed", "weight")}
    got = epoch_of(to_pyg(source), sampler=LayerWise(case["num_nodes"]), input_nodes=input_nodes, **options)
    expected = expected_kind(reference_layers.sample, source, case["input_type"], ids, num_nodes=case["num_nodes"], **options)
    for batch, wanted in zip(got, expected, strict=True):
        same(batch, wanted, any_order=True)


def two_roots(weight: list[float] | None = None) -> ArraySource:
    """Nodes 0 and 1 have neighbours among 2, ..., 9: eight edges of node 0, three of node 1, one of these twice."""
    ends = [(u, 0) for u in range(2, 10)] + [(3, 1), (4, 1), (4, 1)]
    arrays = None if weight is None else {"weight": np.array(weight)}
    return homogeneous_source(np.array(ends).T, 10, edge_arrays=arrays)


def exact_probabilities(source: ArraySource, count: int, weight: list[float] | None = None) -> dict[int, Fraction]:
    """The probability of each neighbour of nodes 0 and 1, from LADIES' formula, in exact arithmetic."""
    edges, score = source.edges["node", "to", "node"].T.tolist(), dict.fromkeys(range(2, 10), Fraction(0))
    values = [Fraction(1)] * len(edges) if weight is None else list(map(Fraction, weight))
    for root in (0, 1):
        total = sum(w for w, (_, v) in zip(values, edges, strict=True) if v == root)
        for w, (u, v) in zip(values, edges, strict=True):
            if v == root:
                score[u] += (w / total) ** 2
    certain: set[int] = set()
    while True:
        left = sum(s for u, s in score.items() if u not in certain)
        found = {u: (count - len(certain)) * s / left for u, s in score.items() if u not in certain}
        if not (new := {u for u, p in found.items() if p >= 1}):
            return {**dict.fromkeys(certain, Fraction(1)), **found}
        certain |= new


WEIGHT = [1.0, 3.0, 0.5, 2.0, 0.0, 1.0, 4.0, 1.0, 2.0, 1.0, 0.25]


@pytest.mark.slow
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["alike", "weighted"])
@pytest.mark.parametrize("count", [1, 4])
def test_nodes_are_chosen_with_exactly_the_probabilities_of_the_formula(count: int, weight: list[float] | None) -> None:
    source = two_roots(weight)
    probability = exact_probabilities(source, count, weight)
    options = {"input_nodes": np.tile([0, 1], NUM_BATCHES), "batch_size": 2, "weight": weight and "weight"}
    batches = epoch_of(to_pyg(source), sampler=LayerWise([count]), **options)
    seen = np.zeros(10)
    for batch in batches:
        chosen = batch.n_id[2:].tolist()
        assert len(chosen) == len(set(chosen)) == count
        seen[chosen] += 1
    for u, p in probability.items():
        if p in (0, 1):
            assert seen[u] == p * NUM_BATCHES
        else:
            deviation = (seen[u] - NUM_BATCHES * p) / float(NUM_BATCHES * p * (1 - p)) ** 0.5
            assert abs(deviation) < 4.5, f"node {u}: {seen[u]} of {NUM_BATCHES}, probability {float(p):.3f}"
    # What the batch says about it is what it is: an entry of the adjacency, divided by the probability.
    entry = {(e, v): Fraction(1, 8 if v == 0 else 3) for e, (_, v) in enumerate(source.edges["node", "to", "node"].T.tolist())}
    for batch in batches[:50] if weight is None else ():
        for e, v, got in zip(batch.e_id.tolist(), batch.n_id[batch.edge_index[1]].tolist(), batch.edge_weight.tolist(), strict=True):
            u = int(batch.n_id[batch.edge_index[0]][batch.e_id == e][0])
            assert got == pytest.approx(float(entry[e, v] / probability[u]), rel=1e-6)


@pytest.mark.parametrize("weight", [None, "weight"], ids=["alike", "weighted"])
@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_weighted_sums_are_means_over_all_neighbours_on_average(edge_dir: str, weight: str | None) -> None:
    """Over many batches of the same seeds, for every seed and edge type: the sum with ``edge_weight`` against the whole mean."""
    rng = np.random.default_rng(8)
    edges = {("a", "to", "b"): random_edges(rng, 30, 20, 120), ("b", "to", "b"): random_edges(rng, 20, 20, 80)}
    data = HeteroData()
    data["a"].num_nodes, data["b"].num_nodes = 30, 20
    for edge_type, edge_index in edges.items():
        data[edge_type].edge_index = torch.from_numpy(edge_index)
        data[edge_type].weight = torch.from_numpy(rng.integers(0, 4, edge_index.shape[1]).astype(np.float64))
    near, far = (1, 0) if edge_dir == "in" else (0, 1)
    seeds = np.arange(5)
    options = {"sampler": LayerWise([6]), "edge_dir": edge_dir, "weight": weight}
    batches = epoch_of(data, input_nodes=("b", np.tile(seeds, 500)), batch_size=5, **options)
    value = {"a": rng.standard_normal(30) + 1, "b": rng.standard_normal(20) - 1}
    checked = 0
    for edge_type, edge_index in edges.items():
        if edge_type[2 * near] != "b":
            continue
        neighbor = edge_type[2 * far]
        weights = data[edge_type].weight.numpy() if weight else np.ones(edge_index.shape[1])
        sums = np.array([sums_of(batch, edge_type, neighbor, value[neighbor], edge_dir) for batch in batches])
        for i, v in enumerate(seeds):
            own = edge_index[near] == v
            if weights[own].sum() == 0:
                assert not sums[:, i].any()
                continue
            mean = (weights[own] * value[neighbor][edge_index[far][own]]).sum() / weights[own].sum()
            error = sums[:, i].std() / np.sqrt(len(batches))
            assert abs(sums[:, i].mean() - mean) < 4.5 * error + 1e-6, (edge_type, v)
            checked += sums[:, i].std() > 0
    assert checked >= 3, "most means are drawn, not whole"


def sums_of(batch: HeteroData, edge_type: tuple[str, str, str], neighbor: str, value: Any, edge_dir: str) -> Any:
    from tests.reference_sampler import shown

    store = batch[shown(edge_type, edge_dir)]
    row, col = store.edge_index.numpy()
    sums = np.zeros(len(batch["b"].n_id))
    np.add.at(sums, col, store.edge_weight.numpy().astype(float) * value[batch[neighbor].n_id.numpy()[row]])
    return sums[:5]


def test_a_batch_that_takes_everything_is_that_of_whole_neighbourhoods() -> None:
    rng = np.random.default_rng(2)
    data = to_pyg(random_source(rng, max_nodes=50, max_edges=200, num_node_types=2, num_edge_types=3))
    input_nodes = data.node_types[0]
    layered = epoch_of(data, sampler=LayerWise([1000, 1000]), input_nodes=input_nodes, batch_size=7)
    whole = epoch_of(data, num_neighbors=[-1, -1], input_nodes=input_nodes, batch_size=7)
    for batch, wanted in zip(layered, whole, strict=True):
        for edge_type in batch.edge_types:
            col, edge_weight = batch[edge_type].edge_index[1], batch[edge_type].edge_weight
            degree = torch.bincount(col)
            assert torch.allclose(edge_weight, 1 / degree[col].float())
            del batch[edge_type]["edge_weight"]
        same(batch, wanted)


def test_weights_that_come_under_the_same_name() -> None:
    """A graph's own ``edge_weight`` gives way: batches have the one to sum with."""
    source = two_roots()
    data = to_pyg(source)
    data.edge_weight = torch.full((source.schema.num_edges,), 7.0)
    (batch,) = epoch_of(data, sampler=LayerWise([100]), input_nodes=np.array([0, 1]), batch_size=2, weight="edge_weight")
    assert batch.edge_weight.tolist() == pytest.approx([1 / 8] * 8 + [1 / 3] * 3)
    assert list(dict(items(batch))).count("edge_weight") == 1


def test_edges_that_are_left_out_take_their_weights_with_them() -> None:
    rng = np.random.default_rng(0)
    edge_index = torch.from_numpy(random_edges(rng, 30, 30, 200))
    data = Data(edge_index=edge_index, num_nodes=30)
    options = {"edge_label_index": edge_index[:, 150:], "sampler": LayerWise([8, 8]), "batch_size": 10}
    everything, some = epoch_of(data, **options), epoch_of(data, exclude_edges="self", **options)
    left_out = 0
    for batch, whole in zip(some, everything, strict=True):
        weight = {(e, v): w for e, v, w in zip(whole.e_id.tolist(), whole.edge_index[1].tolist(), whole.edge_weight.tolist(), strict=True)}
        kept = list(zip(batch.e_id.tolist(), batch.edge_index[1].tolist(), strict=True))
        assert batch.edge_weight.tolist() == [weight[edge] for edge in kept]
        left_out += len(weight) - len(kept)
    assert left_out > 10


def test_fewer_nodes_than_neighbour_sampling_gives() -> None:
    """The point of it: nodes do not multiply from hop to hop."""
    rng = np.random.default_rng(4)
    data = Data(edge_index=torch.from_numpy(random_edges(rng, 3000, 3000, 60000)), num_nodes=3000)
    (batch,) = epoch_of(data, sampler=LayerWise([64, 64]), input_nodes=np.arange(32), batch_size=32)
    seeds, first, second = batch.num_sampled_nodes
    assert seeds == 32 and first <= 64 and second <= 64
    assert sum(batch.num_sampled_edges) == batch.num_edges == len(batch.edge_weight)
    # Every node's edges go to the hop before: their targets are seeds, then the first hop's nodes.
    col, (early, _) = batch.edge_index[1], batch.num_sampled_edges
    assert (col[:early] < seeds).all() and ((col[early:] >= seeds) & (col[early:] < seeds + first)).all()


def test_a_plan_can_be_written_down() -> None:
    data = to_pyg(two_roots())
    with GraphLoader.from_pyg(data, sampler=LayerWise([3, 2]), batch_size=2, progress=False) as loader:
        plan = LoaderPlan.from_json(loader.plan.to_json())
        assert plan == loader.plan
        assert plan.sampling.num_nodes == {"node": (3, 2)} and plan.sampling.num_hops == 2


def test_a_loader_shows_it_by_its_name() -> None:
    data = Data(edge_index=torch.tensor([[0, 1], [1, 2]]), num_nodes=3)
    with GraphLoader.from_pyg(data, sampler=LayerWise(num_nodes=[2]), progress=False) as loader:
        assert "LayerWise" in repr(loader)


def test_wrong_input() -> None:
    for num_nodes, message in (([], "one number per hop"), ([-1], "holds -1"), ({"a": [1], "b": []}, "one number per hop")):
        with pytest.raises(PlanError, match=message):
            LayerWise(num_nodes)  # type: ignore[arg-type]
    data = to_pyg(two_roots())
    data.time = torch.arange(10)
    for options, message in (
        ({"sampler": LayerWise({"nobody": [1]})}, "homogeneous"),
        ({"sampler": LayerWise([1]), "time_attr": "time"}, "time_attr"),
        ({"sampler": LayerWise([1]), "replace": True}, "replace"),
    ):
        with pytest.raises(PlanError, match=message):
            GraphLoader.from_pyg(data, progress=False, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["layer-wise", "weighted", "hgt"])
@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_parts_on_several_hosts(tmp_path: Path, edge_dir: Any, kind: str) -> None:
    """Scores, weights and budgets of nodes that lie elsewhere: whoever samples, batches are those of one host."""
    source = random_source(np.random.default_rng(6), max_nodes=60, max_edges=400, num_node_types=2, num_edge_types=3)
    weight = "weight" if kind == "weighted" else None
    store = stored(source, tmp_path / "store", BuildOptions(3, "random", edge_dir=edge_dir, with_edge=True, weight="weight"))
    counts = dict.fromkeys(source.schema.node_types, (9, 6))
    sampling: Any = HGTSampling(counts, edge_dir, True) if kind == "hgt" else LayerWiseSampling(counts, edge_dir, weight, True)
    graph, inputs, placement = store.arrays(), inputs_of(store.arrays()), {0: (0,), 1: (1,), 2: (2,)}
    one, nodes = sampler_on(graph, sampling), source.schema.node_types[inputs.node_type].num_nodes
    for sampler, others in spread_samplers(graph, sampling, placement, owners=OwnersOverTheWire).values():
        for key in range(4):
            ids = np.random.default_rng(key).integers(0, nodes, 0 if key == 1 else 6)
            request = request_of(key, ids)
            assert sampled(sampler, request) == sampled(one, request)
        assert ("weights" in {what for what, _ in others.asked}) == (kind == "weighted")

"""Random walks: bit for bit as specified, and with node2vec's probabilities."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData

from gnnkit import BuildOptions, GraphLoader, LoaderPlan, OnDevice, Walks, unpad, verify_export
from gnnkit.errors import MemoryLimitError, PlanError, SamplingError
from gnnkit.plan import WalkSampling
from tests import reference_walks
from tests.cluster.parts.several_hosts import OwnersOverTheWire, request_of, sampled, sampler_on, spread_samplers
from tests.helpers.batches import digest, items, same, to_pyg, to_reference
from tests.helpers.chi_square import check_counts, check_statistic
from tests.helpers.golden import GOLDEN_INPUT_NODES, GOLDEN_OPTIONS, GOLDEN_WALKS, golden_epoch, golden_source
from tests.helpers.graphs import ArraySource, EdgeType, homogeneous_source, random_edges, random_source, stored
from tests.helpers.kind_batches import epoch_of
from tests.reference_sampler import epoch_batches


def expected(
    source: ArraySource,
    input_type: str,
    ids: list[int],
    *,
    batch_size: int,
    seed: int,
    epoch: int = 0,
    shuffle: bool = False,
    **sampling: Any,
) -> list[Data | HeteroData]:
    """An epoch's batches as the reference says."""
    graph, found = to_reference(source), []
    name, schema = f"node/{input_type}/ids", source.schema
    for key, positions in epoch_batches(len(ids), batch_size, seed=seed, name=name, epoch=epoch, shuffle=shuffle):
        told = reference_walks.sample(graph, key, input_type, [ids[p] for p in positions], positions, **sampling)
        batch: Any = Data() if schema.is_homogeneous else HeteroData()
        for t, of_type in schema.node_types.items():
            store = batch if schema.is_homogeneous else batch[t]
            store.n_id = torch.tensor(told["nodes"][t]["n_id"], dtype=torch.int64)
            if "x" not in of_type.arrays:
                store.num_nodes = len(store.n_id)
            for array, spec in of_type.arrays.items():
                rows = np.array(told["nodes"][t][array], spec.numpy_dtype)
                store[array] = torch.from_numpy(rows.reshape(len(store.n_id), *spec.row_shape))
        store = batch if schema.is_homogeneous else batch[input_type]
        store.input_id, store.batch_size = torch.tensor(positions), len(positions)
        for array in ("walks", "neg_walks") if told["neg_walks"] else ("walks",):
            store[array] = torch.tensor(told[array])
        found.append(batch)
    return found


def check(source: ArraySource, input_type: str, ids: list[int], walks: Mapping[str, Any], **options: Any) -> list[Data | HeteroData]:
    """Compares an epoch with the reference."""
    is_homogeneous = source.schema.is_homogeneous
    inputs: Any = np.array(ids) if is_homogeneous else (input_type, np.array(ids))
    got = epoch_of(to_pyg(source), sampler=Walks(**walks), input_nodes=inputs, **options)
    told = {**walks, "metapath": walks.get("metapath", [("node", "to", "node")])}
    for batch, wanted in zip(got, expected(source, input_type, ids, **told, **options), strict=True):
        same(batch, wanted, any_order=True)
    return got


def a_metapath(draw: st.DrawFn, source: ArraySource, edge_dir: Any, length: int) -> list[EdgeType] | None:
    """Edge types that lead to one another, from a type that has nodes."""
    near, far = (2, 0) if edge_dir == "in" else (0, 2)
    found: list[EdgeType] = []
    for _ in range(length):
        known = [t for t in source.edges if (source.schema.node_types[t[near]].num_nodes if not found else t[near] == found[-1][far])]
        if not known:
            return None
        found.append(draw(st.sampled_from(sorted(known))))
    return found


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """A random graph and options for it."""
    rng, length = np.random.default_rng(draw(st.integers(0, 1 << 32))), draw(st.integers(1, 5))
    edge_dir: Any = draw(st.sampled_from(["in", "out"]))
    numbers = {"length": length, "per_node": draw(st.integers(1, 3)), "num_negatives": draw(st.integers(0, 2))}
    source = random_source(rng, max_edges=300)
    metapath = a_metapath(draw, source, edge_dir, length) if draw(st.booleans()) else None
    if metapath is None or any(not source.schema.node_types[end].num_nodes for t in metapath for end in (t[0], t[2])):
        num_nodes, num_edges = int(rng.integers(1, 40)), int(rng.integers(4, 200))
        arrays = {"weight": rng.integers(0, 5, num_edges)}
        source = homogeneous_source(random_edges(rng, num_nodes, num_nodes, num_edges), num_nodes, edge_arrays=arrays)
        bias = st.sampled_from([0.05, 0.3, 1.0, 4.0, 1000.0])
        more: dict[str, Any] = {"p": draw(bias), "q": draw(bias)}
        start = "node"
    else:
        more, start = {"metapath": metapath}, metapath[0][2 if edge_dir == "in" else 0]
    return {
        "source": source,
        "input_type": start,
        "ids": draw(st.lists(st.integers(0, source.schema.node_types[start].num_nodes - 1), min_size=1, max_size=12)),
        "walks": {**numbers, **more},
        "batch_size": draw(st.integers(1, 9)),
        "edge_dir": edge_dir,
        "seed": draw(st.integers(0, (1 << 64) - 1)),
        "weight": draw(st.sampled_from([None, "weight"])),
    }


@settings(max_examples=80, deadline=None, derandomize=True)
@given(cases())
def test_random_graphs(case: dict[str, Any]) -> None:
    check(**case)


# Node 0 has the neighbours 1, 2, 3 and, twice, 4; 1 and 2 know each other, 3 and 4 lead on to 5, and 6 hangs on 0 alone.
FRIENDS = [(0, 1), (0, 2), (0, 3), (0, 4), (0, 4), (0, 6), (1, 2), (3, 5), (4, 5)]
WEIGHTS = [1.0, 3.0, 0.5, 2.0, 1.0, 0.25, 4.0, 1.0, 2.0]


def friends() -> ArraySource:
    both = np.array(FRIENDS + [pair[::-1] for pair in FRIENDS]).T
    return homogeneous_source(both, 7, edge_arrays={"weight": np.array(WEIGHTS * 2)})


def probabilities(before: int, at: int, p: float, q: float, weights: list[float]) -> dict[int, float]:
    """Node2vec's: of each node after ``before`` and ``at``."""
    known = {0: {1, 2, 3, 4, 6}, 1: {0, 2}, 2: {0, 1}, 3: {0, 5}, 4: {0, 5}, 5: {3, 4}, 6: {0}}
    found: Counter[int] = Counter()
    for pair, weight in zip(FRIENDS, weights, strict=True):
        if at in pair:
            to = sum(pair) - at
            found[to] += weight * (1 / p if to == before else 1.0 if to in known[before] else 1 / q)  # type: ignore[assignment]
    return {to: chance / sum(found.values()) for to, chance in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize("weight", [None, "weight"])
@pytest.mark.parametrize(("p", "q"), [(1, 1), (0.25, 4), (4, 0.25), (50, 3), (0.02, 0.5), (300, 200)])
def test_steps_have_exactly_node2vecs_probabilities(p: float, q: float, weight: str | None) -> None:
    """Also where all tries of a step fail, as they do at nodes whose only way leads back: of 64 tries with a chance of 1/300."""
    data, number = to_pyg(friends()), 400
    batches = epoch_of(data, sampler=Walks(8, number, p=p, q=q), batch_size=7, seed=3, weight=weight)
    ids = np.concatenate([batch.n_id[batch.walks].numpy() for batch in batches])
    counts: dict[tuple[int, int], Counter[int]] = {}
    for before, at, to in np.concatenate([ids[:, h : h + 3] for h in range(7)]).tolist():
        counts.setdefault((before, at), Counter())[to] += 1
    weights = WEIGHTS if weight else [1.0] * len(WEIGHTS)
    statistic, degrees = 0.0, 0
    for (before, at), found in counts.items():
        wanted = probabilities(before, at, p, q, weights)
        assert set(found) <= set(wanted)
        total = sum(found.values())
        if min(wanted.values()) * total >= 5:
            statistic += sum((found[to] - share * total) ** 2 / (share * total) for to, share in wanted.items())
            degrees += len(wanted) - 1
    assert degrees >= 10
    check_statistic(statistic, degrees)


def test_biases_of_distance_follow_edges_in_the_direction_of_steps() -> None:
    """0 leads to 1, 1 to 2 and 3, and 0 to 2: node 2 is near, whatever leads back to 0."""
    data = Data(edge_index=torch.tensor([[0, 1, 1, 0, 3], [1, 2, 3, 2, 0]]), num_nodes=4)
    (batch,) = epoch_of(data, sampler=Walks(2, 400, q=1e6), input_nodes=np.array([0]), edge_dir="out")
    ids = batch.n_id[batch.walks]
    assert set(map(tuple, ids[ids[:, 1] == 1].tolist())) == {(0, 1, 2)}


@pytest.mark.parametrize("weight", [None, "weight"])
def test_steps_of_which_nearly_all_tries_fail(weight: str | None) -> None:
    numbers = {"length": 6, "per_node": 5, "p": 1000, "q": 300}
    check(friends(), "node", list(range(7)), numbers, batch_size=4, seed=1, weight=weight, edge_dir="in")


def test_more_edges_than_are_looked_at_together() -> None:
    """Each of 300 nodes leads to each of 300 others: none is near, and 12,000 walks look at 600 edges each."""
    left, right = torch.arange(300).repeat_interleave(300), torch.arange(300).repeat(300) + 300
    data = Data(edge_index=torch.stack([torch.cat([left, right]), torch.cat([right, left])]), num_nodes=600)
    (batch,) = epoch_of(data, sampler=Walks(2, 20, p=1000, q=1000), batch_size=600)
    ids = batch.n_id[batch.walks]
    assert ((ids[:, 0] < 300) == (ids[:, 2] < 300)).all() and ((ids[:, 0] < 300) != (ids[:, 1] < 300)).all()
    check_counts(np.bincount(ids[:, 2].numpy(), minlength=600))


def test_walks_end_where_nothing_leads_on() -> None:
    data = Data(edge_index=torch.tensor([[0, 1], [1, 2]]), num_nodes=4)
    (batch,) = epoch_of(data, sampler=Walks(3, p=2, num_negatives=1), batch_size=4, edge_dir="out")
    assert batch.walks.tolist() == [[0, 1, 2, -1], [1, 2, -1, -1], [2, -1, -1, -1], [3, -1, -1, -1]]
    assert batch.neg_walks.shape == (4, 4) and int(batch.neg_walks.min()) >= 0
    assert batch.num_edges == 0 and "edge_index" not in batch and "num_sampled_nodes" not in batch


def test_an_end_of_weight_zero_is_one() -> None:
    data = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2, weight=torch.tensor([0.0, 1.0]))
    (batch,) = epoch_of(data, sampler=Walks(2, q=3), batch_size=2, edge_dir="out", weight="weight")
    assert batch.walks.tolist() == [[0, -1, -1], [1, 0, -1]]


def test_negatives_are_drawn_from_all_nodes_alike() -> None:
    (batch,) = epoch_of(to_pyg(friends()), sampler=Walks(10, 20, num_negatives=5), batch_size=7)
    assert batch.neg_walks[:, 0].tolist() == list(range(7)) * 100
    check_counts(np.bincount(batch.n_id[batch.neg_walks[:, 1:]].reshape(-1).numpy(), minlength=7))


WRITES, ABOUT, REV_WRITES = ("author", "writes", "paper"), ("paper", "about", "field"), ("paper", "rev_writes", "author")


def library() -> HeteroData:
    data = HeteroData()
    data["author"].num_nodes, data["paper"].num_nodes, data["field"].num_nodes, data["shelf"].num_nodes = 3, 2, 2, 0
    data[WRITES].edge_index = torch.tensor([[0, 1, 1, 2], [0, 0, 1, 1]])
    data[REV_WRITES].edge_index = data[WRITES].edge_index.flip(0)
    data[ABOUT].edge_index = torch.tensor([[0, 1], [1, 0]])
    data["paper", "stands_on", "shelf"].edge_index = torch.empty(2, 0, dtype=torch.long)
    return data


def test_a_metapath_is_followed_in_turn_and_from_the_first_type_again() -> None:
    options = {"input_nodes": "author", "batch_size": 3, "edge_dir": "out"}
    (batch,) = epoch_of(library(), sampler=Walks(4, 30, metapath=[WRITES, REV_WRITES], num_negatives=1), **options)
    types = ["author", "paper", "author", "paper", "author"]
    ids = torch.stack([batch[t].n_id[batch["author"].walks[:, h]] for h, t in enumerate(types)], dim=1).tolist()
    edges = set(zip(*library()[WRITES].edge_index.tolist(), strict=True))
    assert all({(a, b), (c, b), (c, d), (e, d)} <= edges for a, b, c, d, e in ids)
    assert not batch.edge_types and batch["field"].num_nodes == 0
    (batch,) = epoch_of(library(), sampler=Walks(2, metapath=[WRITES, ABOUT]), **options)
    assert batch["field"].n_id.tolist() == [*dict.fromkeys(batch["field"].n_id[batch["author"].walks[:, 2]].tolist())]


@pytest.mark.parametrize(
    ("sampler", "options", "message"),
    [
        (Walks(2), {}, "metapath is missing: the graph has several types"),
        (Walks(2, metapath=[("author", "reads", "paper")]), {}, "unknown edge types"),
        (Walks(2, metapath=[]), {}, "metapath has no edge type"),
        (Walks(3, metapath=[WRITES, ABOUT]), {}, "leads to 'field' nodes, and the next one.*longer than the metapath"),
        (Walks(2, metapath=[WRITES, ABOUT]), {"edge_dir": "in"}, "edge_dir='out' walks along edges the other way"),
        (Walks(2, metapath=[REV_WRITES, WRITES]), {}, "walks start from 'paper' nodes, and the inputs are 'author' nodes"),
        (Walks(2, p=2, metapath=[WRITES, REV_WRITES]), {}, "p=2 and q=1 ask for edges between the nodes of a walk"),
        (Walks(2, metapath=[WRITES, ABOUT]), {"replace": True}, "do not go together"),
        (Walks(2, metapath=[WRITES, ABOUT]), {"backend": OnDevice("cpu")}, r"the plan's sampler is walks.*InProcess\(\)"),
    ],
)
def test_what_does_not_go_with_a_graph(sampler: Walks, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=f"(?s){message}"):
        epoch_of(library(), **{"sampler": sampler, "input_nodes": "author", "edge_dir": "out", **options})


def test_walks_start_from_nodes() -> None:
    data = to_pyg(friends())
    with pytest.raises(PlanError, match="walks start from 'node' nodes, and the inputs are links"):
        epoch_of(data, sampler=Walks(2), edge_label_index=data.edge_index[:, :3])
    data.time = torch.arange(7)
    with pytest.raises(PlanError, match="Walks.* does not follow it"):
        epoch_of(data, sampler=Walks(2), time_attr="time")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"length": 0}, "length must be a whole number of at least 1"),
        ({"length": 2, "per_node": 1.5}, "per_node must be a whole number"),
        ({"length": 2, "num_negatives": -1}, "num_negatives must be a whole number of at least 0"),
        ({"length": 2, "p": 0}, "p must be a number between 1e-06 and 1e\\+06"),
        ({"length": 2, "q": float("nan")}, "q must be a number between"),
        ({"length": 2, "metapath": "author"}, "metapath must be a list"),
        ({"length": 2, "metapath": [("a", "b")]}, "metapath must be a list of edge types"),
    ],
)
def test_wrong_numbers(words: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Walks(**words)


def test_batches_that_cannot_be() -> None:
    with pytest.raises(MemoryLimitError, match="(?s)a batch's walks need .* lower batch_size"):
        epoch_of(to_pyg(friends()), sampler=Walks(1 << 20, 1 << 20))
    sampler = Walks(1, metapath=[("paper", "stands_on", "shelf")], num_negatives=1)
    with pytest.raises(SamplingError, match="there is no 'shelf' node"):
        epoch_of(library(), sampler=sampler, input_nodes="paper", edge_dir="out")


def test_a_plan_can_be_written_down() -> None:
    with GraphLoader.from_pyg(to_pyg(friends()), sampler=Walks(3, 2, p=0.5, num_negatives=1), batch_size=2, progress=False) as loader:
        plan = LoaderPlan.from_json(json.loads(json.dumps(loader.plan.to_json())))
        assert plan == loader.plan
        assert "walks of 3 steps, 2 from each node, p 0.5, q 1, 1 negative" in repr(loader)


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("weight", [None, "weight"])
def test_parts_on_several_hosts(tmp_path: Path, edge_dir: Any, weight: str | None) -> None:
    """A round of tries asks each host twice, and what is near is known to the host of the node before: batches are those of one host."""
    rng = np.random.default_rng(6)
    arrays = {"weight": rng.integers(0, 5, 400)}
    source = homogeneous_source(random_edges(rng, 60, 60, 400), 60, edge_arrays=arrays, x=rng.random((60, 2)).astype(np.float32))
    store = stored(source, tmp_path / "store", BuildOptions(3, "random", edge_dir=edge_dir, weight="weight"))
    sampling = WalkSampling(5, 2, 8.0, 0.3, 1, metapath=(("node", "to", "node"),), edge_dir=edge_dir, weight=weight)
    graph, placement = store.arrays(), {0: (0,), 1: (1,), 2: (2,)}
    one = sampler_on(graph, sampling)
    for sampler, _ in spread_samplers(graph, sampling, placement, owners=OwnersOverTheWire).values():
        for key in range(4):
            ids = np.random.default_rng(key).integers(0, 60, 0 if key == 1 else 6)
            request = request_of(key, ids)
            assert sampled(sampler, request) == sampled(one, request)


@pytest.mark.parametrize("name", GOLDEN_WALKS)
def test_golden_digest(name: str) -> None:
    """Batches do not change from one version to the next, nor from one machine to another."""
    numbers, options = GOLDEN_WALKS[name]
    batches = golden_epoch({"sampler": Walks(**numbers), **options})
    for batch, wanted in zip(
        batches, expected(golden_source(), "user", GOLDEN_INPUT_NODES, **GOLDEN_OPTIONS, **numbers, **options), strict=True
    ):
        same(batch, wanted, any_order=True)
    assert {name: digest(batches)} == {name: json.loads((Path(__file__).parent / "golden.json").read_text()).get(name)}


def test_every_array_of_nodes_comes_along() -> None:
    data = to_pyg(friends())
    data.x, data.walks = torch.randn(7, 3), torch.arange(7)  # an array of this name gives way
    (batch,) = epoch_of(data, sampler=Walks(2), batch_size=7)
    assert torch.equal(batch.x, data.x[batch.n_id]) and batch.walks.shape == (7, 3)
    assert [name for name, _ in items(batch)].count("walks") == 1


def test_padding_leaves_walks_as_they_are() -> None:
    words = {"sampler": Walks(3, 2, num_negatives=1), "batch_size": 3}
    padded = epoch_of(to_pyg(friends()), pad={"node": 20}, **words)
    for batch, wanted in zip(padded, epoch_of(to_pyg(friends()), **words), strict=True):
        assert batch.num_nodes == 20 and batch.walks.equal(wanted.walks) and batch.neg_walks.equal(wanted.neg_walks)
        same(unpad(batch), wanted)


def test_epochs_go_on_and_are_dealt_to_ranks() -> None:
    words = {"sampler": Walks(3, 2, p=2), "batch_size": 2, "shuffle": True}
    with GraphLoader.from_pyg(to_pyg(friends()), progress=False, **words) as loader:
        iterator = iter(loader)
        first, state = next(iterator), loader.state_dict()
        rest = list(iterator)
        loader.load_state_dict(state)
        for batch, wanted in zip(loader, rest, strict=True):
            same(batch, wanted)
    ranks = [epoch_of(to_pyg(friends()), **words, rank=rank, world_size=2) for rank in (0, 1)]
    for batch, wanted in zip([own for step in zip(*ranks, strict=True) for own in step], [first, *rest], strict=True):
        batch.pop("seed_mask", None)
        same(batch, wanted, any_order=True)


def train(loader: GraphLoader, ctx: Any) -> None:
    for _ in ctx.epochs(1):
        for _ in loader:
            pass


@pytest.mark.slow(seconds=30)
@pytest.mark.timeout(600)
def test_a_job_of_walks_is_proved(tmp_path: Path) -> None:
    """Its batches have nothing to convolve along, so it brings its own training."""
    stored(friends(), tmp_path / "store", BuildOptions(2, "random"))
    with GraphLoader.from_store(tmp_path / "store", sampler=Walks(3, 2, p=2), batch_size=3, progress=False) as loader:
        with pytest.raises(PlanError, match="batches of walks have no edges to convolve along"):
            loader.export(tmp_path / "none", launcher="torchrun")
        loader.export(tmp_path / "job", launcher="torchrun", nodes=2, train=train)
    report = verify_export(tmp_path / "job", progress=False)
    assert report.equal and report.batches >= 3

"""Batches of clusters and of GraphSAINT: bit for bit as specified, drawn as often as they should be, and refused with a way out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData

from gnnkit import Clusters, Colocated, GraphLoader, GraphStore, InProcess, LoaderPlan, OnDevice, Saint, partition
from gnnkit.errors import PlanError
from tests import reference_subgraphs as reference
from tests.helpers.batches import digest, expected_batch, same, to_pyg, to_reference
from tests.helpers.chi_square import check_counts
from tests.helpers.graphs import ArraySource, homogeneous_source, random_edges
from tests.helpers.kind_batches import epoch_of
from tests.helpers.subgraphs import GOLDEN_SUBGRAPHS, golden_homogeneous

Batches = list[Data | HeteroData]


def expected(source: ArraySource, sampler: Clusters | Saint, ids: list[int] | None, epoch: int, **options: Any) -> Batches:
    """What the reference says."""
    name, graph, nodes = f"node/node/{'all' if ids is None else 'ids'}", to_reference(source), ids
    how = {"seed": options["seed"], "name": name, "epoch": epoch, "edge_dir": options["edge_dir"]}
    nodes = list(range(source.schema.num_nodes)) if ids is None else ids
    if isinstance(sampler, Clusters):
        sizes = sampler.num_clusters, sampler.clusters_per_batch
        sampled = reference.clusters_epoch(graph, nodes, list(sampler.partition), *sizes, shuffle=options["shuffle"], **how)
    else:
        assert sampler.num_steps is not None
        draws = sampler.roots, sampler.walk_length, sampler.num_steps, options["batch_size"]
        sampled = reference.saint_epoch(graph, nodes, *draws, **how)
    batches = [expected_batch(source, batch, "node", options["edge_dir"], True) for batch in sampled]
    for batch in batches:
        del batch.num_sampled_nodes, batch.num_sampled_edges
    if isinstance(sampler, Saint) and sampler.sample_coverage:
        _add_norms(batches, source, sampler, graph, nodes, draws, how)
    return batches


def _add_norms(batches: Any, source: ArraySource, sampler: Saint, graph: Any, nodes: list[int], draws: Any, how: dict[str, Any]) -> None:
    counted: list[Any] = []
    size, steps, number = source.schema.num_nodes, sampler.num_steps, 0
    assert steps
    while sum(len(batch["nodes"]["node"]["n_id"]) for batch in counted) < size * sampler.sample_coverage:
        if number % steps == 0:
            epoch = reference.saint_epoch(graph, nodes, *draws, **{**how, "epoch": (1 << 32) + number // steps})
        counted.append(epoch[number % steps])
        number += 1
    node_norm, edge_norm = reference.saint_norms(counted, size, source.schema.num_edges)
    for batch in batches:
        batch.node_norm = torch.tensor([node_norm(v) for v in batch.n_id.tolist()], dtype=torch.float64).float()
        targets = batch.n_id[batch.edge_index[1]].tolist()
        values = [edge_norm(e, v) for e, v in zip(batch.e_id.tolist(), targets, strict=True)]
        batch.edge_norm = torch.tensor(values, dtype=torch.float64).float()


def check(source: ArraySource, sampler: Clusters | Saint, ids: list[int] | None, epoch: int = 0, **options: Any) -> Batches:
    """Compares an epoch with the reference, and returns its batches."""
    input_nodes = None if ids is None else np.array(ids, np.int64)
    with GraphLoader.from_pyg(
        to_pyg(source), sampler=sampler, input_nodes=input_nodes, with_edge=True, progress=False, **options
    ) as loader:
        loader.set_epoch(epoch)
        got = list(loader)
    for batch, wanted in zip(got, expected(source, sampler, ids, epoch, **{"edge_dir": "in", **options}), strict=True):
        same(batch, wanted, any_order=True)
    return got


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """A random graph, a sampler, inputs and options."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    size = int(rng.integers(1, 40))
    source = homogeneous_source(random_edges(rng, size, size, int(rng.integers(1, 120))), size, x=rng.standard_normal((size, 2)))
    num_clusters = int(rng.integers(1, size + 1))
    options = {
        "seed": draw(st.integers(0, (1 << 64) - 1)),
        "edge_dir": draw(st.sampled_from(["in", "out"])),
        "epoch": draw(st.integers(0, 9)),
    }
    sampler: Clusters | Saint
    if draw(st.booleans()):
        sampler = Clusters(num_clusters, int(rng.integers(1, num_clusters + 1)), rng.integers(0, num_clusters, size))
        options["shuffle"] = draw(st.booleans())
    else:
        roots = draw(st.sampled_from(["nodes", "edges", "walks"]))
        sampler = Saint(roots, draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.sampled_from([0, 3])))
        options["batch_size"] = draw(st.integers(1, 9))
    ids = draw(st.none() | st.lists(st.integers(0, size - 1), max_size=20, unique=isinstance(sampler, Clusters)))
    return {"source": source, "sampler": sampler, "ids": ids, **options}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(cases())
def test_random_graphs(case: dict[str, Any]) -> None:
    check(**case)


@pytest.mark.parametrize("name", GOLDEN_SUBGRAPHS)
def test_golden_digest(name: str) -> None:
    sampler, options = GOLDEN_SUBGRAPHS[name]
    batches = check(golden_homogeneous(), sampler, list(range(0, 300, 2)), **options)
    assert {name: digest(batches)} == {name: json.loads((Path(__file__).parent / "golden.json").read_text()).get(name)}


def ring(size: int, **arrays: Any) -> Data:
    """Nodes in a ring, each edge both ways."""
    there = torch.stack([torch.arange(size), (torch.arange(size) + 1) % size])
    return Data(edge_index=torch.cat([there, there.flip(0)], 1), num_nodes=size, **arrays)


def degrees(data: Data) -> Any:
    return torch.bincount(data.edge_index[1], minlength=data.num_nodes).double().numpy()


def star(leaves: int) -> Data:
    """A hub with leaves, each edge both ways, and a node without edges."""
    there = torch.stack([torch.zeros(leaves, dtype=torch.long), torch.arange(1, leaves + 1)])
    return Data(edge_index=torch.cat([there, there.flip(0)], 1), num_nodes=leaves + 2)


def test_groups_of_clusters_are_drawn_evenly() -> None:
    """Of four clusters, two a batch, each of the six pairs is as likely to be together in the first batch."""
    counts = np.zeros((4, 4))
    with GraphLoader.from_pyg(ring(4), sampler=Clusters(4, 2, [0, 1, 2, 3]), input_nodes=None, shuffle=True, progress=False) as loader:
        for _ in range(1200):
            first, *_ = loader
            counts[tuple(sorted(first.n_id.tolist()))] += 1
    check_counts(counts[np.triu_indices(4, 1)])


def test_nodes_are_drawn_by_their_degrees() -> None:
    batches = epoch_of(star(4), sampler=Saint("nodes", num_steps=2000), input_nodes=None, batch_size=1)
    counts = np.bincount([int(batch.n_id) for batch in batches], minlength=6)
    check_counts(counts, degrees(star(4)) / 8)


def test_edges_are_drawn_by_the_degrees_of_their_ends() -> None:
    """As in the paper: in proportion to 1 / degree(u) + 1 / degree(v)."""
    pairs = np.array([[0, 1], [0, 2], [0, 3], [3, 4]])
    data = Data(edge_index=torch.tensor(np.concatenate([pairs, pairs[:, ::-1]]).T.copy()), num_nodes=6)
    weight = (1 / degrees(data)[pairs]).sum(1)
    counts = dict.fromkeys(map(tuple, pairs.tolist()), 0)
    batches = epoch_of(data, sampler=Saint("edges", num_steps=3000), input_nodes=None, batch_size=1)
    for batch in batches:
        if batch.num_nodes:  # the root is not the node without edges
            counts[tuple(batch.n_id.tolist())] += 1
    check_counts(list(counts.values()), weight / weight.sum())


def test_walks_start_evenly_and_go_on_evenly() -> None:
    """Of two steps on a ring of five: back to the root, or to one of the two nodes two steps away."""
    batches = epoch_of(ring(5), sampler=Saint("walks", 2, num_steps=4000), input_nodes=None, batch_size=1)
    visited = np.bincount(torch.cat([batch.n_id for batch in batches]).numpy(), minlength=5)
    sizes = np.bincount([batch.num_nodes for batch in batches], minlength=4)
    check_counts(sizes[2:], [0.5, 0.5])
    assert abs(visited / visited.sum() - 0.2).max() < 0.01


def test_sums_weighed_by_the_norms_are_those_of_the_whole_graph() -> None:
    """The loss over a batch, weighed by node_norm, is on average the mean over all nodes; a sum over neighbours, by edge_norm, the sum."""
    data = ring(40, x=torch.arange(40.0).view(-1, 1))
    batches = epoch_of(data, sampler=Saint("walks", 2, num_steps=1500, sample_coverage=300), input_nodes=None, batch_size=5)
    losses = torch.stack([(batch.node_norm * batch.x[:, 0]).sum() for batch in batches])
    assert abs(losses.mean() - data.x.mean()) < 0.5
    sums, met = torch.zeros(40), torch.zeros(40)
    for batch in batches:
        row, col = batch.edge_index
        sums.index_add_(0, batch.n_id[col], batch.edge_norm * batch.x[row, 0])
        met[batch.n_id] += 1
    whole = torch.zeros(40).index_add_(0, data.edge_index[1], data.x[data.edge_index[0], 0])
    assert (sums / met - whole).abs().max() < 4


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = torch.Generator().manual_seed(0)
    masks = {"train_mask": torch.arange(100) < 60, "val_mask": torch.arange(100) >= 60}
    arrays = {"x": torch.arange(100.0).view(-1, 1), "y": torch.arange(100) % 3, "group": torch.arange(100) // 10}
    data = Data(edge_index=torch.randint(0, 100, (2, 600), generator=draw), num_nodes=100, **arrays, **masks)
    folder = tmp_path_factory.mktemp("subgraphs") / "store"
    partition(data, 2, out=folder, with_edge=True)
    return folder


SAMPLERS = {
    "clusters": {"sampler": Clusters(10, 3)},
    "saint": {"sampler": Saint("walks", 2, 6, sample_coverage=3), "batch_size": 8},
}


@pytest.fixture(params=SAMPLERS)
def loader(request: pytest.FixtureRequest, store: Path) -> Iterator[GraphLoader]:
    with GraphLoader.from_store(store, progress=False, **SAMPLERS[request.param]) as loader:
        yield loader


def all_same(left: Any, right: Any) -> None:
    for batch, other in zip(left, right, strict=True):
        same(batch, other)


def test_seeds_are_the_input_nodes_of_the_batch(loader: GraphLoader) -> None:
    for batch in loader:
        is_seed = torch.arange(batch.num_nodes) < batch.batch_size
        assert torch.equal(batch.train_mask, is_seed) and torch.equal(batch.input_id, batch.n_id[: batch.batch_size])


def test_every_input_is_in_one_batch_of_an_epoch_of_clusters(store: Path) -> None:
    with GraphLoader.from_store(store, sampler=Clusters(10, 3), remainder="uneven", progress=False) as loader:
        assert len(loader) == 4
        assert sorted(torch.cat([batch.input_id for batch in loader]).tolist()) == list(range(60))


@pytest.mark.slow
@pytest.mark.parametrize("backend", [Colocated(2), GraphStore(1)])
def test_it_resumes_divides_and_is_exported(loader: GraphLoader, backend: Any, tmp_path: Path) -> None:
    wanted = list(loader)
    with loader.with_backend(backend) as other:
        all_same(other, wanted)
        for _, _ in zip(range(2), other, strict=False):
            state = other.state_dict()
    loader.load_state_dict({**state, "epoch": 0})
    all_same(loader, wanted[2:])
    ranks = []
    for rank in range(2):
        with loader.with_backend(InProcess(1), rank=rank, world_size=2) as half:
            ranks.append(list(half))
    all_same([batch for pair in zip(*ranks, strict=True) for batch in pair], wanted)
    loader.plan.save(tmp_path / "plan.json")
    with GraphLoader.from_plan(tmp_path / "plan.json", progress=False) as again:
        assert again.plan == loader.plan
        all_same(again, wanted)
    with loader.for_split("valid") as valid:
        assert valid.plan.sampling == loader.plan.sampling
        assert {int(i) for batch in valid for i in batch.n_id[: batch.batch_size]} <= set(range(60, 100))


def test_its_job_proves_its_batches(loader: GraphLoader, tmp_path: Path) -> None:
    loader.export(tmp_path / "job")
    from gnnkit import verify_export

    verify_export(tmp_path / "job")


def test_padded_and_sampled_around_nodes_of_a_users_own(store: Path) -> None:
    with GraphLoader.from_store(store, pad="bucket", progress=False, **SAMPLERS["saint"]) as loader:
        batch = loader.peek()
        assert len(batch.node_norm) == len(batch.node_mask) and not batch.node_norm[~batch.node_mask].any()
    with GraphLoader.from_store(store, sampler=Clusters(10, 1, "column:group"), progress=False) as loader:
        assert loader.sample([25, 3]).n_id.tolist() == [25, 3, *(v for v in (*range(20, 30), *range(10)) if v not in (25, 3))]
        assert "sampler Clusters, batches 10 an epoch, 1 clusters each" in repr(loader)


@pytest.mark.parametrize("method", ["ldg", "metis", "contiguous", "random", "column:group"])
def test_partitioners_cut_clusters(store: Path, method: str) -> None:
    with GraphLoader.from_store(store, sampler=Clusters(10, 1, method), input_nodes=None, progress=False) as loader:
        sizes = [batch.num_nodes for batch in loader]
        assert sum(sizes) == 100 and len(sizes) == 10 and max(sizes) < 20


def typed() -> HeteroData:
    data = HeteroData()
    data["a"].num_nodes = data["b"].num_nodes = 4
    data["a", "to", "b"].edge_index = torch.zeros(2, 3, dtype=torch.long)
    return data


@pytest.mark.parametrize("sampler", [Clusters(2), Saint()])
def test_typed_graphs_are_refused(sampler: Any) -> None:
    with pytest.raises(PlanError, match=r"(?s)samples homogeneous graphs.*to_homogeneous\(\)"):
        GraphLoader.from_pyg(typed(), sampler=sampler, input_nodes="a", progress=False)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"sampler": Clusters(10, 3), "batch_size": 64}, "batch_size=64, and Clusters"),
    ({"sampler": Clusters(101)}, "num_clusters=101, and the graph has 100 nodes"),
    ({"sampler": Clusters(4, 1, np.zeros(7, int))}, r"clusters \[100\] of all nodes, got shape \[7\]"),
    ({"sampler": Clusters(4, 1, np.full(100, 4))}, "a node has the cluster 4, and num_clusters=4"),
    ({"sampler": Clusters(4, 1, "kmeans")}, "partition must be"),
    ({"sampler": Clusters(4, 1, "column:grup")}, "no array 'grup'; did you mean 'group'"),
    ({"sampler": Clusters(4), "seed_weights": "balanced"}, "seed_weights are given"),
    ({"sampler": Clusters(4), "edge_label_index": [[0], [1]]}, "batches are to start from links"),
    ({"sampler": Saint(), "shuffle": False}, "Saint.* draws anew for every batch"),
    ({"sampler": Saint(sample_coverage=2), "with_edge": False}, "counts edges by their ids"),
    ({"sampler": Saint(), "backend": OnDevice("cpu")}, r"InProcess\(\), Colocated\(\) and GraphStore\(\) have it"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=str)
def test_what_cannot_be_followed_is_refused(store: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        GraphLoader.from_store(store, progress=False, **options)


@pytest.mark.parametrize(
    "words",
    [
        lambda: Clusters(0),
        lambda: Clusters(3, 4),
        lambda: Saint("roots"),  # type: ignore[arg-type]
        lambda: Saint(walk_length=0),
        lambda: Saint(num_steps=0),
        lambda: Saint(sample_coverage=-1),
    ],
)
def test_wrong_numbers(words: Any) -> None:
    with pytest.raises(PlanError):
        words()


def test_plans_that_were_edited_are_checked(loader: GraphLoader, tmp_path: Path) -> None:
    for name, value in {"clusters_per_batch": 11, "walk_length": 0, "roots": "all"}.items():
        plan = loader.plan.to_json()
        if name in plan["sampling"]:
            with pytest.raises(PlanError):
                LoaderPlan.from_json({**plan, "sampling": {**plan["sampling"], name: value}})

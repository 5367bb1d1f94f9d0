"""``gnnkit.pyg``: what PyG documents of its loaders, argument by argument, and what cannot be followed."""

from __future__ import annotations

import copy
import gc
import inspect
import json
import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric import loader as theirs
from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData, TensorAttr
from torch_geometric.data.graph_store import EdgeAttr
from torch_geometric.nn import GraphSAGE
from torch_geometric.sampler import NegativeSampling
from torch_geometric.sampler.base import NumNeighbors, SubgraphType

import gnnkit
from gnnkit import Colocated, InProcess
from gnnkit.errors import PlanError
from gnnkit.pyg import HGTLoader, LinkNeighborLoader, NeighborLoader, NeighborSampler, ShaDowKHopSampler
from tests.helpers.machine import ROOT
from tests.helpers.pyg_batches import flatten
from tests.pyg.graphs import LIKED, LIKES, plain, typed


def same(left: Any, right: Any) -> bool:
    one, other = flatten(left), flatten(right)
    return list(one) == list(other) and all(
        value.equal(other[key]) if isinstance(value, torch.Tensor) else value == other[key] for key, value in one.items()
    )


# The face ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["NeighborLoader", "LinkNeighborLoader", "HGTLoader", "ShaDowKHopSampler"])
def test_signatures_are_those_of_the_installed_pyg(name: str) -> None:
    mine, other = (inspect.signature(getattr(module, name)).parameters for module in (gnnkit.pyg, theirs))
    # PyG's take it among others, and Lightning gives a loader back only what its signature names.
    named = [(p.name, p.kind, p.default) for p in mine.values() if p.name != "input_id"]
    assert named == [(p.name, p.kind, p.default) for p in other.values()]
    assert issubclass(getattr(gnnkit.pyg, name), getattr(theirs, name))


@pytest.mark.slow
def test_importing_gnnkit_does_not_import_pyg() -> None:
    code = "import sys, gnnkit; before = 'torch_geometric' in sys.modules; gnnkit.pyg.NeighborLoader; assert not before"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr


def test_attributes_are_those_that_pygs_code_asks_for() -> None:
    data, identity = plain(), lambda batch: batch
    loader = NeighborLoader(data, [3, 2], torch.arange(7), batch_size=2, drop_last=True, transform=identity, disjoint=True)
    assert isinstance(loader, torch.utils.data.DataLoader) and isinstance(loader, theirs.NodeLoader)
    assert loader.data is data and loader.transform is identity and loader.input_nodes.equal(torch.arange(7))
    assert repr(loader) == str(loader) == "NeighborLoader()"
    assert (len(loader), len(loader.dataset), loader.batch_size, loader.drop_last, loader.num_workers) == (3, 7, 2, True, 0)
    sampler = loader.node_sampler
    assert len(sampler.num_neighbors) == 2 and sampler.num_neighbors.values == [3, 2]
    assert (sampler.disjoint, sampler.replace, sampler.subgraph_type) == (True, False, SubgraphType.directional)
    assert loader.filter_per_worker is True and loader.custom_cls is None and loader.transform_sampler_output is None
    links = LinkNeighborLoader(data, [1], neg_sampling="binary")
    assert repr(links) == "LinkNeighborLoader()" and len(links.dataset) == len(links) == 300 and links.neg_sampling.is_binary()
    assert len(links.link_sampler.num_neighbors) == 1 and isinstance(links, theirs.LinkLoader)
    for name in ("enable_cpu_affinity", "enable_multithreading", "enable_memory_log"):
        with pytest.raises(PlanError, match="not DataLoader's workers"):
            getattr(loader, name)()


def test_the_graph_loader_underneath_is_there() -> None:
    loader = NeighborLoader(plain(), [3], batch_size=10)
    batches = list(loader)
    assert isinstance(loader.graph_loader, gnnkit.GraphLoader) and loader.graph_loader.stats().batches == len(batches) == 6
    assert len(iter(loader)) == 6


@pytest.mark.parametrize("cache", [False, True])
def test_inference_of_pygs_models_takes_it(cache: bool) -> None:
    data = plain()
    model = GraphSAGE(1, 4, num_layers=2).eval()
    loader = NeighborLoader(data, [-1], batch_size=16)
    with torch.no_grad():
        assert torch.allclose(model.inference(loader, cache=cache), model(data.x, data.edge_index), atol=1e-4)


def test_pygs_wrappers_take_it() -> None:
    loader = NeighborLoader(plain(), [-1], batch_size=20)
    first, again = list(theirs.CachedLoader(loader)), list(theirs.PrefetchLoader(loader))
    assert all(same(left, right) for left, right in zip(first, again, strict=True))
    zipped = list(theirs.ZipLoader([loader, NeighborLoader(plain(), [2], torch.arange(40))], filter_per_worker=False, batch_size=20))
    assert [(left.batch_size, right.batch_size) for left, right in zipped] == [(20, 20), (20, 20)]


def test_whoever_builds_a_dataloader_of_its_parts_gets_its_batches() -> None:
    """As accelerate does."""
    loader = NeighborLoader(plain(), [2], torch.arange(20, 60), batch_size=7)
    rebuilt = torch.utils.data.DataLoader(loader.dataset, batch_size=8, shuffle=True, collate_fn=loader.collate_fn)
    batches = list(rebuilt)
    assert [batch.batch_size for batch in batches] == [8] * 5
    assert sorted(torch.cat([batch.n_id[:8] for batch in batches]).tolist()) == list(range(20, 60))


# Batches of some inputs ------------------------------------------------------------------------------------------------------


def test_calling_it_gives_the_batch_of_some_inputs() -> None:
    loader = NeighborLoader(plain(), [-1], torch.tensor([9, 4, 7]), batch_size=2, drop_last=True)
    batch = loader([2, 0])
    assert batch.n_id[:2].tolist() == [7, 9] and batch.input_id.tolist() == [2, 0] and batch.batch_size == 2
    assert same(loader(torch.tensor([True, False, True])), loader([0, 2])) and same(loader([-1]), loader([2]))
    assert same(loader.collate_fn([1]), loader([1])) and same(loader.filter_fn(batch), batch)
    with pytest.raises(PlanError, match="3 inputs"):
        loader([3])
    drawn = NeighborLoader(plain(), [2, 2], batch_size=9)
    assert len({tuple(drawn([0, 1, 2]).n_id.tolist()) for _ in range(8)}) > 1


def test_calling_it_follows_times_and_labels() -> None:
    data = plain(time=torch.arange(60))
    nodes = NeighborLoader(data, [-1], torch.tensor([50, 40]), torch.tensor([30, 20]), time_attr="time", batch_size=2)
    assert nodes([1]).seed_time.tolist() == [20] and (nodes([1]).time[1:] <= 20).all()
    links = LinkNeighborLoader(data, [1], torch.arange(8).view(2, 4), torch.tensor([0, 1, 2, 3]), neg_sampling="binary", batch_size=4)
    batch = links([1, 3])
    assert batch.input_id.tolist() == [1, 3] and batch.edge_label.tolist() == [2, 4, 0, 0]
    assert batch.n_id[batch.edge_label_index[:, :2]].tolist() == [[1, 3], [5, 7]]


# DataLoader's arguments ------------------------------------------------------------------------------------------------------


def test_one_input_makes_a_batch_where_nobody_says_how_many() -> None:
    assert [batch.n_id[0].item() for batch in NeighborLoader(plain(), [1], [3, 9, 3])] == [3, 9, 3]


def test_shuffle_has_every_input_once_in_a_new_order() -> None:
    loader = NeighborLoader(plain(), [1], batch_size=7, shuffle=True)
    epochs = [torch.cat([batch.input_id for batch in loader]).tolist() for _ in range(3)]
    assert all(sorted(epoch) == list(range(60)) for epoch in epochs) and len(set(map(tuple, epochs))) == 3


def test_torchs_seed_decides_on_draws() -> None:
    def epoch(seed: int, generator: torch.Generator | None = None) -> list[Any]:
        torch.manual_seed(seed)
        return list(NeighborLoader(plain(), [2, 2], batch_size=30, shuffle=True, generator=generator))

    first, again, other = epoch(3), epoch(3), epoch(4)
    assert all(map(same, first, again)) and not any(map(same, first, other))
    generators = [torch.Generator().manual_seed(5) for _ in range(2)]
    assert all(map(same, epoch(1, generators[0]), epoch(2, generators[1])))


def test_an_order_of_ones_own() -> None:
    class Order(torch.utils.data.Sampler[int]):
        orders = [[4, 0, 4], [1, 2, 3]]

        def __iter__(self) -> Any:
            return iter(self.orders.pop(0))

        def __len__(self) -> int:
            return 3

    loader = NeighborLoader(plain(), [1], torch.arange(10, 20), batch_size=2, sampler=Order())
    assert len(loader) == 2
    assert [batch.n_id[: batch.batch_size].tolist() for batch in loader] == [[14, 10], [14]]
    assert [batch.input_id.tolist() for batch in loader] == [[1, 2], [3]]
    share = torch.utils.data.DistributedSampler(range(300), num_replicas=3, rank=1, shuffle=False)
    links = LinkNeighborLoader(plain(), [1], batch_size=50, sampler=share)
    assert torch.cat([batch.input_id for batch in links]).tolist() == list(range(1, 300, 3))


@pytest.mark.parametrize("batches", [[[4, 0], [3, 3], [1]], [[1, 2, 3], [0], [5, 4], [6, 7], [8]], []])
def test_batches_of_ones_own(batches: list[list[int]]) -> None:
    nodes = NeighborLoader(plain(), [1], torch.arange(10, 20), batch_sampler=batches)
    links = LinkNeighborLoader(plain(), [1], batch_sampler=batches)
    assert len(nodes) == len(batches)
    for _ in range(2):
        assert [batch.n_id[: batch.batch_size].tolist() for batch in nodes] == [[10 + place for place in batch] for batch in batches]
        assert [batch.input_id.tolist() for batch in links] == batches


def ids(batches: Iterable[Any]) -> list[int]:
    return torch.cat([batch.input_id for batch in batches]).tolist()


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.slow(seconds=15))])
@pytest.mark.parametrize("way", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))], ids=["deepcopy", "pickle"])
def test_loaders_travel(way: Any, num_workers: int) -> None:
    """With the position of their epochs, their transform and what was added to their data."""
    data, typed_data = plain(), typed()
    loaders = [
        NeighborLoader(data, [2], batch_size=25, shuffle=True, num_workers=num_workers, transform=_numbered),
        LinkNeighborLoader(data, [2], neg_sampling="binary", batch_size=100, num_workers=num_workers, transform=_numbered),
        HGTLoader(typed_data, [4], typed_data.node_types[0], batch_size=9, shuffle=True, num_workers=num_workers, transform=_numbered),
        ShaDowKHopSampler(data, 1, 2, batch_size=25, num_workers=num_workers),
    ]
    for loader in loaders:
        list(loader)
        loader.data.added = torch.ones(3)
        other = way(loader)
        assert other.data is not loader.data and len(other) == len(loader)
        first, again = list(other), list(loader)
        assert len(first) == len(again) and all(map(same, first, again)), type(loader)
        assert all("added" in batch for batch in first)
        if loader.transform is not None:
            assert all(batch.numbered == 1 for batch in first)
        loader.graph_loader.close()
        other.graph_loader.close()


def _numbered(batch: Any) -> Any:
    batch.numbered = 1
    return batch


FORKS = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


@FORKS
@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.slow(seconds=15))])
def test_workers_that_a_wrapper_starts_open_the_loader_again(num_workers: int) -> None:
    """Forked ones; each draws otherwise, and in each epoch."""
    data = plain()
    nodes = NeighborLoader(data, [2], batch_size=5, num_workers=num_workers)
    links = LinkNeighborLoader(data, [2], batch_size=50, num_workers=num_workers)
    roots = ShaDowKHopSampler(data, 1, -1, batch_size=5, num_workers=num_workers)
    beside = torch.utils.data.DataLoader([*range(20)] * 2, batch_size=20, collate_fn=nodes, num_workers=2)
    drawn = [tuple(batch.n_id.tolist()) for _ in range(3) for batch in beside]
    assert all(batch[:20] == tuple(range(20)) for batch in drawn) and len(set(drawn)) == 6
    assert ids(torch.utils.data.DataLoader(range(40), batch_size=9, collate_fn=links, num_workers=2)) == list(range(40))
    shown = torch.utils.data.DataLoader(roots.dataset, batch_size=10, collate_fn=roots.collate_fn, num_workers=1)
    assert all(map(same, shown, ShaDowKHopSampler(data, 1, -1, batch_size=10)))
    zipped = theirs.ZipLoader([nodes, NeighborLoader(data, [2], torch.arange(40))], batch_size=20, num_workers=1)
    assert [(left.batch_size, right.batch_size) for left, right in zipped] == [(20, 20), (20, 20)]
    assert ids(nodes) == list(range(60)), "this process's own is as it was"
    nodes.graph_loader.close()
    links.graph_loader.close()
    roots.graph_loader.close()


def test_workers_are_processes_and_give_the_same_batches() -> None:
    data, batches = plain(x2=np.arange(60)), []
    for num_workers in (0, 2):
        torch.manual_seed(1)
        options: dict[str, Any] = {"persistent_workers": True, "prefetch_factor": 3, "timeout": 50} if num_workers else {}
        loader = NeighborLoader(data, [2, 2], batch_size=25, shuffle=True, num_workers=num_workers, filter_per_worker=True, **options)
        batches.append([*loader, loader([3])])
        plan = loader.graph_loader.plan
        assert plan.backend == (Colocated(num_workers=2) if num_workers else InProcess()).to_json()
        assert not num_workers or (plan.runtime.prefetch, plan.runtime.batch_timeout_s) == (4, 50)
    assert all(map(same, *batches))


def test_ranks_are_the_scripts_own_business(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in PyG, a script gives each rank its share; nothing is dealt a second time."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert len(list(NeighborLoader(plain(), [1], torch.arange(10), batch_size=2))) == 5


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (ValueError, {"num_workers": -1}),
        (ValueError, {"prefetch_factor": 2}),
        (ValueError, {"persistent_workers": True}),
        (ValueError, {"shuffle": True, "sampler": [1, 2]}),
        (ValueError, {"batch_size": 0}),
    ],
)
def test_dataloaders_own_errors(error: type[Exception], options: dict[str, Any]) -> None:
    with pytest.raises(error):
        NeighborLoader(plain(), [1], **options)
    with pytest.raises(error):
        torch.utils.data.DataLoader([1, 2], **options)


# What is sampled -------------------------------------------------------------------------------------------------------------


def test_fan_outs_by_edge_type() -> None:
    data = typed()
    fan_outs = {LIKES: [-1, 0], LIKED: [0, 2]}
    batch = next(iter(NeighborLoader(data, fan_outs, "item", batch_size=5)))
    assert batch[LIKES].num_sampled_edges[1] == 0 and batch[LIKED].num_sampled_edges[0] == 0
    rest = NeighborLoader(data, NumNeighbors({LIKES: [-1, 0]}, default=[0, 0]), "item", batch_size=5)
    batch = next(iter(rest))
    assert batch[LIKED].num_edges == 0 and rest.node_sampler.num_neighbors.num_hops == 2
    for wrong, message in (
        ({LIKES: [1]}, "Missing number of neighbors"),
        ({LIKES: [1], LIKED: [1, 1]}, "hops must be the same across all"),
        ({LIKES: [1], LIKED: [1], ("a", "b", "c"): [1]}, "exist in the graph"),
        (5, "one number per hop"),
        ([1.5], "whole number"),
    ):
        with pytest.raises(ValueError, match=message):
            NeighborLoader(data, wrong, "item")  # type: ignore[arg-type]


def test_replace_weights_and_disjoint() -> None:
    data = Data(edge_index=torch.tensor([[1, 2, 3], [0, 0, 0]]), num_nodes=4, w=torch.tensor([0.0, 1.0, 0.0]))
    weighted = NeighborLoader(data, [1], [0] * 20, batch_size=20, disjoint=True, weight_attr="w")
    batch = next(iter(weighted))
    assert set(batch.n_id[20:].tolist()) == {2} and batch.batch.tolist() == [*range(20), *range(20)]
    repeated = next(iter(NeighborLoader(data, [8], [0], replace=True)))
    assert repeated.num_edges == 8 and len(set(repeated.e_id.tolist())) < 8
    with pytest.raises(PlanError, match="nothing"):
        NeighborLoader(data, [1], weight_attr="nothing")


def test_times_of_nodes_and_of_edges() -> None:
    data = plain(time=torch.arange(60), edge_time=torch.arange(300) % 60)
    for batch in NeighborLoader(data, [-1, -1], time_attr="time", temporal_strategy="last", batch_size=15):
        assert (batch.time <= batch.seed_time[batch.batch]).all() and batch.seed_time.equal(batch.time[:15])
    for batch in NeighborLoader(data, [-1], input_time=torch.full((60,), 9), time_attr="edge_time", batch_size=15):
        assert batch.edge_time.max() <= 9
    links = LinkNeighborLoader(data, [-1], time_attr="time", edge_label_time=torch.full((300,), 30), batch_size=60, neg_sampling="triplet")
    for batch in links:
        assert (batch.time[batch.num_sampled_nodes[0] :] <= 30).all() and batch.seed_time.tolist() == [30] * 60
    for given, message in (
        ({"time_attr": "time"}, "'edge_label_time' is not set"),
        ({"edge_label_time": torch.arange(300)}, "'time_attr' is not set"),
    ):
        with pytest.raises(ValueError, match=message):
            LinkNeighborLoader(data, [1], **given)
    with pytest.raises(ValueError, match="time_attr"):
        NeighborLoader(data, [1], input_time=torch.arange(60))


@pytest.mark.parametrize("kind", ["bidirectional", SubgraphType.bidirectional])
def test_bidirectional(kind: Any) -> None:
    data = plain()
    batch = next(iter(NeighborLoader(data, [2], batch_size=9, subgraph_type=kind)))
    assert batch.is_undirected() and batch.e_id.shape == batch.edge_attr.shape and "num_sampled_nodes" not in batch
    hetero = HeteroData()
    hetero["v"].x = data.x
    hetero["v", "v"].edge_index, hetero["v", "v"].edge_attr = data.edge_index, data.edge_attr
    batch = next(iter(NeighborLoader(hetero, [2], "v", batch_size=9, subgraph_type=kind)))
    assert batch.is_undirected() and list(batch["v", "v"].keys()) == ["edge_index"]


def test_hgt() -> None:
    data = typed()
    loader = HGTLoader(data, {"user": [4, 4], "item": [3, 3]}, ("user", torch.arange(30) < 12), batch_size=5)
    assert repr(loader) == "HGTLoader()" and len(loader) == 3
    for batch in loader:
        assert batch["user"].n_id.tolist()[:2] == batch["user"].input_id.tolist()[:2]
        assert batch["item"].num_nodes <= 6 and set(batch["item"].keys()) == {"n_id", "x"}
        for kind in (LIKES, LIKED):
            row, col = batch[kind].edge_index
            pair = torch.stack([batch[kind[0]].n_id[row], batch[kind[2]].n_id[col]])
            assert pair.equal(data[kind].edge_index[:, batch[kind].e_id])
    with pytest.raises(ValueError, match="NeighborLoader"):
        HGTLoader(plain(), [1], "user")  # type: ignore[arg-type]


def test_shadow() -> None:
    data = plain(y=torch.arange(60) * 2, name="a graph")
    loader = ShaDowKHopSampler(data, depth=2, num_neighbors=2, node_idx=torch.arange(60) > 50, batch_size=4)
    assert (loader.depth, loader.num_neighbors, loader.replace, list(loader.dataset)) == (2, 2, False, list(range(51, 60)))
    for batch in loader:
        assert batch.num_graphs == len(batch.root_n_id) and batch.name == "a graph"
        roots = batch.x[batch.root_n_id, 0].long()
        assert batch.y.equal(2 * roots) and batch.batch[batch.root_n_id].tolist() == list(range(len(roots)))
        assert batch.x[batch.edge_index, 0].long().equal(data.edge_index[:, batch.edge_attr])
        for graph in range(batch.num_graphs):
            ids = batch.x[batch.ptr[graph] : batch.ptr[graph + 1], 0]
            assert ids.equal(ids.unique())
    assert loader.collate_fn([7, 3]).x.shape[0] >= 2
    with pytest.raises(ValueError, match="disjoint=True"):
        ShaDowKHopSampler(typed(), 1, 1)  # type: ignore[arg-type]


# Links -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"neg_sampling": "binary"},
        {"neg_sampling_ratio": 1.0},
        {"neg_sampling": {"mode": "binary", "amount": 1}},
        {"neg_sampling": NegativeSampling("binary")},
    ],
)
def test_every_way_of_saying_binary(options: dict[str, Any]) -> None:
    batch = next(iter(LinkNeighborLoader(plain(), [1], batch_size=6, **options)))
    assert batch.edge_label.tolist() == [1.0] * 6 + [0.0] * 6 and batch.edge_label.dtype == torch.float32


def test_no_negatives_and_none_of_the_sources() -> None:
    assert "edge_label" not in next(iter(LinkNeighborLoader(plain(), [1], neg_sampling_ratio=0.0)))
    weight = torch.zeros(60)
    weight[7] = 1
    triplet = {"mode": "triplet", "amount": 2, "src_weight": weight, "dst_weight": weight}
    batch = next(iter(LinkNeighborLoader(plain(), [1], batch_size=3, neg_sampling=triplet)))
    assert batch.n_id[batch.dst_neg_index].tolist() == [[7, 7]] * 3
    with pytest.raises(ValueError, match="triplet"):
        LinkNeighborLoader(plain(), [1], neg_sampling="triplet", edge_label=torch.ones(300))
    with pytest.raises(ValueError, match="neg_sampling"):
        LinkNeighborLoader(plain(), [1], neg_sampling="tripel")


@pytest.mark.parametrize("given", [LIKES, ("user", "item"), (LIKES, None), [("user", "item"), None]])
def test_every_way_of_naming_all_links_of_a_type(given: Any) -> None:
    data = typed()
    loader = LinkNeighborLoader(data, [1], given, batch_size=50)
    found = [batch for batch in loader]
    pairs = [torch.stack([b["user"].n_id[b[LIKES].edge_label_index[0]], b["item"].n_id[b[LIKES].edge_label_index[1]]]) for b in found]
    assert torch.cat(pairs, 1).equal(data[LIKES].edge_index) and found[0].input_type == LIKES


def test_links_of_a_type_without_edges() -> None:
    data = typed()
    links = torch.tensor([[0, 1], [5, 6]])
    batch = next(iter(LinkNeighborLoader(data, {LIKES: [2], LIKED: [2]}, (("user", "buys", "item"), links), batch_size=2)))
    assert batch["user", "buys", "item"].edge_label_index.shape == (2, 2) and batch["user", "buys", "item"].num_edges == 0


@pytest.mark.parametrize("given", [None, ("a", "b", "c"), "user", (LIKES, torch.arange(3))])
def test_links_that_are_none(given: Any) -> None:
    with pytest.raises(ValueError, match="edge_label_index"):
        LinkNeighborLoader(typed(), [1], given)


# What it is sampled from -----------------------------------------------------------------------------------------------------


def test_changes_of_the_object_are_followed() -> None:
    """Examples of PyG add ``n_id`` and delete features after the loader was made."""
    data = plain()
    loader = NeighborLoader(data, [-1], batch_size=20)
    first = list(loader)
    del loader.data.x
    loader.data.num_nodes, loader.data.n_id = 60, torch.arange(60) * 10
    second = list(loader)
    assert loader.graph_loader.epoch == 1
    for before, after in zip(first, second, strict=True):
        assert "x" not in after and after.n_id.equal(before.n_id * 10) and after.num_nodes == before.num_nodes
    loader.transform = lambda batch: batch.num_nodes
    assert list(loader) == [batch.num_nodes for batch in first]
    with pytest.raises(AttributeError):
        loader.data = plain()


def test_the_users_class_comes_back() -> None:
    class Mine(Data):
        @property
        def doubled(self) -> torch.Tensor:
            return 2 * self.x

    class MyTypes(HeteroData):
        pass

    data = plain()
    batch = next(iter(NeighborLoader(Mine.from_dict(data.to_dict()), [2])))
    assert type(batch) is Mine and batch.doubled.equal(2 * batch.x) and batch.batch_size == 1
    batch = next(iter(NeighborLoader(MyTypes.from_dict(typed().to_dict()), [2], "item")))
    assert type(batch) is MyTypes and batch.node_types == ["user", "item"] and batch["item"].batch_size == 1


def test_types_keep_their_order_and_num_nodes_its_place() -> None:
    data = typed()
    data["user"].num_nodes = 30
    batch = next(iter(NeighborLoader(data, [2], "item", batch_size=3)))
    assert (batch.node_types, batch.edge_types) == (["user", "item"], [LIKES, LIKED])
    assert "num_nodes" in batch["user"] and "num_nodes" not in batch["item"]


def test_attributes_with_rows_that_are_no_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyG indexes a ``TensorFrame`` of PyTorch Frame, which stands here for itself."""

    class Frame:
        def __init__(self, rows: torch.Tensor) -> None:
            self.rows, self.num_rows = rows, len(rows)

        def __len__(self) -> int:
            return self.num_rows

        def __getitem__(self, index: torch.Tensor) -> Frame:
            return Frame(self.rows[index])

    monkeypatch.setattr("torch_geometric.data.storage.TensorFrame", Frame)
    data = Data(edge_index=plain().edge_index, num_nodes=60, tf=Frame(torch.arange(60)), edge_attr=Frame(torch.arange(300)))
    whole = data.whole = Frame(torch.arange(1))
    batch = next(iter(NeighborLoader(data, [2], batch_size=4)))
    assert batch.tf.rows.equal(batch.n_id) and batch.edge_attr.rows.equal(batch.e_id) and batch.whole is whole


def test_features_on_disk(tmp_path: Path) -> None:
    rows = np.memmap(tmp_path / "x", np.float32, "w+", shape=(60, 3))
    rows[:] = np.arange(180).reshape(60, 3)
    data = Data(x=np.memmap(tmp_path / "x", np.float32, "r", shape=(60, 3)), edge_index=plain().edge_index)
    batch = next(iter(NeighborLoader(data, [2], batch_size=4)))
    assert batch.x.equal(torch.from_numpy(np.array(rows))[batch.n_id])


class Features(FeatureStore):
    def __init__(self) -> None:
        super().__init__()
        self.arrays: dict[Any, Any] = {}

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        self.arrays[attr.group_name, attr.attr_name] = tensor
        return True

    def _get_tensor(self, attr: TensorAttr) -> Any:
        return self.arrays[attr.group_name, attr.attr_name]

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        return self.arrays.pop((attr.group_name, attr.attr_name), None) is not None

    def _get_tensor_size(self, attr: TensorAttr) -> Any:
        return tuple(self._get_tensor(attr).shape)

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        return [TensorAttr(*key) for key in self.arrays]


class Edges(GraphStore):
    def __init__(self) -> None:
        super().__init__()
        self.layouts: dict[Any, Any] = {}

    def _put_edge_index(self, edge_index: Any, edge_attr: EdgeAttr) -> bool:
        self.layouts[edge_attr.edge_type, edge_attr.layout.value, edge_attr.is_sorted, edge_attr.size] = edge_index
        return True

    def _get_edge_index(self, edge_attr: EdgeAttr) -> Any:
        return self.layouts[edge_attr.edge_type, edge_attr.layout.value, edge_attr.is_sorted, edge_attr.size]

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> bool:
        return False

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        return [EdgeAttr(*key) for key in self.layouts]


def test_a_pair_of_stores_gives_what_its_graph_gives() -> None:
    data, features, edges = plain(), Features(), Edges()
    del data.edge_attr
    data.num_nodes = 60
    features.put_tensor(data.x, group_name=None, attr_name="x", index=None)
    edges.put_edge_index(tuple(data.edge_index), edge_type=None, layout="coo", size=(60, 60))
    torch.manual_seed(0)
    pair = list(NeighborLoader((features, edges), [2, 2], torch.arange(30), batch_size=10))
    torch.manual_seed(0)
    assert all(map(same, pair, NeighborLoader(data, [2, 2], torch.arange(30), batch_size=10)))
    torch.manual_seed(0)
    by_pyg = theirs.NodeLoader((features, edges), NeighborSampler((features, edges), [2, 2]), torch.arange(30), batch_size=10)
    for batch, ours in zip(by_pyg, pair, strict=True):
        assert all(batch[name].equal(ours[name]) for name in ("n_id", "e_id", "edge_index", "input_id"))


def test_a_pair_of_stores_with_types_layouts_and_times() -> None:
    data, features, edges = typed(), Features(), Edges()
    for name in data.node_types:
        data[name].time = torch.arange(data[name].num_nodes)
        for attr in ("x", "time"):
            features.put_tensor(data[name][attr], group_name=name, attr_name=attr, index=None)
        data[name].num_nodes = data[name].num_nodes
    row, col = data[LIKES].edge_index[:, data[LIKES].edge_index[0].argsort(stable=True)]
    data[LIKES].edge_index = torch.stack([row, col])
    rowptr = torch.cat([torch.zeros(1, dtype=torch.long), torch.bincount(row, minlength=30).cumsum(0)])
    edges.put_edge_index((rowptr, col), edge_type=LIKES, layout="csr", size=(30, 40))
    edges.put_edge_index(tuple(data[LIKED].edge_index), edge_type=LIKED, layout="coo", size=(40, 30))
    for options in (
        {"num_neighbors": [2, 2], "input_nodes": "item"},
        {"num_neighbors": [-1], "input_nodes": ("user", None), "time_attr": "time"},
    ):
        torch.manual_seed(0)
        pair = [flatten(batch) for batch in NeighborLoader((features, edges), batch_size=10, **options)]
        torch.manual_seed(0)
        alone = [flatten(batch) for batch in NeighborLoader(data, batch_size=10, **options)]
        for left, right in zip(pair, alone, strict=True):
            assert set(left) == set(right)
            assert all(value.equal(right[key]) for key, value in left.items() if isinstance(value, torch.Tensor))
    links = LinkNeighborLoader((features, edges), [1], LIKES, batch_size=10)
    assert len(links) == 15 and next(iter(links)).input_type == LIKES
    with pytest.raises(ValueError, match="no edges"):
        NeighborLoader((features, Edges()), [1])


@pytest.mark.parametrize("data", ["a path", torch.arange(3), (1, 2), None])
def test_what_is_no_graph_of_pygs(data: Any) -> None:
    with pytest.raises(ValueError, match="data must be"):
        NeighborLoader(data, [1])


@pytest.mark.parametrize(
    ("input_nodes", "message"),
    [
        (None, "node types"),
        ("usr", "did you mean 'user'"),
        (("user", torch.ones(3, dtype=torch.bool)), "mask"),
        (("user", torch.tensor([99])), "99"),
        (("user", torch.tensor([0.5])), "whole numbers"),
        (("user", [object()]), "node ids"),
    ],
)
def test_input_nodes_that_are_none(input_nodes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NeighborLoader(typed(), [1], input_nodes)


@pytest.mark.parametrize("split", [{"train": torch.arange(3), "valid": torch.arange(2)}, {"train": {"user": torch.arange(3)}}])
def test_dicts_of_splits_ask_for_one_of_them(split: Any) -> None:
    """As ``dataset.get_idx_split()`` and ``get_edge_split()`` give them."""
    data = plain()
    nodes: list[Any] = [
        lambda: NeighborLoader(data, [1], split),
        lambda: ShaDowKHopSampler(data, 1, 1, split),
        lambda: HGTLoader(typed(), [1], split),
        lambda: gnnkit.GraphLoader.from_pyg(data, input_nodes=split, num_neighbors=[1]),
        lambda: gnnkit.GraphLoader.from_pyg(typed(), input_nodes=split, num_neighbors=[1]),
        lambda: gnnkit.GraphLoader.from_pyg(data, num_neighbors=[1]).for_split(split),
    ]
    links: list[Any] = [
        lambda: LinkNeighborLoader(data, [1], split),
        lambda: gnnkit.GraphLoader.from_pyg(data, edge_label_index=split, num_neighbors=[1]),
        lambda: gnnkit.GraphLoader.from_pyg(data, num_neighbors=[1]).for_links(split),
    ]
    for name, calls in (("input_nodes", nodes), ("edge_label_index", links)):
        for call in calls:
            with pytest.raises(PlanError, match=f"{name} is a dict") as caught:
                call()
            assert f"{name}=split['train']" in str(caught.value.hint)
    with pytest.raises(PlanError, match="input_nodes is a dict") as caught:
        gnnkit.GraphLoader.from_pyg(typed(), input_nodes={"user": torch.arange(3)}, num_neighbors=[1])
    assert "input_nodes=('user', ids)" in str(caught.value.hint)


def test_what_cannot_be_followed_says_so_and_what_to_do() -> None:
    given: dict[str, Any] = {
        "transform_sampler_output": lambda out: out,
        "neighbor_sampler": object(),
        "custom_cls": Data,
        "collate_fn": list,
        "filter_fn": list,
    }
    for name, value in given.items():
        with pytest.raises(PlanError, match=name) as caught:
            NeighborLoader(plain(), [1], **{name: value})
        assert caught.value.hint
    for name, value, message in (
        ("shuffle", "False", "shuffle"),
        ("batch_size", None, "batch_size"),
        ("subgraph_type", "half", "subgraph_type"),
    ):
        with pytest.raises(ValueError, match=message):
            NeighborLoader(plain(), [1], **{name: value})
    with pytest.raises(ValueError, match="depth"):
        ShaDowKHopSampler(plain(), 0, 1)


@pytest.mark.parametrize(
    ("kind", "arguments", "method"),
    [
        (NeighborLoader, (plain(), [1]), "collate_fn"),
        (NeighborLoader, (plain(), [1]), "filter_fn"),
        (LinkNeighborLoader, (plain(), [1]), "collate_fn"),
        (LinkNeighborLoader, (plain(), [1]), "filter_fn"),
        (HGTLoader, (typed(), [1], "user"), "collate_fn"),
        (HGTLoader, (typed(), [1], "user"), "filter_fn"),
        (ShaDowKHopSampler, (plain(), 1, 1), "__collate__"),
    ],
)
def test_hooks_that_would_never_be_called_are_refused_by_name(kind: Any, arguments: tuple[Any, ...], method: str) -> None:
    derived = type("Mine", (kind,), {method: lambda self, out: out})
    with pytest.raises(PlanError, match=rf"Mine\.{method}") as caught:
        derived(*arguments)
    assert caught.value.hint

    class Fine(kind):  # type: ignore[misc, valid-type]
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.scale = self.depth_of_mine = 2

    loader = Fine(*arguments)
    assert next(iter(loader)) is not None and loader.scale == 2
    for name in ("collate_fn", "filter_fn", "transform_sampler_output", "custom_cls", "num_workers", "pin_memory", "input_data"):
        with pytest.raises(AttributeError, match=name):
            setattr(loader, name, lambda out: out)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: NeighborLoader(plain(), [1]), ("node_sampler", "input_nodes", "input_time", "input_id")),
        (lambda: LinkNeighborLoader(plain(), [1]), ("link_sampler", "edge_label_index", "neg_sampling")),
        (lambda: ShaDowKHopSampler(plain(), 1, 1), ("depth", "num_neighbors", "replace", "node_idx")),
    ],
)
def test_attributes_that_decide_on_batches_cannot_be_assigned(make: Callable[[], Any], names: tuple[str, ...]) -> None:
    loader = make()
    for name in names:
        with pytest.raises(gnnkit.errors.AttributeNotSettable, match=name):
            setattr(loader, name, 1)


def test_a_loaders_sampler_is_followed() -> None:
    data = plain()
    loader: Any = NeighborLoader(data, [2], batch_size=20)
    loader.node_sampler.num_neighbors, loader.node_sampler.subgraph_type = [-1, -1], "induced"
    expected = list(NeighborLoader(data, [-1, -1], batch_size=20, subgraph_type="induced"))
    assert all(map(same, loader, expected)) and same(loader(range(20)), expected[0])
    links: Any = LinkNeighborLoader(data, [2], batch_size=20)
    links.link_sampler.num_neighbors = [-1]
    assert same(next(iter(links)), next(iter(LinkNeighborLoader(data, [-1], batch_size=20))))
    hgt: Any = HGTLoader(typed(), [5], "user", batch_size=2)
    hgt.node_sampler.num_samples = [0]
    assert next(iter(hgt))["item"].x.numel() == 0
    with pytest.raises(PlanError, match="num_neighbors"):
        loader.node_sampler.num_neighbors = "2"
    with pytest.raises(gnnkit.errors.AttributeNotSettable, match="time_attr"):
        loader.node_sampler.time_attr = "time"


def test_functions_for_workers_are_ignored_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="worker_init_fn is ignored") as found:
        loader = NeighborLoader(plain(), [1], worker_init_fn=lambda number: None)
    assert found[0].filename == __file__
    with pytest.warns(UserWarning, match="worker_init_fn is ignored"):
        loader.worker_init_fn = lambda number: None


# Positions -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own_order", [False, True])
@pytest.mark.parametrize("is_link", [False, True])
def test_a_loader_goes_on_where_its_state_was_taken(own_order: bool, is_link: bool) -> None:
    """Loaded by a loader of another process, which has drawn another seed."""

    def loader() -> Any:
        order: dict[str, Any] = {"sampler": torch.utils.data.RandomSampler(range(60))} if own_order else {"shuffle": True}
        links = torch.stack([torch.arange(60), torch.arange(60)])
        return (
            LinkNeighborLoader(plain(), [2], links, batch_size=7, **order)
            if is_link
            else NeighborLoader(plain(), [2], batch_size=7, **order)
        )

    first, second = loader(), loader()
    second.load_state_dict(first.state_dict())
    epochs = [list(first), list(second)]
    assert own_order or all(map(same, *epochs))
    batches = iter(first)
    seen = [next(batches) for _ in range(3)]
    state = json.loads(json.dumps(first.state_dict()))
    second.load_state_dict(state)
    assert second.state_dict() == state
    rest = list(second)
    assert all(map(same, rest, batches))
    assert sorted(torch.cat([batch.input_id for batch in [*seen, *rest]]).tolist()) == list(range(60))
    assert sorted(torch.cat([batch.input_id for batch in second]).tolist()) == list(range(60))
    with pytest.raises(PlanError, match="batch_size"):
        first.load_state_dict({**state, "batch_size": 8})


def test_a_state_stays_where_attributes_change_before_the_epoch() -> None:
    first, second = (NeighborLoader(plain(), [2], batch_size=7, shuffle=True) for _ in range(2))
    batches = iter(first)
    seen = [next(batches), next(batches)]
    second.load_state_dict(first.state_dict())
    second.data.more = torch.arange(60)
    rest = list(second)
    assert sorted(torch.cat([batch.input_id for batch in [*seen, *rest]]).tolist()) == list(range(60)) and "more" in rest[0]


def test_a_state_between_epochs_goes_with_orders_of_any_length() -> None:
    first, second = (NeighborLoader(plain(), [2], batch_size=7, sampler=torch.utils.data.SubsetRandomSampler([3, 1, 4])) for _ in range(2))
    assert len(list(first)) == 1
    second.load_state_dict(first.state_dict())
    torch.manual_seed(1)
    expected = list(first)
    torch.manual_seed(1)
    assert all(map(same, second, expected)) and second.state_dict() == first.state_dict()


@pytest.mark.parametrize("state", [None, [], "state", {"order": [1]}, {"seed": "1"}, {"seed": -1}], ids=str)
def test_what_is_no_state_changes_nothing(state: Any) -> None:
    loader = NeighborLoader(plain(), [2], batch_size=7)
    good = loader.state_dict()
    with pytest.raises(PlanError):
        loader.load_state_dict({**good, **state} if isinstance(state, dict) and "seed" in state else state)
    assert loader.state_dict() == good and len(list(loader)) == 9


@pytest.mark.parametrize("way", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))], ids=["deepcopy", "pickle"])
def test_loaders_with_batches_of_their_own_travel(way: Any) -> None:
    places = [[1, 2], [3], [4, 5, 6], [5, 5]]
    for loader in (
        NeighborLoader(plain(), [2], batch_sampler=places),
        LinkNeighborLoader(plain(), [2], batch_sampler=places),
        NeighborLoader(plain(), [2], sampler=[1, 2, 3, 4, 5, 6, 5, 5]),
    ):
        assert all(map(same, way(loader), loader))
    typed_data = typed()
    hgt = HGTLoader(typed_data, [4], typed_data.node_types[0], batch_sampler=[[1], [0, 1]])
    roots = ShaDowKHopSampler(plain(), 1, 2, batch_sampler=places)
    assert all(map(same, way(hgt), hgt)) and all(map(same, way(roots), roots))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"timeout": "1"}, "timeout must be a number"),
        ({"timeout": None}, "timeout must be a number"),
        ({"sampler": 3}, "sampler must be a list or None"),
        ({"batch_sampler": 3}, "batch_sampler must be a list or None"),
        ({"batch_sampler": np.array(3)}, "batch_sampler must be a list or None"),
        ({"batch_size": [8]}, "batch_size must be a whole number or None"),
        ({"num_workers": "2"}, "num_workers must be a whole number"),
        ({"pin_memory": "no"}, "pin_memory must be True or False"),
        ({"shuffle": 1}, "shuffle must be True, False or None"),
        ({"generator": 3}, "generator must be a torch.Generator"),
    ],
    ids=str,
)
def test_arguments_of_a_dataloader_of_the_wrong_kind(words: dict[str, Any], message: str) -> None:
    for make in (NeighborLoader, LinkNeighborLoader):
        with pytest.raises(PlanError, match=message):
            make(plain(), [2], **words)
    with pytest.raises(PlanError, match=message):
        ShaDowKHopSampler(plain(), 1, 2, **words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"sampler": torch.tensor(3)}, "sampler must be a list"),
        ({"sampler": torch.tensor([[1, 2], [3, 4]])}, "sampler gives rows of numbers"),
        ({"sampler": [[1, 2], [3, 4]]}, r"an array of shape \[2, 2\]"),
        ({"sampler": [0.5]}, "whole numbers"),
        ({"sampler": ["a"]}, "must hold numbers"),
        ({"batch_sampler": torch.tensor(3)}, "batch_sampler must be a list"),
        ({"batch_sampler": torch.tensor([1, 2])}, "a batch of batch_sampler must be a list"),
        ({"batch_sampler": range(3)}, "a batch of batch_sampler must be a list"),
        ({"batch_sampler": [None]}, "a batch of batch_sampler must be a list"),
        ({"batch_sampler": [[[1, 2]]]}, r"an array of shape \[1, 2\]"),
        ({"batch_sampler": [[1, 1000]]}, "there is no input"),
    ],
    ids=str,
)
def test_samplers_that_give_no_places(words: dict[str, Any], message: str) -> None:
    for loader in (
        NeighborLoader(plain(), [2], **words),
        LinkNeighborLoader(plain(), [2], **words),
        ShaDowKHopSampler(plain(), 1, 2, **words),
    ):
        with pytest.raises(PlanError, match=message):
            list(loader)


@pytest.mark.parametrize("way", [lambda loader: loader, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_state_of_batches_of_ones_own_counts_their_draws(way: Any) -> None:
    places = [[1, 2, 3], [30, 40, 50], [4], [5, 6]]  # two runs of a size
    first, second = (NeighborLoader(plain(), [2], batch_sampler=places) for _ in range(2))
    drawn = [[batch.n_id.tolist() for batch in first] for _ in range(2)]
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict() == way(second).state_dict()
    second = way(second)
    drawn.append([batch.n_id.tolist() for batch in first])
    assert [batch.n_id.tolist() for batch in second] == drawn[2] not in drawn[:2] and drawn[0] != drawn[1]
    assert second.state_dict() == first.state_dict()
    plainly = NeighborLoader(plain(), [2], batch_size=1)
    held = iter(plainly)
    next(held)
    with pytest.raises(PlanError, match="batch_sampler="):
        second.load_state_dict(plainly.state_dict())


def test_a_state_of_an_order_of_ones_own_needs_one() -> None:
    plainly = NeighborLoader(plain(), [2], batch_size=7)
    ordered = NeighborLoader(plain(), [2], batch_size=7, sampler=torch.utils.data.RandomSampler(range(60)))
    for one, other in ((plainly, ordered), (ordered, plainly)):
        held = iter(one)
        next(held)
        with pytest.raises(PlanError, match="sampler="):
            other.load_state_dict(one.state_dict())


@pytest.mark.parametrize("num_workers", [0, 1])
def test_one_loader_trains_and_validates_within_an_epoch(num_workers: int) -> None:
    loader: Any = NeighborLoader(plain(), [2], batch_size=10, shuffle=True, num_workers=num_workers)
    for epoch in range(2):
        seen = []
        for number, batch in enumerate(loader):
            seen += batch.input_id.tolist()
            if number == 2:
                state = loader.state_dict()
                assert sorted(torch.cat([other.input_id for other in loader]).tolist()) == list(range(60))
                next(iter(loader))  # which is left behind
                assert loader.state_dict() == state and (state["epoch"], state["next_batch"]) == (epoch, 3)
        assert sorted(seen) == list(range(60))
        assert (loader.state_dict()["epoch"], loader.state_dict()["next_batch"]) == (epoch + 1, 0)


def test_an_iteration_that_is_left_behind_is_resumed_unless_another_took_its_place() -> None:
    loader: Any = NeighborLoader(plain(), [2], batch_size=10)
    for _ in loader:
        break
    assert loader.state_dict()["next_batch"] == 1
    batches = iter(loader)
    next(batches)
    batches = iter(loader)
    next(batches), next(batches)
    assert loader.state_dict()["next_batch"] == 2
    assert len(list(batches)) == 4 and loader.state_dict()["next_batch"] == 0 and next(batches, None) is None


def test_not_directed_is_induced_and_the_warning_is_at_the_users_line() -> None:
    with pytest.warns(UserWarning, match="subgraph_type='induced'") as found:
        loader = NeighborLoader(plain(), [2], directed=False)
    assert found[0].filename == __file__ and loader.node_sampler.subgraph_type == SubgraphType.induced


def test_a_forgotten_loader_is_gone() -> None:
    gc.collect()
    gc.disable()
    try:
        loader = NeighborLoader(plain(), [2], transform=lambda batch: batch)
        next(iter(loader))
        alive = weakref.ref(loader.graph_loader)
        del loader
        assert alive() is None
    finally:
        gc.enable()

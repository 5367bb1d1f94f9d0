"""``PPRSamplerOptions``: the batches of ``GraphLoader`` with ``PPR``, over graphlearn-torch's names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from gnnkit import PPR, GraphLoader
from gnnkit.distributed import DistDataset, PPRSamplerOptions
from gnnkit.errors import PlanError
from tests.distributed.loading import NUM_NODES, dataset_of, labelled, pygs_own, ring, stored, typed_ring
from tests.distributed.social import NUM_USERS, TO_STORY, social
from tests.helpers.batches import same

EVERYTHING = torch.arange(NUM_NODES)
U2I = ("user", "u2i", "item")


def make(dataset: Any, options: Any, **more: Any) -> Any:
    from gnnkit.distributed import DistNeighborLoader

    return DistNeighborLoader(dataset, **{"num_workers": 0, "batch_size": 16, "sampler_options": options, **more})


@pytest.mark.parametrize("graph", ["plain", "typed", "with edges", "channels"])
def test_batches_are_those_of_a_graph_loader(graph: str, tmp_path: Path) -> None:
    words: dict[str, Any] = {"alpha": 0.3, "eps": 1e-3, "max_ppr_nodes": 6}
    if graph == "with edges":
        words["include_sampled_edges"] = True
    if graph == "channels":
        words["typed_channel_ratios"] = {U2I: 0.5, ("item", "i2i", "item"): 0.5}
    data, input_nodes = (ring(), EVERYTHING) if graph == "plain" else (typed_ring(), ("user", EVERYTHING))
    store = stored(data, tmp_path, 2, edge_dir="out")
    loader = make(
        DistDataset.from_store(store), PPRSamplerOptions(**words), input_nodes=input_nodes, num_workers=2 if graph == "typed" else 0
    )
    options: dict[str, Any] = {"sampler": PPR(**words), "input_nodes": input_nodes, "batch_size": 16}
    with GraphLoader.from_store(store.path, progress=False, **options) as plain:
        for batch, wanted in zip(loader, plain, strict=True):
            for store in wanted.edge_stores:
                if graph == "plain" or store._key[1] == "ppr":
                    del store["num_sampled_edges"]  # hops have no meaning for them, and GiGL's batches do not count them
            same(pygs_own(batch), wanted, any_order=True)
    loader.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 1])
def test_gigls_own_call_has_no_fan_outs_and_counts_no_edges(num_workers: int, tmp_path: Path) -> None:
    from gnnkit.distributed import DistNeighborLoader

    options: dict[str, Any] = {"sampler_options": PPRSamplerOptions(), "num_workers": num_workers, "batch_size": 1}
    plain = DistNeighborLoader(dataset_of(ring(), tmp_path), [], torch.tensor([10]), **options)
    typed = DistNeighborLoader(dataset_of(typed_ring(), tmp_path / "typed"), {}, ("item", torch.tensor([10])), **options)
    for batch in plain:
        assert "num_sampled_edges" not in batch and (batch.edge_index[0] == 0).all() and batch.edge_attr.shape[1] == 2
    for batch in typed:
        assert len(batch.num_sampled_edges) == 0 and len(batch["item", "ppr", "item"].edge_index[0]) > 1
    plain.shutdown()
    typed.shutdown()


def test_two_channels_may_walk_along_the_same_types(tmp_path: Path) -> None:
    """An edge type, and a tuple of it alone, are two keys of a dict: two walks that find the same."""
    words: dict[str, Any] = {"typed_channel_ratios": {U2I: 0.25, (U2I,): 0.25, ("item", "i2i", "item"): 0.5}}
    store = stored(typed_ring(), tmp_path, edge_dir="out")
    loader = make(DistDataset.from_store(store), PPRSamplerOptions(**words), input_nodes=("user", EVERYTHING))
    with GraphLoader.from_store(store.path, sampler=PPR(**words), input_nodes=("user", EVERYTHING), batch_size=16, progress=False) as plain:
        plan = tmp_path / "plan.json"
        plain.plan.save(plan)
        for batch, wanted, again in zip(loader, plain, GraphLoader.from_plan(plan, progress=False), strict=True):
            rows = batch["user", "ppr", "item"].edge_attr
            assert rows.shape[1] == 2 + 3 * 3 and rows[:, 2:5].equal(rows[:, 5:8]) and rows[:, 2:5].any()
            assert rows.equal(wanted["user", "ppr", "item"].edge_attr)
            same(again, wanted)
    loader.shutdown()


def test_fan_outs_play_no_part(tmp_path: Path) -> None:
    dataset = dataset_of(ring(), tmp_path)
    first, second = (make(dataset, PPRSamplerOptions(), num_neighbors=fan_outs, input_nodes=EVERYTHING) for fan_outs in ([2], [7, 7]))
    for batch, other in zip(first, second, strict=True):
        same(batch, other)
    first.shutdown()
    second.shutdown()


def test_labels_are_not_walked_along_and_batches_are_plain(tmp_path: Path) -> None:
    """Labels lead half around the ring, out of reach of the walks."""
    loader = make(dataset_of(labelled(), tmp_path, edge_dir="out"), PPRSamplerOptions(eps=1e-3), input_nodes=EVERYTHING)
    for batch in loader:
        assert type(batch) is Data and batch.edge_attr.shape == (batch.edge_index.shape[1], 2)
        steps = (batch.node[batch.edge_index[1]] - batch.node[batch.edge_index[0]]) % NUM_NODES
        assert 3 <= steps.max() < 20
    loader.shutdown()


@pytest.mark.filterwarnings("ignore:labels as a dict:FutureWarning")
@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_anchors_and_their_labels_walk_and_not_along_labels(edge_dir: str, tmp_path: Path) -> None:
    """A user's only story is its own number, and labels lead to others: these are seeds, and no walk comes to them."""
    from gnnkit.distributed import DistABLPLoader

    dataset, users = dataset_of(social(reversed_labels=edge_dir == "in"), tmp_path, 2, edge_dir=edge_dir), ("user", torch.arange(NUM_USERS))
    options: dict[str, Any] = {"supervision_edge_type": TO_STORY, "sampler_options": PPRSamplerOptions(), "num_workers": 0, "batch_size": 2}
    loader = DistABLPLoader(dataset, None, users, **options)
    for batch in loader:
        assert set(batch.edge_types) == {(s, "ppr", t) for s in ("user", "story") for t in ("user", "story")}
        for edge_type in batch.edge_types:
            seed, node = batch[edge_type].edge_index
            assert len(seed) and batch[edge_type[0]].node[seed].equal(batch[edge_type[2]].node[node])
        for anchor, labels in batch.y_positive.items():
            own = int(batch["user"].node[anchor])
            assert sorted(batch["story"].node[labels].tolist()) == sorted([own, (own + 1) % NUM_USERS])
    loader.shutdown()


def test_what_does_not_go_with_it(tmp_path: Path) -> None:
    dataset = dataset_of(typed_ring(), tmp_path)
    for words, message in (
        ({"typed_channel_ratios": {("user", "u2j", "item"): 1.0}}, "non-traversable edge types"),
        ({"edge_types": [("user", "u2j", "item")]}, "non-traversable edge types"),
    ):
        with pytest.raises(PlanError, match=message):
            make(dataset, PPRSamplerOptions(**words), input_nodes=("user", EVERYTHING))
    with pytest.raises(PlanError, match="alpha"):
        PPRSamplerOptions(alpha=2.0)
    with pytest.raises(PlanError, match="homogeneous"):
        make(dataset_of(ring(), tmp_path / "ring"), PPRSamplerOptions(include_sampled_edges=True), input_nodes=EVERYTHING)

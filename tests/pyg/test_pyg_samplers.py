"""``gnnkit.pyg.NeighborSampler`` and ``HGTSampler`` under PyG's own loaders, Lightning's data modules and RelBench's way of loading."""

from __future__ import annotations

import copy
import inspect
import pickle
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from torch_geometric import sampler as theirs
from torch_geometric.data.lightning import LightningLinkData, LightningNodeData
from torch_geometric.loader import LinkLoader, NodeLoader
from torch_geometric.sampler import BaseSampler, EdgeSamplerInput, NegativeSampling, NodeSamplerInput

import gnnkit
from gnnkit.errors import AttributeNotSettable, PlanError
from gnnkit.pyg import HGTLoader, HGTSampler, LinkNeighborLoader, NeighborLoader, NeighborSampler
from tests.helpers.pyg_batches import flatten
from tests.pyg.graphs import LIKES
from tests.pyg.graphs import plain_with_times as plain
from tests.pyg.graphs import typed_with_times as typed

IDS, LINKS = torch.arange(5, 30), torch.stack([torch.arange(20), torch.arange(20) + 9])


def same(left: Any, right: Any) -> bool:
    """Whether two batches hold the same, in any order of their attributes."""
    one, other = flatten(left), flatten(right)
    return one.keys() == other.keys() and all(
        value.equal(other[key]) and value.dtype == other[key].dtype if isinstance(value, torch.Tensor) else value == other[key]
        for key, value in one.items()
    )


def compare(by_pyg: Any, ours: Any) -> None:
    """The first epoch of both."""
    pairs = list(zip(by_pyg, ours, strict=True))
    assert len(pairs) > 1 and all(same(left, right) for left, right in pairs)


# PyG's loaders ---------------------------------------------------------------------------------------------------------------

WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "hops": ({"num_neighbors": [3, 2]}, {}),
    "replace": ({"num_neighbors": [2, 2], "replace": True}, {}),
    "disjoint": ({"num_neighbors": [2, 2], "disjoint": True}, {}),
    "induced": ({"num_neighbors": [2, 2], "subgraph_type": "induced"}, {}),
    "bidirectional": ({"num_neighbors": [2, 2], "subgraph_type": "bidirectional"}, {}),
    "no hop": ({"num_neighbors": []}, {}),
    "own times": ({"num_neighbors": [3, 3], "time_attr": "time"}, {}),
    "last": ({"num_neighbors": [3, 3], "time_attr": "time", "temporal_strategy": "last"}, {"input_time": torch.arange(25) + 3}),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_typed", [False, True])
def test_node_loader_gives_the_batches_of_neighbor_loader(way: str, is_typed: bool) -> None:
    data, (sampled, options) = typed() if is_typed else plain(), WAYS[way]
    options = {**options, "input_nodes": ("item", IDS) if is_typed else IDS, "batch_size": 8}
    torch.manual_seed(3)
    sampler = NeighborSampler(data, **sampled)
    torch.manual_seed(3)
    compare(NodeLoader(data, node_sampler=sampler, **options), NeighborLoader(data, **sampled, **options))


@pytest.mark.parametrize("sampled", [{"weight_attr": "weight"}, {"time_attr": "edge_time"}])
def test_weights_and_times_of_edges(sampled: dict[str, Any]) -> None:
    options: dict[str, Any] = {"input_nodes": torch.arange(60) % 2 == 0, "batch_size": 8}
    if "time_attr" in sampled:
        options["input_time"] = torch.arange(30) * 10
    torch.manual_seed(3)
    sampler = NeighborSampler(plain(), [3, 2], **sampled)
    torch.manual_seed(3)
    compare(NodeLoader(plain(), node_sampler=sampler, **options), NeighborLoader(plain(), [3, 2], **sampled, **options))


@pytest.mark.parametrize("negatives", [None, "binary", "triplet", {"mode": "binary", "amount": 2.5}, {"mode": "triplet", "amount": 3}])
@pytest.mark.parametrize("way", ["hops", "disjoint", "own times"])
@pytest.mark.parametrize("is_typed", [False, True])
def test_link_loader_gives_the_batches_of_link_neighbor_loader(negatives: Any, way: str, is_typed: bool) -> None:
    data, sampled = typed() if is_typed else plain(), WAYS[way][0]
    options = {"edge_label_index": (LIKES, LINKS) if is_typed else LINKS, "batch_size": 6, "neg_sampling": negatives}
    if way == "own times":
        options["edge_label_time"] = torch.arange(20) + 5
    if negatives is None or negatives == "binary":
        options["edge_label"] = torch.arange(20) % 3
    torch.manual_seed(3)
    sampler = NeighborSampler(data, **sampled)
    torch.manual_seed(3)
    compare(LinkLoader(data, link_sampler=sampler, **options), LinkNeighborLoader(data, **sampled, **options))


def test_hgt_sampler() -> None:
    data, options = typed(), {"input_nodes": ("user", torch.arange(20)), "batch_size": 4}
    torch.manual_seed(3)
    sampler = HGTSampler(data, [4, 3])
    torch.manual_seed(3)
    compare(NodeLoader(data, node_sampler=sampler, **options), HGTLoader(data, [4, 3], **options))
    with pytest.raises(PlanError, match="one node type"):
        HGTSampler(plain(), [2])  # type: ignore[arg-type]


def test_links_of_a_type_without_edges() -> None:
    batch = next(iter(LinkLoader(typed(), NeighborSampler(typed(), [2]), (("user", "buys", "item"), LINKS), batch_size=6)))
    assert batch["user", "buys", "item"].edge_label_index.shape == (2, 6) and batch[LIKES].edge_index.numel()


def test_a_sampler_is_shared_by_loaders_and_every_call_draws_anew() -> None:
    data, sampler = plain(), NeighborSampler(plain(), [2, 2])
    one, two = (NodeLoader(data, sampler, IDS, batch_size=25) for _ in range(2))
    assert len({tuple(next(iter(loader)).n_id.tolist()) for loader in (one, two, one, two)}) == 4
    ours = NeighborLoader(data, [9, 9, 9], IDS, batch_size=25, neighbor_sampler=sampler)
    assert len(next(iter(ours)).num_sampled_nodes) == 3 and ours.node_sampler is sampler


def test_workers_of_a_dataloader_draw_anew_in_every_epoch() -> None:
    """Each of them samples by itself, and the next epoch's are other processes."""
    sampler = NeighborSampler(plain(), [2, 2])
    next(iter(NodeLoader(plain(), sampler, IDS, batch_size=5)))
    loader = NodeLoader(plain(), sampler, IDS, batch_size=5, num_workers=2, multiprocessing_context="fork")
    batches = [batch for _ in range(2) for batch in loader]
    assert [batch.n_id[:5].tolist() for batch in batches] == 2 * IDS.view(5, 5).tolist()
    assert len({tuple(batch.n_id.tolist()) for batch in batches}) == 10


# The sampler itself ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["NeighborSampler", "HGTSampler"])
def test_signatures_are_those_of_the_installed_pyg(name: str) -> None:
    mine, other = (inspect.signature(getattr(module, name)).parameters for module in (gnnkit.pyg, theirs))
    assert [(p.name, p.kind, p.default) for p in mine.values()] == [(p.name, p.kind, p.default) for p in other.values()]
    assert issubclass(getattr(gnnkit.pyg, name), BaseSampler)


def test_outputs_lead_to_the_edges_of_the_graph() -> None:
    data = plain()
    out = NeighborSampler(data, [3, 2]).sample_from_nodes(NodeSamplerInput(None, IDS))
    assert isinstance(out, theirs.SamplerOutput) and out.node[: len(IDS)].equal(IDS)
    assert torch.stack([out.node[out.row], out.node[out.col]]).equal(data.edge_index[:, out.edge])
    assert sum(out.num_sampled_nodes) == len(out.node) and sum(out.num_sampled_edges) == len(out.row)
    links = NeighborSampler(typed(), [3, 2]).sample_from_edges(EdgeSamplerInput(None, *LINKS, input_type=LIKES))
    assert isinstance(links, theirs.HeteroSamplerOutput)
    for edge_type, row in links.row.items():
        ends = torch.stack([links.node[edge_type[0]][row], links.node[edge_type[2]][links.col[edge_type]]])
        assert ends.equal(typed()[edge_type].edge_index[:, links.edge[edge_type]])
    _, index, label, _ = links.metadata
    assert torch.stack([links.node["user"][index[0]], links.node["item"][index[1]]]).equal(LINKS) and label is None


def test_negatives_follow_their_weights_and_keep_to_those_who_asked() -> None:
    sampler, only = NeighborSampler(plain(), [1]), torch.zeros(60)
    only[7] = 1
    inputs = EdgeSamplerInput(None, *LINKS)
    for _ in range(2):
        out = sampler.sample_from_edges(inputs, NegativeSampling("triplet", 2, dst_weight=only))
        assert (out.node[out.metadata[3]] == 7).all() and out.metadata[3].shape == (20, 2)
        free = sampler.sample_from_edges(inputs, NegativeSampling("triplet", 2))
        assert len(free.node[free.metadata[3]].unique()) > 5


def test_options_may_be_assigned_and_copies_have_their_own() -> None:
    data = plain()
    sampler = NeighborSampler(data, [1])
    other = copy.copy(sampler)
    other.num_neighbors, other.subgraph_type, other.disjoint = [-1], "induced", True
    assert (sampler.num_neighbors.values, sampler.disjoint, len(other.num_neighbors)) == ([1], False, 1)
    out = other.sample_from_nodes(NodeSamplerInput(None, IDS))
    expected = next(iter(NeighborLoader(data, [-1], IDS, batch_size=25, disjoint=True, subgraph_type="induced")))
    assert out.node.equal(expected.n_id) and out.edge.equal(expected.e_id) and out.batch.equal(expected.batch)
    for again in (copy.deepcopy(other), pickle.loads(pickle.dumps(other))):
        assert again.sample_from_nodes(NodeSamplerInput(None, IDS)).node.equal(out.node)
    for name in ("time_attr", "data", "sample_direction"):
        with pytest.raises(AttributeNotSettable, match=name):
            setattr(sampler, name, None)


@pytest.mark.parametrize(
    ("message", "call"),
    [
        ("time_attr", lambda: NeighborSampler(plain(), [1], time_attr="when")),
        ("weight", lambda: NeighborSampler(plain(), [1], weight_attr="heavy")),
        ("num_neighbors", lambda: NeighborSampler(plain(), 3)),
        ("num_neighbors", lambda: NeighborSampler(typed(), {LIKES: [1]})),
        ("sample_direction", lambda: NeighborSampler(plain(), [1], sample_direction="backward")),
        ("data must be", lambda: NeighborSampler("graph", [1])),  # type: ignore[arg-type]
        ("holds node 60", lambda: NeighborSampler(plain(), [1]).sample_from_nodes(NodeSamplerInput(None, torch.tensor([60])))),
        ("the target 60", lambda: NeighborSampler(plain(), [1]).sample_from_edges(EdgeSamplerInput(None, *torch.tensor([[1], [60]])))),
        ("'user'", lambda: NeighborSampler(plain(), [1]).sample_from_nodes(NodeSamplerInput(None, IDS, input_type="user"))),
        ("'likes'", lambda: NeighborSampler(plain(), [1]).sample_from_edges(EdgeSamplerInput(None, *LINKS, input_type=LIKES))),
        ("several node types", lambda: NeighborSampler(typed(), [1]).sample_from_nodes(NodeSamplerInput(None, IDS))),
        ("unknown edge type", lambda: NeighborSampler(typed(), [1]).sample_from_edges(EdgeSamplerInput(None, *LINKS))),
        ("links' times", lambda: NeighborSampler(plain(), [1], time_attr="time").sample_from_edges(EdgeSamplerInput(None, *LINKS))),
    ],
)
def test_mistakes(message: str, call: Any) -> None:
    with pytest.raises(PlanError, match=message):
        call()


# Lightning and RelBench ------------------------------------------------------------------------------------------------------


IGNORED = pytest.mark.filterwarnings(
    "ignore:The `srun` command",
    "ignore:.*does not have many workers",
    "ignore:.*isinstance.treespec",
    "ignore:.*shuffling enabled",
    "ignore:You defined a `validation",
)


class Recorder(lightning.LightningModule):
    """A model that notes its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)
        self.trained: list[int] = []
        self.validated: list[int] = []

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        self.trained += batch.input_id.tolist()
        return self.linear(batch.x).mean()

    def validation_step(self, batch: Any, index: int) -> None:
        self.validated += batch.input_id.tolist()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.01)


def fit(folder: Path, *given: Any, epochs: int = 1, **options: Any) -> Recorder:
    model = Recorder()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", devices=1, num_sanity_val_steps=0, default_root_dir=folder, **quiet, **options
    )
    trainer.fit(model, *given)
    return model


@IGNORED
@pytest.mark.parametrize("loader", ["neighbor", "custom"])
def test_lightnings_data_modules(tmp_path: Path, loader: str) -> None:
    data = plain()
    options: dict[str, Any] = {"loader": loader, "batch_size": 5, "pin_memory": False, "eval_loader_kwargs": {"num_neighbors": [-1]}}
    nodes = LightningNodeData(data, IDS, None, IDS[:10], node_sampler=NeighborSampler(data, [2]), **options)
    model = fit(tmp_path, nodes)
    assert sorted(model.trained) == list(range(25)) and sorted(model.validated) == list(range(10))
    assert nodes.graph_sampler.num_neighbors.values == [2] and nodes.eval_graph_sampler.num_neighbors.values == [-1]
    links = LightningLinkData(data, LINKS, input_val_edges=LINKS[:, :10], link_sampler=NeighborSampler(data, [2]), **options)
    model = fit(tmp_path, links)
    assert sorted(model.trained) == list(range(20)) and sorted(model.validated) == list(range(10))


@IGNORED
def test_lightning_validates_with_the_loader_that_it_trains_with(tmp_path: Path) -> None:
    loader = NeighborLoader(plain(), [2], batch_size=10, shuffle=True)
    model = fit(tmp_path, loader, loader, epochs=2, val_check_interval=2)
    assert sorted(model.trained) == sorted(2 * list(range(60))) and sorted(model.validated) == sorted(6 * list(range(60)))


@IGNORED
def test_lightning_goes_on_amid_an_epoch(tmp_path: Path) -> None:
    """A checkpoint holds the loader's state; the loader that goes on has drawn another seed."""

    class Breaks(Recorder):
        def on_train_batch_end(self, *given: Any) -> None:
            if len(self.trained) == 30:
                self.trainer.save_checkpoint(tmp_path / "half.ckpt")

    options = {"accelerator": "cpu", "devices": 1, "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    first = Breaks()
    trainer = lightning.Trainer(max_epochs=1, enable_checkpointing=False, default_root_dir=tmp_path, **options)
    trainer.fit(first, NeighborLoader(plain(), [2], batch_size=10, shuffle=True))
    second = Recorder()
    trainer = lightning.Trainer(max_epochs=1, enable_checkpointing=False, default_root_dir=tmp_path, **options)
    trainer.fit(second, NeighborLoader(plain(), [2], batch_size=10, shuffle=True), ckpt_path=tmp_path / "half.ckpt", weights_only=False)
    assert second.trained == first.trained[30:]


def test_relbenchs_way_of_loading_recommendations() -> None:
    """As its ``LinkNeighborLoader``: two loaders that share a sampler, asked for the batches of sources and of destinations."""

    class Asked(NodeLoader):  # type: ignore[misc]
        def around(self, inputs: NodeSamplerInput) -> Any:
            return self.filter_fn(self.node_sampler.sample_from_nodes(inputs))

    data = typed()
    sampler = NeighborSampler(data, [4, 3], disjoint=True, temporal_strategy="last", time_attr="time", share_memory=True)
    for node_type in ("user", "item"):
        ids, time = torch.tensor([3, 8, 1]), torch.tensor([12, 20, 9])
        batch = Asked(data, sampler, node_type).around(NodeSamplerInput(ids, ids, time, node_type))
        assert batch[node_type].input_id.equal(ids) and batch[node_type].seed_time.equal(time) and batch[node_type].batch_size == 3
        for store in batch.node_stores:
            sampled = slice(3 if store._key == node_type else 0, None)
            assert (store.time[sampled] <= time[store.batch[sampled]]).all()

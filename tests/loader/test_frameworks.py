"""Changing the loader line is all it takes: PyG's tools, Lightning and accelerate."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import HeteroConv, SAGEConv
from torch_geometric.utils import trim_to_layer

from gnnkit import GraphLoader
from tests.loader.graphs import make, plain, typed


class Sage(torch.nn.Module):
    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList([SAGEConv(8 if i == 0 else 16, 16 if i < layers - 1 else 4) for i in range(layers)])

    def forward(self, batch: Any, trim: bool = False) -> torch.Tensor:
        x, edge_index = batch.x, batch.edge_index
        for i, conv in enumerate(self.convs):
            if trim:
                x, edge_index, _ = trim_to_layer(i, batch.num_sampled_nodes, batch.num_sampled_edges, x, edge_index)
            x = conv(x, edge_index)
            x = F.relu(x) if i < len(self.convs) - 1 else x
        return x[: batch.batch_size]


def test_trim_to_layer_changes_no_output() -> None:
    torch.manual_seed(0)
    model = Sage()
    with make(num_neighbors=[3, 2, 2], shuffle=True) as loader:
        for batch in loader:
            assert torch.allclose(model(batch, trim=True), model(batch), atol=1e-5)


def test_trim_to_layer_of_a_typed_batch() -> None:
    torch.manual_seed(0)
    data = typed()
    data["tag"].x = torch.rand(20, 4)
    convs = [HeteroConv({edge_type: SAGEConv((4, 4), 4) for edge_type in data.edge_types}) for _ in range(3)]

    with make(data, input_nodes="paper", num_neighbors=[3, 2, 2]) as loader:

        def run(batch: Any, trim: bool) -> torch.Tensor:
            x, edge_index = batch.x_dict, batch.edge_index_dict
            for i, conv in enumerate(convs):
                if trim:
                    x, edge_index, _ = trim_to_layer(i, batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict, x, edge_index)
                x = conv(x, edge_index)
            result: torch.Tensor = x["paper"][: batch["paper"].batch_size]
            return result

        for batch in loader:
            assert torch.allclose(run(batch, True), run(batch, False), atol=1e-5)


def test_full_neighbourhoods_give_the_full_graphs_output() -> None:
    """A model sees through batches of whole neighbourhoods exactly what it sees on the graph itself."""
    torch.manual_seed(0)
    model, data = Sage(2), plain()
    whole = model(data.clone().update({"batch_size": data.num_nodes}))
    with make(data, num_neighbors=[-1, -1]) as loader:
        parts = torch.cat([model(batch) for batch in loader])
    assert torch.allclose(parts, whole, atol=1e-5)


def training_step(model: Sage, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch), batch.y[: batch.batch_size])


@pytest.mark.slow
def test_lightning_takes_it_unchanged() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's and its dependencies' own
        import lightning

        seen: list[list[int]] = []
        losses: list[float] = []

        class Module(lightning.LightningModule):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.model = Sage()

            def on_train_epoch_start(self) -> None:
                seen.append([])

            def training_step(self, batch: Any, _: int) -> torch.Tensor:
                seen[-1] += batch.input_id.tolist()
                loss = training_step(self.model, batch)
                losses.append(loss.item())
                return loss

            def validation_step(self, batch: Any, _: int) -> None:
                self.log("valid", training_step(self.model, batch), batch_size=batch.batch_size)

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return torch.optim.Adam(self.parameters(), 0.02)

        options: dict[str, Any] = {
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
        }
        trainer = lightning.Trainer(max_epochs=4, accelerator="cpu", devices=1, **options)
        with make(input_nodes="train", num_neighbors=[3, 2, 2]) as train, train.for_split("valid") as valid:
            trainer.fit(Module(), train, valid)
    assert [sorted(epoch) for epoch in seen] == [list(range(60))] * 4
    assert len({tuple(epoch) for epoch in seen}) == 4
    assert trainer.global_step == 4 * 9 and losses[-1] < losses[0]
    assert "valid" in trainer.callback_metrics


def test_accelerate_takes_it_unchanged() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from accelerate import Accelerator

        model = Sage()
        accelerator = Accelerator(cpu=True)
        with make(input_nodes="train", num_neighbors=[3, 2, 2]) as loader:
            model, optimizer, prepared = accelerator.prepare(model, torch.optim.Adam(model.parameters(), 0.02), loader)
            seen = []
            for _ in range(2):
                for batch in prepared:
                    optimizer.zero_grad()
                    accelerator.backward(training_step(model, batch))
                    optimizer.step()
                    seen.append(batch.input_id)
    assert torch.cat(seen).bincount().tolist() == [2] * 60


def test_the_words_are_pygs() -> None:
    """Every argument that both loaders have means the same, under the same name and with the same default."""
    import inspect

    theirs = inspect.signature(NeighborLoader.__init__).parameters
    sampling = {"num_neighbors", "input_nodes", "replace", "transform"}
    ours = inspect.signature(GraphLoader.from_pyg).parameters
    assert sampling <= set(theirs) & set(ours)
    for name in sampling - {"num_neighbors"}:
        assert ours[name].default == theirs[name].default, name


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), "meta"])
def test_device(device: Any) -> None:
    with make(device=device) as loader:
        for batch in (*loader, loader.peek(), loader.sample([1])):
            assert all(value.device == torch.device(device) for _, value in batch if isinstance(value, torch.Tensor))
        assert loader.stats().batches == 15


@pytest.mark.gpu
def test_cuda_batches_are_equal() -> None:
    with make(shuffle=True) as on_host, make(shuffle=True, device="cuda") as on_device:
        for _ in range(3):
            held = list(on_device)
            for left, right in zip(on_host, held, strict=True):
                assert right.x.device.type == "cuda"
                for name, value in left:
                    if isinstance(value, torch.Tensor):
                        assert value.equal(right[name].cpu()), name

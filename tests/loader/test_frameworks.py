"""Changing the loader line is all it takes: PyG's tools, Lightning and accelerate."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import HeteroConv, SAGEConv
from torch_geometric.utils import trim_to_layer

import gnnkit
from gnnkit import GraphLoader
from tests.helpers.machine import ROOT
from tests.helpers.ports import free_port
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
@pytest.mark.core
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


_LIGHTNING = """
import json, sys, warnings
warnings.simplefilter("ignore")  # Lightning's and its dependencies' own
import lightning, torch
from lightning.pytorch.utilities import CombinedLoader
from gnnkit.pyg import HGTLoader, LinkNeighborLoader, NeighborLoader, ShaDowKHopSampler
from tests.loader.graphs import make, plain, typed

out, strategy, uses_sampler = sys.argv[1:]


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
        self.epochs = []

    def on_train_epoch_start(self):
        self.epochs.append({})

    def training_step(self, batches, _):
        for name, batch in batches.items():
            if batch is not None:
                batch = batch["paper"] if name.startswith("HGTLoader") else batch
                places = (batch.input_id if "input_id" in batch else batch.y).tolist()
                self.epochs[-1].setdefault(name, []).extend(place - 1000 * ("named" in name) for place in places)
        return self.layer(torch.ones(8)).mean()

    def on_train_end(self):
        lengths = {name: len(loader) for name, loader in self.trainer.train_dataloader.items()}
        with open(f"{out}/{self.global_rank}", "w") as file:
            json.dump([lengths, self.epochs], file)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


if __name__ == "__main__":
    data, options = plain(), {"batch_size": 10, "shuffle": True}
    data.y = torch.arange(100)
    graph_loader = make(data, **options)
    loaders = {
        "GraphLoader": graph_loader,
        "for_split": graph_loader.for_split(None, shuffle=True),
        "for_links": graph_loader.for_links(data.edge_index[:, :100], shuffle=True),
        "Colocated": graph_loader.with_backend("colocated"),
        "NeighborLoader": NeighborLoader(data, [3, 2], torch.arange(100), **options),
        "LinkNeighborLoader": LinkNeighborLoader(data, [3], edge_label_index=data.edge_index[:, :100], num_workers=1, **options),
        "HGTLoader": HGTLoader(typed(), [4], "paper", **options),
        "ShaDowKHopSampler": ShaDowKHopSampler(data, 1, 3, **options),
        "NeighborLoader, named": NeighborLoader(data, [3, 2], torch.arange(100), input_id=1000 + torch.arange(100), **options),
        "LinkNeighborLoader, named": LinkNeighborLoader(data, [3], data.edge_index[:, :100], input_id=1000 + torch.arange(100), **options),
        "HGTLoader, named": HGTLoader(typed(), [4], "paper", input_id=1000 + torch.arange(60), **options),
    }
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", devices=2, strategy=strategy, use_distributed_sampler=uses_sampler == "True",
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Module(), CombinedLoader(loaders, "max_size"))
"""


@pytest.mark.slow(seconds=60)
@pytest.mark.parametrize(("strategy", "uses_sampler"), [("ddp", True), ("ddp_spawn", True), ("ddp", False)])
def test_two_devices_of_lightning_share_an_epoch(strategy: str, uses_sampler: bool, tmp_path: Path) -> None:
    """Loaders that the script makes before there is a process group, with the real Trainer and without a hook."""
    (tmp_path / "script.py").write_text(_LIGHTNING)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path), strategy, str(uses_sampler)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GNNKIT_PROGRESS": "off"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    (lengths, epochs), (_, others) = (json.loads((tmp_path / str(rank)).read_text()) for rank in range(2))
    assert len(epochs) == len(others) == 2
    for first, second in zip(epochs, others, strict=True):
        assert len(first) == 11
        for name, mine in first.items():
            kind = name.removesuffix(", named")
            inputs = list(range(60 if kind == "HGTLoader" else 100))
            is_whole = not uses_sampler and kind in ("NeighborLoader", "LinkNeighborLoader", "HGTLoader", "ShaDowKHopSampler")
            assert sorted(mine) == inputs if is_whole else sorted(mine + second[name]) == inputs, name
            assert lengths[name] == len(inputs) // (10 if is_whole else 20), name


def test_lightning_predicts_with_one_device() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's and its dependencies' own
        import lightning

        class Module(lightning.LightningModule):  # type: ignore[misc]
            def predict_step(self, batch: Any, _: int) -> torch.Tensor:
                ids: torch.Tensor = batch.input_id if "input_id" in batch else batch.y
                return ids

        data, quiet = plain(), {"enable_progress_bar": False, "enable_model_summary": False}
        data.y = torch.arange(100)
        trainer = lightning.Trainer(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, **quiet)
        with make(data) as loader:
            for predicting in (
                loader,
                gnnkit.pyg.NeighborLoader(data, [3, 2], batch_size=30, drop_last=True),
                gnnkit.pyg.LinkNeighborLoader(data, [3], edge_label_index=data.edge_index[:, :100], batch_size=30),
                gnnkit.pyg.ShaDowKHopSampler(data, 1, 2, batch_size=30),
            ):
                assert torch.cat(trainer.predict(Module(), predicting)).tolist() == list(range(100))


_ACCELERATE = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
import torch
from accelerate import Accelerator
from gnnkit.pyg import LinkNeighborLoader, NeighborLoader
from tests.loader.graphs import make, plain

data = plain()
loaders = [
    make(data, batch_size=10, shuffle=True),
    NeighborLoader(data, [3, 2], batch_size=10, shuffle=True),
    NeighborLoader(data, [3, 2], batch_size=10, num_workers=1),
    LinkNeighborLoader(data, [3], edge_label_index=data.edge_index[:, :100], batch_size=10, shuffle=True),
]
accelerator = Accelerator(cpu=True)
loaders = accelerator.prepare(*loaders)
seen = [[torch.cat([batch.input_id for batch in loader]).tolist() for _ in range(2)] for loader in loaders]
with open(f"{sys.argv[1]}/{accelerator.process_index}", "w") as file:
    json.dump(seen, file)
accelerator.end_training()
"""


@pytest.mark.slow(seconds=60)
def test_two_processes_of_accelerate_share_an_epoch(tmp_path: Path) -> None:
    """Loaders that are made before the ``Accelerator``; what ``prepare`` makes of those of ``gnnkit.pyg`` samples in a worker, too."""
    (tmp_path / "script.py").write_text(_ACCELERATE)
    given = {"PYTHONPATH": str(ROOT), "GNNKIT_PROGRESS": "off", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    given |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "ACCELERATE_USE_CPU": "true"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(tmp_path / "script.py"), str(tmp_path)],
            env={**os.environ, **given, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=280)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "".join(errors)[-3000:]
    seen = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(2)]
    for first, second in zip(*seen, strict=True):
        assert all(sorted(mine + other) == list(range(100)) for mine, other in zip(first, second, strict=True))


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
    for name in sampling - {"num_neighbors", "input_nodes"}:  # all nodes are said: a loader starts from "train" where there is one
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

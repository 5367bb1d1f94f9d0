"""What other libraries put around loaders: batches and their order stay, and so does the position."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from torch_geometric.data import Data
from torch_geometric.loader import CachedLoader, PrefetchLoader, ZipLoader
from torchdata import nodes
from torchdata.stateful_dataloader import StatefulDataLoader

from gnnkit import GraphLoader
from gnnkit.errors import PlanError
from gnnkit.pyg import LinkNeighborLoader, NeighborLoader, Node2Vec
from tests.helpers.batches import same

# What these packages do with torch is their own affair.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
CPU = torch.device("cpu")


def graph() -> Data:
    edge_index = torch.randint(0, 50, (2, 400), generator=torch.Generator().manual_seed(0))
    return Data(x=torch.arange(50.0).view(-1, 1), edge_index=edge_index, y=torch.arange(50) % 3)


OPTIONS: dict[str, Any] = {"batch_size": 8, "shuffle": True}
MAKERS: dict[str, Callable[[], Any]] = {
    "GraphLoader": lambda: GraphLoader.from_pyg(graph(), num_neighbors=[2], progress=False, **OPTIONS),
    "NeighborLoader": lambda: NeighborLoader(graph(), [2], **OPTIONS),
    "LinkNeighborLoader": lambda: LinkNeighborLoader(graph(), [2], graph().edge_index[:, :50], **OPTIONS),
    "Node2Vec": lambda: Node2Vec(graph().edge_index, 4, 3, 2, num_nodes=50).loader(**OPTIONS),
}


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Iterator[Callable[[], Any]]:
    """Makes loaders of the same batches."""
    with contextlib.ExitStack() as stack:

        def maker() -> Any:
            torch.manual_seed(7)
            loader = MAKERS[request.param]()
            stack.callback(getattr(loader, "graph_loader", loader).close)
            return loader

        yield maker


def equal(left: Any, right: Any) -> bool:
    """Whether lists of batches are equal."""
    for one, other in zip(left, right, strict=True):
        if isinstance(one, Data):
            same(one, other)
        elif not all(a.equal(b) for a, b in zip(one, other, strict=True)):
            return False
    return True


class Batches(IterableDataset[Any]):
    """As ``docs/recipes.md`` writes it."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.state_dict, self.load_state_dict = loader.state_dict, loader.load_state_dict

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


def test_data_loader(make: Callable[[], Any]) -> None:
    assert equal(DataLoader(Batches(make()), batch_size=None), make())
    with pytest.raises((TypeError, PlanError), match="not subscriptable|has no item"):
        next(iter(DataLoader(make(), batch_size=None)))


@pytest.mark.parametrize("kind", ["StatefulDataLoader", "nodes"])
def test_torchdata_goes_on_amid_an_epoch(make: Callable[[], Any], kind: str) -> None:
    def wrapped() -> Any:
        if kind == "nodes":
            return nodes.Loader(nodes.Prefetcher(nodes.IterableWrapper(make()), prefetch_factor=2))
        return StatefulDataLoader(Batches(make()), batch_size=None)

    loader, wanted = wrapped(), list(make())
    iterator = iter(loader)
    first = [next(iterator) for _ in range(2)]
    state, again = loader.state_dict(), wrapped()
    again.load_state_dict(state)
    rest = list(iterator)
    assert equal([*first, *rest], wanted) and equal(again, rest)


def test_loaders_of_pyg_around_them(make: Callable[[], Any]) -> None:
    wanted = list(make())
    assert equal([pair[0] for pair in zip(make(), make(), strict=True)], wanted)
    assert equal(PrefetchLoader(make(), device=CPU), wanted)
    if isinstance(wanted[0], Data):  # a pair of tensors it takes apart, whoever made it
        cached = CachedLoader(make(), device=CPU)
        assert equal(cached, wanted) and equal(cached, wanted), "the first epoch again"


@pytest.mark.parametrize("kind", [NeighborLoader, LinkNeighborLoader])
def test_zip_loader(kind: Any) -> None:
    """It takes PyG's loaders, which those of ``gnnkit.pyg`` are, and says of a ``GraphLoader`` that it is none."""
    inputs = graph().edge_index[:, :20] if kind is LinkNeighborLoader else torch.arange(20)
    zipped = list(ZipLoader([kind(graph(), [2], inputs), NeighborLoader(graph(), [2], torch.arange(20))], batch_size=10))
    assert len(zipped) == 2 and all(isinstance(batch, Data) for pair in zipped for batch in pair)
    with MAKERS["GraphLoader"]() as loader, pytest.raises(AttributeError, match="data"):
        ZipLoader([loader, loader])


class Counting(lightning.LightningModule):
    """Remembers what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.seen = torch.nn.Parameter(torch.ones(1)), []  # type: ignore[var-annotated]

    def training_step(self, batch: Any, index: int) -> Any:
        self.seen.append(batch)
        return self.weight.sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_a_data_module_of_lightnings(make: Callable[[], Any], tmp_path: Path) -> None:
    class Module(lightning.LightningDataModule):
        def train_dataloader(self) -> Any:
            return make()

    model, quiet = Counting(), {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", devices=1, logger=False, default_root_dir=tmp_path, **quiet)
    trainer.fit(model, Module())
    wanted = make()
    if isinstance(wanted, GraphLoader):  # Lightning begins an iteration of what is no DataLoader, to see whether it can
        wanted.set_epoch(1)
    assert equal(model.seen, wanted)
    assert os.listdir(tmp_path) == []

"""The demonstration: GraphSAGE on a graph of OGBN-Products' shape and on Cora, measured against what needs no graph.

Between the two, the batches of the first are sampled again in two parts, by background processes and by servers, and must be the same.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.nn import MLP, SAGEConv
from torch_geometric.transforms import NormalizeFeatures

from gnnkit.backends.base import Backend
from gnnkit.backends.colocated import Colocated
from gnnkit.backends.graph_store import GraphStore
from gnnkit.backends.inprocess import InProcess
from gnnkit.datasets.citations import cora
from gnnkit.datasets.synthetic import PRODUCTS, GeneratedSource, products_like
from gnnkit.events import EventSink, Stage
from gnnkit.graph_loader import GraphLoader
from gnnkit.loader.inspection import batches_digest
from gnnkit.ui.progress import make_sink

# What GraphSAGE must be better by, in points of test accuracy.
MARGIN_OVER_MAJORITY = 20.0
MARGIN_OVER_MLP = 5.0
# Writes a line of the report.
Say: TypeAlias = Callable[[str], None]


def run_demo(
    scale: float = 0.1,
    *,
    epochs: int | None = None,
    progress: bool | str = "auto",
    store_dir: str | Path | None = None,
    stream: IO[str] | None = None,
) -> int:
    """Trains on a generated graph and on Cora and compares test accuracies with the majority class and a features-only MLP.

    The batches of the generated graph are then compared with those that background processes and servers sample from it in two parts.
    PyTorch's random state and number of threads are as before afterwards.

    Args:
        scale: Size of the generated graph relative to OGBN-Products.
        epochs: Epochs on the generated graph; None is as many as make about 80 steps.
        progress: How progress is drawn; see ``gnnkit.ui.progress.make_sink``.
        store_dir: Where the generated graph's store is kept; None is the default folder of stores.
        stream: Where the report goes; None is ``sys.stdout``.

    Returns:
        0 if GraphSAGE beats the majority class by 20 points and the MLP by 5 points on both graphs and the batches are the same, else 1.

    Raises:
        GnnkitError: The graph could not be generated, stored or sampled.
    """
    source, started = products_like(scale), time.perf_counter()
    say: Say = partial(print, file=sys.stdout if stream is None else stream, flush=True)
    kept: dict[str, Any] = {"store_dir": store_dir, "progress": progress}
    with make_sink(progress) as events, torch.random.fork_rng(devices=[]), _a_core_left_for_sampling():
        passed = [verdict(train_on_products_like(source, epochs, events, say, **kept), say)]
        say(f"{source.name} once more, in other places")
        passed.append(compare_places(partial(_training_loader, source, **kept), say))
        passed.append(verdict(train_on_cora(events, say), say))
    return conclude(passed, time.perf_counter() - started, say)


def conclude(passed: Sequence[bool], seconds: float, say: Say) -> int:
    """Says whether all has passed and how long it took; the exit code, 0 or 1."""
    say(f"{'passed' if all(passed) else 'FAILED'} in {seconds:.0f} s")
    return 0 if all(passed) else 1


@contextmanager
def _a_core_left_for_sampling() -> Iterator[None]:
    """PyTorch's threads wait for each other by spinning: with as many as there are cores, one that samples stops them all."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, before - 1))
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Scores:
    """Test accuracies on one graph, as shares of one.

    Attributes:
        majority: Of always answering the most frequent class of the test nodes: the best constant answer.
        mlp: Of a network that sees a node's features and not its neighbours.
        sage: Of GraphSAGE.
        measured_on: Which test nodes they were measured on.
    """

    majority: float
    mlp: float
    sage: float
    measured_on: str

    @property
    def passed(self) -> bool:
        """Whether GraphSAGE is better by the margins."""
        return 100 * (self.sage - self.majority) >= MARGIN_OVER_MAJORITY and 100 * (self.sage - self.mlp) >= MARGIN_OVER_MLP


def verdict(scores: Scores, say: Say) -> bool:
    """Says the accuracies and whether they are good enough, which it returns."""
    say(f"  test accuracy on {scores.measured_on}")
    for name, value in (("majority class", scores.majority), ("features-only MLP", scores.mlp), ("GraphSAGE", scores.sage)):
        say(f"    {name:<18} {100 * value:5.1f} %")
    over_majority, over_mlp = 100 * (scores.sage - scores.majority), 100 * (scores.sage - scores.mlp)
    outcome = "ok" if scores.passed else "NOT ENOUGH"
    say(
        f"  {outcome}: {over_majority:+.1f} points over the majority class (needed: {MARGIN_OVER_MAJORITY:g}), "
        f"{over_mlp:+.1f} over the MLP (needed: {MARGIN_OVER_MLP:g})\n"
    )
    return scores.passed


class Sage(nn.Module):
    """GraphSAGE with mean aggregation.

    Each layer computes the nodes that the layers after it still need and no others: PyG's ``trim_to_layer`` one step further, as
    its outermost nodes are read and never computed. On a batch with fan-out 10, 5, 5 that halves the work.

    Args:
        num_features: Width of the input.
        hidden: Width between layers.
        num_layers: As many as the batches have hops.
        num_classes: Width of the output.
        dropout: Between layers.
    """

    def __init__(self, num_features: int, hidden: int, num_layers: int, num_classes: int, dropout: float) -> None:
        super().__init__()
        widths = [num_features] + [hidden] * (num_layers - 1) + [num_classes]
        self.convs = nn.ModuleList(SAGEConv(width, next_width) for width, next_width in zip(widths[:-1], widths[1:], strict=True))
        self.dropout = dropout

    def forward(self, batch: Any) -> Tensor:
        """Logits of the seeds of a batch, ``[batch_size, num_classes]``."""
        x, nodes, edges = batch.x, batch.num_sampled_nodes, batch.num_sampled_edges
        for layer, conv in enumerate(self.convs):
            hops = len(self.convs) - layer
            x = conv((x, x[: sum(nodes[:hops])]), batch.edge_index[:, : sum(edges[:hops])])
            if hops > 1:
                x = nn.functional.dropout(x.relu(), self.dropout, self.training)
        return cast(Tensor, x)


class FeaturesOnly(nn.Module):
    """A network of the same depth and width that sees no edges; see ``Sage``."""

    def __init__(self, num_features: int, hidden: int, num_layers: int, num_classes: int) -> None:
        super().__init__()
        self.layers = MLP([num_features, *[hidden] * (num_layers - 1), num_classes], dropout=0.5, norm=None)

    def forward(self, batch: Any) -> Tensor:
        """Logits of the seeds of a batch from their features alone."""
        return cast(Tensor, self.layers(batch.x[: batch.batch_size]))


def train(
    model: nn.Module,
    loader: GraphLoader,
    *,
    epochs: int,
    lr: float,
    events: EventSink,
    label: str,
    weight_decay: float = 0.0,
) -> None:
    """Trains with Adam and cross entropy on the loader's seeds.

    Args:
        model: Changed in place.
        loader: Gives the batches; each epoch iterates over it once.
        epochs: Number of passes.
        lr: Learning rate.
        events: Receives the stage "train", all epochs in one.
        label: What to call it there.
        weight_decay: Adam's.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, weight_decay=weight_decay)
    model.train()
    with Stage(events, "train", label=label, total=epochs * len(loader), unit="batches") as stage:
        for _ in range(epochs):
            for batch in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(batch), batch.y[: batch.batch_size])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                stage.advance()


@torch.no_grad()
def accuracy(model: nn.Module, loader: GraphLoader, *, events: EventSink, label: str) -> float:
    """Share of the loader's seeds whose class the model gives.

    Args:
        model: Put into evaluation mode.
        loader: Gives the seeds.
        events: Receives the stage "test".
        label: What to call it there.
    """
    model.eval()
    hits = seeds = 0
    with Stage(events, "test", label=label, total=len(loader), unit="batches") as stage:
        for batch in loader:
            hits += int((model(batch).argmax(1) == batch.y[: batch.batch_size]).sum())
            seeds += batch.batch_size
            stage.advance()
    return hits / seeds


# 3 layers as in OGB's example; a smaller fan-out than its [15, 10, 5] keeps two CPU cores busy for a minute and not for four.
_NUM_NEIGHBORS = [10, 5, 5]
_HIDDEN = 256
_BATCH_SIZE = 1024
_MIN_BATCHES = 15
_STEPS = 80
_MLP_STEPS = 300
_TEST_NODES = 20_480


def train_on_products_like(source: GeneratedSource, epochs: int | None, events: EventSink, say: Say, **kept: Any) -> Scores:
    """Trains a 3-layer GraphSAGE of width 256 on a graph that is like OGBN-Products.

    Args:
        source: The graph, see ``products_like``.
        epochs: Passes over the training nodes; None is as many as make about 80 steps.
        events: Receives the progress of training.
        say: Receives the facts.
        **kept: Where the graph's store is kept, and how its building is drawn: see ``GraphLoader.from_source``.
    """
    num_features, num_classes, splits = PRODUCTS.num_features, PRODUCTS.num_classes, source.splits["node"]
    say(f"{source.name}: {source.notice}")
    say(f"  {source.num_nodes:,} nodes, {source.schema.num_edges:,} edges, {num_features} features, {num_classes} classes")
    started = time.perf_counter()
    with _training_loader(source, **kept) as loader:
        say(f"  store ready after {time.perf_counter() - started:.1f} s: {loader.store.path}")
        epochs = max(1, math.ceil(_STEPS / len(loader))) if epochs is None else epochs
        say(f"  training on {len(splits['train']):,} nodes: {epochs} epochs of {len(loader)} batches, fan-out {_NUM_NEIGHBORS}")
        test = splits["test"]
        if len(test) > _TEST_NODES:  # so many, evenly spread over all of them
            test = test[np.arange(_TEST_NODES) * len(test) // _TEST_NODES]
        torch.manual_seed(0)
        sage = Sage(num_features, _HIDDEN, 3, num_classes, dropout=0.0)
        train(sage, loader, epochs=epochs, lr=0.005, events=events, label="GraphSAGE")
        with loader.for_split(test, batch_size=_BATCH_SIZE) as test_loader:
            sage_accuracy = accuracy(sage, test_loader, events=events, label="GraphSAGE")
        mlp = FeaturesOnly(num_features, _HIDDEN, 3, num_classes)
        with loader.for_split("train", num_neighbors=[0], shuffle=True) as features_only:
            mlp_epochs = math.ceil(_MLP_STEPS / len(features_only))
            train(mlp, features_only, epochs=mlp_epochs, lr=0.003, events=events, label="features-only MLP")
        with loader.for_split(test, num_neighbors=[0], batch_size=_BATCH_SIZE) as test_features:
            mlp_accuracy = accuracy(mlp, test_features, events=events, label="features-only MLP")
    measured_on = f"{len(test):,} of {len(splits['test']):,} test nodes, drawn evenly; neighbours sampled as in training"
    return Scores(_share_of_largest(source.labels[test]), mlp_accuracy, sage_accuracy, measured_on)


def train_on_cora(events: EventSink, say: Say, *, seed: int = 0) -> Scores:
    """Trains a 2-layer GraphSAGE on Cora's public split.

    Args:
        events: Receives the progress.
        say: Receives the facts.
        seed: Random seed of the model and of the loader.
    """
    data = NormalizeFeatures()(cora())
    num_classes = int(data.y.max()) + 1
    say("cora: citations between papers, real data")
    say(f"  {data.num_nodes:,} nodes, {data.num_edges:,} edges, {data.num_features:,} features, {num_classes} classes")
    torch.manual_seed(seed)
    loader = GraphLoader.from_pyg(data, input_nodes="train", num_neighbors=[10, 10], batch_size=140, seed=seed, progress=False)
    with loader, loader.for_split("test", num_neighbors=[-1, -1], batch_size=1000) as test_loader:

        def learn(model: nn.Module, label: str) -> float:
            train(model, loader, epochs=100, lr=0.01, weight_decay=5e-4, events=events, label=label)
            return accuracy(model, test_loader, events=events, label=label)

        sage = learn(Sage(data.num_features, 64, 2, num_classes, dropout=0.5), "GraphSAGE")
        mlp = learn(FeaturesOnly(data.num_features, 64, 2, num_classes), "features-only MLP")
    return Scores(_share_of_largest(data.y[data.test_mask].numpy()), mlp, sage, "all 1,000 test nodes")


def _training_loader(source: GeneratedSource, **options: Any) -> GraphLoader:
    batch_size = max(1, min(_BATCH_SIZE, len(source.splits["node"]["train"]) // _MIN_BATCHES))
    return GraphLoader.from_source(source, num_neighbors=_NUM_NEIGHBORS, batch_size=batch_size, **options)


def _share_of_largest(labels: NDArray[Any]) -> float:
    return float(np.bincount(labels).max() / len(labels))


_TIMED_EPOCHS = 3
# The places that sample the same batches, each with a number of parts and a backend.
_PLACES: Mapping[str, tuple[int, Backend]] = {
    "InProcess(2)": (1, InProcess(num_threads=2)),
    "Colocated(2)": (2, Colocated(num_workers=2)),
    "GraphStore(2)": (2, GraphStore(num_servers=2)),
}


def compare_places(make_loader: Callable[..., GraphLoader], say: Say) -> bool:
    """Samples an epoch by threads of this process from a whole graph, and by processes and by servers from the same graph in parts.

    Args:
        make_loader: The loader for ``num_parts`` and a ``backend``, everything else being equal.
        say: Receives seeds per second of each and whether their batches are the same.

    Returns:
        Whether they are; also where there are no sampling processes, which the report says then.
    """
    if sys.platform != "linux":
        say(f"  sampling processes need Linux, this is {sys.platform}: the same batches from processes are not shown")
        return True
    digests, counts = [], []
    for name, (num_parts, backend) in _PLACES.items():
        started = time.perf_counter()
        with make_loader(num_parts=num_parts, backend=backend) as loader:  # nothing of it is left when the next place's turn comes
            ready_s = time.perf_counter() - started
            digests.append(batches_digest(loader))
            counts.append(len(loader))
            started = time.perf_counter()
            seeds = sum(int(batch.batch_size) for _ in range(_TIMED_EPOCHS) for batch in loader)
            say(f"    {name:<14} ready after {ready_s:4.1f} s {seeds / (time.perf_counter() - started):10,.0f} seeds/s")
    same = len(set(counts)) == len(set(digests)) == 1
    found = f"yes, all {counts[0]} of an epoch ({digests[0]})" if same else f"NO ({', '.join(digests)})"
    say(f"  identical batches: {found}\n")
    return same

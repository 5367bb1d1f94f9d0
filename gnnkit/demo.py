"""The demonstration: GraphSAGE on a graph of OGBN-Products' shape and on Cora, measured against what needs no graph.

Between the two, the batches of the first are sampled again in two parts, by background processes and by servers, and must be the same.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv
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
    source, report = products_like(scale), TrainingReport(sys.stdout if stream is None else stream)
    started = time.perf_counter()
    with make_sink(progress) as events, torch.random.fork_rng(devices=[]), _a_core_left_for_sampling():
        passed = [
            report.verdict(train_on_products_like(source, epochs, store_dir, progress, events, report)),
            compare_on_products_like(source, store_dir, progress, report),
            report.verdict(train_on_cora(events, report)),
        ]
    return report.conclude(passed, time.perf_counter() - started)


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


class TrainingReport:
    """Writes lines to a stream, each at once."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def line(self, text: str = "") -> None:
        """Writes one line."""
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def conclude(self, passed: Sequence[bool], seconds: float) -> int:
        """Writes whether all has passed and how long it took; the exit code, 0 or 1."""
        self.line(f"{'passed' if all(passed) else 'FAILED'} in {seconds:.0f} s")
        return 0 if all(passed) else 1

    def verdict(self, scores: Scores) -> bool:
        """Writes the accuracies and whether they are good enough, which it returns."""
        self.line(f"  test accuracy on {scores.measured_on}")
        for name, value in (("majority class", scores.majority), ("features-only MLP", scores.mlp), ("GraphSAGE", scores.sage)):
            self.line(f"    {name:<18} {100 * value:5.1f} %")
        over_majority, over_mlp = 100 * (scores.sage - scores.majority), 100 * (scores.sage - scores.mlp)
        needs_majority, needs_mlp = f"(needed: {MARGIN_OVER_MAJORITY:g})", f"(needed: {MARGIN_OVER_MLP:g})"
        outcome = "ok" if scores.passed else "NOT ENOUGH"
        self.line(
            f"  {outcome}: {over_majority:+.1f} points over the majority class {needs_majority}, {over_mlp:+.1f} over the MLP {needs_mlp}"
        )
        self.line()
        return scores.passed


Forward = Callable[[nn.Module, Any], Tensor]


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

    def forward(self, x: Tensor, edge_index: Tensor, num_sampled_nodes: list[int], num_sampled_edges: list[int]) -> Tensor:
        """Logits of the seeds, ``[num_sampled_nodes[0], num_classes]``.

        Args:
            x: ``[num_nodes, num_features]``, nodes in the order in which they were sampled.
            edge_index: ``[2, num_edges]``, likewise.
            num_sampled_nodes: Nodes found per hop, the seeds first.
            num_sampled_edges: Edges followed per hop.
        """
        for layer, conv in enumerate(self.convs):
            hops = len(self.convs) - layer
            targets, edges = sum(num_sampled_nodes[:hops]), sum(num_sampled_edges[:hops])
            x = conv((x, x[:targets]), edge_index[:, :edges])
            if hops > 1:
                x = nn.functional.dropout(x.relu(), self.dropout, self.training)
        return x


def sage_forward(model: nn.Module, batch: Any) -> Tensor:
    """Logits of a batch's seeds by ``Sage``."""
    out: Tensor = model(batch.x, batch.edge_index, batch.num_sampled_nodes, batch.num_sampled_edges)
    return out


def mlp_forward(model: nn.Module, batch: Any) -> Tensor:
    """Logits of the seeds from their features alone."""
    out: Tensor = model(batch.x[: batch.batch_size])
    return out


def make_mlp(num_features: int, hidden: int, num_layers: int, num_classes: int, dropout: float) -> nn.Module:
    """A network of the same depth and width that sees no edges."""
    widths = [num_features] + [hidden] * (num_layers - 1)
    layers: list[nn.Module] = []
    for width, next_width in zip(widths[:-1], widths[1:], strict=True):
        layers += [nn.Linear(width, next_width), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))


def train(
    model: nn.Module,
    loader: GraphLoader,
    forward: Forward,
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
        forward: Logits of a batch's seeds.
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
                loss = nn.functional.cross_entropy(forward(model, batch), batch.y[: batch.batch_size])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                stage.advance()


@torch.no_grad()
def accuracy(model: nn.Module, loader: GraphLoader, forward: Forward, *, events: EventSink, label: str) -> float:
    """Share of the loader's seeds whose class the model gives.

    Args:
        model: Put into evaluation mode.
        loader: Gives the seeds.
        forward: Logits of a batch's seeds.
        events: Receives the stage "test".
        label: What to call it there.
    """
    model.eval()
    hits = seeds = 0
    with Stage(events, "test", label=label, total=len(loader), unit="batches") as stage:
        for batch in loader:
            hits += int((forward(model, batch).argmax(1) == batch.y[: batch.batch_size]).sum())
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


def train_on_products_like(
    source: GeneratedSource,
    epochs: int | None,
    store_dir: str | Path | None,
    progress: bool | str,
    events: EventSink,
    report: TrainingReport,
) -> Scores:
    """Trains a 3-layer GraphSAGE of width 256 on a graph that is like OGBN-Products.

    Args:
        source: The graph, see ``products_like``.
        epochs: Passes over the training nodes; None is as many as make about 80 steps.
        store_dir: See ``GraphLoader.from_source``.
        progress: How the store's building is drawn.
        events: Receives the progress of training.
        report: Receives the facts.
    """
    report.line(f"{source.name}: {source.notice}")
    report.line(
        f"  {source.num_nodes:,} nodes, {source.schema.num_edges:,} edges, {PRODUCTS.num_features} features, {PRODUCTS.num_classes} classes"
    )
    splits = source.splits["node"]
    started = time.perf_counter()
    with _training_loader(source, store_dir, progress) as loader:
        assert loader.store is not None, "from_source builds one"
        report.line(f"  store ready after {time.perf_counter() - started:.1f} s: {loader.store.path}")
        epochs = max(1, math.ceil(_STEPS / len(loader))) if epochs is None else epochs
        report.line(f"  training on {len(splits['train']):,} nodes: {epochs} epochs of {len(loader)} batches, fan-out {_NUM_NEIGHBORS}")
        test = _some_of(splits["test"])
        torch.manual_seed(0)
        sage = Sage(PRODUCTS.num_features, _HIDDEN, 3, PRODUCTS.num_classes, dropout=0.0)
        train(sage, loader, sage_forward, epochs=epochs, lr=0.005, events=events, label="GraphSAGE")
        with loader.for_split(test, batch_size=_BATCH_SIZE) as test_loader:
            sage_accuracy = accuracy(sage, test_loader, sage_forward, events=events, label="GraphSAGE")
        mlp = make_mlp(PRODUCTS.num_features, _HIDDEN, 3, PRODUCTS.num_classes, dropout=0.5)
        with loader.for_split("train", num_neighbors=[0], shuffle=True) as features_only:
            mlp_epochs = math.ceil(_MLP_STEPS / len(features_only))
            train(mlp, features_only, mlp_forward, epochs=mlp_epochs, lr=0.003, events=events, label="features-only MLP")
        with loader.for_split(test, num_neighbors=[0], batch_size=_BATCH_SIZE) as test_features:
            mlp_accuracy = accuracy(mlp, test_features, mlp_forward, events=events, label="features-only MLP")
    measured_on = f"{len(test):,} of {len(splits['test']):,} test nodes, drawn evenly; neighbours sampled as in training"
    return Scores(_share_of_largest(source.labels[test]), mlp_accuracy, sage_accuracy, measured_on)


def compare_on_products_like(source: GeneratedSource, store_dir: str | Path | None, progress: bool | str, report: TrainingReport) -> bool:
    """Samples what GraphSAGE was trained on once more, and in two parts by background processes and by servers.

    Args:
        source: The graph, see ``products_like``.
        store_dir: See ``GraphLoader.from_source``.
        progress: How the building of the store in two parts is drawn.
        report: Receives the figures.

    Returns:
        Whether the batches are the same; see ``compare_places``.
    """
    report.line(f"{source.name} once more, in other places")
    return compare_places(
        lambda num_parts, backend: _training_loader(source, store_dir, progress, num_parts=num_parts, backend=backend), report
    )


def train_on_cora(events: EventSink, report: TrainingReport, *, seed: int = 0) -> Scores:
    """Trains a 2-layer GraphSAGE on Cora's public split.

    Args:
        events: Receives the progress.
        report: Receives the facts.
        seed: Random seed of the model and of the loader.
    """
    data = NormalizeFeatures()(cora())
    num_classes = int(data.y.max()) + 1
    report.line("cora: citations between papers, real data")
    report.line(f"  {data.num_nodes:,} nodes, {data.num_edges:,} edges, {data.num_features:,} features, {num_classes} classes")
    torch.manual_seed(seed)
    loader = GraphLoader.from_pyg(data, input_nodes="train", num_neighbors=[10, 10], batch_size=140, seed=seed, progress=False)
    with loader, loader.for_split("test", num_neighbors=[-1, -1], batch_size=1000) as test_loader:
        sage = Sage(data.num_features, 64, 2, num_classes, dropout=0.5)
        train(sage, loader, sage_forward, epochs=100, lr=0.01, weight_decay=5e-4, events=events, label="GraphSAGE")
        sage_accuracy = accuracy(sage, test_loader, sage_forward, events=events, label="GraphSAGE")
        mlp = make_mlp(data.num_features, 64, 2, num_classes, dropout=0.5)
        train(mlp, loader, mlp_forward, epochs=100, lr=0.01, weight_decay=5e-4, events=events, label="features-only MLP")
        mlp_accuracy = accuracy(mlp, test_loader, mlp_forward, events=events, label="features-only MLP")
    return Scores(_share_of_largest(data.y[data.test_mask].numpy()), mlp_accuracy, sage_accuracy, "all 1,000 test nodes")


def _training_loader(source: GeneratedSource, store_dir: str | Path | None, progress: bool | str, **options: Any) -> GraphLoader:
    batch_size = max(1, min(_BATCH_SIZE, len(source.splits["node"]["train"]) // _MIN_BATCHES))
    return GraphLoader.from_source(
        source, num_neighbors=_NUM_NEIGHBORS, batch_size=batch_size, store_dir=store_dir, progress=cast(Any, progress), **options
    )


def _some_of(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """At most ``_TEST_NODES`` ids, evenly spread over all of them."""
    if len(ids) <= _TEST_NODES:
        return ids
    return ids[np.arange(_TEST_NODES) * len(ids) // _TEST_NODES]


def _share_of_largest(labels: NDArray[Any]) -> float:
    return float(np.bincount(labels).max() / len(labels))


_NUM_PARTS = 2
_NUM_WORKERS = 2
_NUM_SERVERS = 2
_TIMED_EPOCHS = 3

MakeLoader = Callable[[int, Backend], GraphLoader]


def compare_places(make_loader: MakeLoader, report: TrainingReport) -> bool:
    """Samples an epoch by threads of this process from a whole graph, and by processes and by servers from the same graph in parts.

    Args:
        make_loader: The loader for a number of parts and a backend, everything else being equal.
        report: Receives seeds per second of each and whether their batches are the same.

    Returns:
        Whether they are; also where there are no sampling processes, which the report says then.
    """
    if sys.platform != "linux":
        report.line(f"  sampling processes need Linux, this is {sys.platform}: the same batches from processes are not shown")
        return True
    places = (
        (f"InProcess({_NUM_WORKERS})", 1, InProcess(num_threads=_NUM_WORKERS)),
        (f"Colocated({_NUM_WORKERS})", _NUM_PARTS, Colocated(num_workers=_NUM_WORKERS)),
        (f"GraphStore({_NUM_SERVERS})", _NUM_PARTS, GraphStore(num_servers=_NUM_SERVERS)),
    )
    found = [_sample(name, partial(make_loader, parts, backend), report) for name, parts, backend in places]
    digests = [digest for digest, _ in found]
    same = len({count for _, count in found}) == len(set(digests)) == 1
    verdict = f"yes, all {found[0][1]} of an epoch ({digests[0]})" if same else f"NO ({', '.join(digests)})"
    report.line(f"  identical batches: {verdict}")
    report.line()
    return same


def _sample(name: str, make: Callable[[], GraphLoader], report: TrainingReport) -> tuple[str, int]:
    """The digest and number of batches of an epoch in one place; nothing of it is left when the next one's turn comes."""
    started = time.perf_counter()
    with make() as loader:
        ready_s = time.perf_counter() - started
        digest = batches_digest(loader)
        report.line(f"    {name:<14} ready after {ready_s:4.1f} s {_seeds_per_second(loader):10,.0f} seeds/s")
        return digest, len(loader)


def _seeds_per_second(loader: GraphLoader) -> float:
    started, seeds = time.perf_counter(), 0
    for _ in range(_TIMED_EPOCHS):
        for batch in loader:
            seeds += int(batch.batch_size)
    return seeds / (time.perf_counter() - started)

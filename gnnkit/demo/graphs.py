"""The graphs of the demonstration, what is trained on them, and the same plan in three places."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.transforms import NormalizeFeatures

from gnnkit.backends.base import Backend
from gnnkit.backends.colocated import Colocated
from gnnkit.backends.graph_store import GraphStore
from gnnkit.backends.inprocess import InProcess
from gnnkit.datasets.citations import cora
from gnnkit.datasets.synthetic import PRODUCTS, GeneratedSource
from gnnkit.demo.training import Sage, Scores, TrainingReport, accuracy, make_mlp, mlp_forward, sage_forward, train
from gnnkit.events import EventSink
from gnnkit.graph_loader import GraphLoader
from gnnkit.loader.digest import batches_digest

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

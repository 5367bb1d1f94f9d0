"""What the peers' scripts share; lies beside them, so that a plain ``import _common`` finds it."""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np


def arguments() -> argparse.Namespace:
    """The command line of every script that iterates batches."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--fanout", type=int, nargs="+", default=[15, 10, 5])
    parser.add_argument("--kind", default="", help="of pyg_kinds.py")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tuned", action="store_true", help="as somebody sets it up who knows PyG well")
    parser.add_argument("--parts", action="store_true", help="each of several servers holds a part of the graph")
    return parser.parse_args()


def tensors(folder: Path) -> Any:
    """``row``, ``col``, ``feat`` and ``train`` as torch tensors in memory."""
    import torch

    return (torch.from_numpy(np.load(folder / f"{name}.npy")) for name in ("row", "col", "feat", "train"))


def keep_memory() -> None:
    """Has glibc keep what is given back, and take large blocks from what it keeps, instead of faulting pages in for every batch."""
    import ctypes

    libc = ctypes.CDLL(None)
    trim_threshold, mmap_threshold = -1, -3  # malloc.h's names for mallopt()
    for what in (trim_threshold, mmap_threshold):
        libc.mallopt(what, 1 << 30)


def in_huge_pages(values: Any) -> Any:
    """A copy of a tensor in memory for which huge pages were asked."""
    import mmap

    import torch

    memory = mmap.mmap(-1, values.numel() * values.element_size())
    memory.madvise(mmap.MADV_HUGEPAGE)
    copy = torch.frombuffer(memory, dtype=values.dtype).view(values.shape)
    copy.copy_(values)
    return copy


def plain_graph(folder: Path, options: Any) -> Any:
    """The graph as ``Data`` with what ``options.kind`` needs, and its training nodes; tuned, sorted and in huge pages."""
    import torch
    from torch_geometric.data import Data

    row, col, feat, train = tensors(folder)
    extra = {}
    if options.kind == "temporal":
        extra["time"] = torch.from_numpy(np.load(folder / "time.npy"))
    weight = torch.from_numpy(np.load(folder / "weight.npy")) if options.kind == "weighted" else None
    if options.tuned:
        if "time" in extra:
            by_time = torch.argsort(extra["time"][row], stable=True)
            row, col = row[by_time], col[by_time]
            del by_time
        order = torch.argsort(col, stable=True)
        row, col, feat = row[order], col[order], in_huge_pages(feat)
        weight = None if weight is None else weight[order]
    edges = torch.stack([row, col])
    if weight is not None:
        extra["weight"] = weight
    return Data(x=feat, edge_index=in_huge_pages(edges) if options.tuned else edges, **extra), train


def pyg_engine(*, by_sparse_alone: bool = False) -> str:
    """What PyG's loaders sample with here, with its version: "pyg-lib 0.9.0", which PyG prefers, or "torch-sparse 0.6.18".

    Args:
        by_sparse_alone: Whether the loader is one that pyg-lib has nothing for.
    """
    import importlib

    import torch_geometric

    name, package = (
        ("pyg-lib", "pyg_lib") if torch_geometric.typing.WITH_PYG_LIB and not by_sparse_alone else ("torch-sparse", "torch_sparse")
    )
    # Its own word: compiled beside its sources it is no installed distribution.
    return f"{name} {importlib.import_module(package).__version__}"


def best_of_workers(measured: Callable[[int], dict[str, Any]], engine: str, options: argparse.Namespace) -> dict[str, Any]:
    """What PyG's loader does with the number of workers that suits it: pyg-lib often samples fastest in the main process.

    Args:
        measured: Runs the loader with so many workers.
        engine: See ``pyg_engine``.
        options: See ``arguments``.

    Returns:
        The values of the faster run, with versions, and with engine and workers as "engine".
    """
    import torch
    import torch_geometric

    of_workers: Iterable[int] = (0, options.workers) if engine.startswith("pyg-lib") else (options.workers,)
    if options.tuned:
        of_workers = range(options.workers + 1)
    runs = {workers: measured(workers) for workers in dict.fromkeys(of_workers)}
    workers, values = max(runs.items(), key=lambda run: float(run[1]["seeds_per_s"]))
    tried = f", the {'better' if len(runs) == 2 else 'best'} of {' and '.join(map(str, runs))}" if len(runs) > 1 else ""
    version = torch_geometric.__version__
    said = f"PyG {version} with {engine}{', tuned' if options.tuned else ''}, {workers} workers{tried}"
    return {**values, "version": version, "torch": torch.__version__, "engine": said}


def some_seeds(train: Any, options: argparse.Namespace) -> Any:
    """The seeds of ``options.batches`` whole batches (or as many as there are), in an order that is always the same."""
    import torch

    order = torch.randperm(train.numel(), generator=torch.Generator().manual_seed(0))
    count = min(options.batches, train.numel() // options.batch_size) * options.batch_size
    return train[order][:count]


def glt_batching(options: argparse.Namespace) -> dict[str, Any]:
    """What graphlearn-torch's loaders have in common: seeded, on the CPU, with features, whole batches only."""
    import torch

    cpu = torch.device("cpu")
    return {"batch_size": options.batch_size, "drop_last": True, "collect_features": True, "to_device": cpu, "random_seed": 0}


def run_epochs(
    loader: Iterable[Any],
    edges_of: Callable[[Any], int],
    options: argparse.Namespace,
    opened: float,
    barrier: Callable[[], Any] | None = None,
) -> dict[str, Any]:
    """Iterates some epochs and returns the time to the first batch and the last epoch's speed.

    Args:
        loader: What to iterate.
        edges_of: Counts a batch's edges.
        options: See ``arguments``.
        opened: ``time.perf_counter()`` when opening began, imports and reading the arrays done.
        barrier: Waits for the other hosts, before and after each epoch; None where there are none.
    """
    first_batch_s = 0.0
    batches = edges = 0
    elapsed = 1.0
    for _ in range(options.epochs):
        if barrier is not None:
            barrier()
        start, batches, edges = time.perf_counter(), 0, 0
        for batch in loader:
            first_batch_s = first_batch_s or time.perf_counter() - opened
            batches, edges = batches + 1, edges + edges_of(batch)
        if barrier is not None:
            barrier()
        elapsed = time.perf_counter() - start
    return {"first_batch_s": first_batch_s, "seeds_per_s": batches * options.batch_size / elapsed, "edges_per_s": edges / elapsed}


def finish(values: dict[str, Any]) -> None:
    """Writes the result as the last line."""
    sys.stdout.write("\n" + json.dumps(values) + "\n")
    sys.stdout.flush()


def free_port() -> int:
    """A port that was free a moment ago; graphlearn-torch takes numbers only."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def glt_part(row: Any, col: Any, feat: Any, owner: Any, rank: int, hosts: int) -> Any:
    """graphlearn-torch's data set of one part: the edges that its nodes are the sources of, and its nodes' features."""
    import graphlearn_torch as glt
    import torch
    from graphlearn_torch.distributed import DistDataset

    book = glt.partition.GLTPartitionBook(owner)
    dataset = DistDataset(hosts, rank, node_pb=book, edge_dir="out")
    place = None
    if hosts > 1:
        own, here = owner == rank, owner[row] == rank
        row, col, feat = row[here], col[here], feat[own]
        place = torch.cumsum(own, 0) - 1
    dataset.init_graph((row, col), layout="COO", graph_mode="CPU")
    dataset.init_node_features(feat, id2idx=place, with_gpu=False)
    dataset._node_feat_pb = book  # no public way to say that features lie where their nodes do
    return dataset

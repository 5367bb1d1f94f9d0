"""What gnnkit's own measurements share: the loader, and its speed."""

from __future__ import annotations

import argparse
import time
from typing import Any


def make_loader(options: argparse.Namespace, **more: Any) -> Any:
    """A loader of the training nodes on the store ``options.path``, where ``options.servers`` or ``options.workers`` say.

    Args:
        options: See ``gnnkit.bench.tasks``.
        **more: What it is told beside, or instead.
    """
    from gnnkit.backends.colocated import Colocated
    from gnnkit.backends.graph_store import GraphStore
    from gnnkit.backends.inprocess import InProcess
    from gnnkit.graph_loader import GraphLoader

    backend: Any = InProcess(num_threads=options.threads)
    if options.servers:
        backend = GraphStore(num_servers=options.servers)
    elif options.workers:
        backend = Colocated(num_workers=options.workers, threads_per_worker=options.threads)
    own = {"num_neighbors": options.fanout, "batch_size": options.batch_size, "input_nodes": "train", "backend": backend}
    return GraphLoader.from_store(options.path, **{**own, "shuffle": True, "drop_last": True, "progress": False, **more})


def time_epochs(loader: Any, options: argparse.Namespace) -> tuple[int, float]:
    """How many batches ``options.epochs`` epochs had, and how many seconds they took."""
    begin, batches = time.perf_counter(), 0
    for _ in range(options.epochs):
        for _batch in loader:
            batches += 1
    return batches, time.perf_counter() - begin

"""The demonstration: GraphSAGE on a graph of OGBN-Products' shape and on Cora, measured against what needs no graph.

Between the two, the batches of the first are sampled again in two parts, by background processes and by servers, and must be the same.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

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
    import torch

    from gnnkit.datasets.synthetic import products_like
    from gnnkit.demo.training import TrainingReport, compare_on_products_like, train_on_cora, train_on_products_like
    from gnnkit.ui.progress import make_sink

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
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(max(1, before - 1))
    try:
        yield
    finally:
        torch.set_num_threads(before)

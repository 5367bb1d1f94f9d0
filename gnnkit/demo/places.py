"""The same plan in two places: in this process, and cut into parts in background processes; the batches must be the same."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable

from gnnkit.backends.base import Backend
from gnnkit.backends.colocated import Colocated
from gnnkit.backends.inprocess import InProcess
from gnnkit.demo.report import Report
from gnnkit.loader import GraphLoader
from gnnkit.loader.digest import batches_digest

_NUM_PARTS = 2
_NUM_WORKERS = 2
_TIMED_EPOCHS = 3

MakeLoader = Callable[[int, Backend], GraphLoader]


def compare_places(make_loader: MakeLoader, report: Report) -> bool:
    """Samples an epoch by threads of this process from a whole graph, and by processes from the same graph in parts.

    Args:
        make_loader: The loader for a number of parts and a backend, everything else being equal.
        report: Receives seeds per second of both and whether their batches are the same.

    Returns:
        Whether they are; also where there are no sampling processes, which the report says then.
    """
    if sys.platform != "linux":
        report.line(f"  sampling processes need Linux, this is {sys.platform}: the same batches from processes are not shown")
        return True
    started = time.perf_counter()
    backends = (1, InProcess(num_threads=_NUM_WORKERS)), (_NUM_PARTS, Colocated(num_workers=_NUM_WORKERS))
    with contextlib.ExitStack() as stack:
        loaders = [stack.enter_context(make_loader(*place)) for place in backends]
        report.line(
            f"  the same plan in {_NUM_PARTS} parts on Colocated({_NUM_WORKERS}), ready after {time.perf_counter() - started:.1f} s"
        )
        digests = [batches_digest(loader) for loader in loaders]
        for name, loader in zip(("threads here", "background processes"), loaders, strict=True):
            report.line(f"    {_NUM_WORKERS} {name:<21} {_seeds_per_second(loader):8,.0f} seeds/s")
        same = len({len(loader) for loader in loaders}) == len(set(digests)) == 1
        verdict = f"yes, all {len(loaders[0])} of an epoch ({digests[0]})" if same else f"NO ({' and '.join(digests)})"
    report.line(f"  identical batches: {verdict}")
    report.line()
    return same


def _seeds_per_second(loader: GraphLoader) -> float:
    started, seeds = time.perf_counter(), 0
    for _ in range(_TIMED_EPOCHS):
        for batch in loader:
            seeds += int(batch.batch_size)
    return seeds / (time.perf_counter() - started)

"""The same plan in three places: here, and cut into parts in background processes and on servers; the batches must be the same."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial

from gnnkit.backends.base import Backend
from gnnkit.backends.colocated import Colocated
from gnnkit.backends.graph_store import GraphStore
from gnnkit.backends.inprocess import InProcess
from gnnkit.demo.report import Report
from gnnkit.graph_loader import GraphLoader
from gnnkit.loader.digest import batches_digest

_NUM_PARTS = 2
_NUM_WORKERS = 2
_NUM_SERVERS = 2
_TIMED_EPOCHS = 3

MakeLoader = Callable[[int, Backend], GraphLoader]


def compare_places(make_loader: MakeLoader, report: Report) -> bool:
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


def _sample(name: str, make: Callable[[], GraphLoader], report: Report) -> tuple[str, int]:
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

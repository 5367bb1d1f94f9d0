"""Measurements of a store that is larger than the memory: of the disk, of rows that are asked for ahead, and of loaders."""

from __future__ import annotations

import argparse
import gc
import mmap
import os
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from gnnkit.bench.host_tasks import check_batches
from gnnkit.bench.kinds import make_loader
from gnnkit.storage.disk import probe_disk

# Reads under way at once, and how long each number of them is tried for.
DEPTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_PROBE_S = 0.5
# Batches whose rows are asked for ahead and nothing else, as long as that takes no longer than it is measured for.
_MOST_BATCHES = 400


def disk_probe(options: argparse.Namespace) -> dict[str, Any]:
    """Reads random pages of a store's features past the page cache, by each number of reads under way; the best is the disk's own limit."""
    rate = probe_disk(_features(options.path), DEPTHS, min(_PROBE_S, options.seconds))
    return {"pages_per_s": rate.best, "depth": rate.best_depth, "each": {str(depth): pages for depth, pages in rate.pages_per_s.items()}}


def disk_ahead(options: argparse.Namespace) -> dict[str, Any]:
    """Asks the system for the pages of a batch's features while those of the batch before are summed, and does nothing else.

    The batches are the loader's. The calls are one of ``posix_fadvise`` for each run of pages.
    """
    batches = _batches(options)
    gc.collect()  # pages that are mapped are not forgotten
    _forget(options.path)
    path = _features(options.path)
    rows = np.load(path, mmap_mode="r")
    mapped = rows.base
    while not isinstance(mapped, mmap.mmap):
        mapped = mapped.base
    mapped.madvise(mmap.MADV_RANDOM)
    file = os.open(path, os.O_RDONLY)
    try:
        with _Reads() as reads:
            start, count = time.perf_counter(), 0
            _ask(file, rows, batches[0])
            for ids, following in zip(batches, [*batches[1:], batches[-1][:0]], strict=True):
                _ask(file, rows, following)
                rows[ids].sum()
                count += len(ids)
                if time.perf_counter() - start > options.seconds:
                    break
            elapsed = time.perf_counter() - start
        return {"rows_per_s": count / elapsed, "pages_per_s": reads.pages / elapsed}
    finally:
        os.close(file)


def disk_epoch(options: argparse.Namespace) -> dict[str, Any]:
    """Counts the rows a second of a loader with its defaults, and the pages that are read; at first no page of the store is in memory."""
    from gnnkit.backends.colocated import Colocated
    from gnnkit.backends.graph_store import GraphStore
    from gnnkit.backends.inprocess import InProcess

    backend: Any = InProcess()
    if options.servers:
        backend = GraphStore(num_servers=options.servers)
    elif options.workers:
        backend = Colocated(num_workers=options.workers)
    _forget(options.path)  # what others have read is not in this group's memory
    with make_loader(options, backend=backend) as loader:
        next(iter(loader))  # processes are there, and torch is imported
        _forget(options.path)
        with _Reads() as reads:
            start = time.perf_counter()
            rows = batches = 0
            for batch in _again_and_again(loader):
                rows += int(batch.num_nodes)
                batches += 1
                if time.perf_counter() - start > options.seconds:
                    break
            elapsed = time.perf_counter() - start
        check_batches(loader, options)
    return {
        "rows_per_s": rows / elapsed,
        "seeds_per_s": batches * options.batch_size / elapsed,
        "pages_per_s": reads.pages / elapsed,
        "pages_per_batch": reads.pages / batches,
        "rows_per_batch": rows / batches,
    }


def _batches(options: argparse.Namespace) -> list[NDArray[np.int64]]:
    """The nodes of the loader's first batches."""
    with make_loader(options, memory_budget=0) as loader:
        return [batch.n_id.numpy().copy() for batch in islice(loader, _MOST_BATCHES)]


def _again_and_again(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def _features(store: str) -> Path:
    (path,) = Path(store).rglob("x.npy")
    return path


def _forget(store: str) -> None:
    """Has the system forget the pages of a store that nobody uses at the moment."""
    for path in Path(store).rglob("*.npy"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _ask(file: int, rows: NDArray[Any], ids: NDArray[np.int64]) -> None:
    width, offset = rows.strides[0], int(getattr(rows, "offset", 0))
    first = (offset + ids * width) // mmap.PAGESIZE
    last = (offset + ids * width + width - 1) // mmap.PAGESIZE
    for page in np.unique(np.concatenate([first, last])).tolist():
        os.posix_fadvise(file, page * mmap.PAGESIZE, mmap.PAGESIZE, os.POSIX_FADV_WILLNEED)


class _Reads:
    """Pages that this process and its children have had read from disks, between the block's begin and end."""

    pages = 0.0

    def __enter__(self) -> _Reads:
        self._before = _bytes_read()
        return self

    def __exit__(self, *_: object) -> None:
        self.pages = (_bytes_read() - self._before) / mmap.PAGESIZE


def _bytes_read() -> int:
    """See proc_pid_io(5): what the page cache had is not counted."""
    this, total = psutil.Process(), 0
    for process in (this, *this.children(recursive=True)):
        try:
            lines = Path(f"/proc/{process.pid}/io").read_text().splitlines()
        except OSError:  # gone meanwhile
            continue
        total += next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))
    return total

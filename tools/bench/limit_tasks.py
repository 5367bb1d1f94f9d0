"""Measurements of what limits a run: a device, a disk, and the advice about it.

Run by ``tools.bench.tasks``.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import itertools
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
from numpy.typing import NDArray

from gnnkit.backends.on_device import OnDevice
from gnnkit.host import available_memory
from gnnkit.loader.feature_cache import feature_specs
from gnnkit.loader.inspection import batches_digest
from gnnkit.storage.disk import probe_disk
from gnnkit.storage.store import Store
from gnnkit.waiting import Deadline
from tools.bench.cluster_tasks import check_batches
from tools.bench.kinds import make_loader

if TYPE_CHECKING:
    from gnnkit.loader.advice import Advice
    from gnnkit.loader.pipeline import Pipeline


# Events of torch.cuda and backward() have no type hints.
# mypy: disable-error-code="no-untyped-call"


HIDDEN = 256
# Batches that are compared before the timing begins.
_COMPARED = 20
# How often a copy is timed.
_COPIES = 8


@dataclass(frozen=True)
class Marks:
    """Moments in the work of a device: CUDA events in its own order, or the time where the device is the processor.

    Args:
        device: The device.
    """

    device: Any

    def now(self) -> Any:
        """The moment at which all that was asked of the device so far is done."""
        if self.device.type != "cuda":
            return time.perf_counter()
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def settle(self) -> None:
        """Waits until it is done."""
        if self.device.type == "cuda":
            import torch

            torch.cuda.synchronize(self.device)

    def seconds(self, begin: Any, end: Any) -> float:
        """From one moment to another, both of which have come."""
        return float(end - begin if self.device.type != "cuda" else begin.elapsed_time(end) / 1000)


@dataclass(frozen=True)
class Timing:
    """Seconds that steps took.

    Attributes:
        elapsed_s: From before the first batch was asked for until the device had done the last step.
        compute_s: In steps, as the device counts: from a step's first work to its last.
        gap_s: Between steps, as the device counts: it waits for the next batch to be there, or for the processor to give it work.
    """

    elapsed_s: float
    compute_s: float
    gap_s: float


def device_epoch(options: argparse.Namespace) -> dict[str, Any]:
    """Trains GraphSAGE on ``options.device``, with ``options.cache`` percent of the features kept there, or with all of the graph.

    Returns:
        Medians of ``options.epochs`` epochs each, in seconds: ``epoch_s`` with everything; ``resident_s`` the same number of steps with
        batches that are on the device already; ``feed_s`` batches without steps. ``ratio`` is the first over the second. Of the epoch
        ``compute_s`` and ``gap_s`` (see ``Timing``), ``compute_share`` of all its time, and ``wait_s`` in which the loop waited for
        whoever samples. ``copy_s`` is what copying its bytes takes when nothing else happens, and ``copies_hidden`` the share of it that
        happens beside steps, at least: 1 less all that the device waited, over ``copy_s``.
    """
    import torch

    device = torch.device(options.device)
    where = {"backend": OnDevice(options.device)} if options.on_device else {"feature_cache": _cache_bytes(options)}
    with make_loader(options, device=options.device, **where) as loader:
        digest = _checked_digest(loader, options)
        marks, step = Marks(device), _step_of(loader, len(options.fanout), device)
        warm = _timed(loader, step, marks)  # pages are locked and memory of the device is taken in the first epoch
        held = _held(loader, device)
        resident = [held[number % len(held)] for number in range(len(loader))]
        _timed(resident, step, marks)
        epochs, stays, feeds, waits = [], [], [], []
        for _ in range(options.epochs):
            epochs.append(_timed(loader, step, marks))
            stats = loader.stats()
            waits.append(stats.wait_s)
            stays.append(_timed(resident, step, marks))
            feeds.append(_timed(loader, lambda batch: None, marks))
        copy_s = _copy_s(stats.nbytes // len(loader), marks) * len(loader)
    epoch_s, resident_s = median(timing.elapsed_s for timing in epochs), median(timing.elapsed_s for timing in stays)
    feed_s = median(timing.elapsed_s for timing in feeds)
    compute_s, gap_s = median(timing.compute_s for timing in epochs), median(timing.gap_s for timing in epochs)
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "cache_percent": options.cache,
        "digest": digest,
        "batches": len(resident),
        "batches_held": len(held),
        "first_epoch_s": warm.elapsed_s,
        "epoch_s": epoch_s,
        "resident_s": resident_s,
        "ratio": epoch_s / resident_s,
        "feed_s": feed_s,
        "feed_seeds_per_s": len(resident) * options.batch_size / feed_s,
        "compute_s": compute_s,
        "compute_share": compute_s / epoch_s,
        "gap_s": gap_s,
        "wait_s": median(waits),
        "copy_s": copy_s,
        "copies_hidden": max(0.0, 1 - gap_s / copy_s),
        "nbytes": stats.nbytes,
        "cached_nbytes": stats.cached_nbytes,
        "seeds_per_s": len(resident) * options.batch_size / epoch_s,
    }


def _checked_digest(loader: Any, options: argparse.Namespace) -> str:
    """The digest of the first batches, which must be that of those that threads of this process sample: a wrong batch has no speed."""
    with make_loader(options) as reference:
        wanted = batches_digest(islice(reference, _COMPARED))
    if batches_digest(batch.cpu() for batch in islice(loader, _COMPARED)) != wanted:
        raise RuntimeError(f"the first {_COMPARED} batches are not those that threads sample")
    return wanted


def _cache_bytes(options: argparse.Namespace) -> int:
    """``feature_cache`` for that share of the features."""
    schema = Store.open(options.path).schema
    every = sum(spec.row_nbytes * schema.node_types[name].num_nodes for name, spec in feature_specs(schema).items())
    return every * int(options.cache) // 100


def _step_of(loader: Any, num_layers: int, device: Any) -> Callable[[Any], None]:
    """A training step of PyG's GraphSAGE, which leaves out in each layer what the layers after it do not need; nothing in it waits."""
    import torch
    from torch_geometric.nn import GraphSAGE

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")  # as one trains on such devices: without it the steps take twice the time
    model = GraphSAGE(loader.num_features, HIDDEN, num_layers=num_layers, out_channels=loader.metadata["num_classes"]).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

    def step(batch: Any) -> None:
        hops = {"num_sampled_nodes_per_hop": batch.num_sampled_nodes, "num_sampled_edges_per_hop": batch.num_sampled_edges}
        out = model(batch.x, batch.edge_index, **hops)[: batch.batch_size]
        torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size]).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _timed(batches: Iterable[Any], step: Callable[[Any], None], marks: Marks) -> Timing:
    """Does a step for every batch."""
    marks.settle()
    begin, steps = time.perf_counter(), []
    for batch in batches:
        first = marks.now()
        step(batch)
        steps.append((first, marks.now()))
    marks.settle()
    elapsed_s = time.perf_counter() - begin
    compute_s = sum(itertools.starmap(marks.seconds, steps))
    gap_s = sum(marks.seconds(before[1], after[0]) for before, after in itertools.pairwise(steps))
    return Timing(elapsed_s, compute_s, gap_s)


def _held(loader: Any, device: Any) -> list[Any]:
    """Batches of an epoch on the device: all of them, or as many as take half of its memory."""
    import torch

    room = (torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()) // 2
    held: list[Any] = []
    for batch in loader:
        room -= sum(value.nbytes for value in batch.to_dict().values() if isinstance(value, torch.Tensor))
        if held and room < 0:
            break
        held.append(batch)
    return held


def _copy_s(nbytes: int, marks: Marks) -> float:
    """Seconds that copying so many page-locked bytes to the device takes."""
    import torch

    source = torch.ones(max(1, nbytes), dtype=torch.uint8, pin_memory=marks.device.type == "cuda")
    target = torch.empty_like(source, device=marks.device)
    times = []
    for _ in range(_COPIES):
        begin = marks.now()
        target.copy_(source, non_blocking=True)
        end = marks.now()
        marks.settle()
        times.append(marks.seconds(begin, end))
    return median(times)


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


# Loops with and without the bottleneck take turns, as far as they can.
_TURNS = 2
# A ring that is too small holds two batches, which leaves one to be sampled at a time.
_BATCHES_IN_RING = 2.6
# How often the store's pages are dropped, and the longest wait for the copy in memory that advice has made.
_DROP_EVERY_S, _COPY_S = 0.05, 120.0
# How many times as long as a batch's sampling a slow loop body takes, and its least seconds: beside a body of half a millisecond
# the waiting for an epoch's first batches would be a bottleneck of its own.
_SLOW, _LEAST_BODY_S = 3.0, 0.01
# A speed is made of so many batches, at least.
_LEAST_BATCHES = 4

Body = Callable[[Any], None] | None
Maker = Callable[[contextlib.ExitStack], "tuple[Pipeline, Body]"]


def bottleneck(options: argparse.Namespace) -> dict[str, Any]:
    """Makes one of four bottlenecks, has it named, and measures what following the advice gains."""
    return gain_of(options.bottleneck, functools.partial(_MAKERS[options.bottleneck], options), options.look)


def gain_of(bottleneck: str, make: Maker, look_s: float) -> dict[str, Any]:
    """Has a bottleneck named, and measures what following the advice gains.

    Args:
        bottleneck: The one that the loader is to name.
        make: Makes a loader with it and the loop's body.
        look_s: Seconds of one look at a loader.

    Raises:
        RuntimeError: It names another one.
    """
    with contextlib.ExitStack() as stack:
        slow, body = make(stack)
        run(slow, look_s / 2, body)  # the copy of the graph, where there is one, is in use after that
        advice = _advice(slow, body, look_s)
        if advice.bottleneck != bottleneck:
            raise RuntimeError(f"the bottleneck is {bottleneck!r}, and the loader says {advice.bottleneck!r}: {advice.sentence}")
        if advice.bottleneck == "disk":  # the copy in memory is that of both: they cannot take turns
            before = median(run(slow, look_s, body) for _ in range(_TURNS))
            fast, quick = _followed(slow, body, advice, stack)
            after = median(run(fast, look_s, quick) for _ in range(_TURNS))
        else:
            fast, quick = _followed(slow, body, advice, stack)
            speeds = [(run(slow, look_s, body), run(fast, look_s, quick)) for _ in range(_TURNS)]
            before, after = (median(values) for values in zip(*speeds, strict=True))
    return {"gain": after / before, "before": before, "after": after, "sentence": advice.sentence, "change": str(dict(advice.change))}


def _advice(loader: Pipeline, body: Body, look_s: float) -> Advice:
    from gnnkit.loader.advice import advise, measure

    run(loader, look_s, body)
    return advise(measure(loader, look_s))


def run(loader: Pipeline, seconds: float, body: Body) -> float:
    """Seeds per second of a loop, after its first batches."""
    warm_up, times = max(2, loader.status().slots), [time.monotonic()]
    while True:
        for batch in loader:
            if body is not None:
                body(batch)
            del batch
            times.append(time.monotonic())
            if len(times) > warm_up + _LEAST_BATCHES and times[-1] >= times[warm_up] + seconds:
                return (len(times) - 1 - warm_up) * loader.plan.batching.batch_size / (times[-1] - times[warm_up])


def _followed(slow: Pipeline, body: Body, advice: Advice, stack: contextlib.ExitStack) -> tuple[Pipeline, Body]:
    """The loop as the advice wants it."""
    from gnnkit.loader.advice import beside

    if isinstance(body, Waiting):
        return slow, Waiting(body.seconds / 2)
    fast, deadline = stack.enter_context(beside(slow, advice.change)), Deadline(_COPY_S)
    while advice.bottleneck == "disk" and not fast.status().graph_bytes:
        run(fast, 0.0, None)
        if deadline.has_passed:
            raise RuntimeError(f"there was no copy of the graph in memory after {_COPY_S:g} s")
    return fast, body


class Waiting:
    """A loop body that leaves Python and the processors to others, as one on a GPU does."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._never = threading.Event()

    def __call__(self, batch: Any) -> None:
        """Waits."""
        self._never.wait(self.seconds)


def _seconds_of(loader: Pipeline) -> float:
    """Returns the mean seconds that a batch took to sample, divided by the number of workers that sampled at the same time."""
    return fmean(record.sample_s + record.gather_s for record in loader.records) / max(1, loader.status().workers)


def _slow_body(options: argparse.Namespace, stack: contextlib.ExitStack) -> tuple[Pipeline, Body]:
    loader = stack.enter_context(make_loader(options).pipeline)
    run(loader, options.look / 2, None)
    return loader, Waiting(max(_LEAST_BODY_S, _seconds_of(loader) * _SLOW))


def _one_worker(options: argparse.Namespace, stack: contextlib.ExitStack) -> tuple[Pipeline, Body]:
    from gnnkit.backends.colocated import Colocated

    return stack.enter_context(make_loader(options, backend=Colocated(num_workers=1)).pipeline), None


def _tiny_ring(options: argparse.Namespace, stack: contextlib.ExitStack) -> tuple[Pipeline, Body]:
    from gnnkit.backends.colocated import Colocated

    with make_loader(options).pipeline as roomy:
        run(roomy, 0.0, None)
        largest = max(record.nbytes for record in roomy.records)
    backend = Colocated(num_workers=options.threads, channel_size=int(largest * _BATCHES_IN_RING))
    return stack.enter_context(make_loader(options, backend=backend).pipeline), None


def dropped_cache(options: argparse.Namespace, stack: contextlib.ExitStack) -> tuple[Pipeline, Body]:
    """A loader that reads its store from the disk for every batch."""
    loader = stack.enter_context(make_loader(options, memory_budget=0).pipeline)
    stack.enter_context(_pages_dropped(loader))
    return loader, None


@contextlib.contextmanager
def _pages_dropped(loader: Pipeline) -> Iterator[None]:
    """Has the system forget the pages of a loader's store, again and again."""
    assert loader.plan.store is not None
    maps = {id(found): found for array in loader.graph.arrays.each() if (found := map_of(array)) is not None}
    files = [os.open(path, os.O_RDONLY) for path in Path(loader.plan.store.path).rglob("*.npy")]
    over = threading.Event()

    def drop() -> None:
        while not over.wait(_DROP_EVERY_S):
            for mapped in maps.values():
                mapped.madvise(mmap.MADV_DONTNEED)
            for file in files:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)

    thread = threading.Thread(target=drop, name="gnnkit-bench-pages", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for file in files:
            os.close(file)


def map_of(array: Any) -> mmap.mmap | None:
    """The mapping that an array lies in."""
    while array is not None and not isinstance(array, mmap.mmap):
        array = getattr(array, "base", None) if not isinstance(array, memoryview) else array.obj
    return array


_MAKERS = {"consumer": _slow_body, "workers": _one_worker, "slots": _tiny_ring, "disk": dropped_cache}
BOTTLENECKS = tuple(_MAKERS)

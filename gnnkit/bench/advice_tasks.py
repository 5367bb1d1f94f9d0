"""Whether advice is right: bottlenecks that are made on purpose, named by the loader, and gone once its advice is followed."""

from __future__ import annotations

import argparse
import contextlib
import functools
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from gnnkit.bench.kinds import make_loader
from gnnkit.waiting import Deadline

if TYPE_CHECKING:
    from gnnkit.loader.advice import Advice
    from gnnkit.loader.pipeline import Pipeline

# Loops with and without the bottleneck take turns, as far as they can.
_TURNS = 2
# A ring that is too small holds two batches, which leaves one to be sampled at a time.
_BATCHES_IN_RING = 2.6
# How often the store's pages are dropped, and the longest wait for the copy in memory that advice has made.
_DROP_EVERY_S, _COPY_S = 0.05, 120.0
# How many times as long as a batch's sampling a slow loop body takes.
_SLOW = 3.0

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
    """Seeds per second of a loop."""
    from gnnkit.loader.advice.autotune import batches_for

    times = list(batches_for(loader, seconds, body, warm_up=max(2, loader.status().slots)))
    return (len(times) - 1) * loader.plan.batching.batch_size / (times[-1] - times[0])


def _followed(slow: Pipeline, body: Body, advice: Advice, stack: contextlib.ExitStack) -> tuple[Pipeline, Body]:
    """The loop as the advice wants it."""
    from gnnkit.loader.advice.autotune import beside

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
    return loader, Waiting(_seconds_of(loader) * _SLOW)


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


def autotuned(options: argparse.Namespace) -> dict[str, Any]:
    """Autotunes a loader of one thread, tries every combination, and compares both choices in turn and both times."""
    from gnnkit.backends.inprocess import InProcess
    from gnnkit.host import available_cpus
    from gnnkit.loader.advice.autotune import run_trial, space_of

    cpus = available_cpus()
    with make_loader(options, backend=InProcess(num_threads=1)) as tuned:
        loader = tuned.pipeline
        run(loader, options.look, None)
        result = tuned.autotune(options.seconds)
        cell_s = result.trials[0].seconds
        space, _ = space_of(loader.plan, workers=1, cpus=cpus, most_slots=1 << 10)
        began = time.perf_counter()
        cells = [run_trial(loader, point, cell_s, None, cpus) for point in space.grid()]
        grid_s = time.perf_counter() - began
        best = max(cells, key=lambda cell: cell.seeds_per_s).options
        turns = [[run_trial(loader, point, options.look, None, cpus).seeds_per_s for point in (result.best, best)] for _ in range(_TURNS)]
    chosen, at_best = (median(values) for values in zip(*turns, strict=True))
    return {
        "speed_share": 1.0 if result.best == best else chosen / at_best,
        "time_share": result.took_s / grid_s,
        "chosen": str(dict(result.best)),
        "best": str(dict(best)),
        "gain": result.gain,
        "tune_s": result.took_s,
        "grid_s": grid_s,
        "cells": len(cells),
    }

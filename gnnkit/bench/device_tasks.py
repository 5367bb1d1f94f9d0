"""Training on a device: whole epochs, what the device waits for in them, and the same steps with batches that are there already.

Run by ``gnnkit.bench.tasks``.
"""

# Events of torch.cuda and backward() have no type hints.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

from gnnkit.bench.kinds import make_loader
from gnnkit.host import available_memory
from gnnkit.loader.feature_cache import feature_specs
from gnnkit.storage.store import Store

HIDDEN = 256
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
    """Trains GraphSAGE on ``options.device``, with ``options.cache`` percent of the features kept there.

    Returns:
        Medians of ``options.epochs`` epochs each, in seconds: ``epoch_s`` with everything; ``resident_s`` the same number of steps with
        batches that are on the device already; ``feed_s`` batches without steps. ``ratio`` is the first over the second. Of the epoch
        ``compute_s`` and ``gap_s`` (see ``Timing``), ``compute_share`` of all its time, and ``wait_s`` in which the loop waited for
        whoever samples. ``copy_s`` is what copying its bytes takes when nothing else happens, and ``copies_hidden`` the share of it that
        happens beside steps, at least: 1 less all that the device waited, over ``copy_s``.
    """
    import torch

    device = torch.device(options.device)
    with make_loader(options, device=options.device, feature_cache=_cache_bytes(options)) as loader:
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
    compute_s, gap_s = median(timing.compute_s for timing in epochs), median(timing.gap_s for timing in epochs)
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "cache_percent": options.cache,
        "batches": len(resident),
        "batches_held": len(held),
        "first_epoch_s": warm.elapsed_s,
        "epoch_s": epoch_s,
        "resident_s": resident_s,
        "ratio": epoch_s / resident_s,
        "feed_s": median(timing.elapsed_s for timing in feeds),
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

"""Opens a loader's stream of batches, with features cached on its device where that is asked for."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnkit.backends import backend_from_json
from gnnkit.backends.base import BatchStream
from gnnkit.events import Stage
from gnnkit.loader.feature_cache import FeatureCache, check_cacheable, feature_specs, hottest, sampled_rows, stored_rows
from gnnkit.loader.footprint import sampled_ahead, touched_by
from gnnkit.loader.history import History
from gnnkit.loader.transfer import cache_device, resolve_device
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.graph_handle import GraphHandle

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class OpenedStream:
    """A stream and what goes with it.

    Attributes:
        stream: The stream.
        plan: What it samples: the loader's plan, with what only those who sample are told.
        cache: The features on the device; None where none are kept.
    """

    stream: BatchStream
    plan: LoaderPlan
    cache: FeatureCache | None = None


def open_stream(plan: LoaderPlan, graph: GraphHandle, history: History, device: Any, shared: FeatureCache | None = None) -> OpenedStream:
    """Opens the stream of a plan's batches.

    Args:
        plan: The loader's plan.
        graph: The graph.
        history: Receives the stages of the start.
        device: Where batches are copied to; None where they stay in memory, and nothing is cached.
        shared: The cache of a loader on the same graph, which is used where it is what the plan asks for.

    Raises:
        PlanError: The device is not there, or the backend or the graph does not allow what the plan says.
        MemoryLimitError: The device has no memory for the cache.
        StartTimeout: Whoever samples was not there in time.
    """
    backend = backend_from_json(plan.backend)
    target = resolve_device(device)
    pin_device = target.index if target is not None and target.type == "cuda" else None
    plan = replace(plan, runtime=replace(plan.runtime, pin_device=pin_device))
    budget, place = plan.runtime.feature_cache, cache_device(device)
    if not budget or place is None:
        return OpenedStream(backend.open(plan, graph, history), plan)
    check_cacheable(graph, plan.backend)
    with ExitStack() as stack:
        cache = shared
        if cache is None or (cache.device, cache.budget) != (place, budget):
            whole = backend.open(plan, graph, history)
            stack.callback(whole.close)  # only once the other is open, so that both have the same processes
            cache = _measured(whole, plan, graph, history, place)
        plan = replace(plan, cached=cache.words)
        return OpenedStream(backend.open(plan, graph, history), plan, cache)


def _measured(stream: BatchStream, plan: LoaderPlan, graph: GraphHandle, history: History, device: torch.device) -> FeatureCache:
    """The cache of what batches of epoch 0 touch most."""
    from gnnkit.runtime.batches import BatchList

    schema, schedule, budget = graph.arrays.schema, BatchList(plan, graph).schedule(), plan.runtime.feature_cache
    touches = touched_by(stream, schedule, schema, history)
    found = hottest(touches, {name: spec.row_nbytes for name, spec in feature_specs(schema).items()}, budget)
    if not graph.arrays.is_whole:  # rows of other hosts come with the batches that touch them
        found = {name: ids[touches[name][ids] > 0] for name, ids in found.items()}
    chosen = {name: np.sort(graph.to_store_ids(name, ids)) for name, ids in found.items() if len(ids)}
    rows = stored_rows(graph.arrays, chosen) if graph.arrays.is_whole else sampled_rows(sampled_ahead(stream, schedule), graph, chosen)
    with Stage(history, "cache") as stage:
        cache = FeatureCache.of(schema, chosen, rows, device, budget)
        stage.summary = f"{cache.nbytes / 1e6:.0f} MB of features on {device}"
    return cache

"""Features that stay on the device, and the memory that batches touch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.backends.base import Backend, BatchStream
from gnnkit.backends.devices import cache_device, resolve_device
from gnnkit.bounds import is_whole, shown
from gnnkit.errors import MemoryLimitError, PlanError
from gnnkit.events import Stage
from gnnkit.host import free_on
from gnnkit.loader.history import History
from gnnkit.plan import LoaderPlan
from gnnkit.runtime.graph_memory import GraphHandle
from gnnkit.sampling.schedule import Schedule
from gnnkit.sampling.subgraph import MISSING, SLOT, NodeKey, SampledSubgraph
from gnnkit.schema import ArraySpec, GraphSchema, NodeType
from gnnkit.storage.arrays import GraphArrays, as_tensor
from gnnkit.storage.layout import FEATURE_NAME

if TYPE_CHECKING:
    import torch

    from gnnkit.loader.pipeline import Pipeline
    from gnnkit.sampling.device.numbers import DeviceNumbers


# Batches of each epoch that are looked at unless others are asked for. On a graph like OGBN-Products, with 193 batches to an epoch, they
# place the curve within three points of where all of them do, on the cautious side.
DEFAULT_BATCHES = 32

Touches = dict[NodeType, NDArray[np.int32]]


@dataclass(frozen=True)
class SavingsCurve:
    """The savings of caches of every size: lines between the points are exact for nodes that were touched alike and are drawn by lot.

    Attributes:
        nbytes: int64 ``[k]``, bytes of the cache, ascending, from 0 to all features.
        saved: float64 ``[k]``, share of the bytes of features that batches read from it, ascending, 0 to 1.
    """

    nbytes: NDArray[np.int64]
    saved: NDArray[np.float64]

    def saved_by(self, nbytes: float) -> float:
        """The share that a cache of ``nbytes`` saves."""
        return float(np.interp(nbytes, self.nbytes, self.saved))


@dataclass(frozen=True)
class Footprint:
    """The nodes that some batches of an epoch touch, and as many of the epoch after. A node that is in a batch twice is touched twice.

    Attributes:
        num_batches: Batches looked at, of each of the two epochs.
        batches_of_epoch: Batches of this rank in an epoch.
        touches: ``{node type: int32 [num_nodes]}`` by dataset id, in the first epoch.
        touches_after: The same in the second.
        feature_bytes: ``{node type: bytes of a node's features as they are stored}``; 0 without any.
    """

    num_batches: int
    batches_of_epoch: int
    touches: Touches
    touches_after: Touches
    feature_bytes: Mapping[NodeType, int]

    @property
    def all_feature_bytes(self) -> int:
        """Bytes of all nodes' features."""
        return sum(self.feature_bytes[node_type] * len(counts) for node_type, counts in self.touches.items())

    def savings(self) -> SavingsCurve:
        """Returns the savings in the second epoch's batches of a cache that holds the nodes that the first epoch's touched most."""
        return self._curve(self.touches)

    def best_savings(self) -> SavingsCurve:
        """The most that a cache could save whose content stays: of what the second epoch's batches themselves touch most."""
        return self._curve(self.touches_after)

    def _curve(self, ranking: Touches) -> SavingsCurve:
        """Fills the cache from the most touched nodes down: a byte saves as much as its node is touched, whatever the row's size."""
        levels = 1 + max((int(counts.max(initial=0)) for counts in ranking.values()), default=0)
        nbytes, saved = np.zeros(levels, np.int64), np.zeros(levels, np.float64)
        for node_type, counts in ranking.items():
            row = self.feature_bytes[node_type]
            nbytes += row * np.bincount(counts, minlength=levels)
            saved += row * np.bincount(counts, self.touches_after[node_type], minlength=levels)
        ends = np.concatenate([[0.0], np.cumsum(saved[::-1])])
        return SavingsCurve(np.concatenate([[0], np.cumsum(nbytes[::-1])]), ends / max(float(ends[-1]), 1.0))


def footprint(loader: Pipeline, num_batches: int | None = None) -> Footprint:
    """Samples batches of the two epochs that come next, spread evenly over them; the loader's own epoch does not advance.

    Takes at most eight bytes of memory for each node of the graph.

    Args:
        loader: The loader.
        num_batches: Batches of each epoch; None takes 32, or all where there are fewer.

    Raises:
        PlanError: ``num_batches`` is no number from 1 to ``len(loader)``, or there is no batch.
    """
    loader.check_open()
    schedule = loader.schedule()
    available = len(schedule)
    if not available:
        raise PlanError("there are no batches to look at: an epoch of this loader has none", "see len(loader) and input_nodes")
    count = min(DEFAULT_BATCHES, available) if num_batches is None else num_batches
    if not is_whole(count, 1, available):
        raise PlanError(
            f"num_batches must be a whole number from 1 to {available}, this rank's batches of an epoch, got {shown(num_batches)}"
        )
    schema, epoch = loader.schema, loader.next_epoch
    with loader.history.noting(), Stage(loader.history, "footprint", total=2 * count, unit="batches") as stage:
        touches, after = (
            _touched(spread_batches(loader.stream, schedule, count, epoch + number, number), schema, stage) for number in (0, 1)
        )
    rows = {name: t.arrays[FEATURE_NAME].row_nbytes if FEATURE_NAME in t.arrays else 0 for name, t in schema.node_types.items()}
    return Footprint(count, available, touches, after, rows)


def spread_batches(stream: BatchStream, schedule: Schedule, count: int, epoch: int = 0, number: int = 0) -> Iterator[SampledSubgraph]:
    """Samples ``count`` of this rank's batches of an epoch, evenly spread over it; the stream's own epoch does not advance.

    Args:
        stream: The stream.
        schedule: This rank's batches.
        count: How many.
        epoch: The epoch.
        number: 1 takes batches between those of 0, for loaders whose epochs are all alike.
    """
    for step in range(count):
        yield stream.sample_now(epoch, schedule.step((2 * step + number) * len(schedule) // (2 * count)).batch_index)


def _touched(batches: Iterable[SampledSubgraph], schema: GraphSchema, stage: Stage) -> Touches:
    """Counts how often batches touch each node."""
    # Zeros take no memory until they are written to.
    touches = {name: np.zeros(t.num_nodes, np.int32) for name, t in schema.node_types.items()}
    for subgraph in batches:
        for field in subgraph.layout.fields:
            if field.key.scope == "node" and field.key.name == "n_id":
                np.add.at(touches[field.key.type], subgraph.array(field), 1)
        stage.advance()
    return touches


# Rows are brought to the device in pieces of about so many bytes, so that filling it takes no second copy of them here.
_PIECE_NBYTES = 64 << 20
# Places in the cache are int32.
_MOST_ROWS = (1 << 31) - 1


def feature_specs(schema: GraphSchema) -> dict[NodeType, ArraySpec]:
    """The features of the node types that have some, and of which a row takes memory."""
    found = {name: t.arrays[FEATURE_NAME] for name, t in schema.node_types.items() if FEATURE_NAME in t.arrays}
    return {name: spec for name, spec in found.items() if spec.row_nbytes}


def hottest(touches: Mapping[NodeType, NDArray[np.int32]], row_nbytes: Mapping[NodeType, int], budget: int) -> dict[NodeType, NDArray[Any]]:
    """The nodes whose features are worth most of a budget: a byte saves as much as its node is touched, whatever the row's size.

    Among nodes that are touched alike, types come in their order and nodes in the dataset's.

    Args:
        touches: ``{node type: int32 [num_nodes]}`` by dataset id.
        row_nbytes: ``{node type: bytes of a row}``, of the types that are cached.
        budget: Bytes.

    Returns:
        ``{node type: int64 [k]}``, dataset ids, ascending, k at least 1; types of which nothing fits are left out.
    """
    types = [name for name in touches if name in row_nbytes]
    levels = 1 + max((int(touches[name].max(initial=0)) for name in types), default=0)
    counts = {name: np.bincount(touches[name], minlength=levels) for name in types}
    nbytes = sum((row_nbytes[name] * counts[name] for name in types), np.zeros(levels, np.int64))
    taken = np.cumsum(nbytes[::-1])[::-1] <= budget  # whole levels, from the top
    least = int(np.argmax(taken)) if taken.any() else levels
    left = budget - int(nbytes[least:].sum())
    found = {}
    for name in types:
        chosen = touches[name] >= least
        if least:
            next_ones = np.flatnonzero(touches[name] == least - 1)[: left // row_nbytes[name]]
            chosen[next_ones] = True
            left -= row_nbytes[name] * len(next_ones)
        ids = np.flatnonzero(chosen)[:_MOST_ROWS]
        if len(ids):
            found[name] = ids
    return found


# Features on their way to a device: whose, int64 ``[n]`` store ids, and ``[n, *row_shape]`` as they are stored.
PendingRows = tuple[NodeType, NDArray[np.int64], NDArray[Any]]


@dataclass(frozen=True)
class FeatureCache:
    """The hottest features on a device. May be shared by all loaders on the same graph and device.

    Attributes:
        device: The device.
        words: What samplers are told, see ``LoaderPlan.cached``.
        rows: ``{node type: [k, *stored_shape]}`` on the device, in the order of the nodes' store ids.
        numbers: ``{node type: what makes numbers of its rows}``, for those that are quantised.
        budget: Bytes that the rows might have taken.
    """

    device: torch.device
    words: Mapping[NodeType, NDArray[np.uint64]]
    rows: Mapping[NodeType, torch.Tensor]
    numbers: Mapping[NodeType, DeviceNumbers]
    budget: int

    @classmethod
    def of(
        cls,
        schema: GraphSchema,
        chosen: Mapping[NodeType, NDArray[np.int64]],
        pending: Iterable[PendingRows],
        device: torch.device,
        budget: int,
    ) -> FeatureCache:
        """Copies rows to a device.

        Args:
            schema: The graph's schema.
            chosen: ``{node type: int64 [k]}``, store ids, ascending.
            pending: The rows of all of them, in any order; one that comes twice is the same.
            device: The device.
            budget: Bytes that they might have taken.

        Raises:
            MemoryLimitError: The device has no memory for them.
        """
        import torch

        from gnnkit.sampling.cached import as_words  # its kernels are for those alone who cache features
        from gnnkit.sampling.device.numbers import DeviceNumbers  # which needs torch

        specs = feature_specs(schema)
        nbytes, free = sum(specs[name].row_nbytes * len(ids) for name, ids in chosen.items()), free_on(device)
        if nbytes > free:
            raise MemoryLimitError(
                f"feature_cache: the features to be kept take {nbytes / 1e6:.0f} MB, {free / 1e6:.0f} MB are free on {device}",
                "give a smaller feature_cache: the model and its batches need room too",
            )
        words = {name: as_words(ids, schema.node_types[name].num_nodes) for name, ids in chosen.items()}
        rows = {}
        for name, ids in chosen.items():
            like = as_tensor(np.empty(0, specs[name].numpy_dtype), specs[name].dtype)
            rows[name] = torch.empty((len(ids), *specs[name].stored_shape), dtype=like.dtype, device=device)
        for name, store_ids, found in pending:
            places = torch.from_numpy(np.searchsorted(chosen[name], store_ids))
            rows[name].index_copy_(0, places.to(device), as_tensor(found, specs[name].dtype).to(device))
        quantizations = {name: specs[name].quantization for name in chosen}
        numbers = {name: DeviceNumbers.of(how, device) for name, how in quantizations.items() if how is not None}
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # once: from now on every stream finds the rows there
        return cls(device, words, rows, numbers, budget)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return sum(own.nbytes for own in self.rows.values())

    def complete(self, data: Any) -> Any:
        """Puts the features of a batch together that came without those that are here, on the stream that is current.

        Args:
            data: ``Data`` or ``HeteroData`` on the device.

        Returns:
            The same object, as it would be without a cache.
        """
        stores = {store._key: store for store in data.stores}
        for node_type, rows in self.rows.items():
            store = stores[node_type] if node_type in stores else stores[None]
            if rows.is_cuda:
                import torch

                rows.record_stream(torch.cuda.current_stream(self.device))
            found = rows.index_select(0, store[SLOT])
            found.index_copy_(0, store[MISSING].long(), store[FEATURE_NAME])
            store[FEATURE_NAME] = self.numbers[node_type](found) if node_type in self.numbers else found
            del store[SLOT], store[MISSING]
        return data


def stored_rows(graph: GraphArrays, chosen: Mapping[NodeType, NDArray[np.int64]]) -> Iterator[PendingRows]:
    """The rows of ascending store ids, piece by piece, from a graph with all its parts here."""
    specs = feature_specs(graph.schema)
    for name, ids in chosen.items():
        at_once = max(1, _PIECE_NBYTES // specs[name].row_nbytes)
        bounds = graph.node_bounds[name]
        ends = np.searchsorted(ids, bounds)
        for part, nodes in enumerate(graph.nodes[name]):
            own = ids[ends[part] : ends[part + 1]]
            for first in range(0, len(own), at_once):
                piece = own[first : first + at_once]
                yield name, piece, nodes.arrays[FEATURE_NAME][piece - bounds[part]]


def sampled_rows(
    batches: Iterable[SampledSubgraph], graph: GraphHandle, chosen: Mapping[NodeType, NDArray[np.int64]]
) -> Iterator[PendingRows]:
    """The rows of ascending store ids, as they come with batches that touch all of them."""
    for subgraph in batches:
        fields = {field.key: field for field in subgraph.layout.fields}
        for name, ids in chosen.items():
            nodes = graph.to_store_ids(name, subgraph.array(fields[NodeKey(name, "n_id")]))
            is_chosen = ids[np.minimum(np.searchsorted(ids, nodes), len(ids) - 1)] == nodes
            yield name, nodes[is_chosen], subgraph.array(fields[NodeKey(name, FEATURE_NAME)])[is_chosen]


def check_cacheable(graph: GraphHandle, backend: Mapping[str, Any]) -> None:
    """Checks that features can be cached.

    Raises:
        PlanError: They cannot.
    """
    if backend["kind"] == "Glt":
        raise PlanError(
            "feature_cache, and batches from Glt() carry all their features", "backend='inprocess' or 'colocated', or leave it out"
        )
    if not graph.arrays.local_parts:  # what tells a dataset's ids from a store's is on the servers, too
        raise PlanError("feature_cache, and the whole graph is on servers of other hosts", "leave feature_cache out")
    if not feature_specs(graph.arrays.schema):
        raise PlanError(f"feature_cache, and no node type has features {FEATURE_NAME!r}", "leave it out")


def open_stream(
    plan: LoaderPlan, backend: Backend, graph: GraphHandle, history: History, device: Any, shared: FeatureCache | None = None
) -> tuple[BatchStream, LoaderPlan, FeatureCache | None]:
    """Opens the stream of a plan's batches.

    Args:
        plan: The loader's plan.
        backend: The place of sampling that the plan names.
        graph: The graph.
        history: Receives the stages of the start.
        device: The device that batches are copied to; None where they stay in memory, and nothing is cached.
        shared: The cache of a loader on the same graph, which is used where it is what the plan asks for.

    Returns:
        The stream; what it samples, the plan with what only those who sample are told; and the features on the device, if some are kept.

    Raises:
        PlanError: The device is not there, or the backend or the graph does not allow what the plan says.
        MemoryLimitError: The device has no memory for the cache.
        StartTimeout: The processes that sample were not ready in time.
    """
    target = resolve_device(device)
    pin_device = target.index if target is not None and target.type == "cuda" else None
    plan = replace(plan, runtime=replace(plan.runtime, pin_device=pin_device))
    budget, place = plan.runtime.feature_cache, cache_device(device)
    if not budget or place is None:
        return backend.open(plan, graph, history), plan, None
    check_cacheable(graph, plan.backend)
    with ExitStack() as stack:
        cache = shared
        if cache is None or (cache.device, cache.budget) != (place, budget):
            whole = backend.open(plan, graph, history)
            stack.callback(whole.close)  # only once the other is open, so that both have the same processes
            cache = _measured(whole, plan, graph, history, place)
        plan = replace(plan, cached=cache.words)
        return backend.open(plan, graph, history), plan, cache


def _measured(stream: BatchStream, plan: LoaderPlan, graph: GraphHandle, history: History, device: torch.device) -> FeatureCache:
    """The cache of what batches of epoch 0 touch most."""
    schema, schedule, budget = graph.arrays.schema, stream.batches.schedule(), plan.runtime.feature_cache
    count = min(DEFAULT_BATCHES, len(schedule))
    with Stage(history, "footprint", total=count, unit="batches") as stage:
        touches = _touched(spread_batches(stream, schedule, count), schema, stage)
    found = hottest(touches, {name: spec.row_nbytes for name, spec in feature_specs(schema).items()}, budget)
    if not graph.arrays.is_whole:  # rows of other hosts come with the batches that touch them
        found = {name: ids[touches[name][ids] > 0] for name, ids in found.items()}
    chosen = {name: np.sort(graph.to_store_ids(name, ids)) for name, ids in found.items() if len(ids)}
    if graph.arrays.is_whole:
        rows = stored_rows(graph.arrays, chosen)
    else:  # the same batches again
        rows = sampled_rows(spread_batches(stream, schedule, count), graph, chosen)
    with Stage(history, "cache") as stage:
        cache = FeatureCache.of(schema, chosen, rows, device, budget)
        stage.summary = f"{cache.nbytes / 1e6:.0f} MB of features on {device}"
    return cache

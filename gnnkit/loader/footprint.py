"""Which nodes batches touch how often, and what a cache of the features touched most would save."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.backends.base import BatchStream
from gnnkit.errors import PlanError
from gnnkit.events import EventSink, Stage
from gnnkit.sampling.schedule import Schedule
from gnnkit.sampling.subgraph import SampledSubgraph
from gnnkit.schema import GraphSchema, NodeType
from gnnkit.storage.layout import FEATURE_NAME

if TYPE_CHECKING:
    from gnnkit.loader.pipeline import Pipeline

# Batches of each epoch that are looked at unless somebody wants others. On a graph like OGBN-Products, with 193 batches to an epoch, they
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
    schedule = loader.batches.schedule()
    available = len(schedule)
    if not available:
        raise PlanError("there are no batches to look at: an epoch of this loader has none", "see len(loader) and input_nodes")
    count = min(DEFAULT_BATCHES, available) if num_batches is None else num_batches
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= available:
        raise PlanError(f"num_batches must be a whole number from 1 to {available}, this rank's batches of an epoch, got {num_batches!r}")
    schema = loader.schema
    touches, after = _counters(schema), _counters(schema)
    epoch = loader.next_epoch
    with loader.history.noting(), Stage(loader.history, "footprint", total=2 * count, unit="batches") as stage:
        for number, counters in enumerate((touches, after)):
            for step in _steps(schedule, count, number):
                _count(loader.stream.sample_now(epoch + number, schedule.step(step).batch_index), counters)
                stage.advance()
    rows = {name: t.arrays[FEATURE_NAME].row_nbytes if FEATURE_NAME in t.arrays else 0 for name, t in schema.node_types.items()}
    return Footprint(count, available, touches, after, rows)


def touched_by(stream: BatchStream, schedule: Schedule, schema: GraphSchema, events: EventSink) -> Touches:
    """Counts how often batches of epoch 0 touch each node: 32 batches spread evenly over it, or all where there are fewer.

    Args:
        stream: The stream; its epoch does not advance.
        schedule: This rank's batches.
        schema: The graph's schema.
        events: Receives the stage "footprint".
    """
    touches = _counters(schema)
    with Stage(events, "footprint", total=min(DEFAULT_BATCHES, len(schedule)), unit="batches") as stage:
        for subgraph in sampled_ahead(stream, schedule):
            _count(subgraph, touches)
            stage.advance()
    return touches


def sampled_ahead(stream: BatchStream, schedule: Schedule) -> Iterator[SampledSubgraph]:
    """The batches of epoch 0 that ``touched_by`` looks at; every time the same."""
    count = min(DEFAULT_BATCHES, len(schedule))
    for step in _steps(schedule, count, 0) if count else ():
        yield stream.sample_now(0, schedule.step(step).batch_index)


def _counters(schema: GraphSchema) -> Touches:
    # Zeros take no memory until they are written to.
    return {name: np.zeros(t.num_nodes, np.int32) for name, t in schema.node_types.items()}


def _steps(schedule: Schedule, count: int, number: int) -> list[int]:
    """``count`` steps, evenly spread; those of the second epoch lie between the first's, for loaders whose epochs are all alike."""
    available = len(schedule)
    return [(2 * step + number) * available // (2 * count) for step in range(count)]


def _count(subgraph: SampledSubgraph, counters: Mapping[NodeType, NDArray[Any]]) -> None:
    for field in subgraph.layout.fields:
        if field.key.scope == "node" and field.key.name == "n_id":
            np.add.at(counters[field.key.type], subgraph.array(field), 1)

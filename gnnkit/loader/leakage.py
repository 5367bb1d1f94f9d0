"""A check of temporal batches from what they show alone: that no edge of a seed's neighbourhood is later than the seed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from gnnkit.errors import PlanError
from gnnkit.plan import NeighborSampling, TemporalComparison
from gnnkit.schema import HOMOGENEOUS_EDGE_TYPE, EdgeType

if TYPE_CHECKING:
    import torch

    from gnnkit.loader.pipeline import Pipeline

_MOST_SHOWN = 10


class LaterEdge(NamedTuple):
    """An edge of a batch that is too late for its seed.

    Attributes:
        batch: Number of the batch among those that were checked.
        edge_type: Its type.
        edge: Its place in the batch's edges of the type.
        time: Its time.
        seed_time: The time of the seed around which it was sampled.
    """

    batch: int
    edge_type: EdgeType
    edge: int
    time: int
    seed_time: int


@dataclass(frozen=True)
class LeakageCheck:
    """The result of a check.

    Attributes:
        num_edges: Edges with times that were compared with their seed's.
        num_later: Those of them that are too late.
        later: The first of these, ten at most.
    """

    num_edges: int = 0
    num_later: int = 0
    later: tuple[LaterEdge, ...] = ()

    def __str__(self) -> str:
        if not self.num_later:
            return f"none of {self.num_edges:,} edges is later than its seed"
        first = self.later[0]
        return (
            f"{self.num_later:,} of {self.num_edges:,} edges are later than their seed, first edge {first.edge} of {first.edge_type}"
            f" in batch {first.batch}: time {first.time}, seed {first.seed_time}"
        )

    def __add__(self, other: LeakageCheck) -> LeakageCheck:
        shown = (self.later + other.later)[:_MOST_SHOWN]
        return LeakageCheck(self.num_edges + other.num_edges, self.num_later + other.num_later, shown)


def check_leakage(batch: Any, time_attr: str = "time", *, temporal_comparison: TemporalComparison = "<=") -> LeakageCheck:
    """Compares every edge of a temporal batch with the time of the seed in whose neighbourhood it is.

    It reads what the batch shows, ``seed_time`` or ``edge_label_time``, ``batch`` and the arrays of times, and knows nothing of how it was
    sampled. An edge's time is its own, or else that of the neighbour that it comes from; edges without times are not compared.

    Args:
        batch: A batch of a loader with ``time_attr=``, or PyG's of such a loader with disjoint neighbourhoods.
        time_attr: Name of the array of times.
        temporal_comparison: Whether the seed's own time is early enough ("<=") or not ("<").

    Raises:
        PlanError: The batch does not say what must be compared, or shows edges that nobody has drawn.
    """
    if temporal_comparison not in ("<=", "<"):
        raise PlanError(f"temporal_comparison must be '<=' or '<', got {temporal_comparison!r}")
    return _check(batch, time_attr, temporal_comparison == "<", None, 0)


def check_loader(pipeline: Pipeline, batches: int) -> LeakageCheck:
    """Checks the first batches of a loader's next epoch, which they do not advance; see ``GraphLoader.check_leakage``."""
    sampling = pipeline.plan.sampling
    if isinstance(batches, bool) or not isinstance(batches, int) or batches < 1:
        raise PlanError(f"batches must be a whole number of at least 1, got {batches!r}")
    if not isinstance(sampling, NeighborSampling) or sampling.time_attr is None:
        raise PlanError("the loader does not follow times, so there is nothing to compare", "name the array of times: time_attr='time'")
    if sampling.subgraph_type != "directional":
        raise _undrawn()
    edge_types = pipeline.schema.edge_types
    has_own = sampling.time_attr in edge_types[HOMOGENEOUS_EDGE_TYPE].arrays if pipeline.schema.is_homogeneous else None
    found, strict = LeakageCheck(), sampling.temporal_comparison == "<"
    changes = {"transform": None, "device": None, "feature_cache": 0}
    with pipeline.with_backend(pipeline.backend, changes) as beside:
        beside.set_epoch(pipeline.next_epoch)
        for number, batch in enumerate(islice(beside, batches)):
            found += _check(batch, sampling.time_attr, strict, has_own, number)
    return found


def _check(batch: Any, time_attr: str, strict: bool, has_own: bool | None, number: int) -> LeakageCheck:
    """Checks one batch; ``has_own`` says of a homogeneous one whether the times are those of edges, None: its lengths do."""
    if any("edge_index" in store and "num_sampled_edges" not in store for store in batch.stores):
        raise _undrawn()
    seed_times, found = _seed_times(batch), LeakageCheck()
    for edge_type, edges, source, target in _edge_stores(batch):
        if "batch" not in target:
            raise _not_temporal("batch")
        own = edges is not source or _is_of_edges(batch, time_attr, has_own)
        times = edges[time_attr] if own and time_attr in edges else None
        if times is None and time_attr in source:
            times = source[time_attr].reshape(-1)[edges.edge_index[0]]
        if times is not None:
            limits = seed_times[target.batch[edges.edge_index[1]]]
            found += _compared(times.reshape(-1), limits, strict, edge_type, number)
    return found


def _compared(times: torch.Tensor, limits: torch.Tensor, strict: bool, edge_type: EdgeType, number: int) -> LeakageCheck:
    later = (times >= limits if strict else times > limits).nonzero().reshape(-1)
    shown = tuple(LaterEdge(number, edge_type, e, int(times[e]), int(limits[e])) for e in later[:_MOST_SHOWN].tolist())
    return LeakageCheck(len(times), len(later), shown)


def _edge_stores(batch: Any) -> list[tuple[EdgeType, Any, Any, Any]]:
    """Each edge type with where its edges, its neighbours and the nodes that drew them are."""
    if not hasattr(batch, "edge_types"):
        return [(HOMOGENEOUS_EDGE_TYPE, batch, batch, batch)]
    return [(t, batch[t], batch[t[0]], batch[t[2]]) for t in batch.edge_types if "edge_index" in batch[t]]


def _seed_times(batch: Any) -> torch.Tensor:
    """int64 ``[n]``: the time of each seed, for links of each link."""
    for name in ("seed_time", "edge_label_time"):
        for store in batch.stores:
            if name in store:
                return store[name]  # type: ignore[no-any-return]
    raise _not_temporal("seed_time")


def _is_of_edges(batch: Any, time_attr: str, has_own: bool | None) -> bool:
    if has_own is not None or time_attr not in batch:
        return bool(has_own)
    if batch.num_nodes == batch.num_edges:
        raise PlanError(
            f"the batch has as many nodes as edges, and {time_attr!r} may be the times of either", "loader.check_leakage() knows which"
        )
    return bool(len(batch[time_attr]) == batch.num_edges)


def _not_temporal(name: str) -> PlanError:
    return PlanError(f"the batch has no {name}, so it is none of a loader that follows times", "make one with time_attr='time'")


def _undrawn() -> PlanError:
    hint = "check a loader with subgraph_type='directional': it draws the same"
    return PlanError("the batch shows edges that nobody has drawn, next to those that were drawn", hint)

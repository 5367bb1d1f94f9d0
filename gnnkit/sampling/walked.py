"""Values that pass between the stages of a batch: its request, the seeds of its walk, and the chosen nodes and edges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import StoreError
from gnnkit.plan import TemporalComparison
from gnnkit.sampling.subgraph import BatchKey
from gnnkit.sampling.variates import Variates
from gnnkit.schema import EdgeType, NodeType

VERIFY_HINT = "gnnkit info --verify names the file"
LOOSE_EDGE = "an edge leads to a node that does not exist"
STRANGE_SEED = "a seed is numbered as a node that does not exist"
STRANGE_ID = "a node or an edge has an id that the dataset does not have"


def damaged(what: str) -> StoreError:
    """The error to raise; ``what`` is one of the texts above, or says as much."""
    return StoreError(f"the graph is damaged: {what}", VERIFY_HINT)


def time_limits(
    time: NDArray[np.int64], window: NDArray[np.int64] | int | None, comparison: TemporalComparison
) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """The last and the first time that count around seeds.

    Args:
        time: int64 ``[n]``, the seeds' times.
        window: How much earlier a time may be: int64 ``[n]``, or one number for all; None is any.
        comparison: Whether the seeds' own times count.

    Returns:
        int64 ``[n]`` each; None for the first ones where none is too early. Where nothing counts the first is later than the last.
    """
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    last, first = time, None
    if window is not None:
        first = np.where(time < low + window, low, time - window)
    if comparison == "<":
        last = np.where(time == low, low, time - 1)
        if (time == low).any():  # no time is before the earliest one
            first = np.where(time == low, high, low if first is None else first)
    return last, first


@dataclass(frozen=True)
class SampleRequest:
    """The key and the inputs that one batch is sampled from.

    Attributes:
        key: ``keys.batch_key`` of the batch.
        input_id: int64 ``[b]``, positions in the loader's inputs.
        arrays: The inputs' arrays for them, ``[b]`` or ``[b, k]`` each, nodes in the dataset's ids; see the seeder of their kind.
        variates: What neighbours compete by; None where every node draws from them on its own.
        waited_s: Seconds that another process has taken to choose the batch already.
    """

    key: int
    input_id: NDArray[np.int64]
    arrays: Mapping[str, NDArray[Any]]
    variates: Variates | None = None
    waited_s: float = 0.0


@dataclass(frozen=True)
class ExcludedEdges:
    """Edges that a batch must not show.

    Attributes:
        relation: Index of their stored edge type.
        source: int64 ``[n]``, store ids of their sources, as the type is stored.
        target: int64 ``[n]``, store ids of their targets.
    """

    relation: int
    source: NDArray[np.int64]
    target: NDArray[np.int64]


@dataclass
class WalkSeeds:
    """The seeds of a walk.

    Attributes:
        nodes: ``{index of a node type: int64 [n] store ids}``, in the order of their numbers.
        input_type: The type of the loader's inputs: a node type, or an edge type for links.
        num_seeds: Inputs in the batch.
        arrays: Arrays that the batch carries as they are.
        roots: ``{index of a node type: int64 [n]}``, which neighbourhood each seed belongs to; None where all share one.
        times: ``{index of a node type: int64 [n]}``: nothing later is sampled around a seed; None where time plays no part.
        since: The same: nothing earlier is sampled around a seed; None where nothing is too early.
        batch_of_root: int64 ``[number of roots]``, what ``batch`` shows for each root: of a link's ends, the link; None: the root itself.
        excluded: Edges to leave out.
        variates: See ``SampleRequest``.
    """

    nodes: dict[int, NDArray[np.int64]]
    input_type: NodeType | EdgeType
    num_seeds: int
    arrays: dict[BatchKey, NDArray[Any]]
    roots: dict[int, NDArray[np.int64]] | None = None
    times: dict[int, NDArray[np.int64]] | None = None
    since: dict[int, NDArray[np.int64]] | None = None
    batch_of_root: NDArray[np.int64] | None = None
    excluded: tuple[ExcludedEdges, ...] = ()
    variates: Variates | None = None


@dataclass
class WalkedEdges:
    """Edges of one type that a walk has chosen.

    Attributes:
        type: The type as the batch shows it.
        relation: Index of the stored edge type whose rows they have; None for edges that are none of the graph's.
        row: int64 ``[n]``, numbers of their sources as shown.
        col: int64 ``[n]``, numbers of their targets as shown: the seeds' side.
        position: int64 ``[n]``, their positions in the store; None where no rows of theirs are wanted.
        num_sampled: Edges of each hop.
    """

    type: EdgeType
    relation: int | None
    row: NDArray[np.int64]
    col: NDArray[np.int64]
    position: NDArray[np.int64] | None
    num_sampled: list[int]


@dataclass
class Walked:
    """The nodes and edges of a batch; arrays may lie in the sampling thread's scratch, valid until the next walk.

    Attributes:
        nodes: int64 ``[n]`` per node type: store ids in the order of their numbers.
        num_sampled_nodes: Per node type: new nodes of each hop, seeds first.
        edges: Every edge type that the batch shows.
        seeds: What the walk started from.
        arrays: What was worked out on the way.
    """

    nodes: list[NDArray[np.int64]]
    num_sampled_nodes: list[list[int]]
    edges: list[WalkedEdges]
    seeds: WalkSeeds
    arrays: dict[BatchKey, NDArray[Any]] = field(default_factory=dict)

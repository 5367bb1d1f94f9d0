"""Hotness: how often batches are expected to visit a node, and the rows that are replicated by it.

graphlearn-torch estimates the probability that a node is visited at all. Over an epoch that is close to one for most nodes of
a part, hot or not; the expected number of visits keeps them apart. It follows from the graph without a single draw: a node
that is visited ``h`` times with ``degree`` neighbours and fan-out ``k`` passes ``h * min(k, degree) / degree`` on to each.
Fixed-point integers, so that every machine ranks alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError
from gnnkit.kernels.jit import lazy_kernel
from gnnkit.schema import NodeType
from gnnkit.splits import find_split
from gnnkit.storage.arrays import GraphArrays
from gnnkit.storage.layout import TRAIN, BuildOptions
from gnnkit.storage.partition.topology import edge_rows, to_dataset_order

Splits = Mapping[NodeType, Mapping[str, NDArray[np.int64]]]
# Numbers of nodes by type: ids of some, or one number for each.
ByType = dict[NodeType, NDArray[np.int64]]

# Visits saturate here: two of them can still be added.
_LIMIT = 1 << 61
_MAX_FRACTION_BITS = 32


def input_seeds(graph: GraphArrays, splits: Splits | None, input_nodes: str | None = TRAIN) -> ByType:
    """The nodes that epochs start from.

    Args:
        graph: The graph.
        splits: Its splits, by dataset id.
        input_nodes: A split, of each type that has it; None is every node, and so is "train" where no type has any.

    Returns:
        ``{node type: int64 [k]}``, dataset ids, ascending, without repeats.

    Raises:
        PlanError: A split names an unknown node type or an id out of range, or there is none of that name.
    """
    own = {} if splits is None or input_nodes is None else {t: (split, find_split(input_nodes, split)) for t, split in splits.items()}
    given = {t: np.unique(np.asarray(split[name], dtype=np.int64)) for t, (split, name) in own.items() if name is not None}
    for name, ids in given.items():
        if name not in graph.schema.node_types:
            raise PlanError(f"splits name the unknown node type {name!r}", f"known: {list(graph.schema.node_types)}")
        num_nodes = graph.schema.node_types[name].num_nodes
        if len(ids) and (ids[0] < 0 or ids[-1] >= num_nodes):
            raise PlanError(
                f"split {input_nodes!r} of node type {name!r} holds ids from {ids[0]} to {ids[-1]}, but it has {num_nodes} nodes"
            )
    if not any(len(ids) for ids in given.values()):
        several = input_nodes is not None and any(find_split(input_nodes, split, 0) for split, name in own.values() if name is None)
        if several or input_nodes not in (None, TRAIN):
            known = sorted({name for split in (splits or {}).values() for name in split})
            hint = f"known: {known}; {'split_index=0 chooses the first of several, and ' if several else ''}None is every node"
            raise PlanError(f"input_nodes={input_nodes!r}: no node type has such a split", hint)
        return {name: np.arange(t.num_nodes, dtype=np.int64) for name, t in graph.schema.node_types.items()}
    return given


def expected_visits(graph: GraphArrays, seeds: ByType, num_neighbors: Sequence[int]) -> ByType:
    """Expected visits of every node when each seed is sampled from once.

    Args:
        graph: The graph, in any number of parts.
        seeds: ``{node type: int64 [k]}``, dataset ids without repeats.
        num_neighbors: Fan-out of each hop, used for every edge type; -1 takes all neighbours.

    Returns:
        ``{node type: int64 [num_nodes]}`` by store id, in a unit that depends on the number of seeds and the fan-out.
    """
    visits = {name: np.zeros(t.num_nodes, np.int64) for name, t in graph.schema.node_types.items()}
    for _, frontier in expected_frontiers(graph, seeds, num_neighbors):
        for name, values in frontier.items():
            np.minimum(visits[name] + values, _LIMIT, out=visits[name])
    return visits


def expected_frontiers(graph: GraphArrays, seeds: ByType, num_neighbors: Sequence[int]) -> Iterator[tuple[int, ByType]]:
    """Yields how often each hop is expected to arrive at every node: the seeds first, then a hop for each fan-out.

    Args:
        graph: See ``expected_visits``.
        seeds: See ``expected_visits``.
        num_neighbors: See ``expected_visits``.

    Yields:
        What stands for one visit, and ``{node type: int64 [num_nodes]}`` by store id.
    """
    unit = 1 << _fraction_bits(graph, sum(len(ids) for ids in seeds.values()), num_neighbors)
    frontier = {name: np.zeros(t.num_nodes, dtype=np.int64) for name, t in graph.schema.node_types.items()}
    for name, ids in seeds.items():
        store_id = graph.checked(name).store_id[name]
        frontier[name][ids if store_id is None else store_id[ids]] = unit
    yield unit, frontier
    for fan_out in num_neighbors:
        reached = {name: np.zeros_like(values) for name, values in frontier.items()}
        for edge_type in graph.edges:
            source, target = frontier[graph.frontier_type(edge_type)], reached[graph.neighbor_type(edge_type)]
            for rows in edge_rows(graph, edge_type):
                _spread(rows.first, rows.indptr, rows.indices, source, target, fan_out, _LIMIT)
        frontier = reached
        yield unit, frontier


def hotness_levels(graph: GraphArrays, options: BuildOptions, splits: Splits | None = None) -> dict[NodeType, NDArray[np.uint8]]:
    """Levels of hotness: nodes of one level are expected to be visited at least twice as often as those of the next lower one.

    Args:
        graph: The graph, in any number of parts.
        options: ``num_neighbors`` and ``input_nodes`` are read.
        splits: See ``input_seeds``.

    Returns:
        ``{node type: uint8 [num_nodes]}`` by dataset id: 0 for a node that is never visited, and less than 64.

    Raises:
        PlanError: A split does not fit the graph.
    """
    visits = expected_visits(graph, input_seeds(graph, splits, options.input_nodes), options.num_neighbors)
    # frexp gives the exponent of the nearest double, which is exact up to 53 bits; beyond, a node may come out one level too high.
    return {t: to_dataset_order(graph, t, np.frexp(visits.pop(t))[1].astype(np.uint8)) for t in list(visits)}


def _fraction_bits(graph: GraphArrays, num_seeds: int, num_neighbors: Sequence[int]) -> int:
    """Bits after the point with which the visits of a whole epoch stay below the limit, unless degrees are extreme."""
    mean_degree = graph.schema.num_edges // max(graph.schema.num_nodes, 1) + 1
    total = visits = max(num_seeds, 1)
    for fan_out in num_neighbors:
        visits *= max(fan_out if fan_out >= 0 else mean_degree, 1) * max(len(graph.edges), 1)
        total += visits
    return min(max(_LIMIT.bit_length() - 1 - total.bit_length(), 0), _MAX_FRACTION_BITS)


@lazy_kernel
def _spread(
    first: int,
    indptr: NDArray[np.int64],
    indices: NDArray[np.int64],
    source: NDArray[np.int64],
    target: NDArray[np.int64],
    fan_out: int,
    limit: int,
) -> None:
    for row in range(indptr.size - 1):
        visits = source[first + row]
        degree = indptr[row + 1] - indptr[row]
        if visits == 0 or degree == 0:
            continue
        share = visits
        if 0 <= fan_out < degree:
            # visits * fan_out would overflow.
            share = visits // degree * fan_out + visits % degree * fan_out // degree
        for j in range(indptr[row], indptr[row + 1]):
            target[indices[j]] = min(target[indices[j]] + share, limit)


def hot_nodes(
    graph: GraphArrays, assignment: Mapping[NodeType, NDArray[Any]], options: BuildOptions, splits: Splits | None = None
) -> list[ByType]:
    """The nodes of other parts that each part's own training seeds visit most.

    Args:
        graph: The graph, in any number of parts.
        assignment: ``{node type: [num_nodes]}``, each node's part by dataset id.
        options: ``num_parts``, ``num_neighbors``, ``input_nodes`` and ``cache_ratio`` are read.
        splits: See ``input_seeds``.

    Returns:
        Per part ``{node type: int64 [k]}``: dataset ids, ascending, at most ``cache_ratio * num_nodes`` of the type's nodes;
        nodes that no seed of the part can reach are left out.

    Raises:
        PlanError: A split does not fit the graph.
    """
    seeds = input_seeds(graph, splits, options.input_nodes)
    limits = {name: int(options.cache_ratio * t.num_nodes) for name, t in graph.schema.node_types.items()}
    if options.num_parts == 1 or not any(limits.values()):
        return [{name: np.empty(0, dtype=np.int64) for name in limits} for _ in range(options.num_parts)]
    chosen = []
    for part in range(options.num_parts):
        own_seeds = {name: ids[assignment[name][ids] == part] for name, ids in seeds.items()}
        visits = expected_visits(graph, own_seeds, options.num_neighbors)
        chosen.append(
            {name: _hottest(to_dataset_order(graph, name, visits[name]), assignment[name] != part, limit) for name, limit in limits.items()}
        )
    return chosen


def _hottest(visits: NDArray[np.int64], foreign: NDArray[np.bool_], limit: int) -> NDArray[np.int64]:
    candidates = np.flatnonzero(foreign & (visits > 0))
    order = np.argsort(-visits[candidates], kind="stable")
    return np.sort(candidates[order[:limit]]).astype(np.int64)

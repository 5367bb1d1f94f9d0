"""Which features a part should replicate from others: graphlearn-torch's feature cache, chosen by expected visits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.schema import NodeType
from gnnkit.storage.arrays import GraphArrays
from gnnkit.storage.options import BuildOptions
from gnnkit.storage.partition.hotness import Splits, expected_visits, input_seeds
from gnnkit.storage.partition.topology import to_dataset_order


def hot_nodes(
    graph: GraphArrays, assignment: Mapping[NodeType, NDArray[Any]], options: BuildOptions, splits: Splits | None = None
) -> list[dict[NodeType, NDArray[np.int64]]]:
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

"""Parts by hotness: every part gets the nodes that its own training seeds visit more often than those of other parts.

The idea of graphlearn-torch's FrequencyPartitioner: the training nodes are dealt to the parts first, the rest follows them.
Here seeds are dealt in consecutive ranges, nodes are placed in the order of how much it matters (the gap between the best
part and the next best), and sizes come out equal.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gnnkit.events import Stage
from gnnkit.kernels.jit import lazy_kernel
from gnnkit.schema import NodeType
from gnnkit.storage.arrays import GraphArrays
from gnnkit.storage.layout import BuildOptions
from gnnkit.storage.partition.balance import contiguous_parts, equal_sizes
from gnnkit.storage.partition.hotness import Splits, expected_visits, input_seeds
from gnnkit.storage.partition.topology import to_dataset_order


def assign(graph: GraphArrays, options: BuildOptions, splits: Splits | None, stage: Stage) -> dict[NodeType, NDArray[np.int32]]:
    """Assigns nodes by hotness; sizes differ by at most one.

    Args:
        graph: The graph to cut.
        options: ``num_parts`` and ``num_neighbors`` are read.
        splits: Whose "train" ids are the seeds; None takes every node.
        stage: Set to a unit per node and part.

    Returns:
        ``{node type: int32 [num_nodes]}`` by dataset id.

    Raises:
        PlanError: A split does not fit the graph.
    """
    num_parts, num_nodes = options.num_parts, graph.schema.num_nodes
    seeds = input_seeds(graph, splits, options.input_nodes)
    seed_parts = {name: contiguous_parts(len(ids), num_parts) for name, ids in seeds.items()}
    visits: dict[NodeType, NDArray[np.int64]] = {
        name: np.empty((node_type.num_nodes, num_parts), dtype=np.int64) for name, node_type in graph.schema.node_types.items()
    }
    stage.update(0, total=float(num_parts) * num_nodes)
    for part in range(num_parts):
        own_seeds = {name: ids[seed_parts[name] == part] for name, ids in seeds.items()}
        for name, values in expected_visits(graph, own_seeds, options.num_neighbors).items():
            visits[name][:, part] = to_dataset_order(graph, name, values)
        stage.advance(num_nodes)
    return {name: _by_hotness(values) for name, values in visits.items()}


def _by_hotness(visits: NDArray[np.int64]) -> NDArray[np.int32]:
    """Places nodes ``[n, num_parts]``, those with the clearest preference first."""
    num_nodes, num_parts = visits.shape
    # Without a preference a node goes where the numbering would put it, which keeps neighbours together in most datasets.
    parts = contiguous_parts(num_nodes, num_parts)
    if num_nodes and num_parts > 1:
        gaps = np.empty(num_nodes, dtype=np.int64)
        _preference(visits, gaps)
        _place(visits, np.argsort(-gaps, kind="stable"), parts, equal_sizes(num_nodes, num_parts))
    return parts


@lazy_kernel
def _preference(visits: NDArray[np.int64], gaps: NDArray[np.int64]) -> None:
    """By how much each node's best part leads over the next best."""
    for node in range(gaps.size):
        best = np.int64(-1)
        second = np.int64(-1)
        for part in range(visits.shape[1]):
            value = visits[node, part]
            if value > best:
                second = best
                best = value
            elif value > second:
                second = value
        gaps[node] = best - second


@lazy_kernel
def _place(visits: NDArray[np.int64], order: NDArray[np.int64], parts: NDArray[np.int32], room: NDArray[np.int64]) -> None:
    for node in order:
        best = np.int64(parts[node])
        if room[best] == 0:
            best = -1
        for part in range(room.size):
            if room[part] > 0 and (best < 0 or visits[node, part] > visits[node, best]):
                best = part
        parts[node] = best
        room[best] -= 1

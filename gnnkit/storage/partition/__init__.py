"""Partitioners: which part each node goes to. Edges follow the node that owns them.

| method | needs the edges | balance per node type | what it is good for |
|---|---|---|---|
| ``contiguous`` | no | sizes differ by at most 1 | one host; datasets whose numbering has locality |
| ``random`` | no | sizes differ by at most 1 | even load, no locality |
| ``ldg`` | yes | within 5 percent | a cut close to METIS' in seconds |
| ``metis`` | yes | within 5 percent | the reference for cuts; needs pymetis and much memory |
| ``column:NAME`` | no | as the column has it | parts that the data has already: a region, a tenant, a hash of one's own |
| ``frequency`` | yes | sizes differ by at most 1 | nodes next to the training seeds that visit them |

Every method gives the same assignment for the same options on every machine; for ``metis`` that is as far as one build of
METIS goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import PlanError
from gnnkit.events import EventSink, Stage
from gnnkit.schema import EdgeType, GraphSchema, NodeType
from gnnkit.storage.layout import BuildOptions

if TYPE_CHECKING:
    from gnnkit.storage.arrays import GraphArrays
    from gnnkit.storage.partition.column import NodeRows

_TOPOLOGY_METHODS = frozenset({"ldg", "metis", "frequency"})


def needs_topology(method: str) -> bool:
    """Whether ``assign_parts`` has to see the edges for this method."""
    return method in _TOPOLOGY_METHODS


def assign_parts(
    schema: GraphSchema,
    graph: GraphArrays | None,
    options: BuildOptions,
    events: EventSink,
    splits: Mapping[NodeType, Mapping[str, NDArray[np.int64]]] | None = None,
    nodes: NodeRows | None = None,
) -> dict[NodeType, NDArray[np.int32]]:
    """Assigns every node to a part.

    Args:
        schema: Types and sizes.
        graph: The graph's edges, in any number of parts; None will do where ``needs_topology`` says no.
        options: ``num_parts``, ``partition``, ``seed`` and ``num_neighbors`` are read.
        events: Receives the stage "partition".
        splits: ``{node type: {"train": dataset ids}}``, the seeds from which "frequency" measures; None takes every node.
        nodes: The rows of nodes, for "column:NAME"; None will do for others.

    Returns:
        ``{node type: int32 [num_nodes]}``, each node's part by dataset id.

    Raises:
        PlanError: There are more parts than nodes of any type, a split does not fit the graph, pymetis is missing, or the column does not
            give each node one of the parts.
    """
    num_parts = options.num_parts
    largest = max((t.num_nodes for t in schema.node_types.values()), default=0)
    if num_parts > max(largest, 1):
        raise PlanError(
            f"num_parts={num_parts} is more than the nodes of any type (the largest has {largest})",
            f"num_parts can be up to {max(largest, 1)}",
        )
    label = f"{options.partition}, {num_parts} part{'s' if num_parts > 1 else ''}"
    with Stage(events, "partition", label=label, total=float(schema.num_nodes), unit="nodes") as stage:
        if num_parts == 1:
            parts = {name: np.zeros(t.num_nodes, dtype=np.int32) for name, t in schema.node_types.items()}
        else:
            parts = _assign(schema, graph, options, splits, nodes, stage)
        stage.update(stage.total or 0.0)
    return parts


def _assign(
    schema: GraphSchema,
    graph: GraphArrays | None,
    options: BuildOptions,
    splits: Mapping[NodeType, Mapping[str, NDArray[np.int64]]] | None,
    nodes: NodeRows | None,
    stage: Stage,
) -> dict[NodeType, NDArray[np.int32]]:
    if options.partition == "contiguous":
        from gnnkit.storage.partition import balance as contiguous

        return contiguous.assign_contiguous(schema, options.num_parts)
    if options.partition == "random":
        from gnnkit.storage.partition import balance as random

        return random.assign_random(schema, options.num_parts, options.seed)
    if options.part_column is not None:
        from gnnkit.storage.partition import column

        assert nodes is not None, f"partition={options.partition!r} needs the rows of nodes"
        return column.assign(nodes, options.part_column, options.num_parts)
    assert graph is not None, f"partition={options.partition!r} needs the edges"
    if options.partition == "ldg":
        from gnnkit.storage.partition import ldg

        return ldg.assign(graph, options.num_parts, options.seed, stage)
    if options.partition == "metis":
        from gnnkit.storage.partition import metis

        return metis.assign(graph, options.num_parts, options.seed)
    from gnnkit.storage.partition import frequency

    return frequency.assign(graph, options, splits, stage)


def hot_nodes(
    graph: GraphArrays,
    assignment: Mapping[NodeType, NDArray[Any]],
    options: BuildOptions,
    splits: Mapping[NodeType, Mapping[str, NDArray[np.int64]]] | None = None,
) -> list[dict[NodeType, NDArray[np.int64]]]:
    """Per part, the hottest ``cache_ratio * num_nodes`` dataset ids of other parts; see ``cache.hot_nodes``."""
    from gnnkit.storage.partition import hotness as cache

    return cache.hot_nodes(graph, assignment, options, splits)


def hotness_levels(
    graph: GraphArrays, options: BuildOptions, splits: Mapping[NodeType, Mapping[str, NDArray[np.int64]]] | None = None
) -> dict[NodeType, NDArray[np.uint8]]:
    """The hotness of each node, in levels ``[num_nodes]`` by dataset id; see ``hotness.levels``."""
    from gnnkit.storage.partition import hotness

    return hotness.levels(graph, options.num_neighbors, splits, options.input_nodes)


def edge_cut(
    graph: GraphArrays, assignment: Mapping[NodeType, NDArray[Any]] | None = None, num_parts: int | None = None
) -> dict[EdgeType, NDArray[np.int64]]:
    """Per edge type, how many edges lead from part (row) to part (column); see ``cut.edge_cut``."""
    from gnnkit.storage.partition import cut

    return cut.edge_cut(graph, assignment, num_parts)

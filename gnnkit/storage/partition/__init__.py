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

import numpy as np
from numpy.typing import NDArray

from gnnkit.events import EventSink, Stage, ignore_events
from gnnkit.kernels.keys import stream_key
from gnnkit.schema import GraphSchema, NodeType
from gnnkit.storage.arrays import GraphArrays
from gnnkit.storage.layout import BuildOptions
from gnnkit.storage.partition import column, frequency, ldg, metis
from gnnkit.storage.partition.balance import contiguous_parts, shuffled_parts
from gnnkit.storage.partition.column import NodeRows

_TOPOLOGY_METHODS = frozenset({"ldg", "metis", "frequency"})


def needs_topology(method: str) -> bool:
    """Whether ``assign_parts`` has to see the edges for this method."""
    return method in _TOPOLOGY_METHODS


def assign_parts(
    schema: GraphSchema,
    graph: GraphArrays | None,
    options: BuildOptions,
    events: EventSink = ignore_events,
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
        PlanError: A split does not fit the graph, pymetis is missing, or the column does not
            give each node one of the parts.
    """
    num_parts, method = options.num_parts, options.partition
    counts = {name: node_type.num_nodes for name, node_type in schema.node_types.items()}
    label = f"{method}, {num_parts} part{'s' if num_parts > 1 else ''}"
    with Stage(events, "partition", label=label, total=float(schema.num_nodes), unit="nodes") as stage:
        if num_parts == 1 or method == "contiguous":
            parts = {name: contiguous_parts(count, num_parts) for name, count in counts.items()}
        elif method == "random":  # by the seed, the type's name and its number of nodes only: another type changes none
            keys = {name: stream_key(options.seed, f"partition/{name}") for name in counts}
            parts = {name: shuffled_parts(keys[name], count, num_parts) for name, count in counts.items()}
        elif options.part_column is not None:
            assert nodes is not None, f"partition={method!r} needs the rows of nodes"
            parts = column.assign(nodes, options.part_column, num_parts)
        else:
            assert graph is not None, f"partition={method!r} needs the edges"
            if method == "ldg":
                parts = ldg.assign(graph, num_parts, options.seed, stage)
            elif method == "metis":
                parts = metis.assign(graph, num_parts, options.seed)
            else:
                parts = frequency.assign(graph, options, splits, stage)
        stage.update(stage.total or 0.0)
    return parts

"""Sizes of batches, from a graph's sizes and fan-outs alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gnnkit.errors import PlanError
from gnnkit.schema import EdgeDir, EdgeType, GraphSchema, NodeType

# Ids in batches are int64, an edge index has two; seeds carry their place among the inputs.
_ID_BYTES, _EDGE_BYTES = 8, 16
# Each array begins at a cache line.
_ALIGNMENT = 64


@dataclass(frozen=True)
class BatchSize:
    """A batch, or the mean of several.

    Attributes:
        nodes: ``{node type: nodes}``, seeds included.
        edges: ``{edge type: edges}``.
        source: Where the numbers come from, in words.
    """

    nodes: Mapping[NodeType, float]
    edges: Mapping[EdgeType, float]
    source: str

    @property
    def num_nodes(self) -> float:
        """Nodes of all types."""
        return sum(self.nodes.values())

    @property
    def num_edges(self) -> float:
        """Edges of all types."""
        return sum(self.edges.values())

    def nbytes(self, schema: GraphSchema, batch_size: int, with_edge: bool) -> int:
        """Bytes of its arrays, at most: each one is counted with the gap to the next."""
        total, arrays = _ID_BYTES * batch_size, 1
        for node_type, count in self.nodes.items():
            specs = schema.node_types[node_type].arrays.values()
            total += math.ceil(count) * (_ID_BYTES + sum(spec.row_nbytes for spec in specs))
            arrays += 1 + len(specs)
        for edge_type, count in self.edges.items():
            edge_specs = schema.edge_types[edge_type].arrays.values()
            total += math.ceil(count) * (_EDGE_BYTES + _ID_BYTES * with_edge + sum(spec.row_nbytes for spec in edge_specs))
            arrays += 2 + len(edge_specs)
        return total + arrays * _ALIGNMENT

    def row_bytes(self, schema: GraphSchema) -> float:
        """Bytes of what is gathered for its nodes and edges, ids left out."""
        nodes = sum(n * sum(s.row_nbytes for s in schema.node_types[t].arrays.values()) for t, n in self.nodes.items())
        return nodes + sum(n * sum(s.row_nbytes for s in schema.edge_types[t].arrays.values()) for t, n in self.edges.items())


def most(
    schema: GraphSchema, fan_outs: Mapping[EdgeType, Sequence[int]], seed_type: NodeType, batch_size: int, edge_dir: EdgeDir
) -> BatchSize:
    """Nodes and edges of a batch on a graph of which only the sizes are known.

    Every node draws its full fan-out, and draws fall on all nodes alike: of all ways to draw independently that gives the most different
    nodes. Graphs with hubs, or nodes of few edges, have fewer. It is a mean: single batches may have somewhat more.

    Raises:
        PlanError: A fan-out is -1: all neighbours can be any number.
    """
    if any(count < 0 for fan in fan_outs.values() for count in fan):
        raise PlanError("fan-outs of -1 cannot be bounded on paper", "give the store: its batches are then sampled and counted")
    hops = max(map(len, fan_outs.values()), default=0)
    nodes = dict.fromkeys(schema.node_types, 0.0) | {seed_type: float(min(batch_size, schema.node_types[seed_type].num_nodes))}
    edges, frontier = dict.fromkeys(schema.edge_types, 0.0), {seed_type: nodes[seed_type]}
    for hop in range(hops):
        drawn: dict[NodeType, float] = {}
        for edge_type, fan in fan_outs.items():
            neighbor, owner = (edge_type[0], edge_type[2]) if edge_dir == "in" else (edge_type[2], edge_type[0])
            count = min(frontier.get(owner, 0.0) * fan[hop], float(schema.edge_types[edge_type].num_edges))
            edges[edge_type] += count
            drawn[neighbor] = drawn.get(neighbor, 0.0) + count
        frontier = {}
        for node_type, count in drawn.items():
            total = schema.node_types[node_type].num_nodes
            # Of the nodes that are not in the batch yet, the share that so many draws hit.
            found = (total - nodes[node_type]) * -math.expm1(-count / total) if total else 0.0
            frontier[node_type] = found
            nodes[node_type] += found
    used = {t: n for t, n in edges.items() if n or any(fan_outs.get(t, ()))}
    return BatchSize(nodes, used, "at most on average, from sizes and fan-outs")

"""The other end of ``gnnkit.sampling.structure``: batches made of structures that came from elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnkit.errors import SamplingError
from gnnkit.sampling.structure import COUNT, NODE, POSITION, SOURCE, TARGET, Structure, as_counts, write_columns
from gnnkit.sampling.subgraph import EdgeKey, NodeKey
from gnnkit.sampling.tables import GraphTables, address_of
from gnnkit.sampling.walked import SampleRequest, Seeds, Walked, WalkedEdges
from gnnkit.schema import EdgeType


@dataclass(frozen=True, kw_only=True)
class WalkedRequest(SampleRequest):
    """A batch that somebody else has walked; its ``key`` is 0, because nothing is drawn here any more.

    Attributes:
        structure: The walk.
    """

    structure: Structure

    @classmethod
    def of(cls, structure: Structure, waited_s: float) -> WalkedRequest:
        """The request that a structure answers, which took ``waited_s`` seconds to come."""
        return cls(key=0, input_id=np.empty(0, np.int64), arrays={}, waited_s=waited_s, structure=structure)


class ReceivedChooser:
    """Takes the nodes and edges of batches from structures.

    Args:
        tables: The graph's outline.
    """

    def __init__(self, tables: GraphTables) -> None:
        self._tables = tables

    def use(self, tables: GraphTables) -> None:
        """See ``Chooser.use``."""
        self._tables = tables

    def choose(self, request: SampleRequest) -> Walked:
        """See ``Chooser.choose``.

        Args:
            request: A ``WalkedRequest``.

        Raises:
            SamplingError: The structure does not fit the plan and the graph.
        """
        assert isinstance(request, WalkedRequest), "nothing is drawn here"
        try:
            return self._taken(request.structure)
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise _misfit() from error

    def _taken(self, structure: Structure) -> Walked:
        tables, layout, arrays = self._tables, structure.layout, structure.arrays
        nodes = [self._nodes(arrays[NodeKey(node_type, NODE)], t) for t, node_type in enumerate(tables.node_types)]
        stored = {tables.shown_type(edge_type): r for r, edge_type in enumerate(tables.edge_types)}
        edges = [self._edges(structure, shown, stored.get(shown), nodes) for shown in layout.num_sampled_edges]
        carried = {key: array for key, array in arrays.items() if not key.name.startswith(".")}
        counts = [(layout.num_sampled_nodes[t], found) for t, found in zip(tables.node_types, nodes, strict=True)]
        counts += [(found.num_sampled, found.row) for found in edges]
        if any(hops and (min(hops) < 0 or sum(hops) != len(found)) for hops, found in counts):
            raise _misfit()
        input_ids = [array for key, array in carried.items() if key.name == "input_id"]
        if not input_ids or len(input_ids[0]) != layout.num_seeds:
            raise _misfit()
        seeds = Seeds({}, layout.input_type, layout.num_seeds, carried)
        return Walked(nodes, [layout.num_sampled_nodes[node_type] for node_type in tables.node_types], edges, seeds)

    def _nodes(self, found: NDArray[Any], t: int) -> NDArray[np.int64]:
        nodes = found.astype(np.int64)
        if len(nodes) and not 0 <= nodes.min() <= nodes.max() < self._tables.bounds[t, -1]:
            raise _misfit()
        return nodes

    def _edges(self, structure: Structure, shown: EdgeType, r: int | None, nodes: list[NDArray[np.int64]]) -> WalkedEdges:
        tables, arrays = self._tables, structure.arrays
        row = arrays[EdgeKey(shown, SOURCE)].astype(np.int64)
        counts, position = arrays.get(EdgeKey(shown, COUNT)), arrays.get(EdgeKey(shown, POSITION))
        if counts is None:
            col = arrays[EdgeKey(shown, TARGET)].astype(np.int64)
        else:
            col = np.empty(len(row), np.int64)
            if not write_columns(*as_counts(np.require(counts, requirements="A")), address_of(col), len(row)):
                raise _misfit()
        sizes = [len(nodes[tables.node_types.index(shown[end])]) for end in (0, 2)]
        for numbers, size in zip((row, col), sizes, strict=True):
            if len(numbers) != len(row) or (len(numbers) and not 0 <= numbers.min() <= numbers.max() < size):
                raise _misfit()
        if position is not None:
            position = position.astype(np.int64)
            bounds = tables.row_bounds[len(tables.node_types) + r] if r is not None else np.zeros(1, np.int64)
            if len(position) != len(row) or (len(position) and not 0 <= position.min() <= position.max() < bounds[-1]):
                raise _misfit()
        return WalkedEdges(shown, r, row, col, position, structure.layout.num_sampled_edges[shown])


def _misfit() -> SamplingError:
    return SamplingError("a server sent a batch that does not fit the request", "servers and trainers must run the same gnnkit")

"""A batch's structure on its way between the process that walks and the process that fetches the rows, and batches made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from gnnkit.errors import SamplingError
from gnnkit.sampling.batch_writer import BatchWriter, CarriedArray, carried_arrays, layout_of
from gnnkit.sampling.subgraph import BatchKey, BatchLayout, EdgeKey, LayoutBuilder, NodeKey, SampleRequest, Walked, WalkedEdges, WalkSeeds
from gnnkit.sampling.tables import GraphTables
from gnnkit.schema import EdgeType

NODE, SOURCE, COUNT, TARGET, POSITION = ".node", ".source", ".count", ".target", ".position"

_LARGEST_INT32 = (1 << 31) - 1
_LARGEST_UINT8 = 255


@dataclass(frozen=True)
class Structure:
    """A structure as it lies in memory.

    Attributes:
        layout: What lies where.
        block: uint8 ``[at least layout.nbytes]``, of any alignment.
    """

    layout: BatchLayout
    block: NDArray[np.uint8]

    @cached_property
    def arrays(self) -> dict[BatchKey, NDArray[Any]]:
        """Views of the arrays."""
        return {
            field.key: self.block[field.offset : field.offset + field.nbytes].view(field.numpy_dtype).reshape(field.shape)
            for field in self.layout.fields
        }


class StructureWriter(BatchWriter):
    """A ``BatchWriter`` whose batches are structures: it gathers nothing.

    Args:
        tables: The graph.
    """

    _batches: list[tuple[BatchLayout, list[CarriedArray]]]

    @override
    def lay_out(self, walked: Sequence[Walked]) -> list[BatchLayout]:
        self._batches = [self._lay_out(own) for own in walked]
        return [layout for layout, _ in self._batches]

    def _lay_out(self, walked: Walked) -> tuple[BatchLayout, list[CarriedArray]]:
        tables, builder, found = self.tables, LayoutBuilder(), list[CarriedArray]()

        def add(key: BatchKey, dtype: str, array: NDArray[Any]) -> None:
            found.append((builder.add(key, dtype, array.shape), array))

        for t, node_type in enumerate(tables.node_types):
            add(NodeKey(node_type, NODE), _width(tables.num_rows[t]), walked.nodes[t])
        for edges in walked.edges:
            add(EdgeKey(edges.type, SOURCE), "int32", edges.row)
            if (edges.col[1:] < edges.col[:-1]).any():
                add(EdgeKey(edges.type, TARGET), "int32", edges.col)
            else:
                counts = np.bincount(edges.col)
                add(EdgeKey(edges.type, COUNT), "uint8" if counts.max(initial=0) <= _LARGEST_UINT8 else "int32", counts)
            if edges.position is not None and edges.relation is not None:
                add(EdgeKey(edges.type, POSITION), _width(tables.num_edges(edges.relation)), edges.position)
        found += carried_arrays(builder, walked)
        return layout_of(builder, walked, tables), found

    @override
    def fill(self, blocks: Sequence[NDArray[np.uint8]]) -> None:
        for (layout, found), block in zip(self._batches, blocks, strict=True):
            arrays = Structure(layout, block).arrays
            for place, array in found:
                np.copyto(arrays[place.key], array, casting="unsafe")


def _width(count: int) -> str:
    """The narrower of the types of ids that holds all below ``count``."""
    return "int32" if count - 1 <= _LARGEST_INT32 else "int64"


@dataclass(kw_only=True)
class WalkedRequest(SampleRequest):
    """A batch that another process has walked; its ``key`` is 0, because nothing is drawn here any more.

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
        """Switches to another copy of the same graph."""
        self._tables = tables

    def choose(self, requests: Sequence[SampleRequest]) -> list[Walked]:
        """Chooses one batch, the first of these.

        Args:
            requests: ``WalkedRequest`` each.

        Raises:
            SamplingError: The structure does not fit the plan and the graph.
        """
        request = requests[0]
        assert isinstance(request, WalkedRequest), "nothing is drawn here"
        try:
            return [self._taken(request.structure)]
        except (AttributeError, KeyError, ValueError, TypeError, IndexError, OverflowError) as error:
            raise _misfit() from error

    def _taken(self, structure: Structure) -> Walked:
        tables, layout, arrays = self._tables, structure.layout, structure.arrays
        nodes = [_numbers(arrays[NodeKey(node_type, NODE)], tables.num_rows[t]) for t, node_type in enumerate(tables.node_types)]
        stored = {tables.shown_type(edge_type): r for r, edge_type in enumerate(tables.edge_types)}
        edges = [self._edges(structure, shown, stored.get(shown), nodes) for shown in layout.num_sampled_edges]
        carried = {key: array for key, array in arrays.items() if not key.name.startswith(".")}
        counts = [(layout.num_sampled_nodes[t], found) for t, found in zip(tables.node_types, nodes, strict=True)]
        counts += [(found.num_sampled, found.row) for found in edges]
        if any(any(type(n) is not int or n < 0 for n in hops) or (hops and sum(hops) != len(found)) for hops, found in counts):
            raise _misfit()
        input_ids = [array for key, array in carried.items() if key.name == "input_id"]
        if not input_ids or len(input_ids[0]) != layout.num_seeds:
            raise _misfit()
        seeds = WalkSeeds({}, layout.input_type, layout.num_seeds, carried)
        return Walked(nodes, [layout.num_sampled_nodes[node_type] for node_type in tables.node_types], edges, seeds)

    def _edges(self, structure: Structure, shown: EdgeType, r: int | None, nodes: list[NDArray[np.int64]]) -> WalkedEdges:
        tables, arrays = self._tables, structure.arrays
        sources, targets = (len(nodes[tables.node_types.index(shown[end])]) for end in (0, 2))
        row = _numbers(arrays[EdgeKey(shown, SOURCE)], sources)
        counts, position = arrays.get(EdgeKey(shown, COUNT)), arrays.get(EdgeKey(shown, POSITION))
        # Before memory is taken for what they say; the look at negative ones is NumPy's.
        if counts is not None and int(counts.sum(dtype=np.int64)) != len(row):
            raise _misfit()
        col = _numbers(arrays[EdgeKey(shown, TARGET)] if counts is None else np.repeat(np.arange(len(counts)), counts), targets)
        if position is not None:
            position = _numbers(position, 0 if r is None else tables.num_edges(r))
        if len(col) != len(row) or (position is not None and len(position) != len(row)):
            raise _misfit()
        return WalkedEdges(shown, r, row, col, position, structure.layout.num_sampled_edges[shown])


def _numbers(array: NDArray[Any], limit: int) -> NDArray[np.int64]:
    """int64 ``[n]``: a list of numbers that has arrived, of which each must be at least 0 and below ``limit``."""
    if array.ndim != 1 or array.dtype.kind not in "iu" or (len(array) and not 0 <= array.min() <= array.max() < limit):
        raise _misfit()
    return array.astype(np.int64)


def _misfit() -> SamplingError:
    return SamplingError("a server sent a batch that does not fit the request", "servers and trainers must run the same gnnkit")
